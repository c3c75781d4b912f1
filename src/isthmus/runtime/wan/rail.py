"""The WAN transport: a rail joins one rank to the rank of the same number in every other region.

Each pair of regions has `streams` TCP connections a rail. A message is cut into chunks; whichever stream is free takes the
next chunk, so a slow stream carries less and never holds the others back. Every stream has a sender and a receiver
thread that block in the kernel outside the interpreter lock; payload goes from the caller's buffer to the socket and from
the socket into the caller's buffer without a copy in Python.

What this leaves out: encryption, and sending a lost stream's chunks again on another (a lost stream breaks its link).
"""

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

import torch

from isthmus.runtime.environment import Members
from isthmus.runtime.hashing import bytes_of
from isthmus.runtime.wan.frames import (
    BYE,
    HEADER_BYTES,
    CorruptFrameError,
    Frame,
    PeerLostError,
    RailError,
    chunk_check,
    pack_bye,
    pack_frame,
    unpack_frame,
)
from isthmus.runtime.wan.opening import Opening, open_streams
from isthmus.runtime.wan.queues import Inbox, Outbox, Outgoing, Silence, Ticket
from isthmus.runtime.wan.streams import Kernel, PlainStream, congestion_available

__all__ = ["LinkUse", "Rail", "RailOptions", "Ticket"]

PAYLOAD = 1448 / 1500  # of an IP packet, at the usual MTU and with TCP time stamps
# Paced at exactly the share, a stream that once fell behind never catches up and the link runs short; with this much more
# the queue grows by a tenth of the rate at most until the congestion control holds it.
PACE = 1.1
Buffer = torch.Tensor | memoryview | bytearray | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RailOptions:
    """How a rail's sockets and memory are used.

    Attributes:
        congestion: None takes bbr where the kernel allows it and else what it has, which `counters` report; a name takes
            that or fails; "" leaves the route's.
        rate_bytes_per_s: This rail's share of the link's rate to another region, in IP bytes, where it is known: its streams
            are then paced to it. None: the congestion control finds out.
        chunk_bytes_max: The most that one stream sends before flows take turns; slow streams send less at a time.
        early_bytes_max: Bytes kept, a peer, of messages not asked for yet.
    """

    congestion: str | None = None
    rate_bytes_per_s: float | None = None
    chunk_bytes_max: int = 1 << 20
    early_bytes_max: int = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """What one link did since it was opened; of all its streams together.

    Attributes:
        payload_bytes_sent, payload_bytes_received: Messages' bytes.
        frame_bytes_sent, frame_bytes_received: The same with frame headers; TCP/IP headers are below us.
        frames_sent, frames_received: Data frames.
        busy_s: Time during which something was waiting to be sent or being sent.
        goodput_bytes_per_s: payload_bytes_sent / busy_s; 0 before anything was sent.
        stall_s: Time that received data was left in the kernel because nobody had asked for so much.
        early_bytes_peak: The most that was kept of messages nobody had asked for yet.
        rtt_s: Smoothed round trip, mean of the streams; `rtt_s_min` the least of the last minutes.
        retransmits: Segments.
        send_buffer_bytes_max: The largest send buffer that the kernel has given a stream.
        congestion: Congestion control in force.
    """

    payload_bytes_sent: int
    payload_bytes_received: int
    frame_bytes_sent: int
    frame_bytes_received: int
    frames_sent: int
    frames_received: int
    busy_s: float
    goodput_bytes_per_s: float
    stall_s: float
    early_bytes_peak: int
    rtt_s: float
    rtt_s_min: float
    retransmits: int
    send_buffer_bytes_max: int
    congestion: str


