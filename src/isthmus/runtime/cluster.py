"""The door for training scripts: `with isthmus.join() as cluster`.

    with isthmus.join("plan.yaml") as cluster:
        model = cluster.parallelize(model)
        optimizer = torch.optim.AdamW(model.parameters())
        with cluster.sync(model, optimizer):
            for batch in cluster.batches(dataset):
                loss = cluster.step(model, batch, loss_fn)
                optimizer.step(); optimizer.zero_grad()

The same script runs alone on a laptop (no environment), as one region under torchrun, and on all regions of a plan.
"""

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from isthmus.errors import InputError
from isthmus.plan import Plan, Strategy
from isthmus.runtime.blocks import Mode, Pace, lay_out, parse_schedule
from isthmus.runtime.checkpoint import CheckpointError, latest
from isthmus.runtime.codecs.coding import codec_of, warm
from isthmus.runtime.courier import Courier
from isthmus.runtime.device import choose, computing, require_runnable
from isthmus.runtime.environment import RankEnvironment, read_environment
from isthmus.runtime.every_step.clipping import accumulating, clip_grad_norm_
from isthmus.runtime.every_step.shards import is_sharded, local_tensors
from isthmus.runtime.every_step.step import StepExchange
from isthmus.runtime.every_step.wrap import settle, wrap
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.hashing import bytes_of, fingerprint
from isthmus.runtime.local_steps.link import RailLink, RoundsLink
from isthmus.runtime.local_steps.sharded import ShardLink
from isthmus.runtime.local_steps.sync import LocalSync
from isthmus.runtime.metrics import Metrics
from isthmus.runtime.pipeline.model import PipelinedModel, RegionRanks
from isthmus.runtime.regions import exported, federated
from isthmus.runtime.resume import RunState
from isthmus.runtime.runnable import refuse_running_statistics, strategy_to_run
from isthmus.runtime.sampling import ShardedBatches
from isthmus.runtime.session import Session, explain_failure
from isthmus.runtime.snapshot import Stateful
from isthmus.runtime.wan.frames import PeerLostError
from isthmus.runtime.world import World, open_world

__all__ = ["Cluster", "join"]



@contextmanager
def join(plan: Plan | Path | str | None = None, *, timeout_s: float = 120.0) -> Generator["Cluster"]:
    """Take this rank's place among the regions, and leave it at the end.

    Args:
        plan: A plan or its path. The launcher's ISTHMUS_PLAN goes before it, so that one script can be run all ways.
        timeout_s: Silence after which another rank counts as lost; the same on all ranks. It must exceed the longest lag
            between regions: for every-step strategies one step, for local steps the time by which the slowest region's
            K inner steps outlast the fastest one's. A region that shows no sign of life at all is found sooner. With a
            coordinator, the plan's `survival` takes its place between regions.

    Raises:
        InputError: The environment, the members or the plan is wrong; or the plan's strategy cannot be run here.
        PeerLostError: Another region did not come in time; also where regions' plans name strategies that do not even meet.
        PlanMismatchError: Members were started with other plans, schedules or time-outs.
    """
    environment = read_environment()
    strategy, zero, survival = strategy_to_run(environment, plan)
    device = choose(environment.local_rank)
    world, courier = World(), Courier(inside=computing(device))
    terms = {
        "the plan's strategy": strategy.model_dump_json(),
        "the plan's layout.zero": str(zero),
        "the schedule ISTHMUS_BLOCKS": environment.blocks or "none",
        "join's timeout_s": f"{timeout_s:g}",
    }
    try:
        if environment.regions > 1:
            warm(codec_of(strategy))  # compiled here, where nobody waits for this rank yet
        axis = strategy.region_group
        world = open_world(environment, flat=strategy.kind == "flat", timeout_s=timeout_s, axis=axis)
        with (
            Metrics(environment.metrics_dir, environment.region, environment.rank, trace=environment.trace) as metrics,
            federated(Federation(environment, world, courier), strategy, survival, metrics, terms, timeout_s) as federation,
            exported(environment, metrics, federation),
        ):
            yield Cluster(environment, strategy, federation, metrics, zero, device)
            federation.submit(federation.leave).result()
    finally:
        courier.close(timeout_s=1.0)
        world.close()


