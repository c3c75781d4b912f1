"""The int4 codec: 4-bit levels with two scales, 4.375 bits an element.

256 elements share one float32 scale, the block's; 32 of them share one unsigned byte b, so that their step is scale x b.
scale = max|x| / (7 x 255) over the 256, b = max|x| / (7 x scale) over the 32, rounded up: the largest always fits.
Level = x / step in -7..7, rounded to nearest where error feedback makes up for it later (half the error of rounding at
random), otherwise at random so that the expected value is the element itself (to within 2^-16 of a step).

Layout: scales of all blocks, then the bytes b, then the levels. Of a block of m elements, byte i of the levels holds
element i in its low half and element i + ceil(m / 2) in its high half, each as level + 8. The last block may be short.
Decoding is two float32 roundings, scale x b and that times a small integer: every machine gets the same bits.
A block with an infinity or a NaN decodes to non-finite values. Blocks that reach no further than 1.8e-34 become zero.
Sources: QSGD (Alistarh et al., NeurIPS 2017) for rounding at random, with max-norm blocks; 1-bit SGD (Seide et al.,
Interspeech 2014) for error feedback.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

__all__ = ["BLOCK_ELEMENTS", "SUB_ELEMENTS", "decode_int4", "encode_int4", "int4_bytes"]

BLOCK_ELEMENTS = 256
SUB_ELEMENTS = 32
_SUBS = BLOCK_ELEMENTS // SUB_ELEMENTS
_LEVELS = 7.0
_TILE_ELEMENTS = 1 << 17
_SCALE_MIN = 1e-37
_scratch = threading.local()


def int4_bytes(elements: int) -> int:
    """Bytes of `elements` values: ceil(n / 2) + ceil(n / 32) + 4 ceil(n / 256)."""
    return -(-elements // 2) - (-elements // SUB_ELEMENTS) - 4 * (-elements // BLOCK_ELEMENTS)


def encode_int4(values: torch.Tensor, out: torch.Tensor, seed: int, residual: torch.Tensor | None) -> None:
    """Encode float32 `values`, shape (n,), into uint8 `out`, shape (int4_bytes(n),).

    With a `residual` (float32, shape (n,)) rounding is to nearest, and the residual is added before and replaced by what
    is left out, which is nothing in non-finite blocks. Without, rounding is at random and follows from `seed`.
    """
    noise = np.random.SFC64(seed) if residual is None else None
    for part in _parts(out, values.numel()):
        source = values[part.start : part.stop]
        if residual is not None:
            source = residual[part.start : part.stop].add_(source)
        rows = _padded(source).view(-1, SUB_ELEMENTS)
        levels, _ = _tile_scratch(rows.numel())
        torch.abs(rows, out=levels)
        finite = _scale(levels, part)
        steps = _steps(part)
        _quantise(rows, steps, levels, noise)
        if residual is not None:
            rows.addcmul_(levels, steps, value=-1.0)
        if not finite:
            levels.nan_to_num_(0.0)
            if residual is not None:
                rows.nan_to_num_(0.0, 0.0, 0.0)
        if residual is not None and rows.numel() != source.numel():
            source.copy_(rows.view(-1)[: source.numel()])
        _pack(levels, part)


def decode_int4(data: torch.Tensor, out: torch.Tensor) -> None:
    """Decode what `encode_int4` wrote into `out` (float32, shape (n,))."""
    for part in _parts(data, out.numel()):
        target = out[part.start : part.stop]
        rows = _padded(target).view(-1, SUB_ELEMENTS)
        torch.mul(_unpack(part), _steps(part), out=rows)
        if rows.numel() != target.numel():
            target.copy_(rows.view(-1)[: target.numel()])


@dataclass(frozen=True, slots=True)
class _Part:
    """Blocks of equal width from element `start` to `stop`, and the bytes that hold them."""

    start: int
    stop: int
    scales: torch.Tensor
    subs: torch.Tensor
    codes: torch.Tensor

    @property
    def width(self) -> int:
        return min(BLOCK_ELEMENTS, self.stop - self.start)


def _parts(data: torch.Tensor, elements: int) -> Iterator[_Part]:
    """Whole blocks in pieces that stay in the cache, then the last, shorter block."""
    blocks, subs = -(-elements // BLOCK_ELEMENTS), -(-elements // SUB_ELEMENTS)
    scales, bytes_of_subs, codes = data[: 4 * blocks].view(torch.float32), data[4 * blocks :][:subs], data[4 * blocks + subs :]
    whole = elements - elements % BLOCK_ELEMENTS
    starts = [*range(0, whole, _TILE_ELEMENTS), *([whole] if whole < elements else [])]
    for start, stop in pairwise([*starts, elements]):
        yield _Part(
            start,
            stop,
            scales[start // BLOCK_ELEMENTS : -(-stop // BLOCK_ELEMENTS)],
            bytes_of_subs[start // SUB_ELEMENTS : -(-stop // SUB_ELEMENTS)],
            codes[start // 2 : -(-stop // 2)],
        )


def _padded(values: torch.Tensor) -> torch.Tensor:
    """`values` itself where it is whole sub-blocks, otherwise a copy with zeros behind."""
    return torch.nn.functional.pad(values, (0, -values.numel() % SUB_ELEMENTS)) if values.numel() % SUB_ELEMENTS else values


def _scale(magnitudes: torch.Tensor, part: _Part) -> bool:
    """Write both scales of |x| in rows of sub-blocks; whether all scales are finite."""
    largest = torch.amax(magnitudes, 1).view(part.scales.numel(), -1)
    torch.amax(largest, 1, out=part.scales)
    torch.threshold_(part.scales.mul_(1.0 / (255.0 * _LEVELS)), _SCALE_MIN, 0.0)
    finite = bool(torch.isfinite(part.scales).all())
    inverse = torch.reciprocal(part.scales * _LEVELS).clamp_(max=2.0 / (_SCALE_MIN * _LEVELS))  # of 0: not infinite
    largest.mul_(inverse.unsqueeze(1)).ceil_().clamp_(max=255.0)
    part.subs.view(largest.shape).copy_(largest if finite else largest.nan_to_num_(255.0))
    return finite


def _steps(part: _Part) -> torch.Tensor:
    """Shape (sub-blocks, 1)."""
    return torch.mul(part.subs.view(part.scales.numel(), -1), part.scales.unsqueeze(1)).view(-1, 1)


def _quantise(rows: torch.Tensor, steps: torch.Tensor, levels: torch.Tensor, noise: np.random.SFC64 | None) -> None:
    torch.mul(rows, torch.reciprocal(steps).clamp_(max=2.0 / _SCALE_MIN), out=levels)
    if noise is not None:
        raw = torch.from_numpy(noise.random_raw(rows.numel() // 4).view(np.int16))
        levels.add_(raw.view(levels.shape), alpha=2.0**-16)
    levels.round_().clamp_(-_LEVELS, _LEVELS)


def _pack(levels: torch.Tensor, part: _Part) -> None:
    """Two levels a byte, each + 8, in arithmetic modulo 256."""
    count, half, pairs = part.stop - part.start, -(-part.width // 2), part.width // 2
    _, narrow = _tile_scratch(count)
    each, out = narrow.copy_(levels.view(-1)[:count]).view(-1, part.width), part.codes.view(torch.int8).view(-1, half)
    torch.add(each[:, :pairs], each[:, half:], alpha=16, out=out[:, :pairs])
    if pairs < half:
        out[:, pairs:] = each[:, pairs:half]
    out.add_(136 - 256)


def _unpack(part: _Part) -> torch.Tensor:
    """Levels of `part`, int8 in the thread's tile, shape (sub-blocks, 32); what pads the last one is anything."""
    count, half = part.stop - part.start, -(-part.width // 2)
    _, narrow = _tile_scratch(part.subs.numel() * SUB_ELEMENTS)
    codes, bytes_ = part.codes.view(-1, half), narrow[:count].view(torch.uint8).view(-1, part.width)
    torch.bitwise_and(codes, 15, out=bytes_[:, :half])
    torch.bitwise_right_shift(codes[:, : part.width - half], 4, out=bytes_[:, half:])
    return narrow.sub_(8).view(-1, SUB_ELEMENTS)


def _tile_scratch(elements: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A thread's own float32 and int8 tile: fresh memory for every call would cost as much as the arithmetic.

    Returns:
        float32 of shape (elements / 32 rounded up, 32) and int8 of shape (elements,).
    """
    if not hasattr(_scratch, "tile"):
        _scratch.tile, _scratch.narrow = torch.empty(_TILE_ELEMENTS), torch.empty(_TILE_ELEMENTS, dtype=torch.int8)
    rows = -(-elements // SUB_ELEMENTS)
    return _scratch.tile[: rows * SUB_ELEMENTS].view(rows, SUB_ELEMENTS), _scratch.narrow[:elements]
