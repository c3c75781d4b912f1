"""Further figures of two advice documents that circulate (facts, section 4, by number), by this product's own functions.

Figures that hold are reproduced within 15 %; those that cannot be are met by the figure that is, with what is wrong in them.
Not checkable for want of their conditions: M2 (absolute), M3, M10.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.cost.beside import stopped_share
from isthmus.cost.collectives_composed import RING, hierarchical
from isthmus.cost.collectives_constants import default_constants
from isthmus.cost.collectives_group import region_group, sites_group
from isthmus.cost.collectives_time import collective_time
from isthmus.cost.lossless import SHARED_BUFFERS, pfc_headroom_bytes
from isthmus.cost.money import bill, node_power_w
from isthmus.fabric import Prices, check_text, fibre_rtt_s, great_circle_m, pcie_rate_bytes_per_s, read_fabric
from isthmus.planner.choose import weigh
from isthmus.planner.price import to_candidate
from isthmus.workload import read_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
MIB, GIB = 2**20, 2**30


def test_m9_0_8_ms_in_a_node_and_22_5_across_hold_for_about_128_mb_and_3_6_ms_for_one_adapter_a_node() -> None:
    # 22.5 ms across is held by test_step_times. Two nodes of one 400 Gb/s adapter: 2 x 15/16 x 128 MB / 50 GB/s = 4.8 ms; the
    # published 3.6 ms takes NVLink's sum first, so that 128 MB cross once: 2.6 ms and what starting it takes.
    two = sites_group(read_fabric(EXAMPLES / "shenzhen-shanghai.yaml"))
    node, network = two
    one_adapter = (node, replace(network, rate_bytes_per_s=50e9))
    found = collective_time("all-reduce", 128e6, one_adapter)
    assert found.algorithm == "nvls-tree"
    assert found.low_s <= 3.6e-3 * 1.15
    assert found.high_s >= 3.6e-3 * 0.85
    assert collective_time("all-reduce", 128e6, two).seconds < 1.15e-3  # with the four adapters they have


def test_m12_pfc_at_300_kb_cannot_be_lossless_between_beijing_and_shenzhen() -> None:
    # Fibre of about 2,000 km: what is in flight when a pause is sent needs more than whole switches hold.
    distance = great_circle_m("Beijing", "Shenzhen")
    needed = pfc_headroom_bytes(25e9 / 8 * 4, distance)
    assert needed > 300e3 * 100
    assert needed > SHARED_BUFFERS["Spectrum-4 (SN5600)"]


@pytest.mark.parametrize(("minutes", "lost"), [(15, 0.003), (45, 0.009)])
def test_m13_a_pfc_stop_every_3_5_days_of_15_to_45_minutes_loses_0_3_to_0_9_percent(minutes: float, lost: float) -> None:
    assert stopped_share(3.5 * 86400, minutes * 60) == pytest.approx(lost, rel=0.15)


def test_m14_a_node_of_8_h100_draws_about_10_kw() -> None:
    [group] = read_fabric(EXAMPLES / "one-node.yaml").regions[0].groups
    assert node_power_w(group)[0] == pytest.approx(10e3, rel=0.15)


def test_m16_beijing_is_16_9_ms_of_light_from_xiamen_and_shanghai_8_so_8_ms_serves_fujian_alone() -> None:
    assert fibre_rtt_s(great_circle_m("Beijing", "Xiamen")) == pytest.approx(16.9e-3, rel=0.15)
    assert fibre_rtt_s(great_circle_m("Shanghai", "Xiamen")) == pytest.approx(8.0e-3, rel=0.15)

    def faster_than_light(north: str, rtt: str) -> bool:
        rest = "nodes: [{count: 1, kind: hgx-h100, nics: {count: 4, kind: connectx-7}}], network: {kind: infiniband}}"
        link = f"{{between: [xiamen, {north}], rate: 100 Gb/s, rtt: {rtt}}}"
        regions = f"  xiamen: {{city: Xiamen, {rest}\n  {north}: {{city: {north.title()}, {rest}\n"
        text = f"name: m16\nregions:\n{regions}wan:\n- {link}\n"
        return any("light" in found.reason for found in check_text(text, "f.yaml") if found.severity == "error")

    # INCONSISTENT: 60 ms is a congested way to Beijing, not its distance; 8 ms is what light needs to Shanghai along the great
    # circle, which no cable follows, and impossible to Beijing: no site in Xiamen is 8 ms from "East China".
    assert not faster_than_light("beijing", "60 ms")
    assert faster_than_light("beijing", "8 ms")
    assert faster_than_light("shanghai", "7.5 ms")
    assert not faster_than_light("shanghai", "10.5 ms")


def test_m17_a_hierarchy_over_32_nodes_loads_the_network_3_percent_less_than_rings_not_60() -> None:
    # INCONSISTENT as bytes: of 256 GPUs rings send 2 x 255/256 S over each node's adapters, a hierarchy 2 x 31/32 S.
    node, network = sites_group(read_fabric(EXAMPLES / "shenzhen-shanghai.yaml"))
    site = (node, replace(network, members=32))
    ring = collective_time("all-reduce", 1e13, site, algorithm="ring", protocol="simple").seconds
    [rails] = [part for part in hierarchical(1e13, site, default_constants(), RING) if part.what.startswith("all-reduce")]
    assert 1 - rails.seconds / ring == pytest.approx(1 - (31 / 32) / (255 / 256), rel=0.05)


@pytest.mark.parametrize(("month", "hour"), [(80_000, 13.7), (120_000, 20.5)])
def test_m18_80_to_120_thousand_a_month_for_8_gpus_are_13_7_to_20_5_a_gpu_hour(month: float, hour: float) -> None:
    prices = Prices(currency="CNY", as_of="2026-11", node_month=month)
    fabric = replace(read_fabric(EXAMPLES / "one-node.yaml"), prices=prices)
    weighed = weigh(fabric, read_workload("llama-3-8b"))
    prediction = to_candidate(weighed.setting, weighed.ranked[0]).prediction
    assert prediction is not None
    money = bill(fabric, prediction)
    assert money is not None
    assert money.per_month / (8 * 730.5) == pytest.approx(hour, rel=0.15)


def test_m19_eight_lanes_of_pcie_3_carry_7_88_gb_not_16() -> None:
    # INCONSISTENT: 16 GB/s adds both directions; a data sheet's rate is per direction.
    assert pcie_rate_bytes_per_s("3.0 x8") == pytest.approx(7.88e9, rel=0.01)


def test_m20_the_switch_wins_a_third_of_bandwidth_on_8_h100_and_does_not_halve_the_latency() -> None:
    # INCONSISTENT: measured are 29 to 31 % more bandwidth at large sizes and none below 1 MiB.
    one = read_fabric(EXAMPLES / "one-node.yaml")
    group = region_group(one, one.regions[0].name)

    def gain(size: float) -> float:
        ring, switch = (collective_time("all-reduce", size, group, algorithm=way).seconds for way in ("ring", "nvls"))
        return ring / switch

    assert gain(GIB) == pytest.approx(1.30, rel=0.15)
    assert gain(64 * 1024) < 1
    assert gain(MIB) < 1.15
    assert collective_time("all-reduce", 64 * MIB, group).algorithm == "nvls"
