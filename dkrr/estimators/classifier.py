"""What a classifier predicts and saves: labels and probabilities from scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score

from dkrr.arguments import checked_weights, likelihood_of
from dkrr.errors import InputError
from dkrr.estimators.base import KernelEstimator, is_local
from dkrr.estimators.labels import checked_labels
from dkrr.estimators.typed import ClassifierMixin, InMemory
from dkrr.linalg.likelihood import Likelihood
from dkrr.model import FittedFunction
from dkrr.rows import load_labels
from dkrr.tables import with_columns
from dkrr.tiles.arrays import is_dask_array
from dkrr.values import shown

Array = NDArray[np.float64]


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
