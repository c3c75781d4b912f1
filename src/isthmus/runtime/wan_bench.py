"""Measure the links between regions through the rails that training takes: round trip, goodput by streams, all-reduce.

Every rank of every region runs this, in the same order. One pair of regions at a time; all rails of it at once, as in training.
"""

import json
import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist

from isthmus.errors import InputError
from isthmus.formats.nccl_table import Measured, Place
from isthmus.formats.wan_measurements import Goodput, RoundTrip
from isthmus.plan import CodecName
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, Rails, ReducerOptions
from isthmus.runtime.environment import Members, RankEnvironment
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import federation_id
from isthmus.runtime.wan.identity import Identity
from isthmus.runtime.wan.rail import Rail, RailOptions
from isthmus.runtime.wan_transfer import Way, agreed_amount, ping, told_retransmits, transfer
from isthmus.runtime.world import World, open_world

__all__ = ["LinkState", "WanBench", "WanFound", "opened"]

PINGS = 50
OPEN_S = 60.0
_OWN = 1 << 62  # apart from the tags of all-reduces


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """What the kernel said of a link's first rail at the sender: how it was driven, and whether its buffers hold the window.

    Attributes:
        sender, receiver: Which way.
        streams: TCP connections a rail.
        congestion: Control in force.
        encrypted: Inside TLS 1.3.
        network_rtt_s: The kernel's least.
        window_limit_bytes: What net.ipv4.tcp_wmem and tcp_rmem let one stream keep in flight.
    """

    sender: str
    receiver: str
    streams: int
    congestion: str
    encrypted: bool
    network_rtt_s: float
    window_limit_bytes: int


@dataclass(slots=True)
class WanFound:
    """All that one region saw, later all that all did."""

    goodputs: list[Goodput] = field(default_factory=list[Goodput])
    trips: list[RoundTrip] = field(default_factory=list[RoundTrip])
    states: list[LinkState] = field(default_factory=list[LinkState])

    def as_text(self) -> str:
        """For a message to another region."""
        return json.dumps([[asdict(each) for each in part] for part in (self.goodputs, self.trips, self.states)])

    def add(self, text: str) -> None:
        """What another region sent."""
        goodputs, trips, states = json.loads(text)
        self.goodputs += [Goodput(**each | {"between": tuple(each["between"])}) for each in goodputs]
        self.trips += [RoundTrip(**each | {"between": tuple(each["between"])}) for each in trips]
        self.states += [LinkState(**each) for each in states]


@contextmanager
def opened(environment: RankEnvironment) -> "Generator[WanBench]":
    """The bench of this rank, its world and its door.

    Raises:
        InputError: There are no other regions, or no keys for addresses beyond loopback.
    """
    members = environment.members
    if members is None or len(members.regions) < 2:
        found = "ISTHMUS_MEMBERS is not set" if members is None else "members.json has one region"
        raise InputError("--members", f"{found}: a link needs two", "members.json of `isthmus deploy`, or --here a=1,b=1")
    torch.set_num_threads(1)
    identity = Identity.load(environment.keys, environment.region) if environment.keys else None
    own = members.regions[environment.region_index].rails[environment.rank]
    world = open_world(environment, flat=False, timeout_s=OPEN_S)
    door = Door(own, federation_id(members), environment.region_index, identity, insecure=environment.insecure)
    try:
        yield WanBench(environment, members, world, door)
    finally:
        door.close()
        world.close()


