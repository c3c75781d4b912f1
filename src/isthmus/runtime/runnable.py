"""Which plans and models this runtime runs, and the refusal of the others, by name. Needs no torch."""

from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.errors import InputError
from isthmus.plan import Layout, Plan, Strategy, StrategyKind, Survival, load_plan
from isthmus.runtime.environment import RankEnvironment

if TYPE_CHECKING:
    from torch import nn

__all__ = ["RUNNABLE", "SURVIVING", "refuse_running_statistics", "require_plan", "strategy_to_run"]

RUNNABLE = ("flat", "hierarchical", "local-steps", "pipeline")
SURVIVING = ("hierarchical", "local-steps")
"""Kinds of strategy that go on when a region is lost."""


def strategy_to_run(environment: RankEnvironment, plan: Plan | Path | str | None) -> tuple[Strategy, int, Survival]:
    """The strategy to run, over how much of the model's state a region's ranks share (`layout.zero`), and what a loss does."""
    chosen = environment.plan_path or plan
    if chosen is None:
        if environment.regions > 1:
            raise InputError("ISTHMUS_PLAN", "is not set, and join() was given no plan", "several regions need a plan")
        return Strategy(name="alone", kind="hierarchical"), 0, Survival()
    where, plan = ("plan", chosen) if isinstance(chosen, Plan) else (str(chosen), load_plan(chosen))
    require_plan(environment, plan, where)
    if plan.strategy.region_group is not None and plan.strategy.region_group.backend == "nccl":
        from isthmus.runtime.axis import require_nccl

        require_nccl()
    return plan.strategy, plan.layout.zero, plan.survival


def require_plan(environment: RankEnvironment, plan: Plan, where: str) -> None:
    """Refuse a plan that this runtime does not run among `environment`'s members, whatever this machine has.

    Raises:
        InputError: It is one.
    """
    strategy = plan.strategy
    if strategy.kind not in RUNNABLE:
        raise InputError(
            where,
            f"strategy.kind: {strategy.kind!r} cannot be run by this runtime yet",
            f"it runs {', '.join(RUNNABLE)}",
        )
    _require_codec(strategy, where)
    if strategy.region_group is not None:
        _require_static(environment, plan, where)
        _require_equal_regions(environment, "a region_group")
    layout = plan.layout
    if strategy.kind == "pipeline":
        _require_equal_regions(environment, "a pipeline over regions")
        if environment.regions in (1, layout.pp):  # a pipeline over regions; one region holds all stages
            layout = layout.model_copy(update={"pp": 1})
    asked = _beyond_data_parallelism(layout, strategy.kind)
    if asked:
        raise InputError(
            where,
            f"layout: this runtime runs data parallelism; the plan's layout asks for {', '.join(asked)}",
            "plan with tp, pp, cp and ep 1, zero 0, 2 or 3 and no recompute, or hand the layout to a framework that has them",
        )


def _require_codec(strategy: Strategy, where: str) -> None:
    """Refuse a codec that the strategy would leave out, or cannot use."""
    if strategy.codec == "powersgd" and strategy.kind != "hierarchical":
        reason = "it codes gradient matrices, hence strategy.kind hierarchical"
    elif strategy.codec != "none" and strategy.kind == "flat":
        reason = "one all-reduce over all ranks of all regions sends fp32"
    else:
        return
    raise InputError(where, f"strategy.codec: {strategy.codec!r} with strategy.kind {strategy.kind!r}: {reason}")


def _require_static(environment: RankEnvironment, plan: Plan, where: str) -> None:
    """Refuse what an exchange through torch's own groups cannot do, and a backend that this torch does not have."""
    strategy, axis = plan.strategy, plan.strategy.region_group
    assert axis is not None
    reasons = {
        f"strategy.kind {strategy.kind!r}": strategy.kind != "hierarchical",
        f"strategy.codec {strategy.codec!r}": strategy.codec != "none",
        f"layout.zero {plan.layout.zero}": plan.layout.zero != 0,
        "a coordinator (ISTHMUS_COORDINATOR)": environment.coordinator is not None,
    }
    for what, refused in reasons.items():
        if refused:
            hint = "a region_group is for hierarchical, codec none, zero 0, without a coordinator; leave it out for rails"
            raise InputError(where, f"strategy.region_group with {what}: that is not run", hint)


def _beyond_data_parallelism(layout: Layout, kind: StrategyKind) -> list[str]:
    asked = [f"{axis} {getattr(layout, axis)}" for axis in ("tp", "pp", "cp", "ep") if getattr(layout, axis) > 1]
    asked += [f"zero {layout.zero}"] if layout.zero == 1 or (layout.zero and kind == "pipeline") else []
    return asked + (["recompute"] if layout.recompute else [])


def _require_equal_regions(environment: RankEnvironment, who: str) -> None:
    found = {region.name: region.ranks for region in environment.members.regions} if environment.members else {}
    if len(set(found.values())) > 1:
        raise InputError(
            "ISTHMUS_MEMBERS",
            f"regions have {', '.join(f'{name} {ranks}' for name, ranks in found.items())} ranks",
            f"{who} needs the same number of ranks in each: rank i works with rank i of the others",
        )


def refuse_running_statistics(model: "nn.Module") -> None:
    """DDP hands such buffers round inside a region only, so regions would silently end with different models."""
    for name, module in model.named_modules():
        if getattr(module, "num_batches_tracked", None) is None:
            continue
        found = [buffer for buffer, held in module.named_buffers(name, recurse=False) if held.is_floating_point()]
        if found:
            raise InputError(
                "model",
                f"buffer {found[0]!r} of a {type(module).__name__} changes in training, and every region would keep its own",
                "use GroupNorm or LayerNorm, or track_running_stats=False",
            )
