"""Opening the streams of a rail: who connects to whom, the hello both ways, and the refusal of strangers.

The region with the higher number connects to the lower one's address. Both say who they are; whoever is not the expected
member of the same federation is refused with a reason, which is printed on both sides' stderr or raised.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from isthmus.runtime.environment import Members, split_address
from isthmus.runtime.wan.frames import (
    HELLO_BYTES,
    Hello,
    PeerLostError,
    StrangerError,
    federation_id,
    pack_hello,
    unpack_hello,
)
from isthmus.runtime.wan.streams import open_listener, prepare

__all__ = ["Opening", "open_streams"]

HELLO_S_MAX = 5.0
RETRY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What one rank needs to open its rail; `congestion` and `pace_bytes_per_s` as in `streams.prepare`."""

    members: Members
    region: int
    rail: int
    streams: int
    timeout_s: float
    congestion: str
    pace_bytes_per_s: float | None

    def name(self, region: int) -> str:
        """`region/rail`, for messages."""
        return f"{self.members.regions[region].name}/{self.rail}"

    def hello(self, to_region: int, stream: int) -> Hello:
        """What this rank says first on that stream."""
        return Hello(
            federation=federation_id(self.members),
            region=self.region,
            to_region=to_region,
            rail=self.rail,
            stream=stream,
            streams=self.streams,
        )

    def address(self, region: int) -> tuple[str, int]:
        """Where this rail of `region` listens."""
        return split_address(self.members.regions[region].rails[self.rail])


