"""Programs over the rows of a primal fit, in the calling process: sums of parts of the rows, and errors of predictions.

Folds, leave-one-out errors, standard deviations and a fit that grows are made of these, for any `Features`.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Meter, Progress, Task, ThreadExecutor
from dkrr.data.rows import check_finite
from dkrr.fitting.data import TrainingData
from dkrr.fitting.reference import reference_of
from dkrr.fitting.results import scale_of
from dkrr.kernels.fourier_grid import FourierGrid
from dkrr.linalg.fourier_sums import FourierFeatures
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.linalg.sums import DenseFeatures, Features, NormalSolution, NormalSystem, Sums

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

MIN_ONE_MINUS_LEVERAGE = 1e-3
"""1 − leverage of a row below which its error follows from the other rows: at most one row per feature."""


def not_shown(n_rows: float) -> None:
    """Display nothing of the rows that were passed."""


@dataclass(frozen=True)
class PrimalRows:
    """Rows of a fit with weights and targets less their means, as programs pass over them.

    Parameters
    ----------
    data : TrainingData
    features : Features
    means : ndarray of shape (t,)
        Subtracted from the targets.
    n_threads : int
        Threads of this process that may pass over segments of the rows.
    n_sets : int
        Parts of the rows whose sums a pass forms at the same time.
    advance : callable
        Told the number of rows of every block that was passed.
    offset : (ndarray, ndarray), optional
        Coefficients, (D, t), and constants, (t,), whose predictions the targets are without, too.
    """

    data: TrainingData
    features: Features
    means: Array
    n_threads: int = 1
    n_sets: int = 1
    advance: Callable[[float], None] = not_shown
    offset: tuple[Array, Array] | None = None

    @classmethod
    def of(
        cls,
        data: TrainingData,
        n_threads: int,
        n_sets: int = 1,
        *,
        rank_limit: int = 0,
        progress: Progress | None = None,
        reference: Array | None = None,
    ) -> "PrimalRows":
        """Rows with the features of a fit.

        Parameters
        ----------
        data : TrainingData
            With a feature map.
        n_threads, n_sets : int
            See above.
        rank_limit : int
            See `FourierFeatures`.
        progress : Progress, optional
            Told the number of rows of every block.
        reference : ndarray of shape (D,), optional
            Of dense features; None: one near the mean of the rows, some of which are read.
        """
        phi, d, progress = data.feature_map, data.rows.shape[1], progress or Progress()
        assert phi is not None
        scale, features = partial(scale_of, data, "primal"), cast("Features | None", None)
        if isinstance(phi, FourierGrid):
            features = FourierFeatures(phi, d, n_threads, rank_limit, progress, scale)
        else:
            dense = DenseFeatures(phi, d, np.zeros(phi.dimension(d)), scale)
            if reference is None and data.fit_intercept:
                reference = reference_of(data, dense.matrix)
            features = dense if reference is None else replace(dense, reference=reference)
        return cls(data, features, data.target_means(), n_threads, n_sets, progress.advance)

    @property
    def n_targets(self) -> int:
        """Number of targets."""
        return int(self.data.targets.shape[1])

    def weights(self, rows: slice | Numbers) -> Array:
        """Weights of some rows, of shape (m,)."""
        if self.data.weights is None:
            return np.ones(rows.stop - rows.start if isinstance(rows, slice) else len(rows))
        return self.data.weights[rows]

    def targets(self, where: slice, block: Array) -> Array:
        """Targets of a block, of shape (m, t), that the caller may overwrite."""
        targets = self.data.targets[where] - self.means
        if self.offset is not None:
            targets -= self.features.values(block, self.offset[0]) + self.offset[1]
        return targets

    def over_segments(
        self, function: Callable[[Iterator[tuple[slice, Array]]], Any], start: int = 0, stop: int | None = None
    ) -> list[Any]:
        """Values of a function of the blocks of every segment of the rows: where they are, and what `Features` takes.

        Raises
        ------
        InputError
            If the rows hold NaN or infinity.
        """
        rows, lock, end = self.data.rows, threading.Lock(), self.data.n if stop is None else stop
        height = self.features.block_rows(rows.dense_window_row_bytes, self.n_targets)

        def blocks(first: int, last: int) -> Iterator[tuple[slice, Array]]:
            for where, x in rows.even_blocks(first, last, height):
                check_finite(x, "X", where.start)
                yield where, self.features.block(x)
                with lock:
                    self.advance(where.stop - where.start)

        def of_segment(meter: Meter, first: int, last: int) -> Any:  # noqa: ARG001
            return function(blocks(first, last))

        count = self.features.segments(end - start, self.n_sets, self.n_threads)
        cuts = [start + round(k * (end - start) / count) for k in range(count + 1)]
        segments = [(a, b) for a, b in pairwise(cuts) if b > a]
        if len(segments) == 1:
            return [function(blocks(*segments[0]))]
        tasks = [Task(f"rows-{a}", of_segment, (a, b)) for a, b in segments]
        with ThreadExecutor(len(segments)) as executor:
            return [record.value for record in executor.run(tasks, Progress()).tasks]

    def over_blocks(self, function: Callable[[slice, Array], Any]) -> list[Any]:
        """Values of a function of every block; see `over_segments`."""
        parts = self.over_segments(lambda blocks: [function(where, block) for where, block in blocks])
        return [value for part in parts for value in part]

    def sums(self, sets: Sequence[Numbers | None]) -> list[Any]:
        """Sums of the rows of every set, whose numbers ascend (None: of all rows), from one pass."""

        def of_segment(blocks: Iterator[tuple[slice, Array]]) -> list[Sums]:
            found = [self.features.new_sums(self.n_targets) for _ in sets]
            for where, block in blocks:
                targets = self.targets(where, block)
                weights = None if self.data.weights is None else self.data.weights[where]
                for one, rows in zip(found, sets, strict=True):
                    here = slice(None) if rows is None else rows_in_block(rows, where)[1]
                    one.add(block[here], targets[here], None if weights is None else weights[here])
            return found

        first, *rest = self.over_segments(of_segment)
        while rest:
            for one, other in zip(first, rest.pop(0), strict=True):
                one.include(other)
        return list(first)

    def system(self, sums: Sums, alpha: float, rows: Callable[[], Numbers | None] = lambda: None) -> NormalSystem:
        """Normal equations of some rows from their sums, which are repeated about their means if they lost digits.

        Parameters
        ----------
        sums : Sums
        alpha : float
            Smallest λ.
        rows : callable
            Gives the numbers of the rows of the sums, in ascending order; None: all.
        """
        found = sums.system(has_intercept=self.data.fit_intercept)
        repeated = self.repeated(found, alpha, rows)
        if repeated is None:
            return found
        again = repeated[1].system(has_intercept=self.data.fit_intercept)
        return replace(again, means=again.means + found.means)

    def repeated(
        self, found: NormalSystem, alpha: float, rows: Callable[[], Numbers | None] = lambda: None
    ) -> "tuple[PrimalRows, Sums] | None":
        """Rows about the means of a system that has lost digits, and its sums; None where it has not. See `system`."""
        features = self.features.about(found.means) if found.has_lost_digits(alpha) else None
        if features is None:
            return None
        offset = None if self.offset is None else (self.offset[0], self.offset[1] + found.means @ self.offset[0])
        about = replace(self, features=features, offset=offset, advance=not_shown)
        return about, about.sums([rows()])[0]

    def held_out_errors(self, solution: NormalSolution) -> Callable[[slice, Array], tuple[Array, Numbers]]:
        """Function of a block that gives the errors of its rows by the model of all other rows.

        They are the errors over 1 − leverage. Returned with them are the numbers of the rows where that difference has
        too few digits; `loo_errors_high_leverage` has theirs.
        """
        leverages = self.features.leverages(solution)
        coef, constants = solution.coef, solution.constants

        def of_block(where: slice, block: Array) -> tuple[Array, Numbers]:
            left = 1.0 - self.weights(where) * leverages(block)
            is_near = left < MIN_ONE_MINUS_LEVERAGE
            errors = self.targets(where, block) - constants - self.features.values(block, coef)
            errors /= np.where(is_near, 1.0, left)[:, None]
            return errors, np.asarray(where.start + np.flatnonzero(is_near))

        return of_block

    def loo_errors_high_leverage(self, numbers: Numbers, alphas: Sequence[float]) -> Array:
        """Errors of a few rows, each by the model of all other rows, for every λ; of shape (n_alphas, m, t).

        With B the matrix of the rows outside, U = L⁻¹Φᵀ√W of the rows inside, B = L Lᵀ, and r their scaled errors by
        B's solution, the scaled error of row i is cᵢ / [(UᵀU + I)⁻¹]ᵢᵢ for c = (UᵀU + I)⁻¹r: neither term cancels for
        a row that dominates, where 1 − its leverage does.

        Parameters
        ----------
        numbers : ndarray of shape (m,)
            Rows of positive weight.
        alphas : sequence of float

        Raises
        ------
        NotPositiveDefiniteError
            If the matrix of the other rows is not positive definite; the message names λ.
        """
        data = self.data
        n_positive = data.n if data.weights is None else np.count_nonzero(data.weights)
        # An intercept needs a row outside.
        cuts = [1] if data.fit_intercept and len(numbers) == n_positive else []
        return np.concatenate([self._loo_errors_high_leverage(part, alphas) for part in np.split(numbers, cuts)], 1)

    def _loo_errors_high_leverage(self, numbers: Numbers, alphas: Sequence[float]) -> Array:
        others = np.delete(np.arange(self.data.n), numbers)
        rows = replace(self, advance=not_shown)
        system = rows.system(rows.sums([others])[0], min(alphas), lambda: others)
        roots, features = np.sqrt(self.weights(numbers)), self.features.matrix(self.data.rows.take(numbers))
        targets, found = self.data.targets[numbers] - self.means, np.empty((len(alphas), len(numbers), self.n_targets))
        for a, alpha in enumerate(alphas):
            with in_terms_of_alpha([alpha], "primal"):
                solution = system.solution(alpha)
            inner = features - solution.means
            blas.solve_lower_right(solution.lower, inner)
            if solution.has_intercept:
                inner = np.column_stack([inner, np.full(len(inner), 1.0 / np.sqrt(solution.total))])
            errors = targets - solution.constants - features @ solution.coef
            found[a] = loo_errors(inner * roots[:, None], errors * roots[:, None], roots)
        return found


def loo_errors(inner: Array, errors: Array, roots: Array) -> Array:
    """Errors of rows by the model of all rows but each of them, of shape (m, t).

    Parameters
    ----------
    inner : ndarray of shape (m, p)
        Uᵀ; see `PrimalRows.loo_errors_high_leverage`.
    errors : ndarray of shape (m, t)
        Scaled errors by the model of the rows outside.
    roots : ndarray of shape (m,)
        Roots of their weights.
    """
    unit = np.eye(len(inner))
    inverse = scipy.linalg.solve_triangular(np.linalg.cholesky(inner @ inner.T + unit), unit, lower=True)
    return np.asarray(inverse.T @ (inverse @ errors) / (np.einsum("ij,ij->j", inverse, inverse) * roots)[:, None])


def rows_in_block(rows: Numbers, where: slice) -> tuple[slice, Numbers | slice]:
    """Which of some rows, in ascending order, lie in a block, and where there: a slice if they follow each other."""
    first, stop = (int(k) for k in np.searchsorted(rows, (where.start, where.stop)))
    here = rows[first:stop]
    if len(here) and here[-1] - here[0] + 1 == len(here):
        begin = int(here[0]) - where.start
        return slice(first, stop), slice(begin, begin + len(here))
    return slice(first, stop), here - where.start
