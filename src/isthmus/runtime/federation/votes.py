"""The messages of a round beside its payload: `here` at its beginning, the vote at its end, `bye` after the last.

A vote says that ALL ranks of the region hold that result. Whoever holds the votes of all regions, with equal digests, knows that
every region can install the result, whatever happens to it afterwards.
"""

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.runtime.federation.states import Rails
from isthmus.runtime.wan.frames import TAG_LIMIT, PeerLostError, RailError, message_tag
from isthmus.runtime.wan.rail import Rail, Ticket

__all__ = ["Calls", "Vote", "say_bye"]

_HERE, _VOTE, _BYE = range(TAG_LIMIT - 11, TAG_LIMIT - 8)
_HERE_LAYOUT = struct.Struct("<QQ")
_VOTE_LAYOUT = struct.Struct("<QQQQQ")


@dataclass(frozen=True, slots=True)
class Vote:
    """One region's vote on a round.

    Attributes:
        round: Its number.
        held: All ranks hold one result; else it could not be computed there.
        digest: Of the result.
        comers: Regions that this one would let in after the round, as bits.
        tally: Of all its rails (`Rail.take_tally`); those of all regions sum to 0 modulo 2^64.
    """

    round: int
    held: bool
    digest: int
    comers: int
    tally: int

    def pack(self) -> bytes:
        """40 bytes."""
        return _VOTE_LAYOUT.pack(self.round, int(self.held), self.digest, self.comers, self.tally)

    @classmethod
    def unpack(cls, data: bytes | bytearray) -> "Vote":
        """The vote in 40 bytes."""
        number, held, digest, comers, tally = _VOTE_LAYOUT.unpack(data)
        return cls(number, bool(held), digest, comers, tally)


class Calls:
    """The small messages of one round on all rails of a rank; `here` is sent and asked for at once."""

    def __init__(self, rails: Rails, number: int, tokens: int) -> None:
        self._rails, self._number = rails, number
        self._here: dict[tuple[int, int], tuple[bytearray, Ticket | None]] = {}
        mine = _HERE_LAYOUT.pack(number, tokens)
        for key, rail in rails.items():
            for peer in _peers(rail):
                into = bytearray(_HERE_LAYOUT.size)
                self._here[key, peer] = (into, _quietly_receive(rail, peer, self._tag(_HERE), into))
                _quietly_send(rail, peer, self._tag(_HERE), mine)

    def late(self, deadline_s: float) -> set[int]:
        """Numbers of the regions that have not said `here` by then (monotonic time)."""
        missing: set[int] = set()
        for (_, peer), (_, ticket) in self._here.items():
            try:
                if ticket is not None:
                    ticket.wait(max(0.0, deadline_s - time.monotonic()))
            except RailError:
                if ticket is not None and not ticket.done:  # a broken link is no lateness
                    missing.add(peer)
        return missing

    def tokens(self) -> dict[int, int]:
        """Tokens of every other region's round; they were said before its payload, so nothing is waited for here.

        Raises:
            RailError: A link broke, or a region is at another round.
        """
        found: dict[int, int] = {}
        for (_, peer), (into, ticket) in self._here.items():
            if ticket is None:
                raise PeerLostError(f"region {peer} was lost before the round began")
            ticket.wait()
            number, tokens = _HERE_LAYOUT.unpack(into)
            if number != self._number or found.setdefault(peer, tokens) != tokens:
                raise RailError(f"region {peer} is at round {number} with {tokens} tokens, this one at {self._number}")
        return found

    def vote(self, mine: Vote, *, wait: bool = True) -> Mapping[int, Vote] | None:
        """Send this region's vote and return those of the others by region, as heard on the first rail where all came.

        None: on no rail all of them came. With `wait` False nobody's are waited for: this region's vote says that it failed.
        """
        into: dict[tuple[int, int], tuple[bytearray, Ticket]] = {}
        for key, rail in self._rails.items():
            for peer in _peers(rail):
                if _quietly_send(rail, peer, self._tag(_VOTE), mine.pack()) and wait:
                    data = bytearray(_VOTE_LAYOUT.size)
                    ticket = _quietly_receive(rail, peer, self._tag(_VOTE), data)
                    if ticket is not None:
                        into[key, peer] = (data, ticket)
        if not wait:
            return None
        for key, rail in self._rails.items():
            votes = {peer: _heard(into.get((key, peer))) for peer in _peers(rail)}
            whole = {peer: vote for peer, vote in votes.items() if vote is not None}
            if len(whole) == len(votes):
                return whole
        return None if self._rails else {}

    def _tag(self, kind: int) -> int:
        return message_tag(kind, self._number, 0, 0)


def say_bye(rails: Rails, timeout_s: float) -> None:
    """Wait until every other region is through with its last round, or gone, so that nobody leaves while it is needed."""
    deadline_s = time.monotonic() + timeout_s
    tickets: list[Ticket | None] = []
    for rail in rails.values():
        for peer in _peers(rail):
            _quietly_send(rail, peer, message_tag(_BYE, 0, 0, 0), b"bye.")
            tickets.append(_quietly_receive(rail, peer, message_tag(_BYE, 0, 0, 0), bytearray(4)))
    for ticket in tickets:
        if ticket is not None:
            try:
                ticket.wait(max(0.0, deadline_s - time.monotonic()))
            except RailError:
                continue


def _peers(rail: Rail) -> list[int]:
    return [peer for peer in range(rail.regions) if peer != rail.region]


def _heard(waiting: tuple[bytearray, Ticket] | None) -> Vote | None:
    if waiting is None:
        return None
    data, ticket = waiting
    try:
        ticket.wait()
    except RailError:
        return None
    return Vote.unpack(data)


def _quietly_send(rail: Rail, peer: int, tag: int, data: bytes) -> bool:
    try:
        rail.send(peer, tag, data)
    except RailError:
        return False
    return True


def _quietly_receive(rail: Rail, peer: int, tag: int, into: bytearray) -> Ticket | None:
    try:
        return rail.receive(peer, tag, into)
    except RailError:
        return None
