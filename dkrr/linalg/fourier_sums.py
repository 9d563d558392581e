"""Sums over the rows on a Fourier grid, one for every difference of two waves, and the features that have such sums."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr.cluster import Meter, Progress, Task, ThreadExecutor
from dkrr.data.rows import dense
from dkrr.kernels.blocks import mirror_lower
from dkrr.kernels.fourier_grid import FourierGrid, Grid, flat_offsets
from dkrr.kernels.nonuniform import Complex, Transform
from dkrr.linalg.fourier_normal import CHUNK_ENTRIES, FourierNormalMatrix, finite_blocks, totals_of
from dkrr.linalg.fourier_solvers import CGSolver
from dkrr.linalg.in_memory_cholesky import FACTORED_SIDE
from dkrr.linalg.passes import Segment
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.linalg.sums import MIN_DIFFERENCE, NormalSolution, NormalSystem, cholesky_factor
from dkrr.store import ChunkedArray

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

MAX_BLOCK_ROWS, MAX_BLOCK_BYTES = 2**18, 2**26
"""Rows that are transformed together."""
MAX_ERROR = 1e-3
"""Largest relative error of held-out predictions with which they are certain."""
FOLD_ROUNDING, ROW_ROUNDING = 3e-16, 1e-14
"""Relative error that rounding leaves in errors of held-out folds and, where 1 − leverage cancels, of single rows, over
Σw k(x, x) / λ: ten and two times the largest that was measured in arithmetic of 60 digits."""
MAX_ITERATIONS, MAX_CG_RESIDUAL = 200, 1e-9
"""Iterations of conjugate gradient, and its relative residual above which complete factors take its place."""


@dataclass
class FourierSums:
    """Sums of some rows: of w, and of w y for every target, times e^{ikθ}; and of w y²."""

    grid: Grid
    modes: Complex
    """Sums of w, and of w y for every target, of shape (1 + t, *n_sum_modes)."""
    squares: Array
    """Sums of w y², of shape (t,)."""
    threads: int = 1
    """Threads of this process that form and multiply the matrix."""

    @classmethod
    def zeros(cls, grid: Grid, n_targets: int, threads: int = 1) -> Self:
        """Sums of no rows."""
        return cls(grid, np.zeros((1 + n_targets, *grid.n_sum_modes), np.complex128), np.zeros(n_targets), threads)

    @property
    def total(self) -> float:
        """W."""
        return float(totals_of(self.modes[:1])[0])

    def add(self, block: Array, targets: Array, weights: Array | None) -> None:
        """See `Sums`."""
        one = np.ones(len(block)) if weights is None else weights
        weighted, transform = targets * one[:, None], Transform(self.grid.angles(block), self.grid.n_sum_modes)
        self.modes += transform.to_modes(np.column_stack([one, weighted]))
        self.squares += np.einsum("ij,ij->j", weighted, targets)

    def include(self, other: Self) -> None:
        """See `Sums`."""
        self.modes += other.modes
        self.squares += other.squares

    def copy(self) -> Self:
        """See `Sums`."""
        return replace(self, modes=self.modes.copy(), squares=self.squares.copy())

    @property
    def means(self) -> tuple[Array, Array]:
        """See `Sums`."""
        return np.zeros(self.grid.dimension), totals_of(self.modes[1:]) / self.total

    def about(self, shift: Array, target_shift: Array) -> Self:
        """See `Sums`; `shift` is 0."""
        assert not shift.any(), "the features of a grid have no reference"
        modes, totals, total = self.modes.copy(), totals_of(self.modes[1:]), self.total
        modes[1:] -= target_shift.reshape(-1, *(1 for _ in self.grid.most)) * modes[0]
        squares = self.squares - target_shift * (2.0 * totals - total * target_shift)
        return replace(self, modes=modes, squares=squares)

    def without(self, other: Self) -> Self | None:
        """See `Sums`."""
        pairs = (self.total, other.total), (self.squares, other.squares)
        if any(np.any(whole - part < MIN_DIFFERENCE * whole) for whole, part in pairs):
            return None
        return replace(self, modes=self.modes - other.modes, squares=self.squares - other.squares)

    def of_targets(self, columns: Numbers) -> Self:
        """Sums of some of the targets."""
        return replace(self, modes=self.modes[[0, *(1 + columns)]], squares=self.squares[columns])

    def packed(self) -> Array:
        """See `Sums`."""
        return np.concatenate([self.modes.ravel().view(np.float64), self.squares])

    @classmethod
    def unpacked(cls, grid: Grid, numbers: Array, threads: int = 1) -> Self:
        """Undo `packed`."""
        n_modes = prod(grid.n_sum_modes)
        t = (len(numbers) - 2 * n_modes) // (2 * n_modes + 1)
        modes = numbers[: 2 * n_modes * (1 + t)].copy().view(np.complex128)
        return cls(grid, modes.reshape(1 + t, *grid.n_sum_modes), numbers[-t:].copy(), threads)

    def system(self, *, has_intercept: bool) -> NormalSystem:
        """See `Sums`; the matrix is formed where it is asked for."""
        totals, total = totals_of(self.modes[1:]), self.total
        is_centred = has_intercept and total > 0.0
        matrix = FourierNormalMatrix(self.grid, self.modes[0], is_centred, self.threads)
        target_means = totals / total if is_centred else np.zeros(len(totals))
        squares = self.squares - totals * target_means
        moments, diagonal = matrix.moments(self.modes[1:], totals), matrix.diagonal()
        return NormalSystem(matrix, moments, squares, total, matrix.means, target_means, diagonal, has_intercept)


@dataclass(frozen=True)
class FourierFeatures:
    """Features of a Fourier grid, by transforms of the rows."""

    phi: FourierGrid
    n_features: int
    """Columns of X."""
    threads: int = 1
    rank_limit: int = 0
    """Most columns of a partial factor, with which conjugate gradient solves for all λ; 0: a complete factor each."""
    progress: Progress = field(default_factory=Progress)
    scale: Callable[[], str] = str
    """See `DenseFeatures`."""

    has_exact_squares: ClassVar[bool] = False

    @cached_property
    def grid(self) -> Grid:
        """Grid of the features."""
        return self.phi.grid(self.n_features)

    @property
    def dimension(self) -> int:
        """D."""
        return self.grid.dimension

    @property
    def reference(self) -> Array:
        """0: the sums have the means as they are."""
        return np.zeros(self.dimension)

    def about(self, shift: Array) -> Self | None:  # noqa: ARG002
        """See `Features`."""
        return None

    def block_rows(self, row_bytes: int, n_targets: int) -> int:  # noqa: ARG002 - of the rows themselves
        """See `Features`."""
        return max(1, min(MAX_BLOCK_ROWS, MAX_BLOCK_BYTES // max(row_bytes, 1)))

    def segments(self, n: int, n_sets: int, n_threads: int) -> int:  # noqa: ARG002 - transforms are of one thread each
        """See `Features`."""
        return n_threads

    def block(self, x: Any) -> Array:
        """Rows themselves, dense."""
        return dense(x)

    def matrix(self, x: Any) -> Array:
        """See `Features`."""
        return self.phi.transform(dense(x))

    def new_sums(self, n_targets: int) -> FourierSums:
        """See `Features`."""
        return FourierSums.zeros(self.grid, n_targets, self.threads)

    def values(self, block: Array, coef: Array) -> Array:
        """See `Features`."""
        return Transform(self.grid.angles(block), self.grid.n_modes).to_points(self.grid.to_modes(coef))

    def leverages(self, solution: NormalSolution) -> Callable[[Array], Array]:
        """See `Features`."""
        modes = leverage_modes(self.grid, inverse_of(solution.lower), solution.means)
        modes[(0, *self.grid.middle)] += solution.inverse_of_total()
        return lambda block: leverages_of(self.grid, modes, block)

    def solutions(self, system: NormalSystem, alphas: Array, offset_coef: Array | None = None) -> list[NormalSolution]:
        """Solutions for every λ: by conjugate gradient at once, or by factors in threads side by side."""
        assert offset_coef is None, "squared errors are not those of the sums"
        if self.rank_limit:
            found = self._iterated(system, alphas)
            if found is not None:
                return found
        entries = system.matrix.matrix()

        def solve(meter: Meter, alpha: float) -> NormalSolution:  # noqa: ARG001
            with in_terms_of_alpha([alpha], "primal", self.scale):
                solution = system.solution(alpha, cholesky_factor(entries.copy(), alpha))
            return solution if len(alphas) == 1 else replace(solution, factor=None)  # of all λ they would be many

        tasks = [Task(f"factor-{k}", solve, (alpha,)) for k, alpha in enumerate(alphas.tolist())]
        with self.progress.measured("factorisation"), ThreadExecutor(self.threads) as executor:
            values = executor.run(tasks, Progress()).values()
        return [values[task.key] for task in tasks]

    def _iterated(self, system: NormalSystem, alphas: Array) -> list[NormalSolution] | None:
        """Solutions by conjugate gradient; None where complete factors are to take its place."""
        matrix, t = system.matrix, system.moments.shape[1]
        assert isinstance(matrix, FourierNormalMatrix)
        solver = CGSolver(matrix, float(alphas.min()), self.rank_limit, self.progress, MAX_ITERATIONS)
        coef = solver.solve(np.tile(system.moments, len(alphas)), np.repeat(alphas, t))
        solver.close()
        residuals = solver.residuals.reshape(len(alphas), t).max(axis=1)
        if residuals.max() > MAX_CG_RESIDUAL and matrix.n <= FACTORED_SIDE:
            return None
        parts = zip(alphas.tolist(), np.split(coef, len(alphas), axis=1), residuals.tolist(), strict=True)
        return [system.solution_of(alpha, part, residual=residual) for alpha, part, residual in parts]

    def certainty(self, solution: NormalSolution, sizes: Array, *, of_rows: bool) -> list[tuple[float, float]]:  # noqa: ARG002
        """See `Features`.

        A relative residual r changes predictions by up to ½ r √(Σw k(x, x) / λ) of the targets, as
        ‖Φ(A + λI)⁻¹‖ ≤ ½ λ^(−½); that of rounding is of A, and is divided by λ itself.
        """
        condition = solution.total * self.grid.unit / solution.alpha
        rounding = ROW_ROUNDING if of_rows else FOLD_ROUNDING
        return [(solution.residual, 2.0 * MAX_ERROR / math.sqrt(condition)), (rounding, MAX_ERROR / condition)]


def sums_of_segment(meter: Meter, phi: FourierGrid, segment: Segment, kept: ChunkedArray | None) -> Array | None:
    """Task: packed sums of a segment, returned or written where a run that resumes finds them."""
    sums = FourierSums.zeros(phi.grid(segment.rows.shape[1]), segment.targets.shape[1])
    targets, weights = segment.target_rows(), segment.weight_rows()
    for where, x in finite_blocks(meter, segment):
        with meter.time("transform"):
            sums.add(x, targets[where], None if weights is None else weights[where][:, 0])
    if kept is None:
        return sums.packed()
    meter.bytes_written += kept.write((0, 0), sums.packed()[:, None])
    return None


def leverage_modes(grid: Grid, inverse: Array, means: Array) -> Complex:
    """Coefficients of x ↦ (φ(x) − φ̄)ᵀ B (φ(x) − φ̄) on the modes of sums and differences, for one transform a row.

    Parameters
    ----------
    grid : Grid
    inverse : ndarray of shape (D, D)
        B, symmetric.
    means : ndarray of shape (D,)
        φ̄.
    """
    h, sizes = grid.n_cosines, grid.n_sum_modes
    n, middle = prod(sizes), prod(sizes) // 2
    offsets, scale = flat_offsets(grid.frequencies, sizes), grid.scale
    real, imaginary = np.zeros(n), np.zeros(n)

    def add(out: Array, at: Numbers, values: Array) -> None:
        out += np.bincount(at.ravel(), values.ravel(), n)

    for start in range(0, h, max(1, CHUNK_ENTRIES // h)):
        rows = slice(start, min(start + max(1, CHUNK_ENTRIES // h), h))
        minus = middle + offsets[rows, None] - offsets
        plus = middle + offsets[rows, None] + offsets
        both = 0.5 * scale[rows, None] * inverse[rows, :h] * scale[:h]
        add(real, minus, both)
        add(real, plus, both)
        sines = slice(max(rows.start, 1) + h - 1, rows.stop + h - 1)
        skipped = int(rows.start == 0)
        if sines.start >= sines.stop:
            continue
        both = 0.5 * scale[sines, None] * inverse[sines, h:] * scale[h:]
        add(real, minus[skipped:, 1:], both)
        add(real, plus[skipped:, 1:], -both)
        # sin a cos b = (sin(a + b) + sin(a − b)) / 2, from both sides of the diagonal.
        both = scale[sines, None] * inverse[sines, :h] * scale[:h]
        add(imaginary, plus[skipped:], both)
        add(imaginary, minus[skipped:], both)
    # Re Σ c e^{ikθ} with c₋ₖ = conj(cₖ) is Σ (cos kθ Re − sin kθ Im).
    found = real - 1j * imaginary
    product = scale * (inverse @ means)
    found[middle + offsets] -= 2.0 * product[:h]
    found[middle + offsets[1:]] += 2.0j * product[h:]
    found[middle] += means @ inverse @ means
    mirrored = np.asarray(found + np.conj(found[::-1]), np.complex128)
    mirrored *= 0.5
    return mirrored.reshape(1, *sizes)


def leverages_of(grid: Grid, modes: Complex, x: Array) -> Array:
    """Values of `leverage_modes` at rows, of shape (n,)."""
    return Transform(grid.angles(x, is_checked=False), grid.n_sum_modes).to_points(modes)[:, 0]


def inverse_of(factor: Array) -> Array:
    """(L Lᵀ)⁻¹, of shape (D, D)."""
    found, _ = scipy.linalg.lapack.dpotri(factor.T, lower=0)  # in Fortran's order Lᵀ is an upper factor
    out = np.ascontiguousarray(found.T)
    mirror_lower(out)
    return out
