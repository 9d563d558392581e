"""Kernel ridge and kernel logistic regression in arithmetic of 180 digits: what float64 results are compared with.

Arguments are float64 (or float32) arrays, taken as the exact numbers that they are; results are rounded to float64 at
the very end. For some hundred rows at most. Needs the extra `test` (python-flint).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx
from numpy.typing import ArrayLike, NDArray

from dkrr.kernels import Kernel
from tests.contracts.kernels import naive_entry

Array = NDArray[np.float64]

BITS = 600
NEWTON_STEPS = 400
NEWTON_DIGITS = 60


@contextmanager
def precision(bits: int = BITS) -> Iterator[None]:
    """Let numbers inside the block have 180 digits, or as many bits."""
    before, ctx.prec = ctx.prec, bits
    try:
        yield
    finally:
        ctx.prec = before


def matrix(values: ArrayLike) -> arb_mat:
    """Exact matrix (n, m) of an array (n, m), or of one column (n,)."""
    a = np.asarray(values.toarray() if hasattr(values, "toarray") else values)
    a = a[:, None] if a.ndim == 1 else a
    return arb_mat(*a.shape, [arb(float(v)) if isinstance(v, np.floating) else arb(int(v)) for v in a.flat])


def floats(values: arb_mat) -> Array:
    """Nearest float64 numbers, of the matrix's shape."""
    return np.array([[float(v.mid()) for v in row] for row in values.table()])


def gram(kernel: Kernel, X: ArrayLike, Z: ArrayLike | None = None) -> arb_mat:
    """Gram matrix (n, m) of the rows of X (n, d) and Z (m, d).

    Parameters
    ----------
    kernel : Kernel
        One that has a row in `tests.contracts.kernels`.
    X : array of shape (n, d)
    Z : array of shape (m, d), optional
        None: X.
    """
    with precision(max(BITS, ctx.prec)):
        rows, others = (matrix(A).table() for A in (X, X if Z is None else Z))
        return arb_mat([[naive_entry(kernel, a, b, BALLS) for b in others] for a in rows])


BALLS = SimpleNamespace(number=arb, exp=arb.exp, log1p=arb.log1p, sqrt=arb.sqrt, tanh=arb.tanh)
"""Arithmetic of the naive formulas of kernels in 180 digits."""


def _dot(a: list[arb], b: list[arb]) -> arb:
    return sum((u * v for u, v in zip(a, b, strict=True)), arb(0))


@dataclass(frozen=True)
class Exact:
    """Solution of one problem; of a logistic regression with scores as predictions."""

    dual_coef: Array
    """α, of shape (n, t)."""
    intercept: Array
    """b, of shape (t,)."""
    fitted: Array
    """f at the training rows, of shape (n, t)."""
    predictions: Array | None
    """f at the new rows, of shape (m, t)."""
    norm: Array
    """√(αᵀKα), of shape (t,)."""


def ridge(
    kernel: Kernel,
    X: ArrayLike,
    y: ArrayLike,
    alpha: float,
    *,
    sample_weight: ArrayLike | None = None,
    fit_intercept: bool = False,
    X_new: ArrayLike | None = None,
) -> Exact:
    """Solve (K + λ W⁻¹) α + 1 b = y, with 1ᵀα = 0 if there is an intercept.

    Rows of weight 0 are left out (their α is 0).
    """
    with precision():
        k, targets = gram(kernel, X), matrix(y)
        n, t = targets.nrows(), targets.ncols()
        weights = _weights(sample_weight, n)
        used = [i for i in range(n) if weights[i] != 0]
        right = [[targets[i, c] for c in range(t)] for i in used] + [[arb(0)] * t] * fit_intercept
        solution = system(k, used, weights, alpha, fit_intercept=fit_intercept).solve(arb_mat(right))
        found = dict(zip(used, solution.table(), strict=False))
        intercept = solution.table()[len(used)] if fit_intercept else [arb(0)] * t
        return _exact(kernel, X, X_new, k, arb_mat([found.get(i, [arb(0)] * t) for i in range(n)]), intercept)


def system(k: arb_mat, used: Sequence[int], weights: Sequence[arb], alpha: float, *, fit_intercept: bool) -> arb_mat:
    """Matrix K + λW⁻¹ of some rows; with an intercept it has a row and a column of ones, and a 0 where they meet.

    Parameters
    ----------
    k : arb_mat
        K of all rows.
    used : sequence of int
        Rows of positive weight.
    weights : sequence of arb
        Weights of all rows.
    alpha : float
        λ.
    fit_intercept : bool
    """
    ones = [arb(1)] * fit_intercept
    table = [[k[i, j] + (arb(alpha) / weights[i] if i == j else 0) for j in used] + ones for i in used]
    return arb_mat(table + [[arb(1)] * len(used) + [arb(0)]] * fit_intercept)


