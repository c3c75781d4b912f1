"""What an off block may draw on is put back."""

import random

import numpy
import torch
from torch import nn

from isthmus.runtime.snapshot import restore, take


def test_all_three_global_generators_go_on_as_if_nothing_had_been_drawn() -> None:
    model = nn.Linear(2, 2)
    kept = take(model, [])

    def draw() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    first = [draw() for _ in range(5)]
    restore(kept, model, [])
    assert [draw() for _ in range(5)] == first
