"""A region's eyes on the store: two threads that stand by, and the record with which it leaves a generation.

One thread keeps the region's lease alive, the other watches the run's entries. The watcher answers for a region that is between
rounds when the others regroup, and interrupts one that is inside a round.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from isthmus.errors import InputError
from isthmus.plan import Survival
from isthmus.runtime.environment import Members
from isthmus.runtime.federation.decisions import successor
from isthmus.runtime.federation.facts import Record, View, best_branch, gives_way
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.ledger import dump, give_way, read_view
from isthmus.runtime.federation.presence import PROBE_S, Presence
from isthmus.runtime.federation.reach import Reach
from isthmus.runtime.federation.store import Store, StoreLostError, StoreRefusedError

__all__ = ["LOOK_S", "Lookout", "Standing"]

WATCH_S: Final = 10.0
LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far the region is; see `decisions.Record` for the fields."""

    applied: int = -1
    tokens: int = 0
    voted: bool = False
    voted_digest: int = 0
    voted_tokens: int = 0
    stateless: bool = True


class Lookout(Presence):
    """What a `Membership` stands on, above its presence; see there for the attributes."""

    def __init__(self, store: Store, region: str, members: Members, survival: Survival, run: str) -> None:
        super().__init__(store, region, members, survival, run)
        self.on_regroup: Callable[[Generation], None] = _ignore
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

    def _stand_by(self) -> None:
        """Start both threads, once."""
        if self._threads:
            return
        for work in (self._keep_alive, self._watch):
            thread = threading.Thread(target=work, name=f"isthmus-membership-{work.__name__}", daemon=True)
            self._threads.append(thread)
            thread.start()

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
        if best is None or best.branch == generation.branch:
            return
        if not gives_way(view, generation.branch, self.rules):
            whole = all(found == "open" for found in self._reach(best.regions).values())
            said = give_way(self._ledger, view, self.rules, generation.branch, best.branch)
            if not whole or not self._store.txn(*said):
                return
        with self._guard:
            news = self._generation == generation and not self._superseded
            self._superseded = self._generation == generation
            busy = self._busy and self._superseded
        if news:
            self.say(f"the links are whole again; branch {best.branch or 'main'} has more committed tokens: joining it")
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
            # A word that stands there was said for an earlier branch of this name.
            word = (self._ledger.gives_way(generation.branch),) if generation.branch in view.yields else ()
            progress = {self._ledger.progress(generation.branch): str(generation.tokens)}
            self._store.txn({key: revision}, {key: dump(generation), **progress}, word)

    def _disturbed(self, generation: Generation) -> bool:
        return self._has_record(generation) or self._has_successor(generation) or self._has_replaced(generation)

    def _has_record(self, generation: Generation) -> bool:
        return bool(self._view.records.get((generation.branch, generation.number)))

    def _has_successor(self, generation: Generation) -> bool:
        # Not `decide_regroup`: a region that is not leaving has no record there, and would take any newer branch for its own.
        return successor(self._view, generation, self.region) is not None

    def _has_replaced(self, generation: Generation) -> bool:
        """Whether another member was started again, or entered anew: it takes part in no round of this generation any more."""
        members = zip(generation.regions, generation.incarnations, strict=True)
        live = self._view.live
        return any(region != self.region and live.get(region, incarnation) != incarnation for region, incarnation in members)

    def _comers(self, generation: Generation) -> int:
        return sum(
            1 << self.rules.order.index(region)
            for region, join in self._view.joins.items()
            if self._reachable.get(region)
            and join.branch == generation.branch
            and join.reach.issuperset(generation.regions)
            and self._view.live.get(region) == join.incarnation
        )

    # The record of leaving a generation.

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
