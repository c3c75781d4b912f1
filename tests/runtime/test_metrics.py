"""Metrics lines and the step clock."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.runtime.metrics import Metrics, StepClock


class Scripted:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_laps_add_up_to_the_running_time_whatever_was_stopped(events: list[tuple[int, bool, bool]]) -> None:
    scripted = Scripted()
    clock = StepClock(scripted)
    laps: list[float] = []
    running = 0.0
    for seconds, stopped, boundary in events:
        if stopped:
            with clock.stopped():
                scripted.now_s += seconds
        else:
            scripted.now_s += seconds
            running += seconds
        if boundary:
            laps.append(clock.lap())
    assert sum([*laps, clock.lap()]) == running


def test_time_stopped_by_an_error_is_left_out_too() -> None:
    scripted = Scripted()
    clock = StepClock(scripted)

    def fail() -> None:
        with clock.stopped():
            scripted.now_s += 5
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    scripted.now_s += 2
    assert clock.lap() == 2


def test_lines_are_readable_while_the_run_goes_on(tmp_path: Path) -> None:
    with Metrics(tmp_path / "new", "shenzhen", 3) as metrics:
        for step in range(3):
            metrics.write("step", step=step, loss=0.5)
            lines = (tmp_path / "new" / "shenzhen-3.jsonl").read_text().splitlines()
            assert [json.loads(line)["step"] for line in lines] == list(range(step + 1))
    assert lines[0].startswith('{"kind":"step","step":0,"loss":0.5,"t":')
    assert {json.loads(line)["incarnation"] for line in lines} == {os.getpid()}


def test_laps_of_a_real_clock_never_go_back() -> None:
    clock = StepClock()
    laps = [clock.lap() for _ in range(100)]
    assert all(lap >= 0 for lap, _ in pairwise(laps))


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Metrics(None, "here", 0) as metrics:
        metrics.write("step", step=1)
    assert list(tmp_path.iterdir()) == []
