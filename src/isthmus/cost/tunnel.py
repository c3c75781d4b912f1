"""What a wind-tunnel run will show, before it runs: link as asked, compute with the WAN off, codec and copy
speed and the CPU that an exchange takes, as `isthmus bench` measures them; no more.
"""

from dataclasses import dataclass
from math import sqrt

from isthmus.cost.codecs import codec_ratio
from isthmus.cost.gloo import RingShape, concurrent_rings_s
from isthmus.cost.step import blocking_sync_s, swap_bytes
from isthmus.cost.timeline import BucketTime, Stage, Timeline, deferred_timeline, ready_times_s
from isthmus.cost.transport import payload_fraction
from isthmus.errors import InfeasibleError
from isthmus.plan import Prediction, Strategy
from isthmus.units import show_bytes, show_rate, show_seconds

__all__ = [
    "TrialInputs",
    "exchange_limit_s",
    "exchange_s",
    "inner_compute_s",
    "predict_trial",
    "sync_stage",
    "trial_timeline",
]

_REPEATS = 60  # each halves the distance to what the work asks for


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
        buckets: Bytes of each gradient bucket, in the order they become ready; empty where not recorded.
        codec_encode_bytes_per_s: fp32 bytes a rank encodes per second while all ranks encode; None for codec
            `none`.
        codec_decode_bytes_per_s: The same for decoding, counted in fp32 bytes written.
        copy_bytes_per_s: Buffer bytes per second of a reduce-scatter and all-gather in the region, both
            together.
        frame_overhead: Frame headers as a share of what they carry.
        links_per_region: Links over which one region's traffic spreads evenly (1 for two regions, R - 1 in a
            full mesh).
        chunk_bytes: A bucket goes through the stages in one segment for each whole chunk of it; None: whole.
        exchange_cpu_s: CPU seconds of one exchange of all buckets, beyond their sync inside the regions: of all ranks, codec
            included, and of the emulated link, which runs on the same machine. Of a flat strategy: of its rings. None where it
            was not measured: then only the codec's speed counts.
        cores: Of this machine, which all ranks and the link share; None: at least one a rank.
        shared_cores: Ranks keep all cores busy, so the work on buckets takes turns with the compute.
        straggler_s: How much longer than compute_s the slower of all regions takes in the same step, WAN off: median
            over steps of the maximum over regions, less the median step. Optional; 0 for regions in step.
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
    exchange_cpu_s: float | None = None
    cores: int | None = None
    shared_cores: bool = True
    straggler_s: float = 0.0

    @property
    def known_buckets(self) -> tuple[float, ...]:
        """`buckets`, or the whole gradient as one where none were recorded."""
        return self.buckets or (self.gradient_bytes,)

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
            raise _not_run(strategy)


def trial_timeline(strategy: Strategy, inputs: TrialInputs) -> Timeline:
    """The step of an every-step strategy, bucket by bucket; its `compute_s` leaves out the region's own synchronisation.

    Raises:
        InfeasibleError: Local steps have no such timeline, and other kinds do not run in the tunnel.
    """
    match strategy.kind:
        case "flat":
            return _flat_timeline(inputs)
        case "hierarchical":
            ready = ready_times_s(inputs.known_buckets, inner_compute_s(inputs), inputs.backward_fraction)
            buckets = [_segments(size, strategy, inputs) for size in inputs.known_buckets]
            return deferred_timeline(ready, buckets, inner_compute_s(inputs), inputs.shared_cores)
        case "local-steps" | "sharded" | "pipeline":
            raise _not_run(strategy)


def inner_compute_s(inputs: TrialInputs) -> float:
    """compute_s without the synchronisation in the region that it holds, S / copy speed: the stages hold that themselves."""
    return max(0.0, inputs.compute_s - sum(inputs.known_buckets) / inputs.copy_bytes_per_s)


