"""The ways NCCL can do a collective on a group, each boiled down to one curve over the size of the buffer.

    t(S) = L + F sqrt(y / (1 + y)) + S s,   y = S / S_f

L is the sum of hops in the longest chain (`latency_s`), F what filling and draining the pipeline of chunks costs once
chunks have their full size (they grow with the buffer until S_f, hence the root), s the seconds a byte takes on the
resource that is busiest (`bind`).
"""

from functools import lru_cache
from math import log2, prod, sqrt

from isthmus.cost.collectives_case import Case, Curve, case_of, nccl_s
from isthmus.cost.collectives_constants import Constants
from isthmus.cost.collectives_group import Group, GroupLevel
from isthmus.fabric.carriers import Carrier
from isthmus.formats.collective_runs import Algorithm, Collective, Protocol

__all__ = ["Curve", "curves", "hop_seconds", "start_s"]

NVLS_RANKS_MIN = 5
"""GPUs of one node from which NCCL lets the switch add: 5 on H200, 6 on B200 (stas00/ml-engineering, network/README.md)."""

NVLS_TREE_GPUS_MIN = 3
"""GPUs a node from which NCCL sets NVLS up at all (src/transport/nvls.cc returns at two)."""

NVLS_TREE_MANY = 45.5 / 57.7
"""What of a channel is left with more than two nodes: perChMaxNVLSTreeBws of Hopper, NCCL 2.30, src/graph/tuning.cc."""

BOARD_GPUS_MAX = 16
"""GPUs whose NVSwitches stand on one baseboard (DGX-2); more are joined by a rack's switch trays and cables."""

_SIMPLE_ONLY: frozenset[Carrier] = frozenset({"tcpx", "tcpxo"})
"""Networks whose vendor's settings fix NCCL_PROTO=Simple (Google Cloud, GPUDirect-TCPX guide)."""

_NO_LL128: frozenset[Carrier] = frozenset({"pcie", "host", "efa", "ethernet", "slingshot", "wan-tcp"})
"""Where NCCL does not take LL128: it needs NVLink in the node and stores of 128 bytes that stay whole on the way."""


@lru_cache(maxsize=65536)
def curves(
    collective: Collective, group: Group, algorithm: Algorithm, protocol: Protocol, constants: Constants
) -> tuple[Curve, ...]:
    """The ways to do `collective` on `group`; only `algorithm` and `protocol` where they are not `auto`.

    Empty where the group cannot do it that way.
    """
    if prod(level.members for level in group) <= 1:
        return (Curve("ring", "simple", 0.0, 0.0, "nothing to send", 0.0, 1.0),)
    case = case_of(collective, group, constants)
    ways = {
        "ring": _ring,
        "tree": _tree,
        "nvls": _nvls,
        "nvls-tree": _nvls_tree,
        "collnet": _collnet,
        "pat": _pat,
        "pairwise": _pairwise,
    }
    found = [curve for name, way in ways.items() if algorithm in ("auto", name) for curve in way(case)]
    return tuple(curve for curve in found if protocol in ("auto", curve.protocol))


def hop_seconds(level: GroupLevel, constants: Constants) -> float:
    """One message over `level` beside its bytes, in a ring with protocol Simple."""
    return constants.latency_simple * case_of("all-reduce", (level,), constants).hop_s(level, "ring_simple")


def start_s(collective: Collective, size_bytes: float, group: Group, algorithm: Algorithm, constants: Constants) -> float:
    """What `curves` adds to hops and bytes with protocol Simple: the call's own latency, and filling the pipeline of chunks."""
    case = case_of(collective, group, constants)
    base = "tree" if algorithm == "tree" else "ring"
    pairs = (case.ranks - 2) * PAIR_S if collective == "all-to-all" else 0.0
    share = size_bytes / constants.fill_bytes
    return case.latency_s("simple", base, pairs) + case.fill_s(algorithm, "simple") * sqrt(share / (1 + share))


def _protocols(case: Case) -> list[Protocol]:
    carriers = {level.carrier for level in case.group}
    if carriers & _SIMPLE_ONLY:
        return ["simple"]
    whole = not carriers & _NO_LL128 and case.inside is not None
    return ["ll", "ll128", "simple"] if whole else ["ll", "simple"]


