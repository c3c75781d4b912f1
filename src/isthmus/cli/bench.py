"""`isthmus bench`: measure what the wind tunnel's predictions start from."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from isthmus.errors import InputError
from isthmus.units import BYTES, quantity

EXAMPLES = """Examples:

isthmus bench

isthmus bench --size "16 MB" --json
"""


def bench(
    size: Annotated[str, typer.Option(help="Size of the fp32 buffer the ranks of a region share.")] = "4 MB",
    regions: Annotated[int, typer.Option(help="Regions in the tunnel.", min=2, max=4)] = 2,
    ranks: Annotated[int, typer.Option(help="Ranks in each region.", min=1, max=8)] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Measure codec and in-region copy speed with all ranks at work at once, as in training."""
    from isthmus.bench import bench_speeds

    try:
        size_bytes = int(quantity(size, BYTES))
    except ValueError as error:
        raise InputError("--size", str(error)) from None
    if not 4096 <= size_bytes <= 10**9:
        raise InputError("--size", f"{size!r} is not within 4 kB and 1 GB")
    print("measuring: ranks start, then about ten seconds of work ...", file=sys.stderr)
    speeds = bench_speeds(regions, ranks, size_bytes)
    if as_json:
        print(json.dumps(asdict(speeds), indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{regions} regions x {ranks} ranks at once, {size} of fp32 a region; medians over ranks")
    table.add_column("what")
    table.add_column("GB/s of fp32", justify="right")
    for row in speeds.rows():
        table.add_row(row.name, f"{row.bytes_per_s / 1e9:.2f}")
    Console().print(table)
