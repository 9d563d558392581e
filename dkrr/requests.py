"""From a user's arguments to a checked problem and its plan."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import InputError, StoreError
from dkrr.features import FeatureMap, feature_map
from dkrr.features.descriptions import refuse_more_components_than_rows
from dkrr.kernels import CallableKernel, Kernel, as_kernel
from dkrr.kernels.columns import encodes
from dkrr.linalg.spectrum import SAMPLE, estimated_spectrum
from dkrr.machine import detect
from dkrr.planning import Layout, Plan, Problem, make_plan
from dkrr.planning.problem import Form, Loss, Spectrum
from dkrr.rows import DaskRows, Rows, as_rows, load_array, load_labels
from dkrr.rows.open import open_path
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.tiles import RunStore
from dkrr.tiles.mapped import is_mapped

SMALLEST_TOL = 1e-15
SAMPLED_FROM = 4 * SAMPLE
"""Rows from which the spectrum is estimated on a sample: below, the whole solve is about as short."""
SAMPLED_BYTES = 64 * 2**20
"""Most memory that the rows of a sample may take: planning has no part of a memory limit."""


def plan(
    X: Any = None,
    y: Any = None,
    *,
    n: int | None = None,
    d: int | None = None,
    n_targets: int = 1,
    kernel: Any = "linear",
    gamma: float | None = None,
    degree: float = 3,
    coef0: float = 1,
    kernel_params: dict[str, Any] | None = None,
    alpha: Any = 1.0,
    fit_intercept: bool | None = None,
    form: str = "auto",
    solver: Any = "auto",
    tol: float = 1e-8,
    memory_limit: int | str | None = None,
    tile: int | None = None,
    store: str | Path | None = None,
    workers: int | None = None,
    loss: str = "squared",
    n_classes: int | None = None,
    multi_class: str = "multinomial",
) -> Plan:
    """Plan of a fit, without doing it; needs no data, only sizes.

    Parameters
    ----------
    X, y : as in KernelRidge.fit, optional
        Instead of n, d and n_targets.
    n, d, n_targets : int
        Rows, columns and targets, instead of X and y.
    kernel, gamma, degree, coef0, kernel_params, alpha, fit_intercept, form, solver, tol, memory_limit,
    tile, store
        As in KernelRidge; fit_intercept=None is that estimator's default.
    workers : int, optional
        Worker processes on this machine; None takes the ambient Dask client's, else one for each core.
    loss : {"squared", "logistic"}
        Of KernelRidge, or of KernelLogisticRegression.
    n_classes : int, optional
        Of a classification, where `y` does not say it; None: 2.
    multi_class : {"multinomial", "ovr"}
        As in KernelLogisticRegression.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        If an argument cannot be used.
    PlanError
        If no plan stays within the limits; the message names the smallest limit that would do.

    Examples
    --------
    >>> import dkrr
    >>> plan = dkrr.plan(n=200_000, d=20, kernel="rbf", memory_limit="8GiB", workers=2)
    >>> plan.form, plan.solver, plan.execution, plan.peak_bytes <= 8 * 2**30
    ('dual', 'cg', 'memory', True)
    >>> plan = dkrr.plan(n=200_000, d=20, kernel="rbf", solver="cholesky", memory_limit="8GiB", workers=2)
    >>> plan.solver, plan.execution, plan.peak_bytes < 4 * 2**30
    ('cholesky', 'dask', True)
    """
    if loss not in get_args(Loss):
        raise InputError(f"loss={loss!r} is unknown; use 'squared' (KernelRidge) or 'logistic'")
    value = checked_kernel(kernel, gamma=gamma, degree=degree, coef0=coef0, kernel_params=kernel_params)
    if X is not None and encodes(value):
        value = value.fitted(X)
        X = value.encode(X)
    settings: dict[str, Any] = {
        "fit_intercept": loss == "logistic" if fit_intercept is None else bool(fit_intercept),
        "form": checked_form(form),
        "tile": checked_tile(tile),
        "solver": checked_solver(solver),
        "tol": checked_tol(tol),
        "keeps_store": store is not None,
        "layout": None if store is None else stored_layout(str(store)),
    }
    columns = n_targets
    if loss == "logistic":
        columns, settings["is_coupled"] = _columns_of_classes(y, n_classes, multi_class)
        settings["loss"] = loss
    if X is not None:
        rows = as_rows(X)
        refuse_more_components_than_rows(value, rows.shape[0])
        targets = columns if y is None or loss == "logistic" else _width(y)
        alphas = checked_alphas(alpha, targets) if loss == "squared" else np.array(checked_path(np.atleast_1d(alpha)))
        settings |= {} if y is None or loss == "logistic" else place_of_targets(y)
        problem = Problem.of_rows(rows, value, n_targets=targets, alphas=tuple(np.unique(alphas).tolist()), **settings)
    else:
        n, d, targets = (_size(v, name) for v, name in ((n, "n"), (d, "d"), (columns, "n_targets")))
        refuse_more_components_than_rows(value, n)
        alphas = checked_alphas(alpha, targets) if loss == "squared" else np.array(checked_path(np.atleast_1d(alpha)))
        value = value.resolved(d)
        problem = Problem(
            n=n,
            d=d,
            n_targets=targets,
            kernel=value,
            feature_map=feature_map(value, d),
            y_in_memory=False,
            alphas=tuple(np.unique(alphas).tolist()),
            **settings,
        )
    resources = detect(memory_limit, None if store is None else str(store), workers)
    if X is not None:
        problem = _with_spectrum(problem, rows)
    return make_plan(problem, replace(resources, enforce_disk=X is not None or store is not None))


def plan_for_rows(rows: Rows, kernel: Kernel, memory_limit: Any, store: str | None, **settings: Any) -> Plan:
    """Plan of a fit whose arguments have been checked; `settings` are fields of Problem."""
    refuse_more_components_than_rows(kernel, rows.shape[0])
    layout = None if store is None else stored_layout(store)
    problem = Problem.of_rows(rows, kernel, keeps_store=store is not None, layout=layout, **settings)
    resources = detect(memory_limit, store)  # before the sample, which leaves some memory with the process
    return make_plan(_with_spectrum(problem, rows), resources)


def _with_spectrum(problem: Problem, rows: Rows) -> Problem:
    """The same with its spectrum estimated, where conjugate gradient may be chosen and a sample costs little."""
    p = problem
    wanted = isinstance(p.solver, ConjugateGradient) and not isinstance(p.solver.preconditioner, Float32Cholesky)
    possible = p.solver is None and p.kernel.has_unit_diagonal and min(p.alphas) > 0
    is_costly = p.kernel.is_precomputed or isinstance(p.kernel, CallableKernel) or isinstance(rows, DaskRows)
    is_costly = is_costly or SAMPLE * p.bytes_of_row > SAMPLED_BYTES
    if p.form == "primal" or p.n < SAMPLED_FROM or is_costly or not (wanted or possible):
        return problem
    found = estimated_spectrum(p.kernel, rows)
    return problem if found is None else replace(problem, spectrum=Spectrum(*found))


def stored_layout(store: str) -> Layout | None:
    """Layout of the run that a store holds; None if it holds none.

    Raises
    ------
    StoreError
        If something else is there.
    """
    found = RunStore(store).description()
    if found is None or found["fingerprint"] is None:
        return None
    if found["layout"].get("form") not in get_args(Form):
        raise StoreError(f"{store} holds a Gram matrix (dkrr.gram), not a fit; give another store=")
    try:
        return Layout(**found["layout"])
    except TypeError as error:
        raise StoreError(f"the run in {store} was begun by another version of dkrr; give another store=") from error


def checked_kernel(kernel: Any, **settings: Any) -> Kernel:
    """Kernel that was asked for, by any argument of `as_kernel` or by a feature map in its place."""
    return as_kernel(kernel.kernel() if isinstance(kernel, FeatureMap) else kernel, **settings)


def checked_form(form: Any) -> Form | None:
    """Form that was asked for; None for "auto"."""
    if form not in ("auto", *get_args(Form)):
        raise InputError(f"form={form!r} is unknown; use 'auto', 'primal' or 'dual'")
    return None if form == "auto" else form


def checked_solver(solver: Any) -> Cholesky | ConjugateGradient | None:
    """Solver that was asked for; None for "auto"."""
    if isinstance(solver, Cholesky | ConjugateGradient):
        return solver
    named: dict[str, Cholesky | ConjugateGradient | None] = {
        "auto": None,
        "cholesky": Cholesky(),
        "cg": ConjugateGradient(),
    }
    if not isinstance(solver, str) or solver not in named:
        raise InputError(
            f"solver={solver!r} is unknown; use 'auto', 'cholesky', 'cg', dkrr.solvers.Cholesky() or "
            f"dkrr.solvers.ConjugateGradient(...)"
        )
    return named[solver]


def checked_tol(tol: Any) -> float:
    """Relative residual that was asked for.

    Raises
    ------
    InputError
        If it is not a number between what float64 can mean and 1.
    """
    number = isinstance(tol, float | int | np.floating | np.integer) and not isinstance(tol, bool)
    if not number or not SMALLEST_TOL <= tol < 1:
        raise InputError(
            f"tol={tol!r} must be a relative residual of at least {SMALLEST_TOL:g} (float64 has no digits below) and "
            f"less than 1"
        )
    return float(tol)


def checked_tile(tile: Any) -> int | None:
    """Tile size that was asked for."""
    if tile is None:
        return None
    if isinstance(tile, bool) or not isinstance(tile, int | np.integer) or tile < 1:
        raise InputError(f"tile={tile!r} must be a whole number of rows, at least 1, or None")
    return int(tile)


def checked_alphas(alpha: Any, n_targets: int) -> NDArray[np.float64]:
    """λ of every target, of shape (n_targets,).

    Raises
    ------
    InputError
        If a value is negative or not finite, or the shape is neither () nor (n_targets,).
    """
    try:
        values = np.asarray(alpha, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"alpha={alpha!r} must be a number, or one for each target") from error
    if values.ndim > 1 or values.size not in (1, n_targets):
        raise InputError(f"alpha has shape {values.shape}; expected a number, or shape ({n_targets},): one a target")
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(f"alpha == {alpha}, must be >= 0 and finite; 0 is kernel least squares")
    return np.broadcast_to(values.ravel(), (n_targets,)).copy()


def checked_path(alphas: Any) -> tuple[float, ...]:
    """Values of λ of a logistic regression, one model after the other.

    Raises
    ------
    InputError
        If there is none, or one is not a finite number > 0.
    """
    try:
        values = np.asarray(alphas, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"alpha={alphas!r} must be a number > 0 (and alphas a sequence of them)") from error
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"alpha has shape {values.shape[1:] or values.shape}; expected one number > 0 for a model")
    if not (np.isfinite(values) & (values > 0)).all():
        bad = values[~(np.isfinite(values) & (values > 0))][0]
        raise InputError(
            f"alpha == {bad:g}, must be > 0 and finite: without a penalty the solution of separable classes is infinite"
        )
    return tuple(values.tolist())


def checked_max_iter(max_iter: Any) -> int:
    """Steps of Newton's method that are allowed."""
    if isinstance(max_iter, bool) or not isinstance(max_iter, int | np.integer) or max_iter < 1:
        raise InputError(f"max_iter={max_iter!r} must be a whole number of Newton steps, at least 1")
    return int(max_iter)


