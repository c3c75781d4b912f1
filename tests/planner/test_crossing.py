"""Crossing the WAN blind to regions: how many rings, streams and ranks there are."""

from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.cost.paths import wan_pipe
from isthmus.fabric import read_fabric
from isthmus.plan import Strategy
from isthmus.planner.crossing import cross
from isthmus.planner.predict import compute_step
from isthmus.planner.setting import make_setting
from isthmus.workload import Axes, read_workload

FABRIC = read_fabric(Path(__file__).parents[2] / "examples" / "shenzhen-shanghai.yaml")
FLAT = Strategy(name="flat", kind="flat")


def test_every_model_parallel_rank_has_a_ring_with_streams_of_its_own_until_the_link_is_full() -> None:
    wan = wan_pipe(FABRIC)
    assert wan is not None
    assert wan.channels == 8  # two a NIC, 4 NICs a node
    one = wan.flat(1)
    assert one.bind != "link"
    assert wan.flat(4).rate_bytes_per_s == pytest.approx(4 * one.rate_bytes_per_s)
    assert wan.flat(64).bind == "link"
    assert wan.flat(64).rate_bytes_per_s == pytest.approx(12.5e9 * 1448 / 1500)


def test_rdma_is_bound_by_the_buffers_in_flight_or_the_link_never_by_tcp_loss() -> None:
    wan = wan_pipe(replace(FABRIC, wan=tuple(replace(link, transport="rdma", loss=0.01) for link in FABRIC.wan)))
    assert wan is not None
    assert wan.flat(1).rate_bytes_per_s == pytest.approx(8 * 4 * 2**20 / 0.018)
    assert wan.flat(64) == wan.limit


def test_the_ring_counts_every_rank_also_where_regions_differ() -> None:
    first, second = FABRIC.regions
    half = replace(second, groups=tuple(replace(group, count=1) for group in second.groups))
    setting = make_setting(replace(FABRIC, regions=(first, half)), read_workload("llama-3-8b"))
    axes = Axes(dp=3, tp=8)
    assert setting.wan is not None
    crossing = cross(setting, setting.wan, FLAT, axes, compute_step(setting, axes, spread=False))
    assert crossing.wan_bytes == pytest.approx(2 * 2 / 3 * setting.parameters * 4)
    assert "8 rings at once over 3 ranks" in crossing.words()
