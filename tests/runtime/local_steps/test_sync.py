"""Local steps: the outer rule against torch's own SGD, and rounds between regions that are threads of this process."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import InputError
from isthmus.plan import Outer, Strategy
from isthmus.runtime.local_steps.sync import LocalSync, OuterLink, outer_step_


class Hub:
    """Where the links of all regions meet, in place of a network."""

    def __init__(self, regions: int) -> None:
        self.barrier = threading.Barrier(regions, timeout=20)
        self.board: list[Any] = [None] * regions

    def swap(self, region: int, value: Any) -> list[Any]:
        self.board[region] = value
        self.barrier.wait()
        everyone = list(self.board)
        self.barrier.wait()
        return everyone


class HubLink:
    """An `OuterLink` of one rank a region; `digests` keeps every fingerprint it was asked to prove."""

    region_size, rank = 1, 0

    def __init__(self, hub: Hub, region: int, regions: int) -> None:
        self.hub, self.region, self.regions = hub, region, regions
        self.courier = ThreadPoolExecutor(1)
        self.digests: list[int] = []
        self.rounds, self.noise = 0, 0.0

    def submit(self, job: Callable[[], Any]) -> "Future[Any]":
        return self.courier.submit(job)

    def mean_(self, shard: torch.Tensor) -> int:
        shard.copy_(torch.stack(self.hub.swap(self.region, shard.clone())).sum(0).div_(self.regions))
        if self.noise:  # as a codec's, it depends on how many rounds there were
            shard.add_(self.noise * math.sin(self.rounds))
        self.rounds += 1
        return shard.nbytes

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        return shard.clone()

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]

    def numbers(self, number: int) -> list[int]:
        return self.hub.swap(self.region, number)

    def prove_region(self, digest: int, what: str) -> None:
        """One rank a region has nobody to compare with."""

    def prove(self, digest: int, what: str) -> None:
        self.digests.append(digest)
        assert len(set(self.hub.swap(self.region, digest))) == 1, what


def in_regions(regions: int, work: Callable[[int, OuterLink], Any]) -> list[Any]:
    """Run `work(region, link)` for all regions at once, each on its own thread."""
    hub = Hub(regions)
    links = [HubLink(hub, region, regions) for region in range(regions)]
    with ThreadPoolExecutor(regions) as pool:
        futures = [pool.submit(work, region, link) for region, link in enumerate(links)]
        results = [future.result(30) for future in futures]
    for link in links:
        link.courier.shutdown()
    return results


def parameters(size: int = 6) -> list[torch.nn.Parameter]:
    values = torch.arange(size, dtype=torch.float32)
    return [torch.nn.Parameter(values[:4].clone().view(2, 2)), torch.nn.Parameter(values[4:].clone())]


def flat(held: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in held])


def move(held: list[torch.nn.Parameter], region: int, step: int) -> None:
    """Stand-in for an optimizer step: a change that differs by region, step, element and present value."""
    with torch.no_grad():
        for parameter in held:
            parameter.mul_(0.97).add_(
                torch.sin(torch.arange(parameter.numel()) + 3.7 * region + step).view_as(parameter), alpha=0.1
            )


def strategy(inner_steps: int = 1, delay_steps: int = 0, outer: Outer | None = None) -> Strategy:
    return Strategy(
        name="test",
        kind="local-steps",
        inner_steps=inner_steps,
        delay_steps=delay_steps,
        outer=outer or Outer(),
    )


@settings(deadline=None)
@given(
    lr=st.floats(0.1, 1.5),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    nesterov=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_outer_rule_is_torch_sgd(lr: float, momentum: float, nesterov: bool, seed: int) -> None:
    nesterov = nesterov and momentum > 0
    generator = torch.Generator().manual_seed(seed)
    outer = torch.randn(7, generator=generator)
    held = torch.nn.Parameter(outer.clone())
    reference = torch.optim.SGD([held], lr=lr, momentum=momentum, nesterov=nesterov)
    state = torch.zeros(7)
    for _ in range(4):
        held.grad = torch.randn(7, generator=generator)
        outer_step_(outer, state, held.grad.clone(), Outer(lr=lr, momentum=momentum, nesterov=nesterov))
        reference.step()
    torch.testing.assert_close(outer, held.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("regions", [2, 3])
def test_one_inner_step_with_outer_rate_one_is_parameter_averaging(regions: int) -> None:
    def work(region: int, link: OuterLink) -> torch.Tensor:
        held = parameters()
        sync = LocalSync(held, link, strategy())
        for step in range(5):
            move(held, region, step)
            sync.after_step()
        return flat(held)

    replicas = [parameters() for _ in range(regions)]
    for step in range(5):
        for region, held in enumerate(replicas):
            move(held, region, step)
        mean = torch.stack([flat(held) for held in replicas]).mean(0)
        for held in replicas:
            with torch.no_grad():
                held[0].copy_(mean[:4].view(2, 2))
                held[1].copy_(mean[4:])
    for found in in_regions(regions, work):
        torch.testing.assert_close(found, flat(replicas[0]), rtol=0, atol=2e-6)


def test_a_delayed_round_keeps_what_was_learned_meanwhile() -> None:
    # K = 3, delay 2. Region r adds 1 + r to every element at each step, so at step 3 the regions are +3 and +6 from the
    # start and the mean is +4.5; two more steps add 2 and 4 on top of it.
    def work(region: int, link: OuterLink) -> list[torch.Tensor]:
        held = parameters()
        sync, start, seen = LocalSync(held, link, strategy(3, 2)), flat(held), []
        for _ in range(5):
            with torch.no_grad():
                for parameter in held:
                    parameter.add_(1.0 + region)
            sync.after_step()
            seen.append(flat(held) - start)
        return seen

    first, second = in_regions(2, work)
    assert [float(values[0]) for values in first] == [1, 2, 3, 4, 4.5 + 2]
    assert [float(values[0]) for values in second] == [2, 4, 6, 8, 4.5 + 4]


@settings(deadline=None, max_examples=25)
@given(data=st.data(), inner=st.integers(1, 5), steps=st.integers(1, 14), momentum=st.sampled_from([0.0, 0.6]))
def test_after_a_flush_all_members_are_bit_identical(data: st.DataObject, inner: int, steps: int, momentum: float) -> None:
    delay = data.draw(st.integers(0, inner))

    def work(region: int, link: OuterLink) -> tuple[torch.Tensor, torch.Tensor]:
        held = parameters()
        sync = LocalSync(held, link, strategy(inner, delay, Outer(lr=0.9, momentum=momentum, nesterov=momentum > 0)))
        for step in range(steps):
            move(held, region, step)
            sync.after_step()
        sync.flush()
        return flat(held), sync.outer

    results = in_regions(2, work)
    for held, outer in results:
        assert torch.equal(held, results[0][0])
        assert torch.equal(held, outer)


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 6, 7, 9])
def test_resuming_from_a_state_is_bit_exact_also_inside_a_round(cut: int) -> None:
    rule = strategy(3, 2, Outer(lr=0.8, momentum=0.7, nesterov=True))

    def whole(region: int, link: Any) -> torch.Tensor:
        held, link.noise = parameters(), 0.01
        sync = LocalSync(held, link, rule)
        for step in range(11):
            move(held, region, step)
            sync.after_step(7)
        return torch.cat([flat(held), sync.outer, sync.momentum])

    def resumed(region: int, link: Any) -> torch.Tensor:
        held, link.noise = parameters(), 0.01
        sync = LocalSync(held, link, rule)
        for step in range(cut):
            move(held, region, step)
            sync.after_step(7)
        saved, values = sync.state_dict(), [parameter.detach().clone() for parameter in held]
        fresh = [torch.nn.Parameter(value) for value in values]
        link.rounds = 99  # a new process knows nothing of the rounds before
        again = LocalSync(fresh, link, rule)
        again.load_state_dict(saved)
        for step in range(cut, 11):
            move(fresh, region, step)
            again.after_step(7)
        return torch.cat([flat(fresh), again.outer, again.momentum])

    for expected, found in zip(in_regions(2, whole), in_regions(2, resumed), strict=True):
        assert torch.equal(expected, found)


def test_a_state_of_another_model_is_refused() -> None:
    def work(_: int, link: OuterLink) -> str:
        saved = LocalSync(parameters(6), link, strategy()).state_dict()
        other = LocalSync(parameters(7), link, strategy())
        with pytest.raises(InputError) as caught:
            other.load_state_dict(saved)
        return str(caught.value)

    assert in_regions(1, work)[0].startswith("state: holds 6 outer parameters in shards of 6, this rank has 7 in shards of 7")


def test_a_state_is_not_loaded_over_a_round_under_way() -> None:
    def work(region: int, link: OuterLink) -> str:
        held = parameters()
        sync = LocalSync(held, link, strategy(2, 1))
        saved = sync.state_dict()
        for step in range(2):
            move(held, region, step)
            sync.after_step()
        with pytest.raises(InputError) as caught:
            sync.load_state_dict(saved)
        sync.flush()
        sync.load_state_dict(saved)
        return str(caught.value)

    assert in_regions(2, work)[0].startswith("state: was to be loaded while an outer round is under way")


def test_regions_are_weighed_by_their_tokens() -> None:
    # Region 0 moves +1 on 100 tokens, region 1 moves +5 on 300: the mean is (100 + 1500) / 400 = +4.
    def work(region: int, link: OuterLink) -> torch.Tensor:
        held = parameters()
        sync, start = LocalSync(held, link, strategy(), weight="tokens"), flat(held)
        with torch.no_grad():
            for parameter in held:
                parameter.add_([1.0, 5.0][region])
        sync.after_step([100, 300][region])
        return flat(held) - start

    for found in in_regions(2, work):
        torch.testing.assert_close(found, torch.full((6,), 4.0))


def test_outer_parameters_are_shown_and_taken_away_again() -> None:
    def work(region: int, link: OuterLink) -> None:
        held = parameters()
        sync, start = LocalSync(held, link, strategy(5)), flat(held)
        move(held, region, 0)
        sync.after_step()
        own = flat(held)
        with sync.outer_parameters():
            assert torch.equal(flat(held), start)
        assert torch.equal(flat(held), own)

    in_regions(2, work)


def test_each_round_is_proven_and_reported_once() -> None:
    def work(region: int, link: OuterLink) -> tuple[list[int], list[int]]:
        held, reported = parameters(), []
        sync = LocalSync(held, link, strategy(2))
        sync.on_arrival = lambda arrival: reported.append(arrival.hash)
        for step in range(7):
            move(held, region, step)
            sync.after_step()
        sync.flush()
        return reported, link.digests  # type: ignore[attr-defined]

    (first, proven), (second, _) = in_regions(2, work)
    assert first == second == proven
    assert len(first) == 4
    assert all(before != after for before, after in pairwise(first))


def test_a_delay_longer_than_the_round_is_refused() -> None:
    with pytest.raises(InputError, match=r"^strategy.delay_steps: is 4, more than inner_steps 3"):
        in_regions(1, lambda _, link: LocalSync(parameters(), link, strategy(3, 4)))


def test_half_precision_parameters_are_refused() -> None:
    with pytest.raises(InputError, match=r"has a parameter of torch.bfloat16 on cpu"):
        in_regions(
            1,
            lambda _, link: LocalSync([torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))], link, strategy()),
        )
