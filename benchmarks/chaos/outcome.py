"""How runs ended, fault by fault; kept in a file, so that many runs can be played a few at a time; and the table of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos.checks import Finding, Happened, losses, worst_gap_s
from chaos.faults import KINDS, Fault, Scenario
from chaos.history import History

__all__ = ["LOSS_BOUND", "Outcome", "describe", "keep", "row_of", "show"]

LOSS_BOUND = 0.02
Kept = dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """One run.

    Attributes:
        scenario: What was to be played.
        rows: What was, one a fault.
        findings: Laws that were broken.
        left: Faults that did not get their turn.
        step, loss: Last step, and the held-out loss after it (nats per byte).
        tokens: Committed, over all regions; without those of branches that gave way.
        calm_loss: The same without faults, after as many tokens.
        seconds: The run took; without the run without faults.
    """

    scenario: Scenario
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    findings: list[Finding] = field(default_factory=list[Finding])
    left: list[Fault] = field(default_factory=list[Fault])
    step: int = 0
    tokens: int = 0
    loss: float | None = None
    calm_loss: float | None = None
    seconds: float = 0.0

    def as_json(self) -> Kept:
        """For the file."""
        scenario = asdict(self.scenario) | {"faults": len(self.scenario.faults), "what": describe(self.scenario)}
        return {
            "scenario": scenario, "rows": self.rows, "findings": [asdict(finding) for finding in self.findings],
            "left": len(self.left), "step": self.step, "tokens": self.tokens, "loss": self.loss,
            "calm_loss": self.calm_loss, "seconds": self.seconds,
        }  # fmt: skip


def describe(scenario: Scenario) -> str:
    """One line."""
    regions = " ".join(f"{name}={ranks}" for name, ranks in scenario.regions.items())
    way = f"{scenario.mode} {scenario.codec}, {scenario.partition}, {scenario.store}"
    return f"{regions}, {way}, {'TLS' if scenario.tls else 'plain'}"


def row_of(each: Happened, history: History, next_s: float) -> dict[str, Any]:
    """One fault for the report: seconds until all were together again and that survivors stood still, tokens that were lost.

    `next_s`: when the next one began. `lost_tokens`: of the window of the region that was struck; `given_up_tokens`: rounds of
    branches that gave way.
    """
    fault = each.fault
    others = [region for region in history.regions() if region != fault.region]
    ended = [loss for loss in losses(history) if each.began_s - 1.0 <= loss.ended_s <= each.healed_s]
    own = [loss.tokens for loss in ended if loss.region == fault.region or fault.kind == "cut"]
    given_up = {
        (line["branch"], line["round"]): sum(line["counted"].values())
        for stretches in history.ranks.values()
        for stretch in stretches
        if stretch.discarded and each.began_s <= stretch.discarded["t"] <= each.healed_s
        for line in stretch.given_up()
    }
    return asdict(fault) | {
        "healed_s": each.healed_s - each.began_s, "lost_tokens": max([*own, 0]), "given_up_tokens": sum(given_up.values()),
        "idle_s": max((worst_gap_s(history, region, each.began_s, each.healed_s, next_s) for region in others), default=0.0),
    }  # fmt: skip


def keep(path: Path, runs: Mapping[int, Kept]) -> dict[int, Kept]:
    """Put runs into the file beside those that it has; all of them, by number."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    every = {int(run["scenario"]["number"]): run for run in known} | dict(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([every[number] for number in sorted(every)], indent=1), encoding="utf-8")
    return every


def show(runs: Mapping[int, Kept]) -> int:
    """Print every run, a table of kinds, and every finding; 1 when something was found or left out."""
    for number in sorted(runs):
        _show_run(number, runs[number])
    rows = [row for run in runs.values() for row in run["rows"]]
    print(f"\nat most:{'played':>13s} {'survivors stood still':>22s} {'all together after':>19s} {'lost of its window':>19s}")
    for kind in KINDS:
        own = [row for row in rows if row["kind"] == kind]
        if own:
            idle_s, healed_s, lost = (max(row[name] for row in own) for name in ("idle_s", "healed_s", "lost_tokens"))
            given_up = sum(row["given_up_tokens"] for row in own)
            more = f", {given_up} in all of branches that gave way" if given_up else ""
            print(f"{kind:14s} {len(own):6d} {idle_s:20.1f} s {healed_s:17.1f} s {lost:12d} tokens{more}")
    ratios = [run["loss"] / run["calm_loss"] for run in runs.values() if run["loss"] and run["calm_loss"]]
    if ratios:
        span = f"{min(ratios):.4f} to {max(ratios):.4f}"
        print(f"final held-out loss: {span} x that of the same run without faults after as many tokens")
    wrong, left = sum(len(run["findings"]) for run in runs.values()), sum(run["left"] for run in runs.values())
    print(f"{len(rows)} faults in {len(runs)} runs; {wrong} findings; {left} faults did not get their turn")
    return int(wrong + left > 0)


def _show_run(number: int, run: Kept) -> None:
    line = f"run {number} ({run['scenario']['what']}): {len(run['rows'])} faults in {run['seconds']:.0f} s"
    if run["loss"] and run["calm_loss"]:
        line += f", held-out loss {run['loss']:.4f} after {run['tokens']} tokens"
        line += f" = {run['loss'] / run['calm_loss']:.4f} x without faults"
    print(line)
    for finding in run["findings"]:
        print(f"  {finding['law']}: {finding['text']}")
