"""Whether kernels that share work are scored in one run."""

from dataclasses import replace

import pytest

import dkrr
from dkrr.kernels import RBF, Laplacian, Linear
from dkrr.planning.selection import plan_selection
from dkrr.planning.several_kernels import group_sizes, plan_together
from dkrr.solvers import Cholesky, ConjugateGradient

GAMMAS = (0.01, 0.02, 0.04, 0.08)


def planned(kernels, change=None, **settings):
    """Plans one by one, and the runs."""
    base = dkrr.plan(d=79, kernel="rbf", alphas=[0.1, 1.0, 10.0], cv=5, **settings)
    resources = replace(base.plan.resources, **(change or {}))
    known = replace(base.plan.problem, n_folds=1, solver=settings.get("solver"), form=None)
    problems = [replace(known, kernel=kernel) for kernel in kernels]
    plans = [plan_selection(problem, base.sizes, resources) for problem in problems]
    return plans, plan_together(problems, plans, base.sizes, resources)


def seconds_of(plans):
    return sum(plan.seconds for plan in plans)


def test_kernels_whose_tiles_are_formed_at_every_pass_share_them():
    """Too many rows for tiles in memory or on disk."""
    no_disk = {"disk_free_bytes": 2**30, "enforce_disk": True}
    plans, runs = planned([Laplacian(g) for g in GAMMAS], no_disk, n=200_000, memory_limit="24GiB")
    ((numbers, together),) = runs
    assert numbers == [0, 1, 2, 3] and {plan.n_kernels for plan in together} == {4}
    assert 1.5 < seconds_of(plans) / seconds_of(together) < 4
    limit = 24 * 2**30
    assert all(max(p.peak_bytes for p in plans) / 2 < plan.peak_bytes <= limit for plan in together)
    assert "limit 24 GiB" in str(together[0]) and "kernels one by one: slower" in str(together[0])
    assert all(plan.plan.chosen.products.kept_tiles == 0 for plan in together)
    assert [plan.plan.problem.kernel.gamma for plan in together] == list(GAMMAS)


def test_less_memory_makes_smaller_runs():
    no_disk = {"disk_free_bytes": 2**30, "enforce_disk": True}
    _, runs = planned([Laplacian(g) for g in GAMMAS], no_disk, n=200_000, memory_limit="16GiB")
    assert [numbers for numbers, _ in runs] == [[0, 1], [2, 3]]
    assert "4 kernels in one run (about" in str(runs[1][1][0])


def test_tiles_in_memory_are_formed_once():
    plans, runs = planned([RBF(g) for g in GAMMAS], n=20_000, memory_limit="8GiB", solver=ConjugateGradient())
    assert [numbers for numbers, _ in runs] == [[0], [1], [2], [3]]
    assert seconds_of(plan for _, run in runs for plan in run) == pytest.approx(seconds_of(plans))
    assert "one kernel at a time leaves memory in which tiles are kept" in str(runs[0][1][0])


def test_memory_for_a_few():
    kernels = [Laplacian(g) for g in GAMMAS]
    no_disk = {"disk_free_bytes": 2**20, "enforce_disk": True}
    solver = ConjugateGradient()
    _, runs = planned(kernels, no_disk, n=200_000, n_targets=8, memory_limit="10GiB", solver=solver)
    for numbers, plans in runs:
        assert len(numbers) < 4 and all(plan.peak_bytes <= 10 * 2**30 for plan in plans)
    assert "their factors and vectors exceed the memory" in str(runs[0][1][0])


def test_only_sweeps_share():
    plans, runs = planned([RBF(g) for g in GAMMAS], n=3000, solver=Cholesky())
    assert len(runs) == 4 and "only sweeps of conjugate gradient share work" in str(runs[0][1][0])
    assert [run[0].method for _, run in runs] == [plan.method for plan in plans] == ["factors"] * 4


def test_workers_of_a_client():
    change = {"cluster_is_running": True}
    _, runs = planned([Linear(), RBF(0.1)], change, n=100_000, memory_limit="8GiB", solver=ConjugateGradient())
    assert len(runs) == 2 and "a Dask client exists" in str(runs[1][1][0])


def test_sizes_of_runs():
    assert list(group_sizes(9)) == [9, 5, 3, 2] and list(group_sizes(2)) == [2] and not list(group_sizes(1))
