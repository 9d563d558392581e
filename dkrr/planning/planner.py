"""Choosing among the candidates, with reasons; refusing what cannot be done."""

from dataclasses import replace
from typing import NoReturn

from dkrr.errors import DiskSpaceError, InputError, MemoryLimitError, PlanError, StoreError
from dkrr.planning.candidates import MAX_TILES_A_SIDE, TILES, dual_in_memory, primal_in_memory, tiled
from dkrr.planning.iterative import dual_iterative, primal_iterative
from dkrr.planning.logistic import dense, logistic_ways
from dkrr.planning.plan import Candidate, Plan
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Resources
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.units import format_bytes, format_count, format_seconds

SMALL_SECONDS = 3.0
"""Work below this stays in the calling process even when a client is there: shipping it would cost as much."""

TINY_SECONDS = 0.1
"""Work in memory below this is not compared with tiles, which it beats: pricing them would take as long."""

EQUAL_TIME = 1.03
"""Projected times that differ by less are alike; then the disk decides, and after it the bytes that are read."""
MORE_DISK = 1.25
"""Needs of disk that differ by less are alike."""

SURELY_FASTER = 2.0
"""By how much conjugate gradient must beat the direct solver to be chosen: its iterations are an estimate."""
MANY_ITERATIONS = 2000
"""Of conjugate gradient in primal form, where the spectrum is not known: if that many are still faster than a direct
solver, as with wide sparse rows, it is chosen."""
SPECTRUM_UNKNOWN = "its iterations cannot be estimated before the fit; give solver='cg' to use it"
DIRECT_IS_SOON_DONE = f"a factorisation takes no more than {SMALL_SECONDS:g} s, and is exact to rounding"
NOT_SURELY_FASTER = f"not {SURELY_FASTER:g} × faster, which the estimate of its iterations may be off by"

NOT_ENOUGH_MEMORY = "needs more memory than allowed"
NOT_SMALL = "there is a Dask client, and the work is not small"

LARGEST_DIMENSION = 10**12
"""Features of which even the coefficients of one target are out of the question (8 TB)."""
MAX_DIMENSION = 2_000_000
"""Features beyond which a normal matrix is out of the question and not even priced."""


def make_plan(problem: Problem, resources: Resources) -> Plan:
    """Cheapest way that stays within the limits.

    Parameters
    ----------
    problem : Problem
    resources : Resources

    Raises
    ------
    MemoryLimitError
        If no candidate fits in memory; names the smallest limit that would do.
    DiskSpaceError
        If those that fit in memory do not fit in the store.
    InputError
        If the form that was asked for does not exist for this kernel.
    PlanError
        If λ = 0 and no form has a positive definite matrix.
    """
    _check_tile(problem)
    forms, impossible = _forms(problem)
    if not forms:
        raise PlanError("; ".join(impossible))
    candidates = [_checked(c, resources) for form in forms for c in _ways(problem, resources, form)]
    if problem.solver is None:
        candidates = _without_gambles(candidates, problem)
    fitting = [c for c in candidates if not c.refused]
    if not fitting:
        _refuse(candidates, problem, resources)
    chosen = _cheapest(fitting)
    others = _best_of_each_kind([c for c in candidates if c is not chosen], chosen)
    return Plan(
        problem=problem,
        resources=resources,
        chosen=chosen,
        prediction=prediction_form(problem),
        reasons=tuple(_reasons(problem, resources, chosen, candidates) + impossible),
        rejected=tuple(others),
    )


def _cheapest(fitting: list[Candidate]) -> Candidate:
    """Fastest; of those about as fast the one that needs least disk, then the one that reads least."""
    fastest = min(c.seconds for c in fitting)
    equals = [c for c in fitting if c.seconds <= EQUAL_TIME * fastest]
    least_disk = min(c.disk_bytes for c in equals)
    return min((c for c in equals if c.disk_bytes <= MORE_DISK * least_disk), key=lambda c: (c.read_bytes, c.seconds))


