"""The kernels against the plain witness of reference.py, bit for bit; the noise against statistics; top-k; majority; Triton."""

import importlib.util
import math
import platform
import re
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.runtime.codecs import levels, signs, sparse
from isthmus.runtime.codecs.coding import Codec, combine, decode, encode, encoded_bytes

_spec = importlib.util.spec_from_file_location("codecs_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

SIZES = st.sampled_from([0, 1, 2, 31, 32, 33, 255, 256, 257, 511, 700])
SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 1e-37, 3e38, -3.4028235e38]


def draw(size, seed, special, bad):
    values = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    values *= np.exp(4 * np.random.default_rng(seed + 1).standard_normal(size)).astype(np.float32)
    if special and size:
        values[:: max(1, size // 7)] = np.resize(np.array(SPECIAL, np.float32), values[:: max(1, size // 7)].size)
    if bad is not None and size:
        values[size // 3] = bad
    return values


def through(codec, values, seed=0, residual=None):
    data, out = torch.zeros(encoded_bytes(codec, values.size), dtype=torch.uint8), torch.empty(values.size)
    encode(codec, torch.from_numpy(values), data, seed, residual)
    decode(codec, data, out)
    return data.numpy().tobytes(), out.numpy()


def bits(values):
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


@settings(deadline=None, max_examples=60)
@given(
    k=st.integers(2, 8), size=SIZES, seed=st.integers(0, 2**64 - 1), special=st.booleans(), feedback=st.booleans(),
    bad=st.sampled_from([None, None, np.inf, -np.inf, np.nan]),
)  # fmt: skip
def test_levels_are_those_of_the_witness_to_the_bit(k, size, seed, special, feedback, bad):
    values = draw(size, seed % 1000, special, bad)
    residual = np.random.default_rng(3).standard_normal(size).astype(np.float32) if feedback else None
    with np.errstate(all="ignore"):
        raw, decoded, left = reference.levels(values, k, seed, residual)
    owed = None if residual is None else torch.from_numpy(residual.copy())
    found, out = through(f"int{k}", values, seed, owed)
    assert found == raw
    assert np.array_equal(bits(out), bits(decoded))
    assert owed is None or np.array_equal(bits(owed.numpy()), bits(left))


@settings(deadline=None, max_examples=30)
@given(
    size=SIZES, seed=st.integers(0, 999), special=st.booleans(), feedback=st.booleans(),
    bad=st.sampled_from([None, np.inf, np.nan]),
)  # fmt: skip
def test_signs_are_those_of_the_witness_to_the_bit(size, seed, special, feedback, bad):
    values = draw(size, seed, special, bad)
    residual = np.random.default_rng(3).standard_normal(size).astype(np.float32) if feedback else None
    with np.errstate(all="ignore"):
        raw, decoded, left = reference.signs(values, residual)
    owed = None if residual is None else torch.from_numpy(residual.copy())
    found, out = through("sign", values, 0, owed)
    assert found == raw
    assert np.array_equal(bits(out), bits(decoded))
    assert owed is None or np.array_equal(bits(owed.numpy()), bits(left))


@settings(deadline=None, max_examples=40)
@given(
    size=st.sampled_from([0, 1, 5, 4095, 4096, 4097, 9000]), seed=st.integers(0, 999), ties=st.booleans(),
    density=st.sampled_from([1e-4, 0.01, 0.1, 0.2, 1.0]), bad=st.sampled_from([None, np.inf, np.nan]),
)  # fmt: skip
def test_top_k_keeps_the_largest_and_codes_their_places(size, seed, ties, density, bad):
    values = draw(size, seed, False, bad)
    values = np.sign(values) * np.float32(0.5) * (np.arange(size) % 3) if ties else values
    values = values.astype(np.float32)
    codec, owed = Codec("topk", density), torch.zeros(size)
    places = reference.top_places(values, codec.per_block)
    assert sparse.kept(size, codec.per_block) == places.size
    expected = np.zeros(size, np.float32)
    expected[places] = torch.from_numpy(values[places]).bfloat16().float().numpy()
    _, out = through(codec, values, 0, owed)
    assert np.array_equal(out, expected, equal_nan=True)
    assert bool(torch.isfinite(owed).all())
    if np.isfinite(values).all():
        assert np.array_equal(owed.numpy(), values - expected)


def test_coded_places_are_within_15_percent_of_the_entropy_bound():
    for density in (0.01, 0.05, 0.1):
        k = Codec("topk", density).per_block
        bound = math.log2(math.comb(4096, k))
        assert bound <= 8 * sparse.index_bytes(4096 * 64, k) / 64 < 1.15 * bound


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6, 7, 8])
def test_levels_are_unbiased_and_independent(k):
    # 4,000 roundings of the same 256 values. z of each mean: standard deviation of a Bernoulli step f (1 - f) / n; 256 values:
    # |z| < 5. Sum of z^2 is chi-squared with 256 degrees: 256 +- 5 x 22.6. Errors of neighbours and of i, i + 128 (which share
    # a hash) are uncorrelated: |r| < 5 / sqrt(256 x 4000).
    values, rounds = draw(256, 5, False, None), 4000
    values = np.clip(values, -2, 2)
    errors = np.empty((rounds, 256))
    decoded = np.array([through(f"int{k}", values, seed)[1] for seed in range(rounds)], np.float64)
    _, first, _ = reference.levels(values, k, 0)
    errors = decoded - values.astype(np.float64)
    low, high = decoded.min(0), decoded.max(0)
    step = high - low
    moving = step > 0
    share = (values - low)[moving] / step[moving]
    known = (share * (1 - share) * rounds) > 20
    z = errors.mean(0)[moving][known] / (step[moving] * np.sqrt(share * (1 - share) / rounds))[known]
    assert np.array_equal(first, decoded[0])
    assert known.sum() > 50
    assert np.abs(z).max() < 5
    assert abs((z**2).sum() - known.sum()) < 5 * math.sqrt(2 * known.sum())
    scaled = errors[:, moving][:, known] / errors[:, moving][:, known].std(0)
    for lag in (1, known.sum() // 2):
        r = (scaled[:, :-lag] * scaled[:, lag:]).mean()
        assert abs(r) < 5 / math.sqrt(scaled[:, lag:].size)


def test_majority_is_a_vote_with_the_mean_magnitude():
    rows = [[1.0, 1.0, -1.0, 2.0, math.inf], [-3.0, 3.0, -3.0, -1.0, 1.0], [1.0, -9.0, -2.0, 0.0, 1.0]]
    vectors = [torch.tensor(row) for row in rows]
    out = torch.empty(5)
    combine("sign-majority", vectors, [1.0, 1.0, 1.0], 1 / 3, out)
    # Votes +, +, -, drawn (falls to the larger, +); magnitudes 5, 13, 6, 3, each / 3; an infinity is not hidden.
    assert torch.allclose(out[:4], torch.tensor([5.0, 13.0, -6.0, 3.0]) / 3)
    assert math.isnan(float(out[4]))
    combine("sign", vectors, [1.0, 1.0, 1.0], 1 / 3, out)
    assert torch.allclose(out[:4], torch.tensor([-1.0, -5.0, -6.0, 1.0]) / 3)


def test_parts_that_multiply_and_add_have_vectors_and_no_fused_multiply_add():
    # Compiled here and now from the same functions: code that comes from the cache cannot be inspected.
    if platform.machine() != "x86_64" or "fma" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("looks at the instructions of x86-64 with FMA")
    floats, narrow, number = numba.float32[::1], numba.uint8[::1], numba.int64
    parts = {
        levels._draw_block: (floats, floats, number, numba.uint64, narrow),
        levels._round_block: (floats, floats, floats, number, narrow),
        levels._decode_block: (narrow, floats, number, floats),
        signs._mean_magnitude: (floats, number, floats),
    }
    for part, types in parts.items():
        part.compile(types)
        text = part.inspect_asm()[types]
        assert re.search(r"\bv?mulps\b.*%ymm", text), part
        assert not re.search(r"\bv?fn?m(add|sub)", text), part


def test_triton_s_bits_are_the_cpu_s():
    pytest.importorskip("triton", reason="triton is not installed: GPU kernels cannot be interpreted")
    program = (
        "import os; os.environ['TRITON_INTERPRET'] = '1'\n"
        "import torch\n"
        "from isthmus.runtime.codecs import coding, triton_kernels as gpu\n"
        "for n in (0, 1, 33, 256, 600):\n"
        "  for codec, k in (('int8', 8), ('int4', 4)):\n"
        "    for feedback, bad in ((False, 0.0), (True, 1.0), (False, float('inf')), (True, float('nan'))):\n"
        "      x = torch.randn(n) * torch.exp(3 * torch.randn(n))\n"
        "      x[n // 2 : n // 2 + 1] = bad\n"
        "      a = torch.randn(n) if feedback else None; b = a.clone() if feedback else None\n"
        "      c = torch.zeros(coding.encoded_bytes(codec, n), dtype=torch.uint8); d = c.clone()\n"
        "      coding.encode(codec, x, c, 2**63 + 5, a); gpu.encode_levels(x, d, k, 2**63 + 5, b)\n"
        "      assert torch.equal(c, d), (n, codec, feedback, bad)\n"
        "      assert a is None or torch.equal(a.view(torch.int32), b.view(torch.int32))\n"
        "      e, f = torch.empty(n), torch.empty(n)\n"
        "      coding.decode(codec, c, e); gpu.decode_levels(c, f, k)\n"
        "      assert torch.equal(e.view(torch.int32), f.view(torch.int32)), (n, codec)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=110)
