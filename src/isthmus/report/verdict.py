"""What a trial showed, in words: the best strategy, its gain, its cost in loss, the prediction's quality."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.report.results import Tried

__all__ = ["TOLERANCE", "Verdict", "best_of", "judge", "same_loss"]

TOLERANCE = 0.20
"""How far predicted may stand from measured step time, as a fraction of the measured."""
LOSS_TOLERANCE = 0.03
"""How far above the lowest loss at equal tokens the best strategy may stand."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Four findings, each one sentence without its full stop; `warning` is empty when all replicas agree."""

    headline: str
    loss: str
    prediction: str
    warning: str

    @property
    def line(self) -> str:
        """All of it as one line."""
        return "; ".join(part for part in (self.warning, self.headline, self.loss, self.prediction) if part) + "."


def same_loss(tried: Sequence[Tried]) -> list[bool]:
    """Whether each loss at equal tokens is within 3% of the lowest; unknown is yes, not finite is no."""
    known = [
        one.loss_at_equal_tokens
        for one in tried
        if one.loss_at_equal_tokens is not None and math.isfinite(one.loss_at_equal_tokens)
    ]
    lowest = min(known, default=math.inf)
    return [
        one.loss_at_equal_tokens is None or one.loss_at_equal_tokens <= lowest + LOSS_TOLERANCE * abs(lowest) for one in tried
    ]


def best_of(tried: Sequence[Tried]) -> int:
    """Index of the fastest strategy with equal replicas and a loss near the lowest, if any is so."""
    sound = [one.replicas_equal is not False and near for one, near in zip(tried, same_loss(tried), strict=True)]
    return max(range(len(tried)), key=lambda index: (sound[index], tried[index].measured.tokens_per_s))


def judge(tried: Sequence[Tried]) -> Verdict:
    """The verdict on at least one strategy."""
    best = tried[best_of(tried)]
    differ = [one.name for one in tried if one.replicas_equal is False]
    warning = f"replicas differ after {_listed(differ)}: do not trust that run" if differ else ""
    return Verdict(_headline(best, tried), _loss(best, tried), _prediction(tried), warning)


def _headline(best: Tried, tried: Sequence[Tried]) -> str:
    used = "" if best.measured.utilisation is None else f"{best.measured.utilisation:.0%} utilisation"
    others = [one for one in tried if one is not best]
    if not others:
        return f"{best.name} reaches {best.measured.tokens_per_s:,.0f} tokens/s" + (f" at {used}" if used else "")
    rival = next((one for one in others if one.kind == "flat"), min(others, key=lambda one: one.measured.tokens_per_s))
    if rival.measured.tokens_per_s <= 0:
        return f"{best.name} is best; {rival.name} made no progress"
    gain = best.measured.tokens_per_s / rival.measured.tokens_per_s
    against = "" if rival.measured.utilisation is None or not used else f", against {rival.measured.utilisation:.0%}"
    pace = f"trains {gain:.2g} times as fast as {rival.name}" if gain >= 1.05 else f"is best; {rival.name} is as fast within 5%"
    if gain < 0.95:
        pace = f"is best of those that train soundly, at {gain:.0%} of the speed of {rival.name}"
    return f"{best.name} {pace}" + (f", at {used}{against}" if used else "")


def _loss(best: Tried, tried: Sequence[Tried]) -> str:
    known = [one for one in tried if one.loss_at_equal_tokens is not None and math.isfinite(one.loss_at_equal_tokens)]
    if best.loss_at_equal_tokens is None or len(known) < 2:
        return ""
    lowest = min(known, key=lambda one: one.loss_at_equal_tokens or 0.0)
    if not math.isfinite(best.loss_at_equal_tokens):
        return f"the loss of {best.name} is not finite"
    if lowest is best:
        return f"no strategy has a lower loss at equal tokens ({best.loss_at_equal_tokens:.3f})"
    floor = lowest.loss_at_equal_tokens or 1.0
    above = best.loss_at_equal_tokens / floor - 1
    if f"{above:.1%}" == "0.0%":
        return f"its loss at equal tokens equals the lowest ({floor:.3f})"
    return f"its loss at equal tokens is {above:.1%} above the lowest ({floor:.3f}, {lowest.name})"


def _prediction(tried: Sequence[Tried]) -> str:
    worst = max(tried, key=lambda one: abs(one.ratio - 1))
    missed = [one.name for one in tried if abs(one.ratio - 1) > TOLERANCE]
    if missed:
        missing = f"the predicted step time misses the measured by more than 20% for {_listed(missed)}"
        return f"{missing} (worst ratio {worst.ratio:.2f})"
    every = "its" if len(tried) == 1 else "every"
    return f"{every} step time was predicted within {math.ceil(abs(worst.ratio - 1) * 100 - 1e-9)}%"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]
