"""One strategy on one layout: what its step takes. Every figure goes through a formula of `isthmus.cost`."""

from dataclasses import dataclass
from math import ceil, gcd

from isthmus.cost.codecs import codec_ratio
from isthmus.cost.collectives import Link, Tier, flat_ring_across_regions_s, hierarchical_all_reduce_s
from isthmus.cost.efficiency import BACKWARD_FRACTION
from isthmus.cost.paths import Wan
from isthmus.cost.step import (
    blocking_sync_s,
    compute_s,
    delayed_sync_s,
    pipeline_bubble_fraction,
    pipeline_wan_exposed_s,
    pipeline_warm_up_extra,
    sharded_exposed_s,
    swap_bytes,
    zero3_wan_bytes,
)
from isthmus.cost.timeline import Stage, overlap_timeline, ready_times_s
from isthmus.plan import Prediction, Strategy
from isthmus.planner.candidates import over_all, whole_batch
from isthmus.planner.feasibility import added_memory_bytes, replica_memory_bytes
from isthmus.planner.setting import Setting
from isthmus.units import show_bytes, show_rate, show_seconds
from isthmus.workload import Axes, flop_per_token, micro_batches
from isthmus.workload.axes import stage_blocks

__all__ = ["Known", "Weighed", "weigh"]

BUCKETS_MAX = 64
"""Buckets of a timeline; more would show the last one's share of the wire (1/64) a little smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A strategy (its delay now fixed) on a layout, and its prediction; None where it needs more memory than
    there is.
    """

    strategy: Strategy
    axes: Axes
    memory_bytes: float
    prediction: Prediction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compute:
    """The step with communication between regions off.

    Attributes:
        total_s: The step.
        slot_s: One micro-batch on one stage, forward and backward.
        micro_batches: Of one replica.
        backward_fraction: Share of a slot.
        words: How `total_s` came about.
    """

    total_s: float
    slot_s: float
    micro_batches: int
    backward_fraction: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crossing:
    """What the WAN adds: seconds seen, bytes out of the busiest region a step, and the sum in words."""

    exposed_s: float
    wan_bytes: float
    words: str


Known = dict[tuple[bool, Axes], float]
"""Memory already worked out: (one copy over all regions, layout) -> bytes. Strategies share most of it."""


def weigh(setting: Setting, strategy: Strategy, axes: Axes, known: Known) -> Weighed:
    """Memory first, then time: `strategy` on `axes`. Adds what it works out to `known`."""
    spread = over_all(strategy)
    if (spread, axes) not in known:
        known[spread, axes] = replica_memory_bytes(setting, axes, spread)
    needed = known[spread, axes]
    if needed > setting.usable_memory_bytes:
        return Weighed(strategy=strategy, axes=axes, memory_bytes=needed, prediction=None)
    compute = _compute(setting, axes)
    if strategy.kind == "pipeline" and setting.wan:
        extra = _warm_up_extra(setting, setting.wan, axes, compute)
        needed += added_memory_bytes(setting, axes, extra)
        if needed > setting.usable_memory_bytes:
            return Weighed(strategy=strategy, axes=axes, memory_bytes=needed, prediction=None)
    if setting.wan is None:
        crossing = _Crossing(exposed_s=0.0, wan_bytes=0.0, words="one region, nothing crosses a WAN")
    else:
        if strategy.kind == "local-steps" and strategy.delay_steps:
            strategy = _with_delay(setting, setting.wan, strategy, compute)
        crossing = _cross(setting, setting.wan, strategy, axes, compute)
    step = compute.total_s + crossing.exposed_s
    prediction = Prediction(
        step_s=step,
        compute_s=compute.total_s,
        exposed_s=crossing.exposed_s,
        utilisation=compute.total_s / step,
        tokens_per_s=setting.workload.tokens_per_step / step,
        wan_bytes_per_step=crossing.wan_bytes,
        memory_bytes_per_gpu=needed,
        formula=f"{compute.words}; {crossing.words}",
    )
    return Weighed(strategy=strategy, axes=axes, memory_bytes=needed, prediction=prediction)


