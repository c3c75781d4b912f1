"""Inside a region: reduce-scatter and all-gather of segments, each started some time before it is waited for.

Both are plain sends and receives straight from and to the segments' memory. gloo's own reduce-scatter moves twice the bytes,
its all-to-all copies a rank's own part too, its all-gather goes through fresh memory; and what is under way needs none of
the ranks to meet, so the region's network is not idle while a rank adds up. Segments of a GPU's tensors (`staged`) take the
group's own collectives where they are, in the order of the calls.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from isthmus.runtime.collectives.exchange import Buffers
from isthmus.runtime.collectives.segments import Segment
from isthmus.runtime.collectives.summing import weighted_sum
from isthmus.runtime.device import finish

__all__ = ["Region"]

_AHEAD = 4
_REDUCE, _GATHER = 1, 2


@dataclass(slots=True)
class _Reducing:
    works: list[dist.Work]
    arrived: dict[int, torch.Tensor]


@dataclass(slots=True)
class Region:
    """The ranks of this region; every one of them makes the same calls in the same order.

    Attributes:
        group: Its group (gloo, or NCCL where segments are staged), or None: one rank.
        rank, ranks: Our number and how many they are.
        buffers: Where to take memory from.
        retain: Sums go to memory of their own, `Segment.retained`, and leave the segment as it is.
        replicated: All ranks hold equal tensors: nothing is summed.
    """

    group: dist.ProcessGroup | None
    rank: int
    ranks: int
    buffers: Buffers
    retain: bool
    replicated: bool
    _gathering: deque[tuple[Segment, list[dist.Work]]] = field(default_factory=deque)

    @property
    def _others(self) -> list[int]:
        return [(self.rank + step) % self.ranks for step in range(1, self.ranks)]

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
        if self.ranks == 1 or self.replicated or segment.staged:
            return _Reducing([], {})
        parts = segment.padded.view(self.ranks, -1)
        arrived = {rank: self.buffers.take(segment.own.nbytes).view(torch.float32) for rank in self._others}
        works = [dist.irecv(arrived[rank], group=self.group, group_src=rank, tag=_REDUCE) for rank in self._others]
        works += [dist.isend(parts[rank], group=self.group, group_dst=rank, tag=_REDUCE) for rank in self._others]
        return _Reducing([work for work in works if work is not None], arrived)

    def _sum(self, segment: Segment, reducing: _Reducing) -> None:
        for work in reducing.works:
            work.wait()
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
        parts = segment.padded.view(self.ranks, -1)
        works = [dist.irecv(parts[rank], group=self.group, group_src=rank, tag=_GATHER) for rank in self._others]
        works += [dist.isend(segment.own, group=self.group, group_dst=rank, tag=_GATHER) for rank in self._others]
        self._gathering.append((segment, [work for work in works if work is not None]))
        self.settle(_AHEAD)

    def settle(self, left: int = 0) -> None:
        """Wait until no more than `left` gathers are under way.

        Raises:
            RuntimeError: From gloo, when a rank of this region was lost.
        """
        while len(self._gathering) > left:
            segment, works = self._gathering.popleft()
            for work in works:
                work.wait()
            segment.store()
