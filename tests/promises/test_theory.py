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
from tests.oracles import naive_kernel_ridge

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
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)
each_map = pytest.mark.parametrize("phi", MAPS, ids=str)


def fitted(kernel, sample, form="dual", alpha=LAMBDA, weighted=False, **settings):
    model = KernelRidge(alpha=alpha, kernel=kernel, form=form, **settings)
    return model.fit(sample.X, sample.Y, sample.weights if weighted else None)


def objective(phi, w, Y, v, alpha=LAMBDA):
    """J of each target for features of the training rows and coefficients."""
    return v @ (Y - phi @ w) ** 2 + alpha * (w**2).sum(axis=0)


@pytest.mark.parametrize("kernel", [RBF(gamma=1.0), Laplacian(), Matern(0.5), Normalized(RBF(gamma=1.0) + Linear())])
def test_without_regularisation_least_squares_interpolates(kernel, sample):
    model = fitted(kernel, sample, alpha=0.0)
    assert_allclose(model.predict(sample.X), sample.Y, atol=1e-7)


def test_so_do_as_many_features_as_rows_and_no_fewer(sample):
    few = type(sample)(sample.X[:14], sample.Y[:14], sample.weights, sample.X_new)
    model = fitted(InteractionMap(), few, alpha=0.0, form="dual")  # D = 14
    assert_allclose(model.predict(few.X), few.Y, atol=1e-6)
    with pytest.raises(NotPositiveDefiniteError):
        fitted(InteractionMap(), sample, alpha=0.0, form="dual")
    least_squares = np.linalg.lstsq(InteractionMap().transform(sample.X), sample.Y, rcond=None)[0]
    assert_allclose(fitted(InteractionMap(), sample, alpha=0.0, form="primal").coef_, least_squares, rtol=1e-7)


def test_regularisation_towards_zero_leads_to_the_interpolant(sample):
    exact = fitted(RBF(gamma=1.0), sample, alpha=0.0).predict(sample.X_new)
    errors = [
        np.abs(fitted(RBF(gamma=1.0), sample, alpha=alpha).predict(sample.X_new) - exact).max()
        for alpha in (1e-2, 1e-4, 1e-6)
    ]
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


@each_map
def test_dual_coefficients_solve_the_regularised_system(phi, sample):
    K = phi.transform(sample.X) @ phi.transform(sample.X).T
    expected, _ = naive_kernel_ridge(K, sample.Y, [LAMBDA] * 2)
    assert_allclose(fitted(phi, sample).dual_coef_, expected, rtol=1e-7, atol=1e-9)
    expected, _ = naive_kernel_ridge(K, sample.Y, [LAMBDA] * 2, sample.weights)
    assert_allclose(fitted(phi, sample, weighted=True).dual_coef_, expected, rtol=1e-7, atol=1e-9)


@each_map
def test_representer_theorem(phi, sample):
    features, v = phi.transform(sample.X), sample.weights
    w = fitted(phi, sample, form="primal", weighted=True).coef_
    dual = fitted(phi, sample, form="dual", weighted=True).dual_coef_
    # The minimiser over all w lies in the span of φ(xᵢ), with the coefficients of the dual form.
    assert_allclose(w, features.T @ dual, rtol=1e-7, atol=1e-8 * np.abs(w).max())
    # What is orthogonal to the span changes no prediction, and costs its squared length.
    J, rng = objective(features, w, sample.Y, v), np.random.default_rng(1)
    noise = rng.standard_normal(w.shape)
    basis = np.linalg.svd(features, full_matrices=False)
    basis = basis[2][basis[1] > 1e-12 * basis[1][0]]
    across = noise - basis.T @ (basis @ noise)
    assert_allclose(features @ across, 0, atol=1e-9)
    raised = objective(features, w + across, sample.Y, v)
    assert_allclose(raised - J, LAMBDA * (across**2).sum(axis=0), rtol=1e-6, atol=1e-9 * J.max())
    # And so does any other change, as J is strictly convex.
    for size in (1e-3, 1.0):
        assert (objective(features, w + size * noise, sample.Y, v) > J).all()
    gradient = 2 * LAMBDA * w - 2 * features.T @ (v[:, None] * (sample.Y - features @ w))
    assert np.linalg.norm(gradient) < 1e-9 * np.linalg.norm(2 * features.T @ (v[:, None] * sample.Y))


@each_kernel
def test_the_gradient_is_zero_in_the_space_of_the_kernel(kernel, sample):
    # ∇J = 2 Σ (λαᵢ − vᵢ(yᵢ − f(xᵢ))) k(·, xᵢ), with the squared norm rᵀKr.
    K, dual = kernel(sample.X), fitted(kernel, sample, weighted=True).dual_coef_
    r = LAMBDA * dual - sample.weights[:, None] * (sample.Y - K @ dual)
    largest = np.einsum("it,ij,jt->t", sample.Y, K, sample.Y)
    assert (np.einsum("it,ij,jt->t", r, K, r) < 1e-18 * largest).all()


@pytest.mark.parametrize("subject", KERNELS + MAPS, ids=str)
def test_residuals_are_the_dual_coefficients(subject, sample):
    form = "primal" if subject in MAPS else "dual"
    model = fitted(subject, sample, form)
    assert_allclose(sample.Y - model.predict(sample.X), LAMBDA * model.dual_coef_, rtol=1e-7, atol=1e-8)
    model = fitted(subject, sample, form, weighted=True, fit_intercept=True)
    expected = LAMBDA * model.dual_coef_ / sample.weights[:, None]
    assert_allclose(sample.Y - model.predict(sample.X), expected, rtol=1e-7, atol=1e-8)
    assert_allclose(model.dual_coef_.sum(axis=0), 0, atol=1e-7)  # the intercept has no penalty


