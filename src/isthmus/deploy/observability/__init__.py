"""`isthmus deploy --to observability`: Prometheus, its rules with their own unit tests, and a Grafana dashboard, for one plan.

`rules` says what to record and when to raise an alarm, `rules_test` proves it with promtool, `dashboard` shows it, `scrape` is
who collects it from where. `check` looks at it on disk.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from isthmus.deploy.observability.dashboard import dashboard
from isthmus.deploy.observability.rules import PACE, Pace, planned_of, rules
from isthmus.deploy.observability.rules_test import rules_test
from isthmus.deploy.observability.scrape import central, node_config, targets_of
from isthmus.deploy.observability.words import readme
from isthmus.deploy.pieces import Finding, Piece
from isthmus.deploy.request import Request
from isthmus.errors import InputError

__all__ = ["check", "pieces"]


def pieces(request: Request, pace: Pace = PACE) -> tuple[Piece, ...]:
    """All files.

    Raises:
        InputError: A region's ranks do not export, or nothing is said of who receives from several nodes.
    """
    sites = request.sites
    for site in sites.sites:
        if site.entry.export_port is None:
            where = ("regions", site.name)
            raise sites.lines.error(where, "exports nothing", f"give export_port, such as export_port: 9600, to {site.name!r}")
    if sites.document.prometheus is None:
        hint = "give prometheus: host:port, such as prometheus: 10.1.0.3:9090, where every node can send to"
        raise InputError(str(sites.path), "names no Prometheus that receives what the nodes collect", hint)
    planned = planned_of(request)
    found = [
        Piece("README.md", readme(request, planned, pace)),
        Piece("central/prometheus.yml", _yaml(central(pace), "Receives from every node, and watches.")),
        Piece("central/rules.yml", _yaml(rules(planned, pace), "What is recorded, and when somebody is told.")),
        Piece("central/rules_test.yml", _yaml(rules_test(planned, pace), "promtool test rules rules_test.yml")),
        Piece("grafana/isthmus.json", json.dumps(dashboard(planned), indent=1, ensure_ascii=False) + "\n"),
        Piece("node/prometheus.yml", _yaml(node_config(sites.document.prometheus, pace), "On every node: collects and sends.")),
    ]
    for site in sites.sites:
        for node, text in targets_of(site):
            found.append(Piece(f"node/targets/{site.name}-{node.name}.json", text))
    return tuple(found)


def check(folder: Path, request: Request) -> list[Finding]:
    """Rules that are no longer the plan's, and files that are not YAML or JSON any more."""
    found: list[Finding] = []
    watched: dict[str, Any] = {}
    for path in sorted([*folder.glob("*/*.yml"), *folder.glob("*/*.json"), *folder.glob("node/targets/*.json")]):
        try:
            text = path.read_text(encoding="utf-8")
            content: Any = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
            watched |= content if path.name == "rules.yml" else {}
        except (ValueError, yaml.YAMLError) as error:
            found.append(Finding("error", str(path), f"cannot be read: {error}", "write the bundle anew"))
    ours, theirs = _planned(rules(planned_of(request))), _planned(watched)
    for name, expression in ours.items():
        if theirs.get(name) not in (None, expression):
            text = f"{name} is {theirs[name]}, the plan's is {expression}"
            found.append(Finding("error", str(folder / "central/rules.yml"), text, "write the bundle anew for this plan"))
    return found


def _planned(content: dict[str, Any]) -> dict[str, str]:
    """What was planned, as expressions; of links with their ends."""
    recorded = [rule for group in content.get("groups", []) for rule in group.get("rules", []) if "record" in rule]
    named = [(" ".join([rule["record"], *rule.get("labels", {}).values()]), rule["expr"]) for rule in recorded]
    return {name: expression for name, expression in named if name.startswith("isthmus:plan_")}


def _yaml(content: Any, note: str) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)  # pyright: ignore[reportUnknownMemberType]
    return f"# {note} Written by isthmus deploy.\n{text}"
