"""Servers that cannot be reached, interrupts and resumed commands; what commands mean by the same words."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dkrr
from dkrr.errors import InputError
from dkrr.estimators import predict_to
from dkrr.store import buckets
from tests.interface.conftest import run
from tests.s3 import variables

DEFAULT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Ctrl-C has its effect also where the tests run in the background of a shell."""


@pytest.fixture
def no_server(monkeypatch):
    """The environment names a server that does not exist."""
    for name, value in variables("127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(buckets, "FIRST_SECONDS", 0.1)


@pytest.mark.parametrize(
    "line",
    [
        "fit --x x.npy --y y.npy --model m.zarr --store s3://b/run.zarr",
        "fit --x x.npy --y y.npy --model s3://b/m.zarr",
        "fit --x s3://b/x.zarr --y y.npy --model m.zarr",
        "predict --model s3://b/m.zarr --x x.npy --out p.npy",
        "select --x x.npy --y y.npy --store s3://b/runs",
        "select --x x.npy --y y.npy --model s3://b/m.zarr",
        "status s3://b/run.zarr",
        "verify s3://b/run.zarr",
        "info s3://b/m.zarr",
    ],
)
def test_a_server_that_is_not_there_is_not_a_store_of_another_kind(folder, no_server, line):
    text = run(line, code=75).stderr.splitlines()[-1]
    assert "server http://127.0.0.1:9 cannot be reached: it refuses connections" in text and "s3://b" in text, text
    assert "another store" not in text and "AWS_ENDPOINT_URL" in text and not Path("m.zarr").exists(), text


@pytest.mark.parametrize("line", ["--version", "plan --n 100 --d 2"])
def test_output_that_nobody_reads_ends_a_command_as_others_do(line):
    """`dkrr ... | head -1`: no error of Python's, and the status of a program that SIGPIPE ends."""
    read, write = os.pipe()
    os.close(read)
    code = "from dkrr.cli.main import main; main()"
    try:
        ended = subprocess.run([sys.executable, "-c", code, *line.split()], stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("fault", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_limit_of_addresses_is_named_where_memory_or_threads_are_refused(monkeypatch, fault):
    monkeypatch.setattr("dkrr.limits.process_limit_bytes", lambda: 2**20)
    monkeypatch.setattr("dkrr.machine.detection.process_limit_bytes", Mock(side_effect=fault))
    text = run("plan --n 100 --d 2", code=1).stderr
    assert "limit of addresses (ulimit -v or -d" in text and "raise or remove it" in text


def test_why_a_server_cannot_be_reached(no_server, monkeypatch):
    monkeypatch.setattr(buckets, "REQUEST_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for endpoint, said, code in (
            ("http://no-such-host.invalid", "no server has this name", 75),
            (f"http://127.0.0.1:{silent.getsockname()[1]}", "does not answer in time", 75),
            ("localhost:9000", "AWS_ENDPOINT_URL is 'localhost:9000'; expected an address such as https", 2),
        ):
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            assert said in run("status s3://b/run.zarr", code=code).stderr


def test_a_pipeline_is_not_saved_and_the_error_names_its_transformer(data, tmp_path):
    pipeline = make_pipeline(StandardScaler(), dkrr.KernelRidge()).fit(data.X, data.y)
    with pytest.raises(InputError, match=r"KernelRidge\(transformer=pipeline\[:-1\]\)"):
        dkrr.save(pipeline, tmp_path / "m.zarr")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fit --x x.npy --y y.npy --model m.zarr --store run.zarr", "the same command resumes from --store run.zarr"),
        ("fit --x x.npy --y y.npy --model m.zarr", "nothing of it is kept; with --store the same command"),
        ("select --x x.npy --y y.npy --store runs", "the same command resumes from --store runs"),
        ("predict --x x.npy --model n.zarr --out p.npy", "dkrr: interrupted\n"),
    ],
)
def test_an_interrupt_is_one_line_that_says_how_to_resume(folder, monkeypatch, line, said):
    run("fit --x x.npy --y y.npy --model n.zarr")
    for owner, name in ((dkrr.KernelRidge, "fit"), (dkrr.KernelRidgeCV, "fit"), (predict_to, "write_predictions")):
        monkeypatch.setattr(owner, name, lambda *arguments, **settings: signal.raise_signal(signal.SIGINT))
    text = run(line, code=130).stderr
    assert said in text and text.count("\n") == 1 and not Path("m.zarr").exists() and not Path("p.npy").exists(), text


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, marks=[pytest.mark.nightly, pytest.mark.guard]),
        pytest.param(signal.SIGTERM, -signal.SIGTERM, marks=[pytest.mark.nightly, pytest.mark.guard]),
    ],
)
def test_the_same_command_resumes_after_an_interrupt(folder, number, status):
    rows = np.random.default_rng(0).normal(size=(2000, 4))
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
    assert b"the same command resumes from --store run.zarr" in text
    before = {tile.name: tile.stat().st_mtime_ns for tile in tiles.glob("c.*") if tile.suffix != ".partial"}
    run(line)
    after = {tile.name: tile.stat().st_mtime_ns for tile in tiles.glob("c.*")}
    assert {name: after[name] for name in before} == before and len(after) > len(before)


