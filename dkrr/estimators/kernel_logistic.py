"""Kernel logistic regression with scikit-learn's interface."""

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import validate_data

from dkrr.arguments import checked_max_iter, checked_multi_class, checked_path, checked_weights, likelihood_of
from dkrr.errors import InputError
from dkrr.estimators.base import DTYPES, KernelEstimator, check_sizes, is_local
from dkrr.estimators.labels import LabelOf, by_rows, checked_labels, class_weights, encoded
from dkrr.fitting import Fit, Solved, fit
from dkrr.kernels import Kernel
from dkrr.linalg.likelihood import Likelihood, Softmax
from dkrr.model import FittedFunction
from dkrr.requests import FitRequest, Labels, Settings, WarmStart
from dkrr.rows import Rows, as_rows, load_labels
from dkrr.solvers import SolveResult
from dkrr.solvers.newton import Point


class KernelLogisticRegression(ClassifierMixin, KernelEstimator):  # type: ignore[misc]
    """Exact kernel logistic regression, in memory, out of core or on a Dask cluster.

    Minimises −Σᵢ vᵢ log p(yᵢ | xᵢ) + λ Σₖ ‖fₖ‖² over the functions fₖ of the kernel's space (plus free constants with
    `fit_intercept`) by Newton's method, in primal form (a weight for each feature) or in dual form (a coefficient for
    each row). A planner chooses form, solver of the Newton systems and place; `plan_` says why.

    Parameters
    ----------
    alpha : float, default=1.0
        λ > 0. scikit-learn's ``LogisticRegression(C=1 / (2 * alpha))`` on the kernel's features is the same model.
    kernel : str, Kernel, FeatureMap or callable, default="linear"
        A name as in scikit-learn ("linear", "polynomial", "rbf", "laplacian", "matern", "cosine", "sigmoid", "chi2",
        "additive_chi2", "precomputed"), a value of dkrr.kernels, or a function of two blocks of rows
        (X, Y) → array of shape (len(X), len(Y)). A value of dkrr.features asks for the model of that feature map: your
        own (CallableMap), or RandomFourier(RBF(), 2000) or Nystroem(RBF(), 2000), an approximation and the only way to
        one.
    gamma : float, optional
        γ > 0 of the named kernels that have one; None means 1 / n_features (1 for "chi2").
    degree : float, default=3
        Degree of the polynomial kernel.
    coef0 : float, default=1
        Constant of the polynomial and sigmoid kernels.
    kernel_params : dict, optional
        Keyword arguments of a kernel function, or further parameters of a named kernel.
    fit_intercept : bool, default=True
        Whether to fit constants that are not penalised.
    class_weight : dict or "balanced", optional
        Factors by which the rows of each class are weighted, by label (1 for classes that are not named); "balanced"
        gives all classes the same total weight. None: 1 for every class.
    multi_class : {"multinomial", "ovr"}, default="multinomial"
        With more than two classes: one softmax of all, or a model of each class against the rest.
    form : {"auto", "primal", "dual"}, default="auto"
        Unknowns of the linear systems: "primal" a weight for each feature (kernels with a finite feature map), "dual" a
        coefficient for each training row, "auto" whichever the planner expects to be faster within the limits.
    solver : {"auto", "cholesky", "cg"}, Cholesky or ConjugateGradient, default="auto"
        Solver of the Newton systems; settings are values of dkrr.solvers. With a softmax in dual form "cholesky"
        factors the system of every class, and conjugate gradient does the rest.
    tol : float, default=1e-8
        Norm of the gradient of the objective that is asked for, relative to that where all scores are 0. The part of
        the objective that Newton's decrement says is left has to be as small, and a further step may change no
        probability by more than its root.
    max_iter : int, default=100
        Largest number of Newton steps, for each λ.
    warm_start : bool, default=False
        Begin at the solution of the last fit, if that had as many rows, and the same classes, kernel and form.
    memory_limit : int or str, optional
        Bytes, or text such as "4GiB", for this fit over all workers of one machine (not counting the process that calls
        them), or for the calling process where the work is done there. None: what the workers report, or 0.8 of the
        memory that is available.
    tile : int, optional
        Number of rows in a tile of the matrix; None: the planner chooses. A fit with a given tile works in tiles.
    store : str, optional
        Path or URL of the run's Zarr store: kept, and resumed from when the same call is made again, after the last
        Newton step that was finished. None: a temporary one, and none at all if the work fits in memory.
    progress : bool, optional
        None shows the progress of fits of more than about two seconds on a terminal or in a notebook; True shows it for
        every fit, also in a log file; False nowhere.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the classes, in order.
    dual_coef_ : ndarray of shape (n_samples, n_models)
        α, after a fit in dual form; one model for two classes, else one for each class.
    coef_ : ndarray of shape (D, n_models)
        w, the weights of the D features. Only where the model predicts in primal form.
    intercept_ : ndarray of shape (n_models,)
        Constants that are added to the scores; 0 without `fit_intercept`.
    n_iter_ : int
        Newton steps (1 where none was needed).
    X_fit_ : ndarray, scipy.sparse array, or as given to fit
        The training rows, or the Gram matrix if kernel == "precomputed". A loaded model does not have it, nor `plan_`
        and `solve_result_`.
    n_features_in_ : int
        Number of columns of the training rows (of the encoded rows where the kernel takes documents or other objects).
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X is a DataFrame whose column names are all strings.
    plan_ : Plan
        What was chosen and why; print it.
    solve_result_ : SolveResult
        Status, largest relative gradient (`residual`), Newton steps (`iterations`; each in `steps`), iterations of
        conjugate gradient within them (`inner_iterations`), what is left of the objective and to change in a
        probability (`decrement`, `probability_change`), messages, seconds, bytes and peak memory.

    References
    ----------
    J. Zhu, T. Hastie, "Kernel logistic regression and the import vector machine", J. Comput. Graph. Statist. 14 (2005).
    C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapter 3.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from dkrr import KernelLogisticRegression
    >>> X, y = load_digits(return_X_y=True)
    >>> model = KernelLogisticRegression(alpha=1e-3, kernel="rbf", gamma=1e-3).fit(X[:900], y[:900])
    >>> bool(model.score(X[900:], y[900:]) > 0.95)
    True
    >>> model.predict_proba(X[:3]).shape, model.solve_result_.status.name
    ((3, 10), 'CONVERGED')
    """

    saved_parameters: ClassVar[tuple[str, ...]] = (
        *KernelEstimator.saved_parameters,
        "multi_class",
        "max_iter",
        "warm_start",
    )

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        kernel: Any = "linear",
        gamma: float | None = None,
        degree: float = 3,
        coef0: float = 1,
        kernel_params: dict[str, Any] | None = None,
        fit_intercept: bool = True,
        class_weight: Any = None,
        multi_class: str = "multinomial",
        form: str = "auto",
        solver: Any = "auto",
        tol: float = 1e-8,
        max_iter: int = 100,
        warm_start: bool = False,
        memory_limit: int | str | None = None,
        tile: int | None = None,
        store: str | None = None,
        progress: bool | None = None,
    ) -> None:
        self.alpha = alpha
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.kernel_params = kernel_params
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.multi_class = multi_class
        self.form = form
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.memory_limit = memory_limit
        self.tile = tile
        self.store = store
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, DataFrame, Dask array, Zarr array, or path, of shape (n_samples, n_features)
            Training rows; the Gram matrix (n_samples, n_samples) if kernel == "precomputed"; documents, graphs, a table
            or other objects where the kernel takes such.
        y : array-like, Dask array, Zarr array, or path, of shape (n_samples,)
            Labels: numbers, strings or booleans, of at least two classes.
        sample_weight : float or array-like of shape (n_samples,), optional
            Weights ≥ 0, positive for rows of at least two classes; None: 1 for every row.

        Returns
        -------
        KernelLogisticRegression
            The fitted estimator.

        Raises
        ------
        InputError
            If an argument cannot be used; it says what was expected.
        PlanError
            If no plan stays within the memory limit or the disk.
        NotPositiveDefiniteError
            If the kernel is not positive semidefinite on these rows.
        StoreError
            If the store is damaged or belongs to another problem.
        """
        labels, request, X = self._request(X, y, sample_weight, checked_path([self.alpha]))
        self._set_labelled(labels, fit(request, self.progress), request.rows, X)
        return self

    def fit_path(self, X: Any, y: Any, alphas: Any, sample_weight: Any = None) -> list["KernelLogisticRegression"]:
        """Fit a model for every λ, each from the solution before: the Gram matrix and its factor serve all of them.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, DataFrame, Dask array, Zarr array, or path, of shape (n_samples, n_features)
            Training rows, or whatever the kernel takes.
        y : array-like, Dask array, Zarr array, or path, of shape (n_samples,)
            Labels.
        alphas : sequence of float
            Values of λ, in the order in which they are fitted; from the largest to the smallest is fastest.
        sample_weight : float or array-like of shape (n_samples,), optional
            Weights ≥ 0; None: 1 for every row.

        Returns
        -------
        list of KernelLogisticRegression
            Fitted copies of this estimator, one for each λ; it stays as it is. Their `solve_result_` has the seconds of
            each λ, and the bytes of all.
        """
        first = clone(self)
        labels, request, X = first._request(X, y, sample_weight, checked_path(alphas))
        fitted = fit(request, self.progress)
        first._set_labelled(labels, fitted, request.rows, X)
        shared = ("classes_", "X_fit_", "n_features_in_", "feature_names_in_", "plan_", "_has_softmax")
        models = []
        for alpha, solved in zip(labels.alphas, fitted.solved, strict=True):
            # The store belongs to the path.
            model = type(self)(**{**self.get_params(deep=False), "alpha": alpha, "store": None})
            model.__dict__.update({name: first.__dict__[name] for name in shared if name in first.__dict__})
            model._take(solved)
            models.append(model)
        return models

    def _settings(self, kernel: Kernel) -> Settings:
        return replace(super()._settings(kernel), max_iter=checked_max_iter(self.max_iter))

    def _request(self, X: Any, y: Any, sample_weight: Any, alphas: tuple[float, ...]) -> tuple[Labels, FitRequest, Any]:
        """Labels, what is asked for with them, and X as rows of numbers."""
        kernel, X = self._encoded(self._kernel(), X)
        settings = self._settings(kernel)
        is_multinomial = checked_multi_class(self.multi_class)
        rows, y = self._training(X, y)
        check_sizes(kernel, rows, len(y))
        classes, codes = encoded(y)
        weights = checked_weights(sample_weight, len(y))
        weights = class_weights(self.class_weight, classes, codes, weights)
        labels = Labels(codes, classes, alphas, is_multinomial)
        return labels, FitRequest(settings, rows, labels, weights, self._warm_start(classes)), X

    def _warm_start(self, classes: NDArray[Any]) -> WarmStart | None:
        """Solution of the last fit, if it had the same classes."""
        last: Point | None = getattr(self, "_last", None)
        if not self.warm_start or last is None or not np.array_equal(classes, self.classes_):
            return None
        return WarmStart(last, self.plan_)

    def decision_function(self, X: Any) -> Any:
        """Scores of rows.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, DataFrame, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, or whatever the kernel takes. With kernel == "precomputed": the kernel of the new rows with the
            training rows, of shape (n, n_samples).

        Returns
        -------
        ndarray, or a lazy Dask array for a Dask or Zarr array, of shape (n,) for two classes, else (n, n_classes)
        """
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, in the order of `classes_`; one-vs-rest models are normalised.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, DataFrame, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `decision_function`.

        Returns
        -------
        ndarray, or a lazy Dask array, of shape (n, n_classes)
        """
        return by_rows(self._scores(X), self._likelihood().probabilities, len(self.classes_), np.float64)

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of the probabilities, of which none is −infinity where a probability is too small for float64.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, DataFrame, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `decision_function`.

        Returns
        -------
        ndarray, or a lazy Dask array, of shape (n, n_classes)
        """
        return by_rows(self._scores(X), self._likelihood().log_probabilities, len(self.classes_), np.float64)

    def predict(self, X: Any) -> Any:
        """Most probable class of rows.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, DataFrame, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `decision_function`.

        Returns
        -------
        ndarray, or a lazy Dask array, of shape (n,)
        """
        return by_rows(self._scores(X), LabelOf(self.classes_), None, self.classes_.dtype)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy: the fraction of the rows whose most probable class is their label.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, DataFrame, Dask array, Zarr array, or path, of shape (n, n_features)
            Rows, as for `decision_function`.
        y : array-like, Dask array, Zarr array, or path, of shape (n,)
            Their labels.
        sample_weight : float or array-like of shape (n,), optional
            Weights ≥ 0; None: 1 for every row.

        Returns
        -------
        float
            Between 0 and 1.
        """
        labels = np.asarray(y) if is_local(y) else load_labels(y)
        weights = None if sample_weight is None else checked_weights(sample_weight, len(labels))
        return float(accuracy_score(labels, np.asarray(self.predict(X)), sample_weight=weights))

    def _likelihood(self) -> Likelihood:
        return likelihood_of(len(self.classes_), is_multinomial=self._has_softmax)

    def _training(self, X: Any, y: Any) -> tuple[Rows, NDArray[Any]]:
        """Rows, and labels of shape (n,)."""
        if y is None:
            raise InputError("y is None; this estimator requires y to be passed, but the target y is None")
        labels = checked_labels(y if is_local(y) else load_labels(y))
        if is_local(X):
            X = validate_data(self, X, accept_sparse="csr", dtype=DTYPES, ensure_all_finite=False)
        return as_rows(X), labels

    def _set_labelled(self, labels: Labels, fitted: Fit, rows: Rows, X: Any) -> None:
        """Set the fitted attributes; the coefficients are those of the last λ."""
        self.classes_ = labels.classes
        self._has_softmax = isinstance(labels.likelihood, Softmax)
        self._take(fitted.solved[-1])
        self._finish(fitted, rows, X)

    def _take(self, solved: Solved) -> None:
        """Set the fitted attributes of one λ."""
        self._set_coefficients(solved.model, solved.dual_coef)
        self.intercept_ = solved.model.plain_intercept
        self.n_iter_ = max(1, solved.result.iterations)
        self.solve_result_: SolveResult = solved.result
        self._last = solved.start

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

    def _restore(self, function: FittedFunction, dual_coef: NDArray[np.float64] | None, found: dict[str, Any]) -> None:
        self.classes_ = np.array(found["classes"], found["class_dtype"])
        weight = found["class_weight"]
        self.class_weight = dict(weight) if isinstance(weight, list) else weight
        self._has_softmax, self.n_iter_ = bool(found["softmax"]), int(found["n_iter"])
        if function.n_targets != self._likelihood().n_columns:
            raise KeyError(f"{function.n_targets} models for {len(self.classes_)} classes")
        self._set_coefficients(function, dual_coef)
        self.intercept_ = function.plain_intercept
