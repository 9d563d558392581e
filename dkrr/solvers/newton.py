"""Newton's method for smooth convex objectives: inexact, damped by a line search, stopped by the gradient.

The driver knows nothing of kernels. It asks an `Objective` for a direction, as exact as the gradient calls for, and
for the objective along it; it shortens the step until the objective falls as it should. Several independent systems
(one-vs-rest) go side by side, each with a step length of its own, since they share the expensive passes.

References
----------
J. Nocedal, S. J. Wright, "Numerical Optimization", 2nd ed., Springer 2006, chapters 3 and 7. S. C. Eisenstat,
H. F. Walker, "Choosing the forcing terms in an inexact Newton method", SIAM J. Sci. Comput. 17 (1996).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from dkrr.runtime import Progress
from dkrr.solvers.result import NewtonStep, Status
from dkrr.units import format_seconds

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LOOSEST = 0.1
"""Relative residual of a Newton system far from the solution."""
SUFFICIENT = 1e-4
"""Part of the decrease that the slope promises which a step must bring (Armijo)."""
ROUNDING = 1e-14
"""Relative differences of the objective below this mean nothing."""
MAX_HALVINGS = 40
MAX_USELESS = 3
"""Steps without a smaller gradient or objective after which rounding has been reached."""
LEAST_FORCING = 1e-13
SHARPEST = 1e-8
"""Least factor by which Newton systems are solved better than usual, where steps did not help."""


class Objective(ABC):
    """A point, and the convex objective there, of every system; shape (n_systems,) throughout."""

    values: Array
    """Objective at the point."""
    gradients: Array
    """Norm of its gradient."""
    references: Array
    """Norm of its gradient where all scores are 0, by which gradients are judged."""
    messages: list[str]
    """What an iterative solver did on its way."""
    inner_iterations: int = 0
    """Of the iterative solver, over all steps."""

    @abstractmethod
    def begin(self, references: Array | None = None) -> None:
        """Compute values and gradients at the first point, and the references unless they are given."""

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
    def along(self, lengths: Array) -> Array:
        """Objective after a step of these lengths."""

    @abstractmethod
    def step(self, lengths: Array) -> None:
        """Take the step, and compute values and gradients there."""


@dataclass
class NewtonState:
    """What besides its point a run goes on from."""

    step: int = 0
    history: list[NewtonStep] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    useless: int = 0
    """Steps since one made a gradient or an objective smaller."""
    sharper: float = 1.0
    """Factor of the residuals that Newton systems may leave, where those proved too large."""


@dataclass(frozen=True)
class NewtonOutcome:
    """How a run ended."""

    status: Status
    gradient: float
    """Largest relative norm of the gradient."""
    state: NewtonState


@dataclass
class Newton:
    """One minimisation.

    Parameters
    ----------
    objective : Objective
    tol : float
        Relative norm of the gradient that is asked for, of every system.
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
        """Step until every gradient is as small as was asked, or no step makes it smaller."""
        begun, o = time.perf_counter(), self.objective
        state = state or NewtonState()
        first_step = state.step
        while True:
            left = self._relative()
            is_open = ~(left <= self.tol)
            if not is_open.any():
                return self._ended(Status.CONVERGED, state)
            if state.useless >= MAX_USELESS:
                return self._ended(Status.STALLED, state)
            if state.step >= self.max_iter:
                return self._ended(Status.MAX_ITERATIONS, state)
            inner, before = o.inner_iterations, o.values.copy()
            forcing = max(LEAST_FORCING, state.sharper * _forcing(left[is_open], self.tol))
            slopes = o.find_direction(is_open, forcing)
            lengths = self._line_search(is_open & (slopes < 0), slopes)
            o.step(lengths)
            now = self._relative()
            if not (now < 0.5 * left)[is_open].any():
                # Steps that are short may be so for want of a better direction.
                state.sharper = max(0.1 * state.sharper, SHARPEST)
            fell = (o.values < before - ROUNDING * np.abs(before)) | (now < 0.9 * left)
            state.useless = 0 if fell[is_open].any() else state.useless + 1
            state.step += 1
            seconds = time.perf_counter() - begun
            state.history.append(
                NewtonStep(
                    step=state.step,
                    seconds=seconds,
                    objective=float(o.values.sum()),
                    gradient=float(now.max()),
                    length=float(lengths[is_open].min()),
                    n_open=int(is_open.sum()),
                    inner_iterations=o.inner_iterations - inner,
                )
            )
            self._show(state, seconds / (state.step - first_step))
            self.on_step(state)

    def _relative(self) -> Array:
        """Gradients relative to those at zero; 0 where that is 0 already."""
        o = self.objective
        return np.divide(o.gradients, o.references, out=np.zeros_like(o.gradients), where=o.references > 0)

    def _line_search(self, moves: Mask, slopes: Array) -> Array:
        before, lengths = self.objective.values, np.where(moves, 1.0, 0.0)
        for _ in range(MAX_HALVINGS):
            allowed = before + SUFFICIENT * lengths * slopes + ROUNDING * np.abs(before)
            good = ~moves | (self.objective.along(lengths) <= allowed)
            if good.all():
                return lengths
            lengths = np.where(good, lengths, lengths / 2)
        return np.where(good, lengths, 0.0)

    def _ended(self, status: Status, state: NewtonState) -> NewtonOutcome:
        return NewtonOutcome(status, float(self._relative().max()), state)

    def _show(self, state: NewtonState, seconds_a_step: float) -> None:
        last = state.history[-1]
        text = f"Newton step {last.step}: objective {last.objective:.8g}, relative gradient {last.gradient:.1e}"
        if last.inner_iterations:
            text += f", {last.inner_iterations} iterations"
        if last.length < 1:
            text += f", step length {last.length:.2g}"
        if last.gradient > self.tol:
            text += f"; about {format_seconds(seconds_a_step * steps_left(last.gradient, self.tol))} left"
        self.progress.note(text)


def _forcing(relative: Array, tol: float) -> float:
    """As small as the next step's error will be, and no smaller than the last step needs."""
    return float(np.maximum(np.minimum(LOOSEST, np.sqrt(relative)), np.minimum(LOOSEST, 0.1 * tol / relative)).min())


def steps_left(gradient: float, tol: float) -> int:
    """Estimate of the steps that are left: at first each halves the gradient, later it adds half as many digits."""
    n = 0
    while gradient > tol and n < 100:
        gradient = gradient / 2 if gradient > 0.1 else gradient**1.5
        n += 1
    return max(1, n)


def expected_steps(tol: float) -> int:
    """Steps of a typical run (measured: 5 to 9 for relative gradients of 1e-8)."""
    return 4 + ceil(log(log(max(1 / tol, 3.0)) / log(10.0) + 1.0) / log(1.5))
