"""Intervals of new targets, from the errors of the models that leave folds out.

Kernels that learn from their training rows need a fit for each of these models.
"""

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from dkrr.data import MemoryRows, Rows
from dkrr.errors import InputError
from dkrr.fitting import fit
from dkrr.fitting.gaussian_process import Array, FoldModels, Numbers, blocks, refuse_nan
from dkrr.fitting.prediction import predict_in_memory
from dkrr.fitting.requests import FitRequest, Learned, Targets
from dkrr.kernels import Kernel


@dataclass(frozen=True)
class RefittedFolds:
    """Models of all folds, each with a kernel that has seen its training rows only."""

    models: FoldModels
    encode: Callable[[Any], Any] | None
    """New rows as all kernels encode them, side by side, as `models` takes them; None: as they are."""


def refitted(request: FitRequest, learned: Learned | None, folds: Sequence[Numbers]) -> RefittedFolds:
    """Fit a model to the rest of the rows of every fold.

    Raises
    ------
    InputError
        If the model was pickled or loaded, and what its kernel learned from is not known.
    DkrrError
        As a fit does.
    """
    outputs = request.outputs
    assert isinstance(outputs, Targets)
    take = request.rows.take if learned is None else learned.take
    if take is None:
        raise InputError(
            "the model was pickled or saved without the data that its kernel learns from, which predict_interval fits "
            "parts of; expected a model that was fitted here: call fit"
        )
    models, kernels, errors = [], list[Kernel](), list[Array]()
    for held in folds:
        training = np.setdiff1d(np.arange(len(outputs.values)), held)
        kernel = request.settings.kernel if learned is None else learned.kernel.fitted(take(training))

        def rows_of(numbers: Numbers, kernel: Kernel = kernel) -> MemoryRows:
            return MemoryRows(kernel.encode(take(numbers)))

        one = replace(
            request.with_settings(kernel=kernel, store=None),
            rows=rows_of(training),
            outputs=Targets(outputs.values[training], outputs.alphas),
            weights=None if request.weights is None else request.weights[training],
        )
        (solved,) = fit(one, False).solved
        models.append(solved.model)
        kernels.append(kernel)
        errors.append(outputs.values[held] - predict_in_memory(solved.model, rows_of(held)))
    starts = np.cumsum([0, *(model.n_features for model in models)])

    def encode(X: Any) -> Any:
        parts = [kernel.encode(X) for kernel in kernels]
        return sp.hstack(parts, format="csr") if any(map(sp.issparse, parts)) else np.hstack(parts)

    def predict(x: Any) -> Array:
        parts = [x] * len(models) if learned is None else [x[:, a:b] for a, b in pairwise(starts)]
        each = [predict_in_memory(m, MemoryRows(part)) for m, part in zip(models, parts, strict=True)]
        return np.stack(each)

    return RefittedFolds(FoldModels(errors, predict), None if learned is None else encode)


@dataclass(frozen=True)
class CrossValidationIntervals:
    """Intervals that hold new targets with a given probability, by CV+.

    For new rows that are exchangeable with the training rows the coverage is at least 2 × coverage − 1, whatever the
    distribution and the model, and about `coverage` in practice.

    References
    ----------
    R. F. Barber, E. J. Candès, A. Ramdas, R. J. Tibshirani, "Predictive inference with the jackknife+", Ann. Statist.
    49 (2021).
    """

    groups: Sequence[tuple[Numbers, FoldModels, Array]]
    """Targets, the models of all folds, and |y − f| of the rows that count, of shape (n, t)."""
    fold_of: Numbers
    """Fold of those rows."""
    ranks: tuple[int, int]
    """Ranks of the lower and the upper bound, counted from 0, among these rows and one at infinity."""
    n_targets: int
    units: Array | None
    """What the targets of the models have been divided by, of shape (t,)."""
    encode: Callable[[Any], Any] | None = None
    """What new rows pass through first, where the folds' kernels do not take the rows of the model."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Name for Dask: a checksum of all models would take long."""

    @classmethod
    def of(
        cls,
        models: Sequence[tuple[Numbers, FoldModels]],
        weights: Array | None,
        folds: Sequence[Numbers],
        coverage: float,
        units: Array | None,
        encode: Callable[[Any], Any] | None = None,
    ) -> "CrossValidationIntervals":
        """Intervals of the models that leave these folds out, each for some targets."""
        kept = [np.ones(len(fold), bool) if weights is None else weights[fold] > 0 for fold in folds]
        fold_of = np.repeat(np.arange(len(folds)), [int(k.sum()) for k in kept])
        n = len(fold_of)
        high = math.ceil(coverage * (n + 1)) - 1
        groups = [
            (columns, one, np.abs(np.vstack([errors[k] for errors, k in zip(one.errors, kept, strict=True)])))
            for columns, one in models
        ]
        return cls(groups, fold_of, (n - 1 - high, high), sum(len(columns) for columns, _ in models), units, encode)

    def __dask_tokenize__(self) -> str:
        return self.token

    def bounds(self, rows: Rows, first: int = 0) -> Array:
        """Lower bounds of all targets, then upper ones; shape (m, 2 t)."""
        found = np.empty((rows.shape[0], 2 * self.n_targets))
        lower, upper = found[:, : self.n_targets], found[:, self.n_targets :]
        n, (low, high) = len(self.fold_of), self.ranks
        for where, x in blocks(rows, n, first):
            for columns, models, sizes in self.groups:
                predictions = models.predict(x)
                refuse_nan(np.swapaxes(predictions, 0, 1), first + where.start)
                for j, column in enumerate(columns):
                    each = predictions[self.fold_of, :, j]
                    below, above = each - sizes[:, [j]], each + sizes[:, [j]]
                    lower[where, column] = -np.inf if low < 0 else np.partition(below, low, axis=0)[low]
                    upper[where, column] = np.inf if high >= n else np.partition(above, high, axis=0)[high]
        return found if self.units is None else found * np.tile(self.units, 2)
