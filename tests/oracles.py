"""Naive double loops that say what the fast code has to compute. Never used outside tests."""

from math import sqrt

import numpy as np
from scipy.special import logsumexp, softmax

from dkrr.kernels.names import as_kernel
from tests.contracts.kernels import naive_entry


def naive_gram(kernel, X, Y=None):
    """Return the (len(X), len(Y)) matrix of k(x, z), one entry after the other.

    kernel: a dkrr Kernel, or a scikit-learn metric name at its defaults.
    """
    X = np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
    Y = X if Y is None else np.asarray(Y.toarray() if hasattr(Y, "toarray") else Y, dtype=np.float64)
    kernel = as_kernel(kernel) if isinstance(kernel, str) else kernel
    entries = [[naive_entry(kernel, x, z) for z in Y.tolist()] for x in X.tolist()]
    return np.array(entries, float).reshape(len(X), len(Y))


def naive_kernel_ridge(K, y, alpha, weights=None, fit_intercept=False):
    """Dual coefficients and intercepts from the textbook system, one target at a time, by a general solver.

    K (n, n), y (n, t), alpha (t,), weights (n,) or None; rows of weight 0 are left out and have coefficient 0.
    """
    n, t = y.shape
    weights = np.ones(n) if weights is None else weights
    keep = weights > 0
    coef, intercept, ones = np.zeros((n, t)), np.zeros(t), np.ones((keep.sum(), int(fit_intercept)))
    for k in range(t):
        A = K[np.ix_(keep, keep)] + alpha[k] * np.diag(1 / weights[keep])
        bordered = np.block([[A, ones], [ones.T, np.zeros((ones.shape[1],) * 2)]])
        solution = np.linalg.solve(bordered, np.append(y[keep, k], np.zeros(ones.shape[1])))
        coef[keep, k], intercept[k] = solution[: len(A)], solution[len(A) :].sum()
    return coef, intercept


def naive_normal(phi, weights, y):
    """Return Σ wᵢ φᵢ φᵢᵀ and Σ wᵢ φᵢ yᵢᵀ."""
    return (phi.T * weights) @ phi, (phi.T * weights) @ y


def naive_partial_cholesky(A, pivots):
    """Return F (n, r) of A ≈ F Fᵀ for pivots in this order, one column after the other."""
    left, F = np.array(A, dtype=np.float64), np.zeros((len(A), len(pivots)))
    for k, p in enumerate(pivots):
        F[:, k] = left[:, p] / sqrt(left[p, p])
        left = left - np.outer(F[:, k], F[:, k])
    return F


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


def kernel_features(K):
    """Features Φ of a positive semidefinite matrix K = ΦΦᵀ: its eigenvectors, as long as the roots of its values."""
    values, vectors = np.linalg.eigh(K)
    keep = values > 1e-15 * values[-1]
    return vectors[:, keep] * np.sqrt(values[keep])


