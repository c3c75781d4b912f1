"""One link: this rank's streams to the same rail of one other region, with what waits to be sent and to be received."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field

from isthmus.runtime.wan.frames import CorruptFrameError, Frame, PeerLostError, RailError

__all__ = ["Inbox", "Outbox", "Ticket"]

PIECE_BYTES = 1 << 14


class Ticket:
    """One message on its way out or in; `wait` returns when its buffer may be used again, or holds the message."""

    def __init__(self, what: str, size: int, silence: "Silence") -> None:
        self.what, self.size = what, size
        self.left_bytes = size
        self._silence = silence
        self._event = threading.Event()
        self._error: Exception | None = None
        self._started_s = time.monotonic()

    @property
    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the whole message went out (or came in).

        Raises:
            PeerLostError: Nothing moved on this link for the rail's time-out, `timeout_s` passed, or the peer went away.
            CorruptFrameError: The link broke over a corrupt frame.
        """
        started_s = time.monotonic()
        while not self._event.wait(self._patience_s(started_s, timeout_s)):
            now_s = time.monotonic()
            if timeout_s is not None and now_s >= started_s + timeout_s:
                raise PeerLostError(
                    f"{self.what}: {self.left_bytes} of {self.size} bytes missing after {timeout_s:g} s"
                )
            if now_s >= self._silent_until_s():
                raise PeerLostError(
                    f"{self.what}: the link was silent for {self._silence.timeout_s:g} s with {self.left_bytes} "
                    f"of {self.size} bytes missing"
                )
        if self._error is not None:
            raise self._error

    def finish(self, error: Exception | None = None) -> None:
        """Release the waiters; an error stays."""
        self._error = self._error or error
        self._event.set()

    def _silent_until_s(self) -> float:
        return max(self._started_s, self._silence.last_s()) + self._silence.timeout_s

    def _patience_s(self, started_s: float, timeout_s: float | None) -> float:
        until_s = self._silent_until_s()
        if timeout_s is not None:
            until_s = min(until_s, started_s + timeout_s)
        return max(0.0, until_s - time.monotonic())


