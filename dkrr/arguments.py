"""Arguments that users give, checked one by one: each is returned in the type that the package works with."""

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import InputError
from dkrr.features import FeatureMap
from dkrr.kernels import Kernel, as_kernel
from dkrr.planning.problem import Form
from dkrr.rows import load_array
from dkrr.solvers import Cholesky, ConjugateGradient

MIN_TOL = 1e-15


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
    if not number or not MIN_TOL <= tol < 1:
        raise InputError(
            f"tol={tol!r} must be a relative residual of at least {MIN_TOL:g} (float64 has no digits below) and "
            f"less than 1"
        )
    return float(tol)


def checked_count(value: Any, name: str) -> int:
    """Number of rows, columns, targets or classes."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name}={value!r} must be a whole number, at least 1 (or give X and y instead of sizes)")
    return int(value)


def checked_tile(tile: Any) -> int | None:
    """Tile size that was asked for; None for the planner's."""
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
