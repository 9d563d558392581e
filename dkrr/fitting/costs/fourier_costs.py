"""The Fourier form: an RBF kernel of one to three columns as a grid of waves, whose sums over the rows are transforms.

The work of a fit is a few transforms of every row and a system with one unknown for each wave of the grid. The number
of waves depends on the box of the rows and not on their number. It is the primal form; the box is
known once the rows are scanned.
"""

from collections.abc import Iterator
from functools import partial
from math import log2, prod
from typing import NamedTuple

import numpy as np

from dkrr.cost import Work
from dkrr.fitting.costs.details import FourierSolve
from dkrr.fitting.costs.dual_costs import step_seconds
from dkrr.fitting.costs.gram_costs import GramCosts
from dkrr.fitting.costs.iteration_estimates import iterations_expected
from dkrr.kernels.fourier_grid import MAX_TRANSFORMED_ROWS, FourierGrid, Grid
from dkrr.kernels.nonuniform import transform_bytes
from dkrr.linalg.in_memory_cholesky import FACTORED_SIDE
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient
from dkrr.linalg.square import factor_work, solving_work
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Method, Strategy
from dkrr.planning.work import CostModel, Step

ROW_TRANSFORM_SECONDS = {1: 8e-8, 2: 2.2e-7, 3: 1.8e-6}
"""Time of a transform of a row on one core, by columns (measured: 50 to 85, 170 to 230 and 1,500 to 1,750 ns)."""
GATHER_SECONDS = 2e-8
"""Time of an entry of the matrix that is gathered."""
CONVOLUTION_SECONDS = 3e-8
"""Time of a point of the grid of a convolution, both ways."""
MAX_SIDE = 20_000
"""Largest matrix that is factored in memory: 3 GiB."""
MIN_STORED_BLOCKS = 16
"""Blocks, at least, of rows whose sums go to a store."""
SMALL_RATE = 0.3
"""Rate of the small matrices of a preconditioner, each formed and factored, over that of products."""
EDGE_FUNCTIONS = 5
ROOM_FOR_RANK = 1.25
"""Columns that memory is planned for over those that are expected."""
MAX_RANK = 6_000
"""Most columns of a partial factor."""
MIN_GRID_ALPHA = 1e-14
"""λ over Σ w k(x, x) below which rounding of the sums leaves nothing of it."""
REFINED_RESIDUAL = 1e-10
"""Relative residual of the dual system at which α is not refined further."""
FACTOR_ITERATIONS = 8
"""Products of a system with a partial factor that leaves less than λ, in both solves."""


def refusal(p: Problem, side: int) -> str:
    """Why a problem cannot be solved on a grid of `side` features; empty if it can."""
    solver = p.settings
    if isinstance(solver, ConjugateGradient) and (p.loss == "logistic" or solver.preconditioner != "auto"):
        return (
            f"{solver} was requested, which {'classifications' if p.loss == 'logistic' else 'fits'} there do not have"
        )
    side *= p.n_targets if p.is_softmax else 1
    if side > MAX_SIDE and (p.loss == "logistic" or isinstance(solver, Cholesky)):
        return f"its matrix would have {side:,} rows, and at most {MAX_SIDE:,} are factored"
    return ""


def lost_alpha(p: Problem) -> str:
    """Why sums over the rows on the problem's grid leave nothing of λ but rounding; empty if they leave enough."""
    least = MIN_GRID_ALPHA * _grid(p).unit * (p.n if p.total_weight is None else p.total_weight)
    alpha = min(p.alphas)
    return f"alpha = {alpha:g} is below {least:.1e}, the rounding of sums over the rows" if alpha < least else ""


class Transforms(NamedTuple):
    """Transforms of every row in a fit."""

    sums: int
    """For the sums of weights and of targets."""
    duals: int
    """For α and its sums."""
    refined: int
    """For every refinement."""


