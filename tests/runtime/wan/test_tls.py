"""TLS in two sessions over one TCP stream: both ways at once, handshakes in pieces, sessions that somebody joined crosswise."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from isthmus.keys import make_keys
from isthmus.runtime.wan.frames import StrangerError
from isthmus.runtime.wan.identity import Identity
from isthmus.runtime.wan.streams import PlainStream
from isthmus.runtime.wan.tls import TlsStream, greet, peer_region

HANDSHAKE, SEALED = 22, 23
Route = Callable[[int, bool, int], int]
"""(pair, whether towards the answerer, session) -> the pair that the session's records go to."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(["east", "west"], folder)
    return folder


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        calling = socket.create_connection(listener.getsockname())
        return calling, listener.accept()[0]


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := sock.recv(size - len(data))):
        data += piece
    return data


def carry(source: socket.socket, goals: list[socket.socket], route: Callable[[int], int], pause_s: float, up: bool) -> None:
    """TLS records of `source`, each to `goals[route(session)]`, in pieces of 7 bytes where `pause_s` lies between two."""
    session, flights = -1, [0, 0]
    with suppress(OSError):
        while header := exactly(source, 5):
            body = exactly(source, int.from_bytes(header[3:5], "big"))
            session += header[0] == HANDSHAKE  # only the first record of a session's handshake is one in the clear
            if up and session == 1 and flights[1] == flights[0] and header[0] == SEALED:
                session = 0  # both of the caller's flights are over: what it seals now it seals in its own session
            flights[session] += header[0] == SEALED
            record, goal = header + body, goals[route(session)]
            for start in range(0, len(record), 7 if pause_s else len(record)):
                goal.sendall(record[start : start + (7 if pause_s else len(record))])
                time.sleep(pause_s)


@contextmanager
def streams(keys: Path, pairs: int, route: Route, pause_s: float = 0.0) -> Iterator[list[Future[TlsStream]]]:
    """Callers 0, 1, ... of east, then answerers of west, with a relay in between; greeted, or failed to."""
    outside, inside = zip(*(tcp_pair() for _ in range(2 * pairs)), strict=True)
    callers, answerers = list(range(pairs)), list(range(pairs, 2 * pairs))
    for pair in range(pairs):
        for own, others, up in ((callers, answerers, True), (answerers, callers, False)):
            goals = [inside[other] for other in others]
            ways = (inside[own[pair]], goals, lambda session, pair=pair, up=up: route(pair, up, session), pause_s, up)
            threading.Thread(target=carry, args=ways, daemon=True).start()
    wires = [PlainStream(sock) for sock in outside]
    for wire in wires:
        wire.deadline_s = time.monotonic() + 10.0
    names = ["east"] * pairs + ["west"] * pairs
    with ThreadPoolExecutor(2 * pairs) as pool:
        found = [
            pool.submit(greet, wire, Identity.load(keys, name), calling=name == "east", who=name)
            for wire, name in zip(wires, names, strict=True)
        ]
    try:
        yield found
    finally:
        for stream in found:
            if stream.exception() is None:
                stream.result().release()
        for sock in (*outside, *inside):
            sock.close()


def straight(pair: int, _up: bool, _session: int) -> int:
    return pair


def crossed(pair: int, _up: bool, session: int) -> int:
    """The second sessions of two streams change places."""
    return 1 - pair if session == 1 else pair


@pytest.mark.parametrize("pause_s", [0.0, 1e-4])
def test_both_ways_at_once_carry_what_was_sent_though_the_handshakes_come_in_pieces(keys: Path, pause_s: float) -> None:
    size = 20_000 if pause_s else 5_000_000
    with streams(keys, 1, straight, pause_s) as found:
        ends = [stream.result() for stream in found]
        assert [peer_region(end, "end") for end in ends] == ["west", "east"]
        given = [os.urandom(size) for _ in ends]
        came = [bytearray(size) for _ in ends]
        work = [threading.Thread(target=end.send, args=((b"head", data[4:]),)) for end, data in zip(ends, given, strict=True)]
        work += [threading.Thread(target=end.receive, args=(memoryview(into),)) for end, into in zip(ends, came, strict=True)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join(20.0)
        assert [bytes(into) for into in came] == [b"head" + data[4:] for data in reversed(given)]


def test_sessions_of_two_streams_that_somebody_joined_crosswise_are_found_out_before_anything_is_taken(keys: Path) -> None:
    with streams(keys, 2, crossed) as found:
        for end in [stream.result() for stream in found]:
            with pytest.raises(StrangerError, match="stands in between"):
                end.receive(memoryview(bytearray(1)))


def test_a_peer_that_ends_in_the_middle_of_the_handshake_or_says_nothing_is_told_apart(keys: Path) -> None:
    ours, theirs = tcp_pair()
    wire = PlainStream(ours)
    wire.deadline_s = time.monotonic() + 0.3
    with pytest.raises(TimeoutError, match="too little for too long"):
        greet(wire, Identity.load(keys, "east"), calling=True, who="nobody")
    wire.deadline_s = time.monotonic() + 5.0
    theirs.close()
    with pytest.raises(OSError, match=r"ended the connection|not connected"):
        greet(wire, Identity.load(keys, "east"), calling=True, who="nobody")
    ours.close()
