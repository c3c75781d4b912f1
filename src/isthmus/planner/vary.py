"""What if: the best strategy at each point of a grid over the fabric's and the workload's figures, and where it changes.

A variation is written as the document writes the value: `wan.rate=10..400Gb/s`, `rtt=1..100ms:12`, `wan.loss=0,1e-6,1e-5`,
`regions.shanghai.nodes=1..32`. Ranges over a factor of 4 and more are stepped evenly in their logarithm.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import log
from re import ASCII, fullmatch

from isthmus.cost.collectives_constants import Constants
from isthmus.cost.money import bill
from isthmus.errors import InfeasibleError, InputError, nearest
from isthmus.fabric import Fabric, edited, is_fabric_path, parse_fabric
from isthmus.plan import Candidate
from isthmus.planner.choose import weigh
from isthmus.planner.predict import Known
from isthmus.planner.price import to_candidate
from isthmus.workload import Workload

__all__ = ["Change", "Point", "Variation", "Varied", "parse_variation", "vary"]

POINTS, POINTS_BESIDE_OTHERS, POINTS_MAX = 9, 6, 400
LOGARITHMIC_FROM = 4.0
WORKLOAD_KEYS = ("workload.mfu", "workload.sequences_per_step", "workload.tokens_per_step")

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = rf"({_NUMBER})\s*([^\d.,:]*?)\s*\.\.\s*({_NUMBER})\s*([^\d.,:]*?)\s*(?::\s*(\d+))?"


@dataclass(frozen=True, slots=True)
class Variation:
    """One quantity and its values, each as the document would write it; `numbers` are theirs without the unit."""

    path: str
    values: tuple[float | int | str, ...]
    numbers: tuple[float, ...]
    unit: str

    def at(self, number: float) -> float | int | str:
        """A value between those of the grid."""
        return _written(number, self.unit)


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the grid: the values, and the best strategy there, or why there is none; the pace of every one that fits."""

    values: tuple[float | int | str, ...]
    best: Candidate | None
    refused: str = ""
    per_trillion_tokens: float | None = None
    tokens_per_s: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Change:
    """Along one quantity the choice changes at about `value`."""

    value: str
    below: str
    above: str


@dataclass(frozen=True, slots=True)
class Varied:
    """The answer. `changes` are worked out where one quantity is varied."""

    variations: tuple[Variation, ...]
    points: tuple[Point, ...]
    changes: tuple[Change, ...]
    currency: str | None


def parse_variation(text: str, alone: bool) -> Variation:
    """Read `path=range` or `path=value,value,...`; `alone`: no other quantity is varied, so that the grid may be finer.

    Raises:
        InputError: It is neither.
    """
    path, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not path or not values:
        raise InputError("--vary", f"{text!r} is not path=range", "e.g. --vary wan.rate=10..400Gb/s")
    if ".." in values:
        return _range(path, values, alone)
    parts = [part.strip() for part in values.split(",")]
    unit = _unit_of(parts[-1])
    found = [_split(part, text) for part in parts]
    numbers = tuple(number for number, _ in found)
    written = tuple(_written(number, own or unit) for number, own in found)
    same = {own or unit for _, own in found} == {unit}
    return Variation(path, written, numbers if same else tuple(float(index) for index in range(len(parts))), unit)


def _range(path: str, values: str, alone: bool) -> Variation:
    match = fullmatch(_RANGE, values, ASCII)
    if match is None:
        raise InputError("--vary", f"{values!r} is not a range", "e.g. 10..400Gb/s, or 1..32, or 1..100ms:12 for 12 points")
    low, high, unit = float(match[1]), float(match[3]), match[4]
    if match[2] and match[2] != unit:
        raise InputError("--vary", f"{values!r} has two units", f"write both ends in {unit or match[2]}")
    if not 0 <= low < high:
        raise InputError("--vary", f"{values!r} does not rise from a number that is not negative", "e.g. 1..100ms")
    count = int(match[5]) if match[5] else POINTS if alone else POINTS_BESIDE_OTHERS
    if not 2 <= count <= POINTS_MAX:
        raise InputError("--vary", f"{count} points", f"2 to {POINTS_MAX}")
    whole = not unit and low == int(low) and high == int(high)
    numbers = list(_grid(low, high, count))
    if whole:
        numbers = [float(number) for number in dict.fromkeys(round(number) for number in numbers)]
    written = tuple(int(number) if whole else _written(number, unit) for number in numbers)
    return Variation(path, written, tuple(numbers), unit)


def _grid(low: float, high: float, count: int) -> Iterator[float]:
    for index in range(count):
        share = index / (count - 1)
        number = low * (high / low) ** share if low > 0 and high / low >= LOGARITHMIC_FROM else low + (high - low) * share
        yield float(f"{number:.3g}") if 0 < index < count - 1 else number


def _split(part: str, text: str) -> tuple[float, str]:
    match = fullmatch(rf"({_NUMBER})\s*(\S*)", part, ASCII)
    if match is None:
        raise InputError("--vary", f"{part!r} in {text!r} is not a number", "e.g. --vary wan.rate=10,40,100Gb/s")
    return float(match[1]), match[2]


def _unit_of(part: str) -> str:
    match = fullmatch(rf"{_NUMBER}\s*(\S*)", part, ASCII)
    return match[1] if match else ""


