"""The laws that every run must obey, whatever was done to it. Pure: a history in, findings out.

* Members that committed a round hold the same bits, and agree on the tokens it counted.
* A round's total is the total before it and its own tokens; no round is missing.
* What a round counts for a region is what the region's ranks trained since its round before (where windows are equal).
* Every token a region trained was counted once, or was thrown away; survivors throw nothing away, and others at most
  their window since the last committed round. What a region prints that it has thrown away is what it has; of the branch
  that has to give way after a partition, its rounds too.
* Survivors go on within the time of detection and a second.
"""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from chaos.faults import Fault, Kind, no_store, side_of
from chaos.history import History, Line, Stretch

__all__ = ["Finding", "Happened", "Loss", "Rules", "check", "losses", "worst_gap_s"]

# What may make a region throw its window away; all else must not.
COSTLY: frozenset[Kind] = frozenset({"kill-inside", "kill-between", "kill-rank", "freeze", "cut", "slow"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for a run.

    Attributes:
        detect_s: Of the plan.
        grace_s: Of the plan; how long a late region is waited for. None: for as long as it lives.
        whole: Every region brings all that it has trained since the last round to every round, at the same step.
        branches: Sides that cannot reach each other go on apart.
        slow_s: What a window takes in a region that computes ten times slower.
        window_tokens: Most tokens each region can have trained since a committed round.
    """

    detect_s: float
    grace_s: float | None
    whole: bool = True
    branches: bool = False
    slow_s: float
    window_tokens: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A fault that was played: seconds of time.time() from its beginning until all members were together again."""

    fault: Fault
    began_s: float
    healed_s: float


@dataclass(frozen=True, slots=True)
class Finding:
    """A law that was broken."""

    law: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Training of one stretch that no round counted."""

    region: str
    stretch: int
    tokens: int
    ended_s: float


def check(history: History, happened: Iterable[Happened], rules: Rules) -> list[Finding]:
    """All findings; none when the run kept the laws."""
    played = list(happened)
    return [
        *_agreement(history),
        *_arithmetic(history),
        *(_counted(history) if rules.whole else []),
        *_thrown_away(history, played, rules),
        *_said(history),
        *_idle(history, played, rules),
        *_endings(history),
    ]


def _agreement(history: History) -> list[Finding]:
    seen: dict[tuple[str, int], dict[tuple[object, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for region, rank, line in history.rounds():
        said = line["hash"], tuple(sorted(line["counted"].items())), line["total"]
        seen[line["branch"], line["round"]][said].append(f"{region}-{rank}")
    return [
        Finding("agreement", f"round {number}: " + "; ".join(f"{', '.join(who)} say {said}" for said, who in sayings.items()))
        for (_, number), sayings in seen.items()
        if len(sayings) > 1
    ]


def _arithmetic(history: History) -> list[Finding]:
    found: list[Finding] = []
    lines = {(line["branch"], line["round"]): line for _, _, line in history.rounds()}
    first = min((number for _, number in lines), default=0)
    for (_, number), line in sorted(lines.items(), key=lambda item: item[0][1]):
        own = sum(line["counted"].values())
        # A branch goes on from whatever its side belonged to.
        before = [0] if number == first else [lines[key]["total"] for key in lines if key[1] == number - 1]
        if not before:
            found.append(Finding("arithmetic", f"round {number - 1} was reported by nobody"))
        elif line["total"] - own not in before:
            found.append(Finding("arithmetic", f"round {number}: total {line['total']} is not {before} and {own} of its own"))
    return found


def _counted(history: History) -> list[Finding]:
    found: list[Finding] = []
    for region in history.regions():
        for index, parts in enumerate(history.of(region)):
            if not parts or not all(part.steps for part in parts):
                continue
            after = min(min(part.steps) for part in parts) - 1
            for line in parts[0].rounds:
                until, counted = line["step"], line["counted"].get(region)
                if counted == 0:  # it came with empty hands, as after coming back; its window goes on
                    continue
                if all(until in part.steps for part in parts):  # else it was killed between the two lines
                    trained = sum(part.tokens(after, until) for part in parts)
                    if counted != trained:
                        who = f"{region} (stretch {index})"
                        text = f"{who} trained {trained} tokens in round {line['round']}, which counts {counted}"
                        found.append(Finding("counted", text))
                after = until
    return found


def losses(history: History) -> list[Loss]:
    """What every stretch trained and no round counted, one entry a stretch; negative where something counted twice."""
    counted: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
    for _, _, line in history.rounds():
        for region, tokens in line["counted"].items():
            counted[region][line["branch"], line["round"]] = tokens
    found: list[Loss] = []
    for region in history.regions():
        stretches = [parts for parts in history.of(region) if parts]
        unclaimed = dict(counted[region])
        claims: list[int] = []
        for parts in stretches:
            keys = {(line["branch"], line["round"]) for part in parts for line in part.rounds}
            claims.append(sum(unclaimed.pop(key, 0) for key in keys))
        # Rounds with this region that it did not live to report itself belong to the stretch that ended before them.
        for (_, number), tokens in unclaimed.items():
            owners = [index for index, parts in enumerate(stretches) if _first_round(parts) < number]
            claims[owners[-1] if owners else 0] += tokens
        for index, (parts, claimed) in enumerate(zip(stretches, claims, strict=True)):
            trained = sum(part.tokens() for part in parts)
            found.append(Loss(region=region, stretch=index, tokens=trained - claimed, ended_s=_ended_s(parts)))
    return found


def _thrown_away(history: History, played: list[Happened], rules: Rules) -> list[Finding]:
    found: list[Finding] = []
    for loss in losses(history):
        parts = history.of(loss.region)[loss.stretch]
        step_tokens = sum(max((line["tokens"] for line in part.steps.values()), default=0) for part in parts)
        who = f"{loss.region} (stretch {loss.stretch})"
        # A rank may be killed after it voted and before it wrote the step's line.
        if loss.tokens < -step_tokens or (loss.tokens < 0 and parts[0].end is not None):
            found.append(Finding("once", f"{who}: {-loss.tokens} tokens were counted that it did not train"))
        elif loss.tokens > rules.window_tokens[loss.region]:
            text = f"{who} lost {loss.tokens} tokens, more than its window of {rules.window_tokens[loss.region]}"
            found.append(Finding("window", text))
        elif loss.tokens > 0 and not _excused(loss, played, history.regions(), rules):
            found.append(Finding("survivor", f"{who} lost {loss.tokens} tokens, and nothing had been done to it"))
    return found


def _excused(loss: Loss, played: list[Happened], regions: list[str], rules: Rules) -> bool:
    """Whether a fault of this region that can cost its window was under way when the stretch ended."""
    own = [each for each in played if each.fault.kind in COSTLY and loss.region in _struck(each.fault, regions, rules)]
    return any(each.began_s - 5.0 <= loss.ended_s <= each.healed_s + 5.0 for each in own)


def _struck(fault: Fault, regions: list[str], rules: Rules) -> frozenset[str]:
    """Regions that a fault is done to. Of two sides that go on apart either may have to give way, where none is a majority."""
    if fault.kind != "cut":
        return frozenset({fault.region})
    return frozenset(regions) if rules.branches and not _majority(fault, regions) else side_of(fault, regions)


def _majority(fault: Fault, regions: list[str]) -> bool:
    return 2 * len(side_of(fault, regions)) < len(regions)


def _said(history: History) -> list[Finding]:
    """Holds a region's lines of discarded training against what it trained and no round of the run counted."""
    found: list[Finding] = []
    by_stretch = {(loss.region, loss.stretch): loss.tokens for loss in losses(history)}
    for region in history.regions():
        for index, parts in enumerate(history.of(region)):
            for part in parts:
                if part.discarded is None:
                    continue
                given_up = sum(sum(line["counted"].values()) for line in part.given_up())
                window, said = by_stretch[region, index], part.discarded["tokens"] - given_up
                # An every-step run throws its step away before its line is written.
                step_tokens = sum(max((line["tokens"] for line in each.steps.values()), default=0) for each in parts)
                if said not in (window, window + step_tokens):
                    who = f"{region} (stretch {index})"
                    text = f"{who} printed that it lost {said} tokens, and {given_up} of its branch; it lost {window}"
                    found.append(Finding("said", text))
    return found


def worst_gap_s(history: History, region: str, since_s: float, until_s: float, next_s: float = math.inf) -> float:
    """The longest time between two steps of a region's first rank that overlaps [since_s, until_s], as far as it lies before
    `next_s`, when the next fault begins: what comes then is that one's.
    """
    times = sorted(line["t"] for stretch in history.ranks[region, 0] for line in stretch.steps.values())
    pairs = [(before, after) for before, after in itertools.pairwise(times) if after > since_s and before < until_s]
    return max((min(after, next_s) - before for before, after in pairs), default=0.0)


def _idle(history: History, played: list[Happened], rules: Rules) -> list[Finding]:
    found: list[Finding] = []
    for region in history.regions():
        times = sorted(line["t"] for stretch in history.ranks[region, 0] for line in stretch.steps.values())
        gaps = [after - before for before, after in itertools.pairwise(times)]
        usual_s = statistics.quantiles(gaps, n=20)[-1] if len(gaps) > 20 else 0.0
        for each, following in itertools.zip_longest(played, played[1:]):
            if region == each.fault.region:
                continue
            allowed_s = rules.detect_s + 1.0 + usual_s + _more_s(each.fault, rules, history.regions(), region)
            next_s = following.began_s if following else math.inf
            gap_s = worst_gap_s(history, region, each.began_s, each.healed_s, next_s)
            if gap_s > allowed_s:
                what = f"fault {each.fault.number} ({each.fault.kind})"
                found.append(Finding("idle", f"{region} stood still for {gap_s:.1f} s at {what}, allowed {allowed_s:.1f} s"))
    return found


def _more_s(fault: Fault, rules: Rules, regions: list[str], region: str) -> float:
    """What a fault may cost `region` beyond detection: a slow one costs the grace; sides that wait for each other, the cut
    itself, and so does one side that cannot reach the store either.
    """
    if fault.kind == "slow":
        return rules.slow_s if rules.grace_s is None else rules.grace_s
    apart = fault.kind == "cut" and no_store(fault) and region in side_of(fault, regions)
    stands = apart or (fault.kind == "cut" and not rules.branches and not _majority(fault, regions))
    return fault.duration_s + rules.detect_s if stands else 0.0


def _endings(history: History) -> list[Finding]:
    ends: dict[str, list[str]] = defaultdict(list)
    found: list[Finding] = []
    for (region, rank), stretches in history.ranks.items():
        end: Line | None = stretches[-1].end if stretches else None
        if end is None:
            found.append(Finding("ending", f"{region}-{rank} did not reach an orderly end"))
        else:
            ends[end["hash"]].append(f"{region}-{rank}")
    if len(ends) > 1:
        found.append(Finding("ending", "final parameters differ: " + "; ".join(f"{key}: {who}" for key, who in ends.items())))
    return found


def _first_round(parts: list[Stretch]) -> float:
    return min((line["round"] for part in parts for line in part.rounds), default=float("inf"))


def _ended_s(parts: list[Stretch]) -> float:
    times = [line["t"] for part in parts for line in [*part.steps.values(), *part.rounds]]
    return max((each["t"] for part in parts if (each := part.discarded)), default=max(times, default=0.0))
