"""Which bytes (or numbers) are here: disjoint half-open ranges that merge as they meet."""

from bisect import bisect_right
from typing import Literal

__all__ = ["Ranges"]

Fit = Literal["new", "here", "partly"]


class Ranges:
    """A set of non-negative integers, held as merged ranges; few where things arrive more or less in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def spans(self) -> list[tuple[int, int]]:
        """The ranges, in order."""
        return list(zip(self._starts, self._ends, strict=True))

    def fit(self, start: int, end: int) -> Fit:
        """Whether none, all or some of [start, end) is here. An empty range is new."""
        number = bisect_right(self._starts, start)
        if number and self._ends[number - 1] > start:
            return "here" if end <= self._ends[number - 1] else "partly"
        return "partly" if number < len(self._starts) and self._starts[number] < end else "new"

    def add(self, start: int, end: int) -> None:
        """Put in [start, end), which must be new."""
        if start >= end:
            return
        number = bisect_right(self._starts, start)
        before = number > 0 and self._ends[number - 1] == start
        after = number < len(self._starts) and self._starts[number] == end
        if before and after:
            self._ends[number - 1] = self._ends.pop(number)
            del self._starts[number]
        elif before:
            self._ends[number - 1] = end
        elif after:
            self._starts[number] = start
        else:
            self._starts.insert(number, start)
            self._ends.insert(number, end)
