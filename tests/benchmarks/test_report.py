import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks import machine, report, steps
from benchmarks.grids import SIZES
from benchmarks.report import Verdict, judge, look
from benchmarks.steps import STEPS, Column, Goal, Step

everything = importlib.import_module("benchmarks.__main__")

GIB = 2**30
MACHINE = {"cpu": "Abacus 9", "cores": 2, "memory_bytes": 24 * GIB, "system": "Linux", "versions": {"numpy": "2.4"}}


def solved(seconds=20.0, gemm=0.82, dask=30.0):
    return {
        "benchmark": "solve",
        "settings": {"n": 16384, "memory_limit": "2GiB"},
        "dkrr": {
            "seconds": seconds,
            "projected_seconds": 21.0,
            "gflops": 71.0,
            "plan": {"tile": 2048},
            "memory": {"peak_bytes_by_process": {"1": GIB // 5, "2": GIB // 4}, "largest_over_projected": 0.8},
        },
        "ratios": {"gemm": gemm},
        "peers": {
            "dask": {"seconds": dask, "peak_bytes": GIB, "peak_bytes_of_all_workers": 2 * GIB},
            "scipy": {"crashed": "SIGSEGV"},
        },
    }


def a_run(step="solve-16384", records=(), **values):
    return {
        "step": step,
        "size": "full",
        "command": f"python -m benchmarks.{step}",
        "code": "c0de",
        "commit": "abc123",
        "started": "2026-11-21T10:00:00+00:00",
        "seconds": 90.0,
        "attempt": 0,
        "status": "complete",
        "error": "",
        "noisy": False,
        "load": {"other_cores_busy_during": 0.01},
        "machine": MACHINE,
        "records": list(records),
    } | values


def page(tmp_path, *runs, size=None):
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(run) + "\n" for run in runs))
    return report.render(results, tmp_path / "measured", size).read_text()


def row_of(text, start):
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [entry.strip() for entry in found.strip("|").split("|")]


def test_page_says_what_ran_where_and_whether_the_goals_are_met(tmp_path):
    text = page(tmp_path, a_run(records=[solved(gemm=0.81), solved(gemm=0.79), solved(gemm=0.82)]))
    assert "2 cores of Abacus 9, 24 GiB of memory, Linux; numpy 2.4" in text
    assert "`python -m benchmarks.solve-16384`" in text and "2026-11-21, commit abc123, 1 min 30 s, quiet." in text
    assert row_of(text, "part of the GEMM rate, n = 16,384") == [
        "part of the GEMM rate, n = 16,384",
        "≥ 0.8",
        "0.81",  # the median of the repetitions
        "yes",
    ]
    assert row_of(text, "time over dask.array")[1:] == ["≤ 0.75", "0.67", "yes"]
    assert row_of(text, "peak memory over dask.array")[2:] == ["0.22", "yes"]
    assert row_of(text, "part of the GEMM rate, n = 32,768")[2:] == ["–", "not measured"]
    # The picture and the table, without columns for peers that gave no figures.
    assert (tmp_path / "measured" / "peers.png").read_bytes().startswith(b"\x89PNG") and "](peers.png)" in text
    assert row_of(text, "time | projected")[-2] == "Dask" and "SciPy" not in row_of(text, "time | projected")


def test_goal_that_is_missed_and_noise_are_said_plainly(tmp_path):
    text = page(tmp_path, a_run(records=[solved(gemm=0.5)], noisy=True))
    assert row_of(text, "part of the GEMM rate, n = 16,384")[2:] == ["0.50", "**no**, noisy"]
    assert "NOISY, do not quote" in text


def test_steps_that_are_missing_or_failed_do_not_stop_the_others(tmp_path):
    failed = a_run("iterative-ranks", status="failed", error="exit status 1 | no data")
    partly = a_run("blas", [{"n": 8, "threads": 2, "gflops": {"gemm": 99.5}}], status="timed out", error="after 5 s")
    text = page(tmp_path, failed, partly, a_run("gone-since", [{"x": 1}]))
    assert "**failed**: exit status 1 \\| no data" in text
    assert "**timed out**: after 5 s" in text and "| 2 | 8 | 99.5 |" in text
    assert "Not measured: solve-16384" in text and "small" in text and "gone-since" not in text
    assert "![" not in text


