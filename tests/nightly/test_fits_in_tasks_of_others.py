"""Fits within the tasks of others, and on workers from every kind of rows: joblib on a cluster, Client.map, Dask-ML."""

import warnings

import dask.array as da
import joblib
import numpy as np
import pytest
import scipy.sparse as sp
import threadpoolctl
import zarr
from sklearn.model_selection import GridSearchCV

from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.errors import NotPositiveDefiniteError
from dkrr.kernels import RBF, AdditiveChi2, Linear
from tests.oracles import assert_close, naive_gram, naive_kernel_ridge
from tests.pairs import every_pair
from tests.runtime.clients import all_released

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = np.sin(X[:, 0]) + X[:, 1]
GRID = {"kernel__gamma": [0.1, 1.0], "alpha": [0.1, 1.0]}


def fitted(gamma):
    """What a fit in a task does: its score, processes, threads of BLAS, and the reason for its place."""
    model = KernelRidge(kernel=RBF(gamma)).fit(X, Y)
    threads = {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}
    plan = model.plan_
    return model.score(X, Y), plan.chosen.n_workers, plan.resources.local_threads, threads, plan.resources.confined


def test_many_fits_by_map_each_in_the_process_of_its_task(workers):
    gammas = [0.1 * k for k in range(1, 13)]
    for gamma, result in zip(gammas, workers.gather(workers.map(fitted, gammas)), strict=True):
        score, n_workers, n_threads, blas_threads, confined = result
        assert score == pytest.approx(KernelRidge(kernel=RBF(gamma)).fit(X, Y).score(X, Y), rel=1e-9)
        assert (n_workers, n_threads, blas_threads) == (1, 1, {1})
        assert "inside a Dask task" in confined


def selected(alphas):
    return KernelRidgeCV(alphas, cv=2).fit(X, Y).alpha_


def test_a_search_within_a_task_of_joblib(workers):
    with joblib.parallel_config("dask", client=workers):
        found = joblib.Parallel()(joblib.delayed(selected)(alphas) for alphas in ([0.1, 10.0], [1.0, 100.0]))
    assert found == [selected([0.1, 10.0]), selected([1.0, 100.0])]


def dask_ml(module):
    """A module of Dask-ML, which warns where it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(f"dask_ml.{module}", reason="Dask-ML is not installed")


@pytest.mark.parametrize("estimator", [KernelRidge, KernelLogisticRegression])
def test_predictions_by_dask_ml(estimator):
    targets = Y if estimator is KernelRidge else (Y > 0).astype(int)
    model = dask_ml("wrappers").ParallelPostFit(estimator(kernel=RBF())).fit(X, targets)
    predictions = model.predict(da.from_array(X, chunks=(10, 3)))
    assert predictions.numblocks == (4,)
    expected = estimator(kernel=RBF()).fit(X, targets).predict(X)
    assert predictions.compute(scheduler="sync") == pytest.approx(expected, rel=1e-9)


def test_grid_search_of_dask_ml():
    found = dask_ml("model_selection").GridSearchCV(KernelRidge(kernel=RBF()), GRID, cv=2, scheduler="sync").fit(X, Y)
    expected = GridSearchCV(KernelRidge(kernel=RBF()), GRID, cv=2).fit(X, Y)
    scores = found.cv_results_["mean_test_score"]
    assert scores == pytest.approx(expected.cv_results_["mean_test_score"], rel=1e-9)


@every_pair(
    rows=["csr", "dask", "zarr", "precomputed"], form=["dual", "primal"], solver=["cholesky", "cg"], weighted=[0, 1]
)
def test_fits_on_workers_are_exact_for_every_kind_of_rows(
    ambient_workers, data, tmp_path, rows, form, solver, weighted
):
    X, weights = np.where(np.abs(data.X[:107]) < 0.7, 0.0, data.X[:107]), data.weights[:107] if weighted else None
    K, y = naive_gram(Linear(), X), data.y[:107]
    zarr.save_array(f"{tmp_path}/x.zarr", K if rows == "precomputed" else X)
    given = {"csr": sp.csr_array(X), "dask": da.from_array(X, chunks=(29, 2))}.get(rows, f"{tmp_path}/x.zarr")
    settings = {"kernel": "precomputed"} if rows == "precomputed" else {"kernel": "linear", "form": form}
    if solver == "cholesky":
        settings["tile"] = 2 if settings.get("form") == "primal" else 40
    model = KernelRidge(3.0, fit_intercept=True, solver=solver, tol=1e-11, **settings).fit(given, y, weights)
    assert model.plan_.execution == "dask"
    coef, intercept = naive_kernel_ridge(K, y, np.full(3, 3.0), weights, fit_intercept=True)
    assert_close(model.dual_coef_, coef, 1e-7)
    assert_close(model.intercept_, intercept, 1e-7)


def test_a_kernel_that_is_not_positive_is_found_on_workers(ambient_workers, data):
    with pytest.raises(NotPositiveDefiniteError, match=r"alpha = 0\.2.*negative curvature.*increase alpha"):
        KernelRidge(alpha=0.2, kernel=AdditiveChi2(), solver="cg").fit(np.abs(data.X), data.y)
    assert all_released(ambient_workers)
