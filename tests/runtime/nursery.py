"""A process that has torch loaded and forks ranks from itself, so that a test with four ranks costs no four imports.

Reads one JSON object a line: {"scenario", "ranks": [{"environment", "log"}], "options", "timeout_s", "kill": [rank, step]};
answers one: {"codes": [...], "seconds"}. Ranks run one of SCENARIOS. A rank that has stopped itself is waited for no longer than
the others. Not a test itself; conftest.py starts it.
"""

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import relayed
import torch
from collectives import reducing
from every_step import scripted
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

import isthmus.runtime  # noqa: F401 - loaded once, before forking
from isthmus.plan import Strategy, save_plan
from isthmus.runtime.cluster import Cluster, join
from isthmus.runtime.codecs.coding import warm
from isthmus.runtime.loopback import lone_plan


class Crossed(nn.Module):
    """Layers registered in another order than used, so that DDP fills its buckets anew after the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(24, 4)
        self.first = nn.Linear(16, 33)
        self.second = nn.Linear(33, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(240, 16, generator=generator), torch.randn(240, 4, generator=generator))


class Blocks(nn.Module):
    """A list of layers, each of which FSDP2 gathers and reduces by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(16, 40)
        self.blocks = nn.ModuleList(nn.Linear(40, 40) for _ in range(3))
        self.outward = nn.Linear(40, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inward(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.outward(x)


def normalised(way: str) -> nn.Module:
    if way == "layers":
        return nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Dropout(0.0), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))
    layers = {
        "running": lambda: nn.BatchNorm1d(8),
        "own batch": lambda: nn.BatchNorm1d(8, track_running_stats=False),
        "group": lambda: nn.GroupNorm(2, 8),
    }
    model = nn.Sequential(nn.Linear(16, 8), nn.Sequential(layers[way]()), nn.Linear(8, 4))
    model.register_buffer("rotary", torch.linspace(0, 1, 5))
    model.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    return model


def make(options: dict[str, Any], seed: int) -> tuple[nn.Module, Any]:
    """A model and a function that makes its optimizer."""
    torch.manual_seed(seed)
    match options.get("model", "own"):
        case "own":
            model = Crossed()
        case "blocks":
            model = Blocks()
        case way:
            model = normalised(way)
    if options.get("optimizer") == "adamw":
        return model, lambda held: torch.optim.AdamW(held, lr=0.01)
    return model, lambda held: torch.optim.SGD(held, lr=0.05, momentum=0.5)


def flat(model: nn.Module) -> torch.Tensor:
    whole = [held.full_tensor() if isinstance(held, DTensor) else held for held in model.parameters()]
    return torch.cat([parameter.detach().reshape(-1) for parameter in whole])


def train(options: dict[str, Any], out: Path) -> None:
    """Train by the front door. Regions begin with unlike parameters; `parallelize` must make them the first region's."""
    if os.environ["ISTHMUS_REGION"] in options.get("relayed", []):
        relayed.initialise()
    with join(timeout_s=float(os.environ.get("TEST_TIMEOUT_S", "20"))) as cluster:
        if options.get("listeners"):
            print("listens on", listeners())
        given, optimizer_of = make(options, seed=cluster.rank)
        model = cluster.parallelize(given)
        optimizer = optimizer_of(model.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + 0.1 * step))
        micro, bf16 = options.get("micro", 1), bool(options.get("autocast"))
        folder = Path(options["checkpoints"]) if "checkpoints" in options else None
        dealt = {"steps": options["steps"], "seed": 3, "balance_at": options.get("balance_at", ())}
        with cluster.sync(model, optimizer, also=[schedule], checkpoints=folder):
            for number, batch in enumerate(cluster.batches(dataset(), options["batch"], **dealt)):
                disturb(cluster, given, options, number)
                if options.get("own_loop"):
                    own_step(model, optimizer, batch)
                    continue
                last = (number + 1) % micro == 0
                with contextlib.nullcontext() if last else cluster.accumulating(model), torch.autocast("cpu", enabled=bf16):
                    cluster.step(model, batch, dragging(cluster, options))
                if last:
                    if "clip" in options:
                        print("norm", cluster.clip_gradients(model, options["clip"]).hex())
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
                    if cluster.trained_steps == options.get("checkpoint_at"):
                        assert cluster.checkpoint()
        torch.save(flat(model), out)


