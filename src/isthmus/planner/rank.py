"""Every strategy on its best layout, or the constraint that refuses it; and the order of those that are left.

The principle stands at the head of `isthmus.planner.choose`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from isthmus.plan import Candidate, Layout, Strategy
from isthmus.planner.feasibility import bind_of
from isthmus.planner.predict import SAME_STEP, Known, Placed, complexity, place
from isthmus.planner.price import Priced, price
from isthmus.planner.setting import Setting
from isthmus.planner.ways import Way, layout_of, readiness, ways
from isthmus.workload import Axes

__all__ = ["TOLERANCE", "Standing", "Weighing", "first_choice", "rank", "standing", "weigh_all"]

TOLERANCE = 0.05
"""How much longer than the quickest a step may take and still be chosen for its lower risk (judgement)."""

ZERO_3_MARGIN = 0.10
"""How much quicker ZeRO-3 must be than a layout that keeps its weights (judgement: it gathers every block in every
pass, and no run hides all of that)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Standing:
    """What decides between strategies: who can run it (`readiness`), the upper end of its loss band, its step."""

    readiness: int
    loss_high: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Weighing:
    """All strategies: priced on their best layout, or refused with the reason."""

    priced: tuple[Priced, ...]
    refused: tuple[Candidate, ...]


def weigh_all(setting: Setting, known: Known, loss_max: float | None = None) -> Weighing:
    """Every way of `setting`. `known` may come from a setting that differs in its WAN only, and is added to."""
    priced: list[Priced] = []
    refused: list[Candidate] = []
    for way in ways(setting):
        found = _best(setting, way, known, loss_max)
        if isinstance(found, Candidate):
            refused.append(found)
        else:
            priced.append(found)
    return Weighing(tuple(priced), tuple(refused))


def first_choice(setting: Setting, known: Known, loss_max: float | None = None) -> Priced | None:
    """What `rank` would put first of `weigh_all`, without pricing what cannot come near the quickest; None where nothing fits."""
    found: list[Priced] = []
    quickest = float("inf")
    # Local steps first: where they cost least, little of the rest comes near.
    for way in sorted(ways(setting), key=lambda way: way.strategy.kind != "local-steps"):
        each = _best(setting, way, known, loss_max, quickest * (1 + TOLERANCE))
        if isinstance(each, Priced):
            found.append(each)
            quickest = min(quickest, each.step_s)
    return rank(found, lambda each: standing(each, setting.regions))[0] if found else None


def standing(each: Priced | Candidate, regions: int) -> Standing:
    """Where a strategy with a step stands."""
    if isinstance(each, Priced):
        return Standing(readiness(each.strategy, layout_of(each.placed.axes), regions), each.loss.high, each.step_s)
    assert each.prediction is not None, each
    return Standing(readiness(each.strategy, each.layout, regions), each.loss.high, each.prediction.step_s)


def rank(items: Sequence[T], key: Callable[[T], Standing], tolerance: float = TOLERANCE) -> list[T]:
    """Best first. Of all within `tolerance` of the quickest left: the readiest, then the least harm to the loss, then the
    quickest; and so on with the rest.
    """
    left: list[tuple[Standing, T]] = [(key(item), item) for item in items]
    ranked: list[T] = []
    while left:
        limit = min(stand.step_s for stand, _ in left) * (1 + tolerance)
        near = [one for one in left if one[0].step_s <= limit]
        best = min(near, key=lambda one: (one[0].readiness, one[0].loss_high, one[0].step_s))
        ranked.append(best[1])
        left = [one for one in left if one is not best]
    return ranked


def _best(
    setting: Setting, way: Way, known: Known, loss_max: float | None, worst_s: float = float("inf")
) -> Priced | Candidate:
    """`way` on its quickest layout that fits; of equals the simplest. Or the constraint that refuses it.

    Layouts whose step exceeds `worst_s` need not be priced; a way with none below it counts as refused, for no given reason.
    """
    places = place(setting, way.strategy, known)
    kept = _near(setting, way, (each for each in places.fitting if each.axes.zero < 3), loss_max, worst_s)
    sharded = _near(setting, way, (each for each in places.fitting if each.axes.zero >= 3), loss_max, worst_s)
    if not kept and not sharded:
        if worst_s < float("inf"):
            return _refused(way.strategy, None, "")
        bind = bind_of(setting, way.strategy, places.leanest)
        if setting.only_runnable and places.leanest is None:
            bind = "isthmus run trains no layout of it whole: data parallelism, also in shards (FSDP2), or a stage a region"
        return _refused(way.strategy, places.leanest[1] if places.leanest else None, bind)
    near = kept
    if not kept or (sharded and _quickest(kept) > _quickest(sharded) * (1 + ZERO_3_MARGIN)):
        near = sharded
    best = min(near, key=lambda priced: complexity(priced.placed.axes))
    if loss_max is not None and best.loss.high > loss_max:
        band = best.loss
        bind = f"quality: the loss may end {band.high:+.2%} off, more than {loss_max:.2%} ({band.basis}: {band.source})"
        return _refused(best.strategy, best.placed.axes, bind)
    return best


def _near(
    setting: Setting, way: Way, places: Iterable[Placed], loss_max: float | None, worst_s: float
) -> list[Priced]:
    """`way` on every layout whose step is within `SAME_STEP` of the quickest; `places` come quickest first, WAN off.

    What the WAN adds is never negative, so a layout that is slower without it than another is with it need not be priced.
    """
    found: list[Priced] = []
    limit = worst_s
    for placed in places:
        if placed.compute.total_s > limit:
            break
        priced = price(setting, way, placed, loss_max)
        if priced.memory_bytes <= setting.usable_memory_bytes:
            found.append(priced)
            limit = min(limit, priced.step_s * (1 + SAME_STEP))
    return [each for each in found if each.step_s <= limit]


def _quickest(priced: list[Priced]) -> float:
    return min(each.step_s for each in priced)


def _refused(strategy: Strategy, axes: Axes | None, bind: str) -> Candidate:
    return Candidate(strategy=strategy, layout=layout_of(axes) if axes else Layout(), refused=bind)
