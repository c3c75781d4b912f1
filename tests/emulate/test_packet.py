"""Cutting a super-packet against a second witness: a segmenter that builds every wire packet from its meaning."""

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.emulate.packet import HEAD, cut, shape

SOURCE, TARGET = bytes([10, 77, 0, 10]), bytes([10, 77, 1, 11])
TCP, UDP = 6, 17
FIN, PSH, ACK, CWR = 0x01, 0x08, 0x10, 0x80


def ones_sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def ip_header(length: int, ident: int, protocol: int) -> bytes:
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, ident, 0x4000, 63, protocol, 0, SOURCE, TARGET)
    return head[:10] + struct.pack("!H", ~ones_sum(head) & 0xFFFF) + head[12:]


def transport(protocol: int, sequence: int, flags: int, options: bytes, length: int, checksum: int) -> bytes:
    if protocol == UDP:
        return struct.pack("!HHHH", 1000, 2000, length, checksum)
    offset = (20 + len(options)) // 4 << 4
    return struct.pack("!HHIIBBHHH", 1000, 2000, sequence, 77, offset, flags, 500, checksum, 0) + options


def pseudo(protocol: int, length: int) -> bytes:
    return SOURCE + TARGET + struct.pack("!BBH", 0, protocol, length)


@dataclass(frozen=True)
class Message:
    """What one super-packet says."""

    protocol: int
    payload: bytes
    segment: int
    flags: int
    options: bytes
    ident: int
    sequence: int


def super_frame(of: Message) -> bytes:
    """As the kernel hands it over: checksum of the pseudo-header only, virtio header with GSO fields."""
    bare = transport(of.protocol, of.sequence, of.flags, of.options, 0, 0)
    length = len(bare) + len(of.payload)
    head = transport(of.protocol, of.sequence, of.flags, of.options, length, ones_sum(pseudo(of.protocol, length)))
    kind = (1 if of.protocol == TCP else 5) | (0x80 if of.flags & CWR else 0)
    virtio = struct.pack("=BBHHHH", 1, kind, 14 + 20 + len(head), of.segment, 34, 16 if of.protocol == TCP else 6)
    return virtio + bytes(12) + b"\x08\x00" + ip_header(20 + length, of.ident, of.protocol) + head + of.payload


def wire_packets(of: Message) -> list[bytes]:
    """What a card would put on the wire, with complete checksums."""
    packets: list[bytes] = []
    starts = range(0, len(of.payload), of.segment)
    for number, start in enumerate(starts):
        part = of.payload[start : start + of.segment]
        own = of.flags & ~(0 if number == len(starts) - 1 else FIN | PSH) & ~(0 if number == 0 else CWR)
        at = (of.sequence + start) % 2**32
        length = len(transport(of.protocol, at, own, of.options, 0, 0)) + len(part)
        head = transport(of.protocol, at, own, of.options, length, 0)
        total = ~ones_sum(pseudo(of.protocol, length) + head + part) & 0xFFFF
        head = transport(of.protocol, at, own, of.options, length, total)
        packets.append(ip_header(20 + length, (of.ident + number) % 65536, of.protocol) + head + part)
    return packets


def segmented_by_kernel(frame: bytes) -> list[bytes]:
    """What the kernel's own segmentation makes of a frame: only from what stands in the frame's bytes."""
    flags, kind, _, segment, start, offset = struct.unpack_from("=BBHHHH", frame)
    assert flags == 1
    packet = frame[HEAD:]
    protocol = packet[9]
    header = 28 if protocol == UDP else 20 + (packet[32] >> 4) * 4
    assert struct.unpack_from("!H", packet, 2)[0] == len(packet)
    assert ones_sum(packet[:20]) == 0xFFFF
    at = start + offset - 14
    seed = struct.unpack_from("!H", packet, at)[0]
    assert seed % 0xFFFF == ones_sum(pseudo(protocol, len(packet) - 20)) % 0xFFFF  # 0 and 0xffff are the same sum
    if not kind:
        total = ~ones_sum(packet[20:]) & 0xFFFF
        return [packet[:at] + struct.pack("!H", total) + packet[at + 2 :]]
    payload = packet[header:]
    ident = struct.unpack_from("!H", packet, 4)[0]
    if protocol == UDP:
        return wire_packets(Message(UDP, payload, segment, 0, b"", ident, 0))
    sequence = struct.unpack_from("!I", packet, 24)[0]
    return wire_packets(Message(TCP, payload, segment, packet[33], packet[40:header], ident, sequence))


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    protocol = draw(st.sampled_from([TCP, UDP]))
    segment = draw(st.integers(1, 200))
    size = draw(st.integers(segment + 1, segment * 12))
    payload = draw(st.binary(min_size=size, max_size=size))
    flags = ACK | draw(st.sampled_from([0, PSH, FIN | PSH, CWR, CWR | PSH]))
    options = draw(st.sampled_from([b"", b"\1\1\x08\x0a" + b"\7" * 8]))
    if protocol == UDP:
        flags, options = 0, b""
    ident, sequence = draw(st.integers(0, 65535)), draw(st.integers(0, 2**32 - 1))
    message = Message(protocol, payload, segment, flags, options, ident, sequence)
    return super_frame(message), wire_packets(message)


@given(frame_and_packets=frames(), data=st.data())
def test_any_run_of_segments_is_what_a_card_would_have_sent(
    frame_and_packets: tuple[bytes, list[bytes]], data: st.DataObject
) -> None:
    frame, packets = frame_and_packets
    of = shape(frame)
    assert of is not None
    assert of.count == len(packets)
    assert of.wire_bytes == sum(map(len, packets))
    first = data.draw(st.integers(0, of.count - 1))
    count = data.draw(st.integers(1, of.count - first))
    piece = cut(frame, of, first, count)
    assert segmented_by_kernel(piece) == packets[first : first + count]
    inner = shape(piece)
    assert (inner.count if inner else 1) == count
    assert struct.unpack_from("=H", piece, 2)[0] <= len(piece) - 10, "the kernel refuses a header longer than the frame"


def test_the_witness_segments_the_whole_frame_like_the_card() -> None:
    message = Message(TCP, bytes(range(250)) * 3, 100, ACK | PSH, b"", 65534, 2**32 - 150)
    assert segmented_by_kernel(super_frame(message)) == wire_packets(message)


@pytest.mark.parametrize("size", [1, 100])
def test_one_segment_is_no_super_packet(size: int) -> None:
    assert shape(super_frame(Message(TCP, bytes(size), 100, ACK, b"", 1, 1))) is None
