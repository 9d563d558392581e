import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click import ClickException
from click.testing import CliRunner
from rich.console import Console

from benchmarks import machine, report, steps
from benchmarks.grids import SIZES
from benchmarks.report import Verdict, judge, look
from benchmarks.steps import STEPS, Column, Goal, Step

everything = importlib.import_module("benchmarks.__main__")

GIB = 2**30
MACHINE = {"cpu": "Abacus 9", "cores": 2, "memory_bytes": 24 * GIB, "system": "Linux", "versions": {"numpy": "2.4"}}


def solved(seconds=20.0, gemm=0.82, dask=30.0, solver="cholesky"):
    return {
        "benchmark": "solve",
        "settings": {"n": 16384, "memory_limit": "2GiB", "solver": solver},
        "dkrr": {
            "seconds": seconds,
            "projected_seconds": 21.0,
            "gflops": 71.0,
            "plan": {"tile": 2048, "summary": "dual, Cholesky"},
            "memory": {"peak_bytes_by_process": {"1": GIB // 5, "2": GIB // 4}, "largest_over_projected": 0.8},
        },
        "ratios": {"gemm": gemm},
        "peers": {
            "dask": {"seconds": dask, "peak_bytes": GIB, "peak_bytes_of_all_workers": 2 * GIB},
            "scipy": {"seconds": 16.0, "peak_bytes": 2 * GIB},
            "sklearn": {"crashed": "SIGSEGV", "threads": 2, "outcome": "crashed (SIGSEGV) with 2 threads"},
            "sklearn_one_thread": {"seconds": 40.0, "peak_bytes": 6 * GIB},
        },
    }


def a_run(step="solve-16384-tiles", records=(), **values):
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
    in_memory = a_run("solve-16384", [solved(), solved(solver="auto")])
    text = page(tmp_path, a_run(records=[solved(gemm=0.81), solved(gemm=0.79), solved(gemm=0.82)]), in_memory)
    assert "2 cores of Abacus 9, 24 GiB of memory, Linux; numpy 2.4" in text
    assert (
        "`python -m benchmarks.solve-16384-tiles`" in text and "2026-11-21, commit abc123, 1 min 30 s, quiet." in text
    )
    assert row_of(text, "part of the GEMM rate, n = 16,384") == [
        "part of the GEMM rate, n = 16,384",
        "≥ 0.75",
        "0.81",  # the median of the repetitions
        "yes",
    ]
    assert row_of(text, "time over SciPy's, n = 16,384 in memory, cholesky")[1:] == ["≤ 1", "1.25", "**no**"]
    # A peer that crashed with all threads is judged by its run on one.
    assert row_of(text, "time over scikit-learn's, n = 16,384")[1:] == ["≤ 0.25", "0.50", "**no**"]
    assert row_of(text, "time over dask.array")[1:] == ["≤ 0.75", "0.67", "yes"]
    assert row_of(text, "peak memory over dask.array")[2:] == ["0.22", "yes"]
    assert row_of(text, "part of the GEMM rate, n = 32,768, float32")[2:] == ["–", "not measured"]
    assert (tmp_path / "measured" / "peers.png").read_bytes().startswith(b"\x89PNG") and "](peers.png)" in text
    # The table of the step, without columns that nothing is in.
    text = page(tmp_path, a_run(records=[solved(gemm=0.81), solved(gemm=0.79), solved(gemm=0.82)]))
    header = row_of(text, "n | limit | solver | planned")
    rows = [line for line in text.splitlines() if line.startswith("| 16,384 | 2GiB | cholesky | dual")]
    assert len(rows) == 3  # every repetition
    entries = dict(zip(header, (entry.strip() for entry in rows[0].strip("|").split("|")), strict=True))
    assert entries["scikit-learn"] == "crashed (SIGSEGV) with 2 threads" and entries["on one thread"] == "40.0 s"
    assert entries["dkrr / scikit-learn"] == "0.50" and "true residual" not in entries


def test_readme_quotes_the_page(tmp_path):
    results, readme = tmp_path / "results.jsonl", tmp_path / "README.md"
    within = {"memory_limit": "500MB", "solver": "auto", "residual": 9e-7, "seconds": 6.0, "peak_bytes": 330 * 2**20}
    ratios = {"ratios": {"scipy": {"seconds": 1.4, "peak_bytes": 0.4}}}
    older = {"environment": {"OPENBLAS_CORETYPE": "Haswell"}, "blas": [{"internal_api": "b", "version": "1"}]}
    runs = [
        a_run(records=[solved(22.0), solved(20.0), solved(21.0), solved(10.0, solver="auto")]),
        a_run("solve-16384-tiles-haswell", [solved(24.0)], machine=MACHINE | older | {"blas": []}),
        a_run("iterative-beside", [within, within | {"solver": "cg-auto", "seconds": 5.0}, ratios]),
        a_run("small", [{"n": 100, "ratio": 1.5, "one_row_ratio": 0.8}]),
    ]
    results.write_text("".join(json.dumps(run) + "\n" for run in runs))
    readme.write_text("before\n<!-- measured -->\nolder figures\n<!-- /measured -->\nafter\n")
    place = tmp_path / "docs" / "performance.md"
    assert report.render(results, tmp_path / "docs" / "measured", page=place, readme=readme) == place
    text, quoted = place.read_text(), readme.read_text()
    assert "](measured/peers.png)" in text
    block = "\n".join(report.highlights(report.shown_runs(runs, None)))
    assert block in text and block in quoted and "older figures" not in quoted
    assert quoted.startswith("before\n<!-- measured -->\n") and quoted.endswith("<!-- /measured -->\nafter\n")
    assert row_of(quoted, "16,384 | 2GiB | cholesky") == [
        "16,384",
        "2GiB",
        "cholesky: dual, Cholesky",
        "21.0 s",  # the median run
        "461 MiB",
        "0.82",
        "1.31 × the time, 0.22 × the memory (16.0 s, 2 GiB)",
        "crashed (SIGSEGV) with 2 threads; on one thread 0.53 × the time, 0.07 × the memory (40.0 s, 6 GiB)",
        "0.70 × the time, 0.22 × the memory (30.0 s, 2 GiB)",
        "24.0 s; SciPy 1.50 × the time (16.0 s, 2 GiB)",
    ]
    assert row_of(quoted, "16,384 | 2GiB | auto")[-1] == "–"
    assert "true residual of 9.0e-07: 6.0 s and 330 MiB, 1.40 × SciPy's time and 0.40 × its memory." in quoted
    assert "- Not measured: iterative-headline." in quoted and "- Not measured: small." in quoted
    # Rendered again it is the same, and a page without a block is refused.
    report.render(results, tmp_path / "docs" / "measured", page=place, readme=readme)
    assert (place.read_text(), readme.read_text()) == (text, quoted)
    readme.write_text("no block")
    with pytest.raises(ClickException, match="no block"):
        report.render(results, tmp_path, readme=readme)


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
    assert (
        "**Not measured**: solve-5000" in text
        and "small" in text
        and "forms-draw" not in text
        and "gone-since" not in text
    )
    assert "![" not in text


def test_empty_file_makes_a_page_of_goals(tmp_path):
    text = page(tmp_path)
    assert text.count("not measured") == sum(len(step.goals) for step in STEPS)
    (tmp_path / "results.jsonl").write_text('{"cut off')
    assert report.read_runs(tmp_path / "results.jsonl") == []
    result = CliRunner().invoke(report.main, ["--json", str(tmp_path / "results.jsonl"), "--out", str(tmp_path)])
    assert result.exit_code == 1 and "no runs" in result.output


def test_best_run_is_complete_then_large_then_quiet_then_latest():
    step = steps.step_named("solve-16384-tiles")

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


def test_machines_commits_and_kernels_are_told_apart(tmp_path):
    def kernels(name, **environment):
        blas = [{"internal_api": "openblas", "version": "0.3.31", "architecture": name}]
        return MACHINE | {"blas": blas, "environment": environment}

    older = kernels("Haswell", OPENBLAS_CORETYPE="Haswell")
    text = page(tmp_path, a_run(machine=kernels("SkylakeX")), a_run("solve-16384-tiles-haswell", machine=older))
    assert "Measured 2026-11-21 at commit abc123, on 2 cores of Abacus 9" in text
    assert "BLAS: openblas 0.3.31 (SkylakeX kernels)." in text
    assert text.count("quiet; openblas 0.3.31 (Haswell kernels).") == 1
    text = page(tmp_path, a_run(), a_run("blas", machine=MACHINE | {"cpu": "Slide Rule"}))
    assert "do not compare across machines or commits" in text
    assert any("Slide Rule" in line and line.endswith(": blas") for line in text.splitlines())
    text = page(tmp_path, a_run(), a_run("blas", commit="def456", started="2026-11-22T10:00:00+00:00"))
    assert "Measured 2026-11-21 to 2026-11-22, **not all in one run**" in text and "- commit def456" in text


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


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_commands_of_all_sizes_take_their_options(step, tmp_path):
    """The full ones run only when figures are measured: a wrong option would show then."""
    session = everything.Session("full", tmp_path, tmp_path, 0, False, None)
    for name in ("costs.json", "costs-small.json", f"lines-for-{step.name}.jsonl"):
        (tmp_path / name).touch()  # what earlier steps write
    for size in step.commands:
        _python, _option, module, *arguments = replace(session, size=size).command(step)
        command = importlib.import_module(module).main
        if isinstance(command, click.Group):
            command = command.commands[arguments.pop(0)]
        command.make_context(module, arguments)


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


def test_change_of_an_imported_benchmark_or_of_the_environment_runs_a_step_again(table_of, quiet_machine, tmp_path):
    session, (step, _) = table_of(first=(0, False), second=(0, False))
    script = tmp_path / "benchmarks" / "first.py"
    script.write_text("from benchmarks import second\n" + script.read_text())
    run_all(session, [step])
    assert everything.is_done(report.read_runs(session.results), step, session)
    other = replace(step, environment={"OPENBLAS_NUM_THREADS": "1"})
    assert not everything.is_done(report.read_runs(session.results), other, session)
    (tmp_path / "benchmarks" / "second.py").write_text("changed = True")
    assert not everything.is_done(report.read_runs(session.results), step, session)


def test_machine_of_a_step_is_that_of_its_environment(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    here, there = everything.machine_of(()), everything.machine_of((("OPENBLAS_NUM_THREADS", "1"),))
    assert here["environment"] == {} and there["environment"] == {"OPENBLAS_NUM_THREADS": "1"}
    assert [library["num_threads"] for library in there["blas"]] == [1] * len(there["blas"]) != []


def test_machine_is_calibrated_for_each_instruction_set(monkeypatch):
    asked = []

    def run(command, env, **_):
        asked.append((command[-1], env.get("OPENBLAS_CORETYPE")))

    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.setattr(everything.subprocess, "run", run)
    everything.calibrate(everything.chosen_steps("full", ()), Console(quiet=True))
    assert asked == [("calibrate", None), ("calibrate", "Haswell")]


def test_steps_on_request_are_in_the_full_table_only_by_name():
    everywhere = {step.name for step in everything.chosen_steps("full", ())}
    assert everywhere == {step.name for step in STEPS if not step.on_request}
    assert [step.name for step in everything.chosen_steps("full", ("forms-*",))] == ["forms-measure", "forms-draw"]
    assert {step.name for step in everything.chosen_steps("smoke", ())} == {
        s.name for s in STEPS if "smoke" in s.commands
    }
    assert sum(step.minutes for step in everything.chosen_steps("full", ())) < 35


def test_sentences_are_of_steps_that_are_run():
    everywhere = {step.name for step in everything.chosen_steps("full", ())}
    for sentence in steps.SENTENCES:
        assert sentence.step in everywhere
        sentence.text.format(**dict.fromkeys(sentence.values, ""))


def test_published_page_and_readme_are_those_of_the_results():
    docs, readme = everything.ROOT / "docs", (everything.ROOT / "README.md").read_text()
    assert report.BLOCK.search(readme)
    runs = report.read_runs(docs / "measured" / "results.jsonl")
    if runs:  # before the first full run, page and block are the earlier ones
        pictures = report.pictures_in(docs / "measured", docs)
        assert (docs / "performance.md").read_text() == report.markdown(runs, None, pictures)
        assert report.with_block(readme, report.highlights(report.shown_runs(runs, None))) == readme


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
