"""How this room's kernels are compiled: numba, to machine code that gives the same bits on every machine.

Float32 operations stay as they are written: no fast-math, hence no reordering, and no fused multiply-add, since numba marks
nothing for contraction (a test looks for it in the parts that multiply and add, on x86-64 with FMA). A CPU of another kind
gets other instructions and, as far as that holds there too, the same results. A kernel is compiled at its first call (some
seconds) and kept on disk, beside this file or in the user's cache, by CPU kind; where neither can be written, every process
compiles anew. Kernels release the GIL. They allocate nothing and are given a `room` to work in: numba's own management of
memory, an atomic count of references at every slice, is left out.
numba keeps a kernel for as long as the file it stands in is unchanged; what it calls may stand in other files of this folder, so
here it is kept for as long as all of them are.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

__all__ = ["Room", "compiled", "part_of_kernel", "room"]

F = TypeVar("F", bound=Callable[..., Any])
Room = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False, "boundscheck": False, "_nrt": False}


def compiled(function: F) -> F:
    """`function` as a kernel; its arguments are contiguous numpy arrays and scalars, of the same types in every call."""
    try:
        kernel: Any = numba.njit(**_OPTIONS, cache=True)(function)
    except RuntimeError:  # numba found no place to keep it
        return cast(F, numba.njit(**_OPTIONS)(function))
    kept = kernel._cache._cache_file  # numba has no public way to say what a kernel depends on
    assert hasattr(kept, "_source_stamp"), "this numba keeps its kernels otherwise"
    kept._source_stamp = _sources()
    return cast(F, kernel)


def part_of_kernel(function: F) -> F:
    """`function` for kernels of this folder to call."""
    return cast(F, numba.njit(**_OPTIONS)(function))


@cache
def _sources() -> str:
    """A digest of every file of this folder."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def room(words: int, narrow: int) -> Room:
    """Space for one call of a kernel: `words` as float32, the same as uint32, and `narrow` bytes."""
    floats = np.empty(words, np.float32)
    return floats, floats.view(np.uint32), np.empty(narrow, np.uint8)
