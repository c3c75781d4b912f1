"""Fuzz the frame reader: good, damaged, truncated, repeated, overlapping and invented frames and hellos, straight into it.

    python benchmarks/fuzz_frames.py [--cases 1000000] [--seed 1]

Every case is one frame (or hello) from the wire. The reader may refuse it with one of its own errors, which breaks the stream;
whatever else happens (another exception, a byte of a message that was never sent, memory beyond its bound, a message that
completes twice or never) is a finding and ends the run with status 1.
"""

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

from isthmus.runtime.wan.frames import (
    ACK,
    DATA,
    HEADER_BYTES,
    CorruptFrameError,
    DisagreementError,
    Frame,
    Hello,
    StrangerError,
    chunk_check,
    pack_frame,
    pack_hello,
    read_hello,
    unpack_frame,
)
from isthmus.runtime.wan.inbox import Inbox
from isthmus.runtime.wan.outbox import Outbox
from isthmus.runtime.wan.ticket import Ticket

EARLY_BYTES = 1 << 16
PATTERN = bytes(range(251)) * 20


class Sender:
    """What an honest peer would send: messages cut in chunks, and all of them again when a stream breaks."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.serial = rng, 0
        self.waiting: list[Frame] = []
        self.old: list[Frame] = []

    def body(self, frame: Frame) -> bytes:
        start = frame.tag % 251
        return PATTERN[start + frame.offset : start + frame.offset + frame.length]

    def begin(self) -> tuple[int, int]:
        """A new message: its tag and size; its chunks wait."""
        self.serial += 1
        size = self.rng.choice((0, 1, 7, 64, 300, 1500))
        tag, cuts = self.serial, sorted({0, size, *(self.rng.randrange(size + 1) for _ in range(3))})
        pairs = list(pairwise(cuts)) or [(0, 0)]
        self.waiting += [Frame(DATA, 0, self.serial, tag, size, low, high - low, 0) for low, high in pairs]
        self.rng.shuffle(self.waiting)
        return tag, size


class Reader:
    """The receiving end, as `lane.Lane` drives it, with memory for the socket."""

    def __init__(self) -> None:
        self.inbox = Inbox("fuzz", EARLY_BYTES)
        self.outbox = Outbox(1)
        self.slot = self.outbox.join()
        self.sequence = self.broken = 0
        self.asked: dict[int, tuple[bytearray, Ticket]] = {}

    def ask(self, tag: int, size: int) -> None:
        into = bytearray(b"\xee" * size)
        ticket = Ticket(f"tag {tag}", size, 60, time.monotonic)
        self.inbox.post(tag, memoryview(into), ticket)
        self.asked[tag] = (into, ticket)

    def read(self, wire: bytes) -> Frame | None:
        """One frame from `wire`; raises as a lane would, and lands nothing unless it is whole and proved."""
        if len(wire) < HEADER_BYTES:
            return None
        frame = unpack_frame(memoryview(wire)[:HEADER_BYTES], "fuzz")
        if frame.sequence != self.sequence:
            raise CorruptFrameError("out of order")
        self.sequence += 1
        if frame.kind == ACK:
            self.outbox.acknowledge(self.slot, frame.total, "fuzz")
        if frame.kind != DATA:
            return frame
        if self.inbox.early_bytes + frame.length + 256 > EARLY_BYTES and frame.tag not in self.asked:
            return None  # a real lane would wait here
        landing = self.inbox.place(frame, lambda: None)
        body = wire[HEADER_BYTES : HEADER_BYTES + frame.length]
        landing.view[: len(body)] = body
        if len(body) < frame.length or chunk_check(body) != frame.check:
            self.inbox.abandon(landing)
            raise CorruptFrameError("truncated, or its checksum does not hold")
        self.inbox.landed(landing)
        return frame


def damage(rng: random.Random, wire: bytes) -> bytes:
    """`wire` with something wrong."""
    data = bytearray(wire)
    match rng.randrange(5):
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            start = rng.randrange(len(data))
            data[start : start + 8] = rng.randbytes(8)
        case 3:
            data = bytearray(rng.randbytes(rng.randrange(200)))
        case _:
            data[:0] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data)


def invented(rng: random.Random, reader: Reader, sender: Sender) -> Frame:
    """A frame whose checksums hold, with claims of its own."""
    def number() -> int:
        return rng.choice((0, 1, rng.randrange(2000), rng.getrandbits(32), rng.getrandbits(64), sender.serial))

    kind = rng.choice((0, DATA, DATA, DATA, 2, ACK, 4, 255))
    # A serial that no honest frame has: honest messages must survive whatever such frames claim about others.
    return Frame(kind, reader.sequence, (1 << 60) + rng.randrange(50), (1 << 50) + rng.randrange(50), number(), number(),
                 rng.choice((0, 1, 100, 1 << 23, (1 << 23) + 1, rng.getrandbits(32))), rng.getrandbits(64))


class Fuzz:
    """A run of many cases on one reader after another."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.found: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        self.sender, self.reader = Sender(self.rng), Reader()
        self.sizes: dict[int, int] = {}

    def case(self) -> None:
        """One frame or hello."""
        rng, sender, reader = self.rng, self.sender, self.reader
        if rng.random() < 0.02:
            self.hello()
            return
        while not sender.waiting:
            self.check()
            if sender.serial > 200:
                self.start()
                sender, reader = self.sender, self.reader
            tag, size = sender.begin()
            self.sizes[tag] = size
            if rng.random() < 0.7:
                reader.ask(tag, size)
        try:
            self.found[self.read(sender.waiting[-1], rng.random())] += 1
        except (CorruptFrameError, DisagreementError) as error:
            self.found[type(error).__name__] += 1
            reader.sequence = 0  # its stream is broken, here is the next one
        assert reader.inbox.early_bytes <= EARLY_BYTES, "memory"

    def read(self, frame: Frame, what: float) -> str:
        """Let the reader have the next honest frame, or something else in its place."""
        rng, sender, reader = self.rng, self.sender, self.reader
        if what < 0.4:
            if reader.read(self.wire(frame)) is not None:
                sender.old.append(sender.waiting.pop())
                return "good"
            reader.ask(frame.tag, self.sizes[frame.tag])  # no memory for what nobody asked for
            return "held back"
        if what < 0.5 and sender.old:
            reader.read(self.wire(rng.choice(sender.old)))
            return "repeated"
        if what < 0.55 and frame.length > 1:
            reader.read(self.wire(replace(frame, offset=frame.offset // 2)))
            self.spoil(frame)  # its sender is not honest: whatever else it sends of this message may overlap
            return "overlapping"
        if what < 0.65:
            reader.read(pack_frame(invented(rng, reader, sender)) + rng.randbytes(rng.randrange(300)))
            return "invented"
        reader.read(damage(rng, self.wire(frame)))
        return "cut short"

    def wire(self, frame: Frame) -> bytes:
        body = self.sender.body(frame)
        return pack_frame(replace(frame, sequence=self.reader.sequence, check=chunk_check(body))) + body

    def spoil(self, frame: Frame) -> None:
        for frames in (self.sender.waiting, self.sender.old):
            frames[:] = [one for one in frames if one.serial != frame.serial]
        into, _ = self.reader.asked.pop(frame.tag, (b"", None))
        truth, incoming = PATTERN[frame.tag % 251 :], self.reader.inbox._incoming.get(frame.serial)
        for low, high in incoming.here.spans() if incoming and into else ():
            assert into[low:high] == truth[low:high], "a byte that was never sent"
        del self.sizes[frame.tag]

    def check(self) -> None:
        """All that was sent is here, right to the last byte, and once."""
        for tag, size in list(self.sizes.items()):
            if tag not in self.reader.asked:
                self.reader.ask(tag, size)
            into, ticket = self.reader.asked.pop(tag)
            assert ticket.done, f"message {tag} of {size} bytes: {ticket.left_bytes} never came"
            ticket.wait()
            assert into == PATTERN[tag % 251 :][:size], f"message {tag} is not what was sent"
        self.sizes.clear()

    def hello(self) -> None:
        rng = self.rng
        text = "r" * rng.randrange(500)
        good = pack_hello(Hello(federation=rng.randbytes(16), region=1, to_region=0, rail=0, stream=0, streams=4, text=text))
        wire = bytearray(damage(rng, good) if rng.random() < 0.8 else good)

        def receive(size: int) -> bytes:
            piece = bytes(wire[: rng.randrange(size) + 1 if size else 0])
            del wire[: len(piece)]
            return piece

        try:
            hello = read_hello(receive, "fuzz")
            assert len(hello.text.encode(errors="replace")) <= 1200
            self.found["hello taken"] += 1
        except (StrangerError, ConnectionResetError) as error:
            self.found[type(error).__name__] += 1


def main() -> int:
    """Run the cases; print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    fuzz, started_s = Fuzz(arguments.seed), time.monotonic()
    for number in range(arguments.cases):
        try:
            fuzz.case()
        except Exception as error:
            print(f"finding: seed {arguments.seed}, case {number}: {error!r}", flush=True)
            raise
    counts = ", ".join(f"{name} {count}" for name, count in sorted(fuzz.found.items()))
    print(f"{arguments.cases} cases from seed {arguments.seed} in {time.monotonic() - started_s:.0f} s, nothing found: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
