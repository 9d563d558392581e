"""What a fitted regression says of its own errors: standard deviations, the likelihood, leave-one-out residuals.

Kernel ridge regression is the mean of a Gaussian process with covariance s² k and noise of variance s² λ / wᵢ. All of
this follows from the Cholesky factor of K + λW⁻¹ (in primal form of ΦᵀWΦ + λI), which is made once, when it is first
asked for, and kept: in memory, or in a temporary store where it does not fit.

References
----------
C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapters 2 and 5.
D. A. Harville, "Maximum likelihood approaches to variance component estimation and to related problems", JASA 72
(1977), for the restricted likelihood with a free constant.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr.fitting.context import open_context
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.gram import direct_gram
from dkrr.fitting.normal_sums import NormalSums, feature_blocks, features_of, part_of
from dkrr.fitting.sampled import about_the_rows, drawn
from dkrr.kernels import Kernel
from dkrr.linalg.held_out import LeftOut
from dkrr.linalg.posterior import FactoredPosterior
from dkrr.planning import Direct
from dkrr.prediction import BLOCK_ROWS
from dkrr.requests import FitRequest, Targets, plan_of
from dkrr.rows import Rows
from dkrr.rows.checks import check_finite
from dkrr.runtime import Progress, ThreadExecutor
from dkrr.solvers import Cholesky
from dkrr.solvers.direct import in_terms_of_alpha

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

CROSS_BYTES = 64 * 2**20
"""Bytes of k between the training rows and the rows whose variances are computed together."""


class Posterior(ABC):
    """The Gaussian process of all targets that share one λ."""

    data: TrainingData
    """With these targets only."""
    kernel: Kernel
    alpha: float

    @abstractmethod
    def variances(self, x: Any) -> Array:
        """Variances of f at some rows for s = 1, of shape (m,)."""

    @abstractmethod
    def quadratic(self) -> Array:
        """yᵀ(K + λW⁻¹)⁻¹y of every target less its free constant, of shape (t,)."""

    @abstractmethod
    def log_determinant(self) -> float:
        """Log |K + λW⁻¹| over the rows of positive weight, and what a free constant adds to it."""

    @abstractmethod
    def loo_residuals(self) -> Array:
        """Y − f₋ᵢ(xᵢ), of shape (n, t)."""

    @abstractmethod
    def fold_models(self, folds: Sequence[Numbers]) -> "FoldModels":
        """Models that each leave out the rows of a fold, and train on all others."""

    @property
    def degrees(self) -> int:
        """Number of rows of positive weight, less one with a free constant."""
        data = self.data
        n = data.n if data.weights is None else int(np.count_nonzero(data.weights))
        return n - (1 if data.fit_intercept else 0)

    def scales(self) -> Array:
        """s² of every target at which its likelihood is largest, of shape (t,)."""
        return self.quadratic() / max(self.degrees, 1)

    def log_likelihoods(self) -> Array:
        """Logarithm of the (with a constant restricted) marginal likelihood of every target at those s², (t,)."""
        with np.errstate(divide="ignore"):
            return np.asarray(
                -0.5 * self.degrees * (1.0 + np.log(2.0 * math.pi * self.scales())) - 0.5 * self.log_determinant()
            )

    def _log_weights(self) -> float:
        """Log |W| over the rows of positive weight."""
        weights = self.data.weights
        return 0.0 if weights is None else float(np.log(weights[weights > 0]).sum())


@dataclass(frozen=True)
class FoldModels:
    """Models that each leave out the rows of a fold.

    Parameters
    ----------
    errors : list of ndarray of shape (len(fold), t)
        y − f of the rows that are left out.
    predict : callable
        Predictions of some rows by every model, of shape (n_folds, m, t).
    """

    errors: list[Array]
    predict: Callable[[Any], Array]


class DualPosterior(Posterior):
    """From a factor of diag(c) K diag(c) + diag(s)."""

    def __init__(self, request: FitRequest, alpha: float, columns: Numbers) -> None:
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        targets = Targets(outputs.values[:, columns], np.full(len(columns), alpha))
        request = replace(request.with_settings(solver=Cholesky(), form="dual", store=None), outputs=targets)
        plan = plan_of(request)
        assert isinstance(plan.chosen, Direct)
        data = TrainingData.of(targets, shared_fields(request, plan))
        self.data = about_the_rows(data) if data.fit_intercept else data
        self.kernel, self.alpha = self.data.kernel, alpha
        self._means, scale = self.data.target_means(), self.data.dual_scale()
        self._scale = np.ones(data.n) if scale is None else scale
        with open_context(plan, None, Progress()) as context, in_terms_of_alpha([alpha], "dual"):
            matrix = direct_gram(self.data, plan.chosen, context, scale)
            factor = matrix.systems.factored("posterior", self.data.dual_shift(alpha))
            self._owner, self._rows = context.temporary, matrix.rows  # a factor on disk lives as long as its folder
        constant = self._scale if data.fit_intercept else None
        self._threads = plan.resources.local_threads
        self._factored = FactoredPosterior(factor, constant, self._threads)
        self._right = (self.data.targets - self._means) * self._scale[:, None]
        self._matrix_factor, self._constant = factor, constant

    def variances(self, x: Any) -> Array:
        prior = _diagonal(self.kernel, x)
        cross, n = np.empty((self.data.n, x.shape[0])), self.data.n
        for start in range(0, n, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, n)
            cross[start:stop] = self.kernel(self._rows.read(start, stop), x)
        cross *= self._scale[:, None]
        return self._factored.variances(cross, prior)

    def _left_out(self, executor: ThreadExecutor) -> LeftOut:
        return LeftOut(self._matrix_factor, self._right, self._constant, executor)

    def quadratic(self) -> Array:
        with ThreadExecutor(self._threads) as executor:
            return np.einsum("ij,ij->j", self._right, self._left_out(executor).solution)  # type: ignore[no-any-return]

    def log_determinant(self) -> float:
        shift = self.data.dual_shift(self.alpha)
        zero = 0.0 if self.data.weights is None else float(np.log(shift[self.data.weights == 0]).sum())
        return self._factored.log_determinant() - self._log_weights() - zero

    def loo_residuals(self) -> Array:
        with ThreadExecutor(self._threads) as executor:
            left_out = self._left_out(executor)
            errors = left_out.of_rows()
            known = self._scale > 0
            found = np.empty_like(errors)
            found[known] = errors[known] / self._scale[known, None]
            if not known.all():  # a fit without a row of weight 0 is the fit of all rows
                coef = left_out.solution * self._scale[:, None]
                for i in np.flatnonzero(~known):
                    row = self._rows.read(int(i), int(i) + 1)
                    values = left_out.constants + self._means
                    for start in range(0, self.data.n, BLOCK_ROWS):
                        stop = min(start + BLOCK_ROWS, self.data.n)
                        values = values + (self.kernel(row, self._rows.read(start, stop)) @ coef[start:stop])[0]
                    found[i] = self.data.targets[i] - values
        return found

    def fold_models(self, folds: Sequence[Numbers]) -> FoldModels:
        coefs, constants, errors = list[Array](), list[Array](), list[Array]()
        with ThreadExecutor(self._threads) as executor:
            left_out = self._left_out(executor)
            for rows, scaled in zip(folds, left_out.of_folds(folds), strict=True):
                solution, free = left_out.without(rows, scaled)
                coefs.append(solution * self._scale[:, None])
                constants.append(free + self._means)
                with np.errstate(divide="ignore", invalid="ignore"):
                    errors.append(scaled / self._scale[rows, None])
        together, t = np.hstack(coefs), self.data.targets.shape[1]

        def predict(x: Any) -> Array:
            found = np.zeros((x.shape[0], together.shape[1]))
            for start in range(0, self.data.n, BLOCK_ROWS):
                stop = min(start + BLOCK_ROWS, self.data.n)
                found += self.kernel(x, self._rows.read(start, stop)) @ together[start:stop]
            return np.asarray(found.reshape(len(found), len(folds), t).swapaxes(0, 1) + np.stack(constants)[:, None])

        return FoldModels(errors, predict)


class PrimalPosterior(Posterior):
    """From a factor of ΦᵀWΦ + λI; λ > 0."""

    def __init__(self, request: FitRequest, alpha: float, columns: Numbers) -> None:
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        targets = Targets(outputs.values[:, columns], np.full(len(columns), alpha))
        request = replace(request.with_settings(form="primal", solver=Cholesky(), store=None), outputs=targets)
        data = TrainingData.of(targets, shared_fields(request, plan_of(request)))
        self.data = about_the_rows(data) if data.fit_intercept else data
        self.kernel, self.alpha = self.data.kernel, alpha
        self._means = self.data.target_means()
        assert self.data.feature_map is not None
        self._n_features = self.data.feature_map.dimension(self.data.rows.shape[1])
        width = self._n_features + (1 if data.fit_intercept else 0)
        self._sums = NormalSums.zeros(width, len(columns))
        for where, features in feature_blocks(self.data):
            self._add(self._sums, where, features, slice(None))
        with in_terms_of_alpha([alpha], "primal"):
            self._factor, self._coef = self._sums.solved(alpha, self._n_features)

    def _add(self, sums: NormalSums, where: slice, features: Array, rows: Any) -> None:
        """Add some rows of a block."""
        weights = None if self.data.weights is None else self.data.weights[where][rows]
        sums.add(features[rows], (self.data.targets[where] - self._means)[rows], weights)

    def _lengths(self, features: Array) -> Array:
        """φᵀ(ΦᵀWΦ + λI)⁻¹φ of rows, of shape (m,)."""
        inner = scipy.linalg.solve_triangular(self._factor, features.T, lower=True, check_finite=False)
        return np.einsum("ij,ij->j", inner, inner)  # type: ignore[no-any-return]

    def variances(self, x: Any) -> Array:
        return self.alpha * self._lengths(features_of(self.data, x))

    def _errors(self) -> Iterator[tuple[slice, Array, Array]]:
        """Rows, y − f and the features of a block."""
        for where, features in feature_blocks(self.data):
            yield where, self.data.targets[where] - self._means - features @ self._coef, features

    def quadratic(self) -> Array:
        total = np.zeros(self.data.targets.shape[1])
        for where, errors, _ in self._errors():
            weights = np.ones(len(errors)) if self.data.weights is None else self.data.weights[where]
            total += weights @ (errors * (self.data.targets[where] - self._means))
        return total / self.alpha

    def log_determinant(self) -> float:
        n = self.degrees + (1 if self.data.fit_intercept else 0)
        whole = 2.0 * float(np.log(self._factor.diagonal()).sum())
        constant = -math.log(self.alpha) if self.data.fit_intercept else 0.0
        return whole + (n - self._n_features) * math.log(self.alpha) + constant - self._log_weights()

    def loo_residuals(self) -> Array:
        found = np.empty(self.data.targets.shape)
        for where, errors, features in self._errors():
            weights = np.ones(len(errors)) if self.data.weights is None else self.data.weights[where]
            found[where] = errors / (1.0 - weights * self._lengths(features))[:, None]
        return found

    def fold_models(self, folds: Sequence[Numbers]) -> FoldModels:
        held = [NormalSums.zeros(len(self._sums.gram), self.data.targets.shape[1]) for _ in folds]
        for where, features in feature_blocks(self.data):
            for one, rows in zip(held, folds, strict=True):
                self._add(one, where, features, part_of(rows, where)[1])
        with in_terms_of_alpha([self.alpha], "primal"):
            coefs = np.stack([self._sums.without(one).solved(self.alpha, self._n_features)[1] for one in held])
        errors = [np.empty((len(rows), self.data.targets.shape[1])) for rows in folds]
        for where, features in feature_blocks(self.data):
            for f, rows in enumerate(folds):
                numbers, here = part_of(rows, where)
                values = features[here] @ coefs[f] + self._means
                errors[f][numbers] = self.data.targets[where][here] - values

        def predict(x: Any) -> Array:
            return np.asarray(features_of(self.data, x) @ coefs + self._means)

        return FoldModels(errors, predict)


def posteriors_of(request: FitRequest) -> list[tuple[Numbers, Posterior]]:
    """The Gaussian processes of a fit, one for the targets of every λ, in the form in which the fit predicts.

    Raises
    ------
    DkrrError
        As a fit by a Cholesky factorisation does.
    """
    outputs = request.outputs
    assert isinstance(outputs, Targets)
    kernel = drawn(request.settings.kernel, request.rows)
    request = request.with_settings(kernel=kernel)
    plan = plan_of(request)
    found = list[tuple[Numbers, Posterior]]()
    for alpha in sorted(set(outputs.alphas.tolist())):
        columns = np.flatnonzero(outputs.alphas == alpha)
        is_primal = plan.form == "primal" and alpha > 0
        found.append((columns, (PrimalPosterior if is_primal else DualPosterior)(request, alpha, columns)))
    return found


def standard_deviations(
    posteriors: list[tuple[Numbers, Posterior]], rows: Rows, n_targets: int, scale: float | None
) -> Array:
    """Standard deviations of f at some rows, of shape (m, t).

    Parameters
    ----------
    scale : float, optional
        s²; None: of every target where its likelihood is largest.
    """
    m, out = rows.shape[0], np.empty((rows.shape[0], n_targets))
    n = posteriors[0][1].data.n
    height = max(1, min(BLOCK_ROWS, CROSS_BYTES // (8 * n)))
    factors = [
        (columns, one, one.scales() if scale is None else np.full(len(columns), scale)) for columns, one in posteriors
    ]
    for start in range(0, m, height):
        stop = min(start + height, m)
        x = rows.read(start, stop)
        check_finite(x, "X", start)
        for columns, one, scales in factors:
            out[start:stop, columns] = np.sqrt(one.variances(x)[:, None] * scales)
    return out


def intervals(
    posteriors: list[tuple[Numbers, Posterior]],
    rows: Rows,
    n_targets: int,
    folds: Sequence[Numbers],
    coverage: float,
) -> tuple[Array, Array]:
    """Intervals that hold new targets with a given probability, by CV+; two arrays of shape (m, t).

    For new rows that are exchangeable with the training rows the coverage is at least 2 × coverage − 1, whatever the
    distribution and the model, and about `coverage` in practice.

    References
    ----------
    R. F. Barber, E. J. Candès, A. Ramdas, R. J. Tibshirani, "Predictive inference with the jackknife+", Ann. Statist.
    49 (2021).
    """
    m, lower, upper = rows.shape[0], np.empty((rows.shape[0], n_targets)), np.empty((rows.shape[0], n_targets))
    data = posteriors[0][1].data
    counting = np.ones(data.n, bool) if data.weights is None else data.weights > 0
    kept = [counting[fold] for fold in folds]
    fold_of = np.repeat(np.arange(len(folds)), [int(k.sum()) for k in kept])
    n = len(fold_of)
    # Ranks, counted from 0, among n values and one at infinity.
    high = math.ceil(coverage * (n + 1)) - 1
    low = n - 1 - high
    height = max(1, min(BLOCK_ROWS, CROSS_BYTES // (8 * n)))
    for columns, one in posteriors:
        models = one.fold_models(folds)
        sizes = np.abs(np.vstack([errors[k] for errors, k in zip(models.errors, kept, strict=True)]))
        for start in range(0, m, height):
            stop = min(start + height, m)
            x = rows.read(start, stop)
            check_finite(x, "X", start)
            predictions = models.predict(x)
            for j, column in enumerate(columns):
                each = predictions[fold_of, :, j]
                below, above = each - sizes[:, [j]], each + sizes[:, [j]]
                lower[start:stop, column] = -np.inf if low < 0 else np.partition(below, low, axis=0)[low]
                upper[start:stop, column] = np.inf if high >= n else np.partition(above, high, axis=0)[high]
    return lower, upper


def _diagonal(kernel: Kernel, x: Any) -> Array:
    """k(x, x), of shape (m,)."""
    return np.ones(x.shape[0]) if kernel.has_unit_diagonal else np.asarray(kernel.diagonal(x), np.float64)
