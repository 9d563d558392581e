"""Kernels are measured before the plan, which counts what they take: users' functions, and all that could decide."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from dkrr import KernelRidge, plan
from dkrr.data import as_rows
from dkrr.errors import KernelFunctionError
from dkrr.kernels import RBF, CallableKernel, Columns, Kernel
from dkrr.machine.measures import MAX_ROWS, MIN_ROWS, entry_seconds, measure, with_measured_kernel
from dkrr.planning.facts import EntrySeconds
from tests.planning.problems import problem

N, D = 1500, 12


def of_the_fit(model):
    """Planned bytes without those that the process holds before it, which change from fit to fit."""
    return model.plan_.peak_bytes - model.plan_.resources.local_baseline_bytes


X = np.random.default_rng(0).standard_normal((N, D))
y = np.sin(X[:, 0])


def differences(X, Y):
    """Laplacian kernel by an array of all differences."""
    return np.exp(-np.abs(X[:, None, :] - Y[None, :, :]).sum(-1) / 10.0)


def products(X, Y):
    return (1.0 + X @ Y.T) ** 2


def with_wide_rows(X, Y):
    """Rows that a map makes a hundred times wider."""
    return np.repeat(X, 100, axis=1) @ np.repeat(Y, 100, axis=1).T


class Views:
    """A function that allocates nothing: its results are parts of one array."""

    def __init__(self):
        self.all, self.calls = np.ones((1024, 1024)), 0

    def __call__(self, X, Y):
        self.calls += 1
        return self.all[: len(X), : len(Y)]


def measured(name):
    """Cost of one of the functions above."""
    kernel = CallableKernel({"views": Views()}.get(name, globals().get(name)))
    return measure(kernel.values, X[:MAX_ROWS], X[MAX_ROWS : 2 * MAX_ROWS])


ENTRY, ROW = {"products": 8, "differences": 16 * D, "with_wide_rows": 8, "views": 8}, {"with_wide_rows": 800 * D}


def test_memory_of_a_function():
    """In a new process: in this one earlier tests left free memory in pieces, in which arrays find no place."""
    code = f"from {__name__} import *\nprint([[c.entry_bytes, c.row_bytes, c.rows] for c in map(measured, ENTRY)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    for name, (entry, row, rows) in zip(ENTRY, json.loads(done.stdout), strict=True):
        assert 32 <= rows <= MAX_ROWS, name
        assert 0.9 * ENTRY[name] <= entry <= 1.2 * ENTRY[name] + 8, name
        assert 0.9 * ROW.get(name, 0) <= row <= 1.2 * ROW.get(name, 0) + 2000, name


@pytest.mark.parametrize("name", ENTRY)
def test_memory_of_a_function_is_hardly_underestimated(name):
    cost = measured(name)
    assert cost.seconds > 0
    assert cost.entry_bytes >= 0.85 * ENTRY[name]
    assert cost.entry_bytes + 2 * cost.row_bytes / cost.rows >= 0.9 * (ENTRY[name] + 2 * ROW.get(name, 0) / cost.rows)


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_fits_keep_the_promise(solver):
    settings = {"kernel": differences, "solver": solver, "tol": 1e-4, "alpha": 1.0}
    KernelRidge(**settings).fit(X[:300], y[:300])
    model = KernelRidge(**settings).fit(X, y)
    assert model.solve_result_.peak_bytes < model.plan_.peak_bytes
    assert "'tests.cluster.test_functions.differences' was measured on a block of" in str(model.plan_)
    known = KernelRidge(kernel="laplacian", gamma=0.1, solver=solver, tol=1e-4, alpha=1.0).fit(X, y)
    assert of_the_fit(model) > of_the_fit(known)
    assert_allclose(model.predict(X[:50]), known.predict(X[:50]), atol=1e-3)


def test_functions_in_sums_and_of_columns_are_measured_too():
    kernel = RBF(gamma=0.1) + 2.0 * Columns(CallableKernel(differences), [0, 1, 2])
    (found,) = plan(X, y, kernel=kernel).problem.kernel.functions
    assert found.cost.entry_bytes >= 0.85 * 3 * 16
    assert found == CallableKernel(differences) and found.to_dict() == CallableKernel(differences).to_dict()


def test_a_function_is_measured_once():
    function = Views()
    plan(X, y, kernel=function)
    calls, function.calls = function.calls, 0  # as before the first plan: what a function holds belongs to it
    plan(X, y, kernel=function)
    assert function.calls <= calls and calls > 0


running, together = [], []


def alone(X, Y):
    running.append(0)
    together.append(len(running))
    time.sleep(0.01)
    running.pop()
    return products(X, Y)


def test_fits_in_two_threads_do_not_measure_together():
    """They would count each other's memory."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda f: plan(X, y, kernel=f), (alone, lambda A, B: alone(A, B))))
    assert len(together) > 4 and max(together) == 1
    assert all("was measured on a block of" in str(p) for p in found)


