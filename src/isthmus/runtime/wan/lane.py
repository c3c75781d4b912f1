"""A lane: one stream of a link at work, with its sender and its receiver thread.

The sender takes chunks from the link's outbox, the receiver lands them in its inbox. Acknowledgements ride with the next chunk
the other way, or go alone when there is none. Whatever breaks a lane breaks nothing else: the link resends and reopens.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isthmus.runtime.wan.frames import (
    ACK,
    BEAT,
    BYE,
    DATA,
    HEADER_BYTES,
    CorruptFrameError,
    Frame,
    PeerLostError,
    RailError,
    chunk_check,
    pack_frame,
    unpack_frame,
)
from isthmus.runtime.wan.inbox import Inbox, Landing
from isthmus.runtime.wan.outbox import Chunk, Outbox
from isthmus.runtime.wan.streams import PlainStream
from isthmus.runtime.wan.tls import TlsStream

if TYPE_CHECKING:
    from isthmus.runtime.wan.link import Link

__all__ = ["Counts", "Lane"]

SEQUENCE_MASK: Final = 0xFFFFFFFF


@dataclass(slots=True)
class Counts:
    """What one stream number carried one way, all its connections together; `control_bytes` are frames without a chunk."""

    payload_bytes: int = 0
    frame_bytes: int = 0
    frames: int = 0
    control_bytes: int = 0

    def add(self, payload: int) -> None:
        """One data frame."""
        self.payload_bytes += payload
        self.frame_bytes += payload + HEADER_BYTES
        self.frames += 1


class Lane:
    """One connection as stream `number` of `link`.

    Attributes:
        ended: The peer said goodbye on it.
        dead: It is broken, or the link is.
        held: Its receiver waits for memory, so silence says nothing about the peer.
    """

    def __init__(self, link: "Link", number: int, stream: PlainStream | TlsStream) -> None:
        self.link, self.number, self.stream = link, number, stream
        self.name = f"{link.name}, stream {number}"
        self._outbox: Outbox = link.outbox
        self._inbox: Inbox = link.inbox
        self._slot = self._outbox.join()
        self._sent, self._received = link.sent[number], link.received[number]
        self._proved_by_tls = isinstance(stream, TlsStream)
        self._out_sequence = self._in_sequence = 0
        self._landed = self._told = 0
        self._carrying = self._filling = False
        self.ended = self.dead = self.held = False
        self._sender = self._thread(self._send, "out")
        self._receiver = self._thread(self._receive, "in")
        self._left = 2

    def start(self) -> None:
        """Let both threads run."""
        self._sender.start()
        self._receiver.start()

    def stop(self) -> None:
        """End the stream both ways, now; the threads follow."""
        self.dead = True
        self.stream.close()
        self._outbox.kill(self._slot)

    def join(self, deadline_s: float, *, sender: bool = True, receiver: bool = True) -> None:
        """Wait for the threads until `deadline_s` (monotonic)."""
        for thread, wanted in ((self._sender, sender), (self._receiver, receiver)):
            if wanted and thread is not threading.current_thread():
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def busy(self) -> bool:
        """Whether one of its threads still runs."""
        return self._left > 0

    def sent_s(self) -> float:
        """When a chunk last moved out, or 0."""
        return self.stream.sent_at_s if self._carrying else 0.0

    def filled_s(self) -> float:
        """When a chunk last grew, or 0."""
        return self.stream.heard_at_s if self._filling else 0.0

    def _thread(self, work: Callable[[], None], way: str) -> threading.Thread:
        return threading.Thread(target=self._guard, args=(work,), daemon=True, name=f"{self.name} {way}")

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (CorruptFrameError, PeerLostError) as error:
            self.link.lose(self, error)
        except RailError as error:
            self.link.fail(error)
        except OSError as error:
            self.link.lose(self, PeerLostError(f"{self.name} broke: {error.strerror or error}"))
        except Exception as error:  # our bug; it must still not leave anybody waiting
            self.link.fail(RailError(f"{self.name} failed: {error!r}"))
            raise
        finally:
            self._leave(work)

    def _leave(self, work: Callable[[], None]) -> None:
        if work == self._send:
            try:
                self._outbox.lost(self._slot)
            except CorruptFrameError as error:
                self.link.fail(error)
        with self.link.lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self.stream.release()

    def _send(self) -> None:
        stream, outbox, link = self.stream, self._outbox, self.link
        while (work := outbox.take(self._slot, (stream.chunk_bytes, stream.piece_bytes), link.heartbeat_s)) != "end":
            parts = self._acknowledgement()
            if work is None:
                if not parts:
                    parts.append(self._signal(BEAT))
                stream.send(parts)
                continue
            parts += (self._header(work), work.view)
            self._carrying = True
            self._sent.add(work.view.nbytes)  # before: the peer's word that it has all may come while this thread still returns
            stream.send(parts)
            self._carrying = False
            outbox.handed(work)
            stream.tune(link.chunk_bytes_max)
            if self._proved_by_tls and stream.worn:  # type: ignore[union-attr]
                link.lose(self, PeerLostError(f"{self.name}: its keys have sealed enough, it is opened anew"))
        if not self.dead:
            stream.send([*self._acknowledgement(), self._signal(BYE)])
            stream.end()

    def _acknowledgement(self) -> list[memoryview | bytes]:
        landed = self._landed
        if landed == self._told:
            return []
        self._told = landed
        return [self._signal(ACK, landed)]

    def _signal(self, kind: int, received: int = 0) -> bytes:
        self._sent.control_bytes += HEADER_BYTES
        return pack_frame(Frame(kind, self._next(), 0, 0, received, 0, 0, 0))

    def _header(self, chunk: Chunk) -> bytes:
        message, view = chunk.message, chunk.view
        check = 0 if self._proved_by_tls else chunk_check(view)
        size = message.view.nbytes
        return pack_frame(Frame(DATA, self._next(), message.serial, message.tag, size, chunk.offset, view.nbytes, check))

    def _next(self) -> int:
        sequence = self._out_sequence
        self._out_sequence = (sequence + 1) & SEQUENCE_MASK
        return sequence

    def _receive(self) -> None:
        stream = self.stream
        header = memoryview(bytearray(HEADER_BYTES))
        while True:
            if stream.receive(header) < HEADER_BYTES:
                raise PeerLostError(f"{self.link.name}: the peer closed stream {self.number} without a goodbye")
            frame = unpack_frame(header, self.name)
            if frame.sequence != self._in_sequence:
                raise CorruptFrameError(
                    f"{self.name}: frame {frame.sequence} came where frame {self._in_sequence} was due (repeated, or lost)"
                )
            self._in_sequence = (frame.sequence + 1) & SEQUENCE_MASK
            if frame.kind == DATA:
                self._land(frame)
            elif frame.kind == ACK:
                self._outbox.acknowledge(self._slot, frame.total, self.name)
            elif frame.kind == BYE:
                self.ended = True
                self.link.hear_goodbye()
                return

    def _land(self, frame: Frame) -> None:
        self.held = True
        landing = self._inbox.place(frame, self.stream.close)
        self.held = False
        try:
            self._fill(frame, landing)
        except BaseException:
            self._inbox.abandon(landing)
            raise
        self._received.add(frame.length)
        # Before the message can be done: whoever waits for it may close the link at once, and the goodbye takes with it
        # the acknowledgement of all that was counted.
        self._landed += 1
        self._inbox.landed(landing)
        self._outbox.poke(self._slot)

    def _fill(self, frame: Frame, landing: Landing) -> None:
        self._filling = True
        if self.stream.receive(landing.view) < frame.length:
            raise PeerLostError(
                f"{self.link.name}: the peer closed stream {self.number} inside a frame of tag {frame.tag:#x}"
            )
        self._filling = False
        if not self._proved_by_tls and chunk_check(landing.view) != frame.check:
            raise CorruptFrameError(
                f"{self.name}: bytes {frame.offset}+{frame.length} of tag {frame.tag:#x} arrived corrupt "
                "(their checksum does not hold)"
            )
