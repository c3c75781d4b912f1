"""A fabric as a graph of directed links: GPUs, NVLink switches, host slots, adapters, switches, WAN."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from isthmus.errors import InfeasibleError, InputError
from isthmus.fabric import Fabric, NodeGroup, Region, levels, pcie_rate_bytes_per_s, region_layout
from isthmus.fabric.model import InNodeKind
from isthmus.fabric.wiring import links_per_gpu, wire_gpus
from isthmus.sim.graph import Block, Cables, Carriage, Ints, Numbers, Shares
from isthmus.sim.switches import Routing, Switches, lay_switches

__all__ = ["FabricMap", "Routing", "map_fabric", "routing_of", "with_faults"]

BETWEEN_SOCKETS_BYTES_PER_S = 2 * 20e9
"""Two UPI links of 10.4 GT/s, about 20 GB/s each per direction (Intel Xeon Scalable data sheets)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricMap:
    """Every link, and for each GPU (rank) where it stands.

    GPUs are numbered region by region, group by group, node by node. All arrays but `capacity` have one entry a GPU.

    Attributes:
        capacity: Payload bytes/s of every link; 0 where it has failed.
        region, node, local, rail: Index of the region; of the node over all regions; of the GPU in its node; of the
            adapter (or bundle of adapters) it sends over.
        domain: GPUs of one domain share NVLink.
        region_node: Index of the node in its region.
        nv_up, host_up, nic_up: First links of the GPU, and `nv_down`, `host_down`, `nic_down` last ones; -1 where none.
        local_table: In-node routes for wirings without a switch: links from GPU i to GPU j of a node, -1 padded, relative
            to `table_base` of the node.
        relays: Whether NCCL's PXN moves data to the GPU on the target's rail first.
        switches: By region.
        wan_cables: One block a WAN link of the fabric, in its order.
        wan: By ordered pair of regions, the links of the quickest way and its one-way latency in seconds.
        latency_s: By level name of `fabric.levels`.
        flow_limit_bytes_per_s: By ordered pair of regions, what one pair of GPUs carries over the WAN at most.
        carriage: What the caller told of links.
    """

    fabric: Fabric
    cables: Cables
    capacity: Numbers
    region: Ints
    node: Ints
    local: Ints
    rail: Ints
    domain: Ints
    region_node: Ints
    nv_up: Ints
    nv_down: Ints
    host_up: Ints
    host_down: Ints
    nic_up: Ints
    nic_down: Ints
    table: Ints
    table_base: Ints
    local_table: Ints
    relays: bool
    switches: tuple[Switches, ...]
    wan_cables: tuple[Block, ...]
    wan: dict[tuple[int, int], tuple[tuple[int, ...], float]]
    latency_s: dict[str, float]
    flow_limit_bytes_per_s: dict[tuple[int, int], float]
    carriage: Carriage

    @property
    def gpus(self) -> int:
        """GPUs of all regions."""
        return len(self.region)


def routing_of(kind: str) -> Routing:
    """How a network of `kind` spreads flows unless told otherwise: ECMP hashes on Ethernet, load balancing elsewhere.

    Sources: RoCE v2 over ECMP, IEEE 802.1Qbp practice; InfiniBand adaptive routing (NVIDIA Quantum); EFA's SRD sprays over
    paths (Shalev et al., IEEE Micro 40(6), 2020); Slingshot routes adaptively (De Sensi et al., SC20).
    """
    return "hash" if kind in ("roce", "ethernet") else "balanced"


def map_fabric(fabric: Fabric, carriage: Carriage | None = None, routing: Routing | None = None) -> FabricMap:
    """Wire `fabric` up.

    Args:
        fabric: What to wire.
        carriage: Payload shares; line rates where left out.
        routing: For all regions; by the kind of each region's network where left out.

    Raises:
        InfeasibleError: A shape cannot be built from its switches.
    """
    carriage = carriage or Carriage()
    cables = Cables()
    columns: dict[str, list[Ints]] = {name: [] for name in _COLUMNS}
    switches: list[Switches] = []
    tables: list[Ints] = []
    nodes = 0
    for index, region in enumerate(fabric.regions):
        region_nodes = 0
        for number_, group in enumerate(region.groups):
            prefix = region.name if len(region.groups) == 1 else f"{region.name}/{chr(97 + number_)}"
            port = min(region.network.rate_bytes_per_s or float("inf"), _nic_rate(group))
            table, own = _wire_group(prefix, group, cables, carriage.of(region.name), port)
            count, gpus = group.count, group.gpus
            node = np.repeat(np.arange(count, dtype=np.int64), gpus)
            own |= {
                "region": np.full(count * gpus, index, dtype=np.int64),
                "node": nodes + node,
                "region_node": region_nodes + node,
                "local": np.tile(np.arange(gpus, dtype=np.int64), count),
                "domain": _domains(columns["domain"], group, count * gpus),
                "table": np.full(count * gpus, len(tables), dtype=np.int64),
            }
            tables.append(table)
            for name, values in own.items():
                columns[name].append(values)
            nodes, region_nodes = nodes + count, region_nodes + count
        way = routing or routing_of(region.network.kind)
        switches.append(lay_switches(region, region_layout(region), cables, way, carriage.of(region.name).network))
    wan = _wire_wan(fabric, cables, carriage)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    capacity = cables.capacity()
    names = [region.name for region in fabric.regions]
    pairs = carriage.wan_flow_bytes_per_s.items()
    limits = {(names.index(a), names.index(b)): rate for (a, b), rate in pairs}
    return FabricMap(
        fabric=fabric,
        cables=cables,
        capacity=capacity,
        local_table=_stack(tables),
        relays=all(_relays(region) for region in fabric.regions),
        switches=tuple(switches),
        wan_cables=wan,
        wan=_quickest(fabric, wan, capacity),
        latency_s={level.name: level.latency_s for level in levels(fabric)} | carriage.hop_s,
        carriage=carriage,
        flow_limit_bytes_per_s=limits | {(b, a): rate for (a, b), rate in limits.items()},
        **joined,
    )


