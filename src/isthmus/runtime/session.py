"""One training run: steps counted and timed, blocks switched, regions kept in step. `cluster.sync` opens it."""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from isthmus.runtime.balance import Balance
from isthmus.runtime.blocks import Pace
from isthmus.runtime.every_step.shards import is_sharded, region_fingerprint, reshard
from isthmus.runtime.every_step.state import EveryStepKeeper
from isthmus.runtime.every_step.step import StepExchange
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.federation.states import Rejoined
from isthmus.runtime.local_steps.sync import Arrival, LocalSync
from isthmus.runtime.metrics import Metrics, StepClock
from isthmus.runtime.pipeline.model import PipelinedModel
from isthmus.runtime.snapshot import Snapshot, Stateful, restore, take
from isthmus.runtime.surviving import LocalKeeper, WatchedRounds
from isthmus.runtime.wan.frames import PeerLostError
from isthmus.runtime.world import gather_numbers

__all__ = ["Session", "explain_failure"]

# How often every-step strategies prove their replicas equal; local steps do at every round.
PROVE_EVERY_STEPS = 50


class Session:
    """The state between two optimizer steps. All members make the same calls in the same order.

    Attributes:
        pace: Steps and blocks.
        cursor: Batches read so far that count; `batches` moves it.
        settled_cursor: The same when the last step ended: those of the step under way, if any, are not among them.
        trained_tokens: This rank's tokens of the steps that count.
        balance: How the region's batch is dealt to its ranks, once `batches` has been called.
        kept_parts: The same from a checkpoint, for `balanced`.
    """

    def __init__(self, federation: Federation, hook: StepExchange | None, metrics: Metrics, pace: Pace) -> None:
        self.federation, self.hook, self.metrics, self.pace = federation, hook, metrics, pace
        self.local: LocalSync | None = None
        self.pipeline: PipelinedModel | None = None
        self.model: nn.Module = nn.Module()
        self.stateful: list[Stateful] = []
        self.cursor, self.settled_cursor, self.trained_tokens = 0, 0, 0
        self.balance: Balance | None = None
        self.kept_parts: tuple[int, ...] | None = None
        self.clock = StepClock()
        self._snapshot: tuple[Snapshot, int] | None = None
        self._losses: list[float] = []
        self._tokens = 0
        self._backward_s = 0.0
        self._bucket_bytes: tuple[int, ...] = ()
        self._step = 0
        self._waited_s = 0.0
        self._proved_bytes = 0
        self._local_keeper: LocalKeeper | None = None
        self._batches_a_step = 1
        self._noted: tuple[Rejoined | None, int] = (None, 0)
        self.away = False
        self._spans: list[tuple[str, str, float, float]] = []
        self._step_begun_s = time.perf_counter()

    def prepare(self, model: nn.Module, stateful: Sequence[Stateful], local: LocalSync | None) -> None:
        """Take the optimizer and what else a step changes; local steps where there are any."""
        self.model, self.stateful, self.local = model, list(stateful), local
        self.pipeline = model if isinstance(model, PipelinedModel) else None
        if local is not None:
            local.on_arrival = self._write_arrival

    def open(self) -> None:
        """Begin: all members meet, and the first step starts now."""
        if self.federation.rounds is None:
            self.federation.submit(self.federation.meet).result()
        else:
            self._enter(self.federation.rounds)
        self._switch()
        self.clock.restart()
        self._step_begun_s = time.perf_counter()

    def _enter(self, rounds: WatchedRounds) -> None:
        """Find this region's place among the others; where they hold a state already, go on from it."""
        if self.local is not None:
            self._local_keeper = LocalKeeper(self.local, self.batches_a_step)
            rounds.rounds.keeper = self._local_keeper
        elif self.hook is not None:
            optimizer, *also = self.stateful
            assert isinstance(optimizer, torch.optim.Optimizer), "the optimizer comes first"
            rounds.rounds.keeper = EveryStepKeeper(self.model, optimizer, self.hook, tuple(also), (self.place, self.go_to))
        rejoined = self.federation.submit(rounds.open).result()
        if self.local is not None:
            self.local.settle()
            self._noted = self.local.rejoined, self.local.discarded_tokens
        if rejoined is not None and rejoined.why not in ("start", "equal"):
            self._note_rejoined(rejoined, 0)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Inside, steps of the optimizer are not steps of the run."""
        self.away = True
        try:
            yield
        finally:
            self.away = False

    def place(self) -> dict[str, Any]:
        """Where in the run this rank is after the last step that has ended, as JSON: a newcomer takes part in the next."""
        return {"trained": self.pace.trained, "cursor": self.settled_cursor}

    def batches_a_step(self) -> int:
        """More than one where gradients are accumulated; as of the last step, whatever thread asks."""
        return self._batches_a_step

    def go_to(self, place: Mapping[str, Any]) -> None:
        """Go on from another region's place."""
        self.pace.trained = self.pace.taken = int(place["trained"])
        self.cursor = self.settled_cursor = int(place["cursor"])

    def _note_rejoined(self, rejoined: Rejoined, window_tokens: int) -> None:
        """This region took over the others' state: go to their place, and write down what that cost it."""
        keeper = self._local_keeper
        if self.local is not None and keeper is not None and keeper.batches_a_step is not None:
            steps = self.local.scheduled_steps
            self.go_to({"trained": steps, "cursor": keeper.batches_a_step * steps})
        self.metrics.write(
            "discarded",
            tokens=rejoined.tokens_discarded + window_tokens,
            rounds=rejoined.rounds_discarded,
            why=rejoined.why,
            fetched_bytes=rejoined.fetched_bytes,
        )

    def balanced(self, batch_size: int, at: Sequence[int]) -> Balance:
        """The parts of the region's batch from here on: those of the checkpoint, where there was one, or equal ones."""
        environment = self.federation.environment
        parts = (batch_size,) * environment.world_size
        if self.kept_parts is not None and sum(self.kept_parts) == sum(parts):
            parts = self.kept_parts
        self.balance = Balance(environment.rank, parts, frozenset(at))
        if self.hook is not None:
            self.hook.ended = self.balance.stop
        return self.balance

    def begin_part(self, device: torch.device) -> float:
        """This rank begins its part of a step on `device`: the weight of its mean loss."""
        if self.balance is None:
            return 1.0
        self.balance.start(device, self.pace.trained)
        return self.balance.weight

    def end_part(self) -> None:
        """The backward pass has ended; where its gradients were handed over, its part ended with the last of them."""
        if self.balance is not None:
            self.balance.stop()

    def _rebalance(self) -> None:
        """Where this step is one of those named: measured speeds of the region's ranks become new parts."""
        balance, group = self.balance, self.federation.world.comm_group
        if balance is None or self.pace.trained not in balance.at:
            return
        mine, size = balance.nanoseconds(), self.federation.environment.world_size
        found = [mine]
        if group is not None:
            found = self.federation.submit(lambda: gather_numbers(group, mine, size)).result()
        if balance.choose(found):
            self.metrics.write("parts", step=self.pace.trained, samples=list(balance.parts), ns_per_sample=found)

    def note(self, loss: float, tokens: int, backward_s: float, waited_s: float) -> None:
        """Record one forward and backward pass of the step under way; the wait for gradients is apart from the pass."""
        self._losses.append(loss)
        self._tokens += tokens
        self._backward_s += backward_s
        self._waited_s += waited_s
        now_s = time.perf_counter()
        gradients_s = now_s - waited_s
        self._spans.append(("training", "backward", gradients_s - backward_s, gradients_s))
        if waited_s:
            self._spans.append(("training", "waiting for gradients", gradients_s, now_s))

    def average_gradients(self, tokens: int) -> float:
        """Local steps that warm up: make the gradients of `tokens` tokens the mean over regions; the seconds it took."""
        if self.local is None or self.pace.mode == "off":
            return 0.0
        before_s = self.local.waited_s
        self.local.average_gradients(self.region_tokens(tokens))
        return self.local.waited_s - before_s

    def note_pipeline(self, loss: float, tokens: int) -> None:
        """Record the step that the pipeline has just run: its passes and its waits for other regions."""
        assert self.pipeline is not None
        timing = self.pipeline.timing
        self._losses.append(loss)
        self._tokens += tokens
        self._backward_s += sum(timing.seconds(backward=True))
        self._waited_s += timing.waited_s
        for op, begun_s, ended_s in timing.passes:
            name = f"{'backward' if op.backward else 'forward'}, stage {op.chunk}, micro-batch {op.micro}"
            self._spans.append(("training", name, begun_s, ended_s))

    def raise_failure(self) -> None:
        """Raise the first failure of any exchange so far: the gradients at hand are then not the mean over the members."""
        if self.hook is not None and self.hook.failure is not None:
            raise self.hook.failure
        if self.pipeline is not None and self.pipeline.failure is not None:
            raise self.pipeline.failure
        self.federation.courier.raise_failure()

    def end_step(self) -> None:
        """The optimizer has stepped: exchange what is due, write the step's line, and change blocks when one ends."""
        if self.away:
            return
        self.raise_failure()
        if self.hook is not None and self.hook.rejoined is not None:
            self._drop_step(self.hook.rejoined)
            return
        mode, block, tokens = self.pace.mode, self.pace.position, self._tokens
        counts, ending = mode != "off", self.pace.ending
        self._step, rejoined = self.pace.taken + 1, None
        if counts:
            rejoined = self._exchange(tokens, ending)
            self.trained_tokens += tokens
        self._trace_step()
        self.pace.advance()
        self.settled_cursor = self.cursor
        self._batches_a_step = max(1, round(self.cursor / max(1, self.pace.trained)))
        if counts:
            self._rebalance()
        if counts and self.local is None and self.pace.trained % PROVE_EVERY_STEPS == 0:
            self._prove()
        self.metrics.write(
            "step",
            step=self.pace.taken,
            block=block,
            mode=mode,
            seconds=self.clock.lap(),
            loss=sum(self._losses) / max(1, len(self._losses)),
            tokens=tokens,
            backward_s=self._backward_s,
            exposed_s=self._waited_s,
            wan_bytes=self._sent_bytes(),
        )
        self._losses, self._tokens, self._backward_s, self._waited_s = [], 0, 0.0, 0.0
        if rejoined is not None:
            self._note_rejoined(*rejoined)
        self._note_buckets()
        if ending:
            with self.clock.stopped():
                self._change_block(mode)

    def _drop_step(self, rejoined: Rejoined) -> None:
        """The step was not this region's: its gradients were taken away, and the others' state is in place already."""
        self._note_rejoined(rejoined, self.region_tokens(self._tokens))
        self._losses, self._tokens, self._backward_s, self._waited_s = [], 0, 0.0, 0.0
        self._spans.clear()
        self.clock.lap()

    def _trace_step(self) -> None:
        """Write the step's spans; a step with gradient accumulation shows its last backward pass."""
        now_s = time.perf_counter()
        self.metrics.note_span("steps", f"step {self._step}", self._step_begun_s, now_s, mode=self.pace.mode)
        for passage in self.hook.timeline if self.hook is not None else ():
            self._spans.append(("between regions", f"gradients {passage.number}", passage.begun_s, passage.ended_s))
        for track, name, begun_s, ended_s in self._spans:
            self.metrics.note_span(track, name, begun_s, ended_s)
        self._step_begun_s, self._spans = now_s, []

    def _note_buckets(self) -> None:
        """Write the gradient buckets when they are new: DDP fills them anew after the first step."""
        if self.hook is not None and self.hook.bucket_bytes != self._bucket_bytes:
            self._bucket_bytes = self.hook.bucket_bytes
            self.metrics.write("buckets", bytes=list(self._bucket_bytes))

    def close(self) -> str:
        """End in good order: flush, prove all members equal, and return the hash of the parameters."""
        if self.local is not None:
            self.local.flush()
        digest = self._fingerprint()
        self.federation.submit(lambda: self._prove_equal(digest, "the final parameters", now=True)).result()
        self.metrics.write("end", hash=f"{digest:016x}", steps=self.pace.taken)
        return f"{digest:016x}"

    @contextmanager
    def evaluation(self) -> Generator[None]:
        """No gradients, evaluation mode, the clock stopped; under local steps, the outer parameters."""
        training = self.model.training
        with self.clock.stopped(), torch.no_grad():
            self.model.eval()
            try:
                with nullcontext() if self.local is None else self.local.outer_parameters():
                    yield
                    reshard(self.model)  # before the region's own parameters come back
            finally:
                self.model.train(training)

    def _exchange(self, tokens: int, ending: bool) -> tuple[Rejoined, int] | None:
        """Local steps: count the step; where the others' state was taken over, how, and the tokens that this threw away."""
        if self.local is None:
            return None
        before, begun_s = self.local.waited_s, time.perf_counter()
        self.local.after_step(self.region_tokens(tokens))
        if ending:
            self.local.flush()
        self._waited_s += self.local.waited_s - before
        if self.local.waited_s > before:
            self._spans.append(("training", "waiting for the outer sync", begun_s, time.perf_counter()))
        return self._taken_over(self.local)

    def await_rounds(self) -> None:
        """Before a checkpoint, whose parts must be of one place: where a round under way turns out void, go to the others."""
        if self.local is None:
            return
        self.local.await_rounds()
        rejoined = self._taken_over(self.local)
        if rejoined is not None:
            self._note_rejoined(*rejoined)

    def _taken_over(self, local: LocalSync) -> tuple[Rejoined, int] | None:
        """How the others' state was taken over since this was asked last, and the tokens that this threw away."""
        # The communication thread may have taken the state over at any time: it is noted once this thread has gone on from it.
        rejoined, noted = local.rejoined, self._noted
        if rejoined is None or rejoined is noted[0] or local.lost_place():
            return None
        self._noted = rejoined, local.discarded_tokens
        return rejoined, local.discarded_tokens - noted[1]

    def region_tokens(self, tokens: int) -> int:
        """Rounds count the tokens of a region, of which `tokens` are this rank's part; otherwise each rank counts its own."""
        if self.federation.rounds is None:
            return tokens
        if self.balance is not None:
            return self.balance.region_tokens(tokens)
        return tokens * self.federation.environment.world_size

    def _change_block(self, left: str) -> None:
        if left == "off":
            assert self._snapshot is not None, "an off block began without a snapshot"
            snapshot, self.cursor = self._snapshot
            self.settled_cursor = self.cursor
            restore(snapshot, self.model, self.stateful)
            self._snapshot = None
        if not self.pace.finished and self.pace.mode == "off":
            self._snapshot = (take(self.model, self.stateful), self.cursor)
        # Blocks begin together, so that a wait for the other regions' off block is charged to none.
        self.federation.submit(self.federation.meet).result()
        self._switch()

    def _switch(self) -> None:
        if self.hook is not None:
            self.hook.crossing = self.pace.mode != "off"
        if self.pipeline is not None:
            self.pipeline.crossing = self.pace.mode != "off"

    def _sent_bytes(self) -> int:
        return self.federation.sent_bytes() + (self.hook.flat_bytes if self.hook is not None else 0)

    def _prove(self) -> None:
        begun, sent = time.perf_counter(), self._sent_bytes()
        digest, what = self._fingerprint(), f"the parameters after step {self.pace.taken}"
        self.federation.submit(lambda: self._prove_equal(digest, what))
        self.metrics.write(
            "sync",
            step=self.pace.taken,
            seconds=time.perf_counter() - begun,
            bytes=sent - self._proved_bytes,
            hash=f"{digest:016x}",
        )
        self._proved_bytes = sent

    def _fingerprint(self) -> int:
        """Of the region's whole model; one that lies in shards is put together on the communication thread."""
        group = self.federation.world.comm_group
        if not is_sharded(self.model):
            return region_fingerprint(self.model.parameters(), None, sharded=False)
        return self.federation.submit(lambda: region_fingerprint(self.model.parameters(), group, sharded=True)).result()

    def _prove_equal(self, digest: int, what: str, *, now: bool = False) -> None:
        """Of all members; in a pipeline of the ranks of one region, which hold the same stages."""
        if self.pipeline is None:
            self.federation.prove(digest, what, now=now)
        else:
            self.federation.prove_region(digest, what)

    def _write_arrival(self, arrival: Arrival) -> None:
        now_s = time.perf_counter()
        self.metrics.note_span("between regions", "outer sync", now_s - arrival.seconds, now_s, bytes=arrival.sent_bytes)
        self.metrics.write(
            "sync",
            step=self._step,
            seconds=arrival.seconds,
            bytes=arrival.sent_bytes,
            hash=f"{arrival.hash:016x}",
        )


def explain_failure(error: BaseException, where: str) -> BaseException:
    """The error to show for one of the communication thread's: a lost peer by name, anything else as it is."""
    # Gloo reports a dead or silent peer as a bare RuntimeError that begins with the place in its source.
    gloo = type(error) is RuntimeError and "gloo" in str(error).lower()
    if gloo or isinstance(error, torch.distributed.DistError):
        return PeerLostError(f"{where}: the exchange with another rank failed: {error}")
    return error
