"""The exchange of one step's gradients: parts begin while the backward pass goes on, all of them end together.

A part is one vector (a bucket of DDP, a shard of FSDP). The training thread hands parts over; the communication thread
reduces each inside the region, sends it on, and after the last one takes in what the other regions sent. With `rounds`, a
step is one round: it counts where every region of the generation holds the same result, and otherwise all its parts are
sent again, to whoever is left, from the sums that the reducer kept. Nobody sees the gradients of a step that is not
committed, and a step that had to be repeated has the bits of one that did not, as long as the regions are the same.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
import xxhash

from isthmus.plan import Strategy
from isthmus.runtime.codecs.lowrank import Matrix
from isthmus.runtime.collectives.gather import gather_on_all
from isthmus.runtime.collectives.groups import GroupReducer
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, Rails
from isthmus.runtime.device import Mark, finish, mark, wait_for
from isthmus.runtime.federation.agreement import CONTROL_TAGS, Federation
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.states import Attempt, AttemptWork, Committed, Rejoined
from isthmus.runtime.hashing import ReplicaMismatchError, fingerprint, require_equal
from isthmus.runtime.wan.frames import RailError, message_tag
from isthmus.runtime.wan.rail import Rail
from isthmus.runtime.world import gather_numbers

__all__ = ["Part", "Passage", "RoundRunner", "StepExchange", "rails_of_members"]

_LAYOUTS = CONTROL_TAGS[3]


class RoundRunner(Protocol):
    """What a step needs of `federation.rounds.Rounds`: the present generation and its rails, and a way to end a round."""

    @property
    def generation(self) -> Generation: ...  # noqa: D102

    @property
    def rails(self) -> Mapping[int, Rail]: ...  # noqa: D102

    def run(self, attempt: AttemptWork, tokens: int, commit: Callable[[Attempt], None]) -> Committed: ...  # noqa: D102


@dataclass(slots=True)
class Part:
    """One vector of a step.

    Attributes:
        number: Among the parts of a step, the same in every step and region.
        flat: float32, shape (n,), contiguous, on the CPU or a GPU; replaced by the mean over all ranks that take part.
        contents: What it is made of, equal in all regions (they decide by themselves what a part holds).
        done: Called when `flat` is final, or never will be.
        prepare: On the communication thread, before a part crosses: the number of its first element for error feedback.
        matrices: Of the parameters in it, for PowerSGD; numbered from its beginning.
        ready: The point on a GPU's stream from which `flat` holds what is to be exchanged.
    """

    number: int
    flat: torch.Tensor
    contents: tuple[int, ...]
    done: Callable[[], None]
    prepare: Callable[[], int]
    matrices: tuple[Matrix, ...] = ()
    under_way: Any = None
    begun_s: float = 0.0
    ready: Mark = None


@dataclass(frozen=True, slots=True)
class Passage:
    """When a part was under way, from its reduction inside the region to its result; `time.perf_counter()`."""

    number: int
    begun_s: float
    ended_s: float


def rails_of_members(federation: Federation) -> Callable[[Mapping[int, Rail], tuple[str, ...]], Rails]:
    """The reducer's rails from this rank's open ones and the names of the regions that take part."""
    members = federation.environment.members
    assert members is not None, "rails without members"

    def rails_of(carried: Mapping[int, Rail], regions: tuple[str, ...]) -> Rails:
        taking_part = tuple(region.ranks for region in members.regions if region.name in regions)
        return Rails(carried, members.rails, taking_part)

    return rails_of


@dataclass(slots=True, kw_only=True)
class StepExchange:
    """All exchanges of all steps, and what the session and the trace want to know of them.

    Attributes:
        strategy, federation: The plan's, and all members.
        reducer: Over rails, or torch's groups alone; None where gradients do not pass the communication thread.
        rounds: Who runs a step as a round; None: a lost region ends the run. Then the reducer is one with `retry`.
        rails_of: With `rounds`: the reducer's rails in a generation.
        sharded: Ranks of a region hold different parts of the result (FSDP), rather than all of it.
        crossing: False keeps gradients inside the region (off blocks).
        tokens: The whole region's of the step under way, for the round that ends it; taken when it ends.
        unsettled: Regions' parts are not yet what they will be in every later step, see `wrap.settle`.
        enqueued_s: `time.perf_counter()` when the last part was handed over: the backward pass proper ends here.
        ended: Called on the thread that hands over the last part.
        failure: The first error of any exchange.
        rejoined: The last step was not this region's: it took over the others' state, and the gradients at hand mean nothing.
        flat_bytes: Bytes this rank has sent to another region through torch's own groups, by formula.
        bucket_bytes: Sizes of the parts of the last backward pass, in the order they became ready.
        timeline: Of the parts of the last step.
    """

    strategy: Strategy
    federation: Federation
    reducer: HierarchicalReducer | GroupReducer | None = None
    rounds: RoundRunner | None = None
    rails_of: Callable[[Mapping[int, Rail], tuple[str, ...]], Rails] | None = None
    sharded: bool = False
    crossing: bool = True
    tokens: int = 0
    unsettled: bool = False
    enqueued_s: float = 0.0
    ended: Callable[[], None] | None = None
    failure: BaseException | None = None
    rejoined: Rejoined | None = None
    flat_bytes: int = 0
    bucket_bytes: tuple[int, ...] = ()
    timeline: tuple[Passage, ...] = ()
    _filling: list[int] = field(default_factory=list[int])
    _parts: list[Part] = field(default_factory=list[Part])
    _passages: list[Passage] = field(default_factory=list[Passage])
    _agreed: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    _generation: int = -1

    def hand_over(self, part: Part) -> "Future[None]":
        """From the training thread: begin `part` as soon as those before it have begun."""
        self._filling.append(part.flat.nbytes)
        part.ready = mark(part.flat)
        return self._submit(lambda: self._begin(part), part.done)

    def conclude(self) -> "Future[None]":
        """From the training thread, after the last part of a backward pass: end all of them."""
        self.note_end()
        tokens, self.tokens = self.tokens, 0
        return self._submit(lambda: self._end(tokens), lambda: None)

    def epochs(self) -> dict[int, int]:
        """How often each part has crossed in the steps before the one under way, which a newcomer takes part in; on the
        communication thread."""
        assert self.reducer is not None
        counts: dict[int, int] = dict(self.reducer.state_dict()["epochs"])
        for part in self._parts:
            if part.under_way is not None and self.reducer.between_regions:
                counts[part.number] -= 1
        return counts

    def note_end(self) -> None:
        """The backward pass has handed over its last part."""
        self.enqueued_s = time.perf_counter()
        if self.ended is not None:
            self.ended()
        self.bucket_bytes, self._filling = tuple(self._filling), []

    def note_part(self, size_bytes: int) -> None:
        """A part that goes its own way was handed over."""
        self._filling.append(size_bytes)

    def _submit(self, work: Callable[[], None], done: Callable[[], None]) -> "Future[None]":
        def job() -> None:
            try:
                work()
            except BaseException as error:
                self._fail(error)
                raise

        def refused(future: Any) -> None:
            # After an earlier failure the job never ran.
            if future.exception() is not None:
                self.failure = self.failure or future.exception()
                done()

        future = self.federation.submit(job)
        future.add_done_callback(refused)
        return future

    def _fail(self, error: BaseException) -> None:
        """Keep the first error and let go of whoever waits: the step raises next."""
        self.failure = self.failure or error
        parts, self._parts = self._parts, []
        for part in parts:
            part.done()

    def _begin(self, part: Part) -> None:
        assert self.reducer is not None
        part.begun_s = time.perf_counter()
        if not self._parts:
            self.reducer.between_regions = self.crossing
            if self.rounds is not None and self.crossing:
                self._enter(self.rounds.generation, self.rounds.rails)
        self._parts.append(part)
        first = None
        if self.crossing:
            if self.rounds is None and self._agreed.get(part.number) != part.contents:
                self._agree(part)
            first = part.prepare()
        wait_for(part.ready)
        if isinstance(self.reducer, GroupReducer):
            part.under_way = self.reducer.begin(part.flat)
            self.flat_bytes += part.under_way.sent_bytes
        else:
            part.under_way = self.reducer.begin(part.flat, part.number, first, matrices=part.matrices)

    def _enter(self, generation: Generation, rails: Mapping[int, Rail]) -> None:
        assert isinstance(self.reducer, HierarchicalReducer), "rounds without rails"
        assert self.rails_of is not None, "rounds without a way to find the reducer's rails"
        self._generation = generation.number
        self.reducer.renew(self.rails_of(rails, generation.regions))

    def _end(self, tokens: int) -> None:
        assert self.reducer is not None
        self.rejoined = None
        if self.rounds is None or not self.crossing:
            self._advance()
            while self._parts:
                self._finish(self._parts[0])
                part = self._parts.pop(0)
                assert part.under_way is not None
                self.reducer.commit([part.under_way])
                part.done()
        else:
            self.rejoined = self.rounds.run(self._attempt, tokens, self._commit).rejoined
            parts, self._parts = self._parts, []
            for part in parts:
                part.done()
        self.timeline, self._passages = tuple(self._passages), []

    def _attempt(self, generation: Generation, rails: Mapping[int, Rail]) -> Attempt:
        """The whole step, over `rails`. All calls to the region's group are made even when a rail fails."""
        assert isinstance(self.reducer, HierarchicalReducer), "rounds without rails"
        self._passages = []
        if generation.number != self._generation:
            self._enter(generation, rails)
            for part in self._parts:
                assert part.under_way is not None
                self.reducer.again(part.under_way)
        error = self._compare_layouts(rails)
        self._advance()
        for part in self._parts:
            try:
                self._finish(part)
            except RailError as failed:
                error = error or failed
        digest = self._region_digest()
        if error is not None:
            raise error
        return Attempt(digest)

    def _commit(self, _: Attempt) -> None:
        assert self.reducer is not None
        self.reducer.commit([part.under_way for part in self._parts if part.under_way is not None])

    def _advance(self) -> None:
        assert self.reducer is not None
        if self.crossing:
            self.reducer.advance([part.under_way for part in self._parts if part.under_way is not None])

    def _finish(self, part: Part) -> None:
        assert self.reducer is not None
        assert part.under_way is not None
        self.reducer.finish(part.under_way)
        finish(part.flat.device)
        self._passages.append(Passage(part.number, part.begun_s, time.perf_counter()))

    def _region_digest(self) -> int:
        """Of the whole result; of all ranks' parts where they hold different ones.

        A GPU's result is not copied back for this: each rank takes what it brought over the rails, and they put it together.
        """
        group, size = self.federation.world.comm_group, self.federation.environment.world_size
        on_device = any(part.flat.device.type != "cpu" for part in self._parts)
        if on_device and not self.sharded:
            return self._rails_digest(group, size)
        digest = fingerprint(part.flat for part in self._parts)
        if not self.sharded or group is None or size == 1:
            return digest
        return xxhash.xxh3_64_intdigest(repr(gather_numbers(group, digest, size)).encode())

    def _rails_digest(self, group: dist.ProcessGroup | None, size: int) -> int:
        """Of all rails' shards in rail order, which does not depend on how many ranks a region has."""
        held: dict[int, list[torch.Tensor]] = {}
        for part in self._parts:
            assert part.under_way is not None
            for segment in part.under_way.segments:
                for shard in segment.shards:
                    held.setdefault(shard.rail, []).append(shard.out)
        assert isinstance(self.reducer, HierarchicalReducer), "rounds without rails"
        rails, rank = self.reducer.total, self.federation.environment.rank
        found: list[int] = []
        for first in range(0, rails, size):  # rank r carries rails r, r + size, ...; every rank joins in every gather
            mine = fingerprint(held.get(first + rank, []))
            found += [mine] if group is None or size == 1 else gather_numbers(group, mine, size)
        return xxhash.xxh3_64_intdigest(repr(found[:rails]).encode())

    def _compare_layouts(self, rails: Mapping[int, Rail]) -> RailError | None:
        """Regions fill parts by themselves; equal sizes in another order would go unnoticed.

        Raises:
            ReplicaMismatchError: They hold other things: no repetition will help.
        """
        if not rails or not self._parts:
            return None
        digest = xxhash.xxh3_64_intdigest(repr([(part.number, part.contents) for part in self._parts]).encode())
        under_way = self._parts[0].under_way
        assert under_way is not None
        mine = torch.tensor([digest - (1 << 63)], dtype=torch.int64)
        try:
            # On all rails: of unequal regions, a rank here may carry two whose peers carry one each and wait for its word.
            found = gather_on_all(rails.values(), mine, message_tag(_LAYOUTS, under_way.epoch, 0, 0))
        except RailError as error:
            return error
        for entries in found:
            _require_one_layout([int(entry.item()) for entry in entries], "the step's gradients hold")
        return None

    def _agree(self, part: Part) -> None:
        digest = xxhash.xxh3_64_intdigest(repr((part.number, part.contents)).encode())
        _require_one_layout(self.federation.numbers(digest), f"gradient bucket {part.number} holds")
        self._agreed[part.number] = part.contents


def _require_one_layout(found: list[int], what: str) -> None:
    try:
        require_equal({str(number): value for number, value in enumerate(found)}, what)
    except ReplicaMismatchError:
        listed = [f"{value & (2**64 - 1):016x}" for value in found]
        raise ReplicaMismatchError(
            f"{what} other parameters in other regions ({listed}): the regions do not train the same model"
        ) from None
