"""Plans of scores: the fastest method for held-out predictions, and why; derivatives of the error; the last fit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Work
from dkrr.errors import DiskSpaceError, InputError, MemoryLimitError, PlanError
from dkrr.fitting.costs.dual_cg_costs import growth_seconds, squares_of_factor
from dkrr.fitting.costs.fourier_costs import (
    GATHER_SECONDS,
    MAX_SIDE,
    iterated,
    peak_of_passes,
    sums_bytes,
    transform_work,
)
from dkrr.fitting.costs.iteration_estimates import dual_iterations
from dkrr.fitting.costs.primal_costs import formed_in_caller
from dkrr.fitting.request_plans import make_plan
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.held_out import columns_at_once, folds_flops
from dkrr.linalg.length_sums import length_sums_bytes
from dkrr.linalg.normal import parts_for_folds
from dkrr.linalg.passes import strip_rows
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.planning.drawing import drawing_reasons
from dkrr.planning.explain import NOT_ENOUGH_MEMORY, why_form
from dkrr.planning.iterations_first import why_watched
from dkrr.planning.plan import ITERATION_STAGE, Plan
from dkrr.planning.problem import Problem
from dkrr.planning.resources import PROCESS_MARGIN_BYTES, Resources
from dkrr.planning.searches import NOTHING_LEFT, Optimising, PartOfFit, SelectionPlan, seconds_of_fit
from dkrr.planning.selection import RISES, FoldSizes, ScoringPlan
from dkrr.planning.work import CostModel, Step
from dkrr.text import Reason, format_bytes

MAX_SWEEP_COLUMNS = 1024
"""Columns of one run of conjugate gradient, beyond which further targets wait: forming K no longer counts then."""
INVERSE_RATES = {2000: 0.35, 5000: 0.6}
"""Rate of the strips of an inverse over that of a factorisation, by the number of rows (measured: a search over 2,000
of `benchmarks.regret` is then planned at 1.6 s and takes 1.4)."""
STAGES = ("normal matrix", "held-out errors")
"""Stages of the transforms of a search on a Fourier grid."""
SMALL_FACTOR_RATE = 0.75
"""Rate of factorisations of a few thousand rows, one a thread, over that of products."""
ERROR_PASSES = 30
"""Passes over arrays of the targets' size from the solution for one λ to its scores."""
NOT_THE_REST = Reason(
    "not-all-other-rows",
    "folds that do not train on exactly the rows that they leave out have no formula for their errors from a factor of "
    "all rows",
)
MAX_PREFERRED_FACTOR_SECONDS = 0.5
"""Projected time of factors for every fold and λ up to which they are taken: the price of conjugate gradient depends on
a spectrum that is estimated (800 rows of a smooth kernel: 9 ms planned, 10 s and five of eight λ not solved)."""
SURE_SPEEDUP = 50.0
"""Time of factors over that of a sweep, as planned, from which on the sweep is not watched (a sweep over 4,000 rows of
molecules, planned 12 times as fast, took 7 times as long, when all of its factor was in float32)."""
SOLVER_RESUMED = Reason("solver-resumed", "the store holds a run that began with this solver")
DUAL_FOR_ONE = Reason(
    "dual-for-leave-one-out", "dual, since leave-one-out takes a factor, and in primal form the matrix is too large"
)
DUAL_FOR_SLOPES = Reason("dual-for-derivatives", "dual, in which the error of the folds has derivatives by lengths")
ALL_IN_ONE_RUN = Reason("all-in-one-run", "conjugate gradient, which solves for all folds and λ in one run")
DUAL_AS_SCORED = Reason("form-of-the-scores", "dual, in which the search has scored the candidates")
CONTINUED_IN_RUN, CONTINUED_AFTER = PartOfFit(0.4, 0.0), PartOfFit(0.6)
"""What is left of the last fit after scores by iterations: with a single kernel in their run, with its preconditioner,
and with several after it (measured with a tolerance of 1e-6 and one kernel: 0.43 of the iterations)."""
MIN_OWN_FIT_SECONDS = 1.0
"""Time of a last fit that continues the run of the scores, from which on a separate one is planned as well."""
SEARCH_CONTINUED = Reason(
    "search-continued",
    "the search chose conjugate gradient, and this fit continues its run from a solution for all rows",
)
LAST_FIT_APART = Reason(
    "last-fit-apart",
    "the last fit does not continue this run: alone, its preconditioner or its factor has more memory",
)
ALL_SCORED = Reason(
    "all-scored", f"factors of every fold take no more than {MAX_PREFERRED_FACTOR_SECONDS:g} s, and score every λ"
)


