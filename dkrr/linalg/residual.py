"""The true residual of a solved system, from the matrix itself and not from its factor."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.linalg.cholesky import TiledSystem
from dkrr.linalg.operator import TiledOperator, column_norms
from dkrr.linalg.sources import TileSource, mirror_lower, read_range
from dkrr.runtime import Executor, Progress, RunRecord
from dkrr.runtime.task import Meter, Task
from dkrr.tiles import ChunkedArray, TileGrid

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """What one product A X says of a solution of (A + diag(s)) X = B."""

    residual: float
    """Largest ‖B − (A + diag(s)) X‖ / ‖B‖ of a column."""
    squares: Array
    """γᵀAγ of the combinations that make functions of the columns, of shape (t,); see `energies`."""


def energies(x: Array, product: Array, constants: Array | None) -> Array:
    """γᵀAγ by columns, of shape (t,).

    Parameters
    ----------
    x : ndarray of shape (n, t), or (n, t + 1) with constants
        X.
    product : ndarray of the same shape
        A X.
    constants : ndarray of shape (t,), optional
        b, the free constants: γ = u − v b, for the last column v of X; None: γ is X.
    """
    if constants is not None:
        x, product = (v[:, :-1] - v[:, -1:] * constants for v in (x, product))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.einsum("ij,ij->j", x, product)  # type: ignore[no-any-return]


def checked(right_sides: Array, shift: Array, x: Array, product: Array, constants: Array | None) -> Check:
    """Check a solution whose product is there.

    Parameters
    ----------
    right_sides : ndarray of shape (n, m)
        B.
    shift : ndarray of shape (n, 1)
        s.
    x : ndarray of shape (n, m)
        X.
    product : ndarray of shape (n, m)
        A X; overwritten.
    constants : ndarray of shape (t,), optional
        See `energies`.
    """
    squares = energies(x, product, constants)
    product += shift * x
    np.subtract(right_sides, product, out=product)
    return Check(relative([(column_norms(product), column_norms(right_sides))]), squares)


def check_tiled(
    system: TiledSystem,
    solution: ChunkedArray,
    constants: Array | None,
    executor: Executor,
    progress: Progress,
    slots: int,
) -> tuple[Check, RunRecord]:
    """Check a solution with the tiles of the matrix.

    Few columns are multiplied by half the matrix, of which each entry is used twice. That takes vectors as long as the
    matrix in every task; for many columns every task keeps to one tile row, and the whole matrix is formed.

    Parameters
    ----------
    system : TiledSystem
        With right-hand sides.
    solution : ChunkedArray of shape (n, m)
        X.
    constants : ndarray of shape (t,), optional
        See `energies`.
    executor : Executor
    progress : Progress
    slots : int
        Tasks that run at once.
    """
    assert system.right_sides is not None
    grid = system.grid
    if not uses_symmetry(grid, solution.shape[1]):
        tasks = residual_tasks(system.source, grid, system.shift, system.right_sides, solution, constants)
        record = executor.run(tasks, progress)
        values = record.values()
        parts = [values[t.key] for t in tasks]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.sum([p[2] for p in parts], axis=0)
        return Check(relative([p[:2] for p in parts]), squares), record
    operator = TiledOperator(system.source, grid, executor, "residual", slots)
    b, x = system.right_sides.load(), solution.load()
    return checked(b, system.shift.load(), x, operator.multiply(x), constants), operator.record


def uses_symmetry(grid: TileGrid, m: int) -> bool:
    """Whether whole vectors take no more memory in a task than the strips of a factorisation."""
    return grid.n * m <= grid.tile * grid.panel


def residual_tasks(
    source: TileSource,
    grid: TileGrid,
    shift: ChunkedArray,
    right_sides: ChunkedArray,
    solution: ChunkedArray,
    constants: Array | None = None,
) -> list[Task]:
    """Tasks whose values are the norms of B − (A + diag(s)) X and of B over one tile row, and γᵀAγ there, by column."""
    return [
        Task(
            f"residual-{i}",
            residual_rows,
            (source, grid, shift, right_sides, solution, constants, i),
            flops=2.0 * grid.height(i) * grid.n * solution.shape[1],
        )
        for i in range(grid.n_tiles)
    ]


def residual_rows(
    meter: Meter,
    source: TileSource,
    grid: TileGrid,
    shift: ChunkedArray,
    right_sides: ChunkedArray,
    solution: ChunkedArray,
    constants: Array | None,
    i: int,
) -> tuple[Array, Array, Array]:
    """Task: norms of the residual and of the right-hand sides over tile row i, each of shape (m,), and its γᵀAγ."""
    rows = grid.rows(i)
    product = np.zeros((grid.height(i), solution.shape[1]))
    for j in range(grid.n_tiles):
        x = read_range(solution, grid.rows(j))
        # A source gives tiles on or below the diagonal; the one above is its transpose.
        low, high = max(i, j), min(i, j)
        tile = np.empty((grid.height(low), grid.height(high)))
        source.fill(meter, tile, grid.rows(low), grid.rows(high))
        with meter.time("gemm"):
            if i == j:
                mirror_lower(tile)
            blas.gemm(product, tile, x, transpose_a=j > i, beta=1.0)
    b, here = read_range(right_sides, rows), read_range(solution, rows)
    squares = energies(here, product, constants)
    r = b - read_range(shift, rows) * here - product
    return column_norms(r), column_norms(b), squares


def relative(norms: list[tuple[Array, Array]]) -> float:
    """Largest ‖residual‖ / ‖right-hand side‖ over the columns (the residual itself where a column is zero).

    NaN if any of them is NaN, or infinite on both sides.

    Parameters
    ----------
    norms : list of (ndarray of shape (m,), ndarray of shape (m,))
        Norms of both by columns, over parts of the rows.
    """
    residual, size = (n[0] if len(n) == 1 else column_norms(n) for n in map(np.array, zip(*norms, strict=True)))
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.max(residual / np.where(size == 0, 1.0, size)))
