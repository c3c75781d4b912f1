"""Text of nccl-tests and rccl-tests, every version and however it was carried here, to tables of rows.

Pure functions of text. What the readers take as they come: prefixes of mpirun (`[1,0]<stdout>:`), srun (`0: `), kubectl
(`[pod/name/container] `), pods (`worker-0 | `) and time stamps; Markdown around the table; layouts with and without a
`redop` and a `root` column, with `error`, `#wrong` or neither, with `N/A` where nothing was checked; one or both of the
out-of-place and in-place halves; several tests in one text. A line that is no row is passed over.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from isthmus.formats.collective_runs import Collective, Row, bus_factor

__all__ = ["PROGRAMS", "Table", "TableRow", "read_nccl_tests"]

PROGRAMS: dict[str, Collective] = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all-to-all",
    "sendrecv": "send-recv",
}
_PROGRAM = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoall|sendrecv)_perf(?:_mpi)?\b")
_CARRIED = re.compile(
    r"\x1b\[[0-9;]*m"  # colours
    r"|\[\d+(?:,\d+)?\](?:<std(?:out|err)>:?|(?=[\s\d#])|:)"  # mpirun --tag-output; a rank that tags what it prints
)
_PREFIX = re.compile(
    r"^\s*(?:"
    r"\[[^\]\s]*[/a-zA-Z][^\]\s]*\]:?\s+"  # [pod/nccl-test/main]
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*\s+"  # a time stamp
    r"|\d+:\s+"  # srun --label
    r"|[A-Za-z][\w.-]*(?::\s+|\s+\|\s+)"  # host: , worker-0 |
    r")*"
)
_RANK = re.compile(r"\bRank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+(\d+)\s+\[[0-9a-fA-Fx:.]+\]\s*(.*\S)?")
_NCCL = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)|nccl-library=(\d+)")
_LAUNCH = re.compile(r"nThread (\d+) nGpus (\d+)")
_TYPES = frozenset({
    "int8", "char", "uint8", "int32", "int", "uint32", "int64", "uint64", "half", "float16", "float", "float32", "double",
    "float64", "bfloat16", "bf16", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "float8_e4m3", "float8_e5m2",
})  # fmt: skip
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$")


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of a table. Times are None where that half was not printed; `wrong` counts wrong elements, if checked."""

    line: int
    size_bytes: int
    seconds: float | None
    in_place_s: float | None
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: int | None


@dataclass(slots=True)
class Table:
    """One test.

    Attributes:
        line: Where its first row stands, counted from 1.
        collective: From the program's name where the text holds it, else from the ratio of the bandwidths, else None.
        ranks: From the list of devices, else from the ratio of the bandwidths, else None.
        hosts: Distinct hosts in the list of devices; 0 where there is none or it has gaps.
        devices: Distinct names of devices.
        nccl_version: As printed; empty where it is not.
        gpus_per_process: nThread x nGpus of the header; 1 where there is none.
        rows: In the order of the text.
    """

    line: int
    collective: Collective | None
    ranks: int | None
    hosts: int
    devices: tuple[str, ...]
    nccl_version: str
    gpus_per_process: int = 1
    rows: list[TableRow] = field(default_factory=list[TableRow])

    def out_of_place(self) -> tuple[Row, ...]:
        """Size and time of every row, rising; the in-place time where the other half is missing; zero sizes left out."""
        found: dict[int, float] = {}
        for row in self.rows:
            seconds = row.seconds if row.seconds is not None else row.in_place_s
            if row.size_bytes > 0 and seconds:
                found.setdefault(row.size_bytes, seconds)
        return tuple(Row(size, found[size]) for size in sorted(found))


@dataclass(slots=True)
class _Header:
    """What the lines before a table told."""

    collective: Collective | None = None
    hosts: dict[int, str] = field(default_factory=dict[int, str])
    devices: list[str] = field(default_factory=list[str])
    nccl_version: str = ""
    gpus_per_process: int = 1
    listed: bool = False


def read_nccl_tests(text: str) -> tuple[Table, ...]:
    """Every test in `text`; empty where there is none."""
    header, tables, fresh = _Header(), list[Table](), True
    for number, line in enumerate(text.splitlines(), 1):
        bare = _PREFIX.sub("", _CARRIED.sub(" ", line), count=1)
        row = _row(bare, number)
        if row is None:
            fresh = _note(bare, header) or fresh
            continue
        if fresh or not tables or row.size_bytes <= tables[-1].rows[-1].size_bytes:
            tables.append(_table(header, number))
            fresh = False
        tables[-1].rows.append(row)
    for table in tables:
        _infer(table)
    return tuple(tables)


