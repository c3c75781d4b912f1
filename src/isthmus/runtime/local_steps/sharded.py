"""Local steps of a model in shards (FSDP2): each rank exchanges what it holds, with the same rank of the other regions.

For `LocalSync` such a rank is a region of its own with one shard: its "parameters" are its local tensors
(`every_step.shards.local_tensors`), and nothing is gathered inside the region. What the region's ranks have together is
compared between regions all the same.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

import torch
import xxhash

from isthmus.errors import InputError
from isthmus.plan import Strategy
from isthmus.runtime.collectives.exchange import Buffers
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.federation.states import Attempt
from isthmus.runtime.local_steps.link import Bell, Peers, RailPeers, Ran
from isthmus.runtime.world import gather_numbers

__all__ = ["ShardLink"]

T = TypeVar("T")


class ShardLink:
    """`OuterLink` of one rank's shards over its own rail, opened once: a region that is lost ends the run.

    Raises:
        InputError: `warmup_steps`, whose gradients are not exchanged in shards.
    """

    elastic: bool = False
    shards: int = 1
    held: tuple[int, ...] = (0,)

    def __init__(self, federation: Federation, strategy: Strategy) -> None:
        assert federation.rail is not None, "local steps without a rail"
        if strategy.warmup_steps:
            raise InputError(
                "strategy.warmup_steps",
                f"is {strategy.warmup_steps}, and the layout's zero is not 0",
                "local steps of a model in shards begin at once: warmup_steps 0",
            )
        self._federation, self._rail, self._strategy = federation, federation.rail, strategy
        self._buffers, self._number = Buffers(), 0

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Run `job` on the communication thread."""
        return self._federation.submit(job)

    def run(self, attempt: Callable[[Peers], Attempt], commit: Callable[[Attempt], None], tokens: int) -> Ran:
        """One attempt, which is committed; the digest that all members compare is that of the region's shards together."""
        before = self._rail.wan_bytes_sent()
        result = attempt(RailPeers({0: self._rail}, self._strategy, self._buffers, self._number))
        self._number += 1
        together = xxhash.xxh3_64_intdigest(repr(self.region_numbers(result.digest)).encode())
        self._federation.prove(together, "the outer parameters")
        commit(result)
        return Ran(self._rail.wan_bytes_sent() - before)

    def region_numbers(self, number: int) -> list[int]:
        """See `OuterLink`."""
        group, size = self._federation.world.comm_group, self._federation.environment.world_size
        return [number] if group is None or size == 1 else gather_numbers(group, number, size)

    def ready(self) -> Bell:
        """Never: regions without votes take equal numbers of steps."""
        raise AssertionError("a lone rail has no grace")

    def gather(self, shards: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """A copy of the one shard."""
        return shards[0].clone()

    def prove_region(self, digest: int, what: str) -> None:
        """Nothing: the region's ranks hold different shards."""
