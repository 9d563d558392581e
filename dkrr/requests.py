"""What is asked for: settings, data and targets of a fit, and the plan for it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import numpy as np
from numpy.typing import NDArray

from dkrr.arguments import (
    checked_alphas,
    checked_count,
    checked_form,
    checked_kernel,
    checked_multi_class,
    checked_path,
    checked_solver,
    checked_tile,
    checked_tol,
)
from dkrr.errors import InputError, StoreError
from dkrr.features import feature_map
from dkrr.features.descriptions import refuse_more_components_than_rows
from dkrr.kernels import CallableKernel, Kernel
from dkrr.kernels.columns import encodes
from dkrr.linalg.likelihood import Bernoulli, Likelihood, Softmax
from dkrr.linalg.spectrum import MAX_SAMPLE_BYTES, MIN_SAMPLED_ROWS, SAMPLE, estimated_spectrum
from dkrr.machine import detect
from dkrr.planning import Layout, Plan, Problem, make_plan
from dkrr.planning.problem import Form, Loss, Spectrum
from dkrr.rows import DaskRows, Rows, as_rows, load_labels
from dkrr.rows.open import open_path
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky, Status
from dkrr.solvers.newton import Point
from dkrr.tiles import RunStore
from dkrr.tiles.mapped import is_mapped

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """Checked settings that both estimators and `dkrr.plan` have."""

    kernel: Kernel
    fit_intercept: bool
    form: Form | None
    """None: the planner chooses."""
    solver: Cholesky | ConjugateGradient | None
    """None: the planner chooses."""
    tol: float
    tile: int | None
    """None: the planner chooses."""
    memory_limit: int | str | None
    store: str | None
    """Store that the user gave; None: a temporary one."""
    max_iter: int = 100
    """Newton steps of kernel logistic regression."""

    @classmethod
    def checked(
        cls,
        *,
        kernel: Kernel,
        fit_intercept: Any,
        form: Any,
        solver: Any,
        tol: Any,
        tile: Any,
        memory_limit: Any,
        store: Any,
    ) -> Self:
        """Settings from a user's arguments.

        Raises
        ------
        InputError
            If one cannot be used.
        """
        return cls(
            kernel=kernel,
            fit_intercept=bool(fit_intercept),
            form=checked_form(form),
            tile=checked_tile(tile),
            solver=checked_solver(solver),
            tol=checked_tol(tol),
            memory_limit=memory_limit,
            store=None if store is None else str(store),
        )

    def problem_fields(self) -> dict[str, Any]:
        """Fields of Problem that they determine."""
        return {
            "fit_intercept": self.fit_intercept,
            "form": self.form,
            "tile": self.tile,
            "solver": self.solver,
            "tol": self.tol,
            "keeps_store": self.store is not None,
            "layout": None if self.store is None else stored_layout(self.store),
        }


@dataclass(frozen=True)
class Targets:
    """Targets of a ridge regression."""

    values: Array
    """y, of shape (n, t)."""
    alphas: Array
    """λ of every target, of shape (t,)."""

    retried: ClassVar[tuple[Status, ...]] = (Status.STALLED, Status.MAX_ITERATIONS)
    """Outcomes of conjugate gradient, where the planner chose it, after which a direct solver takes its place."""
    retry_message: ClassVar[str] = "conjugate gradient stopped at a residual of {residual:.1e}: factoring instead"

    def problem_fields(self) -> dict[str, Any]:
        """Fields of Problem that they determine."""
        return _fields_of_targets(self.values.shape[1], self.alphas) | place_of_targets(self.values)


@dataclass(frozen=True)
class Labels:
    """Labels of a classification."""

    codes: NDArray[np.intp]
    """Number of each row's class, of shape (n,)."""
    classes: NDArray[Any]
    """Labels in order, of shape (n_classes,)."""
    alphas: tuple[float, ...]
    """λ, one model after the other."""
    is_multinomial: bool
    """More than two classes are one softmax, not a model for each."""

    retried: ClassVar[tuple[Status, ...]] = (Status.STALLED,)
    retry_message: ClassVar[str] = (
        "Newton's method with conjugate gradient stopped at a relative gradient of {residual:.1e}: factoring"
    )

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of the labels."""
        return likelihood_of(len(self.classes), is_multinomial=self.is_multinomial)

    def problem_fields(self) -> dict[str, Any]:
        """Fields of Problem that they determine."""
        return _fields_of_classes(self.likelihood, self.alphas)


@dataclass(frozen=True)
class WarmStart:
    """Solution of an earlier classification with the same classes."""

    point: Point
    plan: Plan

    def for_plan(self, plan: Plan) -> Point | None:
        """Point to begin at; None if form, kernel or sizes differ."""
        size = plan.problem.n if plan.form == "dual" else plan.problem.dimension
        is_same = _what_is_fitted(plan) == _what_is_fitted(self.plan)
        return self.point if is_same and self.point.coef.shape == (size, plan.problem.n_targets) else None


def _what_is_fitted(plan: Plan) -> tuple[Any, ...]:
    p = plan.problem
    return plan.form, p.kernel.to_dict(), p.fit_intercept, p.is_coupled


@dataclass(frozen=True)
class FitRequest:
    """Checked arguments of one fit."""

    settings: Settings
    rows: Rows
    """X, of shape (n, d); for a precomputed kernel the Gram matrix itself."""
    outputs: Targets | Labels
    weights: Array | None
    """Sample weights (times class weights), of shape (n,); None: ones."""
    start: WarmStart | None = None

    def with_settings(self, **changes: Any) -> Self:
        """Return the same request with other settings."""
        return replace(self, settings=replace(self.settings, **changes))

    def problem(self) -> Problem:
        """What its cost depends on."""
        return Problem.of_rows(
            self.rows,
            self.settings.kernel,
            n_counting=None if self.weights is None else int(np.count_nonzero(self.weights)),
            **self.settings.problem_fields(),
            **self.outputs.problem_fields(),
        )


def plan_of(request: FitRequest) -> Plan:
    """Plan of a fit.

    Raises
    ------
    PlanError
        If none stays within the limits.
    """
    settings, rows = request.settings, request.rows
    refuse_more_components_than_rows(settings.kernel, rows.shape[0])
    problem = request.problem()
    resources = detect(settings.memory_limit, settings.store)  # before the sample, some of whose memory stays in use
    return make_plan(_with_spectrum(problem, rows), resources)


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
    X : ndarray, scipy.sparse matrix, DataFrame, Dask array, Zarr array, or path, of shape (n, d), optional
        Training rows, instead of n and d; the Gram matrix (n, n) if kernel == "precomputed". Only a sample is read.
    y : ndarray, DataFrame, Dask array, Zarr array, or path, of shape (n,) or (n, n_targets), optional
        Targets or labels, instead of n_targets or n_classes; they count only where X is given (labels always).
    n : int, optional
        Number of rows, where X is not given.
    d : int, optional
        Number of columns of X, where it is not given.
    n_targets : int, default=1
        Number of targets of a regression, where y is not given.
    kernel : str, Kernel, FeatureMap or callable, default="linear"
        Name of a kernel as in scikit-learn, a value of dkrr.kernels or dkrr.features, or a function of two blocks of
        rows.
    gamma : float, optional
        γ > 0 of the named kernels that have one; None means 1 / d (1 for "chi2").
    degree : float, default=3
        Degree of the polynomial kernel.
    coef0 : float, default=1
        Constant of the polynomial and sigmoid kernels.
    kernel_params : dict, optional
        Keyword arguments of a kernel function, or further parameters of a named kernel.
    alpha : float or array-like, default=1.0
        λ: of a regression one for all targets or one for each; of a classification > 0, or several for a path.
    fit_intercept : bool, optional
        Whether a constant that is not penalised is fitted; None: only in a classification.
    form : {"auto", "primal", "dual"}, default="auto"
        Unknowns of the linear systems: weights of features, coefficients of rows, or whichever should be faster.
    solver : {"auto", "cholesky", "cg"}, Cholesky or ConjugateGradient, default="auto"
        Direct solver or conjugate gradient; "auto" takes whichever should be faster.
    tol : float, default=1e-8
        Accuracy asked of conjugate gradient (true relative residual), or of Newton's method (relative gradient).
    memory_limit : int or str, optional
        Bytes, or text such as "4GiB", for the fit over all workers of one machine, or for the calling process where the
        work is done there. None: what the workers report, or 0.8 of the memory that is available.
    tile : int, optional
        Number of rows in a tile of the matrix; None: the planner chooses.
    store : str or Path, optional
        Path or URL of the Zarr store that the fit would be given; a run in it that has begun is resumed.
    workers : int, optional
        Worker processes on this machine; None takes the ambient Dask client's, else one for each core.
    loss : {"squared", "logistic"}, default="squared"
        Whether to plan a KernelRidge or a KernelLogisticRegression.
    n_classes : int, optional
        Number of classes of a classification, where y is not given; None: 2.
    multi_class : {"multinomial", "ovr"}, default="multinomial"
        With more than two classes: one softmax of all, or a model of each class against the rest.

    Returns
    -------
    Plan
        What would be done, what it would cost, and why; print it.

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
    settings = Settings.checked(
        kernel=value,
        fit_intercept=loss == "logistic" if fit_intercept is None else fit_intercept,
        form=form,
        solver=solver,
        tol=tol,
        tile=tile,
        memory_limit=memory_limit,
        store=store,
    )
    likelihood = None if loss == "squared" else _likelihood_of_labels(y, n_classes, multi_class)
    rows = None if X is None else as_rows(X)
    n, d = rows.shape if rows is not None else (checked_count(n, "n"), checked_count(d, "d"))
    refuse_more_components_than_rows(value, n)
    if likelihood is not None:
        path = np.unique(checked_path(np.atleast_1d(alpha)))
        outputs = _fields_of_classes(likelihood, tuple(path.tolist()))
    else:
        t = checked_count(n_targets, "n_targets") if rows is None or y is None else _width(y)
        outputs = _fields_of_targets(t, checked_alphas(alpha, t))
    if rows is None:
        known = value.resolved(d)
        problem = Problem(
            n=n,
            d=d,
            kernel=known,
            feature_map=feature_map(known, d),
            y_in_memory=False,
            **settings.problem_fields(),
            **outputs,
        )
    else:
        if y is not None and likelihood is None:
            outputs |= place_of_targets(y)
        problem = Problem.of_rows(rows, value, **settings.problem_fields(), **outputs)
    resources = detect(memory_limit, settings.store, workers)
    if rows is not None:
        problem = _with_spectrum(problem, rows)
    return make_plan(problem, replace(resources, enforce_disk=X is not None or store is not None))


def _with_spectrum(problem: Problem, rows: Rows) -> Problem:
    """The same with its spectrum estimated, where conjugate gradient may be chosen and a sample costs little."""
    p = problem
    wanted = isinstance(p.solver, ConjugateGradient) and not isinstance(p.solver.preconditioner, Float32Cholesky)
    possible = p.solver is None and p.kernel.has_unit_diagonal and min(p.alphas) > 0
    is_costly = p.kernel.is_precomputed or isinstance(p.kernel, CallableKernel) or isinstance(rows, DaskRows)
    is_costly = is_costly or SAMPLE * p.bytes_of_row > MAX_SAMPLE_BYTES
    if p.form == "primal" or p.n < MIN_SAMPLED_ROWS or is_costly or not (wanted or possible):
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


def likelihood_of(n_classes: int, *, is_multinomial: bool) -> Likelihood:
    """Likelihood of labels: one column of scores for two classes, else one for each class."""
    if n_classes == 2:
        return Bernoulli(1)
    return Softmax(n_classes) if is_multinomial else Bernoulli(n_classes)


def _likelihood_of_labels(y: Any, n_classes: int | None, multi_class: str) -> Likelihood:
    """Likelihood of labels, or of their number of classes where there are none."""
    is_multinomial = checked_multi_class(multi_class)
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
    if checked_count(n_classes, "n_classes") < 2:
        raise InputError(f"n_classes={n_classes!r} must be at least 2")
    return likelihood_of(n_classes, is_multinomial=is_multinomial)


def _fields_of_targets(n_targets: int, alphas: Array) -> dict[str, Any]:
    return {"n_targets": n_targets, "alphas": tuple(np.unique(alphas).tolist())}


def _fields_of_classes(likelihood: Likelihood, alphas: tuple[float, ...]) -> dict[str, Any]:
    return {
        "n_targets": likelihood.n_columns,
        "alphas": alphas,
        "loss": "logistic",
        "is_coupled": isinstance(likelihood, Softmax),
    }


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
