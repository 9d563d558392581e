"""Fits of kernel logistic regression: Newton's method on the plan's form, one value of λ after the other."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.checkpoint import Checkpoints
from dkrr.fitting.data import LabelledData
from dkrr.fitting.execute import fitted_function
from dkrr.fitting.factored import BROKE_DOWN, complete_factor
from dkrr.fitting.iterative import (
    Team,
    check_symmetry,
    gram_operator,
    pivoted_factor,
    rates_of_growth,
    run_name,
    settings_of,
)
from dkrr.fitting.memory import loaded, whole_gram
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
from dkrr.fitting.sampled import by_name
from dkrr.fitting.solution import DualSolution, PrimalSolution
from dkrr.fitting.workspace import Workspace, open_workspace
from dkrr.linalg.columns import ColumnSource
from dkrr.linalg.incore import DenseGram
from dkrr.linalg.likelihood_pass import Passes
from dkrr.linalg.normal import Segment
from dkrr.linalg.operator import ResidentRows
from dkrr.linalg.preconditioner import pays_no_more
from dkrr.model import FittedFunction
from dkrr.planning import Plan
from dkrr.rows import Rows, scan
from dkrr.rows.checks import digest_of
from dkrr.runtime import Meter, Progress, RunRecord
from dkrr.runtime.task import peak_resident_bytes, reset_peak
from dkrr.solvers import SolveResult, Status
from dkrr.solvers.newton import CURVATURE_SHIFT, INNER_TOL, PROBABILITY_POWER, Newton, NewtonState, Objective
from dkrr.solvers.result import NewtonStep, Residuals
from dkrr.tiles import TileGrid

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


@dataclass
class _Room:
    """Everything that serves all values of λ of one run."""

    rows: Rows
    objective: Callable[[float, Start], Objective]
    checkpoints: Checkpoints | None = None
    record: RunRecord = field(default_factory=RunRecord)
    meter: Meter = field(default_factory=Meter)
    owner: Any = None
    """Of the temporary folder that `rows` lie in, if any."""
    settle: Callable[[], None] = lambda: None
    """Called after the work: counts what processes read once and keep."""


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
    if plan.execution != "dask":
        reset_peak()
    scaled = data.in_range()
    with _room(scaled, plan, store, progress) as room:
        found = _minimise(scaled, plan, room, progress, max_iter, start or _zero(data, plan))
        room.settle()
        peak = peak_resident_bytes() if plan.execution == "memory" else room.record.peak_bytes
        models, stages = [], progress.take_stages()
        for alpha, one in zip(data.alphas, found, strict=True):
            state, point = one.state, one.point
            solution = _solution(plan, room.rows, point, one.gradient)
            function = fitted_function(data, plan, solution, room.owner)
            result = SolveResult(
                status=one.status,
                residual=one.gradient,
                iterations=state.step,
                seconds=one.seconds,
                bytes_read=room.record.bytes_read + room.meter.bytes_read,
                bytes_written=room.record.bytes_written + room.meter.bytes_written,
                peak_bytes=peak,
                seconds_by_kind=room.record.seconds_by_kind() if room.record.tasks else {},
                history=tuple(Residuals(s.step, s.seconds, s.gradient, is_true=True) for s in state.history),
                messages=tuple(dict.fromkeys(state.messages)),
                steps=tuple(state.history),
                inner_iterations=one.inner,
                decrement=one.decrement,
                probability_change=one.change,
                stages=stages,
                record=RunRecord(room.record.seconds, [replace(t, value=None) for t in room.record.tasks]),
            )
            models.append(Fitted(alpha, function, result, solution.dual_coef, point))
    if len(models) == 1:
        models = [replace(models[0], result=replace(models[0].result, seconds=time.perf_counter() - begun))]
    if room.owner is not None and all(m.function.keep_alive is None for m in models):
        room.owner.delete()
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
    data: LabelledData, plan: Plan, room: _Room, progress: Progress, max_iter: int, start: Start
) -> list[_Found]:
    found, state, current, references = _resumed(room, progress, plan.problem.tol, max_iter)
    for alpha in data.alphas[len(found) :]:
        begun = time.perf_counter()
        objective = room.objective(alpha, start if current is None else current)
        objective.begin(references)
        references = objective.references
        save = _saver(room, objective, found)
        outcome = Newton(objective, plan.problem.tol, max_iter, progress, save).run(state)
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


def _solution(plan: Plan, rows: Rows, point: Start, gradient: float) -> DualSolution | PrimalSolution:
    if plan.form == "dual":
        return DualSolution(point.coef, point.intercept, rows, gradient)
    return PrimalSolution(point.coef, point.intercept, None, gradient)


def _saver(room: _Room, objective: Objective, found: list[_Found]) -> Callable[[NewtonState | None], None]:
    """What saves a checkpoint: after a step with its state, after the last one of a λ with None."""
    checkpoints = room.checkpoints
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
    room: _Room, progress: Progress, tol: float, max_iter: int
) -> tuple[list[_Found], NewtonState | None, Start | None, Array | None]:
    """Models that are done, and the state, point and references that the next one goes on from."""
    checkpoints = room.checkpoints
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


@contextmanager
def _room(data: LabelledData, plan: Plan, store: str | None, progress: Progress) -> Iterator[_Room]:
    """Whatever the plan's form and place need, for as long as they are needed."""
    with ExitStack() as stack:
        if plan.execution == "memory":
            meter = Meter()
            if plan.form == "dual" and plan.solver == "cholesky":
                stack.enter_context(blas.one_thread(plan.seconds * plan.resources.rates.gemm_flops < blas.SMALL_FLOPS))
                yield _dense_room(data, plan, progress, meter)
                return
            team = stack.enter_context(Team.of_threads(plan, progress))
            if plan.form == "primal":
                weights = None if data.weights is None else data.weights[:, None]
                codes = data.codes[:, None].astype(np.float64)
                yield _primal_room(data, plan, team, data.rows, codes, weights)
                return
            rows = loaded(data.rows, meter)
            scan(rows, "X")
            if data.kernel.is_precomputed:
                check_symmetry(team.executor, rows, TileGrid(data.n, plan.chosen.tile, plan.chosen.tile))
            run = run_name()
            stack.callback(team.executor.forget, run)
            room = _dual_room(data, plan, team, rows, run, None)
            room.meter = meter
            yield room
            return
        small = plan.execution == "serial" and (
            plan.solver == "cg" or plan.form == "primal" or 2.0 * plan.chosen.tile**3 < blas.SMALL_FLOPS
        )
        stack.enter_context(blas.one_thread(small))
        work = stack.enter_context(open_workspace(plan, store, progress))
        team = Team.of_workspace(plan, work)
        if plan.form == "primal":
            room = _shared_primal_room(data, plan, team, work)
        else:
            room = _shared_dual_room(data, plan, team, work, stack)
        room.owner, room.meter = work.temporary, work.meter
        if plan.chosen.keeps_rows:
            room.settle = lambda: work.count_kept_rows(room.rows)
        yield room


