"""Findings on the network inside a region: adapters and their slots, switches and their ports, cables."""

from collections.abc import Callable, Iterator

from isthmus.documents import Path_
from isthmus.errors import InfeasibleError
from isthmus.fabric.document import CableEntry, NodesEntry
from isthmus.fabric.entries import Figure, entry, pcie_rate_bytes_per_s
from isthmus.fabric.finding import Finding, Subject, cite
from isthmus.fabric.levels import region_layout
from isthmus.fabric.model import Region
from isthmus.fabric.shapes import smallest_shape
from isthmus.units import show_rate

__all__ = ["network_findings"]

_FACTS = "computed from this file"


def network_findings(subject: Subject) -> Iterator[Finding]:
    """Findings of the network of every region."""
    for region in subject.fabric.regions:
        for check in _CHECKS:
            yield from check(subject, region)


def _path(region: Region) -> Path_:
    return ("regions", region.name)


def _written(subject: Subject, region: Region, index: int) -> NodesEntry:
    return subject.document.regions[region.name].nodes[index]


def _gigabytes(rate_bytes_per_s: float) -> str:
    return f"{rate_bytes_per_s / 1e9:.4g} GB/s"


def _slots(subject: Subject, region: Region) -> Iterator[Finding]:
    for index, group in enumerate(region.groups):
        if group.nic is None:
            continue
        stated = _written(subject, region, index).nics
        own = entry("nodes", group.kind).figures.get("nic_slot")
        slot = (stated.slot if stated else None) or (str(own.value) if own else group.nic.pcie)
        room = pcie_rate_bytes_per_s(slot)
        if group.nic.rate_bytes_per_s > room:
            path = (*_path(region), "nodes", index)
            yield subject.finding(
                "nic-slot",
                "error",
                (*path, "nics", "slot") if stated and stated.slot else path,
                f"{group.nic.kind} at {show_rate(group.nic.rate_bytes_per_s)} needs "
                f"{_gigabytes(group.nic.rate_bytes_per_s)} per direction, a PCIe {slot} slot carries {_gigabytes(room)}",
                cite(
                    entry("pcie", slot.partition(" ")[0]).figure("lane_rate"),
                    entry("nics", group.nic.kind).figure("rate"),
                ),
            )


def _adapters(subject: Subject, region: Region) -> Iterator[Finding]:
    network = region.network
    if subject.document.regions[region.name].network is None:
        return
    for index, group in enumerate(region.groups):
        if group.nic is None:
            continue
        path, adapter = (*_path(region), "nodes", index), entry("nics", group.nic.kind)
        if network.kind not in adapter.words["network"].split(", "):
            yield subject.finding(
                "nic-network",
                "error",
                path,
                f"{group.nic.kind} speaks {adapter.words['network']}, not {network.kind}",
                cite(adapter.figure("rate")),
            )
            continue
        port = adapter.figures.get("ethernet_rate") if network.kind in ("ethernet", "roce") else None
        figure = port or adapter.figure("rate")
        if network.rate_bytes_per_s > figure.number:
            yield subject.finding(
                "nic-rate",
                "error",
                (*_path(region), "network", "rate"),
                f"the network runs at {show_rate(network.rate_bytes_per_s)}, a port of {group.nic.kind} at most at "
                f"{show_rate(figure.number)}",
                cite(figure),
            )
        if group.gpus % group.nics and group.nics % group.gpus:
            yield subject.finding(
                "uneven-rails",
                "warning",
                path,
                f"{group.gpus} GPUs share {group.nics} adapters unevenly: the busiest adapter sets the pace",
                _FACTS,
            )


def _switch(subject: Subject, region: Region) -> Iterator[Finding]:
    network, path = region.network, (*_path(region), "network")
    if network.switch is None:
        return
    if region.nodes == 1:
        yield subject.finding(
            "idle-switch",
            "info",
            (*path, "switch"),
            f"{region.name} has one node: its switch {network.switch} carries no traffic between nodes",
            _FACTS,
        )
    switch = entry("switches", network.switch)
    port = switch.figure("port_rate")
    if network.kind not in switch.words["network"].split(", "):
        yield subject.finding(
            "switch-network",
            "error",
            (*path, "switch"),
            f"{network.switch} carries {switch.words['network']}, not {network.kind}",
            cite(port),
        )
    if network.rate_bytes_per_s > port.number:
        yield subject.finding(
            "switch-rate",
            "error",
            (*path, "rate"),
            f"the network runs at {show_rate(network.rate_bytes_per_s)}, a port of {network.switch} at {show_rate(port.number)}",
            cite(port),
        )
    fastest = max((group.nic.rate_bytes_per_s for group in region.groups if group.nic), default=0.0)
    if fastest > port.number:
        yield subject.finding(
            "nic-faster-than-port",
            "warning",
            (*path, "switch"),
            f"adapters of {show_rate(fastest)} on ports of {show_rate(port.number)}: the rest of the adapter is paid for "
            "and unused",
            cite(port),
        )


