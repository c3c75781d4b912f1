"""PowerSGD over flat ranges: exact where the rank suffices, equal bits everywhere, nothing lost."""

import threading

import numpy as np
import torch

from isthmus.runtime.codecs.lowrank import LowRank, Matrix, matrices_within


def together(members, shards, first=0, residuals=None):
    """Run `mean_` of all members at once, with a mean in member order."""
    barrier, box = threading.Barrier(len(members)), {}
    def run(number):
        def mean(tensor, phase):
            box[phase, number] = tensor.clone()
            barrier.wait(30)
            total = box[phase, 0].clone()
            for other in range(1, len(members)):
                total += box[phase, other]
            tensor.copy_(total / len(members))
            barrier.wait(30)
        members[number].mean_(shards[number], first, mean, None if residuals is None else residuals[number])
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(members))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SHAPES = [Matrix(10, 40, 30), Matrix(1210, 3, 3)]


def test_whole_rows_within_a_range_are_matrices_of_their_own():
    # Rows of 30 from element 10: a range from 25 holds rows 1.. (from 40); up to 700 it ends in row 23 (700 = 10 + 23 x 30).
    assert matrices_within(SHAPES, 25, 675, 4) == [Matrix(40, 22, 30)]
    assert matrices_within(SHAPES, 0, 1300, 4) == [SHAPES[0]], "a 3 x 3 matrix is not worth rank 4"


def test_a_mean_of_low_rank_comes_back_and_the_rest_is_exchanged_as_it_is():
    base = normal(40, 3, seed=1)
    shards = [normal(1219, seed=2), normal(1219, seed=3)]
    for number, shard in enumerate(shards):
        shard[10:1210] = (base @ normal(3, 30, seed=7 + number)).reshape(-1)
    expected = (shards[0] + shards[1]) / 2
    members = [LowRank(SHAPES, 4, seed=5) for _ in shards]
    together(members, shards)
    assert torch.equal(shards[0], shards[1])
    assert torch.allclose(shards[0], expected, atol=2e-4)
    assert torch.equal(shards[0][:10], expected[:10])
    assert members[0].exchanged_elements(0, 1219) == 19 + 4 * 70


def test_feedback_owes_exactly_what_was_not_sent_and_the_warm_start_finds_the_best_rank():
    given = [normal(1219, seed=2), normal(1219, seed=3)]
    members, residuals = [LowRank(SHAPES, 4) for _ in given], [torch.zeros(1219) for _ in given]
    put, got = torch.zeros(1219), torch.zeros(1219)
    for _ in range(12):
        shards = [shard.clone() for shard in given]
        together(members, shards, residuals=residuals)
        put += (given[0] + given[1]) / 2
        got += shards[0]
    owed = (residuals[0] + residuals[1]) / 2
    assert torch.allclose(got + owed, put, atol=1e-3)
    # Without feedback, repeated rounds on one matrix are a power iteration: near the best rank-4 error (by SVD).
    plain = [LowRank(SHAPES, 4)]
    for _ in range(60):
        shards = [given[0].clone()]
        together(plain, shards)
    wanted = given[0][10:1210].view(40, 30).numpy()
    best = np.sqrt((np.linalg.svd(wanted, compute_uv=False)[4:] ** 2).sum())
    assert float((shards[0] - given[0]).norm()) < 1.01 * best


def test_state_comes_back_bit_for_bit():
    first, second = LowRank(SHAPES, 4), LowRank(SHAPES, 4)
    together([first], [normal(1219, seed=1)])
    second.load_state_dict(first.state_dict())
    shards = [normal(1219, seed=2), normal(1219, seed=2)]
    together([first], shards[:1])
    together([second], shards[1:])
    assert torch.equal(shards[0], shards[1])
