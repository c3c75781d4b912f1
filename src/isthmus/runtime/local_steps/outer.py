"""The outer loop on the communication thread: deltas in, one outer SGD step on their mean, in attempts and commits.

The mean of the regions' deltas (outer parameters minus their own) is the gradient of an outer SGD, with momentum when asked
(Nesterov's form as in DiLoCo, arXiv:2311.08105). An attempt reads the outer parameters, the momentum and what is owed, and
changes none of them; the commit puts the new ones in their place.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from isthmus.plan import Outer, Strategy
from isthmus.runtime.codecs.feedback import ErrorFeedback
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.local_steps.fragments import Fragment, FragmentDraft
from isthmus.runtime.local_steps.link import Attempt, Coding, OuterLink, Peers

__all__ = ["Arrival", "Contribution", "OuterLoop", "outer_step_"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A committed round: the new outer parameters of its fragment and what it took.

    Attributes:
        fragment: Its number.
        outer: Flat, in the fragment's numbering.
        seconds: From the first byte offered until the region held the result.
        sent_bytes: What this rank sent to other regions.
        hash: xxh3 of `outer`, equal on all members.
    """

    fragment: int
    outer: torch.Tensor
    seconds: float
    sent_bytes: int
    hash: int


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a region brings to a round.

    Attributes:
        fragment: Number of the fragment.
        sent: Its parameters when the round began, in the fragment's numbering; None brings nothing.
        tokens: Trained on since the fragment's last round: the weight of the delta.
        fresh_tokens: Trained on since the last round of any fragment, so that every token is counted once.
    """

    fragment: int
    sent: torch.Tensor | None
    tokens: int
    fresh_tokens: int


@dataclass(frozen=True, slots=True)
class _Result:
    outer: torch.Tensor
    momentum: dict[int, torch.Tensor]
    draft: FragmentDraft | None


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
        momentum: One a fragment: shard number -> shape (shard_elements,).
        feedback: Residuals in the canonical numbering; None where nothing is kept.
        rounds: Committed so far, equal in all regions.
        counted_tokens: Of this region, in committed rounds.
    """

    def __init__(
        self, fragments: Sequence[Fragment], parameters: Sequence[torch.Tensor], link: OuterLink, strategy: Strategy
    ) -> None:
        self.fragments, self.link, self.strategy = tuple(fragments), link, strategy
        self.outer = [fragment.read(parameters) for fragment in fragments]
        self.momentum = [{shard: torch.zeros(fragment.shard_elements) for shard in link.held} for fragment in fragments]
        self.feedback = ErrorFeedback() if strategy.error_feedback and strategy.codec != "none" else None
        self.rounds, self.counted_tokens = 0, 0

    def round(self, given: Contribution) -> Arrival:
        """One round, from first attempt to commit."""
        begun_s = time.perf_counter()
        if given.sent is not None:
            # Each rank brings its shards of `sent` only: a rank that had drifted would be overwritten unseen.
            self.link.prove_region(fingerprint([given.sent]), "the parameters of one region")
        done: list[Attempt] = []

        def commit(attempt: Attempt) -> None:
            self._install(given, attempt.payload)
            done.append(attempt)

        sent_bytes = self.link.run(lambda peers: self._attempt(peers, given), commit, given.fresh_tokens)
        return Arrival(given.fragment, done[0].payload.outer, time.perf_counter() - begun_s, sent_bytes, done[0].digest)

    def average(self, vector: torch.Tensor, fragment: Fragment, tokens: int) -> torch.Tensor:
        """The plain mean over regions of `vector`, in the numbering of `fragment`; without codec and outer step."""
        found: list[torch.Tensor] = []

        def attempt(peers: Peers) -> Attempt:
            shards = {shard: fragment.part(vector, shard) for shard in self.link.held}
            means = {shard: torch.empty_like(part) for shard, part in shards.items()}
            peers.mean(shards, means, Coding(self.rounds, plain=True))
            whole = self.link.gather(means)
            return Attempt(fingerprint([whole]), whole)

        def commit(result: Attempt) -> None:
            found.append(result.payload)
            self._count(tokens)

        self.link.run(attempt, commit, tokens)
        return found[0]

    def adopt(self, flats: Sequence[torch.Tensor]) -> None:
        """Begin anew from `flats`, one a fragment, which must be equal in all regions: a round proves it."""
        digest = fingerprint(flats)

        def commit(result: Attempt) -> None:
            self.outer = list(result.payload)
            self._count(0)

        self.link.prove_region(digest, "the parameters of one region")
        self.link.run(lambda peers: Attempt(digest, list(flats)), commit, 0)

    def _attempt(self, peers: Peers, given: Contribution) -> Attempt:
        fragment, base = self.fragments[given.fragment], self.outer[given.fragment]
        momentum = {shard: held.clone() for shard, held in self.momentum[given.fragment].items()}
        share = self._share(peers, given)
        if share is None:
            return Attempt(fingerprint([base]), _Result(base, momentum, None))
        deltas: dict[int, torch.Tensor] = {}
        for shard in self.link.held:
            own = base if given.sent is None else given.sent
            deltas[shard] = fragment.part(base, shard) - fragment.part(own, shard)
            if share != 1.0:
                deltas[shard].mul_(share)
        draft = FragmentDraft(self.feedback, fragment) if self.feedback is not None else None
        means = {shard: torch.empty_like(delta) for shard, delta in deltas.items()}
        peers.mean(deltas, means, Coding(self.rounds, draft))
        stepped = {shard: fragment.part(base, shard).clone() for shard in self.link.held}
        for shard, held in stepped.items():
            outer_step_(held, momentum[shard], means[shard], self.strategy.outer)
        whole = self.link.gather(stepped)
        return Attempt(fingerprint([whole]), _Result(whole, momentum, draft))

    def _share(self, peers: Peers, given: Contribution) -> float | None:
        """What this region's delta is multiplied by before the mean over R regions, w R / sum(w); None: nobody brings any.

        Weighted before the codec, so that what the codec leaves out is owed in the units in which it counts, and a region
        that brings nothing still pays what it owes.
        """
        if self.strategy.weight == "equal":
            return 1.0
        brought = given.tokens if given.sent is not None else 0
        weights = peers.numbers(brought)
        return brought * peers.regions / sum(weights) if sum(weights) else None

    def _install(self, given: Contribution, result: _Result) -> None:
        self.outer[given.fragment] = result.outer
        self.momentum[given.fragment] = result.momentum
        if result.draft is not None:
            result.draft.commit()
        self._count(given.fresh_tokens)

    def _count(self, tokens: int) -> None:
        self.rounds += 1
        self.counted_tokens += tokens
