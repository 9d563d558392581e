"""Outcomes of a solve: status, residuals, stages; and errors in the terms of the user's problem."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from math import nan
from typing import Any, Literal

from dkrr.cluster import RunRecord
from dkrr.cost import STAGE_NAMES, Stage
from dkrr.errors import NotPositiveDefiniteError
from dkrr.text import Explained, format_bytes, format_seconds, plural


class Status(Enum):
    """Outcome of a solve; the value is what to make of it.

    Attributes
    ----------
    SOLVED : Status
        A direct solver's answer is exact to rounding.
    INACCURATE : Status
        A direct solver's answer has a large residual: the system is too ill-conditioned.
    CONVERGED : Status
        An iterative solver has met the tolerance.
    STALLED : Status
        An iterative solver has not met the tolerance, and no further iteration would.
    MAX_ITERATIONS : Status
        An iterative solver has stopped at `max_iter`, before it met the tolerance.

    See Also
    --------
    dkrr.solvers.SolveResult : What a fit reports of its work.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> from dkrr.solvers import Status
    >>> status = KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0]).solve_result_.status
    >>> status is Status.SOLVED, status.is_good
    (True, True)
    """

    SOLVED = "solved; the true residual is at the level of rounding"
    INACCURATE = (
        "solved, but the system is so ill-conditioned that the true residual is large; "
        "increase alpha, or scale the columns of X"
    )
    CONVERGED = "converged: the true residual is what was asked for"
    STALLED = (
        "stalled: the true residual is above what was asked for, and no iteration makes it smaller. This is the "
        "smallest residual that these settings can reach: increase tol or alpha, give the preconditioner a larger rank "
        "or the fit more memory, or use solver='cholesky'"
    )
    MAX_ITERATIONS = (
        "stopped at max_iter with a true residual above what was asked for: raise max_iter (with store= a fit resumes "
        "where it stopped), increase tol or alpha, or give the preconditioner a larger rank"
    )

    @property
    def is_good(self) -> bool:
        """Whether the answer is what was asked for."""
        return self in (Status.SOLVED, Status.CONVERGED)

    def __reduce__(self) -> tuple[type, tuple[str]]:
        # For skops, which does not ask Enum's __reduce_ex__.
        return Status, (self.value,)


@dataclass(frozen=True)
class Residuals:
    """Entry of a convergence history.

    Attributes
    ----------
    iteration : int
        Number of the iteration.
    seconds : float
        Seconds since the iteration began (in the run that wrote this line).
    largest : float
        Largest relative residual over the right-hand sides.
    is_true : bool
        Computed from A in float64; otherwise by the recurrence.
    """

    iteration: int
    seconds: float
    largest: float
    is_true: bool


@dataclass(frozen=True)
class NewtonStep:
    """Entry of the history of Newton's method.

    Attributes
    ----------
    step : int
        Number of the step.
    seconds : float
        Seconds since the minimisation began (in the run that wrote this line).
    objective : float
        Penalised negative log likelihood after the step, summed over one-vs-rest models.
    gradient : float
        Largest norm of its gradient, relative to that where all scores are 0.
    length : float
        Shortest step length of any model; 1 where the line search had nothing to shorten.
    n_open : int
        Models that were not done yet.
    inner_iterations : int
        Iterations of conjugate gradient for this step.
    decrement : float
        Largest ½ gᵀH⁻¹g relative to the objective, before the step: what a quadratic model says that it takes off.
    """

    step: int
    seconds: float
    objective: float
    gradient: float
    length: float
    n_open: int
    inner_iterations: int
    decrement: float = nan


CAUTION_ABOVE = 1e-4
"""Condition number times the unit of rounding above which coefficients get a message: fewer than four digits are
sure."""
INACCURATE_ABOVE = 1e-6
"""Relative residual above which a direct solution is called inaccurate: rounding alone stays far below unless the
system is close to singular."""


DUAL_SYSTEM, NORMAL_EQUATIONS, GRADIENT = "dual system", "normal equations", "gradient of the objective"
"""Systems whose residual a result may state."""


@dataclass(frozen=True, repr=False)
class SolveResult(Explained):
    """Report of a fit: its work, and how good its answer is.

    ``str(result)`` explains it, as a notebook does.

    Attributes
    ----------
    status : Status
        Outcome; its value says what to make of it.
    residual : float
        Largest true relative residual over the targets, computed from the matrix itself; `residual_of` says of what.

        "dual system": ‖√W (y − b − (K + λW⁻¹) α)‖ / ‖√W y‖ for the dual coefficients that are reported, y less its mean
        with an intercept b; on a Fourier grid with what its error and rounding may add; by conjugate gradient in
        primal form without the weights too, over the rows that have one, if that is larger. "normal equations", of a
        factor in primal form: ‖ΦᵀWy − (ΦᵀWΦ + λI) w‖ / ‖ΦᵀWy‖ (where a target has no part in any feature, of the
        largest such norm for its length) or, if it is above 1e-6, a bound of what this residual changes in predictions
        at the training rows, relative to the targets; that bound, too, by conjugate gradient in primal form where λ is
        0, or where it is met and the residual of the dual system is not, as with a small λ. Of kernel logistic
        regression the norm of the "gradient of the objective" in the kernel's space, relative to that where all scores
        are 0.
    iterations : int
        Iterations of conjugate gradient, also those that refine a factor in float32 (0 with a factor in float64); for
        kernel logistic regression, steps of Newton's method.
    seconds : float
        Wall time of the fit, in seconds.
    bytes_read : int
        Bytes read from the store, by all workers.
    bytes_written : int
        Bytes written to the store, by all workers.
    peak_bytes : int
        Highest resident memory of any process that did the work (of a user's workers: since they started). Pages of
        mapped files are part of it, which the system takes back where memory is short; plans count them as disk.
    seconds_by_kind : dict of str to float
        Worker-seconds by kind of work (read, gemm, idle ...); empty for work in memory.
    residual_of : str
        What `residual` is of: "dual system", "normal equations" or "gradient of the objective".
    residuals : tuple of float
        `residual` of every target; of a direct solver in dual form, that of all targets with its λ.
    condition : float
        Estimate of the condition number κ₂ of the matrix that was solved for, the largest over the values of λ; NaN
        where none is known. Of a direct solver, and of conjugate gradient in primal form with its preconditioner, it is
        of the matrix with its diagonal scaled to ones, from below and mostly within a factor of ten. Rounding leaves a
        relative error in `dual_coef_` (in primal form in `coef_`) of up to about 2.2e-16 times this number; predictions
        at the training rows are right to the residual all the same.
    rank : int
        Columns of the preconditioner's factor.
    history : tuple of Residuals
        Residuals of an iterative solver, iteration by iteration: `iteration`, `seconds`, `largest`, `is_true`.
    messages : tuple of str
        What an iterative solver did on its way (growth of the preconditioner, changes of precision), and what rounding
        leaves uncertain: coefficients, `rkhs_norm_`.
    steps : tuple of NewtonStep
        Steps of Newton's method, for kernel logistic regression: `step`, `seconds`, `objective`, `gradient`, `length`,
        ...
    inner_iterations : int
        Iterations of conjugate gradient within all Newton steps.
    decrement : float
        For kernel logistic regression, bound of ½ gᵀH⁻¹g (half of Newton's decrement) relative to the objective, which
        is how far that is above its minimum; in the primal form with conjugate gradient an estimate from the last step.
        Largest of the models; infinite where the gradient is too large already.
    probability_change : float
        For kernel logistic regression, bound of what one more step of Newton's method would change in any probability
        of a training row with a weight, 1 at most; an estimate where `decrement` is one.
    stages : tuple of Stage
        Wall time of the stages that were measured, by the names of the plan's (`plan_.chosen.stages`); of a path over
        alphas those of the whole path.
    record : RunRecord
        Every task: when, where, how long.

    See Also
    --------
    dkrr.solvers.Status : How a solve ended.
    dkrr.planning.Plan : The plan of a fit.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> result = KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0]).solve_result_
    >>> result.status.name, result.residual < 1e-12, result.residual_of
    ('SOLVED', True, 'dual system')
    """

    status: Status
    residual: float
    iterations: int
    seconds: float
    bytes_read: int
    bytes_written: int
    peak_bytes: int
    seconds_by_kind: dict[str, float] = field(default_factory=dict)
    residual_of: str = DUAL_SYSTEM
    residuals: tuple[float, ...] = ()
    condition: float = math.nan
    rank: int = 0
    history: tuple[Residuals, ...] = field(default=(), repr=False)
    messages: tuple[str, ...] = ()
    steps: tuple[NewtonStep, ...] = field(default=(), repr=False)
    inner_iterations: int = 0
    decrement: float = nan
    probability_change: float = nan
    stages: tuple[Stage, ...] = field(default=(), repr=False)
    record: RunRecord = field(default_factory=RunRecord, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Result as values of JSON, without `record`; None in place of a number that is not finite."""
        return {
            "status": self.status.name,
            "residual": _finite(self.residual),
            "residual_of": self.residual_of,
            "condition": _finite(self.condition),
            "iterations": self.iterations,
            "rank": self.rank,
            "messages": list(self.messages),
            "steps": [{name: _finite(value) for name, value in asdict(step).items()} for step in self.steps],
            "history": [[h.iteration, h.seconds, _finite(h.largest), h.is_true] for h in self.history],
            "seconds": self.seconds,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "peak_bytes": self.peak_bytes,
            "stages": [asdict(stage) for stage in self.stages],
        }

    def _summary(self) -> str:
        what = "gradient" if self.steps else "residual"
        cost = f"{format_seconds(self.seconds)}, {format_bytes(self.peak_bytes)} peak"
        return f"{self.status.name}, {what} {self.residual:.1e}, {cost}"

    def __str__(self) -> str:
        return self.explained()

    def explained(self, planned: Sequence[Stage] = ()) -> str:
        """Result in lines, with the planned time of every stage beside the measured one.

        Parameters
        ----------
        planned : sequence of Stage, default=()
            Those of the plan: ``plan_.chosen.stages``.

        Returns
        -------
        str
            Text as `str` gives it, with the planned times.
        """
        relative = "relative to that at scores of 0" if self.steps else f"true, relative, of the {self.residual_of}"
        what = self.status.value.replace("true residual", "relative gradient") if self.steps else self.status.value
        lines = [
            f"dkrr result: {self.status.name}",
            f"  status      {what}",
            f"  {'gradient' if self.steps else 'residual'}    {self.residual:.1e} ({relative})",
            *([] if math.isnan(self.condition) else [f"  condition   {self.condition:.1e} (estimated)"]),
            *([f"  work        {self._iterations()[2:]}"] if self.iterations else []),
            *([f"  objective   {self.steps[-1].objective:.8g}"] if self.steps else []),
            f"  time        {format_seconds(self.seconds)}",
            f"  memory      {format_bytes(self.peak_bytes)} peak of a process",
            f"  store       {format_bytes(self.bytes_written)} written, {format_bytes(self.bytes_read)} read",
        ]
        found = {stage.name: stage.seconds for stage in self.stages}
        sums: dict[str, float] = {}
        for stage in planned:
            sums[stage.name] = sums.get(stage.name, 0.0) + stage.seconds
        expected = {name: f" (planned {format_seconds(seconds)})" for name, seconds in sums.items()}
        names = [name for name in STAGE_NAMES if name in found]
        for title, items in (
            ("stages", [f"{name}: {format_seconds(found[name])}{expected.get(name, '')}" for name in names]),
            ("notes", self.messages),
        ):
            lines += [f"  {title}", *(f"    - {item}" for item in items)] if items else []
        return "\n".join(lines)

    def _iterations(self) -> str:
        """Number of iterations or of steps, after a comma; empty for a direct solution."""
        if self.steps:
            inner = (
                f", {plural(self.inner_iterations, 'iteration')} of conjugate gradient" if self.inner_iterations else ""
            )
            return f", {plural(self.iterations, 'Newton step')}{inner}"
        if not self.iterations:
            return ""
        return f", {plural(self.iterations, 'iteration')}" + (
            f", preconditioner of rank {self.rank:,}" if self.rank else ""
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def is_doubtful(condition: float) -> bool:
    """Whether rounding may leave fewer than four digits of coefficients, by a condition number."""
    return condition * sys.float_info.epsilon > CAUTION_ABOVE


def caution(condition: float, form: str, status: Status) -> tuple[str, ...]:
    """Message about coefficients whose digits may be wrong; empty without such."""
    if not is_doubtful(condition):
        return ()
    names, claim = "dual_coef_", "are unaffected: the true residual bounds their error"
    if form == "primal":
        names, claim = (
            "coef_ (and with it dual_coef_)",
            "of the median weight and above are right all the same" if status.is_good else "",
        )
    text = (
        f"{names} may be off by as much as {_fraction(condition * sys.float_info.epsilon)}: the matrix's condition "
        f"number is about {condition:.1e}"
    )
    claim = f"Predictions at the training rows {claim}; a" if claim else "A"
    return (f"{text}. {claim} larger alpha makes coefficients certain",)


def inexact_duals(error: float) -> tuple[str, ...]:
    """Message about the error of dual coefficients, relative to their length; empty if that is small."""
    if not error > CAUTION_ABOVE:
        return ()
    return (
        f"dual_coef_ may be off by as much as {_fraction(error)}: it follows from errors at the training rows, of "
        f"which large weights over alpha leave few digits. Predictions use coef_; form='dual' makes both certain",
    )


def _fraction(error: float) -> str:
    return f"{error:.0e} of its length" if error < 1 else "all of its length"


def direct_status(residual: float) -> Status:
    """Status of a direct solve with this relative residual."""
    return Status.SOLVED if residual <= INACCURATE_ABOVE else Status.INACCURATE


@contextmanager
def in_terms_of_alpha(
    alphas: Iterable[float], form: Literal["dual", "primal"], scale: Callable[[], str] = str
) -> Iterator[None]:
    """Raise an error of a matrix that is not positive definite in the terms of the user's problem.

    Parameters
    ----------
    alphas : iterable of float
        Values of λ that are solved for.
    form : {"dual", "primal"}
    scale : callable
        Gives a sentence on the scale of the data, which is only asked for after an error.
    """
    try:
        yield
    except NotPositiveDefiniteError as error:
        text = " ".join(filter(None, (_explained(error, alphas, form), scale())))
        raise NotPositiveDefiniteError(text, error.row) from None


def _explained(error: NotPositiveDefiniteError, alphas: Iterable[float], form: Literal["dual", "primal"]) -> str:
    matrix, what = ("K + λI", "row") if form == "dual" else ("ΦᵀΦ + λI", "feature")
    alphas = list(alphas)
    if min(alphas) > 0:
        remedy = (
            "The kernel is not positive semidefinite on these rows, or λ is below what rounding in K allows: increase "
            "alpha, or use a positive semidefinite kernel"
        )
    elif form == "dual":
        remedy = (
            "With λ = 0 the Gram matrix itself must be positive definite: remove duplicate rows, use a kernel of "
            "full rank, or set alpha > 0"
        )
    else:
        remedy = "With λ = 0 the features must be linearly independent: remove dependent columns, or set alpha > 0"
    values = ", ".join(f"{a:g}" for a in alphas)
    if error.row < 0:  # of an iteration, which meets no pivots
        return (
            f"{matrix} with λ = alpha = {values}: {error}. {remedy}. dkrr never adds its own jitter; "
            f"checkpoints in a given store are kept."
        )
    return (
        f"{matrix} is not positive definite with λ = alpha = {values}: the pivot of {what} {error.row} (counted "
        f"from 0) is not positive. {remedy}. dkrr never adds its own jitter."
    )