def test_fit_select_and_plan_take_the_same_kernel_and_the_same_values(data, folder, small_process):
    run("fit --x x.npy --y d.npz::y --alpha 1,2,3 --model a.zarr")
    run("fit --x x.npy --y d.npz::y --alpha 1 --alpha 2 --alpha 3 --kernel rbf --model b.zarr")
    assert (dkrr.load("a.zarr").predict(data.X) == dkrr.load("b.zarr").predict(data.X)).all()
    lines = ("--alphas 0.1,1,10", "--alpha 0.1 --alpha 1,10 --kernel rbf", "--alphas 0.1:10:3 --kernel rbf")
    found = [json.loads(run(f"select --x x.npy --y y.npy --json {line}").stdout)["candidates"] for line in lines]
    assert found[0] == found[1] and [row["alpha"] for row in found[2]] == pytest.approx([0.1, 1, 10])
    plan = "plan --n 9000 --d 5 --memory-limit 8GiB --cv 5 --train-sizes 0.25,0.5 --alphas"
    plans = [run(f"{plan} {alphas}").stdout for alphas in ("0.1 --alphas 1,10", "0.1,1,10", "0.1:10:3")]
    assert plans[0] == plans[1] == plans[2] and "a fit for each of 2 parts" in plans[0]


@pytest.mark.parametrize("logistic", [False, True])
def test_a_search_has_one_plan_in_python_before_and_after_it_and_on_the_command_line(
    data, folder, small_process, logistic
):
    y, line = data.y[:, 0], "plan --x x.npy --y y.npy"
    if logistic:
        y, line = y > 0, "plan --x x.npy --y labels.npy --logistic"
        np.save("labels.npy", y)
    estimator = dkrr.KernelLogisticRegressionCV if logistic else dkrr.KernelRidgeCV
    settings = {"kernel": ["rbf", "laplacian", "linear"], "gamma": [0.1, 0.5], "cv": 4, "train_sizes": [0.25, 0.5]}
    done = estimator([0.1, 1.0, 10.0], **settings).fit(data.X, y).selection_plan_
    loss = "logistic" if logistic else "squared"
    planned = dkrr.plan(data.X, y, alphas=[0.1, 1.0, 10.0], loss=loss, **settings)
    line += " --kernel rbf,laplacian,linear --gamma 0.1,0.5 --cv 4 --train-sizes 0.25,0.5 --alphas"
    texts = [str(done), str(planned), run(f"{line} 0.1:10:3").stdout.rstrip("\n")]
    texts = [[one for one in text.splitlines() if not one.startswith("  memory")] for text in texts]
    assert texts[0] == texts[1]
    # The command's rows are in a file; its times may differ in the last digit.
    words, numbers = ([re.findall(pattern, "\n".join(text)) for text in texts] for pattern in (r"[^\d.]+", r"\d+"))
    assert words[2] == words[0]
    assert [float(x) for x in numbers[2]] == pytest.approx([float(x) for x in numbers[0]], rel=0.01)
    assert texts[0][0].endswith("5 kernels × 3 λ × 4 folds") and "rbf × 2: " in texts[0][1]
    of_sizes = f"--n {len(y)} --d 5" + " --logistic" * logistic + line[line.index(" --kernel") :]
    found = json.loads(run(f"plan {of_sizes} 0.1:10:3 --json").stdout)
    assert found["n_kernels"] == 5 and found["seconds_range"] == pytest.approx(list(done.seconds_range), rel=0.5)
    own = ("n_kernels", "name", "curve", "seconds", "seconds_range", "disk_bytes", "reason_codes")
    assert [done.to_dict()[name] for name in own] == [planned.to_dict()[name] for name in own]
    assert done.seconds > sum(kernel.seconds for kernel in done.kernels) and done.last is not None


@pytest.mark.parametrize("command", ["fit --model m.zarr", "select --alphas 0.1", "plan"])
def test_a_parameter_that_the_kernel_does_not_have_is_ignored_with_a_warning(folder, command):
    with pytest.warns(UserWarning, match=r"gamma=.* is ignored: the kernel 'matern' .*--kernel-param length_scale="):
        run(f"{command} --x x.npy --y y.npy --kernel matern --gamma 1")


def test_several_values_are_those_of_a_search(folder):
    for option in ("--kernel rbf,linear", "--gamma 0.1,0.2", "--degree 2 --degree 3 --kernel poly"):
        found = run(f"plan --n 100 --d 3 {option}", code=2).stderr
        assert "has several values, candidates of a search; expected one, or --alphas or --cv" in found
