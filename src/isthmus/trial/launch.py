"""Start one training run's ranks in the tunnel, watch what they write, and end them: by pid, and only ours.

A run is one folder: members.json, the ranks' metrics and their output. The launcher knows the rank environment and
nothing of torch; the same environment is what a cluster's own launcher sets.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from isthmus.bench import rank_environment
from isthmus.emulate import Tunnel
from isthmus.errors import InfeasibleError

__all__ = ["Ranks", "RunSpec", "start_ranks"]

FLAT_PORT, RAIL_PORT = 29400, 29600
_STEP = re.compile(rb'^\{"kind":\s*"step"', re.MULTILINE)
DEMO = (sys.executable, "-m", "isthmus.runtime.demo.train")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What one run needs.

    Attributes:
        folder: Where metrics and output go; must be empty.
        nodes: Ranks per region, one a node, in region order.
        plan: The plan.yaml to run.
        blocks: Measurement schedule (`ISTHMUS_BLOCKS`).
        command: The training script's argv.
    """

    folder: Path
    nodes: dict[str, int]
    plan: Path
    blocks: str
    command: tuple[str, ...]


@dataclass(slots=True)
class Ranks:
    """The processes of one run."""

    folder: Path
    processes: dict[tuple[str, int], subprocess.Popen[bytes]]
    expected_dead: set[str] = field(default_factory=set[str])

    def steps_seen(self) -> int:
        """Steps that the first rank has recorded so far."""
        first = next(iter(self.processes))
        path = self.folder / "metrics" / f"{first[0]}-{first[1]}.jsonl"
        with suppress(FileNotFoundError):
            return len(_STEP.findall(path.read_bytes()))
        return 0

    def signal_region(self, region: str, number: signal.Signals) -> None:
        """Send a signal to every rank of a region; a rank already gone is left alone."""
        for (name, _), process in self.processes.items():
            if name == region and process.poll() is None:
                process.send_signal(number)
        if number == signal.SIGKILL:
            self.expected_dead.add(region)

    def wait(self, timeout_s: float, tick: Callable[[], None]) -> None:
        """Wait until all ranks end, calling `tick` about five times a second.

        Raises:
            InfeasibleError: A rank failed or the time ran out; the message carries the end of its output.
        """
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self.processes.values()):
            tick()
            if self._failed():
                self._explain_failure()
            if time.monotonic() > deadline:
                slow = [f"{region}-{rank}" for (region, rank), p in self.processes.items() if p.poll() is None]
                self.end()
                raise InfeasibleError(f"the run did not end within {timeout_s:.0f} s (still running: {', '.join(slow)})",
                                      self._tail(next(iter(self.processes))))
            time.sleep(0.2)
        if self._failed():
            self._explain_failure()

    def _failed(self) -> list[tuple[str, int]]:
        return [key for key, process in self.processes.items() if process.poll() not in (None, 0)]

    def _explain_failure(self) -> NoReturn:
        """One rank failed: its peers notice within their time-outs; then report the one that says why."""
        deadline = time.monotonic() + 20
        while any(p.poll() is None for p in self.processes.values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        failed = self._failed()  # before the rest are ended, which is no failure of theirs
        self.end()
        first = next((key for key in failed if key[0] not in self.expected_dead), failed[0])
        code = self.processes[first].returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise InfeasibleError(f"rank {first[1]} of {first[0]} ended with {how}", self._tail(first))

    def _tail(self, key: tuple[str, int]) -> str:
        path = self.folder / f"{key[0]}-{key[1]}.log"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-12:] if path.exists() else []
        return f"the last lines of {path}:\n    " + "\n    ".join(lines or ["(no output)"])

    def end(self) -> None:
        """End every rank still running: politely, then for certain."""
        for number, patience_s in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
            alive = [process for process in self.processes.values() if process.poll() is None]
            for process in alive:
                process.send_signal(signal.SIGCONT)
                process.send_signal(number)
            deadline = time.monotonic() + patience_s
            while alive and time.monotonic() < deadline:
                alive = [process for process in alive if process.poll() is None]
                time.sleep(0.02)


def start_ranks(tunnel: Tunnel, spec: RunSpec) -> Ranks:
    """Start every rank of `spec`; on any failure the ones already started are ended."""
    (spec.folder / "metrics").mkdir(parents=True)
    members = _members(tunnel, spec.nodes)
    (spec.folder / "members.json").write_text(json.dumps(members, indent=1), encoding="utf-8")
    ranks = Ranks(spec.folder, {})
    try:
        for region, count in spec.nodes.items():
            for rank in range(count):
                ranks.processes[region, rank] = _start_rank(tunnel, spec, region, rank)
    except BaseException:
        ranks.end()
        raise
    return ranks


def _members(tunnel: Tunnel, nodes: dict[str, int]) -> dict[str, object]:
    first = next(iter(nodes))
    return {
        "regions": [
            {"name": region, "rails": [f"{tunnel.address(region, rank)}:{RAIL_PORT}" for rank in range(count)]}
            for region, count in nodes.items()
        ],
        "flat_master": f"{tunnel.address(first, 0)}:{FLAT_PORT}",
    }


def _start_rank(tunnel: Tunnel, spec: RunSpec, region: str, rank: int) -> subprocess.Popen[bytes]:
    environment = rank_environment(tunnel, region, rank, spec.nodes[region]) | {
        "ISTHMUS_REGION": region,
        "ISTHMUS_MEMBERS": str(spec.folder / "members.json"),
        "ISTHMUS_INSECURE": "1",  # the emulated WAN never leaves this machine
        "ISTHMUS_PLAN": str(spec.plan),
        "ISTHMUS_METRICS": str(spec.folder / "metrics"),
        "ISTHMUS_BLOCKS": spec.blocks,
    }
    log = spec.folder / f"{region}-{rank}.log"
    with open(log, "wb") as stream:
        return tunnel.start(region, rank, list(spec.command), env=environment, stdout=stream, stderr=subprocess.STDOUT)
