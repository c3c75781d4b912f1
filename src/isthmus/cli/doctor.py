"""`isthmus doctor`: name the fault from what people's tools printed."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from isthmus import __version__
from isthmus.doctor.case import Expected
from isthmus.doctor.facts.bench import BenchmarkTable
from isthmus.doctor.judge import Report, diagnose
from isthmus.doctor.text import Document
from isthmus.errors import InputError

EXAMPLES = """Examples:

isthmus doctor nccl.log topo.txt

kubectl logs job/train | isthmus doctor -

isthmus doctor bundle.tar.gz --html ticket.html

isthmus doctor explain NVL-01

isthmus doctor env job.sbatch --nccl 2.27.3
"""

SUBCOMMANDS = {
    "explain": "isthmus.cli.doctor_explain:explain",
    "env": "isthmus.cli.doctor_env:env",
    "collect": "isthmus.cli.doctor_collect:collect",
    "routes": "isthmus.cli.doctor_routes:routes",
    "topology": "isthmus.cli.doctor_topology:topology",
}


_HARDWARE = frozenset(
    [
        "nvidia-smi -q",
        "nvidia-smi -L",
        "nvidia-smi topo -m",
        "nvidia-smi nvlink",
        "RDMA ports",
        "GID table",
        "port counters",
        "fabric manager",
    ]
)


def doctor(  # noqa: PLR0913
    paths: Annotated[list[str] | None, typer.Argument(help="Files, folders, bundles (tar.gz), or - for standard input.")] = None,
    *,
    live: Annotated[bool, typer.Option("--live", help="Ask this machine's tools now; everything only reads.")] = False,
    fabric: Annotated[Path | None, typer.Option("--fabric", help="A fabric.yaml to check the nodes against.")] = None,
    nccl: Annotated[str | None, typer.Option("--nccl", help="NCCL version, when no input names it.")] = None,
    fatal: Annotated[bool, typer.Option("--fatal", help="Exit 1 only where a finding is FATAL: no job can run.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show notes in full.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    sarif: Annotated[Path | None, typer.Option("--sarif", help="Write SARIF 2.1.0 here.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page for a ticket here.")] = None,
    kinds: Annotated[bool, typer.Option("--kinds", help="List the outputs that can be read.")] = False,
) -> None:
    """Read tools' outputs and name what is wrong, with evidence and fix. Exit 1 where there is more than a note.

    Also: isthmus doctor explain RULE | env [FILE] | collect -o BUNDLE | routes FILE | topology FILE.
    """
    if kinds:
        from isthmus.doctor.readers.kinds import KINDS

        print("\n".join(kind.name for kind in KINDS))
        return
    if not paths and not live:
        raise InputError("isthmus doctor", "nothing to read", "give files, a bundle, - for standard input, or --live")
    report = diagnose(_documents(paths or [], live), _expected(fabric), version_of(nccl))
    hardware = bool(_HARDWARE & {kind for file in report.files for kind in file.kinds})
    # A dead GPU may leave nothing but its line in the kernel's log.
    if live and not paths and not hardware and not any(finding.severity in {"FATAL", "ERROR"} for finding in report.findings):
        print("Nothing here to judge: no GPU, no NVSwitch and no RDMA device answered on this machine.")
        return
    try:
        finish(report, everything=everything, as_json=as_json, sarif=sarif, html=html)
    except typer.Exit:
        if fatal and not any(finding.severity == "FATAL" for finding in report.findings):
            return
        raise


def _documents(paths: list[str], live: bool) -> Iterator[Document]:
    from isthmus.doctor.live import live_documents
    from isthmus.doctor.sources import documents

    if live:
        yield from live_documents(lambda name: print(f"asking {name}", file=sys.stderr))
    yield from documents(paths, sys.stdin.buffer)


def _expected(fabric: Path | None) -> Expected | None:
    if fabric is None:
        return None
    from isthmus.cost.collectives_group import region_group, with_ranks
    from isthmus.cost.collectives_time import collective_time
    from isthmus.doctor.described import expected_of
    from isthmus.fabric import read_fabric
    from isthmus.formats.collective_runs import Collective, bus_factor

    described = read_fabric(fabric)
    if len({(g.gpus, g.nics, g.nic.kind if g.nic else "") for region in described.regions for g in region.groups}) > 1:
        return expected_of(described, str(fabric), None)

    def busbw(table: BenchmarkTable) -> float | None:
        """GB/s at the largest size; None for an operation that is not priced, or ranks that do not fill the region in turn."""
        names: dict[str, Collective] = {
            "": "all-reduce", "all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
            "broadcast": "broadcast", "alltoall": "all-to-all",
        }  # fmt: skip
        name = names.get(table.operation)
        if name is None or table.ranks < 2:
            return None
        try:
            group = with_ranks(region_group(described, described.regions[0].name), table.ranks)
        except ValueError:
            return None
        size = max(row.size_bytes for row in table.rows)
        return bus_factor(name, table.ranks) * size / collective_time(name, size, group).seconds / 1e9

    return expected_of(described, f"{fabric}, as `isthmus collective` predicts it", busbw)


def version_of(text: str | None) -> tuple[int, ...] | None:
    """`2.27.3` -> (2, 27, 3). Raises InputError."""
    if text is None:
        return None
    parts = text.split("+")[0].split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts):
        raise InputError("--nccl", f"{text!r} is no version", "e.g. 2.27.3")
    return tuple(int(part) for part in parts)


def finish(report: Report, *, everything: bool, as_json: bool, sarif: Path | None, html: Path | None) -> None:
    """Write the report in every form that was asked for; exit 1 above INFO, 2 when nothing at all could be read."""
    from isthmus.doctor import machine, page

    if sarif:
        sarif.write_text(json.dumps(machine.as_sarif(report, __version__), indent=2), encoding="utf-8")
    if html:
        html.write_text(page.as_html(report, __version__), encoding="utf-8")
    if as_json:
        print(json.dumps(machine.as_json(report), indent=2, ensure_ascii=False))
    else:
        print_lines(report, everything=everything)
    if report.serious:
        raise typer.Exit(1)
    if report.files and all(file.refused for file in report.files):
        raise typer.Exit(2)


def print_lines(report: Report, *, everything: bool) -> None:
    """The report on a terminal, with colours where it is one."""
    from isthmus.doctor.show import report_lines

    show(report_lines(report, everything=everything))


def show(lines: Iterable[tuple[str, str]]) -> None:
    """Print styled lines."""
    from textwrap import wrap

    from rich.console import Console
    from rich.text import Text

    styles = {
        "FATAL": "bold white on red",
        "ERROR": "bold red",
        "WARN": "bold yellow",
        "INFO": "cyan",
        "dim": "dim",
        "bold": "bold",
    }
    console = Console(highlight=False, soft_wrap=True)
    for style, text in lines:
        # On a terminal long lines hang under their label; in a file or pipe each stays one line, for grep.
        wrapped = wrap(text, console.width, subsequent_indent=" " * 12, break_on_hyphens=False) if console.is_terminal else [text]
        for line in wrapped or [""]:
            console.print(Text(line, style=styles.get(style, "")))
