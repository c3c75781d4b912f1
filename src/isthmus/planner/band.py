"""How sure a predicted step is: p10 and p90 from what is known of its three parts.

    step = own + seen,   own: compute and collectives inside a region, seen: what the WAN adds

`own` scatters as public steps that were not fitted did (`Machine.band`); collectives inside a region are part of that, and where
a calibration knows them better (or worse) than the public fit, their part is taken out and its own put in. `seen` is worked out
anew on a WAN without its jitter, and on one that carries less and loses more (`WAN_RATE_BAND`, `WAN_LOSS_BAND`). The two have
nothing to do with each other, so their deviations add as squares.
"""

from dataclasses import replace
from math import hypot, sqrt

from isthmus.cost.collectives_constants import LARGE_BYTES, default_constants
from isthmus.cost.collectives_time import band_of
from isthmus.cost.efficiency import WAN_LOSS_BAND, WAN_RATE_BAND
from isthmus.cost.paths import wan_pipe
from isthmus.plan import Strategy
from isthmus.planner.crossing import Crossing, cross
from isthmus.planner.predict import Placed
from isthmus.planner.setting import Setting

__all__ = ["step_band"]

Ends = tuple[float, float]


def step_band(setting: Setting, strategy: Strategy, placed: Placed, crossing: Crossing, step_s: float) -> Ends | None:
    """(p10, p90) seconds of a step of `step_s`; None where the workload states its MFU: there are no measured steps of that."""
    if setting.mfu is not None:
        return None
    own = _own(setting, placed, step_s - crossing.exposed_s)
    seen = _seen(setting, strategy, placed, crossing.exposed_s)
    return step_s - hypot(own[0], seen[0]), step_s + hypot(own[1], seen[1])


def _own(setting: Setting, placed: Placed, own_s: float) -> Ends:
    """Seconds that the `own_s` inside a region may be less, and more."""
    collectives = placed.compute.collectives_s
    public, known = (band_of(LARGE_BYTES, setting.group, each) for each in (default_constants(), setting.constants))
    less, more = (
        sqrt(max(0.0, (own_s * (1 - whole)) ** 2 + collectives**2 * ((1 - now) ** 2 - (1 - before) ** 2)))
        for whole, before, now in zip(setting.machine.band, public, known, strict=True)
    )
    return less, more


def _seen(setting: Setting, strategy: Strategy, placed: Placed, seen_s: float) -> Ends:
    """Seconds that the WAN may add less, and more, than `seen_s`."""
    if setting.wan is None:
        return 0.0, 0.0
    shares, losses = WAN_RATE_BAND, WAN_LOSS_BAND
    quick, slow = (
        cross(there, there.wan, strategy, placed.axes, placed.compute).exposed_s if there.wan else seen_s
        for there in (_elsewhere(setting, shares[1], losses[0], 0.0), _elsewhere(setting, shares[0], losses[1], 1.0))
    )
    return max(0.0, seen_s - quick), max(0.0, slow - seen_s)


def _elsewhere(setting: Setting, rate: float, loss: float, jitter: float) -> Setting:
    """`setting` with its links' rate, loss and jitter these many times what the fabric states."""
    links = tuple(
        replace(link, rate_bytes_per_s=link.rate_bytes_per_s * rate, loss=link.loss * loss, jitter_s=link.jitter_s * jitter)
        for link in setting.fabric.wan
    )
    fabric = replace(setting.fabric, wan=links)
    return replace(setting, fabric=fabric, wan=wan_pipe(fabric))
