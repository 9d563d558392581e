"""Fits whose matrix lies in tiles on disk."""

import uuid
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.data import TrainingData
from dkrr.fitting.factored import Outcomes, solve_factored
from dkrr.fitting.sampled import by_name
from dkrr.fitting.solution import DualSolution, PrimalSolution
from dkrr.fitting.workspace import Workspace
from dkrr.linalg.cholesky import PartialSums, TiledSystem, n_segments
from dkrr.linalg.normal import NormalParts, Segment, feature_sums, normal_tasks, primal_residual
from dkrr.linalg.operator import ResidentRows
from dkrr.linalg.residual import relative
from dkrr.linalg.sources import GramTiles, MatrixTiles, SummedTiles, TileSource
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
    outcomes = Outcomes()
    coef, intercept, residuals = np.empty(data.targets.shape), means.copy(), [0.0]
    for g, (alpha, columns) in enumerate(data.alpha_groups()):
        right_sides, shift = data.dual_right_sides(columns, means), data.dual_shift(alpha)
        if plan.chosen.has_factor:
            try:
                outcome = solve_factored(work, plan, g, source, plain, scale, shift, right_sides)
            except NotPositiveDefiniteError as error:
                raise not_positive_definite(error, alpha, "dual") from None
            outcomes.parts.append(outcome)
            beta, residual = outcome.x, float(outcome.residuals.max())
        else:
            beta, residual = _solve(work, g, grid, plan.chosen.segment, source, shift, right_sides, (alpha, "dual"))
        residuals.append(residual)
        coef[:, columns], b = data.dual_coefficients(beta)
        intercept[columns] += b
    work.executor.forget(run)
    if plan.chosen.keeps_rows:
        work.count_kept_rows(rows)
    return DualSolution(coef, intercept, rows, max(residuals), outcomes.merged())


def _share(data: TrainingData, plan: Plan, work: Workspace, rows_per_chunk: int) -> Rows:
    c = plan.chosen
    return work.share(data.rows, data.fingerprint, c.layout(), rows_per_chunk)


def _solve(
    work: Workspace,
    g: int,
    grid: TileGrid,
    segment: int,
    source: TileSource,
    shift: Array,
    right_sides: Array,
    terms: tuple[float, str],
) -> tuple[Array, float]:
    """Solve (A + diag(s)) X = B; X and its true residual, which the primal form takes from the rows instead (NaN here).

    `terms` are λ and the form, for an error message.
    """
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
    x, residual = solution.load(), float("nan")
    if terms[1] == "dual":
        residual, record = Cholesky().check_tiled(system, solution, work.executor, work.progress, work.slots)
        work.record.add(record)
    for k in range(len(system.partial)):
        work.store.delete(f"{group}/sum-{k}")
        work.store.delete(f"{group}/sum-{k}-forward")
    if not work.keeps:
        work.store.delete(group)
    return x, residual


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
    targets = work.vectors("normal", "targets", by_rows, n_targets, data.targets - means)
    weights = None if data.weights is None else work.vectors("normal", "weights", by_rows, 1, data.weights)

    def segments(count: int) -> list[Segment]:
        cuts = [round(k * by_rows.n_tiles / count) * chosen.row_block for k in range(count + 1)]
        pairs = zip(cuts, [min(c, data.n) for c in cuts[1:]], strict=False)
        return [Segment(rows, a, b, chosen.row_block, targets, weights) for a, b in pairs if b > a]

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
    source, coef = SummedTiles(parts.matrices), np.empty((grid.n, n_targets))
    for g, (alpha, columns) in enumerate(data.alpha_groups()):
        shift, right_sides = np.full(grid.n, alpha), np.ascontiguousarray(moments[:, columns])
        coef[:, columns], _ = _solve(work, g, grid, plan.chosen.segment, source, shift, right_sides, (alpha, "primal"))
    tasks = [
        Task(f"error-{k}", primal_residual, (phi, s, centre, coef), flops=s.stop - s.start)
        for k, s in enumerate(spread)
    ]
    values = work.run("training errors", tasks).values()
    errors = np.concatenate([values[t.key][0] for t in tasks])
    gradient = np.sum([values[t.key][1] for t in tasks], axis=0) - coef * data.alphas
    residual = relative([((gradient**2).sum(axis=0), (moments**2).sum(axis=0))])
    return PrimalSolution.build(data, coef, means, centre, errors, residual)
