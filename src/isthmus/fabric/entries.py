"""The catalogue: hardware figures as data, each with its unit, what it counts for, and its sources.

The YAML files stand in the folder `catalogue`, one a kind. A mapping with `value` is a figure; anything
else is a word about the entry. Figures keep the units their sources use; `Figure.number` is SI.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

import yaml

from isthmus.errors import InputError, nearest
from isthmus.fabric.model import Gpu, Nic
from isthmus.units import BYTES, BYTES_PER_SECOND, FLOP_PER_SECOND, METRES, SECONDS, WATTS

__all__ = [
    "Entry",
    "Figure",
    "Source",
    "Status",
    "Value",
    "entries",
    "entry",
    "gpu",
    "kinds",
    "nic",
    "number",
    "pcie_rate_bytes_per_s",
    "sources",
]

Status = Literal["opened", "secondary", "recalled", "calc"]
_STATUS_ORDER: tuple[Status, ...] = ("opened", "secondary", "recalled", "calc")
_KINDS = (
    "cables",
    "cities",
    "efficiency",
    "ethernet",
    "fibre",
    "gpus",
    "infiniband",
    "mig",
    "nccl",
    "nics",
    "nodes",
    "nvlink",
    "nvswitch",
    "pcie",
    "power",
    "rtt",
    "sharp",
    "switches",
)
_TO_SI = {
    spelling: factor
    for unit in (BYTES, BYTES_PER_SECOND, FLOP_PER_SECOND, METRES, SECONDS, WATTS)
    for spelling, factor in unit.factors.items()
}
_FORMATS = ("bf16", "fp16", "fp8", "tf32", "fp32")
Value = float | str | tuple[float, ...] | dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A document figures were taken from; `status` says whether it was read."""

    key: str
    title: str
    url: str
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number, range, table or short text of an entry.

    Attributes:
        value: As the source gives it, in `unit`.
        unit: The source's unit; empty for text.
        per: What the figure counts for (package, port and direction, ...).
        note: A restriction, or empty.
        sources: Keys of `sources()`.
        status: The best of its sources: opened, then secondary, recalled, calc. A figure computed from a
            recalled document names both and counts as recalled.
    """

    name: str
    value: Value
    unit: str
    per: str
    note: str
    sources: tuple[str, ...]
    status: Status

    @property
    def number(self) -> float:
        """The value in SI units; TypeError where it is not one number."""
        if not isinstance(self.value, int | float):
            raise TypeError(f"{self.name} is {self.value!r}, not one number")
        return self.value * _TO_SI.get(self.unit, 1.0)

    @property
    def text(self) -> str:
        """The value as a catalogue prints it."""
        match self.value:
            case tuple():
                return " - ".join(f"{part:g}" for part in self.value)
            case dict():
                return ", ".join(f"{key}: {part:g}" for key, part in self.value.items())
            case str():
                return self.value
            case _:
                return f"{self.value:.6g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One named thing of a kind: its figures, and words about it (maker, form, notes)."""

    kind: str
    name: str
    figures: dict[str, Figure]
    words: dict[str, str]

    def figure(self, name: str) -> Figure:
        """The figure called `name`; KeyError where the entry has none."""
        return self.figures[name]


def kinds() -> tuple[str, ...]:
    """Names of the kinds of entry."""
    return _KINDS


@cache
def sources() -> dict[str, Source]:
    """Every source, by key."""
    return {
        key: Source(key=key, title=word["title"], url=word.get("url", ""), status=cast(Status, word["status"]))
        for key, word in _read("sources").items()
    }


@cache
def entries(kind: str) -> dict[str, Entry]:
    """Every entry of `kind`, by name.

    Raises:
        InputError: There is no such kind.
    """
    if kind not in _KINDS:
        raise InputError("catalogue", f"unknown kind {kind!r}", nearest(kind, _KINDS))
    return {name: _entry(kind, name, raw) for name, raw in _read(kind).items()}


def entry(kind: str, name: str) -> Entry:
    """The entry called `name`; a pair such as `shenzhen/shanghai` may be named either way round.

    Raises:
        InputError: There is no such kind or name; the hint is the nearest one.
    """
    known = entries(kind)
    reversed_pair = "/".join(reversed(name.split("/")))
    if name not in known and reversed_pair in known:
        return known[reversed_pair]
    if name not in known:
        raise InputError("catalogue", f"unknown name {name!r} in {kind}", nearest(name, known))
    return known[name]


def number(kind: str, name: str, figure: str) -> float:
    """One figure in SI units."""
    return entry(kind, name).figure(figure).number


@cache
def gpu(name: str) -> Gpu:
    """The GPU called `name`, in SI units; InputError where there is none."""
    found = entry("gpus", name)
    rate = found.figures.get("fabric_rate")
    generation = found.words.get("fabric_generation")
    return Gpu(
        kind=name,
        vendor=found.words["vendor"],
        memory_bytes=found.figure("memory").number,
        memory_bandwidth_bytes_per_s=found.figure("memory_bandwidth").number,
        dense_flop_per_s={word: found.figure(word).number for word in _FORMATS if word in found.figures},
        fabric=found.words["fabric"],
        fabric_generation=int(generation) if generation else None,
        fabric_bytes_per_s=rate.number if rate else 0.0,
        tdp_w=found.figure("tdp").number,
        pcie=str(found.figure("pcie").value),
    )


@cache
def nic(name: str) -> Nic:
    """The network adapter called `name`, in SI units; InputError where there is none."""
    found = entry("nics", name)
    return Nic(kind=name, rate_bytes_per_s=found.figure("rate").number, pcie=str(found.figure("pcie").value))


def pcie_rate_bytes_per_s(slot: str) -> float:
    """Bytes/s per direction of a slot such as `5.0 x16`, after line encoding; packet headers not counted.

    Raises:
        ValueError: `slot` is not a generation and a width.
    """
    generation, _, width = slot.partition(" x")
    if generation not in entries("pcie") or not width.isdecimal() or int(width) not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"{slot!r} is not a PCIe slot such as '5.0 x16'")
    return number("pcie", generation, "lane_rate") * int(width)


def _read(name: str) -> dict[str, dict[str, Any]]:
    text = files("isthmus.fabric").joinpath("catalogue", f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.CSafeLoader)


def _entry(kind: str, name: str, raw: dict[str, Any]) -> Entry:
    figures: dict[str, Figure] = {}
    words: dict[str, str] = {}
    for key, value in raw.items():
        if isinstance(value, dict):
            figures[key] = _figure(key, cast(dict[str, Any], value))
        elif isinstance(value, list):
            words[key] = ", ".join(str(word) for word in cast(list[object], value))
        else:
            words[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return Entry(kind=kind, name=name, figures=figures, words=words)


def _figure(name: str, raw: dict[str, Any]) -> Figure:
    keys = tuple(raw["source"])
    statuses = {sources()[key].status for key in keys}
    value = raw["value"]
    return Figure(
        name=name,
        value=tuple(cast(list[float], value)) if isinstance(value, list) else value,
        unit=raw.get("unit", ""),
        per=raw.get("per", ""),
        note=raw.get("note", ""),
        sources=keys,
        status=next(status for status in _STATUS_ORDER if status in statuses),
    )
