"""Choosing among the candidates, with reasons; refusing what cannot be done."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from dkrr.cost import Stage
from dkrr.errors import DiskSpaceError, InputError, MemoryLimitError, PlanError, WrongStoreError
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.planning import target_batches
from dkrr.planning.drawing import Drawing
from dkrr.planning.explain import EQUAL_TIME, NO_FACTOR_LEFT, NOT_ENOUGH_MEMORY, SMALL_SECONDS
from dkrr.planning.growing import as_if_new, growth_reason, instead_of_growing
from dkrr.planning.iterations_first import doubt, is_soon_done, watched
from dkrr.planning.plan import Plan
from dkrr.planning.problem import Form, Layout, Problem
from dkrr.planning.resources import WORKER_BASELINE_BYTES, Resources
from dkrr.planning.strategy import Method, Solver, Strategy
from dkrr.planning.tile_sizes import MAX_TILES_PER_SIDE, TILE_SIZES
from dkrr.text import NO_REASON, Reason, format_bytes, format_count, plural

TINY_SECONDS = 0.1
"""Work in memory below this is not compared with anything else: pricing that would take as long."""
MIN_COMPARED_SECONDS = 60.0
"""Work in memory below this is not compared with tiles on disk, which are slower: to price those takes 0.1 s."""

MORE_DISK = 1.25
"""Ratio of disk space below which it counts as equal."""

NOT_SMALL = Reason("not-small", "a Dask client exists, and the work is not small")
NOT_SMALL_FOR_CLUSTER = Reason("not-small", "the plan is for a cluster, and the work is not small")

MAX_DIMENSION = 10**12
"""Features of which the coefficients of one target alone would take 8 TB."""
MAX_AUTO_DIMENSION = 2_000_000
"""Features beyond which a normal matrix is too large and not even priced."""


def choose(methods: Sequence[Method], problem: Problem, resources: Resources, drawing: Drawing | None = None) -> Plan:
    """Cheapest strategy that stays within the limits.

    Parameters
    ----------
    methods : sequence of Method
        In the order in which candidates are priced.
    problem : Problem
    resources : Resources
    drawing : Drawing, optional
        Centres that the calling process draws before the fit.

    Raises
    ------
    MemoryLimitError
        If no candidate fits in memory; names the smallest limit that suffices.
    DiskSpaceError
        If those that fit in memory do not fit in the store.
    InputError
        If the requested form does not exist for this kernel, or not for this preconditioner.
    PlanError
        If λ = 0 and no form has a positive definite matrix.
    """
    forms, impossible = _forms(problem)
    if not forms:
        raise PlanError("; ".join(impossible))
    if problem.layout is not None:
        _check_layout(problem.layout, problem)
    if problem.interval_folds and not problem.folds_are_fitted:
        _check_intervals(problem)
    is_small = problem.layout is None and problem.y_bytes <= target_batches.WHOLE_BYTES
    batch = target_batches.batch_of(problem, resources) if "dual" in forms and not is_small else 0
    if batch != problem.batch:
        problem = replace(problem, batch=batch)
    candidates = list[Strategy]()
    for form in forms:
        candidates += _candidates(methods, problem, resources, form)
    if not candidates and forms == ["primal"]:
        _refuse_columns_of_gram(problem, impossible)
    if problem.solver is None and len(candidates) > 1:
        candidates = _refuse_doubtful(candidates, problem)
    if problem.uncertainty:
        candidates = _refuse_without_factor(candidates, problem)
    if drawing is not None and candidates:
        if not drawing.is_done:
            _refuse_drawing(drawing, candidates, resources)
        candidates = [_after_drawing(c, drawing.stage) for c in candidates]
    fitting = candidates if len(candidates) == 1 else [c for c in candidates if not c.refused]
    if not fitting or fitting[0].refused:
        _refuse(methods, candidates, problem, resources)
    cheapest = _cheapest(fitting, resources)
    is_complete = cheapest.method.is_direct and not problem.folds_are_fitted
    keeps = problem.n_kept_rows > 0 and cheapest.form == "dual" and cheapest.method.factors_matrix
    grows = keeps and problem.n_kept_rows < problem.n
    new_fits = _candidates(methods, as_if_new(problem), resources, cheapest.form) if grows else []
    chosen = cheapest if is_complete else _completed(methods, cheapest, candidates, problem, resources)
    return Plan(
        problem=problem,
        resources=resources,
        chosen=chosen,
        prediction=prediction_form(problem),
        candidates=(cheapest, *(c for c in candidates if c is not cheapest)) if len(candidates) > 1 else (cheapest,),
        drawing=drawing,
        impossible=tuple(impossible),
        compared=instead_of_growing(cheapest, new_fits) if new_fits else (),
        more=(growth_reason(problem, cheapest, new_fits),) if keeps else (),
    )


def _cheapest(fitting: list[Strategy], resources: Resources) -> Strategy:
    """Fastest; among those about as fast the fastest of those that need least disk.

    Where several machines share the store, whose rate is least certain, it is the one of those that reads least.
    """
    if len(fitting) == 1:  # as where the first that is priced is as fast as any
        return fitting[0]
    fastest = min(c.seconds for c in fitting)
    equals = [c for c in fitting if c.seconds <= EQUAL_TIME * fastest]
    least_disk = min(c.disk_bytes for c in equals)
    equals = [c for c in equals if c.disk_bytes <= MORE_DISK * least_disk]
    return min(equals, key=lambda c: (c.read_bytes if resources.n_hosts > 1 else 0.0, c.seconds, c.read_bytes))


def _check_layout(layout: Layout, problem: Problem) -> None:
    """Refuse a store whose run began with another solver, or continues with one that took over."""
    if not layout.is_of(problem.solver):
        verb = "continues" if layout.given_up else "began"
        raise WrongStoreError(
            f"the store {layout.store} holds a run that {verb} with solver={layout.solver!r}, but another was "
            f"requested{_by_device(problem)}; give the same solver, or another store="
        )


def _by_device(problem: Problem) -> str:
    return ", by device='cuda'" if problem.device == "cuda" else ""


def _check_intervals(problem: Problem) -> None:
    """Refuse models that leave out folds where no factor is made from which they follow."""
    if isinstance(problem.settings, ConjugateGradient):
        layout = problem.layout
        began = "solver is 'cg'" if layout is None else f"the run in {layout.store} began with solver={layout.solver!r}"
        expected = "solver='auto' or 'cholesky'" if layout is None else "another store="
        raise InputError(
            f"uncertainty is 'intervals', and {began}: the models without a fold follow from a Cholesky factor in "
            f"float64; expected {expected}, or uncertainty=True"
        )
    dimension, n = problem.dimension, problem.n if problem.n_positive_weights is None else problem.n_positive_weights
    if 0.0 in problem.alphas and dimension is not None and dimension < n:
        raise InputError(
            f"uncertainty is 'intervals', and alpha is 0: the models without a fold follow from a Cholesky factor of "
            f"K, which with D = {plural(dimension, 'feature')} for {plural(n, 'row')} is singular; expected alpha > 0, "
            f"or uncertainty=True"
        )


def _refuse_drawing(drawing: Drawing, candidates: list[Strategy], resources: Resources) -> None:
    """Refuse centres that the calling process has no memory to draw; that of a cluster to come is not known."""
    needed = drawing.stage.peak_bytes
    if needed <= resources.local_limit_bytes or resources.assumed:
        return
    allowed = f"{format_bytes(resources.local_limit_bytes)} are allowed there: increase memory_limit"
    if not resources.cluster_is_running:
        if all(c.refused for c in candidates):
            needed = max(needed, min(_needed_limit(c, resources) for c in candidates))
        allowed = _allowed_and_remedy(needed, resources)
    count, taken = plural(drawing.n_centres, "centre"), format_bytes(drawing.stage.peak_bytes)
    less = "fewer centres" if drawing.is_uniform else "pivots='uniform' or fewer centres"
    raise MemoryLimitError(
        f"{count} of Nystroem need {taken} in the calling process while they are drawn, and {allowed}; {less} need "
        f"less. Nothing was computed"
    )


def _after_drawing(c: Strategy, stage: Stage) -> Strategy:
    """Strategy with the stage that draws centres first; on workers its memory, the caller's, does not count."""
    return replace(c, stages=(replace(stage, peak_bytes=0) if c.execution == "dask" else stage, *c.stages))


