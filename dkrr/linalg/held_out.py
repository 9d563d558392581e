"""Errors of rows that a fit leaves out, from the Cholesky factor of the fit of all rows.

With A = C K C + diag(s), C² = W, and β = A⁻¹ C y, the solution without the rows F has the scaled errors::

    e_F = C_F (y_F − f₋F(x_F)) = [(A⁻¹)_FF]⁻¹ β_F,    β₋F = β − A⁻¹ E_F e_F

E_F the columns of the identity. With an intercept A⁻¹ is replaced by A⁻¹ − v vᵀ / cᵀv for v = A⁻¹ c. Where a row of
large weight determines the intercept, that difference loses all digits; with w = L⁻¹ c it is L⁻ᵀ (I − w wᵀ / wᵀw) L⁻¹,
a projection, which is applied to vectors and loses no digits. Blocks of the inverse are differences, but for the folds
that are found to have lost digits.

Where L is in a store, or X does not fit in memory, X is in a store, too (`StoredInverse`): columns of the identity are
the right-hand sides of a substitution in tiles, and XᵀX is summed over its tile rows.

With columns X = L⁻¹ E_F, computed in strips that begin at their first row, (A⁻¹)_FF is XᵀX, for a single row the
squared length of a column: leave-one-out takes a triangular inverse, n³/3 operations, and k folds (k + 1) n³/2k² more.

References
----------
R. D. Cook, S. Weisberg, "Residuals and Influence in Regression", Chapman and Hall 1982. T. Pahikkala, J. Boberg,
T. Salakoski, "Fast n-fold cross-validation for regularized least-squares", SCAI 2006. S. An, W. Liu, S. Venkatesh,
"Fast cross-validation algorithms for least squares support vector machine and kernel ridge regression", Pattern
Recognition 40 (2007).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Executor, Meter, Progress, Task
from dkrr.cost import Work
from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.cholesky import N_SLOTS, Matrix, factor_bytes
from dkrr.linalg.in_memory_cholesky import share_of
from dkrr.linalg.sources import read_range
from dkrr.linalg.substitution import (
    NEAR_TILES,
    Substitution,
    solve_block,
    substituted,
    substitution_tasks,
    substitution_work,
    sums_grid,
    tiles_per_sum,
)
from dkrr.store import ChunkedArray, TileGrid

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

INVERSE_STRIP_COLUMNS = 256
"""Columns of L⁻¹ that one task computes: products at full rate, and vectors of 8 n bytes each."""
BATCH_COLUMNS = 2048
"""Columns of L⁻¹ for small folds together: each is only a task or two."""
MAX_STRIPS = 4
"""Most strips of the columns of a batch in a store, each of which reads the factor from its own first row on."""
MAX_CANCELLATION = 1e4
"""Loss of digits by an intercept above which a block of the inverse is computed by projection."""


@dataclass
class HeldOutErrors:
    """Errors of rows that are left out of one system.

    Parameters
    ----------
    factor : TiledMatrix or MemoryMatrix
        L, with L Lᵀ = A.
    right_sides : ndarray of shape (n, t)
        C y.
    constant : ndarray of shape (n,), optional
        c, with an intercept.
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
    def _solutions(self) -> tuple[Array, Array | None, Array]:
        """A⁻¹ C y without an intercept, v, and β."""
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
    def solution_without_intercept(self) -> Array:
        """A⁻¹ C y, without an intercept, of shape (n, t)."""
        return self._solutions[0]

    @cached_property
    def constants(self) -> Array:
        """b, the intercepts of the fit of all rows, of shape (t,)."""
        if self.constant is None:
            return np.zeros(self.right_sides.shape[1])
        return np.asarray((self._direction @ substituted(self.factor, self.right_sides, (False,))) / self._total)

    @property
    def solution(self) -> Array:
        """β of all rows, of shape (n, t)."""
        return self._solutions[2]

    def of_rows(self) -> Array:
        """Scaled errors of every single row, of shape (n, t)."""
        diagonal = np.empty(len(self.right_sides))

        def squares(meter: Meter, columns: slice) -> None:
            x = self._forward(meter, np.arange(columns.start, columns.stop))
            np.einsum("ij,ij->j", x, x, out=diagonal[columns])

        n = len(diagonal)
        strips = [slice(k, min(k + INVERSE_STRIP_COLUMNS, n)) for k in range(0, n, INVERSE_STRIP_COLUMNS)]
        self._run([Task(f"inverse-{s.start}", squares, (s,), flops=float((n - s.start) ** 2)) for s in strips])
        v = self._solutions[1]
        if v is not None:
            taken = v * (v / self._total)  # v² may be out of float64's range
            diagonal -= taken
            lost = np.flatnonzero(~(MAX_CANCELLATION * diagonal > taken))
            for start in range(0, len(lost), INVERSE_STRIP_COLUMNS):
                rows = lost[start : start + INVERSE_STRIP_COLUMNS]
                z = self._projected(self._forward(Meter(), rows))
                diagonal[rows] = np.einsum("ij,ij->j", z, z)
        return np.asarray(self.solution / diagonal[:, None])

    def of_folds(self, folds: Sequence[Numbers]) -> list[Array]:
        """Scaled errors of the rows of every fold, which are in ascending order; of shape (len(fold), t) each."""
        found: list[Array] = []
        for together in batches(folds):
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
            (k, slice(start, min(start + INVERSE_STRIP_COLUMNS, len(rows))))
            for k, rows in enumerate(folds)
            for start in range(0, len(rows), INVERSE_STRIP_COLUMNS)
        ]
        for name, function in (("inverse", invert), ("block", multiply)):
            tasks = [Task(f"{name}-{k}-{c.start}", function, (k, c)) for k, c in strips]
            self._run(tasks, 0.5 * sum(map(len, folds)) / len(self.right_sides))
        return blocks

    def of_stored_folds(self, folds: Sequence[Numbers], inverse: "StoredInverse") -> list[Array]:
        """`of_folds` of some folds whose columns of L⁻¹ are in a store, one fold after the other."""
        places = inverse.places_of([len(rows) for rows in folds])
        blocks = self._grams(inverse.blocks(), places)

        def projected(here: Numbers) -> Array:
            return self._grams(self._projected_blocks(inverse, here), [np.arange(len(here))])[0]

        each = zip(folds, blocks, places, strict=True)
        return [self._errors(rows, block, partial(projected, here)) for rows, block, here in each]

    def _grams(self, blocks: Iterator[tuple[slice, Array]], places: Sequence[Numbers]) -> list[Array]:
        """Lower triangles of XᵀX of some columns of X, each, from rows of X that are read one block after another."""
        found = [np.zeros((len(here), len(here))) for here in places]

        def add(meter: Meter, k: int, x: Array, columns: slice) -> None:
            with meter.time("gemm"):
                blas.gemm(
                    found[k][columns, : columns.stop], x[:, columns], x[:, : columns.stop], transpose_a=True, beta=1.0
                )

        for _, whole in blocks:
            tasks = []
            for k, here in enumerate(places):
                x = whole if len(here) == whole.shape[1] and (np.diff(here) == 1).all() else whole.take(here, axis=1)
                strips = range(0, len(here), INVERSE_STRIP_COLUMNS)
                columns = [slice(start, min(start + INVERSE_STRIP_COLUMNS, len(here))) for start in strips]
                tasks += [Task(f"block-{k}-{c.start}", add, (k, x, c)) for c in columns]
            self.executor.run(tasks, Progress())
        return found

    def _projected_blocks(self, inverse: "StoredInverse", here: Numbers) -> Iterator[tuple[slice, Array]]:
        """(I − w wᵀ / wᵀw) X of some columns, a block of all rows at a time; see `_projected`."""
        w, taken = self._direction, np.zeros(len(here))
        for _ in range(2):
            left = np.zeros(len(here))
            for where, x in inverse.blocks(is_whole=True):
                left += w[where] @ (x.take(here, axis=1) - np.outer(w[where], taken))
            taken = taken + left / self._total
        for where, x in inverse.blocks(is_whole=True):
            yield where, x.take(here, axis=1) - np.outer(w[where], taken)

    def without_stored(self, folds: Sequence[Numbers], forward: Sequence[Array]) -> list[tuple[Array, Array]]:
        """`without` of every fold, from L⁻¹E_F e_F of shape (n, t): one sweep over the factor for all of them."""
        t = self.right_sides.shape[1]
        z = np.hstack(forward)
        constants = np.tile(self.constants, len(folds))
        if self.constant is not None:
            constants = constants - (self._direction @ z) / self._total
            z = self._projected(z)
        solutions = np.tile(self.solution, len(folds)) - substituted(self.factor, z, (True,))
        found = []
        for f, rows in enumerate(folds):
            one = np.ascontiguousarray(solutions[:, f * t : (f + 1) * t])
            one[rows] = 0.0
            found.append((one, constants[f * t : (f + 1) * t]))
        return found

    def _errors(self, rows: Numbers, block: Array, projected: Callable[[], Array] | None = None) -> Array:
        v, beta = self._solutions[1], self.solution[rows]
        if v is None:
            return _solve_block(block, beta, rows)
        taken = v[rows] / np.sqrt(self._total)
        with suppress(NotPositiveDefiniteError):
            found = _solve_block(block - np.outer(taken, taken), np.column_stack([beta, taken]), rows)
            if taken @ found[:, -1] < MAX_CANCELLATION:  # tᵀ(B − t tᵀ)⁻¹t, large where B − t tᵀ is nearly singular
                return found[:, :-1]
        if projected is not None:
            return _solve_block(projected(), beta, rows)
        z = self._projected(self._forward(Meter(), rows))
        return _solve_block(z.T @ z, beta, rows)

    def without(self, rows: Numbers, errors: Array) -> tuple[Array, Array]:
        """β and intercepts of the fit without some rows, from their errors; shapes (n, t) and (t,)."""
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


