"""The Gaussian process from a Cholesky factor: of K + λW⁻¹ in memory or in a temporary store, or of ΦᵀWΦ + λI."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg

from dkrr.cluster import Progress, ThreadExecutor
from dkrr.data import CheckedRows, MemoryRows, Rows, whole
from dkrr.errors import NotPositiveDefiniteError, StoreError, warn_inaccurate
from dkrr.fitting.context import Context, open_context
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.fold_models import FoldModels, function_of
from dkrr.fitting.gaussian_process import (
    Array,
    CholeskyPosterior,
    Estimate,
    Numbers,
    cross_of,
    diagonal_of,
    product_of,
)
from dkrr.fitting.gram import FactoredGram
from dkrr.fitting.primal_rows import (
    MIN_ONE_MINUS_LEVERAGE,
    NormalSums,
    centred_sums,
    feature_blocks,
    features_of,
    loo_errors_high_leverage,
    rows_in_block,
    sums_of_others,
    weighted_means,
)
from dkrr.fitting.request_plans import plan_of
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.results import Kept, Left
from dkrr.fitting.sampled import centre_linear_parts
from dkrr.fitting.tiled_folds import errors_in_tiles, stored_context
from dkrr.linalg.cholesky import Matrix
from dkrr.linalg.held_out import HeldOutErrors, columns_at_once
from dkrr.linalg.in_memory_cholesky import memory_grid
from dkrr.linalg.posterior import FactoredPosterior
from dkrr.linalg.refinement import Cholesky, in_terms_of_alpha
from dkrr.linalg.triangle import TriangleRows, kept_factor
from dkrr.linalg.variance_bounds import EPS, RELATIVE_WIDTH, VarianceBounds
from dkrr.planning import Plan
from dkrr.planning.detection import detect, resident_bytes, usable_threads
from dkrr.planning.predictions import FactorSize, is_kept_in_memory, is_read_by_workers, room_for
from dkrr.planning.strategy import Direct
from dkrr.store import TileGrid
from dkrr.text import plural

Opens = Callable[[Plan], Progress]
"""Gives the display of a factorisation that the fit has not left, from its plan."""


class DualPosterior(CholeskyPosterior):
    """Posterior in dual form, from a factor of diag(c) K diag(c) + diag(s)."""

    _stored: Matrix | None = None
    """The factor where a saved model has it, which workers read instead of a large one in memory."""

    def __init__(
        self, request: FitRequest, alpha: float, columns: Numbers, kept: Kept | None = None, opens: Opens | None = None
    ) -> None:
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        targets = Targets(outputs.values[:, columns], np.full(len(columns), alpha))
        request = replace(request.with_settings(solver=Cholesky(), form="dual", store=None), outputs=targets)
        plan = plan_of(request) if kept is None else None
        data = TrainingData.of(targets, shared_fields(request, request.problem() if plan is None else plan.problem))
        self.data = centre_linear_parts(data) if data.fit_intercept else data
        self.kernel, self.alpha = self.data.kernel, alpha
        self._means, scale = self.data.target_means(), self.data.dual_scale()
        self._scale = np.ones(data.n) if scale is None else scale
        shift = self.data.dual_shift(alpha)
        if kept is not None:
            self._stored, factor, diagonal = _loaded(kept, data.n, request.settings.memory_limit)
            left = kept.left or Left()
            self._owner, self._threads = left.owner, usable_threads()
            self._rows = request.rows if left.rows is None else left.rows
            self._quadratic = np.array(kept.numbers["quadratic"], np.float64)
        else:
            assert plan is not None and isinstance(plan.chosen.how, Direct)
            progress = Progress() if opens is None else opens(plan)
            with open_context(plan, None, progress) as context, in_terms_of_alpha([alpha], "dual"):
                matrix = FactoredGram(self.data, plan.chosen.how, context, scale)
                factor = matrix.systems.factored("posterior", shift)
                self._owner, self._rows = context.temporary, matrix.rows  # a factor on disk lives as long as its folder
            self._threads = plan.resources.local_threads
            diagonal = matrix.diagonal() * self._scale**2 + shift
        constant = self._scale if data.fit_intercept else None
        self._factored = FactoredPosterior(factor, constant, self._threads, float(shift.min()), diagonal)
        self._right = (self.data.targets - self._means) * self._scale[:, None]
        self._matrix_factor, self._constant, self._memory_limit = factor, constant, request.settings.memory_limit

    @property
    def _room(self) -> int:
        """Memory that this process may still take."""
        return room_for(detect(self._memory_limit, None), resident_bytes())

    @property
    def factor_size(self) -> FactorSize:
        factor = self._matrix_factor
        return FactorSize.of_tiles(factor.grid, self._threads, is_stored=factor.is_stored)

    def variances_of(self, x: Any) -> VarianceBounds:
        return self._factored.variances(cross_of(self.kernel, self._rows, x, self._scale), diagonal_of(self.kernel, x))

    def __getstate__(self) -> dict[str, Any]:
        found = vars(self) | {"_owner": None}  # which does not leave the process
        if self._stored is not None and is_read_by_workers(self.factor_size.loaded_bytes):
            found |= {"_matrix_factor": self._stored, "_factored": replace(self._factored, factor=self._stored)}
        return found

    def _left_out(self, executor: ThreadExecutor) -> HeldOutErrors:
        return HeldOutErrors(self._matrix_factor, self._right, self._constant, executor)

    def kept(self) -> Kept:
        grid = self._matrix_factor.grid
        numbers = {"form": "dual", "tile": grid.tile, "panel": grid.panel, "quadratic": self._quadratic.tolist()}
        diagonal = MemoryRows(self._factored.diagonal[:, None])
        return Kept(numbers, {"factor": TriangleRows(self._matrix_factor), "diagonal": diagonal})

    def quadratic(self) -> Array:
        return self._quadratic

    @cached_property
    def _quadratic(self) -> Array:
        with ThreadExecutor(self._threads) as executor:
            return np.einsum("ij,ij->j", self._right, self._left_out(executor).solution)  # type: ignore[no-any-return]

    def log_determinant(self) -> Estimate:
        shift = self.data.dual_shift(self.alpha)
        zero = 0.0 if self.data.weights is None else float(np.log(shift[self.data.weights == 0]).sum())
        return Estimate(self._factored.log_determinant() - self._log_weights() - zero)

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
                    values = left_out.constants + self._means + product_of(self.kernel, self._rows, row, coef)[0]
                    found[i] = self.data.targets[i] - values
        return found

    def fold_models(self, folds: Sequence[Numbers], context: Context | None = None) -> FoldModels:
        factor, bytes_in_memory = self._matrix_factor, 8.0 * self.data.n * columns_at_once(self.data.n, len(folds))
        # By the tiles, not by where they are: those of a factor in a store are in memory where a saved model is loaded.
        in_memory = factor.grid == memory_grid(self.data.n) and bytes_in_memory <= self._room
        progress = Progress() if context is None else context.progress
        with ThreadExecutor(self._threads) as executor:
            left_out = self._left_out(executor)
            if in_memory:
                with progress.stage("held-out models", 1.0):
                    left_out.progress = progress
                    scaled = left_out.of_folds(folds)
                    models = [left_out.without(rows, one) for rows, one in zip(folds, scaled, strict=True)]
            else:
                with stored_context(context, self._threads, progress) as run:
                    name = f"folds-{self.alpha!r}".replace("+", "")  # as in 1e+16, which is not in names of arrays
                    found = errors_in_tiles(left_out, folds, run, name)
                scaled = [one.errors for one in found]
                models = left_out.without_stored(folds, [one.forward for one in found])
        coef = np.hstack([solution * self._scale[:, None] for solution, _ in models])
        constants = np.concatenate([free + self._means for _, free in models])
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = [one / self._scale[rows, None] for rows, one in zip(folds, scaled, strict=True)]
        function = function_of(self.data, coef, constants, rows=self._rows, owner=self._owner)
        return FoldModels.of(function, errors, folds, self.data.weights)


def _loaded(kept: Kept, n: int, memory_limit: int | str | None) -> tuple[Matrix | None, Matrix, Array]:
    """Factor of a saved model where it is stored, and in memory where it was and if there is room; diagonal of A."""
    rows, diagonal = kept.arrays["factor"], kept.arrays["diagonal"]
    if isinstance(rows, TriangleRows):  # of this process
        return None, rows.factor, np.asarray(diagonal.read(0, n))[:, 0]
    assert isinstance(rows, CheckedRows) and isinstance(diagonal, CheckedRows)
    if diagonal.shape != (n, 1):
        raise StoreError(f"a diagonal of the model has shape {diagonal.shape}; expected {(n, 1)}: the model is damaged")
    grid = TileGrid(n, kept.numbers["tile"], kept.numbers["panel"])
    in_memory = is_kept_in_memory(grid, room_for(detect(memory_limit, None), resident_bytes()))
    stored = kept_factor(rows, grid, in_memory=False)
    factor = kept_factor(rows, grid, in_memory=True) if in_memory else stored
    return stored, factor, np.asarray(whole(diagonal)[:, 0])


class PrimalPosterior(CholeskyPosterior):
    """From a factor of ΦᵀWΦ + λI; λ > 0."""

    def __init__(
        self, request: FitRequest, alpha: float, columns: Numbers, kept: Kept | None = None, opens: Opens | None = None
    ) -> None:
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        targets = Targets(outputs.values[:, columns], np.full(len(columns), alpha))
        request = replace(request.with_settings(form="primal", solver=Cholesky(), store=None), outputs=targets)
        data = TrainingData.of(targets, shared_fields(request, request.problem()))
        self.data = centre_linear_parts(data) if data.fit_intercept else data
        self.kernel, self.alpha = self.data.kernel, alpha
        assert self.data.feature_map is not None
        self._n_features = self.data.feature_map.dimension(self.data.rows.shape[1])
        width = self._n_features + (1 if data.fit_intercept else 0)
        self._means, self._origin = self.data.target_means(), None
        self._progress, self._kept_centre = Progress(), dict[str, Rows]()
        if kept is None:
            if opens is not None:
                self._progress = opens(plan_of(request))
            with self._progress.stage("normal matrix", self.data.n), in_terms_of_alpha([alpha], "primal"):
                self._factor, self._coef = self._solved()
            return
        if "centre" in kept.arrays:
            self._kept_centre = {"centre": kept.arrays["centre"]}
            self._origin = np.append(array_of(kept.arrays["centre"], self._n_features), 0.0)
        elif kept.numbers["centred"]:
            self._centre(weighted_means(self.data, np.arange(self.data.n), self._whole))
        self._factor, self._coef = array_of(kept.arrays["factor"], width), array_of(kept.arrays["coef"], width)
        self._quadratic = np.array(kept.numbers["quadratic"], np.float64)

    _origin: Array | None
    """Means of features, (p,), that are subtracted from them, with 0 for the constant; None: nothing is."""

    def _solved(self) -> tuple[Array, Array]:
        """Factor and coefficients; of centred features where the free constant takes digits, as of one large weight."""
        sums = NormalSums.zeros(self._n_features + (1 if self.data.fit_intercept else 0), self.data.targets.shape[1])
        for where, features in feature_blocks(self.data):
            self._add(sums, where, features, slice(None))
            self._progress.advance(len(features))
        found = self._solved_uncentred(sums)
        if found is None:
            sums, means = centred_sums(self.data, np.arange(self.data.n), self._whole)
            self._centre(means)
            found = sums.solved(self.alpha, self._n_features)
        return found

    def _solved_uncentred(self, sums: NormalSums) -> tuple[Array, Array] | None:
        """Factor and coefficients; None where the free constant may have taken digits of the features."""
        try:
            found = sums.solved(self.alpha, self._n_features)
        except NotPositiveDefiniteError:
            if not self.data.fit_intercept:
                raise
            return None
        has_lost_digits = self.data.fit_intercept and sums.has_lost_digits(self.alpha, found[0], self._n_features)
        return None if has_lost_digits else found

    def _centre(self, means: Array) -> None:
        """Subtract means of features and targets, (p + t,)."""
        last = self._n_features
        self._origin, self._means = np.append(means[:last], 0.0), means[last + 1 :]

    def _whole(self, stage: str, function: Callable[[int, int], Any]) -> list[Any]:  # noqa: ARG002
        return [function(0, self.data.n)]

    def _features(self, x: Any) -> Array:
        """Features of rows, centred; to be read only."""
        return self._about(features_of(self.data, x))

    def _about(self, features: Array) -> Array:
        return features if self._origin is None else features - self._origin

    def _blocks(self) -> Iterator[tuple[slice, Array]]:
        """Rows and their features, a block at a time."""
        for where, features in feature_blocks(self.data):
            yield where, self._about(features)

    def _add(self, sums: NormalSums, where: slice, features: Array, rows: Any) -> None:
        """Add some rows of a block."""
        weights = None if self.data.weights is None else self.data.weights[where][rows]
        sums.add(features[rows], (self.data.targets[where] - self._means)[rows], weights)

    def _lengths(self, features: Array) -> Array:
        """φᵀ(ΦᵀWΦ + λI)⁻¹φ of rows, of shape (m,)."""
        inner = scipy.linalg.solve_triangular(self._factor, features.T, lower=True, check_finite=False)
        return np.einsum("ij,ij->j", inner, inner)  # type: ignore[no-any-return]

    @property
    def factor_size(self) -> FactorSize:
        return FactorSize.of_normal(len(self._factor))

    def variances_of(self, x: Any) -> VarianceBounds:
        found, part = self.alpha * self._lengths(self._features(x)), self._rounded_fraction
        high = found * (1.0 + part) if part < 1.0 else np.full(len(found), np.inf)
        return VarianceBounds(found, found * (1.0 - part), high)

    @cached_property
    def _rounded_fraction(self) -> float:
        """Largest fraction of a variance that rounding in the sums, the factor and a substitution may change.

        Entries a_ij of the matrix are off by some ε √(a_ii a_jj), which is ε where features are scaled to a diagonal of
        ones: it is that matrix, D⁻¹LLᵀD⁻¹, whose smallest eigenvalue, at least 1 / ‖L⁻¹D‖² with the Frobenius norm,
        says what is lost (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 10.1).
        """
        inverse = scipy.linalg.solve_triangular(self._factor, np.eye(len(self._factor)), lower=True, check_finite=False)
        inverse *= np.sqrt(np.einsum("ij,ij->i", self._factor, self._factor))
        p = len(inverse)
        part = 3 * (self.data.n + p + 2) * EPS * p * float(np.einsum("ij,ij->", inverse, inverse))
        return min(2 * part / (1.0 - part), 1.0) if part < 1 else 1.0

    def _errors(self) -> Iterator[tuple[slice, Array, Array]]:
        """Rows, y − f and the features of a block."""
        for where, features in self._blocks():
            yield where, self.data.targets[where] - self._means - features @ self._coef, features

    def kept(self) -> Kept:
        arrays: dict[str, Rows] = {"factor": MemoryRows(self._factor), "coef": MemoryRows(self._coef)}
        numbers = {"form": "primal", "quadratic": self._quadratic.tolist(), "centred": self._origin is not None}
        return Kept(numbers, arrays | self._kept_centre)

    def quadratic(self) -> Array:
        return self._quadratic

    @cached_property
    def _quadratic(self) -> Array:
        total = np.zeros(self.data.targets.shape[1])
        for where, errors, _ in self._errors():
            weights = np.ones(len(errors)) if self.data.weights is None else self.data.weights[where]
            total += weights @ (errors * (self.data.targets[where] - self._means))
        return total / self.alpha

    def log_determinant(self) -> Estimate:
        n = self.degrees + (1 if self.data.fit_intercept else 0)
        whole = 2.0 * float(np.log(self._factor.diagonal()).sum())
        constant = -math.log(self.alpha) if self.data.fit_intercept else 0.0
        part = self._rounded_fraction
        if part > RELATIVE_WIDTH:
            how = "few digits" if part < 1.0 else "no digits"
            warn_inaccurate(
                f"features of rows differ so much in size that {how} of the log marginal likelihood are certain "
                f"(alpha = {self.alpha:g}): scale rows that are far larger than others, or use form='dual'",
                stacklevel=2,
            )
        found = whole + (n - self._n_features) * math.log(self.alpha) + constant - self._log_weights()
        return Estimate(found)

    def loo_residuals(self) -> Array:
        found, near = np.empty(self.data.targets.shape), list[Numbers]()
        for where, errors, features in self._errors():
            weights = np.ones(len(errors)) if self.data.weights is None else self.data.weights[where]
            left = 1.0 - weights * self._lengths(features)
            near.append(where.start + np.flatnonzero(left < MIN_ONE_MINUS_LEVERAGE))
            found[where] = errors / np.maximum(left, MIN_ONE_MINUS_LEVERAGE)[:, None]
        numbers = np.concatenate(near)
        if len(numbers):
            found[numbers] = loo_errors_high_leverage(self.data, self._means, numbers, [self.alpha], self._n_features)[
                0
            ]
        return found

    def fold_models(self, folds: Sequence[Numbers], context: Context | None = None) -> FoldModels:
        progress = Progress() if context is None else context.progress
        with progress.stage("held-out models", 2 * self.data.n):
            return self._fold_models(folds, progress)

    def _fold_models(self, folds: Sequence[Numbers], progress: Progress) -> FoldModels:
        """The same with a display of the rows of both passes."""
        rest, *held = [NormalSums.zeros(len(self._factor), self.data.targets.shape[1]) for _ in range(len(folds) + 1)]
        for where, features in self._blocks():
            for one, rows in zip(held, folds, strict=True):
                self._add(one, where, features, rows_in_block(rows, where)[1])
            progress.advance(len(features))
        with in_terms_of_alpha([self.alpha], "primal"):
            others = sums_of_others(held, rest)  # every row is in one fold
            coefs = np.stack([self._coef_of(sums, rows) for sums, rows in zip(others, folds, strict=True)])
        errors = [np.empty((len(rows), self.data.targets.shape[1])) for rows in folds]
        for where, features in self._blocks():
            for f, rows in enumerate(folds):
                numbers, here = rows_in_block(rows, where)
                values = features[here] @ coefs[f] + self._means
                errors[f][numbers] = self.data.targets[where][here] - values
            progress.advance(len(features))
        coef, constants = self._of_plain_features(np.hstack(list(coefs)), len(folds))
        function = function_of(self.data, coef, constants, feature_map=self.data.feature_map)
        return FoldModels.of(function, errors, folds, self.data.weights)

    def _of_plain_features(self, coef: Array, n_folds: int) -> tuple[Array, Array]:
        """Coefficients of features that are not centred, and constants, of the columns of all folds."""
        last, constants = self._n_features, np.tile(self._means, n_folds)
        if self._origin is not None:
            constants = constants - self._origin[:last] @ coef[:last]
        if self.data.fit_intercept:
            constants = constants + coef[last]
        return np.ascontiguousarray(coef[:last]), constants

    def _coef_of(self, sums: NormalSums, fold: Numbers) -> Array:
        """Coefficients of the model without a fold, from the sums of all other rows if these determine them."""
        solved = self._solved_uncentred(sums)
        if solved is not None:
            return solved[1]
        sums, means = centred_sums(self.data, np.delete(np.arange(self.data.n), fold), self._whole)
        coef, last = sums.solved(self.alpha, self._n_features)[1], self._n_features
        origin = np.zeros(last) if self._origin is None else self._origin[:last]
        coef[last] += means[last + 1 :] - self._means - (means[:last] - origin) @ coef[:last]
        return coef


def array_of(rows: Rows, width: int) -> Array:
    """Array in memory, with `width` rows, that a fit has left or a saved model holds."""
    if isinstance(rows, MemoryRows):
        return np.asarray(rows.array)
    assert isinstance(rows, CheckedRows)
    if rows.shape[0] != width:
        raise StoreError(
            f"a factor of the model has {plural(rows.shape[0], 'row')}; expected {width}: the model is damaged"
        )
    return np.asarray(whole(rows))
