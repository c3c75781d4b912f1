"""`isthmus run`: start a plan's ranks, one region under torchrun, or all regions on this machine."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from isthmus.run import HereRequest, RegionState

EXAMPLES = """Examples:

isthmus run plan.yaml --here shenzhen=2,shanghai=2 -- train.py --steps 200       # all regions on this machine

isthmus run plan.yaml --members members.json --region shenzhen --nodes 2 --node-rank 0 --ranks-per-node 8
    --rendezvous 10.0.0.1:29400 -- train.py                                      # on every node of a real region
"""


def run(  # noqa: PLR0913, PLR0917 -- each parameter is one option of the command
    plan: Annotated[Path, typer.Argument(help="The plan to run, from `isthmus plan -o`.", show_default=False)],
    script: Annotated[list[str], typer.Argument(help="After --: the training script and its arguments.", show_default=False)],
    here: Annotated[str | None, typer.Option(help="Run all regions on this machine: REGION=RANKS,REGION=RANKS.")] = None,
    members: Annotated[Path | None, typer.Option(help="members.json: every region's rail addresses.")] = None,
    region: Annotated[str | None, typer.Option(help="The region this node belongs to.")] = None,
    nodes: Annotated[int, typer.Option(help="Nodes of the region.", min=1)] = 1,
    node_rank: Annotated[int, typer.Option(help="This node's number.", min=0)] = 0,
    ranks_per_node: Annotated[int, typer.Option(help="Ranks (GPUs) a node.", min=1)] = 1,
    rendezvous: Annotated[str, typer.Option(help="host:port where the region's nodes meet, on node 0.")] = "127.0.0.1:29400",
    restarts: Annotated[int, typer.Option(help="How often a failed region starts again.", min=0)] = 0,
    coordinator: Annotated[str | None, typer.Option(help="The store through which regions regroup after a loss.")] = None,
    keys: Annotated[Path | None, typer.Option(help="Folder of this region's certificate, from `isthmus keys`.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for logs and metrics.")] = Path("isthmus-run"),
    trace: Annotated[bool, typer.Option("--trace", help="Also record spans, for `isthmus trace`.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --here: print the outcome as JSON on stdout.")] = False,
) -> None:
    """Start a plan's ranks and look after them."""
    if (here is None) == (members is None):
        raise InputError("isthmus run", "give either --here, or --members and --region", "see isthmus run --help")
    if here is not None:
        from isthmus.run import HereRequest, parse_regions

        request = HereRequest(
            plan=plan, regions=parse_regions(here), folder=output, restarts=restarts, script=tuple(script), trace=trace
        )
        _show(request, as_json)
        return
    from isthmus.run import RegionRequest, region_command

    if region is None or members is None:
        raise InputError("--region", "is not given", "name this node's region of members.json")
    command, variables = region_command(
        RegionRequest(
            plan=plan, members=members, region=region, nodes=nodes, ranks_per_node=ranks_per_node, rendezvous=rendezvous,
            node_rank=node_rank, restarts=restarts, coordinator=coordinator, keys=keys, metrics=output / "metrics",
            script=tuple(script), trace=trace,
        )
    )  # fmt: skip
    print(f"isthmus: {' '.join(command)}", file=sys.stderr, flush=True)
    # torchrun takes this process's place, so that signals of Slurm or Kubernetes reach it and its exit code is ours.
    os.execve(command[0], command, {**os.environ, **variables})


def _show(request: "HereRequest", as_json: bool) -> None:
    import time

    from rich.console import Console
    from rich.live import Live

    from isthmus.report.run_table import run_table
    from isthmus.run import run_here
    from isthmus.watch import RegionFollower

    followers = [RegionFollower(request.folder / "metrics", name, count) for name, count in request.regions.items()]
    console, begun_s, shown_s = Console(stderr=True), time.monotonic(), 0.0
    if not console.is_terminal:
        console.width = 130  # logs are not folded

    def table(regions: "Sequence[RegionState]"):
        rows = [
            follower.row(
                alive=sum(process.poll() is None for process in state.processes.values()),
                restarts=state.restarts,
                failed=state.codes is not None and any(state.codes.values()),
            )
            for follower, state in zip(followers, regions, strict=True)
        ]
        return run_table(rows, f"{request.plan}, {time.monotonic() - begun_s:.0f} s")

    with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        last: Sequence[RegionState] = ()

        def watch(regions: "Sequence[RegionState]") -> None:
            nonlocal shown_s, last
            last = regions
            if console.is_terminal and time.monotonic() - shown_s > 0.5:
                shown_s = time.monotonic()
                live.update(table(regions), refresh=True)

        codes = run_here(request, watch)
        live.update(table(last), refresh=True)
    if not console.is_terminal:
        console.print(table(last))
    if as_json:
        print(json.dumps({"exit_codes": codes, "folder": str(request.folder)}, indent=1))
    failed = {name: found for name, found in codes.items() if any(found.values())}
    if failed:
        raise InfeasibleError(f"ranks failed: {failed}", f"their output stands in {request.folder}/*.log")
