"""Small agreements between all members: meet, compare fingerprints, begin from equal parameters.

Everything here runs on the communication thread (`submit`), which alone touches the rail and the communication
groups, so that every member does the same things in the same order. Large traffic is exchange.py's.
"""

import struct
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
import xxhash

from isthmus.runtime.courier import Courier
from isthmus.runtime.environment import RankEnvironment
from isthmus.runtime.hashing import ReplicaMismatchError, require_equal
from isthmus.runtime.wan.frames import TAG_LIMIT, message_tag
from isthmus.runtime.wan.rail import LinkUse, Rail, Ticket
from isthmus.runtime.world import World, gather_numbers

if TYPE_CHECKING:
    from isthmus.runtime.surviving import WatchedRounds

__all__ = ["CONTROL_TAGS", "Federation", "PlanMismatchError"]

T = TypeVar("T")

# Tags of the last numbers are ours; gradients and deltas number theirs from 0.
CONTROL_TAGS = range(TAG_LIMIT - 4, TAG_LIMIT)
_NUMBERS, _PROOFS, _PARAMETERS = CONTROL_TAGS[:3]
_NUMBER = struct.Struct("<Q")


class PlanMismatchError(ReplicaMismatchError):
    """Members were started with other plans, schedules or time-outs; the message says which of these differs."""


@dataclass(slots=True)
class _Proof:
    """A fingerprint on its way to and from the other regions."""

    what: str
    mine: int
    sent: list[Ticket]
    theirs: dict[int, tuple[bytearray, Ticket]]


