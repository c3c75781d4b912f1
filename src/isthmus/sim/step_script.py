"""A training step of a plan as a script: compute, pipeline, buckets beside the backward pass, exchange, outer syncs.

Ranks are numbered as the planner lays them out: tensor parallel innermost, then pipeline, then data parallel, region by
region; a pipeline over regions has its stages region by region. Played: compute, sends between stages, gradients, coding. Not
played, because the compute already holds it (a published MFU is measured with it): tensor, context and expert parallel
traffic, and ZeRO's gathers inside a region.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from isthmus.errors import InfeasibleError
from isthmus.plan import Layout, Strategy
from isthmus.sim.fabric_map import FabricMap
from isthmus.sim.graph import Ints
from isthmus.sim.groups import channel_orders, inner_groups
from isthmus.sim.script import Script

__all__ = ["StepAsked", "script_of"]

BUCKETS_MOST = 400
"""More buckets are played as this many larger ones: beyond, only the picture gets finer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAsked:
    """What a step of a plan does, in numbers.

    Attributes:
        strategy, layout: The plan's.
        compute_s: Of one stage, all micro-batches, with the WAN off.
        backward_fraction: Of a micro-batch.
        micro_batches: Of one replica.
        gradient_bytes: Of one GPU, as they are reduced inside a region.
        wan_bytes: Whole gradient, delta or parameters as they cross the WAN, coded.
        gathered_bytes: Of one GPU, gathered in the region after an outer sync.
        activation_bytes: Of one micro-batch, on one GPU, between two stages; `crossing_bytes` as they cross the WAN, coded.
        extra_in_flight: By region, micro-batches that its stages keep in flight beyond 1F1B's own, for the crossings ahead.
        coding_s: (before, after) the WAN, of one GPU for everything that it codes.
        bucket_work_s: Of the host, before a bucket crosses.
        exchanges: One after another over the WAN; 2 where the second depends on the first (PowerSGD).
    """

    strategy: Strategy
    layout: Layout
    compute_s: float
    backward_fraction: float
    micro_batches: int
    gradient_bytes: float
    wan_bytes: float
    gathered_bytes: float
    activation_bytes: float
    crossing_bytes: float
    extra_in_flight: tuple[int, ...] = ()
    coding_s: tuple[float, float] = (0.0, 0.0)
    bucket_work_s: float = 0.0
    exchanges: int = 1


def script_of(chart: FabricMap, asked: StepAsked) -> Script:
    """The script of one step (of one window of inner steps where regions sync every K).

    Raises:
        InfeasibleError: A sharded strategy, or a layout that does not fill the fabric.
    """
    layout = asked.layout
    if asked.strategy.kind == "sharded":
        played = "flat, hierarchical, local-steps or pipeline"
        raise InfeasibleError("a plan that shards parameters over regions cannot be played", played)
    if layout.dp * layout.tp * layout.pp * layout.cp != chart.gpus:
        raise InfeasibleError(
            f"the plan's layout takes {layout.dp * layout.tp * layout.pp * layout.cp} GPUs, the fabric has {chart.gpus}",
            "GPUs of the fabric that the plan was made for",
        )
    script = Script(chart)
    if asked.strategy.kind == "local-steps":
        _window(script, asked)
    else:
        _step(script, asked, _grid(chart, asked))
    return script


