"""How every strategy fares as the WAN is made thinner, thicker, nearer or farther: the curves of a report."""

from collections.abc import Callable
from dataclasses import dataclass

from isthmus.fabric import Fabric
from isthmus.planner.breaks import with_wan
from isthmus.planner.choose import weigh
from isthmus.planner.predict import Known
from isthmus.workload import Workload

__all__ = ["Curves", "rate_curves", "rtt_curves"]

FACTORS = tuple(2.0 ** (index / 2) for index in range(-8, 9))


@dataclass(frozen=True, slots=True)
class Curves:
    """`at`: values of the quantity in SI units, rising; `tokens_per_s`: by strategy, one for each; `here`: the fabric's own."""

    at: tuple[float, ...]
    tokens_per_s: dict[str, tuple[float, ...]]
    here: float


def rate_curves(fabric: Fabric, workload: Workload, known: Known) -> Curves:
    """Over the rate of the slowest WAN link, from a sixteenth to 16 times; all links change alike."""
    here = min(link.rate_bytes_per_s for link in fabric.wan)
    return _curves(here, workload, known, lambda factor: with_wan(fabric, rate=factor))


def rtt_curves(fabric: Fabric, workload: Workload, known: Known) -> Curves:
    """Over the longest round trip, likewise."""
    here = max(link.rtt_s for link in fabric.wan)
    return _curves(here, workload, known, lambda factor: with_wan(fabric, rtt=factor))


def _curves(here: float, workload: Workload, known: Known, changed: Callable[[float], Fabric]) -> Curves:
    found: dict[str, list[float]] = {}
    for factor in FACTORS:
        for priced in weigh(changed(factor), workload, known=known).ranked:
            found.setdefault(priced.strategy.name, []).append(workload.tokens_per_step / priced.step_s)
    whole = {name: tuple(values) for name, values in found.items() if len(values) == len(FACTORS)}
    return Curves(tuple(here * factor for factor in FACTORS), whole, here)
