"""Two witnesses of one collective: formulas (`cost`) and flows played on the real graph (`sim`), within 2 %.

They share what a link carries and what a hop takes; the structure (rounds, sharing, bottlenecks) each works out itself.
"""

from pathlib import Path

import numpy as np
import pytest

from isthmus.cli.simulated import carriage_of
from isthmus.cost.collectives import Link, Tier, all_to_all_s, hierarchical_all_reduce_s, ring_all_reduce_s
from isthmus.cost.collectives_group import region_group, with_ranks
from isthmus.cost.collectives_time import collective_seconds
from isthmus.cost.paths import exchange_s, wan_pipe
from isthmus.fabric import Fabric, Level, levels, read_fabric
from isthmus.sim import Carriage, Collective, map_fabric, phases_of, play_phases
from isthmus.sim.graph import Shares

FABRICS = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
NAMES = [path.stem for path in FABRICS]
SIZES = (1e6, 1e9, 64e9)


def one_region(fabric: Fabric) -> Fabric:
    return Fabric(name=fabric.name, regions=fabric.regions[:1], wan=())


def played_s(fabric: Fabric, kind: str, algorithm: str, size: float, carriage: Carriage, ranks: int | None = None) -> float:
    chart = map_fabric(fabric, carriage, "balanced")
    asked = Collective(kind=kind, size_bytes=size, ranks=np.arange(ranks or chart.gpus), algorithm=algorithm)  # type: ignore[arg-type]
    return sum(each.seconds for each in play_phases(phases_of(chart, asked), chart.capacity))


def share(level: Level, shares: Shares) -> float:
    return {"nvlink": shares.nvlink, "pcie": shares.pcie}.get(level.name, shares.network)


def rails(fabric: Fabric, carriage: Carriage) -> list[Tier]:
    """The node, and all nodes of the region on rails: (members, rate of one GPU)."""
    shares = carriage.of(fabric.regions[0].name)
    found, below = [], 1
    for level in levels(fabric):
        if level.name in ("nvlink", "node"):
            members = level.members if level.name == "nvlink" else fabric.regions[0].nodes
            rate = level.bandwidth_bytes_per_s * share(level, shares) / below
            found.append(Tier(members=members, link=Link(latency_s=level.latency_s, bandwidth_bytes_per_s=rate, source="")))
            below *= members
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", FABRICS, ids=NAMES)
def test_a_ring_in_a_node(path: Path, size: float) -> None:
    fabric = one_region(read_fabric(path))
    tier = rails(fabric, carriage_of(fabric))[0]
    expected = ring_all_reduce_s(size, tier.members, tier.link)
    assert played_s(fabric, "all-reduce", "ring", size, carriage_of(fabric), tier.members) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("path", FABRICS, ids=NAMES)
def test_rings_over_all_nodes_of_a_region(path: Path) -> None:
    # As NCCL lays them, one an adapter. Formulas add hops to bytes where streams overlap them, so bytes have to dominate.
    # Of the 1,024 GPUs the first eight nodes: rings over all of them take half a minute to play.
    fabric, size = one_region(read_fabric(path)), 64e9
    ranks = min(64, fabric.gpus)
    group = with_ranks(region_group(fabric, fabric.regions[0].name), ranks)
    [expected] = collective_seconds("all-reduce", np.array([size]), group, algorithm="ring", protocol="simple")
    assert played_s(fabric, "all-reduce", "ring", size, carriage_of(fabric), ranks) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", FABRICS, ids=NAMES)
def test_a_hierarchical_all_reduce(path: Path, size: float) -> None:
    fabric = read_fabric(path)
    carriage = carriage_of(fabric)
    expected = hierarchical_all_reduce_s(size, rails(one_region(fabric), carriage))
    wan = wan_pipe(fabric)
    if wan is not None:
        expected += exchange_s(size, wan)
    assert played_s(fabric, "all-reduce", "hierarchical", size, carriage) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("path", FABRICS, ids=NAMES)
def test_an_all_to_all_without_collisions(path: Path) -> None:
    # One pair at a time, first in the node, then to node + k: every round is a permutation over one class of link.
    fabric, size = one_region(read_fabric(path)), 1e9
    tiers = rails(fabric, carriage_of(fabric))
    ranks, inside = fabric.gpus, tiers[0].members
    expected = all_to_all_s(size * inside / ranks, inside, tiers[0].link)
    if len(tiers) > 1:
        link = tiers[1].link
        expected += (ranks - inside) * (link.latency_s + size / ranks / link.bandwidth_bytes_per_s)
    assert played_s(fabric, "all-to-all", "shift", size, carriage_of(fabric)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("path", FABRICS, ids=NAMES)
def test_an_all_to_all_at_once(path: Path) -> None:
    fabric, size = one_region(read_fabric(path)), 64e9
    tiers = rails(fabric, carriage_of(fabric))
    ranks, inside = min(128, fabric.gpus), tiers[0].members
    wires = [(inside - 1) / ranks * size / tiers[0].link.bandwidth_bytes_per_s]
    wires += [(ranks - inside) / ranks * size / tier.link.bandwidth_bytes_per_s for tier in tiers[1:]]
    assert played_s(fabric, "all-to-all", "burst", size, carriage_of(fabric), ranks) == pytest.approx(max(wires), rel=0.02)
