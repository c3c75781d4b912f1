"""What `isthmus simulate` asks of both witnesses, and how it shows their answers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from isthmus.cost.collectives_composed import RING, across_regions, hierarchical, seconds_of_parts
from isthmus.cost.collectives_constants import default_constants
from isthmus.cost.collectives_curves import hop_seconds, start_s
from isthmus.cost.collectives_group import Group, ranks_of, sites_group
from isthmus.cost.collectives_time import collective_time
from isthmus.cost.efficiency import NCCL_BUFFER, PCIE_EFFICIENCY, TCP_WINDOW
from isthmus.cost.paths import wan_pipe
from isthmus.cost.transport import mathis_rate_bytes_per_s, nccl_window_bytes, window_rate_bytes_per_s
from isthmus.errors import InfeasibleError, InputError, nearest
from isthmus.fabric import Fabric
from isthmus.fabric.carriers import in_node_carrier, network_carrier
from isthmus.formats.perfetto import Span
from isthmus.plan import Strategy
from isthmus.sim import Carriage, Collective, FabricMap, PhasePlayed, Shares, map_fabric, with_faults
from isthmus.units import show_bytes, show_seconds

__all__ = ["carriage_of", "compared", "result_of", "routing_named", "show_result", "spans_of", "wired"]

_ROUTINGS = {"balanced": "balanced", "hash": "hash", "destination": "destination"}
_LEVEL = {"pcie": "pcie", "host": "pcie"}
_ROWS_SHOWN = 12
_RANKS_TRACED = 16


def carriage_of(fabric: Fabric, strategy: Strategy | None = None) -> Carriage:
    """What the cost room knows of links, for the simulator: shares of line rate that its collectives sustain, what a hop and a
    call take (protocol Simple), WAN limits.
    """
    constants = default_constants()
    carriers, site = constants.carriers, sites_group(fabric)
    hops = {_LEVEL.get(level.carrier, "node" if not level.in_node else "nvlink"): hop_seconds(level, constants) for level in site}

    def start(kind: str, size_bytes: float, inside: int, nodes: int, algorithm: str) -> float:
        """Of a collective over as many GPUs of each of as many nodes."""
        group = _shaped(site, inside, nodes)
        return start_s(kind, size_bytes, group, algorithm, constants) if group else 0.0  # type: ignore[arg-type]

    regions: dict[str, Shares] = {}
    for region in fabric.regions:
        inside = min(carriers[in_node_carrier(group)].sustained for group in region.groups)
        network = carriers[network_carrier(region.network)].sustained
        regions[region.name] = Shares(nvlink=inside, pcie=carriers["pcie"].sustained, host=PCIE_EFFICIENCY.value, network=network)
    found = Carriage(regions=regions, hop_s=hops, pairwise=constants.share_pairwise, start_s=start)
    wan = wan_pipe(fabric)
    if wan is None:
        return found
    streams, window = strategy.streams if strategy else wan.streams, TCP_WINDOW.value
    if strategy is not None and strategy.kind == "flat":  # NCCL's own connections, one a channel, with its buffer in flight
        streams, window = wan.channels, nccl_window_bytes(wan.channels, NCCL_BUFFER.value) / wan.channels
    limits = {} if wan.rdma else _stream_limits(fabric, streams, window)
    return replace(found, wan=wan.payload_share, wan_flow_bytes_per_s=limits)


def _shaped(site: Group, inside: int, nodes: int) -> Group:
    """`inside` GPUs of each of `nodes` nodes, by the first level of each kind."""
    near = [replace(level, members=inside) for level in site[:1] if level.in_node and inside > 1]
    far = [replace(level, members=nodes) for level in site if not level.in_node and nodes > 1][:1]
    return (*near, *far)


def _stream_limits(fabric: Fabric, streams: int, window_bytes: float) -> dict[tuple[str, str], float]:
    """What the TCP streams of one pair of GPUs carry over each link: windows and loss."""
    return {
        link.between: streams
        * min(window_rate_bytes_per_s(window_bytes, link.rtt_s), mathis_rate_bytes_per_s(link.loss, link.rtt_s))
        for link in fabric.wan
    }


def wired(fabric: Fabric, routing: str | None, fail: Sequence[str], weaken: Sequence[tuple[str, float]]) -> FabricMap:
    """`fabric` as a graph, after its faults."""
    return with_faults(map_fabric(fabric, carriage_of(fabric), routing_named(routing)), fail, weaken)


def routing_named(name: str | None) -> Any:
    """The routing called `name`; None where none is asked for.

    Raises:
        InputError: There is none of that name.
    """
    if name is not None and name not in _ROUTINGS:
        raise InputError("--routing", f"unknown routing {name!r}", nearest(name, _ROUTINGS))
    return name


def compared(fabric: Fabric, asked: Collective) -> list[dict[str, Any]]:
    """The formulas' answers where they have one: for all ranks of the fabric, healthy and alone."""
    if len(asked.ranks) != fabric.gpus:
        return []
    answers: list[dict[str, Any]] = []
    site, wan, constants = sites_group(fabric), wan_pipe(fabric), default_constants()
    if asked.kind == "all-reduce" and ranks_of(site) * len(fabric.regions) == fabric.gpus:
        parts = hierarchical(asked.size_bytes, site, constants, RING, wan)
        what = f"hierarchical, {' + '.join(part.what for part in parts)}, protocol Simple"
        answers.append({"what": what, "seconds": seconds_of_parts(parts)})
        if wan is not None:
            parts = across_regions(asked.size_bytes, site, wan, constants)
            answers.append({"what": f"isthmus, {' + '.join(part.what for part in parts)}", "seconds": seconds_of_parts(parts)})
    if wan is None:
        try:
            found = collective_time(asked.kind, asked.size_bytes, site)
        except InfeasibleError:
            return answers
        answers.append(
            {"what": f"NCCL, {found.algorithm} {found.protocol}, bound by {found.limit}", "seconds": found.seconds}
        )
    return answers


