"""Which parameters are exchanged together: the cut into fragments, and error feedback that does not depend on the cut.

Elements have two numberings. The canonical one lays all parameters end to end in the model's order; what is owed and the
outer momentum are kept in it, so they survive another cut or another number of ranks. A fragment's own one lays its
parameters end to end and pads them to whole shards; rounds work in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from isthmus.errors import InputError
from isthmus.runtime.codecs.feedback import ErrorFeedback

__all__ = ["Fragment", "FragmentDraft", "cut"]


@dataclass(frozen=True, slots=True)
class Fragment:
    """Parameters that are exchanged together.

    Attributes:
        number: Of the fragment.
        members: Numbers of its parameters, ascending.
        sizes: Their elements.
        starts: Their first elements in the canonical numbering.
        shards: Into how many equal parts the fragment is divided, one a rail.
    """

    number: int
    members: tuple[int, ...]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    shards: int

    @property
    def elements(self) -> int:
        """With the padding behind: a multiple of the shards."""
        return -(-sum(self.sizes) // self.shards) * self.shards

    @property
    def shard_elements(self) -> int:
        """Of each shard."""
        return self.elements // self.shards

    def part(self, flat: torch.Tensor, shard: int) -> torch.Tensor:
        """The view of shard number `shard` in `flat`, shape (shard_elements,)."""
        return flat[shard * self.shard_elements : (shard + 1) * self.shard_elements]

    def read(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A copy on the host of the fragment's parameters out of all `tensors`; shape (elements,), zeros behind."""
        with torch.no_grad():
            flat = torch.cat([tensors[member].reshape(-1) for member in self.members]).cpu()
        return torch.nn.functional.pad(flat, (0, self.elements - flat.numel()))

    def write(self, tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
        """Put `flat`, shape (elements,), into the fragment's parameters among all `tensors`."""
        offset = 0
        with torch.no_grad():
            for member, size in zip(self.members, self.sizes, strict=True):
                tensors[member].copy_(flat[offset : offset + size].view_as(tensors[member]))
                offset += size

    def pieces(self, start: int, elements: int) -> Iterator[tuple[int, int, int]]:
        """Where a range of this fragment lies: (offset in the range, first canonical element, elements); padding nowhere."""
        offset = 0
        for first, size in zip(self.starts, self.sizes, strict=True):
            low, high = max(start, offset), min(start + elements, offset + size)
            if low < high:
                yield low - start, first + low - offset, high - low
            offset += size


def cut(sizes: Sequence[int], fragments: int, shards: int) -> tuple[Fragment, ...]:
    """Cut parameters of `sizes` into `fragments`, strided over the layers and even in size.

    Of every `fragments` parameters in a row each goes to another fragment, so that every fragment has a part of every
    layer; the larger ones go to the fragments that hold least so far. Parameters are never cut.

    Raises:
        InputError: There are fewer parameters than fragments.
    """
    if len(sizes) < fragments:
        raise InputError(
            "strategy.fragments",
            f"is {fragments}, but the model has {len(sizes)} parameters",
            "a fragment holds whole parameters",
        )
    held: list[list[int]] = [[] for _ in range(fragments)]
    total = [0] * fragments
    for first in range(0, len(sizes), fragments):
        row = sorted(range(first, min(first + fragments, len(sizes))), key=lambda number: -sizes[number])
        lightest = sorted(range(fragments), key=lambda fragment: total[fragment])
        for number, fragment in zip(row, lightest, strict=False):
            held[fragment].append(number)
            total[fragment] += sizes[number]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return tuple(
        Fragment(
            number,
            tuple(members := sorted(held[number])),
            tuple(sizes[member] for member in members),
            tuple(starts[member] for member in members),
            shards,
        )
        for number in range(fragments)
    )


class FragmentDraft:
    """A `Draft` of residuals for exchanges that number the elements as one fragment does."""

    def __init__(self, feedback: ErrorFeedback, fragment: Fragment) -> None:
        self._feedback, self._fragment = feedback, fragment
        self._held: dict[tuple[int, int], torch.Tensor] = {}

    def residual(self, start: int, elements: int) -> torch.Tensor:
        """A copy of what is owed of that range of the fragment, to be changed in place; padding owes nothing."""
        key = (start, elements)
        if key not in self._held:
            fresh = torch.zeros(elements)
            for offset, first, count in self._fragment.pieces(start, elements):
                fresh[offset : offset + count] = self._feedback.residual(first, count)
            self._held[key] = fresh
        return self._held[key]

    def commit(self) -> None:
        """The attempt counts."""
        for (start, elements), held in self._held.items():
            for offset, first, count in self._fragment.pieces(start, elements):
                self._feedback.residual(first, count).copy_(held[offset : offset + count])
        self._held.clear()
