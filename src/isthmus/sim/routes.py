"""Which links a flow crosses from one GPU to another, and how long its first byte takes; for many flows at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isthmus.fabric.entries import number
from isthmus.sim.fabric_map import FabricMap
from isthmus.sim.graph import Ints, Numbers, refuse_dead
from isthmus.sim.switches import Ports

__all__ = ["Routes", "route"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Flows on their ways.

    Attributes:
        links: [flow, hop]; -1 where a flow has fewer hops.
        latency_s: One message, one way, with NCCL's own cost of a hop; see `fabric.levels`.
        limit_bytes_per_s: What one flow carries at most whatever the links are; infinite inside a region.
    """

    links: Ints
    latency_s: Numbers
    limit_bytes_per_s: Numbers


def route(chart: FabricMap, source: Ints, target: Ints, seed: int = 0, first_flow: int = 0) -> Routes:
    """Route flows from GPUs `source` to GPUs `target`.

    Inside an NVLink domain over its switch (or wires), inside a node over PCIe, inside a region from the GPU's own adapter to
    the target's own. Where `chart.relays` and the two are on different rails, the data first moves over NVLink to the GPU of
    the source's node that is on the target's rail (NCCL's PXN), so that it stays on one leaf. Between regions from adapter to
    border, over the WAN's quickest way, and down.

    Args:
        chart: The fabric, wired.
        source, target: Ranks, one of each a flow; no flow to itself.
        seed: Of the hash by which a flow picks one of parallel links.
        first_flow: Flows are numbered from here; the number is what is hashed, beside the ends.

    Raises:
        InfeasibleError: A flow's only way leads over a cut cable.
    """
    same_domain = (chart.domain[source] == chart.domain[target]) & (chart.domain[source] >= 0)
    same_node = chart.node[source] == chart.node[target]
    same_region = chart.region[source] == chart.region[target]
    local, net, wan = same_domain | same_node, ~(same_domain | same_node) & same_region, ~same_region & ~same_domain
    latency = np.zeros(len(source))
    columns: list[Ints] = []
    if local.any():
        columns += _local(chart, source, target, same_domain, local)
        near = chart.latency_s.get("nvlink", chart.latency_s.get("pcie", 0.0))
        latency[local] = np.where(same_domain, near, chart.latency_s.get("pcie", near))[local]
    if net.any() or wan.any():
        key = _keys(source, target, seed, first_flow)
        columns += _network(chart, (source, target), (net, wan), key, latency)
    links = np.stack(columns, axis=1) if columns else np.full((len(source), 1), -1, dtype=np.int64)
    refuse_dead(chart.capacity, links, chart.cables)
    limit = np.full(len(source), np.inf)
    for (a, b), rate in chart.flow_limit_bytes_per_s.items():
        limit[(chart.region[source] == a) & (chart.region[target] == b)] = rate
    return Routes(links=links, latency_s=latency, limit_bytes_per_s=limit)


def _keys(source: Ints, target: Ints, seed: int, first_flow: int) -> NDArray[np.uint64]:
    """What ECMP hashes: the ends and the flow's number stand for addresses and the UDP source port of its QP."""
    number_ = np.arange(first_flow, first_flow + len(source), dtype=np.uint64)
    ends = source.astype(np.uint64) * np.uint64(0x1F123BB5) + target.astype(np.uint64) * np.uint64(0x5851F42D4C957F2D)
    drawn = np.uint64(seed % 2**63 * 0x2545F4914F6CDD1D % 2**64)  # in Python's integers: numpy warns where one number wraps
    return ends + number_ * np.uint64(0xD1342543DE82EF95) + drawn


def _local(chart: FabricMap, source: Ints, target: Ints, same_domain: NDArray[np.bool_], local: NDArray[np.bool_]) -> list[Ints]:
    switched = same_domain & (chart.nv_up[source] >= 0)
    columns = [np.where(switched, chart.nv_up[source], -1), np.where(switched, chart.nv_down[target], -1)]
    wired = local & ~switched
    if chart.local_table.shape[3] and wired.any():
        ways = chart.local_table[chart.table[source], chart.local[source], chart.local[target]]
        ways = np.where((ways >= 0) & wired[:, None], ways + chart.table_base[source][:, None], -1)
        columns += list(ways.T)
    return columns


def _network(
    chart: FabricMap,
    ends: tuple[Ints, Ints],
    where: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    key: NDArray[np.uint64],
    latency: Numbers,
) -> list[Ints]:
    """Columns beyond the node; fills in `latency` of the flows that take them."""
    (source, target), (net, wan) = ends, where
    away = net | wan
    relay = _relays(chart, source, target) if chart.relays else source
    moved = net & (relay != source)
    relay = np.where(moved, relay, source)
    columns: list[Ints] = []
    if moved.any():
        columns += [np.where(moved, chart.nv_up[source], -1), np.where(moved, chart.nv_down[relay], -1)]
    columns += [np.where(away, each[relay], -1) for each in (chart.host_up, chart.nic_up)]
    for index, switches in enumerate(chart.switches):
        here = net & (chart.region[source] == index)
        if here.any():
            a, b = (Ports(chart.region_node[end][here], chart.rail[end][here]) for end in (relay, target))
            columns += [_scatter(here, column) for column in switches.between(a, b, key[here], chart.capacity <= 0)]
            hops = switches.hops(a.node, b.node)
            extra = np.maximum(0, hops - 1) * number("infiniband", "hdr", "switch_latency")
            latency[here] = chart.latency_s.get("node", 0.0) + extra
        for outward, end in ((True, source), (False, target)):
            leaving = wan & (chart.region[end] == index)
            if leaving.any():
                ports = Ports(chart.region_node[end][leaving], chart.rail[end][leaving])
                columns += [_scatter(leaving, column) for column in switches.border(ports, key[leaving], outward)]
    for (a, b), (links, one_way) in chart.wan.items():
        crossing = wan & (chart.region[source] == a) & (chart.region[target] == b)
        if crossing.any():
            columns += [np.where(crossing, link, -1) for link in links]
            latency[crossing] = one_way
    columns += [np.where(away, each[target], -1) for each in (chart.nic_down, chart.host_down)]
    return columns


def _relays(chart: FabricMap, source: Ints, target: Ints) -> Ints:
    """The GPU of the source's node with the target's place in its own, where their rails differ."""
    first = source - chart.local[source]
    peer = np.minimum(first + chart.local[target], chart.gpus - 1)
    fits = (chart.node[peer] == chart.node[source]) & (chart.rail[peer] == chart.rail[target])
    return np.where(fits & (chart.rail[source] != chart.rail[target]), peer, source)


def _scatter(where: NDArray[np.bool_], column: Ints) -> Ints:
    whole = np.full(len(where), -1, dtype=np.int64)
    whole[where] = column
    return whole
