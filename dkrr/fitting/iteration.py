"""Conjugate gradient within a fit: its settings, its checkpoints, its records."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.context import Context
from dkrr.linalg.operator import Operator
from dkrr.linalg.preconditioner import Preconditioner
from dkrr.planning import Plan
from dkrr.solvers import ConjugateGradient
from dkrr.solvers.conjugate_gradient import CGOutcome, Iteration, State

Array = NDArray[np.float64]


def settings_of(plan: Plan) -> ConjugateGradient:
    """Settings that the user gave, or the planner's."""
    solver = plan.problem.solver
    return solver if isinstance(solver, ConjugateGradient) else ConjugateGradient()


def iteration_of(
    plan: Plan,
    context: Context,
    operator: Operator,
    shift: Array,
    right_sides: Array,
    preconditioner: Preconditioner,
    *,
    mixed: bool = False,
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
        deflate=deflate,
        progress=context.progress,
    )


def resumed(context: Context, iteration: Iteration, run: Callable[[State | None], CGOutcome]) -> CGOutcome:
    """Run an iteration from the last checkpoint, if one can be read, and save others on the way.

    Parameters
    ----------
    context : Context
    iteration : Iteration
    run : callable
        Runs it from a state, or from the start.
    """
    checkpoints, state, damage = context.checkpoints, None, ""
    if checkpoints is not None:
        iteration.on_iteration, iteration.on_end = checkpoints.save_in_time, checkpoints.save
        state, damage = checkpoints.load(), checkpoints.damage
    if damage:
        context.progress.note(damage)
    if state is not None and state.x.shape != iteration.right_sides.shape:
        state = None
    outcome = run(state)
    return replace(outcome, messages=(damage, *outcome.messages)) if damage else outcome
