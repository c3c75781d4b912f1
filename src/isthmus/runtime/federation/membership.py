"""A region's place among the others, kept by the leader (rank 0) of the region through the store.

Two threads stand by: one keeps the region's lease alive, the other watches the run's entries. The watcher answers for a region
that is between rounds when the others regroup, and interrupts one that is inside a round. No call here is made in a round that
does not fail, save `begin` and `rest`, which touch memory only: while the store is lost, rounds go on.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from isthmus.errors import InputError
from isthmus.plan import Survival
from isthmus.runtime.environment import Members
from isthmus.runtime.federation.decisions import (
    Ask,
    Follow,
    Form,
    Join,
    Record,
    Stall,
    View,
    best_branch,
    decide_entry,
    decide_regroup,
    holders,
)
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.ledger import dump, read_view
from isthmus.runtime.federation.presence import PROBE_S, Presence
from isthmus.runtime.federation.reach import Reach
from isthmus.runtime.federation.store import Store, StoreLostError, StoreRefusedError
from isthmus.runtime.wan.frames import PeerLostError

__all__ = ["Begin", "Membership", "Regrouped", "Standing"]

T = TypeVar("T")
WATCH_S: Final = 10.0
LOOK_S: Final = 0.5
SAY_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far the region is; see `decisions.Record` for the fields."""

    applied: int = -1
    tokens: int = 0
    voted: bool = False
    voted_digest: int = 0
    voted_tokens: int = 0
    stateless: bool = True


@dataclass(frozen=True, slots=True)
class Begin:
    """Whether a round may begin, and which regions (bits, in the order of the members) this one would let in after it."""

    ok: bool
    comers: int = 0


@dataclass(frozen=True, slots=True)
class Regrouped:
    """What came of a regroup: the next generation, and whether this region is in it. If not, it has to `enter` anew."""

    generation: Generation
    member: bool
    why: str = ""


