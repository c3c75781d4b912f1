"""What a collective runs over: nested levels of ranks, each with the links that join its members."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from isthmus.cost.collectives_constants import Constants, default_constants
from isthmus.fabric import Fabric, NodeGroup, levels
from isthmus.fabric.carriers import IN_NODE_CARRIERS, Carrier, in_node_carrier, network_carrier
from isthmus.fabric.model import LevelName

__all__ = [
    "Group",
    "GroupLevel",
    "class_of",
    "level_carriers",
    "node_group",
    "part_of",
    "ranks_of",
    "region_group",
    "sites_group",
    "with_ranks",
]


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
    return sites_group(Fabric(name=name, regions=(fabric.region(name),), wan=()))


def sites_group(fabric: Fabric, constants: Constants | None = None) -> Group:
    """One region of `fabric`, as a step that waits for every region meets it.

    Where regions differ, a level has the members of the largest, the rate of the weakest (`fabric.levels`), and the class of
    link that reaches least of its rate. Leaf groups are cut evenly where the last is not full, so that ranks are as many as GPUs.
    """
    known = (constants or default_constants()).carriers
    found: list[GroupLevel] = []
    hop_s = 0.0
    for level in levels(fabric):
        if level.name == "wan":
            continue
        in_node = level.name in ("nvlink", "pcie")
        hop_s = hop_s or (0.0 if in_node else level.latency_s)
        groups = [group for region in fabric.regions for group in region.groups]
        found.append(
            GroupLevel(
                carrier=min(level_carriers(fabric, level.name), key=lambda carrier: known[carrier].sustained),
                members=level.members,
                rate_bytes_per_s=level.bandwidth_bytes_per_s,
                latency_s=0.0 if in_node else level.latency_s - hop_s,
                adds=level.name == "nvlink" and all(group.in_node.switch_reduces for group in groups),
            )
        )
    inner, above = [each for each in found if each.in_node], [each for each in found if not each.in_node]
    if len(above) < 2:
        return tuple(found)
    below = prod(level.members for level in inner)
    leaf, spine = above
    return (*inner, *_evenly(leaf, spine, max(-(-region.gpus // below) for region in fabric.regions)))


def _evenly(leaf: GroupLevel, spine: GroupLevel, nodes: int) -> Group:
    """`nodes` nodes in equal leaf groups of at most `leaf.members`; in one level where their number has no such divisor."""
    width = max(each for each in range(1, leaf.members + 1) if nodes % each == 0)
    if width == 1:
        return (replace(leaf, members=nodes),)
    uplinks = spine.rate_bytes_per_s * width / leaf.members
    return replace(leaf, members=width), replace(spine, members=nodes // width, rate_bytes_per_s=uplinks)


def level_carriers(fabric: Fabric, name: LevelName) -> tuple[Carrier, ...]:
    """The classes of link that carry the level called `name` in the regions, each once."""
    if name in ("node", "region"):
        return tuple(dict.fromkeys(network_carrier(region.network) for region in fabric.regions))
    if name == "pcie":
        return ("pcie",)
    groups = [group for region in fabric.regions for group in region.groups]
    return tuple(dict.fromkeys(in_node_carrier(group) for group in groups if group.in_node.kind not in ("none", "pcie")))


@lru_cache(maxsize=65536)
def part_of(whole: Group, stride: int, ranks: int) -> Group:
    """Every `stride`-th rank of `whole`, `ranks` of them, while all groups of that kind run at once.

    A member of a level holds b / s of the group's ranks (b ranks below, s = `stride`), and as many other groups as are left
    share what it can send. Ranks beyond `whole` are cut off; where they fill no whole members, one more counts.
    """
    found: list[GroupLevel] = []
    below = 1
    for level in whole:
        above = below * level.members
        if stride < above and stride * ranks > below:
            inside = min(ranks, max(1, below // stride))
            reached = min(ranks, max(1, above // stride))
            found.append(
                replace(level, members=-(-reached // inside), rate_bytes_per_s=level.rate_bytes_per_s * inside / below)
            )
        below = above
    return tuple(level for level in found if level.members > 1)


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
