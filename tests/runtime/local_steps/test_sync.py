"""Local steps between regions that are threads of this process, against laws and a reference that shares no code with them."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import InputError
from isthmus.plan import Outer
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.local_steps.sync import LocalSync

NESTEROV = Outer(lr=0.8, momentum=0.5, nesterov=True)


def reference(
    world: Any, rule: Any, regions: int, steps: int, sizes: tuple[int, ...], weights: list[float]
) -> list[list[torch.Tensor]]:
    """The algorithm parameter by parameter in float64 in one process: final parameters of every region.

    For fragment f of F at each step: rounds that began `delay` steps ago are merged, theta <- theta + a (outer - sent); then
    a fragment whose offset in the window of K is reached begins one: g = sum w (outer - theta), m <- mu m + g, Nesterov.
    """
    owner = {}
    for fragment in LocalSync(world.parameters(sizes), Silent(), rule).fragments:
        owner.update({member: fragment.number for member in fragment.members})
    theta = [[p.detach().double() for p in world.parameters(sizes)] for _ in range(regions)]
    outer = [value.clone() for value in theta[0]]
    momentum = [torch.zeros_like(value) for value in outer]
    flying: list[tuple[int, int, torch.Tensor, list[torch.Tensor]]] = []
    weights = [weight / sum(weights) for weight in weights]

    def land(step: int) -> None:
        for due, k, new, sent in [one for one in flying if one[0] <= step]:
            for region in range(regions):
                theta[region][k] = theta[region][k] + rule.mixing * (new - sent[region])
            flying.remove(next(one for one in flying if one[0] == due and one[1] == k))

    for step in range(1, steps + 1):
        for region in range(regions):
            held = [torch.nn.Parameter(value) for value in theta[region]]
            world.move(held, region, step - 1)
            theta[region] = [p.detach() for p in held]
        land(step)
        for k in range(len(sizes)):
            offset = -(-rule.inner_steps * (owner[k] + 1) // rule.fragments)
            if step % rule.inner_steps != offset % rule.inner_steps:
                continue
            sent = [theta[region][k].clone() for region in range(regions)]
            gradient = sum(weight * (outer[k] - value) for weight, value in zip(weights, sent, strict=True))
            momentum[k] = rule.outer.momentum * momentum[k] + gradient
            taken = gradient + rule.outer.momentum * momentum[k] if rule.outer.nesterov else momentum[k]
            outer[k] = outer[k] - rule.outer.lr * taken
            flying.append((step + rule.delay_steps, k, outer[k], sent))
        if rule.delay_steps == 0:
            land(step)
    return theta


class Silent:
    """A link for questions about the cut only."""

    shards, held, elastic = 1, (0,), False


def run(world: Any, rule: Any, steps: int, sizes: tuple[int, ...] = (4, 2), *, flush: bool = False, tokens: Any = None) -> Any:
    def work(region: int, link: Any) -> tuple[list[torch.Tensor], LocalSync]:
        held = world.parameters(sizes)
        sync = LocalSync(held, link, rule)
        for step in range(steps):
            world.move(held, region, step)
            sync.after_step(tokens[region] if tokens else 1)
        if flush:
            sync.flush()
        while sync.pending:  # let rounds under way end: others wait in them
            sync.pending.popleft().arrival.result()
        return [p.detach().clone() for p in held], sync

    return work


@settings(deadline=None, max_examples=40)
@given(data=st.data(), inner=st.integers(1, 6), fragments=st.integers(1, 4), regions=st.integers(1, 3), steps=st.integers(1, 20))
def test_fragments_delay_mixing_momentum_and_weights_follow_the_reference(
    world: Any, data: st.DataObject, inner: int, fragments: int, regions: int, steps: int
) -> None:
    delay = data.draw(st.integers(0, inner), "delay")
    momentum = data.draw(st.sampled_from([0.0, 0.6]), "momentum")
    rule = world.strategy(
        inner,
        delay,
        Outer(lr=0.9, momentum=momentum, nesterov=momentum > 0 and data.draw(st.booleans(), "nesterov")),
        fragments=fragments,
        mixing=data.draw(st.sampled_from([1.0, 0.5]), "mixing"),
        weight=data.draw(st.sampled_from(["equal", "tokens"]), "weight"),
    )
    sizes, tokens = (4, 7, 2, 3, 6), [100, 300, 50][:regions]
    weights = [float(t) for t in tokens] if rule.weight == "tokens" else [1.0] * regions
    expected = reference(world, rule, regions, steps, sizes, weights)
    found = world.in_regions(regions, run(world, rule, steps, sizes, tokens=tokens), rule)
    for theta, (held, _) in zip(expected, found, strict=True):
        for value, parameter in zip(theta, held, strict=True):
            torch.testing.assert_close(parameter.double(), value, rtol=0, atol=1e-5)


# Made with the first version of local steps (commit 4753295), of one fragment: K = 3, delay 2, outer Nesterov SGD, 14 steps,
# then flush; the mean of three regions as exchanges take it, times 1/3.
GOLDEN = {
    2: [("9d3e8acf936687dd", "eece08d92a29109b"), ("94a891e906d8760d", "eece08d92a29109b")],
    3: [
        ("a1b485b152490b63", "51e9bacfd4a9676a"),
        ("2e771d4297c80757", "51e9bacfd4a9676a"),
        ("b2849ce61549d827", "51e9bacfd4a9676a"),
    ],
}


@pytest.mark.parametrize("regions", [2, 3])
def test_one_fragment_gives_the_bits_of_local_steps_without_fragments(world: Any, regions: int) -> None:
    rule = world.strategy(3, 2, NESTEROV)

    def work(region: int, link: Any) -> tuple[str, str]:
        held = world.parameters()
        sync = LocalSync(held, link, rule)
        for step in range(14):
            world.move(held, region, step)
            sync.after_step()
        before = fingerprint(held)
        sync.flush()
        return f"{before:016x}", f"{fingerprint(held):016x}"

    assert world.in_regions(regions, work, rule) == GOLDEN[regions]


@pytest.mark.parametrize("regions", [2, 3])
def test_one_inner_step_of_sgd_with_outer_rate_one_is_every_step_sgd(world: Any, regions: int) -> None:
    # theta - lr g_r averaged is theta - lr mean(g). Equal to rounding; and exact for two regions where every value has few
    # enough bits, as here: multiples of 1/64 for the first steps, halved once a step.
    rule, lr = world.strategy(), 0.5

    def gradient(values: torch.Tensor, region: int, step: int) -> torch.Tensor:
        return (torch.arange(values.numel()) * 5 + region * 3 + step) % 9 / 16 + (values / 4 if step > 4 else 0)

    def work(region: int, link: Any) -> list[torch.Tensor]:
        held, seen = [torch.nn.Parameter(torch.arange(6.0))], []
        sync, optimizer = LocalSync(held, link, rule), torch.optim.SGD(held, lr=lr)
        for step in range(9):
            held[0].grad = gradient(held[0].detach(), region, step)
            optimizer.step()
            sync.after_step()
            seen.append(held[0].detach().clone())
        return seen

    one, expected = [torch.nn.Parameter(torch.arange(6.0))], []
    optimizer = torch.optim.SGD(one, lr=lr)
    for step in range(9):
        one[0].grad = torch.stack([gradient(one[0].detach(), region, step) for region in range(regions)]).mean(0)
        optimizer.step()
        expected.append(one[0].detach().clone())
    for seen in world.in_regions(regions, work, rule):
        torch.testing.assert_close(torch.stack(seen), torch.stack(expected), rtol=0, atol=4e-6)
        if regions == 2:
            assert torch.equal(torch.stack(seen[:5]), torch.stack(expected[:5]))


@settings(deadline=None, max_examples=25)
@given(
    data=st.data(),
    inner=st.integers(1, 5),
    steps=st.integers(1, 14),
    momentum=st.sampled_from([0.0, 0.6]),
    codec=st.sampled_from(["none", "int4"]),
)
def test_after_a_flush_all_members_are_bit_identical(
    world: Any, data: st.DataObject, inner: int, steps: int, momentum: float, codec: str
) -> None:
    rule = world.strategy(
        inner,
        data.draw(st.integers(0, inner)),
        Outer(lr=0.9, momentum=momentum, nesterov=momentum > 0),
        fragments=data.draw(st.integers(1, 3)),
        mixing=data.draw(st.sampled_from([1.0, 0.5])),
        codec=codec,
    )
    results = world.in_regions(2, run(world, rule, steps, (4, 2, 5), flush=True), rule)
    for held, sync in results:
        assert torch.equal(world.flat(held), world.flat(results[0][0]))
        assert fingerprint(sync.loop.outer) == fingerprint(sync.applied) == fingerprint(results[0][1].applied)
        assert torch.equal(world.flat(held), world.flat([p for p in read_outer(sync)]))


def read_outer(sync: LocalSync) -> list[torch.Tensor]:
    with sync.outer_parameters():
        return [p.detach().clone() for p in sync.parameters]


def test_a_delayed_round_keeps_what_was_learned_meanwhile(world: Any) -> None:
    # K = 3, delay 2. Region r adds 1 + r to every element at each step, so at step 3 the regions are +3 and +6 from the
    # start and the mean is +4.5; two more steps add 2 and 4 on top of it. With half the share mixed in: +4 + 0.5 (4.5 - 3).
    def work(region: int, link: Any) -> list[float]:
        held = world.parameters()
        sync, start, seen = LocalSync(held, link, link.strategy), world.flat(held), []
        for _ in range(5):
            with torch.no_grad():
                for parameter in held:
                    parameter.add_(1.0 + region)
            sync.after_step()
            seen.append(float((world.flat(held) - start)[0]))
        return seen

    first, second = world.in_regions(2, work, world.strategy(3, 2))
    assert first == [1, 2, 3, 4, 4.5 + 2]
    assert second == [2, 4, 6, 8, 4.5 + 4]
    first, second = world.in_regions(2, work, world.strategy(3, 2, mixing=0.5))
    assert first == [1, 2, 3, 4, 5 + 0.5 * 1.5]
    assert second == [2, 4, 6, 8, 10 - 0.5 * 1.5]


def test_regions_are_weighed_by_their_tokens(world: Any) -> None:
    # Region 0 moves +1 on 100 tokens, region 1 moves +5 on 300: the mean is (100 + 1500) / 400 = +4.
    def work(region: int, link: Any) -> torch.Tensor:
        held = world.parameters()
        sync, start = LocalSync(held, link, link.strategy), world.flat(held)
        with torch.no_grad():
            for parameter in held:
                parameter.add_([1.0, 5.0][region])
        sync.after_step([100, 300][region])
        return world.flat(held) - start

    for found in world.in_regions(2, work, world.strategy(weight="tokens")):
        torch.testing.assert_close(found, torch.full((6,), 4.0))


@pytest.mark.parametrize("rule", [{"codec": "int4", "fragments": 2}, {"codec": "int8", "fragments": 3, "weight": "tokens"}])
@pytest.mark.parametrize("regions", [2, 3])
def test_a_repeated_round_leaves_everything_as_if_it_had_run_once(world: Any, rule: dict[str, Any], regions: int) -> None:
    # Parameters, outer parameters, momentum and what is owed, to the last bit, though rounds 1, 2 and 5 ran twice.
    settings_ = world.strategy(4, 3, NESTEROV, **rule)

    def work(region: int, link: Any) -> tuple[dict[str, Any], int]:
        held, sync = run(world, settings_, 13, (40, 300, 7))(region, link)
        return {**sync.state_dict(), "held": fingerprint(held)}, link.attempts

    plain = world.in_regions(regions, work, settings_)
    again = world.in_regions(regions, work, settings_, faults={1, 2, 5})
    for (one, attempts), (two, more) in zip(plain, again, strict=True):
        assert more == attempts + 3
        assert one["record"] == two["record"]
        assert one["held"] == two["held"]
        for group in ("outer", "momentum", "owed"):
            assert one[group].keys() == two[group].keys()
            assert all(torch.equal(one[group][key], two[group][key]) for key in one[group])
        assert any(held.any() for held in one["owed"].values())


@pytest.mark.parametrize("ranks", [[1, 1], [1, 1, 1], [2, 1], [2, 3]])
def test_what_is_owed_makes_up_for_the_codec_in_every_fragment(world: Any, ranks: list[int]) -> None:
    # Outer rate 1, no momentum: each round takes the mean of what was decoded from the outer parameters. So
    # sum over rounds and regions of delta = R (outer at first - outer at last) + sum over regions of what they owe.
    rule, sizes = world.strategy(4, 2, codec="int4", fragments=3), (40, 300, 7, 64)

    def work(region: int, link: Any) -> dict[str, Any]:
        held = [torch.nn.Parameter(p.detach() / 128) for p in world.parameters(sizes)]
        sync, total = LocalSync(held, link, rule), {}
        original = sync.loop.round

        def watched(given_: Any, life: int) -> Any:
            fragment = sync.fragments[given_.fragment]
            delta = (sync.loop.outer[given_.fragment] - given_.sent).double()
            total[fragment.number] = total.get(fragment.number, 0) + delta
            return original(given_, life)

        sync.loop.round = watched  # type: ignore[method-assign]
        first = [outer.double() for outer in sync.loop.outer]
        for step in range(18):
            world.move(held, region, step)
            sync.after_step()
        sync.flush()
        owed = [torch.zeros(fragment.elements, dtype=torch.float64) for fragment in sync.fragments]
        for fragment in sync.fragments:
            for shard in link.held:
                start, size = shard * fragment.shard_elements, fragment.shard_elements
                for offset, place, count in fragment.pieces(start, size):
                    owed[fragment.number][start + offset : start + offset + count] = sync.loop.feedback.residual(place, count)
        moved = [before - after.double() for before, after in zip(first, sync.loop.outer, strict=True)]
        return {"total": total, "owed": owed, "moved": moved, "rank": link.rank}

    found = world.in_regions(ranks, work, rule)
    for number in range(3):
        total = sum(one["total"][number] for one in found if one["rank"] == 0)
        owed = sum(one["owed"][number] for one in found)
        assert float(owed.abs().max()) > 1e-3
        torch.testing.assert_close(total, len(ranks) * found[0]["moved"][number] + owed, rtol=0, atol=2e-5)


def test_regions_of_unequal_size_compute_what_equal_ones_do(world: Any) -> None:
    rule = world.strategy(4, 3, NESTEROV, fragments=2)
    parts = [world.in_regions(ranks, run(world, rule, 13, (40, 31, 7)), rule) for ranks in ([1, 1], [3, 2], [1, 4])]
    plain = parts[0]
    for ranks, found in zip(([3, 2], [1, 4]), parts[1:], strict=True):
        for place, (held, _) in enumerate(found):
            assert torch.equal(world.flat(held), world.flat(plain[0 if place < ranks[0] else 1][0]))


def test_survivors_repeat_the_round_without_the_region_that_was_lost(world: Any) -> None:
    # K = 1, averaging. Region 2 goes in round 2; from that round on, the mean is that of the two others, and no step is lost.
    rule = world.strategy()
    first, second, lost = world.in_regions(3, run(world, rule, 5), rule, losses={2: 2})
    assert lost is None
    theta = [world.parameters() for _ in range(3)]
    for step in range(5):
        for region, held in enumerate(theta):
            world.move(held, region, step)
        mean = torch.stack([world.flat(held) for held in (theta if step < 2 else theta[:2])]).mean(0)
        for held in theta:
            with torch.no_grad():
                held[0].copy_(mean[:4].view(2, 2))
                held[1].copy_(mean[4:])
    for held, _ in (first, second):
        torch.testing.assert_close(world.flat(held), world.flat(theta[0]), rtol=0, atol=2e-6)


@pytest.mark.parametrize("regions", [2, 3])
def test_warm_up_is_every_step_training_also_for_the_optimizers_moments(world: Any, regions: int) -> None:
    # AdamW on gradients that differ by region. Six warm-up steps equal one process on the mean gradient; the outer
    # parameters then begin where training stands, and the members go on from equal moments.
    rule = world.strategy(3, 0, warmup_steps=6)

    def gradient(values: torch.Tensor, region: int, step: int) -> torch.Tensor:
        return values * 0.1 + (torch.arange(values.numel()) * 5 + region * 3 + step) % 9 / 16

    def work(region: int, link: Any) -> Any:
        held = [torch.nn.Parameter(torch.arange(6.0)), torch.nn.Parameter(torch.ones(2))]
        sync, optimizer = LocalSync(held, link, rule), torch.optim.AdamW(held, lr=0.05)
        for step in range(6):
            held[0].grad = gradient(held[0].detach(), region, step)
            held[1].grad = torch.full((2,), 0.5) if region == 0 else None  # used in one region only
            sync.average_gradients(10)
            optimizer.step()
            sync.after_step(10)
        moments = torch.cat([optimizer.state[p]["exp_avg"] for p in held])
        own = [p.detach().clone() for p in held]
        return own, moments, world.flat(read_outer(sync)), sync.loop.counted_tokens

    one = [torch.nn.Parameter(torch.arange(6.0)), torch.nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.AdamW(one, lr=0.05)
    for step in range(6):
        one[0].grad = torch.stack([gradient(one[0].detach(), region, step) for region in range(regions)]).mean(0)
        one[1].grad = torch.full((2,), 0.5 / regions)
        optimizer.step()
    found = world.in_regions(regions, work, rule)
    for own, moments, outer, counted in found:
        torch.testing.assert_close(world.flat(own), world.flat(one), rtol=0, atol=1e-5)
        assert torch.equal(outer, world.flat(own))
        assert torch.equal(moments, found[0][1])
        assert counted == 60


def test_every_token_is_counted_once_whatever_the_fragments(world: Any) -> None:
    rule = world.strategy(4, 2, fragments=3)
    for (_, sync), tokens in zip(
        world.in_regions(2, run(world, rule, 11, (4, 2, 5), flush=True, tokens=[7, 3]), rule, faults={2}), (7, 3), strict=True
    ):
        assert sync.loop.counted_tokens == 11 * tokens


def test_outer_parameters_are_shown_and_taken_away_again(world: Any) -> None:
    def work(region: int, link: Any) -> None:
        held = world.parameters()
        sync, start = LocalSync(held, link, link.strategy), world.flat(held)
        world.move(held, region, 0)
        sync.after_step()
        own = world.flat(held)
        assert torch.equal(world.flat(read_outer(sync)), start)
        assert torch.equal(world.flat(held), own)

    world.in_regions(2, work, world.strategy(5))


def test_each_round_is_proven_and_reported_once(world: Any) -> None:
    rule = world.strategy(4, fragments=2)

    def work(region: int, link: Any) -> tuple[list[tuple[int, int]], list[int]]:
        held, reported = world.parameters(), []
        sync = LocalSync(held, link, rule)
        sync.on_arrival = lambda arrival: reported.append((arrival.fragment, arrival.hash))
        for step in range(7):
            world.move(held, region, step)
            sync.after_step()
        sync.flush()
        return reported, link.digests

    (first, proven), (second, _) = world.in_regions(2, work, rule)
    assert first == second
    assert [digest for _, digest in first] == proven
    assert [fragment for fragment, _ in first] == [0, 1, 0, 0, 1]  # steps 2, 4, 6; then what is left of both
    assert len(set(proven)) == 5


def test_a_delay_longer_than_the_round_is_refused(world: Any) -> None:
    with pytest.raises(InputError, match=r"^strategy.delay_steps: is 4, more than inner_steps 3"):
        LocalSync(world.parameters(), Silent(), world.strategy(3, 4))


def test_more_fragments_than_parameters_are_refused(world: Any) -> None:
    with pytest.raises(InputError, match=r"^strategy.fragments: is 3, but the model has 2 parameters"):
        LocalSync(world.parameters(), Silent(), world.strategy(fragments=3))


def test_half_precision_parameters_are_refused(world: Any) -> None:
    with pytest.raises(InputError, match=r"parameter '0' is torch.bfloat16 on cpu"):
        LocalSync([torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))], Silent(), world.strategy())
