"""Stopping anywhere and going on is bit for bit the run that never stopped; real ranks over loopback."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.plan import Outer, Strategy
from isthmus.runtime.loopback import LoopbackRun, prepare

pytestmark = pytest.mark.tunnel
Training = Callable[..., dict[str, str]]

NESTEROV = Outer(lr=0.8, momentum=0.4, nesterov=True)
STRATEGIES = {
    "every step, int4": Strategy(name="int4", kind="hierarchical", codec="int4", bucket_bytes=1 << 17),
    "local steps": Strategy(
        name="local", kind="local-steps", codec="int4", inner_steps=9, fragments=3, delay_steps=2, warmup_steps=4, outer=NESTEROV
    ),
}
REGIONS = {"east": 2, "west": 1}
STEPS, EVERY = 34, 17


@pytest.fixture
def train(fork: Any) -> Training:
    """Trains; final hashes by region and rank. With `stop_at`, all ranks are killed once that checkpoint is whole everywhere."""

    def run(folder: Path, strategy: Strategy, regions: dict[str, int], *, stop_at: int = 0) -> dict[str, str]:
        argv = [
            "-m", "isthmus.runtime.demo.train", "--preset", "micro", "--steps", str(STEPS), "--batch", "2", "--seed", "3",
            "--checkpoints", str(folder / "checkpoints"), "--checkpoint-every", str(EVERY),
        ]  # fmt: skip
        ranks = {
            key: fork(argv, folder / f"{key[0]}-{key[1]}.log", {**os.environ, **environment})
            for key, environment in prepare(regions, strategy, folder).items()
        }
        run = LoopbackRun(folder, ranks)
        if stop_at:
            wanted = [folder / "checkpoints" / f"step-{stop_at:08d}" / region for region in regions]
            deadline_s = time.monotonic() + 100
            while not all(path.exists() for path in wanted):
                assert time.monotonic() < deadline_s, run.output()
                time.sleep(0.02)
            run.kill()
            return {}
        assert set(run.wait(110).values()) == {0}, run.output()
        return {f"{region}-{rank}": run.lines(region, rank, "end")[-1]["hash"] for region, rank in ranks}

    return run


@pytest.mark.parametrize("way", STRATEGIES)
def test_a_run_that_was_killed_goes_on_bit_for_bit(way: str, train: Training, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", STRATEGIES[way], REGIONS)
    assert len(set(whole.values())) == 1
    train(tmp_path / "parts", STRATEGIES[way], REGIONS, stop_at=EVERY)
    for path in (tmp_path / "parts" / "checkpoints").glob(f"step-{STEPS:08d}"):
        shutil.rmtree(path)  # a rank may have come so far before it was killed
    assert train(tmp_path / "parts", STRATEGIES[way], REGIONS) == whole
    steps = [json.loads(line) for line in (tmp_path / "parts" / "metrics" / "east-0.jsonl").read_text().splitlines()]
    again = [row["step"] for row in steps if row["kind"] == "step"]
    assert again[-1] == STEPS
    assert EVERY + 1 in again


def test_a_region_without_a_checkpoint_goes_on_from_anothers_outer_parameters(train: Training, tmp_path: Path) -> None:
    """Two regions stop, three go on: the new one says whose state it took, and all end equal."""
    train(tmp_path, STRATEGIES["local steps"], {"east": 1, "west": 1}, stop_at=EVERY)
    for path in (tmp_path / "checkpoints").glob(f"step-{STEPS:08d}"):
        shutil.rmtree(path)
    hashes = train(tmp_path, STRATEGIES["local steps"], {"east": 1, "west": 1, "north": 1})
    assert len(set(hashes.values())) == 1
    assert f"isthmus north: going on from step {EVERY} of region" in (tmp_path / "north-0.log").read_text()
