"""Histories as the ranks of a faultless runtime would write them, with kills at drawn places. Not a test itself."""

import random
from dataclasses import dataclass, field
from typing import Any

Lines = dict[tuple[str, int], list[dict[str, Any]]]
START_S, STEP_S, TOKENS = 1000.0, 0.1, 64


@dataclass
class Region:
    """One region of the made-up run; `back_in` is the round at which a killed one takes part again."""

    ranks: int
    alive: bool = True
    back_in: int = 0
    fresh: bool = True


@dataclass
class Made:
    """A history and what was done: (region, time of the kill, time of its return)."""

    lines: Lines
    kills: list[tuple[str, float, float]] = field(default_factory=list)


def make_up(seed: int, regions: dict[str, int], rounds: int, inner: int, kills: dict[int, str]) -> Made:
    """Rounds of `inner` steps; in the rounds of `kills` that region dies somewhere, and is back two rounds later.

    It dies before the round's exchange (its window is lost), or after its vote (its window counts, though it never says so).
    """
    rng = random.Random(seed)
    state = {name: Region(ranks) for name, ranks in regions.items()}
    made = Made({(name, rank): [] for name, ranks in regions.items() for rank in range(ranks)})
    total = 0
    for number in range(rounds):
        now, step = START_S + number * inner * STEP_S, number * inner
        victim = kills.get(number)
        if victim is not None and (not state[victim].alive or sum(each.alive for each in state.values()) < 2):
            victim = None
        _return(made, state, number, now)
        voted = rng.random() < 0.5
        trains = rng.randrange(inner) if victim is not None and not voted else inner
        members = {name: region for name, region in state.items() if region.alive}
        for name, region in members.items():
            # The last step's line follows the round's, so whoever dies before that has not written it.
            for index in range(min(inner - 1, trains if name == victim else inner)):
                _write(made, name, region, kind="step", step=step + index + 1, tokens=TOKENS, t=now + index * STEP_S)
        counted = {name: inner * TOKENS * each.ranks for name, each in members.items() if name != victim or voted}
        total += sum(counted.values())
        ends_s, last = now + inner * STEP_S, step + inner
        round_line = {"round": number, "branch": "", "step": last, "hash": f"{number:016x}", "counted": counted, "total": total}
        for name, region in members.items():
            if name != victim:
                _write(made, name, region, kind="round", t=ends_s, **round_line)
                _write(made, name, region, kind="step", step=last, tokens=TOKENS, t=ends_s + 0.01)
        if victim is not None:
            state[victim].alive, state[victim].back_in = False, number + 2
            made.kills.append((victim, now, ends_s + 2 * inner * STEP_S))
    _return(made, state, rounds + 2, START_S + rounds * inner * STEP_S)
    for name, region in state.items():
        _write(made, name, region, kind="end", hash="f" * 16, steps=rounds * inner, t=START_S + rounds * inner * STEP_S)
    return made


def _return(made: Made, state: dict[str, Region], number: int, now: float) -> None:
    for name, region in state.items():
        if not region.alive and number >= region.back_in:
            region.alive = region.fresh = True
        if region.alive and region.fresh:
            _write(made, name, region, kind="start", t=now)
            region.fresh = False


def _write(made: Made, name: str, region: Region, **line: Any) -> None:
    for rank in range(region.ranks):
        made.lines[name, rank].append(dict(line))
