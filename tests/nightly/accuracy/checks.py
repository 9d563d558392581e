"""Residuals of returned solutions, in arithmetic of 180 digits.

`precise` says what the solution is; here coefficients that a fit returned are put into the equations that they should
solve, as the exact numbers that they are. That separates a fit that is inaccurate and says so from one that is not
what it says.

In the primal form a residual has a *sensitivity* beside it: what it moves by if every feature is off by its own size.
Features that are right to eps, and are centred, cannot tell it better than to some eps times that, and nothing in their
arithmetic shows it. (Linear features are centred first, which loses nothing. In the dual form the product Kα rounds
as much as the entries of K do, and what is computed from them shows that.)
"""

from math import factorial, inf, isnan, nan, prod

import numpy as np
from flint import arb, arb_mat
from numpy.typing import ArrayLike, NDArray

from dkrr.features import multisets
from dkrr.kernels import Cosine, Kernel, Linear, Polynomial
from tests.precise import gram, matrix, precision

Array = NDArray[np.float64]


def ratio(numerator: arb, denominator: arb) -> float:
    """Quotient of two square roots, for squares in 180 digits; NaN if either is."""
    if numerator.is_nan() or denominator.is_nan():
        return nan
    above, below = numerator.mid(), denominator.mid()
    if above <= 0:
        return 0.0
    if below <= 0:
        return inf
    return float((above / below).sqrt().mid())


def dual_residual(
    kernel: Kernel,
    X: ArrayLike,
    y: ArrayLike,
    alpha: float,
    dual_coef: Array,
    *,
    sample_weight: ArrayLike | None = None,
    fit_intercept: bool = False,
) -> float:
    """Largest ‖√W(y − b − Kα − λW⁻¹α)‖ / ‖√W(y − ȳ)‖ over the targets.

    With an intercept, α is first moved to 1ᵀα = 0 exactly and b is the constant that suits it best: what rounding
    does to the sum and to b is an error of the predictions, not of the system that was solved. Without one, b and the
    mean ȳ are 0.

    Parameters
    ----------
    kernel : Kernel
    X : array of shape (n, d)
    y : array of shape (n, t)
    alpha : float
        λ.
    dual_coef : ndarray of shape (n, t)
    sample_weight : array of shape (n,), optional
        Rows of weight 0 are left out.
    fit_intercept : bool
    """
    with precision():
        k, targets, coef = gram(kernel, X), matrix(y), matrix(dual_coef)
        used, weights = _weights(targets.nrows(), sample_weight)
        largest = 0.0
        for c in range(targets.ncols()):
            a = [coef[i, c] for i in used]
            if fit_intercept:
                middle = sum(a, arb(0)) / len(a)
                a = [v - middle for v in a]
            right = _centred([targets[i, c] for i in used], weights, fit_intercept)
            left = [
                targets[i, c] - sum((k[i, j] * v for j, v in zip(used, a, strict=True)), arb(0)) - arb(alpha) / w * u
                for i, w, u in zip(used, weights, a, strict=True)
            ]
            left = _centred(left, weights, fit_intercept)
            largest = _larger(largest, ratio(_squares(left, weights), _squares(right, weights)))
        return largest


def primal_residual(
    kernel: Kernel,
    X: ArrayLike,
    y: ArrayLike,
    alpha: float,
    coef: Array,
    *,
    sample_weight: ArrayLike | None = None,
    fit_intercept: bool = False,
) -> tuple[float, float]:
    """Largest ‖ΦᵀW(y − Φw) − λw‖ / ‖ΦᵀWy‖ over the targets, and its sensitivity.

    Φ and y are centred if there is an intercept.

    Parameters
    ----------
    kernel : Linear, Cosine or Polynomial
    X : array of shape (n, d)
    y : array of shape (n, t)
    alpha : float
        λ.
    coef : ndarray of shape (D, t)
    sample_weight : array of shape (n,), optional
    fit_intercept : bool
    """
    with precision():
        targets, w = matrix(y), matrix(coef)
        used, weights = _weights(targets.nrows(), sample_weight)
        table = features(kernel, X)
        columns = [_centred([table[i][j] for i in used], weights, fit_intercept) for j in range(len(table[0]))]
        sizes = columns if isinstance(kernel, Linear) else [[table[i][j] for i in used] for j in range(len(table[0]))]
        sizes = [[abs(v) for v in column] for column in sizes]
        largest = sensitivity = 0.0
        for c in range(targets.ncols()):
            right = _centred([targets[i, c] for i in used], weights, fit_intercept)
            rest, whole = list(right), [abs(v) for v in right]
            for j, (column, size) in enumerate(zip(columns, sizes, strict=True)):
                rest = [r - v * w[j, c] for r, v in zip(rest, column, strict=True)]
                whole = [r + v * abs(w[j, c]) for r, v in zip(whole, size, strict=True)]
            gradient = [_sum(column, rest, weights) - arb(alpha) * w[j, c] for j, column in enumerate(columns)]
            moments = [_sum(column, right, weights) for column in columns]
            moved = [_sum(size, whole, weights) + arb(alpha) * abs(w[j, c]) for j, size in enumerate(sizes)]
            largest = _larger(largest, ratio(_lengths(gradient), _lengths(moments)))
            sensitivity = _larger(sensitivity, ratio(_lengths(moved), _lengths(moments)))
        return largest, sensitivity


