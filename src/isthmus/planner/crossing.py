"""What crossing the WAN adds to a step, for each kind of strategy: seconds seen, bytes sent, and the sum in words."""

from dataclasses import dataclass
from math import ceil, gcd

from isthmus.cost.codecs import codec_ratio
from isthmus.cost.collectives import Link, Tier, flat_ring_across_regions_s, hierarchical_all_reduce_s
from isthmus.cost.paths import Wan
from isthmus.cost.step import (
    blocking_sync_s,
    delayed_sync_s,
    pipeline_wan_exposed_s,
    pipeline_warm_up_extra,
    sharded_exposed_s,
    swap_bytes,
    zero3_wan_bytes,
)
from isthmus.cost.timeline import Stage, equal_buckets_exposed_s
from isthmus.plan import Strategy
from isthmus.planner.candidates import whole_batch
from isthmus.planner.setting import Setting
from isthmus.planner.words import counted
from isthmus.units import show_bytes, show_rate, show_seconds
from isthmus.workload import Axes

__all__ = ["Compute", "Crossing", "cross", "warm_up_extra", "with_delay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The step with communication between regions off.

    Attributes:
        total_s: The step, with the pipeline's bubble.
        busy_s: Of it, what the slowest stage computes.
        slot_s: One micro-batch on one stage, forward and backward.
        micro_batches: Of one replica.
        backward_fraction: Share of a slot.
        words: How `total_s` came about.
    """

    total_s: float
    busy_s: float
    slot_s: float
    micro_batches: int
    backward_fraction: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What the WAN adds: seconds seen, payload out of the busiest region a step, and the sum in words."""

    exposed_s: float
    wan_bytes: float
    words: str


def cross(setting: Setting, wan: Wan, strategy: Strategy, axes: Axes, compute: Compute) -> Crossing:
    """What crossing `wan` adds when `strategy` runs on `axes` beside `compute`."""
    match strategy.kind:
        case "flat":
            return _flat(setting, wan, strategy, axes, compute)
        case "hierarchical":
            return _hierarchical(setting, wan, strategy, axes, compute)
        case "local-steps":
            return _local_steps(setting, wan, strategy, compute)
        case "sharded" if axes.zero >= 3:
            return _zero3(setting, wan, axes, compute)
        case "sharded":
            return _zero1(setting, wan, axes, compute, strategy.bucket_bytes)
        case "pipeline":
            return _pipeline(setting, wan, axes, compute)


def _flat(setting: Setting, wan: Wan, strategy: Strategy, axes: Axes, compute: Compute) -> Crossing:
    """tp x pp rings of dp ranks at once, sharing the WAN; their buckets one after another, as NCCL runs
    them.
    """
    ranks, rings = axes.dp, axes.tp * axes.pp
    rate = wan.flat(rings)
    size = setting.parameters * setting.workload.gradient_bytes
    wire = Link(latency_s=wan.one_way_s, bandwidth_bytes_per_s=rate.rate_bytes_per_s, source="wan")
    count = _bucket_count(setting, strategy, axes)
    ring = flat_ring_across_regions_s(size / count, setting.regions, ranks / setting.regions, _ring_link(setting), wire)
    seen = _overlapped(count, Stage(before_s=0.0, wire_s=ring, latency_s=0.0, after_s=0.0), compute)
    sent = 2 * (ranks - 1) / ranks * size
    words = (
        f"{counted(rings, 'ring', 'rings at once')} over {counted(ranks, 'rank')} blind to regions: {show_bytes(sent)} over the "
        f"crossing edges at {show_rate(rate.rate_bytes_per_s)} (bound by {rate.bind}; {wan.channels * rings} streams), "
        f"{counted(count, 'bucket')} of {show_seconds(ring)}, exposed {show_seconds(seen)}"
    )
    return Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def _hierarchical(setting: Setting, wan: Wan, strategy: Strategy, axes: Axes, compute: Compute) -> Crossing:
    count = _bucket_count(setting, strategy, axes)
    sent = swap_bytes(_coded_bytes(setting, strategy), wan.regions)
    wire_s = sent / wan.limit.rate_bytes_per_s
    own = setting.parameters * setting.workload.gradient_bytes / (axes.tp * axes.pp) / count
    tiers = _replica_tiers(setting, axes)
    inside = hierarchical_all_reduce_s(own, tiers) / 2 if tiers else 0.0
    stage = Stage(before_s=inside, wire_s=wire_s / count, latency_s=wan.exchange_latency_s, after_s=inside)
    seen = _overlapped(count, stage, compute)
    words = (
        f"W = {show_bytes(sent)} ({_coding(setting, strategy)}) at {show_rate(wan.limit.rate_bytes_per_s)} = "
        f"{show_seconds(wire_s)} in {counted(count, 'bucket')} beside the last micro-batch's backward pass "
        f"({show_seconds(compute.slot_s * compute.backward_fraction)}), one way "
        f"{show_seconds(wan.one_way_s)}; "
        f"exposed {show_seconds(seen)}"
    )
    return Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def _local_steps(setting: Setting, wan: Wan, strategy: Strategy, compute: Compute) -> Crossing:
    sync, sent = _sync(setting, wan, strategy)
    every, delay = strategy.inner_steps, strategy.delay_steps
    seen = delayed_sync_s(sync, every, delay, compute.total_s) if delay else blocking_sync_s(sync, every)
    words = (
        f"sync C = {show_bytes(sent)} ({_coding(setting, strategy)}) at "
        f"{show_rate(wan.limit.rate_bytes_per_s)} + way "
        f"and all-gather = {show_seconds(sync)}, "
        + (f"applied d = {counted(delay, 'step')} later: max(0, C - d T)" if delay else "blocking: C")
        + f" / K = {every} gives {show_seconds(seen)} a step"
    )
    return Crossing(exposed_s=seen, wan_bytes=sent / every, words=words)


def _zero3(setting: Setting, wan: Wan, axes: Axes, compute: Compute) -> Crossing:
    weights, gradients = _weights_bytes(setting), float(setting.parameters * setting.workload.gradient_bytes)
    sent = zero3_wan_bytes(weights, gradients, wan.regions, compute.micro_batches)
    wire_s = sent / wan.limit.rate_bytes_per_s
    gathers = 2 * setting.workload.shape.layers * compute.micro_batches
    seen = sharded_exposed_s(wire_s, wan.one_way_s, compute.total_s, gathers)
    words = (
        f"(R-1)/R (2P + G) a = {show_bytes(sent)} with P = {show_bytes(weights)}, G = "
        f"{show_bytes(gradients)}, "
        f"a = {counted(compute.micro_batches, 'micro-batch', 'micro-batches')}, at {show_rate(wan.limit.rate_bytes_per_s)} = "
        f"{show_seconds(wire_s)}, "
        f"{gathers} gathers of one way {show_seconds(wan.one_way_s)} beside the compute; exposed "
        f"{show_seconds(seen)}"
    )
    return Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def _zero1(setting: Setting, wan: Wan, axes: Axes, compute: Compute, bucket_bytes: int) -> Crossing:
    """Weights whole in each region, optimizer split over all: gradients scattered once, weights gathered
    once.
    """
    share = (wan.regions - 1) / wan.regions
    gradients = share * setting.parameters * setting.workload.gradient_bytes
    weights = share * _weights_bytes(setting)
    rate = wan.limit.rate_bytes_per_s
    count = max(1, ceil(gradients / (axes.tp * axes.pp) / bucket_bytes))
    stage = Stage(before_s=0.0, wire_s=gradients / rate / count, latency_s=wan.one_way_s, after_s=0.0)
    scatter = _overlapped(count, stage, compute)
    forward = compute.slot_s * (1 - compute.backward_fraction)
    gather = max(0.0, weights / rate + wan.one_way_s - forward)
    words = (
        f"gradients out {show_bytes(gradients)} beside the last backward pass, exposed "
        f"{show_seconds(scatter)}; new weights "
        f"back {show_bytes(weights)} beside the first forward pass ({show_seconds(forward)}), exposed "
        f"{show_seconds(gather)}; "
        f"at {show_rate(rate)}"
    )
    return Crossing(exposed_s=scatter + gather, wan_bytes=gradients + weights, words=words)


def _pipeline(setting: Setting, wan: Wan, axes: Axes, compute: Compute) -> Crossing:
    wire_s, way_s = _pipeline_wire(setting, wan, axes)
    crossings = wan.regions - 1
    seen = pipeline_wan_exposed_s(compute.micro_batches, compute.slot_s, way_s + wire_s, wire_s, crossings)
    extra = warm_up_extra(setting, wan, axes, compute)
    batch = whole_batch(setting.workload, axes)
    # The regions at the ends send activations or gradients; one in the middle sends both.
    sent = batch.tokens_per_step * _activation_bytes(setting) * (1 if wan.regions == 2 else 2)
    words = (
        f"activations of a micro-batch {show_seconds(wire_s)} on the wire and {show_seconds(way_s)} on the "
        "way, against "
        f"{show_seconds(compute.slot_s)} of compute: fill and drain 2 x {counted(crossings, 'crossing')}, "
        f"{counted(extra, 'more micro-batch', 'more micro-batches')} in flight; exposed {show_seconds(seen)}"
    )
    return Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def warm_up_extra(setting: Setting, wan: Wan, axes: Axes, compute: Compute) -> int:
    """Micro-batches that a pipeline over regions keeps in flight beyond 1F1B's own."""
    wire_s, way_s = _pipeline_wire(setting, wan, axes)
    return pipeline_warm_up_extra(compute.slot_s, way_s + wire_s, wan.regions - 1)


def _pipeline_wire(setting: Setting, wan: Wan, axes: Axes) -> tuple[float, float]:
    """(wire, way) seconds of one micro-batch of all replicas over one crossing, one direction."""
    tokens = axes.dp * axes.micro_batch * setting.workload.sequence_length
    # The uplink's rate is over R - 1 links where all regions are joined; a crossing has one of them.
    rate = wan.limit.rate_bytes_per_s / (wan.regions - 1)
    return tokens * _activation_bytes(setting) / rate, wan.one_way_s


def with_delay(setting: Setting, wan: Wan, strategy: Strategy, compute: Compute) -> Strategy:
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


def _overlapped(count: int, stage: Stage, compute: Compute) -> float:
    """Exposed seconds of equal buckets that become ready over the last micro-batch's backward pass."""
    return equal_buckets_exposed_s(count, stage, compute.backward_fraction * compute.slot_s)


def _bucket_count(setting: Setting, strategy: Strategy, axes: Axes) -> int:
    own = setting.parameters * setting.workload.gradient_bytes / (axes.tp * axes.pp)
    return max(1, ceil(own / strategy.bucket_bytes))


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
