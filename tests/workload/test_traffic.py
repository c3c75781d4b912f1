from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.workload import (
    Axes,
    Traffic,
    Workload,
    parameter_count,
    preset_names,
    read_workload,
    sent_bytes,
    traffic,
)

LLAMA = read_workload("llama-3-8b")
BF16 = replace(LLAMA, gradient_bytes=2)
degrees = st.sampled_from([1, 2, 4, 8])


def sent(workload: Workload, axes: Axes, axis: str, **match: object) -> float:
    chosen = [item for item in traffic(workload, axes) if item.axis == axis]
    return sum(sent_bytes(i) for i in chosen if all(getattr(i, key) == value for key, value in match.items()))


def test_data_parallelism_all_reduces_every_gradient_once() -> None:
    (item,) = traffic(LLAMA, Axes(dp=8))
    assert item == Traffic(
        axis="dp",
        op="all-reduce",
        phase="backward",
        bytes_per_op=4 * 8_030_261_248,
        ops_per_step=1,
        group=8,
        overlappable=True,
        what="gradients",
    )
    assert sent_bytes(item) == 2 * 7 / 8 * 4 * 8_030_261_248


def test_zero_1_and_2_send_as_much_as_data_parallelism_and_zero_3_half_as_much_again() -> None:
    # One micro-batch, weights and gradients both bf16: 2 Psi, 2 Psi, 2 Psi, 3 Psi (arXiv 1910.02054, section
    # 7).
    one = replace(BF16, sequences_per_step=64)
    plain, *zero = (sent(one, Axes(dp=64, zero=stage), "dp") for stage in (0, 1, 2, 3))  # type: ignore[arg-type]
    assert zero == pytest.approx([plain, plain, 1.5 * plain], rel=1e-12)


@pytest.mark.parametrize("name", preset_names())
def test_zero_3_is_one_and_a_half_for_every_model(name: str) -> None:
    workload = read_workload(name)
    weight = 4 if workload.precision == "fp32" else 2
    workload = replace(workload, sequences_per_step=16, gradient_bytes=weight)
    assert sent(workload, Axes(dp=16, zero=3), "dp") == pytest.approx(
        1.5 * sent(workload, Axes(dp=16), "dp"), rel=1e-12
    )


@given(dp=st.sampled_from([2, 4, 8]), rounds=st.integers(1, 16))
def test_only_zero_2_and_3_pay_for_every_micro_batch(dp, rounds) -> None:
    once = replace(BF16, sequences_per_step=dp)
    many = replace(BF16, sequences_per_step=dp * rounds)
    for stage, scatter_factor, gather_factor in ((0, 1, 1), (1, 1, 1), (2, rounds, 1), (3, rounds, rounds)):
        axes = Axes(dp=dp, zero=stage)  # type: ignore[arg-type]
        assert sent(many, axes, "dp", what="gradients") == pytest.approx(
            scatter_factor * sent(once, axes, "dp", what="gradients"), rel=1e-12
        )
        assert sent(many, axes, "dp", what="weights") == pytest.approx(
            gather_factor * sent(once, axes, "dp", what="weights"), rel=1e-12
        )


def test_tensor_parallelism_sends_what_four_all_reduces_a_block_would() -> None:
    # Megatron: two all-reduces of s b h forward and two backward per block; sequence parallelism splits each
    # into a reduce-scatter and an all-gather at equal volume, and gathers twice more for the weight
    # gradients, hidden.
    axes = Axes(tp=8)
    all_reduces = 512 * 32 * 4 * 2 * 7 / 8 * (2 * 8192 * 4096)
    assert sent(LLAMA, axes, "tp", overlappable=False) == pytest.approx(all_reduces, rel=1e-12)
    assert sent(LLAMA, axes, "tp", overlappable=True) == pytest.approx(all_reduces / 4, rel=1e-12)


def test_full_recomputation_repeats_the_forward_collectives_only() -> None:
    for name, axes, axis in (("llama-3-8b", Axes(tp=8), "tp"), ("mixtral-8x7b", Axes(dp=8, ep=8), "ep")):
        workload = read_workload(name)
        plain, full = (sent(workload, replace(axes, recompute=r), axis) for r in ("none", "full"))
        assert full - plain == pytest.approx(sent(workload, axes, axis, phase="forward"), rel=1e-12)


@given(dp=degrees, tp=st.sampled_from([2, 4, 8]), b=st.integers(1, 4))
def test_tensor_parallel_traffic_of_a_replica_does_not_depend_on_how_many_there_are(dp, tp, b) -> None:
    alone = [
        i
        for i in traffic(replace(LLAMA, sequences_per_step=4 * b), Axes(tp=tp, micro_batch=b))
        if i.axis == "tp"
    ]
    many = replace(LLAMA, sequences_per_step=4 * b * dp)
    assert [i for i in traffic(many, Axes(dp=dp, tp=tp, micro_batch=b)) if i.axis == "tp"] == alone