class Rail:
    """This rank's links to the same rail of every other region. Open it with `Rail.open`; safe from several threads."""

    def __init__(
        self, opening: Opening, options: RailOptions, sockets: dict[tuple[int, int], socket.socket]
    ) -> None:
        self.region, self.regions = opening.region, len(opening.members.regions)
        self.names = tuple(region.name for region in opening.members.regions)
        self.timeout_s = opening.timeout_s
        self._links: dict[int, _Link] = {}
        for peer in range(self.regions):
            if peer != self.region:
                name = f"rail {opening.name(self.region)} to {opening.name(peer)}"
                streams = [PlainStream(sockets[peer, number]) for number in range(opening.streams)]
                self._links[peer] = _Link(name, streams, options, opening.timeout_s)

    @classmethod
    def open(
        cls,
        members: Members,
        region_index: int,
        rail_index: int,
        streams: int = 4,
        timeout_s: float = 30.0,
        options: RailOptions | None = None,
    ) -> "Rail":
        """Connect rail `rail_index` of region `region_index` with its peers; all of them must call this within the time-out.

        Args:
            members: All regions, equal on every rank.
            region_index: Number of this rank's region in `members`.
            rail_index: This rank's number in its region.
            streams: TCP connections to each other region; see `transport_shape.choose_streams`.
            timeout_s: To open; then, silence after which a peer counts as lost while something is expected of it, or
                while it takes nothing. Must exceed the time by which one region may lag behind another.
            options: Congestion control, chunk size and memory; None takes the defaults.

        Raises:
            PeerLostError: A member did not come in time.
            StrangerError: Somebody else answered, or we were refused.
            RailError: The kernel refuses the congestion control asked for by name.
            OSError: The rail's own address cannot be bound.
        """
        options = options or RailOptions()
        congestion = options.congestion
        if congestion is None:
            congestion = "bbr" if congestion_available("bbr") else ""
        elif congestion and not congestion_available(congestion):
            raise RailError(
                f"this kernel does not let us choose the congestion control {congestion!r}; "
                "see sysctl net.ipv4.tcp_allowed_congestion_control"
            )
        opening = Opening(
            members=members,
            region=region_index,
            rail=rail_index,
            streams=streams,
            timeout_s=timeout_s,
            congestion=congestion,
            pace_bytes_per_s=None if options.rate_bytes_per_s is None else PACE * options.rate_bytes_per_s * PAYLOAD / streams,
        )
        return cls(opening, options, open_streams(opening))

    def send(self, peer: int, tag: int, buffer: Buffer, flow: int | None = None) -> Ticket:
        """Queue a message to region `peer`; `buffer` must stay as it is until the ticket is done.

        Args:
            peer: Number of the region.
            tag: 64 bits, the same on both sides; free for use again once the peer has received it.
            buffer: Contiguous CPU tensor or bytes.
            flow: Messages of one flow go in the order they were queued; flows take turns. None: a flow of its own.
        """
        link, view = self._links[peer], _view(buffer)
        ticket = Ticket(f"{link.name}, sending tag {tag:#x}", view.nbytes, link.sending)
        link.outbox.put(tag if flow is None else flow, Outgoing(tag, view, ticket))
        return ticket

    def receive(self, peer: int, tag: int, into: Buffer) -> Ticket:
        """Ask region `peer` for message `tag`; it is written into `into`, whose size it must have."""
        link, view = self._links[peer], _view(into)
        if view.readonly:
            raise TypeError(f"{link.name}: tag {tag:#x} cannot be received into read-only memory")
        ticket = Ticket(f"{link.name}, receiving tag {tag:#x}", view.nbytes, link.hearing)
        link.inbox.post(tag, view, ticket)
        return ticket

    def flush(self) -> None:
        """Wait until all queued messages were handed to the kernel."""
        for link in self._links.values():
            for ticket in link.outbox.pending():
                ticket.wait()

    def counters(self) -> dict[str, LinkUse]:
        """What each link did, by the peer region's name."""
        return {self.names[peer]: link.use() for peer, link in self._links.items()}

    def wan_bytes_sent(self) -> int:
        """Payload and frame header bytes sent to all other regions so far."""
        return sum(counts.frame_bytes for link in self._links.values() for counts in link.sent)

    def close(self) -> None:
        """Send what is queued, say goodbye, and end; never waits longer than the time-out."""
        for link in self._links.values():
            link.outbox.close()
        deadline_s = time.monotonic() + self.timeout_s
        for link in self._links.values():
            link.close(deadline_s)

    def __enter__(self) -> "Rail":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class _Counts:
    payload_bytes: int = 0
    frame_bytes: int = 0
    frames: int = 0

    def add(self, payload: int) -> None:
        self.payload_bytes += payload
        self.frame_bytes += payload + HEADER_BYTES
        self.frames += 1


