"""CPU kernels of the dense codecs: k-bit levels, signs, bf16. One pass over memory, block by block in the first-level cache.

What makes numba's loops vector code, and hence the odd spelling: integers are cast after every operation (it widens them to
64 bits); arrays are sliced before a loop and indexed by the loop's own variable (other indices are checked for being
negative); loops over whole blocks have a constant length, but those over 32 a length that the compiler cannot know, or it
unrolls them before it looks for vectors; shifts are constant; a loop has few arrays, since it must check that what it writes
overlaps none of the others. Hence several loops over the same block rather than one that does all.
Maxima are taken over the bits of |x| as integers: that order is the order of the numbers, infinities and NaNs above all.
The last block is worked on as a whole one with zeros behind, and only its own part is stored.
"""

from typing import Any

import numpy as np

from isthmus.runtime.codecs.compiled import Room, compiled, part_of_kernel, room

__all__ = [
    "BLOCK",
    "SUB",
    "decode_bf16",
    "decode_levels",
    "decode_signs",
    "encode_bf16",
    "encode_levels",
    "encode_signs",
    "work_room",
]

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


def work_room() -> Room:
    """What the kernels of this file work in."""
    return room(793, 264)


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
def _maxima(block_bits: Array, tops: Array) -> Any:
    """Bits of the largest |x| of each sub-block into tops[:8], of the block into tops[8]; the latter."""
    block = U(0)
    for sub in range(_SUBS):
        part, top = block_bits[sub * SUB : sub * SUB + SUB], U(0)
        for i in range(part.size):
            x = U(part[i] & _ABS)
            top = x if x > top else top
        tops[sub] = top
        block = top if top > block else block
    tops[_SUBS] = block
    return block


@part_of_kernel
def _scale(tops: Array, bits: int, shares: Array, steps: Array, inverses: Array) -> Any:
    """The block's scale; its sub-blocks' bytes, steps and 1 / steps into arrays of 8. `tops`: of sub-blocks, then the block's."""
    levels = F((1 << (bits - 1)) - 1)
    scale = F(tops[_SUBS] * F(F(1.0) / (levels if bits == 8 else F(F(255.0) * levels))))
    if scale < _SCALE_MIN:
        scale = F(0.0)
    inverse = F(1.0) / F(scale * levels) if scale > F(0.0) else F(0.0)
    for sub in range(shares.size):
        share = F(tops[sub] * inverse)
        byte = S(share)
        byte = S(byte + S(1)) if F(byte) < share else byte
        byte = S(1) if bits == 8 else S(min(byte, S(255)))
        step = F(scale * F(byte))
        steps[sub] = step
        inverses[sub] = F(1.0) / step if step > F(0.0) else F(0.0)
        shares[sub] = B(byte)
    return scale


@part_of_kernel
def _noise(middle: Any, key: Any, dither: Array) -> None:
    """middle + u, u of 16 random bits between 0 and 1, for a whole block: one hash for elements i and i + 128."""
    low, high, first, second = U(key & W(0xFFFFFFFF)), U(key >> W(32)), dither[:_HALF], dither[_HALF:]
    for i in range(_HALF):
        noise = _mixed32(U(low + U(U(i) * U(0x9E3779B9))), high)
        first[i] = F(F(S(U(noise & U(0xFFFF)))) * _TINY + middle)
        second[i] = F(F(S(U(noise >> U(16)))) * _TINY + middle)


@part_of_kernel
def _spread(parts: Array, width: int, whole: Array) -> None:
    """Each of 8 values `width` times, from every 32nd place on."""
    for sub in range(_SUBS):
        value, part = parts[sub], whole[sub * SUB :]
        for i in range(width):
            part[i] = value


@part_of_kernel
def _quantised(block: Array, inverses: Array, dither: Array, bits: int, codes: Array) -> None:
    """floor(x / step + u) + 2^(bits - 1); the offset is in `dither`."""
    top = S((1 << bits) - 1)
    for i in range(BLOCK):
        codes[i] = B(S(min(S(max(S(F(F(block[i] * inverses[i]) + dither[i])), S(1))), top)))


