"""Local steps: regions train alone for K steps, then average what they learned and take one outer step with it.

The parameters are cut into fragments. Each is exchanged every K inner steps, the fragments evenly offset, so that the link
is busy all the time and never with everything at once. A round runs in the background and is applied `delay_steps` later (up
to K: then all fragments may be under way at once); what a region learned meanwhile is kept on top. With outer learning
rate 1 and no momentum this is plain parameter averaging. The first `warmup_steps` steps average gradients instead, so that
the inner optimizers' moments, which regions never exchange, are the same everywhere when local steps begin.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from isthmus.errors import InputError
from isthmus.plan import Strategy
from isthmus.runtime.local_steps.fragments import Fragment, cut
from isthmus.runtime.local_steps.link import OuterLink
from isthmus.runtime.local_steps.outer import Arrival, Contribution, OuterLoop

__all__ = ["Arrival", "LocalSync", "Pending"]


@dataclass(frozen=True, slots=True)
class Pending:
    """A round under way.

    Attributes:
        fragment: What is exchanged.
        sent: Its parameters when the round began.
        began, due: Inner steps taken when it began, and when it is to be applied.
        arrival: Its result to come.
    """

    fragment: Fragment
    sent: torch.Tensor
    began: int
    due: int
    arrival: "Future[Arrival]"


class LocalSync:
    """The outer loop over one set of parameters; call `after_step` once after every inner optimizer step.

    Every rank of a region must hold the same parameters (DDP inside the region sees to it). Buffers and the inner
    optimizer's state stay each region's own.

    Args:
        parameters: float32 on the CPU, the same list on every member, equal in all regions now.
        link: The way to the other members.
        strategy: All that concerns local steps is read.

    Attributes:
        loop: The outer state. The communication thread's while a round is under way.
        steps: Inner steps so far.
        waited_s: Seconds spent waiting for exchanges, in all.
        on_arrival: Called with each `Arrival` once it is applied.
        changes: What the last `load_state_dict` could not restore as it was, in words; empty: bit for bit the same.

    Raises:
        InputError: `delay_steps` exceeds `inner_steps`, there are more fragments than parameters, or a parameter has another
            dtype or device.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], link: OuterLink, strategy: Strategy) -> None:
        if strategy.delay_steps > strategy.inner_steps:
            raise InputError(
                "strategy.delay_steps",
                f"is {strategy.delay_steps}, more than inner_steps {strategy.inner_steps}",
                "a fragment's round ends before its next one begins; give at most inner_steps",
            )
        self.parameters, self.link, self.strategy = list(parameters), link, strategy
        for parameter in self.parameters:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise InputError(
                    "model",
                    f"has a parameter of {parameter.dtype} on {parameter.device}",
                    "local steps take float32 parameters on the CPU",
                )
        sizes = [parameter.numel() for parameter in self.parameters]
        self.fragments = cut(sizes, strategy.fragments, link.shards)
        self._whole = cut(sizes, 1, link.shards)[0]
        self.loop = OuterLoop(self.fragments, self.parameters, link, strategy)
        self.applied = list(self.loop.outer)
        self.steps, self.position, self.fresh_tokens = 0, 0, 0
        self.since = [0] * strategy.fragments
        self.tokens = [0] * strategy.fragments
        self.pending: deque[Pending] = deque()
        self.waited_s = 0.0
        self.on_arrival: Callable[[Arrival], None] | None = None
        self.changes: tuple[str, ...] = ()

    @property
    def warming_up(self) -> bool:
        """Whether the step to come is one of the first that average gradients."""
        return self.steps < self.strategy.warmup_steps

    def average_gradients(self, tokens: int = 1) -> None:
        """While warming up, replace the gradients by their mean over regions; otherwise do nothing.

        To be called between the backward pass (of `tokens` tokens) and whatever reads the gradients (clipping, the optimizer).
        """
        if not self.warming_up:
            return
        own = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in self.parameters]
        flat = self._whole.read(own)
        job = self.link.submit(lambda: self.loop.average(flat, self._whole, tokens))
        begun_s = time.perf_counter()
        self._whole.write(own, job.result())
        self.waited_s += time.perf_counter() - begun_s
        for parameter, gradient in zip(self.parameters, own, strict=True):
            if parameter.requires_grad and parameter.grad is None and bool(gradient.any()):
                parameter.grad = gradient  # used in another region only

    def after_step(self, tokens: int = 1) -> None:
        """Count one inner step of `tokens` tokens; apply and begin the rounds that are due."""
        self.steps += 1
        if self.steps <= self.strategy.warmup_steps:
            if not self.warming_up:
                self._end_warm_up()
            return
        self.fresh_tokens += tokens
        self.position += 1
        for number in range(len(self.fragments)):
            self.since[number] += 1
            self.tokens[number] += tokens
        while self.pending and self.pending[0].due <= self.steps:
            self._apply(self.pending.popleft(), self.strategy.mixing)
        for fragment in self.fragments:
            if self._begins(fragment):
                self._begin(fragment)
        if self.strategy.delay_steps == 0:
            while self.pending:
                self._apply(self.pending.popleft(), self.strategy.mixing)

    def flush(self) -> None:
        """Apply what is under way and exchange what is left: afterwards all members hold equal parameters.

        To be called by all members after the same number of steps; before hand-overs and at the end.
        """
        if self.steps and self.warming_up:
            self._end_warm_up()
        while self.pending:
            self._apply(self.pending.popleft(), 1.0)
        for fragment in self.fragments:
            if self.since[fragment.number] or self.strategy.mixing < 1.0:
                self._begin(fragment)
        while self.pending:
            self._apply(self.pending.popleft(), 1.0)
        self.position = 0

    @contextmanager
    def outer_parameters(self) -> Generator[None]:
        """Inside, the model holds the outer parameters, equal on all members; afterwards its own again."""
        if self.warming_up:
            yield
            return
        own = [fragment.read(self.parameters) for fragment in self.fragments]
        self._write(self.applied)
        try:
            yield
        finally:
            self._write(own)

    def state_dict(self) -> dict[str, Any]:
        """See `isthmus.runtime.local_steps.state`."""
        from isthmus.runtime.local_steps.state import state_of

        return state_of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `isthmus.runtime.local_steps.state`."""
        from isthmus.runtime.local_steps.state import load_state

        load_state(self, state)

    def _begins(self, fragment: Fragment) -> bool:
        inner, offset = self.strategy.inner_steps, self.strategy.inner_steps * (fragment.number + 1)
        return (self.position - 1) % inner + 1 == -(-offset // self.strategy.fragments)

    def _begin(self, fragment: Fragment) -> None:
        sent, number = fragment.read(self.parameters), fragment.number
        given = Contribution(number, sent, self.tokens[number], self.fresh_tokens)
        self.since[number] = self.tokens[number] = self.fresh_tokens = 0
        arrival = self.link.submit(lambda: self.loop.round(given))
        self.pending.append(Pending(fragment, sent, self.steps, self.steps + self.strategy.delay_steps, arrival))

    def arrival_of(self, pending: Pending) -> Arrival:
        """Wait for a round."""
        begun_s = time.perf_counter()
        arrival = pending.arrival.result()
        self.waited_s += time.perf_counter() - begun_s
        return arrival

    def _apply(self, pending: Pending, mixing: float) -> None:
        arrival, fragment = self.arrival_of(pending), pending.fragment
        learned = self.steps > pending.began
        if mixing == 1.0:
            # In this order a region without progress since `sent` gets exactly the new outer parameters.
            merged = arrival.outer + (fragment.read(self.parameters) - pending.sent) if learned else arrival.outer
        else:
            merged = fragment.read(self.parameters).add_(arrival.outer - pending.sent, alpha=mixing)
        fragment.write(self.parameters, merged)
        if fragment is self.fragments[fragment.number]:  # else of the cut before a load, which has brought its result
            self.applied[fragment.number] = arrival.outer
        if self.on_arrival is not None:
            self.on_arrival(arrival)

    def _end_warm_up(self) -> None:
        flats = [fragment.read(self.parameters) for fragment in self.fragments]
        self.link.submit(lambda: self.loop.adopt(flats)).result()
        self.applied = list(flats)

    def _write(self, flats: list[torch.Tensor]) -> None:
        for fragment, flat in zip(self.fragments, flats, strict=True):
            fragment.write(self.parameters, flat)
