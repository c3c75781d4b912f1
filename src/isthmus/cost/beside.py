"""What a step takes beside compute and communication: waiting for the slower region, checkpoints, reading data."""

from dataclasses import dataclass
from math import sqrt

from isthmus.cost.efficiency import CHECKPOINT_EVERY, REGION_SPREAD, TOKEN_BYTES

__all__ = ["Beside", "checkpoint_s", "data_bytes_per_s", "slowest_excess", "stopped_share", "waiting_s"]

_SLOWEST = (0.0, 0.0, 0.5642, 0.8463, 1.0294, 1.1630, 1.2672, 1.3522, 1.4236)
"""Mean of the largest of n standard normals, n from 0 to 8; Teichroew, Ann. Math. Stat. 27(2), 1956."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Seconds a step.

    Attributes:
        waiting_s: For the region that happens to be slowest.
        checkpoint_s: Training stands still while state is copied to the host, spread over the steps between two checkpoints.
    """

    waiting_s: float = 0.0
    checkpoint_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Both."""
        return self.waiting_s + self.checkpoint_s


def slowest_excess(regions: int) -> float:
    """How far the slowest of `regions` lies above the mean, in standard deviations; of more than 8, as of 8."""
    return _SLOWEST[min(regions, len(_SLOWEST) - 1)]


def waiting_s(step_s: float, regions: int, meets_every: int, slack_steps: int) -> float:
    """Seconds a step that all wait for the slowest of `regions`.

        t = max(0, s sqrt(K) m_R - d) T / K

    T = step_s, s = `REGION_SPREAD`, m_R = `slowest_excess`, K = meets_every: over K steps that regions make by themselves fast
    and slow ones cancel in part; d = slack_steps: results that may come so many steps late are waited for less.
    Leaves out: regions that are slower for good, which `isthmus` levels by their share of the batch.
    Source: mean of the largest of R independent normals.
    """
    return max(0.0, REGION_SPREAD.value * sqrt(meets_every) * slowest_excess(regions) - slack_steps) * step_s / meets_every


def checkpoint_s(state_bytes_per_gpu: float, host_bytes_per_s: float, step_s: float) -> float:
    """Seconds a step: one copy of the GPU's state to its host, every `CHECKPOINT_EVERY`; storage is written beside training.

    t = (S / B) T / I
    """
    return state_bytes_per_gpu / host_bytes_per_s * step_s / CHECKPOINT_EVERY.value


def stopped_share(every_s: float, stop_s: float, redone_s: float = 0.0) -> float:
    """Share of the time that a stop every `every_s` seconds of running costs.

        (D + C) / (I + D),   I = every_s, D = stop_s down, C = redone_s: what ran since the last checkpoint is run again

    C is half the time between checkpoints on average. Leaves out: stops while work is done again.
    """
    return (stop_s + redone_s) / (every_s + stop_s)


def data_bytes_per_s(tokens_per_s: float, regions: int) -> float:
    """What one region reads of the data set: token numbers of `TOKEN_BYTES`, its share of the batch."""
    return tokens_per_s * TOKEN_BYTES.value / regions
