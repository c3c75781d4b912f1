"""Steps of a trial: whole rounds, within the minutes given."""

from hypothesis import given
from hypothesis import strategies as st

from isthmus.trial.schedule import START_S, plan_steps


@given(
    predicted=st.lists(st.floats(0.01, 5), min_size=1, max_size=6), minutes=st.floats(1, 120), inner=st.sampled_from([1, 5, 20])
)
def test_blocks_hold_whole_rounds_and_fit_the_minutes_unless_one_round_already_does_not(
    predicted: list[float], minutes: float, inner: int
) -> None:
    compute = min(predicted)
    steps = plan_steps(predicted, compute, minutes, inner)
    assert steps.on % inner == 0
    assert steps.warmup % inner == 0
    cost = sum(steps.trained * step + steps.repeats * steps.off * compute for step in predicted)
    least = plan_steps(predicted, compute, 0.0, inner)
    assert steps == least or cost <= minutes * 60 - START_S * len(predicted) + 1e-9


def test_more_minutes_never_mean_fewer_steps() -> None:
    counts = [plan_steps([0.5, 0.3], 0.3, minutes, 20).trained for minutes in (1, 2, 5, 20)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
