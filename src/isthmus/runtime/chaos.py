"""Faults from inside, for chaos tests only: a bit of received memory that turns over after decryption and checksums."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.states import Attempt, AttemptWork
from isthmus.runtime.hashing import bytes_of
from isthmus.runtime.wan.rail import Buffer, Rail, Ticket

__all__ = ["Flip", "flipping"]

PAYLOAD_BYTES_MIN = 256


@dataclass(frozen=True, slots=True)
class Flip:
    """In the first attempt of round `round`, bit 0 of byte `byte` of the first large message received turns over."""

    round: int
    byte: int


def flipping(attempt: AttemptWork, flip: Flip) -> AttemptWork:
    """`attempt`, whose first call finds a wrong bit in what it receives."""
    print(f"isthmus: ISTHMUS_CHAOS_FLIP is set: this rank corrupts round {flip.round} on purpose", file=sys.stderr, flush=True)
    calls = 0

    def work(generation: Generation, rails: Mapping[int, Rail]) -> Attempt:
        nonlocal calls
        calls += 1
        if calls > 1:
            return attempt(generation, rails)
        wrong: Any = {number: _FlippedRail(rail, flip.byte) for number, rail in rails.items()}
        return attempt(generation, wrong)

    return work


class _FlippedRail:
    """A rail, but for one bit of the first large message that comes over it."""

    def __init__(self, rail: Rail, byte: int) -> None:
        self._rail, self._byte, self._done = rail, byte, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rail, name)

    def receive(self, peer: int, tag: int, into: Buffer) -> "Ticket | _FlippedTicket":
        ticket = self._rail.receive(peer, tag, into)
        view = bytes_of(into) if isinstance(into, torch.Tensor) else memoryview(into).cast("B")
        if self._done or view.nbytes < PAYLOAD_BYTES_MIN:
            return ticket
        self._done = True
        return _FlippedTicket(ticket, view, self._byte)


class _FlippedTicket:
    def __init__(self, ticket: Ticket, view: memoryview, byte: int) -> None:
        self._ticket, self._view, self._byte, self._flipped = ticket, view, byte, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ticket, name)

    def wait(self, timeout_s: float | None = None) -> None:
        self._ticket.wait(timeout_s)
        if not self._flipped:  # who waits twice finds the same wrong byte
            self._view[self._byte % self._view.nbytes] ^= 1
        self._flipped = True
