from dataclasses import replace
from math import prod

from hypothesis import given

from isthmus.workload import (
    active_parameter_count,
    mtp_parameter_count,
    parameter_count,
    preset_names,
    read_workload,
)

from .shapes import attention_tensors, expert_tensors, model_shapes, norms, tensors


@given(shape=model_shapes())
def test_the_closed_form_is_the_sum_over_all_tensors(shape) -> None:
    assert parameter_count(shape) == sum(map(prod, tensors(shape)))
    assert active_parameter_count(shape) == sum(map(prod, tensors(shape, active=True)))


def test_the_closed_form_is_the_sum_over_all_tensors_of_every_preset() -> None:
    for name in preset_names():
        shape = read_workload(name).shape
        assert parameter_count(shape) == sum(map(prod, tensors(shape))), name


def test_tiny_by_hand() -> None:
    # h = 128: token table, head and learned positions 256 h + 256 h + 128 h; each of 4 blocks 12 h^2 + 13 h
    # (4 h^2 + 4 h attention, 8 h^2 + 5 h feed-forward, 4 h norms); final norm 2 h.
    h = 128
    assert (
        parameter_count(read_workload("tiny").shape) == 640 * h + 4 * (12 * h * h + 13 * h) + 2 * h == 875_264
    )


def test_gpt3_by_hand() -> None:
    h, v, s = 12288, 50257, 2048
    assert (
        parameter_count(read_workload("gpt3-175b").shape) == 96 * (12 * h * h + 13 * h) + (v + s) * h + 2 * h
    )


def test_a_dense_model_activates_all_it_has_and_an_expert_model_less() -> None:
    for name in preset_names():
        shape = read_workload(name).shape
        active, total = active_parameter_count(shape), parameter_count(shape)
        assert active < total if shape.experts else active == total
        assert active_parameter_count(replace(shape, experts_active=shape.experts)) == total


def test_an_mtp_block_is_one_expert_block_a_projection_and_three_norms() -> None:
    shape = read_workload("deepseek-v3").shape
    block = [*attention_tensors(shape), *norms(shape, 2), *expert_tensors(shape, active=False)]
    extra = [(shape.hidden, 2 * shape.hidden), *norms(shape, 3)]
    assert mtp_parameter_count(shape) == sum(map(prod, [*block, *extra]))
    assert mtp_parameter_count(replace(shape, mtp_layers=0)) == 0
