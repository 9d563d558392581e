"""Users' kernel functions are measured before the plan, which counts what they need."""

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr import KernelRidge, plan
from dkrr.errors import KernelFunctionError
from dkrr.kernels import RBF, CallableKernel, Columns
from dkrr.planning.kernel_functions import MAX_ROWS, MIN_ROWS, measure

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


@pytest.mark.parametrize(
    ("function", "entry", "row"),
    [(products, 8, 0), (differences, 16 * D, 0), (with_wide_rows, 8, 800 * D), (Views(), 8, 0)],
)
def test_memory_of_a_function(function, entry, row):
    kernel = CallableKernel(function)
    cost = measure(kernel.values, X[:MAX_ROWS], X[MAX_ROWS : 2 * MAX_ROWS])
    assert 32 <= cost.rows <= MAX_ROWS and cost.seconds > 0
    assert 0.98 * entry <= cost.entry_bytes <= 1.6 * entry + 8
    assert row * 0.9 <= cost.row_bytes <= 1.6 * row + 2000


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
    kernel = RBF(0.1) + 2.0 * Columns(CallableKernel(differences), [0, 1, 2])
    (found,) = plan(X, y, kernel=kernel).problem.kernel.functions
    assert 0.98 * 3 * 16 <= found.cost.entry_bytes <= 1.6 * 3 * 16
    assert found == CallableKernel(differences) and found.to_dict() == CallableKernel(differences).to_dict()


def test_a_function_is_measured_once():
    function = Views()
    plan(X, y, kernel=function)
    calls, function.calls = function.calls, 0  # as before the first plan: what a function holds belongs to it
    plan(X, y, kernel=function)
    assert function.calls <= calls and calls > 0


def test_rows_that_would_have_to_be_computed_or_are_few_are_not_measured_with():
    said = "'tests.cluster.test_functions.products' has not been measured"
    assert said in str(plan(da.from_array(X, chunks=500), y, kernel=products))
    assert said in str(plan(n=N, d=D, kernel=products))
    assert said in str(plan(X[: MIN_ROWS - 1], y[: MIN_ROWS - 1], kernel=products))


def test_a_function_that_fails_is_left_to_the_fit():
    def failing(X, Y):
        raise ZeroDivisionError("no")

    assert measure(CallableKernel(failing).values, X, X) is None
    with pytest.raises(KernelFunctionError, match="ZeroDivisionError: no"):
        KernelRidge(kernel=failing).fit(X, y)