def _system(subject: Subject, region: Region) -> Iterator[Finding]:
    network, path = region.network, (*_path(region), "network", "system")
    if network.system is None:
        return
    if network.kind not in ("roce", "ethernet"):
        yield subject.finding(
            "switch-system", "error", path, f"{network.system} runs on Ethernet switches, the network is {network.kind}", _FACTS
        )
        return
    switch = entry("switches", network.switch) if network.switch else None
    known = switch.words.get("systems", "").split(", ") if switch else [network.system]
    if switch and network.system not in known:
        source = cite(switch.figure("ports"))
        yield subject.finding("switch-system", "error", path, f"{network.switch} runs {' or '.join(known)}", source)


def _ports(subject: Subject, region: Region) -> Iterator[Finding]:
    network, path = region.network, (*_path(region), "network")
    try:
        layout = region_layout(region)
    except InfeasibleError as error:
        figure = entry("switches", network.switch or "").figure("ports")
        yield subject.finding("switch-ports", "error", path, f"{error.message} ({error.bind})", cite(figure))
        return
    written = subject.document.regions[region.name].network
    if layout is None or written is None or layout.shape == "torus":
        return
    ports = int(entry("switches", network.switch or "").figure("ports").number)
    enough = smallest_shape(layout.ports, ports, network.oversubscription)
    tiers = ((layout.leaves, "leaf"), (layout.spines, "spine"), (layout.cores, "core"))
    count = "one switch" if layout.leaves == 1 else ", ".join(f"{n} {word}" for n, word in tiers if n) + " switches"
    if written.shape is None:
        yield subject.finding("shape", "info", path, f"no shape given: taken as {layout.shape} ({count})", _FACTS)
    elif written.shape == "clos-3" and enough != "clos-3":
        yield subject.finding(
            "shape",
            "info",
            (*path, "shape"),
            f"{enough} of {network.switch} would join these {layout.ports} adapters too; clos-3 takes {count}",
            _FACTS,
        )
    if network.oversubscription > 1 and layout.hops_limit > 1:
        yield subject.finding(
            "oversubscription",
            "info",
            (*path, "oversubscription"),
            f"groups of {layout.nodes_per_leaf} nodes share 1/{network.oversubscription:g} of their rate with the other groups",
            _FACTS,
        )


def _cables(subject: Subject, region: Region) -> Iterator[Finding]:
    written = subject.document.regions[region.name].network
    for index, cable in enumerate(written.cables if written else []):
        path = (*_path(region), "network", "cables", index)
        if cable.kind.startswith("nvlink"):
            yield subject.finding(
                "nvlink-cable",
                "error",
                path,
                "NVLink cables join GPUs inside a rack, never nodes of a network and never regions",
                cite(entry("cables", cable.kind).figure("reach")),
            )
            continue
        reach = _reach(cable, region)
        if cable.length > reach.number:
            advice = _longer(cable.length)
            yield subject.finding(
                "cable-reach",
                "error",
                path,
                f"{cable.kind} reaches {reach.number:g} m at {show_rate(region.network.rate_bytes_per_s)} ({reach.per}), "
                f"{cable.length:g} m asked{advice}",
                cite(reach),
            )


def _reach(cable: CableEntry, region: Region) -> Figure:
    """The reach at the region's rate: the faster its lanes, the shorter copper reaches.

    Ports have four lanes; at 800 Gb/s Ethernet has eight of 100G and InfiniBand four of 200G.
    """
    found = entry("cables", cable.kind)
    if "reach" in found.figures:
        return found.figure("reach")
    rate_gbit = region.network.rate_bytes_per_s * 8e-9
    lanes = 8 if rate_gbit > 400 and region.network.kind != "infiniband" else 4
    lane = next((each for each in (25, 50, 100) if rate_gbit / lanes <= each * 1.01), 200)
    return found.figure(f"reach_{lane}g_lane")


def _longer(length_m: float) -> str:
    """Cables for the purpose that do reach, shortest reach first."""
    ordinary = ("active-copper", "sr4", "aoc", "dr4", "fr4", "lr4", "er")
    fit = [name for name in ordinary if entry("cables", name).figure("reach").number >= length_m]
    return f"; {fit[0]} reaches {entry('cables', fit[0]).figure('reach').number:g} m" if fit else ""


_CHECKS: tuple[Callable[[Subject, Region], Iterator[Finding]], ...] = (_slots, _adapters, _switch, _system, _ports, _cables)
