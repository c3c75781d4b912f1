"""Two witnesses of one collective: formulas (`cost`) and flows played on the real graph (`sim`), within 2 %.

They share what a link carries and what a hop takes; the structure (rounds, sharing, bottlenecks) each works out itself.
"""

from pathlib import Path

import numpy as np
import pytest

from isthmus.cli.simulated import carriage_of
from isthmus.cost.collectives_composed import RING, hierarchical, seconds_of_parts
from isthmus.cost.collectives_constants import default_constants
from isthmus.cost.collectives_curves import hop_seconds
from isthmus.cost.collectives_group import ranks_of, region_group, sites_group, with_ranks
from isthmus.cost.collectives_time import collective_time
from isthmus.cost.paths import wan_pipe
from isthmus.fabric import Fabric, read_fabric
from isthmus.sim import Carriage, Collective, map_fabric, phases_of, play_phases

FABRICS = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
NAMES = [path.stem for path in FABRICS]
SIZES = (1e6, 1e9, 64e9)


def one_region(fabric: Fabric) -> Fabric:
    return Fabric(name=fabric.name, regions=fabric.regions[:1], wan=())


def played_s(fabric: Fabric, kind: str, algorithm: str, size: float, carriage: Carriage, ranks: int | None = None) -> float:
    chart = map_fabric(fabric, carriage, "balanced")
    asked = Collective(kind=kind, size_bytes=size, ranks=np.arange(ranks or chart.gpus), algorithm=algorithm)  # type: ignore[arg-type]
    return sum(each.seconds for each in play_phases(phases_of(chart, asked), chart.capacity))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", FABRICS, ids=NAMES)
def test_a_ring_in_a_node(path: Path, size: float) -> None:
    fabric = one_region(read_fabric(path))
    node = sites_group(fabric)[:1]
    expected = collective_time("all-reduce", size, node, algorithm="ring", protocol="simple").seconds
    assert played_s(fabric, "all-reduce", "ring", size, carriage_of(fabric), ranks_of(node)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("path", FABRICS, ids=NAMES)
def test_rings_over_all_nodes_of_a_region(path: Path) -> None:
    # As NCCL lays them, one an adapter. Formulas add hops to bytes where streams overlap them, so bytes have to dominate.
    # Of the 1,024 GPUs the first eight nodes: rings over all of them take half a minute to play.
    fabric, size = one_region(read_fabric(path)), 64e9
    ranks = min(64, fabric.gpus)
    group = with_ranks(region_group(fabric, fabric.regions[0].name), ranks)
    expected = collective_time("all-reduce", size, group, algorithm="ring", protocol="simple").seconds
    assert played_s(fabric, "all-reduce", "ring", size, carriage_of(fabric), ranks) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", FABRICS, ids=NAMES)
def test_a_hierarchical_all_reduce(path: Path, size: float) -> None:
    fabric = read_fabric(path)
    parts = hierarchical(size, sites_group(fabric), default_constants(), RING, wan_pipe(fabric))
    played = played_s(fabric, "all-reduce", "hierarchical", size, carriage_of(fabric))
    assert played == pytest.approx(seconds_of_parts(parts), rel=0.02)


@pytest.mark.parametrize("path", FABRICS, ids=NAMES)
def test_an_all_to_all_one_pair_at_a_time(path: Path) -> None:
    # First in the node, then to node + k: every round is a permutation over one class of link, S / n of each rank.
    fabric, size, known = one_region(read_fabric(path)), 1e9, default_constants()
    site, ranks, below = sites_group(fabric), fabric.gpus, 1
    expected, before = 0.0, 1
    for level in (site[0], *site[1:2]):
        members = level.members if level.in_node else ranks // below
        rate = level.rate_bytes_per_s * known.carriers[level.carrier].sustained * known.share_pairwise / below
        expected += (before * members - before) * (hop_seconds(level, known) + size / ranks / rate)
        before, below = before * members, below * members
    assert played_s(fabric, "all-to-all", "shift", size, carriage_of(fabric)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("path", FABRICS, ids=NAMES)
def test_an_all_to_all_at_once(path: Path) -> None:
    fabric, size = one_region(read_fabric(path)), 64e9
    ranks = min(128, fabric.gpus)
    expected = collective_time("all-to-all", size, with_ranks(sites_group(fabric), ranks)).seconds
    assert played_s(fabric, "all-to-all", "burst", size, carriage_of(fabric), ranks) == pytest.approx(expected, rel=0.02)
