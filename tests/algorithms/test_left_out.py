"""Rows of weight 0 that a factor still has: solutions are those of the system without them."""

from pathlib import Path

import dask
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import blas
from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg import left_out
from dkrr.linalg.factor import LocalFactor, ScaledFactor
from dkrr.linalg.left_out import LeftOutFactor, pays
from dkrr.linalg.square import SquareFactor
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from dkrr.store import MemoryMatrix, RunStore

N, RNG = 1200, np.random.default_rng(5)
ROWS = RNG.normal(size=(N, 4))
K = np.exp(-0.3 * ((ROWS[:, None] - ROWS[None]) ** 2).sum(axis=-1))
B = RNG.normal(size=(N, 3))


def factored(alpha, dtype=np.float64):
    lower = (K + alpha * np.eye(N)).astype(dtype)
    assert blas.cholesky_in_place(lower) == 0
    return lower


def relative(found, alpha, rows):
    """Residual of the system of some rows, beside the right-hand sides."""
    left = B[rows] - K[np.ix_(rows, rows)] @ found - alpha * found
    return np.linalg.norm(left) / np.linalg.norm(B[rows])


@pytest.mark.parametrize("alpha", [1e-2, 1e-8])
@pytest.mark.parametrize(("k", "keeps_columns"), [(1, True), (20, True), (20, False), (120, True), (120, False)])
def test_solutions_are_those_of_the_rows_that_stay(monkeypatch, alpha, k, keeps_columns):
    if not keeps_columns:  # as where they are too large
        monkeypatch.setattr(left_out, "COLUMN_BYTES", 8 * 1200 * 7)
    out = np.sort(RNG.choice(N, k, replace=False))
    stay = np.setdiff1d(np.arange(N), out)
    whole = SquareFactor(factored(alpha))
    factor = LeftOutFactor(whole, out)
    found = factor.solve(B)
    assert (found[out] == 0).all() and (factor._kept is not None) == keeps_columns
    expected = np.linalg.solve(K[np.ix_(stay, stay)] + alpha * np.eye(len(stay)), B[stay])
    tol = 1e-10 if alpha > 1e-6 else 1e-5
    assert_allclose(found[stay], expected, rtol=0, atol=tol * np.abs(expected).max())
    anew = K[np.ix_(stay, stay)] + alpha * np.eye(len(stay))
    assert blas.cholesky_in_place(anew) == 0
    assert relative(found[stay], alpha, stay) < 3 * relative(SquareFactor(anew).solve(B[stay]), alpha, stay)


