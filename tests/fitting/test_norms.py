"""‖f‖ in the kernel's space, from the products of a fit, against arithmetic of 180 digits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import KernelRidge
from dkrr.fitting.data import TrainingData
from dkrr.fitting.norms import function_norms
from dkrr.kernels import RBF, Linear, Polynomial, Precomputed
from dkrr.rows import as_rows
from tests import precise

PLACES = {"memory": {}, "tiles": {"tile": 12}, "cg": {"solver": "cg", "tol": 1e-13}}
every_place = pytest.mark.parametrize("place", PLACES)


def sample(n=30, d=3):
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.0, 2.0, n)
    weights[4] = 0.0
    return rng.normal(size=(n, d)), rng.normal(size=n), weights


@every_place
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alpha", [1e-6, 1e15])
def test_for_any_alpha(place, fit_intercept, weighted, alpha):
    X, y, weights = sample()
    weights = weights if weighted else None
    exact = precise.ridge(RBF(0.5), X, y, alpha, sample_weight=weights, fit_intercept=fit_intercept)
    targets = np.column_stack([y] * 13)  # the check of tiles has a way of its own for many
    for columns in (targets[:, 0], targets):
        model = KernelRidge(alpha, kernel="rbf", gamma=0.5, fit_intercept=fit_intercept, **PLACES[place])
        model.fit(X, columns, sample_weight=weights)
        assert_allclose(model.norm_, exact.norm[0], rtol=1e-11)
        assert model.solve_result_.messages == () or place == "cg"


@every_place
@pytest.mark.parametrize("alpha", [1.0, 1e-12])
@pytest.mark.filterwarnings("ignore::dkrr.errors.ConvergenceWarning")
def test_opposite_targets_of_equal_rows_leave_nothing(place, alpha):
    X, y, _ = sample()
    model = KernelRidge(alpha, kernel="rbf", **PLACES[place]).fit(np.vstack([X, X]), np.concatenate([y, -y]))
    assert model.norm_ == 0.0
    (message,) = (m for m in model.solve_result_.messages if "norm_" in m)
    bound = float(message.split("below ")[1].split(",")[0])
    assert 0.0 < bound < 1e-5 * np.abs(model.dual_coef_).max()


@every_place
def test_near_duplicates(place):
    X, y, _ = sample()
    rows = np.vstack([X, X + 1e-6 * X[::-1]])
    targets = np.concatenate([y, y[::-1]])
    exact = precise.ridge(RBF(0.5), rows, targets, 1e-2)
    model = KernelRidge(1e-2, kernel="rbf", gamma=0.5, **PLACES[place]).fit(rows, targets)
    assert_allclose(model.norm_, exact.norm[0], rtol=1e-7)


@pytest.mark.parametrize("kind", ["unit diagonal", "any diagonal", "precomputed"])
def test_what_rounding_hides(kind):
    X, _, _ = sample()
    kernel = RBF(0.5) if kind == "unit diagonal" else Polynomial(degree=2)
    K = kernel(X)
    rows = as_rows(X)
    if kind == "precomputed":
        kernel, rows = Precomputed(), as_rows(K)
    coef = np.random.default_rng(1).standard_normal((30, 3))
    data = TrainingData(
        rows=rows,
        weights=None,
        kernel=kernel,
        feature_map=None,
        fit_intercept=False,
        targets=coef,
        alphas=np.ones(3),
    )
    errors = 2 * np.finfo(float).eps * np.sqrt(30) * np.einsum("i,ij,ij->j", K.diagonal(), coef, coef)
    norms, messages = function_norms(data, rows, coef, errors * [0.9, 1.1, -1.0])
    assert_allclose(norms, [0.0, np.sqrt(1.1 * errors[1]), 0.0], rtol=1e-12)
    assert len(messages) == 1 and "target 0 and 1 more" in messages[0]
    norms, messages = function_norms(data, rows, np.zeros((30, 3)), np.zeros(3))
    assert_array_equal(norms, 0.0)
    assert messages == ()  # of nothing, nothing is hidden


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_large_rows_and_small_targets(form):
    X, y, _ = sample()
    exact = precise.ridge(Linear(), X * 1e8, y, 1e10)
    model = KernelRidge(1e10, form=form).fit(X * 1e8, np.ldexp(y, -700))
    assert_allclose(np.ldexp(model.norm_, 700), exact.norm[0], rtol=1e-9)
