"""Kernel logistic regression with scikit-learn's interface, and the base of classifiers.

Classifiers share labels and their codes, class weights, and probabilities from scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from dkrr.checks import checked_path, flag, not_negative, shown
from dkrr.data import (
    NON_LABEL_KINDS,
    Rows,
    as_rows,
    in_memory,
    load_labels,
    refuse_unreadable,
    watched,
    with_columns,
)
from dkrr.data.arrays import is_plain
from dkrr.errors import InputError, InputTypeError
from dkrr.estimators.kernel_estimator import OF_INPUTS, KernelEstimator, is_local, refuse_other_kind
from dkrr.estimators.labelled_rows import (
    REMEDY,
    LabelledRows,
    checked_classes,
    codes_of,
    refuse_absent,
    to_be_joined,
)
from dkrr.estimators.typed import ClassifierMixin
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.growing_sums import SAME_CENTRES
from dkrr.fitting.joined_rows import joined_rows
from dkrr.fitting.logistic import grown_point
from dkrr.fitting.prediction_plans import Asked, plan_of_rows
from dkrr.fitting.requests import (
    FitRequest,
    Labels,
    WarmStart,
    check_sizes,
    checked_weights,
    likelihood_of,
    refuse_extreme_weights,
)
from dkrr.fitting.results import FittedModel
from dkrr.fitting.run import Fit, fit
from dkrr.fitting.sampled import with_bounding_box
from dkrr.kernels import Kernel
from dkrr.kernels.kernel_features import is_drawn
from dkrr.linalg.likelihood import Likelihood, Softmax
from dkrr.linalg.newton import Point
from dkrr.planning.predictions import PredictionPlan
from dkrr.rounding import exact_array
from dkrr.store.zarr_arrays import is_dask_array
from dkrr.typing import (
    DaskArray,
    InMemory,
    NumbersLike,
    Predictions,
    RowsLike,
    SupportsChunks,
    SupportsDaskGraph,
    TargetsLike,
    WeightsLike,
)

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
    refuse_unreadable(y, "y", NON_LABEL_KINDS)
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
        return exact_array(labels.tolist(), "y") if isinstance(y, list | tuple) else labels
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
    plain = exact_array(labels.tolist(), "y")
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


def _labels(y: Any) -> NDArray[Any]:
    """Labels of any container, as `checked_labels` returns them."""
    if y is None:
        raise InputError("y is None; expected one label for every row")
    return checked_labels(y if is_local(y) else load_labels(y))


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
        with np.errstate(over="ignore"):  # `refuse_extreme_weights` names the row
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


def _refuse_infinite_constants(classes: NDArray[Any], codes: NDArray[np.intp], weights: Array | None) -> None:
    """Refuse classes without weight, whose constant is unbounded: the objective falls forever as it goes to −∞."""
    if weights is None:
        return
    absent = classes[np.bincount(codes, weights, minlength=len(classes)) == 0].tolist()
    if absent:
        raise InputError(
            f"no row of class {absent[0]!r} has a positive weight (sample_weight times class_weight), so that its free "
            f"constant would be minus infinity; expected rows of every class with a positive weight: leave out the "
            f"rows of that class, or give fit_intercept=False"
        )


def _factors(class_weight: Any, classes: NDArray[Any], codes: NDArray[np.intp], weights: Array) -> Array:
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise InputError(f"class_weight is {shown(class_weight)}; expected 'balanced', a dict, or None")
        totals = np.bincount(codes, weights / weights.max(), minlength=len(classes))  # finite for all finite weights
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
    intercept_: Array
    n_iter_: int
    _has_softmax: bool
    _labelled: LabelledRows

    @overload
    def decision_function(self, X: SupportsChunks) -> DaskArray: ...

    @overload
    def decision_function(self, X: SupportsDaskGraph) -> Predictions: ...

    @overload
    def decision_function(self, X: InMemory) -> Array: ...

    @overload
    def decision_function(self, X: RowsLike) -> Predictions: ...

    def decision_function(self, X: RowsLike) -> Predictions:
        """Scores of rows: the larger, the more probable is the class (the second of two).

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, or other objects that the kernel takes. If kernel == "precomputed": the kernel
            between new and training rows, of shape (n, n_samples).

        Returns
        -------
        ndarray or lazy Dask array of shape (n,) or (n, n_classes)
            The score of the second class if there are two, else a column for each class in the
            order of `classes_`; lazy for rows that are read in blocks.
        """
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    @overload
    def predict_proba(self, X: SupportsChunks) -> DaskArray: ...

    @overload
    def predict_proba(self, X: SupportsDaskGraph) -> Predictions: ...

    @overload
    def predict_proba(self, X: InMemory) -> Array: ...

    @overload
    def predict_proba(self, X: RowsLike) -> Predictions: ...

    def predict_proba(self, X: RowsLike) -> Predictions:
        """Probabilities of the classes, in the order of `classes_`; one-vs-rest models are normalised.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `decision_function`.

        Returns
        -------
        ndarray or lazy Dask array of shape (n, n_classes)
            A column for each class in the order of `classes_`, which add up to 1; lazy for rows that
            are read in blocks.
        """
        return self._probabilities_of(self._scores(X))

    @overload
    def predict_log_proba(self, X: SupportsChunks) -> DaskArray: ...

    @overload
    def predict_log_proba(self, X: SupportsDaskGraph) -> Predictions: ...

    @overload
    def predict_log_proba(self, X: InMemory) -> Array: ...

    @overload
    def predict_log_proba(self, X: RowsLike) -> Predictions: ...

    def predict_log_proba(self, X: RowsLike) -> Predictions:
        """Logarithms of the probabilities; finite even if a probability is too small for float64.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `decision_function`.

        Returns
        -------
        ndarray or lazy Dask array of shape (n, n_classes)
            A column for each class in the order of `classes_`; lazy for rows that are read in
            blocks.
        """
        return _by_rows(self._scores(X), self._likelihood().log_probabilities, len(self.classes_), np.float64)

    @overload
    def predict(self, X: SupportsChunks) -> DaskArray: ...

    @overload
    def predict(self, X: SupportsDaskGraph) -> NDArray[Any] | DaskArray: ...

    @overload
    def predict(self, X: InMemory) -> NDArray[Any]: ...

    @overload
    def predict(self, X: RowsLike) -> NDArray[Any] | DaskArray: ...

    def predict(self, X: RowsLike) -> NDArray[Any] | DaskArray:
        """Most probable class of each row.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `decision_function`.

        Returns
        -------
        ndarray or lazy Dask array of shape (n,)
            Labels, of the values that `classes_` has; lazy for rows that are read in blocks.
        """
        return self._predictions_of(self._scores(X))

    def score(self, X: RowsLike, y: TargetsLike, sample_weight: WeightsLike | None = None) -> float:
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

    def _prediction_plan(
        self, rows: Rows, *, probabilities: bool = False, return_std: bool = False, interval: float | None = None
    ) -> PredictionPlan:
        refuse_other_kind(self, {"return_std": return_std, "interval": interval}, "a regression")
        n_columns = len(self.classes_) if probabilities else 1
        return plan_of_rows(self._model, rows, Asked(n_columns), self.memory_limit)

    def _likelihood(self) -> Likelihood:
        return likelihood_of(len(self.classes_), one_vs_rest=not self._has_softmax)

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


@dataclass(eq=False, repr=False)
class KernelLogisticRegression(KernelClassifier):
    """Exact kernel logistic regression, in memory, out of core or on a Dask cluster.

    Minimises −Σᵢ vᵢ log p(yᵢ | xᵢ) + λ Σₖ ‖fₖ‖² over the functions fₖ of the kernel's space, plus
    intercepts with `fit_intercept`, by Newton's method. The interface is that of scikit-learn;
    rows may also be in tables, files and arrays that do not fit in memory. A planner chooses how
    the fit is computed, by projected time, memory and disk: `dkrr.plan` with ``loss="logistic"``
    shows it before the fit, and `plan_` after it.

    Parameters
    ----------
    alpha : float, default=1.0
        λ > 0, the regularisation strength: 1 / (2C) of scikit-learn's LogisticRegression.
    kernel : str, Kernel, FeatureMap or callable, default="linear"
        A name, as in scikit-learn: "linear", "polynomial", "rbf", "laplacian", "matern",
        "rational_quadratic", "cosine", "sigmoid", "chi2" or "precomputed"; a value
        of `dkrr.kernels`; or a function of two blocks of rows, (X, Y) → array of shape
        (len(X), len(Y)). A value of `dkrr.features` selects the model of that feature map: your own
        (CallableMap), or an approximation such as RandomFourier(RBF(), 2000) or
        Nystroem(RBF(), 2000). Without one of these the model is exact.
    gamma : float or array-like of shape (n_features,), optional
        γ > 0 of named kernels that have it, one for all columns or one for each. None:
        1 / n_features (1 for "chi2"). A named kernel without it ignores it, with a warning, as it
        does `degree` and `coef0`.
    degree : float, default=3
        Degree of the polynomial kernel.
    coef0 : float, default=1
        Constant of the polynomial and sigmoid kernels.
    kernel_params : dict, optional
        Keyword arguments of a kernel function, or further parameters of a named kernel.
    fit_intercept : bool, default=True
        Whether to fit constants, one for each column of the scores, that are not penalised.
    form : {"auto", "primal", "dual"}, default="auto"
        Unknowns of the linear systems: "primal" one weight for each feature (kernels with a finite
        feature map, and RBF kernels of at most three columns on a Fourier grid), "dual" one
        coefficient for each training row; "auto" takes the form that is projected to be faster
        within the limits.
    solver : {"auto", "cholesky", "cg"}, Cholesky or ConjugateGradient, default="auto"
        Solver of the Newton systems: a Cholesky factorisation, or preconditioned conjugate gradient
        ("cg"); values of `dkrr.solvers` have their settings. "auto" takes the one that is projected
        to be faster within the limits. With a softmax in dual form "cholesky" factors the system of
        every class, and conjugate gradient does the rest.
    tol : float, default=1e-8
        Largest norm of the gradient of the objective, relative to that at scores of 0. Newton's
        decrement, as a fraction of the objective, must be at most `tol` too, and the change of a
        probability in a further step at most √`tol`.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where products with K are computed: by this machine's cores or Dask's workers ("cpu"), or by
        conjugate gradient on an NVIDIA GPU ("cuda", experimental: not yet run on one), which needs
        CuPy, ``pip install 'dkrr[cuda]'``. "auto" compares them where CuPy is installed and the
        work takes more than a few seconds. Predictions are computed there too.
    memory_limit : int or str, optional
        Bytes, or text such as "4GiB", for this fit over all workers of one machine (the calling
        process is not counted), or for the calling process if the work is done there. None: what
        the workers report, or 0.8 of the available memory.
    tile : int, optional
        Number of rows in a tile of the matrix. None: the planner chooses. With a number the fit
        always uses tiles.
    progress : bool, optional
        None shows progress on a terminal or in a notebook if the fit takes more than about two
        seconds; True always shows it, also in a log file; False never.
    transformer : "standardize" or transformer of scikit-learn, optional
        What X passes through before the kernel, as part of the model and of what `dkrr.save`
        writes: StandardScaler on all columns, or any transformer of X alone (ColumnTransformer,
        Pipeline of transformers, OneHotEncoder, ...). A copy of it is fitted to the training rows.
    store : str or Path, optional
        Path or URL of the run's Zarr store, which is kept: the same call resumes from it, at the
        last finished Newton step. None: a temporary store, or no store if the work fits in memory.
    class_weight : dict or "balanced", optional
        Weight of the rows of each class, by label (1 for classes that are not named); "balanced"
        gives all classes the same total weight. None: 1 for every class.
    one_vs_rest : bool, default=False
        With more than two classes: a model of each class against the rest, not one softmax of all.
        The models share the Gram matrix, its preconditioner and every product.
    max_iter : int, default=100
        Largest number of Newton steps for each λ.
    warm_start : bool, default=False
        Whether to start from the solution of the last fit, if it had the same number of rows,
        classes, kernel and form.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the classes, in order.
    dual_coef_ : ndarray of shape (n_samples, 1) or (n_samples, n_classes)
        α; only after a fit in dual form. One column for two classes.
    coef_ : ndarray of shape (1, D) or (n_classes, D)
        w, the weights of the D features (of a Fourier grid those in the box of the rows), as of
        scikit-learn's linear models; only if the model predicts in primal form.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Constants that are added to the scores; 0 without `fit_intercept`.
    n_iter_ : int
        Number of Newton steps (1 if no step was needed).
    X_fit_ : ndarray, scipy.sparse array, or as given to fit
        Training rows, or the Gram matrix if kernel == "precomputed"; unavailable on loaded models,
        as are `plan_` and `solve_result_`.
    n_features_in_ : int
        Number of columns of the training rows, in front of the transformer (of the encoded rows if
        the kernel takes documents or other objects).
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns; only if X is a table and all its column names are strings.
    transformer_ : transformer
        The fitted copy of `transformer`; only with one. `X_fit_` and `coef_` are of the columns
        that it makes.
    plan_ : Plan
        What was chosen for the fit, and the reasons; print it.
    solve_result_ : SolveResult
        Status, largest relative gradient (`residual`), Newton steps (`iterations`; each in
        `steps`), iterations of conjugate gradient within them (`inner_iterations`), bounds of the
        remaining change of the objective and of a probability (`decrement`, `probability_change`),
        messages, seconds, bytes and peak memory.

    See Also
    --------
    dkrr.KernelLogisticRegressionCV : Choose λ and the kernel by cross-validation.
    dkrr.KernelRidge : The model for numbers.
    dkrr.plan : Plan of a fit, without carrying it out.
    dkrr.save : Save a fitted model.
    sklearn.linear_model.LogisticRegression : The linear kernel in primal form, in memory.
    sklearn.gaussian_process.GaussianProcessClassifier : An approximate posterior with a fit of the kernel.

    Notes
    -----
    Model. The probabilities p of two classes are the logistic function of one score f, those of
    more a softmax of one score for each class, or with `one_vs_rest` logistic functions of each
    that are normalised. vᵢ is the sample weight times that of the class. ``LogisticRegression(C=1 /
    (2 * alpha))`` of scikit-learn on the kernel's features is the same model.

    Forms. The primal form has a weight for each feature, the dual form a coefficient for each
    training row; both give the same f. `plan_` says why one was chosen.

    Transformers. A transformer counts each training row once, whatever its weight. It is fitted in
    one call if the rows are in memory, else block by block (StandardScaler and others with
    `partial_fit`, categories, means; a pass for every step of a Pipeline), or with the columns that
    it needs in memory. Rows are transformed a block at a time.

    References
    ----------
    J. Zhu, T. Hastie, "Kernel logistic regression and the import vector machine", J. Comput. Graph.
    Statist. 14 (2005).

    C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006,
    chapter 3.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from dkrr import KernelLogisticRegression
    >>> X, y = load_digits(return_X_y=True)
    >>> model = KernelLogisticRegression(alpha=1e-3, kernel="rbf", gamma=1e-3).fit(X[:400], y[:400])
    >>> bool(model.score(X[400:], y[400:]) > 0.9)
    True
    >>> model.predict_proba(X[:3]).shape, model.solve_result_.status.name
    ((3, 10), 'CONVERGED')
    """

    _saved_parameters: ClassVar[tuple[str, ...]] = (
        *KernelEstimator._saved_parameters,
        "one_vs_rest",
        "max_iter",
        "warm_start",
    )
    _setting_names: ClassVar[tuple[str, ...]] = (*KernelEstimator._setting_names, "max_iter")

    alpha: float = 1.0
    _: KW_ONLY
    store: str | Path | None = None
    fit_intercept: bool = True
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    one_vs_rest: bool = False
    max_iter: int = 100
    warm_start: bool = False

    def fit(self, X: RowsLike, y: TargetsLike, sample_weight: WeightsLike | None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n_samples, n_features)
            Training rows; the Gram matrix (n_samples, n_samples) if kernel == "precomputed";
            documents, graphs, a table or other objects if the kernel takes these.
        y : array-like, Dask array, Zarr array, path, or column of X, of shape (n_samples,)
            Labels: numbers, strings or booleans, of at least two classes; with a table as X also
            the name of its column, which is then not part of X.
        sample_weight : float, array-like of shape (n_samples,), or column of X, optional
            Weights, 0 or from 1e-30 to 1e30 (times `class_weight`), positive for rows of at least two
            classes, with `fit_intercept` of every class; None: 1 for every row.

        Returns
        -------
        KernelLogisticRegression
            The fitted estimator.

        Raises
        ------
        InputError
            If an argument cannot be used; the message says what was expected.
        PlanError
            If no plan stays within the memory limit or the disk.
        NotPositiveDefiniteError
            If the kernel is not positive semidefinite on these rows.
        StoreError
            If the store is damaged or belongs to another problem.
        """
        labels, request, X, given = self._request(X, y, sample_weight, checked_path([self.alpha]))
        self._set_labelled(labels, fit(request, self.progress), given, X)
        return self

    def partial_fit(
        self,
        X: RowsLike,
        y: TargetsLike,
        classes: TargetsLike | None = None,
        sample_weight: WeightsLike | None = None,
    ) -> Self:
        """Fit the model to the rows so far and to these: as `fit` of all of them, from the solution of those so far.

        The rows so far are those since the last `fit` or, without one, since the first call. They
        are kept in memory, since Newton's method needs all of them; it begins at the solution of the
        rows so far, and takes fewer steps than `fit`.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, with the columns of the first call.
        y : array-like, Dask array, Zarr array, path, or column of X, of shape (n,)
            Their labels, of the classes of the model.
        classes : array-like of shape (n_classes,), optional
            All labels that rows will have, also those of later calls; needed in the first call
            without a `fit` before. None in other calls: those of the model.
        sample_weight : float, array-like of shape (n,), or column of X, optional
            Weights, as in `fit`; None: 1 for every row.

        Returns
        -------
        KernelLogisticRegression
            The fitted estimator.

        Raises
        ------
        InputError
            For a label that is not one of the classes; if the kernel is precomputed or learns from
            the rows; with `store`, or a `transformer` that is not a FrozenEstimator; for loaded
            models. The message says what to do.
        PlanError
            If no plan stays within the memory limit or the disk.
        NotPositiveDefiniteError
            If the kernel is not positive semidefinite on these rows.

        Notes
        -----
        A call that raises leaves the model as it was, and may be repeated. Parameters may be changed
        between calls by `set_params`: the next call is the fit of all rows with them.
        `class_weight` counts the rows of all calls. The centres of Nystroem are those of the first
        call; a message of `solve_result_` says so. A saved and loaded model predicts, and does not
        grow; pickle keeps the rows.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from dkrr import KernelLogisticRegression
        >>> X, y = load_digits(return_X_y=True)
        >>> model = KernelLogisticRegression(alpha=0.1, kernel="rbf", gamma=1e-3)
        >>> for day in range(3):
        ...     rows = slice(100 * day, 100 * (day + 1))
        ...     model = model.partial_fit(X[rows], y[rows], classes=range(10))
        >>> again = KernelLogisticRegression(alpha=0.1, kernel="rbf", gamma=1e-3).fit(X[:300], y[:300])
        >>> bool(abs(model.predict_proba(X) - again.predict_proba(X)).max() < 1e-4)
        True
        """
        X, y, sample_weight = with_columns(X, y, sample_weight)
        made = copy(self)
        made._fit_joined(*made._joined(X, y, classes, sample_weight))
        vars(self).clear()
        vars(self).update(vars(made))
        return self

    def _joined(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> tuple[LabelledRows, NDArray[Any]]:
        """Rows of all calls so far and of this one, and the classes."""
        so_far, kernel = self._rows_so_far(), self._growing_kernel(X)
        given = None if classes is None else _labels(classes)
        if so_far is None:
            found = checked_classes(given, None)
            _, _, rows, labels, weights = self._checked_data(X, y, sample_weight)
            own = joined_rows([to_be_joined(rows)], self.memory_limit)
            return LabelledRows(own, codes_of(labels, found), weights, kernel), found
        if kernel != so_far.kernel and (kernel.encodes or so_far.kernel.encodes):
            raise InputError(
                f"kernel is {kernel!r}, and the rows so far were encoded for {so_far.kernel!r}; expected no other "
                f"kernel in partial_fit: {REMEDY}"
            )
        found, rows, labels = checked_classes(given, self.classes_), self._new_rows(X), _labels(y)
        check_sizes(kernel, rows, len(labels))
        weights, codes = checked_weights(sample_weight, len(labels)), codes_of(labels, found)
        return so_far.joined(rows, codes, weights, kernel, self.memory_limit), found

    def _fit_joined(self, known: LabelledRows, classes: NDArray[Any]) -> None:
        """Fit the rows of all calls, from the solution of the last one."""
        one_vs_rest, alphas = flag(self.one_vs_rest, "one_vs_rest"), checked_path([self.alpha])
        weights = class_weights(self.class_weight, classes, known.codes, known.weights)
        refuse_extreme_weights(weights, self._name_of_weights)
        settings = self._settings(with_bounding_box(known.drawn or known.kernel, known.rows))
        if settings.fit_intercept:
            refuse_absent(classes, known.codes, weights)
        start, last = None, getattr(self, "_last", None)
        if last is not None:
            start = WarmStart(grown_point(last, known.n, weights) if self.plan_.form == "dual" else last, self.plan_)
        labels, rows = Labels(known.codes, classes, alphas, one_vs_rest), watched(known.rows, is_matrix=False)
        fitted = fit(FitRequest(settings, rows, labels, weights, start), self.progress)
        if known.drawn is not None:
            fitted = fitted.noted((SAME_CENTRES,))
        self._set_labelled(labels, fitted, known, rows)

    def _rows_so_far(self) -> LabelledRows | None:
        """Rows of the calls so far; None without any."""
        if "_model" not in vars(self):
            return None
        if "_labelled" not in vars(self):
            raise InputError(
                f"the model was loaded, and a saved model does not hold its labels; expected a model that was fitted "
                f"here (pickle keeps the rows): {REMEDY}"
            )
        return self._labelled

    def _growing_kernel(self, X: Any) -> Kernel:
        """Kernel of a model that may grow; raises InputError if the parameters are of models that may not."""
        kernel = self._kernel()
        if kernel.is_precomputed:
            raise InputError(
                f"kernel is 'precomputed', and partial_fit computes the kernel between the rows of all calls; expected "
                f"another kernel, or {REMEDY}"
            )
        if self.transformer is not None and not isinstance(self.transformer, FrozenEstimator):
            raise InputError(
                f"transformer is {shown(self.transformer)}, which learns from all rows; expected None, or "
                f"FrozenEstimator(transformer) of sklearn.frozen, of one that is fitted: give transformed rows to "
                f"partial_fit, or {REMEDY}"
            )
        if self.store is not None:
            raise InputError(
                f"store is {shown(self.store)}, and partial_fit keeps rows in memory; expected store=None, or "
                f"{REMEDY}, which continues the run in the store"
            )
        if kernel.encodes and kernel.fitted(in_memory(X)) is not kernel:
            raise InputError(
                f"kernel is {kernel!r}, which learns from all rows; expected one that is fixed before the first call: "
                f"give kernel.fitted(X), or {REMEDY}"
            )
        return kernel

    @property
    def _name_of_weights(self) -> str:
        return "sample_weight" if self.class_weight is None else "sample_weight times class_weight"

    def fit_path(
        self, X: RowsLike, y: TargetsLike, alphas: NumbersLike, *, sample_weight: WeightsLike | None = None
    ) -> list[KernelLogisticRegression]:
        """Fit a model for every λ, each starting from the previous solution; all share the Gram matrix and its factor.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n_samples, n_features)
            Training rows, or other objects that the kernel takes.
        y : array-like, Dask array, Zarr array, path, or column of X, of shape (n_samples,)
            Labels.
        alphas : sequence of float
            Values of λ in the order of the fits; from the largest to the smallest is fastest.
        sample_weight : float, array-like of shape (n_samples,), or column of X, optional
            Weights ≥ 0; None: 1 for every row.

        Returns
        -------
        list of KernelLogisticRegression
            Fitted copies of this estimator, one for each λ; the estimator itself is unchanged.
            Their `solve_result_` has the seconds of each λ, and the bytes of the whole path.
        """
        first = clone(self)
        labels, request, X, given = first._request(X, y, sample_weight, checked_path(alphas, "alphas"))
        fitted = fit(request, self.progress)
        first._set_labelled(labels, fitted, given, X)
        shared = ("classes_", "X_fit_", "n_features_in_", "feature_names_in_", "plan_", "_has_softmax", "_labelled")
        models = []
        for alpha, fitted_model in zip(labels.alphas, fitted.models, strict=True):
            # The store belongs to the whole path, not to one model.
            model = type(self)(**{**self.get_params(deep=False), "alpha": alpha, "store": None})
            model.__dict__.update(
                {name: first.__dict__[name] for name in (*shared, *OF_INPUTS) if name in first.__dict__}
            )
            model._take(fitted_model)
            models.append(model)
        return models

    def _request(
        self, X: Any, y: Any, sample_weight: Any, alphas: tuple[float, ...]
    ) -> tuple[Labels, FitRequest, Any, LabelledRows]:
        """Labels, the request of a fit to them, X as rows of numbers, and what further rows are joined to."""
        one_vs_rest = flag(self.one_vs_rest, "one_vs_rest")
        flag(self.warm_start, "warm_start")
        X, settings, rows, y, weights = self._checked_data(X, y, sample_weight)
        classes, codes = encoded(y)
        given = LabelledRows(to_be_joined(rows), codes, weights, self._kernel())
        weights = class_weights(self.class_weight, classes, codes, weights)
        refuse_extreme_weights(weights, self._name_of_weights)
        if settings.fit_intercept:
            _refuse_infinite_constants(classes, codes, weights)
        labels = Labels(codes, classes, alphas, one_vs_rest)
        return labels, FitRequest(settings, rows, labels, weights, self._warm_start(classes)), X, given

    def _warm_start(self, classes: NDArray[Any]) -> WarmStart | None:
        """Solution of the last fit, if it had the same classes."""
        last: Point | None = getattr(self, "_last", None)
        if not self.warm_start or last is None or not np.array_equal(classes, self.classes_):
            return None
        return WarmStart(last, self.plan_)

    def _training(self, X: Any, y: Any) -> tuple[Rows, NDArray[Any]]:
        if y is None:
            raise InputError("y is None; this estimator requires y to be passed, but the target y is None")
        labels = _labels(y)
        if not is_plain(X) and is_local(X):
            X = self._validated(X, reset=True)
        return as_rows(X), labels

    def _set_labelled(self, labels: Labels, fitted: Fit, given: LabelledRows, X: Any) -> None:
        """Set the fitted attributes; the coefficients are those of the last λ."""
        self.classes_ = labels.classes
        self._has_softmax = isinstance(labels.likelihood, Softmax)
        self._take(fitted.models[-1])
        self._finish(fitted, given.rows, X)
        self._labelled = replace(given, drawn=fitted.plan.problem.kernel if is_drawn(given.kernel) else None)

    def _take(self, fitted_model: FittedModel) -> None:
        """Set the fitted attributes of one λ."""
        self._set_coefficients(fitted_model.function, fitted_model.dual_coef)
        self.intercept_ = fitted_model.function.plain_intercept
        self.n_iter_ = max(1, fitted_model.result.iterations)
        self.solve_result_ = fitted_model.result
        self._last = fitted_model.start
