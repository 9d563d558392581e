"""Fits whose processes or workers are killed or asked to end at some moment, and fits whose memory is measured."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client
from numpy.testing import assert_allclose

from benchmarks.local_client import local_client
from dkrr import KernelRidge, KernelRidgeCV, blas
from dkrr.errors import MemoryLimitError
from dkrr.fitting.context import open_context
from dkrr.kernels import RBF
from dkrr.linalg import TASK_MODULES
from dkrr.planning import make_plan
from dkrr.planning.resources import WORKER_BASELINE_BYTES
from dkrr.runtime import Progress, Task
from dkrr.runtime.dask_client import held_when_ready
from dkrr.runtime.dask_watch import Watch
from dkrr.runtime.folders import private_folder
from dkrr.solvers import ConjugateGradient, RPCholesky
from tests.cluster.processes import gone
from tests.planning.problems import GIB, MIB, cluster, direct
from tests.programs import (
    ON_WORKERS,
    case,
    fit_here,
    fit_in_forks,
    iteration,
    kill_everything,
    problem,
    start,
    tiles,
    wait_for_iteration,
    wait_for_tiles,
)

KERNEL = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.01}
OFTEN = {"dkrr.checkpoint-seconds": 0}


@pytest.fixture(autouse=True, scope="module")
def _one_blas_thread():
    with blas.one_thread():
        yield


# Killed


@pytest.mark.guard
@pytest.mark.parametrize("place", ["serial", "dask"])
def test_a_killed_factorisation_resumes_with_the_same_bits(tmp_path, place, request):
    n_tiles, settings = {"serial": 13, "dask": 8}[place], {**KERNEL, "solver": "cholesky", "tile": 200}
    n, n_chunks = 200 * n_tiles, n_tiles * (n_tiles + 1) // 2
    store = tmp_path / "run.zarr"
    process = start(n, 6, store, **settings, **(ON_WORKERS if place == "dask" else {}))
    wait_for_tiles(process, store, n_chunks // 2)
    kill_everything(process)
    before = tiles(store)
    whole, _ = fit_here(n, 6, tmp_path / "whole.zarr", **settings)
    if place == "dask":
        request.getfixturevalue("ambient_workers")
    resumed, facts = fit_here(n, 6, store, **settings)
    after = tiles(store)
    assert facts["execution"] == place and np.array_equal(resumed, whole)
    assert len(after) == n_chunks and all(after[name] == when for name, when in before.items())
    assert len([key for key in facts["tasks"] if key.startswith("L-")]) == len(after) - len(before)
    again, facts = fit_here(n, 6, store, **settings)
    assert np.array_equal(again, whole)
    assert not [key for key in facts["tasks"] if not key.startswith(("scan", "multiply"))]


@pytest.mark.guard
@pytest.mark.parametrize(
    "cg",
    [{"rank": None, "precision": "float64"}, {"rank": 53, "precision": "mixed"}],
    ids=["plain", "preconditioned"],
)
def test_a_killed_iteration_resumes_from_its_checkpoint(tmp_path, cg):
    n, settings = 1009, {**KERNEL, "alpha": 0.3 if cg["rank"] is None else 0.1, "cg": cg, "config": OFTEN}
    whole, expected = fit_here(n, 6, tmp_path / "whole.zarr", **settings)
    total, store = expected["iterations"], tmp_path / "run.zarr"
    assert total > 30
    process = start(n, 6, store, **settings)
    wait_for_iteration(process, store, 20)
    kill_everything(process)
    reached = iteration(store)
    assert 20 <= reached < total
    resumed, facts = fit_here(n, 6, store, **settings)
    assert facts["status"] == "CONVERGED" and facts["residual"] <= 1e-8
    # A factor that is recomputed from its pivots is the same but for rounding.
    slack = 0 if cg["rank"] is None else 0.1 * total
    assert abs(facts["iterations"] - total) <= slack
    assert [h[0] for h in facts["history"] if not h[2]] == list(range(1, facts["iterations"] + 1))
    assert_allclose([h[1] for h in facts["history"]][:8], [h[1] for h in expected["history"]][:8], rtol=1e-6)
    assert facts["tasks"].count("multiply-0") <= facts["iterations"] - reached + 10, "iterations are not repeated"
    assert slack or np.array_equal(resumed, whole)
    assert_allclose(resumed, whole, rtol=0, atol=1e-6 * np.abs(whole).max())
    again, facts = fit_here(n, 6, store, **settings)
    # Products with the constant that is deflated, and with the solution for its norm.
    assert np.array_equal(again, resumed) and facts["tasks"].count("multiply-0") <= 2


@pytest.mark.guard
@pytest.mark.parametrize(
    ("n", "place", "settings"),
    [
        (200, "serial", {"solver": "cholesky", "tile": 110, "classes": 3, "alpha": 1e-2}),
        (800, "serial", {"solver": "cg", "classes": 4, "alpha": 1e-4, "multi_class": "ovr"}),
        (240, "dask", {"solver": "cholesky", "tile": 120, "classes": 2, "alpha": 1e-3}),
    ],
    ids=["softmax-cholesky-serial", "ovr-cg-serial", "binary-cholesky-dask"],
)
def test_a_killed_logistic_regression_resumes_after_its_last_step(tmp_path, n, place, settings, request):
    store, settings = tmp_path / "run.zarr", {**KERNEL, **settings}
    process = start(n, 5, store, **settings, **(ON_WORKERS if place == "dask" else {}))
    reached = wait_for_iteration(process, store, 3)
    kill_everything(process)
    whole, facts = fit_here(n, 5, tmp_path / "whole.zarr", **settings)
    if place == "dask":
        request.getfixturevalue("ambient_workers")
    resumed, again = fit_here(n, 5, store, **settings)
    assert (again["status"], again["execution"]) == ("CONVERGED", place)
    assert again["iterations"] == len(again["history"])
    assert_allclose(resumed, whole, rtol=0, atol=1e-6 * np.abs(whole).max())
    # What an earlier process found is part of the history, and no step is done twice.
    assert_allclose(again["objectives"][:reached], facts["objectives"][:reached], rtol=1e-5)
    assert all(np.diff(again["objectives"]) <= 1e-12 * again["objectives"][0])
    assert not list(store.glob("newton-*"))  # factors belong to their step
    if place == "serial" and settings["solver"] == "cholesky":  # other workers sum products in another order
        assert np.array_equal(resumed, whole)


SCRIPT = """
    import dask, sys
    from tests.nightly.test_killed_and_measured_fits import search
    with dask.config.set({"dkrr.checkpoint-seconds": 0.01}):
        search(sys.argv[1])
