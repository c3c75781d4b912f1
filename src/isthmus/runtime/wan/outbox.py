"""What waits to be sent to one peer, what is under way, and what the peer has acknowledged.

A chunk that a stream has taken stays in that stream's `in_flight` until the peer acknowledges it; when the stream breaks they
go again, first of all, on the other streams. So a message's buffer must stay as it is until its ticket is done, or until
`Ticket.release` has copied what is under way.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

from isthmus.runtime.wan.frames import CorruptFrameError, RailError
from isthmus.runtime.wan.ticket import Ticket

__all__ = ["Chunk", "Outbox", "Outgoing", "Slot"]

WAKE_BYTES: Final = 1 << 14  # a message wakes one idle stream for each so many bytes
RESENDS_MAX: Final = 32  # a stream that breaks for other reasons takes sound chunks with it


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message: its bytes from `taken` on no stream has taken yet, `chunks` are under way.

    `busy` of them are being handed to a kernel, `loose` are that or wait to be sent again; `handed` once the kernel had it all.
    """

    tag: int
    view: memoryview
    ticket: Ticket
    serial: int = 0
    taken: int = 0
    busy: int = 0
    loose: int = 0
    chunks: "set[Chunk]" = field(default_factory=set)
    handed: bool = False


@dataclass(slots=True, eq=False)
class Chunk:
    """A piece of a message that a stream carries; `resends` times it was sent before."""

    message: Outgoing
    offset: int
    view: memoryview
    busy: bool = True
    resends: int = 0


class Slot:
    """The outbox's side of one stream; guarded by the outbox's lock."""

    def __init__(self, lock: threading.Lock) -> None:
        self.ready = threading.Condition(lock)
        self.in_flight: deque[Chunk] = deque()
        self.taken = self.acknowledged = 0
        self.idle = self.poked = self.dead = False


End = Literal["end"]


