"""The hierarchical all-reduce: reduce-scatter inside the region, exchange of each rank's shard between regions, all-gather.

Every element crosses a region's uplink once (R = 2), and every rank's own rail carries its share. The tensor is cut into
segments: all segments are reduced and sent first, then gathered in order as the other regions' bytes arrive, so the WAN
is busy from the first segment's reduction to the last byte. The order of the calls on the region's group is fixed, hence
the same on all ranks.

Inside the region the reduce-scatter is an all-to-all and a local sum in rank order: gloo's own reduce-scatter moves twice
the bytes. It is deterministic, and all ranks of all regions end with the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from isthmus.plan import CodecName
from isthmus.runtime.codecs.feedback import ErrorFeedback
from isthmus.runtime.collectives.exchange import Buffers, Exchange, ExchangeOptions
from isthmus.runtime.wan.frames import TAG_LIMIT, message_tag
from isthmus.runtime.wan.rail import Rail

__all__ = ["HierarchicalReducer", "ReducerOptions", "UnderWay"]

_SPACE_ELEMENTS = 1 << 40
_FLOW = 1 << 63
_LAG = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducerOptions:
    """How a reducer works; equal on all ranks of all regions.

    Attributes:
        error_feedback: Keep what the codec leaves out for the next time.
        average: Mean over all ranks of all regions; otherwise the sum.
        seed: Of the codec's noise.
        segment_bytes: Size of a pipeline segment of the whole tensor; None: a sixteenth, within 256 KiB and 4 MiB.
    """

    error_feedback: bool = True
    average: bool = True
    seed: int = 0
    segment_bytes: int | None = None


class HierarchicalReducer:
    """All-reduce over all ranks of all regions, from one thread at a time.

    Attributes:
        between_regions: False leaves the WAN out: the result is then the mean (or sum) inside the region only.
    """

    def __init__(
        self,
        region_group: dist.ProcessGroup | None,
        rail: Rail | None,
        codec: CodecName = "none",
        options: ReducerOptions | None = None,
    ) -> None:
        """`region_group` is a gloo group for this reducer alone (None: one rank a region); `rail` None: one region."""
        self._group, self._rail = region_group, rail
        self._codec: CodecName = codec
        self._options = options or ReducerOptions()
        self._ranks = 1 if region_group is None else dist.get_world_size(region_group)
        self._rank = 0 if region_group is None else dist.get_rank(region_group)
        self._feedback = ErrorFeedback() if self._options.error_feedback and codec != "none" else None
        self._epochs: dict[int, int] = {}
        self._buffers = Buffers()
        self.between_regions = True

    def all_reduce_(
        self,
        tensor: torch.Tensor,
        tag: int,
        first_element: int | None = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        """Replace `tensor` by its mean (or sum) over all ranks of all regions.

        Args:
            tensor: float32, contiguous, CPU, of one size everywhere.
            tag: Which tensor, < 2^20; may be used again and again, in the same order on all ranks.
            first_element: Number of its first element among all parameters: error feedback belongs to that range. None: the
                residual belongs to `tag`.
            weights: One a region (equal everywhere) for a weighted mean of the regions' own means.

        Raises:
            RailError: Another region was lost; `tensor` is then undefined.
            RuntimeError: From gloo, when a rank of this region was lost.
        """
        self.finish(self.begin(tensor, tag, first_element, weights))

    def begin(
        self,
        tensor: torch.Tensor,
        tag: int,
        first_element: int | None = None,
        weights: Sequence[float] | None = None,
    ) -> "UnderWay":
        """The first half of `all_reduce_`: reduce inside the region and send. `tensor` must be left alone until `finish`.

        Several may be under way, so that the WAN is not idle between one tensor's last bytes and the next one's first. All
        ranks must begin and finish in the same order.
        """
        if tensor.dtype != torch.float32 or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise TypeError(
                "the hierarchical all-reduce takes contiguous float32 on the CPU, "
                f"not {tensor.dtype} on {tensor.device}"
            )
        if not 0 <= tag < TAG_LIMIT:
            raise ValueError(f"tag {tag} is not within 0 and 2^20")
        first = tag * _SPACE_ELEMENTS if first_element is None else TAG_LIMIT * _SPACE_ELEMENTS + first_element
        rail = self._rail if self.between_regions and self._rail is not None and self._rail.regions > 1 else None
        segments = self._segments(tensor.detach().view(-1))
        under_way = UnderWay(segments, [], 0 if rail is None or rail.regions == 2 else _LAG)
        epoch = self._epochs[tag] = self._epochs.get(tag, -1) + (rail is not None)
        for number, segment in enumerate(segments):
            self._reduce_scatter(segment)
            if rail is None:
                segment.shard.mul_(self._scale(None, None))
            else:
                options = self._exchange_options(first + segment.shard_first, rail, weights)
                exchange = Exchange(rail, segment.shard, message_tag(tag, epoch, 0, number), options)
                under_way.exchanges.append(exchange)
        return under_way

    def finish(self, under_way: "UnderWay") -> None:
        """The second half of `all_reduce_`: take in the other regions' bytes, and gather inside the region."""
        segments, exchanges, lag = under_way.segments, under_way.exchanges, under_way.lag
        for number in range(len(segments) + lag):
            if exchanges and number < len(segments):
                exchanges[number].reduce()
            if number >= lag:
                if exchanges:
                    exchanges[number - lag].finish()
                self._gather(segments[number - lag])

    def owned(self, elements: int) -> list[tuple[int, int]]:
        """(first element, elements) of the pieces of a tensor of `elements` that this rank encodes, hence owns residuals of."""
        return [
            (segment.shard_first, segment.shard.numel()) for segment in self._segments(torch.empty(elements))
        ]

    def state_dict(self) -> dict[str, Any]:
        """Residuals and the counts that number the codec's noise, for checkpoints and for undoing a measurement."""
        return {
            "feedback": self._feedback.state_dict() if self._feedback else {},
            "epochs": dict(self._epochs),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to `state`; nothing may be under way."""
        if self._feedback is not None:
            self._feedback.load_state_dict(state["feedback"])
        self._epochs = dict(state["epochs"])

    def _scale(self, rail: Rail | None, weights: Sequence[float] | None) -> float:
        if not self._options.average:
            return 1.0
        return 1.0 / (self._ranks * (sum(weights) if weights is not None else (rail.regions if rail else 1)))

    def _exchange_options(self, first: int, rail: Rail, weights: Sequence[float] | None) -> ExchangeOptions:
        return ExchangeOptions(
            codec=self._codec,
            feedback=self._feedback,
            first=first,
            seed=self._options.seed * 65537 + self._rank,
            weights=None if weights is None else tuple(weights),
            scale=self._scale(rail, weights),
            flow=_FLOW,
            buffers=self._buffers,
        )

    def _segments(self, flat: torch.Tensor) -> "list[_Segment]":
        size = self._options.segment_bytes or min(max(flat.nbytes // 16, 1 << 18), 1 << 22)
        step = max(1, size // 4 // self._ranks) * self._ranks
        return [
            _Segment(flat[start : start + step], start, self._rank, self._ranks)
            for start in range(0, flat.numel(), step)
        ]

    def _reduce_scatter(self, segment: "_Segment") -> None:
        if self._group is None or self._ranks == 1:
            return
        segment.load()
        buffer = self._buffers.take(segment.padded.nbytes)
        arrived = buffer.view(torch.float32)
        dist.all_to_all_single(arrived, segment.padded, group=self._group)
        parts = arrived.view(self._ranks, -1)
        own = segment.own_padded
        torch.add(parts[0], parts[1], out=own)
        for part in parts[2:]:
            own.add_(part)
        self._buffers.give(buffer)

    def _gather(self, segment: "_Segment") -> None:
        if self._group is None or self._ranks == 1:
            return
        dist.all_gather_single(segment.padded, segment.own_padded, group=self._group)
        segment.store()


@dataclass(frozen=True, slots=True)
class UnderWay:
    """One all-reduce between `begin` and `finish`; `lag` segments lie between an exchange's two steps (R >= 3)."""

    segments: "list[_Segment]"
    exchanges: list[Exchange]
    lag: int


class _Segment:
    """A piece of the tensor, padded to a multiple of the ranks (only the last one may need it)."""

    def __init__(self, view: torch.Tensor, start: int, rank: int, ranks: int) -> None:
        share = -(-view.numel() // ranks)
        self._view = view
        self.padded = view if share * ranks == view.numel() else torch.zeros(share * ranks)
        self.own_padded = self.padded[rank * share : (rank + 1) * share]
        low, high = min(rank * share, view.numel()), min((rank + 1) * share, view.numel())
        self.shard_first = start + low
        self.shard = self.own_padded[: high - low]

    def load(self) -> None:
        if self.padded is not self._view:
            self.padded[: self._view.numel()] = self._view

    def store(self) -> None:
        if self.padded is not self._view:
            self._view.copy_(self.padded[: self._view.numel()])
