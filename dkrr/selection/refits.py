"""A fit of all λ for each fold: where nothing is shared between folds."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data import MemoryRows
from dkrr.fitting import fit
from dkrr.fitting.prediction import predict_in_memory
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.sampled import is_drawn
from dkrr.selection.folds import Folds
from dkrr.selection.report import Report
from dkrr.selection.scores import ScoreSheet
from dkrr.selection.sweep import LEAST_TOL

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

NORMAL_FRACTION = 1e-3
"""Tolerance in primal form over the one that scores ask for: normal equations have the squared condition number."""


def score_by_refits(
    request: FitRequest,
    folds: Folds,
    alphas: Array,
    sheet: ScoreSheet,
    report: Report,
    progress: bool | None,
    *,
    is_primal: bool,
) -> None:
    """Score every λ by fits to the training rows of each fold, all λ as targets of their own.

    Rows that are not in memory stay where they are in primal form, the others with weight 0; else the training rows are
    read, where the cost of a fit depends on their number more than on reading them.
    """
    targets = request.outputs
    assert isinstance(targets, Targets)
    t = targets.values.shape[1]
    if is_primal:
        request = request.with_settings(tol=max(NORMAL_FRACTION * request.settings.tol, LEAST_TOL))
    for f in range(len(folds)):
        fitted = fit(_of_training_rows(request, folds, f, alphas, is_primal=is_primal), progress)
        (solved,) = fitted.solved
        predictions = predict_in_memory(solved.model, MemoryRows(_taken(request, folds.test[f], folds.training(f))))
        report.take_fit(f, solved.result, request.settings.tol)
        for a in range(len(alphas)):
            sheet.take(a, f, predictions[:, a * t : (a + 1) * t])


def _taken(request: FitRequest, rows: Numbers, training: Numbers) -> Any:
    """Some rows; of a Gram matrix with the columns of the training rows."""
    taken = request.rows.take(rows)
    return taken[:, training] if request.settings.kernel.is_precomputed else taken


def _of_training_rows(request: FitRequest, folds: Folds, fold: int, alphas: Array, *, is_primal: bool) -> FitRequest:
    targets, settings = request.outputs, request.settings
    assert isinstance(targets, Targets)
    if settings.store is not None:
        settings = replace(settings, store=f"{settings.store}-fold-{fold}")
    request = replace(request, settings=settings)
    repeated, t = np.repeat(alphas, targets.values.shape[1]), len(alphas)
    training, weights = folds.training(fold), request.weights
    if isinstance(request.rows, MemoryRows) or is_drawn(settings.kernel) or not is_primal:
        outputs = Targets(np.tile(targets.values[training], t), repeated)
        weights = None if weights is None else weights[training]
        return replace(request, rows=MemoryRows(_taken(request, training, training)), outputs=outputs, weights=weights)
    # Rows that are not in memory stay where they are; those of weight 0 leave no trace where nothing is drawn of them.
    mask = np.zeros(folds.n)
    mask[training] = 1.0 if weights is None else weights[training]
    return replace(request, outputs=Targets(np.tile(targets.values, t), repeated), weights=mask)
