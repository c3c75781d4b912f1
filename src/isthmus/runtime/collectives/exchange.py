"""The exchange between regions: every region holds a vector, every region ends with the same mean, to the last bit.

Two regions swap their whole encoded vectors; each decodes both and adds them in region order. With R >= 3 each region owns
one R-th: the others send it their encoded part, it adds them in region order, encodes the result, and all (the owner
too) decode those bytes. Sent by each region: 2 (R - 1) / R S, S = encoded bytes, which is S for R = 2 either way.

Two regions so near that the processor is the limit work as three do, each adding up a half: a way over the link more, half
the sums. Without a codec that changes no bit. What comes of the others' parts then lands where it belongs without a copy.

Products and sums are separate float32 roundings in a fixed order (no fused multiply-add), so unlike machines agree.

Of two passes a wrong bit in what came to the owner would be everybody's: it notes what it adds up, the others what they sent
(`Rail.take_tally`), and rounds compare.

An exchange can be tried again, with the same or other regions, when it was given an `out` other than the shard and a
`Draft` of the residuals: until the draft is committed nothing is changed that the next attempt needs. What the sum's own
encoding leaves out (R >= 3) is owed by the owner of that part as if its own vector had lacked it, so residuals mean the
same whatever the number of regions.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import xxhash

from isthmus.plan import CodecName
from isthmus.runtime.codecs.coding import Codec, combine, decode, encode, encoded_bytes
from isthmus.runtime.codecs.feedback import Feedback
from isthmus.runtime.collectives.gather import peers_of
from isthmus.runtime.collectives.summing import weighted_sum
from isthmus.runtime.wan.rail import Rail, Ticket

__all__ = ["Buffers", "Exchange", "ExchangeOptions", "exchange_mean"]

_PHASE = 1 << 16
# What a byte costs a core in the sums and copies that adding up only a half of the vector saves (measured, EPYC 7003).
SUM_S_PER_BYTE: Final = 0.25e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOptions:
    """How an exchange is coded and weighted; equal on every region.

    Attributes:
        codec: The codec, or its name for the default parameters.
        feedback: Residuals of this rank (a `Draft` where the exchange may have to be repeated), or None to forget what the
            codec left out.
        first: Number of the vector's first element in the numbering of `feedback`.
        seed: Of the codec's noise.
        weights: One a region; the result is sum(w x) * scale. None: all 1.
        scale: None: 1 / sum(weights), which makes it the mean.
        flow: Flow of the transport, so that exchanges of one flow go in order.
        buffers: Where to take memory from; None: fresh memory.
        shares: Of three and more regions: which part of the vector each adds up (sum 1; see `shape.choose_shares`). None: equal.
    """

    codec: Codec | CodecName = "none"
    feedback: Feedback | None = None
    first: int = 0
    seed: int = 0
    weights: tuple[float, ...] | None = None
    scale: float | None = None
    flow: int | None = None
    buffers: "Buffers | None" = None
    shares: tuple[float, ...] | None = None


def exchange_mean(
    rail: Rail, shard: torch.Tensor, tag: int, options: ExchangeOptions | None = None, out: torch.Tensor | None = None
) -> None:
    """The (weighted) mean of `shard` over regions, bit-identical on every region, in its place or in `out`.

    Args:
        rail: Open rail; every region calls this with the same tag, size and options.
        shard: float32, shape (n,), contiguous, CPU.
        tag: From `message_tag(..., phase=0, ...)`, not in use.
        options: Codec and weights.
        out: Another vector like `shard`, which then stays as it is; so does a `Draft`'s feedback, and the exchange can be
            repeated from them.

    Raises:
        RailError: The link broke (PeerLostError, CorruptFrameError); what the result was to replace is then undefined.
    """
    exchange = Exchange(rail, shard, tag, options or ExchangeOptions(), out)
    exchange.start()
    exchange.reduce()
    exchange.finish()


class Buffers:
    """Byte buffers for the next exchange to use again: fresh pages cost as much as the copy into them."""

    def __init__(self) -> None:
        self._free: dict[int, list[torch.Tensor]] = {}

    def take(self, size: int) -> torch.Tensor:
        """A buffer of `size` bytes with anything in it; uint8, shape (size,)."""
        free = self._free.get(size)
        return free.pop() if free else torch.empty(size, dtype=torch.uint8)

    def give(self, buffer: torch.Tensor) -> None:
        """Nobody uses `buffer` any more."""
        self._free.setdefault(buffer.numel(), []).append(buffer)


class Exchange:
    """One `exchange_mean` in steps, so that many may be under way: create, `start`, `reduce`, `finish`, in this order.

    Creating it asks for the others' bytes: those that come before they were asked for must be kept and copied. So where many
    are begun one after the other, create them all first.

    After a RailError in any of them drop it: its buffers go with it, as late bytes may still be written into them.
    """

    def __init__(
        self, rail: Rail, shard: torch.Tensor, tag: int, options: ExchangeOptions, out: torch.Tensor | None = None
    ) -> None:
        self._rail, self._shard, self._tag, self._options = rail, shard, tag, options
        self._codec = options.codec if isinstance(options.codec, Codec) else Codec(options.codec)
        self._out = shard if out is None else out
        self._weights = options.weights or (1.0,) * rail.regions
        if len(self._weights) != rail.regions:
            raise ValueError(f"{len(self._weights)} weights for {rail.regions} regions")
        self._scale = 1.0 / sum(self._weights) if options.scale is None else options.scale
        self._buffers = options.buffers or Buffers()
        self._taken: list[torch.Tensor] = []
        self._sends: list[Ticket] = []
        self._receives: dict[int, Ticket] = {}
        self._arrived: dict[int, torch.Tensor] = {}
        self._results: dict[int, tuple[Ticket, torch.Tensor]] = {}
        self._bounds = _cut(shard.numel(), rail.regions, options.shares)
        self._mine: torch.Tensor | None = None
        plain = self._codec.name == "none"
        self.passes = _passes(rail, shard.nbytes if plain else 0)
        self._direct = False
        if self.passes:
            awaited = self._part(rail.region).numel() if self.passes == 2 else shard.numel()
            for peer in peers_of(rail):
                self._expect(peer, tag, awaited)

    def start(self, given: torch.Tensor | None = None) -> None:
        """Send; `given` in place of the vector it was created with, of that size."""
        self._shard = self._shard if given is None else given
        # The others' results straight into the vector they were asked to add up: a result proves that they have all of what
        # its memory held before, and that what is sent of it once more, after its stream broke, is thrown away there.
        plain = self._codec.name == "none"
        self._direct = plain and self.passes == 2 and self._out.data_ptr() == self._shard.data_ptr()
        if self.passes == 1:
            self._swap()
        elif self.passes == 2:
            self._scatter()

    def _swap(self) -> None:
        peer = 1 - self._rail.region
        self._mine = self._encoded(0, self._shard, 0)
        self._send(peer, self._tag, self._mine)

    def _scatter(self) -> None:
        if self._direct:
            for peer in peers_of(self._rail):
                self._expect_result(peer)
        for peer in peers_of(self._rail):
            data = self._encoded(self._bounds[peer], self._part(peer), 0)
            if data.numel():
                self._rail.note_sent(data)
            self._send(peer, self._tag, data)

    def reduce(self) -> None:
        """In two passes: add up the part this region owns, and send the result to the others. In one: wait for the other's.

        Results of what comes later must not wait for the others' results of what came before: reduce all that is under way,
        and finish meanwhile what is `ready`.
        """
        rail = self._rail
        if self.passes == 1 and self._receives:
            self._receives[1 - rail.region].wait()
        if self.passes < 2:
            return
        mine = self._part(rail.region)
        owed = self._residual(self._bounds[rail.region], mine.numel())
        if owed is not None:
            mine = torch.add(mine, owed, out=self._take(4 * mine.numel()).view(torch.float32))
        contributions = [
            mine if region == rail.region else self._decoded(region, mine.numel())
            for region in range(rail.regions)
        ]
        total = mine if self._direct else self._take(4 * mine.numel()).view(torch.float32)
        self._sum(contributions, total)
        if not self._direct:
            for peer in peers_of(rail):
                self._expect_result(peer)
        if owed is not None:
            owed.zero_()
        self._mine = self._encoded(self._bounds[rail.region], total, 1)
        if owed is not None:
            owed.div_(self._weights[rail.region] * self._scale)
        for peer in peers_of(rail):
            self._send(peer, self._tag + _PHASE, self._mine)

    @property
    def ready(self) -> bool:
        """Whether `finish` would neither wait nor copy what is being sent; after `reduce`."""
        waited = [*self._receives.values(), *(ticket for ticket, _ in self._results.values()), *self._sends]
        return all(ticket.done for ticket in waited)

    def finish(self) -> None:
        """Wait for the other regions' bytes and write the result into the shard."""
        if self.passes == 1:
            self._finish_swap()
        elif self._direct:
            for ticket, _ in self._results.values():
                ticket.wait()
            for ticket in self._sends:
                ticket.release()
        elif self.passes == 2:
            self._copy_parts()
        else:
            self._sum([self._shard], self._out)
        for buffer in self._taken:
            self._buffers.give(buffer)
        self._taken.clear()
        self._mine = None
        self._arrived.clear()
        self._results.clear()
        self._sends.clear()

    def _finish_swap(self) -> None:
        size, region = self._shard.numel(), self._rail.region
        theirs = self._decoded(1 - region, size)
        for ticket in self._sends:
            ticket.release()
        mine = self._own(size)
        self._sum([mine, theirs] if region == 0 else [theirs, mine], self._out)

    def _copy_parts(self) -> None:
        for region in range(self._rail.regions):
            part = self._part(region)
            value = self._own(part.numel()) if region == self._rail.region else self._result(region, part.numel())
            for ticket in self._sends:
                ticket.release()
            self._out[self._bounds[region] : self._bounds[region + 1]].copy_(value)

    def _part(self, region: int) -> torch.Tensor:
        return self._shard[self._bounds[region] : self._bounds[region + 1]]

    def _sum(self, vectors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """sum(w x) * scale into `out`, or the majority's signs."""
        if self._codec.name == "sign-majority":
            combine(self._codec, vectors, self._weights, self._scale, out)
        else:
            weighted_sum(vectors, self._weights, self._scale, out)

    def _take(self, size: int) -> torch.Tensor:
        buffer = self._buffers.take(size)
        self._taken.append(buffer)
        return buffer

    def _encoded(self, offset: int, values: torch.Tensor, phase: int) -> torch.Tensor:
        options = self._options
        if self._codec.name == "none":
            return values.view(torch.uint8)
        out = self._take(encoded_bytes(self._codec, values.numel()))
        mixed = struct.pack(
            "<QQQQ", options.seed & (2**64 - 1), self._tag + phase * _PHASE, self._rail.region, offset
        )
        encode(self._codec, values, out, xxhash.xxh3_64_intdigest(mixed), self._residual(offset, values.numel()))
        return out

    def _residual(self, offset: int, elements: int) -> torch.Tensor | None:
        """What this region owes of a piece of the shard; None where nothing is kept, or it would not count (weight 0)."""
        options = self._options
        if options.feedback is None or self._codec.name == "none" or self._weights[self._rail.region] * self._scale == 0.0:
            return None
        return options.feedback.residual(options.first + offset, elements)

    def _own(self, elements: int) -> torch.Tensor:
        assert self._mine is not None, "finish() before the exchange was sent"
        return self._decode(self._mine, elements)

    def _decoded(self, region: int, elements: int) -> torch.Tensor:
        if elements:
            self._receives[region].wait()
            if self.passes == 2:  # nobody else adds these up, so no other replica could differ
                self._rail.note_added(self._arrived[region])
            return self._decode(self._arrived[region], elements)
        return torch.empty(0)

    def _result(self, region: int, elements: int) -> torch.Tensor:
        if elements:
            ticket, data = self._results[region]
            ticket.wait()
            return self._decode(data, elements)
        return torch.empty(0)

    def _decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        if self._codec.name == "none":
            return data.view(torch.float32)
        out = self._take(4 * elements).view(torch.float32)
        decode(self._codec, data, out)
        return out

    def _expect(self, peer: int, tag: int, elements: int) -> None:
        if elements:
            buffer = self._take(encoded_bytes(self._codec, elements))
            self._arrived[peer] = buffer
            self._receives[peer] = self._rail.receive(peer, tag, buffer)

    def _expect_result(self, peer: int) -> None:
        part = self._part(peer)
        if not part.numel():
            return
        into = part.view(torch.uint8) if self._direct else self._take(encoded_bytes(self._codec, part.numel()))
        self._results[peer] = self._rail.receive(peer, self._tag + _PHASE, into), into

    def _send(self, peer: int, tag: int, data: torch.Tensor) -> None:
        if data.numel():
            self._sends.append(self._rail.send(peer, tag, data, self._options.flow))


def _passes(rail: Rail, plain_bytes: int) -> int:
    """How often bytes cross: both ends of a link give the same answer, as they agree on its round trip when it opens."""
    if rail.regions != 2:
        return min(rail.regions - 1, 2)
    near = plain_bytes * SUM_S_PER_BYTE > rail.agreed_rtt_s(1 - rail.region) / 2
    return 2 if near else 1


def _cut(elements: int, regions: int, shares: tuple[float, ...] | None) -> list[int]:
    """Where each region's part begins, and the end."""
    if shares is None:
        return [elements * region // regions for region in range(regions + 1)]
    if len(shares) != regions or abs(sum(shares) - 1.0) > 1e-6 or min(shares) < 0:
        raise ValueError(f"{shares} are not {regions} shares of a whole")
    return [min(elements, round(elements * sum(shares[:region]))) for region in range(regions)] + [elements]
