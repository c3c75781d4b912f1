"""Error feedback follows its parameters when DDP fills its buckets anew; with real ranks in test_cluster.py."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, ReducerOptions
from isthmus.runtime.every_step.residuals import Residuals

RANKS = 2
SPACE = 1 << 60


class Summing:
    """A gloo group of two threads that can do one thing: add up."""

    def __init__(self) -> None:
        self.barrier, self.board = threading.Barrier(RANKS, timeout=20), [torch.empty(0)] * RANKS

    def of(self, rank: int) -> Any:
        def allreduce(tensors: list[torch.Tensor]) -> Any:
            self.board[rank] = tensors[0].clone()
            self.barrier.wait()
            tensors[0].copy_(self.board[0] + self.board[1])
            self.barrier.wait()
            return SimpleNamespace(wait=lambda: None)

        return SimpleNamespace(allreduce=allreduce)


def reducer_of(rank: int) -> HierarchicalReducer:
    """A real reducer with feedback that believes to be `rank` of two; it never communicates here."""
    reducer = HierarchicalReducer(None, None, "int4", ReducerOptions(segment_bytes=64))
    reducer._ranks, reducer._rank, reducer._total = RANKS, rank, RANKS
    return reducer


def buckets_of(order: list[int], cuts: list[int]) -> list[tuple[int, ...]]:
    bounds = sorted({0, *[cut % len(order) for cut in cuts], len(order)})
    return [tuple(order[low:high]) for low, high in pairwise(bounds)]


def owed_by_parameter(reducers: list[HierarchicalReducer], residuals: Residuals) -> dict[int, list[float]]:
    """What the two ranks owe together, by parameter, read from the reducers' own states."""
    whole = torch.zeros(sum(residuals.sizes))
    for reducer in reducers:
        for key, held in reducer.state_dict()["feedback"].items():
            start = int(key) - SPACE
            whole[start : start + held.numel()] += held
    found = {}
    for bucket, contents in residuals.layout.items():
        offset = residuals.first[bucket]
        for number in contents:
            found[number] = whole[offset : offset + residuals.sizes[number]].tolist()
            offset += residuals.sizes[number]
    return found


@settings(deadline=None, max_examples=30)
@given(data=st.data(), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=7))
def test_what_is_owed_moves_with_its_parameter_and_is_owned_once(data: st.DataObject, sizes: list[int]) -> None:
    orders = [data.draw(st.permutations(range(len(sizes)))) for _ in range(3)]
    layouts = [buckets_of(order, data.draw(st.lists(st.integers(0, 9), max_size=3))) for order in orders]
    layouts.append(layouts[-1][:1] + [tuple(reversed(held)) for held in layouts[-1][1:]])  # the first bucket stays
    group = Summing()
    reducers = [reducer_of(rank) for rank in range(RANKS)]
    kept = [Residuals(sizes, kept=True) for _ in range(RANKS)]

    def announce(rank: int, layout: list[tuple[int, ...]]) -> None:
        federation: Any = SimpleNamespace(world=SimpleNamespace(comm_group=group.of(rank)))
        for index, contents in enumerate(layout):
            if kept[rank].layout.get(index) != contents:
                kept[rank].move(reducers[rank], federation, index, contents)

    with ThreadPoolExecutor(RANKS) as pool:
        list(pool.map(announce, range(RANKS), [layouts[0]] * RANKS))
        for rank, reducer in enumerate(reducers):  # as the first step's encodings would leave it: every piece owes something
            for index, contents in enumerate(layouts[0]):
                for start, elements in reducer.owned(sum(sizes[number] for number in contents)):
                    residual = reducer._feedback.residual(SPACE + kept[rank].first[index] + start, elements)  # type: ignore[union-attr]
                    residual.copy_(torch.arange(elements) + 1.0 + 1000 * index + 100 * rank + start)
        before = owed_by_parameter(reducers, kept[0])
        for layout in layouts[1:]:
            list(pool.map(announce, range(RANKS), [layout] * RANKS))
            assert owed_by_parameter(reducers, kept[0]) == before
        assert all(residuals._owed is None for residuals in kept)


@settings(deadline=None)
@given(elements=st.integers(1, 200))
def test_the_ranks_own_every_element_once(elements: int) -> None:
    owners = [0] * elements
    for rank in range(RANKS):
        for start, count in reducer_of(rank).owned(elements):
            for element in range(start, start + count):
                owners[element] += 1
    assert owners == [1] * elements
