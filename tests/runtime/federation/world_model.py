"""A federation without processes, sockets or clocks: regions as state machines that act one at a time, in any order.

What they decide is decisions.py's, what they write is ledger.py's, and it lies in the table of the real coordinator. Reading the
store and writing to it are two steps, so that everything may happen in between.
"""

import random
from dataclasses import dataclass, field, replace

from isthmus.plan import OnPartition
from isthmus.runtime.federation.decisions import decide_regroup, successor
from isthmus.runtime.federation.entry import decide_entry
from isthmus.runtime.federation.facts import Ask, Follow, Form, Join, Record, Rules, Stall, View, best_branch, gives_way
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.ledger import Ledger, dump, give_way, read_view, succeed
from isthmus.runtime.federation.table import Table

LEDGER = Ledger("run")
Entry = tuple[int, int, tuple[str, ...]]  # beginning, generation and regions of a committed round


@dataclass
class Region:
    name: str
    up: bool = False
    frozen: bool = False
    incarnation: str = ""
    lease: int = 0
    generation: Generation | None = None
    beginning: int = 0  # number of the generation in which this chain of rounds began
    stateful: bool = False
    history: list[Entry] = field(default_factory=list)
    tokens: int = 0
    voted: Entry | None = None
    left: bool = False
    recorded: bool = False
    seen: View | None = None
    heal: View | None = None

    @property
    def runs(self) -> bool:
        return self.up and not self.frozen


