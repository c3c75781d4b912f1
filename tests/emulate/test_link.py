"""The laws of one direction of a link, on a clock the test holds."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.emulate.link import MTU, DirectedLink, LinkSettings, default_queue_bytes
from isthmus.emulate.packet import HEAD, shape

RATE = 12.5e6  # 100 Mb/s: a packet of 1,500 bytes takes 120 us
BIG = 1e12


def plain(size: int) -> bytes:
    """A UDP packet of `size` IP bytes."""
    ip = bytes([0x45, 0, *size.to_bytes(2, "big"), 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 10, 10, 77, 1, 10])
    return bytes(HEAD) + ip + bytes(size - 20)


def tcp_super(payload: int, segment: int) -> bytes:
    """A TCP super-packet with 52 bytes of headers (timestamps), or a plain packet when one segment holds it all."""
    length = 52 + payload
    ip = bytes([0x45, 0, *length.to_bytes(2, "big"), 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 10, 10, 77, 1, 10])
    tcp = bytes([0, 1, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0x80, 0x10, 1, 0, 0, 0, 0, 0]) + bytes(12)
    kind = 1 if payload > segment else 0
    virtio = struct.pack("=BBHHHH", 1, kind, 66, segment if kind else 0, 34, 16)
    return virtio + bytes(14) + ip + tcp + bytes(payload)


def link(**settings: float | bool | None) -> DirectedLink:
    asked: dict[str, float | bool | None] = {"rate_bytes_per_s": RATE, "delay_s": 0.009, "queue_bytes": BIG}
    return DirectedLink(LinkSettings(**(asked | settings)), seed=1)  # type: ignore[arg-type]


def wire_count(of: DirectedLink) -> int:
    return sum((found.count if (found := shape(frame)) else 1) for _, frame in of.waiting)


def test_a_packet_takes_its_length_over_the_rate_plus_the_delay() -> None:
    one = link()
    one.offer(plain(1500), 1_000)
    # 1,500 B / 12.5 MB/s = 120 us; + 9 ms; + 1 us.
    assert [due for due, _ in one.waiting] == [1_000 + 120_000 + 9_000_000]


def test_a_super_packet_pays_for_the_headers_of_all_its_segments() -> None:
    one = link()
    # 44 segments of 1,448 bytes: 44 x 1,500 bytes on the wire, whatever the frame's own length is.
    one.offer(tcp_super(44 * 1448, 1448), 0)
    assert one.wire_bytes == 44 * 1500
    assert one.packets == 44
    assert one.waiting[-1][0] == 44 * 120_000 + 9_000_000


def test_a_slow_link_hands_a_super_packet_over_in_pieces_of_a_millisecond() -> None:
    one = link()
    one.offer(tcp_super(44 * 1448, 1448), 0)
    # 8 packets of 120 us stay below 1 ms: 5 pieces of 8 and one of 4, each when its last bit has gone.
    assert [due - 9_000_000 for due, _ in one.waiting] == [960_000, 1_920_000, 2_880_000, 3_840_000, 4_800_000, 5_280_000]
    assert wire_count(one) == 44


@given(
    sizes=st.lists(st.integers(1, 60_000), min_size=1, max_size=60),
    gaps=st.lists(st.integers(0, 3_000_000), min_size=60, max_size=60),
)
def test_no_bit_comes_out_faster_than_the_rate_and_nothing_out_of_order(sizes: list[int], gaps: list[int]) -> None:
    one, now = link(), 0
    for size, gap in zip(sizes, gaps, strict=False):
        now += gap
        one.offer(tcp_super(size, 1448), now)
    dues = [due for due, _ in one.waiting]
    assert dues == sorted(dues)
    assert dues[-1] - 9_000_000 >= one.wire_bytes / RATE * 1e9 - len(sizes)  # a busy line's work cannot be done sooner
    assert dues[-1] - 9_000_000 <= now + one.wire_bytes / RATE * 1e9 + 1  # nor later than all of it after the last arrival


@given(queue=st.integers(MTU, 200_000), sizes=st.lists(st.integers(1, 60_000), min_size=1, max_size=40))
def test_the_queue_never_holds_more_than_its_limit_and_takes_what_fits(queue: int, sizes: list[int]) -> None:
    one = link(queue_bytes=queue)
    offered = 0
    for size in sizes:
        frame = tcp_super(size, 1448)
        of = shape(frame)
        offered += of.count if of else 1
        one.offer(frame, 0)
    assert one.wire_bytes <= queue
    assert one.queue_bytes_max <= queue * (1 + 1e-9)
    assert one.packets + one.dropped_queue == offered
    assert wire_count(one) == one.packets
    if one.dropped_queue:
        assert one.wire_bytes > queue - MTU - 1448, "a packet was refused although it would have fitted"


def test_a_super_packet_that_fits_in_part_is_taken_in_part() -> None:
    one = link(queue_bytes=10_000)
    one.offer(tcp_super(44 * 1448, 1448), 0)
    assert (one.packets, one.dropped_queue) == (6, 38)  # 6 x 1,500 <= 10,000 < 7 x 1,500


def test_the_queue_drains_at_the_rate() -> None:
    one = link(queue_bytes=15_000)
    for _ in range(11):
        one.offer(plain(1500), 0)
    assert (one.packets, one.dropped_queue) == (10, 1)
    one.offer(plain(1500), 119_000)
    assert one.dropped_queue == 2
    one.offer(plain(1500), 120_000)
    assert one.packets == 11


@pytest.mark.parametrize("segments", [1, 44])
@pytest.mark.parametrize("loss", [0.001, 0.01, 0.3])
def test_every_wire_packet_is_lost_with_the_same_chance_and_by_itself(segments: int, loss: float) -> None:
    one, total = link(loss=loss, rate_bytes_per_s=None), 120_000 // 44 * 44
    frame = tcp_super(segments * 1448, 1448)
    arrived: list[int] = []
    for _ in range(total // segments):
        one.offer(frame, 0)
        arrived += [found.count if (found := shape(piece)) else 1 for _, piece in one.waiting]
        one.waiting.clear()
    lost = total - sum(arrived)
    assert lost == one.dropped_loss
    assert lost == pytest.approx(total * loss, abs=4 * math.sqrt(total * loss * (1 - loss)))
    if segments > 1:
        # A break inside a super-packet needs a loss there; independent losses leave runs of geometric length.
        whole = arrived.count(segments) / (total // segments)
        assert whole == pytest.approx((1 - loss) ** segments, abs=0.02)


def test_a_lost_packet_has_used_the_line_and_its_neighbours_arrive_when_they_would_have() -> None:
    one = link(loss=0.2, delay_s=0.0)
    one.offer(tcp_super(40 * 1448, 1448), 0)
    assert 0 < one.dropped_loss < 40
    sequences = {int.from_bytes(frame[HEAD + 24 : HEAD + 28], "big"): (due, frame) for due, frame in one.waiting}
    first = min(sequences)
    for sequence, (due, frame) in sequences.items():
        of = shape(frame)
        end = (sequence - first) // 1448 + (of.count if of else 1)
        assert (due - end * 120_000) % 120_000 == 0  # whole packet times, none closed up over a gap


def test_loss_of_everything_and_of_nothing() -> None:
    none, every = link(loss=0.0), link(loss=1.0)
    for one in (none, every):
        one.offer(tcp_super(44 * 1448, 1448), 0)
    assert (none.dropped_loss, wire_count(none)) == (0, 44)
    assert (every.dropped_loss, wire_count(every)) == (44, 0)


@given(jitter_ms=st.floats(0.1, 40), gaps=st.lists(st.integers(0, 50_000_000), min_size=2, max_size=300))
def test_jitter_stays_within_its_peak_and_never_reorders(jitter_ms: float, gaps: list[int]) -> None:
    one, now, before = link(rate_bytes_per_s=None, delay_s=0.040, jitter_s=jitter_ms * 1e-3), 0, 0
    for gap in gaps:
        now += gap
        one.offer(plain(100), now)
        due = one.waiting.pop()[0]
        assert abs(due - now - 40_000_000) <= jitter_ms * 1e6 + 1
        # No packet has to be held back for another: the curve never brings two closer than half their distance.
        assert not before or due - before >= gap / 2 - 2
        before = due


def test_jitter_does_not_shift_the_mean_and_has_the_spread_of_its_curve() -> None:
    one, delays = link(rate_bytes_per_s=None, delay_s=0.010, jitter_s=0.004), []
    for number in range(100_000):
        one.offer(plain(100), number * 1_000_000)
        delays.append(one.waiting.pop()[0] - number * 1_000_000 - 10_000_000)
    mean = sum(delays) / len(delays)
    # Linear between uniform knots of variance j^2 / 3: two thirds of it on average over the line.
    spread = math.sqrt(sum((each - mean) ** 2 for each in delays) / len(delays))
    assert abs(mean) < 0.05 * 4e6
    assert spread == pytest.approx(4e6 * math.sqrt(2 / 9), rel=0.05)


def test_a_cut_link_loses_what_is_on_it_and_what_comes() -> None:
    one = link()
    one.offer(tcp_super(10 * 1448, 1448), 0)
    down = LinkSettings(rate_bytes_per_s=RATE, delay_s=0.009, queue_bytes=BIG, up=False)
    one.set(down, 1_000_000)
    one.offer(plain(1500), 2_000_000)
    assert (one.dropped_down, len(one.waiting)) == (11, 0)
    one.set(LinkSettings(rate_bytes_per_s=RATE, delay_s=0.009, queue_bytes=BIG), 3_000_000)
    one.offer(plain(1500), 4_000_000)
    assert len(one.waiting) == 1


def test_a_changed_link_keeps_order_and_the_backlog_drains_at_the_new_rate() -> None:
    one = link(delay_s=0.030)
    for _ in range(10):
        one.offer(plain(1500), 0)  # 1.2 ms of backlog
    one.set(LinkSettings(rate_bytes_per_s=2 * RATE, delay_s=0.001, queue_bytes=BIG), 200_000)
    one.offer(plain(1500), 200_000)
    dues = [due for due, _ in one.waiting]
    assert dues == sorted(dues)
    # 1.0 ms of backlog at the old rate is 0.5 ms at twice the rate, then 60 us for the packet itself.
    one.offer(plain(1500), 200_000 + 500_000 + 60_000)
    assert one.queue_bytes_max == pytest.approx(12_500 + 1_500, abs=1)


@pytest.mark.parametrize(("late_ns", "bound_s"), [(0, 5e-6), (123_456, 125e-6), (20_000_000, 0.034)])
def test_lateness_is_told_to_five_microseconds_or_a_factor_of_two(late_ns: int, bound_s: float) -> None:
    one = link()
    for _ in range(99):
        one.late(late_ns)
    one.late(10**9)
    assert late_ns * 1e-9 <= one.late_p99_s() <= bound_s


def test_the_default_queue_is_one_bandwidth_delay_product() -> None:
    assert default_queue_bytes(125e6, 0.060) == 7.5e6
    assert default_queue_bytes(6.25e6, 0.001) == 131072
