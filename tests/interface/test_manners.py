"""What a person reads where the command line cannot do what was asked, and what is left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dkrr
from dkrr.cli import dkrr as command
from dkrr.errors import InputError
from dkrr.tiles import buckets, remote
from tests.s3 import variables

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4))
Y = X @ [1.0, 2.0, 3.0, 4.0]

DEFAULT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Ctrl-C has its effect also where the tests run in the background of a shell."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with rows, targets, classes, a table and a model."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("narrow.npy", X[:, :2])
    np.save("y.npy", Y)
    np.save("two.npy", np.column_stack([Y, -Y]))
    np.save("classes.npy", np.where(Y > 0, "high", "low"))
    rows = zip(X, Y, strict=True)
    lines = [f"{a},n,{b},{c},{d},{'high' if y > 0 else 'low'},{y}" for (a, b, c, d), y in rows]
    Path("t.csv").write_text("\n".join(["a,name,b,c,d,class,y", *lines]))
    dkrr.save(dkrr.KernelRidge().fit(X, Y), "model.zarr")
    return tmp_path


def run(line, code=2):
    """Last line that a command prints on standard error, or on standard output if it succeeds."""
    result = CliRunner().invoke(command, line.split())
    assert result.exit_code == code, result.output + repr(result.exception)
    return (result.stderr if code else result.stdout).strip().splitlines()[-1]


def test_a_server_that_is_not_there_is_not_a_store_of_another_kind(folder, monkeypatch):
    for name, value in variables("127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote, "FIRST_SECONDS", 0.1)
    for line in (
        "fit --x x.npy --y y.npy --model m.zarr --store s3://b/run.zarr",
        "fit --x x.npy --y y.npy --model s3://b/m.zarr",
        "fit --x s3://b/x.zarr --y y.npy --model m.zarr",
        "predict --model s3://b/m.zarr --x x.npy --out p.npy",
        "select --x x.npy --y y.npy --store s3://b/runs",
        "select --x x.npy --y y.npy --model s3://b/m.zarr",
        "status s3://b/run.zarr",
        "verify s3://b/run.zarr",
        "info s3://b/m.zarr",
    ):
        text = run(line)
        assert "server http://127.0.0.1:9 cannot be reached: it refuses connections" in text and "s3://b" in text, text
        assert "another store" not in text and "AWS_ENDPOINT_URL" in text, text
    assert not (folder / "m.zarr").exists()


def test_why_a_server_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(remote, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(buckets, "REQUEST_SECONDS", 0.2)
    for name, value in variables("no-such-host.invalid").items():
        monkeypatch.setenv(name, value)
    assert "no server has this name" in run("status s3://b/run.zarr")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "does not answer in time" in run("status s3://b/run.zarr")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    assert "AWS_ENDPOINT_URL is 'localhost:9000'; expected an address such as https" in run("status s3://b/run.zarr")


def test_another_endpoint_is_taken_within_a_process(bucket, monkeypatch):
    remote.put(f"{bucket}/a", "b", b"here")
    monkeypatch.setattr(remote, "FIRST_SECONDS", 0.1)
    right = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9 cannot be reached"):
        remote.get(f"{bucket}/a", "b")
    monkeypatch.setenv("AWS_ENDPOINT_URL", right)
    assert bytes(remote.get(f"{bucket}/a", "b")) == b"here"


def test_a_model_is_not_a_run_and_is_kept(folder):
    assert "is a saved model; expected the store of a run" in run("status model.zarr")
    for line in (
        "status model.zarr",
        "fit --x x.npy --y y.npy --model m.zarr --store model.zarr",
        "select --x x.npy --y y.npy --store model.zarr",
        "plan --x x.npy --y y.npy --store model.zarr",
    ):
        text = run(line)
        assert "model" in text and "delete" not in text, text
    assert dkrr.verify("model.zarr").is_whole and not Path("model.zarr/kernel-0").exists()


@pytest.mark.parametrize("y", ["classes.npy", "class"])
def test_text_as_targets_is_taken_for_classes(folder, y):
    x = "x.npy" if y.endswith("npy") else "t.csv --columns a,b,c,d"
    text = run(f"fit --x {x} --y {y} --model m.zarr")
    assert "KernelLogisticRegression (or --logistic)" in text and "one-hot" not in text, text


def test_the_columns_that_are_left_are_those_with_numbers(folder):
    assert "leave it out (columns='a,b,c,d')" in run("fit --x t.csv --y y --model m.zarr")


def test_a_pipeline_is_saved_as_a_transformer(tmp_path):
    pipeline = make_pipeline(StandardScaler(), dkrr.KernelRidge()).fit(X, Y)
    with pytest.raises(InputError, match=r"KernelRidge\(transformer=pipeline\[:-1\]\)"):
        dkrr.save(pipeline, tmp_path / "m.zarr")
    model = dkrr.KernelRidge(transformer=pipeline[:-1]).fit(X, Y)
    dkrr.save(model, tmp_path / "m.zarr")
    assert np.allclose(dkrr.load(tmp_path / "m.zarr").predict(X), pipeline.predict(X), rtol=1e-12)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fit --x x.npy --y y.npy --model m.zarr --store run.zarr", "the same command resumes from --store run.zarr"),
        ("fit --x x.npy --y y.npy --model m.zarr", "nothing of it is kept; with --store the same command"),
        ("select --x x.npy --y y.npy --store runs", "the same command resumes from --store runs"),
        ("select --x x.npy --y y.npy", "nothing of it is kept; with --store the same command"),
        ("predict --x x.npy --model model.zarr --out p.npy", "dkrr: interrupted"),
        ("predict --x x.npy --model model.zarr --out p.npy --overwrite", "dkrr: interrupted"),
    ],
)
def test_an_interrupt_is_one_line_that_says_how_to_resume(folder, monkeypatch, line, said):
    for owner, name in ((dkrr.KernelRidge, "fit"), (dkrr.KernelRidgeCV, "fit"), (dkrr, "predict_to")):
        monkeypatch.setattr(owner, name, lambda *arguments, **settings: signal.raise_signal(signal.SIGINT))
    result = CliRunner().invoke(command, line.split())
    assert result.exit_code == 130 and said in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr
    assert not Path("m.zarr").exists() and not Path("p.npy").exists()


NIGHT = [pytest.mark.nightly, pytest.mark.guard]


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, -signal.SIGTERM, marks=[pytest.mark.nightly, pytest.mark.guard]),
    ],
)
def test_the_same_command_resumes_after_an_interrupt(folder, number, status):
    rows = RNG.normal(size=(4000, 4))
    np.save("x.npy", rows)
    np.save("y.npy", rows[:, 0])
    line = "fit --x x.npy --y y.npy --kernel rbf --solver cholesky --tile 100 --store run.zarr --model m.zarr"
    program = [sys.executable, "-c", f"{DEFAULT}; from dkrr.cli import main; main()", *line.split()]
    environment = {**os.environ, "PYTHONPATH": str(Path(dkrr.__file__).parents[1])}
    process = subprocess.Popen(program, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    tiles = Path("run.zarr/system-0/factor")
    while len(list(tiles.glob("c.*"))) < 20:
        assert process.poll() is None, "the run ended before it could be interrupted"
        time.sleep(0.01)
    os.killpg(process.pid, number)
    _, text = process.communicate(timeout=60)
    assert process.returncode == status and b"Traceback" not in text and b"Abort" not in text, text
    assert (b"the same command resumes" in text) == (number == signal.SIGINT)
    before = {tile.name: tile.stat().st_mtime_ns for tile in tiles.glob("c.*") if tile.suffix != ".partial"}
    run(line, 0)
    after = {tile.name: tile.stat().st_mtime_ns for tile in tiles.glob("c.*")}
    assert {name: after[name] for name in before} == before and len(after) > len(before)


def test_fit_and_select_take_the_same_kernel_and_the_same_values(folder):
    run("fit --x x.npy --y two.npy --alpha 1,2 --model a.zarr", 0)
    run("fit --x x.npy --y two.npy --alpha 1 --alpha 2 --kernel rbf --model b.zarr", 0)
    assert (dkrr.load("a.zarr").predict(X) == dkrr.load("b.zarr").predict(X)).all()
    lines = ("--alphas 0.1,1,10", "--alpha 0.1 --alpha 1,10 --kernel rbf", "--alphas 0.1:10:3 --kernel rbf")
    found = [json.loads(run(f"select --x x.npy --y y.npy --json {line}", 0))["candidates"] for line in lines]
    assert found[0] == found[1] and [row["alpha"] for row in found[2]] == pytest.approx([0.1, 1, 10])
    Path("job.toml").write_text('alpha = [0.1, 1]\nkernel = ["rbf", "laplacian"]\ngamma = [0.1, "0.2,0.3"]')
    assert len(json.loads(run("select --x x.npy --y y.npy --json --config job.toml", 0))["candidates"]) == 12
    plans = [run(f"plan --n 9000 --d 5 --alphas {alphas} --json", 0) for alphas in ("3", "0.1,1,10", "0.1:10:3")]
    assert plans[0] == plans[1] == plans[2]


WRONG = [
    ("fit --x x.npy --y y.npy --model m.zarr --alpha 1,2", "KernelRidgeCV (dkrr select) chooses among several"),
    ("fit --x x.npy --y y.npy --model m.zarr --gamma 1,2", "dkrr select chooses among several"),
    ("fit --x x.npy --y classes.npy --logistic --model m.zarr --alpha 1,2", "--alpha has several values"),
    ("fit --x x.npy --y y.npy --model m.zarr --alpha 1:2", "expected numbers with commas between, or from:to"),
    ("fit --x x.npy --y y.npy --model m.zarr --memory-limit 2000", "expected a unit with it: 2000 MB?"),
    ("select --x x.npy --y y.npy --memory-limit 16", "expected a unit with it: 16 GB?"),
    ("plan --n 100 --d 3 --alphas 0.1,nan", "alphas is [0.1, nan]; expected finite numbers >= 0"),
    ("plan --n 100 --d 3 --workers 2 --worker-memory 4000", "worker_memory is '4000'"),
    ("fit --x x.npy --y y.npy --model m.zarr --store run.zarr --kernel linear --alpha 3", "the values of alpha differ"),
    (
        "fit --x x.npy --y y.npy --model m.zarr --store run.zarr --kernel linear --solver cg",
        "began with solver='cholesky'",
    ),
    ("select --x x.npy --y y.npy --store runs --alphas 1,2,4", "belongs to another problem"),
    ("predict --model table.zarr --x t.csv --columns c,d --out p.npy", "without its column 'a'"),
    ("predict --model table.zarr --x other.csv --out p.npy", "X has no column 'b'"),
    ("predict --model model.zarr --x narrow.npy --out p.npy", "X has 2 features, but the model was fitted with 4"),
    ("predict --model model.zarr --x t.csv --columns a,b --out p.npy", "X has 2 features"),
    (
        "report model.zarr --out page.html",
        "exists already; delete it, give another path, or overwrite=True (--overwrite)",
    ),
    ("report model.zarr --out /proc/page.html", "--out: cannot write /proc/page.html"),
    ("report model.zarr --out y.npy --overwrite", "y.npy is not a report of dkrr"),
    ("select --x x.npy --y y.npy --out /proc/scores.png", "--out: cannot write /proc/scores.png"),
]


def test_what_is_wrong_is_status_2_and_leaves_nothing(folder):
    run("fit --x x.npy --y y.npy --solver cholesky --store run.zarr --model model.zarr --kernel linear --overwrite", 0)
    run("select --x x.npy --y y.npy --store runs --alphas 1,2", 0)
    run("fit --x t.csv --columns a,b --y y --model table.zarr", 0)
    run("report model.zarr --out page.html", 0)
    Path("other.csv").write_text(Path("t.csv").read_text().replace("a,name,b", "a,name,B", 1))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    for line, message in WRONG:
        assert message in run(line), line
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_report_is_replaced_if_asked(folder):
    run("report model.zarr --out page.html", 0)
    assert run("report model.zarr --out page.html --overwrite", 0) == "page.html"


def test_a_table_may_have_more_columns_than_the_model(folder):
    run("fit --x t.csv --columns a,b --y y --model table.zarr", 0)
    for k, columns in enumerate(("", "--columns b,a", "--columns a,b,c")):
        run(f"predict --model table.zarr --x t.csv {columns} --out {k}.npy", 0)
        assert (np.load(f"{k}.npy") == np.load("0.npy")).all()
