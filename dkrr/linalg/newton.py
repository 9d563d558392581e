"""Newton's method for smooth convex objectives: inexact, damped by a line search, stopped by gradient and decrement.

The driver knows nothing of kernels. It asks an `Objective` for a direction, as exact as the gradient calls for, and
for the objective along it; it shortens the step until the objective falls as it should. Several independent systems
(one-vs-rest) go side by side, each with its own step length, since they share the expensive passes.

A small gradient says that the objective is flat, not that its minimum is near: where it hardly curves (λ tiny, classes
that are separable, weights of many orders) the minimum may be far. Newton's decrement gᵀH⁻¹g is twice what is left of
the objective, and bounds what is left to change in the probabilities. Both have to be small. Where its computation
would cost a step, it is bounded from above (`Objective.decrements`), or estimated from that of the last step.

References
----------
J. Nocedal, S. J. Wright, "Numerical Optimization", 2nd ed., Springer 2006, chapters 3 and 7. S. C. Eisenstat,
H. F. Walker, "Choosing the forcing terms in an inexact Newton method", SIAM J. Sci. Comput. 17 (1996).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, log
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError
from dkrr.linalg.result import NewtonStep, Status
from dkrr.text import format_seconds, plural

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Point:
    """Coefficients and intercepts of m models, and what else an interrupted run knew there."""

    coef: Array
    """α, of shape (n, m), or β, of shape (D, m)."""
    intercept: Array
    """b, of shape (m,)."""
    scores: Array | None = None
    """f, of shape (n, m), by the recurrence of the steps: from them a run resumes with the same bits."""
    gradients: Array | None = None
    """Norms of the gradient, of shape (n_systems,)."""

    def arrays(self) -> dict[str, Array]:
        """Arrays of the point that are known, as matrices by name."""
        known = {"coef": self.coef, "intercept": self.intercept, "scores": self.scores, "gradients": self.gradients}
        return {name: np.atleast_2d(array) for name, array in known.items() if array is not None}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> "Point":
        """Undo `arrays`."""
        gradients = arrays["gradients"][0] if "gradients" in arrays else None
        return cls(arrays["coef"], arrays["intercept"][0], arrays.get("scores"), gradients)


class Objective(ABC):
    """A point, and the convex objective there, of every system; shape (n_systems,) throughout.

    It is complete once it is made: values, gradients and references belong to its first point.
    """

    values: Array
    """Objective at the point."""
    gradients: Array
    """Norm of its gradient."""
    references: Array
    """Norm of its gradient where all scores are 0, by which gradients are judged."""
    messages: list[str]
    """Reports of an iterative solver."""
    inner_iterations: int = 0
    """Iterations of the iterative solver, over all steps."""

    def check_finite(self) -> None:
        """Raise NotFiniteError if a value, a gradient or a reference is infinite or NaN."""
        names = ("objective", "norm of the gradient", "norm of the gradient at zero")
        for name, array in zip(names, (self.values, self.gradients, self.references), strict=True):
            if not np.isfinite(array).all():
                raise NotFiniteError(
                    f"the {name} of kernel logistic regression is {array[~np.isfinite(array)][0]}: sums leave the "
                    f"range of float64 (1e308); expected finite numbers: rescale the columns of X, or the kernel"
                )

    @property
    @abstractmethod
    def point(self) -> Point:
        """Current point of the minimisation."""

    def verify(self, tol: float) -> bool:  # noqa: ARG002
        """Recompute values and gradients if they follow from a recurrence, and return whether they did.

        Parameters
        ----------
        tol : float
            Relative norm of the gradient above which a bound of it is not enough.
        """
        return False

    def decrements(self, wanted: Mask) -> Array | None:  # noqa: ARG002
        """Newton's decrements gᵀH⁻¹g at the point, or upper bounds of them, if they cost far less than a step.

        Parameters
        ----------
        wanted : ndarray of bool, shape (n_systems,)
            Systems that they are needed of; entries of the others mean nothing.

        Returns
        -------
        ndarray of shape (n_systems,) or None
        """
        return None

    def sensitivities(self) -> Array:
        """Largest change of a probability in a Newton step over the root of the decrement, or bounds of it."""
        return np.full(len(self.values), 0.5)  # of a row of weight 1: p (1 - p) |Δf| ≤ ½ √w |Δf| ≤ ½ √(gᵀH⁻¹g)

    @abstractmethod
    def find_direction(self, is_open: Mask, forcing: float) -> Array:
        """Solve the Newton systems of the open ones; the slopes of the objective along their directions.

        Parameters
        ----------
        is_open : ndarray of bool, shape (n_systems,)
        forcing : float
            Relative residual that the solution may leave.
        """

    @abstractmethod
    def along(self, step_lengths: Array) -> Array:
        """Objective after a step of these lengths along the direction."""

    @abstractmethod
    def step(self, step_lengths: Array) -> None:
        """Take the step, and compute values and gradients there."""


MAX_FORCING = 0.1
"""Relative residual of a Newton system far from the solution."""
ARMIJO_FRACTION = 1e-4
"""Fraction of the decrease that the slope promises which a step must bring (Armijo)."""
MIN_RELATIVE_DECREASE = 1e-14
"""Relative differences of the objective at or below this are rounding."""
MAX_HALVINGS = 40
MAX_USELESS = 3
"""Steps without a smaller gradient or objective after which rounding has been reached."""
MIN_FORCING = 1e-13
PROBABILITY_POWER = 0.5
"""Probabilities are asked for within tol to this power, where the objective is asked for within tol."""
MIN_FORCING_FACTOR = 1e-8
"""Smallest factor of the residual of Newton systems, lowered where steps did not help."""

STEPS_FROM_NEAR = 5
"""Steps for each further λ of a path, which begins at the solution before."""
INNER_TOL = 1e-3
"""Relative residual to which Newton systems are solved on average: loosely at first, tightly at the end."""
CURVATURE_SHIFT = {False: 40, True: 8}
"""Multiple of λ with which a regression takes as many iterations. With the largest curvature that a row can have, a
quarter, it is 8, and for a softmax that is about right; the models of single classes are sure of most rows (measured on
digits, 5 classes of 20 informative columns and 16 normal ones, λ of 1 to 0.001)."""
VECTORS_HELD = 30
"""Arrays as long as the scores in the calling process, in dual form."""
MIN_SHIFT_RATIO = 8.0
"""Smallest diagonal shift of a system over λ, with the largest curvature that a row of weight 1 can have."""
COUPLED_ITERATIONS = 8
"""More iterations of a softmax, whose preconditioner takes the classes one by one (measured with 10: 4 to 9)."""
INNER_WITH_FACTOR = 1
"""Iterations for a system whose preconditioner is its inverse."""
PASSES_PER_STEP = 4
"""Products with K of a step besides its iterations: right-hand side, true residual, scores and gradient."""
SECONDS_PER_STEP = 4e-3
"""Time of every step, however small: calls, and a line search."""
SECONDS_PER_STEP_IN_MEMORY = 1e-3
"""Time of every step without tasks (measured: 0.5 to 4 ms)."""


@dataclass
class NewtonState:
    """Everything but its point that a run resumes from."""

    step: int = 0
    history: list[NewtonStep] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    useless: int = 0
    """Steps since one made a gradient or an objective smaller."""
    sharper: float = 1.0
    """Factor of the residuals that Newton systems may leave, where those proved too large."""
    recompute: bool = False
    """Whether a recurrence proved too inexact: from then on nothing is left to it."""
    least: list[list[float]] | None = None
    """Smallest objectives and gradients since then, of every system: what is above them may be so by rounding."""
    expected: list[float] | None = None
    """Decrements to be expected at the point, of every system; None before the first step."""

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "NewtonState":
        """Undo `asdict`."""
        return cls(**(plain | {"history": [NewtonStep(**step) for step in plain["history"]]}))


@dataclass(frozen=True)
class NewtonOutcome:
    """Outcome of a run: status, gradient, decrement, and the state it ended in."""

    status: Status
    gradient: float
    """Largest relative norm of the gradient."""
    decrement: float
    """Largest ½ gᵀH⁻¹g relative to the objective, or a bound of it; infinite where the gradient alone decided."""
    probability_change: float
    """Bound of the change of any probability in one more step; infinite like the decrement."""
    state: NewtonState

    def to_plain(self) -> dict[str, Any]:
        """Values of JSON."""
        return asdict(self) | {"status": self.status.name}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "NewtonOutcome":
        """Undo `to_plain`."""
        return cls(**(plain | {"status": Status[plain["status"]], "state": NewtonState.from_plain(plain["state"])}))


@dataclass
class Newton:
    """Minimisation of an objective by Newton's method.

    Parameters
    ----------
    objective : Objective
    tol : float
        Relative norm of the gradient that is asked for, of every system, and fraction of the objective that may remain;
        probabilities may be off by its root.
    max_iter : int
        Steps.
    progress : Progress
    on_step : callable
        Called with the NewtonState after every step; it may save the point.
    """

    objective: Objective
    tol: float
    max_iter: int
    progress: Progress = field(default_factory=Progress)
    on_step: Callable[[NewtonState], None] = lambda _: None

    def run(self, state: NewtonState | None = None) -> NewtonOutcome:
        """Step until every system is as close to its minimum as was asked, or no step brings it closer."""
        begun, o = time.perf_counter(), self.objective
        state = state or NewtonState()
        first_step = state.step
        self._squares = np.full(len(o.values), np.inf)
        o.check_finite()
        while True:
            self._changes: tuple[Array, Array] | None = None
            gradients = self._relative()
            is_open = ~self._are_done(gradients, state)
            ending = self._ending(is_open, state)
            if ending is not None:
                if not o.verify(self.tol):
                    return self._ended(ending, state)
                # The gradient that decides is computed from the point itself.
                state.recompute = True
                o.check_finite()
                self._squares[:] = np.inf
                if state.history:
                    objective, gradient = float(o.values.sum()), float(self._relative().max())
                    state.history[-1] = replace(state.history[-1], objective=objective, gradient=gradient)
                continue
            inner, before = o.inner_iterations, o.values.copy()
            least = (before, gradients) if state.least is None else tuple(np.array(known) for known in state.least)
            forcing = max(MIN_FORCING, state.sharper * _forcing(gradients[is_open], self.tol))
            try:
                slopes = o.find_direction(is_open, forcing)
            except NotPositiveDefiniteError:
                if not (gradients <= self.tol).all():
                    raise
                state.useless = MAX_USELESS  # The point is as good as rounding lets it be, but how good is not known.
                continue
            step_lengths = self._line_search(is_open & (slopes < 0), slopes)
            o.step(step_lengths)
            if state.recompute:
                o.verify(self.tol)
            o.check_finite()
            self._squares[is_open] = np.inf
            now = self._relative()
            state.expected = _expected(state.expected, is_open, slopes, step_lengths, gradients, now)
            if not (now < 0.5 * gradients)[is_open].any():
                # Steps that are short may be so for want of a better direction.
                state.sharper = max(0.1 * state.sharper, MIN_FORCING_FACTOR)
            fell = (o.values < least[0] - MIN_RELATIVE_DECREASE * np.abs(before)) | (now < 0.9 * least[1])
            if state.recompute:
                # Rounding lets both rise and fall.
                state.least = [np.fmin(old, new).tolist() for old, new in zip(least, (o.values, now), strict=True)]
            state.useless = 0 if fell[is_open].any() else state.useless + 1
            state.step += 1
            seconds = time.perf_counter() - begun
            state.history.append(
                NewtonStep(
                    step=state.step,
                    seconds=seconds,
                    objective=float(o.values.sum()),
                    gradient=float(now.max()),
                    length=float(step_lengths[is_open].min()),
                    n_open=int(is_open.sum()),
                    inner_iterations=o.inner_iterations - inner,
                    decrement=float(_relative_decrements(-slopes, before)[is_open].max()),
                )
            )
            self._show(state, seconds / (state.step - first_step))
            self.on_step(state)

    def _ending(self, is_open: Mask, state: NewtonState) -> Status | None:
        if not is_open.any():
            return Status.CONVERGED
        if state.useless >= MAX_USELESS:
            return Status.STALLED
        return Status.MAX_ITERATIONS if state.step >= self.max_iter else None

    def _are_done(self, gradients: Array, state: NewtonState) -> Mask:
        """Whether gradient, decrement and probabilities of every system are what was asked for."""
        o, within = self.objective, gradients <= self.tol
        self._squares[gradients == 0.0] = 0.0
        wanted = within & ~np.isfinite(self._squares)
        if wanted.any():
            squares = o.decrements(wanted)
            if squares is None:
                squares = np.full(len(gradients), np.inf) if state.expected is None else np.array(state.expected)
            self._squares = np.where(wanted, squares, self._squares)
        if not within.any():
            return within
        decrements, changes = self._next_changes()
        return np.asarray(within & (decrements <= self.tol) & (changes <= self.tol**PROBABILITY_POWER))

    def _next_changes(self) -> tuple[Array, Array]:
        """Relative decrements, and changes of a probability, that one more step would bring, of every system."""
        if self._changes is None:
            o = self.objective
            squares = np.where(self._squares >= 0, self._squares, np.inf)  # NaN is not small
            changes = np.where(squares > 0, o.sensitivities() * np.sqrt(squares), 0.0)
            self._changes = _relative_decrements(squares, o.values), changes
        return self._changes

    def _relative(self) -> Array:
        """Gradients relative to those at zero; 0 where that is 0 already."""
        o = self.objective
        return np.divide(o.gradients, o.references, out=np.zeros_like(o.gradients), where=o.references != 0)

    def _line_search(self, moves: Mask, slopes: Array) -> Array:
        before, step_lengths = self.objective.values, np.where(moves, 1.0, 0.0)
        for _ in range(MAX_HALVINGS):
            allowed = before + ARMIJO_FRACTION * step_lengths * slopes + MIN_RELATIVE_DECREASE * np.abs(before)
            good = ~moves | (self.objective.along(step_lengths) <= allowed)
            if good.all():
                return step_lengths
            step_lengths = np.where(good, step_lengths, step_lengths / 2)
        return np.where(good, step_lengths, 0.0)

    def _ended(self, status: Status, state: NewtonState) -> NewtonOutcome:
        decrements, changes = self._next_changes()
        return NewtonOutcome(
            status, float(self._relative().max()), float(decrements.max()), float(min(changes.max(), 1.0)), state
        )

    def _show(self, state: NewtonState, seconds_per_step: float) -> None:
        last = state.history[-1]
        text = f"Newton step {last.step}: objective {last.objective:.8g}, relative gradient {last.gradient:.1e}"
        if last.inner_iterations:
            text += f", {plural(last.inner_iterations, 'iteration')}"
        if last.length < 1:
            text += f", step length {last.length:.2g}"
        if last.decrement > self.tol:
            text += f", decrement {last.decrement:.1e} before"
        if last.gradient > self.tol:
            text += f"; about {format_seconds(seconds_per_step * steps_left(last.gradient, self.tol))} left"
        self.progress.detail(text)


def _relative_decrements(squares: Array, values: Array) -> Array:
    """½ gᵀH⁻¹g relative to the objective; 0 where both are 0."""
    return np.divide(squares, 2 * values, out=np.where(squares > 0, np.inf, 0.0), where=values > 0)


def _expected(
    before: list[float] | None, is_open: Mask, slopes: Array, step_lengths: Array, gradients: Array, now: Array
) -> list[float]:
    """Estimates of the next decrements.

    Were all directions alike, the decrement would fall like the square of the gradient. In flat directions it falls
    more slowly: here it is taken to fall like the gradient itself.
    """
    known = np.full(len(slopes), np.inf) if before is None else np.array(before)
    shares = np.divide(now, gradients, out=np.ones_like(now), where=gradients > 0)
    found = np.where(step_lengths == 1.0, np.maximum(-slopes, 0.0) * np.minimum(shares, 1.0), np.inf)
    return [float(e) for e in np.where(is_open, found, known)]


def _forcing(relative: Array, tol: float) -> float:
    """Relative accuracy of the next step: that of the step after it, but no more than the last step needs."""
    last = np.where(relative > tol, np.minimum(MAX_FORCING, 0.1 * tol / np.maximum(relative, tol)), 0.0)
    return float(np.maximum(np.minimum(MAX_FORCING, np.sqrt(relative)), last).min())


def steps_left(gradient: float, tol: float) -> int:
    """Estimate of the steps that are left: at first each halves the gradient, later it adds half as many digits."""
    n = 0
    while gradient > tol and n < 100:
        gradient = gradient / 2 if gradient > 0.1 else gradient**1.5
        n += 1
    return max(1, n)


@dataclass(frozen=True)
class NewtonWork:
    """Steps and iterations of a typical fit, for all values of λ."""

    steps: int
    shift: float
    """λ of a regression whose systems take as many iterations."""
    inner: int
    """Iterations of a step whose systems have complete factors."""
    more: int
    """Iterations of a step besides those that the spectrum makes necessary."""
    inner_tol: float = INNER_TOL
    """Relative residual of the systems of a step."""
    n_vectors: int = VECTORS_HELD
    """Arrays as long as the scores in the calling process."""

    @property
    def products(self) -> int:
        """Products with K besides those of iterations."""
        return PASSES_PER_STEP * self.steps

    @classmethod
    def expected(cls, tol: float, alphas: Sequence[float], *, is_softmax: bool) -> Self:
        """Work to a relative gradient of `tol` (measured: 5 to 9 steps for 1e-8).

        Parameters
        ----------
        tol : float
        alphas : sequence of float
            Values of λ, of which all but one begin at the solution before.
        is_softmax : bool
            All columns of scores are one softmax.
        """
        first = 4 + ceil(log(log(max(1 / tol, 3.0)) / log(10.0) + 1.0) / log(1.5))
        more = COUPLED_ITERATIONS if is_softmax else 0
        return cls(
            steps=first + (len(alphas) - 1) * STEPS_FROM_NEAR,
            shift=CURVATURE_SHIFT[is_softmax] * min(alphas),
            inner=INNER_WITH_FACTOR + more,
            more=more,
        )
