"""Arguments that estimators and functions share: each is checked, and returned in the type that the package works with.

Each function raises `InputError` for an argument that cannot be used.
"""

import math
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dkrr.data import as_rows, load_array, load_labels
from dkrr.errors import InputError, InputTypeError
from dkrr.features import FeatureMap
from dkrr.kernels import Kernel, as_kernel
from dkrr.linalg.likelihood import Bernoulli, Likelihood, Softmax
from dkrr.planning.problem import Form, Loss
from dkrr.solvers import Cholesky, ConjugateGradient
from dkrr.store.places import refuse_missing_folder
from dkrr.values import MAX_WHOLE, choice, flag, is_real, location, numbers, shown, whole

FORMS = ("auto", *get_args(Form))
SOLVERS: dict[str, Cholesky | ConjugateGradient | None] = {
    "auto": None,
    "cholesky": Cholesky(),
    "cg": ConjugateGradient(),
}
"""Settings of the solvers that have names; None: the planner chooses."""
MAX_COUNT = 2**48
"""No machine holds more rows, columns, targets or classes."""
MIN_TOL = 1e-15
"""float64 has no digits below."""


def checked_kernel(kernel: Any, **settings: Any) -> Kernel:
    """Kernel given as any argument of `as_kernel`, or as a feature map."""
    if not isinstance(kernel, str) and isinstance(kernel, FeatureMap):
        kernel = kernel.kernel()
    return as_kernel(kernel, **settings)


def checked_form(form: Any) -> Form | None:
    """Form; None for "auto"."""
    checked: Any = choice(form, "form", FORMS)
    return None if checked == "auto" else checked


def checked_loss(loss: Any) -> Loss:
    """Loss."""
    checked: Any = choice(loss, "loss", get_args(Loss), ": for KernelRidge or KernelLogisticRegression")
    return checked  # type: ignore[no-any-return]


def checked_multi_class(multi_class: Any) -> bool:
    """Whether more than two classes make one softmax."""
    return choice(multi_class, "multi_class", ("multinomial", "ovr")) == "multinomial"


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


def checked_tol(tol: Any, name: str = "tol") -> float:
    """Relative residual between what float64 can represent and 1."""
    if not is_real(tol) or not MIN_TOL <= tol < 1:
        raise InputError(
            f"{name} is {shown(tol)}; expected a relative residual of at least {MIN_TOL:g} (float64 has no digits "
            f"below) and less than 1"
        )
    return float(tol)


def checked_count(value: Any, name: str) -> int:
    """Number of rows, columns, targets or classes."""
    expected = "a whole number of at least 1: give it, or X and y instead of sizes"
    return checked_whole(value, name, expected, MAX_COUNT)


def checked_tile(tile: Any) -> int | None:
    """Tile size; None: the planner chooses."""
    return None if tile is None else checked_whole(tile, "tile", "a whole number of at least 1 row, or None")


def checked_max_iter(max_iter: Any) -> int:
    """Allowed steps of Newton's method."""
    return checked_whole(max_iter, "max_iter", "a whole number of at least 1 Newton step")


def checked_whole(value: Any, name: str, expected: str, maximum: int = MAX_WHOLE) -> int:
    """Whole number of at least 1."""
    try:
        return whole(value, name, 1, maximum=maximum)
    except InputError:
        at_most = f" (at most {maximum:,})" if isinstance(value, int) and value > maximum else ""
        raise InputError(f"{name} is {shown(value)}; expected {expected}{at_most}") from None


def checked_store(store: Any) -> str | None:
    """Path or URL of a run's store; None: a temporary one."""
    if store is None:
        return None
    place = location(store, "store", "the path or URL of the run's store, or None", is_kept=True)
    refuse_missing_folder(place, "store")
    return place


def checked_progress(progress: Any) -> bool | None:
    """Whether progress is shown; None: on a terminal."""
    return None if progress is None else flag(progress, "progress", ", or None: on a terminal")


