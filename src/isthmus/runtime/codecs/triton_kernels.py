"""GPU kernels of int8 and int4, bit for bit those of the CPU (isthmus.runtime.codecs.levels), a program a block of 256.

Run without a GPU by Triton's interpreter (TRITON_INTERPRET=1 before the import); that is how the tests compare the bits.
On a GPU the compiler's fusion of multiplication and addition is switched off and division is the correctly rounded one.
A last, shorter block is worked on byte by byte, and its halves are packed by torch.
"""

# Inside kernels constexpr values are plain numbers, which their Python type does not say.
# pyright: reportOperatorIssue=false
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

__all__ = ["decode_levels", "encode_levels"]

_BLOCK, _SUB = 256, 32


@triton.jit
def _mixed64(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _mixed32(x, key):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x ^ key
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _step(scale, top, BITS: tl.constexpr, LEVELS: tl.constexpr):
    """(byte, step, 1 / step) of four sub-blocks whose largest magnitudes are `top`."""
    one = tl.full(top.shape, 1.0, tl.float32)
    if BITS == 8:
        byte = tl.full(top.shape, 1, tl.int32)
    else:
        reach = scale * LEVELS
        share = top * tl.where(scale > 0.0, tl.div_rn(one, tl.where(scale > 0.0, reach, 1.0)), 0.0)
        byte = share.to(tl.int32)
        byte = tl.minimum(tl.where(byte.to(tl.float32) < share, byte + 1, byte), 255)
    step = scale * byte.to(tl.float32)
    inverse = tl.where(step > 0.0, tl.div_rn(one, tl.where(step > 0.0, step, 1.0)), 0.0)
    return byte, step, inverse


@triton.jit
def _sum_bits(x, inverse, shifter):
    """Bits of x / step + shifter."""
    return (x * inverse[:, None] + shifter).to(tl.int32, bitcast=True)


@triton.jit
def _encode(  # noqa: PLR0913, PLR0915, PLR0917 (a kernel gets its pointers one by one)
    values, residual, scales, subs, codes, seed, first_block, elements,
    RECIPROCAL: tl.constexpr, BITS: tl.constexpr, FEEDBACK: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    LEVELS: tl.constexpr = (1 << (BITS - 1)) - 1
    OFFSET: tl.constexpr = 1 << (BITS - 1)
    block = tl.program_id(0).to(tl.int64) + first_block
    rows = tl.arange(0, 4)
    at = rows[:, None] * 32 + tl.arange(0, 32)[None, :]
    low_at, high_at = block * 256 + at, block * 256 + at + 128
    x = tl.load(values + low_at, low_at < elements, 0.0)
    y = tl.load(values + high_at, high_at < elements, 0.0)
    if FEEDBACK:
        x = tl.load(residual + low_at, low_at < elements, 0.0) + x
        y = tl.load(residual + high_at, high_at < elements, 0.0) + y
    x_top = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    y_top = tl.max(y.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    top = tl.maximum(tl.max(x_top, 0), tl.max(y_top, 0))
    finite = top < 0x7F800000
    scale = tl.where(finite, top, 0).to(tl.float32, bitcast=True) * RECIPROCAL
    scale = tl.where(scale < 1e-34, 0.0, scale)
    x_byte, x_step, x_inverse = _step(scale, tl.where(finite, x_top, 0).to(tl.float32, bitcast=True), BITS, LEVELS)
    y_byte, y_step, y_inverse = _step(scale, tl.where(finite, y_top, 0).to(tl.float32, bitcast=True), BITS, LEVELS)
    x, y = tl.where(finite, x, 0.0), tl.where(finite, y, 0.0)
    if FEEDBACK:
        a, b = _sum_bits(x, x_inverse, 12582912.0 + OFFSET) & 255, _sum_bits(y, y_inverse, 12582912.0 + OFFSET) & 255
        x_rest = x - (a - OFFSET).to(tl.float32) * x_step[:, None]
        y_rest = y - (b - OFFSET).to(tl.float32) * y_step[:, None]
        tl.store(residual + low_at, tl.where(finite, x_rest, 0.0), low_at < elements)
        tl.store(residual + high_at, tl.where(finite, y_rest, 0.0), high_at < elements)
    else:
        key = _mixed64(tl.load(seed).to(tl.uint64, bitcast=True) + block.to(tl.uint64) * 0x9E3779B97F4A7C15)
        low, high = (key & 0xFFFFFFFF).to(tl.uint32), (key >> 32).to(tl.uint32)
        noise = _mixed32(at.to(tl.uint32) * 0x9E3779B9 + low, high)
        shifter = 12582912.0 + OFFSET * 16384.0
        a = ((_sum_bits(x, x_inverse * 16384.0, shifter) + (noise & 0x3FFF).to(tl.int32)) >> 14) & 255
        b = ((_sum_bits(y, y_inverse * 16384.0, shifter) + (noise >> 18).to(tl.int32)) >> 14) & 255
    a, b = tl.where(finite, a, OFFSET + 1), tl.where(finite, b, OFFSET + 1)
    bits = tl.where(finite, scale.to(tl.int32, bitcast=True), 0x7FC00000)
    tl.store(scales + block, bits)
    if BITS < 8:
        here = block * 8 + rows
        tl.store(subs + here, tl.where(finite, x_byte, 255).to(tl.uint8), here * 32 < elements)
        tl.store(subs + here + 4, tl.where(finite, y_byte, 255).to(tl.uint8), (here + 4) * 32 < elements)
    if PACK:
        tl.store(codes + block * 128 + at, (a | (b << 4)).to(tl.uint8))
    else:
        inside = (block - first_block) * 256 + at
        tl.store(codes + inside, a.to(tl.uint8), low_at < elements)
        tl.store(codes + inside + 128, b.to(tl.uint8), high_at < elements)


@triton.jit
def _decode(scales, subs, codes, out, first_block, elements, BITS: tl.constexpr, PACK: tl.constexpr):  # noqa: PLR0913, PLR0917
    OFFSET: tl.constexpr = 1 << (BITS - 1)
    block = tl.program_id(0).to(tl.int64) + first_block
    rows = tl.arange(0, 4)
    at = rows[:, None] * 32 + tl.arange(0, 32)[None, :]
    low_at, high_at = block * 256 + at, block * 256 + at + 128
    bits = tl.load(scales + block)
    scale = bits.to(tl.float32, bitcast=True)
    x_step, y_step = tl.full((4,), 1.0, tl.float32) * scale, tl.full((4,), 1.0, tl.float32) * scale
    if BITS < 8:
        here = block * 8 + rows
        x_step = tl.load(subs + here, here * 32 < elements, 0).to(tl.float32) * scale
        y_step = tl.load(subs + here + 4, (here + 4) * 32 < elements, 0).to(tl.float32) * scale
    if PACK:
        both = tl.load(codes + block * 128 + at).to(tl.int32)
        a, b = both & 15, both >> 4
    else:
        inside = (block - first_block) * 256 + at
        a = tl.load(codes + inside, low_at < elements, 0).to(tl.int32)
        b = tl.load(codes + inside + 128, high_at < elements, 0).to(tl.int32)
    x = ((a - OFFSET).to(tl.float32) * x_step[:, None]).to(tl.int32, bitcast=True)
    y = ((b - OFFSET).to(tl.float32) * y_step[:, None]).to(tl.int32, bitcast=True)
    finite = (bits & 0x7FFFFFFF) < 0x7F800000
    tl.store(out + low_at, tl.where(finite, x, 0x7FC00000), low_at < elements)
    tl.store(out + high_at, tl.where(finite, y, 0x7FC00000), high_at < elements)


def encode_levels(
    values: torch.Tensor, out: torch.Tensor, bits: int, seed: int, residual: torch.Tensor | None
) -> None:
    """As `coding.encode` of int8 or int4 (`bits`), on the device of `values`."""
    levels = (1 << (bits - 1)) - 1
    reciprocal = float(np.float32(1.0) / np.float32(levels if bits == 8 else 255 * levels))
    signed = seed - 2**64 if seed >= 2**63 else seed
    where = torch.tensor([signed], dtype=torch.int64, device=values.device)
    scales, subs, codes = _split(out, values.numel(), bits)
    owed = values if residual is None else residual
    for first, blocks, target, pack in _launches(values.numel(), bits, codes):
        _launch(_encode, blocks)(
            values, owed, scales, subs, target, where, first, values.numel(),
            RECIPROCAL=reciprocal, BITS=bits, FEEDBACK=residual is not None, PACK=pack, enable_fp_fusion=False,
        )  # fmt: skip
        if bits == 4 and not pack:
            rest = values.numel() - first * _BLOCK
            half = -(-rest // 2)
            halves = codes[first * 128 :]
            halves.copy_(target[:half])
            halves[: rest - half] |= target[half:rest] << 4


def decode_levels(data: torch.Tensor, out: torch.Tensor, bits: int) -> None:
    """As `coding.decode` of int8 or int4 (`bits`), on the device of `out`."""
    scales, subs, codes = _split(data, out.numel(), bits)
    for first, blocks, source, pack in _launches(out.numel(), bits, codes):
        if bits == 4 and not pack:
            rest = out.numel() - first * _BLOCK
            half, halves = -(-rest // 2), codes[first * 128 :]
            source[:half] = halves & 15
            source[half:rest] = halves[: rest - half] >> 4
        _launch(_decode, blocks)(
            scales, subs, source, out.view(torch.int32), first, out.numel(), BITS=bits, PACK=pack, enable_fp_fusion=False
        )


def _launch(kernel: Any, blocks: int) -> Any:
    return kernel[(blocks,)]


def _launches(elements: int, bits: int, codes: torch.Tensor) -> list[tuple[int, int, torch.Tensor, bool]]:
    """(first block, blocks, codes, two a byte?): int8 all at once; int4 whole blocks, then the rest in bytes of their own."""
    if bits == 8:
        return [(0, -(-elements // _BLOCK), codes, False)] if elements else []
    whole, found = elements // _BLOCK, []
    if whole:
        found.append((0, whole, codes, True))
    if elements % _BLOCK:
        found.append((whole, 1, torch.empty(_BLOCK, dtype=torch.uint8, device=codes.device), False))
    return found


def _split(data: torch.Tensor, elements: int, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scales = 4 * -(-elements // _BLOCK)
    subs = scales + (0 if bits == 8 else -(-elements // _SUB))
    return data[:scales].view(torch.int32), data[scales : max(subs, scales + 1)], data[subs:]
