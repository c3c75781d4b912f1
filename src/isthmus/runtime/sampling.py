"""Which samples each rank reads at each step: a pure function of seed, step and rank, over all regions."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from isthmus.errors import InputError

__all__ = ["ShardedBatches"]


class ShardedBatches:
    """Batches of a map-style dataset, dealt to `ranks` ranks without overlap within an epoch.

    Each epoch is one permutation of the dataset, drawn from `seed` and the epoch's number; step s of the epoch takes the
    next `ranks * batch_size` samples and rank r the r-th part of them. What does not fill a whole step is left out.

    Raises:
        InputError: The dataset has no length, or fewer samples than one step of all ranks takes.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        rank: int,
        ranks: int,
        seed: int,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        if not hasattr(dataset, "__len__"):
            raise InputError("dataset", f"{type(dataset).__name__} has no length", "give a map-style dataset")
        self.dataset, self.batch_size, self.rank, self.ranks, self.seed = (
            dataset,
            batch_size,
            rank,
            ranks,
            seed,
        )
        self.collate = collate
        self.length: int = len(dataset)  # type: ignore[arg-type]
        self.steps_per_epoch = self.length // (batch_size * ranks)
        if self.steps_per_epoch == 0:
            raise InputError(
                "dataset",
                f"has {self.length} samples, one step of {ranks} ranks takes {batch_size * ranks}",
                "lower batch_size or give more data",
            )
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def indices(self, step: int, part: tuple[int, int] | None = None) -> list[int]:
        """The samples this rank reads at training step `step`, counted from 0.

        `part`: (first, how many) of the step's samples that are this rank's; None: the rank-th of `ranks` equal parts.
        """
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._epoch, self._order = epoch, torch.randperm(self.length, generator=generator)
        first, count = part or (self.rank * self.batch_size, self.batch_size)
        start = within * self.ranks * self.batch_size + first
        return self._order[start : start + count].tolist()

    def batch(self, step: int, part: tuple[int, int] | None = None) -> Any:
        """The collated samples of `indices(step, part)`."""
        return self.collate([self.dataset[index] for index in self.indices(step, part)])
