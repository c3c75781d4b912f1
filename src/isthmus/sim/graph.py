"""The directed links of a fabric, in blocks of equal cables, and the tables by which routes are looked up."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import InfeasibleError, InputError, nearest

__all__ = ["Block", "Cables", "Carriage", "Ints", "Numbers", "Shares", "refuse_dead"]

Ints = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the links of one region carry of their line rate: NVLink (or its like), PCIe between GPUs, the slot of a GPU on
    the way to its adapter, adapters and switches.
    """

    nvlink: float = 1.0
    pcie: float = 1.0
    host: float = 1.0
    network: float = 1.0


def _at_once(_collective: str, _size_bytes: float, _inside: int, _nodes: int, _algorithm: str) -> float:
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Carriage:
    """What links carry of their line rate, told by the caller: this room and `cost` know nothing of each other.

    Attributes:
        regions: By name of the region; line rate where one is not named.
        wan: Of the rate of the links between regions (headers).
        wan_flow_bytes_per_s: By pair of regions, the most that the streams of one pair of GPUs carry over the WAN: windows
            and loss. Pairs that are not named have no limit of their own.
        hop_s: By level name of `fabric.levels`, what one message takes beside its bytes; NCCL's constants where not named.
        pairwise: Of what a link carries in rings, what it carries of an all-to-all inside a region.
        start_s: Seconds before the first byte of a collective: (collective, bytes, GPUs of a node, nodes, algorithm).
    """

    regions: dict[str, Shares] = field(default_factory=dict[str, Shares])
    wan: float = 1.0
    wan_flow_bytes_per_s: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    hop_s: dict[str, float] = field(default_factory=dict[str, float])
    pairwise: float = 1.0
    start_s: Callable[[str, float, int, int, str], float] = _at_once

    def of(self, region: str) -> Shares:
        """The shares of `region`."""
        return self.regions.get(region, Shares())


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Equal cables, numbered by `dims`; cable k has an up link `first + k` and a down link `first + count + k`.

    Up is away from the GPU and, on the WAN and a torus, from the first named end to the second.
    """

    pattern: str
    dims: tuple[int, ...]
    first: int
    level: str

    @property
    def count(self) -> int:
        """Cables."""
        return prod(self.dims)

    def up(self, *index: Ints | int) -> Ints:
        """Up links of the cables at `index`."""
        return self.first + np.ravel_multi_index([np.asarray(i) for i in index], self.dims)

    def down(self, *index: Ints | int) -> Ints:
        """Down links of the cables at `index`."""
        return self.up(*index) + self.count

    def name(self, link: int) -> str:
        """The cable of `link` and the direction, such as `west/node3/nic0:up`."""
        cable, direction = (link - self.first) % self.count, "up" if link - self.first < self.count else "down"
        return f"{self.pattern.format(*(int(i) for i in np.unravel_index(cable, self.dims)))}:{direction}"


class Cables:
    """All links of a fabric while it is wired and after."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._capacity: list[Numbers] = []
        self.links = 0

    def add(self, pattern: str, dims: Sequence[int], level: str, bytes_per_s: float | Numbers) -> Block:
        """Lay a block of cables of `bytes_per_s` each way, or one figure a cable."""
        block = Block(pattern=pattern, dims=tuple(dims), first=self.links, level=level)
        one_way = np.broadcast_to(np.asarray(bytes_per_s, dtype=np.float64), (block.count,))
        self._capacity += [one_way, one_way]
        self.links += 2 * block.count
        self.blocks.append(block)
        return block

    def capacity(self) -> Numbers:
        """Bytes/s of every link."""
        return np.concatenate(self._capacity) if self._capacity else np.zeros(0)

    def block_of(self, link: int) -> Block:
        """The block that `link` belongs to."""
        return self.blocks[bisect_right([block.first for block in self.blocks], link) - 1]

    def name(self, link: int) -> str:
        """What `link` is called."""
        return self.block_of(link).name(link)

    def levels(self) -> list[str]:
        """Levels in the order they were wired, from the GPU outwards."""
        return list(dict.fromkeys(block.level for block in self.blocks))

    def find(self, text: str, argument: str) -> tuple[Ints, float]:
        """The links that `text` names, and the share of each that it means; `*` stands for any number.

        A cable is both its links; `:up` or `:down` picks one. Where a block bundles uplinks, `.../uplink3` means one of
        them.

        Raises:
            InputError: No cable has that name.
        """
        wanted, _, direction = text.partition(":")
        if direction not in ("", "up", "down"):
            raise InputError(argument, f"{text!r} has no direction {direction!r}", "write :up, :down, or neither for both")
        for block in self.blocks:
            found = self._in_block(block, wanted)
            if found is not None:
                cables, share = found
                sides = {"": (0, 1), "up": (0,), "down": (1,)}[direction]
                return np.concatenate([block.first + side * block.count + cables for side in sides]), share
        shown = [block.pattern.format(*[0] * len(block.dims)) for block in self.blocks]
        raise InputError(argument, f"no cable is called {wanted!r}", nearest(wanted, shown))

    def _in_block(self, block: Block, wanted: str) -> tuple[Ints, float] | None:
        pattern, share = block.pattern, 1.0
        bundle = re.fullmatch(r"(.*/)(\d+) uplinks", pattern)
        if bundle and re.search(r"/uplink(\d+|\*)$", wanted):
            uplink = int(wanted.rpartition("uplink")[2].replace("*", "0"))
            if uplink < int(bundle[2]):
                pattern, share = f"{bundle[1]}uplink", 1 / int(bundle[2])
                wanted = wanted.rpartition("uplink")[0] + "uplink"
        parts = re.split(r"\{\}", pattern)
        match = re.fullmatch(r"(\d+|\*)".join(re.escape(part) for part in parts), wanted)
        if match is None:
            return None
        chosen = list(zip(match.groups(), block.dims, strict=True))
        if any(text != "*" and int(text) >= size for text, size in chosen):
            return None
        picks = [np.arange(size) if text == "*" else np.array([int(text)]) for text, size in chosen]
        grid = np.meshgrid(*picks, indexing="ij") if picks else []
        cables = np.ravel_multi_index([axis.ravel() for axis in grid], block.dims) if picks else np.zeros(1, dtype=np.int64)
        return cables.astype(np.int64), share


def refuse_dead(capacity: Numbers, links: Ints, cables: Cables) -> None:
    """Refuse flows over a cable that carries nothing.

    Raises:
        InfeasibleError: Names the first.
    """
    if not (capacity <= 0).any():
        return
    used = links[links >= 0]
    dead = used[capacity[used] <= 0]
    if dead.size:
        name = cables.name(int(dead[0]))
        raise InfeasibleError(f"{name} carries nothing and no other way leads past it", f"the cable {name.partition(':')[0]}")