def assert_close(actual, expected, tolerance=1e-8):
    """No entry is off by more than `tolerance` times the largest one expected."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1e-300, np.abs(expected).max()))


def naive_residual(K, y, alpha, coef, intercept, weights=None, fit_intercept=False):
    """‖r‖ / ‖b‖ of each target for the dual system: r = √w (y − b − Kα) − λα / √w, b = √w (y − ȳ), rows of w > 0."""
    w = np.ones(len(y)) if weights is None else weights
    root, found = np.sqrt(w[w > 0]), []
    for k in range(y.shape[1]):
        errors = (y[:, k] - K @ coef[:, k] - intercept[k])[w > 0]
        side = root * (y[:, k] - (np.average(y[:, k], weights=w) if fit_intercept else 0.0))[w > 0]
        found.append(np.linalg.norm(root * errors - alpha[k] * coef[w > 0, k] / root) / np.linalg.norm(side))
    return np.array(found)


def naive_probabilities(scores, one_vs_rest=False):
    """Softmax of the scores of every row; a single column of scores is that of the second of two classes.

    With `one_vs_rest` the classes' own probabilities, divided by their sum.
    """
    if one_vs_rest and scores.shape[1] > 1:
        separate = 1 / (1 + np.exp(-scores))
        return separate / separate.sum(axis=1, keepdims=True)
    if scores.shape[1] == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    return softmax(scores, axis=1)


def naive_logistic(phi, codes, alpha, weights=None, fit_intercept=True, one_vs_rest=False):
    """Kernel logistic regression on explicit features by Newton's method with the whole Hessian.

    Minimises −Σᵢ vᵢ log p(codeᵢ | φᵢ) + α Σₖ ‖βₖ‖². phi (n, p), codes (n,), weights (n,) or None. Returns β (p, m),
    intercepts (m,), those of a softmax of sum 0, and the dual coefficients v (y − p) / 2α (n, m); two classes: m = 1.
    """
    n, c = len(phi), int(fit_intercept)
    v = np.ones(n) if weights is None else weights
    A, penalties = np.hstack([phi, np.ones((n, c))]), np.append(np.full(phi.shape[1], 2.0 * alpha), np.zeros(c))
    Y = np.eye(int(max(codes)) + 1)[codes]
    Y = Y[:, 1:] if Y.shape[1] == 2 else Y
    together = [Y] if not one_vs_rest else [column[:, None] for column in Y.T]
    B, P = (np.hstack(parts) for parts in zip(*(_newton(A, part, v, penalties) for part in together), strict=True))
    intercept = B[phi.shape[1] :].sum(axis=0)
    if len(together) == 1 and Y.shape[1] > 1:
        intercept = intercept - intercept.mean()  # the same number for all classes changes nothing
    return B[: phi.shape[1]], intercept, v[:, None] * (Y - P) / (2 * alpha)


def naive_gradient(K, codes, alpha, coef, intercept, weights=None, fit_intercept=True, one_vs_rest=False):
    """Norm of the gradient in the kernel's space, relative to that at zero; the largest of several models."""
    v, Y = np.ones(len(K)) if weights is None else weights, np.eye(int(codes.max()) + 1)[codes]
    is_softmax = Y.shape[1] > 2 and not one_vs_rest
    Y = Y[:, 1:] if Y.shape[1] == 2 else Y

    def squares(coef, intercept):
        scores = K @ coef + intercept
        r = v[:, None] * ((naive_probabilities(scores) if is_softmax else 0.5 * (1 + np.tanh(0.5 * scores))) - Y)
        free = r.sum(axis=0) ** 2 if fit_intercept else np.zeros(Y.shape[1])
        r = r + 2 * alpha * coef
        total = free + (r * (K @ r)).sum(axis=0)
        return total.sum(keepdims=True) if is_softmax else total

    return np.sqrt(squares(coef, intercept) / squares(np.zeros_like(coef), np.zeros(coef.shape[1]))).max()


def _newton(A, Y, v, penalties):
    """Coefficients (p, m) and probabilities (n, m) of the columns of Y; one column is a class against the rest."""
    (n, p), m = A.shape, Y.shape[1]
    T = np.hstack([1 - Y, Y]) if m == 1 else Y

    def at(B):
        """Objective, its gradient (p, m) and probabilities (n, m)."""
        F = np.hstack([np.zeros((n, 1)), A @ B]) if m == 1 else A @ B
        P = softmax(F, axis=1)[:, -m:]
        value = v @ (logsumexp(F, axis=1) - (T * F).sum(axis=1)) + 0.5 * (penalties[:, None] * B**2).sum()
        return value, A.T @ (v[:, None] * (P - Y)) + penalties[:, None] * B, P

    B = np.zeros((p, m))
    first = np.linalg.norm(at(B)[1])
    for _ in range(200):
        before, g, P = at(B)
        if np.linalg.norm(g) <= 1e-14 * first:
            break
        W = v[:, None, None] * P[:, :, None] * (np.eye(m) - P[:, None])
        H = np.einsum("ip,ikj,iq->kpjq", A, W, A, optimize=True).reshape(m * p, m * p) + np.diag(np.tile(penalties, m))
        # Least squares: a softmax does not depend on equal intercepts for all classes.
        step, length = -np.linalg.lstsq(H, g.T.ravel(), rcond=1e-15)[0].reshape(m, p).T, 1.0
        while length > 1e-6 and not at(B + length * step)[0] <= before + 1e-13 * abs(before):
            length /= 2
        if length <= 1e-6 or np.linalg.norm(step) <= 1e-15 * np.linalg.norm(B):
            break
        B = B + length * step
    return B, at(B)[2]
