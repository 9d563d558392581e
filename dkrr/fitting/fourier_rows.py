"""Passes over the rows of a Fourier grid in threads of the calling process: sums of parts of the rows, and predictions.

Folds, errors of rows by the others and standard deviations are all made of these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import iadd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data.rows import check_finite, dense
from dkrr.fitting.data import TrainingData
from dkrr.fitting.primal_rows import MapSegments, rows_in_block
from dkrr.kernels.fourier_grid import FourierGrid, FourierZones, Grid
from dkrr.kernels.nonuniform import Complex, Transform
from dkrr.linalg.fourier_normal import FourierNormalMatrix, GridSums, solved, totals_of

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

BLOCK_ROWS, BLOCK_BYTES = 2**18, 2**26
"""Rows that are transformed together."""


MAX_ERROR = 1e-3
"""Largest relative error of what is computed of rows that are left out, with which it is certain."""
FOLD_ROUNDING, ROW_ROUNDING = 3e-16, 1e-14
"""Relative error that rounding leaves in errors of held-out folds and, where 1 − leverage cancels, of single rows, over
Σw k(x, x) / λ: ten and two times the largest that was measured in arithmetic of 60 digits."""


@dataclass(frozen=True)
class RowsOnGrid:
    """Rows of a fit, with weights and targets less means.

    Parameters
    ----------
    data : TrainingData
        Its feature map is a FourierGrid.
    means : ndarray of shape (t,)
        Subtracted from the targets.
    each : callable
        See `MapSegments`.
    """

    data: TrainingData
    means: Array
    each: MapSegments

    @property
    def phi(self) -> FourierGrid:
        """Features."""
        assert isinstance(self.data.feature_map, FourierGrid)
        return self.data.feature_map

    @cached_property
    def grid(self) -> Grid:
        """Grid of the features."""
        return self.phi.grid(self.data.rows.shape[1])

    def weights(self, where: slice) -> Array:
        """Weights of some rows, of shape (m,)."""
        weights = self.data.weights
        return np.ones(where.stop - where.start) if weights is None else weights[where]

    def over_rows(
        self, stage: str, function: Callable[[slice, Array], Any], add: Callable[[Any, Any], Any] | None = None
    ) -> list[Any]:
        """Values of a function of every block of rows: where they are, and the rows.

        With `add` those of a segment of the rows are added as they come, and there is one for each segment.
        """

        def of_segment(start: int, stop: int) -> list[Any]:
            found = list[Any]()
            height = max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(self.data.rows.dense_window_row_bytes, 1)))
            for where, x in self.data.rows.even_blocks(start, stop, height):
                check_finite(x, "X", where.start)
                value = function(where, dense(x))
                found = [add(found[0], value)] if add is not None and found else [*found, value]
            return found

        return [value for part in self.each(stage, of_segment) for value in part]

    def sums(self, sets: Sequence[Numbers]) -> list[GridSums]:
        """Sums of the rows of every set, whose numbers ascend, from one pass."""
        t = self.data.targets.shape[1]

        def of_block(where: slice, x: Array) -> list[GridSums]:
            found, targets, weights = [], self.data.targets[where] - self.means, self.weights(where)
            for rows in sets:
                here, one = rows_in_block(rows, where)[1], GridSums.zeros(self.grid, t)
                one.add(self.grid, x[here], targets[here], weights[here])
                found.append(one)
            return found

        def added(total: list[GridSums], more: list[GridSums]) -> list[GridSums]:
            for one, other in zip(total, more, strict=True):
                one.include(other)
            return total

        found: list[GridSums] = reduce(added, self.over_rows("normal matrix", of_block, added))
        return found

    def values(self, x: Array, modes: Complex) -> Array:
        """Sums of waves at rows, of shape (m, k), for coefficients of shape (k, *n_modes)."""
        return Transform(self.grid.angles(x), self.grid.n_modes).to_points(modes)

    def predictions(self, stage: str, coef: Array, take: Callable[[slice, Array], Any]) -> list[Any]:
        """Apply `take(rows, Φ[rows] @ coef)` to every block of rows; list of the results."""
        modes = self.grid.to_modes(coef)

        def of_block(where: slice, x: Array) -> Any:
            return take(where, self.values(x, modes))

        return self.over_rows(stage, of_block)

    def near_coefs(self, duals: Callable[[slice], Array]) -> Array:
        """Coefficients for rows near the box, of shape (D', m), of α of every block of rows, (rows, m)."""
        near = FourierZones(self.phi).near.grid(self.data.rows.shape[1])

        def of_block(where: slice, x: Array) -> Any:
            return Transform(near.angles(x), near.n_modes).to_modes(duals(where))

        return near.of_modes(sum(self.over_rows("training errors", of_block, iadd)))


@dataclass(frozen=True)
class GridModel:
    """Ridge regression of some rows: A + λI = L Lᵀ of centred features, and its solution."""

    generator: FourierNormalMatrix
    factor: Array
    """L."""
    coef: Array
    """β, of shape (D, t)."""
    constants: Array
    """Of shape (t,), to be added to Φβ and the means of the targets."""

    @classmethod
    def of(
        cls,
        grid: Grid,
        sums: GridSums,
        alpha: float,
        matrix: Array | None = None,
        factor: Array | None = None,
        *,
        centred: bool,
    ) -> "GridModel":
        """Model of the rows of some sums.

        Parameters
        ----------
        matrix : ndarray of shape (D, D), optional
            A of these sums, to be copied.
        factor : ndarray of shape (D, D), optional
            L, where it is known.

        Raises
        ------
        NotPositiveDefiniteError
            If λ is below the rounding of A.
        """
        generator = FourierNormalMatrix(grid, sums.modes[0], centred)
        if factor is None:
            factor = generator.factor(alpha, None if matrix is None else matrix.copy())
        totals = totals_of(sums.modes[1:])
        coef = solved(factor, generator.moments(sums.modes[1:], totals))
        constants = totals / generator.total - generator.means @ coef if centred else np.zeros(len(totals))
        return cls(generator, factor, coef, constants)
