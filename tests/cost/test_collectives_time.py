"""The collective model: its laws, its closed forms at the ends, and what it must never beat."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from isthmus.cost.collectives_composed import hierarchical, root, seconds_of_parts
from isthmus.cost.collectives_constants import constants_from, default_constants, known_constants
from isthmus.cost.collectives_curves import curves
from isthmus.cost.collectives_group import Group, GroupLevel, ranks_of, with_ranks
from isthmus.cost.collectives_time import collective_seconds, collective_time
from isthmus.errors import InfeasibleError
from isthmus.fabric.carriers import IN_NODE_CARRIERS, NETWORK_CARRIERS
from isthmus.formats.collective_runs import COLLECTIVES, Collective

FEWER = settings(max_examples=40, deadline=None)
RATES = st.floats(1e8, 2e12)
NODE = GroupLevel(carrier="nvlink4", members=8, rate_bytes_per_s=450e9, adds=True)
SIZES = st.floats(1, 1e12)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    inside = st.builds(
        GroupLevel,
        carrier=st.sampled_from(IN_NODE_CARRIERS),
        members=st.integers(2, 72),
        rate_bytes_per_s=RATES,
        adds=st.just(False),
    )
    above = st.builds(
        GroupLevel, carrier=st.sampled_from(NETWORK_CARRIERS), members=st.integers(2, 256), rate_bytes_per_s=RATES,
        latency_s=st.floats(0, 0.1),
    )  # fmt: skip
    switch = replace(NODE, members=draw(st.integers(2, 8)), rate_bytes_per_s=draw(RATES))
    first = draw(st.one_of(st.just(()), inside.map(lambda level: (level,)), st.just((switch,))))
    rest = tuple(draw(st.lists(above, min_size=0 if first else 1, max_size=2)))
    return (*first, *rest)


@FEWER
@given(collective=st.sampled_from(COLLECTIVES), group=groups(), size=SIZES, more=st.floats(1, 1e3))
def test_more_bytes_are_never_faster(collective: Collective, group: Group, size: float, more: float) -> None:
    assert collective_time(collective, size * more, group).seconds >= collective_time(collective, size, group).seconds


@FEWER
@given(collective=st.sampled_from(COLLECTIVES), group=groups(), size=SIZES, more=st.floats(1, 100), data=st.data())
def test_more_bandwidth_is_never_slower(
    collective: Collective, group: Group, size: float, more: float, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(group) - 1))
    wider = (*group[:index], replace(group[index], rate_bytes_per_s=group[index].rate_bytes_per_s * more), *group[index + 1 :])
    assert collective_time(collective, size, wider).seconds <= collective_time(collective, size, group).seconds


@FEWER
@given(collective=st.sampled_from(COLLECTIVES), group=groups(), size=SIZES, unit=st.sampled_from([0.125, 2.0, 8.0, 1e3]))
def test_doubled_units_of_bytes_change_nothing(collective: Collective, group: Group, size: float, unit: float) -> None:
    # Counted in bits (or anything else) every size and every rate grows alike, and seconds stay.
    assume(all(level.carrier != "host" for level in group))  # its limit of reads in flight is a rate of its own
    in_bytes = {"fill_bytes", "ll_bytes_per_s"}
    values = {each.name: each.value * (unit if each.name in in_bytes else 1) for each in known_constants()}
    grown = tuple(replace(level, rate_bytes_per_s=level.rate_bytes_per_s * unit) for level in group)
    seconds = collective_seconds(collective, np.array([size * unit]), grown, constants=constants_from(values))
    assert seconds[0] == pytest.approx(collective_time(collective, size, group).seconds, rel=1e-9)


@FEWER
@given(group=groups(), size=SIZES, more=st.floats(1, 100), data=st.data())
def test_a_composed_all_reduce_is_no_slower_with_more_bandwidth_at_any_level(
    group: Group, size: float, more: float, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(group) - 1))
    wider = (*group[:index], replace(group[index], rate_bytes_per_s=group[index].rate_bytes_per_s * more), *group[index + 1 :])
    for composed in (hierarchical, root):
        before, after = (seconds_of_parts(composed(size, each, default_constants())) for each in (group, wider))
        assert after <= before * (1 + 1e-12)


@FEWER
@given(collective=st.sampled_from(COLLECTIVES), group=groups(), size=SIZES)
def test_no_collective_sends_faster_than_its_slowest_links_carry_what_must_cross_them(
    collective: Collective, group: Group, size: float
) -> None:
    # At least half the buffer enters or leaves a member of any level: whatever adds up or is gathered has to.
    slowest = min(level.rate_bytes_per_s for level in group)
    assume(collective != "all-to-all")
    assert collective_time(collective, size, group).seconds >= size / 2 / slowest / 2


@FEWER
@given(size=SIZES, parts=st.sampled_from([(2, 2), (2, 4), (4, 4), (16, 2)]))
def test_naming_a_network_in_two_levels_changes_nothing(size: float, parts: tuple[int, int]) -> None:
    lower, upper = parts
    level = GroupLevel(carrier="infiniband", members=lower * upper, rate_bytes_per_s=400e9)
    whole = (NODE, level)
    split = (NODE, replace(level, members=lower), replace(level, members=upper))
    for collective in ("all-reduce", "all-gather", "broadcast"):
        assert collective_time(collective, size, split).seconds == pytest.approx(
            collective_time(collective, size, whole).seconds, rel=1e-12
        )


@FEWER
@given(collective=st.sampled_from(COLLECTIVES), group=groups(), sizes=st.lists(SIZES, min_size=1, max_size=5))
def test_many_sizes_at_once_are_the_single_ones(collective: Collective, group: Group, sizes: list[float]) -> None:
    together = collective_seconds(collective, np.array(sizes), group)
    assert list(together) == pytest.approx([collective_time(collective, size, group).seconds for size in sizes], rel=1e-12)


@FEWER
@given(group=groups())
def test_a_large_ring_is_bound_by_the_wire_alone(group: Group) -> None:
    # 2 (n-1)/n S / B as S grows, B the slowest of line rate times share (Patarasuk & Yuan, JPDC 69(2), 2009).
    assume(all(level.carrier != "host" for level in group))
    n, constants = ranks_of(group), default_constants()
    rate = min(level.rate_bytes_per_s * constants.carriers[level.carrier].sustained for level in group)
    size = 1e21
    seconds = collective_time("all-reduce", size, group, algorithm="ring", protocol="simple").seconds
    assert seconds == pytest.approx(2 * (n - 1) / n * size / rate, rel=1e-3)


def test_a_byte_costs_the_hops_of_the_quickest_protocol() -> None:
    # Ring, LL: m x (6.6 + 14 hops of 0.6 us times the class's own) us; no other way has fewer.
    constants = default_constants()
    hops = 6.6e-6 + 14 * 0.6e-6 * constants.carriers["nvlink4"].hop
    found = collective_time("all-reduce", 1, (NODE,))
    assert (found.algorithm, found.protocol, found.limit) == ("ring", "ll", "latency")
    assert found.seconds == pytest.approx(constants.latency_ll * hops, rel=0.01)


def test_the_switch_adds_on_one_h100_node_and_the_ring_on_a_100() -> None:
    ampere = replace(NODE, carrier="nvlink3", rate_bytes_per_s=300e9, adds=False)
    assert collective_time("all-reduce", 1e9, (NODE,)).algorithm == "nvls"
    assert collective_time("all-reduce", 1e9, (ampere,)).algorithm == "ring"
    assert collective_time("all-gather", 1e9, (NODE,)).algorithm == "ring"


def test_two_h100_nodes_beat_the_ring_by_adding_in_the_switch() -> None:
    # Across go S, not 2 (n-1)/n S: busbw 467 of 400 GB/s in public logs of two 8 x 400G nodes.
    two = (NODE, GroupLevel(carrier="infiniband", members=2, rate_bytes_per_s=400e9))
    found = collective_time("all-reduce", 8e9, two)
    assert found.algorithm == "nvls-tree"
    assert 1.875 * 8e9 / found.seconds > 400e9


def test_what_a_group_cannot_do_is_refused_with_the_group_in_words() -> None:
    with pytest.raises(InfeasibleError, match="no all-gather with algorithm nvls and protocol auto on 8 over nvlink4"):
        collective_time("all-gather", 1e9, (NODE,), algorithm="nvls")


def test_ranks_fill_a_group_from_the_inside() -> None:
    group = (NODE, GroupLevel(carrier="infiniband", members=4, rate_bytes_per_s=400e9))
    assert [level.members for level in with_ranks(group, 16)] == [8, 2]
    assert [level.members for level in with_ranks(group, 4)] == [4]
    assert with_ranks(group, 1) == ()
    with pytest.raises(ValueError, match="12 ranks do not fill 8 x 4"):
        with_ranks(group, 12)


def test_a_tree_over_two_nodes_sends_the_buffer_over_the_network_once_where_a_ring_sends_2_n_minus_1_over_n_of_it() -> None:
    # Published: 2 x 2 H100 on two adapters of 50 GB/s each all-reduce at a bus bandwidth of 145 GB/s, above the wire's 100.
    pair = GroupLevel(carrier="nvlink4", members=2, rate_bytes_per_s=450e9)
    network = GroupLevel(carrier="infiniband", members=2, rate_bytes_per_s=100e9)
    ring, tree = (
        collective_time("all-reduce", 64e9, (pair, network), algorithm=way, protocol="simple").seconds for way in ("ring", "tree")
    )
    share = default_constants().share_tree
    assert ring / tree == pytest.approx(2 * 3 / 4 * share, rel=0.01)
    assert 1.5 * 1.0737 / collective_time("all-reduce", 1.0737e9, (pair, network)).seconds == pytest.approx(145, rel=0.15)
    four = replace(network, members=4)  # with more nodes a tree sends what a ring does
    assert collective_time("all-reduce", 64e9, (pair, four), algorithm="tree", protocol="simple").seconds > 1.4 * tree


def test_of_two_gpus_over_host_memory_a_broadcast_is_bound_by_the_slot_and_a_sum_by_both_directions_at_once() -> None:
    two = (GroupLevel(carrier="host", members=2, rate_bytes_per_s=15.75e9),)
    carriers = default_constants().carriers
    for collective, carrier in (("broadcast", "pcie"), ("all-reduce", "host")):
        found = collective_time(collective, 64e9, two, algorithm="ring", protocol="simple").seconds
        assert 64e9 / found == pytest.approx(15.75e9 * carriers[carrier].sustained, rel=0.01)


def test_where_a_racks_switches_add_a_step_moves_every_gpus_chunk_so_filling_takes_as_much_longer() -> None:
    def fill_s(gpus: int) -> float:
        rack = (GroupLevel(carrier="nvlink5", members=gpus, rate_bytes_per_s=900e9, adds=True),)
        [curve] = curves("all-reduce", rack, "nvls", "simple", default_constants())
        return curve.fill_s

    assert fill_s(72) == pytest.approx(9 * fill_s(8))
