"""The pipe between the regions of a fabric, as formulas take it."""

from dataclasses import dataclass

from isthmus.cost.efficiency import NCCL_BUFFER, NCCL_CHANNELS, RDMA_PAYLOAD, TCP_WINDOW
from isthmus.cost.step import swap_bytes
from isthmus.cost.transport import (
    Limit,
    nccl_window_bytes,
    payload_fraction,
    streams_to_fill,
    tcp_rate_bytes_per_s,
    window_rate_bytes_per_s,
)
from isthmus.fabric import Fabric
from isthmus.fabric.levels import Route, levels, wan_routes

__all__ = ["Leg", "Wan", "exchange_s", "pipeline_legs", "rail_streams", "wan_pipe"]

STREAMS_MAX = 32
"""TCP streams of one rail: above it sockets cost more than they carry (judgement)."""

FAST_RAIL_BYTES_PER_S = 32e6
"""A slower rail takes one stream where its window allows, a faster one two: on two cores 1, 2 and 4 streams took 1.04, 1.05 and
1.18 times the limit at 100 Mb/s and 18 ms (docs/decisions/log.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wan:
    """What joins the regions, as one region's uplink sees it.

    Attributes:
        regions: R, at least 2.
        rails: Ranks of the smallest region; rank i of every region forms rail i.
        rtt_s: The longest between two regions.
        jitter_s: Peak deviation of the one-way delay.
        loss: The worst link's.
        limit: Payload rate of the uplink with isthmus's own streams, and what binds it.
        streams: TCP streams of one pair of ranks of a rail that this rate takes; 1 for RDMA.
        rate_bytes_per_s: The uplink's IP bytes.
        rdma: Whether every link carries RDMA.
        channels: NCCL channels of one ring that is blind to regions: two a NIC of the node with the fewest.
        payload_share: Payload in what crosses; the rest is headers.
        ring_rate_bytes_per_s: Of the slowest link that a ring through the regions, in their order, crosses; IP bytes.
        ring_one_way_s: Mean over the links of that ring.
    """

    regions: int
    rails: int
    rtt_s: float
    jitter_s: float
    loss: float
    limit: Limit
    streams: int
    rate_bytes_per_s: float
    rdma: bool
    channels: int
    payload_share: float
    ring_rate_bytes_per_s: float
    ring_one_way_s: float

    @property
    def one_way_s(self) -> float:
        """Until the slowest of many messages sent together is there: half the RTT and the jitter's peak."""
        return self.rtt_s / 2 + self.jitter_s

    def some(self, rails: int) -> Limit:
        """As `limit`, where only `rails` of the rails send."""
        if self.rdma or rails >= self.rails:
            return self.limit
        streams = self.streams * rails * (self.regions - 1)
        return tcp_rate_bytes_per_s(self.rate_bytes_per_s, self.rtt_s, self.loss, streams, TCP_WINDOW.value)

    def flat(self, rings: int) -> Limit:
        """Payload rate of `rings` NCCL rings together, each with its own channels, and what binds it.

        One connection a channel, with at most its buffer in flight: NCCL takes more only where asked to
        (NCCL_MIN_NCHANNELS, NCCL_NSOCKS_PERTHREAD).
        """
        streams = self.channels * rings
        window = nccl_window_bytes(streams, NCCL_BUFFER.value)
        if self.rdma:
            link = Limit(self.ring_rate_bytes_per_s * self.payload_share, "link")
            held = Limit(window_rate_bytes_per_s(window, self.rtt_s), "window")
            return min(link, held, key=lambda limit: limit.rate_bytes_per_s)
        return tcp_rate_bytes_per_s(self.ring_rate_bytes_per_s, self.rtt_s, self.loss, streams, window / streams)

    @property
    def exchange_latency_s(self) -> float:
        """Latency of an exchange: one trip for two regions (a swap), two for more (reduce-scatter,
        all-gather).
        """
        return self.one_way_s * (1 if self.regions == 2 else 2)


