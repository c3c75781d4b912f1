"""Rounds that survive the loss of a region: attempt, agree, vote, commit, or regroup and do it again.

While nothing fails a round costs, beside its payload, one small message each way before it and one after it, and no word with the
store. Everything here runs on the communication thread, on every rank of the region, in the same order; rank 0 leads.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from isthmus.runtime.federation.generations import Generations, Voted
from isthmus.runtime.federation.states import Attempt, AttemptWork, Committed, Rejoined
from isthmus.runtime.federation.votes import Calls, Vote, say_bye
from isthmus.runtime.hashing import ReplicaMismatchError
from isthmus.runtime.wan.frames import PeerLostError, RailError

__all__ = ["Rounds"]

MISMATCHES_MAX: Final = 3
BROKEN, FAILED, MISMATCH, HELD = range(4)


@dataclass(slots=True)
class _Tried:
    """How an attempt ended, equal on every rank of the region save for `error` and `digests`."""

    outcome: int
    comers: int = 0
    late: int = 0
    error: Exception | None = None
    digests: Mapping[str, int] | None = None


class Rounds(Generations):
    """The rounds of one rank. Where `membership` is None a lost region ends the run with `PeerLostError`.

    Args:
        environment: This rank's place.
        world: Its region's groups; only the communication group is used.
        membership: The region's place among the others, on rank 0 only; None on the others.
        opener: Opens this rank's rails for a generation.
        survival: Time-outs, and whether there is a membership at all.
        keeper: The strategy's state; None where newcomers have nothing to fetch.

    Attributes:
        generation: The present one, once `open` has returned.
        rails: This rank's open rails of it.
        round: Number of the next round.
        tokens: Committed so far, by all regions together.
    """

    # What strategies call.

    def open(self) -> Rejoined | None:
        """Find this region's place, open the rails, and fetch the state where others have it.

        Returns:
            None where this region is the one whose state the others took.

        Raises:
            PeerLostError: The others did not come in time.
        """
        self._elastic = bool(self._ranks.led(lambda: {"elastic": self._membership is not None})["elastic"])
        if not self._elastic:
            return self._settle("start")
        return self._enter("start")

    def run(self, attempt: AttemptWork, tokens: int, commit: Callable[[Attempt], None]) -> Committed:
        """Bring one round to an end: every region of the generation holds its result, and `commit` has installed it here.

        Args:
            attempt: Computes the round; called again where it is repeated.
            tokens: What the whole region contributes; equal on its ranks.
            commit: Installs the result; called at most once.

        Raises:
            PeerLostError: Without a membership: a region was lost.
            ReplicaMismatchError: Regions came to different results, for the third time or without a membership.
        """
        attempts, failed_s, self._mismatches = 0, 0.0, 0
        number = self.round
        while True:
            comers = self._begin()
            tried: _Tried | None = None
            if comers is not None:
                attempts += 1
                lost_s = time.monotonic() - failed_s if failed_s else 0.0
                tried = self._try(attempt, tokens, comers)
                if tried.outcome == HELD:
                    counted = self._commit(commit)
                    self.newcomers = tried.comers != 0
                    return Committed(number, self.generation, counted, attempts, lost_s)
                self._judge(tried)
            failed_s = failed_s or time.monotonic()
            counted, rejoined = self._regroup(0 if tried is None else tried.late, commit)
            if counted is not None or rejoined is not None:
                done = number if counted is not None else self.round - 1
                return Committed(done, self.generation, counted or {}, attempts, time.monotonic() - failed_s, rejoined)

    def welcome(self) -> Rejoined | None:
        """Let in the newcomers that the last round agreed on (`newcomers`); else the next `run` does so first.

        Not None where this region lost its place meanwhile, see `Committed.rejoined`.
        """
        return self._regroup(0, _nothing_to_commit)[1] if self.newcomers else None

    def sent_bytes(self) -> int:
        """What this rank has sent to other regions so far, frames included."""
        return self._sent_before + sum(rail.wan_bytes_sent() for rail in self.rails.values())

    def close(self) -> None:
        """The run is over: wait (at most `detect_s`) until the others need nothing more from this rank, and leave."""
        say_bye(self.rails, self.survival.detect_s)
        self._leave(over=True)

    def abandon(self) -> None:
        """Leave without waiting for anybody, as after an error."""
        self._leave(over=False)

    def _leave(self, *, over: bool) -> None:
        self._alarm.close()
        if self._membership is not None:
            self._membership.leave(over=over)
        for rail in self.rails.values():
            rail.close()
        self.rails = {}

    # One attempt.

    def _begin(self) -> int | None:
        """Which regions this one would let in after the round (bits); None where the generation has to be left first."""
        if not self._elastic:
            return 0
        leave_first, membership = self.newcomers, self._membership

        def ask() -> dict[str, Any]:
            assert membership is not None
            begin = membership.begin()
            return {"ok": begin.ok, "comers": begin.comers}

        answer = self._ranks.led(ask)
        if not answer["ok"] or leave_first:
            return None
        return int(answer["comers"])

    def _try(self, attempt: AttemptWork, tokens: int, comers: int) -> _Tried:
        """Compute and vote; the ranks of the region come out of it with one outcome."""
        result, error, others = None, None, dict[int, int]()
        calls = Calls(self.rails, self.round, tokens)
        late = self._find_late(calls)
        if late:
            return _Tried(FAILED, late=late, error=PeerLostError("a region did not begin the round within the grace"))
        try:
            result = attempt(self.generation, self.rails)
            others = calls.tokens()
        except RailError as caught:
            error = caught
            self._alarm.ring(self._epoch, str(caught))
        held = min(self._ranks.gather(int(error is None))) == 1
        digests = self._ranks.gather(result.digest if result is not None else 0)
        tally = sum(self._ranks.gather(sum(rail.take_tally() for rail in self.rails.values()) % 2**64)) % 2**64
        if not held or result is None or len(set(digests)) > 1:
            calls.vote(Vote(self.round, False, 0, 0, 0), wait=False)
            if held:
                error = ReplicaMismatchError(f"the ranks of region {self.environment.region} came to different results")
            outcome = MISMATCH if held else BROKEN
            return _Tried(outcome, error=error or PeerLostError("another rank of this region lost a peer"))
        counted = {self.generation.regions[peer]: count for peer, count in others.items()} | {self.environment.region: tokens}
        self._voted = Voted(result, {region: counted[region] for region in self.generation.regions})
        tried = self._hear(calls, Vote(self.round, True, result.digest, comers, tally))
        if tried.outcome == MISMATCH and tried.digests is None:
            self._voted = None  # all regions hold the same wrong result: as their records stand, it would be taken for good
        return tried

    def _find_late(self, calls: Calls) -> int:
        """Regions that did not begin within the grace, as bits in the order of the members; equal on all ranks."""
        if self.survival.grace_s is None or not self._elastic:
            return 0
        late = calls.late(time.monotonic() + self.survival.grace_s)
        mine = sum(1 << self._names.index(self.generation.regions[peer]) for peer in late)
        found = 0
        for bits in self._ranks.gather(mine):
            found |= bits
        return found

    def _hear(self, calls: Calls, mine: Vote) -> _Tried:
        votes = calls.vote(mine)
        outcome, comers, digests, changed = BROKEN, mine.comers, None, False
        if votes is not None:
            digests = {self.generation.regions[peer]: vote.digest for peer, vote in votes.items() if vote.held}
            digests[self.environment.region] = mine.digest
            for vote in votes.values():
                comers &= vote.comers
            if len(digests) < len(self.generation.regions) or any(vote.round != mine.round for vote in votes.values()):
                outcome = FAILED
            else:
                outcome = HELD if len(set(digests.values())) == 1 else MISMATCH
                if outcome == HELD and sum((mine.tally, *(vote.tally for vote in votes.values()))) % 2**64:
                    outcome, changed = MISMATCH, True
        if outcome != HELD:
            # A rank that waits for votes on a rail that is sound, but whose peers will not vote, is to wait no longer.
            self._alarm.ring(self._epoch, "the round failed on another rank")
        outcomes = self._ranks.gather(outcome)
        agreed = max(outcomes)
        comers = self._ranks.gather(comers)[outcomes.index(agreed)] if agreed == HELD else 0
        error = None if agreed == HELD else PeerLostError(self._why_broken())
        if changed:
            error = ReplicaMismatchError("what a region added up is not what the others sent: memory changed on the way")
        return _Tried(agreed, comers, error=error, digests=digests if agreed == MISMATCH and not changed else None)

    def _why_broken(self) -> str:
        found = [f"{name}: {error}" for rail in self.rails.values() for name, error in rail.errors.items()]
        return "; ".join(found) or "a region could not compute the round"

    def _judge(self, tried: _Tried) -> None:
        """Raise what repeating the round cannot mend."""
        if tried.outcome == MISMATCH:
            self._mismatches += 1
            print(
                f"isthmus {self.environment.region}: round {self.round}: {_named(tried)}; repeating it",
                file=sys.stderr,
                flush=True,
            )
        if self._elastic and (tried.outcome != MISMATCH or not self._hopeless(tried)):
            return
        if tried.outcome == MISMATCH:
            times = f" for the {self._mismatches}. time" if self._elastic else ""
            raise ReplicaMismatchError(f"round {self.round}: replicas differ{times}: {_named(tried)}") from tried.error
        assert tried.error is not None
        raise tried.error

    def _hopeless(self, tried: _Tried) -> bool:
        """The third mismatch ends this region: where a majority agrees, the odd one only, and the others go on without it."""
        if self._mismatches < MISMATCHES_MAX:
            return False
        odd = _odd(tried.digests)
        return odd is None or odd == self.environment.region


def _odd(digests: Mapping[str, int] | None) -> str | None:
    """The one region that differs where three or more voted and all others agree."""
    if digests is None or len(digests) < 3:
        return None
    for region in digests:
        if len({digest for other, digest in digests.items() if other != region}) == 1:
            return region
    return None


def _named(tried: _Tried) -> str:
    if tried.digests is None:
        return str(tried.error)
    listed = ", ".join(f"{region} {digest:016x}" for region, digest in tried.digests.items())
    odd = _odd(tried.digests)
    return listed + (f"; {odd} is the odd one" if odd else "")


def _nothing_to_commit(_: Attempt) -> None:
    raise AssertionError("a round was committed outside run")
