from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import InfeasibleError
from isthmus.sim.compiled_events import play_compiled
from isthmus.sim.events import play_problem
from isthmus.sim.fold import fold_phase
from isthmus.sim.phase import ALL, Phase, no_needs
from isthmus.sim.play import play_phase

from .witness import Numbers, phases


def phase(links: list[list[int]], sizes: list[float], needs: list[tuple[int, int, int]] | None = None, rounds: int = 1) -> Phase:
    count, width = len(links), max(len(way) for way in links)
    return Phase(
        name="made", links=np.array([[*way, *[-1] * (width - len(way))] for way in links]).reshape(count, width),
        size_bytes=np.array(sizes), rounds=np.full(count, rounds), latency_s=np.zeros(count),
        limit_bytes_per_s=np.full(count, np.inf), forever=np.zeros(count, dtype=np.bool_),
        needs=np.array(needs, dtype=np.int64).reshape(-1, 3) if needs else no_needs(),
        source=np.arange(count), target=np.arange(count),
    )  # fmt: skip


def test_a_short_flow_leaves_its_share_to_the_long_one() -> None:
    # 10 B/s: both get 5 until the short one's 10 B are sent at 2 s; the long one's other 20 B then take 2 s.
    played = play_phase(phase([[0], [0]], [10.0, 30.0]), np.array([10.0]))
    assert played.finish_s == pytest.approx([2.0, 4.0], rel=1e-12)


def test_a_ring_of_unequal_links_goes_at_the_pace_of_the_slowest() -> None:
    # Three ranks, 1 s, 1 s and 2 s a message; 10 rounds. The slow edge never waits after its first message.
    needs = [((i - 1) % 3, i, 1) for i in range(3)]
    played = play_phase(phase([[0], [1], [2]], [1.0, 1.0, 1.0], needs, rounds=10), np.array([1.0, 1.0, 0.5]))
    assert played.seconds == pytest.approx(20.0)


def test_a_gate_waits_for_all_rounds_and_a_pause_takes_its_latency() -> None:
    made = phase([[0], [], [0]], [5.0, 0.0, 5.0], [(0, 1, ALL), (1, 2, ALL)], rounds=2)
    made = replace(made, latency_s=np.array([0.0, 3.0, 0.0]), rounds=np.array([2, 1, 2]))
    played = play_phase(made, np.array([10.0]))
    assert played.begin_s == pytest.approx([0.0, 1.0, 4.0])
    assert played.seconds == pytest.approx(5.0)


def test_streams_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="wait for each other"):
        play_phase(phase([[0], [0]], [1.0, 1.0], [(0, 1, ALL), (1, 0, ALL)]), np.array([1.0]))


def test_another_job_takes_its_share_and_is_not_waited_for() -> None:
    made = replace(phase([[0], [0]], [10.0, 1e30]), forever=np.array([False, True]))
    played = play_phase(made, np.array([10.0]))
    assert played.seconds == pytest.approx(2.0)
    assert played.carried_bytes == pytest.approx([20.0])


@settings(max_examples=60, deadline=None)
@given(drawn=phases(chained=True))
def test_bytes_are_kept_and_no_link_carries_more_than_it_can(drawn: tuple[Phase, Numbers]) -> None:
    made, capacity = drawn
    played = play_phase(made, capacity, fold=False)
    assert played.sent_bytes == pytest.approx(made.size_bytes * made.rounds, rel=1e-9)
    assert played.peak_load <= 1 + 1e-9
    assert (played.carried_bytes <= capacity * played.seconds * (1 + 1e-9)).all()


@settings(max_examples=60, deadline=None)
@given(drawn=phases(chained=True))
def test_the_compiled_loop_plays_the_same(drawn: tuple[Phase, Numbers]) -> None:
    problem = fold_phase(*drawn, fold=False)
    begin, finish, sent, _, _, peak, ended = play_compiled(problem)
    other = play_problem(problem)
    assert ended
    assert begin == pytest.approx(other.begin_s)
    assert finish == pytest.approx(other.finish_s)
    assert sent == pytest.approx(other.sent_bytes)
    assert peak <= 1 + 1e-9


@settings(max_examples=40, deadline=None)
@given(drawn=phases(streams=12, links=6))
def test_taking_ends_together_moves_no_end_by_more_than_the_batch_a_filling(drawn: tuple[Phase, Numbers]) -> None:
    exact, batched = (play_phase(*drawn, fold=False, batch=batch) for batch in (0.0, 1e-3))
    assert batched.finish_s == pytest.approx(exact.finish_s, rel=1e-3 * max(1, exact.fillings))
    assert batched.sent_bytes == pytest.approx(exact.sent_bytes, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(drawn=phases(streams=8, links=5, chained=True), unit=st.floats(1e-3, 1e3))
def test_other_units_of_data_change_nothing(drawn: tuple[Phase, Numbers], unit: float) -> None:
    made, capacity = drawn
    other = replace(made, size_bytes=made.size_bytes * unit, limit_bytes_per_s=made.limit_bytes_per_s * unit)
    assert play_phase(other, capacity * unit).finish_s == pytest.approx(play_phase(made, capacity).finish_s, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(drawn=phases(streams=8, links=5), faster=st.floats(1, 10))
def test_more_bandwidth_everywhere_is_never_slower(drawn: tuple[Phase, Numbers], faster: float) -> None:
    made, capacity = drawn
    quicker = play_phase(replace(made, limit_bytes_per_s=made.limit_bytes_per_s * faster), capacity * faster)
    assert (quicker.finish_s <= play_phase(made, capacity).finish_s * (1 + 1e-9)).all()
