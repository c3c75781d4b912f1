"""Collectives of many layouts at once: where each group's ranks lie, and what its slowest tier takes."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from isthmus.cost.machine import Machine
from isthmus.workload.layout_memory import Floats
from isthmus.workload.layouts import Ints, Layouts

__all__ = ["Group", "Way", "group_of", "send_seconds", "wire_s"]

Way = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]
Axis = Literal["tp", "cp", "dp", "pp", "ep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The ranks of one axis: every `stride`-th GPU, `ranks` of them; all such groups run at once. Each (n,)."""

    stride: Ints
    ranks: Ints


def group_of(layouts: Layouts, axis: Axis, node_gpus: int) -> Group:
    """Where the groups of `axis` lie: tp ranks are neighbours, then cp, dp, pp, as Megatron orders them.

    ep is carved out of cp x dp. `dp` spans cp too, since gradients are summed over both. Axes that a layout lays
    outside come last and take no two ranks of one node.
    """
    inside = np.where(layouts.tp_outside, 1, layouts.tp) * layouts.cp
    before_dp = inside
    inside = inside * np.where(layouts.dp_outside, 1, layouts.dp)
    before_pp = inside
    inside = inside * np.where(layouts.pp_outside, 1, layouts.pp)
    outer = np.maximum(node_gpus, inside)
    tp_outer = outer
    dp_outer = tp_outer * np.where(layouts.tp_outside, layouts.tp, 1)
    pp_outer = dp_outer * np.where(layouts.dp_outside, layouts.dp, 1)
    after_tp = np.where(layouts.tp_outside, 1, layouts.tp)
    match axis:
        case "tp":
            return Group(stride=np.where(layouts.tp_outside, tp_outer, 1), ranks=layouts.tp)
        case "cp":
            return Group(stride=after_tp, ranks=layouts.cp)
        case "ep":
            return Group(stride=after_tp, ranks=layouts.ep)
        case "dp":
            stride = np.where(layouts.cp > 1, after_tp, before_dp)
            return Group(stride=np.where(layouts.dp_outside, dp_outer, stride), ranks=layouts.dp * layouts.cp)
        case "pp":
            return Group(stride=np.where(layouts.pp_outside, pp_outer, before_pp), ranks=layouts.pp)


def wire_s(machine: Machine, group: Group, way: Way, size_bytes: Floats) -> Floats:
    """Seconds of one collective of whole buffers of `size_bytes`; nothing for one rank.

        t = hops a + r sqrt(S) + k (n - 1)/n S / B

    k = 2 and twice the hops for an all-reduce, else 1; r is halved likewise. B is the slowest tier's: a ring drives the
    rails of all its g ranks in a member (g B); in an all-to-all each rank has its own rail, for the (n - g)/(n - 1)
    that leave the member. An all-reduce takes a tree's hops where they are fewer. Source: as `cost.collectives`.
    """
    double = 2 if way == "all-reduce" else 1
    ranks = group.ranks
    slowest = np.zeros(len(ranks))  # seconds a byte
    latency = np.zeros(len(ranks))
    ramp = np.zeros(len(ranks))
    below = 1
    for reach in machine.reaches:
        above = below * reach.members
        crossed = (group.stride < above) & (group.stride * ranks > below)
        inside = np.minimum(ranks, np.maximum(1, below // group.stride))
        parts = np.maximum(1, np.minimum(ranks // inside, reach.members))
        share = (ranks - inside) / np.maximum(1, ranks - 1) if way == "all-to-all" else 1 / inside
        slowest = np.where(crossed, np.maximum(slowest, share / reach.rate_bytes_per_s), slowest)
        hops = parts - 1.0
        if way == "all-reduce":
            hops = np.minimum(hops, np.ceil(np.log2(parts)))
        latency = latency + np.where(crossed, double * hops * reach.latency_s, 0.0)
        ramp = np.where(crossed, np.maximum(ramp, reach.ramp_s_per_root_byte), ramp)
        below = above
    seconds = latency + ramp * (double / 2) * np.sqrt(size_bytes) + double * (ranks - 1) / ranks * size_bytes * slowest
    return np.where(ranks > 1, seconds, 0.0)


def send_seconds(machine: Machine, group: Group, size_bytes: Floats) -> Floats:
    """Seconds of one message to the next rank of the group; the worst pair's tier counts."""
    seconds = np.zeros(len(group.ranks))
    below = 1
    for reach in machine.reaches:
        above = below * reach.members
        crossed = (group.stride < above) & (group.stride * group.ranks > below)
        seconds = np.where(crossed, np.maximum(seconds, reach.latency_s + size_bytes / reach.rate_bytes_per_s), seconds)
        below = above
    return np.where(group.ranks > 1, seconds, 0.0)
