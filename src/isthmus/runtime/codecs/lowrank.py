"""PowerSGD: the mean over regions of a matrix, in rank r. Not a code of one vector, but a reduction of its own.

Of a matrix M (m x n, this region's, with what it owes from earlier): P = mean of M Q; orthonormal columns P'; Q = mean of
M^T P'; result P' Q^T, the same on all members; M - P' Q^T is owed. Q is kept for the next round (warm start). Two small
means are exchanged, of r m and r n floats, by whatever the caller gives (`mean`): plain, or through another codec.

It works on a flat range of elements, as rails do: of every matrix the whole rows within the range are a matrix of their own;
broken rows, vectors, and matrices for which r (m + n) is not less than m n are exchanged as they are, with P.

After `mean` P and Q are bit-identical on all members, and what each then computes alone (Gram-Schmidt, P' Q^T) is compiled
with a fixed order of summation, so the results are too; torch's matrix product is used only for what is then exchanged.
Limits: the mean must be plain (equal weights), since P' Q^T is linear only in M; the error is whatever of M lies outside
the r directions, bounded by |M| and owed, not by a step.
Source: Vogels, Karimireddy & Jaggi, NeurIPS 2019 (PowerSGD).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isthmus.runtime.codecs.compiled import compiled

__all__ = ["LowRank", "Matrix", "matrices_within"]

F, D = np.float32, np.float64
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A parameter seen as a matrix, row after row in the flat numbering of elements.

    Attributes:
        first: Number of its first element.
        rows: Its first dimension.
        columns: The product of the others.
    """

    first: int
    rows: int
    columns: int


