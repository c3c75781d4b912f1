"""A region's batch by the speed of its ranks: the parts, the step they make, and going on from a checkpoint."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.plan import Strategy
from isthmus.runtime.balance import Balance, parts_by_speed


@given(costs=st.lists(st.floats(0.01, 10), min_size=1, max_size=3), each=st.integers(1, 4))
def test_no_other_parts_end_sooner_and_none_change_for_a_twentieth(costs: list[float], each: int) -> None:
    present = (each,) * len(costs)
    parts = parts_by_speed(present, costs)

    def slowest(held: tuple[int, ...]) -> float:
        return max(part * cost for part, cost in zip(held, costs, strict=True))

    others = [held for held in product(range(1, sum(present) + 1), repeat=len(costs)) if sum(held) == sum(present)]
    best = min(map(slowest, others))
    assert sum(parts) == sum(present)
    assert min(parts) >= 1
    assert slowest(parts) == best if parts != present else best >= 0.95 * slowest(present) * (1 - 1e-12)


def test_a_rank_thrice_as_slow_takes_a_third_of_the_others_part() -> None:
    assert parts_by_speed((8, 8), (0.001, 0.003)) == (12, 4)
    assert parts_by_speed((8, 8), (0.001, 0.00105)) == (8, 8)


def test_weights_make_the_mean_over_ranks_the_mean_over_samples() -> None:
    ranks = [Balance(rank, (12, 4)) for rank in range(2)]
    assert [(rank.first, rank.own, rank.weight) for rank in ranks] == [(0, 12, 1.5), (12, 4, 0.5)]
    assert [rank.region_tokens(rank.own * 64) for rank in ranks] == [16 * 64] * 2
    assert Balance(0, (5, 5, 5)).weight == 1.0


def test_speed_is_measured_until_the_last_choice_and_needs_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.0, 20.0, 20.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    balance, cpu = Balance(0, (4, 4), frozenset({2})), torch.device("cpu")
    for _ in range(2):
        balance.start(cpu, trained=1)
        balance.stop()
        balance.stop()
    assert balance.nanoseconds() == 1_500_000_000 / 8
    assert not balance.choose([balance.nanoseconds(), 0])
    balance.start(cpu, trained=2)
    balance.stop()
    assert balance.nanoseconds() == 0


@pytest.mark.tunnel
@pytest.mark.parametrize("kind", ["hierarchical", "local-steps"])
def test_a_slow_rank_takes_less_and_the_run_is_that_of_equal_parts(kind: Any, nursery: Any, tmp_path: Path) -> None:
    # 6 samples a rank; one rank of the three needs some 4 ms a sample more than a small model's step takes in all.
    way = Strategy(name=kind, kind=kind, inner_steps=2 if kind == "local-steps" else 1)
    regions, slow = {"east": 2, "west": 1}, {"drag_s": {"east-1": 0.004}, "balance_at": [2]}
    equal = nursery.run(way, regions=regions, steps=6).succeeded()
    folder = {"checkpoints": str(tmp_path), "checkpoint_at": 4}
    whole = nursery.run(way, regions=regions, steps=6, **slow, **folder).succeeded()
    chosen = [row for row in whole.metrics[0] if row["kind"] == "parts"]
    assert [row["step"] for row in chosen] == [2]
    fast, less = chosen[0]["samples"]
    assert fast + less == 12
    assert less <= 4
    tokens = [[row["tokens"] for row in rows if row["kind"] == "step"] for rows in whole.metrics]
    assert tokens[0] == [24] * 2 + [4 * fast] * 4
    assert tokens[1] == [24] * 2 + [4 * less] * 4
    assert len(whole.hashes()) == 1
    for found in whole.parameters:
        torch.testing.assert_close(found, equal.parameters[0], rtol=1e-4, atol=1e-6)
    again = nursery.run(way, regions=regions, steps=6, **slow, **folder).succeeded()
    steps = [row["tokens"] for row in again.metrics[0] if row["kind"] == "step"]
    assert steps == [4 * fast] * 2, "it went on from the checkpoint, with its parts"
    assert again.hashes() == whole.hashes()
