"""`isthmus simulate`: a collective or a plan played as flows on the real graph of a fabric, beside the formula's answer."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.errors import InputError, nearest
from isthmus.fabric import Fabric, read_fabric
from isthmus.units import BYTES, FRACTION, QuantityError, Unit, quantity

__all__ = ["EXAMPLES", "rank_list", "simulate"]

EXAMPLES = """Examples:

isthmus simulate examples/clos-1024.yaml --collective all-reduce --bytes 1GB

isthmus simulate examples/clos-1024.yaml --collective all-to-all --bytes 64MB --ranks 0-255 --routing hash --seed 7

isthmus simulate examples/shenzhen-shanghai-8.yaml --bytes 1GB --fail shenzhen/node0/nic1

isthmus simulate examples/clos-1024.yaml --bytes 1GB --routing hash --fail 'ulanqab/leaf0/uplink*:up' --json

isthmus simulate examples/shenzhen-shanghai-8.yaml --plan plan.yaml --trace step.json

isthmus simulate examples/clos-1024.yaml --tuner-csv tuner.csv

isthmus simulate examples/clos-1024.yaml --ranks 0-511 --job all-to-all:512-1023 --bytes 1GB --trace trace.json
"""


def simulate(  # noqa: PLR0913, PLR0917
    fabric: Annotated[Path, typer.Argument(help="A fabric.yaml.", show_default=False)],
    collective: Annotated[
        str, typer.Option(help="all-reduce, reduce-scatter, all-gather, broadcast or all-to-all.")
    ] = "all-reduce",
    size: Annotated[str, typer.Option("--bytes", help="The whole buffer, as nccl-tests counts it.")] = "1 GB",
    algorithm: Annotated[
        str | None, typer.Option(help="hierarchical, ring, tree, burst (all pairs at once), shift (one pair at a time).")
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="GPUs that take part, such as 0-63,128; all if left out.")] = None,
    fail: Annotated[list[str] | None, typer.Option(help="Cut a cable by name, such as west/node0/nic1; * is any number.")] = None,
    weaken: Annotated[list[str] | None, typer.Option(help="Leave a cable a share of its rate: NAME=50%.")] = None,
    job: Annotated[
        list[str] | None, typer.Option(help="Another job that never stops sending: ring:0-63 or all-to-all:0-63.")
    ] = None,
    routing: Annotated[
        str | None, typer.Option(help="balanced, hash (ECMP) or destination; by the kind of network if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the hash that spreads flows.", min=0)] = 0,
    fold: Annotated[bool, typer.Option(help="Play equal flows once; changes only the time it takes.")] = True,
    plan: Annotated[Path | None, typer.Option(help="Play a step of this plan instead of a collective.")] = None,
    workload: Annotated[str | None, typer.Option(help="Of the plan, where it names none that is known here.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a timeline for ui.perfetto.dev.")] = None,
    tuner_csv: Annotated[
        Path | None, typer.Option(help="Write the chosen algorithms for NCCL's example tuner plugin, and play nothing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Play a collective as flows on the real graph of a fabric: links shared max-min fairly, ECMP, failures, other jobs.

    The table says where the time goes: by phase, the busiest link of each, and how full each level of the fabric is. The
    formula's answer stands beside it; they share what a link carries and what a hop takes, and nothing else.
    """
    from isthmus.cli.simulated import compared, result_of, show_result, spans_of, wired
    from isthmus.sim import COLLECTIVES

    described = read_fabric(fabric)
    if tuner_csv is not None:
        from isthmus.cli.simulated_tuner import write_tuner

        print(f"{tuner_csv}: {write_tuner(described, tuner_csv)} rules", file=sys.stderr)
        return
    if plan is not None:
        from isthmus.cli.simulated_plan import play_plan

        play_plan(described, plan, (workload, routing, fail or [], [_share(text) for text in weaken or []]), trace, as_json)
        return
    kinds = {kind: kind for kind in COLLECTIVES}
    if collective not in kinds:
        raise InputError("--collective", f"unknown collective {collective!r}", nearest(collective, kinds))
    chart = wired(described, routing, fail or [], [_share(text) for text in weaken or []])
    asked = _asked(described, kinds[collective], _quantity(size, BYTES, "--bytes"), (algorithm, ranks, seed))
    result = _played(chart, asked, job or [], fold)
    if trace is not None:
        from isthmus.formats.perfetto import trace_events

        spans = spans_of(result)
        trace.write_text(json.dumps(trace_events(spans), separators=(",", ":")), encoding="utf-8")
        print(f"{trace}: {len(spans)} spans", file=sys.stderr)
    shown = result_of(chart, asked, result, compared(described, asked))
    if as_json:
        print(json.dumps(shown, indent=2))
    else:
        show_result(shown)


