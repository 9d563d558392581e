"""Residuals of returned solutions, in arithmetic of 180 digits.

`precise` says what the solution is; here coefficients that a fit returned are put into the equations that they should
solve, as the exact numbers that they are. That separates a fit that is inaccurate and says so from one that is not
what it says.

In the primal form a residual has a *sensitivity* beside it: what it moves by if every feature is off by its own size.
Features that are right to eps, and are centred, cannot tell it better than to some eps times that, and nothing in their
arithmetic shows it. (Linear features are centred first, which loses nothing. In the dual form the product Kα rounds
as much as the entries of K do, and what is computed from them shows that.)

Parameters are those of `precise`; the coefficients are float64 arrays of shape (n, t), or (D, t) in the primal form.
"""

from math import factorial, inf, isnan, nan, prod
from typing import Any

import numpy as np
from flint import arb, arb_mat
from numpy.typing import ArrayLike, NDArray

from dkrr.kernels import Cosine, Kernel, Linear, Polynomial, multisets
from tests.precise import gram, matrix, precision

Array = NDArray[np.float64]
Exact = NDArray[Any]
"""Array of numbers of flint."""


def exact(values: Any) -> Exact:
    """Array (n, m) of the exact numbers of an array (n, m) or (n,), or of a matrix of flint."""
    return np.array((values if isinstance(values, arb_mat) else matrix(values)).table(), object)


def ratio(numerator: arb, denominator: arb) -> float:
    """Quotient of two square roots, for squares in 180 digits; NaN if either is."""
    if numerator.is_nan() or denominator.is_nan():
        return nan
    above, below = numerator.mid(), denominator.mid()
    if above <= 0:
        return 0.0
    return float((above / below).sqrt().mid()) if below > 0 else inf


def dual_residual(
    kernel: Kernel, X: Any, y: Any, alpha: float, coef: Array, *, sample_weight: Any = None, fit_intercept: bool = False
) -> float:
    """Largest ‖√W(y − b − Kα − λW⁻¹α)‖ / ‖√W(y − ȳ)‖ over the targets; rows of weight 0 are left out.

    With an intercept, α is first moved to 1ᵀα = 0 exactly and b is the constant that suits it best: what rounding
    does to the sum and to b is an error of the predictions, not of the system that was solved. Without one, b and the
    mean ȳ are 0.
    """
    with precision():
        used, w = _weights(len(coef), sample_weight)
        k, targets = exact(gram(kernel, X))[np.ix_(used, used)], exact(y)[used]
        a = _centred(exact(coef)[used], np.ones_like(w), fit_intercept)
        left = _centred(targets - k @ a - a * alpha / w, w, fit_intercept)
        return _ratio(left, _centred(targets, w, fit_intercept), w)


def primal_residual(
    kernel: Kernel, X: Any, y: Any, alpha: float, coef: Array, *, sample_weight: Any = None, fit_intercept: bool = False
) -> tuple[float, float]:
    """Largest ‖ΦᵀW(y − Φw) − λw‖ / ‖ΦᵀWy‖ over the targets, and its sensitivity.

    Φ and y are centred if there is an intercept.
    """
    with precision():
        used, w = _weights(len(np.asarray(y)), sample_weight)
        table, c, right = features(kernel, X)[used], exact(coef), _centred(exact(y)[used], w, fit_intercept)
        phi = _centred(table, w, fit_intercept)
        sizes = abs(phi if isinstance(kernel, Linear) else table)
        moments = phi.T @ (w * right)
        gradient = phi.T @ (w * (right - phi @ c)) - c * alpha
        moved = sizes.T @ (w * (abs(right) + sizes @ abs(c))) + abs(c) * alpha
        return _ratio(gradient, moments), _ratio(moved, moments)


