"""A plan's step by formula and played bucket by bucket on the graph: within 1 % of the step, 5 % of what the WAN exposes."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from isthmus.cli.simulated import carriage_of
from isthmus.cli.simulated_plan import step_asked, step_of
from isthmus.fabric import read_fabric
from isthmus.plan import Candidate, Plan
from isthmus.planner import choose_plan
from isthmus.sim import map_fabric
from isthmus.sim.script import play_script
from isthmus.sim.step_script import script_of
from isthmus.workload import read_workload

FABRIC = read_fabric(Path(__file__).parents[2] / "examples" / "shenzhen-shanghai.yaml")
WORKLOAD = read_workload("llama-3-8b")


@cache
def plans() -> dict[str, Plan]:
    chosen = choose_plan(FABRIC, WORKLOAD)
    own = Candidate(strategy=chosen.strategy, layout=chosen.layout, prediction=chosen.prediction)
    return {
        each.strategy.name: chosen.model_copy(
            update={"strategy": each.strategy, "layout": each.layout, "prediction": each.prediction}
        )
        for each in [own, *chosen.alternatives]
        if each.prediction is not None
    }


@pytest.mark.parametrize("name", ["hierarchical", "hierarchical-int8", "local-20", "local-20-delayed", "pipeline"])
def test_a_step_played_is_the_step_predicted(name: str) -> None:
    plan = plans()[name]
    chart = map_fabric(FABRIC, carriage_of(FABRIC, plan.strategy.streams))
    script = script_of(chart, step_asked(FABRIC, plan, WORKLOAD))
    whole = play_script(script)
    own, exposed = step_of(plan, (whole, play_script(script, without_wan=True)))
    assert own + exposed == pytest.approx(plan.prediction.step_s, rel=0.01)
    assert exposed == pytest.approx(plan.prediction.exposed_s, rel=0.05, abs=1e-3 * own)
    assert whole.peak_load <= 1 + 1e-9


def test_activities_wait_for_what_they_need_and_stages_work_one_thing_at_a_time() -> None:
    plan = plans()["pipeline"]
    script = script_of(map_fabric(FABRIC, carriage_of(FABRIC)), step_asked(FABRIC, plan, WORKLOAD))
    played = play_script(script)
    for before, after in script.needs:
        assert played.begin_s[after] >= played.finish_s[before] - 1e-9
    by_stage: dict[str, list[tuple[float, float]]] = {}
    for activity, begin, end in zip(script.activities, played.begin_s, played.finish_s, strict=True):
        if activity.track == "compute":
            by_stage.setdefault(activity.process, []).append((begin, end))
    assert len(by_stage) == plan.layout.pp
    for spans in by_stage.values():
        spans.sort()
        assert all(second >= first_end - 1e-9 for (_, first_end), (second, _) in pairwise(spans))
