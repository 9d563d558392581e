"""Long runs of kernel logistic regression: killed and resumed, measured against their plans, and paths in λ."""

import gc
import warnings
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

from dkrr import KernelLogisticRegression
from dkrr.errors import ConvergenceWarning, StoreError
from tests.fitting.running import case, fit_here, fit_in_forks, kill_everything, start, wait_for_iteration
from tests.fitting.scripts import labels, problem

RBF = {"kernel": "rbf", "gamma": 0.2}
ON_WORKERS = {"workers": 2, "config": {"dkrr.rates.gemm-gflops": 1e-3}}


def data(n, classes):
    X, y = problem(n, 5)
    return X, labels(y, classes)


@pytest.mark.parametrize(
    ("n", "place", "settings"),
    [
        (200, "serial", {"solver": "cholesky", "tile": 110, "classes": 3, "alpha": 1e-2}),
        (800, "serial", {"solver": "cg", "classes": 4, "alpha": 1e-4, "multi_class": "ovr"}),
        (240, "dask", {"solver": "cholesky", "tile": 120, "classes": 2, "alpha": 1e-3}),
    ],
    ids=["softmax-cholesky-serial", "ovr-cg-serial", "binary-cholesky-dask"],
)
def test_a_killed_run_is_resumed_after_its_last_step(tmp_path, n, place, settings, request):
    store, settings = tmp_path / "run.zarr", {**RBF, **settings}
    process = start(n, 5, store, **settings, **(ON_WORKERS if place == "dask" else {}))
    reached = wait_for_iteration(process, store, 3)
    kill_everything(process)
    whole, facts = fit_here(n, 5, tmp_path / "whole.zarr", **settings)
    assert facts["status"] == "CONVERGED" and facts["execution"] == "serial"
    if place == "dask":
        request.getfixturevalue("ambient_workers")
    resumed, again = fit_here(n, 5, store, **settings)
    assert (again["status"], again["execution"]) == ("CONVERGED", place)
    assert again["iterations"] == len(again["history"])
    assert np.allclose(resumed, whole, rtol=0, atol=1e-6 * np.abs(whole).max())
    # What an earlier process found is part of the history, and no step is done twice.
    assert np.allclose(again["objectives"][:reached], facts["objectives"][:reached], rtol=1e-5)
    assert all(np.diff(again["objectives"]) <= 1e-12 * again["objectives"][0])
    assert not list(store.glob("newton-*"))  # factors belong to their step
    if place == "serial" and settings["solver"] == "cholesky":  # other workers sum products in another order
        assert np.array_equal(resumed, whole)


PROCESSES = [
    ("dual", "cholesky", 2, 600),
    ("dual", "cg", 3, 600),
    ("primal", "cholesky", 3, 20_000),
    ("primal", "cg", 3, 8000),
]


def settings_of(form, solver, classes):
    kernel = RBF if form == "dual" else {"kernel": "polynomial", "degree": 2}
    tile = {"tile": 150} if (form, solver) == ("dual", "cholesky") else {}
    return {**kernel, **tile, "alpha": 0.01, "form": form, "solver": solver, "classes": classes, "tol": 0.01}


def check_memory(facts, execution):
    assert (facts["status"], facts["execution"]) == ("CONVERGED", execution)
    assert max(facts["peaks"].values()) <= facts["projected"] <= facts["limit"]


def test_processes_stay_within_the_projected_memory(tmp_path):
    cases = [
        case(n, 6, tmp_path / f"{k}.zarr", **settings_of(form, solver, classes))
        for k, (form, solver, classes, n) in enumerate(PROCESSES)
    ]
    for facts in fit_in_forks(cases):
        check_memory(facts, "serial")


def test_workers_stay_within_the_projected_memory(tmp_path):
    # Every task on a worker takes as long as a few tiles: a few large ones.
    settings = {**settings_of("dual", "cholesky", 3), "tile": 300, "workers": 2, "alpha": 1.0}
    _, facts = fit_here(600, 6, tmp_path / "run.zarr", **settings)
    check_memory(facts, "dask")
    assert len(facts["peaks"]) == 2


@pytest.mark.parametrize("where", ["model-0/coef/c.*", "checkpoint-*/references/c.*"])
def test_what_is_damaged_is_recomputed(tmp_path, where):
    X, y = data(300, 3)
    store = tmp_path / "run.zarr"
    settings = {**RBF, "alpha": 0.01, "solver": "cg", "store": str(store)}
    whole = KernelLogisticRegression(**settings).fit(X, y)
    for path in store.glob(where):
        damaged = bytearray(path.read_bytes())
        damaged[5] ^= 1
        path.write_bytes(bytes(damaged))
    again = KernelLogisticRegression(**settings).fit(X, y)
    assert again.n_iter_ == whole.n_iter_ and "damaged" in " ".join(again.solve_result_.messages)
    assert np.allclose(again.dual_coef_, whole.dual_coef_, rtol=0, atol=1e-6 * np.abs(whole.dual_coef_).max())


def test_a_run_that_met_its_limit_is_resumed(tmp_path):
    X, y = data(300, 3)
    settings = {**RBF, "alpha": 0.01, "store": str(tmp_path / "run.zarr")}
    with pytest.warns(ConvergenceWarning, match="stopped at max_iter"):
        KernelLogisticRegression(max_iter=3, **settings).fit(X, y)
    again = KernelLogisticRegression(**settings).fit(X, y)
    assert again.solve_result_.status.name == "CONVERGED" and again.n_iter_ > 3
    done = KernelLogisticRegression(**settings).fit(X, y)  # finds a finished run
    assert np.array_equal(done.dual_coef_, again.dual_coef_)
    assert not [t.key for t in done.solve_result_.record.tasks if not t.key.startswith("scan")]
    sharper = KernelLogisticRegression(tol=1e-11, **settings).fit(X, y)
    assert sharper.solve_result_.residual <= 1e-11 and sharper.n_iter_ > again.n_iter_
    with pytest.raises(StoreError, match="another problem"):
        KernelLogisticRegression(**settings).fit(X, (y == 0).astype(int))


def test_a_path_is_resumed_at_the_value_where_it_was_killed(tmp_path):
    X, y = data(300, 3)
    alphas, store = (1.0, 0.1, 0.01), tmp_path / "run.zarr"
    settings = {**RBF, "solver": "cg"}
    whole = KernelLogisticRegression(**settings).fit_path(X, y, alphas)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        KernelLogisticRegression(store=str(store), max_iter=3, **settings).fit_path(X, y, alphas)
    again = KernelLogisticRegression(store=str(store), **settings).fit_path(X, y, alphas)
    for one, other, alpha in zip(whole, again, alphas, strict=True):
        assert one.alpha == other.alpha == alpha
        assert np.abs(one.predict_proba(X) - other.predict_proba(X)).max() < 1e-6


def test_temporary_rows_live_as_long_as_a_model_of_the_path_reads_them():
    X, y = data(200, 2)
    models = KernelLogisticRegression(**RBF, tile=60).fit_path(da.from_array(X, chunks=(70, 5)), y, [1.0, 0.1])
    expected = KernelLogisticRegression(**RBF, alpha=1.0).fit(X, y).decision_function(X)
    first = models.pop(0)
    del models
    gc.collect()
    assert np.allclose(first.decision_function(X), expected, rtol=0, atol=1e-5)
    folder = Path(first._model.keep_alive.path)
    assert folder.exists()
    del first
    gc.collect()
    assert not folder.exists()