def wan_pipe(fabric: Fabric) -> Wan | None:
    """The pipe between the regions of `fabric`; None where there is one region only.

    Streams are as many as the link needs to be what binds, at least one a rail (two on a fast one), at most `STREAMS_MAX`.
    """
    level = next((each for each in levels(fabric) if each.name == "wan"), None)
    if level is None:
        return None
    rails = min(region.gpus for region in fabric.regions)
    pairs = rails * (len(fabric.regions) - 1)  # every rank sends to its like in every other region
    rate, rtt_s = level.bandwidth_bytes_per_s, 2 * level.latency_s
    loss = max(link.loss for link in fabric.wan)
    rdma = all(link.transport == "rdma" for link in fabric.wan)
    if rdma:
        share, streams = RDMA_PAYLOAD.value, 1
        limit = Limit(rate * share, "link")
    else:
        share, streams = payload_fraction(), rail_streams(rate, rtt_s, loss, pairs)
        limit = tcp_rate_bytes_per_s(rate, rtt_s, loss, streams * pairs, TCP_WINDOW.value)
    ring = _ring_routes(fabric)
    jitter_s = max(link.jitter_s for link in fabric.wan)
    nics = min(group.nics for region in fabric.regions for group in region.groups)
    return Wan(
        regions=len(fabric.regions),
        rails=rails,
        rtt_s=rtt_s,
        jitter_s=jitter_s,
        loss=loss,
        limit=limit,
        streams=streams,
        rate_bytes_per_s=rate,
        rdma=rdma,
        channels=int(NCCL_CHANNELS.value) * max(1, nics),
        payload_share=share,
        ring_rate_bytes_per_s=min(rate, *(route.rate_bytes_per_s for route in ring)),
        ring_one_way_s=sum(route.rtt_s / 2 + jitter_s * route.links for route in ring) / len(ring),
    )


def _ring_routes(fabric: Fabric) -> list[Route]:
    """The ways from each region to the next, and from the last to the first."""
    names = [region.name for region in fabric.regions]
    routes = {frozenset(route.between): route for route in wan_routes(fabric)}
    return [routes[frozenset(pair)] for pair in zip(names, [*names[1:], names[0]], strict=True)]


def rail_streams(rate_bytes_per_s: float, rtt_s: float, loss: float, rails: int) -> int:
    """TCP streams of each of `rails` pairs of ranks that let the link bind: one at least (two on a fast rail), `STREAMS_MAX` at
    most.
    """
    needed = -(-streams_to_fill(rate_bytes_per_s, rtt_s, loss, TCP_WINDOW.value) // rails)
    fewest = 1 if rate_bytes_per_s / rails <= FAST_RAIL_BYTES_PER_S else 2
    return min(STREAMS_MAX, max(fewest, needed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """The way from one region of a pipeline to the next: what its pairs of ranks carry together, and one way in seconds."""

    limit: Limit
    one_way_s: float
    streams: int


def pipeline_legs(fabric: Fabric, pairs: int) -> tuple[Leg, ...]:
    """The crossings of a pipeline through the regions in their order, each by `pairs` pairs of ranks of two stages.

    Fewer ranks stand at a crossing than a region has, so each pair takes as many streams as the link then needs.
    """
    rdma = all(link.transport == "rdma" for link in fabric.wan)
    jitter_s, loss = max(link.jitter_s for link in fabric.wan), max(link.loss for link in fabric.wan)
    legs: list[Leg] = []
    for route in _ring_routes(fabric)[:-1]:
        rate, rtt_s = route.rate_bytes_per_s, route.rtt_s
        streams = 1 if rdma else rail_streams(rate, rtt_s, loss, pairs)
        limit = (
            Limit(rate * RDMA_PAYLOAD.value, "link")
            if rdma
            else tcp_rate_bytes_per_s(rate, rtt_s, loss, streams * pairs, TCP_WINDOW.value)
        )
        legs.append(Leg(limit=limit, one_way_s=rtt_s / 2 + jitter_s * route.links, streams=streams))
    return tuple(legs)


def exchange_s(size_bytes: float, wan: Wan) -> float:
    """Seconds for all rails together to all-reduce shards that make up `size_bytes` over the regions.

    t = W(S, R) / B + a;   a one way for R = 2, twice that for more
    """
    return swap_bytes(size_bytes, wan.regions) / wan.limit.rate_bytes_per_s + wan.exchange_latency_s
