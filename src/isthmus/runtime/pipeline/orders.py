"""Schedules: in which order a region runs the forward and backward passes of its chunks, and how long that takes.

Chunk c of C = R V is held by region c mod R. An order is fixed before the step and depends on nothing but its shape, so that
random numbers are drawn, and gradients added, in the same order in every run.

    1f1b         V = 1: region r runs w = R - 1 - r + e forward passes ahead, then one backward after each further one
    interleaved  micro-batches go through the region's chunks in groups of G; w = 2 (R - 1 - r) + (V - 1) G + e

Source: Narayanan et al., arXiv 2104.04473 sections 2.2 and 2.3 (there G = R and e = 0). The group G and the further passes
ahead e are for links whose latency counts: `choose_depth` takes the least that hides it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from isthmus.errors import InputError

__all__ = ["Depth", "Op", "Pace", "Shape", "choose_depth", "in_flight", "least_depth", "order", "played_s"]


@dataclass(frozen=True, slots=True)
class Op:
    """The forward or the backward pass of one micro-batch through one chunk."""

    backward: bool
    chunk: int
    micro: int


@dataclass(frozen=True, slots=True)
class Shape:
    """R regions with V chunks each, M micro-batches."""

    regions: int
    virtual: int
    micro_batches: int

    @property
    def chunks(self) -> int:
        """C = R V."""
        return self.regions * self.virtual


@dataclass(frozen=True, slots=True)
class Depth:
    """How far regions run ahead.

    Attributes:
        group: G, micro-batches that go through one chunk before the region turns to its next; divides M.
        extra: e of each region, falling from the first to the last.
    """

    group: int
    extra: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pace:
    """What a step is made of, in seconds.

    Attributes:
        forward_s, backward_s: Of one micro-batch through one chunk of each region.
        crossing_s: One way from each region to the next (the last one's: to the first): latency and wire.
        wire_s: The part of it that occupies the link; messages of one direction go one after another.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    crossing_s: tuple[float, ...]
    wire_s: tuple[float, ...]


def least_depth(shape: Shape) -> Depth:
    """That of the schedules as published, for links without latency."""
    return Depth(min(shape.regions, shape.micro_batches), (0,) * shape.regions)


def order(shape: Shape, region: int, depth: Depth) -> tuple[Op, ...]:
    """What `region` runs, first to last: 2 V M passes.

    Raises:
        InputError: Interleaved, and the group does not divide M or is smaller than R.
    """
    virtual, micro = shape.virtual, shape.micro_batches
    if virtual > 1 and (micro % depth.group or depth.group < shape.regions):
        raise InputError(
            "strategy.micro_batches",
            f"{micro} cannot be interleaved over {shape.regions} regions",
            f"give a multiple of {shape.regions}, or schedule 1f1b",
        )
    forwards, backwards = list(_passes(shape, region, depth, False)), list(_passes(shape, region, depth, True))
    behind = shape.regions - 1 - region
    ahead = behind if virtual == 1 else 2 * behind + (virtual - 1) * depth.group
    ahead = min(ahead + depth.extra[region], len(forwards) - 1)
    ops = forwards[:ahead]
    for position, backward in enumerate(backwards):
        if ahead + position < len(forwards):
            ops.append(forwards[ahead + position])
        ops.append(backward)
    return tuple(ops)


def _passes(shape: Shape, region: int, depth: Depth, backward: bool) -> Iterator[Op]:
    group = shape.micro_batches if shape.virtual == 1 else depth.group
    turns = range(shape.virtual)
    for first in range(0, shape.micro_batches, group):
        for turn in reversed(turns) if backward else turns:
            for micro in range(first, first + group):
                yield Op(backward, turn * shape.regions + region, micro)


def in_flight(ops: Sequence[Op]) -> int:
    """The most micro-batches, over all chunks, whose forward pass is done and backward pass is not: activations kept."""
    most = now = 0
    for op in ops:
        now += -1 if op.backward else 1
        most = max(most, now)
    return most


def played_s(shape: Shape, depth: Depth, pace: Pace) -> float:
    """Seconds of a step, played pass by pass: infinite where the orders wait for each other in a ring.

    Each region runs its order, each pass when its input is there. A link carries one message a direction and time.
    """
    orders = [order(shape, region, depth) for region in range(shape.regions)]
    arrived: dict[Op, float] = {Op(False, 0, micro): 0.0 for micro in range(shape.micro_batches)}
    clock, position, links = [0.0] * shape.regions, [0] * shape.regions, dict[tuple[int, int], float]()
    moved = True
    while moved:
        moved = False
        for region, ops in enumerate(orders):
            while position[region] < len(ops) and (op := ops[position[region]]) in arrived:
                took_s = (pace.backward_s if op.backward else pace.forward_s)[region]
                clock[region] = max(clock[region], arrived[op]) + took_s
                _hand_over(shape, pace, op, clock[region], (arrived, links))
                position[region] += 1
                moved = True
    return max(clock) if all(done == len(ops) for done, ops in zip(position, orders, strict=True)) else float("inf")


def _hand_over(
    shape: Shape, pace: Pace, op: Op, now_s: float, state: tuple[dict[Op, float], dict[tuple[int, int], float]]
) -> None:
    arrived, links = state
    if not op.backward and op.chunk == shape.chunks - 1:
        arrived[Op(True, op.chunk, op.micro)] = now_s
        return
    chunk = op.chunk + (-1 if op.backward else 1)
    if chunk < 0:
        return
    edge, link = min(op.chunk, chunk) % shape.regions, (op.chunk % shape.regions, chunk % shape.regions)
    begun_s = max(now_s, links.get(link, 0.0))
    links[link] = begun_s + pace.wire_s[edge]
    arrived[Op(op.backward, chunk, op.micro)] = begun_s + pace.crossing_s[edge]


def choose_depth(shape: Shape, pace: Pace, slack: float = 0.01) -> Depth:
    """The shallowest depth within `slack` of the fastest there is: deeper keeps more activations.

    Region r has e = ceil(f 2 x / t), x = the crossings from it to the last region, t = the slowest region's pass forward and
    backward: what covers a round trip exactly for 1f1b and f = 1. Candidates: f of 0 to 1 in eighths and a bit beyond, for
    every group that divides M; interleaved also all forward passes first. Each is played, and orders that would wait for each
    other for ever (interleaved, one region far ahead of the next) fall out.
    """
    groups = [g for g in range(shape.regions, shape.micro_batches + 1) if shape.micro_batches % g == 0]
    if shape.virtual == 1:
        groups = [least_depth(shape).group]
    slot_s = max(f + b for f, b in zip(pace.forward_s, pace.backward_s, strict=True))
    passes = shape.micro_batches * shape.virtual
    found: dict[Depth, float] = {}
    for group in groups or [shape.regions]:
        if shape.virtual > 1:
            depth = Depth(group, (passes,) * shape.regions)
            found[depth] = played_s(shape, depth, pace)
        for eighths in (*range(9), 12, 16):
            extra = tuple(
                ceil(eighths / 8 * 2 * sum(pace.crossing_s[region : shape.regions - 1]) / slot_s - 1e-9)
                for region in range(shape.regions)
            )
            depth = Depth(group, tuple(min(e, passes) for e in extra))
            if depth not in found:
                found[depth] = played_s(shape, depth, pace)
    bar_s = min(found.values()) * (1 + slack)
    good = [depth for depth, seconds in found.items() if seconds <= bar_s]
    return min(good, key=lambda depth: sum(in_flight(order(shape, r, depth)) for r in range(shape.regions)))
