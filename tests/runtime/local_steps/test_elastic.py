"""Regions that come back, come late or come with nothing; and local steps over the real rounds of the federation."""

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isthmus.errors import InputError
from isthmus.plan import Outer, Survival
from isthmus.runtime.courier import Courier
from isthmus.runtime.environment import Members, RankEnvironment
from isthmus.runtime.federation.rounds import Rounds
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.local_steps.link import RoundsLink, gather_shards
from isthmus.runtime.local_steps.sync import LocalSync
from isthmus.runtime.loopback import free_ports
from isthmus.runtime.wan.rail import Rail
from isthmus.runtime.world import World

NESTEROV = Outer(lr=0.8, momentum=0.5, nesterov=True)
SIZES = (40, 31, 7)


@pytest.mark.parametrize("delay", [0, 3])
@pytest.mark.parametrize("ranks", [[1, 1], [2, 3]])
def test_a_region_takes_over_the_others_state_and_trains_on_with_them(world: Any, ranks: list[int], delay: int) -> None:
    # Region 1 loses its place in round 2 (with momentum, residuals and a window of its own), and gets region 0's state.
    # Region 0's round 2 is then its own delta alone; afterwards both end at the same step with the same bits.
    rule = world.strategy(4, delay, NESTEROV, fragments=2, codec="int4")

    def work(region: int, link: Any) -> Any:
        sync = LocalSync(world.parameters(SIZES), link, rule)
        link.keeper, steps = sync, 0
        while sync.steps < 16:
            world.move(sync.parameters, region, steps)
            sync.after_step(10)
            steps += 1
        sync.flush()
        return fingerprint(sync.parameters), fingerprint(sync.loop.outer), steps, sync.discarded_tokens, sum(link.tokens)

    found = world.in_regions(ranks, work, rule, takeovers={2: 1})
    assert len({(parameters, outer) for parameters, outer, *_ in found}) == 1
    for steps, discarded, counted in [one[2:] for one in found[: ranks[0]]]:
        assert (steps, discarded, counted) == (16, 0, 160)
    for steps, discarded, counted in [one[2:] for one in found[ranks[0] :]]:
        assert steps == 16 + delay  # those it took while it did not know
        assert discarded == 10 * (2 + delay)
        assert counted + discarded == 10 * steps


def test_a_state_saved_while_its_round_turns_out_void_is_the_one_that_was_taken_over(world: Any) -> None:
    rule = world.strategy(4, 3, NESTEROV, fragments=2, codec="int4")

    def work(region: int, link: Any) -> Any:
        sync = LocalSync(world.parameters(SIZES), link, rule)
        link.keeper, steps = sync, 0
        while sync.steps < 16:
            world.move(sync.parameters, region, steps)
            sync.after_step(10)
            steps += 1
            assert isinstance(sync.state_dict(), dict)
        sync.flush()
        return fingerprint(sync.parameters), fingerprint(sync.loop.outer), steps, sync.discarded_tokens, sum(link.tokens)

    first, second = world.in_regions([1, 1], work, rule, takeovers={2: 1})
    assert first[:2] == second[:2]
    assert second[3] > 0, "nothing was taken over"
    for _, _, steps, discarded, counted in (first, second):
        assert counted + discarded == 10 * steps


def test_a_region_with_nothing_to_bring_does_not_count_in_the_mean(world: Any) -> None:
    # Averaging, K = 2: in round 1 region 1 takes over and brings nothing, so the mean is region 0's own, undiluted.
    rule = world.strategy(2)

    def work(region: int, link: Any) -> Any:
        sync = LocalSync(world.parameters((4,)), link, rule)
        link.keeper = sync
        for step in range(4):
            with torch.no_grad():
                sync.parameters[0].add_(1.0 + region)
            sync.after_step()
            if step == 1:
                sync.parameters[0].detach().fill_(0.0)
                sync.applied[0] = sync.loop.outer[0] = torch.zeros(4)
        return sync.parameters[0].detach()[0].tolist()

    first, second = world.in_regions(2, work, rule, takeovers={1: 1})
    assert first == second == [2.0, 2.0]


