"""Who is compared, and how each is started in the tunnel."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from venvs import python_of

from isthmus.emulate import Tunnel

__all__ = ["AWAY", "CONTENDERS", "DETECT_S", "HOME", "Contender", "Started", "start"]

HOME, AWAY = "home", "away"  # the region that survives and the one that is killed
DETECT_S = 5.0  # our Survival.detect_s, its default
HERE = Path(__file__).resolve().parent
END_S = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One system with one setting.

    Attributes:
        name: As the table shows it.
        system: torchft, hivemind or isthmus.
        equal: All time-outs are DETECT_S; else the system's defaults.
        codec: Of the deltas (isthmus only).
    """

    name: str
    system: str
    equal: bool = False
    codec: str = "none"


CONTENDERS = (
    Contender(name="isthmus fp32", system="isthmus", equal=True),
    Contender(name="torchft, defaults", system="torchft"),
    Contender(name="torchft, equal", system="torchft", equal=True),
    Contender(name="isthmus int4", system="isthmus", equal=True, codec="int4"),
    Contender(name="hivemind, equal", system="hivemind", equal=True),
    Contender(name="hivemind, defaults", system="hivemind"),
)


@dataclass(slots=True)
class Started:
    """Processes of one run: the ranks by region, and what serves them."""

    ranks: dict[str, subprocess.Popen[Any]]
    servers: list[subprocess.Popen[Any]]
    events: dict[str, Path]
    logs: dict[str, Path]


def start(tunnel: Tunnel, contender: Contender, folder: Path, steps: int, step_s: float) -> Started:
    """Start both regions of `contender`, and its server in the surviving region."""
    started = Started({}, [], {}, {})
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(HERE),
    }
    python, script, meeting = Path(sys.executable), HERE / "ours_rank.py", ""
    extra: dict[str, dict[str, str]] = {HOME: {}, AWAY: {}}
    if contender.system == "torchft":
        python, script = python_of("torchft"), HERE / "torchft_rank.py"
        meeting = f"http://{tunnel.address(HOME, 0)}:29510"
        lighthouse = [
            str(python.with_name("torchft_lighthouse")), "--bind", "0.0.0.0:29510", "--min_replicas", "1",
            *(["--heartbeat_timeout_ms", f"{DETECT_S * 1000:.0f}"] if contender.equal else []),
            # README's value; it bounds the first meeting only, as both regions are killed or alive.
            "--join_timeout_ms", "10000",
        ]
        started.servers.append(_launch(tunnel, HOME, lighthouse, environment, folder / "lighthouse.log"))
    elif contender.system == "hivemind":
        python, script = python_of("hivemind"), HERE / "hivemind_rank.py"
    else:
        extra = _ours(tunnel, contender, folder, environment, started)
    for number, region in enumerate((HOME, AWAY)):
        events, log = folder / f"{region}.events", folder / f"{region}.log"
        settings = {
            "events": str(events), "region": number, "address": tunnel.address(region, 0), "meeting": meeting,
            "folder": str(folder), "steps": steps, "step_s": step_s, "end_s": END_S,
            "equal_timeouts_s": DETECT_S if contender.equal else None,
        }
        argv = [str(python), str(script), json.dumps(settings)]
        started.events[region], started.logs[region] = events, log
        started.ranks[region] = _launch(tunnel, region, argv, environment | extra[region], log)
    return started


def _launch(tunnel: Tunnel, region: str, argv: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[Any]:
    with open(log, "wb") as stream:
        return tunnel.start(region, 0, argv, env=environment, stdout=stream, stderr=subprocess.STDOUT)


def _ours(
    tunnel: Tunnel, contender: Contender, folder: Path, environment: dict[str, str], started: Started
) -> dict[str, dict[str, str]]:
    """The rank environments of both regions."""
    from isthmus.plan import Layout, Outer, Plan, Prediction, Strategy, Survival, save_plan

    strategy = Strategy(
        name="peers", kind="local-steps", codec=contender.codec, inner_steps=1,
        outer=Outer(lr=0.7, momentum=0.9, nesterov=True),
    )
    nothing = Prediction(
        step_s=0.0, compute_s=0.0, exposed_s=0.0, utilisation=0.0, tokens_per_s=0.0, wan_bytes_per_step=0.0,
        memory_bytes_per_gpu=0.0, formula="none: this plan is for a comparison",
    )
    plan = Plan(
        fabric="two regions of one node", workload="100 MB of float32", tokens_per_step=1, strategy=strategy,
        layout=Layout(dp=2), survival=Survival(detect_s=DETECT_S), prediction=nothing, why="comparison", rule_of_thumb="none",
    )
    save_plan(plan, folder / "plan.yaml")
    members = {
        "regions": [{"name": region, "rails": [f"{tunnel.address(region, 0)}:29600"]} for region in (HOME, AWAY)],
        "flat_master": f"{tunnel.address(HOME, 0)}:29400",
    }
    (folder / "members.json").write_text(json.dumps(members), encoding="utf-8")
    keys = [sys.executable, "-m", "isthmus", "keys", HOME, AWAY, "-o", str(folder / "keys")]
    subprocess.run(keys, check=True, capture_output=True)
    listen = f"{tunnel.address(HOME, 0)}:29700"
    coordinator = [sys.executable, "-m", "isthmus", "coordinator", "--listen", listen, "--keys", str(folder / "keys")]
    started.servers.append(_launch(tunnel, HOME, coordinator, environment, folder / "coordinator.log"))
    return {
        region: {
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": tunnel.address(region, 0), "MASTER_PORT": "29500",
            "ISTHMUS_REGION": region, "ISTHMUS_MEMBERS": str(folder / "members.json"), "ISTHMUS_PLAN": str(folder / "plan.yaml"),
            "ISTHMUS_COORDINATOR": f"tcp://{listen}", "ISTHMUS_KEYS": str(folder / "keys"),
        }
        for region in (HOME, AWAY)
    }
