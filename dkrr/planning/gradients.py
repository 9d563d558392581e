"""Plans of the cross-validated error and its derivatives."""

from dataclasses import replace

from dkrr.errors import InputError
from dkrr.linalg.length_sums import length_sums_bytes
from dkrr.planning.planner import make_plan
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.selection import MAX_COLUMNS, FoldSizes, SelectionPlan, plan_sweep
from dkrr.planning.strategy import Reason
from dkrr.solvers import ConjugateGradient, Float32Cholesky

VECTORS_OF_GRADIENT = 4
"""Arrays as long as the columns that a gradient holds besides those of conjugate gradient: β, residuals, g and K g."""


def refuse_gradient(problem: Problem, sizes: FoldSizes, resources: Resources) -> None:
    """Refuse problems whose errors have no derivatives here, or that would take far longer than the grid.

    Raises
    ------
    InputError
        Saying why, and what to do.
    """
    if sizes.is_loo or sizes.are_learned:
        what = "cv is leave-one-out" if sizes.is_loo else "the kernel is fitted to the training rows of every fold"
        raise InputError(
            f"{what}, and optimize takes derivatives of folds that share one kernel; expected a number of folds, and a "
            f"kernel that is not drawn from the rows: give cv=5, or optimize=None"
        )
    is_cg = isinstance(problem.settings, ConjugateGradient) and not isinstance(
        problem.settings.preconditioner, Float32Cholesky
    )
    if problem.settings is not None and not is_cg:
        raise InputError(
            f"solver is {problem.settings!r}, and optimize takes conjugate gradient with a preconditioner that folds "
            f"share; expected solver='auto' or 'cg', or optimize=None"
        )
    if make_plan(problem, resources).form == "primal":
        raise InputError(
            "the plan is the primal form, and optimize works in the dual form; expected form='dual' if the rows are "
            "few enough, or more candidates and optimize=None"
        )


def plan_gradient(problem: Problem, sizes: FoldSizes, resources: Resources) -> SelectionPlan:
    """Plan of one evaluation of the cross-validated error and its derivatives, by conjugate gradient for all folds.

    Parameters
    ----------
    problem : Problem
        Of a fit to all rows with one λ, to the residual that scores need.
    sizes : FoldSizes
    resources : Resources

    Raises
    ------
    InputError
        If it cannot be done so.
    PlanError
        If nothing stays within the limits.
    """
    sums, t = length_sums_bytes(problem.d), min(problem.n_targets, max(1, MAX_COLUMNS // sizes.n_folds))
    vectors = VECTORS_OF_GRADIENT * 8 * problem.n * sizes.n_folds * (t + 1)
    less = replace(
        resources,
        local_baseline_bytes=resources.local_baseline_bytes + vectors + resources.local_threads * sums,
        worker_baseline_bytes=resources.worker_baseline_bytes + resources.worker_threads * sums,
    )
    (plan,) = plan_sweep(replace(problem, form="dual"), sizes, less)
    text = "two solves for all folds, and one pass over K for the derivatives by all lengths"
    return replace(plan, seconds=2 * plan.seconds, reasons=(Reason("two-solves", text),))
