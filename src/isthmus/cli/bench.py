"""`isthmus bench`: measure a cluster's collectives, or what the wind tunnel's predictions start from."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from isthmus.errors import InputError, nearest
from isthmus.units import BYTES, quantity

if TYPE_CHECKING:
    from isthmus.formats.collective_runs import Collective

EXAMPLES = """Examples:

isthmus bench                                    # codecs and copies on this machine

torchrun --nproc-per-node 8 -m isthmus bench collectives --to "8 GB" -o measurements.jsonl

isthmus bench wan --here west=1,east=1               # the links between regions: see isthmus bench wan --help

torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint gpu-01:29400 -m isthmus bench collectives

isthmus calibrate measurements.jsonl --fabric fabric.yaml -o calibration.yaml
"""


SUBCOMMANDS = {"wan": "isthmus.cli.bench_wan:bench_wan"}


def bench(  # noqa: PLR0913, PLR0917 -- each parameter is one option of the command
    what: Annotated[
        Literal["speeds", "collectives"], typer.Argument(help="speeds: of this machine; collectives: under torchrun.")
    ] = "speeds",
    size: Annotated[str, typer.Option(help="speeds: the fp32 buffer the ranks of a region share.")] = "4 MB",
    regions: Annotated[int, typer.Option(help="speeds: regions in the tunnel.", min=2, max=4)] = 2,
    ranks: Annotated[int, typer.Option(help="speeds: ranks in each region.", min=1, max=8)] = 2,
    collective: Annotated[str, typer.Option(help="collectives: which, comma between them.")] = "all-reduce",
    least: Annotated[str, typer.Option("--from", "-b", help="collectives: the smallest size.")] = "1 MB",
    most: Annotated[str, typer.Option("--to", "-e", help="collectives: the largest size.")] = "1 GB",
    factor: Annotated[int, typer.Option("--factor", "-f", help="collectives: from one size to the next.", min=2, max=64)] = 2,
    iters: Annotated[int, typer.Option("--iters", "-n", help="collectives: timed calls a size.", min=1)] = 20,
    warmup: Annotated[int, typer.Option("--warmup", "-w", help="collectives: calls before them.", min=0)] = 5,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="collectives: append measurements.jsonl here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Measure codec and copy speed of this machine, or collectives among the ranks that torchrun started; also: `bench wan`.

    Collectives are printed in the columns of nccl-tests: time (us), algbw and busbw (GB/s), out of place and in place, and wrong
    elements. `isthmus calibrate` reads both the table and the measurements.
    """
    if what == "collectives":
        sizes = sizes_between(least, most, factor)
        _collectives(collective.split(","), sizes, warmup, iters, output, as_json=as_json)
    else:
        _speeds(_bytes("--size", size), size, regions, ranks, as_json=as_json)


def _bytes(option: str, text: str) -> int:
    try:
        return int(quantity(text, BYTES))
    except ValueError as error:
        raise InputError(option, str(error)) from None


def sizes_between(from_: str, to: str, factor: int) -> list[int]:
    """The sizes of `--from`, `--to`, `--factor`, in bytes.

    Raises:
        InputError: They are no range.
    """
    least, most = _bytes("--from", from_), _bytes("--to", to)
    if not 4 <= least <= most <= 1 << 40:
        raise InputError("--from", f"{least} to {most} bytes is no range", "at least 4 bytes, --to not below --from")
    found = [least]
    while found[-1] * factor <= most:
        found.append(found[-1] * factor)
    return found


def _collectives(names: list[str], sizes: list[int], warmup: int, iters: int, output: Path | None, *, as_json: bool) -> None:
    from isthmus.formats.collective_runs import COLLECTIVES

    for name in names:
        if name not in COLLECTIVES:
            raise InputError("--collective", f"unknown collective {name!r}", nearest(name, COLLECTIVES))
    if output is not None and not output.parent.is_dir():
        raise InputError("--output", f"no such folder: {str(output.parent)!r}", "create it, or write elsewhere")
    wanted = cast("list[Collective]", names)
    import torch.distributed as dist

    from isthmus.runtime.collective_bench import opened_world

    device = opened_world()
    try:
        for text, row in _measured(wanted, sizes, (warmup, iters), device):
            if dist.get_rank() != 0:
                continue
            if output is not None and row:
                with output.open("a", encoding="utf-8") as stream:
                    stream.write(f"{row}\n")
            if row or not as_json:
                print(row if as_json else text, flush=True)
    finally:
        dist.destroy_process_group()


def _measured(names: "list[Collective]", sizes: list[int], times: tuple[int, int], device: Any) -> Iterator[tuple[str, str]]:
    """What to print, and a line of measurements where there is one."""
    from isthmus.formats.nccl_table import Measured, table_foot, table_head, table_row
    from isthmus.runtime.collective_bench import fitting_sizes, measure, places

    where = places(device)
    ranks, nodes = len(where), len({each.host for each in where})
    warmup, iters = times
    for name in names:
        fitting, rows = fitting_sizes(sizes, ranks, name), list[Measured]()
        yield table_head(name, where, fitting, warmup=warmup, iters=iters), ""
        for row in measure(name, fitting, device, warmup=warmup, iters=iters):
            rows.append(row)
            said = {
                "collective": name, "ranks": ranks, "nodes": nodes, "size_bytes": row.size_bytes, "seconds": row.seconds,
                "source": f"isthmus bench on {where[0].name}",
            }  # fmt: skip
            yield table_row(name, ranks, row), json.dumps(said)
        yield table_foot(name, ranks, rows), ""


def _speeds(size_bytes: int, size: str, regions: int, ranks: int, *, as_json: bool) -> None:
    from isthmus.bench import bench_speeds

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
