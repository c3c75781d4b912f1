"""Prometheus rules of one plan: what to record, what was planned, and when somebody is told."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from isthmus.deploy.request import Request
from isthmus.fabric import wan_routes
from isthmus.units import show_rate, show_seconds

__all__ = ["BELOW_PLAN", "LATE", "LOSSY", "PACE", "STRAGGLING", "Link", "Pace", "Planned", "alerts", "planned_of", "rules"]

BELOW_PLAN: Final = 0.7
"""Goodput over what was planned below which a link is reported. Judgement: exchanges come within 1.25 of their limit in our own
measurements, 0.1% loss included, so 0.8 of the plan is still to be had on a link that is as described."""
LATE: Final = 1.25
"""Step time over the predicted one. Judgement: twice the planner's median error on published runs."""
STRAGGLING: Final = 1.3
"""A region's own time of a step over the fastest region's. Judgement."""
LOSSY: Final = 1e-3
"""Segments sent again, as a share of those sent. From about here cubic falls below a 1 Gb/s link at 60 ms (`isthmus link`)."""
_SEGMENT_BYTES = 1448.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast things are noticed.

    Attributes:
        scrape_s: Between two looks at a rank.
        window_s: Over which rates are taken; several scrapes.
        hold_s: How long something must be so before somebody is told.
    """

    scrape_s: int = 15
    window_s: int = 300
    hold_s: int = 300


PACE: Final = Pace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one direction of a route should carry while it is at work.

    Attributes:
        rate_bytes_per_s: Of the fabric.
        goodput_bytes_per_s: Of exchanges of the plan's size: their bytes over their time at that rate and one round trip.
    """

    src: str
    dst: str
    rate_bytes_per_s: float
    rtt_s: float
    goodput_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What rules and dashboard take from plan and sites.

    Attributes:
        step_s: Predicted; 0 where the plan predicts nothing.
        tokens_per_s: Likewise.
        ranks: Of each region, by name.
        links: Both directions of every route that the plan's exchanges use.
    """

    name: str
    step_s: float
    tokens_per_s: float
    ranks: dict[str, int]
    links: tuple[Link, ...]


def planned_of(request: Request) -> Planned:
    """What `request` promises."""
    plan, strategy = request.plan, request.plan.strategy
    exchange = plan.prediction.wan_bytes_per_step
    if strategy.kind == "local-steps":
        exchange *= strategy.inner_steps / strategy.fragments
    links: list[Link] = []
    for route in wan_routes(request.sites.fabric):
        rate, rtt = route.rate_bytes_per_s, route.rtt_s
        goodput = exchange / (exchange / rate + rtt) if exchange else rate
        for src, dst in (route.between, route.between[::-1]):
            links.append(Link(src=src, dst=dst, rate_bytes_per_s=rate, rtt_s=rtt, goodput_bytes_per_s=goodput))
    return Planned(
        name=f"{plan.fabric}, {strategy.name}",
        step_s=plan.prediction.step_s,
        tokens_per_s=plan.prediction.tokens_per_s,
        ranks={site.name: site.ranks for site in request.sites.sites},
        links=tuple(links),
    )


def rules(planned: Planned, pace: Pace = PACE) -> dict[str, Any]:
    """rules.yml."""
    every = f"{pace.scrape_s}s"
    return {
        "groups": [
            {"name": "isthmus", "interval": every, "rules": [*_recorded(pace), *_planned(planned)]},
            {"name": "isthmus-alerts", "interval": every, "rules": alerts(planned, pace)},
        ]
    }


def _recorded(pace: Pace) -> Iterator[dict[str, Any]]:
    def rate(name: str) -> str:
        return f"rate(isthmus_{name}[{pace.window_s}s])"

    steps, seconds = rate("step_seconds_count"), rate("step_seconds_sum")
    waiting, sent, busy = rate("waiting_seconds_total"), rate("link_sent_bytes_total"), rate("link_busy_seconds_total")
    steps, seconds, waiting = (f"sum by (region) ({each})" for each in (steps, seconds, waiting))
    resent, flow = f"sum by (region, peer) ({rate('link_retransmits_total')})", f"sum by (region, peer) ({sent})"
    found = {
        "isthmus:step_seconds": f"{seconds} / ({steps} > 0)",
        "isthmus:own_step_seconds": f"({seconds} - {waiting}) / ({steps} > 0)",
        "isthmus:waiting_ratio": f"{waiting} / ({seconds} > 0)",
        "isthmus:tokens_per_second": f"sum by (region) ({rate('tokens_total')})",
        "isthmus:link_sent_bytes_per_second": flow,
        # Ranks of a region share the link at the same time, so what each sends while it is busy adds up.
        "isthmus:link_goodput_bytes_per_second": f"sum by (region, peer) ({sent} / ({busy} > 0))",
        "isthmus:link_busy_ratio": f"max by (region, peer) ({busy})",
        "isthmus:link_retransmit_ratio": f"{resent} * {_SEGMENT_BYTES:g} / ({flow} > 0)",
    }
    return ({"record": name, "expr": expression} for name, expression in found.items())


def _planned(planned: Planned) -> Iterator[dict[str, Any]]:
    yield {"record": "isthmus:plan_step_seconds", "expr": f"vector({planned.step_s:.9g})"}
    yield {"record": "isthmus:plan_tokens_per_second", "expr": f"vector({planned.tokens_per_s:.9g})"}
    for link in planned.links:
        yield {
            "record": "isthmus:plan_link_goodput_bytes_per_second",
            "expr": f"vector({link.goodput_bytes_per_s:.9g})",
            "labels": {"region": link.src, "peer": link.dst},
        }


def alerts(planned: Planned, pace: Pace = PACE) -> list[dict[str, Any]]:
    """Every alert; those that compare with the prediction only where the plan predicts."""
    found = [*_link_alerts(planned), *_run_alerts(planned, pace)]
    if planned.step_s > 0:
        found.append(
            _alert(
                "IsthmusStepSlowerThanPlan",
                f"isthmus:step_seconds / on () group_left () isthmus:plan_step_seconds > {LATE}",
                "warning",
                "a step in {{ $labels.region }} takes {{ $value | humanize }} times the planned " + show_seconds(planned.step_s),
                "isthmus:waiting_ratio says whether the WAN is to blame; if not, look for a slow node: isthmus doctor",
            )
        )
    for alert in found:
        alert["for"] = f"{pace.hold_s}s"
    return found


def _link_alerts(planned: Planned) -> Iterator[dict[str, Any]]:
    if not planned.links:
        return
    goodput, plan = "isthmus:link_goodput_bytes_per_second", "isthmus:plan_link_goodput_bytes_per_second"
    slowest = min(planned.links, key=lambda link: link.rate_bytes_per_s)
    yield _alert(
        "IsthmusWanBelowPlan",
        f"{goodput} / on (region, peer) {plan} < {BELOW_PLAN} and on (region, peer) isthmus:link_busy_ratio > 0.05",
        "warning",
        "{{ $labels.region }} to {{ $labels.peer }} carries {{ $value | humanizePercentage }} of what was planned while it sends",
        "compare loss, RTT and window with `isthmus link`; other traffic on the link; a stream short of buffer (sysctl);"
        f" the slowest link was planned at {show_rate(slowest.rate_bytes_per_s)}",
    )
    yield _alert(
        "IsthmusWanLosesPackets",
        f"isthmus:link_retransmit_ratio > {LOSSY}",
        "warning",
        "{{ $labels.region }} to {{ $labels.peer }}: {{ $value | humanizePercentage }} of segments are sent again",
        "cubic falls off from here: bbr, more streams, or find who drops (interface and switch counters)",
    )


def _run_alerts(planned: Planned, pace: Pace) -> Iterator[dict[str, Any]]:
    regions = len(planned.ranks)
    yield _alert(
        "IsthmusRegionLost",
        f"max(isthmus_regions) < {regions}",
        "critical",
        f"{{{{ $value }}}} of {regions} regions train together",
        "the others train on; the lost region's own log and job say why. It comes back by itself once it is started again",
    )
    for region, ranks in planned.ranks.items():
        alert = _alert(
            "IsthmusRanksSilent",
            f'(count(up{{job="isthmus",region="{region}"}} == 1) or vector(0)) < {ranks}',
            "critical",
            f"{{{{ $value }}}} of {ranks} ranks of {region} answer",
            "are the ranks there, and does the node's Prometheus reach the central one?",
        )
        alert["labels"]["region"] = region
        yield alert
    yield _alert(
        "IsthmusTrainingStandsStill",
        f"sum by (region) (increase(isthmus_steps_total[{pace.window_s}s])) == 0",
        "critical",
        "{{ $labels.region }} has taken no step",
        "kill -USR2 a rank to see where it stands; isthmus doctor on its log",
    )
    yield _alert(
        "IsthmusRegionStraggles",
        f"isthmus:own_step_seconds / on () group_left () min(isthmus:own_step_seconds) > {STRAGGLING}",
        "warning",
        "{{ $labels.region }} computes {{ $value | humanize }} times as long as the fastest region",
        "clocks, power and thermal limits, another job: isthmus doctor; weight: tokens lets it take fewer",
    )
    yield _alert(
        "IsthmusLossNotFinite",
        "isthmus_loss != isthmus_loss or abs(isthmus_loss) == Inf",
        "critical",
        "the loss on rank {{ $labels.rank }} of {{ $labels.region }} is {{ $value }}",
        "go back to a checkpoint from before; with a codec, try the same steps without",
    )
    yield _alert(
        "IsthmusTokensDiscarded",
        f"increase(isthmus_discarded_tokens_total[{pace.window_s}s]) > 0",
        "info",
        "{{ $labels.region }} threw {{ $value | humanize }} tokens of training away as it came back",
        "expected after it was lost for a while; often means a link that comes and goes",
    )


def _alert(name: str, expression: str, severity: str, summary: str, action: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": "0s",
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "action": action},
    }
