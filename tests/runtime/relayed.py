"""A second backend of torch.distributed, for regions of unlike vendors: collectives of its own, by gathering everything.

Sums are taken in the reverse order of ranks, which no other backend here does. Not a test itself; nursery.py registers it.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d


class Relayed(dist.ProcessGroup):
    """Carried by gloo's all-gather and point-to-point, everything else made of them."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._carrier, self._rank, self._size = c10d.ProcessGroupGloo(store, rank, size, timeout), rank, size

    def getBackendName(self) -> str:
        return "relayed"

    def _everyones(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self._size)]
        self._carrier.allgather([found], [tensor.contiguous()]).wait()
        return found

    def allgather(self, outputs: Any, inputs: Any, *_: Any) -> Any:
        return self._carrier.allgather(outputs, inputs)

    def allreduce(self, tensors: Any, *_: Any) -> Any:
        for tensor in tensors:
            total = torch.zeros_like(tensor)
            for other in reversed(self._everyones(tensor)):
                total += other
            tensor.copy_(total)
        return self._carrier.barrier()

    def broadcast(self, tensors: Any, options: Any = None, *_: Any) -> Any:
        root = options.rootRank if options is not None else 0
        for tensor in tensors:
            tensor.copy_(self._everyones(tensor)[root])
        return self._carrier.barrier()

    def alltoall_base(self, output: Any, given: Any, *_: Any) -> Any:
        parts = output.view(self._size, -1)
        for part, other in zip(parts, self._everyones(given), strict=True):
            part.copy_(other.view(self._size, -1)[self._rank])
        return self._carrier.barrier()

    def barrier(self, *_: Any) -> Any:
        return self._carrier.barrier()

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        return self._carrier.send(tensors, to, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        return self._carrier.recv(tensors, source, tag)


def initialise() -> None:
    """torch.distributed of this rank's region, through this backend."""
    dist.Backend.register_backend("relayed", Relayed, devices=["cpu"])
    dist.init_process_group("relayed")
