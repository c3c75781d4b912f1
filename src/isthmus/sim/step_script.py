"""A training step of a plan as a script: compute, pipeline, buckets beside the backward pass, exchange, outer syncs.

Ranks are numbered as the planner lays them out: tensor parallel innermost, then pipeline, then data parallel, region by
region; a pipeline over regions has its stages region by region. Played: compute, sends between stages, gradients. Not
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
        extra_in_flight: Micro-batches that stages before a crossing keep in flight beyond 1F1B's own.
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
    extra_in_flight: int = 0


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
    """Groups of flows a bucket needs: in the node and on rails (with the ranks of one ring), over the WAN."""

    inner: tuple[int | None, int]
    rails: tuple[int | None, int]
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
    orders = [_order(s, stages, rounds, asked.extra_in_flight if regions[s] != regions[-1] else 0) for s in range(stages)]
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
            amount = (asked.crossing_bytes if coded else asked.activation_bytes, 1)
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
    chart = script.chart
    if asked.strategy.kind == "flat":
        source, target = replicas.ravel(), np.roll(replicas, -1, axis=0).ravel()
        return _Wires((None, 1), (script.group(source, target), len(replicas)), None, 1, replicas.size)
    inner: list[tuple[Ints, Ints]] = []
    rails: list[tuple[Ints, Ints]] = []
    inside = nodes = 1
    for part in range(replicas.shape[1]):
        column = replicas[:, part]
        for region in np.unique(chart.region[column]):
            own = column[chart.region[column] == region]
            groups = [own[chart.node[own] == node] for node in np.unique(chart.node[own])]
            inside, nodes = max(map(len, groups)), len(groups)
            if len({len(group) for group in groups}) > 1:
                raise InfeasibleError("replicas are spread unevenly over nodes", "a layout that divides the nodes")
            square = np.stack(groups)
            if inside > 1:
                inner.append((square.ravel(), np.roll(square, -1, axis=1).ravel()))
            if nodes > 1:
                rails.append((square.ravel(), np.roll(square, -1, axis=0).ravel()))
    wan, regions = _wan_group(script, replicas), len(np.unique(chart.region[replicas]))
    return _Wires((_joined(script, inner), inside), (_joined(script, rails), nodes), wan, regions, replicas.size)


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

    def go(track: str, group: int | None, amount: tuple[float, float], after: int | None) -> int:
        made = script.send((process, track), name, group, amount, [after, previous.get(track)])
        previous[track] = made - 1 if script.activities[made].track == "" else made
        return made

    (inner, inside), (rails, nodes) = wires.inner, wires.rails
    if asked.strategy.kind == "flat":
        go("ring over all", rails, (2 * (nodes - 1) / nodes * size, 2 * (nodes - 1)), ready)
        return
    near = ((inside - 1) / inside * size, inside - 1)
    far = ((nodes - 1) / nodes * size / inside, nodes - 1)
    at = go("reduce-scatter, node", inner, near, ready)
    at = go("reduce-scatter, rails", rails, far, at)
    if wires.wan is not None:
        trips = 1 if wires.regions == 2 else 2
        each = asked.wan_bytes * share / (asked.layout.pp * wires.ranks / wires.regions) / (1 if trips == 1 else wires.regions)
        for trip in range(trips):
            at = go(f"WAN{' back' if trip else ''}", wires.wan, (each, 1), at)
    at = go("all-gather, rails", rails, far, at)
    go("all-gather, node", inner, near, at)


def _window(script: Script, asked: StepAsked) -> None:
    """K inner steps and the sync after them; with a delay of d, d further steps beside it, and then the wait."""
    strategy, ranks = asked.strategy, np.arange(script.chart.gpus)[:, None]
    wires = _bucket_wires(script, asked, ranks)
    step, where = None, ("every rank", "compute")
    for number in range(strategy.inner_steps):
        step = script.pause(where, f"step {number}", asked.compute_s, [step])
    trips = 1 if wires.regions == 2 else 2
    each = asked.wan_bytes / (wires.ranks / wires.regions) / (1 if trips == 1 else wires.regions)
    at = step
    for trip in range(trips):
        at = script.send(("every rank", "WAN"), f"sync{' back' if trip else ''}", wires.wan, (each, 1), [at])
    (inner, inside), (rails, nodes) = wires.inner, wires.rails
    far = ((nodes - 1) / nodes * asked.gathered_bytes / inside, nodes - 1)
    at = script.send(("every rank", "all-gather, rails"), "sync", rails, far, [at])
    near = ((inside - 1) / inside * asked.gathered_bytes, inside - 1)
    at = script.send(("every rank", "all-gather, node"), "sync", inner, near, [at])
    for number in range(strategy.delay_steps):
        step = script.pause(where, f"step {strategy.inner_steps + number}", asked.compute_s, [step])
    script.pause(where, "sync applied", 0.0, [step, at])
