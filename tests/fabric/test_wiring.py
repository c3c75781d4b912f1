from collections import defaultdict
from itertools import combinations

import pytest

from isthmus.errors import InfeasibleError
from isthmus.fabric import entries, entry, gpu, number
from isthmus.fabric.wiring import PcieTree, links_between, links_per_gpu, pcie_path, wire_gpus

NODES = sorted(entries("nodes"))


@pytest.mark.parametrize("name", NODES)
def test_every_node_kind_uses_the_links_that_the_catalogue_gives_its_gpu(name: str) -> None:
    node = entry("nodes", name)
    kind, device = node.words["wiring"], gpu(node.words["gpu"])
    whole = "gpus" if kind in ("bridge-pairs", "pcie") else "domain"
    wiring = wire_gpus(kind, int(node.figure(whole).number), device)  # type: ignore[arg-type]
    if kind == "pcie":
        assert set(links_per_gpu(wiring)) == {16}
        return
    links = int(entry("gpus", device.kind).figure("links").number)
    # A mesh of eight has seven peers; BR100's eighth link has no partner.
    assert set(links_per_gpu(wiring)) == {7 if name == "biren-br100-8" else links}


@pytest.mark.parametrize("name", [name for name in NODES if entry("nodes", name).words["wiring"] == "nvswitch"])
def test_nvswitch_gives_any_pair_all_links_and_no_chip_more_ports_than_it_has(name: str) -> None:
    node = entry("nodes", name)
    device = gpu(node.words["gpu"])
    wiring = wire_gpus("nvswitch", int(node.figure("domain").number), device)
    links = int(entry("gpus", device.kind).figure("links").number)
    assert {links_between(wiring, a, b) for a in (0, wiring.gpus - 1) for b in range(1, wiring.gpus - 1)} == {links}
    used: dict[str, int] = defaultdict(int)
    for wire in wiring.wires:
        for end in (wire.a, wire.b):
            used[end] += wire.links
    ports = number("nvswitch", node.words["nvswitch"], "ports")
    assert max(count for vertex, count in used.items() if vertex.startswith("switch")) <= ports


def test_the_eighteen_links_of_h100_go_five_four_four_five_to_four_chips() -> None:
    wiring = wire_gpus("nvswitch", 8, gpu("h100-sxm5"))
    assert [wire.links for wire in wiring.wires if wire.a == "gpu3"] == [5, 4, 4, 5]
    assert len({wire.b for wire in wiring.wires}) == 4


def test_nvl72_has_eighteen_chips_with_one_link_to_every_gpu() -> None:
    wiring = wire_gpus("nvswitch", 72, gpu("gb200"))
    assert len({wire.b for wire in wiring.wires}) == 18
    assert {wire.links for wire in wiring.wires} == {1}


@pytest.mark.parametrize(("kind", "links"), [("v100-sxm2", 6), ("p100-sxm2", 4)])
def test_the_hybrid_cube_mesh_is_two_quads_and_every_gpu_reaches_every_other_in_two_hops(kind: str, links: int) -> None:
    wiring = wire_gpus("hybrid-cube-mesh", 8, gpu(kind))
    assert set(links_per_gpu(wiring)) == {links}
    near = {a: {b for b in range(8) if a != b and links_between(wiring, a, b)} for a in range(8)}
    for quad in (range(4), range(4, 8)):
        assert all(b in near[a] for a, b in combinations(quad, 2))
    assert all(len(near[a] & (set(range(4)) if a > 3 else set(range(4, 8)))) == 1 for a in range(8))
    assert all(b in near[a] or near[a] & near[b] for a, b in combinations(range(8), 2))


def test_a_bridge_joins_a_pair_with_all_links_and_nothing_else() -> None:
    wiring = wire_gpus("bridge-pairs", 8, gpu("h100-pcie"))
    assert [links_between(wiring, 0, other) for other in range(1, 8)] == [12, 0, 0, 0, 0, 0, 0]


def test_a_pair_of_mi300x_has_one_link_of_the_seven() -> None:
    wiring = wire_gpus("full-mesh", 8, gpu("mi300x"))
    assert {links_between(wiring, a, b) for a, b in combinations(range(8), 2)} == {1}


def test_pcie_distances_are_named_as_nvidia_smi_names_them() -> None:
    wiring = wire_gpus("pcie", 8, gpu("l40s"))  # two sockets, one host bridge each, two switches a bridge, two cards each
    assert [pcie_path(wiring, 0, other) for other in range(1, 8)] == ["PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS"]
    wide = wire_gpus("pcie", 8, gpu("l40s"), PcieTree(sockets=2, bridges=2, switches=1))
    assert [pcie_path(wide, 0, other) for other in (1, 2, 4)] == ["PIX", "NODE", "SYS"]


@pytest.mark.parametrize(
    ("kind", "gpus", "device", "message"),
    [
        ("bridge-pairs", 7, "h100-pcie", "bridges join cards in pairs; 7 cards leave one alone"),
        ("full-mesh", 9, "mi300x", "a full mesh of 9 GPUs needs 8 links on each, there are 7"),
        ("hybrid-cube-mesh", 4, "v100-sxm2", "the hybrid cube mesh is 8 GPUs of 4 or 6 links, not 4 of 6"),
        ("nvswitch", 8, "p100-sxm2", "no NVSwitch speaks the links of p100-sxm2"),
        ("nvswitch", 72, "h100-sxm5", "72 GPUs need more ports than NVSwitch gen3 has (64)"),
        ("full-mesh", 8, "l40s", "l40s has no links"),
    ],
)
def test_a_wiring_that_cannot_be_built_says_why(kind: str, gpus: int, device: str, message: str) -> None:
    with pytest.raises(InfeasibleError) as error:
        wire_gpus(kind, gpus, gpu(device))  # type: ignore[arg-type]
    assert error.value.message == message
