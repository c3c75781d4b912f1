"""Top-k: the k largest magnitudes of every block of 4,096 elements, their places coded in nearly as few bits as there can be.

k = ceil(density x 4096); a last, shorter block of m keeps ceil(k m / 4096). Equal magnitudes: the first ones are kept.
Places are coded after Elias and Fano: with l = max(0, floor(log2(m / k))), the low l bits of each place, packed, then a bit
string in which bit (place >> l) + j is set for the j-th place: k l + k + ((m - 1) >> l) bits, each of the two in whole
bytes. The size follows from m and k alone, so that the receiver knows it before the data; at k = 41 of 4096 it is 8.6 bits a
place, where the logarithm of the number of choices is 7.98, fixed-width places take 12 and a bit map takes 100.
All blocks' places come first (padded to 4 bytes), then the kept values, in order, as one vector in an inner codec.
Source: Elias, J. ACM 21(2), 1974; Fano, MIT Computation Structures Memo 61, 1971.

How the kept ones are found: one pass sets a bit for each element that reaches a guess, a little below the k-th largest of the
block before. Where that gives k or more, but not many more, the k-th largest is found among those alone, by halving the range
of bit patterns until exactly k reach the middle. Where it does not (the first block, or unlike neighbours) the block is
folded into the largest of 8 (rows of 512): the k-th largest of these is no larger than the k-th largest of all, and takes the
place of the guess. What is kept does not depend on the guess.
"""

from typing import Any

import numpy as np

from isthmus.runtime.codecs import vectors as v
from isthmus.runtime.codecs.blocks import INFINITE, load
from isthmus.runtime.codecs.compiled import Room, compiled, part_of_kernel, room

__all__ = ["SPARSE_BLOCK", "index_bytes", "kept", "scatter_kept", "select", "work_room"]

Array = np.ndarray[Any, Any]
F, U, W, B, H = np.float32, np.uint32, np.uint64, np.uint8, np.uint16

SPARSE_BLOCK = 4096
_ROWS = 8
_WIDTH = SPARSE_BLOCK // _ROWS
_GROUPS = SPARSE_BLOCK // 8
_STEP_DOWN = 1 << 20
"""Of bit patterns, a sixteenth to an eighth of the value: for normal numbers 1.5 to 2 times as many reach that."""
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
    return room(2 * SPARSE_BLOCK + 8 + _WIDTH, _GROUPS + 2 * (SPARSE_BLOCK + 1))


@part_of_kernel
def _low_bits(count: int, keep: int) -> int:
    low, ratio = 0, count // keep
    while ratio > 1:
        ratio >>= 1
        low += 1
    return low


@part_of_kernel
def _mark(source: Array, least: Any, marks: Array) -> int:
    """One bit an element of a whole block: whether its magnitude reaches `least`; how many do."""
    magnitude, level = v.spread(_ABS), v.spread(U(least))
    for group in range(_GROUPS):
        marks[group] = v.reaching(v.both(v.as_bits(v.floats_at(source, group * 8)), magnitude), level)
    return _marked(marks)


@part_of_kernel
def _mark_sum(owed: Array, values: Array, least: Any, marks: Array) -> int:
    """`_mark` of owed + values, which replaces `owed`."""
    magnitude, level = v.spread(_ABS), v.spread(U(least))
    for group in range(_GROUPS):
        total = v.plus(v.floats_at(owed, group * 8), v.floats_at(values, group * 8))
        v.put_floats(owed, group * 8, total)
        marks[group] = v.reaching(v.both(v.as_bits(total), magnitude), level)
    return _marked(marks)


@part_of_kernel
def _marked(marks: Array) -> Any:
    count = W(0)
    for word in marks.view(W):
        count = W(count + v.ones(word))
    return np.int64(count)


@part_of_kernel
def _reach(found: Array, size: int, least: Any) -> Any:
    """How many of found[:size], a multiple of 8, are at least `least`."""
    count, level = W(0), v.spread(U(least))
    for at in range(0, size, 8):
        count = W(count + W(v.ones(v.reaching(v.words_at(found, at), level))))
    return np.int64(count)


@part_of_kernel
def _bound(found: Array, size: int, k: int, least: Any) -> tuple[Any, int]:
    """A word t of which at most k of found[:size] are larger, and at least k are as large or larger; and how many are larger.

    At least k of them reach `least`. found[size:] is zero up to a multiple of 8.
    """
    top, ends = U(0), (size + 7) & -8
    for i in range(size):
        top = max(top, found[i])
    bit, low = 31, U(least)
    while bit >= 0 and not (U(top ^ low) >> U(bit)) & U(1):
        bit -= 1
    low = U((low >> U(bit + 1)) << U(bit + 1)) if bit >= 0 else low
    while bit >= 0:
        middle = U(low | U(U(1) << U(bit)))
        above = _reach(found, ends, middle)
        if above == k:
            return U(middle - U(1)), k
        if above > k:
            low = middle
        bit -= 1
    return low, _reach(found, ends, U(low + U(1)))