def _dense_room(data: LabelledData, plan: Plan, progress: Progress, meter: Meter) -> _Room:
    """K and its factors in memory."""
    rows = loaded(data.rows, meter)
    scan(rows, "X")
    matrix = whole_gram(data.kernel, rows)
    gram, largest = DenseGram(matrix), float(np.abs(matrix.diagonal()).max())
    make = _dual_objective(data, plan, gram, ByDenseFactors(gram), largest, progress)
    return _Room(rows, make, meter=meter)


def _dual_objective(
    data: LabelledData, plan: Plan, gram: Any, preconditioning: Preconditioning, largest: float, progress: Progress
) -> Callable[[float, Start], Objective]:
    def make(alpha: float, start: Start) -> Objective:
        scores = start.scores if isinstance(start, _Resumed) else None
        gradients = start.gradients if isinstance(start, _Resumed) else None
        return DualObjective(
            data=data,
            alpha=alpha,
            gram=gram,
            preconditioning=preconditioning,
            largest=max(largest, 1e-300),
            mixed=plan.chosen.solver == "cg" and plan.chosen.precision == "float32" and not plan.chosen.has_factor,
            max_iterations=settings_of(plan).max_iterations,
            point=DualPoint(start.coef, start.intercept, np.empty((0, 0)) if scores is None else scores, gradients),
            progress=progress,
            unit=data.unit,
        )

    return make


def _dual_room(data: LabelledData, plan: Plan, team: Team, rows: Rows, run: str, work: Workspace | None) -> _Room:
    """K multiplied, and a partial factor of it."""
    gram, columns = gram_operator(data, plan, team, rows, run, work)
    preconditioning: Preconditioning = Unconditioned()
    if plan.chosen.rank_limit:
        product, pivot_seconds = rates_of_growth(plan)
        shift = CURVATURE_SHIFT[plan.problem.is_coupled] * min(data.alphas)
        enough = pays_no_more(shift, INNER_TOL, plan.problem.n_steps * product, pivot_seconds)
        with team.progress.stage("preconditioner", 1.0):
            factor = pivoted_factor(plan, team, columns, run, data.weights, enough)
        preconditioning = ByLowRank(factor)
    make = _dual_objective(data, plan, gram, preconditioning, _largest(columns), team.progress)
    team.record = gram.record if work is None else team.record
    if work is not None:
        gram.record = team.record
    kept = rows.rows if isinstance(rows, ResidentRows) else rows
    return _Room(kept, make, team.checkpoints, team.record)


