"""Published figures about joining regions: the consistent ones within 15%, the inconsistent ones with what is wrong in them.

The figures are those of two advice documents that circulate, checked in this project's facts (section 4, by number), and of
INTELLECT-1 (arXiv 2412.01152, table 2).
"""

from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.cost.codecs import codec_ratio
from isthmus.cost.collectives_group import sites_group
from isthmus.cost.collectives_time import collective_time
from isthmus.cost.link import LinkQuestion, answer_link
from isthmus.cost.step import blocking_sync_s
from isthmus.cost.transport import tcp_rate_bytes_per_s
from isthmus.fabric import Fabric, check_text, fibre_rtt_s, parse_fabric, read_fabric
from isthmus.planner.choose import weigh
from isthmus.planner.explain import rule_of_thumb
from isthmus.planner.price import to_candidate
from isthmus.workload import read_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
GBIT = 1e9 / 8


GPT3_FP16_BYTES = 350e9


def eight_nodes(network: str, nics: int) -> Fabric:
    """8 x 8 H100 with `nics` adapters a node on `network`."""
    nodes = f"{{count: 8, kind: hgx-h100, nics: {{count: {nics}, kind: connectx-7}}}}"
    return parse_fabric(f"name: m4\nregions:\n  one: {{nodes: [{nodes}], network: {{{network}}}}}\n", "m4.yaml")


def all_reduced_s(fabric: Fabric) -> float:
    return collective_time("all-reduce", GPT3_FP16_BYTES, sites_group(fabric)).seconds


def test_m4_175b_over_8_nodes_takes_14_4_s_on_one_nic_and_1_8_on_eight_not_8_2() -> None:
    infiniband = "kind: infiniband, rate: 400 Gb/s, switch: qm9700"
    one, eight = (all_reduced_s(eight_nodes(infiniband, nics)) for nics in (1, 8))
    assert one == pytest.approx(14.4, rel=0.15)
    assert eight == pytest.approx(1.8, rel=0.15)
    # INCONSISTENT: the published 8.2 s is 350 GB over one NIC at 85% once; a ring carries it 2 (n-1)/n times.
    once_s = GPT3_FP16_BYTES / (400 * GBIT * 0.85)
    assert once_s == pytest.approx(8.2, rel=0.01)
    assert one / 8.2 == pytest.approx(2 * 63 / 64, rel=0.15)


def test_m5_half_the_rate_takes_twice_as_long_and_a_quarter_four_times_not_2_8() -> None:
    full, half = (all_reduced_s(eight_nodes(f"kind: infiniband, rate: {rate} Gb/s, switch: qm9700", 1)) for rate in (400, 200))
    assert half / full == pytest.approx(16.4 / 8.2, rel=0.15)
    quarter = all_reduced_s(eight_nodes("kind: roce, rate: 100 Gb/s, switch: sn5600", 1))
    # INCONSISTENT: 23.3 s is half of the model (175 GB) at 60% of 100 Gb/s; the whole of it takes twice as long, and a ring
    # again about twice that.
    half_s = GPT3_FP16_BYTES / 2 / (100 * GBIT * 0.60)
    assert half_s == pytest.approx(23.3, rel=0.01)
    assert quarter / full == pytest.approx(4, rel=0.15)
    assert quarter > 2 * 23.3


def test_m6_beijing_shanghai_is_6_5_ms_away_and_13_there_and_back() -> None:
    assert fibre_rtt_s(1300e3) == pytest.approx(13e-3, rel=0.15)
    assert fibre_rtt_s(1300e3) / 2 == pytest.approx(6.5e-3, rel=0.15)


