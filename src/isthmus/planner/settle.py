"""Which variant of a way is taken on the layout at hand: bucket size, codec of deltas, fragments and delay."""

from math import ceil

from isthmus.cost.paths import Wan, pipeline_legs
from isthmus.cost.quality import loss_band
from isthmus.plan import Strategy
from isthmus.planner.crossing import Compute, Crossing, cross, fragment_stage
from isthmus.planner.setting import Setting
from isthmus.planner.ways import Way
from isthmus.workload import Axes

__all__ = ["SAME_PACE", "settle"]

SAME_PACE = 0.01
"""Variants whose steps differ less than this are equal, and the one that does the loss least harm is taken (judgement)."""


def settle(
    setting: Setting, wan: Wan, way: Way, axes: Axes, compute: Compute, loss_max: float | None
) -> tuple[Strategy, Crossing]:
    """The variant of `way` to take, and what it then adds to the step.

    Of the variants within `SAME_PACE` of the quickest, the one with the least upper end of its loss band, then the plainest.
    Variants beyond `loss_max` are passed over where one is within.
    """
    timed = [_timed(setting, wan, each, (axes, compute)) for each in way.variants]
    weighed = [(each, cross(setting, wan, each, axes, compute)) for each in timed]
    if loss_max is not None:
        weighed = [one for one in weighed if _high(setting, one[0]) <= loss_max] or weighed
    quickest = min(crossing.exposed_s for _, crossing in weighed)
    room = (compute.total_s + quickest) * (1 + SAME_PACE) - compute.total_s
    near = [one for one in weighed if one[1].exposed_s <= room]
    return near[0] if len(near) == 1 else min(near, key=lambda one: _high(setting, one[0]))


def _high(setting: Setting, strategy: Strategy) -> float:
    return loss_band(strategy, setting.parameters, setting.regions).high


def _timed(setting: Setting, wan: Wan, strategy: Strategy, on: tuple[Axes, Compute]) -> Strategy:
    """With what only the layout tells: a pipeline's micro-batches, and the streams of the ranks at a crossing; of late syncs the
    fewest steps of delay that hide one fragment's exchange, but no more than one window. Blocking syncs stay so.
    """
    axes, compute = on
    if strategy.kind == "pipeline":
        streams = max(leg.streams for leg in pipeline_legs(setting.fabric, axes.dp * axes.tp * axes.cp))
        return strategy.model_copy(update={"micro_batches": compute.micro_batches, "streams": streams})
    if not strategy.delay_steps:
        return strategy
    needed = ceil(fragment_stage(setting, wan, strategy).total_s / compute.total_s)
    delay = min(strategy.inner_steps, max(1, needed))
    return strategy if delay == strategy.delay_steps else strategy.model_copy(update={"delay_steps": delay})
