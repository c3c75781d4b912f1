"""What crosses the WAN, byte by byte: frames, the hello that opens a stream, and the numbering of messages.

A message is `total` bytes under a 64-bit tag; `serial` numbers the messages of one sender on one link, so that a chunk that
comes twice is known. It travels as frames, each a fixed 60-byte header and one chunk of the message; frames of one message
may take any stream and arrive in any order. `sequence` counts the frames of a stream: one that is missing, or comes again,
breaks the stream. All integers are little-endian. Nothing here is ever unpickled or evaluated.

    frame header   magic 4s | kind u8 | 3 zero bytes | sequence u32 | serial u64 | tag u64 | total u64 | offset u64
                   | length u32 | xxh3-64 of the chunk u64 (0 inside TLS, whose own tag covers it)
                   | xxh32 of the 56 bytes before u32
    kinds          1 data | 2 goodbye | 3 acknowledgement (total = data frames of this stream received so far) | 4 sign of life
    hello          magic 8s | version u16 | verdict u16 | federation 16s | members u64 | generation u64 | instance u64
                   | region u16 | to_region u16 | rail u16 | stream u16 | streams u16 | round trip in microseconds u32
                   | length of text u16
                   | then the text as UTF-8: the speaker's region name, or the reason of a refusal
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import xxhash

from isthmus.runtime.environment import Members

__all__ = [
    "HEADER_BYTES",
    "HELLO_BYTES",
    "TAG_LIMIT",
    "VERSION",
    "CorruptFrameError",
    "DisagreementError",
    "Frame",
    "Hello",
    "PeerLostError",
    "RailError",
    "StrangerError",
    "chunk_check",
    "federation_id",
    "message_tag",
    "pack_frame",
    "pack_hello",
    "pack_signal",
    "read_hello",
    "unpack_frame",
    "unpack_hello",
]

VERSION: Final = 5
MAGIC: Final = b"ISFR"
HELLO_MAGIC: Final = b"ISTHMUS\0"
_TLS: Final = (b"\x16\x03", b"\x15\x03")  # how a TLS handshake or alert begins
DATA, BYE, ACK, BEAT = 1, 2, 3, 4
_HEADER = struct.Struct("<4sB3xIQQQQIQ")
_CHECK = struct.Struct("<I")
_HELLO = struct.Struct("<8sHH16sQQQHHHHHIH")
HEADER_BYTES: Final = _HEADER.size + _CHECK.size
HELLO_BYTES: Final = _HELLO.size
HELLO_MAGIC_BYTES: Final = len(HELLO_MAGIC)
TEXT_BYTES_MAX: Final = 400
CHUNK_BYTES_LIMIT: Final = 1 << 23
MESSAGE_BYTES_LIMIT: Final = 1 << 48
TAG_LIMIT: Final = 1 << 20


class RailError(RuntimeError):
    """The WAN transport cannot go on; the message names the link."""


class PeerLostError(RailError):
    """A region went away, or was silent for the whole time-out."""


class QuietError(ConnectionResetError):
    """A caller went away without a word: a probe, which is no news."""


class CorruptFrameError(RailError):
    """Bytes arrived that the peer did not send: a checksum or a frame's bounds do not hold."""


class DisagreementError(RailError):
    """Both ends are sound, but do not run the same program."""