def _ring_bytes_per_s(case: Case) -> tuple[float, str]:
    """Bus bandwidth of rings through every rank: each level's member is entered and left once by every ring."""
    slowest = min(case.group, key=case.sustained)
    return case.sustained(slowest), slowest.carrier


def _protocol_rate(case: Case, protocol: Protocol, rate: tuple[float, str]) -> tuple[float, str]:
    match protocol:
        case "ll":
            halved, most = rate[0] * case.constants.share_ll, case.constants.ll_bytes_per_s
            return (halved, rate[1]) if halved <= most else (most, "LL protocol")
        case "ll128":
            return rate[0] * case.constants.share_ll128, rate[1]
        case _:
            return rate


def _ring(case: Case) -> list[Curve]:
    """2 (n-1) steps for an all-reduce, n-1 for what goes round once; a chain for broadcast and reduce."""
    if case.collective in ("all-to-all", "send-recv"):
        return []
    laps, ranks, nodes = (2 if case.twice else 1), case.ranks, case.nodes
    wire = 1.0 if case.collective in ("broadcast", "reduce") else laps * (ranks - 1) / ranks
    found: list[Curve] = []
    for protocol in _protocols(case):
        rate, bind = _protocol_rate(case, protocol, _ring_bytes_per_s(case))
        between = laps * (nodes - 1)
        hops = between * case.hop_s(case.above[0], f"ring_{protocol}") if case.above else 0.0
        if case.inside:
            hops += (laps * (ranks - 1) - between) * case.hop_s(case.inside, f"ring_{protocol}")
        latency_s = case.latency_s(protocol, "ring", hops) + case.extra_s(case.laid_out)
        found.append(case.curve(("ring", protocol), latency_s, (wire / rate, bind)))
    return found


def _tree(case: Case) -> list[Curve]:
    """Double binary trees between nodes, chains inside; all-reduce only."""
    if not case.twice or case.nodes < 2:
        return []
    found: list[Curve] = []
    raw, bind = _tree_bytes_per_s(case)
    for protocol in _protocols(case):
        rate, name = _protocol_rate(case, protocol, (raw * case.constants.share_tree, bind))
        hops = log2(case.nodes) * case.hop_s(case.above[0], f"tree_{protocol}")
        if case.inside:
            hops += (case.gpus - 1) * case.hop_s(case.inside, f"tree_{protocol}")
        latency_s = case.latency_s(protocol, "tree", 2 * hops) + case.extra_s(lambda members, _: 2 * log2(members))
        wire = 2 * (case.ranks - 1) / case.ranks
        found.append(case.curve(("tree", protocol), latency_s, (wire / rate, name)))
    return found


def _tree_bytes_per_s(case: Case) -> tuple[float, str]:
    """Bus bandwidth of double trees without their share: a ring's, but of two nodes S crosses, not a ring's 2 S (n-1)/n.

    Each of two nodes is the other's leaf in one tree, for half of the buffer: S/2 goes up in one and S/2 down in the other. The
    chain inside carries S up and S down past every GPU but its ends. So few adapters show bus bandwidths above their line rate
    (145 GB/s over two of 50 on H100, 54 over four of 12.5 on V100: measured/collectives.yaml).
    """
    if case.nodes > 2:
        return _ring_bytes_per_s(case)
    slowest = min(case.above, key=case.sustained)
    pace = (1.0 / case.sustained(slowest), slowest.carrier)
    if case.inside:
        pace = max(pace, (min(2, case.gpus - 1) / case.sustained(case.inside), case.inside.carrier))
    return 2 * (case.ranks - 1) / case.ranks / pace[0], pace[1]


def _nvls(case: Case) -> list[Curve]:
    """The NVSwitch adds and multicasts.

    Each rank reads its reduced n-th from the switch (S/n in, S out) and multicasts it (S/n out, S in): S (1 + 1/n) per
    direction in place of the ring's 2 S (n-1)/n; hence bus bandwidths above the wire (480 of 450 GB/s on H100).
    """
    inside = case.inside
    if not case.twice or case.above or inside is None or not inside.adds or case.gpus < NVLS_RANKS_MIN:
        return []
    own = case.constants.carriers[inside.carrier]
    pace = (case.gpus + 1) / case.gpus / (inside.rate_bytes_per_s * own.switch_sustained * _rack_share(case))
    return [case.curve(("nvls", "simple"), own.switch_latency_s, (pace, f"{inside.carrier} switch"))]


