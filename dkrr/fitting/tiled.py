"""Fits whose matrix lies in tiles on disk."""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.data import TrainingData
from dkrr.fitting.factored import Outcomes, solve_factored
from dkrr.fitting.norms import gram_diagonal
from dkrr.fitting.sampled import by_name
from dkrr.fitting.solution import DualParts, DualSolution, PrimalSolution, drop_rounding
from dkrr.fitting.workspace import Workspace
from dkrr.linalg.cholesky import PartialSums, TiledSystem, n_segments
from dkrr.linalg.condition import Moments, condition_number, multiplied_probe, scaling_of, with_probe, worst
from dkrr.linalg.normal import NormalParts, Segment, feature_sums, normal_tasks, primal_residual
from dkrr.linalg.operator import ResidentRows, column_norms
from dkrr.linalg.residual import Check, Solved, check_tiled, relative
from dkrr.linalg.sources import GramTiles, MatrixTiles, SummedTiles, TileSource, tile_diagonal
from dkrr.linalg.symmetry import refuse_asymmetry, symmetry_tasks
from dkrr.planning import Plan
from dkrr.rows import Rows
from dkrr.runtime import Task
from dkrr.solvers import Cholesky
from dkrr.solvers.direct import not_positive_definite
from dkrr.tiles import ChunkedArray, TileGrid

Array = NDArray[np.float64]


def fit_dual_shared(data: TrainingData, plan: Plan, work: Workspace) -> DualSolution:
    """Factor K + λW⁻¹ out of core; every tile of K is computed where it is used.

    Raises
    ------
    NotPositiveDefiniteError
        Naming λ and the row of the failing pivot.
    """
    rows = _share(data, plan, work, plan.chosen.panel)
    kernel = by_name(data.kernel, work)
    grid = TileGrid(data.n, plan.chosen.tile, plan.chosen.panel)
    scale, means = data.dual_scale(), data.target_means()
    work.store.create_group("weights")
    stored_scale = None if scale is None else work.vectors("weights", "scale", grid, 1, scale)
    source: TileSource
    plain: TileSource
    run = f"rows-{uuid.uuid4().hex}"
    if data.kernel.is_precomputed:
        refuse_asymmetry(list(work.run("checking symmetry", symmetry_tasks(rows, grid)).values().values()))
        source, plain = MatrixTiles(rows, stored_scale), MatrixTiles(rows)
    else:
        source = GramTiles(kernel, rows, stored_scale)
        plain = GramTiles(kernel, ResidentRows(rows, run) if plan.chosen.keeps_rows else rows)
    outcomes, found = Outcomes(), DualParts(data, means)
    diagonal = gram_diagonal(data.kernel, rows)
    if scale is not None:
        diagonal *= scale**2
    for g, (alpha, columns) in enumerate(data.alpha_groups()):
        right_sides, shift = data.dual_right_sides(columns, means), data.dual_shift(alpha)
        if plan.chosen.has_factor:
            groups = [(columns, right_sides.shape[1])]
            run_it = partial(found.iterate, groups)
            try:
                outcome = solve_factored(work, plan, g, source, plain, scale, shift, right_sides, run_it)
            except NotPositiveDefiniteError as error:
                raise not_positive_definite(error, alpha, "dual") from None
            outcomes.parts.append(outcome)
            continue

        # Between the solution and its check the free constants are found.
        def settle(x: Array, columns: NDArray[np.intp] = columns) -> Array | None:
            return found.take(columns, x)

        terms = (alpha, "dual")
        check = _solve(
            work, g, grid, plan.chosen.segment, source, shift, right_sides, terms, settle, diagonal=diagonal
        ).check
        assert check is not None
        found.note(columns, check)
    work.executor.forget(run)
    if plan.chosen.keeps_rows:
        work.count_kept_rows(rows)
    return found.solution(rows, outcomes.merged())


def _share(data: TrainingData, plan: Plan, work: Workspace, rows_per_chunk: int) -> Rows:
    c = plan.chosen
    return work.share(data.rows, data.fingerprint, c.layout(), rows_per_chunk, data.notes())


class _Solution(NamedTuple):
    """Solution of one system."""

    x: Array
    """X, of shape (n, m)."""
    check: Check | None
    scaling: Array
    """D of dkrr.linalg.condition, of shape (n,)."""
    probe: Array
    """D⁻¹z, of shape (n,)."""
    solved: Moments
    """Moments of z and (A + diag(s))⁻¹ z."""


def _solve(
    work: Workspace,
    g: int,
    grid: TileGrid,
    segment: int,
    source: TileSource,
    shift: Array,
    right_sides: Array,
    terms: tuple[float, str],
    settle: Callable[[Array], Array | None] | None = None,
    *,
    diagonal: Array,
) -> _Solution:
    """Solve (A + diag(s)) X = B; in dual form with a check, which the primal form takes from the rows instead.

    `terms` are λ and the form, for an error message; `settle` gives the free constants of a solution in dual form;
    `diagonal` is that of A.
    """
    scaling = scaling_of(diagonal + shift)
    right_sides = with_probe(right_sides, scaling)
    group, width = f"system-{g}", right_sides.shape[1]
    work.store.create_group(group)

    def vectors(name: str, data: Any = None) -> ChunkedArray:
        return work.vectors(group, name, grid, width, data)

    system = TiledSystem(
        source=source,
        shift=work.vectors(group, "shift", grid, 1, shift),
        right_sides=vectors("right-sides", right_sides),
        factor=work.matrix(group, "factor", grid),
        forward=vectors("forward"),
        segment=segment,
        partial=tuple(
            PartialSums(work.matrix(group, f"sum-{k}", grid), vectors(f"sum-{k}-forward"))
            for k in range(n_segments(grid.n_tiles - 1, segment) - 1)
        ),
    )
    try:
        solution, record = Cholesky().solve_tiled(system, vectors, work.executor, work.progress)
    except NotPositiveDefiniteError as error:
        raise not_positive_definite(error, *terms) from None
    work.record.add(record)
    x, check = solution.load(), None
    if settle is not None:
        constants = settle(x[:, :-1])
        stored = work.vectors(group, "scaling", grid, 1, scaling)
        assert system.right_sides is not None
        found = Solved(source, grid, system.shift, system.right_sides, solution, stored)
        check, record = check_tiled(found, constants, work.executor, work.progress, work.slots)
        work.record.add(record)
    for k in range(len(system.partial)):
        work.store.delete(f"{group}/sum-{k}")
        work.store.delete(f"{group}/sum-{k}-forward")
    if not work.keeps:
        work.store.delete(group)
    with np.errstate(over="ignore", invalid="ignore"):
        solved = Moments.of_solved(right_sides[:, -1], x[:, -1], scaling)
    return _Solution(x[:, :-1], check, scaling, multiplied_probe(right_sides[:, -1], scaling), solved)


