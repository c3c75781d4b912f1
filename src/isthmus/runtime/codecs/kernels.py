"""CPU kernels of the dense codecs: k-bit levels, signs, bf16. One pass over memory, block by block in the first-level cache.

What makes numba's loops vector code, and hence the odd spelling: integers are cast after every operation (it widens them to
64 bits); arrays are sliced before a loop and indexed by the loop's own variable (other indices are checked for being
negative); loops over whole blocks have a constant length; shifts are constant.
Maxima are taken over the bits of |x| as integers: that order is the order of the numbers, infinities and NaNs above all.
The last block is worked on as a whole one with zeros behind, and only its own part is stored.
"""

from typing import Any

import numpy as np

from isthmus.runtime.codecs.compiled import compiled, part_of_kernel

__all__ = ["BLOCK", "SUB", "decode_bf16", "decode_levels", "decode_signs", "encode_bf16", "encode_levels", "encode_signs"]

Array = np.ndarray[Any, Any]
F, S, U, B, W = np.float32, np.int32, np.uint32, np.uint8, np.uint64

BLOCK = 256
SUB = 32
_SUBS = BLOCK // SUB
_HALF = BLOCK // 2
_ABS = U(0x7FFFFFFF)
_INFINITE = U(0x7F800000)
_SCALE_MIN = F(1e-37)
_TINY = F(2.0**-16)
_HALF_TINY = F(2.0**-17)


@part_of_kernel
def _mixed64(x: Any) -> Any:
    """The finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014)."""
    x = W((x ^ W(x >> W(30))) * W(0xBF58476D1CE4E5B9))
    x = W((x ^ W(x >> W(27))) * W(0x94D049BB133111EB))
    return W(x ^ W(x >> W(31)))


@part_of_kernel
def _mixed32(x: Any, key: Any) -> Any:
    """Two rounds of multiply and shift (constants: lowbias32 of hash-prospector by C. Wellons), the key between them."""
    x = U(x ^ U(x >> U(16)))
    x = U(x * U(0x7FEB352D))
    x = U(x ^ U(x >> U(15)))
    x = U(x ^ key)
    x = U(x * U(0x846CA68B))
    return U(x ^ U(x >> U(16)))


@part_of_kernel
def _load(values: Array, residual: Array, feedback: bool, first: int, work: Array) -> int:
    """Values (plus residual) of one block into `work`, zeros behind; how many."""
    count = min(BLOCK, values.size - first)
    source = values[first : first + count]
    if count < BLOCK:
        work[:] = F(0.0)
        for i in range(count):
            work[i] = source[i]
        if feedback:
            owed = residual[first : first + count]
            for i in range(count):
                work[i] = owed[i] + source[i]
    elif feedback:
        owed = residual[first : first + BLOCK]
        for i in range(BLOCK):
            work[i] = owed[i] + source[i]
    else:
        for i in range(BLOCK):
            work[i] = source[i]
    return count


@part_of_kernel
def _store(work: Array, residual: Array, first: int, count: int) -> None:
    """The block's residual from `work`."""
    owed = residual[first : first + count]
    if count == BLOCK:
        for i in range(BLOCK):
            owed[i] = work[i]
    else:
        for i in range(count):
            owed[i] = work[i]


@part_of_kernel
def _pack_whole(narrow: Array, width: int, out: Array) -> None:
    """One plane of a whole block: the low `width` bits of `narrow`; written out, since shifts must be constant to be fast."""
    if width == 8:
        for i in range(256):
            out[i] = narrow[i]
    elif width == 4:
        n1 = narrow[128:]
        for i in range(128):
            out[i] = B(B(narrow[i] & B(15)) | B(n1[i] << B(4)))
    elif width == 2:
        n1, n2, n3 = narrow[64:128], narrow[128:192], narrow[192:]
        for i in range(64):
            low = B(B(narrow[i] & B(3)) | B(B(n1[i] & B(3)) << B(2)))
            out[i] = B(B(low | B(B(n2[i] & B(3)) << B(4))) | B(n3[i] << B(6)))
    else:
        n1, n2, n3 = narrow[32:64], narrow[64:96], narrow[96:128]
        n4, n5, n6, n7 = narrow[128:160], narrow[160:192], narrow[192:224], narrow[224:]
        for i in range(32):
            low = B(B(narrow[i] & B(1)) | B(B(n1[i] & B(1)) << B(1)))
            low = B(B(low | B(B(n2[i] & B(1)) << B(2))) | B(B(n3[i] & B(1)) << B(3)))
            high = B(B(B(n4[i] & B(1)) << B(4)) | B(B(n5[i] & B(1)) << B(5)))
            high = B(B(high | B(B(n6[i] & B(1)) << B(6))) | B(n7[i] << B(7)))
            out[i] = B(low | high)


