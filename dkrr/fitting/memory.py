"""Fits whose matrix is held in the memory of the calling process."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.data import TrainingData
from dkrr.fitting.solution import DualParts, DualSolution, PrimalSolution, drop_rounding
from dkrr.kernels import Kernel
from dkrr.linalg.condition import scaling_of, with_probe, worst
from dkrr.linalg.incore import DenseSystem, dense_gram, mirror_lower_blocks
from dkrr.linalg.normal import Segment, feature_sums, normal_part, primal_residual
from dkrr.linalg.operator import column_norms
from dkrr.linalg.residual import checked, relative
from dkrr.rows import MemoryRows, Rows, scan
from dkrr.rows.sources import dense
from dkrr.runtime import Meter, Progress, RunRecord, SerialExecutor, Task, ThreadExecutor
from dkrr.solvers.direct import not_positive_definite

Array = NDArray[np.float64]


def fit_dual(data: TrainingData, meter: Meter) -> DualSolution:
    """Factor K + λW⁻¹ in memory.

    Raises
    ------
    NotPositiveDefiniteError
        Naming λ and the row of the failing pivot.
    """
    rows = loaded(data.rows, meter)
    scan(rows, "X")
    scale, means = data.dual_scale(), data.target_means()
    system = DenseSystem(whole_gram(data.kernel, rows, scale))
    found = DualParts(data, means)
    for alpha, columns in data.alpha_groups():
        shift = data.dual_shift(alpha)
        scaling = scaling_of(system.diagonal + shift)
        right_sides = with_probe(data.dual_right_sides(columns, means), scaling)
        try:
            beta = system.solve(shift, right_sides)
        except NotPositiveDefiniteError as error:
            raise not_positive_definite(error, alpha, "dual") from None
        constants = found.take(columns, beta[:, :-1])
        found.note(columns, checked(right_sides, shift[:, None], beta, system.multiply, constants, scaling))
    return found.solution(rows)


def whole_gram(kernel: Kernel, rows: Rows, scale: Array | None = None) -> Array:
    """Return diag(c) K diag(c), of shape (n, n), also where the rows are a Gram matrix already."""
    if not kernel.is_precomputed:
        return dense_gram(kernel, rows, scale)
    matrix = np.asarray(kernel(dense(rows.read(0, rows.shape[0]))), np.float64)  # a copy, checked for symmetry
    if scale is not None:
        matrix *= scale[:, None]
        matrix *= scale
    return matrix


def loaded(rows: Rows, meter: Meter) -> Rows:
    """Rows in this process's memory."""
    if isinstance(rows, MemoryRows):
        return rows
    meter.bytes_read += rows.n_bytes
    return MemoryRows(rows.read(0, rows.shape[0]))


def fit_primal(data: TrainingData, row_block: int, parts: int) -> tuple[PrimalSolution, RunRecord]:
    """Form ΦᵀWΦ in memory, a block of rows at a time, and factor it.

    Parameters
    ----------
    data : TrainingData
    row_block : int
        Rows of Φ in memory at once, at most.
    parts : int
        Parts of the rows, each with a thread and a matrix of its own; with one, BLAS uses its threads.

    Raises
    ------
    InputError
        If the rows hold NaN or infinity.
    NotPositiveDefiniteError
        Naming λ and the feature of the failing pivot.
    """
    phi, means, record = data.feature_map, data.target_means(), RunRecord()
    assert phi is not None
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
        (matrix, moments), *rest = of_each(normal_part, centre)
        while rest:
            one, other = rest.pop(0)
            matrix += one
            moments += other
        mirror_lower_blocks(matrix)
        system, coef, conditions = DenseSystem(matrix), np.empty_like(moments), list[float]()
        sizes = drop_rounding(data, moments, system.diagonal)
        for alpha, columns in data.alpha_groups():
            try:
                shift = np.full(len(coef), alpha)
                scaling = scaling_of(system.diagonal + shift)
                right_sides = with_probe(moments[:, columns], scaling)
                x = system.solve(shift, right_sides)
            except NotPositiveDefiniteError as error:
                raise not_positive_definite(error, alpha, "primal") from None
            coef[:, columns] = x[:, :-1]
            check = checked(right_sides, shift[:, None], x, system.multiply, None, scaling)
            conditions.append(check.condition)
        errors = data.room_for_errors()
        gradient = sum(of_each(primal_residual, centre, coef, errors)) - coef * data.alphas
    residual = relative([(column_norms(gradient), sizes)])
    return PrimalSolution.build(data, coef, means, centre, errors, residual, worst(conditions)), record
