"""DCQCN as a fluid: whether its control loop holds a queue at a given round trip, integrated step by step.

N equal flows share one bottleneck; everything the switch marks reaches the senders one delay later. All of RoCE v2's own
congestion control runs on timers of microseconds, so over milliseconds it acts on what was true long ago.
Source: Zhu, Eran, Firestone, Guo, Lipshteyn, Liron, Padhye, Raindel, Yahia & Zhang, "Congestion Control for Large-Scale RDMA
Deployments", SIGCOMM 2015, section 5 (equations 5 to 9) and the defaults of its table 14.
"""

from collections import deque
from dataclasses import dataclass
from math import exp, expm1, inf, log

from isthmus.cost.lossless import EcnThresholds

__all__ = ["DcqcnResult", "DcqcnSettings", "play_dcqcn"]

PACKET_BYTES = 1024.0
_STEP_S = 5e-6
_MOST_STEPS = 20_000
_NEVER = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DcqcnSettings:
    """What the senders do.

    Attributes:
        cnp_s: At most one congestion notification in this time (tau).
        alpha_s: Update period of the congestion estimate (tau').
        gain: g of the estimate.
        increase_s: Timer of a rate increase (T).
        increase_bytes: Byte counter of a rate increase (B).
        steps: Increases of fast recovery before additive increase (F).
        additive_bytes_per_s: Step of additive increase (R_AI).
        least_bytes_per_s: Floor of a flow's rate.
    """

    cnp_s: float = 50e-6
    alpha_s: float = 55e-6
    gain: float = 1 / 256
    increase_s: float = 55e-6
    increase_bytes: float = 10e6
    steps: int = 5
    additive_bytes_per_s: float = 5e6
    least_bytes_per_s: float = 1.25e5


@dataclass(frozen=True, slots=True, kw_only=True)
class DcqcnResult:
    """What the loop does once the start is over (the second half of the time played).

    Attributes:
        utilisation: Bytes through the bottleneck over its capacity.
        queue_bytes_max: Longest queue, of the whole time.
        queue_bytes_mean: Of the second half.
        rate_swing: (most - least) / mean of a flow's rate, second half.
        played_s: Time played.
        verdict: `steady`, `swings` (full but unsteady) or `too slow` (the link runs dry, or the queue passes one BDP).
    """

    utilisation: float
    queue_bytes_max: float
    queue_bytes_mean: float
    rate_swing: float
    played_s: float
    verdict: str


def play_dcqcn(
    rate_bytes_per_s: float, rtt_s: float, thresholds: EcnThresholds, flows: int = 8, settings: DcqcnSettings | None = None
) -> DcqcnResult:
    """Play `flows` flows that start at line rate, as RoCE does, through one port of `rate_bytes_per_s`.

    Time is 20 round trips and at least 300 ms, in steps of 5 us or what 20,000 steps allow; a step is never longer than half of
    tau, so at round trips beyond 25 ms fewer than 20 are played. Leaves out: hyper increase, PFC (the queue has no end), several
    bottlenecks. Windows (loss recovery) would bound the queue; the fluid shows what the loop alone does.
    """
    loop = settings or DcqcnSettings()
    wanted = max(0.3, 20 * rtt_s)
    step = min(loop.cnp_s / 2, max(_STEP_S, wanted / _MOST_STEPS))
    count = min(_MOST_STEPS, int(wanted / step))
    delay = max(1, round(rtt_s / step))
    capacity = rate_bytes_per_s / PACKET_BYTES
    state = _Flow(current=capacity, target=capacity, alpha=1.0)
    marks: deque[tuple[float, float]] = deque([(0.0, capacity)] * delay)
    queue, longest, queued, through = 0.0, 0.0, 0.0, 0.0
    half, slowest, fastest, total = count // 2, inf, 0.0, 0.0
    for tick in range(count):
        arriving = flows * state.current
        leaving = capacity if queue > 0 else min(capacity, arriving)
        queue = max(0.0, queue + (arriving - capacity) * step)
        longest = max(longest, queue)
        marks.append((_marked(queue * PACKET_BYTES, thresholds), state.current))
        state.react(*marks.popleft(), step, loop)
        if tick >= half:
            through += leaving * step
            queued += queue
            slowest, fastest, total = min(slowest, state.current), max(fastest, state.current), total + state.current
    kept = count - half
    utilisation = through / (capacity * step * kept)
    swing = (fastest - slowest) / (total / kept)
    product = rate_bytes_per_s * rtt_s
    late = utilisation < 0.9 or queued / kept * PACKET_BYTES > max(product, 2 * thresholds.kmax_bytes)
    return DcqcnResult(
        utilisation=utilisation,
        queue_bytes_max=longest * PACKET_BYTES,
        queue_bytes_mean=queued / kept * PACKET_BYTES,
        rate_swing=swing,
        played_s=count * step,
        verdict="too slow" if late else "swings" if swing > 0.5 else "steady",
    )


def _marked(queue_bytes: float, thresholds: EcnThresholds) -> float:
    """RED: nothing below Kmin, everything above Kmax, a straight line to Pmax between (equation 5)."""
    if queue_bytes <= thresholds.kmin_bytes:
        return 0.0
    if queue_bytes > thresholds.kmax_bytes:
        return 1.0
    share = (queue_bytes - thresholds.kmin_bytes) / (thresholds.kmax_bytes - thresholds.kmin_bytes)
    return share * thresholds.pmax


@dataclass(slots=True)
class _Flow:
    """One flow's rates in packets/s and its estimate of congestion."""

    current: float
    target: float
    alpha: float

    def react(self, marked: float, rate: float, step: float, loop: DcqcnSettings) -> None:
        """Equations 7 to 9: `marked` and `rate` are those of one delay ago."""
        unmarked = min(1.0, max(0.0, 1.0 - marked))
        cut = (1 - unmarked ** (loop.cnp_s * rate)) / loop.cnp_s  # decreases a second
        seen = 1 - unmarked ** (loop.alpha_s * rate)
        by_bytes, fast_bytes = _increases(unmarked, rate, loop.increase_bytes / PACKET_BYTES, loop.steps)
        by_time, fast_time = _increases(unmarked, rate, loop.increase_s * rate, loop.steps)
        additive = loop.additive_bytes_per_s / PACKET_BYTES * (fast_bytes + fast_time)
        drop = min(1.0, cut * step)
        target = self.target - (self.target - self.current) * drop + additive * step
        up = min(1.0, (by_bytes + by_time) * step / 2)
        current = self.current - self.current * self.alpha / 2 * drop + (self.target - self.current) * up
        self.alpha += loop.gain * min(1.0, step / loop.alpha_s) * (seen - self.alpha)
        self.target = target
        self.current = max(loop.least_bytes_per_s / PACKET_BYTES, current)


def _increases(unmarked: float, rate: float, packets: float, steps: int) -> tuple[float, float]:
    """Rate increases a second when one comes every `packets` unmarked packets: all, and those past fast recovery.

        R p / ((1 - p)^-n - 1);   the same times (1 - p)^(F n);   R / n each as p -> 0
    """
    if packets <= 0 or unmarked <= 0:
        return 0.0, 0.0
    exponent = -packets * log(unmarked)
    if exponent > _NEVER:
        return 0.0, 0.0
    each = rate / packets if exponent < 1e-9 else rate * (1 - unmarked) / expm1(exponent)
    return each, each * exp(-steps * exponent)
