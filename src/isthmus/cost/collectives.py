"""Collectives by formula: what one costs alone on identical links.

`size_bytes` is always the whole buffer (S): what every rank holds before an all-reduce or reduce-scatter and
after an all-gather, and what every rank sends in total in an all-to-all. Each function is one expression.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, sqrt

__all__ = [
    "Link",
    "Tier",
    "all_to_all_s",
    "flat_ring_across_regions_s",
    "hierarchical_all_reduce_s",
    "nvls_all_reduce_s",
    "ring_all_gather_s",
    "ring_all_reduce_s",
    "ring_reduce_scatter_s",
    "root_all_reduce_s",
    "send_s",
    "tree_all_reduce_s",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one member of a tier can send and receive at once, alone on it.

    Attributes:
        latency_s: One hop, one way, with the software of one step.
        bandwidth_bytes_per_s: Payload per direction; line rate times efficiency.
        ramp_s_per_root_byte: Cost of filling and draining the chunk pipeline, which grows with the square
            root of the buffer because the best chunk does; 0 for the plain alpha-beta model.
        source: Where the three come from.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    ramp_s_per_root_byte: float = 0.0
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One level of a hierarchy: `members` parts of the level below, joined by `link`."""

    members: int
    link: Link


def send_s(size_bytes: float, link: Link) -> float:
    """Seconds until the last byte of one message has arrived.

        t = a + S / B

    Leaves out: connection set-up, slow start, other traffic. Source: Hockney, Parallel Computing 20(3), 1994.
    """
    return link.latency_s + size_bytes / link.bandwidth_bytes_per_s


def ring_all_reduce_s(size_bytes: float, ranks: int, link: Link) -> float:
    """Seconds for a ring all-reduce; nothing for one rank.

        t = 2 (n - 1) (a + S / (n B)) + r sqrt(S)   (n > 1)

    n = ranks, a = link.latency_s, B = link.bandwidth_bytes_per_s, r = link.ramp_s_per_root_byte.
    Leaves out: the additions, kernel launch. Source: Patarasuk & Yuan, J. Parallel Distrib. Comput. 69(2),
    2009; root term ours, after the pipelined chain S/B + 2 sqrt((d-1) a S/B).
    """
    return 2 * (ranks - 1) * (link.latency_s + size_bytes / ranks / link.bandwidth_bytes_per_s) + _ramp_s(size_bytes, ranks, link)


def ring_reduce_scatter_s(size_bytes: float, ranks: int, link: Link) -> float:
    """Seconds for a ring reduce-scatter of S; also the price of the all-gather that undoes it.

        t = (n - 1) (a + S / (n B)) + r sqrt(S) / 2   (n > 1)

    Half of `ring_all_reduce_s`, whose symbols and source it shares.
    """
    return ring_all_reduce_s(size_bytes, ranks, link) / 2


def ring_all_gather_s(size_bytes: float, ranks: int, link: Link) -> float:
    """Seconds for a ring all-gather that leaves S on every rank; see `ring_reduce_scatter_s`."""
    return ring_reduce_scatter_s(size_bytes, ranks, link)


def tree_all_reduce_s(size_bytes: float, ranks: int, link: Link) -> float:
    """Seconds for a double binary tree all-reduce, reduce and broadcast pipelined into each other.

        t = 2 ceil(log2 n) a + 2 (n - 1) / n * S / (c B) + r sqrt(S),   c = 1 for n = 2, else 0.92   (n > 1)

    Each rank is a leaf of one tree and an inner node of the other, so bandwidth is near the ring's; c is the
    correction of NCCL's tuner (src/graph/tuning.cc, treeCorrection at large sizes).
    Leaves out: that small messages lose more of c. Source: Sanders, Speck & Traff, Parallel Computing 35(12),
    2009.
    """
    return (
        2 * ceil(log2(ranks)) * link.latency_s
        + 2 * (ranks - 1) / ranks * size_bytes / (link.bandwidth_bytes_per_s * (1.0 if ranks <= 2 else 0.92))
        + _ramp_s(size_bytes, ranks, link)
    )


