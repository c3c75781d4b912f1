"""What the kernels have in common: blocks, and how they come from memory with what is owed and go back.

What makes numba's loops vector code, and hence the odd spelling: integers are cast after every operation (it widens them to
64 bits); arrays are sliced before a loop and indexed by the loop's own variable (other indices are checked for being
negative); loops over whole blocks have a constant length, but those over 32 a length that the compiler cannot know, or it
unrolls them before it looks for vectors; shifts are constant; a loop has few arrays, since it must check that what it writes
overlaps none of the others. Hence several loops over the same block rather than one that does all. Where that is not enough
(levels.py) the vectors are written out, with vectors.py.
The last block is worked on as a whole one with zeros behind, and only its own part is stored.
"""

from typing import Any

import numpy as np

from isthmus.runtime.codecs.compiled import part_of_kernel

__all__ = ["BLOCK", "INFINITE", "MAGNITUDE", "SCALE_MIN", "SUB", "load", "store"]

Array = np.ndarray[Any, Any]
F, U = np.float32, np.uint32

BLOCK = 256
SUB = 32
MAGNITUDE = U(0x7FFFFFFF)
INFINITE = U(0x7F800000)
SCALE_MIN = F(1e-34)
"""2^14 over it is a float32 still."""


@part_of_kernel
def load(values: Array, residual: Array, feedback: bool, first: int, work: Array) -> int:
    """Values (plus residual) from `first` on into `work`, zeros behind; how many."""
    count = min(work.size, values.size - first)
    source = values[first : first + count]
    if feedback:
        owed = residual[first : first + count]
        for i in range(count):
            work[i] = owed[i] + source[i]
    else:
        for i in range(count):
            work[i] = source[i]
    for i in range(count, work.size):
        work[np.uint64(i)] = F(0.0)
    return count


@part_of_kernel
def store(work: Array, residual: Array, first: int, count: int) -> None:
    """The first `count` of `work` into the residual, from `first` on."""
    owed = residual[first : first + count]
    for i in range(count):
        owed[i] = work[i]
