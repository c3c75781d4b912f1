from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.workload import (
    ModelShape,
    active_parameter_count,
    flop_per_token,
    forward_flop_per_token,
    preset_names,
    read_workload,
)

from .shapes import attention_tensors, expert_tensors, feed_forward_tensors, model_shapes

GPT3 = read_workload("gpt3-175b").shape


def products(shape: ModelShape, s: int, causal: bool) -> Iterator[tuple[float, int, float]]:
    """(rows, inner, columns) of every matrix product of the forward pass of one sequence of `s` tokens."""
    columns = [min(t, shape.window or t) if causal else s for t in range(1, s + 1)]
    for layer in range(shape.layers):
        expert = bool(shape.experts) and layer >= shape.dense_layers
        block = expert_tensors(shape, active=True) if expert else feed_forward_tensors(shape, shape.ffn)
        for tensor in [*attention_tensors(shape), *block]:
            if len(tensor) == 2:
                yield s, tensor[1], tensor[0]
        for _ in range(shape.heads):
            for seen in columns:
                yield 1, shape.key_dim, seen
                yield 1, seen, shape.head_dim
    yield s, shape.hidden, shape.vocabulary


@given(shape=model_shapes(), s=st.integers(1, 6), causal=st.booleans())
def test_the_forward_closed_form_is_the_sum_over_all_matrix_products(shape, s, causal) -> None:
    witness = sum(2 * rows * inner * columns for rows, inner, columns in products(shape, s, causal)) / s
    assert forward_flop_per_token(shape, s, "causal" if causal else "full") == pytest.approx(
        witness, rel=1e-12
    )


def test_a_windowed_causal_layer_counts_every_token_it_sees() -> None:
    shape = replace(read_workload("tiny").shape, window=3, windowed_layers=4)
    witness = (
        sum(2 * rows * inner * columns for rows, inner, columns in products(shape, 11, causal=True)) / 11
    )
    assert forward_flop_per_token(shape, 11, "causal") == pytest.approx(witness, rel=1e-12)


def test_training_is_three_forwards_and_recomputation_adds_what_it_repeats() -> None:
    forward = forward_flop_per_token(GPT3, 2048)
    scores = 4 * 96 * 12288 * 2048  # 4 l h s
    head = 2 * 12288 * 50257
    assert flop_per_token(GPT3, 2048) == pytest.approx(3 * forward, rel=1e-12)
    assert flop_per_token(GPT3, 2048, "selective") == pytest.approx(3 * forward + scores, rel=1e-12)
    assert flop_per_token(GPT3, 2048, "full") == pytest.approx(4 * forward - head, rel=1e-12)


def test_full_recomputation_of_gpt_is_megatrons_formula() -> None:
    # 96 B s l h^2 (1 + s/6h + V/16lh) for B sequences, arXiv 2104.04473, equation 3; here per token.
    l, h, s, v = 96, 12288, 2048, 50257  # noqa: E741
    formula = 96 * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h))
    assert flop_per_token(GPT3, s, "full") == pytest.approx(formula, rel=1e-12)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-3-405b", "llama-3-70b", "mixtral-8x7b"])
def test_without_attention_training_is_six_n(name: str) -> None:
    # N as the scaling laws take it: what a token multiplies with, so without an untied token table. The rest
    # of the difference is norms, biases and learned positions.
    shape = read_workload(name).shape
    n = active_parameter_count(shape) - (0 if shape.tied else shape.vocabulary * shape.hidden)
    assert flop_per_token(shape, 2048, attention="none") == pytest.approx(6 * n, rel=3e-4)


def test_gpt3_on_64_h100_takes_87_seconds_for_two_million_tokens_at_40_percent() -> None:
    # The capacity check of the README: 64 x 989.4 TFLOP/s dense bf16.
    seconds = flop_per_token(GPT3, 2048, attention="none") * 1024 * 2048 / (64 * 989.4e12 * 0.40)
    assert seconds == pytest.approx(87, rel=0.03)
    assert flop_per_token(GPT3, 2048) * 1024 * 2048 / (64 * 989.4e12 * 0.40) == pytest.approx(87, rel=0.03)


def test_causal_attention_is_half_of_full_for_long_sequences() -> None:
    for name in preset_names():
        shape = replace(read_workload(name).shape, mtp_layers=0)
        none, causal, full = (forward_flop_per_token(shape, 10**6, a) for a in ("none", "causal", "full"))
        assert (causal - none) / (full - none) == pytest.approx(0.5, rel=2e-6)


@given(shape=model_shapes(), s=st.integers(1, 5000))
def test_operations_grow_with_the_sequence_and_with_recomputation(shape, s) -> None:
    assert flop_per_token(shape, s) < flop_per_token(shape, s + 1)
    assert flop_per_token(shape, s) < flop_per_token(shape, s, "selective") < flop_per_token(shape, s, "full")
    assert flop_per_token(shape, s, attention="none") < flop_per_token(shape, s, attention="causal")


def test_an_mtp_block_costs_one_block_a_projection_and_a_head() -> None:
    shape = read_workload("deepseek-v3").shape
    deeper = replace(shape, mtp_layers=0, layers=62)
    projection, head = 2 * 2 * 7168**2, 2 * 7168 * 129280
    assert forward_flop_per_token(shape, 4096) == pytest.approx(
        forward_flop_per_token(deeper, 4096) + projection + head, rel=1e-12
    )
