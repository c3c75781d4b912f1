"""The processes of one scenario: ranks with a proxy at each door, and the store; started, signalled and counted by pid."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.faults import Scenario
from chaos.nursery import Child, Nursery, Order
from isthmus.emulate import EmulatedLink, Tunnel
from isthmus.plan import Layout, Outer, Plan, Prediction, Strategy, Survival, save_plan

__all__ = [
    "DETECT_S", "STEP_S", "WITNESS", "Fleet", "Setup", "grace_s", "inner_steps", "links_of", "nodes_of",
    "window_steps", "window_tokens",
]  # fmt: skip

WITNESS = "witness"  # a small site of its own for the store
DOOR_PORT, RANK_PORT, STORE_PORT, PEER_PORT = 29600, 39600, 29700, 29800
DETECT_S, GRACE_S = 2.0, 2.0
INNER, FRAGMENTS, DELAY = 4, 2, 2
BATCH, POSITIONS, STEP_S = 4, 64, 0.06
LINK_BYTES_PER_S, RTT_S = 2.5e6, 0.010
OUTER = Outer(lr=1.0, momentum=0.7, nesterov=True)  # 0.7, 0.9, for long windows, scatters final losses by 1.2%, not 0.4%
CHECKPOINT_BYTES, CHECKPOINT_STEPS = 48 << 20, 20  # room for all of a run's checkpoints, and to be filled in no time


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a fleet is started with: where its files go, and, where nothing is to be done to it, its last step.

    Without faults it goes as fast as it can, over better links and without proxies; with a grace, at the pace of the others and
    over links like theirs.
    """

    folder: Path
    calm_steps: int | None = None


def nodes_of(scenario: Scenario) -> dict[str, int]:
    """Nodes of the tunnel: one a rank, and the store's."""
    return scenario.regions | {WITNESS: 3 if scenario.store == "etcd" else 1}


def links_of(scenario: Scenario, *, calm: bool = False) -> list[EmulatedLink]:
    """Every pair of regions has a thin link, and each region a wide one to the store."""
    names = list(scenario.regions)
    pairs = [(a, b) for number, a in enumerate(names) for b in names[number + 1 :]]
    rate, rtt_s = (50 * LINK_BYTES_PER_S, RTT_S / 10) if calm else (LINK_BYTES_PER_S, RTT_S)
    thin = [EmulatedLink(between=pair, rate_bytes_per_s=rate, rtt_s=rtt_s) for pair in pairs]
    return thin + [EmulatedLink(between=(name, WITNESS), rate_bytes_per_s=12.5e6, rtt_s=rtt_s) for name in names]


def grace_s(scenario: Scenario) -> float | None:
    """How long a late region is waited for."""
    return GRACE_S if scenario.mode == "grace" else None


