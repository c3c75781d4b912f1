"""How local steps reach the other regions: the seam `OuterLink`, and today's way over one rail a rank.

A round is computed by an attempt, which changes nothing that it could not compute again, and installed by a commit. Who
runs the round may repeat the attempt, with other regions and other rails, until one holds everywhere.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from isthmus.plan import Strategy
from isthmus.runtime.codecs.feedback import Feedback
from isthmus.runtime.collectives.exchange import Buffers, Exchange, ExchangeOptions
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.wan.frames import message_tag
from isthmus.runtime.wan.rail import Rail

__all__ = ["Attempt", "Coding", "OuterLink", "Peers", "RailLink", "RailPeers"]

T = TypeVar("T")
SEGMENT_ELEMENTS = 1 << 20
_DELTA_TAG = 0
_LAG = 4


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of a round that does not count yet.

    Attributes:
        digest: Of all of the result; equal on all ranks of all regions.
        payload: What the commit installs.
    """

    digest: int
    payload: Any


@dataclass(frozen=True, slots=True)
class Coding:
    """How a round's vectors cross the WAN.

    Attributes:
        round: Number of the round, equal in all regions.
        feedback: Residuals in the numbering of the vector (drafts), or None.
        plain: Leave the codec out.
    """

    round: int
    feedback: Feedback | None = None
    plain: bool = False


class Peers(Protocol):
    """The regions that take part in one attempt. Its methods are called by all of them, in the same order."""

    regions: int

    def mean(self, shards: Mapping[int, torch.Tensor], means: Mapping[int, torch.Tensor], coding: Coding) -> None:
        """Write the mean over regions of every shard that this rank carries into `means`; the shards stay as they are.

        Raises:
            RailError: A region was lost, or bytes were corrupt.
        """
        ...

    def numbers(self, number: int) -> list[int]:
        """`number` (unsigned, 64 bits) of every region, in their order."""
        ...


class OuterLink(Protocol):
    """What local steps need of the world. Jobs given to `submit` run one by one, on the communication thread.

    The other methods are called inside such jobs only, by all ranks of all regions in the same order.

    Attributes:
        shards: Into how many parts a vector is divided: the largest number of ranks that a region has.
        held: Numbers of the shards that this rank carries.
    """

    shards: int
    held: tuple[int, ...]

    def submit(self, job: Callable[[], T]) -> "Future[T]": ...  # noqa: D102

    def run(self, attempt: Callable[[Peers], Attempt], commit: Callable[[Attempt], None], tokens: int) -> int:
        """One round: attempts until one holds in all regions, then `commit` of it; returns the bytes this rank sent."""
        ...

    def gather(self, shards: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """All shards, end to end in a new tensor; each rank of the region gives those it carries."""
        ...

    def prove_region(self, digest: int, what: str) -> None:
        """Compare with the other ranks of this region, now."""
        ...


class RailPeers:
    """`Peers` over the rails of one generation."""

    def __init__(self, rails: Mapping[int, Rail], strategy: Strategy, buffers: Buffers, numbers: Callable[[int], list[int]]):
        self._rails, self._strategy, self._buffers, self._numbers = rails, strategy, buffers, numbers
        self.regions = next(iter(rails.values())).regions if rails else 1

    def numbers(self, number: int) -> list[int]:
        """See `Peers`."""
        return self._numbers(number)

    def mean(self, shards: Mapping[int, torch.Tensor], means: Mapping[int, torch.Tensor], coding: Coding) -> None:
        """See `Peers`. Every segment is encoded and sent at once; decoding follows as the others' arrive."""
        if not self._rails:
            for number, shard in shards.items():
                means[number].copy_(shard)
            return
        size = next(iter(shards.values())).numel()
        exchanges = [
            self._exchange(number, shards[number], means[number], start, coding)
            for start in range(0, size, SEGMENT_ELEMENTS)
            for number in shards
        ]
        lag = _LAG if self.regions > 2 else 0
        for place in range(len(exchanges) + lag):
            if place < len(exchanges):
                exchanges[place].reduce()
            if place >= lag:
                exchanges[place - lag].finish()

    def _exchange(self, number: int, shard: torch.Tensor, mean: torch.Tensor, start: int, coding: Coding) -> Exchange:
        options = ExchangeOptions(
            codec="none" if coding.plain else self._strategy.codec,
            feedback=coding.feedback,
            first=number * shard.numel() + start,
            seed=number,
            flow=1 << 63,
            buffers=self._buffers,
        )
        tag = message_tag(_DELTA_TAG, coding.round, 0, start // SEGMENT_ELEMENTS)
        stop = start + SEGMENT_ELEMENTS
        return Exchange(self._rails[number], shard[start:stop], tag, options, mean[start:stop])


class RailLink:
    """One rail a rank, opened once: a region that is lost ends the run."""

    def __init__(self, federation: Federation, strategy: Strategy) -> None:
        assert federation.rail is not None, "local steps without a rail"
        self.shards = federation.environment.world_size
        self.held = (federation.environment.rank,)
        self._federation, self._rail = federation, federation.rail
        self._peers = RailPeers({self.held[0]: self._rail}, strategy, Buffers(), federation.numbers)

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Run `job` on the communication thread."""
        return self._federation.submit(job)

    def run(self, attempt: Callable[[Peers], Attempt], commit: Callable[[Attempt], None], tokens: int) -> int:
        """One attempt, which is committed; its digest is held against the other members' by the next round at the latest."""
        before = self._rail.wan_bytes_sent()
        result = attempt(self._peers)
        self._federation.prove(result.digest, "the outer parameters")
        commit(result)
        return self._rail.wan_bytes_sent() - before

    def gather(self, shards: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The shards of this region's ranks, end to end."""
        return self._federation.gather(shards[self.held[0]])

    def prove_region(self, digest: int, what: str) -> None:
        """Compare fingerprints within the region."""
        self._federation.prove_region(digest, what)
