"""A fabric's own measurements to its own constants: what they pin down, what stays as it was, how far they scatter."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

import numpy as np

from isthmus.calibrate.fit import Noise, fit
from isthmus.calibrate.observations import Observed, observe
from isthmus.cost.collectives_calibration import Calibration, ClassBands
from isthmus.cost.collectives_constants import Constants, constants_from, known_constants, range_of
from isthmus.cost.collectives_group import class_of
from isthmus.errors import InfeasibleError
from isthmus.formats.collective_runs import Row, Run

__all__ = ["Calibrated", "Moved", "Residuals", "calibrate"]

OWN = Noise(source_rows=12.0, spread=0.04)
"""Rows of the very system that will be used count for more, and repeat within a few per cent (floor of `make accuracy`)."""

OWN_SPREAD = 0.2
"""One fabric may stand further from its class than the mean of the class does from its prior: cabling, settings, tenants."""

TOLD_MIN = 0.1
"""A constant of which less was learned stays as it was."""

BAND_MIN = 0.05
"""No band is narrower than this: repeats of one system differ by 4.6 % in the median (`make accuracy`, floor)."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One constant: before, after, and what share of its spread the measurements took away."""

    name: str
    before: float
    after: float
    told: float
    source: str


@dataclass(frozen=True, slots=True)
class Residuals:
    """One run: median |predicted / measured - 1| before and after, and the worst row after."""

    run: Run
    rows: int
    before: float
    after: float
    worst: float
    worst_bytes: int


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What `isthmus calibrate` shows and writes.

    Attributes:
        moved: Constants that the measurements identify, most first.
        stayed: Names of constants of these classes of link that they do not.
        residuals: By run.
        calibration: To be written.
    """

    moved: tuple[Moved, ...]
    stayed: tuple[str, ...]
    residuals: tuple[Residuals, ...]
    calibration: Calibration


def calibrate(runs: Sequence[Run], base: Constants, values: dict[str, float]) -> Calibrated:
    """Fit to `runs`, starting from and pulled to `values`, the constants of `base`.

    Raises:
        InputError: A run does not say what it ran over.
        InfeasibleError: No run has a row of 1 KB or more.
    """
    observed = observe([(run, _kept(run)) for run in runs])
    if not observed:
        raise InfeasibleError("nothing to fit to: no run has a row of 1 KB or more", "rows of size")
    known = [
        replace(each, prior=values[each.name], spread=max(each.spread, OWN_SPREAD) if each.spread else 0.0)
        for each in known_constants()
    ]
    found = fit(observed, known, values, OWN)
    kept = {name: value if found.told.get(name, 0.0) >= TOLD_MIN else values[name] for name, value in found.values.items()}
    after = constants_from(kept, base.bands, base.classes)
    spread = {each.name: each for each in known}
    moved = [
        Moved(name, values[name], kept[name], told, spread[name].source) for name, told in found.told.items() if told >= TOLD_MIN
    ]
    return Calibrated(
        moved=tuple(sorted(moved, key=lambda each: -each.told)),
        stayed=tuple(name for name, told in found.told.items() if told < TOLD_MIN),
        residuals=tuple(_residuals(each, base, after) for each in observed),
        calibration=Calibration(
            version=1,
            made_from=[f"{each.run.name}: {each.sizes_bytes.size} rows" for each in observed],
            constants={each.name: each.after for each in moved},
            bands=_bands(observed, after),
        ),
    )


def _kept(run: Run) -> tuple[Row, ...]:
    """Rows of 1 KB and more, less those of a cold start or hiccup: twice as much took less than 0.8 of the time."""
    return tuple(
        row
        for row in run.rows
        if row.size_bytes >= 1000
        and not any(other.size_bytes >= 2 * row.size_bytes and other.seconds < 0.8 * row.seconds for other in run.rows)
    )


def _residuals(observed: Observed, base: Constants, after: Constants) -> Residuals:
    before, now = np.exp(observed.residuals(base)) - 1, np.exp(observed.residuals(after)) - 1
    worst = int(np.argmax(np.abs(now)))
    return Residuals(
        run=observed.run,
        rows=now.size,
        before=float(np.median(np.abs(before))),
        after=float(np.median(np.abs(now))),
        worst=float(now[worst]),
        worst_bytes=int(observed.sizes_bytes[worst]),
    )


def _bands(observed: Sequence[Observed], after: Constants) -> dict[str, ClassBands]:
    """p10 and p90 of measured / predicted by class of fabric and range of sizes; a range without rows gets none."""
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"wire": [], "large": [], "small": []})
    for each in observed:
        for size, residual in zip(each.sizes_bytes, each.residuals(after), strict=True):
            ratios[class_of(each.group)][range_of(float(size))].append(exp(-residual))
    return {
        name: ClassBands(**{within: _band(found) for within, found in by_range.items()})
        for name, by_range in sorted(ratios.items())
    }


def _band(ratios: Sequence[float]) -> tuple[float, float] | None:
    if not ratios:
        return None
    low, high = np.quantile(ratios, [0.1, 0.9])
    return round(min(float(low), 1 - BAND_MIN), 4), round(max(float(high), 1 + BAND_MIN), 4)
