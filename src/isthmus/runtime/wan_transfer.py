"""One transfer over a link, as both regions of the pair play it, for `wan_bench`.

Goodput is counted by the receiver, from the end of the first quarter to the last byte, so that slow start is left out.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from isthmus.runtime.wan.frames import RailError
from isthmus.runtime.wan.rail import Rail, Ticket

__all__ = ["Amount", "Way", "agreed_amount", "ping", "told_retransmits", "transfer"]

SMALL_BYTES, LARGE_BYTES, LARGE_FROM_BYTES_PER_S = 1 << 18, 1 << 21, 100e6
CHUNKS_MIN, CHUNKS_MAX = 16, 1 << 13
AHEAD_BYTES = 1 << 26
"""What a receiver has asked for before it comes, a rail: the window of 9 Gb/s over 60 ms."""
_TRIAL, _TELL, _RESENT, _CHUNKS = 0, 1, 2, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One transfer as a region of the pair sees it; `base` is its first tag."""

    peer: int
    base: int
    sends: bool
    receives: bool


@dataclass(frozen=True, slots=True)
class Amount:
    """Chunks of a transfer on one rail; where a region sends and receives, those it receives, and the others beside."""

    chunks: int
    chunk_bytes: int
    other_way: "Amount | None" = None


class _Arriving:
    """A thread that takes a rail's chunks in order, so that all rails of a rank are read at once."""

    def __init__(self, rail: Rail, way: Way, amount: Amount) -> None:
        self._rail, self._way, self._amount = rail, way, amount
        self._places = [
            torch.empty(amount.chunk_bytes, dtype=torch.uint8)
            for _ in range(min(amount.chunks, max(2, AHEAD_BYTES // amount.chunk_bytes)))
        ]
        tag = way.base + _CHUNKS
        self._tickets = [rail.receive(way.peer, tag + one, place) for one, place in enumerate(self._places)]
        self._bytes_per_s = 0.0
        self._error: RailError | None = None
        self._thread = threading.Thread(target=self._take, daemon=True, name="bench arrivals")
        self._thread.start()

    def result(self) -> float:
        """Bytes a second after the first quarter.

        Raises:
            RailError: The link was lost.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._bytes_per_s

    def _take(self) -> None:
        count, places, tag = self._amount.chunks, self._places, self._way.base + _CHUNKS
        quarter, begun_s = count // 4, time.perf_counter()
        try:
            for one in range(count):
                self._tickets[one].wait()
                following = one + len(places)
                if following < count:
                    self._tickets.append(self._rail.receive(self._way.peer, tag + following, places[one % len(places)]))
                if one == quarter:
                    begun_s = time.perf_counter()
        except RailError as error:
            self._error = error
            return
        self._bytes_per_s = (count - quarter - 1) * self._amount.chunk_bytes / (time.perf_counter() - begun_s)


def agreed_amount(rail: Rail, way: Way, seconds: float) -> Amount:
    """What takes about `seconds` on one rail: the sender tries a megabyte, and tells."""
    trial, told = torch.zeros(1 << 20, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    arriving = []
    if way.receives:
        arriving = [rail.receive(way.peer, way.base + _TRIAL, torch.empty_like(trial))]
        arriving += [rail.receive(way.peer, way.base + _TELL, told)]
    sent = Amount(0, 0)
    if way.sends:
        begun_s = time.perf_counter()
        rail.send(way.peer, way.base + _TRIAL, trial).wait()
        took_s = time.perf_counter() - begun_s
        # The answer's way and the slow start are in it: a guess that is low by a few times at most.
        guess = trial.nbytes / max(took_s - rail.agreed_rtt_s(way.peer), took_s / 8)
        size = LARGE_BYTES if guess > LARGE_FROM_BYTES_PER_S else SMALL_BYTES
        sent = Amount(min(CHUNKS_MAX, max(CHUNKS_MIN, int(guess * seconds / size))), size)
        rail.send(way.peer, way.base + _TELL, torch.tensor([sent.chunks, sent.chunk_bytes])).wait()
    for ticket in arriving:
        ticket.wait()
    return sent if way.sends and not way.receives else Amount(int(told[0]), int(told[1]), sent)


def transfer(rails: Mapping[int, Rail], way: Way, amounts: Mapping[int, Amount]) -> float:
    """Send and receive on all of this rank's rails at once; payload bytes a second that came in, of the rails together."""
    arriving = {number: _Arriving(rails[number], way, each) for number, each in amounts.items() if way.receives}
    waiting: list[Ticket] = []
    if way.sends:
        for number, rail in rails.items():
            amount = amounts[number].other_way or amounts[number]
            payload = torch.zeros(amount.chunk_bytes, dtype=torch.uint8)
            chunks = range(amount.chunks)
            tag = way.base + _CHUNKS
            waiting += [rail.send(way.peer, tag + one, payload, flow=way.base) for one in chunks]
    rates = [each.result() for each in arriving.values()]
    for ticket in waiting:
        ticket.wait()
    return sum(rates)


def told_retransmits(rail: Rail, way: Way, retransmits: int) -> int:
    """The sender's retransmits, told to the receiver."""
    told = torch.zeros(1, dtype=torch.int64)
    arriving = rail.receive(way.peer, way.base + _RESENT, told) if way.receives else None
    if way.sends:
        rail.send(way.peer, way.base + _RESENT, torch.tensor([retransmits])).wait()
    if arriving is not None:
        arriving.wait()
    return int(told)


def ping(rail: Rail, peer: int, tag: int, first: bool) -> float:
    """Seconds of a message of 8 bytes and its answer, for the region that is `first`; `tag` and the next one are taken."""
    there, back = tag, tag + 1
    word, heard = bytes(8), bytearray(8)
    begun_s = time.perf_counter()
    if first:
        answer = rail.receive(peer, back, heard)
        rail.send(peer, there, word)
        answer.wait()
    else:
        rail.receive(peer, there, heard).wait()
        rail.send(peer, back, word)
    return time.perf_counter() - begun_s
