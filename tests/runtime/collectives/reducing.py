"""All-reduces by each rank of several regions: scenarios of nursery.py. Each rank says one JSON line at its end."""

import contextlib
import json
import os
import signal
import threading
import time
from typing import Any

import torch

from isthmus.plan import Strategy, load_plan
from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, Rails, ReducerOptions
from isthmus.runtime.collectives.near import Near
from isthmus.runtime.environment import Members, RankEnvironment, read_environment
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.opening import RailOpener
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import RailError, federation_id
from isthmus.runtime.wan.rail import Rail, RailOptions
from isthmus.runtime.world import World, open_world


def place() -> tuple[RankEnvironment, Members, Strategy, World]:
    environment = read_environment()
    assert environment.members is not None
    assert environment.plan_path is not None
    strategy = load_plan(environment.plan_path).strategy
    return environment, environment.members, strategy, open_world(environment, flat=False, timeout_s=60.0)


def values(region: int, rank: int, size: int, number: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * number + 10 * region + rank))


def open_reducer(options: dict[str, Any]) -> tuple[RankEnvironment, Rail, HierarchicalReducer]:
    environment, members, strategy, world = place()
    options_of_rail = RailOptions(rate_bytes_per_s=options.get("rate"))
    where = members, environment.region_index, environment.rank
    rail = Rail.open(*where, 3, options.get("silence_s", 60.0), options_of_rail)
    group = world.comm_group if environment.world_size > 1 else None
    staged = environment.region_index in options.get("staged", [])
    if options.get("far"):
        Near.find = classmethod(lambda *_: None)  # type: ignore[method-assign]
    how = ReducerOptions(segment_bytes=1 << 16, staged=staged)
    return environment, rail, HierarchicalReducer(group, rail, strategy.codec, how)


