"""Rails over real sockets on loopback, both ends in this process: matching, mixed loads, memory, strangers, broken peers."""

import contextlib
import socket
import threading
import time

import pytest
import torch

from isthmus.runtime.environment import Members
from isthmus.runtime.wan.frames import (
    HEADER_BYTES,
    DisagreementError,
    Frame,
    Hello,
    PeerLostError,
    RailError,
    StrangerError,
    chunk_check,
    federation_id,
    pack_frame,
    pack_hello,
)
from isthmus.runtime.wan.rail import Rail, RailOptions

LOOPBACK = "127.0.0.1"


def free_members(regions=2):
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server((LOOPBACK, 0))).getsockname()[1] for _ in range(regions)]
    listed = [{"name": f"r{number}", "rails": [f"{LOOPBACK}:{port}"]} for number, port in enumerate(ports)]
    return Members.model_validate({"regions": listed})


def together(*calls):
    """Run the calls at once; their results, or errors, in order."""
    results = [None] * len(calls)

    def run(index, call):
        try:
            results[index] = call()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "hung"
    return results


@contextlib.contextmanager
def pair(streams=3, timeout_s=10.0, options=None):
    members = free_members()
    rails = together(*(lambda i=i: Rail.open(members, i, 0, streams, timeout_s, options) for i in range(2)))
    for rail in rails:
        if isinstance(rail, Exception):
            raise rail
    try:
        yield rails
    finally:
        together(*(rail.close for rail in rails))


def data(tag, total, offset, chunk, *, serial=1, sequence=0):
    """A data frame: header and chunk."""
    return pack_frame(Frame(1, sequence, serial, tag, total, offset, len(chunk), chunk_check(chunk))) + chunk


def goodbye(sequence):
    return pack_frame(Frame(2, sequence, 0, 0, 0, 0, 0, 0))


def wait_until(true, limit_s=10.0):
    deadline_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline_s, "never happened"
        time.sleep(0.005)


def pattern(size, seed):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_messages_match_by_tag_in_any_order_whether_asked_for_before_or_after():
    sizes = [0, 1, 5, 100_000, 3_000_017]
    with pair() as (left, right):
        early = [torch.zeros(size, dtype=torch.uint8) for size in sizes]
        asked = [right.receive(0, tag, early[tag]) for tag in (4, 0, 2)]
        for tag, size in enumerate(sizes):
            left.send(1, tag, pattern(size, tag))
        asked += [right.receive(0, tag, early[tag]) for tag in (3, 1)]
        for ticket in asked:
            ticket.wait()
        for tag, size in enumerate(sizes):
            assert torch.equal(early[tag], pattern(size, tag))
        left.flush()
        use, heard = left.counters()["r1"], right.counters()["r0"]
        assert use.payload_bytes_sent == heard.payload_bytes_received == sum(sizes)
        assert use.frame_bytes_sent == sum(sizes) + HEADER_BYTES * use.frames_sent == left.wan_bytes_sent()
        assert use.frames_sent == heard.frames_received
        assert 0 < use.rtt_s_min <= 1
        assert use.goodput_bytes_per_s > 0
        assert use.congestion


def test_both_ways_at_once_over_many_messages_every_byte_arrives():
    with pair(streams=4) as rails:
        def swap(me):
            rail, got = rails[me], [torch.empty(200_003, dtype=torch.uint8) for _ in range(20)]
            tickets = [rail.receive(1 - me, tag, got[tag]) for tag in range(20)]
            tickets += [rail.send(1 - me, tag, pattern(200_003, 100 * me + tag), flow=7) for tag in range(20)]
            for ticket in tickets:
                ticket.wait()
            return [torch.equal(got[tag], pattern(200_003, 100 * (1 - me) + tag)) for tag in range(20)]

        assert together(lambda: swap(0), lambda: swap(1)) == [[True] * 20] * 2