@pytest.mark.parametrize(("momentum", "share"), [(0.0, 4), (0.9, 8)])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_newcomer_fetches_the_outer_state_and_little_more(world: Any, momentum: float, share: int, shards: int) -> None:
    class Rank:
        elastic = True

        def __init__(self, held: tuple[int, ...]) -> None:
            self.shards, self.held = shards, held

    sizes = (4000, 3100, 700)
    rule = world.strategy(4, 0, Outer(lr=0.7, momentum=momentum), fragments=2)
    states = [
        LocalSync(world.parameters(sizes), Rank((shard,)), rule).export_state(shard) for shard in range(shards)
    ]
    sent = sum(len(json.dumps(dict(state.record))) for state in states)
    sent += sum(tensor.nbytes + len(name) + 32 for state in states for name, tensor in state.tensors.items())
    assert share * sum(sizes) <= sent <= 1.05 * share * sum(sizes)


def watch(sync: LocalSync) -> dict[int, torch.Tensor]:
    """What `sync` brings to rounds from now on, summed up by fragment."""
    brought = {number: torch.zeros(fragment.elements) for number, fragment in enumerate(sync.fragments)}
    original = sync.loop.round

    def watched(given: Any, life: int) -> Any:
        arrival = original(given, life)
        if given is not None:
            brought[given.fragment] += given.sent - given.base
        return arrival

    sync.loop.round = watched  # type: ignore[method-assign]
    return brought


def until(condition: Any) -> bool:
    """Wait until `condition`, for ten seconds at most."""
    pause = threading.Event()
    return any(condition() or pause.wait(0.002) for _ in range(5000))


