"""One direction of one WAN link: what happens to each frame, and when it comes out.

    offer --> [queue, drop-tail in bytes] --> [rate] --> [loss] --> [delay + jitter] --> release

The rate is in IP bytes at the MTU the packets have, so a super-packet pays for every header it will have on
the wire. `DirectedLink` is a machine that the delay line runs a hundred thousand times a second: plain
mutable slots, no clock of its own, every instant given in integer nanoseconds by the caller.
"""

import math
import random
from collections import deque
from dataclasses import dataclass

from isthmus.emulate.packet import HEAD, Shape, cut, shape

__all__ = ["MTU", "DirectedLink", "LinkSettings", "default_queue_bytes"]

MTU = 1500
PIECE_NS = 1_000_000  # a super-packet comes out in pieces of at most this time on the wire
KNOT_NS = 20_000_000  # the jitter curve turns at most this often
_BINS = 2048
_BIN_NS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """What one direction is asked to be.

    Attributes:
        rate_bytes_per_s: IP bytes; None for no limit.
        delay_s: One way.
        jitter_s: Peak deviation of the delay; at most `delay_s`.
        loss: Probability that a wire packet is lost, each by itself.
        queue_bytes: IP bytes that may wait for the rate; later ones are dropped.
        up: False drops everything, also what is on the line.
    """

    rate_bytes_per_s: float | None
    delay_s: float
    jitter_s: float = 0.0
    loss: float = 0.0
    queue_bytes: float = 131072.0
    up: bool = True


def default_queue_bytes(rate_bytes_per_s: float | None, rtt_s: float) -> float:
    """One bandwidth-delay product, and 128 KiB (two super-packets) at least."""
    return max(131072.0, (rate_bytes_per_s or 0.0) * rtt_s)


