"""Fourier grids of fits: the box of the rows, and the grid in it, if there is one.

A grid is known once all rows were looked at. So the dual form is planned first, and where that is not soon done the box
is found, and both are compared (`dkrr.fitting.request_plans`).
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster.process import usable_threads
from dkrr.data import Rows
from dkrr.data.rows import check_finite, dense
from dkrr.errors import DkrrError, InputError
from dkrr.fitting.costs.fourier_costs import REFINED_RESIDUAL, lost_alpha, refusal
from dkrr.kernels.fourier_grid import SERIES_ROUNDING, FourierGrid, grid_columns
from dkrr.kernels.nonuniform import MISSING
from dkrr.planning.facts import Box
from dkrr.planning.problem import Problem
from dkrr.text import Reason, format_seconds

MAX_FEATURES = 400_000
"""Most features of a grid that is priced."""
MIN_GRID_ERROR = 1e-18
"""Smallest error of a grid, relative to k(x, x): to certify less would cost more than it is worth."""
SCANNED_ROWS, SCANNED_BYTES = 2**18, 2**26
"""Rows that are looked at together."""

Array = NDArray[np.float64]


def box_of(rows: Rows, columns: tuple[int, ...]) -> Box:
    """Box of all rows in some columns.

    Raises
    ------
    InputError
        If the rows hold NaN or infinity.
    """
    n, threads = rows.shape[0], usable_threads()
    cuts = [round(k * n / threads) for k in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(partial(_extremes, rows, columns), cuts[:-1], cuts[1:]))
    lows, highs = zip(*parts, strict=True)
    return tuple(zip(np.min(lows, axis=0).tolist(), np.max(highs, axis=0).tolist(), strict=True))


def _extremes(rows: Rows, columns: tuple[int, ...], start: int, stop: int) -> tuple[Array, Array]:
    """The smallest, and the largest, value of every column among some rows; infinities where there are none."""
    low, high = np.full(len(columns), np.inf), np.full(len(columns), -np.inf)
    height = max(1, min(SCANNED_ROWS, SCANNED_BYTES // max(rows.dense_window_row_bytes, 1)))
    for where, x in rows.blocks(start, stop, height):
        check_finite(x, "X", where.start, rows.names)
        for k, column in enumerate(columns):
            values = np.asarray(dense(x[:, [column]])[:, 0], np.float64)
            low[k], high[k] = min(low[k], values.min()), max(high[k], values.max())
    return low, high


def refuse_outside(rows: Rows, phi: FourierGrid) -> None:
    """Refuse rows outside of the box of a grid that further rows are added to, as its waves are not the kernel there.

    Raises
    ------
    InputError
        If a row is outside, or holds NaN or infinity; the message names the first.
    """
    grid, height = phi.grid(rows.shape[1]), max(1, SCANNED_BYTES // max(rows.dense_window_row_bytes, 1))
    for where, x in rows.blocks(0, rows.shape[0], height):
        check_finite(x, "X", where.start, rows.names)
        is_outside = ~grid.is_in_limits(grid.away(dense(x)))
        if is_outside.any():
            row, k = np.argwhere(is_outside)[0].tolist()
            column, (low, high) = grid.columns[k], phi.box[k]
            raise InputError(
                f"X has {dense(x)[row, column]:.6g} in row {where.start + row:,}, column {column}, outside of the box "
                f"[{low:.6g}, {high:.6g}] of the Fourier grid, which is that of the rows of the first call unless it "
                f"is given; expected rows inside: give the box of all rows to come in the first call, "
                f"kernel=FourierGrid(RBF(gamma=...), box=[(low, high), ...]) of dkrr.features, or all rows to fit"
            )


def may_have_grid(p: Problem) -> bool:
    """Whether a grid is to be compared with the dual form: the kernel has one, and nothing is asked that it lacks."""
    asked = p.form if p.layout is None else p.layout.form
    if asked == "dual" or p.is_sparse or p.feature_map is not None or not min(p.alphas) > 0:
        return False
    return ((p.solver is None and p.tile is None) or asked == "primal") and bool(grid_columns(p.kernel, p.d))


class GridInBox(NamedTuple):
    """Features of a grid in the box of all rows, or why there are none."""

    features: FourierGrid | None
    text: Reason
    """Description of the grid; or why there is none."""
    box: Box

    def refused(self, why: object) -> Reason:
        """Why a plan with the grid is not possible."""
        return Reason("grid-refused", f"{self.text} is not possible: {why}")

    def finufft_missing(self, seconds: float) -> Reason:
        """Why another form is taken: what a grid needs is not installed."""
        return Reason("finufft-missing", f"{self.text} would take about {format_seconds(seconds)}: {MISSING}")

    def is_slower(self, seconds: float) -> Reason:
        """Why another form is taken: it takes less time than a grid."""
        text = f"{self.text} {_in_box(self.box)} would take about {format_seconds(seconds)}"
        return Reason("grid-is-slower", text)

    def chosen(self, n: int, dual_seconds: float | None = None) -> Reason:
        """Why the form is primal, of `n` rows, where the dual form would take a given time."""
        against = "" if dual_seconds is None else f"; dual would take about {format_seconds(dual_seconds)}"
        return Reason(self.text.code, f"primal, by {self.text} against n = {n:,} rows{against}; form='dual' opts out")


def _in_box(box: Box) -> str:
    """Words for the lengths of a box, in which a row far from all others can be seen."""
    return f"in the box of all rows, {' × '.join(f'{high - low:.3g}' for low, high in box)},"


def grid_in_box(p: Problem, error: float) -> GridInBox:
    """Grid of the kernel in the box of the rows, which is known."""
    box = p.facts.box
    assert box is not None
    try:
        phi = FourierGrid(p.kernel, error, box)
        side = phi.dimension(p.d)
        if why := refusal(p, side):
            pass
        elif side > MAX_FEATURES:
            why = f"it takes {side:,} features {_in_box(box)}, and at most {MAX_FEATURES:,} are considered"
        else:
            why = lost_alpha(p.with_features(phi))
        if not why:
            bound = f"entries of K within {phi.grid(p.d).bound:.1e}"
            return GridInBox(phi, Reason("fourier-grid", f"a Fourier grid of {side:,} features ({bound})"), box)
    except DkrrError as error_of_grid:
        why = str(error_of_grid)
    return GridInBox(None, Reason("grid-refused", f"no Fourier grid, since {why}"), box)


def error_for(p: Problem) -> float:
    """Error of a grid that hardly counts in the residual of the dual system."""
    return min(SERIES_ROUNDING, max(MIN_GRID_ERROR, 0.1 * REFINED_RESIDUAL * min(p.alphas) / p.n))
