"""Steps as rounds that fail by script, with real rails: a scenario of nursery.py, run by each rank, which says one JSON line."""

import contextlib
import json
import os
import time
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from isthmus.plan import Strategy, load_plan
from isthmus.runtime.courier import Courier
from isthmus.runtime.environment import RankEnvironment, read_environment
from isthmus.runtime.every_step.fsdp import attach_fsdp
from isthmus.runtime.every_step.shards import is_sharded, local_tensors, region_fingerprint
from isthmus.runtime.every_step.state import EveryStepKeeper
from isthmus.runtime.every_step.step import RoundRunner, StepExchange
from isthmus.runtime.every_step.wrap import settle, wrap
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.opening import RailOpener
from isthmus.runtime.federation.states import Committed, Rejoined
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import PeerLostError, RailError, federation_id
from isthmus.runtime.wan.rail import RailOptions
from isthmus.runtime.world import World, gather_numbers, open_world


class Scripted:
    """Rounds that fail as `fails` says: by round, how (late: everything had come in; early: before), and who goes on."""

    def __init__(self, environment: RankEnvironment, world: World, opener: RailOpener, fails: dict[str, Any]) -> None:
        self.environment, self.world, self.opener, self.fails = environment, world, opener, fails
        assert environment.members is not None
        names = tuple(region.name for region in environment.members.regions)
        self.generation = Generation(number=1, regions=names)
        self.rails, self.round, self.digests = opener(self.generation, 20.0), 0, list[int]()

    def run(self, attempt: Any, tokens: int, commit: Any) -> Committed:
        """See `RoundRunner`."""
        fails, tries = dict(self.fails.get(str(self.round), {})), 0
        while True:
            tries += 1
            result = None
            if fails.get("how") == "early":
                for rail in self.rails.values():
                    rail.abort(PeerLostError("by script"))
            with contextlib.suppress(RailError):
                result = attempt(self.generation, self.rails)
            if self.held(result is not None and not fails, result):
                commit(result)
                self.round += 1
                self.digests.append(result.digest)
                return Committed(self.round - 1, self.generation, {}, tries)
            for rail in self.rails.values():
                rail.abort(PeerLostError("by script"))
                rail.close()
            regions = fails.get("regions") or list(self.generation.regions)
            if self.environment.region not in regions:
                os._exit(0)
            self.generation, fails = Generation(number=self.generation.number + 1, regions=tuple(regions)), {}
            self.rails = self.opener(self.generation, 20.0) if len(regions) > 1 else {}

    def held(self, mine: bool, result: Any) -> bool:
        """Whether all ranks of the region hold a result, which must then be one."""
        size = self.environment.world_size
        if size == 1:
            return mine
        held = min(gather_numbers(self.world.comm_group, int(mine), size)) == 1
        if held:
            assert len(set(gather_numbers(self.world.comm_group, result.digest, size))) == 1
        return held