@pytest.mark.parametrize("ranks", [[1, 1], [2, 1], [1, 2]])
@pytest.mark.parametrize("weight", ["equal", "tokens"])
def test_a_slow_region_neither_holds_the_others_up_nor_loses_a_step(world: Any, ranks: list[int], weight: str) -> None:
    # Region 1 takes one step for eight of region 0. Every step adds 1/4 or 1/2 to every element, so whatever was brought to
    # rounds must add up, fragment by fragment, to the steps that were taken: nothing is lost, nothing counts twice.
    rule, steps = world.strategy(6, 1, fragments=3, weight=weight), [48, 6]
    pace = [threading.Semaphore(0) for _ in range(ranks[1])]

    def work(region: int, link: Any) -> Any:
        sync = LocalSync(world.parameters((40, 31, 7)), link, rule, grace_s=0.04)
        brought = watch(sync)
        sync.settle()
        for step in range(steps[region]):
            if region == 1:
                assert pace[link.rank].acquire(timeout=20)
            elif not until(lambda step=step: sync.loop.rounds >= step // 6):
                raise AssertionError("the slow region held up the fast one")
            with torch.no_grad():
                for parameter in sync.parameters:
                    parameter.add_(0.25 * (1 + region))
            sync.after_step(10)
            if region == 0 and link.rank == 0 and step % 8 == 7:
                for semaphore in pace:
                    semaphore.release()
        sync.flush()
        sizes = [sum(fragment.sizes) for fragment in sync.fragments]
        moved = torch.cat([brought[number][:size] for number, size in enumerate(sizes)])
        return fingerprint(sync.parameters), fingerprint(sync.loop.outer), moved, sum(link.tokens), sync.windows

    found = world.in_regions(ranks, work, rule, elastic=True)
    assert len({(parameters, outer) for parameters, outer, *_ in found}) == 1
    for place, (_, _, moved, counted, windows) in enumerate(found):
        region = int(place >= ranks[0])
        assert counted == 10 * steps[region]
        torch.testing.assert_close(moved, torch.full((78,), 0.25 * (1 + region) * steps[region]), rtol=0, atol=1e-3)
        assert region == 0 or windows.late_rounds > 0


class Still:
    """A link for questions about the cut only."""

    shards, held, elastic = 1, (0,), False


def test_a_grace_needs_rounds_that_a_region_may_miss(world: Any) -> None:
    with pytest.raises(InputError, match=r"^survival.grace_s: needs rounds that a region may miss"):
        LocalSync(world.parameters(), Still(), world.strategy(), grace_s=1.0)


@pytest.mark.parametrize("ranks", [[1, 1], [2, 1]])
def test_a_state_taken_while_rounds_go_on_is_one_rounds_on_all_ranks_of_a_region(ranks: list[int], world: Any) -> None:
    def work(region: int, link: Any) -> Any:
        sync, taken = LocalSync(world.parameters((8, 6)), link, link.strategy, grace_s=0.02), []
        for step in range(40):
            world.move(sync.parameters, region, step)
            sync.after_step(10)
            if step % 7 == region:
                taken.append(sync.state_dict())
        sync.flush()
        return taken, fingerprint(sync.loop.outer)

    found = world.in_regions(ranks, work, world.strategy(4, outer=Outer(lr=0.7, momentum=0.9)), elastic=True)
    assert len({outer for _, outer in found}) == 1
    for state in found[0][0]:
        record = json.loads(state["record"])
        assert 0 <= sum(record["tokens"]) <= 10 * 40
    for one, other in zip(found[0][0], found[1][0], strict=True) if ranks == [2, 1] else ():
        assert json.loads(one["record"])["rounds"] == json.loads(other["record"])["rounds"]
        assert all(torch.equal(one["outer"][key], other["outer"][key]) for key in one["outer"])


class Group:
    """The one call of a process group that is used, between threads."""

    def __init__(self, size: int) -> None:
        self.barrier, self.board = threading.Barrier(size, timeout=20), [torch.empty(0)] * size
        self.local = threading.local()

    def allgather(self, into: list[list[torch.Tensor]], mine: list[torch.Tensor]) -> Any:
        self.board[self.local.rank] = mine[0].clone()
        self.barrier.wait()
        for target, value in zip(into[0], self.board, strict=True):
            target.copy_(value)
        self.barrier.wait()
        return SimpleNamespace(wait=lambda: None)


@pytest.mark.parametrize(("ranks", "shards"), [(1, 4), (2, 2), (2, 3), (3, 7), (4, 5)])
def test_shards_dealt_to_ranks_by_their_number_come_back_in_order(ranks: int, shards: int) -> None:
    group, found = Group(ranks), [torch.empty(0)] * ranks

    def work(rank: int) -> None:
        group.local.rank = rank
        given = {number: torch.arange(3.0) + 10 * number for number in range(rank, shards, ranks)}
        found[rank] = gather_shards(group, ranks, shards, given)  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    expected = torch.cat([torch.arange(3.0) + 10 * number for number in range(shards)])
    assert all(torch.equal(whole, expected) for whole in found)


@pytest.mark.parametrize("grace", [None, 5.0])
def test_over_real_rounds_and_rails_the_result_is_that_of_the_script(world: Any, grace: float | None) -> None:
    # Two regions over sockets and `Rounds` without a store; the bits of the threads' mail boxes.
    rule = world.strategy(4, 3, NESTEROV, fragments=2, codec="int4", weight="tokens")
    listed = [{"name": f"r{number}", "rails": [f"127.0.0.1:{port}"]} for number, port in enumerate(free_ports(2))]
    members = Members.model_validate({"regions": listed})

    def train(region: int, link: Any, grace_s: float | None) -> Any:
        sync = LocalSync(world.parameters(SIZES), link, rule, grace_s=grace_s)
        for step in range(13):
            world.move(sync.parameters, region, step)
            sync.after_step(10 + region)
        sync.flush()
        return fingerprint(sync.parameters), sync.loop.counted_tokens

    def real(region: int, results: list[Any]) -> None:
        environment = RankEnvironment(
            rank=0,
            world_size=1,
            master=None,
            region=f"r{region}",
            region_index=region,
            members=members,
            plan_path=None,
            metrics_dir=None,
            blocks=None,
        )

        def opener(generation: Any, timeout_s: float) -> dict[int, Rail]:
            return {0: Rail.open(members, region, 0, 2, 20.0, generation=generation.number)}

        courier = Courier()
        rounds = Rounds(environment, World(), None, opener, Survival(start_s=20.0))
        try:
            courier.submit(rounds.open).result(30)
            results[region] = train(region, RoundsLink(environment, None, courier, rounds, rule), grace)
            courier.submit(rounds.close).result(30)
        finally:
            courier.close()

    results: list[Any] = [None, None]
    threads = [threading.Thread(target=real, args=(region, results)) for region in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if grace is None:
        assert results == world.in_regions(2, lambda region, link: train(region, link, None), rule)
    assert results[0][0] == results[1][0]
    assert [counted for _, counted in results] == [130, 143]
