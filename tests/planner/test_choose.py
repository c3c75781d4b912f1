"""The choice: its principle, what it refuses, and that every printed number hangs together."""

from dataclasses import replace
from itertools import pairwise
from math import hypot
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cost.collectives_calibration import Calibration, ClassBands, constants_with
from isthmus.cost.collectives_group import class_of, sites_group
from isthmus.cost.quality import loss_band
from isthmus.cost.step_rates import shipped_rates
from isthmus.errors import InfeasibleError
from isthmus.fabric import Fabric, read_fabric
from isthmus.plan import Candidate, Layout, Plan, Prediction, Strategy, load_plan, save_plan
from isthmus.planner import choose_plan
from isthmus.planner.breaks import with_wan as scaled
from isthmus.planner.candidates import layouts
from isthmus.planner.choose import weigh
from isthmus.planner.feasibility import replica_memory_bytes
from isthmus.planner.predict import Known
from isthmus.planner.rank import TOLERANCE, first_choice, rank, standing
from isthmus.planner.setting import make_setting
from isthmus.planner.ways import over_all, readiness, risk_words, runs, ways
from isthmus.planner.words import layout_words
from isthmus.runtime.environment import Members, RankEnvironment
from isthmus.runtime.runnable import require_plan
from isthmus.units import show_seconds
from isthmus.workload import Workload, flop_per_token, read_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
FABRIC = read_fabric(EXAMPLES / "shenzhen-shanghai.yaml")
LLAMA = read_workload("llama-3-8b")


def with_wan(fabric: Fabric, **changes: float) -> Fabric:
    return replace(fabric, wan=tuple(replace(link, **changes) for link in fabric.wan))  # type: ignore[arg-type]


def everything(plan: Plan) -> dict[str, Candidate]:
    winner = Candidate(strategy=plan.strategy, layout=plan.layout, prediction=plan.prediction, risk=plan.risk, loss=plan.loss)
    return {each.strategy.name: each for each in (winner, *plan.alternatives)}


def step_s(plan: Plan, name: str) -> float:
    prediction = everything(plan)[name].prediction
    assert prediction is not None
    return prediction.step_s


PLAN = choose_plan(FABRIC, LLAMA)
KNOWN: Known = {}


def steps(fabric: Fabric) -> dict[str, float]:
    """Of every strategy, on a fabric that differs from FABRIC in its WAN only."""
    return {each.strategy.name: each.step_s for each in weigh(fabric, LLAMA, known=KNOWN).ranked}


def candidate(name: str, step: float, codec: str = "none", kind: str = "hierarchical", steps: int = 1) -> Candidate:
    strategy = Strategy.model_validate({"name": name, "kind": kind, "codec": codec, "inner_steps": steps})
    prediction = Prediction(
        step_s=step, compute_s=1, exposed_s=step - 1, utilisation=1 / step, tokens_per_s=1 / step, wan_bytes_per_step=0,
        memory_bytes_per_gpu=0, formula="test",
    )  # fmt: skip
    band = loss_band(strategy, 8e9, 2)
    return Candidate(strategy=strategy, layout=Layout(), prediction=prediction, risk=risk_words(strategy, band), loss=band)


def order(candidates: list[Candidate]) -> list[str]:
    return [each.strategy.name for each in rank(candidates, lambda each: standing(each, 2))]


def ready(each: Candidate) -> int:
    return readiness(each.strategy, each.layout, 2)


def test_plain_gradients_win_where_they_cost_less_than_the_tolerance() -> None:
    local = candidate("local", 1.001, "int8", "local-steps", 20)
    assert order([local, candidate("plain", 1.045)])[0] == "plain"
    assert order([local, candidate("plain", 1.055)])[0] == "local"


def test_of_equals_in_time_what_isthmus_runs_comes_first_then_the_lower_loss() -> None:
    found = order([
        candidate("int4", 1.0, "int4"),
        candidate("sharded", 1.0, kind="sharded"),
        candidate("int8", 1.01, "int8"),
        candidate("slow", 2.0),
    ])  # fmt: skip
    assert found == ["int8", "int4", "sharded", "slow"]


