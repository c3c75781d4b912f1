"""Planes of 8, 4, 2 and 1 bits: how levels and signs of one block lie in bytes."""

from typing import Any

import numpy as np

from isthmus.runtime.codecs.blocks import BLOCK
from isthmus.runtime.codecs.compiled import part_of_kernel

__all__ = ["pack", "pack_fours", "unpack"]

Array = np.ndarray[Any, Any]
B = np.uint8


@part_of_kernel
def pack_fours(narrow: Array, out: Array) -> None:
    """A whole block of 4 bits: elements i and i + 128 into byte i."""
    upper = narrow[128:]
    for i in range(128):
        out[i] = B(B(narrow[i] & B(15)) | B(upper[i] << B(4)))


@part_of_kernel
def _pack_whole(narrow: Array, width: int, out: Array) -> None:
    """One plane of a whole block: the low `width` bits of `narrow`; written out, since shifts must be constant to be fast."""
    if width == 8:
        for i in range(256):
            out[i] = narrow[i]
    elif width == 4:
        pack_fours(narrow, out)
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
def pack(narrow: Array, count: int, bits: int, out: Array, at: int) -> int:
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
def unpack(data: Array, at: int, count: int, bits: int, narrow: Array) -> int:
    """What `pack` wrote, back into `narrow`, highest plane first; where the next block begins."""
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
