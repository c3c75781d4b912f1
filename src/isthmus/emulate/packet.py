"""Frames as an AF_PACKET socket with PACKET_VNET_HDR hands them over, and how to cut a super-packet.

    virtio_net_hdr (10 bytes) | Ethernet (14) | IPv4 | TCP or UDP | payload

With offloads on, the kernel passes up to 64 KB at once and leaves the cutting into wire packets to the
device. The link must still lose, queue and pay for single wire packets, so this file can say what a frame
will be on the wire and can make a frame of any run of its segments. Source of the layout: Linux
include/uapi/linux/virtio_net.h; what a cut does to each header: net/ipv4/{af_inet,tcp_offload,udp_offload}.c.
"""

import struct
import sys
from dataclasses import dataclass

__all__ = ["HEAD", "MAX_FRAME", "REGION_AT", "Shape", "cut", "shape"]

VNET, ETHERNET = 10, 14
HEAD = VNET + ETHERNET  # where the IPv4 header starts
REGION_AT = HEAD + 18  # third octet of the destination: 10.77.<region>.<node>
MAX_FRAME = HEAD + 65536

_NEEDS_CHECKSUM = 1
_GSO_ECN = 0x80
_TCP, _FIN_PSH, _CWR = 6, 0x09, 0x80
_LOW = 0 if sys.byteorder == "little" else 1  # virtio_net_hdr of a packet socket is in the host's byte order


@dataclass(frozen=True, slots=True)
class Shape:
    """What a super-packet will be on the wire.

    Attributes:
        header_bytes: IP and transport header, repeated in every segment.
        segment_bytes: Payload of every segment but the last.
        count: Segments.
        wire_bytes: IP bytes of all segments together.
    """

    header_bytes: int
    segment_bytes: int
    count: int
    wire_bytes: int


def shape(frame: bytes) -> Shape | None:
    """The segments of `frame`, or None when it is one wire packet already."""
    if not frame[1] & ~_GSO_ECN:
        return None
    segment = frame[4 + _LOW] | frame[5 - _LOW] << 8
    ip = (frame[HEAD] & 15) * 4
    header = ip + ((frame[HEAD + ip + 12] >> 4) * 4 if frame[HEAD + 9] == _TCP else 8)
    payload = len(frame) - HEAD - header
    count = -(-payload // segment)
    if count <= 1:
        return None
    return Shape(header, segment, count, payload + count * header)


def cut(frame: bytes, of: Shape, first: int, count: int) -> bytes:
    """A frame of `count` segments of `frame`, from the one numbered `first`.

    Fixed are IP length, identification and checksum; TCP sequence number and flags (FIN and PSH stay on the
    last segment, CWR on the first) or UDP length; the transport checksum, which at this stage is the sum of
    the pseudo-header alone and so depends on the length; and the virtio header.
    """
    ip = (frame[HEAD] & 15) * 4
    start = HEAD + of.header_bytes + first * of.segment_bytes
    last = first + count == of.count
    payload = frame[start:] if last else frame[start : start + count * of.segment_bytes]
    head = bytearray(frame[: HEAD + of.header_bytes])
    length = of.header_bytes + len(payload)
    ident = struct.unpack_from("!H", head, HEAD + 4)[0]
    struct.pack_into("!H", head, HEAD + 2, length)
    struct.pack_into("!H", head, HEAD + 4, (ident + first) & 0xFFFF)
    struct.pack_into("!H", head, HEAD + 10, 0)
    struct.pack_into("!H", head, HEAD + 10, ~_sum(bytes(head[HEAD : HEAD + ip])) & 0xFFFF)
    transport = HEAD + ip
    if frame[HEAD + 9] == _TCP:
        sequence = struct.unpack_from("!I", head, transport + 4)[0]
        struct.pack_into("!I", head, transport + 4, (sequence + first * of.segment_bytes) & 0xFFFFFFFF)
        head[transport + 13] &= 0xFF if last else ~_FIN_PSH & 0xFF
        head[transport + 13] &= 0xFF if first == 0 else ~_CWR & 0xFF
        checksum = transport + 16
    else:
        struct.pack_into("!H", head, transport + 4, length - ip)
        checksum = transport + 6
    if head[0] & _NEEDS_CHECKSUM:
        whole = len(frame) - HEAD - ip
        partial = struct.unpack_from("!H", head, checksum)[0] + (~whole & 0xFFFF) + length - ip
        struct.pack_into("!H", head, checksum, _fold(partial))
    struct.pack_into("=H", head, 2, HEAD - VNET + of.header_bytes)
    if count == 1:
        head[1] = 0
        head[4] = head[5] = 0
    elif first and head[1] & _GSO_ECN:
        head[1] &= ~_GSO_ECN & 0xFF
    return bytes(head) + payload


def _sum(header: bytes) -> int:
    return _fold(sum(struct.unpack(f"!{len(header) // 2}H", header)))


def _fold(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
