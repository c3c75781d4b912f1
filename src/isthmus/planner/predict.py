"""One strategy on one layout: what its step takes. Every figure goes through a formula of `isthmus.cost`."""

from dataclasses import dataclass

from isthmus.cost.efficiency import BACKWARD_FRACTION, BLOCKING_IN_MFU
from isthmus.cost.step import compute_s, pipeline_bubble_fraction
from isthmus.plan import Prediction, Strategy
from isthmus.planner.candidates import over_all, whole_batch
from isthmus.planner.crossing import Compute, Crossing, cross, warm_up_extra, with_delay
from isthmus.planner.feasibility import added_memory_bytes, replica_memory_bytes
from isthmus.planner.inside import InRegion, in_region, steady_s
from isthmus.planner.setting import Setting
from isthmus.units import show_bytes, show_seconds
from isthmus.workload import Axes, flop_per_token, micro_batches
from isthmus.workload.axes import stage_blocks

__all__ = ["Known", "Weighed", "weigh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A strategy (its delay now fixed) on a layout, and its prediction; None where it needs more memory than
    there is.
    """

    strategy: Strategy
    axes: Axes
    memory_bytes: float
    prediction: Prediction | None


Known = dict[tuple[bool, Axes], tuple[float, Compute | None]]
"""Already worked out: (one copy over all regions, layout) -> memory in bytes, and the compute where it fits.
Strategies share most of it.
"""


def weigh(setting: Setting, strategy: Strategy, axes: Axes, known: Known) -> Weighed:
    """Memory first, then time: `strategy` on `axes`. Adds what it works out to `known`."""
    spread = over_all(strategy)
    if (spread, axes) not in known:
        memory = replica_memory_bytes(setting, axes, spread)
        fits = memory <= setting.usable_memory_bytes
        known[spread, axes] = memory, compute_step(setting, axes, spread) if fits else None
    needed, compute = known[spread, axes]
    if compute is None:
        return Weighed(strategy=strategy, axes=axes, memory_bytes=needed, prediction=None)
    if strategy.kind == "pipeline" and setting.wan:
        extra = warm_up_extra(setting, setting.wan, axes, compute)
        needed += added_memory_bytes(setting, axes, extra)
        if needed > setting.usable_memory_bytes:
            return Weighed(strategy=strategy, axes=axes, memory_bytes=needed, prediction=None)
    if setting.wan is None:
        crossing = Crossing(exposed_s=0.0, wan_bytes=0.0, words="one region, nothing crosses a WAN")
    else:
        if strategy.kind == "local-steps" and strategy.delay_steps:
            strategy = with_delay(setting, setting.wan, strategy, compute)
        crossing = cross(setting, setting.wan, strategy, axes, compute)
    step = compute.total_s + crossing.exposed_s
    prediction = Prediction(
        step_s=step,
        compute_s=compute.busy_s,
        exposed_s=crossing.exposed_s,
        utilisation=compute.total_s / step,
        tokens_per_s=setting.workload.tokens_per_step / step,
        wan_bytes_per_step=crossing.wan_bytes / (setting.wan.payload_share if setting.wan else 1.0),
        memory_bytes_per_gpu=needed,
        formula=f"{compute.words}; {crossing.words}",
    )
    return Weighed(strategy=strategy, axes=axes, memory_bytes=needed, prediction=prediction)


def compute_step(setting: Setting, axes: Axes, spread: bool) -> Compute:
    """FLOPs of the step over the GPUs, then what the layout adds: recomputation, uneven shares, communication
    inside the region that the compute does not hide (`steady_s`), the pipeline's bubble.
    """
    batch, shape = whole_batch(setting.workload, axes), setting.workload.shape
    tokens = batch.tokens_per_step
    plain, full = (flop_per_token(shape, batch.sequence_length, each) for each in ("none", axes.recompute))
    busy = compute_s(full * tokens, setting.gpus, setting.dense_flop_per_s, setting.mfu)
    uneven = stage_blocks(shape, axes.pp) * axes.pp / shape.layers
    wires = in_region(setting, axes, spread)
    steady = steady_s(busy * uneven, wires)
    rounds = micro_batches(batch, axes)
    bubble = pipeline_bubble_fraction(axes.pp, rounds)
    words = (
        f"compute = {full * tokens:.3g} FLOP / ({setting.gpus} x {setting.dense_flop_per_s / 1e12:.4g} "
        "TFLOP/s x "
        f"{setting.mfu:.2f}) = {show_seconds(busy)}"
    )
    if full > plain:
        words += f" with recomputation (x {full / plain:.2f})"
    if uneven > 1:
        words += f", uneven stages x {uneven:.3f}"
    words += _wire_words(busy * uneven, steady, wires)
    if axes.pp > 1:
        words += f", bubble (p-1)/m = {axes.pp - 1}/{rounds}"
    return Compute(
        total_s=steady * (1 + bubble),
        busy_s=busy * uneven,
        slot_s=steady / rounds,
        micro_batches=rounds,
        # A recomputed forward pass belongs to the backward one: 3 of 4 parts instead of 2 of 3.
        backward_fraction=1 - (1 - BACKWARD_FRACTION.value) * plain / full,
        words=words,
    )


def _wire_words(busy_s: float, whole_s: float, wires: InRegion) -> str:
    if whole_s <= busy_s:
        return ""
    return (
        f", then {show_bytes(wires.sent_bytes)} a GPU inside the region, most for {wires.axis}: "
        f"max(compute, {show_seconds(wires.beside_s)} hidden) + what {show_seconds(wires.blocking_s)} of blocking exceed "
        f"{BLOCKING_IN_MFU.value:.0%} of compute = {show_seconds(whole_s)}"
    )
