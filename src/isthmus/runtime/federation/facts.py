"""What stands in the store, and what can be decided over it; plain facts, without any input or output."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from isthmus.plan import OnPartition
from isthmus.runtime.federation.generation import Generation

__all__ = [
    "Ask",
    "End",
    "Follow",
    "Form",
    "Join",
    "Over",
    "Record",
    "Rules",
    "Stall",
    "View",
    "best_branch",
    "holders",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one region writes when it leaves a generation for the next.

    Attributes:
        incarnation: Of the region.
        applied: Number of the last round it committed; -1 none.
        tokens: Committed by all regions up to and with that round.
        voted: Whether it holds, and has voted for, the result of the round after that.
        voted_digest, voted_tokens: Of that result: its digest, and the tokens of all regions in it.
        stateless: It came with this generation and has not fetched the state yet.
        suspects: Regions it cannot reach.
        dead: Regions whose address refused it: their processes are gone.
        late: Regions that did not begin the round within the grace.
        idle: It was between rounds, and its leader's watcher has answered for it: it may still be found late.
        probing: It has not found out yet whom it reaches: wait for it.
    """

    incarnation: str
    applied: int = -1
    tokens: int = 0
    voted: bool = False
    voted_digest: int = 0
    voted_tokens: int = 0
    stateless: bool = False
    suspects: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    idle: bool = False
    probing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A region asks to come in: `reach` are the regions it can reach."""

    incarnation: str
    branch: str
    reach: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The run came to its orderly end.

    Attributes:
        generation: Number of the last one.
        round: Rounds that were committed.
        tokens: Committed, by all regions together.
        regions: Those that were there.
    """

    generation: int
    round: int
    tokens: int
    regions: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What stands in the store, read at once.

    Attributes:
        live: Incarnation of every region whose lease has not ended.
        generations: The last generation of each branch.
        revisions: Revision of each of those entries.
        records: Of the regroups under way: by branch, number of the generation left, region.
        record_revisions: Revision of each of those entries, by the same and the region.
        joins: Who has started and asks to come in.
        join_revisions: Revision of each of those entries.
        progress: Committed tokens of each branch, as far as it has said.
        yields: Branches whose regions leave it, and for which other.
        yield_revisions: Revision of each of those entries.
        end: Of a run that is over.
        end_revision: Revision of that entry.
    """

    live: Mapping[str, str] = field(default_factory=dict[str, str])
    generations: Mapping[str, Generation] = field(default_factory=dict[str, Generation])
    revisions: Mapping[str, int] = field(default_factory=dict[str, int])
    records: Mapping[tuple[str, int], Mapping[str, Record]] = field(default_factory=dict[tuple[str, int], Mapping[str, Record]])
    record_revisions: Mapping[tuple[str, int, str], int] = field(default_factory=dict[tuple[str, int, str], int])
    joins: Mapping[str, Join] = field(default_factory=dict[str, Join])
    join_revisions: Mapping[str, int] = field(default_factory=dict[str, int])
    progress: Mapping[str, int] = field(default_factory=dict[str, int])
    yields: Mapping[str, str] = field(default_factory=dict[str, str])
    yield_revisions: Mapping[str, int] = field(default_factory=dict[str, int])
    end: End | None = None
    end_revision: int = 0

    @property
    def number(self) -> int:
        """The largest number of any generation; 0 before the first."""
        return max((generation.number for generation in self.generations.values()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What does not change in a run: names of all members in their order, how many must start, and what a partition does."""

    order: tuple[str, ...]
    start_regions: int
    on_partition: OnPartition = "wait"

    def sort(self, regions: Collection[str]) -> tuple[str, ...]:
        """Those regions in the order of the members."""
        return tuple(region for region in self.order if region in regions)


@dataclass(frozen=True, slots=True)
class Follow:
    """Another leader has decided: that generation stands; the asking region is in it, or is not."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Form:
    """To be written by compare-and-swap, on the revisions of its branch's entry and of the entries it rests on.

    Attributes:
        generation: The next one.
        revision: Of the entry that it replaces; 0 for none.
        rests_on: Revisions of the records of the regions that move, by region.
        admits: Revisions of the requests of those that come in. Both are deleted with it, so that no region is moved twice.
        ends: Branches that go with it.
        anew: Nobody holds a trained state: all begin from the state of the first region.
    """

    generation: Generation
    revision: int
    rests_on: Mapping[str, int] = field(default_factory=dict[str, int])
    admits: Mapping[str, int] = field(default_factory=dict[str, int])
    ends: tuple[str, ...] = ()
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing can be decided yet. `partition`: it will not, until links heal; else others are awaited."""

    why: str
    partition: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A region that starts is to ask that generation to let it in; without one, to say that it is here."""

    generation: Generation | None


@dataclass(frozen=True, slots=True)
class Over:
    """There is no run to come into: it ended without this region."""

    end: End


def holders(view: View, generation: Generation) -> tuple[str, ...]:
    """Regions that run, and whose last generation this is."""
    return tuple(
        region
        for region, incarnation in zip(generation.regions, generation.incarnations, strict=True)
        if view.live.get(region) == incarnation
        and not any(
            other.number > generation.number and (other.holds(region, incarnation) or incarnation in other.past)
            for other in view.generations.values()
        )
    )


def best_branch(view: View, rules: Rules) -> Generation | None:
    """The generation to belong to: of those that some region still holds, the one with most committed tokens.

    A branch that gives way is one only where there is no other: the one it gave way to may have died since.
    """
    held = [generation for generation in view.generations.values() if holders(view, generation)]
    held = [generation for generation in held if generation.branch not in view.yields] or held

    def rank(generation: Generation) -> tuple[int, int]:
        tokens = max(view.progress.get(generation.branch, 0), generation.tokens)
        return tokens, -rules.order.index(generation.regions[0])

    return max(held, key=rank, default=None)


def gives_way(view: View, branch: str, rules: Rules) -> bool:
    """Whether the regions of `branch` have to leave it, by its own word: it forms no generation any more."""
    best = best_branch(view, rules)
    return branch in view.yields and best is not None and best.branch != branch