def logistic_gradient(
    kernel: Kernel,
    X: ArrayLike,
    labels: ArrayLike,
    alpha: float,
    *,
    dual_coef: Array | None = None,
    coef: Array | None = None,
    intercept: float = 0.0,
    sample_weight: ArrayLike | None = None,
    fit_intercept: bool = True,
) -> tuple[float, float]:
    """Norm of the gradient of a binary logistic regression, relative to that where all scores are 0.

    √(rᵀKr + (1ᵀg)²) with g = v(p − y) and r = g + 2λα, or √(‖Φᵀg + 2λw‖² + (1ᵀg)²). With an intercept the origin of
    the features is arbitrary, and the smaller of the two ratios with K as it is and centred is returned.

    Parameters
    ----------
    kernel : Kernel
    X : array of shape (n, d)
    labels : array of shape (n,)
        0 or 1.
    alpha : float
        λ.
    dual_coef : ndarray of shape (n, 1), optional
    coef : ndarray of shape (D, 1), optional
        One of both.
    intercept : float
    sample_weight : array of shape (n,), optional
    fit_intercept : bool

    Returns
    -------
    gradient : float
    sensitivity : float
        0 in the dual form.
    """
    with precision():
        signs = [1 if v else 0 for v in np.asarray(labels)]
        n, free = len(signs), [arb(float(intercept))] * len(signs)
        weights = [arb(1)] * n if sample_weight is None else [arb(float(v)) for v in np.asarray(sample_weight)]
        at_zero = [v * (arb(1) / 2 - s) for v, s in zip(weights, signs, strict=True)]
        total_at_zero = sum(at_zero, arb(0)) if fit_intercept else arb(0)

        def gradient(scores: list[arb]) -> list[arb]:
            return [v * (1 / (1 + (-f).exp()) - s) for v, f, s in zip(weights, scores, signs, strict=True)]

        choices = (False, True) if fit_intercept else (False,)
        if dual_coef is not None:
            k, a = gram(kernel, X), [arb(float(v)) for v in np.ravel(dual_coef)]
            if fit_intercept:
                middle = sum(a, arb(0)) / n
                a = [v - middle for v in a]
            g = gradient([f + b for f, b in zip(_product(k, a), free, strict=True)])
            total = sum(g, arb(0)) if fit_intercept else arb(0)
            r = [gi + 2 * arb(alpha) * ai for gi, ai in zip(g, a, strict=True)]
            forms = [[_form(k, _moved(v, centred)) for v in (r, at_zero)] for centred in choices]
            ratios = [ratio(above + total**2, below + total_at_zero**2) for above, below in forms]
            return _smallest([(found, 0.0) for found in ratios])
        assert coef is not None
        table, w = features(kernel, X), [arb(float(v)) for v in np.ravel(coef)]
        g = gradient([_dot(row, w) + b for row, b in zip(table, free, strict=True)])
        total = sum(g, arb(0)) if fit_intercept else arb(0)
        # p(1 − p) times what the scores move by.
        of_score = [abs(gi) * (1 - abs(gi) / v) if v > 0 else arb(0) for gi, v in zip(g, weights, strict=True)]
        sizes = [[abs(v) for v in row] for row in table]
        lengths = [abs(v) for v in w]
        shift = [c * (_dot(row, lengths) + abs(b)) for c, row, b in zip(of_score, sizes, free, strict=True)]
        moved = [abs(gi) + si for gi, si in zip(g, shift, strict=True)]
        found = []
        for centred in choices:
            above = below = change = arb(0)
            for j, wj in enumerate(w):
                column = _moved([row[j] for row in table], centred)
                above += (_dot(column, g) + 2 * arb(alpha) * wj) ** 2
                below += _dot(column, at_zero) ** 2
                change += _dot([row[j] for row in sizes], moved) ** 2
            denominator = below + total_at_zero**2
            found.append((ratio(above + total**2, denominator), ratio(change, denominator)))
        return _smallest(found)


