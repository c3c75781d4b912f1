"""The layouts of a strategy: what each needs and what its step takes with the WAN off, by formulas of `isthmus.cost`."""

from dataclasses import dataclass, replace

import numpy as np

from isthmus.cost.efficiency import BACKWARD_FRACTION, BLOCKING_IN_MFU, DEFAULT_MFU
from isthmus.cost.step import compute_s, pipeline_bubble_fraction
from isthmus.cost.step_times import StepTimes, step_times
from isthmus.plan import Strategy
from isthmus.planner.candidates import layouts, whole_batch
from isthmus.planner.crossing import Compute
from isthmus.planner.inside import InRegion, in_region, steady_s
from isthmus.planner.setting import Setting
from isthmus.planner.ways import layout_of, over_all, runs
from isthmus.units import show_bytes, show_seconds
from isthmus.workload import Axes, Layouts, flop_per_token, layout_memory, micro_batches
from isthmus.workload.axes import stage_blocks

__all__ = ["SAME_STEP", "Known", "Placed", "Places", "complexity", "compute_step", "place"]

SAME_STEP = 0.005
"""Layouts whose steps differ less than this are equal; the simpler is taken."""


@dataclass(frozen=True, slots=True)
class StepWords:
    """The parts of a modelled step in words, made only for the layouts that are shown."""

    times: StepTimes
    row: int

    def __call__(self) -> str:
        parts = {name: seconds for name, seconds in self.times.part(self.row).items() if seconds > 0}
        total = sum(parts.values())
        shown = [f"{name} {show_seconds(seconds)}" for name, seconds in parts.items() if seconds >= total / 200]
        return f"step inside a region {show_seconds(total)} = {' + '.join(shown)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A layout that fits, with its memory (before what a strategy adds) and its step with the WAN off."""

    axes: Axes
    memory_bytes: float
    compute: Compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Every layout that a kind of strategy may take.

    Attributes:
        fitting: Those that fit the memory, quickest first.
        leanest: The one that needs the least memory, with what it needs; None where there is no layout.
    """

    fitting: tuple[Placed, ...]
    leanest: tuple[float, Axes] | None


Known = dict[str, Places]
"""Already worked out: by what decides the layouts of a strategy (`place`). Nothing in it depends on the WAN."""


def place(setting: Setting, strategy: Strategy, known: Known) -> Places:
    """The layouts of `strategy`; strategies with a replica in each region share theirs. Adds to `known`."""
    key = strategy.name if strategy.kind == "sharded" else "pipeline" if strategy.kind == "pipeline" else "replicas"
    key = f"{strategy.kind}, run whole" if setting.only_runnable else key
    if key not in known:
        spread = over_all(strategy)
        found = list(layouts(setting, strategy))
        if setting.only_runnable:
            found = [axes for axes in found if runs(strategy, layout_of(axes), setting.regions)]
        if not found:
            known[key] = Places(fitting=(), leanest=None)
            return known[key]
        columns, memory = _columns(setting, found, spread)
        rows = [row for row, needed in enumerate(memory) if needed <= setting.usable_memory_bytes]
        fitting = [found[row] for row in rows]
        if setting.mfu is not None:
            computes = [compute_step(setting, axes, spread) for axes in fitting]
        else:
            computes = _modelled(setting, fitting, columns.take(np.array(rows, dtype=np.int64)))
        placed = [
            Placed(axes=axes, memory_bytes=memory[row], compute=compute)
            for row, axes, compute in zip(rows, fitting, computes, strict=True)
        ]
        known[key] = Places(
            fitting=_telling(placed),
            leanest=min(zip(memory, found, strict=True), key=lambda each: each[0], default=None),
        )
    return known[key]


def _columns(setting: Setting, found: list[Axes], spread: bool) -> tuple[Layouts, list[float]]:
    """All layouts at once, and the bytes each needs: one region's ranks, or all where the state spreads over regions."""
    rounds = [micro_batches(whole_batch(setting.workload, axes), axes) for axes in found]
    columns = Layouts.of(found, rounds)
    if not spread:
        columns = replace(columns, dp=min(setting.region_gpus) // (columns.tp * columns.pp * columns.cp))
    return columns, layout_memory(setting.workload, columns).total.tolist()


def _modelled(setting: Setting, found: list[Axes], columns: Layouts) -> list[Compute]:
    """By the step model."""
    times = step_times(setting.workload, columns, setting.machine)
    total, slot, rounds = times.total.tolist(), times.slot.tolist(), columns.rounds.tolist()
    busy = (times.compute + times.recompute + times.host).tolist()
    collectives = (times.tp + times.cp + times.ep + times.shards + times.sends + times.gradients).tolist()
    return [
        Compute(
            total_s=total[row],
            busy_s=busy[row],
            slot_s=slot[row],
            micro_batches=rounds[row],
            backward_fraction=3 / 4 if axes.recompute == "full" else BACKWARD_FRACTION.value,
            collectives_s=collectives[row],
            stages=axes.pp,
            words=StepWords(times, row),
        )
        for row, axes in enumerate(found)
    ]


def complexity(axes: Axes) -> tuple[int, ...]:
    """What a layout asks of its users, worst first: sharded weights, recomputation, model parallelism, ZeRO,
    batch.
    """
    return (
        int(axes.zero >= 3),
        int(axes.recompute != "none"),
        axes.tp * axes.pp,
        axes.pp,
        axes.virtual_stages,
        int(axes.tp_overlap),
        axes.zero,
        axes.micro_batch,
    )


def _telling(fitting: list[Placed]) -> tuple[Placed, ...]:
    """Quickest first, without those that another stands for.

    Layouts of equal degrees and micro-batch see the WAN alike, so of those as quick as the quickest of them the simplest is
    kept, and the leanest, since a strategy may add to the memory.
    """
    alike: dict[tuple[int | bool, ...], list[Placed]] = {}
    for each in fitting:
        axes = each.axes
        alike.setdefault((axes.dp, axes.tp, axes.pp, axes.cp, axes.ep, axes.micro_batch, axes.zero >= 3), []).append(each)
    kept: list[Placed] = []
    for group in alike.values():
        quickest = min(each.compute.total_s for each in group)
        near = [each for each in group if each.compute.total_s <= quickest * (1 + SAME_STEP)]
        simplest, leanest = min(near, key=lambda each: complexity(each.axes)), min(group, key=lambda each: each.memory_bytes)
        kept += [simplest] if simplest is leanest else [simplest, leanest]
    return tuple(sorted(kept, key=lambda each: each.compute.total_s))


def compute_step(setting: Setting, axes: Axes, spread: bool) -> Compute:
    """By the MFU that the workload states: FLOPs of the step over the GPUs, then what the layout adds: recomputation, uneven
    shares, communication inside the region that the compute does not hide (`steady_s`), the pipeline's bubble.
    """
    mfu = setting.mfu or DEFAULT_MFU.value
    batch, shape = whole_batch(setting.workload, axes), setting.workload.shape
    tokens = batch.tokens_per_step
    plain, full = (flop_per_token(shape, batch.sequence_length, each) for each in ("none", axes.recompute))
    busy = compute_s(full * tokens, setting.gpus, setting.dense_flop_per_s, mfu)
    uneven = stage_blocks(shape, axes.pp) * axes.pp / shape.layers
    wires = in_region(setting, axes, spread)
    steady = steady_s(busy * uneven, wires)
    rounds = micro_batches(batch, axes)
    bubble = pipeline_bubble_fraction(axes.pp, rounds) / axes.virtual_stages
    words = (
        f"compute = {full * tokens:.3g} FLOP / ({setting.gpus} x {setting.dense_flop_per_s / 1e12:.4g} "
        "TFLOP/s x "
        f"{mfu:.2f}) = {show_seconds(busy)}"
    )
    if full > plain:
        words += f" with recomputation (x {full / plain:.2f})"
    if uneven > 1:
        words += f", uneven stages x {uneven:.3f}"
    words += _wire_words(busy * uneven, steady, wires)
    if axes.pp > 1:
        chunks = f"/{axes.virtual_stages}" if axes.virtual_stages > 1 else ""
        words += f", bubble (p-1)/m = {axes.pp - 1}/{rounds}{chunks}"
    return Compute(
        total_s=steady * (1 + bubble),
        busy_s=busy * uneven,
        slot_s=steady / rounds,
        micro_batches=rounds,
        # A recomputed forward pass belongs to the backward one: 3 of 4 parts instead of 2 of 3.
        backward_fraction=1 - (1 - BACKWARD_FRACTION.value) * plain / full,
        collectives_s=(steady - busy * uneven) * (1 + bubble),
        stages=axes.pp,
        words=lambda: words,
    )


def _wire_words(busy_s: float, whole_s: float, wires: InRegion) -> str:
    if whole_s <= busy_s:
        return ""
    return (
        f", then {show_bytes(wires.sent_bytes)} a GPU inside the region, most for {wires.axis}: "
        f"max(compute, {show_seconds(wires.beside_s)} hidden) + what {show_seconds(wires.blocking_s)} of blocking exceed "
        f"{BLOCKING_IN_MFU.value:.0%} of compute = {show_seconds(whole_s)}"
    )
