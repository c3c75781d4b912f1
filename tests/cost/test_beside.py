"""Waiting for the slower region, checkpoints, data: closed forms and laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cost.beside import Beside, checkpoint_s, data_bytes_per_s, slowest_excess, waiting_s
from isthmus.cost.efficiency import CHECKPOINT_EVERY, REGION_SPREAD


def test_the_slowest_of_two_lies_0_56_deviations_above_the_mean() -> None:
    # E max of two standard normals is 1 / sqrt(pi); more by a draw.
    assert slowest_excess(2) == pytest.approx(np.pi**-0.5, rel=1e-3)
    draws = np.random.default_rng(1).standard_normal((200_000, 8))
    for regions in (1, 2, 3, 5, 8):
        assert slowest_excess(regions) == pytest.approx(draws[:, :regions].max(axis=1).mean(), abs=0.01)


def test_regions_that_meet_every_step_wait_every_step_and_others_less() -> None:
    # 10 s x 0.005 x 0.564 = 28 ms; over 100 steps the deviation of the sum grows by 10, so a step waits a tenth.
    assert waiting_s(10.0, 2, 1, 0) == pytest.approx(10 * REGION_SPREAD.value * 0.5642)
    assert waiting_s(10.0, 2, 100, 0) == pytest.approx(waiting_s(10.0, 2, 1, 0) / 10)
    assert waiting_s(10.0, 2, 100, 1) == 0.0
    assert waiting_s(10.0, 1, 1, 0) == 0.0


def test_a_copy_of_7_gb_every_half_hour_costs_a_step_of_15_s_a_millisecond() -> None:
    # 7 GB at 55 GB/s is 127 ms, once in 120 steps.
    assert checkpoint_s(7e9, 55e9, 15.0) == pytest.approx(7 / 55 * 15 / CHECKPOINT_EVERY.value)
    assert data_bytes_per_s(1e6, 2) == 2e6
    assert Beside(waiting_s=1.0, checkpoint_s=2.0).total_s == 3.0


@given(st.floats(1e-3, 1e3), st.integers(2, 8), st.integers(1, 500), st.integers(0, 20))
def test_fewer_meetings_and_more_slack_never_cost(step: float, regions: int, every: int, slack: int) -> None:
    assert waiting_s(step, regions, every, slack) <= waiting_s(step, regions, 1, 0) * (1 + 1e-12)
    assert waiting_s(step, regions, every, slack) >= waiting_s(step, regions, every, slack + 1)
    assert waiting_s(2 * step, regions, every, slack) == pytest.approx(2 * waiting_s(step, regions, every, slack))
