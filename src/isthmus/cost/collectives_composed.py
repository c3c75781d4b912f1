"""All-reduces that are several collectives in turn: hierarchies, roots, tori, and over the regions by way of the WAN.

Each step is priced by `collectives_time`; nothing here knows a link. What is left out is the same everywhere: chunks of one
step that overlap those of the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isthmus.cost.collectives_constants import Constants
from isthmus.cost.collectives_group import Group, GroupLevel, part_of, ranks_of
from isthmus.cost.collectives_time import seconds_of
from isthmus.cost.paths import Wan, exchange_s
from isthmus.formats.collective_runs import Algorithm, Collective, Protocol

__all__ = ["AUTO", "RING", "Part", "across_regions", "hierarchical", "root", "seconds_of_parts", "torus"]

Way = tuple[Algorithm, Protocol]
AUTO: Way = ("auto", "auto")
RING: Way = ("ring", "simple")
"""What the simulator plays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One collective of a composed all-reduce: over which ranks, and its seconds alone."""

    what: str
    seconds: float


def seconds_of_parts(parts: Sequence[Part]) -> float:
    """All of them, one after another."""
    return sum(part.seconds for part in parts)


def hierarchical(
    size_bytes: float, group: Group, constants: Constants, way: Way = AUTO, wan: Wan | None = None
) -> list[Part]:
    """Reduce-scatter in the node, all-reduce of the 1/g shard on each GPU's own rail, all-gather in the node.

        t(S) = RS(S, node) + AR(S / g, rail) + AG(S, node);   over a WAN AR = RS(S / g, rail) + exchange(S) + AG(S / g, rail)

    Levels above the node are one group: their rails run through all of them. NCCL and NeMo do the same three steps.
    """
    inside = group[:1] if group and group[0].in_node else ()
    members = ranks_of(inside)
    rails = part_of(group, members, ranks_of(group) // members)
    shard, how = size_bytes / members, (constants, way)
    if wan is None:
        middle = [_part("all-reduce", shard, (rails, *how))]
    else:
        middle = [
            _part("reduce-scatter", shard, (rails, *how)),
            _exchange(size_bytes, wan),
            _part("all-gather", shard, (rails, *how)),
        ]
    parts = [_part("reduce-scatter", size_bytes, (inside, *how)), *middle, _part("all-gather", size_bytes, (inside, *how))]
    return [part for part in parts if part.seconds > 0]


def root(size_bytes: float, group: Group, constants: Constants) -> list[Part]:
    """Reduce to one GPU of each node, all-reduce among these, broadcast back: the baseline that uses one rail of a node."""
    inside = group[:1] if group and group[0].in_node else ()
    rails = part_of(group, ranks_of(inside), ranks_of(group) // ranks_of(inside))
    parts = [
        _part("reduce", size_bytes, (inside, constants, AUTO)),
        _part("all-reduce", size_bytes, (rails, constants, AUTO)),
        _part("broadcast", size_bytes, (inside, constants, AUTO)),
    ]
    return [part for part in parts if part.seconds > 0]


def torus(size_bytes: float, links: GroupLevel, dimensions: Sequence[int], constants: Constants) -> list[Part]:
    """A ring along each dimension in turn: reduce-scatter on the way in, all-gather on the way out.

        t = sum over i of AR(S_i, k_i),   S_1 = S, S_(i+1) = S_i / k_i

    `links` joins two neighbours: its rate is one link's, per direction; a node has one ring of each dimension to itself. Leaves
    out: using all dimensions at once on shifted parts of the buffer, which divides the wire time by their number.
    Source: textbook (Thakur et al., Int. J. High Perform. Comput. Appl. 19(1), 2005, for the steps in one dimension).
    """
    parts: list[Part] = []
    for members in dimensions:
        if members > 1:
            ring: Group = (replace(links, members=members),)
            parts.append(_part("all-reduce", size_bytes, (ring, constants, AUTO)))
            size_bytes /= members
    return parts


def across_regions(size_bytes: float, group: Group, wan: Wan, constants: Constants) -> list[Part]:
    """Over every GPU of every region, as isthmus does it: reduce-scatter in the region, shards over the WAN, all-gather.

    `group` is one region (`collectives_group.sites_group`); the exchange is `paths.exchange_s`.
    """
    parts = [
        _part("reduce-scatter", size_bytes, (group, constants, AUTO)),
        _exchange(size_bytes, wan),
        _part("all-gather", size_bytes, (group, constants, AUTO)),
    ]
    return [part for part in parts if part.seconds > 0]


def _exchange(size_bytes: float, wan: Wan) -> Part:
    return Part(what=f"exchange between {wan.regions} regions", seconds=exchange_s(size_bytes, wan))


def _part(collective: Collective, size_bytes: float, over: tuple[Group, Constants, Way]) -> Part:
    group, constants, way = over
    carriers = " and ".join(dict.fromkeys(level.carrier for level in group))
    return Part(what=f"{collective} over {carriers}", seconds=seconds_of(collective, size_bytes, group, constants, way))