def _with_fits_of_folds(c: Strategy, problem: Problem) -> Strategy:
    """Strategy with the models that leave out folds, where each is a separate fit."""
    seconds = problem.interval_folds * c.seconds
    return replace(c, stages=(*c.stages, Stage("held-out models", seconds, peak_bytes=c.peak_bytes)))


def _candidates(methods: Sequence[Method], problem: Problem, resources: Resources, form: Form) -> list[Strategy]:
    """All strategies in one form, with the reasons against those that are impossible."""
    found: list[Strategy] = []
    soon_done, wanted = False, None if problem.solver is None and problem.layout is None else _wanted(problem)
    is_of_grids = form == "primal" and problem.feature_map is not None and problem.feature_map.is_transform
    for method in methods:
        if method.form != form or problem.loss not in method.losses or method.is_of_grids != is_of_grids:
            continue
        if problem.device not in ("auto", method.device):
            continue
        # Iterations are not priced where a factorisation takes hardly longer than that.
        if (soon_done and method.solver == "cg") or (wanted and not method.answers(wanted, problem.loss)):
            continue
        for c in method.candidates(problem, resources):
            refused = _refusal(c, resources)
            found.append(replace(c, refused=refused) if refused else c)
            if not refused and method.factors_matrix and c.place.execution == "memory":
                if c.seconds < TINY_SECONDS:
                    return found
                soon_done |= problem.solver is None and is_soon_done(problem, c.seconds)
                if c.seconds < MIN_COMPARED_SECONDS:
                    break
    return found


