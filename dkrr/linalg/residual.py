"""The true residual of a solution, from the matrix itself and not from its factor.

The product that it takes also multiplies a random vector, for an estimate of the condition number (see
`dkrr.linalg.condition`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.blas import column_norms
from dkrr.cluster import Executor, Progress, RunRecord
from dkrr.cluster.tasks import Meter, Task
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.condition import Moments, SolvedProbe, condition_number, multiplied_probe
from dkrr.linalg.gram_products import TiledOperator
from dkrr.linalg.sources import TileSource, Vectors, read_range
from dkrr.store import TileGrid

Array = NDArray[np.float64]


MIN_INTERCEPT_RESIDUAL = 1e-10
"""Relative residual above which its component along the intercept's column is subtracted."""
CHECK_STRIP_ENTRIES = 2**16
"""Entries of vectors that a check copies at once."""


@dataclass(frozen=True)
class Check:
    """Residual, energies and condition number of a solution of (A + diag(s)) X = B, from one product A X."""

    residual: float
    """Largest ‖B − (A + diag(s)) X‖ / ‖B‖ of a column."""
    squares: Array
    """XᵀAX by columns, of shape (t,)."""
    condition: float
    """Estimate of κ₂ of A + diag(s) with its diagonal scaled to ones; see dkrr.linalg.condition."""
    constants: Array | float = 0.0
    """Correction to add to the intercepts, of shape (t,), with which the residual is computed; see
    `subtract_intercept_residual`."""


def without_intercept(vectors: Array, constants: Array | None) -> Array:
    """Replace [U, v, P] by [U − v b, P], as a view of the same memory.

    Solutions and right-hand sides of a fit with an intercept are combined alike, and what is then checked are the
    coefficients themselves: where u and v b cancel, their own residuals say nothing of the difference.

    Parameters
    ----------
    vectors : ndarray of shape (n, t + 1 + p)
        Overwritten.
    constants : ndarray of shape (k, t), optional
        Terms of b, the intercepts, each of which is subtracted separately; None: nothing is done.

    Returns
    -------
    ndarray of shape (n, t + p)
    """
    if constants is None:
        return vectors
    t = constants.shape[1]
    for rows in _strips(vectors):
        for term in constants:
            vectors[rows, :t] -= vectors[rows, t : t + 1] * term
        vectors[rows, t:-1] = vectors[rows, t + 1 :]
    return vectors[:, :-1]


def subtract_intercept_residual(residuals: Array, constant: Array) -> tuple[Array, float]:
    """Subtract from residuals the multiples of the intercept's column that they contain.

    The intercept of a solution is the quotient of two sums, right to their rounding, which a large weight
    multiplies in the residual: there Σwr/Σw is left of it, and belongs to it.

    Parameters
    ----------
    residuals : ndarray of shape (n, t)
        Overwritten.
    constant : ndarray of shape (n,)
        c = √w.

    Returns
    -------
    constants : ndarray of shape (t,)
        cᵀr / cᵀc.
    intercept_norm : float
        ‖c‖.
    """
    intercept_norm = float(column_norms(constant[:, None])[0])
    if not intercept_norm > 0:  # no row has a weight
        return np.zeros(residuals.shape[1]), intercept_norm
    unit = constant / intercept_norm
    components = unit @ residuals
    for rows in _strips(residuals):
        residuals[rows] -= unit[rows, None] * components
    return components / intercept_norm, intercept_norm


def energies(x: Array, product: Array) -> Array:
    """XᵀAX by columns, from X and A X, both of shape (n, t)."""
    if x.shape[1] == 1:
        return np.array([x[:, 0] @ product[:, 0]])
    return np.einsum("ij,ij->j", x, product)  # type: ignore[no-any-return]


