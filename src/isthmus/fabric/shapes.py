"""Shapes of the network between nodes: switches needed, how far apart two nodes are, what the middle can carry.

`k` is the radix (ports of a switch), `o` the oversubscription of a leaf (down-links over up-links). Hops count the
switches that a packet passes; on a torus, which has none, the links.
"""

from dataclasses import dataclass
from math import ceil, prod

from isthmus.errors import InfeasibleError
from isthmus.fabric.model import NetworkShape

__all__ = ["Layout", "endpoint_limit", "hops", "lay_out", "leaf_split", "smallest_shape", "torus_dimensions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One region's network, laid out.

    Attributes:
        shape: What was built.
        nodes: Nodes joined.
        ports: Adapter ports joined (nodes x adapters a node).
        nodes_per_leaf: Nodes whose rail (or whole self) hangs on one leaf; all of them on a single switch.
        nodes_per_pod: Nodes below one set of spines (a pod, or a Dragonfly+ group).
        leaves: Switches that adapters hang on; a single switch counts as one leaf.
        spines: Switches of the second tier, in all pods.
        cores: Switches of the third tier.
        dimensions: Lengths of a torus; empty otherwise.
        port_limit: Adapter ports that this shape can join at this radix; None for a torus.
        hops_limit: Hops between the two nodes furthest apart, on equal rails.
        bisection_bytes_per_s: Per direction, between the two halves of the nodes.
    """

    shape: NetworkShape
    nodes: int
    ports: int
    nodes_per_leaf: int
    nodes_per_pod: int
    leaves: int
    spines: int
    cores: int
    dimensions: tuple[int, ...]
    port_limit: int | None
    hops_limit: int
    bisection_bytes_per_s: float


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


def lay_out(
    shape: NetworkShape, *, nodes: int, adapters: int, radix: int, rate_bytes_per_s: float,
    oversubscription: float = 1.0, rail_optimised: bool = True,
) -> Layout:  # fmt: skip
    """Lay `shape` out for `nodes` nodes of `adapters` adapters each.

    Raises:
        InfeasibleError: The shape has fewer ports than asked at this radix.
    """
    ports = nodes * adapters
    limit = endpoint_limit(shape, radix, oversubscription)
    if limit is not None and ports > limit:
        raise InfeasibleError(
            f"{shape} of {radix}-port switches joins at most {limit} adapters, {ports} are needed",
            f"switch ports ({nodes} nodes x {adapters} adapters)",
        )
    ideal = ports / 2 * rate_bytes_per_s
    match shape:
        case "none":
            return _layout(shape, nodes, ports, limit, bisection=0.0, hops_limit=0)
        case "single-switch":
            return _layout(shape, nodes, ports, limit, leaves=1, bisection=ideal, hops_limit=1)
        case "torus":
            return _torus(nodes, ports, rate_bytes_per_s)
        case "dragonfly+":
            return _dragonfly_plus(nodes, adapters, radix, rate_bytes_per_s)
        case "clos-2" | "clos-3":
            return _clos(shape, nodes, adapters, radix, rate_bytes_per_s, (oversubscription, rail_optimised))


def hops(layout: Layout, node_a: int, node_b: int) -> int:
    """Hops between two nodes on equal rails, counted from 0 in the order they are cabled; 0 for a node and itself."""
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


def _layout(
    shape: NetworkShape, nodes: int, ports: int, limit: int | None, *, bisection: float, hops_limit: int,
    per_leaf: int | None = None, per_pod: int | None = None, leaves: int = 0, spines: int = 0, cores: int = 0,
    dimensions: tuple[int, ...] = (),
) -> Layout:  # fmt: skip
    per_leaf = per_leaf or nodes
    return Layout(
        shape=shape, nodes=nodes, ports=ports, nodes_per_leaf=per_leaf, nodes_per_pod=per_pod or nodes, leaves=leaves,
        spines=spines, cores=cores, dimensions=dimensions, port_limit=limit, hops_limit=0 if nodes == 1 else hops_limit,
        bisection_bytes_per_s=bisection if nodes > 1 else 0.0,
    )  # fmt: skip


def _clos(
    shape: NetworkShape, nodes: int, adapters: int, radix: int, rate_bytes_per_s: float, taper: tuple[float, bool]
) -> Layout:
    """Leaves in groups (one leaf a rail) or each holding whole nodes; every leaf reaches every spine of its pod alike.

    Spines: the least divisor of a leaf's up ports that has ports enough for every leaf, so that no spine is favoured.
    """
    oversubscription, rail_optimised = taper
    down, up = leaf_split(radix, oversubscription)
    per_leaf = down if rail_optimised else max(1, down // adapters)
    groups = ceil(nodes / per_leaf)
    wide = adapters if rail_optimised else ceil(adapters * per_leaf / down)  # leaves a group of nodes needs
    leaves = groups * wide
    limit = endpoint_limit(shape, radix, oversubscription)
    full = nodes * adapters / 2 * rate_bytes_per_s
    across = full if groups == 1 else full * up / down
    if shape == "clos-2":
        if leaves > radix:
            raise InfeasibleError(
                f"clos-2 needs {leaves} leaves, a spine of {radix} ports reaches {radix}", "ports of a spine (partly filled leaves)"
            )
        spines = _divisor(up, ceil(leaves * up / radix)) if leaves > 1 else 0
        return _layout(shape, nodes, nodes * adapters, limit, bisection=across, hops_limit=1 if groups == 1 else 3,
                       per_leaf=per_leaf, leaves=leaves, spines=spines)  # fmt: skip
    groups_per_pod = max(1, radix // 2 // wide)
    pods = ceil(groups / groups_per_pod)
    in_pod = min(groups, groups_per_pod) * wide
    spines_per_pod = _divisor(up, ceil(in_pod * up / (radix // 2)))
    cores = ceil(pods * in_pod * up / radix) if pods > 1 else 0
    return _layout(shape, nodes, nodes * adapters, limit, bisection=across,
                   hops_limit=1 if groups == 1 else 3 if pods == 1 else 5, per_leaf=per_leaf,
                   per_pod=per_leaf * groups_per_pod, leaves=leaves, spines=pods * spines_per_pod, cores=cores)  # fmt: skip


def _dragonfly_plus(nodes: int, adapters: int, radix: int, rate_bytes_per_s: float) -> Layout:
    """Groups of k/2 leaves and k/2 spines, every pair of groups joined by the same number of spine links.

    The bisection is the smaller of the host links of half the nodes and the global links between half the groups.
    """
    half = radix // 2
    per_leaf, per_pod = max(1, half // adapters), max(1, half * half // adapters)
    groups = ceil(nodes / per_pod)
    if groups > half * half + 1:
        raise InfeasibleError(f"dragonfly+ needs {groups} groups, {half * half + 1} can be joined", "global links of a group")
    ideal = nodes * adapters / 2 * rate_bytes_per_s
    between = half * half // (groups - 1) if groups > 1 else 0
    middle = (groups // 2) * (groups - groups // 2) * between * rate_bytes_per_s if groups > 1 else ideal
    leaves = ceil(nodes / per_leaf)
    return _layout("dragonfly+", nodes, nodes * adapters, endpoint_limit("dragonfly+", radix), bisection=min(ideal, middle),
                   hops_limit=4 if groups > 1 else 3 if leaves > 1 else 1, per_leaf=per_leaf, per_pod=per_pod,
                   leaves=leaves, spines=groups * half)  # fmt: skip


def _torus(nodes: int, ports: int, rate_bytes_per_s: float) -> Layout:
    """Rings in up to three directions; the middle cuts the longest: twice N / L links, once where L = 2."""
    dimensions = torus_dimensions(nodes)
    longest = dimensions[0]
    cut = (1 if longest == 2 else 2) * (nodes // longest)
    return _layout("torus", nodes, ports, None, bisection=cut * rate_bytes_per_s,
                   hops_limit=sum(length // 2 for length in dimensions), dimensions=dimensions)  # fmt: skip


def _torus_hops(dimensions: tuple[int, ...], node_a: int, node_b: int) -> int:
    total = 0
    for axis, length in enumerate(dimensions):
        stride = prod(dimensions[axis + 1 :])
        apart = abs(node_a // stride % length - node_b // stride % length)
        total += min(apart, length - apart)
    return total


def _divisor(number: int, at_least: int) -> int:
    return next(part for part in range(max(1, at_least), number + 1) if number % part == 0)
