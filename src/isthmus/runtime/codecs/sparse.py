"""Top-k: the k largest magnitudes of every block of 4,096 elements, their places coded in nearly as few bits as there can be.

k = ceil(density x 4096); a last, shorter block of m keeps ceil(k m / 4096). Equal magnitudes: the first ones are kept.
Places are coded after Elias and Fano: with l = max(0, floor(log2(m / k))), the low l bits of each place, packed, then a bit
string in which bit (place >> l) + j is set for the j-th place: k l + k + ((m - 1) >> l) bits, each of the two in whole
bytes. The size follows from m and k alone, so that the receiver knows it before the data; at k = 41 of 4096 it is 8.6 bits a
place, where the logarithm of the number of choices is 7.98, fixed-width places take 12 and a bit map takes 100.
All blocks' places come first (padded to 4 bytes), then the kept values, in order, as one vector in an inner codec.
Source: Elias, J. ACM 21(2), 1974; Fano, MIT Computation Structures Memo 61, 1971.

How the k-th largest is found: a block is folded into the largest of 8 (rows of 512). The k-th largest of those is no larger
than the k-th largest of all, so that a column whose largest is below it holds nothing that is kept; of the few elements that
are left, the k-th largest is found exactly. Both by halving the range of bit patterns, 31 times over a vector in cache.
"""

from typing import Any

import numpy as np

from isthmus.runtime.codecs.blocks import load
from isthmus.runtime.codecs.compiled import Room, compiled, part_of_kernel, room

__all__ = ["SPARSE_BLOCK", "index_bytes", "kept", "scatter_kept", "select", "work_room"]

Array = np.ndarray[Any, Any]
F, U, B, H = np.float32, np.uint32, np.uint8, np.uint16

SPARSE_BLOCK = 4096
_ROWS = 8
_ABS = U(0x7FFFFFFF)


