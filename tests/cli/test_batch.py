"""Job files on the command line: many models, skipped, failed, resumed, listed."""

import json
import logging
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dkrr as library
from dkrr.cli import dkrr
from dkrr.cli.batch import OF_RUN, PLACES, SHARED, WORK, OfJob, keys_of
from dkrr.cli.fit import FitTask
from dkrr.cli.fit import fit as fit_command
from dkrr.errors import ClusterError, StoreError
from dkrr.model_description import describe_model

JOB = """
[fit]
x = "x.npy"
y = "y.npy"
model = "models/{name}.zarr"
store = "stores/{name}.zarr"

[[model]]
name = "line"

[[model]]
name = "grid"
kernel = "rbf"
grid.gamma = [0.1, 1.0]
grid.alpha = [1e-3, 1]
"""
NAMES = ["line", *(f"grid-gamma={gamma}-alpha={alpha}" for gamma in (0.1, 1.0) for alpha in (0.001, 1))]


@pytest.fixture
def folder(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "dkrr")
    rng = np.random.default_rng(5)
    X = rng.normal(size=(97, 3))
    np.save("x.npy", X)
    np.save("y.npy", X[:, 0] + np.sin(X[:, 1]))
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(dkrr, ["fit", *map(str, arguments)])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def records(text):
    return [json.loads(line) for line in text.splitlines()]


def outcomes(text):
    return {record["name"]: record["outcome"] for record in records(text)}


def test_all_models_of_a_job(folder):
    result = run("job.toml", "--json", "--results", "results.jsonl")
    found = records(result.stdout)
    assert [record["name"] for record in found] == NAMES and records((folder / "results.jsonl").read_text()) == found
    for record in found:
        assert record["outcome"] == "done" and record["error"] is None and record["residual"] < 1e-9
        assert record["status"] == "SOLVED" and record["plan"]["form"] in ("dual", "primal")
        model = library.load(record["model"])
        assert record["model"] == f"models/{record['name']}.zarr"
        assert model.predict(np.load("x.npy")).shape == (97,)
    assert library.load("models/grid-gamma=0.1-alpha=0.001.zarr").alpha == 0.001
    assert not list((folder / "stores").iterdir()), "stores are deleted when their models are saved"


def test_resume_skips_complete_models_and_refuses_others(folder, caplog):
    run("job.toml", "--only", "grid-gamma=0.1*", "--only", "line", "--keep-stores")
    assert len(list((folder / "stores").iterdir())) == 3
    before = {path: path.stat().st_mtime_ns for path in (folder / "models").iterdir()}
    result = run("job.toml", code=2)
    assert "job.toml:5: model: it exists already" in result.stderr and "and 0 more" not in result.stderr
    assert "(models line, grid-gamma=0.1-alpha=0.001, grid-gamma=0.1-alpha=1)" in result.stderr
    result = run("job.toml", "--resume", "--json")
    assert list(outcomes(result.stdout).values()) == ["skipped"] * 3 + ["done"] * 2
    assert "3 complete, 2 to do" in caplog.text and "is complete from an earlier run: skipped" in caplog.text
    assert before.items() <= {path: path.stat().st_mtime_ns for path in (folder / "models").iterdir()}.items()
    # Where and how the work is done does not change a model.
    assert set(outcomes(run("job.toml", "--resume", "--json", "--memory-limit", "1GiB").stdout).values()) == {"skipped"}

    (folder / "job.toml").write_text(JOB.replace("grid.gamma = [0.1,", "degree = 2\ngrid.gamma = [0.1,"))
    result = run("job.toml", "--resume", code=2)
    assert "degree was not given when the model was made, and is 2" in result.stderr
    assert "grid-gamma=0.1-alpha=0.001, grid-gamma=0.1-alpha=1, grid-gamma=1.0-alpha=0.001 and 1 more" in result.stderr
    found = outcomes(run("job.toml", "--resume", "--overwrite", "--json").stdout)
    assert list(found.values()) == ["skipped"] + ["done"] * 4


def test_resume_refuses_models_of_other_data_and_damaged_ones(folder):
    run("job.toml", "--only", "line", "--only", "grid-gamma=0.1-alpha=1")
    chunk = folder / "models" / "line.zarr" / "coef" / "c.0.0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    result = run("job.toml", "--resume", code=2)
    assert "damaged" in result.stderr and "(model line)" in result.stderr
    np.save("y.npy", np.load("y.npy") * 2)
    result = run("job.toml", "--resume", code=2)
    assert "y.npy changed since the model was made" in result.stderr
    model = library.KernelRidge().fit(np.load("x.npy"), np.load("y.npy"))
    library.save(model, "models/line.zarr", overwrite=True)
    assert "was not made by a job" in run("job.toml", "--resume", "--only", "line", code=2).stderr
    (folder / "other").mkdir()
    (folder / "other" / "notes.txt").write_text("mine")
    arguments = ["job.toml", "--only", "line", "--model", "other"]
    for flags in (["--resume"], ["--overwrite"], ["--resume", "--overwrite"]):
        run(*arguments, *flags, code=2)
    assert (folder / "other" / "notes.txt").read_text() == "mine"