class StrangerError(RailError):
    """Who answered, or called, is not the expected member of this federation."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One header: `length` bytes of message `serial` (under `tag`, of `total` bytes) from `offset`; `check` covers them."""

    kind: int
    sequence: int
    serial: int
    tag: int
    total: int
    offset: int
    length: int
    check: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who opens a stream (or answers); `verdict` 0 is welcome, else `text` says why not.

    Attributes:
        federation: 16 bytes, equal in one run.
        members: Fingerprint of the regions of the generation, in order, with their addresses.
        generation: Which grouping of regions the stream belongs to.
        instance: Random number of the speaker's rail: another one means that it was started again.
        region, to_region: Numbers within the generation.
        rail, stream, streams: Which stream of how many of which rail.
        rtt_us: Round trip as the caller's kernel found it; the answer repeats it, so both ends know the same number.
        text: Name of the speaker's region, or the reason of a refusal.
    """

    federation: bytes
    region: int
    to_region: int
    rail: int
    stream: int
    streams: int
    members: int = 0
    generation: int = 0
    instance: int = 0
    rtt_us: int = 0
    version: int = VERSION
    verdict: int = 0
    text: str = ""


def chunk_check(chunk: memoryview | bytes | bytearray) -> int:
    """The checksum of a chunk: xxh3-64. It finds faults of memory, drivers and middle boxes, not forgers (TLS does)."""
    return xxhash.xxh3_64_intdigest(chunk)


def pack_frame(frame: Frame) -> bytes:
    """The bytes of a header."""
    body = _HEADER.pack(
        MAGIC,
        frame.kind,
        frame.sequence,
        frame.serial,
        frame.tag,
        frame.total,
        frame.offset,
        frame.length,
        frame.check,
    )
    return body + _CHECK.pack(xxhash.xxh32_intdigest(body))


def pack_signal(kind: int, received: int = 0) -> bytes:
    """A frame without a chunk: BYE, BEAT, or ACK of the first `received` data frames of the stream."""
    return pack_frame(Frame(kind, 0, 0, 0, received, 0, 0, 0))


def unpack_frame(header: memoryview | bytearray | bytes, link: str) -> Frame:
    """Read a header.

    Raises:
        CorruptFrameError: Its magic, its checksum, its kind or its bounds are wrong; names `link`.
    """
    magic, *fields = _HEADER.unpack_from(header)
    (stated,) = _CHECK.unpack_from(header, _HEADER.size)
    frame = Frame(*fields)
    if magic != MAGIC or stated != xxhash.xxh32_intdigest(header[: _HEADER.size]):
        raise CorruptFrameError(
            f"{link}: a frame header is corrupt (magic {magic!r}, tag {frame.tag:#x} if it can be believed)"
        )
    bounds = (
        frame.length <= CHUNK_BYTES_LIMIT
        and frame.total <= MESSAGE_BYTES_LIMIT
        and frame.offset + frame.length <= frame.total
        and (frame.length > 0 or frame.total == 0 or frame.kind != DATA)
    )
    if not DATA <= frame.kind <= BEAT or not bounds or (frame.kind != DATA and frame.length):
        raise CorruptFrameError(
            f"{link}: a frame of kind {frame.kind}, tag {frame.tag:#x}, claims bytes {frame.offset}+{frame.length} "
            f"of {frame.total}"
        )
    return frame


def pack_hello(hello: Hello) -> bytes:
    """The bytes of `hello`; its text is cut to 400 bytes."""
    text = hello.text.encode()[:TEXT_BYTES_MAX]
    return (
        _HELLO.pack(
            HELLO_MAGIC,
            hello.version,
            hello.verdict,
            hello.federation,
            hello.members,
            hello.generation,
            hello.instance,
            hello.region,
            hello.to_region,
            hello.rail,
            hello.stream,
            hello.streams,
            hello.rtt_us,
            len(text),
        )
        + text
    )


def unpack_hello(data: bytes | bytearray, who: str) -> tuple[Hello, int]:
    """The hello in the first `HELLO_BYTES` of `data`, and how many bytes of text follow it.

    Raises:
        StrangerError: They do not begin as a hello does, or speak another version; names `who`.
    """
    magic, version, verdict, federation, members, generation, instance, *numbers, length = _HELLO.unpack_from(
        data
    )
    if magic != HELLO_MAGIC:
        tls = "; it speaks TLS, here no keys are in use" if magic[:2] in _TLS else ""
        raise StrangerError(
            f"{who} is no isthmus rail: it began with {bytes(magic)!r}, expected {HELLO_MAGIC!r}{tls}"
        )
    if version != VERSION:
        raise StrangerError(f"{who} speaks version {version} of the rail protocol, this is version {VERSION}")
    if length > TEXT_BYTES_MAX:
        raise StrangerError(
            f"{who} claims a name of {length} bytes, the protocol allows {TEXT_BYTES_MAX}"
        )
    region, to_region, rail, stream, streams, rtt_us = numbers
    hello = Hello(
        federation=federation,
        members=members,
        generation=generation,
        instance=instance,
        region=region,
        to_region=to_region,
        rail=rail,
        stream=stream,
        streams=streams,
        rtt_us=rtt_us,
        version=version,
        verdict=verdict,
    )
    return hello, length


def read_hello(receive: Callable[[int], bytes], who: str) -> Hello:
    """Read a hello by `receive(size)`, which gives at most `size` bytes and none at the end of the stream.

    Raises:
        StrangerError: It is no hello.
        ConnectionResetError: The stream ended inside it; with no byte read, `QuietError`.
    """
    start = _exactly(receive, HELLO_MAGIC_BYTES, who)
    if start != HELLO_MAGIC:  # whoever speaks something else is told apart at once, and not when it has said enough
        unpack_hello(start.ljust(HELLO_BYTES, b"\0"), who)
    hello, length = unpack_hello(start + _exactly(receive, HELLO_BYTES - len(start), who), who)
    return replace(hello, text=_exactly(receive, length, who).decode(errors="replace")) if length else hello


def _exactly(receive: Callable[[int], bytes], size: int, who: str) -> bytes:
    data = b""
    while len(data) < size:
        piece = receive(size - len(data))
        if not piece and data[:2] in _TLS:
            unpack_hello(data.ljust(HELLO_BYTES, b"\0"), who)
        if not piece:
            raise (ConnectionResetError if data or size != HELLO_MAGIC_BYTES else QuietError)(
                f"{who} closed the stream after {len(data)} of {size} bytes of its hello"
            )
        data += piece
    return data


def federation_id(members: Members) -> bytes:
    """16 bytes that two ranks share only when they were given the same members, in the same order."""
    text = "\n".join(" ".join([region.name, *region.rails]) for region in members.regions)
    return xxhash.xxh3_128_digest(text.encode())


def message_tag(tag: int, epoch: int, phase: int, segment: int) -> int:
    """The 64-bit tag of one part of one use of a caller's tag.

    `tag` < 2^20 says which tensor, `epoch` which use of it (kept to 24 bits), `phase` < 16 which step of an exchange,
    `segment` < 2^16 which piece.
    """
    if not (0 <= tag < TAG_LIMIT and 0 <= phase < 16 and 0 <= segment < 1 << 16 and epoch >= 0):
        raise ValueError(
            f"tag {tag}, epoch {epoch}, phase {phase}, segment {segment}: out of 20, 24, 4 and 16 bits"
        )
    return (tag << 44) | ((epoch & 0xFFFFFF) << 20) | (phase << 16) | segment
