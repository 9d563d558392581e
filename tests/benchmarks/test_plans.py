import json
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

import dkrr
from benchmarks import cases, grids, plans
from benchmarks.cases import Case
from dkrr.runtime import RunRecord
from dkrr.solvers import SolveResult, Status
from dkrr.solvers.settings import ConjugateGradient

MIB = 2**20


BAD = Case("too large", 3000, memory_limit="1MiB")
RUN_HERE = ("smoke cholesky serial", "smoke primal serial")
"""Cases run in this process; one of each kind of execution has a process of its own."""


@pytest.fixture(scope="module")
def run(tmp_path_factory, run_here):
    """The command itself at its smallest size, after a case that fails."""

    def here_where_serial(command, timeout):
        is_here = json.loads(command[4])["name"] in RUN_HERE
        return {"stdout": json.dumps(run_here(command))} if is_here else run_alone(command, timeout)

    run_alone = cases.run_to_end
    path = tmp_path_factory.mktemp("plans") / "runs" / "lines.jsonl"
    arguments = ["grid", "--size", "smoke", "--timeout", "120", "--json", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "grid", lambda size: [BAD, *grids.grid(size)])
        patch.setattr(cases, "run_to_end", here_where_serial)
        result = CliRunner().invoke(plans.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result, path


@pytest.fixture(scope="module")
def every_line(run):
    return [json.loads(line) for line in run[0].stdout.splitlines()]


@pytest.fixture(scope="module")
def lines(every_line):
    """Lines of the cases that can be run, and the summary."""
    return every_line[1:]


def test_one_line_a_case_and_a_summary_also_in_the_file(run, lines):
    result, path = run
    assert path.read_text() == result.stdout
    assert [line["case"] for line in lines[:-1]] == [case.name for case in grids.grid("smoke")]
    assert lines[-1]["summary"]["all"]["cases"] == len(lines) - 1
    for word in ("smoke cholesky workers", "predicted / measured", "median (worst)", "goal 1.25"):
        assert word in result.stderr


def test_every_case_has_every_ratio(lines):
    for line in lines[:-1]:
        assert line["status"] in ("solved", "converged"), line
        for name in ("ratios", "ratios_at_iterations"):
            assert set(cases.FIGURES) <= set(line[name]), line["case"]
            assert line[name]["seconds"] > 0 and line[name]["peak_bytes"] > 0
        for name in ("read_bytes", "written_bytes"):
            # Where tiles are on disk there is enough traffic to compare.
            assert (line["ratios"][name] is None) == (line["kind"]["execution"] == "memory"), line["case"]


def test_no_fit_holds_more_memory_than_its_plan_said(lines):
    for line in lines[:-1]:
        assert line["measured"]["peak_bytes"] <= line["predicted"]["peak_bytes"], line["case"]
        assert line["measured"]["peak_bytes"] > 50 * MIB  # of a process with the libraries, not of nothing


def test_bytes_moved_are_those_of_the_plan_at_the_iterations_that_it_took(lines):
    compared = [
        (line["case"], name, line["ratios_at_iterations"][name])
        for line in lines[:-1]
        for name in ("read_bytes", "written_bytes")
        if line["ratios_at_iterations"][name] is not None
    ]
    assert len(compared) == 8
    for entry in compared:
        assert 1 / 1.05 <= entry[2] <= 1.05, entry


def test_cases_are_run_where_they_ask_to_be(lines):
    kinds = {line["case"]: line["kind"] for line in lines[:-1]}
    assert kinds["smoke cg memory"]["execution"] == "memory"
    assert kinds["smoke cholesky workers"] == {
        "form": "dual",
        "solver": "cholesky",
        "execution": "dask",
        "n_workers": 2,
        "precision": "float64",
        "tier": "tiles on disk",
        "tile": 256,
    }
    assert kinds["smoke float32 serial"]["solver"] == "float32"
    assert kinds["smoke primal serial"]["form"] == "primal"


def test_regret_runs_the_chosen_way_and_others(tmp_path, monkeypatch, run_here):
    monkeypatch.setattr(cases, "run_to_end", lambda command, timeout: {"stdout": json.dumps(run_here(command))})
    path = tmp_path / "lines.jsonl"
    arguments = ["regret", "--size", "smoke", "--only", "smoke free", "--json", str(path)]
    result = CliRunner().invoke(plans.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    line, summary = (json.loads(text) for text in path.read_text().splitlines())
    assert line["ways"] == len(line["runs"]) > 1
    assert [r["is_chosen"] for r in line["runs"]] == [True] + [False] * (line["ways"] - 1)
    assert all(r["seconds"] > 0 for r in line["runs"]), line["runs"]
    assert line["regret_of_all"] >= line["regret"] >= 1.0
    assert summary["summary"]["regret"]["worst"] == line["regret"]
    assert "smoke free" in result.stderr and "chosen" in result.stderr


def test_case_that_fails_leaves_a_line_and_the_others_run(every_line):
    failed, *others, summary = every_line
    assert "MemoryLimitError" in failed["failed"] and failed["misses"] and failed["settings"]["n"] == 3000
    assert len(others) > 1 and all("ratios" in line for line in others)
    assert summary["n_failed"] == 1 and summary["summary"]["all"]["cases"] == len(others)


def test_case_that_takes_too_long_is_ended():
    assert plans.run("fit", Case("slow", 3000), 0.2, "smoke", 0)["timed_out"] == 0.2


@pytest.mark.parametrize("size", grids.SIZES)
def test_cases_have_names_of_their_own_and_can_be_sent_to_per_process(size):
    every = [*grids.grid(size), *grids.problems(size)]
    assert len({case.name for case in every}) == len(every)
    for case in every:
        values = json.loads(json.dumps(asdict(case)))
        assert Case(**values | {"alphas": tuple(values["alphas"])}) == case


def test_full_grid_covers_what_plans_differ_by():
    every = grids.grid("full")
    assert {c.kernel for c in every} == {"rbf", "laplacian", "matern", "linear", "polynomial"}
    assert {c.solver for c in every} == {"cholesky", "cg", "cg-none", "float32"}
    assert {c.workers for c in every} == {1, 2} and len(every) >= 30
    for name in ("client", "x_in_store", "keeps_store", "fit_intercept"):
        assert {getattr(c, name) for c in every} == {True, False}, name
    assert any(len(c.alphas) > 1 for c in every) and any(c.n_targets > 1 and len(c.alphas) == 1 for c in every)


def test_data_in_a_store_is_the_data_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "_ROWS_AT_ONCE", 37)
    case = Case("data", 100, 3, n_targets=2, decay=1.0)
    X, y = case.data(tmp_path)
    path, same = replace(case, x_in_store=True).data(tmp_path)
    stored = dkrr.rows.as_rows(path).read(0, 100)
    np.testing.assert_array_equal(stored, X)
    np.testing.assert_array_equal(same, y)
    assert X[:, 2].std() < X[:, 0].std() / 2


def test_forced_choice_is_taken_or_refused_with_the_candidates(tmp_path, small_process):
    case = Case("forced", 900, solver="auto", force={"execution": "dask", "n_workers": 1})
    with cases.surroundings(case, tmp_path):
        plan = dkrr.plan(n=900, d=16, kernel="rbf", memory_limit="1GiB")
    assert plan.execution == "dask" and plan.chosen.n_workers == 1
    free = dkrr.plan(n=900, d=16, kernel="rbf", memory_limit="1GiB")
    assert free.execution == "memory"
    never = replace(case, force={"tier": "on paper"})
    with cases.surroundings(never, tmp_path), pytest.raises(LookupError, match="no such candidate among"):
        dkrr.plan(n=900, d=16, kernel="rbf", memory_limit="1GiB")


def test_known_iterations_change_the_price_and_nothing_else():
    solver = ConjugateGradient()
    plan = dkrr.plan(n=6000, d=16, kernel="rbf", alpha=1e-2, solver=solver, tol=1e-6, memory_limit="1GiB", workers=2)
    c = plan.chosen

    def after(iterations):
        result = SolveResult(Status.CONVERGED, 1e-7, iterations, 1.0, 0, 0, 0, rank=c.rank, record=RunRecord())
        return cases.known_iterations(plan, result)

    few, many = after(10), after(200)
    assert (few.iterations, many.iterations) == (10, 200)
    assert few.rank == many.rank == c.rank and few.products.kept_tiles == many.products.kept_tiles
    assert cases.kind(few) == cases.kind(many) == cases.kind(c)
    assert many.seconds > 2 * few.seconds


def test_ratios_of_next_to_nothing_are_not_compared():
    predicted = {"seconds": 2.0, "read_bytes": 0.0, "written_bytes": 3 * MIB, "peak_bytes": 300 * MIB, "iterations": 0}
    measured = {"seconds": 4.0, "read_bytes": 900, "written_bytes": 0, "peak_bytes": 200 * MIB, "iterations": 0}
    found = cases.ratios(predicted, measured)
    assert found["seconds"] == 0.5 and found["peak_bytes"] == 1.5
    assert found["read_bytes"] is None and found["written_bytes"] == 3 * MIB


def line(name, group="g", *, noisy=False, status="solved", **ratios):
    every = {"seconds": 1.0, "read_bytes": 1.0, "written_bytes": None, "peak_bytes": 1.2} | ratios
    return {
        "benchmark": "plans grid",
        "case": name,
        "group": group,
        "status": status,
        "ratios": every,
        "ratios_at_iterations": every,
        "measured": {"seconds": 2.0, "peak_bytes": 200 * MIB},
        "predicted": {"seconds": 2.0 * every["seconds"]},
        "load": {"noisy": noisy},
    }


def test_summary_has_the_median_and_the_worst_by_group_and_of_all():
    records = [line("a", seconds=0.5), line("b", seconds=1.1), line("c", "h", seconds=1.5, peak_bytes=0.9)]
    summary = plans.summarise([*records, {"case": "d", "failed": "no"}])
    assert list(summary) == ["g", "h", "all"]
    every = summary["all"]
    assert every["cases"] == 3
    assert every["seconds"]["median"] == 1.1 and every["seconds"]["worst"] == 0.5
    assert every["seconds"]["off"] == pytest.approx(1.5) and every["seconds"]["worst_off"] == pytest.approx(2.0)
    assert every["peak_bytes"]["worst"] == every["peak_bytes"]["least"] == 0.9
    assert every["written_bytes"] is None
    assert "2.00 (goal 2)" in plans.goal_line(summary)


@pytest.mark.parametrize(
    ("ratios", "missed"),
    [
        ({}, []),
        ({"seconds": 0.45}, ["seconds 0.45"]),
        ({"seconds": 1.9}, []),
        ({"seconds": 2.1}, ["seconds 2.10"]),
        ({"read_bytes": 1.06}, ["read 1.06"]),
        ({"written_bytes": 0.9}, ["written 0.90"]),
        ({"peak_bytes": 0.99}, ["peak 0.99"]),
        ({"status": "stalled"}, ["stalled"]),
    ],
)
def test_cases_that_miss_a_goal_are_marked(ratios, missed):
    assert plans.misses(line("a", **ratios)) == missed


@pytest.mark.parametrize(("measured", "missed"), [(0.9, []), (1.2, []), (0.7, ["seconds 2.86"])])
def test_time_within_the_range_of_the_plan_is_not_missed(measured, missed):
    """Iterations cannot be known: the plan said 2 s, and 1 to 5."""
    record = line("a", seconds=2.0 / measured) | {"seconds_range": [1.0, 5.0]}
    assert plans.misses(record | {"measured": {"seconds": measured}}) == missed
    narrow = record | {"seconds_range": [2.0, 2.0], "measured": {"seconds": measured}}
    assert bool(plans.misses(narrow)) == (2.0 / measured > 2.0)


def test_ways_that_take_longer_than_the_best_are_ended(monkeypatch):
    """A regret does not depend on how much longer: a problem with seven ways takes minutes, not hours."""
    seconds, limits = {"a": 2.0, "b": 60.0, "c": 1.0, "d": 60.0}, []
    way = {"predicted_seconds": 2.0, "is_gamble": False}
    ways = [way | {"label": k, "is_chosen": k == "a", "case": asdict(Case(k, 100))} for k in seconds]

    def run(what, case, timeout, size, retries):
        if what == "ways":
            return {"ways": ways}
        limits.append(timeout)
        if seconds[case.name] > timeout:
            return {"timed_out": timeout}
        taken = {"seconds": seconds[case.name], "peak_bytes": 1}
        return {"measured": taken, "load": {"noisy": False}, "residual": 0.0}

    clock = iter(np.arange(0.0, 1000.0, 2.5))
    monkeypatch.setattr(plans, "run", run)
    monkeypatch.setattr(plans, "perf_counter", lambda: next(clock))
    found = plans.measure_regret(Case("p", 100), 300.0, "small", 0, 1)
    assert limits == pytest.approx([300.0, 2 * 0.5 + 1.3 * 2, 2 * 0.5 + 1.3 * 2, 2 * 1.5 + 1.3 * 1])
    assert found["regret"] == 2.0 and [r.get("ended") for r in found["runs"]] == [
        None,
        "not in 4 s",
        None,
        "not in 4 s",
    ]


def test_regret_is_over_what_is_taken_unasked_and_over_all():
    def way(seconds, *, chosen=False, gamble=False):
        return {"label": f"{seconds}", "seconds": seconds, "is_chosen": chosen, "is_gamble": gamble}

    found = plans.regret_of([way(3.0, chosen=True), way(2.5), way(2.0, gamble=True), way(None)])
    assert found["regret"] == pytest.approx(1.2) and found["regret_of_all"] == pytest.approx(1.5)
    assert (found["best"], found["best_of_all"]) == ("2.5", "2.0")
    assert plans.regret_of([way(None, chosen=True), way(1.0)])["regret"] is None


def test_best_of_kinds_keeps_tiles_that_differ():
    plan = dkrr.plan(n=9000, d=16, kernel="rbf", solver="cholesky", memory_limit="600MiB", workers=2)
    found = cases.admissible(plan.problem, plan.resources)
    assert plan.chosen in found and all(not c.refused for c in found)
    best = cases.best_of_kinds(found)
    tiles = sorted(c.tiling.tile for c in best if (c.execution, c.n_workers) == ("dask", 2))
    assert len(tiles) >= 2 and all(b > 1.4 * a for a, b in pairwise(tiles))
    assert len(best) < len(found)


def test_draw_makes_a_picture_of_the_last_line_of_each_case(tmp_path):
    lines, picture = tmp_path / "lines.jsonl", tmp_path / "new" / "plans.png"
    records = [
        line("a"),
        line("a", seconds=0.7),
        line("b", "h"),
        {"benchmark": "plans grid", "case": "c", "failed": "x"},
    ]
    run = {"step": "plans-grid", "records": [line("d")]}
    lines.write_text("".join(json.dumps(r) + "\n" for r in [*records, {"benchmark": "other"}, run]))
    read = plans.read_records(lines, "plans grid")
    assert [r["case"] for r in read] == ["a", "b", "c", "d"] and read[0]["ratios"]["seconds"] == 0.7
    arguments = ["draw", "--json", str(lines), "--out", str(picture)]
    assert CliRunner().invoke(plans.main, arguments, catch_exceptions=False).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines.write_text("")
    result = CliRunner().invoke(plans.main, arguments)
    assert result.exit_code == 1 and "no lines of a grid" in result.output


def test_only_existing_names():
    result = CliRunner().invoke(plans.main, ["grid", "--size", "smoke", "--only", "nonsense"])
    assert result.exit_code == 2 and "smoke cg memory" in result.output