def test_parts_have_all_models_once(folder):
    found = [outcomes(run("job.toml", "--part", f"{k}/3", "--json").stdout) for k in (1, 2, 3)]
    assert [list(part) for part in found] == [NAMES[0::3], NAMES[1::3], NAMES[2::3]]
    assert run("job.toml", "--part", "7/7", "--json").stdout == "", "an array may be larger than the job"
    for wrong in ("0/3", "4/3", "3", "a/b", "-1/3"):
        assert "expected K/M" in run("job.toml", "--part", wrong, code=2).stderr


def test_dry_run_lists_models_with_their_plans(folder):
    text = run("job.toml", "--dry-run").stdout
    assert all(name in text for name in NAMES) and "dual, cholesky" in text and "5 models" in text
    assert not (folder / "models").exists()
    plans = records(run("job.toml", "--dry-run", "--json").stdout)
    assert [plan["name"] for plan in plans] == NAMES and plans[0]["plan"]["problem"]["n"] == 97


@pytest.mark.parametrize("fail_fast", [False, True])
def test_a_failed_model_does_not_stop_the_others(folder, caplog, fail_fast):
    X = np.load("x.npy")
    np.save("twice.npy", np.vstack([X, X]))
    np.save("y2.npy", np.ones(194))
    np.save("nan.npy", np.full(97, np.nan))
    (folder / "job.toml").write_text(
        '[fit]\nx = "x.npy"\ny = "y.npy"\nkernel = "rbf"\nmodel = "{name}.zarr"\n'
        '[[model]]\nname = "bad"\ny = "nan.npy"\n'
        '[[model]]\nname = "singular"\nx = "twice.npy"\ny = "y2.npy"\nalpha = 0\nsolver = "cholesky"\n'
        '[[model]]\nname = "good"\n'
    )
    result = run("job.toml", "--json", *(["--fail-fast"] if fail_fast else []), code=1)
    found = records(result.stdout)
    last = "not started" if fail_fast else "done"
    assert [record["outcome"] for record in found] == ["failed", "not started" if fail_fast else "failed", last]
    assert "y contains NaN" in found[0]["error"]
    assert [record.levelname for record in caplog.records[-2:]] == ["INFO" if not fail_fast else "ERROR", "ERROR"]
    counts = "1 failed, 2 not started (failed: bad)" if fail_fast else "1 done, 2 failed (failed: bad, singular)"
    assert re.search(r"failed after .*NaN", caplog.text) and f"end of the job: {counts}" in caplog.text
    assert (folder / "good.zarr").exists() is not fail_fast and not (folder / "bad.zarr").exists()
    table = run("job.toml", "--overwrite", code=1).stdout
    assert re.search(r"good +done", table) and re.search(r"bad +failed .*NaN", table)


def test_faults_of_libraries_and_lost_clusters(folder, monkeypatch, caplog):
    carry_out = FitTask.carry_out

    def breaking(self, arguments, **options):
        if "alpha=0.001" in arguments["model_path"]:
            raise errors.pop(0)
        return carry_out(self, arguments, **options)

    monkeypatch.setattr(FitTask, "carry_out", breaking)
    errors = [RuntimeError("of a library"), MemoryError()]
    result = run("job.toml", "--json", code=1)
    assert list(outcomes(result.stdout).values()) == ["done", "failed", "done", "failed", "done"]
    assert "Traceback" in caplog.text and "RuntimeError: of a library" in caplog.text
    errors = [ClusterError("the scheduler was lost")]
    result = run("job.toml", "--json", "--overwrite", code=1)
    assert list(outcomes(result.stdout).values()) == ["done", "failed", "not started", "not started", "not started"]
    errors = [KeyboardInterrupt()]
    result = run("job.toml", "--json", "--overwrite", code=130)
    assert list(outcomes(result.stdout).values()) == ["done", "interrupted"] + ["not started"] * 3
    assert "--resume continues" in caplog.text


