"""Whether variances come from a factor or from conjugate gradient."""

from dataclasses import replace

import pytest

from dkrr.errors import MemoryLimitError
from dkrr.planning.uncertainty import MAX_COLUMNS, plan_uncertainty
from dkrr.solvers import Cholesky, ConjugateGradient, Float32Cholesky
from tests.planning.problems import GIB, MIB, machine, problem

CG = ConjugateGradient()


def planned(n=20_000, n_rows=100, limit=16 * GIB, disk=None, **settings):
    return plan_uncertainty(problem(n, 10, **settings), machine(limit, disk_free_bytes=disk, enforce_disk=True), n_rows)


def test_a_factor_that_is_soon_made_is_made():
    found = planned(2000, solver=CG)
    assert found.method == "factor" and "exact to rounding" in found.reasons[0]
    assert planned(2000).method == "factor"


@pytest.mark.parametrize("solver", [Cholesky(), ConjugateGradient(Float32Cholesky())], ids=["cholesky", "float32"])
def test_requested_factors(solver):
    assert planned(solver=solver).method == "factor"


def test_requested_iterations():
    found = planned(solver=CG)
    assert found.method == "iterations" and found.reasons == ("conjugate gradient was requested",)
    assert found.columns == 100 and "certified bounds, 100 rows at a time" in str(found)
    assert planned(solver=CG, n_rows=5000).columns == MAX_COLUMNS
    assert found.to_dict()["plan"]["n_workers"] == found.plan.chosen.n_workers


def test_what_no_disk_holds_is_iterated():
    found = planned(200_000, disk=10 * GIB)
    assert found.method == "iterations" and "a factor is not affordable" in found.reasons[0]
    assert "disk" in found.reasons[0]


def test_many_rows_take_a_factor_and_few_do_not():
    few, many = (planned(100_000, n_rows, disk=1000 * GIB, alphas=(1.0,)) for n_rows in (10, 200_000))
    assert many.method == "factor" and "not 3 × faster" in many.rejected[0]
    assert few.method == "iterations" and few.seconds < many.seconds
    assert many.seconds > planned(100_000, 100_000, disk=1000 * GIB, solver=Cholesky()).seconds


def test_without_regularisation_residuals_bound_nothing():
    found = planned(20_000, alphas=(0.0,), solver=CG)
    assert found.method == "factor" and "alpha = 0" in found.reasons[0]


def test_fewer_rows_at_a_time_where_memory_is_short():
    large = planned(400_000, 1000, 8 * GIB, solver=CG)
    tight = replace(large, plan=planned(400_000, 1000, 2 * GIB, solver=CG).plan)
    assert tight.columns < large.columns
    assert tight.plan.peak_bytes <= 2 * GIB
    with pytest.raises(MemoryLimitError):
        planned(400_000, 1000, 200 * MIB, solver=CG)