@part_of_kernel
def _pack(narrow: Array, count: int, bits: int, out: Array, at: int) -> int:
    """Planes of 8, 4, 2 or 1 bits, those that add up to `bits`, low bits first; where the next block begins.

    A plane of w bits: q = ceil(count w / 8) bytes, of which byte i holds elements i, i + q, i + 2q, ... from its low end.
    `narrow` is used up.
    """
    for width in (8, 4, 2, 1):
        if not bits & width:
            continue
        stride = -(-count // (8 // width))
        plane = out[at : at + stride]
        if count == BLOCK:
            _pack_whole(narrow, width, plane)
        else:
            mask = (1 << width) - 1
            plane[:] = B(0)
            for i in range(count):
                plane[i % stride] = B(plane[i % stride] | B((narrow[i] & mask) << (i // stride * width)))
        at += stride
        if width == 4 and bits > 4:
            for i in range(BLOCK):
                narrow[i] = B(narrow[i] >> B(4))
        elif width == 2 and bits & 1:
            for i in range(BLOCK):
                narrow[i] = B(narrow[i] >> B(2))
    return at


@part_of_kernel
def _unpack_whole(data: Array, width: int, narrow: Array) -> None:
    """narrow = narrow << width | the plane's bits, of a whole block; a loop for each part, as more arrays defeat the compiler."""
    if width == 8:
        for i in range(256):
            narrow[i] = data[i]
    elif width == 4:
        low, high = narrow[:128], narrow[128:]
        for i in range(128):
            low[i] = B(B(low[i] << B(4)) | B(data[i] & B(15)))
        for i in range(128):
            high[i] = B(B(high[i] << B(4)) | B(data[i] >> B(4)))
    elif width == 2:
        _unpack_pairs(data, narrow)
    else:
        _unpack_bits(data, narrow)


@part_of_kernel
def _unpack_pairs(data: Array, narrow: Array) -> None:
    p0, p1, p2, p3 = narrow[:64], narrow[64:128], narrow[128:192], narrow[192:]
    for i in range(64):
        p0[i] = B(B(p0[i] << B(2)) | B(data[i] & B(3)))
    for i in range(64):
        p1[i] = B(B(p1[i] << B(2)) | B(B(data[i] >> B(2)) & B(3)))
    for i in range(64):
        p2[i] = B(B(p2[i] << B(2)) | B(B(data[i] >> B(4)) & B(3)))
    for i in range(64):
        p3[i] = B(B(p3[i] << B(2)) | B(data[i] >> B(6)))


@part_of_kernel
def _unpack_bits(data: Array, narrow: Array) -> None:
    """The narrowest plane comes first: nothing is there yet."""
    p0, p1, p2, p3 = narrow[:32], narrow[32:64], narrow[64:96], narrow[96:128]
    p4, p5, p6, p7 = narrow[128:160], narrow[160:192], narrow[192:224], narrow[224:]
    for i in range(32):
        p0[i] = B(data[i] & B(1))
    for i in range(32):
        p1[i] = B(B(data[i] >> B(1)) & B(1))
    for i in range(32):
        p2[i] = B(B(data[i] >> B(2)) & B(1))
    for i in range(32):
        p3[i] = B(B(data[i] >> B(3)) & B(1))
    for i in range(32):
        p4[i] = B(B(data[i] >> B(4)) & B(1))
    for i in range(32):
        p5[i] = B(B(data[i] >> B(5)) & B(1))
    for i in range(32):
        p6[i] = B(B(data[i] >> B(6)) & B(1))
    for i in range(32):
        p7[i] = B(data[i] >> B(7))


@part_of_kernel
def _unpack(data: Array, at: int, count: int, bits: int, narrow: Array) -> int:
    """What `_pack` wrote, back into `narrow`, highest plane first; where the next block begins."""
    end = at
    for width in (8, 4, 2, 1):
        if bits & width:
            end -= -count // (8 // width)
    for i in range(BLOCK):
        narrow[i] = B(0)
    begin = end
    for width in (1, 2, 4, 8):
        if not bits & width:
            continue
        stride = -(-count // (8 // width))
        begin -= stride
        plane = data[begin : begin + stride]
        if count == BLOCK:
            _unpack_whole(plane, width, narrow)
        else:
            mask = (1 << width) - 1
            for i in range(count):
                found = (plane[i % stride] >> (i // stride * width)) & mask
                narrow[i] = B((narrow[i] << width) | found)
    return end


@part_of_kernel
def _maxima(work_bits: Array, tops: Array) -> Any:
    """Bits of the largest |x| of each sub-block into `tops`; those of the block."""
    block = U(0)
    for sub in range(_SUBS):
        part, top = work_bits[sub * SUB : sub * SUB + SUB], U(0)
        for i in range(SUB):
            x = U(part[i] & _ABS)
            top = x if x > top else top
        tops[sub] = top
        block = top if top > block else block
    return block


@part_of_kernel
def _scale(tops: Array, top: Any, bits: int, shares: Array, steps: Array) -> Any:
    """The block's scale, its sub-blocks' bytes into `shares` (8,), and step and 1 / step of each into `steps` (2, 8)."""
    levels = F((1 << (bits - 1)) - 1)
    scale = F(top * F(F(1.0) / (levels if bits == 8 else F(F(255.0) * levels))))
    if scale < _SCALE_MIN:
        scale = F(0.0)
    inverse = F(1.0) / F(scale * levels) if scale > F(0.0) else F(0.0)
    for sub in range(_SUBS):
        share = F(tops[sub] * inverse)
        byte = S(share)
        if F(byte) < share:
            byte = S(byte + S(1))
        byte = S(1) if bits == 8 else S(min(byte, S(255)))
        step = F(scale * F(byte))
        steps[0, sub] = step
        steps[1, sub] = F(1.0) / step if step > F(0.0) else F(0.0)
        shares[sub] = B(byte)
    return scale


@part_of_kernel
def _at_random(work: Array, steps: Array, bits: int, key: Any, narrow: Array) -> None:
    """floor(x / step + u) + 2^(bits - 1), u of 16 random bits, one hash for elements i and i + 128."""
    middle, top = F(F(1 << (bits - 1)) + _HALF_TINY), S((1 << bits) - 1)
    low, high = U(key & W(0xFFFFFFFF)), U(key >> W(32))
    for sub in range(_SUBS // 2):
        at, first, second = sub * SUB, steps[1, sub], steps[1, sub + _SUBS // 2]
        x, y, codes = work[at : at + SUB], work[at + _HALF : at + _HALF + SUB], narrow[at : at + SUB]
        others, begin = narrow[at + _HALF : at + _HALF + SUB], U(low + U(U(at) * U(0x9E3779B9)))
        for i in range(SUB):
            noise = _mixed32(U(begin + U(U(i) * U(0x9E3779B9))), high)
            a = F(F(S(U(noise & U(0xFFFF)))) * _TINY + middle)
            b = F(F(S(U(noise >> U(16)))) * _TINY + middle)
            codes[i] = B(S(min(S(max(S(F(x[i] * first + a)), S(1))), top)))
            others[i] = B(S(min(S(max(S(F(y[i] * second + b)), S(1))), top)))


@part_of_kernel
def _to_nearest(work: Array, steps: Array, bits: int, narrow: Array) -> None:
    """floor(x / step + 1/2) + 2^(bits - 1), and what that leaves out, into `work`."""
    middle, top = F(F(1 << (bits - 1)) + F(0.5)), S((1 << bits) - 1)
    offset = S(1 << (bits - 1))
    for sub in range(_SUBS):
        step, inverse = steps[0, sub], steps[1, sub]
        x, codes = work[sub * SUB : sub * SUB + SUB], narrow[sub * SUB : sub * SUB + SUB]
        for i in range(SUB):
            code = S(min(S(max(S(F(x[i] * inverse + middle)), S(1))), top))
            codes[i] = B(code)
            x[i] = F(x[i] - F(F(S(code - offset)) * step))


@compiled
def encode_levels(data: tuple[Array, Array, Array, Array, Array], feedback: bool, bits: int, seed: int) -> None:
    """k-bit levels; see `isthmus.runtime.codecs.coding` for the format.

    Args:
        data: values: float32 (n,). residual: float32 (n,), added and replaced; (0,) without `feedback`. scales: float32
            (ceil(n / 256),), written. subs: uint8 (ceil(n / 32),), written; (0,) for 8 bits. codes: uint8, written.
        feedback: Round to nearest and keep the rest; otherwise round at random.
        bits: 2 to 8.
        seed: Of the noise, uint64.
    """
    values, residual, scales, subs, codes = data
    work, narrow, shares = np.empty(BLOCK, F), np.empty(BLOCK, B), np.empty(_SUBS, B)
    tops, top, steps, at = np.empty(_SUBS, U), np.empty(1, U), np.empty((2, _SUBS), F), 0
    for block in range(scales.size):
        first = block * BLOCK
        count = _load(values, residual, feedback, first, work)
        top[0] = _maxima(work.view(U), tops)
        if top[0] >= _INFINITE:
            scales[block] = F(np.nan)
            shares[:] = B(255)
            narrow[:] = B((1 << (bits - 1)) + 1)
            work[:] = F(0.0)
        else:
            scales[block] = _scale(tops.view(F), top.view(F)[0], bits, shares, steps)
            if feedback:
                _to_nearest(work, steps, bits, narrow)
            else:
                key = _mixed64(W(W(seed) + W(W(block) * W(0x9E3779B97F4A7C15))))
                _at_random(work, steps, bits, key, narrow)
        if bits < 8:
            for sub in range(-(-count // SUB)):
                subs[block * _SUBS + sub] = shares[sub]
        if feedback:
            _store(work, residual, first, count)
        at = _pack(narrow, count, bits, codes, at)


@compiled
def decode_levels(data: tuple[Array, Array, Array], bits: int, out: Array) -> None:
    """Back to float32 (n,): level x (scale x byte), two roundings; with 8 bits level x scale."""
    scales, subs, codes = data
    narrow, offset, at = np.empty(BLOCK, B), S(1 << (bits - 1)), 0
    for block in range(scales.size):
        first = block * BLOCK
        count = min(BLOCK, out.size - first)
        at = _unpack(codes, at, count, bits, narrow)
        for begin in range(0, count, SUB):
            step = scales[block]
            if bits < 8:
                step = F(step * F(subs[block * _SUBS + begin // SUB]))
            found, target = narrow[begin : begin + SUB], out[first + begin : first + min(begin + SUB, count)]
            if target.size == SUB:
                for i in range(SUB):
                    target[i] = F(F(S(S(found[i]) - offset)) * step)
            else:
                for i in range(target.size):
                    target[i] = F(F(S(S(found[i]) - offset)) * step)


@part_of_kernel
def _mean_magnitude(work: Array, count: int, lanes: Array) -> Any:
    """256 / m times the sum of |x| / 256 in 32 lanes (element i in lane i mod 32), the lanes then added in halves."""
    p0, p1, p2, p3 = work[:32], work[32:64], work[64:96], work[96:128]
    p4, p5, p6, p7 = work[128:160], work[160:192], work[192:224], work[224:]
    part = F(1.0 / BLOCK)
    for i in range(SUB):
        low = F(F(F(F(abs(p0[i]) * part) + F(abs(p1[i]) * part)) + F(abs(p2[i]) * part)) + F(abs(p3[i]) * part))
        low = F(F(low + F(abs(p4[i]) * part)) + F(abs(p5[i]) * part))
        lanes[i] = F(F(low + F(abs(p6[i]) * part)) + F(abs(p7[i]) * part))
    for width in (16, 8, 4, 2, 1):
        upper = lanes[width : 2 * width]
        for i in range(width):
            lanes[i] += upper[i]
    scale = F(lanes[0] * F(F(BLOCK) / F(count)))
    return scale if scale >= _SCALE_MIN else F(0.0)


@compiled
def encode_signs(values: Array, residual: Array, feedback: bool, scales: Array, codes: Array) -> None:
    """One bit an element (1: negative) and the mean magnitude of the block; arguments as in `encode_levels`."""
    work, narrow, lanes = np.empty(BLOCK, F), np.empty(BLOCK, B), np.empty(SUB, F)
    work_bits, tops, at = work.view(U), np.empty(_SUBS, U), 0
    for block in range(scales.size):
        first = block * BLOCK
        count = _load(values, residual, feedback, first, work)
        if _maxima(work_bits, tops) >= _INFINITE:
            scales[block] = F(np.nan)
            narrow[:] = B(0)
            work[:] = F(0.0)
        else:
            scale = _mean_magnitude(work, count, lanes)
            scales[block] = scale
            for i in range(BLOCK):
                narrow[i] = B(U(work_bits[i] >> U(31)))
            if feedback:
                for i in range(BLOCK):
                    work[i] = F(work[i] - F(F(S(S(1) - S(S(2) * S(narrow[i])))) * scale))
        if feedback:
            _store(work, residual, first, count)
        at = _pack(narrow, count, 1, codes, at)


@compiled
def decode_signs(scales_bits: Array, codes: Array, out_bits: Array) -> None:
    """Back to the bits of float32 (n,), from the bits of the scales."""
    narrow, at = np.empty(BLOCK, B), 0
    for block in range(scales_bits.size):
        first = block * BLOCK
        count, scale = min(BLOCK, out_bits.size - first), scales_bits[block]
        target = out_bits[first : first + count]
        if count == BLOCK:
            plane = codes[at : at + SUB]
            for part in range(8):
                run, down = target[part * SUB : part * SUB + SUB], U(part)
                for i in range(SUB):
                    run[i] = U(scale | U(U(U(plane[i]) >> down) << U(31)))
            at += SUB
        else:
            at = _unpack(codes, at, count, 1, narrow)
            for i in range(count):
                target[i] = U(scale | U(U(narrow[i]) << U(31)))


@compiled
def encode_bf16(values: Array, residual: Array, feedback: bool, out: Array) -> None:
    """Upper halves of float32 (n,), to nearest even, into uint16 (n,); NaN stays NaN, and infinities leave out nothing."""
    work, back = np.empty(BLOCK, F), np.empty(BLOCK, F)
    work_bits, back_bits = work.view(U), back.view(U)
    for first in range(0, values.size, BLOCK):
        count = _load(values, residual, feedback, first, work)
        target = out[first : first + count]
        for i in range(BLOCK):
            x = work_bits[i]
            rounded = U(U(x + U(U(0x7FFF) + U(U(x >> U(16)) & U(1)))) >> U(16))
            quiet = U(U(x >> U(16)) | U(0x40))
            back_bits[i] = U((quiet if U(x & _ABS) > _INFINITE else rounded) << U(16))
        if count == BLOCK:
            for i in range(BLOCK):
                target[i] = np.uint16(U(back_bits[i] >> U(16)))
        else:
            for i in range(count):
                target[i] = np.uint16(U(back_bits[i] >> U(16)))
        if feedback:
            for i in range(BLOCK):
                work[i] = F(work[i] - back[i]) if U(back_bits[i] & _ABS) < _INFINITE else F(0.0)
            _store(work, residual, first, count)


@compiled
def decode_bf16(data: Array, out_bits: Array) -> None:
    """uint16 (n,) into the bits of float32 (n,)."""
    for i in range(out_bits.size):
        out_bits[i] = U(U(data[i]) << U(16))
