"""Models that leave folds out, each fitted by itself: for kernels that learn from their training rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from dkrr.data import MemoryRows
from dkrr.errors import InputError
from dkrr.fitting import fit
from dkrr.fitting.prediction import predict_in_memory
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.kernels import Kernel
from dkrr.posterior.base import Array, FoldModels, Numbers


@dataclass(frozen=True)
class Learned:
    """What a kernel was fitted to before its rows were rows of numbers."""

    kernel: Kernel
    """The kernel before."""
    take: Callable[[Numbers], Any] | None
    """Gives some of the documents or rows of the table; None in copies by pickle, which leave these behind."""

    def __getstate__(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "take": None}


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
