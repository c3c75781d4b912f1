"""A rank that trains the demo's model by the front door, with two doors for faults, both shut by default, none in the product.

It trains until the step that a file of the harness names; a region that comes late or comes back ends with the others there.
CHAOS_LISTEN=host:port: the rank listens there, while members.json names a proxy's address. SIGUSR1: one bit of the next large
message is flipped in memory, after it was decrypted and its checksum proven.
"""

import faulthandler
import functools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from chaos.faults import LAST_STEPS
from isthmus.runtime.cluster import Cluster, join
from isthmus.runtime.demo.data import TextWindows, read_corpus
from isthmus.runtime.demo.model import PRESETS, ByteGPT, next_byte_loss
from isthmus.runtime.demo.train import held_out_loss
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.rail import Rail

__all__ = ["main", "preload"]

PRESET, LR, HELD_OUT_WINDOWS, WORLD_SILENCE_S = "micro", 1e-3, 256, 30.0
LARGE_BYTES, CHECKPOINTS_KEPT, DECAY_STEPS, BEGINNING_STEPS = 1000, 2, 240, 300

corpus = functools.cache(read_corpus)


@functools.cache
def beginning() -> dict[str, torch.Tensor]:
    """Parameters after some steps of one rank: faults seldom come in a run's first minute, when losses fall fast."""
    torch.manual_seed(0)
    model, data = ByteGPT(PRESETS[PRESET]), TextWindows(corpus().train, PRESETS[PRESET].positions)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3 * LR)
    for _ in range(BEGINNING_STEPS):
        pairs = [data[int(number)] for number in torch.randint(len(data), (8,))]
        inputs, targets = (torch.stack(part) for part in zip(*pairs, strict=True))
        next_byte_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def preload() -> None:
    """What all ranks begin with, once for all that are forked afterwards."""
    beginning()


def main(options: dict[str, Any]) -> None:
    """Train from start to orderly end.

    Options: `batch` windows a step, `step_s` its least time, `seed` of the order of the data, `end` a file with the last step's
    number (there from the start, or long before that step; the last `LAST_STEPS` are as fast as they can be), and
    `checkpoint_steps` (0: none). The learning rate goes down to nothing over the last `DECAY_STEPS`.
    """
    faulthandler.register(signal.SIGUSR2)  # asked for where a run is stuck
    Flipper().install()
    if "CHAOS_LISTEN" in os.environ:
        listen_elsewhere(os.environ["CHAOS_LISTEN"])
    with join(timeout_s=WORLD_SILENCE_S) as cluster:
        train(cluster, options)


def train(cluster: Cluster, options: dict[str, Any]) -> None:
    """The loop."""
    positions = PRESETS[PRESET].positions
    data, held_out = TextWindows(corpus().train, positions), TextWindows(corpus().held_out, positions)
    model = ByteGPT(PRESETS[PRESET])
    model.load_state_dict(beginning())
    model = cluster.parallelize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    end, checkpoints = Path(options["end"]), options["checkpoint_steps"]
    with cluster.sync(model, optimizer, checkpoints=os.environ["CHAOS_CHECKPOINTS"] if checkpoints else None):
        begun_s = time.monotonic()
        for batch in cluster.batches(data, options["batch"], steps=10**9, seed=options["seed"]):
            last = int(end.read_text(encoding="utf-8")) if end.exists() else None
            cluster.step(model, batch, next_byte_loss)
            cluster.clip_gradients(model, 1.0)
            if last is None or cluster.trained_steps < last - LAST_STEPS:
                time.sleep(max(0.0, begun_s + options["step_s"] - time.monotonic()))
            if last is not None:
                optimizer.param_groups[0]["lr"] = LR * min(1.0, max(0.0, last - cluster.trained_steps) / DECAY_STEPS)
            begun_s = time.monotonic()
            optimizer.step()
            optimizer.zero_grad()
            step = cluster.trained_steps
            if checkpoints and step % checkpoints == 0:
                cluster.checkpoint(CHECKPOINTS_KEPT)
            if last is not None and step >= last:
                evaluate(cluster, model, held_out)
                break


def evaluate(cluster: Cluster, model: torch.nn.Module, held_out: TextWindows) -> None:
    """Write the held-out loss down: the first region does, whose parameters are everybody's."""
    if cluster.environment.region_index == 0:
        cluster.record_evaluation(held_out_loss(cluster, model, held_out, HELD_OUT_WINDOWS))


class Flipper:
    """Flips one bit a signal, in the next large message that is asked for."""

    def __init__(self) -> None:
        self.armed = 0
        signal.signal(signal.SIGUSR1, self._arm)

    def _arm(self, *_: Any) -> None:
        self.armed += 1

    def install(self) -> None:
        """Stand between the rail and whoever waits for its messages."""
        receive = Rail.receive

        def watched(rail: Rail, peer: int, tag: int, into: Any) -> Any:
            ticket = receive(rail, peer, tag, into)
            view = into.view(torch.uint8).numpy() if isinstance(into, torch.Tensor) else memoryview(into).cast("B")
            if len(view) >= LARGE_BYTES:
                finish = ticket.finish

                def finished(error: Exception | None = None) -> None:
                    if error is None and self.armed:
                        self.armed -= 1
                        view[len(view) // 2] ^= 1
                        print("chaos: flipped a bit of a received message", file=sys.stderr, flush=True)
                    finish(error)

                ticket.finish = finished
            return ticket

        Rail.receive = watched  # type: ignore[method-assign]


def listen_elsewhere(address: str) -> None:
    """Have the rank's door listen on `address` instead of its place in members.json."""
    opened = Door.__init__

    def open_door(self: Door, _: str, *rest: Any, **named: Any) -> None:
        opened(self, address, *rest, **named)

    Door.__init__ = open_door  # type: ignore[method-assign]
