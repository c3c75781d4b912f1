"""Problems to draw, and a second opinion on their max-min rates: linear programmes, one level after another."""

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from isthmus.sim.fold import Problem
from isthmus.sim.phase import Phase, no_needs

Numbers = NDArray[np.float64]


@st.composite
def phases(draw: st.DrawFn, streams: int = 7, links: int = 5, chained: bool = False) -> tuple[Phase, Numbers]:
    """A phase of a few streams over a few links, with few different sizes, so that symmetries are common."""
    many = draw(st.integers(1, links))
    capacity = np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=many, max_size=many)))
    count = draw(st.integers(1, streams))
    ways = draw(st.lists(st.lists(st.integers(0, many - 1), min_size=1, max_size=3, unique=True), min_size=count, max_size=count))
    matrix = np.full((count, 3), -1, dtype=np.int64)
    for row, way in enumerate(ways):
        matrix[row, : len(way)] = way
    needs = no_needs()
    if chained:
        lags = draw(st.sampled_from([(0, 1), (0, -1)]))  # rings and trees, or gates: both at once could wait for each other
        pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), st.sampled_from(lags))
        drawn = draw(st.lists(pairs, max_size=6))
        kept = [(a, b, lag) for a, b, lag in drawn if a < b or (lag == 1 and a != b)]
        needs = np.array(kept, dtype=np.int64).reshape(-1, 3)
    phase = Phase(
        name="drawn", links=matrix, needs=needs,
        size_bytes=np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 0.0]), min_size=count, max_size=count))),
        rounds=np.full(count, draw(st.integers(1, 4)), dtype=np.int64),
        latency_s=np.array(draw(st.lists(st.sampled_from([0.0, 0.25]), min_size=count, max_size=count))),
        limit_bytes_per_s=np.array(draw(st.lists(st.sampled_from([np.inf, 0.6]), min_size=count, max_size=count))),
        forever=np.zeros(count, dtype=np.bool_), source=np.zeros(count, dtype=np.int64), target=np.zeros(count, dtype=np.int64),
    )  # fmt: skip
    return phase, capacity


def lp_rates(problem: Problem) -> Numbers:
    """Max-min rates: raise the least, fix those that cannot rise, and again."""
    flows, links = len(problem.rounds), len(problem.capacity)
    matrix = np.zeros((links, flows))
    for flow in range(flows):
        for k in range(problem.start[flow], problem.start[flow + 1]):
            matrix[problem.link[k], flow] += problem.times[k]
    most = np.minimum(problem.limit_bytes_per_s, 1e3)
    rates = np.full(flows, np.nan)
    while np.isnan(rates).any():
        free = np.isnan(rates)
        least = _least(matrix, problem.capacity, rates, most)
        for flow in np.flatnonzero(free):
            bounds = [(rates[f], rates[f]) if not free[f] else (min(least, most[f]) * (1 - 1e-9), most[f]) for f in range(flows)]
            goal = np.zeros(flows)
            goal[flow] = -1
            best = -linprog(goal, matrix, problem.capacity * (1 + 1e-9), bounds=bounds).fun
            if best <= least * (1 + 1e-6):
                rates[flow] = min(least, most[flow])
    return rates


def _least(matrix: Numbers, capacity: Numbers, rates: Numbers, most: Numbers) -> float:
    """The most that all free flows can have at once."""
    flows = len(rates)
    free = np.isnan(rates)
    above = np.hstack([-np.eye(flows)[free], np.ones((int(free.sum()), 1))])  # t <= r of every free flow
    limits = np.vstack([np.hstack([matrix, np.zeros((len(capacity), 1))]), above])
    bounds = [(0.0, most[f]) if free[f] else (rates[f], rates[f]) for f in range(flows)]
    goal = np.r_[np.zeros(flows), -1.0]
    found = linprog(goal, limits, np.r_[capacity * (1 + 1e-12), np.zeros(int(free.sum()))], bounds=[*bounds, (0, None)])
    return float(-found.fun)
