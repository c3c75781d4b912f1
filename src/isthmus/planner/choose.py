"""Rank the strategies and choose one.

The principle: highest utilisation within a tolerance, then least risk. Of all strategies that finish a step
within `TOLERANCE` of the quickest (on the same GPUs and tokens, the step's time is utilisation turned over),
those that isthmus itself can run come first, then those whose regions it joins under another trainer's layout;
among them the one that does the loss the least harm, and of equals the quicker. So plain every-step gradients win
wherever they cost only a few per cent. The rest is ranked by the same rule, again and again.
"""

from isthmus.errors import InfeasibleError
from isthmus.fabric import Fabric
from isthmus.plan import Candidate, Layout, Plan, Strategy
from isthmus.planner.candidates import RISKS, layouts, readiness, risk, strategies
from isthmus.planner.explain import assumptions, rule_of_thumb, why
from isthmus.planner.feasibility import bind_of, check_fabric
from isthmus.planner.predict import Known, Weighed, weigh
from isthmus.planner.setting import Setting, make_setting
from isthmus.workload import Axes, Workload

__all__ = ["TOLERANCE", "choose_plan", "rank"]

TOLERANCE = 0.05
"""How much longer than the quickest a step may take and still be chosen for its lower risk (judgement)."""

SAME_STEP = 0.005
"""Layouts whose steps differ less than this are equal; the simpler is taken."""

ZERO_3_MARGIN = 0.10
"""How much quicker ZeRO-3 must be than a layout that keeps its weights (judgement: it gathers every block in every
pass, and no run hides all of that)."""


def choose_plan(fabric: Fabric, workload: Workload) -> Plan:
    """The plan for training `workload` on `fabric`, with every strategy weighed beside it.

    Raises:
        InfeasibleError: The model does not fit all GPUs together, or no strategy has a layout that fits.
    """
    setting = make_setting(fabric, workload)
    check_fabric(setting)
    fitting: list[Candidate] = []
    refused: list[Candidate] = []
    known: Known = {}
    for strategy in strategies(setting):
        candidate = _best(setting, strategy, known)
        (refused if candidate.prediction is None else fitting).append(candidate)
    if not fitting:
        raise InfeasibleError(
            f"no strategy fits {workload.name} on {fabric.name}",
            "; ".join(f"{each.strategy.name}: {each.refused}" for each in refused),
        )
    ranked = rank(fitting)
    winner = ranked[0]
    assert winner.prediction is not None
    return Plan(
        fabric=fabric.name,
        workload=workload.name,
        tokens_per_step=workload.tokens_per_step,
        strategy=winner.strategy,
        layout=winner.layout,
        prediction=winner.prediction,
        why=why(setting, ranked, refused, TOLERANCE),
        rule_of_thumb=rule_of_thumb(setting, ranked, refused),
        risk=winner.risk,
        alternatives=[*ranked[1:], *refused],
        assumptions=assumptions(setting, TOLERANCE),
    )


def rank(candidates: list[Candidate]) -> list[Candidate]:
    """Best first, by the principle at the head of this file."""
    left, ranked = list(candidates), list[Candidate]()
    while left:
        quickest = min(_step_s(each) for each in left)
        near = [each for each in left if _step_s(each) <= quickest * (1 + TOLERANCE)]
        best = min(near, key=lambda each: (readiness(each), risk(each.strategy), _step_s(each)))
        ranked.append(best)
        left.remove(best)
    return ranked


def _step_s(candidate: Candidate) -> float:
    assert candidate.prediction is not None, candidate
    return candidate.prediction.step_s


def _best(setting: Setting, strategy: Strategy, known: Known) -> Candidate:
    """`strategy` on its quickest layout that fits; of equals the simplest. Or the constraint that refuses
    it.
    """
    fitting: list[tuple[float, Weighed]] = []
    leanest: tuple[float, Axes] | None = None
    for axes in layouts(setting, strategy):
        weighed = weigh(setting, strategy, axes, known)
        if leanest is None or weighed.memory_bytes < leanest[0]:
            leanest = (weighed.memory_bytes, axes)
        if weighed.prediction is not None:
            fitting.append((weighed.prediction.step_s, weighed))
    if not fitting:
        layout = _layout(leanest[1]) if leanest else Layout()
        return Candidate(
            strategy=strategy,
            layout=layout,
            refused=bind_of(setting, strategy, leanest),
            risk=RISKS[risk(strategy)],
        )
    quickest = min(step for step, _ in fitting)
    kept = [(step, weighed) for step, weighed in fitting if weighed.axes.zero < 3]
    if kept and min(step for step, _ in kept) <= quickest * (1 + ZERO_3_MARGIN):
        fitting, quickest = kept, min(step for step, _ in kept)
    near = [weighed for step, weighed in fitting if step <= quickest * (1 + SAME_STEP)]
    best = min(near, key=lambda weighed: _complexity(weighed.axes))
    return Candidate(
        strategy=best.strategy,
        layout=_layout(best.axes),
        prediction=best.prediction,
        risk=RISKS[risk(best.strategy)],
    )


def _complexity(axes: Axes) -> tuple[int, ...]:
    """What a layout asks of its users, worst first: sharded weights, recomputation, model parallelism, ZeRO,
    batch.
    """
    return (
        int(axes.zero >= 3),
        int(axes.recompute != "none"),
        axes.tp * axes.pp,
        axes.pp,
        axes.zero,
        axes.micro_batch,
    )


def _layout(axes: Axes) -> Layout:
    return Layout(
        dp=axes.dp, tp=axes.tp, pp=axes.pp, cp=axes.cp, ep=axes.ep, zero=axes.zero,
        micro_batch=axes.micro_batch, recompute=axes.recompute != "none",
    )  # fmt: skip