def test_empty_file_makes_a_page_of_goals(tmp_path):
    text = page(tmp_path)
    assert text.count("not measured") == sum(len(step.goals) for step in STEPS)
    (tmp_path / "results.jsonl").write_text('{"cut off')
    assert report.read_runs(tmp_path / "results.jsonl") == []
    result = CliRunner().invoke(report.main, ["--json", str(tmp_path / "results.jsonl"), "--out", str(tmp_path)])
    assert result.exit_code == 1 and "no runs" in result.output


def test_best_run_is_complete_then_large_then_quiet_then_latest():
    step = STEPS[0]

    def best(*runs, size=None):
        return report.best_run([a_run(**r | {"number": k}) for k, r in enumerate(runs)], step, size)["number"]

    assert best({}, {}) == 1
    assert best({}, {"noisy": True}) == 0
    assert best({"noisy": True}, {"noisy": True}) == 1
    assert best({}, {"status": "failed"}) == 0
    assert best({"size": "small"}, {"size": "full", "status": "failed"}) == 0
    assert best({"size": "full", "noisy": True}, {"size": "small"}) == 0
    assert best({"size": "full"}, {"size": "small"}, size="small") == 1
    assert report.best_run([a_run("another")], step, None) is None


def test_machines_are_told_apart(tmp_path):
    text = page(tmp_path, a_run(), a_run("blas", machine=MACHINE | {"cpu": "Slide Rule"}))
    assert "do not compare across them" in text
    assert any("Slide Rule" in line and line.endswith(": blas") for line in text.splitlines())


def test_plans_are_drawn_beside_their_table(tmp_path):
    every = {"seconds": 1.3, "read_bytes": None, "written_bytes": 1.0, "peak_bytes": 1.2}
    case = {
        "benchmark": "plans grid",
        "case": "one",
        "group": "cholesky",
        "settings": {"n": 5, "d": 2},
        "ratios": every,
        "ratios_at_iterations": every,
        "predicted": {"seconds": 1.3},
        "measured": {"seconds": 1.0},
        "misses": [],
    }
    bad = {"benchmark": "plans grid", "case": "two", "settings": {"n": 7, "d": 2}, "failed": "out of luck"}
    summary = {
        "benchmark": "plans grid",
        "n_failed": 1,
        "summary": {"all": {"seconds": {"off": 1.3, "worst_off": 1.3}}},
    }
    text = page(tmp_path, a_run("plans-grid", [case, bad, summary]))
    assert "](plans.png)" in text and (tmp_path / "measured" / "plans.png").exists()
    assert row_of(text, "one | cholesky")[4:] == ["1.0 s", "1.30", "1.30", "1.00", "1.20", "–"]
    assert "out of luck" in row_of(text, "two")[-1]
    assert row_of(text, "half of all plans")[2:] == ["1.30", "**no**"]
    assert row_of(text, "cases that failed")[2:] == ["1.00", "**no**"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.b", 3),
        ("a.c", None),
        ("a.c,a.b", 3),
        ("a.b.c", None),
        ("sizes|max", 5),
        ("sizes|sum", 7),
        ("row|min", 1),
        ("nothing|max", None),
        ("empty,a.b", 3),
    ],
)
def test_look(path, value):
    record = {"a": {"b": 3}, "sizes": {"x": 2, "y": 5}, "row": [4, 1], "nothing": {}, "empty": []}
    assert look(record, path) == value


def test_judge_takes_the_median_of_repetitions_and_the_worst_of_different_lines():
    lines = [{"v": 1.0, "w": 2.0}, {"v": 3.0, "w": 2.0}, {"v": 8.0, "w": 2.0, "kind": "b"}, {"w": 1}]
    assert judge(Goal("", "v", at_most=3), lines).is_met is True
    assert judge(Goal("", "v", at_most=3, rows="worst"), lines).value == 8.0
    assert judge(Goal("", "v", at_least=2, rows="worst"), lines) == Verdict(
        Goal("", "v", at_least=2, rows="worst"), 1.0
    )
    assert judge(Goal("", "v", "w", at_most=3, where={"kind": "b"}), lines).value == 4.0
    assert judge(Goal("", "none", at_most=3), lines).is_met is None
    assert judge(Goal("", "v", at_least=2, at_most=4), lines).is_met is True
    assert judge(Goal("", "v", at_least=2, at_most=4), lines).bound == "≤ 4 and ≥ 2"