class WanBench:
    """Runs in step on all ranks of all regions.

    Attributes:
        leads: This rank is the first of the first region, and has everything in the end.
        found: What was measured so far.
    """

    def __init__(self, environment: RankEnvironment, members: Members, world: World, door: Door) -> None:
        self.environment, self.members, self.world = environment, members, world
        self.names = tuple(region.name for region in members.regions)
        self.leads = environment.region_index == 0 and environment.rank == 0
        self.found = WanFound()
        self._door, self._generation = door, 0
        self._rails: dict[int, Rail] = {}
        self._step = 0
        self._source = f"isthmus bench wan, {'TLS' if environment.keys else 'plain TCP'}"

    @contextmanager
    def rails(self, streams: int) -> Generator[None]:
        """Inside, this rank's rails are open with that many streams to each other region."""
        self._generation += 1
        with ExitStack() as stack:
            for number in self.environment.rails:
                options = RailOptions(insecure=self.environment.insecure)
                place = self.members, self.environment.region_index, number
                rail = Rail.open(*place, streams, OPEN_S, options, generation=self._generation, door=self._door)
                self._rails[number] = stack.enter_context(rail)
            self._together()
            yield
            self._together()
        self._rails = {}

    def round_trips(self) -> None:
        """Of every pair of regions, on its first rail."""
        for pair in self._pairs():
            own, peer = self._own_and_peer(pair)
            base = self._next_step()
            if peer is not None and 0 in self._rails:
                times = [ping(self._rails[0], peer, base + 2 * one, own == pair[0]) for one in range(PINGS)]
                if own == pair[0]:
                    ordered = sorted(times[2:])
                    trip = RoundTrip(
                        between=self._between(pair), rtt_s=statistics.median(ordered), rtt_min_s=ordered[0],
                        rtt_p99_s=ordered[int(0.99 * (len(ordered) - 1))], source=self._source,
                    )  # fmt: skip
                    self.found.trips.append(trip)
            self._together()

    def goodput(self, streams: int, seconds: float) -> Iterator[str]:
        """Both ways over every pair, one after the other and then at once, each for about `seconds`; yields what is next."""
        for pair in self._pairs():
            i, j = pair
            for senders in ((i,), (j,), (i, j)):
                ways = " and ".join(f"{self.names[a]} to {self.names[j if a == i else i]}" for a in senders)
                yield f"{ways}, {streams} streams"
                self._one_transfer(pair, senders, streams, seconds)
                self._together()

    def gather(self) -> None:
        """The first region's first rank learns what all regions' first ranks know."""
        tag = self._next_step()
        if self.environment.rank != 0:
            return
        rail = self._rails[0]
        if not self.leads:
            text = self.found.as_text().encode()
            rail.send(0, tag, len(text).to_bytes(8, "little")).wait()
            rail.send(0, tag + 1, text).wait()
            return
        for peer in range(1, len(self.names)):
            size = bytearray(8)
            rail.receive(peer, tag, size).wait()
            into = bytearray(int.from_bytes(size, "little"))
            rail.receive(peer, tag + 1, into).wait()
            self.found.add(into.decode())

    def agree(self, value: int) -> int:
        """The leader's `value`, on all ranks."""
        tag = self._next_step()
        number = torch.tensor([value], dtype=torch.int64)
        if self.environment.rank == 0:
            rail = self._rails[0]
            if self.leads:
                for ticket in [rail.send(peer, tag, number) for peer in range(1, len(self.names))]:
                    ticket.wait()
            else:
                rail.receive(0, tag, number).wait()
        if self.environment.world_size > 1:
            dist.broadcast(number, 0, group=self.world.region_group)
        return int(number)

    def best_streams(self) -> int:
        """Fewest that bring the slowest link within 2% of the best, by what was gathered; on the leader."""
        rates: dict[int, float] = {}
        for each in self.found.goodputs:
            if not each.both_ways:
                rates[each.streams] = min(rates.get(each.streams, each.bytes_per_s), each.bytes_per_s)
        best = max(rates.values())
        return min(streams for streams, rate in rates.items() if rate >= 0.98 * best)

    def places(self) -> list[Place]:
        """Every rank of every region, for the head of a table."""
        of_all = [(region.name, rank) for region in self.members.regions for rank in range(region.ranks)]
        return [
            Place(rank=number, pid=0, host=name, device=rank, bus="0000:00:00", name="CPU")
            for number, (name, rank) in enumerate(of_all)
        ]

    def exchange(self, sizes: Sequence[int], codec: CodecName, warmup: int, iters: int) -> Iterator[Measured]:
        """The hierarchical all-reduce of each size, over all ranks of all regions; every sum is checked."""
        group = self.world.comm_group if self.environment.world_size > 1 else None
        counts = tuple(region.ranks for region in self.members.regions)
        reducer = HierarchicalReducer(
            group, Rails(dict(self._rails), self.members.rails, counts), codec, ReducerOptions(average=False)
        )
        total = sum(counts) * (sum(counts) + 1) / 2
        for number, size in enumerate(sizes):
            tensor = torch.full((size // 4,), float(self.environment.global_rank + 1))
            reducer.all_reduce_(tensor, number)
            near = 1e-6 if codec == "none" else 0.25
            wrong = int(((tensor - total).abs() > near * total).sum())
            halves = [self._timed(reducer, tensor, number, warmup, iters) for _ in range(2)]
            yield Measured(size_bytes=size, seconds=halves[0], in_place_s=halves[1], wrong=wrong)

    def _timed(self, reducer: HierarchicalReducer, tensor: torch.Tensor, tag: int, warmup: int, iters: int) -> float:
        tensor.zero_()
        for _ in range(warmup):
            reducer.all_reduce_(tensor, tag)
        self._together()
        begun_s = time.perf_counter()
        for _ in range(iters):
            reducer.all_reduce_(tensor, tag)
        return self._over_region((time.perf_counter() - begun_s) / iters) / self.environment.world_size

    def _one_transfer(self, pair: tuple[int, int], senders: tuple[int, ...], streams: int, seconds: float) -> None:
        own, peer = self._own_and_peer(pair)
        base = self._next_step()
        if peer is None:
            return
        way = Way(peer=peer, base=base, sends=own in senders, receives=peer in senders)
        before = {number: rail.counters()[self.names[peer]].retransmits for number, rail in self._rails.items()}
        amounts = {number: agreed_amount(rail, way, seconds) for number, rail in self._rails.items()}
        self._together_in_region()
        rate = self._over_region(transfer(self._rails, way, amounts))
        uses = {number: rail.counters()[self.names[peer]] for number, rail in self._rails.items()}
        again = int(self._over_region(float(sum(use.retransmits - before[number] for number, use in uses.items()))))
        if self.environment.rank != 0:
            return
        resent, first = told_retransmits(self._rails[0], way, again), uses[0]
        if way.sends:
            self.found.states.append(
                LinkState(
                    sender=self.names[own], receiver=self.names[peer], streams=streams, congestion=first.congestion,
                    encrypted=first.encrypted, network_rtt_s=first.rtt_s_min, window_limit_bytes=first.window_bytes_limit,
                )
            )  # fmt: skip
        if way.receives:
            self.found.goodputs.append(
                Goodput(
                    between=self._between(pair), sender=self.names[peer], receiver=self.names[own], streams=streams,
                    both_ways=len(senders) > 1, bytes_per_s=rate, retransmits=resent, source=self._source,
                )
            )  # fmt: skip

    def _pairs(self) -> list[tuple[int, int]]:
        count = len(self.names)
        return [(i, j) for i in range(count) for j in range(i + 1, count)]

    def _own_and_peer(self, pair: tuple[int, int]) -> tuple[int, int | None]:
        own = self.environment.region_index
        return own, None if own not in pair else pair[1] if own == pair[0] else pair[0]

    def _between(self, pair: tuple[int, int]) -> tuple[str, str]:
        return self.names[pair[0]], self.names[pair[1]]

    def _next_step(self) -> int:
        """The first tag of the next step, which all ranks take whether or not they have a part in it."""
        self._step += 1
        return _OWN | self._step << 20

    def _together(self) -> None:
        """All ranks of all regions are here."""
        self._together_in_region()
        tag = self._next_step()
        for number, rail in self._rails.items():
            peers = [peer for peer in range(rail.regions) if peer != self.environment.region_index]
            heard = [rail.receive(peer, tag, bytearray(8)) for peer in peers]
            said = [rail.send(peer, tag, number.to_bytes(8, "little")) for peer in peers]
            for ticket in (*heard, *said):
                ticket.wait()
        self._together_in_region()

    def _together_in_region(self) -> None:
        if self.environment.world_size > 1:
            dist.barrier(group=self.world.region_group)

    def _over_region(self, value: float) -> float:
        """The sum over the region's ranks."""
        if self.environment.world_size == 1:
            return value
        number = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(number, group=self.world.region_group)
        return float(number)
