"""Kernel ridge regression with scikit-learn's interface, and the base of all regressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import r2_score
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import validate_data

from dkrr.checks import checked_alphas, flag, is_real, positive_or_none, shown
from dkrr.data import MemoryRows, Rows, as_rows, load_array, load_labels, load_targets, table_or_value, with_columns
from dkrr.data.arrays import FLOAT_DTYPES, is_mapped, is_plain, release_pages
from dkrr.data.rows import check_finite
from dkrr.data.watched import watched_data
from dkrr.errors import InputError
from dkrr.estimators.kernel_estimator import (
    KernelEstimator,
    is_local,
    named_error,
    refuse_other_kind,
)
from dkrr.estimators.search import check_groups, checked_folds
from dkrr.estimators.typed import MultiOutputMixin, RegressorMixin
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.fitting.growing_factor import Grown, GrownFactor, grow
from dkrr.fitting.intervals import CrossValidationIntervals
from dkrr.fitting.posteriors import Posteriors, Variances
from dkrr.fitting.prediction import Advance, at_once, by_blocks, is_in_blocks, predict
from dkrr.fitting.prediction_plans import Asked, plan_of_rows
from dkrr.fitting.requests import (
    INTERVAL_FOLDS,
    FitRequest,
    Learned,
    Targets,
    check_sizes,
    checked_weights,
    refuse_extreme_targets,
    refuse_extreme_weights,
)
from dkrr.fitting.run import Fit, fit
from dkrr.kernels import Kernel
from dkrr.planning.predictions import PredictionPlan
from dkrr.planning.uncertainty import UncertaintyPlan
from dkrr.rounding import exact_values
from dkrr.selection import Folds
from dkrr.typing import (
    DaskArray,
    FoldsLike,
    GroupsLike,
    InMemory,
    MaybeLazy,
    NumbersLike,
    Predictions,
    RowsLike,
    SupportsChunks,
    SupportsDaskGraph,
    TargetsLike,
    WeightsLike,
)

Array = NDArray[np.float64]

_making = Lock()


class RidgeRegressor(MultiOutputMixin, RegressorMixin, KernelEstimator):
    """A regression whose predictions are those of kernel ridge regression."""

    _setting_names: ClassVar[tuple[str, ...]] = (*KernelEstimator._setting_names, "uncertainty")

    uncertainty: bool | Literal["intervals"]
    intercept_: float | Array
    rkhs_norm_: float | Array
    n_iter_: int | None

    _known_posteriors: Posteriors | partial[Posteriors] | None = None
    """Posteriors of the last fit, or what makes them when they are first asked for; None on models that were saved
    without what these are made of."""
    _grown: Grown | None = None
    """What is kept of the rows of all calls of `partial_fit`; None after `fit`."""
    _folds: Folds | None = None
    """Folds of the search that chose the model."""
    _own_folds: Folds | None = None
    """Folds of the search whose last fit this is."""

    @overload
    def predict(
        self, X: SupportsChunks, return_std: Literal[False] = False, *, variance_scale: float | None = None
    ) -> DaskArray: ...

    @overload
    def predict(
        self, X: SupportsDaskGraph, return_std: Literal[False] = False, *, variance_scale: float | None = None
    ) -> Predictions: ...

    @overload
    def predict(
        self, X: InMemory, return_std: Literal[False] = False, *, variance_scale: float | None = None
    ) -> Array: ...

    @overload
    def predict(
        self, X: RowsLike, return_std: Literal[False] = False, *, variance_scale: float | None = None
    ) -> Predictions: ...

    @overload
    def predict(
        self, X: MaybeLazy, return_std: Literal[True], *, variance_scale: float | None = None
    ) -> tuple[Predictions, Predictions]: ...

    @overload
    def predict(
        self, X: InMemory, return_std: Literal[True], *, variance_scale: float | None = None
    ) -> tuple[Array, Array]: ...

    @overload
    def predict(
        self, X: RowsLike, return_std: Literal[True], *, variance_scale: float | None = None
    ) -> tuple[Predictions, Predictions]: ...

    @overload
    def predict(
        self, X: RowsLike, return_std: bool, *, variance_scale: float | None = None
    ) -> Predictions | tuple[Predictions, Predictions]: ...

    def predict(
        self, X: RowsLike, return_std: bool = False, *, variance_scale: float | None = None
    ) -> Predictions | tuple[Predictions, Predictions]:
        """Predict targets.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, or other objects that the kernel takes. If kernel == "precomputed": the kernel
            between new and training rows, of shape (n, n_samples).
        return_std : bool, default=False
            Whether to return standard deviations of f(x) as well; see Notes.
        variance_scale : float, optional
            s² > 0, by which k is multiplied, with `return_std` only; None: for every target the
            value at which its likelihood is largest.

        Returns
        -------
        mean : ndarray or lazy Dask array of shape (n,) or (n, n_targets)
            f(x) of every row and target; lazy for rows that are read in blocks.
        std : ndarray or lazy Dask array of the same shape
            Standard deviations of f(x); only with `return_std`.

        Raises
        ------
        InputError
            If the number of columns is not that of the training rows, or standard deviations are
            not known: of models that were saved without uncertainty=True, and with kernel ==
            "precomputed".
        MemoryLimitError
            If memory does not suffice for the standard deviation of one row.
        NotFiniteError
            If λ is so small that a variance is negative by more than rounding.

        Warns
        -----
        ConvergenceWarning
            If conjugate gradient finds a variance less accurately, or λ is so small that the digits
            of a factor do not suffice to know it to a thousandth.

        Notes
        -----
        Standard deviations are those of the Gaussian process with covariance s² k and noise of
        variance s² λ / wᵢ, whose mean is the model. Without ``uncertainty=True`` the first call
        factors the matrix of all rows, and keeps the factor. Where that is not affordable, or with
        solver="cg", conjugate gradient computes each with a relative error of at most 2.5e-4 (see
        `predict_variance_bounds`); `uncertainty_plan_` says why. Covariances between rows
        (``return_cov`` of scikit-learn's GaussianProcessRegressor) and samples (``sample_y``) are
        not available.
        """
        flag(return_std, "return_std")
        variance_scale, X = positive_or_none(variance_scale, "variance_scale"), table_or_value(X)
        if not return_std:
            if variance_scale is not None:
                raise InputError(
                    f"variance_scale is {variance_scale} and return_std is False; expected variance_scale only with "
                    "return_std=True: predictions themselves do not depend on it"
                )
            return self._predictions_of(self._scores(X))
        rows = self._new_rows(X)
        with self._displayed(rows, return_std=True) as (tell, tell_deviations):
            mean = self._predictions_of(predict(self._model, rows, tell))
            rows, compute = self._new_rows(X), self._variances(rows.shape[0], variance_scale).deviations
            return mean, self._by_blocks(rows, compute, 1, tell_deviations)[0]

    def _predictions_of(self, scores: Any) -> Any:
        return scores[:, 0] if self._is_vector else scores

    def score(self, X: RowsLike, y: TargetsLike, sample_weight: WeightsLike | None = None) -> float:
        """Coefficient of determination R² of the predictions; the mean over targets.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            Rows, as for `predict`.
        y : array-like, Dask array, Zarr array, path, or column of X, of shape (n,) or (n, n_targets)
            Their targets.
        sample_weight : float, array-like of shape (n,), or column of X, optional
            Weights ≥ 0; None: 1 for every row.

        Returns
        -------
        float
            At most 1.
        """
        X, y, sample_weight = with_columns(X, y, sample_weight)
        predicted, targets = np.asarray(self.predict(X)), load_array(y)
        if targets.shape not in (predicted.shape, (*predicted.shape, 1)):
            raise InputError(f"y has shape {targets.shape}; expected {predicted.shape}, that of the predictions of X")
        check_finite(targets, "y")
        weights = None if sample_weight is None else checked_weights(sample_weight, len(targets))
        return float(r2_score(targets, predicted, sample_weight=weights))

    @overload
    def predict_variance_bounds(
        self, X: MaybeLazy, *, variance_scale: float | None = None
    ) -> tuple[Predictions, Predictions]: ...

    @overload
    def predict_variance_bounds(self, X: InMemory, *, variance_scale: float | None = None) -> tuple[Array, Array]: ...

    @overload
    def predict_variance_bounds(
        self, X: RowsLike, *, variance_scale: float | None = None
    ) -> tuple[Predictions, Predictions]: ...

    def predict_variance_bounds(
        self, X: RowsLike, *, variance_scale: float | None = None
    ) -> tuple[Predictions, Predictions]:
        """Certified lower and upper bounds of the variances of f(x), whose roots `predict(X, return_std=True)` returns.

        They differ by at most a thousandth of the variance, unless the iterations of conjugate
        gradient or the digits of a factor do not suffice; a warning then says by how much. Standard
        deviations themselves are mostly more accurate.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `predict`.
        variance_scale : float, optional
            s² > 0, by which k is multiplied; None: for every target the value at which its
            likelihood is largest.

        Returns
        -------
        lower : ndarray or lazy Dask array of shape (n,) or (n, n_targets)
            Lower bounds of the variances; lazy for rows that are read in blocks.
        upper : ndarray or lazy Dask array of the same shape
            Upper bounds.

        Raises
        ------
        InputError, MemoryLimitError, NotFiniteError
            As `predict` with `return_std`.

        Warns
        -----
        ConvergenceWarning
            As `predict` with `return_std`.

        Notes
        -----
        The bounds hold for the Gaussian process with the given or profiled s², for K as it is
        computed in float64, and assume that the kernel is positive semidefinite. From a factor
        their difference is a bound of its rounding, about n eps k(x, x) for a row whose k is like
        that of few training rows: where λ is not larger than about 1e6 n eps k(x, x), that exceeds
        a thousandth of the variances near training rows, which are about λ / wᵢ.
        """
        variance_scale, X = positive_or_none(variance_scale, "variance_scale"), table_or_value(X)
        rows = self._new_rows(X)
        lower, upper = self._by_blocks(rows, self._variances(rows.shape[0], variance_scale).bounds, 2)
        return lower, upper

    def _variances(self, n_rows: int, variance_scale: float | None, block_rows: int | None = None) -> Variances:
        """Variances at new rows, by the method that takes least time for their number; see `Posteriors.variances`."""
        posteriors = self._posteriors()
        self._refuse_precomputed()
        return posteriors.variances(n_rows, variance_scale, block_rows)

    def _refuse_precomputed(self) -> None:
        """Refuse standard deviations without k(x, x)."""
        if self._model.kernel.is_precomputed:
            raise InputError(
                "kernel is 'precomputed', which does not give k(x, x) of new rows, and standard deviations need it; "
                "expected a kernel of dkrr or a function of rows; or use predict_interval, loo_residuals() or "
                "log_marginal_likelihood(), which do not need it"
            )

    def _by_blocks(
        self, rows: Rows, compute: Callable[..., NDArray[np.float64]], n_arrays: int, advance: Advance | None = None
    ) -> list[Any]:
        """Results of `compute` at new rows: arrays of shape (n,) or (n, n_targets), lazy as predictions are."""
        t = self._model.n_targets
        found = by_blocks(rows, n_arrays * t, compute) if is_in_blocks(rows) else at_once(rows, compute, advance)
        parts = [found[:, k * t : (k + 1) * t] for k in range(n_arrays)]
        return [part[:, 0] if self._is_vector else part for part in parts]

    @overload
    def predict_interval(
        self, X: MaybeLazy, coverage: float = 0.9, *, cv: FoldsLike | None = None, groups: GroupsLike | None = None
    ) -> tuple[Predictions, Predictions]: ...

    @overload
    def predict_interval(
        self, X: InMemory, coverage: float = 0.9, *, cv: FoldsLike | None = None, groups: GroupsLike | None = None
    ) -> tuple[Array, Array]: ...

    @overload
    def predict_interval(
        self, X: RowsLike, coverage: float = 0.9, *, cv: FoldsLike | None = None, groups: GroupsLike | None = None
    ) -> tuple[Predictions, Predictions]: ...

    def predict_interval(
        self, X: RowsLike, coverage: float = 0.9, *, cv: FoldsLike | None = None, groups: GroupsLike | None = None
    ) -> tuple[Predictions, Predictions]:
        """Intervals that hold new targets with about a given probability, without a model of the noise (CV+).

        The model without a fold gives the errors of predictions for its rows, which that model has
        not seen. The interval is between quantiles of the predictions of all these models, less and
        plus these errors. The first call computes the models, and shows its progress as `fit` does;
        they are kept for these folds, whatever the coverage.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, as for `predict`; also with kernel == "precomputed".
        coverage : float, default=0.9
            Probability, between 0 and 1.
        cv : int, splitter or iterable of (train, test), optional
            Folds that hold out every row once. None: those of the search (KernelRidgeCV), or 10
            consecutive ones.
        groups : array-like of shape (n_samples,), optional
            Groups of the training rows, for splitters that keep them together.

        Returns
        -------
        lower : ndarray or lazy Dask array of shape (n,) or (n, n_targets)
            Lower ends of the intervals; lazy for rows that are read in blocks.
        upper : ndarray or lazy Dask array of the same shape
            Upper ends.

        Raises
        ------
        InputError
            If the folds do not hold out every row once, or the model was saved without
            uncertainty=True.

        Notes
        -----
        The coverage assumes that new rows and training rows are exchangeable: not so if X drifts,
        or rows of one group are in several folds. It is a mean over all rows; where the noise
        depends on x, it is larger in some places than in others.

        The models of all folds follow from one factor; with a kernel that learns from the training
        rows (Nystroem, a bag of words) each is a separate fit, whose kernel has not seen the
        fold. A transformer is that of the fit to all rows.
        ``dkrr.save(model, path, uncertainty=True)`` saves the models of the folds that None takes.

        References
        ----------
        R. F. Barber, E. J. Candès, A. Ramdas, R. J. Tibshirani, "Predictive inference with the
        jackknife+", Ann. Statist. 49 (2021).
        """
        intervals, rows = self._intervals(coverage, cv, groups), self._new_rows(X)
        if intervals.encode is not None:
            rows = MemoryRows(intervals.encode(self._table(self._model.kernel, X, reset=False)))
        lower, upper = self._by_blocks(rows, intervals.bounds, 2)
        return lower, upper

    def _intervals(
        self, coverage: float, cv: Any = None, groups: Any = None, name: str = "coverage"
    ) -> CrossValidationIntervals:
        """Intervals with a given probability, of this name in messages."""
        coverage = checked_coverage(coverage, name)
        posteriors = self._posteriors()
        return posteriors.intervals(self._partition(cv, groups, posteriors.targets), coverage)

    def _partition(self, cv: Any, groups: Any, targets: NDArray[np.float64]) -> Any:
        """Rows of every fold of intervals."""
        folds = _interval_folds(cv, self._folds, targets, groups)
        if not folds.serve_intervals:
            raise InputError(
                f"cv={shown(cv)} does not hold out every row once, or trains on other rows than the rest; expected a "
                f"partition of the rows: give cv=10"
            )
        return folds.test

    def _prediction_plan(
        self, rows: Rows, *, probabilities: bool = False, return_std: bool = False, interval: float | None = None
    ) -> PredictionPlan:
        refuse_other_kind(self, {"probabilities": probabilities}, "a classifier such as KernelLogisticRegression")
        has_interval = interval is not None
        if has_interval:
            checked_coverage(interval, "interval")
        posteriors = self._posteriors() if return_std or has_interval else None
        if return_std:
            self._refuse_precomputed()
        folds = self._default_folds() if has_interval else ()
        n_columns = self._model.n_targets * (1 + return_std + 2 * has_interval)
        return plan_of_rows(self._model, rows, Asked(n_columns, posteriors, return_std, folds), self.memory_limit)

    def _default_folds(self) -> tuple[NDArray[np.intp], ...]:
        """Rows of each fold that `predict_interval` takes where none are given."""
        return _interval_folds(None, self._folds, self._posteriors().targets, None).test

    def _folds_to_keep(self, targets: NDArray[np.float64], own: Folds | None) -> tuple[NDArray[np.intp], ...]:
        """Folds without which a fit with "intervals" computes models as well: those of a search if they serve."""
        return _interval_folds(None, own, targets, None).test

    def log_marginal_likelihood(self) -> float | Array:
        """Logarithm of the marginal likelihood of the training targets, for the Gaussian process of the model.

        The mean of the process is the model, its covariance s² k and its noise s² λ / wᵢ, where s²
        makes the likelihood of each target largest; with `fit_intercept` it is the restricted
        likelihood. It is exact from a factor, which `predict` with ``return_std=True`` and
        `loo_residuals` share, and estimated by conjugate gradient where a factor is not affordable,
        or with solver="cg": `log_marginal_likelihood_std` is its standard error. The first call may
        take as long as the fit.

        Returns
        -------
        float or ndarray of shape (n_targets,)
            One for each target, to be compared between kernels and λ of the same targets; larger is
            better.

        Raises
        ------
        InputError
            If the model was saved without ``uncertainty=True``.
        """
        return self._plain(self._posteriors().log_likelihoods()[0])

    def log_marginal_likelihood_std(self) -> float | Array:
        """Standard error of `log_marginal_likelihood`; 0.0 where that is exact.

        Returns
        -------
        float or ndarray of shape (n_targets,)
            One for each target.

        Raises
        ------
        InputError
            If the model was saved without ``uncertainty=True``.
        """
        return self._plain(self._posteriors().log_likelihoods()[1])

    def _plain(self, values: Array) -> float | Array:
        """Numbers of every target, of shape (t,); one number for a vector of targets."""
        return float(values[0]) if self._is_vector else values

    def loo_residuals(self) -> Array:
        """Residual of every training row by the model without it, to find outliers and wrong targets.

        It follows from a Cholesky factor, whatever solver the fit took; the first call computes the
        factor where the fit has not left it. A transformer is that of the fit of all rows.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_targets)
            yᵢ − f₋ᵢ(xᵢ), where f₋ᵢ is the model that is fitted without row i.

        Raises
        ------
        InputError
            If the kernel learns from the training rows (Nystroem, a bag of words without vocabulary
            or idf), which would take a fit for every row, or the model was saved without
            ``uncertainty=True``.
        """
        found = self._posteriors().loo_residuals()
        return found[:, 0] if self._is_vector else found

    @property
    def uncertainty_plan_(self) -> UncertaintyPlan:
        """Plan of the last standard deviations, bounds or likelihood: from a factor or by conjugate gradient, and why.

        Unavailable before the first of these, where the fit or the saved model holds a factor, and
        in primal form, which always has one.
        """
        known = self._known_posteriors
        plan = known.plan if isinstance(known, Posteriors) else None
        if plan is None:
            raise AttributeError(
                "uncertainty_plan_ is not known; expected a call of predict(X, return_std=True) or "
                "log_marginal_likelihood() before, in dual form"
            )
        return plan

    def _made_posteriors(self) -> Posteriors | None:
        """Posteriors of the last fit, made if they were not asked for before; None where they are not known."""
        with _making:  # so that threads have the same ones, whose factor is made once
            if isinstance(self._known_posteriors, partial):
                self._known_posteriors = self._known_posteriors()
            return self._known_posteriors

    def _posteriors(self) -> Posteriors:
        """Posteriors of the last fit, with the limit of memory and the display that the estimator has now."""
        self._check_fitted()
        if self._grown is not None and not self._grown.keeps_rows:
            raise InputError(
                "the model was grown by partial_fit in primal form, which keeps sums and not the rows, and "
                "uncertainties need them; expected form='dual' from the first call on, or a model of all rows at once: "
                "give all rows to fit"
            )
        known = self._made_posteriors()
        if known is None:
            raise InputError(
                "the model was saved without its targets, and errors cannot be computed; expected one saved by "
                "dkrr.save(model, path, uncertainty=True) (--uncertainty of the command line), or fitted here: call fit"
            )
        return known.within(self.memory_limit, self.progress)

    def _training(self, X: Any, y: Any) -> tuple[Rows, NDArray[np.float64]]:
        if is_plain(X) and is_plain(y, min_dimensions=1) and len(X) == len(y):
            if not is_mapped(y):
                return MemoryRows(X), np.asarray(y, np.float64)
        elif is_local(X) and (y is None or is_local(y)):
            if y is not None:
                y = load_labels(y)  # of any type: scikit-learn says what is wrong with it
                if y.dtype.kind == "f":
                    check_finite(y, "y")  # names the row; scikit-learn does not
            with np.errstate(over="ignore", invalid="ignore"):  # scikit-learn sums targets of any size
                X, y = self._validated_pair(X, y)
        elif y is None:
            raise InputError("y is None; expected the targets")
        rows, targets = as_rows(X), load_targets(y)  # a table without rows is named, not the targets it was counted for
        if targets.ndim not in (1, 2) or 0 in targets.shape:
            raise InputError(f"y has shape {targets.shape}; expected (n_samples,) or (n_samples, n_targets)")
        return rows, targets

    def _validated_pair(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Rows and targets in memory as scikit-learn's checks return them; its errors name one of the two."""
        X, y = exact_values(X, "X"), exact_values(y, "y")
        try:
            return validate_data(  # type: ignore[no-any-return]
                self,
                X,
                y,
                accept_sparse="csr",
                dtype=FLOAT_DTYPES,
                multi_output=True,
                y_numeric=True,
                ensure_all_finite=False,
            )
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            self._validated(X, reset=True)
            raise named_error("y", error) from error

    def _take(self, model: FittedFunction, dual_coef: NDArray[np.float64] | None, *, is_vector: bool) -> None:
        """Set the fitted attributes."""
        self._is_vector = is_vector
        self._set_coefficients(model, dual_coef, 0 if is_vector else slice(None))
        shift, intercept = model.intercept_shift, model.intercept
        if shift is not None:  # of a kernel with an origin: users have that of the kernel about 0
            intercept = intercept + shift
        self.intercept_ = float(intercept[0]) if is_vector else intercept

    def _description(self) -> dict[str, Any]:
        return {"vector": self._is_vector}

    def _restore(self, function: FittedFunction, dual_coef: NDArray[np.float64] | None, found: dict[str, Any]) -> None:
        self._take(function, dual_coef, is_vector=bool(found["vector"]))

    def _set_learned(self, kernel: Kernel, X: Any) -> None:
        self._learned = Learned(kernel, partial(_safe_indexing, X))

    def _checked_targets(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Rows, NDArray[np.float64], Any]:
        """X as rows of numbers, settings, rows, targets that float64 can square, and sample weights."""
        self.__dict__.pop("_learned", None)  # of a fit that failed
        X, settings, rows, y, weights = self._checked_data(X, y, sample_weight)
        refuse_extreme_targets(y)
        refuse_extreme_weights(weights)
        if is_mapped(y):
            release_pages(y)  # they would count as memory of this process
        return X, settings, rows, y, weights

    def _take_fit(
        self, fitted: Fit, request: FitRequest, X: Any, *, is_vector: bool, found: Grown | None = None
    ) -> None:
        """Set the fitted attributes of a fit; with what is kept of the rows of one that grows."""
        (model,) = fitted.models
        self._grown, self._known_posteriors = found, model.posteriors
        assert model.norms is not None
        self._take(model.function, model.dual_coef, is_vector=is_vector)
        self.rkhs_norm_ = float(model.norms[0]) if is_vector else model.norms
        self.solve_result_ = model.result
        self.n_iter_ = model.result.iterations if fitted.plan.chosen.solver == "cg" else None
        self._finish(fitted, request.rows, X)
        if found is not None and not found.keeps_rows:
            del self.X_fit_
        if found is None and model.posteriors is None:
            targets = request.outputs
            assert isinstance(targets, Targets)
            request = replace(request, features=fitted.plan.chosen.features)
            data = watched_data(request.rows, targets.values, request.weights)
            self._known_posteriors = partial(Posteriors, request, model.function.kernel, data=data)


