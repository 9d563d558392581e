"""How each way to solve is carried out, for any form at any place."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress
from dkrr.fitting.batches import DualForm, solve_in_batches
from dkrr.fitting.context import Context, open_context
from dkrr.fitting.data import TrainingData
from dkrr.fitting.iteration import resumed
from dkrr.fitting.norms import scale_of
from dkrr.fitting.requests import DualStart, FitRequest
from dkrr.fitting.results import Solution, Solved, solved
from dkrr.fitting.ridge import DirectDual, DirectPrimal, FactoredDual, IteratedDual, IteratedPrimal
from dkrr.linalg.residual import worst
from dkrr.planning import Direct, Float32Factor, Iterative, Plan
from dkrr.planning.problem import Form
from dkrr.planning.strategy import How
from dkrr.solvers import SolveResult, Status
from dkrr.solvers.direct import in_terms_of_alpha
from dkrr.solvers.iteration_state import CGOutcome


def solve_directly(
    form: DirectDual | DirectPrimal,
    data: TrainingData,
    plan: Plan,
    context: Context,  # noqa: ARG001
    start: DualStart | None = None,  # noqa: ARG001
) -> Solution:
    """One factorisation for each distinct λ."""
    for system in form.systems():
        with in_terms_of_alpha([system.alpha], plan.form, partial(scale_of, data, plan.form)):
            form.solve(system)
    return form.solution()


def solve_iteratively(
    form: IteratedDual | IteratedPrimal,
    data: TrainingData,
    plan: Plan,
    context: Context,
    start: DualStart | None = None,
) -> Solution:
    """Conjugate gradient for all λ at once, which a run of the same store resumes."""
    with in_terms_of_alpha(np.unique(data.alphas), plan.form, partial(scale_of, data, plan.form)):
        if start is not None and isinstance(form, IteratedDual):
            return _continued(form, start, context)
        iteration, groups = form.iteration()
        outcome = resumed(context, iteration, lambda state: form.iterate(iteration, groups, state))
    return form.solution(outcome)


def _continued(form: IteratedDual, start: DualStart, context: Context) -> Solution:
    """From solutions that are given, unless a run of the same store is further."""
    iteration, groups = form.iteration(is_deferred=True)
    first = np.hstack([start.of(system.alpha, system.columns) for system in form.systems()])
    outcome = resumed(context, iteration, lambda state: form.iterate(iteration, groups, state, first))
    return form.solution(replace(outcome, messages=(start.note, *outcome.messages)))


def solve_with_float32_factor(
    form: FactoredDual,
    data: TrainingData,
    plan: Plan,  # noqa: ARG001
    context: Context,  # noqa: ARG001
    start: DualStart | None = None,  # noqa: ARG001
) -> Solution:
    """One factorisation in float32 for each distinct λ, and iterations in float64 with it."""
    outcomes = list[CGOutcome]()
    for system in form.systems():
        with in_terms_of_alpha([system.alpha], "dual", partial(scale_of, data, "dual")):
            outcomes.append(form.solve(system))
    return form.solution(merged(outcomes))


class Way(NamedTuple):
    """How a solver is carried out."""

    forms: Mapping[Form, Any]
    """Systems of each form, made of what the plan says of the solver, data, plan and context."""
    solve: Callable[[Any, TrainingData, Plan, Context, DualStart | None], Solution]


SOLVERS: Mapping[type[How], Way] = {
    Direct: Way({"dual": DirectDual, "primal": DirectPrimal}, solve_directly),
    Iterative: Way({"dual": IteratedDual, "primal": IteratedPrimal}, solve_iteratively),
    Float32Factor: Way({"dual": FactoredDual}, solve_with_float32_factor),
}


def _solution(data: TrainingData, plan: Plan, context: Context, start: DualStart | None) -> Solution:
    """Solution of all targets, in the batches of the plan."""
    way = SOLVERS[type(plan.chosen.how)]
    form = way.forms[plan.form](plan.chosen.how, data, plan, context)
    if plan.form == "primal" or not plan.problem.batch:
        return way.solve(form, data, plan, context, start)

    def solve_batch(one: DualForm, part: TrainingData, columns: NDArray[np.intp]) -> Solution:
        here = None if start is None else start.of_targets(columns)
        return way.solve(one, part, plan, context, here)

    return solve_in_batches(form, data, plan, context, solve_batch)


def fit(request: FitRequest, data: TrainingData, plan: Plan, progress: Progress) -> tuple[Solved]:
    """Carry out a plan; what is finished before an error stays in a store that the user gave."""
    begun = time.perf_counter()
    data, sizes = data.in_range()
    start = request.start if isinstance(request.start, DualStart) and sizes is None else None
    with open_context(plan, request.settings.store, progress) as context:
        solution = _solution(data, plan, context, start)
    return (solved(data, plan, solution, sizes, context, begun),)


def shortfall(result: SolveResult, plan: Plan) -> str:
    """Words for a result that is less accurate than requested."""
    after = (
        f" after {result.iterations} iterations, where {plan.problem.tol:.1e} was asked" if result.iterations else ""
    )
    return f"true relative residual {result.residual:.1e}{after}: {result.status.value}"


def merged(outcomes: Sequence[CGOutcome]) -> CGOutcome:
    """Outcomes of several systems as one: the worst status, all residuals, the sum of the iterations."""
    good = (Status.CONVERGED, Status.SOLVED)
    bad = [o.status for o in outcomes if o.status not in good]
    return CGOutcome(
        x=outcomes[-1].x,
        residuals=np.concatenate([o.residuals for o in outcomes]),
        status=bad[0] if bad else outcomes[-1].status,
        iterations=sum(o.iterations for o in outcomes),
        rank=0,
        history=tuple(h for o in outcomes for h in o.history),
        messages=tuple(m for o in outcomes for m in o.messages),
        condition=worst([o.condition for o in outcomes]),
    )
