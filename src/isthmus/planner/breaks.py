"""What the chosen strategy waits for, and where another would be chosen: asked of the whole model, changed a little."""

from collections.abc import Callable
from dataclasses import replace

from isthmus.cost.paths import wan_pipe
from isthmus.fabric import Fabric
from isthmus.plan import BreakEven
from isthmus.planner.predict import Known
from isthmus.planner.price import Priced, price
from isthmus.planner.rank import first_choice
from isthmus.planner.setting import Setting
from isthmus.planner.ways import Way
from isthmus.units import show_bytes

__all__ = ["binding", "break_even", "with_wan"]

REACH, STRIDE = 64.0, 2.0
"""How far from its value a quantity is followed, each way, and in what steps; a choice that returns within one is missed."""

PRECISION = 0.02
"""Of a break-even point, as a share of it."""

TELLING = 0.001
"""Effects on the step below this share are not worth a word (judgement)."""


def with_wan(fabric: Fabric, rate: float = 1.0, rtt: float = 1.0) -> Fabric:
    """`fabric` with all rates, and all round trips with their jitter, multiplied."""
    links = tuple(
        replace(
            link, rate_bytes_per_s=link.rate_bytes_per_s * rate, rtt_s=link.rtt_s * rtt, jitter_s=link.jitter_s * rtt
        )
        for link in fabric.wan
    )  # fmt: skip
    return replace(fabric, wan=links)


def break_even(setting: Setting, chosen: str, known: Known, loss_max: float | None) -> list[BreakEven]:
    """The nearest points, down and up, at which the rate or the round trip of the WAN makes another strategy the choice.

    Found by bisection on the choice itself: layouts, settings and ranking are worked out anew at each point. `known` holds the
    layouts, none of which depends on the WAN.
    """
    if setting.wan is None:
        return []
    rate = min(link.rate_bytes_per_s for link in setting.fabric.wan)
    quantities: tuple[tuple[str, float, str, Callable[[float], Fabric]], ...] = (
        ("wan.rate", rate, "B/s", lambda factor: with_wan(setting.fabric, rate=factor)),
        ("wan.rtt", setting.wan.rtt_s, "s", lambda factor: with_wan(setting.fabric, rtt=factor)),
    )
    found: list[BreakEven] = []
    for name, value, unit, changed in quantities:

        def choice(factor: float, changed: Callable[[float], Fabric] = changed) -> str:
            return _choice(_elsewhere(setting, changed(factor)), known, loss_max)

        down, up = _change(choice, chosen, 1 / STRIDE), _change(choice, chosen, STRIDE)
        if down is not None:
            found.append(BreakEven(quantity=name, value=value * down[0], unit=unit, below=down[1], above=chosen))
        if up is not None:
            found.append(BreakEven(quantity=name, value=value * up[0], unit=unit, below=chosen, above=up[1]))
    return found


def _change(choice: Callable[[float], str], chosen: str, stride: float) -> tuple[float, str] | None:
    """(factor, other strategy) where the choice first leaves `chosen` on the way out in strides; None within `REACH`."""
    inside = 1.0
    while 1 / REACH < inside * stride < REACH:
        outside = inside * stride
        other = choice(outside)
        if other != chosen:
            break
        inside = outside
    else:
        return None
    while abs(outside / inside - 1) > PRECISION:
        middle = (inside * outside) ** 0.5
        found = choice(middle)
        if found == chosen:
            inside = middle
        else:
            outside, other = middle, found
    return (inside * outside) ** 0.5, other


def _choice(setting: Setting, known: Known, loss_max: float | None) -> str:
    found = first_choice(setting, known, loss_max)
    return found.strategy.name if found else "none"


def _elsewhere(setting: Setting, fabric: Fabric) -> Setting:
    return replace(setting, fabric=fabric, wan=wan_pipe(fabric))


def binding(setting: Setting, winner: Priced) -> str:
    """What the winner's step waits for: each resource's share, as what 10% more of it would save."""
    step, compute = winner.step_s, winner.placed.compute
    inside = compute.total_s - compute.busy_s
    parts = [("compute", compute.busy_s / step), ("pipeline bubble and communication in the regions", inside / step)]
    parts.append(("the WAN", winner.crossing.exposed_s / step))
    shares = ", ".join(f"{share:.1%} {name}" for name, share in parts if share >= TELLING)
    largest = max(parts, key=lambda each: each[1])[0]
    text = f"{largest}: the step is {shares}."
    if setting.wan is not None:
        faster = _saved(setting, winner, with_wan(setting.fabric, rate=1.1))
        nearer = _saved(setting, winner, with_wan(setting.fabric, rtt=0.9))
        bound = f"a region's uplink is bound by its {setting.wan.limit.bind}"
        text += f" 10% more WAN rate saves {faster:.1%} of it, a 10% shorter round trip {nearer:.1%} ({bound})."
    return text + f" Memory: {show_bytes(winner.memory_bytes)} of {show_bytes(setting.usable_memory_bytes)} usable on a GPU."


def _saved(setting: Setting, winner: Priced, fabric: Fabric) -> float:
    other = price(_elsewhere(setting, fabric), Way(winner.strategy, (winner.strategy,)), winner.placed)
    return max(0.0, 1 - other.step_s / winner.step_s)