def checked_alphas(alpha: Any, n_targets: int) -> NDArray[np.float64]:
    """λ of every target, of shape (n_targets,); finite and ≥ 0."""
    values = numbers(alpha, "alpha", "a number, or one for each target")
    if values.ndim > 1 or values.size not in (1, n_targets):
        raise InputError(
            f"alpha has shape {values.shape}; expected a number, or shape ({n_targets},): one for each target. "
            f"KernelRidgeCV (dkrr select) chooses among several"
        )
    if not 0 <= values.min() <= values.max() < math.inf:  # also where one is NaN
        raise InputError(f"alpha is {shown(alpha)}; expected finite numbers >= 0: 0 is kernel least squares")
    return np.full(n_targets, values)


def checked_candidates(alphas: Any) -> NDArray[np.float64]:
    """Values of λ to choose from, finite and ≥ 0, in the order in which they are given."""
    values = np.atleast_1d(numbers(alphas, "alphas", "numbers >= 0, or None for a range of its own"))
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"alphas has shape {values.shape}; expected at least one number, in one dimension")
    if not 0 <= values.min() <= values.max() < math.inf:  # also where one is NaN
        raise InputError(f"alphas is {shown(alphas)}; expected finite numbers >= 0: 0 is kernel least squares")
    return values


def checked_path(alphas: Any, name: str = "alpha") -> tuple[float, ...]:
    """Values of λ of a logistic regression, one for each model; finite and > 0."""
    values = numbers(alphas, name, "a number > 0 for each model")
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"{name} has shape {values.shape[1:] or values.shape}; expected one number > 0 for each model")
    is_good = np.isfinite(values) & (values > 0)
    if not is_good.all():
        raise InputError(
            f"{name} is {values[~is_good][0]:g}; expected a finite number > 0: without a penalty the solution of "
            f"separable classes is infinite"
        )
    return tuple(values.tolist())


def checked_weights(sample_weight: Any, n: int) -> NDArray[np.float64] | None:
    """Sample weights of shape (n,), finite, ≥ 0 and not all 0; None where all are 1."""
    if sample_weight is None:
        return None
    weights = load_array(sample_weight, "sample_weight")
    if weights.ndim == 0:
        if isinstance(sample_weight, bool | np.bool_):
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


def checked_likelihood(y: Any, n_classes: int | None, multi_class: Any) -> Likelihood:
    """Likelihood of labels y, or of a number of classes where y is None."""
    is_multinomial = checked_multi_class(multi_class)
    if y is not None:
        labels = load_labels(y)
        if labels.ndim not in (1, 2) or labels.size == 0 or (labels.ndim == 2 and labels.shape[1] != 1):
            raise InputError(f"y has shape {labels.shape}; expected (n_samples,): one label for every row")
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
    return likelihood_of(n_classes, is_multinomial=is_multinomial)


def likelihood_of(n_classes: int, *, is_multinomial: bool) -> Likelihood:
    """Likelihood of labels: one column of scores for two classes, else one for each class."""
    if n_classes == 2:
        return Bernoulli(1)
    return Softmax(n_classes) if is_multinomial else Bernoulli(n_classes)


def checked_width(y: Any, n: int) -> int:
    """Number of targets in y, which has a row for each of n."""
    rows = as_rows(y, "y")
    if rows.is_sparse:
        raise InputTypeError("y is sparse; expected a dense array: use toarray()")
    n_rows, width = rows.shape
    if n_rows != n:
        raise InputError(f"y has {n_rows} rows, and X has {n}; expected the same number")
    return width


def checked_train_sizes(train_sizes: Any) -> NDArray[np.float64] | NDArray[np.intp]:
    """Fractions, or numbers of rows; raises InputError if they are neither."""
    sizes = _sizes(train_sizes)
    is_whole, is_real = sizes.dtype.kind in "iu", sizes.dtype.kind == "f"
    if sizes.ndim == 1 and sizes.size:
        if is_whole and (sizes >= 1).all():
            return sizes.astype(np.intp)
        if is_real and (sizes > 0).all() and (sizes <= 1).all() and (sizes < 1).any():
            return sizes.astype(np.float64)
    raise InputError(
        f"train_sizes is {shown(train_sizes)}; expected fractions between 0 and 1 such as (0.125, 0.25, 0.5), or whole "
        f"numbers of rows"
    )


def _sizes(train_sizes: Any) -> NDArray[Any]:
    """An array of whole numbers, or of float64; an empty one where they are neither."""
    try:
        numbers(train_sizes, "train_sizes", "")
    except InputError:
        return np.empty(0)
    return np.asarray(train_sizes)
