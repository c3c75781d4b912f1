"""CPU kernels of k-bit levels. Tiles of 16 blocks stay in the first-level cache through three passes: maxima, scales, levels.

Rounding is done by an addition: of 1.5 x 2^23 to a float32 y below 2^22, after which the low bits of the sum are those of y,
rounded to the nearest whole number. With error feedback y is x / step; without, it is 2^14 x / step, and 14 random bits are
added to the bits of the sum before the last 14 are cut off. |y| may exceed L 2^14 by the rounding of scale, step, 1 / step and
product: by less than half for every k (at most 127 x 2^14 x 4 x 2^-24), so that no level leaves -L..L and none is clamped.
"""

from typing import Any

import numpy as np

from isthmus.runtime.codecs import vectors as v
from isthmus.runtime.codecs.blocks import BLOCK, INFINITE, MAGNITUDE, SCALE_MIN, SUB, load, store
from isthmus.runtime.codecs.compiled import Room, compiled, part_of_kernel, room
from isthmus.runtime.codecs.planes import pack, pack_fours, unpack

__all__ = ["TILE", "decode_levels", "encode_levels", "work_room"]

Array = np.ndarray[Any, Any]
F, S, U, B, W = np.float32, np.int32, np.uint32, np.uint8, np.uint64

TILE = 16 * BLOCK
_SUBS = BLOCK // SUB
_TOPS, _STEPS, _INVERSES = TILE, TILE + TILE // SUB, TILE + 2 * TILE // SUB
_FRACTION = 14
_SHIFTER = 1.5 * 2**23
_GOLDEN = U(0x9E3779B9)


