"""Traces for Perfetto and chrome://tracing: the JSON object form of the Trace Event Format.

One process a rank, one thread a track: `steps`, `backward`, `exchange`, `waiting` ...; times are Unix seconds on the way in and
microseconds since the first span on the way out (a double holds 2^53, and a viewer starts at 0).
Format: "Trace Event Format", Google, complete events ("ph": "X") and metadata events ("ph": "M").
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Span", "trace_events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took time on one rank.

    Attributes:
        process: Who, e.g. `shenzhen 0`.
        track: Row of the process in the picture.
        name: What.
        begin_s: Unix time.
        seconds: How long.
        details: Shown when the span is picked.
    """

    process: str
    track: str
    name: str
    begin_s: float
    seconds: float
    details: dict[str, Any] = field(default_factory=dict[str, Any])


def trace_events(spans: Iterable[Span]) -> dict[str, Any]:
    """The document to write as JSON; spans may come in any order, rows stand in the order of their first spans."""
    spans = sorted(spans, key=lambda span: (span.begin_s, -span.seconds))
    origin_s = spans[0].begin_s if spans else 0.0
    processes: dict[str, int] = {}
    tracks: dict[tuple[str, str], int] = {}
    events: list[dict[str, Any]] = []
    for span in spans:
        if span.process not in processes:
            processes[span.process] = len(processes) + 1
            events.append(_named("process_name", processes[span.process], 0, span.process))
        process, key = processes[span.process], (span.process, span.track)
        if key not in tracks:
            tracks[key] = sum(owner == span.process for owner, _ in tracks) + 1
            events.append(_named("thread_name", process, tracks[key], span.track))
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.track,
                "pid": process,
                "tid": tracks[key],
                "ts": round((span.begin_s - origin_s) * 1e6, 3),
                "dur": round(span.seconds * 1e6, 3),
                "args": span.details,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"origin_unix_s": origin_s}}


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
