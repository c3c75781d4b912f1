"""What crossing the WAN adds to a step, for each kind of strategy: seconds seen, bytes sent, and the sum in words."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from isthmus.cost.codecs import CODEC_MEMORY_SHARE, codec_ratio, coding_traffic_bytes, low_rank_share
from isthmus.cost.collectives_group import Group, GroupLevel, part_of
from isthmus.cost.collectives_time import seconds_of
from isthmus.cost.efficiency import BUCKET_WORK
from isthmus.cost.paths import Wan, pipeline_legs
from isthmus.cost.step import (
    fragments_exposed_s,
    pipeline_wan_exposed_s,
    pipeline_warm_up_extra,
    sharded_exposed_s,
    swap_bytes,
    zero3_wan_bytes,
)
from isthmus.cost.timeline import Stage, equal_buckets_exposed_s, staggered_left_s
from isthmus.fabric.carriers import NetworkCarrier
from isthmus.plan import Strategy
from isthmus.planner.candidates import whole_batch
from isthmus.planner.setting import Setting
from isthmus.planner.words import counted
from isthmus.units import show_bytes, show_rate, show_seconds
from isthmus.workload import Axes

__all__ = ["Compute", "Crossing", "coding_seconds", "cross", "fragment_stage", "warm_up_extra"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The step with communication between regions off.

    Attributes:
        total_s: The step, with the pipeline's bubble.
        busy_s: Of it, what the slowest stage computes.
        slot_s: One micro-batch on one stage, forward and backward.
        micro_batches: Of one replica.
        backward_fraction: Share of a slot.
        collectives_s: Of `total_s`, collectives inside the region that are seen.
        stages: Of the pipeline.
        words: How `total_s` came about, made when asked for.
    """

    total_s: float
    busy_s: float
    slot_s: float
    micro_batches: int
    backward_fraction: float
    collectives_s: float
    stages: int
    words: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What the WAN adds: seconds seen, payload out of the busiest region a step, and the sum in words, when asked for."""

    exposed_s: float
    wan_bytes: float
    words: Callable[[], str]


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
            return _zero3(setting, wan, compute)
        case "sharded":
            return _zero1(setting, wan, axes, compute, strategy.bucket_bytes)
        case "pipeline":
            return _pipeline(setting, wan, strategy, axes, compute)


def _flat(setting: Setting, wan: Wan, strategy: Strategy, axes: Axes, compute: Compute) -> Crossing:
    """tp x pp of NCCL's rings over dp ranks at once, sharing the WAN; their buckets one after another, as NCCL runs them."""
    ranks, rings = axes.dp * axes.cp, axes.tp * axes.pp
    rate = wan.flat(rings)
    size = setting.parameters * setting.workload.gradient_bytes
    count = _bucket_count(setting, strategy, axes)
    over = (*_replicas(setting, axes), _wan_level(setting, wan, rate.rate_bytes_per_s / rings))
    ring = seconds_of("all-reduce", size / rings / count, over, setting.constants, ("ring", "simple"))
    # Rings of all stages share the WAN and wait in step: what one stage gains by ending first is left out.
    whole = Stage(before_s=0.0, wire_s=ring, latency_s=0.0, after_s=0.0)
    seen = equal_buckets_exposed_s(count, whole, compute.backward_fraction * compute.slot_s)
    sent = 2 * (ranks - 1) / ranks * size

    def words() -> str:
        return (
            f"{counted(rings, 'ring', 'rings at once')} over {counted(ranks, 'rank')} blind to regions: {show_bytes(sent)} over "
            f"the crossing edges at {show_rate(rate.rate_bytes_per_s)} (bound by {rate.bind}; {wan.channels * rings} streams), "
            f"{counted(count, 'bucket')} of {show_seconds(ring)}, exposed {show_seconds(seen)}"
        )

    return Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def _hierarchical(setting: Setting, wan: Wan, strategy: Strategy, axes: Axes, compute: Compute) -> Crossing:
    count = _bucket_count(setting, strategy, axes)
    ratio = _ratio(setting, strategy, axes)
    sent = swap_bytes(_coded_bytes(setting, strategy, ratio), wan.regions)
    wire_s = sent / wan.limit.rate_bytes_per_s
    own = setting.parameters * setting.workload.gradient_bytes / (axes.tp * axes.pp) / count
    replicas = _replicas(setting, axes)
    encode, decode = coding_seconds(setting, strategy, ratio)
    stage = Stage(
        before_s=seconds_of("reduce-scatter", own, replicas, setting.constants) + encode / count + BUCKET_WORK.value,
        wire_s=sent / axes.pp / count / wan.some(wan.rails // axes.pp).rate_bytes_per_s,
        # PowerSGD exchanges twice, the second time what depends on the first.
        latency_s=wan.exchange_latency_s * (2 if strategy.codec == "powersgd" else 1),
        after_s=seconds_of("all-gather", own, replicas, setting.constants) + decode / count,
    )
    seen = _overlapped(count, stage, compute, wire_s / count)

    def words() -> str:
        coding = "" if strategy.codec == "none" else f", coding {show_seconds(encode + decode)}"
        return (
            f"W = {show_bytes(sent)} ({_coding(setting, strategy, ratio)}) at {show_rate(wan.limit.rate_bytes_per_s)} = "
            f"{show_seconds(wire_s)} in {counted(count, 'bucket')} beside the last micro-batch's backward pass "
            f"({show_seconds(compute.slot_s * compute.backward_fraction)}){coding}, one way {show_seconds(wan.one_way_s)}; "
            f"exposed {show_seconds(seen)}"
        )

    return Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def _local_steps(setting: Setting, wan: Wan, strategy: Strategy, compute: Compute) -> Crossing:
    stage, every, pieces = fragment_stage(setting, wan, strategy), strategy.inner_steps, strategy.fragments
    work = stage.before_s + stage.after_s if strategy.codec != "none" else 0.0
    seen = fragments_exposed_s(stage.total_s, stage.wire_s, work, (every, strategy.delay_steps, pieces), compute.total_s)
    sent = swap_bytes(_coded_bytes(setting, strategy, codec_ratio(strategy.codec)), wan.regions)

    def words() -> str:
        what = "sync" if pieces == 1 else f"one of {pieces} fragments"
        delay = strategy.delay_steps
        return (
            f"{what} C = {show_bytes(sent / pieces)} ({_coding(setting, strategy, codec_ratio(strategy.codec))}) at "
            f"{show_rate(wan.limit.rate_bytes_per_s)} + way, coding and all-gather = {show_seconds(stage.total_s)}, "
            + (f"applied d = {counted(delay, 'step')} later: max(coding, C - d T)" if delay else "blocking: C")
            + (f" x {pieces}" if pieces > 1 else "")
            + f" / K = {every} gives {show_seconds(seen)} a step"
        )

    return Crossing(exposed_s=seen, wan_bytes=sent / every, words=words)


def fragment_stage(setting: Setting, wan: Wan, strategy: Strategy) -> Stage:
    """One fragment of an outer sync alone: coded, shards out, decoded, all-gather in the region. Ranks of a region are equal."""
    pieces, ratio = strategy.fragments, codec_ratio(strategy.codec)
    sent = swap_bytes(_coded_bytes(setting, strategy, ratio), wan.regions) / pieces
    inside = seconds_of("all-gather", 4.0 * setting.parameters / pieces, setting.group, setting.constants)
    encode, decode = coding_seconds(setting, strategy, ratio)
    return Stage(
        before_s=encode / pieces,
        wire_s=sent / wan.limit.rate_bytes_per_s,
        latency_s=wan.exchange_latency_s,
        after_s=decode / pieces + inside,
    )


def _zero3(setting: Setting, wan: Wan, compute: Compute) -> Crossing:
    weights, gradients = _weights_bytes(setting), float(setting.parameters * setting.workload.gradient_bytes)
    sent = zero3_wan_bytes(weights, gradients, wan.regions, compute.micro_batches)
    wire_s = sent / wan.limit.rate_bytes_per_s
    gathers = 2 * setting.workload.shape.layers * compute.micro_batches
    seen = sharded_exposed_s(wire_s, wan.one_way_s, compute.total_s, gathers)

    def words() -> str:
        return (
            f"(R-1)/R (2P + G) a = {show_bytes(sent)} with P = {show_bytes(weights)}, G = {show_bytes(gradients)}, "
            f"a = {counted(compute.micro_batches, 'micro-batch', 'micro-batches')}, at {show_rate(wan.limit.rate_bytes_per_s)} "
            f"= {show_seconds(wire_s)}, {gathers} gathers of one way {show_seconds(wan.one_way_s)} beside the compute; exposed "
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
    own = gradients / axes.pp / wan.some(wan.rails // axes.pp).rate_bytes_per_s
    stage = Stage(before_s=0.0, wire_s=own / count, latency_s=wan.one_way_s, after_s=0.0)
    scatter = _overlapped(count, stage, compute, gradients / rate / count)
    forward = compute.slot_s * (1 - compute.backward_fraction)
    gather = max(0.0, weights / rate + wan.one_way_s - forward)

    def words() -> str:
        return (
            f"gradients out {show_bytes(gradients)} beside the last backward pass, exposed {show_seconds(scatter)}; new weights "
            f"back {show_bytes(weights)} beside the first forward pass ({show_seconds(forward)}), exposed "
            f"{show_seconds(gather)}; at {show_rate(rate)}"
        )

    return Crossing(exposed_s=scatter + gather, wan_bytes=gradients + weights, words=words)


def _pipeline(setting: Setting, wan: Wan, strategy: Strategy, axes: Axes, compute: Compute) -> Crossing:
    ways_s, wire_s = _pipeline_ways(setting, strategy, axes)
    seen = pipeline_wan_exposed_s(compute.micro_batches, compute.slot_s, ways_s, wire_s)
    batch = whole_batch(setting.workload, axes)
    # The regions at the ends send activations or gradients; one in the middle sends both.
    sent = batch.tokens_per_step * _activation_bytes(setting, strategy) * (1 if wan.regions == 2 else 2)

    def words() -> str:
        extra = warm_up_extra(setting, strategy, axes, compute)
        return (
            f"activations of a micro-batch {show_seconds(wire_s)} on the wire and {show_seconds(max(ways_s) - wire_s)} on the "
            f"way, against {show_seconds(compute.slot_s)} of compute: fill and drain 2 x {counted(len(ways_s), 'crossing')}, "
            f"{counted(extra, 'more micro-batch', 'more micro-batches')} in flight; exposed {show_seconds(seen)}"
        )

    return Crossing(exposed_s=seen, wan_bytes=sent, words=words)


def warm_up_extra(setting: Setting, strategy: Strategy, axes: Axes, compute: Compute) -> int:
    """Micro-batches that a pipeline over regions keeps in flight beyond 1F1B's own."""
    return pipeline_warm_up_extra(compute.slot_s, _pipeline_ways(setting, strategy, axes)[0])


def _pipeline_ways(setting: Setting, strategy: Strategy, axes: Axes) -> tuple[list[float], float]:
    """(wire and way of one micro-batch of all replicas over each crossing, one direction; the longest wire), seconds."""
    tokens = axes.dp * axes.micro_batch * setting.workload.sequence_length
    legs = pipeline_legs(setting.fabric, axes.dp * axes.tp * axes.cp)
    wires = [tokens * _activation_bytes(setting, strategy) / leg.limit.rate_bytes_per_s for leg in legs]
    return [wire + leg.one_way_s for wire, leg in zip(wires, legs, strict=True)], max(wires)


def _overlapped(count: int, stage: Stage, compute: Compute, all_wire_s: float) -> float:
    """Exposed seconds of equal buckets that become ready over the last micro-batch's backward pass.

    `stage` is one bucket of one stage of the pipeline alone, `all_wire_s` the wire of one bucket of all stages together. Stages
    end their backward passes one after another, the first of them last, and share the WAN.
    """
    window, stages = compute.backward_fraction * compute.slot_s, compute.stages
    alone = equal_buckets_exposed_s(count, stage, window)
    if stages == 1 or stage.wire_s <= 0:
        return alone
    left = staggered_left_s(stages, stage.wire_s * count, all_wire_s * count, window)
    return max(alone, left + stage.total_s - stage.wire_s)


def _bucket_count(setting: Setting, strategy: Strategy, axes: Axes) -> int:
    own = setting.parameters * setting.workload.gradient_bytes / (axes.tp * axes.pp)
    return max(1, ceil(own / strategy.bucket_bytes))


def _ratio(setting: Setting, strategy: Strategy, axes: Axes) -> float:
    """Encoded bytes per byte of fp32; PowerSGD's follows from the rows that a rank's shard of one bucket holds."""
    if strategy.codec != "powersgd":
        return codec_ratio(strategy.codec, strategy.codec_density)
    ranks = max(1, min(setting.region_gpus) // (axes.tp * axes.pp))
    shard = strategy.bucket_bytes / setting.workload.gradient_bytes / ranks
    return low_rank_share(setting.matrices, setting.parameters, strategy.codec_rank, shard)


def _coded_bytes(setting: Setting, strategy: Strategy, ratio: float) -> float:
    """The whole gradient (or delta) as it goes over the WAN; deltas are fp32, gradients as the workload
    keeps them.
    """
    if strategy.codec == "none":
        each = 4 if strategy.kind == "local-steps" else setting.workload.gradient_bytes
        return float(setting.parameters * each)
    return setting.parameters * 4 * ratio


def coding_seconds(setting: Setting, strategy: Strategy, ratio: float) -> tuple[float, float]:
    """(before, after) seconds that one GPU takes to code its shard of everything: memory traffic over a share of the peak."""
    rate = setting.gpu_memory_bytes_per_s * CODEC_MEMORY_SHARE.value
    elements = setting.parameters / min(setting.region_gpus)
    encode, decode = coding_traffic_bytes(strategy.codec, setting.regions, ratio)
    return elements * encode / rate, elements * decode / rate


def _coding(setting: Setting, strategy: Strategy, ratio: float) -> str:
    if strategy.codec == "none" and strategy.kind != "local-steps":
        return f"{8 * setting.workload.gradient_bytes}-bit gradients"
    return f"{strategy.codec}, {4 * ratio:.3g} bytes a parameter"


def _weights_bytes(setting: Setting) -> float:
    return float(setting.parameters * (4 if setting.workload.precision == "fp32" else 2))


def _activation_bytes(setting: Setting, strategy: Strategy) -> float:
    """Bytes of one token between two blocks."""
    plain = 4 if setting.workload.precision == "fp32" else 2
    return setting.workload.shape.hidden * (plain if strategy.codec == "none" else 4 * codec_ratio(strategy.codec))


def _replicas(setting: Setting, axes: Axes) -> Group:
    """One region's ranks of a data-parallel group; model parallelism takes the innermost ranks."""
    model = axes.tp * axes.pp
    return part_of(setting.group, model, max(1, min(setting.region_gpus) // model))


def _wan_level(setting: Setting, wan: Wan, payload_bytes_per_s: float) -> GroupLevel:
    """Regions as the outermost level of a collective that is blind to them."""
    carrier: NetworkCarrier = "wan-rdma" if wan.rdma else "wan-tcp"
    line = payload_bytes_per_s / setting.constants.carriers[carrier].sustained
    return GroupLevel(carrier=carrier, members=wan.regions, rate_bytes_per_s=line, latency_s=wan.ring_one_way_s)
