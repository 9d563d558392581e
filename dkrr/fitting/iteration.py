"""Conjugate gradient within a fit: its settings, its checkpoints, its records."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dkrr.cost import STAGE_NAMES
from dkrr.fitting.context import Context
from dkrr.fitting.costs.dual_cg_costs import growth_seconds
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.giving_up import Watch, unwatched
from dkrr.linalg.gram_products import Operator
from dkrr.linalg.iteration_state import CGOutcome, State
from dkrr.linalg.pivoted_cholesky import PivotedCholesky, pivot_stopping_rule
from dkrr.linalg.preconditioners import Preconditioner
from dkrr.linalg.solver_settings import ConjugateGradient, RPCholesky
from dkrr.planning import Plan
from dkrr.planning.strategy import Strategy

Array = NDArray[np.float64]


def settings_of(plan: Plan) -> ConjugateGradient:
    """Settings that the user gave, or the planner's."""
    solver = plan.problem.solver
    return solver if isinstance(solver, ConjugateGradient) else ConjugateGradient()


BEFORE_ITERATIONS = STAGE_NAMES[: STAGE_NAMES.index("preconditioner") + 1]
"""Stages whose time passes before the first iteration."""


def watch_of(plan: Plan, direct: Strategy) -> Watch:
    """Watch of the iterations of a plan, from which another strategy may take over; centres are not drawn again."""
    drawing = BEFORE_ITERATIONS[0]
    return watch_until(plan, sum(s.seconds for s in direct.stages if s.name != drawing))


def watch_until(plan: Plan, factor_seconds: float) -> Watch:
    """Watch of the iterations of a plan, in whose place factorisations take so many seconds."""
    before = BEFORE_ITERATIONS[1:]
    return Watch(
        factor_seconds=factor_seconds,
        n_steps=max(plan.chosen.n_steps, 1),
        prepared_after=sum(s.seconds for s in plan.chosen.stages if s.name in before),
    )


def pivots_of(plan: Plan) -> RPCholesky:
    """Settings of a partial factor that the user gave, or the planner's."""
    wanted = settings_of(plan).preconditioner
    return wanted if isinstance(wanted, RPCholesky) else RPCholesky()


def pivot_rule(plan: Plan, shift: float, tol: float, n_products: float = 1.0) -> Callable[[PivotedCholesky], bool]:
    """Whether a partial factor has the rank that pays, at the rates that the plan was made with.

    Parameters
    ----------
    shift, tol : float
        Smallest s, and the relative residual of the systems that the factor is to precondition.
    n_products : float
        Times that products with K are computed again, for one system after another.
    """
    product, pivot_seconds = growth_seconds(plan.problem, plan.resources, plan.chosen)
    return pivot_stopping_rule(shift, tol, n_products * product, pivot_seconds)


def iteration_of(
    plan: Plan,
    context: Context,
    operator: Operator,
    shift: Array,
    right_sides: Array,
    preconditioner: Preconditioner,
    *,
    mixed: bool = False,
    largest: float = 1.0,
    deflate: Array | None = None,
) -> Iteration:
    """Conjugate gradient for (A + diag(s)) X = B, with the tolerance and the settings of a plan; see Iteration."""
    return Iteration(
        operator=operator,
        shift=shift,
        right_sides=right_sides,
        preconditioner=preconditioner,
        tol=plan.problem.tol,
        max_iter=settings_of(plan).max_iter,
        mixed=mixed,
        largest=largest,
        deflate=deflate,
        progress=context.progress,
        watch=context.watch or unwatched,
    )


def resumed(
    context: Context, iteration: Iteration, run: Callable[[State | None, Array | None], CGOutcome]
) -> CGOutcome:
    """Run an iteration from the last checkpoint, if one can be read, or from the start (None), and save others.

    Where the run has grown since, `run` gets the solution of its earlier rows, with zeros for the others, as a first
    guess.
    """
    checkpoints, state, start, messages = context.checkpoints, None, None, []
    if checkpoints is not None:
        iteration.on_iteration, iteration.on_end = checkpoints.save_in_time, checkpoints.save
        state = checkpoints.load()
        start = None if state is not None else checkpoints.load_start()
        if checkpoints.damage:
            context.progress.note(checkpoints.damage)
            messages.append(checkpoints.damage)
    if state is not None and state.x.shape != iteration.right_sides.shape:
        state = None
    if state is not None and context.watch is not None:
        context.watch.resume(state)
    n, m = iteration.right_sides.shape
    if start is not None and (len(start) > n or start.shape[1] != m):  # of other targets
        start = None
    if start is not None:
        messages.append(FIRST_GUESS)
        start = grown_rows(start, n)
    outcome = run(state, start)
    return replace(outcome, messages=(*messages, *outcome.messages)) if messages else outcome


FIRST_GUESS = "the first guess was the solution of the run in this store, before it grew"


def grown_rows(solution: Array, n: int) -> Array:
    """Solution of the first rows, of shape (k, m), with zeros for the others: of shape (n, m)."""
    return np.vstack([solution, np.zeros((n - len(solution), solution.shape[1]))])
