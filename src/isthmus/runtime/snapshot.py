"""Training state, copied and put back: off blocks of a measurement must leave no trace."""

import copy
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy
import torch
from torch import nn

__all__ = ["Snapshot", "Stateful", "restore", "take"]


class Stateful(Protocol):
    """Anything with the pair of methods that torch objects have: a scheduler, a gradient scaler, a sampler."""

    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of a model's parameters and buffers, the states of its optimizer and others, and of the global random generators.

    Attributes:
        tensors: Parameters and buffers.
        states: Of the optimizer and others, in order.
        generator: Torch's CPU generator.
        device_generator: The GPU's, where one is in use.
        python_random, numpy_random: States of `random` and of `numpy.random`, which data loading may draw from.
    """

    tensors: list[torch.Tensor]
    states: list[dict[str, Any]]
    generator: torch.Tensor
    device_generator: torch.Tensor | None
    python_random: tuple[Any, ...]
    numpy_random: dict[str, Any]


def take(model: nn.Module, stateful: Iterable[Stateful]) -> Snapshot:
    """Copy everything that a training step may change."""
    return Snapshot(
        tensors=[tensor.detach().clone() for tensor in _tensors(model)],
        states=[copy.deepcopy(item.state_dict()) for item in stateful],
        generator=torch.get_rng_state(),
        device_generator=torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        python_random=random.getstate(),
        numpy_random=numpy.random.get_state(legacy=False),  # pyright: ignore[reportArgumentType]
    )


def restore(snapshot: Snapshot, model: nn.Module, stateful: Iterable[Stateful]) -> None:
    """Put `snapshot` back, bit for bit, into the same objects it was taken of."""
    with torch.no_grad():
        for tensor, kept in zip(_tensors(model), snapshot.tensors, strict=True):
            tensor.copy_(kept)
    for item, state in zip(stateful, snapshot.states, strict=True):
        item.load_state_dict(copy.deepcopy(state))
    torch.set_rng_state(snapshot.generator)
    if snapshot.device_generator is not None:
        torch.cuda.set_rng_state(snapshot.device_generator)
    random.setstate(snapshot.python_random)
    numpy.random.set_state(snapshot.numpy_random)


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
