"""The wind tunnel's prediction: hand-worked cases, limits it may not beat, and strategies that must
coincide.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cost import TrialInputs, predict_trial, trial_segments
from isthmus.cost.codecs import codec_ratio
from isthmus.cost.gloo import (
    RingShape,
    concurrent_rings_s,
    gloo_ring_all_reduce_s,
    gloo_window_rate_bytes_per_s,
)
from isthmus.cost.tunnel import exchange_limit_s, exchange_s, trial_timeline
from isthmus.errors import InfeasibleError
from isthmus.plan import Strategy, StrategyKind

INPUTS = TrialInputs(
    regions=("west", "east"),
    ranks_per_region=2,
    gradient_bytes=16e6,
    tokens_per_step=4096,
    compute_s=1.0,
    backward_fraction=2 / 3,
    rate_bytes_per_s=12.5e6,
    rtt_s=0.018,
    buckets=(4e6, 4e6, 4e6, 4e6),
    codec_encode_bytes_per_s=400e6,
    codec_decode_bytes_per_s=800e6,
    copy_bytes_per_s=1e9,
)
FLAT = Strategy(name="flat", kind="flat")
HIERARCHICAL = Strategy(name="hierarchical", kind="hierarchical")
ALL = [
    FLAT,
    HIERARCHICAL,
    Strategy(name="hierarchical-bf16", kind="hierarchical", codec="bf16"),
    Strategy(name="hierarchical-int4", kind="hierarchical", codec="int4"),
    Strategy(name="local-20", kind="local-steps", codec="int8", inner_steps=20),
    Strategy(name="local-20-delayed", kind="local-steps", codec="int8", inner_steps=20, delay_steps=10),
]


def test_one_bucket_without_overlap_by_hand() -> None:
    # Wire 16 MB / (12.5e6 * 1448/1500 = 12.0667e6) = 1.32597 s, one way 9 ms, all-gather half of 16 ms = 8
    # ms. The reduce-scatter's 8 ms are in compute_s already, as are the 8 ms of the all-gather: 1.0 - 0.016 +
    # 0.008 + 1.32597 + 0.009 + 0.008.
    inputs = replace(INPUTS, buckets=(16e6,))
    step = predict_trial(HIERARCHICAL, inputs).step_s
    assert step == pytest.approx(1.0 - 0.016 + 0.008 + 1.325967 + 0.009 + 0.008, abs=1e-5)


def test_int4_by_hand() -> None:
    # 0.5/4 + (4 + 8)/(4*256) of 16 MB = 2.1875 MB; 0.18128 s. Encode 8 MB shard at 400 MB/s 20 ms, decode two at
    # 800 MB/s 20 ms.
    inputs = replace(INPUTS, buckets=(16e6,), copy_bytes_per_s=1e15)
    step = predict_trial(Strategy(name="i4", kind="hierarchical", codec="int4"), inputs).step_s
    assert step == pytest.approx(1.0 + 0.020 + 0.181284 + 0.009 + 0.020, abs=1e-5)


@given(st.floats(1e6, 2.5e8), st.floats(0, 0.06), st.floats(1e5, 1e8), st.floats(0.01, 10))
def test_no_fp32_strategy_beats_the_wire(rate: float, rtt: float, size: float, compute: float) -> None:
    inputs = replace(
        INPUTS,
        rate_bytes_per_s=rate,
        rtt_s=rtt,
        gradient_bytes=size,
        buckets=(size / 2, size / 2),
        compute_s=compute,
    )
    limit = exchange_limit_s(size, 2, rate, rtt)
    assert exchange_s(size, HIERARCHICAL, inputs) >= limit * (1 - 1e-9)
    step = predict_trial(HIERARCHICAL, inputs).step_s
    assert step >= max(compute, limit) * (1 - 1e-9)
    assert predict_trial(FLAT, inputs).step_s >= max(compute, limit * 1.0) * (1 - 1e-9) - rtt


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.name)
@given(st.floats(1.0, 8.0))
def test_a_slower_longer_link_or_a_bigger_model_never_helps(strategy: Strategy, factor: float) -> None:
    base = predict_trial(strategy, INPUTS)
    slow = predict_trial(strategy, replace(INPUTS, rate_bytes_per_s=INPUTS.rate_bytes_per_s / factor))
    far = predict_trial(strategy, replace(INPUTS, rtt_s=INPUTS.rtt_s * factor))
    big = predict_trial(
        strategy,
        replace(INPUTS, gradient_bytes=16e6 * factor, buckets=tuple(size * factor for size in INPUTS.buckets)),
    )
    for other in (slow, far, big):
        assert other.step_s >= base.step_s - 1e-9
        assert other.utilisation == pytest.approx(other.compute_s / other.step_s)
        assert other.step_s == pytest.approx(other.compute_s + other.exposed_s)


def test_syncing_every_step_locally_is_the_exchange_without_overlap_or_reduce_scatter() -> None:
    local = Strategy(name="k1", kind="local-steps", inner_steps=1)
    inputs = replace(INPUTS, buckets=(16e6,), copy_bytes_per_s=1e15)
    assert predict_trial(local, inputs).step_s == pytest.approx(predict_trial(HIERARCHICAL, inputs).step_s, rel=1e-7)


def test_strategies_come_in_the_order_that_the_emulator_measured() -> None:
    flat, hierarchical, bf16, int4, local, delayed = (predict_trial(strategy, INPUTS).step_s for strategy in ALL)
    assert flat > hierarchical > bf16 > int4 > local > delayed
    assert predict_trial(ALL[3], INPUTS).wan_bytes_per_step <= 0.14 * predict_trial(HIERARCHICAL, INPUTS).wan_bytes_per_step


def test_segments_hide_the_copies_of_one_big_bucket_behind_its_wire() -> None:
    inputs = replace(INPUTS, buckets=(16e6,), copy_bytes_per_s=50e6)
    whole = predict_trial(HIERARCHICAL, inputs).step_s
    cut = predict_trial(HIERARCHICAL, replace(inputs, chunk_bytes=1e6)).step_s
    # All but one segment's half copy before the wire (15/16 of 0.16 s); after it, all but what the last arrival leaves: the same.
    assert whole - cut == pytest.approx(2 * 15 / 16 * 0.16, rel=0.02)


def test_measured_work_of_an_exchange_by_hand() -> None:
    # 0.4 s of CPU on 2 cores hold every one of the 4 ranks up for 0.2 s: half before the wire, half after it. The wire as in
    # `test_int4_by_hand`; the codec is in the measured work, so its speed is not asked for.
    inputs = replace(
        INPUTS, buckets=(16e6,), copy_bytes_per_s=1e15, exchange_cpu_s=0.4, cores=2, codec_encode_bytes_per_s=None
    )
    step = predict_trial(ALL[3], inputs).step_s
    assert step == pytest.approx(1.0 + 0.1 + 0.181284 + 0.009 + 0.1, abs=1e-5)
    eight = predict_trial(ALL[3], replace(inputs, cores=8)).step_s  # four ranks use no more than four cores
    assert eight == pytest.approx(1.0 + 0.05 + 0.181284 + 0.009 + 0.05, abs=1e-5)


def test_work_of_an_exchange_hides_behind_a_wire_that_is_busy_longer_and_shows_in_full_behind_one_that_is_not() -> None:
    inputs = replace(INPUTS, compute_s=1e-9, copy_bytes_per_s=1e15, cores=2, chunk_bytes=1e6)
    work = replace(inputs, exchange_cpu_s=0.4)
    # Wire 1.326 s against 0.2 s of work: all but the first of 16 segments' half before it, and the last one's after it.
    slow = predict_trial(HIERARCHICAL, work).step_s - predict_trial(HIERARCHICAL, inputs).step_s
    assert slow == pytest.approx(0.2 / 16, rel=1e-6)
    fast = {"rate_bytes_per_s": 1e15, "rtt_s": 0.0}
    free = predict_trial(HIERARCHICAL, replace(work, **fast)).step_s
    assert free == pytest.approx(0.2, rel=1e-6)


def test_work_of_flat_rings_lengthens_the_backward_pass_and_hides_behind_a_wire_that_ends_later() -> None:
    # Compute without the region's own synchronisation 0.992 s. On a wire that takes no time the first three of four equal rings
    # lie beside the backward pass, so three quarters of their work: (0.4 / 2 cores + 8 MB / 1 GB/s) x 3/4 = 0.156 s. The last
    # ring has the additions of 2 MB behind the pass: in four segments.
    fast = replace(INPUTS, gradient_bytes=8e6, buckets=(2e6,) * 4, rate_bytes_per_s=1e15, rtt_s=0.0, cores=2)
    timeline = trial_timeline(FLAT, replace(fast, exchange_cpu_s=0.4))
    assert timeline.compute_s == pytest.approx(0.992 + 0.156, rel=1e-6)
    assert timeline.step_s > timeline.compute_s
    # On a slow wire a hundredth of the rings' time lies beside it.
    slow = replace(INPUTS, rate_bytes_per_s=1e5, cores=2)
    longer = predict_trial(FLAT, replace(slow, exchange_cpu_s=0.4)).step_s - predict_trial(FLAT, slow).step_s
    assert 0 <= longer < 0.05 * 0.2


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.name)
@given(st.floats(0, 2), st.floats(1, 4), st.integers(1, 8))
def test_more_work_never_helps_and_more_cores_never_hurt(strategy: Strategy, work: float, factor: float, cores: int) -> None:
    base = replace(INPUTS, exchange_cpu_s=work, cores=cores)
    step = predict_trial(strategy, base).step_s
    assert predict_trial(strategy, replace(base, exchange_cpu_s=work * factor)).step_s >= step - 1e-9
    assert predict_trial(strategy, replace(base, cores=cores + 1)).step_s <= step + 1e-9


def test_buckets_follow_each_other_on_the_wire_and_pay_the_way_once() -> None:
    # No compute to hide behind: 16 MB at 12.0667 MB/s are 1.325967 s, and 9 ms of way.
    inputs = replace(INPUTS, compute_s=1e-9, copy_bytes_per_s=1e15)
    assert predict_trial(HIERARCHICAL, inputs).exposed_s == pytest.approx(1.325967 + 0.009, rel=1e-5)


def test_waiting_for_the_slower_region_is_paid_each_exchange_and_evens_out_over_local_steps() -> None:
    uneven = replace(INPUTS, straggler_s=0.04)
    for strategy in ALL:
        more = predict_trial(strategy, uneven).step_s - predict_trial(strategy, INPUTS).step_s
        assert more == pytest.approx(0.04 / strategy.inner_steps**0.5)


def test_unrecorded_buckets_count_as_one() -> None:
    one, none = (replace(INPUTS, buckets=buckets) for buckets in ((16e6,), ()))
    for strategy in ALL:
        assert predict_trial(strategy, one) == predict_trial(strategy, none)


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.name)
def test_bars_of_a_step_end_where_the_step_ends_and_hold_all_of_the_wire(strategy: Strategy) -> None:
    prediction, bars = predict_trial(strategy, INPUTS), trial_segments(strategy, INPUTS)
    assert all(0 <= bar.start_s < bar.end_s for bar in bars)
    assert max(bar.end_s for bar in bars) == pytest.approx(prediction.step_s, rel=0.03)
    if strategy.kind == "hierarchical":
        on_wire = sum(bar.end_s - bar.start_s for bar in bars if bar.lane == "wan")
        wire = 16e6 * codec_ratio(strategy.codec) / (12.5e6 * 1448 / 1500)
        assert on_wire == pytest.approx(wire + 4 * 0.009, rel=1e-6)


@given(st.lists(st.floats(1e5, 4e6), min_size=1, max_size=6), st.floats(0, 0.05), st.floats(1e6, 1e9))
def test_two_rings_at_once_are_no_slower_than_one_by_one_and_at_most_twice_as_fast(
    sizes: list[float], latency: float, rate: float
) -> None:
    ring = RingShape(regions=2, ranks_per_region=2, wan_bytes_per_s=rate, wan_latency_s=latency, local_bytes_per_s=1e12)
    serial = sum(gloo_ring_all_reduce_s(size, ring) for size in sizes)
    spans = concurrent_rings_s([0.0] * len(sizes), sizes, ring)
    last = max(end for _, end in spans)
    assert serial / 2 * (1 - 1e-6) <= last <= serial * (1 + 1e-6)
    for start, _ in spans:
        assert sum(begin <= start < end - 1e-9 for begin, end in spans) <= 2


def test_three_regions_move_four_thirds_in_two_trips() -> None:
    inputs = replace(INPUTS, regions=("a", "b", "c"), buckets=(16e6,), copy_bytes_per_s=1e15)
    wire = 4 / 3 * 16e6 / (12.5e6 * 1448 / 1500)
    assert predict_trial(HIERARCHICAL, inputs).exposed_s == pytest.approx(wire + 0.018, rel=1e-6)
    mesh = predict_trial(HIERARCHICAL, replace(inputs, links_per_region=2))
    assert mesh.exposed_s == pytest.approx(wire / 2 + 0.018, rel=1e-6)


def test_ratios_of_the_codecs() -> None:
    assert codec_ratio("none") == 1.0
    assert codec_ratio("bf16") == 0.5
    assert 0.25 < codec_ratio("int8") < 0.26
    assert 0.125 < codec_ratio("int4") < 0.14


@pytest.mark.parametrize("kind", ["sharded", "pipeline"])
def test_strategies_that_the_tunnel_does_not_run_are_refused(kind: StrategyKind) -> None:
    with pytest.raises(InfeasibleError, match="it runs flat, hierarchical and local-steps"):
        predict_trial(Strategy(name="x", kind=kind), INPUTS)


def test_a_codec_without_a_measured_speed_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="isthmus bench"):
        predict_trial(ALL[3], replace(INPUTS, codec_encode_bytes_per_s=None))


@given(st.integers(2, 3), st.integers(1, 4), st.floats(1e4, 1e8), st.floats(1e6, 1e9), st.floats(0, 0.1))
def test_a_gloo_ring_is_never_faster_than_its_busiest_edge(
    regions: int, ranks: int, size: float, rate: float, latency: float
) -> None:
    ring = RingShape(
        regions=regions,
        ranks_per_region=ranks,
        wan_bytes_per_s=rate,
        wan_latency_s=latency,
        local_bytes_per_s=1e12,
    )
    n = regions * ranks
    seconds = gloo_ring_all_reduce_s(size, ring)
    bound = 2 * (n - 1) / n * size / gloo_window_rate_bytes_per_s(size, ring)
    assert seconds >= 2 * (n - 1) / n * size / rate * (1 - 1e-9)
    # The steady rate holds but for filling and draining two phases: at most a few trips and chunks more.
    assert seconds <= bound + 12 * regions * (latency + size / n / rate) + 1e-6