def test_steps_are_told_apart_and_their_bounds_are_bounds():
    assert len({step.name for step in STEPS}) == len(STEPS)
    for step in STEPS:
        assert set(step.commands) <= set(SIZES) and "full" in step.commands, step.name
        for size in step.commands:
            assert not step.uses or steps.step_named(step.uses) is not None
            command = everything.Session(size, Path("out"), Path("cache"), 0, False, None).command(step)
            assert command[2].startswith("benchmarks.") and "{" not in "".join(command)
        for goal in step.goals:
            assert (goal.at_most is None) != (goal.at_least is None), goal


CHILD = """
import json, sys
print("not JSON")
print(json.dumps({"n": 3, "value": 2.0, "load": {"noisy": NOISY}, "machine": {"cpu": "?"}}))
sys.exit("out of luck" if STATUS else 0)
"""


@pytest.fixture
def table_of(monkeypatch, tmp_path):
    """Sets the table to steps that run a small script, and gives a session."""
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "dkrr").mkdir()

    def build(*, retries=1, again=False, timeout=60.0, **scripts):
        made = []
        for name, (status, noisy) in scripts.items():
            text = CHILD.replace("NOISY", str(noisy)).replace("STATUS", str(status))
            (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
            goals = (Goal("value", "value", at_most=3),)
            made.append(
                Step(name, name, {"smoke": f"benchmarks.{name}"}, (Column("n", "n"), Column("v", "value")), goals)
            )
        for module in (everything, report, steps):
            monkeypatch.setattr(module, "STEPS", tuple(made))
        return everything.Session("smoke", tmp_path / "out", tmp_path / "cache", retries, again, timeout), made

    return build


def run_all(session, table):
    failed = everything.run_all(session, table, Console(quiet=True))
    return failed, report.read_runs(session.results)


@pytest.fixture
def quiet_machine(monkeypatch):
    monkeypatch.setattr(machine, "NOISY_CORES", 1e9)


def test_run_continues_after_a_failure_and_is_resumed(table_of, quiet_machine):
    session, table = table_of(first=(0, False), bad=(1, False), last=(0, False))
    failed, runs = run_all(session, table)
    assert failed == ["bad"]
    assert [(r["step"], r["status"]) for r in runs] == [("first", "complete"), ("bad", "failed"), ("last", "complete")]
    assert runs[0]["records"] == [{"n": 3, "value": 2.0, "load": {"noisy": False}}]  # the machine is said once
    text = (session.out / "README.md").read_text()
    assert "| value | ≤ 3 | 2.00 | yes, size smoke |" in text and "**failed**: out of luck" in text
    # Once more: only what failed runs again.
    _, runs = run_all(session, table)
    assert [r["step"] for r in runs[3:]] == ["bad"]
    _, runs = run_all(replace(session, again=True), table[:1])
    assert [r["step"] for r in runs[4:]] == ["first"]


def test_change_of_code_or_of_the_command_runs_a_step_again(table_of, quiet_machine, tmp_path):
    session, table = table_of(first=(0, False))
    run_all(session, table)
    assert everything.is_done(report.read_runs(session.results), table[0], session)
    other = replace(table[0], commands={"smoke": "benchmarks.first --more"})
    assert not everything.is_done(report.read_runs(session.results), other, session)
    (tmp_path / "dkrr" / "new.py").write_text("changed = True")
    assert not everything.is_done(report.read_runs(session.results), table[0], session)


def test_noisy_runs_are_marked_and_repeated_so_many_times(table_of, quiet_machine):
    session, table = table_of(loud=(0, True), retries=2)
    failed, runs = run_all(session, table)
    assert failed == [] and [r["attempt"] for r in runs] == [0, 1, 2] and all(r["noisy"] for r in runs)
    assert "NOISY" in (session.out / "README.md").read_text()
    _, runs = run_all(session, table)
    assert len(runs) == 3  # tried often enough


def test_other_load_makes_a_run_noisy_whatever_it_says_itself(table_of, monkeypatch):
    session, table = table_of(first=(0, False))
    monkeypatch.setattr(machine, "NOISY_CORES", -1.0)
    assert everything.run_step(table[0], session, 0)["noisy"] is True


def test_step_that_takes_too_long_keeps_what_it_printed(table_of, quiet_machine, tmp_path):
    session, table = table_of(slow=(0, False), timeout=3.0)
    script = "import time\nprint('{\"n\": 1}', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "benchmarks" / "slow.py").write_text(script)
    run = everything.run_step(table[0], session, 0)
    assert run["status"] == "timed out" and run["records"] == [{"n": 1}] and run["seconds"] < 30


def test_missing_module_is_a_failed_step(table_of, quiet_machine):
    session, _ = table_of()
    run = everything.run_step(Step("no", "no", {"smoke": "benchmarks.missing"}, ()), session, 0)
    assert run["status"] == "failed" and run["records"] == []
    assert "No module named benchmarks.missing" in run["error"]


def test_command_lists_and_refuses_unknown_names(table_of):
    table_of(first=(0, False), second=(0, False))
    result = CliRunner().invoke(everything.main, ["--size", "smoke", "--list", "--only", "sec*"])
    assert result.output == "second: python -m benchmarks.second\n"
    result = CliRunner().invoke(everything.main, ["--size", "smoke", "--only", "third"])
    assert result.exit_code == 2 and "first, second" in result.output


def test_one_real_step_from_the_command_to_the_page(tmp_path):
    arguments = ["--size", "smoke", "--only", "blas", "--out", str(tmp_path), "--retries", "0"]
    result = CliRunner().invoke(everything.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (run,) = report.read_runs(tmp_path / "results.jsonl")
    assert run["records"][0]["gflops"]["gemm"] > 0 and run["machine"]["versions"]["numpy"]
    text = (tmp_path / "README.md").read_text()
    assert "python -m benchmarks.blas --n 256" in text and "our Cholesky over LAPACK's" in text
    assert sys.executable not in text and str(tmp_path) not in text


def test_step_without_columns_shows_every_number_and_text():
    step = Step("any", "any", {"full": "benchmarks.any"})
    records = [{"benchmark": "any", "what": "a", "seconds": 2.0, "peak_bytes": GIB, "n": 5000, "deep": {"x": 1}}]
    columns = report.columns_of(step, records)
    assert [(c.heading, c.style) for c in columns] == [
        ("what", "text"),
        ("seconds", "seconds"),
        ("peak bytes", "bytes"),
        ("n", "count"),
    ]
    assert report.rows_of(step, records) == [["a", 2.0, GIB, 5000]]
    assert report.table(columns, [["a", 2.0, GIB, 5000]])[-1] == "| a | 2.0 s | 1 GiB | 5,000 |"


def test_simulation_is_never_noisy(table_of, quiet_machine):
    session, table = table_of(loud=(0, True))
    assert everything.run_step(replace(table[0], is_timed=False), session, 0)["noisy"] is False


def test_step_gets_the_lines_of_another_and_is_run_again_with_new_ones(table_of, quiet_machine, tmp_path):
    session, (source, *_) = table_of(first=(0, False), unused=(0, False))
    script = "import json, sys\nprint(json.dumps({'given': [json.loads(line) for line in open(sys.argv[1])]}))\n"
    (tmp_path / "benchmarks" / "second.py").write_text(script)
    second = Step("second", "second", {"smoke": "benchmarks.second {lines}"}, uses="first")
    assert everything.run_step(second, session, 0)["records"] == [{"given": []}]
    run_all(session, [source])
    _, runs = run_all(session, [second])
    assert runs[-1]["records"][0]["given"][0]["value"] == 2.0
    assert everything.is_done(runs, second, session)
    later = runs[0] | {"started": "9999-01-01T00:00:00+00:00"}
    assert not everything.is_done([*runs, later], second, session)