class Model:
    def __init__(self, seed: int, regions: int, policy: OnPartition, start: int | None = None) -> None:
        self.random = random.Random(seed)
        names = tuple("abcdef"[:regions])
        self.rules = Rules(order=names, start_regions=start or regions, on_partition=policy)
        self.table = Table()
        self.regions = {name: Region(name) for name in names}
        self.cut: set[frozenset[str]] = set()
        self.no_store: set[str] = set()
        self.begun: set[tuple[str, int, int, str]] = set()  # branch, generation, round, region
        self.votes: dict[tuple[str, int, int], dict[str, Entry]] = {}
        self.committed: dict[tuple[int, int], Entry] = {}  # of each beginning and round
        self.beginnings: dict[int, int] = {}
        self.drawn = 0
        self.trained = self.lost = False  # some round was committed; and then nobody held a state when all began anew
        self.viewed = (0, View())
        self.trace: list[str] = []
        for region in self.regions.values():
            self.restart(region)

    # Faults.

    def restart(self, region: Region) -> None:
        fresh = Region(region.name, up=True)
        self.regions[region.name] = fresh
        self.draw(fresh)

    def draw(self, region: Region) -> None:
        self.drawn += 1
        region.incarnation, region.generation, region.left = f"{region.name}{self.drawn}", None, False
        region.recorded = False
        region.stateful, region.history, region.voted, region.tokens, region.seen = False, [], None, 0, None
        region.heal = None
        if self.reaches_store(region):
            self.register(region)

    def kill(self, region: Region) -> None:
        region.up = False

    def disturb(self, without: tuple[str, ...] = ()) -> None:
        region = self.random.choice(list(self.regions.values()))
        other = self.random.choice([name for name in self.regions if name != region.name])
        pair = frozenset((region.name, other))
        faults = {
            "kill": lambda: self.kill(region),
            "restart": lambda: None if region.up else self.restart(region),
            "freeze": lambda: setattr(region, "frozen", region.up),
            "thaw": lambda: setattr(region, "frozen", False),
            "cut": lambda: self.cut.add(pair),
            "mend": lambda: self.cut.discard(pair),
            "lose": lambda: self.no_store.add(region.name),
            "find": lambda: self.no_store.discard(region.name),
            "expire": lambda: self.expire(region),
        }
        kind = self.random.choice([kind for kind in [*faults, "expire"] if kind not in without])
        self.trace.append(f"{kind} {region.name} {other}")
        faults[kind]()

    def expire(self, region: Region) -> None:
        """Time passes without a word from the region; only where that can be."""
        if not self.reaches_store(region):
            self.table.revoke(region.lease)

    def calm(self) -> None:
        """Everything heals, and leases of what does not run have time to end."""
        self.cut.clear()
        self.no_store.clear()
        for region in list(self.regions.values()):
            region.frozen = False
            if not region.up:
                self.table.revoke(region.lease)
                self.restart(region)

    # The store.

    def reaches_store(self, region: Region) -> bool:
        return region.runs and region.name not in self.no_store

    def register(self, region: Region) -> None:
        region.lease = self.table.grant(1.0, 0.0)
        self.put(region, LEDGER.live(region.name), region.incarnation)

    def put(self, region: Region, key: str, value: str) -> None:
        if region.lease not in self.table.leases():
            region.lease = self.table.grant(1.0, 0.0)
            self.table.apply({LEDGER.live(region.name): region.incarnation}, (), region.lease)
        self.table.apply({key: value}, (), region.lease)

    def view(self) -> View:
        if self.table.revision != self.viewed[0]:
            self.viewed = (self.table.revision, read_view(LEDGER, self.table.listing(LEDGER.prefix)))
        return self.viewed[1]

    def reach(self, region: Region, other: str) -> str:
        if frozenset((region.name, other)) in self.cut:
            return "silent"
        return "open" if self.regions[other].up else "refused"

    # What a region does.

    def act(self) -> None:
        running = [region for region in self.regions.values() if region.runs]
        if not running:
            return
        region = self.random.choice(running)
        before = self.describe(region)
        if region.seen is not None and self.reaches_store(region):
            self.write(region, region.seen)
        elif region.generation is None:
            self.look(region)
        elif region.left or not region.stateful:
            self.between(region)
        else:
            self.train(region)
        after = self.describe(region)
        if after != before:
            self.trace.append(f"{before} -> {after}")

    def describe(self, region: Region) -> str:
        number = region.generation.number if region.generation else None
        return f"{region.incarnation} g{number} {len(region.history)} left={region.left} voted={region.voted} {region.stateful}"

    def look(self, region: Region) -> None:
        if not self.reaches_store(region):
            if region.left and self.rules.on_partition == "continue":
                self.go_alone(region)
            return
        live = self.table.get(LEDGER.live(region.name))
        if live is None or live.value != region.incarnation:
            self.register(region)
        region.seen = self.view()

    def between(self, region: Region) -> None:
        """Regrouping, or a newcomer that fetches the state."""
        if not region.left and self.fetch(region):
            return
        if not region.left and self.troubled(region):
            self.leave(region)
        elif region.left:
            if self.reaches_store(region) and self.random.random() < 0.5:
                self.write_record(region)
            self.look(region)

    def train(self, region: Region) -> None:
        if region.heal is not None and self.reaches_store(region):
            self.heal(region)
        elif self.rules.on_partition == "continue" and self.reaches_store(region) and self.random.random() < 0.3:
            region.heal = self.view()
        elif self.reaches_store(region) and self.forgotten(region):
            generation = region.generation
            assert generation is not None
            word = (LEDGER.gives_way(generation.branch),) if generation.branch in self.view().yields else ()
            progress = {LEDGER.progress(generation.branch): str(generation.tokens)}
            self.table.apply({LEDGER.generation(generation.branch): dump(generation), **progress}, word)
        elif self.troubled(region) and self.random.random() < 0.5:
            self.leave(region)
        else:
            self.round(region)

    def forgotten(self, region: Region) -> bool:
        generation = region.generation
        assert generation is not None
        known = self.view().generations.get(generation.branch)
        live = self.table.get(LEDGER.live(region.name))
        if live is None or live.value != region.incarnation:
            self.register(region)
        return known is None or known.number < generation.number

    def heal(self, region: Region) -> None:
        """Leave for a better branch, by what was read a while ago."""
        view, generation = region.heal, region.generation
        region.heal = None
        assert view is not None
        assert generation is not None
        best = best_branch(view, self.rules)
        if best is None or best.branch == generation.branch:
            return
        if not gives_way(view, generation.branch, self.rules):
            whole = all(self.reach(region, other) == "open" for other in best.regions if other != region.name)
            if not whole or not self.table.txn(*give_way(LEDGER, view, self.rules, generation.branch, best.branch), ()):
                return
        self.draw(region)

    def troubled(self, region: Region) -> bool:
        """Whether the region has a reason to regroup: it sees a record or a successor, a peer is out of reach, one wants in."""
        generation = region.generation
        assert generation is not None
        others = [name for name in generation.regions if name != region.name]
        lost = any(
            self.reach(region, name) != "open"
            or self.regions[name].frozen
            or not generation.holds(name, self.regions[name].incarnation)
            for name in others
        )
        if lost or self.random.random() < 0.02:
            return True
        if not self.reaches_store(region):
            return False
        view = self.view()
        told = bool(view.records.get((generation.branch, generation.number)))
        followed = successor(view, generation, region.name) is not None
        wanted = any(
            join.branch == generation.branch and join.reach.issuperset(generation.regions) for join in view.joins.values()
        )
        return told or followed or wanted

    def leave(self, region: Region) -> None:
        region.left = True
        if self.reaches_store(region):
            self.write_record(region)

    def write_record(self, region: Region) -> None:
        generation = region.generation
        assert generation is not None
        found = {name: self.reach(region, name) for name in self.rules.order if name != region.name}
        record = Record(
            incarnation=region.incarnation,
            applied=len(region.history) - 1,
            tokens=region.tokens,
            voted=region.voted is not None,
            voted_digest=hash(region.voted) & 0xFFFFFFFF if region.voted else 0,
            voted_tokens=len(region.voted[2]) if region.voted else 0,
            stateless=not region.stateful,
            suspects=frozenset(name for name, reach in found.items() if reach != "open"),
            dead=frozenset(name for name, reach in found.items() if reach == "refused"),
        )
        key = LEDGER.record(generation, region.name)
        if region.recorded and self.table.get(key) is None:
            return  # the region may have been moved by it: decide first
        self.put(region, key, dump(record))
        region.recorded = True

    def go_alone(self, region: Region) -> None:
        old = region.generation
        assert old is not None
        if not region.stateful:
            return
        self.apply_voted(region)
        self.drawn += 1
        region.incarnation = f"{region.name}{self.drawn}"
        region.generation = Generation(
            number=old.number + 1,
            regions=(region.name,),
            incarnations=(region.incarnation,),
            round=len(region.history),
            tokens=region.tokens,
            branch=region.name,
        )
        region.left = region.recorded = False

    def write(self, region: Region, view: View) -> None:
        """Decide by what was read, and write: something may have changed meanwhile."""
        region.seen = None
        if region.generation is None:
            if view.live.get(region.name) != region.incarnation:
                return
            verdict = decide_entry(view, region.name, self.rules)
        else:
            verdict = decide_regroup(view, region.generation, region.name, self.rules, waited=self.random.random() < 0.3)
            if not isinstance(verdict, Follow) and gives_way(view, region.generation.branch, self.rules):
                self.draw(region)
                return
        match verdict:
            case Follow(generation):
                self.follow(region, generation)
            case Form():
                self.form(region, verdict, view)
            case Stall() if region.generation is not None:
                old = region.generation
                if region.name not in view.records.get((old.branch, old.number), {}):
                    region.recorded = False
                    self.write_record(region)
            case Ask(generation):
                self.ask(region, generation, view)

    def ask(self, region: Region, generation: Generation | None, view: View) -> None:
        regions = generation.regions if generation else ()
        reach = frozenset(name for name in regions if name != region.name and self.reach(region, name) == "open")
        join = Join(incarnation=region.incarnation, branch=generation.branch if generation else "", reach=reach)
        key = LEDGER.join(region.name)
        if view.joins.get(region.name) != join and region.lease in self.table.leases():
            self.table.txn({key: view.join_revisions.get(region.name, 0)}, {key: dump(join)}, (), region.lease)

    def form(self, region: Region, form: Form, view: View) -> None:
        if self.table.txn(*succeed(LEDGER, view, region.generation, form)):
            assert set(form.generation.joined) < set(form.generation.regions), form
            if form.anew:
                self.beginnings[form.generation.number] = form.generation.number
                self.lost |= self.trained and not any(other.stateful for other in self.regions.values())

    def follow(self, region: Region, generation: Generation) -> None:
        if not generation.holds(region.name, region.incarnation):
            self.draw(region)
            return
        if region.generation is None or not region.stateful:
            region.stateful = region.name not in generation.joined
            if region.stateful:  # the first of all
                region.beginning = generation.number
        elif generation.round == len(region.history) + 1:
            assert region.voted is not None, f"{region} must hold round {generation.round - 1}"
            self.apply_voted(region)
        region.voted = None
        if region.stateful:
            assert generation.round == len(region.history), (region, generation)
        region.generation, region.left, region.recorded = generation, False, False

    def fetch(self, region: Region) -> bool:
        generation = region.generation
        assert generation is not None
        for name in generation.donors:
            donor = self.regions[name]
            ready = donor.runs and donor.generation == generation and donor.stateful and not donor.left
            if ready and len(donor.history) == generation.round and self.reach(region, name) == "open":
                region.history, region.tokens, region.stateful = list(donor.history), donor.tokens, True
                region.beginning = donor.beginning
                return True
        return False

    def round(self, region: Region) -> None:
        generation, number = region.generation, len(region.history)
        assert generation is not None
        where = (generation.branch, generation.number, number)
        self.begun.add((*where, region.name))
        votes = self.votes.setdefault(where, {})
        if all((*where, name) in self.begun for name in generation.regions) and region.voted is None:
            region.voted = votes[region.name] = (region.beginning, generation.number, generation.regions)
        elif region.voted is not None and set(votes) == set(generation.regions):
            self.apply_voted(region)

    def apply_voted(self, region: Region) -> None:
        if region.voted is None:
            return
        entry, number = region.voted, len(region.history)
        if self.rules.on_partition == "wait":
            known = self.committed.setdefault((region.beginning, number), entry)
            assert known == entry, f"round {number} was committed as {known} and as {entry}"
        region.history.append(entry)
        self.trained = True
        region.tokens += len(entry[2])
        region.voted = None
        if self.reaches_store(region) and region.generation is not None:
            self.table.apply({LEDGER.progress(region.generation.branch): str(region.tokens)}, ())

    def together(self) -> bool:
        """All regions stand in one generation, hold its state, and none is about to leave it."""
        generations = {region.generation for region in self.regions.values()}
        (first, *others) = generations
        return (
            not others
            and first is not None
            and first.regions == self.rules.order
            and all(region.stateful and not region.left for region in self.regions.values())
        )


def settled(model: Model, steps: int) -> bool:
    """Whether the regions come together and commit two more rounds within so many steps."""
    goal = None
    for _ in range(steps):
        model.act()
        if model.together():
            rounds = {len(region.history) for region in model.regions.values()}
            goal = goal or max(rounds) + 2
            if min(rounds) >= goal:
                return True
    return False


__all__ = ["Model", "replace", "settled"]
