"""What a collective runs over: nested levels of ranks, each with the links that join its members."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from isthmus.fabric import Fabric, NodeGroup, Region, levels
from isthmus.fabric.carriers import IN_NODE_CARRIERS, Carrier, in_node_carrier, network_carrier

__all__ = ["Group", "GroupLevel", "class_of", "node_group", "ranks_of", "region_group", "with_ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLevel:
    """One level of a group.

    Attributes:
        carrier: The class of link; its constants say what of the line rate arrives and what a hop costs.
        members: Parts of the level below that it joins: GPUs of a node, nodes of a region, regions.
        rate_bytes_per_s: What one member (a GPU in a node, a whole node above) can send to the others, per direction, line
            rate. Where k groups run side by side over the same adapters, give each its k-th.
        latency_s: One way, over and above a hop of this class: further switches, or the way of a WAN.
        adds: Its switches add (NVLS in a node, SHARP between nodes).
    """

    carrier: Carrier
    members: int
    rate_bytes_per_s: float
    latency_s: float = 0.0
    adds: bool = False

    @property
    def in_node(self) -> bool:
        """Whether GPUs of one node (or NVLink rack) are its members."""
        return self.carrier in IN_NODE_CARRIERS


Group = tuple[GroupLevel, ...]
"""From the inside out: at most one in-node level, then the levels of the network. Ranks are the product of members."""


def node_group(group: NodeGroup) -> Group:
    """The GPUs of one node (or NVLink rack) of `group` that share its wiring."""
    inside = group.in_node
    gpus = inside.domain if inside.domain > group.gpus else min(group.gpus, max(1, inside.domain))
    if inside.kind == "pcie":
        gpus = group.gpus
    level = GroupLevel(
        carrier=in_node_carrier(group), members=gpus, rate_bytes_per_s=inside.bandwidth_bytes_per_s, adds=inside.switch_reduces
    )
    return (level,) if gpus > 1 else ()


def region_group(fabric: Fabric, name: str) -> Group:
    """All GPUs of the region called `name`; KeyError where there is none.

    The tiers are those of `fabric.levels`: GPUs of a node, nodes of a leaf group, leaf groups.
    """
    region: Region = fabric.region(name)
    alone = Fabric(name=name, regions=(region,), wan=())
    weakest = min(region.groups, key=lambda each: each.in_node.bandwidth_bytes_per_s)
    found: list[GroupLevel] = []
    hop_s = 0.0
    for level in levels(alone):
        in_node = level.name in ("nvlink", "pcie")
        inside: Carrier = "pcie" if level.name == "pcie" else in_node_carrier(weakest)
        carrier = inside if in_node else network_carrier(region.network)
        hop_s = hop_s or (0.0 if in_node else level.latency_s)
        found.append(
            GroupLevel(
                carrier=carrier,
                members=level.members,
                rate_bytes_per_s=level.bandwidth_bytes_per_s,
                latency_s=0.0 if in_node else level.latency_s - hop_s,
                adds=level.name == "nvlink" and weakest.in_node.switch_reduces,
            )
        )
    return tuple(found)


def with_ranks(group: Group, ranks: int) -> Group:
    """The first `ranks` ranks of `group`, filling it from the inside; the last level used is cut to whole parts.

    Raises:
        ValueError: They do not fill whole parts of the levels below, or the group has fewer.
    """
    kept: list[GroupLevel] = []
    left = ranks
    for level in group:
        if left <= level.members:
            return (*kept, replace(level, members=left)) if left > 1 else tuple(kept)
        if left % level.members:
            break
        kept.append(level)
        left //= level.members
    if left == 1:
        return tuple(kept)
    raise ValueError(f"{ranks} ranks do not fill {' x '.join(str(level.members) for level in group)} from the inside")


def class_of(group: Sequence[GroupLevel]) -> str:
    """The class of fabric, such as `nvlink4+infiniband`, `nvlink4+-` for one node, `-+roce` for one GPU a node."""
    inside = next((level.carrier for level in group if level.in_node), "-")
    above = next((level.carrier for level in group if not level.in_node), "-")
    return f"{inside}+{above}"


def ranks_of(group: Sequence[GroupLevel]) -> int:
    """Number of ranks."""
    return prod(level.members for level in group)
