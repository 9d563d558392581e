"""Fits by conjugate gradient: killed, resumed and damaged; workers lost; memory as promised."""

import json
import os
import shutil
import signal
import threading
import time
from functools import cache
from pathlib import Path

import dask
import numpy as np
import pytest

from dkrr import KernelRidge
from dkrr.errors import ConvergenceWarning, StoreError
from dkrr.solvers import ConjugateGradient, RPCholesky, Status
from tests.fitting.running import case, fit_here, fit_in_forks, iteration, kill_everything, start, wait_for_iteration
from tests.fitting.scripts import problem

SETTINGS = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.01}
OFTEN = {"dkrr.checkpoint-seconds": 0}
# So slow a machine that workers pay.
SLOW = {"dkrr.rates.gemm-gflops": 1e-3}


def products(facts):
    """Products with the matrix that this process did."""
    return sum(key == "multiply-0" for key in facts["tasks"])


@pytest.mark.parametrize(
    "cg",
    [{"rank": None, "precision": "float64"}, {"rank": 53, "precision": "mixed"}],
    ids=["plain", "preconditioned"],
)
def test_a_killed_run_is_resumed(tmp_path, cg):
    n, settings = 1009, {**SETTINGS, "alpha": 0.3 if cg["rank"] is None else 0.1, "cg": cg, "config": OFTEN}
    whole, expected = fit_here(n, 6, tmp_path / "whole.zarr", **settings)
    assert (expected["execution"], expected["solver"]) == ("serial", "cg")
    total = expected["iterations"]
    assert total > 30
    store = tmp_path / "run.zarr"
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
    np.testing.assert_allclose([h[1] for h in facts["history"]][:8], [h[1] for h in expected["history"]][:8], rtol=1e-6)
    assert products(facts) <= facts["iterations"] - reached + 10, "completed iterations are not repeated"
    if slack == 0:
        assert np.array_equal(resumed, whole)
    np.testing.assert_allclose(resumed, whole, rtol=0, atol=1e-6 * np.abs(whole).max())
    again, facts = fit_here(n, 6, store, **settings)  # finds everything done
    # Products with the constant that is deflated, and with the solution for its norm.
    assert np.array_equal(again, resumed) and products(facts) <= 2


