"""The predicted timeline of one step, all strategies on one scale; lanes: compute, region network, WAN."""

from collections.abc import Sequence

from isthmus.report.charts import hue, time_unit
from isthmus.report.results import Segment, Tried
from isthmus.report.svg import BOLD, Drawing, Scale, Svg, drawing, fit, label, line, rectangle, tag, text_width_px, ticks
from isthmus.units import show_seconds

__all__ = ["timeline_svg"]

LANES = {"compute": "compute", "region": "in region", "wan": "WAN"}
LANE, HEAD, PAUSE = 19.0, 26.0, 14.0


def timeline_svg(tried: Sequence[Tried], *, width_px: float, ident: str) -> Svg | None:
    """Every strategy's predicted step, with a line where it was predicted to end and one where it did end.

    None where no strategy has a timeline.
    """
    drawn = [(index, one) for index, one in enumerate(tried) if one.timeline]
    if not drawn:
        return None
    longest_s = max(
        t for _, one in drawn for t in (one.predicted.step_s, one.measured.step_s, *(part.end_s for part in one.timeline))
    )
    x = Scale(0.0, longest_s or 1.0, 66.0, width_px - 10)
    block = HEAD + LANE * len(LANES) + PAUSE
    bottom = block * len(drawn)
    factor, unit = time_unit(longest_s)
    shapes: list[Svg] = []
    for value in ticks(0.0, longest_s * factor, 4 if width_px < 400 else 8):
        at = x(value / factor)
        shapes += [line(at, HEAD - 4, at, bottom, "grid"), label(at, bottom + 16, f"{value:,.10g}", "muted small", "middle")]
    shapes += [
        line(x.start, bottom, x.end, bottom, "axis"),
        label(x.end, bottom + 34, f"time since the step began ({unit})", "muted small", "end"),
    ]
    shapes += [_strategy(one, hue(index), x, block * place) for place, (index, one) in enumerate(drawn)]
    said = ", ".join(
        f"{one.name} {show_seconds(one.predicted.step_s)}, of which {show_seconds(one.predicted.exposed_s)} waiting"
        for _, one in drawn
    )
    return drawing(Drawing(ident, "Predicted timeline of one step", f"{said}."), (width_px, bottom + 40), *shapes)


def _strategy(one: Tried, class_: str, x: Scale, top: float) -> Svg:
    shapes = [_head(one, x, top)]
    for place, (lane, name) in enumerate(LANES.items()):
        y = top + HEAD + LANE * place
        shapes += [
            label(x.start - 8, y + 13, name, "muted small", "end"),
            rectangle((x.start, y + 2, x.end - x.start, LANE - 4), "lane", 2),
        ]
        for part in _merged([part for part in one.timeline if part.lane == lane], x):
            shapes.append(_part(part, x, y))
    y, height = top + HEAD - 2, LANE * len(LANES) + 4
    predicted, measured = x(one.predicted.step_s), x(one.measured.step_s)
    shapes += [
        line(predicted, y, predicted, y + height, "predicted-end"),
        line(measured, y, measured, y + height, "measured-end"),
    ]
    return tag("g", *shapes, class_=class_)


def _head(one: Tried, x: Scale, top: float) -> Svg:
    predicted, measured = show_seconds(one.predicted.step_s), show_seconds(one.measured.step_s)
    waiting = f"of which {show_seconds(one.predicted.exposed_s)} waiting"
    said = (f"predicted {predicted}, {waiting} · measured {measured}", f"predicted {predicted} · measured {measured}")
    room = x.end - 16 - text_width_px(one.name, 13 * BOLD)
    figures = next((each for each in said if text_width_px(each, 12) <= room), f"{predicted} · {measured}")
    name = fit(one.name, x.end - 16 - text_width_px(figures, 12), 13 * BOLD)
    return tag("g", label(0, top + 16, name, "own strong"), label(x.end, top + 16, figures, "muted small", "end"))


def _part(part: Segment, x: Scale, y: float) -> Svg:
    start, width = x(part.start_s), max(x(part.end_s) - x(part.start_s), 1.0)
    width -= 0.8 if width > 3 else 0.0  # so that neighbours stay two
    title = f"{part.what}: {show_seconds(part.start_s)} to {show_seconds(part.end_s)}"
    shapes = [rectangle((start, y + 2, width, LANE - 4), f"lane-{part.lane}", min(2.0, width / 4), title)]
    if text_width_px(part.what, 11) + 8 <= width:
        shapes.append(label(start + width / 2, y + 13.5, part.what, f"in-{part.lane} tiny", "middle"))
    return tag("g", *shapes) if len(shapes) > 1 else shapes[0]


def _merged(parts: Sequence[Segment], x: Scale) -> list[Segment]:
    """The parts in order, runs too fine to tell apart drawn as one; this bounds the page's size."""
    found: list[Segment] = []
    for part in sorted(parts, key=lambda part: part.start_s):
        last = found[-1] if found else None
        fine = last is not None and x(part.start_s) - x(last.end_s) < 1 and min(_width(part, x), _width(last, x)) < 3
        if last is not None and fine:
            what = last.what if last.what in (part.what, "several parts") else "several parts"
            found[-1] = last.model_copy(update={"end_s": max(last.end_s, part.end_s), "what": what})
        else:
            found.append(part)
    return found


def _width(part: Segment, x: Scale) -> float:
    return x(part.end_s) - x(part.start_s)
