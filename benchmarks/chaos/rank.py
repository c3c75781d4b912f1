"""A rank of the demo trainer with two doors for faults, both shut by default and none of them in the product.

CHAOS_LISTEN=host:port: the rank listens there, while members.json names a proxy's address. SIGUSR1: one bit of the next large
message is flipped in memory, after it was decrypted and its checksum proven.
CHAOS_CHECKPOINTS=DIR: a checkpoint there every CHECKPOINT_STEPS steps; one that fails is written down and training goes on.
CHAOS_STEP_S: seconds that every step takes at least (an accelerator would compute; here it leaves the cores to others).
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from isthmus.runtime import checkpoint
from isthmus.runtime.cluster import Cluster
from isthmus.runtime.demo import train
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


def take_time(step_s: float) -> None:
    """Slow every forward pass down to `step_s`."""
    plain = train.next_byte_loss

    def slow(*given: Any) -> Any:
        if torch.is_grad_enabled():
            time.sleep(step_s)
        return plain(*given)

    train.next_byte_loss = slow


def keep_checkpoints(folder: Path) -> None:
    """Have `cluster.step` write the model's parameters now and then, before it trains."""
    trained = Cluster.step

    def step(cluster: Cluster, model: torch.nn.Module, *rest: Any) -> Any:
        number = cluster.trained_steps
        if number and number % CHECKPOINT_STEPS == 0:
            group = dist.group.WORLD if cluster.environment.world_size > 1 else None
            place = checkpoint.step_folder(folder, number, cluster.region)
            try:
                checkpoint.save(place, checkpoint.Parts(shared=dict(model.state_dict()), own={}), group)
                if cluster.environment.rank == 0:
                    checkpoint.forget(folder, cluster.region, CHECKPOINTS_KEPT)
                cluster._metrics.write("checkpoint", ok=True, step=number)  # type: ignore[arg-type]
            except checkpoint.CheckpointError as error:
                cluster._metrics.write("checkpoint", ok=False, step=number, error=str(error))  # type: ignore[arg-type]
        return trained(cluster, model, *rest)

    Cluster.step = step  # type: ignore[method-assign]


if __name__ == "__main__":
    if "CHAOS_CHECKPOINTS" in os.environ:
        keep_checkpoints(Path(os.environ["CHAOS_CHECKPOINTS"]))
    Flipper().install()
    if "CHAOS_LISTEN" in os.environ:
        listen_elsewhere(os.environ["CHAOS_LISTEN"])
    take_time(float(os.environ.get("CHAOS_STEP_S", "0")))
    train.main()
