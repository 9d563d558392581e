"""Naive double loops that say what the fast code has to compute. Never used outside tests."""

from math import exp, sqrt, tanh

import numpy as np

from dkrr.features import MapKernel
from dkrr.kernels import (
    RBF,
    AdditiveChi2,
    Chi2,
    Cosine,
    Laplacian,
    Linear,
    Matern,
    Polynomial,
    Product,
    Scaled,
    Sigmoid,
    Sum,
)


def naive_gram(kernel, X, Y=None):
    """Return the (len(X), len(Y)) matrix of k(x, z), one entry after the other.

    kernel: a dkrr Kernel, or a scikit-learn metric name at its defaults.
    """
    X = np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
    Y = X if Y is None else np.asarray(Y.toarray() if hasattr(Y, "toarray") else Y, dtype=np.float64)
    if isinstance(kernel, str):
        kernel = _BY_NAME[kernel]
    return np.array([[naive_entry(kernel, x, z) for z in Y] for x in X]).reshape(len(X), len(Y))


def naive_entry(kernel, x, z):
    """Return k(x, z) of two single rows, from differences and Python floats."""
    return _ENTRIES[type(kernel)](kernel, x, z)


def _gamma(kernel, x):
    return 1.0 / len(x) if kernel.gamma is None else kernel.gamma


def _dot(x, z):
    return sum(float(a) * float(b) for a, b in zip(x, z, strict=True))


def _cosine(_, x, z):
    lengths = sqrt(_dot(x, x)) * sqrt(_dot(z, z))
    return _dot(x, z) / lengths if lengths > 0 else 0.0


def _matern(kernel, x, z):
    r = sqrt(2 * kernel.nu * _dot(x - z, x - z)) / kernel.length_scale
    factor = {0.5: 1.0, 1.5: 1.0 + r, 2.5: 1.0 + r + r * r / 3.0}[kernel.nu]
    return factor * exp(-r)


def _chi2(x, z):
    return sum((a - b) ** 2 / (a + b) for a, b in zip(x.tolist(), z.tolist(), strict=True) if a + b > 0)


_ENTRIES = {
    Linear: lambda k, x, z: _dot(x, z),
    Polynomial: lambda k, x, z: (_gamma(k, x) * _dot(x, z) + k.coef0) ** k.degree,
    Sigmoid: lambda k, x, z: tanh(_gamma(k, x) * _dot(x, z) + k.coef0),
    Cosine: _cosine,
    RBF: lambda k, x, z: exp(-_gamma(k, x) * _dot(x - z, x - z)),
    Matern: _matern,
    Laplacian: lambda k, x, z: exp(-_gamma(k, x) * sum(abs(a) for a in (x - z).tolist())),
    AdditiveChi2: lambda k, x, z: -_chi2(x, z),
    Chi2: lambda k, x, z: exp(-k.gamma * _chi2(x, z)),
    Sum: lambda k, x, z: naive_entry(k.left, x, z) + naive_entry(k.right, x, z),
    Product: lambda k, x, z: naive_entry(k.left, x, z) * naive_entry(k.right, x, z),
    MapKernel: lambda k, x, z: _dot(*k.feature_map.transform(np.array([x, z]))),
    Scaled: lambda k, x, z: k.scale * naive_entry(k.base, x, z),
}

_BY_NAME = {
    "linear": Linear(),
    "polynomial": Polynomial(),
    "poly": Polynomial(),
    "rbf": RBF(),
    "laplacian": Laplacian(),
    "cosine": Cosine(),
    "sigmoid": Sigmoid(),
    "matern": Matern(),
    "chi2": Chi2(),
    "additive_chi2": AdditiveChi2(),
}


