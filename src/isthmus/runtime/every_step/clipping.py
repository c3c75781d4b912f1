"""Gradient clipping by the global norm, and gradient accumulation, alike for DDP, FSDP2 and a model that runs alone.

Every-step gradients are equal on all members once they are exchanged, so no region needs to ask another for its norm, if
all find the same one to the last bit. Torch's own norm depends on the width of the processor's vectors; this one does not.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from isthmus.runtime.every_step.shards import in_shards, units

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["accumulating", "clip_grad_norm_", "square_sum"]

_LANES = 1 << 16


def square_sum(tensors: Iterable[torch.Tensor]) -> float:
    """Sum of the squares of all elements of float32 tensors, the same bits on every machine.

    A square of a float32 is exact in float64; 65,536 running sums take the elements in turn and are then halved pairwise, so the
    order of all roundings is fixed, whatever adds them.
    """
    lanes = torch.zeros(_LANES, dtype=torch.float64)
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        lanes = lanes.to(flat.device)  # all of a model's are on one
        for start in range(0, flat.numel(), _LANES):
            part = flat[start : start + _LANES].double()
            lanes[: part.numel()].addcmul_(part, part)
    while lanes.numel() > 1:
        half = lanes.numel() // 2
        lanes = lanes[:half] + lanes[half:]
    return float(lanes)


def clip_grad_norm_(model: nn.Module, max_norm: float) -> float:
    """Scale all gradients of `model` so that their 2-norm is at most `max_norm`; the norm they had, equal on all members.

    As `torch.nn.utils.clip_grad_norm_`; with FSDP2 all ranks of the region must call it, after the backward pass, since each
    knows its own shards only.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    whole = square_sum(gradient for gradient in gradients if not in_shards(gradient))
    sharded = [gradient for gradient in gradients if in_shards(gradient)]
    if sharded:
        whole += _region_sum(sharded)
    norm = whole**0.5
    factor = max_norm / (norm + 1e-6)
    if not factor >= 1.0:  # also where the norm is no number, as torch does
        for gradient in gradients:
            (gradient.to_local() if in_shards(gradient) else gradient).mul_(factor)
    return norm


def _region_sum(gradients: "list[DTensor]") -> float:
    """Sum over the ranks that hold the shards, in rank order."""
    mesh = gradients[0].device_mesh
    axis = next(axis for axis, placement in enumerate(gradients[0].placements) if placement.is_shard())
    mine = torch.tensor([square_sum(gradient.to_local() for gradient in gradients)], dtype=torch.float64)
    group = mesh.get_group(axis)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    return sum(float(entry) for entry in found)


@contextmanager
def accumulating(model: nn.Module) -> Generator[None]:
    """Inside, backward passes add up gradients and exchange nothing; the first pass after it exchanges the sum.

    `DistributedDataParallel.no_sync` and FSDP2's `set_requires_gradient_sync(False)` by one name. With FSDP2 the sum is kept
    whole on every rank.
    """
    if sharded := units(model):
        for unit in sharded:
            unit.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            for unit in sharded:
                unit.set_requires_gradient_sync(True)
        return
    with model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext():
        yield