def _wanted(problem: Problem) -> Solver | None:
    """Solver that was requested, or that began the run in the store; None: the planner chooses."""
    settings = problem.settings
    if isinstance(settings, ConjugateGradient):
        return "float32" if isinstance(settings.preconditioner, Float32Cholesky) else "cg"
    return None if settings is None else "cholesky"


def _completed(
    methods: Sequence[Method], c: Strategy, candidates: list[Strategy], problem: Problem, resources: Resources
) -> Strategy:
    """Strategy with what may take over from its iterations, and with models that leave out folds."""
    if not c.is_direct:
        c = watched(problem, c, _that_may_take_over(methods, candidates, problem, resources))
    return _with_fits_of_folds(c, problem) if problem.folds_are_fitted else c


def _that_may_take_over(
    methods: Sequence[Method], candidates: list[Strategy], problem: Problem, resources: Resources
) -> list[Strategy]:
    """Candidates, with direct ones; those of a run that began with iterations are of them alone."""
    layout = problem.layout
    if layout is None or layout.solver != "cg" or problem.solver is not None:
        return candidates
    return _candidates(methods, replace(problem, layout=None, solver=Cholesky()), resources, layout.form)


def _refuse_doubtful(candidates: list[Strategy], problem: Problem) -> list[Strategy]:
    """Refuse iterative solvers whose estimate may be wrong where a direct solver is possible."""
    direct = min((c.seconds for c in candidates if c.is_direct and not c.refused), default=None)
    if direct is None:
        return candidates
    doubts = [c.refused if c.is_direct else c.refused or doubt(problem, c, direct) for c in candidates]
    return [replace(c, refused=why) if why else c for c, why in zip(candidates, doubts, strict=True)]


def _refuse_without_factor(candidates: list[Strategy], problem: Problem) -> list[Strategy]:
    """Refuse strategies that leave no factor for standard deviations, where one that does is possible.

    The models that leave out folds always take one.
    """
    is_needed = problem.interval_folds > 0 and not problem.folds_are_fitted
    is_possible = problem.solver is None and any(c.keeps_factors and not c.refused for c in candidates)
    if not (is_needed or is_possible):
        return candidates
    is_other = [not c.keeps_factors and (is_needed or not c.refused) for c in candidates]
    return [replace(c, refused=NO_FACTOR_LEFT) if other else c for c, other in zip(candidates, is_other, strict=True)]


def prediction_form(problem: Problem) -> Form:
    """Primal where φ is finite and no wider than the training set: O(D) a row instead of O(n d)."""
    dimension = problem.dimension
    return "primal" if dimension is not None and dimension <= max(problem.n, problem.d) else "dual"


