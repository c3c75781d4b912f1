"""The outer loop on the communication thread: deltas in, one outer SGD step on their mean, in attempts and commits.

The mean of the regions' deltas (outer parameters minus their own) is the gradient of an outer SGD, with momentum when asked
(Nesterov's form as in DiLoCo, arXiv:2311.08105). An attempt reads the outer parameters, the momentum and what is owed, and
changes none of them; the commit puts the new ones in their place.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from isthmus.plan import Outer, Strategy
from isthmus.runtime.codecs.feedback import ErrorFeedback
from isthmus.runtime.courier import VoidError
from isthmus.runtime.federation.states import Attempt, State
from isthmus.runtime.hashing import ReplicaMismatchError, fingerprint
from isthmus.runtime.local_steps.fragments import Fragment, FragmentDraft
from isthmus.runtime.local_steps.link import Coding, OuterLink, Peers
from isthmus.runtime.wan.frames import PeerLostError, RailError

__all__ = ["Arrival", "Contribution", "OuterLoop", "RejoinedError", "outer_step_"]


_SHARED = ("rounds", "averaged", "following", "step")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A committed round: the new outer parameters of its fragment and what it took.

    Attributes:
        fragment: Its number.
        outer: Flat, in the fragment's numbering.
        seconds: From the first byte offered until the region held the result.
        sent_bytes: What this rank sent to other regions.
        hash: xxh3 of `outer`, equal on all members.
        brought: Whether this region's delta is in it.
        missed: Fragment and outer parameters of the rounds since this region's last, to which it brought nothing.
    """

    fragment: int
    outer: torch.Tensor
    seconds: float
    sent_bytes: int
    hash: int
    brought: bool = True
    missed: tuple[tuple[int, torch.Tensor], ...] = ()


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a region brings to a round.

    Attributes:
        fragment: Number of the fragment.
        base: The outer parameters that its training last went on from, in the fragment's numbering.
        sent: Its parameters when the round began.
        tokens: Trained on since the fragment's last round: the weight of the delta.
        fresh_tokens: Trained on since the last round of any fragment, so that every token is counted once.
        last: Nothing will be trained after it (before a flush of all regions ends).
        step: The step of the common schedule at which the round began; 0 where regions take unequal steps.
    """

    fragment: int
    base: torch.Tensor
    sent: torch.Tensor
    tokens: int
    fresh_tokens: int
    last: bool = False
    step: int = 0


@dataclass(frozen=True, slots=True)
class _Result:
    fragment: int
    outer: torch.Tensor
    momentum: dict[int, torch.Tensor]
    draft: FragmentDraft | None
    all_last: bool = False


class RejoinedError(VoidError):
    """The rounds that were under way are void: this region took over the others' state."""


def outer_step_(outer: torch.Tensor, momentum: torch.Tensor, gradient: torch.Tensor, rule: Outer) -> None:
    """One SGD step in place, as `torch.optim.SGD(dampening=0)` takes it.

    m <- mu m + g;   p <- p - lr (g + mu m)   with Nesterov,   p <- p - lr m   without
    """
    if rule.momentum == 0.0:
        outer.sub_(gradient, alpha=rule.lr)
        return
    momentum.mul_(rule.momentum).add_(gradient)
    if rule.nesterov:
        outer.sub_(gradient.add(momentum, alpha=rule.momentum), alpha=rule.lr)
    else:
        outer.sub_(momentum, alpha=rule.lr)