def squared_norm(model):
    """‖f‖² in the space of the kernel, of each target: αᵀKα."""
    K = model._model.kernel(model.X_fit_)
    return np.einsum("it,ij,jt->t", model.dual_coef_, K, model.dual_coef_)


@each_map
def test_the_norm_of_the_function_is_that_of_its_coefficients(phi, sample):
    model = fitted(phi, sample, form="primal")
    assert_allclose(squared_norm(model), (model.coef_**2).sum(axis=0), rtol=1e-7)


@each_kernel
def test_the_norm_without_the_matrix(kernel, sample):
    # Kα = y − λα, so that αᵀKα takes the targets and the dual coefficients alone.
    model = fitted(kernel, sample)
    found = (model.dual_coef_ * (sample.Y - LAMBDA * model.dual_coef_)).sum(axis=0)
    assert_allclose(found, squared_norm(model), rtol=1e-8)
    # With weights and an intercept Kα = y − b − λW⁻¹α.
    other = fitted(kernel, sample, weighted=True, fit_intercept=True)
    rest = sample.Y - other.intercept_ - LAMBDA * other.dual_coef_ / sample.weights[:, None]
    assert_allclose((other.dual_coef_ * rest).sum(axis=0), squared_norm(other), rtol=1e-8)
    # f is the shortest function with its values at the rows, and at most as long as any f that fits as well.
    K = kernel(sample.X)
    values = K @ model.dual_coef_
    assert_allclose(np.einsum("it,it->t", values, np.linalg.solve(K, values)), squared_norm(model), rtol=1e-5)


@pytest.mark.parametrize("phi", [IdentityMap(), PolynomialMap(3), TaylorMap(4, gamma=0.3)], ids=str)
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_the_lagrangian_dual(phi, form, sample):
    # minimise ½‖z‖² + ½λ‖w‖² subject to z = Φw − y: L = ½‖z‖² + ½λ‖w‖² + μᵀ(Φw − y − z).
    features, y = phi.transform(sample.X), sample.Y
    alpha = fitted(phi, sample, form).dual_coef_
    w, mu = features.T @ alpha, -LAMBDA * alpha
    z = features @ w - y

    def lagrangian(z, w, mu):
        return ((z**2).sum(axis=0) + LAMBDA * (w**2).sum(axis=0)) / 2 + (mu * (features @ w - y - z)).sum(axis=0)

    def dual(mu):
        return -(mu**2).sum(axis=0) / 2 - ((features.T @ mu) ** 2).sum(axis=0) / (2 * LAMBDA) - (mu * y).sum(axis=0)

    # The multipliers are −λα and the residuals Φw − y: L is stationary there in all three.
    assert_allclose(z, mu, rtol=1e-8, atol=1e-9)
    assert_allclose(LAMBDA * w + features.T @ mu, 0, atol=1e-8 * np.abs(w).max())
    # Strong duality, and both values are ½λ yᵀα.
    primal = ((z**2).sum(axis=0) + LAMBDA * (w**2).sum(axis=0)) / 2
    assert_allclose(dual(mu), primal, rtol=1e-9)
    assert_allclose(LAMBDA * (y * alpha).sum(axis=0) / 2, primal, rtol=1e-9)
    # A saddle: other multipliers bound the objective from below, other z and w from above.
    rng = np.random.default_rng(2)
    for size in (1e-2, 1.0):
        other = mu + size * rng.standard_normal(mu.shape)
        near = w + size * rng.standard_normal(w.shape)
        assert (dual(other) < primal).all()
        assert (lagrangian(features @ near - y, near, mu) > primal).all()
        # The dual function is the smallest value of L over z and w, which it has at z = μ and w = −Φᵀμ/λ.
        assert_allclose(lagrangian(other, -features.T @ other / LAMBDA, other), dual(other), rtol=1e-9)
        assert (lagrangian(other + size, near, other) > dual(other)).all()


@each_kernel
def test_reproducing_property_bounds_values_by_the_norm(kernel, sample):
    model = fitted(kernel, sample)
    # |f(x)| = |⟨f, k(·, x)⟩| ≤ ‖f‖ √k(x, x)
    bound = np.sqrt(np.outer(kernel.diagonal(sample.X_new), squared_norm(model)))
    assert (np.abs(model.predict(sample.X_new)) <= bound * (1 + 1e-12)).all()


@each_map
def test_primal_and_dual_are_one_model(phi, sample):
    primal, dual = (fitted(phi, sample, form, weighted=True, fit_intercept=True) for form in ("primal", "dual"))
    assert (primal.plan_.form, dual.plan_.form) == ("primal", "dual")
    assert_allclose(primal.predict(sample.X_new), dual.predict(sample.X_new), rtol=1e-8, atol=1e-8)
    assert_allclose(primal.coef_, phi.transform(sample.X).T @ dual.dual_coef_, rtol=1e-6, atol=1e-7)
    assert_allclose(primal.dual_coef_, dual.dual_coef_, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("phi", [InteractionMap(), TaylorMap(3), UnitLengthMap(PolynomialMap(2))], ids=str)
def test_conjugate_gradient_finds_it_too(phi, sample):
    exact = fitted(phi, sample, form="primal").predict(sample.X_new)
    for form in ("primal", "dual"):
        found = fitted(phi, sample, form, solver="cg", tol=1e-11).predict(sample.X_new)
        assert_allclose(found, exact, rtol=1e-7, atol=1e-8)


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
