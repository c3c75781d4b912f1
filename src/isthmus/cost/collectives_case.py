"""A collective on a group of GPUs, and what every one of NCCL's ways to do it asks of that: rates, hops, fill.

`collectives_curves` makes a `Curve` of each way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import hypot, log2, prod

from isthmus.cost.collectives_constants import Constants
from isthmus.cost.collectives_group import Group, GroupLevel
from isthmus.fabric import number
from isthmus.formats.collective_runs import Algorithm, Collective, Protocol

__all__ = ["Case", "Curve", "case_of", "nccl_s"]

BOARD_GPUS = 8
"""GPUs of the boards that the switch's fill is stated for."""

HOST_BYTES_PER_S = 15.75e9
"""PCIe 3.0 x16, at most what goes through host memory per direction."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One way to do a collective on a group."""

    algorithm: Algorithm
    protocol: Protocol
    latency_s: float
    seconds_per_byte: float
    bind: str
    fill_s: float
    fill_bytes: float


@dataclass(frozen=True, slots=True)
class Case:
    """A collective on a group. `gpus` of one node, `nodes`, `ranks` of all; `twice`: data goes round twice (all-reduce)."""

    collective: Collective
    group: Group
    constants: Constants
    inside: GroupLevel | None
    above: Group
    gpus: int
    nodes: int
    ranks: int
    twice: bool

    def sustained(self, level: GroupLevel) -> float:
        """Bytes/s of a long transfer.

        GPUs read host memory no faster over a newer slot: their reads in flight bind. Of two GPUs one only writes and the other
        only reads in a broadcast or reduce, so that nothing but the slot binds; in all else each does both at once.
        """
        carriers = self.constants.carriers
        if level.carrier != "host":
            return level.rate_bytes_per_s * carriers[level.carrier].sustained
        one_way = self.ranks == 2 and self.collective in ("broadcast", "reduce")
        return min(level.rate_bytes_per_s, HOST_BYTES_PER_S) * carriers["pcie" if one_way else "host"].sustained

    def fill_s(self, algorithm: Algorithm, protocol: Protocol) -> float:
        """F: what the links of the node and those above cost together; small protocols send small chunks.

        Where the switch adds, one step moves a chunk of every GPU's part at once, so it takes as much longer as there are more.
        """
        constants = self.constants
        heads = self.heads(algorithm)
        within = [constants.carriers[self.inside.carrier].fill_s * heads] if self.inside else []
        total = hypot(*within, *(constants.carriers[level.carrier].fill_s for level in self.above[:1]))  # they overlap in part
        depth = max(0.25, 1 + constants.fill_doubling * (log2(self.ranks / heads) - 3))
        share = {"ll": constants.fill_ll, "ll128": constants.fill_ll128}.get(protocol, 1.0)
        if algorithm in ("nvls", "nvls-tree"):
            share *= constants.fill_switch
        return total * depth * share * (1.0 if self.twice else constants.fill_one_way)

    def heads(self, algorithm: Algorithm) -> float:
        """Parts that the switch adds at once over a board's 8: a step moves, and a full one asks for, so much more."""
        return self.gpus / BOARD_GPUS if algorithm in ("nvls", "nvls-tree") else 1.0

    def latency_s(self, protocol: Protocol, base: str, hops: float) -> float:
        """NCCL's base latency and the hops' own, both times what this protocol really takes."""
        constants = self.constants
        scale = {"ll": constants.latency_ll, "ll128": constants.latency_ll128}.get(protocol, constants.latency_simple)
        return scale * (nccl_s("base", f"{base}_{protocol}") + hops)

    def hop_s(self, level: GroupLevel, kind: str) -> float:
        """One hop of `level`; `kind` is such as `ring_ll`."""
        family = "hop-net" if not level.in_node else "hop-pci" if level.carrier in ("pcie", "host") else "hop-nvlink"
        return nccl_s(family, kind) * self.constants.carriers[level.carrier].hop

    def extra_s(self, crossings: Callable[[int, int], float]) -> float:
        """Ways beyond a hop (switches, WAN), `crossings(members at and above this level, ranks of each)` times each."""
        total, beyond = 0.0, self.nodes
        for level in self.above:
            total += crossings(beyond, self.ranks // beyond) * level.latency_s
            beyond //= level.members
        return total

    def laid_out(self, members: int, inside: int) -> int:
        """Links between `members` of `inside` ranks each on the longest chain of a ring laid out member by member.

        A ring crosses as many links a lap as there are members; its chain of n - 1 hops a lap leaves out one hop a lap, which
        may be such a link where a member has few ranks. A broadcast's chain is not closed.
        """
        if self.collective in ("broadcast", "reduce"):
            return members - 1
        laps = 2 if self.twice else 1
        return laps * members - min(laps, max(0, laps + 1 - inside))

    def curve(self, way: tuple[Algorithm, Protocol], latency_s: float, pace: tuple[float, str]) -> Curve:
        """The curve of this way; `pace` is (seconds a byte, what binds)."""
        return Curve(*way, latency_s, *pace, self.fill_s(*way), self.constants.fill_bytes * self.heads(way[0]))


def case_of(collective: Collective, group: Group, constants: Constants) -> Case:
    """`collective` on `group`, told apart into the node and what joins nodes."""
    inside = group[0] if group[0].in_node else None
    above = group[1:] if inside else group
    gpus, nodes = inside.members if inside else 1, prod(level.members for level in above)
    return Case(collective, group, constants, inside, above, gpus, nodes, gpus * nodes, collective == "all-reduce")


@cache
def nccl_s(family: str, kind: str) -> float:
    """A latency of NCCL's tuner, from the catalogue."""
    return number("nccl", family, kind)
