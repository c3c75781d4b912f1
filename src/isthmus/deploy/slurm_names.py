"""Slurm's host lists (`gpu-[01-04,07],login`) and the leaf switches under a region's nodes."""

import re
from collections.abc import Iterable
from itertools import groupby

from isthmus.deploy.sites import Site

__all__ = ["expanded", "hostlist", "leaves", "topology_conf", "topology_yaml"]

_NUMBERED = re.compile(r"(.*?)(\d+)")
_PART = re.compile(r"([^\[\],]+)(?:\[([0-9,-]+)\])?(?:,|$)")


def hostlist(names: Iterable[str]) -> str:
    """Names as Slurm writes them, in the order given: runs of numbers of one width become `prefix[first-last]`."""
    parts: list[str] = []
    for (prefix, width), group in groupby(names, _family):
        members = list(group)
        if width == 0:
            parts += members
            continue
        ranges = _ranges([int(name[len(prefix) :]) for name in members], width)
        lone = len(ranges) == 1 and "-" not in ranges[0]
        parts.append(f"{prefix}{ranges[0]}" if lone else f"{prefix}[{','.join(ranges)}]")
    return ",".join(parts)


def _family(name: str) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(name)
    return (match[1], len(match[2])) if match else (name, 0)


def _ranges(numbers: list[int], width: int) -> list[str]:
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [f"{run[0]:0{width}d}" + (f"-{run[-1]:0{width}d}" if len(run) > 1 else "") for run in found]


def expanded(text: str) -> list[str] | None:
    """The names of a host list with at most one pair of brackets a name; None where it is not one."""
    names: list[str] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            return None
        position = match.end()
        for part in (match[2] or "").split(",") if match[2] else [""]:
            first, _, last = part.partition("-")
            if part and not (first.isdecimal() and (last or first).isdecimal()):
                return None
            numbers = [f"{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1)] if part else [""]
            names += [match[1] + number for number in numbers]
    return names


def leaves(site: Site) -> dict[str, list[str]] | None:
    """Names of the nodes under each leaf switch, as sites.yaml says, else one where the fabric has one; None: unknown."""
    named = [(node.switch, node.name) for node in site.nodes]
    if all(switch is not None for switch, _ in named):
        found: dict[str, list[str]] = {}
        for switch, name in sorted((switch or "", name) for switch, name in named):
            found.setdefault(switch, []).append(name)
        return found
    if site.region.network.shape in {"single-switch", "none"}:
        return {f"{site.name}-leaf": sorted(node.name for node in site.nodes)}
    return None


def topology_conf(site: Site) -> str | None:
    """topology.conf of the region's cluster, for topology/tree; None where its switches are unknown."""
    found = leaves(site)
    if found is None:
        return None
    lines = [f"SwitchName={switch} Nodes={hostlist(names)}" for switch, names in found.items()]
    if len(found) > 1:  # Slurm places no job over switches that nothing joins
        lines.append(f"SwitchName={site.name}-spine Switches={hostlist(found)}")
    return "\n".join(["# For TopologyPlugin=topology/tree; not read where a topology.yaml stands beside it.", *lines]) + "\n"


def topology_yaml(site: Site) -> str | None:
    """The same for Slurm 25.05 and later, which read topology.yaml first."""
    found = leaves(site)
    if found is None:
        return None
    lines = ["---", f"- topology: {site.name}", "  cluster_default: true", "  tree:", "    switches:"]
    for switch, names in found.items():
        lines += [f"      - switch: {switch}", f"        nodes: {hostlist(names)}"]
    if len(found) > 1:
        lines += [f"      - switch: {site.name}-spine", f"        children: {hostlist(found)}"]
    return "\n".join(lines) + "\n"
