"""Whether iterations go on, or give way to a factorisation that takes over: from residuals so far, and measured times.

A plan's estimate of the iterations may be wrong by a factor of ten, while the time of a factorisation is about known.
So iterations begin where they promise less, and are watched. They are given up where even the fewest iterations that
may be left, at the best rate seen so far and half as much again, would take longer than the factorisation. They are
also given up, once they have taken a third of its time, where the likely ones would.

The residual of conjugate gradient may stay as it is for a while (a plateau) and fall later. Its coefficients tell more:
the extreme Ritz values find those of the preconditioned matrix within some ten iterations, and the rate of Chebyshev's
bound for their ratio was 0.9 to 2.5 times too fast for what followed, on rows made up and on those of molecules,
flights and particle collisions. So at the start that rate counts, and later that of the last iterations.

Iterations are measured, and the factorisation is planned: where other programs take a part of the processors, it would
be slower, too. So before iterations are given up, it is measured how large that part is.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, log, log1p, nan, sqrt
from statistics import median
from typing import Any

import numpy as np

from dkrr.linalg.iteration_state import State
from dkrr.text import format_seconds, plural

MOST_LOST = 1 / 3
"""Fraction of the factorisation's time that iterations may have taken before their likely rate decides."""
ACCELERATION = 1.5
"""Times the best rate so far that the rate may still become (measured on random and on molecular rows: up to 1.4)."""
WINDOW = 5
"""Iterations from which a rate is taken, at least."""
WINDOW_FRACTION = 0.25
"""Fraction of all iterations from which the best rate is taken, where that is more."""
RECENT_FRACTION = 0.5
"""Fraction of all iterations from which the likely rate is taken."""
EARLY = 20
"""Iterations up to which the rate of the Ritz values counts, where it is faster than that of the last iterations."""
OPTIMISM = 1.3
"""Times that the rate of the Ritz values is likely to be too fast, since the smallest one is found last."""
LAPS = 9
"""Iterations whose median time is that of the next ones."""
BURST_SECONDS = 0.01
"""Time of a processor for which its share of the passing time is measured."""
SLOW = 1.2
"""Passing time over processor time from which a message says so."""
MEASURED_AGAIN = 1.1
"""Times the seconds spent at the last measurement from which another one is made."""
LATE = 2.0
"""Times of what was planned that the preparation of iterations may take before it counts as lost."""


class GivenUpError(Exception):
    """Iterations are given up for a factorisation, which takes over: users do not see this.

    Parameters
    ----------
    text : str
        What happened, and why.
    seconds : float
        Time that the iterations, and what prepared them, took in this run and in those that it resumes.
    """

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds
        self.reached: Any = None
        """What the factorisation begins with; None: it restarts."""


def unwatched(state: State, tol: float) -> None:
    """Let iterations go on: nothing can take over."""


def slowdown() -> float:
    """Time that passes while this thread works, over the time of a processor that it gets: 1 on an idle machine."""
    wall, own = time.perf_counter(), time.thread_time()
    while time.thread_time() - own < BURST_SECONDS:
        sum(range(1000))
    return max(1.0, (time.perf_counter() - wall) / (time.thread_time() - own))


def spectral_rate(condition: float) -> float:
    """Fall of the logarithm of the error in an iteration, by Chebyshev's bound; 0 where nothing is known."""
    if not condition >= 1.0:
        return 0.0
    root = sqrt(condition)
    return log1p(2.0 / max(root - 1.0, 1e-9))


def iterations_left(residuals: Sequence[float], tol: float, condition: float = nan) -> tuple[float, float]:
    """Fewest and likely number of iterations until a residual is as small as `tol`.

    Parameters
    ----------
    residuals : sequence of float
        Largest relative residual after every iteration.
    tol : float
    condition : float
        Condition number of the preconditioned matrix that the coefficients show so far; NaN: not known.
    """
    with np.errstate(divide="ignore"):
        levels = np.log(np.fmin.accumulate(np.clip(residuals, 1e-300, 1e300)))
    left = float(levels[-1]) - log(tol)
    if left <= 0:
        return 0.0, 0.0
    n = len(levels)
    width, recent = max(WINDOW, int(WINDOW_FRACTION * n)), min(max(WINDOW, int(RECENT_FRACTION * n)), n - 1)
    if n <= width:  # nothing is known of the rate
        return 0.0, 0.0
    spectral = spectral_rate(condition)
    best = max(float((levels[:-width] - levels[width:]).max()) / width, spectral)
    likely = float(levels[-1 - recent] - levels[-1]) / recent
    if n <= EARLY:
        likely = max(likely, spectral / OPTIMISM)
        if levels[0] - levels[-1] < log(2.0):  # a plateau, which may end at any time
            best = inf
    return left / (ACCELERATION * best) if best > 0 else inf, left / likely if likely > 0 else inf


