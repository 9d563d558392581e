"""Selection in the primal form: sums over the rows of every fold from one pass, which have the squared errors, too.

A training set has the sums of the other folds. With approximate coefficients θ and the
residuals r = y − Φθ, the rows that are left out have the sum of squared errors

    ‖r_v − Φ_v δ‖² = r_vᵀr_v − 2 δᵀΦ_vᵀr_v + δᵀΦ_vᵀΦ_v δ        (with √w in Φ and r),    δ = β − θ,

whose terms are no larger than it where δ is small. Other scores, sums that would cancel, and Fourier features take a
second pass. Leave-one-out takes the errors of all rows over 1 − wᵢ φᵢᵀ(ΦᵀWΦ + λI)⁻¹φᵢ, where the second term is the
leverage of the row; where that is nearly 1, see `PrimalRows.loo_errors_high_leverage`.

References
----------
R. D. Cook, S. Weisberg, "Residuals and Influence in Regression", Chapman and Hall 1982.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress
from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.data import TargetSizes, TrainingData
from dkrr.fitting.primal_rows import PrimalRows, not_shown, rows_in_block
from dkrr.linalg.sums import NormalSolution, Sums, sums_of_others
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
"""Strips of rows that make up the sample, since neighbours may be alike."""


class PrimalFolds:
    """Scores of every λ and fold in the primal form, in the calling process.

    Parameters
    ----------
    data : TrainingData
        With a feature map.
    folds : Folds
    progress : Progress
    n_threads : int
    rank_limit : int
        Most columns of a partial factor, with which conjugate gradient solves for all λ of a fold on a Fourier grid;
        0: a complete factor for each of them.
    """

    def __init__(
        self, data: TrainingData, folds: Folds, progress: Progress, n_threads: int, rank_limit: int = 0
    ) -> None:
        self._data, self._folds, self._progress = data, folds, progress
        self._rows = PrimalRows.of(
            data, n_threads, 1 if folds.is_loo else len(folds), rank_limit=rank_limit, progress=progress
        )
        self._features = self._rows.features
        self._n_targets, self._sizes = data.targets.shape[1], TargetSizes.of(data, self._rows.means).ordinary

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

    def _report_certainty(self, fold: int, a: int, solution: NormalSolution, sizes: Array, *, of_rows: bool) -> None:
        """Report what rounding may change in the predictions of a λ, relative to the sizes of targets or errors."""
        for found, limit in self._features.certainty(solution, sizes, of_rows=of_rows):
            self._report.add_residual(a, fold, found, limit)

    def _sums(self, rows: PrimalRows, sets: Sequence[Numbers | None]) -> list[Any]:
        with self._progress.stage("normal matrix", float(self._data.n)):
            return rows.sums(sets)

    def _score_folds(self, alphas: Array, sheet: ScoreSheet) -> None:
        folds, t, n_alphas = self._folds, self._n_targets, len(alphas)
        takes_sums = sheet.takes_squares and folds.train_on_the_rest and self._features.has_exact_squares
        offset = self._sample_solution(float(alphas[n_alphas // 2])) if takes_sums else None
        rows = replace(self._rows, offset=offset)
        held, training = self._sums_of_folds(rows)
        coefs, constants, squares = list[Array](), list[Array](), np.zeros((len(folds), n_alphas * t))
        certain = np.full(n_alphas, takes_sums)
        for f, sums in enumerate(training):
            system = rows.system(sums, float(alphas.min()), partial(folds.training, f))
            found = self._features.solutions(system, alphas, None if offset is None else offset[0])
            for a, solution in enumerate(found):
                self._report_certainty(f, a, solution, self._sizes, of_rows=False)
            coefs.append(np.hstack([one.coef for one in found]))
            constants.append(np.concatenate([one.constants for one in found]))
            if takes_sums:
                squares[f], bounds = held[f].squared_errors(coefs[f], constants[f], len(folds.test[f]))
                certain &= (bounds <= SCORE_ACCURACY * squares[f]).reshape(n_alphas, t).all(axis=1)
            if offset is not None:
                coefs[f] += np.tile(offset[0], n_alphas)
                constants[f] += np.tile(offset[1], n_alphas)
        for a in np.flatnonzero(certain).tolist():
            for f, test in enumerate(folds.test):
                total = float(self._rows.weights(test).sum())
                sheet.add_squares(a, f, squares[f, a * t : (a + 1) * t], total)
        if not certain.all():
            self._predict(np.flatnonzero(~certain), coefs, constants, sheet)

    def _sums_of_folds(self, rows: PrimalRows) -> tuple[list[Any], Iterator[Sums]]:
        """Sums of the rows that each fold holds out (none where they do not matter), and those of its training rows."""
        folds, n = self._folds, self._data.n
        if not folds.train_on_the_rest:
            return [], iter(self._sums(rows, [folds.training(f) for f in range(len(folds))]))
        counts = np.bincount(np.concatenate(folds.test), minlength=n)
        if counts.max() == 1:
            *held, rest = self._sums(rows, [*folds.test, np.flatnonzero(counts == 0)])
            return held, sums_of_others(held, rest)
        *held, whole = self._sums(rows, [*folds.test, None])
        return held, (whole.without(one) or self._sums(rows, [folds.training(f)])[0] for f, one in enumerate(held))

    def _sample_solution(self, alpha: float) -> tuple[Array, Array] | None:
        """Approximate coefficients, (D, t), and constants, (t,), from a sample; None where there are too few rows."""
        data, rows = self._data, replace(self._rows, n_threads=1, advance=not_shown)
        n, size = data.n, SAMPLE_PER_FEATURE * (self._features.dimension + 1)
        if n < MIN_ROWS_PER_SAMPLE_ROW * size:
            return None
        # Where a strip is cut from a large chunk, several would read most of the rows.
        strips = STRIPS if MIN_ROWS_PER_SAMPLE_ROW * STRIPS * data.rows.read_overhead_bytes <= data.rows.n_bytes else 1
        sums = self._features.new_sums(self._n_targets)

        def add(blocks: Iterator[tuple[slice, Array]]) -> None:
            for where, block in blocks:
                sums.add(block, rows.targets(where, block), None if data.weights is None else data.weights[where])

        for k in range(strips):
            start = k * n // strips
            rows.over_segments(add, start, start + -(-size // strips))
        try:
            found = sums.system(has_intercept=data.fit_intercept).solution(alpha * size / n)
        except NotPositiveDefiniteError:  # without a sample sums may cancel, which costs a second pass
            return None
        return found.coef, found.constants

    def _predict(self, chosen: Numbers, coefs: Sequence[Array], constants: Sequence[Array], sheet: ScoreSheet) -> None:
        """Score some λ by the predictions of the rows that are held out, in a pass over all rows."""
        folds, t, n_alphas, rows = self._folds, self._n_targets, len(chosen), self._rows
        columns = (chosen[:, None] * t + np.arange(t)).ravel()
        coefs = [np.ascontiguousarray(coef[:, columns]) for coef in coefs]
        constants = [constant[columns] for constant in constants]
        kept = [] if sheet.takes_squares else [np.empty((len(test), n_alphas * t)) for test in folds.test]

        def of_segment(blocks: Iterator[tuple[slice, Array]]) -> tuple[Array, Array]:
            squares, totals = np.zeros((len(folds), n_alphas * t)), np.zeros(len(folds))
            for where, block in blocks:
                for f, test in enumerate(folds.test):
                    numbers, here = rows_in_block(test, where)
                    if numbers.start == numbers.stop:
                        continue
                    predictions = self._features.values(block[here], coefs[f])
                    predictions += constants[f]
                    errors = predictions.reshape(len(predictions), n_alphas, t)
                    errors += rows.means
                    if kept:
                        kept[f][numbers] = predictions
                        continue
                    errors -= self._data.targets[where][here][:, None]
                    weights = rows.weights(where)[here]
                    np.square(predictions, out=predictions)
                    squares[f] += weights @ predictions
                    totals[f] += weights.sum()
            return squares, totals

        with self._progress.stage("held-out errors", float(self._data.n)):
            parts = rows.over_segments(of_segment)
        squares, totals = (sum(part[k] for part in parts) for k in range(2))
        for k, a in enumerate(chosen.tolist()):
            for f in range(len(folds)):
                if kept:
                    sheet.add_predictions(a, f, kept[f][:, k * t : (k + 1) * t])
                else:
                    sheet.add_squares(a, f, squares[f, k * t : (k + 1) * t], float(totals[f]))

    def _score_each_row(self, alphas: Array, sheet: ScoreSheet) -> None:
        data, t, rows = self._data, self._n_targets, self._rows
        system = rows.system(self._sums(rows, [None])[0], float(alphas.min()))
        solutions, measures = list[NormalSolution](), list[Callable[[slice, Array], tuple[Array, Numbers]]]()
        for a in range(len(alphas)):
            (solution,) = self._features.solutions(system, alphas[a : a + 1])
            measures.append(rows.held_out_errors(solution))
            solutions.append(replace(solution, factor=None))
        kept = [] if sheet.takes_squares else [np.empty((data.n, t)) for _ in alphas]

        def of_segment(blocks: Iterator[tuple[slice, Array]]) -> tuple[Array, list[tuple[int, Numbers]]]:
            squares, near = np.zeros((len(alphas), t)), list[tuple[int, Numbers]]()
            for where, block in blocks:
                for a, errors_of in enumerate(measures):
                    errors, numbers = errors_of(where, block)
                    if len(numbers):  # entered below
                        near.append((a, numbers))
                        errors[numbers - where.start] = 0.0
                    if kept:
                        kept[a][where] = data.targets[where] - errors
                    squares[a] += rows.weights(where) @ errors**2
            return squares, near

        with self._progress.stage("held-out errors", float(data.n)):
            parts = rows.over_segments(of_segment)
        squares, near = sum(part[0] for part in parts), [one for part in parts for one in part[1]]
        for a, some, errors in self._loo_errors_high_leverage(near, alphas):
            if kept:
                kept[a][some] = data.targets[some] - errors
            squares[a] += rows.weights(some) @ errors**2
        # Squared errors may be those of a heavy row, beside which what rounding hides of the others does not count.
        sizes = np.sqrt(squares) if sheet.is_squared_error else np.tile(self._sizes, (len(alphas), 1))
        for a, solution in enumerate(solutions):
            self._report_certainty(0, a, solution, sizes[a], of_rows=True)
        total = float(rows.weights(slice(0, data.n)).sum())
        for a in range(len(alphas)):
            if kept:
                sheet.add_predictions(a, 0, kept[a])
            else:
                sheet.add_squares(a, 0, squares[a], total)

    def _loo_errors_high_leverage(
        self, near: Sequence[tuple[int, Numbers]], alphas: Array
    ) -> Iterator[tuple[int, Numbers, Array]]:
        """Numbers of λ and of rows whose leverage is nearly 1, with their errors by the models of all other rows."""
        if near:
            numbers = np.unique(np.concatenate([some for _, some in near]))
            found = self._rows.loo_errors_high_leverage(numbers, alphas.tolist())
            for a, some in near:
                yield a, some, found[a, np.searchsorted(numbers, some)]
