"""Real Slurm clusters in the wind tunnel's namespaces: one a region, a slurmctld on its first node and a slurmd on every one."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from isthmus.emulate.processes import living_in
from isthmus.emulate.tunnel import Tunnel

__all__ = ["Cluster", "wait_for"]

_PORT = 16817
HELD_S = 3.0


def wait_for(what: str, done: Callable[[], Any], seconds: float, explain: Callable[[], str] = lambda: "") -> Any:
    """The first true answer of `done`; AssertionError with `explain()` where none comes."""
    deadline = time.monotonic() + seconds
    while not (answer := done()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s\n{explain()}"
        time.sleep(0.2)
    return answer


class Cluster:
    """One region's Slurm.

    Attributes:
        folder: Its configuration, state and logs.
    """

    def __init__(self, tunnel: Tunnel, region: str, nodes: Iterable[str], folder: Path, topology: str) -> None:
        self._tunnel, self.region, self.nodes, self.folder = tunnel, region, list(nodes), folder
        self._daemons: dict[str, subprocess.Popen[Any]] = {}
        self._pending_s: dict[str, float] = {}
        host = socket.gethostname().split(".")[0]
        for name in ("ctld", *(f"spool-{node}" for node in self.nodes)):
            (folder / name).mkdir(parents=True)
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr={tunnel.address(region, number)} Port={17001 + number} CPUs=2"
            " RealMemory=1000 State=UNKNOWN"
            for number, node in enumerate(self.nodes)
        ]
        (folder / "topology.conf").write_text(topology)
        (folder / "slurm.conf").write_text(f"""ClusterName={region}
SlurmctldHost={host}({tunnel.address(region, 0)})
SlurmctldPort={_PORT}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
TopologyPlugin=topology/tree
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SlurmdTimeout=6
SlurmdDebug=debug2
KillWait=2
PartitionName=gpu Nodes=ALL Default=YES MaxTime=60 State=UP
""" + "\n".join(lines) + "\n")  # fmt: skip

    def start(self) -> None:
        """Start all daemons and wait until every node is idle."""
        self._daemon("slurmctld", 0, ["slurmctld", "-D", "-c"])
        for node in self.nodes:
            self.start_node(node)
        wait_for(f"{self.region}'s nodes idle", lambda: self.idle() == len(self.nodes), 30, self.logs)

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        self._daemon(node, self.nodes.index(node), ["slurmd", "-D", "-N", node])

    def idle(self) -> int:
        """Nodes that stand ready."""
        return len(set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()))

    def kill_node(self, node: str) -> int:
        """End everything on a node at once, as a loss of power does; how many processes that were."""
        _, network, _ = self._tunnel.entry(self.region, self.nodes.index(node))
        ended = 0
        while found := living_in([network]):
            for pid, _ in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                    ended += 1
                except ProcessLookupError:
                    continue
            time.sleep(0.05)
        self._daemons.pop(node).wait()
        return ended

    def run(self, *command: str, check: bool = True) -> str:
        """Stdout of a command on the first node; AssertionError where it fails, unless not `check`."""
        process = self._tunnel.start(
            self.region, 0, command, env=self._environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, measuring=True
        )
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 or not check, f"{command}: {err.decode()}\n{self.logs()}"
        return out.decode()

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says of a job."""
        words = self.run("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def told_to_end(self, node: str) -> bool:
        """Whether a node that came back has heard that the job's earlier life is over.

        slurmctld repeats that until the node answers, and does not tell it from the job's next life (22.05): a job that is
        released before that waits for its first step for ever. The two minutes for which Slurm holds it are for this.
        """
        log = (self.folder / f"slurmd-{node}.log").read_text(errors="replace")
        return "Finish processing RPC: REQUEST_TERMINATE_JOB" in log.rpartition(" started\n")[2]

    def released(self, number: str) -> bool:
        """Whether a requeued job runs again; Slurm holds it for two minutes, which this ends.

        Not at once: slurmd takes a job that starts within the second in which its earlier life was ended for that one ("Job
        credential revoked"), since it compares whole seconds.
        """
        state = self.job(number)["JobState"]
        if state != "PENDING":
            self._pending_s.pop(number, None)
        elif time.monotonic() - self._pending_s.setdefault(number, time.monotonic()) > HELD_S:
            self.run("scontrol", "update", f"JobId={number}", "StartTime=now", check=False)  # it may just have started
        return state == "RUNNING"

    def logs(self) -> str:
        """The last lines of every log, for messages."""
        found = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:]) for path in found)

    def _daemon(self, name: str, node: int, command: list[str]) -> None:
        with open(self.folder / f"{name}.err", "ab") as errors:
            self._daemons[name] = self._tunnel.start(
                self.region, node, command, env=self._environment(), stdout=errors, stderr=errors, measuring=True
            )

    def _environment(self) -> dict[str, str]:
        return dict(os.environ) | {"SLURM_CONF": str(self.folder / "slurm.conf")}


def metrics_lines(folder: Path, region: str, rank: int) -> list[dict[str, Any]]:
    """A rank's metrics so far; none where it has not begun to write."""
    path = folder / f"{region}-{rank}.jsonl"
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    for text in path.read_text().splitlines():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found
