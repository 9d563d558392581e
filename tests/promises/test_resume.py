"""A run that is stopped anywhere resumes from what its store holds: the answer is that of a run that was not stopped.

Here runs are stopped in this process, before or after any task, and one is killed. Kills of workers and of everything,
at any moment, are in tests/nightly.
"""

import os
import shutil
import signal
import tempfile
import warnings
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV, blas
from dkrr.cluster import tasks as serial
from dkrr.errors import ConvergenceWarning, StoreError
from dkrr.features import Nystroem
from dkrr.fitting.gram import FactoredGram
from dkrr.kernels import RBF, Polynomial
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.store.lock import LOCK_NAME
from tests import programs
from tests.stores import flip

N, D = 147, 3
RBF_KERNEL = {"kernel": "rbf", "gamma": 0.2}
POLYNOMIAL = {"kernel": "polynomial", "degree": 2, "gamma": 0.5, "coef0": 1.0}
CG = ConjugateGradient(RPCholesky(21))
CHOLESKY = {**RBF_KERNEL, "alpha": 0.01, "solver": "cholesky", "tile": 100}


def sample():
    """Rows, two targets, labels of three classes, and weights some of which are 0."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, D))
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 0.1 * rng.normal(size=(N, 2)) + 1.0
    return X, Y, np.digitize(Y[:, 0], [0.7, 1.3]), rng.integers(0, 3, N).astype(float)


def ridge(store, *, lazy=False, weighted=False, alpha=0.1, **more):
    X, Y, _, weights = sample()
    rows = da.from_array(X, chunks=(50, D)) if lazy else X  # lazy rows are copied into the store
    model = KernelRidge(alpha, **more, store=store).fit(rows, Y, sample_weight=weights if weighted else None)
    return [model.predict(X), model.rkhs_norm_, model.intercept_]


def logistic(store, **more):
    X, _, labels, _ = sample()
    model = KernelLogisticRegression(0.1, **RBF_KERNEL, tol=1e-4, **more, store=store).fit(X[:90], labels[:90])
    return [model.predict_proba(X)]


def path(store, kernel=RBF_KERNEL, **more):
    X, _, labels, _ = sample()
    models = KernelLogisticRegression(**kernel, tol=1e-4, **more, store=store).fit_path(X, labels > 0, (1.0, 0.1))
    return [model.predict_proba(X) for model in models]


def search(store, **more):
    X, Y, _, _ = sample()
    found = KernelRidgeCV(**{"alphas": (1e-2, 1.0), "cv": 3, "early_stopping": False} | more, store=store).fit(X, Y)
    return [found.predict(X), found.best_score_, *(found.cv_results_[f"{name}_test_score"] for name in ("mean", "std"))]


def optimize(store):
    X, Y, _, _ = sample()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of the few evaluations
        found = KernelRidgeCV((0.1,), optimize="ard", cv=3, max_evaluations=4, store=store).fit(X, Y)
    return [found.optimum_.scores, found.optimum_.gradients, found.predict(X)]


def kept(store, **more):
    X, Y, _, weights = sample()
    model = KernelRidge([0.1, 0.2], **more, uncertainty="intervals", store=store).fit(X, Y, sample_weight=weights + 1)
    return [*model.predict(X, return_std=True), model.loo_residuals(), *model.predict_interval(X)]


WEIGHTED = {"alpha": [0.1, 0.2], "fit_intercept": True, "weighted": True, "lazy": True}
EXACT = {
    "Cholesky in tiles": lambda s: ridge(s, **RBF_KERNEL, solver="cholesky", tile=40),
    "weights and lazy rows": lambda s: ridge(s, **RBF_KERNEL, solver="cholesky", tile=40, **WEIGHTED),
    "primal": lambda s: ridge(s, **POLYNOMIAL, form="primal", tile=4, fit_intercept=True, lazy=True),
    "factors that stay": lambda s: kept(s, **RBF_KERNEL, tile=40, fit_intercept=True),
    "centres that are drawn": lambda s: ridge(s, kernel=Nystroem(RBF(gamma=0.2), 30), form="primal", tile=8),
    "Gram matrix": lambda s: [np.asarray(dkrr.gram(sample()[0], **RBF_KERNEL, chunks=40, store=s))],
}
WITHIN_TOLERANCE = {
    "float32 in tiles": lambda s: ridge(s, **RBF_KERNEL, solver=ConjugateGradient(Float32Cholesky()), tile=40),
    "conjugate gradient": lambda s: ridge(s, **RBF_KERNEL, solver=CG, tile=40, tol=1e-10, lazy=True),
    "conjugate gradient, primal": lambda s: ridge(s, **POLYNOMIAL, form="primal", solver="cg", tol=1e-10, lazy=True),
    "logistic, Cholesky in tiles": lambda s: logistic(s, solver="cholesky", tile=50),
    "logistic, conjugate gradient": lambda s: logistic(s, solver="cg", one_vs_rest=True),
    "logistic, primal": lambda s: path(s, POLYNOMIAL, solver="cg", form="primal"),
    "path": lambda s: path(s, solver="cg"),
    "search by factors": lambda s: search(s, gamma=0.3, solver="cholesky", tile=40),
    "search of two kernels": lambda s: search(s, gamma=[0.1, 0.3], solver="cholesky", train_sizes=(0.5,)),
    "search by conjugate gradient": lambda s: search(s, gamma=0.3, solver=CG, alphas=(0.1, 1.0), cv_tol=1e-6),
    "search in primal form": lambda s: search(s, **POLYNOMIAL, form="primal"),
    "search by gradients": optimize,
}
METHODS = EXACT | WITHIN_TOLERANCE
NIGHT = [pytest.mark.nightly, pytest.mark.guard]


@pytest.fixture(autouse=True, scope="module")
def _saves_every_iteration_and_has_one_blas_thread():
    with dask.config.set({"dkrr.checkpoint-seconds": 0}), blas.one_thread():
        yield


def run(way, store, stop=None, *, after=False):
    """Results of a run and the number of its tasks; it is stopped before or after task number `stop`."""
    execute, numbers = serial.execute, count()

    def stopping(*arguments, **more):
        number = next(numbers)
        if number == stop and not after:
            raise KeyboardInterrupt
        record = execute(*arguments, **more)
        if number == stop:
            raise KeyboardInterrupt
        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serial, "execute", stopping)
        return METHODS[way](str(store)), next(numbers)


@cache
def whole(way):
    """The same of a run that is not stopped."""
    with tempfile.TemporaryDirectory() as folder, dask.config.set({"dkrr.checkpoint-seconds": 0}):
        return run(way, Path(folder) / "run.zarr")


def check(way, found):
    for one, expected in zip(found, whole(way)[0], strict=True):
        if way in EXACT:
            np.testing.assert_array_equal(one, expected)
        else:
            assert_allclose(one, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(("at", "after"), [pytest.param(0.3, False, marks=NIGHT), (0.75, True)])
@pytest.mark.parametrize("way", METHODS)
def test_a_run_that_is_stopped_at_any_task_resumes_to_the_same_answer(way, at, after, tmp_path):
    n_tasks, store = whole(way)[1], tmp_path / "run.zarr"
    stop = int(at * n_tasks)
    with pytest.raises(KeyboardInterrupt):
        run(way, store, stop, after=after)
    assert not list(store.rglob(LOCK_NAME)), "the store is free again"
    found, n_left = run(way, store)
    check(way, found)
    again, n_more = run(way, store)
    for one, other in zip(again, found, strict=True):
        np.testing.assert_array_equal(one, other)
    # What was done is not done again, but for what every run does, and the step of an iteration that was stopped.
    assert stop + n_left <= n_tasks + n_more + (0 if way in EXACT else n_tasks // 4), (stop, n_left, n_more, n_tasks)


def test_conjugate_gradient_that_was_stopped_in_this_process_is_resumed_by_workers(tmp_path, workers):
    way, store = "conjugate gradient", tmp_path / "run.zarr"
    n_tasks = whole(way)[1]
    with pytest.raises(KeyboardInterrupt):
        run(way, store, n_tasks // 2)
    with workers.as_current(), dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}):
        X, Y, _, _ = sample()
        model = KernelRidge(0.1, **RBF_KERNEL, solver=CG, tile=40, tol=1e-10, store=str(store)).fit(X, Y)
    assert model.plan_.execution == "dask"
    done_here = sum(task.key == "multiply-0" for task in model.solve_result_.record.tasks)
    assert done_here < model.solve_result_.iterations, "the iterations before the stop are not done again"
    check(way, [model.predict(X), model.rkhs_norm_, model.intercept_])


def test_workers_keep_the_preconditioner_and_this_process_goes_on_with_it(tmp_path, workers):
    X, Y, _, _ = sample()
    settings = {**RBF_KERNEL, "alpha": 0.1, "tile": 40, "store": str(tmp_path / "run.zarr")}
    cg = ConjugateGradient(RPCholesky(21), max_iter=3)
    slow, warned = dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}), pytest.warns(ConvergenceWarning, match="after 3")
    with workers.as_current(), slow, warned:
        first = KernelRidge(**settings, solver=cg).fit(X, Y)
    assert first.plan_.execution == "dask" and dkrr.verify(settings["store"]).is_whole
    again = KernelRidge(**settings, solver=replace(cg, max_iter=1000)).fit(X, Y)
    keys = [task.key for task in again.solve_result_.record.tasks]
    assert "read_columns-0" in keys and not [key for key in keys if key.startswith(("extend_rows", "rebuild_rows"))]
    assert_allclose(again.predict(X), KernelRidge(0.1, **RBF_KERNEL).fit(X, Y).predict(X), atol=1e-6)


# What is missing or damaged


def test_of_missing_or_truncated_tiles_only_these_are_computed_again(tmp_path):
    X, y = programs.problem(700, 4)
    store = tmp_path / "run.zarr"
    model = KernelRidge(**CHOLESKY, store=str(store))
    whole = model.fit(X, y).dual_coef_
    folder = store / "system-0"
    for name in ("factor/c.3.1", "forward/c.6.0", "factor/c.2.2"):
        (folder / name).unlink()
    chunk = folder / "factor/c.5.0"
    chunk.write_bytes(chunk.read_bytes()[:-100])
    shutil.rmtree(folder / "solution")
    np.testing.assert_array_equal(model.fit(X, y).dual_coef_, whole)
    computed = {t.key for t in model.solve_result_.record.tasks if t.key.startswith(("L-", "forward-"))}
    assert computed == {"L-3-1", "L-2-2", "L-5-0", "forward-sum-6-0", "forward-solve-6"}
    # A flipped bit keeps its length: the checksum finds it where it is read.
    flip(chunk, 1234)
    shutil.rmtree(folder / "solution")
    np.testing.assert_array_equal(model.fit(X, y).dual_coef_, whole)
    assert model.solve_result_.messages[0].endswith("computed again: c.5.0 of system-0/factor")


DAMAGED = ["Cholesky in tiles", "conjugate gradient", "search by factors", "primal"]
DAMAGED += ["conjugate gradient, primal", "path", "search by conjugate gradient", "search by gradients"]

RUNS = [f"{part}zarr.json" for part in ("", "kernel-0/", "fit/", "optimum/")]
"""Descriptions of runs, and of the runs of a search."""


@pytest.mark.parametrize("way", [pytest.param(way, marks=NIGHT * (k > 0)) for k, way in enumerate(DAMAGED)])
def test_damage_of_any_file_is_repaired_or_refused_by_its_name(way, tmp_path, monkeypatch):
    """One file of each folder at a time, or any for a fit: the run that resumes finds what was found before."""
    monkeypatch.setattr(FactoredGram, "release", lambda *_: None)  # the store of a run that is killed just before
    fit, store = METHODS[way], tmp_path / "run.zarr"
    fit(str(store))
    shutil.copytree(store, tmp_path / "whole")
    files = [file.relative_to(store) for file in sorted(store.rglob("*")) if file.is_file()]
    if "search" in way:
        files = list({file.parent: file for file in files}.values())
    assert len(files) >= 5
    for number, file in enumerate(files):
        shutil.rmtree(store)
        shutil.copytree(tmp_path / "whole", store)
        flip(store / file, 7 * number)
        if str(file) in RUNS:  # what it belongs to is not known any more
            with pytest.raises(StoreError, match="is damaged"):
                fit(str(store))
            continue
        check(way, fit(str(store)))


# Settings that a run keeps, and others that it may change


@pytest.mark.parametrize(
    "change",
    [
        {"solver": ConjugateGradient(RPCholesky(71), "mixed")},
        {"solver": "auto", "tol": 1e-11},
        {"solver": "cg", "tile": 53, "memory_limit": "4GiB"},
    ],
    ids=str,
)
def test_an_iteration_resumes_with_other_settings(tmp_path, change):
    X, y, _, _ = sample()
    settings = {**RBF_KERNEL, "alpha": 0.01, "store": str(tmp_path / "run.zarr")}
    with pytest.warns(ConvergenceWarning, match="after 7 iterations"):
        KernelRidge(**settings, solver=ConjugateGradient(RPCholesky(21), max_iter=7)).fit(X, y)
    model, tol = KernelRidge(**settings | change).fit(X, y), change.get("tol", 1e-8)
    result = model.solve_result_
    assert result.status.name == "CONVERGED" and result.residual <= tol and result.iterations >= 7
    expected = KernelRidge(**settings | {"store": None, "solver": "cholesky"}).fit(X, y).dual_coef_
    assert np.abs(model.dual_coef_ - expected).max() <= 1e3 * tol * np.abs(expected).max()
    assert result.rank == 71 or "71" not in str(change), "a larger given rank is reached"


NYSTROEM = Nystroem(RBF(gamma=0.2), 30)
OTHERS = [
    ({"solver": "cg"}, {"solver": "cholesky"}, "began with solver='cg'.*give the same solver, or another store="),
    ({"form": "dual"}, {"form": "primal"}, "holds a run in dual form"),
    ({"form": "primal"}, {"form": "dual"}, "holds a run in primal form"),
    ({"form": "primal"}, {"kernel": RBF(gamma=0.5)}, "holds a run in primal form"),
    ({"kernel": NYSTROEM}, {"kernel": replace(NYSTROEM, random_state=1)}, "another problem.*kernel"),
]


@pytest.mark.parametrize(("began", "wanted", "message"), OTHERS, ids=str)
def test_the_run_of_another_problem_is_refused_and_stays(tmp_path, began, wanted, message):
    X, y, _, _ = sample()
    store = str(tmp_path / "run.zarr")
    settings = {"kernel": Polynomial(degree=2, gamma=0.5, coef0=1.0), "store": store} | began
    whole = KernelRidge(**settings).fit(X, y).predict(X)
    with pytest.raises(StoreError, match=message) as caught:
        KernelRidge(**settings | {"form": "auto"} | wanted).fit(X, y)
    assert store in str(caught.value)
    np.testing.assert_array_equal(KernelRidge(**settings).fit(X, y).predict(X), whole)


def test_a_fit_of_classes_that_met_its_limit_is_resumed(tmp_path):
    X, _, labels, _ = sample()
    settings = {**RBF_KERNEL, "alpha": 0.01, "store": str(tmp_path / "run.zarr")}
    with pytest.warns(ConvergenceWarning, match="stopped at max_iter"):
        KernelLogisticRegression(max_iter=3, **settings).fit(X, labels)
    again = KernelLogisticRegression(**settings).fit(X, labels)
    assert again.solve_result_.status.name == "CONVERGED" and again.n_iter_ > 3
    done = KernelLogisticRegression(**settings).fit(X, labels)
    np.testing.assert_array_equal(done.dual_coef_, again.dual_coef_)
    assert not [t.key for t in done.solve_result_.record.tasks if not t.key.startswith("scan")]
    sharper = KernelLogisticRegression(tol=1e-11, **settings).fit(X, labels)
    assert sharper.solve_result_.residual <= 1e-11 and sharper.n_iter_ > again.n_iter_


# Processes that are killed or asked to end


def test_a_killed_process_leaves_tiles_from_which_the_same_call_resumes(tmp_path):
    store, n_chunks = tmp_path / "run.zarr", 20 * 21 // 2
    process = programs.start(2000, 6, store, **CHOLESKY)
    programs.wait_for_tiles(process, store, n_chunks // 2)
    programs.kill_everything(process)
    before = programs.tiles(store)
    expected, _ = programs.fit_here(2000, 6, None, **CHOLESKY)
    resumed, facts = programs.fit_here(2000, 6, store, **CHOLESKY)
    after = programs.tiles(store)
    np.testing.assert_array_equal(resumed, expected)
    assert len(after) == n_chunks and all(after[name] == when for name, when in before.items()), "tiles are kept"
    assert len([key for key in facts["tasks"] if key.startswith("L-")]) == n_chunks - len(before)


def test_a_process_that_is_asked_to_end_leaves_no_temporary_folder_and_frees_its_store(tmp_path):
    config, store = {"dkrr.temporary-directory": str(tmp_path / "temporary")}, tmp_path / "run.zarr"
    (tmp_path / "temporary").mkdir()
    with_store = programs.start(3000, 6, store, **CHOLESKY)
    without = programs.start(3000, 6, None, **CHOLESKY, config=config)
    programs.wait_for_tiles(with_store, store, 20)
    programs.wait_for_tiles(without, tmp_path / "temporary", 20)
    assert (store / LOCK_NAME).exists()
    for process in (with_store, without):
        os.kill(process.pid, signal.SIGTERM)
    assert with_store.wait(60) == without.wait(60) == -signal.SIGTERM
    assert not (store / LOCK_NAME).exists(), "another machine would wait for its heartbeat"
    assert not list((tmp_path / "temporary").iterdir())
