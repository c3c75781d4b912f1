"""Links under attack and repair: broken streams, silence, generations, aborts. Both ends in this process, on loopback."""

import contextlib
import random
import socket
import threading
import time

import pytest
import torch

from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import PeerLostError, RailError, StrangerError, federation_id
from isthmus.runtime.wan.rail import Rail, RailOptions

from .conftest import LOOPBACK, pattern, wait_until


def only_link(rail):
    (link,) = rail._links.values()
    return link


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_streams_that_break_again_and_again_lose_no_byte_and_change_none(wan, tls):
    with wan.rails(tls=tls, streams=4) as rails:
        stop, random_ = threading.Event(), random.Random(7)

        def break_streams():
            while not stop.wait(0.02):
                lane = only_link(rails[random_.randrange(2)]).lanes[random_.randrange(4)]
                if lane is not None:
                    lane.stream.close()

        saboteur = threading.Thread(target=break_streams)
        saboteur.start()
        results = [wan.exchange(rails, tag, 5_000_017) for tag in range(1, 11)]
        stop.set()
        saboteur.join()
        assert results == [[True, True]] * 10
        uses = [use for rail in rails for use in rail.counters().values()]
        assert all(use.streams_lost > 2 for use in uses)
        assert all(use.encrypted == tls for use in uses)
        wait_until(lambda: not any(only_link(rail).missing() for rail in rails))


def test_a_lost_chunk_goes_again_on_another_stream_and_the_first_is_opened_anew(wan):
    with wan.rails(streams=2) as (left, right):
        dead = only_link(left).lanes[0]
        dead.stream.send = lambda parts: dead.stream.close() or (_ for _ in ()).throw(OSError(32, "cut"))  # nothing leaves
        other, quick = only_link(left).lanes[1], only_link(left).lanes[1].stream.send
        other.stream.send = lambda parts: (wait_until(lambda: dead.dead), quick(parts))[1]  # or it might carry all by itself
        message, into = pattern(4_000_000, 3), torch.zeros(4_000_000, dtype=torch.uint8)
        ticket = right.receive(0, 9, into)
        left.send(1, 9, message).wait()
        ticket.wait()
        assert torch.equal(into, message)
        use = left.counters()["r1"]
        assert use.streams_lost == 1
        assert use.chunks_resent >= 1
        wait_until(lambda: not only_link(left).missing())
        assert wan.exchange((left, right), 10) == [True, True]


