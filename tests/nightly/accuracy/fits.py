"""Fits at the edges of float64 beside arithmetic of 180 digits: how wrong they are, and whether they say so."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import ConvergenceWarning, DkrrError
from dkrr.solvers import Status
from tests import precise
from tests.nightly.accuracy.checks import dual_residual, logistic_gradient, primal_residual
from tests.nightly.accuracy.trials import Trial

Array = NDArray[np.float64]

SUCCESS = (Status.SOLVED, Status.CONVERGED)
FACTOR = 10.0
"""By which a true residual may exceed the one that is reported."""
MAX_SLACK = 1e-6
"""Part of a residual that rounding of features may explain, at most: otherwise a large sensitivity explains any."""
UNCERTAIN = 1e-2
"""Relative error of α beyond which a direct solver must have warned of it."""
CAUTION = "may be off by as much as"
"""Words that every message of `dkrr.solvers.result.caution` has."""
SURPRISING = 1e-6


@dataclass(frozen=True)
class Outcome:
    """Result of one trial: how it ended, and its errors."""

    trial: Trial
    ended: str
    """Name of the status, or of the error."""
    is_success: bool = False
    reported: float = math.nan
    """Residual, or relative gradient."""
    true: float = math.nan
    """Residual, or relative gradient, of the returned coefficients in 180 digits."""
    dual_coef: float = math.nan
    """‖α − α*‖ / ‖α*‖, largest over the targets; nan without α."""
    predictions: float = math.nan
    """Largest |f − f*| / max |f*|, training rows and new ones."""
    probabilities: float = math.nan
    """Largest |p − p*|, training rows and new ones."""
    dishonest: tuple[str, ...] = ()
    surprising: tuple[str, ...] = ()

    def __str__(self) -> str:
        one = self.trial
        what = f"{'logistic' if one.is_logistic else 'ridge'} {one.kernel!r} n={one.X.shape[0]} λ={one.alpha:.2g}"
        also = [
            *(f"{k}={v}" for k, v in one.settings.items()),
            *(["intercept"] if one.fit_intercept else []),
            *(["weights"] if one.sample_weight is not None else []),
        ]
        return (
            f"{one.name} {what} {' '.join(also)}: {self.ended}, reported {self.reported:.1e}, true {self.true:.1e}, "
            f"α {self.dual_coef:.1e}, f {self.predictions:.1e}, p {self.probabilities:.1e}"
        )


def run(one: Trial) -> Outcome:
    """Fit one trial and compare it."""
    make = KernelLogisticRegression if one.is_logistic else KernelRidge
    model = make(one.alpha, kernel=one.kernel, fit_intercept=one.fit_intercept, progress=False, **one.settings)
    y = one.y if one.is_logistic else one.y.copy()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(one.X, y, sample_weight=one.sample_weight)
            found = [_scores(model, X) for X in (one.X, one.X_new)]
            chances = model.predict_proba(one.X_new)[:, 1] if isinstance(model, KernelLogisticRegression) else None
    except DkrrError as error:
        refused = (f"refused: {error}",) if one.name.startswith("ordinary:") else ()
        return Outcome(one, type(error).__name__, surprising=refused)
    except Exception as error:  # what a user would see, whatever it is
        return Outcome(one, type(error).__name__, dishonest=(f"an error that is not dkrr's own: {error}",))
    others = {f"{w.category.__name__}: {w.message}" for w in caught if not issubclass(w.category, ConvergenceWarning)}
    return judge(one, model, np.vstack(found), chances, sorted(others))


def _scores(model: Any, X: Any) -> Array:
    """Return f of each row, (m, t)."""
    found = model.decision_function(X) if isinstance(model, KernelLogisticRegression) else model.predict(X)
    return np.asarray(found, np.float64).reshape(X.shape[0], -1)


def judge(one: Trial, model: Any, found: Array, chances: Array | None, others: list[str]) -> Outcome:
    """Compare a fitted model with the exact solution, and what it reports with what is true.

    Parameters
    ----------
    one : Trial
    model : KernelRidge or KernelLogisticRegression
        Fitted.
    found : ndarray of shape (n + N_NEW, t)
        Predictions, or scores, of the training rows and the new ones.
    chances : ndarray of shape (N_NEW,), optional
        Probabilities of the new rows.
    others : list of str
        What it warned of besides its accuracy.
    """
    solve = model.solve_result_
    n, is_success = one.X.shape[0], solve.status in SUCCESS
    dual = np.asarray(model.dual_coef_).reshape(n, -1) if hasattr(model, "dual_coef_") else None
    returned = [model.intercept_, found, solve.residual, *(v for v in (dual, chances) if v is not None)]
    if not all(np.isfinite(v).all() for v in returned):
        wrong = ("not finite, and a success",) if is_success else ()
        return Outcome(one, solve.status.name, is_success, solve.residual, dishonest=wrong, surprising=tuple(others))
    (true, sensitivity), errors = _true_residual(one, model, dual), _errors(one, found, dual, chances)
    slack = min(n * np.finfo(float).eps * max(sensitivity, 1.0), MAX_SLACK)
    dishonest = []
    # All comparisons are such that a NaN fails them.
    if not true <= FACTOR * solve.residual + slack:
        dishonest.append(f"a residual of {true:.1e} is reported as {solve.residual:.1e}")
    if one.is_logistic and solve.status is Status.CONVERGED:
        if not true <= FACTOR * model.tol + slack:
            dishonest.append(f"converged at a gradient of {true:.1e} where tol is {model.tol:.0e}")
        if not (off := errors.get("probabilities", 0.0)) <= FACTOR * math.sqrt(model.tol):
            dishonest.append(f"converged with a probability off by {off:.1e} where tol is {model.tol:.0e}")
    is_direct = not one.is_logistic and is_success and model.plan_.solver == "cholesky"
    has_caution = any(CAUTION in message for message in solve.messages)
    if is_direct and not has_caution and not (off := errors.get("dual_coef", 0.0)) <= UNCERTAIN:
        dishonest.append(f"α off by {off:.1e} without a caution")
    if is_success:
        others += [f"{of} off by {e:.1e}" for of, e in errors.items() if of != "dual_coef" and not e <= SURPRISING]
    return Outcome(
        one, solve.status.name, is_success, solve.residual, true, **errors, dishonest=tuple(dishonest),
        surprising=tuple(others),
    )  # fmt: skip


def _errors(one: Trial, found: Array, dual: Array | None, chances: Array | None) -> dict[str, float]:
    """Compare with the exact solution; nothing to compare where 180 digits do not do either."""
    try:
        exact = _exact(one)
    except ArithmeticError:
        return {}
    assert exact.predictions is not None
    expected = np.vstack([exact.fitted, exact.predictions])
    errors = {"predictions": _relative(np.abs(found - expected).max(), np.abs(expected).max())}
    if dual is not None:
        off = dual - exact.dual_coef
        # NumPy's maximum of numbers with a NaN is one, and Python's may not be.
        errors["dual_coef"] = float(np.max([*map(_relative, map(_length, off.T), map(_length, exact.dual_coef.T))]))
    if one.is_logistic:
        off = precise.probabilities(found) - precise.probabilities(expected)
        if chances is not None:
            off = np.append(off, chances - precise.probabilities(exact.predictions))
        errors["probabilities"] = float(np.abs(off).max())
    return errors


def _exact(one: Trial) -> precise.Exact:
    solve = precise.logistic if one.is_logistic else precise.ridge
    return solve(
        one.kernel, one.X, one.y, one.alpha, sample_weight=one.sample_weight, fit_intercept=one.fit_intercept,
        X_new=one.X_new,
    )  # fmt: skip


def _true_residual(one: Trial, model: Any, dual: Array | None) -> tuple[float, float]:
    """Residual in 180 digits of the equations that the fit's form solves, and its sensitivity."""
    problem: dict[str, Any] = {"sample_weight": one.sample_weight, "fit_intercept": one.fit_intercept}
    is_primal = model.plan_.form == "primal"
    if one.is_logistic:
        problem["coef" if is_primal else "dual_coef"] = model.coef_ if is_primal else dual
        problem["intercept"] = float(np.ravel(model.intercept_)[0])
        return logistic_gradient(one.kernel, one.X, one.y, one.alpha, **problem)
    if is_primal:
        features = np.asarray(model.coef_).reshape(-1, one.y.shape[1])
        return primal_residual(one.kernel, one.X, one.y, one.alpha, features, **problem)
    assert dual is not None
    return dual_residual(one.kernel, one.X, one.y, one.alpha, dual, **problem), 0.0


def _length(values: Array) -> float:
    """Euclidean norm, of numbers of any size."""
    largest = float(np.abs(values).max())
    return largest * float(np.linalg.norm(values / largest)) if 0 < largest < math.inf else largest


def _relative(error: float, size: float) -> float:
    return float(error / size) if size > 0 else (0.0 if error == 0 else math.inf)
