"""The demo's model and text, trained by local steps in rounds until a number of rounds is committed by the regions together.

A region that comes late or comes back ends with the others, at the same round. Every rank trains on batches of its own.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from isthmus.plan import load_plan
from isthmus.runtime.courier import Courier
from isthmus.runtime.demo.data import TextWindows, read_corpus
from isthmus.runtime.demo.model import PRESETS, ByteGPT, next_byte_loss
from isthmus.runtime.environment import RankEnvironment, read_environment
from isthmus.runtime.federation.states import Rejoined, State
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.local_steps.link import RoundsLink
from isthmus.runtime.local_steps.sync import LocalSync
from isthmus.runtime.metrics import Metrics
from isthmus.runtime.surviving import open_rounds
from isthmus.runtime.world import open_world

__all__ = ["Options", "train"]

HELD_OUT_WINDOWS, LR = 512, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the fleet asks of its ranks; `before_step` is called with (step, model, metrics)."""

    preset: str
    rounds: int
    batch: int
    step_s: float
    before_step: Callable[[int, torch.nn.Module, Metrics], None]


class Keeper:
    """Hands the outer state over; the rounds are made before the loop that has it."""

    def __init__(self) -> None:
        self.local: LocalSync | None = None

    def export_state(self, rail: int) -> State:
        """See `StateKeeper`."""
        assert self.local is not None
        return self.local.export_state(rail)

    def adopt_state(self, parts: Mapping[int, State], rejoined: Rejoined) -> None:
        """See `StateKeeper`."""
        assert self.local is not None
        self.local.adopt_state(parts, rejoined)


def train(options: Options) -> None:
    """Train one rank from start to orderly end."""
    torch.set_num_threads(1)
    environment = read_environment()
    assert environment.plan_path is not None
    plan = load_plan(environment.plan_path)
    world, courier = open_world(environment, flat=False, timeout_s=30.0), Courier()
    metrics = Metrics(environment.metrics_dir, environment.region, environment.rank)
    torch.manual_seed(0)
    model = ByteGPT(PRESETS[options.preset])
    terms = {"strategy": plan.strategy.model_dump_json()}
    with metrics, open_rounds(environment, world, plan.strategy, plan.survival, metrics, terms) as rounds:
        metrics.write("start", region=environment.region, rank=environment.rank)
        keeper = Keeper()
        rounds.rounds.keeper = keeper
        link = RoundsLink(environment, world.comm_group, courier, rounds, plan.strategy)
        keeper.local = local = LocalSync(model.parameters(), link, plan.strategy, plan.survival.grace_s)
        courier.submit(rounds.open).result()
        local.settle()
        loop(options, environment, model, local, metrics)
        digest = fingerprint(model.parameters())
        metrics.write("eval", step=local.loop.rounds, loss=held_out_loss(model, PRESETS[options.preset].positions))
        metrics.write("end", hash=f"{digest:016x}", steps=local.steps)
        courier.submit(rounds.close).result()
    courier.close(timeout_s=1.0)
    with suppress(RuntimeError):
        world.close()


def loop(options: Options, environment: RankEnvironment, model: ByteGPT, local: LocalSync, metrics: Metrics) -> None:
    """Inner steps until the regions have committed `options.rounds` rounds."""
    positions = PRESETS[options.preset].positions
    data = TextWindows(read_corpus().train, positions)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    place = torch.Generator().manual_seed(1000 * environment.region_index + environment.rank + int(time.time()))
    taken, rejoined, discarded = 0, local.rejoined, local.discarded_tokens
    while local.loop.rounds < options.rounds:
        options.before_step(taken, model, metrics)
        begun_s = time.monotonic()
        chosen = torch.randint(len(data), (options.batch,), generator=place)
        pairs = [data[int(index)] for index in chosen]
        inputs, targets = (torch.stack(part) for part in zip(*pairs, strict=True))
        loss = next_byte_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        average_in_region(model, environment.world_size)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        time.sleep(max(0.0, begun_s + options.step_s - time.monotonic()))
        tokens, taken = targets.numel(), taken + 1
        local.after_step(tokens * environment.world_size)
        metrics.write("step", step=taken, tokens=tokens, loss=float(loss.detach()), seconds=time.monotonic() - begun_s)
        if local.rejoined is not rejoined and local.rejoined is not None:
            rejoined, lost = local.rejoined, local.discarded_tokens - discarded + local.rejoined.tokens_discarded
            discarded = local.discarded_tokens
            metrics.write("discarded", tokens=lost, rounds=rejoined.rounds_discarded, why=rejoined.why)
    local.flush()


def average_in_region(model: torch.nn.Module, ranks: int) -> None:
    """The mean gradient over the region's ranks."""
    if ranks == 1:
        return
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat: Any = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= ranks
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()


def held_out_loss(model: ByteGPT, positions: int) -> float:
    """Mean loss over the first held-out windows, nats per byte."""
    data = TextWindows(read_corpus().held_out, positions)
    pairs = [data[index] for index in range(min(HELD_OUT_WINDOWS, len(data)))]
    inputs, targets = (torch.stack(part) for part in zip(*pairs, strict=True))
    with torch.no_grad():
        return float(next_byte_loss(model(inputs), targets))
