"""Newton's method for kernel logistic regression, and what it costs.

A step costs what the same form and solver cost for ridge regression: a system with another diagonal, and a few products
with K. How many steps there are is an estimate (`Problem.n_steps`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Cost, Stage
from dkrr.errors import PlanError
from dkrr.linalg.cholesky import factor_bytes
from dkrr.linalg.inverse import apply_bytes, apply_cost
from dkrr.linalg.likelihood import SECONDS_PER_SCORE
from dkrr.linalg.memory import memory_bytes, memory_cost, memory_grid
from dkrr.linalg.tiled_operator import pass_cost
from dkrr.planning.direct import (
    Direct,
    TileChoice,
    dual_tiled,
    feature_bytes,
    gram_in_memory_bytes,
    gram_in_memory_stages,
    rows_at_once,
    sharing_stages,
    tile_choices,
    tile_reasons,
)
from dkrr.planning.float32_factor import Float32Factor
from dkrr.planning.iteration import (
    MANY_ITERATIONS,
    Iterative,
    RowPasses,
    caller_and_workers,
    doubt_of_spectrum,
    dual_iterative,
    is_held,
    primal_iterations_expected,
    reading_seconds,
    stream_seconds,
    streamed_entries,
)
from dkrr.planning.limits import PROCESS_MARGIN_BYTES
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Place, Resources
from dkrr.planning.strategy import Settings, Strategy, Systems, Tiling
from dkrr.solvers import Cholesky
from dkrr.solvers.dual_objective import VECTORS_HELD
from dkrr.solvers.newton import (
    COUPLED_ITERATIONS,
    CURVATURE_SHIFT,
    INNER_TOL,
    INNER_WITH_FACTOR,
    PASSES_PER_STEP,
    SECONDS_PER_STEP,
    SECONDS_PER_STEP_IN_MEMORY,
)
from dkrr.solvers.primal_objective import MAX_MATRIX_SIDE
from dkrr.tiles import TileGrid

Inner = Direct | Iterative | Float32Factor


@dataclass(frozen=True, kw_only=True)
class Newton(Strategy):
    """Newton's method, whose systems are solved in one of the ways of ridge regression."""

    inner: Inner
    n_steps: int

    @classmethod
    def serves(cls, settings: Settings) -> bool:  # noqa: ARG003
        return True

    @classmethod
    def candidates(cls, problem: Problem, resources: Resources, form: Form) -> Iterator["Newton"]:
        for inner, candidates in INNER[form].items():
            if inner.serves(problem.settings):
                yield from candidates(problem, resources)

    @property
    def uses_threads(self) -> bool:
        return self.form == "primal" or isinstance(self.inner, Iterative)

    @property
    def for_systems(self) -> Inner:
        return self.inner

    @property
    def is_whole(self) -> bool:
        return self.form == "dual" and self.inner.is_whole

    @property
    def streams(self) -> bool:
        """Rows are streamed, and the matrix of all features is in the calling process."""
        return self.form == "primal" and isinstance(self.inner, Direct)

    def summary(self) -> str:
        return self.inner.summary()

    def lines(self, problem: Problem) -> list[str]:
        by = "Cholesky"
        if isinstance(self.inner, Float32Factor):
            by = "conjugate gradient with factors in float32"
        elif isinstance(self.inner, Iterative):
            by = "conjugate gradient" + (f" with a factor of rank about {self.inner.rank:,}" if self.inner.rank else "")
        in_all = "" if isinstance(self.inner, Direct) else f", {self.inner.iterations:,} iterations in all"
        _, where, *matrix = self.inner.lines(problem)
        return [
            f"  solver      Newton to a relative gradient of {problem.tol:.0e}, by {by}; about {self.n_steps} "
            f"steps{in_all} (an estimate)",
            where,
            *([] if self.streams else matrix),
        ]

    def reasons(self, problem: Problem, priced: Strategy, others: Sequence[Strategy]) -> list[str]:
        if not self.streams:
            return self.inner.reasons(problem, priced, others)
        streamed = "the curvature is a matrix in the calling process; the rows are streamed, a pass for each step"
        return [streamed] + ([] if self.place.is_memory else tile_reasons(problem))

    def doubt(self, problem: Problem, direct_seconds: float) -> str:
        """See base class.

        Steps are estimates for all solvers, and tolerate systems that are not solved well.
        """
        if isinstance(self.inner, Direct):
            return ""
        return doubt_of_spectrum(problem, self, direct_seconds, MANY_ITERATIONS * self.n_steps)

    def layout(self) -> dict[str, Any]:
        return self.inner.layout()


