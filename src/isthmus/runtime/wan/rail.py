"""The WAN transport: a rail joins one rank to the rank of the same number in every other region.

Each pair of regions has `streams` TCP connections a rail, in the clear or inside TLS. A message is cut into chunks; whichever
stream is free takes the next chunk, so a slow stream carries less and never holds the others back. The peer acknowledges what
it holds; what a broken stream had not delivered goes again on another, and lands once. Every stream has a sender and a
receiver thread that block in the kernel outside the interpreter lock; in the clear, payload goes from the caller's buffer to
the socket and from the socket into the caller's buffer without a copy in Python.
"""

import secrets
import threading
import time
from collections.abc import Mapping
from typing import Final

import torch

from isthmus.runtime.environment import Members
from isthmus.runtime.hashing import bytes_of, fingerprint
from isthmus.runtime.wan.door import Door, Newcomer, demand_keys
from isthmus.runtime.wan.frames import PeerLostError, RailError, federation_id
from isthmus.runtime.wan.link import Link, LinkOptions
from isthmus.runtime.wan.opening import Opening
from isthmus.runtime.wan.outbox import Outgoing
from isthmus.runtime.wan.streams import buffer_limits, congestion_available
from isthmus.runtime.wan.ticket import Ticket
from isthmus.runtime.wan.use import LinkUse, RailOptions

__all__ = ["LinkUse", "Rail", "RailOptions", "Ticket"]

PAYLOAD: Final = 1448 / 1500  # of an IP packet, at the usual MTU and with TCP time stamps
# Paced at exactly the share, a stream that once fell behind never catches up and the link runs short; with this much more
# the queue grows by so little of the rate at most until the congestion control holds it.
PACE: Final = 1.03
WATCH_S_MAX: Final = 0.1
Buffer = torch.Tensor | memoryview | bytearray | bytes


