"""A rank of the trainer with two doors for faults, both shut by default and none of them in the product.

    python rank.py '{"preset": "micro", "rounds": 100, "batch": 4, "step_s": 0.04}'

CHAOS_LISTEN=host:port: the rank listens there, while members.json names a proxy's address. SIGUSR1: one bit of the next large
message is flipped in memory, after it was decrypted and its checksum proven.
CHAOS_CHECKPOINTS=DIR: where a checkpoint goes every CHECKPOINT_STEPS steps; training outlives one that fails.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from chaos.trainer import Options, train
from isthmus.runtime import checkpoint
from isthmus.runtime.environment import read_environment
from isthmus.runtime.metrics import Metrics
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.rail import Rail

LARGE_BYTES, CHECKPOINT_STEPS, CHECKPOINTS_KEPT = 1000, 25, 2


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


def keep_checkpoint(step: int, model: torch.nn.Module, metrics: Metrics) -> None:
    """Write the model's parameters now and then; write down whether that went well."""
    folder, environment = Path(os.environ["CHAOS_CHECKPOINTS"]), read_environment()
    if step == 0 or step % CHECKPOINT_STEPS:
        return
    group = dist.group.WORLD if environment.world_size > 1 else None
    place = checkpoint.step_folder(folder, step, environment.region)
    outcome: dict[str, Any] = {"ok": True}
    try:
        checkpoint.save(place, checkpoint.Parts(shared=dict(model.state_dict()), own={}), group)
        if environment.rank == 0:
            checkpoint.forget(folder, environment.region, CHECKPOINTS_KEPT)
    except checkpoint.CheckpointError as error:
        outcome = {"ok": False, "error": str(error)}
    metrics.write("checkpoint", step=step, **outcome)  # type: ignore[arg-type]


if __name__ == "__main__":
    Flipper().install()
    if "CHAOS_LISTEN" in os.environ:
        listen_elsewhere(os.environ["CHAOS_LISTEN"])
    given: dict[str, Any] = json.loads(sys.argv[1])
    train(Options(before_step=keep_checkpoint, **given))
