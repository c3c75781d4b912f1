"""The nested tiers that a collective on a fabric sees."""

from dataclasses import dataclass
from itertools import combinations
from math import ceil

from isthmus.errors import InfeasibleError
from isthmus.fabric.entries import number, pcie_rate_bytes_per_s
from isthmus.fabric.model import Fabric, InNode, Level, LevelName, NodeGroup, Region
from isthmus.fabric.shapes import Layout, Switching, lay_out
from isthmus.units import show_rate

__all__ = ["levels", "region_layout", "wan_routes"]

_ORDER: tuple[LevelName, ...] = ("nvlink", "pcie", "node", "region", "wan")
_NCCL = "nccl-src (opened)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The quickest way over the WAN between two regions."""

    between: tuple[str, str]
    rtt_s: float
    rate_bytes_per_s: float
    links: int


def levels(fabric: Fabric) -> tuple[Level, ...]:
    """The tiers of `fabric` from the GPU outwards; tiers that join one member only are left out.

    `nvlink` joins GPUs of one domain, `pcie` domains of one node, `node` nodes of a region (those of one
    leaf where the switches have more tiers), `region` leaf groups of a region, `wan` regions. Where regions
    or groups differ, a level has the bandwidth of the weakest and the members of the largest: what a
    collective over all of them meets.

    alpha is NCCL's own constant for one hop of a ring with the Simple protocol (3.4 us NVLink, 5.7 us PCIe,
    14 us network), plus 0.13 us a switch beyond the first (QM8700's port to port; newer ones publish none),
    plus half the RTT on the WAN. Source: NCCL src/tuning, catalogue `nccl`.
    """
    found = [level for region in fabric.regions for level in _region_levels(region)]
    if len(fabric.regions) > 1:
        found.append(_wan_level(fabric))
    merged: list[Level] = []
    for name in _ORDER:
        same = [level for level in found if level.name == name]
        if same:
            weakest = min(same, key=lambda level: level.bandwidth_bytes_per_s)
            merged.append(
                Level(
                    name=name,
                    members=max(level.members for level in same),
                    latency_s=max(level.latency_s for level in same),
                    bandwidth_bytes_per_s=weakest.bandwidth_bytes_per_s,
                    lanes=min(level.lanes for level in same),
                    carrier=weakest.carrier,
                    source=weakest.source,
                )
            )
    return tuple(merged)


def region_layout(region: Region) -> Layout | None:
    """The region's switches laid out; None where it has none or names none.

    Raises:
        InfeasibleError: The shape has fewer ports than the nodes have adapters.
    """
    network = region.network
    if network.shape == "none" or (network.switch is None and network.shape != "torus"):
        return None
    switching = Switching(
        radix=int(number("switches", network.switch, "ports")) if network.switch else 0,
        rate_bytes_per_s=network.rate_bytes_per_s,
        oversubscription=network.oversubscription,
        rail_optimised=network.rail_optimised,
    )
    return lay_out(network.shape, region.nodes, max(group.nics for group in region.groups), switching)


def wan_routes(fabric: Fabric) -> tuple[Route, ...]:
    """For every pair of regions the route of least RTT, over other regions where no link joins the two."""
    rtt = {(link.between[i], link.between[1 - i]): link.rtt_s for link in fabric.wan for i in (0, 1)}
    rate = {(link.between[i], link.between[1 - i]): link.rate_bytes_per_s for link in fabric.wan for i in (0, 1)}
    best = {pair: (rtt[pair], 1, rate[pair]) for pair in rtt}
    names = [region.name for region in fabric.regions]
    for via in names:  # Floyd-Warshall
        for a in names:
            for b in names:
                if len({a, b, via}) == 3 and (a, via) in best and (via, b) in best:
                    first, second = best[a, via], best[via, b]
                    joined = (first[0] + second[0], first[1] + second[1], min(first[2], second[2]))
                    if (a, b) not in best or joined < best[a, b]:
                        best[a, b] = joined
    return tuple(
        Route(between=(a, b), rtt_s=best[a, b][0], links=best[a, b][1], rate_bytes_per_s=best[a, b][2])
        for a, b in combinations(names, 2)
    )


