"""Where a rank computes: on the CPU, or on one GPU of its node. What crosses between regions is host memory either way.

A GPU's gradients are summed inside the region by NCCL, on the GPU; only this rank's shard of the sum goes through pinned
host memory to the rails and back. The communication thread has a CUDA stream of its own, so its copies and collectives
run beside the backward pass; whoever hands it a tensor marks the point from which the tensor's values are there.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from isthmus.errors import InputError

__all__ = ["backends", "choose", "computing", "finish", "host_memory", "mark", "require_runnable", "wait_for"]

Mark = Any
"""A point on a device's stream; None for the CPU, where what was called is done."""


def choose(local_rank: int) -> torch.device:
    """The device of the node's rank number `local_rank`, and make it this thread's.

    Raises:
        InputError: The node has GPUs, but fewer than ranks.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if local_rank >= found:
        raise InputError(
            "LOCAL_RANK",
            f"is {local_rank}, but this node shows {found} GPUs",
            "start one rank a GPU (--ranks-per-node), or hide all GPUs (CUDA_VISIBLE_DEVICES='') to train on the CPU",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def backends() -> str:
    """Of a region's process groups: gloo for host memory and, where there are GPUs, NCCL (or RCCL) for theirs.

    Raises:
        InputError: There are GPUs and torch was built without NCCL.
    """
    if not torch.cuda.is_available():
        return "gloo"
    if not dist.is_nccl_available():
        raise InputError("torch", "sees GPUs but was built without NCCL", "install a CUDA or ROCm build with distributed support")
    return "cpu:gloo,cuda:nccl"


@contextmanager
def computing(device: torch.device) -> Generator[None]:
    """Inside, this thread's work on `device` goes to a stream of its own."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_device(device)  # a thread begins on device 0
    with torch.cuda.stream(torch.cuda.Stream(device)):
        yield


def mark(tensor: torch.Tensor) -> Mark:
    """The point at which everything that this thread has asked of `tensor`'s device so far is done."""
    if tensor.device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tensor.device))
    return event


def wait_for(point: Mark) -> None:
    """What this thread asks of the device from here on comes after `point`."""
    if point is not None:
        torch.cuda.current_stream().wait_event(point)


def finish(device: torch.device) -> None:
    """Wait until what this thread has asked of `device` is done: host memory may then be read, or used again."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def host_memory(elements: int, device: torch.device) -> torch.Tensor:
    """float32 on the host, shape (elements,); pinned where `device` can then copy at the full rate of its bus."""
    return torch.empty(elements, pin_memory=device.type == "cuda")


def require_runnable(named: Iterable[tuple[str, nn.Parameter]], where: str, hint: str = "") -> torch.device:
    """The one device of all parameters.

    Raises:
        InputError: One is not float32, or is neither on the CPU nor on a CUDA (or ROCm) GPU, or they are on several.
    """
    device: torch.device | None = None
    for name, parameter in named:
        if parameter.dtype != torch.float32 or parameter.device.type not in ("cpu", "cuda"):
            raise InputError(
                where,
                f"parameter {name!r} is {parameter.dtype} on {parameter.device.type}",
                hint or "this runtime keeps float32 parameters on the CPU or a CUDA GPU; to compute in bf16 use torch.autocast",
            )
        if device is not None and parameter.device != device:
            raise InputError(where, f"parameter {name!r} is on {parameter.device}, others are on {device}", "one device a rank")
        device = parameter.device
    return device or torch.device("cpu")