def test_a_small_message_overtakes_a_large_one_of_another_tag():
    # Paced to 8 MB/s; the large message alone takes 1 s, the small one may wait for a chunk and what the kernel holds.
    with pair(streams=2, options=RailOptions(rate_bytes_per_s=8e6)) as (left, right):
        large, small = torch.empty(8_000_000, dtype=torch.uint8), torch.empty(1000, dtype=torch.uint8)
        slow, quick = right.receive(0, 1, large), right.receive(0, 2, small)
        left.send(1, 1, pattern(8_000_000, 1))
        left.send(1, 2, pattern(1000, 2))
        quick.wait()
        assert slow.left_bytes > 4_000_000
        slow.wait()
        assert torch.equal(large, pattern(8_000_000, 1))


def test_memory_for_messages_nobody_asked_for_is_bounded_and_the_sender_held_back():
    limit = 1 << 20
    with pair(streams=2, options=RailOptions(early_bytes_max=limit)) as (left, right):
        sent = [left.send(1, tag, pattern(4_000_000, tag), flow=0) for tag in range(4)]
        with pytest.raises(PeerLostError, match=r"bytes missing after 0\.5 s"):
            sent[-1].wait(0.5)
        assert right.counters()["r0"].early_bytes_peak <= limit
        for tag in range(4):
            into = torch.empty(4_000_000, dtype=torch.uint8)
            right.receive(0, tag, into).wait()
            assert torch.equal(into, pattern(4_000_000, tag))
        assert right.counters()["r0"].stall_s > 0


def test_a_slow_stream_carries_less_and_does_not_hold_the_others_back():
    with pair(streams=3) as (left, right):
        link = left._links[1]
        quick = link.lanes[0].stream.send
        link.lanes[0].stream.send = lambda parts: (time.sleep(0.05), quick(parts))[1]
        into = torch.empty(20_000_000, dtype=torch.uint8)
        ticket = right.receive(0, 1, into)
        left.send(1, 1, pattern(20_000_000, 1))
        ticket.wait()
        assert torch.equal(into, pattern(20_000_000, 1))
        slow, *others = [counts.payload_bytes for counts in right._links[0].received]
        assert slow < sum(others) / 2  # which of the others is quicker is up to the machine


def test_nothing_happening_is_a_lost_peer_after_the_time_out_and_names_link_and_tag():
    with pair(timeout_s=1.0) as (_, right):
        started_s = time.monotonic()
        said = r"rail r1/0 to r0/0, receiving tag 0x2a: the link was silent for 1 s with 8 of 8 bytes missing"
        with pytest.raises(PeerLostError, match=said):
            right.receive(0, 42, bytearray(8)).wait()
        assert 0.9 < time.monotonic() - started_s < 5.0


def test_a_peer_that_closes_in_good_order_ends_what_is_asked_for_at_once():
    with pair() as (left, right):
        left.send(1, 1, b"kept")
        waiting = right.receive(0, 2, bytearray(8))
        closing = threading.Thread(target=left.close)
        closing.start()
        with pytest.raises(PeerLostError, match="the peer closed the link with 8 of 8 bytes missing"):
            waiting.wait()
        into = bytearray(4)
        right.receive(0, 1, into).wait()
        assert into == b"kept"
        with pytest.raises(PeerLostError, match="has closed the link"):
            right.receive(0, 3, bytearray(1))
        right.close()
        closing.join()
        with pytest.raises(RailError, match="closed"):
            right.send(0, 4, b"x")


def test_two_programs_that_disagree_about_a_size_are_told():
    with pair() as (left, right):
        ticket = right.receive(0, 1, bytearray(100))
        left.send(1, 1, bytes(99))
        with pytest.raises(DisagreementError, match="message 0x1 has 99 bytes, 100 were expected"):
            ticket.wait()


