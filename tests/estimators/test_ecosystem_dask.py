"""Fits within the tasks of others: joblib on a Dask cluster, Client.map, Dask-ML."""

import dask.array as da
import joblib
import numpy as np
import pytest
import threadpoolctl
from sklearn.model_selection import GridSearchCV

from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.kernels import RBF

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


def test_a_grid_search_on_the_workers_of_joblib(workers):
    with workers.as_current(), joblib.parallel_config("dask", client=workers):
        found = GridSearchCV(KernelRidge(kernel=RBF()), GRID, cv=2).fit(X, Y)
    expected = GridSearchCV(KernelRidge(kernel=RBF()), GRID, cv=2).fit(X, Y)
    scores = found.cv_results_["mean_test_score"]
    assert scores == pytest.approx(expected.cv_results_["mean_test_score"], rel=1e-9)
    assert found.best_params_ == expected.best_params_


def selected(alphas):
    return KernelRidgeCV(alphas, cv=2).fit(X, Y).alpha_


def test_a_search_within_a_task_of_joblib(workers):
    with joblib.parallel_config("dask", client=workers):
        found = joblib.Parallel()(joblib.delayed(selected)(alphas) for alphas in ([0.1, 10.0], [1.0, 100.0]))
    assert found == [selected([0.1, 10.0]), selected([1.0, 100.0])]


@pytest.fixture(scope="module")
def dask_ml():
    """Dask-ML, which warns where it is imported."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrappers = pytest.importorskip("dask_ml.wrappers", reason="Dask-ML is not installed")
        searches = pytest.importorskip("dask_ml.model_selection", reason="Dask-ML is not installed")
    return wrappers, searches


@pytest.mark.parametrize("estimator", [KernelRidge, KernelLogisticRegression])
def test_predictions_by_dask_ml(dask_ml, estimator):
    targets = Y if estimator is KernelRidge else (Y > 0).astype(int)
    model = dask_ml[0].ParallelPostFit(estimator(kernel=RBF())).fit(X, targets)
    predictions = model.predict(da.from_array(X, chunks=(10, 3)))
    assert predictions.numblocks == (4,)
    expected = estimator(kernel=RBF()).fit(X, targets).predict(X)
    assert predictions.compute(scheduler="sync") == pytest.approx(expected, rel=1e-9)


def test_grid_search_of_dask_ml(dask_ml):
    found = dask_ml[1].GridSearchCV(KernelRidge(kernel=RBF()), GRID, cv=2, scheduler="sync").fit(X, Y)
    expected = GridSearchCV(KernelRidge(kernel=RBF()), GRID, cv=2).fit(X, Y)
    scores = found.cv_results_["mean_test_score"]
    assert scores == pytest.approx(expected.cv_results_["mean_test_score"], rel=1e-9)