class Flipper:
    """A byte-flipping middle box between region 1 and region 0's door: flips one bit of chosen pieces towards region 0."""

    def __init__(self, target, flips):
        self.listener = socket.create_server((LOOPBACK, 0))
        self.port, self.target, self.flips, self.seen = self.listener.getsockname()[1], target, flips, 0
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection((LOOPBACK, self.target))
            except OSError:
                return
            threading.Thread(target=self.pump, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self.pump, args=(far, near, False), daemon=True).start()

    def pump(self, source, sink, flip):
        try:
            while piece := bytearray(source.recv(1 << 16)):
                self.seen += flip
                if flip and len(piece) > 10_000 and self.flips and self.seen > 20:
                    self.flips -= 1
                    piece[len(piece) // 2] ^= 16
                sink.sendall(piece)
        except OSError:
            pass
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        source.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_bytes_flipped_on_the_way_break_their_stream_only_and_never_reach_a_message(wan, tls, capfd):
    members = wan.members()
    box = Flipper(int(members.regions[0].rails[0].rpartition(":")[2]), flips=3)
    theirs = members.model_copy(
        update={"regions": [members.regions[0].model_copy(update={"rails": [f"{LOOPBACK}:{box.port}"]}), members.regions[1]]}
    )
    doors = [
        Door(members.regions[number].rails[0], federation_id(members), number, wan.identity(f"r{number}") if tls else None)
        for number in range(2)
    ]
    # The middle box is on region 1's way to region 0, so region 1 knows another address; the members are the same otherwise.
    opened = wan.together(
        lambda: Rail.open(theirs, 0, 0, 2, 10.0, door=doors[0]), lambda: Rail.open(theirs, 1, 0, 2, 10.0, door=doors[1])
    )
    try:
        for tag in range(1, 6):
            assert wan.exchange(opened, tag, 3_000_001) == [True, True]
        assert box.flips == 0
        assert 1 <= opened[0].counters()["r1"].streams_lost <= 6
    finally:
        wan.together(*(rail.close for rail in opened))
        for door in doors:
            door.close()
        box.listener.close()
    said = capfd.readouterr().err
    assert said.count("opened anew") <= 2, said  # one line a link, not one a flip


def test_a_peer_that_stands_still_is_lost_after_detect_s_although_nobody_waits(wan):
    with wan.rails(streams=2, detect_s=0.6) as (left, right):
        for lane in only_link(right).lanes:
            lane.stream.send = lambda parts: time.sleep(3)  # neither data nor signs of life leave it
        wait_until(lambda: left.errors)
        with pytest.raises(PeerLostError, match=r"nothing was heard for 0\.6 s"):
            left.receive(1, 5, bytearray(4)).wait()  # the link is failed before what waits on it is told
        left.abort(RailError("over"))
        right.abort(RailError("over"))


def test_an_idle_link_lives_by_its_signs_of_life(wan):
    with wan.rails(streams=2, detect_s=0.5) as rails:
        time.sleep(1.5)
        assert not rails[0].errors
        assert not rails[1].errors
        assert wan.exchange(rails, 4) == [True, True]
        assert rails[0].counters()["r1"].streams_lost == 0


def test_a_stream_that_alone_goes_silent_is_replaced(wan):
    with wan.rails(streams=2, detect_s=0.6) as rails:
        lane = only_link(rails[1]).lanes[0]
        lane.stream.send = lambda parts: lane.dead or time.sleep(0.3)
        wait_until(lambda: rails[0].counters()["r1"].streams_lost == 1)
        assert wan.exchange(rails, 4) == [True, True]
        assert not rails[0].errors


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_abort_wakes_all_who_wait_and_close_is_quick_and_leaves_no_thread(wan, tls):
    before = set(threading.enumerate())
    with wan.rails(tls=tls, streams=4) as (left, right):
        tickets = [left.receive(1, 1, bytearray(8)), left.send(1, 2, bytes(200_000_000))]
        time.sleep(0.05)
        started_s = time.monotonic()
        left.abort(PeerLostError("generation 3 is over"))
        for ticket in tickets:
            with pytest.raises(PeerLostError, match="generation 3 is over"):
                ticket.wait()
        left.close()
        assert time.monotonic() - started_s < 2.0
        right.abort(RailError("over"))
        started_s = time.monotonic()
        right.close()
        assert time.monotonic() - started_s < 2.0
    wait_until(lambda: set(threading.enumerate()) <= before, 2.0)


def test_nothing_is_written_to_a_buffer_after_its_ticket_is_done(wan):
    def untouched(into):
        into.zero_()
        time.sleep(0.01)
        return not into.any()

    with wan.rails(streams=4) as (left, right):
        for round_ in range(9):
            into = torch.zeros(30_000_000, dtype=torch.uint8)
            ticket = right.receive(0, round_, into)
            left.send(1, round_, torch.full((30_000_000,), 255, dtype=torch.uint8))
            wait_until(lambda ticket=ticket: ticket.left_bytes < 20_000_000)
            ticket.wait()
            assert untouched(into)
    # So slow that it is under way for a second whatever else the machine does.
    with wan.rails(streams=4, rate_bytes_per_s=10e6) as (left, right):
        into = torch.zeros(10_000_000, dtype=torch.uint8)
        ticket = right.receive(0, 1, into)
        left.send(1, 1, torch.full((10_000_000,), 255, dtype=torch.uint8))
        wait_until(lambda: ticket.left_bytes < 9_500_000)
        right.abort(RailError("over"))
        with pytest.raises(RailError):
            ticket.wait()
        assert untouched(into)
        left.abort(RailError("over"))


def test_a_released_buffer_may_be_changed_before_the_peer_has_it(wan):
    with wan.rails(streams=2) as (left, right):
        for lane in only_link(right).lanes:
            lane._acknowledgement = lambda lane=lane: []  # the peer acknowledges nothing
        buffer, into = pattern(300_000, 5).clone(), torch.zeros(300_000, dtype=torch.uint8)
        ticket = left.send(1, 1, buffer)
        ticket.release()
        assert not ticket.done
        buffer.zero_()
        only_link(left).lanes[0].stream.close()  # what was not acknowledged goes again, from the copy
        only_link(left).lanes[1].stream.close()
        right.receive(0, 1, into).wait()
        assert torch.equal(into, pattern(300_000, 5))
        ticket.wait()


@pytest.fixture
def doors(wan):
    members = wan.members()
    opened = [Door(region.rails[0], federation_id(members), number) for number, region in enumerate(members.regions)]
    yield members, opened
    for door in opened:
        door.close()


def test_generations_follow_each_other_through_the_same_doors_and_an_early_caller_waits(wan, doors):
    members, (first, second) = doors
    for generation in range(3):
        rails = wan.together(
            lambda generation=generation: time.sleep(0.2) or Rail.open(members, 0, 0, 2, 10.0, generation=generation, door=first),
            lambda generation=generation: Rail.open(members, 1, 0, 2, 10.0, generation=generation, door=second),
        )
        assert wan.exchange(rails, 1) == [True, True]
        for rail in rails:
            rail.abort(RailError("next"))
            rail.close()


def test_who_calls_for_a_generation_that_is_over_is_told(wan, doors):
    members, (first, second) = doors
    first.claim(7, 0, lambda newcomer: "")
    with pytest.raises(StrangerError, match="generation 6 is over, 7 has begun"):
        Rail.open(members, 1, 0, 1, 3.0, generation=6, door=second)


def test_a_peer_that_starts_again_is_lost_to_an_open_rail_at_once(wan, doors):
    members, (first, second) = doors
    left, right = wan.together(
        lambda: Rail.open(members, 0, 0, 2, 10.0, door=first), lambda: Rail.open(members, 1, 0, 2, 10.0, door=second)
    )
    waiting = left.receive(1, 1, bytearray(8))
    with pytest.raises(StrangerError, match=r"earlier start|the rail is closed"):
        Rail.open(members, 1, 0, 2, 3.0, door=second)
    with pytest.raises(PeerLostError, match="started again"):
        waiting.wait()
    right.abort(RailError("over"))
    left.close()
    right.close()


def test_a_rail_of_three_regions_can_lose_one_while_the_others_talk(wan):
    with wan.rails(3, streams=2) as rails:
        assert wan.exchange(rails, 1) == [True] * 3
        rails[2].abort(RailError("killed"))
        rails[2].close()
        wait_until(lambda: "r2" in rails[0].errors and "r2" in rails[1].errors)
        into = bytearray(5)
        ticket = rails[1].receive(0, 2, into)
        rails[0].send(1, 2, b"hello").wait()
        ticket.wait()
        assert into == b"hello"


def test_rail_options_state_when_a_peer_counts_as_lost():
    options = RailOptions()
    assert options.detect_s == 5.0


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_what_a_peer_received_before_its_goodbye_counts_as_sent(wan, tls):
    # The peer closes the moment its message is whole, before its receiver has got round to anything else.
    with wan.rails(tls=tls, streams=2) as (left, right):
        inbox = only_link(right).inbox
        landed = inbox.landed
        inbox.landed = lambda landing: (landed(landing), time.sleep(0.1))
        outbox = only_link(left).outbox
        handed = outbox.handed
        outbox.handed = lambda chunk: (time.sleep(0.4), handed(chunk))  # nor has our sender, when the goodbye comes
        message, into = pattern(40_003, 5), torch.zeros(40_003, dtype=torch.uint8)
        ticket = right.receive(0, 4, into)
        sent = left.send(1, 4, message)
        ticket.wait()
        threading.Thread(target=right.close).start()
        sent.wait()
        sent.release()
        assert torch.equal(into, message)