def _strips(vectors: Array) -> Iterator[slice]:
    """Ranges of rows whose temporary arrays stay in cache."""
    n, m = vectors.shape
    height = max(1, CHECK_STRIP_ENTRIES // max(m, 1))
    for start in range(0, n, height):
        yield slice(start, min(start + height, n))


@dataclass(frozen=True)
class SystemSolution:
    """Solution of (A + diag(s)) X = B, and of a random right-hand side after B, for the condition number.

    Vectors are in chunks of tile rows if they are stored.
    """

    x: Array
    """X, of shape (n, m)."""
    probe: SolvedProbe
    shift: Vectors
    """s, of shape (n, 1)."""
    right_sides: Vectors
    """B and the probe after it, of shape (n, m + 1)."""
    solution: Vectors
    """X and the solution for the probe, of shape (n, m + 1)."""
    scaling: Vectors | None
    """D of A + diag(s), with which the probe was made, of shape (n, 1); None: ones."""


def checked(solved: SystemSolution, multiply: Callable[[Array], Array], constants: Array | None) -> Check:
    """Check a solution by one product.

    Parameters
    ----------
    solved : SystemSolution
        In memory; its vectors are overwritten.
    multiply : callable
        Gives A V.
    constants : ndarray of shape (k, t), optional
        See `without_intercept`.
    """
    right_sides, x, shift, probe = solved.right_sides, solved.solution, solved.shift, solved.probe
    assert isinstance(right_sides, np.ndarray) and isinstance(x, np.ndarray) and isinstance(shift, np.ndarray)
    # What overflows becomes a residual or a condition number that is not finite.
    with np.errstate(over="ignore", invalid="ignore"):
        x[:, -1] = probe.vector
        x = np.ascontiguousarray(without_intercept(x, constants))
        found = _contribution(right_sides, shift, x, multiply(x), constants, probe.scaling)
        condition = condition_number(found.multiplied, probe.moments)
        (norms, sizes), corrections = found.norms, found.constants
        whole = relative_by_columns(np.hypot(norms, found.intercept_norm * corrections), sizes).max()
        if whole <= MIN_INTERCEPT_RESIDUAL:
            return Check(float(whole), found.squares, condition, np.zeros(len(corrections)))
        return Check(float(relative_by_columns(norms, sizes).max()), found.squares, condition, corrections)


class _Contribution(NamedTuple):
    """Contribution of one tile row, or of all rows, to a check."""

    norms: tuple[Array, Array]
    """Norms of the residuals and of the right-hand sides, of shape (m,) each."""
    squares: Array
    multiplied: Moments
    """Moments of the probe and its product."""
    constants: Array
    """Intercepts that have been subtracted from the residuals, of shape (m,)."""
    intercept_norm: float
    """Norm of the intercept's column."""


def _joined(contributions: Sequence[_Contribution]) -> tuple[float, Array]:
    """Largest relative residual over all rows, and the intercepts that have been subtracted from it, of shape (m,).

    They are taken only where they matter: the product that they follow from is added in an order that depends on the
    number of workers, and the intercept of a run does not.
    """
    intercept_norms, constants = (
        np.array([[c.intercept_norm] for c in contributions]),
        np.array([c.constants for c in contributions]),
    )
    whole = relative([(np.hypot(c.norms[0], c.intercept_norm * c.constants), c.norms[1]) for c in contributions])
    if whole <= MIN_INTERCEPT_RESIDUAL:
        return whole, np.zeros(constants.shape[1])
    shares = intercept_norms / np.maximum(column_norms(intercept_norms), np.finfo(float).tiny)
    common = np.einsum("pm,pm->m", np.broadcast_to(shares**2, constants.shape), constants)
    others = (intercept_norms * (constants - common), np.zeros_like(constants))
    norms = [c.norms for c in contributions] + [(r, s) for r, s in zip(*others, strict=True)]
    return relative(norms), common


def _contribution(
    right_sides: Array, shift: Array, vectors: Array, product: Array, constants: Array | None, scaling: Array | None
) -> _Contribution:
    """Check X, from `vectors` = [X, D⁻¹z] and `product` = A [X, D⁻¹z]; that and `right_sides` are overwritten."""
    t = vectors.shape[1] - 1
    sizes = column_norms(right_sides[:, :t])
    constant = None if constants is None else right_sides[:, t].copy()
    b = without_intercept(right_sides, constants)[:, :t]
    squares = energies(vectors[:, :t], product[:, :t])
    for rows in _strips(vectors):
        product[rows] += shift[rows] * vectors[rows]
    multiplied = Moments.of_multiplied(vectors[:, -1], product[:, -1], scaling)
    r = product[:, :t]
    np.subtract(b, r, out=r)
    correction, intercept_norm = (np.zeros(t), 0.0) if constant is None else subtract_intercept_residual(r, constant)
    return _Contribution((column_norms(r), sizes), squares, multiplied, correction, intercept_norm)


@dataclass(frozen=True)
class TiledSolution:
    """(A + diag(s)) X = B in tiles and its solution, without the factor, which may be gone by now.

    Vectors are in chunks of tile rows if they are stored. The last column of B is the probe, that of X what it became.
    """

    source: TileSource
    """Tiles of A."""
    grid: TileGrid
    shift: Vectors
    """s, of shape (n, 1)."""
    right_sides: Vectors
    """B, of shape (n, m + 1)."""
    solution: Vectors
    """X, of shape (n, m + 1)."""
    scaling: Vectors | None = None
    """D of A + diag(s), with which the probe was made, of shape (n, 1)."""

    @classmethod
    def of(cls, source: TileSource, grid: TileGrid, solution: SystemSolution) -> "TiledSolution":
        """System with its tiles, and its solution."""
        return cls(source, grid, solution.shift, solution.right_sides, solution.solution, solution.scaling)


def check_tiled(
    solved: TiledSolution, constants: Array | None, executor: Executor, progress: Progress, slots: int
) -> tuple[Check, RunRecord]:
    """Check a solution with the tiles of the matrix.

    Few columns are multiplied by half the matrix, of which each entry is used twice. That takes vectors as long as the
    matrix in every task; for many columns every task keeps to one tile row, and the whole matrix is formed.

    Parameters
    ----------
    solved : TiledSolution
    constants : ndarray of shape (k, t), optional
        See `without_intercept`.
    executor : Executor
    progress : Progress
    slots : int
        Tasks that run at once.
    """
    grid, m = solved.grid, solved.solution.shape[1]
    with progress.stage("true residual", 2.0 * grid.n**2 * m):
        if not uses_symmetry(grid, m):
            tasks = residual_tasks(solved, constants)
            record = executor.run(tasks, progress)
            values = record.values()
            contributions = [values[task.key] for task in tasks]
            with np.errstate(over="ignore", invalid="ignore"):
                squares = np.sum([p.squares for p, _ in contributions], axis=0)
                residual, correction = _joined([p for p, _ in contributions])
            multiplied, of_solved = (
                Moments.total([p.multiplied for p, _ in contributions]),
                Moments.total([s for _, s in contributions]),
            )
            return Check(residual, squares, condition_number(multiplied, of_solved), correction), record
        operator, everything = TiledOperator(solved.source, grid, executor, "residual", slots), slice(0, grid.n)
        b, shift, x = (read_range(v, everything) for v in (solved.right_sides, solved.shift, solved.solution))
        scaling = _range(solved.scaling, everything)
        probe = SolvedProbe.of_solution(b[:, -1], x[:, -1], scaling)
        whole = SystemSolution(x[:, :-1], probe, shift, b, x, scaling)
        return checked(whole, operator.multiply, constants), operator.record


def uses_symmetry(grid: TileGrid, m: int) -> bool:
    """Whether whole vectors take no more memory in a task than the strips of a factorisation."""
    return grid.n * m <= grid.tile * grid.panel


def residual_tasks(solved: TiledSolution, constants: Array | None = None) -> list[Task]:
    """Tasks whose values are the contributions of the tile rows to a check."""
    grid = solved.grid
    return [
        Task(
            f"residual-{i}",
            residual_rows,
            (solved, constants, i),
            flops=2.0 * grid.height(i) * grid.n * solved.solution.shape[1],
        )
        for i in range(grid.n_tiles)
    ]


def residual_rows(
    meter: Meter, solved: TiledSolution, constants: Array | None, i: int
) -> tuple[_Contribution, Moments]:
    """Task: contribution of tile row i to a check, and the moments of the probe z and A⁻¹ z."""
    grid, right_sides, solution, scaling = solved.grid, solved.right_sides, solved.solution, solved.scaling
    rows = grid.rows(i)
    product = np.zeros((grid.height(i), solution.shape[1] - (constants is not None)))
    for j in range(grid.n_tiles):
        x = read_range(solution, grid.rows(j))
        x[:, -1] = multiplied_probe(read_range(right_sides, grid.rows(j))[:, -1], _range(scaling, grid.rows(j)))
        x = np.ascontiguousarray(without_intercept(x, constants))
        # A source gives tiles on or below the diagonal; the one above is its transpose.
        low, high = max(i, j), min(i, j)
        tile = np.empty((grid.height(low), grid.height(high)))
        solved.source.fill(meter, tile, grid.rows(low), grid.rows(high))
        with meter.time("gemm"):
            if i == j:
                mirror_lower(tile)
            blas.gemm(product, tile, x, transpose_a=j > i, beta=1.0)
    b, here = read_range(right_sides, rows), read_range(solution, rows)
    scale = _range(scaling, rows)
    with np.errstate(over="ignore", invalid="ignore"):
        of_solved = Moments.of_solved(b[:, -1], here[:, -1], scale)
        here[:, -1] = multiplied_probe(b[:, -1], scale)
        shift = read_range(solved.shift, rows)
        return _contribution(b, shift, without_intercept(here, constants), product, constants, scale), of_solved


def _range(vector: Vectors | None, rows: slice) -> Array | None:
    return None if vector is None else read_range(vector, rows)[:, 0]


def relative(norms: list[tuple[Array, Array]]) -> float:
    """Largest ‖residual‖ / ‖right-hand side‖ over the columns (the residual itself where a column is zero).

    NaN if any of them is NaN, or infinite on both sides.

    Parameters
    ----------
    norms : list of (ndarray of shape (m,), ndarray of shape (m,))
        Norms of both by columns, over blocks of rows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if len(norms) == 1:
            return _relative(*norms[0])
        return _relative(*(column_norms(np.array(n)) for n in zip(*norms, strict=True)))


def relative_by_columns(residual: Array, size: Array) -> Array:
    """‖residual‖ / ‖right-hand side‖ of every column, from the norms of both, of shape (m,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(residual / np.where(size == 0, 1.0, size))


def _relative(residual: Array, size: Array) -> float:
    return float(relative_by_columns(residual, size).max())