def _region_levels(region: Region) -> list[Level]:
    group = min(region.groups, key=lambda each: each.in_node.bandwidth_bytes_per_s)
    inside = group.in_node
    found: list[Level] = []
    if inside.kind not in ("none", "pcie"):
        found.append(_nvlink_level(inside, group, region))
    if inside.kind == "pcie" or inside.domain < group.gpus:
        found.append(_pcie_level(inside, group))
    spanned = max(1, min(inside.domain, region.gpus) // group.gpus)  # nodes of one NVLink rack
    if ceil(region.nodes / spanned) > 1:
        found += _network_levels(region, spanned)
    return [level for level in found if level.members > 1]


def _nvlink_level(inside: InNode, group: NodeGroup, region: Region) -> Level:
    words = {
        "nvswitch": "through NVSwitch",
        "full-mesh": "in a full mesh",
        "hybrid-cube-mesh": "in a hybrid cube mesh",
        "bridge-pairs": "over a bridge",
    }
    links = f"NVLink {group.gpu.fabric_generation}" if group.gpu.fabric == "nvlink" else group.gpu.fabric
    return Level(
        name="nvlink",
        members=min(inside.domain, region.gpus),
        latency_s=number("nccl", "hop-nvlink", "ring_simple"),
        bandwidth_bytes_per_s=inside.bandwidth_bytes_per_s,
        lanes=1,
        carrier=f"{links} {words[inside.kind]}",
        source=f"catalogue gpus {group.gpu.kind}; alpha {_NCCL}",
    )


def _pcie_level(inside: InNode, group: NodeGroup) -> Level:
    domain = 1 if inside.kind == "pcie" else inside.domain
    return Level(
        name="pcie",
        members=ceil(group.gpus / domain),
        latency_s=number("nccl", "hop-pci", "ring_simple"),
        bandwidth_bytes_per_s=domain * pcie_rate_bytes_per_s(group.gpu.pcie),
        lanes=domain,
        carrier=f"PCIe {group.gpu.pcie}",
        source=f"catalogue pcie; alpha {_NCCL}",
    )


def _network_levels(region: Region, spanned: int) -> list[Level]:
    network = region.network
    uplink = min(group.nics * min(group.nic.rate_bytes_per_s, network.rate_bytes_per_s) for group in region.groups if group.nic)
    lanes = min(group.nics for group in region.groups)
    hop_s = number("nccl", "hop-net", "ring_simple")
    try:
        layout = region_layout(region)
    except InfeasibleError:
        layout = None  # `isthmus check` reports too few ports; the tiers stay those of one network
    per_leaf = layout.nodes_per_leaf if layout and layout.hops_limit > 1 and layout.shape != "torus" else region.nodes
    source = f"adapters of {region.name}; alpha {_NCCL}"
    port = show_rate(min(network.rate_bytes_per_s, uplink / lanes))
    carrier = f"{lanes} x {port} {network.kind}, {network.shape}"
    found = [
        Level(
            name="node",
            members=ceil(min(per_leaf, region.nodes) / spanned),
            latency_s=hop_s,
            bandwidth_bytes_per_s=uplink * spanned,
            lanes=lanes * spanned,
            carrier=carrier,
            source=source,
        )
    ]
    if layout and per_leaf < region.nodes:
        found.append(
            Level(
                name="region",
                members=ceil(region.nodes / per_leaf),
                latency_s=hop_s + (layout.hops_limit - 1) * number("infiniband", "hdr", "switch_latency"),
                bandwidth_bytes_per_s=per_leaf * uplink / network.oversubscription,
                lanes=lanes,
                carrier=f"{carrier}, between groups of {per_leaf} nodes",
                source=source,
            )
        )
    return found


def _wan_level(fabric: Fabric) -> Level:
    """Regions joined: each sends its share to every other on their own link, or over others.

    The uplink of a region is (R - 1) times the slowest link where every pair is joined, else the slowest
    link, and never more than the region's adapters carry.
    """
    regions, routes = len(fabric.regions), wan_routes(fabric)
    slowest = min(link.rate_bytes_per_s for link in fabric.wan)
    joined = len(fabric.wan) == regions * (regions - 1) // 2
    adapters = min(_adapter_bytes_per_s(region) for region in fabric.regions)
    kinds = sorted({link.link_class or link.transport for link in fabric.wan})
    return Level(
        name="wan",
        members=regions,
        latency_s=max(route.rtt_s for route in routes) / 2,
        bandwidth_bytes_per_s=min(adapters, slowest * (regions - 1 if joined else 1)),
        lanes=min(sum(group.count * group.nics for group in region.groups) for region in fabric.regions),
        carrier=f"{show_rate(slowest)} {', '.join(kinds)}",
        source="the fabric's own wan entries",
    )


def _adapter_bytes_per_s(region: Region) -> float:
    return sum(group.count * group.nics * group.nic.rate_bytes_per_s for group in region.groups if group.nic)
