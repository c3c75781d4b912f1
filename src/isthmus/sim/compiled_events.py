"""The compiled twin of the loop in `events`, for many messages: rates are worked out anew only where something changed.

A stream that starts or ends can change only the rates of those it shares a link with, and of those that these share one
with: its component. Everything else keeps its rate and its end. Imported only when a problem is large enough.
"""

from heapq import heapify, heappop, heappush
from typing import Any

import numba
import numpy as np

from isthmus.sim.fold import Problem
from isthmus.sim.graph import Ints, Numbers

__all__ = ["Filler", "play_compiled"]

_AFRESH = 64
"""Calls of a `Filler` after which it fills everything anew, so that rounding in its sums does not grow."""


def play_compiled(problem: Problem) -> tuple[Any, ...]:
    """(begin_s, finish_s, sent_bytes, events, fillings, peak_load, whether it came to an end) of `events.Played`."""
    streams = len(problem.rounds)
    begin, stream = _turned(problem.start, problem.link, len(problem.capacity))
    by_after = problem.needs[np.argsort(problem.needs[:, 1], kind="stable")]
    by_before = problem.needs[np.argsort(problem.needs[:, 0], kind="stable")]
    every = np.arange(streams + 1)
    return _play(
        (problem.start, problem.link, problem.times, begin, stream, problem.capacity, problem.limit_bytes_per_s),
        (problem.size_bytes, problem.rounds, problem.latency_s, problem.forever),
        (np.searchsorted(by_after[:, 1], every), by_after[:, 0].copy(), by_after[:, 2].copy()),
        (np.searchsorted(by_before[:, 0], every), by_before[:, 1].copy()),
    )


class Filler:
    """Max-min rates of any of the streams of one problem, by one bottleneck after another off a heap.

    Rates are kept from call to call. Where streams have only ended, those slower than the slowest of these keep their rate:
    filling raises all streams together, so up to that rate it goes as it went before. The rest is filled into what they leave.
    """

    def __init__(self, problem: Problem) -> None:
        links, streams = len(problem.capacity), len(problem.rounds)
        begin, stream = _turned(problem.start, problem.link, links)
        self._graph = (problem.start, problem.link, problem.times, begin, stream, problem.capacity, problem.limit_bytes_per_s)
        self._links = np.arange(links)
        self._on, self._open = np.zeros(streams, dtype=np.bool_), np.zeros(streams, dtype=np.bool_)
        self._rates, self._used, self._left, self._load = np.zeros(streams), np.zeros(links), np.zeros(links), np.zeros(links)
        self._calls = 0

    def fill(self, active: Ints) -> tuple[Numbers, float]:
        """Rates of the classes `active`, in their order, and the load of the fullest link as a share of its capacity."""
        on = np.zeros(len(self._on), dtype=np.bool_)
        on[active] = True
        ended = np.flatnonzero(self._on & ~on)
        self._calls += 1
        # Sums of what links carry are kept by adding and taking away; now and then they are made anew.
        if self._calls % _AFRESH and len(ended) and not (on & ~self._on).any():
            slowest = self._rates[ended].min() * (1 - 1e-9)
            again = active[self._rates[active] >= slowest]
            _take(ended, self._graph, self._rates, self._used)
            _take(again, self._graph, self._rates, self._used)
        else:
            again, self._used[:] = active, 0.0
        self._on = on
        fullest = _share(again, self._links, self._graph, on, self._rates, self._open, self._left, (self._load, self._used))
        np.subtract(self._graph[5], self._left, out=self._used)
        return self._rates[active], fullest


def _turned(start: Ints, link: Ints, links: int) -> tuple[Ints, Ints]:
    """Crossings by link: where each link's run begins, and the streams."""
    owners = np.repeat(np.arange(len(start) - 1), np.diff(start))
    order = np.argsort(link, kind="stable")
    return np.searchsorted(link[order], np.arange(links + 1)), owners[order]


