"""gloo's ring all-reduce over a long link, segment by segment: the flat baseline of the wind tunnel.

A closed form misses it by up to a third, because gloo keeps two segments a peer in flight, asks for each
before it is sent, and empties the ring between its two phases. So the schedule is played; it is a few
thousand additions.
"""

from dataclasses import dataclass
from math import ceil

__all__ = ["RingShape", "gloo_ring_all_reduce_s", "gloo_window_rate_bytes_per_s", "segment_bytes"]

SEGMENT_BYTES_MAX = 2**20
"""gloo/allreduce.h, kMaxSegmentSize."""

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
