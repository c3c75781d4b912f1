"""The charts of a trial: loss curves, step times, utilisation. Each is laid out for a width and coloured by class.

A strategy is `(index, Tried)`: the index fixes its colour, dash and marker in every chart of a page. A filled circle is
always a measurement, a hollow diamond always a prediction.
"""

import math
from collections.abc import Callable, Sequence

from isthmus.report.results import Tried
from isthmus.report.svg import (
    HUES, Drawing, Scale, Svg, drawing, fit, label, line, log_ticks, rectangle, spread, tag, text_width_px, ticks, words,
)
from isthmus.units import show_seconds

__all__ = ["diamond", "hue", "loss_svg", "step_time_svg", "time_unit", "utilisation_svg"]

POINTS_DRAWN = 300
DASHES = ("", "7 4", "2 3", "11 3 2 3")
NARROW = 480.0


def hue(index: int) -> str:
    """The class that colours strategy `index`."""
    return f"s{index % HUES}"


def diamond(x: float, y: float, title: str) -> Svg:
    """The mark of a prediction."""
    return tag("path", tag("title", words(title)), d=f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z", class_="predicted")


def time_unit(longest_s: float) -> tuple[float, str]:
    """Factor and name of the unit that suits an axis up to `longest_s`."""
    return (1e6, "us") if longest_s < 1e-3 else (1e3, "ms") if longest_s < 1.0 else (1.0, "s") if longest_s < 600 else (1 / 60, "min")


def _plain(value: float) -> str:
    return f"{value:,.10g}"


def loss_svg(tried: Sequence[Tried], *, against: Callable[[Tried, float], float], unit: str, width_px: float, ident: str) -> Svg | None:
    """Loss of every strategy against `against(strategy, tokens)`, whose axis is called `unit`; None where no loss is known."""
    curves = {
        index: [(against(one, tokens), loss) for tokens, loss in one.loss if math.isfinite(loss)] for index, one in enumerate(tried)
    }
    curves = {index: _thinned(curve) for index, curve in curves.items() if curve}
    if not curves:
        return None
    narrow = width_px < NARROW
    names = [fit(tried[index].name, 130, 12) for index in curves]
    right = 8.0 if narrow else 14 + max(text_width_px(name, 12) for name in names)
    legend, rows = _legend(tried, list(curves), width_px) if narrow else (Svg(""), 0)
    top, height = 26.0 + 20 * rows, 290.0 + 20 * rows
    x = Scale(0.0, max(p[0] for curve in curves.values() for p in curve) or 1.0, 44.0, width_px - right)
    low, high = (pick(p[1] for curve in curves.values() for p in curve) for pick in (min, max))
    room = (high - low or abs(high) or 1.0) * 0.06
    y = Scale(low - room, high + room, height - 40, top)
    shapes = [*_grid(x, y, (3 if narrow else 5, 5)), label(0, 13, "loss (nats per token)", "muted small"),
              label(x.end, height - 5, unit, "muted small", "end"), legend]
    shapes += [_curve(index, curve, x, y, tried[index].name) for index, curve in curves.items()]
    if not narrow:
        at = spread([y(curve[-1][1]) for curve in curves.values()], 15, top + 4, height - 42)
        shapes += [label(x(curve[-1][0]) + 8 if len(set(_ends(curves))) == 1 else x.end + 8, place + 4, name, f"{hue(index)} own small")
                   for (index, curve), place, name in zip(curves.items(), at, names, strict=True)]
    ends = ", ".join(f"{tried[index].name} ends at {curve[-1][1]:.4g}" for index, curve in curves.items())
    return drawing(Drawing(ident, f"Loss against {unit}", f"{ends}."), (width_px, height), *shapes)


def _ends(curves: dict[int, list[tuple[float, float]]]) -> list[float]:
    return [curve[-1][0] for curve in curves.values()]


def _thinned(curve: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `POINTS_DRAWN` points, the first and the last among them."""
    if len(curve) <= POINTS_DRAWN:
        return curve
    return [curve[round(index * (len(curve) - 1) / (POINTS_DRAWN - 1))] for index in range(POINTS_DRAWN)]


def _curve(index: int, curve: list[tuple[float, float]], x: Scale, y: Scale, name: str) -> Svg:
    points = " ".join(f"{x(at):.1f},{y(loss):.1f}" for at, loss in curve)
    end_x, end_y = curve[-1]
    return tag(
        "g", tag("title", words(name)),
        tag("polyline", points=points, class_="curve", stroke_dasharray=DASHES[index % len(DASHES)] or None),
        tag("circle", cx=x(end_x), cy=y(end_y), r=3.5, class_="measured"), class_=hue(index),
    )


def _legend(tried: Sequence[Tried], indices: Sequence[int], width: float) -> tuple[Svg, int]:
    """Names with their line, wrapped over the width, for where there is no room at the ends of the curves."""
    shapes: list[Svg] = []
    x, row = 0.0, 0
    for index in indices:
        name = fit(tried[index].name, width - 40, 12)
        needed = 30 + text_width_px(name, 12) + 10
        if x and x + needed > width:
            x, row = 0.0, row + 1
        y = 32.0 + 20 * row
        dash = DASHES[index % len(DASHES)] or None
        shapes.append(tag("g", tag("polyline", points=f"{x:.1f},{y - 4} {x + 24:.1f},{y - 4}", class_="curve", stroke_dasharray=dash),
                          label(x + 30, y, name, "own small"), class_=hue(index)))
        x += needed
    return Svg("".join(shapes)), row + 1


def _grid(x: Scale, y: Scale, counts: tuple[int, int]) -> list[Svg]:
    """Grid lines and figures of both axes; thousands of the x axis as k or M."""
    shapes: list[Svg] = []
    for value in ticks(y.low, y.high, counts[1]):
        shapes += [line(x.start, y(value), x.end, y(value), "grid"), label(x.start - 8, y(value) + 4, _plain(value), "muted small", "end")]
    factor, suffix = (1e-6, "M") if x.high >= 2e6 else (1e-3, "k") if x.high >= 2e3 else (1.0, "")
    for value in ticks(x.low, x.high, counts[0]):
        shapes += [line(x(value), y.start, x(value), y.start + 4, "axis"),
                   label(x(value), y.start + 18, _plain(round(value * factor, 9)) + suffix * (value != 0), "muted small", "middle")]
    return [*shapes, line(x.start, y.start, x.end, y.start, "axis")]


def _rows(tried: Sequence[Tried], width: float, row: float) -> tuple[float, list[Svg]]:
    """Left edge of the plot and the names of the strategies: beside their rows, or above them where it is narrow."""
    if width < NARROW:
        return 10.0, [label(0, 16 + row * i, fit(one.name, width - 70, 13), f"{hue(i)} own strong") for i, one in enumerate(tried)]
    left = min(max(text_width_px(one.name, 13) for one in tried) + 16, 170.0)
    return left, [label(left - 14, 4 + row * (i + 0.5), fit(one.name, left - 16, 13), f"{hue(i)} own strong", "end")
                  for i, one in enumerate(tried)]


def step_time_svg(tried: Sequence[Tried], *, width_px: float, ident: str) -> Svg:
    """Predicted against measured step time, one row a strategy, on a logarithmic axis so that 20% is as wide everywhere."""
    narrow = width_px < NARROW
    row = 58.0 if narrow else 46.0
    left, shapes = _rows(tried, width_px, row)
    times = [t for one in tried for t in (one.measured.step_s * 0.8, one.measured.step_s * 1.2, one.predicted.step_s or math.inf,
                                          *one.measured.step_s_repeats) if 0 < t < math.inf]
    low, high = min(times) * 0.94, max(times) * 1.06
    x = Scale(low, high, left, width_px - (12 if narrow else 60), log=True)
    bottom = row * len(tried) + 6
    factor, unit = time_unit(high)
    axis: list[Svg] = []
    for value in log_ticks(low * factor, high * factor, 4 if narrow else 6):
        at = x(value / factor)
        axis += [line(at, 4, at, bottom, "grid"), label(at, bottom + 16, _plain(value), "muted small", "middle")]
    axis += [line(x.start, bottom, x.end, bottom, "axis"), label(x.end, bottom + 34, f"step time ({unit}, logarithmic)", "muted small", "end")]
    for index, one in enumerate(tried):
        y = row * (index + 0.5) + (12 if narrow else 0)
        shapes.append(_step_row(one, x, y, hue(index)))
        at = (width_px, y - 20) if narrow else (width_px, y + 4)
        shapes.append(label(*at, f"{one.ratio:.2f}×", "ink small" if 0.8 <= one.ratio <= 1.2 else "warn small", "end"))
    said = ", ".join(f"{one.name} predicted {show_seconds(one.predicted.step_s)}, measured {show_seconds(one.measured.step_s)}" for one in tried)
    return drawing(Drawing(ident, "Predicted against measured step time", f"{said}."), (width_px, bottom + 40), *axis, *shapes)


def _step_row(one: Tried, x: Scale, y: float, class_: str) -> Svg:
    step_s, repeats = one.measured.step_s, [t for t in one.measured.step_s_repeats if t > 0]
    low, high = x(step_s * 0.8), x(step_s * 1.2)
    shapes = [rectangle((low, y - 11, high - low, 22), "band", 4, f"{one.name}: measured, 20% either way")]
    if len(repeats) > 1:
        shapes.append(line(x(min(repeats)), y, x(max(repeats)), y, "spread"))
    shapes += [tag("circle", tag("title", words(f"one repeat: {show_seconds(t)}")), cx=x(t), cy=y, r=3, class_="repeat") for t in repeats]
    shapes.append(tag("circle", tag("title", words(f"measured (median): {show_seconds(step_s)}")), cx=x(step_s), cy=y, r=5.5, class_="measured"))
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
        axis += [line(x(value), 4, x(value), bottom, "grid"), label(x(value), bottom + 16, f"{100 * value:.3g}", "muted small", "middle")]
    axis += [line(x.start, 4, x.start, bottom, "axis"), label(x.end, bottom + 34, "utilisation (%)", "muted small", "end")]
    for index, one in enumerate(tried):
        y, used = row * (index + 0.5) + (12 if narrow else 0), one.measured.utilisation
        shown = "not measured" if used is None else f"{used:.1%}"
        bar = rectangle((x.start, y - 10, x(used or 0.0) - x.start, 20), "bar", 3, f"{one.name}: measured {shown}")
        shapes.append(tag("g", bar, diamond(x(one.predicted.utilisation), y, f"predicted: {one.predicted.utilisation:.1%}"), class_=hue(index)))
        shapes.append(label(width_px, y - 20 if narrow else y + 4, shown, "ink small" if used is not None else "muted small", "end"))
    said = ", ".join(f"{one.name} {'not measured' if one.measured.utilisation is None else f'{one.measured.utilisation:.1%}'}" for one in tried)
    return drawing(Drawing(ident, "Utilisation", f"Measured: {said}."), (width_px, bottom + 40), *axis, *shapes)
