"""From a fabric document to the resolved model: look-ups, defaults, and what entries must agree on."""

from isthmus.documents import Lines, Path_
from isthmus.errors import InputError, nearest
from isthmus.fabric.document import FabricDocument, NetworkEntry, NodesEntry, RegionEntry, WanEntry
from isthmus.fabric.entries import Entry, entries, entry, gpu, nic, pcie_rate_bytes_per_s
from isthmus.fabric.model import (
    Cable,
    Fabric,
    Gpu,
    InNode,
    InNodeKind,
    Network,
    NetworkShape,
    Nic,
    NodeGroup,
    Prices,
    Region,
    WanLink,
)
from isthmus.fabric.places import city_key
from isthmus.fabric.shapes import smallest_shape

__all__ = ["resolve"]


def resolve(document: FabricDocument, lines: Lines) -> Fabric:
    """Build the fabric that `document` describes.

    Raises:
        InputError: A name is unknown to the catalogue, entries contradict each other, or a region cannot be
        reached.
    """
    regions = tuple(_region(name, region, lines) for name, region in document.regions.items())
    names = [region.name for region in regions]
    wan = tuple(_wan(link, index, names, lines) for index, link in enumerate(document.wan))
    _refuse_repeated_links(wan, lines)
    _refuse_islands(names, wan, lines)
    for index, region in enumerate(regions):
        if len(regions) > 1 and any(group.nic is None for group in region.groups):
            raise lines.error(
                ("regions", names[index], "nodes"),
                f"{names[index]} is joined to other regions but has no adapter",
                "state nics: {count: ..., kind: ...}",
            )
    return Fabric(name=document.name, regions=regions, wan=wan, prices=_prices(document, lines))


def _prices(document: FabricDocument, lines: Lines) -> Prices | None:
    given = document.prices
    if given is None:
        return None
    computing = [key for key in ("gpu_hour", "node_hour", "node_month") if getattr(given, key) is not None]
    if len(computing) > 1:
        raise lines.error(
            ("prices", computing[1]), f"{computing[1]}: {computing[0]} is given too", "computing has one price: keep one of them"
        )
    if given.rack_month is not None and given.rack_power is None:
        raise lines.error(("prices", "rack_month"), "rack_month needs rack_power, which says how many", "e.g. rack_power: 40 kW")
    known = given.model_dump(exclude={"rack_power"})
    return Prices(**known, rack_power_w=given.rack_power)


def _look_up(kind: str, name: str, path: Path_, lines: Lines) -> Entry:
    try:
        return entry(kind, name)
    except InputError as error:
        what = {
            "nodes": "node kind",
            "gpus": "GPU",
            "nics": "network adapter",
            "switches": "switch",
            "cables": "cable",
            "cities": "city",
        }[kind]
        raise lines.error(path, f"unknown {what} {name!r}", error.hint) from None


def _region(name: str, region: RegionEntry, lines: Lines) -> Region:
    path: Path_ = ("regions", name)
    city = None
    if region.city is not None:
        if city_key(region.city) not in entries("cities"):
            raise lines.error(
                (*path, "city"),
                f"unknown city {region.city!r}",
                nearest(region.city, [place.words["name"] for place in entries("cities").values()]),
            )
        city = entries("cities")[city_key(region.city)].words["name"]
    groups = tuple(_group(group, (*path, "nodes", index), lines) for index, group in enumerate(region.nodes))
    return Region(name=name, city=city, groups=groups, network=_network(region, groups, path, lines))


def _group(given: NodesEntry, path: Path_, lines: Lines) -> NodeGroup:
    node = _look_up("nodes", given.kind, (*path, "kind"), lines)
    if given.gpu is not None:
        _look_up("gpus", given.gpu, (*path, "gpu"), lines)
    device = gpu(given.gpu or node.words["gpu"])
    count = given.gpus or int(node.figure("gpus").number)
    adapter, adapters = _adapters(given, node, path, lines)
    power = node.figures.get("power")
    return NodeGroup(
        kind=given.kind,
        count=given.count,
        gpus=count,
        gpu=device,
        nics=adapters,
        nic=adapter,
        in_node=_in_node(given, node, device, path, lines),
        power_w=given.power if given.power is not None else power.number if power else None,
    )


def _adapters(given: NodesEntry, node: Entry, path: Path_, lines: Lines) -> tuple[Nic | None, int]:
    stated = given.nics
    kind = (stated.kind if stated else None) or node.words.get("nic")
    own = node.figures.get("nics")
    count = (stated.count if stated else None) or (int(own.number) if own else 0)
    if stated and stated.kind is not None:
        _look_up("nics", stated.kind, (*path, "nics", "kind"), lines)
    if stated and (kind is None or count == 0):
        missing = "kind" if kind is None else "count"
        raise lines.error(
            (*path, "nics"),
            f"the key {missing!r} is missing: {given.kind} has no adapters of its own",
            "state both, such as nics: {count: 8, kind: connectx-7}",
        )
    return (nic(kind), count) if kind else (None, 0)


