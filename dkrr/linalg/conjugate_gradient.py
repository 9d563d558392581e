"""Preconditioned conjugate gradient for (A + diag(s)) X = B, with A known by its products alone.

All right-hand sides share the products with A; each has its own step lengths, and drops out when it has converged.
The iteration runs in cycles: within one the residual follows the recurrence, at its end the true residual
R = B − (A + diag(s)) X is computed in float64 and the next cycle solves for it. So products in float32 only ever
make a cycle cheaper, never the answer worse: a cycle reduces the residual by as much as float32 can, and what is
reported is the true residual. Where float32 does not solve some right-hand sides, float64 takes over: for all of them,
or, if few may wait, for those once the others are solved.

Its coefficients give the extreme eigenvalues of A + diag(s), and its condition number, without further products.

References
----------
M. R. Hestenes, E. Stiefel, "Methods of conjugate gradients for solving linear systems", J. Res. NBS 49 (1952).
Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd ed., SIAM 2003, chapter 9. N. J. Higham, "Accuracy and
Stability of Numerical Algorithms", 2nd ed., SIAM 2002, chapter 12 (iterative refinement). R. A. Nicolaides, "Deflation
of conjugate gradients", SIAM J. Numer. Anal. 24 (1987).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, log, nan, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms, column_sizes
from dkrr.cluster import Progress
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError
from dkrr.linalg.giving_up import unwatched
from dkrr.linalg.gram_products import Operator, Precision
from dkrr.linalg.iteration_state import CGOutcome, Cycle, State
from dkrr.linalg.preconditioners import Identity, Preconditioner
from dkrr.linalg.result import Residuals, Status
from dkrr.linalg.ritz import ritz_values
from dkrr.text import plural

Array = NDArray[np.float64]

MAX_TRACED = 4
"""Columns whose coefficients are kept to estimate eigenvalues from."""


def columns_to_trace(shift: Array, m: int) -> NDArray[np.intp]:
    """Columns, of m, from which the extreme eigenvalues are estimated: some of those with the smallest shifts."""
    order = np.argsort(shift[0], kind="stable") if shift.shape[1] > 1 else np.arange(m)
    return np.asarray(order[: min(m, MAX_TRACED)], np.intp)


def extremes_of(
    traced: Sequence[Array], preconditioner: Preconditioner, columns: NDArray[np.intp], known: Array | None
) -> Array | None:
    """Smallest and largest eigenvalues of A + diag(s) that the finished cycles show, of shape (2, t).

    Those of M⁻¹ (A + s) times those of M bound them; the smallest is not below s, since A is taken to be positive
    semidefinite, and not above ‖(A + s) x‖ / ‖x‖.

    Parameters
    ----------
    traced : sequence of ndarray of shape (2, t)
        Step lengths and rᵀz before them, for every iteration of a cycle.
    preconditioner : Preconditioner
        M.
    columns : ndarray of shape (t,)
        Numbers of the columns that are traced.
    known : ndarray of shape (2, t) or None
        What the cycles before show.
    """
    low, high = preconditioner.extremes(columns)
    if not np.isfinite(low).any():
        return known
    ritz = np.array([ritz_values(*column) for column in np.array(traced).transpose(2, 1, 0)]).T
    found = np.array([ritz[0] * low, np.minimum(np.maximum(ritz[1], 1.0), 2.0) * high])
    if preconditioner.is_scaling:
        found[1] = ritz[1]
    if known is None:
        known = np.full_like(found, nan)
    return np.array([np.fmin(known[0], found[0]), np.fmax(known[1], found[1])])


def condition_number(
    extremes: Array, preconditioner: Preconditioner, x: Array, images: Array, least: Array, deflated: Array | None
) -> float:
    """Largest condition number of the columns that are traced; NaN where nothing is known.

    Parameters
    ----------
    extremes : ndarray of shape (2, t)
        Estimates of the smallest and the largest eigenvalue.
    preconditioner : Preconditioner
    x, images : ndarray of shape (n, t)
        Solutions, and their products with A + diag(s).
    least : ndarray of shape (t,) or (1,)
        Smallest s.
    deflated : ndarray of shape (t,) or None
        Rayleigh quotients of the direction that the cycles were kept free of.
    """
    low, high = extremes
    if not preconditioner.is_scaling or isinstance(preconditioner, Identity):
        norms = column_norms(x)
        low = np.fmin(low, np.divide(column_norms(images), norms, out=np.full(len(norms), nan), where=norms > 0))
        high = high if deflated is None else np.fmax(high, deflated)
        low = np.maximum(low, least)
    ratios = np.divide(high, low, out=np.full(len(high), nan), where=low > 0)
    return float(np.fmax.reduce(np.maximum(ratios, 1.0))) if np.isfinite(ratios).any() else nan


CYCLE_TOL_FRACTION = 0.9
"""Fraction of the tolerance at which the recurrence of a cycle ends, so that the true residual meets it."""
LEAST_DROP, MOST_DROP = 1e-4, 0.1
"""Bounds of the factor by which a cycle in float32 may reduce the residual."""
DROP_OF_CONJUGACY, DROP_OF_ERROR = 8.0, 0.4
"""Square root of that factor, and the factor, over the error of products relative to s. Where this is large, directions
are soon no longer conjugate, and long cycles take far more iterations than short ones: 6,000 rows of QM9, λ = 1e-4 (an
error of 0.03 s) 1,090 with factors of 10^-3.5, 640 with 0.1, and 480 in float64; λ = 1e-3 360, 290 and 250; λ = 0.1
about as many with all. Where it is small, what the recurrence misses by its end (0.2 of the error, on QM9) must be less
than what is left: a residual that is mostly rounding has large parts along the smallest eigenvalues, and takes twice
the iterations from there on (20,000 rows of QM9, λ = 3.6e-4, from 0.005 to 5e-7: 234 instead of 90)."""
MISSED_FACTOR = 2.0
"""What the recurrence misses of the true residual over what the error of the cycle before says (measured: 1 to 3)."""
MIN_NEGATIVE_FRACTION = 1e-10
"""Fraction of ‖r‖‖z‖ below which a negative rᵀz says nothing of the preconditioner."""
ROUNDED_PRODUCT = 6e-8
"""Error of products in float32 over √n times the size of entries and the norm of the vector (measured on QM9)."""
MIXED_FACTOR, MIXED_FACTOR_OF_NOISE, MAX_PRICED_NOISE = 1.1, 10.0, 0.1
"""Iterations with products in float32 over those in float64, what the error of products over s adds to that (measured
on 10,000 rows of QM9: 1.1 to 1.2 with errors up to 0.006 s, 1.6 with 0.06 s), and the error from which on they
are soon given up."""
ROUND_TRIPS_PER_ITERATION = 3
"""Round trips to Dask's workers: one for A and two for a preconditioner whose factor they hold."""
ITERATIONS_OF_TRUE_RESIDUAL = {"float64": 1.0, "float32": 2.7}
"""Iterations that take as long as the true residual (30,000 rows of QM9; without wide registers exp takes long)."""
USELESS_CYCLE = 0.5
"""A cycle that leaves more of the true residual than this has met the limit of its precision."""
MIN_MEASURED_REDUCTION = 1e-3
"""Factor by which ‖r‖ may become smaller before what is asked of r is measured again, where that is not ‖r‖ itself."""
MIN_RECURRENCE_REDUCTION = 16 * float(np.finfo(float).eps)
"""Fraction of ‖r‖ that a measured cycle leaves at least by its recurrence: what is below is cancellation, and its
directions lead anywhere."""
STALL_ITERATIONS = 60
"""Iterations in which the residual must at least be halved, or the preconditioner grows if it can; and in which
products in float32 must make it smaller at all, or they are given up."""


