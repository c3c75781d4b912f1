from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import InfeasibleError
from isthmus.workload import (
    Axes,
    activation_bytes,
    gpu_memory,
    memory_bytes_per_gpu,
    mtp_parameter_count,
    parameter_count,
    parameters_per_gpu,
    preset_names,
    read_workload,
    state_bytes,
)

from .shapes import model_shapes

GPT3 = read_workload("gpt3-175b")
H, A, L, S = 12288, 96, 96, 2048


def test_mixed_precision_adam_takes_16_bytes_a_parameter_and_18_with_fp32_gradients() -> None:
    n = parameter_count(GPT3.shape)
    assert state_bytes(GPT3.shape).total == 16 * n == pytest.approx(2.8e12, rel=5e-3)
    assert state_bytes(GPT3.shape, "bf16", 4).total == 18 * n
    assert state_bytes(GPT3.shape, "fp8", 1).total == 15 * n
    assert state_bytes(GPT3.shape, "fp32", 4).total == 16 * n
    assert state_bytes(GPT3.shape, "fp32", 4).master == 0


# Korthikanti et al., arXiv 2205.05198, table 2, bytes per block with sequence parallelism over t = 8 and b =
# 1.
@pytest.mark.parametrize(
    ("recompute", "kernel", "per_block"),
    [
        ("none", "unfused", S * H * (34 + 5 * A * S / H) / 8),
        ("selective", "unfused", S * H * 34 / 8),
        ("selective", "fused", S * H * 34 / 8),
        ("none", "fused", S * H * 34 / 8 + 4 * A * S / 8),
    ],
)
def test_gpt_activations_are_megatrons_formula(recompute, kernel, per_block) -> None:
    found = activation_bytes(GPT3.shape, S, 1, 8, recompute=recompute, kernel=kernel)
    assert found == pytest.approx(L * per_block, rel=1e-12)


def test_full_recomputation_keeps_block_inputs_and_one_block_at_work() -> None:
    expected = L * 2 * S * H / 8 + 34 * S * H / 8
    assert activation_bytes(GPT3.shape, S, 1, 8, recompute="full") == pytest.approx(expected, rel=1e-12)


def test_llama_block_by_hand() -> None:
    # Per token of Llama-3-8B in bf16 (h = 4096): norms' inputs 2 h, QKV input h, Q h, K and V h/4 each,
    # attention output h; feed-forward input h, gate, up and product 3 x 14336; all twice for bytes;
    # log-sum-exp 4 x 32.
    shape = read_workload("llama-3-8b").shape
    per_token = 2 * (2 * 4096 + 4096 + 4096 + 2 * 1024 + 4096 + 4096 + 3 * 14336) + 4 * 32
    assert activation_bytes(shape, 8192) == pytest.approx(32 * 8192 * per_token, rel=1e-12)


def test_an_expert_block_keeps_what_its_visited_experts_would() -> None:
    # Mixtral beside Llama-3-8B, whose blocks are the same size: per token the two visited experts keep
    # dispatched input and output (2 h each) and a second set of 3 x 14336, and the router its 8 fp32 scores.
    dense, sparse = read_workload("llama-3-8b").shape, read_workload("mixtral-8x7b").shape
    extra = 2 * (2 * 2 * 4096 + 3 * 14336) + 4 * 8
    assert activation_bytes(sparse, 1000) - activation_bytes(dense, 1000) == pytest.approx(
        32 * 1000 * extra, rel=1e-9
    )


def test_deepseek_blocks_by_hand() -> None:
    # Elements per token: two norms' inputs and the projections' input 3 h, both latents before and after
    # their norm and the shared rotary key, queries and keys of 192 and values and outputs of 128 for each of
    # 128 heads; a dense feed-forward h + 3 x 18432; an expert one h + 8 x (2 h + 3 x 2048) + 3 x 2048 and 256
    # fp32 scores.
    h = 7168
    attention = 3 * h + 2 * (1536 + 512) + 64 + 128 * (2 * 192 + 2 * 128)
    dense = 2 * (attention + h + 3 * 18432) + 4 * 128
    expert = 2 * (attention + h + 8 * (2 * h + 3 * 2048) + 3 * 2048) + 4 * 256 + 4 * 128
    kept = activation_bytes(read_workload("deepseek-v3").shape, 4096)
    assert kept == pytest.approx(4096 * (3 * dense + 58 * expert), rel=1e-12)


@given(shape=model_shapes(), b=st.integers(1, 5), s=st.integers(1, 64))
def test_recomputing_more_never_keeps_more_and_batches_add_up(shape, b, s) -> None:
    none = activation_bytes(shape, s, b, recompute="none", kernel="unfused")
    assert activation_bytes(shape, s, b, recompute="selective", kernel="unfused") < none
    assert activation_bytes(shape, s, b) == pytest.approx(b * activation_bytes(shape, s), rel=1e-12)
    assert activation_bytes(shape, s, b, 2) == pytest.approx(activation_bytes(shape, s, b) / 2, rel=1e-12)


