"""How a region finds its place in a run: in the first generation, or as a newcomer to one that is under way."""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from isthmus.errors import InputError
from isthmus.plan import Survival
from isthmus.runtime.environment import Members
from isthmus.runtime.federation.entry import decide_entry
from isthmus.runtime.federation.facts import Ask, End, Follow, Form, Join, Over, Stall, View
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.ledger import dump, read_end, read_view, succeed
from isthmus.runtime.federation.lookout import LOOK_S, Lookout, Standing
from isthmus.runtime.federation.store import Store, StoreLostError
from isthmus.runtime.wan.frames import PeerLostError

__all__ = ["Entrance"]

T = TypeVar("T")
SAY_S: Final = 10.0
LATE_HINT: Final = "for another run start the regions that were there first, or a coordinator with a journal of its own"


class Entrance(Lookout):
    """The part of a `Membership` that comes first; see there for the arguments."""

    def __init__(
        self,
        store: Store,
        region: str,
        members: Members,
        survival: Survival,
        *,
        terms: Mapping[str, str] | None = None,
        run: str = "run",
    ) -> None:
        super().__init__(store, region, members, survival, run)
        self._terms = dict(terms or {})

    def enter(self) -> Generation:
        """Find this region's place: in the first generation, or as a newcomer to one that runs; waits for it.

        Raises:
            PeerLostError: Too few regions came within `start_s`; says who is missing.
            InputError: The region was started with other terms than the others, or the run has ended without it.
        """
        with self._guard:
            self._generation, self._recorded, self._superseded = None, None, False
            self._standing = Standing()
            self._incarnation = secrets.token_hex(8)
        deadline_s = time.monotonic() + self.survival.start_s
        self._through_loss(self._register, deadline_s)
        self._through_loss(self._check_terms, deadline_s)
        self._through_loss(self._begin_another, deadline_s)
        self._stand_by()
        generation = self._find_place(deadline_s)
        with self._guard:
            self._generation, self._recorded, self._entered = generation, None, True
            self._standing = Standing(
                applied=generation.round - 1, tokens=generation.tokens, stateless=self.region in generation.joined
            )
        return generation

    def _check_terms(self) -> None:
        text = json.dumps(self._terms, sort_keys=True)
        if self._store.txn({self._ledger.terms: 0}, {self._ledger.terms: text}):
            return
        entry = self._store.get(self._ledger.terms)
        theirs: dict[str, str] = json.loads(entry.value) if entry else {}
        for name in sorted({*theirs, *self._terms}):
            if theirs.get(name) != self._terms.get(name) and self._others_live():
                raise InputError(
                    name,
                    f"region {self.region} was started with {self._terms.get(name)}, the others with {theirs.get(name)}",
                    "start all regions alike",
                )
        if theirs != self._terms:
            self._store.txn({}, {self._ledger.terms: text})

    def _others_live(self) -> bool:
        view = read_view(self._ledger, self._store.list(self._ledger.prefix))
        return any(region != self.region for region in view.live)

    def _begin_another(self) -> None:
        """Where the run that this region was in has ended, take its end away: this one starts to begin another."""
        entry = self._store.get(self._ledger.end)
        end = read_end(entry) if entry is not None else None
        if entry is not None and end is not None and self.region in end.regions:
            self._store.txn({self._ledger.end: entry.revision}, {}, (self._ledger.end,))

    def _find_place(self, deadline_s: float) -> Generation:
        said_s = -SAY_S
        while True:
            view, revision = self._through_loss(self._look, deadline_s)
            if view.live.get(self.region, self._incarnation) != self._incarnation:
                raise InputError(
                    "ISTHMUS_REGION", f"another process now runs as region {self.region!r}", "start each region once"
                )
            verdict = decide_entry(view, self.region, self.rules)
            if isinstance(verdict, Follow):
                return verdict.generation
            if isinstance(verdict, Over):
                raise InputError("ISTHMUS_COORDINATOR", _ended(verdict.end, self.region), LATE_HINT)
            why = self._pursue(verdict, view)
            if not why:
                continue
            if isinstance(verdict, Stall) and time.monotonic() > deadline_s and not self._entered:
                raise PeerLostError(f"region {self.region} waited {self.survival.start_s:g} s: {why}")
            if time.monotonic() - said_s >= SAY_S:
                said_s = time.monotonic()
                self.say(why)
            self._await(revision, LOOK_S)

    def _pursue(self, verdict: Form | Ask | Stall, view: View) -> str:
        """One step on the way in; what is waited for, or nothing where there is more to do at once."""
        match verdict:
            case Form():
                self._quietly(lambda: self._form(verdict, view, None))
                return ""
            case Ask(generation):
                asked = False
                with suppress(StoreLostError):
                    asked = self._ask(generation, view)
                if asked or generation is None:
                    return ""
                return f"generation {generation.number} of {', '.join(generation.regions)} runs; asking to come in"
            case Stall(why):
                if view.live.get(self.region) is None:
                    self._quietly(self._register)
                return why

    def _through_loss(self, work: Callable[[], T], deadline_s: float) -> T:
        """While the store cannot be reached, try again: until the deadline at the start, for ever once there was a place."""
        while True:
            try:
                return work()
            except StoreLostError as error:
                if time.monotonic() > deadline_s and not self._entered:
                    raise
                self.say(f"{error}; trying on")

    def _ask(self, generation: Generation | None, view: View) -> bool:
        """Write that this region wants to come in, where that is not what stands there; not again once it is let in."""
        found = self._reach(generation.regions) if generation is not None else {}
        reach = frozenset(region for region, state in found.items() if state == "open")
        join = Join(incarnation=self._incarnation, branch=generation.branch if generation else "", reach=reach)
        if view.joins.get(self.region) == join:
            return False
        self._put(self._ledger.join(self.region), dump(join), view.join_revisions.get(self.region, 0))
        return True

    def _form(self, form: Form, view: View, old: Generation | None) -> None:
        generation = form.generation
        compares, puts, deletes = succeed(self._ledger, view, old, form)
        if self._store.txn(compares, puts, tuple(deletes)):
            said = f"generation {generation.number}: {', '.join(generation.regions)} from round {generation.round}"
            self.say(said + (f", branch of {generation.branch}" if generation.branch else ""))


def _ended(end: End, region: str) -> str:
    there = ", ".join(sorted(end.regions))
    return f"the run there is over: {there} ended it after round {end.round - 1} with {end.tokens} tokens, without {region}"