def _played(chart: Any, asked: Any, jobs: list[str], fold: bool) -> Any:
    """Phases played with other jobs beside them; talks on stderr where it takes long."""
    from rich.console import Console

    from isthmus.sim import phases_of, play_phase
    from isthmus.sim.jobs import other_jobs, with_others

    others = other_jobs(chart, [(pattern, rank_list(text, chart.gpus, "--job")) for pattern, text in map(_job, jobs)], asked.seed)
    phases = [with_others(phase, others) for phase in phases_of(chart, asked)]
    batch = 0.0 if fold else 1e-3
    console = Console(stderr=True)
    played: list[Any] = []
    with console.status("playing") as status:
        for index, phase in enumerate(phases, 1):
            status.update(f"playing phase {index} of {len(phases)}: {phase.name} ({phase.streams:,} streams)")
            played.append(play_phase(phase, chart.capacity, fold, batch))
    return played


def _asked(fabric: Fabric, kind: Any, size: float, how: tuple[str | None, str | None, int]) -> Any:
    import numpy as np

    from isthmus.sim import ALGORITHMS, Collective

    algorithm, ranks, seed = how
    chosen = np.asarray(rank_list(ranks, fabric.gpus, "--ranks") if ranks else range(fabric.gpus), dtype=np.int64)
    return Collective(kind=kind, size_bytes=size, ranks=chosen, algorithm=algorithm or ALGORITHMS[kind][0], seed=seed)


def rank_list(text: str, gpus: int, argument: str) -> list[int]:
    """Ranks such as `0-63,128`, in rising order without repeats.

    Raises:
        InputError: Not numbers, or beyond the fabric's GPUs.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.strip().isdecimal() or (last and not last.strip().isdecimal()):
            raise InputError(argument, f"{part!r} is not a range of ranks", "write ranks such as 0-63,128")
        low, high = int(first), int(last or first)
        if low > high or high >= gpus:
            raise InputError(argument, f"{part!r}: ranks run from 0 to {gpus - 1}", f"e.g. 0-{gpus - 1}")
        found.update(range(low, high + 1))
    return sorted(found)


def _job(text: str) -> tuple[str, str]:
    pattern, colon, ranks = text.partition(":")
    if not colon or pattern not in ("ring", "all-to-all"):
        raise InputError("--job", f"{text!r} is not PATTERN:RANKS", "PATTERN is ring or all-to-all; e.g. --job ring:0-63")
    return pattern, ranks


def _share(text: str) -> tuple[str, float]:
    name, equals, share = text.rpartition("=")
    if not equals:
        raise InputError("--weaken", f"{text!r} is not NAME=SHARE", "e.g. --weaken west/node0/nic0=50%")
    return name, _quantity(share, FRACTION, "--weaken")


def _quantity(text: str, unit: Unit, argument: str) -> float:
    try:
        value = quantity(text, unit)
    except QuantityError as error:
        raise InputError(argument, error.found, error.hint) from None
    if value <= 0:
        raise InputError(argument, f"{text!r} is not above zero", f"e.g. {unit.example}")
    return value

