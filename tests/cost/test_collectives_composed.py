"""All-reduces made of several collectives, and chains of rings over regions: closed forms, laws, counts by brute force."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cost.collectives_composed import AUTO, RING, hierarchical, root, seconds_of_parts, torus
from isthmus.cost.collectives_constants import default_constants
from isthmus.cost.collectives_group import Group, GroupLevel, part_of, ranks_of
from isthmus.cost.collectives_time import collective_time, seconds_of

KNOWN = default_constants()
NODE = GroupLevel(carrier="nvlink4", members=8, rate_bytes_per_s=450e9, adds=True)
NETWORK = GroupLevel(carrier="infiniband", members=4, rate_bytes_per_s=400e9)
SITE: Group = (NODE, NETWORK)
FEWER = settings(max_examples=40, deadline=None)
NVLINK, WIRE = 450e9 * KNOWN.carriers["nvlink4"].sustained, 400e9 * KNOWN.carriers["infiniband"].sustained


@pytest.mark.parametrize(
    ("stride", "ranks", "expected"),
    [
        (1, 8, [("nvlink4", 8, 450e9)]),  # tp 8 stays in the node
        (8, 4, [("infiniband", 4, 50e9)]),  # dp beside tp 8: one rank a node, one rail of 8
        (2, 16, [("nvlink4", 4, 450e9), ("infiniband", 4, 200e9)]),  # four ranks a node share their four rails
        (1, 32, [("nvlink4", 8, 450e9), ("infiniband", 4, 400e9)]),
        (16, 2, [("infiniband", 2, 50e9)]),  # every second node
        (4, 2, [("nvlink4", 2, 450e9)]),
        (32, 4, []),  # beyond the site: not its links' matter
        (1, 1, []),
    ],
)
def test_a_part_has_its_own_share_of_what_its_members_send(
    stride: int, ranks: int, expected: list[tuple[str, int, float]]
) -> None:
    assert [(level.carrier, level.members, level.rate_bytes_per_s) for level in part_of(SITE, stride, ranks)] == expected


@FEWER
@given(st.integers(0, 5), st.integers(0, 5))
def test_groups_that_fill_a_site_share_out_all_that_its_nodes_send(stride: int, ranks: int) -> None:
    part = part_of(SITE, 2**stride, 2**ranks)
    if 2 ** (stride + ranks) <= 32:
        assert ranks_of(part) == 2**ranks
    for level in part:
        if not level.in_node:
            inside = ranks_of([each for each in part if each.in_node])
            assert level.rate_bytes_per_s * 8 / inside == 400e9


def test_a_large_hierarchy_by_hand() -> None:
    # 7/8 of 1 TB in and out over NVLink; of the eighth 3/4 in and out over each GPU's eighth of the node's adapters.
    seconds = seconds_of_parts(hierarchical(1e12, SITE, KNOWN, RING))
    assert seconds == pytest.approx(2 * 7 / 8 * 1e12 / NVLINK + 2 * 3 / 4 * 1e12 / 8 / (WIRE / 8), rel=1e-3)


def test_a_large_buffer_to_one_root_a_node_uses_one_rail_of_eight() -> None:
    # Down to the root and back over NVLink, and between the roots 2 x 3/4 of all of it over an eighth of the adapters.
    parts = root(1e12, SITE, KNOWN)
    assert [part.what.split()[0] for part in parts] == ["reduce", "all-reduce", "broadcast"]
    assert seconds_of_parts(parts) == pytest.approx(2 * 1e12 / NVLINK + 1.5 * 1e12 / (WIRE / 8), rel=1e-2)


@FEWER
@given(st.floats(1e6, 1e12))
def test_one_root_a_node_is_never_quicker_than_every_gpu_on_its_own_rail(size: float) -> None:
    assert seconds_of_parts(root(size, SITE, KNOWN)) >= seconds_of_parts(hierarchical(size, SITE, KNOWN))


@FEWER
@given(st.floats(1, 1e12))
def test_a_hierarchy_of_one_level_is_the_collective_itself(size: float) -> None:
    network: Group = (NETWORK,)
    assert seconds_of_parts(hierarchical(size, network, KNOWN)) == seconds_of("all-reduce", size, network, KNOWN)
    assert seconds_of_parts(torus(size, NETWORK, (4, 1), KNOWN)) == seconds_of("all-reduce", size, network, KNOWN)
    assert AUTO == ("auto", "auto")


@FEWER
@given(st.lists(st.integers(2, 16), min_size=1, max_size=3))
def test_a_torus_moves_no_more_than_one_ring_over_all(dimensions: list[int]) -> None:
    # RS + AG along k1, then S / k1 along k2 ... telescopes to 2 (n-1)/n S, n the product.
    ranks = 1
    for members in dimensions:
        ranks *= members
    size = 1e15
    expected = 2 * (ranks - 1) / ranks * size / WIRE
    assert seconds_of_parts(torus(size, NETWORK, dimensions, KNOWN)) == pytest.approx(expected, rel=0.1)


@given(st.integers(2, 6), st.integers(1, 8))
def test_wan_hops_of_a_ring_blind_to_regions_are_those_of_its_longest_chain(regions: int, inside: int) -> None:
    ranks = regions * inside
    near: Group = (replace(NODE, members=inside),) if inside > 1 else ()
    far = GroupLevel(carrier="wan-tcp", members=regions, rate_bytes_per_s=1e9)
    hops = [edge % inside == 0 for edge in range(ranks)] * 3
    for collective, chain in (("all-reduce", 2 * (ranks - 1)), ("all-gather", ranks - 1)):
        longest = max(sum(hops[first : first + chain]) for first in range(ranks))
        there, away = (
            collective_time(collective, 1, (*near, replace(far, latency_s=way)), algorithm="ring", protocol="simple").seconds  # type: ignore[arg-type]
            for way in (0.0, 1.0)
        )
        assert away - there == pytest.approx(longest)
