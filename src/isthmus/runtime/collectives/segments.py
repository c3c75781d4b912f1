"""How a tensor is cut into shards, one a rail, for regions of equal or unequal numbers of ranks.

N rails, the most that any region has ranks, cut each segment into N shards, and rank i mod g of a region of g ranks
carries shard i. Inside a smaller region every rank has ceil(N / g) places for shards, some of them empty; they cost
traffic there (at most g - 1 shards of N), none between regions.
"""

from dataclasses import dataclass

import torch

from isthmus.runtime.device import host_memory

__all__ = ["Place", "Segment", "Shard"]


@dataclass(frozen=True, slots=True)
class Place:
    """This rank among those of its region, and the number of rails of all regions."""

    rank: int
    ranks: int
    total: int


@dataclass(slots=True)
class Shard:
    """What one rail carries of a segment.

    Attributes:
        rail: Its number.
        first: Of its elements in the tensor.
        at: Of its elements in this rank's own part of the segment.
        out: Where the result goes.
        given: What the other regions get: the same memory, except where the exchange may have to be repeated.
    """

    rail: int
    first: int
    at: int
    out: torch.Tensor
    given: torch.Tensor


class Segment:
    """A piece of a tensor, and the same with a place for every shard: those of rank 0, then those of rank 1, and so on.

    Where the shards come out even and in order, the places are the piece's own memory.

    Attributes:
        padded: The places, on the tensor's device.
        part: This rank's own part of them.
        own: The same on the host, which is what crosses between regions: `part` itself, or where `staged` a copy.
        shards: What this rank carries of the segment; views of `own`.
        retained: This rank's sums, where they must outlive the exchange.
    """

    def __init__(self, view: torch.Tensor, start: int, place: Place, *, staged: bool = False) -> None:
        share, places = -(-view.numel() // place.total), -(-place.total // place.ranks)
        order = [rank + place.ranks * number for rank in range(place.ranks) for number in range(places)]
        straight = order == list(range(place.total)) and share * place.total == view.numel()
        self._view = view
        self.padded = view if straight else torch.zeros(share * len(order), device=view.device)
        self.retained: torch.Tensor | None = None
        mine = place.rank * places * share
        self.part = self.padded[mine : mine + places * share]
        self.staged = staged
        self.own = host_memory(places * share, view.device) if staged else self.part
        # (where a shard is in `padded`, where in `view`, its elements), by place; empty ones have none.
        bounds = [(min(rail * share, view.numel()), min((rail + 1) * share, view.numel())) for rail in order]
        self._places = [(number * share, low, high - low) for number, (low, high) in enumerate(bounds)]
        self.shards = [
            Shard(order[number], start + low, at - mine, *[self.own[at - mine : at - mine + elements]] * 2)
            for number, (at, low, elements) in enumerate(self._places)
            if order[number] < place.total and number // places == place.rank
        ]

    def load(self) -> None:
        """The piece goes to the places."""
        if self.padded is not self._view:
            for at, low, elements in self._places:
                self.padded[at : at + elements] = self._view[low : low + elements]

    def give(self, own: torch.Tensor) -> None:
        """`own`, laid out as `self.own`, holds what the shards give to the other regions."""
        for shard in self.shards:
            shard.given = own[shard.at : shard.at + shard.out.numel()]

    def store(self) -> None:
        """What is in the places goes to the piece."""
        if self.padded is not self._view:
            for at, low, elements in self._places:
                self._view[low : low + elements] = self.padded[at : at + elements]
