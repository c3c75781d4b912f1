"""`isthmus catalog`: every figure of the catalogue with its unit, per what it counts, source and status."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isthmus.fabric.entries import Entry, entries, entry, kinds, sources

EXAMPLES = """Examples:

isthmus catalog

isthmus catalog gpus

isthmus catalog gpus h100-sxm5

isthmus catalog rtt shanghai/shenzhen --json
"""


def catalog(
    kind: Annotated[str | None, typer.Argument(help="What to list; all kinds if left out.")] = None,
    name: Annotated[str | None, typer.Argument(help="One entry of that kind.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Look up GPUs, links, switches, cables, cities, power: each number with its source."""
    chosen = _choose(kind, name)
    if as_json:
        print(
            json.dumps(
                {key: [_plain(each) for each in found] for key, found in chosen.items()},
                indent=2,
                ensure_ascii=False,
            )
        )
        return
    console = Console()
    if kind is None:
        console.print(_kinds_table(chosen))
    elif name is None:
        console.print(_entries_table(kind, chosen[kind]))
    else:
        console.print(_figures_table(chosen[kind][0]))
        console.print(_sources_table(chosen[kind][0]))


def _choose(kind: str | None, name: str | None) -> dict[str, list[Entry]]:
    if kind is None:
        return {key: list(entries(key).values()) for key in kinds()}
    return {kind: list(entries(kind).values()) if name is None else [entry(kind, name)]}


def _plain(found: Entry) -> dict[str, Any]:
    figures = {
        name: {**{key: value for key, value in asdict(figure).items() if key != "name"}, "si": figure.number}
        if isinstance(figure.value, int | float)
        else {key: value for key, value in asdict(figure).items() if key != "name"}
        for name, figure in found.figures.items()
    }
    used = sorted({key for figure in found.figures.values() for key in figure.sources})
    return {
        "name": found.name,
        "words": found.words,
        "figures": figures,
        "sources": {key: asdict(sources()[key]) for key in used},
    }


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _kinds_table(chosen: dict[str, list[Entry]]) -> Table:
    table = _table("isthmus catalog KIND [NAME]", "kind", "entries", "names")
    for kind, found in chosen.items():
        names = ", ".join(each.name for each in found)
        table.add_row(Text(kind), str(len(found)), Text(names if len(names) < 100 else f"{names[:97]}..."))
    return table


def _entries_table(kind: str, found: list[Entry]) -> Table:
    """One line a figure, so that a narrow terminal still shows every unit and status."""
    table = _table(kind, "name", "figure", "value", "unit", "per", "status")
    for each in found:
        for index, figure in enumerate(each.figures.values()):
            name = each.name if index == 0 else ""
            table.add_row(*map(Text, (name, figure.name, figure.text, figure.unit, figure.per, figure.status)))
    return table


def _figures_table(found: Entry) -> Table:
    table = _table(f"{found.kind} {found.name}", "figure", "value", "unit", "per", "source", "status")
    for name, word in found.words.items():
        table.add_row(Text(name), Text(word), "", "", "", "")
    for figure in found.figures.values():
        per = f"{figure.per} ({figure.note})" if figure.note else figure.per
        table.add_row(*map(Text, (figure.name, figure.text, figure.unit, per, ", ".join(figure.sources), figure.status)))
    return table


def _sources_table(found: Entry) -> Table:
    table = _table("sources", "source", "status", "title", "where")
    for key in sorted({key for figure in found.figures.values() for key in figure.sources}):
        source = sources()[key]
        table.add_row(*map(Text, (key, source.status, source.title, source.url)))
    return table
