"""CPU kernels of bf16: the upper halves of float32."""

from typing import Any

import numpy as np

from isthmus.runtime.codecs.blocks import BLOCK, INFINITE, MAGNITUDE, load, store
from isthmus.runtime.codecs.compiled import Room, compiled, room

__all__ = ["decode_bf16", "encode_bf16", "work_room"]

Array = np.ndarray[Any, Any]
F, U = np.float32, np.uint32


def work_room() -> Room:
    """What the kernels of this file work in."""
    return room(512, 0)


@compiled
def encode_bf16(values: Array, residual: Array, feedback: bool, out: Array, space: Room) -> None:
    """Upper halves of float32 (n,), to nearest even, into uint16 (n,); NaN stays NaN, and infinities leave out nothing."""
    floats, words, _ = space
    work, back, work_bits, back_bits = floats[:256], floats[256:512], words[:256], words[256:512]
    for first in range(0, values.size, BLOCK):
        count = load(values, residual, feedback, first, work)
        target = out[first : first + count]
        for i in range(BLOCK):
            x = work_bits[i]
            rounded = U(U(x + U(U(0x7FFF) + U(U(x >> U(16)) & U(1)))) >> U(16))
            quiet = U(U(x >> U(16)) | U(0x40))
            back_bits[i] = U((quiet if U(x & MAGNITUDE) > INFINITE else rounded) << U(16))
        if count == BLOCK:
            for i in range(BLOCK):
                target[i] = np.uint16(U(back_bits[i] >> U(16)))
        else:
            for i in range(count):
                target[i] = np.uint16(U(back_bits[i] >> U(16)))
        if feedback:
            for i in range(BLOCK):
                work[i] = F(work[i] - back[i]) if U(back_bits[i] & MAGNITUDE) < INFINITE else F(0.0)
            store(work, residual, first, count)


@compiled
def decode_bf16(data: Array, out_bits: Array) -> None:
    """uint16 (n,) into the bits of float32 (n,)."""
    for i in range(out_bits.size):
        out_bits[i] = U(U(data[i]) << U(16))
