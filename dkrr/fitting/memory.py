"""Fits whose matrix is held in the memory of the calling process."""

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.data import TrainingData
from dkrr.fitting.solution import DualSolution, PrimalSolution
from dkrr.linalg.incore import DenseSystem, dense_gram, mirror_lower_blocks
from dkrr.linalg.normal import Segment, accumulate, feature_sums, primal_residual
from dkrr.linalg.residual import relative
from dkrr.rows import MemoryRows, Rows, scan
from dkrr.rows.sources import dense
from dkrr.runtime import Meter
from dkrr.solvers import Cholesky
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
    system = DenseSystem(_matrix(data, rows, scale))
    coef, intercept, residuals = np.empty(data.targets.shape), means.copy(), [0.0]
    for alpha, columns in data.alpha_groups():
        try:
            beta, residual = Cholesky().solve_dense(
                system, data.dual_shift(alpha), data.dual_right_sides(columns, means)
            )
        except NotPositiveDefiniteError as error:
            raise not_positive_definite(error, alpha, "dual") from None
        residuals.append(residual)
        coef[:, columns], b = data.dual_coefficients(beta)
        intercept[columns] += b
    return DualSolution(coef, intercept, rows, max(residuals))


def _matrix(data: TrainingData, rows: Rows, scale: Array | None) -> Array:
    if not data.kernel.is_precomputed:
        return dense_gram(data.kernel, rows, scale)
    matrix = np.asarray(data.kernel(dense(rows.read(0, data.n))), np.float64)  # a copy, checked for symmetry
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


def fit_primal(data: TrainingData, row_block: int, meter: Meter) -> PrimalSolution:
    """Form ΦᵀWΦ in memory, a block of rows at a time, and factor it.

    Raises
    ------
    NotPositiveDefiniteError
        Naming λ and the feature of the failing pivot.
    """
    assert data.feature_map is not None
    scan(data.rows, "X")
    means = data.target_means()
    dimension = data.feature_map.dimension(data.rows.shape[1])
    weights = None if data.weights is None else data.weights[:, None]
    segment = Segment(data.rows, 0, data.n, row_block, data.targets - means, weights)
    centre = None
    if data.fit_intercept:
        total = data.n if data.weights is None else data.weights.sum()
        centre = feature_sums(meter, data.feature_map, segment) / total
    matrix, moments = np.zeros((dimension, dimension)), np.zeros((dimension, data.targets.shape[1]))
    everything = slice(0, dimension)
    accumulate(meter, data.feature_map, segment, centre, matrix, moments, everything, everything)
    mirror_lower_blocks(matrix)
    system, coef = DenseSystem(matrix), np.empty_like(moments)
    for alpha, columns in data.alpha_groups():
        try:
            right_sides = np.ascontiguousarray(moments[:, columns])
            coef[:, columns], _ = Cholesky().solve_dense(system, np.full(dimension, alpha), right_sides)
        except NotPositiveDefiniteError as error:
            raise not_positive_definite(error, alpha, "primal") from None
    errors, gradient = primal_residual(meter, data.feature_map, segment, centre, coef)
    gradient -= coef * data.alphas
    residual = relative([((gradient**2).sum(axis=0), (moments**2).sum(axis=0))])
    return PrimalSolution.build(data, coef, means, centre, errors, residual)
