"""How a rail may use sockets and memory, and what its links have done with them."""

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.runtime.wan.identity import Identity

__all__ = ["LinkUse", "RailOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RailOptions:
    """How a rail's sockets and memory are used.

    Attributes:
        congestion: None takes bbr where the kernel allows it and else what it has, which `counters` report; a name takes
            that or fails; "" leaves the route's.
        rate_bytes_per_s: This rail's share of the link's rate to another region, in IP bytes, where it is known: its streams
            are then paced to it. By region name where links differ. None: the congestion control finds out.
        chunk_bytes_max: The most that one stream sends before flows take turns; slow streams send less at a time; <= 8 MiB.
        early_bytes_max: Bytes kept, a peer, of messages not asked for yet.
        detect_s: A peer of whom nothing is heard for so long is lost, whether or not anybody waits for it. It must exceed the
            longest time for which one process keeps all its threads from running.
        heartbeat_s: A stream without work says so often that it lives; None: a fifth of `detect_s`.
        identity: Keys for TLS, for a rail without a door of its own to be given; a door brings its own.
        insecure: Plain TCP is allowed beyond the loopback interface.
    """

    congestion: str | None = None
    rate_bytes_per_s: float | Mapping[str, float] | None = None
    chunk_bytes_max: int = 1 << 20
    early_bytes_max: int = 1 << 26
    detect_s: float = 5.0
    heartbeat_s: float | None = None
    identity: Identity | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """What one link did since it was opened; of all its streams together.

    Attributes:
        payload_bytes_sent, payload_bytes_received: Messages' bytes, sent again or not.
        frame_bytes_sent, frame_bytes_received: The same with frame headers; TLS and TCP/IP are below us.
        control_bytes_sent: Acknowledgements, signs of life and goodbyes.
        frames_sent, frames_received: Data frames.
        busy_s: Time during which something was waiting to be sent, or sent and not acknowledged.
        goodput_bytes_per_s: payload_bytes_sent / busy_s; 0 before anything was sent.
        stall_s: Time that received data was left in the kernel because nobody had asked for so much.
        early_bytes_peak: The most that was kept of messages nobody had asked for yet.
        rtt_s: Smoothed round trip, mean of the streams; `rtt_s_min` the least of the last minutes.
        retransmits: Segments.
        streams_lost, chunks_resent, chunks_again: Streams that broke; chunks sent again for it; chunks that came again.
        encrypted: Inside TLS 1.3.
        send_buffer_bytes_max: The largest send buffer that the kernel has given a stream.
        window_bytes_wanted: What one stream must keep in flight to fill its share of the rate; None where that is not known.
        window_bytes_limit: What this kernel allows a stream to keep in flight (net.ipv4.tcp_wmem, tcp_rmem, net.core.*mem_max).
        buffer_limited_s: Time for which streams were held back by their send buffers.
        congestion: Congestion control in force.
    """

    payload_bytes_sent: int
    payload_bytes_received: int
    frame_bytes_sent: int
    frame_bytes_received: int
    control_bytes_sent: int
    frames_sent: int
    frames_received: int
    busy_s: float
    goodput_bytes_per_s: float
    stall_s: float
    early_bytes_peak: int
    rtt_s: float
    rtt_s_min: float
    retransmits: int
    streams_lost: int
    chunks_resent: int
    chunks_again: int
    encrypted: bool
    send_buffer_bytes_max: int
    window_bytes_wanted: float | None
    window_bytes_limit: int
    buffer_limited_s: float
    congestion: str
