"""What the ranks of a run wrote, put in order: stretches of training between a start (or a discard) and the next."""

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Follower", "History", "Line", "Seen", "Stretch", "parse_lines", "read_history"]

Line = dict[str, Any]


@dataclass(slots=True)
class Stretch:
    """One rank's lines from a start, or from the throwing away of its training, until the next of these.

    Attributes:
        steps: Step number -> the step's line.
        rounds: Lines of committed rounds, in order.
        discarded: The line that ended it, where training was thrown away.
        end: The line of an orderly end.
        restarted: It began with a process, not with a discard.
    """

    steps: dict[int, Line] = field(default_factory=dict[int, Line])
    rounds: list[Line] = field(default_factory=list[Line])
    evaluations: list[Line] = field(default_factory=list[Line])
    discarded: Line | None = None
    end: Line | None = None
    restarted: bool = True

    def tokens(self, after: int = -1, until: int | None = None) -> int:
        """Tokens of the steps in (after, until]."""
        return sum(line["tokens"] for step, line in self.steps.items() if step > after and (until is None or step <= until))

    def given_up(self) -> list[Line]:
        """Lines of the committed rounds that went with the discarded training: of its own branch.

        A region that comes over to another branch may write a line of that one's first, in which it counts nothing.
        """
        rounds = list(self.rounds)
        if self.discarded is None or not self.discarded["rounds"]:
            return []
        while len(rounds) > 1 and rounds[-1]["branch"] != rounds[-2]["branch"] and 0 in rounds[-1]["counted"].values():
            rounds.pop()
        return rounds[len(rounds) - self.discarded["rounds"] :]


@dataclass(slots=True)
class History:
    """All ranks' stretches, by (region, rank)."""

    ranks: dict[tuple[str, int], list[Stretch]]

    def regions(self) -> list[str]:
        """Names, in order of appearance."""
        return list(dict.fromkeys(region for region, _ in self.ranks))

    def of(self, region: str) -> list[list[Stretch]]:
        """A region's stretches; of each, all ranks' parts. Ranks that died before they wrote anything are not there."""
        ranks = [stretches for (name, _), stretches in self.ranks.items() if name == region]
        return [[part[index] for part in ranks if index < len(part)] for index in range(max(map(len, ranks), default=0))]

    def rounds(self) -> list[tuple[str, int, Line]]:
        """(region, rank, line) of every line of a committed round."""
        return [
            (region, rank, line)
            for (region, rank), stretches in self.ranks.items()
            for stretch in stretches
            for line in stretch.rounds
        ]


def parse_lines(lines: list[Line]) -> list[Stretch]:
    """Cut one rank's lines into stretches.

    A round is committed inside the step at whose end it is due, so its line stands before that step's: where it does not say
    its `step` itself, that is the next one.
    """
    stretches: list[Stretch] = []
    for line in lines:
        if line["kind"] == "start" or not stretches:
            stretches.append(Stretch())
        _take(stretches[-1], line)
        if line["kind"] == "discarded":
            stretches.append(Stretch(restarted=False))
    for stretch in stretches:
        for line in stretch.rounds:
            line.setdefault("step", max(stretch.steps, default=0) + 1)
    return stretches


def _take(stretch: Stretch, line: Line) -> None:
    match line["kind"]:
        case "step":
            stretch.steps[line["step"]] = line
            for each in stretch.rounds[::-1]:
                if "step" in each:
                    break
                each["step"] = line["step"]
        case "round":
            stretch.rounds.append(line)
        case "eval":
            stretch.evaluations.append(line)
        case "discarded":
            stretch.discarded = line
        case "end":
            stretch.end = line
        case _:
            pass


def read_history(folder: Path) -> History:
    """Read `<region>-<rank>.jsonl` of a metrics folder; an unfinished last line is left out."""
    ranks: dict[tuple[str, int], list[Stretch]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        region, _, rank = path.stem.rpartition("-")
        lines: list[Line] = []
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:  # a killed rank's last words
                continue
        ranks[region, int(rank)] = parse_lines(lines)
    return History(ranks)


@dataclass(slots=True)
class Seen:
    """How far one rank has got, by its lines so far.

    Attributes:
        step: The last one of this start of its process.
        starts: Of its process.
        rounds: Time and regions of the last committed ones of this start.
        failed_checkpoints: In all.
        ended: In good order.
    """

    step: int = 0
    starts: int = 0
    rounds: deque[tuple[float, frozenset[str]]] = field(default_factory=lambda: deque[tuple[float, frozenset[str]]](maxlen=64))
    failed_checkpoints: int = 0
    ended: bool = False

    def take(self, line: Line) -> None:
        """One more."""
        match line["kind"]:
            case "start":
                self.step, self.starts = 0, self.starts + 1
                self.rounds.clear()
            case "step":
                self.step = line["step"]
            case "round":
                self.rounds.append((line["t"], frozenset(line["counted"])))
            case "checkpoint":
                self.failed_checkpoints += line["failure"] is not None
            case "end":
                self.ended = True
            case _:
                pass


class Follower:
    """Reads a metrics folder's files on, as they grow; `seen` by (region, rank)."""

    def __init__(self, folder: Path) -> None:
        self.seen: dict[tuple[str, int], Seen] = {}
        self._folder = folder
        self._streams: dict[Path, Any] = {}
        self._left: dict[Path, bytes] = {}

    def read(self) -> dict[tuple[str, int], Seen]:
        """`seen`, up to date."""
        for path in self._folder.glob("*.jsonl"):
            stream = self._streams.get(path)
            if stream is None:
                stream = self._streams[path] = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with the follower
            *whole, self._left[path] = (self._left.get(path, b"") + stream.read()).split(b"\n")
            region, _, rank = path.stem.rpartition("-")
            seen = self.seen.setdefault((region, int(rank)), Seen())
            for text in whole:
                try:
                    seen.take(json.loads(text))
                except json.JSONDecodeError:  # a killed rank's last words
                    continue
        return self.seen

    def close(self) -> None:
        """Let the files go."""
        for stream in self._streams.values():
            stream.close()
