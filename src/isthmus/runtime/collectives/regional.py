"""Inside a region: reduce-scatter and all-gather of segments, each started some time before it is waited for.

Both are plain sends and receives straight from and to the segments' memory. gloo's own reduce-scatter moves twice the bytes,
its all-to-all copies a rank's own part too, its all-gather goes through fresh memory; and what is under way needs none of
the ranks to meet, so the region's network is not idle while a rank adds up. Segments of a GPU's tensors (`staged`) take the
group's own collectives where they are, in the order of the calls.

Ranks on one host (`near`) send each other only where a segment lies, once it is ready to be read, and read it there. What is
read stays as it is: a rank's part is overwritten by the result that the reader of its old contents has made of them, and a
tensor is given back when all have said that they have read it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from isthmus.runtime.collectives.exchange import Buffers
from isthmus.runtime.collectives.near import Near
from isthmus.runtime.collectives.segments import Segment
from isthmus.runtime.collectives.summing import weighted_sum
from isthmus.runtime.device import finish

__all__ = ["Region"]

_AHEAD = 4
_REDUCE, _GATHER, _READ = 1, 2, 3


@dataclass(slots=True)
class _Reducing:
    works: list[dist.Work]
    arrived: dict[int, torch.Tensor]
    places: "_Places | None" = None


class _Places:
    """Where the ranks' segments lie, said by each to all others."""

    def __init__(self, region: "Region", tag: int, mine: int) -> None:
        self.address = {rank: torch.zeros(1, dtype=torch.int64) for rank in region.others}
        self._said = torch.tensor([mine])
        self.works = region.swap(tag, dict.fromkeys(region.others, self._said), self.address)


@dataclass(slots=True)
class Region:
    """The ranks of this region; every one of them makes the same calls in the same order.

    Attributes:
        group: Its group (gloo, or NCCL where segments are staged), or None: one rank.
        rank, ranks: Our number and how many they are.
        buffers: Where to take memory from.
        retain: Sums go to memory of their own, `Segment.retained`, and leave the segment as it is.
        replicated: All ranks hold equal tensors: nothing is summed.
        near: How ranks on one host read each other; found out at the first segment.
    """

    group: dist.ProcessGroup | None
    rank: int
    ranks: int
    buffers: Buffers
    retain: bool
    replicated: bool
    near: "Near | None" = None
    _asked: bool = False
    _unread: bool = False
    _gathering: deque[tuple[Segment, list[dist.Work], _Places | None]] = field(default_factory=deque)

    @property
    def others(self) -> list[int]:
        """The other ranks, beginning with the next."""
        return [(self.rank + step) % self.ranks for step in range(1, self.ranks)]

    def swap(self, tag: int, given: Mapping[int, torch.Tensor], into: Mapping[int, torch.Tensor]) -> list[dist.Work]:
        """Start to send to every other rank, and to receive from it."""
        works = [dist.irecv(into[rank], group=self.group, group_src=rank, tag=tag) for rank in self.others]
        works += [dist.isend(given[rank], group=self.group, group_dst=rank, tag=tag) for rank in self.others]
        return [work for work in works if work is not None]

    def _meet(self) -> None:
        """Before the first segment: find out together whether the ranks can read each other's memory."""
        if not self._asked and self.group is not None and self.ranks > 1:
            self.near = Near.find(self.group)
        self._asked = True

    def reduce_scatter(self, segments: list[Segment], then: Callable[[int], None]) -> None:
        """Of each segment this rank's own part becomes the sum over the region's ranks, in rank order; then `then(number)`.

        Raises:
            RuntimeError: From gloo, when a rank of this region was lost.
        """
        started: deque[_Reducing] = deque()
        for number, segment in enumerate(segments):
            while len(started) < _AHEAD and number + len(started) < len(segments):
                started.append(self._start(segments[number + len(started)]))
            self._sum(segment, started.popleft())
            then(number)

    def _start(self, segment: Segment) -> _Reducing:
        segment.load()
        if self.ranks == 1 or segment.staged:
            return _Reducing([], {})
        self._meet()
        if self.replicated:
            return _Reducing([], {})
        arrived = {rank: self.buffers.take(segment.own.nbytes).view(torch.float32) for rank in self.others}
        if self.near is not None:
            places = _Places(self, _REDUCE, segment.padded.data_ptr())
            return _Reducing(places.works, arrived, places)
        parts = segment.padded.view(self.ranks, -1)
        return _Reducing(self.swap(_REDUCE, {rank: parts[rank] for rank in self.others}, arrived), arrived)

    def _sum(self, segment: Segment, reducing: _Reducing) -> None:
        for work in reducing.works:
            work.wait()
        if reducing.places is not None:
            assert self.near is not None
            for rank, address in reducing.places.address.items():
                self.near.read(rank, int(address) + self.rank * segment.own.nbytes, reducing.arrived[rank])
        own = segment.own
        if self.retain:
            segment.retained = self.buffers.take(own.nbytes)
            own = segment.retained.view(torch.float32)
        if segment.staged:
            if self.ranks > 1 and not self.replicated:
                dist.reduce_scatter_single(segment.part, segment.padded, group=self.group)
            own.copy_(segment.part, non_blocking=True)
            finish(segment.part.device)  # the rails read host memory at once
        elif reducing.arrived:
            vectors = [reducing.arrived.get(rank, segment.own) for rank in range(self.ranks)]
            weighted_sum(vectors, [1.0] * self.ranks, 1.0, own)
            for buffer in reducing.arrived.values():
                self.buffers.give(buffer.view(torch.uint8))
        elif self.retain:
            own.copy_(segment.own)
        segment.give(own)

    def gather(self, segment: Segment) -> None:
        """Start to bring every rank's own part of `segment` to all; `settle` waits for it."""
        if segment.staged:
            segment.part.copy_(segment.own, non_blocking=True)
            if self.ranks > 1:
                dist.all_gather_single(segment.padded, segment.part, group=self.group)
            segment.store()
            return
        if self.near is not None:
            places = _Places(self, _GATHER, segment.padded.data_ptr())
            self._gathering.append((segment, places.works, places))
            self._unread = True
        else:
            parts = segment.padded.view(self.ranks, -1)
            works = self.swap(_GATHER, dict.fromkeys(self.others, segment.own), {rank: parts[rank] for rank in self.others})
            self._gathering.append((segment, works, None))
        self._finish(_AHEAD)

    def settle(self) -> None:
        """Wait until every gather is done, here and at the ranks that read this one's memory.

        Raises:
            RuntimeError: From gloo, when a rank of this region was lost.
        """
        self._finish(0)
        if self._unread:
            self._unread = False
            for work in _Places(self, _READ, 0).works:
                work.wait()

    def _finish(self, left: int) -> None:
        """Of the gathers under way, all but the last `left`."""
        while len(self._gathering) > left:
            segment, works, places = self._gathering.popleft()
            for work in works:
                work.wait()
            if places is not None:
                assert self.near is not None
                parts = segment.padded.view(self.ranks, -1)
                for rank, address in places.address.items():
                    self.near.read(rank, int(address) + rank * segment.own.nbytes, parts[rank])
            segment.store()
