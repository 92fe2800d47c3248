"""PowerSGD: sums gradients as products of two thin matrices, with two small all-reduces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.comm.world import World
from paceline.core.chunks import Span
from paceline.core.vectors import Entry, Layout, Vector, aligned_zeros

_SEED = 190513727  # for the initial right factors: the same on every rank, in every run
_CHUNK = 64 * 1024  # elements of a product computed at once, in a core's cache


class PowerSGDAllreduce:
    """Sums gradients of one layout over all ranks, each matrix as a left and a right factor.

    A parameter is treated as a matrix: its first dimension by all others, as they lie in memory.
    With G_i the gradient of rank i, E_i its error so far, and Q from the previous sum:

        M_i = G_i + E_i,  P <- an orthonormal basis of sum(M_i Q)     (the first all-reduce)
        Q_i = M_i^T P,    Q <- sum(Q_i)                               (the second)
        G <- P Q^T on every rank,  E_i <- M_i - P Q_i^T

    so G + sum(E_i) = sum(M_i): what one sum misses, later ones add. Vogels et al. 2019,
    arXiv:1905.13727; their code, like PyTorch's, uses M_i minus the mean of all for E_i. Parameters
    whose factors would not be smaller, such as biases, are summed as they are in the first one.
    """

    def __init__(self, world: World, layout: Layout, factor_rank: int) -> None:
        """Collective."""
        self._world = world
        kind = str(layout.dtype)
        thin = [entry for entry in layout.entries if _is_worth_it(entry, factor_rank)]
        whole = [entry for entry in layout.entries if not _is_worth_it(entry, factor_rank)]
        lefts = [(entry.name, (factor_rank, _shape(entry)[0]), kind) for entry in thin]
        first = Layout.of(lefts + [(entry.name, (entry.size,), kind) for entry in whole])
        second = Layout.of((entry.name, (factor_rank, _shape(entry)[1]), kind) for entry in thin)
        self._first, self._second = _make_buffer(world, first), _make_buffer(world, second)
        self.error: Vector = layout.empty_vector()
        """What this rank's contributions have missed so far."""
        views, rights = first.views(self._first), second.views(self._second)
        self._matrices = [
            _Matrix(entry.offset, self.error[_place(entry)].reshape(_shape(entry)), left, right)
            for entry, left, right in zip(thin, views[: len(thin)], rights, strict=True)
        ]
        self._whole = [
            (_place(entry), view) for entry, view in zip(whole, views[len(thin) :], strict=True)
        ]

    @property
    def residuals(self) -> dict[str, Vector]:
        """State carried from one sum to the next: the errors, and Q."""
        return {"error": self.error, "right": self._second}

    def all_reduce(self, vector: Vector) -> int:
        """Overwrite every rank's vector with the sum; return the bytes sent to other ranks."""
        if self._world.size == 1:
            return 0
        # Values that are not finite pass without a warning: numpy warned where they arose.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._sum_in_two(vector)

    def close(self) -> None:
        """Release the memory."""
        for buffer in (self._first, self._second):
            self._world.drop_buffer(buffer)

    def _sum_in_two(self, vector: Vector) -> int:
        for place, view in self._whole:
            view[:] = vector[place]
        for matrix in self._matrices:
            matrix.write_left(vector)
        sent = self._sum(self._first)
        for place, view in self._whole:
            vector[place] = view
        for matrix in self._matrices:
            matrix.write_right(vector)
        sent += self._sum(self._second)
        for matrix in self._matrices:
            matrix.write_product(vector)
        return sent

    def _sum(self, buffer: Vector) -> int:
        if buffer.size:
            self._world.all_reduce(buffer)
        return 2 * (self._world.size - 1) * buffer.nbytes // self._world.size


