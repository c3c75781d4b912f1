"""Collectives: closed forms worked by hand, bounds, and two ways to the same number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cost.collectives import (
    Link,
    Tier,
    all_to_all_s,
    flat_ring_across_regions_s,
    hierarchical_all_reduce_s,
    nvls_all_reduce_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    ring_reduce_scatter_s,
    root_all_reduce_s,
    send_s,
    tree_all_reduce_s,
)

SIZES = st.floats(1, 1e13)
RANKS = st.integers(2, 4096)
LINK = Link(latency_s=0.030, bandwidth_bytes_per_s=1e9, source="test")


def links(ramp: float = 0.0) -> st.SearchStrategy[Link]:
    return st.builds(
        Link,
        latency_s=st.floats(0, 1),
        bandwidth_bytes_per_s=st.floats(1e3, 1e13),
        ramp_s_per_root_byte=st.just(ramp),
        source=st.just("test"),
    )


def test_two_ranks_exchange_two_halves() -> None:
    # Two steps; each is 30 ms plus half of 8 GB at 1 GB/s.
    assert ring_all_reduce_s(8e9, 2, LINK) == pytest.approx(2 * (0.030 + 4.0), rel=1e-12)


def test_a_message_of_two_gigabytes_takes_latency_and_two_seconds() -> None:
    assert send_s(2e9, LINK) == pytest.approx(2.030, rel=1e-12)


def test_all_to_all_among_four_sends_three_quarters() -> None:
    # Three peers, each 30 ms and a quarter of 4 GB.
    assert all_to_all_s(4e9, 4, LINK) == pytest.approx(3 * (0.030 + 1.0), rel=1e-12)


def test_root_reduce_of_four_drives_one_link_three_times_each_way() -> None:
    assert root_all_reduce_s(1e9, 4, LINK) == pytest.approx(2 * (0.030 + 3.0), rel=1e-12)


def test_eight_ranks_in_a_tree_climb_three_levels_and_come_back() -> None:
    # 2 * 3 hops; 2 * 7/8 of 8 GB at 0.92 GB/s.
    assert tree_all_reduce_s(8e9, 8, LINK) == pytest.approx(6 * 0.030 + 14 / 0.92, rel=1e-12)


def test_a_reducing_switch_lets_each_rank_send_its_buffer_once_and_an_eighth() -> None:
    assert nvls_all_reduce_s(8e9, 8, LINK) == pytest.approx(0.030 + 9.0, rel=1e-12)


def test_two_by_two_hierarchy_by_hand() -> None:
    # Node of 2 at 1 GB/s without latency: half of 4 GB out, half back = 4 s. Outside, 2 GB between two at 0.5
    # GB/s: 2 x (0.01 + 2 s).
    tiers = [
        Tier(members=2, link=Link(latency_s=0, bandwidth_bytes_per_s=1e9, source="test")),
        Tier(members=2, link=Link(latency_s=0.01, bandwidth_bytes_per_s=5e8, source="test")),
    ]
    assert hierarchical_all_reduce_s(4e9, tiers) == pytest.approx(4.0 + 2 * (0.01 + 2.0), rel=1e-12)


@given(SIZES, RANKS, links())
def test_never_beats_the_bandwidth_bound(size: float, ranks: int, link: Link) -> None:
    bound_s = 2 * (ranks - 1) / ranks * size / link.bandwidth_bytes_per_s
    for price in (ring_all_reduce_s, tree_all_reduce_s):
        assert price(size, ranks, link) >= bound_s * (1 - 1e-12)
    assert nvls_all_reduce_s(size, ranks, link) >= size / link.bandwidth_bytes_per_s * (1 - 1e-12)
    assert root_all_reduce_s(size, ranks, link) >= bound_s * (1 - 1e-12)


@given(SIZES, st.floats(1, 10), RANKS, links(1e-9))
def test_more_bytes_or_less_bandwidth_never_take_less_time(size: float, factor: float, ranks: int, link: Link) -> None:
    slower = Link(
        latency_s=link.latency_s * factor,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / factor,
        ramp_s_per_root_byte=link.ramp_s_per_root_byte,
        source="test",
    )
    for price in (ring_all_reduce_s, tree_all_reduce_s, nvls_all_reduce_s, root_all_reduce_s, all_to_all_s):
        assert price(size * factor, ranks, link) >= price(size, ranks, link)
        assert price(size, ranks, slower) >= price(size, ranks, link) * (1 - 1e-12)


@given(SIZES, RANKS, links(1e-9))
def test_reduce_scatter_then_all_gather_is_an_all_reduce(size: float, ranks: int, link: Link) -> None:
    both = ring_reduce_scatter_s(size, ranks, link) + ring_all_gather_s(size, ranks, link)
    assert both == pytest.approx(ring_all_reduce_s(size, ranks, link), rel=1e-12)


@given(SIZES, RANKS, links(1e-9))
def test_a_hierarchy_of_one_level_is_the_ring(size: float, ranks: int, link: Link) -> None:
    assert hierarchical_all_reduce_s(size, [Tier(members=ranks, link=link)]) == ring_all_reduce_s(size, ranks, link)


@given(SIZES, st.lists(st.integers(2, 64), min_size=1, max_size=4))
def test_levels_of_equal_links_without_latency_move_as_much_as_one_ring(size: float, members: list[int]) -> None:
    # RS + AG over g1, then S/g1 over g2, ... telescopes to 2 (n-1)/n S with n the product.
    link = Link(latency_s=0, bandwidth_bytes_per_s=1e9, source="test")
    ranks = 1
    for count in members:
        ranks *= count
    tiers = [Tier(members=count, link=link) for count in members]
    assert hierarchical_all_reduce_s(size, tiers) == pytest.approx(ring_all_reduce_s(size, ranks, link), rel=1e-9)


@given(SIZES, links(1e-9))
def test_one_rank_has_nothing_to_do(size: float, link: Link) -> None:
    for price in (ring_all_reduce_s, tree_all_reduce_s, nvls_all_reduce_s, root_all_reduce_s, all_to_all_s):
        assert price(size, 1, link) == 0.0


@given(st.integers(2, 6), st.integers(1, 8))
def test_wan_hops_of_a_blind_ring_are_those_of_its_longest_chain(regions: int, ranks_per_region: int) -> None:
    ranks = regions * ranks_per_region
    hops = [edge % ranks_per_region == 0 for edge in range(ranks)] * 3
    longest = max(sum(hops[first : first + 2 * (ranks - 1)]) for first in range(ranks))
    nothing = Link(latency_s=0, bandwidth_bytes_per_s=1, source="test")
    wan = Link(latency_s=1, bandwidth_bytes_per_s=1, source="test")
    assert flat_ring_across_regions_s(0, regions, ranks_per_region, nothing, wan) == longest


@given(SIZES, st.integers(2, 4), st.integers(2, 64))
def test_a_blind_ring_carries_more_over_the_wan_than_a_hierarchy_needs(size: float, regions: int, ranks: int) -> None:
    local = Link(latency_s=0, bandwidth_bytes_per_s=1e15, source="test")
    wan = Link(latency_s=0, bandwidth_bytes_per_s=1e9, source="test")
    rail = Link(latency_s=0, bandwidth_bytes_per_s=1e9 / ranks, source="test")
    flat = flat_ring_across_regions_s(size, regions, ranks, local, wan)
    split = hierarchical_all_reduce_s(size, [Tier(members=ranks, link=local), Tier(members=regions, link=rail)])
    n = regions * ranks
    assert flat / split == pytest.approx((n - 1) / n / ((regions - 1) / regions), rel=1e-3)
