"""Fits at the edges of float64 beside arithmetic of 180 digits: how wrong they are, and whether they say so."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.solvers import Status
from tests import precise
from tests.nightly.accuracy.checks import dual_residual, logistic_gradient, primal_residual
from tests.nightly.accuracy.trials import Outcome, Trial, ask

Array = NDArray[np.float64]

SUCCESS = (Status.SOLVED, Status.CONVERGED)
FACTOR = 10.0
"""By which a true residual may exceed the one that is reported."""
MAX_SLACK = 1e-6
"""Part of a residual that rounding of features may explain, at most: otherwise a large sensitivity explains any."""
UNCERTAIN = 1e-2
"""Relative error of α beyond which a direct solver must have warned of it."""
CAUTION = "may be off by as much as"
"""Words that every message of `dkrr.linalg.result.caution` has."""


def run(one: Trial) -> Outcome:
    """Fit one trial and compare it."""
    make = KernelLogisticRegression if one.is_logistic else KernelRidge
    model = make(one.alpha, kernel=one.kernel, fit_intercept=one.fit_intercept, progress=False, **one.settings)

    def fitted() -> tuple[Array, Array | None]:
        model.fit(one.X, one.y if one.is_logistic else one.y.copy(), sample_weight=one.sample_weight)
        found = np.vstack([scores(model, X) for X in (one.X, one.X_new)])
        return found, model.predict_proba(one.X_new)[:, 1] if isinstance(model, KernelLogisticRegression) else None

    answer = ask(fitted)
    if answer.error is not None:
        return Outcome(one, type(answer.error).__name__, dishonest=answer.raw)
    return judge(one, model, *answer.values)


def scores(model: Any, X: Any) -> Array:
    """Return f of each row, (m, t)."""
    found = model.decision_function(X) if isinstance(model, KernelLogisticRegression) else model.predict(X)
    return np.asarray(found, np.float64).reshape(X.shape[0], -1)


def judge(one: Trial, model: Any, found: Array, chances: Array | None) -> Outcome:
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
    """
    solve = model.solve_result_
    n, is_success = one.X.shape[0], solve.status in SUCCESS
    dual = np.asarray(model.dual_coef_).reshape(n, -1) if hasattr(model, "dual_coef_") else None
    returned = [model.intercept_, found, solve.residual, *(v for v in (dual, chances) if v is not None)]
    if not all(np.isfinite(v).all() for v in returned):
        wrong = ("not finite, and a success",) if is_success else ()
        return Outcome(one, solve.status.name, dishonest=wrong)
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
    if is_direct and not has_caution and not (off := errors.get("α", 0.0)) <= UNCERTAIN:
        dishonest.append(f"α off by {off:.1e} without a caution")
    how = f"{model.plan_.form} {model.plan_.solver}, reported {solve.residual:.1e}, true {true:.1e}"
    shown = errors if is_success else {}
    return Outcome(one, solve.status.name, how, shown, dishonest=tuple(dishonest))


def _errors(one: Trial, found: Array, dual: Array | None, chances: Array | None) -> dict[str, float]:
    """Compare with the exact solution; nothing to compare where 180 digits do not do either."""
    solve = precise.logistic if one.is_logistic else precise.ridge
    settings = {"sample_weight": one.sample_weight, "fit_intercept": one.fit_intercept, "X_new": one.X_new}
    try:
        exact = solve(one.kernel, one.X, one.y, one.alpha, **settings)
    except ArithmeticError:
        return {}
    assert exact.predictions is not None
    expected = np.vstack([exact.fitted, exact.predictions])
    errors = {"predictions": _relative(np.abs(found - expected).max(), np.abs(expected).max())}
    if dual is not None:
        off = dual - exact.dual_coef
        # NumPy's maximum of numbers with a NaN is one, and Python's may not be.
        errors["α"] = float(np.max([*map(_relative, map(_length, off.T), map(_length, exact.dual_coef.T))]))
    if one.is_logistic:
        off = precise.probabilities(found) - precise.probabilities(expected)
        if chances is not None:
            off = np.append(off, chances - precise.probabilities(exact.predictions))
        errors["probabilities"] = float(np.abs(off).max())
    return errors


def _true_residual(one: Trial, model: Any, dual: Array | None) -> tuple[float, float]:
    """Residual in 180 digits of the equations that the result names, and its sensitivity."""
    problem: dict[str, Any] = {"sample_weight": one.sample_weight, "fit_intercept": one.fit_intercept}
    form = model.plan_.form
    coef = np.asarray(model.coef_.T if form == "primal" else dual)
    if one.is_logistic:
        problem |= {"form": form, "coef": coef.ravel(), "intercept": float(np.ravel(model.intercept_)[0])}
        return logistic_gradient(one.kernel, one.X, one.y, one.alpha, **problem)
    coef = coef.reshape(-1, one.y.shape[1])
    if model.solve_result_.residual_of == "normal equations":
        return primal_residual(one.kernel, one.X, one.y, one.alpha, coef, **problem)
    assert dual is not None
    return dual_residual(one.kernel, one.X, one.y, one.alpha, dual, **problem), 0.0


def _length(values: Array) -> float:
    """Euclidean norm, of numbers of any size."""
    largest = float(np.abs(values).max())
    return largest * float(np.linalg.norm(values / largest)) if 0 < largest < math.inf else largest


def _relative(error: float, size: float) -> float:
    return float(error / size) if size > 0 else (0.0 if error == 0 else math.inf)
