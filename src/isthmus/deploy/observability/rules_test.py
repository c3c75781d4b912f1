"""Unit tests of a plan's rules, for `promtool test rules`: a run as planned raises nothing, and each fault its own alarm.

Series are made of steady rates. Whether an alarm is up is asked of `ALERTS`, so that its wording is free.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from isthmus.deploy.observability.rules import PACE, Pace, Planned, alerts

__all__ = ["rules_test"]

_RANKS_MOST = 32
"""With more ranks the silent-rank case is left out: it needs a series of every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """What one rank does, per second unless said otherwise.

    Attributes:
        goodput: Of each of its links while busy, as a share of the rank's share of the plan.
        up, loss: As sampled.
    """

    region: str
    rank: int
    step_s: float
    steps: float = 1.0
    waiting: float = 0.05
    goodput: float = 0.95
    resent: float = 0.0
    loss: str = "2.5"
    discarded: float = 0.0
    regions: int = 1
    up: int = 1


def rules_test(planned: Planned, pace: Pace = PACE) -> dict[str, Any]:
    """rules_test.yml."""
    names = [alert["alert"] for alert in alerts(planned, pace)]
    tests = [_test("as planned", planned, pace, _healthy(planned), dict.fromkeys(names, 0))]
    for name, change in _faults(planned).items():
        if name in names:
            tests.append(_test(name, planned, pace, [change(each) for each in _healthy(planned)], {name: 1}))
    return {"rule_files": ["rules.yml"], "evaluation_interval": f"{pace.scrape_s}s", "tests": tests}


def _healthy(planned: Planned) -> list[_Rank]:
    """One rank of each region where there are too many for all."""
    all_of_them = sum(planned.ranks.values()) <= _RANKS_MOST
    step_s = planned.step_s or 1.0
    return [
        _Rank(region=region, rank=rank, step_s=step_s, steps=1 / step_s, regions=len(planned.ranks))
        for region, ranks in planned.ranks.items()
        for rank in range(ranks if all_of_them else 1)
    ]


def _faults(planned: Planned) -> dict[str, Callable[[_Rank], _Rank]]:
    """What makes each alarm go off; changes to the ranks of the first region, or to all."""
    first = next(iter(planned.ranks))

    def there(**change: Any) -> Callable[[_Rank], _Rank]:
        return lambda rank: replace(rank, **change) if rank.region == first else rank

    found: dict[str, Callable[[_Rank], _Rank]] = {
        "IsthmusWanBelowPlan": there(goodput=0.5),
        "IsthmusWanLosesPackets": there(resent=0.01),
        "IsthmusTrainingStandsStill": there(steps=0.0, waiting=0.0),
        "IsthmusLossNotFinite": there(loss="NaN"),
        "IsthmusTokensDiscarded": there(discarded=10.0),
        "IsthmusStepSlowerThanPlan": lambda rank: replace(rank, step_s=2 * rank.step_s, steps=rank.steps / 2),
    }
    if len(planned.ranks) > 1:
        found["IsthmusRegionLost"] = lambda rank: replace(rank, regions=rank.regions - 1)
        found["IsthmusRegionStraggles"] = lambda rank: rank if rank.region == first else replace(rank, waiting=0.5)
    if sum(planned.ranks.values()) <= _RANKS_MOST:
        found["IsthmusRanksSilent"] = lambda rank: replace(rank, up=0) if (rank.region, rank.rank) == (first, 0) else rank
    return found


def _test(name: str, planned: Planned, pace: Pace, ranks: list[_Rank], expected: dict[str, int]) -> dict[str, Any]:
    at_s = pace.window_s + pace.hold_s + 4 * pace.scrape_s
    count = at_s // pace.scrape_s + 2
    left_out = frozenset[str]() if sum(planned.ranks.values()) <= _RANKS_MOST else frozenset({"IsthmusRanksSilent"})
    return {
        "name": name,
        "interval": f"{pace.scrape_s}s",
        "input_series": [
            {"series": series, "values": values}
            for rank in ranks
            for series, values in _series(rank, planned, pace.scrape_s, count)
        ],
        "promql_expr_test": [
            {
                "expr": f'min(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": f"{at_s}s",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
            for alert, fires in expected.items()
            if alert not in left_out
        ],
    }


def _series(rank: _Rank, planned: Planned, scrape_s: int, count: int) -> Iterator[tuple[str, str]]:
    own = f'region="{rank.region}",rank="{rank.rank}"'

    def steady(name: str, per_s: float, more: str = "") -> tuple[str, str]:
        return f"isthmus_{name}{{{own}{more}}}", f"0+{per_s * scrape_s:.9g}x{count}"

    yield f'up{{job="isthmus",{own}}}', f"{rank.up}x{count}"
    yield f"isthmus_loss{{{own}}}", " ".join([rank.loss] * (count + 1))
    yield f"isthmus_regions{{{own}}}", f"{rank.regions}x{count}"
    yield steady("steps_total", rank.steps)
    yield steady("step_seconds_count", rank.steps)
    yield steady("step_seconds_sum", rank.steps * rank.step_s)
    yield steady("waiting_seconds_total", rank.waiting * rank.steps * rank.step_s)
    yield steady("discarded_tokens_total", rank.discarded)
    ranks = planned.ranks[rank.region] if sum(planned.ranks.values()) <= _RANKS_MOST else 1
    for link in planned.links:
        if link.src == rank.region:
            peer, busy = f',peer="{link.dst}"', 0.4
            sent = busy * rank.goodput * link.goodput_bytes_per_s / ranks
            yield steady("link_busy_seconds_total", busy, peer)
            yield steady("link_sent_bytes_total", sent, peer)
            yield steady("link_retransmits_total", rank.resent * sent / 1448, peer)
