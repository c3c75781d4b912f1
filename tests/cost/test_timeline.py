"""Overlap: by hand, and bounds that hold for any buckets."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cost.timeline import (
    Stage,
    deferred_timeline,
    equal_buckets_exposed_s,
    overlap_timeline,
    ready_times_s,
    staggered_left_s,
)

TIMES = st.floats(0, 10)
STAGES = st.lists(
    st.builds(Stage, before_s=TIMES, wire_s=TIMES, latency_s=st.just(0.5), after_s=TIMES),
    min_size=1,
    max_size=12,
)


def wire(seconds: float, latency_s: float = 0.0) -> Stage:
    return Stage(before_s=0.0, wire_s=seconds, latency_s=latency_s, after_s=0.0)


def test_three_buckets_on_one_pipe_by_hand() -> None:
    # Backward from 1 s to 4 s: ready at 2, 3, 4. Wire 2 s each: 2-4, 4-6, 6-8; the step's compute ends at 4,
    # so 4 s are seen.
    ready = ready_times_s([1, 1, 1], 4.0, 0.75)
    assert ready == pytest.approx([2, 3, 4])
    timeline = overlap_timeline(ready, [wire(2.0)] * 3, 4.0)
    assert [time.start_s for time in timeline.buckets] == pytest.approx([2, 4, 6])
    assert [time.end_s for time in timeline.buckets] == pytest.approx([4, 6, 8])
    assert timeline.exposed_s == pytest.approx(4.0)


def test_a_quick_pipe_shows_only_the_last_bucket() -> None:
    timeline = overlap_timeline(ready_times_s([1, 1, 1], 4.0, 0.75), [wire(0.1, 0.2)] * 3, 4.0)
    assert timeline.exposed_s == pytest.approx(0.3)


def test_on_shared_cores_work_on_buckets_lengthens_the_step_in_full() -> None:
    # Each bucket: 0.5 s before and 0.5 s after, free wire: 2 s of work that the same cores must do besides 4
    # s of compute.
    stages = [Stage(before_s=0.5, wire_s=0.0, latency_s=0.0, after_s=0.5)] * 2
    assert overlap_timeline([2.0, 4.0], stages, 4.0, shared_cores=True).exposed_s == pytest.approx(2.0)
    assert overlap_timeline([2.0, 4.0], stages, 4.0, shared_cores=False).exposed_s == pytest.approx(1.0)


@given(STAGES, st.floats(0.01, 20), st.floats(0, 1), st.booleans())
def test_exposed_lies_between_the_last_bucket_and_all_of_them(
    stages: list[Stage], compute: float, backward: float, shared: bool
) -> None:
    ready = ready_times_s([1.0] * len(stages), compute, backward)
    timeline = overlap_timeline(ready, stages, compute, shared)
    assert timeline.exposed_s <= sum(stage.total_s for stage in stages) * (1 + 1e-9)
    assert timeline.exposed_s >= stages[-1].total_s * (1 - 1e-9) - 1e-9
    assert timeline.exposed_s >= sum(stage.wire_s for stage in stages) - compute * backward - 1e-9
    assert all(a.end_s <= b.end_s + 1e-9 for a, b in pairwise(timeline.buckets))


@given(STAGES, st.floats(0.01, 20), st.floats(0, 1))
def test_sharing_cores_never_helps(stages: list[Stage], compute: float, backward: float) -> None:
    ready = ready_times_s([1.0] * len(stages), compute, backward)
    alone, shared = (overlap_timeline(ready, stages, compute, flag).exposed_s for flag in (False, True))
    assert shared >= alone - 1e-9


@given(STAGES, st.floats(0.01, 20))
def test_without_a_backward_pass_nothing_hides(stages: list[Stage], compute: float) -> None:
    serial = overlap_timeline([compute] * len(stages), stages, compute)
    assert serial.exposed_s >= sum(stage.wire_s for stage in stages) - 1e-9
    moved = overlap_timeline([0.0] * len(stages), stages, 0.0)
    assert serial.exposed_s == pytest.approx(moved.step_s, rel=1e-9, abs=1e-9)


@given(
    st.integers(1, 40),
    st.builds(Stage, before_s=TIMES, wire_s=TIMES, latency_s=TIMES, after_s=TIMES),
    st.floats(0.01, 20),
    st.floats(0, 1),
)
def test_equal_buckets_in_one_expression_are_those_played(count: int, stage: Stage, compute: float, backward: float) -> None:
    ready = ready_times_s([1.0] * count, compute, backward)
    played = overlap_timeline(ready, [stage] * count, compute).exposed_s
    assert equal_buckets_exposed_s(count, stage, compute * backward) == pytest.approx(played, rel=1e-9, abs=1e-9)


def test_all_buckets_go_out_before_any_comes_in() -> None:
    # Reduced by 1, 2, 3, 4; on the wire 1-3, 3-5, 5-7, 7-9; there 0.5 later. From 4 on they are taken in, 0.5 each: the first
    # at 4-4.5, the others as they arrive at 5.5, 7.5, 9.5.
    segment = Stage(before_s=1.0, wire_s=2.0, latency_s=0.5, after_s=0.5)
    timeline = deferred_timeline([0.0, 0.0], [[segment, segment]] * 2, 0.0, shared_cores=False)
    first, second = timeline.buckets
    assert (first.begin_s, first.start_s, first.end_s, first.done_s) == (0.0, 1.0, 5.5, 6.0)
    assert (second.begin_s, second.start_s, second.end_s, second.done_s) == (2.0, 5.0, 9.5, 10.0)
    assert timeline.exposed_s == 10.0


@given(STAGES, st.floats(0.01, 20), st.floats(0, 1), st.booleans())
def test_deferred_results_are_never_quicker_than_those_taken_at_once(
    stages: list[Stage], compute: float, backward: float, shared: bool
) -> None:
    ready = ready_times_s([1.0] * len(stages), compute, backward)
    at_once = overlap_timeline(ready, stages, compute).exposed_s
    deferred = deferred_timeline(ready, [[stage] for stage in stages], compute, shared)
    assert deferred.exposed_s >= at_once - 1e-9
    assert deferred.exposed_s <= sum(stage.total_s for stage in stages) + 1e-9
    work = sum(stage.before_s + stage.after_s for stage in stages)
    assert deferred.exposed_s >= (work if shared else 0.0) - 1e-9
    for earlier, later in pairwise(deferred.buckets):
        assert later.start_s >= earlier.start_s - 1e-9
        assert later.done_s >= earlier.done_s - 1e-9


def test_one_stage_has_left_what_its_window_does_not_hold_and_two_share_the_wire() -> None:
    assert staggered_left_s(1, 3.0, 3.0, 1.0) == pytest.approx(2.0)
    # Streams that fill the wire alone: 2 x 3 s of it, of which two windows of 1 s hold 2.
    assert staggered_left_s(2, 3.0, 6.0, 1.0) == pytest.approx(4.0)
    # Streams that carry half of it: each takes its own 3 s, as if alone.
    assert staggered_left_s(2, 3.0, 3.0, 1.0) == pytest.approx(2.0)
    # 0.8 of it: the first sends 0.8 of 2.4, and both 0.5 each until it has ended, 3.2 s on; the second's last 0.8 take 1 s.
    assert staggered_left_s(2, 3.0, 4.8, 1.0) == pytest.approx(3.2 - 1 + 1.0)


@given(st.integers(1, 8), st.floats(1e-3, 1e2), st.floats(0, 1), st.floats(1e-3, 1e2))
def test_what_is_left_lies_between_one_stage_alone_and_all_on_one_wire(
    stages: int, alone: float, share: float, window: float
) -> None:
    everything = alone * (1 + share * (stages - 1))
    left = staggered_left_s(stages, alone, everything, window)
    assert left >= max(0.0, alone - window) - 1e-6 * alone
    assert left >= (everything - stages * window) * (1 - 1e-6) - 1e-9
    assert left <= everything * (1 + 1e-6)
