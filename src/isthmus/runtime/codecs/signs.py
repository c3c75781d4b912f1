"""CPU kernels of signs: one pass over memory, block by block in the first-level cache."""

from typing import Any

import numpy as np

from isthmus.runtime.codecs.blocks import BLOCK, SCALE_MIN, SUB, load, store
from isthmus.runtime.codecs.compiled import Room, compiled, part_of_kernel, room
from isthmus.runtime.codecs.planes import pack, unpack

__all__ = ["decode_signs", "encode_signs", "work_room"]

Array = np.ndarray[Any, Any]
F, S, U, B, W = np.float32, np.int32, np.uint32, np.uint8, np.uint64


def work_room() -> Room:
    """What the kernels of this file work in."""
    return room(288, 256)


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
    return scale if not scale < SCALE_MIN else F(0.0)


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
    """One bit an element (1: negative) and the mean magnitude of the block; arguments: see `levels.encode_levels`, no subs."""
    values, residual, scales, codes = data
    floats, words, narrow = space
    work, work_bits, lanes, at = floats[:256], words[:256], floats[256:288], 0
    for block in range(scales.size):
        first = block * BLOCK
        count = min(BLOCK, values.size - first)
        straight = count == BLOCK and not feedback
        source = values[first : first + BLOCK] if straight else work
        if not straight:
            load(values, residual, feedback, first, work)
        scale = _mean_magnitude(source, count, lanes)
        finite = np.isfinite(scale)
        scales[block] = scale if finite else F(np.nan)
        if count == BLOCK and finite:
            _sign_bits(source.view(U), codes[at : at + SUB])
            at += SUB
        else:
            for i in range(BLOCK):
                narrow[i] = B(U(work_bits[i] >> U(31))) if finite else B(0)
            at = pack(narrow, count, 1, codes, at)
        if feedback:
            if finite:
                for i in range(BLOCK):
                    work[i] = F(work[i] - F(F(S(S(1) - S(S(2) * S(U(work_bits[i] >> U(31)))))) * scale))
            else:
                work[:] = F(0.0)
            store(work, residual, first, count)


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
            at = unpack(codes, at, count, 1, narrow)
            for i in range(count):
                target[i] = U(scale | U(U(narrow[i]) << U(31)))
