"""A pipeline over two regions of one rank in the wind tunnel: measured throughput against the bubble formula.

    python benchmarks/pipeline.py [--quick] [--json FILE]

Utilisation is the step with the schedule run without the other region (same passes, same ranks, nothing awaited: M t) over the
step across the link, alternating. Formulas, t = a micro-batch forward and backward on one stage, S = stages, V = chunks each:

    1f1b           M / (M + S - 1)                     Narayanan et al., arXiv 2104.04473 section 2.2
    interleaved    M / (M + (S - 1) / V)               the same
    with latency   M t / ((M + S - 1) t + 2 (S - 1) c)      c = one way of one message, latency and wire; ours: it holds where
                   the first stage runs e = ceil(2 (S - 1) c / t) micro-batches further ahead, so from M >= S + e on

`played` is the schedule in force played pass by pass (isthmus.runtime.pipeline.orders) with the measured times of passes: the
prediction where the last formula does not hold (M too small to hide the latency, or interleaved).

Compute is either `real` (matrix products, one core a rank: two that run at once slow each other down on a small machine, which
flatters utilisation), or `slept`: each block waits as long as an accelerator would take, so that what is measured is the
schedule and the transport, with real activations over the real link.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENDS = ("shenzhen", "shanghai")
HIDDEN, FFN, TOKENS, BLOCKS = 128, 512, 256, 8
RATE_BYTES_PER_S = 125e6
SLEPT_S = 0.040  # a third of it forward: all blocks of one micro-batch on one stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One link and what runs on it: (schedule, chunks a region, micro-batches)."""

    name: str
    rtt_s: float
    runs: tuple[tuple[str, int, int], ...]


def cases(quick: bool) -> tuple[Case, ...]:
    """All cases, or a sample of them."""
    straight = tuple(("1f1b", 1, m) for m in ((4, 16) if quick else (2, 4, 8, 16, 32)))
    woven = tuple(("interleaved", 2, m) for m in ((8,) if quick else (4, 8, 16)))
    links = (("fast link", 0.0), ("18 ms", 0.018)) if quick else (("fast link", 0.0), ("18 ms", 0.018), ("60 ms", 0.060))
    return tuple(Case(name=name, rtt_s=rtt_s, runs=straight + woven) for name, rtt_s in links)


def run_case(case: Case, compute: str, repeats: int) -> list[dict[str, Any]]:
    """One row a run."""
    from isthmus.emulate import EmulatedLink, open_tunnel

    link = EmulatedLink(between=ENDS, rate_bytes_per_s=RATE_BYTES_PER_S, rtt_s=case.rtt_s)
    with open_tunnel(dict.fromkeys(ENDS, 1), [link]) as tunnel:
        members = {"regions": [{"name": name, "rails": [f"{tunnel.address(name, 0)}:29600"]} for name in ENDS]}
        path = Path(tunnel.folder) / "members.json"
        path.write_text(json.dumps(members))
        order = json.dumps({"runs": case.runs, "repeats": repeats, "rtt_s": case.rtt_s, "compute": compute})
        environment = {
            "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "ISTHMUS_MEMBERS": str(path),
            "PYTHONPATH": str(Path(__file__).parent.parent / "src"),
        }
        argv = [sys.executable, __file__, "--rank", order]
        ranks = [
            tunnel.start(name, 0, [*argv, "--region", str(number)], env=environment, stdout=subprocess.PIPE)
            for number, name in enumerate(ENDS)
        ]
        found = [json.loads(process.communicate(timeout=240)[0] or "null") for process in ranks]
    if None in found:
        raise SystemExit(f"{case.name}: a rank failed")
    return [{"compute": compute, **merge(case, *both)} for both in zip(*found, strict=True)]


