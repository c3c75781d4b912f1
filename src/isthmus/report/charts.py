"""The charts with one row a strategy: step times and utilisation, laid out for a given width.

A strategy's index fixes its colour in every chart of a page. A filled bar is always a measurement, a hollow
diamond always a prediction.
"""

import math
from collections.abc import Sequence

from isthmus.report.results import Tried
from isthmus.report.svg import (
    BOLD,
    HUES,
    Drawing,
    Scale,
    Svg,
    drawing,
    fit,
    label,
    line,
    log_ticks,
    rectangle,
    tag,
    text_width_px,
    ticks,
    words,
)
from isthmus.units import show_seconds

__all__ = ["NARROW", "diamond", "hue", "plain", "step_time_svg", "time_unit", "utilisation_svg"]

NARROW = 400.0
"""Below this width, in pixels, names stand above their rows and curves get a legend."""


def hue(index: int) -> str:
    """The class that colours strategy `index`."""
    return f"s{index % HUES}"


def diamond(x: float, y: float, title: str) -> Svg:
    """The mark of a prediction."""
    return tag("path", tag("title", words(title)), d=f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", class_="predicted")


def time_unit(longest_s: float) -> tuple[float, str]:
    """Factor and name of the unit that suits an axis up to `longest_s`."""
    for limit_s, factor, name in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (600.0, 1.0, "s")):
        if longest_s < limit_s:
            return factor, name
    return 1 / 60, "min"


def plain(value: float) -> str:
    """A round number of an axis, with thousands set apart."""
    return f"{value:,.10g}"


def _rows(tried: Sequence[Tried], width: float, row: float) -> tuple[float, list[Svg]]:
    """Left edge of the plot, and the strategies' names: beside their rows, or above where it is narrow."""
    if width < NARROW:
        return 10.0, [
            label(0, 16 + row * i, fit(one.name, width - 70, 13 * BOLD), f"{hue(i)} own strong") for i, one in enumerate(tried)
        ]
    left = min(max(text_width_px(one.name, 13 * BOLD) for one in tried) + 16, 170.0)
    return left, [
        label(left - 14, 4 + row * (i + 0.5), fit(one.name, left - 14, 13 * BOLD), f"{hue(i)} own strong", "end")
        for i, one in enumerate(tried)
    ]


def step_time_svg(tried: Sequence[Tried], *, width_px: float, ident: str) -> Svg:
    """Predicted against measured step time, one row a strategy.

    The axis is logarithmic, so that 20% is as wide for a fast strategy as for a slow one.
    """
    narrow = width_px < NARROW
    row = 58.0 if narrow else 46.0
    left, shapes = _rows(tried, width_px, row)
    times = [
        t
        for one in tried
        for t in (
            one.measured.step_s * 0.8,
            one.measured.step_s * 1.2,
            one.predicted.step_s or math.inf,
            *one.measured.step_s_repeats,
        )
        if 0 < t < math.inf
    ]
    low, high = min(times) * 0.94, max(times) * 1.06
    x = Scale(low, high, left, width_px - (12 if narrow else 60), log=True)
    bottom = row * len(tried) + 6
    factor, unit = time_unit(high)
    axis: list[Svg] = []
    for value in log_ticks(low * factor, high * factor, 4 if narrow else 6):
        at = x(value / factor)
        axis += [line(at, 4, at, bottom, "grid"), label(at, bottom + 16, plain(value), "muted small", "middle")]
    axis += [
        line(x.start, bottom, x.end, bottom, "axis"),
        label(x.end, bottom + 34, f"step time ({unit}, logarithmic)", "muted small", "end"),
    ]
    for index, one in enumerate(tried):
        y = row * (index + 0.5) + (12 if narrow else 0)
        shapes.append(_step_row(one, x, y, hue(index)))
        at = (width_px, y - 25) if narrow else (width_px, y + 4)
        shapes.append(label(*at, f"{one.ratio:.2f}×", "ink small" if 0.8 <= one.ratio <= 1.2 else "warn small", "end"))
    said = ", ".join(
        f"{one.name} predicted {show_seconds(one.predicted.step_s)}, measured {show_seconds(one.measured.step_s)}"
        for one in tried
    )
    return drawing(Drawing(ident, "Predicted against measured step time", f"{said}."), (width_px, bottom + 40), *axis, *shapes)


def _step_row(one: Tried, x: Scale, y: float, class_: str) -> Svg:
    step_s, repeats = one.measured.step_s, [t for t in one.measured.step_s_repeats if t > 0]
    low, high = x(step_s * 0.8), x(step_s * 1.2)
    shapes = [rectangle((low, y - 11, high - low, 22), "band", 4, f"{one.name}: measured, 20% either way")]
    if len(repeats) > 1:
        shapes.append(line(x(min(repeats)), y, x(max(repeats)), y, "spread"))
    shapes += [
        tag("circle", tag("title", words(f"one repeat: {show_seconds(t)}")), cx=x(t), cy=y, r=3, class_="repeat") for t in repeats
    ]
    shapes.append(rectangle((x(step_s) - 1.75, y - 11, 3.5, 22), "solid", 1, f"measured (median): {show_seconds(step_s)}"))
    if one.predicted.step_s > 0:
        shapes.append(diamond(x(one.predicted.step_s), y, f"predicted: {show_seconds(one.predicted.step_s)}"))
    return tag("g", *shapes, class_=class_)


def utilisation_svg(tried: Sequence[Tried], *, width_px: float, ident: str) -> Svg:
    """Measured utilisation as bars and the predicted one as a diamond, one row a strategy."""
    narrow = width_px < NARROW
    row = 58.0 if narrow else 46.0
    left, shapes = _rows(tried, width_px, row)
    most = max([1.0, *(one.measured.utilisation or 0.0 for one in tried)])
    x = Scale(0.0, most, left, width_px - (12 if narrow else 60))
    bottom = row * len(tried) + 6
    axis: list[Svg] = []
    for value in ticks(0.0, most, 4):
        axis += [
            line(x(value), 4, x(value), bottom, "grid"),
            label(x(value), bottom + 16, f"{100 * value:.3g}", "muted small", "middle"),
        ]
    axis += [line(x.start, 4, x.start, bottom, "axis"), label(x.end, bottom + 34, "utilisation (%)", "muted small", "end")]
    for index, one in enumerate(tried):
        y, used = row * (index + 0.5) + (12 if narrow else 0), one.measured.utilisation
        shown = _share(used)
        bar = rectangle((x.start, y - 10, x(used or 0.0) - x.start, 20), "bar", 3, f"{one.name}: measured {shown}")
        shapes.append(
            tag(
                "g",
                bar,
                diamond(x(one.predicted.utilisation), y, f"predicted: {one.predicted.utilisation:.1%}"),
                class_=hue(index),
            )
        )
        shapes.append(
            label(width_px, y - 25 if narrow else y + 4, shown, "ink small" if used is not None else "muted small", "end")
        )
    said = ", ".join(f"{one.name} {_share(one.measured.utilisation)}" for one in tried)
    about = Drawing(ident, "Utilisation", f"Measured: {said}.")
    return drawing(about, (width_px, bottom + 40), *axis, *shapes)


def _share(utilisation: float | None) -> str:
    return "not measured" if utilisation is None else f"{utilisation:.1%}"
