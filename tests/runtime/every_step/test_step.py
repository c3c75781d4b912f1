"""Steps as rounds: what a step that had to be repeated leaves behind. Real ranks on loopback; the rounds fail by script."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from isthmus.runtime.loopback import free_ports

pytestmark = pytest.mark.tunnel

RANKS = """
import contextlib, json, os, sys, traceback
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from isthmus.plan import Strategy
from isthmus.runtime.codecs.coding import warm
from isthmus.runtime.courier import Courier
from isthmus.runtime.environment import Members, RankEnvironment
from isthmus.runtime.every_step.fsdp import attach_fsdp
from isthmus.runtime.every_step.shards import is_sharded, local_tensors, region_fingerprint
from isthmus.runtime.every_step.state import EveryStepKeeper
from isthmus.runtime.every_step.wrap import settle, wrap
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.opening import RailOpener
from isthmus.runtime.federation.states import Committed, Rejoined
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import PeerLostError, RailError, federation_id
from isthmus.runtime.wan.rail import RailOptions
from isthmus.runtime.world import gather_numbers, open_world

torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # the first one loads torch's compiler: once, not in every rank
for job in json.loads(sys.argv[1]):
    warm(job["codec"])

class Scripted:
    '''Rounds that fail as `job["fails"]` says: by round, how (late: everything had come in; early: before), and who goes on.'''

    def __init__(self, environment, world, opener):
        self.environment, self.world, self.opener = environment, world, opener
        self.generation = Generation(number=1, regions=tuple(region.name for region in members.regions))
        self.rails, self.round, self.digests = opener(self.generation, 20.0), 0, []

    def run(self, attempt, tokens, commit):
        fails, tries = dict(job["fails"].get(str(self.round), {})), 0
        while True:
            tries += 1
            result = None
            if fails.get("how") == "early":
                for rail in self.rails.values():
                    rail.abort(PeerLostError("by script"))
            with contextlib.suppress(RailError):
                result = attempt(self.generation, self.rails)
            held = result is not None and not fails
            if self.environment.world_size > 1:
                size = self.environment.world_size
                held = min(gather_numbers(self.world.comm_group, int(held), size)) == 1
                if held:
                    assert len(set(gather_numbers(self.world.comm_group, result.digest, size))) == 1
            if held:
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