def all_reduce(options: dict[str, Any], *_: Any) -> None:
    """Rounds of two tensors, one after the other and together; then undone, and inside the region only."""
    environment, rail, reducer = open_reducer(options)
    region, rank, size, ranks = environment.region_index, environment.rank, options["size"], environment.world_size
    hashes, error = list[int](), 0.0
    for number in range(3):
        tensors = [values(region, rank, size), values(region, rank, size)[: size // 3].clone()]
        if number < 2:
            for tag, tensor in enumerate(tensors):
                reducer.all_reduce_(tensor, tag)
        else:
            for each in [reducer.begin(tensor, tag) for tag, tensor in enumerate(tensors)]:
                reducer.finish(each)
        hashes.append(fingerprint(tensors))
        if number == 0:
            everyone = [(r, k) for r in range(environment.regions) for k in range(ranks)]
            error = float((tensors[0] - sum(values(*who, size) for who in everyone) / len(everyone)).abs().max())
    # Undoing: from the same state the same bits, codec noise and residuals included.
    state = reducer.state_dict()
    first, meeting, second, inside = (values(region, rank, size) for _ in range(4))
    reducer.all_reduce_(first, 0)
    rail.flush()
    reducer.all_reduce_(meeting, 2)
    reducer.load_state_dict(state)
    reducer.all_reduce_(second, 0)
    reducer.between_regions = False
    reducer.all_reduce_(inside, 0)
    own = sum(values(region, k, size) for k in range(ranks)) / ranks
    apart = float((inside - own).abs().max())
    print(json.dumps({"hashes": hashes, "error": error, "undone": torch.equal(first, second), "inside": apart}), flush=True)
    rail.close()


def hasty(options: dict[str, Any], *_: Any) -> None:
    """Every rank spoils its tensor as soon as it has it back, while rank 1 is slow to read what lies in the others' memory."""
    environment, rail, reducer = open_reducer(options)
    if environment.rank == 1:
        read = Near.read

        def late(self: Near, rank: int, address: int, into: torch.Tensor) -> None:
            time.sleep(0.02)
            read(self, rank, address, into)

        Near.read = late  # type: ignore[method-assign]
    hashes = list[int]()
    for number in range(3):
        tensor = values(environment.region_index, environment.rank, options["size"], number)
        reducer.all_reduce_(tensor, 0)
        hashes.append(fingerprint([tensor]))
        tensor.fill_(float("nan"))
    print(json.dumps({"hashes": hashes, "near": reducer.region.near is not None}), flush=True)
    rail.close()


def lose(options: dict[str, Any], *_: Any) -> None:
    """In the middle of 20 MB at 4 MB/s the last region's rank gets a signal; the other says what it makes of it."""
    environment, _, reducer = open_reducer(options | {"rate": 4e6})
    delay_s = 1.0
    if environment.region_index == environment.regions - 1:
        threading.Timer(delay_s, lambda: os.kill(os.getpid(), getattr(signal, options["signal"]))).start()
    begun_s = time.monotonic()
    try:
        reducer.all_reduce_(values(environment.region_index, environment.rank, 5_000_000), 1)
    except RailError as error:
        seconds = time.monotonic() - begun_s - delay_s
        print(json.dumps({"error": type(error).__name__, "text": str(error), "seconds": seconds}), flush=True)
        os._exit(0)  # what is queued would be sent at 4 MB/s
    raise AssertionError("the all-reduce succeeded")


class Again:
    """Rounds over generations of rails: unbroken ones, and the same where one has to be repeated."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.environment, self.members, self.strategy, self.world = place()
        self.options, self.size = options, options["size"]
        self.region, self.rank = self.environment.region_index, self.environment.rank
        own = self.members.regions[self.region].address(self.rank)
        door = Door(own, federation_id(self.members), self.region)
        self.opener = RailOpener(self.environment, door, 2, RailOptions(), 20.0)

    def rails(self, generation: int) -> Rails:
        regions = self.options["generations"][generation]
        if self.environment.region not in regions:
            os._exit(0)
        carried = {}
        if len(regions) > 1:
            carried = self.opener(Generation(number=generation, regions=tuple(regions)), 20.0)
        taking_part = tuple(region.ranks for region in self.members.regions if region.name in regions)
        return Rails(carried, self.members.rails, taking_part)

    def reducer(self, generation: int) -> HierarchicalReducer:
        group = self.world.comm_group if self.environment.world_size > 1 else None
        options = ReducerOptions(segment_bytes=1 << 14, retry=True, staged=self.region in self.options.get("staged", []))
        return HierarchicalReducer(group, self.rails(generation), self.strategy.codec, options)

    def given(self, number: int) -> list[torch.Tensor]:
        whole = values(self.region, self.rank, self.size, number)
        return [whole, whole[: self.size // 3].clone()]

    def round(self, reducer: HierarchicalReducer, number: int, fail_into: int | None = None) -> list[torch.Tensor]:
        tensors = self.given(number)
        under_way = [reducer.begin(tensor, tag, 10 * self.size * tag) for tag, tensor in enumerate(tensors)]
        if fail_into is not None:
            if self.options.get("dies") == self.environment.region:
                if self.world.comm_group is not None and self.environment.world_size > 1:
                    self.world.comm_group.barrier().wait()  # its own ranks are done with each other: the region goes as a whole
                os._exit(0)
            # One part has come in when a region dies, or all drop what they have. Each rank finds out when it does, and all must
            # still make the same calls inside the region.
            for each in under_way if self.options.get("dies") is not None else under_way[:1]:
                with contextlib.suppress(RailError):
                    reducer.finish(each)
            close(reducer)
            reducer.renew(self.rails(fail_into))
            for each in under_way:
                reducer.again(each)
        for each in under_way:
            reducer.finish(each)
        reducer.commit(under_way)
        return tensors


def close(reducer: HierarchicalReducer) -> None:
    assert reducer.rails is not None
    for rail in reducer.rails.carried.values():
        rail.close()


def again(options: dict[str, Any], *_: Any) -> None:
    """Three rounds in generation 0; in 1 the same, of which the second ends in 2."""
    ranks = Again(options)
    reducer = ranks.reducer(0)
    unbroken = [fingerprint(ranks.round(reducer, number)) for number in range(3)]
    owed = reducer.state_dict()
    close(reducer)
    reducer = ranks.reducer(1)
    broken = [fingerprint(ranks.round(reducer, 0))]
    tensors = ranks.round(reducer, 1, fail_into=2)
    broken.append(fingerprint(tensors))
    last = options["generations"][2]
    everyone = [(r, k) for r, region in enumerate(ranks.members.regions) if region.name in last for k in range(region.ranks)]
    mean = sum(values(*who, ranks.size, 1) for who in everyone) / len(everyone)
    error = float((tensors[0] - mean).abs().max())
    broken.append(fingerprint(ranks.round(reducer, 2)))
    found = reducer.state_dict()
    same = found["epochs"] == owed["epochs"] and fingerprint(found["feedback"].values()) == fingerprint(owed["feedback"].values())
    close(reducer)
    print(json.dumps({"error": error, "unbroken": unbroken, "broken": broken, "same": same}), flush=True)
