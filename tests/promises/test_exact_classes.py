"""Logistic regressions are exact: they find the minimum that Newton's method with the whole Hessian finds."""

import functools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from dkrr import KernelLogisticRegression
from dkrr.kernels import RBF, Linear, Polynomial
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky
from tests.oracles import assert_close, kernel_features, naive_gradient, naive_gram, naive_logistic, naive_probabilities
from tests.pairs import covering, each_value

pytestmark = pytest.mark.usefixtures("one_blas_thread")

N, D = 61, 3  # 61 is prime: no tile divides it
ALPHA = 0.05
KERNELS = {
    "linear": Linear(),
    "polynomial": Polynomial(degree=2, gamma=0.4, coef0=1.0),
    "rbf": RBF(gamma=0.3),
    "precomputed": "precomputed",
}
"""The precomputed one is that of "rbf"."""
PROBLEMS = {"binary": (2, False), "softmax": (3, False), "one against the rest": (3, True)}
DUAL = {
    "cholesky": {"solver": "cholesky"},
    "cholesky tiles": {"solver": "cholesky", "tile": 40},
    "cholesky store": {"solver": "cholesky", "tile": 40, "store": "run"},
    "cg": {"solver": "cg"},
    "cg tiles": {"solver": ConjugateGradient(RPCholesky(40), precision="mixed"), "tile": 17},
    "plain cg": {"solver": ConjugateGradient(None)},
    "float32 tiles": {"solver": ConjugateGradient(Float32Cholesky()), "tile": 40},
}
PRIMAL = {"cholesky": {"solver": "cholesky"}, "cholesky tiles": {"solver": "cholesky", "tile": 4}}
PRIMAL |= {"cg": {"solver": "cg"}, "cg store": {"solver": "cg", "tile": 4, "store": "run"}}
OBJECTIVES = [(True, True), (False, True), (True, False)]  # weights, intercept