def inner_steps(scenario: Scenario) -> int:
    """Steps from one round to the next, of whatever fragment."""
    return {"lockstep": INNER, "grace": INNER, "delayed": INNER // FRAGMENTS, "every-step": 1}[scenario.mode]


def window_steps(scenario: Scenario) -> int:
    """The most steps a region has trained since it last brought something to a committed round.

    With a grace it may be late for one; in the background it trains on while a round is under way.
    """
    own = inner_steps(scenario)
    return {"lockstep": own, "grace": 2 * own, "delayed": own + DELAY, "every-step": 1}[scenario.mode]


def window_tokens(scenario: Scenario) -> dict[str, int]:
    """`window_steps` in tokens of each region."""
    return {name: window_steps(scenario) * BATCH * POSITIONS * ranks for name, ranks in scenario.regions.items()}


@dataclass(slots=True)
class Fleet:
    """Everything that runs. `ranks` and `proxies` by (region, rank); `servers` are the store's."""

    tunnel: Tunnel
    nursery: Nursery
    scenario: Scenario
    setup: Setup
    ranks: dict[tuple[str, int], Child] = field(default_factory=dict)
    proxies: dict[tuple[str, int], Child] = field(default_factory=dict)
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
        folder, calm = self.setup.folder, self.setup.calm_steps is not None
        self.metrics.mkdir(parents=True)
        save_plan(_plan(self.scenario), folder / "plan.yaml")
        regions = [
            {"name": name, "rails": [f"{self.tunnel.address(name, rank)}:{DOOR_PORT}" for rank in range(ranks)]}
            for name, ranks in self.scenario.regions.items()
        ]
        (folder / "members.json").write_text(json.dumps({"regions": regions}), encoding="utf-8")
        self.checkpoints.mkdir()
        if self.setup.calm_steps is not None:
            self.end_at(self.setup.calm_steps)
        elif os.geteuid() == 0:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={CHECKPOINT_BYTES}", "isthmus-chaos", str(self.checkpoints)]
            subprocess.run(mount, check=True)
            self.mounted = True
        if self.scenario.tls:
            command = [sys.executable, "-m", "isthmus", "keys", *self.scenario.regions, "-o", str(folder / "keys")]
            subprocess.run(command, check=True, capture_output=True)
        for number in range(3 if self.scenario.store == "etcd" else 1):
            self.servers.append(self.start_server(number))
        for region in self.scenario.regions:
            self.start_region(region, proxied=not calm)

    def end_at(self, step: int) -> None:
        """Have all ranks end after that step, which none of them may be near to."""
        part = self.setup.folder / "end.part"
        part.write_text(str(step), encoding="utf-8")
        part.rename(self.setup.folder / "end")

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
            scheme, guard = ("https", _etcd_keys(folder / "keys")) if self.scenario.tls else ("http", [])
            client, peer = f"{scheme}://{hosts[number]}:{STORE_PORT}", f"http://{hosts[number]}:{PEER_PORT}"
            argv = [
                "etcd", "--name", f"m{number}", "--data-dir", str(folder / f"etcd-{number}"), "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", cluster, "--initial-cluster-token", "chaos", "--log-level", "error",
                "--heartbeat-interval", "50", "--election-timeout", "500", *guard,
            ]  # fmt: skip
        with open(folder / f"store-{number}.log", "ab") as stream:
            return self.tunnel.start(WITNESS, number, argv, stdout=stream, stderr=subprocess.STDOUT)

    def start_region(self, region: str, *, proxied: bool = True) -> None:
        """Start all ranks of a region, with their proxies."""
        calm = self.setup.calm_steps is not None
        options = {
            "batch": BATCH, "step_s": 0.0 if calm and self.scenario.mode != "grace" else STEP_S, "seed": self.scenario.seed,
            "end": str(self.setup.folder / "end"), "checkpoint_steps": 0 if calm else CHECKPOINT_STEPS,
        }  # fmt: skip
        for rank in range(self.scenario.regions[region]):
            host, key, name = self.tunnel.address(region, rank), (region, rank), f"{region}-{rank}"
            environment = self._environment(region, rank)
            if proxied:
                environment["CHAOS_LISTEN"] = f"{host}:{RANK_PORT}"
                ends = f"{host}:{DOOR_PORT}", f"{host}:{RANK_PORT}"
                order = Order(call="chaos.proxy:main", arguments=ends, environment=environment, log=self._log(f"proxy-{name}"))
                self.proxies[key] = self.nursery.start(order, self.tunnel, key)
            order = Order(call="chaos.rank:main", arguments=(options,), environment=environment, log=self._log(name))
            self.ranks[key] = self.nursery.start(order, self.tunnel, key)

    def signal(self, region: str, number: signal.Signals, rank: int | None = None) -> None:
        """Send a signal to a region's ranks, or to one; SIGKILL, SIGSTOP and SIGCONT go to their proxies too."""
        for key, process in self.ranks.items():
            if key[0] == region and rank in (None, key[1]):
                process.send_signal(number)
                if number != signal.SIGUSR1 and key in self.proxies:
                    self.proxies[key].send_signal(number)

    def alive(self, region: str) -> list[int]:
        """Ranks of a region that still run."""
        return [rank for (name, rank), process in self.ranks.items() if name == region and process.poll() is None]

    def gone(self, region: str) -> list[int]:
        """Ranks of a region that have ended."""
        return sorted(set(range(self.scenario.regions[region])) - set(self.alive(region)))

    def end_proxies(self, region: str) -> None:
        """End the proxies of a region whose ranks are gone."""
        for (name, _), process in self.proxies.items():
            if name == region:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def show_stacks(self) -> None:
        """Have all ranks write into their logs where they are."""
        for process in self.ranks.values():
            process.send_signal(signal.SIGUSR2)
        time.sleep(0.5)

    def end(self) -> None:
        """End everything that still runs."""
        for process in [*self.ranks.values(), *self.proxies.values(), *self.servers]:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.checkpoints)], check=True)
            self.mounted = False

    def _environment(self, region: str, rank: int) -> dict[str, str]:
        folder, hosts = self.setup.folder, [self.tunnel.address(WITNESS, number) for number in range(len(self.servers))]
        servers = ",".join(f"{each}:{STORE_PORT}" for each in hosts)
        scheme = "tcp" if self.scenario.store == "coordinator" else f"etcd+http{'s' if self.scenario.tls else ''}"
        guard = {"ISTHMUS_KEYS": str(folder / "keys")} if self.scenario.tls else {"ISTHMUS_INSECURE": "1"}
        return {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")} | guard | {
            "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "eth0", "RANK": str(rank), "LOCAL_RANK": "0",
            "WORLD_SIZE": str(self.scenario.regions[region]), "MASTER_ADDR": self.tunnel.address(region, 0),
            "MASTER_PORT": "29500", "ISTHMUS_REGION": region, "ISTHMUS_MEMBERS": str(folder / "members.json"),
            "ISTHMUS_PLAN": str(folder / "plan.yaml"), "ISTHMUS_METRICS": str(self.metrics),
            "ISTHMUS_COORDINATOR": f"{scheme}://{servers}", "CHAOS_CHECKPOINTS": str(self.checkpoints),
        }  # fmt: skip

    def _log(self, name: str) -> str:
        return str(self.setup.folder / f"{name}.log")