def kept(elements: int, per_block: int) -> int:
    """Values kept of `elements`."""
    whole, rest = divmod(elements, SPARSE_BLOCK)
    return whole * per_block - (-per_block * rest // SPARSE_BLOCK)


def index_bytes(elements: int, per_block: int) -> int:
    """Bytes of all places, padded to 4."""
    whole, rest = divmod(elements, SPARSE_BLOCK)
    size = whole * _block_bytes(SPARSE_BLOCK, per_block)
    if rest:
        size += _block_bytes(rest, -(-per_block * rest // SPARSE_BLOCK))
    return -(-size // 4) * 4


def _block_bytes(count: int, keep: int) -> int:
    low = max(0, (count // keep).bit_length() - 1)
    return -(-keep * low // 8) - (-(keep + ((count - 1) >> low)) // 8)


def work_room() -> Room:
    """What the kernels of this file work in."""
    return room(3 * SPARSE_BLOCK + SPARSE_BLOCK // _ROWS, 3 * SPARSE_BLOCK)


@part_of_kernel
def _low_bits(count: int, keep: int) -> int:
    low, ratio = 0, count // keep
    while ratio > 1:
        ratio >>= 1
        low += 1
    return low


@part_of_kernel
def _kth_largest(found: Array, count: int, k: int) -> Any:
    """The largest t such that at least k of found[:count] are >= t."""
    low = U(0)
    for bit in range(30, -1, -1):
        t = U(low | U(U(1) << U(bit)))
        above = U(0)
        for i in range(count):
            above = U(above + U(found[i] >= t))
        if above >= U(k):
            low = t
    return low


@part_of_kernel
def _candidates(magnitudes: Array, count: int, keep: int, tops: Array, found: Array) -> tuple[int, Any]:
    """Magnitudes among which the `keep` largest are, into `found`; how many, and the least that matters."""
    width = SPARSE_BLOCK // _ROWS
    if keep > width:
        for i in range(count):
            found[i] = magnitudes[i]
        return count, U(0)
    for i in range(width):
        tops[i] = magnitudes[i]
    for row in range(1, _ROWS):
        part = magnitudes[row * width : row * width + width]
        for i in range(width):
            tops[i] = part[i] if part[i] > tops[i] else tops[i]
    least, size = _kth_largest(tops, width, keep), 0
    for i in range(width):
        if tops[i] >= least:
            for row in range(_ROWS):
                if magnitudes[row * width + i] >= least:
                    found[size] = magnitudes[row * width + i]
                    size += 1
    return size, least


@part_of_kernel
def _mark(magnitudes: Array, count: int, keep: int, tops: Array, found: Array, marks: Array) -> None:
    """marks[i] = 1 for the kept ones of magnitudes[:count], 0 for the others."""
    size, _ = _candidates(magnitudes, count, keep, tops, found)
    threshold = _kth_largest(found, size, keep)
    above = 0
    for i in range(size):
        above += found[i] > threshold
    for i in range(SPARSE_BLOCK):
        marks[i] = B(magnitudes[i] >= threshold)
    equal, spare = 0, keep - above
    for i in range(size):
        equal += found[i] == threshold
    if equal > spare or count < SPARSE_BLOCK:
        seen = 0
        for i in range(SPARSE_BLOCK):
            if magnitudes[i] == threshold:
                seen += 1
                marks[i] = B(i < count and seen <= spare)


@part_of_kernel
def _write_places(places: Array, keep: int, count: int, out: Array, at: int) -> int:
    """Elias-Fano; where the next block begins."""
    low = _low_bits(count, keep)
    high_at = at + (keep * low + 7) // 8
    end = high_at + (keep + ((count - 1) >> low) + 7) // 8
    for i in range(at, end):
        out[i] = B(0)
    gathered, filled, to = 0, 0, at
    for j in range(keep):
        place = np.int64(places[j])
        gathered |= (place & ((1 << low) - 1)) << filled
        filled += low
        while filled >= 8:
            out[to] = B(gathered & 255)
            gathered >>= 8
            filled -= 8
            to += 1
        bit = (place >> low) + j
        out[high_at + (bit >> 3)] = B(out[high_at + (bit >> 3)] | B(1 << (bit & 7)))
    if filled:
        out[to] = B(gathered & 255)
    return end


@part_of_kernel
def _read_places(data: Array, at: int, keep: int, count: int, places: Array) -> int:
    """What `_write_places` wrote; bad data gives wrong places within the block, never others. Where the next block begins."""
    low = _low_bits(count, keep)
    high_at = at + (keep * low + 7) // 8
    end = high_at + (keep + ((count - 1) >> low) + 7) // 8
    gathered, filled, source, j = 0, 0, at, 0
    for byte in range(high_at, end):
        value, base = np.int64(data[byte]), (byte - high_at) * 8
        while value and j < keep:
            bit = 0
            while not (value >> bit) & 1:
                bit += 1
            value &= value - 1
            while filled < low:
                gathered |= np.int64(data[source]) << filled
                source += 1
                filled += 8
            place = ((base + bit - j) << low) | (gathered & ((1 << low) - 1))
            gathered >>= low
            filled -= low
            places[j] = H(min(max(place, 0), count - 1))
            j += 1
    for rest in range(j, keep):
        places[rest] = H(0)
    return end


@part_of_kernel
def _take(work: Array, marks: Array, places: Array, chosen: Array, filled: int) -> bool:
    """Marked elements into `places` and `chosen`[filled:], leaving zeros; whether all of them are finite."""
    size, finite, marked = 0, True, marks.view(np.uint64)
    for group in range(SPARSE_BLOCK // 8):
        if marked[group]:
            for i in range(group * 8, group * 8 + 8):
                if marks[i]:
                    places[size] = H(i)
                    chosen[filled + size] = work[i]
                    finite = finite and np.isfinite(work[i])
                    work[i] = F(0.0)
                    size += 1
    return finite


@compiled
def select(data: tuple[Array, Array, Array, Array], feedback: bool, per_block: int, space: Room) -> None:
    """Find the kept elements.

    Args:
        data: values: float32 (n,). residual: float32 (n,); (0,) without `feedback`. indices: uint8 (index_bytes(n),), the coded
            places, written. chosen: float32 (kept(n),), the kept values in order, written.
        feedback: The residual is added before, and becomes the sum with zeros at the kept places (all zero in a block with
            an infinity or a NaN).
        per_block: Elements kept of a whole block.
        space: Of `work_room`.
    """
    values, residual, indices, chosen = data
    floats, words, small = space
    work, work_bits, found, magnitudes = floats[:4096], words[:4096], words[4096:8192], words[8192:12288]
    tops, marks, places, at, filled = words[12288:], small[:4096], small[4096:].view(H), 0, 0
    for first in range(0, values.size, SPARSE_BLOCK):
        count = load(values, residual, feedback, first, work)
        keep = -(-per_block * count // SPARSE_BLOCK)
        for i in range(SPARSE_BLOCK):
            magnitudes[i] = U(work_bits[i] & _ABS)
        _mark(magnitudes, count, keep, tops, found, marks)
        finite = _take(work, marks, places, chosen, filled)
        at = _write_places(places, keep, count, indices, at)
        filled += keep
        if feedback:
            owed = residual[first : first + count]
            for i in range(count):
                owed[i] = work[i] if finite else F(0.0)
    indices[at:] = B(0)


@compiled
def scatter_kept(data: tuple[Array, Array], per_block: int, clear: bool, out: Array, space: Room) -> None:
    """Write the chosen (`data`: coded places, values) into `out` (float32 (n,)), with zeros elsewhere where `clear`."""
    indices, chosen = data
    places, at, filled = space[2][4096:].view(H), 0, 0
    for first in range(0, out.size, SPARSE_BLOCK):
        count = min(SPARSE_BLOCK, out.size - first)
        keep = -(-per_block * count // SPARSE_BLOCK)
        at = _read_places(indices, at, keep, count, places)
        if clear:
            out[first : first + count] = F(0.0)
        for j in range(keep):
            out[first + np.int64(places[j])] = chosen[filled + j]
        filled += keep
