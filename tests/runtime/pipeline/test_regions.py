"""Pipelines by the front door, with real ranks: regions of two ranks on loopback, against one process."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isthmus.plan import Strategy
from isthmus.runtime.loopback import start

ONE = Strategy(name="pipeline", kind="pipeline", micro_batches=4)
WAYS = {"1f1b": ONE, "interleaved": ONE.model_copy(update={"schedule": "interleaved", "virtual_stages": 2})}
SIDES = {"east": 2, "west": 2}


def samples() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As nursery.py's dataset and seed 3 give them."""
    generator = torch.Generator().manual_seed(5)
    inputs, targets = torch.randn(240, 16, generator=generator), torch.randn(240, 4, generator=generator)
    return inputs, targets, torch.randperm(240, generator=torch.Generator().manual_seed(3 * 1_000_003))


def alone(steps: int, samples_a_step: int, clip: float | None = None) -> torch.Tensor:
    """Plain training in this process with the batches of all ranks of a region together."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Dropout(0.0), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + 0.1 * step))
    inputs, targets, sequence = samples()
    for step in range(steps):
        picked = sequence[step * samples_a_step : (step + 1) * samples_a_step]
        nn.functional.mse_loss(model(inputs[picked]), targets[picked]).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def whole(parameters: list[torch.Tensor], way: str, ranks: int) -> torch.Tensor:
    """The model's parameters in its own order, from the first rank of each region."""
    stages = parameters[::ranks]
    if way == "1f1b":
        return torch.cat(stages)
    # Chunks 0 and 2 are east's, 1 and 3 west's, cut by their matrices' sizes: linear 192 | 144 | 48 weights.
    sizes = [16 * 12 + 12, 12 * 12 + 12, 12 * 4 + 4]
    return torch.cat([stages[0][: sizes[0]], stages[1][: sizes[1]], stages[0][sizes[0] :], stages[1][sizes[1] :]])


@pytest.mark.tunnel
@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("way", WAYS)
def test_two_regions_of_two_train_as_one_process_with_the_whole_batch(way: str, clip: float | None, nursery: Any) -> None:
    options = {} if clip is None else {"clip": clip}
    outcome = nursery.run(WAYS[way], regions=SIDES, model="layers", batch=8, steps=7, **options).succeeded()
    torch.testing.assert_close(whole(outcome.parameters, way, 2), alone(7, 16, clip), rtol=1e-5, atol=1e-6)
    assert torch.equal(outcome.parameters[0], outcome.parameters[1]), "ranks of a region hold the same stages"
    assert torch.equal(outcome.parameters[2], outcome.parameters[3])
    losses = [[row["loss"] for row in rows if row["kind"] == "step"] for rows in outcome.metrics]
    assert losses[0] == losses[2], "rank i of every region knows the same loss"
    # A sample is trained on once, however many stages it passes: tokens of all ranks add up to those of the batch.
    tokens = [sum(row["tokens"] for row in rows if row["kind"] == "step") for rows in outcome.metrics]
    assert sum(tokens) == 7 * 16 * 4


@pytest.mark.tunnel
@pytest.mark.parametrize("way", WAYS)
def test_off_blocks_run_the_schedule_without_the_other_regions_and_leave_no_trace(way: str, nursery: Any) -> None:
    common = {"regions": {"east": 1, "west": 1}, "model": "layers", "batch": 8, "optimizer": "adamw"}
    measured = nursery.run(WAYS[way], blocks="warmup=2,on=4,off=3,repeats=2", steps=0, **common).succeeded()
    plain = nursery.run(WAYS[way], steps=10, **common).succeeded()
    assert all(torch.equal(one, other) for one, other in zip(measured.parameters, plain.parameters, strict=True))
    for rows in measured.metrics:
        off = [row for row in rows if row["kind"] == "step" and row["mode"] == "off"]
        for block in (off[:3], off[3:]):  # signs of life of idle streams, but not one message of a step's many
            assert block[-1]["wan_bytes"] - block[0]["wan_bytes"] < 300


@pytest.mark.tunnel
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_region_is_named_by_all_others_with_where_to_go_on_and_nobody_hangs(
    lost: int, nursery: Any, tmp_path: Path
) -> None:
    regions = {"east": 1, "north": 1, "west": 1}
    kept = {"checkpoints": str(tmp_path), "checkpoint_at": 3}
    outcome = nursery.run(ONE, regions=regions, model="layers", batch=8, steps=400, die=[lost, 5], timeout_s=60, **kept)
    name = list(regions)[lost]
    for number, (code, log) in enumerate(zip(outcome.codes, outcome.logs, strict=True)):
        assert code == (-9 if number == lost else 1), log
        assert number == lost or f"PeerLostError: a pipeline cannot go on without region {name}" in log, log
        assert number == lost or f"newest checkpoint: step 3 in {tmp_path}. Start all regions again to go on." in log, log
    assert outcome.seconds < 30


@pytest.mark.tunnel
def test_a_rank_lost_inside_a_region_ends_the_run_with_a_named_error(nursery: Any) -> None:
    outcome = nursery.run(ONE, regions=SIDES, model="layers", batch=8, steps=400, die=[3, 5], timeout_s=60)
    assert outcome.codes == [1, 1, 1, -9], "\n".join(outcome.logs)
    assert all("PeerLostError" in log for log in outcome.logs[:3]), "\n".join(outcome.logs)


@pytest.mark.tunnel
@pytest.mark.parametrize(
    ("model", "said"),
    [("own", "model: Crossed is not a sequence of blocks"), ("running", "running_mean' of a BatchNorm1d changes in training")],
)
def test_models_that_cannot_be_piped_are_refused_by_name(model: str, said: str, nursery: Any) -> None:
    options = {} if model == "own" else {"model": model}
    outcome = nursery.run(ONE, regions={"east": 1, "west": 1}, batch=8, **options)
    assert outcome.codes == [1, 1]
    assert all(f"InputError: {said}" in log or said in log for log in outcome.logs), "\n".join(outcome.logs)


@pytest.mark.tunnel
def test_the_training_script_runs_in_a_pipeline_as_it_does_alone(tmp_path: Path) -> None:
    """The reference script, unchanged, over two regions: same losses as in one region alone with the same batches."""
    command = [sys.executable, "-m", "isthmus.runtime.demo.train", "--preset", "mini", "--steps", "6", "--batch", "8"]
    command += ["--eval-every", "3", "--eval-windows", "16"]
    runs = {name: start(command, dict.fromkeys(names, 1), ONE, tmp_path / name)
            for name, names in {"apart": ("east", "west"), "alone": ("east",)}.items()}
    for run in runs.values():
        assert set(run.wait(120).values()) == {0}, run.output()
    apart, alone = runs["apart"].lines("west", 0, "eval"), runs["alone"].lines("east", 0, "eval")
    assert [row["tokens"] for row in apart] == [row["tokens"] for row in alone] == [3 * 8 * 64, 6 * 8 * 64]
    assert [row["loss"] for row in apart] == pytest.approx([row["loss"] for row in alone], rel=1e-5)
    assert runs["apart"].lines("east", 0, "start")[0]["params"] == runs["alone"].lines("east", 0, "start")[0]["params"]