def merge(case: Case, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The figures of one run from those of its two ranks: a step ends when both have."""
    from isthmus.runtime.pipeline.orders import Depth, Pace, Shape, played_s

    seconds = {
        way: [max(both) for both in zip(one[way], other[way], strict=True)] for way in ("on", "off")
    }
    on_s, off_s = (statistics.median(seconds[way]) for way in ("on", "off"))
    shape = Shape(2, one["virtual"], one["micro"])
    wire_s = one["message_bytes"] / (RATE_BYTES_PER_S * 1448 / 1500)
    way_s = case.rtt_s / 2 + wire_s
    pace = Pace(*((one[name], other[name]) for name in ("forward_s", "backward_s")), (way_s,) * 2, (wire_s,) * 2)
    depth = Depth(one["group"], tuple(one["extra"]))
    busy_s, slot_s = off_s, off_s / shape.micro_batches
    bubble = shape.micro_batches / (shape.micro_batches + 1 / shape.virtual)
    latency = busy_s / (busy_s + slot_s / shape.virtual + 2 * way_s)
    return {
        "case": case.name, "schedule": one["schedule"], "virtual": shape.virtual, "micro": shape.micro_batches,
        "slot_s": slot_s, "way_s": way_s, "extra": depth.extra, "group": depth.group, "on_s": on_s, "off_s": off_s,
        "measured": off_s / on_s, "spread": [off_s / s for s in (max(seconds["on"]), min(seconds["on"]))],
        "bubble": bubble, "latency": latency, "played": max(one["busy_s"], other["busy_s"]) / played_s(shape, depth, pace),
        "waited_s": [one["waited_s"], other["waited_s"]],
    }


def run_rank(region: int, order: dict[str, Any]) -> None:
    """One rank: every run in turn, its figures on stdout."""
    import torch

    from isthmus.runtime.environment import read_members
    from isthmus.runtime.wan.rail import Rail

    torch.set_num_threads(1)
    members, rows = read_members(os.environ["ISTHMUS_MEMBERS"]), []
    for run in order["runs"]:
        with Rail.open(members, region, 0, 2, 60.0) as rail:
            rows.append(measure(rail, order, *run))
            agree_on_start(rail, order["rtt_s"], 10_000)  # nobody leaves while the other still needs it
    print(json.dumps(rows))


def measure(rail: Any, order: dict[str, Any], schedule: str, virtual: int, micro: int) -> dict[str, Any]:
    """Steps across the link and without it, alternating, each from a common start."""
    import torch
    from torch import nn

    from isthmus.plan import Strategy
    from isthmus.runtime.pipeline.model import PipelinedModel

    torch.manual_seed(0)
    if order["compute"] == "slept":
        blocks = [slept(2 * SLEPT_S / 3 / BLOCKS) for _ in range(BLOCKS)]
    else:
        blocks = [nn.Sequential(nn.Linear(HIDDEN, FFN), nn.GELU(), nn.Linear(FFN, HIDDEN)) for _ in range(BLOCKS)]
    strategy = Strategy(name="pipeline", kind="pipeline", micro_batches=micro, schedule=schedule, virtual_stages=virtual,
                        wan_rate_bytes_per_s=RATE_BYTES_PER_S)
    model = PipelinedModel(nn.Sequential(*blocks), rail, strategy)
    inputs, targets = torch.randn(micro * TOKENS, HIDDEN), torch.randn(micro * TOKENS, HIDDEN)
    seconds: dict[str, list[float]] = {"on": [], "off": []}
    passes: dict[bool, list[float]] = {False: [], True: []}
    waited = []
    for number in range(3 + 2 * order["repeats"]):
        model.crossing = number < 3 or number % 2 == 0
        begun_s = agree_on_start(rail, order["rtt_s"], number)
        model.step(inputs, targets, nn.functional.mse_loss)
        ended_s = time.monotonic()
        model.zero_grad()
        if number >= 3:
            seconds["on" if model.crossing else "off"].append(ended_s - begun_s)
            if model.crossing:
                waited.append(model.timing.waited_s)
                for backward in passes:
                    passes[backward] += model.timing.seconds(backward=backward)
    medians = {name: statistics.median(passes[backward]) for name, backward in (("forward_s", False), ("backward_s", True))}
    return {
        "schedule": schedule, "virtual": virtual, "micro": micro, **seconds, **medians, "group": model.depth.group,
        "extra": model.depth.extra, "message_bytes": 4 * TOKENS * HIDDEN, "waited_s": statistics.median(waited),
        "busy_s": sum(medians.values()) * micro * virtual,
    }


def slept(forward_s: float) -> Any:
    """A block with one weight that takes `forward_s`, and twice as long backward, without the processor."""
    import torch
    from torch import nn

    class Slept(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, x: Any) -> Any:
            time.sleep(forward_s)
            return x.clone()

        @staticmethod
        def backward(_context: Any, gradient: Any) -> Any:
            time.sleep(2 * forward_s)
            return gradient

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1, HIDDEN))

        def forward(self, x: Any) -> Any:
            return Slept.apply(x * self.scale)

    return Block()


def agree_on_start(rail: Any, rtt_s: float, number: int) -> float:
    """Wait for the other rank, and until an instant that both have ahead of them; one machine, so one clock."""
    import torch

    from isthmus.runtime.collectives.gather import gather
    from isthmus.runtime.wan.frames import message_tag

    now = torch.tensor([time.monotonic()], dtype=torch.float64)
    found = gather(rail, now, message_tag(900_000, number, 0, 0))
    start_s = max(float(value) for value in found) + rtt_s + 0.02
    time.sleep(max(0.0, start_s - time.monotonic()))
    return start_s


def show(row: dict[str, Any]) -> None:
    """One line."""
    low, high = row["spread"]
    print(
        f"{row['compute']:5} {row['case']:9} {row['schedule']:11} V={row['virtual']} M={row['micro']:<3} "
        f"t={row['slot_s'] * 1e3:5.1f} ms "
        f"c={row['way_s'] * 1e3:4.1f} ms e={row['extra'][0]:<2} G={row['group']:<2} step {row['on_s'] * 1e3:7.1f} ms "
        f"utilisation {row['measured']:.3f} ({low:.3f}-{high:.3f})  bubble {row['bubble']:.3f}  "
        f"with latency {row['latency']:.3f}  played {row['played']:.3f}  measured/played {row['measured'] / row['played']:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compute", choices=("real", "slept", "both"), default="both")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--region", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        run_rank(options.region, options.rank)
        return
    rows = []
    for compute in ("slept", "real") if options.compute == "both" else (options.compute,):
        for case in cases(options.quick):
            for row in run_case(case, compute, options.repeats):
                show(row)
                rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
