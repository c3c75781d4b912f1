"""The event loop: streams start when what they wait for has arrived, share links fairly, and end.

Rates are constant between events. They are worked out anew whenever a stream starts or ends; of streams that nobody
waits for, those that end within `batch` of the time played so far share one working-out, each still ending at its own
time (the capacity they leave is free from the end of the batch).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import InfeasibleError
from isthmus.sim.filling import fill
from isthmus.sim.fold import Problem
from isthmus.sim.graph import Ints, Numbers
from isthmus.sim.phase import ALL

__all__ = ["COMPILED_FROM", "Played", "play_problem"]

COMPILED_FROM = 30_000
"""Crossings from which the compiled filling is quicker, its own start included."""
MESSAGES_COMPILED_FROM = 1500
"""Messages from which the compiled loop is."""

_TIE = 1e-12
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a problem.

    Attributes:
        begin_s, finish_s: Of every class: first byte sent, last message arrived; infinite where it never ends.
        sent_bytes: Of one stream of each class, summed over the intervals played.
        events: Instants at which something began or ended.
        fillings: Times that rates were worked out.
        peak_load: Most that a link carried at any instant, as a share of its capacity.
    """

    begin_s: Numbers
    finish_s: Numbers
    sent_bytes: Numbers
    events: int
    fillings: int
    peak_load: float


@dataclass(slots=True, kw_only=True)
class _State:
    problem: Problem
    rates_of: Callable[[Ints], tuple[Numbers, float]]
    before: dict[int, list[tuple[int, int]]]
    after: dict[int, list[int]]
    sent: Ints
    arrived: Ints
    left_bytes: Numbers
    begin_s: Numbers
    finish_s: Numbers
    sent_bytes: Numbers
    arrivals: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    active: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rates: Numbers = field(default_factory=lambda: np.zeros(0))
    known: dict[bytes, Numbers] = field(default_factory=dict[bytes, Numbers])
    on: NDArray[np.bool_]
    waited_for: NDArray[np.bool_]
    fillings: int = 0
    peak_load: float = 0.0


def play_problem(problem: Problem, batch: float = 0.0) -> Played:
    """Play `problem` until nothing but other jobs is left.

    Args:
        problem: What to play.
        batch: See this file's first paragraph; 0 works rates out at every end.

    Raises:
        InfeasibleError: Streams wait for each other, or a stream gets no rate.
    """
    messages = int(problem.rounds[~problem.forever].sum())
    if len(problem.needs) and messages >= MESSAGES_COMPILED_FROM and find_spec("numba"):
        return _compiled(problem)
    state = _prepare(problem)
    now, events = 0.0, 0
    begun = [f for f in state.before if _ready(state, f)]
    unbound = np.setdiff1d(np.arange(len(problem.rounds)), np.fromiter(state.before, dtype=np.int64, count=len(state.before)))
    _start(state, np.concatenate([unbound, np.asarray(sorted(begun), dtype=np.int64)]), now)
    pending = int((~problem.forever).sum())
    done = int((np.isfinite(state.finish_s) & ~problem.forever).sum())
    done += _settle(state, np.flatnonzero((state.sent > 0) & (state.sent < problem.rounds)), now, counted=True)
    while done < pending:
        if not len(state.active) and not state.arrivals:
            raise InfeasibleError("streams wait for each other", "the order of the messages")
        ended, now = _advance(state, now, batch)
        events += 1
        done += _settle(state, ended, now)
    return Played(
        begin_s=state.begin_s,
        finish_s=state.finish_s,
        sent_bytes=state.sent_bytes,
        events=events,
        fillings=state.fillings,
        peak_load=state.peak_load,
    )


def _compiled(problem: Problem) -> Played:
    from isthmus.sim.compiled_events import play_compiled

    begin, finish, sent, events, fillings, peak, ended = play_compiled(problem)
    if not ended:
        raise InfeasibleError("streams wait for each other, or get no rate", "order of the messages, or capacity of the links")
    return Played(begin_s=begin, finish_s=finish, sent_bytes=sent, events=events, fillings=fillings, peak_load=peak)


def _prepare(problem: Problem) -> _State:
    streams = len(problem.rounds)
    before: dict[int, list[tuple[int, int]]] = {}
    after: dict[int, list[int]] = {}
    for first, second, lag in problem.needs.tolist():
        before.setdefault(second, []).append((first, lag))
        after.setdefault(first, []).append(second)
    waited_for = np.zeros(streams, dtype=np.bool_)
    waited_for[list(after)] = True
    if len(problem.link) >= COMPILED_FROM and find_spec("numba"):
        from isthmus.sim.compiled_events import Filler

        rates_of: Callable[[Ints], tuple[Numbers, float]] = Filler(problem).fill
    else:
        rates_of = partial(_filled, problem)
    return _State(
        problem=problem,
        rates_of=rates_of,
        before=before,
        after=after,
        sent=np.zeros(streams, dtype=np.int64),
        arrived=np.zeros(streams, dtype=np.int64),
        left_bytes=np.zeros(streams),
        begin_s=np.full(streams, np.inf),
        finish_s=np.full(streams, np.inf),
        sent_bytes=np.zeros(streams),
        on=np.zeros(streams, dtype=np.bool_),
        waited_for=waited_for,
    )


