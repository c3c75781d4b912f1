"""Every-step gradient exchange as a DDP communication hook, in torch's shape: a state object and a function.

    ddp.register_comm_hook(state, ddp_hook)

DDP calls the hook for each bucket while the backward pass goes on. Where the region's ranks and the WAN take part in
steps, the bucket goes to the communication thread and its future completes there; where one gloo all-reduce does it all,
that runs asynchronously as in plain DDP. Either way the result is the mean over all ranks that take part.
"""

import time
from collections.abc import Iterable
from typing import Any

import torch
import xxhash
from torch._C._distributed_c10d import GradBucket

from isthmus.plan import Strategy
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, UnderWay
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.wan.frames import RailError

__all__ = ["HookState", "Residuals", "ddp_hook"]

Future = torch.futures.Future[torch.Tensor]

_FEEDBACK_SPACE_ELEMENTS = 1 << 60  # where the reducer numbers elements given by `first_element`: 2^20 tags of 2^40


class HookState:
    """What the hook needs between calls.

    Args:
        strategy: `flat`: one ring over all ranks of all regions. `hierarchical`: `reducer` on the communication thread.
            `local-steps`: this region's ranks only; local steps exchange apart from the hook.
        federation: All members.
        parameters: The model's, in an order equal on all ranks; residuals follow them when buckets change.
        reducer: For `hierarchical`.

    Attributes:
        crossing: False keeps gradients inside the region (off blocks).
        enqueued_s: `time.perf_counter()` when the last bucket was handed over: the backward pass proper ends here.
        failure: The first error of any exchange.
        flat_bytes: Bytes this rank has sent to another region through the flat ring, by formula.
        bucket_bytes: Sizes of the buckets of the last backward pass, in the order they became ready.
    """

    def __init__(
        self,
        strategy: Strategy,
        federation: Federation,
        parameters: Iterable[torch.nn.Parameter],
        reducer: HierarchicalReducer | None = None,
    ) -> None:
        assert (strategy.kind == "hierarchical") == (reducer is not None), (strategy.kind, reducer)
        self.strategy, self.federation, self.reducer = strategy, federation, reducer
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.numbers = {parameter.data_ptr(): number for number, parameter in enumerate(trained)}
        self.residuals = Residuals(
            [parameter.numel() for parameter in trained],
            kept=strategy.error_feedback and strategy.codec != "none",
        )
        self.crossing = True
        self.enqueued_s = 0.0
        self.failure: BaseException | None = None
        self.flat_bytes = 0
        self.bucket_bytes: tuple[int, ...] = ()
        self._filling: list[int] = []
        self._pending: list[tuple[UnderWay | None, Future, torch.Tensor]] = []

    def note_bucket(self, size_bytes: int, *, last: bool) -> None:
        """Keep the sizes of this backward pass's buckets, and when its last one was handed over."""
        self._filling.append(size_bytes)
        if last:
            self.enqueued_s = time.perf_counter()
            self.bucket_bytes, self._filling = tuple(self._filling), []

    def begin(self, flat: torch.Tensor, index: int, contents: tuple[int, ...], future: Future) -> None:
        """On the communication thread: reduce one bucket inside the region and send it on.

        Args:
            flat: The bucket, float32, shape (n,).
            index: Number of the bucket.
            contents: Numbers of its parameters in order.
            future: Completed by `finish`.
        """
        assert self.reducer is not None
        self._pending.append((None, future, flat))
        self.reducer.between_regions = self.crossing
        first = None
        if self.crossing:
            if self.residuals.layout.get(index) != contents:
                self._agree(index, contents)
                self.residuals.move(self.reducer, self.federation, index, contents)
            first = self.residuals.first[index]
        self._pending[-1] = (self.reducer.begin(flat, index, first), future, flat)

    def finish(self) -> None:
        """On the communication thread, after the last bucket has begun: take in the other regions' parts, in order."""
        assert self.reducer is not None
        while self._pending:
            under_way, future, flat = self._pending[0]
            assert under_way is not None
            self.reducer.finish(under_way)
            self._pending.pop(0)
            future.set_result(flat)

    def fail(self, error: BaseException) -> None:
        """Keep the first error and complete all futures: DDP waits for them without a limit, and the step raises next."""
        self.failure = self.failure or error
        while self._pending:
            _, future, flat = self._pending.pop(0)
            future.set_result(flat)

    def _agree(self, index: int, contents: tuple[int, ...]) -> None:
        """Regions fill buckets by themselves; equal sizes in another order would go unnoticed."""
        digest = xxhash.xxh3_64_intdigest(repr((index, contents)).encode())
        found = self.federation.numbers(digest)
        if len(set(found)) > 1:
            raise RailError(
                f"gradient bucket {index} holds other parameters in other regions ({[f'{value:016x}' for value in found]}): "
                "the regions do not train the same model"
            )


