"""A Grafana dashboard of one run: what it does, against what was planned, and where its time goes."""

from dataclasses import dataclass, field
from typing import Any

from isthmus.deploy.observability.rules import Planned

__all__ = ["dashboard", "queries_of"]


@dataclass(frozen=True, slots=True)
class _Panel:
    """One graph.

    Attributes:
        unit: As Grafana names it.
        lines: (expression, legend).
    """

    title: str
    unit: str
    lines: list[tuple[str, str]]
    text: str = ""
    kind: str = "timeseries"
    width: int = 12
    most: dict[str, float] = field(default_factory=dict[str, float])


def _panels() -> list[_Panel]:
    return [
        _Panel("Regions together", "none", [("max(isthmus_regions)", "regions")], kind="stat", width=4),
        _Panel("Ranks that answer", "none", [('count by (region) (up{job="isthmus"} == 1)', "{{region}}")], kind="stat", width=8),
        _Panel("Tokens/s of all", "none", [("sum(isthmus:tokens_per_second)", "tokens/s")], kind="stat", width=4),
        _Panel("Alerts", "none", [('count(ALERTS{alertname=~"Isthmus.*",alertstate="firing"}) or vector(0)', "firing")],
               kind="stat", width=8),
        _Panel(
            "Step time", "s",
            [("isthmus:step_seconds", "{{region}}"), ("isthmus:plan_step_seconds", "planned")],
            "Mean over the window, communication that training waited for included.",
        ),
        _Panel(
            "Tokens per second", "none",
            [("isthmus:tokens_per_second", "{{region}}"), ("isthmus:plan_tokens_per_second", "planned, all regions")],
        ),
        _Panel(
            "Waiting for other regions", "percentunit", [("isthmus:waiting_ratio", "{{region}}")],
            "Share of step time in which training stood still for gradients or an outer sync.", most={"max": 1.0},
        ),
        _Panel(
            "Own time of a step", "s", [("isthmus:own_step_seconds", "{{region}}")],
            "Step time without waiting: which region is slow by itself.",
        ),
        _Panel(
            "Goodput while sending, against the plan", "Bps",
            [
                ("isthmus:link_goodput_bytes_per_second", "{{region}} to {{peer}}"),
                ("isthmus:plan_link_goodput_bytes_per_second", "planned {{region}} to {{peer}}"),
            ],
        ),
        _Panel("Sent to other regions", "Bps", [("isthmus:link_sent_bytes_per_second", "{{region}} to {{peer}}")]),
        _Panel("Round trip", "s", [("max by (region, peer) (isthmus_link_rtt_seconds)", "{{region}} to {{peer}}")]),
        _Panel(
            "Segments sent again", "percentunit", [("isthmus:link_retransmit_ratio", "{{region}} to {{peer}}")],
            "Above 0.1% cubic falls off.",
        ),
        _Panel(
            "Link busy", "percentunit", [("isthmus:link_busy_ratio", "{{region}} to {{peer}}")],
            "Share of time with something to send, of the busiest rank.", most={"max": 1.0},
        ),
        _Panel("Training loss", "none", [("avg by (region) (isthmus_loss)", "{{region}}")]),
        _Panel(
            "Outer syncs and generations", "none",
            [("max by (region) (isthmus_syncs_total)", "syncs {{region}}"), ("max(isthmus_generation)", "generation")],
        ),
        _Panel(
            "Tokens thrown away", "none", [("sum by (region) (isthmus_discarded_tokens_total)", "{{region}}")],
            "By regions that came back: what they had trained and nobody counted.",
        ),
    ]  # fmt: skip


def dashboard(planned: Planned) -> dict[str, Any]:
    """The dashboard as Grafana imports it; it asks for the data source."""
    panels: list[dict[str, Any]] = []
    x = y = 0
    for number, panel in enumerate(_panels(), 1):
        height = 4 if panel.kind == "stat" else 8
        if x + panel.width > 24:
            x, y = 0, y + (4 if panels[-1]["type"] == "stat" else 8)
        panels.append(_as_grafana(panel, number, {"x": x, "y": y, "w": panel.width, "h": height}))
        x += panel.width
    return {
        "title": f"isthmus: {planned.name}",
        "uid": "isthmus-run",
        "tags": ["isthmus"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}]
        },
        "annotations": {"list": []},
        "panels": panels,
    }


def _as_grafana(panel: _Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "type": panel.kind,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **panel.most}, "overrides": []},
        "options": {} if panel.kind == "timeseries" else {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"},
        "targets": [
            {"refId": "ABCDEFGH"[place_], "expr": expression, "legendFormat": legend, "datasource": source}
            for place_, (expression, legend) in enumerate(panel.lines)
        ],
    }


def queries_of(board: dict[str, Any]) -> list[str]:
    """Every expression of a dashboard."""
    return [line["expr"] for panel in board["panels"] for line in panel["targets"]]
