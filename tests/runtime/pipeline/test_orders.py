"""Schedules: complete, free of deadlock, as shallow as they say, and as fast as the closed forms of isthmus.cost say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cost.step import pipeline_bubble_fraction, pipeline_wan_exposed_s, pipeline_warm_up_extra
from isthmus.errors import InputError
from isthmus.runtime.pipeline.orders import Depth, Op, Pace, Shape, choose_depth, in_flight, least_depth, order, played_s


@st.composite
def shapes(draw):
    regions, virtual = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    return Shape(regions, virtual, regions * draw(st.integers(1, 6)) if virtual > 1 else draw(st.integers(1, 24)))


@st.composite
def depths(draw, shape):
    groups = [g for g in range(shape.regions, shape.micro_batches + 1) if shape.micro_batches % g == 0] or [1]
    count = shape.regions if shape.virtual == 1 else 1
    extra = sorted(draw(st.lists(st.integers(0, 30), min_size=count, max_size=count)), reverse=True) * (shape.regions // count)
    return Depth(draw(st.sampled_from(groups)), tuple(extra))


def pace(shape, crossing_s=0.0, wire_s=0.0):
    """A micro-batch takes a region 1 s in all, a third of it forward."""
    regions, virtual = shape.regions, shape.virtual
    return Pace((1 / 3 / virtual,) * regions, (2 / 3 / virtual,) * regions, (crossing_s,) * regions, (wire_s,) * regions)


@settings(max_examples=30)
@given(st.data())
def test_every_pass_runs_once_each_chunk_in_order_of_micro_batches_and_nobody_waits_for_ever(data):
    shape = data.draw(shapes())
    depth = data.draw(depths(shape))
    for region in range(shape.regions):
        ops = order(shape, region, depth)
        held = [turn * shape.regions + region for turn in range(shape.virtual)]
        everything = {Op(backward, chunk, m) for backward in (False, True) for chunk in held for m in range(shape.micro_batches)}
        assert len(ops) == len(everything)
        assert set(ops) == everything
        for chunk in held:
            for backward in (False, True):
                micros = [op.micro for op in ops if (op.chunk, op.backward) == (chunk, backward)]
                assert micros == sorted(micros)  # so gradients are added in the same order by any schedule
    link = pace(shape, crossing_s=data.draw(st.floats(0, 3)))
    for deep in (depth, least_depth(shape), choose_depth(shape, link)):
        assert shape.micro_batches - 1e-6 <= played_s(shape, deep, link) < float("inf")


@given(st.integers(2, 6), st.integers(0, 30))
def test_1f1b_takes_what_the_bubble_formula_says_and_keeps_no_more_than_the_stages_behind(regions, more):
    shape = Shape(regions, 1, regions + more)
    formula_s = shape.micro_batches * (1 + pipeline_bubble_fraction(regions, shape.micro_batches))
    assert played_s(shape, least_depth(shape), pace(shape)) == pytest.approx(formula_s, rel=1e-9)
    kept = [in_flight(order(shape, region, least_depth(shape))) for region in range(regions)]
    assert kept == [regions - region for region in range(regions)]


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 5))
def test_interleaving_divides_the_bubble_by_the_chunks_a_region(regions, virtual, times):
    # Narayanan et al., arXiv 2104.04473 section 2.2: (p - 1) / (v m).
    shape = Shape(regions, virtual, regions * times)
    expected_s = shape.micro_batches + (regions - 1) / virtual
    assert played_s(shape, least_depth(shape), pace(shape)) == pytest.approx(expected_s, rel=1e-9)


@settings(max_examples=25)
@given(st.integers(2, 4), st.integers(0, 6), st.floats(0.0, 0.9))
def test_deep_enough_each_crossing_is_paid_once_each_way_as_the_planner_predicts(regions, round_trip, wire_s):
    # The formula has no rounding; a fixed order has none either where a round trip is a whole number of slots.
    crossing_s = max(round_trip / 2, wire_s)
    extra = [pipeline_warm_up_extra(1.0, [crossing_s] * (regions - 1 - region)) for region in range(regions)]
    shape = Shape(regions, 1, regions + max(extra) + 8)
    link = pace(shape, crossing_s, wire_s)
    bubble_s = shape.micro_batches * (1 + pipeline_bubble_fraction(regions, shape.micro_batches))
    exposed_s = pipeline_wan_exposed_s(shape.micro_batches, 1.0, [crossing_s] * (regions - 1), wire_s)
    slack_s = 1e-6 if crossing_s == round_trip / 2 else regions - 1
    assert -1e-6 <= played_s(shape, Depth(regions, tuple(extra)), link) - bubble_s - exposed_s <= slack_s
    # What is chosen is as fast, within its slack, and no deeper.
    chosen = choose_depth(shape, link)
    assert played_s(shape, chosen, link) <= (bubble_s + exposed_s) * 1.02 + slack_s
    assert slack_s > 1e-3 or all(one <= other for one, other in zip(chosen.extra, extra, strict=True))


def test_without_running_ahead_every_micro_batch_pays_for_the_link():
    # Two stages, 16 micro-batches, 1 s one way: of every two micro-batches one waits a round trip.
    shape = Shape(2, 1, 16)
    shallow_s, link = played_s(shape, least_depth(shape), pace(shape, 1.0)), pace(shape, 1.0)
    chosen = choose_depth(shape, link)
    assert chosen == Depth(2, (2, 0))
    assert played_s(shape, chosen, link) == pytest.approx(16 + 1 + 2)
    assert shallow_s == pytest.approx(2 * 16 + 1)


def test_interleaved_over_a_slow_link_prefers_longer_groups():
    shape, link = Shape(2, 2, 16), pace(Shape(2, 2, 16), 1.0)
    assert choose_depth(shape, pace(shape)) == least_depth(shape)
    chosen = choose_depth(shape, link)
    assert chosen.group > 2
    assert played_s(shape, chosen, link) < 0.6 * played_s(shape, least_depth(shape), link)


def test_micro_batches_that_cannot_be_interleaved_are_refused():
    shape = Shape(3, 2, 8)
    with pytest.raises(InputError) as caught:
        order(shape, 0, least_depth(shape))
    assert str(caught.value) == (
        "strategy.micro_batches: 8 cannot be interleaved over 3 regions\n  hint: give a multiple of 3, or schedule 1f1b"
    )
