"""Scaling keeps both ratios, and says so where it cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.emulate.similitude import (
    RATE_BYTES_PER_S_MAX,
    RATE_BYTES_PER_S_MIN,
    RTT_S_MAX,
    Ratios,
    ratios,
    scale,
)


def test_a_plan_scaled_by_hand() -> None:
    # Real: 14 GB over 12.5 GB/s beside a 2.8 s step, 18 ms RTT: ratios 0.4 and 0.00643.
    real = ratios(14e9, 12.5e9, 0.018, 2.8)
    assert real == Ratios(transfer=pytest.approx(0.4), rtt=pytest.approx(0.018 / 2.8))
    # Here: 14 MB and a 0.7 s step: 14 MB / (0.4 x 0.7 s) = 50 MB/s = 400 Mb/s, RTT 4.5 ms.
    here = scale(real, 0.7, 14e6)
    assert here.rate_bytes_per_s == pytest.approx(50e6)
    assert here.rtt_s == pytest.approx(0.0045)
    assert here.clamped == ()


def test_what_the_line_cannot_carry_is_clamped_and_said() -> None:
    # 14 MB in 0.01 of a 0.1 s step is 112 Gb/s; 3 steps of 0.1 s are 300 ms.
    here = scale(Ratios(transfer=0.01, rtt=3.0), 0.1, 14e6)
    assert (here.rate_bytes_per_s, here.rtt_s) == (125e6, 0.060)
    assert here.achieved == Ratios(transfer=pytest.approx(1.12), rtt=pytest.approx(0.6))
    assert here.clamped == (
        "rate: asked 1.12e+05 Mb/s, the fastest is 1000 Mb/s (longer steps or fewer bytes would hold the ratio)",
        "RTT: asked 300 ms, the longest is 60 ms (shorter steps would hold the ratio)",
    )
    # 1 MB over 10 steps of 1 s is 0.8 Mb/s.
    slow = scale(Ratios(transfer=10, rtt=0.0), 1.0, 1e6)
    assert slow.clamped == (
        "rate: asked 0.8 Mb/s, the slowest is 50 Mb/s (shorter steps or more bytes would hold the ratio)",
    )
    assert scale(Ratios(transfer=0.0, rtt=0.0), 1.0, 1e6).rate_bytes_per_s == RATE_BYTES_PER_S_MAX


positive = st.floats(1e-6, 1e6)


@given(transfer=positive, rtt=positive, step_s=st.floats(1e-4, 1e3), wan_bytes=st.floats(1e3, 1e12))
def test_a_ratio_is_kept_exactly_or_a_note_says_which_is_not(
    transfer: float, rtt: float, step_s: float, wan_bytes: float
) -> None:
    here = scale(Ratios(transfer=transfer, rtt=rtt), step_s, wan_bytes)
    assert RATE_BYTES_PER_S_MIN <= here.rate_bytes_per_s <= RATE_BYTES_PER_S_MAX
    assert 0 <= here.rtt_s <= RTT_S_MAX
    # The achieved ratios are those of the link that is given, by the very formula that made the real ones.
    assert here.achieved == ratios(wan_bytes, here.rate_bytes_per_s, here.rtt_s, step_s)
    noted = {note.split(":")[0] for note in here.clamped}
    if "rate" not in noted:
        assert here.achieved.transfer == pytest.approx(transfer)
    if "RTT" not in noted:
        assert here.achieved.rtt == pytest.approx(rtt)
    if "rate" in noted:  # clamping never overshoots: the nearest carried rate is an end of the range
        assert here.rate_bytes_per_s in (RATE_BYTES_PER_S_MIN, RATE_BYTES_PER_S_MAX)


@given(factor=st.floats(0.1, 10))
def test_a_machine_that_computes_k_times_slower_needs_a_link_k_times_slower(factor: float) -> None:
    asked = Ratios(transfer=0.5, rtt=0.01)
    one, other = scale(asked, 0.5, 10e6), scale(asked, 0.5 * factor, 10e6)
    if not one.clamped and not other.clamped:
        assert other.rate_bytes_per_s == pytest.approx(one.rate_bytes_per_s / factor)
        assert other.rtt_s == pytest.approx(one.rtt_s * factor)
