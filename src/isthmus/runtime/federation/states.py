"""What passes between a strategy and the rounds it runs: attempts, commits and the state that newcomers fetch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.wan.rail import Rail

__all__ = ["Attempt", "AttemptWork", "Committed", "Opener", "Rails", "Rejoined", "State", "StateKeeper"]

Rails = Mapping[int, Rail]
"""This rank's open rails by number; peers on them are numbered as `Generation.regions`."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a round came to, before anybody committed it.

    Attributes:
        digest: 64 bits over the whole result; equal on all ranks of all regions, or the round is repeated.
        payload: Whatever `commit` needs to install the result.
    """

    digest: int
    payload: Any = None


AttemptWork = Callable[[Generation, Rails], Attempt]
"""Computes a round from inputs that it leaves as they are, for it may be called again in another generation. Runs on every
rank of the region. A rank whose rail fails must still make all its calls to the region's groups, with whatever it holds, and
then raise the `RailError`: ranks whose calls do not match would wait for each other."""

Opener = Callable[[Generation, float], Rails]
"""Opens this rank's rails for a generation within so many seconds; raises a `RailError` where a peer does not come."""


@dataclass(frozen=True, slots=True)
class State:
    """What a newcomer needs of one rail's part of the state: a small JSON record and named tensors (CPU, contiguous)."""

    record: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejoined:
    """This region took over the others' state instead of its own.

    Attributes:
        why: `start` and `equal` (it held the same state already): nothing is lost; `restart`: the region was started anew;
            `late`: the others went on without it after `grace_s`; `excluded`: they could not reach it; `superseded`: its
            branch had fewer committed tokens than the other.
        rounds_discarded: Rounds that only its own branch had committed.
        tokens_discarded: Tokens of those rounds; the window that was under way is not among them, its strategy knows it.
        fetched_bytes: What this rank received for it.
    """

    why: Literal["start", "equal", "restart", "late", "excluded", "superseded"]
    rounds_discarded: int = 0
    tokens_discarded: int = 0
    fetched_bytes: int = 0


class StateKeeper(Protocol):
    """The strategy's side of a hand-over. Both run on the communication thread, on every rank of the region at once."""

    def export_state(self, rail: int) -> State:
        """The part of the committed state that travels on `rail`; its tensors must stay unchanged until the next round ends.

        Rails cut the state between them: all rails' parts together are the whole, once. Called for each rail of this rank.
        """
        ...

    def adopt_state(self, parts: Mapping[int, State], rejoined: Rejoined) -> None:
        """Take over the state of the others, of which `parts` came on this rank's rails; may gather over the region's group."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """A round is over: every region of `generation` holds its result.

    Attributes:
        round: Its number.
        generation: In which it was committed.
        tokens: Of every region of the generation, as given to `run`; together they count once, however often it was repeated.
        attempts: How many it took.
        lost_s: Time from the first failure to the start of the attempt that succeeded; 0.0 without a failure.
        rejoined: Not None: the round was NOT this region's; the state of the others was adopted, `commit` was not called.
    """

    round: int
    generation: Generation
    tokens: Mapping[str, int]
    attempts: int = 1
    lost_s: float = 0.0
    rejoined: Rejoined | None = None