def exchange_limit_s(size_bytes: float, regions: int, rate_bytes_per_s: float, rtt_s: float) -> float:
    """Least seconds for an fp32 exchange over the WAN: W x 8 / (rate x 1448/1500) + RTT/2 (acceptance A2),
    rate in bit/s.
    """
    return swap_bytes(size_bytes, regions) / (rate_bytes_per_s * payload_fraction()) + rtt_s / 2


def exchange_s(size_bytes: float, strategy: Strategy, inputs: TrialInputs) -> float:
    """Seconds of one hierarchical all-reduce of `size_bytes` of fp32 with nothing else going on."""
    return deferred_timeline([0.0], [_segments(size_bytes, strategy, inputs)], 0.0, shared_cores=False).exposed_s


def sync_stage(strategy: Strategy, inputs: TrialInputs) -> Stage:
    """One outer sync of local steps: shards encoded and swapped whole, decoded, gathered in the region.

    Ranks of a region hold equal parameters, so there is no reduce-scatter.
    """
    return _stage(inputs.gradient_bytes, strategy, inputs, reduce_in_region=False)


def _flat(inputs: TrialInputs) -> Prediction:
    ring = _ring(inputs)
    timeline = trial_timeline(Strategy(name="flat", kind="flat"), inputs)
    wire_bytes = 2 * (ring.ranks - 1) / ring.ranks * inputs.gradient_bytes
    formula = (
        f"gloo rings over {ring.ranks} ranks, {len(inputs.known_buckets)} buckets in the order of the backward pass, two "
        f"at a time: step = {show_seconds(timeline.step_s)}; 2(n-1)/n S = {show_bytes(wire_bytes)} over one edge "
        f"at {show_rate(inputs.payload_bytes_per_s)}, two segments of <= 1 MiB in flight, "
        f"one way {show_seconds(inputs.rtt_s / 2)}"
    )
    if timeline.compute_s > inner_compute_s(inputs):
        formula += f", their work lengthens the backward pass by {show_seconds(timeline.compute_s - inner_compute_s(inputs))}"
    return _prediction(inputs, _seen(timeline, inputs), wire_bytes, 4.0, f"{formula}{_straggling(inputs, 1)}")


def _hierarchical(strategy: Strategy, inputs: TrialInputs) -> Prediction:
    timeline = trial_timeline(strategy, inputs)
    stages = [each for size in inputs.known_buckets for each in _segments(size, strategy, inputs)]
    wire_bytes = _wire_bytes(inputs.gradient_bytes, strategy, inputs)
    formula = (
        f"reduce-scatter in region | {strategy.codec} | swap | all-gather, {len(inputs.known_buckets)} buckets sent "
        f"beside the backward pass: step = {show_seconds(timeline.step_s)}; wire W = {show_bytes(wire_bytes)} "
        f"at {show_rate(inputs.payload_bytes_per_s)} = {show_seconds(sum(stage.wire_s for stage in stages))}, "
        f"rank's own work {show_seconds(sum(stage.before_s + stage.after_s for stage in stages))}, "
        f"one way {show_seconds(inputs.rtt_s / 2)} a bucket"
    )
    return _prediction(inputs, _seen(timeline, inputs), wire_bytes, 4.0, f"{formula}{_straggling(inputs, 1)}")


def _local_steps(strategy: Strategy, inputs: TrialInputs) -> Prediction:
    stage = sync_stage(strategy, inputs)
    # A delayed sync hides its wire behind d inner steps; the rank's own work shares the cores with them.
    floor = stage.before_s + stage.after_s if inputs.shared_cores else 0.0
    seen = max(floor, stage.total_s - strategy.delay_steps * inputs.compute_s)
    exposed = blocking_sync_s(seen, strategy.inner_steps) + inputs.straggler_s / sqrt(strategy.inner_steps)
    wire_bytes = _wire_bytes(inputs.gradient_bytes, strategy, inputs)
    formula = (
        f"sync C = {show_seconds(stage.total_s)} (W = {show_bytes(wire_bytes)}, {strategy.codec}) every "
        f"K = {strategy.inner_steps} steps, applied d = {strategy.delay_steps} steps later: "
        f"exposed = max(rank's work {show_seconds(floor)}, C - d T) / K = {show_seconds(exposed)}"
    )
    # Parameters, gradient, two moments; and the outer optimizer's copy and momentum.
    formula += _straggling(inputs, strategy.inner_steps)
    return _prediction(inputs, exposed, wire_bytes / strategy.inner_steps, 6.0, formula)


