"""The charts of a plan's page: what a step is made of, when the WAN is busy, curves over rate and round trip, memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from isthmus.plan import Candidate, Prediction
from isthmus.planner.curves import Curves
from isthmus.report.charts import NARROW, hue, plain, time_unit
from isthmus.report.svg import BOLD, Drawing, Scale, Svg, drawing, fit, label, line, rectangle, spread, tag, text_width_px, ticks
from isthmus.units import show_bytes, show_seconds

__all__ = ["MemoryPart", "curves_svg", "memory_svg", "steps_svg", "wan_svg"]

ROW, ROW_NARROW = 34.0, 50.0


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of a GPU's memory."""

    name: str
    size_bytes: float


def _prediction(each: Candidate) -> Prediction:
    assert each.prediction is not None, each
    return each.prediction


def _frame(names: Sequence[str], width: float, room_right: float) -> tuple[float, float, list[Svg], float]:
    """(left, right, names, row height) of a chart with a row a name: beside the row, or above it where it is narrow."""
    if width < NARROW:
        room = width - 90
        shown = [
            label(0, 14 + ROW_NARROW * i, fit(name, room, 13 * BOLD), f"{hue(i)} own strong") for i, name in enumerate(names)
        ]
        return 2.0, width - 2, shown, ROW_NARROW
    left = min(max(text_width_px(name, 13 * BOLD) for name in names) + 16, 220.0)
    shown = [
        label(left - 12, ROW * (i + 0.5) + 4, fit(name, left - 14, 13 * BOLD), f"{hue(i)} own strong", "end")
        for i, name in enumerate(names)
    ]
    return left, width - room_right, shown, ROW


def steps_svg(candidates: Sequence[Candidate], *, width_px: float, ident: str) -> Svg:
    """Step times as bars: compute, what the layout adds inside the regions, what of the WAN is seen."""
    names = [each.strategy.name for each in candidates]
    left, right, shapes, row = _frame(names, width_px, 70)
    narrow = width_px < NARROW
    longest = max(_prediction(each).step_s for each in candidates)
    x = Scale(0.0, longest, left, right)
    bottom = row * len(candidates) + 4
    axis = _time_axis(x, longest, bottom, 4 if narrow else 8)
    for index, each in enumerate(candidates):
        prediction = _prediction(each)
        y = row * index + (22 if narrow else 6)
        inside = prediction.step_s - prediction.exposed_s
        parts = (
            (0.0, prediction.compute_s, "lane-compute", "compute"),
            (prediction.compute_s, inside, "lane-region", "bubble and communication inside the regions"),
            (inside, prediction.step_s, "lane-wan", "the WAN, seen"),
        )
        bars = [
            rectangle((x(start), y, x(end) - x(start), 20), class_, 2, f"{what}: {show_seconds(end - start)}")
            for start, end, class_, what in parts
            if end > start
        ]
        shapes.append(tag("g", *bars, class_=hue(index)))
        at = (width_px, row * index + 14) if narrow else (width_px, row * (index + 0.5) + 4)
        shapes.append(label(*at, show_seconds(prediction.step_s), "ink small", "end"))
    said = ", ".join(f"{each.strategy.name} {show_seconds(_prediction(each).step_s)}" for each in candidates)
    return drawing(Drawing(ident, "Step time by strategy", f"{said}."), (width_px, bottom + 40), *axis, *shapes)


