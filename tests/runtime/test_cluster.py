"""The front door, with real ranks: two regions of two on loopback, against single-process training and against itself."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isthmus.errors import InputError
from isthmus.plan import RegionGroup, Strategy, save_plan
from isthmus.runtime.cluster import join
from isthmus.runtime.loopback import lone_plan

WAYS = {
    "flat": Strategy(name="flat", kind="flat", bucket_bytes=2048),
    "fp32": Strategy(name="hierarchical", kind="hierarchical", bucket_bytes=2048),
    "bf16": Strategy(name="bf16", kind="hierarchical", codec="bf16", bucket_bytes=2048),
    "int8": Strategy(name="int8", kind="hierarchical", codec="int8", bucket_bytes=2048),
    "int4": Strategy(name="int4", kind="hierarchical", codec="int4", bucket_bytes=2048),
    "int4 without feedback": Strategy(name="int4", kind="hierarchical", codec="int4", error_feedback=False, bucket_bytes=2048),
    "local": Strategy(name="local", kind="local-steps", inner_steps=3),
    "groups": Strategy(name="groups", kind="hierarchical", region_group=RegionGroup(backend="gloo")),
    "local int8": Strategy(name="local", kind="local-steps", inner_steps=3, codec="int8"),
    "delayed int4": Strategy(name="local", kind="local-steps", inner_steps=3, delay_steps=2, codec="int4"),
}
BLOCKS = "warmup=3,on=6,off=4,repeats=2"
TRAINED = 3 + 2 * 6


class Crossed(nn.Module):
    """As in nursery.py, seeded as rank 0's."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(24, 4)
        self.first = nn.Linear(16, 33)
        self.second = nn.Linear(33, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


def samples() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, targets and the order they are read in, as nursery.py's dataset and seed 3 give them."""
    generator = torch.Generator().manual_seed(5)
    inputs, targets = torch.randn(240, 16, generator=generator), torch.randn(240, 4, generator=generator)
    return inputs, targets, torch.randperm(240, generator=torch.Generator().manual_seed(3 * 1_000_003))


class Alone:
    """Training in this process with plain torch: the other witness."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Crossed()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.5)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0 / (1.0 + 0.1 * step))

    def step(self, indices: torch.Tensor) -> None:
        inputs, targets, _ = samples()
        nn.functional.mse_loss(self.model(inputs[indices]), targets[indices]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

    def flat(self) -> torch.Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()])


@pytest.mark.tunnel
@pytest.mark.parametrize("way", WAYS)
def test_all_members_end_bit_identical_and_off_blocks_leave_no_trace(way: str, nursery: Any) -> None:
    measured = nursery.run(WAYS[way], blocks=BLOCKS, optimizer="adamw", steps=0).succeeded()
    assert len(measured.hashes()) == 1
    assert all(torch.equal(found, measured.parameters[0]) for found in measured.parameters)
    steps = [row for row in measured.metrics[0] if row["kind"] == "step"]
    assert [row["mode"] for row in steps] == ["warmup"] * 3 + (["on"] * 6 + ["off"] * 4) * 2
    if way != "delayed int4":  # its rounds are flushed at the end of each block, which plain training does not do
        plain = nursery.run(WAYS[way], optimizer="adamw", steps=TRAINED).succeeded()
        assert plain.hashes() == measured.hashes()


@pytest.mark.tunnel
@pytest.mark.parametrize("way", ["flat", "fp32", "groups"])
def test_every_step_fp32_equals_one_process_with_the_whole_batch(way: str, nursery: Any) -> None:
    alone, order = Alone(), samples()[2]
    for step in range(9):
        alone.step(order[step * 24 : (step + 1) * 24])
    for found in nursery.run(WAYS[way], steps=9).succeeded().parameters:
        torch.testing.assert_close(found, alone.flat(), rtol=1e-5, atol=1e-6)


@pytest.mark.tunnel
def test_three_regions_of_one_rank_equal_one_process_too(nursery: Any) -> None:
    alone, order = Alone(), samples()[2]
    for step in range(6):
        alone.step(order[step * 18 : (step + 1) * 18])
    regions = {"east": 1, "north": 1, "west": 1}
    for found in nursery.run(WAYS["fp32"], regions=regions, steps=6).succeeded().parameters:
        torch.testing.assert_close(found, alone.flat(), rtol=1e-5, atol=1e-6)


@pytest.mark.tunnel
def test_one_inner_step_is_parameter_averaging_over_regions(nursery: Any) -> None:
    replicas, order = [Alone(), Alone()], samples()[2]
    for step in range(8):
        for region, replica in enumerate(replicas):
            start = step * 24 + region * 12
            replica.step(order[start : start + 12])
        with torch.no_grad():
            for pair in zip(*(replica.model.parameters() for replica in replicas), strict=True):
                mean = (pair[0] + pair[1]) / 2
                pair[0].copy_(mean)
                pair[1].copy_(mean)
    every = Strategy(name="averaging", kind="local-steps", inner_steps=1)
    for found in nursery.run(every, steps=8).succeeded().parameters:
        torch.testing.assert_close(found, replicas[0].flat(), rtol=1e-5, atol=1e-6)


@pytest.mark.tunnel
def test_no_sync_accumulates_and_exchanges_once(nursery: Any) -> None:
    alone, order = Alone(), samples()[2]
    for step in range(4):
        inputs, targets, _ = samples()
        for half in range(2):
            picked = order[(2 * step + half) * 24 : (2 * step + half + 1) * 24]
            nn.functional.mse_loss(alone.model(inputs[picked]), targets[picked]).backward()
        alone.optimizer.step()
        alone.optimizer.zero_grad()
        alone.schedule.step()
    outcome = nursery.run(WAYS["fp32"], steps=4, micro=2).succeeded()
    for found in outcome.parameters:
        torch.testing.assert_close(found, alone.flat(), rtol=1e-5, atol=1e-6)
    assert [row["tokens"] for row in outcome.metrics[0] if row["kind"] == "step"] == [2 * 6 * 4] * 4


@pytest.mark.tunnel
@pytest.mark.parametrize("way", ["flat", "int4", "local", "delayed int4"])
def test_when_a_rank_is_killed_the_others_end_with_a_named_error(way: str, nursery: Any) -> None:
    outcome = nursery.run(WAYS[way], steps=60, die=[3, 5], timeout_s=60, optimizer="adamw")
    assert outcome.codes == [1, 1, 1, -9], "\n".join(outcome.logs)
    assert all("PeerLostError" in log for log in outcome.logs[:3]), "\n".join(outcome.logs)
    assert outcome.seconds < 40


@pytest.mark.tunnel
@pytest.mark.parametrize("way", ["flat", "fp32", "local"])
def test_gradients_of_a_failed_exchange_are_never_applied_by_a_loop_of_its_own_either(way: str, nursery: Any) -> None:
    regions = {"east": 2} if way == "local" else {"east": 1, "west": 1}  # local steps: gloo inside the region fails
    outcome = nursery.run(WAYS[way], regions=regions, steps=30, die=[1, 4], timeout_s=60, own_loop=True)
    assert outcome.codes == [1, -9], "\n".join(outcome.logs)
    assert "PeerLostError" in outcome.logs[0], outcome.logs[0]
    assert "parameters as before the failed step: True" in outcome.logs[0], outcome.logs[0]


@pytest.mark.tunnel
@pytest.mark.parametrize("differs", ["the plan's strategy", "the schedule ISTHMUS_BLOCKS", "join's timeout_s"])
@pytest.mark.parametrize("way", ["flat", "int8"])
def test_members_started_unlike_are_told_what_differs(way: str, differs: str, nursery: Any, tmp_path: Path) -> None:
    save_plan(lone_plan(WAYS[way].model_copy(update={"bucket_bytes": 4096})), tmp_path / "plan.yaml")
    west = {
        "the plan's strategy": {"ISTHMUS_PLAN": str(tmp_path / "plan.yaml")},
        "the schedule ISTHMUS_BLOCKS": {"ISTHMUS_BLOCKS": BLOCKS},
        "join's timeout_s": {"TEST_TIMEOUT_S": "21"},
    }[differs]
    outcome = nursery.run(WAYS[way], regions={"east": 1, "west": 1}, variables={"west": west})
    assert outcome.codes == [1, 1]
    said = f"PlanMismatchError: members were not started alike: {differs} differs (east rank 0 "
    assert all(said in log for log in outcome.logs), "\n".join(outcome.logs)


@pytest.mark.tunnel
@pytest.mark.parametrize("ranks", [[2, 3], [1]])
@pytest.mark.parametrize("way", ["flat", "fp32", "local"])
def test_one_flipped_bit_stops_the_run(way: str, ranks: list[int], nursery: Any) -> None:
    # Local steps end their rounds at 3, 6, 9, 12: a flip before the last flush would be averaged into all members alike,
    # unless it splits the ranks of one region; every-step strategies never average parameters.
    outcome = nursery.run(WAYS[way], steps=12, flip_ranks=ranks, flip_step=11)
    if way == "local" and ranks == [2, 3]:
        assert set(outcome.codes) == {0}
        return
    assert 0 not in outcome.codes, "\n".join(outcome.logs)
    assert any("ReplicaMismatchError: replicas differ in" in log for log in outcome.logs), "\n".join(outcome.logs)


@pytest.mark.tunnel
def test_step_times_add_up_to_the_blocks_and_bytes_stand_still_while_off(nursery: Any) -> None:
    outcome = nursery.run(WAYS["fp32"], blocks=BLOCKS, steps=0).succeeded()
    for rows in outcome.metrics:
        steps = [row for row in rows if row["kind"] == "step"]
        off = [row for row in steps if row["mode"] == "off"]
        assert all(row["seconds"] > 0 and 0 <= row["exposed_s"] <= row["seconds"] for row in steps)
        for block in {row["block"] for row in off}:
            sent = [row["wan_bytes"] for row in off if row["block"] == block]
            # Acknowledgements of what came last, and signs of life of idle streams; a step's gradients are ten times that.
            assert sent[-1] - sent[0] < 300, sent
    first = [row for row in outcome.metrics[0] if row["kind"] == "step"]
    shard_bytes = outcome.metrics[0][0]["gradient_bytes"] / 2
    between = [after["wan_bytes"] - before["wan_bytes"] for before, after in pairwise(first[4:9])]
    assert shard_bytes > 2000
    assert all(shard_bytes <= sent <= 1.25 * shard_bytes for sent in between), (shard_bytes, between)


@pytest.mark.parametrize("kind", ["sharded"])
def test_strategies_that_cannot_run_here_are_refused_by_name(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_plan(lone_plan(Strategy(name="wide", kind=kind)), tmp_path / "plan.yaml")
    monkeypatch.setenv("ISTHMUS_PLAN", str(tmp_path / "plan.yaml"))
    with pytest.raises(InputError) as caught, join():
        pass
    assert str(caught.value) == (
        f"{tmp_path / 'plan.yaml'}: strategy.kind: {kind!r} cannot be run by this runtime yet\n"
        "  hint: it runs flat, hierarchical, local-steps, pipeline"
    )


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({"tp": 8, "zero": 1}, "tp 8, zero 1"),
        ({"pp": 2, "cp": 3, "ep": 4}, "pp 2, cp 3, ep 4"),
        ({"recompute": True}, "recompute"),
    ],
)
def test_a_layout_that_is_not_data_parallelism_is_refused(change: dict[str, Any], asked: str) -> None:
    plan = lone_plan(Strategy(name="wide", kind="hierarchical"))
    with join(plan.model_copy(update={"layout": plan.layout.model_copy(update={"dp": 16, "micro_batch": 2})})):
        pass
    with (
        pytest.raises(InputError, match=f"^plan: layout: this runtime runs data parallelism; the plan's .* {asked}\n"),
        join(plan.model_copy(update={"layout": plan.layout.model_copy(update=change)})),
    ):
        pass


@pytest.mark.tunnel
@pytest.mark.parametrize("way", ["flat", "local"])
def test_running_statistics_are_refused_between_regions_and_constant_buffers_are_not(way: str, nursery: Any) -> None:
    regions = {"east": 1, "west": 1}
    refused = nursery.run(WAYS[way], regions=regions, steps=3, model="running")
    assert refused.codes == [1, 1]
    said = "InputError: model: buffer '1.0.running_mean' of a BatchNorm1d changes in training, and every region would keep"
    assert all(said in log and "track_running_stats=False" in log for log in refused.logs), "\n".join(refused.logs)
    for allowed in ("own batch", "group"):
        assert len(nursery.run(WAYS[way], regions=regions, steps=3, model=allowed).succeeded().hashes()) == 1


def test_several_regions_need_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {
        "regions": [
            {"name": "east", "rails": ["127.0.0.1:29600"]},
            {"name": "west", "rails": ["127.0.0.1:29601"]},
        ]
    }
    (tmp_path / "members.json").write_text(json.dumps(members))
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "ISTHMUS_REGION": "west",
        "ISTHMUS_MEMBERS": str(tmp_path / "members.json"),
    }.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(InputError, match=r"^ISTHMUS_PLAN: is not set, and join\(\) was given no plan"),
        join(),
    ):
        pass


def test_the_same_script_trains_alone_and_equals_plain_torch() -> None:
    alone, order = Alone(), samples()[2]
    for step in range(5):
        alone.step(order[step * 8 : (step + 1) * 8])
    torch.manual_seed(0)
    dataset = torch.utils.data.TensorDataset(*samples()[:2])
    with join() as cluster:
        model = cluster.parallelize(Crossed())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + 0.1 * step))
        with cluster.sync(model, optimizer, also=[schedule]):
            for batch in cluster.batches(dataset, 8, steps=5, seed=3):
                cluster.step(model, batch, nn.functional.mse_loss)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
        found = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    assert torch.equal(found, alone.flat())


def test_measuring_alone_changes_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 4))
        with join() as cluster:
            held = cluster.parallelize(model)
            optimizer = torch.optim.AdamW(held.parameters(), lr=0.01)
            with cluster.sync(held, optimizer):
                for batch in cluster.batches(torch.utils.data.TensorDataset(*samples()[:2]), 8, steps=9):
                    cluster.step(held, batch, nn.functional.mse_loss)
                    optimizer.step()
                    optimizer.zero_grad()
        return torch.cat([tensor.detach().reshape(-1).float() for tensor in model.state_dict().values()])

    plain = trained()
    monkeypatch.setenv("ISTHMUS_BLOCKS", "warmup=1,on=4,off=3,repeats=2")
    monkeypatch.setenv("ISTHMUS_METRICS", str(tmp_path))
    assert torch.equal(trained(), plain)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "here-0.jsonl").read_text().splitlines()]
    assert kinds == ["start", *["step"] * 15, "end"]


def test_the_door_says_how_it_is_used() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with join() as cluster:
        for misuse in (
            lambda: cluster.step(model, (1, 2), nn.functional.mse_loss),
            lambda: next(cluster.batches([1, 2])),
            lambda: cluster.sync(model, optimizer).__enter__(),
            lambda: cluster.parallelize(nn.Linear(2, 2).double()),
        ):
            with pytest.raises(InputError):
                misuse()
        with cluster.sync(cluster.parallelize(model), optimizer):
            with pytest.raises(InputError, match=r"expected \(inputs, targets\)"):
                cluster.step(model, torch.zeros(2), nn.functional.mse_loss)
            with pytest.raises(InputError, match="has 3 samples, one step of 1 ranks takes 8"):
                next(cluster.batches([1, 2, 3]))