def work_room() -> Room:
    """What the kernels of this file work in."""
    return room(TILE + 3 * TILE // SUB, BLOCK + TILE // SUB)


@part_of_kernel
def _mixed64(x: Any) -> Any:
    """The finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014)."""
    x = W((x ^ W(x >> W(30))) * W(0xBF58476D1CE4E5B9))
    x = W((x ^ W(x >> W(27))) * W(0x94D049BB133111EB))
    return W(x ^ W(x >> W(31)))


@part_of_kernel
def _mixed32(x: Any, key: Any) -> Any:
    """Two rounds of multiply and shift (constants: lowbias32 of hash-prospector by C. Wellons), the key between them."""
    x = v.product(v.mixed(x, v.shifted(x, 16)), v.spread(U(0x7FEB352D)))
    x = v.mixed(v.mixed(x, v.shifted(x, 15)), key)
    x = v.product(x, v.spread(U(0x846CA68B)))
    return v.mixed(x, v.shifted(x, 16))


@part_of_kernel
def _row_top(source: Array, at: int) -> Any:
    mask = v.spread(MAGNITUDE)
    low = v.larger(v.both(v.words_at(source, at), mask), v.both(v.words_at(source, at + 8), mask))
    high = v.larger(v.both(v.words_at(source, at + 16), mask), v.both(v.words_at(source, at + 24), mask))
    return v.larger(low, high)


@part_of_kernel
def _maxima(source: Array, blocks: int, tops: Array) -> None:
    """Bits of the largest |x| of each sub-block: that order is the order of the numbers, infinities and NaNs above all."""
    for block in range(blocks):
        at = block * BLOCK
        low = (_row_top(source, at), _row_top(source, at + 32), _row_top(source, at + 64), _row_top(source, at + 96))
        high = (_row_top(source, at + 128), _row_top(source, at + 160), _row_top(source, at + 192), _row_top(source, at + 224))
        v.put_words(tops, block * _SUBS, v.highest_of_each(low + high))


@part_of_kernel
def _scales(floats: Array, blocks: int, feedback: bool, bits: int, scales: Array, shares: Array) -> None:
    """From the maxima of sub-blocks: scales of blocks, sub-blocks' bytes, their steps and (2^14) / steps."""
    levels = F((1 << (bits - 1)) - 1)
    part = F(F(1.0) / (levels if bits == 8 else F(F(255.0) * levels)))
    whole, one = v.spread(F(1.0) if feedback else F(1 << _FRACTION)), v.spread(F(1.0))
    for block in range(blocks):
        at = block * _SUBS
        tops = v.words_at(floats, _TOPS + at)
        top = v.highest(tops)
        bad = top >= INFINITE
        scale = F(v.as_float(U(0) if bad else top) * part)
        scale = scale if scale >= SCALE_MIN else F(0.0)
        inverse = F(F(1.0) / F(scale * levels)) if scale > F(0.0) else F(0.0)
        share = one
        if bits < 8:
            share = v.smaller_float(v.ceiled(v.times(v.as_floats(tops), v.spread(inverse))), v.spread(F(255.0)))
        step = v.times(v.spread(scale), share)
        v.put_floats(floats, _STEPS + at, step)
        v.put_floats(floats, _INVERSES + at, v.zero_unless_positive(v.over(whole, step), step))
        v.put_bytes(shares, at, (v.truncated(share),))
        scales[block] = F(np.nan) if bad else scale


@part_of_kernel
def _drawn(source: Array, at: int, inverse: Any, shifter: Any, noise: Any) -> Any:
    """Levels, offset by 2^(bits - 1), in the low bytes."""
    return v.shifted(v.add(v.as_bits(v.plus(v.times(v.floats_at(source, at), inverse), shifter)), noise), _FRACTION)


@part_of_kernel
def _draw_block(source: Array, inverses: Array, bits: int, key: Any, codes: Array) -> None:
    """floor(x / step + u) + 2^(bits - 1), u of 14 bits: one hash for elements i and i + 128, its lowest and highest bits."""
    shifter = v.spread(F(F(_SHIFTER) + F(1 << (bits - 1 + _FRACTION))))
    ahead, mask = v.spread(U(key >> W(32))), v.spread(U((1 << _FRACTION) - 1))
    count, stride = v.add(v.product(v.lanes(), v.spread(_GOLDEN)), v.spread(U(key & W(0xFFFFFFFF)))), v.spread(U(_GOLDEN * U(8)))
    for sub in range(_SUBS // 2):
        at, low, high = sub * SUB, v.spread(inverses[sub]), v.spread(inverses[sub + _SUBS // 2])
        a = _mixed32(count, ahead)
        count = v.add(count, stride)
        b = _mixed32(count, ahead)
        count = v.add(count, stride)
        c = _mixed32(count, ahead)
        count = v.add(count, stride)
        d = _mixed32(count, ahead)
        count = v.add(count, stride)
        first = (
            _drawn(source, at, low, shifter, v.both(a, mask)),
            _drawn(source, at + 8, low, shifter, v.both(b, mask)),
            _drawn(source, at + 16, low, shifter, v.both(c, mask)),
            _drawn(source, at + 24, low, shifter, v.both(d, mask)),
        )
        v.put_bytes(codes, at, first)
        second = (
            _drawn(source, at + 128, high, shifter, v.shifted(a, 32 - _FRACTION)),
            _drawn(source, at + 136, high, shifter, v.shifted(b, 32 - _FRACTION)),
            _drawn(source, at + 144, high, shifter, v.shifted(c, 32 - _FRACTION)),
            _drawn(source, at + 152, high, shifter, v.shifted(d, 32 - _FRACTION)),
        )
        v.put_bytes(codes, at + 128, second)


@part_of_kernel
def _rounded(work: Array, at: int, inverse: Any, step: Any, shifter: Any) -> Any:
    """Levels to nearest, offset, in the low bytes; what they leave out replaces the elements."""
    x = v.floats_at(work, at)
    shifted = v.plus(v.times(x, inverse), shifter)
    v.put_floats(work, at, v.minus(x, v.times(v.minus(shifted, shifter), step)))
    return v.as_bits(shifted)


@part_of_kernel
def _round_block(work: Array, inverses: Array, steps: Array, bits: int, codes: Array) -> None:
    shifter = v.spread(F(F(_SHIFTER) + F(1 << (bits - 1))))
    for sub in range(_SUBS):
        at, inverse, step = sub * SUB, v.spread(inverses[sub]), v.spread(steps[sub])
        found = (
            _rounded(work, at, inverse, step, shifter),
            _rounded(work, at + 8, inverse, step, shifter),
            _rounded(work, at + 16, inverse, step, shifter),
            _rounded(work, at + 24, inverse, step, shifter),
        )
        v.put_bytes(codes, at, found)


@part_of_kernel
def _packed(narrow: Array, held: int, bits: int, codes: Array, to: int) -> int:
    """The codes of one block into planes; where the next one begins."""
    if held < BLOCK or bits != 4:
        return pack(narrow, held, bits, codes, to)
    pack_fours(narrow, codes[to : to + BLOCK // 2])
    return to + BLOCK // 2


@compiled
def encode_levels(data: tuple[Array, Array, Array, Array, Array], feedback: bool, bits: int, seed: int, space: Room) -> None:
    """k-bit levels; see `isthmus.runtime.codecs.coding` for the format.

    Args:
        data: values: float32 (n,). residual: float32 (n,), added and replaced; (0,) without `feedback`. scales: float32
            (ceil(n / 256),), written. subs: uint8 (ceil(n / 32),), written; (0,) for 8 bits. codes: uint8, written.
        feedback: Round to nearest and keep the rest; otherwise round at random.
        bits: 2 to 8.
        seed: Of the noise, uint64.
        space: Of `work_room`.
    """
    values, residual, scales, subs, codes = data
    floats, words, small = space
    work, tops, narrow, shares, to = floats[:TILE], words[_TOPS:_STEPS], small[:BLOCK], small[BLOCK:], 0
    for first in range(0, values.size, TILE):
        count = min(TILE, values.size - first)
        blocks, number = (count + BLOCK - 1) // BLOCK, first // BLOCK
        copied = feedback or count < TILE
        source = work if copied else values[first : first + TILE]
        if copied:
            load(values, residual, feedback, first, work)
        _maxima(source, blocks, tops)
        _scales(floats, blocks, feedback, bits, scales[number : number + blocks], shares)
        for block in range(blocks):
            at, held = block * BLOCK, min(BLOCK, count - block * BLOCK)
            straight = bits == 8 and held == BLOCK
            into = codes[to : to + BLOCK] if straight else narrow
            part = source[at : at + BLOCK]
            inverses = floats[_INVERSES + block * _SUBS : _INVERSES + block * _SUBS + _SUBS]
            if not np.isfinite(scales[number + block]):
                into[:] = B((1 << (bits - 1)) + 1)
                shares[block * _SUBS : block * _SUBS + _SUBS] = B(255)
                work[at : at + BLOCK] = F(0.0)
            elif feedback:
                steps = floats[_STEPS + block * _SUBS : _STEPS + block * _SUBS + _SUBS]
                _round_block(part, inverses, steps, bits, into)
            else:
                key = _mixed64(W(W(seed) + W(W(number + block) * W(0x9E3779B97F4A7C15))))
                _draw_block(part, inverses, bits, key, into)
            to = to + BLOCK if straight else _packed(narrow, held, bits, codes, to)
        if bits < 8:
            for sub in range((count + SUB - 1) // SUB):
                subs[number * _SUBS + sub] = shares[sub]
        if feedback:
            store(work, residual, first, count)


@part_of_kernel
def _levels_of(words: Any, zero: Any, step: Any) -> Any:
    """(words - offset) x step, where `zero` is 2^23 + offset."""
    return v.times(v.minus(v.as_floats(v.either(words, v.spread(U(0x4B000000)))), zero), step)


@part_of_kernel
def _decode_block(codes: Array, steps: Array, bits: int, target: Array) -> None:
    """A whole block from bytes."""
    zero = v.spread(F(F(2**23) + F(1 << (bits - 1))))
    for sub in range(_SUBS):
        step = v.spread(steps[sub])
        for at in range(sub * SUB, sub * SUB + SUB, 8):
            v.put_floats(target, at, _levels_of(v.widened(codes, at), zero, step))


@part_of_kernel
def _decode_halves(codes: Array, steps: Array, target: Array) -> None:
    """A whole block of 4 bits: elements i and i + 128 lie in one byte."""
    zero, mask = v.spread(F(2**23 + 8)), v.spread(U(15))
    for sub in range(_SUBS // 2):
        low, high = v.spread(steps[sub]), v.spread(steps[sub + _SUBS // 2])
        for at in range(sub * SUB, sub * SUB + SUB, 8):
            pair = v.widened(codes, at)
            v.put_floats(target, at, _levels_of(v.both(pair, mask), zero, low))
            v.put_floats(target, at + 128, _levels_of(v.shifted(pair, 4), zero, high))


@compiled
def decode_levels(data: tuple[Array, Array, Array], bits: int, out: Array, space: Room) -> None:
    """Back to float32 (n,): level x (scale x byte), two roundings; with 8 bits level x scale."""
    scales, subs, codes = data
    floats, _, small = space
    narrow, steps, offset, at = small[:BLOCK], floats[_STEPS : _STEPS + _SUBS], S(1 << (bits - 1)), 0
    for block in range(scales.size):
        first = block * BLOCK
        count, scale = min(BLOCK, out.size - first), scales[block]
        target = out[first : first + count]
        for sub in range((count + SUB - 1) // SUB):
            steps[sub] = F(scale * F(subs[block * _SUBS + sub])) if bits < 8 else scale
        if count == BLOCK and bits == 8:
            _decode_block(codes[at : at + BLOCK], steps, bits, target)
            at += BLOCK
        elif count == BLOCK and bits == 4:
            _decode_halves(codes[at : at + BLOCK // 2], steps, target)
            at += BLOCK // 2
        else:
            at = unpack(codes, at, count, bits, narrow)
            if count == BLOCK:
                _decode_block(narrow, steps, bits, target)
            else:
                for i in range(count):
                    target[i] = F(F(S(S(narrow[i]) - offset)) * steps[i // SUB])
