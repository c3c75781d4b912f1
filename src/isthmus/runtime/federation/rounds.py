"""Rounds that survive the loss of a region: attempt, agree, vote, commit, or regroup and do it again.

While nothing fails a round costs, beside its payload, one small message each way before it and one after it, and no word with the
store. Everything here runs on the communication thread, on every rank of the region, in the same order; rank 0 leads.
"""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast

from isthmus.plan import Survival
from isthmus.runtime.environment import RankEnvironment
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.membership import Membership, Regrouped, Standing
from isthmus.runtime.federation.region import Alarm, Ranks
from isthmus.runtime.federation.states import Attempt, AttemptWork, Committed, Opener, Rails, Rejoined, State, StateKeeper
from isthmus.runtime.federation.transfer import fetch_state, send_state
from isthmus.runtime.federation.votes import Calls, Vote, say_bye
from isthmus.runtime.hashing import ReplicaMismatchError
from isthmus.runtime.wan.frames import PeerLostError, RailError
from isthmus.runtime.world import World

__all__ = ["Rounds"]

OPEN_S_MAX: Final = 2.0
MISMATCHES_MAX: Final = 3
SAY_S: Final = 30.0
Why = Literal["start", "equal", "restart", "late", "excluded", "superseded"]
BROKEN, FAILED, MISMATCH, HELD = range(4)


@dataclass(slots=True)
class _Voted:
    """The result that this region has voted for; it stands as soon as the regions say so."""

    attempt: Attempt
    tokens: dict[str, int]


@dataclass(slots=True)
class _Tried:
    """How an attempt ended, equal on every rank of the region save for `error` and `digests`."""

    outcome: int
    comers: int = 0
    late: int = 0
    error: Exception | None = None
    digests: Mapping[str, int] | None = None