@pytest.mark.filterwarnings("default::dkrr.errors.ConvergenceWarning")
def test_a_fit_less_accurate_than_required_fails_with_its_residual(folder):
    options = ["--solver", "cg", "--solver-max-iter", "1", "--form", "dual", "--only", "grid-gamma=0.1-alpha=0.001"]
    result = run("job.toml", "--json", "--tol", "1e-14", *options, code=1)
    (record,) = records(result.stdout)
    assert record["outcome"] == "failed" and record["model"] is None and record["residual"] > 1e-14
    assert "its model was not saved" in record["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["job.toml", "--gamma", "-1"], "job.toml:8: gamma is -1.0"),
        (["job.toml", "--only", "gird*"], "--only is 'gird*', and none of 5 models"),
        (
            ["job.toml", "--model", "m.zarr"],
            "job.toml:5: the models line and grid-gamma=0.1-alpha=0.001 have one model",
        ),
        (["job.toml", "--x", "no.npy"], "job.toml:3: X: the path no.npy does not exist"),
        (["job.toml", "--class-weight", "balanced"], "give --logistic with it"),
        (["job.toml", "--results", "no/such"], "--results is 'no/such'"),
        (["job.toml", "--memory-limit", "1kiB"], "smallest memory_limit"),
        (["no.toml"], "JOB is 'no.toml'"),
        (["--x", "x.npy", "--y", "y.npy", "--model", "m.zarr", "--resume"], "--resume is given without JOB"),
        (["--x", "x.npy", "--y", "y.npy", "--model", "m.zarr", "--part", "1/2"], "--part is given without JOB"),
        (["--x", "x.npy"], "Missing option '--y'"),
    ],
)
def test_what_is_refused_before_any_work(folder, arguments, message):
    result = run(*arguments, code=2)
    assert message in result.stderr and "Traceback" not in result.output
    assert not (folder / "models").exists()


def test_errors_of_values_name_the_line_of_their_key(folder):
    (folder / "job.toml").write_text(JOB.replace("[1e-3, 1]", "[1e-3, -1]").replace('"line"', '"line"\nform = "dual"'))
    result = run("job.toml", code=2)
    assert "job.toml:16: alpha is -1; expected" in result.stderr and "grid-gamma=1.0-alpha=-1" in result.stderr


def test_a_model_says_what_it_was_made_from(folder):
    run("job.toml", "--only", "line")
    origin = describe_model("models/line.zarr")["origin"]
    assert origin["name"] == "line" and origin["options"] == {"x": "x.npy", "y": "y.npy"}
    assert set(origin["data"]) == {"x.npy", "y.npy"}


def test_keys_are_all_options_but_those_of_one_run():
    options = {o.opts[0].removeprefix("--") for o in fit_command.params if o.opts[0].startswith("--")}
    of_job = {o.opts[0].removeprefix("--") for o in fit_command.params if isinstance(o, OfJob)}
    keys = {key.name for key in keys_of(fit_command)}
    assert keys == options - of_job - set(OF_RUN) and {"kernel", "memory-limit", "fit-intercept"} <= keys
    assert {*WORK, *SHARED} - {"out"} <= keys and set(OF_RUN) <= options and "out" in PLACES
    assert json.loads(CliRunner().invoke(dkrr, ["fit", "--job-schema"]).stdout)["title"] == "Job of dkrr fit"


LINE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (INFO   |WARNING|ERROR  ) (-|quick|long|last) +\S.*"


