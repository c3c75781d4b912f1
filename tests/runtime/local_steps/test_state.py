"""Stopping and resuming local steps: bit-exact in the same layout at any step, and what changes in another."""

import json
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import InputError
from isthmus.plan import Outer
from isthmus.runtime.hashing import fingerprint
from isthmus.runtime.local_steps.state import for_new_region, merge_states, read_checkpoint
from isthmus.runtime.local_steps.sync import LocalSync

NESTEROV = Outer(lr=0.8, momentum=0.7, nesterov=True)
SIZES = (40, 31, 7)


class Resting:
    """A link over which nothing is exchanged."""

    elastic = False

    def __init__(self, shards: int = 1, held: tuple[int, ...] = (0,)) -> None:
        self.shards, self.held = shards, held


def train(world: Any, sync: LocalSync, region: int, first: int, last: int) -> None:
    for step in range(first, last):
        world.move(sync.parameters, 0 if sync.warming_up else region, step)  # warming up, regions take equal steps
        sync.after_step(7 + region)


def facts(sync: LocalSync) -> list[Any]:
    """Everything that must be as it was, as something to compare."""
    while sync.pending:
        sync.pending.popleft().arrival.result()
    state = sync.state_dict()
    groups = [fingerprint(state[group][key] for key in sorted(state[group])) for group in ("outer", "momentum", "owed")]
    return [fingerprint(sync.parameters), *groups, state["record"]]


def stopped(world: Any, sync: LocalSync, link: Any, rule: Any, state: Any = None) -> LocalSync:
    """What a new process would build from the saved state and the saved model."""
    state = sync.state_dict() if state is None else state
    held = [torch.nn.Parameter(parameter.detach().clone()) for parameter in sync.parameters]
    again = LocalSync(held, link, rule)
    again.load_state_dict(state)
    return again


@settings(deadline=None, max_examples=40)
@given(data=st.data(), inner=st.integers(1, 5), fragments=st.integers(1, 3), cut_at=st.integers(0, 13))
def test_resuming_is_bit_exact_at_any_step_also_inside_rounds(
    world: Any, data: st.DataObject, inner: int, fragments: int, cut_at: int
) -> None:
    rule = world.strategy(
        inner,
        data.draw(st.integers(0, inner)),
        NESTEROV,
        fragments=fragments,
        codec=data.draw(st.sampled_from(["none", "int4"])),
        mixing=data.draw(st.sampled_from([1.0, 0.5])),
        weight=data.draw(st.sampled_from(["equal", "tokens"])),
        warmup_steps=data.draw(st.sampled_from([0, 3])),
    )
    ranks = data.draw(st.sampled_from([[1, 1], [2, 1]]))

    def work(region: int, link: Any, cuts: list[int]) -> list[Any]:
        sync, first = LocalSync(world.parameters(SIZES), link, rule), 0
        for last in [*cuts, 14]:
            train(world, sync, region, first, last)
            if last < 14:
                sync = stopped(world, sync, link, rule)
                assert sync.changes == ()
            first = last
        return facts(sync)

    whole = world.in_regions(ranks, lambda region, link: work(region, link, []), rule)
    assert world.in_regions(ranks, lambda region, link: work(region, link, [cut_at]), rule) == whole


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("layout", [{"fragments": 3}, {"delay_steps": 0}, {}])
def test_a_distributed_checkpoint_holds_the_state(world: Any, tmp_path: Any, layout: dict[str, Any]) -> None:
    # Saved in the midst of a round, loaded by torch.distributed.checkpoint both ways: as a Stateful, and without a template.
    rule = world.strategy(4, **{"delay_steps": 3, "outer": NESTEROV, "codec": "int4", **layout})

    def work(region: int, link: Any) -> Any:
        sync = LocalSync(world.parameters(SIZES), link, rule)
        train(world, sync, region, 0, 9)
        return sync, tmp_path / str(region), sync.state_dict()

    for sync, folder, state in world.in_regions(2, work, rule):
        dcp.save({"local": sync}, checkpoint_id=folder, no_dist=True)
        again = LocalSync(world.parameters(SIZES), Resting(), rule)
        dcp.load({"local": again}, checkpoint_id=folder, no_dist=True)
        for found in (again.state_dict(), read_checkpoint(folder, "local")):
            assert found["record"] == state["record"]
            for group in ("outer", "momentum", "owed", "sent", "arrived"):
                assert group in state or not found.get(group)
                for key, value in state.get(group, {}).items():
                    assert torch.equal(found[group][key], value), (group, key)