_COLUMNS = (
    "region", "node", "region_node", "local", "rail", "domain", "table", "nv_up", "nv_down", "host_up", "host_down", "nic_up",
    "nic_down", "table_base",
)  # fmt: skip


def with_faults(chart: FabricMap, failed: Sequence[str], weakened: Sequence[tuple[str, float]] = ()) -> FabricMap:
    """`chart` after `failed` cables (by name, see `Cables.find`) are cut and `weakened` ones keep a share of their rate.

    Traffic finds its way past a cut adapter over another of its node, past a cut switch link over parallel ones, past a cut
    WAN link over other regions.

    Raises:
        InputError: No cable has that name.
        InfeasibleError: A region is cut off.
    """
    capacity = chart.capacity.copy()
    for name, share in [*((name, 0.0) for name in failed), *weakened]:
        links, part = chart.cables.find(name, "--fail" if share == 0 else "--weaken")
        if not 0 <= share < 1:
            raise InputError("--weaken", f"{name} to {share}: a share is from 0 to 1", "e.g. --weaken west/node0/nic0=50%")
        capacity[links] *= 1 - part * (1 - share)
    rails = _rails_past(chart, capacity)
    wan = _quickest(chart.fabric, chart.wan_cables, capacity)
    return replace(
        chart, capacity=capacity, wan=wan, nic_up=chart.nic_up[rails], nic_down=chart.nic_down[rails], rail=chart.rail[rails]
    )


def _rails_past(chart: FabricMap, capacity: Numbers) -> Ints:
    """For every GPU the GPU of its node whose adapter it uses: its own, or the next live one."""
    own = np.arange(chart.gpus)
    cut = (chart.nic_up >= 0) & ((capacity[chart.nic_up] <= 0) | (capacity[chart.nic_down] <= 0))
    for gpu in np.flatnonzero(cut):
        peers = np.flatnonzero((chart.node == chart.node[gpu]) & ~cut)
        if peers.size:
            own[gpu] = peers[np.searchsorted(peers, gpu) % peers.size]
    return own


def _domains(before: list[Ints], group: NodeGroup, gpus: int) -> Ints:
    first = int(before[-1][-1]) + 1 if before else 0
    size = 1 if group.in_node.kind in ("none", "pcie") else group.in_node.domain
    return first + np.arange(gpus, dtype=np.int64) // size


def _wire_group(prefix: str, group: NodeGroup, cables: Cables, shares: Shares, rate: float) -> tuple[Ints, dict[str, Ints]]:
    """Cables of the nodes of one group; (in-node table, columns of link ids, one entry a GPU)."""
    count, gpus = group.count, group.gpus
    node, local = np.divmod(np.arange(count * gpus, dtype=np.int64), gpus)
    nowhere = np.full(count * gpus, -1, dtype=np.int64)
    found = {name: nowhere for name in ("nv_up", "nv_down", "host_up", "host_down", "nic_up", "nic_down")}
    inside = group.in_node
    if inside.kind == "nvswitch":
        block = cables.add(
            f"{prefix}/node{{}}/gpu{{}}/nvlink", (count, gpus), "nvlink", inside.bandwidth_bytes_per_s * shares.nvlink
        )
        found |= {"nv_up": block.up(node, local), "nv_down": block.down(node, local)}
    slot = _slot_rate(group)
    if slot is not None:
        block = cables.add(f"{prefix}/node{{}}/gpu{{}}/host", (count, gpus), "host", slot * shares.host)
        found |= {"host_up": block.up(node, local), "host_down": block.down(node, local)}
    table = _wire_nodes(prefix, group, cables, shares)
    rails = min(group.nics, gpus)
    rail = local * rails // gpus if rails else np.zeros_like(local)
    if group.nic is not None and rails:
        block = cables.add(f"{prefix}/node{{}}/nic{{}}", (count, rails), "adapter", rate * shares.network * group.nics / rails)
        found |= {"nic_up": block.up(node, rail), "nic_down": block.down(node, rail)}
    return table, found | {"rail": rail, "table_base": node}


