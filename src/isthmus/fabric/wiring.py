"""Shapes inside a node (or NVLink rack): which GPU is wired to what, and with how many links.

Vertices are `gpu0`, `gpu1`, ..., `switch0`, ... (NVSwitch chips), `pcie0`, ... (PCIe switches), `bridge0`,
... (host bridges, one PCIe root complex each) and `cpu0`, ... (sockets, one NUMA node each).
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from isthmus.errors import InfeasibleError
from isthmus.fabric.entries import Value, entries, entry
from isthmus.fabric.model import Gpu, InNodeKind

__all__ = ["PcieTree", "Wire", "Wiring", "links_between", "links_per_gpu", "pcie_path", "wire_gpus"]

PcieReach = Literal["PIX", "PHB", "NODE", "SYS"]

# Links between each pair of the eight GPUs of a DGX-1: two quads, each GPU joined to its twin in the other
# quad. Six links a GPU on V100; P100 has the same neighbours with one link each.
_CUBE_MESH = {
    pair: links
    for links, pairs in (
        (1, ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))),
        (2, ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))),
    )
    for pair in pairs
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """`links` parallel links (lanes, for PCIe) between two vertices, the same both ways."""

    a: str
    b: str
    links: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The GPUs of one domain and every wire among them and their switches."""

    kind: InNodeKind
    gpus: int
    wires: tuple[Wire, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieTree:
    """How PCIe hangs together: sockets, host bridges a socket, PCIe switches a host bridge."""

    sockets: int = 2
    bridges: int = 1
    switches: int = 2


def wire_gpus(kind: InNodeKind, gpus: int, device: Gpu, tree: PcieTree | None = None) -> Wiring:
    """Wire `gpus` devices of one domain in the way `kind` names.

    Args:
        kind: The wiring; `bridge-pairs` joins 0-1, 2-3, ... and says nothing of the PCIe tree below them.
        gpus: GPUs of the domain (of the node, for bridge pairs and PCIe).
        device: The GPU; the catalogue gives its links and the NVSwitch of its NVLink generation.
        tree: For `pcie`; two sockets of one host bridge and two switches if left out.

    Raises:
        InfeasibleError: The wiring cannot be built from this many GPUs or links.
    """
    match kind:
        case "none":
            return Wiring(kind=kind, gpus=gpus, wires=())
        case "pcie":
            return Wiring(kind=kind, gpus=gpus, wires=_pcie(gpus, tree or PcieTree()))
        case "nvswitch":
            return Wiring(kind=kind, gpus=gpus, wires=_switched(gpus, device))
        case "full-mesh":
            return Wiring(kind=kind, gpus=gpus, wires=_mesh(gpus, _links(device)))
        case "hybrid-cube-mesh":
            return Wiring(kind=kind, gpus=gpus, wires=_cube_mesh(gpus, _links(device)))
        case "bridge-pairs":
            if gpus % 2:
                raise InfeasibleError(f"bridges join cards in pairs; {gpus} cards leave one alone", "an even number of cards")
            wires = tuple(Wire(a=f"gpu{i}", b=f"gpu{i + 1}", links=_links(device)) for i in range(0, gpus, 2))
            return Wiring(kind=kind, gpus=gpus, wires=wires)


def links_per_gpu(wiring: Wiring) -> tuple[int, ...]:
    """Links that leave each GPU."""
    counts: dict[str, int] = defaultdict(int)
    for wire in wiring.wires:
        counts[wire.a] += wire.links
        counts[wire.b] += wire.links
    return tuple(counts[f"gpu{index}"] for index in range(wiring.gpus))


def links_between(wiring: Wiring, a: int, b: int) -> int:
    """Links that two GPUs can use with each other alone: wired together, or through switches that both reach.

    Through switches of one board each chip carries the smaller of the two sides; across boards (DGX-2) the
    trunks between chips have room for all links of a GPU.
    """
    direct = sum(wire.links for wire in wiring.wires if {wire.a, wire.b} == {f"gpu{a}", f"gpu{b}"})
    if direct or wiring.kind != "nvswitch":
        return direct
    mine, yours = ({wire.b: wire.links for wire in wiring.wires if wire.a == f"gpu{index}"} for index in (a, b))
    shared = sum(min(links, yours[chip]) for chip, links in mine.items() if chip in yours)
    return shared or min(sum(mine.values()), sum(yours.values()))


def pcie_path(wiring: Wiring, a: int, b: int) -> PcieReach:
    """How far apart two GPUs of a PCIe tree are, in the words of `nvidia-smi topo -m`.

    PIX: one PCIe switch. PHB: through a host bridge. NODE: between host bridges of one socket. SYS: between
    sockets.
    """
    above = {wire.a: wire.b for wire in wiring.wires if not wire.a.startswith("cpu")}
    chain_a, chain_b = _ancestors(f"gpu{a}", above), _ancestors(f"gpu{b}", above)
    met = next((vertex for vertex in chain_a if vertex in chain_b), None)
    match met.rstrip("0123456789") if met else None:
        case "pcie":
            return "PIX"
        case "bridge":
            return "PHB"
        case "cpu":
            return "NODE"
        case _:
            return "SYS"


def _ancestors(vertex: str, above: dict[str, str]) -> list[str]:
    chain: list[str] = []
    while vertex in above:
        vertex = above[vertex]
        chain.append(vertex)
    return chain


def _links(device: Gpu) -> int:
    figure = entry("gpus", device.kind).figures.get("links")
    if figure is None:
        raise InfeasibleError(f"{device.kind} has no links", "links of the GPU")
    return int(figure.number)


def _mesh(gpus: int, links: int) -> tuple[Wire, ...]:
    each = links // (gpus - 1)
    if each == 0:
        raise InfeasibleError(
            f"a full mesh of {gpus} GPUs needs {gpus - 1} links on each, there are {links}",
            "links of the GPU",
        )
    return tuple(Wire(a=f"gpu{a}", b=f"gpu{b}", links=each) for a, b in combinations(range(gpus), 2))


def _cube_mesh(gpus: int, links: int) -> tuple[Wire, ...]:
    if gpus != 8 or links not in (4, 6):
        raise InfeasibleError(f"the hybrid cube mesh is 8 GPUs of 4 or 6 links, not {gpus} of {links}", "GPUs and their links")
    return tuple(Wire(a=f"gpu{a}", b=f"gpu{b}", links=count if links == 6 else 1) for (a, b), count in _CUBE_MESH.items())


def _switched(gpus: int, device: Gpu) -> tuple[Wire, ...]:
    """Every GPU to every chip of its board, links spread as evenly as they go; boards joined chip to chip."""
    chip = next((c for c in entries("nvswitch").values() if c.words["nvlink"] == str(device.fabric_generation)), None)
    if chip is None:
        raise InfeasibleError(f"no NVSwitch speaks the links of {device.kind}", "generation of NVLink")
    per_board = 8 if gpus <= 16 else gpus
    chips = (
        int(chip.figure("chips" if gpus <= 16 else "nvl72_chips").number) if gpus <= 16 or "nvl72_chips" in chip.figures else 0
    )
    ports = int(chip.figure("ports").number)
    split = (
        _split(
            _links(device),
            chips,
            chip.figures["links_split"].value if "links_split" in chip.figures else None,
        )
        if chips
        else []
    )
    boards = -(-gpus // per_board)
    trunk = max(split, default=0) * per_board if boards > 1 else 0
    if chips == 0 or max(split) * min(gpus, per_board) + trunk > ports:
        raise InfeasibleError(f"{gpus} GPUs need more ports than NVSwitch {chip.name} has ({ports})", "ports of the NVSwitch")
    wires = [
        Wire(a=f"gpu{index}", b=f"switch{index // per_board * chips + number}", links=links)
        for index in range(gpus)
        for number, links in enumerate(split)
        if links
    ]
    wires += [Wire(a=f"switch{number}", b=f"switch{chips + number}", links=trunk) for number in range(chips) if boards == 2]
    return tuple(wires)


def _split(links: int, chips: int, stated: Value | None) -> list[int]:
    if isinstance(stated, tuple) and sum(stated) == links:
        return [int(part) for part in stated]
    return [links // chips + (number < links % chips) for number in range(chips)]


def _pcie(gpus: int, tree: PcieTree) -> tuple[Wire, ...]:
    bridges, switches = tree.sockets * tree.bridges, tree.sockets * tree.bridges * tree.switches
    used = min(gpus, switches)
    wires = [Wire(a=f"gpu{index}", b=f"pcie{index * used // gpus}", links=16) for index in range(gpus)]
    wires += [Wire(a=f"pcie{index}", b=f"bridge{index * bridges // switches}", links=16) for index in range(switches)]
    wires += [Wire(a=f"bridge{index}", b=f"cpu{index * tree.sockets // bridges}", links=16) for index in range(bridges)]
    wires += [Wire(a=f"cpu{a}", b=f"cpu{b}", links=1) for a, b in combinations(range(tree.sockets), 2)]
    return tuple(wires)