class Impostor:
    """A raw socket that says a hello by hand, as region 1 of 2."""

    def __init__(self, members, /, **change):
        self.members = members
        federation = federation_id(members)
        fields = {"federation": federation, "members": int.from_bytes(federation[:8], "little"), "region": 1, "to_region": 0,
                  "rail": 0, "stream": 0, "streams": 1, "text": "r1"}
        if change.get("region", 1) < len(members.regions):
            fields["text"] = members.regions[change.get("region", 1)].name
        self.hello = pack_hello(Hello(**(fields | change)))

    def connect(self):
        port = int(self.members.regions[0].rails[0].rpartition(":")[2])
        for _ in range(100):
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection((LOOPBACK, port))
            time.sleep(0.05)
        raise AssertionError("nobody listens")


def against(impostor, act, timeout_s=10.0):
    """Open region 0's rail while `act(socket)` runs on an impostor's; the rail or the error."""
    def play():
        with impostor.connect() as sock:
            sock.sendall(impostor.hello)
            act(sock)

    return together(lambda: Rail.open(impostor.members, 0, 0, 1, timeout_s), play)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"federation": b"x" * 16}, "all ranks need the same members.json"),
        ({"region": 0}, "region 0 does not connect to region 0"),
        ({"region": 7}, "region 7 does not connect to region 0"),
        ({"to_region": 1}, "it wants region 1 rail 0"),
        ({"streams": 2}, "it opens stream 0 of 2, here rails have 1 streams"),
        ({"version": 2}, "speaks version 2 of the rail protocol, this is version 5"),
        ({"text": "r0"}, "region 1 is 'r1' here, not 'r0'"),
        ({"members": 5}, "generation 0 has other members here"),
    ],
)
def test_a_stranger_is_refused_with_the_reason_and_does_not_stop_the_rail(change, said, capfd):
    error, _ = against(Impostor(free_members(), **change), lambda sock: sock.recv(1000), timeout_s=0.7)
    assert isinstance(error, PeerLostError)
    assert "waited 0.7 s for r1/0 (0 of 1 streams); refused meanwhile: " in str(error)
    assert said in str(error)
    assert said in capfd.readouterr().err


def test_who_is_no_isthmus_at_all_is_refused_too(capfd):
    impostor = Impostor(free_members())
    impostor.hello = b"GET / HTTP/1.1\r\nHost: example\r\n" + b"\r\n" * 30
    error, _ = against(impostor, lambda sock: None, timeout_s=0.7)
    assert isinstance(error, PeerLostError)
    assert "is no isthmus rail: it began with b'GET / HT'" in capfd.readouterr().err


def test_the_caller_learns_why_it_was_refused(capfd):
    members = free_members()
    theirs = members.model_copy(update={"regions": [members.regions[0], members.regions[1].model_copy(update={"name": "other"})]})
    results = together(lambda: Rail.open(members, 0, 0, 1, 1.5), lambda: Rail.open(theirs, 1, 0, 1, 1.5))
    assert isinstance(results[0], PeerLostError)
    assert isinstance(results[1], StrangerError)
    assert "refused other/0: federation" in str(results[1])


def play_after(impostor, opened, act):
    """What an impostor does: its hello, then `act(socket)` once the rail is open."""
    with impostor.connect() as sock:
        sock.sendall(impostor.hello)
        assert len(sock.recv(1000)) > 0, "not answered"
        opened.wait(10)
        act(sock)
        with contextlib.suppress(OSError):
            sock.recv(1000)


def test_a_peer_that_vanishes_inside_a_frame_and_listens_no_more_is_lost_at_once():
    members, opened = free_members(), threading.Event()
    impostor = Impostor(members)

    def use():
        with Rail.open(members, 0, 0, 1, 10.0) as rail:
            opened.set()
            rail.receive(1, 5, bytearray(1000)).wait()

    def act(sock):
        sock.sendall(data(5, 1000, 0, bytes(1000))[:460])
        sock.shutdown(socket.SHUT_WR)

    started_s = time.monotonic()
    error = together(use, lambda: play_after(impostor, opened, act))[0]
    assert isinstance(error, PeerLostError)
    assert "nobody listens at r1/0" in str(error)
    assert "inside a frame of tag 0x5" in str(error)
    assert time.monotonic() - started_s < 8.0


