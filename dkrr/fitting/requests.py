"""Checked arguments of a fit: settings, rows, targets or labels."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import SAFE_SIZES
from dkrr.checks import (
    BOOL_TYPES,
    checked_count,
    checked_device,
    checked_form,
    checked_max_iter,
    checked_memory_limit,
    checked_tile,
    checked_tol,
    checked_uncertainty,
    flag,
    location,
    shown,
)
from dkrr.config import setting
from dkrr.data import MemoryRows, Rows, as_rows, load_array, load_labels
from dkrr.data.arrays import is_mapped
from dkrr.data.rows import check_finite, scan
from dkrr.errors import InputError, InputTypeError, StoreError, WrongStoreError
from dkrr.fitting.growing_run import is_factored, lengths_of
from dkrr.fitting.kept import Kept
from dkrr.kernels import AdditiveChi2, Kernel
from dkrr.kernels.kernel_features import feature_map, is_drawn
from dkrr.kernels.map_base import FeatureMap
from dkrr.kernels.names import kernel_of
from dkrr.linalg.likelihood import Bernoulli, Likelihood, Softmax
from dkrr.linalg.newton import Point
from dkrr.linalg.result import Status
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.machine.gpu import open_gpu
from dkrr.planning import Plan
from dkrr.planning.problem import NOTHING_SET, Because, DeviceName, Form, Layout, Problem
from dkrr.store import RunStore, TileGrid
from dkrr.store.places import refuse_missing_folder
from dkrr.text import plural

Array = NDArray[np.float64]

WEIGHTS_IN_RANGE = (1e-30, 1e30)
"""Bounds of positive sample weights: gradients of a classification, which are as large, are squared and multiplied by
K."""
FLOAT_MAX = float(np.finfo(float).max)
INTERVAL_FOLDS = 10
"""Folds of `predict_interval` where none are given."""
READ_BYTES = 256 * 2**20
"""Most bytes of rows and of targets that a plan reads whole, to refuse what the fit would refuse: some tenths of a
second."""


@dataclass(frozen=True)
class Settings:
    """Settings that both estimators and `dkrr.plan` have."""

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
    """Store given by the user; None: a temporary one."""
    max_iter: int = 100
    """Newton steps of kernel logistic regression."""
    device: DeviceName = "auto"
    """Where products with K are computed."""
    uncertainty: bool | Literal["intervals"] = False
    """State that a regression keeps for standard deviations: none, its factors, or also the models without a fold."""

    @classmethod
    def checked(cls, **given: Any) -> Self:
        """Settings from a user's arguments; raises InputError for one that cannot be used (see `CHECKS`)."""
        for name, check in CHECKS.items():
            if name in given:
                given[name] = check(given[name])
        return cls(**given)._on_device()

    def _on_device(self) -> Self:
        """Settings with the device of Dask's configuration, where none is given; a GPU that is wanted is opened.

        Raises
        ------
        InputError
            If there is none that can be used, or another setting excludes it.
        """
        if self.device == "auto":
            device = setting("device")
            if device == "cuda":
                open_gpu()  # plans compare it from now on
            return replace(self, device="cpu") if device == "cpu" else self
        if self.device == "cuda":
            conflict = needs_cpu(self.form, self.solver)
            if self.uncertainty == "intervals":
                conflict = "uncertainty is 'intervals', for which models without a fold follow from a factor"
            if conflict:
                raise InputError(
                    f"device is 'cuda' and {conflict}; expected device='auto' or 'cpu', or settings with which "
                    f"conjugate gradient in dual form is possible: that is what a GPU does"
                )
            open_gpu()
        return self

    def problem_fields(self) -> dict[str, Any]:
        """Fields of Problem that follow from them."""
        return {
            "fit_intercept": self.fit_intercept,
            "form": self.form,
            "tile": self.tile,
            "solver": self.solver,
            "tol": self.tol,
            "device": self.device,
            "keeps_store": self.store is not None,
            "layout": None if self.store is None else stored_layout(self.store),
            "uncertainty": self.uncertainty is not False,
        }


@dataclass(frozen=True)
class Targets:
    """Targets of a ridge regression."""

    values: Array
    """y, of shape (n, t)."""
    alphas: Array
    """λ of every target, of shape (t,)."""

    retried: ClassVar[tuple[Status, ...]] = (Status.STALLED, Status.MAX_ITERATIONS)
    """Outcomes of conjugate gradient, if the planner chose it, after which a direct solver is used instead."""
    retry_message: ClassVar[str] = "conjugate gradient stopped at a residual of {residual:.1e}: factoring instead"

    def problem_fields(self) -> dict[str, Any]:
        """Fields of Problem that follow from them."""
        mapped = is_mapped(self.values)
        return {
            "n_targets": self.values.shape[1],
            "alphas": tuple(sorted(set(self.alphas.tolist()))),
            "y_in_memory": not mapped,
            "y_is_mapped": mapped,
        }