def _on(device: torch.device, batch: Sequence[Any]) -> list[Any]:
    return [item.to(device, non_blocking=True) if isinstance(item, torch.Tensor) else item for item in batch]


@dataclass(slots=True)
class _Model:
    """What `parallelize` made of the user's model."""

    given: nn.Module
    wrapped: nn.Module
    hook: StepExchange | None


class Cluster:
    """All ranks of all regions, as a training script sees them. Made by `join`.

    Attributes:
        region: This rank's region.
        rank: This rank's number among all ranks of all regions.
        ranks: How many they are.
        strategy: What the plan asks for.
        device: Where this rank is to compute: its node's GPU of its number among the node's ranks, or the CPU.
    """

    def __init__(
        self,
        environment: RankEnvironment,
        strategy: Strategy,
        federation: Federation,
        metrics: Metrics,
        zero: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.environment, self.strategy, self._zero = environment, strategy, zero
        self.region, self.rank, self.ranks = (
            environment.region,
            environment.global_rank,
            environment.global_size,
        )
        self._federation, self._metrics = federation, metrics
        self._model: _Model | None = None
        self._session: Session | None = None
        self._checkpoints: tuple[Path, RunState] | None = None

    def parallelize(self, model: nn.Module, *, cut: Sequence[int] | None = None) -> nn.Module:
        """`model` with its gradients averaged as the plan says; parameters and buffers become the first region's.

        Returns `DistributedDataParallel` around it; the model itself, in FSDP2's shards, where the plan's layout has zero 2 or
        3 (its parameters are then the optimizer's to be given), and for a rank that runs alone; for a
        pipeline a `PipelinedModel` with this region's stages, whose parameters alone the optimizer is to be given.

        Args:
            model: For a pipeline a sequence of blocks, see `isthmus.runtime.pipeline.split`.
            cut: First block of each stage but the first of a pipeline; None balances them.

        Raises:
            InputError: A pipeline cannot be made of the model (the error says why); a parameter is not float32, or parameters
                are on several devices or on one that is neither the CPU nor a CUDA GPU; a normalisation keeps running
                statistics, which regions would each keep their own of (other buffers must not change in training); or a model
                was parallelized before.
            ReplicaMismatchError: After the hand-over a member holds other bits.
        """
        if self._model is not None:
            raise InputError("cluster.parallelize", "was called before", "one model a cluster")
        held_on = require_runnable(model.named_parameters(), "model")
        if held_on.type != "cpu" and self.environment.regions > 1 and self.strategy.kind in ("flat", "pipeline"):
            raise InputError(
                "model",
                f"is on {held_on}, and {self.strategy.kind!r} over regions runs on the CPU only",
                "plan hierarchical or local-steps, or keep the model on the CPU",
            )
        axis = self.strategy.region_group
        if axis is not None and (axis.backend == "nccl") != (held_on.type == "cuda"):
            raise InputError(
                "model",
                f"is on {held_on}, and the plan's strategy.region_group.backend is {axis.backend!r}",
                "nccl is for models on GPUs, gloo for those on the CPU",
            )
        if self.environment.regions > 1:
            refuse_running_statistics(model)
        self._make_equal(model)
        world = self._federation.world
        if self.strategy.kind == "pipeline":
            name = f"region {self.region} rank {self.environment.rank}"
            ranks = RegionRanks(world.region_group, self.environment.world_size, name)
            piped = PipelinedModel(model, self._federation.rail, self.strategy, ranks, cut)
            self._model = _Model(piped, piped, None)
            return piped
        if world.region_group is None:
            self._model = _Model(model, model, None)
            return model
        wrapped, hook = wrap(model, self._federation, self.strategy, self._zero, self._federation.rounds)
        self._model = _Model(model, wrapped, hook)
        return wrapped

    @contextmanager
    def sync(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        also: Sequence[Stateful] = (),
        checkpoints: Path | str | None = None,
    ) -> Generator[None]:
        """Keep the regions in step while training inside; at the end all members are proven equal.

        Args:
            model: What `parallelize` returned.
            optimizer: Its optimizer; one `step()` of it is one training step.
            also: Schedulers and the like, whose state measured off blocks must leave as it was and checkpoints hold.
            checkpoints: Folder to go on from, where it holds any, and for `checkpoint` to write to; see `runtime.checkpoint`.
                None takes the launcher's, ISTHMUS_CHECKPOINTS, where it is set.

        Raises:
            InputError: `model` is not what `parallelize` returned, or ISTHMUS_BLOCKS is malformed.
            PeerLostError: Another rank or region was lost.
            ReplicaMismatchError: Members do not hold equal parameters.
        """
        made = self._model
        if made is None or made.wrapped is not model:
            raise InputError(
                "cluster.sync",
                "was given a model that cluster.parallelize did not return",
                "model = cluster.parallelize(model) first",
            )
        inner = self.strategy.inner_steps if self.strategy.kind == "local-steps" else 1
        blocks = self.environment.blocks
        pace = Pace(lay_out(parse_schedule(blocks), inner) if blocks else None)
        local = None
        if self.strategy.kind == "local-steps" and self.environment.regions > 1:
            local = self._local_steps(made.given)
        session = self._session = Session(self._federation, made.hook, self._metrics, pace)
        elements = sum(parameter.numel() for parameter in made.given.parameters())
        if isinstance(made.given, PipelinedModel):
            elements = made.given.whole_elements
        trained = sum(parameter.numel() for parameter in made.given.parameters() if parameter.requires_grad)
        self._metrics.write(
            "start",
            region=self.region,
            rank=self.environment.rank,
            params=elements,
            gradient_bytes=4 * trained,
            strategy=self.strategy.name,
        )
        with self._named_failures():
            session.prepare(made.given, [optimizer, *also], local)
            checkpoints = checkpoints if checkpoints is not None else self.environment.checkpoints
            if checkpoints is not None:
                group = self._federation.world.region_group
                self._checkpoints = Path(checkpoints), RunState(session, made.wrapped, optimizer, also, group)
                self._checkpoints[1].resume(self._checkpoints[0])
            session.open()
            # However the backward pass was run, no optimizer applies the gradients of a failed exchange.
            handles = optimizer.register_step_pre_hook(self._begin_step), optimizer.register_step_post_hook(self._end_step)
            try:
                yield
                session.close()
            except PeerLostError as error:
                self._say_where_to_go_on(error)
                raise
            finally:
                for handle in handles:
                    handle.remove()

    def _say_where_to_go_on(self, error: BaseException) -> None:
        """A run that a lost region has ended goes on from its checkpoints, where it wrote any."""
        folder = self._checkpoints[0] if self._checkpoints is not None else None
        found = latest(folder, self.region) if folder is not None else None
        if found is not None:
            error.add_note(f"This region's newest checkpoint: step {found.step} in {folder}. Start all regions again to go on.")

    def _local_steps(self, model: nn.Module) -> LocalSync:
        federation, rounds = self._federation, self._federation.rounds
        if is_sharded(model):
            held = [nn.Parameter(tensor, requires_grad=False) for tensor in local_tensors(model.parameters())]  # the same memory
            return LocalSync(held, ShardLink(federation, self.strategy), self.strategy)
        if rounds is None:
            return LocalSync(model.parameters(), RailLink(federation, self.strategy), self.strategy)
        group = federation.world.comm_group
        link = RoundsLink(self.environment, group, federation.courier, rounds, self.strategy)
        return LocalSync(model.parameters(), link, self.strategy, rounds.rounds.survival.grace_s)

    def batches(
        self,
        dataset: Dataset[Any],
        batch_size: int = 8,
        steps: int | None = None,
        seed: int = 0,
        balance_at: Sequence[int] = (),
    ) -> Iterator[Any]:
        """Batches of this rank, dealt without overlap over all ranks of all regions; equal for equal seeds.

        In a pipeline they are dealt over the ranks of a region, and rank i of every region has the same.
        Ends after `steps` training steps, with the measurement schedule where there is one, or after one epoch.

        Args:
            dataset: Of map style.
            batch_size: Samples a rank and step; with `balance_at` the mean over a region's ranks.
            steps: When to end.
            seed: Of the order.
            balance_at: After these numbers of training steps the region's batch is dealt anew over its ranks, by the speed
                each has shown since the time before (see `runtime.balance`); `step` weights the gradients to match.

        Raises:
            InputError: Outside `sync`, the dataset is too small for one step, or `balance_at` in a pipeline.
        """
        session = self._session_or_refuse("cluster.batches")
        rank, ranks = self.rank, self.ranks
        if self.strategy.kind == "pipeline":
            if balance_at:
                raise InputError("cluster.batches", "balance_at: a pipeline's ranks all take batches of one size", "leave it out")
            rank, ranks = self.environment.rank, self.environment.world_size
        source = ShardedBatches(dataset, batch_size=batch_size, rank=rank, ranks=ranks, seed=seed)
        balance = session.balanced(batch_size, balance_at)
        region_first = (rank - self.environment.rank) * batch_size
        while not session.pace.finished:
            if session.pace.blocks is None:
                if steps is not None and session.pace.trained >= steps:
                    return
                if steps is None and session.cursor >= source.steps_per_epoch:
                    return
            batch = source.batch(session.cursor, (region_first + balance.first, balance.own))
            session.cursor += 1
            yield batch

    def step(self, model: nn.Module, batch: Any, loss_fn: Callable[[Any, Any], torch.Tensor]) -> torch.Tensor:
        """Forward and backward of `batch`, a pair (inputs, targets); returns this rank's loss, detached.

        Tokens of a step are the elements of `targets`. Gradients are then the mean over all ranks that take part.

        Raises:
            InputError: Outside `sync`, or `batch` is no pair.
            PeerLostError: Another rank or region was lost.
        """
        session = self._session_or_refuse("cluster.step")
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InputError(
                "cluster.step",
                f"was given a batch of type {type(batch).__name__}, expected (inputs, targets)",
            )
        inputs, targets = _on(next(model.parameters()).device, batch)
        if isinstance(model, PipelinedModel):
            with self._named_failures():
                mean_loss = model.step(inputs, targets, loss_fn)
            # Tokens are those of a whole pipeline, not of each of its stages: its last one counts them.
            session.note_pipeline(mean_loss, targets.numel() if model.last else 0)
            return torch.tensor(mean_loss)
        with self._named_failures():
            hook = self._model.hook if self._model else None
            if hook is not None and hook.unsettled:
                settle(model, hook, lambda: loss_fn(model(inputs), targets))
            if hook is not None:
                hook.tokens += session.region_tokens(targets.numel())
            weight = session.begin_part(targets.device)
            loss = loss_fn(model(inputs), targets)
            begun_s = time.perf_counter()
            (loss if weight == 1.0 else loss * weight).backward()
            ended_s = time.perf_counter()
            backward_s, waited_s = ended_s - begun_s, 0.0
            if hook is not None and hook.enqueued_s > begun_s:
                backward_s, waited_s = hook.enqueued_s - begun_s, ended_s - hook.enqueued_s
            session.end_part()
            if hook is not None and hook.enqueued_s > begun_s:
                if hook.failure is not None:
                    raise hook.failure
                if hook.rejoined is not None:
                    model.zero_grad(set_to_none=True)  # the optimizer leaves parameters without gradients as they are
            waited_s += session.average_gradients(targets.numel())
        session.note(float(loss.detach()), targets.numel(), backward_s, waited_s)
        return loss.detach()

    def clip_gradients(self, model: nn.Module, max_norm: float) -> float:
        """Scale all gradients so that their norm over the whole model is at most `max_norm`; the norm they had.

        The same bits on all ranks of all regions; to be called by all of them. Over all stages of a pipeline.
        """
        if isinstance(model, PipelinedModel):
            with self._named_failures():
                return model.clip_gradients(max_norm)
        return clip_grad_norm_(model, max_norm)

    def accumulating(self, model: nn.Module) -> AbstractContextManager[None]:
        """Inside, `step` adds gradients up; the first `step` after it exchanges the sum between ranks and regions."""
        return accumulating(model)

    def checkpoint(self, keep: int = 3) -> bool:
        """Write a checkpoint of the step that has ended; to be called by all ranks of the region after the same step.

        Going on from it is bit for bit the same run. Where it cannot be written (a full disk) stderr and the metrics say so,
        earlier ones stand, and training may go on.

        Args:
            keep: How many of the region's checkpoints stay.

        Raises:
            InputError: `sync` was not given a folder.
        """
        session = self._session_or_refuse("cluster.checkpoint")
        if self._checkpoints is None:
            raise InputError("cluster.checkpoint", "has nowhere to write", "cluster.sync(..., checkpoints=FOLDER)")
        folder, state = self._checkpoints
        begun_s, failure = time.perf_counter(), None
        with self._named_failures(), session.clock.stopped():
            try:
                state.save(folder, keep)
            except CheckpointError as error:
                failure = str(error)
                print(f"isthmus {self.region}: {error}", file=sys.stderr, flush=True)
        seconds = time.perf_counter() - begun_s
        self._metrics.write("checkpoint", step=session.pace.trained, seconds=seconds, failure=failure)
        return failure is None

    def evaluation(self) -> AbstractContextManager[None]:
        """Inside, evaluate the model: no gradients, no step time; under local steps the parameters all regions agreed on."""
        return self._session_or_refuse("cluster.evaluation").evaluation()

    def record_evaluation(self, loss: float) -> None:
        """Write an eval line to the metrics: held-out `loss` after the tokens of all ranks so far."""
        session = self._session_or_refuse("cluster.record_evaluation")
        ranks = self.ranks
        if isinstance(session.model, PipelinedModel):
            if not session.model.last:
                return  # it counts the tokens
            ranks = self.environment.world_size
        self._metrics.write("eval", step=session.pace.taken, tokens=session.trained_tokens * ranks, loss=loss)

    @property
    def trained_steps(self) -> int:
        """Training steps so far; those of off blocks do not count."""
        return self._session_or_refuse("cluster.trained_steps").pace.trained

    @property
    def mode(self) -> Mode:
        """Mode of the step to come."""
        return self._session_or_refuse("cluster.mode").pace.mode

    def _session_or_refuse(self, what: str) -> Session:
        if self._session is None:
            raise InputError(what, "was used outside cluster.sync", "with cluster.sync(model, optimizer): ...")
        return self._session

    def _begin_step(self, *_: Any) -> None:
        assert self._session is not None
        with self._named_failures():
            self._session.raise_failure()

    def _end_step(self, *_: Any) -> None:
        assert self._session is not None
        with self._named_failures():
            self._session.end_step()

    def _make_equal(self, model: nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        if not tensors:
            raise InputError("model", "has no parameters")
        held = [tensor.detach().cpu().contiguous() for tensor in tensors]
        together = torch.frombuffer(bytearray(b"".join(map(bytes_of, held))), dtype=torch.uint8)
        federation = self._federation

        def job() -> None:
            federation.adopt_first(together)
            federation.prove(fingerprint([together]), "the initial parameters", now=True)

        with self._named_failures():
            federation.submit(job).result()
        offset = 0
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(together[offset : offset + tensor.nbytes].clone().view(tensor.dtype).view_as(tensor))
                offset += tensor.nbytes

    @contextmanager
    def _named_failures(self) -> Generator[None]:
        """Turn what a dead peer looks like from below into an error that names it and this rank."""
        try:
            yield
        except BaseException as error:
            cause = self._federation.courier.failure
            hook = self._model.hook if self._model else None
            cause = cause or (hook.failure if hook else None)
            if cause is None or (error is not cause and error.__cause__ is cause):
                raise
            step = self._session.pace.taken if self._session else 0
            raise explain_failure(cause, f"region {self.region} rank {self.environment.rank}, step {step}") from error
