"""Which layouts a strategy may take."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Literal

from isthmus.errors import InfeasibleError
from isthmus.plan import Strategy
from isthmus.planner.setting import Setting
from isthmus.workload import Axes, Recompute, Workload, check_axes

__all__ = ["layouts", "whole_batch"]

DEGREES = (1, 2, 4, 8)
MICRO_BATCHES = (1, 2, 4, 8, 16)
VIRTUAL_STAGES = (1, 2, 4)
"""Weighed inside regions. A pipeline over regions has one stage a region and pass: each more would cross the WAN again."""
LONG_SEQUENCE = 16_384
"""Tokens from which on context parallelism is weighed."""
ZERO_STAGES: dict[str, tuple[Literal[0, 1, 2, 3], ...]] = {"sharded-zero3": (3,), "sharded-zero1": (1,)}
RECOMPUTE: tuple[Recompute, ...] = ("none", "full")


def whole_batch(workload: Workload, axes: Axes) -> Workload:
    """`workload` with its batch rounded up to what `axes` divides; the padding is paid for as imbalance."""
    slots = axes.dp * axes.micro_batch
    if workload.sequences_per_step % slots == 0:
        return workload
    return replace(workload, sequences_per_step=ceil(workload.sequences_per_step / slots) * slots)


def layouts(setting: Setting, strategy: Strategy) -> Iterator[Axes]:
    """Layouts that `strategy` may take: tp inside a node, pp inside a region (over all for a pipeline), cp for long
    sequences, ep for models with experts, dp the rest.

    For strategies with a replica in each region, `Axes.dp` counts all regions' replicas; ZeRO and ep stay inside a
    region.
    """
    zeros = ZERO_STAGES.get(strategy.name, (0, 1) if strategy.kind == "pipeline" else (0, 1, 3))
    smallest = min(setting.region_gpus)
    for pp, tp, cp in product(_stage_counts(setting, strategy), DEGREES, _context_degrees(setting)):
        grid = _grid(setting, strategy, tp, pp) * cp
        if tp > setting.node_gpus or any(gpus % grid for gpus in setting.region_gpus):
            continue
        chunks = VIRTUAL_STAGES if pp > 1 and strategy.kind != "pipeline" else (1,)
        overlaps = (False, True) if tp > 1 else (False,)
        for ep, zero, micro, recompute, virtual, overlap in product(
            _expert_degrees(setting, smallest // grid * cp), zeros, MICRO_BATCHES, RECOMPUTE, chunks, overlaps
        ):
            dp = setting.gpus // (tp * pp * cp)
            if dp * micro > setting.workload.sequences_per_step:
                continue
            axes = Axes(
                dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero=zero, micro_batch=micro, recompute=recompute, virtual_stages=virtual,
                tp_overlap=overlap,
            )  # fmt: skip
            if _splits(setting, axes):
                yield axes


def _splits(setting: Setting, axes: Axes) -> bool:
    try:
        check_axes(whole_batch(setting.workload, axes), axes)
    except InfeasibleError:
        return False
    return True


def _context_degrees(setting: Setting) -> tuple[int, ...]:
    """Splitting a sequence pays where one alone asks for much memory."""
    return DEGREES if setting.workload.sequence_length >= LONG_SEQUENCE else (1,)


def _expert_degrees(setting: Setting, ranks: int) -> list[int]:
    """Powers of two, and all experts, that divide both the experts and the ranks of dp x cp in the smallest region."""
    experts = setting.workload.shape.experts
    if not experts:
        return [1]
    degrees = {2**power for power in range(8)} | {experts}
    return sorted(each for each in degrees if experts % each == 0 and ranks % each == 0)


def _stage_counts(setting: Setting, strategy: Strategy) -> list[int]:
    layers, smallest = setting.workload.shape.layers, min(setting.region_gpus)
    if strategy.name == "sharded-zero3":
        return [1]
    inside = [pp for pp in range(1, min(layers, smallest, 64) + 1) if smallest % pp == 0]
    if strategy.kind != "pipeline":
        return inside
    if len(set(setting.region_gpus)) > 1:
        return []
    return [pp * setting.regions for pp in inside if pp * setting.regions <= layers]


def _grid(setting: Setting, strategy: Strategy, tp: int, pp: int) -> int:
    """GPUs of one region's part of one replica."""
    return tp * pp // setting.regions if strategy.kind == "pipeline" else tp * pp