def wan_svg(candidates: Sequence[Candidate], busy_s: Sequence[float], *, width_px: float, ident: str) -> Svg:
    """One step of each strategy: compute above, below it when the WAN is busy; the line is the step's end."""
    names = [each.strategy.name for each in candidates]
    left, right, shapes, row = _frame(names, width_px, 12)
    narrow = width_px < NARROW
    longest = max(_prediction(each).step_s for each in candidates)
    x = Scale(0.0, longest, left, right)
    bottom = row * len(candidates) + 4
    axis = _time_axis(x, longest, bottom, 4 if narrow else 8)
    for index, (each, busy) in enumerate(zip(candidates, busy_s, strict=True)):
        prediction = _prediction(each)
        y = row * index + (20 if narrow else 5)
        own = prediction.step_s - prediction.exposed_s
        start, end = _wan_span(each, min(busy, prediction.step_s))
        bars = [
            rectangle((x.start, y, x.end - x.start, 24), "lane", 2),
            rectangle((x.start, y, x(own) - x.start, 11), "lane-compute", 2, f"computing: {show_seconds(own)}"),
            rectangle((x(start), y + 13, max(x(end) - x(start), 1.0), 11), "lane-wan", 2, f"WAN busy: {show_seconds(busy)}"),
            line(x(prediction.step_s), y - 2, x(prediction.step_s), y + 26, "predicted-end"),
        ]
        shapes.append(tag("g", *bars, class_=hue(index)))
    said = ", ".join(f"{name}: WAN busy {show_seconds(busy)}" for name, busy in zip(names, busy_s, strict=True))
    return drawing(Drawing(ident, "When the WAN is busy in a step", f"{said}."), (width_px, bottom + 40), *axis, *shapes)


def _wan_span(each: Candidate, busy_s: float) -> tuple[float, float]:
    """Where in the mean step the WAN's work lies: gradients at its end, late syncs beside compute, the rest all along."""
    step = _prediction(each).step_s
    kind, strategy = each.strategy.kind, each.strategy
    if kind in ("flat", "hierarchical") or (kind == "local-steps" and not strategy.delay_steps):
        return max(0.0, step - busy_s), step
    return 0.0, busy_s


def _time_axis(x: Scale, longest_s: float, bottom: float, count: int) -> list[Svg]:
    factor, unit = time_unit(longest_s)
    shapes: list[Svg] = []
    for value in ticks(0.0, longest_s * factor, count):
        at = x(value / factor)
        shapes += [line(at, 0, at, bottom, "grid"), label(at, bottom + 16, plain(value), "muted small", "middle")]
    axis = line(x.start, bottom, x.end, bottom, "axis")
    return [*shapes, axis, label(x.end, bottom + 34, f"time ({unit})", "muted small", "end")]


def curves_svg(curves: Curves, names: Sequence[str], *, width_px: float, ident: str) -> Svg:
    """Tokens/s of `names` over the quantity; a dashed line where the fabric is. A strategy has no line where it does not fit."""
    narrow = width_px < NARROW
    shown = [(index, name) for index, name in enumerate(names) if name in curves.tokens_per_s]
    rows = 0
    legend: list[Svg] = []
    if narrow:
        legend, rows = _legend(shown, width_px)
    right = 10.0 if narrow else 18 + max(text_width_px(name, 12) for _, name in shown)
    top, height = 26.0 + 18 * rows, 260.0 + 18 * rows
    x = Scale(curves.at[0], curves.at[-1], 52.0, width_px - right, log=curves.logarithmic)
    most = max(value for _, name in shown for value in curves.tokens_per_s[name] if value is not None)
    y = Scale(0.0, most * 1.05, height - 44, top)
    shapes: list[Svg] = [label(0, 13, "tokens per second", "muted small"), *legend, *_pace_axis(x, y, most)]
    shapes += _quantity_axis(curves, x, y)
    if curves.here is not None:
        shapes.append(line(x(curves.here), top, x(curves.here), y.start, "measured-end"))
    shapes.append(label(x.end, height - 6, curves.quantity, "muted small", "end"))
    ends = spread([y(_last(curves, name)) for _, name in shown], 15, top + 4, height - 46)
    for (index, name), place in zip(shown, ends, strict=True):
        pairs = zip(curves.at, curves.tokens_per_s[name], strict=True)
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in pairs if value is not None)
        parts = [tag("polyline", points=points, class_="curve")]
        if not narrow:
            parts.append(label(x.end + 8, place + 4, name, "own small"))
        shapes.append(tag("g", *parts, class_=hue(index)))
    middle = len(curves.at) // 2
    said = ", ".join(f"{name} {plain(round(curves.tokens_per_s[name][middle] or 0.0))}" for _, name in shown)
    about = Drawing(ident, f"Tokens per second over {curves.quantity}", f"At {curves.words[middle]}: {said}.")
    return drawing(about, (width_px, height), *shapes)


