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
ZERO_STAGES: dict[str, tuple[Literal[0, 1, 2, 3], ...]] = {"sharded-zero3": (3,), "sharded-zero1": (1,)}
RECOMPUTE: tuple[Recompute, ...] = ("none", "full")

def whole_batch(workload: Workload, axes: Axes) -> Workload:
    """`workload` with its batch rounded up to what `axes` divides; the padding is paid for as imbalance."""
    slots = axes.dp * axes.micro_batch
    if workload.sequences_per_step % slots == 0:
        return workload
    return replace(workload, sequences_per_step=ceil(workload.sequences_per_step / slots) * slots)


def layouts(setting: Setting, strategy: Strategy) -> Iterator[Axes]:
    """Layouts that `strategy` may take: tp inside a node, pp inside a region (over all for a pipeline), dp
    the rest.

    For strategies with a replica in each region, `Axes.dp` counts all regions' replicas; ZeRO stays inside a
    region.
    """
    stages = _stage_counts(setting, strategy)
    zeros = ZERO_STAGES.get(strategy.name, (0, 1) if strategy.kind == "pipeline" else (0, 1, 3))
    for pp, tp, zero, micro, recompute in product(stages, DEGREES, zeros, (1, 2, 4, 8, 16), RECOMPUTE):
        if tp > setting.node_gpus or any(gpus % _grid(setting, strategy, tp, pp) for gpus in setting.region_gpus):
            continue
        axes = Axes(dp=setting.gpus // (tp * pp), tp=tp, pp=pp, zero=zero, micro_batch=micro, recompute=recompute)
        if axes.dp * micro > setting.workload.sequences_per_step:
            continue
        try:
            check_axes(whole_batch(setting.workload, axes), axes)
        except InfeasibleError:
            continue
        yield axes


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
