"""Plans of fits from checked requests: with the box and the spectrum of the rows, where the choice depends on them."""

from dataclasses import replace

from dkrr.data import Rows
from dkrr.errors import InputError, MemoryLimitError
from dkrr.fitting.grids import (
    DECISIVE_SPEEDUP,
    Box,
    box_of,
    choose_cheaper_form,
    is_worth_scanning,
    may_have_grid,
    try_dual_plan,
)
from dkrr.fitting.requests import FitRequest
from dkrr.kernels.fourier_grid import grid_columns
from dkrr.kernels.kernel_features import is_drawn, refuse_more_components_than_rows
from dkrr.linalg.preconditioners import MAX_SAMPLE_BYTES, MIN_SAMPLED_ROWS, SAMPLE, estimated_spectrum
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.planning import Plan
from dkrr.planning.calibration import measured_plan
from dkrr.planning.detection import detect
from dkrr.planning.iterations_first import is_soon_done
from dkrr.planning.measures import with_measured_kernel
from dkrr.planning.planner import make_plan
from dkrr.planning.problem import Because, Problem, Spectrum
from dkrr.planning.reasons import NO_REASON, Reason
from dkrr.planning.resources import Resources
from dkrr.text import format_bytes

NO_LIMIT = 2**62
"""Bytes of memory."""
HELD_MATRICES = 3
"""D × D matrices besides those of a fit: sums of earlier rows, of the new ones and of all."""
SUMMED = "normal matrix"
"""Stage that passes over the rows of a call."""
GROWS = Because(
    form=Reason("grows", "primal, since sums of features are kept for further rows, and not the rows"),
    solver=Reason("grows", "sums in the calling process, and a factor of them"),
)
FEATURES_REMEDY = (
    "give a kernel with explicit features (linear, polynomial, or RandomFourier(RBF(), 2000) and Nystroem(RBF(), 2000) "
    "of dkrr.features), or give all rows to fit"
)


def plan_of(request: FitRequest, resources: Resources | None = None) -> Plan:
    """Plan of a fit; raises PlanError if none stays within the limits. Resources that are not given are found."""
    settings, rows = request.settings, request.rows
    refuse_more_components_than_rows(settings.kernel, rows.shape[0])
    problem = request.problem()
    # Before the sample, some of whose memory stays in use.
    resources = detect(settings.memory_limit, settings.store, rows=rows.url) if resources is None else resources
    return plan_for_rows(problem, rows, resources)


def plan_of_sums(request: FitRequest) -> tuple[FitRequest, Plan]:
    """Plan of a fit that grows, and its request: in the primal form with a factor, in the calling process.

    Time and memory are those of one call, which do not grow with the rows so far: of its own rows, and of the sums that
    are kept and merged. Dual coefficients are not computed, nor planned.

    Raises
    ------
    InputError
        If the kernel has no explicit features, or the settings exclude them.
    MemoryLimitError
        If the sums do not fit in memory.
    """
    settings = request.settings
    if isinstance(settings.solver, ConjugateGradient):
        raise InputError(
            "solver is 'cg', and partial_fit keeps sums whose matrix it factors; expected solver='cholesky' or "
            "'auto': or give all rows to fit"
        )
    if settings.form == "dual":
        raise InputError(
            "form is 'dual', and partial_fit keeps sums of features and not the rows; expected form='primal' or "
            "'auto': or give all rows to fit"
        )
    request = replace(request.with_settings(form="primal", solver=Cholesky(), store=None), because=GROWS)
    resources = detect(settings.memory_limit, None, rows=request.rows.url)
    resources = replace(resources, confined="in the calling process, which keeps the sums")
    try:
        try:
            plan = plan_of(request, resources)
        except MemoryLimitError:  # which names the limit of a plan with tiles on disk
            plan = plan_of(request, replace(resources, local_limit_bytes=NO_LIMIT))
    except InputError as error:
        raise InputError(
            f"kernel is {request.settings.kernel!r}, and partial_fit takes the primal form, which it has not: {error}; "
            f"expected one that has: {FEATURES_REMEDY}"
        ) from error
    side, limit = plan.problem.dimension or 0, resources.local_limit_bytes
    more = HELD_MATRICES * 8 * side**2
    # The sums are in memory, also where a fit would rather have tiles on disk.
    in_memory = next(one for one in (plan.chosen, *plan.rejected) if one.execution == "memory")
    needed = in_memory.peak_bytes + more
    if needed > limit:
        suffices, name = resources.confined_limit(needed)
        raise MemoryLimitError(
            f"sums of {side:,} features take up to {format_bytes(needed)} in this process, and {format_bytes(limit)} "
            f"are allowed; expected fewer features, a {name} of at least {format_bytes(1.005 * suffices)} "
            f"({suffices} bytes), or all rows in one call of fit, which has other ways. Nothing was computed"
        )
    stages = [one for one in in_memory.stages if one.name in (SUMMED, "factorisation")]
    stages = [replace(one, peak_bytes=one.peak_bytes + more) for one in stages]
    chosen = replace(in_memory, stages=tuple(stages), refused=NO_REASON)
    return request, replace(plan, chosen=chosen, rejected=tuple(one for one in plan.rejected if one is not in_memory))


