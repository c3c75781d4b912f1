"""How long the simulator takes: collectives on 1,024 to 16,384 GPUs, folded and unfolded, beside ASTRA-sim's rates.

    python benchmarks/simulate.py            # all; about a minute
    python benchmarks/simulate.py --json

ASTRA-sim's figures were measured once, on an earlier machine of two cores, with its analytical backend (astra-sim 518bd51,
congestion-unaware) for one 1 GB all-reduce: 256 GPUs 0.30 s, 1,024 in 12.1 s, 4,096 in 179 s. They are not measured again here.
"""

import json
import sys
from dataclasses import asdict, dataclass
from time import perf_counter

import numpy as np

from isthmus.fabric import parse_fabric
from isthmus.sim import Carriage, Collective, Shares, map_fabric, phases_of, play_phase

ASTRA_SIM_S = {256: 0.30, 1024: 12.1, 4096: 179.0}
BATCH = 1e-3
FABRIC = """
name: {gpus} GPUs
regions:
  one:
    nodes: [{{count: {nodes}, kind: hgx-h100}}]
    network: {{kind: {kind}, rate: 400 Gb/s, switch: qm9700, rail_optimised: {rails}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run. `conserved` and `within` are what the run itself shows of bytes and capacities."""

    what: str
    gpus: int
    streams: int
    classes: int
    fillings: int
    wall_s: float
    simulated_s: float
    conserved: bool
    within: bool


def run(what: str, gpus: int, asked: tuple[str, str, float], fold: bool = True) -> Row:
    """Everything from the fabric's text to the answer, kernels already compiled.

    Folded: InfiniBand on rails. Unfolded: RoCE with all adapters of a node on one leaf, so that 97 % of what an all-to-all
    sends goes over spines and ECMP's collisions bind.
    """
    began = perf_counter()
    kind, rails, batch = ("infiniband", "true", 0.0) if fold else ("roce", "false", BATCH)
    text = FABRIC.format(gpus=gpus, nodes=gpus // 8, kind=kind, rails=rails)
    chart = map_fabric(parse_fabric(text, "benchmark"), Carriage(regions={"one": Shares(network=0.92, nvlink=0.81)}))
    what_, algorithm, size = asked
    phases = phases_of(chart, Collective(kind=what_, size_bytes=size, ranks=np.arange(gpus), algorithm=algorithm, seed=1))
    played = [play_phase(phase, chart.capacity, fold, batch) for phase in phases]
    wall = perf_counter() - began
    sent = [(float(each.sent_bytes.sum()), float((each.phase.size_bytes * each.phase.rounds).sum())) for each in played]
    return Row(
        what=what,
        gpus=gpus,
        streams=sum(phase.streams for phase in phases),
        classes=sum(each.classes for each in played),
        fillings=sum(each.fillings for each in played),
        wall_s=wall,
        simulated_s=sum(each.seconds for each in played),
        conserved=all(abs(a - b) <= 1e-9 * b for a, b in sent),
        within=all(each.peak_load <= 1 + 1e-9 for each in played),
    )


def main() -> None:
    """Print the table."""
    run("warm-up", 256, ("all-to-all", "burst", 1e9), fold=False)
    sizes = (256, 1024, 4096, 16384)
    rows = [run("hierarchical all-reduce, 1 GB", gpus, ("all-reduce", "hierarchical", 1e9)) for gpus in sizes]
    rows.append(run("all-to-all, 1 GB a GPU, unfolded, ECMP", 1024, ("all-to-all", "burst", 1e9), fold=False))
    if "--json" in sys.argv:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    heads = f"{'':42}{'GPUs':>7}{'streams':>12}{'classes':>10}{'fillings':>9}{'wall':>9}{'simulated':>12}"
    print(f"{heads}  bytes  links  ASTRA-sim / ours")
    for row in rows:
        peer = ASTRA_SIM_S.get(row.gpus) if "all-reduce" in row.what else None
        ratio = f"{peer:.4g} s then / {peer / row.wall_s:,.0f} x" if peer else ""
        checks = f"{'kept' if row.conserved else 'LOST':>5}  {'<= 1' if row.within else '> 1':>5}"
        print(
            f"{row.what:42}{row.gpus:>7,}{row.streams:>12,}{row.classes:>10,}{row.fillings:>9,}{row.wall_s:>8.2f}s"
            f"{row.simulated_s * 1e3:>10.2f}ms  {checks}  {ratio}"
        )


if __name__ == "__main__":
    main()