def test_only_what_the_runtime_trains_counts_as_run_and_it_comes_first_of_equals() -> None:
    # As isthmus.runtime.cluster refuses: model parallelism, ZeRO 1, recomputation; shards (ZeRO 2, 3) it has.
    whole = candidate("whole", 1.04)
    for layout in (Layout(tp=2), Layout(pp=2), Layout(zero=1), Layout(ep=2), Layout(recompute=True)):
        other = candidate("other", 1.0).model_copy(update={"layout": layout})
        assert (ready(whole), ready(other)) == (0, 1)
        assert order([other, whole]) == ["whole", "other"]
    assert runs(whole.strategy, Layout(zero=3), 2)
    pipeline = candidate("pipeline", 1.0, kind="pipeline").strategy
    assert [runs(pipeline, Layout(pp=stages), 2) for stages in (2, 4)] == [True, False]


def test_the_reason_says_who_must_run_the_layout() -> None:
    assert PLAN.layout.tp * PLAN.layout.pp > 1
    assert "isthmus's own runtime does not run this layout yet" in PLAN.why
    assert f"Megatron or FSDP inside a region with isthmus's {PLAN.strategy.name} between them" in PLAN.why


def test_what_is_quicker_and_no_riskier_is_never_passed_over_in_silence() -> None:
    plan = choose_plan(read_fabric(EXAMPLES / "beijing-shenzhen-shanghai.yaml"), LLAMA)
    winner = everything(plan)[plan.strategy.name]
    better = [
        each
        for each in plan.alternatives
        if each.prediction and each.prediction.step_s < plan.prediction.step_s and each.loss.high <= winner.loss.high
    ]
    assert better
    for each in better:
        assert each.prediction is not None
        assert f"{each.strategy.name} would be {1 - each.prediction.step_s / plan.prediction.step_s:.1%} quicker" in plan.why
        assert ready(each) > ready(winner)


@given(st.lists(st.tuples(st.floats(1, 10), st.sampled_from(["none", "bf16", "int8", "int4"])), min_size=1, max_size=12))
def test_nothing_that_ranks_lower_is_both_safer_and_quicker(pairs: list[tuple[float, str]]) -> None:
    items = [candidate(str(index), step, codec) for index, (step, codec) in enumerate(pairs)]
    ranked = rank(items, lambda each: standing(each, 2))
    assert len(ranked) == len(pairs)
    quickest = min(step for step, _ in pairs)
    assert ranked[0].prediction is not None
    assert ranked[0].prediction.step_s <= quickest * (1 + TOLERANCE)
    for better, worse in pairwise(ranked):
        assert better.prediction is not None
        assert worse.prediction is not None
        assert not (worse.prediction.step_s < better.prediction.step_s and worse.loss.high < better.loss.high)


@pytest.mark.parametrize("name", everything(PLAN))
def test_time_memory_and_utilisation_hang_together(name: str) -> None:
    each = everything(PLAN)[name]
    prediction, layout = each.prediction, each.layout
    assert prediction is not None
    assert layout.dp * layout.tp * layout.pp == 32
    assert prediction.memory_bytes_per_gpu <= 80e9
    without_wan = prediction.step_s - prediction.exposed_s - prediction.waiting_s
    assert prediction.utilisation == pytest.approx(without_wan / prediction.step_s)
    assert prediction.tokens_per_s == pytest.approx(LLAMA.tokens_per_step / prediction.step_s)
    # Collectives, the bubble and the optimizer stand between what the slowest stage computes and the step without the WAN.
    assert without_wan >= prediction.compute_s * (1 - 1e-9)
    assert prediction.formula.startswith(f"step inside a region {show_seconds(without_wan)} = compute ")


def test_hierarchical_beats_flat_and_fewer_bits_beat_more() -> None:
    names = ["flat", "hierarchical", "hierarchical-bf16", "hierarchical-int8", "hierarchical-int4"]
    assert sorted(names, key=lambda name: -step_s(PLAN, name)) == names


def test_gradients_of_16_bits_need_no_bf16_codec() -> None:
    names = {each.strategy.name for each in ways(make_setting(FABRIC, replace(LLAMA, gradient_bytes=2)))}
    assert "hierarchical-bf16" not in names
    assert "hierarchical" in names


