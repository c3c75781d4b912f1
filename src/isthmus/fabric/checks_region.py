"""Findings on GPUs: mixed kinds and makers, their wiring, and regions beside each other."""

from collections.abc import Callable, Iterator

from isthmus.documents import Path_
from isthmus.errors import InfeasibleError
from isthmus.fabric.entries import entries, entry
from isthmus.fabric.finding import Finding, Subject, cite
from isthmus.fabric.model import Gpu, NodeGroup, Region
from isthmus.fabric.wiring import wire_gpus
from isthmus.units import show_bytes

__all__ = ["region_findings"]

_FACTS = "computed from this file"


def region_findings(subject: Subject) -> Iterator[Finding]:
    """Findings of every region alone, then of regions beside each other."""
    for region in subject.fabric.regions:
        for check in _PER_REGION:
            yield from check(subject, region)
    yield from _unlike_regions(subject)


def _path(region: Region) -> Path_:
    return ("regions", region.name)


def _mixed_gpus(subject: Subject, region: Region) -> Iterator[Finding]:
    kinds = {group.gpu.kind: group.gpu for group in region.groups}
    if len(kinds) < 2:
        return
    uneven = len({_speed(device) for device in kinds.values()}) > 1
    yield subject.finding(
        "mixed-gpus",
        "error" if uneven else "warning",
        (*_path(region), "nodes"),
        f"{region.name} mixes {', '.join(sorted(kinds))} in one data-parallel group: {_binding(kinds)}; give each kind its "
        "own region entry, or split the batch by speed",
        _cite_speeds(kinds),
    )


def _mixed_vendors(subject: Subject, region: Region) -> Iterator[Finding]:
    vendors = sorted({group.gpu.vendor for group in region.groups})
    if len(vendors) > 1:
        yield subject.finding(
            "mixed-vendors",
            "warning",
            (*_path(region), "nodes"),
            f"{region.name} mixes GPUs of {' and '.join(vendors)}: their collective libraries do not talk to each other, so "
            "data between them goes through host memory",
            "engineering knowledge (recalled)",
        )


def _wiring(subject: Subject, region: Region) -> Iterator[Finding]:
    for index, group in enumerate(region.groups):
        path = (*_path(region), "nodes", index)
        inside = group.in_node
        try:
            gpus = group.gpus if inside.kind in ("bridge-pairs", "pcie") else inside.domain
            wire_gpus(inside.kind, gpus, group.gpu)
        except InfeasibleError as error:
            yield subject.finding("wiring", "error", path, error.message, f"catalogue gpus {group.gpu.kind}")
        yield from _switch_generation(subject, group, path)
        if inside.domain > group.gpus and (group.count * group.gpus) % inside.domain:
            yield subject.finding(
                "partial-rack",
                "warning",
                path,
                f"{group.count} nodes of {group.gpus} GPUs do not fill NVLink domains of {inside.domain}: NVLink ends at "
                "the rack and never joins regions, so the rest meets over the network",
                cite(entry("nodes", group.kind).figure("domain")),
            )


def _switch_generation(subject: Subject, group: NodeGroup, path: Path_) -> Iterator[Finding]:
    chip = entry("nodes", group.kind).words.get("nvswitch")
    if chip is None or group.in_node.kind != "nvswitch":
        return
    speaks = entries("nvswitch")[chip].words["nvlink"]
    if speaks != str(group.gpu.fabric_generation):
        yield subject.finding(
            "nvswitch-generation",
            "error",
            path,
            f"the NVSwitch of {group.kind} ({chip}) speaks NVLink {speaks}, {group.gpu.kind} "
            f"{group.gpu.fabric} {group.gpu.fabric_generation or ''}".rstrip(),
            cite(entries("nvswitch")[chip].figure("ports")),
        )


def _unlike_regions(subject: Subject) -> Iterator[Finding]:
    fabric = subject.fabric
    if len(fabric.regions) < 2:
        return
    kinds = {group.gpu.kind: group.gpu for region in fabric.regions for group in region.groups}
    own = {region.name: {group.gpu.kind for group in region.groups} for region in fabric.regions}
    if len({frozenset(names) for names in own.values()}) > 1:
        yield subject.finding(
            "unlike-regions",
            "warning",
            ("regions",),
            f"regions hold different GPUs ({', '.join(sorted(kinds))}): with equal shares {_binding(kinds)}; split the "
            "batch by speed",
            _cite_speeds(kinds),
        )
    vendors = {group.gpu.vendor for group in (each for region in fabric.regions for each in region.groups)}
    if len(vendors) > 1 and not any(len({g.gpu.vendor for g in region.groups}) > 1 for region in fabric.regions):
        yield subject.finding(
            "mixed-vendors",
            "warning",
            ("regions",),
            f"regions hold GPUs of {' and '.join(sorted(vendors))}: traffic between them is relayed by the hosts, never GPU "
            "to GPU",
            "engineering knowledge (recalled)",
        )
    rails = {region.name: region.gpus for region in fabric.regions}
    if len(set(rails.values())) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in rails.items())
        yield subject.finding(
            "unequal-rails",
            "warning",
            ("regions",),
            f"regions have unequal numbers of GPUs ({shown}): rail i of one region has no partner in another",
            _FACTS,
        )


def _binding(kinds: dict[str, Gpu]) -> str:
    """Which GPU holds the others back, and by what."""
    slower = min(kinds.values(), key=_speed)
    if len({_speed(device) for device in kinds.values()}) > 1:
        return f"every step waits for {slower.kind} ({_speed(slower) / 1e12:.4g} TFLOP/s)"
    smaller = min(kinds.values(), key=lambda device: device.memory_bytes)
    return f"they compute alike, and {smaller.kind} with {show_bytes(smaller.memory_bytes)} limits what fits"


def _cite_speeds(kinds: dict[str, Gpu]) -> str:
    return cite(*(entry("gpus", kind).figure(_fastest_format(kind)) for kind in kinds))


def _fastest_format(kind: str) -> str:
    figures = entry("gpus", kind).figures
    return next(word for word in ("bf16", "fp16", "fp32") if word in figures)


def _speed(device: Gpu) -> float:
    flops = device.dense_flop_per_s
    return next(flops[word] for word in ("bf16", "fp16", "fp32") if word in flops)


_PER_REGION: tuple[Callable[[Subject, Region], Iterator[Finding]], ...] = (_mixed_gpus, _mixed_vendors, _wiring)
