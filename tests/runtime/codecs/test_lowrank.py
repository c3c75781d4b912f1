"""PowerSGD over flat ranges: exact where the rank suffices, equal bits everywhere, nothing lost, repeatable until it counts."""

import numpy as np
import pytest
import torch

from isthmus.runtime.codecs.lowrank import LowRank, Matrix, Reduction, exchanged_elements, matrices_within


def mean(messages):
    total = messages[0].clone()
    for other in messages[1:]:
        total += other
    return total / len(messages)


def together(members, shards, first=0, residuals=None, commit=True):
    """The mean of all members' shards as each of them computes it."""
    owed = residuals or [None] * len(members)
    each = [Reduction(kept, 0, shard, first, SHAPES, held) for kept, shard, held in zip(members, shards, owed, strict=True)]
    for step in (Reduction.turn, None):
        agreed = mean([reduction.message for reduction in each])
        for reduction in each:
            reduction.message.copy_(agreed)
            if step is not None:
                step(reduction)
    results = [torch.full_like(shard, torch.nan) for shard in shards]
    for reduction, kept, result in zip(each, members, results, strict=True):
        reduction.finish(result, 1.0)
        if commit:
            kept.commit()
    return results


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SHAPES = [Matrix(10, 40, 30), Matrix(1210, 3, 3)]


def test_whole_rows_within_a_range_are_matrices_of_their_own():
    # Rows of 30 from element 10: a range from 25 holds rows 1.. (from 40); up to 700 it ends in row 23 (700 = 10 + 23 x 30).
    assert matrices_within(SHAPES, 25, 675, 4) == [Matrix(40, 22, 30)]
    assert matrices_within(SHAPES, 0, 1300, 4) == [SHAPES[0]], "a 3 x 3 matrix is not worth rank 4"


@pytest.mark.parametrize("first", [0, 5])
def test_a_mean_of_low_rank_comes_back_and_the_rest_is_exchanged_as_it_is(first):
    base = normal(40, 3, seed=1)
    given = [normal(1219, seed=2), normal(1219, seed=3)]
    for number, shard in enumerate(given):
        shard[10:1210] = (base @ normal(3, 30, seed=7 + number)).reshape(-1)
    shards = [shard[first:] for shard in given]
    expected = (shards[0] + shards[1]) / 2
    results = together([LowRank(4, seed=5) for _ in shards], shards, first)
    assert torch.equal(results[0], results[1])
    assert torch.allclose(results[0], expected, atol=2e-4)
    assert torch.equal(results[0][: 10 - first], expected[: 10 - first])
    assert torch.equal(results[0][1210 - first :], expected[1210 - first :])
    assert exchanged_elements(SHAPES, first, 1219 - first, 4) == 19 - first + 4 * 70


def test_feedback_owes_exactly_what_was_not_sent_and_the_warm_start_finds_the_best_rank():
    given = [normal(1219, seed=2), normal(1219, seed=3)]
    members, residuals = [LowRank(4) for _ in given], [torch.zeros(1219) for _ in given]
    put, got = torch.zeros(1219), torch.zeros(1219)
    for _ in range(12):
        results = together(members, given, residuals=residuals)
        put += (given[0] + given[1]) / 2
        got += results[0]
    owed = (residuals[0] + residuals[1]) / 2
    assert torch.allclose(got + owed, put, atol=1e-3)
    # Without feedback, repeated rounds on one matrix are a power iteration: near the best rank-4 error (by SVD).
    plain = [LowRank(4)]
    for _ in range(60):
        results = together(plain, [given[0]])
    wanted = given[0][10:1210].view(40, 30).numpy()
    best = np.sqrt((np.linalg.svd(wanted, compute_uv=False)[4:] ** 2).sum())
    assert float((results[0] - given[0]).norm()) < 1.01 * best


def test_a_mean_that_does_not_count_can_be_repeated_and_state_comes_back_bit_for_bit():
    first, second = LowRank(4), LowRank(4)
    together([first], [normal(1219, seed=1)])
    second.load_state_dict(first.state_dict())
    assert list(first.state_dict()) == ["0:10:40:30"]
    assert first.state_dict(rail=1) == {}
    lost = together([second], [normal(1219, seed=3)], commit=False)
    second.drop()
    assert torch.equal(together([second], [normal(1219, seed=3)], commit=False)[0], lost[0])
    second.drop()
    shard = normal(1219, seed=2)
    assert torch.equal(together([first], [shard])[0], together([second], [shard])[0])


def test_regions_of_unequal_sums_owe_what_the_mean_over_ranks_left_out():
    # Three ranks in one region, one in the other: sums are given, the mean over 4 ranks is taken, and each region owes its sum
    # less half of 4 times the result: what both owe together is 4 times what the result lacks of the mean.
    shards, owed = [3 * normal(1219, seed=4), normal(1219, seed=5)], [torch.zeros(1219), torch.zeros(1219)]
    each = [Reduction(LowRank(2), 0, shard, 0, SHAPES, held) for shard, held in zip(shards, owed, strict=True)]
    for turn in (True, False):
        agreed = (each[0].message + each[1].message) / 4
        for reduction in each:
            reduction.message.copy_(agreed)
            if turn:
                reduction.turn()
    result = torch.empty(1219)
    for reduction in each:
        reduction.finish(result, 4 / 2)
    assert torch.allclose((owed[0] + owed[1]) / 4 + result, (shards[0] + shards[1]) / 4, atol=1e-5)