def _seen(timeline: Timeline, inputs: TrialInputs) -> float:
    """What the step takes beyond compute_s: what of the exchange is not hidden, and the wait for the slower region.

    Without a WAN each region goes at its own pace; every exchange makes all wait for the slowest.
    """
    return max(0.0, timeline.step_s - inputs.compute_s) + inputs.straggler_s


def _straggling(inputs: TrialInputs, inner_steps: int) -> str:
    """The straggler term in words. Over K independent steps the slower region's lead grows by sqrt(K), a step by 1/sqrt(K)."""
    if not inputs.straggler_s:
        return ""
    return f"; waiting for the slower region {show_seconds(inputs.straggler_s / sqrt(inner_steps))} a step"


def _flat_timeline(inputs: TrialInputs) -> Timeline:
    """The rings replace the synchronisation in the region; their additions are in the rings' own local rate.

    Where ranks share cores, the work of the rings' bytes (`_ring_work_s`) that falls into the backward pass makes it longer by
    as much; what comes later hides behind the wire. How much falls into it depends on its length: found by repetition.
    """
    inner, work = inner_compute_s(inputs), _ring_work_s(inputs)
    timeline, longer = _rings(inner, 0.0, inputs), 0.0
    for _ in range(_REPEATS if work else 0):
        spans = [(each.start_s, each.end_s) for each in timeline.buckets]
        whole = sum(end - start for start, end in spans)
        beside = sum(max(0.0, min(end, timeline.compute_s) - start) for start, end in spans)
        wanted = work * beside / whole if whole else 0.0
        if abs(wanted - longer) <= 1e-9 * timeline.compute_s:
            break
        longer = (longer + wanted) / 2
        timeline = _rings(inner, longer, inputs)
    return timeline


def _rings(inner_s: float, longer_s: float, inputs: TrialInputs) -> Timeline:
    """The step with a backward pass that is `longer_s` longer."""
    compute = inner_s + longer_s
    fraction = (inner_s * inputs.backward_fraction + longer_s) / compute if compute else 0.0
    ready = ready_times_s(inputs.known_buckets, compute, fraction)
    spans = concurrent_rings_s(ready, inputs.known_buckets, _ring(inputs))
    times = tuple(
        BucketTime(bucket=index, ready_s=exists, begin_s=start, start_s=start, end_s=end, done_s=end)
        for index, (exists, (start, end)) in enumerate(zip(ready, spans, strict=True))
    )
    last = max(end for _, end in spans)
    return Timeline(buckets=times, compute_s=compute, exposed_s=max(0.0, last - compute))


def _ring_work_s(inputs: TrialInputs) -> float:
    """Seconds that the rings keep every rank from computing, were all of it beside the compute; 0 where it is not measured."""
    if inputs.exchange_cpu_s is None or not inputs.shared_cores:
        return 0.0
    # `exchange_cpu_s` is counted beyond the region's own synchronisation, which `inner_compute_s` leaves out.
    return sum(inputs.known_buckets) / inputs.copy_bytes_per_s + _taken_s(inputs.exchange_cpu_s, inputs)


def _taken_s(cpu_s: float, inputs: TrialInputs) -> float:
    """Seconds by which `cpu_s` of work holds every rank up: all compute at once on the same cores, one core a rank at most."""
    ranks = len(inputs.regions) * inputs.ranks_per_region
    return cpu_s / min(inputs.cores or ranks, ranks)


