"""Local steps: regions train alone for K steps, then average what they learned and take one outer step with it.

The parameters are cut into fragments. Each is exchanged every K inner steps, the fragments evenly offset, so that the link
is busy all the time and never with everything at once. A round runs in the background and is applied `delay_steps` later (up
to K: then all fragments may be under way at once); what a region learned meanwhile is kept on top. With outer learning
rate 1 and no momentum this is plain parameter averaging. The first `warmup_steps` steps average gradients instead, so that
the inner optimizers' moments, which regions never exchange, are the same everywhere when local steps begin.

Where rounds survive the loss of a region (`RoundsLink`), a region that comes back takes over the outer state and goes on from
it. With a grace, regions may take unequal numbers of steps: see `windows`.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from isthmus.errors import InputError
from isthmus.plan import Strategy
from isthmus.runtime.device import require_runnable
from isthmus.runtime.federation.states import Rejoined, State
from isthmus.runtime.local_steps.fragments import Fragment, cut
from isthmus.runtime.local_steps.link import OuterLink
from isthmus.runtime.local_steps.outer import Arrival, Contribution, OuterLoop, RejoinedError
from isthmus.runtime.local_steps.windows import Windows

__all__ = ["Arrival", "LocalSync", "Pending"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pending:
    """A round under way.

    Attributes:
        fragment: What is exchanged.
        sent: Its parameters when the round began.
        began, due: Inner steps taken when it began, and when it is to be applied.
        arrival: Its result to come; None if the round went on without this region after all.
        tokens, fresh_tokens: Of its contribution.
    """

    fragment: Fragment
    sent: torch.Tensor
    began: int
    due: int
    arrival: "Future[Arrival | None]"
    tokens: int = 0
    fresh_tokens: int = 0


class LocalSync:
    """The outer loop over one set of parameters; call `after_step` once after every inner optimizer step.

    Every rank of a region must hold the same parameters (DDP inside the region sees to it). Buffers and the inner
    optimizer's state stay each region's own.

    Args:
        parameters: float32, on the CPU or a GPU (the outer state is on the host), the same list on every member, equal in all
            regions now.
        link: The way to the other members.
        strategy: All that concerns local steps is read.
        grace_s: None: all regions take equal numbers of steps, and the slowest sets the pace. Otherwise a region that is not
            ready so long after the first one is not waited for; the link must be elastic.

    Attributes:
        loop: The outer state. The communication thread's while a round is under way.
        steps: Inner steps so far by the common schedule: a region that takes over the others' state takes over their count.
        rejoined: How this region last took over the others' state, and `discarded_tokens` how many tokens of its own that it
            had trained on were lost by doing so, in all.
        waited_s: Seconds spent waiting for exchanges, in all.
        on_arrival: Called with each `Arrival` once it is applied.
        changes: What the last `load_state_dict` could not restore as it was, in words; empty: bit for bit the same.

    Raises:
        InputError: `delay_steps` exceeds `inner_steps`, there are more fragments than parameters, or a parameter has another
            dtype or device.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        link: OuterLink,
        strategy: Strategy,
        grace_s: float | None = None,
    ) -> None:
        if strategy.delay_steps > strategy.inner_steps:
            raise InputError(
                "strategy.delay_steps",
                f"is {strategy.delay_steps}, more than inner_steps {strategy.inner_steps}",
                "a fragment's round ends before its next one begins; give at most inner_steps",
            )
        self.parameters, self.link, self.strategy = list(parameters), link, strategy
        require_runnable(((str(number), parameter) for number, parameter in enumerate(self.parameters)), "model")
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
        self.rejoined: Rejoined | None = None
        self.discarded_tokens = 0
        self._life = self.loop.lives
        self.windows = None if grace_s is None else Windows(self, grace_s)

    @property
    def warming_up(self) -> bool:
        """Whether the step to come is one of the first that average gradients."""
        return self.steps < self.strategy.warmup_steps

    @property
    def scheduled_steps(self) -> int:
        """How many steps a region that was there from the start has taken when the last round began; without a grace."""
        rounds, fragments = self.loop.rounds - self.loop.averaged, len(self.fragments)
        if rounds <= 0:
            return self.loop.averaged
        whole, last = divmod(rounds - 1, fragments)
        return self.strategy.warmup_steps + self.strategy.inner_steps * whole + self._offset(self.fragments[last])

    def average_gradients(self, tokens: int = 1) -> None:
        """While warming up, replace the gradients by their mean over regions; otherwise do nothing.

        To be called between the backward pass (of `tokens` tokens) and whatever reads the gradients (clipping, the optimizer).
        """
        if not self.warming_up:
            return
        own = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in self.parameters]
        flat = self._whole.read(own)
        mean = self._wait(self.link.submit(lambda: self.loop.average(flat, self._whole, tokens)))
        if mean is None:
            self.catch_up()
            self.average_gradients(tokens)
            return
        self._whole.write(own, mean)
        for parameter, gradient in zip(self.parameters, own, strict=True):
            if parameter.requires_grad and parameter.grad is None and bool(gradient.any()):
                parameter.grad = gradient  # used in another region only

    def after_step(self, tokens: int = 1) -> None:
        """Count one inner step of `tokens` tokens; apply and begin the rounds that are due."""
        self.steps += 1
        if self.steps <= self.strategy.warmup_steps:
            if not self.warming_up:
                self._end_warm_up()
            elif self.link.elastic:
                self.loop.begin_from(self._read())
            return
        self.position += 1
        self.fresh_tokens += tokens
        for number in range(len(self.fragments)):
            self.since[number] += 1
            self.tokens[number] += tokens
        if self.windows is not None:
            self.windows.after_step()
            return
        life = self._life
        self.land_due()
        if self._life != life:
            return  # its step was discarded, and the window that begins now is the others'
        for fragment in self.fragments:
            if self._begins(fragment):
                self._begin(fragment)
        if self.strategy.delay_steps == 0:
            self.land_all(self.strategy.mixing)

    def flush(self) -> None:
        """Apply what is under way and exchange what is left: afterwards all members hold equal parameters.

        To be called by all members, after the same number of steps unless there is a grace; before hand-overs and at the end.
        """
        if self.steps and self.warming_up:
            self._end_warm_up()
        if self.windows is not None:
            self.windows.flush()
            return
        self.land_all(1.0)
        if self.link.elastic:
            self._flush_together()
            return
        for fragment in self.fragments:
            if self.since[fragment.number] or self.strategy.mixing < 1.0:
                self._begin(fragment)
        self.land_all(1.0)
        self.position = 0

    def settle(self) -> None:
        """Where this region took over the others' state, go on from it; else nothing.

        Its own steps since its last round are discarded. It comes to the next round with nothing to bring, and begins its
        next window where the others begin theirs. To be called when training begins (after the federation was opened) and goes
        on after a flush: with a grace, rounds begin here. Else `after_step` does it where a round comes back void, which is at
        the same step on all ranks of the region.
        """
        self.catch_up()
        if self.windows is not None and not self.warming_up:
            self.windows.start()

    def catch_up(self) -> None:
        """`settle` without beginning anything new."""
        while self._life != self.loop.lives:
            self._life = self.loop.lives
            self.discarded_tokens += self.fresh_tokens + sum(one.fresh_tokens for one in self.pending)
            self.pending.clear()
            none = [0] * len(self.fragments)
            self.since, self.tokens, self.fresh_tokens = none, list(none), 0
            self.take_outer()
            if self.loop.averaged <= self.strategy.warmup_steps > 0:
                self.steps, self.position = self.loop.averaged, 0
                if not self.warming_up:
                    self._end_warm_up()
                continue
            self.steps = max(self.steps, self.strategy.warmup_steps)
            if self.loop.rounds and self.windows is None:
                self._follow()

    def export_state(self, rail: int) -> State:
        """See `isthmus.runtime.federation.states.StateKeeper`: outer parameters and momentum, 8 bytes a parameter at most."""
        return self.loop.export(rail)

    def adopt_state(self, parts: Mapping[int, State], rejoined: Rejoined) -> None:
        """See `isthmus.runtime.federation.states.StateKeeper`; the model follows at the next step, or by `settle`."""
        self.rejoined = rejoined
        if rejoined.why != "equal":
            self.loop.take_over(parts)

    def lost_place(self) -> bool:
        """Whether the others' state was taken over since this thread last went on from it."""
        return self._life != self.loop.lives

    def take_outer(self) -> None:
        """Put the committed outer parameters into the model. No round may be under way."""
        self.loop.forget_missed()
        self.applied = list(self.loop.outer)
        self._write(self.applied)

    @contextmanager
    def outer_parameters(self) -> Generator[None]:
        """Inside, the model holds the outer parameters, equal on all members; afterwards its own again."""
        if self.warming_up:
            yield
            return
        own = self._read()
        self._write(self.applied)
        try:
            yield
        finally:
            self._write(own)

    def state_dict(self) -> dict[str, Any]:
        """See `isthmus.runtime.local_steps.state`."""
        from isthmus.runtime.local_steps.state import state_of

        return state_of(self)

    def await_rounds(self) -> None:
        """Find out how the rounds under way end, and go on from the others' state where one is void. To be called by all ranks
        of the region after the same step. With a grace rounds go on beside, and nothing is awaited.
        """
        from isthmus.runtime.local_steps.state import await_rounds

        if self.windows is None:
            await_rounds(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `isthmus.runtime.local_steps.state`."""
        from isthmus.runtime.local_steps.state import load_state

        load_state(self, state)

    def _begins(self, fragment: Fragment) -> bool:
        return (self.position - 1) % self.strategy.inner_steps + 1 == self._offset(fragment)

    def _offset(self, fragment: Fragment) -> int:
        """At which step of its K the fragment's round begins."""
        return -(-self.strategy.inner_steps * (fragment.number + 1) // self.strategy.fragments)

    def _begin(self, fragment: Fragment, *, last: bool = False) -> None:
        given, life = self.contribution(fragment, last=last), self._life
        self.add_pending(fragment, given, self.link.submit(lambda: self.loop.round(given, life)))

    def contribution(self, fragment: Fragment, *, last: bool = False) -> Contribution:
        """What this region would bring to a round of `fragment` now."""
        number = fragment.number
        sent = fragment.read(self.parameters)
        step = self.steps if self.windows is None else 0
        return Contribution(number, self.applied[number], sent, self.tokens[number], self.fresh_tokens, last, step)

    def add_pending(self, fragment: Fragment, given: Contribution, arrival: "Future[Any]") -> None:
        """Note that `given` is on its way."""
        number, due = fragment.number, self.steps + self.strategy.delay_steps
        self.pending.append(Pending(fragment, given.sent, self.steps, due, arrival, given.tokens, given.fresh_tokens))
        self.since[number] = self.tokens[number] = self.fresh_tokens = 0

    def land_due(self) -> None:
        """Apply the rounds whose time has come."""
        while self.pending and self.pending[0].due <= self.steps:
            self._land(self.pending.popleft(), self.strategy.mixing)

    def land_one(self) -> None:
        """Apply the oldest round under way."""
        self._land(self.pending.popleft(), self.strategy.mixing)

    def land_all(self, mixing: float) -> None:
        """Apply all rounds under way."""
        while self.pending:
            self._land(self.pending.popleft(), mixing)

    def arrival_of(self, pending: Pending) -> Arrival | None:
        """Wait for a round.

        Raises:
            RejoinedError: It is void.
        """
        begun_s = time.perf_counter()
        try:
            return pending.arrival.result()
        finally:
            self.waited_s += time.perf_counter() - begun_s

    def _wait(self, job: "Future[T]") -> T | None:
        """The result of a job; None where the others' state was taken over instead."""
        begun_s = time.perf_counter()
        try:
            return job.result()
        except RejoinedError:
            return None
        finally:
            self.waited_s += time.perf_counter() - begun_s

    def _land(self, pending: Pending, mixing: float) -> None:
        try:
            arrival = self.arrival_of(pending)
        except RejoinedError:
            self.pending.appendleft(pending)
            self.catch_up()
            return
        fragment = pending.fragment
        if arrival is None:
            self.tokens[fragment.number] += pending.tokens
            self.fresh_tokens += pending.fresh_tokens
            self.since[fragment.number] += 1
            return
        for number, outer in dict(arrival.missed).items():
            if number != fragment.number:
                missed = self.fragments[number]
                missed.write(self.parameters, outer + (missed.read(self.parameters) - self.applied[number]))
                self.applied[number] = outer
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
        """All regions hold the same parameters but for rounding, or a newcomer's first ones: take their mean."""
        flat = self._whole.read(self.parameters)
        mean = self._wait(self.link.submit(lambda: self.loop.average(flat, self._whole, 0)))
        if mean is None:
            self.catch_up()
            return
        self.steps = max(self.steps, self.strategy.warmup_steps)
        self._whole.write(self.parameters, mean)
        self.loop.begin_from(self._read())
        self.applied = list(self.loop.outer)

    def _flush_together(self) -> None:
        """Rounds of every fragment, until all regions have called as many in a row their last: one may be behind."""
        while self.loop.idle_rounds < len(self.fragments):
            self._begin(self.fragments[self.loop.following], last=True)
            self.land_all(1.0)
        self.take_outer()
        self.position = self._offset(self.fragments[self.loop.following - 1]) % self.strategy.inner_steps

    def _follow(self) -> None:
        """Come to the others' next round with nothing to bring, and begin the window after it with them, at their step."""
        life, before = self._life, (self.loop.following - 1) % len(self.fragments)
        arrival = self._wait(self.link.submit(lambda: self.loop.round(None, life)))
        if arrival is None:
            return
        self.position = self._offset(self.fragments[arrival.fragment])
        passed = (self.position - self._offset(self.fragments[before])) % self.strategy.inner_steps
        self.steps = self.loop.step + (passed if passed or arrival.fragment > before else self.strategy.inner_steps)
        self.loop.step = self.steps
        self.take_outer()

    def _read(self) -> list[torch.Tensor]:
        return [fragment.read(self.parameters) for fragment in self.fragments]

    def _write(self, flats: list[torch.Tensor]) -> None:
        for fragment, flat in zip(self.fragments, flats, strict=True):
            fragment.write(self.parameters, flat)
