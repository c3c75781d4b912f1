"""How local steps reach the other regions: their `OuterLink` over the rail."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from isthmus.plan import Strategy
from isthmus.runtime.codecs.feedback import ErrorFeedback
from isthmus.runtime.collectives.exchange import ExchangeOptions, exchange_mean
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.wan.frames import message_tag

__all__ = ["RailLink"]

T = TypeVar("T")
_DELTA_TAG = 0


class RailLink:
    """The part of a shard of parameters in outer rounds; see `local.OuterLink` for the methods.

    Attributes:
        feedback: What the codec left out of this rank's deltas so far.
    """

    def __init__(self, federation: Federation, strategy: Strategy) -> None:
        assert federation.rail is not None, "local steps without a rail"
        self.regions = federation.environment.regions
        self.region_size = federation.environment.world_size
        self.rank = federation.environment.rank
        self.feedback = ErrorFeedback() if strategy.error_feedback and strategy.codec != "none" else None
        self._federation, self._rail, self._strategy = federation, federation.rail, strategy
        self._rounds = 0

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Run `job` on the communication thread."""
        return self._federation.submit(job)

    def mean_(self, shard: torch.Tensor) -> int:
        """Replace `shard` by its mean over regions; the bytes sent."""
        before = self._rail.wan_bytes_sent()
        options = ExchangeOptions(codec=self._strategy.codec, feedback=self.feedback, seed=self.rank)
        exchange_mean(self._rail, shard, message_tag(_DELTA_TAG, self._rounds, 0, 0), options)
        self._rounds += 1
        return self._rail.wan_bytes_sent() - before

    def state_dict(self) -> dict[str, Any]:
        """Residuals, and the count of rounds that numbers the codec's noise."""
        return {"rounds": self._rounds, "feedback": self.feedback.state_dict() if self.feedback else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._rounds = state["rounds"]
        if self.feedback is not None:
            self.feedback.load_state_dict(state["feedback"])

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        """The shards of this region's ranks, end to end."""
        return self._federation.gather(shard)

    def numbers(self, number: int) -> list[int]:
        """`number` of every region."""
        return self._federation.numbers(number)

    def prove_region(self, digest: int, what: str) -> None:
        """Compare fingerprints within the region."""
        self._federation.prove_region(digest, what)

    def prove(self, digest: int, what: str) -> None:
        """Compare fingerprints with all members."""
        self._federation.prove(digest, what)