def _forms(problem: Problem) -> tuple[list[Form], list[Reason]]:
    """Forms that are possible, and why the others are not."""
    dimension = problem.dimension
    wanted = problem.form or (problem.layout.form if problem.layout else None)
    if wanted is not None:
        _check_form(problem, wanted)
        return [wanted], []
    if problem.feature_map is not None and problem.feature_map.is_transform:
        return ["primal"], []
    if dimension is None:
        return ["dual"], []
    against: dict[Form, Reason] = {"primal": Reason(), "dual": Reason()}
    n = problem.n if problem.n_positive_weights is None else problem.n_positive_weights
    rank = n - (1 if problem.fit_intercept else 0)  # of centred rows
    is_singular = 0.0 in problem.alphas
    if is_singular and dimension > rank:
        against["primal"] = Reason(
            "primal-is-singular",
            f"primal is impossible: with alpha = 0, ΦᵀΦ has rank ≤ n = {rank:,} < D = {format_count(dimension)}",
        )
    elif dimension > MAX_AUTO_DIMENSION:
        against["primal"] = Reason(
            "primal-is-too-large", f"primal is too large: D = {format_count(dimension)} features"
        )
    if is_singular and dimension < n:
        against["dual"] = Reason(
            "dual-is-singular", f"dual is impossible: with alpha = 0, K has rank ≤ D = {dimension:,} < n = {n:,}"
        )
    return [form for form, why in against.items() if not why], [why for why in against.values() if why]


def _check_form(problem: Problem, wanted: Form | None) -> None:
    """Refuse a form that the kernel or the store does not have."""
    dimension, layout = problem.dimension, problem.layout
    if layout is not None and (wanted != layout.form or (layout.form == "primal" and dimension is None)):
        raise WrongStoreError(
            f"the store {layout.store} holds a run in {layout.form} form, which this problem does not have or which "
            f"was not requested; give form='auto' or another store="
        )
    if wanted != "primal":
        return
    if dimension is None:
        raise InputError(
            f"form is 'primal'; expected a kernel with a finite feature map, which {type(problem.kernel).__name__} "
            f"does not have: use form='dual' or form='auto'"
        )
    if dimension > MAX_DIMENSION:
        raise PlanError(
            f"form is 'primal'; expected at most {MAX_DIMENSION:,} features, not D = {format_count(dimension)}: use "
            f"form='dual' or form='auto'. Nothing was computed"
        )


def _refusal(c: Strategy, resources: Resources) -> Reason:
    """Why a candidate cannot be chosen; empty if it can."""
    free = resources.disk_free_bytes if resources.enforce_disk else None
    if c.place.execution != "dask" and resources.cluster_is_running and c.seconds > SMALL_SECONDS:
        return NOT_SMALL_FOR_CLUSTER if resources.assumed else NOT_SMALL
    if c.peak_bytes > c.place.usable_bytes:
        return NOT_ENOUGH_MEMORY
    if free is not None and c.disk_bytes > free:
        return Reason("disk", f"needs {format_bytes(c.disk_bytes)} of disk, {format_bytes(free)} are free")
    return NO_REASON


def _refuse(methods: Sequence[Method], candidates: list[Strategy], problem: Problem, resources: Resources) -> NoReturn:
    """Report what is too small: the tiles, the disk if the memory is enough, or the memory."""
    if not candidates and problem.device == "cuda":
        raise PlanError("device is 'cuda', where only conjugate gradient in dual form runs; expected device='auto'")
    possible = [c for c in candidates if c.refused not in (NOT_SMALL, NOT_SMALL_FOR_CLUSTER, NO_FACTOR_LEFT)]
    is_too_large = all(c.execution == "memory" and c.is_direct for c in possible) and problem.tile is None
    if is_too_large:
        dimension = "infinite" if problem.dimension is None else format_count(problem.dimension)
        iterative = _conjugate_gradient_with_room(methods, problem, resources, candidates[0].form) if candidates else ""
        raise PlanError(
            f"the matrix is too large for a factorisation (n = {problem.n:,}, D = {dimension}): even tiles of "
            f"{TILE_SIZES[-1]:,} rows would be more than {MAX_TILES_PER_SIDE} per side"
            f"{iterative and f': {iterative}'}. Nothing was computed"
        )
    in_memory = [c for c in possible if c.fits]
    if in_memory:
        least = min(in_memory, key=lambda c: c.disk_bytes)
        free = format_bytes(resources.disk_free_bytes or 0)
        iterative = _conjugate_gradient_with_room(methods, problem, resources, least.form)
        or_iterative = f", {iterative}" if iterative else ""
        raise DiskSpaceError(
            f"not enough disk: the plan with the smallest need ({least.summary()}) takes "
            f"{format_bytes(least.disk_bytes)} in the store, {free} are free. Free some space, give store= or "
            f"dkrr.temporary-directory on a larger disk{or_iterative}, or raise memory_limit. Nothing was computed"
        )
    if resources.cluster_is_running:
        possible = [c for c in possible if c.execution == "dask"] or possible
    needed, least = min(((_needed_limit(c, resources), c) for c in possible), key=lambda pair: pair[0])
    raise MemoryLimitError(
        f"no plan fits in memory: the smallest ({least.summary()}) needs {format_bytes(least.peak_bytes)} in one "
        f"process, and {_allowed_and_remedy(needed, resources)}. Nothing was computed"
    )


