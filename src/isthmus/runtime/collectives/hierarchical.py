"""The hierarchical all-reduce: reduce-scatter inside the region, exchange of each rail's shard between regions, all-gather.

Every element crosses a region's uplink once (R = 2), and every rank's own rail carries its share. The tensor is cut into
segments: all segments are reduced and sent first, then gathered in order as the other regions' bytes arrive, so the WAN
is busy from the first segment's reduction to the last byte. The order of the calls on the region's group is fixed, hence
the same on all ranks, and an exchange that fails does not change it.

Inside the region (`regional.Region`) sums are in rank order, so all ranks of all regions end with the same bits.

With `retry` an all-reduce can be repeated with other regions after one was lost: the region's own sums stay (4 bytes an
element of this rank's shards, and as much again for what error feedback makes of the residuals) until `commit`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from isthmus.plan import CodecName
from isthmus.runtime.codecs.coding import Codec
from isthmus.runtime.codecs.feedback import Draft, ErrorFeedback
from isthmus.runtime.codecs.lowrank import LowRank, Matrix
from isthmus.runtime.collectives.exchange import Buffers, Exchange, ExchangeOptions
from isthmus.runtime.collectives.low_rank import LowRankExchange
from isthmus.runtime.collectives.regional import Region
from isthmus.runtime.collectives.segments import Place, Segment, Shard
from isthmus.runtime.wan.frames import TAG_LIMIT, RailError, message_tag
from isthmus.runtime.wan.rail import Rail

__all__ = ["HierarchicalReducer", "Rails", "ReducerOptions", "UnderWay"]

_SPACE_ELEMENTS = 1 << 40
_FLOW = 1 << 63


@dataclass(frozen=True, slots=True)
class Rails:
    """How this rank reaches the other regions.

    Attributes:
        carried: Its open rails by number; without any the region is alone.
        total: N, of all members together; the same through the whole run.
        ranks: Of each region that takes part, in order.
    """

    carried: Mapping[int, Rail]
    total: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducerOptions:
    """How a reducer works; equal on all ranks of all regions.

    Attributes:
        error_feedback: Keep what the codec leaves out for the next time.
        average: Mean over all ranks of all regions; otherwise the sum.
        seed: Of the codec's noise.
        segment_bytes: Size of a pipeline segment of the whole tensor; None: one a MiB, at most 16, and none above 4 MiB.
            Each costs a rank about a millisecond of its cores, which small buckets would pay too often.
        shares: Of three and more regions with unequal links, which part of each shard every region adds up; None: equal.
        retry: Keep what `again` needs until `commit`; a RailError is then raised by `finish`, after the region's own part.
        replicated: The group's ranks hold equal tensors already: each brings its shards to the other regions, none is summed.
        low_rank: Of PowerSGD, which then does what a codec does elsewhere; `codec` is its name only.
        staged: Take the way of a GPU's tensors on the CPU too: summed where they are, copied to the host to cross.
    """

    error_feedback: bool = True
    average: bool = True
    seed: int = 0
    segment_bytes: int | None = None
    shares: tuple[float, ...] | None = None
    retry: bool = False
    replicated: bool = False
    low_rank: int | None = None
    staged: bool = False


class HierarchicalReducer:
    """All-reduce over all ranks of all regions, from one thread at a time.

    Attributes:
        between_regions: False leaves the WAN out: the result is then the mean (or sum) inside the region only.
        total: Rails of all members together, whoever takes part.
        rails: The way to the other regions; may be replaced while nothing is under way, or before `again`.
        region: The ranks of this one.
    """

    def __init__(
        self,
        region_group: dist.ProcessGroup | None,
        rails: Rails | Rail | None,
        codec: Codec | CodecName = "none",
        options: ReducerOptions | None = None,
    ) -> None:
        """`region_group` is a group for this reducer alone (None: one rank a region), gloo for tensors on the CPU and NCCL for
        those on GPUs; `rails` None: one region.

        A bare rail is this rank's only one, of regions with equal numbers of ranks.
        """
        self._codec = codec if isinstance(codec, Codec) else Codec(codec)
        self._options = options or ReducerOptions()
        self._ranks = 1 if region_group is None else dist.get_world_size(region_group)
        self._rank = 0 if region_group is None else dist.get_rank(region_group)
        if rails is not None and not isinstance(rails, Rails):
            rails = Rails({self._rank: rails}, self._ranks, (self._ranks,) * rails.regions)
        self.rails = rails
        self.total = self._ranks if rails is None else rails.total
        self._feedback = ErrorFeedback() if self._options.error_feedback and self._codec.name != "none" else None
        self._draft = Draft(self._feedback) if self._feedback and self._options.retry else None
        self._low_rank = LowRank(self._options.low_rank) if self._options.low_rank else None
        self._epochs: dict[int, int] = {}
        self._buffers = Buffers()
        retain, replicated = self._options.retry, self._options.replicated
        self.region = Region(region_group, self._rank, self._ranks, self._buffers, retain, replicated)
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
            tensor: float32, contiguous, of one size everywhere; on the CPU or a GPU, whose calling thread's stream it takes.
            tag: Which tensor, < 2^20; may be used again and again, in the same order on all ranks.
            first_element: Number of its first element among all parameters: error feedback belongs to that range. None: the
                residual belongs to `tag`.
            weights: One a region (equal everywhere) for a weighted mean of the regions' own means.

        Raises:
            RailError: Another region was lost; `tensor` is then undefined.
            RuntimeError: From the region's group, when a rank of this region was lost.
        """
        under_way = self.begin(tensor, tag, first_element, weights)
        self.finish(under_way)
        self.commit([under_way])

    def begin(
        self,
        tensor: torch.Tensor,
        tag: int,
        first_element: int | None = None,
        weights: Sequence[float] | None = None,
        matrices: Iterable[Matrix] = (),
    ) -> "UnderWay":
        """The first half of `all_reduce_`: reduce inside the region and send. `tensor` must be left alone until `finish`.

        Several may be under way, so that the WAN is not idle between one tensor's last bytes and the next one's first. All
        ranks must begin and finish in the same order. `matrices` in the tensor, for PowerSGD, are numbered from its beginning.
        """
        if tensor.dtype != torch.float32 or not tensor.is_contiguous() or tensor.device.type not in ("cpu", "cuda"):
            raise TypeError(
                "the hierarchical all-reduce takes contiguous float32 on the CPU or a CUDA GPU, "
                f"not {tensor.dtype} on {tensor.device}"
            )
        if not 0 <= tag < TAG_LIMIT:
            raise ValueError(f"tag {tag} is not within 0 and 2^20")
        first = tag * _SPACE_ELEMENTS if first_element is None else TAG_LIMIT * _SPACE_ELEMENTS + first_element
        epoch = self._epochs[tag] = self._epochs.get(tag, -1) + self.between_regions
        segments = self._segments(tensor.detach().view(-1))
        placed = tuple(replace(matrix, first=first + matrix.first) for matrix in matrices)
        under_way = UnderWay(segments, tag, epoch, first, None if weights is None else tuple(weights), placed)
        for number in range(len(segments)):
            self._await(under_way, number)
        self.region.reduce_scatter(segments, lambda number: self._cross(under_way, number))
        return under_way

    def advance(self, under_way: Sequence["UnderWay"]) -> None:
        """Before any of them is finished: what of all of them can be done without waiting for each in turn (PowerSGD)."""
        if self._low_rank is None:
            return
        for step in (LowRankExchange.reduce, LowRankExchange.turn, LowRankExchange.add_up):
            for each in under_way:
                for number in range(len(each.segments)):
                    self._step(each, number, step)
        for each in under_way:
            each.advanced = True

    def finish(self, under_way: "UnderWay") -> None:
        """The second half of `all_reduce_`: take in the other regions' bytes, and gather inside the region.

        Raises:
            RailError: Another region was lost. With `retry` this comes last, so that the region's other ranks, which may not
                have seen it, are not left alone in a gather.
        """
        segments = under_way.segments
        if not under_way.advanced:
            self.advance([under_way])
        finished = 0
        for number in range(len(segments) + 1):
            last = number == len(segments)
            if not last and self._low_rank is None:
                self._step(under_way, number, _reduce)
            while finished < number and (last or self._ready(under_way, finished)):
                self._step(under_way, finished, _finish)
                self.region.gather(segments[finished])
                finished += 1
        self.region.settle()
        if under_way.error is not None:
            raise under_way.error

    def renew(self, rails: Rails | None) -> None:
        """A new attempt of all that is under way, over `rails`: what the last one made of the residuals is dropped."""
        assert self._options.retry, "this reducer keeps nothing to try again with"
        assert rails is None or rails.total == self.total, (rails, self.total)
        self.rails = rails
        self._draft = Draft(self._feedback) if self._feedback else None
        if self._low_rank is not None:
            self._low_rank.drop()

    def again(self, under_way: "UnderWay") -> None:
        """Send once more what `begin` sent, after `renew`; then `finish` it again. Same regions, same bits."""
        under_way.error, under_way.advanced = None, False
        under_way.exchanges.clear()
        for number in range(len(under_way.segments)):
            self._await(under_way, number)
        for number in range(len(under_way.segments)):
            self._cross(under_way, number)

    def commit(self, under_way: Iterable["UnderWay"]) -> None:
        """What is under way has come to a good end: the residuals count, and nothing is kept to repeat it with."""
        if self._draft is not None:
            self._draft.commit()
        if self._low_rank is not None:
            self._low_rank.commit()
        for each in under_way:
            for segment in each.segments:
                if segment.retained is not None:
                    self._buffers.give(segment.retained)
                    segment.retained = None

    def owned(self, elements: int) -> list[tuple[int, int]]:
        """(first element, elements) of the pieces of a tensor of `elements` that this rank encodes, hence owns residuals of."""
        return [
            (shard.first, shard.out.numel()) for segment in self._segments(torch.empty(elements)) for shard in segment.shards
        ]

    def state_dict(self) -> dict[str, Any]:
        """Residuals, directions and the counts that number the codec's noise, for checkpoints and for undoing a measurement."""
        return {
            "feedback": self._feedback.state_dict() if self._feedback else {},
            "epochs": dict(self._epochs),
            "directions": self._low_rank.state_dict() if self._low_rank else {},
        }

    def directions(self, rail: int) -> dict[str, torch.Tensor]:
        """PowerSGD's of one rail: every region must hold the same."""
        return self._low_rank.state_dict(rail) if self._low_rank is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to `state`; nothing may be under way."""
        if self._feedback is not None:
            self._feedback.load_state_dict(state["feedback"])
        if self._low_rank is not None:
            self._low_rank.load_state_dict(state.get("directions", {}))
        self._epochs = dict(state["epochs"])

    def _crossing(self) -> Rails | None:
        return self.rails if self.between_regions and self.rails is not None and len(self.rails.ranks) > 1 else None

    def _await(self, under_way: "UnderWay", number: int) -> None:
        """Ask the other regions for what they will bring to a segment, before this region's own sums: they may be ahead."""
        rails = self._crossing()
        if rails is None or self._low_rank is not None or under_way.error is not None:
            return
        try:
            shards = under_way.segments[number].shards
            under_way.exchanges[number] = [self._exchange(rails, under_way, number, shard) for shard in shards]
        except RailError as error:
            self._fail(under_way, error)

    def _cross(self, under_way: "UnderWay", number: int) -> None:
        """Offer a segment's shards to the other regions; with no other region, bring them to scale."""
        rails, segment = self._crossing(), under_way.segments[number]
        if rails is None:
            scale = 1.0 / self._ranks if self._options.average and not self._options.replicated else 1.0
            for shard in segment.shards:
                torch.mul(shard.given, scale, out=shard.out)
            return
        if under_way.error is not None:
            return
        try:
            if self._low_rank is not None:
                under_way.exchanges[number] = [self._exchange(rails, under_way, number, shard) for shard in segment.shards]
                return
            for shard, exchange in zip(segment.shards, under_way.exchanges[number], strict=True):
                assert isinstance(exchange, Exchange)
                exchange.start(shard.given)
        except RailError as error:
            self._fail(under_way, error)

    def _exchange(self, rails: Rails, under_way: "UnderWay", number: int, shard: Shard) -> Exchange | LowRankExchange:
        weights, scale = self._weights(rails, under_way.weights)
        options = ExchangeOptions(
            codec=self._codec,
            feedback=self._draft or self._feedback,
            first=under_way.first + shard.first,
            seed=self._options.seed * 65537 + shard.rail,
            weights=weights,
            scale=scale,
            flow=_FLOW,
            buffers=self._buffers,
            shares=self._options.shares,
        )
        tag = message_tag(under_way.tag, under_way.epoch, 0, number)
        if self._low_rank is not None:
            link = rails.carried[shard.rail], shard.rail, tag
            return LowRankExchange(link, shard.given, options, shard.out, (self._low_rank, under_way.matrices))
        return Exchange(rails.carried[shard.rail], shard.out, tag, options, shard.out)

    def _ready(self, under_way: "UnderWay", number: int) -> bool:
        exchanges = under_way.exchanges.get(number, [])
        return all(isinstance(exchange, Exchange) and exchange.ready for exchange in exchanges)

    def _step(self, under_way: "UnderWay", number: int, step: Callable[[Any], None]) -> None:
        try:
            for exchange in under_way.exchanges.get(number, []):
                step(exchange)
        except RailError as error:
            self._fail(under_way, error)

    def _fail(self, under_way: "UnderWay", error: RailError) -> None:
        under_way.exchanges.clear()
        if not self._options.retry:
            raise error
        under_way.error = under_way.error or error

    def _weights(self, rails: Rails, weights: tuple[float, ...] | None) -> tuple[tuple[float, ...] | None, float]:
        """Of the regions' sums, and the scale that makes their sum the mean."""
        if not self._options.average:
            return weights, 1.0
        if weights is None:
            return None, 1.0 / sum(rails.ranks)
        if len(set(rails.ranks)) == 1:
            return weights, 1.0 / (rails.ranks[0] * sum(weights))
        return tuple(weight / ranks for weight, ranks in zip(weights, rails.ranks, strict=True)), 1.0 / sum(weights)

    def _segments(self, flat: torch.Tensor) -> list[Segment]:
        size = flat.nbytes if self._low_rank is not None else self._options.segment_bytes  # rows are not to be cut more often
        count = max(1, -(-flat.nbytes // size) if size else max(min(16, flat.nbytes >> 20), -(-flat.nbytes >> 22)))
        step = max(1, -(-flat.numel() // (count * self.total))) * self.total
        place = Place(self._rank, self._ranks, self.total)
        staged = self._options.staged or flat.device.type != "cpu"
        return [Segment(flat[start : start + step], start, place, staged=staged) for start in range(0, flat.numel(), step)]


@dataclass(slots=True)
class UnderWay:
    """One all-reduce between `begin` and `finish`, and with `retry` until `commit`.

    Attributes:
        matrices: In it, numbered as the residuals are.
        exchanges: Of each segment that has been sent, one a shard.
        advanced: `HierarchicalReducer.advance` has been done.
        error: The first that any of them met.
    """

    segments: list[Segment]
    tag: int
    epoch: int
    first: int
    weights: tuple[float, ...] | None
    matrices: tuple[Matrix, ...] = ()
    exchanges: dict[int, list[Exchange | LowRankExchange]] = field(default_factory=dict)
    error: RailError | None = None
    advanced: bool = False


def _reduce(exchange: Exchange | LowRankExchange) -> None:
    exchange.reduce()


def _finish(exchange: Exchange | LowRankExchange) -> None:
    exchange.finish()