def passes_of(p: Problem) -> Transforms:
    """Transforms of every row; those of Newton's method in all steps together are the first."""
    t = p.n_targets
    if p.loss == "logistic":
        systems = t * (t + 1) // 2 if p.is_softmax else t
        return Transforms((p.n_steps + 1) * (-(-t // 2) + -(-(systems + t) // 2)), 2 * -(-t // 2), 0)
    pairs = 2 * -(-t // 2)
    # Measured: without refinement 3e-17 n / λ; each one takes off three digits.
    left, rounds = 3e-17 * p.n / max(min(p.alphas), 1e-300), 0
    while left > REFINED_RESIDUAL and rounds < 2:
        left, rounds = 1e-3 * left, rounds + 1
    return Transforms(-(-(t + 1) // 2), pairs, rounds * pairs)


def rank_of(p: Problem, grid: Grid) -> int:
    """Columns of a partial factor that leaves a tenth of λ, of rows that are spread evenly over the box.

    The box is a fraction of a period: the features span that fraction of their number of functions of the box, and a
    few more for every column, which rise at its edges (measured: 3 to 5; clustered rows have fewer).
    """
    tails = 0.5 * p.n * np.cumsum(np.sort(grid.scale**2))
    whole = grid.dimension - int(np.searchsorted(tails, 0.1 * min(p.alphas)))
    d, share = len(grid.columns), float(np.prod(np.minimum(1.0, 2 * grid.reach / grid.periods)))
    return min(whole, int(((whole * share) ** (1 / d) + EDGE_FUNCTIONS) ** d))


def fourier_factored(p: Problem, r: Resources, method: Method) -> Iterator[Strategy]:
    """A complete factor of the matrix that is gathered from transforms."""
    grid = _grid(p)
    side = grid.dimension * (p.n_targets if p.is_softmax else 1)
    if side > MAX_SIDE:
        return
    recipe = [
        Step("factorisation", Work(element_seconds=GATHER_SECONDS * side**2, fresh_bytes=8.0 * side**2)),
        Step("factorisation", factor_work(side) + solving_work(side, p.n_targets), 1, "blas"),
    ]
    n_matrices = (1 if len(p.alphas) == 1 else 2) if p.loss == "squared" else 3 * (1 if p.is_softmax else p.n_targets)
    n_matrices += len(p.alphas) if p.uncertainty else 0
    yield from _in_places(p, r, method, grid, recipe, n_matrices * 8 * side**2, 0)


def fourier_iterated(p: Problem, r: Resources, method: Method) -> Iterator[Strategy]:
    """Conjugate gradient with a partial factor, and products by convolutions."""
    grid = _grid(p)
    if grid.dimension <= FACTORED_SIDE and p.settings is None:
        return
    limit, recipe, held = iterated(p, r, p.n_targets * len(p.alphas))
    yield from _in_places(p, r, method, grid, recipe, held, limit)


def iterated(p: Problem, r: Resources, columns: int) -> tuple[int, list[Step], int]:
    """Most columns of a partial factor; the steps that solve for `columns` right-hand sides with it, and the memory."""
    grid = _grid(p)
    side, points, rank = grid.dimension, prod(grid.n_sum_modes), rank_of(p, grid)
    limit = int(max(1, min(MAX_RANK, side, ROOM_FOR_RANK * rank, r.local_limit_bytes // 2 // (8 * side))))
    iterations = FACTOR_ITERATIONS
    if rank > limit:
        left = 0.5 * p.n * float(np.sort(grid.scale**2)[: side - limit].max())
        iterations = 2 * iterations_expected(left, min(p.alphas), 1e-2 * REFINED_RESIDUAL)
    rank = max(1, min(rank, limit))
    factor = Work(gemm_flops=3.0 * side * rank**2 + rank**3, element_seconds=GATHER_SECONDS * side * rank)
    convolution = Work(element_seconds=CONVOLUTION_SECONDS * points * max(1.0, log2(points) / 17))
    products = Work(gemm_flops=4.0 * side * rank)
    recipe = [
        Step("preconditioner", factor, 1, "blas"),
        Step("preconditioner", Work(gemm_flops=rank**3 / 3 / SMALL_RATE), len(p.alphas), "blas"),
        Step("conjugate gradient", convolution, iterations * columns, "caller"),
        Step("conjugate gradient", products, iterations * columns, "blas"),
    ]
    return limit, recipe, 8 * side * (limit + limit // 5 + 10 * columns) + 24 * limit**2 * len(p.alphas) + 100 * points


def _grid(p: Problem) -> Grid:
    assert isinstance(p.feature_map, FourierGrid)
    return p.feature_map.grid(p.d)


def _in_places(
    p: Problem, r: Resources, method: Method, grid: Grid, solving: list[Step], solving_bytes: int, rank_limit: int
) -> Iterator[Strategy]:
    """Candidates with transforms in threads of this process, and in workers."""
    for place in r.caller_and_workers(wants_tiles=p.wants_tiles):
        yield _in_place(GramCosts(p, r, place), method, grid, solving, solving_bytes, rank_limit)


def _in_place(
    site: GramCosts, method: Method, grid: Grid, solving: list[Step], solving_bytes: int, rank_limit: int
) -> Strategy:
    p, place, t = site.problem, site.place, site.problem.n_targets
    passes, kept = passes_of(p), sums_bytes(p)
    heights = [
        max(1, min(k, -(-p.n // (2 * place.slots))))
        for k in (MAX_TRANSFORMED_ROWS, MAX_TRANSFORMED_ROWS // 8, MAX_TRANSFORMED_ROWS // 64)
    ]
    n_segments = max(2 * place.slots, -(-p.n // (4 * MAX_TRANSFORMED_ROWS)))
    if not place.is_memory:  # a run that resumes on another machine finds the same blocks and segments
        heights = [max(1, min(MAX_TRANSFORMED_ROWS // 8, -(-p.n // MIN_STORED_BLOCKS)))]
        n_segments = p.layout.row_parts if p.layout else n_segments
    peak_of = partial(peak_of_passes, site, solving_bytes + n_segments * kept)  # added when all have come
    block = next((h for h in heights if peak_of(block=h) <= place.usable_bytes), heights[-1])
    peak = peak_of(block=block)

    def transformed(stage: str, count: int, n_passes: float) -> list[Step]:
        rows = Work(row_bytes=0 if site.holds_rows else p.stored_bytes)
        return [Step(stage, transform_work(p, count)), Step(stage, rows, n_passes)]

    n_steps = p.n_steps if p.loss == "logistic" else 0
    copied = 0 if place.is_memory else 2 * p.y_bytes
    recipe = [
        *site.shared(),
        site.targets(peak),
        Step("targets", Work(written_bytes=copied, disk_bytes=copied + n_segments * kept * (1 - place.is_memory))),
    ]
    if n_steps:
        recipe += [
            *transformed("likelihood", passes.sums, n_steps + 1),
            *(step._replace(times=step.times * (n_steps + 1) * (1 if p.is_softmax else t)) for step in solving),
            Step("Newton steps", seconds=n_steps * step_seconds(place)),
            *transformed("training errors", passes.duals, 1),
        ]
    else:
        n_solves = len(p.alphas) if not rank_limit else 1
        recipe += [
            *transformed("normal matrix", passes.sums, 1),
            *(step._replace(times=step.times * n_solves) for step in solving),
            *transformed("training errors", passes.duals, 1),
            *transformed("true residual", passes.refined, 1 if passes.refined else 0),
        ]
        if p.interval_folds and not p.folds_are_fitted:  # sums of every fold, and predictions by every model
            recipe += transformed("held-out models", passes.sums + p.interval_folds * t, 2)
            recipe += [step._replace(stage="held-out models", times=p.interval_folds * n_solves) for step in solving]
    details = FourierSolve(
        side=grid.dimension,
        bound=grid.bound,
        row_block=block,
        row_parts=n_segments,
        rank_limit=rank_limit,
        keeps_factors=p.uncertainty,
    )
    stages = site.price(recipe, peak)
    return Strategy(
        method=method,
        form="primal",
        place=place,
        details=details,
        stages=stages,
        n_steps=n_steps,
        features=p.feature_map,
    )


def sums_of(p: Problem) -> int:
    """Sums of some rows: of weights and of every target, or of all gradients and curvatures of a likelihood."""
    t = p.n_targets
    return 1 + t if p.loss == "squared" else t + (t * (t + 1) // 2 if p.is_softmax else t)


def sums_bytes(p: Problem) -> int:
    """Memory of the sums of some rows."""
    return 16 * prod(_grid(p).n_sum_modes) * sums_of(p)


def transform_work(p: Problem, count: float) -> Work:
    """Work of `count` transforms of every row."""
    return Work(element_seconds=count * ROW_TRANSFORM_SECONDS[len(_grid(p).columns)] * p.n)


def peak_of_passes(site: CostModel, held: int, block: int = MAX_TRANSFORMED_ROWS // 4) -> int:
    """Memory of a process that transforms blocks of rows, and of the calling process.

    Parameters
    ----------
    held : int
        Bytes that the calling process holds besides: its matrix and factors.
    """
    p, grid = site.problem, _grid(site.problem)
    block, sums = min(block, p.n), sums_bytes(p)
    rows = p.bytes_of_block(block) + 8 * block * (2 * len(grid.columns) + 5 * sums_of(p))
    each = rows + transform_bytes(grid.n_sum_modes, block) + 3 * sums + p.read_overhead_bytes
    if site.place.execution == "dask":
        return site.peak(0, each)
    return site.peak(p.y_bytes_to_come + held, each)