def _largest(columns: ColumnSource) -> float:
    return float(np.abs(columns.diagonal(slice(0, columns.n))).max())


def _shared_dual_room(data: LabelledData, plan: Plan, team: Team, work: Workspace, stack: ExitStack) -> _Room:
    c, run = plan.chosen, run_name()
    is_direct = c.solver == "cholesky" or c.has_factor
    height = c.panel if is_direct else c.tile
    rows = work.share(data.rows, data.fingerprint, c.layout(), height, data.notes())
    known = replace(data, kernel=by_name(data.kernel, work))
    if data.kernel.is_precomputed:
        check_symmetry(work.executor, rows, TileGrid(data.n, c.tile, c.tile))
    elif c.keeps_rows:
        rows = ResidentRows(rows, run)
    stack.callback(work.executor.forget, run)
    if not is_direct:
        return _dual_room(known, plan, team, rows, run, work)
    gram, columns = gram_operator(known, plan, team, rows, run, work)
    gram.record = work.record
    source = gram.source
    groups: list[str] = []
    dtype = "float32" if c.has_factor else "float64"
    kinds = [dtype]

    def factor(number: int, shift: Array) -> Callable[[Array], Array]:
        # Tiles of another diagonal, left by a run whose checkpoint was lost, are not taken for this one's.
        groups.append(f"newton-{number}-{digest_of(shift)[:12]}")
        arguments = (work, plan, groups[-1], source, shift)
        try:
            made = complete_factor(*arguments, kinds[0], f"model {number + 1}")  # type: ignore[arg-type]
        except NotPositiveDefiniteError as error:
            if kinds[0] == "float64":
                raise
            work.progress.note(BROKE_DOWN.format(row=error.row))
            kinds[0] = "float64"
            made = complete_factor(*arguments, "float64", f"model {number + 1}")
        made.record = work.record
        return made.apply

    def clear() -> None:
        while groups:
            work.store.delete(groups.pop())

    make = _dual_objective(known, plan, gram, ByTiledFactors(factor, clear), _largest(columns), work.progress)
    return _Room(rows.rows if isinstance(rows, ResidentRows) else rows, make, team.checkpoints, work.record)


def _shared_primal_room(data: LabelledData, plan: Plan, team: Team, work: Workspace) -> _Room:
    rows = work.share(data.rows, data.fingerprint, plan.chosen.layout(), plan.chosen.row_block, data.notes())
    by_rows = TileGrid(data.n, plan.chosen.row_block, plan.chosen.row_block)
    work.store.create_group("labels")
    codes = work.vectors("labels", "codes", by_rows, 1, data.codes)
    weights = None if data.weights is None else work.vectors("labels", "weights", by_rows, 1, data.weights)
    assert data.feature_map is not None
    known = replace(data, feature_map=by_name(data.feature_map, work))
    return _primal_room(known, plan, team, rows, codes, weights)


def _primal_room(data: LabelledData, plan: Plan, team: Team, rows: Rows, codes: Any, weights: Any) -> _Room:
    c, n = plan.chosen, data.n
    assert data.feature_map is not None
    n_blocks = -(-n // c.row_block)
    parts = min(n_blocks, c.row_parts)
    cuts = [min(n, round(k * n_blocks / parts) * c.row_block) for k in range(parts + 1)]
    segments = tuple(Segment(rows, a, b, c.row_block, codes, weights) for a, b in pairwise(cuts) if b > a)
    curvature = "matrix" if plan.solver == "cholesky" else "diagonal"
    passes = Passes(data.feature_map, data.likelihood, rows.shape[1], data.fit_intercept, curvature)  # type: ignore[arg-type]

    def make(alpha: float, start: Start) -> Objective:
        point = np.vstack([start.coef, start.intercept]) if data.fit_intercept else start.coef
        return PrimalObjective(
            passes=passes,
            segments=segments,
            executor=team.executor,
            alpha=alpha,
            max_iterations=settings_of(plan).max_iterations,
            is_preconditioned=settings_of(plan).preconditioner is not None,
            point=point,
            progress=team.progress,
            least_weight=1.0 if data.weights is None else float(data.weights[data.weights > 0].min(initial=np.inf)),
            record=team.record,
            unit=data.unit,
        )

    return _Room(rows, make, team.checkpoints, team.record)