def test_a_factor_in_float32_is_the_inverse_to_its_rounding_wherever_it_lies():
    alpha, out = 0.1, np.arange(0, N, 50)
    stay = np.setdiff1d(np.arange(N), out)
    scale = RNG.uniform(0.5, 2.0, (N, 1))
    lower = ((K + alpha * np.eye(N)) * scale * scale.T).astype(np.float32)
    assert blas.cholesky_in_place(lower) == 0
    matrix = MemoryMatrix.of_square(lower).cut(512)
    expected = np.linalg.solve(K[np.ix_(stay, stay)] + alpha * np.eye(len(stay)), B[stay])
    found = LeftOutFactor(ScaledFactor(LocalFactor(matrix, 2), scale), out).solve(B)
    assert_allclose(found[stay], expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert (found[out] == 0).all()


def test_what_is_at_the_rows_does_not_matter():
    factor = LeftOutFactor(SquareFactor(factored(0.1)), np.array([3, 1100]))
    other = B.copy()
    other[[3, 1100]] = 1e3
    assert_allclose(factor.solve(other), factor.solve(B), rtol=0, atol=1e-9)


def test_few_rows_are_left_out_and_for_many_a_new_factor_pays():
    assert pays(1000, 1) and pays(1000, 100) and not pays(1000, 101)
    assert pays(100_000, 2000) and not pays(100_000, 2100), "what takes memory that no plan counts"


def test_a_factor_that_has_no_inverse_at_the_rows_says_so():
    lower = np.eye(4)
    lower[2, 2] = 1e200  # (A⁻¹)₂₂ underflows
    with pytest.raises(NotPositiveDefiniteError, match="row 2 cannot be left out"):
        LeftOutFactor(SquareFactor(lower), np.array([2])).solve(np.ones((4, 1)))


# In a run

SETTINGS = {"kernel": "rbf", "gamma": 0.3, "tile": 64, "solver": "cholesky"}
X, Y = ROWS[:300], B[:300, :2] + 2.0
WEIGHTS = RNG.uniform(0.5, 2.0, 300)
FLOAT32 = ConjugateGradient(Float32Cholesky())
WAYS = {
    "plain": {"alpha": 0.01},
    "intercept": {"alpha": [0.01, 0.1], "fit_intercept": True},
    "float32": {"alpha": 0.1, "solver": FLOAT32, "tol": 1e-12},
    "float32 and an intercept": {"alpha": 0.1, "solver": FLOAT32, "tol": 1e-12, "fit_intercept": True},
    "no alpha": {"alpha": 0.0, "gamma": 5.0},
}


def fit(store, weights, n=300, **settings):
    model = dkrr.KernelRidge(**SETTINGS | settings, store=store)
    return model.fit(X[:n], Y[:n], sample_weight=weights[:n])


def compare(found, weights, **settings):
    """As a fit without a store of the rows that have a weight."""
    n, more = len(found.dual_coef_), settings | {"solver": "cholesky", "tile": None, "tol": 1e-8}
    stay = np.flatnonzero(weights[:n])
    anew = dkrr.KernelRidge(**SETTINGS | more).fit(X[stay], Y[stay], sample_weight=weights[stay])
    size = np.abs(anew.dual_coef_).max()
    assert (found.dual_coef_[weights[:n] == 0] == 0).all()
    assert_allclose(found.dual_coef_[stay], anew.dual_coef_, rtol=0, atol=1e-9 * size)
    assert found.solve_result_.residual < 1e-10
    return anew


def leaving(*rows, weights=WEIGHTS):
    return np.where(np.isin(np.arange(len(weights)), rows), 0.0, weights)


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "float32 and an intercept" else pytest.mark.nightly) for way in WAYS]
)
def test_rows_leave_and_come_back_while_the_run_grows(tmp_path, way):
    store, settings = str(tmp_path / "run.zarr"), WAYS[way]
    steps = [
        (250, leaving()),
        (250, leaving(0, 63, 249)),
        (290, leaving(63, 249)),
        (300, leaving(*range(20))),
        (300, leaving()),
    ]
    for n, weights in steps:
        found = fit(store, weights, n, **settings)
        compare(found, weights, **settings)
        assert_array_equal(fit(store, weights, n, **settings).dual_coef_, found.dual_coef_)
        assert dkrr.verify(store).is_whole and dkrr.status(store).is_finished
    tasks = [task.key for task in found.solve_result_.record.tasks]
    assert not [key for key in tasks if key.startswith("L-")], "the factor has been kept"


def test_standard_deviations_do_not_know_the_rows(tmp_path):
    store, settings = str(tmp_path / "run.zarr"), {"alpha": 0.1, "uncertainty": True}
    fit(store, WEIGHTS, **settings)
    weights = leaving(3, 70, 299)
    found = fit(store, weights, **settings)
    anew = compare(found, weights, **settings)
    new = RNG.normal(size=(9, 4))
    for one, other in zip(found.predict(new, return_std=True), anew.predict(new, return_std=True), strict=True):
        assert_allclose(one, other, rtol=1e-8)
    assert_allclose(found.loo_residuals()[weights > 0], anew.loo_residuals(), rtol=1e-7, atol=1e-10)
    dkrr.save(found, tmp_path / "model.zarr", uncertainty=True)
    loaded = dkrr.load(tmp_path / "model.zarr")
    assert_allclose(loaded.predict(new, return_std=True)[1], anew.predict(new, return_std=True)[1], rtol=1e-8)


@pytest.mark.nightly
def test_workers_leave_rows_out(tmp_path, workers):
    store, weights = str(tmp_path / "run.zarr"), leaving(5, 6, 290)
    with workers.as_current(), dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}):
        fit(store, WEIGHTS, alpha=0.01)
        run = RunStore(store)
        run.create_group("system-0/apply-old")  # a run that was killed while it applied the factor
        run.create_array("system-0/apply-old/residual", (300, 3), (64, 3))
        assert dkrr.status(store).is_finished and dkrr.verify(store).is_whole
        found = fit(store, weights, alpha=0.01)
        assert found.plan_.execution == "dask"
    compare(found, weights, alpha=0.01)
    assert not list(Path(store).rglob("apply-*")) and dkrr.status(store).is_finished
