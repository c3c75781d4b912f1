"""Opening streams: what a rank knows when it calls, the call itself, and what it may take for the expected member.

The region with the higher number connects to the lower one's address. Both say who they are; whoever is not the expected
member of the same federation and generation is refused with a reason, which is printed on the one side and raised on the
other.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from isthmus.runtime.environment import Members, split_address
from isthmus.runtime.wan.door import HELLO_S_MAX, receiver
from isthmus.runtime.wan.frames import (
    Hello,
    PeerLostError,
    StrangerError,
    federation_id,
    pack_hello,
    read_hello,
)
from isthmus.runtime.wan.identity import Identity
from isthmus.runtime.wan.streams import PlainStream, prepare
from isthmus.runtime.wan.tls import TlsStream, greet, peer_region

__all__ = ["Call", "Opening"]

RETRY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What one rank needs to open its rail; `congestion`, and the pace of a stream by region, as in `streams.prepare`."""

    members: Members
    federation: bytes
    generation: int
    instance: int
    region: int
    rail: int
    streams: int
    timeout_s: float
    congestion: str
    paces_bytes_per_s: dict[int, float]
    identity: Identity | None

    def name(self, region: int) -> str:
        """`region/rail`, for messages."""
        return f"{self.members.regions[region].name}/{self.rail}"

    def hello(self, to_region: int, stream: int, rtt_us: int = 0) -> Hello:
        """What this rank says first on that stream."""
        return Hello(
            federation=self.federation,
            members=int.from_bytes(federation_id(self.members)[:8], "little"),
            generation=self.generation,
            instance=self.instance,
            region=self.region,
            to_region=to_region,
            rail=self.rail,
            stream=stream,
            streams=self.streams,
            rtt_us=rtt_us,
            text=self.members.regions[self.region].name,
        )

    def address(self, region: int) -> tuple[str, int]:
        """Where this rail of `region` listens."""
        return split_address(self.members.regions[region].address(self.rail))

    def prepare(self, wire: PlainStream, region: int) -> None:
        """Set the options of a stream accepted from that region."""
        wire.prepare(self.congestion, self.timeout_s, self.paces_bytes_per_s.get(region))

    def objection(self, hello: Hello) -> str:
        """Why the caller with this hello may not join this rail; "" where it may."""
        mine = self.hello(hello.region, hello.stream)
        if hello.members != mine.members:
            return f"generation {hello.generation} has other members here"
        if hello.to_region != self.region or hello.rail != self.rail:
            return f"it wants region {hello.to_region} rail {hello.rail}, this is region {self.region} rail {self.rail}"
        if not self.region < hello.region < len(self.members.regions):
            return f"region {hello.region} does not connect to region {self.region}"
        if hello.text != self.members.regions[hello.region].name:
            return f"region {hello.region} is {self.members.regions[hello.region].name!r} here, not {hello.text!r}"
        if hello.streams != self.streams or hello.stream >= hello.streams:
            return f"it opens stream {hello.stream} of {hello.streams}, here rails have {self.streams} streams"
        return ""


class Call:
    """One stream being opened to a lower region; `cancel` from another thread ends it at once.

    Attributes:
        last: What went wrong with the latest attempt.
    """

    def __init__(self, opening: Opening, region: int, stream: int, state_rtt_us: Callable[[int], int]) -> None:
        """`state_rtt_us` is told the round trip that was found, and says which one the hello states."""
        self._opening, self._region, self._stream = opening, region, stream
        self._state_rtt_us = state_rtt_us
        host, port = opening.address(region)
        self.who = f"{opening.name(region)} at {host}:{port}"
        self._cancelled = threading.Event()
        self._socket: socket.socket | None = None
        self.last: OSError | None = None

    def cancel(self) -> None:
        """Let `connect` raise PeerLostError now."""
        self._cancelled.set()
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def connect(self, deadline_s: float, refused: Callable[[int], None]) -> tuple[PlainStream | TlsStream, Hello]:
        """A stream past its hello and the peer's answer. `refused(n)` hears of the n-th time in a row that nobody listened.

        Raises:
            PeerLostError: Nobody answered until `deadline_s` (monotonic), or the call was cancelled.
            StrangerError: Somebody else answered, or we were refused.
        """
        refusals = 0
        while time.monotonic() < deadline_s and not self._cancelled.is_set():
            host, _ = self._opening.address(self._region)
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            self._socket = sock
            try:
                return self._attempt(sock, deadline_s)
            except OSError as error:
                sock.close()
                if self.last is None or not isinstance(error, TimeoutError):
                    self.last = error  # running out of time says less than what went wrong before
                refusals = refusals + 1 if isinstance(error, ConnectionRefusedError) else 0
                if refusals:
                    refused(refusals)
            except BaseException:
                sock.close()
                raise
            self._cancelled.wait(RETRY_S)
        me = self._opening.name(self._opening.region)
        raise PeerLostError(f"{me}: no connection to {self.who} in time ({self.last})")

    def _attempt(self, sock: socket.socket, deadline_s: float) -> tuple[PlainStream | TlsStream, Hello]:
        opening = self._opening
        prepare(sock, opening.congestion, opening.timeout_s, opening.paces_bytes_per_s.get(self._region))
        sock.settimeout(max(0.01, deadline_s - time.monotonic()))
        sock.connect(opening.address(self._region))
        wire = PlainStream(sock)
        wire.deadline_s = min(deadline_s, time.monotonic() + HELLO_S_MAX)
        stream: PlainStream | TlsStream = wire
        if opening.identity is not None:
            stream = greet(wire, opening.identity, calling=True, who=self.who)
        try:
            return stream, self._talk(stream, wire, deadline_s)
        except BaseException:
            stream.forget()
            raise

    def _talk(self, stream: PlainStream | TlsStream, wire: PlainStream, deadline_s: float) -> Hello:
        opening = self._opening
        if isinstance(stream, TlsStream):
            name, expected = peer_region(stream, self.who), opening.members.regions[self._region].name
            if name != expected:
                raise StrangerError(f"{self.who} holds the certificate of region {name!r}")
        mine = opening.hello(self._region, self._stream, self._state_rtt_us(int(wire.kernel().rtt_s * 1e6)))
        stream.send((pack_hello(mine),))
        wire.deadline_s = deadline_s  # the peer answers once its own rail is opened
        answer = read_hello(receiver(stream), self.who)
        wire.deadline_s = None
        self._check(mine, answer)
        return answer

    def _check(self, mine: Hello, answer: Hello) -> None:
        opening = self._opening
        if answer.verdict:
            raise StrangerError(f"{self.who} refused {opening.name(opening.region)}: {answer.text}")
        expected = replace(
            mine,
            region=self._region,
            to_region=opening.region,
            instance=answer.instance,
            text=opening.members.regions[self._region].name,
        )
        if answer != expected:
            raise StrangerError(f"{self.who} is not the expected member: it said {answer}, expected {expected}")
