"""Step parts: closed forms, limits that must coincide, and a pipeline schedule played micro-batch by
micro-batch.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cost.step import (
    blocking_sync_s,
    compute_s,
    delayed_sync_s,
    fragments_exposed_s,
    pipeline_bubble_fraction,
    pipeline_wan_exposed_s,
    pipeline_warm_up_extra,
    sharded_exposed_s,
    swap_bytes,
    zero3_wan_bytes,
)

TIMES = st.floats(0, 1e4)


def test_figures_worked_by_hand() -> None:
    # 6 * 175e9 * 2,097,152 tokens = 2.202e21; 64 * 989.4e12 * 0.4 = 2.533e16; quotient 86.9 s.
    assert compute_s(6 * 175e9 * 1024 * 2048, 64, 989.4e12, 0.40) == pytest.approx(86.93, abs=0.01)
    assert pipeline_bubble_fraction(8, 56) == 0.125
    # Two regions, parameters 2 GB and gradients 2 GB, one micro-step: half of 2 + 2 + 2 GB.
    assert zero3_wan_bytes(2e9, 2e9, 2, 1) == 3e9
    assert swap_bytes(8.0, 2) == 8.0
    assert swap_bytes(9.0, 3) == 12.0
    # Four gathers of 1.25 s of wire and 0.25 s of latency beside 3 s of compute: 6 - 3, and one latency to start.
    assert sharded_exposed_s(5.0, 0.25, 3.0, 4) == 3.25


@given(TIMES, st.integers(1, 1000), st.integers(0, 1000), st.floats(1e-3, 10))
def test_delay_never_costs_and_no_delay_is_blocking(sync: float, inner: int, delay: int, step: float) -> None:
    assert delayed_sync_s(sync, inner, 0, step) == blocking_sync_s(sync, inner)
    assert delayed_sync_s(sync, inner, delay, step) <= blocking_sync_s(sync, inner)
    assert blocking_sync_s(sync, 1) == sync


def _played_pipeline_s(stages: int, micro_batches: int, slot: float, crossing: float, in_flight_extra: int) -> float:
    """1F1B played: stage k sends forward micro-batches down and gets gradients back; the middle edge takes
    `crossing`.

    Each stage alternates backward first where one has arrived, and has at most stages - k micro-batches in
    flight, `in_flight_extra` more before the crossing.
    """
    half = slot / 2
    forward_at = [[0.0] * micro_batches] + [[-1.0] * micro_batches for _ in range(stages - 1)]
    backward_at = [[-1.0] * micro_batches for _ in range(stages)]
    clock, forwards, backwards = [0.0] * stages, [0] * stages, [0] * stages
    hop = [crossing if k == stages // 2 - 1 else 0.0 for k in range(stages)]
    while min(backwards) < micro_batches:
        choices: list[tuple[float, int, int]] = []
        for k in range(stages):
            deeper = in_flight_extra if k < stages // 2 else 0
            room = forwards[k] - backwards[k] < stages - k + deeper
            if backwards[k] < micro_batches and backward_at[k][backwards[k]] >= 0:
                choices.append((max(clock[k], backward_at[k][backwards[k]]), 0, k))
            if room and forwards[k] < micro_batches and forward_at[k][forwards[k]] >= 0:
                choices.append((max(clock[k], forward_at[k][forwards[k]]), 1, k))
        start, is_forward, k = min(choices)
        clock[k] = start + half
        if is_forward:
            index = forwards[k]
            forwards[k] += 1
            if k + 1 < stages:
                forward_at[k + 1][index] = clock[k] + hop[k]
            else:
                backward_at[k][index] = clock[k]
        else:
            index = backwards[k]
            backwards[k] += 1
            if k > 0:
                backward_at[k - 1][index] = clock[k] + hop[k - 1]
    return max(clock)


@given(st.sampled_from([2, 4, 8]), st.integers(24, 64), st.floats(0.0, 4.0))
def test_a_played_pipeline_over_the_wan_takes_what_the_formula_says(stages: int, micro_batches: int, crossing: float) -> None:
    slot = 1.0
    extra = pipeline_warm_up_extra(slot, [crossing])
    here = _played_pipeline_s(stages, micro_batches, slot, 0.0, 0)
    apart = _played_pipeline_s(stages, micro_batches, slot, crossing, extra)
    assert here == pytest.approx(micro_batches * slot * (1 + pipeline_bubble_fraction(stages, micro_batches)), rel=1e-9)
    exposed = pipeline_wan_exposed_s(micro_batches, slot, [crossing], 0.0)
    assert apart - here == pytest.approx(exposed, abs=1e-6)


def test_without_deeper_warm_up_every_micro_batch_pays_for_the_wan() -> None:
    here = _played_pipeline_s(4, 64, 1.0, 0.0, 0)
    shallow = _played_pipeline_s(4, 64, 1.0, 3.0, 0)
    deep = _played_pipeline_s(4, 64, 1.0, 3.0, pipeline_warm_up_extra(1.0, [3.0]))
    assert shallow - here > 5 * (deep - here)


def test_stages_before_two_crossings_lead_by_whole_micro_batches_for_each() -> None:
    # 2 x 0.15 of a slot is one micro-batch for each crossing, not one for both together: leads are whole, and add up.
    assert pipeline_warm_up_extra(1.0, [0.15, 0.15]) == 2
    assert pipeline_warm_up_extra(1.0, [1.2, 0.5]) == 3 + 1
    assert pipeline_warm_up_extra(1.0, []) == 0


def test_fragments_one_by_one_cost_what_one_blocking_sync_costs_and_delay_hides_each() -> None:
    # 4 fragments of 3 s (2 s on the wire) every 10 steps of 1 s. Blocking 4 x 3 / 10; 3 steps late only 0.1 s of work each.
    assert fragments_exposed_s(3.0, 2.0, 0.1, (10, 0, 4), 1.0) == pytest.approx(1.2)
    assert fragments_exposed_s(3.0, 2.0, 0.1, (10, 3, 4), 1.0) == pytest.approx(0.04)
    assert fragments_exposed_s(3.0, 2.0, 0.1, (10, 2, 4), 1.0) == pytest.approx(0.4)
    # A link that needs 4 x 2 s every 5 steps sets the pace, however late: (8 - 5) / 5.
    assert fragments_exposed_s(3.0, 2.0, 0.1, (5, 5, 4), 1.0) == pytest.approx(0.6)
    assert fragments_exposed_s(3.0, 3.0, 0.0, (7, 2, 1), 1.0) == pytest.approx(delayed_sync_s(3.0, 7, 2, 1.0))