def _last(curves: Curves, name: str) -> float:
    return next(value for value in reversed(curves.tokens_per_s[name]) if value is not None)


def _pace_axis(x: Scale, y: Scale, most: float) -> list[Svg]:
    factor, suffix = (1e-6, "M") if most >= 2e6 else (1e-3, "k") if most >= 2e3 else (1.0, "")
    shapes: list[Svg] = []
    for value in ticks(0.0, most * factor, 5):
        at = y(value / factor)
        word = plain(value) + suffix * (value != 0)
        shapes += [line(x.start, at, x.end, at, "grid"), label(x.start - 8, at + 4, word, "muted small", "end")]
    return shapes


def _quantity_axis(curves: Curves, x: Scale, y: Scale) -> list[Svg]:
    """Values as they are written, as many as there is room for."""
    widest = max(text_width_px(word, 12) for word in curves.words) + 12
    stride = max(1, ceil(len(curves.at) * widest / (x.end - x.start)))
    shapes: list[Svg] = [line(x.start, y.start, x.end, y.start, "axis")]
    for value, word in list(zip(curves.at, curves.words, strict=True))[::stride]:
        shapes.append(line(x(value), y.start, x(value), y.start + 4, "axis"))
        shapes.append(label(x(value), y.start + 18, word, "muted small", "middle"))
    return shapes


def _legend(shown: Sequence[tuple[int, str]], width: float) -> tuple[list[Svg], int]:
    shapes: list[Svg] = []
    at, row = 0.0, 0
    for index, name in shown:
        needed = 26 + text_width_px(name, 12) + 8
        if at and at + needed > width:
            at, row = 0.0, row + 1
        y = 32.0 + 18 * row
        swatch = tag("polyline", points=f"{at:.1f},{y - 4} {at + 18:.1f},{y - 4}", class_="curve")
        shapes.append(tag("g", swatch, label(at + 22, y, name, "own small"), class_=hue(index)))
        at += needed
    return shapes, row + 1


def memory_svg(
    parts: Sequence[MemoryPart], usable_bytes: float, total_bytes: float, *, width_px: float, ident: str
) -> Svg:
    """One GPU's memory as a bar of parts, with what may be used of it marked."""
    x = Scale(0.0, max(total_bytes, sum(part.size_bytes for part in parts)), 2.0, width_px - 2)
    shapes: list[Svg] = [rectangle((x.start, 24, x.end - x.start, 30), "lane", 4)]
    at, row = 0.0, 0
    for index, part in enumerate(part for part in parts if part.size_bytes > 0):
        start, end = x(at), x(at + part.size_bytes)
        words_ = f"{part.name} {show_bytes(part.size_bytes)}"
        bar = rectangle((start, 24, end - start - 0.8, 30), "bar", 2, words_)
        swatch = rectangle((2, 70 + 20 * row, 10, 10), "solid", 3)
        shapes.append(tag("g", bar, swatch, class_=hue(index)))
        shapes.append(label(18, 79 + 20 * row, words_, "ink small"))
        at, row = at + part.size_bytes, row + 1
    shapes += [
        line(x(usable_bytes), 18, x(usable_bytes), 60, "predicted-end"),
        label(x(usable_bytes) - 4, 13, f"usable {show_bytes(usable_bytes)} of {show_bytes(total_bytes)}", "muted small", "end"),
    ]
    said = ", ".join(f"{part.name} {show_bytes(part.size_bytes)}" for part in parts)
    return drawing(Drawing(ident, "Memory of the fullest GPU", f"{said}."), (width_px, 72.0 + 20 * row), *shapes)