def test_another_number_of_ranks_takes_over_momentum_and_what_is_owed(world: Any) -> None:
    # Two ranks a region, then three, then one: every element's momentum and residual is what it was; nothing is lost.
    rule = world.strategy(4, 3, NESTEROV, fragments=2, codec="int4")

    def work(region: int, link: Any) -> tuple[dict[str, Any], list[torch.Tensor]]:
        sync = LocalSync(world.parameters(SIZES), link, rule)
        train(world, sync, region, 0, 10)
        return sync.state_dict(), [p.detach().clone() for p in sync.parameters]

    states = [state for state, _ in world.in_regions([2, 2], work, rule)][:2]

    def loaded(merged: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
        found = []
        for rank in range(ranks):
            sync = LocalSync(world.parameters(SIZES), Resting(ranks, (rank,)), rule)
            sync.load_state_dict(merged)
            assert sync.changes == ()
            found.append(sync.state_dict())
        return found

    def elements(merged: dict[str, Any], group: str) -> torch.Tensor:
        found = torch.full((sum(SIZES),), float("nan"))
        for key, held in merged[group].items():
            first = int(key.partition("+")[0])
            found[first : first + held.numel()] = held
        return found

    merged = merge_states(states)
    for ranks in (3, 1, 2):
        again = merge_states(loaded(merged, ranks))
        for group in ("momentum", "owed"):
            assert torch.equal(elements(again, group), elements(merged, group))
            assert float(elements(again, group).abs().max()) > 0
        assert json.loads(again["record"])["pending"] == json.loads(merged["record"])["pending"] != []
        assert all(torch.equal(again["sent"][key], merged["sent"][key]) for key in merged["sent"])
        merged = again


def test_another_number_of_ranks_goes_on_as_if_nothing_had_happened(world: Any) -> None:
    # Without a codec the layout does not matter to the bits: 7 steps on [1, 1] ranks and 7 on [2, 3] are 14 on [1, 1].
    rule = world.strategy(4, 3, NESTEROV, fragments=2)

    def half(region: int, link: Any) -> Any:
        sync = LocalSync(world.parameters(SIZES), link, rule)
        train(world, sync, region, 0, 7)
        return sync, sync.state_dict()

    halves = world.in_regions(2, half, rule)

    def rest(region: int, link: Any) -> Any:
        sync, state = halves[region]
        again = stopped(world, sync, link, rule, state)
        train(world, again, region, 7, 14)
        return fingerprint(again.parameters), fingerprint(again.applied[0][: sum(again.fragments[0].sizes)])

    def whole(region: int, link: Any) -> Any:
        sync = LocalSync(world.parameters(SIZES), link, rule)
        train(world, sync, region, 0, 14)
        return fingerprint(sync.parameters), fingerprint(sync.applied[0][: sum(sync.fragments[0].sizes)])

    first, second = world.in_regions(2, whole, rule)
    assert world.in_regions([2, 3], rest, rule) == [first] * 2 + [second] * 3


def test_another_cut_starts_the_schedule_over_and_says_so(world: Any) -> None:
    # Saved with a round of fragment 0 under way; loaded as three fragments that merge it at the next step.
    rule, other = world.strategy(6, 5, NESTEROV, fragments=2), world.strategy(6, 2, NESTEROV, fragments=3)

    def half(region: int, link: Any) -> Any:
        sync = LocalSync(world.parameters(SIZES), link, rule)
        train(world, sync, region, 0, 7)
        return sync, sync.state_dict()

    halves = world.in_regions(2, half, rule)
    saved = halves[0][1]
    assert len(json.loads(saved["record"])["pending"]) == 2

    def rest(region: int, link: Any) -> Any:
        sync, state = halves[region]
        again = stopped(world, sync, link, other, state)
        own = [p.detach().clone() for p in again.parameters]
        world.move(again.parameters, region, 7)
        alone = [p.detach().clone() for p in again.parameters]
        with torch.no_grad():
            for parameter, value in zip(again.parameters, own, strict=True):
                parameter.copy_(value)
        train(world, again, region, 7, 8)
        merged = [p.detach().clone() for p in again.parameters]
        train(world, again, region, 8, 14)
        again.flush()
        return again.changes, alone, merged, fingerprint(again.parameters), again.tokens

    found = world.in_regions(2, rest, other)
    assert found[0][3] == found[1][3]
    for region, (changes, alone, merged, *_) in enumerate(found):
        assert len(changes) == 1
        assert changes[0].startswith("fragments 2 -> 3: the schedule starts over")
        state = halves[region][1]
        for number, (before, after) in enumerate(zip(alone, merged, strict=True)):
            moved = (state["arrived"][str(number)] - state["sent"][str(number)]).view_as(before)
            torch.testing.assert_close(after, before + moved, rtol=0, atol=1e-5)


def test_a_new_region_begins_with_the_outer_state_alone(world: Any) -> None:
    rule = world.strategy(4, 3, NESTEROV, codec="int4")

    def work(region: int, link: Any) -> Any:
        sync = LocalSync(world.parameters(SIZES), link, rule)
        train(world, sync, region, 0, 5)
        return sync, sync.state_dict()

    sync, state = world.in_regions(2, work, rule)[0]
    assert json.loads(state["record"])["pending"]
    new = LocalSync(world.parameters(SIZES), Resting(), rule)
    new.load_state_dict(for_new_region(state))
    assert not new.pending
    assert fingerprint(new.applied) == fingerprint(sync.loop.outer) != fingerprint(sync.applied)
    assert torch.equal(new.loop.momentum[0][0], sync.loop.momentum[0][0])
    assert float(new.loop.feedback.norm()) == 0.0
    assert (new.loop.rounds, new.position) == (sync.loop.rounds, sync.position)


def test_momentum_that_is_missing_is_not_taken_for_zero(world: Any) -> None:
    rule = world.strategy(2, 0, NESTEROV)
    state = LocalSync(world.parameters((4, 4)), Resting(2, (0,)), rule).state_dict()
    with pytest.raises(InputError) as caught:
        LocalSync(world.parameters((4, 4)), Resting(1, (0,)), rule).load_state_dict(state)
    assert str(caught.value).startswith("state: lacks the momentum of 4 elements that this rank carries")


def test_what_is_owed_and_missing_is_reported(world: Any) -> None:
    rule = world.strategy(2, codec="int4")
    state = LocalSync(world.parameters((4, 4)), Resting(), world.strategy(2)).state_dict()
    sync = LocalSync(world.parameters((4, 4)), Resting(), rule)
    sync.load_state_dict(state)
    assert sync.changes == ("what the codec owed of 8 elements is not in the state and is forgotten",)


def test_a_state_of_another_model_is_refused(world: Any) -> None:
    saved = LocalSync(world.parameters((4, 2)), Resting(), world.strategy()).state_dict()
    with pytest.raises(InputError) as caught:
        LocalSync(world.parameters((4, 3)), Resting(), world.strategy()).load_state_dict(saved)
    assert str(caught.value).startswith("state: (version 2) is of 2 parameters with 6 elements, this model has 2 with 7")


def test_a_state_is_not_loaded_over_a_round_under_way(world: Any) -> None:
    def work(region: int, link: Any) -> str:
        sync = LocalSync(world.parameters(), link, link.strategy)
        saved = sync.state_dict()
        train(world, sync, region, 0, 2)
        with pytest.raises(InputError) as caught:
            sync.load_state_dict(saved)
        sync.flush()
        sync.load_state_dict(saved)
        return str(caught.value)

    assert world.in_regions(2, work, world.strategy(2, 1))[0].startswith(
        "state: was to be loaded while an outer round is under way"
    )
