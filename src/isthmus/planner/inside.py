"""Communication inside the regions that a layout asks for: what it takes beside the compute."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from isthmus.cost.collectives import Tier
from isthmus.cost.efficiency import BLOCKING_IN_MFU
from isthmus.planner.candidates import whole_batch
from isthmus.planner.setting import Setting
from isthmus.workload import Axes, Traffic, sent_bytes, traffic

__all__ = ["InRegion", "group_rate", "in_region", "in_region_traffic", "steady_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InRegion:
    """Wire seconds a step of the busiest rank inside its region.

    Attributes:
        beside_s: Of what other work can hide, on the tier that takes longest.
        blocking_s: Of what nothing hides, one after another.
        sent_bytes: Both, out of one GPU.
        axis: The axis with most seconds; empty where nothing is sent.
    """

    beside_s: float
    blocking_s: float
    sent_bytes: float
    axis: str


def steady_s(busy_s: float, wires: InRegion) -> float:
    """Seconds of all micro-batches without the pipeline's bubble.

        t = max(busy, beside) + max(0, blocking - f busy)

    f = `BLOCKING_IN_MFU`: published MFU holds the tensor parallelism of its own runs, so only what exceeds it
    is added; likewise overlappable traffic costs nothing until it takes longer than the compute.
    """
    return max(busy_s, wires.beside_s) + max(0.0, wires.blocking_s - BLOCKING_IN_MFU.value * busy_s)


def in_region(setting: Setting, axes: Axes, spread: bool) -> InRegion:
    """Seconds of every collective of the layout: bytes sent / rate of the slowest tier that its group crosses.

    Model parallelism is innermost: tp ranks are neighbours, then pp, then dp. `spread`: one copy of the state
    over all regions (their WAN part is `crossing`'s), else ZeRO and dp stay inside a region.
    """
    beside: defaultdict[int, float] = defaultdict(float)
    by_axis: defaultdict[str, float] = defaultdict(float)
    strides = {"tp": 1, "cp": axes.tp, "pp": axes.tp * axes.cp, "dp": axes.tp * axes.cp * axes.pp}
    strides["ep"] = strides["dp"]
    blocking = sent = 0.0
    for item in in_region_traffic(setting, axes, spread):
        ranks = axes.pp if item.axis == "pp" else item.group
        tier, rate = group_rate(setting.tiers, strides[item.axis], ranks, ring=item.op != "all-to-all")
        size = sent_bytes(item)
        sent += size
        by_axis[item.axis] += size / rate
        if item.overlappable:
            beside[tier] += size / rate
        else:
            blocking += size / rate
    axis = max(by_axis, key=lambda each: by_axis[each]) if by_axis else ""
    return InRegion(beside_s=max(beside.values(), default=0.0), blocking_s=blocking, sent_bytes=sent, axis=axis)


def in_region_traffic(setting: Setting, axes: Axes, spread: bool) -> tuple[Traffic, ...]:
    """The collectives of `axes` as one region's ranks run them; dp of the smallest region unless `spread`."""
    batch = whole_batch(setting.workload, axes)
    if spread:
        return traffic(batch, axes)
    dp = min(setting.region_gpus) // (axes.tp * axes.pp * axes.cp)
    share = replace(batch, sequences_per_step=batch.sequences_per_step // axes.dp * dp)
    return traffic(share, replace(axes, dp=dp))


def group_rate(tiers: Sequence[Tier], stride: int, ranks: int, ring: bool) -> tuple[int, float]:
    """(slowest tier crossed, bytes/s of one rank) of `ranks` ranks every `stride`-th GPU; all such groups at once.

    A tier's link is one GPU's rail. A ring enters and leaves a member once, so its g ranks in the member drive
    g rails together: g B. In an all-to-all each rank has its own rail, for the (n - g)/(n - 1) of what it
    sends that leave the member. Infinite where no tier is crossed.
    """
    below, slowest = 1, (0, float("inf"))
    for index, tier in enumerate(tiers):
        if stride < below * tier.members and stride * ranks > below:
            inside = min(ranks, max(1, below // stride))
            rate = tier.link.bandwidth_bytes_per_s
            rate = rate * inside if ring else rate * (ranks - 1) / max(1, ranks - inside)
            slowest = min(slowest, (index, rate), key=lambda each: each[1])
        below *= tier.members
    return slowest
