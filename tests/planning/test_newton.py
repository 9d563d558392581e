"""Plans of kernel logistic regression: what is chosen, what it says of itself, and what it refuses."""

import pytest

import dkrr
from dkrr.errors import MemoryLimitError, PlanError
from dkrr.planning import Newton, Rates
from tests.planning.problems import GIB, machine, problem

SIZES = {"n": 20_000, "d": 20, "kernel": "rbf", "loss": "logistic", "workers": 2}


def test_conjugate_gradient_where_factorisations_would_take_long():
    plan = dkrr.plan(**SIZES, n_classes=5, alpha=1e-2, memory_limit="4GiB")
    assert (plan.form, plan.solver) == ("dual", "cg") and plan.peak_bytes <= 4 * 2**30
    assert "softmax of 5 classes" in str(plan) and "factorisations would take" in str(plan)


def test_a_factor_for_every_class_and_step():
    one, ten = (dkrr.plan(**SIZES, n_classes=k, solver="cholesky", memory_limit="1GiB") for k in (2, 10))
    assert one.execution == ten.execution == "dask" and "1 logistic model" in str(one)
    assert 8 < ten.seconds / one.seconds < 25
    # Those of a softmax exist together, those of independent models one after the other.
    apart = dkrr.plan(**SIZES, n_classes=10, solver="cholesky", memory_limit="1GiB", multi_class="ovr")
    assert ten.disk_bytes > 5 * apart.disk_bytes


def test_a_path_costs_less_than_as_many_fits():
    settings = {**SIZES, "solver": "cholesky", "memory_limit": "4GiB"}
    one, five = (dkrr.plan(**settings, alpha=[1.0] * 1 + [0.1, 0.01, 0.001, 1e-4][: k - 1]) for k in (1, 5))
    assert 1.5 < five.seconds / one.seconds < 5


def test_primal_streams_many_rows():
    plan = dkrr.plan(n=1_000_000, d=50, loss="logistic", memory_limit="1GiB")
    assert (plan.form, plan.solver, plan.execution) == ("primal", "cholesky", "memory")
    assert plan.problem.fit_intercept and plan.peak_bytes <= 2**30


def test_a_curvature_too_large_for_memory_is_refused():
    with pytest.raises(PlanError, match=r"60,003 rows; expected at most 20,000: use solver='cg'"):
        dkrr.plan(n=10**6, d=20_000, loss="logistic", n_classes=3, form="primal", solver="cholesky")


def test_the_named_limit_works():
    with pytest.raises(MemoryLimitError, match="smallest memory_limit") as error:
        dkrr.plan(**SIZES, n_classes=3, memory_limit="150MiB")
    limit = int(str(error.value).split("(")[-1].split(" bytes")[0])
    assert dkrr.plan(**SIZES, n_classes=3, memory_limit=int(1.01 * limit)).peak_bytes <= 1.01 * limit


@pytest.mark.parametrize("n", [100, 200, 400, 1000])
@pytest.mark.parametrize("d", [5, 20])
def test_a_small_problem_of_few_columns_is_solved_by_its_columns(n, d):
    """What every step takes, however small, counts in both forms."""
    assert dkrr.plan(n=n, d=d, loss="logistic").form == "primal"
    assert dkrr.plan(n=n, d=50 * n, loss="logistic").form == "dual"


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_rows_larger_than_memory_are_read_from_the_disk_itself(form):
    p = problem(20_000, 10_000, "linear", loss="logistic", x_in_memory=False)  # 1.5 GiB of rows

    def in_memory(cold, memory):
        where = machine(rates=Rates(cold_read_bytes=cold), memory_bytes=memory)
        return [c for c in Newton.candidates(p, where, form) if c.execution == "memory"]

    pairs = [zip(in_memory(0.1e9, m), in_memory(1e9, m), strict=True) for m in (GIB, 1000 * GIB)]
    assert all(slow.seconds - fast.seconds > 5 for slow, fast in pairs[0])
    assert all(slow.seconds == fast.seconds for slow, fast in pairs[1])
    assert in_memory(1e9, GIB)
