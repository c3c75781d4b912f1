"""C3: our columns hold the same executions as Calculon's own enumeration, and are ranked in seconds."""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def layouts():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import layouts
    finally:
        sys.path.remove(str(BENCHMARKS))
    return layouts


@pytest.mark.parametrize(("overlap", "count"), [(False, 177_804), (True, 1_031_448)])
def test_the_space_has_as_many_executions_as_calculon_counts(layouts, overlap: bool, count: int) -> None:
    # llm-optimal-execution -d, GPT-3 175B, 4,096 A100, no offload tier; without and with its two --no-overlap flags.
    assert len(layouts.enumerate_space(96, 96, 4096, 4096, overlap).batch) == count


def test_the_best_execution_without_overlap_is_one_that_calculon_puts_within_3_percent_of_its_own(layouts) -> None:
    # Calculon caa4b11 gives this one 338.2 samples/s, its own best 346.3 (benchmarks/layouts.py --calculon).
    space, rates, order, _ = layouts.ranked(overlap=False)
    best = layouts.execution(space, int(order[0]))
    degrees = [best[key] for key in ("tensor_par", "pipeline_par", "data_par", "microbatch_size", "pipeline_interleaving")]
    assert (degrees, best["activation_recompute"]) == ([4, 8, 128, 2, 12], "attn_only")
    assert (np.diff(rates[order]) <= 0).all()
