"""Play phases one after another, and say where the time went."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.sim.events import Played, play_problem
from isthmus.sim.filling import fill
from isthmus.sim.fold import Problem, fold_phase
from isthmus.sim.graph import Numbers
from isthmus.sim.phase import Phase

__all__ = ["PhasePlayed", "play_phase", "play_phases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlayed:
    """One phase, played.

    Attributes:
        phase: What was played.
        seconds: From its start, `Phase.start_s` included, until its last message has arrived; other jobs do not count.
        begin_s, finish_s: Of every stream, from the start of the phase.
        sent_bytes: By every stream, summed over the intervals played.
        carried_bytes: By link: of this phase's streams, and of other jobs' beside them.
        classes: Streams after folding.
        events, fillings, peak_load: As in `events.Played`.
    """

    phase: Phase
    seconds: float
    begin_s: Numbers
    finish_s: Numbers
    sent_bytes: Numbers
    carried_bytes: Numbers
    classes: int
    events: int
    fillings: int
    peak_load: float


def play_phases(phases: Sequence[Phase], capacity: Numbers, fold: bool = True, batch: float = 0.0) -> list[PhasePlayed]:
    """Play `phases` in order, each from where the one before ended; see `play_phase`."""
    return [play_phase(phase, capacity, fold, batch) for phase in phases]


def play_phase(phase: Phase, capacity: Numbers, fold: bool = True, batch: float = 0.0) -> PhasePlayed:
    """Play one phase on links of `capacity` (bytes/s).

    Args:
        phase: Streams that start together.
        capacity: Of every link that `phase.links` names.
        fold: Play equal streams once; changes nothing but the time it takes.
        batch: Share of the time within which ends are taken together, see `events`.

    Raises:
        InfeasibleError: The phase never ends.
    """
    problem = fold_phase(phase, capacity * phase.share, fold)
    rates = _constant_rates(problem)
    played = play_problem(problem, batch) if rates is None else _rounds(problem, rates)
    begin, finish = (phase.start_s + each[problem.stream_class] for each in (played.begin_s, played.finish_s))
    sent = played.sent_bytes[problem.stream_class]
    own = ~phase.forever
    seconds = float(finish[own].max(initial=0.0))
    return PhasePlayed(
        phase=phase,
        seconds=seconds,
        begin_s=begin,
        finish_s=finish,
        sent_bytes=sent,
        carried_bytes=_carried(phase, sent, len(capacity)),
        classes=len(problem.rounds),
        events=played.events,
        fillings=played.fillings,
        peak_load=played.peak_load,
    )


def _carried(phase: Phase, sent: Numbers, links: int) -> Numbers:
    weights = np.repeat(sent, phase.links.shape[1])
    return np.bincount(phase.links.ravel() + 1, weights=weights, minlength=links + 1)[1:].astype(np.float64)


def _constant_rates(problem: Problem) -> Numbers | None:
    """Rates of all streams where no stream ever waits for a link, so that they hold at every instant; else None.

    So it is where all together get what each class would get alone: any subset then fits as well.
    """
    sizes, rounds = problem.size_bytes, problem.rounds
    simple = not problem.forever.any() and bool((problem.needs[:, 2] == 1).all()) and bool((sizes > 0).all())
    if not simple or len(set(rounds.tolist())) != 1 or rounds[0] < 2:
        return None
    alone = problem.limit_bytes_per_s.copy()
    rows = np.repeat(np.arange(len(rounds)), np.diff(problem.start))
    np.minimum.at(alone, rows, problem.capacity[problem.link] / problem.times)
    together = fill(problem, np.arange(len(rounds)))
    return together if bool((together >= alone * (1 - 1e-12)).all()) and bool(np.isfinite(together).all()) else None


def _rounds(problem: Problem, rates: Numbers) -> Played:
    """Round by round, where message r waits for messages r - 1 of its own stream (sent) and of others (arrived).

        sent(r, f) = max(sent(r - 1, f), max over g before f of sent(r - 1, g) + a_g) + S_f / B_f
    """
    send = problem.size_bytes / rates
    before, after, _ = problem.needs.T
    order = np.argsort(after, kind="stable")
    before, after = before[order], after[order]
    starts = np.flatnonzero(np.r_[True, after[1:] != after[:-1]]) if len(after) else np.zeros(0, dtype=np.int64)
    waiting = after[starts]
    sent, rounds = send.copy(), int(problem.rounds[0])
    for _ in range(rounds - 1):
        arrived = (sent + problem.latency_s)[before]
        if len(waiting):
            sent[waiting] = np.maximum(sent[waiting], np.maximum.reduceat(arrived, starts))
        sent += send
    return Played(
        begin_s=np.zeros(len(send)),
        finish_s=sent + problem.latency_s,
        sent_bytes=problem.size_bytes * rounds,
        events=rounds,
        fillings=1,
        peak_load=_peak(problem, rates),
    )


def _peak(problem: Problem, rates: Numbers) -> float:
    if not len(problem.capacity):
        return 1.0
    rows = np.repeat(np.arange(len(rates)), np.diff(problem.start))
    loads = np.bincount(problem.link, weights=rates[rows] * problem.times, minlength=len(problem.capacity))
    return float((loads / problem.capacity).max())

