"""The door: the one address at which a rank hears other regions, open for the whole run.

It shakes hands, reads the hello, refuses whoever has no business here (with a reason for both sides), and keeps newcomers of
a generation that has not begun here until a rail claims them. Strangers cost one line of stderr a kind and host a minute.
"""

import contextlib
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from isthmus.errors import InputError
from isthmus.runtime.environment import split_address
from isthmus.runtime.wan.frames import HELLO_MAGIC, Hello, QuietError, StrangerError, pack_hello, read_hello
from isthmus.runtime.wan.identity import Identity
from isthmus.runtime.wan.streams import PlainStream, open_listener
from isthmus.runtime.wan.tls import TlsStream, greet, peer_region

__all__ = ["Door", "Newcomer", "demand_keys", "receiver"]

HELLO_S_MAX: Final = 5.0
PARK_S: Final = 60.0
PARKED_MAX: Final = 1024
CALLERS_MAX: Final = 128
LOG_S: Final = 60.0
NO_KEYS: Final = "this run's rails are inside TLS; every rank needs ISTHMUS_KEYS"
_NUMBERS = re.compile(r"[0-9a-f]{8,}|\d+|b'.*'")


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A stream past its hello, waiting for an answer."""

    stream: PlainStream | TlsStream
    wire: PlainStream
    hello: Hello
    who: str
    at_s: float

    def refuse(self, reason: str) -> None:
        """Say why not, and end the stream."""
        with contextlib.suppress(OSError):
            self.stream.send((pack_hello(replace(self.hello, verdict=1, text=reason)),))
            self.stream.end()
        self.leave()

    def leave(self) -> None:
        """End the stream without a word."""
        self.stream.close()
        self.stream.release()


class Door:
    """Listens on one address from its creation until `close`.

    Attributes:
        refusals: The latest refusals, in words.
    """

    def __init__(
        self, address: str, federation: bytes, region: int, identity: Identity | None = None, *, insecure: bool = False
    ) -> None:
        """`region` is this rank's region's number in the whole run; `insecure` allows plain TCP beyond loopback.

        Raises:
            InputError: No keys, an address that is not on loopback, and not `insecure`.
            OSError: The address cannot be bound.
        """
        host, port = split_address(address)
        demand_keys([address], identity, insecure)
        self.address, self.federation, self.region, self.identity = address, federation, region, identity
        self.refusals: deque[str] = deque(maxlen=8)
        self._lock = threading.Lock()
        self._parked: dict[tuple[int, int], list[Newcomer]] = {}
        self._claims: dict[tuple[int, int], Callable[[Newcomer], str]] = {}
        self._generation = 0
        self._logged: dict[tuple[str, str], float] = {}
        self._callers = threading.Semaphore(CALLERS_MAX)
        self._greeting: set[socket.socket] = set()
        self._closed = False
        self._listener = open_listener(host, port, backlog=256)
        self._listener.settimeout(1.0)
        self._thread = threading.Thread(target=self._listen, daemon=True, name=f"door {address}")
        self._thread.start()

    def claim(self, generation: int, rail: int, take: Callable[[Newcomer], str]) -> None:
        """Hand newcomers of that generation and rail to `take`, which returns why it refuses them, or "" once it has them.

        Newcomers of older generations are refused from now on.
        """
        with self._lock:
            self._claims[generation, rail] = take
            self._generation = max(self._generation, generation)
            over = [key for key in self._parked if key[0] < self._generation]
            late = [newcomer for key in over for newcomer in self._parked.pop(key)]
            waiting = self._parked.pop((generation, rail), [])
        for newcomer in late:
            self._refuse(newcomer, self._over(newcomer.hello))
        for newcomer in waiting:
            self._offer(newcomer, take)

    def unclaim(self, generation: int, rail: int) -> None:
        """The rail is closed."""
        with self._lock:
            self._claims.pop((generation, rail), None)

    def close(self) -> None:
        """Stop listening, and turn away who waits."""
        with self._lock:
            self._closed = True
            waiting = [newcomer for newcomers in self._parked.values() for newcomer in newcomers]
            self._parked.clear()
            greeting = list(self._greeting)
        for sock in [self._listener, *greeting]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for newcomer in waiting:
            newcomer.leave()
        self._thread.join(2.0)
        self._listener.close()

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        while not self._closed:
            try:
                sock, address = self._listener.accept()
            except TimeoutError:
                self._expire()
                continue
            except OSError as error:
                if not self._closed:
                    self._log(self.address, f"cannot accept: {error.strerror or error}")
                    time.sleep(0.05)  # out of descriptors, for instance: callers will try again
                continue
            if self._callers.acquire(blocking=False):
                who = f"{address[0]}:{address[1]}"
                threading.Thread(target=self._greet, args=(sock, who), daemon=True, name=f"greet {who}").start()
            else:
                sock.close()
                self._log(address[0], f"more than {CALLERS_MAX} callers at once")

    def _greet(self, sock: socket.socket, who: str) -> None:
        with self._lock:
            self._greeting.add(sock)
        try:
            newcomer = self._newcomer(sock, who)
        except QuietError:
            sock.close()
        except (OSError, StrangerError) as error:
            self._log(who, str(error))
            _part(sock)
        else:
            self._admit(newcomer)
        finally:
            with self._lock:
                self._greeting.discard(sock)
            self._callers.release()

    def _newcomer(self, sock: socket.socket, who: str) -> Newcomer:
        wire = PlainStream(sock)
        wire.deadline_s = time.monotonic() + HELLO_S_MAX
        if self.identity is None:
            stream: PlainStream | TlsStream = wire
        else:
            first = wire.first_byte()
            if not first:
                raise QuietError(who)
            if first == HELLO_MAGIC[:1]:  # one of ours without keys: a TLS alert would tell it nothing
                Newcomer(wire, wire, read_hello(receiver(wire), who), who, 0.0).refuse(NO_KEYS)
                raise StrangerError(f"it does not speak TLS: {NO_KEYS}")
            stream = greet(wire, self.identity, calling=False, who=who)
        try:
            hello = read_hello(receiver(stream), who)
        except BaseException:
            stream.forget()
            raise
        wire.deadline_s = None
        newcomer = Newcomer(stream, wire, hello, who, time.monotonic())
        if isinstance(stream, TlsStream):
            try:
                name = peer_region(stream, who)
                if name != hello.text:
                    raise StrangerError(f"it says it is region {hello.text!r}, its certificate is that of {name!r}")
            except StrangerError as error:
                newcomer.refuse(str(error))
                raise
        return newcomer

    def _admit(self, newcomer: Newcomer) -> None:
        hello = newcomer.hello
        if hello.federation != self.federation:
            reason = (
                f"federation {hello.federation.hex()} is not ours, {self.federation.hex()}; all ranks need the same members.json"
            )
            self._refuse(newcomer, reason)
            return
        with self._lock:
            key = (hello.generation, hello.rail)
            take, over = self._claims.get(key), hello.generation < self._generation
            parked = take is None and not over and not self._closed
            if parked and sum(map(len, self._parked.values())) < PARKED_MAX:
                self._parked.setdefault(key, []).append(newcomer)
                return
        if take is not None:
            self._offer(newcomer, take)
        else:
            self._refuse(newcomer, self._over(hello) if over else "too many callers wait here, or the door is closing")

    def _over(self, hello: Hello) -> str:
        return f"generation {hello.generation} is over, {self._generation} has begun"

    def _offer(self, newcomer: Newcomer, take: Callable[[Newcomer], str]) -> None:
        try:
            reason = take(newcomer)
        except OSError as error:  # it left meanwhile, and will call again
            newcomer.leave()
            self._log(newcomer.who, str(error))
            return
        if reason:
            self._refuse(newcomer, reason)

    def _refuse(self, newcomer: Newcomer, reason: str) -> None:
        newcomer.refuse(reason)
        self._log(newcomer.who, reason)

    def _expire(self) -> None:
        old_s = time.monotonic() - PARK_S
        with self._lock:
            gone: list[Newcomer] = []
            for key, newcomers in list(self._parked.items()):
                gone += [one for one in newcomers if one.at_s < old_s or not one.wire.alive()]
                self._parked[key] = [one for one in newcomers if one not in gone]
                if not self._parked[key]:
                    del self._parked[key]
        for newcomer in gone:
            newcomer.leave()

    def _log(self, who: str, reason: str) -> None:
        """One line a host and kind of refusal in `LOG_S`."""
        said = reason if reason.startswith(who) else f"{who}: {reason}"
        kind = (who.rpartition(":")[0], _NUMBERS.sub("#", reason.replace(who, "")))
        now_s = time.monotonic()
        with self._lock:
            self.refusals.append(said)
            if now_s < self._logged.get(kind, -LOG_S) + LOG_S:
                return
            if len(self._logged) >= 256:
                self._logged.clear()
            self._logged[kind] = now_s
        print(f"isthmus: rail at {self.address} refused {said}", file=sys.stderr, flush=True)


def _part(sock: socket.socket) -> None:
    """Close so that what we said last arrives: with bytes unread the kernel would reset the connection and drop it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(0.5)
        for _ in range(64):
            if not sock.recv(4096):
                break
    sock.close()


def receiver(stream: PlainStream | TlsStream) -> Callable[[int], bytes]:
    """`stream.receive` as `read_hello` takes it."""

    def receive(size: int) -> bytes:
        into = memoryview(bytearray(size))
        return bytes(into[: stream.receive(into)])

    return receive


def demand_keys(addresses: list[str], identity: Identity | None, insecure: bool) -> None:
    """Plain TCP carries a model only where nobody else can listen, or where the user says so.

    Raises:
        InputError: Neither keys nor `insecure`, and an address beyond this machine.
    """
    if identity is not None or insecure:
        return
    for address in addresses:
        host, _ = split_address(address)
        if not (host in {"localhost", "::1"} or host.startswith("127.")):
            raise InputError(
                "ISTHMUS_KEYS",
                f"is not set, and {address} is not on the loopback interface: rails would cross the WAN in the clear",
                "make keys with `isthmus keys REGION... -o keys/` and set ISTHMUS_KEYS, or set ISTHMUS_INSECURE=1",
            )