def test_a_fast_and_short_link_is_given_plain_gradients_every_step() -> None:
    near = with_wan(FABRIC, rate_bytes_per_s=100e9, rtt_s=0.001, jitter_s=0.0, loss=0.0)
    plan = choose_plan(near, LLAMA)
    assert plan.strategy.name == "hierarchical"
    assert plan.rule_of_thumb.endswith("the computed choice agrees")


def test_a_thin_link_is_given_local_steps_with_the_least_harm_that_will_do() -> None:
    thin = with_wan(FABRIC, rate_bytes_per_s=12.5e6)
    plan = choose_plan(thin, LLAMA)
    assert plan.strategy.kind == "local-steps"
    priced = [(each, each.prediction.step_s) for each in everything(plan).values() if each.prediction]
    quickest = min(step for _, step in priced)
    good = [each for each, step in priced if step <= quickest * (1 + TOLERANCE) and ready(each) <= 1]
    assert plan.loss.high == min(each.loss.high for each in good)


def test_a_limit_on_the_loss_refuses_what_may_exceed_it_and_says_why() -> None:
    limited = choose_plan(with_wan(FABRIC, rate_bytes_per_s=12.5e6), LLAMA, loss_max=0.004)
    found = everything(limited)
    assert all(each.loss.high <= 0.004 for each in found.values() if each.prediction)
    refused = [each.refused for each in found.values() if each.refused and each.refused.startswith("quality")]
    assert refused
    assert all("more than 0.40%" in (each or "") for each in refused)


def test_break_even_points_are_where_the_choice_changes() -> None:
    assert {each.quantity for each in PLAN.break_even} == {"wan.rate", "wan.rtt"}
    for point in PLAN.break_even:
        now = min(link.rate_bytes_per_s for link in FABRIC.wan) if point.quantity == "wan.rate" else FABRIC.wan[0].rtt_s
        key = "rate" if point.quantity == "wan.rate" else "rtt"
        for factor, name in ((0.97, point.below), (1.03, point.above)):
            there = scaled(FABRIC, **{key: point.value / now * factor})
            first = first_choice(make_setting(there, LLAMA), KNOWN)
            assert first is not None
            assert first.strategy.name == name
        assert PLAN.strategy.name in (point.below, point.above)


def test_the_first_choice_is_what_ranking_everything_puts_first() -> None:
    for factor in (0.01, 0.1, 1, 10):
        there = scaled(FABRIC, rate=factor)
        first = first_choice(make_setting(there, LLAMA), KNOWN)
        assert first is not None
        assert first.strategy == weigh(there, LLAMA, known=KNOWN).ranked[0].strategy


@settings(max_examples=3, deadline=None)
@given(st.floats(1.5, 8.0))
def test_a_thinner_or_longer_link_makes_no_strategy_quicker(factor: float) -> None:
    (link,) = FABRIC.wan
    here = steps(FABRIC)
    # Of variants within 1% and layouts within 0.5% the plainer is taken, so a step may rest that much above the quickest.
    for changes in ({"rate_bytes_per_s": link.rate_bytes_per_s / factor}, {"rtt_s": link.rtt_s * factor}):
        there = steps(with_wan(FABRIC, **changes))
        assert all(there[name] >= here[name] * (1 - 0.016) for name in here)


def test_one_region_has_one_strategy_and_nothing_exposed() -> None:
    plan = choose_plan(read_fabric(EXAMPLES / "one-node.yaml"), LLAMA)
    assert plan.strategy.name == "one-region"
    assert plan.alternatives == []
    assert (plan.prediction.exposed_s, plan.prediction.utilisation) == (0.0, 1.0)


def test_three_regions_are_priced() -> None:
    plan = choose_plan(read_fabric(EXAMPLES / "beijing-shenzhen-shanghai.yaml"), LLAMA)
    assert {each.strategy.kind for each in everything(plan).values() if each.prediction} == {
        "flat", "hierarchical", "local-steps", "sharded", "pipeline",
    }  # fmt: skip


