"""Codecs: sizes, error bounds, unbiasedness, equal bits everywhere; error feedback: nothing is lost, ranges may be cut anew."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.runtime.codecs.coding import decode, encode, encoded_bytes
from isthmus.runtime.codecs.feedback import ErrorFeedback

CODECS = ("none", "bf16", "int8", "int4")
SIZES = st.integers(0, 1500) | st.sampled_from([65_536, 65_537, 65_792, 131_071])


def through(codec, values, seed=0, residual=None):
    data = torch.empty(encoded_bytes(codec, values.numel()), dtype=torch.uint8)
    encode(codec, values, data, seed, residual)
    out = torch.full_like(values, math.nan)
    decode(codec, data, out)
    return out, data


def normal(size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("codec", "elements", "size"),
    # int8 and int4: one scale of 4 bytes for each begun block of 256, then 1 or 1/2 byte an element; int4 also one byte for
    # each begun 32 of a block.
    [("none", 257, 1028), ("bf16", 257, 514), ("int8", 257, 265), ("int8", 0, 0),
     ("int4", 257, 146), ("int4", 512, 280), ("int4", 1, 6), ("int4", 65, 40)],
)
def test_encoded_sizes_follow_the_formula(codec, elements, size):
    assert encoded_bytes(codec, elements) == size


def test_int4_needs_under_0_137_of_the_bytes_of_fp32():
    assert encoded_bytes("int4", 10**6) / 4e6 < 0.137


@settings(deadline=None, max_examples=60)
@given(codec=st.sampled_from(("none", "bf16", "int8")), size=SIZES, seed=st.integers(0, 2**64 - 1))
def test_every_value_comes_back_within_its_codec_s_step(codec, size, seed):
    values = normal(size, seed % 1000) * 3.0
    out, _ = through(codec, values, seed, torch.zeros(size))
    blocks = torch.nn.functional.pad(torch.stack([values, out]), (0, -size % 256)).view(2, -1, 256)
    largest = blocks[0].abs().amax(1, keepdim=True)
    bound = {"none": 0.0, "bf16": blocks[0].abs() * 2.0**-8, "int8": largest / 127 * (0.5 + 2.0**-15)}[codec]
    assert bool(((blocks[1] - blocks[0]).abs() <= bound).all())


@settings(deadline=None, max_examples=60)
@given(size=SIZES, seed=st.integers(0, 2**64 - 1), spread=st.sampled_from([0.0, 1.0, 6.0]), feedback=st.booleans())
def test_int4_errs_by_a_step_of_the_sub_block_and_by_half_of_it_with_feedback(size, seed, spread, feedback):
    # The step is a seventh of the largest of 32, and at most 1/255 of the block's largest step more. `spread` makes the
    # sub-blocks of one block differ by orders of magnitude, so that a step of its neighbour would fail.
    magnitudes = torch.exp(spread * normal(-(-size // 32), seed % 997)).repeat_interleave(32)[:size]
    values = normal(size, seed % 1000) * magnitudes
    out, _ = through("int4", values, seed, torch.zeros(size) if feedback else None)
    padded = torch.nn.functional.pad(torch.stack([values, out]), (0, -size % 256)).view(2, -1, 8, 32)
    largest = padded[0].abs().amax(2, keepdim=True)
    step = (largest / 7 + largest.amax(1, keepdim=True) / (7 * 255)) * (1 + 1e-5)
    assert bool(((padded[1] - padded[0]).abs() <= step * (0.5 if feedback else 1.0)).all())


def test_int4_is_unbiased_without_feedback():
    # 1,000 independent roundings of the same 256 values. The mean of each errs by at most step / sqrt(4 n) (one sigma of a
    # Bernoulli step), plus the stated 2^-16 of a step; 5 sigma over 256 values fails once in 7,000 runs - and seeds are fixed.
    values, rounds = normal(256), 1000
    step = float(values.abs().max()) / 7 * 256 / 255
    mean = sum(through("int4", values, seed)[0].double() for seed in range(rounds)) / rounds
    assert float((mean - values.double()).abs().max()) < 5 * step / math.sqrt(4 * rounds)
    assert abs(float((mean - values.double()).mean())) < 5 * step / math.sqrt(4 * rounds * 256)


@pytest.mark.parametrize("codec", CODECS)
def test_the_bytes_follow_from_values_and_seed_alone(codec):
    values = normal(70_001)
    first, second = through(codec, values, seed=7)[1], through(codec, values.clone(), seed=7)[1]
    assert torch.equal(first, second)
    assert (codec in ("int4", "int8")) != torch.equal(first, through(codec, values, seed=8)[1])
    nearest = [through(codec, values, seed, torch.zeros(70_001))[1] for seed in (7, 8)]
    assert torch.equal(*nearest), "with error feedback nothing is left to chance"


def test_int4_decodes_as_its_layout_says():
    # By hand, without our decoder: two scales, ten sub-scales (the last of 12 elements), then levels + 8: low half =
    # element i, high half = element i + ceil(m / 2) of the block.
    values = normal(300)
    out, data = through("int4", values, seed=3)
    raw = data.numpy().tobytes()
    scales, subs = np.frombuffer(raw[:8], np.float32), np.frombuffer(raw[8:18], np.uint8)
    codes = np.frombuffer(raw[18:], np.uint8).astype(np.int32)
    first, last = codes[:128], codes[128:]
    levels = np.concatenate([first & 15, first >> 4, last & 15, last >> 4]) - 8
    steps = np.repeat(scales, 8)[:10] * subs.astype(np.float32)
    expected = levels[:300].astype(np.float32) * np.repeat(steps, 32)[:300]
    assert np.array_equal(expected, out.numpy())
    assert subs[:8].max() == 255
    assert np.abs(levels).max() <= 7


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_value_that_is_not_finite_is_not_hidden_and_does_not_poison_the_residual(codec, bad):
    values, residual = normal(1000), torch.zeros(1000)
    values[300] = bad
    out, _ = through(codec, values, residual=residual)
    assert not math.isfinite(float(out[300]))
    assert bool(torch.isfinite(residual).all())
    assert torch.isfinite(out[512:]).all(), "other blocks are not touched"


@pytest.mark.parametrize("codec", CODECS)
def test_zeros_and_tiny_values_stay_near_zero(codec):
    assert torch.equal(through(codec, torch.zeros(777))[0], torch.zeros(777))
    assert float(through(codec, torch.full((300,), 1e-42))[0].abs().max()) < 1e-41


@settings(deadline=None, max_examples=25)
@given(codec=st.sampled_from(CODECS), size=st.integers(1, 700), rounds=st.integers(1, 8))
def test_error_feedback_loses_nothing(codec, size, rounds):
    # Telescoping: what was decoded in all, plus what is still owed, is what was put in.
    residual, put, got = torch.zeros(size), torch.zeros(size, dtype=torch.double), torch.zeros(size, dtype=torch.double)
    for number in range(rounds):
        values = normal(size, number)
        put += values.double()
        got += through(codec, values, number, residual)[0].double()
    assert float((got + residual.double() - put).abs().max()) < 1e-5 * rounds


def test_a_wrong_size_or_type_is_refused():
    with pytest.raises(TypeError, match=r"int4 of 100 elements is 58 bytes of uint8, not 53"):
        encode("int4", torch.zeros(100), torch.empty(53, dtype=torch.uint8))
    with pytest.raises(TypeError, match="contiguous float32"):
        encode("int8", torch.zeros(100, dtype=torch.double), torch.empty(104, dtype=torch.uint8))


@given(cuts=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=8))
def test_residuals_follow_their_elements_when_ranges_are_cut_anew(cuts):
    # Witness: one plain array. Every range asked for must show the array's content, and what is written must be found again.
    feedback, witness = ErrorFeedback(), torch.zeros(100)
    for number, (start, elements) in enumerate(cuts):
        residual = feedback.residual(start, elements)
        assert torch.equal(residual, witness[start : start + elements])
        residual += number + 1
        witness[start : start + elements] += number + 1
    assert feedback.norm() == pytest.approx(float(witness.norm()))
    again = ErrorFeedback()
    again.load_state_dict(feedback.state_dict())
    assert torch.equal(again.residual(0, 100), witness)
