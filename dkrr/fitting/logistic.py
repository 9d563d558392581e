"""Fits of kernel logistic regression: Newton's method on the plan's form, one value of λ after the other."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.context import Context, open_context
from dkrr.fitting.data import LabelledData
from dkrr.fitting.gram import GramMatrix
from dkrr.fitting.iteration import settings_of
from dkrr.fitting.newton_dual import (
    ByDenseFactors,
    ByLowRank,
    ByTiledFactors,
    DualObjective,
    DualPoint,
    Preconditioning,
    Unconditioned,
)
from dkrr.fitting.newton_primal import PrimalObjective
from dkrr.fitting.normal_rows import NormalRows
from dkrr.fitting.results import Solution, fitted_function, result_of
from dkrr.linalg.incore import DenseGram
from dkrr.linalg.likelihood_pass import Passes
from dkrr.model import FittedFunction
from dkrr.planning import Plan
from dkrr.planning.iterative import CURVATURE_SHIFT, INNER_TOL
from dkrr.rows import Rows
from dkrr.rows.checks import digest_of
from dkrr.runtime import Progress
from dkrr.solvers import SolveResult, Status
from dkrr.solvers.newton import PROBABILITY_POWER, Newton, NewtonState, Objective
from dkrr.solvers.result import NewtonStep, Residuals

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Start:
    """Where a fit begins: coefficients of an earlier one, of the plan's form."""

    coef: Array
    """(n, m) or (D, m)."""
    intercept: Array
    """(m,)."""


@dataclass(frozen=True)
class Fitted:
    """One model of a path."""

    alpha: float
    function: FittedFunction
    result: SolveResult
    dual_coef: Array | None
    """α, of shape (n, m); None after a fit in primal form."""
    start: Start
    """From which the next one may begin."""


def fit_path(
    data: LabelledData, plan: Plan, store: str | None, progress: Progress, max_iter: int, start: Start | None = None
) -> list[Fitted]:
    """Carry out a plan for every λ of the data, each from the solution before.

    Parameters
    ----------
    data : LabelledData
    plan : Plan
    store : str or None
        Store that the user gave; None works in a temporary one.
    progress : Progress
    max_iter : int
        Newton steps for each λ.
    start : Start, optional
        Where the first begins; None: at zero.

    Raises
    ------
    DkrrError
        See the errors of dkrr.errors; finished steps stay in a store that the user gave.
    """
    begun = time.perf_counter()
    scaled = data.in_range()
    with open_context(plan, store, progress) as context:
        rows, objective_at = NEWTON_FORMS[plan.form](scaled, plan, context)
        found = _minimise(scaled, plan, context, objective_at, max_iter, start or _zero(data, plan))
    models = []
    for alpha, one in zip(data.alphas, found, strict=True):
        state, point = one.state, one.point
        solution = _solution(plan, rows, point, one)
        function = fitted_function(data, plan, solution, context.temporary)
        result = result_of(
            solution,
            plan,
            context,
            status=one.status,
            iterations=state.step,
            seconds=one.seconds,
            history=tuple(Residuals(s.step, s.seconds, s.gradient, is_true=True) for s in state.history),
            steps=tuple(state.history),
            inner_iterations=one.inner,
            decrement=one.decrement,
            probability_change=one.change,
        )
        models.append(Fitted(alpha, function, result, solution.dual_coef, point))
    if len(models) == 1:
        models = [replace(models[0], result=replace(models[0].result, seconds=time.perf_counter() - begun))]
    if context.temporary is not None and all(m.function.keep_alive is None for m in models):
        context.temporary.delete()
    return models