class Outbox:
    """Messages to one peer. Flows take turns chunk by chunk; the messages of one flow go in order."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self.lock = threading.Lock()
        self._settled = threading.Condition(self.lock)
        self._slots: list[Slot] = []
        self._untaken_bytes = self._serials = 0
        self._flows: dict[int, deque[Outgoing]] = {}
        self._turns: deque[int] = deque()
        self._again: deque[Chunk] = deque()
        self._open: set[Outgoing] = set()
        self._broken: set[Outgoing] = set()  # failed, but a thread still reads the buffer
        self._unhanded = 0
        self._closing = False
        self._error: Exception | None = None
        self.chunks_resent = 0
        self.moved_at_s = time.monotonic()
        self.busy_s = 0.0
        self._busy_since_s = 0.0

    def join(self) -> Slot:
        """A new stream's slot."""
        with self.lock:
            slot = Slot(self.lock)
            self._slots.append(slot)
            return slot

    def put(self, flow: int, message: Outgoing) -> None:
        """Queue a message; it fails at once where the link is broken or closing."""
        with self.lock:
            if self._error is not None:
                message.ticket.finish(self._error)
                raise self._error
            if self._closing:
                raise RailError(f"{message.ticket.what}: the rail is closed")
            if not self._unhanded:
                self._busy_since_s = time.monotonic()
            self._serials += 1
            message.serial = self._serials
            message.ticket.free = lambda patience_s: self._release(message, patience_s)
            self._unhanded += 1
            self._open.add(message)
            queue = self._flows.setdefault(flow, deque())
            queue.append(message)
            if len(queue) == 1:
                self._turns.append(flow)
            self._untaken_bytes += message.view.nbytes
            self._wake(max(1, message.view.nbytes // WAKE_BYTES))

    def take(self, slot: Slot, sizes: tuple[int, int], patience_s: float) -> Chunk | End | None:
        """The next chunk to send on that stream.

        None: no chunk, but the stream was poked or has been idle for `patience_s`. "end": nothing more will be sent on it.
        Chunks are of `sizes[0]` bytes, and smaller towards the end of what waits, so that all streams finish together, but no
        smaller than `sizes[1]`, which the stream carries in no time.
        """
        until_s = time.monotonic() + patience_s
        with self.lock:
            while not (self._again or self._turns):
                if slot.dead or self._error is not None or (self._closing and not self._open):
                    return "end"
                left_s = until_s - time.monotonic()
                if slot.poked or left_s <= 0:
                    slot.poked = False
                    return None
                slot.idle = True
                slot.ready.wait(left_s)
                slot.idle = False
            if slot.dead:
                self._wake(1)
                return "end"
            chunk = self._again.popleft() if self._again else self._next(*sizes)
            chunk.busy = True
            chunk.message.busy += 1
            slot.in_flight.append(chunk)
            slot.taken += 1
            slot.poked = False
            return chunk

    def _next(self, chunk_bytes: int, piece_bytes: int) -> Chunk:
        flow = self._turns.popleft()
        queue = self._flows[flow]
        message, offset = queue[0], queue[0].taken
        size = min(chunk_bytes, max(self._untaken_bytes // (2 * self._streams) & -4096, piece_bytes))
        chunk = Chunk(message, offset, message.view[offset : offset + size])
        message.taken += chunk.view.nbytes
        message.loose += 1
        message.chunks.add(chunk)
        self._untaken_bytes -= chunk.view.nbytes
        if message.taken == message.view.nbytes:
            queue.popleft()
        if queue:
            self._turns.append(flow)
        else:
            del self._flows[flow]
        return chunk

    def handed(self, chunk: Chunk) -> None:
        """The kernel holds the whole chunk."""
        with self.lock:
            self.moved_at_s = time.monotonic()
            self._idle(chunk)
            chunk.message.loose -= 1
            self._check_handed(chunk.message)

    def _idle(self, chunk: Chunk) -> None:
        message = chunk.message
        chunk.busy = False
        message.busy -= 1
        if message in self._broken and not message.busy:
            self._broken.remove(message)
            message.ticket.finish(self._error)

    def _check_handed(self, message: Outgoing) -> None:
        if message.taken == message.view.nbytes and not message.loose:
            self._settled.notify_all()
            if not message.handed and self._unhanded:
                message.handed = True
                self._unhanded -= 1
                if not self._unhanded:
                    self.busy_s += time.monotonic() - self._busy_since_s

    def acknowledge(self, slot: Slot, frames: int, link: str) -> None:
        """The peer has the first `frames` chunks of that stream.

        Raises:
            CorruptFrameError: So many were never sent, or fewer than it had before.
        """
        finished: list[Outgoing] = []
        with self.lock:
            if not slot.acknowledged <= frames <= slot.taken:
                raise CorruptFrameError(
                    f"{link}: the peer acknowledges {frames} chunks, {slot.taken} were sent and {slot.acknowledged} "
                    "acknowledged"
                )
            self.moved_at_s = time.monotonic()
            while slot.acknowledged < frames and slot.in_flight:
                slot.acknowledged += 1
                chunk = slot.in_flight.popleft()
                message = chunk.message
                message.chunks.discard(chunk)
                message.ticket.left_bytes -= chunk.view.nbytes
                if not message.chunks and message.taken == message.view.nbytes and message in self._open:
                    self._open.remove(message)
                    finished.append(message)
            if self._closing and not self._open:
                self._wake_all()
        for message in finished:
            message.ticket.finish()

    def lost(self, slot: Slot) -> None:
        """The stream is gone and its sender has ended: what the peer did not acknowledge goes again."""
        with self.lock:
            if slot in self._slots:
                self._slots.remove(slot)
            slot.dead = True
            worn: Chunk | None = None
            for chunk in reversed(slot.in_flight):
                if chunk.busy:
                    self._idle(chunk)
                else:
                    chunk.message.loose += 1
                if self._error is None and chunk.message in self._open:
                    chunk.resends += 1
                    self.chunks_resent += 1
                    self._again.appendleft(chunk)
                    worn = chunk if chunk.resends > RESENDS_MAX else worn
            slot.in_flight.clear()
            self._wake_all()
        if worn is not None:
            raise CorruptFrameError(
                f"{worn.message.ticket.what}: bytes {worn.offset}+{worn.view.nbytes} broke {worn.resends} streams"
            )

    def poke(self, slot: Slot) -> None:
        """Let that stream's `take` return, for an acknowledgement."""
        with self.lock:
            slot.poked = True
            if slot.idle:
                slot.ready.notify()

    def kill(self, slot: Slot) -> None:
        """Let that stream's `take` end."""
        with self.lock:
            slot.dead = True
            slot.ready.notify()

    def busy_so_far_s(self) -> float:
        """Time with something to send, up to now."""
        with self.lock:
            return self.busy_s + (time.monotonic() - self._busy_since_s if self._unhanded else 0.0)

    def pending(self) -> list[Ticket]:
        """Tickets of messages not yet acknowledged."""
        with self.lock:
            return [message.ticket for message in self._open]

    def close(self) -> None:
        """Let the sender threads end once all is acknowledged."""
        with self.lock:
            self._closing = True
            self._wake_all()

    def fail(self, error: Exception) -> None:
        """Give up all that waits. A ticket is done once no thread reads its buffer any more."""
        with self.lock:
            self._error = self._error or error
            self._turns.clear()
            self._flows.clear()
            self._again.clear()
            if self._unhanded:
                self.busy_s += time.monotonic() - self._busy_since_s
                self._unhanded = 0
            broken = [message for message in self._open if not message.busy]
            self._broken |= {message for message in self._open if message.busy}
            self._open.clear()
            self._settled.notify_all()
            self._wake_all()
        for message in broken:
            message.ticket.finish(error)

    def _release(self, message: Outgoing, patience_s: float) -> bool:
        """Whether the buffer of `message` is free within `patience_s`; what is under way is copied."""
        ticket, until_s = message.ticket, time.monotonic() + patience_s
        with self.lock:
            while not ticket.done:
                if message.taken == message.view.nbytes and not message.loose:
                    for chunk in message.chunks:
                        chunk.view = memoryview(bytes(chunk.view))
                    return True
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._settled.wait(left_s)
            return True

    def _wake(self, count: int) -> None:
        for slot in self._slots:
            if slot.idle and count > 0:
                slot.idle = False
                slot.ready.notify()
                count -= 1

    def _wake_all(self) -> None:
        for slot in self._slots:
            slot.ready.notify()
