"""Codecs of the WAN level: float32 in, fewer bytes out, and the same float32 again on every member that decodes them.

    none   the bits
    bf16   round to nearest even
    int8   blocks of 256: scale = max|x| / 127 as float32, then one signed byte an element, rounded to nearest
    int4   blocks of 256 with a float32 scale, in them sub-blocks of 32 with a scale of 8 bits, then half a byte an element:
           see isthmus.runtime.codecs.int4

Layout of int8: all scales first, then the codes.
Decoding multiplies a small integer by a float32 scale, one rounding, so that every machine gets the same bits.
A block with an infinity or a NaN decodes to non-finite values: it is not hidden. Blocks below 1e-37 (int4: 2e-34) become
zero.
"""

import threading
from collections.abc import Iterator
from typing import assert_never

import torch

from isthmus.plan import CodecName
from isthmus.runtime.codecs.int4 import decode_int4, encode_int4, int4_bytes

__all__ = ["BLOCK_ELEMENTS", "decode", "encode", "encoded_bytes"]

BLOCK_ELEMENTS = 256
_TILE_ELEMENTS = 1 << 16
_SCALE_MIN = 1e-37
_scratch = threading.local()


def encoded_bytes(codec: CodecName, elements: int) -> int:
    """Bytes of `elements` float32 values after encoding: 4n, 2n, n + 4 ceil(n/256), and that of `int4_bytes`."""
    match codec:
        case "none":
            return 4 * elements
        case "bf16":
            return 2 * elements
        case "int8":
            return elements + 4 * -(-elements // BLOCK_ELEMENTS)
        case "int4":
            return int4_bytes(elements)
        case _:
            assert_never(codec)


def encode(
    codec: CodecName,
    values: torch.Tensor,
    out: torch.Tensor,
    seed: int = 0,
    residual: torch.Tensor | None = None,
) -> None:
    """Encode `values` into `out`, with error feedback where a `residual` is given.

    Args:
        codec: Name of the codec.
        values: float32, shape (n,), contiguous, CPU; left as it is.
        out: uint8, shape (encoded_bytes(codec, n),).
        seed: Of the noise of int4 without a residual; different on members whose errors should be independent.
        residual: float32, shape (n,): what earlier encodings left out. It is added before, and replaced by what this
            encoding leaves out; non-finite blocks leave out nothing. With it int4 rounds to nearest.
    """
    _check(codec, values, out)
    match codec:
        case "none":
            out.copy_(values.view(torch.uint8)) if residual is None else torch.add(values, residual, out=out.view(torch.float32))
            if residual is not None:
                residual.zero_()
        case "bf16":
            _encode_bf16(values, out.view(torch.bfloat16), residual)
        case "int8":
            _encode_int8(values, out, residual)
        case "int4":
            encode_int4(values, out, seed, residual)
        case _:
            assert_never(codec)


def decode(codec: CodecName, data: torch.Tensor, out: torch.Tensor) -> None:
    """Decode what `encode` wrote into `out` (float32, shape (n,))."""
    _check(codec, out, data)
    match codec:
        case "none":
            out.view(torch.uint8).copy_(data)
        case "bf16":
            out.copy_(data.view(torch.bfloat16))
        case "int8":
            scales, codes = _split(data, out.numel())
            for start, stop, width in _tiles(out.numel()):
                rows = scales[start // BLOCK_ELEMENTS : -(-stop // BLOCK_ELEMENTS)].unsqueeze(1)
                levels = codes[start:stop].view(torch.int8).view(-1, width)
                torch.mul(levels, rows, out=out[start:stop].view(-1, width))
        case "int4":
            decode_int4(data, out)
        case _:
            assert_never(codec)


def _check(codec: CodecName, values: torch.Tensor, data: torch.Tensor) -> None:
    if values.dtype != torch.float32 or values.dim() != 1 or not values.is_contiguous():
        raise TypeError(f"codecs take contiguous float32 of shape (n,), not {values.dtype} {tuple(values.shape)}")
    if data.dtype != torch.uint8 or data.numel() != encoded_bytes(codec, values.numel()):
        raise TypeError(
            f"{codec} of {values.numel()} elements is {encoded_bytes(codec, values.numel())} bytes of uint8, "
            f"not {data.numel()} of {data.dtype}"
        )


def _split(data: torch.Tensor, elements: int) -> tuple[torch.Tensor, torch.Tensor]:
    scales = 4 * -(-elements // BLOCK_ELEMENTS)
    return data[:scales].view(torch.float32), data[scales:]


def _tiles(elements: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, block width): whole blocks in pieces that stay in the cache, then the last, shorter block."""
    whole = elements - elements % BLOCK_ELEMENTS
    for start in range(0, whole, _TILE_ELEMENTS):
        yield start, min(start + _TILE_ELEMENTS, whole), BLOCK_ELEMENTS
    if whole < elements:
        yield whole, elements, elements - whole


def _encode_bf16(values: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None) -> None:
    if residual is None:
        out.copy_(values)
        return
    residual.add_(values)
    out.copy_(residual)
    residual.sub_(out)
    if not torch.isfinite(residual.sum()):
        residual.nan_to_num_(0.0, 0.0, 0.0)


def _encode_int8(values: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None) -> None:
    all_scales, codes = _split(out, values.numel())
    scratch = _tile_scratch()
    for start, stop, width in _tiles(values.numel()):
        tile = values[start:stop]
        if residual is not None:
            tile = residual[start:stop].add_(tile)
        tile, quotient = tile.view(-1, width), scratch[: stop - start].view(-1, width)
        scales = all_scales[start // BLOCK_ELEMENTS : -(-stop // BLOCK_ELEMENTS)]
        torch.amax(torch.abs(tile, out=quotient), 1, out=scales)
        scales.mul_(1.0 / 127.0)
        scales[scales < _SCALE_MIN] = 0.0
        torch.mul(tile, (1.0 / scales).nan_to_num_(posinf=0.0).unsqueeze(1), out=quotient)
        quotient.round_().clamp_(-127.0, 127.0)
        if residual is not None:
            tile.addcmul_(quotient, scales.unsqueeze(1), value=-1.0)
            if not torch.isfinite(scales).all():
                tile.nan_to_num_(0.0, 0.0, 0.0)
        codes[start:stop].view(torch.int8).view(-1, width).copy_(quotient)


def _tile_scratch() -> torch.Tensor:
    """A thread's own float32 tile: fresh memory for every call would cost as much as the arithmetic."""
    if not hasattr(_scratch, "tile"):
        _scratch.tile = torch.empty(_TILE_ELEMENTS)
    return _scratch.tile
