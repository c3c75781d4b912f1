"""Scripted faults against runs of the demo trainer in the wind tunnel, and what the laws of `checks.py` say.

    python benchmarks/chaos/run.py [--faults 200] [--seed 0] [--per-run 10] [--sample] [--only KIND ...] [--json FILE]

A run trains over 2, 3 or 4 regions (one of them with two ranks), with the built-in coordinator or three members of etcd, in
the clear or with TLS. Each fault begins when two rounds of all regions have passed since the last one healed. The final
held-out loss is compared with that of a run of the same regions without faults. `--sample` is for CI: 20 faults in three
runs, waits shortened.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos.checks import Finding, Rules, check
from chaos.faults import KINDS, Scenario, draw
from chaos.fleet import DETECT_S, INNER, STEP_S, Fleet, Setup, grace_s, links_of, nodes_of, window_tokens
from chaos.history import History, read_history
from chaos.outcome import Outcome, describe, row_of, show
from chaos.play import Player, StuckError
from isthmus.emulate import open_tunnel

SECONDS_PER_RESTART, SECONDS_PER_FAULT, SECONDS_MORE, SYNC_S = 8.0, 6.0, 10.0, 0.2
END_LIMIT_S = 240.0


def run_scenario(scenario: Scenario, rounds: int, folder: Path) -> Outcome:
    """Train `rounds` rounds over the scenario's regions, playing its faults."""
    outcome = Outcome(scenario)
    with open_tunnel(nodes_of(scenario), links_of(scenario), seed=scenario.number) as tunnel:
        fleet = Fleet(tunnel, scenario, Setup(folder=folder, rounds=rounds))
        try:
            fleet.start()
            play_all(fleet, outcome)
            finish(fleet, outcome)
        except StuckError as error:
            outcome.findings.append(Finding("stuck", str(error)))
        finally:
            fleet.end()
    history = read_history(fleet.metrics)
    rules = Rules(
        detect_s=DETECT_S, grace_s=grace_s(scenario), slow_s=10 * (INNER * STEP_S + SYNC_S), window_tokens=window_tokens(scenario)
    )
    outcome.findings += check(history, outcome.happened, rules)
    outcome.loss = final_loss(history)
    outcome.rows = [row_of(each, history) for each in outcome.happened]
    return outcome


def play_all(fleet: Fleet, outcome: Outcome) -> None:
    """Every fault of the scenario, as long as training goes on."""
    player = Player(fleet)
    for number, fault in enumerate(outcome.scenario.faults):
        played = player.play(fault)
        if played is None:
            outcome.left += outcome.scenario.faults[number:]
            return
        outcome.happened.append(played)
        print(f"  fault {fault.number}: {fault.kind} {fault.region or 'store'}, whole again after "
              f"{played.healed_s - played.began_s:.1f} s", file=sys.stderr, flush=True)


def finish(fleet: Fleet, outcome: Outcome) -> None:
    """Wait for the orderly end of every rank."""
    player = Player(fleet)
    player.until(lambda: not any(fleet.alive(region) for region in fleet.scenario.regions), END_LIMIT_S, "the end of all ranks")
    for (region, rank), process in fleet.ranks.items():
        if process.returncode != 0:
            outcome.findings.append(Finding("ending", f"{region}-{rank} ended with status {process.returncode}"))


def final_loss(history: History) -> float | None:
    """Held-out loss of the last evaluation."""
    found = [line for stretches in history.ranks.values() for stretch in stretches for line in stretch.evaluations]
    return max(found, key=lambda line: line["step"])["loss"] if found else None


def rounds_of(per_run: int, shrink: float) -> int:
    """Enough for a run of `per_run` faults at the pace of an undisturbed run; the same for all runs, so that losses compare."""
    seconds = SECONDS_MORE + per_run * (SECONDS_PER_RESTART + SECONDS_PER_FAULT * shrink)
    return int(seconds / (INNER * STEP_S + SYNC_S))


def main() -> int:
    """Draw, play, check; exit 1 when a law was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-run", type=int, default=10)
    parser.add_argument("--sample", action="store_true", help="20 faults in three runs, for CI")
    parser.add_argument("--only", action="append", choices=KINDS, help="play only these kinds")
    parser.add_argument("--run", type=int, action="append", help="play only the runs of these numbers")
    parser.add_argument("--no-calm", action="store_true", help="do not compare losses with runs without faults")
    parser.add_argument("--json", type=Path, help="write every fault's row there")
    arguments = parser.parse_args()
    count, per_run, shrink = (20, 7, 0.3) if arguments.sample else (arguments.faults, arguments.per_run, 1.0)
    scenarios = draw(arguments.seed, count, per_run=per_run, shrink=shrink)
    scenarios = tuple(each for each in scenarios if arguments.run is None or each.number in arguments.run)
    if arguments.only:
        scenarios = tuple(
            replace(each, faults=tuple(fault for fault in each.faults if fault.kind in arguments.only)) for each in scenarios
        )
    if os.geteuid() != 0:
        print("chaos: disk-full faults are left out: a small file system to fill is root's to mount", file=sys.stderr)
        scenarios = tuple(
            replace(each, faults=tuple(fault for fault in each.faults if fault.kind != "disk-full")) for each in scenarios
        )
    folder = Path(tempfile.mkdtemp(prefix="isthmus-chaos-"))
    print(f"chaos: seed {arguments.seed}, files in {folder}", file=sys.stderr)
    outcomes: list[Outcome] = []
    calm: dict[int, float] = {}
    rounds = rounds_of(max(len(each.faults) for each in scenarios), shrink)
    for scenario in scenarios:
        print(f"run {scenario.number}: {describe(scenario)}", file=sys.stderr, flush=True)
        if not arguments.no_calm and len(scenario.regions) not in calm:
            still = run_scenario(replace(scenario, faults=()), rounds, folder / f"calm-{scenario.number}")
            outcomes.append(still)
            if still.loss is not None:
                calm[len(scenario.regions)] = still.loss
        outcomes.append(run_scenario(scenario, rounds, folder / f"run-{scenario.number}"))
    if arguments.json:
        arguments.json.write_text(json.dumps([row for outcome in outcomes for row in outcome.rows], indent=1), encoding="utf-8")
    return show(outcomes, calm)


if __name__ == "__main__":
    sys.exit(main())