"""


def search(store):
    """Ten λ without a preconditioner: some hundred iterations."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 4))
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(1500)
    solver = ConjugateGradient(preconditioner=None)
    return KernelRidgeCV(np.geomspace(1e-4, 10, 10), gamma=0.5, cv=3, solver=solver, store=store).fit(X, y)


@pytest.mark.guard
def test_a_killed_selection_resumes(tmp_path):
    expected = search(str(tmp_path / "whole"))
    store = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SCRIPT), str(store)])
    deadline = time.monotonic() + 120
    while not list(store.glob("kernel-0/checkpoint-*")):
        assert time.monotonic() < deadline and process.poll() is None, "no checkpoint was written"
        time.sleep(0.02)
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert not (store / "fit").exists(), "killed too late to say anything"
    resumed = search(str(store))
    assert resumed.alpha_ == expected.alpha_ and resumed.cv_results_["iterations"].max() > 0
    known = ~expected.cv_results_["stopped"] & ~resumed.cv_results_["stopped"]
    found, whole = (s.cv_results_["mean_test_score"][known] for s in (resumed, expected))
    assert_allclose(found, whole, rtol=2e-3)
    assert_allclose(resumed.predict(np.zeros((1, 4))), expected.predict(np.zeros((1, 4))), atol=1e-5)


