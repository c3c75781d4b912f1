"""Collectives of many layouts at once: where each group's ranks lie, and what `collectives_time` says of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isthmus.cost.collectives_group import Group, part_of
from isthmus.cost.collectives_time import collective_seconds
from isthmus.cost.machine import Machine
from isthmus.workload.layout_memory import Floats
from isthmus.workload.layouts import Ints, Layouts

__all__ = ["Ranks", "Way", "group_of", "neighbours", "send_seconds", "wire_s"]

Way = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]
Axis = Literal["tp", "cp", "dp", "pp", "ep"]

_RANKS_MOST = 1 << 31
"""Only so that a stride and a number of ranks make one code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of one axis: every `stride`-th GPU, `ranks` of them; all such groups run at once. Each (n,)."""

    stride: Ints
    ranks: Ints


def group_of(layouts: Layouts, axis: Axis, node_gpus: int) -> Ranks:
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
            return Ranks(stride=np.where(layouts.tp_outside, tp_outer, 1), ranks=layouts.tp)
        case "cp":
            return Ranks(stride=after_tp, ranks=layouts.cp)
        case "ep":
            return Ranks(stride=after_tp, ranks=layouts.ep)
        case "dp":
            stride = np.where(layouts.cp > 1, after_tp, before_dp)
            return Ranks(stride=np.where(layouts.dp_outside, dp_outer, stride), ranks=layouts.dp * layouts.cp)
        case "pp":
            return Ranks(stride=np.where(layouts.pp_outside, pp_outer, before_pp), ranks=layouts.pp)


def wire_s(machine: Machine, group: Ranks, way: Way, size_bytes: Floats) -> Floats:
    """Seconds of one collective of whole buffers of `size_bytes`, alone; nothing for one rank.

    `collective_seconds` of the part of the machine that each layout's group takes; all groups of an axis run at once.
    """
    seconds = np.zeros(len(group.ranks))
    for rows, part in _parts(machine, group):
        seconds[rows] = collective_seconds(way, size_bytes[rows], part, constants=machine.constants)
    return seconds


def send_seconds(machine: Machine, group: Ranks, size_bytes: Floats) -> Floats:
    """Seconds of one message to the next rank of the group over the farthest links between two of its ranks."""
    seconds = np.zeros(len(group.ranks))
    for rows, part in _parts(machine, group):
        pair = neighbours(part)
        seconds[rows] = collective_seconds("send-recv", size_bytes[rows], pair, constants=machine.constants)
    return seconds


def neighbours(part: Group) -> Group:
    """Two ranks of `part` that its outermost level joins, each with its share of what a member of that level sends."""
    inside = 1
    for level in part[:-1]:
        inside *= level.members
    return (replace(part[-1], members=2, rate_bytes_per_s=part[-1].rate_bytes_per_s / inside),)


def _parts(machine: Machine, group: Ranks) -> Iterator[tuple[NDArray[Any], Group]]:
    """(rows whose groups lie alike, the part of the machine they take) for every kind that has more than one rank."""
    codes, kind = np.unique(group.stride * _RANKS_MOST + group.ranks, return_inverse=True)
    for index, code in enumerate(codes.tolist()):
        part = part_of(machine.group, *divmod(code, _RANKS_MOST))
        if part:
            yield np.flatnonzero(kind == index), part
