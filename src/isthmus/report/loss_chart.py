"""Loss curves of all strategies on one pair of axes.

Curves of exact strategies lie on each other, so each has its own dash: where two coincide, both colours show.
"""

import math
from collections.abc import Callable, Sequence

from isthmus.report.charts import NARROW, hue, plain
from isthmus.report.results import Tried
from isthmus.report.svg import Drawing, Scale, Svg, drawing, fit, label, line, spread, tag, text_width_px, ticks, words

__all__ = ["loss_svg"]

POINTS_DRAWN = 300
DASHES = ("", "7 4", "2 3", "11 3 2 3")
Curve = list[tuple[float, float]]


def loss_svg(
    tried: Sequence[Tried], *, against: Callable[[Tried, float], float], unit: str, width_px: float, ident: str
) -> Svg | None:
    """Loss of every strategy against `against(strategy, tokens)`, in `unit`; None where no loss is known.

    A loss that is not finite leaves a gap.
    """
    curves = {
        index: [(against(one, tokens), loss) for tokens, loss in one.loss if math.isfinite(loss)]
        for index, one in enumerate(tried)
    }
    curves = {index: _thinned(curve) for index, curve in curves.items() if curve}
    if not curves:
        return None
    narrow = width_px < NARROW
    names = [fit(tried[index].name, 130, 12) for index in curves]
    right = 8.0 if narrow else 18 + max(text_width_px(name, 12) for name in names)
    legend, rows = _legend(tried, list(curves), width_px) if narrow else (Svg(""), 0)
    top, height = 26.0 + 20 * rows, 290.0 + 20 * rows
    x = Scale(0.0, max(p[0] for curve in curves.values() for p in curve) or 1.0, 44.0, width_px - right)
    low, high = (pick(p[1] for curve in curves.values() for p in curve) for pick in (min, max))
    room = (high - low or abs(high) or 1.0) * 0.06
    y = Scale(low - room, high + room, height - 40, top)
    shapes = [
        *_grid(x, y, (3 if narrow else 5, 5)),
        label(0, 13, "loss (nats per token)", "muted small"),
        label(x.end, height - 5, unit, "muted small", "end"),
        legend,
    ]
    shapes += [_curve(index, curve, x, y, tried[index].name) for index, curve in curves.items()]
    if not narrow:
        shapes += _ends(curves, names, x, Scale(y.low, y.high, height - 42, top + 4))
    ends = ", ".join(f"{tried[index].name} ends at {curve[-1][1]:.4g}" for index, curve in curves.items())
    return drawing(Drawing(ident, f"Loss against {unit}", f"{ends}."), (width_px, height), *shapes)


def _ends(curves: dict[int, Curve], names: Sequence[str], x: Scale, y: Scale) -> list[Svg]:
    """The names at the right edge, each joined to the end of its curve by a thin line."""
    shapes: list[Svg] = []
    at = spread([y(curve[-1][1]) for curve in curves.values()], 15, y.end, y.start)
    for (index, curve), place, name in zip(curves.items(), at, names, strict=True):
        end_x, end_y = x(curve[-1][0]), y(curve[-1][1])
        bend = f"{x.end + 2:.1f},{end_y:.1f} {x.end + 9:.1f},{place:.1f}"
        leader = tag("polyline", points=f"{end_x + 5:.1f},{end_y:.1f} {bend}", class_="leader")
        shapes.append(tag("g", leader, label(x.end + 12, place + 4, name, "own small"), class_=hue(index)))
    return shapes


def _thinned(curve: Curve) -> Curve:
    """At most `POINTS_DRAWN` points, the first and the last among them."""
    if len(curve) <= POINTS_DRAWN:
        return curve
    return [curve[round(index * (len(curve) - 1) / (POINTS_DRAWN - 1))] for index in range(POINTS_DRAWN)]


def _curve(index: int, curve: Curve, x: Scale, y: Scale, name: str) -> Svg:
    points = " ".join(f"{x(at):.1f},{y(loss):.1f}" for at, loss in curve)
    end_x, end_y = curve[-1]
    return tag(
        "g",
        tag("title", words(name)),
        tag("polyline", points=points, class_="curve", stroke_dasharray=DASHES[index % len(DASHES)] or None),
        tag("circle", cx=x(end_x), cy=y(end_y), r=3.5, class_="measured"),
        class_=hue(index),
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
        shapes.append(
            tag(
                "g",
                tag("polyline", points=f"{x:.1f},{y - 4} {x + 24:.1f},{y - 4}", class_="curve", stroke_dasharray=dash),
                label(x + 30, y, name, "own small"),
                class_=hue(index),
            )
        )
        x += needed
    return Svg("".join(shapes)), row + 1


def _grid(x: Scale, y: Scale, counts: tuple[int, int]) -> list[Svg]:
    """Grid lines and figures of both axes; thousands of the x axis as k or M."""
    shapes: list[Svg] = []
    for value in ticks(y.low, y.high, counts[1]):
        shapes += [
            line(x.start, y(value), x.end, y(value), "grid"),
            label(x.start - 8, y(value) + 4, plain(value), "muted small", "end"),
        ]
    factor, suffix = (1e-6, "M") if x.high >= 1e6 else (1e-3, "k") if x.high >= 2e3 else (1.0, "")
    for value in ticks(x.low, x.high, counts[0]):
        shapes += [
            line(x(value), y.start, x(value), y.start + 4, "axis"),
            label(x(value), y.start + 18, plain(round(value * factor, 9)) + suffix * (value != 0), "muted small", "middle"),
        ]
    return [*shapes, line(x.start, y.start, x.end, y.start, "axis")]
