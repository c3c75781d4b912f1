"""FSDP2 in every region, gradients averaged over regions in every step.

FSDP2's all-reduce hook works in place and returns nothing, so it cannot hand back a future. It hands the reduce-scattered
shard, in whose memory the gradients lie, to the communication thread and returns: the exchange of one block runs while
the backward pass of the block before it does. At the end of the pass, in a callback of the autograd engine that comes after
FSDP2's own, the training thread waits, so when `backward()` returns the gradients are those of all regions, as with DDP.

Each rank sends its own shard on its own rail, hence the same number of ranks in every region. In a two-dimensional mesh
(replicas of shards, HSDP) the replicas, which hold equal shards after FSDP2's own all-reduce, share them out between their
rails and gather them again.

What this leaves out: FSDP2's CPU offloading, which would copy gradients before they are exchanged;
`set_gradient_divide_factor` and `set_force_sum_reduction_for_comms` with a factor that FSDP2 divides by after the hook.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from isthmus.errors import InputError
from isthmus.plan import Strategy
from isthmus.runtime.codecs.coding import codec_of
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, Rails, ReducerOptions
from isthmus.runtime.device import backends, require_runnable
from isthmus.runtime.every_step.step import Part, RoundRunner, StepExchange
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.wan.rail import Rail

__all__ = ["attach_fsdp", "require_equal_regions", "shard_model"]

_CONTAINERS = nn.ModuleList | nn.Sequential | nn.ModuleDict


def shard_model(model: nn.Module, group: dist.ProcessGroup, zero: int) -> nn.Module:
    """`model` with parameters, gradients and optimizer state in shards over the ranks of `group`, in place.

    Every element of the outermost lists and sequences of modules (the blocks of a transformer) is a unit of its own, gathered
    and reduced by itself, unless it shares a parameter with something outside; the rest goes with the root.

    Args:
        model: Its parameters on one device, equal on all ranks.
        group: The region's ranks.
        zero: 2: parameters stay whole between forward and backward; 3: they are gathered anew for the backward pass.
    """
    mesh = DeviceMesh.from_group(group, next(model.parameters()).device.type, mesh_dim_names=("shard",))
    reshard = None if zero == 3 else False  # None: all but the root, whose backward pass begins at once
    for unit in _units(model):
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return model


def attach_fsdp(
    model: nn.Module, federation: Federation, strategy: Strategy, rounds: RoundRunner | None = None
) -> StepExchange:
    """Average the gradients of `model` over regions in every backward pass that FSDP2 reduces gradients in.

    Args:
        model: `fully_shard` was applied to it, over this region's ranks: all of them, in rank order, in one dimension or (HSDP)
            two. Parameters float32; a mixed precision policy must reduce in float32.
        federation: All members; every region has the same number of ranks and shards the same way.
        strategy: Codec and error feedback.
        rounds: Repeats a step with the regions that are left when one is lost; None: it ends the run.

    Raises:
        InputError: One of these does not hold. (What only a backward pass shows is raised by it.)
    """
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    first = next((parameter for parameter in model.parameters() if isinstance(parameter, DTensor)), None)
    if not units or first is None:
        raise InputError("attach_fsdp", "was given a model without fully_shard", "apply torch's fully_shard to it first")
    _check(model, federation, first.device_mesh)
    exchange = StepExchange(strategy=strategy, federation=federation, rounds=rounds, sharded=True)
    if federation.environment.regions > 1:
        exchange.reducer = _reducer(exchange, first.device_mesh)
        pass_ = _Pass(exchange)
        for number, unit in enumerate(units):
            unit.set_all_reduce_hook(_Hook(pass_, number, unit))
    return exchange


def _units(model: nn.Module) -> Iterator[nn.Module]:
    """Elements of the outermost containers that share no parameter with the rest of the model."""
    holders: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    containers = [model] if isinstance(model, _CONTAINERS) else list(_containers(model))
    for container in containers:
        for unit in container.children():
            inside: dict[int, int] = {}
            for module in unit.modules():
                for parameter in module.parameters(recurse=False):
                    inside[id(parameter)] = inside.get(id(parameter), 0) + 1
            if inside and all(holders[key] == count for key, count in inside.items()) and not isinstance(unit, _CONTAINERS):
                yield unit


def _containers(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, _CONTAINERS):
            yield child
        else:
            yield from _containers(child)


def require_equal_regions(federation: Federation) -> None:
    """Refuse regions of unequal numbers of ranks, whose shards would not be the same."""
    environment = federation.environment
    counts = {region.name: region.ranks for region in environment.members.regions} if environment.members else {}
    if len(set(counts.values())) > 1:
        raise InputError(
            "ISTHMUS_MEMBERS",
            f"regions have {', '.join(f'{name} {ranks}' for name, ranks in counts.items())} ranks",
            "sharded parameters need the same number in each: rank i carries its shard to rank i of the others; "
            "or plan with zero 0",
        )


def _check(model: nn.Module, federation: Federation, mesh: DeviceMesh) -> None:
    require_equal_regions(federation)
    environment = federation.environment
    if mesh.ndim > 2 or mesh.mesh.flatten().tolist() != list(range(environment.world_size)):
        raise InputError(
            "attach_fsdp",
            f"the mesh {mesh.mesh.tolist()} is not the region's {environment.world_size} ranks in order, in one or two axes",
            "e.g. init_device_mesh('cpu', (ranks,)), or ('cpu', (replicas, shards), mesh_dim_names=('replica', 'shard'))",
        )
    hint = "float32 on the CPU or a CUDA GPU; to compute in bf16: MixedPrecisionPolicy(torch.bfloat16, torch.float32)"
    require_runnable(model.named_parameters(), "attach_fsdp", hint)


def _reducer(exchange: StepExchange, mesh: DeviceMesh) -> HierarchicalReducer:
    federation, environment = exchange.federation, exchange.federation.environment
    rank, group, place, replicas = environment.rank, None, 0, 1
    if mesh.ndim == 2:
        replicas = mesh.mesh.shape[0]
        place = rank // mesh.mesh.shape[1]
        groups = [dist.new_group(ranks, backend=backends()) for ranks in mesh.mesh.T.tolist()]  # made by all ranks, in one order
        group = groups[rank % mesh.mesh.shape[1]]
        assert isinstance(group, dist.ProcessGroup), group

    def rails_of(carried: Mapping[int, Rail], regions: tuple[str, ...]) -> Rails:
        # A region counts once: its ranks' shards are means already.
        return Rails({place: carried[rank]} if carried else {}, replicas, (1,) * len(regions))

    assert environment.members is not None
    exchange.rails_of = rails_of
    names = tuple(region.name for region in environment.members.regions)
    rails = None
    if exchange.rounds is None:
        assert federation.rail is not None, "several regions without a rail"
        rails = rails_of({rank: federation.rail}, names)
    return HierarchicalReducer(
        group if replicas > 1 else None,
        rails or Rails({}, replicas, (1,)),
        codec_of(exchange.strategy),
        ReducerOptions(
            error_feedback=exchange.strategy.error_feedback,
            seed=rank,
            retry=exchange.rounds is not None,
            replicated=True,
        ),
    )


class _Pass:
    """One backward pass: the parts it has handed over, and what is to be done when it ends."""

    def __init__(self, exchange: StepExchange) -> None:
        self.exchange = exchange
        self.earlier: list[tuple[nn.Parameter, DTensor]] = []
        self.reduced: list[tuple[FSDPModule, int]] = []
        self._task = -1
        self.firsts: dict[int, tuple[int, int]] = {}

    def enter(self) -> None:
        """A hook was called: see to it that the end of this pass, after FSDP2's own work, is ours."""
        task: int = torch._C._current_graph_task_id()  # pyright: ignore[reportPrivateUsage]
        if task != self._task:
            self._task = task
            self.earlier.clear()
            self.reduced.clear()
            # As FSDP2 itself and DDP's reducer do; torch has no public way to the end of a pass.
            torch.autograd.Variable._execution_engine.queue_callback(self._end)  # pyright: ignore[reportPrivateUsage]

    def first_element(self, number: int, elements: int) -> int:
        """Number of the first element of unit `number` among this rank's; units are numbered as they come the first time."""
        if number not in self.firsts:
            self.firsts[number] = (sum(size for _, size in self.firsts.values()), elements)
        first, size = self.firsts[number]
        if size != elements:
            raise InputError(
                "model",
                f"an FSDP2 unit has {elements} gradient elements, it had {size} before: some parameters are not always used",
                "use all parameters in every pass, or set_reduce_scatter_unused_params(True) on the unit",
            )
        return first

    def _end(self) -> None:
        self._task = -1
        self.exchange.conclude().result()
        for unit, storage in self.reduced:
            _require_in_place(unit, storage)
        self.reduced.clear()
        earlier, self.earlier = self.earlier, []
        with torch.no_grad():
            for parameter, gradient in earlier:
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)


