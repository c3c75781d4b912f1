"""Rounds of a run that has a coordinator: opened for a rank, watched, and written down."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from isthmus.errors import InputError
from isthmus.plan import Strategy, Survival
from isthmus.runtime.chaos import Flip, flipping
from isthmus.runtime.environment import RankEnvironment
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.membership import Membership
from isthmus.runtime.federation.opening import RailOpener
from isthmus.runtime.federation.rounds import Rounds
from isthmus.runtime.federation.states import Attempt, AttemptWork, Committed, Rejoined, State
from isthmus.runtime.federation.store import open_store
from isthmus.runtime.local_steps.sync import LocalSync
from isthmus.runtime.metrics import Metrics
from isthmus.runtime.runnable import SURVIVING
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import federation_id
from isthmus.runtime.wan.identity import Identity
from isthmus.runtime.wan.rail import Rail, RailOptions
from isthmus.runtime.world import World

__all__ = ["LocalKeeper", "WatchedRounds", "load_identity", "open_rounds"]


class WatchedRounds:
    """`Rounds` whose every commit, regroup and hand-over becomes a line of the rank's metrics.

    Attributes:
        rounds: What does the work.
    """

    def __init__(self, rounds: Rounds, metrics: Metrics, flip: Flip | None = None) -> None:
        self.rounds, self._metrics, self._flip = rounds, metrics, flip
        self._seen = -1

    @property
    def generation(self) -> Generation:
        """The present one."""
        return self.rounds.generation

    @property
    def rails(self) -> Mapping[int, Rail]:
        """This rank's open rails."""
        return self.rounds.rails

    @property
    def round(self) -> int:
        """Number of the next round."""
        return self.rounds.round

    def open(self) -> Rejoined | None:
        """See `Rounds.open`."""
        rejoined = self.rounds.open()
        self._note_generation("the run begins")
        return rejoined

    def run(self, attempt: AttemptWork, tokens: int, commit: Callable[[Attempt], None]) -> Committed:
        """See `Rounds.run`."""
        digest = 0

        def install(done: Attempt) -> None:
            nonlocal digest
            digest = done.digest
            commit(done)

        if self._flip is not None and self._flip.round == self.rounds.round:
            attempt, self._flip = flipping(attempt, self._flip), None
        committed = self.rounds.run(attempt, tokens, install)
        self._note_generation("a round was repeated" if committed.attempts > 1 else "newcomers")
        if committed.rejoined is not None:
            return committed
        generation = committed.generation
        self._metrics.write(
            "round",
            generation=generation.number,
            branch=generation.branch,
            round=committed.round,
            regions=list(generation.regions),
            hash=f"{digest:016x}",
            counted=dict(committed.tokens),
            total=self.rounds.tokens,
            attempts=committed.attempts,
            lost_s=round(committed.lost_s, 4),
        )
        return committed

    def close(self) -> None:
        """See `Rounds.close`."""
        self.rounds.close()

    def sent_bytes(self) -> int:
        """Bytes this rank has sent to other regions since the run began here, frames included."""
        return self.rounds.sent_bytes()

    def _note_generation(self, reason: str) -> None:
        generation = self.rounds.generation
        if generation.number != self._seen:
            self._seen = generation.number
            self._metrics.write(
                "regroup",
                generation=generation.number,
                branch=generation.branch,
                regions=list(generation.regions),
                round=generation.round,
                reason=reason,
            )


class LocalKeeper:
    """`StateKeeper` of local steps: the outer state, and how fast the place in the data moves.

    The place itself is not in it: whoever gives the state may be at another step, and all must give the same.

    Args:
        local: Has the outer state.
        batches_a_step: Of this rank, so far.

    Attributes:
        batches_a_step: As the others last told it; None where this region never took over their state.
    """

    def __init__(self, local: LocalSync, batches_a_step: Callable[[], int]) -> None:
        self._local, self._own = local, batches_a_step
        self.batches_a_step: int | None = None

    def export_state(self, rail: int) -> State:
        """See `StateKeeper`."""
        state = self._local.export_state(rail)
        return State({**state.record, "batches_a_step": self._own()}, state.tensors)

    def adopt_state(self, parts: Mapping[int, State], rejoined: Rejoined) -> None:
        """See `StateKeeper`."""
        self.batches_a_step = int(next(iter(parts.values())).record["batches_a_step"])
        self._local.adopt_state(parts, rejoined)


def load_identity(environment: RankEnvironment) -> Identity | None:
    """This region's keys, where the environment names a folder of them."""
    return Identity.load(environment.keys, environment.region) if environment.keys is not None else None


@contextmanager
def open_rounds(
    environment: RankEnvironment,
    world: World,
    strategy: Strategy,
    survival: Survival,
    metrics: Metrics,
    terms: dict[str, str],
) -> Generator[WatchedRounds]:
    """The rounds of this rank; to be opened and closed (`WatchedRounds`) on the communication thread inside.

    Args:
        environment: Has members. Without a coordinator a lost region ends the run.
        world: The region's groups.
        strategy: A kind out of `SURVIVING`.
        survival: The plan's.
        metrics: Takes the lines.
        terms: What every region must have been started with.

    Raises:
        InputError: The strategy cannot survive, the address of the coordinator or a key is wrong.
    """
    assert environment.members is not None, "rounds without members"
    if environment.coordinator is not None and strategy.kind not in SURVIVING:
        raise InputError(
            "ISTHMUS_COORDINATOR",
            f"is set, but a {strategy.kind!r} strategy cannot go on when a region is lost",
            f"plan {' or '.join(SURVIVING)}, or unset it: a lost region then ends the run",
        )
    identity = load_identity(environment)
    rate = strategy.wan_rate_bytes_per_s
    options = RailOptions(
        rate_bytes_per_s=rate / environment.members.rails if rate else None,
        detect_s=survival.detect_s,
        insecure=environment.insecure,
    )
    own = environment.members.regions[environment.region_index].address(environment.rank)
    door = Door(
        own, federation_id(environment.members), environment.region_index, identity, insecure=environment.insecure
    )
    rounds = None
    try:
        membership = None
        if environment.rank == 0 and environment.coordinator is not None:
            store = open_store(environment.coordinator, identity.calling if identity is not None else None)
            membership = Membership(store, environment.region, environment.members, survival, terms=terms)
        opener = RailOpener(environment, door, strategy.streams, options)
        rounds = Rounds(environment, world, membership, opener, survival)
        flip = Flip(*environment.chaos_flip) if environment.chaos_flip is not None else None
        yield WatchedRounds(rounds, metrics, flip)
    except BaseException:
        if rounds is not None:
            rounds.abandon()
        raise
    finally:
        door.close()
