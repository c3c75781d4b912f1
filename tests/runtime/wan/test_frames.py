"""Frames and hellos: whatever is not exactly what was packed is refused. The outbox: flows take turns."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from isthmus.runtime.wan.frames import (
    HEADER_BYTES,
    CorruptFrameError,
    Frame,
    Hello,
    StrangerError,
    message_tag,
    pack_frame,
    pack_hello,
    unpack_frame,
    unpack_hello,
)
from isthmus.runtime.wan.outbox import Outbox, Outgoing
from isthmus.runtime.wan.shape import choose_shares, choose_streams
from isthmus.runtime.wan.ticket import Ticket

U64 = st.integers(0, 2**64 - 1)


FRAMES = st.builds(
    lambda kind, sequence, serial, tag, offset, length, more, check: Frame(
        kind, sequence, serial, tag, offset + length + more, offset, length, check
    ),
    st.just(1), st.integers(0, 2**32 - 1), U64, U64, st.integers(0, 2**40), st.integers(1, 1 << 23), st.integers(0, 2**40), U64,
)


@given(FRAMES)
def test_a_header_comes_back_as_it_was_packed(frame):
    assert unpack_frame(pack_frame(frame), "here") == frame
    assert len(pack_frame(frame)) == HEADER_BYTES == 60


@given(bit=st.integers(0, 60 * 8 - 1))
def test_any_flipped_bit_of_a_header_is_found(bit):
    header = bytearray(pack_frame(Frame(1, 0, 1, 77, 1000, 100, 50, 0)))
    header[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFrameError, match="rail a/0 to b/0, stream 3"):
        unpack_frame(header, "rail a/0 to b/0, stream 3")


@pytest.mark.parametrize(
    "frame",
    [
        Frame(1, 0, 1, 7, 100, 60, 50, 0),  # beyond the message's end
        Frame(1, 0, 1, 7, 2**40, 0, (1 << 23) + 1, 0),  # longer than any chunk
        Frame(1, 0, 1, 7, 2**60, 0, 50, 0),  # a message larger than any
        Frame(1, 0, 1, 7, 100, 50, 0, 0),  # nothing, though the message is not empty
        Frame(3, 0, 0, 0, 100, 0, 50, 0),  # an acknowledgement with a chunk
        Frame(9, 0, 1, 7, 100, 0, 50, 0),  # of no known kind
    ],
)
def test_a_header_whose_checksum_holds_but_whose_claims_do_not_is_refused(frame):
    with pytest.raises(CorruptFrameError, match="claims bytes"):
        unpack_frame(pack_frame(frame), "here")


@given(bit=st.integers(0, 10 * 8 - 1))
def test_another_magic_or_version_is_a_stranger(bit):
    hello = bytearray(pack_hello(Hello(federation=b"f" * 16, region=1, to_region=0, rail=2, stream=3, streams=4)))
    hello[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StrangerError, match=r"10\.0\.0\.9"):
        unpack_hello(hello, "10.0.0.9")


@given(st.tuples(st.integers(0, 2**20 - 1), st.integers(0, 2**24 - 1), st.integers(0, 15), st.integers(0, 2**16 - 1)),
       st.tuples(st.integers(0, 2**20 - 1), st.integers(0, 2**24 - 1), st.integers(0, 15), st.integers(0, 2**16 - 1)))
def test_different_parts_have_different_tags_of_64_bits(first, second):
    assert 0 <= message_tag(*first) < 2**64
    assert (message_tag(*first) == message_tag(*second)) == (first == second)


def message(tag, size):
    return Outgoing(tag, memoryview(bytes(size)), Ticket(f"tag {tag}", size, 60, time.monotonic))


def test_a_small_message_waits_for_one_chunk_of_the_other_flow_at_most():
    outbox = Outbox(streams=2)
    slot = outbox.join()
    outbox.put(1, message(1, 64_000_000))
    chunk = 1 << 18
    for _ in range(5):
        assert outbox.take(slot, (chunk, 1 << 14), 1).message.tag == 1
    outbox.put(2, message(2, 1000))
    assert 2 in [outbox.take(slot, (chunk, 1 << 14), 1).message.tag for _ in range(2)]


def test_messages_of_one_flow_go_in_order_and_every_byte_once():
    outbox = Outbox(streams=3)
    slot = outbox.join()
    sizes = [100_000, 1, 0, 70_001]
    for tag, size in enumerate(sizes):
        outbox.put(9, message(tag, size))
    outbox.close()
    order, covered = [], {tag: 0 for tag in range(4)}
    while (chunk := outbox.take(slot, (1 << 15, 1 << 14), 1)) != "end":
        assert chunk.offset == covered[chunk.message.tag]
        covered[chunk.message.tag] += chunk.view.nbytes
        order.append(chunk.message.tag)
        outbox.handed(chunk)
        outbox.acknowledge(slot, len(order), "here")
    assert order == sorted(order)
    assert list(covered.values()) == sizes


@given(st.floats(1e5, 1e11), st.floats(0, 1), st.integers(1, 64), st.floats(1e-6, 0.1))
def test_streams_grow_with_round_trip_and_loss_and_hold_the_bandwidth_delay_product(rate, rtt, rails, loss):
    streams = choose_streams(rate, rtt, rails)
    assert 1 <= streams <= 16
    assert streams <= choose_streams(rate, rtt * 2, rails)
    assert streams <= choose_streams(rate, rtt, rails, loss) <= choose_streams(rate, rtt, rails, 2 * loss)
    assert streams == 16 or streams * 2**21 >= rate / rails * rtt


def test_streams_of_three_links_by_hand():
    # 100 Mb/s x 18 ms over two rails: 0.05 windows. 1 Gb/s x 60 ms: 62.5 MB/s x 60 ms / 2 MiB = 1.8. 10 Gb/s: 17.9, cut to 16.
    assert [choose_streams(rate, rtt, 2) for rate, rtt in ((12.5e6, 0.018), (125e6, 0.060), (1.25e9, 0.060))] == [1, 2, 16]
    # One packet in a thousand lost: 1500 B / 18 ms x sqrt(1500) = 3.23 MB/s a stream; twice 6.25 / 3.23 = 3.87.
    assert choose_streams(12.5e6, 0.018, 2, 0.001) == 4


@given(st.integers(3, 5).flatmap(lambda n: st.lists(st.floats(0.5, 100), min_size=n * n, max_size=n * n)))
def test_shares_of_unequal_links_are_as_good_as_the_solver_of_scipy_finds(rates):
    n = int(len(rates) ** 0.5)
    matrix = [[rates[min(i, j) * n + max(i, j)] for j in range(n)] for i in range(n)]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    limits = [[float(k in pair) for k in range(n)] + [-matrix[pair[0]][pair[1]]] for pair in pairs]
    best = linprog([0] * n + [1], A_ub=limits, b_ub=[0] * len(pairs), A_eq=[[1] * n + [0]], b_eq=[1]).fun
    shares = choose_shares(matrix)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0
    assert max((shares[i] + shares[j]) / matrix[i][j] for i, j in pairs) == pytest.approx(best, rel=1e-6)


def test_shares_of_a_triangle_with_one_slow_side_by_hand():
    # 2 / (100 + 50 + 100) a byte; the region without the slow side adds up 1 - 2 x 50 / 250.
    assert choose_shares([[0, 100, 50], [100, 0, 100], [50, 100, 0]]) == pytest.approx((0.2, 0.6, 0.2))
