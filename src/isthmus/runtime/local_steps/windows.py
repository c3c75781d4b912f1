"""Unequal steps: rounds that do not wait for a slow region longer than a grace.

A round begins when a region is due, K / F steps after its last contribution: it rings, and every region offers what it has at
its next step, early or not. A region that has offered nothing half a grace after it rang or heard the bell comes to the round
with empty hands (so within the grace that `Rounds` allows): its steps go on, and its delta, with its tokens, goes into the first
round it has an offer for. Nothing is counted twice and nothing is dropped.

All ranks of a region must offer at the same step. The communication threads agree on one that no rank has come to yet, and on
whether all did offer there; the training threads never wait for that. They do wait for a look at the state (`between_rounds`),
which all ranks take between the same two rounds.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isthmus.errors import InputError
from isthmus.runtime.local_steps.link import Bell
from isthmus.runtime.local_steps.outer import Arrival, Contribution, RejoinedError

if TYPE_CHECKING:
    from isthmus.runtime.local_steps.sync import LocalSync

__all__ = ["Windows"]

LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class _Offer:
    """A contribution that stands until a round takes it, or is given back."""

    step: int
    given: Contribution
    arrival: "Future[Arrival | None]"


class Windows:
    """The rounds of one rank: `after_step` and `flush` on the training thread, the rest on the communication thread.

    Attributes:
        running: Whether rounds go on.
        late_rounds: To which this region came with empty hands.
    """

    def __init__(self, sync: "LocalSync", grace_s: float) -> None:
        if not sync.link.elastic:
            raise InputError("survival.grace_s", "needs rounds that a region may miss", "run with a coordinator")
        self._sync, self._patience_s = sync, grace_s / 2
        self._spacing = max(1, sync.strategy.inner_steps // len(sync.fragments))
        self._changed = threading.Condition()
        self.running = self._final = self._late = False
        self._steps, self._contributed_at, self._final_rounds = 0, 0, 0
        self._post: tuple[int, int] | None = None
        self._offer: _Offer | None = None
        self._look: tuple[Callable[[], Any], Future[Any]] | None = None
        self.late_rounds = 0

    # The training thread.

    def after_step(self) -> None:
        """Offer where a round asks for this step; apply what is due."""
        self.start()
        sync = self._sync
        sync.land_due()
        with self._changed:
            self._steps = sync.steps
            asked = self._post is not None and self._post[0] == sync.steps
            self._changed.notify_all()
        if asked:
            self._make_offer(last=False)
        if sync.strategy.delay_steps == 0:
            sync.land_all(sync.strategy.mixing)

    def flush(self) -> None:
        """Take part in rounds until every region has brought all that it has; then all hold the outer parameters."""
        self.start()
        sync = self._sync
        with self._changed:
            self._final, self._final_rounds = True, 0
            self._changed.notify_all()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._post is not None or not self.running, LOOK_S)
                asked, running = self._post is not None, self.running
            if asked:
                self._make_offer(last=True)
            while sync.pending and sync.pending[0].arrival.done():
                sync.land_one()
            if not running and not asked:
                break
        sync.land_all(1.0)
        sync.catch_up()
        sync.take_outer()
        with self._changed:
            self._final = False

    def start(self) -> None:
        """Let rounds go on, unless they do. Until then this region hears no bell, and others wait for it."""
        with self._changed:
            if self.running:
                return
            self.running, self._late = True, False
            self._steps = self._contributed_at = self._sync.steps
        self._sync.link.submit(self._window)

    def between_rounds(self, look: Callable[[], Any]) -> Any:
        """What `look` returns, called when no round is under way; by all ranks of the region, after the same step."""
        asked = look, Future[Any]()
        with self._changed:
            going_on = self.running
            self._look = asked if going_on else None
            self._changed.notify_all()
        return asked[1].result() if going_on else look()

    def _make_offer(self, *, last: bool) -> None:
        sync = self._sync
        with self._changed:
            post = self._post
        if post is None:
            return
        fragment = sync.fragments[post[1]]
        if sync.lost_place():
            sync.catch_up()
        while any(one.fragment is fragment for one in sync.pending):
            sync.land_one()  # its round was over before this one was asked for
        given, arrival = sync.contribution(fragment, last=last), Future[Arrival | None]()
        with self._changed:
            if self._post is not post:  # withdrawn meanwhile
                return
            self._post, self._offer = None, _Offer(sync.steps, given, arrival)
            sync.add_pending(fragment, given, arrival)
            self._changed.notify_all()

    # The communication thread.

    def _window(self) -> None:
        try:
            going_on = self._round()
        except BaseException as error:
            self._end(error)
            raise
        if going_on:
            self._sync.link.submit(self._window)
        else:
            self._end(None)

    def _round(self) -> bool:
        """One round; whether there is another."""
        sync, loop = self._sync, self._sync.loop
        life, bell, fragment = loop.lives, sync.link.ready(), loop.following
        rung, step = self._await_cause(bell)
        with self._changed:
            self._post = (step, fragment)
            self._changed.notify_all()
        offer = self._await_offer(bell, rung)
        word = 0 if offer is None else 2 * offer.step + 1 + int(offer.given.last)
        said = sync.link.region_numbers(word)
        taken = offer if word and len(set(said)) == 1 else None
        if offer is not None and taken is None:
            offer.arrival.set_result(None)
        self._late = taken is None
        self.late_rounds += int(self._late)
        try:
            arrival = loop.round(taken.given if taken else None, life)
        except RejoinedError as error:
            if taken is not None:
                taken.arrival.set_exception(error)
            return True
        if taken is not None:
            with self._changed:
                self._final_rounds += int(taken.given.last)
                self._contributed_at = taken.step
            taken.arrival.set_result(arrival)
        return loop.idle_rounds < len(sync.fragments)

    def _await_cause(self, bell: Bell) -> tuple[bool, int]:
        """Until a rank of this region is due (then it rings), was late, or hears another region.

        Returns:
            Whether this rank rang, and the first step that no rank has come to yet.
        """
        rung = False
        while True:
            with self._changed:
                while not (due := self._due()) and not self._late and not bell.heard() and self._look is None:
                    self._changed.wait(LOOK_S)
                cause, look = due or self._late or bell.heard(), self._look
            if due and not rung:
                bell.ring()
                rung = True
            said = self._sync.link.region_numbers(self._steps * 4 + 2 * (look is not None) + cause)
            if look is not None and all(number & 2 for number in said):
                self._answer(look)
            if any(number & 1 for number in said):
                return rung, max(number >> 2 for number in said) + 1

    def _answer(self, look: tuple[Callable[[], Any], "Future[Any]"]) -> None:
        """Let the training thread, which waits, have its look."""
        self._look = None
        work, found = look
        try:
            if self._sync.lost_place():
                self._sync.catch_up()
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    def _await_offer(self, bell: Bell, rung: bool) -> _Offer | None:
        """The offer, once there is a reason to go on; None when half a grace has passed after it."""
        until_s: float | None = None
        while True:
            with self._changed:
                if not rung and self._due():
                    bell.ring()
                    rung = True
                called = rung or bell.heard()
                if called and until_s is None:
                    until_s = time.monotonic() + self._patience_s
                if called and (self._offer is not None or (until_s is not None and time.monotonic() >= until_s)):
                    offer, self._offer, self._post = self._offer, None, None
                    return offer
                self._changed.wait(LOOK_S)

    def _due(self) -> bool:
        if self._final:
            return self._final_rounds < len(self._sync.fragments)
        return self._steps - self._contributed_at >= self._spacing

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            offer, self._offer, self._post, self.running = self._offer, None, None, False
            look, self._look = self._look, None
            self._changed.notify_all()
        if look is not None and error is not None:
            look[1].set_exception(error)
        elif look is not None:
            self._answer(look)
        if offer is not None:
            offer.arrival.set_exception(error or RejoinedError())
