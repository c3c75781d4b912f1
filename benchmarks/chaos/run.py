"""Scripted faults against runs of the demo's model in the wind tunnel, and what the laws of `checks.py` say.

    python benchmarks/chaos/run.py [--faults 200] [--seed 0] [--per-run 10] [--sample] [--runs 0-3] [--results FILE]

A run trains over 2, 3 or 4 regions (one of them with two ranks): local steps in lockstep, with a grace or in the background, or
every step; with the built-in coordinator or three members of etcd; in the clear or with TLS; two sides that cannot reach each
other wait or go on apart. Each fault begins when two rounds of all regions have passed since the last one healed. The final
held-out loss is compared with that of the same run without faults after as many committed tokens: while a region is away a
step counts fewer of them, so that steps would be compared with ones of more data. `--sample` is for CI: 20 faults in three
runs, one freeze, other waits shortened. With `--results` runs are kept in a file, and the report is of all that it holds.
"""

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos.checks import Finding, Happened, Rules, check
from chaos.faults import KINDS, Scenario, draw
from chaos.fleet import (
    BATCH,
    DETECT_S,
    POSITIONS,
    STEP_S,
    Fleet,
    Setup,
    grace_s,
    inner_steps,
    links_of,
    nodes_of,
    window_tokens,
)
from chaos.history import History, read_history
from chaos.nursery import Nursery
from chaos.outcome import LOSS_BOUND, Outcome, describe, keep, row_of, show
from chaos.play import Player, StuckError
from isthmus.emulate import open_tunnel

SYNC_S = 0.2  # of a round over the thin links


def run_scenario(scenario: Scenario, nursery: Nursery, folder: Path) -> Outcome:
    """Train over the scenario's regions, play its faults, and check everything."""
    outcome, begun_s, happened = Outcome(scenario), time.monotonic(), list[Happened]()
    with open_tunnel(nodes_of(scenario), links_of(scenario), seed=scenario.number) as tunnel:
        fleet = Fleet(tunnel, nursery, scenario, Setup(folder=folder))
        try:
            fleet.start()
            play_all(fleet, happened)
            outcome.findings += bad_ends(fleet)
        except StuckError as error:
            outcome.findings.append(Finding("stuck", f"{error}; {folder} has the logs"))
            fleet.show_stacks()
        finally:
            fleet.end()
    history = read_history(fleet.metrics)
    mode = scenario.mode
    rules = Rules(
        detect_s=DETECT_S, grace_s=grace_s(scenario), whole=mode in ("lockstep", "every-step"),
        branches=scenario.partition == "continue", slow_s=10 * (inner_steps(scenario) * STEP_S + SYNC_S),
        window_tokens=window_tokens(scenario),
    )  # fmt: skip
    outcome.findings += check(history, happened, rules)
    begins = [*(each.began_s for each in happened[1:]), math.inf]
    outcome.rows = [row_of(each, history, next_s) for each, next_s in zip(happened, begins, strict=False)]
    outcome.left = list(scenario.faults[len(happened) :])
    outcome.step, outcome.loss = final_loss(history)
    outcome.tokens = max(((line["t"], line["total"]) for _, _, line in history.rounds()), default=(0.0, 0))[1]
    outcome.seconds = time.monotonic() - begun_s
    return outcome


def play_all(fleet: Fleet, happened: list[Happened]) -> None:
    """Every fault of the scenario, and the orderly end of every rank."""
    player, begun_s = Player(fleet), time.monotonic()
    player.begin()
    print(f"  trains after {time.monotonic() - begun_s:.1f} s", file=sys.stderr)
    for fault in fleet.scenario.faults:
        happened.append(player.play(fault))
        took_s = happened[-1].healed_s - happened[-1].began_s
        text = f"  fault {fault.number}: {fault.kind} {fault.region or 'store'}, whole again after {took_s:.1f} s"
        print(text, file=sys.stderr, flush=True)
    player.finish()


def bad_ends(fleet: Fleet) -> list[Finding]:
    """Ranks that did not end with status 0."""
    return [
        Finding("ending", f"{region}-{rank} ended with status {process.poll()}")
        for (region, rank), process in fleet.ranks.items()
        if process.poll() != 0
    ]


def final_loss(history: History) -> tuple[int, float | None]:
    """Step and held-out loss of the last evaluation."""
    found = [line for stretches in history.ranks.values() for stretch in stretches for line in stretch.evaluations]
    last = max(found, key=lambda line: line["step"], default=None)
    return (last["step"], last["loss"]) if last else (0, None)


