"""Rank the strategies and choose one.

The principle: highest utilisation within a tolerance, then least harm to the loss. Of all strategies that finish a step
within `TOLERANCE` of the quickest (on the same GPUs and tokens, the step's time is utilisation turned over),
those that isthmus itself can run come first, then those whose regions it joins under another trainer's layout;
among them the one whose loss band ends lowest, and of equals the quicker. So plain every-step gradients win
wherever they cost only a few per cent. The rest is ranked by the same rule, again and again.
"""

from dataclasses import dataclass

from isthmus.cost.collectives_constants import Constants
from isthmus.cost.money import bill
from isthmus.errors import InfeasibleError
from isthmus.fabric import Fabric, fabric_digests
from isthmus.plan import Candidate, Plan
from isthmus.planner.breaks import binding, break_even
from isthmus.planner.explain import rule_of_thumb, why
from isthmus.planner.feasibility import check_fabric
from isthmus.planner.predict import Known
from isthmus.planner.price import Priced, to_candidate
from isthmus.planner.rank import TOLERANCE, Weighing, rank, standing, weigh_all
from isthmus.planner.resting import assumptions
from isthmus.planner.setting import Setting, make_setting
from isthmus.workload import Workload

__all__ = ["Weighed", "choose_plan", "weigh"]


@dataclass(frozen=True, slots=True)
class Weighed:
    """All strategies of one setting: those with a price best first, and those refused."""

    setting: Setting
    ranked: tuple[Priced, ...]
    refused: tuple[Candidate, ...]


def weigh(
    fabric: Fabric,
    workload: Workload,
    loss_max: float | None = None,
    known: Known | None = None,
    constants: Constants | None = None,
    *,
    only_runnable: bool = False,
) -> Weighed:
    """Every strategy on `fabric`, ranked; no explanation.

    Args:
        fabric: The regions and what joins them.
        workload: What is trained.
        loss_max: Refuse strategies whose loss band ends higher; None refuses none.
        known: Layouts already worked out for a fabric that differs only in its WAN; added to.
        constants: Of a calibration; None for the shipped efficiencies.
        only_runnable: Leave out what `isthmus run` does not train whole, strategies and layouts.

    Raises:
        InfeasibleError: The model does not fit all GPUs together, or no strategy is left.
    """
    setting = make_setting(fabric, workload, constants, only_runnable=only_runnable)
    check_fabric(setting)
    weighing = weigh_all(setting, {} if known is None else known, loss_max)
    if not weighing.priced:
        raise _nothing_fits(setting, weighing)
    ranked = rank(weighing.priced, lambda each: standing(each, setting.regions))
    return Weighed(setting, tuple(ranked), weighing.refused)


def choose_plan(
    fabric: Fabric,
    workload: Workload,
    loss_max: float | None = None,
    constants: Constants | None = None,
    *,
    only_runnable: bool = False,
) -> Plan:
    """The plan for training `workload` on `fabric`, with every strategy weighed beside it. Arguments and errors of `weigh`."""
    known: Known = {}
    weighed = weigh(fabric, workload, loss_max, known, constants, only_runnable=only_runnable)
    setting, refused = weighed.setting, list(weighed.refused)
    ranked = [to_candidate(setting, each) for each in weighed.ranked]
    winner = ranked[0]
    assert winner.prediction is not None
    return Plan(
        fabric=fabric.name,
        fabric_parts=fabric_digests(fabric),
        workload=workload.name,
        tokens_per_step=workload.tokens_per_step,
        strategy=winner.strategy,
        layout=winner.layout,
        prediction=winner.prediction,
        why=why(setting, ranked, refused, TOLERANCE),
        rule_of_thumb=rule_of_thumb(setting, ranked, refused),
        risk=winner.risk,
        loss=winner.loss,
        binds=binding(setting, weighed.ranked[0]),
        money=bill(fabric, winner.prediction),
        break_even=break_even(setting, winner.strategy.name, known, loss_max),
        alternatives=[*ranked[1:], *refused],
        assumptions=assumptions(setting, TOLERANCE),
    )


def _nothing_fits(setting: Setting, weighing: Weighing) -> InfeasibleError:
    reasons: dict[str, list[str]] = {}
    for each in weighing.refused:
        reasons.setdefault(each.refused or "", []).append(each.strategy.name)
    return InfeasibleError(
        f"no strategy fits {setting.workload.name} on {setting.fabric.name}",
        "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items()),
    )