def _compiled(function: Any) -> Any:
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no place to keep it
        return numba.njit(nogil=True)(function)


@_compiled
def _component(seeds: Any, graph: Any, on: Any, marks: Any, rooms: Any, stamp: int) -> Any:
    """Active streams, and links, that `seeds` share links with, near and far; slices of `rooms`."""
    start, link, _, begin, stream, _, _ = graph
    (stream_mark, link_mark), (streams, links) = marks, rooms
    found, crossed = 0, 0
    for f in seeds:
        if stream_mark[f] != stamp:
            stream_mark[f] = stamp
            streams[found] = f
            found += 1
    at = 0
    while at < found:
        f = streams[at]
        at += 1
        for k in range(start[f], start[f + 1]):
            one = link[k]
            if link_mark[one] != stamp:
                link_mark[one] = stamp
                links[crossed] = one
                crossed += 1
                for where in range(begin[one], begin[one + 1]):
                    other = stream[where]
                    if on[other] and stream_mark[other] != stamp:
                        stream_mark[other] = stamp
                        streams[found] = other
                        found += 1
    return streams[:found], links[:crossed]


@_compiled
def _take(streams: Any, graph: Any, rates: Any, used: Any) -> None:
    """What `streams` carried is no longer used of their links."""
    start, link, times, _, _, _, _ = graph
    for f in streams:
        for k in range(start[f], start[f + 1]):
            used[link[k]] -= times[k] * rates[f]


@_compiled
def _share(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917
    streams: Any, links: Any, graph: Any, on: Any, fresh: Any, open_: Any, left: Any, loads: Any
) -> float:
    """Max-min rates of `streams` into `fresh`; the load of the fullest of `links` as a share of its capacity.

    `loads` = (room for a load by link, what others already use of each link); `left` is what is left of each in the end.
    """
    start, link, times, begin, stream, capacity, limit = graph
    load, used = loads
    for one in links:
        left[one], load[one] = capacity[one] - used[one], 0.0
    limited = 0
    for f in streams:
        open_[f] = on[f]
        if on[f]:
            limited += limit[f] < np.inf
            for k in range(start[f], start[f + 1]):
                load[link[k]] += times[k]
    limits, held = np.empty(limited), np.empty(limited, np.int64)
    limited = 0
    for f in streams:
        if on[f] and limit[f] < np.inf:
            limits[limited], held[limited] = limit[f], f
            limited += 1
    order = np.argsort(limits)
    heap = [(left[one] / load[one], one) for one in links if load[one] > 1e-9]
    heapify(heap)
    following = 0
    while True:
        while following < len(order) and not open_[held[order[following]]]:
            following += 1
        lowest = limits[order[following]] if following < len(order) else np.inf
        if len(heap) == 0 and lowest == np.inf:
            break
        if len(heap) == 0 or lowest <= heap[0][0]:
            f = held[order[following]]
            open_[f], fresh[f] = False, lowest
            for k in range(start[f], start[f + 1]):
                left[link[k]] -= times[k] * lowest
                load[link[k]] -= times[k]
            continue
        share, one = heappop(heap)
        if load[one] <= 1e-9:
            continue
        now = max(left[one], 0.0) / load[one]
        if now > share * (1 + 1e-12):
            heappush(heap, (now, one))
            continue
        for where in range(begin[one], begin[one + 1]):
            f = stream[where]
            if open_[f]:
                open_[f], fresh[f] = False, now
                for k in range(start[f], start[f + 1]):
                    left[link[k]] -= times[k] * now
                    load[link[k]] -= times[k]
    fullest = 0.0
    for one in links:
        if capacity[one] > 0:
            fullest = max(fullest, 1.0 - left[one] / capacity[one])
    return fullest


