"""Who takes part next: decisions over what stands in the store, without any input or output.

Every region's leader reads the same listing, decides the same, and writes the outcome by compare-and-swap; the first to write
wins and the others follow. What keeps two groups from going on apart, whatever the links do:

* a generation's round is committed only with the votes of ALL its regions, and a region that has written its record of a
  regroup takes part in no further round of the old generation;
* a new generation is formed only from such records, or, where no region of the old one runs any more, needs one of the old
  regions started anew. Either way the old generation can commit nothing more.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations

from isthmus.runtime.federation.facts import Follow, Form, Record, Rules, Stall, View, best_branch
from isthmus.runtime.federation.generation import Generation

__all__ = ["cliques", "decide_regroup", "successor"]

CLIQUES_EXACT = 16


def cliques(regions: tuple[str, ...], apart: Collection[frozenset[str]]) -> list[tuple[str, ...]]:
    """All largest-possible groups without a pair of `apart` inside, each in the order of `regions`.

    Exact for up to `CLIQUES_EXACT` regions that have a quarrel; those without are in every group.
    """
    quarrelling = tuple(region for region in regions if any(region in pair for pair in apart))
    peaceful = frozenset(regions) - frozenset(quarrelling)
    if len(quarrelling) > CLIQUES_EXACT:
        return [_greedy(regions, apart)]
    found: list[frozenset[str]] = []
    for size in range(len(quarrelling), -1, -1):
        for chosen in combinations(quarrelling, size):
            group = frozenset(chosen)
            if any(pair <= group for pair in apart) or any(group <= larger for larger in found):
                continue
            found.append(group)
    return [tuple(region for region in regions if region in group or region in peaceful) for group in found]


def _greedy(regions: tuple[str, ...], apart: Collection[frozenset[str]]) -> tuple[str, ...]:
    group: list[str] = []
    for region in sorted(regions, key=lambda region: (sum(region in pair for pair in apart), regions.index(region))):
        if not any(frozenset((region, other)) in apart for other in group):
            group.append(region)
    return tuple(region for region in regions if region in group)


def decide_regroup(view: View, old: Generation, me: str, rules: Rules, *, waited: bool) -> Follow | Form | Stall:
    """What follows generation `old` for region `me`, which has written its record.

    Args:
        view: What stands in the store.
        old: The generation that `me` belonged to.
        me: The asking region.
        rules: See `Rules`.
        waited: `me` has waited for the others for as long as a silence may last.
    """
    found = successor(view, old, me)
    if found is not None:
        return Follow(found)
    records = _records(view, old)
    if me not in records:
        return _unrecorded(view, old, me, rules)
    alive = _alive(view, old, records)
    late = _late(records)
    probing = [region for region in records if records[region].probing]
    moved = _moved(view, old)
    awaited = [region for region in alive if region not in records and region not in late and region not in moved] + probing
    if awaited and not waited:
        return Stall(f"waiting for {', '.join(awaited)}")
    ready = rules.sort([region for region in records if not records[region].probing and region not in late])
    if me in late:
        return Stall("the others go on without this region, which is late")
    if me not in ready:
        return Stall("this region has not found out whom it reaches")
    return _decide_among(view, old, me, rules, _Present(ready, records, [region for region in alive if region not in late]))


def _unrecorded(view: View, old: Generation, me: str, rules: Rules) -> Follow | Stall:
    """The record was not written yet, or went with the lease; or a branch moved `me` by it and has gone on without it since."""
    running = best_branch(view, rules)
    later = running is not None and running.number > old.number
    if rules.on_partition == "continue" and me in view.live and running is not None and later:
        return Follow(running)
    return Stall("this region's record is not in the store")


@dataclass(frozen=True, slots=True)
class _Present:
    """Regions that can form a generation, their records, and all that count for a majority."""

    ready: tuple[str, ...]
    records: Mapping[str, Record]
    counted: list[str]


def _decide_among(view: View, old: Generation, me: str, rules: Rules, present: _Present) -> Form | Stall:
    ready, records = present.ready, present.records
    apart = {frozenset((one, other)) for one in ready for other in records[one].suspects if other in ready}
    stateful = frozenset(region for region in ready if not records[region].stateless)

    def rank(clique: tuple[str, ...]) -> tuple[int, int, tuple[int, ...]]:
        return len(stateful.intersection(clique)), len(clique), tuple(-rules.order.index(region) for region in clique)

    groups = cliques(ready, apart)
    best = max(groups, key=rank)
    # A region that never had the state cannot outvote those that train; where nobody has it, all count.
    voters = [region for region in present.counted if region in stateful or (region not in records and region not in old.joined)]
    voters = voters or present.counted
    if 2 * len(frozenset(voters).intersection(best)) > len(voters):
        if me not in best:
            return Stall(f"{', '.join(best)} will go on without this region, which they cannot reach", partition=True)
        return _form(view, old, best, rules, present)
    if rules.on_partition == "wait":
        return Stall(
            f"the regions {', '.join(present.counted)} do not all reach each other, and no majority does", partition=True
        )
    mine = max((group for group in groups if me in group), key=rank)
    if not stateful.intersection(mine) and stateful:
        return Stall("no region that this one reaches holds the state", partition=True)
    return _form(view, old, mine, rules, present, branch=mine[0])


def _form(
    view: View, old: Generation, clique: tuple[str, ...], rules: Rules, present: _Present, *, branch: str | None = None
) -> Form:
    records = present.records
    stateful = [region for region in clique if not records[region].stateless]
    anew = not stateful
    suspected = frozenset[str]().union(*(records[region].suspects | records[region].dead for region in clique))
    comers = [
        region
        for region, join in view.joins.items()
        if region not in records
        and region not in suspected
        and join.branch == old.branch
        and view.live.get(region) == join.incarnation
        and join.reach.issuperset(clique)
    ]
    regions = rules.sort([*clique, *comers])
    # The state of a lone donor where none is trained: then the first region's, as at the start.
    donors = frozenset(stateful or clique[:1])
    applied, tokens = _committed(
        [record for record in records.values() if not record.stateless], [records[region] for region in stateful]
    )
    branch = old.branch if branch is None else branch
    incarnations = tuple(view.live[region] for region in regions)
    generation = Generation(
        number=view.number + 1,
        regions=regions,
        joined=tuple(region for region in regions if region not in donors),
        incarnations=incarnations,
        round=applied + 1,
        tokens=tokens,
        branch=branch,
        late=rules.sort(_late(records)),
        past=_past(view, old if branch == old.branch else None, branch, incarnations),
    )
    rests_on = {region: view.record_revisions[old.branch, old.number, region] for region in clique}
    admits = {region: view.join_revisions[region] for region in comers}
    return Form(generation, view.revisions.get(branch, 0), rests_on, admits, anew=anew)


def _past(view: View, old: Generation | None, branch: str, staying: tuple[str, ...]) -> tuple[str, ...]:
    """Incarnations that run and were in the branch until now: an older branch must not take them for its own again.

    Those that a later generation of another branch holds are its, and nobody else's.
    """
    before = view.generations.get(branch, old)
    if before is None:
        return ()
    later = [other for other in view.generations.values() if other.number > before.number and other.branch != branch]
    moved = frozenset(incarnation for other in later for incarnation in other.incarnations)
    known = frozenset((*before.incarnations, *before.past))
    return tuple(sorted(known.intersection(view.live.values()) - frozenset(staying) - moved))


def _committed(everyone: list[Record], staying: list[Record]) -> tuple[int, int]:
    """The last round that counts as committed, and the tokens up to and with it.

    A round that any region applied had the votes of all, so whoever has not applied it holds its result and does so now. A
    round that all who stay voted for alike is committed too: a region that is gone may have applied it before it went.
    """
    ahead = max(everyone, key=lambda record: record.applied, default=Record(incarnation=""))
    voted = {(record.voted, record.voted_digest) for record in staying if record.applied == ahead.applied}
    behind = any(record.applied < ahead.applied for record in staying)
    if staying and not behind and len(voted) == 1 and staying[0].voted:
        return ahead.applied + 1, ahead.tokens + staying[0].voted_tokens
    return ahead.applied, ahead.tokens


def successor(view: View, old: Generation, me: str) -> Generation | None:
    """The generation that has taken the place of `old`: one with `me` if there is one, else the next of its branch."""
    mine = old.incarnations[old.regions.index(me)] if me in old.regions else ""
    later = [generation for generation in view.generations.values() if generation.number > old.number]
    with_me = [other for other in later if other.holds(me, mine)]
    if with_me:
        return max(with_me, key=lambda generation: generation.number)
    return next((generation for generation in later if generation.branch == old.branch), None)


def _records(view: View, old: Generation) -> dict[str, Record]:
    """Records of regions that are in `old` and still run."""
    written = view.records.get((old.branch, old.number), {})
    return {
        region: written[region]
        for region, incarnation in zip(old.regions, old.incarnations, strict=True)
        if region in written and written[region].incarnation == incarnation == view.live.get(region)
    }


def _moved(view: View, old: Generation) -> frozenset[str]:
    """Regions of `old` that have gone on apart: their record is answered, and they write no other."""
    later = [generation for generation in view.generations.values() if generation.number > old.number]
    pairs = zip(old.regions, old.incarnations, strict=True)
    return frozenset(region for region, incarnation in pairs if any(other.holds(region, incarnation) for other in later))


def _late(records: Mapping[str, Record]) -> frozenset[str]:
    """Regions that somebody found late, and that have not come to the round since."""
    claimed = frozenset[str]().union(*(record.late for record in records.values()))
    return claimed - frozenset(region for region, record in records.items() if not record.idle)


def _alive(view: View, old: Generation, records: Mapping[str, Record]) -> list[str]:
    """Regions of `old` that run, as far as anybody knows: a record proves it, a refused connection disproves a lease."""
    dead = frozenset[str]().union(*(record.dead for record in records.values())) - frozenset(records)
    return [
        region
        for region, incarnation in zip(old.regions, old.incarnations, strict=True)
        if view.live.get(region) == incarnation and region not in dead
    ]
