"""Long links: figures worked by hand from the literature, and the order of limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cost.transport import (
    bandwidth_delay_product_bytes,
    mathis_rate_bytes_per_s,
    nccl_window_bytes,
    payload_fraction,
    rdma_window_bytes,
    streams_to_fill,
    tcp_rate_bytes_per_s,
    window_rate_bytes_per_s,
)

RATES, RTTS, LOSSES = st.floats(1e5, 1e12), st.floats(0, 0.5), st.floats(0, 0.1)


def test_figures_worked_by_hand() -> None:
    assert payload_fraction() == 1448 / 1500
    assert bandwidth_delay_product_bytes(12.5e9, 0.018) == pytest.approx(225e6)
    # 1 MiB over 58 ms: 8.39 Mb / 0.058 s = 0.1446 Gb/s.
    assert window_rate_bytes_per_s(2**20, 0.058) * 8 == pytest.approx(0.1446e9, rel=1e-3)
    # 32 channels of 4 MiB over 58 ms: 1.0737 Gb / 0.058 s = 18.5 Gb/s.
    assert window_rate_bytes_per_s(nccl_window_bytes(32), 0.058) * 8 == pytest.approx(18.5e9, rel=1e-3)
    # MSS 8948, 30 ms, p = 1e-6: 8948 * 8 / 0.03 * 1.2247 * 1000 = 2.92 Gb/s.
    assert mathis_rate_bytes_per_s(1e-6, 0.030, 8948) * 8 == pytest.approx(2.92e9, rel=2e-3)
    assert rdma_window_bytes(8, 128, 65536) == 8 * 128 * 65536


def test_the_binding_limit_is_named() -> None:
    assert tcp_rate_bytes_per_s(12.5e6, 0.018, 0.0, 4, 4e6).bind == "link"
    assert tcp_rate_bytes_per_s(12.5e9, 0.018, 0.0, 4, 4e6).bind == "window"
    assert tcp_rate_bytes_per_s(12.5e9, 0.018, 1e-4, 4, 4e9).bind == "loss"


@given(RATES, RTTS, LOSSES, st.integers(1, 512), st.floats(1e4, 1e9))
def test_no_stream_count_beats_the_link_and_no_rtt_helps(
    rate: float, rtt: float, loss: float, streams: int, window: float
) -> None:
    limit = tcp_rate_bytes_per_s(rate, rtt, loss, streams, window)
    assert 0 < limit.rate_bytes_per_s <= rate * payload_fraction()
    assert tcp_rate_bytes_per_s(rate, rtt * 2, loss, streams, window).rate_bytes_per_s <= limit.rate_bytes_per_s
    assert tcp_rate_bytes_per_s(rate, rtt, loss, streams + 1, window).rate_bytes_per_s >= limit.rate_bytes_per_s


@given(RATES, RTTS, LOSSES, st.floats(1e4, 1e9))
def test_as_many_streams_as_advised_fill_the_link_and_one_fewer_does_not(
    rate: float, rtt: float, loss: float, window: float
) -> None:
    streams = streams_to_fill(rate, rtt, loss, window)
    full = rate * payload_fraction()
    assert tcp_rate_bytes_per_s(rate, rtt, loss, streams, window).rate_bytes_per_s == pytest.approx(full, rel=1e-9)
    if streams > 1:
        assert tcp_rate_bytes_per_s(rate, rtt, loss, streams - 1, window).bind != "link"
