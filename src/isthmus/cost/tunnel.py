"""What a wind-tunnel run will show, before it runs: link as asked, compute with the WAN off, codec and copy
speed; no more.
"""

from dataclasses import dataclass
from math import ceil

from isthmus.cost.codecs import codec_ratio
from isthmus.cost.gloo import RingShape, gloo_ring_all_reduce_s
from isthmus.cost.step import blocking_sync_s, swap_bytes
from isthmus.cost.timeline import Stage, Timeline, overlap_timeline, ready_times_s
from isthmus.cost.transport import payload_fraction
from isthmus.errors import InfeasibleError
from isthmus.plan import Prediction, Strategy
from isthmus.units import show_bytes, show_rate, show_seconds

__all__ = ["TrialInputs", "exchange_limit_s", "exchange_s", "predict_trial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialInputs:
    """Everything a trial's prediction may know.

    Attributes:
        regions: Names.
        ranks_per_region: g, the same everywhere; rank i of every region forms rail i.
        gradient_bytes: S, fp32, of the whole model.
        tokens_per_step: Over all ranks.
        compute_s: Median step with inter-region communication off; holds the synchronisation inside the
            regions.
        backward_fraction: Share of the compute that is the backward pass.
        rate_bytes_per_s: One link, one way, IP bytes at MTU 1500.
        rtt_s: Of the idle link.
        buckets: Bytes of each gradient bucket, in the order they become ready.
        codec_encode_bytes_per_s: fp32 bytes a rank encodes per second while all ranks encode; None for codec
            `none`.
        codec_decode_bytes_per_s: The same for decoding, counted in fp32 bytes written.
        copy_bytes_per_s: Buffer bytes per second of a reduce-scatter and all-gather in the region, both
            together.
        frame_overhead: Frame headers as a share of what they carry.
        links_per_region: Links over which one region's traffic spreads evenly (1 for two regions, R - 1 in a
            full mesh).
        chunk_bytes: Size of the pieces in which a bucket goes through the stages; None for whole buckets.
        shared_cores: Ranks keep all cores busy, so the work on buckets takes turns with the compute.
    """

    regions: tuple[str, ...]
    ranks_per_region: int
    gradient_bytes: float
    tokens_per_step: int
    compute_s: float
    backward_fraction: float
    rate_bytes_per_s: float
    rtt_s: float
    buckets: tuple[float, ...]
    codec_encode_bytes_per_s: float | None
    codec_decode_bytes_per_s: float | None
    copy_bytes_per_s: float
    frame_overhead: float = 0.0
    links_per_region: int = 1
    chunk_bytes: float | None = None
    shared_cores: bool = True

    @property
    def payload_bytes_per_s(self) -> float:
        """What TCP carries on one link."""
        return self.rate_bytes_per_s * payload_fraction()


def predict_trial(strategy: Strategy, inputs: TrialInputs) -> Prediction:
    """Step time, exposed communication and WAN bytes of `strategy` in the wind tunnel.

    Raises:
        InfeasibleError: The tunnel does not run this kind of strategy.
    """
    match strategy.kind:
        case "flat":
            return _flat(inputs)
        case "hierarchical":
            return _hierarchical(strategy, inputs)
        case "local-steps":
            return _local_steps(strategy, inputs)
        case "sharded" | "pipeline":
            raise InfeasibleError(
                f"the wind tunnel cannot predict {strategy.name!r}",
                f"it runs flat, hierarchical and local-steps, not {strategy.kind}",
            )


def exchange_limit_s(size_bytes: float, regions: int, rate_bytes_per_s: float, rtt_s: float) -> float:
    """Least seconds for an fp32 exchange over the WAN: W x 8 / (rate x 1448/1500) + RTT/2 (acceptance A2),
    rate in bit/s.
    """
    return swap_bytes(size_bytes, regions) / (rate_bytes_per_s * payload_fraction()) + rtt_s / 2


def exchange_s(size_bytes: float, strategy: Strategy, inputs: TrialInputs, reduce_in_region: bool = True) -> float:
    """Seconds of one hierarchical all-reduce of `size_bytes` of fp32 with nothing else going on."""
    stages = [_stage(piece, strategy, inputs, reduce_in_region) for piece in _pieces(size_bytes, inputs)]
    return overlap_timeline([0.0] * len(stages), stages, 0.0, shared_cores=False).exposed_s


def _flat(inputs: TrialInputs) -> Prediction:
    ring = RingShape(
        regions=len(inputs.regions),
        ranks_per_region=inputs.ranks_per_region,
        wan_bytes_per_s=inputs.payload_bytes_per_s,
        wan_latency_s=inputs.rtt_s / 2,
        local_bytes_per_s=inputs.copy_bytes_per_s,
    )
    wires = [gloo_ring_all_reduce_s(size, ring) for size in inputs.buckets]
    timeline = _play(inputs, [[Stage(before_s=0.0, wire_s=wire, latency_s=0.0, after_s=0.0)] for wire in wires])
    wire_bytes = 2 * (ring.ranks - 1) / ring.ranks * inputs.gradient_bytes
    formula = (
        f"gloo ring over {ring.ranks} ranks, buckets in the order of the backward pass, one after another: "
        f"step = {show_seconds(timeline.step_s)}; rings together {show_seconds(sum(wires))} for "
        f"2(n-1)/n S = {show_bytes(wire_bytes)} over one edge at {show_rate(inputs.payload_bytes_per_s)}, "
        f"two segments of <= 1 MiB in flight, one way {show_seconds(inputs.rtt_s / 2)}"
    )
    return _prediction(inputs, timeline.step_s - inputs.compute_s, wire_bytes / payload_fraction(), 4.0, formula)


def _hierarchical(strategy: Strategy, inputs: TrialInputs) -> Prediction:
    by_bucket = [[_stage(piece, strategy, inputs, True) for piece in _pieces(size, inputs)] for size in inputs.buckets]
    timeline = _play(inputs, by_bucket)
    stages = [stage for pieces in by_bucket for stage in pieces]
    wire_bytes = _wire_bytes(inputs.gradient_bytes, strategy, inputs)
    formula = (
        f"reduce-scatter in region | {strategy.codec} | swap | all-gather, beside the backward pass: "
        f"step = {show_seconds(timeline.step_s)}; wire W = {show_bytes(wire_bytes)} at "
        f"{show_rate(inputs.payload_bytes_per_s)} = {show_seconds(sum(stage.wire_s for stage in stages))}, "
        f"rank's own work {show_seconds(sum(stage.before_s + stage.after_s for stage in stages))}, "
        f"one way {show_seconds(inputs.rtt_s / 2)}"
    )
    return _prediction(inputs, timeline.step_s - inputs.compute_s, wire_bytes / payload_fraction(), 4.0, formula)


def _local_steps(strategy: Strategy, inputs: TrialInputs) -> Prediction:
    sync = exchange_s(inputs.gradient_bytes, strategy, inputs, reduce_in_region=False)
    whole = _stage(inputs.gradient_bytes, strategy, inputs, False)
    # A delayed sync hides its wire behind d inner steps; the rank's own work shares the cores with them.
    floor = whole.before_s + whole.after_s if inputs.shared_cores else 0.0
    hidden = strategy.delay_steps * inputs.compute_s
    seen = max(min(floor, sync), sync - hidden)
    exposed = blocking_sync_s(seen, strategy.inner_steps)
    wire_bytes = _wire_bytes(inputs.gradient_bytes, strategy, inputs)
    formula = (
        f"sync C = {show_seconds(sync)} (W = {show_bytes(wire_bytes)}, {strategy.codec}) every "
        f"K = {strategy.inner_steps} steps, applied d = {strategy.delay_steps} steps later: "
        f"exposed = max(rank's work {show_seconds(floor)}, C - d T) / K = {show_seconds(exposed)}"
    )
    # Parameters, gradient, two moments; and the outer optimizer's copy and momentum.
    return _prediction(inputs, exposed, wire_bytes / payload_fraction() / strategy.inner_steps, 6.0, formula)


def _play(inputs: TrialInputs, stages: list[list[Stage]]) -> Timeline:
    """The overlap timeline of each bucket's stages, after compute_s less the region's own synchronisation.

    The stages hold that synchronisation themselves (the flat ring replaces it).
    """
    busy = max(0.0, inputs.compute_s - sum(inputs.buckets) / inputs.copy_bytes_per_s)
    ready = ready_times_s(inputs.buckets, busy, inputs.backward_fraction)
    times = [time for time, pieces in zip(ready, stages, strict=True) for _ in pieces]
    return overlap_timeline(times, [stage for pieces in stages for stage in pieces], busy, inputs.shared_cores)


def _pieces(size_bytes: float, inputs: TrialInputs) -> list[float]:
    count = max(1, ceil(size_bytes / inputs.chunk_bytes)) if inputs.chunk_bytes else 1
    return [size_bytes / count] * count


def _wire_bytes(size_bytes: float, strategy: Strategy, inputs: TrialInputs) -> float:
    return swap_bytes(size_bytes, len(inputs.regions)) * codec_ratio(strategy.codec) * (1 + inputs.frame_overhead)


def _stage(size_bytes: float, strategy: Strategy, inputs: TrialInputs, reduce_in_region: bool) -> Stage:
    """One piece of the buffer through a rank: the region's copy half before and half after, codec in between.

    A rank encodes its shard S/g and decodes the results of all R regions, its own too, so that every region
    adds the same numbers.
    """
    regions = len(inputs.regions)
    shard = size_bytes / inputs.ranks_per_region
    half_copy = size_bytes / inputs.copy_bytes_per_s / 2
    coded = strategy.codec != "none"
    encode = shard / _speed(inputs.codec_encode_bytes_per_s, strategy) if coded else 0.0
    decode = regions * shard / _speed(inputs.codec_decode_bytes_per_s, strategy) if coded else 0.0
    return Stage(
        before_s=(half_copy if reduce_in_region else 0.0) + encode,
        wire_s=_wire_bytes(size_bytes, strategy, inputs) / (inputs.payload_bytes_per_s * inputs.links_per_region),
        latency_s=inputs.rtt_s / 2 * (1 if regions <= 2 else 2),
        after_s=half_copy + decode,
    )


def _speed(bytes_per_s: float | None, strategy: Strategy) -> float:
    if bytes_per_s is None:
        raise InfeasibleError(f"no codec speed for {strategy.codec}", "codec speed must be measured first: isthmus bench")
    return bytes_per_s


def _prediction(inputs: TrialInputs, exposed_s: float, wan_bytes: float, buffers: float, formula: str) -> Prediction:
    exposed = max(0.0, exposed_s)
    step = inputs.compute_s + exposed
    return Prediction(
        step_s=step,
        compute_s=inputs.compute_s,
        exposed_s=exposed,
        utilisation=inputs.compute_s / step,
        tokens_per_s=inputs.tokens_per_step / step,
        wan_bytes_per_step=wan_bytes,
        memory_bytes_per_gpu=buffers * inputs.gradient_bytes,
        formula=formula,
    )
