"""What the theory says of a fitted model, one fact to a test.

Notation of docs/method.md: f(x) = Σ αᵢ k(x, xᵢ) = φ(x)ᵀw minimises J(f) = Σ vᵢ (yᵢ − f(xᵢ))² + λ‖f‖².
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr import KernelRidge
from dkrr.errors import NotPositiveDefiniteError
from dkrr.features import (
    ConcatenatedMap,
    IdentityMap,
    InteractionMap,
    NormalizedMap,
    PolynomialMap,
    RandomFourier,
    ScaledMap,
    TaylorMap,
    UnitLengthMap,
    whitened,
)
from dkrr.kernels import RBF, Cosine, Laplacian, Linear, Matern, Normalized, Polynomial, TaylorRBF

pytestmark = pytest.mark.usefixtures("one_blas_thread")


@dataclass(frozen=True)
class Sample:
    X: np.ndarray
    Y: np.ndarray
    weights: np.ndarray
    X_new: np.ndarray


@pytest.fixture(scope="module")
def sample():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((60, 4))
    Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] * X[:, 2]]) + 0.1 * rng.standard_normal((60, 2))
    return Sample(X, Y, rng.uniform(0.2, 3.0, 60), rng.standard_normal((15, 4)))


LAMBDA = 0.3

KERNELS = [
    RBF(gamma=0.4),
    Laplacian(),
    Matern(1.5),
    TaylorRBF(6, gamma=0.4),
    Normalized(Polynomial() + RBF()),
    0.5 * RBF() + Linear() * Cosine(),
]
MAPS = [
    IdentityMap(),
    NormalizedMap(),
    PolynomialMap(3),
    PolynomialMap(2, gamma=0.7, coef0=0.0),
    InteractionMap(),
    TaylorMap(4, gamma=0.3),
    TaylorMap(2),
    ScaledMap(InteractionMap(), 0.4),
    UnitLengthMap(PolynomialMap(2)),
    ConcatenatedMap(IdentityMap(), UnitLengthMap(TaylorMap(3))),
    RandomFourier(RBF(), 40),
    whitened(RBF(gamma=0.2), np.random.default_rng(3).standard_normal((20, 4))),
]
each_map = pytest.mark.parametrize("phi", MAPS, ids=str)


def fitted(kernel, sample, form="dual", alpha=LAMBDA, weighted=False, **settings):
    model = KernelRidge(alpha=alpha, kernel=kernel, form=form, **settings)
    return model.fit(sample.X, sample.Y, sample.weights if weighted else None)


def gram(subject, X):
    """Matrix of a kernel, or of the inner products of a feature map."""
    return subject.transform(X) @ subject.transform(X).T if subject in MAPS else subject(X)


def test_without_regularisation_as_many_features_as_rows_interpolate_and_no_fewer(sample):
    few = Sample(sample.X[:14], sample.Y[:14], sample.weights, sample.X_new)  # D = 14
    assert_allclose(fitted(InteractionMap(), few, alpha=0.0).predict(few.X), few.Y, atol=1e-6)
    with pytest.raises(NotPositiveDefiniteError):
        fitted(InteractionMap(), sample, alpha=0.0)


@pytest.mark.parametrize("subject", KERNELS + MAPS, ids=str)
def test_residuals_and_the_norm_are_those_of_the_space_of_the_kernel(subject, sample):
    model = fitted(subject, sample, weighted=True, fit_intercept=True)
    K, v = gram(subject, sample.X), sample.weights[:, None]
    # The gradient is zero: residuals are the dual coefficients, and the constant, which has no penalty, is their mean.
    errors = sample.Y - model.predict(sample.X)
    assert_allclose(v * errors, LAMBDA * model.dual_coef_, rtol=1e-7, atol=1e-7)
    assert_allclose(model.dual_coef_.sum(axis=0), 0, atol=1e-7)
    assert_allclose(model.norm_**2, np.einsum("it,ij,jt->t", model.dual_coef_, K, model.dual_coef_), rtol=1e-7)
    # |f(x)| = |⟨f, k(·, x)⟩| ≤ ‖f‖ √k(x, x)
    values = model.predict(sample.X_new) - model.intercept_
    bound = np.outer(np.sqrt(gram(subject, sample.X_new).diagonal()), model.norm_)
    assert (np.abs(values) <= bound * (1 + 1e-12)).all()
    if subject in MAPS:
        primal = fitted(subject, sample, "primal", weighted=True, fit_intercept=True)
        assert_allclose(primal.norm_, np.linalg.norm(primal.coef_, axis=0), rtol=1e-7)


@each_map
def test_primal_and_dual_are_one_model_as_the_representer_theorem_says(phi, sample):
    primal, dual = (fitted(phi, sample, form, weighted=True, fit_intercept=True) for form in ("primal", "dual"))
    assert (primal.plan_.form, dual.plan_.form) == ("primal", "dual")
    features, v, w, b = phi.transform(sample.X), sample.weights, primal.coef_, primal.intercept_
    assert_allclose(primal.predict(sample.X_new), dual.predict(sample.X_new), rtol=1e-8, atol=1e-8)
    assert_allclose(w, features.T @ dual.dual_coef_, rtol=1e-6, atol=1e-7)
    assert_allclose(primal.dual_coef_, dual.dual_coef_, rtol=1e-6, atol=1e-7)
    # The gradient is zero, and any other coefficients have a larger J, as it is strictly convex.
    gradient = LAMBDA * w - features.T @ (v[:, None] * (sample.Y - b - features @ w))
    assert np.linalg.norm(gradient) < 1e-9 * np.linalg.norm(features.T @ (v[:, None] * sample.Y))
    other = w + 1e-3 * np.random.default_rng(1).standard_normal(w.shape)
    J, larger = (v @ (sample.Y - b - features @ u) ** 2 + LAMBDA * (u**2).sum(axis=0) for u in (w, other))
    assert (larger > J).all()


@pytest.mark.parametrize("phi", [InteractionMap(), TaylorMap(3), UnitLengthMap(PolynomialMap(2))], ids=str)
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_conjugate_gradient_finds_it_too(phi, form, sample):
    exact = fitted(phi, sample, "primal").predict(sample.X_new)
    assert_allclose(
        fitted(phi, sample, form, solver="cg", tol=1e-11).predict(sample.X_new), exact, rtol=1e-7, atol=1e-8
    )


def test_more_terms_of_the_series_approach_the_model_of_the_kernel(sample):
    exact = fitted(RBF(gamma=0.2), sample).predict(sample.X_new)
    radius = np.linalg.norm(np.vstack([sample.X, sample.X_new]), axis=1).max()
    errors = []
    for error in (1e-1, 1e-3, 1e-5, 1e-9):
        phi = TaylorMap.for_error(error, radius, n_features=4, gamma=0.2)
        errors.append(np.abs(fitted(phi, sample).predict(sample.X_new) - exact).max())
    # ‖(K + λ)⁻¹‖ ≤ 1/λ makes an error of e in the kernel one of at most about n e ‖y‖/λ in the predictions.
    assert all(later < 0.1 * earlier for earlier, later in pairwise(errors))
    assert errors[-1] < 1e-7
