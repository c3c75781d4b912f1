"""How every strategy fares as one quantity changes: the curves of a report."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from isthmus.cost.collectives_constants import Constants
from isthmus.fabric import Fabric
from isthmus.planner.breaks import with_wan
from isthmus.planner.choose import weigh
from isthmus.planner.predict import Known
from isthmus.planner.vary import LOGARITHMIC_FROM, Varied
from isthmus.units import show_rate, show_seconds
from isthmus.workload import Workload

__all__ = ["Curves", "rate_curves", "rtt_curves", "varied_curves"]

FACTORS = tuple(2.0 ** (index / 2) for index in range(-8, 9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Tokens/s of strategies over a quantity.

    Attributes:
        quantity: Its name.
        at: Its values, rising; `words` each as it is written.
        logarithmic: Whether `at` is spaced evenly in its logarithm.
        tokens_per_s: By strategy, one for each value; None where it does not fit.
        here: The fabric's own value; None where that is not known.
    """

    quantity: str
    at: tuple[float, ...]
    words: tuple[str, ...]
    logarithmic: bool
    tokens_per_s: dict[str, tuple[float | None, ...]]
    here: float | None


def rate_curves(fabric: Fabric, workload: Workload, known: Known, constants: Constants | None = None) -> Curves:
    """Over the rate of the slowest WAN link, from a sixteenth to 16 times; all links change alike."""
    here = min(link.rate_bytes_per_s for link in fabric.wan)
    changed = [with_wan(fabric, rate=factor) for factor in FACTORS]
    return _curves(("WAN rate", here, show_rate), workload, (changed, known, constants))


def rtt_curves(fabric: Fabric, workload: Workload, known: Known, constants: Constants | None = None) -> Curves:
    """Over the longest round trip, likewise."""
    here = max(link.rtt_s for link in fabric.wan)
    changed = [with_wan(fabric, rtt=factor) for factor in FACTORS]
    return _curves(("round trip", here, show_seconds), workload, (changed, known, constants))


def _curves(
    what: tuple[str, float, Callable[[float], str]], workload: Workload, asked: tuple[list[Fabric], Known, Constants | None]
) -> Curves:
    (quantity, here, show), (changed, known, constants) = what, asked
    found: dict[str, list[float | None]] = {}
    for place, fabric in enumerate(changed):
        for priced in weigh(fabric, workload, known=known, constants=constants).ranked:
            own = found.setdefault(priced.strategy.name, [None] * len(changed))
            own[place] = workload.tokens_per_step / priced.step_s
    at = tuple(here * factor for factor in FACTORS)
    lines = {name: tuple(values) for name, values in found.items()}
    words = tuple(show(value) for value in at)
    return Curves(quantity=quantity, at=at, words=words, logarithmic=True, tokens_per_s=lines, here=here)


def varied_curves(varied: Varied) -> Curves | None:
    """Of an answer to `--vary`; None where several quantities vary, or the one is not a rising number."""
    if len(varied.variations) != 1:
        return None
    quantity = varied.variations[0]
    at = quantity.numbers
    if len(at) < 2 or any(after <= before for before, after in pairwise(at)):
        return None
    names = dict.fromkeys(name for point in varied.points for name in point.tokens_per_s)
    return Curves(
        quantity=quantity.path,
        at=at,
        words=tuple(str(value) for value in quantity.values),
        logarithmic=at[0] > 0 and at[-1] / at[0] >= LOGARITHMIC_FROM,
        tokens_per_s={name: tuple(point.tokens_per_s.get(name) for point in varied.points) for name in names},
        here=None,
    )
