"""Regions whose ranks are threads of this process: their rails are mail boxes, and faults come by script."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isthmus.plan import Outer, Strategy
from isthmus.runtime.collectives.exchange import Buffers
from isthmus.runtime.courier import Courier
from isthmus.runtime.federation.states import Attempt, Rejoined, State
from isthmus.runtime.local_steps.link import RailPeers, Ran
from isthmus.runtime.wan.frames import RailError

WAIT_S = 20


class Board:
    """Where `size` threads swap values; a thread that left for good is no longer waited for."""

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=WAIT_S)

    def swap(self, place: int, value: Any) -> list[Any]:
        self.values[place] = value
        self.barrier.wait()
        everyone = list(self.values)
        self.barrier.wait()
        return everyone


class Mail:
    """Messages of one generation by (from, to, rail, tag)."""

    def __init__(self) -> None:
        self.letters: dict[Any, bytes] = {}
        self.changed = threading.Condition()
        self.broken = False

    def put(self, key: Any, letter: bytes) -> None:
        with self.changed:
            self.letters[key] = letter
            self.changed.notify_all()

    def fail(self) -> None:
        with self.changed:
            self.broken = True
            self.changed.notify_all()

    def take(self, key: Any) -> bytes:
        with self.changed:
            assert self.changed.wait_for(lambda: self.broken or key in self.letters, WAIT_S), f"nobody sent {key}"
            if self.broken:
                raise RailError("the link broke, by script")
            return self.letters.pop(key)


class MailRail:
    """What exchanges use of a `Rail`."""

    def __init__(self, mail: Mail, number: int, region: int, regions: int) -> None:
        self.mail, self.number, self.region, self.regions = mail, number, region, regions

    def send(self, peer: int, tag: int, buffer: torch.Tensor, flow: int | None = None) -> Any:
        letter = buffer.view(torch.uint8).numpy().tobytes()
        self.mail.put((self.region, peer, self.number, tag), letter)
        return SimpleNamespace(wait=lambda: None, release=lambda: None, done=True)

    def receive(self, peer: int, tag: int, into: torch.Tensor) -> Any:
        def wait() -> None:
            if not ticket.done:
                letter = self.mail.take((peer, self.region, self.number, tag))
                into.view(torch.uint8).copy_(torch.frombuffer(bytearray(letter), dtype=torch.uint8))
                ticket.done = True

        ticket = SimpleNamespace(wait=wait, done=False)
        return ticket

    def note_sent(self, data: torch.Tensor) -> None:
        """Nobody votes here."""

    def note_added(self, data: torch.Tensor) -> None:
        """Nor here."""

    def agreed_rtt_s(self, _: int) -> float:
        """Far enough that two regions swap."""
        return 1.0


class LostError(Exception):
    """This region is gone, by script."""


class Hub:
    """All regions, of `ranks` each.

    Attributes:
        faults: Rounds whose first attempt comes to its end and then does not count.
        losses: Round -> region of one rank that goes away in the midst of that round's first attempt.
        takeovers: Round -> region that, when it comes to that round, is given the others' state instead.
        elastic: Whether regions may come with nothing to bring.
    """

    def __init__(
        self,
        ranks: list[int],
        *,
        faults: set[int] | None = None,
        losses: dict[int, int] | None = None,
        takeovers: dict[int, int] | None = None,
        elastic: bool = False,
    ) -> None:
        self.ranks, self.faults, self.losses, self.takeovers = ranks, faults or set(), losses or {}, takeovers or {}
        self.elastic = elastic or bool(takeovers)
        self.rung: set[tuple[int, int]] = set()
        self.boards = [Board(count) for count in ranks]
        self._lock = threading.Lock()
        self._mails: dict[Any, Mail] = {}
        self._votes: dict[Any, Board] = {}

    def mail(self, key: Any) -> Mail:
        with self._lock:
            return self._mails.setdefault(key, Mail())

    def vote(self, key: Any, size: int) -> Board:
        with self._lock:
            return self._votes.setdefault(key, Board(size))


class HubLink:
    """An `OuterLink` with retries: what the federation does, in a few lines and by script.

    Attributes:
        digests: Of all committed rounds.
        attempts: How many there were.
        tokens: Of every committed round, as given.
        keeper: Set by tests that take over states.
    """

    def __init__(self, hub: Hub, region: int, rank: int, strategy: Strategy) -> None:
        self.hub, self.region, self.rank, self.strategy = hub, region, rank, strategy
        self.shards = max(hub.ranks)
        self.held = tuple(range(rank, self.shards, hub.ranks[region]))
        self.alive = list(range(len(hub.ranks)))
        self.courier = Courier()
        self.digests: list[int] = []
        self.attempts = 0
        self.tokens: list[int] = []
        self.keeper: Any = None
        self.elastic = hub.elastic
        self._handed = False

    def submit(self, job: Callable[[], Any]) -> "Future[Any]":
        return self.courier.submit(job)

    def run(self, attempt: Callable[[Any], Attempt], commit: Callable[[Attempt], None], tokens: int) -> Ran:
        comer = self.hub.takeovers.get(len(self.digests))
        if comer is not None and not self._handed:
            self._handed = True
            if self._hand_over(comer):
                return Ran(0, Rejoined("late"))
        tries = 0
        while (result := self._attempt(attempt, tries)) is None:
            tries += 1
        commit(result)
        self.digests.append(result.digest)
        self.tokens.append(tokens)
        self.attempts += tries + 1
        return Ran(0)

    def _hand_over(self, comer: int) -> bool:
        place = sum(self.hub.ranks[: self.region]) + self.rank
        own = {rail: self.keeper.export_state(rail) for rail in self.held}
        board = self.hub.vote("states", sum(self.hub.ranks))
        everyone = board.swap(place, own if self.region != comer else {})
        parts: dict[int, State] = {rail: part for states in everyone for rail, part in states.items() if rail in self.held}
        if self.region == comer:
            self.keeper.adopt_state(parts, Rejoined("late"))
        return self.region == comer

    def ready(self) -> Any:
        number, rung = len(self.digests), self.hub.rung
        return SimpleNamespace(
            ring=lambda: rung.add((number, self.region)),
            heard=lambda: any((number, other) in rung for other in range(len(self.hub.ranks)) if other != self.region),
        )

    def region_numbers(self, number: int) -> list[int]:
        return self.hub.boards[self.region].swap(self.rank, number)

    def _attempt(self, attempt: Callable[[Any], Attempt], tries: int) -> Attempt | None:
        hub, number = self.hub, len(self.digests)
        broken, lost = tries == 0 and number in hub.faults, hub.losses.get(number) if tries == 0 else None
        mail = hub.mail((number, tries))
        if lost == self.region:
            mail.fail()
            raise LostError
        index = self.alive.index(self.region)
        rails = {shard: MailRail(mail, shard, index, len(self.alive)) for shard in self.held}
        peers = RailPeers(rails, self.strategy, Buffers(), number)
        result = None
        try:
            result = attempt(peers)
        except RailError:
            assert lost is not None, "a link broke that the script leaves whole"
        if lost is not None:
            self.alive.remove(lost)
            result = None
        ranks = sum(hub.ranks[region] for region in self.alive)
        place = sum(hub.ranks[region] for region in self.alive if region < self.region) + self.rank
        everyone = hub.vote((number, tries), ranks).swap(place, result and result.digest)
        if None in everyone or broken:
            return None
        assert len(set(everyone)) == 1, "replicas differ"
        return result

    def gather(self, shards: dict[int, torch.Tensor]) -> torch.Tensor:
        everyone: dict[int, torch.Tensor] = {}
        for held in self.hub.boards[self.region].swap(self.rank, {number: shard.clone() for number, shard in shards.items()}):
            everyone.update(held)
        return torch.cat([everyone[number] for number in range(self.shards)])

    def prove_region(self, digest: int, what: str) -> None:
        assert len(set(self.hub.boards[self.region].swap(self.rank, digest))) == 1, what


def in_regions(ranks: int | list[int], work: Callable[..., Any], strategy: Strategy, **script: Any) -> list[Any]:
    """`work(region, link)` on every rank at once, a thread each; the results, regions laid end to end (None: was lost).

    `script` is a `Hub`'s.
    """
    hub = Hub([1] * ranks if isinstance(ranks, int) else ranks, **script)
    links = [HubLink(hub, region, rank, strategy) for region, count in enumerate(hub.ranks) for rank in range(count)]

    def run(link: HubLink) -> Any:
        try:
            return work(link.region, link)
        except LostError:
            return None

    with ThreadPoolExecutor(len(links)) as pool:
        results = [future.result(60) for future in [pool.submit(run, link) for link in links]]
    for link in links:
        link.courier.close()
    return results


def parameters(sizes: tuple[int, ...] = (4, 2)) -> list[torch.nn.Parameter]:
    """Parameters 0, 1, 2, ... of these sizes; sizes that are even have two columns."""
    values = torch.arange(sum(sizes), dtype=torch.float32).split(sizes)
    return [torch.nn.Parameter(part.clone().view(-1, 2) if part.numel() % 2 == 0 else part.clone()) for part in values]


def flat(held: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in held])


def move(held: list[torch.nn.Parameter], region: int, step: int) -> None:
    """Stand-in for an optimizer step: a change that differs by region, step, element and present value; exact in float32
    on every machine, as sines would not be."""
    with torch.no_grad():
        for number, parameter in enumerate(held):
            noise = (torch.arange(parameter.numel()) * 7 + region * 13 + step * 29 + number * 5) % 31 - 15
            parameter.mul_(0.96875).add_(noise.view_as(parameter) / 64)


def strategy(inner_steps: int = 1, delay_steps: int = 0, outer: Outer | None = None, **more: Any) -> Strategy:
    settings = {"name": "test", "kind": "local-steps", "inner_steps": inner_steps, "delay_steps": delay_steps, **more}
    return Strategy(outer=outer or Outer(), **settings)


@pytest.fixture(scope="session")
def world() -> SimpleNamespace:
    """What tests of local steps share."""
    return SimpleNamespace(in_regions=in_regions, parameters=parameters, flat=flat, move=move, strategy=strategy)
