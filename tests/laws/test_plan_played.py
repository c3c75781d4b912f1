"""A plan's step by formula and played bucket by bucket on the graph, on every example with a WAN: two witnesses of one step."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from isthmus.cli.simulated import carriage_of
from isthmus.cli.simulated_plan import step_asked, step_of
from isthmus.fabric import Fabric, read_fabric
from isthmus.plan import Candidate, Plan
from isthmus.planner import choose_plan
from isthmus.sim import map_fabric
from isthmus.sim.script import Script, ScriptPlayed, play_script
from isthmus.sim.step_script import script_of
from isthmus.workload import read_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
FABRICS = ("shenzhen-shanghai", "shenzhen-shanghai-8", "singapore-tokyo", "beijing-shenzhen-shanghai")
STRATEGIES = (
    "hierarchical", "hierarchical-bf16", "hierarchical-int8", "hierarchical-powersgd", "local-20", "local-100-delayed",
    "pipeline",
)  # fmt: skip
WORKLOAD = read_workload("llama-3-8b")


@cache
def described(name: str) -> Fabric:
    return read_fabric(EXAMPLES / f"{name}.yaml")


@cache
def plans(name: str) -> dict[str, Plan]:
    chosen = choose_plan(described(name), WORKLOAD)
    own = Candidate(strategy=chosen.strategy, layout=chosen.layout, prediction=chosen.prediction)
    return {
        each.strategy.name: chosen.model_copy(
            update={"strategy": each.strategy, "layout": each.layout, "prediction": each.prediction}
        )
        for each in [own, *chosen.alternatives]
        if each.prediction is not None
    }


def script(name: str, plan: Plan) -> Script:
    fabric = described(name)
    return script_of(map_fabric(fabric, carriage_of(fabric, plan.strategy)), step_asked(fabric, plan, WORKLOAD))


def played(name: str, plan: Plan) -> tuple[float, float, ScriptPlayed]:
    """(step with the WAN off, what the WAN adds, the step played)."""
    asked = script(name, plan)
    whole = play_script(asked)
    return *step_of(plan, (whole, play_script(asked, without_wan=True))), whole


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", FABRICS)
def test_a_step_played_is_the_step_predicted(name: str, strategy: str) -> None:
    plan = plans(name)[strategy]
    own, exposed, whole = played(name, plan)
    assert own + exposed == pytest.approx(plan.prediction.step_s, rel=0.01)
    # Where the wire takes about as long as what hides it, what is seen is a small difference of large times: 0.2 % of the step.
    assert exposed == pytest.approx(plan.prediction.exposed_s, rel=0.05, abs=2e-3 * own)
    assert whole.peak_load <= 1 + 1e-9


@pytest.mark.parametrize("name", FABRICS)
def test_rings_blind_to_regions_take_no_longer_than_predicted(name: str) -> None:
    # The formula lets the rings of all stages wait for the WAN's latency together; played, some send while others wait.
    plan = plans(name)["flat"]
    own, exposed, _ = played(name, plan)
    assert 0.7 * plan.prediction.exposed_s <= exposed <= 1.05 * plan.prediction.exposed_s
    assert own + exposed == pytest.approx(plan.prediction.step_s, rel=0.05)


def test_activities_wait_for_what_they_need_and_stages_work_one_thing_at_a_time() -> None:
    plan = plans("beijing-shenzhen-shanghai")["pipeline"]
    asked = script("beijing-shenzhen-shanghai", plan)
    whole = play_script(asked)
    for before, after in asked.needs:
        assert whole.begin_s[after] >= whole.finish_s[before] - 1e-9
    by_stage: dict[str, list[tuple[float, float]]] = {}
    for activity, begin, end in zip(asked.activities, whole.begin_s, whole.finish_s, strict=True):
        if activity.track == "compute":
            by_stage.setdefault(activity.process, []).append((begin, end))
    assert len(by_stage) == plan.layout.pp
    for spans in by_stage.values():
        spans.sort()
        assert all(second >= first_end - 1e-9 for (_, first_end), (second, _) in pairwise(spans))