def _nvls_tree(case: Case) -> list[Curve]:
    """The switch in every node, a tree between them: S across for two nodes, twice that for more."""
    inside = case.inside
    if not case.twice or not case.above or inside is None or not inside.adds or case.gpus < NVLS_TREE_GPUS_MIN:
        return []
    own = case.constants.carriers[inside.carrier]
    two = case.nodes == 2
    share = case.constants.share_nvls_tree * _rack_share(case) * (1.0 if two else NVLS_TREE_MANY)
    switch = (case.gpus + 1) / case.gpus / (inside.rate_bytes_per_s * own.switch_sustained * share)
    slowest = min(case.above, key=case.sustained)
    wire = (1.0 if two else 2.0 / case.constants.share_tree) / case.sustained(slowest)
    pace = (switch, f"{inside.carrier} switch") if switch >= wire else (wire, slowest.carrier)
    hop_s = nccl_s("hop-net", "nvlstree") * case.constants.carriers[case.above[0].carrier].hop
    latency_s = own.switch_latency_s + 2 * log2(case.nodes) * hop_s + case.extra_s(lambda members, _: 2 * log2(members))
    return [case.curve(("nvls-tree", "simple"), latency_s, pace)]


def _rack_share(case: Case) -> float:
    return case.constants.share_rack if case.gpus > BOARD_GPUS_MAX else 1.0


def _collnet(case: Case) -> list[Curve]:
    """The network's switches add (SHARP): S up and S down once, in place of a ring's 2 (n-1)/n."""
    if not case.twice or not case.above or not all(level.adds for level in case.above):
        return []
    slowest = min(case.above, key=case.sustained)
    wire = 1.0 / case.sustained(slowest)
    inside = case.inside
    rate = case.sustained(inside) if inside else float("inf")
    within = 2 * (case.gpus - 1) / case.gpus / rate
    pace = (within, inside.carrier) if inside and within > wire else (wire, slowest.carrier)
    hop_s = nccl_s("hop-net", "collnet_direct") * case.constants.carriers[case.above[0].carrier].hop
    hops = 2 * (case.gpus - 1) * case.hop_s(inside, "ring_simple") if inside else 0.0
    return [case.curve(("collnet", "simple"), case.latency_s("simple", "tree", hops + hop_s), pace)]


def _pat(case: Case) -> list[Curve]:
    """Parallel aggregated trees: all-gather and reduce-scatter in log2 n steps, one GPU a node (NCCL 2.23)."""
    if case.collective not in ("all-gather", "reduce-scatter") or case.inside is not None:
        return []
    rate, bind = _ring_bytes_per_s(case)
    hop_s = case.hop_s(case.above[0], "ring_simple")
    latency_s = case.latency_s("simple", "ring", log2(case.ranks) * hop_s) + case.extra_s(lambda members, _: log2(members))
    share = 0.75  # patCorrection-like factor of NCCL's tuner for PAT
    return [case.curve(("pat", "simple"), latency_s, ((case.ranks - 1) / case.ranks / (rate * share), bind))]


def _pairwise(case: Case) -> list[Curve]:
    """Sends between pairs at once: all-to-all, and one send each way."""
    if case.collective not in ("all-to-all", "send-recv"):
        return []
    ranks, paces, below = case.ranks, [(0.0, "")], 1
    for level in case.group:
        rate = case.sustained(level) * case.constants.share_pairwise
        # What one member of the level sends out of itself: its ranks' buffers, less what stays within.
        own = 1.0 if case.collective == "send-recv" else below * (ranks - below) / ranks
        if case.collective == "all-to-all" and level.in_node and level is case.group[0]:
            own = (level.members - 1) / ranks
        paces.append((own / rate, level.carrier))
        below *= level.members
    pace = max(paces)
    farthest = case.group[-1]
    hops = case.hop_s(farthest, "ring_simple") + (ranks - 2) * PAIR_S * (case.collective == "all-to-all")
    latency_s = case.latency_s("simple", "ring", hops) + case.extra_s(lambda _members, _inside: 1.0)
    return [case.curve(("pairwise", "simple"), latency_s, pace)]


PAIR_S = 0.5e-6
"""Each further peer of an all-to-all: a guess; sends to many peers share channels and start together."""