class _Hook:
    """The all-reduce hook of one unit."""

    def __init__(self, pass_: _Pass, number: int, unit: FSDPModule) -> None:
        self._pass, self._number, self._unit = pass_, number, unit

    def __call__(self, reduced: torch.Tensor) -> None:
        if reduced.dtype != torch.float32:
            raise InputError(
                "model",
                f"FSDP2 reduces gradients as {reduced.dtype}, regions exchange float32",
                "MixedPrecisionPolicy(..., reduce_dtype=torch.float32)",
            )
        self._pass.enter()
        self._set_aside()
        number, elements = self._number, reduced.numel()
        first = self._pass.first_element(number, elements)
        self._pass.reduced.append((self._unit, reduced.untyped_storage().data_ptr()))
        self._pass.exchange.hand_over(Part(number, reduced, (elements,), lambda: None, lambda: first))

    def _set_aside(self) -> None:
        """Gradients of earlier passes would be added to these before the other regions' have come: they wait until the end."""
        own: Any = self._unit
        for parameter in _own_parameters(own):
            if isinstance(parameter.grad, DTensor):
                self._pass.earlier.append((parameter, parameter.grad))
                parameter.grad = None


def _require_in_place(unit: FSDPModule, storage: int) -> None:
    """The gradients must lie in the memory that was exchanged: a copy that FSDP2 made of it before would be this region's own."""
    own: Any = unit
    for parameter in _own_parameters(own):
        gradient = parameter.grad
        if not isinstance(gradient, DTensor) or not gradient.to_local().numel():
            continue
        if gradient.to_local().untyped_storage().data_ptr() != storage:
            raise InputError(
                "model",
                "FSDP2 copies gradients elsewhere before the other regions' have come",
                "keep parameters and gradients in float32 on one device: no CPUOffloadPolicy",
            )


def _own_parameters(unit: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters of `unit` that no unit inside it holds."""
    yield from unit.parameters(recurse=False)
    for child in unit.children():
        if not isinstance(child, FSDPModule):
            yield from _own_parameters(child)
