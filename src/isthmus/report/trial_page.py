"""The results of `isthmus try` as one HTML file that asks nothing of the network."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.errors import InputError
from isthmus.planner.words import layout_words
from isthmus.report.charts import hue, step_time_svg, utilisation_svg
from isthmus.report.fabric_drawing import DrawnLink, DrawnRegion, fabric_svg
from isthmus.report.loss_chart import loss_svg
from isthmus.report.results import Results, Tried, read_results
from isthmus.report.svg import Svg
from isthmus.report.timeline import timeline_svg
from isthmus.report.verdict import TOLERANCE, best_of, judge
from isthmus.units import show_bytes, show_rate, show_seconds

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["FULL_PX", "HALF_PX", "Chart", "both", "environment", "write_trial_page"]

FULL_PX, HALF_PX, PHONE_PX = 820.0, 456.0, 340.0


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart laid out twice: `wide` for a desk, `narrow` for a phone; the style sheet shows one."""

    wide: Svg
    narrow: Svg


def write_trial_page(results: dict[str, Any], path: Path | str) -> None:
    """Write `results` as a self-contained page; an old file stays whole until the new one is complete.

    Args:
        results: The document that `isthmus try` writes as `results.json`.
        path: Where to write; its folder exists.

    Raises:
        InputError: The document lacks a value that the page shows, or jinja2 is not installed.
        OSError: `path` cannot be written.
    """
    read = read_results(results)
    page = (
        environment()
        .get_template("trial.html")
        .render(
            r=read,
            verdict=judge(read.strategies),
            best=best_of(read.strategies),
            charts=_charts(read),
            tolerance=TOLERANCE,
            worst=max(read.strategies, key=lambda one: abs(one.ratio - 1)),
            equal_tokens=sorted({one.equal_tokens for one in read.strategies if one.equal_tokens is not None}),
            repeats=sorted({len(one.measured.step_s_repeats) for one in read.strategies if one.measured.step_s_repeats}),
        )
    )
    partial = Path(f"{path}.partial")
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, path)


def environment() -> "Environment":
    """The templates with their filters; `InputError` where jinja2 is not installed."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise InputError(
            "report.html", "the page needs jinja2, which is not installed", "pip install 'isthmus[report]'"
        ) from None
    environment = Environment(
        loader=PackageLoader("isthmus.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(_filters())
    return environment


def _filters() -> Mapping[str, Callable[..., object]]:
    from markupsafe import Markup

    def drawn(svg: Svg) -> Markup:
        # `Svg` is only ever made by svg.tag and svg.words, which escape.
        return Markup(svg)

    return {
        "drawn": drawn,
        "seconds": show_seconds,
        "size": show_bytes,
        "rate": show_rate,
        "hue": hue,
        "count": _count,
        "layout": layout_words,
        "loss": _loss,
        "assumed": _assumed,
    }


def _count(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _assumed(value: float | str, unit: str) -> str:
    """An assumption's value with its unit, in the prefixes that the rest of the page uses."""
    if isinstance(value, str) or not math.isfinite(value):
        return f"{value} {unit}".rstrip()
    match unit:
        case "s":
            return show_seconds(value)
        case "bytes" | "B":
            return show_bytes(value)
        case "bytes/s" | "B/s":
            return f"{show_bytes(value)}/s"
        case "FLOP/s":
            return f"{value / 1e12:.4g} TFLOP/s"
        case _:
            return f"{value:.6g} {unit}".rstrip()


def _loss(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "not finite"


def _charts(read: Results) -> dict[str, Chart | None]:
    regions = [
        DrawnRegion(
            name=region.name,
            city=region.city,
            nodes=region.nodes,
            gpus=region.gpus,
            gpu_kind=region.gpu_kind,
            network_kind=region.network_kind,
            network_rate_bytes_per_s=region.network_rate_bytes_per_s,
            note=_tunnel_nodes(read, region.name),
        )
        for region in read.fabric.regions
    ]
    links = [
        DrawnLink(
            between=link.between, rate_bytes_per_s=link.rate_bytes_per_s, rtt_s=link.rtt_s, note=_tunnel_link(read, link.between)
        )
        for link in read.fabric.wan
    ]
    tried = read.strategies
    return {
        "fabric": both(lambda width, ident: fabric_svg(regions, links, width_px=width, ident=ident), FULL_PX, "fabric"),
        "timeline": both(lambda width, ident: timeline_svg(tried, width_px=width, ident=ident), FULL_PX, "timeline"),
        "loss_tokens": both(
            lambda width, ident: loss_svg(tried, against=lambda _, tokens: tokens, unit="tokens", width_px=width, ident=ident),
            HALF_PX,
            "loss-tokens",
        ),
        "loss_seconds": both(lambda width, ident: _loss_against_seconds(tried, width, ident), HALF_PX, "loss-seconds"),
        "step_time": both(lambda width, ident: step_time_svg(tried, width_px=width, ident=ident), HALF_PX, "step-time"),
        "utilisation": both(lambda width, ident: utilisation_svg(tried, width_px=width, ident=ident), HALF_PX, "utilisation"),
    }


def both(draw: Callable[[float, str], Svg | None], wide_px: float, ident: str) -> Chart | None:
    """The chart laid out for a desk and for a phone; None where it draws nothing."""
    wide, narrow = draw(wide_px, f"{ident}-w"), draw(PHONE_PX, f"{ident}-n")
    return Chart(wide, narrow) if wide is not None and narrow is not None else None


def _loss_against_seconds(tried: list[Tried], width: float, ident: str) -> Svg | None:
    """Training seconds are tokens over the measured tokens/s: what the run takes without its off blocks."""
    if any(one.loss and one.measured.tokens_per_s <= 0 for one in tried):
        return None
    return loss_svg(
        tried,
        against=lambda one, tokens: tokens / one.measured.tokens_per_s,
        unit="seconds of training",
        width_px=width,
        ident=ident,
    )


def _tunnel_nodes(read: Results, name: str) -> str:
    nodes = read.tunnel.nodes.get(name)
    return "" if nodes is None else f"emulated: {nodes} node{'s' * (nodes != 1)}"


def _tunnel_link(read: Results, between: tuple[str, str]) -> str:
    found = [link for link in read.tunnel.links if set(link.between) == set(between)]
    return f"emulated: {show_rate(found[0].rate_bytes_per_s)} · {show_seconds(found[0].rtt_s)}" if found else "not emulated"
