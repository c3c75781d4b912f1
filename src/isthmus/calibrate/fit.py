"""The fit: constants whose predictions come nearest to the measurements, pulled to their priors where these say nothing.

    minimise  sum_rows N w rho(r / s) + sum_constants (ln(c / prior) / spread)^2,   r = ln(predicted / measured)

N and s: `Noise`. rho is Huber's with its knee at one s, so that a run that went wrong does not
pull. Levenberg-Marquardt over logarithms of the constants, by numerical differences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from isthmus.calibrate.observations import Observed
from isthmus.cost.collectives_constants import Constant, Constants, constants_from

__all__ = ["PUBLIC", "Fit", "Noise", "fit"]

STEP = 1e-4
ROUNDS = 20
BLURS = (0.5, 0.15, 0.04, 0.0)
"""From the priors a second way to the minimum: the choice among NCCL's ways is sharpened step by step."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """What a fit found.

    Attributes:
        constants: Ready to predict with.
        values: Every constant by name.
        told: By name, how much of a constant's spread the measurements took away: 0 stays at its prior, 1 is pinned down.
    """

    constants: Constants
    values: dict[str, float]
    told: dict[str, float]


@dataclass(frozen=True, slots=True)
class Noise:
    """What a source with many rows counts for, and what a row is off by for reasons that are no constant's."""

    source_rows: float
    spread: float


PUBLIC = Noise(source_rows=4.0, spread=0.10)
"""Logs of systems of one description: rows of one share its own deviation, and such systems differ by about 10 %."""


def fit(
    observed: Sequence[Observed], known: Sequence[Constant], start: dict[str, float] | None = None, noise: Noise = PUBLIC
) -> Fit:
    """Fit those of `known` that have a spread to `observed`.

    Args:
        observed: What was measured.
        known: Priors and spreads.
        start: Where to begin. If left out the lowest of three minima counts: from the priors, from the priors with the choice
            among ways blurred first, and from the `value` of each that an earlier fit left (some ways fall out of use on the
            way down from the priors, and what is never chosen pulls no more).
        noise: What rows count for.
    """
    carriers = {level.carrier for each in observed for level in each.group}
    free = [each for each in known if each.spread > 0 and ("." not in each.name or each.name.split(".")[0] in carriers)]
    fixed = {each.name: each.prior for each in known}
    begin = start or fixed
    begin_x: NDArray[np.float64] = np.array([log(begin[each.name] / each.prior) / each.spread for each in free])
    problem = _Problem(observed, free, fixed, noise, 0.0)
    x = _minimise(problem, begin_x)
    if start is None:
        smooth = begin_x
        for blur in BLURS:
            smooth = _minimise(_Problem(observed, free, fixed, noise, blur), smooth)
        shipped = np.array([log(each.value / each.prior) / each.spread for each in free])
        x = min(x, smooth, _minimise(problem, shipped), key=problem.cost)
    _, curvature = problem.slopes(x)
    left = np.sqrt(np.diag(np.linalg.inv(curvature)))
    values = problem.values(x)
    told = {each.name: float(np.clip(1 - left[index], 0, 1)) for index, each in enumerate(free)}
    return Fit(constants_from(values), values, told)


def _minimise(problem: "_Problem", x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Levenberg-Marquardt from `x`, at most ROUNDS steps."""
    cost, damping = problem.cost(x), 1e-2
    for _ in range(ROUNDS):
        slope, curvature = problem.slopes(x)
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -slope)
        trial = (x + step).astype(np.float64)
        trial_cost = problem.cost(trial)
        if trial_cost < cost:
            gained, x, cost, damping = cost - trial_cost, trial, trial_cost, damping / 5
            if gained < 1e-4 * (1 + cost):
                break
        else:
            damping *= 6
            if damping > 1e4:
                break
    return x


class _Problem:
    """The sum to be made small, over x = ln(c / prior) / spread."""

    def __init__(
        self, observed: Sequence[Observed], free: Sequence[Constant], fixed: dict[str, float], noise: Noise, blur: float
    ) -> None:
        self.observed, self.free, self.fixed = observed, free, fixed
        self.spread, self.blur = noise.spread, blur
        self.weights = np.concatenate([each.weights for each in observed]) * noise.source_rows
        self.users = [self._users(each) for each in free]

    def values(self, x: NDArray[np.float64]) -> dict[str, float]:
        moved = {each.name: float(each.prior * np.exp(each.spread * x[index])) for index, each in enumerate(self.free)}
        return {**self.fixed, **moved}

    def residuals(self, x: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        constants = constants_from(self.values(x))
        return [each.residuals(constants, self.blur) / self.spread for each in self.observed]

    def cost(self, x: NDArray[np.float64]) -> float:
        r = np.abs(np.concatenate(self.residuals(x)))
        return float(np.sum(self.weights * np.where(r < 1, r**2, 2 * r - 1)) + x @ x)

    def slopes(self, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Half the gradient and half the curvature (Gauss-Newton, Huber's weights) of the cost."""
        at = self.residuals(x)
        r = np.concatenate(at)
        jacobian = np.zeros((r.size, len(self.free)))
        starts = np.cumsum([0, *(each.size for each in at)])
        for column, users in enumerate(self.users):
            moved = x.copy()
            moved[column] += STEP
            constants = constants_from(self.values(moved))
            for index in users:  # only the runs that this constant touches
                rows = slice(starts[index], starts[index + 1])
                jacobian[rows, column] = (self.observed[index].residuals(constants, self.blur) / self.spread - at[index]) / STEP
        weights = self.weights / np.maximum(1, np.abs(r))
        return jacobian.T @ (weights * r) + x, (jacobian.T * weights) @ jacobian + np.eye(x.size)

    def _users(self, constant: Constant) -> list[int]:
        carrier, dot, _ = constant.name.partition(".")
        used = [{level.carrier for level in each.group} for each in self.observed]
        return [index for index, carriers in enumerate(used) if not dot or carrier in carriers]
