"""What a rank measured, as JSON lines, and the clock that cuts a run into steps without gaps."""

import json
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

__all__ = ["Metrics", "StepClock"]

Kind = Literal["start", "buckets", "step", "sync", "round", "regroup", "parts", "discarded", "checkpoint", "eval", "span", "end"]


class Metrics:
    """Appends one JSON object a line to `<folder>/<region>-<rank>.jsonl`; writes nothing where `folder` is None.

    Lines are whole and flushed one by one, so a reader may follow the file while the run goes on; any thread may write.
    """

    def __init__(self, folder: Path | None, region: str, rank: int, *, trace: bool = False) -> None:
        """`trace`: also write spans."""
        self.traces = trace and folder is not None
        self.observers: list[Callable[[str, Mapping[str, Any]], None]] = []
        self._stream = None
        self._writing = threading.Lock()
        self._incarnation = os.getpid()  # a region that was started again appends to the same file
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._stream = open(folder / f"{region}-{rank}.jsonl", "a", encoding="utf-8", buffering=1)  # noqa: SIM115

    def write(self, kind: Kind, **fields: Any) -> None:
        """Append one line; the observers see it too."""
        for observe in self.observers:
            observe(kind, fields)
        if self._stream is not None:
            stamp = {"t": round(time.time(), 4), "incarnation": self._incarnation}
            line = json.dumps({"kind": kind, **fields, **stamp}, separators=(",", ":")) + "\n"
            with self._writing:
                self._stream.write(line)

    @contextmanager
    def span(self, track: str, name: str, **details: Any) -> Generator[None]:
        """Record the time inside the block as a span of `track`, where tracing is on."""
        begun_s = time.perf_counter()
        try:
            yield
        finally:
            self.note_span(track, name, begun_s, time.perf_counter(), **details)

    def note_span(self, track: str, name: str, begun_s: float, ended_s: float, **details: Any) -> None:
        """Record a span from `begun_s` to `ended_s` of `time.perf_counter()`, where tracing is on.

        It is written in Unix time, so that ranks stand beside each other as well as their machines' clocks agree.
        """
        if self.traces:
            begin_s = time.time() - (time.perf_counter() - begun_s)
            self.write("span", track=track, name=name, begin=round(begin_s, 6), seconds=round(ended_s - begun_s, 6), **details)

    def close(self) -> None:
        """Close the file; further lines are an error."""
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class StepClock:
    """Wall time between step boundaries; what happens in `stopped()` belongs to no step.

    The steps of a block are laps of one clock, so their sum is the block's wall time, waits included.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._start = now()
        self._away = 0.0

    def restart(self) -> None:
        """Begin a step here."""
        self._start, self._away = self._now(), 0.0

    def lap(self) -> float:
        """Seconds of the step that ends here; the next begins at the same instant."""
        now = self._now()
        seconds = now - self._start - self._away
        self._start, self._away = now, 0.0
        return seconds

    @contextmanager
    def stopped(self) -> Generator[None]:
        """Leave the time inside this block out of the current step."""
        begun = self._now()
        try:
            yield
        finally:
            self._away += self._now() - begun
