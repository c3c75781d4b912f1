"""The processes of one scenario: ranks with a proxy at each door, and the store; started, signalled and counted by pid."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.faults import Scenario
from isthmus.emulate import EmulatedLink, Tunnel
from isthmus.plan import Layout, Outer, Plan, Prediction, Strategy, Survival, save_plan

__all__ = ["DETECT_S", "INNER", "STEP_S", "WITNESS", "Fleet", "Setup", "grace_s", "links_of", "nodes_of", "window_tokens"]

HERE = Path(__file__).resolve().parent
WITNESS = "witness"  # a small site of its own for the store
DOOR_PORT, RANK_PORT, STORE_PORT, PEER_PORT = 29600, 39600, 29700, 29800
DETECT_S, GRACE_S = 2.0, 2.0
INNER, BATCH, POSITIONS, STEP_S = 5, 4, 64, 0.04
LINK_BYTES_PER_S, RTT_S = 2.5e6, 0.010
CHECKPOINT_BYTES = 16 << 20  # room for all of a run's checkpoints, and to be filled in no time


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a fleet is started with: where its files go, and how many rounds it trains."""

    folder: Path
    rounds: int


def nodes_of(scenario: Scenario) -> dict[str, int]:
    """Nodes of the tunnel: one a rank, and the store's."""
    return scenario.regions | {WITNESS: 3 if scenario.store == "etcd" else 1}


def links_of(scenario: Scenario) -> list[EmulatedLink]:
    """Every pair of regions has a thin link, and each region a wide one to the store."""
    names = list(scenario.regions)
    pairs = [(a, b) for number, a in enumerate(names) for b in names[number + 1 :]]
    thin = [EmulatedLink(between=pair, rate_bytes_per_s=LINK_BYTES_PER_S, rtt_s=RTT_S) for pair in pairs]
    return thin + [EmulatedLink(between=(name, WITNESS), rate_bytes_per_s=12.5e6, rtt_s=RTT_S) for name in names]


def grace_s(scenario: Scenario) -> float | None:
    """Every other three runs do not wait for late regions."""
    return GRACE_S if scenario.number // 3 % 2 else None


def window_tokens(scenario: Scenario) -> dict[str, int]:
    """The most tokens a region has trained since a committed round; two windows where it may be late for one."""
    windows = 1 if grace_s(scenario) is None else 2
    return {name: windows * INNER * BATCH * POSITIONS * ranks for name, ranks in scenario.regions.items()}


