"""The Gaussian process of a fit on a Fourier grid: variances of any number of rows by one transform.

With B = (A + λI)⁻¹ of centred features and W the sum of the weights, the variance of f at x for s = 1 is

    k(x, x) − φᵀφ + λ (φ − φ̄)ᵀB(φ − φ̄) + λ/W,

the last term with an intercept. The quadratic form is a sum of waves whose coefficients are sums along the
diagonals of B. Outside of the box of the rows φ is that of a wider grid, without the terms of k that are 0 there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from operator import iadd
from typing import Any

import numpy as np

from dkrr.cluster import Progress
from dkrr.cluster.process import usable_threads
from dkrr.data import MemoryRows, Rows
from dkrr.data.rows import check_finite, dense
from dkrr.errors import InputError, warn_inaccurate
from dkrr.fitting.costs.fourier_costs import MAX_SIDE
from dkrr.fitting.data import TrainingData
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.fold_models import function_of
from dkrr.fitting.gaussian_process import Array, Covariance, Estimate, Numbers, warn_of_width
from dkrr.fitting.posterior_cholesky import array_of
from dkrr.fitting.posterior_primal import PrimalPosterior
from dkrr.fitting.prediction_costs import size_of_normal
from dkrr.fitting.primal_rows import PrimalRows
from dkrr.fitting.results import SavedPosterior
from dkrr.kernels.fourier_grid import FourierGrid, FourierZones, Grid
from dkrr.kernels.nonuniform import ACCURACY, Complex, Transform
from dkrr.linalg.fourier_sums import (
    FOLD_ROUNDING,
    MAX_BLOCK_ROWS,
    MAX_ERROR,
    ROW_ROUNDING,
    FourierSums,
    inverse_of,
    leverage_modes,
    leverages_of,
)
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.linalg.sums import NormalSolution
from dkrr.linalg.variance_bounds import EPS, VarianceBounds
from dkrr.planning.predictions import FactorSize


class FourierPosterior(PrimalPosterior):
    """Posterior of a fit on a Fourier grid."""

    _has_known_sums = False
    """Whether the fit has left the sums, or a saved model holds them."""
    _known_factor: Array | None = None

    def _prepared(self, data: TrainingData) -> TrainingData:
        return data

    def _rows_of(self, **settings: Any) -> PrimalRows:
        return PrimalRows.of(self.data, usable_threads(), **settings)

    def _restore(self, saved: SavedPosterior) -> None:
        self._rows, self._has_known_sums = self._rows_of(), "sums" in saved.arrays
        if self._has_known_sums:
            length = len(FourierSums.zeros(self._grid, self.data.targets.shape[1]).packed())
            numbers = array_of(saved.arrays["sums"], length)[:, 0]
            self._sums = FourierSums.unpacked(self._grid, numbers, usable_threads())
        if "factor" in saved.arrays:
            self._known_factor = array_of(saved.arrays["factor"], self._grid.dimension)

    @cached_property
    def _sums(self) -> FourierSums:
        (sums,) = self._rows.sums([None])
        assert isinstance(sums, FourierSums)
        return sums

    @cached_property
    def _solution(self) -> NormalSolution:
        with in_terms_of_alpha([self.alpha], "primal"):
            system = self._rows.system(self._sums, self.alpha)
            return system.solution(self.alpha, self._known_factor)

    @property
    def _phi(self) -> FourierGrid:
        assert isinstance(self.data.feature_map, FourierGrid)
        return self.data.feature_map

    @property
    def _grid(self) -> Grid:
        return self._phi.grid(self.data.rows.shape[1])

    def __getstate__(self) -> dict[str, Any]:
        self._leverages  # noqa: B018 - a worker needs no rows for variances inside the box
        return vars(self)

    @cached_property
    def _leverages(self) -> tuple[Complex, float, float]:
        """Waves of the quadratic form, its value where φ = 0, and what rounding may add to a value."""
        return self._leverages_on(self._grid)

    def _of_terms(self, far: tuple[int, ...]) -> tuple[float, tuple[Complex, float, float]]:
        """K(x, x) − φᵀφ, and `_leverages`, of rows that are far in the columns `far`: φ lacks the terms that are 0."""
        if not far:
            return 0.0, self._leverages
        if far not in self._of_far:
            grid = self._phi.of_terms_without(far).grid(self.data.rows.shape[1])
            left = max(self._grid.unit - float((grid.scale[: grid.n_cosines] ** 2).sum()), 0.0)
            self._of_far[far] = left, self._leverages_on(grid)
        return self._of_far[far]

    @cached_property
    def _of_far(self) -> dict[tuple[int, ...], tuple[float, tuple[Complex, float, float]]]:
        return {}

    def _leverages_on(self, grid: Grid) -> tuple[Complex, float, float]:
        means, constant = self._solution.means, self._solution.inverse_of_total()
        inverse = inverse_of(self._solution.lower)
        modes = leverage_modes(grid, inverse, means)
        modes[(0, *self._grid.middle)] += constant
        return modes, float(means @ inverse @ means) + constant, 4 * ACCURACY * float(np.abs(modes).sum())

    @cached_property
    def _wide(self) -> "FourierPosterior":
        """Posterior on a wider grid, whose box has the rows near the box of the training rows."""
        away = self._grid.periods - 2 * self._grid.reach
        return self._in_box(
            [(low - a / 2, high + a / 2) for (low, high), a in zip(self._phi.box, away.tolist(), strict=True)]
        )

    def _in_box(self, box: list[tuple[float, float]]) -> "FourierPosterior":
        """Posterior on the grid of a box that has the training rows in it."""
        phi = self._phi
        side = phi.in_box(box).dimension(self.data.rows.shape[1])
        if side > MAX_SIDE:
            raise InputError(
                f"some rows are outside of the box of the training rows, where standard deviations take {side:,} "
                f"features, and at most {MAX_SIDE:,} are factored; expected rows in the box, or form='dual'"
            )
        found = object.__new__(FourierPosterior)
        vars(found).update(vars(self))
        for name in ("_sums", "_solution", "_leverages", "_of_far"):
            vars(found).pop(name, None)
        found._known_factor = None
        found.data = replace(self.data, feature_map=phi.in_box(box))
        found._rows = found._rows_of()
        return found

    @property
    def factor_size(self) -> FactorSize:
        return size_of_normal(self._grid.dimension, is_transform=True)

    def variances(
        self,
        rows: Rows,
        first: int = 0,
        block_rows: int = MAX_BLOCK_ROWS,  # noqa: ARG002 - a transform of many rows takes less time for each
    ) -> Iterator[tuple[slice, VarianceBounds]]:
        widths = list[Array]()
        for start in range(0, rows.shape[0], MAX_BLOCK_ROWS):
            where = slice(start, min(start + MAX_BLOCK_ROWS, rows.shape[0]))
            x = rows.read(where.start, where.stop)
            check_finite(x, "X", first + start)
            found = self.variances_of(x)
            widths.append(found.relative_width)
            yield where, found
        remedy = f"alpha = {self.alpha:g} is small beside the rounding of sums over the rows: give a larger alpha"
        warn_of_width(widths, rows.shape[0], remedy)

    def variances_of(self, x: Any) -> VarianceBounds:
        x, zones = dense(x), FourierZones(self._phi)
        _, beyond, added = self._leverages
        found = np.full(len(x), self._grid.unit + self.alpha * beyond)
        for zone in zones.zones(x):
            posterior = self if zone.phi is zones.inside else self._wide
            left, (modes, _, more) = posterior._of_terms(zone.far)
            added = max(added, more)
            found[zone.where] = left + self.alpha * leverages_of(posterior._grid, modes, zone.rows)
        return self._bounded(np.maximum(found, 0.0), self.alpha * added)

    def _bounded(self, found: Array, added: float) -> VarianceBounds:
        """With bounds of rounding: of the sums and of the factor, relative to λ, and of the transform of the row.

        Entries of A are off by some ε √(a_ii a_jj), whose norm is at most ε tr(A).
        """
        p = self._grid.dimension
        part = (2 * ACCURACY + 3 * (p + 2) * EPS) * self._solution.total * self._grid.unit / self.alpha
        high = found * (1.0 + part) + added if part < 1.0 else np.full(len(found), np.inf)
        return VarianceBounds(found, np.maximum(found * (1.0 - part) - added, 0.0), high)

    def covariance(self, x: Any, progress: Progress) -> Covariance:
        """See base class; rows outside of the box take a grid that has them in its box."""
        x, grid = dense(x), self._grid
        away = grid.away(x)
        if grid.is_in_limits(away).all():
            return super().covariance(x, progress)
        edges = zip(self._phi.box, away.min(axis=0), away.max(axis=0), grid.centre, strict=True)
        box = [(min(low, float(c + a)), max(high, float(c + b))) for (low, high), a, b, c in edges]
        return PrimalPosterior.covariance(self._in_box(box), x, progress)

    def saved(self) -> SavedPosterior:
        arrays: dict[str, Rows] = {"factor": MemoryRows(self._solution.lower), "coef": MemoryRows(self._solution.coef)}
        if self._has_known_sums:
            arrays["sums"] = MemoryRows(self._sums.packed()[:, None])
        return SavedPosterior({"form": "primal", "quadratic": self._quadratic.tolist(), "centred": False}, arrays)

    def log_determinant(self) -> Estimate:
        return self._log_determinant()

    def _doubt(self, what: str, rounding: float) -> str:
        """Message about errors of rows that are left out, of which λ below the rounding of the sums leaves few digits.

        Empty where they are certain.
        """
        part = rounding * self._solution.total * self._grid.unit / self.alpha
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
        return super().loo_residuals()

    def _function_of(self, coef: Array, constants: Array, folds: Sequence[Numbers]) -> tuple[FittedFunction, str]:
        """See base class; with coefficients for rows near the box, too."""
        rows, t, n_folds = self._rows, self.data.targets.shape[1], len(folds)
        in_fold, zones = np.ones((self.data.n, n_folds), bool), FourierZones(self._phi)
        near = zones.near.grid(self.data.rows.shape[1])
        for f, fold in enumerate(folds):
            in_fold[fold, f] = False

        def of_block(where: slice, block: Array) -> Complex:
            duals = np.tile(self.data.targets[where], n_folds) - rows.features.values(block, coef) - constants
            duals *= (rows.weights(where) / self.alpha)[:, None] * np.repeat(in_fold[where], t, axis=1)
            return Transform(near.angles(block), near.n_modes).to_modes(duals)

        modes = reduce(iadd, rows.over_blocks(of_block))
        function = function_of(self.data, np.vstack([coef, near.of_modes(modes)]), constants, feature_map=zones)
        return function, self._doubt("predictions and errors of the models without a fold", FOLD_ROUNDING)
