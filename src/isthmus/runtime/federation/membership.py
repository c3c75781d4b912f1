"""A region's place among the others, kept by the leader (rank 0) of the region through the store.

No call here is made in a round that does not fail, save `begin` and `rest`, which touch memory only: while the store is lost,
rounds go on. `entrance` is how a place is found, `lookout` has the threads that stand by.
"""

import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace

from isthmus.runtime.federation.decisions import decide_regroup
from isthmus.runtime.federation.entrance import Entrance
from isthmus.runtime.federation.facts import End, Follow, Form, Stall, View, gives_way
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.ledger import dump, read_end
from isthmus.runtime.federation.lookout import LOOK_S, Standing
from isthmus.runtime.federation.store import StoreLostError, StoreRefusedError

__all__ = ["Begin", "Membership", "Regrouped", "Standing"]


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


class Membership(Entrance):
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

    def leave(self, *, over: bool = False) -> None:
        """End the lease, so that the others need not wait for its end, and close the store.

        `over`: the run has come to its end, so whoever comes later is told so.
        """
        self._stopping.set()
        if over:
            self._quietly(self._write_end)
        if self._lease:
            with suppress(StoreLostError, StoreRefusedError):
                self._store.revoke(self._lease)
        self._store.close()
        for pool in (self._aside, self._probers):
            pool.shutdown(wait=False, cancel_futures=True)
        for thread in self._threads:
            thread.join(2.0)

    def _write_end(self) -> None:
        generation, standing = self._generation, self._standing
        if generation is None:
            return
        here = frozenset({self.region})
        own = End(generation=generation.number, round=standing.applied + 1, tokens=standing.tokens, regions=here)
        while True:
            entry = self._store.get(self._ledger.end)
            known = read_end(entry) if entry is not None else None
            if known is not None and known.generation == own.generation:
                own = replace(own, regions=own.regions | known.regions)
            if self._store.txn({self._ledger.end: entry.revision if entry is not None else 0}, {self._ledger.end: dump(own)}):
                return

    # Regrouping.

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
            if not isinstance(verdict, Follow) and gives_way(view, old.branch, self.rules):
                return Regrouped(old, False, "superseded")
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