def test_only_the_given_address_is_listened_on():
    members = free_members()
    port = int(members.regions[0].rails[0].rpartition(":")[2])

    def wait_in_vain():
        with contextlib.suppress(PeerLostError):
            Rail.open(members, 0, 0, 1, 0.8)

    opening = threading.Thread(target=wait_in_vain)
    opening.start()
    time.sleep(0.3)
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", port)):
        pass
    opening.join()


def test_a_congestion_control_the_kernel_lacks_is_an_error_and_not_replaced():
    with pytest.raises(RailError, match="does not let us choose the congestion control 'nonesuch'"):
        Rail.open(free_members(), 0, 0, 1, 1.0, RailOptions(congestion="nonesuch"))


@pytest.mark.parametrize("way", ["a goodbye", "no goodbye"])
def test_the_missing_rest_of_a_message_asked_for_after_the_link_ended_is_lost_at_once_with_the_reason(way):
    members, opened = free_members(), threading.Event()
    impostor = Impostor(members)

    def use():
        with Rail.open(members, 0, 0, 1, 20.0) as rail:
            opened.set()
            inbox = rail._links[1].inbox
            wait_until(lambda: inbox.early_bytes and (inbox._ended or inbox._error))
            rail.receive(1, 5, bytearray(1000)).wait()

    def act(sock):
        sock.sendall(data(5, 1000, 0, bytes(400)) + (goodbye(1) if way == "a goodbye" else b""))
        sock.shutdown(socket.SHUT_WR)

    started_s = time.monotonic()
    error = together(use, lambda: play_after(impostor, opened, act))[0]
    assert isinstance(error, PeerLostError)
    said = {"a goodbye": "the link with 600 of 1000 bytes missing", "no goodbye": "closed stream 0 without a goodbye"}[way]
    assert said in str(error)
    assert time.monotonic() - started_s < 8.0


def test_a_rank_that_dies_and_starts_again_while_others_open_takes_its_place():
    members = free_members()
    dying = Impostor(members, streams=2)

    def die_then_start():
        with dying.connect() as sock:
            sock.sendall(dying.hello)
            assert len(sock.recv(1000)) > 0, "not answered"
        return Rail.open(members, 1, 0, 2, 10.0)

    left, right = together(lambda: Rail.open(members, 0, 0, 2, 10.0), die_then_start)
    message, into = pattern(2_000_000, 1), torch.zeros(2_000_000, dtype=torch.uint8)
    ticket = left.receive(1, 3, into)
    right.send(0, 3, message)
    ticket.wait(10)
    assert torch.equal(into, message)
    together(left.close, right.close)


def test_a_peer_that_died_while_a_third_region_was_awaited_is_awaited_again():
    members = free_members(3)
    dying = Impostor(members, region=2)
    died = threading.Event()

    def second():
        died.wait(10)
        return Rail.open(members, 1, 0, 1, 10.0)

    def third():
        with dying.connect() as sock:
            sock.sendall(dying.hello)
            assert len(sock.recv(1000)) > 0, "not answered"
        died.set()
        time.sleep(0.5)  # by now the first region has heard of two others, one of them dead
        return Rail.open(members, 2, 0, 1, 10.0)

    rails = together(lambda: Rail.open(members, 0, 0, 1, 10.0), second, third)
    for source, target in [(0, 1), (1, 2), (2, 0)]:
        into = bytearray(5)
        ticket = rails[target].receive(source, 4, into)
        rails[source].send(target, 4, b"hello")
        ticket.wait(10)
        assert into == b"hello"
    together(*(rail.close for rail in rails))


def test_a_caller_that_is_gone_opens_nothing():
    impostor = Impostor(free_members())

    def call_and_go():
        with impostor.connect() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # the hello and the end arrive in one segment
            sock.sendall(impostor.hello)

    error, _ = together(lambda: Rail.open(impostor.members, 0, 0, 1, 0.7), call_and_go)
    assert isinstance(error, PeerLostError)
    assert "waited 0.7 s for r1/0 (0 of 1 streams)" in str(error)
