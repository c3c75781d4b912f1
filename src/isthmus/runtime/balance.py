"""A region's batch dealt to its ranks by their measured speed, so that nodes of unlike kinds end their passes together.

What the region takes of every step stays the same samples; only which rank works on which of them changes. A rank of b samples
out of the region's B scales its mean loss by b g / B (g ranks), so that the plain mean of gradients over ranks, as DDP and
FSDP2 take it, is the mean over samples: up to rounding the step that equal parts would have made, where all samples count alike
(as many tokens in each).

Parts change at steps that the script names, and nowhere else. A checkpoint holds them, so that after the last of these steps
going on is bit for bit the same run.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Balance", "parts_by_speed"]

_WORTH = 0.95
"""New parts are taken where the slowest rank will need at most this share of its present time: not for noise."""


def parts_by_speed(present: Sequence[int], seconds_per_sample: Sequence[float]) -> tuple[int, ...]:
    """How many samples each rank takes of the sum of `present`, so that the slowest needs the least; at least one each.

    Dealt one after the other, each sample to the rank that would end it first (equal ones: to the lowest number), which is
    optimal for samples of one size. `present` stays where that gains less than a twentieth.
    """
    parts = [1] * len(present)
    for _ in range(sum(present) - len(present)):
        ends = [(part + 1) * cost for part, cost in zip(parts, seconds_per_sample, strict=True)]
        parts[ends.index(min(ends))] += 1

    def slowest(held: Sequence[int]) -> float:
        return max(part * cost for part, cost in zip(held, seconds_per_sample, strict=True))

    return tuple(parts) if slowest(parts) <= _WORTH * slowest(present) else tuple(present)


@dataclass(slots=True)
class Balance:
    """The parts of one region's ranks, as one rank sees them.

    Attributes:
        rank: This one.
        parts: Samples of each rank.
        at: Trained steps after which they are chosen anew, from what was measured since the choice before.
    """

    rank: int
    parts: tuple[int, ...]
    at: frozenset[int] = frozenset()
    _begun: Any = None
    _device: torch.device = field(default=torch.device("cpu"))
    _spans: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    _samples: int = 0

    @property
    def weight(self) -> float:
        """What this rank's mean loss is to be scaled by; exactly 1 for equal parts."""
        own, total = self.parts[self.rank] * len(self.parts), sum(self.parts)
        return 1.0 if own == total else own / total

    @property
    def first(self) -> int:
        """Of this rank's samples among the region's."""
        return sum(self.parts[: self.rank])

    @property
    def own(self) -> int:
        """Samples of this rank."""
        return self.parts[self.rank]

    def region_tokens(self, own_tokens: int) -> int:
        """The whole region's, where every sample has as many as this rank's."""
        return own_tokens * sum(self.parts) // self.own

    def start(self, device: torch.device, trained: int) -> None:
        """This rank begins its part on `device`, after `trained` steps; nothing is measured when no choice is ahead."""
        if any(step > trained for step in self.at):
            self._device, self._begun = device, _now(device)

    def stop(self) -> None:
        """It has ended, or at least handed over the last of its gradients: waits for others are left out. Once a start."""
        if self._begun is not None:
            self._spans.append((self._begun, _now(self._device)))
            self._samples += self.own
            self._begun = None

    def nanoseconds(self) -> int:
        """A sample's, of those measured since the last choice; 0 where none were."""
        busy_s = sum(_seconds_between(begun, ended) for begun, ended in self._spans)
        return math.ceil(1e9 * busy_s / self._samples) if self._samples else 0

    def choose(self, nanoseconds: Sequence[int]) -> bool:
        """Take new parts from every rank's `nanoseconds`; whether they are others. All ranks come to the same ones."""
        before = self.parts
        if all(nanoseconds):
            self.parts = parts_by_speed(before, [value / 1e9 for value in nanoseconds])
        self._samples, self._begun = 0, None
        self._spans.clear()
        return self.parts != before


def _now(device: torch.device) -> Any:
    """A point in time: of this thread, or of what it has asked of a GPU so far."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _seconds_between(begun: Any, ended: Any) -> float:
    if isinstance(begun, float):
        return ended - begun
    ended.synchronize()
    return begun.elapsed_time(ended) / 1e3