def test_one_gpu_holds_every_parameter_and_stages_together_hold_no_fewer() -> None:
    for name in preset_names():
        shape = read_workload(name).shape
        whole = parameter_count(shape) + mtp_parameter_count(shape)
        assert sum(parameters_per_gpu(shape, Axes(), last=True)) == whole, name
        stages = [sum(parameters_per_gpu(shape, Axes(pp=2), last)) for last in (False, True)]
        copies = (
            shape.hidden * shape.vocabulary * (1 + shape.mtp_layers)
        )  # tied or shared tables are held twice
        spare = (whole / shape.layers) * 1.1 * (shape.layers % 2)  # an odd layer is counted on either stage
        assert whole * (1 - 1e-9) <= sum(stages) <= whole + copies + spare, name


def test_gpt3_state_shrinks_by_the_zero_stage_as_the_paper_says() -> None:
    # 16 Psi; 4 Psi + 12 Psi / 64; 2 Psi + 14 Psi / 64; 16 Psi / 64 (arXiv 1910.02054, figure 1).
    psi = parameter_count(GPT3.shape)
    workload = replace(GPT3, sequences_per_step=64)
    for zero, expected in enumerate((16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64)):
        state = gpu_memory(workload, Axes(dp=64, zero=zero)).state  # type: ignore[arg-type]
        assert state.total == pytest.approx(expected * psi, rel=1e-12)


def test_expert_parallelism_divides_routed_experts_only() -> None:
    workload = read_workload("mixtral-8x7b")
    whole, split = (parameters_per_gpu(workload.shape, Axes(dp=8, ep=ep), last=True) for ep in (1, 8))
    assert split == (whole[0], whole[1] / 8)


def test_a_full_optimizer_shard_is_the_same_with_and_without_expert_parallelism() -> None:
    # Under ZeRO-3 every parameter is held once over all ranks, whichever axis splits the experts.
    workload = read_workload("mixtral-8x7b")
    one, eight = (gpu_memory(workload, Axes(dp=8, ep=ep, zero=3)).state.total for ep in (1, 8))
    assert one == pytest.approx(eight, rel=1e-12)


def test_the_last_stage_holds_the_logits_and_the_first_the_most_micro_batches() -> None:
    workload = replace(read_workload("llama-3-8b"), sequences_per_step=16)
    memory = gpu_memory(workload, Axes(pp=4))
    # First stage: 4 micro-batches x 8 of 32 blocks. Last: 1 x 8 blocks and 8,192 tokens of 2 x 2 h + 4 V
    # bytes.
    blocks = activation_bytes(workload.shape, 8192)
    assert memory.stage == "first"
    assert memory.activations == pytest.approx(blocks, rel=1e-12)
    alone = gpu_memory(replace(workload, sequences_per_step=1), Axes(pp=4))
    assert alone.stage == "last"
    assert alone.activations == pytest.approx(blocks / 4 + 8192 * (4 * 4096 + 4 * 128256), rel=1e-12)


def test_under_full_recomputation_only_one_micro_batch_has_a_block_at_work() -> None:
    memory = gpu_memory(replace(GPT3, sequences_per_step=8), Axes(tp=8, pp=8, recompute="full"))
    # First stage: inputs of 12 blocks for 8 micro-batches, one block of 34 s h at work.
    assert memory.stage == "first"
    assert memory.activations == pytest.approx((8 * 12 * 2 + 34) * S * H / 8, rel=1e-12)


@given(
    dp=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4, 8]),
    zero=st.integers(0, 2),
)
def test_more_sharding_never_needs_more_memory(dp, tp, pp, zero) -> None:
    workload = read_workload("llama-3-70b")
    here = memory_bytes_per_gpu(workload, Axes(dp=dp, tp=tp, pp=pp, zero=zero))
    assert memory_bytes_per_gpu(workload, Axes(dp=dp, tp=2 * tp, pp=pp, zero=zero)) < here
    assert memory_bytes_per_gpu(workload, Axes(dp=dp, tp=tp, pp=pp, zero=zero + 1)) <= here  # type: ignore[arg-type]
    assert memory_bytes_per_gpu(workload, Axes(dp=2 * dp, tp=tp, pp=pp, zero=zero)) <= here
    assert memory_bytes_per_gpu(workload, Axes(dp=dp, tp=tp, pp=pp, cp=2, zero=zero)) < here


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        (Axes(pp=97), "97 stages for 96 layers\n  binding constraint: pp <= layers"),
        (Axes(tp=7), "96 heads cannot be split 7 ways\n  binding constraint: tp divides the heads"),
        (
            Axes(cp=3),
            "2048 tokens of a sequence cannot be split 3 ways\n"
            "  binding constraint: cp x tp divides the tokens of a sequence",
        ),
        (
            Axes(dp=5),
            "1536 sequences of a step cannot be split 5 ways\n"
            "  binding constraint: dp x micro_batch divides the sequences of a step",
        ),
        (Axes(dp=2, ep=2), "ep 2 for a model without experts\n  binding constraint: ep = 1"),
        (Axes(dp=0), "dp is 0\n  binding constraint: dp >= 1"),
    ],
)
def test_axes_that_do_not_divide_the_model_are_refused_by_name(axes: Axes, text: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        memory_bytes_per_gpu(GPT3, axes)
    assert str(caught.value) == text
