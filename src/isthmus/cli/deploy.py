"""`isthmus deploy`: files for the engine that runs the regions, and their check."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.deploy.targets import TARGETS
from isthmus.errors import InputError

if TYPE_CHECKING:
    from isthmus.deploy.pieces import Finding
    from isthmus.deploy.request import FabricRequest, Request

EXAMPLES = """Examples:

isthmus deploy --sites-template fabric.yaml > sites.yaml                     # fill in names, addresses, folders

isthmus deploy plan.yaml --sites sites.yaml --to slurm -o bundle -- train.py --steps 10000

isthmus deploy plan.yaml --sites sites.yaml --to network -o network      # switches, adapters, TCP, clocks

isthmus deploy --check bundle
"""

_FOR = "For " + ", ".join(f"{name} ({each.summary})" for name, each in TARGETS.items()) + "."


def deploy(  # noqa: PLR0913, PLR0917 -- each parameter is one option of the command
    document: Annotated[Path | None, typer.Argument(help="The plan to hand over.", show_default=False)] = None,
    script: Annotated[list[str] | None, typer.Argument(help="After --: training script, arguments.", show_default=False)] = None,
    to: Annotated[str | None, typer.Option("--to", help=_FOR, show_default=False)] = None,
    sites: Annotated[Path | None, typer.Option("--sites", help="sites.yaml: nodes, addresses, folders.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for the bundle.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files there that were edited or are not ours.")] = False,
    health_check: Annotated[
        bool, typer.Option("--health-check/--no-health-check", help="Let the doctor look at every node before it starts.")
    ] = True,
    check: Annotated[Path | None, typer.Option("--check", help="Check a bundle on disk; needs no cluster.")] = None,
    sites_template: Annotated[
        Path | None, typer.Option("--sites-template", help="Print a sites.yaml to fill in, for this fabric.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written or found as JSON.")] = False,
) -> None:
    """Write what runs a plan on real clusters: per region complete, runnable files, and what to do with them in order."""
    if sites_template is not None:
        from isthmus.deploy.template import sites_template as template

        print(template(sites_template), end="")
    elif check is not None:
        _check(check, as_json)
    elif document is None or to is None or output is None:
        hint = "isthmus deploy plan.yaml --sites sites.yaml --to slurm -o bundle -- train.py; or --check, or --sites-template"
        raise InputError("isthmus deploy", "needs a document, --to and -o", hint)
    else:
        request = _request(document, to, sites, tuple(script or ()), health_check)
        _write(request, to, output, force=force, as_json=as_json)


def _request(
    document: Path, to: str, sites: Path | None, script: tuple[str, ...], health_check: bool
) -> "Request | FabricRequest":
    from isthmus.deploy.request import FabricRequest, Request
    from isthmus.deploy.sites import read_sites
    from isthmus.deploy.targets import target
    from isthmus.fabric import read_fabric
    from isthmus.plan import load_plan

    if target(to).takes == "fabric":
        return FabricRequest(fabric=read_fabric(document), fabric_path=document)
    if sites is None:
        hint = "isthmus deploy --sites-template fabric.yaml > sites.yaml, and fill it in"
        raise InputError("--sites", "is not given", hint)
    plan = load_plan(document)
    return Request(plan=plan, plan_path=document, sites=read_sites(sites), script=script, health_check=health_check)


def _write(request: "Request | FabricRequest", to: str, output: Path, *, force: bool, as_json: bool) -> None:
    from isthmus.deploy.checks import check_request
    from isthmus.deploy.folder import write_bundle
    from isthmus.deploy.request import Request
    from isthmus.deploy.targets import check_bundle, make_bundle, target

    if isinstance(request, Request):
        _stop_at_errors(check_request(request, starts=target(to).script))
    paths = write_bundle(make_bundle(to, request), output, force=force)
    found = check_bundle(output)
    _say(found, sys.stderr)
    _stop_at_errors(found, shown=True)
    if as_json:
        print(json.dumps({"target": to, "files": [str(path) for path in paths], "findings": _rows(found)}, indent=1))
        return
    for path in paths:
        print(path)
    print(f"Read {output / 'README.md'} next: what to do, in order.", file=sys.stderr)


def _check(folder: Path, as_json: bool) -> None:
    from isthmus.deploy.targets import check_bundle

    found = check_bundle(folder)
    if as_json:
        print(json.dumps({"folder": str(folder), "findings": _rows(found)}, indent=1, ensure_ascii=False))
    else:
        _say(found, sys.stdout)
        errors = sum(finding.severity == "error" for finding in found)
        counts = f"{_count(errors, 'error')}, {_count(len(found) - errors, 'warning')}"
        print(f"{folder}: {counts}", file=sys.stderr if errors else sys.stdout)
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(2)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _stop_at_errors(found: "list[Finding]", *, shown: bool = False) -> None:
    errors = [finding for finding in found if finding.severity == "error"]
    if errors and not shown:
        _say(errors, sys.stderr)
    if errors:
        raise typer.Exit(2)


def _say(found: "list[Finding]", stream: object) -> None:
    for finding in found:
        print(finding, file=stream)  # type: ignore[arg-type]


def _rows(found: "list[Finding]") -> list[dict[str, str]]:
    return [
        {"severity": finding.severity, "where": finding.where, "found": finding.found, "hint": finding.hint} for finding in found
    ]