@dataclass(frozen=True)
class _Matrix:
    """One parameter's error and factors; factors are stored transposed, a column in each row."""

    offset: int
    error: Vector
    """Holds M between the calls."""
    left: Vector
    right: Vector
    """Between sums, Q of the previous one."""

    def __post_init__(self) -> None:
        self._restart()

    def write_left(self, vector: Vector) -> None:
        """M <- G + E, and M Q as this rank's contribution to P."""
        np.add(self.error, self._of(vector), out=self.error)
        self.left[:] = (self.error @ self.right.T).T

    def write_right(self, vector: Vector) -> None:
        """P from the sum, this rank's contribution to Q, and its error; G is no longer needed."""
        orthonormalise(self.left)
        np.matmul(self.left, self.error, out=self.right)
        given = self._of(vector)
        np.matmul(self.left.T, self.right, out=given)
        np.subtract(self.error, given, out=self.error)

    def write_product(self, vector: Vector) -> None:
        """G <- P Q^T."""
        multiply(self.left, self.right, out=self._of(vector))
        if not np.isfinite(self.right).all():  # on all ranks; it would spoil every later sum
            self._restart()

    def _of(self, vector: Vector) -> Vector:
        return vector[self.offset : self.offset + self.error.size].reshape(self.error.shape)

    def _restart(self) -> None:
        draw = np.random.default_rng([_SEED, self.offset])
        self.right[:] = draw.standard_normal(self.right.shape)
        self.error[:] = 0


def orthonormalise(rows: Vector) -> None:
    """Overwrite the rows with an orthonormal basis of a space that contains them all.

    By Householder reflections with mirror v:  a <- a - 2 v (v.a) / (v.v). A row that is zero, or
    depends on others, becomes a direction orthogonal to them, so a factor that was zero once does
    not stay zero. Every rank must find the same bits, and those of LAPACK depend on the processor:
    all operations here round the same way everywhere, in one order.

    >>> rows = np.array([[0.0, 0.0, -2.0], [0.0, 3.0, 1.0]])
    >>> orthonormalise(rows)
    >>> np.abs(rows).round(9)
    array([[0., 0., 1.],
           [0., 1., 0.]])
    """
    work = rows.astype(np.float64)
    largest = np.abs(work).max(axis=1, keepdims=True)
    work /= np.where(largest, largest, 1.0)  # squares of small numbers would underflow
    mirrors = []
    for at in range(len(work)):
        mirror = work[at, at:].copy()
        mirror[0] += np.copysign(np.sqrt((mirror * mirror).sum()), mirror[0])
        _reflect(work[at + 1 :, at:], mirror)
        mirrors.append(mirror)
    work[:] = np.eye(*work.shape)
    for at in reversed(range(len(work))):
        _reflect(work[at:, at:], mirrors[at])
    rows[:] = work


def _reflect(rows: Vector, mirror: Vector) -> None:
    square = (mirror * mirror).sum()
    if square != 0:  # NaN must propagate
        rows -= (2 / square * (rows * mirror).sum(axis=1))[:, None] * mirror


def multiply(left: Vector, right: Vector, out: Vector) -> None:
    """Write left^T right to `out`, with the same bits on every rank.

    Those of BLAS (OpenBLAS 0.3.31) depend on the processor and the number of threads, and replicas
    that differ in one bit drift apart. So the outer products are added one after another.

    >>> out = np.empty((2, 3))
    >>> multiply(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0, 5.0]]), out)
    >>> out
    array([[ 3.,  4.,  5.],
           [ 6.,  8., 10.]])
    """
    step = max(1, _CHUNK // out.shape[1])
    scratch = np.empty_like(out[:step])
    for first in range(0, len(out), step):
        piece, columns = out[first : first + step], left[:, first : first + step, None]
        np.multiply(columns[0], right[0], out=piece)
        for column, row in zip(columns[1:], right[1:], strict=True):
            piece += np.multiply(column, row, out=scratch[: len(piece)])


def _shape(entry: Entry) -> tuple[int, int]:
    rows = entry.shape[0] if entry.shape else 1
    return rows, entry.size // max(rows, 1)


def _is_worth_it(entry: Entry, factor_rank: int) -> bool:
    """Whether the factors are smaller than the matrix; then both its sides exceed the rank."""
    return entry.size > factor_rank * sum(_shape(entry))


def _place(entry: Entry) -> Span:
    return slice(entry.offset, entry.offset + entry.size)


def _make_buffer(world: World, layout: Layout) -> Vector:
    """Memory to be summed; if there is nothing to sum, the world is not asked."""
    if not layout.size:
        return aligned_zeros(0, layout.dtype)
    return world.make_buffer(layout.size, layout.dtype)
