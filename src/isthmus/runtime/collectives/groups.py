"""The hierarchical all-reduce through torch.distributed alone: reduce-scatter in the region, all-reduce of each rank's shard over
the regions' axis, all-gather in the region.

For regions whose ranks reach each other with one backend. Nothing is coded, retried or survived; `HierarchicalReducer` does that.
Tensors may be on any device that both groups take.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["GroupReducer", "GroupUnderWay"]


@dataclass(slots=True)
class GroupUnderWay:
    """One all-reduce between `begin` and `finish`.

    Attributes:
        tensor: Shape (n,), replaced at the end.
        padded: Shape (ceil(n / g) g,); the tensor itself where that is n.
        shard: This rank's part, shape (ceil(n / g),).
        work: Of the regions' axis; None where the regions were left out.
        ranks: By whose sum the result is divided.
        sent_bytes: To other regions, by the formula of a ring: 2 (R - 1) / R of the shard.
    """

    tensor: torch.Tensor
    padded: torch.Tensor
    shard: torch.Tensor
    work: Any
    ranks: int
    sent_bytes: int


class GroupReducer:
    """Means over all ranks of all regions, from one thread at a time; all ranks begin and finish in the same order.

    Attributes:
        between_regions: False leaves the other regions out: the result is then the mean inside the region.
    """

    def __init__(self, node: dist.ProcessGroup | None, region: dist.ProcessGroup, regions: int) -> None:
        """`node`: the region's ranks (None for one), registered; `region`: this rank's peers in the `regions` regions."""
        self._node, self._region, self._regions = node, region, regions
        self._ranks = 1 if node is None else dist.get_world_size(node)
        self.between_regions = True

    def begin(self, tensor: torch.Tensor) -> GroupUnderWay:
        """Reduce inside the region, and start the all-reduce over regions. `tensor` must be left alone until `finish`."""
        flat = tensor.detach().view(-1)
        size = -(-flat.numel() // self._ranks)
        padded = flat
        if size * self._ranks != flat.numel():
            padded = torch.nn.functional.pad(flat, (0, size * self._ranks - flat.numel()))
        shard = flat
        if self._node is not None and self._ranks > 1:
            shard = torch.empty(size, dtype=flat.dtype, device=flat.device)
            dist.reduce_scatter_single(shard, padded, group=self._node)
        if not self.between_regions:
            return GroupUnderWay(flat, padded, shard, None, self._ranks, 0)
        sent = 2 * (self._regions - 1) * shard.nbytes // self._regions
        return GroupUnderWay(flat, padded, shard, self._region.allreduce([shard]), self._ranks * self._regions, sent)

    def finish(self, under_way: GroupUnderWay) -> None:
        """Wait for the regions, gather inside the region, and replace the tensor by the mean."""
        if under_way.work is not None:
            under_way.work.wait()
        shard, padded, flat = under_way.shard, under_way.padded, under_way.tensor
        shard.div_(under_way.ranks)
        if shard is flat:
            return
        dist.all_gather_single(padded, shard, group=self._node)
        if padded is not flat:
            flat.copy_(padded[: flat.numel()])

    def advance(self, under_way: Sequence[GroupUnderWay]) -> None:
        """Nothing: what is under way goes on by itself."""

    def commit(self, under_way: Iterable[GroupUnderWay]) -> None:
        """Nothing: nothing is kept."""

    def state_dict(self) -> dict[str, Any]:
        """Of a reducer that owes nothing."""
        return {"feedback": {}, "epochs": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to go back to."""