def fit(store, **more):
    X, y = problem(307, 4)
    settings = {**SETTINGS, "store": str(store), "solver": ConjugateGradient(RPCholesky(31), max_iter=12), **more}
    return KernelRidge(**settings).fit(X, y)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Store of a run that was stopped after 12 iterations, with both places of a checkpoint written."""
    store = tmp_path_factory.mktemp("stopped") / "run.zarr"
    with dask.config.set(OFTEN), pytest.warns(ConvergenceWarning, match="after 12 iterations"):
        fit(store)
    assert {p.name for p in store.glob("checkpoint-*")} == {"checkpoint-0", "checkpoint-1"}
    return store


@pytest.fixture
def begun(stopped, tmp_path):
    """The same, to be damaged or resumed."""
    return Path(shutil.copytree(stopped, tmp_path / "run.zarr"))


@cache
def exact(n, d, alpha=SETTINGS["alpha"]):
    """Dual coefficients by factorisation."""
    return KernelRidge(**SETTINGS | {"alpha": alpha}, solver="cholesky").fit(*problem(n, d)).dual_coef_


RESUMED = {"solver": ConjugateGradient(RPCholesky(31))}


def check(model, store, *, from_the_start):
    expected = exact(307, 4)
    assert np.abs(model.dual_coef_ - expected).max() <= 1e-5 * np.abs(expected).max()
    result = model.solve_result_
    assert result.status is Status.CONVERGED
    new = sum(t.key == "multiply-0" for t in result.record.tasks)
    assert (new >= result.iterations) == from_the_start
    assert any("restarts" in m for m in result.messages) == from_the_start
    # A further fit finds nothing damaged.
    again = fit(store, **RESUMED)
    assert np.array_equal(again.dual_coef_, model.dual_coef_)
    assert again.solve_result_.messages == result.messages[from_the_start:]


class TestDamage:
    def test_none(self, begun):
        check(fit(begun, **RESUMED), begun, from_the_start=False)

    def test_none_and_resumed_with_workers(self, begun, ambient_workers):
        model = fit(begun, **RESUMED)
        assert model.plan_.execution == "dask"
        with dask.config.set({"dkrr.rates.gemm-gflops": None}):  # a finished run is read without workers
            check(model, begun, from_the_start=False)

    @pytest.mark.parametrize(
        ("how", "name"),
        [
            ("missing", "x"),
            ("short", "residual"),
            ("flipped", "x"),
            ("flipped", "residual"),
            ("folder", "residual"),
            ("description", "x"),
        ],
    )
    def test_of_a_checkpoint(self, begun, how, name):
        for turn in (0, 1):
            self.damage(begun / f"checkpoint-{turn}" / name, how)
        check(fit(begun, **RESUMED), begun, from_the_start=True)

    def test_of_the_other_checkpoint_does_not_matter(self, begun):
        notes = json.loads((begun / "zarr.json").read_text())["attributes"]["dkrr"]["notes"]
        self.damage(begun / f"checkpoint-{1 - notes['checkpoint']['turn']}" / "x", "folder")
        check(fit(begun, **RESUMED), begun, from_the_start=False)

    @pytest.mark.parametrize("how", ["missing", "short", "flipped", "folder", "description"])
    def test_of_the_pivots(self, begun, how):
        self.damage(begun / "pivots-31", how)
        model = fit(begun, **RESUMED)
        check(model, begun, from_the_start=False)
        assert model.solve_result_.rank == 31

    def damage(self, array, how):
        chunk = array / "c.0.0"
        content = chunk.read_bytes()
        if how == "missing":
            chunk.unlink()
        elif how == "short":
            chunk.write_bytes(content[:-9])
        elif how == "flipped":
            chunk.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
        elif how == "folder":
            shutil.rmtree(array)
        else:
            (array / "zarr.json").write_text("{")


class TestResumedWithOtherSettings:
    @pytest.mark.parametrize(
        "change",
        [
            {"solver": ConjugateGradient(RPCholesky(31), "float64")},
            {"solver": ConjugateGradient(RPCholesky(31), "mixed")},
            {"solver": ConjugateGradient(RPCholesky(101))},
            {"solver": ConjugateGradient(RPCholesky(7))},
            {"solver": ConjugateGradient(None)},
            {"solver": ConjugateGradient(RPCholesky(31, random_state=1))},
            {"solver": "cg"},
            {"solver": "auto"},
            {"solver": "cg", "tol": 1e-11},
            {"solver": "cg", "tol": 1e-4},
            {"solver": "cg", "tile": 53},
            {"solver": "cg", "memory_limit": "4GiB"},
        ],
        ids=str,
    )
    def test_the_answer_is_right(self, begun, change):
        model = fit(begun, **change)
        result, tol = model.solve_result_, change.get("tol", 1e-8)
        assert result.status is Status.CONVERGED and result.residual <= tol
        assert model.plan_.solver == "cg" and result.iterations >= 12
        expected = exact(307, 4)
        assert np.abs(model.dual_coef_ - expected).max() <= 1e3 * tol * np.abs(expected).max()
        if change["solver"] == ConjugateGradient(RPCholesky(101)):
            assert result.rank == 101, "a larger given rank is reached"

    def test_another_solver_is_refused(self, begun, tmp_path):
        with pytest.raises(StoreError, match="began with solver='cg'.*give the same solver, or another store="):
            fit(begun, solver="cholesky")
        fit(tmp_path / "other.zarr", solver="cholesky")
        with pytest.raises(StoreError, match="began with solver='cholesky'.*another store="):
            fit(tmp_path / "other.zarr", solver="cg")
        assert fit(tmp_path / "other.zarr", solver="auto").plan_.solver == "cholesky"

    @pytest.mark.parametrize("change", ["alpha", "gamma", "y"])
    def test_another_problem_is_refused(self, begun, change):
        X, y = problem(307, 4)
        settings = {**SETTINGS, "solver": "cg", "store": str(begun)}
        if change == "y":
            y = y + 1.0
        else:
            settings[change] *= 1.5
        with pytest.raises(StoreError, match="another problem"):
            KernelRidge(**settings).fit(X, y)


def test_a_preconditioner_that_grew_is_resumed(tmp_path):
    X = np.random.default_rng(0).normal(size=(400, 5))
    y = np.sin(X[:, 0])
    settings = {"alpha": 1e-9, "kernel": "rbf", "gamma": 0.1, "tol": 1e-7, "store": str(tmp_path / "run.zarr")}
    with pytest.warns(ConvergenceWarning, match="after 130 iterations"):
        first = KernelRidge(**settings, solver=ConjugateGradient(max_iter=130)).fit(X, y).solve_result_
    assert any("rank grows" in m for m in first.messages)
    again = KernelRidge(**settings, solver="cg").fit(X, y).solve_result_
    assert again.status is Status.CONVERGED and again.rank >= first.rank
    assert again.messages[: len(first.messages)] == first.messages


@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize("limit", [None, "tight"])
def test_tiles_that_are_kept_and_tiles_that_are_formed(precision, limit, small_process):
    """Part of the matrix in memory, none of it, all of it: the same model."""
    X, y = problem(1009, 5)
    solver = ConjugateGradient(RPCholesky(101), precision)
    settings = {**SETTINGS, "solver": solver, "tol": 1e-10, "tile": 149}
    if limit == "tight":
        plan = KernelRidge(**settings).fit(X, y).plan_
        products, slots = plan.chosen.products, plan.chosen.place.slots
        kept = products.kept_tiles * slots * 149**2 * (4 if products.precision == "float32" else 8)
        settings["memory_limit"] = plan.peak_bytes - kept // 2
    model = KernelRidge(**settings).fit(X, y)
    c = model.plan_.chosen
    assert (c.products.kept_fraction(c.place.slots) < 1) == (limit == "tight")
    expected = exact(1009, 5)
    assert np.abs(model.dual_coef_ - expected).max() <= 1e-6 * np.abs(expected).max()


def test_a_worker_that_is_killed(tmp_path, ambient_workers):
    """Its tiles and its rows of the factor are recomputed, on the other one or on the one that follows."""
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
        settings = {**SETTINGS, "alpha": 0.1, "solver": ConjugateGradient(RPCholesky(53)), "store": str(store)}
        model = KernelRidge(**settings).fit(X, y)
        thread.join(timeout=10)
        ambient_workers.wait_for_workers(2, timeout=30)
        assert set(ambient_workers.run(os.getpid).values()) != set(before.values()), (
            "no worker died, the test shows nothing"
        )
    result = model.solve_result_
    assert model.plan_.execution == "dask" and result.status is Status.CONVERGED
    assert 5 <= killed[0] < result.iterations
    expected = exact(601, 5, alpha=0.1)
    assert np.abs(model.dual_coef_ - expected).max() <= 1e-5 * np.abs(expected).max()


PROMISES = [
    (3001, 8, {"memory_limit": "290MiB"}, "run.zarr"),
    (3001, 8, {"memory_limit": "290MiB"}, None),
    (3001, 8, {"memory_limit": "360MiB", "cg": {"rank": 1009}}, None),
    (3001, 40, {"memory_limit": "360MiB", "kernel": "polynomial", "gamma": 0.1, "degree": 2, "form": "primal"}, None),
    (5003, 8, {"memory_limit": "375MiB", "cg": {"precision": "float64"}}, None),
    (4001, 8, {"memory_limit": "3GiB"}, None),
    (3001, 211, {"memory_limit": "600MiB", "kernel": "laplacian", "gamma": 0.01}, None),
    (8009, 8, {"memory_limit": "395MiB"}, None),
]


@pytest.fixture(scope="module")
def promises(tmp_path_factory):
    """Facts of the fits of PROMISES, each in a process of its own."""
    folder = tmp_path_factory.mktemp("promises")
    settings = {**SETTINGS, "alpha": 1.0, "solver": "cg"}
    return fit_in_forks(
        [case(n, d, store and folder / store, **{**settings, **more}) for n, d, more, store in PROMISES]
    )


@pytest.mark.parametrize("number", range(len(PROMISES)), ids=[str(p) for p in PROMISES])
def test_the_calling_process_keeps_its_promise(number, promises):
    facts, store = promises[number], PROMISES[number][-1]
    assert (facts["execution"], facts["solver"]) == ("serial" if store else "memory", "cg")
    assert facts["residual"] <= 1e-8
    assert facts["peak"] <= facts["projected"] <= facts["limit"]


def test_workers_keep_their_promise():
    """Many columns of a slow kernel, and a factor of a rank that was asked for; more workers than there are cores."""
    settings = {"kernel": "laplacian", "gamma": 0.01, "alpha": 1.0, "solver": "cg", "cg": {"rank": 401}}
    settings |= {"memory_limit": "1500MiB", "workers": 3, "config": SLOW}
    _, facts = fit_here(1201, 211, None, **settings)
    assert (facts["execution"], facts["solver"]) == ("dask", "cg")
    assert facts["residual"] <= 1e-8
    assert len(facts["peaks"]) == 3
    assert max(facts["peaks"].values()) <= facts["projected"] <= facts["limit"]
