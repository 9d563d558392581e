"""Kernel logistic regression with scikit-learn's interface."""

from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import validate_data

from dkrr.errors import InputError, PlanError
from dkrr.estimators.base import DTYPES, KernelEstimator, check_sizes, is_local
from dkrr.estimators.labels import LabelOf, by_rows, checked_labels, class_weights, encoded
from dkrr.fitting import Fitted, LabelledData, about_the_rows, drawn, fit_path, warn_of
from dkrr.kernels import Kernel
from dkrr.linalg.likelihood import Bernoulli, Softmax
from dkrr.model import FittedFunction
from dkrr.planning import Plan
from dkrr.requests import (
    checked_form,
    checked_max_iter,
    checked_multi_class,
    checked_path,
    checked_solver,
    checked_tile,
    checked_tol,
    checked_weights,
    plan_for_rows,
)
from dkrr.rows import MemoryRows, Rows, as_rows, load_labels
from dkrr.runtime import Progress, make_progress
from dkrr.solvers import Cholesky, SolveResult, Status
from dkrr.solvers.newton import Point

QUIET_SECONDS = 2.0
"""Fits projected to be shorter say nothing unless asked to."""


class KernelLogisticRegression(ClassifierMixin, KernelEstimator):  # type: ignore[misc]
    """Exact kernel logistic regression, in memory, out of core or on a Dask cluster.

    Minimises −Σᵢ vᵢ log p(yᵢ | xᵢ) + λ Σₖ ‖fₖ‖² over the functions fₖ of the kernel's space (plus free constants with
    `fit_intercept`) by Newton's method, in primal form (a weight for each feature) or in dual form (a coefficient for
    each row). A planner chooses form, solver of the Newton systems and place; `plan_` says why.

    Parameters
    ----------
    alpha : float, default=1.0
        λ > 0. scikit-learn's ``LogisticRegression(C=1 / (2 * alpha))`` on the kernel's features is the same model.
    kernel, gamma, degree, coef0, kernel_params
        As in KernelRidge.
    fit_intercept : bool, default=True
        Whether to fit constants that are not penalised.
    class_weight : dict or "balanced", optional
        Factors of the rows of each class, or with n for the sum of all weights n / (number of classes × sum of those
        of the class).
    multi_class : {"multinomial", "ovr"}, default="multinomial"
        With more than two classes: one softmax of all, or a model of each class against the rest.
    form : {"auto", "primal", "dual"}, default="auto"
    solver : {"auto", "cholesky", "cg"}, Cholesky or ConjugateGradient, default="auto"
        Of the Newton systems; settings are values of dkrr.solvers. With a softmax in dual form "cholesky" factors the
        system of every class, and conjugate gradient does the rest.
    tol : float, default=1e-8
        Norm of the gradient of the objective that is asked for, relative to that where all scores are 0. The part of
        the objective that Newton's decrement says is left has to be as small, and a further step may change no
        probability by more than its root.
    max_iter : int, default=100
        Newton steps.
    warm_start : bool, default=False
        Begin at the solution of the last fit, if that had as many rows, and the same classes, kernel and form.
    memory_limit, tile, store, progress
        As in KernelRidge. With `store` every Newton step is kept, and a fit that was killed goes on after the last one.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    dual_coef_ : ndarray of shape (n_samples, n_models)
        α, after a fit in dual form; one model for two classes, else one for each class.
    coef_ : ndarray of shape (D, n_models)
        Only where the model predicts in primal form.
    intercept_ : ndarray of shape (n_models,)
    n_iter_ : int
        Newton steps (1 where none was needed).
    X_fit_ : ndarray, scipy.sparse array, or as given to fit
        The training rows, or the Gram matrix if kernel == "precomputed". Not there in a loaded model, nor are `plan_`
        and `solve_result_`.
    n_features_in_ : int
    plan_ : Plan
    solve_result_ : SolveResult
        Status, relative gradient (`residual`), what is left of the objective and to change in a probability
        (`decrement`, `probability_change`), every Newton step (`steps`), seconds, bytes and peak memory.

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
        y : the same, of shape (n_samples,)
            Labels: numbers, strings or booleans, of at least two classes.
        sample_weight : float or array-like of shape (n_samples,), optional

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
        self._fit(X, y, sample_weight, checked_path([self.alpha]))
        return self

    def fit_path(self, X: Any, y: Any, alphas: Any, sample_weight: Any = None) -> list["KernelLogisticRegression"]:
        """Fit a model for every λ, each from the solution before: the Gram matrix and its factor serve all of them.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        alphas : sequence of float
            Values of λ, in the order in which they are fitted; from the largest to the smallest is fastest.

        Returns
        -------
        list of KernelLogisticRegression
            Fitted copies of this estimator, one for each λ; it stays as it is. Their `solve_result_` has the seconds of
            each λ, and the bytes of all.
        """
        first = clone(self)
        fitted = first._fit(X, y, sample_weight, checked_path(alphas))
        models = []
        for one in fitted:
            # The store belongs to the path.
            model = type(self)(**{**self.get_params(deep=False), "alpha": one.alpha, "store": None})
            shared = ("classes_", "X_fit_", "n_features_in_", "feature_names_in_", "plan_", "_has_softmax", "_last_key")
            model.__dict__.update({name: first.__dict__[name] for name in shared if name in first.__dict__})
            model._take(one)
            models.append(model)
        return models

    def _fit(self, X: Any, y: Any, sample_weight: Any, alphas: tuple[float, ...]) -> list[Fitted]:
        kernel, X = self._encoded(self._kernel(), X)
        form, tile = checked_form(self.form), checked_tile(self.tile)
        solver, tol, max_iter = checked_solver(self.solver), checked_tol(self.tol), checked_max_iter(self.max_iter)
        is_multinomial = checked_multi_class(self.multi_class)
        rows, labels = self._training(X, y)
        n, d = rows.shape
        check_sizes(kernel, rows, len(labels))
        classes, codes = encoded(labels)
        weights = checked_weights(sample_weight, n)
        weights = class_weights(self.class_weight, classes, codes, weights)
        store = None if self.store is None else str(self.store)
        is_softmax = is_multinomial and len(classes) > 2
        settings: dict[str, Any] = {
            "n_targets": 1 if len(classes) == 2 else len(classes),
            "alphas": alphas,
            "fit_intercept": bool(self.fit_intercept),
            "form": form,
            "tile": tile,
            "solver": solver,
            "tol": tol,
            "loss": "logistic",
            "is_coupled": is_softmax,
        }
        plan = plan_for_rows(rows, kernel, self.memory_limit, store, **settings)
        known = drawn(plan.problem.kernel, rows)
        if known is not plan.problem.kernel:
            plan = plan_for_rows(rows, known, self.memory_limit, store, **settings)
        data = LabelledData(
            rows=rows,
            codes=codes,
            n_classes=len(classes),
            weights=weights,
            alphas=alphas,
            kernel=plan.problem.kernel,
            feature_map=plan.problem.feature_map,
            fit_intercept=bool(self.fit_intercept),
            is_multinomial=is_softmax,
        )
        if self.fit_intercept:
            data = about_the_rows(data, store)
        progress = self._progress(plan)
        fitted = fit_path(data, plan, store, progress, max_iter, self._start(plan, classes))
        if solver is None and store is None and any(f.result.status is Status.STALLED for f in fitted):
            # Nobody asked for conjugate gradient; the direct solver does not depend on the spectrum.
            with suppress(PlanError):
                plan, fitted = self._again(known, settings, data, fitted, max_iter)
        for one in fitted:
            warn_of(one.result, plan)
        self.classes_ = classes
        self._has_softmax = is_softmax
        self._take(fitted[-1])
        self.X_fit_ = X if not isinstance(rows, MemoryRows) else rows.array
        self.plan_: Plan = plan
        self.n_features_in_ = d
        self._last_key = self._key(plan)
        return fitted

    def _again(
        self, kernel: Kernel, settings: dict[str, Any], data: LabelledData, before: list[Fitted], max_iter: int
    ) -> tuple[Plan, list[Fitted]]:
        """Fit once more, with a direct solver."""
        plan = plan_for_rows(data.rows, kernel, self.memory_limit, None, **(settings | {"solver": Cholesky()}))
        worst = max(f.result.residual for f in before)
        message = f"Newton's method with conjugate gradient stopped at a relative gradient of {worst:.1e}: factoring"
        progress = self._progress(plan)
        progress.note(message)
        fitted = fit_path(data, plan, None, progress, max_iter)
        return plan, [replace(f, result=replace(f.result, messages=(message, *f.result.messages))) for f in fitted]

    def _progress(self, plan: Plan) -> Progress:
        if self.progress is None and plan.seconds < QUIET_SECONDS:
            return Progress()
        return make_progress(self.progress)

    def _start(self, plan: Plan, classes: NDArray[Any]) -> Point | None:
        """Solution of the last fit, where this one may begin there."""
        start: Point | None = getattr(self, "_last", None)
        if not self.warm_start or start is None or not np.array_equal(classes, self.classes_):
            return None
        size = plan.problem.n if plan.form == "dual" else plan.problem.dimension
        same = self._last_key == self._key(plan)
        return start if same and start.coef.shape == (size, plan.problem.n_targets) else None

    @staticmethod
    def _key(plan: Plan) -> tuple[Any, ...]:
        """What must be the same for a fit to begin where another one ended."""
        p = plan.problem
        return plan.form, p.kernel.to_dict(), p.fit_intercept, p.is_coupled

    def decision_function(self, X: Any) -> Any:
        """Scores of rows.

        Parameters
        ----------
        X : as in fit, of shape (n, n_features)
            With kernel == "precomputed": the kernel of the new rows with the training rows.

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
        X : as in decision_function

        Returns
        -------
        ndarray, or a lazy Dask array, of shape (n, n_classes)
        """
        return by_rows(self._scores(X), self._likelihood().probabilities, len(self.classes_), np.float64)

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of the probabilities, of which none is −infinity where a probability is too small for float64.

        Parameters
        ----------
        X : as in decision_function

        Returns
        -------
        ndarray, or a lazy Dask array, of shape (n, n_classes)
        """
        return by_rows(self._scores(X), self._likelihood().log_probabilities, len(self.classes_), np.float64)

    def predict(self, X: Any) -> Any:
        """Most probable class of rows.

        Parameters
        ----------
        X : as in decision_function

        Returns
        -------
        ndarray, or a lazy Dask array, of shape (n,)
        """
        return by_rows(self._scores(X), LabelOf(self.classes_), None, self.classes_.dtype)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy: the part of the rows whose most probable class is their label.

        Parameters
        ----------
        X, y, sample_weight : as in fit

        Returns
        -------
        float
        """
        labels = np.asarray(y) if is_local(y) else load_labels(y)
        weights = None if sample_weight is None else checked_weights(sample_weight, len(labels))
        return float(accuracy_score(labels, np.asarray(self.predict(X)), sample_weight=weights))

    def _likelihood(self) -> Bernoulli | Softmax:
        n = len(self.classes_)
        return Softmax(n) if self._has_softmax else Bernoulli(1 if n == 2 else n)

    def _training(self, X: Any, y: Any) -> tuple[Rows, NDArray[Any]]:
        """Rows, and labels of shape (n,)."""
        if y is None:
            raise InputError("y is None; this estimator requires y to be passed, but the target y is None")
        labels = checked_labels(y if is_local(y) else load_labels(y))
        if is_local(X):
            X = validate_data(self, X, accept_sparse="csr", dtype=DTYPES, ensure_all_finite=False)
        return as_rows(X), labels

    def _take(self, fitted: Fitted) -> None:
        """Set the fitted attributes of one λ."""
        self._set_coefficients(fitted.function, fitted.dual_coef)
        self.intercept_ = fitted.function.plain_intercept
        self.n_iter_ = max(1, fitted.result.iterations)
        self.solve_result_: SolveResult = fitted.result
        self._last = fitted.start

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
        n_models = 1 if len(self.classes_) == 2 else len(self.classes_)
        if function.n_targets != n_models:
            raise KeyError(f"{function.n_targets} models for {len(self.classes_)} classes")
        self._set_coefficients(function, dual_coef)
        self.intercept_ = function.plain_intercept
