"""C2: the step model with the constants it ships on public steps; what is fitted and what is not stands in the benchmark."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def accuracy():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import accuracy_steps
    finally:
        sys.path.remove(str(BENCHMARKS))
    return accuracy_steps


def test_every_target_on_public_steps_is_met_with_the_shipped_constants(accuracy) -> None:
    found = accuracy.score(accuracy.shipped_rates())
    assert [text for text, met in accuracy.verdict(found) if not met] == []
    assert sum(figures["rows"] for figures in found.values()) == 296


def test_no_configuration_of_vtrain_is_both_fitted_and_tested_and_at_most_a_third_is_fitted(accuracy) -> None:
    records = accuracy.load_records("vtrain-multi")
    drawn, rest = accuracy.split(records)
    assert len(drawn) + len(rest) == 109
    assert len(drawn) <= 36
    assert not {each.configuration for each in drawn} & {each.configuration for each in rest}