@pytest.mark.guard
def test_what_a_killed_worker_had_is_computed_again(tmp_path, ambient_workers):
    """Its tiles and its rows of the factor, on the other one or on the one that follows."""
    X, y = problem(601, 5)
    store, killed = tmp_path / "run.zarr", []
    with dask.config.set(OFTEN):
        before = ambient_workers.run(os.getpid)

        def kill():
            while iteration(store) < 5:
                time.sleep(0.005)
            killed.append(iteration(store))
            os.kill(sorted(before.values())[0], signal.SIGKILL)

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        settings = {**KERNEL, "alpha": 0.1, "solver": ConjugateGradient(RPCholesky(53))}
        model = KernelRidge(**settings, store=str(store)).fit(X, y)
        thread.join(timeout=10)
        ambient_workers.wait_for_workers(2, timeout=60)
        assert set(ambient_workers.run(os.getpid).values()) != set(before.values()), "no worker died"
    result = model.solve_result_
    assert model.plan_.execution == "dask" and result.status.name == "CONVERGED"
    assert 5 <= killed[0] < result.iterations
    expected = KernelRidge(**settings | {"solver": "cholesky"}).fit(X, y).dual_coef_
    assert np.abs(model.dual_coef_ - expected).max() <= 1e-5 * np.abs(expected).max()


# Asked to end: no process, no temporary folder and no shared memory stays


def started(tmp_path, place):
    """A run with tiles in its temporary folder."""
    more = {"workers": 2} if place == "dask" else {}
    config = {"dkrr.temporary-directory": str(tmp_path)} | (ON_WORKERS["config"] if place == "dask" else {})
    process = start(4000, 6, None, **KERNEL, solver="cholesky", tile=100, **more, config=config)
    wait_for_tiles(process, tmp_path, 20)
    return process


@pytest.mark.guard
@pytest.mark.parametrize(
    ("place", "number", "whom"),
    [
        ("serial", signal.SIGTERM, "process"),
        ("serial", signal.SIGINT, "process"),
        ("dask", signal.SIGTERM, "group"),
        ("dask", signal.SIGHUP, "process"),
    ],
)
def test_a_run_that_is_asked_to_end_leaves_nothing_behind(tmp_path, place, number, whom, capfd):
    process = started(tmp_path, place)
    (os.killpg if whom == "group" else os.kill)(process.pid, number)
    assert process.wait(60) == -number
    assert gone(process.pid), "a process is left behind"
    assert not list(tmp_path.rglob("*"))
    assert number == signal.SIGINT or "Traceback" not in capfd.readouterr().err


@pytest.mark.guard
def test_workers_of_a_killed_process_end_and_the_next_run_deletes_its_folder(tmp_path):
    process = started(tmp_path, "dask")
    process.kill()
    process.wait()
    assert gone(process.pid), "a process is left behind"
    assert len(list(tmp_path.glob("dkrr-*/run.zarr"))) == 1
    with private_folder("next", str(tmp_path)) as path:
        assert [p for p in tmp_path.iterdir() if p.is_dir()] == [Path(path)]
    assert not list(tmp_path.rglob("*"))


# Measured


TIGHT = {"kernel": "rbf", "memory_limit": "250MiB"}


@pytest.mark.parametrize(
    ("n", "d", "settings"),
    [
        (5000, 8, TIGHT),
        (2300, 300, {"kernel": "laplacian", "memory_limit": "500MiB", "tile": 800}),
        (4000, 8, {"kernel": "rbf", "memory_limit": "3GiB", "tile": 2000}),
        (3000, 60, {"kernel": "polynomial", "degree": 2, "form": "primal", "memory_limit": "450MiB", "tile": 500}),
        (6000, 8, {"targets": 1200, "fit_intercept": True, "memory_limit": "550MiB", "tile": 8}),
        # Many columns of a slow kernel, a factor of a rank that was asked for; more workers than there are cores.
        (1201, 211, {**KERNEL, "kernel": "laplacian", "gamma": 0.01, "alpha": 1.0, "solver": "cg", "workers": 3,
                     "cg": {"rank": 401}, "memory_limit": "1500MiB", "config": ON_WORKERS["config"]}),
        (600, 6, {**KERNEL, "alpha": 1.0, "solver": "cholesky", "tile": 300, "classes": 3, "tol": 0.01}),
    ],
    ids=str,
)  # fmt: skip
def test_workers_keep_the_promise_of_the_plan(n, d, settings):
    facts = fit_here(n, d, None, **{"workers": 2, "solver": "cholesky"} | settings)[1]
    assert facts["execution"] == "dask" and len(facts["peaks"]) == settings.get("workers", 2)
    assert facts["residual"] < (0.01 if "classes" in settings else 1e-8)
    assert max(facts["peaks"].values()) <= facts["projected"] <= facts["limit"]
    if facts["solver"] == "cholesky" and "classes" not in settings:
        assert facts["written"] <= 1.01 * facts["planned_written"]


