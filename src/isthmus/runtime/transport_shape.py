"""How many streams a rail needs, from the rate and the round trip of its link."""

from math import ceil

__all__ = ["choose_streams"]

STREAMS_MIN, STREAMS_MAX = 4, 16
WINDOW_BYTES = 1 << 21


def choose_streams(rate_bytes_per_s: float, rtt_s: float, rails: int = 1) -> int:
    """TCP connections for one rail to one other region.

        streams = ceil(2 r T / (n w)), within 4 and 16

    r = rate_bytes_per_s of the whole link, T = rtt_s, n = rails that share it, w = 2 MiB. A rail must keep twice its share
    of the bandwidth-delay product in flight (bbr probes up to that; loss-based controls halve from it). One stream may have
    about 2 MiB in flight where net.ipv4.tcp_wmem has its usual maximum of 4 MiB, as the kernel counts its own overhead and
    keeps a part for data not sent yet. More streams than needed cost: each sends smaller bursts, so more packets.
    Four at least: a lost packet then holds back a quarter of the rail.
    """
    return min(max(ceil(2 * rate_bytes_per_s * rtt_s / (rails * WINDOW_BYTES)), STREAMS_MIN), STREAMS_MAX)