@dataclass(slots=True)
class Federation:
    """All members as one rank sees them.

    Without a rail and a flat group this region is the only one that `numbers`, `prove` and `adopt_first` know of: with
    `rounds`, regions come and go, and agree by votes.
    """

    environment: RankEnvironment
    world: World
    courier: Courier
    rail: Rail | None = None
    rounds: "WatchedRounds | None" = None
    _epochs: dict[int, int] = field(default_factory=dict)
    _proofs: list[_Proof] = field(default_factory=list)

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Run `job` on the communication thread."""
        return self.courier.submit(job)

    def peers(self) -> list[int]:
        """Numbers of the other regions."""
        return [number for number in range(self.environment.regions) if number != self.environment.region_index]

    def sent_bytes(self) -> int:
        """What this rank has sent to other regions, frames included; 0 without a rail."""
        if self.rounds is not None:
            return self.rounds.sent_bytes()
        return self.rail.wan_bytes_sent() if self.rail else 0

    def counters(self) -> "Mapping[str, LinkUse]":
        """What each open link of this rank did, by the peer region's name; of several rails to it, the first."""
        rails = [self.rail] if self.rail is not None else list(self.rounds.rails.values()) if self.rounds is not None else []
        found: dict[str, LinkUse] = {}
        for rail in reversed(rails):
            found.update(rail.counters())
        return found

    def leave(self) -> None:
        """End in good order: nobody goes while others still need what it sends."""
        if self.rounds is not None:
            self.rounds.close()
        else:
            self.meet()

    def numbers(self, number: int) -> list[int]:
        """One unsigned 64-bit number of this rank's rail in every region, in their order; waits for all."""
        mine = self.environment.region_index
        if self.world.flat_comm_group is not None:
            everyone = gather_numbers(self.world.flat_comm_group, number, self.environment.global_size)
            return everyone[self.environment.rank :: self.environment.world_size]
        if self.rail is None:
            return [number]
        sent, theirs = self._swap(_NUMBERS, number)
        for ticket in sent:
            ticket.wait()
        return [number if region == mine else _landed(*theirs[region]) for region in range(self.environment.regions)]

    def meet(self) -> None:
        """Wait until every member is here (a barrier of the region, then of the rails, then of the region)."""
        for crossing in (False, True, False):
            if crossing:
                self.numbers(0)
            elif self.world.comm_group is not None:
                self.world.comm_group.barrier().wait()

    def prove(self, digest: int, what: str, *, now: bool = False) -> None:
        """Hold this rank's fingerprint of `what` against every other member's.

        The region's ranks are compared at once. Other regions' answers are compared when they are there: at the next
        proof or, with `now`, before this returns; so that a proof costs no round trip.

        Raises:
            ReplicaMismatchError: A member holds other bits.
        """
        self.prove_region(digest, what)
        self._settle()
        if self.rail is not None:
            self._proofs.append(_Proof(what, digest, *self._swap(_PROOFS, digest)))
        elif self.world.flat_comm_group is not None:
            require_equal(self._named(self.numbers(digest)), what)
        if now:
            self._settle()

    def agree(self, terms: dict[str, str]) -> None:
        """Hold what this rank was started with against every other member's, one term (name -> text) after the other.

        Raises:
            PlanMismatchError: A member has another text.
        """
        for name, text in terms.items():
            try:
                self.prove(xxhash.xxh3_64_intdigest(text.encode()), name, now=True)
            except ReplicaMismatchError as error:
                found = str(error).partition(": ")[2]
                raise PlanMismatchError(
                    f"members were not started alike: {name} differs ({found}); "
                    f"{self.environment.region} rank {self.environment.rank} has {text}"
                ) from None

    def prove_region(self, digest: int, what: str) -> None:
        """Hold this rank's fingerprint of `what` against those of the other ranks of its region, at once."""
        size = self.environment.world_size
        if self.world.comm_group is not None and size > 1:
            everyone = gather_numbers(self.world.comm_group, digest, size)
            require_equal({f"{self.environment.region} rank {rank}": value for rank, value in enumerate(everyone)}, what)

    def adopt_first(self, tensor: torch.Tensor) -> None:
        """Overwrite `tensor` (one dimension, contiguous) with that of the first rank of the first region.

        Over the WAN each rank carries its part.
        """
        group = self.world.flat_comm_group or self.world.comm_group
        if group is not None:
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = 0, 0
            group.broadcast([tensor], options).wait()
        if self.rail is not None:
            padded = torch.nn.functional.pad(tensor, (0, -tensor.numel() % self.environment.world_size))
            part = padded.view(self.environment.world_size, -1)[self.environment.rank].clone()
            tag = self._tag(_PARAMETERS)
            if self.environment.region_index == 0:
                tickets = [self.rail.send(peer, tag, part) for peer in self.peers()]
            else:
                tickets = [self.rail.receive(0, tag, part)]
            for ticket in tickets:
                ticket.wait()
            tensor.copy_(self.gather(part)[: tensor.numel()])

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        """The shards of this region's ranks, end to end in a new tensor."""
        size = self.environment.world_size
        if self.world.comm_group is None or size == 1:
            return shard.clone()
        whole = shard.new_empty(size * shard.numel())
        self.world.comm_group.allgather([list(whole.view(size, -1).unbind())], [shard]).wait()
        return whole

    def _settle(self) -> None:
        proofs, self._proofs = self._proofs, []
        for proof in proofs:
            for ticket in proof.sent:
                ticket.wait()
            values = [
                proof.mine if region == self.environment.region_index else _landed(*proof.theirs[region])
                for region in range(self.environment.regions)
            ]
            require_equal(self._named(values), proof.what)

    def _named(self, values: list[int]) -> dict[str, int]:
        assert self.environment.members is not None
        return {
            f"{region.name} rank {self.environment.rank}": value
            for region, value in zip(self.environment.members.regions, values, strict=True)
        }

    def _swap(self, kind: int, number: int) -> tuple[list[Ticket], dict[int, tuple[bytearray, Ticket]]]:
        assert self.rail is not None
        tag, mine = self._tag(kind), _NUMBER.pack(number)
        theirs: dict[int, tuple[bytearray, Ticket]] = {}
        for peer in self.peers():
            into = bytearray(_NUMBER.size)
            theirs[peer] = (into, self.rail.receive(peer, tag, into))
        return [self.rail.send(peer, tag, mine) for peer in self.peers()], theirs

    def _tag(self, kind: int) -> int:
        epoch = self._epochs.get(kind, 0)
        self._epochs[kind] = epoch + 1
        return message_tag(kind, epoch, 0, 0)


def _landed(into: bytearray, ticket: Ticket) -> int:
    ticket.wait()
    return _NUMBER.unpack(into)[0]