def _conjugate_gradient_with_room(methods: Sequence[Method], problem: Problem, resources: Resources, form: Form) -> str:
    """Words for conjugate gradient as a remedy; empty where it has no room either, or leaves no factor for folds."""
    if problem.interval_folds and not problem.folds_are_fitted:
        return ""
    found = _candidates(methods, replace(problem, solver=ConjugateGradient()), resources, form)
    return "" if all(c.refused for c in found) else "give solver='cg' (conjugate gradient), which fits"


def _allowed_and_remedy(needed: int, resources: Resources) -> str:
    """Memory that is allowed, and the limit that is enough."""
    if resources.assumed:
        given = format_bytes(resources.worker_limit_bytes)
        return f"worker_memory is {given}. The smallest worker_memory that suffices is {_exactly(needed)}"
    if resources.cluster_is_running:
        has = f"a worker of the Dask client has {format_bytes(resources.worker_limit_bytes)}"
        remedy = f"Start workers with a memory limit of at least {_exactly(needed)} each"
        if resources.worker_baseline_bytes > WORKER_BASELINE_BYTES:
            has += f", of which {format_bytes(resources.worker_baseline_bytes)} are in use now"
            remedy += ", or wait until other work on them has ended"
        return f"{has}. {remedy}"
    if resources.confined:
        limit, name = resources.confined_limit(needed)
        return (
            f"{format_bytes(resources.local_limit_bytes)} are allowed; the work must be done {resources.confined}. "
            f"The smallest {name} that suffices is {_exactly(limit)}"
        )
    if resources.process_limit_bytes == resources.local_limit_bytes:
        return (
            f"a process may hold {format_bytes(resources.local_limit_bytes)} within its limit of addresses (ulimit -v "
            f"or -d, RLIMIT_AS or RLIMIT_DATA), which memory_limit does not raise: raise or remove that one"
        )
    total = max(resources.worker_limit_bytes * resources.n_workers, resources.local_limit_bytes)
    given = "memory_limit" if resources.limit_is_given else "the memory of this machine or job"
    return (
        f"{given} is {format_bytes(total)} for {plural(resources.n_workers, 'worker')} together. The smallest "
        f"memory_limit that suffices is {_exactly(needed)}"
    )


def _refuse_columns_of_gram(problem: Problem, against_dual: Sequence[str]) -> None:
    """Refuse a preconditioner made of columns of K where only the primal form is left.

    Raises
    ------
    InputError
        Naming the preconditioner, after the reasons against the dual form.
    """
    preconditioner = problem.iteration_settings.preconditioner
    if preconditioner in ("auto", None):
        return
    remedy = (
        "set alpha > 0 or use preconditioner='auto'" if against_dual else "use preconditioner='auto' or form='dual'"
    )
    refusal = (
        f"preconditioner is {preconditioner!r}; expected 'auto' or None in the primal form, as it is made of columns "
        f"of K: {remedy}"
    )
    raise InputError("; ".join([*against_dual, refusal]))


def _exactly(n_bytes: int) -> str:
    """Bytes in words, rounded up, and as a number."""
    return f"{format_bytes(1.005 * n_bytes)} ({n_bytes} bytes)"


def _needed_limit(c: Strategy, resources: Resources) -> int:
    """Value of memory_limit (or of a worker's limit) with which a candidate would fit."""
    if c.execution != "dask":
        return c.peak_bytes
    each = int(c.peak_bytes / resources.usable_fraction) + 2
    # A limit is divided among all workers before fewer of them share it, which rounds.
    return each if resources.cluster_is_running else each * c.n_workers + resources.n_workers
