"""`dkrr.plan`: the plan of a fit, from its data or from its sizes alone, and of predictions by a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

from dkrr.checks import (
    checked_alphas,
    checked_candidates,
    checked_count,
    checked_loss,
    checked_path,
    checked_tol,
    checked_train_sizes,
    checked_uncertainty,
    checked_whole,
    flag,
    is_real,
    n_dimensions,
    shown,
)
from dkrr.data import Rows, as_rows, in_memory, table_or_value, with_columns
from dkrr.data.open import is_in_blocks, place_of_targets
from dkrr.data.rows import scan
from dkrr.errors import InputError, InputTypeError
from dkrr.fitting.request_plans import FitChoice, settled
from dkrr.fitting.requests import (
    INTERVAL_FOLDS,
    Settings,
    check_content,
    check_sizes,
    checked_kernel,
    checked_likelihood,
    checked_weights,
    checked_width,
    fields_of_classes,
    fields_of_targets,
    problem_of_rows,
    refuse_extreme_weights,
)
from dkrr.fitting.sampled import with_bounding_box
from dkrr.fitting.search_plans import search_plan, within_store
from dkrr.kernels import Kernel
from dkrr.kernels.columns import learns
from dkrr.kernels.fourier_grid import grid_columns
from dkrr.kernels.kernel_features import feature_map, is_drawn, refuse_more_components_than_rows
from dkrr.kernels.names import candidate_grid, candidate_settings, warn_of_unused
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient
from dkrr.machine.detection import detect
from dkrr.planning import Plan
from dkrr.planning.facts import Box
from dkrr.planning.predictions import PredictionPlan
from dkrr.planning.problem import Problem
from dkrr.planning.searches import SelectionPlan
from dkrr.planning.selection import FoldSizes
from dkrr.typing import KernelLike, NumbersLike, RowsLike, SupportsPredict, TargetsLike, TransformerLike, WeightsLike

MAX_CANDIDATES = 10**6
"""No search has more values of λ."""
OF_NEW_ROWS = ("X", "model", "probabilities", "return_std", "interval", "memory_limit")
"""Arguments of the plan of predictions."""
MAX_FOLDS = 10**6
"""More folds are leave-one-out, or as good as it."""


class FitSettings(TypedDict, total=False):
    """Keywords of the plan of a fit or a search, for type checkers: those of `plan`."""

    n_samples: int | None
    n_features: int | None
    n_targets: int
    kernel: KernelLike | Sequence[KernelLike] | None
    gamma: NumbersLike | Sequence[NumbersLike | None] | None
    degree: NumbersLike
    coef0: NumbersLike
    kernel_params: Mapping[str, Any] | None
    alpha: NumbersLike
    fit_intercept: bool | None
    form: Literal["auto", "primal", "dual"]
    solver: Literal["auto", "cholesky", "cg"] | Cholesky | ConjugateGradient
    tol: float
    device: Literal["auto", "cpu", "cuda"]
    memory_limit: int | str | None
    tile: int | None
    store: str | Path | None
    workers: int | None
    worker_memory: int | str | None
    cores: int | None
    loss: Literal["squared", "logistic"]
    n_classes: int | None
    one_vs_rest: bool
    cv_tol: float
    train_sizes: NumbersLike | None
    transformer: TransformerLike | None
    extent: NumbersLike | None
    uncertainty: bool | Literal["intervals"]
    sample_weight: WeightsLike | None


@overload
def plan(
    X: RowsLike | None = None,
    y: TargetsLike | None = None,
    *,
    alphas: None = None,
    cv: None = None,
    **settings: Unpack[FitSettings],
) -> Plan: ...


@overload
def plan(
    X: RowsLike,
    *,
    model: SupportsPredict,
    probabilities: bool = False,
    return_std: bool = False,
    interval: float | None = None,
    memory_limit: int | str | None = None,
) -> PredictionPlan: ...


@overload
def plan(
    X: RowsLike | None = None,
    y: TargetsLike | None = None,
    *,
    alphas: NumbersLike | None = None,
    cv: int | Literal["loo"] | None = None,
    **settings: Unpack[FitSettings],
) -> SelectionPlan: ...


def plan(
    X: RowsLike | None = None,
    y: TargetsLike | None = None,
    *,
    n_samples: int | None = None,
    n_features: int | None = None,
    n_targets: int = 1,
    kernel: KernelLike | Sequence[KernelLike] | None = None,
    gamma: NumbersLike | Sequence[NumbersLike | None] | None = None,
    degree: NumbersLike = 3,
    coef0: NumbersLike = 1,
    kernel_params: Mapping[str, Any] | None = None,
    alpha: NumbersLike = 1.0,
    fit_intercept: bool | None = None,
    form: Literal["auto", "primal", "dual"] = "auto",
    solver: Literal["auto", "cholesky", "cg"] | Cholesky | ConjugateGradient = "auto",
    tol: float = 1e-8,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    memory_limit: int | str | None = None,
    tile: int | None = None,
    store: str | Path | None = None,
    workers: int | None = None,
    worker_memory: int | str | None = None,
    cores: int | None = None,
    loss: Literal["squared", "logistic"] = "squared",
    n_classes: int | None = None,
    one_vs_rest: bool = False,
    alphas: NumbersLike | None = None,
    cv: int | Literal["loo"] | None = None,
    cv_tol: float = 1e-3,
    train_sizes: NumbersLike | None = None,
    transformer: TransformerLike | None = None,
    extent: NumbersLike | None = None,
    uncertainty: bool | Literal["intervals"] = False,
    model: SupportsPredict | None = None,
    probabilities: bool = False,
    return_std: bool = False,
    interval: float | None = None,
    sample_weight: WeightsLike | None = None,
) -> Plan | SelectionPlan | PredictionPlan:
    """Plan of a fit, of a search or of predictions, without carrying it out.

    A plan of a fit or a search needs only sizes, not data. With `alphas` or `cv` it is that of a
    search, with `model` that of predictions of the rows X, else that of a fit.

    Parameters
    ----------
    X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n, d), optional
        Training rows, instead of n_samples and n_features, or with `model` new rows; the Gram
        matrix (n, n) if kernel == "precomputed". What fit refuses is refused: rows of up to 256 MiB
        are read whole. Of others a sample is read, and left to the fit is what takes a pass over
        all of them (NaN, whole numbers that float64 does not hold), and whether a Gram matrix is
        symmetric.
    y : ndarray, table, Dask array, Zarr array, path, or column of X, of shape (n,) or (n, n_targets), optional
        Targets or labels, instead of n_targets or n_classes; targets are used only if X is given,
        labels always.
    n_samples : int, optional
        Number of rows n, if X is not given.
    n_features : int, optional
        Number of columns d of X, if it is not given.
    n_targets : int, default=1
        Number of targets of a regression, if y is not given.
    kernel : str, Kernel, FeatureMap or callable, or a list of these, optional
        Name of a kernel as in scikit-learn, a value of dkrr.kernels or dkrr.features, or a function
        of two blocks of rows. Of a search a list has candidates, as those of the next three
        parameters. None: "linear" as in KernelRidge, and "rbf" of a search, as in KernelRidgeCV.
    gamma : float or list, optional
        γ > 0 of named kernels that have it, one for all columns or one for each; of a search also a
        list of candidates of either kind. None: 1 / d (1 for "chi2").
    degree : float or list of float, default=3
        Degree of the polynomial kernel.
    coef0 : float or list of float, default=1
        Constant of the polynomial and sigmoid kernels.
    kernel_params : dict, optional
        Keyword arguments of a kernel function, or further parameters of a named kernel.
    alpha : float or array-like, default=1.0
        λ. Regression: ≥ 0, one for all targets or one for each. Classification: > 0, or several for
        a path.
    fit_intercept : bool, optional
        Whether to fit a constant that is not penalised; None: only in a classification.
    form : {"auto", "primal", "dual"}, default="auto"
        Unknowns of the linear systems: "primal" weights of features, "dual" coefficients of rows,
        "auto" whichever is projected to be faster.
    solver : {"auto", "cholesky", "cg"}, Cholesky or ConjugateGradient, default="auto"
        Direct solver or conjugate gradient; "auto" takes whichever is projected to be faster.
    tol : float, default=1e-8
        Accuracy required of conjugate gradient (true relative residual), or of Newton's method
        (relative gradient).
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where products with K are computed, as for the estimators.
    memory_limit : int or str, optional
        Bytes, or text such as "4GiB", for the fit over all workers of one machine, or for the
        calling process if the work is done there. None: what the workers report, or 0.8 of the
        available memory.
    tile : int, optional
        Number of rows in a tile of the matrix; None: the planner chooses.
    store : str or Path, optional
        Path or URL of the Zarr store that the fit would be given; an unfinished run in it is
        resumed.
    workers : int, optional
        Worker processes on this machine; None: those of the ambient Dask client, else one for each
        core.
    worker_memory : int or str, optional
        Memory of each of the `workers`, bytes or text such as "4GiB": the plan is then for a
        cluster of these workers, which need not exist.
    cores : int, optional
        Threads of each of these workers, each as fast as a core of this machine; they share the
        worker's memory. None: 1. The plan says what else it assumes of the cluster, its store and
        its network.
    loss : {"squared", "logistic"}, default="squared"
        Whether to plan a KernelRidge or a KernelLogisticRegression.
    n_classes : int, optional
        Number of classes of a classification, if y is not given; None: 2.
    one_vs_rest : bool, default=False
        With more than two classes: a model of each class against the rest, not one softmax of all.
    alphas : int or array-like, optional
        Candidates of λ of a KernelRidgeCV or KernelLogisticRegressionCV, or their number.
    cv : int or "loo", optional
        Number of folds of a search; with it, or with `alphas`, the plan is that of the search, with
        a last fit.
    cv_tol : float, default=1e-3
        Accuracy required of conjugate gradient for the folds of a regression.
    train_sizes : array-like, optional
        Sizes of the learning curve of a search: fractions of the training rows, or numbers of rows.
    transformer : "standardize" or transformer of scikit-learn, optional
        What X passes through before the kernel (see KernelRidge): a copy of it is fitted to all
        rows, which are read.
    extent : float or sequence of float, optional
        Largest difference of two rows in each column, where an RBF kernel takes at most three: a
        Fourier grid depends on it. None: it is found in X, all of which is read once; without X no
        grid is considered.
    uncertainty : bool or "intervals", default=False
        What a KernelRidge, or the last fit of a search, is to keep for standard deviations and
        intervals, with its price.
    model : KernelRidge, KernelLogisticRegression or a search, optional
        Fitted or loaded estimator: the plan is that of its predictions of the new rows X, as
        `predict_to` carries it out. Of all other arguments only the next three and `memory_limit`
        may be given with it.
    probabilities : bool, default=False
        With `model`, a classifier: plan probabilities instead of labels.
    return_std : bool, default=False
        With `model`: plan the standard deviations of the predictions, too.
    interval : float, optional
        With `model`: plan intervals of this coverage, too.
    sample_weight : ndarray, table, path, or column of X, of shape (n,), optional
        Weights of the rows.

    Returns
    -------
    Plan, SelectionPlan or PredictionPlan
        What would be done, its cost, and the reasons; print it.

    Raises
    ------
    InputError
        If an argument cannot be used.
    PlanError
        If no plan stays within the limits; the message names the smallest sufficient limit.

    See Also
    --------
    dkrr.planning.Plan : The plan of a fit.
    dkrr.planning.SelectionPlan : The plan of a search.
    dkrr.planning.PredictionPlan : The plan of predictions.
    dkrr.KernelRidge : Kernel ridge regression.
    dkrr.KernelRidgeCV : Kernel ridge regression with a choice of λ and kernel.
    dkrr.calibrate : Measure this machine for plans.
    dkrr.predict_to : Write predictions to a file or a store.

    Examples
    --------
    >>> import dkrr
    >>> sizes = {"n_samples": 200_000, "n_features": 20}
    >>> plan = dkrr.plan(**sizes, kernel="rbf", memory_limit="8GiB", workers=2)
    >>> plan.form, plan.solver, plan.execution, plan.peak_bytes <= 8 * 2**30
    ('dual', 'cg', 'memory', True)
    >>> plan = dkrr.plan(**sizes, kernel="rbf", solver="cholesky", memory_limit="8GiB", workers=2)
    >>> plan.solver, plan.execution, plan.peak_bytes < 4 * 2**30
    ('cholesky', 'dask', True)
    >>> sizes = {"n_samples": 10**6, "n_features": 79}
    >>> plan = dkrr.plan(**sizes, kernel="rbf", workers=64, worker_memory="4GiB")  # a cluster to be rented
    >>> plan.chosen.n_workers, plan.execution
    (64, 'dask')
    >>> wide = dkrr.plan(**sizes, kernel="rbf", workers=64, worker_memory="16GiB", cores=4)
    >>> wide.chosen.place.slots, wide.seconds < plan.seconds
    (256, True)
    >>> sizes = {"n_samples": 10**8, "n_features": 2}  # positions within a unit square
    >>> plan = dkrr.plan(**sizes, kernel="rbf", gamma=50.0, extent=1.0)
    >>> plan.form, plan.dimension < 3000
    ('primal', True)
    >>> kernels = {"kernel": ["rbf", "laplacian"], "gamma": [0.1, 0.2]}
    >>> plan = dkrr.plan(n_samples=2000, n_features=9, alphas=[0.1, 1.0], cv=5, **kernels)  # a search
    >>> len(plan.kernels), plan.n_alphas, plan.seconds_range[0] < plan.seconds < plan.seconds_range[1]
    (4, 2, True)
    """
    if model is not None or probabilities is not False or return_std is not False or interval is not None:
        return _of_new_rows(locals())
    _check_rows_or_sizes(X, y, n_samples, n_features)
    is_regression = checked_loss(loss) == "squared"
    one_vs_rest = flag(one_vs_rest, "one_vs_rest")
    cv_tol, n_targets = checked_tol(cv_tol, "cv_tol"), checked_count(n_targets, "n_targets")
    n_classes = None if n_classes is None else checked_count(n_classes, "n_classes")
    is_search = alphas is not None or cv is not None
    if kernel is None:
        kernel = "rbf" if is_search else "linear"
    given = {"kernel": kernel, "gamma": gamma, "degree": degree, "coef0": coef0}
    kernels = _kernels(given, kernel_params, is_search=is_search)
    warn_of_unused(given, stacklevel=2)
    value = kernels[0]
    is_learning = is_drawn(value) or value.learns_values
    X, y, sample_weight = with_columns(X, y, sample_weight)
    if transformer is not None:
        X = _transformed(transformer, X, value, memory_limit)
    elif X is not None and value.encodes:
        X = in_memory(X)
        kernels = [one.fitted(X) for one in kernels]
        value = kernels[0]
        X = value.encode(X)
    settings = Settings.checked(
        kernel=value,
        fit_intercept=not is_regression if fit_intercept is None else fit_intercept,
        form=form,
        solver=solver,
        tol=tol,
        device=device,
        tile=tile,
        memory_limit=memory_limit,
        store=store,
    )
    uncertainty = _uncertainty_of(uncertainty, is_regression=is_regression)
    candidates, sizes = _candidates(alphas, cv, alpha)
    if sizes is not None and sizes.is_loo and not is_regression:
        raise InputError("cv is leave-one-out, which needs a fit for every row; expected a number of folds: give cv=5")
    rows = None if X is None else _training_rows(X)
    n, d = _sizes(n_samples, n_features) if rows is None else rows.shape
    likelihood = None if is_regression else checked_likelihood(y, n_classes, n, one_vs_rest=one_vs_rest)
    refuse_more_components_than_rows(value, n)
    value = value if rows is None else with_bounding_box(value, rows)
    if rows is None and y is not None and is_regression:
        raise InputError("y is given without X; expected X and y, or n_targets= instead of y")
    if likelihood is not None:
        path = np.unique(checked_path(np.atleast_1d(alpha if sizes is None else candidates)))
        fields = fields_of_classes(likelihood, tuple(path.tolist()))
    else:
        width = n_targets if y is None else checked_width(y, n)
        # One λ is that of all targets, of which there may be more than memory holds.
        fields = fields_of_targets(width, checked_alphas(alpha, 1 if n_dimensions(alpha) == 0 else width))
        if rows is not None and y is not None:
            fields |= place_of_targets(y)
    fields |= settings.problem_fields() | _checked_content(value, rows, sample_weight, is_read=transformer is not None)
    n_folds = 0
    if uncertainty == "intervals":
        n_folds = sizes.n_folds if sizes is not None and not sizes.is_loo else min(INTERVAL_FOLDS, n)
    left = {"uncertainty": uncertainty is not False, "interval_folds": n_folds}
    # Before the sample, some of whose memory stays in use.
    resources = detect(
        memory_limit,
        settings.store,
        workers,
        worker_memory=worker_memory,
        cores=cores,
        rows=None if rows is None else rows.url,
    )
    is_here = not resources.assumed and (X is not None or store is not None)
    resources = replace(resources, enforce_disk=is_here)
    fractions = () if train_sizes is None else _fractions(sizes, train_sizes, n)
    box = None if extent is None else _box(extent, value.resolved(d), d)
    if sizes is not None:
        every = [
            _problem(rows, one, n, d, fields | within_store(settings, f"kernel-{k}").problem_fields())
            for k, one in enumerate(kernels)
        ]
        every = [replace(one, alphas=candidates, tol=cv_tol if is_regression else tol) for one in every]
        of_kernels = [
            replace(sizes, are_learned=is_drawn(one) or learns(one), refit=is_regression, n_folds=sizes.n_folds or n)
            for one in kernels
        ]
        return search_plan(every, of_kernels, rows, resources, fractions, tol, left=left)
    problem = _problem(rows, value, n, d, fields | left | {"folds_are_fitted": n_folds > 0 and is_learning})
    return settled(FitChoice(problem.measured(box=box), resources), rows)


def _sizes(n_samples: Any, n_features: Any) -> tuple[int, int]:
    return checked_count(n_samples, "n_samples"), checked_count(n_features, "n_features")


def _check_rows_or_sizes(X: Any, y: Any, n_samples: Any, n_features: Any) -> None:
    """Refuse a model or sizes in the places of X and y, and sizes besides X."""
    if X is not None and not (n_samples is None and n_features is None):
        raise InputError("n_samples or n_features is given with X, which has its own; expected X, or the two sizes")
    if hasattr(X, "_prediction_plan"):
        raise InputTypeError(
            f"X is {shown(X)}, a model; expected rows and the model's arguments, kernel= and so on; predictions of a "
            "fitted one are planned by dkrr.plan(X, model=model)"
        )
    if not is_real(X):
        return
    n, d = (value if isinstance(value, Integral) else "..." for value in (X, y))
    raise InputTypeError(
        f"X is {shown(X)}, a number; expected rows, or sizes by their names: dkrr.plan(n_samples={n}, n_features={d})"
    )


def _training_rows(X: Any) -> Rows:
    """Rows of X; of arrays in memory a vector is refused, as by fit."""
    rows = as_rows(X)
    if rows.is_vector and not is_in_blocks(X):
        raise InputError(
            f"X has shape {rows.shape[:1]}; expected a matrix (samples × features), as fit does, or sizes by their "
            "names: dkrr.plan(n_samples=..., n_features=...)"
        )
    return rows


def _problem(rows: Rows | None, kernel: Kernel, n: int, d: int, fields: dict[str, Any]) -> Problem:
    """Problem of a fit to rows, or to a number of rows."""
    if rows is not None:
        return problem_of_rows(rows, kernel, **fields)
    known = kernel.resolved(d)
    return Problem(n=n, d=d, kernel=known, feature_map=feature_map(known, d), y_in_memory=False, **fields)


def _kernels(given: dict[str, Any], kernel_params: Any, *, is_search: bool) -> list[Kernel]:
    """Kernel of a fit, or all candidates of a search."""
    if not is_search:
        for name, value in given.items():
            if isinstance(value, list | tuple) and name != "gamma":
                raise InputError(
                    f"{name} is {shown(value)}, several candidates; expected one, or alphas= or cv= for the plan of a "
                    f"search among them (--alphas or --cv)"
                )
        return [checked_kernel(**given, kernel_params=kernel_params)]
    grid = candidate_grid(given, kernel_params)
    return [checked_kernel(**candidate_settings(given, kernel_params, parameters)) for parameters in grid]


def _uncertainty_of(uncertainty: Any, *, is_regression: bool) -> Any:
    """Checked `uncertainty` of a regression; raises InputError for a classification."""
    found = checked_uncertainty(uncertainty)
    if found is not False and not is_regression:
        raise InputError(
            f"uncertainty is {found!r} with loss='logistic'; expected False: only regressions have standard "
            f"deviations and intervals"
        )
    return found


def _checked_content(kernel: Kernel, rows: Rows | None, sample_weight: Any, *, is_read: bool) -> dict[str, Any]:
    """Fields of a problem that follow from weights, once rows and weights are what a fit takes.

    `is_read` says that a transformer has read all rows: so does the check.
    """
    if rows is None:
        if sample_weight is not None:
            raise InputError("sample_weight is given without X; expected X, y and sample_weight, or only sizes")
        return {}
    n = rows.shape[0]
    check_sizes(kernel, rows, n)
    if is_read:
        scan(rows, "X")
    else:
        check_content(rows, "X")
    weights = checked_weights(sample_weight, n)
    refuse_extreme_weights(weights)
    if weights is None:
        return {}
    return {"n_positive_weights": int(np.count_nonzero(weights)), "total_weight": float(weights.sum())}


def _box(extent: Any, kernel: Kernel, d: int) -> Box:
    """Box of rows that are so far apart."""
    columns = grid_columns(kernel, d)
    if not columns:
        raise InputError(f"extent is given with {kernel!r}; expected an RBF kernel of at most three columns, or None")
    expected = f"a number > 0, or one for each of the columns {columns}"
    lengths = [extent] if is_real(extent) else extent
    try:
        values = np.array([float(length) for length in lengths])
    except (TypeError, ValueError, OverflowError):
        values = np.array([np.nan])
    values = np.repeat(values, len(columns)) if len(values) == 1 else values
    if len(values) != len(columns) or not (np.isfinite(values) & (values > 0)).all():
        raise InputError(f"extent is {shown(extent)}; expected {expected}")
    return tuple((0.0, length) for length in values.tolist())


def _of_new_rows(given: dict[str, Any]) -> PredictionPlan:
    """Plan of predictions, from the arguments of `plan`."""
    model, X = given["model"], given["X"]
    if not hasattr(model, "_prediction_plan"):
        what = f"model is {shown(model)}"
        if model is None:
            asked_for = next(name for name in OF_NEW_ROWS[2:] if given[name] is not None and given[name] is not False)
            what = f"{asked_for} is given without model"
        raise InputError(f"{what}; expected a fitted estimator of dkrr, or one that dkrr.load has loaded, as model")
    for name, parameter in signature(plan).parameters.items():
        if name not in OF_NEW_ROWS and given[name] is not parameter.default:
            raise InputError(
                f"{name} is given with model, whose fit is done; expected X, the rows to predict, and of the other "
                f"arguments probabilities, return_std, interval and memory_limit only"
            )
    model._check_fitted()
    if X is None:
        raise InputError("model is given without X; expected X, the rows to predict")
    asked = {name: flag(given[name], name) for name in ("probabilities", "return_std")}
    model = model._limited(given["memory_limit"])
    rows = model._new_rows(model._known_columns(table_or_value(X)))
    found: PredictionPlan = model._prediction_plan(rows, **asked, interval=given["interval"])
    return found


def _transformed(transformer: Any, X: Any, kernel: Kernel, memory_limit: Any) -> Any:
    """Rows after a copy of a transformer that is fitted to them."""
    from dkrr.data.transformers import checked_transformer, fitted_transformer, inputs_of, transformed_inputs

    if X is None:
        raise InputError("transformer is given without X; expected X, or n_samples and n_features of the rows after it")
    unfitted, inputs = checked_transformer(transformer, kernel), inputs_of(X)
    return transformed_inputs(fitted_transformer(unfitted, inputs, memory_limit), inputs)


def _candidates(alphas: Any, cv: Any, alpha: Any) -> tuple[tuple[float, ...], FoldSizes | None]:
    """Candidates of λ in ascending order, and the folds; None without a search."""
    if alphas is None and cv is None:
        return (), None
    if isinstance(alphas, int | np.integer) and is_real(alphas):
        expected = "a number of candidates of at least 1, or the candidates"
        count = checked_whole(alphas, "alphas", expected, MAX_CANDIDATES)
        values = np.geomspace(1e-5, 1e2, count)
    else:
        values = checked_candidates(alpha if alphas is None else alphas)
    if isinstance(cv, str) and cv == "loo":
        return tuple(sorted(set(values.tolist()))), FoldSizes(0, is_loo=True)
    expected = "a number of folds of at least 2, or 'loo'"
    folds = checked_whole(5 if cv is None else cv, "cv", expected, MAX_FOLDS)
    if folds < 2:
        raise InputError(f"cv is {shown(cv)}; expected {expected}")
    return tuple(sorted(set(values.tolist()))), FoldSizes(folds)


def _fractions(sizes: FoldSizes | None, train_sizes: Any, n: int) -> tuple[float, ...]:
    """Parts of a learning curve over the training rows of a fold, of n rows."""
    wanted = np.unique(checked_train_sizes(train_sizes)).astype(np.float64)
    if sizes is None or sizes.is_loo:
        raise InputError("train_sizes is given without folds; expected a number of folds: give cv=5")
    n_training = n - n / sizes.n_folds
    fractions = wanted[wanted < 1] if wanted[0] < 1 else wanted / n_training
    if fractions[-1] >= 1:
        raise InputError(
            f"train_sizes has {wanted[-1]:g}, and {sizes.n_folds} folds of {n:,} rows train on {int(n_training):,}; "
            f"expected fewer: all of them are always the last size"
        )
    return tuple((np.floor(fractions * n_training) / n_training).tolist())  # whole rows
