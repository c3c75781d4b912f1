"""Error feedback by parameter: what is owed stays with its parameter when DDP fills its buckets anew."""

import torch

from isthmus.runtime.collectives.hierarchical import HierarchicalReducer
from isthmus.runtime.federation.agreement import Federation

__all__ = ["Residuals"]

_FEEDBACK_SPACE_ELEMENTS = 1 << 60  # where the reducer numbers elements given by `first_element`: 2^20 tags of 2^40


class Residuals:
    """Error feedback by parameter: when DDP fills its buckets anew, what is owed moves along.

    The reducer numbers elements in the order of the buckets, and each rank holds the residuals of the pieces it encodes.
    On a change the region's ranks put their pieces together in the parameters' own order, and each takes the pieces
    that are now its own.

    Attributes:
        layout: Bucket -> numbers of its parameters.
        first: Bucket -> number of its first element.
    """

    def __init__(self, sizes: list[int], *, kept: bool) -> None:
        self.sizes, self.kept = sizes, kept
        self.starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self.layout: dict[int, tuple[int, ...]] = {}
        self.first: dict[int, int] = {}
        self._owed: torch.Tensor | None = None

    def move(self, reducer: HierarchicalReducer, federation: Federation, index: int, contents: tuple[int, ...]) -> None:
        """Bucket `index` now holds `contents`: bring its residuals along. Buckets are announced in order."""
        if index in self.layout:
            self._owed = self._collect(reducer, federation) if self.kept else None
            self.layout = {bucket: held for bucket, held in self.layout.items() if bucket < index}
            for bucket, held in self.layout.items():
                self._give(reducer, bucket, held)
        self.layout[index] = contents
        self.first[index] = sum(self.sizes[number] for bucket in range(index) for number in self.layout[bucket])
        self._give(reducer, index, contents)
        if sum(len(held) for held in self.layout.values()) == len(self.sizes):
            self._owed = None  # the last bucket has its part: a copy of the whole model need not stay

    def _collect(self, reducer: HierarchicalReducer, federation: Federation) -> torch.Tensor:
        """Everything the region owes, in the parameters' order, on every rank; the reducer's own copy is emptied."""
        state = reducer.state_dict()
        by_bucket = torch.zeros(sum(self.sizes))
        for key, held in state["feedback"].items():
            start = int(key) - _FEEDBACK_SPACE_ELEMENTS
            by_bucket[start : start + held.numel()] = held
        group = federation.world.comm_group
        if group is not None:
            group.allreduce([by_bucket]).wait()  # a sum of disjoint pieces
        reducer.load_state_dict({**state, "feedback": {}})
        owed = torch.zeros_like(by_bucket)
        for bucket, contents in self.layout.items():
            offset = self.first[bucket]
            for number in contents:
                size = self.sizes[number]
                owed[self.starts[number] : self.starts[number] + size] = by_bucket[offset : offset + size]
                offset += size
        return owed

    def _give(self, reducer: HierarchicalReducer, index: int, contents: tuple[int, ...]) -> None:
        """Put this rank's pieces of what bucket `index` owes into the reducer."""
        if self._owed is None:
            return
        owed = torch.cat([self._owed[self.starts[number] : self.starts[number] + self.sizes[number]] for number in contents])
        state = reducer.state_dict()
        base = _FEEDBACK_SPACE_ELEMENTS + self.first[index]
        for start, elements in reducer.owned(owed.numel()):
            if elements:
                state["feedback"][str(base + start)] = owed[start : start + elements].clone()
        reducer.load_state_dict(state)
