"""Fits whose matrix is held in the memory of the calling process."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.data import TrainingData
from dkrr.fitting.norms import gram_diagonal
from dkrr.fitting.solution import DualParts, DualSolution, PrimalSolution, drop_rounding
from dkrr.kernels import Kernel
from dkrr.kernels.blocks import mirror_lower
from dkrr.linalg.cholesky import check_diagonal
from dkrr.linalg.condition import scaling_of, with_probe, worst
from dkrr.linalg.memory import KeptTiles, factor_in_memory, memory_system
from dkrr.linalg.normal import Segment, feature_sums, normal_part, primal_residual
from dkrr.linalg.operator import column_norms
from dkrr.linalg.residual import Solved, check_tiled, checked, relative
from dkrr.linalg.sources import GramTiles, MatrixTiles, TileSource
from dkrr.linalg.sweeps import substituted
from dkrr.linalg.symmetry import check_symmetry
from dkrr.planning import Plan
from dkrr.rows import MemoryRows, Rows, scan
from dkrr.runtime import Executor, Meter, Progress, RunRecord, SerialExecutor, Task, ThreadExecutor
from dkrr.solvers.direct import not_positive_definite
from dkrr.tiles import MemoryMatrix, TileGrid

Array = NDArray[np.float64]


SYMMETRY_TILE = 512
"""Rows of the blocks of a given Gram matrix that are compared with their mirror images."""


def fit_dual(data: TrainingData, plan: Plan, meter: Meter) -> DualSolution:
    """Factor K + λW⁻¹ in memory.

    Raises
    ------
    NotPositiveDefiniteError
        Naming λ and the row of the failing pivot.
    """
    rows = loaded(data.rows, meter)
    scan(rows, "X")
    scale, means = data.dual_scale(), data.target_means()
    found, grid = DualParts(data, means), memory_grid(plan)
    with memory_executor(plan, grid) as executor:
        source, kept = gram_tiles(data.kernel, rows, scale), None
        if plan.chosen.keeps_matrix:
            source = kept = KeptTiles.of_source(source, grid, executor)
            diagonal, factor = kept.diagonal, kept.beside()
        else:
            diagonal, factor = gram_diagonal(data.kernel, rows), MemoryMatrix(grid)
            if scale is not None:
                diagonal *= scale**2
        check_diagonal(diagonal)
        groups = data.alpha_groups()
        while groups:
            alpha, columns = groups.pop(0)
            shift = data.dual_shift(alpha)
            scaling = scaling_of(diagonal + shift)
            right_sides = with_probe(data.dual_right_sides(columns, means), scaling)
            try:
                factor_in_memory(memory_system(source, shift, factor), executor)
            except NotPositiveDefiniteError as error:
                raise not_positive_definite(error, alpha, "dual") from None
            beta = substituted(factor, right_sides)
            if not groups:
                del factor  # makes room for what the check needs
            constants = found.take(columns, beta[:, :-1])
            if kept is not None:
                check = checked(right_sides, shift[:, None], beta, kept.multiply, constants, scaling)
            else:
                solved = Solved(source, grid, shift[:, None], right_sides, beta, scaling[:, None])
                check, _ = check_tiled(solved, constants, executor, Progress(), plan.resources.local_threads)
            found.note(columns, check)
    return found.solution(rows)


def memory_grid(plan: Plan) -> TileGrid:
    """Grid of the matrix of a plan in memory."""
    n = plan.problem.n if plan.form == "dual" else plan.problem.dimension or 0
    return TileGrid(n, plan.chosen.tile, plan.chosen.panel)


def memory_executor(plan: Plan, grid: TileGrid) -> AbstractContextManager[Executor]:
    """Threads for the tasks of several tiles."""
    if grid.n_tiles == 1:
        return nullcontext(SerialExecutor())
    return ThreadExecutor(plan.resources.local_threads)


def gram_tiles(kernel: Kernel, rows: Rows, scale: Array | None) -> TileSource:
    """Tiles of diag(c) K diag(c), also where the rows are a Gram matrix already, which is checked for symmetry."""
    column = None if scale is None else scale[:, None]
    if not kernel.is_precomputed:
        return GramTiles(kernel, rows, column)
    n = rows.shape[0]
    check_symmetry(SerialExecutor(), rows, TileGrid(n, min(n, SYMMETRY_TILE), min(n, SYMMETRY_TILE)))
    return MatrixTiles(rows, column)


def loaded(rows: Rows, meter: Meter) -> Rows:
    """Rows in this process's memory."""
    if isinstance(rows, MemoryRows):
        return rows
    meter.bytes_read += rows.n_bytes
    return MemoryRows(rows.read(0, rows.shape[0]))


