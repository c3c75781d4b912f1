"""Frames and hellos: whatever is not exactly what was packed is refused. The outbox: flows take turns."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.runtime.wan.frames import (
    CorruptFrameError,
    Hello,
    StrangerError,
    message_tag,
    pack_frame,
    pack_hello,
    unpack_frame,
    unpack_hello,
)
from isthmus.runtime.wan.queues import Outbox, Outgoing, Silence, Ticket
from isthmus.runtime.wan.shape import choose_streams

U64 = st.integers(0, 2**64 - 1)


@given(tag=U64, offset=st.integers(0, 2**40), more=st.integers(0, 2**40), chunk=st.binary(max_size=100))
def test_a_header_comes_back_as_it_was_packed(tag, offset, more, chunk):
    header = pack_frame(tag, offset + len(chunk) + more, offset, memoryview(chunk))
    frame = unpack_frame(header, "here")
    assert (frame.tag, frame.total, frame.offset, frame.length) == (tag, offset + len(chunk) + more, offset, len(chunk))
    assert len(header) == 48


@given(bit=st.integers(0, 48 * 8 - 1))
def test_any_flipped_bit_of_a_header_is_found(bit):
    header = bytearray(pack_frame(77, 1000, 100, memoryview(b"x" * 50)))
    header[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFrameError, match="rail a/0 to b/0, stream 3"):
        unpack_frame(header, "rail a/0 to b/0, stream 3")


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
    class Stream:
        sent_at_s = time.monotonic()

    return Outgoing(tag, memoryview(bytes(size)), Ticket(f"tag {tag}", size, Silence(60, [Stream()], "sent_at_s")))


def test_a_small_message_waits_for_one_chunk_of_the_other_flow_at_most():
    outbox = Outbox(streams=2)
    outbox.put(1, message(1, 64_000_000))
    chunk = 1 << 18
    for _ in range(5):
        assert outbox.take(chunk)[0].tag == 1
    outbox.put(2, message(2, 1000))
    assert 2 in [outbox.take(chunk)[0].tag for _ in range(2)]


def test_messages_of_one_flow_go_in_order_and_every_byte_once():
    outbox = Outbox(streams=3)
    sizes = [100_000, 1, 0, 70_001]
    for tag, size in enumerate(sizes):
        outbox.put(9, message(tag, size))
    outbox.close()
    order, covered = [], {tag: 0 for tag in range(4)}
    while (work := outbox.take(1 << 15)) is not None:
        taken, offset, chunk = work
        assert offset == covered[taken.tag]
        covered[taken.tag] += chunk.nbytes
        order.append(taken.tag)
        outbox.sent(taken, chunk.nbytes)
        if not outbox.pending():
            break
    assert order == sorted(order)
    assert list(covered.values()) == sizes


@given(st.floats(1e5, 1e11), st.floats(0, 1), st.integers(1, 64))
def test_streams_grow_with_the_round_trip_and_hold_the_bandwidth_delay_product(rate, rtt, rails):
    streams = choose_streams(rate, rtt, rails)
    assert 2 <= streams <= 16
    assert streams <= choose_streams(rate, rtt * 2, rails)
    assert streams == 16 or streams * 2**21 >= rate / rails * rtt


def test_streams_of_three_links_by_hand():
    # 100 Mb/s x 18 ms over two rails: slow, so 4. 1 Gb/s x 60 ms: 62.5 MB/s x 60 ms / 2 MiB = 1.8. 10 Gb/s: 17.9, cut to 16.
    assert [choose_streams(rate, rtt, 2) for rate, rtt in ((12.5e6, 0.018), (125e6, 0.060), (1.25e9, 0.060))] == [4, 2, 16]
