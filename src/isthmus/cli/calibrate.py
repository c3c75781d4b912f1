"""`isthmus calibrate`: a fabric's measured collectives to constants that later predictions take."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from isthmus.calibrate.calibrate import Calibrated
from isthmus.calibrate.calibrate import calibrate as fit_runs
from isthmus.calibrate.describe import described
from isthmus.calibrate.wan import exchanges, measured_links
from isthmus.cost.collectives_calibration import Calibration, MeasuredLink, calibration_text, default_values
from isthmus.cost.collectives_constants import default_constants
from isthmus.errors import InputError
from isthmus.fabric import Fabric, read_fabric
from isthmus.formats.measurements import read_measured_runs
from isthmus.formats.wan_measurements import link_name, read_wan_lines
from isthmus.units import show_bytes, show_rate, show_seconds

EXAMPLES = """Examples:

isthmus calibrate all_reduce.log --fabric examples/one-node.yaml -o calibration.yaml

kubectl logs nccl-test-launcher > run.log; isthmus calibrate run.log --fabric fabric.yaml --region shanghai --nodes 4

isthmus calibrate inspector/*.log --fabric fabric.yaml -o calibration.yaml        # what NCCL's Inspector plugin dumped

isthmus calibrate measured/collectives.yaml measurements.jsonl --fabric fabric.yaml --json

isthmus calibrate wan.jsonl measurements.jsonl --fabric fabric.yaml -o calibration.yaml   # isthmus bench wan and collectives
"""

FAULTY = 0.30
"""A run that is off by more than this after its own fit does not behave like any system the model knows."""


def calibrate(  # noqa: PLR0913, PLR0917 -- each parameter is one option of the command
    files: Annotated[list[Path], typer.Argument(help="Logs of nccl-tests or rccl-tests, measured YAML, measurements.jsonl.")],
    fabric: Annotated[Path | None, typer.Option("--fabric", help="What they ran on; YAML runs may say it themselves.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Of the fabric; its first if left out.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Nodes of every run, where its log lists no hosts.")] = None,
    collective: Annotated[str | None, typer.Option("--collective", help="Of every run, where its log does not say.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write calibration.yaml here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the calibration and residuals as JSON.")] = False,
) -> None:
    """Fit the collective model to measurements of your own fabric.

    Shows which constants they pin down and which stay as shipped, what is left over of every run, and writes the constants with
    bands for `isthmus collective --calibration`. What `isthmus bench wan` measured becomes the rate and round trip of each link,
    which `isthmus plan --calibration` takes in place of those that the fabric states.
    """
    if output is not None and not output.parent.is_dir():
        raise InputError("--output", f"no such folder: {str(output.parent)!r}", "create it, or write elsewhere")
    known = read_fabric(fabric) if fabric else None
    links, exchange = _links(files, known)
    runs = [run for path in files for run in read_measured_runs(path)]
    left_out = [run for run in runs if run.left_out]
    used = [described(run, known, region, nodes, collective) for run in runs if not run.left_out]
    if used or not links:
        print(f"fitting {len(used)} runs ...", file=sys.stderr)
        found = fit_runs(used, default_constants(), default_values())
    else:
        found = Calibrated(moved=(), stayed=(), residuals=(), calibration=Calibration(version=1))
    with_links = found.calibration.model_copy(update={"wan": links, "exchange": exchange})
    found = replace(found, calibration=with_links)
    if output is not None:
        output.write_text(calibration_text(found.calibration), encoding="utf-8")
        print(f"calibration written to {output}", file=sys.stderr)
    for run in left_out:
        print(f"left out: {run.name}: {run.left_out}", file=sys.stderr)
    if as_json:
        print(json.dumps(_plain(found), indent=2))
        return
    console = Console()
    if links:
        _show_links(links, exchange, known, console)
    if used:
        _show(found, console)


def _links(files: list[Path], known: Fabric | None) -> tuple[dict[str, MeasuredLink], float | None]:
    rows = [row for path in files for row in read_wan_lines(path)]
    links = measured_links(rows, known)
    return links, exchanges(rows, links)[1]


def _show_links(links: dict[str, MeasuredLink], exchange: float | None, known: Fabric | None, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Links between regions", title_justify="left")
    for name in ("link", "what", "measured", "low", "high", "stated"):
        table.add_column(name, justify="left" if name in ("link", "what") else "right", overflow="fold")
    for name, each in links.items():
        of = next((link for link in known.wan if link_name(link.between) == name), None) if known else None
        rates = map(show_rate, (each.rate_bytes_per_s, each.rate_low_bytes_per_s, each.rate_high_bytes_per_s))
        times = map(show_seconds, (each.rtt_s, each.rtt_low_s, each.rtt_high_s))
        table.add_row(name, f"rate, {each.streams} streams", *rates, show_rate(of.rate_bytes_per_s) if of else "-")
        table.add_row("", "round trip", *times, show_seconds(of.rtt_s) if of else "-")
    console.print(table)
    if exchange is not None:
        console.print(f"An all-reduce over the regions takes {exchange:.2f} x the limit of these links (mean of the sizes).")


def _plain(found: Calibrated) -> dict[str, object]:
    rows = [
        {
            "run": each.run.name,
            "rows": each.rows,
            "median_error_before": each.before,
            "median_error_after": each.after,
            "worst_error": each.worst,
            "worst_size_bytes": each.worst_bytes,
        }
        for each in found.residuals
    ]
    moved = [{"name": each.name, "before": each.before, "after": each.after, "told": each.told} for each in found.moved]
    return {
        "calibration": found.calibration.model_dump(mode="json"),
        "identified": moved,
        "stayed": list(found.stayed),
        "residuals": rows,
    }


def _show(found: Calibrated, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Identified", title_justify="left")
    for name, right in (("constant", False), ("shipped", True), ("fitted", True), ("learned", True)):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for each in found.moved:
        table.add_row(each.name, _value(each.name, each.before), _value(each.name, each.after), f"{each.told:.0%}")
    console.print(table)
    console.print("[dim]learned: share of a constant's prior uncertainty that these measurements took away.[/]")
    console.print(f"[bold]Stay as shipped[/] {', '.join(found.stayed) or 'none'}\n")
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Residuals, |predicted / measured - 1|", title_justify="left")
    for name in ("run", "rows", "median before", "median after", "worst after", "at"):
        rows.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    for each in found.residuals:
        where = show_bytes(each.worst_bytes)
        rows.add_row(each.run.name, str(each.rows), f"{each.before:.1%}", f"{each.after:.1%}", f"{each.worst:+.1%}", where)
    console.print(rows)
    for each in found.residuals:
        if each.after > FAULTY:
            console.print(
                f"[yellow]{each.run.name}: no constants explain it. A fault, or settings that slow it? "
                "Leave the file out, or its band will be this wide.[/]"
            )
    for name, bands in found.calibration.bands.items():
        words = [
            f"{label} {low - 1:+.0%} to {high - 1:+.0%}"
            for label, pair in (("from 128 MB", bands.wire), ("from 8 MB", bands.large), ("below", bands.small))
            if pair
            for low, high in (pair,)
        ]
        console.print(f"[bold]Band p10-p90[/] {name}: {', '.join(words)}")


def _value(name: str, value: float) -> str:
    if name.endswith("_s"):
        return f"{value * 1e6:.3g} us"
    return f"{value / 1e9:.4g} G" if value >= 1e8 else f"{value / 1e6:.4g} M" if value >= 1e5 else f"{value:.3g}"


