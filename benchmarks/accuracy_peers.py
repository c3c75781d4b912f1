"""What stands beside isthmus's collective model in `accuracy.py`: plain alpha-beta, and the formula of NCCL's own tuner.

Both are written here from published constants and fitted to nothing. `nccl` names NVIDIA/nccl 2.30 src/graph/tuning.cc and
topo.h; latencies are in the catalogue (`isthmus catalog nccl`).
"""

from math import log2, prod

from isthmus.cost.collectives_group import Group, GroupLevel
from isthmus.fabric import number
from isthmus.formats.collective_runs import Run, bus_factor

LINK_SHARE = {
    "nvlink2": 20 / 25, "nvlink3": 20 / 25, "nvlink4": 20.6 / 25, "nvlink5": 40.1 / 50,
    "pcie": 12 / 15.75, "host": 12 / 15.75, "infinity-fabric": 0.8,
}  # fmt: skip
"""Share of the line rate that nccl's link table counts; Infinity Fabric, which it does not list, as NVLink."""
NET_SHARE = 0.96
LL_MAX = {
    "nvlink2": (39e9, 39e9, 20.4e9), "nvlink3": (87.7e9, 22.5e9, 19e9),
    "nvlink4": (141e9, 45e9, 35e9), "nvlink5": (282e9, 90e9, 70e9),
}  # fmt: skip
NVLS_SHARE = {"nvlink4": 0.85, "nvlink5": 0.74}
TREE_CORRECTION, LL_SHARE, LL128_SHARE, TREE_LL = 0.92, 0.5, 0.92, 1 / 3.8
PLATEAU = {"nvlink2": 1.9}
PLATEAU_DEFAULT = 1.4


def rate(level: GroupLevel) -> float:
    return level.rate_bytes_per_s * LINK_SHARE.get(level.carrier, NET_SHARE)


def hop(level: GroupLevel, kind: str) -> float:
    family = "hop-net" if not level.in_node else "hop-pci" if level.carrier in ("pcie", "host") else "hop-nvlink"
    return number("nccl", family, kind)


def alpha_beta_s(run: Run, group: Group, size_bytes: float) -> float:
    """Ring: steps x alpha + wire bytes / slowest rate, with alpha the hop of NCCL's Simple protocol."""
    assert run.collective is not None
    ranks = prod(level.members for level in group)
    steps = 2 * (ranks - 1) if run.collective == "all-reduce" else ranks - 1
    alpha = max(hop(level, "ring_simple") for level in group)
    return steps * alpha + bus_factor(run.collective, ranks) * size_bytes / min(map(rate, group))


def nccl_s(run: Run, group: Group, size_bytes: float) -> float:
    """The least time that NCCL's tuner gives an algorithm and protocol it may take."""
    assert run.collective is not None
    inside = group[0] if group[0].in_node else None
    above = group[1:] if inside else group
    gpus, nodes = (inside.members if inside else 1), prod(level.members for level in above)
    slowest = min(map(rate, group))
    arch = inside.carrier if inside else "nvlink3"
    found: list[float] = []
    laps = 2 if run.collective == "all-reduce" else 1
    wire = bus_factor(run.collective, gpus * nodes) * size_bytes
    ll_most = LL_MAX.get(arch, LL_MAX["nvlink3"])[min(nodes, 3) - 1]
    for protocol in ("ll", "ll128", "simple"):
        between = laps * (nodes - 1)
        within = laps * (gpus * nodes - 1) - between
        latency = number("nccl", "base", f"ring_{protocol}")
        latency += between * hop(above[0], f"ring_{protocol}") if above else 0.0
        latency += within * hop(inside, f"ring_{protocol}") if inside else 0.0
        if protocol == "simple" and nodes > 1 and laps == 2:
            latency *= PLATEAU.get(arch, PLATEAU_DEFAULT)
        share = {"ll": LL_SHARE, "ll128": LL128_SHARE, "simple": 1.0}[protocol]
        bandwidth = min(slowest * share, ll_most) if protocol == "ll" else slowest * share
        found.append(latency + wire / bandwidth)
        if laps == 2 and nodes > 1 and run.algorithm != "ring":
            climb = (gpus - 1) * hop(inside, f"tree_{protocol}") if inside else 0.0
            latency = number("nccl", "base", f"tree_{protocol}") + 2 * (climb + log2(nodes) * hop(above[0], f"tree_{protocol}"))
            tree = {"ll": min(slowest * TREE_LL, ll_most), "ll128": slowest * LL128_SHARE, "simple": slowest}[protocol]
            found.append(latency + wire / (tree * TREE_CORRECTION))
    if laps == 2 and inside and inside.adds and gpus > 2 and run.algorithm != "ring":
        switch = rate(inside) * NVLS_SHARE.get(arch, 0.85)
        latency = number("nccl", "hop-nvlink", "nvls_simple")
        if nodes == 1:
            found.append(latency + (gpus + 1) / gpus * size_bytes / switch)
        else:
            across = min(map(rate, above)) * (1.0 if nodes == 2 else 0.5)
            latency += 2 * log2(nodes) * number("nccl", "hop-net", "nvlstree")
            found.append(latency + size_bytes / min(switch * gpus / (gpus + 1), across))
    return min(found)
