"""Intervals of new targets, from the errors of the models that leave folds out.

Kernels that learn from their training rows need a fit for each of these models.
"""

import math
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from dkrr.cluster import Progress
from dkrr.cluster.process import usable_threads
from dkrr.data import MemoryRows, Rows
from dkrr.errors import InputError
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.fold_models import Array, FoldModels, Numbers, lists_of, predictions_beside, sorted_sizes
from dkrr.fitting.prediction import predict_in_memory
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.run import fit
from dkrr.kernels import Kernel
from dkrr.linalg.shifted_lists import ShiftedLists
from dkrr.planning.predictions import power_of_two

INTERVAL_ROWS, INTERVAL_BYTES = 2**14, 2**22
"""Most rows whose intervals are computed together, and most bytes of the predictions of all folds for them."""
MIN_THREAD_ROWS = 2**12
"""Rows from which a separate thread pays off."""


@dataclass(frozen=True)
class RefittedFolds:
    """Models of all folds and targets, each with a kernel that has seen its training rows only."""

    models: Sequence[FittedFunction]
    errors: Sequence[Array]
    """As in `FoldModels`."""
    encode: Callable[[Any], Any] | None
    """New rows as all kernels encode them, side by side, as `predict` takes them; None: as they are."""

    @cached_property
    def lists(self) -> list[ShiftedLists]:
        """Errors of each target."""
        return lists_of(self.errors)

    def predict(self, rows: Rows, first: int) -> Array:
        """Predictions of shape (m, n_folds × t), in the order of `FoldModels`."""
        x = rows.read(0, rows.shape[0])
        starts = np.cumsum([0, *(model.n_features for model in self.models)])
        parts = [x] * len(self.models) if self.encode is None else [x[:, a:b] for a, b in pairwise(starts)]
        return np.hstack([predict_in_memory(m, MemoryRows(p), first) for m, p in zip(self.models, parts, strict=True)])


def refitted(request: FitRequest, folds: Sequence[Numbers], progress: Progress) -> RefittedFolds:
    """Fit a model to the rest of the rows of every fold, each a part of the open stage of a display.

    Raises
    ------
    InputError
        If the model was pickled or loaded, and what its kernel learned from is not known.
    DkrrError
        As a fit does.
    """
    outputs, learned = request.outputs, request.learned
    assert isinstance(outputs, Targets)
    take = request.rows.take if learned is None else learned.take
    if take is None:
        raise InputError(
            "the model was pickled or saved without the data that its kernel learns from, which predict_interval fits "
            "parts of; expected a model that was fitted here: call fit"
        )
    models, kernels, errors = list[FittedFunction](), list[Kernel](), list[Array]()
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
        (fitted_model,) = fit(one, False).models
        models.append(fitted_model.function)
        kernels.append(kernel)
        errors.append(outputs.values[held] - predict_in_memory(fitted_model.function, rows_of(held)))
        progress.advance(1)

    def encode(X: Any) -> Any:
        parts = [kernel.encode(X) for kernel in kernels]
        return sp.hstack(parts, format="csr") if any(map(sp.issparse, parts)) else np.hstack(parts)

    sizes = sorted_sizes(errors, folds, request.weights)
    return RefittedFolds(models, sizes, None if learned is None else encode)


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

    groups: Sequence[tuple[Numbers, FoldModels]] | RefittedFolds
    """Targets and the models of all folds."""
    coverage: float
    n_targets: int
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Name for Dask: a checksum of all models would take long."""

    def __dask_tokenize__(self) -> str:
        return self.token

    @property
    def encode(self) -> Callable[[Any], Any] | None:
        """Encoding of new rows before the folds' kernels, which do not take the rows of the model; None if they do."""
        return self.groups.encode if isinstance(self.groups, RefittedFolds) else None

    def bounds(self, rows: Rows, first: int = 0) -> Array:
        """Lower bounds of all targets, then upper ones, of rows in memory; shape (m, 2 t)."""
        return self._of_blocks(None, rows, first)[1]

    def beside(self, mean: FittedFunction, rows: Rows, first: int = 0) -> tuple[Array, Array]:
        """Predictions of the model, of shape (m, t), and `bounds`, from one evaluation of the kernel."""
        predictions, bounds = self._of_blocks(mean, rows, first)
        assert predictions is not None
        return predictions, bounds

    def _of_blocks(self, mean: FittedFunction | None, rows: Rows, first: int) -> tuple[Array | None, Array]:
        m = rows.shape[0]
        predictions, found = None if mean is None else np.empty((m, self.n_targets)), np.empty((m, 2 * self.n_targets))
        height = power_of_two(max(1, min(INTERVAL_ROWS, INTERVAL_BYTES // (8 * self._n_columns))))
        for start in range(0, m, height):
            where = slice(start, min(start + height, m))
            block = MemoryRows(rows.read(where.start, where.stop))
            values, parts = self._predict(mean, block, first + start)
            if predictions is not None:
                predictions[where] = values
            for columns, lists, part in parts:
                self._fill(found[where], columns, lists, part)
        return predictions, found

    @property
    def _n_columns(self) -> int:
        groups = self.groups
        if isinstance(groups, RefittedFolds):
            return sum(model.n_targets for model in groups.models)
        return sum(models.function.n_targets for _, models in groups)

    def _predict(
        self, mean: FittedFunction | None, rows: Rows, first: int
    ) -> tuple[Array | None, list[tuple[Numbers, list[ShiftedLists], Array]]]:
        """Predictions by the mean, and targets, errors and predictions of the models of all folds."""
        groups = self.groups
        if isinstance(groups, RefittedFolds):
            values = None if mean is None else predict_in_memory(mean, rows, first)
            return values, [(np.arange(self.n_targets), groups.lists, groups.predict(rows, first))]
        values, found = predictions_beside(mean, [models.function for _, models in groups], rows, first)
        return values, [(columns, models.lists, p) for (columns, models), p in zip(groups, found, strict=True)]

    def _fill(self, out: Array, columns: Numbers, lists: list[ShiftedLists], predictions: Array) -> None:
        """Write the bounds of some targets, from predictions of shape (m, n_folds × t), to `out`, (m, 2 n_targets)."""
        m, t = len(predictions), len(columns)
        n_folds, threads = predictions.shape[1] // t, usable_threads() if len(predictions) >= 2 * MIN_THREAD_ROWS else 1
        cuts = [m * k // threads for k in range(threads + 1)]

        def fill(place: int, start: int, stop: int) -> None:
            one, column = lists[place], int(columns[place])
            rank = math.ceil(self.coverage * (one.n + 1)) - 1  # counted from 0, among the errors and one at infinity
            lower, upper = out[start:stop, column], out[start:stop, self.n_targets + column]
            if rank >= one.n:
                lower[:], upper[:] = -np.inf, np.inf
                return
            shifts = predictions[start:stop].reshape(-1, n_folds, t)[:, :, place].T
            # The bound that is as far from the other end is that of the negatives.
            np.negative(one.of_rank(-shifts, rank), out=lower)
            upper[:] = one.of_rank(shifts, rank)

        parts = [(place, a, b) for place in range(t) for a, b in pairwise(cuts)]
        if threads == 1:
            for part in parts:
                fill(*part)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda part: fill(*part), parts))