def newton(p: Problem, inner: Inner, passes: Stage | None = None, *more: Stage) -> Newton:
    """Newton's method around a way to solve its systems.

    Parameters
    ----------
    p : Problem
    inner : Direct, Iterative or Float32Factor
        Priced for the systems of all steps.
    passes : Stage, optional
        Products besides those that the systems need.
    *more : Stage
        Other stages.
    """
    passes = passes or Stage("Newton steps", 0.0)
    # What every step takes, however small.
    local = SECONDS_PER_STEP_IN_MEMORY[inner.form, inner.solver]
    calls = p.n_steps * (local if inner.place.is_memory else SECONDS_PER_STEP)
    targets = [Stage("targets", 0.0)] if inner.form == "primal" else []
    stages = (*inner.stages, *targets, *more, replace(passes, seconds=passes.seconds + calls))
    return Newton(form=inner.form, place=inner.place, stages=stages, inner=inner, n_steps=p.n_steps)


def _inner_iterations(p: Problem) -> int:
    """Iterations of conjugate gradient in one step with complete factors."""
    return INNER_WITH_FACTOR + (COUPLED_ITERATIONS if p.is_coupled else 0)


def _vectors_bytes(p: Problem) -> int:
    """Vectors as long as the scores, and with an intercept its directions in every class."""
    m = p.n_targets
    return 8 * p.n * m * (VECTORS_HELD + (2 * m if p.is_coupled and p.fit_intercept else 0))


def dual_direct(p: Problem, resources: Resources) -> Iterator[Newton]:
    """Factors in memory, then in tiles on disk."""
    if not p.wants_tiles:
        yield dual_in_memory(p, resources)
    for choice in tile_choices(p, resources, "dual"):
        yield _dual_tiled(p, choice, 8)


def dual_factored(p: Problem, resources: Resources) -> Iterator[Newton]:
    """Factors in float32."""
    for choice in tile_choices(p, resources, "dual"):
        yield _dual_tiled(p, choice, 4)


def dual_by_iteration(p: Problem, resources: Resources) -> Iterator[Newton]:
    """Products with K, and one partial factor for all systems."""
    shift = CURVATURE_SHIFT[p.is_coupled] * min(p.alphas)
    systems = replace(
        _systems(p, shift),
        n_products=p.n_steps * PASSES_PER_STEP,
        more_iterations=COUPLED_ITERATIONS if p.is_coupled else 0,
    )
    for inner in dual_iterative(p, systems, resources):
        yield newton(p, inner, None, Stage("likelihood", 0.0))


def _systems(p: Problem, shift: float) -> Systems:
    """One for each column and step."""
    return Systems(
        n_factors=p.n_steps * p.n_targets,
        n_right_sides=1,
        n_stored=1,
        n_columns=p.n_targets,
        shift=shift,
        tol=INNER_TOL,
        n_steps=p.n_steps,
        n_vectors=VECTORS_HELD,
        n_curvatures=p.n_targets,
    )


def dual_in_memory(p: Problem, r: Resources) -> Newton:
    """K and its factors in the memory of the calling process."""
    n, m, steps = p.n, p.n_targets, p.n_steps
    # A product passes over K, a substitution twice over a factor; independent models have both to themselves.
    products = steps * (1 if p.is_coupled else m)
    substitutions = steps * m * (_inner_iterations(p) + 1)
    grid = memory_grid(n)
    one = memory_bytes(grid, keeps=False)
    copies = Cost(fresh_bytes=steps * m * float(one) if p.is_coupled else 0.0)
    apart = one * m - (memory_bytes(grid, keeps=True) - one) if p.is_coupled else 0
    peak = gram_in_memory_bytes(p, r, keeps=True) + apart + _vectors_bytes(p)

    def stage(name: str, cost: Cost) -> Stage:
        return Stage(name, r.rates.seconds(cost, r.local_threads), peak_bytes=peak)

    once = Cost(gemm_flops=2.0 * n * n, memory_bytes=8.0 * n * n)
    inner = Direct(
        form="dual",
        place=r.in_caller("memory", r.local_threads),
        stages=(
            *gram_in_memory_stages(p, r, peak, 1),
            stage("factorisation", memory_cost(grid, 1, steps * m, keeps=True) + copies),
            stage("substitution", once.times(substitutions)),
        ),
        tiling=Tiling(grid.tile, grid.panel),
        row_block=n,
        keeps_matrix=True,
    )
    scores = Cost(element_seconds=steps * n * m * SECONDS_PER_SCORE)
    return newton(
        p,
        inner,
        stage("Newton steps", once.times(products * PASSES_PER_STEP)),
        stage("conjugate gradient", once.times(products * _inner_iterations(p))),
        stage("likelihood", scores),
    )


