"""How long a collective takes on a group: the one function that planner, step model, simulator and reports ask.

    collective_time("all-reduce", 1e9, region_group(fabric, "shenzhen"))

The quickest of NCCL's ways to do it (`collectives_curves`), as NCCL's own tuner would take, with a band that holds what
real systems of that description measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from isthmus.cost.collectives_constants import Constants, default_constants, range_of
from isthmus.cost.collectives_curves import Curve, curves
from isthmus.cost.collectives_group import Group, class_of
from isthmus.errors import InfeasibleError
from isthmus.formats.collective_runs import Algorithm, Collective, Protocol

__all__ = ["CollectiveTime", "band_of", "collective_seconds", "collective_time", "seconds_of", "seconds_of_ways"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """What one collective takes.

    Attributes:
        seconds: The prediction; half of real systems of this description are quicker.
        low_s: p10: one in ten is quicker than this.
        high_s: p90: one in ten is slower than this.
        algorithm: NCCL's that is quickest.
        protocol: Likewise.
        limit: What takes most of the time: a class of link, `LL protocol`, `latency` or `pipeline fill`.
    """

    seconds: float
    low_s: float
    high_s: float
    algorithm: Algorithm
    protocol: Protocol
    limit: str


def collective_time(
    collective: Collective,
    size_bytes: float,
    group: Group,
    *,
    algorithm: Algorithm = "auto",
    protocol: Protocol = "auto",
    constants: Constants | None = None,
) -> CollectiveTime:
    """Time of one `collective` of `size_bytes` (as nccl-tests counts it) alone on `group`.

    Raises:
        InfeasibleError: `group` cannot do it with that algorithm and protocol.
    """
    known = constants or default_constants()
    ways = _ways(collective, group, algorithm, protocol, known)
    best = min(ways, key=lambda curve: _seconds(curve, size_bytes))
    seconds = _seconds(best, size_bytes)
    low, high = band_of(size_bytes, group, known)
    return CollectiveTime(
        seconds=seconds,
        low_s=seconds * low,
        high_s=seconds * high,
        algorithm=best.algorithm,
        protocol=best.protocol,
        limit=_limit(best, size_bytes),
    )


def collective_seconds(
    collective: Collective,
    sizes_bytes: NDArray[np.float64],
    group: Group,
    *,
    algorithm: Algorithm = "auto",
    protocol: Protocol = "auto",
    constants: Constants | None = None,
) -> NDArray[np.float64]:
    """`collective_time(...).seconds` for many sizes at once, of the same shape; for searches.

    Raises:
        InfeasibleError: As `collective_time`.
    """
    ways = _ways(collective, group, algorithm, protocol, constants or default_constants())
    return np.min(seconds_of_ways(ways, sizes_bytes), axis=0)


@lru_cache(maxsize=65536)
def seconds_of(
    collective: Collective,
    size_bytes: float,
    group: Group,
    constants: Constants,
    way: tuple[Algorithm, Protocol] = ("auto", "auto"),
) -> float:
    """`collective_time(...).seconds`, remembered; 0 for one rank.

    Raises:
        InfeasibleError: As `collective_time`.
    """
    if not group:
        return 0.0
    return min(_seconds(way, size_bytes) for way in _ways(collective, group, *way, constants))


def band_of(size_bytes: float, group: Group, constants: Constants) -> tuple[float, float]:
    """p10 and p90 of measured / predicted on systems like `group` that the constants were not fitted to."""
    name = class_of(group)
    bands, within = constants.own.get(name, constants.bands), range_of(size_bytes)
    if name in constants.classes or name in constants.own:
        return {"wire": bands.wire, "large": bands.large, "small": bands.small}[within]
    return {"wire": bands.new_wire, "large": bands.new_large, "small": bands.new_small}[within]


def seconds_of_ways(ways: Sequence[Curve], sizes_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of each way for each size, shape [ways, *sizes]."""
    columns = np.array([(way.latency_s, way.fill_s, way.fill_bytes, way.seconds_per_byte) for way in ways])
    latency, fill, fill_bytes, pace = columns.T[..., *(None,) * sizes_bytes.ndim]
    share = sizes_bytes / fill_bytes
    return latency + fill * np.sqrt(share / (1 + share)) + sizes_bytes * pace


def _ways(
    collective: Collective, group: Group, algorithm: Algorithm, protocol: Protocol, constants: Constants
) -> tuple[Curve, ...]:
    ways = curves(collective, group, algorithm, protocol, constants)
    if not ways:
        shape = " x ".join(f"{level.members} over {level.carrier}" for level in group)
        raise InfeasibleError(f"no {collective} with algorithm {algorithm} and protocol {protocol} on {shape}", "what NCCL has")
    return ways


def _seconds(curve: Curve, size_bytes: float) -> float:
    share = size_bytes / curve.fill_bytes
    return curve.latency_s + curve.fill_s * sqrt(share / (1 + share)) + size_bytes * curve.seconds_per_byte


def _limit(curve: Curve, size_bytes: float) -> str:
    share = size_bytes / curve.fill_bytes
    parts = {
        "latency": curve.latency_s,
        "pipeline fill": curve.fill_s * sqrt(share / (1 + share)),
        curve.bind: size_bytes * curve.seconds_per_byte,
    }
    return max(parts, key=lambda name: parts[name])