def is_given_up(fewest: float, likely: float, lost: float, factor: float, allowed: float) -> bool:
    """Whether a factorisation is to take over.

    Parameters
    ----------
    fewest, likely : float
        Seconds that are left of the iterations, at least and likely.
    lost : float
        Seconds that are lost if they are given up.
    factor : float
        Seconds of the factorisation.
    allowed : float
        Seconds that may be lost before what is likely decides.
    """
    return fewest > factor or (lost >= allowed and likely > factor)


@dataclass
class Watch:
    """Watches the iterations of a fit, which a factorisation may replace.

    Parameters
    ----------
    factor_seconds : float
        Time of a fit by factorisations, from its plan.
    n_steps : int
        Solutions of systems, one after the other, for each of which a factor would be made: steps of Newton's method.
    prepared_after : float
        Time after which the iterations should begin, from their plan.
    begun : float
        When the work began, by `time.perf_counter`.
    earlier : float
        Seconds that runs took which this one resumes.
    """

    factor_seconds: float
    n_steps: int = 1
    prepared_after: float = 0.0
    begun: float = field(default_factory=time.perf_counter)
    earlier: float = 0.0
    _n_ended: int = -1
    """Steps that have ended; -1 before the first."""
    _step_begun: float = 0.0
    """Seconds before the step."""
    _laps: list[float] = field(default_factory=list)
    """Times of the last iterations."""
    _condition: float = nan
    """Condition number of the preconditioned matrix that the iterations have shown last."""
    _slowdown: float = 1.0
    _measured_at: float = 0.0
    """Seconds spent when that was measured."""

    @property
    def spent(self) -> float:
        """Seconds since the work began, in this run and in those that it resumes."""
        return self.earlier + time.perf_counter() - self.begun

    def resume(self, state: State) -> None:
        """Count the time of the runs that saved this state."""
        self.earlier = max(self.earlier, state.spent)

    def _is_given_up(self, fewest: float, likely: float) -> bool:
        """Whether a factorisation is to take over, with so many seconds left of the solution or step."""
        found = False
        for measured in (False, True):
            if measured and self.spent > MEASURED_AGAIN * self._measured_at:
                self._measured_at, self._slowdown = self.spent, slowdown()
            whole = self.factor_seconds * self._slowdown
            each = whole / self.n_steps
            # A factorisation would have done what is done by now in its share of the time.
            lost = self.spent - max(self._n_ended, 0) * each
            found = is_given_up(fewest, likely, lost, each, MOST_LOST * whole)
            if not found:
                break
        return found

    def _ended(self, why: str) -> GivenUpError:
        each = format_seconds(self.factor_seconds * self._slowdown / self.n_steps)
        slow = f", with {1 / self._slowdown:.0%} of a processor" if self._slowdown > SLOW else ""
        return GivenUpError(
            f"conjugate gradient was given up after {why}, and a factorisation takes about {each}{slow}", self.spent
        )

    def begin_step(self) -> None:
        """Note that a step begins, and compare the one before.

        Raises
        ------
        GivenUpError
            If steps take longer than those with a factorisation, and too much is lost by now.
        """
        last = self.spent - self._step_begun
        self._n_ended, self._step_begun, self._laps, self._condition = self._n_ended + 1, self.spent, [], nan
        if self._n_ended and self._is_given_up(0.0, last):
            raise self._ended(
                f"{plural(self._n_ended, 'step')} and {format_seconds(self.spent)}: the last one took "
                f"{format_seconds(last)}"
            )

    def _is_late(self) -> bool:
        return self.spent > LATE * self.prepared_after * self._slowdown

    def prepare(self) -> None:
        """Check the time while a preconditioner is made, of which no residual says anything yet.

        Raises
        ------
        GivenUpError
            If it takes so long that the loss would be too large.
        """
        if self._is_late() and self._is_given_up(0.0, inf) and self._is_late():
            raise self._ended(f"{format_seconds(self.spent)}, since its preconditioner took longer than planned")

    def __call__(self, state: State, tol: float) -> None:
        """Check the residuals after an iteration.

        Parameters
        ----------
        state : State
        tol : float
            Smallest relative residual that is asked for.

        Raises
        ------
        GivenUpError
            If a factorisation is to take over.
        """
        spent = state.spent = self.spent
        self._laps = [*self._laps[-LAPS:], spent]
        if len(self._laps) <= WINDOW:
            return
        residuals = [line.largest for line in state.history if not line.is_true]
        seconds = median(b - a for a, b in zip(self._laps, self._laps[1:], strict=False))
        if state.cycle is not None and len(state.cycle.traced) > WINDOW:  # a cycle restarts with few coefficients
            self._condition = state.cycle.condition()
        fewest, likely = (seconds * n for n in iterations_left(residuals, tol, self._condition))
        if self._is_given_up(fewest, likely):
            hopeless = fewest > self.factor_seconds * self._slowdown / self.n_steps
            least, about = f"takes at least {format_seconds(fewest)}", f"is likely to take {format_seconds(likely)}"
            left = least if hopeless else "has no end in sight" if likely == inf else about
            raise self._ended(
                f"{plural(state.iteration, 'iteration')} and {format_seconds(spent)}, at a relative residual of "
                f"{residuals[-1]:.1e} where {tol:.1e} is asked for: what is left {left}"
            )
