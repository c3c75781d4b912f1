"""What is played: streams of messages over links, and what each message waits for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isthmus.sim.graph import Ints, Numbers
from isthmus.sim.routes import Routes

__all__ = ["ALL", "Phase", "no_needs", "phase_of"]

ALL = -1
"""As a lag: every round of the other stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Streams that start together; each sends `rounds` messages over one way, one after another.

    A stream without links and bytes is a pause of its latency: compute, or a gate.

    Attributes:
        name: In words.
        links: [stream, hop] -> link; -1 where there is none.
        size_bytes: Of one message.
        rounds: Messages of a stream.
        latency_s: From the last byte sent to the message being usable.
        limit_bytes_per_s: Of a stream whatever the links carry.
        needs: Rows (before, after, lag): message r of `after` starts when message r - lag of `before` has arrived (all of
            them where `lag` is `ALL`).
        forever: Streams of other jobs, which never end and which nobody waits for.
        source, target: Ranks, -1 where a stream is a pause.
        start_s: Before the first byte of any stream.
        share: Of the capacity of links, what streams of this kind reach.
    """

    name: str
    links: Ints
    size_bytes: Numbers
    rounds: Ints
    latency_s: Numbers
    limit_bytes_per_s: Numbers
    needs: Ints
    forever: NDArray[np.bool_]
    source: Ints
    target: Ints
    start_s: float = 0.0
    share: float = 1.0

    @property
    def streams(self) -> int:
        """How many."""
        return len(self.rounds)


def no_needs() -> Ints:
    """No stream waits for another."""
    return np.zeros((0, 3), dtype=np.int64)


def phase_of(
    name: str, routes: Routes, ends: tuple[Ints, Ints], size_bytes: float | Numbers, rounds: int = 1, needs: Ints | None = None
) -> Phase:
    """Streams along `routes` from ranks to ranks `ends`, all of `rounds` messages."""
    count = len(ends[0])
    return Phase(
        name=name,
        links=routes.links,
        size_bytes=np.broadcast_to(np.asarray(size_bytes, dtype=np.float64), (count,)).copy(),
        rounds=np.full(count, rounds, dtype=np.int64),
        latency_s=routes.latency_s,
        limit_bytes_per_s=routes.limit_bytes_per_s,
        needs=no_needs() if needs is None else needs,
        forever=np.zeros(count, dtype=np.bool_),
        source=ends[0],
        target=ends[1],
    )
