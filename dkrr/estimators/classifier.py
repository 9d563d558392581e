"""What a classifier takes, predicts and saves: labels and their codes, class weights, probabilities from scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from dkrr.checks import not_negative, shown
from dkrr.data import NO_LABELS, load_labels, refuse_unreadable, with_columns
from dkrr.errors import InputError, InputTypeError
from dkrr.estimators.base import KernelEstimator, is_local
from dkrr.estimators.typed import ClassifierMixin, InMemory
from dkrr.fitting.model import FittedFunction
from dkrr.fitting.requests import checked_weights, likelihood_of
from dkrr.linalg.likelihood import Likelihood
from dkrr.store.zarr_arrays import is_dask_array

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


class KernelClassifier(ClassifierMixin, KernelEstimator):
    """Base of classifiers with scores for each class (one score for two classes)."""

    classes_: NDArray[Any]
    n_iter_: int
    _has_softmax: bool

    @overload
    def decision_function(self, X: InMemory) -> Array: ...

    @overload
    def decision_function(self, X: Any) -> Any: ...

    def decision_function(self, X: Any) -> Any:
        """Scores of rows: the larger, the more probable is the class (the second of two).

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, or other objects that the kernel takes. If kernel == "precomputed": the kernel between new and
            training rows, of shape (n, n_samples).

        Returns
        -------
        ndarray, or a lazy Dask array for rows read in blocks, of shape (n,) for two classes, else (n, n_classes)
        """
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    @overload
    def predict_proba(self, X: InMemory) -> Array: ...

    @overload
    def predict_proba(self, X: Any) -> Any: ...

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, in the order of `classes_`; one-vs-rest models are normalised.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `decision_function`.

        Returns
        -------
        ndarray, or a lazy Dask array, of shape (n, n_classes)
        """
        return self._probabilities_of(self._scores(X))

    @overload
    def predict_log_proba(self, X: InMemory) -> Array: ...

    @overload
    def predict_log_proba(self, X: Any) -> Any: ...

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of the probabilities; finite even if a probability is too small for float64.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `decision_function`.

        Returns
        -------
        ndarray, or a lazy Dask array, of shape (n, n_classes)
        """
        return _by_rows(self._scores(X), self._likelihood().log_probabilities, len(self.classes_), np.float64)

    @overload
    def predict(self, X: InMemory) -> NDArray[Any]: ...

    @overload
    def predict(self, X: Any) -> Any: ...

    def predict(self, X: Any) -> Any:
        """Most probable class of each row.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `decision_function`.

        Returns
        -------
        ndarray, or a lazy Dask array, of shape (n,)
        """
        return self._predictions_of(self._scores(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy: the fraction of rows whose most probable class is their label.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            Rows, as for `decision_function`.
        y : array-like, Dask array, Zarr array, path, or column of X, of shape (n,)
            Their labels.
        sample_weight : float, array-like of shape (n,), or column of X, optional
            Weights ≥ 0; None: 1 for every row.

        Returns
        -------
        float
            Between 0 and 1.
        """
        X, y, sample_weight = with_columns(X, y, sample_weight)
        labels = checked_labels(y if is_local(y) else load_labels(y))
        predicted = np.asarray(self.predict(X))
        if labels.shape != predicted.shape:
            raise InputError(f"y has {len(labels)} labels; expected {len(predicted)}, one for each row of X")
        weights = None if sample_weight is None else checked_weights(sample_weight, len(labels))
        try:
            return float(accuracy_score(labels, predicted, sample_weight=weights))
        except (TypeError, ValueError) as error:
            raise InputError(f"y cannot be compared with {shown(self.classes_.tolist())}: {error}") from error

    def _probabilities_of(self, scores: Any) -> Any:
        """Probabilities (n, n_classes) that follow from scores (n, columns), an ndarray or a lazy array."""
        return _by_rows(scores, self._likelihood().probabilities, len(self.classes_), np.float64)

    def _predictions_of(self, scores: Any) -> Any:
        return _by_rows(scores, _LabelOf(self.classes_), None, self.classes_.dtype)

    def _likelihood(self) -> Likelihood:
        return likelihood_of(len(self.classes_), is_multinomial=self._has_softmax)

    def _description(self) -> dict[str, Any]:
        labels = self.classes_.tolist()
        if not all(isinstance(label, str | bool | int | float) for label in labels):
            raise InputError(f"labels of type {type(labels[0]).__name__} cannot be saved; use strings or numbers")
        kind = self.classes_.dtype.str if self.classes_.dtype.kind != "O" else "object"
        weight = self.class_weight
        if isinstance(weight, dict):
            weight = [[np.asarray(label).tolist(), float(factor)] for label, factor in weight.items()]
        return {
            "classes": labels,
            "class_dtype": kind,
            "class_weight": weight,
            "softmax": self._has_softmax,
            "n_iter": self.n_iter_,
        }

    def _restore(self, function: FittedFunction, dual_coef: Array | None, found: dict[str, Any]) -> None:
        dtype = np.dtype(found["class_dtype"])
        self.classes_ = np.array(found["classes"], "U" if dtype.kind == "U" else dtype)  # as wide as the labels are
        weight = found["class_weight"]
        self.class_weight = dict(weight) if isinstance(weight, list) else weight
        self._has_softmax, self.n_iter_ = bool(found["softmax"]), int(found["n_iter"])
        if function.n_targets != self._likelihood().n_columns:
            raise KeyError(f"{function.n_targets} models for {len(self.classes_)} classes")
        self._set_coefficients(function, dual_coef)
        self.intercept_ = function.plain_intercept


@dataclass(frozen=True)
class _LabelOf:
    """Function from scores (n, m) to labels (n,)."""

    classes: NDArray[Any]

    def __call__(self, scores: Array) -> NDArray[Any]:
        """Label of the best class of every row."""
        best = (scores[:, 0] > 0).astype(np.intp) if scores.shape[1] == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes[best])


def _by_rows(scores: Any, function: Callable[[Array], NDArray[Any]], n_columns: int | None, dtype: Any) -> Any:
    """A function of scores (n, m), applied at once, or to each block of a lazy array.

    It returns `n_columns` columns of `dtype`, or a vector if that is None.
    """
    if not is_dask_array(scores):
        return function(scores)
    if n_columns is None:
        return scores.map_blocks(function, drop_axis=1, dtype=dtype, meta=np.empty(0, dtype))
    chunks = (scores.chunks[0], (n_columns,))
    return scores.map_blocks(function, chunks=chunks, dtype=dtype, meta=np.empty((0, 0), dtype))
