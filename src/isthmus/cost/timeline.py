"""Overlap: what of a step's communication is seen, and what hides behind the backward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "BucketTime",
    "Stage",
    "Timeline",
    "deferred_timeline",
    "equal_buckets_exposed_s",
    "overlap_timeline",
    "ready_times_s",
    "staggered_left_s",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one bucket needs once its gradients exist, in order.

    Attributes:
        before_s: Work of the rank before the wire: reduce-scatter in the region, encoding.
        wire_s: Time on the one serial pipe between the regions.
        latency_s: From the last byte sent to the last byte there; does not occupy the pipe.
        after_s: Work of the rank after the wire: decoding, all-gather in the region.
    """

    before_s: float
    wire_s: float
    latency_s: float
    after_s: float

    @property
    def total_s(self) -> float:
        """The bucket alone, nothing else going on."""
        return self.before_s + self.wire_s + self.latency_s + self.after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTime:
    """One bucket on the step's clock, which starts at 0 with the forward pass.

    `ready_s`: gradients exist; `begin_s`: the rank takes it up; `start_s`, `end_s`: first byte on the wire,
    last byte there; `done_s`: usable.
    """

    bucket: int
    ready_s: float
    begin_s: float
    start_s: float
    end_s: float
    done_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All buckets of a step; `exposed_s` is how much longer than its compute the step takes."""

    buckets: tuple[BucketTime, ...]
    compute_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        """Compute and what of the communication is seen."""
        return self.compute_s + self.exposed_s


def ready_times_s(sizes_bytes: Sequence[float], compute_s: float, backward_fraction: float) -> list[float]:
    """When each bucket's gradients exist: evenly by bytes over the backward pass, which ends with the step's
    compute.

        ready_i = T (1 - f) + T f (s_0 + ... + s_i) / S

    T = compute_s, f = backward_fraction. Leaves out: layers whose time per byte differs (embeddings, the
    head).
    """
    total = sum(sizes_bytes)
    ready: list[float] = []
    passed = 0.0
    for size in sizes_bytes:
        passed += size
        ready.append(compute_s * (1 - backward_fraction + backward_fraction * passed / total))
    return ready


def overlap_timeline(ready_s: Sequence[float], stages: Sequence[Stage], compute_s: float, shared_cores: bool = False) -> Timeline:
    """Play buckets through rank -> wire -> rank, each serial and in order, while the backward pass goes on.

    Args:
        ready_s: When each bucket exists, rising; none later than `compute_s`.
        stages: What each bucket needs.
        compute_s: Length of the step's compute.
        shared_cores: The rank's own work on buckets (`before_s`, `after_s`) takes turns with the backward
            pass, as on a machine whose cores are all busy, so it delays later buckets and the step's end in
            full; otherwise it runs beside it, as copies on a GPU do.

    Source: the three-machine flow shop, start = max(ready, machine free); Johnson, Nav. Res. Log. Q. 1, 1954.
    """
    rank_free = wire_free = after_free = stolen = 0.0
    times: list[BucketTime] = []
    for index, (ready, stage) in enumerate(zip(ready_s, stages, strict=True)):
        exists = ready + (stolen if shared_cores else 0.0)
        begin = max(exists, rank_free)
        rank_free = begin + stage.before_s
        stolen += stage.before_s
        start = max(rank_free, wire_free)
        wire_free = start + stage.wire_s
        end = wire_free + stage.latency_s
        after_free = max(end, after_free) + stage.after_s
        times.append(BucketTime(bucket=index, ready_s=exists, begin_s=begin, start_s=start, end_s=end, done_s=after_free))
    work = sum(stage.before_s + stage.after_s for stage in stages) if shared_cores else 0.0
    finish = max(compute_s + work, after_free) if times else compute_s
    return Timeline(buckets=tuple(times), compute_s=compute_s, exposed_s=max(0.0, finish - compute_s))


def deferred_timeline(
    ready_s: Sequence[float], buckets: Sequence[Sequence[Stage]], compute_s: float, shared_cores: bool
) -> Timeline:
    """Play buckets as isthmus's communication thread works: all out as they become ready, and only then all in.

    The thread reduces and sends the segments of each bucket in turn, so the wire is never idle while there is something to
    send; after the last bucket is sent it takes the results back in order, as they arrive.

    Args:
        ready_s: When each bucket exists, rising.
        buckets: The segments of each bucket.
        compute_s: Length of the step's compute.
        shared_cores: The thread's work takes turns with the backward pass and delays later buckets as much.
    """
    rank = wire = stolen = 0.0
    arrivals: list[list[float]] = []
    begun: list[tuple[float, float, float]] = []  # exists, taken up, first byte sent
    for ready, segments in zip(ready_s, buckets, strict=True):
        exists = ready + stolen
        begin = rank = max(exists, rank)
        starts: list[float] = []
        arrivals.append([])
        for segment in segments:
            rank += segment.before_s
            starts.append(max(rank, wire))
            wire = starts[-1] + segment.wire_s
            arrivals[-1].append(wire + segment.latency_s)
        stolen += sum(each.before_s for each in segments) if shared_cores else 0.0
        begun.append((exists, begin, starts[0]))
    times: list[BucketTime] = []
    for index, ((exists, begin, start), segments) in enumerate(zip(begun, buckets, strict=True)):
        for segment, arrival in zip(segments, arrivals[index], strict=True):
            rank = max(rank, arrival) + segment.after_s
        end = arrivals[index][-1]
        times.append(BucketTime(bucket=index, ready_s=exists, begin_s=begin, start_s=start, end_s=end, done_s=rank))
    return Timeline(buckets=tuple(times), compute_s=compute_s, exposed_s=max(0.0, rank - compute_s))


def equal_buckets_exposed_s(count: int, stage: Stage, window_s: float) -> float:
    """Exposed seconds of `count` equal buckets that become ready evenly over the last `window_s` of the compute.

        t = total + max(0, (n - 1) (m - w / n))

    n = count, total = stage.total_s, m = its longest serial part, w = window_s. Either the last bucket counts,
    ready when the compute ends; or the first, ready (n - 1)/n w earlier, and then n - 1 turns of the slowest part.
    What `overlap_timeline` plays, in one expression, where ranks' work does not take turns with the compute.
    """
    slowest = max(stage.before_s, stage.wire_s, stage.after_s)
    return stage.total_s + max(0.0, (count - 1) * (slowest - window_s / count))


def staggered_left_s(stages: int, alone_s: float, all_s: float, window_s: float) -> float:
    """Seconds of wire left when the last of `stages` has ended its backward pass, where they end one after another.

    Each has as much to send, which becomes ready evenly over a window of its own; the windows follow one another. All that have
    something left share one wire evenly, none faster than alone.

    Args:
        stages: Of a pipeline.
        alone_s: What one of them sends, alone on the wire: its own ranks' streams may carry less than the wire.
        all_s: What all of them send, together on the wire; at most `stages` times `alone_s`.
        window_s: Of one.
    """
    most, full = 1 / alone_s, stages / all_s  # of one stage's whole work a second
    left: list[float] = []
    for _ in range(stages):
        left.append(1.0)
        left = _sent(left, (most, full), window_s)[0]
    return _sent(left, (most, full), float("inf"))[1]


def _sent(left: list[float], rates: tuple[float, float], seconds: float) -> tuple[list[float], float]:
    """(what is left after `seconds` of even sharing, seconds until nothing was)."""
    most, full = rates
    took = 0.0
    while left and took < seconds:
        rate = min(most, full / len(left))
        step = min(min(left) / rate, seconds - took)
        left = [each - rate * step for each in left if each - rate * step > 1e-12]
        took += step
    return left, took
