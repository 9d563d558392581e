"""Every benchmark runs at its smallest size, its commands take their options, and its data are what they say."""

import importlib
import json
import math
from collections import Counter
from itertools import combinations, combinations_with_replacement

import click
import numpy as np
import pytest
from click.testing import CliRunner

import benchmarks.__main__ as table
from benchmarks import qm9, regret, report, ways
from benchmarks.cases import Case
from benchmarks.grids import problems
from benchmarks.results import read_runs
from benchmarks.steps import STEPS


@pytest.mark.parametrize("step", [s for s in STEPS if "smoke" in s.commands and not s.uses], ids=lambda step: step.name)
def test_every_step_of_the_smallest_size_runs_and_stands_on_the_page(step, tmp_path):
    arguments = ["--size", "smoke", "--only", step.name, "--out", str(tmp_path), "--retries", "0"]
    result = CliRunner().invoke(table.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (run,) = read_runs(tmp_path / "results.jsonl")
    assert run["records"]
    assert str(tmp_path) not in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_commands_of_all_sizes_take_their_options(step, tmp_path):
    for size in step.commands:
        session = table.Session(size, tmp_path, tmp_path, 0, False, None)
        _, _, module, *arguments = session.command(step)
        command = importlib.import_module(module).main
        for written_before in (session.lines(step), tmp_path / "costs.json"):  # by other steps, which some read
            written_before.touch()
        if isinstance(command, click.Group):
            module, command, arguments = command.resolve_command(click.Context(command), arguments)
        command.make_context(module, arguments)  # parses and checks, and does nothing


def test_the_published_page_is_that_of_the_results():
    docs = table.ROOT / "docs"
    runs = read_runs(docs / "measured" / "results.jsonl")
    pictures = report.pictures_in(docs / "measured", docs / "results")
    assert (docs / "results" / "measurements.md").read_text() == report.markdown(runs, None, pictures)


def test_descriptors_of_molecules_are_those_of_naive_loops():
    """Eigenvalues of the Coulomb matrix, counts of elements, sums of r⁻¹, r⁻³ and r⁻⁶ over each pair of elements."""
    kinds, positions = [4, 2, 3, 1, 0, 1], np.random.default_rng(0).normal(scale=2.0, size=(1, 6, 3))  # of HCNOF
    charges = np.array([1, 6, 7, 8, 9])[kinds]
    coulomb = np.diag(0.5 * charges**2.4)
    sums = {(power, *pair): 0.0 for power in (1, 3, 6) for pair in combinations_with_replacement(range(5), 2)}
    for i, j in combinations(range(6), 2):
        r = math.dist(positions[0, i], positions[0, j])
        coulomb[i, j] = coulomb[j, i] = charges[i] * charges[j] / (r / 0.529177210903)
        for power in (1, 3, 6):
            sums[power, *sorted((kinds[i], kinds[j]))] += r**-power
    eigenvalues = sorted(np.linalg.eigvalsh(coulomb), key=abs, reverse=True)
    expected = [*eigenvalues, *[0.0] * 23, *np.bincount(kinds, minlength=5), *sums.values()]
    np.testing.assert_allclose(qm9.describe(np.array([kinds]), positions)[0], expected, rtol=1e-11, atol=1e-12)


CHOLESKY = {"solver": "cholesky", "form": "dual", "execution": "dask", "tile": 1000}
IN_MEMORY, CG = CHOLESKY | {"execution": "memory", "tile": 0}, CHOLESKY | {"solver": "cg", "tile": 0}


def run_of(kind, seconds, *, is_chosen=False, is_gamble=False, **more):
    ratios = {"seconds_ratio": 0.8, "peak_ratio": None if kind is CG else 1.2, "planning_seconds": 1.0}
    flags = {"is_chosen": is_chosen, "is_gamble": is_gamble, "noisy": False, "rank": None}
    predicted = None if seconds is None else 0.8 * seconds
    return {"label": "", "kind": kind, "seconds": seconds, "predicted_seconds": predicted} | ratios | flags | more


def line_of(case, *runs, changes=()):
    changes = [change | regret.cost_of(change, runs) for change in changes]
    figures = {"runs": list(runs), "skipped": [], "changes": changes, "n_rates": 30, "load": {"noisy": False}}
    return {"case": case} | figures | regret.regret_of(runs)


def test_regret_is_over_the_best_way_and_other_rates_cost_what_was_measured_or_planned():
    runs = [
        run_of(CHOLESKY, 4.0, is_chosen=True),
        run_of(CG, 2.0, is_gamble=True),
        run_of(CHOLESKY | {"tile": 2000}, 3.2),
        run_of(IN_MEMORY, None, at_least=5.2),
    ]
    found = regret.regret_of(runs)
    assert (found["regret"], found["regret_of_all"]) == (1.25, 2.0)
    changes = [
        {"rate": "gemm_flops", "kind": CG, "predicted_seconds": None},
        {"rate": "gemm_flops", "kind": IN_MEMORY, "predicted_seconds": 1.0},
        {"rate": "read_bytes", "kind": CHOLESKY | {"tile": 4000}, "predicted_seconds": 9.6},
    ]
    costs = [regret.cost_of(change, runs) for change in changes]
    assert [c["source"] for c in costs] == ["measured", "at least", "planned"]
    assert [c["cost"] for c in costs] == pytest.approx([0.5, 1.3, 3.0])
    summary = regret.summarise([line_of("one", *runs, changes=changes), {"case": "failed", "timed_out": 3}])
    assert summary["problems"] == 1
    assert summary["planning_fraction"]["largest"] == 0.2
    assert summary["peak_ratio"]["least"] == 1.2
    by_rate = summary["rates"]["by_rate"]
    assert [by_rate[name]["changed"] for name in ("all", "gemm_flops", "read_bytes")] == [3, 2, 1]
    assert by_rate["all"]["cost"]["largest"] == pytest.approx(3.0)


def test_a_stopped_run_of_regrets_resumes_and_two_of_them_are_compared(tmp_path, monkeypatch):
    seconds, done = [4.0], list[str]()

    def measure(case, timeout, size, retries):
        done.append(case.name)
        runs = [run_of(CHOLESKY, seconds[0], is_chosen=True), run_of(CG, 3.0)][: 2 if seconds[0] > 3 else 1]
        return {"settings": {"name": case.name, "n": case.n}} | line_of(case.name, *runs)

    def run(*arguments):
        result = CliRunner().invoke(regret.main, ["run", "--size", "smoke", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output

    cases = [Case("one", 10), Case("two", 20)]
    monkeypatch.setattr(regret, "measure", measure)
    monkeypatch.setattr(regret, "problems", lambda size: cases)
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    run("--json", str(before), "--only", "one")
    run("--json", str(before))
    run("--json", str(before))
    assert done == ["one", "two"]
    run("--json", str(before), "--only", "two", "--again")
    assert done == ["one", "two", "two"]
    monkeypatch.setattr(regret, "checksum", lambda: "another dkrr")
    run("--json", str(before), "--only", "one")
    assert done == ["one", "two", "two", "one"]
    seconds[0] = 2.0
    run("--json", str(after))
    result = CliRunner().invoke(regret.main, ["compare", str(before), str(after)], catch_exceptions=False)
    line = json.loads(result.stdout)
    assert (line["before"]["problems"], line["before"]["seconds"], line["after"]["seconds"]) == (2, 8.0, 4.0)
    assert "4 s → 2 s" in result.stderr.replace("4.0", "4").replace("2.0", "2")
    one, other = (
        next(r for r in regret.read_records(path, "regret") if r["case"] == "one") for path in (before, after)
    )
    assert regret.regret_beside(one, other) == pytest.approx(4 / 3)  # the way that both have is measured in each
    assert regret.regret_beside(other, one) == 1.0


def test_other_rates_are_those_of_plans_and_problems_have_two_limits(tmp_path):
    case = Case("two ways", 1200, 40, "polynomial", solver="auto")
    X, y = case.data(tmp_path)
    plan = case.plan(X, y)
    for name in ways.names_of_rates(plan.resources.rates):
        with ways.rate_times(name, 2.0):
            other = case.plan(X, y)
            found = other.resources.rates, other.problem.entry_time()
        assert found != (plan.resources.rates, plan.problem.entry_time()), name
    full = problems("full")
    assert len({c.name for c in full}) == len(full) >= 40
    limits = Counter(c.name.rsplit(", ", 1)[0] for c in full)
    assert set(limits.values()) <= {1, 2} and sum(n == 2 for n in limits.values()) >= 30  # of some data one is enough
