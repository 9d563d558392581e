"""The true residual of a solved system, from the matrix itself and not from its factor."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.linalg.cholesky import TiledSystem
from dkrr.linalg.condition import Moments, condition_number, multiplied_probe
from dkrr.linalg.operator import TiledOperator, column_norms
from dkrr.linalg.sources import TileSource, mirror_lower, read_range
from dkrr.runtime import Executor, Progress, RunRecord
from dkrr.runtime.task import Meter, Task
from dkrr.tiles import ChunkedArray, TileGrid

Array = NDArray[np.float64]

STRIP_ENTRIES = 2**16
"""Entries of vectors that a check copies at once."""


@dataclass(frozen=True)
class Check:
    """What one product A X says of a solution of (A + diag(s)) X = B."""

    residual: float
    """Largest ‖B − (A + diag(s)) X‖ / ‖B‖ of a column."""
    squares: Array
    """γᵀAγ of the combinations that make functions of the columns, of shape (t,); see `energies`."""
    condition: float
    """Estimate of κ₂ of A + diag(s) with its diagonal scaled to ones; see dkrr.linalg.condition."""


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
    with np.errstate(over="ignore", invalid="ignore"):
        return _energies(x, product, constants)


def _energies(x: Array, product: Array, constants: Array | None) -> Array:
    if constants is None and x.shape[1] == 1:
        return np.array([x[:, 0] @ product[:, 0]])
    if constants is None:
        return np.einsum("ij,ij->j", x, product)  # type: ignore[no-any-return]
    total = np.zeros(len(constants))
    for rows in _strips(x):
        gamma, of_gamma = (v[rows, :-1] - v[rows, -1:] * constants for v in (x, product))
        total += np.einsum("ij,ij->j", gamma, of_gamma)
    return total


def _strips(vectors: Array) -> Iterator[slice]:
    """Ranges of rows whose temporary arrays stay in cache."""
    n, m = vectors.shape
    height = max(1, STRIP_ENTRIES // max(m, 1))
    return (slice(start, min(start + height, n)) for start in range(0, n, height))


def checked(
    right_sides: Array,
    shift: Array,
    x: Array,
    multiply: Callable[[Array], Array],
    constants: Array | None,
    scaling: Array | None,
) -> Check:
    """Check a solution by one product.

    Parameters
    ----------
    right_sides : ndarray of shape (n, m + 1)
        B, and the probe after it.
    shift : ndarray of shape (n, 1)
        s.
    x : ndarray of shape (n, m + 1)
        X, and what the probe became; its last column is overwritten.
    multiply : callable
        Gives A V.
    constants : ndarray of shape (t,), optional
        See `energies`.
    scaling : ndarray of shape (n,), optional
        D, of A + diag(s), with which the probe was made.
    """
    # What overflows becomes a residual or a condition number that is not finite.
    with np.errstate(over="ignore", invalid="ignore"):
        solved = Moments.of_solved(right_sides[:, -1], x[:, -1], scaling)
        x[:, -1] = multiplied_probe(right_sides[:, -1], scaling)
        part = _part(right_sides, shift, x, multiply(x), constants, scaling)
        return Check(_relative(*part.norms), part.squares, condition_number(part.multiplied, solved))


class _Part(NamedTuple):
    """What the rows of one tile row, or all rows, contribute to a check."""

    norms: tuple[Array, Array]
    """Norms of the residuals and of the right-hand sides, of shape (m,) each."""
    squares: Array
    multiplied: Moments
    """Moments of the probe and its product."""


def _part(
    right_sides: Array, shift: Array, vectors: Array, product: Array, constants: Array | None, scaling: Array | None
) -> _Part:
    """Check X, from `vectors` = [X, D⁻¹z] and `product` = A [X, D⁻¹z], which is overwritten."""
    squares = _energies(vectors[:, :-1], product[:, :-1], constants)
    for rows in _strips(vectors):
        product[rows] += shift[rows] * vectors[rows]
    multiplied = Moments.of_multiplied(vectors[:, -1], product[:, -1], scaling)
    b, r = right_sides[:, :-1], product[:, :-1]
    np.subtract(b, r, out=r)
    return _Part((column_norms(r), column_norms(b)), squares, multiplied)


def check_tiled(
    system: TiledSystem,
    solution: ChunkedArray,
    constants: Array | None,
    scaling: ChunkedArray | None,
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
        A system with right-hand sides, and the probe after them.
    solution : ChunkedArray of shape (n, m + 1)
        X, and what the probe became.
    constants : ndarray of shape (t,), optional
        See `energies`.
    scaling : ChunkedArray of shape (n, 1), optional
        D, of A + diag(s), with which the probe was made.
    executor : Executor
    progress : Progress
    slots : int
        Tasks that run at once.
    """
    assert system.right_sides is not None
    grid = system.grid
    if not uses_symmetry(grid, solution.shape[1]):
        tasks = residual_tasks(system.source, grid, system.shift, system.right_sides, solution, constants, scaling)
        record = executor.run(tasks, progress)
        values = record.values()
        parts = [values[t.key] for t in tasks]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.sum([p.squares for p, _ in parts], axis=0)
        multiplied, solved = Moments.total([p.multiplied for p, _ in parts]), Moments.total([s for _, s in parts])
        return Check(relative([p.norms for p, _ in parts]), squares, condition_number(multiplied, solved)), record
    operator = TiledOperator(system.source, grid, executor, "residual", slots)
    b, x = system.right_sides.load(), solution.load()
    whole = None if scaling is None else scaling.load()[:, 0]
    return checked(b, system.shift.load(), x, operator.multiply, constants, whole), operator.record


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
    scaling: ChunkedArray | None = None,
) -> list[Task]:
    """Tasks whose values are what a check takes from one tile row."""
    return [
        Task(
            f"residual-{i}",
            residual_rows,
            (source, grid, shift, right_sides, solution, constants, scaling, i),
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
    scaling: ChunkedArray | None,
    i: int,
) -> tuple[_Part, Moments]:
    """Task: what tile row i contributes to a check, and the moments of the probe z and A⁻¹ z."""
    rows = grid.rows(i)
    product = np.zeros((grid.height(i), solution.shape[1]))
    for j in range(grid.n_tiles):
        x = read_range(solution, grid.rows(j))
        x[:, -1] = multiplied_probe(read_range(right_sides, grid.rows(j))[:, -1], _range(scaling, grid.rows(j)))
        # A source gives tiles on or below the diagonal; the one above is its transpose.
        low, high = max(i, j), min(i, j)
        tile = np.empty((grid.height(low), grid.height(high)))
        source.fill(meter, tile, grid.rows(low), grid.rows(high))
        with meter.time("gemm"):
            if i == j:
                mirror_lower(tile)
            blas.gemm(product, tile, x, transpose_a=j > i, beta=1.0)
    b, here = read_range(right_sides, rows), read_range(solution, rows)
    scale = _range(scaling, rows)
    with np.errstate(over="ignore", invalid="ignore"):
        solved = Moments.of_solved(b[:, -1], here[:, -1], scale)
        here[:, -1] = multiplied_probe(b[:, -1], scale)
        return _part(b, read_range(shift, rows), here, product, constants, scale), solved


def _range(vector: ChunkedArray | None, rows: slice) -> Array | None:
    return None if vector is None else read_range(vector, rows)[:, 0]


def relative(norms: list[tuple[Array, Array]]) -> float:
    """Largest ‖residual‖ / ‖right-hand side‖ over the columns (the residual itself where a column is zero).

    NaN if any of them is NaN, or infinite on both sides.

    Parameters
    ----------
    norms : list of (ndarray of shape (m,), ndarray of shape (m,))
        Norms of both by columns, over parts of the rows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if len(norms) == 1:
            return _relative(*norms[0])
        return _relative(*(column_norms(np.array(n)) for n in zip(*norms, strict=True)))


def _relative(residual: Array, size: Array) -> float:
    return float((residual / np.where(size == 0, 1.0, size)).max())
