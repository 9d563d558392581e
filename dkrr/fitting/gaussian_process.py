"""The Gaussian process whose mean a regression is, for all targets that share one λ.

References
----------
C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapters 2 and 5.
D. A. Harville, "Maximum likelihood approaches to variance component estimation and to related problems", JASA 72
(1977), for the restricted likelihood with an intercept.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress
from dkrr.data import Rows
from dkrr.data.rows import check_finite
from dkrr.errors import InputError, warn_inaccurate
from dkrr.fitting.context import Context
from dkrr.fitting.data import TrainingData
from dkrr.fitting.fitted_function import PREDICTED_ROWS
from dkrr.fitting.fold_models import FoldModels
from dkrr.fitting.results import SavedPosterior
from dkrr.kernels import Kernel
from dkrr.linalg.variance_bounds import RELATIVE_WIDTH, VarianceBounds
from dkrr.planning.predictions import FactorSize, power_of_two

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

CROSS_BYTES = 64 * 2**20
"""Bytes of k between the training rows and the rows whose intervals are computed together."""


class Estimate(NamedTuple):
    """A number, and its standard error: 0 where it is exact."""

    value: float
    error: float = 0.0


class Covariance(NamedTuple):
    """Posterior covariance of some rows for s = 1."""

    values: Array
    """Of shape (m, m), symmetric."""
    rounding: Array
    """Size of the rounding in the variances, of shape (m,)."""
    swept: Array | None = None
    """L⁻¹ C K(X, x) of the dual form, of shape (n, m)."""


class Posterior(ABC):
    """Gaussian process of all targets that share one λ, given the training data."""

    data: TrainingData
    """With these targets only."""
    kernel: Kernel
    alpha: float

    @abstractmethod
    def variances(
        self, rows: Rows, first: int = 0, block_rows: int = PREDICTED_ROWS
    ) -> Iterator[tuple[slice, VarianceBounds]]:
        """Variances of f for s = 1, at most `block_rows` rows at a time.

        `first` is the number of the first row, for messages.
        """

    @abstractmethod
    def quadratic(self) -> Array:
        """yᵀ(K + λW⁻¹)⁻¹y of every target less its intercept, of shape (t,)."""

    @abstractmethod
    def log_determinant(self) -> Estimate:
        """Log |K + λW⁻¹| over the rows of positive weight, and the term that an intercept adds to it."""

    @property
    def degrees(self) -> int:
        """Number of rows of positive weight, less one with an intercept."""
        data = self.data
        n = data.n if data.weights is None else int(np.count_nonzero(data.weights))
        return n - (1 if data.fit_intercept else 0)

    def scales(self) -> Array:
        """s² of every target at which its likelihood is largest, of shape (t,).

        Raises
        ------
        InputError
            If no row is left to determine it.
        """
        if self.degrees < 1:
            raise InputError(
                "scale is None, and one row with an intercept does not determine it; expected a number > 0"
            )
        return self.quadratic() / self.degrees

    def log_likelihoods(self) -> tuple[Array, Array]:
        """Logarithm of the marginal likelihood of every target at those s², and its standard error.

        With an intercept the likelihood is the restricted one. Two arrays of shape (t,).
        """
        t, determinant = self.data.targets.shape[1], self.log_determinant()
        fit = np.zeros(t)
        if self.degrees > 0:
            with np.errstate(divide="ignore"):
                fit = -0.5 * self.degrees * (1.0 + np.log(2.0 * math.pi * self.scales()))
        return fit - 0.5 * determinant.value, np.full(t, 0.5 * determinant.error)

    def _log_weights(self) -> float:
        """Log |W| over the rows of positive weight."""
        weights = self.data.weights
        return 0.0 if weights is None else float(np.log(weights[weights > 0]).sum())


class CholeskyPosterior(Posterior):
    """Posterior by a Cholesky factor, which also gives the models that leave rows out."""

    @abstractmethod
    def saved(self) -> SavedPosterior:
        """State of the posterior in a saved model."""

    @abstractmethod
    def variances_of(self, x: Any) -> VarianceBounds:
        """Variances of a few rows."""

    @abstractmethod
    def covariance(self, x: Any, progress: Progress) -> Covariance:
        """Posterior covariance of some rows, which are in memory.

        `progress` is a display with an open stage of `covariance_flops`.

        Raises
        ------
        NotFiniteError
            If a variance is negative by more than rounding.
        """

    def keep(self, x: Any, swept: Array | None) -> None:
        """Keep the `swept` of a few rows, if it helps to add them to the training rows next."""

    @abstractmethod
    def loo_residuals(self) -> Array:
        """Y − f₋ᵢ(xᵢ), of shape (n, t)."""

    @abstractmethod
    def fold_models(self, folds: Sequence[Numbers], context: Context | None = None) -> FoldModels:
        """Models that each leave out the rows of a fold, and train on all others.

        Parameters
        ----------
        folds : sequence of ndarray of intp
            Numbers of rows in ascending order; every row is in one fold.
        context : Context, optional
            Context of a run: its executor does the work, and its store keeps the results; None: in this process.
        """

    @property
    @abstractmethod
    def factor_size(self) -> FactorSize:
        """Size of the factor, which determines the time and memory of a block of variances."""

    def variances(
        self, rows: Rows, first: int = 0, block_rows: int = PREDICTED_ROWS
    ) -> Iterator[tuple[slice, VarianceBounds]]:
        widths = list[Array]()
        for where, x in checked_blocks(rows, first, block_rows):
            found = self.variances_of(x)
            widths.append(found.relative_width)
            yield where, found
        remedy = f"alpha = {self.alpha:g} is too small for the digits of a factor: give a larger alpha"
        warn_of_width(widths, rows.shape[0], remedy)


def blocks(rows: Rows, n: int, first: int = 0) -> Iterator[tuple[slice, Any]]:
    """Checked rows, in blocks for which k with n training rows stays below CROSS_BYTES."""
    return checked_blocks(rows, first, min(PREDICTED_ROWS, power_of_two(max(1, CROSS_BYTES // (8 * n)))))


def checked_blocks(rows: Rows, first: int, height: int) -> Iterator[tuple[slice, Any]]:
    """Checked rows, by blocks; `first` is the number of the first one, for messages."""
    for start in range(0, rows.shape[0], height):
        where = slice(start, min(start + height, rows.shape[0]))
        x = rows.read(where.start, where.stop)
        check_finite(x, "X", first + start)
        yield where, x


def warn_of_width(widths: list[Array], n_rows: int, remedy: str) -> None:
    """Warn of variances whose bounds are farther apart than was aimed at."""
    relative = np.concatenate(widths) if widths else np.empty(0)
    loose = relative[relative > RELATIVE_WIDTH]
    if len(loose):
        warn_inaccurate(
            f"bounds of the variances of {len(loose):,} of {n_rows:,} rows are up to {loose.max():.1e} of the variance "
            f"apart, where {RELATIVE_WIDTH:.0e} was asked (predict_variance_bounds returns them): {remedy}",
            stacklevel=3,
        )


def diagonal_of(kernel: Kernel, x: Any) -> Array:
    """k(x, x), of shape (m,)."""
    return np.asarray(kernel.diagonal(x), np.float64)  # 0 for zero rows of a cosine
