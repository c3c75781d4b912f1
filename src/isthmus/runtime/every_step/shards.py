"""What this rank holds of a model, whether it is whole (DDP) or in shards (FSDP2).

With FSDP2 every parameter is a DTensor whose local tensor is this rank's part. Where regions have equal numbers of ranks,
rank i of every region holds the same part, so its rail carries exactly that to its peers, and nothing is gathered inside
a region.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
import xxhash
from torch import nn

from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.world import gather_numbers

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

__all__ = ["in_shards", "is_sharded", "local_tensors", "region_fingerprint", "reshard", "units"]


# A second of every rank's start goes into importing these two packages of torch, so only those who shard do: what was not
# imported has no instances.


def in_shards(tensor: torch.Tensor) -> "TypeGuard[DTensor]":
    """Whether `tensor` is a DTensor."""
    package = sys.modules.get("torch.distributed.tensor")
    return package is not None and isinstance(tensor, package.DTensor)


def units(model: nn.Module) -> "Sequence[FSDPModule]":
    """The modules that FSDP2 shards, in the order of `model.modules()`."""
    package: Any = sys.modules.get("torch.distributed.fsdp")
    found: list[Any] = [module for module in model.modules() if isinstance(module, package.FSDPModule)] if package else []
    return found


def is_sharded(model: nn.Module) -> bool:
    """Whether ranks of a region hold different parts of `model`."""
    return bool(units(model))


def reshard(model: nn.Module) -> None:
    """Free what a forward pass without a backward one has left gathered: `parameters()` are shards again, and the next pass
    gathers them as they are then.
    """
    for unit in units(model):
        unit.reshard()


def local_tensors(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """This rank's part of each tensor, in the same memory and without gradients: its own tensor where it holds all of it.

    Written in place between two passes, they change the model. A part may be empty (a dimension shorter than the region has
    ranks), so cut by elements, not by tensors.
    """
    with torch.no_grad():
        return [(tensor.to_local() if in_shards(tensor) else tensor).detach() for tensor in tensors]


def region_fingerprint(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None, *, sharded: bool) -> int:
    """Fingerprint of a region's whole copy: of all ranks' parts in rank order where they hold different ones.

    To be called by all ranks of `group` on the thread that owns it; equal on all of them.
    """
    digest = fingerprint(local_tensors(tensors))
    if not sharded or group is None or dist.get_world_size(group) == 1:
        return digest
    return xxhash.xxh3_64_intdigest(repr(gather_numbers(group, digest, dist.get_world_size(group))).encode())
