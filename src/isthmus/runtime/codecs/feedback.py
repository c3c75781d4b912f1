"""Error feedback: what an encoding left out is added before the next one, so that nothing is lost for good.

Residuals belong to ranges of elements of one flat numbering of the parameters, not to buckets or calls, so they survive
a change of the bucketing. The owner of a range is the rank that encodes it.
Source: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019.
"""

from typing import Any, Protocol

import torch

__all__ = ["Draft", "ErrorFeedback", "Feedback"]


class Feedback(Protocol):
    """Where an exchange finds what is owed: `ErrorFeedback`, or a `Draft` of one that can be thrown away."""

    def residual(self, start: int, elements: int) -> torch.Tensor: ...  # noqa: D102


class ErrorFeedback:
    """Residuals of disjoint element ranges, float32."""

    def __init__(self) -> None:
        self._ranges: dict[int, torch.Tensor] = {}

    def residual(self, start: int, elements: int) -> torch.Tensor:
        """The residual of elements `start` to `start + elements`, to be changed in place; shape (elements,).

        A range that was never asked for begins with what is held of its parts and zero elsewhere; those parts move into it.
        """
        held = self._ranges.get(start)
        if held is not None and held.numel() == elements:
            return held
        stop, fresh = start + elements, torch.zeros(elements)
        for first, old in list(self._ranges.items()):
            last = first + old.numel()
            low, high = max(first, start), min(last, stop)
            if low >= high:
                continue
            fresh[low - start : high - start] = old[low - first : high - first]
            del self._ranges[first]
            if first < start:
                self._ranges[first] = old[: start - first].clone()
            if last > stop:
                self._ranges[stop] = old[stop - first :].clone()
        if elements:
            self._ranges[start] = fresh
        return fresh

    def norm(self) -> float:
        """Euclidean norm of everything that is owed."""
        return float(sum(float(held.double().square().sum()) for held in self._ranges.values())) ** 0.5

    def state_dict(self) -> dict[str, Any]:
        """Copies of all residuals by their first element."""
        return {str(start): held.clone() for start, held in sorted(self._ranges.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all residuals by `state`."""
        self._ranges = {int(start): held.clone() for start, held in state.items()}


class Draft:
    """What one attempt at an exchange makes of the residuals: theirs only on `commit`; an attempt that failed is dropped.

    Several drafts of one `ErrorFeedback` may be open at once when they ask for disjoint elements.
    """

    def __init__(self, feedback: ErrorFeedback) -> None:
        self._feedback = feedback
        self._held: dict[tuple[int, int], torch.Tensor] = {}

    def residual(self, start: int, elements: int) -> torch.Tensor:
        """A copy of that residual, to be changed in place; the same one for the same range."""
        key = (start, elements)
        if key not in self._held:
            self._held[key] = self._feedback.residual(start, elements).clone()
        return self._held[key]

    def commit(self) -> None:
        """The attempt counts: the residuals become what it left."""
        for (start, elements), held in self._held.items():
            self._feedback.residual(start, elements).copy_(held)
        self._held.clear()
