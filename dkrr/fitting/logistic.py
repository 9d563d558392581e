"""Fits of kernel logistic regression: Newton's method on the plan's form, one value of λ after the other.

The way to solve makes the objective. A path is solved from one λ to the next, with a checkpoint after each.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress
from dkrr.data import Rows
from dkrr.fitting.context import Context, open_context
from dkrr.fitting.data import LabelledData
from dkrr.fitting.growing_iterations import BeforeGrowth, read_before
from dkrr.fitting.iteration import grown_rows, watch_of
from dkrr.fitting.objectives import FormObjective, ObjectiveAt
from dkrr.fitting.requests import FitRequest, WarmStart
from dkrr.fitting.results import FittedModel, Solution, fitted_function, result_of
from dkrr.fitting.storage import Checkpoints
from dkrr.linalg.giving_up import GivenUpError
from dkrr.linalg.newton import (
    PROBABILITY_POWER,
    Newton,
    NewtonOutcome,
    NewtonState,
    Objective,
    Point,
)
from dkrr.linalg.result import GRADIENT, Residuals, SolveResult, Status
from dkrr.planning import Plan
from dkrr.text import plural

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PathPoint:
    """Solution for one λ."""

    point: Point
    outcome: NewtonOutcome
    seconds: float

    @property
    def inner_iterations(self) -> int:
        """Iterations of conjugate gradient, over all steps."""
        return sum(step.inner_iterations for step in self.outcome.state.history)

    def is_finished(self, tol: float, max_iter: int) -> bool:
        """Whether a run with these settings would have ended here, too."""
        o = self.outcome
        if o.status is Status.MAX_ITERATIONS:
            return o.state.step >= max_iter
        within = o.gradient <= tol and o.decrement <= tol and o.probability_change <= tol**PROBABILITY_POWER
        return o.status is not Status.CONVERGED or within

    def to_plain(self) -> dict[str, Any]:
        """All but the point, as JSON takes it."""
        return {"outcome": self.outcome.to_plain(), "seconds": self.seconds}

    @classmethod
    def from_plain(cls, point: Point, plain: dict[str, Any]) -> "PathPoint":
        """Undo `to_plain`."""
        return cls(point, NewtonOutcome.from_plain(plain["outcome"]), plain["seconds"])


@dataclass(frozen=True)
class PathState:
    """Progress of a path over λ, as a checkpoint has it."""

    done: tuple[PathPoint, ...] = ()
    point: Point | None = None
    """Starting point of the next step, or of the next λ; None: the start that was given."""
    newton: NewtonState | None = None
    """State of the run for the λ after those that are done; None: it has not begun."""
    references: Array | None = None
    """Norms of the gradient at zero, of shape (n_systems,), the same for every λ."""

    def save(self, checkpoints: Checkpoints | None) -> None:
        """Write a checkpoint: after a step, or after the last one of a λ (without `newton`)."""
        if checkpoints is None:
            return
        assert self.references is not None
        arrays = {"references": self.references[None, :]}
        if self.newton is None:
            checkpoints.keep(f"{MODEL}{len(self.done) - 1}", self.done[-1].point.arrays())
        else:
            assert self.point is not None
            arrays |= self.point.arrays()
        state = None if self.newton is None else asdict(self.newton)
        shown = {"models done": len(self.done)} | ({} if state is None else {"Newton step": state["step"]})
        checkpoints.write(arrays, {"state": state, "done": [one.to_plain() for one in self.done]}, shown)

    @classmethod
    def resumed(cls, checkpoints: Checkpoints, tol: float, max_iter: int) -> "PathState":
        """Read the last checkpoint, for a run with these settings; what is damaged is computed again."""
        found = checkpoints.read(lambda arrays, plain: cls._of(checkpoints, arrays, plain, tol, max_iter))
        return cls(newton=_told_of(checkpoints.damage)) if found is None else found

    @classmethod
    def _of(
        cls, checkpoints: Checkpoints, arrays: dict[str, Array], plain: dict[str, Any], tol: float, max_iter: int
    ) -> "PathState":
        done = _read_done(checkpoints, plain["done"])
        references = arrays["references"][0]
        for k, one in enumerate(done):
            if not one.is_finished(tol, max_iter):  # a larger max_iter or a smaller tol is wanted now
                newton = replace(one.outcome.state, useless=0, recompute=False, least=None)
                return cls(done[:k], one.point, newton, references)
        if plain["state"] is None or len(done) < len(plain["done"]):
            return cls(done, done[-1].point if done else None, _told_of(checkpoints.damage), references)
        return cls(done, Point.from_arrays(arrays), NewtonState.from_plain(plain["state"]), references)


def _points_before(before: BeforeGrowth) -> tuple[Point, ...]:
    """Solutions, λ by λ, that the run had before it grew, or the point that it had come to."""
    found, points = before.checkpoint(), list[Point]()
    if found is None:
        return ()
    arrays, plain = found
    for k in range(len(plain["done"])):
        kept = before.kept(f"{MODEL}{k}")
        if kept is None:
            return tuple(points)
        points.append(Point(kept["coef"], kept["intercept"][0]))
    if not points and plain["state"] is not None:
        points.append(Point(arrays["coef"], arrays["intercept"][0]))
    return tuple(points)


def grown_point(point: Point, n: int, weights: Array | None) -> Point:
    """Point of the dual form whose coefficients are those of the first rows, and 0 of the others and of weight 0."""
    coef = grown_rows(point.coef, n)
    if weights is not None:
        coef[weights == 0] = 0.0
    return Point(coef, point.intercept)


def _first_guesses(checkpoints: Checkpoints, data: LabelledData, plan: Plan) -> tuple[Point, ...]:
    """Starting points for the λ of a run that has grown."""
    n, m = plan.priced.matrix_size(plan.form), data.likelihood.n_columns
    found = [
        one
        for one in read_before(checkpoints.store, _points_before) or ()
        if one.coef.shape[1] == m and len(one.coef) <= n
    ]
    if plan.form == "dual":
        return tuple(grown_point(one, n, data.weights) for one in found)
    return tuple(one for one in found if len(one.coef) == n)


def _read_done(checkpoints: Checkpoints, plain: Sequence[dict[str, Any]]) -> tuple[PathPoint, ...]:
    """Solutions up to the first that cannot be read."""
    done: list[PathPoint] = []
    for k, one in enumerate(plain):
        arrays = checkpoints.kept(f"{MODEL}{k}")
        if arrays is None:
            break
        done.append(PathPoint.from_plain(Point.from_arrays(arrays), one))
    return tuple(done)


def _told_of(damage: str) -> NewtonState | None:
    """State of a run that begins with this message; None if it is empty."""
    return NewtonState(messages=[damage]) if damage else None


MODEL = "model-"
"""Beginning of the names of solutions in a store, before the number of their λ."""
GREW = "Newton's method began with the solution that the run in this store had before"

ADVICE = {
    Status.STALLED: (
        "stalled, since no step comes closer. This is the smallest gradient that rounding and the solver of the "
        "Newton systems allow: increase tol or alpha; with conjugate gradient raise its max_iter, or use "
        "solver='cholesky'"
    ),
    Status.MAX_ITERATIONS: (
        "stopped at max_iter. Raise it (with store= a fit resumes where it stopped), or increase alpha: where the "
        "classes are separable, scores grow without bound as alpha goes to 0"
    ),
}


def fit_path(request: FitRequest, data: LabelledData, plan: Plan, progress: Progress) -> tuple[FittedModel, ...]:
    """Carry out a plan for every λ of the data, each from the solution before.

    The first begins where the request says, if it fits the plan, else at zero. Steps that are finished before an error
    stay in a store that the user gave.
    """
    begun = time.perf_counter()
    start = request.start.for_plan(plan) if isinstance(request.start, WarmStart) else None
    with open_context(plan, request.settings.store, progress, request.settings.max_iter) as context:
        context.watch = None if plan.chosen.otherwise is None else watch_of(plan, plan.chosen.otherwise)
        made: FormObjective = plan.chosen.method.objective(data, plan, context)
        path = request.start if isinstance(request.start, PathState) else PathState()
        found = _minimise(data, plan, context, made.objective, request.settings.max_iter, start, path)
        of_near = [
            None if made.near is None else made.near(alpha, one.point)
            for alpha, one in zip(data.alphas, found, strict=True)
        ]
    models = [
        _fitted_model(data, plan, context, made.rows, one, near) for one, near in zip(found, of_near, strict=True)
    ]
    if len(models) == 1:
        models = [replace(models[0], result=replace(models[0].result, seconds=time.perf_counter() - begun))]
    if context.temporary is not None and all(m.function.keep_alive is None for m in models):
        context.temporary.delete()
    return tuple(models)


def shortfall(result: SolveResult, plan: Plan) -> str:
    """Words for a result that is less accurate than requested."""
    tol = plan.problem.tol
    steps = plural(result.iterations, "Newton step")
    text = f"relative gradient {result.residual:.1e} after {steps}, where {tol:.1e} was asked: "
    return text + _beyond_the_gradient(result, tol) + ADVICE[result.status]


def _beyond_the_gradient(result: SolveResult, tol: float) -> str:
    """Why a gradient that is small enough does not suffice; empty where it is too large."""
    if result.residual > tol:
        return ""
    left = "an unknown part of the objective"
    if np.isfinite(result.decrement):
        left = f"up to {result.decrement:.1e} of the objective and {result.probability_change:.1e} of a probability"
    return (
        f"but the objective is so flat there (alpha is tiny, or weights span many orders of magnitude) that a small "
        f"gradient does not mean a minimum: {left} may be left, where {tol:.1e} and {tol**PROBABILITY_POWER:.1e} are "
        f"allowed; "
    )


def _fitted_model(
    data: LabelledData, plan: Plan, context: Context, rows: Rows | None, found: PathPoint, near: Array | None
) -> FittedModel:
    outcome, state, point, is_dual = found.outcome, found.outcome.state, found.point, plan.form == "dual"
    solution = Solution(
        dual_coef=point.coef if is_dual else None,
        coef=None if is_dual else point.coef,
        intercept=point.intercept,
        rows=rows,
        near=near,
        residual=outcome.gradient,
        residual_of=GRADIENT,
        messages=tuple(dict.fromkeys(state.messages)),
    )
    result = result_of(
        solution,
        plan,
        context,
        status=outcome.status,
        iterations=state.step,
        seconds=found.seconds,
        history=tuple(Residuals(s.step, s.seconds, s.gradient, is_true=True) for s in state.history),
        steps=tuple(state.history),
        inner_iterations=found.inner_iterations,
        decrement=outcome.decrement,
        probability_change=outcome.probability_change,
    )
    model = fitted_function(data, plan, solution, context.temporary)
    return FittedModel(model, result, solution.dual_coef, start=point)


def _minimise(
    data: LabelledData,
    plan: Plan,
    context: Context,
    objective_at: ObjectiveAt,
    max_iter: int,
    start: Point | None,
    path: PathState,
) -> tuple[PathPoint, ...]:
    """Solutions for all λ, each from the one before, from the last checkpoint on, or from a point of the path."""
    tol, checkpoints, progress = plan.problem.tol, context.checkpoints, context.progress
    guesses: tuple[Point, ...] = ()
    if checkpoints is not None:
        path = PathState.resumed(checkpoints, tol, max_iter)
        guesses = _first_guesses(checkpoints, data, plan) if path.references is None else ()
    if checkpoints is not None and path.newton is not None:
        progress.note(checkpoints.damage or f"resuming after Newton step {path.newton.step}")
    if start is None:
        n, m = plan.priced.matrix_size(plan.form), data.likelihood.n_columns
        start = Point(np.zeros((n, m)), np.zeros(m))
    for alpha in data.alphas[len(path.done) :]:
        begun = time.perf_counter()
        context.storage.note_stage("Newton steps")
        state, objective = path.newton or NewtonState(), None
        point = path.point or start
        if len(path.done) < len(guesses):
            point = guesses[len(path.done)]
            state.messages.append(GREW)
        try:
            with progress.measured("Newton steps"):
                objective = objective_at(alpha, point, path.references)
                save = partial(_save_step, checkpoints, objective, path.done)
                outcome = Newton(objective, tol, max_iter, progress, save).run(state)
        except GivenUpError as error:
            error.reached = path
            if objective is not None:
                state.messages += objective.messages
                error.reached = PathState(path.done, objective.point, state, objective.references)
            raise
        outcome.state.messages += objective.messages
        point = Point(objective.point.coef, objective.point.intercept)  # scores and gradients are those of this λ
        found = PathPoint(point, outcome, time.perf_counter() - begun)
        path = PathState((*path.done, found), point, None, objective.references)
        path.save(checkpoints)
    return path.done


def _save_step(
    checkpoints: Checkpoints | None, objective: Objective, done: tuple[PathPoint, ...], state: NewtonState
) -> None:
    PathState(done, objective.point, state, objective.references).save(checkpoints)
