"""What if: the grid, its refusals, and that each point is the plan one would get there."""

from itertools import pairwise
from pathlib import Path

import pytest

from isthmus.errors import InputError
from isthmus.fabric import edited, parse_fabric
from isthmus.planner.choose import weigh
from isthmus.planner.vary import parse_variation, vary
from isthmus.workload import read_workload

FABRIC = Path(__file__).parents[2] / "examples" / "shenzhen-shanghai.yaml"
TEXT = FABRIC.read_text(encoding="utf-8")
LLAMA = read_workload("llama-3-8b")


def test_ranges_are_even_in_their_logarithm_when_they_are_wide_and_whole_where_they_count() -> None:
    assert parse_variation("wan.rate=1..100Gb/s:3", True).values == ("1 Gb/s", "10 Gb/s", "100 Gb/s")
    assert parse_variation("rtt=10..30ms:3", True).values == ("10 ms", "20 ms", "30 ms")
    assert parse_variation("regions.shanghai.nodes=1..32:6", True).values == (1, 2, 4, 8, 16, 32)
    assert parse_variation("wan.loss=0,1e-6,1e-5", True).values == (0, 1e-6, 1e-5)
    assert parse_variation("wan.rate=10,40 Gb/s", True).values == ("10 Gb/s", "40 Gb/s")


@pytest.mark.parametrize(
    "text", ["wan.rate", "wan.rate=", "wan.rate=5..", "wan.rate=9..3Gb/s", "rtt=1us..9ms", "rtt=a,b", "rtt=1..9ms:1"]
)
def test_what_is_no_variation_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--vary"):
        parse_variation(text, True)


def test_every_point_is_the_plan_there_and_changes_lie_between_points() -> None:
    varied = vary(TEXT, "f", LLAMA, [parse_variation("wan.rate=5..500Gb/s:3", True)])
    names = []
    for point in varied.points:
        there = parse_fabric(edited(TEXT, "f", {"wan.rate": point.values[0]}), "f")
        assert point.best is not None
        first = weigh(there, LLAMA).ranked[0]
        assert (point.best.strategy, point.best.prediction and point.best.prediction.step_s) == (first.strategy, first.step_s)
        names.append(first.strategy.name)
    assert [(change.below, change.above) for change in varied.changes] == [pair for pair in pairwise(names) if pair[0] != pair[1]]


def test_doubled_units_change_nothing() -> None:
    in_bits, in_bytes = (vary(TEXT, "f", LLAMA, [parse_variation(text, True)]) for text in ("wan.rate=80Gb/s", "wan.rate=10GB/s"))
    assert in_bits.points[0].best == in_bytes.points[0].best


def test_what_does_not_fit_is_a_point_with_its_reason() -> None:
    varied = vary(TEXT, "f", read_workload("llama-3-405b"), [parse_variation("regions.nodes=2,16", True)])
    assert [point.best is None for point in varied.points] == [True, False]
    assert "memory" in varied.points[0].refused


def test_a_key_that_neither_document_has_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        vary(TEXT, "f", LLAMA, [parse_variation("workload.mfo=0.3,0.4", True)])
    assert caught.value.hint == "did you mean 'workload.mfu'?"