def plan_in_box(problem: Problem, resources: Resources, box: Box) -> Plan:
    """Plan without rows, of which only the box is known."""
    if not may_have_grid(problem):
        return measured_plan(problem, resources)
    return choose_cheaper_form(try_dual_plan(problem, lambda p: measured_plan(p, resources)), problem, resources, box)


def plan_for_rows(problem: Problem, rows: Rows, resources: Resources, box: Box | None = None) -> Plan:
    """Plan that knows the spectrum where its choice depends on it: a sample takes as long as a small fit.

    So it is with the box of the rows, for a Fourier grid, unless it is given.
    """
    problem = with_measured_kernel(problem, rows)
    if not may_have_grid(problem):
        return _plan_for_rows(problem, rows, resources)
    dual = try_dual_plan(problem, lambda p: make_plan(p, resources))
    if not is_worth_scanning(dual):
        return _plan_for_rows(problem, rows, resources)
    box = box_of(rows, grid_columns(problem.kernel, problem.d)) if box is None else box
    found = choose_cheaper_form(dual, problem, resources, box)
    if isinstance(dual, Plan) and dual.seconds < DECISIVE_SPEEDUP * found.seconds:  # the spectrum may make a difference
        found = choose_cheaper_form(
            try_dual_plan(problem, lambda p: _plan_for_rows(p, rows, resources)), problem, resources, box
        )
    return found


def _plan_for_rows(problem: Problem, rows: Rows, resources: Resources) -> Plan:
    """Plan for rows in memory or on disk; Fourier features are not considered."""
    plan = make_plan(problem, resources) if problem.solver is None else None
    if plan is not None and plan.chosen.is_direct and is_soon_done(problem, plan.seconds):
        return plan
    # Without a bound of its entries a kernel has iterations only at request (`iterations_first.doubt`).
    may_iterate = problem.solver is not None or problem.kernel.has_unit_diagonal
    sampled = with_spectrum(problem, rows) if may_iterate else problem
    return measured_plan(sampled, resources, plan if sampled is problem else None)


def with_spectrum(problem: Problem, rows: Rows) -> Problem:
    """The problem with its kernel measured, and its spectrum estimated.

    The latter only if conjugate gradient may be chosen and a sample costs little.
    """
    p = problem = with_measured_kernel(problem, rows)
    is_asked_for = isinstance(p.solver, ConjugateGradient) and not isinstance(p.solver.preconditioner, Float32Cholesky)
    is_possible = p.solver is None and min(p.alphas) > 0
    is_costly = p.kernel.is_precomputed or bool(p.kernel.functions) or rows.is_computed or is_drawn(p.kernel)
    is_costly = is_costly or SAMPLE * p.bytes_of_row > MAX_SAMPLE_BYTES
    if p.form == "primal" or p.n < MIN_SAMPLED_ROWS or is_costly or not (is_asked_for or is_possible):
        return problem
    found = estimated_spectrum(p.kernel, rows)
    return problem if found is None else replace(problem, spectrum=Spectrum(*found))
