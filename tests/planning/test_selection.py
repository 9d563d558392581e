"""Which way to held-out predictions, to variances and to likelihoods a plan takes."""

from dataclasses import replace

import pytest

import dkrr
from dkrr.errors import InputError, MemoryLimitError
from dkrr.planning.selection import FoldSizes, SelectionPlan, plan_selection
from dkrr.planning.strategy import codes_of
from dkrr.planning.uncertainty import MAX_COLUMNS, plan_uncertainty
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky
from tests.planning.problems import GIB, MIB, machine, problem

CG = ConjugateGradient()


def selection(**settings):
    return dkrr.plan(**({"n": 20_000, "d": 16, "kernel": "rbf", "alphas": 10, "cv": 5} | settings))


def test_the_way_follows_the_rows_the_features_and_the_solver():
    for settings, method in (
        ({"n": 100_000}, "sweep"),
        ({"n": 8000, "cv": "loo", "alphas": 3}, "factors"),
        ({"n": 10**6, "d": 50, "kernel": "linear"}, "primal"),
        ({"n": 2000, "solver": "cg"}, "sweep"),
        ({"n": 2000, "solver": "cholesky"}, "factors"),
    ):
        found = selection(**settings)
        assert isinstance(found, SelectionPlan) and found.method == method
        assert found.peak_bytes >= found.plan.peak_bytes and found.n_alphas == settings.get("alphas", 10)
        one = found.to_dict()
        assert one["folds"]["n_folds"] == (0 if settings.get("cv") == "loo" else 5)
        assert one["reason_codes"] == codes_of(found.reasons) and one["rejected_codes"] == codes_of(found.rejected)
        assert all(text in str(found) for text in (*found.reasons, *found.rejected))
    with pytest.raises(InputError, match="leave-one-out takes a Cholesky factor"):
        selection(solver="cg", cv="loo")


def test_leave_one_out_takes_a_factor_of_each_alpha_and_its_inverse():
    one = dkrr.plan(n=8000, d=16, kernel="rbf", solver="cholesky")
    assert 3 * one.seconds < selection(n=8000, cv="loo", alphas=3).seconds < 3 * 3.5 * one.seconds


def test_columns_are_in_the_calling_process_where_workers_have_the_tiles():
    found = selection(n=100_000, memory_limit="4GiB")
    assert found.plan.execution == "dask" and found.peak_bytes > 12 * 8 * 100_000 * 10 * 5
    assert "in the calling process" in str(found) and found.peak_bytes > found.plan.peak_bytes
    with pytest.raises(MemoryLimitError, match=r"the columns of all folds and λ need .* in the calling process"):
        selection(n=10_000_000, solver="cg", workers=64, worker_memory="64GiB")


def test_folds_that_do_not_train_on_the_rest_take_conjugate_gradient():
    base, sizes = problem(20_011, 13, alphas=(0.1, 1.0)), FoldSizes(3, train_on_the_rest=False)
    found = plan_selection(base, sizes, machine())
    assert found.method == "sweep" and "not-all-other-rows" in codes_of(found.reasons)
    with pytest.raises(InputError, match="'cg'"):
        plan_selection(replace(base, solver=Cholesky()), sizes, machine())


def test_targets_wait_where_memory_is_short_unless_scores_are_of_all_together():
    wide = problem(20_011, 13, n_targets=101, alphas=(0.1, 1.0), solver=CG)
    assert plan_selection(wide, FoldSizes(5), machine(2 * GIB)).plan.problem.n_targets < 101
    together = plan_selection(wide, FoldSizes(2, targets_together=True), machine(2 * GIB))
    assert together.plan.problem.n_targets == 101