def logistic_gradient(
    kernel: Kernel,
    X: Any,
    labels: Any,
    alpha: float,
    *,
    form: str,
    coef: Array,
    intercept: float = 0.0,
    sample_weight: Any = None,
    fit_intercept: bool = True,
) -> tuple[float, float]:
    """Norm of the gradient of a binary logistic regression, relative to that where all scores are 0; its sensitivity.

    √(rᵀKr + (1ᵀg)²) with g = v(p − y) and r = g + 2λα, or √(‖Φᵀg + 2λw‖² + (1ᵀg)²), for `coef` of the form
    "dual" or "primal". With an intercept the origin of the features is arbitrary, and the smaller of the two ratios
    with K as it is and centred is returned. The sensitivity is 0 in the dual form.
    """
    with precision():
        y = (np.asarray(labels) != 0).astype(int)[:, None]
        v = exact(np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, np.float64))
        at_zero = v * (0.5 - y)
        choices = (False, True) if fit_intercept else (False,)
        phi, a = (exact(gram(kernel, X)) if form == "dual" else features(kernel, X)), exact(coef)
        a = _centred(a, np.ones_like(a), form == "dual" and fit_intercept)
        g = v * (1 / (1 + np.exp(-(phi @ a + intercept))) - y)
        total, total_at_zero = (u.sum() ** 2 * int(fit_intercept) for u in (g, at_zero))
        found, change = [], arb(0)
        if form == "primal":  # p(1 − p) times what the scores move by
            of_score = np.where(v > 0, abs(g) * (1 - abs(g) / np.where(v > 0, v, arb(1))), arb(0))
            moved = abs(g) + of_score * (abs(phi) @ abs(a) + abs(intercept))
            change = _squares(abs(phi).T @ moved)[0]
        for is_centred in choices:
            if form == "dual":
                r, start = (_centred(u, np.ones_like(v), is_centred) for u in (g + a * 2 * alpha, at_zero))
                above, below = ((u.T @ phi @ u)[0, 0] for u in (r, start))
            else:
                columns = _centred(phi, np.ones_like(v), is_centred)
                above, below = (_squares(u)[0] for u in (columns.T @ g + a * 2 * alpha, columns.T @ at_zero))
            denominator = below + total_at_zero
            found.append((ratio(above + total, denominator), ratio(change, denominator)))
        return next((pair for pair in found if any(map(isnan, pair))), min(found))


def features(kernel: Kernel, X: ArrayLike) -> Exact:
    """Features (n, D) of the linear, cosine and polynomial kernels, in the order of dkrr's maps."""
    with precision():
        rows = exact(X)
        if isinstance(kernel, Linear):
            return rows
        if isinstance(kernel, Cosine):
            lengths = np.sqrt((rows**2).sum(axis=1, keepdims=True))
            return np.asarray(np.where(lengths > 0, rows / np.where(lengths > 0, lengths, arb(1)), arb(0)))
        assert isinstance(kernel, Polynomial)
        (n, d), degree = rows.shape, int(kernel.degree)
        gamma = arb(1) / d if kernel.gamma is None else arb(kernel.gamma)
        constant = np.full((n, int(kernel.coef0 > 0)), arb(kernel.coef0).sqrt())
        values = np.hstack([constant, rows * gamma.sqrt()])
        symbols = values.shape[1]
        table = multisets.table(symbols, degree, 0, multisets.count(symbols, degree)).T.tolist()
        counts = (prod(factorial(chosen.count(v)) for v in set(chosen)) for chosen in table)
        roots = [(arb(factorial(degree)) / count).sqrt() for count in counts]
        return np.column_stack([values[:, m].prod(axis=1) * root for m, root in zip(table, roots, strict=True)])


def _weights(n: int, sample_weight: ArrayLike | None) -> tuple[NDArray[np.intp], Exact]:
    """Rows with a weight, and their weights (m, 1)."""
    weights = np.ones(n) if sample_weight is None else np.asarray(sample_weight, np.float64)
    used = np.flatnonzero(weights)
    return used, exact(weights[used])


def _centred(values: Exact, weights: Exact, is_asked: bool) -> Exact:
    return values - (weights * values).sum(axis=0) / weights.sum() if is_asked else values


def _squares(values: Exact, weights: Any = 1) -> Exact:
    """Squared Euclidean norms of the columns."""
    found: Exact = (weights * values**2).sum(axis=0)
    return found


def _ratio(above: Exact, below: Exact, weights: Any = 1) -> float:
    """Largest ratio of the norms of two columns; NaN if any is, which Python's max may drop."""
    pairs = zip(_squares(above, weights), _squares(below, weights), strict=True)
    return float(np.max([ratio(*pair) for pair in pairs]))
