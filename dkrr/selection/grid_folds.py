"""Selection on a Fourier grid: sums over the rows of every fold from one pass, and predictions from a second one.

A training set has the sums of the other folds; its matrix is gathered from them, and solved for each λ. Leave-one-out
takes the errors of all rows over 1 − their leverage, which is a sum of waves as variances are.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress, Task, ThreadExecutor
from dkrr.cluster.tasks import Meter
from dkrr.fitting.data import TrainingData
from dkrr.fitting.fourier_ridge import CGSolver
from dkrr.fitting.fourier_rows import FOLD_ROUNDING, MAX_ERROR, ROW_ROUNDING, GridModel, RowsOnGrid
from dkrr.fitting.posterior_fourier import errors_without
from dkrr.fitting.primal_rows import MIN_ONE_MINUS_LEVERAGE, rows_in_block, sums_of_others
from dkrr.linalg.fourier_normal import FourierNormalMatrix, GridSums, inverse_of, length_modes, lengths, totals_of
from dkrr.linalg.refinement import in_terms_of_alpha
from dkrr.planning.transforms import FACTORED_SIDE
from dkrr.selection.fold_sums import in_segments
from dkrr.selection.folds import Folds
from dkrr.selection.scores import Report, ScoreSheet

Array = NDArray[np.float64]

MAX_ITERATIONS = 200
ENOUGH = 1e-9
"""Relative residual of conjugate gradient above which complete factors take its place."""


class GridFolds:
    """Scores of every λ and fold, in threads of the calling process.

    Parameters
    ----------
    data : TrainingData
        Its feature map is a FourierGrid.
    folds : Folds
    progress : Progress
    n_threads : int
    rank_limit : int
        Most columns of a partial factor, with which conjugate gradient solves for all λ of a fold; 0: a complete factor
        for each of them.
    """

    def __init__(self, data: TrainingData, folds: Folds, progress: Progress, n_threads: int, rank_limit: int) -> None:
        self._data, self._folds, self._progress, self._threads = data, folds, progress, n_threads
        self._rank_limit = rank_limit
        self._rows = RowsOnGrid(data, data.target_means(), in_segments(progress, data.n, n_threads))

    def score(self, alphas: Array, sheet: ScoreSheet, report: Report) -> None:
        """Enter the scores of every λ, and the residuals of its systems with those that scores need.

        Raises
        ------
        NotPositiveDefiniteError
            If λ is below the rounding of the matrix of a training set; the message names λ.
        """
        if self._folds.is_loo:
            self._score_each_row(alphas, sheet, report)
            return
        rows, t, coefs, constants = self._rows, self._data.targets.shape[1], list[Array](), list[Array]()
        for f, sums in enumerate(self._training_sums()):
            coef, constant, residuals = (self._iterated if self._rank_limit else self._factored)(sums, alphas)
            self._check(alphas, f, residuals, FOLD_ROUNDING, float(totals_of(sums.modes[:1])[0]), report)
            coefs.append(coef)
            constants.append(constant + np.tile(rows.means, len(alphas)))
        self._predict(coefs, constants, sheet, len(alphas), t)

    def _check(self, alphas: Array, fold: int, residuals: Array, rounding: float, total: float, report: Report) -> None:
        """Take residuals of the normal equations, (n_alphas,), beside those that leave errors certain.

        A relative residual r changes predictions by up to ½ r √(Σw k(x, x) / λ) of the targets, as
        ‖Φ(A + λI)⁻¹‖ ≤ ½ λ^(−½); that of rounding is of A, and is divided by λ itself.
        """
        for a, condition in enumerate((total * self._rows.grid.unit / alphas).tolist()):
            report.add_residual(a, fold, float(residuals[a]), 2.0 * MAX_ERROR / math.sqrt(condition))
            report.add_residual(a, fold, rounding, MAX_ERROR / condition)

    def _training_sums(self) -> "Sequence[GridSums]":
        """Sums of the training rows of every fold."""
        folds, rows, n = self._folds, self._rows, self._data.n
        counts = np.bincount(np.concatenate(folds.test), minlength=n)
        if folds.train_on_the_rest and counts.max() == 1:
            *held, rest = rows.sums([*folds.test, np.flatnonzero(counts == 0)])
            return list(sums_of_others(held, rest))
        return rows.sums([folds.training(f) for f in range(len(folds))])

    def _iterated(self, sums: GridSums, alphas: Array) -> tuple[Array, Array, Array]:
        """Coefficients, (D, n_alphas t), constants, and residuals of all λ, (n_alphas,), by conjugate gradient."""
        centred, t = self._data.fit_intercept, self._data.targets.shape[1]
        generator = FourierNormalMatrix(self._rows.grid, sums.modes[0], centred, self._threads)
        totals = totals_of(sums.modes[1:])
        moments, each = generator.moments(sums.modes[1:], totals), np.repeat(alphas, t)
        solver = CGSolver(generator, float(alphas.min()), self._rank_limit, self._progress, MAX_ITERATIONS)
        coef = solver.solve(np.tile(moments, len(alphas)), each)
        solver.close()
        residuals = solver.residuals.reshape(len(alphas), t).max(axis=1)
        if residuals.max() > ENOUGH and generator.n <= FACTORED_SIDE:
            return self._factored(sums, alphas)
        means = np.tile(totals / generator.total, len(alphas))
        return coef, means - generator.means @ coef if centred else np.zeros(len(each)), residuals

    def _factored(self, sums: GridSums, alphas: Array) -> tuple[Array, Array, Array]:
        """The same by a factor for every λ, which threads compute side by side: its residuals are those of rounding."""
        grid, centred = self._rows.grid, self._data.fit_intercept
        matrix = FourierNormalMatrix(grid, sums.modes[0], centred, self._threads).matrix()

        def solve(meter: Meter, alpha: float) -> tuple[Array, Array]:  # noqa: ARG001
            with in_terms_of_alpha([alpha], "primal"):
                model = GridModel.of(grid, sums, alpha, matrix, centred=centred)
            return model.coef, model.constants

        tasks = [Task(f"factor-{k}", solve, (alpha,)) for k, alpha in enumerate(alphas.tolist())]
        with self._progress.stage("factorisation", float(len(tasks))), ThreadExecutor(self._threads) as executor:
            values = executor.run(tasks, self._progress).values()
        models = [values[task.key] for task in tasks]
        coefs, constants = zip(*models, strict=True)
        return np.hstack(coefs), np.concatenate(constants), np.zeros(len(alphas))

    def _predict(
        self, coefs: Sequence[Array], constants: Sequence[Array], sheet: ScoreSheet, n_alphas: int, t: int
    ) -> None:
        """Score all λ by the predictions of the rows that each fold holds out."""
        data, folds, rows = self._data, self._folds, self._rows
        kept = [] if sheet.takes_squares else [np.empty((len(test), n_alphas * t)) for test in folds.test]
        modes = [rows.grid.to_modes(coef) for coef in coefs]

        def of_block(where: slice, x: Array) -> tuple[Array, Array]:
            squares, totals, weights = np.zeros((len(folds), n_alphas * t)), np.zeros(len(folds)), rows.weights(where)
            for f, test in enumerate(folds.test):
                numbers, here = rows_in_block(test, where)
                values = rows.values(x[here], modes[f]) + constants[f]
                if kept:
                    kept[f][numbers] = values
                    continue
                errors = np.tile(data.targets[where][here], n_alphas) - values
                squares[f], totals[f] = weights[here] @ errors**2, weights[here].sum()
            return squares, totals

        found = rows.over_rows("held-out errors", of_block)
        squares, totals = (sum(part[k] for part in found) for k in range(2))
        for a in range(n_alphas):
            columns = slice(a * t, (a + 1) * t)
            for f in range(len(folds)):
                if kept:
                    sheet.add_predictions(a, f, kept[f][:, columns])
                else:
                    sheet.add_squares(a, f, squares[f, columns], float(totals[f]))

    def _score_each_row(self, alphas: Array, sheet: ScoreSheet, report: Report) -> None:
        data, rows, grid = self._data, self._rows, self._rows.grid
        (sums,), free = rows.sums([np.arange(data.n)]), data.fit_intercept
        self._check(alphas, 0, np.zeros(len(alphas)), ROW_ROUNDING, float(totals_of(sums.modes[:1])[0]), report)
        matrix = FourierNormalMatrix(grid, sums.modes[0], free, self._threads).matrix()
        for a, alpha in enumerate(alphas.tolist()):
            with in_terms_of_alpha([alpha], "primal"):
                model = GridModel.of(grid, sums, alpha, matrix, centred=free)
            waves = length_modes(grid, inverse_of(model.factor), model.generator.means)
            waves[(0, *grid.middle)] += 1.0 / model.generator.total if free else 0.0
            modes, errors = grid.to_modes(model.coef), np.empty(data.targets.shape)

            def of_block(where: slice, x: Array) -> NDArray[np.intp]:
                left = 1.0 - rows.weights(where) * lengths(grid, waves, x)  # noqa: B023 - called at once
                values = rows.values(x, modes) + model.constants + rows.means  # noqa: B023
                errors[where] = (data.targets[where] - values) / np.maximum(left, MIN_ONE_MINUS_LEVERAGE)[:, None]  # noqa: B023
                return np.asarray(where.start + np.flatnonzero(left < MIN_ONE_MINUS_LEVERAGE))

            near = np.concatenate(rows.over_rows("held-out errors", of_block))
            if len(near):
                errors[near] = errors_without(rows, near, alpha)
            if not sheet.takes_squares:
                sheet.add_predictions(a, 0, data.targets - errors)
                continue
            weights = rows.weights(slice(0, data.n))
            sheet.add_squares(a, 0, weights @ errors**2, float(weights.sum()))