def dragging(cluster: Cluster, options: dict[str, Any]) -> Any:
    """The loss, on ranks that are said to drag with some time a sample."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        time.sleep(options.get("drag_s", {}).get(f"{cluster.region}-{cluster.environment.rank}", 0.0) * len(targets))
        return nn.functional.mse_loss(outputs, targets)

    return loss


def each_in_turn(options: dict[str, Any], out: Path) -> None:
    """One run after the other by the front door, with the same ranks; their final parameters, by the strategies' names."""
    found = {}
    for given in options["strategies"]:
        plan = out.with_suffix(".yaml")
        save_plan(lone_plan(Strategy(**given)), plan)
        os.environ["ISTHMUS_PLAN"] = str(plan)
        train(options, out)
        found[given["name"]] = torch.load(out, weights_only=True)
    torch.save(found, out)


def listeners() -> list[str]:
    """Addresses that this process listens on, in the kernel's hexadecimal."""
    mine = {os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
    ]
    return sorted({row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine})


def own_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """A step without `cluster.step`; says whether a step that failed has left the parameters alone."""
    before = flat(model)
    nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
    try:
        optimizer.step()
    except BaseException:
        print("parameters as before the failed step:", torch.equal(flat(model), before))
        raise
    optimizer.zero_grad()


def disturb(cluster: Cluster, model: nn.Module, options: dict[str, Any], number: int) -> None:
    """Faults by script: die, or flip one bit of one parameter."""
    if options.get("die") == [cluster.rank, number]:
        os.kill(os.getpid(), signal.SIGKILL)
    if cluster.rank in options.get("flip_ranks", []) and options.get("flip_step") == number:
        with torch.no_grad():
            next(model.parameters()).view(-1).view(torch.int32)[0] ^= 1


SCENARIOS = {
    "train": train,
    "each in turn": each_in_turn,
    "steps": scripted.steps,
    "all_reduce": reducing.all_reduce,
    "again": reducing.again,
    "lose": reducing.lose,
    "hasty": reducing.hasty,
}


def run_rank(order: dict[str, Any], rank: dict[str, Any]) -> int:
    log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(rank["environment"])
    try:
        torch.set_num_threads(1)
        SCENARIOS[order["scenario"]](order["options"], Path(rank["log"]).with_suffix(".pt"))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve(order: dict[str, Any]) -> dict[str, Any]:
    begun, pids, codes = time.monotonic(), [], {}
    for rank in order["ranks"]:
        pid = os.fork()
        if pid == 0:
            code = run_rank(order, rank)
            sys.stderr.flush()
            os._exit(code)
        pids.append(pid)
    stopped: set[int] = set()
    while len(codes) + len(stopped) < len(pids) and time.monotonic() - begun < order["timeout_s"]:
        for pid in [pid for pid in pids if pid not in codes]:
            done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if done and os.WIFSTOPPED(status):
                stopped.add(pid)
            elif done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for pid in [pid for pid in pids if pid not in codes]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        codes[pid] = -signal.SIGSTOP if pid in stopped else 999  # hung
    return {"codes": [codes[pid] for pid in pids], "seconds": time.monotonic() - begun}


def main() -> None:
    # The first optimizer loads torch's compiler, seconds of work that four ranks would each do again.
    torch.optim.AdamW(Crossed().parameters())
    for codec in ("bf16", "int8", "int4"):
        warm(codec)
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)
    os._exit(0)  # taking torch apart costs seconds, and there is nothing left to save


if __name__ == "__main__":
    main()
