"""The Fourier grid of a fit: the box of its rows, and whether a grid takes less time than the dual form.

A grid is known once all rows were looked at. So the dual form is planned first, and where that is not soon done the box
is found, and both are compared.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster.process import usable_threads
from dkrr.data import Rows
from dkrr.data.rows import check_finite, dense
from dkrr.errors import DkrrError, InputError, PlanError, WrongStoreError
from dkrr.fitting.costs.fourier_costs import REFINED_RESIDUAL, refusal
from dkrr.kernels.fourier_grid import SERIES_ROUNDING, FourierGrid, grid_columns
from dkrr.kernels.nonuniform import MISSING, is_available
from dkrr.planning import Plan
from dkrr.planning.problem import Problem
from dkrr.planning.reasons import Reason
from dkrr.planning.resources import Resources
from dkrr.text import format_seconds

SOON_SECONDS = 0.02
"""A fit in dual form that takes no longer is not compared with a grid."""
DECISIVE_SPEEDUP = 5.0
"""By how much a grid must beat the dual form for its spectrum not to be estimated."""
MAX_FEATURES = 400_000
"""Most features of a grid that is priced."""
MIN_GRID_ALPHA = 1e-14
"""λ over Σ w k(x, x) below which rounding of the sums leaves nothing of it."""
MIN_GRID_ERROR = 1e-18
"""Smallest error of a grid, relative to k(x, x): to certify less would cost more than it is worth."""
SCANNED_ROWS, SCANNED_BYTES = 2**18, 2**26
"""Rows that are looked at together."""

Array = NDArray[np.float64]
Box = tuple[tuple[float, float], ...]
"""Smallest and largest value of the rows in every column of a grid."""


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


def try_dual_plan(p: Problem, plan_of: Callable[[Problem], Plan]) -> Plan | DkrrError:
    """Plan in dual form; or why there is none."""
    try:
        return plan_of(p)
    except (PlanError, InputError, WrongStoreError) as error:  # the primal form was asked for, or begun
        return error


def is_worth_scanning(dual: Plan | DkrrError) -> bool:
    """Whether a plan in dual form takes long enough to pay for a scan of the rows for their box."""
    return isinstance(dual, DkrrError) or dual.seconds > SOON_SECONDS


def choose_cheaper_form(
    dual: Plan | DkrrError, p: Problem, r: Resources, box: Box, make_plan: Callable[[Problem, Resources], Plan]
) -> Plan:
    """The plan in dual form, or that with a grid if it takes less time.

    Parameters
    ----------
    dual : Plan or PlanError
        Or why there is none.
    p : Problem
    r : Resources
    box : Box
    make_plan : callable

    Raises
    ------
    PlanError
        If neither is possible.
    """
    gridded, reason = with_fourier_features(p, box, error_for(p))
    plan = None
    if gridded is not None:
        try:
            plan = make_plan(gridded, r)
        except PlanError as error:
            reason = Reason("grid-refused", f"{reason} is not possible: {error}")
    if plan is not None:
        if not is_available():
            reason = finufft_missing(reason, plan.seconds)
        elif isinstance(dual, Plan) and dual.seconds <= plan.seconds:
            reason = grid_is_slower(reason, plan.seconds, box)
        else:
            return _explained(plan, p, dual, reason)
    if isinstance(dual, DkrrError):
        raise type(dual)(f"{dual}; {reason}") from dual
    return dual.noted(reason)


def finufft_missing(grid: Reason, seconds: float) -> Reason:
    """Why another form is taken: what a grid needs is not installed."""
    return Reason("finufft-missing", f"{grid} would take about {format_seconds(seconds)}: {MISSING}")


def grid_is_slower(grid: Reason, seconds: float, box: Box) -> Reason:
    """Why another form is taken: it takes less time than a grid."""
    return Reason("grid-is-slower", f"{grid} {_in_box(box)} would take about {format_seconds(seconds)}")


def _in_box(box: Box) -> str:
    """Words for the lengths of a box, in which a row far from all others can be seen."""
    return f"in the box of all rows, {' × '.join(f'{high - low:.3g}' for low, high in box)},"


def with_fourier_features(p: Problem, box: Box, error: float) -> tuple[Problem | None, Reason]:
    """The problem with a grid, and its description; or None, and why there is none."""
    try:
        phi = FourierGrid(p.kernel, error, box)
        side, grid = phi.dimension(p.d), phi.grid(p.d)
        least = MIN_GRID_ALPHA * grid.unit * (p.n if p.total_weight is None else p.total_weight)
        if refused := refusal(p, side):
            why = refused
        elif side > MAX_FEATURES:
            why = f"it takes {side:,} features {_in_box(box)}, and at most {MAX_FEATURES:,} are considered"
        elif min(p.alphas) < least:
            why = f"alpha = {min(p.alphas):g} is below {least:.1e}, the rounding of sums over the rows"
        else:
            reason = Reason(
                "fourier-grid", f"a Fourier grid of {side:,} features (entries of K within {grid.bound:.1e})"
            )
            return replace(p, feature_map=phi).with_form("primal", _primal_by(reason, p)), reason
    except DkrrError as error_of_grid:
        why = str(error_of_grid)
    return None, Reason("grid-refused", f"no Fourier grid, since {why}")


def _primal_by(grid: Reason, p: Problem, against: str = "") -> Reason:
    """Why the form is primal: by a grid, where the user has not said otherwise."""
    return Reason(grid.code, f"primal, by {grid} against n = {p.n:,} rows{against}; form='dual' opts out")


def error_for(p: Problem) -> float:
    """Error of a grid that hardly counts in the residual of the dual system."""
    return min(SERIES_ROUNDING, max(MIN_GRID_ERROR, 0.1 * REFINED_RESIDUAL * min(p.alphas) / p.n))


def _explained(plan: Plan, p: Problem, dual: Plan | DkrrError, reason: Reason) -> Plan:
    """Plan with a grid, and what it was compared with."""
    compared = (dual.chosen, *dual.rejected) if isinstance(dual, Plan) else ()
    against = f"; dual would take about {format_seconds(dual.seconds)}" if isinstance(dual, Plan) else ""
    form = _primal_by(reason, p, against)
    problem = replace(plan.problem, form=p.form, because=replace(plan.problem.because, form=form))
    return replace(plan, problem=problem, compared=compared)
