"""Cut a model given as a sequence of blocks into chunks of consecutive blocks: one or several a region.

A model is such a sequence when it is an `nn.Sequential`, or has a method `pipeline_blocks()` that returns modules whose
composition is its forward pass. Each block takes one tensor and returns one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import nn

from isthmus.errors import InputError

__all__ = ["Split", "balance", "block_weight", "split_model"]

HINT = "give an nn.Sequential, or a model with a method pipeline_blocks() that returns modules applied one after the other"


@dataclass(frozen=True, slots=True)
class Split:
    """A model in chunks; chunk c is held by region c mod R.

    Attributes:
        chunks: One module a chunk, each a sequence of consecutive blocks.
        cut: First block of each chunk but the first.
        weights: Of every block, as `block_weight` says.
    """

    chunks: tuple[nn.Sequential, ...]
    cut: tuple[int, ...]
    weights: tuple[int, ...]


def split_model(model: nn.Module, chunks: int, cut: Sequence[int] | None = None) -> Split:
    """Cut `model` into `chunks` parts, balanced by `block_weight`, or where `cut` says.

    Args:
        model: A sequence of blocks, see above.
        chunks: How many parts; at least 1.
        cut: Number of the first block of each part but the first, rising.

    Raises:
        InputError: The model is no sequence of blocks, has too few of them, a parameter of it is outside of them or is
            used in two parts (tied weights), or `cut` is no such list.
    """
    blocks = _blocks(model)
    _refuse_left_out(model, blocks)
    weights = tuple(block_weight(block) for block in blocks)
    if len(blocks) < chunks:
        raise InputError(
            "model",
            f"{type(model).__name__} has {len(blocks)} blocks, the pipeline has {chunks} stages",
            "plan fewer virtual_stages, or give the model in finer blocks",
        )
    found = balance(weights, chunks) if cut is None else _checked(cut, len(blocks), chunks)
    bounds = [0, *found, len(blocks)]
    _refuse_tied(model, blocks, bounds)
    parts = tuple(nn.Sequential(*blocks[start:stop]) for start, stop in pairwise(bounds))
    return Split(parts, found, weights)


def block_weight(block: nn.Module) -> int:
    """What a block costs to compute, up to a factor: its parameters that enter matrix products, and one.

    A token costs two FLOPs forward and four backward for each of them (Kaplan et al., arXiv 2001.08361 section 2.1). A
    table of embeddings is looked up, so it counts nothing, and vectors (norms, biases) next to nothing. Leaves out:
    attention's products of activations, and that a convolution uses its weights at many places; give a cut for those.
    """
    tables = {id(module.weight) for module in block.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
    return 1 + sum(held.numel() for held in block.parameters() if held.dim() > 1 and id(held) not in tables)


def balance(weights: Sequence[int], parts: int) -> tuple[int, ...]:
    """Cut `weights` into `parts` runs of at least one, the heaviest as light as can be; the first item of each but the first.

    Among equally good cuts the one whose first runs are longest. By dynamic programming, exact.
    """
    sums = [0, *accumulate(weights)]
    count = len(weights)
    best = [sums[stop] for stop in range(count + 1)]
    choices: list[list[int]] = []
    for part in range(2, parts + 1):
        row, chosen = [0] * (count + 1), [0] * (count + 1)
        for stop in range(part, count + 1):
            # Later starts first: max() and min() keep the first of equals.
            start = min(range(stop - 1, part - 2, -1), key=lambda at, end=stop: max(best[at], sums[end] - sums[at]))
            row[stop], chosen[stop] = max(best[start], sums[stop] - sums[start]), start
        best, choices = row, [*choices, chosen]
    cut: list[int] = []
    stop = count
    for chosen in reversed(choices):
        stop = chosen[stop]
        cut.append(stop)
    return tuple(reversed(cut))


def _blocks(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, nn.Sequential):
        return list(model)
    offered = getattr(model, "pipeline_blocks", None)
    if not callable(offered):
        raise InputError("model", f"{type(model).__name__} is not a sequence of blocks, which a pipeline needs", HINT)
    found = offered()
    if not isinstance(found, Sequence) or not all(isinstance(block, nn.Module) for block in found):
        raise InputError("model", f"{type(model).__name__}.pipeline_blocks() did not return a list of modules", HINT)
    return list(found)


def _checked(cut: Sequence[int], blocks: int, chunks: int) -> tuple[int, ...]:
    bounds = [0, *cut, blocks]
    if len(cut) != chunks - 1 or any(before >= after for before, after in pairwise(bounds)):
        raise InputError(
            "cut", f"{list(cut)} does not cut {blocks} blocks into {chunks} parts",
            f"give {chunks - 1} rising numbers of 1 to {blocks - 1}: the first block of each part but the first",
        )
    return tuple(cut)


def _refuse_left_out(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    inside = {id(held) for block in blocks for held in block.parameters()}
    for name, held in model.named_parameters():
        if id(held) not in inside:
            raise InputError("model", f"parameter {name!r} belongs to no block of {type(model).__name__}.pipeline_blocks()", HINT)


def _refuse_tied(model: nn.Module, blocks: Sequence[nn.Module], bounds: Sequence[int]) -> None:
    """A weight of two stages would be two weights that drift apart."""
    names = {id(held): name for name, held in model.named_parameters()}
    owner: dict[int, int] = {}
    for part, (start, stop) in enumerate(pairwise(bounds)):
        for held in _parameters(blocks[start:stop]):
            first = owner.setdefault(id(held), part)
            if first != part:
                raise InputError(
                    "model",
                    f"parameter {names[id(held)]!r} is used in stages {first} and {part} of the pipeline (tied weights)",
                    "untie it, or cut so that all its uses lie in one stage",
                )


def _parameters(blocks: Sequence[nn.Module]) -> list[torch.nn.Parameter]:
    return [held for block in blocks for held in block.parameters()]