class _Link:
    def __init__(self, name: str, streams: list[PlainStream], options: RailOptions, timeout_s: float) -> None:
        self.name, self.streams = name, streams
        self.sending = Silence(timeout_s, streams, "sent_at_s")
        self.hearing = Silence(timeout_s, streams, "heard_at_s")
        self.outbox = Outbox(len(streams))
        self._chunk_bytes_max = options.chunk_bytes_max
        self.inbox = Inbox(name, options.early_bytes_max)
        self.sent = [_Counts() for _ in streams]
        self.received = [_Counts() for _ in streams]
        self._closing = False
        self._failed = threading.Lock()
        self._ended = 0
        self._last: list[Kernel] = [stream.kernel() for stream in streams]
        self._senders = [
            threading.Thread(
                target=self._guard, args=(self._send, number), daemon=True, name=f"{name} out {number}"
            )
            for number in range(len(streams))
        ]
        self._receivers = [
            threading.Thread(
                target=self._guard, args=(self._receive, number), daemon=True, name=f"{name} in {number}"
            )
            for number in range(len(streams))
        ]
        for thread in self._senders + self._receivers:
            thread.start()

    def _guard(self, work, number: int) -> None:
        try:
            work(number)
        except RailError as error:
            self.fail(error)
        except OSError as error:
            self.fail(PeerLostError(f"{self.name}: stream {number} broke: {error.strerror or error}"))
        except Exception as error:  # our bug; it must still not leave anybody waiting
            self.fail(RailError(f"{self.name}: stream {number} failed: {error!r}"))
            raise

    def _send(self, number: int) -> None:
        stream, counts = self.streams[number], self.sent[number]
        while (work := self.outbox.take(stream.chunk_bytes)) is not None:
            message, offset, chunk = work
            stream.send((pack_frame(message.tag, message.view.nbytes, offset, chunk), chunk))
            counts.add(chunk.nbytes)
            self.outbox.sent(message, chunk.nbytes)
            stream.tune(self._chunk_bytes_max)
        stream.send((pack_bye(),))
        stream.end()

    def _receive(self, number: int) -> None:
        stream, counts = self.streams[number], self.received[number]
        header = memoryview(bytearray(HEADER_BYTES))
        while True:
            if stream.receive(header) < HEADER_BYTES:
                if self._closing:
                    return
                raise PeerLostError(f"{self.name}: the peer closed stream {number} without a goodbye")
            frame = unpack_frame(header, f"{self.name}, stream {number}")
            if frame.kind == BYE:
                self._bye()
                return
            landing = self.inbox.place(frame)
            if stream.receive(landing.view) < frame.length:
                raise PeerLostError(
                    f"{self.name}: the peer closed stream {number} inside a frame of tag {frame.tag:#x}"
                )
            self._prove(frame, landing.view, number)
            counts.add(frame.length)
            self.inbox.landed(frame, landing)

    def _prove(self, frame: Frame, chunk: memoryview, number: int) -> None:
        if chunk_check(chunk) != frame.check:
            raise CorruptFrameError(
                f"{self.name}, stream {number}: bytes {frame.offset}+{frame.length} of tag {frame.tag:#x} arrived "
                "corrupt (their checksum does not hold)"
            )

    def _bye(self) -> None:
        with self._failed:
            self._ended += 1
            last = self._ended == len(self.streams)
        if last:
            self.inbox.end()

    def fail(self, error: RailError) -> None:
        """Break the link: everything that waits on it gets `error`; the first error stays."""
        self.outbox.fail(error)
        self.inbox.fail(error)
        for stream in self.streams:
            stream.close()

    def close(self, deadline_s: float) -> None:
        for thread in self._senders:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self._read_kernel()
        self._closing = True
        for thread in self._receivers:
            thread.join(max(0.0, min(deadline_s, time.monotonic() + 1.0) - time.monotonic()))
        self.fail(RailError(f"{self.name} is closed"))
        for thread in self._senders + self._receivers:
            thread.join(1.0)
        for stream in self.streams:
            stream.release()

    def _read_kernel(self) -> list[Kernel]:
        with contextlib.suppress(OSError):
            self._last = [stream.kernel() for stream in self.streams]
        return self._last

    def use(self) -> LinkUse:
        kernel, busy_s = self._read_kernel(), self.outbox.busy_so_far_s()
        payload = sum(counts.payload_bytes for counts in self.sent)
        return LinkUse(
            payload_bytes_sent=payload,
            payload_bytes_received=sum(counts.payload_bytes for counts in self.received),
            frame_bytes_sent=sum(counts.frame_bytes for counts in self.sent),
            frame_bytes_received=sum(counts.frame_bytes for counts in self.received),
            frames_sent=sum(counts.frames for counts in self.sent),
            frames_received=sum(counts.frames for counts in self.received),
            busy_s=busy_s,
            goodput_bytes_per_s=payload / busy_s if busy_s else 0.0,
            stall_s=self.inbox.held_s,
            early_bytes_peak=self.inbox.early_bytes_peak,
            rtt_s=sum(stream.rtt_s for stream in kernel) / len(kernel),
            rtt_s_min=min(stream.rtt_s_min for stream in kernel),
            retransmits=sum(stream.retransmits for stream in kernel),
            send_buffer_bytes_max=max(stream.send_buffer_bytes for stream in kernel),
            congestion=kernel[0].congestion,
        )


def _view(buffer: Buffer) -> memoryview:
    if isinstance(buffer, torch.Tensor):
        if not buffer.is_contiguous() or buffer.device.type != "cpu":
            raise TypeError(
                f"a rail carries contiguous CPU memory, not a {buffer.device.type} tensor with strides {buffer.stride()}"
            )
        return bytes_of(buffer)
    return memoryview(buffer).cast("B")
