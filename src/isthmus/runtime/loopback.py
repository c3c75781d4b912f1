"""Regions on one machine over the loopback interface: for tests, and for measurements that need no slow link.

Nothing limits the traffic here; `isthmus try` is the one with a WAN.
"""

import fcntl
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.plan import Layout, Plan, Prediction, Strategy, save_plan

__all__ = ["LoopbackRun", "RankKey", "free_ports", "lone_plan", "prepare", "start"]

_PORTS = range(10_000, 28_000)
RankKey = tuple[str, int]
"""Region and rank in it."""


@dataclass(slots=True)
class LoopbackRun:
    """Running ranks, by region and rank; their metrics and output stand in `folder`."""

    folder: Path
    processes: dict[tuple[str, int], subprocess.Popen[bytes]]

    def wait(self, timeout_s: float) -> dict[tuple[str, int], int]:
        """Exit codes of all ranks; those still running after `timeout_s` are killed and raise `TimeoutError`."""
        deadline_s = time.monotonic() + timeout_s
        try:
            return {key: process.wait(max(0.01, deadline_s - time.monotonic())) for key, process in self.processes.items()}
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"ranks in {self.folder} did not end within {timeout_s:g} s\n{self.output()}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End whatever still runs."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def output(self) -> str:
        """The last lines of every rank's output, for messages."""
        tails = [
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-25:])
            for path in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join(tails)

    def lines(self, region: str, rank: int, kind: str) -> list[dict[str, Any]]:
        """Metrics lines of one rank and kind."""
        path = self.folder / "metrics" / f"{region}-{rank}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [row for row in rows if row["kind"] == kind]


def lone_plan(strategy: Strategy) -> Plan:
    """A plan that says how to run and predicts nothing."""
    nothing = Prediction(
        step_s=0,
        compute_s=0,
        exposed_s=0,
        utilisation=0,
        tokens_per_s=0,
        wan_bytes_per_step=0,
        memory_bytes_per_gpu=0,
        formula="none: nothing was predicted",
    )
    return Plan(
        fabric="loopback",
        workload="given by the script",
        tokens_per_step=1,
        strategy=strategy,
        layout=Layout(),
        prediction=nothing,
        why="asked for",
        rule_of_thumb="none",
    )


def prepare(regions: dict[str, int], plan: Plan | Strategy, folder: Path) -> dict[RankKey, dict[str, str]]:
    """Write members.json and plan.yaml into `folder`; the environment of each rank, by region and rank.

    Ports are chosen free (`free_ports`); should another program take one before its rank does, the rank fails and says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ranks = [(region, rank) for region, count in regions.items() for rank in range(count)]
    ports = free_ports(len(ranks) + len(regions) + 1)
    rails = {key: f"127.0.0.1:{ports.pop()}" for key in ranks}
    masters = {region: ports.pop() for region in regions}
    members = {
        "regions": [{"name": name, "rails": [rails[name, rank] for rank in range(count)]} for name, count in regions.items()],
        "flat_master": f"127.0.0.1:{ports.pop()}",
    }
    (folder / "members.json").write_text(json.dumps(members))
    save_plan(plan if isinstance(plan, Plan) else lone_plan(plan), folder / "plan.yaml")
    return {
        (region, rank): {
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(regions[region]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(masters[region]),
            "GLOO_SOCKET_IFNAME": "lo",
            "ISTHMUS_REGION": region,
            "ISTHMUS_MEMBERS": str(folder / "members.json"),
            "ISTHMUS_PLAN": str(folder / "plan.yaml"),
            "ISTHMUS_METRICS": str(folder / "metrics"),
        }
        for region, rank in ranks
    }


def start(
    command: Sequence[str],
    regions: dict[str, int],
    strategy: Strategy,
    folder: Path,
    extra: dict[str, str] | None = None,
) -> LoopbackRun:
    """Start `command` once a rank of every region, with `extra` in the environment; see `prepare`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
    run = LoopbackRun(folder, {})
    try:
        for (region, rank), environment in prepare(regions, strategy, folder).items():
            with open(folder / f"{region}-{rank}.log", "wb") as log:
                run.processes[region, rank] = subprocess.Popen(
                    list(command),
                    env={**inherited, **environment, **(extra or {})},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
    except BaseException:
        run.kill()
        raise
    return run


def free_ports(count: int) -> list[int]:
    """`count` TCP ports of this machine that nothing listens on, to be named now and bound later.

    They lie below those that the kernel gives to outgoing connections (32,768 and up on Linux), and every caller on this
    machine takes the next ones of one sequence, so that nobody else is given one in the meantime.

    Raises:
        OSError: There are not so many.
    """
    found: list[int] = []
    with open(Path(tempfile.gettempdir()) / f"isthmus-ports-{os.getuid()}", "a+") as cursor:
        fcntl.flock(cursor, fcntl.LOCK_EX)
        cursor.seek(0)
        said = cursor.read()
        begin, looked = int(said) if said.isdecimal() else 0, 0
        while len(found) < count:
            if looked == len(_PORTS):
                raise OSError(f"found {len(found)} of {count} free ports between {_PORTS.start} and {_PORTS.stop - 1}")
            port = _PORTS[(begin + looked) % len(_PORTS)]
            looked += 1
            if _is_free(port):
                found.append(port)
        cursor.truncate(0)
        cursor.write(str((begin + looked) % len(_PORTS)))
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
