"""Variances by conjugate gradient beside those of a Cholesky factor: whether the certified bounds hold, and how wide.

``python -m benchmarks.uncertainty bounds`` fits kernels with several λ, with and without weights and an intercept,
to random rows. It computes the bounds by conjugate gradient, and the variances from LAPACK's Cholesky factor of the
dense matrix, refined by the residual so that only the rounding of a scalar product is left. One line of JSON for each
case on stdout; the command fails if a bound does not hold.
"""

import json
import sys
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from unittest import mock

import click
import numpy as np
import scipy.linalg
from numpy.typing import NDArray

import dkrr
from dkrr.fitting import posterior_plans as plans
from dkrr.kernels import RBF, Kernel, Laplacian, Matern

Floats = NDArray[np.float64]

SEED = 0


@dataclass(frozen=True)
class Case:
    """Settings of a fit."""

    name: str
    kernel: Kernel
    alpha: float
    is_weighted: bool = False
    fit_intercept: bool = False


CASES = (
    Case("rbf", RBF(gamma=0.05), 1e-1),
    Case("rbf, small alpha", RBF(gamma=0.05), 1e-3),
    Case("rbf, weights", RBF(gamma=0.05), 1e-2, is_weighted=True),
    Case("rbf, weights, intercept", RBF(gamma=0.05), 1e-2, is_weighted=True, fit_intercept=True),
    Case("laplacian", Laplacian(gamma=0.05), 1e-2),
    Case("matern", Matern(length_scale=3.0, nu=1.5), 1e-2, fit_intercept=True),
)


@click.group()
def main() -> None:
    """Measure variances and likelihoods."""


@main.command()
@click.option("--n", default=10_000, show_default=True, help="Training rows.")
@click.option("--new", default=64, show_default=True, help="New rows.")
@click.option("--d", default=8, show_default=True, help="Columns.")
@click.option("--case", "names", multiple=True, help="Only cases of these names.")
def bounds(n: int, new: int, d: int, names: tuple[str, ...]) -> None:
    """Compare certified bounds with variances and likelihoods from a dense Cholesky factor."""
    rng = np.random.default_rng(SEED)
    X, X_new = rng.normal(size=(n, d)), rng.normal(size=(new, d))
    X_new[: new // 4] = X[: new // 4]  # where variances are small
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.normal(size=n)
    weights = np.where(rng.random(n) < 0.05, 0.0, rng.uniform(0.2, 5.0, n))
    failed = False
    for case in CASES:
        if names and case.name not in names:
            continue
        line = compare(case, X, y, weights if case.is_weighted else None, X_new)
        failed |= not line["bounds hold"]
        print(json.dumps(line), flush=True)
    sys.exit(int(failed))


def compare(case: Case, X: Floats, y: Floats, weights: Floats | None, X_new: Floats) -> dict[str, Any]:
    """Bounds and estimates of one case beside those of a dense factor."""
    model = dkrr.KernelRidge(
        alpha=case.alpha, kernel=case.kernel, fit_intercept=case.fit_intercept, solver="cg", tol=1e-6
    ).fit(X, y, sample_weight=weights)
    with mock.patch.object(plans, "SMALL_SECONDS", 0.0):  # also where a factor would soon be made
        begun = perf_counter()
        lower, upper = model.predict_variance_bounds(X_new, variance_scale=1.0)
        seconds = perf_counter() - begun
        begun = perf_counter()
        likelihood, error = model.log_marginal_likelihood(), model.log_marginal_likelihood_std()
        likelihood_seconds = perf_counter() - begun
    exact, exact_likelihood, rounding = dense(case, X, y, weights, X_new)
    relative = (upper - lower) / exact
    holds = bool(((lower <= exact + rounding) & (exact - rounding <= upper)).all())
    return {
        "case": case.name,
        "n": len(X),
        "alpha": case.alpha,
        "bounds hold": holds,
        "median relative width": float(np.median(relative)),
        "largest relative width": float(relative.max()),
        "variances": [float(exact.min()), float(exact.max())],
        "rounding of the dense values": float(rounding.max()),
        "seconds": seconds,
        "likelihood": [likelihood, error],
        "exact likelihood": exact_likelihood,
        "standard errors off": (likelihood - exact_likelihood) / error,
        "likelihood seconds": likelihood_seconds,
    }


def dense(case: Case, X: Floats, y: Floats, weights: Floats | None, X_new: Floats) -> tuple[Floats, float, Floats]:
    """Variances and the logarithm of the likelihood by LAPACK on the dense matrix, and how far variances are rounded.

    With x from the factor kᵀA⁻¹k = kᵀx + xᵀr + rᵀA⁻¹r, of which the last term is the square of rounding.
    """
    w = np.ones(len(X)) if weights is None else weights
    keep = w > 0
    X, y, c = X[keep], y[keep], np.sqrt(w[keep])
    n = len(X)
    A = case.kernel(X)
    A *= c[:, None] * c
    A[np.diag_indices(n)] += case.alpha
    L = scipy.linalg.cholesky(A, lower=True, check_finite=False)
    k = c[:, None] * case.kernel(X, X_new)
    right = np.column_stack([k, c, c * y])
    x = scipy.linalg.cho_solve((L, True), right, check_finite=False)
    r = right - A @ x
    m = len(X_new)
    energy = np.einsum("ij,ij->j", right, x) + np.einsum("ij,ij->j", x, r)
    variance = case.kernel.diagonal(X_new) - energy[:m]
    rounding = 4 * np.finfo(float).eps * np.sqrt(n) * (np.abs(right) * np.abs(x)).sum(axis=0)[:m]
    determinant = 2 * np.log(L.diagonal()).sum() - 2 * np.log(c).sum()
    degrees, quadratic = n, energy[m + 1]
    if case.fit_intercept:
        variance += (1 - (c @ x[:, :m] + x[:, m] @ r[:, :m])) ** 2 / energy[m]
        degrees, determinant = n - 1, determinant + np.log(energy[m])
        quadratic -= (c @ x[:, m + 1] + x[:, m] @ r[:, m + 1]) ** 2 / energy[m]
    likelihood = -0.5 * degrees * (1 + np.log(2 * np.pi * quadratic / degrees)) - 0.5 * determinant
    return variance, float(likelihood), rounding


if __name__ == "__main__":
    main()