def plan_scores(
    problem: Problem, sizes: FoldSizes, resources: Resources, features: FeatureMap | None = None
) -> ScoringPlan:
    """Fastest method for the held-out predictions of every λ and fold.

    Parameters
    ----------
    problem : Problem
        Of a fit to all rows with every λ, to the residual that scores need.
    sizes : FoldSizes
    resources : Resources
    features : FeatureMap, optional
        Features in place of the kernel's own.

    Raises
    ------
    InputError
        If the requested solver or form cannot do it.
    PlanError
        If nothing stays within the limits.
    """
    if problem.settings is not None:  # a store resumes with what it began with
        problem = problem.with_solver(problem.settings, SOLVER_RESUMED)
    found = replace(_cheapest(problem.with_features(features), sizes, resources), asked=problem)
    if found.otherwise is not None:
        found = replace(found, otherwise=replace(found.otherwise, asked=problem))
    if features is None:
        return found
    of_kernel = replace(found.plan.problem, feature_map=problem.feature_map)
    return replace(found, plan=replace(found.plan, problem=of_kernel))


def _directly(plan: Plan) -> Plan:
    """Plan of what serves all folds and all λ, as sums and factors do; iterations of one fit serve that alone."""
    return plan if plan.chosen.otherwise is None else replace(plan, chosen=plan.chosen.otherwise)


def _cheapest(problem: Problem, sizes: FoldSizes, resources: Resources) -> ScoringPlan:
    if problem.loss == "logistic":
        return _paths(problem, sizes, resources)
    one = _directly(make_plan(replace(problem, alphas=(_middle(problem.alphas),)), resources))
    if sizes.are_learned:
        if sizes.is_loo:
            raise InputError(
                "leave-one-out needs one fit for every row with a kernel or map that is fitted to the training rows; "
                "expected a number of folds: give cv=5"
            )
        learned = Reason("learned-kernel", "the kernel is fitted to the training rows of every fold")
        return _refits(problem, sizes, resources, learned)
    if one.form == "primal":
        if one.chosen.method.folds_by == "sums":
            return _primal(one, problem, sizes, resources)
        if one.chosen.method.folds_by == "grid" and (not sizes.is_loo or problem.matrix_size("primal") <= MAX_SIDE):
            return _on_grid(one, problem, sizes, resources)
        if not sizes.is_loo:
            streamed = Reason("rows-streamed", "the normal matrix is too large, and is only multiplied")
            return _refits(problem, sizes, resources, streamed)
    found, against = list[ScoringPlan](), list[Reason]()
    why = DUAL_FOR_ONE if one.form == "primal" else why_form(problem, one.chosen, one.candidates)
    dual = problem.with_form("dual", why)
    for make in (plan_sweep, _factors, _factors_of_folds):
        try:
            found.extend(make(dual, sizes, resources))
        except (DiskSpaceError, MemoryLimitError) as error:
            code = NOT_ENOUGH_MEMORY.code if isinstance(error, MemoryLimitError) else "disk"
            against.append(Reason(code, str(error)))
    if not found:
        raise _none(problem, sizes, against)
    best = min(found, key=lambda plan: plan.seconds)
    soon = next((p for p in found if p.method == "refits" and p.seconds <= MAX_PREFERRED_FACTOR_SECONDS), best)
    if soon is not best:
        best = replace(soon, reasons=(*soon.reasons, ALL_SCORED))
    rejected = [
        Reason("slower", f"{p.summary()}: slower, {p.seconds / best.seconds:.1f} × the time")
        if p.seconds >= best.seconds
        else Reason("may-leave-some", f"{p.summary()}: may leave some λ without a score")
        for p in found
        if p.method != best.method
    ]
    best = replace(best, rejected=(*rejected, *against))
    is_watched = best.method == "sweep" and problem.solver is None and not problem.keeps_store
    return _watched(best, found) if is_watched and best.plan.problem.n_targets == problem.n_targets else best


