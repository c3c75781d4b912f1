"""Shapes of the network between nodes: switches needed, hops between nodes, what the middle can carry.

`k` is the radix (ports of a switch), `o` the oversubscription of a leaf (down-links over up-links). Hops
count the switches that a packet passes; on a torus, which has none, the links.
"""

from dataclasses import dataclass
from math import ceil, prod

from isthmus.errors import InfeasibleError
from isthmus.fabric.model import NetworkShape

__all__ = [
    "Layout",
    "Switching",
    "endpoint_limit",
    "hops",
    "lay_out",
    "leaf_split",
    "smallest_shape",
    "torus_dimensions",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switching:
    """What a network is built from.

    Attributes:
        radix: Ports of a switch (k); not used by a torus.
        rate_bytes_per_s: One port, per direction.
        oversubscription: Down-links over up-links of a leaf (o).
        rail_optimised: Adapter i of every node hangs on the same leaf; else all adapters of a node share one.
    """

    radix: int
    rate_bytes_per_s: float
    oversubscription: float = 1.0
    rail_optimised: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One region's network, laid out.

    Attributes:
        shape: What was built.
        nodes: Nodes joined.
        ports: Adapter ports joined (nodes x adapters a node).
        nodes_per_leaf: Nodes whose rail (or whole self) hangs on one leaf; all of them on a single switch.
        nodes_per_pod: Nodes below one set of spines (a pod, or a Dragonfly+ group).
        port_limit: Adapter ports that this shape can join at this radix; None for a torus.
        hops_limit: Hops between the two nodes furthest apart, on equal rails.
        bisection_bytes_per_s: Per direction, between the two halves of the nodes.
        leaves: Switches that adapters hang on; a single switch counts as one leaf.
        spines: Switches of the second tier, in all pods.
        cores: Switches of the third tier.
        dimensions: Lengths of a torus; empty otherwise.
    """

    shape: NetworkShape
    nodes: int
    ports: int
    nodes_per_leaf: int
    nodes_per_pod: int
    port_limit: int | None
    hops_limit: int
    bisection_bytes_per_s: float
    leaves: int = 0
    spines: int = 0
    cores: int = 0
    dimensions: tuple[int, ...] = ()


def leaf_split(radix: int, oversubscription: float) -> tuple[int, int]:
    """Down and up ports of a leaf: the most down ports d with d + ceil(d / o) <= k."""
    down = int(radix * oversubscription / (1 + oversubscription))
    while down + ceil(down / oversubscription) > radix:
        down -= 1
    return down, ceil(down / oversubscription)


def endpoint_limit(shape: NetworkShape, radix: int, oversubscription: float = 1.0) -> int | None:
    """Adapter ports that `shape` can join with switches of `radix` ports; None where switches set no limit.

        single k | clos-2 k d | clos-3 k (k / 2) d | dragonfly+ (k^2 / 4 + 1) k^2 / 4

    With o = 1 and d = k / 2 the two Clos forms are k^2 / 2 and k^3 / 4.
    Source: Al-Fares et al., SIGCOMM 2008 (fat trees); Shpiner et al., HiPINEB 2017 (Dragonfly+); counts ours.
    """
    down, _ = leaf_split(radix, oversubscription)
    match shape:
        case "single-switch":
            return radix
        case "clos-2":
            return radix * down
        case "clos-3":
            return radix * (radix // 2) * down
        case "dragonfly+":
            group = (radix // 2) ** 2
            return (group + 1) * group
        case "none" | "torus":
            return None


def smallest_shape(ports: int, radix: int, oversubscription: float = 1.0) -> NetworkShape:
    """The Clos of fewest tiers that joins `ports` adapter ports; clos-3 even where that is too small."""
    for shape in ("single-switch", "clos-2"):
        if ports <= (endpoint_limit(shape, radix, oversubscription) or 0):
            return shape
    return "clos-3"


def lay_out(shape: NetworkShape, nodes: int, adapters: int, switching: Switching) -> Layout:
    """Lay `shape` out for `nodes` nodes of `adapters` adapters each.

    Raises:
        InfeasibleError: The shape has fewer ports than asked at this radix.
    """
    ports = nodes * adapters
    limit = endpoint_limit(shape, switching.radix, switching.oversubscription)
    if limit is not None and ports > limit:
        raise InfeasibleError(
            f"{shape} of {switching.radix}-port switches joins at most {limit} adapters, {ports} are needed",
            f"switch ports ({nodes} nodes x {adapters} adapters)",
        )
    match shape:
        case "none" | "single-switch":
            alone = shape == "none" or nodes == 1
            return Layout(
                shape=shape,
                nodes=nodes,
                ports=ports,
                nodes_per_leaf=nodes,
                nodes_per_pod=nodes,
                port_limit=limit,
                hops_limit=0 if alone else 1,
                bisection_bytes_per_s=0.0 if alone else ports / 2 * switching.rate_bytes_per_s,
                leaves=0 if shape == "none" else 1,
            )
        case "torus":
            return _torus(nodes, ports, switching.rate_bytes_per_s)
        case "dragonfly+":
            return _dragonfly_plus(nodes, adapters, switching)
        case "clos-2" | "clos-3":
            return _clos(shape, nodes, adapters, switching)


def hops(layout: Layout, node_a: int, node_b: int) -> int:
    """Hops between two nodes on equal rails, counted from 0 in the order they are cabled; 0 for a node and
    itself.
    """
    if not (0 <= node_a < layout.nodes and 0 <= node_b < layout.nodes):
        raise IndexError(f"nodes {node_a} and {node_b} of {layout.nodes}")
    if node_a == node_b:
        return 0
    if layout.shape == "torus":
        return _torus_hops(layout.dimensions, node_a, node_b)
    if node_a // layout.nodes_per_leaf == node_b // layout.nodes_per_leaf:
        return 1
    if node_a // layout.nodes_per_pod == node_b // layout.nodes_per_pod:
        return 3
    return 4 if layout.shape == "dragonfly+" else 5


def torus_dimensions(nodes: int, axes: int = 3) -> tuple[int, ...]:
    """The split of `nodes` into at most `axes` factors whose largest is smallest, longest first."""
    best: tuple[int, ...] = (nodes,)
    if axes > 1:
        for first in range(2, nodes + 1):
            if nodes % first == 0:
                rest = torus_dimensions(nodes // first, axes - 1) if nodes // first > 1 else ()
                best = min(best, tuple(sorted((first, *rest), reverse=True)))
    return best


def _clos(shape: NetworkShape, nodes: int, adapters: int, switching: Switching) -> Layout:
    """Leaves in groups, one leaf a rail, or each holding whole nodes; a leaf reaches its pod's spines alike.

    Spines: the least divisor of a leaf's up ports that has ports enough for every leaf, so that none is
    favoured. Cores: as many as the up ports of all pods fill.
    """
    radix = switching.radix
    down, up = leaf_split(radix, switching.oversubscription)
    per_leaf = down if switching.rail_optimised else max(1, down // adapters)
    leaves_per_group = adapters if switching.rail_optimised else ceil(adapters / down)
    groups = ceil(nodes / per_leaf)
    # Below a clos-2 stands one pod; its spines turn all their ports down, those of a clos-3 half of them.
    spine_down = radix if shape == "clos-2" else radix // 2
    groups_per_pod = max(1, spine_down // leaves_per_group)
    pods = ceil(groups / groups_per_pod)
    leaves = groups * leaves_per_group
    if pods > (1 if shape == "clos-2" else radix) or leaves_per_group > spine_down:
        raise InfeasibleError(
            f"{shape} of {radix}-port switches cannot join {leaves} leaves ({groups} groups of {leaves_per_group})",
            "ports of a spine, with leaves that are partly filled",
        )
    pod_leaves = min(groups, groups_per_pod) * leaves_per_group
    spines = pods * _divisor(up, ceil(pod_leaves * up / spine_down)) if leaves > 1 else 0
    full = nodes * adapters / 2 * switching.rate_bytes_per_s if nodes > 1 else 0.0
    return Layout(
        shape=shape,
        nodes=nodes,
        ports=nodes * adapters,
        nodes_per_leaf=per_leaf,
        nodes_per_pod=per_leaf * groups_per_pod,
        port_limit=endpoint_limit(shape, radix, switching.oversubscription),
        hops_limit=0 if nodes == 1 else 1 if groups == 1 else 3 if pods == 1 else 5,
        bisection_bytes_per_s=full if groups == 1 else full * min(1.0, up / down),
        leaves=leaves,
        spines=spines,
        cores=ceil(leaves * up / radix) if pods > 1 else 0,
    )


def _dragonfly_plus(nodes: int, adapters: int, switching: Switching) -> Layout:
    """Groups of k/2 leaves and k/2 spines, every pair of groups joined by the same number of spine links.

    The bisection is the smaller of the host links of half the nodes and the global links between half the
    groups.
    """
    half, rate = switching.radix // 2, switching.rate_bytes_per_s
    per_leaf, per_pod = max(1, half // adapters), max(1, half * half // adapters)
    groups = ceil(nodes / per_pod)
    if groups > half * half + 1 or adapters > half:
        raise InfeasibleError(
            f"dragonfly+ needs {groups} groups of {half} leaves, {half * half + 1} groups can be joined",
            "global links of a group, and ports of a leaf",
        )
    full = nodes * adapters / 2 * rate if nodes > 1 else 0.0
    between = half * half // (groups - 1) if groups > 1 else 0
    middle = (groups // 2) * (groups - groups // 2) * between * rate if groups > 1 else full
    leaves = ceil(nodes / per_leaf)
    return Layout(
        shape="dragonfly+",
        nodes=nodes,
        ports=nodes * adapters,
        nodes_per_leaf=per_leaf,
        nodes_per_pod=per_pod,
        port_limit=endpoint_limit("dragonfly+", switching.radix),
        hops_limit=0 if nodes == 1 else 4 if groups > 1 else 3 if leaves > 1 else 1,
        bisection_bytes_per_s=min(full, middle),
        leaves=leaves,
        spines=groups * half,
    )


def _torus(nodes: int, ports: int, rate_bytes_per_s: float) -> Layout:
    """Rings in up to three directions; the middle cuts the longest: twice N / L links, once where L = 2."""
    dimensions = torus_dimensions(nodes)
    longest = dimensions[0]
    cut = 0 if nodes == 1 else (1 if longest == 2 else 2) * (nodes // longest)
    return Layout(
        shape="torus",
        nodes=nodes,
        ports=ports,
        nodes_per_leaf=nodes,
        nodes_per_pod=nodes,
        port_limit=None,
        hops_limit=sum(length // 2 for length in dimensions),
        bisection_bytes_per_s=cut * rate_bytes_per_s,
        dimensions=dimensions,
    )


def _torus_hops(dimensions: tuple[int, ...], node_a: int, node_b: int) -> int:
    total = 0
    for axis, length in enumerate(dimensions):
        stride = prod(dimensions[axis + 1 :])
        apart = abs(node_a // stride % length - node_b // stride % length)
        total += min(apart, length - apart)
    return total


def _divisor(number: int, at_least: int) -> int:
    return next(part for part in range(max(1, at_least), number + 1) if number % part == 0)
