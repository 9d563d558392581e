"""Errors of rows that a fit leaves out, from the Cholesky factor of the fit of all rows.

With A = C K C + diag(s), C² = W, and β = A⁻¹ C y, the solution without the rows F has the scaled errors::

    e_F = C_F (y_F − f₋F(x_F)) = [(A⁻¹)_FF]⁻¹ β_F,    β₋F = β − A⁻¹ E_F e_F

E_F the columns of the identity. With a free constant A⁻¹ is replaced by A⁻¹ − v vᵀ / cᵀv for v = A⁻¹ c. Of a single row
(A⁻¹)_FF is one number, the squared length of a column of L⁻¹, so that leave-one-out takes a triangular inverse, n³/3
operations; other folds take both substitutions, in strips of columns that begin at their first row.

References
----------
R. D. Cook, S. Weisberg, "Residuals and Influence in Regression", Chapman and Hall 1982. T. Pahikkala, J. Boberg,
T. Salakoski, "Fast n-fold cross-validation for regularized least-squares", SCAI 2006. S. An, W. Liu, S. Venkatesh,
"Fast cross-validation algorithms for least squares support vector machine and kernel ridge regression", Pattern
Recognition 40 (2007).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.cholesky import Matrix
from dkrr.linalg.substitution import Substitution, solve_block, substituted
from dkrr.runtime import Executor, Meter, Progress, Task

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

STRIP_COLUMNS = 256
"""Columns of the inverse that one task computes: products at full rate, and vectors of 8 n bytes each."""


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
    """

    factor: Matrix
    right_sides: Array
    constant: Array | None
    executor: Executor

    @cached_property
    def _solved(self) -> tuple[Array, Array | None]:
        """β without a free constant, and v."""
        if self.constant is None:
            return substituted(self.factor, self.right_sides), None
        both = substituted(self.factor, np.column_stack([self.right_sides, self.constant]))
        return both[:, :-1], both[:, -1]

    @property
    def unfreed(self) -> Array:
        """A⁻¹ C y, without a free constant, of shape (n, t)."""
        return self._solved[0]

    @cached_property
    def constants(self) -> Array:
        """b, the free constants of the fit of all rows, of shape (t,)."""
        u, v = self._solved
        if v is None or self.constant is None:
            return np.zeros(u.shape[1])
        return np.asarray((self.constant @ u) / (self.constant @ v))

    @cached_property
    def solution(self) -> Array:
        """β of all rows, of shape (n, t)."""
        u, v = self._solved
        return u if v is None else u - v[:, None] * self.constants

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
        if v is not None and self.constant is not None:
            diagonal -= v**2 / (self.constant @ v)
        return np.asarray(self.solution / diagonal[:, None])

    def of_folds(self, folds: Sequence[Numbers]) -> list[Array]:
        """Scaled errors of the rows of every fold, of shape (len(fold), t) each."""
        blocks = [np.empty((len(rows), len(rows))) for rows in folds]

        def part(meter: Meter, k: int, columns: slice) -> None:
            x = self._forward(meter, folds[k][columns])
            self._backward(meter, x, int(folds[k].min()))
            blocks[k][:, columns] = x[folds[k]]

        tasks, n = [], len(self.right_sides)
        for k, rows in enumerate(folds):
            for start in range(0, len(rows), STRIP_COLUMNS):
                columns = slice(start, min(start + STRIP_COLUMNS, len(rows)))
                flops = 2.0 * float(n - rows[start]) ** 2
                tasks.append(Task(f"inverse-{k}-{start}", part, (k, columns), flops=flops))
        self._run(tasks)
        return [self._errors(rows, block) for rows, block in zip(folds, blocks, strict=True)]

    def _errors(self, rows: Numbers, block: Array) -> Array:
        v = self._solved[1]
        if v is not None and self.constant is not None:
            block -= np.outer(v[rows], v[rows] / (self.constant @ v))
        try:
            factor = scipy.linalg.cho_factor(block, lower=True, overwrite_a=True, check_finite=False)
            return np.asarray(scipy.linalg.cho_solve(factor, self.solution[rows], check_finite=False))
        except np.linalg.LinAlgError as error:
            raise NotPositiveDefiniteError(
                "a block of the inverse is not positive definite: λ is below what rounding in K allows", int(rows[0])
            ) from error

    def without(self, rows: Numbers, errors: Array) -> tuple[Array, Array]:
        """β and free constants of the fit without some rows, from their errors; shapes (n, t) and (t,)."""
        scattered = np.zeros_like(self.right_sides)
        scattered[rows] = errors
        change, v = substituted(self.factor, scattered), self._solved[1]
        constants = self.constants
        if v is not None and self.constant is not None:
            moved = (self.constant @ change) / (self.constant @ v)
            change = change - v[:, None] * moved
            constants = constants - moved
        solution = self.solution - change
        solution[rows] = 0.0
        return solution, constants

    def _run(self, tasks: list[Task]) -> None:
        self.executor.run(tasks, Progress())

    def _forward(self, meter: Meter, columns: Numbers) -> Array:
        """Columns of L⁻¹, of shape (n, k), of columns in ascending order."""
        x = np.zeros((len(self.right_sides), len(columns)))
        x[columns, np.arange(len(columns))] = 1.0
        solve_block(meter, self._sweep(x, int(columns[0]), transpose=False), 0)
        return x

    def _backward(self, meter: Meter, x: Array, first: int) -> None:
        """Replace X by L⁻ᵀ X, in rows from `first` on."""
        solve_block(meter, self._sweep(x, first, transpose=True), 0)

    def _sweep(self, x: Array, first: int, *, transpose: bool) -> Substitution:
        grid = self.factor.grid
        return Substitution.in_memory(self.factor, x, (first // grid.tile, grid.n_tiles), transpose=transpose)