def _watched(plan: ScoringPlan, found: Sequence[ScoringPlan]) -> ScoringPlan:
    """A sweep with the factors that may take over, whose memory is in the plan.

    Not a requested one, nor one in a store, which resumes with what it began with; nor batches of targets. Nor where
    the sweep is hardly ever slower, as than factors in tiles on a disk.
    """
    in_memory = (p for p in found if p.method != "sweep" and p.plan.chosen.place.is_memory)
    other = min(in_memory, key=lambda p: p.seconds, default=None)
    if other is None or other.seconds > SURE_SPEEDUP * plan.seconds:
        return plan
    peak = plan.peak_bytes if plan.plan.execution == "dask" else max(plan.peak_bytes, other.peak_bytes)
    reason = why_watched("factors", other.summary(), other.seconds)
    return replace(plan, otherwise=other, peak_bytes=peak, reasons=(*plan.reasons, reason))


def with_parts(plan: ScoringPlan, fractions: tuple[float, ...]) -> ScoringPlan:
    """The plan with the fits of all λ to parts of the training rows of every fold, for a learning curve.

    Parameters
    ----------
    plan : ScoringPlan
    fractions : tuple of float
        Rows of the parts over those of a training set.

    Raises
    ------
    PlanError
        If no plan of a part stays within the limits.
    """
    problem = plan.asked
    assert problem is not None
    every = problem
    if problem.loss == "squared":
        every = replace(problem, n_targets=problem.n_targets * len(problem.alphas))
    parts = list[Plan]()
    for fraction in fractions:
        part = every
        if problem.x_in_memory or plan.plan.form == "dual":  # else all rows are read, with weights of 0
            part = _of_rows(every, max(1, int(fraction * problem.n * (1 - 1 / plan.sizes.n_folds))))
        parts.append(make_plan(part, plan.plan.resources, plan.plan.chosen.features))
    seconds = plan.sizes.n_folds * sum(part.seconds for part in parts)
    text = "parts of the training rows, for the learning curve, are fitted separately"
    reason = Reason("learning-curve", text)
    return replace(
        plan,
        curve=fractions,
        parts=tuple(parts),
        seconds=plan.seconds + seconds,
        peak_bytes=max(plan.peak_bytes, *(part.peak_bytes for part in parts)),
        reasons=(*plan.reasons, reason),
    )


def _of_rows(problem: Problem, n_rows: int) -> Problem:
    """The problem of some of its rows, which are read into memory."""
    return replace(
        problem,
        n=n_rows,
        n_positive_weights=None,
        cumulative_largest_row_bytes=(),
        x_bytes=None,
        x_in_memory=True,
        layout=None,
    )


def continuing(problem: Problem, scores: ScoringPlan) -> Problem:
    """Problem of a last fit that continues the run of the scores, with what the search says of its choice."""
    found = problem.with_solver(ConjugateGradient(), SEARCH_CONTINUED).with_form("dual", DUAL_AS_SCORED)
    reasons, rejected = (
        tuple(Reason(one.code, f"scores: {one}") for one in of_scores)
        for of_scores in (scores.reasons, scores.rejected)
    )
    return replace(found, because=replace(found.because, reasons=reasons, rejected=rejected))


def _none(problem: Problem, sizes: FoldSizes, against: list[Reason]) -> PlanError | InputError:
    if against:
        return MemoryLimitError("; ".join(against))
    if sizes.is_loo:
        who, other = ("device", "cpu") if problem.device == "cuda" else ("solver", "cholesky")
        return InputError(
            f"leave-one-out takes a Cholesky factor for each λ, and {who} asks for conjugate gradient; expected "
            f"{who}='auto' or {other!r}, or a number of folds: give cv=5"
        )
    return InputError(
        f"solver is {problem.solver!r}, whose factor serves a single training set; expected 'auto', 'cholesky' or 'cg'"
    )