def nvls_all_reduce_s(size_bytes: float, ranks: int, link: Link) -> float:
    """Seconds for an all-reduce whose additions an NVSwitch does (NVLink SHARP).

        t = a + (n + 1) / n * S / B + r sqrt(S)   (n > 1)

    Each rank reads its reduced n-th from the switch (S/n in, S out) and multicasts it (S/n out, S in): S (1 +
    1/n) per direction instead of the ring's 2 S (n-1)/n; hence bus bandwidths above the wire (480 of 450 GB/s
    on H100).
    Leaves out: fewer than 4 ranks, where NCCL does not choose it. Source: NCCL src/graph/tuning.cc for a and
    for the efficiency inside B; wire count ours, checked against measured H200 curves in tests/published.
    """
    return (
        0.0
        if ranks == 1
        else (link.latency_s + (ranks + 1) / ranks * size_bytes / link.bandwidth_bytes_per_s + _ramp_s(size_bytes, ranks, link))
    )


def all_to_all_s(size_bytes: float, ranks: int, link: Link) -> float:
    """Seconds for an all-to-all in which every rank sends S / n to each rank, itself included.

        t = (n - 1) (a + S / (n B))

    Leaves out: incast at the switch, messages in parallel (then the latency term is smaller).
    Source: nccl-tests doc/PERFORMANCE.md (bus factor (n-1)/n); latency term ours.
    """
    return (ranks - 1) * (link.latency_s + size_bytes / ranks / link.bandwidth_bytes_per_s)


def root_all_reduce_s(size_bytes: float, members: int, link: Link) -> float:
    """Seconds to reduce whole buffers to one root and broadcast them back; the baseline that uses one NIC of
    the root.

        t = 2 (a + (m - 1) S / B)   (m > 1)

    m = members that meet at the root, whose one link carries (m - 1) S in and then out again.
    Leaves out: trees, which would cut the factor m - 1 to log2 m. Source: ours; see MPI_Reduce linear
    algorithm.
    """
    return 0.0 if members == 1 else 2 * (link.latency_s + (members - 1) * size_bytes / link.bandwidth_bytes_per_s)


def hierarchical_all_reduce_s(size_bytes: float, tiers: Sequence[Tier]) -> float:
    """Seconds for reduce-scatter in the innermost tier, the same again on the 1/g shard above it, all-gather
    back.

        t(S, [T1, T2, ...]) = RS(S, T1) + t(S / g1, [T2, ...]) + AG(S, T1);   t(S, [T]) = ring all-reduce

    `tiers` runs from the inside out; every tier's link is the rail of one rank of the tier below (for a node
    of 8 GPUs with 4 NICs, half a NIC). One tier is exactly the ring.
    Leaves out: chunk pipelining between the tiers, which hides all but the slowest. Source: mission M8; NCCL
    and NeMo do the same three steps (reduce-scatter, all-reduce, all-gather).
    """
    inner, outer = tiers[0], tiers[1:]
    return ring_all_reduce_s(size_bytes, inner.members, inner.link) + (
        hierarchical_all_reduce_s(size_bytes / inner.members, outer) if outer else 0.0
    )


def flat_ring_across_regions_s(size_bytes: float, regions: int, ranks_per_region: float, local: Link, wan: Link) -> float:
    """Seconds for one ring over all ranks, region by region, blind to where the WAN is.

        t = c a_w + (2 (n - 1) - c) a_l + 2 (n - 1) / n * S / min(B_l, B_w) + r_l sqrt(S),   n = R g
        c = 2R - min(2, max(0, 3 - g))

    The longest dependency chain is 2 (n - 1) hops, two laps less two hops, and a ring region by region
    crosses R links a lap, so c of those hops are WAN hops. A crossing edge carries 2 (n-1)/n S, nearly twice
    what is needed. `wan` is one crossing edge; g is the mean where regions differ.
    Leaves out: the window of the library's own buffers (see `transport`).
    Source: chain counted by brute force in tests/cost; bandwidth as `ring_all_reduce_s`.
    """
    ranks = regions * ranks_per_region
    crossings = 2 * regions - min(2, max(0, 3 - ranks_per_region))
    return (
        crossings * wan.latency_s
        + (2 * (ranks - 1) - crossings) * local.latency_s
        + 2 * (ranks - 1) / ranks * size_bytes / min(local.bandwidth_bytes_per_s, wan.bandwidth_bytes_per_s)
        + _ramp_s(size_bytes, ranks, local)
    )


def _ramp_s(size_bytes: float, ranks: float, link: Link) -> float:
    return 0.0 if ranks == 1 else link.ramp_s_per_root_byte * sqrt(size_bytes)
