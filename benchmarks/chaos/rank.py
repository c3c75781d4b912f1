"""A rank of the demo trainer with two doors for faults, both shut by default and none of them in the product.

CHAOS_LISTEN=host:port: the rank listens there, while members.json names a proxy's address. SIGUSR1: one bit of the next large
message is flipped in memory, after it was decrypted and its checksum proven.
CHAOS_STEP_S: seconds that every step takes at least (an accelerator would compute; here it leaves the cores to others).
"""

import os
import signal
import sys
import time
from typing import Any

import torch

from isthmus.runtime.demo import train
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.rail import Rail

LARGE_BYTES = 1000


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


if __name__ == "__main__":
    Flipper().install()
    if "CHAOS_LISTEN" in os.environ:
        listen_elsewhere(os.environ["CHAOS_LISTEN"])
    take_time(float(os.environ.get("CHAOS_STEP_S", "0")))
    train.main()
