"""`nvidia-smi topo -m` and `-p2p`: matrices with wrapped headers, concatenated names, missing columns, rows cut off."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.gpu import P2pMatrix, TopoMatrix
from isthmus.doctor.text import Document, Place

__all__ = ["read_p2p", "read_topo"]

_CELL = re.compile(r"X|NV\d{1,2}|SYS|NODE|PHB|PXB|PIX|SOC|PSB|C2C")
_P2P_CELL = re.compile(r"X|OK|CNS|GNS|TNS|NS|DR|U")
_ROW_NAME = re.compile(r"GPU\d+$")
_GLUED = re.compile(r"(?<=\d)(?=(?:GPU|NIC|mlx5_)\d)")
_NAME = re.compile(r"(?:GPU|NIC|DPU)\d+|[a-z][a-z0-9]*(?:_[a-z]+)*_?\d[\w]*")
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_CPU_LIST = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


class _Rows:
    """A matrix being read."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns
        self.cells: dict[tuple[str, str], str] = {}
        self.places: dict[str, Place] = {}
        self.affinity: dict[str, str] = {}
        self.numa: dict[str, str] = {}
        self.short = False

    def add(self, name: str, cells: list[str], place: Place) -> None:
        if not self.columns:
            self.columns = [f"GPU{n}" for n in range(len(cells))]
        self.short |= len(cells) < len(self.columns)
        self.places[name] = place
        for column, cell in zip(self.columns, cells, strict=False):
            if cell != "X":
                self.cells[(name, column)] = cell


def _names(line: str) -> list[str]:
    """Column names of a header line; empty when it is none."""
    head = re.split(r"CPU\s*Affinity|NUMA\s*Affinity|GPU\s*NUMA", line)[0]
    tokens = _GLUED.sub(" ", head).split()
    return tokens if tokens and all(_NAME.fullmatch(token) for token in tokens) else []


def _cells(line: str, pattern: re.Pattern[str]) -> tuple[str, list[str], list[str]]:
    """Row name, its cells, and what stands after them."""
    tokens = line.split()
    if len(tokens) < 2 or not _ROW_NAME.match(tokens[0]):
        return "", [], []
    end = 1
    while end < len(tokens) and pattern.fullmatch(tokens[end]):
        end += 1
    return (tokens[0], tokens[1:end], tokens[end:]) if end > 1 else ("", [], [])


def read_topo(document: Document) -> Iterator[TopoMatrix]:
    """One TopoMatrix a matrix in the text."""
    header: list[str] = []
    rows: _Rows | None = None
    legend: dict[str, str] = {}
    for index, line in enumerate(document.lines):
        name, cells, rest = _cells(line, _CELL)
        if name and _is_row(name, cells, rows.columns if rows else header):
            if rows is None or name in rows.places:
                if rows is not None:
                    yield from _matrix(rows, legend)
                rows, header, legend = _Rows(header), [], {}
            rows.add(name, cells, document.place(index))
            _affinity(rows, name, rest)
            continue
        names = _names(line)
        if names:
            if rows is not None and names[0].startswith("GPU"):
                yield from _matrix(rows, legend)
                rows, legend, header = None, {}, []
            header = header + names if rows is None else header
        elif rows is None and line.strip():
            header = []
        elif rows is not None and (found := _LEGEND.match(line)):
            legend[found[1]] = found[2]
    if rows is not None:
        yield from _matrix(rows, legend)


def _is_row(name: str, cells: list[str], columns: list[str]) -> bool:
    """A row of the matrix has `X` under its own name; a row of only `X` needs a header."""
    if "X" not in cells:
        return False
    return len(cells) > 1 or columns == [name]


def _affinity(rows: _Rows, name: str, rest: list[str]) -> None:
    words = [word for word in rest if word != "N/A"]
    if words and _CPU_LIST.fullmatch(words[0]) and (len(words) > 1 or not words[0].isdecimal()):
        rows.affinity[name] = words[0]
        if len(words) > 1 and words[1].isdecimal():
            rows.numa[name] = words[1]


def _matrix(rows: _Rows, legend: dict[str, str]) -> Iterator[TopoMatrix]:
    gpus = tuple(rows.places)
    header_gpus = [column for column in rows.columns if column.startswith("GPU")]
    yield TopoMatrix(
        at=rows.places[gpus[0]],
        gpus=gpus,
        columns=tuple(rows.columns),
        cells=rows.cells,
        places=rows.places,
        affinity=rows.affinity,
        numa=rows.numa,
        legend=legend,
        complete=not rows.short and set(header_gpus) <= set(gpus),
    )


def read_p2p(document: Document) -> Iterator[P2pMatrix]:
    """One P2pMatrix a matrix; rows are told from `topo -m` by their words."""
    rows: _Rows | None = None
    header: list[str] = []
    for index, line in enumerate(document.lines):
        name, cells, rest = _cells(line, _P2P_CELL)
        if name and "X" in cells and len(cells) > 1 and not rest:
            if rows is None or name in rows.places:
                if rows is not None:
                    yield _p2p(rows)
                rows = _Rows(header)
            rows.add(name, cells, document.place(index))
        elif names := _names(line):
            header = names
    if rows is not None:
        yield _p2p(rows)


def _p2p(rows: _Rows) -> P2pMatrix:
    gpus = tuple(rows.places)
    return P2pMatrix(at=rows.places[gpus[0]], gpus=gpus, cells=rows.cells, places=rows.places)
