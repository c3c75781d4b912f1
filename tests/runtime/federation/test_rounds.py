"""Rounds of real processes on loopback that are killed, stopped, started again and lied to; and their coordinator too."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_store import Etcd, free_ports, needs_etcd  # pyright: ignore[reportMissingImports]

pytestmark = [pytest.mark.tunnel, pytest.mark.timeout(180)]
DETECT_S = 2.0
MEMBER = Path(__file__).with_name("member.py")


class Federation:
    """Regions of one rank (member.py), and a coordinator, each a process."""

    def __init__(self, fork: Any, folder: Path, names: str, store: str | None = None, **order: Any) -> None:
        self.fork, self.folder, self.names = fork, folder, tuple(names)
        ports = free_ports(len(names) + 1)
        rails = [{"name": name, "rails": [f"127.0.0.1:{port}"]} for name, port in zip(names, ports[1:], strict=True)]
        (folder / "members.json").write_text(json.dumps({"regions": rails}))
        self.listen, self.coordinator = f"127.0.0.1:{ports[0]}", None
        if store is None:
            self.start_coordinator()
        self.order = {
            "members": str(folder / "members.json"),
            "elements": 2000,
            "store": store if store is not None else f"tcp://{self.listen}",
            "survival": {"detect_s": DETECT_S, "start_s": 60.0},
            "rounds": 100,
            "step_s": 0.02,
            **order,
        }
        self.processes = {name: self.start(name) for name in names}

    def start_coordinator(self) -> None:
        command = [sys.executable, "-m", "isthmus", "coordinator", "--listen", self.listen]
        self.coordinator = subprocess.Popen([*command, "--journal", str(self.folder / "journal")], stderr=subprocess.DEVNULL)

    def start(self, name: str, **order: Any) -> Any:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({**self.order, "region": name, "log": str(self.folder / f"{name}.jsonl"), **order}))
        return self.fork([MEMBER, path], self.folder / f"{name}.log")

    def restart(self, name: str, **order: Any) -> None:
        self.processes[name].kill()
        self.processes[name].wait()
        self.processes[name] = self.start(name, **order)

    def rows(self, name: str, kind: str = "round") -> list[dict[str, Any]]:
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [row for row in map(json.loads, lines) if row["kind"] == kind]

    def wait(self, name: str, wanted: Any, timeout_s: float = 60.0) -> dict[str, Any]:
        """The first row of a round for which `wanted` holds."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for row in self.rows(name):
                if wanted(row):
                    return row
            assert self.processes[name].poll() in (None, 0), self.output()
            time.sleep(0.01)
        raise AssertionError(f"{name} did not come there\n{self.output()}")

    def finish(self, *names: str) -> None:
        """Wait until they have done all rounds, and hold one against the other."""
        names = names or self.names
        for name in names:
            assert self.processes[name].wait(120) == 0, self.output()
        assert len({self.rows(name, "end")[-1]["hash"] for name in names}) == 1, self.output()
        assert len({self.rows(name, "end")[-1]["total"] for name in names}) == 1, self.output()

    def count_once(self, name: str) -> None:
        """Every round was committed once, and its tokens are in the total once."""
        rows = [row for row in self.rows(name) if not row["rejoined"]]
        rounds = [row["round"] for row in rows]
        assert rounds == list(range(self.order["rounds"]))
        assert sum(sum(row["tokens"].values()) for row in rows) == rows[-1]["total"]

    def output(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        for process in [*self.processes.values(), *([self.coordinator] if self.coordinator else [])]:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def federate(tmp_path: Path, fork: Any) -> Iterator[Any]:
    made: list[Federation] = []

    def make(names: str, store: str | None = None, **order: Any) -> Federation:
        made.append(Federation(fork, tmp_path, names, store, **order))
        return made[-1]

    yield make
    for federation in made:
        federation.close()


@pytest.mark.parametrize("where", ["inside", "voting"])
def test_a_region_killed_inside_a_round_costs_the_survivors_nothing_and_comes_back(federate: Any, where: str) -> None:
    run = federate("ab")
    run.restart("b", fault=[where, 30], signal="SIGKILL")
    run.processes["b"].wait(60)
    first = run.wait("a", lambda row: row["regions"] == ["a"])
    killed_s = run.rows("b", "fault")[0]["at_s"]
    run.restart("b")
    run.order["rounds"] = 100
    assert first["round"] == 30
    assert first["at_s"] - killed_s < 1.5, "time from the kill to the survivor's next committed round"
    run.finish("a")
    run.count_once("a")


def test_a_restarted_region_fetches_the_state_once_and_trains_on_with_the_others(federate: Any) -> None:
    run = federate("abc", rounds=400, elements=100_000)
    run.wait("a", lambda row: row["round"] >= 20)
    run.processes["c"].send_signal(signal.SIGKILL)
    run.wait("a", lambda row: row["regions"] == ["a", "b"])
    run.restart("c")
    run.finish()
    for name in "ab":
        run.count_once(name)
    adopted = run.rows("c", "adopted")[-1]
    assert adopted["why"] == "restart"
    assert 400_000 <= adopted["bytes"] <= 1.05 * 400_000


def test_a_stopped_region_is_left_after_the_silence_and_joins_again_when_it_goes_on(federate: Any) -> None:
    run = federate("abc", rounds=150, step_s=0.05)
    run.wait("a", lambda row: row["round"] >= 20)
    stopped_s = time.time()
    run.processes["c"].send_signal(signal.SIGSTOP)
    first = run.wait("a", lambda row: row["regions"] == ["a", "b"])
    assert first["at_s"] - stopped_s < DETECT_S + 1.5
    run.processes["c"].send_signal(signal.SIGCONT)
    run.finish()
    run.count_once("a")
    assert run.rows("c", "adopted")[-1]["why"] == "excluded"


# `unseen`: all agree on the sum, but one region added up what was not sent.
@pytest.mark.parametrize("fault", ["flip", "unseen"])
def test_a_wrong_result_is_never_committed_and_the_round_is_repeated_by_all(federate: Any, fault: str) -> None:
    run = federate("abc", rounds=30)
    run.restart("b", **{fault: {"10": 2}})
    run.finish()
    for name in "abc":
        run.count_once(name)
    assert {row["attempts"] for row in run.rows("a") if row["round"] == 10} == {3}


def test_a_region_whose_results_are_always_wrong_is_named_and_the_others_go_on(federate: Any) -> None:
    run = federate("abc", rounds=30)
    run.restart("b", flip={"10": 99})
    run.finish("a", "c")
    assert "b is the odd one" in run.rows("b", "error")[0]["error"]
    # And when it comes again, they have ended without it.
    begun_s = time.monotonic()
    run.restart("b")
    assert run.processes["b"].wait(30) == 1
    assert time.monotonic() - begun_s < 20.0, "start_s is 60"
    assert "the run there is over: a, c ended it after round 29" in run.rows("b", "error")[-1]["error"]


def test_while_the_coordinator_is_gone_rounds_go_on_and_after_its_return_regions_regroup(federate: Any) -> None:
    run = federate("ab", rounds=250)
    run.wait("a", lambda row: row["round"] >= 20)
    run.coordinator.send_signal(signal.SIGKILL)
    run.coordinator.wait()
    before = run.rows("a")[-1]["round"]
    run.wait("a", lambda row: row["round"] >= before + 50)
    run.processes["b"].send_signal(signal.SIGKILL)
    run.processes["b"].wait()
    time.sleep(1.0)
    stalled = run.rows("a")[-1]
    assert stalled["regions"] == ["a", "b"], "without a store nobody regroups"
    run.start_coordinator()
    run.wait("a", lambda row: row["regions"] == ["a"])
    run.restart("b")
    run.finish()
    run.count_once("a")


def test_a_region_that_comes_late_is_left_after_the_grace_and_let_in_again(federate: Any) -> None:
    survival = {"detect_s": DETECT_S, "start_s": 60.0, "grace_s": 0.5}
    run = federate("abc", rounds=120, survival=survival, step_s=0.05)
    run.wait("a", lambda row: row["round"] >= 10)
    run.restart("c", step_s=1.5)
    run.wait("c", lambda row: row["rejoined"] == "late", 90)
    run.finish("a", "b")
    run.count_once("a")


def test_without_a_coordinator_a_lost_region_ends_the_run_and_says_so(federate: Any) -> None:
    run = federate("ab", store="")
    run.wait("a", lambda row: row["round"] >= 10)
    run.processes["b"].send_signal(signal.SIGKILL)
    assert run.processes["a"].wait(30) == 1
    assert run.rows("a", "error")[0]["error"].startswith("PeerLostError")


def test_a_region_started_otherwise_than_the_others_is_refused(federate: Any) -> None:
    run = federate("ab", rounds=200)
    run.wait("a", lambda row: row["round"] >= 5)
    run.restart("b", elements=7)
    assert run.processes["b"].wait(60) == 1
    assert "region b was started with 7, the others with 2000" in run.rows("b", "error")[0]["error"]


@needs_etcd
def test_regions_survive_the_loss_of_an_etcd_member_and_of_a_region_after_it(federate: Any, tmp_path: Path) -> None:
    cluster = Etcd(tmp_path, 3)
    try:
        run = federate("ab", cluster.address, rounds=200)
        run.wait("a", lambda row: row["round"] >= 20)
        os.kill(cluster.processes[0].pid, signal.SIGKILL)
        run.processes["b"].send_signal(signal.SIGKILL)
        run.wait("a", lambda row: row["regions"] == ["a"])
        run.restart("b")
        run.finish("a")
        run.count_once("a")
    finally:
        cluster.close()
