"""Worked cases of one long link, each by hand, and laws that any link obeys."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cost.dcqcn import play_dcqcn
from isthmus.cost.link import LinkQuestion, answer_link, carried_ways
from isthmus.cost.lossless import ecn_thresholds, pfc_headroom_bytes, pfc_reach_m
from isthmus.cost.transport import mathis_rate_bytes_per_s, tcp_rate_bytes_per_s
from isthmus.cost.transport_loss import (
    bbr_rate_bytes_per_s,
    cubic_rate_bytes_per_s,
    loss_rate_bytes_per_s,
    loss_to_fill,
    padhye_rate_bytes_per_s,
    slow_start_s,
)
from isthmus.cost.transport_rdma import (
    NcclSettings,
    go_back_n_share,
    host_relay_bytes_per_s,
    nccl_buffer_to_fill_bytes,
    nccl_rate_bytes_per_s,
    qps_to_fill,
    rdma_rate_bytes_per_s,
)

G = 1e9 / 8
INF = float("inf")
LOSSES, RTTS = st.floats(1e-9, 0.05), st.floats(1e-4, 0.3)


def nccl_gbps(channels: int, rtt_s: float) -> float:
    return nccl_rate_bytes_per_s(1e15, rtt_s, NcclSettings(channels=channels), False, (INF, 0.0))[0] * 8 / 1e9


def test_nccl_in_flight_over_distance() -> None:
    # 16 x 4 MiB = 67.1 MB: over 20 ms 3.36 GB/s = 26.8 Gb/s; 32 channels twice that; over 1 ms 537 Gb/s.
    assert nccl_gbps(16, 0.020) == pytest.approx(26.8, abs=0.05)
    assert nccl_gbps(32, 0.020) == pytest.approx(53.7, abs=0.05)
    assert nccl_gbps(16, 0.001) == pytest.approx(537, abs=1)
    # 100 Gb/s x 58 ms = 725 MB over 16 channels is 45.3 MB each: 64 MiB is the next power of two.
    assert nccl_buffer_to_fill_bytes(100 * G, 0.058, 16) == 64 * 2**20


def test_loss_laws_worked_by_hand() -> None:
    # RFC 9438, table 2 (C = 0.4): at RTT 0.1 s and p = 1e-4 CUBIC's mean window is 187 packets; at 1e-6, 5.9e3.
    for loss, packets in ((1e-4, 187), (1e-6, 5.93e3), (1e-8, 187e3)):
        assert cubic_rate_bytes_per_s(loss, 0.1, 1.0) * 0.1 == pytest.approx(packets, rel=0.01)
    # Reno's window there: sqrt(1.5 / p) = 122, 1.22e3.
    assert mathis_rate_bytes_per_s(1e-6, 0.1, 1.0) * 0.1 == pytest.approx(1.22e3, rel=0.01)
    # Padhye at p = 1 %, RTT 100 ms, T0 400 ms: 1 / (0.1 x 0.0816 + 0.4 x 0.1837 x 0.01 x 1.0032) = 112 packets/s.
    assert padhye_rate_bytes_per_s(0.01, 0.1, 1.0, rto_s=0.4) == pytest.approx(112.3, rel=2e-3)
    # BBR does not go by loss: 1 % costs 1 %.
    assert bbr_rate_bytes_per_s(100 * G, 0.01) == pytest.approx(99 * G)
    assert bbr_rate_bytes_per_s(100 * G, 0.25) == 0
    # 10 -> 500,690 packets (725 MB of 1448 B) are 16 doublings of 58 ms.
    assert slow_start_s(100 * G, 0.058) == pytest.approx(16 * 0.058)


def test_rdma_windows_worked_by_hand() -> None:
    # One QP of ConnectX-7 over 5 ms: 0.6 MB / 5 ms = 0.96 Gb/s, the report it was taken from.
    rate, bind = rdma_rate_bytes_per_s(1, 128, 65536, 0.005)
    assert rate * 8 == pytest.approx(0.96e9)
    assert bind == "NIC's unacknowledged bytes"
    assert rdma_rate_bytes_per_s(1, 1, 65536, 0.005)[1] == "send queue"
    assert qps_to_fill(100 * G, 0.018) == 375  # 225 MB / 0.6 MB
    # Go-back-N with 10,000 packets in flight and p = 1e-4: 0.9999 / 1.9999.
    assert go_back_n_share(1e-4, 10_000) == pytest.approx(0.5, abs=1e-3)
    assert host_relay_bytes_per_s(63e9, 300e9, 1e12, 1) == 63e9
    assert host_relay_bytes_per_s(63e9, 300e9, 1e12, 2) == 50e9


def test_headroom_worked_by_hand() -> None:
    # 2 x 80 km x 50 GB/s / 1.98e8 = 40.4 MB; 1,000 km 505 MB; 300 m 151.5 kB.
    assert pfc_headroom_bytes(400 * G, 80e3, details=False) == pytest.approx(40.4e6, rel=1e-3)
    assert pfc_headroom_bytes(400 * G, 1e6, details=False) == pytest.approx(505e6, rel=1e-3)
    # 9,100 + 9,100 + 151,515 + 819.2 + 905 x 64 with full-size packets.
    assert pfc_headroom_bytes(400 * G, 300, occupancy=1) == pytest.approx(9100 + 9100 + 151_515 + 819.2 + 57_920, abs=1)
    # The slope of the vendor's table for the SN4700, 1,138 B/m from 40 m to 300 m, is 2.25 times the wire's 505 B/m.
    slope = (pfc_headroom_bytes(400 * G, 300) - pfc_headroom_bytes(400 * G, 40)) / 260
    assert slope == pytest.approx((373_760 - 77_824) / 260, rel=0.01)
    assert pfc_reach_m(400 * G, 64e6) == pytest.approx(126.7e3, rel=1e-3)


def test_ecn_is_the_stated_table_inside_a_site_and_grows_with_rtt_beyond() -> None:
    near, far = ecn_thresholds(100 * G, 20e-6), ecn_thresholds(100 * G, 0.030)
    assert (near.kmin_bytes, near.kmax_bytes) == (400e3, 1600e3)
    assert far.kmin_bytes == pytest.approx(375e6 / 7)


def test_dcqcn_holds_inside_a_site_and_not_over_distance() -> None:
    near = play_dcqcn(40 * G, 20e-6, ecn_thresholds(40 * G, 20e-6))
    assert near.verdict == "steady"
    assert near.utilisation > 0.97
    for rtt in (1e-3,):
        far = play_dcqcn(40 * G, rtt, ecn_thresholds(40 * G, rtt))
        assert far.verdict == "too slow"
        assert far.utilisation < 0.9 or far.queue_bytes_max > 40 * G * rtt


def test_a_subsea_link_as_it_comes_is_empty_and_says_what_to_set() -> None:
    answer = answer_link(LinkQuestion(rate_bytes_per_s=100 * G, rtt_s=0.058, loss=1e-6, streams=16, control="bbr"))
    ways = {each.what: each for each in answer.carried}
    stock = ways["1 TCP stream, Linux as it comes (CUBIC)"]
    assert (stock.bind, stock.rate_bytes_per_s * 8) == ("window", pytest.approx(0.5785e9, rel=1e-3))  # 4 MiB / 58 ms
    full = ways["16 TCP streams, bbr, windows set"]
    assert (full.bind, full.rate_bytes_per_s) == ("link", pytest.approx(100 * G * 1448 / 1500))
    values = {each.name: each.value for each in answer.settings}
    assert values["NCCL_BUFFSIZE"] == str(64 * 2**20)
    assert int(values["net.ipv4.tcp_rmem"].split()[2]) == 4 * 725e6 / 16
    assert answer.product_bytes == pytest.approx(725e6)
    assert any("PFC" in each for each in answer.impossible)


def test_light_forbids_5_ms_over_1300_km() -> None:
    answer = answer_link(LinkQuestion(rate_bytes_per_s=100 * G, rtt_s=0.005, distance_m=1300e3))
    assert not answer.physical
    assert answer.impossible[0].startswith("RTT 5 ms over 1,300 km: light in fibre needs 12.7 ms")


@given(loss=LOSSES, rtt=RTTS, more=st.floats(1.01, 10))
def test_more_loss_and_more_rtt_never_help_any_law(loss: float, rtt: float, more: float) -> None:
    for law in (padhye_rate_bytes_per_s, cubic_rate_bytes_per_s, mathis_rate_bytes_per_s):
        assert law(loss * more, rtt) <= law(loss, rtt) * (1 + 1e-12)
        assert law(loss, rtt * more) <= law(loss, rtt) * (1 + 1e-12)
    assert padhye_rate_bytes_per_s(loss, rtt) <= mathis_rate_bytes_per_s(loss, rtt) <= cubic_rate_bytes_per_s(loss, rtt)


@given(rtt=RTTS, rate=st.floats(1e7, 1e11))
def test_the_loss_that_still_fills_is_where_the_law_meets_the_rate(rtt: float, rate: float) -> None:
    for control, law in (("reno", mathis_rate_bytes_per_s), ("cubic", cubic_rate_bytes_per_s)):
        loss = loss_to_fill(rate, rtt, control)
        assert law(loss, rtt) == pytest.approx(rate, rel=1e-6)


@settings(max_examples=60)
@given(rate=st.floats(1e9, 5e10), rtt=st.floats(1e-3, 0.1), loss=st.floats(0, 1e-3), streams=st.integers(2, 64))
def test_no_way_beats_the_link_and_more_of_anything_never_carries_less(
    rate: float, rtt: float, loss: float, streams: int
) -> None:
    asked = LinkQuestion(rate_bytes_per_s=rate, rtt_s=rtt, loss=loss, streams=streams, queue_pairs=streams)
    wider = LinkQuestion(rate_bytes_per_s=rate * 2, rtt_s=rtt, loss=loss, streams=streams * 2, queue_pairs=streams * 2)
    for one, two in zip(carried_ways(asked), carried_ways(wider), strict=True):
        assert 0 < one.rate_bytes_per_s <= rate
        assert two.rate_bytes_per_s >= one.rate_bytes_per_s * (1 - 1e-9)


@given(st.floats(1e8, 1e11), RTTS, LOSSES, st.integers(1, 99), st.floats(1e5, 1e9), st.floats(0.01, 100))
def test_other_units_of_data_change_nothing(
    rate: float, rtt: float, loss: float, streams: int, window: float, unit: float
) -> None:
    # Rates and windows in units of `unit` bytes; only the packet's size is a length of its own.
    whole = tcp_rate_bytes_per_s(rate, rtt, 0.0, streams, window).rate_bytes_per_s
    assert tcp_rate_bytes_per_s(rate / unit, rtt, 0.0, streams, window / unit).rate_bytes_per_s * unit == pytest.approx(whole)
    one = loss_rate_bytes_per_s("cubic", rate, loss, rtt, 1448.0)
    assert loss_rate_bytes_per_s("cubic", rate / unit, loss, rtt, 1448.0 / unit) * unit == pytest.approx(one)