class OuterLoop:
    """Outer parameters of all fragments, and this rank's shards of their momentum and of what is owed.

    Attributes:
        outer: Committed, one a fragment, in its numbering; never changed in place, so views of old ones stay valid.
        momentum: One a fragment: shard number -> shape (shard_elements,); replaced at commits too.
        feedback: Residuals in the canonical numbering; None where nothing is kept.
        rounds: Committed so far, equal in all regions that were there from the start.
        averaged: Rounds of the warm-up among them.
        following: Number of the fragment whose round comes next by the schedule.
        step: Of the common schedule, at which the last round began.
        counted_tokens: Of this region, in committed rounds.
        idle_rounds: How many rounds in a row all regions called their last.
        lives: How often the others' state was taken over; rounds that were submitted in an earlier life are void.
        guard: Held while a commit changes the state.
    """

    def __init__(
        self, fragments: Sequence[Fragment], parameters: Sequence[torch.Tensor], link: OuterLink, strategy: Strategy
    ) -> None:
        self.fragments, self.link, self.strategy = tuple(fragments), link, strategy
        self.outer = [fragment.read(parameters) for fragment in fragments]
        self.momentum = [{shard: torch.zeros(fragment.shard_elements) for shard in link.held} for fragment in fragments]
        self.feedback = ErrorFeedback() if strategy.error_feedback and strategy.codec != "none" else None
        self.rounds = self.averaged = self.following = self.step = 0
        self.counted_tokens = self.idle_rounds = self.lives = 0
        self.guard = threading.Lock()
        self._missed: list[tuple[int, torch.Tensor]] = []

    def round(self, given: Contribution | None, life: int | None = None) -> Arrival:
        """One round, from first attempt to commit; None brings nothing and follows the others.

        Raises:
            RejoinedError: The state was taken over from the others, in this round or since `life`.
        """
        begun_s = time.perf_counter()
        if life is not None and life != self.lives:
            raise RejoinedError
        if given is not None:
            # Each rank brings its shards of `sent` only: a rank that had drifted would be overwritten unseen.
            self.link.prove_region(fingerprint([given.sent]), "the parameters of one region")
        done: list[Attempt] = []

        def commit(attempt: Attempt) -> None:
            self._install(attempt.payload, given)
            done.append(attempt)

        ran = self.link.run(lambda peers: self._attempt(peers, given), commit, given.fresh_tokens if given else 0)
        if not done:
            raise RejoinedError
        result: _Result = done[0].payload
        missed: tuple[tuple[int, torch.Tensor], ...] = ()
        if given is None:
            self._missed.append((result.fragment, result.outer))
        else:
            missed, self._missed = tuple(self._missed), []
        seconds = time.perf_counter() - begun_s
        return Arrival(result.fragment, result.outer, seconds, ran.sent_bytes, done[0].digest, given is not None, missed)

    def average(self, vector: torch.Tensor, fragment: Fragment, tokens: int) -> torch.Tensor:
        """The plain mean over regions of `vector`, in the numbering of `fragment`; without codec and outer step.

        Raises:
            RejoinedError: The state was taken over from the others instead.
        """
        found: list[torch.Tensor] = []

        def attempt(peers: Peers) -> Attempt:
            shards = {shard: fragment.part(vector, shard) for shard in self.link.held}
            means = {shard: torch.empty_like(part) for shard, part in shards.items()}
            failure = _failure_of(lambda: peers.mean(shards, means, Coding(plain=True)))
            whole = self._gather(means, failure)
            return Attempt(fingerprint([whole]), whole)

        def commit(result: Attempt) -> None:
            found.append(result.payload)
            with self.guard:
                self.averaged += 1
                self._count(tokens)

        self.link.run(attempt, commit, tokens)
        if not found:
            raise RejoinedError
        return found[0]

    def forget_missed(self) -> None:
        """The model holds the outer parameters as they are now."""
        self._missed.clear()

    def begin_from(self, flats: Sequence[torch.Tensor]) -> None:
        """Make `flats`, one a fragment, the outer parameters; equal in all regions."""
        with self.guard:
            self.outer = list(flats)

    def export(self, rail: int) -> State:
        """See `StateKeeper.export_state`: shard number `rail` of the outer parameters and of their momentum."""
        tensors: dict[str, torch.Tensor] = {}
        for fragment in self.fragments:
            tensors[f"outer.{fragment.number}"] = fragment.part(self.outer[fragment.number], rail)
            if self.strategy.outer.momentum:
                tensors[f"momentum.{fragment.number}"] = self.momentum[fragment.number][rail]
        record = {name: getattr(self, name) for name in _SHARED}
        return State(record, tensors)

    def take_over(self, parts: Mapping[int, State]) -> None:
        """See `StateKeeper.adopt_state`: the others' state in place of ours; nothing is owed any more."""
        with self.guard:
            for fragment in self.fragments:
                number = fragment.number
                self.outer[number] = self.link.gather({rail: part.tensors[f"outer.{number}"] for rail, part in parts.items()})
                if self.strategy.outer.momentum:
                    self.momentum[number] = {rail: part.tensors[f"momentum.{number}"].clone() for rail, part in parts.items()}
            record = next(iter(parts.values())).record
            for name in _SHARED:
                setattr(self, name, int(record[name]))
            if self.feedback is not None:
                self.feedback.load_state_dict({})
            self._missed.clear()
            self.idle_rounds = 0
            self.lives += 1

    def _attempt(self, peers: Peers, given: Contribution | None) -> Attempt:
        means: dict[int, torch.Tensor] = {}
        agreed: list[_Agreed] = []
        drafts: list[FragmentDraft | None] = [None]

        def exchange() -> None:
            agreed.append(self._agree(peers, given))
            fragment = self.fragments[agreed[0].fragment]
            if agreed[0].share is None:
                return
            deltas = self._deltas(fragment, given, agreed[0].share)
            if self.feedback is not None:
                drafts[0] = FragmentDraft(self.feedback, fragment)
            means.update({shard: torch.empty_like(delta) for shard, delta in deltas.items()})
            peers.mean(deltas, means, Coding(drafts[0]))

        failure = _failure_of(exchange)
        if failure is not None:
            self._gather({}, failure)
        fragment, all_last = self.fragments[agreed[0].fragment], agreed[0].all_last
        base, momentum = self.outer[fragment.number], {s: held.clone() for s, held in self.momentum[fragment.number].items()}
        stepped = {shard: fragment.part(base, shard).clone() for shard in self.link.held}
        for shard, mean in means.items():
            outer_step_(stepped[shard], momentum[shard], mean, self.strategy.outer)
        whole = self._gather(stepped, None)
        return Attempt(fingerprint([whole]), _Result(fragment.number, whole, momentum, drafts[0], all_last))

    def _deltas(self, fragment: Fragment, given: Contribution | None, share: float) -> dict[int, torch.Tensor]:
        if given is None:
            return {shard: torch.zeros(fragment.shard_elements) for shard in self.link.held}
        deltas = {shard: fragment.part(given.base, shard) - fragment.part(given.sent, shard) for shard in self.link.held}
        if share != 1.0:
            for delta in deltas.values():
                delta.mul_(share)
        return deltas

    def _agree(self, peers: Peers, given: Contribution | None) -> "_Agreed":
        """Which fragment, and what this region's delta is multiplied by before the mean over R regions: w R / sum(w).

        Weighted before the codec, so that what the codec leaves out is owed in the units in which it counts, and a region
        that brings nothing still pays what it owes.
        """
        equal = self.strategy.weight == "equal"
        if equal and not self.link.elastic:
            assert given is not None
            return _Agreed(given.fragment, 1.0)
        said = [_Word.read(number) for number in peers.numbers(_Word.of(given).pack())]
        spoken = {word.fragment for word in said if word.fragment is not None}
        if len(spoken) > 1:
            raise ReplicaMismatchError(f"regions came to one round with fragments {sorted(spoken)}: they do not train alike")
        weights = [min(word.tokens, 1) if equal else word.tokens for word in said]
        if not sum(weights):
            return _Agreed(next(iter(spoken), self.following), None, all(word.last for word in said))
        mine = 0 if given is None else min(given.tokens, 1) if equal else given.tokens
        return _Agreed(spoken.pop(), mine * peers.regions / sum(weights), all(word.last for word in said))

    def _gather(self, shards: Mapping[int, torch.Tensor], failure: RailError | None) -> torch.Tensor:
        """The region's shards together, unless a rank's exchange failed: then no rank gathers."""
        if min(self.link.region_numbers(int(failure is None))) == 0:
            raise failure or PeerLostError("the exchange of another rank of this region failed")
        return self.link.gather(shards)

    def _install(self, result: _Result, given: Contribution | None) -> None:
        with self.guard:
            self.outer[result.fragment] = result.outer
            self.momentum[result.fragment] = result.momentum
            if result.draft is not None:
                result.draft.commit()
            self.following = (result.fragment + 1) % len(self.fragments)
            self.idle_rounds = self.idle_rounds + 1 if result.all_last else 0
            self.step = given.step if given else self.step
            self._count(given.fresh_tokens if given else 0)

    def _count(self, tokens: int) -> None:
        self.rounds += 1
        self.counted_tokens += tokens


@dataclass(frozen=True, slots=True)
class _Agreed:
    """What all regions read out of each other's words; `share` None: nobody brings anything."""

    fragment: int
    share: float | None
    all_last: bool = False


@dataclass(frozen=True, slots=True)
class _Word:
    """What a region says at the beginning of a round, in 64 bits: last 1 | fragment + 1, or 0 for nothing, 20 | tokens 43."""

    fragment: int | None
    tokens: int
    last: bool

    @classmethod
    def of(cls, given: Contribution | None) -> "_Word":
        return cls(None, 0, False) if given is None else cls(given.fragment, given.tokens, given.last)

    @classmethod
    def read(cls, number: int) -> "_Word":
        fragment = number >> 43 & 0xFFFFF
        return cls(fragment - 1 if fragment else None, number & (1 << 43) - 1, bool(number >> 63))

    def pack(self) -> int:
        return int(self.last) << 63 | (0 if self.fragment is None else self.fragment + 1) << 43 | self.tokens


def _failure_of(work: Callable[[], None]) -> RailError | None:
    try:
        work()
    except RailError as error:
        return error
    return None
