"""The Fourier grid of a fit: the box of its rows, and whether a grid takes less time than the dual form.

A grid is known once all rows were looked at. So the dual form is planned first, and where that is not soon done the box
is found, and both are compared.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dkrr.data import Rows
from dkrr.data.rows import check_finite, dense
from dkrr.errors import DkrrError, InputError, PlanError, WrongStoreError
from dkrr.kernels.fourier_grid import ROUNDING, FourierGrid, grid_columns
from dkrr.kernels.nonuniform import MISSING, is_available
from dkrr.planning import Plan
from dkrr.planning.detection import usable_threads
from dkrr.planning.planner import make_plan
from dkrr.planning.problem import Problem
from dkrr.planning.reasons import Reason
from dkrr.planning.resources import Resources
from dkrr.planning.transforms import GOAL, refusal
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
MUCH_SMALLER = 0.8
"""Features without a row over those with it, below which it is named."""


@dataclass(frozen=True)
class Extreme:
    """The two most extreme values of a column on one side, and the row of the first."""

    value: float
    row: int
    next: float


@dataclass(frozen=True)
class Box:
    """Bounding box of the rows, in the columns of a grid."""

    columns: tuple[int, ...]
    lows: tuple[Extreme, ...]
    highs: tuple[Extreme, ...]

    @classmethod
    def of_lengths(cls, columns: tuple[int, ...], lengths: Sequence[float]) -> "Box":
        """A box of which only the lengths are known."""
        return cls(columns, tuple(Extreme(0.0, -1, 0.0) for _ in columns), tuple(Extreme(v, -1, v) for v in lengths))

    def pairs(self) -> list[tuple[float, float]]:
        """Smallest and largest value of every column."""
        return [(low.value, high.value) for low, high in zip(self.lows, self.highs, strict=True)]

    def stretched(self, phi: FourierGrid, d: int) -> str:
        """Words for the row that stretches the box most, if far fewer features would do without it; else empty."""
        side, best = _dimension(phi, d), ("", np.inf)
        for k, column in enumerate(self.columns):
            for one, is_low in ((self.lows[k], True), (self.highs[k], False)):
                pairs = self.pairs()
                pairs[k] = (one.next, pairs[k][1]) if is_low else (pairs[k][0], one.next)
                without = np.inf if one.row < 0 else _dimension(replace(phi, box=tuple(pairs)), d)
                if without < min(best[1], MUCH_SMALLER * side):
                    words = f"row {one.row:,} of X, with {one.value:.6g} in column {column}, stretches the box: "
                    best = f"{words}without it {without:,.0f} features would do", without
        return best[0]


def _dimension(phi: FourierGrid, d: int) -> float:
    """Features of a grid; infinite if they are too many to be counted."""
    try:
        return float(phi.dimension(d))
    except InputError:
        return np.inf


def box_of(rows: Rows, columns: tuple[int, ...]) -> Box:
    """Box of all rows.

    Raises
    ------
    InputError
        If the rows hold NaN or infinity.
    """
    n, threads = rows.shape[0], usable_threads()
    cuts = [round(k * n / threads) for k in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(partial(_extremes, rows, columns), cuts[:-1], cuts[1:]))
    both = np.concatenate(parts, axis=1)  # sides × parts × columns × (value, row)
    sides = []
    for sign, found in zip((1.0, -1.0), both, strict=True):
        order = np.argsort(sign * found[:, :, 0], axis=0, kind="stable")
        first, second = (np.take_along_axis(found, order[k : k + 1, :, None], axis=0)[0] for k in (0, min(1, n - 1)))
        sides.append(
            tuple(Extreme(a, int(i), b) for (a, i), (b, _) in zip(first.tolist(), second.tolist(), strict=True))
        )
    return Box(columns, *sides)


def _extremes(rows: Rows, columns: tuple[int, ...], start: int, stop: int) -> NDArray[np.float64]:
    """The two smallest, and the two largest, values of every column among some rows with their numbers."""
    found = np.empty((2, 0, len(columns), 2))
    height = max(1, min(SCANNED_ROWS, SCANNED_BYTES // max(rows.dense_window_row_bytes, 1)))
    for where, x in rows.blocks(start, stop, height):
        check_finite(x, "X", where.start, rows.names)
        of_block = np.empty((2, min(2, x.shape[0]), len(columns), 2))
        for k, column in enumerate(columns):
            values = np.asarray(dense(x[:, [column]])[:, 0], np.float64)
            for side, sign in enumerate((1.0, -1.0)):
                i = int((values if sign > 0 else -values).argmin())
                rest = [(v.min() if sign > 0 else v.max()) for v in (values[:i], values[i + 1 :]) if len(v)]
                of_block[side, 0, k] = values[i], where.start + i
                if rest:
                    of_block[side, 1, k] = min(rest) if sign > 0 else max(rest), -1
        found = np.concatenate([found, of_block], axis=1)
        order = np.argsort(np.array([1.0, -1.0])[:, None, None] * found[..., 0], axis=1, kind="stable")[:, :2]
        found = np.take_along_axis(found, order[..., None], axis=1)
    return found


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


def choose_cheaper_form(dual: Plan | DkrrError, p: Problem, r: Resources, box: Box) -> Plan:
    """The plan in dual form, or that with a grid if it takes less time.

    Parameters
    ----------
    dual : Plan or PlanError
        Or why there is none.
    p : Problem
    r : Resources
    box : Box

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
            reason = grid_is_slower(reason, plan.seconds)
        else:
            return _explained(plan, p, dual, reason)
    if isinstance(dual, DkrrError):
        raise type(dual)(f"{dual}; {reason}") from dual
    return dual.noted(reason)


