"""FSDP2 in every region by the front door, with real ranks: the training of DDP, exchanged during the backward pass."""

from typing import Any

import pytest
import torch
from torch import nn

from isthmus.plan import Strategy

pytestmark = pytest.mark.tunnel

WAYS = {
    "fp32": Strategy(name="hierarchical", kind="hierarchical", bucket_bytes=2048),
    "int4": Strategy(name="int4", kind="hierarchical", codec="int4", bucket_bytes=2048),
}
SHAPES = {"2x2": {"east": 2, "west": 2}, "3x1": {"east": 1, "north": 1, "west": 1}, "1x2": {"east": 2}}


@pytest.mark.parametrize(("shape", "zeros"), [("2x2", (2, 3)), ("3x1", (3,)), ("1x2", (3,))])
def test_shards_train_as_whole_replicas_do(shape: str, zeros: tuple[int, ...], nursery: Any) -> None:
    options = {"regions": SHAPES[shape], "optimizer": "adamw", "steps": 8, "model": "blocks"}
    whole = nursery.run(WAYS["fp32"], **options).succeeded()
    for zero in zeros:
        shards = nursery.run(WAYS["fp32"], zero=zero, **options).succeeded()
        assert len(shards.hashes()) == 1
        for found in shards.parameters:
            torch.testing.assert_close(found, whole.parameters[0], rtol=1e-4, atol=1e-6)
        assert all(torch.equal(found, shards.parameters[0]) for found in shards.parameters)


def test_shards_end_bit_identical_through_a_codec_and_off_blocks_leave_no_trace(nursery: Any) -> None:
    options = {"zero": 3, "optimizer": "adamw", "model": "blocks"}
    measured = nursery.run(WAYS["int4"], blocks="warmup=3,on=4,off=3,repeats=2", steps=0, **options).succeeded()
    plain = nursery.run(WAYS["int4"], steps=3 + 2 * 4, **options).succeeded()
    assert len(measured.hashes()) == 1
    assert plain.hashes() == measured.hashes()


@pytest.mark.parametrize("codec", ["none", "int4"])
def test_local_steps_of_shards_are_those_of_whole_replicas(codec: str, nursery: Any) -> None:
    local = Strategy(name="local", kind="local-steps", codec=codec, inner_steps=3, delay_steps=1, fragments=2)
    shards = nursery.run(local, zero=3, steps=9, model="blocks").succeeded()
    assert len(shards.hashes()) == 1
    if codec == "none":
        whole = nursery.run(local, steps=9, model="blocks").succeeded()
        torch.testing.assert_close(shards.parameters[0], whole.parameters[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("zero", [0, 3])
def test_accumulation_and_clipping_are_those_of_one_process(zero: int, nursery: Any) -> None:
    outcome = nursery.run(WAYS["fp32"], zero=zero, steps=4, micro=2, clip=0.7).succeeded()
    generator = torch.Generator().manual_seed(5)
    inputs, targets = torch.randn(240, 16, generator=generator), torch.randn(240, 4, generator=generator)
    order = torch.randperm(240, generator=torch.Generator().manual_seed(3 * 1_000_003))
    torch.manual_seed(0)
    model = Crossed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    norms = []
    for step in range(4):
        for half in range(2):
            picked = order[(2 * step + half) * 24 : (2 * step + half + 1) * 24]
            nn.functional.mse_loss(model(inputs[picked]), targets[picked]).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.7)))
        optimizer.param_groups[0]["lr"] = 0.05 / (1.0 + 0.1 * step)
        optimizer.step()
        optimizer.zero_grad()
    alone = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    for found in outcome.parameters:
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-6)
    said = [[line for line in log.splitlines() if line.startswith("norm")] for log in outcome.logs]
    assert all(lines == said[0] for lines in said)  # to the last bit, on all ranks of both regions
    assert [float.fromhex(line.split()[1]) for line in said[0]] == pytest.approx(norms, rel=1e-5)
    assert max(norms) > 0.7 > min(norms)  # some are clipped, some are not


@pytest.mark.parametrize("zero", [0, 3])
def test_a_bf16_forward_pass_still_exchanges_float32(zero: int, nursery: Any) -> None:
    full = nursery.run(WAYS["fp32"], zero=zero, steps=6).succeeded()
    mixed = nursery.run(WAYS["fp32"], zero=zero, steps=6, autocast=True).succeeded()
    assert len(mixed.hashes()) == 1
    distance = (mixed.parameters[0] - full.parameters[0]).abs().max()
    assert 0.0 < distance < 0.02


def test_exchanges_between_regions_begin_before_the_backward_pass_ends(nursery: Any) -> None:
    traced = {"east": {"ISTHMUS_TRACE": "1"}, "west": {"ISTHMUS_TRACE": "1"}}
    outcome = nursery.run(WAYS["fp32"], zero=3, steps=6, model="blocks", variables=traced).succeeded()
    spans = [row for row in outcome.metrics[0] if row["kind"] == "span"]
    passes = [row for row in spans if row["name"] == "backward"]
    parts = [row for row in spans if row["name"].startswith("gradients")]
    assert len(parts) == 6 * 4  # three blocks and the rest, in every step
    early = [
        part
        for part in parts
        if any(row["begin"] <= part["begin"] < row["begin"] + row["seconds"] for row in passes)
    ]
    assert len(early) >= 6 * 2


def test_when_a_rank_is_killed_no_shard_is_updated_with_half_a_gradient(nursery: Any) -> None:
    outcome = nursery.run(WAYS["fp32"], regions={"east": 1, "west": 1}, zero=3, steps=30, die=[1, 4], own_loop=True)
    assert outcome.codes == [1, -9], "\n".join(outcome.logs)
    assert "PeerLostError" in outcome.logs[0], outcome.logs[0]


class Crossed(nn.Module):
    """As in nursery.py."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(24, 4)
        self.first = nn.Linear(16, 33)
        self.second = nn.Linear(33, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))
