"""Scale a real plan down to what one machine can carry, keeping the two ratios that decide how a strategy fares.

    transfer ratio = t_wan / t_step    t_wan = bytes that leave the busiest region in a step / rate of its
    link rtt ratio      = RTT / t_step      t_step = the step with inter-region communication off

On the machine t_step is measured and the bytes are those of the small model, so rate = bytes / (transfer
ratio t_step) and RTT = rtt ratio t_step. Where the delay line cannot carry the one or the other it is
clamped, the achieved ratio is given beside the asked one, and a note says so.

What this leaves out: the number of gradient buckets and what overlaps what inside a step, queues and
congestion control (their time scale is the RTT but their unit is the packet), losses per step (the loss per
packet is kept, the small model has fewer packets), in-region networks (unshaped here), and the cost of codecs
relative to a GPU's.
"""

from dataclasses import dataclass

__all__ = ["RATE_BYTES_PER_S_MAX", "RATE_BYTES_PER_S_MIN", "RTT_S_MAX", "Ratios", "Scaled", "ratios", "scale"]

# Where benchmarks/link_fidelity.py shows the delay line to hold 5% and 1 ms.
RATE_BYTES_PER_S_MIN = 50e6 / 8
RATE_BYTES_PER_S_MAX = 1e9 / 8
RTT_S_MAX = 0.060


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """WAN transfer time and round trip, in steps of computation."""

    transfer: float
    rtt: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The link to emulate, the ratios asked for and those it achieves, and what was clamped (empty: nothing)."""

    rate_bytes_per_s: float
    rtt_s: float
    asked: Ratios
    achieved: Ratios
    clamped: tuple[str, ...]


def ratios(wan_bytes: float, rate_bytes_per_s: float, rtt_s: float, step_s: float) -> Ratios:
    """The ratios of a link that carries `wan_bytes` a step, each way, beside `step_s` of computation."""
    return Ratios(transfer=wan_bytes / rate_bytes_per_s / step_s, rtt=rtt_s / step_s)


def scale(asked: Ratios, step_s: float, wan_bytes: float) -> Scaled:
    """The link that gives `asked` to ranks that compute `step_s` a step and send `wan_bytes`, or the nearest one.

    Args:
        asked: Of the real plan; not negative. A transfer ratio of 0 asks for a link of no cost, the fastest
            there is.
        step_s: Measured here with inter-region communication off; more than 0.
        wan_bytes: One way, by the busiest region of the small model, uncompressed as in the plan; more than
            0.
    """
    assert min(step_s, wan_bytes) > 0, (step_s, wan_bytes)
    assert min(asked.transfer, asked.rtt) >= 0, asked
    rate_asked = wan_bytes / (asked.transfer * step_s) if asked.transfer else float("inf")
    rtt_asked = asked.rtt * step_s
    rate = min(max(rate_asked, RATE_BYTES_PER_S_MIN), RATE_BYTES_PER_S_MAX)
    rtt = min(rtt_asked, RTT_S_MAX)
    notes: list[str] = []
    if rate != rate_asked:
        fast = rate < rate_asked
        asked_text = "no limit" if rate_asked == float("inf") else f"{rate_asked * 8e-6:.4g} Mb/s"
        remedy = "longer steps or fewer bytes" if fast else "shorter steps or more bytes"
        notes.append(
            f"rate: asked {asked_text}, the {'fastest' if fast else 'slowest'} is {rate * 8e-6:.4g} Mb/s "
            f"({remedy} would hold the ratio)"
        )
    if rtt != rtt_asked:
        notes.append(
            f"RTT: asked {rtt_asked * 1e3:.4g} ms, the longest is {rtt * 1e3:.4g} ms (shorter steps would hold the ratio)"
        )
    return Scaled(
        rate_bytes_per_s=rate, rtt_s=rtt, asked=asked, achieved=ratios(wan_bytes, rate, rtt, step_s), clamped=tuple(notes)
    )
