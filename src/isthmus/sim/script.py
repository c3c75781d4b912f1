"""Scripts: activities that groups of GPUs do in step, so that one stands for all; how a plan's step is played.

A group's flows (all rings of a level, all rails, all replicas at once) move at one rate, that of the slowest of them: exact
where they are alike, and what a synchronous collective does where they are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from isthmus.sim.events import play_problem
from isthmus.sim.fabric_map import FabricMap
from isthmus.sim.fold import Problem
from isthmus.sim.graph import Ints, Numbers
from isthmus.sim.phase import ALL
from isthmus.sim.routes import route

__all__ = ["Activity", "Flows", "Script", "ScriptPlayed", "play_script"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """Flows that move together: their links, one message's latency in seconds, what one flow carries at most."""

    links: Ints
    latency_s: float
    limit_bytes_per_s: float
    wan: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One line of a script: a pause of `seconds`, or `size_bytes` on each flow of `flows`.

    The way of a message (a pause of its latency, without a track) names its flows too, so that it is gone where they are.
    """

    process: str
    track: str
    name: str
    seconds: float
    size_bytes: float
    flows: int | None


@dataclass(slots=True)
class Script:
    """Activities in the order they are written, and which waits for which."""

    chart: FabricMap
    flows: list[Flows] = field(default_factory=list[Flows])
    activities: list[Activity] = field(default_factory=list[Activity])
    needs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def group(self, source: Ints, target: Ints, ring: int = 0) -> int | None:
        """Flows from `source` to `target` as one group; None where there are none.

        Where `ring` says how many flows in a row close a ring, its latency is the mean over the longest chain of two laps.
        """
        if not len(source):
            return None
        found = route(self.chart, source, target)
        wan = bool((self.chart.region[source] != self.chart.region[target]).any())
        limit = float(found.limit_bytes_per_s.min())
        latency = float(found.latency_s.max() if wan else found.latency_s.mean())
        if ring > 1:
            hops = found.latency_s.reshape(-1, ring)
            # 2 (n - 1) hops: two laps but for two hops in a row, at best the two quickest.
            longest = 2 * hops.sum(axis=1) - (hops + np.roll(hops, -1, axis=1)).min(axis=1)
            latency = float(longest.max()) / (2 * (ring - 1))
        self.flows.append(Flows(links=found.links, latency_s=latency, limit_bytes_per_s=limit, wan=wan))
        return len(self.flows) - 1

    def pause(self, where: tuple[str, str], name: str, seconds: float, after: Sequence[int | None] = ()) -> int:
        """`seconds` of work that takes no link."""
        work = Activity(process=where[0], track=where[1], name=name, seconds=seconds, size_bytes=0.0, flows=None)
        return self._add(work, after)

    def send(
        self, where: tuple[str, str], name: str, flows: int | None, size: tuple[float, float, float], after: Sequence[int | None]
    ) -> int:
        """`size` = (bytes on each flow, latencies one after another, seconds to start); the links are free before the latency
        is over.
        """
        size_bytes, messages, start_s = size
        if flows is None or size_bytes <= 0:
            return self.pause(where, name, 0.0, after)
        latency = messages * self.flows[flows].latency_s + start_s
        moved = Activity(process=where[0], track=where[1], name=name, seconds=0.0, size_bytes=size_bytes, flows=flows)
        index = self._add(moved, after)
        way = Activity(process=where[0], track="", name=name, seconds=latency, size_bytes=0.0, flows=flows)
        return self._add(way, [index])

    def _add(self, activity: Activity, after: Sequence[int | None]) -> int:
        self.activities.append(activity)
        index = len(self.activities) - 1
        self.needs += [(before, index) for before in dict.fromkeys(after) if before is not None]
        return index


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptPlayed:
    """A script, played: when every activity began and ended, in seconds, and the share of its bytes' time of each link."""

    begin_s: Numbers
    finish_s: Numbers
    busy_s: Numbers
    peak_load: float

    @property
    def seconds(self) -> float:
        """Until all is done."""
        return float(self.finish_s.max(initial=0.0))


def play_script(script: Script, without_wan: bool = False) -> ScriptPlayed:
    """Play `script`; `without_wan` lets everything that crosses it pass in no time."""
    kept = [flows for flows in script.flows if not (without_wan and flows.wan)]
    index = {id(flows): number for number, flows in enumerate(kept)}
    counts = np.zeros((script.chart.cables.links, max(1, len(kept))))
    for number, flows in enumerate(kept):
        counts[:, number] = np.bincount(flows.links[flows.links >= 0], minlength=len(counts))
    used = np.flatnonzero(counts.any(axis=1))
    loads = counts[used] / script.chart.capacity[used, None]
    # What the streams of a pair of ranks carry at most, all that they have on their way together, is a link of its own.
    held = np.diag([0.0 if np.isinf(flows.limit_bytes_per_s) else 1 / flows.limit_bytes_per_s for flows in kept])
    rows = np.unique(np.concatenate([loads, held[held.any(axis=1)]]), axis=0) if kept else loads
    problem = _problem(script, rows, [index.get(id(f)) for f in script.flows])
    played = play_problem(problem)
    busy = np.zeros(len(counts))
    for activity in script.activities:
        at = index.get(id(script.flows[activity.flows])) if activity.flows is not None else None
        if at is not None:
            busy[used] += loads[:, at] * activity.size_bytes
    return ScriptPlayed(begin_s=played.begin_s, finish_s=played.finish_s, busy_s=busy, peak_load=played.peak_load)


def _problem(script: Script, rows: Numbers, place: list[int | None]) -> Problem:
    """Every activity a class; a link's row says what share of its capacity one byte/s on each flow of a group takes.

    Rows are scaled so that the largest entry is 1 (a whole stream), and the capacity likewise.
    """
    scale = rows.max(axis=1)
    rows = rows / scale[:, None]
    columns = [np.flatnonzero(rows[:, at]) if at is not None else np.zeros(0, dtype=np.int64) for at in place]
    starts, links, times = [0], list[Ints](), list[Numbers]()
    sizes, latencies = list[float](), list[float]()
    for activity in script.activities:
        at = place[activity.flows] if activity.flows is not None else None
        lost = activity.flows is not None and at is None
        if activity.flows is not None and at is not None:
            links.append(columns[activity.flows])
            times.append(rows[columns[activity.flows], at])
        starts.append(starts[-1] + (len(links[-1]) if at is not None else 0))
        sizes.append(0.0 if lost else activity.size_bytes)
        latencies.append(0.0 if lost else activity.seconds)
    count = len(script.activities)
    return Problem(
        capacity=1 / scale,
        start=np.array(starts),
        link=np.concatenate(links) if links else np.zeros(0, dtype=np.int64),
        times=np.concatenate(times) if times else np.zeros(0),
        size_bytes=np.array(sizes),
        rounds=np.ones(count, dtype=np.int64),
        latency_s=np.array(latencies),
        limit_bytes_per_s=np.full(count, np.inf),
        forever=np.zeros(count, dtype=np.bool_),
        needs=np.array([(a, b, ALL) for a, b in script.needs], dtype=np.int64).reshape(-1, 3),
        members=np.ones(count, dtype=np.int64),
        stream_class=np.arange(count),
    )