def checked_coverage(coverage: Any, name: str = "coverage") -> float:
    """Probability that intervals hold a new target, of this name in messages."""
    if not is_real(coverage) or not 0 < coverage < 1:
        raise InputError(f"{name} is {shown(coverage)}; expected a probability between 0 and 1, such as 0.9")
    return float(coverage)


def _interval_folds(cv: Any, own: Folds | None, targets: NDArray[np.float64], groups: Any) -> Folds:
    """Folds of intervals: those that are asked for as cv, or those of a search if they serve, or consecutive ones."""
    if cv is None and own is not None and own.serve_intervals:
        check_groups(groups, len(targets))
        return own
    return checked_folds(min(INTERVAL_FOLDS, len(targets)) if cv is None else cv, targets, groups)


def as_columns(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Targets of shape (n, t)."""
    return np.ascontiguousarray(y[:, None] if y.ndim == 1 else y)


@dataclass(eq=False, repr=False)
class KernelRidge(RidgeRegressor):
    """Exact kernel ridge regression, in memory, out of core or on a Dask cluster.

    Minimises Σᵢ wᵢ (yᵢ − f(xᵢ))² + λ ‖f‖² over the functions f of the kernel's space, plus a free
    constant with `fit_intercept`. The interface is that of scikit-learn; rows may also be in
    tables, files and arrays that do not fit in memory. A planner chooses how the fit is computed,
    by projected time, memory and disk: `dkrr.plan` shows it before the fit, and `plan_` after it.

    Parameters
    ----------
    alpha : float or array-like of shape (n_targets,), default=1.0
        λ ≥ 0, the regularisation strength, one for all targets or one for each; 0 is kernel least
        squares.
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
    fit_intercept : bool, default=False
        Whether to fit a constant that is not penalised.
    form : {"auto", "primal", "dual"}, default="auto"
        Unknowns of the linear systems: "primal" one weight for each feature (kernels with a finite
        feature map, and RBF kernels of at most three columns on a Fourier grid), "dual" one
        coefficient for each training row; "auto" takes the form that is projected to be faster
        within the limits.
    solver : {"auto", "cholesky", "cg"}, Cholesky or ConjugateGradient, default="auto"
        A Cholesky factorisation, or preconditioned conjugate gradient ("cg"); values of
        `dkrr.solvers` have their settings. "auto" takes the one that is projected to be faster
        within the limits; see Notes.
    tol : float, default=1e-8
        Largest relative residual of the dual system that conjugate gradient leaves, for every
        target: ‖√W (y − (K + λW⁻¹) α)‖ / ‖√W y‖. Cholesky reaches the level of rounding whatever
        the value.
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
        Path or URL of the run's Zarr store, which is kept: the same call resumes from it. None: a
        temporary store, or no store if the work fits in memory.
    uncertainty : bool or "intervals", default=False
        True: the fit keeps the Cholesky factor that `predict` with ``return_std=True``,
        `log_marginal_likelihood` and `loo_residuals` take; False: it is computed when it is first
        asked for. "intervals": the fit also computes the models that leave out folds, for
        `predict_interval`. See Notes.

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        α. Unavailable after a primal fit with λ = 0, which does not determine it.
    coef_ : ndarray of shape (D,) or (n_targets, D)
        w, the weights of the D features (of a Fourier grid those in the box of the rows), as of
        scikit-learn's linear models; only if the model predicts in primal form.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant that is added to predictions; 0 without `fit_intercept`.
    rkhs_norm_ : float or ndarray of shape (n_targets,)
        ‖f‖ in the kernel's space, without the intercept: ‖w‖ = √(αᵀKα). See Notes for values
        near 0.
    n_iter_ : int or None
        Number of iterations of conjugate gradient; None after a direct solve.
    X_fit_ : ndarray, scipy.sparse array, or as given to fit
        Training rows, or the Gram matrix if kernel == "precomputed"; unavailable on loaded models,
        as are `rkhs_norm_`, `n_iter_`, `plan_` and `solve_result_`.
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
    uncertainty_plan_ : UncertaintyPlan
        Whether the last standard deviations or likelihood came from a factor, and why; after the
        first of these.
    solve_result_ : SolveResult
        Status, true residual (`residual`; `residual_of` says of what), iterations of conjugate
        gradient, estimated condition number, messages, seconds, bytes and peak memory.

    See Also
    --------
    dkrr.KernelRidgeCV : Choose λ and the kernel by cross-validation.
    dkrr.KernelLogisticRegression : The model for classes.
    dkrr.plan : Plan of a fit, without carrying it out.
    dkrr.save : Save a fitted model.
    sklearn.kernel_ridge.KernelRidge : The dual form in memory, in scikit-learn.
    sklearn.linear_model.Ridge : Ridge regression, the linear kernel in primal form.
    sklearn.gaussian_process.GaussianProcessRegressor : The same mean, with a fit of the kernel.

    Notes
    -----
    Forms. The primal form solves (ΦᵀWΦ + λI) w = ΦᵀWy for one weight of each feature, the dual form
    (K + λW⁻¹) α = y for one coefficient of each training row; both give the same f. `plan_` says
    why one was chosen.

    Solvers. With "auto", Cholesky factors in float32 where λ allows it, and refines in float64 to
    the level of rounding. A fit begins with conjugate gradient where that is projected to take less
    than 0.8 of the time, and changes to a factor if its residuals show that this is faster; `plan_`
    and the messages of `solve_result_` say so. `tol` holds for conjugate gradient in either form;
    `solve_result_.residual` has what was reached.

    Uncertainty. With ``uncertainty=True`` the factor is in float64, and is kept in memory or in the
    store of the run: standard deviations, the likelihood and leave-one-out residuals follow without
    another factorisation, and `dkrr.save` with ``uncertainty=True`` only writes. The plan has its
    time, memory and disk. In dual form solver="auto" then factors in float64 where memory and disk
    allow. Where they do not, and with solver="cg", standard deviations are computed by conjugate
    gradient, and `plan_` says so, while "intervals" is refused, unless the kernel learns from the
    training rows (each model is then a separate fit).

    Transformers. A transformer counts each training row once, whatever its weight. It is fitted in
    one call if the rows are in memory, else block by block (StandardScaler and others with
    `partial_fit`, categories, means; a pass for every step of a Pipeline), or with the columns that
    it needs in memory. Rows are transformed a block at a time.

    Rounding. If `solve_result_.condition` is high, few digits of `dual_coef_` and `coef_` may be
    correct although predictions are accurate. Rounding in K hides values of αᵀKα below about
    ε √n Σ Kᵢᵢ αᵢ²; such a `rkhs_norm_` is given as 0. A message of `solve_result_` says either.

    References
    ----------
    C. Saunders, A. Gammerman, V. Vovk, "Ridge regression learning algorithm in dual variables",
    ICML 1998.

    K. P. Murphy, "Machine Learning: A Probabilistic Perspective", MIT Press 2012, chapter 14.4.3.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(10, 5)), rng.normal(size=10)
    >>> model = KernelRidge(alpha=1.0, kernel="rbf").fit(X, y)
    >>> model.plan_.form, model.dual_coef_.shape
    ('dual', (10,))
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    alpha: NumbersLike = 1.0
    _: KW_ONLY
    store: str | Path | None = None
    uncertainty: bool | Literal["intervals"] = False

    def fit(self, X: RowsLike, y: TargetsLike, sample_weight: WeightsLike | None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n_samples, n_features)
            Training rows; the Gram matrix (n_samples, n_samples) if kernel == "precomputed";
            documents, graphs, a table or other objects if the kernel takes these.
        y : ndarray, table, Dask or Zarr array, path, or column of X, of shape (n_samples,) or (n_samples, n_targets)
            Targets, the largest of each column 0 or from 1e-120 to 1e120 in size; with a table as X also
            names of its columns, which are then not part of X.
        sample_weight : float, array-like of shape (n_samples,), or column of X, optional
            wᵢ: 0 or from 1e-30 to 1e30, not all 0; None: 1 for every row.

        Returns
        -------
        KernelRidge
            The fitted estimator.

        Raises
        ------
        InputError
            If an argument cannot be used; the message says what was expected.
        PlanError
            If no plan stays within the memory limit or the disk.
        NotPositiveDefiniteError
            If the matrix is not positive definite; the message names λ and the row.
        NotFiniteError
            If the solution is outside the range of float64.
        StoreError
            If the store is damaged or belongs to another problem.

        Notes
        -----
        Targets in a .npy file of float64 in C order, given by its path, are not read into memory;
        other arrays that are lazy or stored are copied to a temporary file if they exceed 64 MiB.
        In primal form `dual_coef_` is then in a temporary file too, mapped into memory; in dual
        form wherever the plan has batches of targets.
        """
        X, settings, rows, y, weights = self._checked_targets(X, y, sample_weight)
        values = as_columns(y)
        targets = Targets(values, checked_alphas(self.alpha, values.shape[1]))
        learned = self.__dict__.pop("_learned", None)
        folds = self._folds_to_keep(values, self._own_folds) if self.uncertainty == "intervals" else ()
        request = FitRequest(settings, rows, targets, weights, None, learned, folds, Posteriors)
        self._take_fit(fit(request, self.progress), request, X, is_vector=y.ndim == 1)
        return self

    def partial_fit(self, X: RowsLike, y: TargetsLike, sample_weight: WeightsLike | None = None) -> Self:
        """Fit the model to the rows so far and to these: as `fit` of all of them, to rounding.

        The rows so far are those since the last `fit` or, without one, since the first call. In dual
        form the rows and a Cholesky factor are kept in memory, and m rows more take about the
        fraction 3 m / n of the operations of a fit of all n. In primal form only sums over the rows
        are kept, (D, D) numbers for D features, whatever the number of rows.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, n_features)
            New rows, with the columns of the first call.
        y : ndarray, table, Dask or Zarr array, path, or column of X, of shape (n,) or (n, n_targets)
            Their targets, as many as in the first call.
        sample_weight : float, array-like of shape (n,), or column of X, optional
            wᵢ ≥ 0, not all 0; None: 1 for every row.

        Returns
        -------
        KernelRidge
            The fitted estimator.

        Raises
        ------
        InputError
            If the kernel is "precomputed" or learns from the rows; if the kernel or `fit_intercept`
            are not those of the first call; for rows outside of the box of a Fourier grid; with
            `transformer` (but not FrozenEstimator of scikit-learn), `store`, `tile` or solver="cg";
            with form="dual" or `uncertainty` once the model is in primal form; for loaded models.
            The message says what to do.
        MemoryLimitError
            If the factor of all rows, or the sums, do not fit in memory.
        NotPositiveDefiniteError
            If the matrix is not positive definite, as with `alpha` = 0 and repeated rows.

        Warns
        -----
        ConvergenceWarning
            In dual form as `fit`; in primal form if rounding in the sums may change predictions by
            more than 1e-6 of the targets.

        Notes
        -----
        A call that raises leaves the model as it was, and may be repeated. Larger data grow in a
        store: ``fit`` of all rows with `store`, as often as there are more.

        Form. "auto" takes the dual form for kernels without explicit features (RBF and others),
        with `uncertainty`, and while there are fewer rows than features; then the primal form.
        Once a model is in primal form it remains there. RBF kernels of at most three columns take
        a Fourier grid with form="primal" only: rows outside of its box, which is that of the rows
        so far unless it is given, as ``kernel=FourierGrid(RBF(gamma=2.0), box=[(0.0, 1.0)])`` of
        `dkrr.features`, would be refused. Other features are those of the first call too: the
        centres of Nystroem stay (a message of `solve_result_` says so).

        Dual form. Attributes and methods are those after ``fit(uncertainty=True)``: standard
        deviations, the likelihood and leave-one-out residuals take the factor that is kept, and
        `solve_result_.residual` is the true one. The first call after `fit` factors all rows,
        unless there is a factor in float64 in memory: of ``uncertainty=True``, or of standard
        deviations. Another `alpha` means another factor: all rows are factored once more, and a
        message of `solve_result_` says so. Pickle keeps the rows, and not the factor, which the
        next call makes again.

        Primal form. `alpha` may be changed between calls by `set_params`: it is not part of the
        sums. `solve_result_.residual` is that of the normal equations, since a residual of the dual
        system needs all rows. Unavailable are `dual_coef_`, `X_fit_`, standard deviations,
        intervals, the likelihood and leave-one-out residuals. Pickle keeps the sums.

        To forget earlier rows by a factor γ in every call, give call k, from 0, the weights wᵢ γ⁻ᵏ
        and alpha = λ γ⁻ᵏ, with form="primal": that is the fit with weights wᵢ γᵐ of rows that are m
        calls old, and with λ. Call `fit` before the weights exceed 1e30.

        `plan_` has the time and memory of the call. A saved and loaded model predicts, and does not
        grow.

        References
        ----------
        T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance:
        analysis and recommendations", The American Statistician 37 (1983).

        Examples
        --------
        >>> import numpy as np
        >>> from dkrr import KernelRidge
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(900, 5)), rng.normal(size=900)
        >>> model = KernelRidge(kernel="rbf")
        >>> for day in range(3):
        ...     rows = slice(300 * day, 300 * (day + 1))
        ...     model = model.partial_fit(X[rows], y[rows])
        >>> again = KernelRidge(kernel="rbf").fit(X, y)
        >>> bool(np.allclose(model.predict(X), again.predict(X), rtol=1e-10))
        True
        """
        X, y, sample_weight = with_columns(X, y, sample_weight)
        kernel = self._growing_kernel()
        known = self._grown_so_far(kernel)
        if known is None:
            X, settings, rows, y, weights = self._checked_targets(X, y, sample_weight)
            if self.__dict__.pop("_learned", None) is not None:
                raise _learns(kernel)
        else:
            settings, rows = self._settings(kernel), self._new_rows(X)
            y = self._further_targets(y)
            check_sizes(kernel, rows, len(y))
            weights = checked_weights(sample_weight, len(y))
            refuse_extreme_weights(weights, is_further=True)
        values = as_columns(y)
        targets = Targets(values, checked_alphas(self.alpha, values.shape[1]))
        request = FitRequest(settings, rows, targets, weights)
        found, fitted = grow(known, request, kernel, self.progress)
        if isinstance(found, GrownFactor):
            request = found.posteriors.given
        self._take_fit(fitted, request, X, is_vector=y.ndim == 1, found=found)
        return self

    def _growing_kernel(self) -> Kernel:
        """Kernel of a model that may grow.

        Raises
        ------
        InputError
            If the parameters are of models that do not.
        """
        kernel, rest = self._kernel(), "give all rows to fit"
        if kernel.is_precomputed:
            raise InputError(
                f"kernel is 'precomputed', and partial_fit computes the kernel between the rows so far and new ones; "
                f"expected a kernel of dkrr or a function of rows, or {rest}"
            )
        if self.transformer is not None and not isinstance(self.transformer, FrozenEstimator):
            raise InputError(
                f"transformer is {shown(self.transformer)}, which learns from all rows; expected None or a fitted one, "
                f"FrozenEstimator(fitted) of sklearn.frozen: give transformed rows to partial_fit, or {rest}"
            )
        for name, unset in (("store", None), ("tile", None)):
            if (value := getattr(self, name)) is not unset:
                raise InputError(
                    f"{name} is {shown(value)}, and partial_fit keeps everything in the memory of this process; "
                    f"expected {name}={unset}, or {rest}, which grows the run of its store"
                )
        if self.uncertainty == "intervals":
            raise InputError(
                f"uncertainty is 'intervals', and partial_fit does not compute models without folds in every call; "
                f"expected True: predict_interval computes them when it is first called, or {rest}"
            )
        return kernel

    def _grown_so_far(self, kernel: Kernel) -> Grown | None:
        """What is kept of earlier rows, or those of the last fit; None without a model."""
        if "_model" not in vars(self):
            return None
        if "plan_" not in vars(self):
            raise InputError(
                "the model was loaded, and a saved model holds neither sums nor all of the fit; expected a model that "
                "was fitted here (pickle keeps what grows): give all rows to fit"
            )
        known = self._grown
        if known is None:
            posteriors = self._posteriors()
            if posteriors.given.learned is not None:
                raise _learns(posteriors.given.learned.kernel)
            known = GrownFactor.of_fit(kernel, posteriors)
        for name, old, new in (
            ("kernel", known.asked, kernel),
            ("fit_intercept", known.fit_intercept, self.fit_intercept),
        ):
            if old != new:
                raise InputError(
                    f"{name} is {shown(new)}, and the rows so far were fitted with {shown(old)}; expected no other "
                    f"than that in partial_fit: give all rows to fit"
                )
        return known

    def _further_targets(self, y: Any) -> NDArray[np.float64]:
        """Targets of further rows, as many as in the first call."""
        if y is None:
            raise InputError("y is None; expected the targets")
        targets, t = load_targets(y), self._model.n_targets
        if targets.ndim not in (1, 2) or targets.shape[1:] != (() if self._is_vector else (t,)):
            expected = "(n,)" if self._is_vector else f"(n, {t})"
            raise InputError(
                f"y has shape {targets.shape}; expected {expected}, as in the first call: give all rows to fit"
            )
        refuse_extreme_targets(targets)
        return targets


def _learns(kernel: Kernel) -> InputError:
    return InputError(
        f"kernel is {kernel!r}, which learns from all rows; expected one that is fixed before the first call: give "
        f"kernel.fitted(X), or all rows to fit"
    )
