"""The step of many layouts: closed forms by hand, a second count of the operations, and laws."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cost.collectives_constants import Constants, constants_from, default_constants, known_constants
from isthmus.cost.collectives_group import GroupLevel
from isthmus.cost.collectives_time import collective_time
from isthmus.cost.machine import GpuRates, Machine, Stack
from isthmus.cost.step_rates import shipped_rates
from isthmus.cost.step_times import REASONS, StepTimes, step_times
from isthmus.cost.step_wires import Ranks, Way, group_of, send_seconds, wire_s
from isthmus.errors import InputError
from isthmus.workload import Layouts, ModelShape, Workload, flop_per_token, layout_memory, read_workload
from isthmus.workload.layouts import RECOMPUTE

GPT = ModelShape(
    name="gpt", layers=24, hidden=2048, heads=16, kv_heads=16, head_dim=128, ffn=8192, gated=False, vocabulary=51200,
    tied=True, positions=2048, biases=True, norm_tensors=2, dropout=True,
)  # fmt: skip
WORKLOAD = Workload(
    name="gpt",
    shape=GPT,
    sequence_length=2048,
    sequences_per_step=256,
    precision="bf16",
    gradient_bytes=2,
    mfu=None,
    source="test",
)
PLAIN = Stack(
    name="plain", attention="unfused", host_s=0.0, sends_overlap=False, gathers_overlap=False, pointwise=1.0, products_add=True,
    stops_early=False, launches_block=False, gradient_bytes=2, tp_way="sequence-parallel", dp_overlap=True, source="test",
)  # fmt: skip


WAYS: tuple[Way, ...] = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all")


def free_of_charge() -> Constants:
    """Collectives that cost their bytes and nothing else."""
    none = ("latency_ll", "latency_ll128", "latency_simple", "fill_s", "switch_latency_s", "launch_s")
    return constants_from({each.name: 0.0 if each.name.endswith(none) else each.value for each in known_constants()})


IDEAL = Machine(
    dense_flop_per_s=312e12,
    dense_16_flop_per_s=312e12,
    memory_bytes=1e15,
    memory_rate_bytes_per_s=1e30,
    node_gpus=8,
    group=(
        GroupLevel(carrier="nvlink3", members=8, rate_bytes_per_s=1e30),
        GroupLevel(carrier="infiniband", members=64, rate_bytes_per_s=1e30),
    ),
    constants=free_of_charge(),
    rates=GpuRates(matrix=0.5, attention=0.5, memory=1.0, contention=0.0, source="test"),
    stack=PLAIN,
)
REAL = replace(
    IDEAL,
    memory_bytes=80e9,
    memory_rate_bytes_per_s=2e12,
    group=(
        GroupLevel(carrier="nvlink3", members=8, rate_bytes_per_s=300e9),
        GroupLevel(carrier="infiniband", members=64, rate_bytes_per_s=200e9),
    ),
    constants=default_constants(),
    rates=GpuRates(matrix=0.8, attention=0.4, memory=0.8, contention=0.3, source="test"),
    stack=replace(PLAIN, host_s=2e-3),
)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (4, 1), (2, 2)])
def test_without_memory_and_wires_a_step_is_the_models_operations(recompute: str, tp: int, cp: int) -> None:
    # A second witness: `flop_per_token` counts operations without layouts. 312e12 x 0.5 on every GPU.
    layouts = Layouts.make(dp=8, tp=tp, cp=cp, micro_batch=4, rounds=8, recompute=RECOMPUTE.index(recompute))
    times = step_times(WORKLOAD, layouts, IDEAL)
    flop = flop_per_token(GPT, 2048, next(each for each in RECOMPUTE if each == recompute)) * WORKLOAD.tokens_per_step
    assert times.total[0] == pytest.approx(flop / (8 * tp * cp * 312e12 * 0.5), rel=1e-9)


def test_filling_and_draining_adds_p_minus_1_over_v_slots_and_a_ragged_round_idles_more() -> None:
    model = replace(WORKLOAD, shape=replace(GPT, vocabulary=1))  # no output projection to speak of
    layouts = Layouts.make(pp=4, dp=1, rounds=[16, 16, 16, 18], virtual_stages=[1, 2, 6, 2])
    times = step_times(model, layouts, IDEAL)
    slots = times.bubble / times.slot
    assert slots == pytest.approx([3, 3 / 2, 3 / 6, 3 / 2 + 2 / 2], rel=1e-3)


def test_the_output_projection_paces_the_pipeline_where_the_last_stage_is_the_slowest() -> None:
    layouts = Layouts.make(pp=4, rounds=16)
    small, large = (step_times(replace(WORKLOAD, shape=replace(GPT, vocabulary=size)), layouts, IDEAL) for size in (1, 250_880))
    extra = 3 * 2 * 2048 * 2048 * 250_880 / (312e12 * 0.5)
    assert large.slot[0] - small.slot[0] == pytest.approx(extra, rel=1e-3)
    # 22 blocks on 4 stages of 6: the last has 4, and its projection takes less than the two blocks it lacks.
    uneven = replace(WORKLOAD, shape=replace(GPT, layers=22, vocabulary=6 * 2048))
    assert step_times(uneven, layouts, IDEAL).slot[0] == pytest.approx(small.slot[0], rel=1e-3)


def test_a_host_that_launches_more_slowly_than_the_gpu_computes_paces_the_step() -> None:
    layouts = Layouts.make(dp=1, rounds=4)
    slow = replace(IDEAL, stack=replace(PLAIN, host_s=1.0))
    assert step_times(WORKLOAD, layouts, slow).total[0] == pytest.approx(4 * 24 * 1.0, rel=0.01)
    blocking = replace(IDEAL, stack=replace(PLAIN, host_s=1.0, launches_block=True))
    adds = step_times(WORKLOAD, layouts, blocking).total[0] - step_times(WORKLOAD, layouts, IDEAL).total[0]
    assert adds == pytest.approx(4 * 24 * 1.0)


@pytest.mark.parametrize("way", WAYS)
def test_a_group_pays_what_the_collective_model_says_of_its_part_of_the_machine(way: Way) -> None:
    # Eight neighbours; every eighth GPU, one rail of eight; four of each of 16 nodes, half of their rails.
    ranks = Ranks(stride=np.array([1, 8, 2, 1]), ranks=np.array([8, 64, 64, 1]))
    size = np.array([64e6, 64e6, 1e9, 1e9])
    node, network = REAL.group
    parts = [
        (node,),
        (replace(network, rate_bytes_per_s=25e9),),
        (replace(node, members=4), replace(network, members=16, rate_bytes_per_s=100e9)),
    ]
    expected = [collective_time(way, each, part).seconds for each, part in zip(size, parts, strict=False)]
    assert wire_s(REAL, ranks, way, size).tolist() == pytest.approx([*expected, 0.0])


def test_a_send_to_the_next_stage_takes_the_farthest_links_of_its_group() -> None:
    pairs = Ranks(stride=np.array([1, 8, 4, 8]), ranks=np.array([8, 2, 4, 1]))
    sent = send_seconds(REAL, pairs, np.full(4, 32e6))
    node, network = (replace(level, members=2) for level in REAL.group)
    rail = replace(network, rate_bytes_per_s=25e9)
    expected = [collective_time("send-recv", 32e6, (each,)).seconds for each in (node, rail, rail)]
    assert sent.tolist() == pytest.approx([*expected, 0.0])


def test_groups_lie_as_megatron_orders_them_and_outer_axes_take_no_two_ranks_of_a_node() -> None:
    layouts = Layouts.make(tp=4, cp=2, dp=8, pp=4, pp_outside=[False, True])
    strides = {axis: group_of(layouts, axis, 8).stride.tolist() for axis in ("tp", "cp", "ep", "dp", "pp")}
    assert strides == {"tp": [1, 1], "cp": [4, 4], "ep": [4, 4], "dp": [4, 4], "pp": [64, 64]}
    outer = group_of(Layouts.make(tp=2, dp=8, tp_outside=True, dp_outside=True), "dp", 8)
    assert outer.stride.tolist() == [16]  # 8 GPUs of a node, then tp's 2


def test_activations_without_sequence_parallelism_are_korthikantis_equation_2() -> None:
    # s b h (10 + 24/t + 5 a s / (h t)) a block; the last stage adds logits, so the first of two is asked for.
    s, b, h, a, t = 2048, 2, 2048, 16, 4
    for way, per_token in ((0, 10 + 24 / t + 5 * a * s / (h * t)), (2, 34 / t + 5 * a * s / (h * t))):
        layouts = Layouts.make(pp=2, tp=t, micro_batch=b, rounds=8, tp_way=way)
        memory = layout_memory(WORKLOAD, layouts, "unfused")
        assert not memory.last[0]
        assert memory.activations[0] == pytest.approx(2 * 12 * s * b * h * per_token)
    kept = layout_memory(
        WORKLOAD, Layouts.make(pp=2, tp=t, micro_batch=b, rounds=8, tp_regather=[True, False]), "unfused"
    ).activations
    assert kept[1] - kept[0] == pytest.approx(2 * 12 * s * b * h * 4 * (1 - 1 / t))


def test_interleaving_holds_more_micro_batches_as_megatron_says() -> None:
    plain, chunked = layout_memory(WORKLOAD, Layouts.make(pp=4, rounds=16, virtual_stages=[1, 3])).activations
    assert chunked / plain == pytest.approx(1 + 3 / (4 * 3))


def test_what_forbids_a_layout_is_named() -> None:
    layouts = Layouts.make(
        tp=[1, 1, 16],
        dp=[1, 1, 4],
        pp=[1, 4, 1],
        micro_batch=[64, 1, 1],
        rounds=4,
        virtual_stages=[1, 4, 1],
        dp_outside=[False, False, True],
    )
    refused = step_times(WORKLOAD, layouts, REAL).refused
    assert [REASONS[code].split(":")[0] for code in refused] == ["memory", "stages", "node"]


@st.composite
def layouts_of(draw: st.DrawFn) -> Layouts:
    rows = draw(st.integers(1, 6))

    def column(*values: int) -> list[int]:
        return draw(st.lists(st.sampled_from(values), min_size=rows, max_size=rows))

    return Layouts.make(
        dp=column(1, 2, 8, 64), tp=column(1, 2, 8, 16), pp=column(1, 2, 3, 8), cp=column(1, 2), zero=column(0, 1, 2, 3),
        micro_batch=column(1, 2, 5), rounds=column(1, 7, 32), recompute=column(0, 1, 2), virtual_stages=column(1, 3),
        tp_way=column(0, 1, 2), tp_overlap=column(0, 1, 2), tp_regather=column(0, 1), dp_overlap=column(0, 1),
    )  # fmt: skip


def seconds_of(times: StepTimes, row: int) -> dict[str, float]:
    return {**times.part(row), "slot": float(times.slot[row]), "memory": float(times.memory.total[row])}


@settings(max_examples=60, deadline=None)
@given(layouts_of())
def test_a_row_of_many_is_the_same_as_the_layout_alone_and_no_part_is_negative(layouts: Layouts) -> None:
    many = step_times(WORKLOAD, layouts, REAL)
    for row in range(len(layouts)):
        alone = step_times(WORKLOAD, layouts.take(np.array([row])), REAL)
        assert seconds_of(alone, 0) == pytest.approx(seconds_of(many, row))
        assert min(many.part(row).values()) >= 0


@settings(max_examples=60, deadline=None)
@given(layouts_of(), st.sampled_from(["links", "memory", "peak", "host"]), st.floats(1.01, 100))
def test_no_faster_part_makes_a_step_slower(layouts: Layouts, what: str, factor: float) -> None:
    match what:
        case "links":
            better = replace(
                REAL, group=tuple(replace(each, rate_bytes_per_s=each.rate_bytes_per_s * factor) for each in REAL.group)
            )
        case "memory":
            better = replace(REAL, memory_rate_bytes_per_s=REAL.memory_rate_bytes_per_s * factor)
        case "peak":
            better = replace(
                REAL, dense_flop_per_s=REAL.dense_flop_per_s * factor, dense_16_flop_per_s=REAL.dense_16_flop_per_s * factor
            )
        case _:
            better = replace(REAL, stack=replace(REAL.stack, host_s=REAL.stack.host_s / factor))
    before, after = step_times(WORKLOAD, layouts, REAL).total, step_times(WORKLOAD, layouts, better).total
    assert (after <= before * (1 + 1e-9)).all()


def test_expert_parallelism_sends_each_token_to_its_experts_and_back_twice() -> None:
    mixtral = read_workload("mixtral-8x7b")
    layouts = Layouts.make(dp=8, ep=[1, 8], rounds=4)
    times = step_times(mixtral, layouts, REAL)
    sent = mixtral.shape.experts_active * mixtral.sequence_length * mixtral.shape.hidden * 2
    one = collective_time("all-to-all", sent, REAL.group[:1]).seconds
    assert times.ep.tolist() == pytest.approx([0, 4 * 4 * mixtral.shape.layers * one])
    assert times.memory.weights[1] < times.memory.weights[0] / 4


def test_every_fitted_share_stands_within_what_physics_allows() -> None:
    rates = shipped_rates()
    for shares in rates.gpus.values():
        assert all(0 <= share <= 0.92 for share in shares.values())
    assert set(rates.host_s) <= set(rates.stacks)
    assert [each.name for each in fields(GpuRates)][:4] == ["matrix", "attention", "memory", "contention"]
    with pytest.raises(InputError, match="megatron-2023"):
        rates.stack("megatron-2024")