def checked_weights(sample_weight: Any, n: int) -> NDArray[np.float64] | None:
    """Sample weights of shape (n,), or None where all are 1.

    Raises
    ------
    InputError
        If the shape is wrong, or a weight is negative or not finite, or all are 0.
    """
    if sample_weight is None:
        return None
    weights = load_array(sample_weight, "sample_weight")
    if weights.ndim == 0:
        weights = np.full(n, float(weights))
    if weights.shape != (n,):
        raise InputError(f"sample_weight has shape {weights.shape}; expected ({n},), one for each row of X")
    if not np.isfinite(weights).all() or (weights < 0).any():
        row = int(np.argmin(np.where(np.isfinite(weights), weights, -np.inf)))
        raise InputError(f"sample_weight must be finite and >= 0; row {row} has {weights[row]}")
    if not (weights > 0).any():
        raise InputError("sample_weight is zero everywhere; at least one row must count")
    return None if (weights == 1).all() else weights


def checked_multi_class(multi_class: Any) -> bool:
    """Whether more than two classes make one softmax."""
    if multi_class not in ("multinomial", "ovr"):
        raise InputError(f"multi_class={multi_class!r} is unknown; use 'multinomial' or 'ovr'")
    return bool(multi_class == "multinomial")


def _columns_of_classes(y: Any, n_classes: int | None, multi_class: str) -> tuple[int, bool]:
    """Columns of scores, and whether they are one softmax."""
    is_softmax = checked_multi_class(multi_class)
    if y is not None:
        labels = load_labels(y)
        if labels.dtype.kind == "f" and (labels != np.floor(labels)).any():
            raise InputError("y holds no labels of classes but continuous numbers; leave loss='squared' for those")
        try:
            n_classes = len(np.unique(labels))
        except TypeError as error:
            raise InputError(f"y has labels of mixed types, or missing ones: {error}") from error
        if n_classes < 2:
            raise InputError("y has 1 class; a classifier needs samples of at least 2 classes")
    n_classes = 2 if n_classes is None else n_classes
    if _size(n_classes, "n_classes") < 2:
        raise InputError(f"n_classes={n_classes!r} must be at least 2")
    return (1, False) if n_classes == 2 else (n_classes, is_softmax)


def place_of_targets(y: Any) -> dict[str, Any]:
    """Fields of Problem that say where the targets are: a file of float64 in C order is used as it is."""
    if isinstance(y, str | Path):
        y = open_path(str(y), "y")
    mapped = is_mapped(y) and y.dtype == np.float64 and y.flags.c_contiguous
    return {"y_in_memory": isinstance(y, np.ndarray) and not mapped, "y_is_mapped": mapped}


def _width(y: Any) -> int:
    if isinstance(y, str | Path):
        return as_rows(y, "y").shape[1]
    shape = np.shape(y) if not hasattr(y, "shape") else y.shape
    return int(shape[1]) if len(shape) == 2 else 1


def _size(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name}={value!r} must be a whole number, at least 1 (or give X and y instead of sizes)")
    return int(value)
