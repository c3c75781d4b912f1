"""The comparison as a table, and its verdict. Pure: runs in, lines out."""

import statistics
from collections.abc import Sequence

from measure import PHASES, RECOVERY_LIMIT_S, RTT_S, STEP_S, STEPS, Run

__all__ = ["show"]

GOALS = (("isthmus int4", "sync", 3.0), ("isthmus fp32", "sync", 1.0), ("isthmus fp32", "recovery", 3.0))


def limit_s(size_bytes: float, rate_bytes_per_s: float) -> float:
    """The least a sync of `size_bytes` each way takes on the link."""
    return size_bytes / (rate_bytes_per_s * 1448 / 1500) + RTT_S / 2


def median_sync_s(runs: Sequence[Run], name: str) -> float:
    """Median over all warm syncs of a contender."""
    return statistics.median(seconds for run in runs if run.contender == name for seconds in run.sync_s)


def median_recovery_s(runs: Sequence[Run], name: str, phase: str) -> float:
    """Median recovery; runs that did not recover, or were not made, count as endless."""
    found = [run.recovery_s for run in runs if run.contender == name and run.phase == phase] or [None]
    return statistics.median(float("inf") if seconds is None else seconds for seconds in found)


def show(runs: Sequence[Run], versions: dict[str, dict[str, str]], rate_bytes_per_s: float) -> int:
    """Print the table and the goals; 1 when one is missed."""
    print(f"\n100 MB of float32 between two regions, {rate_bytes_per_s * 8e-6:g} Mb/s and {RTT_S * 1e3:g} ms; "
          f"window {STEPS} steps of {STEP_S:g} s")
    print(f"limit of a sync in fp32 {limit_s(1e8, rate_bytes_per_s):.2f} s; " + "; ".join(
        f"{peer} {found[peer]} on torch {found['torch']}" for peer, found in versions.items()))
    phases = [phase for phase in PHASES if any(run.phase == phase for run in runs)]
    head = f"{'':20s} {'sync s (spread)':22s} {'MB one way':>10s}"
    print(head + "".join(f"  {'kill ' + phase + ': next sync s, lost':>36s}" for phase in phases))
    for name in dict.fromkeys(run.contender for run in runs):
        own = [run for run in runs if run.contender == name]
        syncs = [seconds for run in own for seconds in run.sync_s]
        spread = f"{statistics.median(syncs):.2f} ({min(syncs):.2f} to {max(syncs):.2f})"
        line = f"{name:20s} {spread:22s} {statistics.median(run.wire_bytes for run in own) / 1e6:10.1f}"
        for phase in phases:
            line += f"  {_recovery_words([run for run in own if run.phase == phase]):>36s}"
        print(line)
    return _verdict(runs, phases)


def _recovery_words(runs: Sequence[Run]) -> str:
    times = [float("inf") if run.recovery_s is None else run.recovery_s for run in runs]
    if not times:
        return "-"
    median = statistics.median(times)
    words = f"{median:.2f} ({min(times):.2f} to {max(times):.2f})" if median < float("inf") else f"none in {RECOVERY_LIMIT_S:g} s"
    return f"{words}, {statistics.median(run.lost_tokens for run in runs):.0f} tokens"


def _verdict(runs: Sequence[Run], phases: Sequence[str]) -> int:
    """Each goal against the best any peer showed with any of its settings."""
    names = {run.contender for run in runs}
    peers = sorted(name for name in names if not name.startswith("isthmus"))
    missed = False
    for name, what, goal in GOALS:
        if name not in names or not peers:
            continue
        for phase in phases if what == "recovery" else phases[:1]:
            def figure(who: str, what: str = what, phase: str = phase) -> float:
                return median_sync_s(runs, who) if what == "sync" else median_recovery_s(runs, who, phase)

            best = min(peers, key=figure)
            ratio = figure(best) / figure(name)
            missed |= ratio < goal
            where = f" ({phase})" if what == "recovery" else ""
            verdict = "met" if ratio >= goal else "MISSED"
            print(f"{name} {what}{where}: {ratio:.2f} x faster than {best}; goal >= {goal:g}: {verdict}")
    lost = sum(run.lost_tokens for run in runs if run.contender.startswith("isthmus"))
    if any(name.startswith("isthmus") for name in names):
        print(f"isthmus: {lost} tokens lost by survivors; goal 0: {'met' if lost == 0 else 'MISSED'}")
    return int(missed or lost > 0)
