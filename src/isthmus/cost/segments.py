"""The predicted step of a trial as bars for a drawing: what runs when, in which lane."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from isthmus.cost.timeline import BucketTime
from isthmus.cost.tunnel import TrialInputs, inner_compute_s, predict_trial, sync_stage, trial_timeline
from isthmus.plan import Strategy

__all__ = ["Segment", "trial_segments"]

Lane = Literal["compute", "region", "wan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One bar: `lane` is who is busy, `what` says with what."""

    lane: Lane
    what: str
    start_s: float
    end_s: float


def trial_segments(strategy: Strategy, inputs: TrialInputs) -> list[Segment]:
    """The bars of one predicted step, none longer than the step.

    An every-step strategy shows its buckets. Local steps show the inner step and, behind it, the K-th part of what a
    sync adds: the mean step, not the one step in K that waits.

    Raises:
        InfeasibleError: As `predict_trial`.
    """
    if strategy.kind == "local-steps":
        return _local(strategy, inputs)
    timeline = trial_timeline(strategy, inputs)
    forward = inner_compute_s(inputs) * (1 - inputs.backward_fraction)
    # On shared cores the backward pass ends when the last bucket exists, later than it would alone.
    backward = max(timeline.compute_s, timeline.buckets[-1].ready_s)
    bars = [_bar("compute", "forward", 0.0, forward), _bar("compute", "backward", forward, backward)]
    for time in timeline.buckets:
        bars += _bucket(time, strategy)
    return [bar for bar in bars if bar.end_s > bar.start_s]


def _local(strategy: Strategy, inputs: TrialInputs) -> list[Segment]:
    prediction, stage = predict_trial(strategy, inputs), sync_stage(strategy, inputs)
    bars = [_bar("compute", "inner step", 0.0, inputs.compute_s)]
    work = (stage.before_s + stage.after_s) / strategy.inner_steps if inputs.shared_cores else 0.0
    ends = [inputs.compute_s, min(prediction.step_s, inputs.compute_s + work), prediction.step_s]
    parts: list[tuple[Lane, str]] = [
        ("region", f"1/{strategy.inner_steps} of a sync"),
        ("wan", f"1/{strategy.inner_steps} of a sync"),
    ]
    for (lane, what), (start, end) in zip(parts, pairwise(ends), strict=True):
        bars.append(_bar(lane, what, start, end))
    return [bar for bar in bars if bar.end_s > bar.start_s]


def _bucket(time: BucketTime, strategy: Strategy) -> list[Segment]:
    name = f"bucket {time.bucket}"
    if strategy.kind == "flat":
        return [_bar("wan", name, time.start_s, time.end_s)]
    return [
        _bar("region", f"{name} in", time.begin_s, min(time.start_s, time.done_s)),
        _bar("wan", name, time.start_s, time.end_s),
        _bar("region", f"{name} out", time.end_s, time.done_s),
    ]


def _bar(lane: Lane, what: str, start_s: float, end_s: float) -> Segment:
    return Segment(lane=lane, what=what, start_s=start_s, end_s=end_s)
