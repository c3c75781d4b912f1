"""NCCL Inspector's JSON (the profiler plugin in NVIDIA/nccl, plugins/profiler/inspector) as measured runs.

One object an operation and rank, one a line or pretty-printed: `header` (communicator, ranks, nodes), `metadata`,
`coll_perf` (`coll`, `coll_sn`, `coll_msg_size_bytes`, `coll_exec_time_us`). Objects of other kinds (`p2p_perf`,
`dump_stats`) are passed over. Output formats v4.0 and v4.1; see the plugin's README and json writer.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from isthmus.errors import InputError
from isthmus.formats.collective_runs import Collective, Row, Run

__all__ = ["inspector_runs", "read_inspector"]

_COLLECTIVES: dict[str, Collective] = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
_HINT = "write it with NCCL_INSPECTOR_ENABLE=1 and NCCL_INSPECTOR_DUMP_DIR (NVIDIA/nccl plugins/profiler/inspector)"


@dataclass(frozen=True, slots=True)
class _Operation:
    """One collective of one communicator as one rank saw it."""

    communicator: str
    collective: Collective
    ranks: int
    nodes: int
    number: int
    size_bytes: int
    seconds: float


def read_inspector(path: Path | str) -> list[Run]:
    """The runs in an Inspector file; see `inspector_runs`."""
    return inspector_runs(Path(path).read_text(encoding="utf-8"), str(path))


def inspector_runs(text: str, where: str) -> list[Run]:
    """Runs by communicator size and collective; a row a size: the median over operations.

    Of one operation the shortest time of its ranks counts: ranks that came early also waited for the others. Sizes are whole
    buffers: Inspector states one rank's share for all-gather and reduce-scatter (its own algbw multiplies it by the ranks).

    Raises:
        InputError: Not Inspector's JSON; names the line.
    """
    shortest: dict[tuple[Any, ...], float] = {}
    for operation in _operations(text, where):
        system = (operation.collective, operation.ranks, operation.nodes, operation.size_bytes)
        key = (*system, operation.communicator, operation.number)
        shortest[key] = min(operation.seconds, shortest.get(key, operation.seconds))
    rows: defaultdict[tuple[Collective, int, int], defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (collective, ranks, nodes, size, _, _), seconds in shortest.items():
        rows[collective, ranks, nodes][size].append(seconds)
    return [
        Run(
            name=f"{collective}, {ranks} ranks on {nodes} nodes",
            source=where,
            where=where,
            collective=collective,
            ranks=ranks,
            nodes=nodes,
            rows=tuple(Row(size_bytes=size, seconds=median(times)) for size, times in sorted(sizes.items())),
        )
        for (collective, ranks, nodes), sizes in sorted(rows.items())
    ]


def _operations(text: str, where: str) -> list[_Operation]:
    decoder, found, at = json.JSONDecoder(), list[_Operation](), 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at == len(text):
            break
        line = f"{where}:{text.count(chr(10), 0, at) + 1}"
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise InputError(line, f"is not JSON: {error.msg}", _HINT) from None
        for record in cast(list[Any], value) if isinstance(value, list) else [value]:
            operation = _operation(record, line)
            if operation is not None:
                found.append(operation)
    if not found:
        raise InputError(where, "holds no `coll_perf` of NCCL Inspector", _HINT)
    return found


def _operation(record: Any, line: str) -> _Operation | None:
    if not isinstance(record, dict):
        raise InputError(line, f"is {type(record).__name__}, not an object of NCCL Inspector", _HINT)
    fields = cast(dict[str, Any], record)
    if "coll_perf" not in fields:
        return None
    try:
        header, perf = fields["header"], fields["coll_perf"]
        collective = _COLLECTIVES.get(str(perf["coll"]))
        ranks, seconds = int(header["n_ranks"]), float(perf["coll_exec_time_us"]) * 1e-6
        size = int(perf["coll_msg_size_bytes"])
        whole = size * ranks if collective in ("all-gather", "reduce-scatter") else size
        nodes, number, communicator = int(header["nnodes"]), int(perf["coll_sn"]), str(header["id"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(line, f"lacks or garbles a field of `header` or `coll_perf`: {error}", _HINT) from None
    if collective is None or seconds <= 0 or ranks < 2 or size <= 0:
        return None  # a kind nccl-tests has no model for, or an operation that moved nothing
    return _Operation(communicator, collective, ranks, nodes, number, whole, seconds)
