"""Local steps: regions train alone for K steps, then average what they learned and take one outer step with it.

Every K inner steps each region forms its delta, outer parameters minus its own. The mean of the deltas over regions is
the gradient of an outer SGD, with momentum when asked (Nesterov's form as in DiLoCo, arXiv:2311.08105). With outer
learning rate 1 and no momentum this is plain parameter averaging. The exchange may run in the background and be applied
`delay_steps` later; what a region learned meanwhile is kept on top.
"""

import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from isthmus.errors import InputError
from isthmus.plan import Outer, Strategy
from isthmus.runtime.hashing import fingerprint

__all__ = ["Arrival", "LocalSync", "OuterLink", "outer_step_"]

Weight = Literal["equal", "tokens"]


class OuterLink(Protocol):
    """What local steps need of the world. Jobs given to `submit` run one by one, on the communication thread.

    The other methods are called inside such jobs only, by all ranks of all regions in the same order.
    """

    regions: int
    region_size: int
    rank: int

    def submit(self, job: Callable[[], Any]) -> "Future[Any]": ...  # noqa: D102

    def mean_(self, shard: torch.Tensor) -> int:
        """Replace `shard` by its mean over regions (through the codec); return the bytes sent."""
        ...

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        """The shards of this region's ranks, end to end in a new tensor."""
        ...

    def numbers(self, number: int) -> list[int]:
        """`number` of every region, in their order."""
        ...

    def prove_region(self, digest: int, what: str) -> None:
        """Compare with the other ranks of this region, now."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the codec owes and how many rounds there were; none may be under way."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...  # noqa: D102

    def prove(self, digest: int, what: str) -> None:
        """Compare this rank's fingerprint of `what` with every other member's, now or at the next call."""
        ...


@dataclass(frozen=True, slots=True)
class Arrival:
    """A finished outer round: the new outer parameters and what it took.

    Attributes:
        outer: Flat, padded to a multiple of the region's ranks.
        seconds: From the first byte offered until the region held the result.
        sent_bytes: What this rank sent to other regions.
        hash: xxh3 of `outer`, equal on all members.
    """

    outer: torch.Tensor
    seconds: float
    sent_bytes: int
    hash: int


@dataclass(slots=True)
class _Pending:
    """A round under way: the flat parameters as they were when it began, and its result to come."""

    sent: torch.Tensor
    arrival: "Future[Arrival]"


def outer_step_(outer: torch.Tensor, momentum: torch.Tensor, gradient: torch.Tensor, rule: Outer) -> None:
    """One SGD step in place, as `torch.optim.SGD(dampening=0)` takes it.

    m <- mu m + g;   p <- p - lr (g + mu m)   with Nesterov,   p <- p - lr m   without
    """
    if rule.momentum == 0.0:
        outer.sub_(gradient, alpha=rule.lr)
        return
    momentum.mul_(rule.momentum).add_(gradient)
    if rule.nesterov:
        outer.sub_(gradient.add(momentum, alpha=rule.momentum), alpha=rule.lr)
    else:
        outer.sub_(momentum, alpha=rule.lr)


class LocalSync:
    """The outer loop over one set of parameters; call `after_step` once after every inner optimizer step.

    Every rank of a region must hold the same parameters (DDP inside the region sees to it); rank i carries the i-th part
    of the delta to its peers. Buffers and the inner optimizer's state stay each region's own.

    Args:
        parameters: float32 on the CPU, the same list on every member, equal in all regions now.
        link: The way to the other members.
        strategy: `inner_steps`, `outer` and `delay_steps` are read.
        weight: `equal`, or `tokens` to weigh each region's delta by the tokens it trained on in the round.

    Attributes:
        waited_s: Seconds `after_step` and `flush` spent waiting for the exchange, in all.
        on_arrival: Called with each `Arrival` once it is applied.

    Raises:
        InputError: `delay_steps` exceeds `inner_steps`, or a parameter has another dtype or device.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        link: OuterLink,
        strategy: Strategy,
        weight: Weight = "equal",
    ) -> None:
        if strategy.delay_steps > strategy.inner_steps:
            raise InputError(
                "strategy.delay_steps",
                f"is {strategy.delay_steps}, more than inner_steps {strategy.inner_steps}",
                "one exchange is under way at a time; give at most inner_steps",
            )
        self.parameters, self.link, self.strategy, self.weight = list(parameters), link, strategy, weight
        for parameter in self.parameters:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise InputError(
                    "model",
                    f"has a parameter of {parameter.dtype} on {parameter.device}",
                    "local steps take float32 parameters on the CPU",
                )
        self.outer = self._flat()
        self.momentum = torch.zeros_like(self._shard(self.outer))
        self.inner, self.tokens, self.rounds = 0, 0, 0
        self.waited_s = 0.0
        self.on_arrival: Callable[[Arrival], None] | None = None
        self._pending: _Pending | None = None

    def after_step(self, tokens: int = 1) -> None:
        """Count one inner step of `tokens` tokens; begin and apply outer rounds when they are due."""
        self.inner += 1
        self.tokens += tokens
        if self._pending is not None and self.inner >= self.strategy.delay_steps:
            self._apply()
        if self.inner >= self.strategy.inner_steps:
            self._begin()
            if self.strategy.delay_steps == 0:
                self._apply()

    def flush(self) -> None:
        """Apply what is under way and exchange what is left: afterwards all members hold equal parameters.

        To be called by all members after the same number of steps; before checkpoints and at the end.
        """
        if self._pending is not None:
            self._apply()
        if self.inner:
            self._begin()
            self._apply()

    @contextmanager
    def outer_parameters(self) -> Generator[None]:
        """Inside, the model holds the outer parameters, equal on all members; afterwards its own again."""
        own = self._flat()
        self._write(self.outer)
        try:
            yield
        finally:
            self._write(own)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state; waits for a round under way, and keeps it as under way. Save the model beside it."""
        pending = None
        if self._pending is not None:
            pending = {
                "sent": self._pending.sent.clone(),
                "outer": self._arrival(self._pending).outer.clone(),
            }
        return {
            "outer": self.outer.clone(),
            "momentum": self.momentum.clone(),
            "pending": pending,
            "inner": self.inner,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "link": self.link.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bit for bit.

        Raises:
            InputError: The state is of another model or another number of ranks; or a round is under way, whose result
                would be lost here and awaited elsewhere.
        """
        if self._pending is not None:
            raise InputError(
                "state", "was to be loaded while an outer round is under way", "load it before training, or flush() first"
            )
        if state["outer"].shape != self.outer.shape or state["momentum"].shape != self.momentum.shape:
            raise InputError(
                "state",
                f"holds {state['outer'].numel()} outer parameters in shards of {state['momentum'].numel()}, "
                f"this rank has {self.outer.numel()} in shards of {self.momentum.numel()}",
                "load it into the same model on the same number of ranks a region",
            )
        self.outer.copy_(state["outer"])
        self.momentum.copy_(state["momentum"])
        self.inner, self.tokens, self.rounds = state["inner"], state["tokens"], state["rounds"]
        self.link.load_state_dict(state["link"])
        self._pending = None
        if state["pending"] is not None:
            arrival: Future[Arrival] = Future()
            arrival.set_result(Arrival(state["pending"]["outer"].clone(), 0.0, 0, 0))
            self._pending = _Pending(state["pending"]["sent"].clone(), arrival)

    def _begin(self) -> None:
        assert self._pending is None, "a round is under way"
        sent = self._flat()
        tokens, self.inner, self.tokens = self.tokens, 0, 0
        self._pending = _Pending(sent, self.link.submit(lambda: self._round(sent, tokens)))

    def _round(self, sent: torch.Tensor, tokens: int) -> Arrival:
        """On the communication thread: one outer step on this rank's part, then the region's parts together."""
        begun = time.perf_counter()
        # Each rank brings its part of `sent` only: a rank that had drifted would be overwritten unseen.
        self.link.prove_region(fingerprint([sent]), "the parameters of one region")
        outer = self._shard(self.outer).clone()
        delta = outer - self._shard(sent)
        if self.weight == "tokens":
            counts = self.link.numbers(tokens)
            delta.mul_(tokens * self.link.regions / sum(counts))
        sent_bytes = self.link.mean_(delta)
        outer_step_(outer, self.momentum, delta, self.strategy.outer)
        whole = self.link.gather(outer)
        digest = fingerprint([whole])
        self.link.prove(digest, "the outer parameters")
        return Arrival(whole, time.perf_counter() - begun, sent_bytes, digest)

    def _arrival(self, pending: _Pending) -> Arrival:
        begun = time.perf_counter()
        arrival = pending.arrival.result()
        self.waited_s += time.perf_counter() - begun
        return arrival

    def _apply(self) -> None:
        assert self._pending is not None, "no round is under way"
        pending, arrival = self._pending, self._arrival(self._pending)
        self._pending = None
        # In this order a region without progress since `sent` gets exactly the new outer parameters.
        self._write(arrival.outer + (self._flat() - pending.sent) if self.inner else arrival.outer)
        self.outer = arrival.outer
        self.rounds += 1
        if self.on_arrival is not None:
            self.on_arrival(arrival)

    def _shard(self, flat: torch.Tensor) -> torch.Tensor:
        size = flat.numel() // self.link.region_size
        return flat[self.link.rank * size : (self.link.rank + 1) * size]

    def _flat(self) -> torch.Tensor:
        with torch.no_grad():
            flat = torch.cat([parameter.reshape(-1) for parameter in self.parameters])
        return torch.nn.functional.pad(flat, (0, -flat.numel() % self.link.region_size))

    def _write(self, flat: torch.Tensor) -> None:
        offset = 0
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.copy_(flat[offset : offset + parameter.numel()].view_as(parameter))
                offset += parameter.numel()
