"""A model in a pipeline over regions: this region's chunks of it, and the schedule that trains them.

Gradients are the mean over micro-batches and over the region's ranks, as one process with all of them would compute them by
accumulation. Rank i of a region works with rank i of the others, and all of these must be given the same batch: the first
region uses its inputs, the last one its targets.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from isthmus.errors import InputError
from isthmus.plan import Strategy
from isthmus.runtime.hashing import ReplicaMismatchError, fingerprint
from isthmus.runtime.pipeline.mail import Mail
from isthmus.runtime.pipeline.orders import Depth, Op, Pace, Shape, choose_depth, in_flight, least_depth, order
from isthmus.runtime.pipeline.split import Split, split_model
from isthmus.runtime.wan.frames import PeerLostError
from isthmus.runtime.wan.rail import Rail, Ticket

__all__ = ["PipelinedModel", "RegionRanks", "Timing"]

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_Parts = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]  # micro-batches of inputs and of targets
CODECS = ("none", "bf16", "int8")
_MEASURED_STEP = 1  # the first step is slower: memory is new
_JITTER = 1.5  # run ahead for so much more than the least latency: what comes late then still comes in time
_FINGERPRINT_BITS = 52  # of a float64


@dataclass(frozen=True, slots=True)
class RegionRanks:
    """The ranks of one region: they hold the same chunks, and their gradients are averaged.

    Attributes:
        group: Their process group for the training thread; None for one rank.
        size: How many they are.
        name: Of this rank, for messages.
    """

    group: dist.ProcessGroup | None = None
    size: int = 1
    name: str = "this rank"


@dataclass(slots=True)
class Timing:
    """What the last step spent its time on.

    Attributes:
        passes: Each pass through a chunk of this region, with its begin and end on `time.perf_counter`.
        waited_s: For messages of other regions.
        step_s: Of the whole.
    """

    passes: list[tuple[Op, float, float]] = field(default_factory=list)
    waited_s: float = 0.0
    step_s: float = 0.0

    def seconds(self, *, backward: bool) -> list[float]:
        """Of each forward, or each backward, pass."""
        return [ended_s - begun_s for op, begun_s, ended_s in self.passes if op.backward == backward]


class PipelinedModel(nn.Module):
    """This region's chunks of a model. `step` trains them; called as a module it evaluates the whole model.

    Args:
        model: A sequence of blocks, see `isthmus.runtime.pipeline.split`; equal in all regions.
        rail: To the other regions; None for one region alone.
        strategy: Its micro_batches, schedule, virtual_stages and codec (of activations and of their gradients).
        ranks: Of this region.
        cut: Where to cut the model; None balances it.

    Attributes:
        crossing: False keeps to this region: a step then computes with the messages of an earlier one (off blocks).
        depth: How far regions run ahead; measured after the second step.
        timing: Of the last step.
        failure: What ended a step early: its gradients are not to be applied.

    Raises:
        InputError: The model or the strategy cannot be run so; the error names what.
    """

    def __init__(
        self,
        model: nn.Module,
        rail: Rail | None,
        strategy: Strategy,
        ranks: RegionRanks | None = None,
        cut: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if strategy.codec not in CODECS:
            raise InputError("strategy.codec", f"{strategy.codec!r} does not carry activations", f"one of {', '.join(CODECS)}")
        if strategy.schedule == "1f1b" and strategy.virtual_stages > 1:
            raise InputError("strategy.virtual_stages", "1f1b has one stage a region", "give schedule: interleaved")
        regions = 1 if rail is None else rail.regions
        # One region holds the whole model whatever the schedule, and its chunks would follow each other anyway.
        self.shape = Shape(regions, strategy.virtual_stages if regions > 1 else 1, strategy.micro_batches)
        self.region = 0 if rail is None else rail.region
        self.ranks, self.strategy = ranks or RegionRanks(), strategy
        self.depth = least_depth(self.shape)
        self._ops = order(self.shape, self.region, self.depth)
        split: Split = split_model(model, self.shape.chunks, cut)
        self.cut = split.cut
        self.whole_elements = sum(parameter.numel() for parameter in model.parameters())
        self.chunks = nn.ModuleList(split.chunks[self.region :: regions])
        self.timing = Timing()
        self.failure: BaseException | None = None
        self._rail = rail
        self._mail = None if rail is None else Mail(rail, self.shape.chunks, strategy.codec)
        self._steps = 0
        self._kept: dict[Op, tuple[torch.Tensor, torch.Tensor]] = {}
        self._losses: list[float] = []
        self._loss = float("nan")

    @property
    def first(self) -> bool:
        """Whether this region holds the model's first block."""
        return self.region == 0

    @property
    def last(self) -> bool:
        """Whether this region holds the model's last block."""
        return self.region == self.shape.regions - 1

    @property
    def crossing(self) -> bool:
        """See the class."""
        return self._mail is None or self._mail.crossing

    @crossing.setter
    def crossing(self, crossing: bool) -> None:
        if self._mail is not None:
            self._mail.crossing = crossing

    def step(self, inputs: torch.Tensor, targets: torch.Tensor, loss_fn: LossFunction) -> float:
        """Forward and backward of one batch, cut into micro-batches along its first dimension; gradients are added to `.grad`.

        Args:
            inputs, targets: Of this rank, equal in all regions; shape (B, ...) with B a multiple of the micro-batches.
            loss_fn: Mean loss of (outputs, targets); the result is the mean over micro-batches.

        Returns:
            This rank's loss, known in all regions.

        Raises:
            InputError: B is not a multiple, or a block returned something else than a float32 tensor.
            PeerLostError: A region, or a rank of this one, was lost.
            ReplicaMismatchError: Regions were given different batches.
        """
        begun_s = time.perf_counter()
        parts = self._micro_batches(inputs), self._micro_batches(targets)
        before = {parameter: parameter.grad for parameter in self.parameters() if parameter.grad is not None}
        for parameter in before:
            parameter.grad = None
        seed = int(torch.empty((), dtype=torch.int64).random_().item()) & (2**62 - 1)
        random = torch.get_rng_state()
        mail, waited_s = self._mail, self._mail.waited_s if self._mail else 0.0
        self.timing, self._losses = Timing(), []
        if mail is not None:
            key = (tuple(parts[0][0].shape), parts[0][0].dtype)
            mail.begin(key, self._ops, max(in_flight(order(self.shape, r, self.depth)) for r in range(self.shape.regions)))
        asked = self._ask(inputs, targets)
        try:
            reductions = self._run(parts, loss_fn, seed)
            loss = self._settle(asked, fingerprint([inputs, targets]))
            self._average(reductions)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._kept.clear()
            torch.set_rng_state(random)
        for parameter, gradient in before.items():
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
        self.timing.waited_s = (mail.waited_s if mail else 0.0) - waited_s
        self.timing.step_s = time.perf_counter() - begun_s
        self._deepen()
        return loss

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs of the whole model, in every region; all regions call this with the same inputs, without gradients.

        Activations go round uncoded, and the outputs go from the last region to all others.

        Raises:
            InputError: With gradients: those of a pipeline come from `step`.
        """
        mail = self._mail
        if mail is None:
            return self.chunks[0](inputs)
        if torch.is_grad_enabled():
            raise InputError(
                "model",
                "a pipeline's gradients come from its schedule",
                "loss = cluster.step(model, batch, loss_fn); or torch.no_grad()",
            )
        held: torch.Tensor | None = inputs if self.first else None
        for chunk in range(self.shape.chunks):
            here = chunk % self.shape.regions
            if here == self.region:
                assert held is not None, f"chunk {chunk} has no input"
                held = self.chunks[chunk // self.shape.regions](held)
            last = chunk == self.shape.chunks - 1
            targets = range(self.shape.regions) if last else [(chunk + 1) % self.shape.regions]
            held = mail.hand(held if here == self.region else None, here, list(targets))
        assert held is not None, "the outputs went to all regions"
        return held

    def clip_gradients(self, max_norm: float) -> float:
        """Scale all gradients so that their norm over all stages is at most `max_norm`; the norm they had.

        Norms of parameters and their sum are float64, added in the order of regions: equal to the last bit in all of them.
        """
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        squares = sum(float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2 for gradient in gradients)
        stages = [[squares]] if self._mail is None else self._mail.everyone([squares])
        norm = sum(stage[0] for stage in stages) ** 0.5
        factor = max_norm / (norm + 1e-6)
        if not factor >= 1.0:  # a norm that is no number must not go unseen either
            for gradient in gradients:
                gradient.mul_(factor)
        return norm

    def _run(self, parts: _Parts, loss_fn: LossFunction, seed: int) -> list["_Reduction"]:
        reductions: list[_Reduction] = []
        left = [self.shape.micro_batches] * len(self.chunks)
        for op in self._ops:
            if not op.backward:
                self._forward(op, parts, loss_fn, seed)
                continue
            self._backward(op)
            local = op.chunk // self.shape.regions
            left[local] -= 1
            if left[local] == 0 and self.ranks.size > 1:
                reductions.append(self._reduce(self.chunks[local]))
        return reductions

    def _forward(self, op: Op, parts: _Parts, loss_fn: LossFunction, seed: int) -> None:
        if op.chunk == 0:
            into = parts[0][op.micro]
        else:
            assert self._mail is not None
            into = self._mail.take(op).detach().requires_grad_()
        begun_s = time.perf_counter()
        # Dropout then follows from the step, the chunk and the micro-batch, whatever the schedule.
        torch.manual_seed((seed + 1_000_003 * op.chunk + op.micro) & (2**63 - 1))
        out = self.chunks[op.chunk // self.shape.regions](into)
        end = op.chunk == self.shape.chunks - 1
        if not isinstance(out, torch.Tensor) or not (end or out.dtype == torch.float32):
            found = out.dtype if isinstance(out, torch.Tensor) else type(out).__name__
            raise InputError("model", f"the last block of stage {op.chunk} returned {found}", "blocks pass one float32 tensor on")
        if end:
            out = loss_fn(out, parts[1][op.micro])
            self._losses.append(float(out.detach()))
        self._kept[op] = into, out
        self.timing.passes.append((op, begun_s, time.perf_counter()))
        if not end:
            assert self._mail is not None
            self._mail.send(op, out.detach())
        elif len(self._losses) == self.shape.micro_batches:
            self._loss = sum(self._losses) / len(self._losses)
            if self._mail is not None:
                self._mail.announce(self._loss)

    def _backward(self, op: Op) -> None:
        into, out = self._kept.pop(Op(False, op.chunk, op.micro))
        gradient = None
        if op.chunk < self.shape.chunks - 1:
            assert self._mail is not None
            gradient = self._mail.take(op)
        begun_s = time.perf_counter()
        if gradient is None:
            (out / self.shape.micro_batches).backward()
        elif out.requires_grad:
            torch.autograd.backward(out, gradient)
        self.timing.passes.append((op, begun_s, time.perf_counter()))
        if op.chunk > 0:
            assert self._mail is not None
            back = into.grad if into.grad is not None else torch.zeros_like(into)
            self._mail.send(op, back)

    def _reduce(self, chunk: nn.Module) -> "_Reduction":
        """Begin the sum over the region's ranks of one chunk's gradients, which are complete."""
        assert self.ranks.group is not None
        parameters = [parameter for parameter in chunk.parameters() if parameter.requires_grad]
        flat = torch.cat([
            (torch.zeros_like(held) if held.grad is None else held.grad).reshape(-1) for held in parameters
        ] or [torch.empty(0)])
        return _Reduction(parameters, flat, self.ranks.group.allreduce([flat]) if flat.numel() else None)

    def _average(self, reductions: Sequence["_Reduction"]) -> None:
        for reduction in reductions:
            try:
                if reduction.work is not None:
                    reduction.work.wait()
            except RuntimeError as error:
                raise PeerLostError(f"{self.ranks.name}: another rank of the region was lost: {error}") from error
            reduction.flat.div_(self.ranks.size)
            offset = 0
            for parameter in reduction.parameters:
                parameter.grad = reduction.flat[offset : offset + parameter.numel()].view_as(parameter)
                offset += parameter.numel()

    def _ask(self, inputs: torch.Tensor, targets: torch.Tensor) -> "_Asked | None":
        """Say what batch this is, where this is the first region; ask for that, and for the loss, elsewhere."""
        mail = self._mail
        if mail is None:
            return None
        digest = None
        if self.first:
            mail.announce(_short(fingerprint([inputs, targets])))
        else:
            digest = mail.ask(0)
        return _Asked(digest, None if self.last else mail.ask(self.shape.regions - 1))

    def _settle(self, asked: "_Asked | None", digest: int) -> float:
        """All of the step's messages are in: the same batch everywhere, and the loss."""
        mail = self._mail
        if mail is None or asked is None:
            return self._loss
        mail.end()
        if asked.digest is not None and mail.hear(asked.digest) != _short(digest):
            raise ReplicaMismatchError(
                f"{self.ranks.name}: this batch is not the one of the first region; in a pipeline rank i of every region must be "
                "given the same batch, as cluster.batches does"
            )
        if asked.loss is not None:
            self._loss = mail.hear(asked.loss)
        return self._loss

    def _micro_batches(self, batch: Any) -> Sequence[torch.Tensor]:
        count = self.shape.micro_batches
        if not isinstance(batch, torch.Tensor) or not batch.dim() or not len(batch) or len(batch) % count:
            found = f"{len(batch)} samples" if isinstance(batch, torch.Tensor) and batch.dim() else type(batch).__name__
            raise InputError(
                "batch", f"{found} cannot be cut into {count} micro-batches",
                f"give tensors whose first dimension is a multiple of the plan's micro_batches ({count})",
            )
        return batch.chunk(count)

    def _deepen(self) -> None:
        """After the second step across regions: run ahead as far as the links' latency asks for."""
        if self._rail is None or self._mail is None or not self._mail.crossing:
            return
        self._steps += 1
        if self._steps != _MEASURED_STEP + 1:
            return
        following = (self.region + 1) % self.shape.regions
        latency_s = _JITTER * self._rail.counters()[self._rail.names[following]].rtt_s_min / 2
        rate = self.strategy.wan_rate_bytes_per_s
        passes_s = [median(self.timing.seconds(backward=backward)) for backward in (False, True)]
        mine = [*passes_s, latency_s, self._mail.largest_bytes()]
        columns = list(zip(*self._mail.everyone(mine), strict=True))
        wire_s = tuple(size * self.ranks.size / rate if rate else 0.0 for size in columns[3])
        crossing_s = tuple(latency + wire for latency, wire in zip(columns[2], wire_s, strict=True))
        self.run_ahead(choose_depth(self.shape, Pace(tuple(columns[0]), tuple(columns[1]), crossing_s, wire_s)))

    def run_ahead(self, depth: Depth) -> None:
        """Run by `depth` from the next step on; all regions must do so together."""
        self.depth, self._ops = depth, order(self.shape, self.region, depth)


@dataclass(slots=True)
class _Reduction:
    parameters: list[nn.Parameter]
    flat: torch.Tensor
    work: dist.Work | None


@dataclass(slots=True)
class _Asked:
    digest: tuple[torch.Tensor, Ticket] | None
    loss: tuple[torch.Tensor, Ticket] | None


def _short(digest: int) -> float:
    return float(digest & ((1 << _FINGERPRINT_BITS) - 1))
