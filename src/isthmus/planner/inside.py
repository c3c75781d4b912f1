"""Communication inside the regions that a layout asks for: what it takes beside the compute."""

from collections import defaultdict
from dataclasses import dataclass, replace

from isthmus.cost.collectives_group import part_of
from isthmus.cost.collectives_time import seconds_of
from isthmus.cost.efficiency import BLOCKING_IN_MFU
from isthmus.cost.step_times import OVERLAP_KEEPS
from isthmus.cost.step_wires import neighbours
from isthmus.planner.candidates import whole_batch
from isthmus.planner.setting import Setting
from isthmus.workload import Axes, Traffic, sent_bytes, traffic

__all__ = ["InRegion", "in_region", "in_region_traffic", "steady_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InRegion:
    """Seconds a step of the busiest rank's collectives inside its region.

    Attributes:
        beside_s: Of what other work can hide, on the links that take longest.
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
    """Seconds of every collective of the layout, each as `collectives_time` has it on the part of the region it takes.

    Model parallelism is innermost: tp ranks are neighbours, then pp, then dp. `spread`: one copy of the state
    over all regions (their WAN part is `crossing`'s), else ZeRO and dp stay inside a region.
    """
    beside: defaultdict[str, float] = defaultdict(float)
    by_axis: defaultdict[str, float] = defaultdict(float)
    strides = {"tp": 1, "cp": axes.tp, "pp": axes.tp * axes.cp, "dp": axes.tp * axes.cp * axes.pp}
    strides["ep"] = strides["dp"]
    blocking = sent = 0.0
    for item in in_region_traffic(setting, axes, spread):
        ranks = axes.pp if item.axis == "pp" else item.group
        part = part_of(setting.group, strides[item.axis], ranks)
        sent += sent_bytes(item)
        if not part:
            continue
        if item.op == "send":
            one = seconds_of("send-recv", item.bytes_per_op, neighbours(part), setting.constants)
        else:
            one = seconds_of(item.op, item.bytes_per_op, part, setting.constants)
        if item.axis == "tp" and axes.tp_overlap:
            one *= OVERLAP_KEEPS["ring"]
        by_axis[item.axis] += one * item.ops_per_step
        if item.overlappable:
            beside[part[-1].carrier] += one * item.ops_per_step
        else:
            blocking += one * item.ops_per_step
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
