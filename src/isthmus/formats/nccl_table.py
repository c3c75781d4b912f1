"""Write measured collectives in the columns of nccl-tests, so that whatever reads those reads ours."""

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.formats.collective_runs import Collective, bus_factor
from isthmus.formats.nccl_tests import PROGRAMS

__all__ = ["Measured", "Place", "table_foot", "table_head", "table_row"]

_PROGRAMS: dict[Collective, str] = {collective: f"{program}_perf" for program, collective in PROGRAMS.items()}
_ROOTED: frozenset[Collective] = frozenset({"broadcast", "reduce"})
_ADDING: frozenset[Collective] = frozenset({"all-reduce", "reduce-scatter", "reduce"})
_SPLIT: frozenset[Collective] = frozenset({"all-gather", "reduce-scatter", "all-to-all"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank: where it runs."""

    rank: int
    pid: int
    host: str
    device: int
    bus: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One size of one collective; `wrong` counts elements that were not what they must be, of both halves."""

    size_bytes: int
    seconds: float
    in_place_s: float
    wrong: int


def table_head(
    collective: Collective, places: Sequence[Place], sizes: Sequence[int], *, warmup: int, iters: int, made_by: str = ""
) -> str:
    """The lines above the table: which program it is like, how it was run, who took part, the columns.

    `made_by` is the first line's text; without it that of `isthmus bench collectives`.
    """
    made_by = made_by or f"isthmus bench collectives: {_PROGRAMS[collective]} through torch.distributed"
    factor = sizes[1] // sizes[0] if len(sizes) > 1 else 1
    lines = [
        f"# {made_by}",
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: {factor}(factor) warmup iters: {warmup}"
        f" iters: {iters} agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
    ]
    lines += [
        f"#  Rank {each.rank:2d} Group  0 Pid {each.pid:6d} on {each.host:>10s} device {each.device:2d} [{each.bus}] {each.name}"
        for each in places
    ]
    lines += [
        "#",
        f"# {'out-of-place':>60s} {'in-place':>40s}",
        f"# {'size':>10s} {'count':>13s} {'type':>9s} {'redop':>7s} {'root':>6s}"
        + 2 * f" {'time':>8s} {'algbw':>7s} {'busbw':>7s} {'#wrong':>6s}",
        f"# {'(B)':>10s} {'(elements)':>13s} {'':>24s}" + 2 * f" {'(us)':>8s} {'(GB/s)':>7s} {'(GB/s)':>7s} {'':>6s}",
    ]
    return "\n".join(lines)


def table_row(collective: Collective, ranks: int, row: Measured) -> str:
    """One line of the table; fp32."""
    count = row.size_bytes // 4 // (ranks if collective in _SPLIT else 1)
    redop, root = "sum" if collective in _ADDING else "none", 0 if collective in _ROOTED else -1
    halves = ""
    for seconds in (row.seconds, row.in_place_s):
        algbw = row.size_bytes / seconds / 1e9
        halves += f" {_micros(seconds)} {algbw:7.2f} {algbw * bus_factor(collective, ranks):7.2f} {row.wrong:6d}"
    return f"  {row.size_bytes:10d} {count:13d} {'float':>9s} {redop:>7s} {root:6d}{halves}"


def _micros(seconds: float) -> str:
    """Four figures or more in eight columns, as nccl-tests does it."""
    micros = seconds * 1e6
    return f"{micros:8.0f}" if micros >= 1e4 else f"{micros:8.1f}" if micros >= 1e2 else f"{micros:8.2f}"


def table_foot(collective: Collective, ranks: int, rows: Sequence[Measured]) -> str:
    """The two lines below it."""
    algbw = [row.size_bytes / each / 1e9 for row in rows for each in (row.seconds, row.in_place_s)]
    mean, wrong = bus_factor(collective, ranks) * sum(algbw) / len(algbw), sum(row.wrong for row in rows)
    verdict = "OK" if not wrong else "FAILED"
    return f"# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {mean:g}\n#"