def _written(number: float, unit: str) -> float | int | str:
    if unit:
        return f"{number:.6g} {unit}"
    return int(number) if number == int(number) else number


def vary(
    text: str,
    source: str,
    workload: Workload,
    variations: Sequence[Variation],
    limits: tuple[float | None, Constants | None] = (None, None),
    tick: Callable[[int, int], None] = lambda done, of: None,
) -> Varied:
    """The best strategy at every point of the grid of `variations`, the last one running fastest.

    Args:
        text: The fabric document.
        source: Its name in messages.
        workload: What is trained, before any variation of it.
        variations: At least one; paths of the fabric's document, or one of `WORKLOAD_KEYS`.
        limits: (`loss_max`, `constants`) as in `choose_plan`.
        tick: Told after each point how many of how many are done.

    Raises:
        InputError: A path names nothing, a value is not one of its kind, or there are more than `POINTS_MAX` points.
    """
    grid = list(product(*(variation.values for variation in variations)))
    if len(grid) > POINTS_MAX:
        raise InputError("--vary", f"{len(grid)} points", f"at most {POINTS_MAX}: fewer quantities, or points with :N")
    question = _Question(text, source, workload, *limits, [])
    paths = [variation.path for variation in variations]
    points: list[Point] = []
    for values in grid:
        points.append(_point(question, dict(zip(paths, values, strict=True))))
        tick(len(points), len(grid))
    prices = parse_fabric(text, source).prices
    changes = _changes(question, variations[0], points) if len(variations) == 1 else []
    return Varied(tuple(variations), tuple(points), tuple(changes), prices.currency if prices else None)


@dataclass(frozen=True, slots=True)
class _Question:
    """`known` holds the layouts of each (regions, workload) met: they do not depend on the WAN."""

    text: str
    source: str
    workload: Workload
    loss_max: float | None
    constants: Constants | None
    known: list[tuple[tuple[object, Workload], Known]]


def _point(question: _Question, changes: dict[str, float | int | str]) -> Point:
    values = tuple(changes.values())
    in_fabric = {path: value for path, value in changes.items() if is_fabric_path(path)}
    fabric = parse_fabric(edited(question.text, question.source, in_fabric), question.source)
    workload = question.workload
    for path, value in changes.items():
        if path not in in_fabric:
            workload = _other_workload(workload, path, value)
    known = _known(question, fabric, workload)
    try:
        weighed = weigh(fabric, workload, question.loss_max, known, question.constants)
    except InfeasibleError as error:
        return Point(values, None, f"{error.message}; {error.bind}")
    best = to_candidate(weighed.setting, weighed.ranked[0])
    assert best.prediction is not None
    money = bill(fabric, best.prediction)
    pace = {each.strategy.name: workload.tokens_per_step / each.step_s for each in weighed.ranked}
    return Point(values, best, per_trillion_tokens=money.per_trillion_tokens if money else None, tokens_per_s=pace)


def _known(question: _Question, fabric: Fabric, workload: Workload) -> Known:
    key = (fabric.regions, workload)
    for seen, known in question.known:
        if seen == key:
            return known
    known: Known = {}
    question.known.append((key, known))
    return known


def _other_workload(workload: Workload, path: str, value: float | int | str) -> Workload:
    if path not in WORKLOAD_KEYS:
        hint = nearest(path, ["wan.rate", "wan.rtt", "rtt", "regions.NAME.nodes", *WORKLOAD_KEYS])
        raise InputError("--vary", f"no key is called {path!r}", hint)
    if isinstance(value, str):
        if path != "workload.mfu" or not value.endswith("%"):
            raise InputError("--vary", f"{path}: {value!r} is not a plain number", "e.g. workload.sequences_per_step=128..2048")
        value = float(value.rstrip("% ")) / 100
    if path == "workload.mfu":
        if not 0 < value <= 1:
            raise InputError("--vary", f"{path}: {value} is not a share", "e.g. workload.mfu=0.3..0.5")
        return replace(workload, mfu=float(value))
    sequences = value if path.endswith("sequences_per_step") else value / workload.sequence_length
    if sequences < 1:
        raise InputError("--vary", f"{path}: {value} is less than one sequence of {workload.sequence_length} tokens")
    return replace(workload, sequences_per_step=round(sequences))


def _changes(question: _Question, variation: Variation, points: Sequence[Point]) -> list[Change]:
    """Where the choice changes between neighbours of the grid, to about 1%; whole numbers are given as they stand."""
    found: list[Change] = []
    whole = all(isinstance(value, int) for value in variation.values)
    for index in range(1, len(points)):
        before, after = _name(points[index - 1]), _name(points[index])
        low, high = variation.numbers[index - 1], variation.numbers[index]
        if before == after:
            continue
        while not whole and low > 0 and log(high / low) > 0.01:
            middle = (low * high) ** 0.5
            if _name(_point(question, {variation.path: variation.at(middle)})) == before:
                low = middle
            else:
                high = middle
        value = variation.at(float(f"{(low * high) ** 0.5:.3g}")) if not whole and low > 0 else variation.at(high)
        found.append(Change(str(value), before, after))
    return found


def _name(point: Point) -> str:
    return point.best.strategy.name if point.best else "nothing"
