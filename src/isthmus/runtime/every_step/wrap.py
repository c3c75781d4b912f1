"""A model whose gradients are averaged as the plan says: DDP where every rank holds all of it, FSDP2 where it is in shards."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from isthmus.errors import InputError
from isthmus.plan import Strategy
from isthmus.runtime.codecs.coding import codec_of
from isthmus.runtime.collectives.groups import GroupReducer
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, Rails, ReducerOptions
from isthmus.runtime.every_step.ddp import HookState, ddp_hook
from isthmus.runtime.every_step.step import RoundRunner, StepExchange, rails_of_members
from isthmus.runtime.federation.agreement import Federation

__all__ = ["settle", "wrap"]


def wrap(
    model: nn.Module, federation: Federation, strategy: Strategy, zero: int = 0, rounds: RoundRunner | None = None
) -> tuple[nn.Module, StepExchange]:
    """`model` on this region's ranks, and the exchange of its gradients; under local steps inside the region only.

    Args:
        model: float32, equal on all ranks of all regions.
        federation: All members; the region has a process group.
        strategy: Of the plan; `flat`, `hierarchical` or `local-steps`.
        zero: The plan's layout: 0 every rank holds the whole model; 2 and 3 in shards over the region's ranks, whole between
            forward and backward (2) or gathered again (3). 1 (the optimizer's state alone in shards) is not run.
        rounds: For `hierarchical`: repeats a step when a region is lost.

    Raises:
        InputError: The two do not go together, or regions of unequal size are to hold shards.
    """
    if zero:
        return _sharded(model, federation, strategy, zero, rounds)
    exchange = StepExchange(strategy=strategy, federation=federation, rounds=rounds, unsettled=rounds is not None)
    if strategy.kind == "hierarchical":
        exchange.reducer = _reducer(exchange)
    wrapped = DistributedDataParallel(
        model,
        process_group=federation.world.region_group,
        gradient_as_bucket_view=True,
        bucket_cap_mb=strategy.bucket_bytes / 2**20,
    )
    wrapped.register_comm_hook(HookState(exchange, model.parameters()), ddp_hook)
    return wrapped, exchange


def settle(model: nn.Module, exchange: StepExchange, loss: Callable[[], torch.Tensor]) -> None:
    """Differentiate `loss()` (a forward pass) once inside the region and forget what came of it.

    DDP fills its buckets anew after its first pass. With rounds every region does this before its first step, so that one that
    joins later has the buckets of the others from its first exchange on.
    """
    crossing, exchange.crossing = exchange.crossing, False
    with torch.random.fork_rng():  # the CPU's generator and every GPU's
        loss().backward()
    for parameter in model.parameters():
        parameter.grad = None
    exchange.crossing, exchange.tokens, exchange.unsettled = crossing, 0, False


def _sharded(
    model: nn.Module, federation: Federation, strategy: Strategy, zero: int, rounds: RoundRunner | None
) -> tuple[nn.Module, StepExchange]:
    from isthmus.runtime.every_step.fsdp import attach_fsdp, require_equal_regions, shard_model  # see shards.units

    elastic = federation.rounds is not None
    run = ("hierarchical",) if elastic else ("hierarchical", "local-steps")
    if federation.environment.regions > 1 and strategy.kind not in run:
        raise InputError(
            "plan",
            f"strategy.kind {strategy.kind!r} with layout.zero {zero}: that is not run{' with a coordinator' if elastic else ''}",
            "plan hierarchical, or zero 0; local-steps in shards run without a coordinator",
        )
    if strategy.codec == "powersgd":
        raise InputError(
            "plan",
            f"strategy.codec 'powersgd' with layout.zero {zero}: it needs whole matrices, a rank holds a shard of each",
            "plan another codec, or zero 0",
        )
    group = federation.world.region_group
    assert group is not None, "shards without a process group"
    shard_model(model, group, zero)
    if strategy.kind == "hierarchical":
        return model, attach_fsdp(model, federation, strategy, rounds)
    require_equal_regions(federation)
    return model, StepExchange(strategy=strategy, federation=federation, sharded=True)


def _reducer(exchange: StepExchange) -> HierarchicalReducer | GroupReducer:
    federation, strategy, rounds = exchange.federation, exchange.strategy, exchange.rounds
    environment, axis = federation.environment, federation.world.axis_group
    if axis is not None:
        return GroupReducer(federation.world.comm_group, axis, environment.regions)
    rails: Rails | None = None
    if environment.members is not None and environment.regions > 1:
        exchange.rails_of = rails_of_members(federation)
        names = tuple(region.name for region in environment.members.regions)
        if rounds is not None:
            rails = exchange.rails_of({}, names)
        elif federation.rail is not None:
            rails = exchange.rails_of({environment.rank: federation.rail}, names)
    return HierarchicalReducer(
        federation.world.comm_group if environment.world_size > 1 else None,
        rails,
        codec_of(strategy),
        ReducerOptions(
            error_feedback=strategy.error_feedback,
            retry=rounds is not None,
            low_rank=strategy.codec_rank if strategy.codec == "powersgd" else None,
        ),
    )
