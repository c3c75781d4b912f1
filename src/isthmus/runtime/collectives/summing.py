"""Sums of the regions' vectors: the same bits on every machine, and little memory traffic."""

from collections.abc import Sequence

import numpy as np
import torch

__all__ = ["weighted_sum"]

_BLOCK = 1 << 15  # two blocks and their sum are still in a core's own cache when it is scaled


def weighted_sum(vectors: Sequence[torch.Tensor], weights: Sequence[float], scale: float, out: torch.Tensor) -> None:
    """sum(w x) * scale into `out`, which may be one of `vectors`: float32 of shape (n,), on the CPU.

    Products and sums are separate roundings in the order given (no fused multiply-add), so unlike machines agree.
    """
    pairs = zip(vectors, weights, strict=True)
    terms = [(vector if weight == 1.0 else torch.mul(vector, weight)).detach().numpy() for vector, weight in pairs]
    sums, factor = out.detach().numpy(), np.float32(scale)
    if len(terms) == 1:
        np.multiply(terms[0], factor, out=sums)
        return
    # NumPy's calls cost a tenth of torch's.
    first, second, *rest = terms
    if not rest and scale == 1.0:
        np.add(first, second, out=sums)
        return
    scratch = np.empty(min(_BLOCK, sums.size), dtype=np.float32)
    for start in range(0, sums.size, _BLOCK):
        stop = min(start + _BLOCK, sums.size)
        block = np.add(first[start:stop], second[start:stop], out=scratch[: stop - start])
        for term in rest:
            np.add(block, term[start:stop], out=block)
        np.multiply(block, factor, out=sums[start:stop])