def fit_primal(data: TrainingData, plan: Plan) -> tuple[PrimalSolution, RunRecord]:
    """Form ΦᵀWΦ in memory, a block of rows at a time, and factor it.

    Parameters
    ----------
    data : TrainingData
    plan : Plan
        Of several parts of the rows each has a thread and a matrix of its own; with one, BLAS uses its threads.

    Raises
    ------
    InputError
        If the rows hold NaN or infinity.
    NotPositiveDefiniteError
        Naming λ and the feature of the failing pivot.
    """
    phi, means, record = data.feature_map, data.target_means(), RunRecord()
    assert phi is not None
    row_block, parts, grid = plan.chosen.row_block, plan.chosen.row_parts, memory_grid(plan)
    weights = None if data.weights is None else data.weights[:, None]
    less = means if data.fit_intercept else None
    cuts = [round(k * data.n / parts) for k in range(parts + 1)]
    segments = [Segment(data.rows, a, b, row_block, data.targets, weights, less) for a, b in pairwise(cuts) if b > a]
    with ThreadExecutor(parts) if parts > 1 else nullcontext(SerialExecutor()) as executor:

        def of_each(function: Any, *arguments: Any) -> Iterator[Any]:
            tasks = [Task(f"{function.__name__}-{k}", function, (phi, s, *arguments)) for k, s in enumerate(segments)]
            done = executor.run(tasks, Progress())
            record.add(RunRecord(done.seconds, [replace(task, value=None) for task in done.tasks]))
            return (task.value for task in done.tasks)

        centre = None
        if data.fit_intercept:
            centre = sum(of_each(feature_sums)) / (data.n if data.weights is None else data.weights.sum())
        (matrix, moments), *rest = of_each(normal_part, centre, grid)
        while rest:
            one, other = rest.pop(0)
            matrix.add(one)
            moments += other
        for i in range(grid.n_tiles):
            mirror_lower(matrix.room(i, i))
        kept, coef, conditions = KeptTiles(matrix), np.empty_like(moments), list[float]()
        check_diagonal(kept.diagonal)
        factor, sizes = kept.beside(), drop_rounding(data, moments, kept.diagonal)
        for alpha, columns in data.alpha_groups():
            shift = np.full(grid.n, alpha)
            scaling = scaling_of(kept.diagonal + shift)
            right_sides = with_probe(moments[:, columns], scaling)
            try:
                with memory_executor(plan, grid) as threads:
                    factor_in_memory(memory_system(kept, shift, factor), threads)
            except NotPositiveDefiniteError as error:
                raise not_positive_definite(error, alpha, "primal") from None
            x = substituted(factor, right_sides)
            coef[:, columns] = x[:, :-1]
            check = checked(right_sides, shift[:, None], x, kept.multiply, None, scaling)
            conditions.append(check.condition)
        errors = data.room_for_errors()
        gradient = sum(of_each(primal_residual, centre, coef, errors)) - coef * data.alphas
    residual = relative([(column_norms(gradient), sizes)])
    return PrimalSolution.build(data, coef, means, centre, errors, residual, worst(conditions)), record
