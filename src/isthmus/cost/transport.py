"""What a long link lets through: headers, windows, loss. Rates are bytes/s; link rates count IP bytes.

Slow start is left out everywhere: isthmus keeps its connections open and warm, and says so where it reports a
cold figure.
"""

from dataclasses import dataclass
from math import ceil, inf, sqrt

__all__ = [
    "Limit",
    "bandwidth_delay_product_bytes",
    "mathis_rate_bytes_per_s",
    "nccl_window_bytes",
    "payload_fraction",
    "rdma_window_bytes",
    "streams_to_fill",
    "tcp_buffer_bytes",
    "tcp_rate_bytes_per_s",
    "window_rate_bytes_per_s",
]

TCP_IP_HEADER_BYTES = 52
"""IPv4 (20) + TCP (20) + the timestamp option that Linux sends by default (12); RFC 791, 9293, 7323."""

MATHIS_CONSTANT = sqrt(3 / 2)
"""1.22: periodic loss, every segment acknowledged. Mathis et al., ACM CCR 27(3), 1997."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate and the name of what sets it (`link`, `window` or `loss`)."""

    rate_bytes_per_s: float
    bind: str


def payload_fraction(mtu_bytes: int = 1500) -> float:
    """Share of the IP bytes of full-size TCP packets that is payload: (MTU - 52) / MTU; 1448/1500 = 0.9653.

    Leaves out: the acknowledgements of the other direction, about 52/2/1448 = 1.8 % of it when both ways are
    full (Linux merges them under GRO to far less).
    """
    return (mtu_bytes - TCP_IP_HEADER_BYTES) / mtu_bytes


def bandwidth_delay_product_bytes(rate_bytes_per_s: float, rtt_s: float) -> float:
    """Bytes that must be in flight to fill the link: rate x RTT. 100 Gb/s x 18 ms = 225 MB."""
    return rate_bytes_per_s * rtt_s


def tcp_buffer_bytes(rate_bytes_per_s: float, rtt_s: float, streams: int) -> int:
    """Most that the buffer of one of `streams` equal streams must be able to grow to: 4 rate RTT / N, at most 2^31 - 1.

    Half of a receive buffer is window (tcp_adv_win_scale = 1), so 2 BDP is the floor: 10 Gb/s x 80 ms = 100 MB asks for 200 MB.
    Twice that lets a stream hold two BDP, as BBR's probing does, and take over the share of one that pauses.
    Source: kernel Documentation/networking/ip-sysctl (tcp_rmem, tcp_adv_win_scale); Cardwell et al., ACM Queue 14(5), 2016.
    """
    return min(2**31 - 1, ceil(4 * bandwidth_delay_product_bytes(rate_bytes_per_s, rtt_s) / streams))


def window_rate_bytes_per_s(window_bytes: float, rtt_s: float) -> float:
    """The most a window lets through: W / RTT; no limit at RTT 0. 1 MiB over 58 ms is 0.145 Gb/s."""
    return window_bytes / rtt_s if rtt_s > 0 else inf


def mathis_rate_bytes_per_s(loss: float, rtt_s: float, mss_bytes: float = 1448) -> float:
    """The most one loss-driven TCP stream sustains: MSS / RTT * sqrt(3/2) / sqrt(p); no limit without loss or
    RTT.

    Reno's law; CUBIC follows it below about RTT 50 ms at p > 1e-6 (RFC 9438 section 4.3) and BBR does not
    obey it.
    Source: Mathis, Semke, Mahdavi & Ott, ACM CCR 27(3), 1997.
    """
    return mss_bytes / rtt_s * MATHIS_CONSTANT / sqrt(loss) if loss > 0 and rtt_s > 0 else inf


def tcp_rate_bytes_per_s(
    link_rate_bytes_per_s: float, rtt_s: float, loss: float, streams: int, window_bytes: float, mtu_bytes: int = 1500
) -> Limit:
    """Payload rate of `streams` equal TCP streams together, and what binds it.

        min(R (MTU - 52)/MTU, N W / RTT, N * Mathis)

    R = link_rate_bytes_per_s (IP bytes), W = window_bytes of one stream. Loss by Reno's law, the lowest; those of CUBIC and
    BBR stand in `transport_loss`.
    """
    limits = (
        Limit(link_rate_bytes_per_s * payload_fraction(mtu_bytes), "link"),
        Limit(streams * window_rate_bytes_per_s(window_bytes, rtt_s), "window"),
        Limit(streams * mathis_rate_bytes_per_s(loss, rtt_s, mtu_bytes - TCP_IP_HEADER_BYTES), "loss"),
    )
    return min(limits, key=lambda limit: limit.rate_bytes_per_s)


def streams_to_fill(link_rate_bytes_per_s: float, rtt_s: float, loss: float, window_bytes: float) -> int:
    """Fewest equal TCP streams that are bound by the link and by nothing else: ceil(R * 1448/1500 / one
    stream).
    """
    one = min(window_rate_bytes_per_s(window_bytes, rtt_s), mathis_rate_bytes_per_s(loss, rtt_s))
    return max(1, ceil(link_rate_bytes_per_s * payload_fraction() / one))


def rdma_window_bytes(queue_pairs: int, depth: int, message_bytes: float) -> float:
    """Bytes that RDMA keeps in flight: QPs x outstanding messages of each x message size.

    There is no window to set in verbs: depth is the send queue's (`perftest -t`, 128 by default) and message
    the library's chunk. Leaves out: the NIC's own limit on unacknowledged bytes (about 0.6 MB a QP seen on a
    BlueField-3 at 5 ms, forums.developer.nvidia.com/t/345696).
    """
    return queue_pairs * depth * message_bytes


def nccl_window_bytes(channels: int, buffer_bytes: float = 4 * 2**20) -> float:
    """Bytes NCCL keeps in flight to one peer: channels x NCCL_BUFFSIZE (4 MiB by default, src/init.cc).

    32 channels over 58 ms: 134 MB / 58 ms = 18.5 Gb/s.
    """
    return channels * buffer_bytes
