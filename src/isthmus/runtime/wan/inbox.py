"""What comes from one peer: messages matched by tag in any order, every byte landed exactly once.

A chunk may come twice, because its stream broke before the peer knew that it had arrived. Ranges that are here are dropped
when they come again; a range that another stream is still writing goes to spare memory, and that stream, which the sender
has given up, is broken. So nothing is written to a buffer after its ticket is done.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from isthmus.runtime.wan.frames import CorruptFrameError, DisagreementError, Frame, PeerLostError
from isthmus.runtime.wan.ranges import Ranges
from isthmus.runtime.wan.ticket import Ticket

__all__ = ["Inbox", "Landing"]

CHUNK_COST_BYTES: Final = 256  # of the book-keeping of a chunk nobody asked for
Kind = Literal["asked", "early", "spare", "again"]


@dataclass(slots=True, eq=False)
class Landing:
    """Where one frame's bytes go: into the asked-for buffer, or memory of their own (early, spare, or here already)."""

    frame: Frame
    view: memoryview
    kind: Kind
    give_up: Callable[[], None]


@dataclass(slots=True, eq=False)
class _Posted:
    view: memoryview
    ticket: Ticket


@dataclass(slots=True, eq=False)
class _Incoming:
    serial: int
    tag: int
    total: int
    posted: _Posted | None = None
    here: Ranges = field(default_factory=Ranges)
    left_bytes: int = 0
    writing: list[Landing] = field(default_factory=list)
    early: list[Landing] = field(default_factory=list)
    spare: list[Landing] = field(default_factory=list)