class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(16, 40), nn.Linear(40, 4)
        self.blocks = nn.ModuleList(nn.Linear(40, 40) for _ in range(2))

    def forward(self, x):
        x = self.inward(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.outward(x)

def parallel(federation, strategy, rounds):
    torch.manual_seed(0)
    model, way = Blocks(), job["way"]
    if way in ("ddp", "fsdp"):
        return wrap(model, federation, strategy, 3 if way == "fsdp" else 0, rounds)
    ranks = federation.environment.world_size
    mesh = init_device_mesh("cpu", (2, ranks // 2)) if way == "hsdp" else init_device_mesh("cpu", (ranks,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32 if way == "bf16" else None)
    for unit in [*model.blocks, model]:
        fully_shard(unit, mesh=mesh, **({} if way == "hsdp" else {"mp_policy": policy}))
    return model, attach_fsdp(model, federation, strategy, rounds)

def be(region, rank):
    torch.set_num_threads(1)
    name = members.regions[region].name
    environment = RankEnvironment(
        rank=rank, world_size=members.regions[region].ranks, master=("127.0.0.1", job["masters"][region]), region=name,
        region_index=region, members=members, plan_path=None, metrics_dir=None, blocks=None)
    strategy = Strategy(name="test", kind="hierarchical", codec=job["codec"], bucket_bytes=4096)
    world = open_world(environment, flat=False, timeout_s=30.0)
    door = Door(members.regions[region].rails[rank], federation_id(members), region)
    rounds = Scripted(environment, world, RailOpener(environment, door, 2, RailOptions(), 20.0))
    federation = Federation(environment, world, Courier())
    model, exchange = parallel(federation, strategy, rounds)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss(step):
        generator = torch.Generator().manual_seed(1000 * step + 10 * region + rank)
        x, y = torch.randn(6, 16, generator=generator), torch.randn(6, 4, generator=generator)
        return nn.functional.mse_loss(model(x).float(), y)

    settle(model, exchange, lambda: loss(999))
    for step in range(job["steps"]):
        exchange.tokens += 6 * environment.world_size
        loss(step).backward()
        assert exchange.failure is None, exchange.failure
        optimizer.step()
        optimizer.zero_grad()
    if job["newcomer"]:
        # The last region plays one that has just started: it takes the first one's state and must go on as if it had it.
        keeper = EveryStepKeeper(model, optimizer, exchange, (), (lambda: {"step": step}, taken.update))
        parts = {number: keeper.export_state(number) for number in environment.rails}
        whole = lambda: region_fingerprint(model.parameters(), world.comm_group, sharded=is_sharded(model))
        held = whole()
        with torch.no_grad():
            for tensor in local_tensors(model.parameters()):
                tensor.zero_()
        optimizer.state.clear()
        parts = {number: type(state)(json.loads(json.dumps(state.record)), state.tensors) for number, state in parts.items()}
        federation.submit(lambda: keeper.adopt_state(parts, Rejoined("restart"))).result()
        assert whole() == held, "parameters came back as others"
        assert taken == {"step": step}, taken
        exported = {number: keeper.export_state(number) for number in environment.rails}
        for number, state in exported.items():
            assert json.dumps(state.record) == json.dumps(parts[number].record), (state.record, parts[number].record)
            assert all(torch.equal(state.tensors[key], parts[number].tensors[key]) for key in state.tensors)
    line = {
        "run": turn,
        "hash": region_fingerprint(model.parameters(), world.comm_group, sharded=is_sharded(model)), "digests": rounds.digests,
        "owed": fingerprint(exchange.reducer.state_dict()["feedback"].values()),
        "early": sum(passage.begun_s < exchange.enqueued_s for passage in exchange.timeline),
        "parts": len(exchange.timeline),
    }
    os.write(1, (json.dumps(line) + "\\n").encode())
    for rail in rounds.rails.values():
        rail.close()

taken, failed = {}, []
for turn, job in enumerate(json.loads(sys.argv[1])):
    members, pids = Members.model_validate(job["members"]), {}
    for region, entry in enumerate(members.regions):
        for rank in range(entry.ranks):
            pid = os.fork()
            if pid == 0:
                try:
                    be(region, rank)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
                os._exit(0)
            pids[pid] = turn, region, rank
    failed += [pids[pid] for pid in pids if os.waitpid(pid, 0)[1]]
sys.exit(f"failed: {failed}" if failed else 0)
"""


def job_of(way, codec, fails=None, *, counts=(2, 2), steps=4, newcomer=False):
    ports = iter(free_ports(sum(counts) + len(counts)))
    regions = [
        {"name": f"r{region}", "rails": [f"127.0.0.1:{next(ports)}" for _ in range(ranks)]} for region, ranks in enumerate(counts)
    ]
    job = {"way": way, "codec": codec, "fails": fails or {}, "steps": steps, "newcomer": newcomer}
    return {**job, "members": {"regions": regions}, "masters": list(ports)}


def launch(*jobs):
    """Exit code, what the ranks said by job, and their errors."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error::FutureWarning", "-c", RANKS, json.dumps(jobs)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    try:
        out, errors = process.communicate(timeout=110)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    lines = [json.loads(line) for line in out.splitlines()]
    return process.returncode, [[line for line in lines if line["run"] == number] for number in range(len(jobs))], errors


def run(*jobs):
    code, lines, errors = launch(*jobs)
    assert code == 0, errors
    return lines


@pytest.mark.parametrize(
    ("way", "codec", "counts"),
    [("ddp", "int4", (2, 2)), ("fsdp", "int8", (2, 2)), ("ddp", "none", (2, 3)), ("ddp", "int8", (1, 2, 1)),
     ("hsdp", "int4", (2, 2)), ("bf16", "none", (2, 2))],
)
def test_repeated_steps_leave_the_bits_of_steps_that_never_failed(way, codec, counts):
    fails = {"0": {"how": "late"}, "1": {"how": "early"}, "3": {"how": "late"}}
    smooth, rough = run(job_of(way, codec, counts=counts), job_of(way, codec, fails, counts=counts))
    assert len(smooth) == len(rough) == sum(counts)
    assert len({line["hash"] for line in smooth + rough}) == 1
    assert len({tuple(line["digests"]) for line in smooth + rough}) == 1
    assert sorted(line["owed"] for line in smooth) == sorted(line["owed"] for line in rough)
    assert all(line["parts"] >= 2 for line in smooth)
    assert any(line["early"] for line in smooth)  # some part was under way before its backward pass had ended


@pytest.mark.parametrize(("way", "counts"), [("ddp", (1, 2, 1)), ("fsdp", (2, 2, 2))])
def test_survivors_go_on_without_the_lost_region_and_lose_no_step(way, counts):
    (lines,) = run(job_of(way, "int8", {"2": {"how": "late", "regions": ["r0", "r2"]}}, counts=counts))
    assert len(lines) == counts[0] + counts[2]
    assert len({line["hash"] for line in lines}) == 1
    assert all(len(line["digests"]) == 4 for line in lines)


def test_a_region_left_alone_trains_on_its_own_gradients():
    (lines,) = run(job_of("fsdp", "int4", {"1": {"how": "early", "regions": ["r1"]}}))
    assert len(lines) == 2
    assert len({line["hash"] for line in lines}) == 1


@pytest.mark.parametrize(("way", "counts"), [("ddp", (2, 2)), ("fsdp", (2, 2)), ("ddp", (1, 3))])
def test_the_state_of_a_region_is_whole_in_what_its_rails_carry(way, counts):
    (lines,) = run(job_of(way, "none", counts=counts, newcomer=True))
    assert len(lines) == sum(counts)


def test_a_policy_that_reduces_in_bf16_is_refused_by_name():
    code, _, errors = launch(job_of("reduce in bf16", "none"))
    assert code != 0
    assert "FSDP2 reduces gradients as torch.bfloat16 on cpu" in errors
    assert "reduce_dtype=torch.float32" in errors
