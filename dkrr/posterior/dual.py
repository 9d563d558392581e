"""The Gaussian process from a Cholesky factor of K + λW⁻¹: in memory, or in a temporary store where it does not fit."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dkrr.cluster import Progress, ThreadExecutor
from dkrr.cluster.process import available_bytes
from dkrr.data import CheckedRows, MemoryRows, whole
from dkrr.errors import StoreError
from dkrr.fitting.context import open_context
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.gram import direct_gram
from dkrr.fitting.requests import FitRequest, Targets, plan_of
from dkrr.fitting.sampled import about_the_rows
from dkrr.linalg.cholesky import Matrix
from dkrr.linalg.held_out import LeftOut
from dkrr.linalg.posterior import FactoredPosterior
from dkrr.linalg.triangle import TriangleRows, kept_factor
from dkrr.linalg.variance_bounds import VarianceBounds
from dkrr.machine.detection import usable_threads
from dkrr.planning import Direct
from dkrr.posterior.base import (
    Array,
    Estimate,
    FactoredProcess,
    FoldModels,
    Kept,
    Numbers,
    cross_of,
    diagonal_of,
    product_of,
)
from dkrr.solvers import Cholesky
from dkrr.solvers.direct import in_terms_of_alpha
from dkrr.store import TileGrid


class DualPosterior(FactoredProcess):
    """From a factor of diag(c) K diag(c) + diag(s)."""

    def __init__(self, request: FitRequest, alpha: float, columns: Numbers, kept: Kept | None = None) -> None:
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        targets = Targets(outputs.values[:, columns], np.full(len(columns), alpha))
        request = replace(request.with_settings(solver=Cholesky(), form="dual", store=None), outputs=targets)
        plan = plan_of(request) if kept is None else None
        data = TrainingData.of(targets, shared_fields(request, request.problem() if plan is None else plan.problem))
        self.data = about_the_rows(data) if data.fit_intercept else data
        self.kernel, self.alpha = self.data.kernel, alpha
        self._means, scale = self.data.target_means(), self.data.dual_scale()
        self._scale = np.ones(data.n) if scale is None else scale
        shift = self.data.dual_shift(alpha)
        if kept is not None:
            factor, diagonal = _loaded(kept, data.n)
            self._owner, self._rows, self._threads = None, request.rows, usable_threads()
            self._quadratic = np.array(kept.numbers["quadratic"], np.float64)
        else:
            assert plan is not None and isinstance(plan.chosen.how, Direct)
            with open_context(plan, None, Progress()) as context, in_terms_of_alpha([alpha], "dual"):
                matrix = direct_gram(self.data, plan.chosen.how, context, scale)
                factor = matrix.systems.factored("posterior", shift)
                self._owner, self._rows = context.temporary, matrix.rows  # a factor on disk lives as long as its folder
            self._threads = plan.resources.local_threads
            diagonal = matrix.diagonal() * self._scale**2 + shift
        constant = self._scale if data.fit_intercept else None
        self._factored = FactoredPosterior(factor, constant, self._threads, float(shift.min()), diagonal)
        self._right = (self.data.targets - self._means) * self._scale[:, None]
        self._matrix_factor, self._constant = factor, constant

    def variances_of(self, x: Any) -> VarianceBounds:
        return self._factored.variances(cross_of(self.kernel, self._rows, x, self._scale), diagonal_of(self.kernel, x))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_owner": None}  # which does not leave the process

    def _left_out(self, executor: ThreadExecutor) -> LeftOut:
        return LeftOut(self._matrix_factor, self._right, self._constant, executor)

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
            found = product_of(self.kernel, self._rows, x, together)
            return np.asarray(found.reshape(len(found), len(folds), t).swapaxes(0, 1) + np.stack(constants)[:, None])

        return FoldModels(errors, predict)


def _loaded(kept: Kept, n: int) -> tuple[Matrix, Array]:
    """Factor of a saved model, in memory where it was and if it takes at most half of what is free; diagonal of A."""
    rows, diagonal = kept.arrays["factor"], kept.arrays["diagonal"]
    assert isinstance(rows, CheckedRows) and isinstance(diagonal, CheckedRows)
    if diagonal.shape != (n, 1):
        raise StoreError(f"a diagonal of the model has shape {diagonal.shape}; expected {(n, 1)}: the model is damaged")
    grid = TileGrid(n, kept.numbers["tile"], kept.numbers["panel"])
    return kept_factor(rows, grid, available_bytes() / 2), np.asarray(whole(diagonal)[:, 0])
