"""The Gaussian process in the dual form, from a Cholesky factor of K + λW⁻¹ in memory or in a temporary store."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dkrr.cluster import Progress, ThreadExecutor
from dkrr.cluster.process import usable_threads
from dkrr.data import CheckedRows, MemoryRows, Rows, whole
from dkrr.data.rows import dense
from dkrr.errors import StoreError
from dkrr.fitting.context import Context, open_context
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.fold_models import FoldModels, function_of
from dkrr.fitting.gaussian_process import (
    Array,
    CholeskyPosterior,
    Covariance,
    Estimate,
    Numbers,
    diagonal_of,
)
from dkrr.fitting.gram import FactoredGram
from dkrr.fitting.prediction_costs import is_kept_in_memory, is_read_by_workers, room_for, size_of_tiles
from dkrr.fitting.request_plans import plan_of
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.results import Left, SavedPosterior
from dkrr.fitting.sampled import centre_linear_parts
from dkrr.fitting.tiled_folds import errors_in_tiles, stored_context
from dkrr.limits import resident_bytes
from dkrr.linalg.cholesky import Matrix
from dkrr.linalg.cross_gram_products import ComputedCrossGram, cross_gram
from dkrr.linalg.held_out import HeldOutErrors, columns_at_once
from dkrr.linalg.in_memory_cholesky import growing_grid, memory_grid
from dkrr.linalg.posterior import FactoredPosterior
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.linalg.solver_settings import Cholesky
from dkrr.linalg.triangle import TriangleRows, kept_factor
from dkrr.linalg.variance_bounds import EPS, VarianceBounds
from dkrr.machine.detection import detect
from dkrr.planning import Plan
from dkrr.planning.predictions import FactorSize
from dkrr.store import MemoryMatrix, TileGrid
from dkrr.text import plural

LAST_FRACTION = 32
"""Rows of a factor for each of the rows whose columns are kept, which so are 1/16 of the factor."""
Opens = Callable[[Plan], Progress]
"""Gives the display of a factorisation that the fit has not left, from its plan."""


class DualPosterior(CholeskyPosterior):
    """Posterior in dual form, from a factor of diag(c) K diag(c) + diag(s)."""

    _last: tuple[Any, Array] | None = None
    """Rows whose variances were computed last, or that were suggested, if they are few; and L⁻¹ C K(X, x)."""
    _stored: Matrix | None = None
    """The factor where a saved model has it, which workers read instead of a large one in memory."""

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
        request = replace(request.with_settings(solver=Cholesky(), form="dual", store=None), outputs=targets)
        plan = plan_of(request) if saved is None else None
        data = TrainingData.of(targets, shared_fields(request, request.problem() if plan is None else plan.priced))
        self.data = centre_linear_parts(data)
        self.kernel, self.alpha = self.data.kernel, alpha
        self._means, scale = self.data.target_means(), self.data.dual_scale()
        self._scale = np.ones(data.n) if scale is None else scale
        shift = self.data.dual_shift(alpha)
        if saved is not None:
            self._stored, factor, diagonal = _loaded(saved, data.n, request.settings.memory_limit)
            left = saved.left or Left()
            self._owner, self._threads = left.owner, usable_threads()
            self._rows = request.rows if left.rows is None else left.rows
            self._quadratic = np.array(saved.numbers["quadratic"], np.float64)
        else:
            assert plan is not None
            progress = Progress() if opens is None else opens(plan)
            with open_context(plan, None, progress) as context, in_terms_of_alpha([alpha], "dual"):
                matrix = FactoredGram(self.data, plan.chosen.details, context, scale)
                factor = matrix.systems.factor("posterior", shift).matrix
                self._owner, self._rows = context.temporary, matrix.rows  # a factor on disk lives as long as its folder
            self._threads = plan.resources.local_threads
            diagonal = matrix.diagonal() * self._scale**2 + shift
        constant = self._scale if data.fit_intercept else None
        self._factored = FactoredPosterior(factor, constant, self._threads, float(shift.min()), diagonal)
        self._right = (self.data.targets - self._means) * self._scale[:, None]
        self._matrix_factor, self._constant, self._memory_limit = factor, constant, request.settings.memory_limit

    @property
    def factor(self) -> Matrix:
        """L of diag(c) K diag(c) + diag(s)."""
        return self._matrix_factor

    @property
    def _room(self) -> int:
        """Memory that this process may still take."""
        return room_for(detect(self._memory_limit, None), resident_bytes())

    @property
    def factor_size(self) -> FactorSize:
        factor = self._matrix_factor
        return size_of_tiles(factor.grid, self._threads, is_stored=factor.is_stored)

    def variances_of(self, x: Any) -> VarianceBounds:
        cross = ComputedCrossGram(self.kernel, self._rows).entries(x, self._scale, usable_threads())
        z = self._factored.swept(cross)
        self.keep(x, z)
        return self._factored.variances(z, diagonal_of(self.kernel, x))

    def keep(self, x: Any, swept: Array | None) -> None:
        assert swept is not None
        is_few = isinstance(self._matrix_factor, MemoryMatrix) and len(swept) >= LAST_FRACTION * swept.shape[1]
        # Together: blocks of rows may come from several threads.
        self._last = (x.copy(), swept.copy()) if is_few else None

    def swept(self, x: Any) -> Array | None:
        """L⁻¹ C K(X, x) where exactly these rows were the last to be kept; None where they were not."""
        rows, z = self._last or (None, None)
        is_same = rows is not None and rows.shape == x.shape and np.array_equal(dense(rows), dense(x))
        return z if is_same else None

    def covariance(self, x: Any, progress: Progress) -> Covariance:
        threads, known = usable_threads(), diagonal_of(self.kernel, x)
        prior = ComputedCrossGram(self.kernel, MemoryRows(x)).entries(x, None, threads)
        np.fill_diagonal(prior, known)  # without the rounding of differences
        cross = ComputedCrossGram(self.kernel, self._rows).entries(x, self._scale, threads)
        found = self._factored.covariance(cross, prior, progress)
        return Covariance(found, 4 * (self.data.n + 2) * EPS * known, cross)

    def __getstate__(self) -> dict[str, Any]:
        found = vars(self) | {"_owner": None, "_last": None}  # which do not leave the process
        if self._stored is not None and is_read_by_workers(self.factor_size.loaded_bytes):
            found |= {"_matrix_factor": self._stored, "_factored": replace(self._factored, factor=self._stored)}
        return found

    def _left_out(self, executor: ThreadExecutor) -> HeldOutErrors:
        return HeldOutErrors(self._matrix_factor, self._right, self._constant, executor)

    def saved(self) -> SavedPosterior:
        grid = self._matrix_factor.grid
        numbers = {"form": "dual", "tile": grid.tile, "panel": grid.panel, "quadratic": self._quadratic.tolist()}
        diagonal = MemoryRows(self._factored.diagonal[:, None])
        return SavedPosterior(numbers, {"factor": TriangleRows(self._matrix_factor), "diagonal": diagonal})

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
                cross, others = cross_gram(self.kernel, self._rows), np.flatnonzero(~known)
                for i in others:
                    row = self._rows.read(int(i), int(i) + 1)
                    values = left_out.constants + self._means + cross.times(row, coef)[0]
                    found[i] = self.data.targets[i] - values
        return found

    def fold_models(self, folds: Sequence[Numbers], context: Context | None = None) -> FoldModels:
        factor, bytes_in_memory = self._matrix_factor, 8.0 * self.data.n * columns_at_once(self.data.n, len(folds))
        # By the tiles, not by where they are: those of a factor in a store are in memory where a saved model is loaded.
        in_memory = factor.grid in (memory_grid(self.data.n), growing_grid(self.data.n))
        in_memory = in_memory and bytes_in_memory <= self._room
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


def _loaded(saved: SavedPosterior, n: int, memory_limit: int | str | None) -> tuple[Matrix | None, Matrix, Array]:
    """Factor of a saved model where it is stored, and in memory where it was and if there is room; diagonal of A."""
    rows, diagonal = saved.arrays["factor"], saved.arrays["diagonal"]
    if isinstance(rows, TriangleRows):  # of this process
        return None, rows.factor, np.asarray(diagonal.read(0, n))[:, 0]
    assert isinstance(rows, CheckedRows) and isinstance(diagonal, CheckedRows)
    if diagonal.shape != (n, 1):
        raise StoreError(f"a diagonal of the model has shape {diagonal.shape}; expected {(n, 1)}: the model is damaged")
    grid = TileGrid(n, saved.numbers["tile"], saved.numbers["panel"])
    in_memory = is_kept_in_memory(grid, room_for(detect(memory_limit, None), resident_bytes()))
    stored = kept_factor(rows, grid, in_memory=False)
    factor = kept_factor(rows, grid, in_memory=True) if in_memory else stored
    return stored, factor, np.asarray(whole(diagonal)[:, 0])


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
