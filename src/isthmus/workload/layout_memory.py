"""Memory of many layouts at once: parameters of a stage, state under ZeRO, activations in flight."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.workload.activations import AttentionKernel, kept_and_working
from isthmus.workload.layouts import RECOMPUTE, Ints, Layouts
from isthmus.workload.model import ModelShape, Precision, Workload
from isthmus.workload.parameters import (
    dense_block_parameters,
    embedding_parameters,
    expert_block_shared_parameters,
    mtp_parameter_count,
    routed_expert_parameters,
)

__all__ = [
    "Floats",
    "LayoutMemory",
    "blocks_of",
    "expert_blocks_of",
    "layout_memory",
    "stage_parameters",
    "weight_bytes_per_parameter",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutMemory:
    """Bytes on the fullest GPU of each layout, by what holds them, all (n,); `last`: a GPU of the last stage."""

    weights: Floats
    gradients: Floats
    master: Floats
    optimizer: Floats
    activations: Floats
    last: NDArray[np.bool_]

    @property
    def total(self) -> Floats:
        """All five together."""
        return self.weights + self.gradients + self.master + self.optimizer + self.activations


def weight_bytes_per_parameter(precision: Precision) -> int:
    """Bytes of a stored weight: 4 in fp32, else 2.

    Under fp8 the matrix products read fp8 casts of bf16 weights; those casts live only while they are used.
    """
    return 4 if precision == "fp32" else 2


def blocks_of(shape: ModelShape, layouts: Layouts) -> Ints:
    """Blocks of the fullest stage."""
    return -(-shape.layers // layouts.pp)


def expert_blocks_of(shape: ModelShape, layouts: Layouts, last: bool) -> Ints:
    """Expert blocks of the first or the last stage; a model's dense blocks come first."""
    blocks = blocks_of(shape, layouts)
    if not shape.experts:
        return np.zeros_like(blocks)
    return np.minimum(blocks, shape.expert_layers) if last else np.maximum(0, blocks - shape.dense_layers)


def stage_parameters(shape: ModelShape, layouts: Layouts, last: bool) -> tuple[Floats, Floats]:
    """(parameters outside routed experts, in routed experts) on a GPU of the first or the last stage, each (n,)."""
    blocks, experts = blocks_of(shape, layouts), expert_blocks_of(shape, layouts, last)
    shared: NDArray[Any] = (blocks - experts) * dense_block_parameters(shape)
    shared = shared + experts * expert_block_shared_parameters(shape)
    routed: NDArray[Any] = experts * (shape.experts * routed_expert_parameters(shape))
    if last and shape.mtp_layers:
        extra = shape.mtp_layers * shape.experts * routed_expert_parameters(shape)
        routed = routed + extra
        shared = shared + mtp_parameter_count(shape) - extra
    norm = shape.norm_tensors * shape.hidden
    shared = shared + np.where(layouts.pp == 1, embedding_parameters(shape) + norm, _end_parameters(shape, last))
    return shared / layouts.tp, routed / (layouts.tp * layouts.ep)


def _end_parameters(shape: ModelShape, last: bool) -> int:
    """What the first stage of several holds of the embeddings, or the last of the output projection and final norm."""
    table = shape.hidden * shape.vocabulary
    if not last:
        return table + shape.positions * shape.hidden
    # A tied table is held again by the last stage, as is the one that MTP embeds with.
    return table * (2 if shape.mtp_layers and not shape.tied else 1) + shape.norm_tensors * shape.hidden


def layout_memory(workload: Workload, layouts: Layouts, kernel: AttentionKernel = "fused") -> LayoutMemory:
    """What `gpu_memory` says of one layout, for all of `layouts`.

    Under the interleaved schedule with v chunks the first stage holds p + (p - 1) / v micro-batches and the last
    ((v - 1) p + 1) / v (arXiv 2205.05198, section 4.2.3), never more than there are. Without sequence parallelism what
    lies outside tp's halves is held whole; with it and without gathering again, so are both halves' inputs.
    """
    first, last = (_stage_memory(workload, layouts, kernel, each) for each in (False, True))
    which = ~(first.total > last.total)

    def fuller(of_first: Floats, of_last: Floats) -> Floats:
        return np.where(which, of_last, of_first)

    return LayoutMemory(
        weights=fuller(first.weights, last.weights),
        gradients=fuller(first.gradients, last.gradients),
        master=fuller(first.master, last.master),
        optimizer=fuller(first.optimizer, last.optimizer),
        activations=fuller(first.activations, last.activations),
        last=which,
    )


def _stage_memory(workload: Workload, layouts: Layouts, kernel: AttentionKernel, last: bool) -> LayoutMemory:
    shape, zero = workload.shape, layouts.zero
    shared, routed = stage_parameters(shape, layouts, last)
    ranks = layouts.dp * layouts.cp
    whole = shared + routed
    part = shared / ranks + routed / np.maximum(1, ranks // layouts.ep)
    master = 0 if workload.precision == "fp32" else 4
    sharded = np.where(zero >= 1, part, whole)
    return LayoutMemory(
        weights=weight_bytes_per_parameter(workload.precision) * np.where(zero >= 3, part, whole),
        gradients=workload.gradient_bytes * np.where(zero >= 2, part, whole),
        master=master * sharded,
        optimizer=8 * sharded,
        activations=_activations(workload, layouts, kernel, last),
        last=np.full(len(layouts), last),
    )


def _activations(workload: Workload, layouts: Layouts, kernel: AttentionKernel, last: bool) -> Floats:
    shape, element = workload.shape, weight_bytes_per_parameter(workload.precision)
    modes = [kept_and_working(shape, workload.sequence_length, each, kernel, element) for each in RECOMPUTE]
    kept, kept_outside, working, working_outside = np.array(modes)[layouts.recompute].T
    sequence_parallel = layouts.tp_way == 2
    inputs = 2.0 * element * shape.hidden
    held = sequence_parallel & ~layouts.tp_regather & (layouts.recompute != 2)
    # What every rank of tp holds whole, beyond its 1/tp.
    kept_whole = np.where(sequence_parallel, np.where(held, shape.layers * inputs, 0.0), kept_outside)
    working_whole = np.where(sequence_parallel, 0.0, working_outside)
    kept_each = kept_whole + (kept - kept_whole) / layouts.tp
    working_each = working_whole + (working - working_whole) / layouts.tp
    per_token = _in_flight(layouts, last) * kept_each * blocks_of(shape, layouts) / shape.layers + working_each
    logits = (2 * element * shape.hidden + 4 * shape.vocabulary) / layouts.tp
    per_token = per_token + (logits if last else np.where(layouts.pp == 1, logits, 0.0))
    return workload.sequence_length / layouts.cp * layouts.micro_batch * per_token


def _in_flight(layouts: Layouts, last: bool) -> Floats:
    """Micro-batches whose activations a GPU of the first or last stage holds at once."""
    pp, chunks = layouts.pp, layouts.virtual_stages
    first = pp + np.where(chunks > 1, (pp - 1) / chunks, 0.0)
    return np.minimum(((chunks - 1) * pp + 1) / chunks if last else first, layouts.rounds)
