"""The exchange between regions: every region holds a vector, every region ends with the same mean, to the last bit.

Two regions swap their whole encoded vectors; each decodes both and adds them in region order. With R >= 3 each region owns
one R-th: the others send it their encoded part, it adds them in region order, encodes the result, and all (the owner
too) decode those bytes. Sent by each region: S for R = 2, 2 (R - 1) / R S for R >= 3, S = encoded bytes.

Products and sums are separate float32 roundings in a fixed order (no fused multiply-add), so unlike machines agree.

An exchange can be tried again, with the same or other regions, when it was given an `out` other than the shard and a
`Draft` of the residuals: until the draft is committed nothing is changed that the next attempt needs. What the sum's own
encoding leaves out (R >= 3) is owed by the owner of that part as if its own vector had lacked it, so residuals mean the
same whatever the number of regions.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xxhash

from isthmus.plan import CodecName
from isthmus.runtime.codecs.coding import Codec, combine, decode, encode, encoded_bytes
from isthmus.runtime.codecs.feedback import Feedback
from isthmus.runtime.wan.rail import Rail, Ticket

__all__ = ["Buffers", "Exchange", "ExchangeOptions", "exchange_mean", "gather", "gather_on_all"]

_PHASE = 1 << 16
_BLOCK = 1 << 16


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
    exchange.reduce()
    exchange.finish()


def gather(rail: Rail, values: torch.Tensor, tag: int) -> list[torch.Tensor]:
    """`values` of every region, in region order; all have the same shape and dtype. For small things such as weights."""
    return gather_on_all([rail], values, tag)[0]


def gather_on_all(rails: Iterable[Rail], values: torch.Tensor, tag: int) -> list[list[torch.Tensor]]:
    """`gather` on several rails at once: what every rail's peers sent on it, in the order of `rails`."""
    everything: list[list[torch.Tensor]] = []
    tickets: list[Ticket] = []
    for rail in rails:
        found = [values if region == rail.region else torch.empty_like(values) for region in range(rail.regions)]
        peers = _peers(rail)
        tickets += [rail.receive(peer, tag, found[peer]) for peer in peers] + [rail.send(peer, tag, values) for peer in peers]
        everything.append(found)
    for ticket in tickets:
        ticket.wait()
    return everything


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
    """One `exchange_mean` in steps, so that many may be under way: create (sends), `reduce`, `finish`, in this order.

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
        self._bounds = _cut(shard.numel(), rail.regions, options.shares)
        self._mine: torch.Tensor | None = None
        if rail.regions == 2:
            self._swap()
        elif rail.regions > 2:
            self._scatter()

    def _swap(self) -> None:
        peer = 1 - self._rail.region
        self._expect(peer, self._tag, self._shard.numel())
        self._mine = self._encoded(0, self._shard, 0)
        self._send(peer, self._tag, self._mine)

    def _scatter(self) -> None:
        mine = self._part(self._rail.region)
        for peer in _peers(self._rail):
            self._expect(peer, self._tag, mine.numel())
        for peer in _peers(self._rail):
            self._send(peer, self._tag, self._encoded(self._bounds[peer], self._part(peer), 0))

    def reduce(self) -> None:
        """R >= 3: add up the part this region owns, and send the result to the others. Otherwise nothing."""
        rail = self._rail
        if rail.regions < 3:
            return
        mine = self._part(rail.region)
        owed = self._residual(self._bounds[rail.region], mine.numel())
        if owed is not None:
            mine = torch.add(mine, owed, out=self._take(4 * mine.numel()).view(torch.float32))
        contributions = [
            mine if region == rail.region else self._decoded(region, mine.numel())
            for region in range(rail.regions)
        ]
        total = self._take(4 * mine.numel()).view(torch.float32)
        self._weighted_sum(contributions, total)
        for peer in _peers(rail):
            self._expect(peer, self._tag + _PHASE, self._part(peer).numel())
        if owed is not None:
            owed.zero_()
        self._mine = self._encoded(self._bounds[rail.region], total, 1)
        if owed is not None:
            owed.div_(self._weights[rail.region] * self._scale)
        for peer in _peers(rail):
            self._send(peer, self._tag + _PHASE, self._mine)

    def finish(self) -> None:
        """Wait for the other regions' bytes and write the result into the shard."""
        rail, shard, out = self._rail, self._shard, self._out
        if rail.regions == 2:
            theirs = self._decoded(1 - rail.region, shard.numel())
            for ticket in self._sends:
                ticket.release()
            mine = self._own(shard.numel())
            self._weighted_sum([mine, theirs] if rail.region == 0 else [theirs, mine], out)
        elif rail.regions > 2:
            for region in range(rail.regions):
                part = self._part(region)
                value = (
                    self._own(part.numel()) if region == rail.region else self._decoded(region, part.numel())
                )
                for ticket in self._sends:
                    ticket.release()
                out[self._bounds[region] : self._bounds[region + 1]].copy_(value)
        else:
            self._weighted_sum([shard], out)
        for buffer in self._taken:
            self._buffers.give(buffer)
        self._taken.clear()
        self._mine = None
        self._arrived.clear()
        self._sends.clear()

    def _part(self, region: int) -> torch.Tensor:
        return self._shard[self._bounds[region] : self._bounds[region + 1]]

    def _weighted_sum(self, vectors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """sum(w x) * scale into `out`, which may be one of `vectors` when there are at most two; or the majority's signs."""
        if self._codec.name == "sign-majority":
            combine(self._codec, vectors, self._weights, self._scale, out)
            return
        pairs = zip(vectors, self._weights, strict=True)
        terms = [vector if weight == 1.0 else torch.mul(vector, weight) for vector, weight in pairs]
        if len(terms) == 1:
            out.copy_(terms[0])
            out.mul_(self._scale)
            return
        # NumPy's calls cost a tenth of torch's; a block is still in the cache when it is scaled.
        first, second, *rest = (term.detach().numpy() for term in terms)
        sums, scale = out.detach().numpy(), np.float32(self._scale)
        for start in range(0, sums.size, _BLOCK):
            stop = start + _BLOCK
            block = np.add(first[start:stop], second[start:stop], out=sums[start:stop])
            for term in rest:
                np.add(block, term[start:stop], out=block)
            np.multiply(block, scale, out=block)

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
            return self._decode(self._arrived[region], elements)
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

    def _send(self, peer: int, tag: int, data: torch.Tensor) -> None:
        if data.numel():
            self._sends.append(self._rail.send(peer, tag, data, self._options.flow))


def _cut(elements: int, regions: int, shares: tuple[float, ...] | None) -> list[int]:
    """Where each region's part begins, and the end."""
    if shares is None:
        return [elements * region // regions for region in range(regions + 1)]
    if len(shares) != regions or abs(sum(shares) - 1.0) > 1e-6 or min(shares) < 0:
        raise ValueError(f"{shares} are not {regions} shares of a whole")
    return [min(elements, round(elements * sum(shares[:region]))) for region in range(regions)] + [elements]


def _peers(rail: Rail) -> list[int]:
    """The other regions, beginning after our own, so that not all regions send to the same one first."""
    return [(rail.region + step) % rail.regions for step in range(1, rail.regions)]
