"""Selection in the primal form: the Gram matrices of all folds from one pass over the rows, and one pass to predict.

A training set that leaves out the rows V has ΦᵀWΦ − Φ_vᵀW_vΦ_v. Leave-one-out takes the errors of all rows over
1 − wᵢ φᵢᵀ(ΦᵀWΦ + λI)⁻¹φᵢ, where the second term is the leverage of the row.

References
----------
R. D. Cook, S. Weisberg, "Residuals and Influence in Regression", Chapman and Hall 1982.
"""

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr import blas
from dkrr.fitting.data import TrainingData
from dkrr.fitting.normal_sums import NormalSums, feature_blocks, part_of
from dkrr.runtime import Progress
from dkrr.selection.folds import Folds
from dkrr.selection.scores import ScoreSheet
from dkrr.solvers.direct import in_terms_of_alpha

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


class PrimalFolds:
    """Scores of every λ and fold in the primal form, in the calling process.

    Parameters
    ----------
    data : TrainingData
        With a feature map.
    folds : Folds
    progress : Progress
    """

    def __init__(self, data: TrainingData, folds: Folds, progress: Progress) -> None:
        assert data.feature_map is not None
        self._data, self._folds, self._progress = data, folds, progress
        self._means, self._n_features = data.target_means(), data.feature_map.dimension(data.rows.shape[1])
        self._width = self._n_features + (1 if data.fit_intercept else 0)

    def score(self, alphas: Array, sheet: ScoreSheet) -> None:
        """Enter the scores of every λ.

        Raises
        ------
        NotPositiveDefiniteError
            If the matrix of a training set is not positive definite; the message names λ.
        """
        with self._progress.stage("normal matrix", 1.0):
            sums = self._training_sums()
        with self._progress.stage("held-out errors", 1.0):
            if self._folds.is_loo:
                self._score_each_row(sums[0], alphas, sheet)
            else:
                self._score_folds(sums, alphas, sheet)

    def _training_sums(self) -> list[NormalSums]:
        """Sums of the training rows of every fold; of all rows for leave-one-out."""
        p, t, data, folds = self._width, self._data.targets.shape[1], self._data, self._folds
        by_difference = folds.train_on_the_rest and not folds.is_loo
        held = [NormalSums.zeros(p, t) for _ in range(len(folds) if not folds.is_loo else 0)]
        chosen = folds.test if by_difference else [folds.training(f) for f in range(len(held))]
        whole = NormalSums.zeros(p, t)
        rest = np.ones(data.n, bool)
        if by_difference and folds.is_partition:  # the sum of the folds is that of all rows
            rest[:] = False
        for where, features in feature_blocks(self._data):
            targets = data.targets[where] - self._means
            weights = None if data.weights is None else data.weights[where]
            for one, rows in zip(held, chosen, strict=True):
                _, here = part_of(rows, where)
                one.add(features[here], targets[here], None if weights is None else weights[here])
            if (by_difference or folds.is_loo) and rest[where].any():
                whole.add(features, targets, weights)
        if folds.is_loo:
            return [whole]
        if not by_difference:
            return held
        if folds.is_partition:
            for one in held:
                whole.gram[...] += one.gram
                whole.right_sides[...] += one.right_sides
        return [whole.without(one) for one in held]

    def _solve(self, sums: NormalSums, alpha: float) -> tuple[Array, Array]:
        """Factor, and coefficients of shape (p, t)."""
        with in_terms_of_alpha([alpha], "primal"):
            return sums.solved(alpha, self._n_features)

    def _score_folds(self, sums: list[NormalSums], alphas: Array, sheet: ScoreSheet) -> None:
        folds, t, n_alphas = self._folds, self._data.targets.shape[1], len(alphas)
        coefs = []
        for one in sums:
            coefs.append(np.hstack([self._solve(one, float(alpha))[1] for alpha in alphas]))
        squares = np.zeros((len(folds), n_alphas * t))
        totals = np.zeros(len(folds))
        kept = [] if sheet.takes_squares else [np.empty((len(rows), n_alphas * t)) for rows in folds.test]
        for where, features in feature_blocks(self._data):
            for f, rows in enumerate(folds.test):
                numbers, here = part_of(rows, where)
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
        for a in range(n_alphas):
            columns = slice(a * t, (a + 1) * t)
            for f in range(len(folds)):
                if kept:
                    sheet.take(a, f, kept[f][:, columns])
                else:
                    sheet.take_squares(a, f, squares[f, columns], totals[f])

    def _score_each_row(self, sums: NormalSums, alphas: Array, sheet: ScoreSheet) -> None:
        data, t = self._data, self._data.targets.shape[1]
        solved = [self._solve(sums, float(alpha)) for alpha in alphas]
        squares, total = np.zeros((len(alphas), t)), 0.0
        kept = [] if sheet.takes_squares else [np.empty((data.n, t)) for _ in alphas]
        for where, features in feature_blocks(self._data):
            weights = np.ones(len(features)) if data.weights is None else data.weights[where]
            total += weights.sum()
            for a, (factor, coef) in enumerate(solved):
                inner = scipy.linalg.solve_triangular(factor, features.T, lower=True, check_finite=False)
                left = 1.0 - weights * np.einsum("ij,ij->j", inner, inner)
                errors = (data.targets[where] - self._means - features @ coef) / left[:, None]
                if kept:
                    kept[a][where] = data.targets[where] - errors
                else:
                    squares[a] += weights @ errors**2
        for a in range(len(alphas)):
            if kept:
                sheet.take(a, 0, kept[a])
            else:
                sheet.take_squares(a, 0, squares[a], total)
