"""What a person reads where the command line cannot do what was asked, and what is left behind."""

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
        assert "server http://127.0.0.1:9 cannot be reached: it refuses connections" in text and "s3://b/" in text, text
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


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_the_same_command_resumes(folder, number, status):
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
