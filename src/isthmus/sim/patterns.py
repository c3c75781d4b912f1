"""Collectives as phases of streams. Sizes are the whole buffer, as nccl-tests counts them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Literal, get_args

import numpy as np

from isthmus.errors import InfeasibleError, InputError, nearest
from isthmus.sim.fabric_map import FabricMap
from isthmus.sim.graph import Ints, Numbers
from isthmus.sim.groups import channel_orders, equal_groups, inner_groups, ring_orders, tree_parents
from isthmus.sim.phase import Phase, phase_of
from isthmus.sim.routes import route

__all__ = ["ALGORITHMS", "CHUNK_BYTES", "COLLECTIVES", "Collective", "Kind", "phases_of"]

Kind = Literal["all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all"]
COLLECTIVES: tuple[Kind, ...] = get_args(Kind)
ALGORITHMS: dict[Kind, tuple[str, ...]] = {
    "all-reduce": ("hierarchical", "ring", "tree"),
    "reduce-scatter": ("hierarchical", "ring"),
    "all-gather": ("hierarchical", "ring"),
    "broadcast": ("ring",),
    "all-to-all": ("burst", "shift"),
}
"""By collective, the first by default."""

CHUNK_BYTES = 512 * 1024
"""What one slot of NCCL's buffer holds (4 MiB in 8 steps), and so the grain of pipelined trees and chains."""
CHUNKS_MOST = 64
"""Larger buffers are pipelined in larger chunks here: 64 fill a chain to within a few per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What is asked: `size_bytes` over `ranks` by `algorithm`; `seed` decides where hashes send flows."""

    kind: Kind
    size_bytes: float
    ranks: Ints
    algorithm: str
    seed: int = 0


def phases_of(chart: FabricMap, asked: Collective) -> list[Phase]:
    """The streams of `asked` on `chart`, in phases that follow one another.

    Raises:
        InputError: The algorithm is not one of this collective.
        InfeasibleError: Nodes of unequal size where the algorithm needs equal ones, or fewer than two ranks.
    """
    if asked.algorithm not in ALGORITHMS[asked.kind]:
        raise InputError(
            "--algorithm", f"{asked.kind} has no algorithm {asked.algorithm!r}", nearest(asked.algorithm, ALGORITHMS[asked.kind])
        )
    if len(asked.ranks) < 2:
        raise InfeasibleError(f"{asked.kind} over {len(asked.ranks)} GPU moves nothing", "two ranks or more")
    builders: dict[str, Callable[[FabricMap, Collective], list[Phase]]] = {
        "ring": _broadcast if asked.kind == "broadcast" else _ring, "tree": _tree, "hierarchical": _hierarchical,
        "burst": _burst, "shift": _shift,
    }  # fmt: skip
    return builders[asked.algorithm](chart, asked)


def _laps(kind: Kind) -> int:
    return 2 if kind == "all-reduce" else 1


def _rings(chart: FabricMap, name: str, orders: Sequence[Ints], message_bytes: Numbers | float, rounds: int, seed: int) -> Phase:
    """Rings through `orders` at once; rank i sends message r when message r - 1 from rank i - 1 has come."""
    lengths = np.array([len(order) for order in orders])
    ends, source = np.cumsum(lengths), np.concatenate(orders)
    place = np.arange(len(source))
    following, previous = place + 1, place - 1
    following[ends - 1], previous[ends - lengths] = ends - lengths, ends - 1
    needs = np.stack([previous, place, np.ones_like(place)], axis=1)
    sizes = np.broadcast_to(np.asarray(message_bytes, dtype=np.float64), (len(orders),))
    target = source[following]
    return phase_of(name, route(chart, source, target, seed), (source, target), np.repeat(sizes, lengths), rounds, needs)


def _ring(chart: FabricMap, asked: Collective) -> list[Phase]:
    groups = inner_groups(chart, asked.ranks)
    orders = channel_orders(chart, groups)
    ranks = len(asked.ranks)
    name = f"{len(orders)} ring{'s' if len(orders) > 1 else ''} of {ranks}"
    rounds = _laps(asked.kind) * (ranks - 1)
    phase = _rings(chart, name, orders, asked.size_bytes / len(orders) / ranks, rounds, asked.seed)
    return [_started(chart, phase, (asked.kind, asked.size_bytes), groups, "ring")]


def _called(chart: FabricMap, phase: Phase, asked: Collective, algorithm: str) -> Phase:
    """`phase` after what the call takes where chunks are played one by one, so that filling their pipeline is played too."""
    groups = inner_groups(chart, asked.ranks)
    return _started(chart, phase, (asked.kind, 0.0), groups, algorithm)


def _started(chart: FabricMap, phase: Phase, what: tuple[str, float], groups: Sequence[Ints], algorithm: str) -> Phase:
    """`phase` after what a collective `what` = (kind, bytes) over the nodes `groups` takes before its first byte."""
    kind, size = what
    return replace(phase, start_s=chart.carriage.start_s(kind, size, max(map(len, groups)), len(groups), algorithm))