@part_of_kernel
def _folded(source: Array, keep: int, tops: Array) -> Any:
    """A word that at least `keep` magnitudes of the block reach, and not many more where they are spread evenly."""
    if keep > _WIDTH:
        return U(0)
    magnitude = v.spread(_ABS)
    for at in range(0, _WIDTH, 8):
        found = v.both(v.as_bits(v.floats_at(source, at)), magnitude)
        for row in range(1, _ROWS):
            found = v.larger(found, v.both(v.as_bits(v.floats_at(source, row * _WIDTH + at)), magnitude))
        v.put_words(tops, at, found)
    bound, above = _bound(tops, _WIDTH, keep, U(0))
    return U(bound + U(1)) if above == keep else bound


@part_of_kernel
def _gather(source_bits: Array, marks: Array, places: Array, found: Array) -> int:
    """Places and magnitudes of the marked elements, in order, and 8 zeros; how many."""
    size, words = 0, marks.view(W)
    for word in range(SPARSE_BLOCK // 64):
        left = words[word]
        while left:
            place = word * 64 + np.int64(v.lowest_one(left))
            places[size] = H(place)
            found[size] = U(source_bits[place] & _ABS)
            left = W(left & W(left - W(1)))
            size += 1
    for i in range(size, size + 8):
        found[i] = U(0)
    return size


@part_of_kernel
def _choose(found: Array, size: int, keep: int, least: Any, places: Array) -> tuple[Any, bool]:
    """The `keep` largest of found[:size] (of equal ones the first): their places to the front of `places`, in order.

    Returns:
        The bound between them and the others, and whether all are finite.
    """
    bound, above = _bound(found, size, keep, least)
    taken, spare, finite = 0, keep - above, True
    for i in range(size):
        equal = found[i] == bound and spare > 0
        finite = finite and found[i] < INFINITE
        places[taken] = places[i]
        taken += np.int64(found[i] > bound or equal)
        spare -= np.int64(equal)
    return bound, finite


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
            bit = np.int64(v.lowest_one(W(value)))
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
    work, found, tops = floats[:4096], words[4096 : 4096 + 4104], words[4096 + 4104 :]
    marks, places, at, filled, guess = small[:512], small[512:].view(H), 0, 0, U(0)
    for first in range(0, values.size, SPARSE_BLOCK):
        count = min(SPARSE_BLOCK, values.size - first)
        keep = -(-per_block * count // SPARSE_BLOCK)
        if count < SPARSE_BLOCK:
            load(values, residual, feedback, first, work)
            source = work
            reached = _mark(source, guess, marks)
        elif feedback:
            source = residual[first : first + SPARSE_BLOCK]
            reached = _mark_sum(source, values[first : first + SPARSE_BLOCK], guess, marks)
        else:
            source = values[first : first + SPARSE_BLOCK]
            reached = _mark(source, guess, marks)
        if not keep <= reached <= 4 * keep + 64:
            guess = _folded(source, keep, tops)
            _mark(source, guess, marks)
        size = _gather(source.view(U), marks, places, found)
        bound, finite = _choose(found, size, keep, guess, places)
        guess = U(max(np.int64(bound) - _STEP_DOWN, 0))
        for j in range(keep):
            chosen[filled + j] = source[np.int64(places[j])]
        at = _write_places(places, keep, count, indices, at)
        filled += keep
        if feedback:
            for j in range(keep):
                source[np.int64(places[j])] = F(0.0)
            owed = residual[first : first + count]
            if count < SPARSE_BLOCK or not finite:
                for i in range(count):
                    owed[i] = source[i] if finite else F(0.0)
    indices[at:] = B(0)


@compiled
def scatter_kept(data: tuple[Array, Array], per_block: int, clear: bool, out: Array, space: Room) -> None:
    """Write the chosen (`data`: coded places, values) into `out` (float32 (n,)), with zeros elsewhere where `clear`."""
    indices, chosen = data
    places, at, filled = space[2][512:].view(H), 0, 0
    for first in range(0, out.size, SPARSE_BLOCK):
        count = min(SPARSE_BLOCK, out.size - first)
        keep = -(-per_block * count // SPARSE_BLOCK)
        at = _read_places(indices, at, keep, count, places)
        if clear:
            out[first : first + count] = F(0.0)
        for j in range(keep):
            out[first + np.int64(places[j])] = chosen[filled + j]
        filled += keep
