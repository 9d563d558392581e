"""Fits are exact: whatever the kernel, form, place and data, they find what naive loops and dense solvers find."""

from functools import cache

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import KernelRidge
from dkrr.features import feature_map
from dkrr.kernels import RBF, CallableKernel, Cosine, Laplacian, Linear, Polynomial
from dkrr.kernels.interactions import InteractionMap
from dkrr.kernels.map_base import MapKernel
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky, Status
from tests.cluster.clients import all_released
from tests.inputs import table
from tests.oracles import assert_close, naive_gram, naive_kernel_ridge, naive_residual
from tests.pairs import covering, every_pair

pytestmark = pytest.mark.usefixtures("one_blas_thread")

N = 61  # a prime: no tile divides it
ALPHAS = np.array([0.1, 0.7, 0.1])


def sample(n=N, d=5, t=3, seed=0):
    """Rows, targets, weights of which some are zero, and new rows."""
    rng = np.random.default_rng([seed, n, d, t])
    weights = rng.uniform(0.1, 3.0, n) * (rng.random(n) > 0.15)
    weights[n // 2] = 2.0
    return rng.normal(size=(n, d)), rng.normal(size=(n, t)) + 2.0, weights, rng.normal(size=(7, d))


def cg(*settings, **more):
    return {"solver": ConjugateGradient(*settings, **more), "tol": 1e-12}


PLACES = {
    "memory": {},
    "tiles": {"tile": 17},
    "store": {"tile": 17, "store": "run"},
    "float32": cg(Float32Cholesky()),
    "float32 tiles": cg(Float32Cholesky()) | {"tile": 17},
    "cg": cg(precision="float64"),
    "cg store": cg(RPCholesky(11), precision="mixed") | {"tile": 17, "store": "run"},
    "plain cg": cg(None, precision="mixed"),
}
PRIMAL_PLACES = {"memory": {}, "tiles": {"tile": 4}, "cg": cg(), "cg tiles": cg() | {"tile": 4}}
PRIMAL_PLACES["plain cg store"] = cg(None) | {"tile": 4, "store": "run"}
PROBLEMS = [(True, True), (False, True), (True, False), (False, False)]  # weights, intercept


def stored(settings, folder):
    """The same settings, with a store in a folder if there is one."""
    return settings | ({"store": f"{folder}/run.zarr"} if "store" in settings else {})


def check_ridge(model, K, K_new, rows_new, X, y, weights=None):
    """Coefficients, constants, predictions, residual and optimality of a fitted model."""
    Y = y if y.ndim == 2 else y[:, None]
    alpha = np.broadcast_to(model.alpha, Y.shape[1])
    coef, intercept = naive_kernel_ridge(K, Y, alpha, weights, model.fit_intercept)
    found, constants = model.dual_coef_.reshape(coef.shape), np.broadcast_to(model.intercept_, Y.shape[1])
    assert model.dual_coef_.shape == y.shape
    assert_close(found, coef, 1e-8)
    assert_allclose(constants, intercept, rtol=0, atol=1e-8 * np.abs(Y).max())
    predictions = np.asarray(model.predict(rows_new))
    assert predictions.shape == (len(K_new), *y.shape[1:])
    assert_close(predictions.reshape(len(K_new), -1), K_new @ coef + intercept, 1e-8)
    # λα = W (y − f(X)): the objective's gradient is zero, and rows without weight do not count.
    w = np.ones(len(Y)) if weights is None else weights
    assert_allclose(alpha * found, w[:, None] * (Y - np.asarray(model.predict(X)).reshape(Y.shape)), rtol=0, atol=1e-7)
    assert (found[w == 0] == 0).all() or model.plan_.form == "primal"
    result = model.solve_result_
    assert result.status in (Status.SOLVED, Status.CONVERGED) and result.residual <= 1e-11
    assert len(result.residuals) in (0, Y.shape[1])
    assert result.residual == max(result.residuals, default=result.residual)


def function(A, B):
    return np.exp(-0.2 * ((A[:, None] - B) ** 2).sum(axis=2))


DUAL = {"polynomial": Polynomial(degree=3, gamma=0.2, coef0=0.0), "rbf": RBF(gamma=0.2), "precomputed": "precomputed"}
DUAL |= {
    "sum of products": 0.5 * RBF(gamma=0.1) + Laplacian(gamma=0.1) * Cosine(),
    "function": CallableKernel(function),
}
PRIMAL = {"linear": Linear(), "polynomial": Polynomial(degree=2, gamma=0.3), "sum": 0.5 * Linear() + Cosine()}
FORMS = {"dual": (DUAL, PLACES), "primal": (PRIMAL, PRIMAL_PLACES)}
CASES = [(form, *one) for form, of in FORMS.items() for one in covering(*map(list, of), PROBLEMS)]


@cache
def grams(form, name):
    """Naive matrices of the training rows and of the new ones: the same for every way to fit."""
    X, _, _, X_new = sample()
    kernel = RBF(gamma=0.2) if name in ("function", "precomputed") else FORMS[form][0][name]
    return naive_gram(kernel, X), naive_gram(kernel, X_new, X)


@pytest.mark.parametrize(("form", "kernel", "place", "problem"), CASES)
def test_fits_are_the_textbook_formula(form, kernel, place, problem, tmp_path):
    (weighted, fit_intercept), (kernels, places) = problem, FORMS[form]
    X, y, weights, X_new = sample()
    (K, K_new), weights = grams(form, kernel), weights if weighted else None
    X, X_new = (K, K_new) if kernel == "precomputed" else (X, X_new)
    model = KernelRidge(ALPHAS if fit_intercept else 0.3, kernel=kernels[kernel], form=form)
    model.set_params(fit_intercept=fit_intercept, **stored(places[place], tmp_path)).fit(X, y, sample_weight=weights)
    plan = model.plan_
    assert (plan.form, plan.execution) == (form, "serial" if "tile" in places[place] else "memory")
    assert plan.solver == ("cg" if "cg" in place else plan.solver)
    check_ridge(model, K, K_new, X_new, X, y, weights)
    if form == "primal":
        phi = feature_map(kernels[kernel], 5)
        assert_close(model.coef_.T, phi.transform(X).T @ model.dual_coef_, 1e-7)  # w = Φᵀα
        assert_allclose(phi.transform(X_new) @ model.coef_.T + model.intercept_, model.predict(X_new), atol=1e-10)


SHAPES = {"memory": {}, "tiles": {}, "cg": cg(), "cg tiles": cg(precision="mixed")}


@pytest.mark.parametrize("place", SHAPES)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 30),
    t=st.integers(0, 4),
    n_tiles=st.integers(1, 5),
    form=st.sampled_from(["auto", "primal", "dual"]),
    kernel=st.sampled_from([Linear(), MapKernel(InteractionMap()), RBF(gamma=0.1)]),
    fit_intercept=st.booleans(),
    weighted=st.booleans(),
    repeated=st.booleans(),
)
def test_data_of_any_shape(place, n, d, t, n_tiles, form, kernel, fit_intercept, weighted, repeated):
    """Fewer rows than columns and more, one row, one target or several (0: a vector), equal rows, any tile."""
    d = min(d, 6) if isinstance(kernel, MapKernel) else d
    form = "dual" if form == "primal" and isinstance(kernel, RBF) else form
    size = n if form != "primal" else feature_map(kernel, d).dimension(d)
    X, y, weights, X_new = sample(n, d, max(t, 1))
    if repeated:
        X[n // 2 :] = X[0]
    y, weights = y if t else y[:, 0], weights if weighted else None
    model = KernelRidge(0.3, kernel=kernel, form=form, fit_intercept=fit_intercept, **SHAPES[place])
    model.set_params(tile=-(-size // n_tiles) if "tiles" in place else None).fit(X, y, sample_weight=weights)
    check_ridge(model, naive_gram(kernel, X), naive_gram(kernel, X_new, X), X_new, X, y, weights)


@every_pair(weighted=[False, True], fit_intercept=[False, True], form=["dual", "primal"])
def test_the_reported_residual_of_every_target_is_the_true_one(form, fit_intercept, weighted):
    X, y, weights, _ = sample(211)
    weights, w = (weights, weights) if weighted else (None, np.ones(211))
    model = KernelRidge(ALPHAS, kernel=Polynomial(degree=2), form=form, fit_intercept=fit_intercept)
    model.set_params(solver=ConjugateGradient(RPCholesky(3) if form == "dual" else None), tol=1e-3)
    result = model.fit(X, y, sample_weight=weights).solve_result_
    kernel, means = Polynomial(degree=2).resolved(5), w @ y / w.sum() if fit_intercept else 0.0
    if form == "dual":
        constants = np.broadcast_to(model.intercept_, 3)
        arguments = (y, ALPHAS, model.dual_coef_, constants, weights, fit_intercept)
        expected = naive_residual(naive_gram(kernel, X), *arguments)
    else:
        # Of the dual coefficients, with the constant that is best for them: weighted, and over all rows alike.
        used = w > 0
        left = (y - naive_gram(kernel, X) @ model.dual_coef_)[used] - ALPHAS * model.dual_coef_[used] / w[used, None]
        left -= w[used] @ left / w.sum() if fit_intercept else 0.0
        expected = np.max(
            [
                np.linalg.norm(root * left, axis=0) / np.linalg.norm(root * (y - means)[used], axis=0)
                for root in (np.sqrt(w[used, None]), 1.0)
            ],
            axis=0,
        )
    assert result.residual_of == "dual system"
    assert_allclose(result.residuals, expected, rtol=1e-4)
    assert result.residual == max(result.residuals) and 1e-7 < result.residual <= 1e-3


@pytest.mark.parametrize("place", ["memory", "tiles", "cg", "float32 tiles", "plain cg"])
def test_without_a_penalty_a_kernel_interpolates(place):
    X, y, weights, _ = sample()
    model = KernelRidge(0.0, kernel=Laplacian(gamma=0.5), **PLACES[place])
    assert_close(model.fit(X, y).predict(X), y)
    model.fit(X, y, sample_weight=weights)
    assert_close(model.predict(X[weights > 0]), y[weights > 0])


@pytest.mark.parametrize("tile", [None, 3])
def test_without_a_penalty_primal_fits_are_numpys_least_squares(tile):
    X, y, _, _ = sample()
    model = KernelRidge(0.0, kernel="linear", tile=tile).fit(X, y)
    assert model.plan_.form == "primal"
    assert_close(model.coef_.T, np.linalg.lstsq(X, y, rcond=None)[0])
    assert not hasattr(model, "dual_coef_")  # λ = 0 does not determine it


METHODS = [{"tile": 17, "store": "run"}, {"form": "primal", "tile": 2}, cg() | {"tile": 17}, cg() | {"form": "primal"}]


@every_pair(rows=["float32", "csr", "dask of csr", "zarr"], way=METHODS, ids=str)
def test_rows_of_any_kind(rows, way, tmp_path):
    """Every container is in `test_inputs.py`; here those that are read in other ways, in every form and place."""
    X, y, weights, _ = sample()
    X = np.where(np.abs(X) < 0.7, 0.0, np.round(X, 1)).astype(np.float32).astype(float)
    kind, taken = ("ndarray", X.astype(np.float32)) if rows == "float32" else (rows, X)
    given_rows, kernel = table(kind, tmp_path, taken).handed_in, Linear() if "form" in way else Laplacian(gamma=0.2)
    model = KernelRidge(0.5, kernel=kernel, fit_intercept=True, **stored(way, tmp_path))
    model.fit(given_rows, y, sample_weight=weights)
    K = naive_gram(kernel, X)
    check_ridge(model, K, K, given_rows, given_rows, y, weights)
    assert isinstance(model.predict(given_rows), da.Array if rows in ("dask of csr", "zarr") else np.ndarray)


def test_precomputed_matrices_may_be_lazy_or_stored(tmp_path):
    _, y, weights, _ = sample()
    K, K_new = grams("dual", "precomputed")
    zarr.save_array(f"{tmp_path}/k.zarr", K)
    for given_matrix in (da.from_array(K, chunks=(40, 60)), f"{tmp_path}/k.zarr"):
        for way in ({}, {"tile": 17}, cg(precision="mixed")):
            model = KernelRidge(0.2, kernel="precomputed", **way).fit(given_matrix, y, sample_weight=weights)
            check_ridge(model, K, K_new, K_new, K, y, weights)


def test_fits_on_workers_are_exact(ambient_workers, tmp_path):
    X, y, weights, X_new = sample(107)
    X, rbf, taken = np.where(np.abs(X) < 0.7, 0.0, X), RBF(gamma=0.3), set()
    zarr.save_array(f"{tmp_path}/k.zarr", naive_gram(rbf, X))
    tiles = {"solver": "cholesky", "tile": 40}
    iterations = tiles | {"solver": ConjugateGradient(RPCholesky(31), precision="mixed")}
    for rows, kernel, settings in (  # a large λ: few round trips
        (X, rbf, tiles),
        (sp.csr_array(X), rbf, iterations),
        (f"{tmp_path}/k.zarr", "precomputed", iterations),
        (da.from_array(X, chunks=(29, 2)), Linear(), tiles | {"form": "primal", "tile": 2}),
        (sp.csr_array(X), Linear(), {"form": "primal", "solver": "cg"}),
    ):
        known = rbf if kernel == "precomputed" else kernel
        K, K_new = naive_gram(known, X), naive_gram(known, X_new, X)
        model = KernelRidge(3.0, kernel=kernel, fit_intercept=True, tol=1e-12, **settings)
        model.fit(rows, y, sample_weight=weights)
        assert model.plan_.execution == "dask"
        taken |= {task.worker for task in model.solve_result_.record.tasks}
        check_ridge(model, K, K_new, *((K_new, K) if kernel == "precomputed" else (X_new, X)), y, weights)
    assert len(taken) == 2 and all_released(ambient_workers)


@pytest.mark.parametrize("place", ["tiles", "cg", "float32 tiles"])
def test_the_same_call_gives_the_same_bits(place):
    X, y, _, _ = sample()
    one, two = (KernelRidge(kernel="rbf", **PLACES[place]).fit(X, y).dual_coef_ for _ in range(2))
    assert_array_equal(one, two)