def _hierarchical(chart: FabricMap, asked: Collective) -> list[Phase]:
    """Reduce-scatter in the node, then on each GPU's rail over nodes and regions, all-gather back."""
    groups = inner_groups(chart, asked.ranks)
    members = equal_groups(groups, "a hierarchical collective")
    inner = [ring_orders(chart, group) for group in groups]
    each = asked.size_bytes / members / len(inner[0])
    orders = [order for orders in inner for order in orders]
    rails = np.stack(groups)  # [node, rail]
    regions = [rails[chart.region[rails[:, 0]] == region] for region in np.unique(chart.region[rails[:, 0]])]
    shard = asked.size_bytes / members

    def near(kind: str) -> Phase:
        phase = _rings(chart, f"{kind} in the node", orders, each, members - 1, asked.seed)
        return _started(chart, phase, (kind, asked.size_bytes), groups[:1], "ring")

    def far(kind: str, laps: int = 1) -> Phase:
        phase = _rings(chart, f"{kind} on the rails", columns, sizes, laps * rounds, asked.seed)
        return _started(chart, phase, (kind, shard), [group[:1] for group in long_[0]], "ring")

    inward: list[Phase] = []
    outward: list[Phase] = []
    if members > 1:
        inward.append(near("reduce-scatter"))
        outward.append(near("all-gather"))
    middle: list[Phase] = []
    long_ = [nodes for nodes in regions if len(nodes) > 1]
    columns = [nodes[:, rail] for nodes in long_ for rail in range(members)]
    sizes = np.array([shard / len(nodes) for nodes in long_ for _ in range(members)])
    rounds = max((len(nodes) for nodes in long_), default=1) - 1
    if columns and len({len(column) for column in columns}) > 1:
        raise InfeasibleError("regions of unequal size have no common rounds", "nodes of a region")
    if len(regions) == 1 and columns:
        middle.append(far(asked.kind, _laps(asked.kind)))
    elif columns:
        inward.append(far("reduce-scatter"))
        outward.insert(0, far("all-gather"))
    if len(regions) > 1:
        middle = _exchange(chart, asked, [nodes.ravel() for nodes in regions])
    kept = {"all-reduce": (True, True), "reduce-scatter": (True, False), "all-gather": (False, True)}[asked.kind]
    return [*(inward if kept[0] else []), *middle, *(outward if kept[1] else [])]


def _exchange(chart: FabricMap, asked: Collective, regions: Sequence[Ints]) -> list[Phase]:
    """Shards over the WAN: two regions swap them whole; more send each its part, then all the sums."""
    count = len(regions)
    source: list[int] = []
    target: list[int] = []
    sizes: list[float] = []
    part = asked.size_bytes if count == 2 and asked.kind == "all-reduce" else asked.size_bytes / count
    for a in regions:
        for b in regions:
            if a is not b:
                for i, j, share in _overlaps(len(a), len(b)):
                    source.append(int(a[i]))
                    target.append(int(b[j]))
                    sizes.append(part * share)
    ends = (np.array(source), np.array(target))
    phase = phase_of("exchange between regions", route(chart, *ends, asked.seed), ends, np.array(sizes))
    if count == 2 or asked.kind != "all-reduce":
        return [phase]
    return [replace(phase, name="reduce-scatter between regions"), replace(phase, name="all-gather between regions")]


