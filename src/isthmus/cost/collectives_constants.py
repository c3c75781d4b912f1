"""The constants of the collective model: each with what it was before any fit, and what a fit made of it.

They stand in `collectives.yaml` beside this file. `prior` is what NVIDIA publishes in NCCL's tuner or what a sentence
beside it argues; `spread` is how far, in units of the natural logarithm, measurements may pull it away; `value` is what
`python benchmarks/accuracy.py --fit` made of it. A class of link that nobody measured keeps its prior.
"""

from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

import yaml

from isthmus.fabric.carriers import Carrier

__all__ = [
    "LARGE_BYTES",
    "WIRE_BYTES",
    "Bands",
    "CarrierConstants",
    "Constant",
    "Constants",
    "constants_from",
    "default_constants",
    "known_constants",
    "range_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One constant; `name` is such as `fill_bytes` or `nvlink4.sustained`."""

    name: str
    value: float
    prior: float
    spread: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierConstants:
    """One class of link.

    Attributes:
        sustained: Share of the line rate that a long transfer reaches.
        hop: Multiple of the latency that NCCL's tuner gives a hop of its kind.
        fill_s: Most that filling and draining the chunk pipeline over it costs an all-reduce of 8 ranks.
        switch_sustained: As `sustained`, where the switch adds; 0 where none does.
        switch_latency_s: Latency of a collective that the switch adds up; 0 where none does.
    """

    sustained: float
    hop: float
    fill_s: float
    switch_sustained: float = 0.0
    switch_latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """p10 and p90 of measured / predicted, for systems that the constants were not fitted to.

    Attributes:
        wire: From WIRE_BYTES on, on a class of fabric that some other system of was fitted.
        large: From LARGE_BYTES on, likewise.
        small: Below, likewise.
        new_wire: As `wire`, on a class that none was fitted of; likewise `new_large`, `new_small`.
    """

    wire: tuple[float, float] = (1.0, 1.0)
    large: tuple[float, float] = (1.0, 1.0)
    small: tuple[float, float] = (1.0, 1.0)
    new_wire: tuple[float, float] = (1.0, 1.0)
    new_large: tuple[float, float] = (1.0, 1.0)
    new_small: tuple[float, float] = (1.0, 1.0)


WIRE_BYTES, LARGE_BYTES = 128e6, 8e6
"""Times are mostly latency below LARGE_BYTES and mostly the wire from WIRE_BYTES on, which is known best; bands differ."""

Range = Literal["wire", "large", "small"]


def range_of(size_bytes: float) -> Range:
    """The range of sizes that shares a band."""
    return "wire" if size_bytes >= WIRE_BYTES else "large" if size_bytes >= LARGE_BYTES else "small"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constants:
    """All of them. Compared by identity, so that what was derived from one set can be kept.

    Attributes:
        latency_ll: Multiple of NCCL's latencies with protocol LL; likewise `latency_ll128`, `latency_simple`.
        share_ll: Of the bandwidth, what LL leaves for data; likewise `share_ll128`.
        share_tree: Of a ring's bandwidth, what a tree over three nodes or more reaches.
        share_nvls_tree: Of the switch's bandwidth, what is left when it feeds a tree between nodes.
        share_rack: Of a board's switch bandwidth, what a rack's switches reach.
        share_pairwise: Of a ring's bandwidth, what pairwise sends reach.
        ll_bytes_per_s: Most bus bandwidth of LL, whose buffers go through few channels.
        fill_bytes: Buffer at which the fill has reached 0.71 of `fill_s`.
        fill_one_way: Fill of what goes round once (all-gather, broadcast ...), as a share of an all-reduce's.
        fill_ll: Fill with LL, as a share of Simple's; likewise `fill_ll128`.
        fill_switch: Fill where the node's switch adds, as a share of a chain's.
        fill_doubling: Growth of the fill with every doubling of ranks beyond 8.
        bands: How far real systems stand from the prediction.
        classes: Classes of fabric (in a node + between nodes) that systems were fitted of.
        own: By class, the bands of a calibration by the fabric's own measurements.
        launch_s: Launch of one call on one GPU; what a process that launches on g GPUs in turn can time at least is g times it.
    """

    latency_ll: float
    latency_ll128: float
    latency_simple: float
    share_ll: float
    share_ll128: float
    share_tree: float
    share_nvls_tree: float
    share_rack: float
    share_pairwise: float
    ll_bytes_per_s: float
    fill_bytes: float
    fill_one_way: float
    fill_ll: float
    fill_ll128: float
    fill_switch: float
    fill_doubling: float
    launch_s: float
    carriers: dict[Carrier, CarrierConstants]
    bands: Bands
    classes: frozenset[str]
    own: dict[str, Bands] = field(default_factory=dict[str, Bands])


_UNKNOWN = Bands()


@cache
def known_constants() -> tuple[Constant, ...]:
    """Every constant as it stands in the file."""
    raw = _read()
    found = [_constant(name, entry) for name, entry in raw["constants"].items()]
    for carrier, entries in raw["carriers"].items():
        found += [_constant(f"{carrier}.{name}", entry) for name, entry in entries.items()]
    return tuple(found)


@cache
def default_constants() -> Constants:
    """The constants that predictions use where no calibration is given."""
    raw = _read()
    bands = Bands(**{name: (float(pair[0]), float(pair[1])) for name, pair in raw.get("bands", {}).items()})
    return constants_from({each.name: each.value for each in known_constants()}, bands, frozenset(raw.get("classes", ())))


def constants_from(values: dict[str, float], bands: Bands = _UNKNOWN, classes: frozenset[str] = frozenset()) -> Constants:
    """Constants of these values by name; TypeError where one is missing."""
    plain = {name: value for name, value in values.items() if "." not in name}
    carriers: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        if "." in name:
            carrier, _, field = name.partition(".")
            carriers.setdefault(carrier, {})[field] = value
    by_carrier: dict[Carrier, CarrierConstants] = {
        cast(Carrier, name): CarrierConstants(**fields) for name, fields in carriers.items()
    }
    return Constants(**plain, carriers=by_carrier, bands=bands, classes=classes)  # pyright: ignore[reportArgumentType]


def _constant(name: str, raw: dict[str, Any]) -> Constant:
    return Constant(
        name=name,
        value=float(raw.get("value", raw["prior"])),
        prior=float(raw["prior"]),
        spread=float(raw.get("spread", 0.0)),
        source=str(raw["source"]),
    )


@cache
def _read() -> dict[str, Any]:
    text = files("isthmus.cost").joinpath("collectives.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.CSafeLoader)
