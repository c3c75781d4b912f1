"""Fingerprints of tensors, and the proof that all replicas hold the same bits."""

from collections.abc import Iterable

import torch
import xxhash

__all__ = ["ReplicaMismatchError", "bytes_of", "fingerprint", "require_equal"]


class ReplicaMismatchError(RuntimeError):
    """Members that must hold equal bits do not. Training on would silently train several models."""


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, of any dtype, without a copy."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]


def fingerprint(tensors: Iterable[torch.Tensor]) -> int:
    """xxh3-64 over the bytes of the tensors in order, as an unsigned 64-bit integer.

    Bits, not values: 0.0 and -0.0 differ. Tensors elsewhere than on the CPU are copied.
    """
    digest = xxhash.xxh3_64()
    for tensor in tensors:
        if tensor.numel():
            digest.update(bytes_of(tensor.detach().cpu().contiguous()))
    return digest.intdigest()


def require_equal(found: dict[str, int], what: str) -> None:
    """Raise `ReplicaMismatchError` with every member's fingerprint unless all are equal."""
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{name} {value:016x}" for name, value in found.items())
        raise ReplicaMismatchError(f"replicas differ in {what}: {listed}")