@_compiled
def _may_start(f: int, sent: Any, arrived: Any, rounds: Any, needs: Any) -> bool:
    first, before, lag = needs
    for k in range(first[f], first[f + 1]):
        wanted = rounds[before[k]] if lag[k] == -1 else min(rounds[before[k]], sent[f] + 1 - lag[k])
        if arrived[before[k]] < wanted:
            return False
    return True


@_compiled
def _play(graph: Any, work: Any, needs: Any, waiting: Any) -> Any:  # noqa: C901, PLR0912, PLR0915
    start, _, _, _, _, capacity, limit = graph
    size, rounds, latency, forever = work
    first_after, after = waiting
    streams, links = len(rounds), len(capacity)
    sent, arrived = np.zeros(streams, np.int64), np.zeros(streams, np.int64)
    left, rate, since = np.zeros(streams), np.zeros(streams), np.zeros(streams)
    begin_s, finish_s, sent_bytes = np.full(streams, np.inf), np.full(streams, np.inf), np.zeros(streams)
    version, on = np.zeros(streams, np.int64), np.zeros(streams, np.bool_)
    marks = np.zeros(streams, np.int64), np.zeros(links, np.int64)
    rooms = np.zeros(streams, np.int64), np.zeros(links, np.int64)
    fresh, open_, room = np.zeros(streams), np.zeros(streams, np.bool_), np.zeros(links)
    loads = np.zeros(links), np.zeros(links)
    heap: Any = [(0.0, 0, 0)]  # when, stream, version of its end; -1: one of its messages arrives
    heap.clear()
    checks = list(range(streams))
    dirty = [0]
    dirty.clear()
    now, peak, events, fillings, stamp = 0.0, 0.0, 0, 0, 0
    pending = streams - forever.sum()
    while True:
        while checks:
            f = checks.pop()
            if on[f] or sent[f] >= rounds[f] or not _may_start(f, sent, arrived, rounds, needs):
                continue
            begin_s[f] = min(begin_s[f], now)
            if size[f] <= 0 or (start[f] == start[f + 1] and limit[f] == np.inf):
                sent[f] += 1
                heappush(heap, (now + latency[f], f, -1))
                checks.append(f)
            else:
                on[f], left[f], since[f], rate[f] = True, size[f], now, 0.0
                dirty.append(f)
        if dirty:
            stamp += 1
            near, touched = _component(dirty, graph, on, marks, rooms, stamp)
            dirty.clear()
            peak = max(peak, _share(near, touched, graph, on, fresh, open_, room, loads))
            fillings += 1
            for f in near:
                if on[f] and abs(fresh[f] - rate[f]) > 1e-13 * fresh[f]:
                    moved = rate[f] * (now - since[f])
                    left[f] -= moved
                    sent_bytes[f] += moved
                    rate[f], since[f] = fresh[f], now
                    version[f] += 1
                    if not forever[f]:
                        heappush(heap, (now + max(left[f], 0.0) / rate[f] if rate[f] > 0 else np.inf, f, version[f]))
        if pending == 0:
            for f in range(streams):  # other jobs are cut off where they are
                if on[f]:
                    sent_bytes[f] += rate[f] * (now - since[f])
            return begin_s, finish_s, sent_bytes, events, fillings, peak, True
        if len(heap) == 0 or heap[0][0] == np.inf:
            return begin_s, finish_s, sent_bytes, events, fillings, peak, False
        now = heap[0][0]
        events += 1
        while heap and heap[0][0] <= now * (1 + 1e-12):
            when, f, kind = heappop(heap)
            if kind == -1:
                arrived[f] += 1
                for k in range(first_after[f], first_after[f + 1]):
                    checks.append(after[k])
                if arrived[f] == rounds[f] and not forever[f]:
                    finish_s[f] = when
                    pending -= 1
            elif on[f] and kind == version[f]:
                sent_bytes[f] += rate[f] * (now - since[f])
                on[f] = False
                sent[f] += 1
                dirty.append(f)
                heappush(heap, (when + latency[f], f, -1))
                checks.append(f)
