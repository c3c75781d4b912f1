"""How local steps reach the other regions: the seam `OuterLink`, and its two ways: through `Rounds`, and over a lone rail.

A round is computed by an attempt, which changes nothing that it could not compute again, and installed by a commit. `Rounds`
repeats the attempt, with other regions and other rails, until one holds everywhere.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist

from isthmus.plan import Strategy
from isthmus.runtime.codecs.coding import Codec, codec_of
from isthmus.runtime.codecs.feedback import Feedback
from isthmus.runtime.collectives.exchange import Buffers, Exchange, ExchangeOptions
from isthmus.runtime.collectives.gather import gather
from isthmus.runtime.courier import Courier
from isthmus.runtime.environment import RankEnvironment
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.federation.states import Attempt, AttemptWork, Committed, Rejoined
from isthmus.runtime.hashing import require_equal
from isthmus.runtime.wan.frames import RailError, message_tag
from isthmus.runtime.wan.rail import Rail, Ticket
from isthmus.runtime.world import gather_numbers

__all__ = ["Bell", "Coding", "OuterLink", "Peers", "RailLink", "RailPeers", "Ran", "RoundsLike", "RoundsLink", "gather_shards"]

T = TypeVar("T")
SEGMENT_ELEMENTS = 1 << 20
_DELTA_TAG, _NUMBER_TAG, _READY_TAG = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Ran:
    """How a round went: bytes that this rank sent to other regions, and whether their state was adopted instead."""

    sent_bytes: int
    rejoined: Rejoined | None = None


@dataclass(frozen=True, slots=True)
class Coding:
    """How a round's vectors cross the WAN.

    Attributes:
        feedback: Residuals in the numbering of the vector (drafts), or None.
        plain: Leave the codec out.
    """

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
        elastic: Whether a region may come to a round with nothing to bring.
    """

    shards: int
    held: tuple[int, ...]
    elastic: bool

    def submit(self, job: Callable[[], T]) -> "Future[T]": ...  # noqa: D102

    def run(self, attempt: Callable[[Peers], Attempt], commit: Callable[[Attempt], None], tokens: int) -> Ran:
        """One round: attempts until one holds in all regions, then `commit` of it; or neither, and the others' state adopted."""
        ...

    def gather(self, shards: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """All shards, end to end in a new tensor; each rank of the region gives those it carries."""
        ...

    def region_numbers(self, number: int) -> list[int]:
        """`number` (unsigned, 64 bits) of every rank of this region."""
        ...

    def ready(self) -> "Bell":
        """The bell by which regions tell each other that they are ready for the next round."""
        ...

    def prove_region(self, digest: int, what: str) -> None:
        """Compare with the other ranks of this region, now."""
        ...


class Bell(Protocol):
    """One round's readiness. Errors of the rails are the round's to find, so here they count as heard."""

    def ring(self) -> None:
        """Tell the others."""
        ...

    def heard(self) -> bool:
        """Whether another region has rung."""
        ...


class RailPeers:
    """`Peers` over the rails of one generation, for round number `number`."""

    def __init__(self, rails: Mapping[int, Rail], strategy: Strategy, buffers: Buffers, number: int) -> None:
        self._rails, self._strategy, self._buffers, self._number = rails, strategy, buffers, number
        self.regions = next(iter(rails.values())).regions if rails else 1
        self._asked = 0

    def numbers(self, number: int) -> list[int]:
        """See `Peers`. Every rail carries it, so that it comes to every rank, whatever rails that has."""
        tag = message_tag(_NUMBER_TAG, self._number, 0, self._asked)
        self._asked += 1
        mine = torch.tensor([number - (1 << 63)], dtype=torch.int64)  # torch counts with a sign
        found = [gather(rail, mine, tag) for rail in self._rails.values()] or [[mine]]
        return [int(one.item()) + (1 << 63) for one in found[0]]

    def mean(self, shards: Mapping[int, torch.Tensor], means: Mapping[int, torch.Tensor], coding: Coding) -> None:
        """See `Peers`. All is asked for, then every segment encoded and sent; decoding follows as the others' arrive."""
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
        for exchange in exchanges:
            exchange.start()
        finished = 0
        for place, exchange in enumerate(exchanges):
            exchange.reduce()
            while finished < place and exchanges[finished].ready:
                exchanges[finished].finish()
                finished += 1
        for exchange in exchanges[finished:]:
            exchange.finish()

    def _exchange(self, number: int, shard: torch.Tensor, mean: torch.Tensor, start: int, coding: Coding) -> Exchange:
        options = ExchangeOptions(
            codec=Codec("none") if coding.plain else codec_of(self._strategy),
            feedback=coding.feedback,
            first=number * shard.numel() + start,
            seed=number,
            flow=1 << 63,
            buffers=self._buffers,
        )
        tag = message_tag(_DELTA_TAG, self._number, 0, start // SEGMENT_ELEMENTS)
        stop = start + SEGMENT_ELEMENTS
        return Exchange(self._rails[number], shard[start:stop], tag, options, mean[start:stop])


def gather_shards(
    group: dist.ProcessGroup | None, ranks: int, shards: int, given: Mapping[int, torch.Tensor]
) -> torch.Tensor:
    """All shards end to end in a new tensor, of which each of the group's ranks gives those whose number is its own modulo
    `ranks`; all have one shape (n,), dtype and device."""
    rows, some = -(-shards // ranks), next(iter(given.values()))
    if group is None or ranks == 1:
        return torch.cat([given[number] for number in range(shards)])
    mine = some.new_zeros(rows, some.numel())
    for row, number in enumerate(sorted(given)):
        mine[row] = given[number]
    everyone = mine.new_empty(ranks, *mine.shape)
    group.allgather([list(everyone.unbind())], [mine]).wait()
    return everyone.transpose(0, 1).reshape(rows * ranks, -1)[:shards].reshape(-1)


class RoundsLike(Protocol):
    """What is used of `isthmus.runtime.federation.rounds.Rounds`."""

    @property
    def round(self) -> int: ...  # noqa: D102

    @property
    def rails(self) -> Mapping[int, Rail]: ...  # noqa: D102

    def run(self, attempt: AttemptWork, tokens: int, commit: Callable[[Attempt], None]) -> Committed: ...  # noqa: D102


class RoundsLink:
    """Rounds with a vote: a region may be lost in any of them, and come back."""

    elastic = True

    def __init__(
        self,
        environment: RankEnvironment,
        group: dist.ProcessGroup | None,
        courier: Courier,
        rounds: RoundsLike,
        strategy: Strategy,
    ) -> None:
        """`group` is of this region's ranks, for the communication thread; the shards are those of members.json."""
        rails = [len(region.rails) for region in environment.members.regions] if environment.members else [environment.world_size]
        self.shards, self._ranks = max(rails), environment.world_size
        self.held = tuple(range(environment.rank, self.shards, self._ranks))
        self._group, self._courier, self._rounds, self._strategy = group, courier, rounds, strategy
        self._buffers, self._region = Buffers(), environment.region

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Run `job` on the communication thread."""
        return self._courier.submit(job)

    def run(self, attempt: Callable[[Peers], Attempt], commit: Callable[[Attempt], None], tokens: int) -> Ran:
        """See `OuterLink`."""
        sent_bytes = 0

        def work(_: object, rails: Mapping[int, Rail]) -> Attempt:
            nonlocal sent_bytes
            before = sum(rail.wan_bytes_sent() for rail in rails.values())
            try:
                # A round is tried once in a generation, whose rails are its own.
                return attempt(RailPeers(rails, self._strategy, self._buffers, self._rounds.round))
            finally:
                sent_bytes += sum(rail.wan_bytes_sent() for rail in rails.values()) - before

        committed = self._rounds.run(work, tokens, commit)
        return Ran(sent_bytes, committed.rejoined)

    def gather(self, shards: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """See `OuterLink`."""
        return gather_shards(self._group, self._ranks, self.shards, shards)

    def region_numbers(self, number: int) -> list[int]:
        """See `OuterLink`."""
        return [number] if self._group is None or self._ranks == 1 else gather_numbers(self._group, number, self._ranks)

    def ready(self) -> "RailBell":
        """See `OuterLink`."""
        return RailBell(self._rounds.rails, self._rounds.round)

    def prove_region(self, digest: int, what: str) -> None:
        """See `OuterLink`."""
        everyone = self.region_numbers(digest)
        require_equal({f"{self._region} rank {rank}": value for rank, value in enumerate(everyone)}, what)


class RailBell:
    """A `Bell` of one byte to every peer, on every rail of this rank."""

    def __init__(self, rails: Mapping[int, Rail], number: int) -> None:
        self._rails, self._tag = rails, message_tag(_READY_TAG, number, 0, 0)
        self._tickets = [ticket for rail in rails.values() for peer in _peers(rail) if (ticket := self._ask(rail, peer))]
        self._broken = len(self._tickets) < sum(rail.regions - 1 for rail in rails.values())

    def ring(self) -> None:
        """See `Bell`."""
        for rail in self._rails.values():
            for peer in _peers(rail):
                with suppress(RailError):
                    rail.send(peer, self._tag, b"!")

    def heard(self) -> bool:
        """See `Bell`."""
        return self._broken or any(ticket.done for ticket in self._tickets)

    def _ask(self, rail: Rail, peer: int) -> Ticket | None:
        try:
            return rail.receive(peer, self._tag, bytearray(1))
        except RailError:
            return None


class RailLink:
    """One rail a rank, opened once: a region that is lost ends the run."""

    elastic = False

    def __init__(self, federation: Federation, strategy: Strategy) -> None:
        assert federation.rail is not None, "local steps without a rail"
        self.shards = federation.environment.world_size
        self.held = (federation.environment.rank,)
        self._federation, self._rail, self._strategy = federation, federation.rail, strategy
        self._buffers, self._number = Buffers(), 0

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Run `job` on the communication thread."""
        return self._federation.submit(job)

    def run(self, attempt: Callable[[Peers], Attempt], commit: Callable[[Attempt], None], tokens: int) -> Ran:
        """One attempt, which is committed; its digest is held against the other members' by the next round at the latest."""
        before, rails = self._rail.wan_bytes_sent(), {self.held[0]: self._rail}
        result = attempt(RailPeers(rails, self._strategy, self._buffers, self._number))
        self._number += 1
        self._federation.prove(result.digest, "the outer parameters")
        commit(result)
        return Ran(self._rail.wan_bytes_sent() - before)

    def region_numbers(self, number: int) -> list[int]:
        """See `OuterLink`."""
        group = self._federation.world.comm_group
        return [number] if group is None or self.shards == 1 else gather_numbers(group, number, self.shards)

    def ready(self) -> Bell:
        """Never: regions without votes take equal numbers of steps."""
        raise AssertionError("a lone rail has no grace")

    def gather(self, shards: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The shards of this region's ranks, end to end."""
        return gather_shards(self._federation.world.comm_group, self.shards, self.shards, shards)

    def prove_region(self, digest: int, what: str) -> None:
        """Compare fingerprints within the region."""
        self._federation.prove_region(digest, what)


def _peers(rail: Rail) -> list[int]:
    return [peer for peer in range(rail.regions) if peer != rail.region]