def _ways(problem: Problem, resources: Resources, form: Form) -> list[Candidate]:
    """Candidates of one form, of the solvers that may be used."""
    layout, solver = problem.layout, problem.solver
    if layout is not None and isinstance(solver, Cholesky if layout.solver == "cg" else ConjugateGradient):
        raise StoreError(
            f"the store holds a run that began with solver={layout.solver!r}, and another was asked for; give the same "
            f"solver, or another store="
        )
    if problem.loss == "logistic":
        return _logistic_ways(problem, resources, form)
    wants_direct = not isinstance(solver, ConjugateGradient) and (layout is None or layout.solver == "cholesky")
    wants_iterative = not isinstance(solver, Cholesky) and (layout is None or layout.solver == "cg")
    ways: list[Candidate] = []
    if wants_direct:
        if not problem.wants_tiles:
            ways.append((dual_in_memory if form == "dual" else primal_in_memory)(problem, resources))
            if ways[0].seconds < TINY_SECONDS and not _checked(ways[0], resources).refused:
                return ways
        ways += tiled(problem, resources, form)
    if wants_iterative:
        settings = solver if isinstance(solver, ConjugateGradient) else ConjugateGradient()
        if form == "dual" and isinstance(settings.preconditioner, Float32Cholesky):
            ways += tiled(problem, resources, form)
        elif form == "dual":
            ways += dual_iterative(problem, resources, settings)
        elif settings.preconditioner in ("auto", None):
            ways += primal_iterative(problem, resources)
        elif problem.form == "primal" or problem.kernel.is_precomputed:
            raise InputError(
                f"preconditioner={settings.preconditioner!r} is made of columns of K and serves the dual form only; "
                f"use preconditioner='auto' or form='dual'"
            )
    return ways


def _logistic_ways(problem: Problem, resources: Resources, form: Form) -> list[Candidate]:
    if form == "dual" and not problem.wants_tiles and not isinstance(problem.solver, ConjugateGradient):
        whole = dense(problem, resources)
        if whole.seconds < TINY_SECONDS and not _checked(whole, resources).refused:
            return [whole]
    return logistic_ways(problem, resources, form)


def _without_gambles(candidates: list[Candidate], problem: Problem) -> list[Candidate]:
    """Refuse conjugate gradient where nobody asked for it and a direct solver may well be faster."""
    direct = min((c.seconds for c in candidates if c.solver == "cholesky" and not c.refused), default=None)
    if direct is None:
        return candidates
    known = problem.kernel.has_unit_diagonal and min(problem.alphas) > 0
    is_newton = problem.loss == "logistic"
    soon = direct <= SMALL_SECONDS and not is_newton

    def judged(c: Candidate) -> Candidate:
        if c.solver == "cholesky" or c.refused:
            return c
        if soon:
            return replace(c, refused=DIRECT_IS_SOON_DONE)
        if c.form == "primal":
            worst = c.seconds * max(1.0, MANY_ITERATIONS * problem.n_steps / max(c.iterations, 1))
            return c if worst <= direct else replace(c, refused=SPECTRUM_UNKNOWN)
        if not known:
            return replace(c, refused=SPECTRUM_UNKNOWN)
        # Steps of Newton's method are estimates for both solvers, and forgive systems that are not solved well.
        return c if is_newton or SURELY_FASTER * c.seconds <= direct else replace(c, refused=NOT_SURELY_FASTER)

    return [judged(c) for c in candidates]


