"""Dual systems of all folds and λ that one run of conjugate gradient solves together."""

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms, column_sizes, root_mean_squares
from dkrr.fitting.data import TrainingData
from dkrr.linalg.training_sets import TrainingSets
from dkrr.selection.folds import Folds
from dkrr.selection.scores import ScoreSheet

Array = NDArray[np.float64]


class FoldSystems:
    """Systems (C_f K C_f + λ I) β = C_f y of some targets.

    Parameters
    ----------
    data : TrainingData
    folds : Folds
    alphas : ndarray of shape (n_alphas,)
        λ in descending order.
    targets : slice
        Targets of this run.
    sheet : ScoreSheet
        Scores of the predictions.
    with_all_rows : bool
        All rows are one more training set, after those of the folds.
    """

    def __init__(
        self, data: TrainingData, folds: Folds, alphas: Array, targets: slice, sheet: ScoreSheet, *, with_all_rows: bool
    ) -> None:
        self.folds, self.alphas, self.targets, self._sheet = folds, alphas, targets, sheet
        roots = data.dual_scale()
        self.scales, self._means = folds.scales(roots), data.target_means()[targets]
        if with_all_rows:
            self.scales = np.column_stack([self.scales, np.ones(data.n) if roots is None else roots])
        self.n_sets = self.scales.shape[1]
        self.spreads = [_spread(self.scales[:, f]) for f in range(self.n_sets)]
        """Factor by which a relative residual may be larger on rows with ordinary weights, for each set."""
        self.values = data.targets[:, targets]
        """y, of shape (n, t')."""
        y = self.values - self._means
        counting = y if data.weights is None else y[data.weights > 0]
        sizes = root_mean_squares(counting)
        self.sizes_of_targets = np.where(sizes > 0, sizes, 1.0)
        """Root mean squares of the right-hand sides, of shape (t',)."""
        self._right = np.column_stack([y, np.ones(data.n)]) if data.fit_intercept else y
        self.is_whole, self.width = y.shape[1] == data.targets.shape[1], self._right.shape[1]
        self.has_intercept = data.fit_intercept
        of_column = np.tile(np.repeat(np.arange(self.n_sets), self.width), len(alphas))
        self.sets = TrainingSets(self.scales, of_column)
        self.shift = np.repeat(alphas, self.n_sets * self.width)
        self.sizes = np.tile(column_sizes(self._of_sets()), len(alphas))
        """Powers of two about as large as the right-hand sides, of shape (m,)."""

    def columns(self, a: int, fold: int) -> slice:
        """Columns of a λ and a fold, or the set after the last fold."""
        first = (a * self.n_sets + fold) * self.width
        return slice(first, first + self.width)

    def columns_of_folds(self, a: int) -> slice:
        """Columns of a λ, of all folds."""
        return slice(self.columns(a, 0).start, self.columns(a, len(self.folds) - 1).stop)

    def columns_of_all_rows(self, a: int) -> slice:
        """Columns of a λ, of the set after the folds; empty without one."""
        return slice(self.columns_of_folds(a).stop, self.columns(a + 1, 0).start)

    def right_sides(self) -> Array:
        """C_f y of all columns, and C_f 1 with an intercept; shape (n, m)."""
        return np.tile(self._of_sets(), len(self.alphas))

    def _of_sets(self) -> Array:
        """Right-hand sides of one λ."""
        return np.hstack([self._right * self.scales[:, [f]] for f in range(self.n_sets)])

    def predictions(self, products: Array, sums: Array) -> Array:
        """Predictions from K C β of held-out rows, (k, width), and cᵀβ, (width,): shape (k, t')."""
        if not self.has_intercept:
            return products + self._means
        return predictions_with_intercept(products, sums) + self._means

    def shares_of_intercepts(self, sums: Array, fold: int) -> Array:
        """Ratio ‖b r₁‖ / ‖y‖ for each target, of shape (t',): how much rounding the intercept contributes.

        With β = β_y − b β_1 the residual is r_y − b r_1, and b is large where K is nearly constant.
        """
        norms, constants = column_norms(self._right * self.scales[:, [fold]]), np.abs(_intercepts(sums))
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(constants == 0, 0.0, constants * (norms[-1] / norms[:-1]))
        return np.nan_to_num(shares, nan=np.inf, posinf=np.inf)

    def score(self, fold: int, predictions: Array) -> Array:
        """Scores of predictions of a fold's rows, of shape (k, t')."""
        return self._sheet.score(fold, predictions, self.targets)

    @property
    def per_target(self) -> bool:
        """Whether every target has its own scores."""
        return self._sheet.per_target

    @property
    def is_squared_error(self) -> bool:
        """Whether scores are mean squared errors."""
        return self._sheet.is_squared_error


def _spread(roots: Array) -> float:
    """Root mean square of √w over the median: if few weights are far larger, a residual says little of other rows."""
    roots = roots[roots > 0]
    return max(1.0, float(np.sqrt(np.mean(roots**2)) / np.median(roots))) if roots.size else 1.0


def predictions_with_intercept(products: Array, sums: Array) -> Array:
    """Predictions of rows with an intercept, from their K C β, (k, t + 1), and cᵀβ, (t + 1,): the last is of c."""
    u, v, constants = products[:, :-1], products[:, -1:], _intercepts(sums)
    with np.errstate(invalid="ignore"):  # what is not finite has no score
        return np.asarray(u - v * constants + constants)


def _intercepts(sums: Array) -> Array:
    """B = cᵀβ_y / cᵀβ_1 of every target."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sums[:-1] / sums[-1])
