"""One link: this rank's streams to the same rail of one other region, and what keeps them open.

A lost stream is opened again in the background while the others carry what it had not delivered. The link fails when nothing
was heard on any stream for `detect_s`, when nobody listens at the peer's address any more, when the peer was started again,
or when it is told to; everything that waits on it then gets the error.
"""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from isthmus.runtime.wan.door import Newcomer
from isthmus.runtime.wan.frames import Hello, PeerLostError, RailError, StrangerError, pack_hello
from isthmus.runtime.wan.inbox import Inbox
from isthmus.runtime.wan.lane import Counts, Lane
from isthmus.runtime.wan.opening import Call, Opening
from isthmus.runtime.wan.outbox import Outbox
from isthmus.runtime.wan.streams import Kernel, PlainStream
from isthmus.runtime.wan.tls import TlsStream

__all__ = ["Link", "LinkOptions"]

REFUSALS_MAX: Final = 2
PROBE_S: Final = 0.1
GOODBYE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """See `rail.RailOptions`."""

    heartbeat_s: float
    detect_s: float
    chunk_bytes_max: int
    early_bytes_max: int


class Link:
    """Streams to region `peer`; `opening` says who we are."""

    def __init__(self, opening: Opening, peer: int, options: LinkOptions) -> None:
        self.name = f"rail {opening.name(opening.region)} to {opening.name(peer)}"
        self.peer, self.heartbeat_s, self.chunk_bytes_max = peer, options.heartbeat_s, options.chunk_bytes_max
        self._opening, self._options = opening, options
        streams = opening.streams
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.outbox = Outbox(streams)
        self.inbox = Inbox(self.name, options.early_bytes_max)
        self.sent = [Counts() for _ in range(streams)]
        self.received = [Counts() for _ in range(streams)]
        self.streams_lost = 0
        self.agreed_rtt_s = 0.0
        self._stated_rtt_us: int | None = None
        self.error: RailError | None = None
        self.lanes: list[Lane | None] = [None] * streams
        self._gone: list[Lane] = []
        self._calls: dict[int, Call] = {}
        self._helpers: set[threading.Thread] = set()
        self._peer_instance: int | None = None
        self._opened = self._closing = self._peer_ended = False
        self._heard_s = self._logged_s = 0.0
        self._last: list[Kernel] = []
        self._lost_kernel, self._lost_busy_s = 0, 0.0
        self._last_error: RailError | None = None
        self._silence_from_s = time.monotonic()

    @property
    def calls(self) -> bool:
        """Whether this end connects."""
        return self.peer < self._opening.region

    def call(self, deadline_s: float) -> None:
        """Begin to open every stream that is missing, where this end connects."""
        if self.calls:
            for number in range(len(self.lanes)):
                self._call(number, deadline_s)

    def missing(self) -> list[int]:
        """Numbers of the streams that are not open."""
        with self.lock:
            return [number for number, lane in enumerate(self.lanes) if lane is None]

    def trouble(self) -> str:
        """What goes wrong with the calls that are being made, for messages; "" where nothing does."""
        with self.lock:
            found = next((str(call.last) for call in self._calls.values() if call.last is not None), "")
        return f"; {found}" if found else ""

    def settle(self) -> bool:
        """The rail is open from here on, if all streams are: a peer that starts again is a lost one now."""
        with self.lock:
            self._opened = self._opened or (self.error is None and all(self.lanes))
            self._silence_from_s = time.monotonic()
            opened = self._opened
        if opened:
            self._fit_buffers()
        return opened

    def take(self, newcomer: Newcomer) -> str:
        """A stream that came to our door: why we refuse it, or "" when it is ours now."""
        opening, hello = self._opening, newcomer.hello
        if not newcomer.wire.alive():
            raise ConnectionResetError(f"{newcomer.who} left before it was answered")
        opening.prepare(newcomer.wire, self.peer)
        return self._install(hello, hello.stream, newcomer.stream, opening.hello(self.peer, hello.stream, hello.rtt_us))

    def _install(self, hello: Hello, number: int, stream: PlainStream | TlsStream, answer: Hello | None) -> str:
        with self.lock:
            if self.error is not None or self._closing:
                return "the rail is closed"
            restarted = self._peer_instance != hello.instance
            if not (restarted and self._opened):
                if restarted:
                    self._forget(hello.instance)
                # One step: nothing may go out on a stream before its answer, and a stream without an answer is none. The few
                # bytes fit a fresh socket's buffer, so this does not wait.
                if answer is not None:
                    stream.send((pack_hello(answer),))
                self.agreed_rtt_s = hello.rtt_us * 1e-6
                self._retire([self.lanes[number]])
                lane = self.lanes[number] = Lane(self, number, stream)
                lane.start()
                self.changed.notify_all()
                return ""
        self.fail(PeerLostError(f"{self.name}: the peer was started again and has lost what it had"))
        return "this rail was open with an earlier start of yours"

    def _forget(self, instance: int) -> None:
        """While the rail is being opened: the peer was started again, what its earlier start sent is void. Needs the lock."""
        self._retire(self.lanes)
        self.lanes[:] = [None] * len(self.lanes)
        self.inbox = Inbox(self.name, self._options.early_bytes_max)
        self._peer_instance = instance

    def _retire(self, lanes: Sequence[Lane | None]) -> None:
        self._gone = [lane for lane in self._gone if lane.busy()]
        for lane in lanes:
            if lane is not None:
                self._gone.append(lane)
                lane.stop()

    def lose(self, lane: Lane, error: RailError) -> None:
        """A stream is broken: the others carry on, and it is opened again."""
        with self.lock:
            if lane.dead:
                return
            lane.dead = True
            self._heard_s = max(self._heard_s, lane.stream.heard_at_s)
            over = self._closing or self._peer_ended or self.error is not None
            if self.lanes[lane.number] is lane:
                self.lanes[lane.number] = None
                self._gone.append(lane)
            empty = not any(self.lanes)
            self._last_error = error
            self._keep_kernel(lane)
            if self._opened and not over:
                self.streams_lost += 1
        lane.stop()
        if over:
            if empty and not self._closing:
                self.fail(PeerLostError(f"{self.name}: the peer has closed the link"))
            return
        if self._opened:
            self._say(f"isthmus: {error}; its chunks go again, and it is opened anew")
        if self.calls:
            self._call(lane.number, time.monotonic() + (1e9 if self._opened else self._opening.timeout_s))
        elif empty and self._opened:
            self._help(self._probe, f"{self.name} probe")

    def hear_goodbye(self) -> None:
        """The peer has nothing more to send; and takes nothing more, once it has said so on every stream."""
        with self.lock:
            self._peer_ended = True
            last = all(lane is None or lane.ended for lane in self.lanes)
        self.inbox.end()
        if last:
            self.outbox.fail(PeerLostError(f"{self.name}: the peer has closed the link"))

    def fail(self, error: RailError) -> None:
        """Break the link: everything that waits on it gets `error`; the first error stays."""
        with self.lock:
            if self.error is not None:
                return
            self.error = error
            lanes = [lane for lane in self.lanes if lane]
            calls = list(self._calls.values())
            for lane in lanes:
                self._keep_kernel(lane)
            self._gone += lanes
            self.lanes[:] = [None] * len(self.lanes)
            self.changed.notify_all()
        for call in calls:
            call.cancel()
        for lane in lanes:
            lane.stop()
        self.outbox.fail(error)
        self.inbox.fail(error)

    def watch(self, now_s: float) -> None:
        """Look for silence; called a few times a heartbeat."""
        limit_s = self._options.detect_s
        with self.lock:
            if not self._opened or self._closing or self._peer_ended or self.error is not None:
                return
            lanes = [lane for lane in self.lanes if lane]
            if any(lane.held for lane in lanes):
                self._silence_from_s = now_s
            heard_s = max([self._silence_from_s, self._heard_s, *(lane.stream.heard_at_s for lane in lanes)])
            quiet = [
                lane
                for lane in lanes
                if not lane.held and now_s > max(self._silence_from_s, lane.stream.heard_at_s) + limit_s
            ]
        if now_s > heard_s + limit_s:
            why = "" if lanes else f" and no stream is left ({self._last_error})"
            self.fail(PeerLostError(f"{self.name}: nothing was heard for {limit_s:g} s{why}"))
            return
        for lane in quiet:
            self.lose(lane, PeerLostError(f"{lane.name} was silent for {limit_s:g} s while others were heard"))

    def forgive(self, now_s: float) -> None:
        """This process stood still itself: silence counts from now."""
        with self.lock:
            self._silence_from_s = now_s

    def close(self, deadline_s: float) -> None:
        """Wait until the peer has all (at most until `deadline_s`), say goodbye, hear its goodbye, end."""
        lanes = [lane for lane in self.lanes if lane]
        for lane in lanes:
            lane.join(deadline_s, receiver=False)
        while self.error is None and self.outbox.pending() and time.monotonic() < deadline_s:
            time.sleep(0.01)  # a stream was lost meanwhile, another will carry the rest
        with self.lock:
            self._closing = True
        for lane in lanes:
            lane.join(min(deadline_s, time.monotonic() + GOODBYE_S), sender=False)
        self.fail(RailError(f"{self.name} is closed"))
        self.join(time.monotonic() + 2.0)

    def join(self, deadline_s: float) -> None:
        """Wait for all threads of a link that has failed."""
        with self.lock:
            lanes, helpers = list(self._gone), list(self._helpers)
        for lane in lanes:
            lane.join(deadline_s)
        for thread in helpers:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _call(self, number: int, deadline_s: float) -> None:
        with self.lock:
            if self.error is not None or self._closing or number in self._calls or self.lanes[number] is not None:
                return
            call = self._calls[number] = Call(self._opening, self.peer, number, self._state_rtt_us)
        self._help(lambda: self._connect(number, call, deadline_s), f"{self.name} call {number}")

    def _state_rtt_us(self, found: int) -> int:
        """What the first stream found: all streams state the same, however often they are opened."""
        with self.lock:
            self._stated_rtt_us = found if self._stated_rtt_us is None else self._stated_rtt_us
            return self._stated_rtt_us

    def _connect(self, number: int, call: Call, deadline_s: float) -> None:
        try:
            stream, answer = call.connect(deadline_s, lambda refusals: self._refused(refusals, call.who))
        except (PeerLostError, StrangerError) as error:
            self.fail(error)
            return
        finally:
            with self.lock:
                self._calls.pop(number, None)
        reason = self._install(answer, number, stream, None)
        if reason:
            stream.close()
            stream.release()

    def _refused(self, refusals: int, who: str) -> None:
        with self.lock:
            gone = self._opened and refusals >= REFUSALS_MAX and not any(self.lanes) and not self._closing
        if gone:
            self.fail(PeerLostError(f"{self.name}: nobody listens at {who} any more ({self._last_error})"))

    def _probe(self) -> None:
        """The peer connects, we cannot: but its door must be open as long as it lives."""
        address = self._opening.address(self.peer)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        refusals = 0
        while self.error is None and not self._closing and not any(self.lanes):
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.settimeout(0.5)
                try:
                    sock.connect(address)
                    refusals = 0
                except ConnectionRefusedError:
                    refusals += 1
                    self._refused(refusals, f"{self._opening.name(self.peer)} at {address[0]}:{address[1]}")
                except OSError:
                    refusals = 0
            time.sleep(PROBE_S)

    def _help(self, work: Callable[[], None], name: str) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # our bug; it must still not leave anybody waiting
                self.fail(RailError(f"{name} failed: {error!r}"))
                raise
            finally:
                with self.lock:
                    self._helpers.discard(thread)

        thread = threading.Thread(target=run, daemon=True, name=name)
        with self.lock:
            self._helpers.add(thread)
        thread.start()

    def _say(self, line: str) -> None:
        now_s = time.monotonic()
        if now_s > self._logged_s + 60.0 or not self._logged_s:
            self._logged_s = now_s
            print(line, file=sys.stderr, flush=True)

    def sending_s(self) -> float:
        """When something last moved out."""
        return max([self.outbox.moved_at_s, *(lane.sent_s() for lane in self.lanes if lane)])

    def hearing_s(self) -> float:
        """When something last came in."""
        return max([self.inbox.moved_at_s, *(lane.filled_s() for lane in self.lanes if lane)])

    def _keep_kernel(self, lane: Lane) -> None:
        with contextlib.suppress(OSError):
            kernel = lane.stream.kernel()
            self._lost_kernel += kernel.retransmits
            self._lost_busy_s = max(self._lost_busy_s, kernel.busy_s)
            self._last = self._last or [kernel]

    def kernels(self) -> tuple[list[Kernel], int]:
        """The kernel's figures of the open streams (the last ones, where none is), and retransmits of those before them."""
        with self.lock:
            lanes, lost = [lane for lane in self.lanes if lane], self._lost_kernel
        found: list[Kernel] = []
        for lane in lanes:
            with contextlib.suppress(OSError):
                found.append(lane.stream.kernel())
        self._last = found or self._last
        return self._last, lost

    def busy_s(self) -> float:
        """Time with something to send, or sent and not acknowledged. A kernel's buffer can hold a whole message, so what the
        sender's threads see alone would be far too little; of several streams, which work at the same time, the busiest."""
        kernel = max((stream.busy_s for stream in self.kernels()[0]), default=0.0)
        return max(self.outbox.busy_so_far_s(), kernel, self._lost_busy_s)

    def window_bytes(self) -> float | None:
        """What one stream must keep in flight to fill its share of the link; None where its rate is not known."""
        rate, kernels = self._opening.paces_bytes_per_s.get(self.peer), self.kernels()[0]
        return None if rate is None or not kernels else rate * min(kernel.rtt_s_min for kernel in kernels)

    def _fit_buffers(self) -> None:
        window = self.window_bytes()
        if window is not None:
            for lane in self.lanes:
                if lane is not None:
                    with contextlib.suppress(OSError):
                        lane.stream.fit_buffers(window)
