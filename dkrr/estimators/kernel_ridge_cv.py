"""Kernel ridge regression that chooses λ and the kernel by cross-validation, with scikit-learn's interface."""

from __future__ import annotations

import time
import warnings
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
from dkrr.fitting.data import sizes_out_of_range
from dkrr.fitting.requests import checked_kernel, checked_store
from dkrr.fitting.results import gram_diagonal
from dkrr.kernels import Kernel
from dkrr.kernels.columns import encodes, learns
from dkrr.kernels.implied import parts_of
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
    in_range,
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
"""What may be done about candidates without a score."""
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
    "_known_processes",
    *OF_INPUTS,
)
"""Attributes of the last fit."""


@dataclass(eq=False, repr=False)
class KernelRidgeCV(RidgeRegressor):
    """Kernel ridge regression with λ, the kernel and its parameters chosen by cross-validation.

    All folds, all λ and all targets are solved for at once: in one run of conjugate gradient whose products with K
    serve all of them and hold the predictions of the rows that are left out, or exactly from one factorisation for each
    λ (which leave-one-out always takes), or, in primal form, from one pass over the rows. Folds that do not train on
    all other rows (TimeSeriesSplit) may have a factorisation each for every λ. A plan chooses between them;
    `selection_plan_` says why. The model is then fitted to all rows, as KernelRidge does it.

    Parameters
    ----------
    alphas : array-like of shape (n_alphas,), optional
        Candidates of λ ≥ 0. None: ten from 1e-5 to 1e2 times the mean of k(x, x), of the first kernel if there are
        several, evenly spaced in their logarithm.
    kernel : str, Kernel, FeatureMap or callable, or a list of these, default="rbf"
        As in KernelRidge; a list has candidates, as those of the next three parameters, each of which goes with the
        kernels that have it; `weighted_sums` makes one of sums. Kernels that have distances or terms in common may
        share a run: `selection_plan_` says so.
    gamma, degree, coef0 : float or list of float
        As in KernelRidge.
    kernel_params : dict, optional
        Keyword arguments of a kernel function, or further parameters of a named kernel.
    cv : int, splitter, iterable of (train, test) or "loo", default=5
        Number of consecutive folds (None: 5), or any of scikit-learn's splitters; "loo" leaves out one row at a time.
    scoring : str or callable, optional
        Name of one of scikit-learn's scorers of predictions, or a function scorer(estimator, X, y), which gets the
        numbers of the rows as X; larger is better. None: the negative mean of the squared errors, with sample weights
        and over all targets. Leave-one-out scores the predictions of all rows together.
    alpha_per_target : bool, default=False
        Whether every target has a λ of its own, chosen by its own scores. The kernel is the same for all.
    refit : bool, default=True
        Whether to fit all rows with the best candidate; without it there is nothing to predict with.
    early_stopping : bool, default=True
        Whether small λ are skipped, not iterations by a validation set: conjugate gradient gives up the λ below one at
        which the scores have become worse for the second time in a row, going from large to small;
        `cv_results_["stopped"]` has them. A better score at far smaller λ is then missed, which scores with two minima
        have.
    cv_tol : float, default=1e-3
        Largest true relative residual of the folds' systems by conjugate gradient; smaller by itself where the errors
        of rows that are left out are less than a tenth of the targets. A λ that does not reach it has no score: NaN in
        `cv_results_`, with a ConvergenceWarning that names it, as has one whose factor is inaccurate (a true residual,
        or in primal form what rounding may change in predictions, above 1e-6). λ that were given up
        (`early_stopping`) are not warned of.
    store_cv_predictions : bool, default=False
        Whether to keep the predictions of the best candidate for the rows that were left out.
    train_sizes : array-like, optional
        Fractions of the training rows of a fold, such as (0.125, 0.25, 0.5), or numbers of rows: every fold is trained
        on so many of its rows as well, for `learning_curve_`. All of them are always the last size. The parts are
        nested, and of rows in random order, whatever the order of X; of whole groups, if `groups` are given; and of
        the latest rows, if all folds train on rows before those that they hold out (TimeSeriesSplit). Rows of weight 0
        do not count. Every part of every fold has a fit of its own, with all λ that the folds have not given up. Not
        with leave-one-out.
    random_state : int, default=0
        Seed of the order of the rows for `train_sizes`.
    optimize : {"isotropic", "ard", "alpha"}, optional
        What is optimised further from the best candidate, by exact gradients of the cross-validated squared error in
        logarithms (L-BFGS-B): "isotropic" λ and one length of RBF or Matérn kernels, which multiplies the lengths of
        all columns; "ard" (automatic relevance determination) λ and a length for each column, which is large for
        columns that do not matter; "alpha" λ alone. None: nothing. Every parameter stays within a factor of 1,000 of
        its start. Folds must share one kernel, in dual form; leave-one-out, `scoring` and `alpha_per_target` are
        refused. Learning curves stay those of the candidates.
    max_evaluations : int, default=50
        Most evaluations of the error and its gradient, each of which takes about as long as two λ of the grid.
    transformer : "standardize" or transformer of scikit-learn, optional
        As in KernelRidge. It is fitted once, to all training rows, since all folds share one matrix: it has seen the
        rows that are left out (their part in means, their categories). For one that is fitted to the training rows of
        every fold put it before KernelRidge in a Pipeline, and that into GridSearchCV.
    uncertainty : bool or "intervals", default=False
        As in KernelRidge, of the fit to all rows; "intervals" takes the folds of the search where these hold out every
        row once and train on all others, else ten consecutive ones.
    fit_intercept, form, solver, tol, memory_limit, tile, progress
        As in KernelRidge. "cholesky" and "cg" as `solver` hold for the folds, too.
    store : str, optional
        Folder or URL for the stores of the run, one for each kernel ("kernel-0", ...) and that of the last fit ("fit").
        The same call resumes from them.

    Attributes
    ----------
    alpha_ : float or ndarray of shape (n_targets,)
        Best λ; one for each target with `alpha_per_target`.
    best_params_ : dict
        The chosen model, complete: ``KernelRidge(**search.best_params_)`` has its "alpha", "kernel", and those of
        "gamma", "degree", "coef0" and "kernel_params" that the kernel has; "fit_intercept" and "transformer" if they
        were given. With `optimize` "kernel" is the optimised value. Only settings of the computation (`tol`, `solver`,
        `form`, ...) are left out.
    best_score_ : float or ndarray of shape (n_targets,)
        Its mean score over the folds, after `optimize`.
    best_index_ : int or ndarray of shape (n_targets,)
        Its place in `cv_results_`; with `optimize` that of the candidate from which the search began.
    optimum_ : Optimum
        With `optimize` only: `alpha`, `kernel` and `score` that were found, `n_evaluations`, whether the search
        `converged` and a `message`, and `alphas`, `lengths`, `scores` and `gradients` of all evaluations.
    cv_results_ : dict
        Scores of every candidate, as GridSearchCV has them ("params", "mean_test_score", "std_test_score",
        "rank_test_score", "split0_test_score", ...; leave-one-out has neither splits nor a std), and "iterations",
        "residual" (largest of the folds), "stopped" and "seconds" (of all λ of one kernel). Where float64 does not hold
        the squares of y they are 0 or -inf, with a warning. With `alpha_per_target` also
        "mean_test_score_per_target", of shape (n_candidates, n_targets).
    cv_predictions_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        Predictions of the rows by models that did not see them, with the best candidate (the mean where a row was left
        out several times, NaN where it never was); only with `store_cv_predictions`.
    learning_curve_ : dict
        Scores by number of training rows, of the best kernel, only with `train_sizes`: "train_sizes" (n_sizes,), means
        of "split_train_sizes" (n_sizes, n_folds); "test_scores" (n_sizes, n_folds), with λ chosen anew at every size by
        the mean score ("alpha"), and their "mean_test_score" and "std_test_score"; "gain_per_doubling", by how much the
        score rose from the last size but one to all rows, over the doublings between them,
        "gain_standard_error", which allows for the rows that the folds share (NaN with one fold), "gain_margin", half
        the width of the interval of 95 % around it, and "conclusion", what they say of more rows. "params" has the
        parameters of all kernels, and "mean_test_score_of_kernels" their curves, (n_kernels, n_sizes). With
        `alpha_per_target` "alpha" has a column for each target, as has "mean_test_score_per_target".
    n_splits_ : int
        Number of folds.
    best_estimator_ : KernelRidge
        The chosen model, fitted to all rows, as `dkrr.save` writes it: of the same arrays as the search, not a copy of
        them. Only with `refit`, as the next.
    refit_time_ : float
        Seconds of the fit of all rows.
    scorer_ : callable
        scorer(estimator, X, y) by which candidates were compared.
    advice_ : tuple of str
        What the search advises, also a message of `solve_result_`: that the best λ or parameter is an end of its
        candidates (also of two), that the candidates next to it have no score, or that targets far from 0 were fitted
        without a constant. Empty without advice.
    selection_plan_ : SelectionPlan
        Plan of the whole search, which is also shown before it begins where progress is: how the λ of every kernel are
        scored, the learning curve, the last fit, their time with its range, memory and disk, and the reasons; print it.
    dual_coef_, coef_, intercept_, rkhs_norm_, n_iter_, X_fit_, n_features_in_, feature_names_in_, transformer_
        As in KernelRidge, of the fit to all rows.
    plan_, uncertainty_plan_, solve_result_
        Likewise.

    References
    ----------
    S. An, W. Liu, S. Venkatesh, "Fast cross-validation algorithms for least squares support vector machine and kernel
    ridge regression", Pattern Recognition 40 (2007).

    C. Nadeau, Y. Bengio, "Inference for the Generalization Error", Machine Learning 52 (2003): the standard error.

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
        X, y, sample_weight
            As in KernelRidge.fit.
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
        objects = in_memory(X) if any(encodes(kernel) for kernel in kernels) else X
        X, settings, rows, y, weights = self._checked_targets(X, y, sample_weight)
        objects = objects if self.transformer is None else X
        folds = checked_folds(self.cv, y, groups)
        folds.check_weights(weights)
        curve = checked_curve(self.train_sizes, folds, weights, groups, self.random_state)
        alphas = self._alphas(settings.kernel, rows, weights)
        kernels = [kernel.fitted(objects) if encodes(kernel) else kernel for kernel in kernels]
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
            interval_folds=self._folds_to_keep(y, folds),
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
        units = sizes_out_of_range(y)
        y = y if units is None else y / units
        means, units = np.average(y, axis=0, weights=weights), np.ones(y.shape[1]) if units is None else units
        variances = np.average((y - means) ** 2, axis=0, weights=weights)
        with np.errstate(over="ignore", under="ignore"):
            self._target_variances = variances * units * units
        r2 = self._r2(np.atleast_1d(self.best_score_), per_target=np.ndim(self.best_score_) > 0)
        advice = [] if hasattr(self, "optimum_") else list(self._edges())
        if not self.fit_intercept:
            advice += without_constant(means * units, np.sqrt(variances) * units, r2)
        self.advice_ = tuple(advice)
        if advice and hasattr(self, "solve_result_"):
            messages = (*self.solve_result_.messages, *self.advice_)
            self.solve_result_ = replace(self.solve_result_, messages=messages)
        for text in advice:
            make_progress(self.progress).note(text)
        return self

    def _edges(self) -> Iterator[str]:
        """Words for ends of the candidates, and of those with a score."""
        results, mean = self.cv_results_, self.cv_results_["mean_test_score"][:, None]
        scores = results.get("mean_test_score_per_target", mean)
        unscored = np.isnan(scores).any(axis=1)
        if unscored.any() and results["stopped"][unscored].all():
            remedy = GIVEN_UP
        else:
            remedy = BY_FACTORS if (results["iterations"][unscored] > 0).any() else UNDETERMINED
        return edges(results["params"], self.best_index_, scores, remedy)

    def _r2(self, scores: Array, *, per_target: bool = False) -> Array | None:
        """R² of scores, of all targets together or of each; None where scores are not squared errors."""
        variances = self._target_variances
        if self.scoring is not None or not ((variances > 0) & (variances < np.inf)).all():
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
        """Search where a kernel learns from the training rows: every fold has a kernel, and so a fit, of its own."""
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
        values, units = in_range(as_columns(y), score, per_target=per_target)
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
            units=units,
        )
        report = Report(len(alphas), len(folds))
        for f, test in enumerate(folds.test):
            rows = folds.training(f)
            every = {"alpha": np.repeat(alphas, t), "store": None, "tol": self.cv_tol, "uncertainty": False}
            model = self._ridge_with(kernel_settings(self, parameters) | every)
            w = None if weights is None else weights[rows]
            model.fit(_safe_indexing(X, rows), np.tile(values[rows], len(alphas)), sample_weight=w)
            predictions = model.predict(_safe_indexing(X, test)).reshape(len(test), len(alphas), t)
            report.take_fit(f, model.solve_result_, self.cv_tol)
            for a in range(len(alphas)):
                sheet.take(a, f, np.ascontiguousarray(predictions[:, a]))
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
        candidates, sheet = selected.candidates, selected.candidates[0].sheet
        values = np.concatenate([c.sheet.values for c in candidates])  # candidates × folds × targets
        self.cv_results_ = search_results(
            [{"alpha": float(alpha)} | kernel for kernel in grid for alpha in alphas],
            sheet.comparable(values),
            sheet.unit,
            has_splits=not candidates[0].sheet.is_loo,
            iterations=np.concatenate([c.report.iterations.max(axis=1) for c in candidates]),
            residual=np.concatenate([c.report.residuals.max(axis=1) for c in candidates]),
            stopped=np.concatenate([c.report.stopped for c in candidates]),
            seconds=np.repeat([c.report.seconds for c in candidates], len(alphas)),
        )
        if per_target:
            self.cv_results_["mean_test_score_per_target"] = sheet.of_given(values.mean(axis=1))
        self.best_index_: int | NDArray[np.intp] = indices if per_target else int(indices[0])
        self.alpha_: float | Array = alphas[chosen] if per_target else float(alphas[chosen[0]])
        self.best_score_: float | Array = selected.score
        settings = kernel_settings(self, grid[selected.kernel])
        sizes = np.abs(selected.score)
        if sheet.unit != 1.0 and not ((sizes >= np.finfo(float).tiny) & (sizes < np.inf)).all():
            warnings.warn(
                f"float64 does not hold squared errors of targets of about {sheet.unit:.0e}, and scores are 0 or -inf. "
                "The choice was made with targets divided by a power of two; to see scores, scale y towards 1",
                RuntimeWarning,
                stacklevel=3,
            )
        self.selection_plan_ = selected.plan
        for name in ("cv_predictions_", "learning_curve_", "optimum_", "_known_processes", *FITTED):
            if name not in ("feature_names_in_", *OF_INPUTS):
                self.__dict__.pop(name, None)  # of an earlier fit
        if curve is not None:
            scores = sheet.comparable(np.stack([c.sheet.values for c in candidates]))
            parts = sheet.comparable(np.stack([c.parts for c in candidates if c.parts is not None]))
            with np.errstate(invalid="ignore"):  # where scores are infinite
                self.learning_curve_ = curve_results(
                    grid, alphas, scores, parts, curve, selected.kernel, sheet.unit, is_per_target=per_target
                )
        if selected.optimum is not None:
            self.optimum_, self.alpha_ = selected.optimum, selected.optimum.alpha
            settings = {"kernel": selected.optimum.kernel}
        self.best_params_ = complete_params(self, KernelRidge, self.alpha_, settings)
        if selected.predictions is not None:
            self.cv_predictions_ = selected.predictions[:, 0] if is_vector else selected.predictions
