"""Many layouts at once: one numpy array an axis, so that a search costs a few passes over memory.

`Axes` is one layout with whole-step facts checked; `Layouts` is a column of them and of the choices that only the
step's time depends on. Everything that prices layouts takes `Layouts`; one plan is a column of length one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isthmus.workload.axes import Axes
from isthmus.workload.flops import Recompute

__all__ = ["RECOMPUTE", "TP_OVERLAP", "TP_WAY", "Flags", "Ints", "Layouts"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
"""What the codes in `Layouts.recompute` mean."""
TP_WAY = ("all-reduce", "scattered-sends", "sequence-parallel")
"""Codes of `Layouts.tp_way`: how the halves of a block are joined over tp. `scattered-sends` all-reduces too, but a
pipeline stage sends each rank's 1/tp and the next one gathers; `sequence-parallel` reduce-scatters and gathers."""
TP_OVERLAP = ("none", "ring", "pipe")
"""Codes of `Layouts.tp_overlap`: whole collectives; cut by rank and sent beside the matrix products; cut in two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Layouts of one workload, all arrays of one length (n,).

    Attributes:
        dp: Data-parallel ranks that sum gradients together inside a site.
        tp: Tensor parallelism.
        pp: Pipeline stages.
        cp: Context parallelism.
        ep: Expert parallelism, carved out of dp x cp.
        zero: ZeRO stage over dp x cp.
        micro_batch: Sequences of one forward pass.
        rounds: Micro-batches of one replica in one step.
        recompute: Index into `RECOMPUTE`.
        virtual_stages: Chunks of blocks a stage holds under the interleaved schedule; 1 is plain 1F1B.
        tp_way: Index into `TP_WAY`.
        tp_regather: Sequence-parallel only: the gathered inputs are dropped and gathered again in the backward pass.
        tp_overlap: Index into `TP_OVERLAP`.
        dp_overlap: Gradients are reduced while the last backward pass runs.
        tp_outside, pp_outside, dp_outside: The axis is laid over nodes even where it would fit inside one.
    """

    dp: Ints
    tp: Ints
    pp: Ints
    cp: Ints
    ep: Ints
    zero: Ints
    micro_batch: Ints
    rounds: Ints
    recompute: Ints
    virtual_stages: Ints
    tp_way: Ints
    tp_regather: Flags
    tp_overlap: Ints
    dp_overlap: Flags
    tp_outside: Flags
    pp_outside: Flags
    dp_outside: Flags

    @staticmethod
    def make(**columns: ArrayLike) -> "Layouts":
        """Layouts from columns or single values, broadcast against each other; what is left out is plain.

        Plain is 1 for degrees, 0 for codes, sequence parallelism that gathers again, gradients overlapped.
        """
        defaults: dict[str, ArrayLike] = {"zero": 0, "recompute": 0, "tp_way": 2, "tp_regather": True, "tp_overlap": 0}
        defaults |= {"dp_overlap": True, "tp_outside": False, "pp_outside": False, "dp_outside": False}
        names = [each.name for each in fields(Layouts)]
        unknown = set(columns) - set(names)
        if unknown:
            raise TypeError(f"no column {', '.join(sorted(unknown))}")
        given = [np.atleast_1d(np.asarray(columns.get(name, defaults.get(name, 1)))) for name in names]
        arrays: dict[str, Any] = {}
        for name, array in zip(names, np.broadcast_arrays(*given), strict=True):
            flag = isinstance(defaults.get(name), bool)
            arrays[name] = array.astype(np.bool_ if flag else np.int64)
        return Layouts(**arrays)

    @staticmethod
    def of(axes: Sequence[Axes], rounds: ArrayLike) -> "Layouts":
        """The layouts `axes`, each with its micro-batches a step."""
        named = ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "virtual_stages")
        columns: dict[str, ArrayLike] = {name: [getattr(each, name) for each in axes] for name in named}
        columns["recompute"] = [RECOMPUTE.index(each.recompute) for each in axes]
        columns["tp_overlap"] = [TP_OVERLAP.index("ring" if each.tp_overlap else "none") for each in axes]
        return Layouts.make(rounds=rounds, **columns)

    def __len__(self) -> int:
        return len(self.dp)

    def take(self, rows: NDArray[Any]) -> "Layouts":
        """The layouts at `rows` (indices or a mask)."""
        return Layouts(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})

    def axes(self, row: int) -> Axes:
        """Layout `row` by itself."""
        zero: Any = int(self.zero[row])
        return Axes(
            dp=int(self.dp[row]),
            tp=int(self.tp[row]),
            pp=int(self.pp[row]),
            cp=int(self.cp[row]),
            ep=int(self.ep[row]),
            zero=zero,
            micro_batch=int(self.micro_batch[row]),
            recompute=RECOMPUTE[int(self.recompute[row])],
            virtual_stages=int(self.virtual_stages[row]),
            tp_overlap=bool(self.tp_overlap[row]),
        )