def test_a_job_that_is_ended_reports_and_resumes(folder):
    rng = np.random.default_rng(1)
    np.save("x.npy", rng.normal(size=(3000, 5)))
    np.save("y.npy", rng.normal(size=3000))
    (folder / "job.toml").write_text(
        '[fit]\nx = "x.npy"\ny = "y.npy"\nmodel = "{name}.zarr"\nstore = "stores/{name}.zarr"\n'
        '[[model]]\nname = "quick"\n[[model]]\nname = "long"\nkernel = "laplacian"\ntile = 128\nsolver = "cholesky"\n'
        '[[model]]\nname = "last"\n'
    )
    command = [sys.executable, "-c", "from dkrr.cli import main; main()", "fit", "job.toml", "--json"]
    with (folder / "log").open("wb") as log, (folder / "out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=log)
        while process.poll() is None and not list((folder / "stores").glob("long.zarr/system-0")):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    text = (folder / "log").read_text()
    assert status == -signal.SIGTERM, text
    assert all(re.fullmatch(LINE, line) for line in text.splitlines()), text
    assert re.search(r"quick +model 1 of 3: x=x.npy, y=y.npy\n", text)
    assert "ended by signal 15; the same command with --resume continues" in text
    assert (
        text.splitlines()[-1].startswith(f"{time.strftime('%Y-')}") and "1 done, 1 interrupted, 1 not started" in text
    )
    found = outcomes((folder / "out").read_text())
    assert found == {"quick": "done", "long": "interrupted", "last": "not started"}
    assert outcomes(run("job.toml", "--json", "--resume").stdout) == {
        "quick": "skipped",
        "long": "done",
        "last": "done",
    }


def test_the_page_on_job_files_is_right(folder):
    page = (Path(__file__).parents[2] / "docs" / "batch.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    (folder / "night.toml").write_text(text)
    (folder / "flights").mkdir()
    for name in ("x", "delay", "night-delay"):
        np.save(f"flights/{name}.npy", np.load("x.npy" if name == "x" else "y.npy"))
    found = records(run("night.toml", "--dry-run", "--json").stdout)
    assert len(found) == 7 and all(f"{record['name']} " in page for record in found[:2])
    options = {o for parameter in fit_command.params for o in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"(?<!-)(--[a-z][a-z-]+)", page)) - options <= {
        "--array",
        "--cpus-per-task",
        "--mem",
        "--time",
    }
    described = set(re.findall(r"^\| `(--[a-z-]+)", page, re.M))
    assert {o.opts[0] for o in fit_command.params if isinstance(o, OfJob)} - described == {"--job-schema"}


SEVERAL = """
[fit]
x = "x.npy"
model = "{name}.zarr"
store = "stores/{name}.zarr"
kernel = "rbf"
gamma = 0.3
fit-intercept = true

[[model]]
name = "m"
[model.grid]
alpha = [0.01, 1]
y = ["y.npy", "nan.npy", "two.npy"]
"""


def test_models_that_differ_in_their_targets_are_solved_together(folder, monkeypatch, caplog):
    y = np.load("y.npy")
    targets = {"y": y, "two": np.column_stack([y**2, -y])}
    for name, values in {**targets, "nan": np.full(97, np.nan)}.items():
        np.save(f"{name}.npy", values)
    (folder / "job.toml").write_text(SEVERAL)
    widths, fit = [], library.KernelRidge.fit

    def counting(self, X, y, **options):
        widths.append(3 if isinstance(y, np.ndarray) else 1)
        return fit(self, X, y, **options)

    monkeypatch.setattr(library.KernelRidge, "fit", counting)
    found = outcomes(run("job.toml", "--json", code=1).stdout)
    assert list(found.values()) == ["done", "failed", "done"] * 2 and not list((folder / "stores").glob("*+*"))
    assert widths == [3, 1, 3, 1], "of every λ the two good ones at once, and the bad one by itself"
    X = np.load("x.npy")
    for alpha in (0.01, 1):
        for name, values in targets.items():
            alone = library.KernelRidge(alpha=alpha, kernel="rbf", gamma=0.3, fit_intercept=True)
            saved = library.load(f"m-alpha={alpha}-y={name}.zarr")
            assert saved.predict(X).shape == values.shape and saved.alpha == alpha
            np.testing.assert_allclose(saved.predict(X), fit(alone, X, values).predict(X), rtol=0, atol=1e-10)
    np.save("nan.npy", y)
    widths.clear()
    parts = [outcomes(run("job.toml", "--json", "--overwrite", "--part", f"{k}/2").stdout) for k in (1, 2)]
    assert [sorted({name[:9] for name in part}) for part in parts] == [["m-alpha=0"], ["m-alpha=1"]]
    assert widths == [3, 3] and "solved together with 2 others" in caplog.text


def test_models_that_cannot_be_solved_together_are_solved_alone(folder, monkeypatch, caplog):
    np.save("two.npy", np.load("y.npy")[::-1])
    (folder / "job.toml").write_text(SEVERAL.replace(', "nan.npy"', ""))
    fit = library.KernelRidge.fit

    def breaking(self, X, y, **options):
        if isinstance(y, np.ndarray):
            raise StoreError("no space for several")
        return fit(self, X, y, **options)

    monkeypatch.setattr(library.KernelRidge, "fit", breaking)
    assert set(outcomes(run("job.toml", "--json").stdout).values()) == {"done"}
    assert "2 models together failed, and are solved one by one: no space for several" in caplog.text


def test_columns_of_a_table(folder):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    X, y = np.load("x.npy"), np.load("y.npy")
    pandas.DataFrame({"a1": X[:, 0], "a2": X[:, 1], "b": X[:, 2], "y": y, "z": -y, "w": 1.0}).to_parquet("t.parquet")
    (folder / "job.yaml").write_text(
        "fit: {x: t.parquet, columns: ['a*', b], sample-weight: w, model: '{name}.zarr'}\n"
        "model:\n  - {name: m, grid: {y: [y, z]}}\n"
    )
    assert outcomes(run("job.yaml", "--json").stdout) == {"m-y=y": "done", "m-y=z": "done"}
    expected = library.KernelRidge().fit(X, y).predict(X)
    X_named = pandas.DataFrame(X, columns=["a1", "a2", "b"])
    np.testing.assert_allclose(library.load("m-y=z.zarr").predict(X_named), -expected, rtol=0, atol=1e-10)
    assert set(outcomes(run("job.yaml", "--json", "--resume").stdout).values()) == {"skipped"}
