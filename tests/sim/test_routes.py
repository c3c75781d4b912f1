from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import InfeasibleError, InputError
from isthmus.fabric import parse_fabric, read_fabric
from isthmus.sim import FabricMap, map_fabric, with_faults
from isthmus.sim.routes import route
from isthmus.sim.switches import Routing

EXAMPLES = Path(__file__).parents[2] / "examples"
SHAPES = {
    "clos-2": "switch: qm9700, shape: clos-2",
    "clos-3": "switch: qm8700, shape: clos-3, rail_optimised: true",
    "oversubscribed": "switch: qm9700, shape: clos-2, oversubscription: 3, rail_optimised: false",
    "dragonfly": "switch: qm8700, shape: dragonfly+",
    "torus": "shape: torus",
    "single": "switch: qm9700",
}


def chart_of(shape: str, routing: Routing | None = None, nodes: int = 96, kind: str = "hgx-a100-80") -> FabricMap:
    nodes = 8 if shape == "single" else nodes
    network = f"{{kind: infiniband, rate: 200 Gb/s, {SHAPES[shape]}}}"
    text = f"name: x\nregions: {{one: {{nodes: [{{count: {nodes}, kind: {kind}}}], network: {network}}}}}"
    return map_fabric(parse_fabric(text, "f"), routing=routing)


def names(chart: FabricMap, source: int, target: int) -> list[str]:
    links = route(chart, np.array([source]), np.array([target])).links[0]
    return [chart.cables.name(int(link)) for link in links if link >= 0]


def test_ways_inside_a_node_on_a_rail_and_to_another_rail() -> None:
    chart = map_fabric(read_fabric(EXAMPLES / "clos-1024.yaml"))
    assert names(chart, 0, 3) == ["ulanqab/node0/gpu0/nvlink:up", "ulanqab/node0/gpu3/nvlink:down"]
    same_leaf = ["ulanqab/node0/gpu0/host:up", "ulanqab/node0/nic0:up", "ulanqab/node1/nic0:down", "ulanqab/node1/gpu0/host:down"]
    assert names(chart, 0, 8) == same_leaf
    # To another rail the data first goes to the GPU of its own node on that rail (PXN), and so stays on one leaf.
    assert names(chart, 0, 9) == [
        "ulanqab/node0/gpu0/nvlink:up", "ulanqab/node0/gpu1/nvlink:down", "ulanqab/node0/gpu1/host:up", "ulanqab/node0/nic1:up",
        "ulanqab/node1/nic1:down", "ulanqab/node1/gpu1/host:down",
    ]  # fmt: skip
    # Node 127 is in the last group of leaves and another pod: up to the cores.
    assert "ulanqab/pod3/400 uplinks:down" in names(chart, 0, 8 * 127)


def test_the_wan_is_crossed_on_its_own_link_and_past_a_cut_over_another_region() -> None:
    chart = map_fabric(read_fabric(EXAMPLES / "beijing-shenzhen-shanghai.yaml"))
    assert "beijing-shenzhen:up" in names(chart, 0, 32)
    cut = with_faults(chart, ["beijing-shenzhen"])
    assert [name for name in names(cut, 0, 32) if "beijing" in name or "shanghai" in name][-2:] == [
        "beijing-shanghai:up", "shenzhen-shanghai:down",
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(shape=st.sampled_from(sorted(SHAPES)), routing=st.sampled_from(["balanced", "hash", "destination"]), data=st.data())
def test_every_way_leaves_the_source_enters_the_target_and_takes_no_link_twice(
    shape: str, routing: Routing, data: st.DataObject
) -> None:
    chart = chart_of(shape, routing)
    source = np.array(data.draw(st.lists(st.integers(0, chart.gpus - 1), min_size=1, max_size=20)))
    target = (source + data.draw(st.integers(1, chart.gpus - 1))) % chart.gpus
    found = route(chart, source, target, seed=data.draw(st.integers(0, 3)))
    for flow, links in enumerate(found.links):
        way = links[links >= 0]
        assert len(set(way.tolist())) == len(way)
        assert way[0] in (chart.nv_up[source[flow]], chart.host_up[source[flow]])
        assert way[-1] in (chart.nv_down[target[flow]], chart.host_down[target[flow]])
        assert found.latency_s[flow] > 0


@pytest.mark.parametrize("shape", ["clos-2", "clos-3", "oversubscribed"])
def test_hashed_flows_spread_over_all_live_uplinks_and_over_no_cut_one(shape: str) -> None:
    whole = chart_of(shape, "hash")
    chart = with_faults(whole, ["one/leaf0/uplink3"])
    nodes = np.arange(0, 768, 8)
    source, target = np.repeat(nodes, len(nodes)), np.tile(nodes, len(nodes))
    apart = source != target
    links = route(chart, source[apart], target[apart], seed=5).links
    cut = set(np.flatnonzero(chart.capacity <= 0).tolist())
    used = set(links[links >= 0].tolist())
    assert len(cut) == 2
    assert not used & cut
    block = next(block for block in chart.cables.blocks if "uplink" in block.pattern)
    of_leaf_0 = set(block.up(0, np.arange(block.dims[1])).tolist())
    assert len(of_leaf_0 & used) == block.dims[1] - 1


def test_the_seed_decides_the_hash_and_nothing_else_does() -> None:
    chart = chart_of("clos-2", "hash")
    ends = np.arange(0, 8), np.arange(400, 408)
    first, again, other = (route(chart, *ends, seed=seed).links for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_traffic_of_a_cut_adapter_takes_the_next_one_and_a_node_without_any_is_refused() -> None:
    chart = map_fabric(read_fabric(EXAMPLES / "shenzhen-shanghai.yaml"))
    assert "shenzhen/node0/nic1:up" in names(with_faults(chart, ["shenzhen/node0/nic0"]), 0, 8)
    with pytest.raises(InfeasibleError, match="shenzhen/node0/nic0"):
        names(with_faults(chart, ["shenzhen/node0/nic*"]), 0, 8)


def test_unknown_cables_are_refused_with_the_nearest_name() -> None:
    chart = map_fabric(read_fabric(EXAMPLES / "shenzhen-shanghai.yaml"))
    with pytest.raises(InputError) as refused:
        with_faults(chart, ["shenzen/node0/nic1"])
    assert str(refused.value) == "--fail: no cable is called 'shenzen/node0/nic1'\n  hint: did you mean 'shenzhen/node0/nic0'?"