@dataclass(frozen=True)
class _Found:
    """How the minimisation for one λ ended."""

    point: Start
    status: Status
    state: NewtonState
    seconds: float
    gradient: float
    inner: int
    decrement: float = nan
    change: float = nan

    def plain(self) -> dict[str, Any]:
        """All but the point, as a checkpoint keeps it."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "point"}
        return parts | {"status": self.status.name, "state": _plain_state(self.state)}

    def meets(self, tol: float) -> bool:
        """Whether it would have ended there with this tolerance."""
        return self.gradient <= tol and self.decrement <= tol and self.change <= tol**PROBABILITY_POWER

    @classmethod
    def from_plain(cls, point: Start, plain: dict[str, Any]) -> "_Found":
        """Undo `plain`."""
        return cls(point, **(plain | {"status": Status[plain["status"]], "state": _state_of(plain["state"])}))


def _minimise(
    data: LabelledData,
    plan: Plan,
    context: Context,
    objective_at: Callable[[float, Start], Objective],
    max_iter: int,
    start: Start,
) -> list[_Found]:
    found, state, current, references = _resumed(context, plan.problem.tol, max_iter)
    for alpha in data.alphas[len(found) :]:
        begun = time.perf_counter()
        objective = objective_at(alpha, start if current is None else current)
        objective.begin(references)
        references = objective.references
        save = _saver(context, objective, found)
        outcome = Newton(objective, plan.problem.tol, max_iter, context.progress, save).run(state)
        outcome.state.messages += objective.messages
        point = _point(objective)
        seconds, inner = time.perf_counter() - begun, sum(s.inner_iterations for s in outcome.state.history)
        how = (outcome.gradient, inner, outcome.decrement, outcome.probability_change)
        found.append(_Found(point, outcome.status, outcome.state, seconds, *how))
        start, state, current = point, None, None
        save(None)
    return found


def _point(objective: Objective) -> Start:
    if isinstance(objective, DualObjective):
        return Start(objective.point.coef, objective.point.intercept)
    assert isinstance(objective, PrimalObjective)
    m = objective.point.shape[1]
    if objective.passes.fit_intercept:
        return Start(np.ascontiguousarray(objective.point[:-1]), objective.point[-1].copy())
    return Start(objective.point, np.zeros(m))


def _zero(data: LabelledData, plan: Plan) -> Start:
    m = data.likelihood.n_columns
    n = data.n if plan.form == "dual" else plan.problem.dimension or 0
    return Start(np.zeros((n, m)), np.zeros(m))


def _solution(plan: Plan, rows: Rows | None, point: Start, found: _Found) -> Solution:
    is_dual = plan.form == "dual"
    return Solution(
        dual_coef=point.coef if is_dual else None,
        coef=None if is_dual else point.coef,
        intercept=point.intercept,
        rows=rows,
        residual=found.gradient,
        messages=tuple(dict.fromkeys(found.state.messages)),
    )


def _saver(context: Context, objective: Objective, found: list[_Found]) -> Callable[[NewtonState | None], None]:
    """What saves a checkpoint: after a step with its state, after the last one of a λ with None."""
    checkpoints = context.checkpoints
    if checkpoints is None:
        return lambda _: None

    def save(state: NewtonState | None) -> None:
        arrays: dict[str, Array] = {"references": objective.references[None, :]}
        if state is None:
            checkpoints.keep(f"model-{len(found) - 1}", _arrays_of(found[-1].point))
        else:
            point = _point(objective)
            arrays |= _arrays_of(point)
            if isinstance(objective, DualObjective):
                arrays |= {"scores": objective.point.scores, "gradients": objective.gradients[None, :]}
        plain = {
            "state": None if state is None else _plain_state(state),
            "done": [done.plain() for done in found],
        }
        checkpoints.write(arrays, plain)

    return save


def _arrays_of(point: Start) -> dict[str, Array]:
    return {"coef": point.coef, "intercept": point.intercept[None, :]}


def _plain_state(state: NewtonState) -> dict[str, Any]:
    return asdict(state)


def _state_of(plain: dict[str, Any]) -> NewtonState:
    return NewtonState(**{**plain, "history": [NewtonStep(**line) for line in plain["history"]]})


@dataclass(frozen=True)
class _Resumed(Start):
    """A start with its scores and gradients, so that a run goes on with the bits of the one before."""

    scores: Array | None = None
    gradients: Array | None = None


def _resumed(
    context: Context, tol: float, max_iter: int
) -> tuple[list[_Found], NewtonState | None, Start | None, Array | None]:
    """Models that are done, and the state, point and references that the next one goes on from."""
    checkpoints, progress = context.checkpoints, context.progress
    read = None if checkpoints is None else checkpoints.read()
    if checkpoints is not None and checkpoints.damage:
        progress.note(checkpoints.damage)
        return [], NewtonState(messages=[checkpoints.damage]), None, None
    if read is None:
        return [], None, None, None
    arrays, plain = read
    found: list[_Found] = []
    for k, done in enumerate(plain["done"]):
        kept = checkpoints.kept(f"model-{k}") if checkpoints is not None else None
        if kept is None:
            break
        found.append(_Found.from_plain(Start(kept["coef"], kept["intercept"][0]), done))
    references = arrays["references"][0]
    for k, one in enumerate(found):
        stopped = one.status is Status.MAX_ITERATIONS and one.state.step < max_iter
        if stopped or (one.status is Status.CONVERGED and not one.meets(tol)):
            # It was not finished: a larger max_iter or a smaller tol is wanted now.
            return found[:k], replace(one.state, useless=0, recompute=False, least=None), one.point, references
    if plain["state"] is None or len(found) < len(plain["done"]):
        damage = checkpoints.damage if checkpoints is not None else ""
        return found, NewtonState(messages=[damage]) if damage else None, found[-1].point if found else None, references
    state = _state_of(plain["state"])
    progress.note(f"going on after Newton step {state.step}")
    gradients = arrays["gradients"][0] if "gradients" in arrays else None
    return found, state, _Resumed(arrays["coef"], arrays["intercept"][0], arrays.get("scores"), gradients), references


def _dual(data: LabelledData, plan: Plan, context: Context) -> tuple[Rows | None, Callable[[float, Start], Objective]]:
    """Training rows, and objectives in the dual form that share K and what preconditions their systems."""
    matrix, c = GramMatrix(data, plan, context, None), plan.chosen
    gram, largest = matrix.operator(), float(np.abs(matrix.diagonal()).max())
    preconditioning = _preconditioning(data, plan, context, matrix, gram)

    def objective(alpha: float, start: Start) -> Objective:
        scores = start.scores if isinstance(start, _Resumed) else None
        gradients = start.gradients if isinstance(start, _Resumed) else None
        return DualObjective(
            data=data,
            alpha=alpha,
            gram=gram,
            preconditioning=preconditioning,
            largest=max(largest, 1e-300),
            mixed=c.solver == "cg" and c.precision == "float32" and not c.has_factor,
            max_iterations=settings_of(plan).max_iterations,
            point=DualPoint(start.coef, start.intercept, np.empty((0, 0)) if scores is None else scores, gradients),
            progress=context.progress,
            unit=data.unit,
        )

    return matrix.rows, objective


def _preconditioning(
    data: LabelledData, plan: Plan, context: Context, matrix: GramMatrix, gram: Any
) -> Preconditioning:
    if isinstance(gram, DenseGram):
        return ByDenseFactors(gram)
    if plan.chosen.solver == "cg" and not plan.chosen.has_factor:
        if plan.chosen.rank_limit == 0:
            return Unconditioned()
        shift = CURVATURE_SHIFT[plan.problem.is_coupled] * min(data.alphas)
        return ByLowRank(matrix.partial_factor(data.weights, shift, INNER_TOL, plan.problem.n_steps))
    groups: list[str] = []

    def factor(number: int, shift: Array) -> Callable[[Array], Array]:
        # Tiles of another diagonal, left by a run whose checkpoint was lost, are not taken for this one's.
        groups.append(f"newton-{number}-{digest_of(shift)[:12]}")
        return matrix.factor(groups[-1], shift, family="newton", name=f"factorisation, model {number + 1}").apply

    def clear() -> None:
        while groups:
            context.storage.delete(groups.pop())

    return ByTiledFactors(factor, clear)


def _primal(
    data: LabelledData, plan: Plan, context: Context
) -> tuple[Rows | None, Callable[[float, Start], Objective]]:
    """Objectives in the primal form that pass over the same segments of the rows."""
    rows = NormalRows(data, plan, context, "labels", data.codes[:, None].astype(np.float64))
    curvature = "matrix" if plan.solver == "cholesky" else "diagonal"
    passes = Passes(rows.phi, data.likelihood, data.rows.shape[1], data.fit_intercept, curvature)  # type: ignore[arg-type]
    segments, settings = rows.segments(plan.chosen.row_parts), settings_of(plan)

    def objective(alpha: float, start: Start) -> Objective:
        point = np.vstack([start.coef, start.intercept]) if data.fit_intercept else start.coef
        return PrimalObjective(
            passes=passes,
            segments=segments,
            executor=context.executor,
            alpha=alpha,
            max_iterations=settings.max_iterations,
            is_preconditioned=settings.preconditioner is not None,
            point=point,
            progress=context.progress,
            least_weight=1.0 if data.weights is None else float(data.weights[data.weights > 0].min(initial=np.inf)),
            record=context.record,
            unit=data.unit,
        )

    return None, objective


NEWTON_FORMS = {"dual": _dual, "primal": _primal}