def _in_node(given: NodesEntry, node: Entry, device: Gpu, path: Path_, lines: Lines) -> InNode:
    own = int(node.figure("gpus").number)
    count = given.gpus or own
    kind = given.wiring or _as_wiring(node.words["wiring"])
    domain = int(node.figure("domain").number)
    if kind != node.words["wiring"]:
        domain = 2 if kind == "bridge-pairs" else count
    elif domain == own:
        domain = count
    if kind == "none" and count > 1:
        raise lines.error(
            (*path, "wiring"), f"{count} GPUs without any wiring between them", "write pcie where they share only the host"
        )
    if domain == 1 or (count == 1 and domain <= own):
        return InNode(kind="none", bandwidth_bytes_per_s=0.0, switch_reduces=False, domain=1)
    slot_rate = _slot_rate(device, path, lines) if kind == "pcie" or domain < count else 0.0
    if kind == "pcie":
        return InNode(kind="pcie", bandwidth_bytes_per_s=slot_rate, switch_reduces=False, domain=count)
    if device.fabric == "none":
        raise lines.error(
            (*path, "gpu" if given.gpu else "kind"),
            f"{device.kind} has no links for the wiring {kind!r}",
            "write wiring: pcie, or name another GPU",
        )
    reduces = kind == "nvswitch" and any(
        chip.words["nvlink"] == str(device.fabric_generation) and chip.words["reduces"] == "true"
        for chip in entries("nvswitch").values()
    )
    return InNode(kind=kind, bandwidth_bytes_per_s=device.fabric_bytes_per_s, switch_reduces=reduces, domain=domain)


def _slot_rate(device: Gpu, path: Path_, lines: Lines) -> float:
    """Bytes/s per direction of the slot through which GPUs of one node meet where no links join them all."""
    try:
        return pcie_rate_bytes_per_s(device.pcie)
    except ValueError:
        raise lines.error(
            (*path, "gpu"), f"{device.kind} has no PCIe slot of its own ({device.pcie})", "state another wiring"
        ) from None


def _as_wiring(word: str) -> InNodeKind:
    known: tuple[InNodeKind, ...] = (
        "nvswitch",
        "full-mesh",
        "hybrid-cube-mesh",
        "bridge-pairs",
        "pcie",
        "none",
    )
    return next(kind for kind in known if kind == word)


def _network(region: RegionEntry, groups: tuple[NodeGroup, ...], path: Path_, lines: Lines) -> Network:
    nodes = sum(group.count for group in groups)
    rates = [group.nic.rate_bytes_per_s for group in groups if group.nic]
    given = region.network
    if given is None:
        if nodes > 1:
            raise lines.error(
                path,
                f"the key 'network' is missing: {nodes} nodes need one to join them",
                "such as network: {kind: infiniband, rate: 400 Gb/s, switch: qm9700}",
            )
        return Network(
            kind="ethernet",
            rate_bytes_per_s=min(rates, default=0.0),
            shape="none",
            switch=None,
            oversubscription=1.0,
            rail_optimised=False,
        )
    if nodes > 1 and len(rates) < len(groups):
        raise lines.error((*path, "nodes"), "nodes to be joined have no adapter", "state nics: {count: ..., kind: ...}")
    if given.rate is None and not rates:
        raise lines.error((*path, "network"), "the key 'rate' is missing and no adapter gives it", "such as rate: 400 Gb/s")
    for index, cable in enumerate(given.cables):
        _look_up("cables", cable.kind, (*path, "network", "cables", index, "kind"), lines)
    return Network(
        kind=given.kind,
        rate_bytes_per_s=given.rate if given.rate is not None else min(rates),
        shape=_shape(given, groups, nodes, (*path, "network"), lines),
        switch=given.switch,
        oversubscription=given.oversubscription,
        rail_optimised=given.rail_optimised,
        cables=tuple(Cable(cable.kind, cable.length) for cable in given.cables),
        system=given.system,
    )


def _shape(given: NetworkEntry, groups: tuple[NodeGroup, ...], nodes: int, path: Path_, lines: Lines) -> NetworkShape:
    switch = _look_up("switches", given.switch, (*path, "switch"), lines) if given.switch is not None else None
    if given.shape == "none" and nodes > 1:
        raise lines.error(
            (*path, "shape"),
            f"shape none, but {nodes} nodes have to be joined",
            "leave shape out to have it chosen",
        )
    if given.shape is not None:
        return given.shape
    if nodes == 1:
        return "none"
    if switch is None:
        return "single-switch"
    ports = sum(group.count * group.nics for group in groups)
    return smallest_shape(ports, int(switch.figure("ports").number), given.oversubscription)


def _wan(link: WanEntry, index: int, names: list[str], lines: Lines) -> WanLink:
    path: Path_ = ("wan", index, "between")
    first, second = link.between
    for end, name in enumerate(link.between):
        if name not in names:
            raise lines.error((*path, end), f"the link joins an unknown region {name!r}", nearest(name, names))
    if first == second:
        raise lines.error(
            path,
            f"the link joins {first!r} to itself",
            "a region's own network is described under its `network`",
        )
    return WanLink(
        between=(first, second),
        rate_bytes_per_s=link.rate,
        rtt_s=link.rtt,
        jitter_s=link.jitter,
        loss=link.loss,
        transport=link.transport,
        queue_bytes=link.queue,
        link_class=link.link_class,
        distance_m=link.distance,
    )


def _refuse_repeated_links(wan: tuple[WanLink, ...], lines: Lines) -> None:
    seen: dict[frozenset[str], int] = {}
    for index, link in enumerate(wan):
        pair = frozenset(link.between)
        if pair in seen:
            first = lines.where(("wan", seen[pair])).rpartition(":")[2]
            raise lines.error(
                ("wan", index),
                f"a second link between {link.between[0]!r} and {link.between[1]!r}",
                f"the first is at line {first}; write one link with the rate of both together",
            )
        seen[pair] = index


def _refuse_islands(names: list[str], wan: tuple[WanLink, ...], lines: Lines) -> None:
    reached, grew = {names[0]}, True
    while grew:
        ends = {end for link in wan for end in link.between if reached & set(link.between)}
        grew = not ends <= reached
        reached |= ends
    for name in names:
        if name not in reached:
            raise lines.error(
                ("regions", name),
                f"no link joins the region {name!r} to {names[0]!r}",
                f"add to wan: {{between: [{names[0]}, {name}], rate: ..., rtt: ...}}",
            )
