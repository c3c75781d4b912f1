"""Who talks to whom: GPUs that share the innermost wiring, rings through them, trees over nodes."""

from collections.abc import Sequence

import numpy as np

from isthmus.errors import InfeasibleError
from isthmus.sim.fabric_map import FabricMap
from isthmus.sim.graph import Ints

__all__ = ["channel_orders", "inner_groups", "ring_orders", "tree_parents"]


def inner_groups(chart: FabricMap, ranks: Ints) -> list[Ints]:
    """`ranks` cut into those of one NVLink rack or one node, in the order they come."""
    first_domain = np.full(int(chart.node.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_domain, chart.node, chart.domain)
    key = first_domain[chart.node[ranks]]  # nodes of one rack start in the same domain
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    groups = np.split(ranks[order], cuts)
    if not (np.diff(key) < 0).any():
        return groups
    return sorted(groups, key=lambda group: int(np.flatnonzero(ranks == group[0])[0]))


def equal_groups(groups: Sequence[Ints], what: str) -> int:
    """Members of every group.

    Raises:
        InfeasibleError: They differ.
    """
    sizes = {len(group) for group in groups}
    if len(sizes) != 1:
        raise InfeasibleError(f"{what} needs nodes of equal size, they hold {sorted(sizes)} GPUs", "GPUs of a node")
    return sizes.pop()


def ring_orders(chart: FabricMap, group: Ints) -> list[Ints]:
    """Rings through the GPUs of `group` that use no wire twice: one where a switch joins them, else as many as there are.

    A ring and the same ring backwards use both directions of a cable, and count as two.
    """
    if len(group) < 3 or chart.local_table.shape[3] == 0 or chart.nv_up[group].min() >= 0:
        return [group]
    free = _direct_wires(chart, group)
    if not free:
        return [group]
    found: list[Ints] = []
    while True:
        ring = _hamilton([0], free, len(group))
        if ring is None:
            return found or [group]
        for a, b in zip(ring, [*ring[1:], ring[0]], strict=True):
            free[a, b] -= 1
            free[b, a] -= 1
        order = group[np.asarray(ring)]
        found += [order, order[::-1].copy()]


def _direct_wires(chart: FabricMap, group: Ints) -> dict[tuple[int, int], int]:
    """Wires of equal rate between GPUs wired to each other: the thinnest counts as one."""
    rates: dict[tuple[int, int], float] = {}
    for a, source in enumerate(group):
        for b, target in enumerate(group):
            way = chart.local_table[chart.table[source], chart.local[source], chart.local[target]]
            way = way[way >= 0]
            if a != b and len(way) == 1:
                rates[a, b] = float(chart.capacity[way[0] + chart.table_base[source]])
    least = min((rate for rate in rates.values() if rate > 0), default=1.0)
    return {pair: round(rate / least) for pair, rate in rates.items()}


def _hamilton(path: list[int], free: dict[tuple[int, int], int], members: int) -> list[int] | None:
    """The first ring through all members over free wires that a search in depth finds; thick wires first."""
    here = path[-1]
    if len(path) == members:
        return path if free.get((here, path[0]), 0) > 0 else None
    following = [b for b in range(members) if b not in path and free.get((here, b), 0) > 0]
    for b in sorted(following, key=lambda b: -free[here, b]):
        ring = _hamilton([*path, b], free, members)
        if ring is not None:
            return ring
    return None


def channel_orders(chart: FabricMap, groups: Sequence[Ints]) -> list[Ints]:
    """One order of all ranks a channel: node after node, channel c entering every node at the GPU on its c-th adapter.

    As NCCL lays rings: as many as a node has adapters, so that each adapter carries one in and one out; inside one node, one
    through a switch, or as many as the wires allow.
    """
    if len(groups) == 1:
        return ring_orders(chart, groups[0])
    channels = min(len(np.unique(chart.nic_up[group])) for group in groups)
    orders: list[Ints] = []
    for channel in range(channels):
        parts: list[Ints] = []
        for group in groups:
            inside = ring_orders(chart, group)
            order = inside[channel % len(inside)]
            adapters, first = np.unique(chart.nic_up[group], return_index=True)
            start = group[first[np.argsort(adapters)][channel % len(adapters)]]
            parts.append(np.roll(order, -int(np.flatnonzero(order == start)[0])))
        orders.append(np.concatenate(parts))
    return orders


def tree_parents(nodes: int) -> tuple[list[int], list[int]]:
    """Parents in a double binary tree over `nodes` nodes, -1 for roots: leaves of one are inner nodes of the other.

    In-order trees: node i hangs below the number whose lowest set bit is one higher; the second tree is the first mirrored
    (even counts) or shifted by one (odd). Source: Sanders, Speck & Traff, Parallel Computing 35(12), 2009.
    """
    first = [_parent(node, nodes) for node in range(nodes)]
    if nodes % 2 == 0:
        second = [nodes - 1 - first[nodes - 1 - node] if first[nodes - 1 - node] >= 0 else -1 for node in range(nodes)]
    else:
        shifted = [first[(node - 1) % nodes] for node in range(nodes)]
        second = [(parent + 1) % nodes if parent >= 0 else -1 for parent in shifted]
    return first, second


def _parent(node: int, nodes: int) -> int:
    if node == 0:
        return -1
    bit = node & -node
    up = (node ^ bit) | (bit << 1)
    return up if up < nodes else node ^ bit