def test_m7_20_ms_beside_a_step_of_12_6_s_is_0_16_percent_not_61() -> None:
    kept = 12.6 / (12.6 + 0.020)
    assert kept == pytest.approx(1 - 0.0016, abs=1e-4)
    fabric = read_fabric(EXAMPLES / "shenzhen-shanghai.yaml")
    longer = replace(fabric, wan=tuple(replace(link, rtt_s=link.rtt_s + 0.020) for link in fabric.wan))
    steps = [
        next(each for each in weigh(one, read_workload("llama-3-8b")).ranked if each.strategy.name == "hierarchical").step_s
        for one in (fabric, longer)
    ]
    assert 0 < steps[1] / steps[0] - 1 < 0.002  # one way of it, once a step


def test_m8_4_bits_of_the_top_5_percent_are_10_6_gb_not_1_75_and_3_ms_is_faster_than_light() -> None:
    assert codec_ratio("topk-int4", 0.05) * 4 * 175e9 == pytest.approx(10.6e9, rel=0.15)
    wire_s = 1.75e9 / (100 * GBIT)
    assert wire_s == pytest.approx(0.140, rel=0.15)
    text = (EXAMPLES / "shenzhen-shanghai.yaml").read_text(encoding="utf-8").replace("rtt: 18 ms", "rtt: 3 ms")
    findings = [each for each in check_text(text, "f.yaml") if each.severity == "error"]
    assert any("light" in f"{each.reason} {each.rule}" for each in findings)


def test_m11_minus_18_percent_holds_for_a_step_of_87_s_and_not_for_one_of_12_6() -> None:
    # 350 GB at 85% of 100 Gb/s are 32.9 s, of which 42% hide: 19.1 s seen.
    seen = 350e9 / (100 * GBIT * 0.85) * (1 - 0.42)
    assert 87 / (87 + seen) - 1 == pytest.approx(-0.18, rel=0.15)
    assert 12.6 / (12.6 + seen) - 1 < -0.5


def test_m15_82_gbit_over_58_ms_needs_594_mb_in_flight_which_no_window_of_1_mib_holds() -> None:
    asked = LinkQuestion(rate_bytes_per_s=82 * GBIT, rtt_s=0.058, streams=1, control="bbr")
    answer = answer_link(asked)
    assert answer.product_bytes == pytest.approx(594e6, rel=0.15)
    # INCONSISTENT: with the 1 MiB of the published setting in flight one stream carries 0.15 Gb/s, 1/567 of what is claimed.
    held = tcp_rate_bytes_per_s(82 * GBIT, 0.058, 0.0, 1, 2**20)
    assert held.bind == "window"
    assert held.rate_bytes_per_s == pytest.approx(0.145 * GBIT, rel=0.15)
    assert answer_link(replace(asked, rate_bytes_per_s=100 * GBIT)).product_bytes / 2**20 == pytest.approx(691, rel=0.15)
    windows = [each for each in answer.settings if "mem" in each.name]  # and what to set instead is said
    assert windows


@pytest.mark.parametrize(("all_reduce_s", "utilisation"), [(103, 0.957), (382, 0.856), (469, 0.830)])
def test_intellect_1_keeps_what_a_blocking_sync_every_38_minutes_leaves(all_reduce_s: float, utilisation: float) -> None:
    inner_s = 38 * 60 / 100  # 100 inner steps between syncs
    assert inner_s / (inner_s + blocking_sync_s(all_reduce_s, 100)) == pytest.approx(utilisation, rel=0.01)


def test_advice_by_round_trip_alone_is_shown_and_contradicted_where_memory_forbids_it() -> None:
    # The documents choose by RTT bands; GPT-3 over 2 x 32 H100 cannot keep a replica in a region, whatever the RTT.
    workload = read_workload(EXAMPLES / "workloads" / "gpt3-175b-1024.yaml")
    weighed = weigh(read_fabric(EXAMPLES / "shenzhen-shanghai-8.yaml"), workload)
    ranked = [to_candidate(weighed.setting, each) for each in weighed.ranked]
    text = rule_of_thumb(weighed.setting, ranked, list(weighed.refused))
    assert "5 to 30 ms: local steps; not possible here: keeps a full replica in one region" in text
