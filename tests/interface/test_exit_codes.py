"""Exit statuses of commands, each caused for real: what a batch system that runs a command again goes by."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dkrr
from dkrr.cli.command import status_of
from dkrr.cluster import dask_client
from dkrr.errors import (
    ClusterError,
    DiskSpaceError,
    InputError,
    StoreError,
    UnreachableStoreError,
    is_transient,
)
from dkrr.linalg.result import Status
from dkrr.store import buckets
from dkrr.store.lock import this_owner
from dkrr.store.paths import store_error
from tests.interface.conftest import run
from tests.nightly.test_faults import in_a_namespace
from tests.processes import of_session
from tests.store.test_locks import leave_lock

FIT, SELECT = "fit --x x.npy --y y.npy --model m.zarr", "select --x x.npy --y y.npy --model m.zarr --alphas 1,2"
PREDICT = "predict --model model.zarr --x x.npy --out p.npy"
ROOT = Path(dkrr.__file__).parents[1]
PROGRAM = [sys.executable, "-c", "from dkrr.cli import main; main()"]


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    """A model."""
    path = tmp_path_factory.mktemp("saved") / "model.zarr"
    dkrr.save(dkrr.KernelRidge().fit(data.X, data.y[:, 0]), path)
    return path


@pytest.fixture
def place(folder, saved):
    """The current folder, with inputs and a model."""
    Path("model.zarr").symlink_to(saved)
    return folder


# Later


@pytest.mark.parametrize(("line", "store"), [(f"{FIT} --store s --tile 64", "s"), (f"{SELECT} --store s", "s")])
def test_a_store_in_use_is_for_later(place, line, store):
    leave_lock(store, replace(this_owner(), process=os.getppid()))
    text = run(line, code=75).stderr
    assert "is in use by process" in text and not Path("m.zarr").exists()


@pytest.mark.parametrize("line", [f"{FIT} --store s --tile 64", SELECT, PREDICT])
@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 75), (errno.EROFS, 1)])
def test_a_disk_that_is_full_or_away_while_writing_is_for_later(place, monkeypatch, line, number, code):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("dkrr.store.places._write_all", fail)
    monkeypatch.setattr("dkrr.estimators.predict_to._write_npy", fail)
    assert os.strerror(number) in run(line, code=code).stderr
    assert not Path("m.zarr").exists() and not Path("p.npy").exists()


@pytest.mark.parametrize("line", [FIT, SELECT, PREDICT])
def test_a_scheduler_that_does_not_answer_is_for_later_and_no_address_is_wrong(place, monkeypatch, line):
    monkeypatch.setattr(dask_client.connect, "__defaults__", ("200ms",))
    assert "no Dask scheduler answers" in run(f"{line} --scheduler tcp://127.0.0.1:9", code=75).stderr
    run(f"{line} --scheduler nowhere", code=2)


def test_lost_workers_are_for_later(place, monkeypatch):
    def lose(*_, **__):
        raise ClusterError("all workers were lost")

    monkeypatch.setattr(dkrr.KernelRidge, "fit", lose)
    assert run(FIT, code=75).stderr == "dkrr: all workers were lost\n"


def test_errors_say_whether_the_same_call_may_succeed_later():
    assert all(
        map(is_transient, (DiskSpaceError("full"), ClusterError("lost"), TimeoutError(), ConnectionResetError()))
    )
    passing = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN), True)
    for number, expected in (passing | dict.fromkeys((errno.EACCES, errno.EROFS, errno.EFBIG), False)).items():
        found = store_error("write x", OSError(number, "why"))
        assert is_transient(found) == expected and status_of(found) == (75 if expected else 1)
        wrapped = InputError("--store: why")
        wrapped.__cause__ = found
        assert is_transient(wrapped) == expected
    assert not any(map(is_transient, (StoreError("damaged"), UnreachableStoreError("no"), InputError("x"), None)))


def test_a_search_whose_last_fit_is_not_accurate_is_a_failure(place, monkeypatch):
    fit = dkrr.KernelRidgeCV.fit

    def stall(self, *arguments):
        fit(self, *arguments)
        self.solve_result_ = replace(self.solve_result_, status=Status.STALLED)

    monkeypatch.setattr(dkrr.KernelRidgeCV, "fit", stall)
    result = run(f"{SELECT} --json", code=1)
    assert json.loads(result.stdout)["model"] is None and "STALLED, and its model was not saved" in result.stderr
    assert not Path("m.zarr").exists()
    run(f"{SELECT} --accept-unconverged")
    assert Path("m.zarr").exists()


# Finished


@pytest.mark.parametrize("line", [FIT, f"{FIT} --store s", f"{FIT} --sample-weight d.npz::w --logistic", SELECT])
def test_a_finished_command_that_is_run_again_has_nothing_to_do(place, line):
    line = line.replace("y.npy", "labels.npy") if "--logistic" in line else line
    run(line)
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    assert "m.zarr, of the same command and the same files: nothing to do" in run(f"{line} --quiet").stdout
    found = json.loads(run(f"{line} --json").stdout)
    assert found["status"] in ("SOLVED", "CONVERGED") and ("best_params" in found) == line.startswith("select")
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


def test_another_model_at_the_path_is_refused(place):
    run(f"{FIT} --kernel linear")
    run(f"{FIT} --kernel linear")
    for other in (
        f"{FIT} --kernel rbf",
        f"{FIT} --kernel linear --uncertainty",
        FIT.replace("y.npy", "d.npz::w"),
        SELECT,
    ):
        assert "m.zarr exists already" in run(other, code=2).stderr
    run(SELECT.replace("m.zarr", "s.zarr"))
    assert "s.zarr exists already" in run(f"{SELECT.replace('m.zarr', 's.zarr')} --out new.png", code=2).stderr
    np.save("y.npy", np.load("y.npy") + 1.0)
    assert "m.zarr exists already" in run(f"{FIT} --kernel linear", code=2).stderr
    dkrr.save(dkrr.load("model.zarr"), "m.zarr", overwrite=True)  # of no command
    assert "m.zarr exists already" in run(f"{FIT} --kernel linear", code=2).stderr


@pytest.mark.parametrize("name", ["n" * 300, "km/h"])
def test_a_column_may_have_a_name_that_no_file_has(place, name):
    pd.DataFrame({"a": [1.0, 2.0, 3.0], name: [1.0, 2.0, 4.0]}).to_csv("t.csv", index=False)
    line = "fit --x t.csv --model m.zarr --y"
    run(line, name)
    assert "nothing to do" in run(line, name).stdout


@pytest.mark.parametrize("out", ["p.parquet", "p.arrow", "p.zarr", "k.zarr --keep b"])
def test_finished_predictions_that_are_asked_for_again_are_there(place, out):
    line, name = f"predict --model table.zarr --x t.csv --out {out}", out.split()[0]
    dkrr.save(dkrr.KernelRidge().fit(pd.read_csv("t.csv")[["a", "c"]], np.load("y.npy")), "table.zarr")
    run(line)
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    text = f"{name}, of the same command and the same files: nothing to do (--overwrite predicts again)\n"
    assert run(f"{line} --quiet --memory-limit 1GiB").stdout == text
    assert json.loads(run(f"{line} --json").stdout) == {"out": name}
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


def test_other_predictions_at_the_path_are_refused(place):
    def refused(line):
        assert "exists already" in run(line, code=2).stderr

    shutil.copytree("model.zarr", "own.zarr")
    line = "predict --model own.zarr --x x.npy --out p.arrow"
    run(line)
    for other in (f"{line} --std", line.replace("own", "model"), line.replace("x.npy", "new.npy")):
        refused(other)
    os.utime("own.zarr/zarr.json")
    refused(line)
    assert "predictions in" in run(f"{line} --overwrite").stdout and "nothing to do" in run(line).stdout
    np.save("x.npy", np.load("x.npy") + 1.0)
    refused(line)
    for out in ("p.csv", "p.npy"):  # which have no room for a note
        run(line.replace("p.arrow", out))
        refused(line.replace("p.arrow", out))
    dkrr.predict_to(dkrr.load("own.zarr"), np.load("x.npy"), "p.arrow", overwrite=True)  # of no command
    Path("p.parquet").write_bytes(b"PAR1, and what is not Parquet")
    for out in ("p.arrow", "p.parquet"):
        refused(line.replace("p.arrow", out))


@pytest.mark.parametrize("x", ["parts", "parts/*.parquet"])
def test_a_part_of_a_table_that_has_changed_makes_it_another_one(place, x):
    Path("parts").mkdir()
    Path("parts/.#a.parquet").symlink_to("user@host")  # as editors leave it
    parts = [pd.DataFrame({"a": [k, 2.0, 3.0], "y": [1.0, 2.0, k]}) for k in range(3)]
    for k, part in enumerate(parts[:2]):
        part.to_parquet(f"parts/{k}.parquet")
    line = f"fit --x {x} --y y --model m.zarr"
    run(line)
    assert "nothing to do" in run(line).stdout
    parts[2].to_parquet("parts/1.parquet")
    run(line, code=2)


# Signals, and a disk that is full


@contextmanager
def started(line):
    """A command in a session of its own, killed at the end; what it prints for people goes into the file err."""
    settings = os.environ | {"PYTHONPATH": str(ROOT)}
    with Path("err").open("w") as err:
        process = subprocess.Popen([*PROGRAM, *line.split()], env=settings, stderr=err, start_new_session=True)
    try:
        yield process
    finally:
        for left in of_session(process.pid):
            left.kill()
        process.wait()


def wait_for(process, condition):
    while not condition():
        assert process.poll() is None, Path("err").read_text()
        time.sleep(0.002)


@pytest.mark.nightly
@pytest.mark.guard
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("line", "sign", "said"),
    [
        (f"{FIT} --kernel rbf --solver cholesky --tile 200 --store s", "s/system-0/factor/c.3*", "from --store s"),
        (f"{FIT} --kernel rbf --solver cholesky", "err", "nothing of it is kept; with --store"),
        (f"{SELECT} --kernel rbf --gamma 0.1:1:50 --store s", "s/kernel-1/*", "resumes from --store s"),
        ("predict --model big.zarr --x many.npy --out p.csv", ".dkrr-new-*.csv", "dkrr: ended by SIG"),
    ],
)  # fmt: skip
def test_a_command_that_is_asked_to_end_says_what_resumes_and_ends_within_seconds(folder, line, sign, said, number):
    X = np.random.default_rng(0).normal(size=(9000, 20))
    np.save("x.npy", X)
    np.save("y.npy", X[:, 0])
    if line.startswith("predict"):
        np.save("many.npy", np.repeat(X, 30, axis=0))
        dkrr.save(dkrr.KernelRidge(kernel="rbf").fit(X, X[:, 0]), "big.zarr")
    with started(line) as process:
        wait_for(
            process, lambda: list(Path().glob(sign)) if sign != "err" else "factorisation" in Path("err").read_text()
        )
        process.send_signal(number)
        process.wait(10)
        assert not of_session(process.pid)
    text = Path("err").read_text()
    assert process.returncode == -number and said in text and signal.Signals(number).name in text, text
    assert "Traceback" not in text and not list(Path().glob(".dkrr*"))
    assert not Path("m.zarr").exists() and not Path("p.csv").exists()


@pytest.mark.nightly
@pytest.mark.guard
def test_a_command_that_is_ended_while_it_writes_the_model_leaves_none_and_resumes(folder):
    X = np.random.default_rng(0).normal(size=(3000, 2000))
    np.save("x.npy", X)
    np.save("y.npy", X[:, 0])
    line = f"{FIT} --kernel rbf --store s --solver cholesky --tile 1000"
    with started(line) as process:
        wait_for(process, lambda: list(Path().glob(".dkrr-new-*.zarr")))
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    assert process.returncode == -signal.SIGTERM
    assert "the same command resumes from --store s" in Path("err").read_text()
    assert not Path("m.zarr").exists() and not list(Path().glob(".dkrr*"))
    run(f"{line} --quiet")
    assert "nothing to do" in run(line).stdout


@pytest.mark.nightly
@pytest.mark.guard
def test_a_bucket_that_goes_away_during_the_work_is_for_later_and_a_missing_one_is_not(
    place, bucket, s3_host, monkeypatch
):
    from tests.s3 import failing_server

    monkeypatch.setattr(buckets, "RETRY_SECONDS", 0.5)
    lines = (
        (f"{FIT} --store {bucket}/run.zarr --tile 64 --solver cholesky", 40),
        (f"{SELECT} --store {bucket}/runs", 12),
        (f"predict --model model.zarr --x x.npy --out {bucket}/p.parquet", 8),
    )
    for line, last in lines:
        with failing_server(s3_host, lambda number, last=last: number > last) as host:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
            buckets._answered.clear()
            buckets._silent.clear()
            text = run(line, code=75).stderr
        assert "s3://" in text and not Path("m.zarr").exists()
        buckets._silent.clear()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3_host}")
        run(line)
        shutil.rmtree("m.zarr", ignore_errors=True)
    assert "the bucket does not exist" in run("fit --x x.npy --y y.npy --model s3://dkrr-none/m.zarr", code=2).stderr


FULL = """
import json, os, subprocess, sys
from pathlib import Path
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
for line in (
    "fit --x ../x.npy --y ../y.npy --kernel rbf --solver cholesky --tile 100 --store s --model m.zarr",
    "select --x ../x.npy --y ../y.npy --kernel rbf --alphas 1,2 --store s --model m.zarr",
    "predict --model ../model.zarr --x ../many.npy --out p.csv",
):
    done = subprocess.run([*sys.argv[2:], *line.split()], cwd=folder, capture_output=True, text=True)
    left = [path.name for path in folder.iterdir() if path.name != "s"]
    print(json.dumps([done.returncode, left, done.stderr]))
"""


@pytest.mark.nightly
@pytest.mark.guard
def test_a_disk_that_is_really_full_is_for_later(place):
    rows = np.random.default_rng(0).normal(size=(1000, 200))
    np.save("x.npy", rows)
    np.save("y.npy", rows[:, 0])
    np.save("many.npy", np.tile(rows[:, :5], (100, 1)))
    Path("disk").mkdir()
    command = [*in_a_namespace(), sys.executable, "-c", FULL, "disk", *PROGRAM]
    settings = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(place)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
    found = list(map(json.loads, done.stdout.splitlines()))
    assert len(found) == 3 and all(one[:2] == [75, []] for one in found), found
    assert "not enough disk" in found[0][2] and all("No space left" in one[2] for one in found[1:])
