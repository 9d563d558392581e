"""Fits that factor in float32 first: the accuracy of float64, whatever the problem, and what a breakdown leads to."""

import gc

import dask
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.fitting import run
from dkrr.kernels import RBF
from dkrr.linalg.memory import ONE_TILE
from dkrr.planning import Float32Factor
from dkrr.planning.strategy import codes_of
from dkrr.solvers import ConjugateGradient, Float32Cholesky, Status
from dkrr.solvers import direct as refining
from dkrr.store import MemoryMatrix

pytestmark = pytest.mark.usefixtures("one_blas_thread")

N = ONE_TILE + 53
FLOAT32, SETTINGS = ConjugateGradient(Float32Cholesky()), {"kernel": "rbf", "gamma": 0.3}


@pytest.fixture(autouse=True)
def _slow_machine():
    """Makes so few rows a problem that takes long enough to be worth a factor in float32."""
    with dask.config.set({"dkrr.rates.gemm-gflops": 5}):
        yield


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3))
    y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 0.1 * rng.standard_normal((N, 2))
    weights = 10.0 ** rng.uniform(-4, 0, N)
    weights[7] = 0.0
    return X, y, weights


def in_float32(model):
    return isinstance(model.plan_.chosen.how, Float32Factor)


def check_against_float64(model, X, y, weights=None):
    """The same function, residual and condition as a factorisation in float64."""
    model.fit(X, y, sample_weight=weights)
    other = clone(model).set_params(solver="cholesky").fit(X, y, sample_weight=weights)
    assert in_float32(model) and not in_float32(other)
    found, expected = model.solve_result_, other.solve_result_
    assert found.status is expected.status is Status.SOLVED
    assert found.residual <= 3 * expected.residual
    assert 0 < found.iterations < 15 and expected.iterations == 0
    assert found.condition == pytest.approx(expected.condition, rel=0.5)
    assert any("factored in float32" in m for m in found.messages)
    assert not any("float32" in m for m in expected.messages)
    assert_allclose(model.predict(X[:50]), other.predict(X[:50]), atol=1e-8)
    assert_allclose(model.norm_, other.norm_, rtol=1e-9)


@pytest.mark.parametrize("tile", [None, 700])
@pytest.mark.parametrize(
    ("weighted", "fit_intercept", "alpha"), [(False, False, 1e-2), (True, True, [1.0, 0.1]), (False, True, 1e9)]
)
def test_fits_in_float32_are_as_accurate_as_in_float64(data, tile, weighted, fit_intercept, alpha):
    X, y, weights = data
    model = KernelRidge(alpha, **SETTINGS, fit_intercept=fit_intercept, tile=tile)
    check_against_float64(model, X, y, np.maximum(weights, 0.01) if weighted else None)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_newton_steps_are_solved_in_float32(data, n_classes):
    X, labels = data[0][:700], np.digitize(data[1][:700, 0], [-0.3, 0.3][: n_classes - 1])
    model, other = (KernelLogisticRegression(0.1, **SETTINGS, solver=s).fit(X, labels) for s in (FLOAT32, "cholesky"))
    assert in_float32(model) and model.plan_.execution == "memory"
    assert model.solve_result_.status is Status.CONVERGED and model.solve_result_.residual <= 1e-8
    assert_allclose(model.predict_proba(X[:40]), other.predict_proba(X[:40]), atol=1e-6)


def test_a_plan_foresees_that_alpha_is_too_small(data):
    model = KernelRidge(1e-7, **SETTINGS).fit(*data[:2])
    assert not in_float32(model) and model.solve_result_.iterations == 0
    assert "float64" in codes_of(model.plan_.reasons)


def test_the_diagonal_shows_that_alpha_is_too_small(data):
    # A plan does not know the scale of these entries.
    X, y, _ = data
    K = 1e6 * RBF(gamma=0.3)(X)
    model = KernelRidge(1.0, kernel="precomputed").fit(K, y)
    assert model.solve_result_.status is Status.SOLVED and not in_float32(model)
    assert model.solve_result_.messages[0].startswith("λ is too small for a factor in float32")
    assert_allclose(model.predict(K[:9]), K[:9] @ np.linalg.solve(K + np.eye(N), y), atol=1e-4)


def test_a_breakdown_leads_to_float64_and_is_released_first(data, monkeypatch):
    X, y, _ = data
    planned, alive = run.plan_of, []

    def plan_of(request):
        alive.append(sum(isinstance(o, MemoryMatrix) and o.dtype == np.float32 for o in gc.get_objects()))
        return planned(request)

    monkeypatch.setattr(run, "plan_of", plan_of)
    gc.collect()
    gc.disable()
    try:
        model = KernelRidge(1e-8, **SETTINGS, solver=FLOAT32).fit(X, y)
    finally:
        gc.enable()
    assert alive == [0, 0], "of the first plan, and of the second one"
    found = model.solve_result_
    assert found.status is Status.SOLVED and not in_float32(model)
    assert "broke down at row" in found.messages[0] and "factoring in float64 instead" in found.messages[0]


@pytest.mark.parametrize("tile", [None, 700])
def test_iterations_that_do_not_end_lead_to_float64(data, monkeypatch, tile):
    monkeypatch.setattr(refining, "MAX_REFINEMENTS", 1)
    found = KernelRidge(1e-2, **SETTINGS, tile=tile).fit(*data[:2]).solve_result_
    assert "did not reach the level of rounding" in found.messages[0]
    assert not any("factored in float32" in message for message in found.messages)
    assert found.status is Status.SOLVED and found.residual <= 1e-12


def test_a_factor_in_float32_is_found_in_the_store(data, tmp_path):
    models = [KernelRidge(1e-2, **SETTINGS, tile=700, store=tmp_path / "r.zarr").fit(*data[:2]) for _ in range(2)]
    tasks = [[t.key for t in model.solve_result_.record.tasks if t.key.startswith("L-")] for model in models]
    assert all(map(in_float32, models)) and tasks[0] and not tasks[1]
    assert_array_equal(models[1].dual_coef_, models[0].dual_coef_)