def test_the_reason_carries_the_numbers_that_decided() -> None:
    runner_up = PLAN.alternatives[0]
    assert runner_up.prediction is not None
    change = runner_up.prediction.step_s / PLAN.prediction.step_s - 1
    assert f"{PLAN.prediction.utilisation:.1%}" in PLAN.why
    assert runner_up.strategy.name in PLAN.why
    assert f"{abs(change):.1%}" in PLAN.why
    assert "RTT 18 ms" in PLAN.rule_of_thumb


def test_a_step_has_a_band_where_measured_steps_say_how_sure_it_is() -> None:
    stated = choose_plan(FABRIC, replace(LLAMA, mfu=0.3)).prediction
    assert (stated.step_low_s, stated.step_high_s) == (None, None)
    for each in everything(PLAN).values():
        found = each.prediction
        assert found is not None
        assert found.step_low_s is not None
        assert found.step_high_s is not None
        own, (low, high) = found.step_s - found.exposed_s, shipped_rates().band
        # What the WAN adds widens it: a line that carries 0.85 of its rate, a tenth or more of the seconds seen.
        assert found.step_s - found.step_low_s >= own * (1 - low) * (1 - 1e-9)
        assert found.step_high_s - found.step_s >= own * (high - 1) * (1 - 1e-9)
        if found.exposed_s > own:
            assert found.step_high_s - found.step_s > hypot(own * (high - 1), 0.1 * found.exposed_s)


def test_a_calibration_narrows_or_widens_the_band_as_its_own_collectives_scatter() -> None:
    def width(band: tuple[float, float]) -> float:
        classes = {class_of(sites_group(FABRIC)): ClassBands(wire=band, large=band, small=band)}
        found = choose_plan(FABRIC, LLAMA, None, constants_with(Calibration(version=1, constants={}, bands=classes))).prediction
        assert found.step_low_s is not None
        assert found.step_high_s is not None
        return found.step_high_s - found.step_low_s

    shipped = PLAN.prediction
    assert shipped.step_high_s is not None
    assert shipped.step_low_s is not None
    assert width((0.97, 1.03)) < shipped.step_high_s - shipped.step_low_s < width((0.5, 2.0))


def test_the_reason_names_the_layouts_of_the_winner_and_of_the_runner_up() -> None:
    runner_up = PLAN.alternatives[0]
    assert f"{PLAN.strategy.name} on {layout_words(PLAN.layout)} takes" in PLAN.why
    told = "on the same layout" if runner_up.layout == PLAN.layout else f"on {layout_words(runner_up.layout)}"
    assert f"The runner-up {runner_up.strategy.name} {told} is" in PLAN.why


def test_interleaved_stages_and_overlapped_tensor_parallelism_are_weighed_inside_regions_only() -> None:
    by_name = {each.strategy.name: each.strategy for each in ways(make_setting(FABRIC, LLAMA))}
    inside = list(layouts(make_setting(FABRIC, LLAMA), by_name["hierarchical"]))
    assert {each.virtual_stages for each in inside} == {1, 2, 4}
    interleaved = [each for each in inside if each.virtual_stages > 1]
    assert all(each.pp > 1 and LLAMA.shape.layers % (each.pp * each.virtual_stages) == 0 for each in interleaved)
    assert {each.tp_overlap for each in inside if each.tp > 1} == {False, True}
    assert not any(each.tp_overlap for each in inside if each.tp == 1)
    assert {each.virtual_stages for each in layouts(make_setting(FABRIC, LLAMA), by_name["pipeline"])} == {1}


def test_every_assumption_names_a_source() -> None:
    assert len(PLAN.assumptions) > 10
    assert all(each.source for each in PLAN.assumptions)


def test_only_what_entered_the_prediction_is_listed() -> None:
    alone = " ".join(each.name for each in choose_plan(read_fabric(EXAMPLES / "one-node.yaml"), LLAMA).assumptions)
    assert "nvlink4, share of line rate" in alone
    for word in ("infiniband", "outer", "RTT", "NCCL", "TCP", "backward", "lower risk"):
        assert word not in alone
        assert any(word in each.name for each in PLAN.assumptions)


