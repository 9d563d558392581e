"""Errors of rows that a fit leaves out, from the Cholesky factor of the fit of all rows.

With A = C K C + diag(s), C² = W, and β = A⁻¹ C y, the solution without the rows F has the scaled errors::

    e_F = C_F (y_F − f₋F(x_F)) = [(A⁻¹)_FF]⁻¹ β_F,    β₋F = β − A⁻¹ E_F e_F

E_F the columns of the identity. With a free constant A⁻¹ is replaced by A⁻¹ − v vᵀ / cᵀv for v = A⁻¹ c. Where a row of
large weight determines the constant, nothing is left of that difference; with w = L⁻¹ c it is L⁻ᵀ (I − w wᵀ / wᵀw) L⁻¹,
a projection, which is applied to vectors and loses no digits. Blocks of the inverse are differences, but for the folds
that are found to have lost digits.

With columns X = L⁻¹ E_F, computed in strips that begin at their first row, (A⁻¹)_FF is XᵀX, for a single row the
squared length of a column: leave-one-out takes a triangular inverse, n³/3 operations, and k folds (k + 1) n³/2k² more.

References
----------
R. D. Cook, S. Weisberg, "Residuals and Influence in Regression", Chapman and Hall 1982. T. Pahikkala, J. Boberg,
T. Salakoski, "Fast n-fold cross-validation for regularized least-squares", SCAI 2006. S. An, W. Liu, S. Venkatesh,
"Fast cross-validation algorithms for least squares support vector machine and kernel ridge regression", Pattern
Recognition 40 (2007).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Executor, Meter, Progress, Task
from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.cholesky import Matrix
from dkrr.linalg.memory import share_of
from dkrr.linalg.substitution import Substitution, solve_block, substituted

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

STRIP_COLUMNS = 256
"""Columns of L⁻¹ that one task computes: products at full rate, and vectors of 8 n bytes each."""
BATCH_COLUMNS = 2048
"""Columns of L⁻¹ for small folds together: each is only a task or two."""
CANCELLED = 1e4
"""Loss of digits by a free constant above which a block of the inverse is computed by projection."""


@dataclass
class LeftOut:
    """Errors of rows that are left out of one system.

    Parameters
    ----------
    factor : TiledMatrix or MemoryMatrix
        L, with L Lᵀ = A.
    right_sides : ndarray of shape (n, t)
        C y.
    constant : ndarray of shape (n,), optional
        c, with a free constant.
    executor : Executor
        Runs tasks that share this process's memory.
    progress : Progress, optional
        Display whose open stage, with a total of 1, are the errors of all rows.
    """

    factor: Matrix
    right_sides: Array
    constant: Array | None
    executor: Executor
    progress: Progress | None = None

    @cached_property
    def _solved(self) -> tuple[Array, Array | None, Array]:
        """A⁻¹ C y without a free constant, v, and β."""
        t = self.right_sides.shape[1]
        if self.constant is None:
            u = substituted(self.factor, self.right_sides)
            return u, None, u
        z = substituted(self.factor, self.right_sides, (False,))
        x = substituted(self.factor, np.column_stack([z, self._direction, self._projected(z)]), (True,))
        return x[:, :t], x[:, t], x[:, t + 1 :]

    @cached_property
    def _direction(self) -> Array:
        """The projection's w = L⁻¹ c."""
        assert self.constant is not None
        return substituted(self.factor, self.constant[:, None], (False,))[:, 0]

    @cached_property
    def _total(self) -> float:
        """The scalar cᵀA⁻¹c = wᵀw."""
        return float(self._direction @ self._direction)

    def _projected(self, z: Array) -> Array:
        """(I − w wᵀ / wᵀw) Z; twice, since what rounding leaves of w the first time may exceed the rest."""
        w = self._direction
        for _ in range(2):
            z = z - np.outer(w, (w @ z) / self._total)
        return z

    @property
    def unfreed(self) -> Array:
        """A⁻¹ C y, without a free constant, of shape (n, t)."""
        return self._solved[0]

    @cached_property
    def constants(self) -> Array:
        """b, the free constants of the fit of all rows, of shape (t,)."""
        if self.constant is None:
            return np.zeros(self.right_sides.shape[1])
        return np.asarray((self._direction @ substituted(self.factor, self.right_sides, (False,))) / self._total)

    @property
    def solution(self) -> Array:
        """β of all rows, of shape (n, t)."""
        return self._solved[2]

    def of_rows(self) -> Array:
        """Scaled errors of every row by itself, of shape (n, t)."""
        diagonal = np.empty(len(self.right_sides))

        def squares(meter: Meter, columns: slice) -> None:
            x = self._forward(meter, np.arange(columns.start, columns.stop))
            np.einsum("ij,ij->j", x, x, out=diagonal[columns])

        n = len(diagonal)
        strips = [slice(k, min(k + STRIP_COLUMNS, n)) for k in range(0, n, STRIP_COLUMNS)]
        self._run([Task(f"inverse-{s.start}", squares, (s,), flops=float((n - s.start) ** 2)) for s in strips])
        v = self._solved[1]
        if v is not None:
            taken = v * (v / self._total)  # v² may be out of float64's range
            diagonal -= taken
            lost = np.flatnonzero(~(CANCELLED * diagonal > taken))
            for start in range(0, len(lost), STRIP_COLUMNS):
                rows = lost[start : start + STRIP_COLUMNS]
                z = self._projected(self._forward(Meter(), rows))
                diagonal[rows] = np.einsum("ij,ij->j", z, z)
        return np.asarray(self.solution / diagonal[:, None])

    def of_folds(self, folds: Sequence[Numbers]) -> list[Array]:
        """Scaled errors of the rows of every fold, which are in ascending order; of shape (len(fold), t) each."""
        found: list[Array] = []
        for together in _batches(folds):
            blocks = self._blocks_of_inverse(together)
            found += [self._errors(rows, block) for rows, block in zip(together, blocks, strict=True)]
        return found

    def _blocks_of_inverse(self, folds: Sequence[Numbers]) -> list[Array]:
        """Lower triangles of (A⁻¹)_FF = (L⁻¹E_F)ᵀ(L⁻¹E_F) of some folds."""
        n = len(self.right_sides)
        # A column of L⁻¹ is zero above its own row.
        inverses = [np.empty((n - int(rows[0]), len(rows))) for rows in folds]
        blocks = [np.zeros((len(rows), len(rows))) for rows in folds]

        def invert(meter: Meter, k: int, columns: slice) -> None:
            inverses[k][:, columns] = self._forward(meter, folds[k][columns])[int(folds[k][0]) :]

        def multiply(meter: Meter, k: int, columns: slice) -> None:
            with meter.time("gemm"):
                x = inverses[k][int(folds[k][columns.start] - folds[k][0]) :, : columns.stop]
                blas.gemm(blocks[k][columns, : columns.stop], x[:, columns], x, transpose_a=True)

        strips = [
            (k, slice(start, min(start + STRIP_COLUMNS, len(rows))))
            for k, rows in enumerate(folds)
            for start in range(0, len(rows), STRIP_COLUMNS)
        ]
        for name, function in (("inverse", invert), ("block", multiply)):
            tasks = [Task(f"{name}-{k}-{c.start}", function, (k, c)) for k, c in strips]
            self._run(tasks, 0.5 * sum(map(len, folds)) / len(self.right_sides))
        return blocks

    def _errors(self, rows: Numbers, block: Array) -> Array:
        v, beta = self._solved[1], self.solution[rows]
        if v is None:
            return _solved_block(block, beta, rows)
        taken = v[rows] / np.sqrt(self._total)
        with suppress(NotPositiveDefiniteError):
            found = _solved_block(block - np.outer(taken, taken), np.column_stack([beta, taken]), rows)
            if taken @ found[:, -1] < CANCELLED:  # tᵀ(B − t tᵀ)⁻¹t, which is large where B − t tᵀ is nearly singular
                return found[:, :-1]
        z = self._projected(self._forward(Meter(), rows))
        return _solved_block(z.T @ z, beta, rows)

    def without(self, rows: Numbers, errors: Array) -> tuple[Array, Array]:
        """β and free constants of the fit without some rows, from their errors; shapes (n, t) and (t,)."""
        scattered = np.zeros_like(self.right_sides)
        scattered[rows] = errors
        constants = self.constants
        if self.constant is None:
            change = substituted(self.factor, scattered)
        else:
            z = substituted(self.factor, scattered, (False,))
            constants = constants - (self._direction @ z) / self._total
            change = substituted(self.factor, self._projected(z), (True,))
        solution = self.solution - change
        solution[rows] = 0.0
        return solution, constants

    def _run(self, tasks: list[Task], amount: float = 1.0) -> None:
        self.executor.run(tasks, share_of(self.progress, tasks, amount))

    def _forward(self, meter: Meter, columns: Numbers) -> Array:
        """Columns of L⁻¹, of shape (n, k), of columns in ascending order."""
        x = np.zeros((len(self.right_sides), len(columns)))
        x[columns, np.arange(len(columns))] = 1.0
        grid = self.factor.grid
        sweep = Substitution.in_memory(self.factor, x, (int(columns[0]) // grid.tile, grid.n_tiles), transpose=False)
        solve_block(meter, sweep, 0)
        return x


def _solved_block(block: Array, right_sides: Array, rows: Numbers) -> Array:
    """B⁻¹ times right-hand sides, from the lower triangle of B; `rows` are those of the block, for the message."""
    try:
        factor = scipy.linalg.cho_factor(block, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError as error:
        raise NotPositiveDefiniteError(
            "a block of the inverse is not positive definite: λ is below what rounding in K allows", int(rows[0])
        ) from error
    return np.asarray(scipy.linalg.cho_solve(factor, right_sides, check_finite=False))


def _batches(folds: Sequence[Numbers]) -> Iterator[Sequence[Numbers]]:
    """Consecutive folds of at most BATCH_COLUMNS rows together, or one fold."""
    start, width = 0, 0
    for k, rows in enumerate(folds):
        if k > start and width + len(rows) > BATCH_COLUMNS:
            yield folds[start:k]
            start, width = k, 0
        width += len(rows)
    if folds:
        yield folds[start:]


def columns_at_once(n: int, n_folds: int) -> int:
    """Largest number of columns of L⁻¹ that are in memory at once for folds of about the same size."""
    return max(-(-n // n_folds), min(n, BATCH_COLUMNS))


def folds_flops(n: int, n_folds: int) -> float:
    """Operations for the errors of folds of about the same size: L⁻¹, blocks of its square, and their factors."""
    return n**3 * (1 / 3 + (n_folds + 1) / (2 * n_folds**2) + 1 / (3 * n_folds**2))