@dataclass(frozen=True)
class Labels:
    """Labels of a classification."""

    codes: NDArray[np.intp]
    """Number of each row's class, of shape (n,)."""
    classes: NDArray[Any]
    """Labels in order, of shape (n_classes,)."""
    alphas: tuple[float, ...]
    """λ of every model, in the order of the fits."""
    one_vs_rest: bool
    """Whether more than two classes have a model each, not one softmax."""

    retried: ClassVar[tuple[Status, ...]] = (Status.STALLED,)
    retry_message: ClassVar[str] = (
        "Newton's method with conjugate gradient stopped at a relative gradient of {residual:.1e}: factoring"
    )

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of the labels."""
        return likelihood_of(len(self.classes), one_vs_rest=self.one_vs_rest)

    def problem_fields(self) -> dict[str, Any]:
        """Fields of Problem that follow from them."""
        return fields_of_classes(self.likelihood, self.alphas)


@dataclass(frozen=True)
class WarmStart:
    """Solution of an earlier classification with the same classes, and its plan."""

    point: Point
    plan: Plan

    def for_plan(self, plan: Plan) -> Point | None:
        """Starting point; None if form, kernel or sizes differ."""
        size = plan.problem.n if plan.form == "dual" else plan.dimension
        is_same_model = _model_of(plan) == _model_of(self.plan)
        return self.point if is_same_model and self.point.coef.shape == (size, plan.problem.n_targets) else None


@dataclass(frozen=True)
class DualStart:
    """Solutions of the dual systems of a ridge regression from which conjugate gradient begins.

    The systems are (C K C + λ I) β = C (y − ȳ), and with an intercept those of C 1 for every λ, C² = diag(w).
    """

    solutions: Array
    """β of the targets, of shape (n, t)."""
    constants: Mapping[float, Array]
    """β of the constant by λ, of shape (n,); empty without an intercept."""
    alphas: Array
    """λ that each target was solved with, of shape (t,)."""
    note: str
    """Message that names the origin of the solutions."""

    def of_targets(self, targets: NDArray[np.intp]) -> "DualStart":
        """Starting solutions of the targets `targets`."""
        return replace(self, solutions=self.solutions[:, targets], alphas=self.alphas[targets])

    def of(self, alpha: float, targets: NDArray[np.intp]) -> Array:
        """Starting solutions for λ = `alpha`, of shape (n, k): those of the targets, then that of the constants."""
        found = self.solutions[:, targets]
        return np.column_stack([found, self.constants[alpha]]) if self.constants else found


def _model_of(plan: Plan) -> tuple[Any, ...]:
    problem = plan.problem
    return plan.form, problem.kernel.to_dict(), problem.fit_intercept, problem.is_softmax


@dataclass(frozen=True)
class Learned:
    """Kernel that was fitted to documents or tables, and access to these, before they were encoded as numbers."""

    kernel: Kernel
    """The kernel before."""
    take: Callable[[NDArray[np.intp]], Any] | None
    """Gives some of the documents or rows of the table; None in copies by pickle, which leave these behind."""

    def __getstate__(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "take": None}


@dataclass(frozen=True)
class FitRequest:
    """Checked arguments of one fit."""

    settings: Settings
    rows: Rows
    """X, of shape (n, d); for a precomputed kernel the Gram matrix itself."""
    outputs: Targets | Labels
    weights: Array | None
    """Sample weights (times class weights), of shape (n,); None: ones."""
    start: Any = None
    """Starting solution of a fit of this loss, if it iterates: a WarmStart, a DualStart for the dual form, or how far
    the iterations came that this fit replaces."""
    learned: Learned | None = None
    """Documents or tables that the kernel was fitted to, if its values depend on them."""
    folds: Sequence[NDArray[np.intp]] = ()
    """Rows of the folds without which models are computed as well; with uncertainty="intervals" only."""
    posteriors: Callable[..., Any] | None = None
    """Makes the Posteriors of the fit (`Posteriors`) of the factors that it leaves, with `uncertainty`."""
    because: Because = NOTHING_SET
    """Why the settings have a form or a solver that the user did not request."""
    features: FeatureMap | None = None
    """Features of the fit that this one continues, which its strategy had beside those of the kernel: a grid."""
    given: Self | None = None
    """The request as it was made, before a fit drew a feature map or chose another solver."""
    kept: Kept | None = None
    """What earlier calls have left of the first rows; None: the fit does not grow."""

    def with_settings(self, **changes: Any) -> Self:
        """Request with other settings."""
        return replace(self, settings=replace(self.settings, **changes))

    @property
    def learns(self) -> bool:
        """Whether the kernel depends on its training rows, so that every fold has another."""
        given = self if self.given is None else self.given
        return self.learned is not None or is_drawn(given.settings.kernel)

    def problem(self) -> Problem:
        """Sizes and settings that its cost depends on."""
        found = problem_of_rows(
            self.rows,
            self.settings.kernel,
            n_positive_weights=None if self.weights is None else int(np.count_nonzero(self.weights)),
            total_weight=None if self.weights is None else float(self.weights.sum()),
            interval_folds=len(self.folds),
            folds_are_fitted=len(self.folds) > 0 and self.learns,
            undrawn=None if self.given is None else self.given.settings.kernel,
            kept_rows=0 if self.kept is None else self.kept.n,
            because=self.because,
            **self.settings.problem_fields(),
            **self.outputs.problem_fields(),
        )
        return found if self.features is None else found.with_features(self.features)


def problem_of_rows(rows: Rows, kernel: Kernel, **settings: Any) -> Problem:
    """Problem of fitting these rows; `settings` are its other fields."""
    n, d = rows.shape
    kernel = kernel.resolved(d)
    sizes: dict[str, Any]
    if isinstance(rows, MemoryRows) and not rows.is_sparse:  # all rows are alike
        sizes = {"x_bytes": int(rows.array.nbytes)}
    else:
        sizes = {
            "row_bytes": rows.row_bytes,
            "dense_window_row_bytes": rows.dense_window_row_bytes,
            "cumulative_largest_row_bytes": rows.cumulative_largest_row_bytes,
            "x_bytes": rows.n_bytes,
            "read_overhead_bytes": rows.read_overhead_bytes,
        }
    return Problem(
        n=n,
        d=d,
        kernel=kernel,
        feature_map=None if kernel.is_plain else feature_map(kernel, d),
        is_sparse=rows.is_sparse,
        x_is_shared=rows.is_shared,
        x_in_memory=isinstance(rows, MemoryRows),
        **sizes,
        **settings,
    )


def stored_layout(store: str) -> Layout | None:
    """Layout of the run in a store; None if it does not hold one. Raises StoreError if it holds something else."""
    found = RunStore(store).description()
    if found is None or found["fingerprint"] is None:
        return None
    if found["layout"].get("form") not in get_args(Form):
        raise WrongStoreError(f"{store} holds a Gram matrix (dkrr.gram), not a fit; give another store=")
    try:
        kept_rows = max(lengths_of(found["fingerprint"]), default=0) if is_factored(found) else 0
        layout = replace(Layout(**found["layout"]), kept_rows=kept_rows, store=store)
        TileGrid(1, layout.tile, layout.panel)
        return layout
    except (TypeError, ValueError) as error:
        raise StoreError(f"the run in {store} was started by another version of dkrr; give another store=") from error


def fields_of_targets(n_targets: int, alphas: Array) -> dict[str, Any]:
    """Fields of Problem that follow from targets."""
    return {"n_targets": n_targets, "alphas": tuple(sorted(set(alphas.tolist())))}


def fields_of_classes(likelihood: Likelihood, alphas: tuple[float, ...]) -> dict[str, Any]:
    """Fields of Problem that follow from labels."""
    return {
        "n_targets": likelihood.n_columns,
        "alphas": alphas,
        "loss": "logistic",
        "is_softmax": isinstance(likelihood, Softmax),
    }


SOLVERS: dict[str, Cholesky | ConjugateGradient | None] = {
    "auto": None,
    "cholesky": Cholesky(),
    "cg": ConjugateGradient(),
}
"""Settings of the solvers that have names; None: the planner chooses."""


def checked_kernel(kernel: Any, **settings: Any) -> Kernel:
    """Kernel given as any argument of `as_kernel`, or as a feature map; `warn_of_unused` warns of the others."""
    if not isinstance(kernel, str) and isinstance(kernel, FeatureMap):
        kernel = kernel.kernel()
    return kernel_of(kernel, **settings)


def kernel_of_a_fit(kernel: Kernel) -> Kernel:
    """Kernel of a regression or a classification; raises InputError for one that cannot be."""
    if isinstance(kernel, AdditiveChi2):
        raise InputError(
            "kernel is 'additive_chi2', −Σ (x − z)² / (x + z) as scikit-learn defines it: all of its values are "
            "negative and k(x, x) is 0, so that no ridge regression or classification has it as its kernel; "
            "expected 'chi2', its exponential exp(gamma * additive_chi2), or kernel='linear' after "
            "transformer=AdditiveChi2Sampler() of sklearn.kernel_approximation, for Σ 2 x z / (x + z)"
        )
    return kernel


def checked_solver(solver: Any) -> Cholesky | ConjugateGradient | None:
    """Settings of a solver; None for "auto"."""
    if isinstance(solver, Cholesky | ConjugateGradient):
        return solver
    if not isinstance(solver, str) or solver not in SOLVERS:
        raise InputError(
            f"solver is {shown(solver)}; expected 'auto', 'cholesky', 'cg', dkrr.solvers.Cholesky() or "
            f"dkrr.solvers.ConjugateGradient(...)"
        )
    return SOLVERS[solver]


def needs_cpu(form: Form | None, solver: Cholesky | ConjugateGradient | None) -> str:
    """Which of these settings a GPU has not; empty if it has both."""
    if form == "primal":
        return "form is 'primal'"
    is_factor = isinstance(solver, ConjugateGradient) and isinstance(solver.preconditioner, Float32Cholesky)
    return f"solver is {solver!r}" if isinstance(solver, Cholesky) or is_factor else ""


def checked_store(store: Any) -> str | None:
    """Path or URL of a run's store; None: a temporary one."""
    if store is None:
        return None
    place = location(store, "store", "the path or URL of the run's store, or None", is_kept=True)
    refuse_missing_folder(place, "store")
    return place


CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "kernel": kernel_of_a_fit,
    "solver": checked_solver,
    "store": checked_store,
    "device": checked_device,
    "memory_limit": checked_memory_limit,
    "fit_intercept": partial(flag, name="fit_intercept"),
    "form": checked_form,
    "tile": checked_tile,
    "tol": checked_tol,
    "uncertainty": checked_uncertainty,
    "max_iter": checked_max_iter,
}
"""Checks of the fields of `Settings`, in the order in which errors are raised: they return what the field holds."""


def check_sizes(kernel: Kernel, rows: Rows, n_targets: int) -> None:
    """Refuse targets of another length than the rows, and a Gram matrix that is not square."""
    n, d = rows.shape
    if n_targets != n:
        raise InputError(
            f"Found input variables with inconsistent numbers of samples: X has {plural(n, 'row')} and y {n_targets}"
        )
    if kernel.is_precomputed and n != d:
        raise InputError(f"Precomputed matrix must be a square matrix. Input is a {n}x{d} matrix.")


def refuse_extreme_targets(targets: Array) -> None:
    """Refuse targets, of shape (n,) or (n, t), whose squares float64 does not hold.

    Raises
    ------
    InputError
        Naming the first such target, and a number to divide it by; or the first row with NaN or infinity.
    """
    (lowest, highest), largest = SAFE_SIZES, np.maximum(targets.max(axis=0), -targets.min(axis=0))
    if ((largest >= lowest) & (largest <= highest)).all():  # not of NaN, which would be the largest one
        return
    check_finite(targets, "y")
    largest = np.atleast_1d(largest)
    bad = (largest != 0) & ((largest < lowest) | (largest > highest))
    if bad.any():
        k = int(np.argmax(bad))
        of, column = ("", "y") if len(largest) == 1 else (f" of target {k} (counted from 0)", "this column of y")
        raise InputError(
            f"the largest |y|{of} is {largest[k]:.3g}; expected 0, or a number from {lowest:g} to "
            f"{highest:g}, whose square float64 holds: divide {column} by {_power_of_ten(largest[k])} "
            f"(predictions are then in that unit)"
        )