def test_a_step_rests_on_the_fitted_shares_of_its_precision_unless_the_workload_states_an_mfu() -> None:
    in_bf16, in_fp8 = make_setting(FABRIC, LLAMA), make_setting(FABRIC, replace(LLAMA, precision="fp8"))
    assert in_fp8.machine.dense_flop_per_s == pytest.approx(2 * in_bf16.machine.dense_flop_per_s, rel=0.01)
    assert in_fp8.machine.dense_16_flop_per_s == in_bf16.machine.dense_16_flop_per_s
    assert (in_bf16.mfu, in_fp8.machine.rates.matrix) == (None, shipped_rates().gpus["h100"]["matrix_fp8"])
    named = {each.name for each in choose_plan(FABRIC, LLAMA).assumptions}
    assert "matrix products, share of the dense peak" in named
    stated = choose_plan(FABRIC, replace(LLAMA, mfu=0.3))
    assert next(each.value for each in stated.assumptions if each.name == "MFU inside one region") == 0.3
    flop = flop_per_token(LLAMA.shape, LLAMA.sequence_length) * LLAMA.tokens_per_step
    plain = [each.prediction.compute_s for each in stated.alternatives if each.prediction and not each.layout.recompute]
    assert min(plain) == pytest.approx(flop / (32 * 989.4e12 * 0.3))


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    save_plan(PLAN, tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml") == PLAN


def test_a_precision_that_the_gpu_lacks_is_named() -> None:
    old = read_fabric(EXAMPLES / "beijing-shenzhen-shanghai.yaml")
    with pytest.raises(InfeasibleError, match="has no fp8 rate"):
        choose_plan(old, replace(LLAMA, precision="fp8"))


def test_regions_of_unequal_size_refuse_a_pipeline_and_keep_the_rest() -> None:
    first, second = FABRIC.regions
    half = replace(second, groups=tuple(replace(group, count=1) for group in second.groups))
    plan = choose_plan(replace(FABRIC, regions=(first, half)), LLAMA)
    pipeline = everything(plan)["pipeline"]
    assert pipeline.refused == "stages of equal size need regions of equal size; these have 16 and 8 GPUs"
    assert everything(plan)["hierarchical"].prediction is not None


@pytest.mark.parametrize("workload", [LLAMA, read_workload("llama-3-70b")], ids=lambda each: each.name)
def test_a_copy_over_all_regions_never_needs_more_memory_than_one_in_each(workload: Workload) -> None:
    setting = make_setting(FABRIC, workload)
    (spread,) = (each.strategy for each in ways(setting) if each.strategy.name == "sharded-zero1")
    assert over_all(spread)
    for axes in layouts(setting, spread):
        assert replica_memory_bytes(setting, axes, True) <= replica_memory_bytes(setting, axes, False)


@pytest.mark.parametrize(
    ("name", "workload"),
    [("shenzhen-shanghai", "llama-3-8b"), ("singapore-tokyo", "llama-3-8b"), ("beijing-shenzhen-shanghai", "tiny")],
)
def test_a_plan_of_what_can_be_run_holds_nothing_that_the_runtime_refuses(name: str, workload: str) -> None:
    fabric = read_fabric(f"examples/{name}.yaml")
    plan = choose_plan(fabric, read_workload(workload), only_runnable=True)
    priced = [(plan.strategy, plan.layout), *((each.strategy, each.layout) for each in plan.alternatives if each.prediction)]
    members = Members.model_validate(
        {
            "regions": [
                {"name": each.name, "rails": [f"h{each.name}:{port + 1}" for port in range(each.gpus)]} for each in fabric.regions
            ]
        }
    )
    place = RankEnvironment(
        rank=0, world_size=members.regions[0].ranks, master=None, region=members.regions[0].name, region_index=0, members=members,
        plan_path=None, metrics_dir=None, blocks=None,
    )  # fmt: skip
    for strategy, layout in priced:
        require_plan(place, plan.model_copy(update={"strategy": strategy, "layout": layout}), "plan")
    assert all(each.refused for each in plan.alternatives if each.strategy.kind == "sharded")