class Rail:
    """This rank's links to the same rail of every other region. Open it with `Rail.open`; safe from several threads."""

    def __init__(self, opening: Opening, options: RailOptions, door: Door, *, owns_door: bool) -> None:
        self.region, self.regions = opening.region, len(opening.members.regions)
        self.names = tuple(region.name for region in opening.members.regions)
        self.timeout_s, self.generation = opening.timeout_s, opening.generation
        self._opening, self._door, self._owns_door = opening, door, owns_door
        self.proves, self._tally = False, 0
        heartbeat_s = options.heartbeat_s or options.detect_s / 5
        link_options = LinkOptions(
            heartbeat_s=heartbeat_s,
            detect_s=options.detect_s,
            chunk_bytes_max=options.chunk_bytes_max,
            early_bytes_max=options.early_bytes_max,
        )
        others = [peer for peer in range(self.regions) if peer != self.region]
        self._links = {peer: Link(opening, peer, link_options) for peer in others}
        self._detect_s = options.detect_s
        self._watch_s = min(WATCH_S_MAX, heartbeat_s / 2)
        self._closing = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, daemon=True, name=f"rail {opening.name(self.region)} watch"
        )

    @classmethod
    def open(  # noqa: PLR0913 - the first six are the place, the last two the grouping
        cls,
        members: Members,
        region_index: int,
        rail_index: int,
        streams: int = 4,
        timeout_s: float = 30.0,
        options: RailOptions | None = None,
        *,
        generation: int = 0,
        door: Door | None = None,
    ) -> "Rail":
        """Connect rail `rail_index` of region `region_index` with its peers; all of them must call this within the time-out.

        Args:
            members: The regions that take part, equal on every rank.
            region_index: Number of this rank's region in `members`.
            rail_index: Which rail.
            streams: TCP connections to each other region; see `shape.choose_streams`.
            timeout_s: To open; then, time without a byte after which a peer counts as lost for whoever waits for a message,
                although it shows signs of life. Must exceed the time by which one region may lag behind another.
            options: Congestion control, chunk size, memory and detection; None takes the defaults.
            generation: Which grouping of regions this is; all of them must name the same.
            door: This rank's door; None opens one for this rail alone.

        Raises:
            PeerLostError: A member did not come in time.
            StrangerError: Somebody else answered, or we were refused.
            RailError: The kernel refuses the congestion control asked for by name.
            InputError: A member is beyond loopback, and there are neither keys nor leave to go without.
            OSError: The rail's own address cannot be bound.
        """
        options = options or RailOptions()
        congestion = _congestion(options.congestion)
        identity = door.identity if door is not None else options.identity
        demand_keys([region.address(rail_index) for region in members.regions], identity, options.insecure)
        owns_door = door is None
        if door is None:
            own = members.regions[region_index].address(rail_index)
            door = Door(own, federation_id(members), region_index, identity, insecure=options.insecure)
        opening = Opening(
            members=members,
            federation=door.federation,
            generation=generation,
            instance=secrets.randbits(64),
            region=region_index,
            rail=rail_index,
            streams=streams,
            timeout_s=timeout_s,
            congestion=congestion,
            paces_bytes_per_s=_paces(members, options.rate_bytes_per_s, streams),
            identity=identity,
        )
        rail = cls(opening, options, door, owns_door=owns_door)
        try:
            rail._connect()
        except BaseException as error:
            rail.abort(RailError(f"rail {opening.name(region_index)} did not open: {error}"))
            rail.close()
            raise
        return rail

    def _connect(self) -> None:
        """Start to listen and to call, and wait until every stream is open."""
        started_s = time.monotonic()
        deadline_s = started_s + self.timeout_s
        refusals_before = len(self._door.refusals)
        self._watcher.start()
        self._door.claim(self.generation, self._opening.rail, self._take)
        for link in self._links.values():
            link.call(deadline_s)
        while any(link.missing() for link in self._links.values()) or not all(
            [link.settle() for link in self._links.values()]
        ):
            for link in self._links.values():
                if link.error is not None:
                    raise link.error
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise PeerLostError(self._who_is_missing(refusals_before))
            waiting = next((link for link in self._links.values() if link.missing()), None)
            if waiting is not None:
                with waiting.changed:
                    if waiting.error is None and not all(waiting.lanes):
                        waiting.changed.wait(min(left_s, 0.1))

    def _who_is_missing(self, refusals_before: int) -> str:
        opening = self._opening
        missing = [
            f"{opening.name(peer)} ({opening.streams - len(link.missing())} of {opening.streams} streams{link.trouble()})"
            for peer, link in self._links.items()
            if link.missing()
        ]
        refusals = list(self._door.refusals)[min(refusals_before, len(self._door.refusals) - 1) :]
        refused = f"; refused meanwhile: {'; '.join(refusals)}" if refusals else ""
        return (
            f"{opening.name(self.region)} at {self._door.address}: waited {self.timeout_s:g} s for "
            f"{', '.join(missing)}{refused}"
        )

    def _take(self, newcomer: Newcomer) -> str:
        reason = self._opening.objection(newcomer.hello)
        return reason or self._links[newcomer.hello.region].take(newcomer)

    def _watch(self) -> None:
        before_s = time.monotonic()
        while not self._closing.wait(self._watch_s):
            now_s = time.monotonic()
            stood_still = now_s > before_s + self._watch_s + max(self._detect_s / 4, 0.5)
            for link in self._links.values():
                if stood_still:
                    link.forgive(now_s)
                link.watch(now_s)
            before_s = now_s

    def send(self, peer: int, tag: int, buffer: Buffer, flow: int | None = None) -> Ticket:
        """Queue a message to region `peer`; `buffer` must stay as it is until the ticket is done, or released.

        The ticket is done once the peer has acknowledged the message. What is on its way to us from that peer beyond
        `early_bytes_max` must be asked for first: acknowledgements come behind it.

        Args:
            peer: Number of the region.
            tag: 64 bits, the same on both sides; free for use again once the peer has received it.
            buffer: Contiguous CPU tensor or bytes.
            flow: Messages of one flow go in the order they were queued; flows take turns. None: a flow of its own.
        """
        link, view = self._links[peer], _view(buffer)
        ticket = Ticket(f"{link.name}, sending tag {tag:#x}", view.nbytes, self.timeout_s, link.sending_s)
        link.outbox.put(tag if flow is None else flow, Outgoing(tag, view, ticket))
        return ticket

    def receive(self, peer: int, tag: int, into: Buffer) -> Ticket:
        """Ask region `peer` for message `tag`; it is written into `into`, whose size it must have."""
        link, view = self._links[peer], _view(into)
        if view.readonly:
            raise TypeError(f"{link.name}: tag {tag:#x} cannot be received into read-only memory")
        ticket = Ticket(f"{link.name}, receiving tag {tag:#x}", view.nbytes, self.timeout_s, link.hearing_s)
        link.inbox.post(tag, view, ticket)
        return ticket

    def note_sent(self, data: torch.Tensor) -> None:
        """Where the rail `proves`: these bytes go to another region, which alone adds them up (`take_tally`)."""
        if self.proves:
            self._tally = (self._tally + fingerprint([data])) % 2**64

    def note_added(self, data: torch.Tensor) -> None:
        """The same of bytes that came, at the moment when they are added up."""
        if self.proves:
            self._tally = (self._tally - fingerprint([data])) % 2**64

    def take_tally(self) -> int:
        """Fingerprints of all bytes noted as sent less those of all noted as added, modulo 2^64, since the last call.

        The sum over all regions is 0 if, and but for a chance of 2^-64 only if, what was added up is what was sent: a bit that
        turns over in memory after a frame's checksum, or after decryption, is found here though all replicas agree.
        """
        tally, self._tally = self._tally, 0
        return tally

    def agreed_rtt_s(self, peer: int) -> float:
        """The round trip that the caller's kernel found when the link opened: the same number at both ends."""
        return self._links[peer].agreed_rtt_s

    def flush(self) -> None:
        """Wait until all queued messages were acknowledged."""
        for link in self._links.values():
            for ticket in link.outbox.pending():
                ticket.wait()

    def abort(self, error: RailError) -> None:
        """Break all links now: everybody who waits on this rail gets `error`. `close` is quick after it."""
        for link in self._links.values():
            link.fail(error)

    @property
    def errors(self) -> dict[str, RailError]:
        """The links that have failed, by the peer region's name, with why."""
        return {self.names[peer]: link.error for peer, link in self._links.items() if link.error is not None}

    def counters(self) -> dict[str, LinkUse]:
        """What each link did, by the peer region's name."""
        return {self.names[peer]: self._use(link) for peer, link in self._links.items()}

    def _use(self, link: Link) -> LinkUse:
        (kernel, lost), busy_s = link.kernels(), link.busy_s()
        payload = sum(counts.payload_bytes for counts in link.sent)
        return LinkUse(
            payload_bytes_sent=payload,
            payload_bytes_received=sum(counts.payload_bytes for counts in link.received),
            frame_bytes_sent=sum(counts.frame_bytes for counts in link.sent),
            frame_bytes_received=sum(counts.frame_bytes for counts in link.received),
            control_bytes_sent=sum(counts.control_bytes for counts in link.sent),
            frames_sent=sum(counts.frames for counts in link.sent),
            frames_received=sum(counts.frames for counts in link.received),
            busy_s=busy_s,
            goodput_bytes_per_s=payload / busy_s if busy_s else 0.0,
            stall_s=link.inbox.held_s,
            early_bytes_peak=link.inbox.early_bytes_peak,
            rtt_s=sum(stream.rtt_s for stream in kernel) / max(len(kernel), 1),
            rtt_s_min=min((stream.rtt_s_min for stream in kernel), default=0.0),
            retransmits=lost + sum(stream.retransmits for stream in kernel),
            streams_lost=link.streams_lost,
            chunks_resent=link.outbox.chunks_resent,
            chunks_again=link.inbox.chunks_again,
            encrypted=self._opening.identity is not None,
            send_buffer_bytes_max=max((stream.send_buffer_bytes for stream in kernel), default=0),
            window_bytes_wanted=link.window_bytes(),
            window_bytes_limit=buffer_limits().window_bytes,
            buffer_limited_s=sum(stream.buffer_limited_s for stream in kernel),
            congestion=kernel[0].congestion if kernel else "",
        )

    def wan_bytes_sent(self) -> int:
        """Payload, frame header and control bytes sent to all other regions so far."""
        return sum(
            counts.frame_bytes + counts.control_bytes for link in self._links.values() for counts in link.sent
        )

    def close(self) -> None:
        """Let the peers have what is queued, say goodbye, and end, within the time-out; at once after `abort`."""
        for link in self._links.values():
            link.outbox.close()
        deadline_s = time.monotonic() + self.timeout_s
        for link in self._links.values():
            link.close(deadline_s)
        self._door.unclaim(self.generation, self._opening.rail)
        self._closing.set()
        if self._watcher.is_alive():
            self._watcher.join(2.0)
        if self._owns_door:
            self._door.close()

    def __enter__(self) -> "Rail":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _paces(members: Members, rate: float | Mapping[str, float] | None, streams: int) -> dict[int, float]:
    names = [region.name for region in members.regions]
    rates = rate if isinstance(rate, Mapping) else {} if rate is None else dict.fromkeys(names, rate)
    return {number: PACE * rates[name] * PAYLOAD / streams for number, name in enumerate(names) if name in rates}


def _congestion(name: str | None) -> str:
    if name is None:
        return "bbr" if congestion_available("bbr") else ""
    if name and not congestion_available(name):
        raise RailError(
            f"this kernel does not let us choose the congestion control {name!r}; "
            "see sysctl net.ipv4.tcp_allowed_congestion_control"
        )
    return name


def _view(buffer: Buffer) -> memoryview:
    if isinstance(buffer, torch.Tensor):
        if not buffer.is_contiguous() or buffer.device.type != "cpu":
            raise TypeError(
                f"a rail carries contiguous CPU memory, not a {buffer.device.type} tensor with strides {buffer.stride()}"
            )
        return bytes_of(buffer)
    return memoryview(buffer).cast("B")