def test_memory_does_not_grow_with_n():
    """The tiles of 5,000 rows take 100 MiB, those of 2,600 a third of it."""
    on_workers = {"workers": 2, "solver": "cholesky", **TIGHT}
    _, large = fit_here(5000, 8, None, **on_workers)
    _, small = fit_here(2600, 8, None, tile=large["tile"], **on_workers)
    assert small["execution"] == large["execution"] == "dask" and small["tile"] == large["tile"]
    assert max(large["peaks"].values()) < max(small["peaks"].values()) + 30 * 2**20


MEASURED = [
    (3001, 8, {"memory_limit": "290MiB"}, "run.zarr"),
    (5003, 8, {"memory_limit": "375MiB", "cg": {"precision": "float64"}}, None),
    (4001, 8, {"memory_limit": "3GiB"}, None),
    (3001, 211, {"memory_limit": "600MiB", "kernel": "laplacian", "gamma": 0.01}, None),
    (8009, 8, {"memory_limit": "395MiB"}, None),
    (5003, 8, {"memory_limit": "700MiB", "solver": "cholesky"}, None),
    (600, 6, {"solver": "cg", "classes": 3, "tol": 0.01}, "cg.zarr"),
    (8000, 6, {"kernel": "polynomial", "degree": 2, "form": "primal", "classes": 3, "tol": 0.01}, "primal.zarr"),
    (
        20_000,
        6,
        {"kernel": "polynomial", "degree": 2, "form": "primal", "classes": 3, "tol": 0.01, "solver": "cholesky"},
        "factor.zarr",
    ),
    (3001, 8, {"memory_limit": "360MiB", "cg": {"rank": 1009}}, None),
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder, settings = tmp_path_factory.mktemp("measured"), {**KERNEL, "alpha": 1.0, "solver": "cg"}
    return fit_in_forks(
        [case(n, d, store and folder / store, **{**settings, **more}) for n, d, more, store in MEASURED]
    )


@pytest.mark.parametrize("number", range(len(MEASURED)), ids=[str(p) for p in MEASURED])
def test_the_calling_process_keeps_the_promise_of_the_plan(number, measured):
    facts = measured[number]
    assert facts["execution"] == ("serial" if MEASURED[number][-1] else "memory")
    assert max([facts["peak"], *facts["peaks"].values()]) <= facts["projected"] <= facts["limit"]


# Workers are asked what they hold before work starts, and a plan without room for it is refused


class Heavy(RBF):
    """A kernel whose module imports a large library."""

    def __reduce__(self):
        return _arrive, ()


def _arrive():
    sys.ballast = b"\1" * 200 * MIB
    return RBF(gamma=1.0)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with (
        local_client(1, GIB, str(tmp_path_factory.mktemp("scratch")), TASK_MODULES) as client,
        Client(client.scheduler.address, security=client.security) as mine,
    ):
        yield mine


def test_workers_import_only_what_plans_count(client, tmp_path):
    held = held_when_ready(Watch(client), RBF(), [str(tmp_path)], TASK_MODULES)
    assert 40 * MIB < held.environment < WORKER_BASELINE_BYTES, "what dkrr imports itself is planned for"
    assert held.ready - held.environment < 8 * MIB
    (large,) = client.run(lambda: [m for m in ("dask.array", "pandas", "sklearn") if m in sys.modules]).values()
    assert large == []


def test_a_kernel_that_leaves_no_room_on_the_workers_is_refused_before_any_task(client, tmp_path):
    plan = make_plan(direct(3000, 5, tile=512, form="dual"), cluster(worker_limit=GIB, workers=1))
    with open_context(plan, str(tmp_path / "a"), Progress()) as context:
        assert context.client is client
    tight = int(1.05 * plan.peak_bytes / 0.7)
    heavy = replace(plan.problem, kernel=Heavy(gamma=1.0))
    plan = make_plan(heavy, cluster(worker_limit=tight, workers=1))
    with (
        pytest.raises(MemoryLimitError, match=r"holds \d+ MiB before its first task.*allowed for 160 MiB.*at least"),
        open_context(plan, str(tmp_path / "b"), Progress()) as context,
    ):
        context.executor.run([Task("a", int)], Progress())
    assert not (tmp_path / "b" / "system-0").exists()
