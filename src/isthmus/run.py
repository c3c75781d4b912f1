"""Start a plan's ranks: one region of a real cluster under torchrun, or all regions side by side on this machine.

Either way a region is the unit that fails and comes back: when one of its ranks dies, the others are ended and the region
starts again, and with a coordinator it finds its way back into the run.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.errors import InputError, nearest
from isthmus.plan import load_plan
from isthmus.runtime.environment import read_members, split_address
from isthmus.runtime.loopback import RankKey, free_ports, prepare

__all__ = ["HereRequest", "RegionRequest", "RegionState", "parse_regions", "region_command", "run_here"]

_POLL_S = 0.1
_END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRequest:
    """One region of a real cluster, as this node of it sees it.

    Attributes:
        plan, members: Files, the same on all nodes of all regions.
        region: Name of this region in members.json.
        nodes: Nodes of the region.
        ranks_per_node: Ranks this node starts.
        rendezvous: host:port where the region's nodes meet; node 0 serves it.
        node_rank: This node's number in members.json.
        restarts: How often torchrun starts the region's ranks again after a failure.
        coordinator, keys, metrics: See `runtime.environment.RankEnvironment`; None leaves the variable as it is.
        script: The training script and its arguments.
    """

    plan: Path
    members: Path
    region: str
    nodes: int
    ranks_per_node: int
    rendezvous: str
    node_rank: int
    restarts: int
    coordinator: str | None
    keys: Path | None
    metrics: Path | None
    script: tuple[str, ...]
    trace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HereRequest:
    """All regions on this machine over loopback.

    Attributes:
        plan: File.
        regions: Ranks of each region.
        folder: For logs, metrics and the coordinator's journal.
        restarts: How often a region that failed starts again. Not 0: a coordinator runs too, through which the others go on
            without it and take it back.
        script: The training script and its arguments.
        trace: Spans are recorded.
    """

    plan: Path
    regions: dict[str, int]
    folder: Path
    restarts: int
    script: tuple[str, ...]
    trace: bool = False


@dataclass(slots=True)
class RegionState:
    """One region of a run on this machine.

    Attributes:
        processes: Its ranks, by number.
        restarts: How often it was started again.
        codes: Exit codes once it ended for good.
    """

    name: str
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict[int, subprocess.Popen[bytes]])
    restarts: int = 0
    codes: dict[int, int] | None = None


def parse_regions(text: str) -> dict[str, int]:
    """`shenzhen=2,shanghai=2` as ranks by region.

    Raises:
        InputError: It is written otherwise, names a region twice, or gives one no rank.
    """
    regions: dict[str, int] = {}
    for part in text.split(","):
        name, equals, count = part.strip().partition("=")
        if not equals or not name or not count.isascii() or not count.isdecimal() or not 1 <= int(count) <= 64:
            hint = "e.g. --here shenzhen=2,shanghai=2"
            raise InputError("--here", f"{part.strip()!r} is not REGION=RANKS with 1-64 ranks", hint)
        if name in regions:
            raise InputError("--here", f"names the region {name!r} twice")
        regions[name] = int(count)
    return regions


def region_command(request: RegionRequest) -> tuple[list[str], dict[str, str]]:
    """The torchrun command of one node of a region, and the variables it needs on top of the environment.

    Raises:
        InputError: The plan or the members are wrong, the region is unknown, or its ranks do not add up.
    """
    load_plan(request.plan)
    members = read_members(request.members)
    number = members.index(request.region)
    if number < 0:
        names = [region.name for region in members.regions]
        raise InputError("--region", f"{request.region!r} is not a region of {request.members}", nearest(request.region, names))
    ranks, stated = request.nodes * request.ranks_per_node, members.regions[number].ranks
    if ranks != stated:
        raise InputError(
            "--nodes",
            f"{request.nodes} nodes of {request.ranks_per_node} ranks are {ranks}, not the {stated} of {request.region!r}",
            f"{request.members} gives one rail address a rank",
        )
    try:
        split_address(request.rendezvous)
    except ValueError as error:
        raise InputError("--rendezvous", str(error)) from None
    _check_script(request.script)
    hosts = _node_hosts(request, [split_address(rail)[0] for rail in members.regions[number].rails])
    command = [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", str(request.nodes),
        "--local-addr", hosts[request.node_rank],
        "--nproc-per-node", str(request.ranks_per_node),
        "--rdzv-backend", "c10d",
        "--rdzv-endpoint", request.rendezvous,
        # torchrun would guess who serves it from what the node's own name resolves to, which is often 127.0.1.1.
        "--rdzv-conf", f"is_host={int(request.node_rank == 0)}",
        "--rdzv-id", f"isthmus-{request.region}",
        "--max-restarts", str(request.restarts),
        *request.script,
    ]  # fmt: skip
    variables = {
        "ISTHMUS_PLAN": str(request.plan.resolve()),
        "ISTHMUS_MEMBERS": str(request.members.resolve()),
        "ISTHMUS_REGION": request.region,
    }
    for name, value in (
        ("ISTHMUS_COORDINATOR", request.coordinator),
        ("ISTHMUS_KEYS", request.keys and str(request.keys.resolve())),
        ("ISTHMUS_METRICS", request.metrics and str(request.metrics.resolve())),
        ("ISTHMUS_TRACE", "1" if request.trace else ""),
    ):
        if value:
            variables[name] = value
    return command, variables


def _node_hosts(request: RegionRequest, hosts: list[str]) -> list[str]:
    """Where each node of the region is reached, in the order in which torchrun numbers them.

    Its c10d rendezvous knows no given numbers: it sorts nodes by address, as text (torch's dynamic_rendezvous.py), and a rank
    must get the number at which members.json names its own address.
    """
    if request.node_rank >= request.nodes:
        raise InputError("--node-rank", f"is {request.node_rank}, but the region has {request.nodes} nodes", "they count from 0")
    nodes = hosts[:: request.ranks_per_node]
    if nodes != sorted(nodes):
        raise InputError(
            str(request.members),
            f"region {request.region!r} lists its nodes as {', '.join(nodes)}; torchrun numbers them by address, as text",
            f"list the rails of {', '.join(sorted(nodes))} in that order",
        )
    return nodes


def run_here(request: HereRequest, watch: Callable[[Sequence[RegionState]], None] | None = None) -> dict[str, dict[int, int]]:
    """Run all regions on this machine until every one has ended; exit codes by region and rank.

    A region of which a rank fails is ended and started again, up to `restarts` times. A region that fails for good does not
    end the others. Logs and metrics stand in the folder.

    Raises:
        InputError: The plan is wrong, or the script does not exist.
    """
    plan = load_plan(request.plan)
    _check_script(request.script)
    environments = prepare(request.regions, plan, request.folder)
    survives = bool(request.restarts) and len(request.regions) > 1
    for name, rank in environments:  # what an earlier run left would be read as this one's
        (request.folder / f"{name}-{rank}.log").unlink(missing_ok=True)
        (request.folder / "metrics" / f"{name}-{rank}.jsonl").unlink(missing_ok=True)
    regions = [RegionState(name) for name in request.regions]
    coordinator = None
    try:
        if survives:
            coordinator = _start_coordinator(request.folder, environments)
        for region in regions:
            _start(region, environments, request)
        while any(region.codes is None for region in regions):
            for region in regions:
                _tend(region, environments, request)
            if watch is not None:
                watch(regions)
            time.sleep(_POLL_S)
    finally:
        for region in regions:
            _end(region)
        if coordinator is not None:
            coordinator.terminate()
            coordinator.wait()
    return {region.name: region.codes or {} for region in regions}


def _check_script(script: tuple[str, ...]) -> None:
    if not script:
        raise InputError("isthmus run", "no training script given", "isthmus run plan.yaml ... -- train.py --steps 100")
    if script[0] not in ("-m", "--module") and not Path(script[0]).is_file():
        raise InputError("isthmus run", f"there is no script {script[0]!r}", "give its path after --")


def _start(region: RegionState, environments: dict[RankKey, dict[str, str]], request: HereRequest) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
    for (name, rank), environment in environments.items():
        if name != region.name:
            continue
        with open(request.folder / f"{name}-{rank}.log", "ab") as log:
            region.processes[rank] = subprocess.Popen(
                [sys.executable, *request.script],
                env={**inherited, **environment, "ISTHMUS_TRACE": str(int(request.trace))},
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def _start_coordinator(folder: Path, environments: dict[RankKey, dict[str, str]]) -> "subprocess.Popen[bytes]":
    """The store of this run, on loopback; every rank is told its address."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    journal = folder / "coordinator.journal"
    journal.unlink(missing_ok=True)
    for environment in environments.values():
        environment["ISTHMUS_COORDINATOR"] = f"tcp://{address}"
    command = [sys.executable, "-m", "isthmus", "coordinator", "--listen", address, "--journal", str(journal)]
    with open(folder / "coordinator.log", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _tend(region: RegionState, environments: dict[RankKey, dict[str, str]], request: HereRequest) -> None:
    """Look after one region: note its end, or start it again after a failure."""
    if region.codes is not None:
        return
    codes = {rank: process.poll() for rank, process in region.processes.items()}
    ended = {rank: code for rank, code in codes.items() if code is not None}
    failed = any(code != 0 for code in ended.values())
    if not failed and len(ended) < len(codes):
        return
    if failed and region.restarts < request.restarts:
        _end(region)
        region.restarts += 1
        _start(region, environments, request)
        return
    _end(region)
    region.codes = {rank: process.returncode for rank, process in region.processes.items()}


def _end(region: RegionState) -> None:
    """End what still runs: politely first, since a rank says goodbye to the others on its way out."""
    alive = [process for process in region.processes.values() if process.poll() is None]
    for process in alive:
        process.send_signal(signal.SIGTERM)
    deadline_s = time.monotonic() + _END_S
    for process in alive:
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