def open_streams(opening: Opening) -> dict[tuple[int, int], socket.socket]:
    """Sockets by (region, stream), every one past its hello.

    Raises:
        PeerLostError: Some member did not come within `timeout_s`; the message lists who, and who was refused meanwhile.
        StrangerError: The other end refused us, or is not who it should be.
    """
    state = _State(opening)
    while missing := state.missing():  # again where a stream died while others were awaited
        threads = [
            threading.Thread(target=state.run, args=(state.connect, region, stream), daemon=True)
            for region, stream in missing
            if region < opening.region
        ]
        if any(region > opening.region for region, _ in missing):
            threads.append(threading.Thread(target=state.run, args=(state.accept,), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if state.failure is not None:
            state.give_up()
            raise state.failure
    return state.sockets


class _State:
    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.sockets: dict[tuple[int, int], socket.socket] = {}
        self.failure: Exception | None = None
        self.refused: list[str] = []
        self.closed = False
        self.lock = threading.Lock()
        self.deadline_s = time.monotonic() + opening.timeout_s

    def run(self, work: Callable[..., None], *args: int) -> None:
        try:
            work(*args)
        except (OSError, PeerLostError, StrangerError) as error:
            with self.lock:
                self.failure = self.failure or error

    def missing(self) -> list[tuple[int, int]]:
        """The (region, stream) still to be opened; dead streams are dropped first. With none, nothing is taken in any more."""
        opening = self.opening
        with self.lock:
            for key in [key for key, sock in self.sockets.items() if not _alive(sock)]:
                self.sockets.pop(key).close()
            wanted = [
                (region, stream)
                for region in range(len(opening.members.regions))
                for stream in range(opening.streams)
                if region != opening.region and (region, stream) not in self.sockets
            ]
            self.closed = not wanted
            return wanted

    def give_up(self) -> None:
        with self.lock:
            self.closed = True
            for sock in self.sockets.values():
                sock.close()

    def left_s(self) -> float:
        return 0.0 if self.failure is not None else self.deadline_s - time.monotonic()

    def connect(self, region: int, stream: int) -> None:
        opening, (host, port) = self.opening, self.opening.address(region)
        who = f"{opening.name(region)} at {host}:{port}"
        last: OSError | None = None
        while self.left_s() > 0:
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            try:
                prepare(sock, opening.congestion, opening.timeout_s, opening.pace_bytes_per_s)
                sock.settimeout(max(0.01, self.left_s()))
                sock.connect((host, port))
                sock.sendall(pack_hello(opening.hello(region, stream)))
                answer = _read_hello(sock, who)
                self._check_answer(answer, region, stream, who)
            except OSError as error:
                sock.close()
                last = error
                time.sleep(RETRY_S)
                continue
            except BaseException:
                sock.close()
                raise
            with self.lock:
                self.sockets[region, stream] = sock
            return
        if self.failure is None:
            raise PeerLostError(
                f"{opening.name(opening.region)}: no connection to {who} within {opening.timeout_s:g} s ({last})"
            )

    def _check_answer(self, answer: Hello, region: int, stream: int, who: str) -> None:
        if answer.verdict:
            raise StrangerError(f"{who} refused {self.opening.name(self.opening.region)}: {answer.reason}")
        expected = replace(self.opening.hello(region, stream), region=region, to_region=self.opening.region)
        if answer != expected:
            raise StrangerError(f"{who} is not the expected member: it said {answer}, expected {expected}")

    def accept(self) -> None:
        opening, (host, port) = self.opening, self.opening.address(self.opening.region)
        wanted = (len(opening.members.regions) - opening.region - 1) * opening.streams
        with open_listener(host, port, backlog=wanted + 16) as listener:
            listener.settimeout(0.1)
            while self.left_s() > 0 and self._accepted() < wanted:
                try:
                    sock, address = listener.accept()
                except TimeoutError:
                    continue
                threading.Thread(
                    target=self._welcome, args=(sock, f"{address[0]}:{address[1]}"), daemon=True
                ).start()
        if self.failure is None and self._accepted() < wanted:
            missing = [
                f"{opening.name(region)} ({sum((region, stream) in self.sockets for stream in range(opening.streams))} of"
                f" {opening.streams} streams)"
                for region in range(opening.region + 1, len(opening.members.regions))
                if any((region, stream) not in self.sockets for stream in range(opening.streams))
            ]
            refused = f"; refused meanwhile: {'; '.join(self.refused)}" if self.refused else ""
            raise PeerLostError(
                f"{opening.name(opening.region)} at {host}:{port}: waited {opening.timeout_s:g} s for "
                f"{', '.join(missing)}{refused}"
            )

    def _accepted(self) -> int:
        with self.lock:
            return sum(region > self.opening.region for region, _ in self.sockets)

    def _welcome(self, sock: socket.socket, who: str) -> None:
        opening = self.opening
        try:
            sock.settimeout(HELLO_S_MAX)
            prepare(sock, opening.congestion, opening.timeout_s, opening.pace_bytes_per_s)
            hello = _read_hello(sock, who)
            reason = self._objection(hello)
            if reason:
                sock.sendall(
                    pack_hello(replace(opening.hello(hello.region, hello.stream), verdict=1, reason=reason))
                )
                raise StrangerError(f"{who}: {reason}")
            # One step: nothing may go out on a stream before its answer, and a stream without an answer is none. The few
            # bytes fit a fresh socket's buffer, so this does not wait.
            with self.lock:
                if self.closed:
                    raise StrangerError(f"{who}: the rail is open already")
                sock.sendall(pack_hello(opening.hello(hello.region, hello.stream)))
                # A later hello is that of a rank that was started again: the stream before it is dead.
                before = self.sockets.pop((hello.region, hello.stream), None)
                self.sockets[hello.region, hello.stream] = sock
            if before is not None:
                before.close()
        except (OSError, StrangerError) as error:
            sock.close()
            self.refused.append(f"{who}: {error}")
            print(
                f"isthmus: rail {opening.name(opening.region)} refused {who}: {error}",
                file=sys.stderr,
                flush=True,
            )

    def _objection(self, hello: Hello) -> str:
        opening = self.opening
        mine = opening.hello(hello.region, hello.stream)
        if hello.federation != mine.federation:
            return (
                f"federation {hello.federation.hex()} is not ours, {mine.federation.hex()}; all ranks need the same "
                "members.json"
            )
        if hello.to_region != opening.region or hello.rail != opening.rail:
            return f"it wants region {hello.to_region} rail {hello.rail}, this is region {opening.region} rail {opening.rail}"
        if not opening.region < hello.region < len(opening.members.regions):
            return f"region {hello.region} does not connect to region {opening.region}"
        if hello.streams != opening.streams or hello.stream >= hello.streams:
            return f"it opens stream {hello.stream} of {hello.streams}, here rails have {opening.streams} streams"
        return ""


def _alive(sock: socket.socket) -> bool:
    """Whether the peer has not ended the stream, as far as the kernel knows; takes nothing from it."""
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _read_hello(sock: socket.socket, who: str) -> Hello:
    hello, length = unpack_hello(_exactly(sock, HELLO_BYTES, who), who)
    return replace(hello, reason=_exactly(sock, length, who).decode(errors="replace")) if length else hello


def _exactly(sock: socket.socket, size: int, who: str) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionResetError(
                f"{who} closed the stream after {len(data)} of {size} bytes of its hello"
            )
        data += piece
    return bytes(data)
