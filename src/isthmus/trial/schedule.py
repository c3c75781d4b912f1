"""How many steps a trial may take: warm-up, then repeats of an on-block beside an off-block, within the minutes given."""

from dataclasses import dataclass
from math import ceil

__all__ = ["CALIBRATION_STARTS", "REPEATS", "Steps", "calibration_steps", "plan_steps"]

REPEATS = 3
START_S = 9.0
"""A run's own start: four torch imports on two cores and the first meeting (seen: 6-11 s; only the budget rests on it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of one run, the same for every strategy so that losses compare at equal tokens."""

    warmup: int
    on: int
    off: int
    repeats: int

    @property
    def text(self) -> str:
        """As `ISTHMUS_BLOCKS` takes it."""
        return f"warmup={self.warmup},on={self.on},off={self.off},repeats={self.repeats}"

    @property
    def trained(self) -> int:
        """Steps that train: warm-up and on-blocks."""
        return self.warmup + self.repeats * self.on

    @property
    def all(self) -> int:
        """Steps that are run."""
        return self.trained + self.repeats * self.off


CALIBRATION_STARTS = 3
"""How often the ranks are started to measure compute: that of the same ranks drifts by up to 15% within minutes, on a machine
that does nothing else (seen: 0.25 to 0.30 s a step), so short measurements apart from each other say more than a long one."""


def calibration_steps() -> Steps:
    """One start of the run that measures compute: almost all of it with inter-region communication off."""
    return Steps(warmup=3, on=1, off=14, repeats=1)


def plan_steps(predicted_s: list[float], compute_s: float, minutes: float, inner_steps: int) -> Steps:
    """The longest on-blocks, in whole rounds of `inner_steps`, with which all runs fit `minutes`; at least one round.

    Args:
        predicted_s: Step time of each strategy.
        compute_s: Step time with inter-region communication off.
        minutes: For all runs together.
        inner_steps: The most inner steps of any strategy.
    """
    budget_s = minutes * 60 - START_S * len(predicted_s)
    rounds = 1
    while rounds < 50:
        longer = _steps(rounds + 1, inner_steps)
        cost_s = sum(longer.trained * step + longer.repeats * longer.off * compute_s for step in predicted_s)
        if cost_s > budget_s:
            break
        rounds += 1
    return _steps(rounds, inner_steps)


def _steps(rounds: int, inner_steps: int) -> Steps:
    round_steps = inner_steps if inner_steps > 1 else 10
    on = rounds * round_steps
    return Steps(warmup=round_steps, on=on, off=max(5, ceil(on / 3)), repeats=REPEATS)
