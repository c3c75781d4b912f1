"""Other jobs: streams beside the one that is asked for, which never stop sending."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isthmus.errors import InfeasibleError
from isthmus.sim.fabric_map import FabricMap
from isthmus.sim.graph import Ints
from isthmus.sim.groups import channel_orders, inner_groups
from isthmus.sim.phase import Phase, no_needs, phase_of
from isthmus.sim.routes import route

__all__ = ["other_jobs", "with_others"]

_ENDLESS_BYTES = 1e30


def other_jobs(chart: FabricMap, jobs: Sequence[tuple[str, Sequence[int]]], seed: int = 0) -> Phase | None:
    """Streams of (`ring` or `all-to-all`, ranks) jobs, always sending: one a neighbour of each ring, or one a pair.

    Raises:
        InfeasibleError: A job of one rank.
    """
    ends: list[tuple[Ints, Ints]] = []
    for pattern, ranks in jobs:
        if len(ranks) < 2:
            raise InfeasibleError(f"a job of {len(ranks)} GPU sends nothing", "two ranks or more")
        members = np.asarray(ranks, dtype=np.int64)
        if pattern == "ring":
            orders = channel_orders(chart, inner_groups(chart, members))
            ends += [(order, np.roll(order, -1)) for order in orders]
        else:
            count = len(members)
            place = np.repeat(np.arange(count), count - 1)
            ends.append((members[place], members[(place + np.tile(np.arange(1, count), count)) % count]))
    if not ends:
        return None
    source, target = (np.concatenate([pair[side] for pair in ends]) for side in (0, 1))
    # Numbered far from the asked job's own flows, so that equal ends hash apart.
    phase = phase_of("other jobs", route(chart, source, target, seed, 1 << 40), (source, target), _ENDLESS_BYTES)
    return replace(phase, forever=np.ones(phase.streams, dtype=np.bool_))


def with_others(phase: Phase, others: Phase | None) -> Phase:
    """`phase` with the streams of `others` beside its own."""
    if others is None:
        return phase
    width = max(phase.links.shape[1], others.links.shape[1])
    links = [np.pad(each.links, ((0, 0), (0, width - each.links.shape[1])), constant_values=-1) for each in (phase, others)]

    def both(name: str) -> Ints:
        return np.concatenate([getattr(phase, name), getattr(others, name)])

    return replace(
        phase,
        links=np.concatenate(links),
        needs=phase.needs if len(phase.needs) else no_needs(),
        size_bytes=both("size_bytes"),
        rounds=both("rounds"),
        latency_s=both("latency_s"),
        limit_bytes_per_s=both("limit_bytes_per_s"),
        forever=both("forever"),
        source=both("source"),
        target=both("target"),
    )
