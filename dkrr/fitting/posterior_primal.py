"""The Gaussian process of a fit in the primal form, from sums over its rows and a Cholesky factor of ΦᵀWΦ + λI."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Progress
from dkrr.errors import StoreError, warn_inaccurate
from dkrr.fitting.context import Context
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.fold_models import FoldModels, function_of
from dkrr.fitting.gaussian_process import CholeskyPosterior, Covariance, Estimate
from dkrr.fitting.posterior_cholesky import Opens, array_of
from dkrr.fitting.prediction_costs import size_of_normal
from dkrr.fitting.primal_rows import PrimalRows, not_shown, rows_in_block
from dkrr.fitting.request_plans import plan_of
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.results import SavedPosterior
from dkrr.fitting.sampled import centre_linear_parts
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.linalg.solver_settings import Cholesky
from dkrr.linalg.sums import NormalSolution, sums_of_others
from dkrr.linalg.variance_bounds import EPS, RELATIVE_WIDTH, VarianceBounds
from dkrr.planning.predictions import ROWS_TOGETHER, FactorSize

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


class PrimalPosterior(CholeskyPosterior):
    """Posterior from sums over the rows, and a factor of ΦᵀWΦ + λI; λ > 0."""

    def __init__(
        self,
        request: FitRequest,
        alpha: float,
        columns: Numbers,
        saved: SavedPosterior | None = None,
        opens: Opens | None = None,
    ) -> None:
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        targets = Targets(outputs.values[:, columns], np.full(len(columns), alpha))
        request = replace(request.with_settings(form="primal", store=None), outputs=targets)
        self.data = self._prepared(TrainingData.of(targets, shared_fields(request, request.problem())))
        self.kernel, self.alpha = self.data.kernel, alpha
        if saved is None:
            progress = Progress() if opens is None else opens(plan_of(request.with_settings(solver=Cholesky())))
            with progress.stage("normal matrix", self.data.n):
                self._rows = self._rows_of(progress=progress)
                self._solution = self._solved(self._rows, self._rows.sums([None])[0])
            self._rows = replace(self._rows, advance=not_shown)
            features = self._rows.features.about(self._solution.means)
            if features is not None:  # as a saved model has them
                self._rows, self._solution = replace(self._rows, features=features), self._solution.about_the_means()
        else:
            self._restore(saved)
            self._quadratic = np.array(saved.numbers["quadratic"], np.float64)

    def _prepared(self, data: TrainingData) -> TrainingData:
        return centre_linear_parts(data)

    def _rows_of(self, **settings: Any) -> PrimalRows:
        return PrimalRows.of(self.data, 1, **settings)  # BLAS has the threads

    def _restore(self, saved: SavedPosterior) -> None:
        """Take the solution from what the fit has left, or a saved model holds."""
        arrays, d, has_intercept = saved.arrays, self._n_features, self.data.fit_intercept
        if has_intercept != ("centre" in arrays):
            raise StoreError("a factor of the model is not that of its features about their means: it is damaged")
        centre = array_of(arrays["centre"], d)[:, 0] if has_intercept else np.zeros(d)
        factor, coef = (array_of(arrays[name], d + has_intercept) for name in ("factor", "coef"))
        self._rows, nothing = self._rows_of(reference=centre), np.zeros(coef.shape[1])
        total, constants = (float(factor[-1, -1]) ** 2, coef[-1]) if has_intercept else (np.nan, nothing)
        self._solution = NormalSolution(
            self.alpha,
            np.ascontiguousarray(coef[:d]),
            constants,
            np.ascontiguousarray(factor[:d, :d]),
            np.zeros(d),
            total,
            has_intercept,
            quadratic=nothing,
            rounded=nothing,
            least_pivot=1.0,
        )

    def _solved(self, rows: PrimalRows, sums: Any, numbers: Callable[[], Numbers | None] = lambda: None) -> Any:
        """Solution for the rows of some sums."""
        with in_terms_of_alpha([self.alpha], "primal"):
            return rows.system(sums, self.alpha, numbers).solution(self.alpha)

    @property
    def _n_features(self) -> int:
        assert self.data.feature_map is not None
        return self.data.feature_map.dimension(self.data.rows.shape[1])

    @property
    def factor_size(self) -> FactorSize:
        return size_of_normal(self._n_features)

    def variances_of(self, x: Any) -> VarianceBounds:
        features = self._rows.features
        found = self.alpha * features.leverages(self._solution)(features.block(x))
        part = self._rounded_fraction
        high = found * (1.0 + part) if part < 1.0 else np.full(len(found), np.inf)
        return VarianceBounds(found, found * (1.0 - part), high)

    def covariance(self, x: Any, progress: Progress) -> Covariance:
        """See base class: λ (φ − φ̄)ᵀ(A + λI)⁻¹(φ' − φ̄), and λ/W more with an intercept."""
        features, solution, m = self._rows.features, self._solution, x.shape[0]
        triangle, half = blas.Triangle(solution.lower, is_shared=True), np.empty((m, features.dimension))
        for start in range(0, m, ROWS_TOGETHER):
            block = half[start : start + ROWS_TOGETHER]
            block[...] = features.matrix(x[start : start + ROWS_TOGETHER])
            block -= solution.means
            triangle.solve_right(block)
            progress.advance(float(block.shape[0]) * features.dimension**2)
        found = np.full((m, m), self.alpha * solution.inverse_of_total())
        blas.syrk(found, half, alpha=self.alpha, beta=1.0)
        mirror_lower(found)
        progress.advance(float(m) ** 2 * features.dimension)
        return Covariance(found, np.zeros(m))

    @cached_property
    def _rounded_fraction(self) -> float:
        """Largest fraction of a variance that rounding in the sums, the factor and a substitution may change.

        Entries a_ij of the matrix are off by some ε √(a_ii a_jj), which is ε where features are scaled to a diagonal of
        ones: it is that matrix, D⁻¹LLᵀD⁻¹, whose smallest eigenvalue, at least 1 / ‖L⁻¹D‖² with the Frobenius norm,
        says what is lost (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 10.1).
        """
        factor = self._solution.lower
        inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True, check_finite=False)
        inverse *= np.sqrt(np.einsum("ij,ij->i", factor, factor))
        p = len(inverse)
        part = 3 * (self.data.n + p + 2) * EPS * p * float(np.einsum("ij,ij->", inverse, inverse))
        return min(2 * part / (1.0 - part), 1.0) if part < 1 else 1.0

    def saved(self) -> SavedPosterior:
        solution, d, intercept = self._solution, self._n_features, None
        lower = np.zeros((d + self.data.fit_intercept,) * 2)
        lower[:d, :d] = solution.lower
        if self.data.fit_intercept:
            intercept = self._rows.features.reference + solution.means, solution.constants, solution.total
        return SavedPosterior.primal(lower, solution.coef, intercept, quadratic=self._quadratic.tolist())

    def quadratic(self) -> Array:
        return self._quadratic

    @cached_property
    def _quadratic(self) -> Array:
        found = self._solution.quadratic
        if not np.isnan(found).any():
            return np.asarray(found)
        rows, solution = self._rows, self._solution

        def of_block(where: slice, block: Array) -> Array:
            targets = rows.targets(where, block)
            errors = targets - solution.constants - rows.features.values(block, solution.coef)
            return np.asarray(rows.weights(where) @ (errors * targets))

        return np.asarray(np.sum(rows.over_blocks(of_block), axis=0) / self.alpha)

    def log_determinant(self) -> Estimate:
        part = self._rounded_fraction
        if part > RELATIVE_WIDTH:
            how = "few digits" if part < 1.0 else "no digits"
            warn_inaccurate(
                f"features of rows differ so much in size that {how} of the log marginal likelihood are certain "
                f"(alpha = {self.alpha:g}): scale rows that are far larger than others, or use form='dual'",
                stacklevel=2,
            )
        return self._log_determinant()

    def _log_determinant(self) -> Estimate:
        n_free = self.degrees + (1 if self.data.fit_intercept else 0) - self._n_features
        return Estimate(self._solution.log_determinant() + n_free * math.log(self.alpha) - self._log_weights())

    def loo_residuals(self) -> Array:
        found, errors_of = np.empty(self.data.targets.shape), self._rows.held_out_errors(self._solution)

        def of_block(where: slice, block: Array) -> Numbers:
            found[where], near = errors_of(where, block)
            return near

        near = np.concatenate(self._rows.over_blocks(of_block))
        if len(near):
            found[near] = self._rows.loo_errors_high_leverage(near, [self.alpha])[0]
        return found

    def fold_models(self, folds: Sequence[Numbers], context: Context | None = None) -> FoldModels:
        progress = Progress() if context is None else context.progress
        with progress.stage("held-out models", 2 * self.data.n):
            return self._fold_models(replace(self._rows, n_sets=len(folds), advance=progress.advance), folds)

    def _fold_models(self, rows: PrimalRows, folds: Sequence[Numbers]) -> FoldModels:
        """Models without each fold; every row is in one of them."""
        t, every, coefs, constants = rows.n_targets, np.arange(self.data.n), list[Array](), list[Array]()
        for sums, fold in zip(sums_of_others(rows.sums(folds), rows.features.new_sums(t)), folds, strict=True):
            solution = self._solved(rows, sums, partial(np.delete, every, fold))
            coefs.append(solution.coef)
            constants.append(solution.constants + rows.means)
        errors = [np.empty((len(fold), t)) for fold in folds]

        def of_block(where: slice, block: Array) -> None:
            for f, fold in enumerate(folds):
                numbers, here = rows_in_block(fold, where)
                values = rows.features.values(block[here], coefs[f]) + constants[f]
                errors[f][numbers] = self.data.targets[where][here] - values

        rows.over_blocks(of_block)
        function, doubt = self._function_of(np.hstack(coefs), np.concatenate(constants), folds)
        return FoldModels.of(function, errors, folds, self.data.weights, doubt)

    def _function_of(self, coef: Array, constants: Array, folds: Sequence[Numbers]) -> tuple[FittedFunction, str]:  # noqa: ARG002
        """Function of the models without each fold, and a message about its errors if they are uncertain."""
        constants = constants - self._rows.features.reference @ coef
        return function_of(self.data, coef, constants, feature_map=self.data.feature_map), ""
