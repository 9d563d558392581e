"""Arguments that estimators and functions share: each is checked, and returned in the type that the package works with.

Each function raises `InputError` for an argument that cannot be used.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data import as_rows, load_array, load_labels
from dkrr.errors import InputError, InputTypeError
from dkrr.features import FeatureMap
from dkrr.kernels import Kernel, as_kernel
from dkrr.linalg.likelihood import Bernoulli, Likelihood, Softmax
from dkrr.solvers import Cholesky, ConjugateGradient
from dkrr.store.places import refuse_missing_folder
from dkrr.values import (
    FLAGS,
    MIN_TOL,
    checked_alphas,
    checked_candidates,
    checked_count,
    checked_form,
    checked_loss,
    checked_max_iter,
    checked_multi_class,
    checked_path,
    checked_progress,
    checked_tile,
    checked_tol,
    checked_train_sizes,
    checked_whole,
    location,
    shown,
)

__all__ = [
    "MIN_TOL",
    "SOLVERS",
    "checked_alphas",
    "checked_candidates",
    "checked_count",
    "checked_form",
    "checked_kernel",
    "checked_likelihood",
    "checked_loss",
    "checked_max_iter",
    "checked_multi_class",
    "checked_path",
    "checked_progress",
    "checked_solver",
    "checked_store",
    "checked_tile",
    "checked_tol",
    "checked_train_sizes",
    "checked_weights",
    "checked_whole",
    "checked_width",
    "likelihood_of",
]

SOLVERS: dict[str, Cholesky | ConjugateGradient | None] = {
    "auto": None,
    "cholesky": Cholesky(),
    "cg": ConjugateGradient(),
}
"""Settings of the solvers that have names; None: the planner chooses."""


def checked_kernel(kernel: Any, **settings: Any) -> Kernel:
    """Kernel given as any argument of `as_kernel`, or as a feature map."""
    if not isinstance(kernel, str) and isinstance(kernel, FeatureMap):
        kernel = kernel.kernel()
    return as_kernel(kernel, **settings)


def checked_solver(solver: Any) -> Cholesky | ConjugateGradient | None:
    """Settings of a solver; None for "auto"."""
    if isinstance(solver, Cholesky | ConjugateGradient):
        return solver
    if not isinstance(solver, str) or solver not in SOLVERS:
        raise InputError(
            f"solver is {shown(solver)}; expected 'auto', 'cholesky', 'cg', dkrr.solvers.Cholesky() or "
            f"dkrr.solvers.ConjugateGradient(...)"
        )
    return SOLVERS[solver]


def checked_store(store: Any) -> str | None:
    """Path or URL of a run's store; None: a temporary one."""
    if store is None:
        return None
    place = location(store, "store", "the path or URL of the run's store, or None", is_kept=True)
    refuse_missing_folder(place, "store")
    return place


def checked_weights(sample_weight: Any, n: int) -> NDArray[np.float64] | None:
    """Sample weights of shape (n,), finite, ≥ 0 and not all 0; None where all are 1."""
    if sample_weight is None:
        return None
    weights = load_array(sample_weight, "sample_weight")
    if weights.ndim == 0:
        if isinstance(sample_weight, FLAGS):
            raise InputTypeError(f"sample_weight is {sample_weight}; expected a number, or one for each row of X")
        weights = np.full(n, float(weights))
    if weights.shape != (n,):
        raise InputError(f"sample_weight has shape {weights.shape}; expected ({n},), one for each row of X")
    if not np.isfinite(weights).all() or (weights < 0).any():
        row = int(np.argmin(np.where(np.isfinite(weights), weights, -np.inf)))
        raise InputError(f"sample_weight is {weights[row]} in row {row}; expected finite numbers >= 0")
    if not (weights > 0).any():
        raise InputError("sample_weight is zero everywhere; expected a positive weight for at least one row")
    return None if (weights == 1).all() else weights


def checked_likelihood(y: Any, n_classes: int | None, multi_class: Any) -> Likelihood:
    """Likelihood of labels y, or of a number of classes where y is None."""
    is_multinomial = checked_multi_class(multi_class)
    if y is not None:
        labels = load_labels(y)
        if labels.ndim not in (1, 2) or labels.size == 0 or (labels.ndim == 2 and labels.shape[1] != 1):
            raise InputError(f"y has shape {labels.shape}; expected (n_samples,): one label for every row")
        if labels.dtype.kind == "f" and (labels != np.floor(labels)).any():
            raise InputError("y holds continuous values; expected class labels: loss='squared' plans a regression")
        try:
            n_classes = len(np.unique(labels))
        except TypeError as error:
            raise InputError(f"y has labels of mixed types, or missing ones: {error}") from error
        if n_classes < 2:
            raise InputError("y has 1 class; expected samples of at least 2 classes")
    n_classes = 2 if n_classes is None else n_classes
    if checked_count(n_classes, "n_classes") < 2:
        raise InputError(f"n_classes is {n_classes!r}; expected a whole number of at least 2")
    return likelihood_of(n_classes, is_multinomial=is_multinomial)


def likelihood_of(n_classes: int, *, is_multinomial: bool) -> Likelihood:
    """Likelihood of labels: one column of scores for two classes, else one for each class."""
    if n_classes == 2:
        return Bernoulli(1)
    return Softmax(n_classes) if is_multinomial else Bernoulli(n_classes)


def checked_width(y: Any, n: int) -> int:
    """Number of targets in y, which has a row for each of n."""
    rows = as_rows(y, "y")
    if rows.is_sparse:
        raise InputTypeError("y is sparse; expected a dense array: use toarray()")
    n_rows, width = rows.shape
    if n_rows != n:
        raise InputError(f"y has {n_rows} rows, and X has {n}; expected the same number")
    return width
