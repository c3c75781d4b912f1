"""Prefixes at the border only: text such as `100 Gb/s` becomes SI floats here and nowhere else.

Inside isthmus every quantity is seconds, bytes, bytes/s, FLOP/s, metres or watts, base 10.
`b` is a bit and `B` a byte; `KiB`, `MiB`, `GiB`, `TiB` are the only binary prefixes.
"""

import re
from dataclasses import dataclass
from math import isfinite

__all__ = [
    "BYTES",
    "BYTES_PER_SECOND",
    "FLOP_PER_SECOND",
    "FRACTION",
    "METRES",
    "SECONDS",
    "WATTS",
    "QuantityError",
    "Unit",
    "quantity",
    "show_bytes",
    "show_rate",
    "show_seconds",
]

_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*?)?\s*$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Unit:
    """A kind of quantity and the factor of every spelling of it.

    Attributes:
        name: What the number means, for messages.
        factors: Spelling -> multiples of the SI unit.
        example: A well-written value, for hints.
    """

    name: str
    factors: dict[str, float]
    example: str


def _prefixed(suffix: str, scale: float, prefixes: str) -> dict[str, float]:
    power = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    return {f"{prefix}{suffix}": scale * power[prefix] for prefix in ["", *prefixes]}


_BINARY = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}

SECONDS = Unit(
    "a time",
    {
        "ns": 1e-9,
        "us": 1e-6,
        "µs": 1e-6,
        "μs": 1e-6,
        "ms": 1e-3,
        "s": 1.0,
        "min": 60.0,
        "h": 3600.0,
        "d": 86400.0,
    },
    "18 ms",
)
BYTES = Unit("a size", _prefixed("B", 1.0, "kKMGTP") | _BINARY, "80 GB")
BYTES_PER_SECOND = Unit(
    "a rate",
    _prefixed("b/s", 0.125, "kKMGT")
    | _prefixed("bit/s", 0.125, "kKMGT")
    | _prefixed("bps", 0.125, "kKMGT")
    | _prefixed("B/s", 1.0, "kKMGT")
    | {f"{name}/s": factor for name, factor in _BINARY.items()},
    "100 Gb/s",
)
FLOP_PER_SECOND = Unit("a compute rate", _prefixed("FLOP/s", 1.0, "MGTP") | _prefixed("FLOPS", 1.0, "MGTP"), "989 TFLOP/s")
METRES = Unit("a length", {"mm": 1e-3, "cm": 1e-2, "m": 1.0, "km": 1e3}, "1300 km")
WATTS = Unit("a power", _prefixed("W", 1.0, "kKMG"), "10.2 kW")
FRACTION = Unit("a fraction", {"": 1.0, "%": 1e-2}, "0.1%")


class QuantityError(ValueError):
    """Text that is not a quantity of the unit asked for; `hint` says what to write."""

    def __init__(self, found: str, hint: str) -> None:
        super().__init__(f"{found} ({hint})")
        self.found, self.hint = found, hint


def quantity(text: str, unit: Unit) -> float:
    """Read `text`, such as `31.2ms` or `80 Gb/s`, as a number of SI units.

    Raises:
        QuantityError: The text has no number, no unit, or a unit of another kind.
    """
    match = _NUMBER.match(text)
    if match is None:
        raise QuantityError(f"{_short(text)} is not {unit.name}", f"write {unit.name} such as {unit.example!r}")
    number, suffix = float(match[1].replace("_", "")), match[2] or ""
    if suffix not in unit.factors:
        what = f"has no known unit: {_short(suffix)}" if suffix else "has no unit"
        raise QuantityError(f"{_short(text)} {what}", _unit_hint(suffix, unit))
    if not isfinite(number):
        raise QuantityError(f"{_short(text)} is too large", f"write {unit.name} such as {unit.example!r}")
    factor = unit.factors[suffix]
    return number * factor if factor >= 0.125 else number / round(1 / factor)  # 18 / 1000 is 0.018, 18 x 0.001 is not


def _unit_hint(suffix: str, unit: Unit) -> str:
    """The unit that was probably meant: right letters in the wrong case, else an example."""
    meant = [spelling for spelling in unit.factors if spelling and spelling.lower() == suffix.lower()]
    if meant:
        case = " (b is a bit, B a byte)" if unit is BYTES_PER_SECOND else ""
        return f"did you mean {' or '.join(meant)}?{case}"
    return f"write {unit.name} such as {unit.example!r}"


def _short(text: str) -> str:
    return repr(text) if len(text) < 80 else repr(text[:77]) + "..."


def show_seconds(seconds: float) -> str:
    """Write a time with three figures and the prefix that suits it: `18.0 ms`."""
    for limit, factor, name in (
        (1e-6, 1e9, "ns"),
        (1e-3, 1e6, "us"),
        (1.0, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
    ):
        if abs(seconds) < limit:
            return f"{_figures(seconds * factor)} {name}"
    return f"{_figures(seconds / 3600)} h"


def show_bytes(size: float) -> str:
    """Write a size with decimal prefixes: `2.80 TB`."""
    return _prefix(size, "B")


def show_rate(bytes_per_s: float) -> str:
    """Write a rate in bits per second, as links are sold: `100 Gb/s`."""
    return _prefix(bytes_per_s * 8, "b/s")


def _prefix(value: float, unit: str) -> str:
    for limit, factor, name in (
        (1e3, 1.0, ""),
        (1e6, 1e-3, "k"),
        (1e9, 1e-6, "M"),
        (1e12, 1e-9, "G"),
        (1e15, 1e-12, "T"),
    ):
        if abs(value) < limit * 0.9995:
            return f"{_figures(value * factor)} {name}{unit}"
    return f"{_figures(value * 1e-15)} P{unit}"


def _figures(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
