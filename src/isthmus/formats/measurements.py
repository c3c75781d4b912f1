"""Any file of measured collectives to runs: the one door for `isthmus calibrate` and for the doctor.

By name: `.yaml` is isthmus's own form (`collective_runs`). By content: the JSON of NCCL's Inspector, whatever its name. Else
`.jsonl` is one JSON object a line, and anything else text of nccl-tests, rccl-tests or a torch benchmark. A line of JSON:

    {"collective": "all-reduce", "ranks": 16, "nodes": 2, "size_bytes": 1073741824, "seconds": 0.0045, "source": "job 812"}
"""

import json
from math import isfinite
from pathlib import Path
from typing import Any, cast

from isthmus.errors import InputError, nearest
from isthmus.formats.collective_runs import COLLECTIVES, Collective, Row, Run, read_runs
from isthmus.formats.nccl_inspector import inspector_runs
from isthmus.formats.nccl_tests import Table, read_nccl_tests
from isthmus.formats.torch_bench import read_torch_bench
from isthmus.formats.wan_measurements import is_wan_line

__all__ = ["read_measured_runs", "runs_in_json_lines", "runs_in_text"]

TEXT_LIMIT_BYTES = 64_000_000
_KEYS = {"collective", "ranks", "nodes", "size_bytes", "seconds", "source"}


def read_measured_runs(path: Path | str) -> tuple[Run, ...]:
    """The runs in the file at `path`.

    Raises:
        InputError: It cannot be read, or holds no measured collective.
    """
    source = str(path)
    if source.endswith((".yaml", ".yml")):
        return read_runs(path)
    try:
        with open(path, "rb") as stream:
            raw = stream.read(TEXT_LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise InputError(source, "no such file") from None
    except OSError as error:
        raise InputError(source, f"cannot be read: {error.strerror}") from None
    if len(raw) > TEXT_LIMIT_BYTES:
        raise InputError(source, f"is larger than {TEXT_LIMIT_BYTES // 1_000_000} MB", "keep the tables and their headers")
    text = raw.decode("utf-8", errors="replace")
    if '"coll_perf"' in text:
        return tuple(inspector_runs(text, source))
    return runs_in_json_lines(text, source) if source.endswith(".jsonl") else runs_in_text(text, source)


def runs_in_text(text: str, source: str) -> tuple[Run, ...]:
    """The runs whose tables stand in `text`, the output of a benchmark; `source` is its name in messages.

    Raises:
        InputError: There is no table with a row in it.
    """
    tables = read_nccl_tests(text) or read_torch_bench(text)
    runs = tuple(_run(table, source) for table in tables if table.out_of_place())
    if not runs:
        raise InputError(
            source,
            "holds no table of nccl-tests, rccl-tests or all_reduce_bench",
            "keep the lines of figures as they were printed",
        )
    return runs


def runs_in_json_lines(text: str, source: str) -> tuple[Run, ...]:
    """The runs in lines of JSON: those of one source, collective, ranks and nodes are one run. Lines of WANs are left to
    `wan_measurements`.

    Raises:
        InputError: A line is no such object.
    """
    found: dict[tuple[str, Collective, int, int | None], tuple[int, list[Row]]] = {}
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in lines:
        if not is_wan_line(line):
            key, row = _json_row(line, f"{source}:{number}")
            found.setdefault(key, (number, []))[1].append(row)
    if not lines:
        raise InputError(source, "is empty", "one JSON object a line; see isthmus calibrate --help")
    return tuple(
        Run(
            name=f"{Path(source).name}:{number}",
            source=key[0] or source,
            where=f"{source}:{number}",
            collective=key[1],
            ranks=key[2],
            nodes=key[3],
            rows=tuple(sorted(rows, key=lambda row: row.size_bytes)),
        )
        for key, (number, rows) in found.items()
    )


def _run(table: Table, source: str) -> Run:
    return Run(
        name=f"{Path(source).name}:{table.line}",
        source=source,
        where=f"{source}:{table.line}",
        collective=table.collective,
        ranks=table.ranks,
        nodes=table.hosts or None,
        gpus_per_process=table.gpus_per_process,
        rows=table.out_of_place(),
    )


def _json_row(line: str, where: str) -> tuple[tuple[str, Collective, int, int | None], Row]:
    try:
        raw = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(where, f"is not JSON: {error.msg}") from None
    if not isinstance(raw, dict):
        raise InputError(where, "expected an object such as {\"collective\": \"all-reduce\", ...}")
    found = cast(dict[str, Any], raw)
    for key in found:
        if key not in _KEYS:
            raise InputError(where, f"unknown key {key!r}", nearest(key, _KEYS))
    if found.get("collective") not in COLLECTIVES:
        name = str(found.get("collective"))
        raise InputError(where, f"unknown collective {name!r}", nearest(name, COLLECTIVES))
    ranks, size, seconds = found.get("ranks"), found.get("size_bytes"), found.get("seconds")
    nodes = found.get("nodes")
    for key, value, least in (("ranks", ranks, 2), ("size_bytes", size, 1), ("nodes", nodes if nodes is not None else 1, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(where, f"{key} is {value!r}, expected a whole number of at least {least}")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not isfinite(seconds) or seconds <= 0:
        raise InputError(where, f"seconds is {seconds!r}, expected a positive number")
    key = (str(found.get("source", "")), cast(Collective, found["collective"]), cast(int, ranks), cast(int | None, nodes))
    return key, Row(cast(int, size), float(seconds))