def _ready(state: _State, stream: int) -> bool:
    """Whether the next message of `stream` may start: it is not sending, and what it needs has arrived."""
    sent, rounds = state.sent[stream], state.problem.rounds
    if state.on[stream] or sent >= rounds[stream]:
        return False
    for first, lag in state.before.get(stream, ()):
        wanted = rounds[first] if lag == ALL else min(rounds[first], sent + 1 - lag)
        if state.arrived[first] < wanted:
            return False
    return True


def _start(state: _State, streams: Ints, now: float) -> None:
    """Start the next message of `streams`; those without links or bytes have sent it at once."""
    if not len(streams):
        return
    problem = state.problem
    state.begin_s[streams] = np.minimum(state.begin_s[streams], now)
    free = (problem.size_bytes[streams] <= 0) | (
        (problem.start[streams] == problem.start[streams + 1]) & np.isinf(problem.limit_bytes_per_s[streams])
    )
    sending, instant = streams[~free], streams[free]
    state.left_bytes[sending] = problem.size_bytes[sending]
    state.on[sending] = True
    state.active = np.concatenate([state.active, sending])
    _sent(state, instant, np.full(len(instant), now))


def _sent(state: _State, streams: Ints, at_s: Numbers) -> None:
    """Book messages whose last byte has left at `at_s`."""
    problem = state.problem
    state.sent[streams] += 1
    arrive = at_s + problem.latency_s[streams]
    alone = ~state.waited_for[streams]
    last = state.sent[streams] == problem.rounds[streams]
    finished = streams[alone & last]
    state.finish_s[finished] = arrive[alone & last]
    state.arrived[streams[alone]] += 1
    for stream, when in zip(streams[~alone].tolist(), arrive[~alone].tolist(), strict=True):
        heappush(state.arrivals, (when, stream))


def _advance(state: _State, now: float, batch: float) -> tuple[Ints, float]:
    """Go to the next instant at which something ends; the streams that sent their last byte until then."""
    next_arrival = state.arrivals[0][0] if state.arrivals else np.inf
    if not len(state.active):
        return state.active, next_arrival
    rates = _rates(state)
    with np.errstate(divide="ignore"):
        ends = now + state.left_bytes[state.active] / rates
    ends[state.problem.forever[state.active]] = np.inf
    first = float(ends.min())
    if min(first, next_arrival) == np.inf:
        raise InfeasibleError("a stream gets no rate and will never end", "capacity of the links it crosses")
    until = min(first * (1 + _TIE), next_arrival)
    if batch > 0 and first <= next_arrival:
        waited = ends[state.waited_for[state.active]]
        until = max(until, min(first * (1 + batch), next_arrival, float(waited.min(initial=np.inf))))
    over = ends <= until * (1 + _TIE)
    here = float(ends[over].max()) if over.any() else next_arrival
    here = min(here, next_arrival) if next_arrival > now else here
    step = np.minimum(rates * (here - now), state.left_bytes[state.active])
    step[over] = state.left_bytes[state.active[over]]
    state.left_bytes[state.active] -= step
    state.sent_bytes[state.active] += step
    ended = state.active[over]
    if over.any():
        state.on[ended] = False
        state.active = state.active[~over]
        _sent(state, ended, ends[over])
    return ended, here


def _rates(state: _State) -> Numbers:
    """Rates of the active streams; those of small sets are remembered, since rounds repeat."""
    small = len(state.active) <= 512
    key = state.active.tobytes() if small else b""
    if small and key in state.known:
        return state.known[key]
    rates, fullest = state.rates_of(state.active)
    state.fillings += 1
    state.peak_load = max(state.peak_load, fullest)
    if small:
        if len(state.known) >= _REMEMBERED:
            state.known.clear()
        state.known[key] = rates
    return rates


def _filled(problem: Problem, active: Ints) -> tuple[Numbers, float]:
    rates = fill(problem, active)
    return rates, _load(problem, active, rates)


def _load(problem: Problem, active: Ints, rates: Numbers) -> float:
    """Load of the fullest link as a share of its capacity, summed up afresh from the rates."""
    if not len(problem.capacity):
        return 0.0
    every = np.zeros(len(problem.rounds))
    every[active] = rates
    loads = np.repeat(every, np.diff(problem.start)) * problem.times
    return float((np.bincount(problem.link, weights=loads, minlength=len(problem.capacity)) / problem.capacity).max())


def _settle(state: _State, ended: Ints, now: float, counted: bool = False) -> int:
    """Book arrivals until `now` and start what became ready; how many streams are finished by it.

    `ended` are those whose last message left just now; `counted` says that those among them that are finished were.
    """
    forever, rounds = state.problem.forever, state.problem.rounds
    touched = set(ended[state.sent[ended] < rounds[ended]].tolist())
    done = 0 if counted else int(((state.sent[ended] == rounds[ended]) & ~state.waited_for[ended] & ~forever[ended]).sum())
    while True:
        while state.arrivals and state.arrivals[0][0] <= now * (1 + _TIE):
            when, stream = heappop(state.arrivals)
            state.arrived[stream] += 1
            if state.arrived[stream] == rounds[stream]:
                state.finish_s[stream] = when
                done += not forever[stream]
            touched.update(state.after[stream])
        begin = np.asarray(sorted(stream for stream in touched if _ready(state, stream)), dtype=np.int64)
        touched = set[int]()
        if not len(begin):
            return done
        before = state.sent[begin].copy()
        _start(state, begin, now)
        instant = begin[state.sent[begin] > before]
        touched = set(instant.tolist())
        done += int(((state.sent[instant] == rounds[instant]) & ~state.waited_for[instant] & ~forever[instant]).sum())
