"""Kernel logistic regression that chooses λ and the kernel by cross-validation, with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from time import perf_counter
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss
from sklearn.utils import _safe_indexing

from dkrr.checks import checked_path, flag, shown
from dkrr.cluster import CombinedProgress, make_progress
from dkrr.data import Rows, with_columns
from dkrr.data.rows import scan
from dkrr.errors import InputError, warn_inaccurate
from dkrr.estimators.kernel_estimator import OF_INPUTS
from dkrr.estimators.kernel_logistic import KernelClassifier, KernelLogisticRegression
from dkrr.estimators.search import (
    checked_curve,
    checked_folds,
    complete_params,
    curve_results,
    edges,
    kernel_settings,
    named_scorer,
    parameter_grid,
    score_name,
    search_results,
)
from dkrr.fitting.requests import FitRequest, checked_weights
from dkrr.fitting.search_plans import search_plan
from dkrr.kernels import Kernel
from dkrr.kernels.names import SEARCHED, warn_of_unused
from dkrr.linalg.result import Status
from dkrr.machine.detection import detect
from dkrr.planning.searches import SelectionPlan, seconds_of_fit, seconds_of_scores
from dkrr.planning.selection import FoldSizes, ScoringPlan
from dkrr.selection import Folds, LearningCurve, all_candidates_failed_error, displayed, without_score
from dkrr.text import plural
from dkrr.typing import FoldsLike, GroupsLike, KernelLike, NumbersLike, RowsLike, TargetsLike, WeightsLike

Array = NDArray[np.float64]

ALPHAS = (1e-4, 1e2)
"""Smallest and largest λ of the default."""
N_ALPHAS = 10
FITTED = (
    "classes_",
    "dual_coef_",
    "coef_",
    "intercept_",
    "n_iter_",
    "X_fit_",
    "n_features_in_",
    "feature_names_in_",
    "plan_",
    "solve_result_",
    "_model",
    "_has_softmax",
    *OF_INPUTS,
)
"""Attributes that are those of the last fit."""


@dataclass(eq=False, repr=False)
class KernelLogisticRegressionCV(KernelClassifier):
    """Kernel logistic regression with λ, the kernel and its parameters chosen by cross-validation.

    Every λ of `alphas` is scored with every combination of kernels and parameters that are given as
    lists, by the rows that each fold leaves out; KernelLogisticRegression is then fitted to all
    rows with the best. For every fold and kernel one path of fits goes through all λ from the
    largest on, each beginning at the solution before it and all with one Gram matrix.
    `selection_plan_` has the time and memory of the search.

    Parameters
    ----------
    alphas : array-like of shape (n_alphas,), optional
        Candidates of λ > 0. None: ten from 1e-4 to 1e2, evenly spaced in their logarithm.
    kernel : str, Kernel, FeatureMap or callable, or a list of these, default="rbf"
        A name, as in scikit-learn: "linear", "polynomial", "rbf", "laplacian", "matern",
        "rational_quadratic", "cosine", "sigmoid", "chi2" or "precomputed"; a value
        of `dkrr.kernels`, or of `dkrr.features` for an approximation; or a function of two blocks
        of rows. A list has candidates; each of the next three parameters goes with those kernels
        that have it.
    gamma : float or list, optional
        γ > 0 of named kernels that have it, or a list of candidates, each of them a number for all
        columns or a sequence of numbers, one for each. None: 1 / n_features (1 for "chi2").
    degree : float or list of float, default=3
        Degree of the polynomial kernel, or candidates.
    coef0 : float or list of float, default=1
        Constant of the polynomial and sigmoid kernels, or candidates.
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
        ("cg"), for the folds as well as for the fit to all rows; values of `dkrr.solvers` have
        their settings. "auto" takes the one that is projected to be faster within the limits.
    tol : float, default=1e-8
        Largest norm, in the folds as well as in the fit to all rows, of the gradient of the
        objective, relative to that at scores of 0. Newton's decrement, as a fraction of the
        objective, must be at most `tol` too, and the change of a probability in a further step at
        most √`tol`.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where products with K are computed: by this machine's cores or Dask's workers ("cpu"), or by
        conjugate gradient on an NVIDIA GPU ("cuda", experimental: not yet run on one), which needs
        CuPy, ``pip install 'dkrr[cuda]'``. "auto" compares them where CuPy is installed and the
        work takes more than a few seconds. Predictions are computed there too.
    memory_limit : int or str, optional
        Bytes, or text such as "4GiB", for each fit over all workers of one machine (the calling
        process is not counted), or for the calling process if the work is done there. None: what
        the workers report, or 0.8 of the available memory.
    tile : int, optional
        Number of rows in a tile of the matrix. None: the planner chooses. With a number the fit
        always uses tiles.
    progress : bool, optional
        None shows progress on a terminal or in a notebook if the search takes more than about two
        seconds; True always shows it, also in a log file; False never.
    transformer : "standardize" or transformer of scikit-learn, optional
        What X passes through before the kernel, as part of the model and of what `dkrr.save`
        writes: StandardScaler on all columns, or any transformer of X alone (ColumnTransformer,
        Pipeline of transformers, OneHotEncoder, ...). A copy is fitted once, to all training rows:
        it has seen the rows that are left out. Where that matters, put it before
        KernelLogisticRegression in a Pipeline, and that into GridSearchCV.
    cv : int, splitter, or iterable of (train, test), default=5
        Number of folds with about the same fractions of all classes, one of scikit-learn's
        splitters, or pairs of row numbers. None: 5 folds. Leave-one-out is refused: it needs a fit
        for every row.
    scoring : str or callable, optional
        Name of one of scikit-learn's scorers, or a function scorer(estimator, X, y); larger is
        better. None: the negative log loss, with sample weights.
    refit : bool, default=True
        Whether to fit all rows with the best candidate; without it there is nothing to predict
        with.
    train_sizes : array-like, optional
        Fractions of the training rows of a fold, such as (0.125, 0.25, 0.5), or numbers of rows:
        every fold is also trained on these parts of its rows, by separate fits, for
        `learning_curve_`. All of them are always the last size.
    random_state : int, default=0
        Seed of the order of the rows for `train_sizes`.
    class_weight : dict or "balanced", optional
        Weight of the rows of each class, by label (1 for classes that are not named); "balanced"
        gives all classes the same total weight. None: 1 for every class.
    one_vs_rest : bool, default=False
        With more than two classes: a model of each class against the rest, not one softmax of all.
        The models share the Gram matrix, its preconditioner and every product.
    max_iter : int, default=100
        Largest number of Newton steps for each λ.

    Attributes
    ----------
    alpha_ : float
        Best λ.
    best_params_ : dict
        Parameters of the chosen model, complete:
        ``KernelLogisticRegression(**search.best_params_)`` is that model. Settings of the
        computation (`tol`, `solver`, `form`, ...) are left out.
    best_score_ : float
        Mean score of the best candidate over the folds.
    best_index_ : int
        Place of the best candidate in `cv_results_`.
    best_estimator_ : KernelLogisticRegression
        The chosen model, fitted to all rows, as `dkrr.save` writes it; it shares the arrays of the
        search. Only with `refit`.
    refit_time_ : float
        Seconds of the fit to all rows; only with `refit`.
    scorer_ : callable
        scorer(estimator, X, y) by which candidates were compared.
    n_splits_ : int
        Number of folds.
    cv_results_ : dict of list or ndarray
        Scores of every candidate, as of GridSearchCV ("params", "mean_test_score",
        "std_test_score", "rank_test_score", "split0_test_score", ...), NaN for λ whose fits have
        not converged; also "iterations" (most Newton steps of a fold) and "residual" (largest
        relative gradient of a fold).
    learning_curve_ : dict
        Scores by number of training rows, of the best kernel: "train_sizes", "mean_test_score",
        "gain_per_doubling", "conclusion" and more, as of KernelRidgeCV; only with `train_sizes`.
    advice_ : tuple of str
        What the search advises, also a message of `solve_result_`: that the best λ or parameter is
        an end of its candidates, or that those next to it have no score. Empty without advice.
    selection_plan_ : SelectionPlan
        Plan of the whole search: its time with a range, memory and disk, and the reasons; print it.
    classes_ : ndarray of shape (n_classes,)
        Labels of the classes, in order.
    dual_coef_ : ndarray of shape (n_samples, 1) or (n_samples, n_classes)
        α, of the fit to all rows; only after a fit in dual form. One column for two classes.
    coef_ : ndarray of shape (1, D) or (n_classes, D)
        w, the weights of the D features (of a Fourier grid those in the box of the rows), as of
        scikit-learn's linear models; only if the model predicts in primal form.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Constants that are added to the scores; 0 without `fit_intercept`.
    n_iter_ : int
        Number of Newton steps of the fit to all rows (1 if no step was needed).
    X_fit_ : ndarray, scipy.sparse array, or as given to fit
        Training rows, or the Gram matrix if kernel == "precomputed"; unavailable on loaded models.
    n_features_in_ : int
        Number of columns of the training rows, in front of the transformer (of the encoded rows if
        the kernel takes documents or other objects).
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns; only if X is a table and all its column names are strings.
    transformer_ : transformer
        The fitted copy of `transformer`; only with one. `X_fit_` and `coef_` are of the columns
        that it makes.
    plan_ : Plan
        What was chosen for the fit to all rows, and the reasons; print it.
    solve_result_ : SolveResult
        Status, largest relative gradient (`residual`), Newton steps (`iterations`; each in
        `steps`), iterations of conjugate gradient within them (`inner_iterations`), bounds of the
        remaining change of the objective and of a probability (`decrement`, `probability_change`),
        messages, seconds, bytes and peak memory of the fit to all rows.

    See Also
    --------
    dkrr.KernelLogisticRegression : The model that is chosen.
    dkrr.KernelRidgeCV : The search for numbers.
    dkrr.plan : Plan of a search, without carrying it out.
    dkrr.save : Save the chosen model.
    sklearn.model_selection.GridSearchCV : A fit for each candidate and fold, of any estimator.
    sklearn.linear_model.LogisticRegressionCV : The search for the linear kernel in memory.

    Notes
    -----
    Rows. Those of a fold are read into memory.

    Best parameters. They are "alpha", "kernel", those of "gamma", "degree", "coef0" and
    "kernel_params" that the kernel has, and "fit_intercept", "class_weight", "one_vs_rest" and
    "transformer" if they were given.

    λ without a score. A λ some of whose fits have not converged is NaN in `cv_results_`, with a
    ConvergenceWarning that names it.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dkrr import KernelLogisticRegressionCV
    >>> X, y = load_iris(return_X_y=True)
    >>> search = KernelLogisticRegressionCV([0.01, 1.0], gamma=[0.1, 1.0], cv=3).fit(X, y)
    >>> len(search.cv_results_["params"]), bool(search.score(X, y) > 0.95)
    (4, True)
    """

    alphas: NumbersLike | None = None
    _: KW_ONLY
    kernel: KernelLike | Sequence[KernelLike] = "rbf"  # type: ignore[assignment]  # a list has candidates
    gamma: NumbersLike | Sequence[NumbersLike | None] | None = None  # type: ignore[assignment]
    degree: NumbersLike = 3  # type: ignore[assignment]
    coef0: NumbersLike = 1  # type: ignore[assignment]
    cv: FoldsLike | None = 5
    scoring: str | Callable[..., float] | None = None
    refit: bool = True
    train_sizes: NumbersLike | None = None
    random_state: int = 0
    fit_intercept: bool = True
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    one_vs_rest: bool = False
    max_iter: int = 100

    def fit(
        self,
        X: RowsLike,
        y: TargetsLike,
        sample_weight: WeightsLike | None = None,
        *,
        groups: GroupsLike | None = None,
    ) -> Self:
        """Choose the candidate with the best mean score, and fit the model with it.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n_samples, n_features)
            Training rows, of which those of a fold are read into memory; the Gram matrix
            (n_samples, n_samples) if kernel == "precomputed"; documents, graphs, a table or other
            objects if the kernel takes these.
        y : array-like, Dask array, Zarr array, path, or column of X, of shape (n_samples,)
            Labels: numbers, strings or booleans, of at least two classes; with a table as X also
            the name of its column, which is then not part of X.
        sample_weight : float, array-like of shape (n_samples,), or column of X, optional
            Weights ≥ 0 of the fits and of the scores; None: 1 for every row.
        groups : array-like of shape (n_samples,), optional
            Groups of the rows, for splitters that keep them together.

        Returns
        -------
        KernelLogisticRegressionCV
            The fitted estimator.

        Raises
        ------
        InputError
            If an argument cannot be used; the message says what was expected.
        PlanError
            If no plan stays within the memory limit or the disk.
        """
        alphas = np.geomspace(*ALPHAS, N_ALPHAS)
        if self.alphas is not None:
            alphas = np.array(checked_path(self.alphas, "alphas"))
        flag(self.refit, "refit")
        grid, score = parameter_grid(self), _checked_scoring(self.scoring)
        models = self._models()
        kernels = [model._kernel() for model in models]
        warn_of_unused({name: getattr(self, name) for name in SEARCHED}, stacklevel=2)
        X, y, sample_weight = with_columns(X, y, sample_weight)
        X = self._transformed(kernels[0], X)
        # All that is wrong with the data is said before the first fold is fitted.
        labels, request, *_ = models[0]._request(X, y, sample_weight, (float(alphas[0]),))
        codes, weights = labels.codes, checked_weights(sample_weight, len(labels.codes))
        given = labels.classes[codes]
        folds = checked_folds(self.cv, given, groups, is_classification=True)
        if not folds.is_loo:
            folds.check_weights(weights)
        curve = checked_curve(self.train_sizes, folds, weights, groups, self.random_state)
        parts = [] if curve is None else [curve.of_size(size) for size in range(len(curve))]
        for sets in (folds, *parts):
            _check_classes(sets, codes, labels.classes, request.weights, is_part=sets is not folds)

        self.scorer_ = named_scorer(self._score_name if self.scoring is None else self.scoring)
        plan = self._plan(request, kernels, X, alphas, folds, curve)

        def scored(sets: Folds, size: int | None = None) -> tuple[Array, NDArray[np.intp], Array]:
            """Scores, Newton's steps and gradients, each of shape (n_kernels, n_alphas, n_folds).

            A λ whose fits have not converged has no score.
            """
            values = np.empty((len(grid), len(alphas), len(sets)))
            steps, gradients = np.zeros(values.shape, np.intp), np.zeros(values.shape)
            solved = np.zeros(values.shape, bool)
            order = np.argsort(-alphas, kind="stable")
            for k, model in enumerate(models):
                for f, test in enumerate(sets.test):
                    train = sets.training(f)
                    x, held_out = self._part(X, request.rows, train), self._part(X, request.rows, test, train)
                    w = (None, None) if weights is None else (weights[train], weights[test])
                    with whole.part(_seconds_of_fold(plan.kernels[k], size)):
                        path = model.fit_path(x, given[train], alphas[order], sample_weight=w[0])
                    for a, fitted in zip(order, path, strict=True):
                        values[k, a, f] = score(fitted, held_out, given[test], w[1])
                        steps[k, a, f], gradients[k, a, f] = fitted.n_iter_, fitted.solve_result_.residual
                        solved[k, a, f] = fitted.solve_result_.status is Status.CONVERGED
            self._leave_out(values, solved, alphas, gradients)
            if sets is folds and not solved.all(axis=2).any():
                raise all_candidates_failed_error(is_unsolved=True)
            return values, steps, gradients

        with displayed(plan, self.progress) as whole:
            scan(request.rows, "X")  # a fold would count only its own rows in the message
            values, steps, gradients = scored(folds)
            self._set_results(values.reshape(len(grid) * len(alphas), -1, 1), grid, alphas, steps, gradients)
            if curve is not None:
                best = self.best_index_ // len(alphas)
                of_parts = np.stack([scored(sets, size)[0] for size, sets in enumerate(parts)], axis=1)
                self.learning_curve_ = curve_results(grid, alphas, values[..., None], of_parts[..., None], curve, best)
            self.n_splits_ = len(folds)
            self._set_width(request.rows)
            self.selection_plan_ = plan
            self._refit(X, y, sample_weight, plan, whole)
        for text in self.advice_:
            make_progress(self.progress).note(text)
        return self

    @property
    def _score_name(self) -> str:
        return score_name(self.scoring, "neg_log_loss")

    def _plan(
        self,
        request: FitRequest,
        kernels: list[Kernel],
        X: Any,
        alphas: Array,
        folds: Folds,
        curve: LearningCurve | None,
    ) -> SelectionPlan:
        """Plan of the whole search, from the request of a fit with the first kernel."""
        kernels = [kernel.fitted(X) if kernel.encodes else kernel for kernel in kernels]
        of_kernels = [request.with_settings(kernel=kernel).problem() for kernel in kernels]
        every = tuple(sorted(set(alphas.tolist())))
        return search_plan(
            [replace(problem, alphas=every) for problem in of_kernels],
            [FoldSizes(len(folds), n_training=folds.n_training)] * len(kernels),
            request.rows,
            detect(request.settings.memory_limit, None, rows=request.rows.url),
            () if curve is None else curve.fractions,
            request.settings.tol if self.refit else None,
        )

    def _refit(self, X: Any, y: Any, sample_weight: Any, plan: SelectionPlan, whole: CombinedProgress) -> None:
        """Fit all rows with the best parameters, if that is asked for."""
        if not self.refit:
            return
        model = self._model_with(self.best_params_ | {"transformer": None})
        begun = perf_counter()
        with whole.part(dict(plan.steps())["last fit"].expected):
            model.fit(X, y, sample_weight)
        self.refit_time_ = perf_counter() - begun
        names = vars(self).get("feature_names_in_")
        self.__dict__.update({name: value for name, value in vars(model).items() if name in FITTED})
        self._set_inputs(names)
        result = model.solve_result_
        self.solve_result_ = replace(result, messages=(*result.messages, *self.advice_))

    def _fit_to(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit the model that was chosen to other rows than those of the search, of which these may be a sample."""
        last = self._model_with(self.best_params_ | {"transformer": self.transformer}).fit(X, y, sample_weight)
        self.__dict__.update({name: value for name, value in vars(last).items() if name in FITTED})

    def _leave_out(self, values: Array, solved: NDArray[np.bool_], alphas: Array, gradients: Array) -> None:
        """Set the scores of fits that have not converged to NaN, and warn of them; shapes as in `scored`."""
        values[~solved] = np.nan
        late = ~solved.all(axis=(0, 2))
        if late.any():
            remedy = "larger values, or a larger max_iter"
            text = without_score(
                alphas[late], float(gradients[:, late].max()), self.tol, remedy, what="relative gradient"
            )
            warn_inaccurate(text, stacklevel=4)

    def _training(self, X: Any, y: Any) -> tuple[Rows, NDArray[Any]]:
        return self._models()[0]._training(X, y)

    @property
    def best_estimator_(self) -> KernelLogisticRegression:
        """Fitted KernelLogisticRegression with the best parameters, which `dkrr.save` writes; only with `refit`.

        Each access makes a new one, of the same arrays as the search.
        """
        self._check_fitted()
        return self._as_saved()

    def _as_saved(self) -> KernelLogisticRegression:
        """KernelLogisticRegression with the best parameters, fitted."""
        model = self._model_with(self.best_params_)
        model.__dict__.update({name: value for name, value in vars(self).items() if name in FITTED})
        return model

    def _model_with(self, parameters: dict[str, Any]) -> KernelLogisticRegression:
        """Model with these parameters, all of the kernel's among them, and the other ones of this estimator."""
        names = {f.name for f in fields(KernelLogisticRegression)} & {f.name for f in fields(self)}
        shared = {name: getattr(self, name) for name in names - {*SEARCHED, "kernel_params", "transformer"}}
        return KernelLogisticRegression(**(shared | parameters))

    def _models(self) -> list[KernelLogisticRegression]:
        """Models with the kernels of all candidates."""
        return [self._model_with(kernel_settings(self, parameters)) for parameters in parameter_grid(self)]

    def _part(self, X: Any, rows: Rows, index: NDArray[np.intp], columns: NDArray[np.intp] | None = None) -> Any:
        """Some rows of X; of a Gram matrix with the columns of the training rows."""
        kernels = [model._kernel() for model in self._models()]
        if any(kernel.encodes for kernel in kernels):
            return _safe_indexing(X, index)  # documents, graphs or other objects
        part = rows.take(index)
        if not kernels[0].is_precomputed:
            return part
        return part[:, index if columns is None else columns]

    def _set_results(
        self, values: Array, grid: list[dict[str, Any]], alphas: Array, steps: NDArray[np.intp], gradients: Array
    ) -> None:
        parameters = [{"alpha": float(alpha)} | kernel for kernel in grid for alpha in alphas]
        self.cv_results_ = search_results(
            parameters,
            values,
            has_splits=True,
            iterations=steps.max(axis=2).ravel(),
            residual=gradients.max(axis=2).ravel(),
        )
        kept = () if self.transformer is None else ("feature_names_in_", *OF_INPUTS)
        for name in ("learning_curve_", *(name for name in FITTED if name not in kept)):
            self.__dict__.pop(name, None)  # of an earlier fit
        means = self.cv_results_["mean_test_score"]
        if np.isnan(means).all():
            raise all_candidates_failed_error(is_unsolved=False)
        self.best_index_ = int(np.nanargmax(means))
        self.alpha_, self.best_score_ = parameters[self.best_index_]["alpha"], float(means[self.best_index_])
        settings = kernel_settings(self, grid[self.best_index_ // len(alphas)])
        remedy = "their fits have not converged, give a larger max_iter, or solver='cholesky'"
        self.advice_ = tuple(edges(parameters, self.best_index_, means[:, None], remedy))
        self.best_params_ = complete_params(self, KernelLogisticRegression, self.alpha_, settings)


def _seconds_of_fold(plan: ScoringPlan, size: int | None) -> float:
    """Time of the fit of one fold, or of a part of its training rows."""
    if size is None:
        return seconds_of_scores(plan).expected / plan.sizes.n_folds
    return seconds_of_fit(plan.parts[size]).expected


def _checked_scoring(scoring: Any) -> Any:
    """Score of a fitted model, rows, labels and weights."""
    if scoring is None:
        return _negative_log_loss
    scorer = named_scorer(scoring)

    def score(model: KernelLogisticRegression, X: Any, y: Any, weights: Any) -> float:
        try:
            return float(scorer(model, X, y, **({} if weights is None else {"sample_weight": weights})))
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"scoring={shown(scoring)} failed on {len(y)} held-out rows: {error}") from error

    return score


def _negative_log_loss(model: KernelLogisticRegression, X: Any, y: Any, weights: Any) -> float:
    return -float(log_loss(y, model.predict_proba(X), sample_weight=weights, labels=model.classes_))


def _check_classes(
    folds: Folds, codes: NDArray[np.intp], classes: NDArray[Any], weights: Any, *, is_part: bool
) -> None:
    """Refuse folds whose training rows lack a class, or weight of a class that has some elsewhere."""
    if folds.is_loo:
        raise InputError("cv is leave-one-out, which needs a fit for every row; expected a number of folds: give cv=5")
    counting = np.ones(len(codes), bool) if weights is None else weights > 0
    for f in range(len(folds)):
        train = folds.training(f)
        known, counted = codes[train], codes[train][counting[train]]
        missing = np.union1d(np.setdiff1d(codes, known), np.setdiff1d(codes[counting], counted))
        if len(missing):
            where, remedy = f"fold {f} (counted from 0)", "use fewer folds, or StratifiedKFold"
            if is_part:
                where, remedy = f"a part of {plural(len(train), 'row')}, by train_sizes,", "give larger train_sizes"
            raise InputError(
                f"{where} has no training row of class {classes.tolist()[missing[0]]!r}; expected rows of every class "
                f"in every fold: {remedy}"
            )
