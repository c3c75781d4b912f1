"""How runs ended, fault by fault, and the table of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chaos.checks import Finding, Happened, losses, worst_gap_s
from chaos.faults import KINDS, Fault, Scenario
from chaos.history import History

__all__ = ["Outcome", "describe", "row_of", "show"]

LOSS_BOUND = 0.02


@dataclass(slots=True)
class Outcome:
    """One run: what was played, what was found, what did not get its turn, and the final held-out loss."""

    scenario: Scenario
    happened: list[Happened] = field(default_factory=list[Happened])
    findings: list[Finding] = field(default_factory=list[Finding])
    left: list[Fault] = field(default_factory=list[Fault])
    loss: float | None = None
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def describe(scenario: Scenario) -> str:
    """One line."""
    regions = " ".join(f"{name}={ranks}" for name, ranks in scenario.regions.items())
    return f"{regions}, {scenario.store}, {'TLS' if scenario.tls else 'plain'}"


def row_of(each: Happened, history: History) -> dict[str, Any]:
    """One fault for the report."""
    fault = each.fault
    others = [region for region in history.regions() if region != fault.region]
    own = [loss for loss in losses(history) if loss.region == fault.region]
    lost = [loss.tokens for loss in own if each.began_s - 1.0 <= loss.ended_s <= each.healed_s]
    return asdict(fault) | {
        "healed_s": each.healed_s - each.began_s, "lost_tokens": max([*lost, 0]),
        "idle_s": max((worst_gap_s(history, region, each.began_s, each.healed_s) for region in others), default=0.0),
    }  # fmt: skip


def show(outcomes: Sequence[Outcome], calm: Mapping[int, float]) -> int:
    """Print a table of kinds and every finding; 1 when something was found or left out.

    `calm`: final held-out loss without faults, by number of regions.
    """
    rows = [row for outcome in outcomes for row in outcome.rows]
    print(f"\nat most:{'played':>13s} {'survivors stood still':>22s} {'all together after':>19s} {'its region lost':>16s}")
    for kind in KINDS:
        own = [row for row in rows if row["kind"] == kind]
        if own:
            idle, healed, lost = (max(row[name] for row in own) for name in ("idle_s", "healed_s", "lost_tokens"))
            print(f"{kind:14s} {len(own):6d} {idle:20.1f} s {healed:17.1f} s {lost:9d} tokens")
    wrong = sum(_show_run(outcome, calm) for outcome in outcomes)
    left = sum(len(outcome.left) for outcome in outcomes)
    print(f"{len(rows)} faults in {len(outcomes)} runs; {wrong} findings; {left} faults did not get their turn")
    return int(wrong + left > 0)


def _show_run(outcome: Outcome, calm: Mapping[int, float]) -> int:
    """Print one run's lines; how many laws it broke."""
    scenario, wrong = outcome.scenario, len(outcome.findings)
    line = f"run {scenario.number} ({describe(scenario)}): {len(outcome.happened)} faults"
    reference = calm.get(len(scenario.regions))
    if outcome.loss is not None and reference is not None:
        ratio = outcome.loss / reference
        line += f", held-out loss {outcome.loss:.4f} = {ratio:.4f} x without faults"
        if ratio > 1 + LOSS_BOUND:
            wrong += 1
            line += f": ABOVE {1 + LOSS_BOUND:g}"
    print(line)
    for finding in outcome.findings:
        print(f"  {finding.law}: {finding.text}")
    return wrong
