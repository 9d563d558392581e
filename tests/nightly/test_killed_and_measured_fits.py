"""Fits whose processes or workers are killed or asked to end at some moment, and fits whose memory is measured."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dkrr
from dkrr.cluster.folders import private_folder
from tests import programs
from tests.processes import gone
from tests.programs import ON_WORKERS, fit_here, iteration

pytestmark = pytest.mark.usefixtures("one_blas_thread")
KERNEL = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.01}


# Killed


KILLED = {
    "conjugate gradient": (1009, {"alpha": 0.3, "cg": {"rank": None}}),
    "preconditioned": (1009, {"alpha": 0.1, "cg": {"rank": 53, "precision": "mixed"}}),
    "softmax": (200, {"solver": "cholesky", "tile": 110, "classes": 3}),
    "one class against the rest": (800, {"solver": "cg", "classes": 4, "alpha": 1e-4, "one_vs_rest": True}),
}


@pytest.mark.guard
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_iteration_goes_on_and_keeps_its_history(tmp_path, name):
    """Kills of all other fits, of workers too, at random times: tests/nightly/test_chaos.py."""
    (n, settings), store = KILLED[name], tmp_path / "run.zarr"
    settings = {**KERNEL, **settings, "config": {"dkrr.checkpoint-seconds": 0}}
    process = programs.start(n, 5, store, **settings)
    programs.wait_for_iteration(process, store, 3 if "classes" in settings else 20)
    programs.kill_everything(process)
    reached = iteration(store)
    whole, expected = fit_here(n, 5, None, **settings)
    resumed, facts = fit_here(n, 5, store, **settings)
    # A factor that is recomputed from its pivots is the same but for rounding.
    is_exact = name in ("conjugate gradient", "softmax")
    assert_allclose(resumed, whole, rtol=0, atol=0 if is_exact else 1e-6 * np.abs(whole).max())
    assert facts["status"] == expected["status"] and facts["iterations"] <= expected["iterations"] + 2
    assert len([h for h in facts["history"] if not h[2] or "classes" in settings]) == facts["iterations"] > reached
    assert facts["tasks"].count("multiply-0") <= facts["iterations"] - reached + 10 or "classes" in settings
    again, facts = fit_here(n, 5, store, **settings)
    assert np.array_equal(again, resumed) and facts["tasks"].count("multiply-0") <= 2


STAGES = {
    "factorisation": lambda folder: len(programs.tiles(folder / "run.zarr")) >= 25,
    "substitution": lambda folder: len(programs.tiles(folder / "run.zarr")) == 55,
    "writing the model": lambda folder: list(folder.glob(".dkrr-new-*")),
}


@pytest.mark.guard
@pytest.mark.parametrize("stage", STAGES)
def test_a_command_that_keeps_its_factor_is_killed_in_any_stage_and_resumed(tmp_path, stage):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", X=rng.normal(size=(2000, 6)), y=rng.normal(size=2000))
    command = (
        "fit --x {0}/data.npz::X --y {0}/data.npz::y --kernel rbf --intervals --tile 200 --quiet "
        "--store {0}/{1} --model {0}/{2}"
    )
    starts = [sys.executable, "-c", "from dkrr.cli.main import main; main()"]

    def started(*places):
        words = [*starts, *command.format(tmp_path, *places).split()]
        return subprocess.Popen(words, cwd=programs.ROOT, start_new_session=True)

    assert started("whole.zarr", "whole").wait() == 0
    process = started("run.zarr", "model")
    while not STAGES[stage](tmp_path):
        assert process.poll() is None, "the run ended before it could be killed"
    programs.kill_everything(process)
    before = programs.tiles(tmp_path / "run.zarr")
    assert started("run.zarr", "model").wait() == 0
    after = programs.tiles(tmp_path / "run.zarr")
    assert all(after[name] == when for name, when in before.items()), "tiles are kept"
    X, (found, expected) = rng.normal(size=(9, 6)), (dkrr.load(tmp_path / name) for name in ("model", "whole"))
    for one, other in zip(found.predict(X, return_std=True), expected.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found.predict_interval(X), expected.predict_interval(X))


# Asked to end, or killed: no process, no temporary folder and no shared memory stays


@pytest.mark.guard
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_run_on_workers_that_is_stopped_leaves_no_process_and_no_folder_for_long(tmp_path, number, capfd):
    """In the calling process: tests/promises/test_resume.py and tests/nightly/test_chaos.py."""
    more = {**ON_WORKERS, "config": {**ON_WORKERS["config"], "dkrr.temporary-directory": str(tmp_path)}}
    process = programs.start(4000, 6, None, **KERNEL, solver="cholesky", tile=100, **more)
    programs.wait_for_tiles(process, tmp_path, 20)
    process.send_signal(number)
    assert process.wait(60) == -number
    assert gone(process.pid), "a process is left behind"
    if number == signal.SIGKILL:  # the next run deletes the folder
        assert len(list(tmp_path.glob("dkrr-*/run.zarr"))) == 1
        with private_folder("next", str(tmp_path)) as path:
            assert [p for p in tmp_path.iterdir() if p.is_dir()] == [Path(path)]
    assert not list(tmp_path.rglob("*")) and "Traceback" not in capfd.readouterr().err


# Measured


PRIMAL = {"kernel": "polynomial", "degree": 2, "form": "primal"}
TIGHT = {"kernel": "rbf", "memory_limit": "250MiB"}


@pytest.mark.parametrize(
    ("n", "d", "settings"),
    [
        (5000, 8, TIGHT),
        (2300, 300, {"kernel": "laplacian", "memory_limit": "500MiB", "tile": 800}),
        (3000, 60, {**PRIMAL, "memory_limit": "450MiB", "tile": 500}),
        (6000, 8, {**ON_WORKERS, "targets": 1200, "fit_intercept": True, "memory_limit": "550MiB", "tile": 8}),
        # Many columns of a slow kernel, a factor of a rank that was asked for; more workers than there are cores.
        (1201, 211, {**KERNEL, "kernel": "laplacian", "gamma": 0.01, "alpha": 1.0, "solver": "cg", "workers": 3,
                     "cg": {"rank": 401}, "memory_limit": "1500MiB", "config": ON_WORKERS["config"]}),
        (600, 6, {**KERNEL, **ON_WORKERS, "alpha": 1.0, "solver": "cholesky", "tile": 300, "classes": 3, "tol": 0.01}),
    ],
    ids=str,
)  # fmt: skip
def test_workers_keep_the_promise_of_the_plan(n, d, settings):
    facts = fit_here(n, d, None, **{"workers": 2, "solver": "cholesky"} | settings)[1]
    n_measured = sum(peak > 0 for peak in facts["peaks"].values())  # the calling process may do a part, unmeasured
    assert facts["execution"] == "dask" and 1 <= n_measured <= settings.get("workers", 2)
    assert facts["residual"] < (0.01 if "classes" in settings else 1e-8)
    assert max(facts["peaks"].values()) <= facts["projected"] <= facts["limit"]
    if facts["solver"] == "cholesky" and "classes" not in settings:
        assert facts["written"] <= 1.01 * facts["planned_written"]


MEASURED = [
    (3001, 8, {"memory_limit": "290MiB"}, "run.zarr"),
    (5003, 8, {"memory_limit": "375MiB", "cg": {"precision": "float64"}}, None),
    (3001, 211, {"memory_limit": "600MiB", "kernel": "laplacian", "gamma": 0.01}, None),
    (8009, 8, {"memory_limit": "395MiB"}, None),
    (600, 6, {"solver": "cg", "classes": 3, "tol": 0.01}, "cg.zarr"),
    (8000, 6, {**PRIMAL, "classes": 3, "tol": 0.01}, "primal.zarr"),
    (20_000, 6, {**PRIMAL, "classes": 3, "tol": 0.01, "solver": "cholesky"}, "factor.zarr"),
    (3001, 8, {"memory_limit": "360MiB", "cg": {"rank": 1009}}, None),
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder, settings = tmp_path_factory.mktemp("measured"), {**KERNEL, "alpha": 1.0, "solver": "cg"}
    cases = [programs.case(n, d, store and folder / store, **settings | more) for n, d, more, store in MEASURED]
    return programs.fit_in_forks(cases)


@pytest.mark.parametrize("number", range(len(MEASURED)), ids=[str(p) for p in MEASURED])
def test_the_calling_process_keeps_the_promise_of_the_plan(number, measured):
    facts = measured[number]
    assert facts["execution"] == ("serial" if MEASURED[number][-1] else "memory")
    assert max([facts["peak"], *facts["peaks"].values()]) <= facts["projected"] <= facts["limit"]
