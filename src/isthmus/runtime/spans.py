"""Spans: what the ranks' threads did when, read back from their metrics for a trace."""

import json
from pathlib import Path

from isthmus.errors import InputError
from isthmus.formats.perfetto import Span

__all__ = ["read_spans"]


def read_spans(folder: Path, last_steps: int | None = None) -> list[Span]:
    """All spans of a run's metrics folder; with `last_steps`, of each rank those since its step that many before the end.

    Raises:
        InputError: There is no such folder, or a line in it is no JSON.
    """
    if not folder.is_dir():
        raise InputError(str(folder), "is no folder", "give the metrics folder of a run")
    spans: list[Span] = []
    for path in sorted(folder.glob("*.jsonl")):
        own = _read_file(path)
        steps = [span.begin_s for span in own if span.track == "steps"]
        since_s = steps[-last_steps] if last_steps is not None and last_steps < len(steps) else 0.0
        spans += [span for span in own if span.begin_s >= since_s]
    return spans


def _read_file(path: Path) -> list[Span]:
    region, _, rank = path.stem.rpartition("-")
    spans: list[Span] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            if number == len(lines):
                break  # a killed rank's last line may be torn
            raise InputError(f"{path}:{number}", "is no JSON") from None
        if row.pop("kind") == "span":
            del row["t"], row["incarnation"]
            track, name, begin_s, seconds = (row.pop(key) for key in ("track", "name", "begin", "seconds"))
            spans.append(
                Span(process=f"{region} {rank}", track=track, name=name, begin_s=begin_s, seconds=seconds, details=row)
            )
    return spans
