"""`isthmus watch`: what a run does now, from the exporters of its ranks."""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.errors import InputError

if TYPE_CHECKING:
    from isthmus.deploy.observability.rules import Planned
    from isthmus.watch import Reading, Scraper

EXAMPLES = """Examples:

isthmus watch 127.0.0.1:9600-9607                                  # this node's ranks, as ISTHMUS_EXPORT names them

isthmus watch 127.0.0.1:9600-9607 --plan plan.yaml --sites sites.yaml      # against what was planned

isthmus watch 127.0.0.1:9600 127.0.0.1:9610 --once --json
"""


def watch(
    address: Annotated[list[str] | None, typer.Argument(help="host:port of a rank's exporter, or host:first-last.")] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="Show figures against this plan; with --sites.")] = None,
    sites: Annotated[Path | None, typer.Option("--sites", help="sites.yaml: the fabric, and where ranks export.")] = None,
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks.", min=0.2, max=3600)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, show the difference, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a look.")] = False,
) -> None:
    """Show regions, links, steps, waiting, and who is slow, again and again, until stopped."""
    from isthmus.watch import Scraper, parse_addresses

    if (plan is None) != (sites is None):
        raise InputError("isthmus watch", "--plan and --sites belong together", "give both, or neither")
    if not address:
        raise InputError("ADDRESS", "no exporter is given", "such as 127.0.0.1:9600-9607, as ISTHMUS_EXPORT or export_port says")
    planned = _planned(plan, sites) if plan is not None and sites is not None else None
    scraper = Scraper(parse_addresses(address))
    if once or as_json:
        _lines(scraper, planned, every, once=once, as_json=as_json)
    else:
        _live(scraper, planned, every)


def _planned(plan: Path, sites: Path) -> "Planned":
    from isthmus.deploy.observability.rules import planned_of
    from isthmus.deploy.request import Request
    from isthmus.deploy.sites import read_sites
    from isthmus.plan import load_plan

    return planned_of(Request(plan=load_plan(plan), plan_path=plan, sites=read_sites(sites)))


Readings = Mapping[tuple[str, int], "Reading"]


def _first(scraper: "Scraper") -> Readings:
    readings, silent = scraper.scrape()
    if not readings:
        (host, port), why = next(iter(silent.items()))
        hint = "ranks serve where ISTHMUS_EXPORT or export_port says, on loopback of their own node unless told otherwise"
        raise InputError("ADDRESS", f"none of {len(silent)} exporters answers; {host}:{port}: {why}", hint)
    return readings


def _lines(scraper: "Scraper", planned: "Planned | None", every_s: float, *, once: bool, as_json: bool) -> None:
    from rich.console import Console

    before = _first(scraper)
    while True:
        time.sleep(every_s)
        after, silent = scraper.scrape()
        if as_json:
            print(json.dumps(_as_json(before, after, silent, planned)), flush=True)
        else:
            Console().print(_shown(before, after, silent, planned))
        if once:
            return
        before = after


def _live(scraper: "Scraper", planned: "Planned | None", every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    before = _first(scraper)
    print(f"isthmus: {len(before)} of {len(scraper.addresses)} exporters answer; Ctrl-C ends", file=sys.stderr)
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            after, silent = scraper.scrape()
            live.update(_shown(before, after, silent, planned), refresh=True)
            before = after


def _shown(before: Readings, after: Readings, silent: Mapping[tuple[str, int], str], planned: "Planned | None") -> Any:
    from isthmus.watch import links_now, regions_now, watch_tables

    return watch_tables(
        regions_now(before, after),
        links_now(before, after),
        silent=[f"{host}:{port}: {why}" for (host, port), why in silent.items()],
        step_s=planned.step_s if planned else None,
        goodput_bytes_per_s=_goodputs(planned),
    )


def _goodputs(planned: "Planned | None") -> dict[tuple[str, str], float]:
    return {(link.src, link.dst): link.goodput_bytes_per_s for link in planned.links} if planned else {}


def _as_json(
    before: Readings, after: Readings, silent: Mapping[tuple[str, int], str], planned: "Planned | None"
) -> dict[str, Any]:
    from isthmus.watch import links_now, regions_now

    goodput = _goodputs(planned)
    found: dict[str, Any] = {
        "regions": [asdict(each) for each in regions_now(before, after)],
        "links": [asdict(each) for each in links_now(before, after)],
        "silent": {f"{host}:{port}": why for (host, port), why in silent.items()},
    }
    if planned is not None:
        found["plan"] = {"step_s": planned.step_s, "tokens_per_s": planned.tokens_per_s}
        for link in found["links"]:
            link["planned_goodput_bytes_per_s"] = goodput.get((link["region"], link["peer"]))
    return found