def _etcd_keys(folder: Path) -> list[str]:
    """Members of etcd show the coordinator's certificate, and ask for the callers'."""
    files = {"--cert-file": "coordinator.pem", "--key-file": "coordinator.key", "--trusted-ca-file": "ca.pem"}
    return [*(word for flag, name in files.items() for word in (flag, str(folder / name))), "--client-cert-auth"]


def _plan(scenario: Scenario) -> Plan:
    strategy = Strategy(name="chaos", kind="hierarchical", codec=scenario.codec, streams=2)
    if scenario.mode != "every-step":
        delayed = scenario.mode == "delayed"
        strategy = Strategy(
            name="chaos", kind="local-steps", codec=scenario.codec, inner_steps=INNER,
            fragments=FRAGMENTS if delayed else 1, delay_steps=DELAY if delayed else 0,
            outer=OUTER, streams=2, weight="tokens",
        )  # fmt: skip
    nothing = Prediction(
        step_s=0.0, compute_s=0.0, exposed_s=0.0, utilisation=0.0, tokens_per_s=0.0, wan_bytes_per_step=0.0,
        memory_bytes_per_gpu=0.0, formula="none: this plan is for scripted faults",
    )  # fmt: skip
    ranks = sum(scenario.regions.values())
    survival = Survival(detect_s=DETECT_S, grace_s=grace_s(scenario), on_partition=scenario.partition, start_s=60.0)
    return Plan(
        fabric="wind tunnel", workload="byte-level demo", tokens_per_step=BATCH * POSITIONS * ranks, strategy=strategy,
        layout=Layout(dp=ranks), survival=survival, prediction=nothing, why="chaos", rule_of_thumb="none",
    )  # fmt: skip
