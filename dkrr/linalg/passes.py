"""Passes over rows: segments, the rows that one task covers; and objective, gradient and curvature of a likelihood.

A segment is read in blocks, or in strips that stay in cache, with targets and weights. In the primal form of logistic
regression the scores Φβ + b are computed where the rows are, from the coefficients that every task is called with, so
nothing as long as the rows is kept or sent. The intercept is a last feature that is 1 everywhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Executor, Meter, RunRecord, Task
from dkrr.data import Rows
from dkrr.data.rows import SPARSE_BLOCK_ENTRIES, Block, check_finite, n_bytes
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.likelihood import Likelihood
from dkrr.linalg.products import Operator, Precision
from dkrr.linalg.sources import read_range
from dkrr.store import ChunkedArray

Matrix = NDArray[np.float64]

STRIP_BYTES = 2 * 2**20
"""Size of a strip of Φ: read, expanded and multiplied, it should stay in the second-level cache (measured: rows of 100
columns in strips of 2 MiB are read and multiplied twice as fast as in blocks of 64 MiB)."""
STRIP_ROWS = 512
"""Minimum rows of a strip, since each strip passes once over the matrix that it is added to."""


def strip_rows(width: int) -> int:
    """Rows of a strip with a given number of columns."""
    return max(STRIP_ROWS, STRIP_BYTES // (8 * max(width, 1)))


@dataclass(frozen=True)
class Segment:
    """Consecutive rows with their weights and targets: what one task works on."""

    rows: Rows
    start: int
    stop: int
    block: int
    """Most rows in memory at once; of sparse ones also no more than SPARSE_BLOCK_ENTRIES entries, or one row."""
    targets: Matrix | ChunkedArray
    """Targets (n, t), in memory or in the store."""
    weights: Matrix | ChunkedArray | None = None
    """Sample weights (n, 1); None means ones."""
    means: Matrix | None = None
    """Means of the targets (t,), subtracted where they are used: centred ones would be as large again; None: zeros."""

    def blocks(self, meter: Meter) -> Iterator[tuple[slice, Block]]:
        """Rows a block at a time."""
        for where in self._ranges(self.block):
            with meter.time("read"):
                x = self.rows.read(where.start, where.stop)
            self._count(meter, x)
            yield where, x

    def strips(self, meter: Meter, width: int) -> Iterator[tuple[slice, Block]]:
        """Rows in strips of which `width` features and targets stay in cache, checked for NaN and infinity.

        Raises
        ------
        InputError
            Naming the first bad row and column.
        """
        height = min(self.block, strip_rows(width))
        stream = (
            ((where, self.rows.read(where.start, where.stop)) for where in self._ranges(height))
            if self.rows.is_sparse
            else self.rows.blocks(self.start, self.stop, height)
        )
        while True:
            with meter.time("read"):
                found = next(stream, None)
            if found is None:
                return
            self._count(meter, found[1])
            with meter.time("check"):
                check_finite(found[1], "X", found[0].start)
            yield found

    def _ranges(self, height: int) -> Iterator[slice]:
        """Ranges of rows that are read at once: by rows, and of sparse ones also by entries."""
        for start in range(self.start, self.stop, height):
            yield from self.rows.row_ranges(slice(start, min(start + height, self.stop)), SPARSE_BLOCK_ENTRIES)

    def _count(self, meter: Meter, x: Block) -> None:
        meter.bytes_read += 0 if self.rows.is_in_memory else n_bytes(x)

    def weight_rows(self) -> "Window | None":
        """Weights, by slices of rows."""
        return None if self.weights is None else Window(self.weights, self)

    def target_rows(self) -> "Window":
        """Targets less their means, by slices of rows."""
        return Window(self.targets, self, self.means)


@dataclass
class Window:
    """Rows of targets or weights for one strip or block after another, each valid until the next one is read.

    Stored ones are read a block of the segment at once.
    """

    vectors: Matrix | ChunkedArray
    segment: Segment
    means: Matrix | None = None
    """Subtracted from each row, of shape (t,)."""
    _start: int = 0
    _held: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    _centred: Matrix = field(default_factory=lambda: np.empty((0, 0)))

    def __getitem__(self, rows: slice) -> Matrix:
        found = self._raw(rows)
        if self.means is None:
            return found
        if len(self._centred) < len(found):
            self._centred = np.empty(found.shape)
        centred = self._centred[: len(found)]  # fresh memory for each strip would take longer than its products
        return np.subtract(found, self.means, out=centred)

    def into(self, out: Matrix, rows: slice) -> None:
        """Write the rows to an array of their shape."""
        if self.means is None:
            out[...] = self._raw(rows)
        else:
            np.subtract(self._raw(rows), self.means, out=out)

    def _raw(self, rows: slice) -> Matrix:
        if isinstance(self.vectors, np.ndarray):
            return self.vectors[rows]
        if not (self._start <= rows.start and rows.stop <= self._start + len(self._held)):
            stop = min(max(rows.stop, rows.start + self.segment.block), self.segment.stop)
            self._start, self._held = rows.start, read_range(self.vectors, slice(rows.start, stop))
        return self._held[rows.start - self._start : rows.stop - self._start]


ALL = slice(None)


@dataclass(frozen=True)
class Design:
    """Φ as a fit has it: features less their means, or with a last feature that is 1 everywhere."""

    feature_map: FeatureMap
    centre: Matrix | None = None
    """Means of the features (D,), subtracted where they are used."""
    has_constant: bool = False

    def dimension(self, n_features: int) -> int:
        """Features, the constant included."""
        return self.feature_map.dimension(n_features) + self.has_constant

    def features(self, x: Block, columns: slice = ALL, root: Matrix | None = None) -> Matrix:
        """Some columns of Φ, times the roots of the weights; to be read only. All of them with the constant."""
        is_plain = isinstance(x, np.ndarray) and x.dtype == np.float64 and x.flags.c_contiguous
        if self.centre is None and root is None and not self.has_constant and is_plain and self.feature_map.is_identity:
            rows: Matrix = x[:, columns]  # themselves
            return rows
        phi = self.feature_map.transform(x, columns)
        if self.has_constant:
            phi = np.column_stack([phi, np.ones(len(phi))])
        if self.centre is not None:
            phi -= self.centre[columns]
        if root is not None:
            phi *= root
        return phi

    def times(self, vectors: Matrix) -> Callable[[Block], Matrix]:
        """Function of a block of rows that gives Φ V."""
        multiply = self.feature_map.multiply
        if self.has_constant:
            return lambda x: np.asarray(multiply(x, vectors[:-1]) + vectors[-1])
        if self.centre is None:
            return lambda x: multiply(x, vectors)
        offset = self.centre @ vectors
        return lambda x: np.asarray(multiply(x, vectors) - offset)

    def adjoint(self, x: Block, values: Matrix) -> Matrix:
        """Φᵀ U, of shape (D, m)."""
        found = self.feature_map.adjoint(x, values)
        if self.has_constant:
            return np.vstack([found, values.sum(axis=0)])
        if self.centre is not None:
            found -= self.centre[:, None] * values.sum(axis=0)
        return found

    def adjoint_of_squares(self, x: Block, values: Matrix) -> Matrix:
        """Σᵢ φ(xᵢ)² uᵢ of features that are not centred, (D, m); sparse rows stay sparse where φ does nothing."""
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the sum
            if self.feature_map.is_identity and not isinstance(x, np.ndarray):
                # In float64: squares of small integers do not fit in their own type.
                found = np.asarray(x.astype(np.float64, copy=False).power(2).T @ values)
            else:
                phi = self.feature_map.transform(x)
                found = (phi * phi).T @ values
        return np.vstack([found, values.sum(axis=0)]) if self.has_constant else found


@dataclass
class RowWriter:
    """Writer of the rows of a segment, one strip after another, to an array in memory or to the chunks of a stored one.

    A segment begins where a chunk does, and ends where one does or with the array.
    """

    array: Matrix | ChunkedArray
    segment: Segment
    meter: Meter
    _chunk: Matrix | None = None

    def write(self, rows: slice, values: Matrix) -> None:
        """Write the next rows."""
        if isinstance(self.array, np.ndarray):
            self.array[rows] = values
            return
        height, width = self.array.chunks
        first = rows.start
        while first < rows.stop:
            k = first // height
            top, bottom = k * height, min((k + 1) * height, self.segment.stop)
            stop = min(rows.stop, bottom)
            if self._chunk is None:
                self._chunk = np.empty((bottom - top, width))
            self._chunk[first - top : stop - top] = values[first - rows.start : stop - rows.start]
            if stop == bottom:
                with self.meter.time("write"):
                    self.meter.bytes_written += self.array.write((k, 0), self._chunk)
                self._chunk = None
            first = stop


Array = NDArray[np.float64]
Curvature = Literal["matrix", "diagonal"]


@dataclass(frozen=True)
class LikelihoodPass:
    """Settings of all passes of one fit."""

    feature_map: FeatureMap
    likelihood: Likelihood
    n_features: int
    """Columns of X."""
    fit_intercept: bool
    curvature: Curvature

    @property
    def design(self) -> Design:
        """Φ, with the constant of a free intercept."""
        return Design(self.feature_map, has_constant=self.fit_intercept)

    @property
    def dimension(self) -> int:
        """Features, the constant included."""
        return self.design.dimension(self.n_features)

    def pack_sizes(self) -> tuple[int, int, int]:
        """Lengths of the objective, the gradient and the curvature in what a pass returns."""
        p, m, s = self.dimension, self.likelihood.n_columns, self.likelihood.n_systems
        whole = s * (p * m // s) ** 2
        return s, p * m, whole if self.curvature == "matrix" else p * m

    def pass_over(self, meter: Meter, segment: Segment, coef: Array) -> Array:
        """Sums of a segment for the objective, its gradient and its curvature, packed; see `likelihood_pass`."""
        like, design = self.likelihood, self.design
        multiply = design.times(coef)
        packed = np.zeros(sum(self.pack_sizes()))
        values, gradient, curvature = self.unpack(packed)
        codes, row_weights = segment.target_rows(), segment.weight_rows()
        for where, x in segment.strips(meter, self.dimension):
            y, weights = codes[where][:, 0].astype(np.intp), None if row_weights is None else row_weights[where][:, 0]
            if self.curvature == "matrix":
                with meter.time("features"):
                    phi = design.features(x)
                with meter.time("multiply"):
                    scores = blas.product(phi, coef)
            else:
                with meter.time("multiply"):
                    scores = multiply(x)
            with meter.time("likelihood"):
                values += like.values(scores, y, weights)
                g = like.gradient(scores, y, weights)
                root = like.root(scores, weights)
            if self.curvature == "matrix":
                with meter.time("gemm"):
                    blas.gemm(gradient, phi, g, transpose_a=True, beta=1.0)
                with meter.time("syrk"):
                    root.add_products(curvature, phi)
            else:
                with meter.time("multiply"):
                    gradient += design.adjoint(x, g)
                    curvature += design.adjoint_of_squares(x, root.diagonal())
        return packed

    def unpack(self, packed: Array) -> tuple[Array, Array, Array]:
        """Objective (s,), gradient (p, m) and curvature: s matrices (p m / s, p m / s) or the diagonal (p, m)."""
        p, m, s = self.dimension, self.likelihood.n_columns, self.likelihood.n_systems
        a, b, _ = self.pack_sizes()
        values, gradient, rest = packed[:a], packed[a : a + b].reshape(p, m), packed[a + b :]
        if self.curvature == "diagonal":
            return values, gradient, rest.reshape(p, m)
        side = p * m // s
        return values, gradient, rest.reshape(s, side, side)


def likelihood_pass(meter: Meter, passes: LikelihoodPass, segment: Segment, coef: Array) -> Array:
    """Task: sums of a segment for the objective, its gradient and its curvature, packed; `coef` is of shape (p, m).

    Only the lower triangles of matrices are computed. With softmax the features of a class are consecutive: row
    k p + j is feature j of class k.
    """
    return passes.pass_over(meter, segment, coef)


def curvature_product(meter: Meter, passes: LikelihoodPass, segment: Segment, shared: tuple[Array, Array]) -> Array:
    """Task: sum of a segment for ΦᵀWΦ V, of shape (p, k).

    Parameters
    ----------
    meter, passes, segment
    shared : (coef, V)
        Coefficients (p, k) at which W is taken, and vectors (p, k), of the columns of the open systems.
    """
    coef, vectors = shared
    k = coef.shape[1]
    total, design = np.zeros(vectors.shape), passes.design
    multiply, row_weights = design.times(np.hstack([coef, vectors])), segment.weight_rows()
    for where, x in segment.strips(meter, passes.dimension):
        weights = None if row_weights is None else row_weights[where][:, 0]
        with meter.time("multiply"):
            u = multiply(x)
        with meter.time("likelihood"):
            weighted = passes.likelihood.root(np.ascontiguousarray(u[:, :k]), weights).weigh(u[:, k:])
        with meter.time("multiply"):
            total += design.adjoint(x, weighted)
    return total


@dataclass
class CurvatureProduct(Operator):
    """Product with ΦᵀWΦ at given coefficients, streamed over the rows.

    Parameters
    ----------
    passes : LikelihoodPass
    segments : tuple of Segment
    executor : Executor
    coef : ndarray of shape (p, k)
        Coefficients of the columns that are solved for.
    """

    passes: LikelihoodPass
    segments: tuple[Segment, ...]
    executor: Executor
    coef: Array
    record: RunRecord = field(default_factory=RunRecord)

    def __post_init__(self) -> None:
        self._is_coupled = self.passes.likelihood.n_systems == 1 and self.coef.shape[1] > 1
        self.n = self.coef.size if self._is_coupled else len(self.coef)

    def multiply(
        self,
        vectors: Array,
        precision: Precision = "float64",  # noqa: ARG002
        columns: NDArray[np.intp] | None = None,
    ) -> Array:
        """See base class; always in float64. With softmax vectors are stacked, (k p, 1), class after class."""
        coef = self.coef
        if self._is_coupled:
            vectors = np.ascontiguousarray(vectors.reshape(coef.shape[1], -1).T)
        elif columns is not None:
            coef = np.ascontiguousarray(coef[:, columns])
        tasks = [Task(f"curvature-{k}", curvature_product, (self.passes, s)) for k, s in enumerate(self.segments)]
        total, record = self.executor.total(tasks, (coef, np.ascontiguousarray(vectors)))
        self.record.add(record)
        found: Array = np.asarray(total)
        return np.ascontiguousarray(found.T).reshape(-1, 1) if self._is_coupled else found
