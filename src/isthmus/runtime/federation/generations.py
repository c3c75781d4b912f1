"""How a rank goes from one generation to the next: leave, agree with the others, open rails, hand the state over.

Everything here runs on the communication thread, on every rank of the region, in the same order; rank 0 leads.
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
from isthmus.runtime.federation.states import Attempt, Opener, Rails, Rejoined, State, StateKeeper
from isthmus.runtime.federation.transfer import fetch_state, send_state
from isthmus.runtime.hashing import ReplicaMismatchError
from isthmus.runtime.wan.frames import PeerLostError, RailError
from isthmus.runtime.world import World

__all__ = ["Generations", "Voted"]

OPEN_S_MAX: Final = 2.0
SAY_S: Final = 30.0
Why = Literal["start", "equal", "restart", "late", "excluded", "superseded"]


@dataclass(slots=True)
class Voted:
    """The result that this region has voted for; it stands as soon as the regions say so."""

    attempt: Attempt
    tokens: dict[str, int]


class Generations:
    """What `Rounds` stand on; see there for arguments and attributes."""

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
        self._voted: Voted | None = None
        self._stateless = True
        self._mismatches = 0
        self._split: tuple[int, int] = (0, 0)
        self._parted: dict[str, tuple[int, int]] = {}
        self._epoch = 0
        self._discarded = (0, 0)
        self._alarm = Alarm(environment.world_size, self._stop)
        if membership is not None:
            membership.on_regroup = self._on_regroup

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

    def _enter(self, why: Why) -> Rejoined | None:
        """Find a place anew, as a region without state."""
        self._drop_rails()
        self._voted, self._stateless = None, True
        membership, left = self._membership, self.generation.branch

        def enter() -> dict[str, Any]:
            assert membership is not None
            return asdict(membership.enter())

        self.generation = _generation(self._ranks.led(enter))
        self._discarded = (0, 0)
        if self.generation.branch != left:  # the rounds since its side parted from this one are this one's alone
            rounds, tokens = self._parted.get(self.generation.branch, self._split)
            self._discarded = (self.round - rounds, self.tokens - tokens)
        self.round, self.tokens = self.generation.round, self.generation.tokens
        self._split, self._parted = (self.round, self.tokens), {}
        return self._settle(why)

    def _regroup(self, late: int, commit: Callable[[Attempt], None]) -> tuple[dict[str, int] | None, Rejoined | None]:
        """Leave the generation: tokens of the round where it turned out to stand, and what came of losing the place."""
        # Nobody failed where newcomers come in: the others may still be reading this region's vote.
        self._drop_rails(gently=self.newcomers)
        self.newcomers = False
        answer = self._lead_regroup(late)
        if not answer["member"]:
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
        """Go on in `generation`, from this region's own state. Notes when branches began that may have to give way."""
        here = self.round, self.tokens
        if generation.branch != self.generation.branch:
            self._split = here
        self._parted |= {region: here for region in self.generation.regions if region not in generation.regions}
        self._parted = {region: when for region, when in self._parted.items() if region not in generation.regions}
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
                for rail in rails.values():
                    rail.proves = True
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
