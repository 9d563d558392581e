"""Kernel ridge regression that chooses λ and the kernel by cross-validation, with scikit-learn's interface."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from dkrr.checks import checked_candidates, checked_tol, flag
from dkrr.cluster import make_progress
from dkrr.data import MemoryRows, Rows, in_memory, with_columns
from dkrr.data.rows import check_finite
from dkrr.errors import InputError, warn_inaccurate
from dkrr.estimators.kernel_estimator import OF_INPUTS, is_local
from dkrr.estimators.kernel_ridge import KernelRidge, RidgeRegressor, as_columns
from dkrr.estimators.search import (
    checked_curve,
    checked_folds,
    checked_scoring,
    complete_params,
    curve_results,
    edges,
    kernel_settings,
    named_scorer,
    parameter_grid,
    score_name,
    search_results,
    without_constant,
)
from dkrr.fitting.gram import gram_diagonal
from dkrr.fitting.requests import checked_kernel, checked_store
from dkrr.kernels import Kernel
from dkrr.kernels.columns import learns
from dkrr.kernels.kernel_features import parts_of
from dkrr.kernels.names import SEARCHED
from dkrr.kernels.nystroem import Nystroem
from dkrr.planning.searches import seconds_of_fit, seconds_of_scores
from dkrr.selection import (
    Candidate,
    Folds,
    LearningCurve,
    Report,
    Score,
    ScoreSheet,
    Search,
    Selected,
    SelectionRequest,
    best_of,
    displayed,
    planned,
    select,
)
from dkrr.store.paths import resolved_place
from dkrr.store.places import place_at
from dkrr.typing import FoldsLike, GroupsLike, KernelLike, NumbersLike, RowsLike, TargetsLike, WeightsLike

Array = NDArray[np.float64]

N_ALPHAS = 10
RANGE = (1e-5, 1e2)
"""Smallest and largest λ of the default, over the mean of k(x, x)."""
SAMPLE_ROWS = 1024
"""Rows of which that mean is taken."""
BY_FACTORS = "their systems were not solved, give solver='cholesky', or conjugate gradient a larger max_iter"
UNDETERMINED = "float64 does not determine them, or scoring gives NaN; scale the columns of X, or use larger candidates"
GIVEN_UP = "they were given up, give early_stopping=False"
"""Remedy for candidates without a score."""
FLAGS = ("alpha_per_target", "refit", "early_stopping", "store_cv_predictions")
FITTED = (
    "dual_coef_",
    "coef_",
    "intercept_",
    "rkhs_norm_",
    "n_iter_",
    "X_fit_",
    "n_features_in_",
    "feature_names_in_",
    "plan_",
    "solve_result_",
    "_model",
    "_is_vector",
    "_known_posteriors",
    *OF_INPUTS,
)
"""Attributes of the last fit."""


@dataclass(eq=False, repr=False)
class KernelRidgeCV(RidgeRegressor):
    """Kernel ridge regression with λ, the kernel and its parameters chosen by cross-validation.

    Every λ of `alphas` is scored with every combination of kernels and parameters that are given as
    lists, by the rows that each fold leaves out; KernelRidge is then fitted to all rows with the
    best. All folds, λ and targets share their work, unlike those of GridSearchCV.
    `selection_plan_` says how scores are computed, and why.

    Parameters
    ----------
    alphas : array-like of shape (n_alphas,), optional
        Candidates of λ ≥ 0. None: ten from 1e-5 to 1e2 times the mean of k(x, x) (of the first
        kernel if there are several), evenly spaced in their logarithm.
    kernel : str, Kernel, FeatureMap or callable, or a list of these, default="rbf"
        A name, as in scikit-learn: "linear", "polynomial", "rbf", "laplacian", "matern",
        "rational_quadratic", "cosine", "sigmoid", "chi2" or "precomputed"; a value
        of `dkrr.kernels`, or of `dkrr.features` for an approximation; or a function of two blocks
        of rows. A list has candidates; each of the next three parameters goes with those kernels
        that have it. `dkrr.kernels.weighted_sums` makes a list of sums.
    gamma : float or list, optional
        γ > 0 of named kernels that have it, or a list of candidates, each of them a number for all
        columns or a sequence of numbers, one for each. None: 1 / n_features (1 for "chi2").
    degree : float or list of float, default=3
        Degree of the polynomial kernel, or candidates.
    coef0 : float or list of float, default=1
        Constant of the polynomial and sigmoid kernels, or candidates.
    kernel_params : dict, optional
        Keyword arguments of a kernel function, or further parameters of a named kernel.
    fit_intercept : bool, default=False
        Whether to fit a constant that is not penalised.
    form : {"auto", "primal", "dual"}, default="auto"
        Unknowns of the linear systems: "primal" one weight for each feature (kernels with a finite
        feature map, and RBF kernels of at most three columns on a Fourier grid), "dual" one
        coefficient for each training row; "auto" takes the form that is projected to be faster
        within the limits.
    solver : {"auto", "cholesky", "cg"}, Cholesky or ConjugateGradient, default="auto"
        A Cholesky factorisation, or preconditioned conjugate gradient ("cg"), for the folds as well
        as for the fit to all rows; values of `dkrr.solvers` have their settings. "auto" takes the
        one that is projected to be faster within the limits.
    tol : float, default=1e-8
        Largest relative residual that conjugate gradient leaves in the fit to all rows; `cv_tol` is
        that of the folds.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where products with K are computed: by this machine's cores or Dask's workers ("cpu"), or by
        conjugate gradient on an NVIDIA GPU ("cuda", experimental: not yet run on one), which needs
        CuPy, ``pip install 'dkrr[cuda]'``. "auto" compares them where CuPy is installed and the
        work takes more than a few seconds. Predictions are computed there too.
    memory_limit : int or str, optional
        Bytes, or text such as "4GiB", for the search over all workers of one machine (the calling
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
        it has seen the rows that are left out. Where that matters, put it before KernelRidge in a
        Pipeline, and that into GridSearchCV.
    cv : int, splitter, iterable of (train, test) or "loo", default=5
        Number of consecutive folds, one of scikit-learn's splitters, or pairs of row numbers; "loo"
        leaves out one row at a time. None: 5 folds.
    scoring : str or callable, optional
        Name of one of scikit-learn's scorers of predictions, or a function scorer(estimator, X, y),
        which gets the numbers of the rows as X; larger is better. None: the negative mean of the
        squared errors, with sample weights and over all targets. Leave-one-out scores the
        predictions of all rows together.
    alpha_per_target : bool, default=False
        Whether every target has its own λ, chosen by its own scores. The kernel is the same
        for all.
    refit : bool, default=True
        Whether to fit all rows with the best candidate; without it there is nothing to predict
        with.
    early_stopping : bool, default=True
        Whether λ are skipped, not iterations by a validation set. Conjugate gradient gives up λ
        that are surely worse than another one, whose scores are then known to about half a
        percent, or NaN where that would take longer than all others; and, from large to small,
        those below one at which the scores have become worse for the second time in a row.
        `cv_results_["stopped"]` has them. A better score at far smaller λ is then missed.
    cv_tol : float, default=1e-3
        Largest relative residual of the folds' systems by conjugate gradient; smaller automatically
        where the errors of rows that are left out are less than a tenth of the targets. A λ that
        does not reach it has no score; see Notes.
    store_cv_predictions : bool, default=False
        Whether to keep the predictions of the best candidate for the rows that were left out, as
        `cv_predictions_`.
    train_sizes : array-like, optional
        Fractions of the training rows of a fold, such as (0.125, 0.25, 0.5), or numbers of rows:
        every fold is also trained on these parts of its rows, for `learning_curve_`. All of them are
        always the last size. Not with leave-one-out.
    random_state : int, default=0
        Seed of the order of the rows for `train_sizes`.
    optimize : {"isotropic", "ard", "alpha"}, optional
        What is optimised further from the best candidate by gradients of the error: "isotropic" λ
        and one length of RBF or Matérn kernels, which multiplies the lengths of all columns; "ard"
        (automatic relevance determination) λ and a length for each column, large for columns that
        do not matter; "alpha" λ alone. None: nothing. See Notes.
    max_evaluations : int, default=50
        Most evaluations of the error and its gradient by `optimize`, each of which takes about as
        long as two λ of the grid.
    store : str or Path, optional
        Folder or URL for the stores of the search, one for each kernel ("kernel-0", ...) and that
        of the last fit ("fit"), which are kept: the same call resumes from them. None: temporary
        stores, or none if the work fits in memory.
    uncertainty : bool or "intervals", default=False
        True: the fit to all rows keeps the Cholesky factor that `predict` with ``return_std=True``,
        `log_marginal_likelihood` and `loo_residuals` take; False: it is computed when it is first
        asked for. "intervals": it also computes the models that leave out folds, for
        `predict_interval`: the folds of the search where they hold out every row once and train on
        all others, else ten consecutive ones.

    Attributes
    ----------
    alpha_ : float or ndarray of shape (n_targets,)
        Best λ; one for each target with `alpha_per_target`.
    best_params_ : dict
        Parameters of the chosen model, complete: ``KernelRidge(**search.best_params_)`` is that
        model. Settings of the computation (`tol`, `solver`, `form`, ...) are left out. With
        `optimize`, "kernel" is the optimised value.
    best_score_ : float or ndarray of shape (n_targets,)
        Mean score of the chosen model over the folds, after `optimize`.
    best_index_ : int or ndarray of shape (n_targets,)
        Place of the best candidate in `cv_results_`; with `optimize`, of that from which it began.
    best_estimator_ : KernelRidge
        The chosen model, fitted to all rows, as `dkrr.save` writes it; it shares the arrays of the
        search. Only with `refit`.
    refit_time_ : float
        Seconds of the fit to all rows; only with `refit`.
    scorer_ : callable
        scorer(estimator, X, y) by which candidates were compared.
    n_splits_ : int
        Number of folds.
    cv_results_ : dict of list or ndarray
        Scores of every candidate, as of GridSearchCV: "params", "mean_test_score",
        "std_test_score", "rank_test_score", "split0_test_score", ...; also "iterations",
        "residual", "stopped" and "seconds". See Notes.
    cv_predictions_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        Predictions of the rows by models that did not see them, with the best candidate (the mean
        where a row was left out several times, NaN where it never was); only with
        `store_cv_predictions`.
    learning_curve_ : dict
        Scores by number of training rows, of the best kernel: "train_sizes", "mean_test_score",
        "gain_per_doubling", "conclusion" and more; only with `train_sizes`. See Notes.
    optimum_ : Optimum
        What `optimize` found, and all its evaluations; only with it.
    advice_ : tuple of str
        What the search advises, also a message of `solve_result_`: that the best λ or parameter is
        an end of its candidates, that those next to it have no score, or that targets far from 0
        were fitted without a constant. Empty without advice.
    selection_plan_ : SelectionPlan
        Plan of the whole search: how scores are computed, time with its range, memory and disk, and
        the reasons; print it.
    dual_coef_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        α, of the fit to all rows. Unavailable after a primal fit with λ = 0, which does not
        determine it.
    coef_ : ndarray of shape (D,) or (n_targets, D)
        w, the weights of the D features (of a Fourier grid those in the box of the rows), as of
        scikit-learn's linear models; only if the model predicts in primal form.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant that is added to predictions; 0 without `fit_intercept`.
    rkhs_norm_ : float or ndarray of shape (n_targets,)
        ‖f‖ in the kernel's space, without the intercept: ‖w‖ = √(αᵀKα).
    n_iter_ : int or None
        Number of iterations of conjugate gradient in the fit to all rows; None after a direct
        solve.
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
    uncertainty_plan_ : UncertaintyPlan
        Whether the last standard deviations or likelihood came from a factor, and why; after the
        first of these.
    solve_result_ : SolveResult
        Status, true residual (`residual`; `residual_of` says of what), iterations of conjugate
        gradient, estimated condition number, messages, seconds, bytes and peak memory of the fit to
        all rows.

    See Also
    --------
    dkrr.KernelRidge : The model that is chosen.
    dkrr.KernelLogisticRegressionCV : The search for classes.
    dkrr.plan : Plan of a search, without carrying it out.
    dkrr.save : Save the chosen model.
    dkrr.kernels.weighted_sums : Candidates that are sums of kernels.
    sklearn.model_selection.GridSearchCV : A fit for each candidate and fold, of any estimator.
    sklearn.linear_model.RidgeCV : Leave-one-out for the linear kernel in memory.

    Notes
    -----
    Methods. All folds, λ and targets are solved for at once: in one run of conjugate gradient,
    whose products with K serve all of them and hold the predictions of the rows that are left out;
    exactly from one factorisation for each λ, which leave-one-out always takes; or, in primal form,
    from one pass over the rows. Folds that do not train on all other rows (TimeSeriesSplit) may
    have a factorisation each for every λ. Kernels that have distances or terms in common may share
    a run.

    λ without a score. A λ whose systems do not reach `cv_tol` is NaN in `cv_results_`, with a
    ConvergenceWarning that names it, as is one whose factor is inaccurate (a true residual, or in
    primal form what rounding may change in predictions, above 1e-6). λ that were given up
    (`early_stopping`) are not warned of.

    Results. Leave-one-out has neither splits nor a "std_test_score". "iterations" and "residual"
    are the largest of the folds, "seconds" those of all λ of one kernel. Where float64 does not
    hold the squares of y, scores are 0 or -inf, with a warning. With `alpha_per_target`,
    "mean_test_score_per_target" has an array of shape (n_targets,) for each candidate.

    Best parameters. They are "alpha", "kernel", those of "gamma", "degree", "coef0" and
    "kernel_params" that the kernel has, and "fit_intercept" and "transformer" if they were given.

    Optimisation. L-BFGS-B with exact gradients of the cross-validated squared error in logarithms
    of λ and lengths. Every parameter stays within a factor of 1,000 of its start. Folds must share
    one kernel, in dual form; leave-one-out, `scoring` and `alpha_per_target` are refused. Learning
    curves stay those of the candidates.

    Learning curves. The parts of the training rows are nested, and of rows in random order,
    whatever the order of X; of whole groups, if `groups` are given; and of the latest rows, if all
    folds train on rows before those that they hold out (TimeSeriesSplit). Rows of weight 0 do not
    count. Every part of every fold is fitted separately, with all λ that the folds have not given
    up. "train_sizes" (n_sizes,) are means of "split_train_sizes" (n_sizes, n_folds); "test_scores"
    (n_sizes, n_folds) are with λ chosen at every size by the mean score ("alpha"), and have a
    "mean_test_score" and "std_test_score". "gain_per_doubling" is by how much the score rose from
    the last size but one to all rows, over the doublings between them, "gain_standard_error" its
    standard error, which allows for the rows that the folds share (NaN with one fold),
    "gain_margin" half the width of the interval of 95 % around it, and "conclusion" what they say
    of more rows. "params" has the parameters of all kernels, and "mean_test_score_of_kernels"
    (n_kernels, n_sizes) their curves. With `alpha_per_target`, "alpha" and
    "mean_test_score_per_target" have a column for each target.

    References
    ----------
    S. An, W. Liu, S. Venkatesh, "Fast cross-validation algorithms for least squares support vector
    machine and kernel ridge regression", Pattern Recognition 40 (2007).

    C. Nadeau, Y. Bengio, "Inference for the Generalization Error", Machine Learning 52 (2003): the
    standard error.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidgeCV
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> search = KernelRidgeCV([1e-3, 1e-1, 10.0], gamma=[0.1, 1.0], cv="loo").fit(X, y)
    >>> search.best_params_["alpha"], len(search.cv_results_["params"])
    (0.001, 6)
    """

    alphas: NumbersLike | None = None
    _: KW_ONLY
    kernel: KernelLike | Sequence[KernelLike] = "rbf"  # type: ignore[assignment]  # a list has candidates
    gamma: NumbersLike | Sequence[NumbersLike | None] | None = None  # type: ignore[assignment]
    degree: NumbersLike = 3  # type: ignore[assignment]
    coef0: NumbersLike = 1  # type: ignore[assignment]
    cv: FoldsLike | None = 5
    scoring: str | Callable[..., float] | None = None
    alpha_per_target: bool = False
    refit: bool = True
    early_stopping: bool = True
    cv_tol: float = 1e-3
    store_cv_predictions: bool = False
    train_sizes: NumbersLike | None = None
    random_state: int = 0
    optimize: Literal["isotropic", "ard", "alpha"] | None = None
    max_evaluations: int = 50
    store: str | Path | None = None
    uncertainty: bool | Literal["intervals"] = False

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
            Training rows; the Gram matrix (n_samples, n_samples) if kernel == "precomputed";
            documents, graphs, a table or other objects if the kernel takes these.
        y : ndarray, table, Dask or Zarr array, path, or column of X, of shape (n_samples,) or (n_samples, n_targets)
            Targets, the largest of each column 0 or from 1e-120 to 1e120 in size; with a table as X also
            names of its columns, which are then not part of X.
        sample_weight : float, array-like of shape (n_samples,), or column of X, optional
            wᵢ of the fits and of the scores: 0 or from 1e-30 to 1e30, not all 0; None: 1 for every row.
        groups : array-like of shape (n_samples,), optional
            Groups of the rows, for splitters that keep them together.

        Returns
        -------
        KernelRidgeCV
            The fitted estimator.

        Raises
        ------
        InputError
            If an argument cannot be used; the message says what was expected.
        PlanError
            If no plan stays within the memory limit or the disk.
        NotPositiveDefiniteError
            If the matrix of a candidate is not positive definite; the message names λ.
        """
        score, cv_tol = checked_scoring(self.scoring), checked_tol(self.cv_tol, "cv_tol")
        search = Search.checked(self.optimize, self.max_evaluations)
        for name in FLAGS:
            flag(getattr(self, name), name)
        grid = parameter_grid(self)
        kernels = [self._kernel_with(parameters) for parameters in grid]
        X, y, sample_weight = with_columns(X, y, sample_weight)
        objects = in_memory(X) if any(kernel.encodes for kernel in kernels) else X
        X, settings, rows, y, weights = self._checked_targets(X, y, sample_weight)
        objects = objects if self.transformer is None else X
        folds = checked_folds(self.cv, y, groups)
        folds.check_weights(weights)
        curve = checked_curve(self.train_sizes, folds, weights, groups, self.random_state)
        alphas = self._alphas(settings.kernel, rows, weights)
        kernels = [kernel.fitted(objects) if kernel.encodes else kernel for kernel in kernels]
        by_fits = any(learns(kernel) for kernel in kernels)
        if by_fits and search is not None:
            raise InputError(
                f"optimize is {self.optimize!r}, and a kernel learns from the training rows of every fold; expected "
                f"kernels of numbers, or optimize=None"
            )
        self.scorer_ = named_scorer(self._score_name if self.scoring is None else self.scoring)
        request = SelectionRequest(
            settings=[replace(settings, kernel=kernel, uncertainty=False) for kernel in kernels],
            rows=rows,
            values=as_columns(y),
            weights=weights,
            alphas=alphas,
            folds=folds,
            score=score,
            tol=cv_tol,
            is_vector=y.ndim == 1,
            per_target=bool(self.alpha_per_target) and y.ndim == 2,
            race=bool(self.early_stopping),
            keeps_predictions=bool(self.store_cv_predictions),
            curve=curve,
            refit=bool(self.refit),
            search=search,
            uncertainty=settings.uncertainty,
            interval_folds=self._folds_to_keep(y, folds) if self.uncertainty == "intervals" else (),
        )
        if by_fits:
            return self._search_by_fits(request, objects, y, grid)
        selected = select(request, self.progress)
        self._set_results(selected, grid, alphas, curve, is_vector=y.ndim == 1)
        self.n_splits_, self._folds = len(folds), folds
        self._set_width(rows)
        if selected.fit is not None:
            last = selected.fit
            self._take_fit(last.fit, last.request, X, is_vector=y.ndim == 1)
            self.refit_time_ = last.seconds
        return self._advised(as_columns(y), weights)

    @property
    def _score_name(self) -> str:
        return score_name(self.scoring, "neg_mean_squared_error")

    def _advised(self, y: Array, weights: Array | None) -> Self:
        """Set `advice_`, and say it with the result of the fit and where progress is shown."""
        means = np.average(y, axis=0, weights=weights)
        self._target_variances = np.average((y - means) ** 2, axis=0, weights=weights)
        r2 = self._r2(np.atleast_1d(self.best_score_), per_target=np.ndim(self.best_score_) > 0)
        advice = [] if hasattr(self, "optimum_") else list(self._edges())
        if not self.fit_intercept:
            advice += without_constant(means, np.sqrt(self._target_variances), r2)
        self.advice_ = tuple(advice)
        if advice and hasattr(self, "solve_result_"):
            messages = (*self.solve_result_.messages, *self.advice_)
            self.solve_result_ = replace(self.solve_result_, messages=messages)
        for text in advice:
            make_progress(self.progress).note(text)
        return self

    def _edges(self) -> Iterator[str]:
        """Words for ends of the candidates, and of those with a score."""
        results = self.cv_results_
        scores = np.vstack(results.get("mean_test_score_per_target", results["mean_test_score"]))
        unscored = np.isnan(scores).any(axis=1)
        if unscored.any() and results["stopped"][unscored].all():
            remedy = GIVEN_UP
        else:
            remedy = BY_FACTORS if (results["iterations"][unscored] > 0).any() else UNDETERMINED
        return edges(results["params"], self.best_index_, scores, remedy)

    def _r2(self, scores: Array, *, per_target: bool = False) -> Array | None:
        """R² of scores, of all targets together or of each; None where scores are not squared errors."""
        variances = self._target_variances
        if self.scoring is not None or not (variances > 0).all():
            return None
        return np.asarray(1.0 + scores / (variances if per_target else variances.mean()))

    @property
    def best_estimator_(self) -> KernelRidge:
        """Fitted KernelRidge with the best parameters, which `dkrr.save` writes; only with `refit`.

        Each access makes a new one, of the same arrays as the search.
        """
        self._check_fitted()
        return self._as_saved()

    def _as_saved(self) -> KernelRidge:
        """KernelRidge with the best parameters, fitted."""
        model = self._ridge_with(self.best_params_)
        model.__dict__.update({name: value for name, value in vars(self).items() if name in (*FITTED, "_folds")})
        return model

    def _fit_to(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit the model that was chosen to other rows than those of the search, of which these may be a sample."""
        store = checked_store(self.store)
        if store is not None:
            place_at(resolved_place(store)).make()
            store = f"{resolved_place(store)}/fit"
        last = self._ridge_with(self.best_params_ | {"store": store}).fit(X, y, sample_weight=sample_weight)
        self.__dict__.update({name: value for name, value in vars(last).items() if name in FITTED})
        self._folds = None

    def _search_by_fits(self, request: SelectionRequest, X: Any, y: Array, grid: list[dict[str, Any]]) -> Self:
        """Search where a kernel learns from the training rows: every fold has its own kernel and its own fit."""
        folds, curve, alphas, weights = request.folds, request.curve, request.alphas, request.weights
        if folds.is_loo:
            raise InputError(
                "cv is leave-one-out, and a kernel that learns from the training rows needs a fit for every row; "
                "expected a number of folds: give cv=5"
            )
        if not is_local(X):
            raise InputError(
                f"X is a {type(X).__name__}, which is read in blocks, and the kernel learns from the training rows of "
                f"every fold; expected rows in memory"
            )
        t, candidates, plan = as_columns(y).shape[1], list[Candidate](), planned(request)
        sizes = [] if curve is None else [curve.of_size(size) for size in range(len(curve))]
        with displayed(plan, self.progress) as whole:
            for parameters, one in zip(grid, plan.kernels, strict=True):
                begun = time.perf_counter()
                with whole.part(seconds_of_scores(one).expected):
                    sheet, report = self._scored_by_fits(X, y, weights, folds, alphas, request.score, parameters)
                    report.seconds = time.perf_counter() - begun
                each = []
                for parts, fit in zip(sizes, one.parts, strict=True):
                    with whole.part(len(folds) * seconds_of_fit(fit).expected):
                        each.append(self._scored_by_fits(X, y, weights, parts, alphas, request.score, parameters)[0])
                of_parts = None if curve is None else np.stack([part.values for part in each])
                candidates.append(Candidate(None, sheet, report, of_parts))
            selected = replace(best_of(candidates, t), plan=plan)
            self._set_results(selected, grid, alphas, curve, is_vector=y.ndim == 1)
            self.n_splits_, self._folds = len(folds), folds
            if self.refit:
                last = self._ridge_with(self.best_params_)
                last._own_folds = folds
                begun = time.perf_counter()
                with whole.part(dict(plan.steps())["last fit"].expected):
                    last.fit(X, y, sample_weight=weights)
                self.refit_time_ = time.perf_counter() - begun
                self.__dict__.update({name: value for name, value in vars(last).items() if name in FITTED})
        return self._advised(as_columns(y), weights)

    def _scored_by_fits(
        self,
        X: Any,
        y: Array,
        weights: Array | None,
        folds: Folds,
        alphas: Array,
        score: Score,
        parameters: dict[str, Any],
    ) -> tuple[ScoreSheet, Report]:
        """Scores of one kernel, by a fit of all λ to the training rows of each fold."""
        per_target = bool(self.alpha_per_target) and y.ndim == 2
        values = as_columns(y)
        t = values.shape[1]
        sheet = ScoreSheet(
            score,
            values,
            weights,
            folds,
            len(alphas),
            is_vector=y.ndim == 1,
            per_target=per_target,
            keeps_predictions=bool(self.store_cv_predictions),
        )
        report = Report(len(alphas), len(folds))
        for f, test in enumerate(folds.test):
            rows = folds.training(f)
            every = {"alpha": np.repeat(alphas, t), "store": None, "tol": self.cv_tol, "uncertainty": False}
            model = self._ridge_with(kernel_settings(self, parameters) | every)
            w = None if weights is None else weights[rows]
            model.fit(_safe_indexing(X, rows), np.tile(values[rows], len(alphas)), sample_weight=w)
            predictions = model.predict(_safe_indexing(X, test)).reshape(len(test), len(alphas), t)
            report.add_fit(f, model.solve_result_, self.cv_tol)
            for a in range(len(alphas)):
                sheet.add_predictions(a, f, np.ascontiguousarray(predictions[:, a]))
        for message in report.leave_out(sheet.values, alphas):
            warn_inaccurate(message, stacklevel=4)
        return sheet, report

    def _ridge_with(self, parameters: dict[str, Any]) -> KernelRidge:
        """KernelRidge with these parameters, all of the kernel's among them, and the other ones of this estimator."""
        names = {f.name for f in fields(KernelRidge)} - {*SEARCHED, "kernel_params", "alpha"}
        return KernelRidge(**({name: getattr(self, name) for name in names} | parameters))

    def _kernel_with(self, parameters: dict[str, Any]) -> Kernel:
        """Kernel with some of its parameters."""
        given = kernel_settings(self, parameters)
        return checked_kernel(given.pop("kernel"), **given)

    def _kernel(self) -> Kernel:
        return self._kernel_with(parameter_grid(self)[0])

    def _alphas(self, kernel: Kernel, rows: Rows, weights: Array | None) -> Array:
        """Candidates of λ."""
        if self.alphas is not None:
            return checked_candidates(self.alphas)
        size = 1.0
        for part in parts_of(kernel):
            kernel = part.base if isinstance(part, Nystroem) else kernel  # it has no features before the fit
        if not kernel.has_unit_diagonal:
            first = 0 if weights is None else int(np.argmax(weights > 0))
            sample = MemoryRows(rows.read(0, min(first + SAMPLE_ROWS, rows.shape[0])))
            check_finite(sample.array, "X")
            diagonal = gram_diagonal(kernel.resolved(rows.shape[1]), rows if kernel.is_precomputed else sample)
            counting = None if weights is None else weights[: len(diagonal)]
            size = float(np.average(diagonal, weights=counting))
        return np.geomspace(*RANGE, N_ALPHAS) * (size if size > 0 else 1.0)

    def _set_results(
        self,
        selected: Selected,
        grid: list[dict[str, Any]],
        alphas: Array,
        curve: LearningCurve | None,
        *,
        is_vector: bool,
    ) -> None:
        """Set the attributes of the search."""
        chosen = selected.alphas
        indices = selected.kernel * len(alphas) + chosen
        per_target = selected.candidates[selected.kernel].sheet.per_target
        candidates = selected.candidates
        values = np.concatenate([c.sheet.values for c in candidates])  # candidates × folds × targets
        self.cv_results_ = search_results(
            [{"alpha": float(alpha)} | kernel for kernel in grid for alpha in alphas],
            values,
            has_splits=not candidates[0].sheet.is_loo,
            iterations=np.concatenate([c.report.iterations.max(axis=1) for c in candidates]),
            residual=np.concatenate([c.report.residuals.max(axis=1) for c in candidates]),
            stopped=np.concatenate([c.report.stopped for c in candidates]),
            seconds=np.repeat([c.report.seconds for c in candidates], len(alphas)),
        )
        if per_target:
            # An array for each candidate: a table of the results has one column of them.
            self.cv_results_["mean_test_score_per_target"] = list(values.mean(axis=1))
        self.best_index_: int | NDArray[np.intp] = indices if per_target else int(indices[0])
        self.alpha_: float | Array = alphas[chosen] if per_target else float(alphas[chosen[0]])
        self.best_score_: float | Array = selected.score
        settings = kernel_settings(self, grid[selected.kernel])
        self.selection_plan_ = selected.plan
        for name in ("cv_predictions_", "learning_curve_", "optimum_", *FITTED):
            if name not in ("feature_names_in_", *OF_INPUTS):
                self.__dict__.pop(name, None)  # of an earlier fit
        if curve is not None:
            scores = np.stack([c.sheet.values for c in candidates])
            parts = np.stack([c.parts for c in candidates if c.parts is not None])
            with np.errstate(invalid="ignore"):  # where scores are infinite
                self.learning_curve_ = curve_results(
                    grid, alphas, scores, parts, curve, selected.kernel, is_per_target=per_target
                )
        if selected.optimum is not None:
            self.optimum_, self.alpha_ = selected.optimum, selected.optimum.alpha
            settings = {"kernel": selected.optimum.kernel}
        self.best_params_ = complete_params(self, KernelRidge, self.alpha_, settings)
        if selected.predictions is not None:
            self.cv_predictions_ = selected.predictions[:, 0] if is_vector else selected.predictions