def naive_kernel_ridge(K, y, alpha, weights=None, fit_intercept=False):
    """Dual coefficients and intercepts from the textbook system, one target at a time, by a general solver.

    K (n, n), y (n, t), alpha (t,), weights (n,) or None; rows of weight 0 are left out and have coefficient 0.
    """
    n, t = y.shape
    weights = np.ones(n) if weights is None else weights
    keep = weights > 0
    coef, intercept = np.zeros((n, t)), np.zeros(t)
    for k in range(t):
        A = K[np.ix_(keep, keep)] + alpha[k] * np.diag(1 / weights[keep])
        if not fit_intercept:
            coef[keep, k] = np.linalg.solve(A, y[keep, k])
            continue
        m = int(keep.sum())
        bordered = np.block([[A, np.ones((m, 1))], [np.ones((1, m)), np.zeros((1, 1))]])
        solution = np.linalg.solve(bordered, np.append(y[keep, k], 0.0))
        coef[keep, k], intercept[k] = solution[:-1], solution[-1]
    return coef, intercept


def naive_cholesky(A):
    """Return the lower triangular L of A = L Lᵀ, one entry after the other."""
    n = len(A)
    L = np.zeros((n, n))
    for j in range(n):
        L[j, j] = sqrt(A[j, j] - sum(L[j, k] ** 2 for k in range(j)))
        for i in range(j + 1, n):
            L[i, j] = (A[i, j] - sum(L[i, k] * L[j, k] for k in range(j))) / L[j, j]
    return L


def naive_forward(L, B):
    """Return Z of L Z = B by forward substitution, row after row."""
    Z = np.zeros_like(B)
    for i in range(len(L)):
        Z[i] = (B[i] - sum((L[i, k] * Z[k] for k in range(i)), np.zeros(B.shape[1]))) / L[i, i]
    return Z


def naive_backward(L, Z):
    """Return X of Lᵀ X = Z by backward substitution, last row first."""
    X = np.zeros_like(Z)
    for i in reversed(range(len(L))):
        X[i] = (Z[i] - sum((L[k, i] * X[k] for k in range(i + 1, len(L))), np.zeros(Z.shape[1]))) / L[i, i]
    return X


def naive_normal(phi, weights, y):
    """Return Σ wᵢ φᵢ φᵢᵀ and Σ wᵢ φᵢ yᵢᵀ, sample after sample."""
    matrix, moments = np.zeros((phi.shape[1], phi.shape[1])), np.zeros((phi.shape[1], y.shape[1]))
    for w, f, target in zip(weights, phi, y, strict=True):
        for a in range(len(f)):
            matrix[a] += w * f[a] * f
            moments[a] += w * f[a] * target
    return matrix, moments


def naive_partial_cholesky(A, pivots):
    """Return F (n, r) of A ≈ F Fᵀ for pivots in this order, one column after the other."""
    left, F = np.array(A, dtype=np.float64), np.zeros((len(A), len(pivots)))
    for k, p in enumerate(pivots):
        F[:, k] = left[:, p] / sqrt(left[p, p])
        left = left - np.outer(F[:, k], F[:, k])
    return F


def naive_greedy_pivots(A, rank, importance=None):
    """Return the pivots of which each is the largest (times its importance) of what the earlier ones leave."""
    left, pivots = np.array(A, dtype=np.float64), []
    weights = np.ones(len(A)) if importance is None else importance
    for _ in range(rank):
        p = max(range(len(A)), key=lambda i: -1.0 if i in pivots else left[i, i] * weights[i])
        pivots.append(p)
        left = left - np.outer(left[:, p], left[:, p]) / left[p, p]
    return pivots


def naive_conjugate_gradient(A, b, iterations):
    """Return x after so many steps of the textbook's conjugate gradient for one right-hand side, begun at 0."""
    x, r = np.zeros_like(b), b.copy()
    p = r.copy()
    for _ in range(iterations):
        q = A @ p
        step = (r @ r) / (p @ q)
        x, new = x + step * p, r - step * q
        p, r = new + (new @ new) / (r @ r) * p, new
    return x