def _grid(chart: FabricMap, asked: StepAsked) -> Ints:
    """Ranks as [stage, replica, part]: parts are tensor and context parallel ranks."""
    layout, regions = asked.layout, len(chart.fabric.regions)
    parts = layout.tp * layout.cp
    ranks = np.arange(chart.gpus)
    if asked.strategy.kind == "pipeline":
        own = ranks.reshape(regions, layout.dp, layout.pp // regions, parts)
        return own.transpose(0, 2, 1, 3).reshape(layout.pp, layout.dp, parts)
    return ranks.reshape(layout.dp, layout.pp, parts).transpose(1, 0, 2)


@dataclass(frozen=True, slots=True)
class _Wires:
    """Groups of flows a bucket needs: rings over a region's replicas (or, blind to regions, over all), and over the WAN.

    `members` of a ring, `channels` rings side by side in a node, its `shape` = (GPUs of a node, nodes); `ranks` of all.
    """

    rings: int | None
    members: int
    channels: int
    shape: tuple[int, int]
    wan: int | None
    regions: int
    ranks: int


def _step(script: Script, asked: StepAsked, grid: Ints) -> None:
    stages, rounds, slot = len(grid), asked.micro_batches, asked.compute_s / asked.micro_batches
    forward, backward = slot * (1 - asked.backward_fraction), slot * asked.backward_fraction
    sends = [script.group(grid[s].ravel(), grid[s + 1].ravel()) for s in range(stages - 1)]
    returns = [script.group(grid[s + 1].ravel(), grid[s].ravel()) for s in range(stages - 1)]
    regions = script.chart.region[grid[:, 0, 0]]
    came: dict[tuple[str, int, int], int] = {}
    extra = asked.extra_in_flight or (0,) * len(script.chart.fabric.regions)
    orders = [_order(s, stages, rounds, extra[regions[s]] if asked.strategy.kind == "pipeline" else 0) for s in range(stages)]
    wires = [_bucket_wires(script, asked, grid[s]) for s in range(stages)]
    last: list[int | None] = [None] * stages
    at, done = [0] * stages, 0
    while done < stages * 2 * rounds:
        moved = False
        for stage in range(stages):
            if at[stage] == 2 * rounds:
                continue
            what, batch = orders[stage][at[stage]]
            source = ("F", stage - 1, batch) if what == "F" else ("B", stage + 1, batch)
            first = (what == "F" and stage == 0) or (what == "B" and stage == stages - 1)
            if not first and source not in came:
                continue
            waits = [last[stage], None if first else came[source]]
            seconds, where = (forward if what == "F" else backward), (f"stage {stage}", "compute")
            if what == "B" and batch == rounds - 1:
                last[stage] = _backward_with_buckets(script, asked, (where[0], wires[stage]), seconds, waits)
            else:
                name = f"{'forward' if what == 'F' else 'backward'} {batch}"
                last[stage] = script.pause(where, name, seconds, waits)
            beyond = sends[stage] if what == "F" and stage < stages - 1 else returns[stage - 1] if what == "B" and stage else None
            track = f"to stage {stage + 1 if what == 'F' else stage - 1}"
            name = f"{'activations' if what == 'F' else 'gradients'} {batch}"
            coded = beyond is not None and script.flows[beyond].wan
            amount = (asked.crossing_bytes if coded else asked.activation_bytes, 1, 0.0)
            came[what, stage, batch] = script.send((where[0], track), name, beyond, amount, [last[stage]])
            at[stage], done, moved = at[stage] + 1, done + 1, True
        assert moved, "a 1F1B schedule that waits for itself"


def _order(stage: int, stages: int, rounds: int, extra: int) -> list[tuple[str, int]]:
    """1F1B: forwards to fill what is ahead, then one back for one forward."""
    ahead = min(rounds, stages - stage - 1 + extra)
    order = [("F", batch) for batch in range(ahead)]
    for batch in range(rounds):
        if ahead + batch < rounds:
            order.append(("F", ahead + batch))
        order.append(("B", batch))
    return order


def _bucket_wires(script: Script, asked: StepAsked, replicas: Ints) -> _Wires:
    """Flows of the gradients of one stage; `replicas` are its ranks as [replica, part]."""
    chart, members = script.chart, len(replicas)
    if asked.strategy.kind == "flat":
        columns = replicas.T
        rings = script.group(columns.ravel(), np.roll(columns, -1, axis=1).ravel(), members) if members > 1 else None
        return _Wires(rings, members, 1, (1, 1), None, 1, replicas.size)
    orders: list[Ints] = []
    shapes: set[tuple[int, int, int]] = set()
    for part in range(replicas.shape[1]):
        column = replicas[:, part]
        for region in np.unique(chart.region[column]):
            groups = inner_groups(chart, column[chart.region[column] == region])
            own = channel_orders(chart, groups)
            shapes.add((len(own), max(map(len, groups)), len(groups)))
            orders += own
    if len(shapes) > 1 or len({len(order) for order in orders}) > 1:
        raise InfeasibleError("replicas are spread unevenly over nodes", "a layout that divides the nodes")
    [(channels, inside, nodes)] = shapes
    members = len(orders[0])
    pairs = [(order, np.roll(order, -1)) for order in orders] if members > 1 else []
    wan, regions = _wan_group(script, replicas), len(np.unique(chart.region[replicas]))
    return _Wires(_joined(script, pairs), members, channels, (inside, nodes), wan, regions, replicas.size)


def _joined(script: Script, pairs: list[tuple[Ints, Ints]]) -> int | None:
    if not pairs:
        return None
    return script.group(np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs]))


def _wan_group(script: Script, ranks: Ints) -> int | None:
    """Every rank to its like in every other region."""
    region = script.chart.region[ranks.ravel()]
    own = [ranks.ravel()[region == one] for one in np.unique(region)]
    if len(own) < 2:
        return None
    if len({len(each) for each in own}) > 1:
        raise InfeasibleError("regions of unequal size cannot be played in step", "GPUs of a region")
    pairs = [(a, b) for a in own for b in own if a is not b]
    return _joined(script, pairs)