@part_of_kernel
def _leave(block: Array, steps: Array, offset: Any, codes: Array) -> None:
    """What the codes leave out, into `block`."""
    for i in range(BLOCK):
        block[i] = F(block[i] - F(F(S(S(codes[i]) - offset)) * steps[i]))


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
    work, spread, dither = floats[:256], floats[256:512], floats[512:768]
    steps, inverses, narrow, shares = floats[768:776], floats[776:784], small[:256], small[256:264]
    at, width, offset = 0, min(SUB, values.size), S(1 << (bits - 1))
    spread[:] = F(0.0)
    dither[:] = F(F(offset) + F(0.5))
    for block in range(scales.size):
        first = block * BLOCK
        count = min(BLOCK, values.size - first)
        straight = count == BLOCK and not feedback
        source = values[first : first + BLOCK] if straight else work
        if not straight:
            _load(values, residual, feedback, first, work)
        into = codes[at : at + BLOCK] if bits == 8 and count == BLOCK else narrow
        if _maxima(source.view(U), words[784:]) >= _INFINITE:
            scales[block] = F(np.nan)
            shares[:] = B(255)
            into[:] = B(offset + 1)
            work[:] = F(0.0)
        else:
            scales[block] = _scale(floats[784:], bits, shares, steps, inverses)
            if not feedback:
                key = _mixed64(W(W(seed) + W(W(block) * W(0x9E3779B97F4A7C15))))
                _noise(F(F(offset) + _HALF_TINY), key, dither)
            _spread(inverses, width, spread)
            _quantised(source, spread, dither, bits, into)
            if feedback:
                _spread(steps, width, spread)
                _leave(work, spread, offset, into)
        if bits < 8:
            for sub in range(-(-count // SUB)):
                subs[block * _SUBS + sub] = shares[sub]
        if feedback:
            _store(work, residual, first, count)
        at = at + BLOCK if bits == 8 and count == BLOCK else _pack(narrow, count, bits, codes, at)


@part_of_kernel
def _step_of(scales: Array, subs: Array, bits: int, block: int, sub: int) -> Any:
    step = scales[block]
    return F(step * F(subs[block * _SUBS + sub])) if bits < 8 else step


@part_of_kernel
def _levels_of(found: Array, steps: Array, offset: Any, target: Array) -> None:
    """A whole block: (found - offset) x step."""
    for i in range(BLOCK):
        target[i] = F(F(S(S(found[i]) - offset)) * steps[i])


@compiled
def decode_levels(data: tuple[Array, Array, Array], bits: int, out: Array, space: Room) -> None:
    """Back to float32 (n,): level x (scale x byte), two roundings; with 8 bits level x scale."""
    scales, subs, codes = data
    floats, _, small = space
    narrow, steps, spread, width = small[:256], floats[768:776], floats[256:512], min(SUB, out.size)
    offset, at = S(1 << (bits - 1)), 0
    for block in range(scales.size):
        first = block * BLOCK
        count = min(BLOCK, out.size - first)
        for sub in range(-(-count // SUB)):
            steps[sub] = _step_of(scales, subs, bits, block, sub)
        _spread(steps, width, spread)
        target = out[first : first + count]
        if count == BLOCK and bits == 8:
            _levels_of(codes[at : at + BLOCK], spread, offset, target)
            at += BLOCK
            continue
        at = _unpack(codes, at, count, bits, narrow)
        if count == BLOCK:
            _levels_of(narrow, spread, offset, target)
        else:
            for i in range(count):
                target[i] = F(F(S(S(narrow[i]) - offset)) * spread[i])


@part_of_kernel
def _mean_magnitude(block: Array, count: int, lanes: Array) -> Any:
    """256 / m times the sum of |x| / 256 in 32 lanes (element i in lane i mod 32), the lanes then added in halves."""
    part = F(1.0 / BLOCK)
    for i in range(SUB):
        lane = F(abs(block[W(i)]) * part)
        for row in range(1, 8):
            lane = F(lane + F(abs(block[W(W(i) + W(row) * W(SUB))]) * part))
        lanes[i] = lane
    for width in (16, 8, 4, 2, 1):
        upper = lanes[width : 2 * width]
        for i in range(width):
            lanes[i] += upper[i]
    scale = F(lanes[0] * F(F(BLOCK) / F(count)))
    return scale if not scale < _SCALE_MIN else F(0.0)


@part_of_kernel
def _sign_bits(block_bits: Array, out: Array) -> None:
    """The plane of a whole block: bit j of byte i is the sign of element i + 32 j."""
    for i in range(SUB):
        byte = U(0)
        for row in range(8):
            byte = U(byte | U(U(block_bits[W(W(i) + W(row) * W(SUB))] >> U(31)) << U(row)))
        out[i] = B(byte)


@compiled
def encode_signs(data: tuple[Array, Array, Array, Array], feedback: bool, space: Room) -> None:
    """One bit an element (1: negative) and the mean magnitude of the block; arguments as in `encode_levels`, without subs."""
    values, residual, scales, codes = data
    floats, words, narrow = space
    work, work_bits, lanes, at = floats[:256], words[:256], floats[256:288], 0
    for block in range(scales.size):
        first = block * BLOCK
        count = min(BLOCK, values.size - first)
        straight = count == BLOCK and not feedback
        source = values[first : first + BLOCK] if straight else work
        if not straight:
            _load(values, residual, feedback, first, work)
        scale = _mean_magnitude(source, count, lanes)
        finite = np.isfinite(scale)
        scales[block] = scale if finite else F(np.nan)
        if count == BLOCK and finite:
            _sign_bits(source.view(U), codes[at : at + SUB])
            at += SUB
        else:
            for i in range(BLOCK):
                narrow[i] = B(U(work_bits[i] >> U(31))) if finite else B(0)
            at = _pack(narrow, count, 1, codes, at)
        if feedback:
            if finite:
                for i in range(BLOCK):
                    work[i] = F(work[i] - F(F(S(S(1) - S(S(2) * S(U(work_bits[i] >> U(31)))))) * scale))
            else:
                work[:] = F(0.0)
            _store(work, residual, first, count)


@compiled
def decode_signs(scales_bits: Array, codes: Array, out_bits: Array, space: Room) -> None:
    """Back to the bits of float32 (n,), from the bits of the scales."""
    narrow, at, width = space[2], 0, min(SUB, out_bits.size)
    for block in range(scales_bits.size):
        first = block * BLOCK
        count, scale = min(BLOCK, out_bits.size - first), scales_bits[block]
        target = out_bits[first : first + count]
        if count == BLOCK:
            plane = codes[at : at + SUB]
            for part in range(8):
                run, down = target[part * SUB : part * SUB + SUB], U(part)
                for i in range(width):
                    run[i] = U(scale | U(U(U(plane[i]) >> down) << U(31)))
            at += SUB
        else:
            at = _unpack(codes, at, count, 1, narrow)
            for i in range(count):
                target[i] = U(scale | U(U(narrow[i]) << U(31)))


@compiled
def encode_bf16(values: Array, residual: Array, feedback: bool, out: Array, space: Room) -> None:
    """Upper halves of float32 (n,), to nearest even, into uint16 (n,); NaN stays NaN, and infinities leave out nothing."""
    floats, words, _ = space
    work, back, work_bits, back_bits = floats[:256], floats[256:512], words[:256], words[256:512]
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
