"""How the federation's facts are written in the store: the keys of one run, and their values as JSON.

live/<region>                         incarnation, on the region's lease
generation, branch/<region>/generation    the last generation of the run, of a branch
regroup/<branch>/<number>/<region>    record of a region that leaves generation <number>, on its lease
join/<region>                         a region that asks to come in, on its lease
progress/<branch>                     committed tokens
yield/<branch>                        the other branch for which the regions of this one leave it
end                                   of a run that is over: when, and who was there
terms                                 what all members must have been started with: name -> text
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from isthmus.errors import InputError
from isthmus.runtime.federation.facts import End, Form, Join, Record, Rules, View
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.store import Entry, Listing

__all__ = ["Ledger", "dump", "give_way", "read_end", "read_view", "succeed"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ledger:
    """The keys of the run called `run`; several runs may share a store."""

    run: str

    @property
    def prefix(self) -> str:
        """What all keys of the run begin with."""
        return f"isthmus/{quote(self.run, safe='')}/"

    @property
    def terms(self) -> str:
        """Key of the terms."""
        return self.prefix + "terms"

    @property
    def end(self) -> str:
        """Key of the run's end."""
        return self.prefix + "end"

    def live(self, region: str) -> str:
        """Key of a region's sign of life."""
        return f"{self.prefix}live/{_safe(region)}"

    def generation(self, branch: str) -> str:
        """Key of the last generation of a branch."""
        return self.prefix + (f"branch/{_safe(branch)}/generation" if branch else "generation")

    def record(self, generation: Generation, region: str) -> str:
        """Key of a region's record of leaving `generation`."""
        return f"{self.prefix}regroup/{_safe(generation.branch)}/{generation.number}/{_safe(region)}"

    def join(self, region: str) -> str:
        """Key of a region's request to come in."""
        return f"{self.prefix}join/{_safe(region)}"

    def progress(self, branch: str) -> str:
        """Key of a branch's progress."""
        return f"{self.prefix}progress/{_safe(branch)}"

    def gives_way(self, branch: str) -> str:
        """Key of a branch's word that its regions leave it for another."""
        return f"{self.prefix}yield/{_safe(branch)}"


def dump(fact: Generation | Record | Join | End) -> str:
    """`fact` as JSON."""
    values = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(fact).items()}
    return json.dumps(values, separators=(",", ":"))


def read_view(ledger: Ledger, listing: Listing) -> View:
    """What a listing of the run's prefix says.

    Raises:
        InputError: An entry is not as isthmus writes it.
    """
    live: dict[str, str] = {}
    generations: dict[str, Generation] = {}
    revisions: dict[str, int] = {}
    records: dict[tuple[str, int], dict[str, Record]] = {}
    record_revisions: dict[tuple[str, int, str], int] = {}
    joins: dict[str, Join] = {}
    join_revisions: dict[str, int] = {}
    progress: dict[str, int] = {}
    yields: dict[str, str] = {}
    yield_revisions: dict[str, int] = {}
    end, end_revision = None, 0
    for key, entry in listing.entries.items():
        match [unquote(part) for part in key.removeprefix(ledger.prefix).split("/")]:
            case ["live", region]:
                live[region] = entry.value
            case ["generation"]:
                generations[""], revisions[""] = _load(key, entry, Generation), entry.revision
            case ["branch", branch, "generation"]:
                generations[branch], revisions[branch] = _load(key, entry, Generation), entry.revision
            case ["regroup", branch, number, region]:
                records.setdefault((branch, int(number)), {})[region] = _load(key, entry, Record)
                record_revisions[branch, int(number), region] = entry.revision
            case ["join", region]:
                joins[region], join_revisions[region] = _load(key, entry, Join), entry.revision
            case ["progress", branch]:
                progress[branch] = int(entry.value)
            case ["yield", branch]:
                yields[branch], yield_revisions[branch] = entry.value, entry.revision
            case ["end"]:
                end, end_revision = _load(key, entry, End), entry.revision
            case _:
                continue
    return View(
        live=live,
        generations=generations,
        revisions=revisions,
        records=records,
        record_revisions=record_revisions,
        joins=joins,
        join_revisions=join_revisions,
        progress=progress,
        yields=yields,
        yield_revisions=yield_revisions,
        end=end,
        end_revision=end_revision,
    )


def give_way(ledger: Ledger, view: View, rules: Rules, branch: str, other: str) -> tuple[dict[str, int], dict[str, str]]:
    """What must stand in the store, and what is written, for `branch` to give way to `other`.

    Each side compares progress by what it last saw of the other, and both can find the other ahead; were both to leave, nobody
    would hold the state. The store takes one word and refuses the other, for as long as the branch it was said for lives. No
    branch may have moved since either: regions of `other` may have gone into one that was not there before.
    """
    ours, theirs = ledger.gives_way(branch), ledger.gives_way(other)
    still = {ledger.generation(name): view.revisions.get(name, 0) for name in ("", *rules.order)}
    return {ours: 0, theirs: 0} | still, {ours: other}


def succeed(ledger: Ledger, view: View, old: Generation | None, form: Form) -> tuple[dict[str, int], dict[str, str], list[str]]:
    """What must stand in the store, what is written and what is deleted, for `form` to take the place of `old`.

    Records of regions that are not moved stay: a side that goes on apart leaves the others what they decide by.
    """
    generation, branch = form.generation, form.generation.branch
    compares = {ledger.generation(branch): form.revision}
    compares |= {ledger.join(region): revision for region, revision in form.admits.items()}
    deletes = [ledger.join(region) for region in form.admits]
    deletes += [ledger.generation(ended) for ended in form.ends]
    words = {branch, *form.ends}
    puts = {ledger.generation(branch): dump(generation)}
    if old is None or old.branch != branch or form.anew:  # what an earlier branch of this name had committed is not this one's
        puts[ledger.progress(branch)] = str(generation.tokens)
    if old is not None:
        compares |= {ledger.record(old, region): revision for region, revision in form.rests_on.items()}
        deletes += [ledger.record(old, region) for region in form.rests_on]
        if old.branch == branch:  # not once it has given way since it was looked at
            compares[ledger.gives_way(branch)] = view.yield_revisions.get(branch, 0)
    deletes += [ledger.gives_way(word) for word in sorted(words) if word in view.yields]
    return compares, puts, deletes


def read_end(entry: Entry) -> End:
    """The end of a run, from its entry.

    Raises:
        InputError: It is not as isthmus writes it.
    """
    return _load("end", entry, End)


def _load(key: str, entry: Entry, kind: Callable[..., T]) -> T:
    try:
        values: dict[str, Any] = json.loads(entry.value)
        for field in fields(kind):  # pyright: ignore[reportArgumentType]
            wanted = str(field.type)
            if wanted.startswith("frozenset"):
                values[field.name] = frozenset(values[field.name])
            elif wanted.startswith("tuple"):
                values[field.name] = tuple(values[field.name])
        return kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"store:{key}", f"is not as isthmus writes it ({error})", "give each run its own store or name"
        ) from error


def _safe(name: str) -> str:
    return quote(name, safe="")
