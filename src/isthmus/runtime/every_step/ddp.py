"""Every-step gradient exchange as a DDP communication hook, in torch's shape: a state object and a function.

    ddp.register_comm_hook(state, ddp_hook)

DDP calls the hook for each bucket while the backward pass goes on. Where the region's ranks and the WAN take part in
steps, the bucket goes to the communication thread and its future completes there; where one gloo all-reduce does it all,
that runs asynchronously as in plain DDP. Either way the result is the mean over all ranks that take part.
"""

from collections.abc import Iterable

import torch
from torch._C._distributed_c10d import GradBucket

from isthmus.runtime.codecs.lowrank import Matrix
from isthmus.runtime.collectives.groups import GroupReducer
from isthmus.runtime.every_step.residuals import Residuals
from isthmus.runtime.every_step.step import Part, StepExchange

__all__ = ["HookState", "ddp_hook"]

Future = torch.futures.Future[torch.Tensor]


class HookState:
    """What the hook needs between calls.

    Args:
        exchange: For `flat`, one ring over all ranks of all regions; for `local-steps`, this region's ranks only (local steps
            exchange apart from the hook); for `hierarchical`, with a reducer on the communication thread.
        parameters: The model's, in an order equal on all ranks; residuals follow them when buckets change.
    """

    def __init__(self, exchange: StepExchange, parameters: Iterable[torch.nn.Parameter]) -> None:
        strategy = exchange.strategy
        assert (strategy.kind == "hierarchical") == (exchange.reducer is not None), (strategy.kind, exchange.reducer)
        self.exchange = exchange
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.numbers = {parameter.data_ptr(): number for number, parameter in enumerate(trained)}
        self._shapes = [tuple(parameter.shape) for parameter in trained]
        self._low_rank = strategy.codec == "powersgd"
        self.residuals = Residuals(
            [parameter.numel() for parameter in trained],
            kept=strategy.error_feedback and strategy.codec != "none",
        )

    def first_element(self, index: int, contents: tuple[int, ...]) -> int:
        """On the communication thread: the number of the first element of bucket `index`, its residuals brought along."""
        exchange = self.exchange
        if isinstance(exchange.reducer, GroupReducer):
            return 0  # nothing is owed
        assert exchange.reducer is not None
        if self.residuals.layout.get(index) != contents:
            self.residuals.move(exchange.reducer, exchange.federation, index, contents)
        return self.residuals.first[index]

    def matrices(self, contents: tuple[int, ...]) -> tuple[Matrix, ...]:
        """What PowerSGD codes of a bucket of these parameters: those of two and more dimensions, as rows of all but the first."""
        if not self._low_rank:
            return ()
        found, at = list[Matrix](), 0
        for number in contents:
            shape, size = self._shapes[number], self.residuals.sizes[number]
            if len(shape) > 1 and size:
                found.append(Matrix(at, shape[0], size // shape[0]))
            at += size
        return tuple(found)


def ddp_hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: the future of the bucket's mean over all ranks that take part."""
    if state.exchange.reducer is not None:
        return _through_courier(state, bucket)
    future = _through_gloo(state.exchange, bucket.buffer())
    state.exchange.note_part(bucket.buffer().nbytes)
    if bucket.is_last():
        state.exchange.note_end()
    return future


def _through_courier(state: HookState, bucket: GradBucket) -> Future:
    flat, index = bucket.buffer(), bucket.index()
    contents = tuple(state.numbers[parameter.data_ptr()] for parameter in bucket.parameters())
    # Told of the device, a future remembers what the communication thread's stream had still to do.
    future: Future = torch.futures.Future(devices=[flat.device] if flat.device.type != "cpu" else None)

    def done() -> None:
        if not future.done():  # DDP waits for it without a limit
            future.set_result(flat)

    part = Part(index, flat, contents, done, lambda: state.first_element(index, contents), state.matrices(contents))
    state.exchange.hand_over(part)
    if bucket.is_last():
        state.exchange.conclude()
    return future


def _through_gloo(exchange: StepExchange, flat: torch.Tensor) -> Future:
    environment, world = exchange.federation.environment, exchange.federation.world
    flat_ring = exchange.strategy.kind == "flat" and exchange.crossing and world.flat_group is not None
    group = world.flat_group if flat_ring else world.region_group
    ranks = environment.global_size if flat_ring else environment.world_size
    assert group is not None, "DDP without a process group"
    if flat_ring and environment.rank == 0:
        # A ring over n ranks sends 2 (n - 1) / n of the data over each of its edges; one edge leaves each region.
        exchange.flat_bytes += 2 * (ranks - 1) * flat.nbytes // ranks

    def mean(done: "torch.futures.Future[list[torch.Tensor]]") -> torch.Tensor:
        try:
            done.wait()
        except RuntimeError as error:
            exchange.failure = exchange.failure or error
            return flat
        return flat.div_(ranks)

    return group.allreduce([flat]).get_future().then(mean)