class DirectedLink:
    """The state of one direction; `set`, `offer` and `release` are all it does.

    `waiting` holds (release_ns, frame) in order of both. Counters count wire packets, not frames.
    """

    __slots__ = (
        "_draw", "_free_ns", "_gap", "_jitter_ns", "_knots", "_last_ns", "_loss", "_ns_per_byte", "_queue_ns", "_up",
        "delay_ns", "dropped_down", "dropped_loss", "dropped_queue", "late_bins", "packets", "queue_bytes_max",
        "waiting", "wire_bytes",
    )

    def __init__(self, settings: LinkSettings, seed: int) -> None:
        self._draw = random.Random(seed)
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.packets = self.wire_bytes = self.dropped_queue = self.dropped_loss = self.dropped_down = 0
        self.late_bins = [0] * (_BINS + 64)
        self._free_ns, self._last_ns, self._ns_per_byte = 0.0, 0, 0.0
        self._knots = (0, 0.0, 1, 0.0)
        self.set(settings, 0)

    def set(self, settings: LinkSettings, now_ns: int) -> None:
        """Change the settings; bytes that already wait keep their place and go at the new rate for later arrivals."""
        pace = 1e9 / settings.rate_bytes_per_s if settings.rate_bytes_per_s else 0.0
        if self._free_ns > now_ns and self._ns_per_byte:
            self._free_ns = now_ns + (self._free_ns - now_ns) * pace / self._ns_per_byte
        self._ns_per_byte = pace
        self._queue_ns = settings.queue_bytes * pace
        self.queue_bytes_max = 0.0
        self.delay_ns = round(settings.delay_s * 1e9)
        self._jitter_ns = settings.jitter_s * 1e9
        self._knots = (0, 0.0, 1, 0.0)
        self._loss = settings.loss
        self._gap = self._next_gap()
        self._up = settings.up
        if not settings.up:
            self.dropped_down += sum(_segments(frame) for _, frame in self.waiting)
            self.waiting.clear()

    def offer(self, frame: bytes, now_ns: int) -> None:
        """Take one frame that reached the link at `now_ns`."""
        of = shape(frame) if frame[1] else None
        count, wire = (of.count, of.wire_bytes) if of else (1, len(frame) - HEAD)
        if not self._up:
            self.dropped_down += count
            return
        free = self._free_ns if self._free_ns > now_ns else float(now_ns)
        pace = self._ns_per_byte
        took = wire * pace
        waits = free - now_ns + took
        if waits > self._queue_ns and pace:
            count, wire = self._fits(of, (self._queue_ns - (free - now_ns)) / pace)
            if not count:
                return
            took = wire * pace
            waits = free - now_ns + took
        if pace and waits > self.queue_bytes_max * pace:
            self.queue_bytes_max = waits / pace
        self.packets += count
        self.wire_bytes += wire
        if of and (count < of.count or took > PIECE_NS or self._gap < count):
            self._pieces(frame, of, count, free)
        elif self._gap < count:  # a single packet, and its turn to be lost
            self._gap = self._next_gap()
            self.dropped_loss += 1
        else:
            self._gap -= count
            self._put(frame, free + took)
        self._free_ns = free + took

    def late(self, by_ns: int) -> None:
        """Note that a frame left `by_ns` after it was due."""
        bin_ = by_ns // _BIN_NS
        self.late_bins[bin_ if bin_ < _BINS else _BINS + min(by_ns.bit_length(), 63)] += 1

    def late_p99_s(self) -> float:
        """Lateness that 99 of 100 frames stayed within, to 5 us below 10 ms and to a factor of two above; 0 for none."""
        left = math.ceil(sum(self.late_bins) * 0.99)
        for bin_, number in enumerate(self.late_bins):
            left -= number
            if number and left <= 0:
                return (bin_ + 1) * _BIN_NS * 1e-9 if bin_ < _BINS else 2.0 ** (bin_ - _BINS) * 1e-9
        return 0.0

    def _fits(self, of: Shape | None, room_bytes: float) -> tuple[int, int]:
        """How many leading segments the queue still takes, and their wire bytes; the rest is counted as dropped."""
        if of is None:
            self.dropped_queue += 1
            return 0, 0
        each = of.header_bytes + of.segment_bytes
        count = max(0, min(int(room_bytes // each), of.count - 1))
        self.dropped_queue += of.count - count
        return count, count * each

    def _pieces(self, frame: bytes, of: Shape, count: int, free: float) -> None:
        """Put the first `count` segments on the line in runs, broken where one is lost or a run takes too long."""
        pace = self._ns_per_byte
        each = (of.header_bytes + of.segment_bytes) * pace
        most = max(1, int(PIECE_NS / each)) if each else count
        end_of_all = free + of.wire_bytes * pace
        first = 0
        while first < count:
            run = min(most, count - first, self._gap)
            if run:
                self._gap -= run
                done = end_of_all if first + run == of.count else free + (first + run) * each
                self._put(cut(frame, of, first, run), done)
            first += run
            if first < count and self._gap == 0:
                self._gap = self._next_gap()
                self.dropped_loss += 1
                first += 1

    def _put(self, frame: bytes, done: float) -> None:
        """Schedule a frame whose last bit leaves the queue at `done`."""
        due = int(done) + self.delay_ns
        if self._jitter_ns:
            due += int(self._jitter(int(done)))
        self._last_ns = due = max(due, self._last_ns)  # after a change of delay: what is behind stays behind
        self.waiting.append((due, frame))

    def _jitter(self, at_ns: int) -> float:
        """The jitter curve: straight lines between uniform random knots, so flat that no packet can overtake another.

        Two knots differ by 2 j at most and stand 4 j apart at least, so the slope is never below -1/2.
        """
        from_ns, low, to_ns, high = self._knots
        if at_ns >= to_ns:
            step = max(KNOT_NS, int(4 * self._jitter_ns))
            if at_ns >= to_ns + step:
                to_ns, high = at_ns, self._draw.uniform(-self._jitter_ns, self._jitter_ns)
            from_ns, low, to_ns, high = to_ns, high, to_ns + step, self._draw.uniform(-self._jitter_ns, self._jitter_ns)
            self._knots = from_ns, low, to_ns, high
        return low + (high - low) * (at_ns - from_ns) / (to_ns - from_ns)

    def _next_gap(self) -> int:
        """Packets that pass before the next loss: geometric, so that every packet is lost with the same chance."""
        if self._loss <= 0:
            return 1 << 62
        if self._loss >= 1:
            return 0
        return int(math.log(1.0 - self._draw.random()) / math.log1p(-self._loss))


def _segments(frame: bytes) -> int:
    of = shape(frame) if frame[1] else None
    return of.count if of else 1