def refuse_extreme_weights(weights: Array | None, name: str = "sample_weight", *, is_further: bool = False) -> None:
    """Refuse weights of a fit, called `name` in messages, that are too large or too small for their squares.

    Weights of further rows (`is_further`) cannot all be divided: those of earlier rows are in sums.

    Raises
    ------
    InputError
        Naming the first such row, and a number to divide weights and λ by.
    """
    if weights is None:
        return
    lowest, highest = WEIGHTS_IN_RANGE
    positive = weights[weights > 0]
    least, most = float(positive.min()), float(positive.max())
    if least < lowest or most > highest:
        row = int(np.argmax((weights > 0) & ((weights < lowest) | (weights > highest))))
        remedy = "bring the weights nearer to each other; rows that are not to count can have the weight 0"
        if is_further:
            remedy = f"{remedy}; or give all rows to fit, with smaller weights and alpha"
        elif most / highest <= least / lowest:
            # A product with class_weight may be infinite.
            middle = math.sqrt(min(least, FLOAT_MAX)) * math.sqrt(min(most, FLOAT_MAX))
            remedy = f"divide all weights and every alpha by {_power_of_ten(middle)}, which leaves the model as it is"
        raise InputError(
            f"{name} is {weights[row]:.3g} in row {row}; expected 0, or a number from {lowest:g} to {highest:g}: "
            f"{remedy}"
        )