def test_rows_that_would_have_to_be_computed_or_are_few_are_not_measured_with():
    said = "'tests.cluster.test_functions.products' has not been measured"
    assert said in str(plan(da.from_array(X, chunks=500), y, kernel=products))
    assert said in str(plan(n_samples=N, n_features=D, kernel=products))
    assert said in str(plan(X[: MIN_ROWS - 1], y[: MIN_ROWS - 1], kernel=products))


def test_a_function_that_fails_is_left_to_the_fit():
    def failing(X, Y):
        raise ZeroDivisionError("no")

    assert measure(CallableKernel(failing).values, X, X) is None
    with pytest.raises(KernelFunctionError, match="ZeroDivisionError: no"):
        KernelRidge(kernel=failing).fit(X, y)


@pytest.fixture
def quick(tmp_path):
    with dask.config.set({"dkrr.quick-measurement": True, "dkrr.profile-directory": str(tmp_path)}):
        yield


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("rows", [None, as_rows(X), as_rows(da.from_array(X, chunks=500)), as_rows(sp.csr_array(X))])
def test_a_kernel_is_measured_where_it_takes_long(rows):
    is_sparse = rows is not None and rows.is_sparse
    found = with_measured_kernel(replace(problem(50_000, D, "laplacian"), is_sparse=is_sparse), rows)
    assert 1e-10 < found.entry_time() < 1e-6 and 1e-10 < found.entry_time("float32") < 1e-6
    assert found.facts.entry_seconds is not None and with_measured_kernel(found, rows) is found


def test_what_a_call_takes_whatever_its_entries_is_not_taken_for_the_time_of_an_entry():
    def slow_to_begin(A, B):
        begun = time.thread_time()
        while time.thread_time() < begun + 3e-3:
            pass
        return A @ B.T

    found = entry_seconds(CallableKernel(slow_to_begin), X, X)
    assert found is not None and max(found) < 1e-6


@pytest.mark.parametrize(
    ("case", "is_on"),
    [(problem(1000, D), True), (problem(50_000, D), False), (problem(50_000, D, is_sparse=True), True)],
)
def test_a_kernel_is_not_measured_where_that_does_not_pay_or_cannot_be(case, is_on):
    with dask.config.set({"dkrr.quick-measurement": is_on}):
        assert with_measured_kernel(case, None) is case


class Unpriced(RBF):
    """A kernel that states no time."""

    entry_seconds = Kernel.entry_seconds


@pytest.mark.usefixtures("quick")
def test_a_kernel_that_states_no_time_is_measured_for_a_small_fit():
    case = problem(2000, D)
    assert with_measured_kernel(case, as_rows(X)) is case
    unpriced = replace(case, kernel=Unpriced(gamma=0.1))
    assert with_measured_kernel(unpriced, as_rows(X)).facts.entry_seconds is not None


@pytest.mark.usefixtures("quick")
def test_plans_and_fits_use_it(monkeypatch):
    monkeypatch.setattr("dkrr.machine.measures.entry_seconds", lambda *_: EntrySeconds(1e-6, 1e-6))
    monkeypatch.setattr("dkrr.machine.measures.GRAM_SECONDS", 0.0)
    monkeypatch.setattr("dkrr.machine.calibration.LONG_SECONDS", np.inf)
    slow = plan(n_samples=20_001, n_features=D, kernel="rbf", solver="cholesky").chosen.stages
    assert sum(stage.seconds for stage in slow) > 20_001**2 / 2 * 1e-6 / 64
    assert KernelRidge(kernel="matern").fit(X, y).plan_.problem.facts.entry_seconds == (1e-6, 1e-6)
