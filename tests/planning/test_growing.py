"""Plans of fits that keep the factor of their first rows: what it saves, what they are compared with, and prices."""

from dataclasses import replace

import pytest

from benchmarks.simulation import TaskCosts
from dkrr.fitting.costs.tile_costs import factorisation_seconds
from dkrr.fitting.request_plans import make_plan
from dkrr.linalg.cholesky import tile_steps
from dkrr.planning.problem import Layout
from dkrr.planning.resources import Rates
from dkrr.store import TileGrid
from dkrr.text import codes_of
from tests.planning.problems import cluster, direct, machine, problem

RATES = Rates()


def stage(plan, name):
    return next(s for s in plan.chosen.stages if s.name == name)


def in_store(n, kept, where, **layout):
    run = Layout("dual", 2048, 512, 0, 1, **layout, kept_rows=kept)
    return make_plan(problem(n, 13, keeps_store=True, layout=run), where)


def test_a_run_that_grows_says_what_is_kept_and_what_it_is_compared_with():
    plan = in_store(21_000, 20_000, machine())
    (why,) = [reason for reason in plan.reasons if getattr(reason, "code", "") == "grows"]
    assert why.startswith("20,000 rows kept, 1,000 new: 0.14 of the operations of a new fit, about ")
    assert " instead of " in why and "the run grows" in str(plan)
    compared = [c for c in plan.rejected if codes_of([c.refused]) == ["keeps-nothing"]]
    direct_anew, iterative = sorted(compared, key=lambda c: not c.is_direct)
    assert direct_anew.is_direct and not iterative.is_direct
    assert 3 * plan.seconds < direct_anew.seconds, "the rows are multiplied for the residual in both"
    again = in_store(21_000, 0, machine())
    assert "grows" not in codes_of(again.reasons) and again.disk_bytes > 3 * plan.disk_bytes
    assert stage(again, "factorisation").written_bytes > 3 * stage(plan, "factorisation").written_bytes
    assert stage(plan, "factorisation").seconds < 0.25 * stage(again, "factorisation").seconds


def test_a_run_with_all_of_its_rows_factors_nothing():
    plan = in_store(20_000, 20_000, machine())
    assert "the factor of all 20,000 rows is kept" in str(plan)
    assert stage(plan, "factorisation").seconds < 0.02 * stage(in_store(20_000, 0, machine()), "factorisation").seconds


def test_a_cluster_and_float32_grow():
    whole, grown = (in_store(60_000, kept, cluster(), solver="float32") for kept in (0, 57_000))
    assert "grows" in codes_of(grown.reasons) and grown.chosen.method == whole.chosen.method
    assert stage(grown, "factorisation").seconds < 0.6 * stage(whole, "factorisation").seconds, "it is nearly a chain"


@pytest.mark.parametrize("n_kept", [300, 2_000, 8_000])
def test_a_model_in_memory_grows_in_float64(n_kept):
    n = n_kept + n_kept // 20
    plan, anew = make_plan(direct(n, 13, kept_rows=n_kept), machine()), make_plan(direct(n, 13), machine())
    assert plan.execution == "memory" and plan.chosen.method.name == "dual, Cholesky"
    assert "grows" in codes_of(plan.reasons) and "grows" not in codes_of(anew.reasons)
    assert plan.seconds < anew.seconds
    open_ended = make_plan(problem(n, 13, kept_rows=n_kept), machine())
    assert open_ended.chosen.method.solver == "cholesky"


def test_what_a_factor_does_not_have_is_not_compared():
    plan = make_plan(problem(20_000, 13, "linear", form="primal", kept_rows=19_000), machine())
    assert "grows" not in codes_of(plan.reasons)


@pytest.mark.parametrize("columns_per_task", [0, 1, 3])
@pytest.mark.parametrize("kept_tiles", [1, 4, 9])
def test_the_time_of_new_rows_is_that_of_their_tasks_and_no_shorter_than_their_longest_chain(
    kept_tiles, columns_per_task
):
    grid, kept = TileGrid(10 * 600, 600, 300), kept_tiles * 600
    costs, ends, total = TaskCosts.of_rates(RATES, 0.5 / grid.tile**2), {}, 0.0
    for step in tile_steps(grid.n_tiles, columns_per_task):
        if step.i >= kept_tiles:
            seconds = costs.seconds(step, grid)
            total += seconds
            ends[step.key] = seconds + max((ends.get(k, 0.0) for k in step.depends), default=0.0)
    found = {slots: factorisation_seconds(grid, columns_per_task, slots, RATES, 0.5, kept) for slots in (1, 2, 64)}
    assert found[1] == pytest.approx(total, rel=1e-9)
    assert found[2] >= 0.5 * total and found[64] >= 0.9 * max(ends.values())
    assert found[64] <= 1.5 * max(ends.values()) + 2 * grid.n_tiles * RATES.chain_seconds + total / 64
    assert factorisation_seconds(grid, columns_per_task, 2, RATES, 0.5, grid.n) == 0.0
    ragged = replace(grid, n=grid.n - 100)
    assert factorisation_seconds(ragged, 0, 1, RATES, 0.5, kept - 100) < factorisation_seconds(ragged, 0, 1, RATES, 0.5)