class Membership(Presence):
    """The region's membership. `enter` first; all methods but `leave` may raise `InputError` once the place is lost for good.

    Args:
        store: Where the regions meet; closed by `leave`.
        region: Name of this region.
        members: All regions that may take part.
        survival: Time-outs and what a partition does.
        terms: What every region must have been started with (name -> text).
        run: Name of the run in the store.

    Attributes:
        on_regroup: Called on the watcher's thread when a round under way cannot succeed any more.
        probe, say: How other regions are reached, and where news go; to be replaced before `enter`.
        store_lost: Nobody answered there lately.
    """

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
        self.on_regroup: Callable[[Generation], None] = _ignore
        self._terms = dict(terms or {})
        self._guard = threading.Lock()
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="isthmus-aside")
        self._threads: list[threading.Thread] = []
        self._view, self._revision = View(), 0
        self._generation: Generation | None = None
        self._standing = Standing()
        self._busy = self._entered = self._idle = False
        self._recorded: tuple[str, int] | None = None
        self._superseded = False
        self._reachable: dict[str, bool] = {}
        self._progress_written = -1

    def enter(self) -> Generation:
        """Find this region's place: in the first generation, or as a newcomer to one that runs; waits for it.

        Raises:
            PeerLostError: Too few regions came within `start_s`; says who is missing.
            InputError: The region was started with other terms than the others.
        """
        with self._guard:
            self._generation, self._recorded, self._superseded = None, None, False
            self._standing = Standing()
            self._incarnation = secrets.token_hex(8)
        deadline_s = time.monotonic() + self.survival.start_s
        self._through_loss(self._register, deadline_s)
        self._through_loss(self._check_terms, deadline_s)
        if not self._threads:
            for work in (self._keep_alive, self._watch):
                thread = threading.Thread(target=work, name=f"isthmus-membership-{work.__name__}", daemon=True)
                self._threads.append(thread)
                thread.start()
        generation = self._find_place(deadline_s)
        with self._guard:
            self._generation, self._recorded, self._entered = generation, None, True
            self._standing = Standing(
                applied=generation.round - 1, tokens=generation.tokens, stateless=self.region in generation.joined
            )
        return generation

    def begin(self) -> Begin:
        """A round is to begin; until `rest` or `regroup` the watcher interrupts it where it cannot succeed."""
        with self._guard:
            self._raise_fatal()
            generation = self._generation
            assert generation is not None, "begin before enter"
            ok = self._recorded is None and not self._superseded and not self._disturbed(generation)
            self._busy = ok
            return Begin(ok, self._comers(generation) if ok else 0)

    def rest(self, standing: Standing) -> None:
        """The round is over, and this is how far the region is now."""
        with self._guard:
            self._busy, self._standing = False, standing
        self._look_after()

    def regroup(self, standing: Standing, late: Collection[str] = ()) -> Regrouped:
        """Leave the generation, and find the next one together with whoever is there; waits for it.

        Args:
            standing: How far this region is. From here on it takes part in no round of the old generation.
            late: Regions that did not begin the round within the grace.
        """
        with self._guard:
            self._raise_fatal()
            old = self._generation
            assert old is not None, "regroup before enter"
            self._busy, self._standing = False, standing
            if self._superseded:
                return Regrouped(old, False, "superseded")
            self._idle = False
            mine = self._recorded != (old.branch, old.number)
            self._recorded = (old.branch, old.number)
        begun_s = time.monotonic()
        if mine:
            self._write_record(old, frozenset(late))
        else:  # the watcher has answered for this region; now it has come
            self._patiently(lambda: self._renew_record(old, frozenset(late), View()))
        found = self._decide(old, frozenset(late), begun_s)
        with self._guard:
            if found.member:
                self._generation, self._recorded = found.generation, None
                stateless = self.region in found.generation.joined
                self._standing = replace(standing, stateless=stateless, voted=False)
        return found

    def progress(self, tokens: int) -> None:
        """Tokens that this branch has committed; written to the store by and by."""
        with self._guard:
            self._standing = replace(self._standing, tokens=tokens)

    def gone(self, generation: Generation) -> bool:
        """Whether rails of `generation` need not be waited for: it is being left, or a member's process is gone."""
        with self._guard:
            if self._recorded is not None or self._superseded or self._disturbed(generation):
                return True
            live = self._view.live
        others = [region for region in generation.regions if region != self.region]
        lost = [
            region
            for region, incarnation in zip(generation.regions, generation.incarnations, strict=True)
            if live.get(region) != incarnation
        ]
        return bool(lost) or "refused" in self._reach(others).values()

    def leave(self) -> None:
        """End the lease, so that the others need not wait for its end, and close the store."""
        self._stopping.set()
        if self._lease:
            with suppress(StoreLostError, StoreRefusedError):
                self._store.revoke(self._lease)
        self._store.close()
        for pool in (self._aside, self._probers):
            pool.shutdown(wait=False, cancel_futures=True)
        for thread in self._threads:
            thread.join(2.0)

    # Entering.

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

    # Regrouping.

    def _write_record(self, old: Generation, late: frozenset[str]) -> None:
        """First that this region stops, which stops the others; then, when that is known, whom it reaches."""
        key = self._ledger.record(old, self.region)
        self._patiently(lambda: self._put(key, dump(self._record(late, {}, probing=True)), 0))
        found = self._reach([region for region in self.rules.order if region != self.region and self._concerns(old, region)])
        self._patiently(lambda: self._put_again(key, dump(self._record(late, found, probing=False))))

    def _put_again(self, key: str, value: str) -> None:
        """Replace an entry of this region; once it is gone it stays so, for the region has been moved by it."""
        entry = self._store.get(key)
        if entry is not None:
            self._put(key, value, entry.revision)

    def _concerns(self, old: Generation, region: str) -> bool:
        with self._guard:
            return region in old.regions or region in self._view.joins

    def _record(self, late: frozenset[str], found: Mapping[str, Reach], *, probing: bool) -> Record:
        with self._guard:
            standing = self._standing
        return Record(
            incarnation=self._incarnation,
            applied=standing.applied,
            tokens=standing.tokens,
            voted=standing.voted,
            voted_digest=standing.voted_digest,
            voted_tokens=standing.voted_tokens,
            stateless=standing.stateless,
            suspects=frozenset(region for region, reach in found.items() if reach != "open"),
            dead=frozenset(region for region, reach in found.items() if reach == "refused"),
            late=late,
            idle=self._idle,
            probing=probing,
        )

    def _decide(self, old: Generation, late: frozenset[str], begun_s: float) -> Regrouped:
        said, looked_s = "", time.monotonic()
        while True:
            self._raise_fatal()
            try:
                view, revision = self._look()
            except StoreLostError as error:
                if self.rules.on_partition == "continue" and time.monotonic() - begun_s > self.survival.detect_s:
                    return self._go_alone(old)
                if not said:
                    said = f"the store is lost; the next sync waits for it ({error})"
                    self.say(said)
                continue
            verdict = decide_regroup(
                view, old, self.region, self.rules, waited=time.monotonic() - begun_s > self.survival.detect_s
            )
            match verdict:
                case Follow(generation):
                    member = generation.holds(self.region, self._incarnation)
                    why = "" if member else ("late" if self.region in generation.late else "excluded")
                    return Regrouped(generation, member, why)
                case Form():
                    self._patiently(lambda form=verdict, seen=view: self._form(form, seen, old))
                    continue
                case Stall(why, partition):
                    if partition and why != said:
                        said = why
                        self.say(f"{why}; syncs wait, training goes on")
            looked_s = self._keep_record(old, late, view, looked_s)
            self._await(revision, LOOK_S)

    def _keep_record(self, old: Generation, late: frozenset[str], view: View, looked_s: float) -> float:
        """Write the record again where it went with a lease that ended, or where links have changed; when that was looked at."""
        if self.region not in view.records.get((old.branch, old.number), {}):
            self._write_record(old, late)
        elif time.monotonic() - looked_s > LOOK_S:
            self._renew_record(old, late, view)
        else:
            return looked_s
        return time.monotonic()

    def _renew_record(self, old: Generation, late: frozenset[str], view: View) -> None:
        """Write anew whom this region reaches, where that changed: links heal."""
        found = self._reach([region for region in self.rules.order if region != self.region and self._concerns(old, region)])
        record = self._record(late, found, probing=False)
        written = view.records.get((old.branch, old.number), {}).get(self.region)
        if written != record:
            self._quietly(lambda: self._put_again(self._ledger.record(old, self.region), dump(record)))

    def _go_alone(self, old: Generation) -> Regrouped:
        """`continue` without a store: a branch of this region only, written down when the store is back."""
        self.say("the store is lost: this region goes on alone, as its own branch")
        standing = self._standing
        done = 1 if standing.voted else 0
        # The others may still move the old incarnation into a generation of theirs, by a record it has left behind.
        self._incarnation, self._registered = secrets.token_hex(8), False
        generation = Generation(
            number=old.number + 1,
            regions=(self.region,),
            incarnations=(self._incarnation,),
            round=standing.applied + 1 + done,
            tokens=standing.tokens + done * standing.voted_tokens,
            branch=self.region,
        )
        return Regrouped(generation, True)

    def _form(self, form: Form, view: View, old: Generation | None) -> None:
        ledger, generation = self._ledger, form.generation
        key = ledger.generation(generation.branch)
        deletes = [ledger.generation(branch) for branch in form.ends]
        deletes += [ledger.join(region) for region in form.admits]
        compares = {key: form.revision} | {ledger.join(region): revision for region, revision in form.admits.items()}
        if old is not None:
            compares |= {ledger.record(old, region): revision for region, revision in form.rests_on.items()}
            deletes += [ledger.record(old, region) for region in view.records.get((old.branch, old.number), {})]
        if self._store.txn(compares, {key: dump(generation)}, tuple(deletes)):
            said = f"generation {generation.number}: {', '.join(generation.regions)} from round {generation.round}"
            self.say(said + (f", branch of {generation.branch}" if generation.branch else ""))

    # Standing by.

    def _keep_alive(self) -> None:
        every_s = self.survival.detect_s / 4
        while not self._stopping.wait(every_s):
            with suppress(StoreLostError, StoreRefusedError):
                alive = self._store.keep_alive(self._lease)
                if not (alive and self._registered) and not self._stopping.is_set():
                    self._lease = self._lease if alive else 0
                    self._register()
                self._write_progress()

    def _write_progress(self) -> None:
        with self._guard:
            generation, tokens = self._generation, self._standing.tokens
        if generation is not None and tokens != self._progress_written and generation.regions[0] == self.region:
            self._store.txn({}, {self._ledger.progress(generation.branch): str(tokens)})
            self._progress_written = tokens

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                listing = self._store.watch(self._ledger.prefix, self._revision, min(WATCH_S, self.survival.detect_s))
                self.store_lost = False
                if listing is not None:
                    self._see(read_view(self._ledger, listing), listing.revision)
                self._write_generation()
            except StoreLostError as error:
                if not self.store_lost and not self._stopping.is_set():
                    self.say(f"{error}; training goes on")
                self.store_lost = True
                self._stopping.wait(LOOK_S)
                continue
            except (StoreRefusedError, InputError) as error:
                self._fatal = error
                return
            self._look_after()

    def _see(self, view: View, revision: int) -> None:
        with self._guard:
            if revision >= self._revision:
                self._view, self._revision = view, revision
            incarnation = view.live.get(self.region, self._incarnation)
            mine = self._generation
            if (
                self._registered
                and incarnation != self._incarnation
                and mine is not None
                and mine.holds(self.region, self._incarnation)
            ):
                self._fatal = InputError(
                    "ISTHMUS_REGION", f"another process now runs as region {self.region!r}", "start each region once"
                )

    def _look_after(self) -> None:
        """Answer for a region at rest, interrupt one in a round, look whether newcomers and other branches are in reach."""
        with self._guard:
            generation = self._generation
            if generation is None or self._recorded is not None or self._stopping.is_set():
                return
            disturbed = self._disturbed(generation) or self._fatal is not None
            busy = self._busy
            left = self._has_record(generation) and not self._has_successor(generation)
            if disturbed and not busy and left:
                self._recorded, self._idle = (generation.branch, generation.number), True
        if disturbed and busy:
            self.on_regroup(generation)
        elif disturbed and left:
            self._aside.submit(self._quietly, lambda: self._write_record(generation, frozenset()))
        elif not disturbed:
            self._look_round(generation)

    def _look_round(self, generation: Generation) -> None:
        with self._guard:
            view = self._view
            comers = [region for region, join in view.joins.items() if join.branch == generation.branch]
            self._reachable = {region: found for region, found in self._reachable.items() if region in comers}
            unknown = [region for region in comers if not self._reachable.get(region)]
        for region in unknown:
            self._probers.submit(self._note_reach, region)
        if self.rules.on_partition == "continue" and len(view.generations) > 1:
            self._aside.submit(self._quietly, lambda: self._look_for_heal(generation, view))

    def _note_reach(self, region: str) -> None:
        found = self.probe(self._addresses[region], PROBE_S) == "open"
        with self._guard:
            self._reachable[region] = found

    def _look_for_heal(self, generation: Generation, view: View) -> None:
        best = best_branch(view, self.rules)
        if best is None or best.branch == generation.branch or not holders(view, best):
            return
        if all(found == "open" for found in self._reach(best.regions).values()):
            self.say(f"the links are whole again; branch {best.branch or 'main'} has more committed tokens: joining it")
            with self._guard:
                self._superseded = self._generation == generation
                busy = self._busy and self._superseded
            if busy:
                self.on_regroup(generation)

    def _write_generation(self) -> None:
        """A branch that began while the store was lost is made known now; as is all, to a store that has forgotten it."""
        with self._guard:
            generation, view = self._generation, self._view
            resting = self._recorded is None
        if generation is None or not resting or view.live.get(self.region) != self._incarnation:
            return
        known = view.generations.get(generation.branch)
        if known is None or known.number < generation.number:
            key, revision = self._ledger.generation(generation.branch), view.revisions.get(generation.branch, 0)
            self._store.txn({key: revision}, {key: dump(generation)})

    def _disturbed(self, generation: Generation) -> bool:
        return self._has_record(generation) or self._has_successor(generation)

    def _has_record(self, generation: Generation) -> bool:
        return bool(self._view.records.get((generation.branch, generation.number)))

    def _has_successor(self, generation: Generation) -> bool:
        verdict = decide_regroup(self._view, generation, self.region, self.rules, waited=False)
        return isinstance(verdict, Follow)

    def _comers(self, generation: Generation) -> int:
        return sum(
            1 << self.rules.order.index(region)
            for region, join in self._view.joins.items()
            if self._reachable.get(region)
            and join.branch == generation.branch
            and join.reach.issuperset(generation.regions)
            and self._view.live.get(region) == join.incarnation
        )

    # Looking.

    def _look(self) -> tuple[View, int]:
        listing = self._store.list(self._ledger.prefix)
        view = read_view(self._ledger, listing)
        self._see(view, listing.revision)
        return view, listing.revision

    def _await(self, revision: int, timeout_s: float) -> None:
        """Until something changed in the store after `revision`."""
        try:
            listing = self._store.watch(self._ledger.prefix, revision, timeout_s)
        except StoreLostError:
            return
        if listing is not None:
            self._see(read_view(self._ledger, listing), listing.revision)


def _ignore(_: Generation) -> None:
    """Nobody is to be interrupted."""
