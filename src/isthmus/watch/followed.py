"""Follow a run through the metrics its ranks write: what each region does now."""

import json
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

from isthmus.report.run_table import RegionRow

__all__ = ["RankFollower", "RegionFollower"]

WINDOW_STEPS = 20


class RankFollower:
    """Reads one rank's metrics file as it grows; keeps the last steps only."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.steps: deque[dict[str, Any]] = deque(maxlen=WINDOW_STEPS)
        self.syncs = 0
        self.last_hash = ""
        self.ended = False

    def read(self) -> None:
        """Take in the lines written since the last call; an unfinished last line waits."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as stream:
            stream.seek(self._offset)
            text = stream.read()
        whole = text.rfind(b"\n") + 1
        self._offset += whole
        for line in text[:whole].splitlines():
            self._take(json.loads(line))

    def _take(self, row: dict[str, Any]) -> None:
        match row["kind"]:
            case "start":
                self.ended = False
            case "step":
                self.steps.append(row)
            case "sync":
                self.syncs, self.last_hash = self.syncs + 1, row["hash"]
            case "end":
                self.ended, self.last_hash = True, row["hash"]
            case _:
                pass


class RegionFollower:
    """All ranks of one region."""

    def __init__(self, metrics: Path, region: str, ranks: int) -> None:
        self.region = region
        self.ranks = [RankFollower(metrics / f"{region}-{rank}.jsonl") for rank in range(ranks)]

    def row(self, *, alive: int, restarts: int, failed: bool) -> RegionRow:
        """What to show now."""
        for rank in self.ranks:
            rank.read()
        first, steps = self.ranks[0], list(self.ranks[0].steps)
        state = "failed" if failed else "ended" if first.ended else "training" if steps else "starting"
        base: dict[str, Any] = {
            "name": self.region, "state": state, "ranks_alive": alive, "ranks": len(self.ranks), "restarts": restarts,
            "syncs": first.syncs, "last_hash": first.last_hash,
        }  # fmt: skip
        if not steps:
            return RegionRow(**base)
        seconds = sum(step["seconds"] for step in steps) or 1e-9
        tokens = sum(step["tokens"] for rank in self.ranks for step in rank.steps)
        sent = sum(rank.steps[-1]["wan_bytes"] - rank.steps[0]["wan_bytes"] for rank in self.ranks if rank.steps)
        return RegionRow(
            **base,
            step=steps[-1]["step"],
            loss=steps[-1]["loss"],
            step_s=median(step["seconds"] for step in steps),
            tokens_per_s=tokens / seconds,
            waiting_share=min(1.0, sum(step["exposed_s"] for step in steps) / seconds),
            wan_bytes_per_s=max(0, sent) / seconds,
        )
