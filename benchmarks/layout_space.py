"""Calculon's space of executions as columns: the same degrees, options and nesting, so that row i is its i-th execution."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.workload import Layouts

__all__ = ["Space", "enumerate_space", "execution"]

RECOMPUTE = ((2, "full"), (1, "attn_only"), (0, "none"))
COMM = ("ar", "p2p_rs_ag", "rs_ag")
OVERLAP = ("none", "ring", "pipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All executions of one model on `gpus` GPUs, as layouts, and the batch of each."""

    layouts: Layouts
    batch: NDArray[np.int64]
    gpus: int


def factors(number: int) -> list[int]:
    """Divisors, rising."""
    return [each for each in range(1, number + 1) if number % each == 0]


def enumerate_space(layers: int, heads: int, gpus: int, largest_batch: int, overlap: bool = True) -> Space:
    """Every combination that Calculon's llm-optimal-execution walks; `overlap` False as with its two --no flags."""
    parts: list[NDArray[np.int64]] = []
    for tp in (each for each in factors(gpus) if heads % each == 0):
        for pp in (each for each in factors(min(gpus // tp, layers)) if gpus % (tp * each) == 0 and layers % each == 0):
            dp = gpus // (tp * pp)
            if dp <= largest_batch:
                parts.append(_block(layers, (tp, pp, dp), largest_batch // dp * dp, overlap))
    columns = np.concatenate(parts, axis=1)
    names = ("tp", "pp", "dp", "batch", "virtual_stages", "recompute", "zero", "tp_way", "tp_regather", "dp_overlap")
    names += ("tp_overlap", "micro_batch", "tp_outside", "pp_outside", "dp_outside")
    table = dict(zip(names, columns, strict=True))
    batch = table.pop("batch")
    return Space(layouts=Layouts.make(rounds=batch // (table["dp"] * table["micro_batch"]), **table), batch=batch, gpus=gpus)


def _block(layers: int, degrees: tuple[int, int, int], batch: int, overlap: bool) -> NDArray[np.int64]:
    """All options of one (tp, pp, dp): an array (columns, n)."""
    tp, pp, dp = degrees
    pairs = [(0, way, again) for way in range(3) for again in ((1, 0) if way == 2 else (0,))]
    modes = [(code, way, again) for code, _ in RECOMPUTE for _, way, again in pairs if not (code == 2 and again)]
    both = [1, 0]
    axes: list[list[int]] = [
        [1] if pp == 1 else factors(layers // pp),
        list(range(len(modes))),
        both if dp > 1 else [0],
        both if dp > 1 and overlap else [0],
        [0, 1, 2] if tp > 1 and overlap else [0],
        factors(batch // dp),
        [0, 1] if tp > 1 else [0],
        [0, 1] if pp > 1 else [0],
        [0, 1] if dp > 1 else [0],
    ]
    grid = [each.ravel() for each in np.meshgrid(*(np.array(each) for each in axes), indexing="ij")]
    chunks, mode, sharded, dp_overlap, tp_overlap, micro, *outside = grid
    recompute, way, again = np.array(modes).T[:, mode]
    same = np.ones_like(mode)
    columns = (
        tp * same,
        pp * same,
        dp * same,
        batch * same,
        chunks,
        recompute,
        sharded,
        way,
        again,
        dp_overlap,
        tp_overlap,
        micro,
        *outside,
    )
    return np.stack(columns)


def execution(space: Space, row: int) -> dict[str, Any]:
    """Row `row` as Calculon writes an execution."""
    each = space.layouts
    return {
        "num_procs": space.gpus,
        "tensor_par": int(each.tp[row]),
        "pipeline_par": int(each.pp[row]),
        "data_par": int(each.dp[row]),
        "tensor_par_net": int(each.tp_outside[row]),
        "pipeline_par_net": int(each.pp_outside[row]),
        "data_par_net": int(each.dp_outside[row]),
        "batch_size": int(space.batch[row]),
        "microbatch_size": int(each.micro_batch[row]),
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": dict(RECOMPUTE)[int(each.recompute[row])],
        "pipeline_interleaving": int(each.virtual_stages[row]),
        "optimizer_sharding": bool(each.zero[row]),
        "tensor_par_comm_type": COMM[int(each.tp_way[row])],
        "tensor_par_overlap": OVERLAP[int(each.tp_overlap[row])],
        "seq_par_ag_redo": bool(each.tp_regather[row]),
        "data_par_overlap": bool(each.dp_overlap[row]),
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