def calm_loss(scenario: Scenario, steps: int, nursery: Nursery, folder: Path) -> float:
    """Held-out loss of the same run without faults after `steps`; the store and TLS cannot matter to it.

    Nor can the links' speed, but with a grace: there regions train on while a round is under way, so that windows are as long
    as rounds take.
    """
    begun_s, plain = time.monotonic(), replace(scenario, partition="wait", store="coordinator", tls=False, faults=())
    with open_tunnel(nodes_of(plain), links_of(plain, calm=scenario.mode != "grace")) as tunnel:
        fleet = Fleet(tunnel, nursery, plain, Setup(folder=folder, calm_steps=steps))
        try:
            fleet.start()
            Player(fleet).finish()
            assert not bad_ends(fleet), f"the run without faults failed: see {folder}"
        finally:
            fleet.end()
    step, loss = final_loss(read_history(fleet.metrics))
    assert step == steps, (step, steps)
    assert loss is not None, folder
    print(f"  the same without faults took {time.monotonic() - begun_s:.1f} s", file=sys.stderr)
    return loss


def compare(outcome: Outcome, nursery: Nursery, folder: Path) -> None:
    """Note the loss without faults, and whether the run's is too far above."""
    if outcome.loss is None:
        return
    step_tokens, inner = BATCH * POSITIONS * sum(outcome.scenario.regions.values()), inner_steps(outcome.scenario)
    steps = inner * max(1, round(outcome.tokens / step_tokens / inner))
    outcome.calm_loss = calm_loss(outcome.scenario, steps, nursery, folder)
    ratio = outcome.loss / outcome.calm_loss
    if ratio > 1 + LOSS_BOUND:
        outcome.findings.append(Finding("loss", f"{outcome.loss:.4f}, {ratio:.4f} x {outcome.calm_loss:.4f} without faults"))


def chosen(arguments: argparse.Namespace) -> tuple[Scenario, ...]:
    """The scenarios asked for."""
    if arguments.sample:
        scenarios = draw(arguments.seed, 20, per_run=7, shrink=0.3, freezes_max=1)
    else:
        scenarios = draw(arguments.seed, arguments.faults, per_run=arguments.per_run)
    if arguments.runs:
        first, _, last = arguments.runs.partition("-")
        scenarios = tuple(each for each in scenarios if int(first) <= each.number <= int(last or first))
    left_out = set(KINDS) - set(arguments.only or KINDS)
    if os.geteuid() != 0 and "disk-full" not in left_out:
        print("chaos: disk-full faults are left out: a small file system to fill is root's to mount", file=sys.stderr)
        left_out.add("disk-full")
    return tuple(replace(each, faults=tuple(fault for fault in each.faults if fault.kind not in left_out)) for each in scenarios)


def main() -> int:
    """Draw, play, check; exit 1 when a law was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-run", type=int, default=10)
    parser.add_argument("--sample", action="store_true", help="20 faults in three runs, for CI")
    parser.add_argument("--only", action="append", choices=KINDS, help="play only these kinds")
    parser.add_argument("--runs", metavar="A-B", help="play only the runs of these numbers")
    parser.add_argument("--no-calm", action="store_true", help="do not compare losses with runs without faults")
    parser.add_argument("--results", type=Path, help="keep the runs in this file (JSON), and report all that it holds")
    parser.add_argument("--report", action="store_true", help="play nothing: report what --results holds")
    arguments = parser.parse_args()
    if arguments.report:
        return show(keep(arguments.results, {}))
    folder, begun_s, runs = Path(tempfile.mkdtemp(prefix="isthmus-chaos-")), time.monotonic(), {}
    print(f"chaos: seed {arguments.seed}, files in {folder}", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended all the same
    nursery = Nursery("chaos.rank:preload", "chaos.proxy:preload")
    try:
        for scenario in chosen(arguments):
            print(f"run {scenario.number}: {describe(scenario)}", file=sys.stderr, flush=True)
            outcome = run_scenario(scenario, nursery, folder / f"run-{scenario.number}")
            if not arguments.no_calm:
                compare(outcome, nursery, folder / f"calm-{scenario.number}")
            runs[scenario.number] = outcome.as_json()
            if arguments.results:
                keep(arguments.results, runs)
    finally:
        nursery.close()
    print(f"chaos: {time.monotonic() - begun_s:.0f} s in all", file=sys.stderr)
    return show(keep(arguments.results, runs) if arguments.results else runs)


if __name__ == "__main__":
    sys.exit(main())
