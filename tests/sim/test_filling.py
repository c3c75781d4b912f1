import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.sim.filling import fill
from isthmus.sim.fold import Problem, fold_phase
from isthmus.sim.phase import Phase

from .witness import Numbers, lp_rates, phases


def everyone(problem: Problem) -> np.ndarray:
    return np.arange(len(problem.rounds))


@settings(max_examples=20, deadline=None)
@given(drawn=phases(streams=5, links=4))
def test_linear_programmes_find_the_same_max_min_rates(drawn: tuple[Phase, Numbers]) -> None:
    problem = fold_phase(*drawn, fold=False)
    assert fill(problem, everyone(problem)) == pytest.approx(lp_rates(problem), rel=1e-5)


@settings(max_examples=100, deadline=None)
@given(drawn=phases(streams=12, links=8))
def test_every_stream_has_a_full_link_on_which_no_stream_gets_more(drawn: tuple[Phase, Numbers]) -> None:
    # This is what max-min fair means: Bertsekas & Gallager, Data Networks, section 6.5.2.
    problem = fold_phase(*drawn, fold=False)
    rates = fill(problem, everyone(problem))
    flow = np.repeat(everyone(problem), np.diff(problem.start))
    load = np.bincount(problem.link, weights=problem.times * rates[flow], minlength=len(problem.capacity))
    assert (load <= problem.capacity * (1 + 1e-12)).all()
    for f in everyone(problem):
        own = problem.link[problem.start[f] : problem.start[f + 1]]
        full = [one for one in own if load[one] >= problem.capacity[one] * (1 - 1e-9)]
        bottleneck = any(rates[f] >= rates[flow[problem.link == one]].max() * (1 - 1e-9) for one in full)
        assert bottleneck or rates[f] == problem.limit_bytes_per_s[f]


@settings(max_examples=40, deadline=None)
@given(drawn=phases(streams=12, links=8), order=st.permutations(range(12)), back=st.integers(0, 11))
def test_filling_anew_only_what_an_end_can_change_is_filling_everything(
    drawn: tuple[Phase, Numbers], order: list[int], back: int
) -> None:
    # One stream after another ends, in any order, and once in between one starts again.
    from isthmus.sim.compiled_events import Filler

    problem = fold_phase(*drawn, fold=False)
    kept, everything = Filler(problem), set(everyone(problem).tolist())
    left = set(everything)
    for place, stream in enumerate(order):
        left = everything if place == back else left - {stream}
        active = np.array(sorted(left), dtype=np.int64)
        if len(active):
            rates, fullest = kept.fill(active)
            afresh, full = Filler(problem).fill(active)
            assert rates == pytest.approx(afresh, rel=1e-9)
            assert fullest == pytest.approx(full, rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(drawn=phases(streams=12, links=8))
def test_the_compiled_filling_agrees_for_every_part_of_the_streams(drawn: tuple[Phase, Numbers]) -> None:
    from isthmus.sim.compiled_events import Filler

    problem = fold_phase(*drawn, fold=False)
    compiled = Filler(problem)
    for active in (everyone(problem), everyone(problem)[::2]):
        assert compiled.fill(active)[0] == pytest.approx(fill(problem, active), rel=1e-12)
