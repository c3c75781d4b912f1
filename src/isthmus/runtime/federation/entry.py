"""What a region that starts does next: a decision over what stands in the store, without any input or output.

A run that ended in good order leaves a word behind. A region that was not there then has come too late, and is told so; one that
was there and starts again begins another run with the others, and takes the word away.
"""

from isthmus.runtime.federation.facts import Ask, Follow, Form, Over, Rules, Stall, View, best_branch
from isthmus.runtime.federation.generation import Generation

__all__ = ["decide_entry"]


def decide_entry(view: View, me: str, rules: Rules) -> Follow | Form | Ask | Stall | Over:
    """The region is in a generation already, asks to come in, forms the first one, waits, or has missed the run."""
    incarnation = view.live.get(me)
    if incarnation is None:
        return Stall("this region's lease has ended")
    mine = [
        other for other in view.generations.values() if (me, incarnation) in zip(other.regions, other.incarnations, strict=True)
    ]
    if mine:
        return Follow(max(mine, key=lambda generation: generation.number))
    running = best_branch(view, rules)
    if running is not None:
        return Ask(running)
    if view.end is not None and me not in view.end.regions:
        return Over(view.end)
    return _start(view, me, rules)


def _start(view: View, me: str, rules: Rules) -> Form | Ask | Stall:
    """The first generation, or the first after all regions were lost."""
    # Those that started and have no place; others may still run in a generation that nobody else remembers.
    present = rules.sort([region for region, join in view.joins.items() if view.live.get(region) == join.incarnation])
    if me not in present:
        return Ask(None)
    if len(present) < rules.start_regions:
        missing = [region for region in rules.order if region not in present]
        return Stall(f"{len(present)} of {rules.start_regions} regions are here; missing: {', '.join(missing)}")
    for last in view.generations.values():
        # It may be running where the store does not see it; one of its regions started anew proves that it is not.
        if not frozenset(last.regions).intersection(present):
            return Stall(f"generation {last.number} was last held by {', '.join(last.regions)}, none of which is here")
    generation = Generation(
        number=view.number + 1,
        regions=present,
        joined=present[1:],
        incarnations=tuple(view.live[region] for region in present),
    )
    ends = tuple(branch for branch in view.generations if branch)
    admits = {region: view.join_revisions[region] for region in present}
    return Form(generation, view.revisions.get("", 0), admits=admits, ends=ends, anew=True)
