"""Labels of a classification: checks, class codes and class weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from dkrr.errors import InputError, InputTypeError
from dkrr.rows import NO_LABELS, refuse_unreadable
from dkrr.values import not_negative, shown

Array = NDArray[np.float64]


def checked_labels(y: Any) -> NDArray[Any]:
    """Labels as an array of shape (n,).

    Raises
    ------
    InputError
        If the shape is wrong, a label is missing, types are mixed, or the values are continuous.
    """
    if sp.issparse(y):
        raise InputTypeError("y is sparse; expected a dense array with one label for every row")
    refuse_unreadable(y, "y", NO_LABELS)
    # NumPy would convert every item of a plain list to a string, whatever its type.
    try:
        labels = np.asarray(y, object if isinstance(y, list | tuple) else None)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputTypeError(f"y is {shown(y)}; expected (n_samples,): one label for every row") from error
    if labels.dtype.kind == "c":
        raise InputTypeError(f"y has dtype {labels.dtype}; expected labels of classes. Complex data not supported")
    if labels.ndim not in (1, 2) or (labels.ndim == 2 and labels.shape[1] != 1) or labels.size == 0:
        raise InputError(
            f"y has shape {labels.shape}, a bad input shape; expected (n_samples,): one label for every row"
        )
    if labels.dtype.kind == "T":  # text of any length, as Zarr returns it
        labels = labels.astype(object)
    labels = np.asarray(column_or_1d(labels, warn=True))
    if labels.dtype.kind == "O":
        labels = _checked_objects(labels)
        return np.array(labels.tolist()) if isinstance(y, list | tuple) else labels
    if labels.dtype.kind in "fc":
        bad = np.flatnonzero(~np.isfinite(labels))
        if len(bad):
            raise InputError(
                f"y contains NaN or infinity: the label of row {bad[0]} is {labels[bad[0]]}; expected a label for "
                f"every row: leave the row out"
            )
    _check_targets(labels)
    return np.asarray(labels)


def _checked_objects(labels: NDArray[Any]) -> NDArray[Any]:
    for row, label in enumerate(labels):
        # NaN and NaT differ from themselves; comparing pandas' NA with itself raises.
        if label is None or not _is_itself(label):
            raise InputError(
                f"y has a missing label in row {row}: {label!r} (NaN); expected a label for every row: leave the row "
                f"out"
            )
    kinds = {_kind(label): row for row, label in reversed(list(enumerate(labels)))}
    if len(kinds) > 1:
        found = " and ".join(f"{kind} (row {row})" for kind, row in sorted(kinds.items(), key=lambda item: item[1]))
        raise InputTypeError(f"y has labels of mixed types: {found}; expected strings only, or numbers only")
    plain = np.array(labels.tolist())
    # Objects keep their type, and so do strings, whose dtype would depend on the longest one.
    labels = labels if plain.dtype.kind not in "biuf" or plain.ndim != 1 else plain
    _check_targets(labels)
    return labels


def _check_targets(labels: NDArray[Any]) -> None:
    try:
        check_classification_targets(labels)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"y does not hold class labels: {error}") from error


def _is_itself(label: Any) -> bool:
    try:
        return bool(label == label)
    except (TypeError, ValueError):
        return False


def _kind(label: Any) -> str:
    if isinstance(label, str):
        return "str"
    if isinstance(label, bool | np.bool_):
        return "bool"
    return "number" if isinstance(label, int | float | np.number) else type(label).__name__


def encoded(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Classes in order, and the number of every row's class."""
    classes, codes = np.unique(labels, return_inverse=True)
    return classes, codes.astype(np.intp)


def class_weights(
    class_weight: Any, classes: NDArray[Any], codes: NDArray[np.intp], weights: Array | None
) -> Array | None:
    """Sample weights times those of the classes; None where all are 1.

    Raises
    ------
    InputError
        If fewer than two classes have positive weight, or class_weight names a class that y does not have or gives a
        weight that is negative or not finite.
    """
    n, given = len(codes), weights
    if class_weight is not None:
        weights = np.ones(n) if weights is None else weights
        weights = weights * _factors(class_weight, classes, codes, weights)[codes]
    counts = np.bincount(codes, weights, minlength=len(classes)) > 0
    if counts.sum() < 2:
        of = "" if given is None and class_weight is None else " of positive weight"
        found = classes[counts].tolist()
        raise InputError(
            f"y has {len(found)} class{of} ({', '.join(map(repr, found)) or 'none'}); expected samples of at least 2 "
            f"classes"
        )
    return None if weights is None or (weights == 1).all() else weights


def _factors(class_weight: Any, classes: NDArray[Any], codes: NDArray[np.intp], weights: Array) -> Array:
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise InputError(f"class_weight is {shown(class_weight)}; expected 'balanced', a dict, or None")
        totals = np.bincount(codes, weights, minlength=len(classes))
        balanced: Array = np.divide(
            totals.sum(), np.count_nonzero(totals) * totals, out=np.ones(len(classes)), where=totals > 0
        )
        return balanced
    if not isinstance(class_weight, Mapping):
        raise InputTypeError(f"class_weight is {shown(class_weight)}; expected 'balanced', a dict, or None")
    factors = np.ones(len(classes))
    known = {label: k for k, label in enumerate(classes.tolist())}
    for label, value in class_weight.items():
        if label not in known:
            raise InputError(
                f"class_weight names the class {label!r}, which y does not have; expected one of "
                f"{', '.join(map(repr, known))}"
            )
        factors[known[label]] = not_negative(value, f"class_weight[{label!r}]")
    return factors