def _solve_block(block: Array, right_sides: Array, rows: Numbers) -> Array:
    """B⁻¹ times right-hand sides, from the lower triangle of B; `rows` are those of the block, for the message."""
    try:
        factor = scipy.linalg.cho_factor(block, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError as error:
        raise NotPositiveDefiniteError(
            "a block of the inverse is not positive definite: λ is below what rounding in K allows", int(rows[0])
        ) from error
    return np.asarray(scipy.linalg.cho_solve(factor, right_sides, check_finite=False))


def batches(folds: Sequence[Numbers]) -> Iterator[Sequence[Numbers]]:
    """Consecutive folds of at most BATCH_COLUMNS rows together, or one fold."""
    start, width = 0, 0
    for k, rows in enumerate(folds):
        if k > start and width + len(rows) > BATCH_COLUMNS:
            yield folds[start:k]
            start, width = k, 0
        width += len(rows)
    if folds:
        yield folds[start:]


@dataclass(frozen=True)
class IdentityColumns:
    """Columns of the identity, as right-hand sides that are read a tile row at a time."""

    columns: Numbers
    """Numbers of the columns, ascending where they are solved for."""
    grid: TileGrid

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.grid.n, len(self.columns)

    @property
    def chunks(self) -> tuple[int, int]:
        """Rows that are read together, and columns."""
        return self.grid.tile, len(self.columns)

    def read(self, coordinates: tuple[int, ...], out: Array) -> int:
        """Write a tile row to `out`; no bytes are read."""
        rows = self.grid.rows(coordinates[0])
        out[:] = 0.0
        here = np.flatnonzero((rows.start <= self.columns) & (self.columns < rows.stop))
        out[self.columns[here] - rows.start, here] = 1.0
        return 0


@dataclass(frozen=True)
class StoredInverse:
    """Columns X = L⁻¹E of the inverse of a factor in a store, in strips of ascending columns.

    A strip begins at the tile row of its first column, above which it is zero.
    """

    columns: Numbers
    """Numbers of all columns, ascending."""
    order: Numbers
    """Place of each of them in the order in which they were asked for."""
    sweeps: Sequence[Substitution]
    """Substitution of every strip."""

    @classmethod
    def of(
        cls, factor: Matrix, columns: Numbers, vectors: Callable[[str, TileGrid, int], ChunkedArray]
    ) -> "StoredInverse":
        """Sweeps to be run for some columns, with a function that gives arrays of a store by name."""
        order, grid, sweeps = np.argsort(columns, kind="stable"), factor.grid, list[Substitution]()
        for k, strip in enumerate(strips_of(columns[order], grid.n)):
            cuts = tuple(range(int(strip[0]) // grid.tile, grid.n_tiles + 1))
            solution = vectors(f"strip-{k}", grid, len(strip))
            sums = vectors(f"sums-{k}", sums_grid(grid), len(strip))
            sides: Any = IdentityColumns(strip, grid)  # which is read as an array of a store
            sweeps.append(Substitution(factor, sides, solution, False, cuts, NEAR_TILES, tiles_per_sum(grid), sums))
        return cls(columns[order], order, sweeps)

    def tasks(self) -> list[Task]:
        """Tasks that are not done yet."""
        return [task for k, one in enumerate(self.sweeps) for task in substitution_tasks(one, f"inverse-{k}")]

    def places_of(self, sizes: Sequence[int]) -> list[Numbers]:
        """Places of consecutive groups of columns, as they were asked for, among the ascending ones."""
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(self.order))
        return np.split(place, np.cumsum(sizes)[:-1])

    def blocks(self, *, is_whole: bool = False) -> Iterator[tuple[slice, Array]]:
        """Rows of X, of shape (height, columns), a tile row at a time from the first that is not zero, or from 0."""
        grid = self.sweeps[0].factor.grid
        for q in range(0 if is_whole else self.sweeps[0].cuts[0], grid.n_tiles):
            rows, strips = grid.rows(q), list[Array]()
            for one in self.sweeps:
                width = one.right_sides.shape[1]
                is_zero = q < one.cuts[0]
                strips.append(np.zeros((grid.height(q), width)) if is_zero else read_range(one.solution, rows))
            yield rows, strips[0] if len(strips) == 1 else np.hstack(strips)

    def times(self, vectors: Array) -> Array:
        """X V of shape (n, m), for rows of V in the order in which the columns were asked for."""
        out = np.zeros((self.sweeps[0].factor.grid.n, vectors.shape[1]))
        for where, x in self.blocks():
            blas.gemm(out[where], x, np.ascontiguousarray(vectors[self.order]))
        return out


def strips_of(columns: Numbers, n: int) -> list[Numbers]:
    """Ascending columns in strips, more of them the more rows are between the first and the last one."""
    n_strips = 1 + round((MAX_STRIPS - 1) * float(columns[-1] - columns[0]) / n)
    return np.array_split(columns, min(n_strips, len(columns)))


def stored_flops(grid: TileGrid, columns: Numbers) -> float:
    """Operations of the tasks of a `StoredInverse` of ascending columns."""
    total = 0.0
    for strip in strips_of(columns, grid.n):
        n_tiles = grid.n_tiles - int(strip[0]) // grid.tile
        total += 2.0 * len(strip) * grid.tile**2 * n_tiles * (n_tiles + 1) / 2
    return total


def stored_work(grid: TileGrid, n_folds: int, n_right_sides: int) -> Work:
    """Work of the models without each of some folds of consecutive rows, from a factor in a store.

    The factor is read about once for each batch of folds and three times besides; X is written with its sums and read
    by the sums, twice in all, and for its square.
    """
    n, batch = grid.n, columns_at_once(grid.n, n_folds)
    n_batches = -(-n // batch)
    inverse, n_sums = 8.0 * n * n / 2, sums_grid(grid).n / grid.n
    sweeps = 2.0 * n**2 * n_right_sides * (n_folds + 4)
    return Work(
        gemm_flops=folds_flops(n, n_folds) + sweeps,
        read_bytes=factor_bytes(grid) * (n_batches / 3 + 4) + inverse * (2 + grid.n_tiles / 3),
        written_bytes=inverse * (1 + n_sums / 3) + 8.0 * n * n_right_sides * n_folds,
        n_tasks=n_batches * substitution_work(grid, 1).n_tasks,
        disk_bytes=stored_disk_bytes(grid, n_folds, n_right_sides),
    )


def stored_disk_bytes(grid: TileGrid, n_folds: int, n_right_sides: int) -> int:
    """Space of the columns of L⁻¹ of one batch of folds with their sums, and of the results of all folds."""
    batch = columns_at_once(grid.n, n_folds)
    return 8 * batch * (grid.n + sums_grid(grid).n) + 8 * n_right_sides * (n_folds * grid.n + grid.n)


def stored_bytes(grid: TileGrid, n_folds: int, slots: int) -> int:
    """Most memory of the calling process besides n × t arrays: tasks with a few tile rows of X each, and XᵀX."""
    batch = columns_at_once(grid.n, n_folds)
    panels = N_SLOTS * 8 * grid.tile * grid.panel
    return slots * (8 * batch * grid.tile * (NEAR_TILES + 3) + panels) + 8 * batch * (2 * grid.tile + 3 * batch)


def columns_at_once(n: int, n_folds: int) -> int:
    """Largest number of columns of L⁻¹ that are in memory at once for folds of about the same size."""
    return max(-(-n // n_folds), min(n, BATCH_COLUMNS))


def folds_flops(n: int, n_folds: int) -> float:
    """Operations for the errors of folds of about the same size: L⁻¹, blocks of its square, and their factors."""
    return n**3 * (1 / 3 + (n_folds + 1) / (2 * n_folds**2) + 1 / (3 * n_folds**2))
