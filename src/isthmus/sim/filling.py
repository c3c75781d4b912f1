"""Max-min fair rates: no stream can have more unless one that has no more than it gets less.

Two ways to the one answer: `fill` here, vectors over all links, for folded problems; `compiled_events.Filler`, one
bottleneck after another off a heap, compiled, for millions of crossings.
Source: progressive filling, Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2.
"""

import numpy as np

from isthmus.sim.fold import Problem
from isthmus.sim.graph import Ints, Numbers

__all__ = ["fill"]

_NEAR = 1e-12


def fill(problem: Problem, active: Ints) -> Numbers:
    """Rates in bytes/s of the classes `active`, in their order; infinite where nothing holds a stream back."""
    counts = problem.start[active + 1] - problem.start[active]
    rows = np.repeat(np.arange(len(active)), counts)
    offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(problem.start[active], counts) + offsets
    link, times = problem.link[places], problem.times[places]
    limit = problem.limit_bytes_per_s[active]
    left, rates = problem.capacity.copy(), np.full(len(active), np.inf)
    open_ = np.ones(len(active), dtype=np.bool_)
    while open_.any():
        on = open_[rows]
        load = np.bincount(link[on], weights=times[on], minlength=len(left))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(load > 0, np.maximum(left, 0.0) / load, np.inf)
        least = limit.copy()
        np.minimum.at(least, rows[on], share[link[on]])
        # A link is a bottleneck of all its streams when none of them is held to less elsewhere.
        firm = np.ones(len(left), dtype=np.bool_)
        elsewhere = least[rows[on]] < share[link[on]] * (1 - _NEAR)
        firm[link[on][elsewhere]] = False
        settled = open_ & (least >= limit * (1 - _NEAR))
        bound = on & firm[link] & (least[rows] >= share[link] * (1 - _NEAR))
        settled[rows[bound]] = True
        settled &= open_
        rates[settled] = least[settled]
        open_ &= ~settled
        taken = settled[rows]
        with np.errstate(invalid="ignore"):
            left = left - np.bincount(link[taken], weights=(times * rates[rows])[taken], minlength=len(left))
    return rates
