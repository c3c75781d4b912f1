"""How many streams a rail needs, from the rate and the round trip of its link."""

from math import ceil

__all__ = ["choose_streams"]

STREAMS_MAX = 16
WINDOW_BYTES = 1 << 21
SLOW_BYTES_PER_S = 32e6


def choose_streams(rate_bytes_per_s: float, rtt_s: float, rails: int = 1) -> int:
    """TCP connections for one rail to one other region.

        streams = ceil(r T / (n w)), at least 4 (2 where r / n > 32 MB/s), at most 16

    r = rate_bytes_per_s of the whole link, T = rtt_s, n = rails that share it, w = 2 MiB: what one stream keeps in flight
    with as much again in reserve, where net.ipv4.tcp_wmem has its usual maximum of 4 MiB. On a slow rail four, so that a
    lost packet holds back a quarter of it. On a fast one no more than needed: a paced stream sends a burst a millisecond,
    and more streams mean smaller bursts, which cost processor time on the whole path (measured on two cores at 1 Gb/s and
    60 ms: 8, 4 and 2 streams a rail took 3.1, 1.7 and 1.5 times the limit while other programs were running).
    """
    share = rate_bytes_per_s / rails
    return min(max(ceil(share * rtt_s / WINDOW_BYTES), 4 if share <= SLOW_BYTES_PER_S else 2), STREAMS_MAX)
