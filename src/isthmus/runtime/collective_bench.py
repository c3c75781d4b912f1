"""Time torch's collectives over all ranks of a world, as nccl-tests times NCCL's; each result is checked.

Every operation runs `iters` times in a row between two waits for the device; what counts is the mean over them and over ranks.
torch's all-reduce, broadcast and reduce work in place, so both halves of their rows are of the same call, one after the other.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from isthmus.errors import InputError
from isthmus.formats.collective_runs import Collective
from isthmus.formats.nccl_table import Measured, Place
from isthmus.runtime import device as devices

__all__ = ["fitting_sizes", "measure", "opened_world", "places"]

_TORCH: Any = dist
# torch 2.13 renamed both.
_GATHER = _TORCH.all_gather_single if hasattr(dist, "all_gather_single") else _TORCH.all_gather_into_tensor
_SCATTER = _TORCH.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else _TORCH.reduce_scatter_tensor
_SPLIT: frozenset[Collective] = frozenset({"all-gather", "reduce-scatter", "all-to-all"})


@dataclass(frozen=True, slots=True)
class _Half:
    """One way to call a collective: `call` does it once, `check` counts wrong elements after `fill` and one call."""

    fill: Callable[[], None]
    call: Callable[[], object]
    check: Callable[[], int]


def opened_world() -> torch.device:
    """Join torchrun's world; the device of this rank. `dist.destroy_process_group` ends it.

    Raises:
        InputError: Not started by torchrun.
    """
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        hint = "torchrun --nproc-per-node 8 -m isthmus bench collectives (with --nnodes, --rdzv-endpoint over several nodes)"
        raise InputError("RANK", "is not set: collectives are measured among the ranks that torchrun starts", hint)
    device = devices.choose(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(devices.backends())
    if dist.get_world_size() < 2:
        raise InputError("WORLD_SIZE", "is 1: a collective needs at least two ranks", "torchrun --nproc-per-node 2 ...")
    return device


def places(device: torch.device) -> list[Place]:
    """Every rank, on every rank."""
    bus, name = "0000:00:00", "CPU"
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        name = found.name
        numbers = [getattr(found, f"pci_{part}_id", 0) for part in ("domain", "bus", "device")]
        bus = "{:04x}:{:02x}:{:02x}".format(*numbers)
    host = socket.gethostname().split(".")[0]
    mine = Place(rank=dist.get_rank(), pid=os.getpid(), host=host, device=device.index or 0, bus=bus, name=name)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def fitting_sizes(sizes: Sequence[int], ranks: int, collective: Collective) -> list[int]:
    """Bytes rounded down to whole fp32 elements, the same number for each rank where the buffer is shared out; each once."""
    unit = 4 * (ranks if collective in _SPLIT else 1)
    return sorted({max(unit, size // unit * unit) for size in sizes})


def measure(
    collective: Collective, sizes: Sequence[int], device: torch.device, *, warmup: int = 5, iters: int = 20
) -> Iterator[Measured]:
    """Each of `sizes` (from `fitting_sizes`), in turn; on every rank.

    Raises:
        InputError: The backend does not have the collective.
    """
    for size in sizes:
        try:
            halves = _halves(collective, size // 4, device)
            found = [_timed(half, device, warmup, iters) for half in halves]
        except (NotImplementedError, RuntimeError) as error:
            if "support" not in str(error) and not isinstance(error, NotImplementedError):
                raise
            hint = "all-reduce, all-gather and broadcast are in every backend"
            raise InputError("--collective", f"{dist.get_backend()} does not have {collective}: {error}", hint) from None
        yield Measured(size_bytes=size, seconds=found[0][0], in_place_s=found[1][0], wrong=found[0][1] + found[1][1])


def _timed(half: _Half, device: torch.device, warmup: int, iters: int) -> tuple[float, int]:
    half.fill()
    half.call()
    wrong = half.check()
    for _ in range(warmup):
        half.call()
    _wait(device)
    dist.barrier()
    begun_s = time.perf_counter()
    for _ in range(iters):
        half.call()
    _wait(device)
    mean = torch.tensor([(time.perf_counter() - begun_s) / iters, float(wrong)], dtype=torch.float64)
    dist.all_reduce(mean)
    return float(mean[0]) / dist.get_world_size(), int(mean[1])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _halves(collective: Collective, count: int, device: torch.device) -> tuple[_Half, _Half]:
    """Out of place, and in place where torch has it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if collective in ("all-gather", "reduce-scatter", "all-to-all"):
        return _shared_out(collective, count, device, rank, ranks)
    buffer = torch.empty(count, device=device)
    arrived = torch.empty_like(buffer) if collective == "send-recv" else buffer

    def exchange() -> None:
        ahead, behind = (rank + 1) % ranks, (rank - 1) % ranks
        calls = [dist.P2POp(dist.isend, buffer, ahead), dist.P2POp(dist.irecv, arrived, behind)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()

    calls: dict[str, tuple[Callable[[], object], float | None]] = {
        "all-reduce": (lambda: _TORCH.all_reduce(buffer), ranks * (ranks + 1) / 2),
        "broadcast": (lambda: _TORCH.broadcast(buffer, 0), 1.0),
        "reduce": (lambda: _TORCH.reduce(buffer, 0), ranks * (ranks + 1) / 2 if rank == 0 else None),
        "send-recv": (exchange, (rank - 1) % ranks + 1.0),
    }
    call, expected = calls[collective]
    half = _Half(
        fill=lambda: _set(buffer, rank + 1.0),
        call=call,
        check=lambda: int((arrived != expected).sum()) if expected is not None else 0,
    )
    return half, half


def _shared_out(collective: Collective, count: int, device: torch.device, rank: int, ranks: int) -> tuple[_Half, _Half]:
    whole, other = torch.empty(count, device=device), torch.empty(count, device=device)
    share = count // ranks
    own = whole[rank * share : (rank + 1) * share]
    if collective == "all-gather":
        apart, into = torch.empty(share, device=device), whole
        expected = torch.arange(1, ranks + 1, device=device, dtype=torch.float32).repeat_interleave(share)

        def gather(source: torch.Tensor) -> _Half:
            return _Half(
                fill=lambda: _set(source, rank + 1.0),
                call=lambda: _GATHER(into, source),
                check=lambda: int((into != expected).sum()),
            )

        return gather(apart), gather(own)
    if collective == "reduce-scatter":
        apart = torch.empty(share, device=device)

        def scatter(into: torch.Tensor) -> _Half:
            return _Half(
                fill=lambda: _set(whole, rank + 1.0),
                call=lambda: _SCATTER(into, whole),
                check=lambda: int((into != ranks * (ranks + 1) / 2).sum()),
            )

        return scatter(apart), scatter(own)
    expected = torch.arange(1, ranks + 1, device=device, dtype=torch.float32).repeat_interleave(share)
    half = _Half(
        fill=lambda: _set(whole, rank + 1.0),
        call=lambda: _TORCH.all_to_all_single(other, whole),
        check=lambda: int((other != expected).sum()),
    )
    return half, half


def _set(tensor: torch.Tensor, value: float) -> None:
    tensor.fill_(value)
