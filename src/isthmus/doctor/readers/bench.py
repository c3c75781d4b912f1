"""Benchmarks: nccl-tests tables of every version, pairs of nodes, numbers of NICs, ib_write_bw, nvbandwidth, step times."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.bench import (
    BandwidthRow,
    BenchmarkTable,
    CopyBandwidth,
    NicScaling,
    PairBandwidth,
    RankTiming,
    RdmaBandwidth,
)
from isthmus.doctor.text import Document, Place, count, decimal, real

__all__ = ["read_nccl_tests", "read_other_benchmarks"]

_TYPES = r"(?:u?int(?:8|32|64)|half|float|double|bfloat16|f8e[45]m[23]\w*|fp8\w*|char|uint8)"
_NUMBER = r"[\d.]+(?:e[+-]?\d+)?"
_ROW = re.compile(r"\s*(?P<size>\d+)\s+(?P<count>\d+)\s+" + _TYPES + r"(?:\s+(?P<redop>[a-zA-Z]+))?\s+(?P<rest>-?\d.*)$")
_TAGS = re.compile(r"\[\d+\]")  # ranks that some launchers glue to every piece of a line
_DEVICE = re.compile(
    r"#?\s*Rank\s+(?P<rank>\d+)(?:\s+Group\s+\d+)?\s+Pid\s+\d+\s+on\s+(?P<host>\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(?P<name>.*)$"
)
_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*:\s*(?P<wrong>\d+)")
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*(?P<average>[\d.,]+)")
_OPERATION = re.compile(
    r"(?P<operation>all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv|gather|scatter|hypercube)_perf"
)
_STARTED = re.compile(r"#\s*(?:nThread \d+ nGpus|Using devices)|#\s+size\s+count")


class _Table:
    def __init__(self, at: Place) -> None:
        self.at = at
        self.rows: list[BandwidthRow] = []
        self.ranks: dict[int, str] = {}
        self.zeroes = 0
        self.device = ""
        self.bounds: int | None = None
        self.average: float | None = None
        self.average_at: Place | None = None
        self.headed = False

    def fact(self, operation: str) -> BenchmarkTable:
        return BenchmarkTable(
            at=self.at,
            rows=tuple(self.rows),
            ranks=max(self.ranks, default=-1) + 1,
            hosts=tuple(dict.fromkeys(self.ranks.values())),
            device=self.device,
            out_of_bounds=self.bounds,
            average_gbyte_per_s=self.average,
            average_at=self.average_at,
            headers=self.zeroes,
            operation=operation,
        )


def read_nccl_tests(document: Document) -> Iterator[BenchmarkTable]:
    """One table after another; a new header after results starts the next."""
    table: _Table | None = None
    operation = ""
    for index, line in enumerate(document.lines):
        if "_perf" in line and (named := _OPERATION.search(line)):
            operation = named["operation"]
        fact = _line(document, index, line)
        if fact is None:
            continue
        if table is None or (isinstance(fact, str | tuple) and (table.average is not None or table.bounds is not None)):
            if table is not None and (table.rows or table.ranks or table.average is not None):
                yield table.fact(operation)
            table = _Table(document.place(index))
        _take(table, fact, document.place(index))
    if table is not None and (table.rows or table.ranks or table.average is not None):
        yield table.fact(operation)


_Line = str | tuple[int, str, str] | BandwidthRow | tuple[str, float]


def _line(document: Document, index: int, line: str) -> _Line | dict[str, float] | None:
    """What one line says: a header, a (rank, host, device), a row, or one of the last lines."""
    if line[:1] == "#" or line.lstrip()[:1] == "#":
        if device := _DEVICE.match(line.strip()):
            return int(device["rank"]), device["host"], device["name"].strip()
        if bounds := _BOUNDS.match(line.strip()):
            return {"bounds": real(bounds["wrong"])}
        if average := _AVERAGE.match(line.strip()):
            value = decimal(average["average"])
            return None if value is None else {"average": value}
        return "header" if _STARTED.match(line.strip()) else None
    if "[" in line[:8]:
        line = _TAGS.sub(" ", line)
    row = _ROW.match(line) if line[:64].strip()[:1].isdecimal() else None
    return _row(document.place(index), row) if row else None


def _take(table: _Table, fact: _Line | dict[str, float], at: Place) -> None:
    match fact:
        case BandwidthRow():
            table.rows.append(fact)
        case dict():
            if "average" in fact:
                table.average, table.average_at = fact["average"], at
            if "bounds" in fact:
                table.bounds = int(fact["bounds"])
        case (int() as rank, str() as host, str() as name):
            table.zeroes += rank == 0
            table.ranks[rank] = host
            table.device = name or table.device
        case _:
            pass


def _row(at: Place, row: re.Match[str]) -> BandwidthRow | None:
    rest = row["rest"].split()
    # The root column came with nccl-tests 2.13: it makes the number of words odd (4 a side, and the root).
    rest = rest[1:] if len(rest) % 4 == 1 else rest
    groups = [rest[start : start + 4] for start in range(0, len(rest), 4)]
    best: tuple[float, float] | None = None
    wrong: int | None = None
    for group in groups[:2]:
        if len(group) < 3 or not all(re.fullmatch(_NUMBER, word) for word in group[:3]):
            break
        algbw, busbw = real(group[1]), real(group[2])
        best = (busbw, algbw) if best is None or busbw > best[0] else best
        if len(group) == 4 and group[3].isdecimal():
            wrong = (wrong or 0) + int(group[3])
    if best is None:
        return None
    return BandwidthRow(at, int(row["size"]), best[0], best[1], wrong)


_PAIR = re.compile(
    r"\s*(?P<first>[A-Za-z][\w.-]*)\s*(?:,|<?->|\s-\s|\s)\s*(?P<second>[A-Za-z][\w.-]*)\s*[:,]?\s+"
    r"(?P<value>\d+(?:[.,]\d+)?)\s*(?:GB/s)?\s*(?:#.*)?$"
)
_NICS = re.compile(r"#?\s*(?:number of )?NICs?\s*:?\s+(?P<numbers>\d+(?:\s+\d+)+)\s*$", re.IGNORECASE)
_SERIES = re.compile(
    (
        r"\s*(?P<label>[\w ().-]*?busbw[\w ()/.-]*?|[\w ().-]*?bandwidth[\w ()/.-]*?)\s*:\s*"
        r"(?P<numbers>\d[\d.]*(?:\s+\d[\d.]*)+)\s*$"
    ),
    re.IGNORECASE,
)
_PERFTEST_HEAD = re.compile(r"#bytes\s+#iterations\s+BW peak\[(?P<unit>Gb/sec|MB/sec|MiB/sec)\]")
_PERFTEST_ROW = re.compile(r"\s*(?P<size>\d+)\s+(?P<iterations>\d+)\s+(?P<peak>[\d.]+)\s+(?P<average>[\d.]+)\s+[\d.]+\s*$")
_PERFTEST_DEVICE = re.compile(r"Device\s*:\s*(?P<device>\S+)")
_COPY = re.compile(r"Running (?P<test>(?:host_to_device|device_to_host|device_to_device)_memcpy_\w+)")
_COPY_SUM = re.compile(r"\s*(?P<gpu>\d+)\s+(?P<value>\d+[.,]\d+)\s*$|\s*0\s+(?P<values>\d+[.,]\d+(?:\s+\d+[.,]\d+)+)\s*$")
_OLD_COPY = re.compile(r"\s*(?P<way>Host to Device|Device to Host|Device to Device) Bandwidth")
_OLD_VALUE = re.compile(r"\s*\d{5,}\s+(?P<value>\d+[.,]?\d*)\s*$")
_STEP = re.compile(
    r"\brank[ =:]*(?P<rank>\d+)\b.*?\bcompute(?:_time|_s|[ =:])*\s*[=:]?\s*(?P<seconds>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)?\b",
    re.IGNORECASE,
)
_DIRECTIONS = {
    "host_to_device": "h2d",
    "device_to_host": "d2h",
    "device_to_device": "d2d",
    "Host to Device": "h2d",
    "Device to Host": "d2h",
    "Device to Device": "d2d",
}

Other = PairBandwidth | NicScaling | RdmaBandwidth | CopyBandwidth | RankTiming


def read_other_benchmarks(document: Document) -> Iterator[Other]:
    """Everything but nccl-tests tables."""
    yield from _pairs(document)
    yield from _scaling(document)
    yield from _perftest(document)
    yield from _copies(document)
    for index, line in enumerate(document.lines):
        if "compute" in line and (step := _STEP.search(line)):
            seconds = real(step["seconds"]) * (1e-3 if step["unit"] == "ms" else 1.0)
            yield RankTiming(at=document.place(index), rank=step["rank"], seconds=seconds)


def _pairs(document: Document) -> Iterator[PairBandwidth]:
    """Three or more lines of two different host names and a number: a pairwise test."""
    found: list[PairBandwidth] = []
    for index, line in enumerate(document.lines):
        match = _PAIR.match(line)
        if (
            match
            and match["first"] != match["second"]
            and any(c.isdecimal() for c in match["first"])
            and any(c.isdecimal() for c in match["second"])
        ):
            value = decimal(match["value"])
            if value is not None and _alike(match["first"], match["second"]):
                found.append(
                    PairBandwidth(at=document.place(index), first=match["first"], second=match["second"], gbyte_per_s=value)
                )
    yield from found if len(found) >= 3 else ()


def _alike(first: str, second: str) -> bool:
    """Host names of one cluster: the same letters with other digits."""
    return re.sub(r"\d+", "", first) == re.sub(r"\d+", "", second)


def _scaling(document: Document) -> Iterator[NicScaling]:
    numbers: list[int] = []
    for index, line in enumerate(document.lines):
        if head := _NICS.match(line):
            numbers = [int(word) for word in head["numbers"].split()]
        elif numbers and (series := _SERIES.match(line)):
            values = [decimal(word) for word in series["numbers"].split()]
            points = tuple((nics, value) for nics, value in zip(numbers, values, strict=False) if value is not None)
            yield NicScaling(at=document.place(index), label=series["label"].strip(), points=points)


def _perftest(document: Document) -> Iterator[RdmaBandwidth]:
    device, factor = "", 0.0
    for index, line in enumerate(document.lines):
        if "Device" in line and (found := _PERFTEST_DEVICE.search(line)):
            device = found["device"]
        elif head := _PERFTEST_HEAD.search(line):
            factor = {"Gb/sec": 1.0, "MB/sec": 8e-3, "MiB/sec": 8 * 2**20 / 1e9}[head["unit"]]
        elif factor and (row := _PERFTEST_ROW.match(line)):
            yield RdmaBandwidth(
                at=document.place(index), device=device, gbit_per_s=real(row["average"]) * factor, size_bytes=int(row["size"])
            )


def _copies(document: Document) -> Iterator[CopyBandwidth]:
    direction = ""
    for index, line in enumerate(document.lines):
        if (test := _COPY.search(line)) or _OLD_COPY.match(line):
            name = test["test"] if test else ""
            direction = next((way for word, way in _DIRECTIONS.items() if name.startswith(word) or word in line), "")
        elif direction and line.strip().startswith("SUM"):
            direction = ""
        elif direction and (row := _COPY_SUM.match(line)):
            words = [row["value"]] if row["value"] else row["values"].split()
            for gpu, word in enumerate(words):
                value = decimal(word)
                if value is not None:
                    yield CopyBandwidth(
                        at=document.place(index), direction=direction, gpu=row["gpu"] or str(gpu), gbyte_per_s=value
                    )
        elif direction and (value := _OLD_VALUE.match(line)):
            megabytes = count(value["value"]) or decimal(value["value"]) or 0.0
            yield CopyBandwidth(
                at=document.place(index), direction=direction, gpu="", gbyte_per_s=megabytes / (1e3 if megabytes > 1000 else 1)
            )
            direction = ""