def _power_of_ten(value: float) -> str:
    """Power of ten about as large as a positive number, which float64 holds."""
    return f"{10.0 ** max(round(math.log10(value)), -300):g}"


def checked_weights(sample_weight: Any, n: int) -> NDArray[np.float64] | None:
    """Sample weights of shape (n,), finite, ≥ 0 and not all 0; None where all are 1."""
    if sample_weight is None:
        return None
    weights = load_array(sample_weight, "sample_weight")
    if weights.ndim == 0:
        if isinstance(sample_weight, BOOL_TYPES):
            raise InputTypeError(f"sample_weight is {sample_weight}; expected a number, or one for each row of X")
        weights = np.full(n, float(weights))
    if weights.shape != (n,):
        raise InputError(f"sample_weight has shape {weights.shape}; expected ({n},), one for each row of X")
    if not np.isfinite(weights).all() or (weights < 0).any():
        row = int(np.argmin(np.where(np.isfinite(weights), weights, -np.inf)))
        raise InputError(f"sample_weight is {weights[row]} in row {row}; expected finite numbers >= 0")
    if not (weights > 0).any():
        raise InputError("sample_weight is zero everywhere; expected a positive weight for at least one row")
    return None if (weights == 1).all() else weights


def checked_likelihood(y: Any, n_classes: int | None, n: int, *, one_vs_rest: bool) -> Likelihood:
    """Likelihood of labels y of n rows, or of a number of classes where y is None."""
    if y is not None:
        labels = load_labels(y)
        if labels.ndim not in (1, 2) or labels.size == 0 or (labels.ndim == 2 and labels.shape[1] != 1):
            raise InputError(f"y has shape {labels.shape}; expected (n_samples,): one label for every row")
        if len(labels) != n:
            raise InputError(f"y has {plural(len(labels), 'row')}, and X has {n}; expected the same number")
        if labels.dtype.kind == "f" and (labels != np.floor(labels)).any():
            raise InputError("y holds continuous values; expected class labels: loss='squared' plans a regression")
        try:
            n_classes = len(np.unique(labels))
        except TypeError as error:
            raise InputError(f"y has labels of mixed types, or missing ones: {error}") from error
        if n_classes < 2:
            raise InputError("y has 1 class; expected samples of at least 2 classes")
    n_classes = 2 if n_classes is None else n_classes
    if checked_count(n_classes, "n_classes") < 2:
        raise InputError(f"n_classes is {n_classes!r}; expected a whole number of at least 2")
    return likelihood_of(n_classes, one_vs_rest=one_vs_rest)


def likelihood_of(n_classes: int, *, one_vs_rest: bool) -> Likelihood:
    """Likelihood of labels: one column of scores for two classes, else one for each class."""
    if n_classes == 2:
        return Bernoulli(1)
    return Bernoulli(n_classes) if one_vs_rest else Softmax(n_classes)


def check_content(rows: Rows, name: str) -> None:
    """Refuse what a fit refuses of rows, if they are few enough for a plan to read all of them."""
    if _is_read(rows):
        scan(rows, name)


def _is_read(rows: Rows) -> bool:
    return not rows.is_computed and rows.n_bytes <= READ_BYTES


def checked_width(y: Any, n: int) -> int:
    """Number of targets in y, which has a row for each of n."""
    rows = as_rows(y, "y")
    if rows.is_sparse:
        raise InputTypeError("y is sparse; expected a dense array: use toarray()")
    n_rows, width = rows.shape
    if n_rows != n:
        raise InputError(f"y has {plural(n_rows, 'row')}, and X has {n}; expected the same number")
    if _is_read(rows):
        scan(rows, "y")
        refuse_extreme_targets(rows.read(0, n).astype(np.float64))
    return width