def _dual_tiled(p: Problem, choice: TileChoice, itemsize: int) -> Newton:
    """Complete factors out of core, one for each column and step."""
    r, place, grid, _ = choice
    m, steps, rates = p.n_targets, p.n_steps, r.rates
    # As so many ridge regressions, each of which checks its residual by one product with K.
    fast = choice._replace(resources=replace(r, rates=rates if itemsize == 8 else rates.faster(2.0)))
    whole = dual_tiled(p, _systems(p, 0.0), fast)
    product = rates.seconds(pass_cost(p.entry(rates), p.n**2 / 2, m, "float64", 0.0)) / place.slots
    product_read = grid.tile * p.stored_bytes / p.n * grid.n_tiles**2
    iterations = _inner_iterations(p) + (2 if itemsize == 4 else 0)
    apply = apply_cost(grid, 1, itemsize, place.slots if r.cluster_is_running else None)
    checkpoint = 3 * 8 * p.n * m if p.keeps_store else 0
    peak, kept = _tiled_bytes(p, choice, itemsize, whole.peak_bytes), (1 + len(p.alphas)) * checkpoint
    passes, products = steps * PASSES_PER_STEP, steps * iterations
    stages = {s.name: replace(s, written_bytes=s.written_bytes * itemsize / 8) for s in whole.stages}
    checked = stages.pop("true residual")
    applied = Stage("substitution", rates.seconds(apply), apply.read_bytes).times(products * m)
    stages["substitution"] = stages["substitution"].plus(applied.seconds, applied.read_bytes)
    # Factors of one column after the other, with those of a softmax in the store at once.
    more = ((m if p.is_coupled else 1) * factor_bytes(grid, itemsize)) - factor_bytes(grid)
    stages["factorisation"] = stages["factorisation"].plus(0.0, disk=more)
    return newton(
        p,
        _of_itemsize(whole, choice, itemsize, tuple(stages.values()), products),
        Stage(
            "Newton steps",
            passes * product + checked.seconds,
            passes * product_read + checked.read_bytes,
            steps * checkpoint,
            kept,
            peak,
        ),
        Stage("conjugate gradient", products * product, products * product_read),
        Stage("likelihood", 0.0),
    )


def _of_itemsize(whole: Direct, choice: TileChoice, itemsize: int, stages: tuple[Stage, ...], iterations: int) -> Inner:
    """Way to factor with numbers of this size."""
    if itemsize == 8:
        return replace(whole, stages=stages)
    return Float32Factor(
        form="dual",
        place=choice.place,
        stages=stages,
        tiling=choice.tiling,
        keeps_rows=False,
        iterations=iterations,
    )


def _tiled_bytes(p: Problem, choice: TileChoice, itemsize: int, factoring_bytes: int) -> int:
    """Memory of a process; the calling one holds the scores, and applies the factors unless a cluster does."""
    r, place, grid, _ = choice
    caller = _vectors_bytes(p) + apply_bytes(grid, p.n_targets, itemsize, r.local_threads)
    working = factoring_bytes + place.threads * 4 * 8 * p.n * p.n_targets
    if place.execution != "dask":
        return working + caller
    here = r.local_baseline_bytes + caller + r.local_threads * BYTES_PER_THREAD + PROCESS_MARGIN_BYTES
    return working if r.cluster_is_running else max(working, here)


def primal_direct(p: Problem, resources: Resources) -> Iterator[Newton]:
    """Streaming passes, with the curvature as a matrix in the memory of the calling process."""
    side = (p.side("primal") + 1) * (p.n_targets if p.is_coupled else 1)
    if side <= MAX_MATRIX_SIDE:
        for place in caller_and_workers(p, resources):
            yield _primal_direct(p, resources, place)
    elif isinstance(p.solver, Cholesky) and p.form == "primal":
        raise PlanError(
            f"solver='cholesky' in primal form holds a matrix of {side:,} rows, of which {MAX_MATRIX_SIDE:,} are the "
            f"most; use solver='cg', or form='dual'. Nothing was computed"
        )


def primal_by_iteration(p: Problem, resources: Resources) -> Iterator[Newton]:
    """Streaming passes for every product."""
    for place in caller_and_workers(p, resources):
        yield _primal_by_iteration(p, resources, place)