class Blocks(nn.Module):
    """Two layers that FSDP2 gathers and reduces by themselves, and what is around them."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(16, 40), nn.Linear(40, 4)
        self.blocks = nn.ModuleList(nn.Linear(40, 40) for _ in range(2))
        self.pause = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inward(x)
        if x.requires_grad:
            x.register_hook(lambda _: self.pause())  # the backward pass stops before its last layer
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.outward(x)


def until_a_part_began(exchange: StepExchange) -> None:
    """So that what `early` counts does not hang on which thread the machine lets run first."""
    until_s = time.monotonic() + 20.0
    while not exchange._parts and time.monotonic() < until_s:
        time.sleep(0.001)


def parallel(federation: Federation, strategy: Strategy, rounds: RoundRunner, way: str) -> tuple[nn.Module, StepExchange]:
    """`Blocks` as DDP, or sharded in one of four ways."""
    torch.manual_seed(0)
    model = Blocks()
    if way in ("ddp", "fsdp"):
        return wrap(model, federation, strategy, 3 if way == "fsdp" else 0, rounds)
    ranks = federation.environment.world_size
    if way == "hsdp":
        more: dict[str, Any] = {"mesh": init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replica", "shard"))}
    else:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32 if way == "bf16" else None)
        more = {"mesh": init_device_mesh("cpu", (ranks,)), "mp_policy": policy}
    for unit in [*model.blocks, model]:
        fully_shard(unit, **more)
    return model, attach_fsdp(model, federation, strategy, rounds)


def steps(options: dict[str, Any], *_: Any) -> None:
    """Train a few steps; then, if asked, hand the state to a newcomer."""
    environment = read_environment()
    assert environment.members is not None
    assert environment.plan_path is not None
    rank, region = environment.rank, environment.region_index
    world = open_world(environment, flat=False, timeout_s=30.0)
    door = Door(environment.members.regions[region].rails[rank], federation_id(environment.members), region)
    opener = RailOpener(environment, door, 2, RailOptions(), 20.0)
    rounds = Scripted(environment, world, opener, options.get("fails") or {})
    federation = Federation(environment, world, Courier())
    model, exchange = parallel(federation, load_plan(environment.plan_path).strategy, rounds, options["way"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + 10 * region + rank)
        x, y = torch.randn(6, 16, generator=generator), torch.randn(6, 4, generator=generator)
        return nn.functional.mse_loss(model(x).float(), y)

    settle(model, exchange, lambda: loss(999))
    for module in model.modules():
        if isinstance(module, Blocks):
            module.pause = lambda: until_a_part_began(exchange)
    for step in range(options["steps"]):
        exchange.tokens += 6 * environment.world_size
        loss(step).backward()
        assert exchange.failure is None, exchange.failure
        optimizer.step()
        optimizer.zero_grad()
    if options.get("newcomer"):
        hand_over(model, optimizer, exchange)
    assert exchange.reducer is not None
    line = {
        "hash": region_fingerprint(model.parameters(), world.comm_group, sharded=is_sharded(model)),
        "digests": rounds.digests,
        "owed": fingerprint(exchange.reducer.state_dict()["feedback"].values()),
        "directions": len(exchange.reducer.state_dict()["directions"]),
        "early": sum(passage.begun_s < exchange.enqueued_s for passage in exchange.timeline),
        "parts": len(exchange.timeline),
    }
    print(json.dumps(line), flush=True)
    for rail in rounds.rails.values():
        rail.close()


def hand_over(model: nn.Module, optimizer: torch.optim.Optimizer, exchange: StepExchange) -> None:
    """Forget everything, take the state that the region's own rails would carry, and hold the same as before."""
    federation, taken = exchange.federation, dict[str, Any]()
    rails = federation.environment.rails
    keeper = EveryStepKeeper(model, optimizer, exchange, (), (lambda: {"step": 7}, taken.update))

    def whole() -> int:
        return region_fingerprint(model.parameters(), federation.world.comm_group, sharded=is_sharded(model))

    held, parts = whole(), {number: keeper.export_state(number) for number in rails}
    with torch.no_grad():
        for tensor in local_tensors(model.parameters()):
            tensor.zero_()
    optimizer.state.clear()
    assert exchange.reducer is not None
    exchange.reducer.load_state_dict({"feedback": {}, "epochs": {}})
    parts = {number: type(state)(json.loads(json.dumps(state.record)), state.tensors) for number, state in parts.items()}
    federation.submit(lambda: keeper.adopt_state(parts, Rejoined("restart"))).result()
    assert whole() == held, "parameters came back as others"
    assert taken == {"step": 7}, taken
    for number, state in {number: keeper.export_state(number) for number in rails}.items():
        assert json.dumps(state.record) == json.dumps(parts[number].record), (state.record, parts[number].record)
        assert all(torch.equal(state.tensors[key], parts[number].tensors[key]) for key in state.tensors)
