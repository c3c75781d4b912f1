from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.fabric import Level, levels, parse_fabric, read_fabric, wan_routes

EXAMPLES = Path(__file__).parents[2] / "examples"


def tiers(name: str) -> dict[str, Level]:
    return {level.name: level for level in levels(read_fabric(EXAMPLES / f"{name}.yaml"))}


def one_region(nodes: str, network: str = "{kind: infiniband, switch: qm9700}") -> dict[str, Level]:
    text = f"name: x\nregions:\n  west:\n    nodes: [{nodes}]\n    network: {network}\n"
    return {level.name: level for level in levels(parse_fabric(text, "f.yaml"))}


def figures(level: Level) -> tuple[int, float, int]:
    return level.members, level.bandwidth_bytes_per_s, level.lanes


def test_two_regions_of_two_nodes_have_three_tiers() -> None:
    found = tiers("shenzhen-shanghai")
    assert list(found) == ["nvlink", "node", "wan"]
    assert figures(found["nvlink"]) == (8, 450e9, 1)
    assert figures(found["node"]) == (2, 4 * 50e9, 4)
    assert figures(found["wan"]) == (2, 12.5e9, 8)
    assert found["wan"].latency_s == 0.009
    assert (found["nvlink"].latency_s, found["node"].latency_s) == pytest.approx((3.4e-6, 14e-6), rel=1e-12)
    assert found["nvlink"].carrier == "NVLink 4 through NVSwitch"
    assert found["node"].carrier == "4 x 400 Gb/s infiniband, single-switch"


def test_one_node_has_nvlink_alone() -> None:
    assert list(tiers("one-node")) == ["nvlink"]


def test_a_clos_adds_the_tier_between_leaf_groups() -> None:
    found = tiers("clos-1024")
    assert figures(found["node"]) == (20, 8 * 25e9, 8)  # 40-port leaves take 20 nodes of each rail
    assert figures(found["region"]) == (7, 20 * 8 * 25e9, 8)
    # Five switches on the way, four beyond the first at 130 ns.
    assert found["region"].latency_s - found["node"].latency_s == pytest.approx(4 * 130e-9, rel=1e-9)


def test_oversubscription_narrows_the_tier_between_groups_only() -> None:
    found = one_region("{count: 100, kind: hgx-h100}", "{kind: infiniband, switch: qm9700, oversubscription: 3}")
    assert figures(found["node"]) == (48, 8 * 50e9, 8)
    assert found["region"].bandwidth_bytes_per_s == pytest.approx(48 * 8 * 50e9 / 3, rel=1e-12)


def test_an_nvlink_rack_is_one_member_of_the_network() -> None:
    found = one_region("{count: 36, kind: gb200-nvl72}")
    assert figures(found["nvlink"]) == (72, 900e9, 1)
    assert figures(found["node"]) == (2, 18 * 4 * 50e9, 72)


def test_part_of_a_rack_joins_the_gpus_it_has() -> None:
    found = one_region("{count: 2, kind: gb200-nvl72}")
    assert list(found) == ["nvlink"]
    assert found["nvlink"].members == 8


def test_bridged_pairs_meet_over_pcie() -> None:
    found = one_region("{count: 2, kind: h100-pcie-8}")
    assert figures(found["nvlink"]) == (2, 300e9, 1)
    members, rate, lanes = figures(found["pcie"])
    assert (members, lanes) == (4, 2)
    assert rate == pytest.approx(2 * 63.02e9, rel=1e-4)


def test_cards_without_links_have_pcie_alone_in_the_node() -> None:
    found = one_region("{count: 2, kind: l40s-8}")
    assert list(found) == ["pcie", "node"]
    assert found["pcie"].members == 8


def test_a_port_slower_than_the_adapter_sets_the_uplink() -> None:
    found = one_region("{count: 2, kind: hgx-h100}", "{kind: infiniband, rate: 200 Gb/s, switch: qm8700}")
    assert found["node"].bandwidth_bytes_per_s == 8 * 25e9


def test_three_joined_regions_use_both_their_links_at_once() -> None:
    found = tiers("beijing-shenzhen-shanghai")["wan"]
    assert figures(found)[:2] == (3, 2 * 12.5e9)
    assert found.latency_s == pytest.approx(0.018, rel=1e-12)


CHAIN = """\
name: chain
regions:
  a: &site {nodes: [{count: 1, kind: hgx-h100}]}
  b: *site
  c: *site
wan:
  - {between: [a, b], rate: 100 Gb/s, rtt: 10 ms}
  - {between: [c, b], rate: 40 Gb/s, rtt: 5 ms}
"""


def test_a_pair_without_a_link_is_reached_over_the_third_region() -> None:
    fabric = parse_fabric(CHAIN, "f.yaml")
    route = next(each for each in wan_routes(fabric) if each.between == ("a", "c"))
    assert (route.rtt_s, route.links, route.rate_bytes_per_s) == (pytest.approx(0.015), 2, 5e9)
    wan = levels(fabric)[-1]
    assert (wan.bandwidth_bytes_per_s, wan.latency_s) == (5e9, pytest.approx(0.0075))


def test_the_adapters_bound_what_a_region_can_send() -> None:
    found = parse_fabric(CHAIN.replace("100 Gb/s", "100 Tb/s").replace("40 Gb/s", "100 Tb/s"), "f.yaml")
    assert levels(found)[-1].bandwidth_bytes_per_s == 8 * 50e9


def test_unlike_regions_are_as_weak_as_the_weakest_and_as_wide_as_the_widest() -> None:
    text = CHAIN.replace("  b: *site", "  b: {nodes: [{count: 3, kind: hgx-a100-40}], network: {kind: roce}}")
    found = {level.name: level for level in levels(parse_fabric(text, "f.yaml"))}
    assert found["nvlink"].bandwidth_bytes_per_s == 300e9
    assert found["node"].members == 3


@given(nodes=st.integers(1, 300), kind=st.sampled_from(["hgx-h100", "gb200-nvl72", "h100-pcie-8", "l40s-8", "dgx-2"]))
def test_the_tiers_together_hold_every_gpu_of_a_region(nodes: int, kind: str) -> None:
    text = f"name: x\nregions:\n  w: {{nodes: [{{count: {nodes}, kind: {kind}}}], network: {{kind: roce, switch: sn5600}}}}\n"
    fabric = parse_fabric(text, "f.yaml")
    held = 1
    for level in levels(fabric):
        held *= level.members
    assert held >= fabric.gpus
    assert all(level.members > 1 for level in levels(fabric))