def _primal_direct(p: Problem, r: Resources, place: Place) -> Newton:
    dimension, m = _dimension(p), p.n_targets
    block = rows_at_once(p, dimension)
    matrices = 8 * dimension**2 * m * (m if p.is_coupled else 1)
    pairs = m * (m + 1) / 2 if p.is_coupled else m
    products = 2.0 * pairs * p.n * float(dimension) ** 2 / r.rates.gemm_flops
    systems, side = (1, dimension * m) if p.is_coupled else (m, dimension)
    solve = r.rates.seconds(memory_cost(TileGrid(side, side, side), 1, systems, keeps=False), r.local_threads)
    roots = block * 8 * dimension * m if p.is_coupled else 0
    passes = p.n_steps + 1
    inner = Direct(
        form="primal",
        place=place,
        stages=(
            *sharing_stages(p, place, r.rates),
            Stage("factorisation", passes * solve),
        ),
        tiling=Tiling(dimension, dimension),
        row_parts=_row_parts(p, block, place.slots),
        row_block=block,
    )
    peak = _primal_bytes(p, place, block, 8 * dimension, roots, matrices)
    steps, likelihood = _passes(p, r, place, p.n * float(dimension), passes, passes, peak)
    return newton(p, inner, steps, likelihood.plus(passes * products / place.slots))


def _primal_by_iteration(p: Problem, r: Resources, place: Place) -> Newton:
    dimension, m, passes = _dimension(p), p.n_targets, p.n_steps + 1
    width = p.most_bytes_of_row if p.streams_sparse else 8 * dimension
    entries = streamed_entries(p, dimension)
    block = rows_at_once(p, 1 if p.streams_sparse else dimension)
    iterations = primal_iterations_expected(p, CURVATURE_SHIFT[p.is_coupled] * min(p.alphas), INNER_TOL)
    one = 1.5 * stream_seconds(p, entries, p.n_targets) + p.n * m * SECONDS_PER_SCORE
    inner = Iterative(
        form="primal",
        place=place,
        stages=(
            *sharing_stages(p, place, r.rates),
            Stage("conjugate gradient", passes * iterations * one / place.slots),
        ),
        products=RowPasses(dimension, block, _row_parts(p, block, 2 * place.slots)),
        iterations=p.n_steps * max(1, iterations),
    )
    peak = _primal_bytes(p, place, block, width, 0, 8 * dimension * m)
    return newton(p, inner, *_passes(p, r, place, entries, passes, passes * (1 + iterations), peak))


def _dimension(p: Problem) -> int:
    """Features, and the constant of a free intercept."""
    return p.side("primal") + (1 if p.fit_intercept else 0)


def _row_parts(p: Problem, block: int, most: int) -> int:
    return max(1, p.layout.row_parts if p.layout else min(-(-p.n // block), most))


def _passes(
    p: Problem, r: Resources, place: Place, entries: float, evaluations: int, reads: int, peak_bytes: int
) -> tuple[Stage, Stage]:
    """Steps with their checkpoints; scores and likelihood of all rows, and reading X as often as anything needs it."""
    x_read = 0.0 if is_held(p, place) else float(reads + 1) * p.stored_bytes
    checkpoint = 8 * _dimension(p) * p.n_targets if p.keeps_store else 0
    scored = stream_seconds(p, entries, p.n_targets) + p.n * p.n_targets * SECONDS_PER_SCORE
    seconds = evaluations * scored / place.slots + x_read * reading_seconds(p, r, place, peak_bytes)
    kept = 2 * checkpoint + (0 if place.is_memory else 16 * p.n)
    return (
        Stage("Newton steps", 0.0, 0.0, p.n_steps * checkpoint, kept, peak_bytes),
        Stage("likelihood", seconds, x_read),
    )


def _primal_bytes(p: Problem, place: Place, block: int, width: int, roots: int, matrices: int) -> int:
    """Memory of a process that streams rows."""
    m = p.n_targets
    rows = block * (4 * width + 2 * p.most_bytes_of_row + 12 * 8 * m) + feature_bytes(p) + p.read_overhead_bytes
    peak = place.baseline_bytes + PROCESS_MARGIN_BYTES + place.threads * (rows + roots + 2 * matrices)
    here = 4 * matrices + VECTORS_HELD * 8 * _dimension(p) * m + 4 * 8 * p.n
    return peak + (0 if place.execution == "dask" else here)


INNER: Mapping[Form, Mapping[type[Strategy], Callable[[Problem, Resources], Iterator[Newton]]]] = {
    "dual": {Direct: dual_direct, Float32Factor: dual_factored, Iterative: dual_by_iteration},
    "primal": {Direct: primal_direct, Float32Factor: primal_by_iteration, Iterative: primal_by_iteration},
}
"""Ways of Newton's method by form and by what solves its systems; columns of K do not precondition the primal form."""