class Rounds:
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

    def __init__(
        self,
        environment: RankEnvironment,
        world: World,
        membership: Membership | None,
        opener: Opener,
        survival: Survival | None = None,
        keeper: StateKeeper | None = None,
    ) -> None:
        self.environment, self.survival, self.keeper = environment, survival or Survival(), keeper
        self._ranks = Ranks(environment, world)
        self._membership, self._opener = membership, opener
        self._elastic = membership is not None
        names = tuple(entry.name for entry in environment.members.regions) if environment.members else (environment.region,)
        self._names = names
        self.generation = Generation(number=0, regions=names, joined=names[1:], incarnations=("",) * len(names))
        self.rails: Rails = {}
        self.round, self.tokens = 0, 0
        self.newcomers = False
        self._sent_before = 0
        self._voted: _Voted | None = None
        self._stateless = True
        self._mismatches = 0
        self._split: tuple[int, int] = (0, 0)
        self._epoch = 0
        self._discarded = (0, 0)
        self._alarm = Alarm(environment.world_size, self._stop)
        if membership is not None:
            membership.on_regroup = self._on_regroup

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
        if not held or result is None or len(set(digests)) > 1:
            calls.vote(Vote(self.round, False, 0, 0), wait=False)
            if held:
                error = ReplicaMismatchError(f"the ranks of region {self.environment.region} came to different results")
            outcome = MISMATCH if held else BROKEN
            return _Tried(outcome, error=error or PeerLostError("another rank of this region lost a peer"))
        counted = {self.generation.regions[peer]: count for peer, count in others.items()} | {self.environment.region: tokens}
        self._voted = _Voted(result, {region: counted[region] for region in self.generation.regions})
        return self._hear(calls, Vote(self.round, True, result.digest, comers))

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
        outcome, comers, digests = BROKEN, mine.comers, None
        if votes is not None:
            digests = {self.generation.regions[peer]: vote.digest for peer, vote in votes.items() if vote.held}
            digests[self.environment.region] = mine.digest
            for vote in votes.values():
                comers &= vote.comers
            if len(digests) < len(self.generation.regions) or any(vote.round != mine.round for vote in votes.values()):
                outcome = FAILED
            else:
                outcome = HELD if len(set(digests.values())) == 1 else MISMATCH
        if outcome != HELD:
            # A rank that waits for votes on a rail that is sound, but whose peers will not vote, is to wait no longer.
            self._alarm.ring(self._epoch, "the round failed on another rank")
        outcomes = self._ranks.gather(outcome)
        agreed = max(outcomes)
        comers = self._ranks.gather(comers)[outcomes.index(agreed)] if agreed == HELD else 0
        error = None if agreed == HELD else PeerLostError(self._why_broken())
        return _Tried(agreed, comers, error=error, digests=digests if agreed == MISMATCH else None)

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

    def _commit(self, commit: Callable[[Attempt], None]) -> dict[str, int]:
        voted = self._voted
        assert voted is not None, "a commit without a vote"
        commit(voted.attempt)
        self._voted = None
        self.round += 1
        self.tokens += sum(voted.tokens.values())
        if self._membership is not None:
            self._membership.rest(self._standing())
        return voted.tokens

    def _standing(self) -> Standing:
        voted = self._voted
        return Standing(
            applied=self.round - 1,
            tokens=self.tokens,
            voted=voted is not None,
            voted_digest=voted.attempt.digest if voted else 0,
            voted_tokens=sum(voted.tokens.values()) if voted else 0,
            stateless=self._stateless,
        )

    # Changing generations.

    def _enter(self, why: Why) -> Rejoined | None:
        """Find a place anew, as a region without state."""
        self._drop_rails()
        self._voted, self._stateless = None, True
        membership = self._membership

        def enter() -> dict[str, Any]:
            assert membership is not None
            return asdict(membership.enter())

        self._adopt(_generation(self._ranks.led(enter)))
        self.round, self.tokens = self.generation.round, self.generation.tokens
        return self._settle(why)

    def _regroup(self, late: int, commit: Callable[[Attempt], None]) -> tuple[dict[str, int] | None, Rejoined | None]:
        """Leave the generation: tokens of the round where it turned out to stand, and what came of losing the place."""
        # Nobody failed where newcomers come in: the others may still be reading this region's vote.
        self._drop_rails(gently=self.newcomers)
        self.newcomers = False
        answer = self._lead_regroup(late)
        if not answer["member"]:
            self._discarded = (self.round - self._split[0], self.tokens - self._split[1]) if self.generation.branch else (0, 0)
            return None, self._enter(cast(Why, answer["why"]))
        following = _generation(answer["generation"])
        counted = None
        if following.round == self.round + 1 and not self._stateless and self._voted is not None:
            counted = self._commit(commit)
        self._voted = None
        self._adopt(following)
        if self._stateless:
            self.round, self.tokens = following.round, following.tokens
        assert self.round == following.round, f"generation {following.number} begins at {following.round}, this at {self.round}"
        return counted, self._settle("restart")

    def _lead_regroup(self, late: int) -> dict[str, Any]:
        membership, standing = self._membership, self._standing()
        regions = [region for number, region in enumerate(self._names) if late >> number & 1]

        def regroup() -> dict[str, Any]:
            assert membership is not None
            found: Regrouped = membership.regroup(standing, regions)
            return {"generation": asdict(found.generation), "member": found.member, "why": found.why}

        return self._ranks.led(regroup)

    def _adopt(self, generation: Generation) -> None:
        if generation.branch and generation.branch != self.generation.branch:
            self._split = (self.round, self.tokens)
        self.generation = generation

    def _settle(self, why: Why) -> Rejoined | None:
        """Open the generation's rails and hand the state to its newcomers; on failure, regroup until that is done."""
        rejoined = None
        why = "restart" if why == "start" and self.generation.round else why
        while True:
            self._stateless = self._stateless and self.environment.region in self.generation.joined
            if self._open_rails():
                done, came = self._hand_over(why)
                rejoined = came or rejoined
                if done:
                    if self._membership is not None:
                        self._membership.rest(self._standing())
                    return rejoined
            self._drop_rails()
            answer = self._lead_regroup(0)
            if not answer["member"]:
                return self._enter(cast(Why, answer["why"]))
            self._adopt(_generation(answer["generation"]))
            if self._stateless:
                self.round, self.tokens = self.generation.round, self.generation.tokens

    def _open_rails(self) -> bool:
        """Whether all rails are open; False where a member is gone meanwhile. Waits for members that are still training."""
        self._epoch += 1
        if len(self.generation.regions) == 1:
            self.rails = {}
            return True
        begun_s, said_s = time.monotonic(), time.monotonic()
        while True:
            rails, error = None, None
            patience_s = min(OPEN_S_MAX, self.survival.detect_s) if self._elastic else self.survival.start_s
            try:
                rails = self._opener(self.generation, patience_s)
            except RailError as caught:
                error = caught
            if min(self._ranks.gather(int(error is None))) == 1:
                assert rails is not None
                self.rails = rails
                self._alarm.arm(self._epoch)
                return True
            _close_aside(rails or {}, PeerLostError("another rank of the region could not open its rails"))
            if not self._elastic:
                raise error or PeerLostError("another rank of this region could not open its rails")
            if self._is_gone():
                return False
            if time.monotonic() - said_s > SAY_S:
                said_s = time.monotonic()
                waited_s = said_s - begun_s
                print(f"isthmus {self.environment.region}: waiting for {waited_s:.0f} s: {error}", file=sys.stderr, flush=True)

    def _is_gone(self) -> bool:
        membership, generation = self._membership, self.generation

        def gone() -> dict[str, Any]:
            assert membership is not None
            return {"gone": membership.gone(generation)}

        return bool(self._ranks.led(gone)["gone"])

    def _hand_over(self, why: Why) -> tuple[bool, Rejoined | None]:
        """Give the state to the generation's newcomers, or take it; False where that failed."""
        generation, keeper = self.generation, self.keeper
        if not generation.joined or keeper is None:
            self._stateless = False
            return True, None
        donors = [number for number, region in enumerate(generation.regions) if region not in generation.joined]
        parts: dict[int, State] = {}
        received, same, failed = 0, True, None
        fetches = self.environment.region in generation.joined
        try:
            for number, rail in self.rails.items():
                own = keeper.export_state(number)
                if fetches:
                    got = fetch_state(rail, own, donors)
                    parts[number], received, same = got.state, received + got.received_bytes, same and got.same
                else:
                    newcomers = [peer for peer in range(rail.regions) if peer not in donors]
                    send_state(rail, own, donors, newcomers)
        except (RailError, ReplicaMismatchError) as error:
            failed = error
            self._alarm.ring(self._epoch, str(error))
        if min(self._ranks.gather(int(failed is None))) == 0:
            if not self._elastic or isinstance(failed, ReplicaMismatchError):
                raise failed or PeerLostError("another rank of this region lost a peer")
            return False, None
        self._stateless = False
        if not fetches:
            return True, None
        equal = min(self._ranks.gather(int(same))) == 1
        lost, self._discarded = self._discarded, (0, 0)
        rejoined = Rejoined("equal" if equal and why == "start" else why, *lost, fetched_bytes=received)
        keeper.adopt_state(parts, rejoined)
        return True, rejoined

    def _drop_rails(self, *, gently: bool = False) -> None:
        rails, self.rails = self.rails, {}
        self._sent_before += sum(rail.wan_bytes_sent() for rail in rails.values())
        _close_aside(rails, None if gently else PeerLostError("the regions regroup"))

    # Alarms.

    def _on_regroup(self, generation: Generation) -> None:
        """On the membership's thread."""
        if generation.number == self.generation.number:
            self._alarm.ring(self._epoch, "the regions regroup")

    def _stop(self, epoch: int, why: str) -> None:
        """On the alarm's thread, or whoever rings."""
        if epoch == self._epoch:
            for rail in list(self.rails.values()):
                rail.abort(PeerLostError(why))


def _close_aside(rails: Rails, error: RailError | None) -> None:
    """End rails without waiting for their threads; without an error what is queued still goes out."""
    if not rails:
        return
    for rail in rails.values():
        if error is not None:
            rail.abort(error)

    def close() -> None:
        for rail in rails.values():
            with suppress(OSError, RuntimeError):
                rail.close()

    threading.Thread(target=close, name="isthmus-closing", daemon=True).start()


def _generation(values: Mapping[str, Any]) -> Generation:
    """A generation that came as JSON, or as its fields."""
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Generation(**fields)


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