def _check_tile(problem: Problem) -> None:
    """Refuse tiles so small that the scheduler would drown in tasks, in the form that has fewer of them."""
    sizes = {"dual": problem.n, "primal": problem.dimension or problem.n}
    n = min(sizes.values()) if problem.form is None else sizes[problem.form]
    if isinstance(problem.solver, ConjugateGradient) and not isinstance(problem.solver.preconditioner, Float32Cholesky):
        return  # its tiles are not tasks
    if problem.tile is not None and -(-n // problem.tile) > MAX_TILES_A_SIDE:
        raise InputError(
            f"tile={problem.tile} would cut a matrix of {n:,} rows into {-(-n // problem.tile):,} tiles a side; the "
            f"most is {MAX_TILES_A_SIDE}. Give tile={-(-n // MAX_TILES_A_SIDE)} or more, or None. Nothing was computed"
        )


def prediction_form(problem: Problem) -> Form:
    """Primal where φ is finite and no wider than the training set: O(D) a row instead of O(n d)."""
    dimension = problem.dimension
    return "primal" if dimension is not None and dimension <= max(problem.n, problem.d) else "dual"


def _forms(problem: Problem) -> tuple[list[Form], list[str]]:
    """Forms that are possible, and why the others are not."""
    dimension, forms, reasons = problem.dimension, list[Form](), list[str]()
    wanted = problem.form or (problem.layout.form if problem.layout else None)
    if problem.layout is not None and (
        wanted != problem.layout.form or (problem.layout.form == "primal" and dimension is None)
    ):
        raise StoreError(
            f"the store holds a run in {problem.layout.form} form, which this problem does not have or was not asked "
            f"for; give form='auto' or another store="
        )
    if wanted == "primal" and dimension is None:
        raise InputError(
            f"form='primal' needs a kernel with a finite feature map; "
            f"{type(problem.kernel).__name__} has none. Use form='dual' or form='auto'"
        )
    counting = problem.n if problem.n_counting is None else problem.n_counting
    rank = counting - (1 if problem.fit_intercept else 0)  # of centred rows
    singular = 0.0 in problem.alphas and wanted is None and dimension is not None
    if wanted != "dual" and dimension is not None:
        if singular and dimension > rank:
            reasons.append(
                f"primal is impossible: with alpha = 0, ΦᵀΦ has rank ≤ n = {rank:,} < D = {format_count(dimension)}"
            )
        elif dimension > MAX_DIMENSION and wanted is None:
            reasons.append(f"primal is out of the question: D = {format_count(dimension)} features")
        else:
            if dimension > LARGEST_DIMENSION:
                raise PlanError(
                    f"form='primal' is out of the question: D = {format_count(dimension)} features; use form='dual' or "
                    f"form='auto'. Nothing was computed"
                )
            forms.append("primal")
    if wanted != "primal":
        if singular and dimension is not None and dimension < counting:
            reasons.append(f"dual is impossible: with alpha = 0, K has rank ≤ D = {dimension:,} < n = {counting:,}")
        else:
            forms.append("dual")
    return forms, reasons


def _checked(c: Candidate, resources: Resources) -> Candidate:
    free = resources.disk_free_bytes if resources.enforce_disk else None
    if c.execution != "dask" and resources.cluster_is_running and c.seconds > SMALL_SECONDS:
        return replace(c, refused=NOT_SMALL)
    if c.peak_bytes > _usable_bytes(c, resources):
        return replace(c, refused=NOT_ENOUGH_MEMORY)
    if free is not None and c.disk_bytes > free:
        return replace(c, refused=f"needs {format_bytes(c.disk_bytes)} of disk, {format_bytes(free)} are free")
    return c


def _refuse(candidates: list[Candidate], problem: Problem, resources: Resources) -> NoReturn:
    """Say what is short: disk if memory would do, else memory."""
    possible = [c for c in candidates if c.refused != NOT_SMALL]
    if not possible or (all(c.execution == "memory" for c in possible) and problem.tile is None):
        dimension = "infinite" if problem.dimension is None else format_count(problem.dimension)
        raise PlanError(
            f"the matrix is too large for a factorisation (n = {problem.n:,}, D = {dimension}): "
            f"even tiles of {TILES[-1]:,} rows would be more than {MAX_TILES_A_SIDE} a side. Nothing was computed"
        )
    in_memory = [c for c in possible if c.peak_bytes <= _usable_bytes(c, resources)]
    if in_memory:
        least = min(in_memory, key=lambda c: c.disk_bytes)
        raise DiskSpaceError(
            f"not enough disk: the plan with the smallest need ({least.name}) takes {format_bytes(least.disk_bytes)} "
            f"in the store, {format_bytes(resources.disk_free_bytes or 0)} are free. Free some space, give store= or "
            f"dkrr.temporary-directory on a larger disk, or raise memory_limit. Nothing was computed"
        )
    if resources.cluster_is_running:
        possible = [c for c in possible if c.execution == "dask"] or possible
    needed, least = min(((_needed_limit(c, resources), c) for c in possible), key=lambda pair: pair[0])
    if resources.cluster_is_running:
        allowed = f"a worker of the Dask client has {format_bytes(resources.worker_limit_bytes)}"
        remedy = f"Start workers with a memory limit of at least {format_bytes(1.005 * needed)} ({needed} bytes) each"
    elif resources.confined:
        allowed = f"{format_bytes(resources.local_limit_bytes)} are allowed; the work must be done {resources.confined}"
        limit, name = resources.confined_limit(needed)
        remedy = f"The smallest {name} that would do is {format_bytes(1.005 * limit)} ({limit} bytes)"
    else:
        total = max(resources.worker_limit_bytes * resources.n_workers, resources.local_limit_bytes)
        given = "memory_limit" if resources.limit_is_given else "the memory of this machine or job"
        allowed = f"{given} is {format_bytes(total)} for {resources.n_workers} workers together"
        remedy = f"The smallest memory_limit that would do is {format_bytes(1.005 * needed)} ({needed} bytes)"
    raise MemoryLimitError(
        f"no plan fits in memory: the smallest ({least.name}) needs {format_bytes(least.peak_bytes)} in one process, "
        f"and {allowed}. {remedy}. Nothing was computed"
    )


def _usable_bytes(c: Candidate, resources: Resources) -> int:
    return int(c.limit_bytes * (resources.usable_fraction if c.execution == "dask" else 1.0))


def _needed_limit(c: Candidate, resources: Resources) -> int:
    """Value of memory_limit (or of a worker's limit) with which a candidate would fit."""
    if c.execution != "dask":
        return c.peak_bytes
    each = int(c.peak_bytes / resources.usable_fraction) + 2
    # A limit is divided among all workers before fewer of them share it, which rounds.
    return each if resources.cluster_is_running else each * c.n_workers + resources.n_workers


def _best_of_each_kind(candidates: list[Candidate], chosen: Candidate) -> list[Candidate]:
    """Best of each form, place and outcome, so that the explanation stays short."""
    best: dict[tuple[str, str, str, bool], Candidate] = {}
    for c in sorted(candidates, key=lambda c: (bool(c.refused), c.seconds)):
        best.setdefault((c.form, c.solver, c.execution, bool(c.refused)), c)
    kept = [
        c
        for c in best.values()
        if c.name != chosen.name
        # A refused tile size says nothing where another of the same kind works.
        and not (
            c.refused
            and (
                (c.form, c.solver, c.execution, False) in best
                or (c.form, c.solver, c.execution) == (chosen.form, chosen.solver, chosen.execution)
            )
        )
    ]
    return sorted(kept, key=lambda c: (bool(c.refused), c.seconds))


def _reasons(problem: Problem, resources: Resources, chosen: Candidate, candidates: list[Candidate]) -> list[str]:
    p, dimension = problem, problem.dimension
    reasons = _shortages(resources, chosen)
    if p.layout is not None:
        reasons.append("the store holds a run that began with this form and these tiles; it goes on")
    if p.form is not None:
        reasons.append(f"form='{p.form}' was asked for")
    elif dimension is None:
        reasons.append("dual, since the kernel has no finite feature map")
    else:
        best = {
            form: min((c.seconds for c in candidates if c.form == form and not c.refused), default=None)
            for form in ("primal", "dual")
        }
        other = "dual" if chosen.form == "primal" else "primal"
        time = best[other]
        against = f"; {other} would take about {format_seconds(time)}" if time is not None else ""
        reasons.append(f"{chosen.form}, since D = {format_count(dimension)} features against n = {p.n:,} rows{against}")
    if resources.confined:
        reasons.append(resources.confined)
    if chosen.solver == "cg":
        return reasons + _iterative_reasons(problem, chosen, candidates)
    reasons += _place_reasons(problem, chosen, candidates)
    if p.tile is not None and p.layout is None:
        reasons.append(f"tile={p.tile} was asked for")
    elif chosen.execution != "memory" and p.layout is None:
        reasons.append(
            "larger tiles read less, smaller ones keep the workers evenly busy: this size is fastest of both"
        )
    return reasons


def _shortages(resources: Resources, chosen: Candidate) -> list[str]:
    """What a plan takes that is not here, where it may be meant for another machine or another time."""
    reasons, free, limit = [], resources.disk_free_bytes, resources.worker_limit_bytes * resources.n_workers
    if free is not None and chosen.disk_bytes > free:
        reasons.append(
            f"only {format_bytes(free)} of disk are free here: a fit needs store= or dkrr.temporary-directory elsewhere"
        )
    here = resources.memory_bytes
    if resources.limit_is_given and here is not None and not resources.cluster_is_running and limit > here:
        reasons.append(
            f"memory_limit={format_bytes(limit)} is more than the {format_bytes(here)} that this machine or job can "
            f"give now"
        )
    return reasons


def _place_reasons(p: Problem, chosen: Candidate, candidates: list[Candidate]) -> list[str]:
    """Why the work of a direct solver is done where it is."""
    if p.loss == "logistic" and chosen.form == "primal":
        return ["the curvature is a matrix in the calling process; the rows are streamed, a pass for each step"]
    if chosen.execution == "memory":
        return ["in the calling process, since everything fits in memory and that is fastest"]
    if p.keeps_store:
        return ["tiles on disk, since store= asks for a run that can be resumed"]
    whole = next((c for c in candidates if c.execution == "memory" and c.form == chosen.form), None)
    if whole is None:
        return []
    if whole.refused == NOT_ENOUGH_MEMORY:
        return [
            f"tiles on disk, since in memory one process would need {format_bytes(whole.peak_bytes)} "
            f"of {format_bytes(whole.limit_bytes)}"
        ]
    return ["on Dask, since that is faster" if not whole.refused else f"on Dask, since {whole.refused}"]


def _iterative_reasons(problem: Problem, chosen: Candidate, candidates: list[Candidate]) -> list[str]:
    c, reasons = chosen, []
    direct = [d for d in candidates if d.solver == "cholesky" and d.form == c.form]
    possible = min((d for d in direct if not d.refused), key=lambda d: d.seconds, default=None)
    if isinstance(problem.solver, ConjugateGradient):
        reasons.append("conjugate gradient was asked for")
    elif possible is not None:
        reasons.append(
            f"conjugate gradient, since {'factorisations' if problem.loss == 'logistic' else 'a factorisation'} would "
            f"take about {format_seconds(possible.seconds)} and {format_bytes(possible.disk_bytes)} of disk"
        )
    elif direct:
        reasons.append(f"conjugate gradient, since a factorisation {direct[0].refused}")
    else:
        reasons.append("conjugate gradient, since the matrix is too large for a factorisation")
    if c.has_factor:
        reasons.append("a factor in float32 takes half the disk and half the time; float64 follows if it breaks down")
        return reasons
    if c.execution == "memory":
        reasons.append("in the calling process, since its threads do as much as workers would")
    elif c.execution == "serial":
        kept = "checkpoints in the store" if problem.keeps_store else "its tiles in a temporary store"
        reasons.append(f"in the calling process, with {kept}")
    if isinstance(problem.solver, ConjugateGradient) and problem.solver.rank is not None:
        reasons.append(f"a preconditioner of rank {c.rank:,} was asked for")
    elif c.rank:
        reasons.append(
            f"a preconditioner of rank {c.rank:,}: more would take longer to make than it saves, or not fit in memory; "
            f"the spectrum, once seen, may stop it earlier or let it grow to {c.rank_limit:,}"
        )
    if c.form == "dual" and c.precision == "float32":
        reasons.append("products in float32 are about half the time; the residual that counts is computed in float64")
    return reasons + _tile_reasons(problem, c, candidates)


def _tile_reasons(problem: Problem, c: Candidate, candidates: list[Candidate]) -> list[str]:
    """Why the tiles of the dual form are kept, formed again at every pass or read from disk."""
    n_tiles = c.n_tiles * (c.n_tiles + 1) // 2
    if c.form != "dual" or problem.kernel.is_precomputed or (c.kept_tiles * c.slots >= n_tiles and not c.stores_tiles):
        return []
    whole = n_tiles * c.tile**2 * (4 if c.precision == "float32" else 8)
    too_large = f"the whole matrix would take {format_bytes(whole)} of memory"
    others = [d for d in candidates if d.solver == "cg" and d.form == "dual" and not d.has_factor and not d.refused]
    best = min((d.seconds for d in others if d.stores_tiles != c.stores_tiles), default=None)
    if not c.stores_tiles:
        if best is None:
            return [f"{too_large}; its tiles are formed again at every pass"]
        return [f"{too_large}; forming tiles again takes less time than a disk (about {format_seconds(best)} in all)"]
    reasons = [f"{too_large}; its tiles are formed once and read from disk at every pass"]
    if best is not None:
        reasons[0] += f", as forming them again would take longer (about {format_seconds(best)} in all)"
    if c.cold_part > 0:
        reasons.append(
            f"{c.cold_part:.0%} of the tiles are more than the system's cache of files has memory for, and come from "
            f"the disk itself at every pass"
        )
    return reasons
