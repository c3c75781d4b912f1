"""One PowerSGD mean of one shard over a rail, in the steps of an `Exchange`: two small means, one after the other.

The second message depends on the first one's mean, so a mean takes two round trips where other codecs take one. What is under
way together shares them: the reducer takes every step of all before the next step of any.
"""

from dataclasses import replace

import torch

from isthmus.runtime.codecs.lowrank import LowRank, Matrix, Reduction
from isthmus.runtime.collectives.exchange import Exchange, ExchangeOptions
from isthmus.runtime.wan.rail import Rail

__all__ = ["LowRankExchange"]

_SECOND = 2 << 16  # phases 2 and 3 of the tag


class LowRankExchange:
    """Create (sends P), `reduce`, `turn` (sends Q), `add_up`, `finish`, in this order; errors as of `Exchange`."""

    def __init__(
        self,
        link: tuple[Rail, int, int],
        given: torch.Tensor,
        options: ExchangeOptions,
        out: torch.Tensor,
        coding: tuple[LowRank, tuple[Matrix, ...]],
    ) -> None:
        """`link`: rail, its number, tag of phase 0. `coding`: the directions kept, and matrices in the numbering of `options`.

        `options` names no weights: regions count by what they give.
        """
        self._rail, number, self._tag = link
        if options.weights is not None or options.scale is None:
            raise TypeError("PowerSGD takes a plain sum with a scale: it is linear in the sum of the regions only")
        self._plain = replace(options, codec="none", feedback=None, shares=None)
        self._out, self._part = out, 1.0 / (options.scale * self._rail.regions)
        residual = None if options.feedback is None else options.feedback.residual(options.first, given.numel())
        self._reduction = Reduction(coding[0], number, given, options.first, coding[1], residual)
        self._under_way = Exchange(self._rail, self._reduction.message, self._tag, self._plain)
        self._under_way.start()

    def reduce(self) -> None:
        """See `Exchange.reduce`, of P."""
        self._under_way.reduce()

    def turn(self) -> None:
        """Wait for P's mean and send Q."""
        self._under_way.finish()
        self._reduction.turn()
        self._under_way = Exchange(self._rail, self._reduction.message, self._tag + _SECOND, self._plain)
        self._under_way.start()

    def add_up(self) -> None:
        """See `Exchange.reduce`, of Q."""
        self._under_way.reduce()

    def finish(self) -> None:
        """Wait for Q's mean and write the result."""
        self._under_way.finish()
        self._reduction.finish(self._out, self._part)