@dataclass
class Iteration:
    """Solve of a system by conjugate gradient, in cycles.

    Parameters
    ----------
    operator : Operator
        A.
    shift : ndarray of shape (n, 1) or (1, m)
        s ≥ 0.
    right_sides : ndarray of shape (n, m)
    preconditioner : Preconditioner
    tol : float or ndarray of shape (m,)
        Relative residual that is asked for, of every right-hand side.
    max_iter : int
    mixed : bool
        Begin with products in float32.
    largest : float
        Size of the largest entries of A, from which the error of products in float32 is expected until it is measured.
    deflate : ndarray of shape (n,), optional
        A direction that every residual is kept free of: the constant, whose eigenvalue towers above the others.
    progress : Progress
    on_cycle : callable, optional
        Called with the State, and a new cycle in it, before its first iteration.
    on_step : callable, optional
        Called with the columns, step lengths and directions of every iteration, right after their product with A.
    on_iteration : callable, optional
        Called with the State after every iteration; it may save it, or raise goals and tolerances to end columns.
    on_end : callable, optional
        Called with the last State.
    estimates_condition : bool
        Keep what the condition number is estimated from.
    recurrence_fraction : float
        Fraction of the tolerance at which the recurrence of a cycle ends.
    max_waiting : float
        Part of the unsolved right-hand sides that may wait for products in float64 while the others are solved in
        float32. It pays where they are many, and those that wait may be given up; else one product serves all.
    measure : callable, optional
        Gives what the tolerance is for, of shape (k,), from residuals (n, k) and the numbers of their columns; None:
        ‖r‖ / ‖b‖. It is taken of the recurrence's residual where that becomes small, and of the true one after a
        cycle; there is one cycle, and what rounding leaves is the caller's to refine. Negative curvature is rounding,
        too, and ends the iteration: the matrix is then a sum of squares.
    watch : callable, optional
        Called with the State and the smallest tolerance after every iteration that another one follows; it may end
        them by an error.
    """

    operator: Operator
    shift: Array
    right_sides: Array
    preconditioner: Preconditioner = field(default_factory=Identity)
    tol: float | Array = 1e-8
    max_iter: int = 1000
    mixed: bool = False
    largest: float = 1.0
    deflate: Array | None = None
    progress: Progress = field(default_factory=Progress)
    on_cycle: Callable[[State], None] = lambda _: None
    on_step: Callable[[NDArray[np.intp], Array, Array], None] = lambda *_: None
    on_iteration: Callable[[State], None] = lambda _: None
    on_end: Callable[[State], None] = lambda _: None
    estimates_condition: bool = True
    recurrence_fraction: float = CYCLE_TOL_FRACTION
    max_waiting: float = 0.0
    measure: Callable[[Array, NDArray[np.intp]], Array] | None = None
    watch: Callable[[State, float], None] = unwatched
    last: State | None = field(default=None, init=False)
    """State at the end of the last run."""
    reached: Array = field(default_factory=lambda: np.zeros(0), init=False)
    """What the tolerance is for, (m,), of the true residuals after the last cycle."""
    _deflates_in: Precision | None = field(default=None, init=False)

    def run(self, start: Array | None = None, state: State | None = None) -> CGOutcome:
        """Iterate until every true residual is met, or no more can be had.

        Parameters
        ----------
        start : ndarray of shape (n, m), optional
            First guess, taken for those columns where it leaves much less than 0 does.
        state : State, optional
            To resume from.

        Raises
        ------
        NotPositiveDefiniteError
            If a direction has negative curvature in float64.
        """
        self._begun = time.perf_counter()
        # Squares of very large or small right-hand sides overflow or underflow.
        self._sizes = column_sizes(self.right_sides)
        self._b = self.right_sides if (self._sizes == 1).all() else self.right_sides / self._sizes
        norms = column_norms(self._b)
        self._norms = np.where(norms > 0, norms, 1.0)
        is_traced = self.estimates_condition or self.watch is not unwatched
        self._traced = columns_to_trace(self.shift, self.right_sides.shape[1] if is_traced else 0)
        resumed = state is not None
        if state is None:
            state = self._first_state(start)
        state.sizes = self._sizes
        if not len(state.error):
            state.error = np.full(len(norms), error_of_products(len(self._b), self.largest))
        self.reached = self._relative(state.residual, np.arange(len(norms)))
        self._shown, self._scale = 0.0, 1.0 / self._norms
        """Factor of ‖r‖ in what is noted of it: as what the tolerance is for was last found to be."""
        if self.measure is not None:
            sizes = column_norms(state.residual)
            self._scale = np.divide(self.reached, sizes, out=self._scale, where=np.isfinite(self.reached) & (sizes > 0))
        with self.progress.stage("conjugate gradient", -log(np.min(self.tol))):
            if resumed and state.history:
                self._show(state, state.history[-1])
            status = self._cycles(state)
        self.on_end(state)
        self.last = state
        residuals, x = self.reached, self._unscaled(state.x)
        if status is Status.CONVERGED and not np.isfinite(x).all():
            status, residuals = Status.STALLED, np.where(np.isfinite(x).all(axis=0), residuals, np.inf)
            self._record_message(state, "the solution is too large for float64: divide the targets by a power of ten")
        return CGOutcome(
            x=x,
            residuals=residuals,
            status=status,
            iterations=state.iteration,
            rank=self.preconditioner.rank,
            history=tuple(state.history),
            messages=tuple(state.messages),
            condition=self._condition(state),
        )

    def continued(self, outcome: CGOutcome, wanted: Array | float) -> CGOutcome | None:
        """Continue until columns have the residuals that are wanted; None if they have, or never will.

        Columns that have been given up, with a tolerance of infinity, stay so.
        """
        if outcome.status is not Status.CONVERGED or np.all(np.asarray(wanted) >= self.tol):
            return None
        self.tol = np.where(np.isfinite(self.tol), np.minimum(self.tol, wanted), np.inf)
        return self.run(state=self.last)

    def _unscaled(self, x: Array) -> Array:
        if self._b is self.right_sides:
            return x
        with np.errstate(over="ignore"):
            return x * self._sizes

    def _condition(self, state: State) -> float:
        k = self._traced
        if state.extremes is None or not len(k):
            return nan
        # (A + s) x, without the products that it would take.
        images = self._b[:, k] - state.residual[:, k]
        deflated = None if self.deflate is None else self._w_a_w[k] / (self.deflate @ self.deflate)
        least = self._shift_of(k).min(axis=0)
        return condition_number(state.extremes, self.preconditioner, state.x[:, k], images, least, deflated)

    def _first_state(self, start: Array | None) -> State:
        b = self._b
        state = State(np.zeros_like(b), b.copy(), np.full(b.shape[1], not self.mixed))
        state.precision = "float32" if self.mixed else "float64"
        if start is not None:
            state.x = np.array(start, np.float64) / self._sizes
            state.residual = self._true_residual(state.x, np.arange(state.x.shape[1]))
            useless = ~(
                column_norms(state.residual) < column_norms(b)
            )  # as of other targets, or where it is not finite
            state.x[:, useless], state.residual[:, useless] = 0.0, b[:, useless]
        return state

    def _prepare_deflation(self, precision: Precision) -> None:
        # What is rounded to float32 would be a direction of negative curvature in float64.
        if self.deflate is None or self._deflates_in == precision:
            return
        w, self._deflates_in = self.deflate, precision
        for attempt in dict.fromkeys((precision, "float64")):
            self._a_w = self.operator.multiply(w[:, None], attempt)[:, 0]
            self._w_a_w = w @ self._a_w + (w**2) @ np.broadcast_to(self.shift, self.right_sides.shape)
            if (self._w_a_w > 0).all():
                return
        _check_product(self._w_a_w, w)
        raise NotPositiveDefiniteError(
            "the matrix is not positive definite: the constant is a direction of negative curvature", -1
        )

    def _cycles(self, state: State) -> Status:
        self._prepare_deflation(state.precision)
        while True:
            if state.cycle is None:
                columns = np.flatnonzero(~(self.reached <= self.tol))
                if len(columns) == 0:
                    return Status.CONVERGED
                if state.has_ended:  # in the run that this one resumes
                    return Status.STALLED
                if state.iteration >= self.max_iter:
                    return Status.MAX_ITERATIONS
                state.cycle = self._new_cycle(state, self._next_columns(state, columns))
                self.on_cycle(state)
            ended = self._iterate(state)
            is_useful = self._end_cycle(state)
            if (self.reached <= self.tol).all():
                return Status.CONVERGED
            status = self._after(state, ended, is_useful=is_useful)
            if self.measure is not None and status is not Status.MAX_ITERATIONS:
                state.has_ended, status = True, Status.STALLED
            if status is not None:
                return status

    def _next_columns(self, state: State, columns: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those of some columns that the next cycle solves: in float32 where that solves any of them."""
        low = columns[~state.needs_float64[columns]]
        if not self._may_wait(len(columns) - len(low), len(low)):
            state.needs_float64[columns], low = True, low[:0]
        precision: Precision = "float32" if len(low) else "float64"
        if precision != state.precision:
            state.precision = precision
            if precision == "float64":
                self._record_message(
                    state, "products in float32 reduce the true residual no further: continuing in float64"
                )
        self._prepare_deflation(precision)
        return low if len(low) else columns

    def _relative(self, residual: Array, columns: NDArray[np.intp]) -> Array:
        if self.measure is not None:
            return self.measure(residual * self._sizes[columns], columns)
        return np.asarray(column_norms(residual) / self._norms[columns])

    def _end_cycle(self, state: State) -> bool:
        """Add the corrections that make the true residual smaller; whether all have reduced it as they were to."""
        cycle = state.cycle
        assert cycle is not None
        state.cycle = None
        if self.estimates_condition and cycle.traced and len(self._traced):
            state.extremes = extremes_of(cycle.traced, self.preconditioner, self._traced, state.extremes)
        columns = cycle.columns
        x = state.x[:, columns] + cycle.correction
        residual = self._true_residual(x, columns)
        if state.precision == "float32":
            _measure_error(state.error, cycle, residual)
        before, after = self.reached[columns], self._relative(residual, columns)
        after = np.where(np.isfinite(after), after, np.inf)
        better = after < before
        if better.any():
            state.x[:, columns[better]] = x[:, better]
            state.residual[:, columns[better]] = residual[:, better]
            self.reached[columns[better]] = after[better]
            self._note_residual(state, float(self.reached.max()), is_true=True)
        # Columns that were ended early say nothing of the precision.
        is_met = np.isfinite(cycle.goal) & (np.linalg.norm(cycle.residual, axis=0) <= cycle.goal)
        with np.errstate(invalid="ignore"):
            useless = is_met & ~(after <= self._tol_of(columns)) & ~(after <= USELESS_CYCLE * before)
        state.needs_float64[columns[useless]] = True
        return not useless.any()

    def _after(self, state: State, ended: str, *, is_useful: bool) -> Status | None:
        """Status after a cycle that did not reach the tolerance; None: another one follows."""
        if ended == "curvature" and state.precision == "float64" and self.measure is None:
            raise NotPositiveDefiniteError(
                f"the matrix is not positive definite: after {plural(state.iteration, 'iteration')} conjugate gradient "
                "met a direction of negative curvature",
                -1,
            )
        if ended == "stalled":
            self._grow(state)
            return None
        if ended == "inexact":
            self._record_message(state, "the preconditioner has lost its digits: its shift or its precision is raised")
            return None
        if ended == "limit":
            return Status.MAX_ITERATIONS
        has_failed = ended in ("curvature", "lost") or not is_useful
        return Status.STALLED if has_failed and state.precision == "float64" else None

    def _new_cycle(self, state: State, columns: NDArray[np.intp]) -> Cycle:
        residual = np.ascontiguousarray(state.residual[:, columns])
        norms = np.linalg.norm(residual, axis=0)
        goal = self.recurrence_fraction * self._tol_of(columns) * self._norms[columns]
        if self.measure is not None:
            goal = norms * self._step(self.reached[columns], columns)
        least = goal.copy()
        if self.measure is None and state.precision == "float32":
            wanted, noise = goal / norms, relative_noise(state.error[columns], self._shift_of(columns).min(axis=0))
            goal = norms * wanted ** (1 / cycles_in_low_precision(wanted, noise))
            least = np.clip(norms * drop_in_low_precision(noise), least, goal)
        correction = np.zeros_like(residual)
        if self.deflate is not None:
            # The best multiple of the deflated direction, of which all that follows is free.
            w = self.deflate[:, None]
            multiple = (self.deflate @ residual) / self._w_a_w[columns]
            correction = w * multiple
            residual = residual - self._a_w[:, None] * multiple - self._shift_of(columns) * correction
        z = self._precondition(residual, columns)
        product = (residual * z).sum(axis=0)
        return Cycle(columns, goal, correction, residual, z, product, least)

    def _tol_of(self, columns: NDArray[np.intp]) -> Array:
        return np.broadcast_to(self.tol, self._norms.shape)[columns]

    def _step(self, reached: Array, columns: NDArray[np.intp]) -> Array:
        """Factor by which ‖r‖ is to become smaller, for the measure that has been reached."""
        return np.clip(0.5 * self._tol_of(columns) / np.clip(reached, 1e-300, 1e300), MIN_MEASURED_REDUCTION, 1.0)

    def _going(self, state: State, open_: NDArray[np.intp], residual: Array, norms: Array) -> NDArray[np.bool_]:
        """Mask of open columns that continue; those that meet their goal but not the tolerance get a smaller goal.

        While others have not met theirs, products in float32 take columns further as long as that is accurate.
        """
        cycle = state.cycle
        assert cycle is not None
        going = norms > cycle.goal[open_]
        if going.all():
            return going
        met = open_[~going]
        if self.measure is not None:
            self._go_on_to_measure(state, cycle, met, np.ascontiguousarray(residual[:, ~going]), norms[~going])
        elif state.precision == "float32":
            self._allow_for_error(state, cycle, met)
        return cycle.is_going(open_, norms)

    def _go_on_to_measure(
        self, state: State, cycle: Cycle, met: NDArray[np.intp], residual: Array, norms: Array
    ) -> None:
        """Take smaller goals where what is measured of the residual does not meet the tolerance."""
        columns = cycle.columns[met]
        reached = self._relative(residual, columns)
        with np.errstate(over="ignore"):
            self._scale[columns] = reached / np.maximum(norms, 1e-300)
        least = MIN_RECURRENCE_REDUCTION * column_norms(state.residual[:, columns])
        cycle.goal[met] = cycle.least[met] = np.where(
            reached > self.recurrence_fraction * self._tol_of(columns),
            np.maximum(norms * self._step(reached, columns), least),
            cycle.goal[met],
        )

    def _allow_for_error(self, state: State, cycle: Cycle, met: NDArray[np.intp]) -> None:
        """Take smaller goals where the true residual is expected to miss the tolerance by a little."""
        columns, goal = cycle.columns[met], cycle.goal[met]
        last = self.recurrence_fraction * self._tol_of(columns) * self._norms[columns]
        missed = state.error[columns] * column_norms(cycle.correction[:, met])
        lower = np.sqrt(np.clip(last**2 - (MISSED_FACTOR * missed) ** 2, last**2 / 4, None))
        cycle.goal[met] = np.where((goal < 1.001 * last) & (missed < last), np.minimum(goal, lower), goal)

    def _shift_of(self, columns: NDArray[np.intp]) -> Array:
        return self.shift if self.shift.shape[1] == 1 else self.shift[:, columns]

    def _precondition(self, residual: Array, columns: NDArray[np.intp]) -> Array:
        z = self.preconditioner.apply(residual, columns)
        if self.deflate is not None:
            shift, w = self._shift_of(columns), self.deflate[:, None]
            z -= w * ((self._a_w @ z + (w * shift * z).sum(axis=0)) / self._w_a_w[columns])
        return z

    def _multiply(self, vectors: Array, columns: NDArray[np.intp], precision: Precision) -> Array:
        shift = self._shift_of(columns)
        return self.operator.multiply(vectors, precision, columns) + shift * vectors

    def _true_residual(self, x: Array, columns: NDArray[np.intp]) -> Array:
        return self._b[:, columns] - self._multiply(x, columns, "float64")

    def _iterate(self, state: State) -> Literal["done", "stalled", "inexact", "lost", "limit", "curvature"]:
        """Continue the cycle until its goals are met; what it has found is in its correction."""
        cycle = state.cycle
        assert cycle is not None
        open_, best = cycle.open(), [np.inf]
        while len(open_):
            if state.iteration >= self.max_iter:
                return "limit"
            direction = np.ascontiguousarray(cycle.direction[:, open_])
            columns = cycle.columns[open_]
            q = self._multiply(direction, columns, state.precision)
            curvature = (direction * q).sum(axis=0)
            if not (is_positive := curvature > 0).all():
                if state.precision == "float64":
                    _check_product(curvature, direction)
                    return "curvature"
                open_ = self._left_to_float64(state, open_, ~is_positive)
                continue
            step = cycle.product[open_] / curvature
            self.on_step(columns, step, direction)
            self._trace(cycle, columns, step, cycle.product[open_])
            cycle.correction[:, open_] += step * direction
            old = cycle.residual[:, open_]
            new = old - step * q
            cycle.residual[:, open_] = new
            norms = np.linalg.norm(new, axis=0)
            state.iteration += 1
            going = self._going(state, open_, new, norms)
            self._note_residual(state, float((norms * self._scale[columns]).max()), is_true=False)
            open_, new, old = open_[going], np.ascontiguousarray(new[:, going]), old[:, going]
            if len(open_):
                self.watch(state, float(np.min(self.tol)))
                z = self._precondition(new, cycle.columns[open_])
                # Polak and Ribière's formula tolerates a preconditioner or products that are not quite linear.
                beta = ((new - old) * z).sum(axis=0) / cycle.product[open_]
                cycle.product[open_] = (new * z).sum(axis=0)
                cycle.direction[:, open_] = z + beta * direction[:, going]
                if not (is_positive := cycle.product[open_] > 0).all():
                    if self.preconditioner.raise_shift_if_inexact(new, cycle.columns[open_]):
                        return "inexact"
                    if state.precision == "float64":
                        sizes = column_norms(new) * column_norms(z)
                        return "curvature" if (cycle.product[open_] < -MIN_NEGATIVE_FRACTION * sizes).any() else "lost"
                    open_, new = self._left_to_float64(state, open_, ~is_positive), new[:, is_positive]
            self.on_iteration(state)
            relative = norms / self._norms[columns]
            best.append(min(best[-1], float(relative.max())))
            if len(open_) and len(best) > STALL_ITERATIONS and best[-1] > 0.5 * best[-1 - STALL_ITERATIONS]:
                if found := self._slow(len(best), new, cycle.columns[open_]):
                    return found
                if state.precision == "float32" and best[-1] >= best[-1 - STALL_ITERATIONS]:
                    is_lost = np.isin(cycle.columns[open_], columns[relative >= best[-1]])
                    open_, best = self._left_to_float64(state, open_, is_lost), [np.inf]
            open_ = open_[np.isfinite(cycle.goal[open_])]  # `on_iteration` may have ended some
        return "done"

    def _slow(self, n: int, residual: Array, columns: NDArray[np.intp]) -> Literal["stalled", "inexact"] | None:
        """What ends a cycle of n iterations whose last ones were slow; None: nothing of the preconditioner's."""
        if self.preconditioner.can_grow:
            return "stalled"
        is_raised = n % STALL_ITERATIONS == 1 and self.preconditioner.raise_shift_if_inexact(residual, columns)
        return "inexact" if is_raised else None

    def _left_to_float64(
        self, state: State, open_: NDArray[np.intp], is_unsolved: NDArray[np.bool_]
    ) -> NDArray[np.intp]:
        """Open columns of a cycle in float32 that go on, without those that it does not solve."""
        assert state.cycle is not None
        unsolved, others = open_[is_unsolved], open_[~is_unsolved]
        state.cycle.goal[unsolved] = np.inf
        state.needs_float64[state.cycle.columns[unsolved]] = True
        waiting = int(state.needs_float64[state.cycle.columns].sum())
        return others if self._may_wait(waiting, len(others)) else others[:0]

    def _may_wait(self, n_waiting: int, n_others: int) -> bool:
        return n_waiting <= self.max_waiting * (n_waiting + n_others)

    def _trace(self, cycle: Cycle, columns: NDArray[np.intp], step: Array, product: Array) -> None:
        if not len(self._traced):
            return
        values = np.full((2, self.right_sides.shape[1]), nan)
        values[:, columns] = step, product
        cycle.traced.append(values[:, self._traced])

    def _grow(self, state: State) -> None:
        before = self.preconditioner.rank
        if not self.preconditioner.grow():
            return
        self._record_message(
            state,
            f"slow convergence (relative residual {state.history[-1].largest:.1e} after "
            f"{plural(state.iteration, 'iteration')}): "
            f"the preconditioner's rank grows from {before:,} to {self.preconditioner.rank:,}",
        )

    def _record_message(self, state: State, message: str) -> None:
        state.messages.append(message)
        self.progress.note(message)

    def _note_residual(self, state: State, largest: float, *, is_true: bool) -> None:
        line = Residuals(state.iteration, time.perf_counter() - self._begun, largest, is_true)
        state.history.append(line)
        self._show(state, line)

    def _show(self, state: State, line: Residuals) -> None:
        """Show the digits gained, of those that the tolerance asks for; the last ones by the true residual."""
        whole = -log(np.min(self.tol))
        way = min(max(-log(max(line.largest, 1e-300)), 0.0), whole)
        if not line.is_true:
            way = min(way, whole * line.iteration / (line.iteration + ITERATIONS_OF_TRUE_RESIDUAL[state.precision]))
        # Also where the residual rose: a log shows that work is being done.
        self.progress.advance(max(way - self._shown, 0.0))
        self._shown = max(way, self._shown)


def _measure_error(error: Array, cycle: Cycle, residual: Array) -> None:
    """Enter the error of products in float32, which the recurrence has added up over a cycle."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = column_norms(residual - cycle.residual) / column_norms(cycle.correction)
    is_known = np.isfinite(found)
    error[cycle.columns[is_known]] = found[is_known]


def _check_product(curvature: Array, direction: Array) -> None:
    """Raise NotFiniteError if pᵀAp is infinite or NaN, which is not a direction of negative curvature."""
    if not np.isfinite(direction).all():
        raise NotFiniteError(
            "the preconditioner's product with a residual is not finite; expected finite numbers: rescale the columns "
            "of X, use preconditioner=None, or solver='cholesky'"
        )
    if not np.isfinite(curvature).all():
        raise NotFiniteError(
            "a product with the matrix is not finite: its entries, or sums of them, leave the range of float64 "
            "(1e308); expected finite numbers: rescale the columns of X, or the targets"
        )


def error_of_products(n: int, largest: float) -> float:
    """Expected error of products in float32, over the norm of the vector.

    Parameters
    ----------
    n : int
        Number of rows.
    largest : float
        Size of the largest entries of A.
    """
    return ROUNDED_PRODUCT * sqrt(n) * largest


def relative_noise(error: float | Array, shift: float | Array) -> NDArray[np.float64]:
    """Error of products in float32 relative to s ≥ 0; 1 where it is larger."""
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(error / np.maximum(shift, 1e-300), 1.0))


def iterations_in_low_precision(iterations: int, noise: float) -> int:
    """Iterations of a mixed solve, from those with products in float64 and the error of products relative to s."""
    return ceil(iterations * (MIXED_FACTOR + MIXED_FACTOR_OF_NOISE * min(noise, MAX_PRICED_NOISE)))


def drop_in_low_precision(noise: float | Array) -> NDArray[np.float64]:
    """Factor by which a cycle in float32 may reduce residuals, from `relative_noise`."""
    by_error = np.maximum((DROP_OF_CONJUGACY * np.asarray(noise)) ** 2, DROP_OF_ERROR * np.asarray(noise))
    return np.asarray(np.clip(by_error, LEAST_DROP, MOST_DROP))


def cycles_in_low_precision(tol: float | Array, noise: float | Array = 0.0) -> NDArray[np.intp]:
    """Cycles in float32 that reduce residuals by a factor, each followed by a product in float64.

    Parameters
    ----------
    tol : float or ndarray of shape (m,)
        The factor.
    noise : float or ndarray of shape (m,)
        Error of products in float32 relative to s, at most 1.
    """
    # Rounded, so that 1e-8 is two cycles of 1e-4.
    cycles = np.ceil(np.round(np.log(tol) / np.log(drop_in_low_precision(noise)), 6))
    return np.maximum(1, cycles).astype(np.intp)