def features(kernel: Kernel, X: ArrayLike) -> list[list[arb]]:
    """Features (n, D) of the linear, cosine and polynomial kernels, in the order of dkrr's maps.

    Parameters
    ----------
    kernel : Linear, Cosine or Polynomial
    X : array of shape (n, d)
    """
    with precision():
        rows: list[list[arb]] = matrix(X).table()
        if isinstance(kernel, Linear):
            return rows
        if isinstance(kernel, Cosine):
            lengths = [sum((v**2 for v in row), arb(0)).sqrt() for row in rows]
            return [[v / s if s > 0 else arb(0) for v in row] for row, s in zip(rows, lengths, strict=True)]
        assert isinstance(kernel, Polynomial)
        d, degree = len(rows[0]), int(kernel.degree)
        gamma = arb(1) / d if kernel.gamma is None else arb(kernel.gamma)
        constant = [arb(kernel.coef0).sqrt()] if kernel.coef0 > 0 else []
        symbols = d + len(constant)
        table = multisets.table(symbols, degree, 0, multisets.count(symbols, degree)).T.tolist()
        roots = [
            (arb(factorial(degree)) / prod(factorial(chosen.count(v)) for v in set(chosen))).sqrt() for chosen in table
        ]
        found = []
        for row in rows:
            values = constant + [gamma.sqrt() * v for v in row]
            found.append(
                [root * prod((values[v] for v in m), start=arb(1)) for root, m in zip(roots, table, strict=True)]
            )
        return found


def _larger(a: float, b: float) -> float:
    """Larger of two numbers; NaN if either is, which Python's max may drop."""
    return float(np.maximum(a, b))


def _smallest(found: list[tuple[float, float]]) -> tuple[float, float]:
    """Smallest pair; one with a NaN if there is any."""
    return next((pair for pair in found if any(map(isnan, pair))), min(found))


def _weights(n: int, sample_weight: ArrayLike | None) -> tuple[list[int], list[arb]]:
    """Rows with a weight, and their weights."""
    weights = np.ones(n) if sample_weight is None else np.asarray(sample_weight, np.float64)
    used = [i for i in range(n) if weights[i] != 0]
    return used, [arb(float(weights[i])) for i in used]


def _centred(values: list[arb], weights: list[arb], is_asked: bool) -> list[arb]:
    if not is_asked:
        return values
    mean = sum((v * w for v, w in zip(values, weights, strict=True)), arb(0)) / sum(weights, arb(0))
    return [v - mean for v in values]


def _moved(values: list[arb], is_asked: bool) -> list[arb]:
    return _centred(values, [arb(1)] * len(values), is_asked)


def _squares(values: list[arb], weights: list[arb]) -> arb:
    return sum((w * v**2 for v, w in zip(values, weights, strict=True)), arb(0))


def _sum(left: list[arb], right: list[arb], weights: list[arb]) -> arb:
    return sum((u * v * w for u, v, w in zip(left, right, weights, strict=True)), arb(0))


def _dot(left: list[arb], right: list[arb]) -> arb:
    return sum((u * v for u, v in zip(left, right, strict=True)), arb(0))


def _lengths(values: list[arb]) -> arb:
    """Squared Euclidean norm."""
    return _dot(values, values)


def _product(k: arb_mat, values: list[arb]) -> list[arb]:
    found = k * arb_mat([[v] for v in values])
    return [found[i, 0] for i in range(len(values))]


def _form(k: arb_mat, values: list[arb]) -> arb:
    return sum((u * v for u, v in zip(values, _product(k, values), strict=True)), arb(0))
