"""Which way to held-out predictions a plan takes."""

from dataclasses import replace

import pytest

import dkrr
from dkrr.errors import InputError, MemoryLimitError
from dkrr.planning.selection import FoldSizes, SelectionPlan, plan_selection
from dkrr.solvers import Cholesky, ConjugateGradient


def selection(**settings):
    return dkrr.plan(**({"n": 20_000, "d": 16, "kernel": "rbf", "alphas": 10, "cv": 5} | settings))


def test_many_rows_take_one_run():
    found = selection(n=100_000)
    assert isinstance(found, SelectionPlan) and found.method == "sweep" and found.n_alphas == 10
    assert found.peak_bytes >= found.plan.peak_bytes and found.plan.chosen.solver == "cg"
    assert "all 5 folds × 10 λ in one run" in str(found)
    assert found.to_dict()["folds"]["n_folds"] == 5


def test_columns_are_in_the_calling_process_where_workers_have_the_tiles():
    found = selection(n=100_000, memory_limit="4GiB")
    n_columns = 10 * 5
    assert found.plan.execution == "dask" and found.peak_bytes > 12 * 8 * 100_000 * n_columns
    assert "in the calling process" in str(found) and found.peak_bytes > found.plan.peak_bytes
    with pytest.raises(MemoryLimitError, match=r"the columns of all folds and λ need .* in the calling process"):
        selection(n=10_000_000, solver="cg", workers=64, worker_memory="64GiB")


def test_leave_one_out_takes_factors():
    one = dkrr.plan(n=8000, d=16, kernel="rbf", solver="cholesky")
    found = selection(n=8000, cv="loo", alphas=3)
    assert found.method == "factors"
    assert 3 * one.seconds < found.seconds < 3 * 3.5 * one.seconds


def test_features_take_sums():
    assert selection(n=10**6, d=50, kernel="linear").method == "primal"


def test_requested_solvers():
    assert selection(n=2000, solver="cg").method == "sweep"
    assert selection(n=2000, solver="cholesky").method == "factors"
    with pytest.raises(InputError, match="leave-one-out takes a Cholesky factor"):
        selection(solver="cg", cv="loo")


def test_folds_that_do_not_train_on_the_rest():
    problem = selection().plan.problem
    resources = selection().plan.resources
    base = replace(problem, n_folds=1, solver=None, alphas=(0.1, 1.0))
    sizes = FoldSizes(3, train_on_the_rest=False)
    assert plan_selection(base, sizes, resources).method == "sweep"
    with pytest.raises(InputError, match="'cg'"):
        plan_selection(replace(base, solver=Cholesky()), sizes, resources)


def test_targets_wait_where_memory_is_short():
    wide = selection(n=20_000, n_targets=100, memory_limit="2GiB", solver="cg")
    assert wide.plan.problem.n_targets < 100
    problem = replace(wide.plan.problem, n_targets=100, n_folds=1, solver=ConjugateGradient())
    few = FoldSizes(2, targets_together=True)
    together = plan_selection(replace(problem, alphas=(1.0,)), few, replace(wide.plan.resources))
    assert together.plan.problem.n_targets == 100


@pytest.mark.parametrize(
    ("settings", "method", "most"),
    [
        ({"n": 100_000, "memory_limit": "64GiB"}, "sweep", 8.0),
        ({"n": 20_000}, "sweep", 2.0),
        ({"n": 20_000, "solver": "cg"}, "sweep", 16.0),
        ({"n": 8000, "solver": "cholesky"}, "factors", 1.5),
        ({"n": 10**6, "d": 50, "kernel": "linear"}, "primal", 10.0),
    ],
)
def test_learning_curve(settings, method, most):
    """Parts have fits of their own, in every fold."""
    plain, found = selection(**settings), selection(**settings, train_sizes=(0.125, 0.25, 0.5, 1.0))
    assert found.method == plain.method == method and found.sizes == plain.sizes
    assert plain.seconds < found.seconds < most * plain.seconds
    assert "learning curve" in str(found) and "a fit for each of 3 parts" in found.summary()
    assert selection(n=1000, train_sizes=[100, 400]).curve == (0.125, 0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cv": 1}, "cv is 1; expected a number of folds of at least 2"),
        ({"cv": "all"}, "cv is 'all'; expected"),
        ({"alphas": 0}, "alphas is 0; expected"),
        ({"alphas": [-1.0]}, "alphas is .*>= 0"),
        ({"cv": "loo", "train_sizes": (0.5,)}, "train_sizes is given without folds; expected .*cv=5"),
        ({"train_sizes": (0.5, 1.5)}, "train_sizes is .*expected fractions"),
        ({"train_sizes": [16_000]}, "train_sizes has 16000, and 5 folds of 20,000 rows train on 16,000"),
        ({"loss": "logistic"}, "alphas or cv is given with loss='logistic'"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(InputError, match=message):
        selection(**change)


def test_sums_of_many_folds_that_exceed_the_limit():
    found = selection(n=100_000, d=1500, kernel="linear", form="primal", cv=20)
    assert found.method == "primal" and found.peak_bytes > max(found.plan.peak_bytes, 20 * 8 * 1500**2)
    limit = replace(found.plan.resources, local_limit_bytes=(found.peak_bytes + found.plan.peak_bytes) // 2)
    problem = replace(found.plan.problem, alphas=(0.1, 1.0))
    short = plan_selection(problem, FoldSizes(20), limit)
    assert short.method == "refits" and "the sums of all folds need" in str(short)
    many, limit = replace(problem, n_targets=1000, alphas=tuple(range(1, 101))), replace(limit, local_limit_bytes=2**31)
    with pytest.raises(MemoryLimitError, match="increase memory_limit"):
        plan_selection(many, FoldSizes(0, is_loo=True), limit)


def test_predictions_cost_a_second_pass():
    one = selection(n=10**6, d=50, kernel="linear")
    problem = replace(one.plan.problem, alphas=tuple(range(1, 101)))
    plans = [plan_selection(problem, FoldSizes(5, predicts=predicts), one.plan.resources) for predicts in (False, True)]
    assert plans[0].seconds < plans[1].seconds and plans[0].peak_bytes < plans[1].peak_bytes