class Inbox:
    """Messages from one peer.

    Chunks of messages that nobody asked for yet are kept, up to `early_bytes_max`; beyond it their stream is not read on, so
    that TCP holds the sender back.
    """

    def __init__(self, name: str, early_bytes_max: int) -> None:
        self._name, self._early_bytes_max = name, early_bytes_max
        self._asked: dict[int, _Posted] = {}
        self._incoming: dict[int, _Incoming] = {}
        self._by_tag: dict[int, _Incoming] = {}
        self._done = Ranges()
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._ended = False
        self.moved_at_s = time.monotonic()
        self.early_bytes = self.early_bytes_peak = self.chunks_again = 0
        self.held_s = 0.0

    def post(self, tag: int, view: memoryview, ticket: Ticket) -> None:
        """Ask for a message; chunks that are here already are copied into `view`."""
        with self._changed:
            message = self._by_tag.get(tag)
            if self._error is not None and message is None:
                ticket.finish(self._error)
                raise self._error
            if tag in self._asked or (message is not None and message.posted is not None):
                raise ValueError(f"{self._name}: tag {tag:#x} is already being received")
            posted = _Posted(view, ticket)
            if message is None:
                if self._ended:
                    raise PeerLostError(f"{ticket.what}: the peer has closed the link and sent no such message")
                self._asked[tag] = posted
            else:
                self._bind(message, posted)
            self._changed.notify_all()

    def _bind(self, message: _Incoming, posted: _Posted) -> None:
        self._check_size(message.tag, message.total, posted)
        message.posted = posted
        for landing in message.early:
            self._copy(message, landing)
            self.early_bytes -= landing.frame.length + CHUNK_COST_BYTES
        message.early.clear()
        posted.ticket.left_bytes = message.left_bytes
        self._check_complete(message)
        broken = self._error or (self._closed_early(posted.ticket) if self._ended else None)
        if broken is not None and not posted.ticket.done:
            self._drop(message)  # the rest will not come: say so now and not after the time-out
            posted.ticket.finish(broken)

    def place(self, frame: Frame, give_up: Callable[[], None]) -> Landing:
        """Where the bytes of `frame` go; `give_up` breaks its stream. Blocks while too much came that nobody asked for."""
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                landing = self._landing(frame, give_up)
                if landing is not None:
                    return landing
                before_s = time.monotonic()
                self._changed.wait()
                self.held_s += time.monotonic() - before_s

    def _landing(self, frame: Frame, give_up: Callable[[], None]) -> Landing | None:
        end = frame.offset + frame.length
        if self._done.fit(frame.serial, frame.serial + 1) == "here":
            return self._aside(frame, "again", give_up)
        message = self._message(frame)
        match message.here.fit(frame.offset, end):
            case "here":
                return self._aside(frame, "again", give_up)
            case "partly":
                raise self._overlap(frame)
            case "new":
                pass
        rival = next((one for one in message.writing if one.frame.offset < end and frame.offset < _end(one)), None)
        if rival is not None:
            if (rival.frame.offset, rival.frame.length) != (frame.offset, frame.length):
                raise self._overlap(frame)
            rival.give_up()
            return self._aside(frame, "spare", give_up)
        if message.posted is not None:
            landing = Landing(frame, message.posted.view[frame.offset : end], "asked", give_up)
        else:
            cost = frame.length + CHUNK_COST_BYTES
            if self.early_bytes and self.early_bytes + cost > self._early_bytes_max:
                return None
            self.early_bytes += cost
            self.early_bytes_peak = max(self.early_bytes_peak, self.early_bytes)
            landing = self._aside(frame, "early", give_up)
        message.writing.append(landing)
        return landing

    def _message(self, frame: Frame) -> _Incoming:
        message = self._incoming.get(frame.serial)
        if message is None:
            if frame.tag in self._by_tag:
                raise DisagreementError(f"{self._name}: message {frame.tag:#x} came twice, or its tag is used again too early")
            message = _Incoming(frame.serial, frame.tag, frame.total, left_bytes=frame.total)
            posted = self._asked.get(frame.tag)
            if posted is not None:
                self._check_size(frame.tag, frame.total, posted)
                message.posted = self._asked.pop(frame.tag)
            self._incoming[frame.serial] = self._by_tag[frame.tag] = message
        elif (message.tag, message.total) != (frame.tag, frame.total):
            raise CorruptFrameError(f"{self._name}: frames of message {frame.serial} disagree about its tag or size")
        return message

    @staticmethod
    def _aside(frame: Frame, kind: Kind, give_up: Callable[[], None]) -> Landing:
        return Landing(frame, memoryview(bytearray(frame.length)), kind, give_up)

    def landed(self, landing: Landing) -> None:
        """The bytes of `landing` are in place and proved."""
        with self._changed:
            self.moved_at_s = time.monotonic()
            message = self._incoming.get(landing.frame.serial)
            if message is not None and landing in message.writing:
                message.writing.remove(landing)
            if self._error is not None:
                self._settle(message)
                return
            if message is None or landing.kind == "again":
                self.chunks_again += 1
                return
            rival = _same(message.writing, landing)
            if landing.kind == "spare" and rival is not None:
                message.spare.append(landing)  # its rival is being broken: `abandon` takes this one then
                return
            self._accept(message, landing)

    def _accept(self, message: _Incoming, landing: Landing) -> None:
        frame = landing.frame
        if frame.length and message.here.fit(frame.offset, frame.offset + frame.length) != "new":
            self.chunks_again += 1
            return
        spares = [one for one in message.spare if one.frame.offset == frame.offset]
        for spare in spares:
            message.spare.remove(spare)
        self.chunks_again += len(spares)
        message.here.add(frame.offset, frame.offset + frame.length)
        message.left_bytes -= frame.length
        if message.posted is None:
            if landing.kind == "spare":
                self.early_bytes += frame.length + CHUNK_COST_BYTES
            message.early.append(landing)
            return
        if landing.kind != "asked":
            self._copy(message, landing)
            if landing.kind == "early":
                self.early_bytes -= frame.length + CHUNK_COST_BYTES
                self._changed.notify_all()
        message.posted.ticket.left_bytes = message.left_bytes
        self._check_complete(message)

    def abandon(self, landing: Landing) -> None:
        """The stream of `landing` broke before its bytes were proved."""
        with self._changed:
            message = self._incoming.get(landing.frame.serial)
            if message is None or landing not in message.writing:
                return
            message.writing.remove(landing)
            if landing.kind == "early":
                self.early_bytes -= landing.frame.length + CHUNK_COST_BYTES
                self._changed.notify_all()
            if self._error is not None:
                self._settle(message)
                return
            spare = _same(message.spare, landing)
            if spare is not None:
                message.spare.remove(spare)
                self._accept(message, spare)

    def end(self) -> None:
        """The peer has closed the link in good order: what is still asked for will not come."""
        with self._changed:
            self._ended = True
            broken = list(self._asked.values())
            self._asked.clear()
            for message in list(self._incoming.values()):
                if message.posted is not None:
                    broken.append(message.posted)
                    self._drop(message)
            self._changed.notify_all()
        for posted in broken:
            posted.ticket.finish(self._closed_early(posted.ticket))

    @staticmethod
    def _closed_early(ticket: Ticket) -> PeerLostError:
        return PeerLostError(f"{ticket.what}: the peer closed the link with {ticket.left_bytes} of {ticket.size} bytes missing")

    def fail(self, error: Exception) -> None:
        """Give up all that is asked for, and wake the readers. A ticket is done once no stream writes to its buffer."""
        with self._changed:
            self._error = self._error or error
            broken = list(self._asked.values())
            self._asked.clear()
            for message in list(self._incoming.values()):
                self._settle(message)
            self._changed.notify_all()
        for posted in broken:
            posted.ticket.finish(error)

    def _settle(self, message: _Incoming | None) -> None:
        """After a failure: the message's ticket is done when nobody writes to its buffer."""
        if message is not None and message.posted is not None and not message.writing:
            self._drop(message)
            message.posted.ticket.finish(self._error)

    def _check_size(self, tag: int, total: int, posted: _Posted) -> None:
        if total != posted.view.nbytes:
            raise DisagreementError(
                f"{self._name}: message {tag:#x} has {total} bytes, {posted.view.nbytes} were expected; "
                "the two regions do not run the same program"
            )

    def _overlap(self, frame: Frame) -> CorruptFrameError:
        return CorruptFrameError(
            f"{self._name}: bytes {frame.offset}+{frame.length} of tag {frame.tag:#x} overlap others of the same message"
        )

    @staticmethod
    def _copy(message: _Incoming, landing: Landing) -> None:
        assert message.posted is not None
        message.posted.view[landing.frame.offset : _end(landing)] = landing.view

    def _check_complete(self, message: _Incoming) -> None:
        if message.left_bytes == 0 and message.posted is not None and (message.total or not message.writing):
            self._drop(message)
            self._done.add(message.serial, message.serial + 1)
            message.posted.ticket.finish()

    def _drop(self, message: _Incoming) -> None:
        self._incoming.pop(message.serial, None)
        if self._by_tag.get(message.tag) is message:
            del self._by_tag[message.tag]


def _end(landing: Landing) -> int:
    return landing.frame.offset + landing.frame.length


def _same(landings: list[Landing], landing: Landing) -> Landing | None:
    return next((one for one in landings if one.frame.offset == landing.frame.offset), None)