class Silence:
    """When a link last moved, in one direction; `stamps` are objects and the attribute that holds a monotonic time."""

    def __init__(self, timeout_s: float, streams: list, attribute: str) -> None:
        self.timeout_s, self._streams, self._attribute = timeout_s, streams, attribute

    def last_s(self) -> float:
        """The latest stamp of all streams."""
        return max(getattr(stream, self._attribute) for stream in self._streams)


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message whose bytes from `taken` on no stream has taken yet."""

    tag: int
    view: memoryview
    ticket: Ticket
    taken: int = 0


class Outbox:
    """Messages to one peer. Flows take turns chunk by chunk; the messages of one flow go in order."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._untaken_bytes = 0
        self._flows: dict[int, deque[Outgoing]] = {}
        self._turns: deque[int] = deque()
        self._ready = threading.Condition()
        self._open: set[Outgoing] = set()
        self._closing = False
        self._error: Exception | None = None
        self.busy_s = 0.0
        self._busy_since_s = 0.0

    def put(self, flow: int, message: Outgoing) -> None:
        """Queue a message; it fails at once where the link is broken or closing."""
        with self._ready:
            if self._error is not None:
                message.ticket.finish(self._error)
                raise self._error
            if self._closing:
                raise RailError(f"{message.ticket.what}: the rail is closed")
            if not self._open:
                self._busy_since_s = time.monotonic()
            self._open.add(message)
            queue = self._flows.setdefault(flow, deque())
            queue.append(message)
            if len(queue) == 1:
                self._turns.append(flow)
            self._untaken_bytes += message.view.nbytes
            self._ready.notify(max(1, min(self._streams, message.view.nbytes // PIECE_BYTES)))

    def take(self, chunk_bytes: int) -> tuple[Outgoing, int, memoryview] | None:
        """The next chunk to send, when there is one: message, offset, bytes. None when all is sent and the rail closes.

        Chunks are of `chunk_bytes`, and smaller towards the end of what waits, so that all streams finish together.
        """
        with self._ready:
            while not self._turns:
                if self._error is not None or (self._closing and not self._open):
                    return None
                self._ready.wait()
            flow = self._turns.popleft()
            queue = self._flows[flow]
            message, offset = queue[0], queue[0].taken
            size = min(chunk_bytes, max(self._untaken_bytes // (2 * self._streams) & -4096, PIECE_BYTES))
            chunk = message.view[offset : offset + size]
            message.taken += chunk.nbytes
            self._untaken_bytes -= chunk.nbytes
            if message.taken == message.view.nbytes:
                queue.popleft()
            if queue:
                self._turns.append(flow)
            else:
                del self._flows[flow]
            return message, offset, chunk

    def sent(self, message: Outgoing, size: int) -> None:
        """A stream has handed `size` bytes of `message` to the kernel."""
        with self._ready:
            message.ticket.left_bytes -= size
            if message.ticket.left_bytes or message.taken < message.view.nbytes or message not in self._open:
                return
            self._open.remove(message)
            if not self._open:
                self.busy_s += time.monotonic() - self._busy_since_s
                if self._closing:
                    self._ready.notify_all()
        message.ticket.finish()

    def busy_so_far_s(self) -> float:
        """Time with something to send, up to now."""
        with self._ready:
            return self.busy_s + (time.monotonic() - self._busy_since_s if self._open else 0.0)

    def pending(self) -> list[Ticket]:
        """Tickets of messages not yet wholly sent."""
        with self._ready:
            return [message.ticket for message in self._open]

    def close(self) -> None:
        """Let the sender threads end once all is sent."""
        with self._ready:
            self._closing = True
            self._ready.notify_all()

    def fail(self, error: Exception) -> None:
        """Give up all that waits."""
        with self._ready:
            self._error = self._error or error
            self._turns.clear()
            self._flows.clear()
            broken, self._open = list(self._open), set()
            self._ready.notify_all()
        for message in broken:
            message.ticket.finish(error)


@dataclass(slots=True, eq=False)
class _Early:
    """A chunk that came before its message was asked for."""

    offset: int
    data: memoryview


@dataclass(slots=True, eq=False)
class _Posted:
    view: memoryview
    ticket: Ticket


@dataclass(slots=True, eq=False)
class Landing:
    """Where one frame's bytes go; `early` when nobody asked for its message yet."""

    view: memoryview
    early: bool


@dataclass(slots=True)
class _Waiting:
    total: int
    chunks: list[_Early] = field(default_factory=list)


class Inbox:
    """Messages from one peer, matched by tag in any order.

    Chunks of messages that nobody asked for yet are kept, up to `early_bytes_max`; beyond it their stream is not read on, so
    that TCP holds the sender back.
    """

    def __init__(self, name: str, early_bytes_max: int) -> None:
        self._name, self._early_bytes_max = name, early_bytes_max
        self._posted: dict[int, _Posted] = {}
        self._early: dict[int, _Waiting] = {}
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._ended = False
        self.early_bytes = self.early_bytes_peak = 0
        self.held_s = 0.0

    def post(self, tag: int, view: memoryview, ticket: Ticket) -> None:
        """Ask for a message; chunks that are here already are copied into `view`."""
        with self._changed:
            if self._error is not None and tag not in self._early:
                ticket.finish(self._error)
                raise self._error
            if tag in self._posted:
                raise ValueError(f"{self._name}: tag {tag:#x} is already being received")
            posted = _Posted(view, ticket)
            waiting = self._early.pop(tag, None)
            if waiting is None:
                if self._ended:
                    raise PeerLostError(
                        f"{ticket.what}: the peer has closed the link and sent no such message"
                    )
                self._posted[tag] = posted
                self._changed.notify_all()
                return
            self._check_size(tag, waiting.total, posted)
            self._posted[tag] = posted
            for chunk in waiting.chunks:
                self._copy(tag, posted, chunk)
            broken = self._error or (self._closed_early(ticket) if self._ended else None)
            if broken is not None and not ticket.done:
                del self._posted[tag]  # the rest will not come: say so now and not after the time-out
                ticket.finish(broken)
            self._changed.notify_all()

    def place(self, frame: Frame) -> Landing:
        """Where the bytes of `frame` go. Blocks while too much has arrived that nobody asked for."""
        with self._changed:
            while True:
                posted = self._posted.get(frame.tag)
                if posted is not None:
                    self._check_size(frame.tag, frame.total, posted)
                    return Landing(posted.view[frame.offset : frame.offset + frame.length], early=False)
                if self._error is not None:
                    raise self._error
                if self.early_bytes == 0 or self.early_bytes + frame.length <= self._early_bytes_max:
                    break
                before_s = time.monotonic()
                self._changed.wait()
                self.held_s += time.monotonic() - before_s
            self.early_bytes += frame.length
            self.early_bytes_peak = max(self.early_bytes_peak, self.early_bytes)
            return Landing(memoryview(bytearray(frame.length)), early=True)

    def landed(self, frame: Frame, landing: Landing) -> None:
        """The bytes of `frame` are in place and proved."""
        with self._changed:
            posted = self._posted.get(frame.tag)
            if not landing.early:
                if posted is not None:
                    self._account(frame.tag, posted, frame.length)
                return
            chunk = _Early(frame.offset, landing.view)
            if posted is not None:
                self._check_size(frame.tag, frame.total, posted)
                self._copy(frame.tag, posted, chunk)
                self._changed.notify_all()
            else:
                self._early.setdefault(frame.tag, _Waiting(frame.total)).chunks.append(chunk)

    def end(self) -> None:
        """The peer has closed the link in good order: what is still asked for will not come."""
        with self._changed:
            self._ended = True
            broken = list(self._posted.values())
            self._posted.clear()
            self._changed.notify_all()
        for posted in broken:
            posted.ticket.finish(self._closed_early(posted.ticket))

    @staticmethod
    def _closed_early(ticket: Ticket) -> PeerLostError:
        return PeerLostError(f"{ticket.what}: the peer closed the link with {ticket.left_bytes} of {ticket.size} bytes missing")

    def fail(self, error: Exception) -> None:
        """Give up all that is asked for, and wake the readers."""
        with self._changed:
            self._error = self._error or error
            broken = list(self._posted.values())
            self._posted.clear()
            self._changed.notify_all()
        for posted in broken:
            posted.ticket.finish(error)

    def _check_size(self, tag: int, total: int, posted: _Posted) -> None:
        if total != posted.view.nbytes:
            raise CorruptFrameError(
                f"{self._name}: message {tag:#x} has {total} bytes, {posted.view.nbytes} were expected; "
                "the two regions do not run the same program"
            )

    def _copy(self, tag: int, posted: _Posted, chunk: _Early) -> None:
        size = chunk.data.nbytes
        posted.view[chunk.offset : chunk.offset + size] = chunk.data
        self.early_bytes -= size
        self._account(tag, posted, size)

    def _account(self, tag: int, posted: _Posted, size: int) -> None:
        posted.ticket.left_bytes -= size
        if posted.ticket.left_bytes < 0:
            raise CorruptFrameError(
                f"{self._name}: message {tag:#x} came twice, or a tag is used again too early"
            )
        if posted.ticket.left_bytes == 0:
            del self._posted[tag]
            posted.ticket.finish()