def _ring(inputs: TrialInputs) -> RingShape:
    return RingShape(
        regions=len(inputs.regions),
        ranks_per_region=inputs.ranks_per_region,
        wan_bytes_per_s=inputs.payload_bytes_per_s,
        wan_latency_s=inputs.rtt_s / 2,
        local_bytes_per_s=inputs.copy_bytes_per_s,
    )


def _segments(size_bytes: float, strategy: Strategy, inputs: TrialInputs) -> list[Stage]:
    count = max(1, int(size_bytes // inputs.chunk_bytes)) if inputs.chunk_bytes else 1
    return [_stage(size_bytes / count, strategy, inputs, reduce_in_region=True)] * count


def _wire_bytes(size_bytes: float, strategy: Strategy, inputs: TrialInputs) -> float:
    return swap_bytes(size_bytes, len(inputs.regions)) * codec_ratio(strategy.codec) * (1 + inputs.frame_overhead)


def _stage(size_bytes: float, strategy: Strategy, inputs: TrialInputs, reduce_in_region: bool) -> Stage:
    """One piece of the buffer through a rank: the region's copy half before and half after, and the exchange's own work."""
    half_copy = size_bytes / inputs.copy_bytes_per_s / 2
    before, after = _work_s(size_bytes, strategy, inputs)
    return Stage(
        before_s=(half_copy if reduce_in_region else 0.0) + before,
        wire_s=_wire_bytes(size_bytes, strategy, inputs) / (inputs.payload_bytes_per_s * inputs.links_per_region),
        latency_s=inputs.rtt_s / 2 * (1 if len(inputs.regions) <= 2 else 2),
        after_s=half_copy + after,
    )


def _work_s(size_bytes: float, strategy: Strategy, inputs: TrialInputs) -> tuple[float, float]:
    """Seconds that a rank is kept from computing by sending and by taking in `size_bytes` of fp32.

        measured:  w = C / min(cores, ranks) x size / S, half of it before the wire and half after

    C = exchange_cpu_s, S = gradient: all ranks compute at once on the same cores, so work for one delays all alike.
    Unmeasured, the codec alone: a rank encodes its shard S/g once. Of two regions each decodes both shards, its own too, so
    that both add the same numbers; of more, it decodes the R - 1 foreign parts of the R-th it adds up, then all R results.
    """
    regions = len(inputs.regions)
    if inputs.exchange_cpu_s is not None:
        work = _taken_s(inputs.exchange_cpu_s, inputs) * size_bytes / sum(inputs.known_buckets)
        return work / 2, work / 2
    if strategy.codec == "none":
        return 0.0, 0.0
    shard = size_bytes / inputs.ranks_per_region
    decoded = 2 * shard if regions == 2 else (2 * regions - 1) / regions * shard
    return (
        shard / _speed(inputs.codec_encode_bytes_per_s, strategy),
        decoded / _speed(inputs.codec_decode_bytes_per_s, strategy),
    )


def _speed(bytes_per_s: float | None, strategy: Strategy) -> float:
    if bytes_per_s is None:
        raise InfeasibleError(f"no codec speed for {strategy.codec}", "codec speed must be measured first: isthmus bench")
    return bytes_per_s


def _not_run(strategy: Strategy) -> InfeasibleError:
    return InfeasibleError(
        f"the wind tunnel cannot predict {strategy.name!r}",
        f"it runs flat, hierarchical and local-steps, not {strategy.kind}",
    )


def _prediction(inputs: TrialInputs, exposed_s: float, wan_bytes: float, buffers: float, formula: str) -> Prediction:
    exposed = max(0.0, exposed_s)
    step = inputs.compute_s + exposed
    return Prediction(
        step_s=step,
        compute_s=inputs.compute_s,
        exposed_s=exposed,
        utilisation=inputs.compute_s / step,
        tokens_per_s=inputs.tokens_per_step / step,
        wan_bytes_per_step=wan_bytes / payload_fraction(),
        memory_bytes_per_gpu=buffers * inputs.gradient_bytes,
        formula=formula,
    )
