"""gloo's ring all-reduce over a long link, segment by segment: the flat baseline of the wind tunnel.

A closed form misses it by up to a third, because gloo keeps two segments a peer in flight, asks for each
before it is sent, and empties the ring between its two phases. So the schedule is played; it is a few
thousand additions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

__all__ = ["RingShape", "concurrent_rings_s", "gloo_ring_all_reduce_s", "gloo_window_rate_bytes_per_s", "segment_bytes"]

SEGMENT_BYTES_MAX = 2**20
"""gloo/allreduce.h, kMaxSegmentSize."""

GLOO_THREADS = 2
"""Collectives of one group at once; c10d's ProcessGroupGloo, Options.threads."""

SEGMENTS_IN_FLIGHT = 2
"""gloo/allreduce.cc: a new segment is posted when the one before last has been received and reduced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingShape:
    """A ring over `regions` x `ranks_per_region` ranks, region by region; the R edges between regions are
    alike.

    Attributes:
        wan_bytes_per_s: Payload rate of one crossing edge.
        wan_latency_s: One way.
        local_bytes_per_s: Rate at which a rank passes on and adds segments inside its region.
    """

    regions: int
    ranks_per_region: int
    wan_bytes_per_s: float
    wan_latency_s: float
    local_bytes_per_s: float

    @property
    def ranks(self) -> int:
        """Ranks of the ring."""
        return self.regions * self.ranks_per_region

    def crosses(self, rank: int) -> bool:
        """Whether the edge from `rank` to the rank before it leaves the region."""
        return self.regions > 1 and rank % self.ranks_per_region == 0


def segment_bytes(size_bytes: float, ranks: int) -> float:
    """Bytes of one segment: a half of a rank's chunk, but at most 1 MiB.  s = min(S / 2n, 1 MiB)."""
    return min(size_bytes / (2 * ranks), SEGMENT_BYTES_MAX)


def gloo_window_rate_bytes_per_s(size_bytes: float, ring: RingShape) -> float:
    """Rate of a crossing edge in the steady state.

        r = min(B, 2 s / (2 a + s / B))

    s = segment, a = one-way latency, B = wan_bytes_per_s: two segments per request, transfer and arrival.
    Source: gloo/allreduce.cc and the receive-before-send handshake of gloo/transport/tcp/pair.cc.
    """
    segment = segment_bytes(size_bytes, ring.ranks)
    return min(
        ring.wan_bytes_per_s,
        SEGMENTS_IN_FLIGHT * segment / (2 * ring.wan_latency_s + segment / ring.wan_bytes_per_s),
    )


def gloo_ring_all_reduce_s(size_bytes: float, ring: RingShape) -> float:
    """Seconds for gloo's ring all-reduce of `size_bytes` on every rank; nothing for one rank.

    Two phases (reduce-scatter, all-gather) of (n - 1) k segments each, k = segments of a chunk. Segment i
    leaves rank r when

        begin = max(post_r(i), post_(r-1)(i) + a, edge free);  done = begin + s / B + a
        post_r(i) = max(post_r(i - 1), done_r(i - 2) + s / local)

    that is: sender and receiver have both reached it, the receiver's word has crossed (a), and the edge is
    free.
    Leaves out: TCP's own start and losses, and CPU time shared with other ranks.
    Source: gloo/allreduce.cc; compared with measured 1-64 MiB all-reduces in tests/published.
    """
    if ring.ranks == 1 or size_bytes <= 0:
        return 0.0
    segment = segment_bytes(size_bytes, ring.ranks)
    rounds = (ring.ranks - 1) * ceil(size_bytes / ring.ranks / segment - 1e-9)
    clock = [0.0] * ring.ranks
    for _ in ("reduce-scatter", "all-gather"):
        clock = _phase(clock, segment, rounds, ring)
    return max(clock)


def concurrent_rings_s(ready_s: Sequence[float], sizes_bytes: Sequence[float], ring: RingShape) -> list[tuple[float, float]]:
    """(start, end) of all-reduces that become ready at `ready_s`, as torch's gloo group runs them: two at a time.

    Alone, one takes `gloo_ring_all_reduce_s`. Two at once each see half the rate between regions, so a pair bound by
    bandwidth gains nothing, and one bound by the window and the round trip up to twofold.
    Source: ProcessGroupGloo's default of two threads (torch/csrc/distributed/c10d/ProcessGroupGloo.hpp).
    """
    halved = replace(ring, wan_bytes_per_s=ring.wan_bytes_per_s / 2)
    speeds = [{1: 1 / gloo_ring_all_reduce_s(size, ring), 2: 1 / gloo_ring_all_reduce_s(size, halved)} for size in sizes_bytes]
    spans: dict[int, tuple[float, float]] = {}
    left, started, waiting, now = dict[int, float](), dict[int, float](), list(range(len(sizes_bytes))), 0.0
    while waiting or left:
        while waiting and len(left) < GLOO_THREADS and ready_s[waiting[0]] <= now:
            index = waiting.pop(0)
            left[index], started[index] = 1.0, now
        ends = [now + share / speeds[index][len(left)] for index, share in left.items()]
        if waiting and len(left) < GLOO_THREADS:
            ends.append(ready_s[waiting[0]])
        following = min(ends)
        for index in list(left):
            left[index] -= (following - now) * speeds[index][len(left)]
        now = following
        for index in [each for each, share in left.items() if share <= 1e-9]:
            spans[index] = (started[index], now)
            del left[index]
    return [spans[index] for index in range(len(sizes_bytes))]


def _phase(clock: list[float], segment: float, rounds: int, ring: RingShape) -> list[float]:
    """When each rank has finished one phase that it began at `clock`."""
    ranks = range(ring.ranks)
    crossing = [ring.crosses(rank) for rank in ranks]
    latency = [ring.wan_latency_s if crosses else 0.0 for crosses in crossing]
    wire = [segment / (ring.wan_bytes_per_s if crosses else ring.local_bytes_per_s) for crosses in crossing]
    add = segment / ring.local_bytes_per_s
    post, free = list(clock), list(clock)
    previous, latest = list(clock), list(clock)  # when segments i - 2 and i - 1 had been received and added
    for _ in range(rounds):
        post = [max(post[rank], previous[rank]) for rank in ranks]
        arrived = list(latest)
        for rank in ranks:
            to = rank - 1
            begin = max(post[rank], post[to] + latency[rank], free[rank])
            free[rank] = begin + wire[rank]
            arrived[to] = free[rank] + latency[rank] + add
        previous, latest = latest, arrived
    return [max(latest[rank], previous[rank]) for rank in ranks]