def _compute(setting: Setting, axes: Axes) -> _Compute:
    """FLOPs of the step over the GPUs, then what the layout adds: recomputation, uneven shares, the
    pipeline's bubble.
    """
    batch, shape = whole_batch(setting.workload, axes), setting.workload.shape
    tokens = batch.tokens_per_step
    plain, full = (flop_per_token(shape, batch.sequence_length, each) for each in ("none", axes.recompute))
    busy = compute_s(full * tokens, setting.gpus, setting.dense_flop_per_s, setting.mfu)
    uneven = stage_blocks(shape, axes.pp) * axes.pp / shape.layers
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
    if axes.pp > 1:
        words += f", bubble (p-1)/m = {axes.pp - 1}/{rounds}"
    return _Compute(
        total_s=busy * uneven * (1 + bubble),
        slot_s=busy * uneven / rounds,
        micro_batches=rounds,
        # A recomputed forward pass belongs to the backward one: 3 of 4 parts instead of 2 of 3.
        backward_fraction=1 - (1 - BACKWARD_FRACTION.value) * plain / full,
        words=words,
    )


def _cross(setting: Setting, wan: Wan, strategy: Strategy, axes: Axes, compute: _Compute) -> _Crossing:
    match strategy.kind:
        case "flat":
            return _flat(setting, wan, strategy, axes, compute)
        case "hierarchical":
            return _hierarchical(setting, wan, strategy, axes, compute)
        case "local-steps":
            return _local_steps(setting, wan, strategy, compute)
        case "sharded":
            whole = axes.zero >= 3
            return (
                _zero3(setting, wan, axes, compute)
                if whole
                else _shared_optimizer(setting, wan, axes, compute)
            )
        case "pipeline":
            return _pipeline(setting, wan, axes, compute)