@pytest.mark.parametrize(
    ("settings", "method", "most"),
    [
        ({"n": 100_000, "memory_limit": "64GiB"}, "sweep", 8.0),
        ({"n": 20_000, "solver": "cg"}, "sweep", 16.0),
        ({"n": 8000, "solver": "cholesky"}, "factors", 1.5),
        ({"n": 10**6, "d": 50, "kernel": "linear"}, "primal", 10.0),
    ],
)
def test_parts_of_a_learning_curve_have_fits_of_their_own_in_every_fold(settings, method, most):
    plain, found = selection(**settings), selection(**settings, train_sizes=(0.125, 0.25, 0.5, 1.0))
    assert found.method == plain.method == method and found.sizes == plain.sizes
    assert plain.seconds < found.seconds < most * plain.seconds
    assert "learning-curve" in codes_of(found.reasons) and "a fit for each of 3 parts" in found.summary()
    assert selection(n=1000, train_sizes=[100, 400]).curve == (0.125, 0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cv": "loo", "train_sizes": (0.5,)}, "train_sizes is given without folds; expected .*cv=5"),
        ({"train_sizes": [16_000]}, "train_sizes has 16000, and 5 folds of 20,000 rows train on 16,000"),
        ({"loss": "logistic"}, "alphas or cv is given with loss='logistic'"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        selection(**change)


def test_sums_of_many_folds_that_exceed_the_limit_are_not_kept():
    what, where = problem(100_003, 1511, "linear", form="primal", alphas=(0.1, 1.0)), machine()
    found = plan_selection(what, FoldSizes(20), where)
    assert found.method == "primal" and found.peak_bytes > max(found.plan.peak_bytes, 20 * 8 * 1511**2)
    limit = replace(where, local_limit_bytes=(found.peak_bytes + found.plan.peak_bytes) // 2)
    short = plan_selection(what, FoldSizes(20), limit)
    assert short.method == "refits" and codes_of(short.reasons) == ["memory"]
    many, limit = replace(what, n_targets=1009, alphas=tuple(range(1, 101))), replace(limit, local_limit_bytes=2**31)
    with pytest.raises(MemoryLimitError, match="increase memory_limit"):
        plan_selection(many, FoldSizes(0, is_loo=True), limit)


def test_predictions_cost_a_second_pass():
    what = problem(10**6, 53, "linear", alphas=tuple(range(1, 101)))
    plans = [plan_selection(what, FoldSizes(5, predicts=predicts), machine()) for predicts in (False, True)]
    assert plans[0].seconds < plans[1].seconds and plans[0].peak_bytes < plans[1].peak_bytes


# Variances and likelihoods


def variances(n=20_011, n_rows=100, limit=16 * GIB, disk=None, **settings):
    return plan_uncertainty(problem(n, 13, **settings), machine(limit, disk_free_bytes=disk), n_rows)


@pytest.mark.parametrize(
    ("settings", "method", "code"),
    [
        ({"n": 2003}, "factor", "direct-is-soon-done"),
        ({"n": 2003, "solver": CG}, "factor", "direct-is-soon-done"),
        ({"solver": Cholesky()}, "factor", "cholesky-requested"),
        ({"solver": ConjugateGradient(Float32Cholesky())}, "factor", "float32-requested"),
        ({"solver": CG}, "iterations", "cg-requested"),
        ({"solver": CG, "alphas": (0.0,)}, "factor", "alpha-is-zero"),  # residuals bound nothing
        ({"n": 200_003, "disk": 10 * GIB}, "iterations", "factor-is-unaffordable"),
        ({"n": 100_003, "n_rows": 10, "disk": 1000 * GIB}, "iterations", "factor-is-slower"),
        ({"n": 100_003, "n_rows": 200_003, "disk": 1000 * GIB}, "factor", "exact"),
    ],
)
def test_variances_come_from_a_factor_where_it_is_affordable(settings, method, code):
    found = variances(**settings)
    assert (found.method, codes_of(found.reasons)) == (method, [code])
    assert all(text in str(found) for text in (*found.reasons, *found.rejected))
    assert found.to_dict()["plan"]["n_workers"] == found.plan.chosen.n_workers
    assert found.to_dict()["reason_codes"] == [code]


def test_more_rows_take_longer_and_fewer_at_a_time_are_iterated_where_memory_is_short():
    by_factor = {"n": 100_003, "disk": 1000 * GIB, "solver": Cholesky()}
    assert variances(n_rows=200_003, **by_factor).seconds > variances(n_rows=100_003, **by_factor).seconds
    assert variances(n_rows=5003, solver=CG).columns == MAX_COLUMNS and variances(solver=CG).columns == 100
    large, tight = (variances(400_009, 1009, limit, solver=CG) for limit in (8 * GIB, 2 * GIB))
    assert tight.columns < large.columns and tight.plan.peak_bytes <= 2 * GIB
    with pytest.raises(MemoryLimitError):
        variances(400_009, 1009, 200 * MIB, solver=CG)
