"""Selection in the primal form: sums over the rows of every fold from one pass, which have the squared errors, too.

A training set has the sums of the other folds. With approximate coefficients θ and the
residuals r = y − Φθ, the rows that are left out have the sum of squared errors

    ‖r_v − Φ_v δ‖² = r_vᵀr_v − 2 δᵀΦ_vᵀr_v + δᵀΦ_vᵀΦ_v δ        (with √w in Φ and r),    δ = β − θ,

whose terms are no larger than it where δ is small. Other scores, and sums that would cancel, take a second pass.
Leave-one-out takes the errors of all rows over 1 − wᵢ φᵢᵀ(ΦᵀWΦ + λI)⁻¹φᵢ, where the second term is the leverage of the
row; where that is nearly 1, see `loo_errors_high_leverage`.

References
----------
R. D. Cook, S. Weisberg, "Residuals and Influence in Regression", Chapman and Hall 1982.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Progress, SerialExecutor, Task, ThreadExecutor
from dkrr.cluster.tasks import Meter
from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.data import TargetSizes, TrainingData
from dkrr.fitting.primal_rows import (
    MIN_ONE_MINUS_LEVERAGE,
    MapSegments,
    NormalSums,
    centred_sums,
    feature_blocks,
    loo_errors_high_leverage,
    rows_in_block,
    sums_of_others,
)
from dkrr.fitting.results import scale_of
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.normal import parts_for_folds
from dkrr.linalg.refinement import in_terms_of_alpha
from dkrr.linalg.result import INACCURATE_ABOVE
from dkrr.selection.folds import Folds
from dkrr.selection.scores import Report, ScoreSheet

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

SCORE_ACCURACY = 1e-9
"""Largest rounding error of a score from sums, relative to it; where it may be larger, the rows are predicted."""
SAMPLE_PER_FEATURE = 8
"""Rows for each feature in the sample whose solution is θ: residuals are then hardly larger than errors."""
MIN_ROWS_PER_SAMPLE_ROW = 16
"""Fewest rows for each row of the sample: with fewer, a second pass costs little more than the sample."""
STRIPS = 8
"""Stretches of rows that make up the sample, since neighbours may be alike."""


def in_segments(progress: Progress, n: int, parts: int) -> MapSegments:
    """Values of a function of the first row and the last but one, for segments of the rows; a thread for each."""

    def each(stage: str, function: Callable[[int, int], Any]) -> list[Any]:
        cuts = [round(k * n / parts) for k in range(parts + 1)]
        tasks = [Task(f"{stage}-{a}", _in_task, (function, a, b)) for a, b in pairwise(cuts) if b > a]
        with progress.stage(stage, float(len(tasks))):
            if parts == 1:  # BLAS has the threads
                return [r.value for r in SerialExecutor().run(tasks, progress).tasks]
            with ThreadExecutor(parts) as executor:
                return [r.value for r in executor.run(tasks, progress).tasks]

    return each


class PrimalFolds:
    """Scores of every λ and fold in the primal form, in the calling process.

    Parameters
    ----------
    data : TrainingData
        With a feature map.
    folds : Folds
    progress : Progress
    n_threads : int
    """

    def __init__(self, data: TrainingData, folds: Folds, progress: Progress, n_threads: int) -> None:
        assert data.feature_map is not None
        self._data, self._folds, self._progress = data, folds, progress
        self._means, self._n_features = data.target_means(), data.feature_map.dimension(data.rows.shape[1])
        self._width = self._n_features + (1 if data.fit_intercept else 0)
        self._n_targets, self._sizes = data.targets.shape[1], TargetSizes.of(data, self._means).ordinary
        parts = parts_for_folds(data.n, self._width, 1 if folds.is_loo else len(folds), n_threads)
        self._each = in_segments(progress, data.n, parts)

    def score(self, alphas: Array, sheet: ScoreSheet, report: Report) -> None:
        """Enter the scores of every λ, and how far rounding lets them be trusted.

        Raises
        ------
        NotPositiveDefiniteError
            If the matrix of a training set is not positive definite; the message names λ.
        """
        self._report = report
        if self._folds.is_loo:
            self._score_each_row(alphas, sheet)
        else:
            self._score_folds(alphas, sheet)

    def _take_rounding(
        self, fold: int, sums: NormalSums, alphas: Array, solved: Sequence[tuple[Array, Array]], sizes: Array
    ) -> None:
        """Report what rounding may change in the predictions of every λ, relative to the sizes of targets or errors."""
        for a, (alpha, (factor, coef)) in enumerate(zip(alphas.tolist(), solved, strict=True)):
            found = sums.rounding(alpha, factor, coef, self._n_features)
            relative = found / np.where(sizes[a] > 0, sizes[a], 1.0)
            self._report.add_residual(a, fold, float(relative.max()), INACCURATE_ABOVE)

    def _residuals(self, where: slice, features: Array, about: Array | None, means: Array | float) -> Array:
        """Targets of some rows, without means and without what some coefficients predict."""
        targets = self._data.targets[where] - means
        if about is not None:
            blas.gemm(targets, features, about, alpha=-1.0, beta=1.0)
        return targets

    def _weights(self, where: slice) -> Array | None:
        return None if self._data.weights is None else self._data.weights[where]

    def _sums(
        self, sets: Sequence[Numbers], others: NDArray[np.bool_], about: Array | None
    ) -> tuple[list[NormalSums], NormalSums]:
        """Sums of the rows of every set, and of the rows of a mask, from one pass."""

        def of_segment(start: int, stop: int) -> list[NormalSums]:
            found = [NormalSums.zeros(self._width, self._n_targets) for _ in range(len(sets) + 1)]
            for where, features in feature_blocks(self._data, start, stop):
                targets = self._residuals(where, features, about, self._means)
                weights, rest = self._weights(where), others[where]
                chosen: list[Any] = [rows_in_block(rows, where)[1] for rows in sets]
                chosen.append(slice(None) if rest.all() else np.flatnonzero(rest))
                for one, here in zip(found, chosen, strict=True):
                    one.add(features[here], targets[here], None if weights is None else weights[here])
            return found

        first, *rest = self._each("normal matrix", of_segment)
        while rest:
            for one, other in zip(first, rest.pop(0), strict=True):
                one.include(other)
        return first[:-1], first[-1]

    def _solve(self, sums: NormalSums, alpha: float, about: Array | None = None) -> tuple[Array, Array]:
        """Factor, and coefficients of shape (p, t)."""
        with in_terms_of_alpha([alpha], "primal", partial(scale_of, self._data, "primal")):
            return sums.solved(alpha, self._n_features, about)

    def _score_folds(self, alphas: Array, sheet: ScoreSheet) -> None:
        folds, t, n_alphas = self._folds, self._n_targets, len(alphas)
        takes_sums = sheet.takes_squares and folds.train_on_the_rest
        about = self._sample_solution(float(alphas[n_alphas // 2])) if takes_sums else None
        held, training = self._sums_of_folds(about)
        coefs, squares = list[Array](), np.zeros((len(folds), n_alphas * t))
        certain = np.full(n_alphas, takes_sums)
        for f, trained in enumerate(training):
            coefs.append(self._coefs(f, trained, alphas, about))
            if takes_sums:
                squares[f], is_exact = _squared_errors(held[f], coefs[f], len(folds.test[f]))
                certain &= is_exact.reshape(n_alphas, t).all(axis=1)
            if about is not None:
                coefs[f] += np.tile(about, n_alphas)
        for a in np.flatnonzero(certain):
            for f, rows in enumerate(folds.test):
                total = len(rows) if self._data.weights is None else self._data.weights[rows].sum()
                sheet.add_squares(int(a), f, squares[f, a * t : (a + 1) * t], float(total))
        if not certain.all():
            self._predict(np.flatnonzero(~certain), coefs, sheet)

    def _coefs(self, fold: int, sums: NormalSums, alphas: Array, about: Array | None) -> Array:
        """Coefficients of all λ, (p, n_alphas t), from the sums of a fold's training rows if these determine them."""
        try:
            solved = [self._solve(sums, alpha, about) for alpha in alphas.tolist()]
        except NotPositiveDefiniteError:
            if not self._data.fit_intercept:
                raise
            return self._centred_coefs(fold, alphas, about)
        if self._is_lost(sums, alphas, solved):
            return self._centred_coefs(fold, alphas, about)
        self._take_rounding(fold, sums, alphas, solved, np.tile(self._sizes, (len(alphas), 1)))
        return np.hstack([coef for _, coef in solved])

    def _is_lost(self, sums: NormalSums, alphas: Array, solved: Sequence[tuple[Array, Array]]) -> bool:
        """Whether the free constant may have taken digits of the features."""
        return self._data.fit_intercept and any(
            sums.has_lost_digits(alpha, factor, self._n_features)
            for alpha, (factor, _) in zip(alphas.tolist(), solved, strict=True)
        )

    def _centred_coefs(self, fold: int, alphas: Array, about: Array | None) -> Array:
        """Coefficients of all λ, (p, n_alphas t), from sums without the means of the fold's training rows."""
        sums, means = centred_sums(self._data, self._folds.training(fold), self._each, about)
        solved = [self._solve(sums, alpha, about) for alpha in alphas.tolist()]
        self._take_rounding(fold, sums, alphas, solved, np.tile(self._sizes, (len(alphas), 1)))
        coef = np.hstack([one for _, one in solved])
        last = self._n_features
        coef[last] += np.tile(means[last + 1 :] - self._means, len(alphas)) - means[:last] @ coef[:last]
        return coef

    def _sums_of_folds(self, about: Array | None) -> tuple[list[NormalSums], Iterator[NormalSums]]:
        """Sums of the rows that each fold holds out (none where they do not matter), and those of its training rows."""
        folds, n = self._folds, self._data.n
        if not folds.train_on_the_rest:
            sums, _ = self._sums([folds.training(f) for f in range(len(folds))], np.zeros(n, bool), about)
            return [], iter(sums)
        counts = np.bincount(np.concatenate(folds.test), minlength=n)
        if counts.max() == 1:
            held, rest = self._sums(folds.test, counts == 0, about)
            return held, sums_of_others(held, rest)
        held, whole = self._sums(folds.test, np.ones(n, bool), about)
        return held, (
            whole.without(one) or self._sums([folds.training(f)], np.zeros(n, bool), about)[0][0]
            for f, one in enumerate(held)
        )

    def _sample_solution(self, alpha: float) -> Array | None:
        """Approximate coefficients, of shape (p, t), from a sample; None where there are too few rows."""
        n, rows = self._data.n, self._data.rows
        size = SAMPLE_PER_FEATURE * self._width
        if n < MIN_ROWS_PER_SAMPLE_ROW * size:
            return None
        # Where a stretch is cut from a large chunk, several would read most of the rows.
        strips = STRIPS if MIN_ROWS_PER_SAMPLE_ROW * STRIPS * rows.read_overhead_bytes <= rows.n_bytes else 1
        sums = NormalSums.zeros(self._width, self._n_targets)
        for k in range(strips):
            start = k * n // strips
            for where, features in feature_blocks(self._data, start, start + -(-size // strips)):
                sums.add(features, self._residuals(where, features, None, self._means), self._weights(where))
        try:
            return sums.solved(alpha * size / n, self._n_features)[1]
        except NotPositiveDefiniteError:  # without a sample sums may cancel, which costs a second pass
            return None

    def _predict(self, chosen: Numbers, coefs: Sequence[Array], sheet: ScoreSheet) -> None:
        """Score some λ by the predictions of the rows that are held out, in a pass over all rows."""
        folds, t, n_alphas = self._folds, self._n_targets, len(chosen)
        columns = (chosen[:, None] * t + np.arange(t)).ravel()
        coefs = [np.ascontiguousarray(coef[:, columns]) for coef in coefs]
        kept = [] if sheet.takes_squares else [np.empty((len(rows), n_alphas * t)) for rows in folds.test]

        def of_segment(start: int, stop: int) -> tuple[Array, Array]:
            squares, totals = np.zeros((len(folds), n_alphas * t)), np.zeros(len(folds))
            for where, features in feature_blocks(self._data, start, stop):
                for f, rows in enumerate(folds.test):
                    numbers, here = rows_in_block(rows, where)
                    if numbers.start == numbers.stop:
                        continue
                    predictions = blas.product(features[here], coefs[f])
                    errors = predictions.reshape(len(predictions), n_alphas, t)
                    errors += self._means
                    if kept:
                        kept[f][numbers] = predictions
                        continue
                    errors -= self._data.targets[where][here][:, None]
                    weights = np.ones(len(errors)) if self._data.weights is None else self._data.weights[where][here]
                    np.square(predictions, out=predictions)
                    squares[f] += weights @ predictions
                    totals[f] += weights.sum()
            return squares, totals

        parts = self._each("held-out errors", of_segment)
        squares, totals = (sum(part[k] for part in parts) for k in range(2))
        for k, a in enumerate(chosen.tolist()):
            for f in range(len(folds)):
                if kept:
                    sheet.add_predictions(a, f, kept[f][:, k * t : (k + 1) * t])
                else:
                    sheet.add_squares(a, f, squares[f, k * t : (k + 1) * t], float(totals[f]))

    def _of_all_rows(self, alphas: Array) -> tuple[NormalSums, list[tuple[Array, Array]], Array, Array]:
        """Sums, factor and coefficients of every λ, and means of features, (p,), and targets, (t,), that these lack."""
        _, sums = self._sums((), np.ones(self._data.n, bool), None)
        solved = [self._solve(sums, alpha) for alpha in alphas.tolist()]
        if not self._is_lost(sums, alphas, solved):
            return sums, solved, np.zeros(self._width), self._means
        sums, means = centred_sums(self._data, np.arange(self._data.n), self._each)
        means[self._n_features] = 0.0  # the constant stays
        solved = [self._solve(sums, alpha) for alpha in alphas.tolist()]
        return sums, solved, means[: self._width], means[self._width :]

    def _score_each_row(self, alphas: Array, sheet: ScoreSheet) -> None:
        data, t = self._data, self._n_targets
        sums, solved, means, target_means = self._of_all_rows(alphas)
        kept = [] if sheet.takes_squares else [np.empty((data.n, t)) for _ in alphas]

        def of_segment(start: int, stop: int) -> tuple[Array, list[tuple[int, Numbers]]]:
            squares, near = np.zeros((len(alphas), t)), list[tuple[int, Numbers]]()
            for where, features in feature_blocks(data, start, stop):
                features, targets = features - means, data.targets[where] - target_means
                weights = np.ones(len(features)) if data.weights is None else data.weights[where]
                for a, (factor, coef) in enumerate(solved):
                    inner = features.copy()
                    blas.solve_lower_right(factor, inner)
                    left = 1.0 - weights * np.einsum("ij,ij->i", inner, inner)
                    errors = targets - blas.product(features, coef)
                    is_near = left < MIN_ONE_MINUS_LEVERAGE
                    if is_near.any():  # entered below
                        near.append((a, where.start + np.flatnonzero(is_near)))
                        errors[is_near], left[is_near] = 0.0, 1.0
                    errors /= left[:, None]
                    if kept:
                        kept[a][where] = data.targets[where] - errors
                    squares[a] += weights @ errors**2
            return squares, near

        parts = self._each("held-out errors", of_segment)
        squares, near = sum(part[0] for part in parts), [one for part in parts for one in part[1]]
        if near:
            numbers = np.unique(np.concatenate([rows for _, rows in near]))
            found = loo_errors_high_leverage(data, self._means, numbers, alphas.tolist(), self._n_features)
            for a, rows in near:
                errors = found[a, np.searchsorted(numbers, rows)]
                if kept:
                    kept[a][rows] = data.targets[rows] - errors
                squares[a] += (np.ones(len(rows)) if data.weights is None else data.weights[rows]) @ errors**2
        # Squared errors may be those of a heavy row, beside which what rounding hides of the others does not count.
        sizes = np.sqrt(squares) if sheet.is_squared_error else np.tile(self._sizes, (len(alphas), 1))
        self._take_rounding(0, sums, alphas, solved, sizes)
        total = data.n if data.weights is None else data.weights.sum()
        for a in range(len(alphas)):
            if kept:
                sheet.add_predictions(a, 0, kept[a])
            else:
                sheet.add_squares(a, 0, squares[a], float(total))


def _in_task(meter: Meter, function: Callable[[int, int], Any], start: int, stop: int) -> Any:  # noqa: ARG001
    return function(start, stop)


def _squared_errors(sums: NormalSums, coefs: Array, n_rows: int) -> tuple[Array, NDArray[np.bool_]]:
    """Weighted sums of squared errors on rows, from their sums, and whether each is within `SCORE_ACCURACY`; (m,) each.

    An entry of ΦᵀWΦ is off by at most ε √(G_ii G_jj) times a factor that grows as the root of the number of rows, if
    rounding errors are as often positive as negative.

    Parameters
    ----------
    sums : NormalSums
        Its Gram matrix is mirrored.
    coefs : ndarray of shape (p, m)
        δ of all targets for one λ after another.
    n_rows : int
    """
    mirror_lower(sums.gram)
    repeats = coefs.shape[1] // len(sums.squares)
    right_sides, squares = np.tile(sums.right_sides, repeats), np.tile(sums.squares, repeats)
    products = blas.product(sums.gram, coefs)
    products -= 2.0 * right_sides
    found = squares + np.einsum("ij,ij->j", coefs, products)
    lengths = np.sqrt(np.maximum(sums.gram.diagonal(), 0.0))
    bound = np.finfo(float).eps * np.sqrt(n_rows) * (np.sqrt(squares) + lengths @ np.abs(coefs)) ** 2
    return found, bound <= SCORE_ACCURACY * found
