"""The constants of the collective model: each with what it was before any fit, and what a fit made of it.

They stand in `collectives.yaml` beside this file. `prior` is what NVIDIA publishes in NCCL's tuner or what a sentence
beside it argues; `spread` is how far, in units of the natural logarithm, measurements may pull it away; `value` is what
`python benchmarks/accuracy.py --fit` made of it. A class of link that nobody measured keeps its prior.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast

import yaml

from isthmus.fabric.carriers import Carrier

__all__ = ["CarrierConstants", "Constant", "Constants", "constants_from", "default_constants", "known_constants"]


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constants:
    """All of them. Compared by identity, so that what was derived from one set can be kept.

    Attributes:
        latency_ll: Multiple of NCCL's latencies with protocol LL; likewise `latency_ll128`, `latency_simple`.
        share_ll: Of the bandwidth, what LL leaves for data; likewise `share_ll128`.
        share_tree: Of a ring's bandwidth, what a tree over three nodes or more reaches.
        share_nvls_tree: Of the switch's bandwidth, what is left when it feeds a tree between nodes.
        share_pairwise: Of a ring's bandwidth, what pairwise sends reach.
        fill_bytes: Buffer at which the fill has reached 0.71 of `fill_s`.
        fill_one_way: Fill of what goes round once (all-gather, broadcast ...), as a share of an all-reduce's.
        fill_ll: Fill with LL, as a share of Simple's; likewise `fill_ll128`.
        fill_doubling: Growth of the fill with every doubling of ranks beyond 8.
        launch_s: Launch and host work of one call, beyond NCCL's own latencies.
    """

    latency_ll: float
    latency_ll128: float
    latency_simple: float
    share_ll: float
    share_ll128: float
    share_tree: float
    share_nvls_tree: float
    share_pairwise: float
    fill_bytes: float
    fill_one_way: float
    fill_ll: float
    fill_ll128: float
    fill_doubling: float
    launch_s: float
    carriers: dict[Carrier, CarrierConstants]


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
    return constants_from({each.name: each.value for each in known_constants()})


def constants_from(values: dict[str, float]) -> Constants:
    """Constants of these values by name; KeyError where a global one is missing."""
    plain = {name: value for name, value in values.items() if "." not in name}
    carriers: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        if "." in name:
            carrier, _, field = name.partition(".")
            carriers.setdefault(carrier, {})[field] = value
    return Constants(**plain, carriers={cast(Carrier, name): CarrierConstants(**fields) for name, fields in carriers.items()})


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
