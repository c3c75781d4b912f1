"""The ranks' records reduced to figures, against sums done by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.trial.measured import combine_starts, read_lines, reduce_metrics


def steps(block: int, mode: str, seconds: list[float], wan_from: float = 0.0, wan_step: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"kind": "step", "step": n, "block": block, "mode": mode, "seconds": s, "loss": 1.0, "tokens": 100, "exposed_s": s / 2,
         "backward_s": s / 4, "wan_bytes": wan_from + wan_step * (n + 1)}
        for n, s in enumerate(seconds)
    ]


def one_rank(slow: float) -> list[dict[str, Any]]:
    return [
        {"kind": "start", "params": 10, "gradient_bytes": 40},
        {"kind": "buckets", "bytes": [16, 24]},
        *steps(0, "warmup", [9.0]),
        *steps(1, "on", [2.0 * slow, 4.0 * slow], 0.0, 50.0),
        *steps(2, "off", [1.5, 1.5], 100.0),
        *steps(3, "on", [2.0 * slow, 2.0 * slow], 100.0, 50.0),
        *steps(4, "off", [1.0, 1.0], 200.0),
        {"kind": "eval", "tokens": 400, "loss": 2.5},
        {"kind": "end", "hash": "ab"},
    ]


def test_blocks_reduce_to_medians_over_repeats_and_ranks() -> None:
    measured = reduce_metrics({"west-0": one_rank(1.0), "east-0": one_rank(1.0)})
    assert measured is not None
    # On-blocks take (2+4)/2 = 3 and (2+2)/2 = 2 s a step; off-blocks 1.5 and 1.
    assert measured.step_s_repeats == (3.0, 2.0)
    assert measured.step_s == 2.5
    assert measured.off_step_s_repeats == (1.5, 1.0)
    assert measured.off_step_s == 1.25
    # The first on-block has one off neighbour (1.5), the second two (mean 1.25): 1.5/3 and 1.25/2.
    assert measured.utilisation == pytest.approx((1.5 / 3 + 1.25 / 2) / 2)
    assert measured.tokens_per_s == 200 / 2.5
    assert measured.wan_bytes_per_step == 50.0
    assert measured.backward_fraction == 0.25
    assert measured.straggler_s == 0.0
    assert (measured.parameters, measured.gradient_bytes, measured.buckets) == (10, 40, (16, 24))
    assert measured.loss == ((400, 2.5),)
    assert measured.hashes == ("ab", "ab")


def test_one_slow_start_of_three_does_not_decide_the_compute() -> None:
    starts = []
    for seconds, straggler in ((1.0, 0.0), (1.3, 0.4), (1.1, 0.2)):
        west, east = one_rank(1.0)[:2], one_rank(1.0)[:2]
        west += steps(0, "off", [seconds, seconds])
        east += steps(0, "off", [seconds + straggler, seconds + straggler])
        measured = reduce_metrics({"west-0": west, "east-0": east})
        assert measured is not None
        starts.append(measured)
    together = combine_starts(starts)
    # A block's time is the median over its two ranks: 1.0, 1.5 and 1.2 s; what they wait for each other half their difference.
    assert together.off_step_s_repeats == pytest.approx((1.0, 1.5, 1.2))
    assert together.off_step_s == pytest.approx(1.2)
    assert together.straggler_s == pytest.approx(0.1)
    assert (together.steps, together.buckets) == (6, (16, 24))


def test_regions_that_take_turns_being_slow_pay_for_the_slower_one() -> None:
    west, east = one_rank(1.0)[:2], one_rank(1.0)[:2]
    west += steps(0, "off", [1.0, 3.0, 1.0, 3.0])
    east += steps(0, "off", [3.0, 1.0, 3.0, 1.0])
    measured = reduce_metrics({"west-0": west, "east-0": east})
    assert measured is not None
    # Every step one region takes 3 s and one 1 s: the median step is 2 s, the slower of both always 3 s.
    assert measured.straggler_s == pytest.approx(1.0)


def test_the_busiest_region_counts_the_bytes_of_all_its_ranks() -> None:
    ranks = {"west-0": one_rank(1.0), "west-1": one_rank(1.0), "east-0": one_rank(1.0)}
    measured = reduce_metrics(ranks)
    assert measured is not None
    assert measured.wan_bytes_per_step == 100.0


def test_a_block_that_one_rank_never_reached_does_not_count() -> None:
    short = one_rank(1.0)[:6]  # dies within the first off-block
    measured = reduce_metrics({"west-0": one_rank(1.0), "east-0": short})
    assert measured is not None
    assert measured.step_s_repeats == (3.0,)


def test_no_complete_block_means_no_figures() -> None:
    assert reduce_metrics({"west-0": [{"kind": "start"}]}) is None
    assert reduce_metrics({}) is None


def test_a_line_cut_short_by_a_dying_rank_is_left_out(tmp_path: Path) -> None:
    lines = [json.dumps(record) for record in one_rank(1.0)[:4]]
    (tmp_path / "west-0.jsonl").write_text("\n".join(lines) + '\n{"kind": "st', encoding="utf-8")
    assert len(read_lines(tmp_path)["west-0"]) == 4
