from typing import Any

import pytest

from isthmus.report.results import Tried, read_results
from isthmus.report.verdict import best_of, judge


def tried(results: dict[str, Any], **changes: dict[str, Any]) -> list[Tried]:
    """The strategies of `results`, those named in `changes` (with _ for -) changed so."""
    for one in results["strategies"]:
        one.update(changes.get(one["name"].replace("-", "_"), {}))
    return read_results(results).strategies


def test_the_fastest_sound_strategy_wins_and_the_figures_follow(results: dict[str, Any]) -> None:
    verdict = judge(tried(results))
    # 2.403 s over 0.331 s is 7.26; losses 2.4399 over 2.3806 are 1.0249; 1.871 s over 2.403 s is 0.7786.
    assert verdict.line == (
        "local-steps-32-int4 trains 7.3 times as fast as flat, at 95% utilisation, against 13%; "
        "its loss at equal tokens is 2.5% above the lowest (2.381, flat); "
        "the predicted step time misses the measured by more than 20% for flat (worst ratio 0.78)."
    )


def test_a_strategy_whose_replicas_differ_never_wins_and_raises_an_alarm(results: dict[str, Any]) -> None:
    changed = tried(results, local_steps_32_int4={"replicas_equal": False})
    assert changed[best_of(changed)].name == "local-steps-32"
    assert judge(changed).line.startswith("replicas differ after local-steps-32-int4: do not trust that run; ")


@pytest.mark.parametrize("loss", [2.3806 * 1.031, float("nan"), float("inf")])
def test_a_strategy_that_learns_markedly_less_never_wins(results: dict[str, Any], loss: float) -> None:
    changed = tried(results, local_steps_32_int4={"loss_at_equal_tokens": loss})
    assert changed[best_of(changed)].name == "local-steps-32"


def test_one_strategy_is_told_without_a_rival(results: dict[str, Any]) -> None:
    results["strategies"] = results["strategies"][2:3]
    assert judge(tried(results)).line == (
        "hierarchical-int4 reaches 19,366 tokens/s at 74% utilisation; its step time was predicted within 6%."
    )


def test_unsound_speed_is_named_where_soundness_costs_speed(results: dict[str, Any]) -> None:
    unsound = {"replicas_equal": False}
    changed = tried(
        results, flat={"kind": "hierarchical"}, hierarchical_int4=unsound, local_steps_32=unsound, local_steps_32_int4=unsound
    )
    assert judge(changed).headline.startswith("hierarchical trains 1.4 times as fast as flat")
    assert "hierarchical-int4, local-steps-32 and local-steps-32-int4" in judge(changed).warning