class Residuals:
    """Error feedback by parameter: when DDP fills its buckets anew, what is owed moves along.

    The reducer numbers elements in the order of the buckets, and each rank holds the residuals of the pieces it encodes.
    On a change the region's ranks put their pieces together in the parameters' own order, and each takes the pieces
    that are now its own.

    Attributes:
        layout: Bucket -> numbers of its parameters.
        first: Bucket -> number of its first element.
    """

    def __init__(self, sizes: list[int], *, kept: bool) -> None:
        self.sizes, self.kept = sizes, kept
        self.starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self.layout: dict[int, tuple[int, ...]] = {}
        self.first: dict[int, int] = {}
        self._owed: torch.Tensor | None = None

    def move(self, reducer: HierarchicalReducer, federation: Federation, index: int, contents: tuple[int, ...]) -> None:
        """Bucket `index` now holds `contents`: bring its residuals along. Buckets are announced in order."""
        if index in self.layout:
            self._owed = self._collect(reducer, federation) if self.kept else None
            self.layout = {bucket: held for bucket, held in self.layout.items() if bucket < index}
            for bucket, held in self.layout.items():
                self._give(reducer, bucket, held)
        self.layout[index] = contents
        self.first[index] = sum(self.sizes[number] for bucket in range(index) for number in self.layout[bucket])
        self._give(reducer, index, contents)
        if sum(len(held) for held in self.layout.values()) == len(self.sizes):
            self._owed = None  # the last bucket has its part: a copy of the whole model need not stay

    def _collect(self, reducer: HierarchicalReducer, federation: Federation) -> torch.Tensor:
        """Everything the region owes, in the parameters' order, on every rank; the reducer's own copy is emptied."""
        state = reducer.state_dict()
        by_bucket = torch.zeros(sum(self.sizes))
        for key, held in state["feedback"].items():
            start = int(key) - _FEEDBACK_SPACE_ELEMENTS
            by_bucket[start : start + held.numel()] = held
        group = federation.world.comm_group
        if group is not None:
            group.allreduce([by_bucket]).wait()  # a sum of disjoint pieces
        reducer.load_state_dict({**state, "feedback": {}})
        owed = torch.zeros_like(by_bucket)
        for bucket, contents in self.layout.items():
            offset = self.first[bucket]
            for number in contents:
                size = self.sizes[number]
                owed[self.starts[number] : self.starts[number] + size] = by_bucket[offset : offset + size]
                offset += size
        return owed

    def _give(self, reducer: HierarchicalReducer, index: int, contents: tuple[int, ...]) -> None:
        """Put this rank's pieces of what bucket `index` owes into the reducer."""
        if self._owed is None:
            return
        owed = torch.cat([self._owed[self.starts[number] : self.starts[number] + self.sizes[number]] for number in contents])
        state = reducer.state_dict()
        base = _FEEDBACK_SPACE_ELEMENTS + self.first[index]
        for start, elements in reducer.owned(owed.numel()):
            if elements:
                state["feedback"][str(base + start)] = owed[start : start + elements].clone()
        reducer.load_state_dict(state)


def ddp_hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: the future of the bucket's mean over all ranks that take part."""
    future = _through_gloo(state, bucket.buffer()) if state.reducer is None else _through_courier(state, bucket)
    state.note_bucket(bucket.buffer().nbytes, last=bucket.is_last())
    return future


def _through_courier(state: HookState, bucket: GradBucket) -> Future:
    flat, index, last = bucket.buffer(), bucket.index(), bucket.is_last()
    contents = tuple(state.numbers[parameter.data_ptr()] for parameter in bucket.parameters())
    future: Future = torch.futures.Future()

    def job() -> None:
        try:
            state.begin(flat, index, contents, future)
            if last:
                state.finish()
        except BaseException as error:
            state.fail(error)
            raise

    def refused(done: Any) -> None:
        # After an earlier failure the job never ran.
        if not future.done():
            state.failure = state.failure or done.exception()
            if done.exception() is not None:
                future.set_result(flat)

    state.federation.submit(job).add_done_callback(refused)
    return future


def _through_gloo(state: HookState, flat: torch.Tensor) -> Future:
    world = state.federation.world
    flat_ring = state.strategy.kind == "flat" and state.crossing and world.flat_group is not None
    group = world.flat_group if flat_ring else world.region_group
    ranks = state.federation.environment.global_size if flat_ring else state.federation.environment.world_size
    assert group is not None, "DDP without a process group"
    if flat_ring and state.federation.environment.rank == 0:
        # A ring over n ranks sends 2 (n - 1) / n of the data over each of its edges; one edge leaves each region.
        state.flat_bytes += 2 * (ranks - 1) * flat.nbytes // ranks

    def mean(done: "torch.futures.Future[list[torch.Tensor]]") -> torch.Tensor:
        try:
            done.wait()
        except RuntimeError as error:
            state.failure = state.failure or error
            return flat
        return flat.div_(ranks)

    return group.allreduce([flat]).get_future().then(mean)