@dataclass(slots=True)
class Fleet:
    """Everything that runs. `ranks` and `proxies` by (region, rank); `servers` are the store's."""

    tunnel: Tunnel
    scenario: Scenario
    setup: Setup
    ranks: dict[tuple[str, int], subprocess.Popen[Any]] = field(default_factory=dict)
    proxies: dict[tuple[str, int], subprocess.Popen[Any]] = field(default_factory=dict)
    servers: list[subprocess.Popen[Any]] = field(default_factory=list)
    mounted: bool = False

    @property
    def metrics(self) -> Path:
        """Where the ranks write."""
        return self.setup.folder / "metrics"

    @property
    def checkpoints(self) -> Path:
        """Where they go: a small file system of its own."""
        return self.setup.folder / "checkpoints"

    def start(self) -> None:
        """Write the documents, start the store, then all regions."""
        folder = self.setup.folder
        self.metrics.mkdir(parents=True)
        save_plan(_plan(self.scenario), folder / "plan.yaml")
        regions = [
            {"name": name, "rails": [f"{self.tunnel.address(name, rank)}:{DOOR_PORT}" for rank in range(ranks)]}
            for name, ranks in self.scenario.regions.items()
        ]
        (folder / "members.json").write_text(json.dumps({"regions": regions}), encoding="utf-8")
        self.checkpoints.mkdir()
        if os.geteuid() == 0:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={CHECKPOINT_BYTES}", "isthmus-chaos", str(self.checkpoints)]
            subprocess.run(mount, check=True)
            self.mounted = True
        if self.scenario.tls:
            command = [sys.executable, "-m", "isthmus", "keys", *self.scenario.regions, "-o", str(folder / "keys")]
            subprocess.run(command, check=True, capture_output=True)
        for number in range(3 if self.scenario.store == "etcd" else 1):
            self.servers.append(self.start_server(number))
        for region in self.scenario.regions:
            self.start_region(region)

    def start_server(self, number: int) -> subprocess.Popen[Any]:
        """Start the coordinator, or member `number` of etcd; its files stay over a restart."""
        folder = self.setup.folder
        if self.scenario.store == "coordinator":
            listen = f"{self.tunnel.address(WITNESS, 0)}:{STORE_PORT}"
            guard = ["--keys", str(folder / "keys")] if self.scenario.tls else ["--insecure"]
            journal = ["--journal", str(folder / "journal")]
            argv = [sys.executable, "-m", "isthmus", "coordinator", "--listen", listen, *journal, *guard]
        else:
            hosts = [self.tunnel.address(WITNESS, each) for each in range(3)]
            cluster = ",".join(f"m{each}=http://{host}:{PEER_PORT}" for each, host in enumerate(hosts))
            client, peer = f"http://{hosts[number]}:{STORE_PORT}", f"http://{hosts[number]}:{PEER_PORT}"
            argv = [
                "etcd", "--name", f"m{number}", "--data-dir", str(folder / f"etcd-{number}"), "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", cluster, "--initial-cluster-token", "chaos", "--log-level", "error",
                "--heartbeat-interval", "50", "--election-timeout", "500",
            ]  # fmt: skip
        return self._launch(WITNESS, number, argv, f"store-{number}", dict(os.environ))

    def start_region(self, region: str) -> None:
        """Start all ranks of a region, with their proxies."""
        for rank in range(self.scenario.regions[region]):
            host = self.tunnel.address(region, rank)
            proxy = [sys.executable, str(HERE / "proxy.py"), f"{host}:{DOOR_PORT}", f"{host}:{RANK_PORT}"]
            self.proxies[region, rank] = self._launch(region, rank, proxy, f"proxy-{region}-{rank}", dict(os.environ))
            options = {"preset": "micro", "rounds": self.setup.rounds, "batch": BATCH, "step_s": STEP_S}
            argv = [sys.executable, str(HERE / "rank.py"), json.dumps(options)]
            environment = self._environment(region, rank, host)
            self.ranks[region, rank] = self._launch(region, rank, argv, f"{region}-{rank}", environment)

    def signal(self, region: str, number: signal.Signals, rank: int | None = None) -> None:
        """Send a signal to a region's ranks, or to one; SIGKILL, SIGSTOP and SIGCONT go to their proxies too."""
        for key, process in self.ranks.items():
            if key[0] == region and rank in (None, key[1]):
                _send(process, number)
                if number != signal.SIGUSR1:
                    _send(self.proxies[key], number)

    def alive(self, region: str) -> list[int]:
        """Ranks of a region that still run."""
        return [rank for (name, rank), process in self.ranks.items() if name == region and process.poll() is None]

    def end_proxies(self, region: str) -> None:
        """End the proxies of a region whose ranks are gone."""
        for (name, _), process in self.proxies.items():
            if name == region:
                _send(process, signal.SIGKILL)
                process.wait()

    def end(self) -> None:
        """End everything that still runs."""
        for process in [*self.ranks.values(), *self.proxies.values(), *self.servers]:
            _send(process, signal.SIGKILL)
            process.wait()
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.checkpoints)], check=True)
            self.mounted = False

    def _environment(self, region: str, rank: int, host: str) -> dict[str, str]:
        folder, hosts = self.setup.folder, [self.tunnel.address(WITNESS, number) for number in range(len(self.servers))]
        servers = ",".join(f"{each}:{STORE_PORT}" for each in hosts)
        scheme = "tcp" if self.scenario.store == "coordinator" else "etcd+http"
        guard = {"ISTHMUS_KEYS": str(folder / "keys")} if self.scenario.tls else {"ISTHMUS_INSECURE": "1"}
        return {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")} | guard | {
            "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "eth0", "RANK": str(rank), "LOCAL_RANK": "0",
            "WORLD_SIZE": str(self.scenario.regions[region]), "MASTER_ADDR": self.tunnel.address(region, 0),
            "MASTER_PORT": "29500", "ISTHMUS_REGION": region, "ISTHMUS_MEMBERS": str(folder / "members.json"),
            "ISTHMUS_PLAN": str(folder / "plan.yaml"), "ISTHMUS_METRICS": str(self.metrics),
            "ISTHMUS_COORDINATOR": f"{scheme}://{servers}", "CHAOS_LISTEN": f"{host}:{RANK_PORT}",
            "CHAOS_CHECKPOINTS": str(self.checkpoints), "PYTHONPATH": str(HERE.parent),
        }  # fmt: skip

    def _launch(self, region: str, node: int, argv: list[str], log: str, environment: dict[str, str]) -> subprocess.Popen[Any]:
        with open(self.setup.folder / f"{log}.log", "ab") as stream:
            return self.tunnel.start(region, node, argv, env=environment, stdout=stream, stderr=subprocess.STDOUT)


def _send(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _plan(scenario: Scenario) -> Plan:
    strategy = Strategy(
        name="chaos", kind="local-steps", codec=("none", "int8", "int4")[scenario.number % 3], inner_steps=INNER,
        outer=Outer(lr=0.7, momentum=0.9, nesterov=True), streams=2, weight="tokens",
    )  # fmt: skip
    nothing = Prediction(
        step_s=0.0, compute_s=0.0, exposed_s=0.0, utilisation=0.0, tokens_per_s=0.0, wan_bytes_per_step=0.0,
        memory_bytes_per_gpu=0.0, formula="none: this plan is for scripted faults",
    )  # fmt: skip
    ranks = sum(scenario.regions.values())
    return Plan(
        fabric="wind tunnel", workload="byte-level demo", tokens_per_step=BATCH * POSITIONS * ranks, strategy=strategy,
        layout=Layout(dp=ranks), survival=Survival(detect_s=DETECT_S, grace_s=grace_s(scenario)), prediction=nothing, why="chaos",
        rule_of_thumb="none",
    )  # fmt: skip
