"""Real ranks for the tests marked `tunnel`: regions of forked processes on loopback."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.plan import Strategy
from isthmus.runtime.loopback import lone_plan, prepare


@dataclass
class Outcome:
    """How a run of several ranks ended.

    Attributes:
        codes: Exit code of each rank, regions laid end to end; -19 for one that stopped itself, 999 for one that hung.
        seconds: From the first fork to the last end.
        logs: What each rank wrote.
        parameters: The flat final parameters of each rank that saved them.
        metrics: Metrics lines of each rank.
    """

    codes: list[int]
    seconds: float
    logs: list[str]
    parameters: list[torch.Tensor]
    metrics: list[list[dict[str, Any]]]

    def hashes(self) -> set[str]:
        return {row["hash"] for rows in self.metrics for row in rows if row["kind"] == "end"}

    def said(self) -> list[dict[str, Any]]:
        """The JSON objects that ranks wrote, a line each."""
        return [json.loads(line) for log in self.logs for line in log.splitlines() if line.startswith("{")]

    def succeeded(self) -> "Outcome":
        assert set(self.codes) == {0}, "\n".join(self.logs)
        return self


class Nursery:
    """Runs scenarios of nursery.py on `regions`."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process, self._folder, self._runs = process, folder, 0

    def run(
        self,
        strategy: Strategy,
        *,
        scenario: str = "train",
        regions: dict[str, int] | None = None,
        blocks: str = "",
        zero: int = 0,
        timeout_s: float = 90.0,
        variables: dict[str, dict[str, str]] | None = None,
        **options: Any,
    ) -> Outcome:
        self._runs += 1
        folder = self._folder / str(self._runs)
        plan = lone_plan(strategy)
        plan = plan.model_copy(update={"layout": plan.layout.model_copy(update={"zero": zero})})
        environments = prepare(regions or {"east": 2, "west": 2}, plan, folder)
        ranks = [
            {
                "environment": {**environment, "ISTHMUS_BLOCKS": blocks, **(variables or {}).get(region, {})},
                "log": str(folder / f"{region}-{rank}.log"),
            }
            for (region, rank), environment in environments.items()
        ]
        order = {
            "scenario": scenario,
            "ranks": ranks,
            "options": {"steps": 10, "batch": 6, **options},
            "timeout_s": timeout_s,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        logs = [Path(rank["log"]) for rank in ranks]
        saved = [log.with_suffix(".pt") for log in logs]
        lines = [folder / "metrics" / f"{log.stem}.jsonl" for log in logs]
        return Outcome(
            answer["codes"],
            answer["seconds"],
            [f"--- {log.stem}\n{log.read_text()}" for log in logs],
            [torch.load(path, weights_only=True) for path in saved if path.exists()],
            [[json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [] for path in lines],
        )


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error::FutureWarning", str(Path(__file__).with_name("nursery.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Nursery(process, tmp_path_factory.mktemp("nursery"))
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


@pytest.fixture(scope="session")
def fork() -> Iterator[Callable[..., Any]]:
    """`fork(argv, log, environment=None)`: python with these arguments, as a fork of a process that has torch loaded already.

    What it returns is like a `subprocess.Popen`.
    """
    benchmarks = str(Path(__file__).parents[2] / "benchmarks")
    if benchmarks not in sys.path:
        sys.path.insert(0, benchmarks)
    from chaos.nursery import Nursery as Cradle
    from chaos.nursery import Order

    cradle = Cradle()
    yield lambda argv, log, environment=None: cradle.start(
        Order(argv=tuple(map(str, argv)), log=str(log), environment=environment or dict(os.environ))
    )
    cradle.close()