def _table(header: _Header, number: int) -> Table:
    ranks = max(header.hosts) + 1 if header.hosts else None
    hosts = len(set(header.hosts.values())) if ranks == len(header.hosts) else 0  # an excerpt may show the last ranks only
    header.listed = True
    devices = tuple(dict.fromkeys(header.devices))
    return Table(number, header.collective, ranks, hosts, devices, header.nccl_version, header.gpus_per_process)


def _note(line: str, header: _Header) -> bool:
    """Take what `line` tells; whether a new test begins with it."""
    if (rank := _RANK.search(line)) and rank[2]:
        if header.listed:  # a new list, after a table
            header.hosts, header.devices, header.listed = {}, [], False
        header.hosts[int(rank[1])] = rank[2]
        if rank[4]:
            header.devices.append(rank[4])
        return True
    if program := _PROGRAM.search(line):
        header.collective = PROGRAMS[program[1]]
    if version := _NCCL.search(line):
        header.nccl_version = version[1] or _version(int(version[2]))
    if launch := _LAUNCH.search(line):
        header.gpus_per_process = int(launch[1]) * int(launch[2])
    words = line.replace("#", " ").split()
    return words[:2] == ["size", "count"] or "nThread" in line


def _version(code: int) -> str:
    """NCCL_VERSION_CODE in words: 22907 is 2.29.7, 2708 was 2.7.8."""
    major = 10000 if code >= 10000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def _row(line: str, number: int) -> TableRow | None:
    """A line of a table: size, count, type, [redop], [root], then one or two of (time, algbw, busbw, [wrong])."""
    for found in _candidates(line.split()):
        size, rest = found
        for halves in _halves(rest):
            row = _checked(size, halves, number)
            if row is not None:
                return row
    return None


def _candidates(words: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    for index in range(min(len(words) - 5, 4)):
        if words[index].isdecimal() and words[index + 1].isdecimal() and words[index + 2] in _TYPES:
            rest = list(words[index + 3 :])
            if rest and not _is_figure(rest[0]):
                rest = rest[1:]  # the reduction
            while rest and not _is_figure(rest[-1]):
                rest = rest[:-1]  # a comment behind the row
            yield int(words[index]), rest


def _is_figure(word: str) -> bool:
    return word == "N/A" or bool(_NUMBER.match(word))


def _halves(rest: list[str]) -> Iterator[list[list[str]]]:
    """The ways to read the figures of a row, likeliest first: with a root or without, four to a half or three."""
    for figures in (rest[1:], rest):
        for width in (4, 3):
            if figures and len(figures) in (width, 2 * width):
                yield [figures[start : start + width] for start in range(0, len(figures), width)]


def _checked(size: int, halves: list[list[str]], number: int) -> TableRow | None:
    """The row, if size / time is the printed bandwidth in the halves that are printed; None where it is not."""
    times: list[float | None] = []
    bandwidths: list[tuple[float, float]] = []
    wrong: list[int] = []
    for half in halves:
        if "N/A" in half[:3]:
            times.append(None)
            continue
        time_us, algbw, busbw = map(float, half[:3])
        if time_us <= 0 or abs(size / time_us / 1e3 - algbw) > 0.0051 + 0.006 * algbw:
            return None
        times.append(time_us * 1e-6)
        bandwidths.append((algbw * 1e9, busbw * 1e9))
        if len(half) == 4 and half[3].isdecimal():
            wrong.append(int(half[3]))
    if not bandwidths:
        return None
    in_place = times[1] if len(times) > 1 else None
    return TableRow(number, size, times[0], in_place, *bandwidths[0], sum(wrong) if wrong else None)


def _infer(table: Table) -> None:
    """Collective and ranks from busbw / algbw, where the text does not name them and only one answer fits."""
    best = max(table.rows, key=lambda row: row.algbw_bytes_per_s)
    if best.algbw_bytes_per_s < 0.5e9 or best.busbw_bytes_per_s <= 0:
        return
    ratio = best.busbw_bytes_per_s / best.algbw_bytes_per_s
    blur = 0.006e9 * (1 + ratio) / best.algbw_bytes_per_s  # two decimals are printed of each
    if table.collective is None and ratio > 1 + blur:
        table.collective = "all-reduce"  # no other bus factor is above 1
    if table.collective is None or table.ranks is not None:
        return
    if bus_factor(table.collective, 2) != bus_factor(table.collective, 3):
        scale = 2.0 if table.collective == "all-reduce" else 1.0
        fits = [ranks for ranks in range(2, 4097) if abs(scale * (ranks - 1) / ranks - ratio) <= blur]
        table.ranks = fits[0] if len(fits) == 1 else None
