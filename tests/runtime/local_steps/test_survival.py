"""Local steps between real processes with a coordinator: a region is killed and comes back; a region is ten times slower."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.runtime.loopback import free_ports

pytestmark = [pytest.mark.tunnel, pytest.mark.timeout(240)]
REGION = Path(__file__).with_name("region.py")


class Run:
    """Regions a, b, ... of one rank each, and their coordinator."""

    def __init__(self, fork: Any, folder: Path, names: str, **order: Any) -> None:
        self.fork, self.folder, self.names = fork, folder, names
        ports = free_ports(len(names) + 1)
        rails = [{"name": name, "rails": [f"127.0.0.1:{port}"]} for name, port in zip(names, ports[1:], strict=True)]
        (folder / "members.json").write_text(json.dumps({"regions": rails}))
        listen = f"127.0.0.1:{ports[0]}"
        coordinator = [sys.executable, "-m", "isthmus", "coordinator", "--listen", listen]
        self.processes: dict[str, Any] = {"coordinator": subprocess.Popen(coordinator)}
        self.order = {"members": str(folder / "members.json"), "store": f"tcp://{listen}", "grace_s": None, **order}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        own = {**self.order, **self.order.get(name, {}), "region": name, "log": str(self.folder / f"{name}.jsonl")}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(own))
        self.processes[name] = self.fork([REGION, path], self.folder / f"{name}.log")

    def rows(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, name: str, wanted: Any) -> None:
        deadline_s = time.monotonic() + 90
        while not any("steps" in row and wanted(row) for row in self.rows(name)):
            assert time.monotonic() < deadline_s, self.output()
            assert self.processes[name].poll() in (None, 0), self.output()
            time.sleep(0.02)

    def ends(self) -> dict[str, dict[str, Any]]:
        for name in self.names:
            assert self.processes[name].wait(120) == 0, self.output()
        ends = {name: self.rows(name)[-1] for name in self.names}
        assert len({end["hash"] for end in ends.values()}) == 1, ends
        return ends

    def output(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def run(tmp_path: Path, fork: Any) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def make(names: str, **order: Any) -> Run:
            made = Run(fork, tmp_path, names, **order)
            stack.callback(made.close)
            return made

        yield make


STREAMED = {"inner_steps": 8, "fragments": 2, "delay_steps": 3, "codec": "int4"}


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_a_killed_region_comes_back_with_the_outer_state_and_survivors_lose_no_step(run: Any, names: str) -> None:
    sizes, last = [20_000, 12_000, 500], names[-1]
    order = {"sizes": sizes, "steps": 400, "step_s": 0.02, "survival": {"detect_s": 2.0, "start_s": 60.0}}
    made = run(names, strategy=STREAMED, **order)
    made.wait("a", lambda row: row["steps"] >= 60)
    made.processes[last].send_signal(signal.SIGKILL)
    made.processes[last].wait()
    made.wait("a", lambda row: last not in row["regions"])
    made.start(last)
    ends = made.ends()
    for name in names[:-1]:
        assert ends[name]["own"] == 400
        assert (ends[name]["counted"], ends[name]["discarded"]) == (4000, 0)
    back = ends[last]
    assert back["counted"] + back["discarded"] == 10 * back["own"]
    assert 8 * sum(sizes) <= back["fetched"] <= 1.05 * 8 * sum(sizes)


def test_a_region_ten_times_slower_than_the_grace_is_not_waited_for_and_loses_nothing(run: Any) -> None:
    # b's step takes three times half the grace: it comes to most rounds with empty hands, and a is not held up by it.
    made = run(
        "ab",
        strategy={**STREAMED, "weight": "tokens"},
        sizes=[2000, 300],
        steps=10**6,
        step_s=0.03,
        own_steps=300,
        grace_s=0.4,
        survival={"detect_s": 3.0, "start_s": 60.0, "grace_s": 2.0},
        b={"own_steps": 12, "step_s": 0.6},
    )
    ends = made.ends()
    assert (ends["a"]["counted"], ends["b"]["counted"]) == (3000, 120)
    assert ends["a"]["discarded"] == ends["b"]["discarded"] == 0
    assert ends["b"]["late"] > 0
