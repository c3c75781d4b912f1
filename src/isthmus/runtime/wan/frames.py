"""What crosses the WAN, byte by byte: frames, the hello that opens a stream, and the numbering of messages.

A message is `total` bytes under a 64-bit tag. It travels as frames, each a fixed 48-byte header and one chunk of the
message; frames of one message may take any stream and arrive in any order. All integers are little-endian. Nothing here
is ever unpickled or evaluated.

    frame header   magic 4s | kind u8 | 3 zero bytes | tag u64 | total u64 | offset u64 | length u32
                   | xxh3-64 of the chunk u64 | xxh32 of the 44 bytes before u32
    hello          magic 8s | version u16 | verdict u16 | federation 16s | region u16 | to_region u16 | rail u16
                   | stream u16 | streams u16 | reason length u16 | 24 zero bytes, then the reason as UTF-8
"""

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from isthmus.runtime.environment import Members

__all__ = [
    "HEADER_BYTES",
    "HELLO_BYTES",
    "TAG_LIMIT",
    "VERSION",
    "CorruptFrameError",
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
    "unpack_frame",
    "unpack_hello",
]

VERSION: Final = 1
MAGIC: Final = b"ISFR"
HELLO_MAGIC: Final = b"ISTHMUS\0"
DATA, BYE = 1, 2
_HEADER = struct.Struct("<4sB3xQQQIQ")
_CHECK = struct.Struct("<I")
_HELLO = struct.Struct("<8sHH16sHHHHHH24x")
HEADER_BYTES: Final = _HEADER.size + _CHECK.size
HELLO_BYTES: Final = _HELLO.size
CHUNK_BYTES_LIMIT: Final = 1 << 26
TAG_LIMIT: Final = 1 << 20


class RailError(RuntimeError):
    """The WAN transport cannot go on; the message names the link."""


class PeerLostError(RailError):
    """A region went away, or was silent for the whole time-out."""


class CorruptFrameError(RailError):
    """Bytes arrived that the peer did not send: a checksum or a frame's bounds do not hold."""


class StrangerError(RailError):
    """Who answered, or called, is not the expected member of this federation."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One header: `length` bytes of message `tag` (of `total` bytes) from `offset`; `check` covers those bytes."""

    kind: int
    tag: int
    total: int
    offset: int
    length: int
    check: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who opens a stream (or answers): region, rail and stream numbers; `verdict` 0 is welcome, else `reason` says why not."""

    federation: bytes
    region: int
    to_region: int
    rail: int
    stream: int
    streams: int
    version: int = VERSION
    verdict: int = 0
    reason: str = ""


def chunk_check(chunk: memoryview | bytes | bytearray) -> int:
    """The checksum of a chunk: xxh3-64. It finds faults of memory, drivers and middle boxes, not forgers (TLS does)."""
    return xxhash.xxh3_64_intdigest(chunk)


def pack_frame(tag: int, total: int, offset: int, chunk: memoryview) -> bytes:
    """The header of a data frame that carries `chunk`."""
    body = _HEADER.pack(MAGIC, DATA, tag, total, offset, chunk.nbytes, chunk_check(chunk))
    return body + _CHECK.pack(xxhash.xxh32_intdigest(body))


def pack_bye() -> bytes:
    """The frame that ends a stream in good order."""
    body = _HEADER.pack(MAGIC, BYE, 0, 0, 0, 0, chunk_check(b""))
    return body + _CHECK.pack(xxhash.xxh32_intdigest(body))


def unpack_frame(header: memoryview | bytearray | bytes, link: str) -> Frame:
    """Read a header.

    Raises:
        CorruptFrameError: Its magic, its checksum, its kind or its bounds are wrong; names `link`.
    """
    magic, kind, tag, total, offset, length, check = _HEADER.unpack_from(header)
    (stated,) = _CHECK.unpack_from(header, _HEADER.size)
    if magic != MAGIC or stated != xxhash.xxh32_intdigest(bytes(header[: _HEADER.size])):
        raise CorruptFrameError(
            f"{link}: a frame header is corrupt (magic {magic!r}, tag {tag:#x} if it can be believed)"
        )
    if kind not in (DATA, BYE) or length > CHUNK_BYTES_LIMIT or offset + length > total:
        raise CorruptFrameError(
            f"{link}: a frame of kind {kind}, tag {tag:#x}, claims bytes {offset}+{length} of {total}"
        )
    return Frame(kind, tag, total, offset, length, check)


def pack_hello(hello: Hello) -> bytes:
    """The bytes of `hello`; its reason is cut to 400 bytes."""
    reason = hello.reason.encode()[:400]
    return (
        _HELLO.pack(
            HELLO_MAGIC,
            hello.version,
            hello.verdict,
            hello.federation,
            hello.region,
            hello.to_region,
            hello.rail,
            hello.stream,
            hello.streams,
            len(reason),
        )
        + reason
    )


def unpack_hello(data: bytes | bytearray, who: str) -> tuple[Hello, int]:
    """The hello in the first `HELLO_BYTES` of `data`, and how many bytes of reason follow it.

    Raises:
        StrangerError: They do not begin as a hello does, or speak another version; names `who`.
    """
    magic, version, verdict, federation, region, to_region, rail, stream, streams, length = (
        _HELLO.unpack_from(data)
    )
    if magic != HELLO_MAGIC:
        raise StrangerError(
            f"{who} is no isthmus rail: it began with {bytes(magic)!r}, expected {HELLO_MAGIC!r}"
        )
    if version != VERSION:
        raise StrangerError(f"{who} speaks version {version} of the rail protocol, this is version {VERSION}")
    hello = Hello(
        federation=federation,
        region=region,
        to_region=to_region,
        rail=rail,
        stream=stream,
        streams=streams,
        version=version,
        verdict=verdict,
    )
    return hello, min(length, 400)


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
