"""What a newcomer is told of the steps before: those that have ended, though the donors have begun the next."""

from types import SimpleNamespace
from typing import Any

import torch

from isthmus.plan import Strategy
from isthmus.runtime.codecs.coding import Codec
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, ReducerOptions
from isthmus.runtime.every_step.step import Part, StepExchange


def test_the_step_under_way_is_not_counted_so_that_a_newcomer_takes_part_in_it() -> None:
    alone: Any = SimpleNamespace(numbers=lambda number: [number])
    reducer = HierarchicalReducer(None, None, Codec("none"), ReducerOptions(retry=True))
    strategy = Strategy(name="every step", kind="hierarchical")
    exchange = StepExchange(strategy=strategy, federation=alone, reducer=reducer)
    for step in range(3):
        told = []
        for number in (0, 1):
            exchange._begin(Part(number, torch.ones(4), (number,), lambda: None, lambda: 0))
            told.append(exchange.epochs())
        assert told == [{0: step - 1} | ({1: step - 1} if step else {}), {0: step - 1, 1: step - 1}]
        exchange._end(0)
        assert exchange.epochs() == {0: step, 1: step}
