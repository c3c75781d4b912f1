"""Layouts against a second witness: the same network built link by link, walked and filled by scipy."""

from collections import defaultdict, deque
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from isthmus.errors import InfeasibleError
from isthmus.fabric.shapes import (
    Layout,
    Switching,
    endpoint_limit,
    hops,
    lay_out,
    leaf_split,
    smallest_shape,
    torus_dimensions,
)

Graph = dict[tuple[str, ...], dict[tuple[str, ...], int]]


def build_clos(layout: Layout, adapters: int, switching: Switching) -> Graph:
    """Nodes, leaves, spines and one vertex for all cores; capacities count links."""
    graph: Graph = defaultdict(lambda: defaultdict(int))

    def join(a: tuple[str, ...], b: tuple[str, ...], links: int) -> None:
        graph[a][b] += links
        graph[b][a] += links

    down, up = leaf_split(switching.radix, switching.oversubscription)
    pods = -(-layout.nodes // layout.nodes_per_pod)
    spines = layout.spines // pods if layout.spines else 0
    leaves: dict[tuple[str, ...], int] = {}
    for node, adapter in product(range(layout.nodes), range(adapters)):
        group = node // layout.nodes_per_leaf
        within = node % layout.nodes_per_leaf * adapters + adapter
        number = adapter if switching.rail_optimised else within // down
        leaf = ("leaf", str(group), str(number))
        leaves[leaf] = node // layout.nodes_per_pod
        join(("node", str(node)), leaf, 1)
    for leaf, pod in leaves.items():
        for spine in range(spines):
            join(leaf, ("spine", str(pod), str(spine)), up // spines)
    if layout.cores:
        for pod, spine in product(range(pods), range(spines)):
            below = sum(up // spines for found in leaves.values() if found == pod)
            join(("spine", str(pod), str(spine)), ("core",), below)
    return graph


def switches_between(graph: Graph, a: int, b: int) -> int:
    """Switches on the shortest path, by breadth-first search through switches only."""
    start, goal = ("node", str(a)), ("node", str(b))
    seen, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for there in graph[here]:
            if there not in seen and (there[0] != "node" or there == goal):
                seen[there] = seen[here] + 1
                queue.append(there)
    return seen[goal] - 1


def flow_between_halves(graph: Graph, nodes: int) -> int:
    names = list(graph)
    index = {name: number for number, name in enumerate(names)}
    size = len(names) + 2
    matrix = np.zeros((size, size), dtype=np.int32)
    for a, found in graph.items():
        for b, links in found.items():
            matrix[index[a], index[b]] = links
    for node in range(nodes):
        if node < nodes // 2:
            matrix[size - 2, index["node", str(node)]] = 10**6
        else:
            matrix[index["node", str(node)], size - 1] = 10**6
    return int(maximum_flow(csr_matrix(matrix), size - 2, size - 1).flow_value)


@settings(max_examples=60)
@given(
    shape=st.sampled_from(["clos-2", "clos-3"]),
    radix=st.sampled_from([4, 8, 12, 16]),
    nodes=st.integers(2, 40),
    adapters=st.integers(1, 4),
    oversubscription=st.sampled_from([1.0, 2.0, 3.0]),
    rail_optimised=st.booleans(),
)
def test_a_clos_agrees_with_the_network_built_link_by_link(
    shape: str, radix: int, nodes: int, adapters: int, oversubscription: float, rail_optimised: bool
) -> None:
    switching = Switching(radix=radix, rate_bytes_per_s=1.0, oversubscription=oversubscription, rail_optimised=rail_optimised)
    down, _ = leaf_split(radix, oversubscription)
    assume(rail_optimised or down % adapters == 0)
    try:
        layout = lay_out(shape, nodes, adapters, switching)  # type: ignore[arg-type]
    except InfeasibleError:
        assume(False)
        return
    graph = build_clos(layout, adapters, switching)
    leaves = [vertex for vertex in graph if vertex[0] == "leaf"]
    spines = [vertex for vertex in graph if vertex[0] == "spine"]
    assert (layout.leaves, layout.spines) == (len(leaves), len(spines))
    assert all(sum(graph[vertex].values()) <= radix for vertex in leaves + spines)
    assert sum(graph[("core",)].values()) <= layout.cores * radix
    for a, b in {(0, nodes - 1), (0, 1), (nodes // 2, nodes - 1)}:
        if a != b:
            assert hops(layout, a, b) == switches_between(graph, a, b)
    flow = flow_between_halves(graph, nodes)
    assert flow >= layout.bisection_bytes_per_s * (nodes // 2 * 2 / nodes) - 1e-9
    if nodes % (2 * layout.nodes_per_leaf) == 0:  # halves end at leaves that are full: the taper binds exactly
        assert flow == pytest.approx(layout.bisection_bytes_per_s, rel=1e-12)


def test_128_nodes_of_eight_rails_on_64_ports_take_32_leaves_and_16_spines() -> None:
    # 8 rails x ceil(128 / 32) leaves; 32 x 32 up-links / 64 ports. As in NVIDIA's DGX SuperPOD of four scalable units.
    layout = lay_out("clos-2", 128, 8, Switching(radix=64, rate_bytes_per_s=50e9))
    assert (layout.leaves, layout.spines, layout.cores) == (32, 16, 0)
    assert layout.bisection_bytes_per_s == 64 * 8 * 50e9
    assert (hops(layout, 0, 31), hops(layout, 0, 32)) == (1, 3)


def test_the_three_tier_example_of_1024_adapters() -> None:
    # Radix 40: 20 nodes a leaf, 7 groups x 8 rails = 56 leaves; 2 groups (16 leaves) a pod, so 4 pods; 16 x 20 up-links
    # on spines of 20 down ports = 16 spines, next divisor of 20 is 20; cores 56 x 20 / 40 = 28.
    layout = lay_out("clos-3", 128, 8, Switching(radix=40, rate_bytes_per_s=25e9))
    assert (layout.leaves, layout.spines, layout.cores) == (56, 80, 28)
    assert layout.hops_limit == 5


@pytest.mark.parametrize(
    ("shape", "radix", "limit"),
    [
        ("single-switch", 64, 64),
        ("clos-2", 64, 2048),  # k^2 / 2
        ("clos-2", 40, 800),
        ("clos-3", 64, 65536),  # k^3 / 4
        ("clos-3", 4, 16),
        ("dragonfly+", 4, 20),  # 5 groups of 4
        ("torus", 4, None),
    ],
)
def test_the_most_adapters_of_a_shape(shape: str, radix: int, limit: int | None) -> None:
    assert endpoint_limit(shape, radix) == limit  # type: ignore[arg-type]


def test_sixteen_thousand_gpus_fit_three_tiers_of_64_ports_and_not_two() -> None:
    assert smallest_shape(16_384, 64) == "clos-3"
    layout = lay_out("clos-3", 2048, 8, Switching(radix=64, rate_bytes_per_s=50e9))
    # 2,048 / 32 = 64 groups x 8 rails = 512 leaves, 4 groups a pod, 16 pods of 32 spines; cores 512 x 32 / 64.
    assert (layout.leaves, layout.spines, layout.cores) == (512, 512, 256)


@given(radix=st.integers(2, 128), oversubscription=st.floats(1, 64))
def test_a_leaf_is_never_wider_than_its_switch_nor_more_tapered_than_asked(radix: int, oversubscription: float) -> None:
    down, up = leaf_split(radix, oversubscription)
    assert down >= 1
    assert down + up <= radix
    assert down / up <= oversubscription * (1 + 1e-12)


def test_too_many_adapters_are_refused_with_what_binds() -> None:
    with pytest.raises(InfeasibleError) as error:
        lay_out("single-switch", 16, 8, Switching(radix=64, rate_bytes_per_s=1.0))
    assert str(error.value) == (
        "single-switch of 64-port switches joins at most 64 adapters, 128 are needed\n"
        "  binding constraint: switch ports (16 nodes x 8 adapters)"
    )


def test_a_full_dragonfly_has_half_the_bisection_of_a_clos_and_four_hops() -> None:
    # k = 8: groups of 16, 17 of them, one link between each pair; half x half groups = 8 x 9 links of 272 / 2 wanted.
    layout = lay_out("dragonfly+", 272, 1, Switching(radix=8, rate_bytes_per_s=1.0))
    assert (layout.leaves, layout.spines) == (68, 68)
    assert layout.bisection_bytes_per_s == 72
    assert [hops(layout, 0, node) for node in (0, 1, 4, 16, 271)] == [0, 1, 3, 4, 4]


@given(nodes=st.integers(1, 300), data=st.data())
def test_torus_hops_agree_with_a_walk(nodes: int, data: st.DataObject) -> None:
    layout = lay_out("torus", nodes, 1, Switching(radix=0, rate_bytes_per_s=1.0))
    sides = layout.dimensions
    assert np.prod(sides) == nodes
    start, goal = data.draw(st.integers(0, nodes - 1)), data.draw(st.integers(0, nodes - 1))
    places = list(product(*(range(side) for side in sides)))
    seen, queue = {places[start]: 0}, deque([places[start]])
    while queue:
        here = queue.popleft()
        for axis, step in product(range(len(sides)), (1, -1)):
            there = tuple((place + step * (each == axis)) % sides[each] for each, place in enumerate(here))
            if there not in seen:
                seen[there] = seen[here] + 1
                queue.append(there)
    assert hops(layout, start, goal) == seen[places[goal]]
    assert layout.hops_limit == max(seen.values())


@pytest.mark.parametrize(
    ("nodes", "sides"), [(64, (4, 4, 4)), (128, (8, 4, 4)), (13, (13,)), (12, (3, 2, 2)), (1, (1,)), (2, (2,))]
)
def test_a_torus_is_as_near_a_cube_as_its_factors_allow(nodes: int, sides: tuple[int, ...]) -> None:
    assert torus_dimensions(nodes) == sides


def test_the_middle_of_a_torus_is_cut_on_both_sides_of_its_ring() -> None:
    layout = lay_out("torus", 64, 1, Switching(radix=0, rate_bytes_per_s=10.0))
    assert layout.bisection_bytes_per_s == 2 * 16 * 10.0
