"""The answer to `isthmus plan --vary`: a table of the best strategy at each point, and the same as plain values."""

from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from isthmus.plan import Candidate
from isthmus.planner.vary import Point, Varied
from isthmus.planner.words import amount
from isthmus.units import show_seconds

__all__ = ["vary_document", "vary_table"]


def vary_table(varied: Varied) -> list[Table | Text]:
    """The table, and under it the points at which the choice changes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for variation in varied.variations:
        table.add_column(variation.path, justify="right", overflow="fold", min_width=max(map(len, map(str, variation.values))))
    table.add_column("best", no_wrap=True)
    for name in ("step", "tokens/s", "loss", *((f"{varied.currency}/10^12 tokens",) if varied.currency else ())):
        table.add_column(name, justify="right", no_wrap=True)
    before = ""
    for point in varied.points:
        name = point.best.strategy.name if point.best else "nothing fits"
        style = None if name == before else "bold"
        table.add_row(*(str(value) for value in point.values), name, *_figures(point, varied.currency), style=style)
        before = name
    shown: list[Table | Text] = [table]
    for change in varied.changes:
        path = varied.variations[0].path
        shown.append(Text(f"{path}: below {change.value} prefer {change.below}, above it {change.above}"))
    refusals = sorted({point.refused for point in varied.points if point.refused})
    return [*shown, *(Text(f"nothing fits: {refusal}", style="dim") for refusal in refusals)]


def _figures(point: Point, currency: str | None) -> list[str]:
    best = point.best
    if best is None or best.prediction is None:
        return []
    prediction = best.prediction
    loss = "exact" if best.loss.basis == "exact" else f"<= {best.loss.high:+.1%}"
    found = [show_seconds(prediction.step_s), f"{prediction.tokens_per_s:,.0f}", loss]
    if currency is not None and point.per_trillion_tokens is not None:
        found.append(amount(point.per_trillion_tokens, "").strip())
    return found


def vary_document(varied: Varied) -> dict[str, Any]:
    """For `--json`: quantities, points in the order of the table, changes."""
    return {
        "quantities": [{"path": each.path, "values": list(each.values)} for each in varied.variations],
        "points": [_point(varied, point) for point in varied.points],
        "changes": [{"value": each.value, "below": each.below, "above": each.above} for each in varied.changes],
        "currency": varied.currency,
    }


def _point(varied: Varied, point: Point) -> dict[str, Any]:
    at = {variation.path: value for variation, value in zip(varied.variations, point.values, strict=True)}
    if point.best is None:
        return {"at": at, "best": None, "refused": point.refused}
    best: Candidate = point.best
    money = {"per_trillion_tokens": point.per_trillion_tokens}
    return {"at": at, "best": best.model_dump(mode="json"), "tokens_per_s": point.tokens_per_s, **money}
