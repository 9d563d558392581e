"""Held-out errors from a Cholesky factor for each λ: exact, for leave-one-out and for folds that train on the rest."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import ThreadExecutor
from dkrr.fitting.context import Context
from dkrr.fitting.data import TrainingData
from dkrr.fitting.gram import FactoredGram, direct_gram
from dkrr.fitting.norms import scale_of
from dkrr.linalg.held_out import LeftOut
from dkrr.planning import Direct
from dkrr.selection.folds import Folds
from dkrr.selection.report import Report
from dkrr.selection.scores import ScoreSheet
from dkrr.solvers.direct import in_terms_of_alpha

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

MAX_RESIDUAL = 1e-7
"""Largest relative residual of the system of all rows with which a λ has scores: where the rows of one fold dominate
the matrix, squared errors were found to be off by up to 50 times as much."""


def score_by_factors(
    strategy: Direct,
    data: TrainingData,
    context: Context,
    folds: Folds,
    alphas: Array,
    sheet: ScoreSheet,
    report: Report,
) -> None:
    """Score every λ, one factorisation after another.

    Raises
    ------
    NotPositiveDefiniteError
        If K + λI is not positive definite; the message names λ.
    """
    matrix = direct_gram(data, strategy, context, data.dual_scale())
    for a, alpha in enumerate(alphas):
        with in_terms_of_alpha([float(alpha)], "dual", partial(scale_of, data, "dual")):
            predictions, residual = _predictions(matrix, data, context, folds, float(alpha), f"factor-{a}")
        matrix.release(f"factor-{a}")
        for fold in range(report.n_folds):
            report.take(a, fold, residual, MAX_RESIDUAL)
        for fold, values in enumerate(predictions):
            sheet.take(a, fold, values)


def _predictions(
    matrix: FactoredGram, data: TrainingData, context: Context, folds: Folds, alpha: float, group: str
) -> tuple[list[Array], float]:
    """Predictions of the rows that each fold holds out (all: leave-one-out), none if inaccurate; the true residual."""
    means, scale = data.target_means(), data.dual_scale()
    right_sides = data.dual_right_sides(np.arange(data.targets.shape[1]), means)
    constant = np.ascontiguousarray(right_sides[:, -1]) if data.fit_intercept else None
    if data.fit_intercept:
        right_sides = np.ascontiguousarray(right_sides[:, :-1])
    factor = matrix.systems.factored(group, data.dual_shift(alpha), f"λ = {alpha:g}")
    with ThreadExecutor(context.threads) as executor, context.progress.stage("held-out errors", 1.0):
        left_out = LeftOut(factor, right_sides, constant, executor, context.progress)
        residual = matrix.residual(data.dual_shift(alpha), right_sides, left_out.unfreed)
        if not residual <= MAX_RESIDUAL:
            return [], residual
        everywhere = np.arange(data.n)
        held_out, errors = (
            ([everywhere], [left_out.of_rows()]) if folds.is_loo else (list(folds.test), left_out.of_folds(folds.test))
        )
        found = []
        for rows, scaled in zip(held_out, errors, strict=True):
            c = np.ones(len(rows)) if scale is None else scale[rows]
            with np.errstate(divide="ignore", invalid="ignore"):
                values = data.targets[rows] - scaled / c[:, None]
            if (c == 0).any():
                values[c == 0] = _of_weight_zero(matrix, data, left_out, rows, scaled, means, is_loo=folds.is_loo)
            found.append(values)
    return found, residual


def _of_weight_zero(
    matrix: FactoredGram,
    data: TrainingData,
    left_out: LeftOut,
    rows: Numbers,
    errors: Array,
    means: Array,
    *,
    is_loo: bool,
) -> Array:
    """Predictions of those of some held-out rows that have weight 0, and so no equation of their own."""
    scale = data.dual_scale()
    assert scale is not None
    if is_loo:  # a fit without a row of weight 0 is the fit of all rows
        solution, constants = left_out.solution, left_out.constants
    else:
        solution, constants = left_out.without(rows, errors)
    coef = solution * scale[:, None]
    return matrix.products_of(rows[scale[rows] == 0], coef) + constants + means