@functools.cache
def samples(n_classes, n=N, d=D, seed=0):
    """X, codes that depend on it but overlap, weights of which some are zero, and new rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    scores = 2 * np.column_stack([X[:, 0] * X[:, -1], np.sin(2 * X[:, 0]), X[:, -1], X[:, 0]])[:, :n_classes]
    codes = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    codes[:n_classes] = np.arange(n_classes)
    weights = rng.uniform(0.2, 3.0, n)
    weights[[n // 2, n - 1]] = 0.0
    return X, codes, weights, rng.normal(size=(11, d))


def gram(kernel, X, Y=None):
    """Naive matrix of a kernel of KERNELS."""
    return naive_gram(KERNELS["rbf" if kernel == "precomputed" else kernel], X, Y)


@functools.cache
def textbook(kernel, problem, weighted, fit_intercept, alpha=ALPHA):
    """Dual coefficients and intercepts of the naive minimiser."""
    n_classes, one_vs_rest = PROBLEMS[problem]
    X, codes, weights, _ = samples(n_classes)
    phi = kernel_features(gram(kernel, X))
    found = naive_logistic(phi, codes, alpha, weights if weighted else None, fit_intercept, one_vs_rest)
    return found[2], found[1]


def check(model, problem, kernel, weighted):
    """A fitted model against the textbook, and what its result says against the gradient itself."""
    n_classes, one_vs_rest = PROBLEMS[problem]
    X, codes, weights, X_new = samples(n_classes)
    weights = weights if weighted else None
    coef, intercept = textbook(kernel, problem, weighted, model.fit_intercept)
    assert_allclose(model.intercept_, intercept, atol=1e-6)
    scores = gram(kernel, X_new, X) @ coef + intercept
    new_rows, P = gram(kernel, X_new, X) if kernel == "precomputed" else X_new, naive_probabilities(scores, one_vs_rest)
    assert_close(model.decision_function(new_rows), scores[:, 0] if n_classes == 2 else scores, 1e-6)
    assert_allclose(model.predict_proba(new_rows), P, atol=1e-6)
    assert_allclose(model.predict_log_proba(new_rows), np.log(P), atol=1e-5)
    assert_array_equal(model.predict(new_rows), P.argmax(axis=1))
    result = model.solve_result_
    assert result.status.name == "CONVERGED" and result.residual <= 1e-10
    assert [s.step for s in result.steps] == list(range(1, model.n_iter_ + 1))
    assert result.steps[-1].gradient == result.residual
    assert result.inner_iterations == sum(s.inner_iterations for s in result.steps)
    if model.plan_.form == "dual":
        assert_close(model.dual_coef_, coef, 1e-7)
        K = gram(kernel, X)
        arguments = (K, codes, ALPHA, model.dual_coef_, model.intercept_, weights, model.fit_intercept, one_vs_rest)
        assert naive_gradient(*arguments) <= 1e-10
        objectives = [s.objective for s in result.steps]
        assert all(later <= earlier * (1 + 1e-13) for earlier, later in pairwise(objectives))
        assert result.steps[-1].objective == pytest.approx(objective(K, codes, weights, model, one_vs_rest), rel=1e-10)


def objective(K, codes, weights, model, one_vs_rest):
    """−Σ vᵢ log p(codeᵢ) + λ Σ ‖f‖²; of one against the rest the sum over the models."""
    v, Y, scores = 1.0 if weights is None else weights, np.eye(codes.max() + 1)[codes], K @ model.dual_coef_
    scores = scores + model.intercept_
    is_softmax = not one_vs_rest
    P = naive_probabilities(scores) if is_softmax else 1 / (1 + np.exp(-scores))
    log_p = np.log((Y * P).sum(axis=1)) if is_softmax else (Y * np.log(P) + (1 - Y) * np.log(1 - P)).sum(axis=1)
    return -np.sum(v * log_p) + ALPHA * np.trace(model.dual_coef_.T @ K @ model.dual_coef_)


def fitted(problem, kernel, weighted, tmp_path, **settings):
    n_classes, one_vs_rest = PROBLEMS[problem]
    X, codes, weights, _ = samples(n_classes)
    X = gram(kernel, X) if kernel == "precomputed" else X
    settings = settings | ({"store": f"{tmp_path}/run.zarr"} if "store" in settings else {})
    model = KernelLogisticRegression(ALPHA, kernel=KERNELS[kernel], one_vs_rest=one_vs_rest, tol=1e-10, **settings)
    return model.fit(X, codes, sample_weight=weights if weighted else None)


FORMS = {"dual": (DUAL, ["rbf", "polynomial", "precomputed"]), "primal": (PRIMAL, ["linear", "polynomial"])}
CASES = [(form, *one) for form, of in FORMS.items() for one in covering(*map(list, of), list(PROBLEMS), OBJECTIVES)]


@pytest.mark.parametrize(("form", "way", "kernel", "problem", "objective"), each_value(CASES))
def test_fits_are_the_textbook_minimum(form, way, kernel, problem, objective, tmp_path):
    (weighted, fit_intercept), settings = objective, FORMS[form][0][way]
    model = fitted(problem, kernel, weighted, tmp_path, form=form, fit_intercept=fit_intercept, **settings)
    assert (model.plan_.form, model.plan_.execution) == (form, "serial" if "tile" in settings else "memory")
    check(model, problem, kernel, weighted)
    if form == "dual" and fit_intercept:  # which has no penalty
        assert_allclose(model.dual_coef_.sum(axis=0), 0.0, atol=1e-6 * np.abs(model.dual_coef_).sum())


@pytest.mark.parametrize("form", ["dual", "primal"])
@given(
    n=st.integers(2, 30),
    d=st.integers(1, 20),
    n_classes=st.integers(2, 4),
    n_tiles=st.one_of(st.none(), st.integers(1, 4)),
    kernel=st.sampled_from([Linear(), RBF(gamma=0.3)]),
    solver=st.sampled_from(["auto", "cholesky", "cg"]),
    one_vs_rest=st.sampled_from([False, True]),
    fit_intercept=st.booleans(),
    weighted=st.booleans(),
)
def test_data_of_any_shape(form, n, d, n_classes, n_tiles, kernel, solver, one_vs_rest, fit_intercept, weighted):
    """Fewer rows than columns and more, one row for each class, any tile."""
    kernel = Linear() if form == "primal" else kernel
    n = max(n, n_classes)
    X, codes, weights, _ = samples(n_classes, n, d, seed=n)
    weights = np.maximum(weights, codes != codes[::-1]) if weighted else None  # some of each class count
    weights = None if weights is None or any(weights[codes == k].sum() == 0 for k in range(n_classes)) else weights
    tile = None if n_tiles is None else -(-(d if form == "primal" else n) // n_tiles)
    model = KernelLogisticRegression(0.3, kernel=kernel, form=form, solver=solver, one_vs_rest=one_vs_rest, tol=1e-9)
    model.set_params(fit_intercept=fit_intercept, tile=tile).fit(X, codes, sample_weight=weights)
    K = naive_gram(kernel, X)
    found = naive_logistic(kernel_features(K), codes, 0.3, weights, fit_intercept, one_vs_rest)
    expected = naive_probabilities(K @ found[2] + found[1], one_vs_rest)
    assert_allclose(model.predict_proba(X), expected, atol=1e-6)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_class_weights_multiply_those_of_rows(problem):
    n_classes, one_vs_rest = PROBLEMS[problem]
    X, codes, weights, X_new = samples(n_classes)
    model = KernelLogisticRegression(ALPHA, kernel="rbf", one_vs_rest=one_vs_rest, tol=1e-10)
    factors, totals = np.array([0.3, 2.0, 1.0][:n_classes]), np.bincount(codes, weights)
    balanced = totals.sum() / (n_classes * totals)  # which makes the totals equal
    for class_weight, expected in ((dict(enumerate(factors)), factors), ("balanced", balanced)):
        alone = clone(model).fit(X, codes, sample_weight=weights * expected[codes]).predict_proba(X_new)
        both = clone(model).set_params(class_weight=class_weight).fit(X, codes, sample_weight=weights)
        assert_allclose(both.predict_proba(X_new), alone, atol=1e-7)