def result_of(
    chart: FabricMap, asked: Collective, played: Sequence[PhasePlayed], formulas: list[dict[str, Any]]
) -> dict[str, Any]:
    """Everything that was found, for people and machines."""
    total = sum(each.seconds for each in played)
    carried = np.sum([each.carried_bytes for each in played], axis=0)
    used = carried > 0
    phases = [_phase(chart, each) for each in played]
    return {
        "fabric": chart.fabric.name,
        "collective": asked.kind,
        "algorithm": asked.algorithm,
        "bytes": asked.size_bytes,
        "ranks": len(asked.ranks),
        "routing": {region.name: switches.routing for region, switches in zip(chart.fabric.regions, chart.switches, strict=True)},
        "seconds": total,
        "algbw_bytes_per_s": asked.size_bytes / total,
        "phases": phases,
        "levels": _levels(chart, carried, used, total),
        "formulas": [each | {"ratio": total / each["seconds"]} for each in formulas if each["seconds"] > 0],
    }


def _phase(chart: FabricMap, each: PhasePlayed) -> dict[str, Any]:
    with np.errstate(divide="ignore", invalid="ignore"):
        busy = np.where(chart.capacity > 0, each.carried_bytes / chart.capacity, 0.0)
    link = int(busy.argmax())
    own = ~each.phase.forever
    return {
        "name": each.phase.name,
        "seconds": each.seconds,
        "streams": each.phase.streams,
        "messages": int(each.phase.rounds[own].sum()),
        "classes": each.classes,
        "busiest": chart.cables.name(link) if busy[link] > 0 else None,
        "utilisation": float(busy[link] / each.seconds) if each.seconds else 0.0,
        "bound_by": _bound(each, float(busy[link])),
        "peak_load": each.peak_load,
    }


