"""One run: two regions meet, sync three times (the first is not counted), and one is killed. What does the other do?"""

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contenders import AWAY, HOME, Contender, Started, start
from window import TOKENS_PER_STEP

from isthmus.emulate import EmulatedLink, LinkCounters, open_tunnel

__all__ = ["PHASES", "RECOVERY_LIMIT_S", "RTT_S", "STEPS", "STEP_S", "Run", "measure"]

RTT_S = 0.020
STEPS, STEP_S = 5, 0.1
PHASES = ("inside", "between")  # half of a sync's bytes are on the wire; half of a window is trained
WARM = 1  # the first sync opens connections; later ones are measured
FAULT_WINDOW = 3
START_LIMIT_S, SYNC_LIMIT_S, RECOVERY_LIMIT_S = 180.0, 60.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run showed.

    Attributes:
        contender: Name.
        phase: Where the kill fell.
        sync_s: From the later region's start of a sync until both have its result, for each warm one.
        wire_bytes: One way, of a warm sync.
        recovery_s: From SIGKILL until the survivor's next sync was committed whole; None where none was within
            RECOVERY_LIMIT_S. A sync that averages some elements and leaves others as they were is not whole.
        lost_tokens: Training the survivor threw away meanwhile.
        at_kill: Share of a sync's bytes that was on the wire when the kill fell (phase `inside`).
        note: What the survivor said of the failure.
    """

    contender: str
    phase: str
    sync_s: list[float]
    wire_bytes: float
    recovery_s: float | None
    lost_tokens: int
    at_kill: float | None
    note: str


class Events:
    """Follows the events files of a run; a rank that ends early ends the run."""

    def __init__(self, started: Started) -> None:
        self._started = started

    def of(self, region: str, event: str) -> list[dict[str, Any]]:
        """All events of one kind so far."""
        path = self._started.events[region]
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8")
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [found for found in map(json.loads, lines) if found["event"] == event]

    def wait(self, what: str, ready: Callable[[], bool], limit_s: float, region: str | None = None) -> bool:
        """Poll until `ready`; False when the time is over.

        Raises:
            SystemExit: A rank (of `region`, or any) ended by itself.
        """
        deadline = time.monotonic() + limit_s
        while not ready():
            for name, process in self._started.ranks.items():
                if region in (None, name) and process.poll() is not None:
                    tail = self._started.logs[name].read_text(encoding="utf-8", errors="replace")[-3000:]
                    raise SystemExit(f"{what}: the rank of {name} ended with status {process.returncode}:\n{tail}")
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def both(self, event: str, window: int) -> bool:
        """Whether both regions have written `event` of `window`."""
        return all(any(found["window"] == window for found in self.of(region, event)) for region in (HOME, AWAY))


def measure(contender: Contender, phase: str, rate_bytes_per_s: float) -> Run:
    """Carry out one run in a tunnel of its own."""
    link = EmulatedLink(between=(HOME, AWAY), rate_bytes_per_s=rate_bytes_per_s, rtt_s=RTT_S)
    with open_tunnel({HOME: 1, AWAY: 1}, [link]) as tunnel:
        folder = Path(tunnel.folder)
        started = start(tunnel, contender, folder, STEPS, STEP_S)
        events = Events(started)

        def wire() -> LinkCounters:
            return tunnel.counters()[HOME, AWAY]

        try:
            came = events.wait("start", lambda: all(events.of(region, "ready") for region in (HOME, AWAY)), START_LIMIT_S)
            require(came, "start", started)
            (folder / "go").touch()
            counted: list[int] = []
            for window in range(FAULT_WINDOW):
                before = wire().wire_bytes
                require(events.wait("sync", lambda w=window: events.both("synced", w), SYNC_LIMIT_S), f"sync {window}", started)
                counted.append(wire().wire_bytes - before)
                apart = [region for region in (HOME, AWAY) for found in events.of(region, "synced") if found.get("alone")]
                require(window < WARM or not apart, f"an average of both regions in window {window}", started)
            wire_bytes = statistics.median(counted[WARM:])
            share = strike(events, started, phase, wire_bytes, lambda: wire().wire_bytes)
            return conclude(events, contender, phase, wire_bytes, share)
        finally:
            for process in started.servers + list(started.ranks.values()):
                end(process)


def strike(
    events: Events, started: Started, phase: str, wire_bytes: float, on_wire: Callable[[], int]
) -> tuple[float, float | None]:
    """Kill the region when the phase has come; when that was, and what share of the sync's bytes had been sent."""
    before, share = on_wire(), None
    if phase == "inside":
        require(
            events.wait("fault", lambda: on_wire() - before >= wire_bytes / 2, SYNC_LIMIT_S), "half of a sync's bytes", started
        )
        share = (on_wire() - before) / wire_bytes
    else:
        require(events.wait("fault", lambda: events.both("window", FAULT_WINDOW), SYNC_LIMIT_S), "the window", started)
        time.sleep(STEPS * STEP_S / 2)
    killed_s = time.monotonic()
    end(started.ranks[AWAY])
    return killed_s, share


def conclude(
    events: Events, contender: Contender, phase: str, wire_bytes: float, struck: tuple[float, float | None]
) -> Run:
    """Wait for the survivor's next committed sync, and sum up."""
    killed_s, share = struck

    def recovered() -> list[dict[str, Any]]:
        whole = {check["window"] for check in events.of(HOME, "checked") if check["changed"] in (0.0, 1.0)}
        synced = [found for found in events.of(HOME, "synced") if found["t"] > killed_s and found["committed"]]
        return [found for found in synced if found["window"] in whole]

    events.wait("recovery", lambda: bool(recovered()), RECOVERY_LIMIT_S, HOME)
    found = recovered()
    last = found[0]["window"] if found else 10**9
    checks = [check for check in events.of(HOME, "checked") if FAULT_WINDOW <= check["window"] <= last]
    after = [each for each in events.of(HOME, "synced") if FAULT_WINDOW <= each["window"] <= last]
    notes = {each["error"] for each in after if "error" in each}
    notes |= {f"a sync averaged {check['changed']:.0%} of the elements only" for check in checks if 0 < check["changed"] < 1}
    return Run(
        contender=contender.name, phase=phase, wire_bytes=wire_bytes,
        sync_s=[sync_seconds(events, window) for window in range(WARM, FAULT_WINDOW)],
        recovery_s=found[0]["t"] - killed_s if found else None,
        lost_tokens=sum(not check["kept"] for check in checks) * STEPS * TOKENS_PER_STEP,
        at_kill=share, note="; ".join(sorted(notes)),
    )


def sync_seconds(events: Events, window: int) -> float:
    """From the later region's start until both have the result."""

    def last(event: str) -> float:
        return max(found["t"] for region in (HOME, AWAY) for found in events.of(region, event) if found["window"] == window)

    return last("synced") - last("sync")


def require(came: bool, what: str, started: Started) -> None:
    """End the comparison with the ranks' own words where something did not happen in time."""
    if not came:
        tails = [f"--- {log}\n" + log.read_text(encoding="utf-8", errors="replace")[-1500:] for log in started.logs.values()]
        sys.exit(f"peers: {what} did not come in time\n" + "\n".join(tails))


def end(process: Any) -> None:
    """Kill a process and what it started; each leads a process group of its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