def _flat(setting: Setting, wan: Wan, strategy: Strategy, axes: Axes, compute: _Compute) -> _Crossing:
    """tp x pp rings of dp ranks at once, sharing the WAN; their buckets one after another, as NCCL runs
    them.
    """
    per_region = max(1, axes.dp // setting.regions)
    size = setting.parameters * setting.workload.gradient_bytes
    wire = Link(latency_s=wan.one_way_s, bandwidth_bytes_per_s=wan.flat.rate_bytes_per_s, source="wan")
    count = _bucket_count(setting, strategy, axes)
    ring = flat_ring_across_regions_s(size / count, setting.regions, per_region, _ring_link(setting), wire)
    seen = _overlapped([Stage(before_s=0.0, wire_s=ring, latency_s=0.0, after_s=0.0)] * count, compute)
    ranks = per_region * setting.regions
    sent = 2 * (ranks - 1) / ranks * size
    words = (
        f"ring over {ranks} ranks blind to regions: {show_bytes(sent)} over a crossing edge at "
        f"{show_rate(wan.flat.rate_bytes_per_s)} (bound by {wan.flat.bind}), {count} buckets of "
        f"{show_seconds(ring)}, "
        f"exposed {show_seconds(seen)}"
    )
    return _Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def _hierarchical(setting: Setting, wan: Wan, strategy: Strategy, axes: Axes, compute: _Compute) -> _Crossing:
    count = _bucket_count(setting, strategy, axes)
    sent = swap_bytes(_coded_bytes(setting, strategy), wan.regions)
    wire_s = sent / wan.limit.rate_bytes_per_s
    own = setting.parameters * setting.workload.gradient_bytes / (axes.tp * axes.pp) / count
    tiers = _replica_tiers(setting, axes)
    inside = hierarchical_all_reduce_s(own, tiers) / 2 if tiers else 0.0
    stage = Stage(before_s=inside, wire_s=wire_s / count, latency_s=wan.exchange_latency_s, after_s=inside)
    seen = _overlapped([stage] * count, compute)
    words = (
        f"W = {show_bytes(sent)} ({_coding(setting, strategy)}) at {show_rate(wan.limit.rate_bytes_per_s)} = "
        f"{show_seconds(wire_s)} in {count} buckets beside the last micro-batch's backward pass "
        f"({show_seconds(compute.slot_s * compute.backward_fraction)}), one way "
        f"{show_seconds(wan.one_way_s)}; "
        f"exposed {show_seconds(seen)}"
    )
    return _Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def _local_steps(setting: Setting, wan: Wan, strategy: Strategy, compute: _Compute) -> _Crossing:
    sync, sent = _sync(setting, wan, strategy)
    every, delay = strategy.inner_steps, strategy.delay_steps
    seen = delayed_sync_s(sync, every, delay, compute.total_s) if delay else blocking_sync_s(sync, every)
    words = (
        f"sync C = {show_bytes(sent)} ({_coding(setting, strategy)}) at "
        f"{show_rate(wan.limit.rate_bytes_per_s)} + way "
        f"and all-gather = {show_seconds(sync)}, "
        + (f"applied d = {delay} steps later: max(0, C - d T)" if delay else "blocking: C")
        + f" / K = {every} gives {show_seconds(seen)} a step"
    )
    return _Crossing(exposed_s=seen, wan_bytes=sent / every, words=words)


def _zero3(setting: Setting, wan: Wan, axes: Axes, compute: _Compute) -> _Crossing:
    weights, gradients = _weights_bytes(setting), float(setting.parameters * setting.workload.gradient_bytes)
    sent = zero3_wan_bytes(weights, gradients, wan.regions, compute.micro_batches)
    wire_s = sent / wan.limit.rate_bytes_per_s
    gathers = 2 * setting.workload.shape.layers * compute.micro_batches
    seen = sharded_exposed_s(wire_s, wan.one_way_s, compute.total_s, gathers)
    words = (
        f"(R-1)/R (2P + G) a = {show_bytes(sent)} with P = {show_bytes(weights)}, G = "
        f"{show_bytes(gradients)}, "
        f"a = {compute.micro_batches} micro-batches, at {show_rate(wan.limit.rate_bytes_per_s)} = "
        f"{show_seconds(wire_s)}, "
        f"{gathers} gathers of one way {show_seconds(wan.one_way_s)} beside the compute; exposed "
        f"{show_seconds(seen)}"
    )
    return _Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def _shared_optimizer(setting: Setting, wan: Wan, axes: Axes, compute: _Compute) -> _Crossing:
    """Weights whole in each region, optimizer split over all: gradients scattered once, weights gathered
    once.
    """
    share = (wan.regions - 1) / wan.regions
    gradients = share * setting.parameters * setting.workload.gradient_bytes
    weights = share * _weights_bytes(setting)
    rate = wan.limit.rate_bytes_per_s
    count = BUCKETS_MAX
    stage = Stage(before_s=0.0, wire_s=gradients / rate / count, latency_s=wan.one_way_s, after_s=0.0)
    scatter = _overlapped([stage] * count, compute)
    forward = compute.slot_s * (1 - compute.backward_fraction)
    gather = max(0.0, weights / rate + wan.one_way_s - forward)
    words = (
        f"gradients out {show_bytes(gradients)} beside the last backward pass, exposed "
        f"{show_seconds(scatter)}; new weights "
        f"back {show_bytes(weights)} beside the first forward pass ({show_seconds(forward)}), exposed "
        f"{show_seconds(gather)}; "
        f"at {show_rate(rate)}"
    )
    return _Crossing(exposed_s=scatter + gather, wan_bytes=gradients + weights, words=words)


def _pipeline(setting: Setting, wan: Wan, axes: Axes, compute: _Compute) -> _Crossing:
    wire_s, way_s = _pipeline_wire(setting, wan, axes)
    crossings = wan.regions - 1
    seen = pipeline_wan_exposed_s(compute.micro_batches, compute.slot_s, way_s + wire_s, wire_s, crossings)
    extra = _warm_up_extra(setting, wan, axes, compute)
    batch = whole_batch(setting.workload, axes)
    # The regions at the ends send activations or gradients; one in the middle sends both.
    sent = batch.tokens_per_step * _activation_bytes(setting) * (1 if wan.regions == 2 else 2)
    words = (
        f"activations of a micro-batch {show_seconds(wire_s)} on the wire and {show_seconds(way_s)} on the "
        "way, against "
        f"{show_seconds(compute.slot_s)} of compute: fill and drain 2 x {crossings} crossings, {extra} more "
        "micro-batches in "
        f"flight; exposed {show_seconds(seen)}"
    )
    return _Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def _warm_up_extra(setting: Setting, wan: Wan, axes: Axes, compute: _Compute) -> int:
    wire_s, way_s = _pipeline_wire(setting, wan, axes)
    return pipeline_warm_up_extra(compute.slot_s, way_s + wire_s, wan.regions - 1)


def _pipeline_wire(setting: Setting, wan: Wan, axes: Axes) -> tuple[float, float]:
    """(wire, way) seconds of one micro-batch of all replicas over one crossing, one direction."""
    tokens = axes.dp * axes.micro_batch * setting.workload.sequence_length
    # The uplink's rate is over R - 1 links where all regions are joined; a crossing has one of them.
    rate = wan.limit.rate_bytes_per_s / (wan.regions - 1)
    return tokens * _activation_bytes(setting) / rate, wan.one_way_s


def _with_delay(setting: Setting, wan: Wan, strategy: Strategy, compute: _Compute) -> Strategy:
    """The fewest steps that hide the sync, but no more than one window."""
    sync, _ = _sync(setting, wan, strategy)
    delay = min(strategy.inner_steps, max(1, ceil(sync / compute.total_s)))
    return strategy.model_copy(update={"delay_steps": delay})


def _sync(setting: Setting, wan: Wan, strategy: Strategy) -> tuple[float, float]:
    """(seconds, bytes out of one region) of an outer sync of all parameters: shards out, all-gather in the
    region.
    """
    sent = swap_bytes(_coded_bytes(setting, strategy), wan.regions)
    inside = hierarchical_all_reduce_s(4.0 * setting.parameters, setting.tiers) / 2 if setting.tiers else 0.0
    return sent / wan.limit.rate_bytes_per_s + wan.exchange_latency_s + inside, sent


def _overlapped(stages: list[Stage], compute: _Compute) -> float:
    """Exposed seconds of equal buckets that become ready over the last micro-batch's backward pass."""
    share = compute.backward_fraction * compute.slot_s / compute.total_s
    ready = ready_times_s([1.0] * len(stages), compute.total_s, share)
    return overlap_timeline(ready, stages, compute.total_s).exposed_s


def _bucket_count(setting: Setting, strategy: Strategy, axes: Axes) -> int:
    own = setting.parameters * setting.workload.gradient_bytes / (axes.tp * axes.pp)
    return min(BUCKETS_MAX, max(1, ceil(own / strategy.bucket_bytes)))


def _coded_bytes(setting: Setting, strategy: Strategy) -> float:
    """The whole gradient (or delta) as it goes over the WAN; deltas are fp32, gradients as the workload
    keeps them.
    """
    if strategy.codec == "none":
        each = 4 if strategy.kind == "local-steps" else setting.workload.gradient_bytes
        return float(setting.parameters * each)
    return setting.parameters * 4 * codec_ratio(strategy.codec)


def _coding(setting: Setting, strategy: Strategy) -> str:
    if strategy.codec == "none" and strategy.kind != "local-steps":
        return f"{8 * setting.workload.gradient_bytes}-bit gradients"
    return f"{strategy.codec}, {4 * codec_ratio(strategy.codec):.3g} bytes a parameter"


def _weights_bytes(setting: Setting) -> float:
    return float(setting.parameters * (4 if setting.workload.precision == "fp32" else 2))


def _activation_bytes(setting: Setting) -> int:
    """Bytes of one token between two blocks."""
    return setting.workload.shape.hidden * (4 if setting.workload.precision == "fp32" else 2)


def _replica_tiers(setting: Setting, axes: Axes) -> list[Tier]:
    """The region's tiers as data parallelism sees them: model parallelism takes the innermost members
    first.
    """
    taken, tiers = axes.tp * axes.pp, list[Tier]()
    for tier in setting.tiers:
        part = gcd(taken, tier.members)
        taken //= part
        if tier.members > part:
            tiers.append(Tier(members=tier.members // part, link=tier.link))
    return tiers


def _ring_link(setting: Setting) -> Link:
    """The slowest tier as a ring over whole members meets it: all rails of the member together."""
    below, slowest = 1, Link(latency_s=0.0, bandwidth_bytes_per_s=float("inf"), source="no tier")
    for tier in setting.tiers:
        rate = tier.link.bandwidth_bytes_per_s * below
        if rate < slowest.bandwidth_bytes_per_s:
            slowest = Link(latency_s=tier.link.latency_s, bandwidth_bytes_per_s=rate, source=tier.link.source)
        below *= tier.members
    return slowest
