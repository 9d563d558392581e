"""What the theory says of a fitted model, one fact to a test.

Notation of docs/developers/numerics.md: f(x) = Σ αᵢ k(x, xᵢ) = φ(x)ᵀw minimises J(f) = Σ vᵢ (yᵢ − f(xᵢ))² + λ‖f‖².
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr import KernelRidge
from dkrr.errors import NotPositiveDefiniteError
from dkrr.features import TaylorMap
from dkrr.kernels import RBF, Cosine, Laplacian, Linear, Matern, Normalized, Polynomial, TaylorRBF
from dkrr.kernels.interactions import InteractionMap
from dkrr.kernels.nystroem import whitened
from tests.contracts.maps import MAPS

pytestmark = pytest.mark.usefixtures("one_blas_thread")

LAMBDA = 0.3
RNG = np.random.default_rng(5)
X, X_NEW, WEIGHTS = RNG.standard_normal((60, 4)), RNG.standard_normal((15, 4)), RNG.uniform(0.2, 3.0, 60)
Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] * X[:, 2]]) + 0.1 * RNG.standard_normal((60, 2))
KERNELS = [
    RBF(gamma=0.4),
    Laplacian(),
    Matern(nu=1.5),
    TaylorRBF(degree=6, gamma=0.4),
    Normalized(Polynomial() + RBF()),
]
KERNELS += [0.5 * RBF() + Linear() * Cosine()]
FEATURES = [*MAPS, whitened(RBF(gamma=0.2), RNG.standard_normal((20, 4)))]


def fitted(kernel, form="dual", weights=WEIGHTS):
    return KernelRidge(LAMBDA, kernel=kernel, form=form, fit_intercept=True).fit(X, Y, weights)


def gram(subject, X):
    """Matrix of a kernel, or of the inner products of a feature map."""
    return subject.transform(X) @ subject.transform(X).T if subject in FEATURES else subject(X)


def test_without_regularisation_as_many_features_as_rows_interpolate_and_no_fewer():
    model = KernelRidge(0.0, kernel=InteractionMap(), form="dual")
    assert_allclose(model.fit(X[:14], Y[:14]).predict(X[:14]), Y[:14], atol=1e-6)  # D = 14
    with pytest.raises(NotPositiveDefiniteError):
        model.fit(X, Y)


@pytest.mark.parametrize("subject", KERNELS + FEATURES, ids=str)
def test_residuals_and_the_norm_are_those_of_the_space_of_the_kernel(subject):
    model, K = fitted(subject), gram(subject, X)
    # The gradient is zero: residuals are the dual coefficients, and the constant, which has no penalty, is their mean.
    assert_allclose(WEIGHTS[:, None] * (Y - model.predict(X)), LAMBDA * model.dual_coef_, rtol=1e-7, atol=1e-7)
    assert_allclose(model.dual_coef_.sum(axis=0), 0, atol=1e-7)
    squares = np.einsum("it,ij,jt->t", model.dual_coef_, K, model.dual_coef_)
    assert_allclose(model.rkhs_norm_**2, squares, rtol=1e-7, atol=1e-10)
    # |f(x)| = |⟨f, k(·, x)⟩| ≤ ‖f‖ √k(x, x)
    bound = np.outer(np.sqrt(gram(subject, X_NEW).diagonal()), model.rkhs_norm_)
    assert (np.abs(model.predict(X_NEW) - model.intercept_) <= bound * (1 + 1e-12) + 1e-12).all()


@pytest.mark.parametrize("phi", FEATURES, ids=str)
def test_primal_and_dual_are_one_model_as_the_representer_theorem_says(phi):
    primal, dual = (fitted(phi, form) for form in ("primal", "dual"))
    assert (primal.plan_.form, dual.plan_.form) == ("primal", "dual")
    features, v, w, b = phi.transform(X), WEIGHTS, primal.coef_.T, primal.intercept_
    assert_allclose(primal.predict(X_NEW), dual.predict(X_NEW), rtol=1e-8, atol=1e-8)
    assert_allclose(primal.rkhs_norm_, np.linalg.norm(w, axis=0), rtol=1e-7)
    assert_allclose(w, features.T @ dual.dual_coef_, rtol=1e-6, atol=1e-7)
    assert_allclose(primal.dual_coef_, dual.dual_coef_, rtol=1e-6, atol=1e-7)
    # The gradient is zero, and any other coefficients have a larger J, as it is strictly convex.
    gradient = LAMBDA * w - features.T @ (v[:, None] * (Y - b - features @ w))
    assert np.linalg.norm(gradient) < 1e-9 * np.linalg.norm(features.T @ (v[:, None] * Y))
    other = w + 1e-3 * np.random.default_rng(1).standard_normal(w.shape)
    J, larger = (v @ (Y - b - features @ u) ** 2 + LAMBDA * (u**2).sum(axis=0) for u in (w, other))
    assert (larger > J).all()


def test_formulas_that_are_often_misprinted():
    """Signs and inverses as in dkrr, each with the wrong formula that texts have in its place.

    - XᵀXw + λw = Xᵀy, with a plus: the gradient of ‖y − Xw‖² + λ‖w‖² is −2Xᵀ(y − Xw) + 2λw.
    - α = (K + λI)⁻¹y, with an inverse.
    - α = (y − Xw)/λ: targets minus predictions. With a mean in place of the sum, (1/n)‖y − Xw‖² + λ‖w‖², nλ takes the
      place of λ; a factor ½ before both terms changes nothing.
    - The multipliers of the constraint z = Xw − y are −λα, not α: in ½‖z‖² + ½λ‖w‖² + μᵀ(Xw − y − z) they are μ = z.
    - The Taylor map's kernel is exp(−‖x − z‖²/2σ²): γ = 1/2σ², not 1/σ or 1/σ², and a minus.
    """
    y, identity = Y[:, 0], np.eye(60)
    primal, dual = (KernelRidge(LAMBDA, form=form).fit(X, y) for form in ("primal", "dual"))
    w, alpha, K = primal.coef_, dual.dual_coef_, X @ X.T
    assert_allclose(X.T @ X @ w + LAMBDA * w, X.T @ y)
    assert not np.allclose(X.T @ X @ w - LAMBDA * w, X.T @ y)
    assert_allclose(alpha, np.linalg.inv(K + LAMBDA * identity) @ y, rtol=1e-9)
    assert not np.allclose(alpha, (K + LAMBDA * identity) @ y)
    assert_allclose(alpha, (y - X @ w) / LAMBDA, rtol=1e-9)
    assert_allclose(w, X.T @ alpha, rtol=1e-9)
    multipliers = X @ w - y
    assert_allclose(multipliers, -LAMBDA * alpha, rtol=1e-9)
    assert_allclose(w, -X.T @ multipliers / LAMBDA, rtol=1e-9)
    sigma, near = 2.0, X[:5]
    phi = TaylorMap(25, gamma=1 / (2 * sigma**2)).transform(near)
    squares = ((near[:, None] - near[None, :]) ** 2).sum(axis=2)
    assert_allclose(phi @ phi.T, np.exp(-squares / (2 * sigma**2)))
    assert_allclose(phi @ phi.T, RBF(gamma=1 / (2 * sigma**2))(near))
    assert not np.allclose(phi @ phi.T, np.exp(-squares / sigma**2))
