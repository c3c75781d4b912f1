"""PowerSGD: the mean over regions of a matrix, in rank r. Not a code of one vector, but a reduction of its own.

Of a matrix M (m x n, this region's, with what it owes from earlier): P = mean of M Q; orthonormal columns P'; Q = mean of
M^T P'; result P' Q^T, the same on all members; M - P' Q^T is owed. Q is kept for the next round (warm start). Two small
means are exchanged by the caller, of r m and r n floats: isthmus.runtime.collectives.low_rank does it over a rail.

It works on a flat range of elements, as rails do: of every matrix the whole rows within the range are a matrix of their own;
broken rows, vectors, and matrices for which r (m + n) is not less than m n are exchanged as they are, with P.

After their means P and Q are bit-identical on all members, and what each then computes alone (Gram-Schmidt, P' Q^T) is compiled
with a fixed order of summation, so the results are too; torch's matrix product is used only for what is then exchanged.
Limits: the mean must be plain (equal weights), since P' Q^T is linear only in M; the error is whatever of M lies outside
the r directions, bounded by |M| and owed, not by a step.
Source: Vogels, Karimireddy & Jaggi, NeurIPS 2019 (PowerSGD).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isthmus.runtime.codecs.compiled import compiled

__all__ = ["LowRank", "Matrix", "Reduction", "exchanged_elements", "matrices_within", "warm"]

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
    """Whole rows of `shapes` within `first` .. `first + elements` that are worth coding: r (m + n) < m n.

    In the order of their elements; numbered as `shapes` are.
    """
    found: list[Matrix] = []
    for shape in shapes:
        begin = max(0, -(-(first - shape.first) // shape.columns))
        end = min(shape.rows, (first + elements - shape.first) // shape.columns)
        rows = end - begin
        if rows > 0 and rank * (rows + shape.columns) < rows * shape.columns:
            found.append(Matrix(shape.first + begin * shape.columns, rows, shape.columns))
    return found


class LowRank:
    """The directions Q of every matrix, kept from mean to mean, equal on all regions; one for every rank.

    What a mean makes of them counts from `commit` on, so that a mean can be repeated.
    """

    def __init__(self, rank: int, seed: int = 0) -> None:
        self.rank, self._seed = rank, seed
        self._kept: dict[tuple[int, Matrix], torch.Tensor] = {}
        self._next: dict[tuple[int, Matrix], torch.Tensor] = {}

    def start(self, rail: int, matrix: Matrix) -> torch.Tensor:
        """Q of the last mean, or signs from the seed; a column that came out as zero begins anew. Shape (columns, rank)."""
        size = matrix.columns * self.rank
        draw = np.random.SFC64([self._seed & (2**64 - 1), matrix.first, matrix.columns]).random_raw(size)
        fresh = torch.from_numpy((draw >> np.uint64(63)).astype(np.float32)).mul_(2.0).sub_(1.0).view(-1, self.rank)
        kept = self._kept.get((rail, matrix))
        if kept is None:
            return fresh
        usable = torch.isfinite(kept).all(0) & (kept != 0).any(0)
        return torch.where(usable, kept, fresh)

    def put(self, rail: int, matrix: Matrix, directions: torch.Tensor) -> None:
        """Where the next mean begins, once this one counts."""
        self._next[rail, matrix] = directions.clone()

    def commit(self) -> None:
        """The means so far count."""
        self._kept.update(self._next)
        self._next.clear()

    def drop(self) -> None:
        """The means since `commit` do not."""
        self._next.clear()

    def state_dict(self, rail: int | None = None) -> dict[str, torch.Tensor]:
        """Copies of all directions, or of one rail's, by "rail:first element:rows:columns"."""
        found = sorted(self._kept.items(), key=lambda item: (item[0][0], item[0][1].first))
        return {
            f"{number}:{matrix.first}:{matrix.rows}:{matrix.columns}": kept.clone()
            for (number, matrix), kept in found
            if rail is None or number == rail
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go back to `state`."""
        self._kept, self._next = {}, {}
        for name, kept in state.items():
            rail, first, rows, columns = map(int, name.split(":"))
            self._kept[rail, Matrix(first, rows, columns)] = kept.clone()


class Reduction:
    """One mean of one vector, in three steps between which the caller has two messages averaged over the regions.

    The vector is left as it is, and so is everything of `LowRank` until its `commit`: it can be repeated.

    Attributes:
        message: What is to be averaged next (float32, changed in place by whoever averages it): P and all that is not coded;
            after `turn` Q.
    """

    def __init__(
        self, kept: LowRank, rail: int, vector: torch.Tensor, first: int, shapes: Sequence[Matrix], residual: torch.Tensor | None
    ) -> None:
        """Of `vector`: float32 (n,), CPU, elements `first` to `first + n` of the numbering of `shapes`; `residual` is added."""
        self._kept, self._rail, self._first, self._residual = kept, rail, first, residual
        self._given = vector + residual if residual is not None else vector
        matrices = self._matrices = matrices_within(shapes, first, vector.numel(), kept.rank)
        self._plain = _others(matrices, first, vector.numel())
        parts = [self._view(self._given, matrix) for matrix in matrices]
        left = [part @ kept.start(rail, matrix) for part, matrix in zip(parts, matrices, strict=True)]
        pieces = [self._given[begin:end] for begin, end in self._plain]
        self.message = torch.cat([torch.empty(0), *(p.reshape(-1) for p in left), *pieces])
        self._left: list[torch.Tensor] = []
        self._pieces: list[torch.Tensor] = []

    def turn(self) -> None:
        """`message` is the mean of all regions' now: what follows from it, and the next message."""
        rank = self._kept.rank
        self._left = _cut(self.message, [(m.rows, rank) for m in self._matrices])
        rest = self.message[sum(m.rows * rank for m in self._matrices) :]
        self._pieces = list(rest.split([end - begin for begin, end in self._plain])) if self._plain else []
        for p in self._left:
            _orthonormalise(p.numpy())
        pairs = zip(self._matrices, self._left, strict=True)
        right = [(self._view(self._given, matrix).T @ p).reshape(-1) for matrix, p in pairs]
        self.message = torch.cat([torch.empty(0), *right])

    def finish(self, out: torch.Tensor, part: float) -> None:
        """`message` is the mean again: write the result into `out` (like the vector), and what is owed into the residual.

        `part` is what the result is to count as among what this region gave: 1 for a plain mean, the number of a region's
        ranks where their sum was given and the mean over all ranks was taken.
        """
        right = _cut(self.message, [(m.columns, self._kept.rank) for m in self._matrices])
        for (begin, end), piece in zip(self._plain, self._pieces, strict=True):
            out[begin:end] = piece
            if self._residual is not None:
                self._residual[begin:end] = 0.0
        for matrix, p, q in zip(self._matrices, self._left, right, strict=True):
            whole = self._view(out, matrix)
            if self._residual is not None:
                owed = self._view(self._residual, matrix)
                owed.copy_(self._view(self._given, matrix))
            _expand(p.numpy(), np.ascontiguousarray(q.T.numpy()), whole.numpy())
            if self._residual is not None:
                owed = self._view(self._residual, matrix).sub_(whole, alpha=part)
                if not torch.isfinite(owed.sum()):
                    owed.nan_to_num_(0.0, 0.0, 0.0)
            self._kept.put(self._rail, matrix, q)

    def _view(self, vector: torch.Tensor, matrix: Matrix) -> torch.Tensor:
        begin = matrix.first - self._first
        return vector[begin : begin + matrix.rows * matrix.columns].view(matrix.rows, matrix.columns)


def warm() -> None:
    """Compile the kernels, so that it is not done in the first mean."""
    one = np.ones((1, 1), np.float32)
    _orthonormalise(one)
    _expand(one, one.copy(), one.copy())


def exchanged_elements(shapes: Sequence[Matrix], first: int, elements: int, rank: int) -> int:
    """Floats in the two messages of one mean of that range."""
    matrices = matrices_within(shapes, first, elements, rank)
    coded = sum(m.rows * m.columns for m in matrices)
    return elements - coded + sum(rank * (m.rows + m.columns) for m in matrices)


def _others(matrices: Sequence[Matrix], first: int, elements: int) -> list[tuple[int, int]]:
    """(begin, end) of what lies between `matrices`, in order, from `first` on."""
    found, at = list[tuple[int, int]](), 0
    for matrix in sorted(matrices, key=lambda m: m.first):
        found.append((at, matrix.first - first))
        at = matrix.first - first + matrix.rows * matrix.columns
    found.append((at, elements))
    return [(begin, end) for begin, end in found if end > begin]


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
