"""The compiled twin of `filling.fill`, for problems of millions of crossings. Imported only when one is played."""

from heapq import heapify, heappop, heappush
from typing import Any, cast

import numba
import numpy as np

from isthmus.sim.fold import Problem
from isthmus.sim.graph import Ints, Numbers

__all__ = ["Filler"]


def _turn(start: Any, link: Any, links: int) -> Any:
    """Crossings by link: (begin of each link's run, place of each crossing in the rows, its stream)."""
    begin = np.zeros(links + 1, dtype=np.int64)
    for k in range(len(link)):
        begin[link[k] + 1] += 1
    for one in range(links):
        begin[one + 1] += begin[one]
    place = begin[:-1].copy()
    stream = np.empty(len(link), dtype=np.int32)
    for f in range(len(start) - 1):
        for k in range(start[f], start[f + 1]):
            stream[place[link[k]]] = f
            place[link[k]] += 1
    return begin, stream


def _fill(start: Any, link: Any, times: Any, begin: Any, stream: Any, capacity: Any, limit: Any, order: Any, open_: Any) -> Any:
    """Rates; `order` lists the streams that have a limit, lowest first; `open_` (destroyed) says which take part."""
    left, load = capacity.copy(), np.zeros(len(capacity))
    rates = np.zeros(len(limit))
    for f in range(len(limit)):
        if open_[f]:
            for k in range(start[f], start[f + 1]):
                load[link[k]] += times[k]
    heap = [(left[one] / load[one], one) for one in range(len(capacity)) if load[one] > 0]
    heapify(heap)
    following = 0
    while True:
        while following < len(order) and not open_[order[following]]:
            following += 1
        if len(heap) == 0 and following == len(order):
            return rates, left
        lowest = limit[order[following]] if following < len(order) else np.inf
        if len(heap) == 0 or lowest <= heap[0][0]:
            f = order[following]
            open_[f] = False
            rates[f] = lowest
            for k in range(start[f], start[f + 1]):
                left[link[k]] -= times[k] * lowest
                load[link[k]] -= times[k]
            continue
        share, one = heappop(heap)
        if load[one] <= 1e-9:
            continue
        now = max(left[one], 0.0) / load[one]
        if now > share * (1 + 1e-12):  # others of its streams were settled below its share since
            heappush(heap, (now, one))
            continue
        for at in range(begin[one], begin[one + 1]):
            f = stream[at]
            if open_[f]:
                open_[f] = False
                rates[f] = now
                for k in range(start[f], start[f + 1]):
                    left[link[k]] -= times[k] * now
                    load[link[k]] -= times[k]


def _compiled(function: Any) -> Any:
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no place to keep it
        return numba.njit(nogil=True)(function)


_turn_fast, _fill_fast = _compiled(_turn), _compiled(_fill)


class Filler:
    """The crossings of one problem, laid out by stream and by link."""

    def __init__(self, problem: Problem) -> None:
        self._limit = problem.limit_bytes_per_s
        limited = np.flatnonzero(np.isfinite(self._limit))
        self._order = limited[np.argsort(self._limit[limited], kind="stable")]
        self._start, self._capacity, self._times = problem.start, problem.capacity, problem.times
        self._link = problem.link.astype(np.int32)
        self._begin, self._stream = _turn_fast(self._start, self._link, len(self._capacity))

    def fill(self, active: Ints) -> Numbers:
        """Rates of the classes `active`, in their order."""
        open_ = np.zeros(len(self._limit), dtype=np.bool_)
        open_[active] = True
        rates, _ = _fill_fast(
            self._start, self._link, self._times, self._begin, self._stream, self._capacity, self._limit, self._order, open_
        )
        return cast(Numbers, rates[active])
