"""What one TCP stream sustains when packets are lost: response functions, in bytes/s of payload.

`loss` is the share of packets lost at random, `mss_bytes` the payload of one. Each law is the mean over many losses; slow
start, time-outs other than Padhye's and competing traffic are left out.
"""

from math import ceil, inf, log2, sqrt
from typing import Literal, assert_never

from isthmus.cost.transport import mathis_rate_bytes_per_s

__all__ = [
    "Control",
    "bbr_rate_bytes_per_s",
    "cubic_rate_bytes_per_s",
    "loss_rate_bytes_per_s",
    "loss_to_fill",
    "padhye_rate_bytes_per_s",
    "slow_start_s",
]

Control = Literal["reno", "cubic", "bbr"]

CUBIC_C, CUBIC_BETA = 0.4, 0.7
"""RFC 9438, sections 4.2 and 4.6."""

BBR_PROBE_GAIN = 1.25
"""Of BBR's ProbeBW: what it sends above the rate it measures, one phase in eight (Cardwell et al., ACM Queue 14(5), 2016)."""

RTO_MIN_S = 0.2
"""Linux: TCP_RTO_MIN, 200 ms."""


def padhye_rate_bytes_per_s(
    loss: float, rtt_s: float, mss_bytes: float = 1448, acked: int = 1, rto_s: float | None = None
) -> float:
    """Reno with time-outs; below `mathis_rate_bytes_per_s`, the more so the more is lost.

        B = MSS / (RTT sqrt(2 b p / 3) + T0 min(1, 3 sqrt(3 b p / 8)) p (1 + 32 p^2))

    b = acked, packets an acknowledgement covers; T0 = rto_s, 200 ms or RTT x 2 where left out.
    Source: Padhye, Firoiu, Towsley & Kurose, SIGCOMM 1998, equation 30 without the window's limit; RFC 5348, section 3.1.
    """
    if loss <= 0 or rtt_s <= 0:
        return inf
    timeout = max(RTO_MIN_S, 2 * rtt_s) if rto_s is None else rto_s
    halving = rtt_s * sqrt(2 * acked * loss / 3)
    waiting = timeout * min(1.0, 3 * sqrt(3 * acked * loss / 8)) * loss * (1 + 32 * loss**2)
    return mss_bytes / (halving + waiting)


def cubic_rate_bytes_per_s(loss: float, rtt_s: float, mss_bytes: float = 1448) -> float:
    """CUBIC, the default of Linux: the larger of its own law and of Reno's, which it never falls below.

        W = (C (3 + b) / (4 (1 - b)))^(1/4) (RTT / p)^(3/4) packets;   1.054 (RTT / p)^(3/4) with C = 0.4, b = 0.7

    Source: RFC 9438, section 5.1 (equation 6) and 4.3 (the Reno-friendly region).
    """
    if loss <= 0 or rtt_s <= 0:
        return inf
    window = (CUBIC_C * (3 + CUBIC_BETA) / (4 * (1 - CUBIC_BETA))) ** 0.25 * (rtt_s / loss) ** 0.75
    return max(window * mss_bytes / rtt_s, mathis_rate_bytes_per_s(loss, rtt_s, mss_bytes))


def bbr_rate_bytes_per_s(link_rate_bytes_per_s: float, loss: float) -> float:
    """BBR goes by measured delivery, not by loss: R (1 - p), until loss exceeds what its probing adds.

        0 where p >= 1 - 1/1.25 = 20 %: then every probe measures less than the one before.

    Source: Cardwell et al., ACM Queue 14(5), 2016 (loss tolerance up to its probing gain). Leaves out: BBRv3's loss threshold
    of 2 % a round, unfairness to CUBIC.
    """
    return link_rate_bytes_per_s * (1 - loss) if loss < 1 - 1 / BBR_PROBE_GAIN else 0.0


def loss_rate_bytes_per_s(control: Control, link_rate_bytes_per_s: float, loss: float, rtt_s: float, mss_bytes: float) -> float:
    """The most one stream under `control` sustains at this loss and RTT."""
    match control:
        case "reno":
            return padhye_rate_bytes_per_s(loss, rtt_s, mss_bytes)
        case "cubic":
            return cubic_rate_bytes_per_s(loss, rtt_s, mss_bytes)
        case "bbr":
            return bbr_rate_bytes_per_s(link_rate_bytes_per_s, loss)
        case _:
            assert_never(control)


def loss_to_fill(rate_bytes_per_s: float, rtt_s: float, control: Control, mss_bytes: float = 1448) -> float:
    """The most loss at which one stream still reaches `rate_bytes_per_s`; the laws above, solved for p.

    Reno by Mathis: (MSS sqrt(3/2) / (RTT B))^2. CUBIC: RTT / (W / 1.054)^(4/3) where that is more. BBR: its tolerance.
    """
    packets = rate_bytes_per_s * rtt_s / mss_bytes
    if control == "bbr":
        return 1 - 1 / BBR_PROBE_GAIN
    reno = 1.5 / packets**2
    if control == "reno":
        return reno
    gain = (CUBIC_C * (3 + CUBIC_BETA) / (4 * (1 - CUBIC_BETA))) ** 0.25
    return max(reno, rtt_s / (packets / gain) ** (4 / 3))


def slow_start_s(rate_bytes_per_s: float, rtt_s: float, mss_bytes: float = 1448, initial: int = 10) -> float:
    """Until a new stream first sends at `rate_bytes_per_s`: a doubling an RTT from 10 packets (RFC 6928)."""
    packets = rate_bytes_per_s * rtt_s / mss_bytes
    return rtt_s * max(0, ceil(log2(packets / initial))) if packets > initial else 0.0