def fit_primal_shared(data: TrainingData, plan: Plan, work: Workspace) -> PrimalSolution:
    """Form ΦᵀWΦ in tiles by segments of rows, and factor it out of core.

    Raises
    ------
    NotPositiveDefiniteError
        Naming λ and the feature of the failing pivot.
    """
    assert data.feature_map is not None
    rows, chosen = _share(data, plan, work, plan.chosen.row_block), plan.chosen
    phi = by_name(data.feature_map, work)
    grid = TileGrid(phi.dimension(rows.shape[1]), chosen.tile, chosen.panel)
    by_rows = TileGrid(data.n, chosen.row_block, chosen.row_block)
    means, n_targets = data.target_means(), data.targets.shape[1]
    work.store.create_group("normal")
    targets = work.vectors("normal", "targets", by_rows, n_targets, data.targets)
    weights = None if data.weights is None else work.vectors("normal", "weights", by_rows, 1, data.weights)

    def segments(count: int) -> list[Segment]:
        cuts = [round(k * by_rows.n_tiles / count) * chosen.row_block for k in range(count + 1)]
        pairs = zip(cuts, [min(c, data.n) for c in cuts[1:]], strict=False)
        less = means if data.fit_intercept else None
        return [Segment(rows, a, b, chosen.row_block, targets, weights, less) for a, b in pairs if b > a]

    spread = segments(2 * work.slots)
    centre, stored_centre = None, None
    if data.fit_intercept:
        stored_centre = work.vectors("normal", "centre", grid, 1)
        if len(stored_centre.present()) < grid.n_tiles:  # else of an earlier run, which rounded in its own order
            tasks = [Task(f"mean-{k}", feature_sums, (phi, s), flops=s.stop - s.start) for k, s in enumerate(spread)]
            sums = work.run("feature means", tasks).values()
            total = data.n if data.weights is None else data.weights.sum()
            stored_centre.fill((np.sum([sums[t.key] for t in tasks], axis=0) / total)[:, None])
        centre = stored_centre.load()[:, 0]
    cut = segments(chosen.row_parts)
    parts = NormalParts(
        segments=tuple(cut),
        matrices=tuple(work.matrix("normal", f"part-{k}", grid) for k in range(len(cut))),
        moments=tuple(work.vectors("normal", f"moments-{k}", grid, n_targets) for k in range(len(cut))),
        centre=stored_centre,
    )
    work.run("normal matrix", normal_tasks(phi, parts))
    moments = np.sum([m.load() for m in parts.moments], axis=0)
    source, groups = SummedTiles(parts.matrices), data.alpha_groups()
    tasks = [Task(f"diagonal-{i}", tile_diagonal, (source, grid, i), flops=grid.height(i)) for i in range(grid.n_tiles)]
    values = work.run("diagonal", tasks).values()
    diagonal = np.concatenate([values[t.key] for t in tasks])
    sizes = drop_rounding(data, moments, diagonal)
    # After the coefficients the probes of the condition numbers.
    coef, found = np.empty((grid.n, n_targets + len(groups))), list[_Solution]()
    for g, (alpha, columns) in enumerate(groups):
        shift, right_sides, terms = np.full(grid.n, alpha), np.ascontiguousarray(moments[:, columns]), (alpha, "primal")
        found.append(_solve(work, g, grid, plan.chosen.segment, source, shift, right_sides, terms, diagonal=diagonal))
        coef[:, columns], coef[:, n_targets + g] = found[g].x, found[g].probe
    stored_errors = work.vectors("normal", "errors", by_rows, n_targets)
    tasks = [
        Task(f"error-{k}", primal_residual, (phi, s, centre, coef, stored_errors), flops=s.stop - s.start)
        for k, s in enumerate(spread)
    ]
    values = work.run("training errors", tasks).values()
    gradient = sum(values[t.key] for t in tasks)
    errors = stored_errors.load(data.room_for_errors())
    work.store.delete("normal/errors")
    coef, probes, products = np.ascontiguousarray(coef[:, :n_targets]), coef[:, n_targets:], -gradient[:, n_targets:]
    gradient = gradient[:, :n_targets] - coef * data.alphas
    residual = relative([(column_norms(gradient), sizes)])
    with np.errstate(over="ignore", invalid="ignore"):
        products += probes * [alpha for alpha, _ in groups]
        condition = worst(
            [
                condition_number(Moments.of_multiplied(probes[:, g], products[:, g], s.scaling), s.solved)
                for g, s in enumerate(found)
            ]
        )
    return PrimalSolution.build(data, coef, means, centre, errors, residual, condition)
