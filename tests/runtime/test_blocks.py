"""The measurement schedule: its text, its blocks, and the count of steps through them."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import InputError
from isthmus.runtime.blocks import Pace, Schedule, lay_out, parse_schedule

schedules = st.builds(
    Schedule,
    warmup=st.integers(0, 30),
    on=st.integers(1, 30),
    off=st.integers(0, 20),
    repeats=st.integers(1, 5),
)


def test_the_written_schedule_is_read() -> None:
    assert parse_schedule("warmup=8, on=20,off=10,repeats=3") == Schedule(warmup=8, on=20, off=10, repeats=3)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("on=20,of=10", "unknown key 'of'"),
        ("on=20,on=10", "the key 'on' is given twice"),
        ("on", "'on' is not key=steps"),
        ("", "'' is not key=steps"),
        ("off=10", "the key 'on' is missing"),
        ("on=0", "on is 0: nothing would be measured"),
        ("on=5,repeats=0", "repeats is 0: nothing would be measured"),
        ("on=-5", "on: '-5' is not a number of steps"),
        ("on=1e3", "on: '1e3' is not a number of steps"),
        ("on=99999999999", "on: '99999999999' is not a number of steps"),
    ],
)
def test_a_malformed_schedule_is_refused_in_words(text: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_schedule(text)
    assert (caught.value.where, caught.value.found) == ("ISTHMUS_BLOCKS", found)


@settings(deadline=None)
@given(schedules, st.integers(1, 12))
def test_blocks_alternate_and_training_ones_hold_whole_rounds(schedule: Schedule, multiple: int) -> None:
    blocks = lay_out(schedule, multiple)
    assert [block.index for block in blocks] == list(range(len(blocks)))
    for before, after in pairwise(blocks):
        assert (before.mode, after.mode) in {("warmup", "on"), ("on", "off"), ("off", "on")} | (
            {("on", "on")} if not schedule.off else set()
        )
    for block in blocks:
        asked = {"warmup": schedule.warmup, "on": schedule.on, "off": schedule.off}[block.mode]
        if block.mode == "off":
            assert block.steps == asked
        else:
            assert block.steps % multiple == 0
            assert asked <= block.steps < asked + multiple
    assert sum(block.mode == "on" for block in blocks) == schedule.repeats


@settings(deadline=None)
@given(schedules, st.integers(1, 6))
def test_a_walk_through_the_blocks_takes_each_step_once(schedule: Schedule, multiple: int) -> None:
    blocks = lay_out(schedule, multiple)
    pace, seen = Pace(blocks), [0] * len(blocks)
    while not pace.finished:
        position, mode, ending = pace.position, pace.mode, pace.ending
        assert mode == blocks[position].mode
        seen[position] += 1
        pace.advance()
        assert ending == (pace.position != position)
    assert seen == [block.steps for block in blocks]
    assert pace.trained == sum(block.steps for block in blocks if block.mode != "off")
    assert pace.taken == sum(seen)


def test_plain_training_is_one_endless_block_that_is_on() -> None:
    pace = Pace(None)
    for _ in range(3):
        assert (pace.mode, pace.ending, pace.finished) == ("on", False, False)
        pace.advance()
    assert (pace.taken, pace.trained) == (3, 3)
