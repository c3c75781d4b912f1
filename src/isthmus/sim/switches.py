"""The switches of one region: which links a flow crosses between two adapters, and from an adapter to the WAN.

Three ways to spread flows over parallel links. `balanced`: packets are sprayed or re-routed by load, so that parallel
links act as one (adaptive InfiniBand, EFA's SRD, Slingshot). `hash`: every flow keeps one link, chosen by a seeded hash
(ECMP on Ethernet). `destination`: the link follows from the destination (D-mod-k, the static routing of fat trees).
"""

from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import InfeasibleError
from isthmus.fabric.entries import number
from isthmus.fabric.model import Region
from isthmus.fabric.shapes import Layout, leaf_split
from isthmus.sim.graph import Block, Cables, Ints

__all__ = ["Ports", "Routing", "Switches", "lay_switches", "spread"]

Routing = Literal["balanced", "hash", "destination"]
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Ports:
    """Adapters as switches see them: node of the region and rail, one of each a flow."""

    node: Ints
    rail: Ints


def spread(key: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """A hash of `key`, other for every `salt`. Source: splitmix64, Steele, Lea & Flood, OOPSLA 2014."""
    mixed = key + np.uint64((0x9E3779B97F4A7C15 * (salt + 1)) & 0xFFFFFFFFFFFFFFFF)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """One region's network, wired.

    Attributes:
        shape: `flat` has no link beyond the adapters'.
        routing: How parallel links share flows.
        nodes_per_leaf, nodes_per_pod: As in the layout.
        leaves_per_group: Leaves that the nodes of one group hang on: one a rail, or one for all.
        rails: Of the widest node.
        leaf_up: Blocks of leaf uplinks, and `pod_up` of those of spines (or between groups of a Dragonfly+).
        spines: Of one pod.
        dimensions: Of a torus.
    """

    shape: Literal["flat", "clos", "dragonfly+", "torus"]
    routing: Routing
    nodes_per_leaf: int
    nodes_per_pod: int
    leaves_per_group: int = 1
    rails: int = 1
    leaf_up: Block | None = None
    pod_up: Block | None = None
    spines: int = 1
    dimensions: tuple[int, ...] = ()

    def between(self, source: Ports, target: Ports, key: NDArray[np.uint64], dead: NDArray[np.bool_]) -> list[Ints]:
        """Columns of links from adapters `source` to adapters `target`; -1 where a column is not needed."""
        match self.shape:
            case "flat":
                return []
            case "clos":
                return self._clos(source, target, key, dead)
            case "dragonfly+":
                return self._dragonfly(source, target, key)
            case "torus":
                return self._torus(source.node, target.node)
            case _:
                assert_never(self.shape)

    def border(self, ports: Ports, key: NDArray[np.uint64], outward: bool) -> list[Ints]:
        """Columns of links from adapters to the region's border, which hangs above the top tier; or back."""
        if self.leaf_up is None:
            return []
        columns = [self._choose(self.leaf_up, (self._leaf(ports),), key, 5)]
        if self.pod_up is not None and self.shape == "clos":
            pod = ports.node // self.nodes_per_pod
            if len(self.pod_up.dims) == 1:
                columns.append(self.pod_up.up(pod))
            else:
                spine = (columns[0] - self.leaf_up.first) % self.leaf_up.dims[-1] % self.spines
                columns.append(self._choose(self.pod_up, (pod, spine), key, 6))
        if outward:
            return columns
        counts = [self.leaf_up.count] + ([self.pod_up.count] if self.pod_up else [])
        return [column + count for column, count in zip(columns, counts, strict=False)][::-1]

    def hops(self, source: Ints, target: Ints) -> Ints:
        """Switches passed between two nodes on equal rails, as `fabric.shapes.hops` counts them."""
        if self.shape == "torus":
            return sum((np.minimum(d, n - d) for d, n in self._apart(source, target)), start=np.zeros_like(source))
        far = 4 if self.shape == "dragonfly+" else 5
        same_pod = source // self.nodes_per_pod == target // self.nodes_per_pod
        near = np.where(source // self.nodes_per_leaf == target // self.nodes_per_leaf, 1, 3)
        return np.where(same_pod, near, far)

    def _leaf(self, ports: Ports) -> Ints:
        rail = np.minimum(ports.rail, self.leaves_per_group - 1) if self.leaves_per_group > 1 else 0
        return ports.node // self.nodes_per_leaf * self.leaves_per_group + rail

    def _clos(self, source: Ports, target: Ports, key: NDArray[np.uint64], dead: NDArray[np.bool_]) -> list[Ints]:
        leaf_a, leaf_b = self._leaf(source), self._leaf(target)
        leaves = self.leaf_up
        if leaves is None:
            return []
        apart = leaf_a != leaf_b
        pod_a, pod_b = source.node // self.nodes_per_pod, target.node // self.nodes_per_pod
        cross = pod_a != pod_b
        if len(leaves.dims) == 1:  # bundled: parallel links act as one
            columns = [np.where(apart, leaves.up(leaf_a), -1)]
            if self.pod_up is not None:
                columns += [np.where(cross, self.pod_up.up(pod_a), -1), np.where(cross, self.pod_up.down(pod_b), -1)]
            return [*columns, np.where(apart, leaves.down(leaf_b), -1)]
        route = self._pick(source, target, key, 0)
        for attempt in range(1, _TRIES):  # a switch takes dead links out of the group it hashes over
            lost = (dead[route[0]] | dead[route[-1]]) & apart
            lost |= (dead[route[1]] | dead[route[2]]) & cross if len(route) == 4 else False
            if not lost.any():
                break
            again = self._pick(source, target, key, attempt)
            route = [np.where(lost, new, old) for new, old in zip(again, route, strict=True)]
        ends = [np.where(apart, route[0], -1), np.where(apart, route[-1], -1)]
        return [ends[0], *(np.where(cross, each, -1) for each in route[1:-1]), ends[1]]

    def _pick(self, source: Ports, target: Ports, key: NDArray[np.uint64], attempt: int) -> list[Ints]:
        """Up to a spine by the hash, over a core of the same plane where pods differ, down to the leaf."""
        leaves = self.leaf_up
        assert leaves is not None
        ups = leaves.dims[1]
        up = self._index(target.node + attempt, key, 10 * attempt, ups)
        spine, parallel = up % self.spines, ups // self.spines
        side = self._index(up // self.spines, key, 10 * attempt + 1, parallel)
        first, last = leaves.up(self._leaf(source), up), leaves.down(self._leaf(target), spine + self.spines * side)
        if self.pod_up is None:
            return [first, last]
        pod_a, pod_b = source.node // self.nodes_per_pod, target.node // self.nodes_per_pod
        pods, _, trunks = self.pod_up.dims
        trunk = self._index(target.node // ups + attempt, key, 10 * attempt + 2, trunks)
        cores = max(1, -(-pods // 2))  # of one plane: pods x trunks links, 2 x trunks ports each
        core = trunk % cores
        same_core = (trunks - core + cores - 1) // cores
        back = core + cores * (self._index(target.node // ups, key, 10 * attempt + 3, 1 << 30) % same_core)
        return [first, self.pod_up.up(pod_a, spine, trunk), self.pod_up.down(pod_b, spine, back), last]

    def _index(self, digit: Ints, key: NDArray[np.uint64], salt: int, choices: int) -> Ints:
        """One of `choices` links: by the destination's own digit, or by the flow's hash."""
        if self.routing == "destination":
            return digit % choices
        return (spread(key, salt) % np.uint64(choices)).astype(np.int64)

    def _choose(self, block: Block, where: tuple[Ints, ...], key: NDArray[np.uint64], salt: int) -> Ints:
        if len(block.dims) == len(where):
            return block.up(*where)
        return block.up(*where, (spread(key, salt) % np.uint64(block.dims[-1])).astype(np.int64))

    def _dragonfly(self, source: Ports, target: Ports, key: NDArray[np.uint64]) -> list[Ints]:
        """Minimal routes: leaf, global link between the two groups, leaf."""
        leaves, trunks = self.leaf_up, self.pod_up
        if leaves is None:
            return []
        leaf_a, leaf_b = self._leaf(source), self._leaf(target)
        apart = leaf_a != leaf_b
        group_a, group_b = source.node // self.nodes_per_pod, target.node // self.nodes_per_pod
        columns = [np.where(apart, self._choose(leaves, (leaf_a,), key, 0), -1)]
        if trunks is not None:
            low, high = np.minimum(group_a, group_b), np.maximum(group_a, group_b)
            link = self._choose(trunks, (low, high), key, 1) + np.where(group_a > group_b, trunks.count, 0)
            columns.append(np.where(group_a != group_b, link, -1))
        return [*columns, np.where(apart, self._choose(leaves, (leaf_b,), key, 2) + leaves.count, -1)]

    def _apart(self, source: Ints, target: Ints) -> list[tuple[Ints, int]]:
        found: list[tuple[Ints, int]] = []
        stride = 1
        for length in reversed(self.dimensions):
            found.append(((target // stride - source // stride) % length, length))
            stride *= length
        return found

    def _torus(self, source: Ints, target: Ints) -> list[Ints]:
        """Dimension order, the short way round; a tie goes up."""
        block = self.leaf_up
        assert block is not None
        columns: list[Ints] = []
        here, stride = source.copy(), 1
        for axis, length in reversed(list(enumerate(self.dimensions))):
            ahead = (target // stride - here // stride) % length
            up = ahead <= length - ahead
            for _ in range(length // 2):
                place = here // stride % length
                left = (target // stride - place) % length
                going = left != 0
                step = here + ((place + np.where(up, 1, -1)) % length - place) * stride
                cable = np.where(up, here, step)  # cable i joins node i and the next one up
                link = block.up(axis, cable) + np.where(up, 0, block.count)
                columns.append(np.where(going, link, -1))
                here = np.where(going, step, here)
            stride *= length
        return columns


def lay_switches(region: Region, layout: Layout | None, cables: Cables, routing: Routing, share: float) -> Switches:
    """Lay the cables between switches of `region` and return how flows find their way over them.

    Args:
        region: Its name leads the names of the cables.
        layout: From `fabric.region_layout`; None is one switch with as many ports as there are adapters.
        cables: Where to lay them.
        routing: How parallel links share flows.
        share: Payload in the line rate.

    Raises:
        InfeasibleError: Dragonfly+ groups too many to join.
    """
    network, name = region.network, region.name
    rate = network.rate_bytes_per_s * share
    adapters = max(group.nics for group in region.groups)
    if layout is None or layout.hops_limit <= 1 or layout.shape in ("none", "single-switch"):
        return Switches(shape="flat", routing=routing, nodes_per_leaf=region.nodes, nodes_per_pod=region.nodes)
    if layout.shape == "torus":
        axes = len(layout.dimensions)
        block = cables.add(f"{name}/axis{{}}/link{{}}", (axes, layout.nodes), "torus", rate)
        return Switches(
            shape="torus", routing=routing, nodes_per_leaf=1, nodes_per_pod=1, leaf_up=block, dimensions=layout.dimensions
        )
    if layout.shape == "dragonfly+":
        return _lay_dragonfly(region, layout, cables, routing, rate)
    radix = int(number("switches", network.switch or "", "ports"))
    _, up = leaf_split(radix, network.oversubscription)
    gpus = max(group.gpus for group in region.groups)
    rails = min(adapters, gpus)
    groups = -(-region.nodes // layout.nodes_per_leaf)
    # Where a GPU has several adapters, its leaves count as one wide leaf.
    wide = adapters // rails if network.rail_optimised else 1
    per_group = max(1, layout.leaves // groups // wide)
    pods = -(-region.nodes // layout.nodes_per_pod)
    leaves, ups = groups * per_group, up * wide
    spines, trunks = max(1, layout.spines // pods), radix // 2
    if routing == "balanced":
        leaf_up = cables.add(f"{name}/leaf{{}}/{ups} uplinks", (leaves,), "leaf-spine", ups * rate)
        count = spines * trunks
        pod_up = cables.add(f"{name}/pod{{}}/{count} uplinks", (pods,), "spine-core", count * rate) if pods > 1 else None
    else:
        leaf_up = cables.add(f"{name}/leaf{{}}/uplink{{}}", (leaves, ups), "leaf-spine", rate)
        dims = (pods, spines, trunks)
        pod_up = cables.add(f"{name}/pod{{}}/spine{{}}/uplink{{}}", dims, "spine-core", rate) if pods > 1 else None
    return Switches(
        shape="clos", routing=routing, nodes_per_leaf=layout.nodes_per_leaf, nodes_per_pod=layout.nodes_per_pod,
        leaves_per_group=per_group, rails=rails, leaf_up=leaf_up, pod_up=pod_up, spines=spines,
    )  # fmt: skip


def _lay_dragonfly(region: Region, layout: Layout, cables: Cables, routing: Routing, rate: float) -> Switches:
    half = int(number("switches", region.network.switch or "", "ports")) // 2
    groups = -(-region.nodes // layout.nodes_per_pod)
    between = half * half // (groups - 1) if groups > 1 else 0
    if groups > 1 and between == 0:
        raise InfeasibleError(f"{groups} groups cannot be joined in pairs", "global links of a group")
    name = region.name
    bundled = routing == "balanced"
    leaf_dims: tuple[int, ...] = (layout.leaves,) if bundled else (layout.leaves, half)
    trunk_dims: tuple[int, ...] = (groups, groups) if bundled else (groups, groups, between)
    leaf_name = f"{name}/leaf{{}}/{half} uplinks" if bundled else f"{name}/leaf{{}}/uplink{{}}"
    trunk_name = f"{name}/group{{}}-group{{}}/{between} uplinks" if bundled else f"{name}/group{{}}-group{{}}/uplink{{}}"
    leaf_up = cables.add(leaf_name, leaf_dims, "leaf-spine", rate * (half if bundled else 1))
    pod_up = cables.add(trunk_name, trunk_dims, "global", rate * (between if bundled else 1)) if groups > 1 else None
    return Switches(
        shape="dragonfly+", routing=routing, nodes_per_leaf=layout.nodes_per_leaf, nodes_per_pod=layout.nodes_per_pod,
        leaf_up=leaf_up, pod_up=pod_up, spines=half,
    )  # fmt: skip