def _bound(each: PhasePlayed, busy_s: float) -> str:
    """What most of the time is: the busiest link's own work, hops, or the limit of streams."""
    own = ~each.phase.forever
    rounds = each.phase.rounds[own]
    hops = float((rounds * each.phase.latency_s[own]).max(initial=0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        limited = float((rounds * each.phase.size_bytes[own] / each.phase.limit_bytes_per_s[own]).max(initial=0.0))
    parts = {"link": busy_s, "latency": hops, "window or loss of its streams": limited * 1.001}
    return max(parts, key=lambda name: parts[name])


def _levels(chart: FabricMap, carried: Any, used: Any, total: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for level in chart.cables.levels():
        links = np.concatenate([np.arange(b.first, b.first + 2 * b.count) for b in chart.cables.blocks if b.level == level])
        busy = links[used[links] & (chart.capacity[links] > 0)]
        if not len(busy) or total <= 0:
            continue
        share = carried[busy] / chart.capacity[busy] / total
        found.append(
            {"level": level, "links": len(busy), "mean": float(share.mean()), "most": float(share.max()),
             "least": float(share.min()), "fullest": chart.cables.name(int(busy[share.argmax()]))}
        )  # fmt: skip
    return found


def show_result(found: dict[str, Any]) -> None:
    """The tables for people."""
    console = Console()
    console.print(
        f"{found['collective']} ({found['algorithm']}) of {show_bytes(found['bytes'])} over {found['ranks']:,} GPUs of "
        f"{found['fabric']}: [bold]{show_seconds(found['seconds'])}[/], {show_bytes(found['algbw_bytes_per_s'])}/s\n"
    )
    console.print(_phase_table(found["phases"]))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("level", "links used", "mean", "fullest", ""):
        table.add_column(name, justify="left" if name in ("level", "") else "right")
    for each in found["levels"]:
        table.add_row(each["level"], f"{each['links']:,}", f"{each['mean']:.0%}", f"{each['most']:.0%}", each["fullest"])
    console.print(table)
    for each in found["formulas"]:
        ratio = f"played / formula {each['ratio']:.3f}"
        console.print(f"Formula: {show_seconds(each['seconds'])} ({each['what']}); {ratio}", highlight=False)
    if not found["formulas"]:
        console.print("[dim]No formula for this: a part of the fabric, or a collective over a WAN that has none.[/]")


def _phase_table(phases: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("phase")
    for name in ("time", "messages"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("busiest link")
    table.add_column("busy", justify="right")
    table.add_column("bound by")
    for each in phases[:_ROWS_SHOWN]:
        table.add_row(
            each["name"], show_seconds(each["seconds"]), f"{each['messages']:,}", each["busiest"] or "none",
            f"{each['utilisation']:.0%}", each["bound_by"],
        )  # fmt: skip
    if len(phases) > _ROWS_SHOWN:
        rest = phases[_ROWS_SHOWN:]
        table.add_row(f"... {len(rest)} more", show_seconds(sum(each["seconds"] for each in rest)), "", "", "", "")
    return table


def spans_of(played: Sequence[PhasePlayed]) -> list[Span]:
    """A process a rank (the first few), a track a phase; every stream from its first byte to its last arrival."""
    spans: list[Span] = []
    start = 0.0
    for each in played:
        ranks = [int(rank) for rank in dict.fromkeys(each.phase.source.tolist())][:_RANKS_TRACED]
        for rank in ranks:
            sends = np.flatnonzero((each.phase.source == rank) & np.isfinite(each.finish_s) & ~each.phase.forever)
            for stream in sends[:_RANKS_TRACED].tolist():
                size = float(each.phase.size_bytes[stream] * each.phase.rounds[stream])
                begin, end = float(each.begin_s[stream]), float(each.finish_s[stream])
                spans.append(
                    Span(process=f"rank {rank}", track=each.phase.name, name=f"to rank {each.phase.target[stream]}",
                         begin_s=start + begin, seconds=end - begin,
                         details={"bytes": size, "messages": int(each.phase.rounds[stream])})
                )  # fmt: skip
        start += each.seconds
    return spans
