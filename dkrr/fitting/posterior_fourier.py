"""The Gaussian process of a fit on a Fourier grid: variances of any number of rows by one transform.

With B = (A + λI)⁻¹ of centred features and W the sum of the weights, the variance of f at x for s = 1 is

    k(x, x) − φᵀφ + λ (φ − φ̄)ᵀB(φ − φ̄) + λ/W,

the last term with a free constant. The quadratic form is a sum of waves whose coefficients are sums along the
diagonals of B. Outside of the box of the rows φ is that of a wider grid, without the terms of k that are 0 there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from dkrr import blas
from dkrr.cluster import Progress
from dkrr.data import MemoryRows, Rows
from dkrr.data.rows import check_finite, dense
from dkrr.errors import InputError, warn_inaccurate
from dkrr.fitting.context import Context
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.fold_models import FoldModels, function_of
from dkrr.fitting.fourier_rows import BLOCK_ROWS, FOLD_ROUNDING, MAX_ERROR, ROW_ROUNDING, GridModel, RowsOnGrid
from dkrr.fitting.gaussian_process import Array, CholeskyPosterior, Estimate, Numbers, warn_of_width
from dkrr.fitting.posterior_cholesky import Opens, array_of
from dkrr.fitting.primal_rows import MIN_ONE_MINUS_LEVERAGE, loo_errors, rows_in_block, sums_of_others
from dkrr.fitting.request_plans import plan_of
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.results import Kept
from dkrr.kernels.fourier_grid import FourierZones, Grid
from dkrr.kernels.nonuniform import ACCURACY, Complex
from dkrr.linalg.fourier_normal import GridSums, inverse_of, length_modes, lengths, totals_of
from dkrr.linalg.refinement import in_terms_of_alpha
from dkrr.linalg.variance_bounds import EPS, VarianceBounds
from dkrr.planning.detection import usable_threads
from dkrr.planning.predictions import FactorSize
from dkrr.planning.transforms import MAX_SIDE

LEAST_QUADRATIC = 1e-4
"""yᵀWy − ΦᵀWyᵀβ over yᵀWy below which it is computed from the errors, where nothing cancels."""


def in_threads(n: int) -> Callable[[str, Callable[[int, int], Any]], list[Any]]:
    """Values of a function of segments of n rows, each in its own thread."""

    def each(stage: str, function: Callable[[int, int], Any]) -> list[Any]:  # noqa: ARG001
        threads = usable_threads()
        cuts = sorted({round(k * n / threads) for k in range(threads + 1)})
        with ThreadPoolExecutor(threads) as pool:
            return [one.result() for one in [pool.submit(function, a, b) for a, b in pairwise(cuts)]]

    return each


class FourierPosterior(CholeskyPosterior):
    """From a factor of A + λI, A being gathered from sums over the rows."""

    def __init__(
        self, request: FitRequest, alpha: float, columns: Numbers, kept: Kept | None = None, opens: Opens | None = None
    ) -> None:
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        targets = Targets(outputs.values[:, columns], np.full(len(columns), alpha))
        data = TrainingData.of(targets, shared_fields(request, request.problem()))
        self.data, self.kernel, self.alpha, self._means = data, data.kernel, alpha, data.target_means()
        self._rows = RowsOnGrid(data, self._means, in_threads(data.n))
        self._grid, self._unit = self._rows.grid, self._rows.grid.unit
        self._kept = kept
        if kept is not None:
            self._quadratic = np.array(kept.numbers["quadratic"], np.float64)
            if "sums" in kept.arrays:
                length = len(GridSums.zeros(self._grid, len(columns)).packed())
                self._sums = GridSums.unpacked(self._grid, array_of(kept.arrays["sums"], length)[:, 0])
        elif opens is not None:
            progress = opens(plan_of(request))
            with progress.stage("normal matrix", 1.0):
                self._model  # noqa: B018 - its sums are a pass over the rows

    def __getstate__(self) -> dict[str, Any]:
        self._lengths  # noqa: B018 - a worker needs no rows for variances inside the box
        return vars(self) | {"_rows": replace(self._rows, each=None)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _rows=replace(state["_rows"], each=in_threads(state["data"].n)))

    @cached_property
    def _sums(self) -> GridSums:
        return self._rows.sums([np.arange(self.data.n)])[0]

    @cached_property
    def _model(self) -> GridModel:
        with in_terms_of_alpha([self.alpha], "primal"):
            known = {} if self._kept is None else self._kept.arrays
            factor = array_of(known["factor"], self._grid.dimension) if "factor" in known else None
            centred = self.data.fit_intercept
            return GridModel.of(self._grid, self._sums, self.alpha, factor=factor, centred=centred)

    @cached_property
    def _lengths(self) -> tuple[Complex, float, float]:
        """Waves of the quadratic form, its value where φ = 0, and what rounding may add to a value."""
        return self._lengths_on(self._grid)

    def _of_terms(self, far: tuple[int, ...]) -> tuple[float, tuple[Complex, float, float]]:
        """The same for rows that are far in some columns, after k(x, x) − φᵀφ, where φ lacks the terms that are 0."""
        if not far:
            return 0.0, self._lengths
        if far not in self._of_far:
            grid = self._rows.phi.of_terms_without(far).grid(self.data.rows.shape[1])
            left = max(self._unit - float((grid.scale[: grid.n_cosines] ** 2).sum()), 0.0)
            self._of_far[far] = left, self._lengths_on(grid)
        return self._of_far[far]

    @cached_property
    def _of_far(self) -> dict[tuple[int, ...], tuple[float, tuple[Complex, float, float]]]:
        return {}

    def _lengths_on(self, grid: Grid) -> tuple[Complex, float, float]:
        model, free = self._model, self.data.fit_intercept
        inverse, means = inverse_of(model.factor), model.generator.means
        modes = length_modes(grid, inverse, means)
        constant = 1.0 / model.generator.total if free else 0.0
        modes[(0, *self._grid.middle)] += constant
        return modes, float(means @ inverse @ means) + constant, 4 * ACCURACY * float(np.abs(modes).sum())

    @cached_property
    def _wide(self) -> "FourierPosterior":
        """The same process on a grid that has the rows near the box in its box."""
        phi, away = self._rows.phi, self._grid.periods - 2 * self._grid.reach
        box = [(low - a / 2, high + a / 2) for (low, high), a in zip(phi.box, away.tolist(), strict=True)]
        side = phi.in_box(box).dimension(self.data.rows.shape[1])
        if side > MAX_SIDE:
            raise InputError(
                f"some rows are outside of the box of the training rows, where standard deviations take {side:,} "
                f"features, and at most {MAX_SIDE:,} are factored; expected rows in the box, or form='dual'"
            )
        found = object.__new__(FourierPosterior)
        vars(found).update(vars(self))
        for name in ("_sums", "_model", "_lengths", "_of_far"):
            vars(found).pop(name, None)
        found._kept = None
        found.data = replace(self.data, feature_map=phi.in_box(box))
        found._rows = RowsOnGrid(found.data, self._means, in_threads(self.data.n))
        found._grid = found._rows.grid
        return found

    @property
    def factor_size(self) -> FactorSize:
        return FactorSize.of_normal(self._grid.dimension, is_transform=True)

    def variances(
        self,
        rows: Rows,
        first: int = 0,
        block_rows: int = BLOCK_ROWS,  # noqa: ARG002 - a transform of many rows takes less time for each
    ) -> Iterator[tuple[slice, VarianceBounds]]:
        widths = list[Array]()
        for start in range(0, rows.shape[0], BLOCK_ROWS):
            where = slice(start, min(start + BLOCK_ROWS, rows.shape[0]))
            x = rows.read(where.start, where.stop)
            check_finite(x, "X", first + start)
            found = self.variances_of(x)
            widths.append(found.relative_width)
            yield where, found
        remedy = f"alpha = {self.alpha:g} is small beside the rounding of sums over the rows: give a larger alpha"
        warn_of_width(widths, rows.shape[0], remedy)

    def variances_of(self, x: Any) -> VarianceBounds:
        x, zones = dense(x), FourierZones(self._rows.phi)
        _, beyond, added = self._lengths
        found = np.full(len(x), self._unit + self.alpha * beyond)
        for zone in zones.zones(x):
            process = self if zone.phi is zones.inside else self._wide
            left, (modes, _, more) = process._of_terms(zone.far)
            added = max(added, more)
            found[zone.where] = left + self.alpha * lengths(process._grid, modes, zone.rows)
        return self._bounded(np.maximum(found, 0.0), self.alpha * added)

    def _bounded(self, found: Array, added: float) -> VarianceBounds:
        """With bounds of rounding: of the sums and of the factor, relative to λ, and of the transform of the row.

        Entries of A are off by some ε √(a_ii a_jj), whose norm is at most ε tr(A).
        """
        p = self._grid.dimension
        part = (2 * ACCURACY + 3 * (p + 2) * EPS) * self._model.generator.total * self._unit / self.alpha
        high = found * (1.0 + part) + added if part < 1.0 else np.full(len(found), np.inf)
        return VarianceBounds(found, np.maximum(found * (1.0 - part) - added, 0.0), high)

    def kept(self) -> Kept:
        arrays: dict[str, Rows] = {"factor": MemoryRows(self._model.factor), "coef": MemoryRows(self._model.coef)}
        if self._kept is not None and "sums" in self._kept.arrays:
            arrays["sums"] = self._kept.arrays["sums"]
        return Kept({"form": "primal", "quadratic": self._quadratic.tolist(), "centred": False}, arrays)

    def quadratic(self) -> Array:
        return self._quadratic

    def _errors(self, take: Callable[[slice, Array], Any]) -> list[Any]:
        """Apply `take(rows, residuals)` to every block of rows; list of the results."""
        model, data = self._model, self.data

        def of_block(where: slice, values: Array) -> Any:
            return take(where, data.targets[where] - self._means - model.constants - values)

        return self._rows.predictions("training errors", model.coef, of_block)

    @cached_property
    def _quadratic(self) -> Array:
        model, sums = self._model, self._sums
        totals = totals_of(sums.modes[1:])
        whole = sums.squares - (totals**2 / model.generator.total if self.data.fit_intercept else 0.0)
        moments = model.generator.moments(sums.modes[1:], totals)
        found = whole - np.einsum("ij,ij->j", moments, model.coef)
        if (found < LEAST_QUADRATIC * whole).any():

            def of_block(where: slice, errors: Array) -> Array:
                return np.asarray(self._rows.weights(where) @ (errors * (self.data.targets[where] - self._means)))

            found = np.sum(self._errors(of_block), axis=0)
        return np.asarray(found / self.alpha)

    def log_determinant(self) -> Estimate:
        model, free = self._model, self.data.fit_intercept
        n = self.degrees + (1 if free else 0)
        found = 2.0 * float(np.log(model.factor.diagonal()).sum())
        found += (n - self._grid.dimension) * math.log(self.alpha) - self._log_weights()
        if free:
            found += math.log(model.generator.total / self.alpha)
        return Estimate(found)

    def _doubt(self, what: str, rounding: float) -> str:
        """Message about errors of rows that are left out, of which λ below the rounding of the sums leaves few digits.

        Empty where they are certain.
        """
        part = rounding * self._model.generator.total * self._unit / self.alpha
        if part <= MAX_ERROR:
            return ""
        return (
            f"{what} may be off by as much as {part:.0e} of their size: alpha = {self.alpha:g} is small beside the "
            f"rounding of sums over the rows: give a larger alpha, or form='dual'"
        )

    def loo_residuals(self) -> Array:
        doubt = self._doubt("leave-one-out residuals", ROW_ROUNDING)
        if doubt:
            warn_inaccurate(doubt, stacklevel=3)
        found, near = np.empty(self.data.targets.shape), list[Numbers]()
        modes = self._lengths[0]

        def of_block(where: slice, errors: Array) -> None:
            found[where] = errors

        self._errors(of_block)

        def unleveraged(where: slice, x: Array) -> Numbers:
            left = 1.0 - self._rows.weights(where) * lengths(self._grid, modes, x)
            found[where] /= np.maximum(left, MIN_ONE_MINUS_LEVERAGE)[:, None]
            return np.asarray(where.start + np.flatnonzero(left < MIN_ONE_MINUS_LEVERAGE))

        near = self._rows.over_rows("held-out errors", unleveraged)
        numbers = np.concatenate(near)
        if len(numbers):
            found[numbers] = errors_without(self._rows, numbers, self.alpha)
        return found

    def fold_models(self, folds: Sequence[Numbers], context: Context | None = None) -> FoldModels:
        progress = Progress() if context is None else context.progress
        with progress.measured("held-out models"):
            return self._fold_models(folds)

    def _fold_models(self, folds: Sequence[Numbers]) -> FoldModels:
        rows, t, free = self._rows, self.data.targets.shape[1], self.data.fit_intercept
        with in_terms_of_alpha([self.alpha], "primal"):
            others = sums_of_others(rows.sums(folds), GridSums.zeros(self._grid, t))
            solutions = list[tuple[Array, Array]]()
            for sums in others:  # the factors of all folds at once would be many
                model = GridModel.of(self._grid, sums, self.alpha, centred=free)
                solutions.append((model.coef, model.constants + self._means))
        coefs, constants = (np.concatenate(part, axis=-1) for part in zip(*solutions, strict=True))
        errors, in_fold = [np.empty((len(fold), t)) for fold in folds], np.ones((self.data.n, len(folds)), bool)
        for f, fold in enumerate(folds):
            in_fold[fold, f] = False

        def of_block(where: slice, values: Array) -> None:
            for f, fold in enumerate(folds):
                numbers, here = rows_in_block(fold, where)
                columns = slice(f * t, (f + 1) * t)
                errors[f][numbers] = self.data.targets[where][here] - values[here, columns] - constants[columns]

        rows.predictions("training errors", coefs, of_block)

        def duals(where: slice) -> Array:
            x = dense(self.data.rows.read(where.start, where.stop))
            left = np.tile(self.data.targets[where], len(folds)) - rows.phi.multiply(x, coefs) - constants
            left *= (rows.weights(where) / self.alpha)[:, None] * np.repeat(in_fold[where], t, axis=1)
            return np.asarray(left, np.float64)

        zones = FourierZones(rows.phi)
        function = function_of(self.data, np.vstack([coefs, rows.near_coefs(duals)]), constants, feature_map=zones)
        doubt = self._doubt("predictions and errors of the models without a fold", FOLD_ROUNDING)
        return FoldModels.of(function, errors, folds, self.data.weights, doubt)


def errors_without(rows: RowsOnGrid, numbers: Numbers, alpha: float) -> Array:
    """Errors of a few rows, each by the model of all other rows, of shape (m, t); see `loo_errors_high_leverage`."""
    data, free = rows.data, rows.data.fit_intercept
    counting = data.n if data.weights is None else np.count_nonzero(data.weights)
    found = []
    for part in np.split(numbers, [1] if free and len(numbers) == counting else []):
        rest = np.delete(np.arange(data.n), part)
        with in_terms_of_alpha([alpha], "primal"):
            model = GridModel.of(rows.grid, rows.sums([rest])[0], alpha, centred=free)
        roots = np.sqrt(np.concatenate([rows.weights(slice(k, k + 1)) for k in part.tolist()]))
        features = rows.phi.transform(data.rows.take(part))
        errors = data.targets[part] - rows.means - model.constants - features @ model.coef
        inner = np.ascontiguousarray(features - model.generator.means)
        blas.solve_lower_right(model.factor, inner)
        if free:
            inner = np.column_stack([inner, np.full(len(part), 1.0 / math.sqrt(model.generator.total))])
        found.append(loo_errors(inner * roots[:, None], errors * roots[:, None], roots))
    return np.concatenate(found)