def _middle(alphas: tuple[float, ...]) -> float:
    return sorted(alphas)[len(alphas) // 2]


def _primal(one: Plan, problem: Problem, sizes: FoldSizes, resources: Resources) -> ScoringPlan:
    """Sums over the rows of every fold from one pass in this process, and a second one where rows are predicted."""
    p, n_alphas, limit = problem, len(problem.alphas), resources.local_limit_bytes
    side, t = p.matrix_size("primal"), p.n_targets
    n_sets = 1 if sizes.is_loo else sizes.n_folds
    peak = max(_primal_bytes(p, sizes, resources, side), one.peak_bytes if one.chosen.place.is_memory else 0)
    if peak > limit:
        what = f"the sums of all folds need {format_bytes(peak)} in the calling process, of the {format_bytes(limit)} "
        if sizes.is_loo:
            raise MemoryLimitError(f"{what}that are allowed: increase memory_limit")
        return _refits(problem, sizes, resources, Reason(NOT_ENOUGH_MEMORY.code, f"{what}that are allowed"))
    formed, threads = formed_in_caller(p), resources.local_threads
    predicts = sizes.predicts or sizes.is_loo or not sizes.train_on_the_rest
    predicting = n_alphas * p.n * side * (2.0 * t + (side if sizes.is_loo else 0.0))
    recipe = [
        Step("normal matrix", formed, 1, "tasks" if parts_for_folds(p.n, side, n_sets, threads) > 1 else "blas"),
        Step("factorisation", Work(gemm_flops=n_sets * n_alphas * side**2 * (side / 3 + 4.0 * t)), 1, "blas"),
        Step("held-out errors", replace(formed, gemm_flops=predicting), 1 if predicts else 0, "blas"),
    ]
    seconds = CostModel(p, resources, resources.in_caller("memory", threads)).seconds(recipe, peak)
    text = "the features are no more than the rows: a training set has the sums of the other folds"
    reason = Reason("sums-of-folds", text)
    return ScoringPlan("primal", one, sizes, n_alphas, seconds, peak, (reason,))


def _on_grid(one: Plan, problem: Problem, sizes: FoldSizes, resources: Resources) -> ScoringPlan:
    """Sums of every fold by transforms, solutions for each fold and λ, and predictions by transforms."""
    p, n_alphas, t, threads = problem, len(problem.alphas), problem.n_targets, resources.local_threads
    side, n_sets, limit = p.matrix_size("primal"), 1 if sizes.is_loo else sizes.n_folds, resources.local_limit_bytes
    place, columns = resources.in_caller("memory", threads, threads), n_alphas * t
    site = CostModel(p, resources, place)
    each = 3 if sizes.is_loo else 1  # leave-one-out takes the inverse
    factored = [
        Step("factorisation", Work(element_seconds=GATHER_SECONDS * side**2), n_sets),
        Step("factorisation", Work(gemm_flops=each * side**3 / 3 / SMALL_FACTOR_RATE), n_sets * n_alphas),
    ]
    solvers = {0: (factored, (1 + (3 if sizes.is_loo else min(threads, n_alphas))) * 8 * side**2)}
    if not sizes.is_loo:
        rank_limit, steps, held = iterated(p, resources, columns)
        solvers[rank_limit] = [step._replace(times=step.times * n_sets) for step in steps], held
    if side > MAX_SIDE:
        del solvers[0]
    rank_limit = min(solvers, key=lambda limit: site.seconds(solvers[limit][0], 0))
    solving, held = solvers[rank_limit]
    held += (3 + 2 * n_sets) * sums_bytes(p) + n_sets * 16 * side * columns
    held += 8 * p.n * (columns if sizes.predicts else t if sizes.is_loo else 0)
    peak = max(peak_of_passes(site, held), one.peak_bytes if one.chosen.place.is_memory else 0)
    if peak > limit:
        what = f"the sums of all folds need {format_bytes(peak)} in the calling process, of the {format_bytes(limit)} "
        return _refits(problem, sizes, resources, Reason(NOT_ENOUGH_MEMORY.code, f"{what}that are allowed"))
    repeated = 1 if sizes.train_on_the_rest else n_sets
    transforms = repeated * -(-(t + 1) // 2), n_alphas * (1 + -(-t // 2)) if sizes.is_loo else -(-columns // 2)
    sums, predicted = (Step(stage, transform_work(p, count)) for stage, count in zip(STAGES, transforms, strict=True))
    seconds = site.seconds([sums, *solving, predicted], peak)
    details = replace(one.chosen.details, rank_limit=rank_limit)
    one = replace(one, chosen=replace(one.chosen, details=details))
    reason = Reason("sums-of-folds", "on a Fourier grid: a training set has the sums of the other folds")
    return ScoringPlan("primal", one, sizes, n_alphas, seconds, peak, (reason,))


def _primal_bytes(p: Problem, sizes: FoldSizes, resources: Resources, side: int) -> int:
    """Memory of the calling process: the sums of every fold, by every thread, and what is solved for."""
    t, n_columns = p.n_targets, p.n_targets * len(p.alphas)
    n_sets = 0 if sizes.is_loo else sizes.n_folds
    n_segments = parts_for_folds(p.n, side, max(1, n_sets), resources.local_threads)
    factors = len(p.alphas) if sizes.is_loo else 1
    sums = (n_segments * (n_sets + 1) + 2 + factors + n_sets.bit_length()) * 8 * side * (side + t + 1)
    coefs = (n_sets + 3) * 8 * side * n_columns
    map_bytes = 0 if p.feature_map is None else p.feature_map.held_bytes(p.d)
    row = 3 * 8 * (side + t) + 2 * p.most_bytes_of_row + (2 * 8 * n_columns if sizes.predicts else 0)
    blocks = n_segments * (strip_rows(max(side, p.d) + t) * row + p.read_overhead_bytes + map_bytes)
    predictions = 2 * 8 * p.n * n_columns if sizes.predicts else 0
    libraries = resources.local_threads * BYTES_PER_THREAD + PROCESS_MARGIN_BYTES
    return resources.local_baseline_bytes + sums + coefs + blocks + predictions + p.y_bytes_to_come + libraries


def _refits(problem: Problem, sizes: FoldSizes, resources: Resources, reason: Reason) -> ScoringPlan:
    t, n_alphas = problem.n_targets, len(problem.alphas)
    one = make_plan(replace(problem, n_targets=t * n_alphas), resources)
    reasons = (reason, *drawing_reasons(one.drawing))
    return ScoringPlan("refits", one, sizes, n_alphas, sizes.n_folds * one.seconds, one.peak_bytes, reasons)


def _paths(problem: Problem, sizes: FoldSizes, resources: Resources) -> ScoringPlan:
    """A path of fits through all λ to the training rows of every fold, which are read into memory."""
    one = make_plan(_of_rows(problem, n_of_fold(sizes, problem.n)), resources)
    text = "classes have no formula for the errors of folds: each fold has separate fits, each from the one before it"
    seconds = sizes.n_folds * one.seconds
    reasons = (Reason("paths-of-fits", text), *drawing_reasons(one.drawing))
    return ScoringPlan("paths", one, sizes, len(problem.alphas), seconds, one.peak_bytes, reasons)


def n_of_fold(sizes: FoldSizes, n: int) -> int:
    """Training rows of a fold of n rows."""
    return sizes.n_training or max(1, int(n * (1 - 1 / sizes.n_folds)))


def plan_sweep(problem: Problem, sizes: FoldSizes, resources: Resources) -> Iterator[ScoringPlan]:
    """Conjugate gradient with all folds and all λ as columns of one block."""
    if sizes.is_loo or isinstance(problem.solver, Cholesky):
        return
    each, t = sizes.n_sets * len(problem.alphas), problem.n_targets
    least = t if sizes.targets_together else 1
    width = max(least, min(t, MAX_SWEEP_COLUMNS // each))
    problem = problem.with_solver(ConjugateGradient(), ALL_IN_ONE_RUN)
    while True:
        races = sizes.races and len(problem.alphas) > RISES and width == t
        systems = replace(problem, n_folds=sizes.n_sets, n_targets=width, races=races)
        try:
            plan = make_plan(systems, resources)
            own = _calling_bytes(systems, plan, resources)
            break
        except MemoryLimitError:
            if width == least:
                raise
            width = max(least, width // 2)
    if plan.chosen.method.folds_by != "sweep":
        return
    text = "products with K serve all folds and all λ, and hold the predictions of the rows that are left out"
    reasons = [Reason("products-serve-all", text)]
    if systems.races:
        text = "the time is a mean over the λ that may be the best: all that are clearly worse are given up"
        reasons.append(Reason("lost-are-given-up", text))
    if not sizes.train_on_the_rest:
        reasons.append(NOT_THE_REST)
    peak = max(plan.peak_bytes, own)
    seconds = ceil(t / width) * plan.seconds
    yield ScoringPlan("sweep", plan, sizes, len(problem.alphas), seconds, peak, tuple(reasons))


def _calling_bytes(problem: Problem, plan: Plan, resources: Resources) -> int:
    """Memory of the calling process where workers hold tiles and factor: the columns, and small matrices of all sets.

    Raises
    ------
    MemoryLimitError
        If it is more than is allowed.
    """
    if plan.execution != "dask" or plan.chosen.method.folds_by != "sweep":
        return 0
    systems = problem.systems
    vectors = systems.n_vectors * 8 * problem.n * systems.n_columns
    rank: int = plan.chosen.details.rank
    own = resources.local_baseline_bytes + vectors + 8 * rank**2 * squares_of_factor(problem, resources.local_threads)
    if own > resources.local_limit_bytes:
        raise MemoryLimitError(
            f"the columns of all folds and λ need {format_bytes(own)} in the calling process, of the "
            f"{format_bytes(resources.local_limit_bytes)} that are allowed: increase memory_limit, or give fewer folds"
        )
    return own


def _factors(problem: Problem, sizes: FoldSizes, resources: Resources) -> Iterator[ScoringPlan]:
    """A Cholesky factor for each λ, and the blocks of its inverse that belong to folds."""
    if not sizes.train_on_the_rest or isinstance(problem.solver, ConjugateGradient):
        return
    one = make_plan(replace(problem, solver=Cholesky(), alphas=(_middle(problem.alphas),)), resources)
    n, threads = problem.n, resources.local_threads
    flops = n**3 / 3 if sizes.is_loo else folds_flops(n, sizes.n_folds)
    rate = float(np.interp(n, list(INVERSE_RATES), list(INVERSE_RATES.values())))
    width = 0 if sizes.is_loo else columns_at_once(n, sizes.n_folds)
    blocks = 8 * width * (n + width)
    peak = max(one.peak_bytes, resources.local_baseline_bytes) + blocks + threads * 8 * n * 512
    place = one.chosen.place
    limit = place.usable_bytes if place.is_memory else resources.local_limit_bytes
    if peak > limit:
        raise MemoryLimitError(
            f"the blocks of the inverse need {format_bytes(peak)} in the calling process, of the {format_bytes(limit)} "
            f"that are allowed: increase memory_limit, or use more folds"
        )
    blocks_used = ": the lengths of the columns of L⁻¹" if sizes.is_loo else " and the blocks of its inverse"
    reason = Reason("factor-serves-all", f"errors follow from a factor of all rows{blocks_used}")
    t, n_alphas = problem.n_targets, len(problem.alphas)
    products = 2.0 * n**2 * t * (1.0 if sizes.is_loo else 1.0 + 1.0 / sizes.n_folds)  # of the check; what folds solve
    recipe = [
        Step("held-out errors", Work(dense_flops=flops / rate, dense_side=n), n_alphas, "blas"),
        Step(
            "held-out errors", Work(gemm_flops=products, memory_bytes=float(ERROR_PASSES * 8 * n * t)), n_alphas, "blas"
        ),
    ]
    seconds = n_alphas * one.seconds + CostModel(problem, resources, place).seconds(recipe, peak)
    yield ScoringPlan("factors", one, sizes, n_alphas, seconds, peak, (reason,))


def _factors_of_folds(problem: Problem, sizes: FoldSizes, resources: Resources) -> Iterator[ScoringPlan]:
    """A Cholesky factor for each fold and λ, where no formula has the errors of folds."""
    if sizes.is_loo or sizes.train_on_the_rest or isinstance(problem.solver, ConjugateGradient):
        return
    problem = replace(problem, solver=Cholesky())
    whole = _refits(problem, sizes, resources, NOT_THE_REST)
    part = _refits(_of_rows(problem, sizes.n_training or problem.n), sizes, resources, NOT_THE_REST)
    yield replace(whole, seconds=part.seconds, peak_bytes=max(whole.peak_bytes, part.peak_bytes))


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


def plan_gradient(problem: Problem, sizes: FoldSizes, resources: Resources) -> ScoringPlan:
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
    sums, t = length_sums_bytes(problem.d), min(problem.n_targets, max(1, MAX_SWEEP_COLUMNS // sizes.n_folds))
    vectors = VECTORS_OF_GRADIENT * 8 * problem.n * sizes.n_folds * (t + 1)
    less = replace(
        resources,
        local_baseline_bytes=resources.local_baseline_bytes + vectors + resources.local_threads * sums,
        worker_baseline_bytes=resources.worker_baseline_bytes + resources.worker_threads * sums,
    )
    (plan,) = plan_sweep(problem.with_form("dual", DUAL_FOR_SLOPES), sizes, less)
    text = "two solves for all folds, and one pass over K for the derivatives by all lengths"
    return replace(plan, seconds=2 * plan.seconds, reasons=(Reason("two-solves", text),), asked=problem)


def whole_plan(
    kernels: Sequence[ScoringPlan],
    tol: float | None,
    n_last: int = 1,
    optimising: Optimising | None = None,
    left: Mapping[str, Any] = NOTHING_LEFT,
) -> SelectionPlan:
    """Plan of the scores of some kernels and of a fit of all rows with the best candidate.

    Parameters
    ----------
    kernels : sequence of ScoringPlan
    tol : float or None
        Accuracy of the last fit; None: there is none.
    n_last : int
        Most λ that the last fit has.
    optimising : Optimising, optional
    left : mapping, optional
        Fields of the problem of the last fit that say what it leaves for standard deviations and intervals.

    Raises
    ------
    PlanError
        If no plan of the last fit stays within the limits.
    """
    scores = SelectionPlan(tuple(kernels), None, optimising)
    if tol is None:
        return scores
    main = scores.main
    problem, features = main.asked, main.plan.chosen.features
    assert problem is not None
    alphas = sorted(problem.alphas)
    n_last = min(n_last, len(alphas))
    first = (len(alphas) - n_last + 1) // 2  # those in the middle
    problem = replace(problem, alphas=tuple(alphas[first : first + n_last]), tol=tol, layout=None, **left)
    problem = replace(problem, folds_are_fitted=problem.interval_folds > 0 and main.sizes.are_learned)
    if problem.uncertainty and (last := make_plan(problem, main.plan.resources, features)).chosen.keeps_factors:
        return replace(scores, last=last)
    if main.method != "sweep" or optimising is not None:
        return replace(scores, last=make_plan(problem, main.plan.resources, features))
    return _with_last_of_sweep(scores, problem, features)


def _with_last_of_sweep(scores: SelectionPlan, problem: Problem, features: FeatureMap | None) -> SelectionPlan:
    """Plan of a search whose last fit continues the run of the scores, or is separate where that takes less time.

    Where memory is short, folds leave little room for the columns of a preconditioner, and a fit of all rows alone has
    more of them, or a factor.
    """
    main, resources, n_last = scores.main, scores.main.plan.resources, len(problem.alphas)
    assert main.asked is not None
    rank, alphas = main.plan.chosen.details.rank, sorted(main.asked.alphas)
    counts = [dual_iterations(problem, rank, alpha) for alpha in alphas]
    mean = sum(counts) / len(counts)
    if n_last == 1:  # any λ may be the best one
        usual = min(range(len(alphas)), key=lambda k: (abs(counts[k] - mean), k))
        problem = replace(problem, alphas=(alphas[usual],))
    last = make_plan(continuing(problem, main), resources, features)
    left = CONTINUED_IN_RUN if len(scores.kernels) == 1 else CONTINUED_AFTER
    iterating = next(stage.seconds for stage in last.chosen.stages if stage.name == ITERATION_STAGE)
    once, _ = growth_seconds(last.problem, resources, main.plan.chosen)  # with the tiles that the run keeps
    left = left._replace(iterations=left.iterations * mean * once / iterating)
    continued = replace(scores, last=last, last_part=left)
    # A run in a store resumes with the columns that it began with, also where times are measured again.
    continues = len(scores.kernels) > 1 or problem.keeps_store
    if continues or seconds_of_fit(last, left).expected < MIN_OWN_FIT_SECONDS:
        return continued
    own = make_plan(problem, resources, features)
    alone = plan_scores(main.asked, replace(main.sizes, refit=False), resources, features)
    if main.curve:
        alone = with_parts(alone, main.curve)
    alone = replace(alone, reasons=(*alone.reasons, LAST_FIT_APART))
    apart = replace(scores, kernels=(alone,), last=own)
    if apart.seconds < continued.seconds:
        return apart
    direct = own.chosen if own.chosen.is_direct else own.chosen.otherwise
    return continued if direct is None else replace(continued, kernels=(replace(main, direct_seconds=direct.seconds),))
