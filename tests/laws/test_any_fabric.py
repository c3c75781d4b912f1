"""Laws that hold on any fabric: more bandwidth is never slower, other units change nothing, folding changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cli.simulated import carriage_of
from isthmus.fabric import Fabric, parse_fabric
from isthmus.planner.choose import weigh
from isthmus.sim import Carriage, Collective, map_fabric, phases_of, play_phases
from isthmus.workload import read_workload

LLAMA = read_workload("llama-3-8b")
FEW = settings(max_examples=8, deadline=None)
KINDS = (("all-reduce", "ring"), ("all-reduce", "hierarchical"), ("all-gather", "ring"), ("all-to-all", "burst"))
UNITS = {"b/s": 8.0, "kb/s": 8e-3, "Mb/s": 8e-6, "Gb/s": 8e-9, "MB/s": 1e-6, "GB/s": 1e-9}


def text_of(nodes: int, nics: int, rail: str, wan: str, rtt_ms: float) -> str:
    site = f"{{nodes: [{{count: {nodes}, kind: hgx-h100, nics: {{count: {nics}, kind: connectx-7}}}}], "
    site += f"network: {{kind: infiniband, rate: {rail}, switch: qm9700}}}}"
    link = f"{{between: [east, west], rate: {wan}, rtt: {rtt_ms} ms}}"
    return f"name: drawn\nregions:\n  east: {site}\n  west: {site}\nwan:\n- {link}\n"


@st.composite
def fabrics(draw: st.DrawFn, most_nodes: int = 2) -> Fabric:
    rail, wan = draw(st.sampled_from(["200 Gb/s", "400 Gb/s"])), f"{draw(st.integers(1, 400))} Gb/s"
    nodes, nics = draw(st.integers(1, most_nodes)), draw(st.sampled_from([4, 8]))
    return parse_fabric(text_of(nodes, nics, rail, wan, draw(st.integers(1, 80))), "drawn.yaml")


def wider(fabric: Fabric, times: float) -> Fabric:
    return replace(fabric, wan=tuple(replace(link, rate_bytes_per_s=link.rate_bytes_per_s * times) for link in fabric.wan))


def played_s(fabric: Fabric, kind: tuple[str, str], size: float, carriage: Carriage, fold: bool = True) -> list[float]:
    chart = map_fabric(fabric, carriage, "balanced")
    asked = Collective(kind=kind[0], size_bytes=size, ranks=np.arange(chart.gpus), algorithm=kind[1])  # type: ignore[arg-type]
    return [each.seconds for each in play_phases(phases_of(chart, asked), chart.capacity, fold)]


@FEW
@given(fabric=fabrics(most_nodes=1), kind=st.sampled_from(KINDS), size=st.floats(1e5, 1e9))
def test_folding_changes_nothing(fabric: Fabric, kind: tuple[str, str], size: float) -> None:
    carriage = carriage_of(fabric)
    folded, plain = (played_s(fabric, kind, size, carriage, fold) for fold in (True, False))
    assert folded == pytest.approx(plain, rel=1e-9)


@FEW
@given(fabric=fabrics(), kind=st.sampled_from(KINDS), size=st.floats(1e5, 1e9), times=st.floats(1, 100))
def test_a_wider_link_between_regions_is_never_slower_to_play(
    fabric: Fabric, kind: tuple[str, str], size: float, times: float
) -> None:
    quicker, here = (sum(played_s(each, kind, size, carriage_of(each))) for each in (wider(fabric, times), fabric))
    assert quicker <= here * (1 + 1e-9)


@settings(max_examples=3, deadline=None)
@given(rate=st.integers(1, 400), unit=st.sampled_from(sorted(UNITS)), rtt=st.integers(1, 80))
def test_rates_written_in_other_units_are_the_same_fabric_and_the_same_steps(rate: int, unit: str, rtt: int) -> None:
    other = f"{rate * 1e9 / 8 * UNITS[unit]!r} {unit}"
    here, there = (parse_fabric(text_of(2, 4, "400 Gb/s", wan, rtt), "drawn.yaml") for wan in (f"{rate} Gb/s", other))
    assert there.wan[0].rate_bytes_per_s == pytest.approx(here.wan[0].rate_bytes_per_s, rel=1e-12)
    steps = [{each.strategy.name: each.step_s for each in weigh(fabric, LLAMA).ranked} for fabric in (here, there)]
    assert steps[0] == pytest.approx(steps[1], rel=1e-9)
