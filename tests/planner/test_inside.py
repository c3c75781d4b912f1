"""Communication inside a region: its rates by hand, and that no layout is quicker than its own wire."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from isthmus.cost.collectives_group import part_of
from isthmus.cost.collectives_time import seconds_of
from isthmus.cost.step_times import step_times
from isthmus.fabric import read_fabric
from isthmus.planner import choose_plan
from isthmus.planner.candidates import layouts, whole_batch
from isthmus.planner.feasibility import replica_memory_bytes
from isthmus.planner.inside import InRegion, in_region, steady_s
from isthmus.planner.predict import compute_step, place
from isthmus.planner.setting import make_setting
from isthmus.planner.ways import ways
from isthmus.workload import Axes, Layouts, micro_batches, parameter_count, read_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTING = make_setting(read_fabric(EXAMPLES / "shenzhen-shanghai-8.yaml"), read_workload("llama-3-70b"))


def test_zero_3_gathers_weights_twice_and_scatters_gradients_in_every_micro_batch() -> None:
    # tp8 in 4 nodes of a region; 512 sequences over 8 replicas: 64 micro-batches of 2 + 2 + 4 bytes a parameter.
    axes = Axes(dp=8, tp=8, zero=3)
    wires = in_region(SETTING, axes, spread=False)
    own = parameter_count(SETTING.workload.shape) / 8
    assert wires.axis == "dp"
    half_nic = 25e9 * SETTING.constants.carriers["infiniband"].sustained
    wire_s = 64 * 3 / 4 * own * 8 / half_nic
    assert wires.beside_s == pytest.approx(wire_s, rel=0.05)  # blocks are small enough for fill and hops to count
    # Weights and gradients of a block, 2 bytes each and 4: three collectives a micro-batch and block over the same links.
    nodes, block = part_of(SETTING.group, 8, 4), own / SETTING.workload.shape.layers
    one = [("all-gather", 2), ("all-gather", 2), ("reduce-scatter", SETTING.workload.gradient_bytes)]
    each = sum(seconds_of(kind, block * size, nodes, SETTING.constants) for kind, size in one)  # type: ignore[arg-type]
    assert wires.beside_s == pytest.approx(64 * SETTING.workload.shape.layers * each)


def test_overlapped_traffic_costs_what_exceeds_the_compute_and_blocking_what_exceeds_a_tenth_of_it() -> None:
    def steady(beside_s: float, blocking_s: float) -> float:
        return steady_s(10.0, InRegion(beside_s=beside_s, blocking_s=blocking_s, sent_bytes=0, axis="dp"))

    assert (steady(9, 0.9), steady(12, 0), steady(0, 3)) == (10, 12, pytest.approx(12))


def test_no_layout_is_quicker_than_its_wire_or_its_compute() -> None:
    (plain,) = (each.strategy for each in ways(SETTING) if each.strategy.name == "hierarchical")
    slower = 0
    for axes in layouts(SETTING, plain):
        compute, wires = compute_step(SETTING, axes, spread=False), in_region(SETTING, axes, spread=False)
        assert compute.total_s >= max(compute.busy_s, wires.beside_s, wires.blocking_s)
        slower += wires.beside_s > compute.busy_s
    assert slower > 0


def test_zero_3_is_not_chosen_where_zero_1_is_about_as_quick() -> None:
    plan = choose_plan(read_fabric(EXAMPLES / "singapore-tokyo.yaml"), read_workload("llama-3-8b"))
    chosen = {each.strategy.name: each.layout for each in (*plan.alternatives, plan) if each.prediction}
    assert [each for each, layout in chosen.items() if layout.zero == 3] == ["sharded-zero3"]


def test_experts_are_spread_within_a_region_and_long_sequences_over_ranks() -> None:
    setting = make_setting(read_fabric(EXAMPLES / "shenzhen-shanghai-8.yaml"), read_workload("mixtral-8x7b"))
    (plain,) = (each.strategy for each in ways(setting) if each.strategy.name == "hierarchical")
    found = list(layouts(setting, plain))
    assert {each.ep for each in found} == {1, 2, 4, 8}
    assert {each.cp for each in found} == {1, 2, 4, 8}  # sequences of 32,768 tokens
    for each in found:
        inside = min(setting.region_gpus) // (each.tp * each.pp)
        assert inside % each.ep == 0
        assert each.gpus == setting.gpus


def test_all_layouts_at_once_are_each_layout_alone() -> None:
    (plain,) = (each.strategy for each in ways(SETTING) if each.strategy.name == "hierarchical")
    places = place(SETTING, plain, {})
    for placed in places.fitting[::7]:
        rounds = micro_batches(whole_batch(SETTING.workload, placed.axes), placed.axes)
        inside = min(SETTING.region_gpus) // (placed.axes.tp * placed.axes.pp)
        alone = step_times(SETTING.workload, replace(Layouts.of([placed.axes], rounds), dp=np.array([inside])), SETTING.machine)
        assert placed.compute.total_s == pytest.approx(alone.total[0])
        assert placed.memory_bytes == pytest.approx(replica_memory_bytes(SETTING, placed.axes, over_all=False))