def _backward_with_buckets(
    script: Script, asked: StepAsked, who: tuple[str, _Wires], seconds: float, waits: list[int | None]
) -> int:
    """The last backward pass in as many pieces as there are buckets, each bucket on its way when its piece is done."""
    process, wires = who
    count = max(1, min(BUCKETS_MOST, ceil(asked.gradient_bytes / asked.strategy.bucket_bytes)))
    whole = asked.gradient_bytes / count
    previous: dict[str, int | None] = {}
    piece: int | None = None
    for bucket in range(count):
        piece = script.pause((process, "compute"), f"backward, bucket {bucket}", seconds / count, [*waits, piece])
        waits = []
        _bucket(script, asked, (process, wires), (bucket, whole, 1 / count), (piece, previous))
    assert piece is not None
    return piece


def _bucket(
    script: Script,
    asked: StepAsked,
    who: tuple[str, _Wires],
    part: tuple[int, float, float],
    state: tuple[int, dict[str, int | None]],
) -> None:
    """In the node, on the rails, over the WAN, and back; each link after the bucket before it."""
    (process, wires), (bucket, size, share), (ready, previous) = who, part, state
    name = f"bucket {bucket}"

    def go(track: str, group: int | None, amount: tuple[float, float, float], before: int | None) -> int:
        made = script.send((process, track), name, group, amount, [before, previous.get(track)])
        # Collectives of one communicator follow one another whole; over the WAN the next bucket leaves when the wire is free.
        crosses = track.startswith("WAN") and script.activities[made].track == ""
        previous[track] = made - 1 if crosses else made
        return made

    def work(track: str, seconds: float, before: int) -> int:
        made = previous[track] = script.pause((process, track), name, seconds, [before, previous.get(track)])
        return made

    members = wires.members
    if asked.strategy.kind == "flat":
        start = script.chart.carriage.start_s("all-reduce", size, 1, members, "ring")
        go("ring over all", wires.rings, (2 * (members - 1) / members * size, 2 * (members - 1), start), ready)
        return
    at = go("reduce-scatter", wires.rings, _ring_amount(script, wires, "reduce-scatter", size), ready)
    if wires.wan is not None:
        at = work("encode", asked.coding_s[0] * share + asked.bucket_work_s, at)
        for trip, each in enumerate(_crossing_amounts(asked, wires, asked.wan_bytes * share / asked.layout.pp)):
            at = go(f"WAN, trip {trip + 1}", wires.wan, each, at)
        at = work("decode", asked.coding_s[1] * share, at)
    go("all-gather", wires.rings, _ring_amount(script, wires, "all-gather", size), at)


def _ring_amount(script: Script, wires: _Wires, kind: str, size: float) -> tuple[float, float, float]:
    """(bytes of one flow, messages in turn, start) of a reduce-scatter or all-gather of `size` in a region."""
    steps = wires.members - 1
    start = script.chart.carriage.start_s(kind, size, *wires.shape, "ring")
    return steps / wires.members * size / wires.channels, steps, start


def _crossing_amounts(asked: StepAsked, wires: _Wires, size: float) -> list[tuple[float, float, float]]:
    """What each rank sends to each other region, trip by trip: two regions swap, more scatter and gather."""
    shard = size / (wires.ranks / wires.regions)
    trips = 1 if wires.regions == 2 else 2
    each = shard if trips == 1 else shard / wires.regions
    return [(each / asked.exchanges, 1, 0.0)] * (trips * asked.exchanges)


def _window(script: Script, asked: StepAsked) -> None:
    """K inner steps; every fragment leaves at its turn and is applied d steps later, when training waits for it.

    Coding, and the gather inside the region, take the ranks' own time.
    """
    strategy, ranks = asked.strategy, np.arange(script.chart.gpus)[:, None]
    wires, where = _bucket_wires(script, asked, ranks), ("every rank", "compute")
    pieces = strategy.fragments
    leaves = {(piece + 1) * strategy.inner_steps // pieces - 1: piece for piece in range(pieces)}
    arrived: dict[int, int] = {}
    now, wire = None, None
    for number in range(strategy.inner_steps + strategy.delay_steps):
        now = script.pause(where, f"step {number}", asked.compute_s, [now])
        piece = leaves.get(number) if number < strategy.inner_steps else None
        if piece is not None:
            now = script.pause(where, f"encode {piece}", asked.coding_s[0] / pieces, [now])
            sent = now
            for each in _crossing_amounts(asked, wires, asked.wan_bytes / pieces):
                sent = script.send(("every rank", "WAN"), f"sync {piece}", wires.wan, each, [sent, wire])
                wire = sent - 1 if script.activities[sent].track == "" else sent
            arrived[piece] = sent
        due = leaves.get(number - strategy.delay_steps)
        if due is not None:
            amount = _ring_amount(script, wires, "all-gather", asked.gathered_bytes / pieces)
            now = script.pause(where, f"decode {due}", asked.coding_s[1] / pieces, [now, arrived[due]])
            now = script.send(where, f"gather {due}", wires.rings, amount, [now])
