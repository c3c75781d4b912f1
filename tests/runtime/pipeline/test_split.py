"""Cutting a model: balanced as well as can be, and what cannot be cut is refused by name."""

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from isthmus.errors import InputError
from isthmus.runtime.demo.model import PRESETS, ByteGPT
from isthmus.runtime.pipeline.split import balance, block_weight, split_model


def heaviest(weights, cut):
    return max(sum(weights[start:stop]) for start, stop in pairwise([0, *cut, len(weights)]))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.data())
def test_no_other_cut_has_a_lighter_heaviest_part(weights, data):
    parts = data.draw(st.integers(1, len(weights)))
    cut = balance(weights, parts)
    assert len(cut) == parts - 1
    assert all(before < after for before, after in pairwise([0, *cut, len(weights)]))
    every = combinations(range(1, len(weights)), parts - 1)
    assert heaviest(weights, cut) == min(heaviest(weights, other) for other in every)


def test_a_block_weighs_what_its_matrices_hold_and_a_table_nothing():
    assert block_weight(nn.Linear(3, 5)) == 1 + 15
    assert block_weight(nn.Sequential(nn.Embedding(1000, 64), nn.LayerNorm(64))) == 1
    # Four equal layers and a head a fifth of a layer's size: two layers each, the lookup tables for nothing.
    shape = PRESETS["tiny"]
    split = split_model(ByteGPT(shape), 2)
    assert split.cut == (3,)
    assert len(split.weights) == shape.layers + 2


def test_the_parts_of_the_reference_model_compose_to_it():
    torch.manual_seed(0)
    model, text = ByteGPT(PRESETS["tiny"]), torch.randint(0, 256, (2, 40))
    for chunks in (1, 2, 4, 6):
        held = text
        for part in split_model(model, chunks).chunks:
            held = part(held)
        assert torch.equal(held, model(text))


def layers(count=4):
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(count)))


class Tied(nn.Module):
    def __init__(self, left_out=False):
        super().__init__()
        self.embed, self.middle, self.head = nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8, bias=False)
        if not left_out:
            self.head.weight = self.embed.weight
        self.left_out = left_out

    def pipeline_blocks(self):
        return [self.embed, self.middle] if self.left_out else [self.embed, self.middle, self.head]


@pytest.mark.parametrize(
    ("model", "chunks", "cut", "said"),
    [
        (nn.Linear(4, 4), 2, None, "model: Linear is not a sequence of blocks, which a pipeline needs"),
        (layers(3), 4, None, "model: Sequential has 3 blocks, the pipeline has 4 stages"),
        (Tied(), 2, None, "model: parameter 'embed.weight' is used in stages 0 and 1 of the pipeline (tied weights)"),
        (Tied(left_out=True), 2, None, "model: parameter 'head.weight' belongs to no block of Tied.pipeline_blocks()"),
        (layers(), 3, [2, 2], "cut: [2, 2] does not cut 4 blocks into 3 parts"),
        (layers(), 3, [2], "cut: [2] does not cut 4 blocks into 3 parts"),
        (layers(), 2, [4], "cut: [4] does not cut 4 blocks into 2 parts"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(model, chunks, cut, said):
    with pytest.raises(InputError) as caught:
        split_model(model, chunks, cut)
    assert str(caught.value).startswith(said)
    assert "hint: " in str(caught.value)


def test_weights_tied_within_one_stage_are_no_trouble():
    assert len(split_model(Tied(), 1).chunks) == 1


def test_a_given_cut_is_taken():
    assert [len(part) for part in split_model(layers(5), 3, [1, 3]).chunks] == [1, 2, 2]
