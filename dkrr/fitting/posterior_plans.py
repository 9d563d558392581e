"""Plans of variances and likelihoods: from a Cholesky factor, or by conjugate gradient, and why."""

from dataclasses import replace
from math import ceil

from dkrr.cost import Work
from dkrr.errors import MemoryLimitError, PlanError
from dkrr.fitting.request_plans import for_device, make_plan
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.planning.explain import SMALL_SECONDS, why_cg
from dkrr.planning.iterations_first import NOT_SURELY_FASTER, SURE_SPEEDUP
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.uncertainty import UncertaintyPlan
from dkrr.planning.work import CostModel, Step
from dkrr.text import NO_REASON, Reason, format_seconds

MAX_VARIANCE_COLUMNS = 128
"""Rows whose variances are computed in one run: forming K then takes less time than using it."""
FACTOR_IS_SOON_MADE = Reason(
    "direct-is-soon-done", f"a factorisation takes no more than {SMALL_SECONDS:g} s, and is exact to rounding"
)
EXACT = Reason("exact", "exact to rounding, for any number of rows")
SYSTEM_TOL = 1e-5
"""Relative residual of the rows' systems for which iterations are priced; they end by the width of the bounds."""


def plan_uncertainty(problem: Problem, resources: Resources, n_rows: int) -> UncertaintyPlan:
    """Method for the variances of `n_rows` rows, or to the likelihood (0).

    Parameters
    ----------
    problem : Problem
        Of a fit in dual form with one λ.
    resources : Resources
    n_rows : int

    Raises
    ------
    MemoryLimitError, DiskSpaceError
        If neither stays within the limits.
    """
    problem = for_device(problem)
    factored: UncertaintyPlan | PlanError
    try:
        factored = _by_factor(problem, resources, n_rows)
    except PlanError as error:
        factored = error
    is_for_cg = isinstance(problem.solver, ConjugateGradient)
    if is_for_cg and isinstance(problem.solver.preconditioner, Float32Cholesky):  # type: ignore[union-attr]
        return _or_raise(factored, Reason("float32-requested", "the fit was asked to factor the matrix"))
    if isinstance(problem.solver, Cholesky):
        return _or_raise(factored, Reason("cholesky-requested", "a Cholesky factorisation was requested"))
    if problem.alphas[0] == 0:
        return _or_raise(factored, Reason("alpha-is-zero", "with alpha = 0 residuals bound nothing"))
    if isinstance(factored, UncertaintyPlan):
        plan = factored.plan
        if plan.seconds <= SMALL_SECONDS and (plan.chosen.is_whole or not is_for_cg):
            return replace(factored, reasons=(FACTOR_IS_SOON_MADE,))
    if is_for_cg:
        return plan_iterations(problem, resources, n_rows, why_cg(problem))
    if isinstance(factored, PlanError):
        unaffordable = Reason("factor-is-unaffordable", f"a factor is not affordable: {factored}")
        return plan_iterations(problem, resources, n_rows, unaffordable)
    try:
        iterated = plan_iterations(problem, resources, n_rows)
    except PlanError as error:
        return replace(factored, reasons=(EXACT,), rejected=(Reason("iterations-are-unaffordable", str(error)),))
    if SURE_SPEEDUP * iterated.seconds < factored.seconds:
        text = f"a factor would take about {format_seconds(factored.seconds)}, more than {SURE_SPEEDUP:g} × as long"
        slower = Reason("slower", factored.summary())
        return replace(iterated, reasons=(Reason("factor-is-slower", text),), rejected=(slower,))
    against = f"{iterated.summary()}: not {SURE_SPEEDUP:g} × faster (about {format_seconds(iterated.seconds)})"
    return replace(factored, reasons=(EXACT,), rejected=(Reason(NOT_SURELY_FASTER.code, against),))


def _or_raise(factored: "UncertaintyPlan | PlanError", reason: Reason) -> UncertaintyPlan:
    if isinstance(factored, PlanError):
        raise factored
    return replace(factored, reasons=(reason,))


def _by_factor(problem: Problem, resources: Resources, n_rows: int) -> UncertaintyPlan:
    plan = make_plan(replace(problem, solver=Cholesky()), resources)
    solved = Step("substitution", Work(gemm_flops=2.0 * n_rows * float(problem.n) ** 2), 1, "blas")
    more = CostModel(problem, resources, plan.chosen.place).seconds([solved], plan.peak_bytes)
    return UncertaintyPlan("factor", plan, n_rows, plan.seconds + more, ())


def plan_iterations(problem: Problem, resources: Resources, n_rows: int, reason: Reason = NO_REASON) -> UncertaintyPlan:
    """Conjugate gradient for as many rows at a time as fit in memory."""
    solver = problem.solver if isinstance(problem.solver, ConjugateGradient) else ConjugateGradient()
    width = max(1, min(n_rows or MAX_VARIANCE_COLUMNS, MAX_VARIANCE_COLUMNS))
    problem = replace(problem, solver=solver, fit_intercept=False, tol=SYSTEM_TOL, keeps_store=False, layout=None)
    while True:
        try:
            plan = make_plan(replace(problem, n_targets=width), resources)
            break
        except MemoryLimitError:
            if width == 1:
                raise
            width //= 2
    assert not plan.chosen.is_direct
    return UncertaintyPlan("iterations", plan, n_rows, max(1, ceil(n_rows / width)) * plan.seconds, (reason,))