def _overlaps(ours: int, theirs: int) -> list[tuple[int, int, float]]:
    """Pairs of shards that overlap when one buffer is cut into `ours` and into `theirs` parts, and the share they share."""
    cuts = sorted({*(i * theirs for i in range(ours + 1)), *(j * ours for j in range(theirs + 1))})
    whole = ours * theirs
    return [(a // theirs, a // ours, (b - a) / whole) for a, b in pairwise(cuts)]


def _chunks(size_bytes: float) -> int:
    return max(1, min(CHUNKS_MOST, ceil(size_bytes / CHUNK_BYTES)))


def _broadcast(chart: FabricMap, asked: Collective) -> list[Phase]:
    """Chunks pass along every channel's ring from the root, the first rank; message r goes on when it has come."""
    root = asked.ranks[0]
    orders = [np.roll(order, -int(np.flatnonzero(order == root)[0])) for order in _rooted(chart, asked)]
    part = asked.size_bytes / len(orders)
    chunks = _chunks(part)
    needs: list[Ints] = []
    begin = 0
    for order in orders:
        edge = begin + np.arange(1, len(order) - 1)
        needs.append(np.stack([edge - 1, edge, np.zeros_like(edge)], axis=1))
        begin += len(order) - 1
    ends = np.concatenate([order[:-1] for order in orders]), np.concatenate([order[1:] for order in orders])
    name = f"chain of {len(asked.ranks)} in {chunks} chunks"
    phase = phase_of(name, route(chart, *ends, asked.seed), ends, part / chunks, chunks, np.concatenate(needs))
    return [_called(chart, phase, asked, "ring")]


def _rooted(chart: FabricMap, asked: Collective) -> list[Ints]:
    return channel_orders(chart, inner_groups(chart, asked.ranks))


def _tree(chart: FabricMap, asked: Collective) -> list[Phase]:
    """Double binary trees over nodes, a chain inside each, reduce and broadcast pipelined; one pair of trees a channel."""
    groups = inner_groups(chart, asked.ranks)
    orders = channel_orders(chart, groups)
    forests = tree_parents(len(groups))
    part = asked.size_bytes / len(orders) / 2
    chunks = _chunks(part)
    source: list[int] = []
    target: list[int] = []
    needs: list[tuple[int, int, int]] = []
    for order in orders:
        begins = np.cumsum([0, *(len(group) for group in groups)])
        chains = [order[a:b] for a, b in pairwise(begins)]
        for parents in forests:
            _one_tree(chains, parents, (source, target), needs)
    ends = np.array(source), np.array(target)
    name = f"{2 * len(orders)} trees over {len(groups)} node{'s' if len(groups) > 1 else ''} in {chunks} chunks"
    waits = np.array(needs, dtype=np.int64).reshape(-1, 3)
    phase = phase_of(name, route(chart, *ends, asked.seed), ends, part / chunks, chunks, waits)
    return [_called(chart, phase, asked, "tree")]


def _one_tree(
    chains: list[Ints], parents: list[int], ends: tuple[list[int], list[int]], needs: list[tuple[int, int, int]]
) -> None:
    """Streams of one tree: up the chains and the tree, then down; each message waits for its own number below or above."""

    def stream(a: int, b: int, waits: list[int]) -> int:
        ends[0].append(a)
        ends[1].append(b)
        needs.extend((before, len(ends[0]) - 1, 0) for before in waits)
        return len(ends[0]) - 1

    came: list[list[int]] = []  # streams that end at each head
    for chain in chains:
        last: list[int] = []
        for a, b in zip(chain[:0:-1], chain[-2::-1], strict=True):
            last = [stream(int(a), int(b), last)]
        came.append(last)
    depth = [_depth(node, parents) for node in range(len(parents))]
    for node in sorted(range(len(parents)), key=lambda node: -depth[node]):
        if parents[node] >= 0:
            came[parents[node]].append(stream(int(chains[node][0]), int(chains[parents[node]][0]), came[node]))
    for node in sorted(range(len(parents)), key=lambda node: depth[node]):
        if parents[node] >= 0:
            came[node] = [stream(int(chains[parents[node]][0]), int(chains[node][0]), came[parents[node]])]
        last = came[node]
        for a, b in zip(chains[node], chains[node][1:], strict=False):
            last = [stream(int(a), int(b), last)]


def _depth(node: int, parents: list[int]) -> int:
    depth = 0
    while parents[node] >= 0:
        node, depth = parents[node], depth + 1
    return depth


def _burst(chart: FabricMap, asked: Collective) -> list[Phase]:
    """Every rank to every other at once."""
    ranks = len(asked.ranks)
    place = np.repeat(np.arange(ranks), ranks - 1)
    source = asked.ranks[place]
    target = asked.ranks[(place + np.tile(np.arange(1, ranks), ranks)) % ranks]
    routes = route(chart, source, target, asked.seed)
    phase = phase_of(f"{len(source):,} flows at once", routes, (source, target), asked.size_bytes / ranks)
    phase = _started(chart, phase, (asked.kind, asked.size_bytes), inner_groups(chart, asked.ranks), "pairwise")
    return [replace(phase, share=_pairwise(chart, asked))]


def _pairwise(chart: FabricMap, asked: Collective) -> float:
    """What of the links pairwise sends reach; all of it where regions take part, whose WAN binds and is not NCCL's."""
    return 1.0 if len(np.unique(chart.region[asked.ranks])) > 1 else chart.carriage.pairwise


def _shift(chart: FabricMap, asked: Collective) -> list[Phase]:
    """Every rank sends to one and receives from one at a time: first inside the node, then to node + k, GPU + j."""
    groups = np.stack(inner_groups(chart, asked.ranks)) if equal_groups(inner_groups(chart, asked.ranks), "a shift") else None
    assert groups is not None
    nodes, members = groups.shape
    phases: list[Phase] = []
    for k in range(nodes):
        for j in range(members):
            if k == 0 and j == 0:
                continue
            target = np.roll(np.roll(groups, -k, axis=0), -j, axis=1)
            ends = groups.ravel(), target.ravel()
            routes = route(chart, *ends, asked.seed)
            phase = phase_of(f"shift by {k} nodes, {j} GPUs", routes, ends, asked.size_bytes / len(asked.ranks))
            phases.append(replace(phase, share=_pairwise(chart, asked)))
    return phases
