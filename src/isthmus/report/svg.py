"""Just enough SVG for our charts: escaped elements, scales, ticks and a guess at the width of text.

Markup is the type `Svg` and text is `str`; only `words` and `tag` turn the second into the first, and both
escape. No element carries a colour: classes name a role (`ink`, `muted`, `grid`) or a strategy (`s0` ...),
and the page's style sheet colours them, so that one drawing serves light and dark.
"""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NewType

__all__ = [
    "BOLD",
    "HUES",
    "Scale",
    "Svg",
    "drawing",
    "fit",
    "label",
    "line",
    "log_ticks",
    "rectangle",
    "spread",
    "tag",
    "text_width_px",
    "ticks",
    "words",
]

Svg = NewType("Svg", str)
BOLD = 1.1
HUES = 8
"""Strategy colours of the style sheet; a ninth strategy takes the first again and keeps its own label."""


def words(text: str) -> Svg:
    """`text` as character data; control characters, which no HTML may hold, become U+FFFD."""
    return Svg(escape("".join(c if c.isprintable() or c == " " else "\ufffd" for c in text)))


def tag(name: str, *children: Svg, **attributes: str | float | None) -> Svg:
    """One element; `class_` and `stroke_width` become `class` and `stroke-width`; None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items() if value is not None
    )
    inner = "".join(children)
    return Svg(f"<{name}{written}>{inner}</{name}>")


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return words(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")


def label(x: float, y: float, text: str, class_: str = "ink", anchor: str | None = None) -> Svg:
    """Text with its baseline at `y`; `anchor` is `middle` or `end`."""
    return tag("text", words(text), x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Svg:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rectangle(box: tuple[float, float, float, float], class_: str, radius: float = 0.0, title: str = "") -> Svg:
    """A rectangle `(x, y, width, height)`; `title` shows when it is pointed at."""
    x, y, width, height = box
    inner = (tag("title", words(title)),) if title else ()
    return tag("rect", *inner, x=x, y=y, width=max(width, 0.0), height=height, rx=radius or None, class_=class_)


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a drawing needs besides its shapes: a unique `ident`, and words for those who cannot see it."""

    ident: str
    title: str
    description: str


def drawing(about: Drawing, size_px: tuple[float, float], *children: Svg) -> Svg:
    """The root element: as wide as its place, never wider than 1.2 times the width it was laid out for."""
    width, height = size_px
    return tag(
        "svg",
        tag("title", words(about.title), id=f"{about.ident}-t"),
        tag("desc", words(about.description), id=f"{about.ident}-d"),
        *children,
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        role="img",
        aria_labelledby=f"{about.ident}-t {about.ident}-d",
        style=f"max-width:{_value(width * 1.2)}px",
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low..high` onto pixels `start..end`, evenly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of `value`."""
        low, high, at = (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return self.start + (self.end - self.start) * ((at - low) / (high - low) if high > low else 0.5)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2, 2.5 or 5 times a power of ten apart) within `low..high`."""
    if not high > low:
        return [low]
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers for a logarithmic axis; within one octave or so, those of an even axis."""
    if high / low < 5:
        return [tick for tick in ticks(low, high, count) if tick > 0]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [round(factor * 10.0**decade, 12) for decade in decades for factor in factors]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) <= count + 1:
            break
    return found


def text_width_px(text: str, size_px: float) -> float:
    """A guess, on the wide side, at the width of `text` in a sans-serif face; bold is `BOLD` times that."""
    return size_px * sum(_width_em(c) for c in text)


def _width_em(c: str) -> float:
    if unicodedata.east_asian_width(c) in "WF":
        return 1.05
    if c in "iljtfrI.,:;'|!·- ":
        return 0.37
    return 0.6 if (c.islower() and c not in "mw") or c.isdecimal() else 0.85


def fit(text: str, width_px: float, size_px: float) -> str:
    """`text`, shortened with an ellipsis where it is wider than `width_px`."""
    if text_width_px(text, size_px) <= width_px:
        return text
    while text and text_width_px(text + "…", size_px) > width_px:
        text = text[:-1]
    return text + "…"


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near `wanted`, in its order, `gap` apart and, where there is room, within `low..high`."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed: list[list[float]] = []  # clusters of [sum of offsets wanted, members]: pool adjacent violators
    for index in order:
        placed.append([wanted[index], 1])
        while len(placed) > 1 and _start(placed[-2], gap, low, high) + placed[-2][1] * gap > _start(placed[-1], gap, low, high):
            total, members = placed.pop()
            below = placed[-1]
            below[0] += total - members * below[1] * gap
            below[1] += members
    found = [0.0] * len(wanted)
    at = iter(order)
    for cluster in placed:
        start = _start(cluster, gap, low, high)
        for member in range(int(cluster[1])):
            found[next(at)] = start + member * gap
    return found


def _start(cluster: list[float], gap: float, low: float, high: float) -> float:
    total, members = cluster
    return max(low, min(total / members, high - (members - 1) * gap))