@given(tp=degrees, cp=degrees, pp=st.sampled_from([2, 4, 8]), b=st.sampled_from([1, 2, 4]))
def test_every_token_crosses_a_stage_border_once_each_way_however_it_is_cut(tp, cp, pp, b) -> None:
    # Over the tp x cp ranks of a stage: tokens x h x 2 bytes forward, as many backward.
    per_rank = sent(LLAMA, Axes(tp=tp, cp=cp, pp=pp, micro_batch=b), "pp")
    assert tp * cp * per_rank == pytest.approx(2 * LLAMA.tokens_per_step * 4096 * 2, rel=1e-12)


@given(cp=st.sampled_from([2, 4, 8]), tp=degrees)
def test_ring_attention_shows_every_rank_all_keys_and_values(cp, tp) -> None:
    # Forward: each rank passes on the other ranks' share, (cp - 1)/cp of s tokens, K and V, 1,024 wide / tp.
    forward = sent(LLAMA, Axes(cp=cp, tp=tp), "cp", phase="forward")
    assert forward == pytest.approx(512 * 32 * (cp - 1) / cp * 8192 * 2 * 1024 / tp * 2, rel=1e-12)
    assert sent(LLAMA, Axes(cp=cp, tp=tp), "cp", phase="backward") == pytest.approx(2 * forward, rel=1e-12)


def test_expert_parallelism_dispatches_every_token_to_its_experts_and_back() -> None:
    # Mixtral, ep 8 of dp 8, one sequence of 32,768 per micro-batch, 16 micro-batches: dispatch and combine in
    # each of 32 blocks, forward and backward, of 32,768 x 4,096 x 2 experts x 2 bytes; 7/8 of it leaves.
    workload = read_workload("mixtral-8x7b")
    assert sent(workload, Axes(dp=8, ep=8), "ep") == pytest.approx(
        16 * 32 * 4 * (32768 * 4096 * 2 * 2) * 7 / 8, rel=1e-12
    )


def test_tensor_parallel_experts_gather_every_dispatched_copy_of_a_token() -> None:
    # With ep each block's expert half moves two copies of s h, its attention half one; without ep both move
    # one.
    workload = read_workload("mixtral-8x7b")
    split, whole = (sent(workload, Axes(dp=8, tp=2, ep=ep), "tp") for ep in (8, 1))
    assert split == pytest.approx(1.5 * whole, rel=1e-12)


def test_latent_attention_sends_expanded_keys_and_values_around_the_ring() -> None:
    # DeepSeek-V3 over cp 2: 15,360 sequences, 61 blocks, half a sequence, 128 heads of 192 + 128, bf16.
    forward = sent(read_workload("deepseek-v3"), Axes(cp=2), "cp", phase="forward")
    assert forward == pytest.approx(15360 * 61 * 2048 * 128 * (192 + 128) * 2, rel=1e-12)


def test_deepseek_dispatches_in_its_58_expert_blocks_and_its_mtp_block() -> None:
    forward = sent(read_workload("deepseek-v3"), Axes(dp=8, ep=8), "ep", phase="forward")
    assert forward == pytest.approx(1920 * 59 * 2 * (8 * 4096 * 7168 * 2) * 7 / 8, rel=1e-12)


def test_routed_experts_reduce_over_the_replicas_that_share_them() -> None:
    workload = read_workload("mixtral-8x7b")
    groups = {i.what: i for i in traffic(workload, Axes(dp=16, ep=8)) if i.axis == "dp"}
    routed = 32 * 8 * 3 * 4096 * 14336
    assert groups["gradients of experts"].group == 2
    assert groups["gradients of experts"].bytes_per_op == 2 * routed / 8
    assert groups["gradients"].group == 16
    assert groups["gradients"].bytes_per_op == 2 * (parameter_count(workload.shape) - routed)
    assert not [i for i in traffic(workload, Axes(dp=8, ep=8)) if i.what == "gradients of experts"]


@given(dp=degrees, tp=degrees, pp=degrees, cp=degrees, zero=st.integers(0, 3))
def test_a_group_of_one_sends_nothing_and_everything_else_is_positive(dp, tp, pp, cp, zero) -> None:
    axes = Axes(dp=dp, tp=tp, pp=pp, cp=cp, zero=zero)  # type: ignore[arg-type]
    by_axis: dict[str, float] = defaultdict(float)
    for item in traffic(LLAMA, axes):
        assert item.group > 1
        assert sent_bytes(item) > 0
        by_axis[item.axis] += sent_bytes(item)
    expected = {"dp": dp * cp, "tp": tp, "pp": pp, "cp": cp}
    assert set(by_axis) == {axis for axis, degree in expected.items() if degree > 1}


@given(dp=st.sampled_from([2, 4, 8, 16]), zero=st.integers(0, 3))
def test_data_parallel_traffic_grows_with_the_group_towards_its_bound(dp, zero) -> None:
    workload = replace(BF16, sequences_per_step=64)
    axes, wider = Axes(dp=dp, zero=zero), Axes(dp=2 * dp, zero=zero)  # type: ignore[arg-type]
    per_round = {0: 1, 1: 1, 2: 64 // dp, 3: 64 // dp}[zero]
    bound = (2 + (zero == 3)) * 2 * parameter_count(LLAMA.shape) * per_round
    assert sent(workload, axes, "dp") < bound * (1 + 1e-12)
    if zero < 2:  # from ZeRO-2 on fewer micro-batches outweigh the wider group
        assert sent(workload, axes, "dp") < sent(workload, wider, "dp")
