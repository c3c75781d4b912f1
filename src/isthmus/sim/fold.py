"""Folding: streams and links that symmetry makes equal are played once.

Colours are refined until every stream of a colour crosses equally many links of each colour, waits for equally coloured
streams, and every link of a colour carries equally many streams of each colour (an equitable partition). Averaging rates
within the colours then keeps every link within its capacity, and the max-min allocation is unique, so streams of one
colour have equal rates at every instant: folding changes nothing.
Source: colour refinement, Berkholz, Bonsma & Grohe, Theory Comput. Syst. 60, 2017; for LPs, Grohe et al., ESA 2014.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isthmus.sim.graph import Ints, Numbers
from isthmus.sim.phase import Phase

__all__ = ["Problem", "fold_phase"]

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Streams and links as the event loop sees them: classes, or each alone.

    Attributes:
        capacity: Bytes/s of each link class, of one of its links.
        start, link, times: Rows of a sparse matrix: class f crosses link class `link[k]`, and each of its links carries
            `times[k]` streams of f, for k from start[f] to start[f + 1].
        size_bytes, rounds, latency_s, limit_bytes_per_s, forever, needs: As in `Phase`.
        members: Streams of each class.
        stream_class: For every stream of the phase its class.
    """

    capacity: Numbers
    start: Ints
    link: Ints
    times: Numbers
    size_bytes: Numbers
    rounds: Ints
    latency_s: Numbers
    limit_bytes_per_s: Numbers
    forever: NDArray[np.bool_]
    needs: Ints
    members: Ints
    stream_class: Ints


def fold_phase(phase: Phase, capacity: Numbers, fold: bool = True) -> Problem:
    """The problem that `phase` poses on links of `capacity`; every stream on its own unless `fold`."""
    there = phase.links >= 0
    crossing = phase.links[there].astype(np.int64)
    if not fold:
        return _unfolded(phase, capacity, crossing, there.sum(axis=1))
    stream = np.repeat(np.arange(phase.streams), there.sum(axis=1))
    limit = np.minimum(phase.limit_bytes_per_s, _narrowest(capacity, stream, crossing, phase.streams))
    binding = _binding(capacity, stream, crossing, limit)
    stream, crossing = stream[binding], crossing[binding]
    used, link = np.unique(crossing, return_inverse=True)
    classes = _refine(phase, limit, capacity[used], stream, link)
    return _collect(phase, limit, (capacity[used], stream, link), classes)


def _unfolded(phase: Phase, capacity: Numbers, crossing: Ints, hops: Ints) -> Problem:
    return Problem(
        capacity=capacity,
        start=np.concatenate([[0], np.cumsum(hops)]),
        link=crossing,
        times=np.ones(len(crossing)),
        size_bytes=phase.size_bytes,
        rounds=phase.rounds,
        latency_s=phase.latency_s,
        limit_bytes_per_s=phase.limit_bytes_per_s,
        forever=phase.forever,
        needs=phase.needs,
        members=np.ones(phase.streams, dtype=np.int64),
        stream_class=np.arange(phase.streams),
    )


def _narrowest(capacity: Numbers, stream: Ints, crossing: Ints, streams: int) -> Numbers:
    narrowest = np.full(streams, np.inf)
    np.minimum.at(narrowest, stream, capacity[crossing])
    return narrowest


def _binding(capacity: Numbers, stream: Ints, crossing: Ints, limit: Numbers) -> NDArray[np.bool_]:
    """Crossings of links that can run short: a link that holds all its streams at their limits at once never does."""
    most = np.bincount(crossing, weights=limit[stream], minlength=len(capacity))
    return most[crossing] > capacity[crossing] * (1 + 1e-12)


def _mix(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _summed(values: Words, order: Ints, starts: Ints, owners: Ints, size: int) -> Words:
    """Sums of `values` by owner, modulo 2^64; `order` sorts them by owner, `starts` begins each owner's run."""
    total = np.zeros(size, dtype=np.uint64)
    if len(values):
        total[owners] = np.add.reduceat(values[order], starts)
    return total


def _runs(keys: Ints) -> tuple[Ints, Ints, Ints]:
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(keys) else np.zeros(0, dtype=np.int64)
    return order, starts, ordered[starts]


def _refine(phase: Phase, limit: Numbers, capacity: Numbers, stream: Ints, link: Ints) -> tuple[Ints, Ints]:
    """Classes of streams and links of the coarsest equitable partition (up to chance equality of 64-bit hashes)."""
    columns = (phase.size_bytes, phase.latency_s, limit, phase.rounds.astype(np.float64), phase.forever.astype(np.float64))
    colour = np.full(phase.streams, 1, dtype=np.uint64)
    for column in columns:
        colour = _mix(colour * np.uint64(31) + np.ascontiguousarray(column).view(np.uint64))
    link_colour = _mix(np.ascontiguousarray(capacity).view(np.uint64))
    by_stream, by_link = _runs(stream), _runs(link)
    before, after, lag = phase.needs.T if len(phase.needs) else np.zeros((3, 0), dtype=np.int64)
    by_after, lags = _runs(after), _mix(lag.astype(np.uint64) + np.uint64(99))
    seen = (-2, -2)
    while True:
        classes, link_classes = _classes(colour), _classes(link_colour)
        counts = (int(classes.max(initial=-1)), int(link_classes.max(initial=-1)))
        if counts == seen:
            return classes, link_classes
        seen = counts
        crossed = _summed(_mix(link_colour + np.uint64(7))[link], *by_stream, phase.streams)
        awaited = _summed(_mix(colour[before] ^ lags), *by_after, phase.streams)
        carried = _summed(_mix(colour + np.uint64(3))[stream], *by_link, len(capacity))
        colour = _mix(colour * np.uint64(3) + _mix(crossed) + _mix(awaited + np.uint64(5)))
        link_colour = _mix(link_colour * np.uint64(3) + _mix(carried))


def _classes(colour: Words) -> Ints:
    return np.unique(colour, return_inverse=True)[1].astype(np.int64)


def _collect(phase: Phase, limit: Numbers, crossings: tuple[Numbers, Ints, Ints], classes: tuple[Ints, Ints]) -> Problem:
    """Rows of the classes, read off one stream of each."""
    (capacity, stream, link), (streams, links) = crossings, classes
    _, first, members = np.unique(streams, return_index=True, return_counts=True)
    _, first_link, link_members = np.unique(links, return_index=True, return_counts=True)
    pairs, counts = np.unique(streams[stream] * max(1, len(first_link)) + links[link], return_counts=True)
    row, column = np.divmod(pairs, max(1, len(first_link)))
    times = counts / link_members[column]
    start = np.searchsorted(row, np.arange(len(first) + 1))
    needs = phase.needs
    if len(needs):
        needs = np.unique(np.stack([streams[needs[:, 0]], streams[needs[:, 1]], needs[:, 2]], axis=1), axis=0)
    return Problem(
        capacity=capacity[first_link],
        start=start,
        link=column,
        times=times.astype(np.float64),
        size_bytes=phase.size_bytes[first],
        rounds=phase.rounds[first],
        latency_s=phase.latency_s[first],
        limit_bytes_per_s=limit[first],
        forever=phase.forever[first],
        needs=needs,
        members=members,
        stream_class=streams,
    )
