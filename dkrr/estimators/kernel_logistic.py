"""Kernel logistic regression with scikit-learn's interface."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from dkrr.checks import checked_max_iter, checked_multi_class, checked_path, flag
from dkrr.data import Rows, as_rows, load_labels
from dkrr.errors import InputError
from dkrr.estimators.base import OF_INPUTS, KernelEstimator, is_local, is_plain
from dkrr.estimators.classifier import KernelClassifier, checked_labels, class_weights, encoded
from dkrr.fitting import Fit, Solved, fit
from dkrr.fitting.requests import FitRequest, Labels, Settings, WarmStart
from dkrr.kernels import Kernel
from dkrr.linalg.likelihood import Softmax
from dkrr.solvers import SolveResult
from dkrr.solvers.newton import Point


@dataclass(eq=False, repr=False)
class KernelLogisticRegression(KernelClassifier):
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
        (X, Y) → array of shape (len(X), len(Y)). A value of dkrr.features selects the model of that feature map: your
        own (CallableMap), or an approximation such as RandomFourier(RBF(), 2000) or Nystroem(RBF(), 2000); without one
        of these the model is exact.
    gamma : float, optional
        γ > 0, for named kernels that have this parameter; None means 1 / n_features (1 for "chi2").
    degree : float, default=3
        Degree of the polynomial kernel.
    coef0 : float, default=1
        Constant of the polynomial and sigmoid kernels.
    kernel_params : dict, optional
        Keyword arguments of a kernel function, or further parameters of a named kernel.
    fit_intercept : bool, default=True
        Whether to fit constants that are not penalised.
    class_weight : dict or "balanced", optional
        Weight of the rows of each class, by label (1 for classes that are not named); "balanced" gives all classes the
        same total weight. None: 1 for every class.
    multi_class : {"multinomial", "ovr"}, default="multinomial"
        With more than two classes: one softmax of all, or one model of each class against the rest.
    form : {"auto", "primal", "dual"}, default="auto"
        Unknowns of the linear systems: "primal" one weight for each feature (kernels with a finite feature map), "dual"
        one coefficient for each training row, "auto" the form that is projected to be faster within the limits.
    solver : {"auto", "cholesky", "cg"}, Cholesky or ConjugateGradient, default="auto"
        Solver of the Newton systems; settings are values of dkrr.solvers. With a softmax in dual form "cholesky"
        factors the system of every class, and conjugate gradient does the rest.
    tol : float, default=1e-8
        Largest norm of the gradient of the objective, relative to that at scores of 0. The fraction of the objective
        that remains by Newton's decrement must be at most `tol` too, and the change of a probability in a further step
        at most √`tol`.
    max_iter : int, default=100
        Largest number of Newton steps for each λ.
    warm_start : bool, default=False
        Start from the solution of the last fit if it had the same number of rows, classes, kernel and form.
    memory_limit : int or str, optional
        Bytes, or text such as "4GiB", for this fit over all workers of one machine (the calling process is not
        counted), or for the calling process if the work is done there. None: what the workers report, or 0.8 of the
        available memory.
    tile : int, optional
        Number of rows in a tile of the matrix; None: the planner chooses. With a number the fit always uses tiles.
    store : str, optional
        Path or URL of the run's Zarr store. It is kept, and the same call resumes from the last finished Newton step.
        None: a temporary store, or no store if the work fits in memory.
    progress : bool, optional
        None shows progress on a terminal or in a notebook if the fit takes more than about two seconds; True always
        shows it, also in a log file; False never.
    transformer : "standardize" or transformer of scikit-learn, optional
        What X passes through before the kernel, part of the model and of what `dkrr.save` writes: StandardScaler on all
        columns, or any transformer of X alone (ColumnTransformer, Pipeline of transformers, OneHotEncoder, ...). A copy
        of it is fitted to the training rows, each counted once whatever its weight: in one call if they are in memory,
        else block by block (StandardScaler and others with `partial_fit`, categories, means; a pass for every step of
        a Pipeline), or with the columns that it needs in memory. Rows are transformed a block at a time.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the classes, in order.
    dual_coef_ : ndarray of shape (n_samples, n_models)
        α; available only after a fit in dual form. One model for two classes, else one for each class.
    coef_ : ndarray of shape (D, n_models)
        w, the weights of the D features. Available only if the model predicts in primal form.
    intercept_ : ndarray of shape (n_models,)
        Constants that are added to the scores; 0 without `fit_intercept`.
    n_iter_ : int
        Number of Newton steps (1 if no step was needed).
    X_fit_ : ndarray, scipy.sparse array, or as given to fit
        Training rows, or the Gram matrix if kernel == "precomputed". Unavailable on loaded models, as are `plan_` and
        `solve_result_`.
    n_features_in_ : int
        Number of columns of the training rows, in front of the transformer (of the encoded rows if the kernel takes
        documents or other objects).
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns; set only if X is a table and all its column names are strings.
    transformer_ : transformer
        The fitted copy of `transformer`; only with one. `X_fit_` and `coef_` are of the columns that it makes.
    plan_ : Plan
        What was chosen, and the reasons; print it.
    solve_result_ : SolveResult
        Status, largest relative gradient (`residual`), Newton steps (`iterations`; each in `steps`), iterations of
        conjugate gradient within them (`inner_iterations`), bounds of the remaining change of the objective and of a
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
    >>> model = KernelLogisticRegression(alpha=1e-3, kernel="rbf", gamma=1e-3).fit(X[:400], y[:400])
    >>> bool(model.score(X[400:], y[400:]) > 0.9)
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

    alpha: float = 1.0
    _: KW_ONLY
    fit_intercept: bool = True
    class_weight: Any = None
    multi_class: str = "multinomial"
    max_iter: int = 100
    warm_start: bool = False

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n_samples, n_features)
            Training rows; the Gram matrix (n_samples, n_samples) if kernel == "precomputed"; documents, graphs, a table
            or other objects if the kernel takes these.
        y : array-like, Dask array, Zarr array, path, or column of X, of shape (n_samples,)
            Labels: numbers, strings or booleans, of at least two classes; with a table as X also the name of its
            column, which is then not part of X.
        sample_weight : float, array-like of shape (n_samples,), or column of X, optional
            Weights ≥ 0, positive for rows of at least two classes; None: 1 for every row.

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
        labels, request, X = self._request(X, y, sample_weight, checked_path([self.alpha]))
        self._set_labelled(labels, fit(request, self.progress), request.rows, X)
        return self

    def fit_path(self, X: Any, y: Any, alphas: Any, sample_weight: Any = None) -> list["KernelLogisticRegression"]:
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
            Fitted copies of this estimator, one for each λ; the estimator itself is unchanged. Their `solve_result_`
            has the seconds of each λ, and the bytes of the whole path.
        """
        first = clone(self)
        labels, request, X = first._request(X, y, sample_weight, checked_path(alphas, "alphas"))
        fitted = fit(request, self.progress)
        first._set_labelled(labels, fitted, request.rows, X)
        shared = ("classes_", "X_fit_", "n_features_in_", "feature_names_in_", "plan_", "_has_softmax", *OF_INPUTS)
        models = []
        for alpha, solved in zip(labels.alphas, fitted.solved, strict=True):
            # The store belongs to the whole path, not to one model.
            model = type(self)(**{**self.get_params(deep=False), "alpha": alpha, "store": None})
            model.__dict__.update({name: first.__dict__[name] for name in shared if name in first.__dict__})
            model._take(solved)
            models.append(model)
        return models

    def _settings(self, kernel: Kernel) -> Settings:
        return replace(super()._settings(kernel), max_iter=checked_max_iter(self.max_iter))

    def _request(self, X: Any, y: Any, sample_weight: Any, alphas: tuple[float, ...]) -> tuple[Labels, FitRequest, Any]:
        """Labels, the request of a fit to them, and X as rows of numbers."""
        is_multinomial = checked_multi_class(self.multi_class)
        flag(self.warm_start, "warm_start")
        X, settings, rows, y, weights = self._checked_data(X, y, sample_weight)
        classes, codes = encoded(y)
        weights = class_weights(self.class_weight, classes, codes, weights)
        labels = Labels(codes, classes, alphas, is_multinomial)
        return labels, FitRequest(settings, rows, labels, weights, self._warm_start(classes)), X

    def _warm_start(self, classes: NDArray[Any]) -> WarmStart | None:
        """Solution of the last fit, if it had the same classes."""
        last: Point | None = getattr(self, "_last", None)
        if not self.warm_start or last is None or not np.array_equal(classes, self.classes_):
            return None
        return WarmStart(last, self.plan_)

    def _training(self, X: Any, y: Any) -> tuple[Rows, NDArray[Any]]:
        if y is None:
            raise InputError("y is None; this estimator requires y to be passed, but the target y is None")
        labels = checked_labels(y if is_local(y) else load_labels(y))
        if is_plain(X):
            self._set_plain(X)
        elif is_local(X):
            X = self._validated(X, reset=True)
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