def finufft_missing(grid: Reason, seconds: float) -> Reason:
    """Why another form is taken: what a grid needs is not installed."""
    return Reason("finufft-missing", f"{grid} would take about {format_seconds(seconds)}: {MISSING}")


def grid_is_slower(grid: Reason, seconds: float) -> Reason:
    """Why another form is taken: it takes less time than a grid."""
    return Reason("grid-is-slower", f"{grid} would take about {format_seconds(seconds)}")


def with_fourier_features(p: Problem, box: Box, error: float) -> tuple[Problem | None, Reason]:
    """The problem with a grid, and its description; or None, and why there is none."""
    stretched = ""
    try:
        phi = FourierGrid(p.kernel, error, box.pairs())
        stretched = box.stretched(phi, p.d)
        side, grid = phi.dimension(p.d), phi.grid(p.d)
        least = MIN_GRID_ALPHA * grid.unit * (p.n if p.total_weight is None else p.total_weight)
        if refused := refusal(p, side):
            why = refused
        elif side > MAX_FEATURES:
            why = f"it takes {side:,} features, and at most {MAX_FEATURES:,} are considered"
        elif min(p.alphas) < least:
            why = f"alpha = {min(p.alphas):g} is below {least:.1e}, the rounding of sums over the rows"
        else:
            text = f"a Fourier grid of {side:,} features (entries of K within {grid.bound:.1e})"
            reason = Reason("fourier-grid", f"{text}; {stretched}" if stretched else text)
            return replace(p, feature_map=phi).with_form("primal", _primal_by(reason, p)), reason
    except DkrrError as error_of_grid:
        why = str(error_of_grid)
    return None, Reason("grid-refused", f"no Fourier grid, since {why}{stretched and f'; {stretched}'}")


def _primal_by(grid: Reason, p: Problem, against: str = "") -> Reason:
    """Why the form is primal: by a grid, where the user has not said otherwise."""
    return Reason(grid.code, f"primal, by {grid} against n = {p.n:,} rows{against}; form='dual' opts out")


def error_for(p: Problem) -> float:
    """Error of a grid that hardly counts in the residual of the dual system."""
    return min(ROUNDING, max(MIN_GRID_ERROR, 0.1 * GOAL * min(p.alphas) / p.n))


def _explained(plan: Plan, p: Problem, dual: Plan | DkrrError, reason: Reason) -> Plan:
    """Plan with a grid, and what it was compared with."""
    rejected = (dual.chosen, *dual.rejected) if isinstance(dual, Plan) else ()
    against = f"; dual would take about {format_seconds(dual.seconds)}" if isinstance(dual, Plan) else ""
    form = _primal_by(reason, p, against)
    reasons = tuple(form if one.code in ("form-requested", form.code) else one for one in plan.reasons)
    return replace(
        plan, problem=replace(plan.problem, form=p.form), reasons=reasons, rejected=(*plan.rejected, *rejected)
    )