def _relays(region: Region) -> bool:
    return region.network.rail_optimised and all(group.in_node.kind == "nvswitch" for group in region.groups)


def _nic_rate(group: NodeGroup) -> float:
    return group.nic.rate_bytes_per_s if group.nic else float("inf")


def _slot_rate(group: NodeGroup) -> float | None:
    try:
        return pcie_rate_bytes_per_s(group.gpu.pcie)
    except ValueError:
        return None  # the GPU hangs on its CPU by other means (NVLink-C2C), faster than its adapter


def _wire_nodes(prefix: str, group: NodeGroup, cables: Cables, shares: Shares) -> Ints:
    """Wires between GPUs that no switch joins, as a block a wire, and the shortest way over them for every pair."""
    inside, ends = group.in_node, [f"gpu{i}" for i in range(group.gpus)]
    kinds: list[InNodeKind] = []
    if inside.kind not in ("none", "nvswitch", "pcie"):
        kinds.append(inside.kind)
    if group.gpus > 1 and (inside.kind == "pcie" or inside.domain < group.gpus):
        kinds.append("pcie")
    hops: dict[tuple[str, str], int] = {}
    for kind in kinds:
        wiring = wire_gpus(kind, group.gpus, group.gpu)
        lanes = max(links_per_gpu(wiring))
        for wire in wiring.wires:
            if kind == "pcie":
                slot = (_slot_rate(group) or 0.0) * wire.links / 16 if wire.links > 1 else BETWEEN_SOCKETS_BYTES_PER_S
                level, rate = "pcie", slot * shares.pcie
            else:
                level, rate = "nvlink", inside.bandwidth_bytes_per_s * wire.links / lanes * shares.nvlink
            block = cables.add(f"{prefix}/node{{}}/{wire.a}-{wire.b}", (group.count,), level, rate)
            hops.setdefault((wire.a, wire.b), block.first)
            hops.setdefault((wire.b, wire.a), block.first + block.count)
    routes = [[_shortest(hops, a, b) for b in ends] for a in ends] if hops else []
    width = max((len(way) for row in routes for way in row), default=0)
    table = np.full((group.gpus, group.gpus, width), -1, dtype=np.int64)
    for a, row in enumerate(routes):
        for b, way in enumerate(row):
            table[a, b, : len(way)] = way
    return table


def _shortest(hops: dict[tuple[str, str], int], start: str, end: str) -> list[int]:
    """Links of a way with fewest hops; empty for no way."""
    came: dict[str, tuple[str, int]] = {}
    edge = [start]
    while edge and end not in came and start != end:
        following: list[str] = []
        for (a, b), link in hops.items():
            if a in edge and b not in came and b != start:
                came[b] = (a, link)
                following.append(b)
        edge = following
    way: list[int] = []
    while end != start and end in came:
        end, link = came[end]
        way.append(link)
    return way[::-1]


def _stack(tables: list[Ints]) -> Ints:
    """Tables of all groups as one array [group, from, to, hop]."""
    gpus, width = max(t.shape[0] for t in tables), max(t.shape[2] for t in tables)
    stacked = np.full((len(tables), gpus, gpus, width), -1, dtype=np.int64)
    for index, table in enumerate(tables):
        stacked[index, : table.shape[0], : table.shape[1], : table.shape[2]] = table
    return stacked


def _wire_wan(fabric: Fabric, cables: Cables, carriage: Carriage) -> tuple[Block, ...]:
    return tuple(
        cables.add(f"{link.between[0]}-{link.between[1]}", (), "wan", link.rate_bytes_per_s * carriage.wan) for link in fabric.wan
    )


def _quickest(
    fabric: Fabric, blocks: tuple[Block, ...], capacity: Numbers
) -> dict[tuple[int, int], tuple[tuple[int, ...], float]]:
    """For every ordered pair of regions the live links of least latency, one way, jitter's peak included (Floyd-Warshall)."""
    names = [region.name for region in fabric.regions]
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
    for link, block in zip(fabric.wan, blocks, strict=True):
        a, b = (names.index(end) for end in link.between)
        for pair, way in (((a, b), block.first), ((b, a), block.first + block.count)):
            if capacity[way] > 0:
                best[pair] = (link.rtt_s / 2 + link.jitter_s, (way,))
    pairs = list(permutations(range(len(names)), 2))
    for via in range(len(names)):
        for a, b in pairs:
            if via not in (a, b) and (a, via) in best and (via, b) in best:
                joined = (best[a, via][0] + best[via, b][0], best[a, via][1] + best[via, b][1])
                best[a, b] = min(best.get((a, b), joined), joined)
    for a, b in pairs:
        if (a, b) not in best:
            raise InfeasibleError(f"no way is left from {names[a]} to {names[b]}", "links between the regions")
    return {pair: (links, latency) for pair, (latency, links) in best.items()}