def matrices_within(shapes: Sequence[Matrix], first: int, elements: int, rank: int) -> list[Matrix]:
    """Whole rows of `shapes` within `first` .. `first + elements` that are worth coding: r (m + n) < m n."""
    found: list[Matrix] = []
    for shape in shapes:
        begin = max(0, -(-(first - shape.first) // shape.columns))
        end = min(shape.rows, (first + elements - shape.first) // shape.columns)
        rows = end - begin
        if rows > 0 and rank * (rows + shape.columns) < rows * shape.columns:
            found.append(Matrix(shape.first + begin * shape.columns, rows, shape.columns))
    return found


class LowRank:
    """Means in rank r; one for every rank (of the region), since it keeps Q by element range.

    Residuals are the caller's: `isthmus.runtime.codecs.feedback.ErrorFeedback.residual(first, n)`.
    """

    def __init__(self, shapes: Sequence[Matrix], rank: int, seed: int = 0) -> None:
        """`shapes`: the parameters with two or more dimensions; `rank` and `seed` are equal on all members."""
        self._shapes, self._rank, self._seed = tuple(shapes), rank, seed
        self._kept: dict[Matrix, torch.Tensor] = {}

    def mean_(
        self,
        shard: torch.Tensor,
        first: int,
        mean: Callable[[torch.Tensor, int], None],
        residual: torch.Tensor | None = None,
    ) -> None:
        """Replace `shard` by (nearly) its mean over regions, bit-identical on all of them.

        Args:
            shard: float32, shape (n,), CPU: elements `first` .. `first + n` of the flat numbering.
            first: As said; equal on all regions.
            mean: mean(tensor, phase) replaces a float32 vector by its plain mean over regions; called for phase 0 and 1.
            residual: float32, shape (n,): added before, and replaced by what this region's matrices lose.
        """
        matrices = matrices_within(self._shapes, first, shard.numel(), self._rank)
        if residual is not None:
            shard.add_(residual)
            residual.copy_(shard)
        parts = [shard[m.first - first :][: m.rows * m.columns].view(m.rows, m.columns) for m in matrices]
        plain = _others(matrices, first, shard)
        left = [part @ self._start(matrix) for part, matrix in zip(parts, matrices, strict=True)]
        message = torch.cat([*(p.reshape(-1) for p in left), *plain])
        mean(message, 0)
        left = _cut(message, [(m.rows, self._rank) for m in matrices])
        for piece in reversed(plain):
            piece.copy_(message[message.numel() - piece.numel() :])
            message = message[: message.numel() - piece.numel()]
        for p in left:
            _orthonormalise(p.numpy())
        message = torch.cat([torch.empty(0), *((m.T @ p).reshape(-1) for m, p in zip(parts, left, strict=True))])
        mean(message, 1)
        right = _cut(message, [(m.columns, self._rank) for m in matrices])
        for matrix, part, p, q in zip(matrices, parts, left, right, strict=True):
            _expand(p.numpy(), np.ascontiguousarray(q.T.numpy()), part.numpy())
            self._kept[matrix] = q.clone()
        if residual is not None:
            for piece in plain:
                at = piece.storage_offset() - shard.storage_offset()
                residual[at : at + piece.numel()] = 0.0
            for matrix, part in zip(matrices, parts, strict=True):
                owed = residual[matrix.first - first :][: part.numel()].view_as(part).sub_(part)
                if not torch.isfinite(owed.sum()):
                    owed.nan_to_num_(0.0, 0.0, 0.0)

    def exchanged_elements(self, first: int, elements: int) -> int:
        """Floats in the two means of one round of that range."""
        matrices = matrices_within(self._shapes, first, elements, self._rank)
        coded = sum(m.rows * m.columns for m in matrices)
        return elements - coded + sum(self._rank * (m.rows + m.columns) for m in matrices)

    def state_dict(self) -> dict[str, Any]:
        """Copies of Q, for checkpoints and for undoing a round."""
        return {f"{m.first}:{m.rows}:{m.columns}": q.clone() for m, q in self._kept.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to `state`."""
        self._kept = {Matrix(*map(int, name.split(":"))): q.clone() for name, q in state.items()}

    def _start(self, matrix: Matrix) -> torch.Tensor:
        """Q of the last round, or signs from the seed; a column that came out as zero begins anew."""
        size = matrix.columns * self._rank
        draw = np.random.SFC64([self._seed & (2**64 - 1), matrix.first, matrix.columns]).random_raw(size)
        fresh = torch.from_numpy((draw >> np.uint64(63)).astype(np.float32)).mul_(2.0).sub_(1.0).view(-1, self._rank)
        kept = self._kept.get(matrix)
        if kept is None:
            return fresh
        usable = torch.isfinite(kept).all(0) & (kept != 0).any(0)
        return torch.where(usable, kept, fresh)


def _others(matrices: Sequence[Matrix], first: int, shard: torch.Tensor) -> list[torch.Tensor]:
    """The pieces of `shard` between `matrices`, in order."""
    found, at = [], first
    for matrix in sorted(matrices, key=lambda m: m.first):
        found.append(shard[at - first : matrix.first - first])
        at = matrix.first + matrix.rows * matrix.columns
    found.append(shard[at - first :])
    return [piece for piece in found if piece.numel()]


def _cut(message: torch.Tensor, shapes: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
    found, at = [], 0
    for rows, columns in shapes:
        found.append(message[at : at + rows * columns].view(rows, columns))
        at += rows * columns
    return found


@compiled
def _orthonormalise(p: Array) -> None:
    """Modified Gram-Schmidt on the columns of float32 (m, r), twice; sums in float64, in row order; dependent columns: zero."""
    rows, columns = p.shape
    for j in range(columns):
        before = D(0.0)
        for i in range(rows):
            before += D(p[i, j]) * D(p[i, j])
        for _ in range(2):
            for k in range(j):
                dot = D(0.0)
                for i in range(rows):
                    dot += D(p[i, k]) * D(p[i, j])
                for i in range(rows):
                    p[i, j] = F(D(p[i, j]) - dot * D(p[i, k]))
        norm = D(0.0)
        for i in range(rows):
            norm += D(p[i, j]) * D(p[i, j])
        scale = D(0.0) if norm <= before * D(1e-12) else D(1.0) / np.sqrt(norm)
        for i in range(rows):
            p[i, j] = F(D(p[i, j]) * scale)


@compiled
def _expand(p: Array, q: Array, out: Array) -> None:
    """out = p q, float32 (m, r) (r, n) (m, n); each element summed over r in order, product and sum rounded apart."""
    for i in range(out.shape[0]):
        row = out[i]
        row[:] = F(0.0)
        for k in range(p.shape[1]):
            factor, line = p[i, k], q[k]
            for j in range(row.size):
                row[j] = F(row[j] + F(factor * line[j]))
