"""Codecs of the WAN level: float32 in, fewer bytes out, and the same float32 again on every member that decodes them.

    none           the bits
    bf16           round to nearest even
    int2 .. int7   k-bit levels, blocks of 256 with a float32 scale, in them sub-blocks of 32 with a scale of one byte
    int8           one byte an element, blocks of 256 with a float32 scale
    sign           one bit an element, blocks of 256 with their mean magnitude as float32
    sign-majority  the same bytes; members' signs are reduced by vote (below)
    topk           the largest 1% (`density`) of each block of 4,096, places coded (isthmus.runtime.codecs.sparse), bf16 values
    topk-int4      the same places, values as int4
    powersgd       no code of a single vector: see isthmus.runtime.codecs.lowrank

Levels: L = 2^(k-1) - 1. The block's scale is max|x| / (255 L), the byte of a sub-block max|x| / (L scale), rounded up, and
the step their product, so that the largest always fits (int8: scale = step = max|x| / 127). Level = x / step within -L..L.
With error feedback it is rounded to nearest, half the error; without, at random, so that its expected value is the element
itself to within 2^-15 of a step. A level is stored as level + 2^(k-1). Layout: all scales, all sub-block bytes, all levels, a
block after the other, each as planes of 4, 2 and 1 bits that add up to k: see `pack` in planes.py.

The noise is a hash of (seed, block, element), so it does not depend on threads or the kind of machine.
Decoding is at most two float32 roundings in a fixed order: every machine gets the same bits.
A block with an infinity or a NaN (sign: whose mean magnitude is not finite) decodes to NaN (bf16, topk: the element as it
is): it is not hidden, and leaves no residual.
Scales below 1e-34 become zero, with their blocks; no kernel makes or needs denormal numbers, so that threads which flush
them decode the same bits.

REDUCTION. Who encodes: with two regions each region its own vector, once; both decode both (their own too) and `combine`
them in region order. With R >= 3 each region encodes every part of its vector for the part's owner; the owner decodes them,
combines them with its own part as it is, encodes the result, and all (the owner too) decode those bytes. Nothing is ever
added in encoded form. Error of the mean, e(x) being the bound of one encoding at x (a step; half with feedback):
R = 2: mean of e(x_r). R >= 3: sum over the senders of e(x_r) / R, plus e(mean). Each is owed by whom made it, in the
residual of the encoder, keyed by the range of elements.
Majority: sign(sum of w sign(x)) x sum of w|x| x scale; a drawn vote falls to sign(sum of w x), and is 0 where that is too.
Sources: QSGD (Alistarh et al., NeurIPS 2017), with max-norm blocks; 1-bit SGD (Seide et al., Interspeech 2014); signSGD
with majority vote (Bernstein et al., ICML 2018); top-k with error feedback (Stich et al., NeurIPS 2018).
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never, cast, get_args

import numpy as np
import torch

from isthmus.plan import CodecName, Strategy
from isthmus.runtime.codecs import halves, levels, lowrank, signs, sparse
from isthmus.runtime.codecs.blocks import BLOCK, SUB

__all__ = ["BLOCK_ELEMENTS", "Codec", "codec_of", "combine", "decode", "encode", "encoded_bytes", "per_vector", "warm"]

BLOCK_ELEMENTS = BLOCK
_BITS: dict[CodecName, int] = {"int2": 2, "int3": 3, "int4": 4, "int5": 5, "int6": 6, "int7": 7, "int8": 8}
_NONE = np.empty(0, np.float32)
_scratch = threading.local()


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec with its parameters; equal on all members. A bare name stands for the defaults.

    Attributes:
        name: As in plans.
        density: Share of elements that topk and topk-int4 keep.
    """

    name: CodecName
    density: float = 0.01

    @property
    def per_block(self) -> int:
        """Elements kept of a block of 4,096."""
        return min(sparse.SPARSE_BLOCK, max(1, -int(-self.density * sparse.SPARSE_BLOCK // 1)))


def codec_of(strategy: Strategy) -> Codec:
    """The codec a plan asks for."""
    return Codec(strategy.codec, strategy.codec_density)


def per_vector() -> list[CodecName]:
    """Names of the codecs that `encode` takes: all but powersgd."""
    return [name for name in get_args(CodecName) if name != "powersgd"]


def encoded_bytes(codec: Codec | CodecName, elements: int) -> int:
    """Bytes of `elements` float32 values after encoding; they follow from the number alone.

    none 4n, bf16 2n, int8 n + 4 ceil(n/256), k-bit: that of the levels + ceil(n/32) + 4 ceil(n/256), sign: ceil(m/8) + 4 a
    block, top-k: `sparse.index_bytes` + those of the kept values.
    """
    codec = _codec(codec)
    blocks, rest = divmod(elements, BLOCK_ELEMENTS)
    match codec.name:
        case "none":
            return 4 * elements
        case "bf16":
            return 2 * elements
        case "int2" | "int3" | "int4" | "int5" | "int6" | "int7" | "int8":
            bits = _BITS[codec.name]
            planes = sum(-(-rest * width // 8) for width in (8, 4, 2, 1) if bits & width)
            subs = 0 if bits == 8 else -(-elements // SUB)
            return 4 * (blocks + (rest > 0)) + subs + blocks * (BLOCK_ELEMENTS * bits // 8) + planes
        case "sign" | "sign-majority":
            return 4 * (blocks + (rest > 0)) + blocks * (BLOCK_ELEMENTS // 8) - (-rest // 8)
        case "topk" | "topk-int4":
            keep = sparse.kept(elements, codec.per_block)
            return sparse.index_bytes(elements, codec.per_block) + encoded_bytes(_inner(codec), keep)
        case "powersgd":
            raise TypeError("powersgd has no size of its own: it needs the shapes of parameters, see codecs.lowrank")
        case _:
            assert_never(codec.name)


def encode(
    codec: Codec | CodecName,
    values: torch.Tensor,
    out: torch.Tensor,
    seed: int = 0,
    residual: torch.Tensor | None = None,
) -> None:
    """Encode `values` into `out`, with error feedback where a `residual` is given.

    Args:
        codec: The codec, or its name for the default parameters.
        values: float32, shape (n,), contiguous; left as it is. On the CPU, or for int8 and int4 on a GPU.
        out: uint8, shape (encoded_bytes(codec, n),), on the same device, beginning at a multiple of 4 bytes.
        seed: 64 bits, of the noise of levels without a residual; different on members whose errors should be independent.
        residual: float32, shape (n,): what earlier encodings left out. It is added before, and replaced by what this
            encoding leaves out; non-finite blocks leave out nothing. With it levels are rounded to nearest.
    """
    codec = _codec(codec)
    _check(codec, values, out)
    if values.device.type != "cpu":
        _on_gpu(codec).encode_levels(values, out, _BITS[codec.name], seed, residual)
        return
    data, owed = out.numpy(), _NONE if residual is None else residual.numpy()
    _encode(codec, values.detach().numpy(), data, seed & (2**64 - 1), owed, residual is not None)


def decode(codec: Codec | CodecName, data: torch.Tensor, out: torch.Tensor) -> None:
    """Decode what `encode` wrote into `out` (float32, shape (n,), on the device of `data`)."""
    codec = _codec(codec)
    _check(codec, out, data)
    if out.device.type != "cpu":
        _on_gpu(codec).decode_levels(data, out, _BITS[codec.name])
        return
    _decode(codec, data.numpy(), out.numpy())


def combine(
    codec: Codec | CodecName, vectors: Sequence[torch.Tensor], weights: Sequence[float], scale: float, out: torch.Tensor
) -> None:
    """sum(w x) x scale of decoded vectors, in order, each product and sum one rounding; sign-majority: by vote.

    Args:
        codec: That of the vectors.
        vectors: float32, shape (n,); one a region, in region order.
        weights: One a vector.
        scale: Of the sum; 1 / sum(weights) makes it the mean.
        out: float32, shape (n,); may be one of `vectors` when there are at most two and the codec is not sign-majority.
    """
    total = _sum(vectors, weights, out)
    if _codec(codec).name == "sign-majority":
        votes = _sum([vector.sign() for vector in vectors], weights, torch.empty_like(out))
        size = _sum([vector.abs() for vector in vectors], weights, torch.empty_like(out))
        bad = ~torch.isfinite(size)
        drawn = votes == 0
        votes[drawn] = total[drawn]
        total.copy_(size).mul_(votes.sign_())
        total[bad] = torch.nan
    total.mul_(scale)


def warm(codec: Codec | CodecName, device: str = "cpu") -> None:
    """Compile what `codec` needs, with and without feedback, so that it is not done in the first exchange."""
    if _codec(codec).name == "powersgd":
        lowrank.warm()
        return
    values = torch.zeros(8, device=device)
    data = torch.empty(encoded_bytes(codec, 8), dtype=torch.uint8, device=device)
    for residual in (None, torch.zeros_like(values)):
        encode(codec, values, data, 0, residual)
        decode(codec, data, values)


def _codec(codec: Codec | CodecName) -> Codec:
    return codec if isinstance(codec, Codec) else Codec(codec)


def _inner(codec: Codec) -> Codec:
    return Codec("bf16" if codec.name == "topk" else "int4")


def _check(codec: Codec, values: torch.Tensor, data: torch.Tensor) -> None:
    if values.dtype != torch.float32 or values.dim() != 1 or not values.is_contiguous():
        raise TypeError(f"codecs take contiguous float32 of shape (n,), not {values.dtype} {tuple(values.shape)}")
    size = encoded_bytes(codec, values.numel())
    if data.dtype != torch.uint8 or data.numel() != size or not data.is_contiguous():
        raise TypeError(
            f"{codec.name} of {values.numel()} elements is {size} bytes of uint8, not {data.numel()} of {data.dtype}"
        )
    if data.numel() and data.data_ptr() % 4:
        raise TypeError("encoded data must begin at a multiple of 4 bytes")
    if values.device != data.device:
        raise TypeError(f"values are on {values.device}, encoded data on {data.device}")


def _on_gpu(codec: Codec):
    if codec.name not in ("int8", "int4"):
        raise TypeError(f"{codec.name} has no GPU kernel (int8 and int4 have); copy to the CPU first")
    from isthmus.runtime.codecs import triton_kernels

    return triton_kernels


def _encode(codec: Codec, values: np.ndarray, data: np.ndarray, seed: int, owed: np.ndarray, feedback: bool) -> None:
    match codec.name:
        case "none":
            np.add(values, owed, out=data.view(np.float32)) if feedback else np.copyto(data.view(np.float32), values)
            owed[:] = 0.0
        case "bf16":
            halves.encode_bf16(values, owed, feedback, data.view(np.uint16), halves.work_room())
        case "int2" | "int3" | "int4" | "int5" | "int6" | "int7" | "int8":
            bits = _BITS[codec.name]
            parts = (values, owed, *_split(data, values.size, bits))
            levels.encode_levels(parts, feedback, bits, cast(int, np.uint64(seed)), levels.work_room())
        case "sign" | "sign-majority":
            scales = 4 * -(-values.size // BLOCK_ELEMENTS)
            parts = (values, owed, data[:scales].view(np.float32), data[scales:])
            signs.encode_signs(parts, feedback, signs.work_room())
        case "topk" | "topk-int4":
            indices, inner, chosen, rest = _sparse_parts(codec, data, values.size)
            sparse.select((values, owed, indices, chosen), feedback, codec.per_block, sparse.work_room())
            rest[:] = 0.0
            _encode(_inner(codec), chosen, inner, seed, rest if feedback else _NONE, feedback)
            if feedback:
                sparse.scatter_kept((indices, rest), codec.per_block, False, owed, sparse.work_room())
        case "powersgd":
            raise AssertionError("refused by encoded_bytes")
        case _:
            assert_never(codec.name)


def _decode(codec: Codec, data: np.ndarray, out: np.ndarray) -> None:
    match codec.name:
        case "none":
            np.copyto(out, data.view(np.float32))
        case "bf16":
            halves.decode_bf16(data.view(np.uint16), out.view(np.uint32))
        case "int2" | "int3" | "int4" | "int5" | "int6" | "int7" | "int8":
            bits = _BITS[codec.name]
            levels.decode_levels(_split(data, out.size, bits), bits, out, levels.work_room())
        case "sign" | "sign-majority":
            scales = 4 * -(-out.size // BLOCK_ELEMENTS)
            signs.decode_signs(data[:scales].view(np.uint32), data[scales:], out.view(np.uint32), signs.work_room())
        case "topk" | "topk-int4":
            indices, inner, chosen, _ = _sparse_parts(codec, data, out.size)
            _decode(_inner(codec), inner, chosen)
            sparse.scatter_kept((indices, chosen), codec.per_block, True, out, sparse.work_room())
        case "powersgd":
            raise AssertionError("refused by encoded_bytes")
        case _:
            assert_never(codec.name)


def _split(data: np.ndarray, elements: int, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales, bytes of sub-blocks, levels."""
    scales = 4 * -(-elements // BLOCK_ELEMENTS)
    subs = scales + (0 if bits == 8 else -(-elements // SUB))
    return data[:scales].view(np.float32), data[scales:subs], data[subs:]


def _sparse_parts(
    codec: Codec, data: np.ndarray, elements: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Places, bytes of the inner codec, and two vectors of the thread's own for the kept values."""
    places, keep = sparse.index_bytes(elements, codec.per_block), sparse.kept(elements, codec.per_block)
    held: np.ndarray | None = getattr(_scratch, "kept", None)
    if held is None or held.shape[1] < keep:
        held = _scratch.kept = np.empty((2, keep), np.float32)
    return data[:places], data[places:], held[0, :keep], held[1, :keep]


def _sum(vectors: Sequence[torch.Tensor], weights: Sequence[float], out: torch.Tensor) -> torch.Tensor:
    terms = [vector if weight == 1.0 else torch.mul(vector, weight) for vector, weight in zip(vectors, weights, strict=True)]
    if len(terms) == 1:
        return out.copy_(terms[0])
    torch.add(terms[0], terms[1], out=out)
    for term in terms[2:]:
        out.add_(term)
    return out
