"""All-reduces of regions with unequal numbers of ranks, and repeated ones: real ranks on loopback, rails by generation."""

from typing import Any

import pytest

from isthmus.plan import CodecName, Strategy

pytestmark = pytest.mark.tunnel


def run(nursery: Any, counts: list[int], codec: CodecName, survivors: list[str] | None = None, **options: Any) -> Any:
    """What the ranks that are left say of rounds by reducing.py, the last of which only `survivors` see."""
    regions = {f"r{number}": ranks for number, ranks in enumerate(counts)}
    generations = [list(regions), list(regions), survivors or list(regions)]
    strategy = Strategy(name="test", kind="hierarchical", codec=codec)
    options = {"scenario": "again", "generations": generations, "size": 20_011} | options
    return nursery.run(strategy, regions=regions, **options).succeeded().said()


@pytest.mark.parametrize(
    ("counts", "codec"),
    [([2, 2], "int4"), ([1, 3], "int8"), ([3, 2], "none"), ([2, 3], "int4"), ([1, 2, 1], "int8")],
)
def test_a_repeated_all_reduce_leaves_the_bits_and_the_debts_of_one_that_never_failed(
    counts: list[int], codec: CodecName, nursery: Any
) -> None:
    lines = run(nursery, counts, codec)
    assert len(lines) == sum(counts)
    assert len({tuple(line["unbroken"]) for line in lines}) == 1
    assert all(line["broken"] == line["unbroken"] and line["same"] for line in lines)
    # As in test_hierarchical.py, of sums of at most three ranks (largest value 4.5 sqrt(3), with what round 0 left owing).
    assert max(line["error"] for line in lines) < {"none": 1e-6, "int8": 0.2, "int4": 2.6}[codec]


def test_staged_tensors_can_be_sent_again_too(nursery: Any) -> None:
    lines = run(nursery, [2, 1], "int4", staged=[0])
    assert len({tuple(line["unbroken"]) for line in lines}) == 1
    assert all(line["broken"] == line["unbroken"] and line["same"] for line in lines)


@pytest.mark.parametrize(("counts", "survivors"), [([2, 1, 1], ["r0", "r2"]), ([2, 2], ["r0"])])
def test_survivors_of_a_lost_region_get_the_mean_over_their_own_ranks(
    counts: list[int], survivors: list[str], nursery: Any
) -> None:
    lines = run(nursery, counts, "none", survivors, dies="r1")
    assert len(lines) == sum(counts[int(region[1])] for region in survivors)
    assert max(line["error"] for line in lines) < 1e-6
    assert len({line["broken"][1] for line in lines}) == 1
    assert len({line["broken"][2] for line in lines}) == 1