def _exact(kernel: Kernel, X: ArrayLike, X_new: Any, k: arb_mat, dual: arb_mat, intercept: list[arb]) -> Exact:
    def with_intercept(f: arb_mat) -> Array:
        return floats(arb_mat([[v + b for v, b in zip(row, intercept, strict=True)] for row in f.table()]))

    products = k * dual
    squares = [_dot(a, b).mid() for a, b in zip(dual.transpose().table(), products.transpose().table(), strict=True)]
    new = None if X_new is None else with_intercept(gram(kernel, X_new, X) * dual)
    return Exact(
        floats(dual),
        np.array([float(b.mid()) for b in intercept]),
        with_intercept(products),
        new,
        np.array([float(s.sqrt()) if s > 0 else 0.0 for s in squares]),
    )


def logistic(
    kernel: Kernel,
    X: ArrayLike,
    labels: ArrayLike,
    alpha: float,
    *,
    sample_weight: ArrayLike | None = None,
    fit_intercept: bool = True,
    X_new: ArrayLike | None = None,
) -> Exact:
    """Minimise Σᵢ vᵢ log(1 + exp(∓fᵢ)) + λ αᵀKα for f = Kα + b, by Newton's method with halved steps.

    Parameters
    ----------
    kernel : Kernel
    X : array of shape (n, d)
    labels : array of shape (n,)
        0 or 1.
    alpha : float
        λ > 0.
    sample_weight : array of shape (n,), optional
        v.
    fit_intercept : bool
    X_new : array of shape (m, d), optional

    Returns
    -------
    Exact
        One column; `probabilities` gives the probabilities of its scores.
    """
    with precision():
        k = gram(kernel, X)
        n, twice, ones = k.nrows(), 2 * arb(alpha), [arb(1)] * fit_intercept
        signs = [1 if v else -1 for v in np.asarray(labels)]
        weights = _weights(sample_weight, n)

        def values(coef: arb_mat, b: arb) -> tuple[list[arb], arb]:
            """Scores and the objective."""
            f = [(v + b).mid() for v in (k * coef).entries()]
            losses = sum((v * (1 + (-s * x).exp()).log() for s, v, x in zip(signs, weights, f, strict=True)), arb(0))
            return f, (losses + arb(alpha) * sum((coef[i, 0] * (x - b) for i, x in enumerate(f)), arb(0))).mid()

        coef, b = arb_mat(n, 1), arb(0)
        f, value = values(coef, b)
        for _ in range(NEWTON_STEPS):
            # −∂ log p(yᵢ)/∂fᵢ = −s q with q = 1 / (1 + exp(s f)), the probability of the other class.
            other = [arb(1) / (1 + (s * v).exp()) for s, v in zip(signs, f, strict=True)]
            g = [-s * q * v for s, q, v in zip(signs, other, weights, strict=True)]
            w = [q * (1 - q) * v for q, v in zip(other, weights, strict=True)]
            # (W K + 2λ) Δα + W 1 Δb = −r and 1ᵀΔα = −1ᵀα.
            right = [[-(gi + twice * coef[i, 0]).mid()] for i, gi in enumerate(g)]
            right += [[-sum(coef.entries(), arb(0))]] * fit_intercept
            table = [[w[i] * k[i, j] + twice * (i == j) for j in range(n)] + [w[i]] * fit_intercept for i in range(n)]
            step = arb_mat(table + [[arb(1)] * n + [0 * one] for one in ones]).mid().solve(arb_mat(right).mid())
            length, before = arb(1), value
            for _ in range(200):
                new = arb_mat([[coef[i, 0] + length * step[i, 0]] for i in range(n)]).mid()
                new_b = (b + length * step[n, 0]).mid() if fit_intercept else b
                f, value = values(new, new_b)
                if value <= before:
                    break
                length /= 2
            coef, b = new, new_b
            if abs(before - value) <= abs(before) * arb(10) ** -NEWTON_DIGITS:
                return _exact(kernel, X, X_new, k, coef, [b])
        raise ArithmeticError(f"Newton's method did not converge in {NEWTON_STEPS} steps")


def _weights(sample_weight: ArrayLike | None, n: int) -> list[arb]:
    return [arb(float(w)) for w in np.broadcast_to(1.0 if sample_weight is None else np.asarray(sample_weight), n)]


def probabilities(scores: ArrayLike) -> Array:
    """Probabilities (n,) of class 1 for scores (n,) or (n, 1)."""
    with precision():
        return np.array([float((1 / (1 + (-arb(float(f))).exp())).mid()) for f in np.asarray(scores).ravel()])
