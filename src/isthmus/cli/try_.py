"""`isthmus try`: train for real on this machine, over an emulated WAN, and hold the prediction to account."""

from pathlib import Path
from typing import Annotated

import typer

from isthmus.errors import InputError

EXAMPLES = """Examples:

isthmus try examples/shenzhen-shanghai.yaml

isthmus try examples/shenzhen-shanghai.yaml --rate "100 Mb/s" --rtt "18 ms" --strategies flat,local-steps

isthmus try examples/shenzhen-shanghai.yaml --fault "12s: down shenzhen-shanghai 5s"

isthmus try examples/shenzhen-shanghai.yaml --script train.py

isthmus try --clean
"""


def try_(  # noqa: PLR0913, PLR0917 -- each parameter is one option of the command
    fabric: Annotated[Path | None, typer.Argument(help="The fabric to emulate, a fabric.yaml.", show_default=False)] = None,
    workload: Annotated[
        str, typer.Option(help="The real workload whose ratios are kept: a preset, workload.yaml or config.json.")
    ] = "llama-3-8b",
    strategies: Annotated[str, typer.Option(help="Comma-separated; run side by side.")] = "flat,hierarchical,int4,local-steps",
    minutes: Annotated[float, typer.Option(help="About how long the training runs may take together.", min=0.5, max=600)] = 4.0,
    rate: Annotated[str | None, typer.Option(help="Emulate this WAN rate instead of the scaled one, e.g. '100 Mb/s'.")] = None,
    rtt: Annotated[str | None, typer.Option(help="Emulate this RTT instead of the scaled one, e.g. '18 ms'.")] = None,
    script: Annotated[str | None, typer.Option(help="Your own training script and its arguments, instead of ours.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="A scripted fault, e.g. '12s: down a-b 5s'; may be repeated.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for plans, results.json and report.html.")] = Path(
        "isthmus-try"
    ),
    seed: Annotated[int, typer.Option(help="Seed of parameters and data order.")] = 0,
    clean: Annotated[bool, typer.Option("--clean", help="Remove what a killed run left behind, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json on stdout instead of the table.")] = False,
) -> None:
    """Train in the wind tunnel: real ranks, real TCP, the WAN emulated, strategies side by side."""
    if clean:
        from isthmus.emulate import clean as clean_up

        done = clean_up()
        typer.echo(f"removed {len(done.runs)} dead runs and {len(done.processes)} of their processes")
        for run in done.living:
            typer.echo(f"left alone, still running: {run}")
        return
    if fabric is None:
        raise InputError("isthmus try", "no fabric given", "e.g. isthmus try examples/shenzhen-shanghai.yaml")
    from isthmus.trial import TrialRequest, run_trial, show_results

    request = TrialRequest(
        fabric=fabric,
        workload=workload,
        strategies=tuple(name.strip() for name in strategies.split(",") if name.strip()),
        minutes=minutes,
        rate=rate,
        rtt=rtt,
        script=script,
        faults=tuple(fault or ()),
        output=output,
        seed=seed,
    )
    show_results(run_trial(request), as_json=as_json, output=output)
