"""Options of commands from a TOML file."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from dkrr import KernelRidge, load
from dkrr.cli import dkrr

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(data, tmp_path, monkeypatch):
    """The working folder, with X of shape (211, 5), y of shape (211, 3) and a vector of labels."""
    np.save(tmp_path / "x.npy", data.X)
    np.save(tmp_path / "y.npy", data.y)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(dkrr, [str(a) for a in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


JOB = """
x = "x.npy"
y = "y.npy"
model = "m.zarr"
kernel = "matern"
kernel-param = ["nu=1.5", "length_scale=0.7"]
alpha = [1, 0.5, 1e-2]
fit-intercept = true
memory-limit = "4GiB"
overwrite = true
quiet = true
"""


def test_options_from_a_file_and_from_the_command_line(data, here):
    (here / "job.toml").write_text(JOB)
    line = run("fit", "--config", "job.toml").stdout
    assert line.startswith("m.zarr: SOLVED, residual")

    def expected(**settings):
        params = {"nu": 1.5, "length_scale": 0.7}
        settings = {"alpha": [1, 0.5, 1e-2], "fit_intercept": True, "kernel_params": params, **settings}
        return KernelRidge(kernel="matern", **settings).fit(data.X, data.y).predict(data.X)

    assert np.allclose(load("m.zarr").predict(data.X), expected(), rtol=0, atol=1e-10)
    run("fit", "--alpha", 3, "--config", "job.toml", "--no-fit-intercept", "--model", "n.zarr")
    found = load("n.zarr").predict(data.X)
    assert np.allclose(found, expected(alpha=3.0, fit_intercept=False), rtol=0, atol=1e-10)


def test_every_command_with_many_options_takes_a_file(here):
    (here / "fit.toml").write_text('x = "x.npy"\ny = "y.npy"\nmodel = "m.zarr"')
    run("fit", "--config", "fit.toml")
    (here / "select.toml").write_text('x = "x.npy"\ny = "y.npy"\ncv = 3\nalphas = "0.1,1"\ngamma = 0.1\njson = true')
    found = json.loads(run("select", "--config", "select.toml").stdout)
    assert [row["alpha"] for row in found["candidates"]] == [0.1, 1]
    (here / "plan.toml").write_text('n = 1000\nd = 3\nkernel = "rbf"\nworker-memory = "2GiB"\nworkers = 7')
    assert "7 Dask workers" in run("plan", "--config", "plan.toml").stdout
    (here / "predict.toml").write_text('model = "m.zarr"\nx = "x.npy"\nout = "p.npy"')
    run("predict", "--config", "predict.toml")
    assert np.load("p.npy").shape == (211, 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("alhpa = 0.1", "job.toml: 'alhpa' is not an option of dkrr fit; .* the nearest is alpha"),
        ("memory_limit = '1GiB'", "'memory_limit' is not an option .* the nearest is memory-limit"),
        ("--alpha = 0.1", "'--alpha' is not an option .* the nearest is alpha"),
        ("no-fit-intercept = true", "the nearest is fit-intercept"),
        ("config = 'other.toml'", "'config' is not an option"),
        ("[fit]\nalpha = 1", "'fit' is not an option"),
        ("alpha = '0.1;1'", "alpha is '0.1;1'; expected numbers with commas between"),
        ("alpha = [1, true]", "alpha is True; expected text, or a number"),
        ("gamma = [0.1]", r"gamma is \[0.1\]; expected a number"),
        ("tile = 64.0", "tile is 64.0; expected a whole number"),
        ("logistic = 'yes'", "logistic is 'yes'; expected true or false"),
        ("quiet = 1", "quiet is 1; expected true or false"),
        ("form = 'dul'", "form is 'dul'; expected one of 'auto', 'primal', 'dual'"),
        ("store = true", "store is True; expected text"),
        ("store = 2026-01-02", "store is datetime.date.*; expected text"),
        ("alpha = -1", "expected finite numbers >= 0"),
        (
            "alpha = 0.1\nalpha = 1",
            r"--config is 'job.toml', which is not TOML: .*overwrite a value.*; expected lines such as",
        ),
        ("a" + "[" * 3000, "which is not TOML"),
        ("x: x.npy", "which is not TOML: .*line 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(here, line, message):
    (here / "job.toml").write_text(line)
    more = ["--x", "x.npy", "--y", "y.npy", "--model", "m.zarr"]
    stderr = run("fit", *more, "--config", "job.toml", code=2).stderr
    assert stderr.count("\n") == 1 and stderr.startswith("dkrr: ")
    assert re.search(message, stderr), stderr
    assert not (here / "m.zarr").exists()


@pytest.mark.parametrize(
    ("path", "why"),
    [("nothing", "cannot be read: No such"), (".", "cannot be read: Is a dir"), ("bytes", "is not TOML")],
)
def test_files_that_cannot_be_read(here, path, why):
    (here / "bytes").write_bytes(b"\xff\xfe")
    assert f"--config is '{path}', which {why}" in run("fit", "--config", path, code=2).stderr


def test_what_is_missing_in_a_file_is_missing(here):
    (here / "job.toml").write_text('x = "x.npy"')
    assert "Missing option '--y'" in run("fit", "--config", "job.toml", code=2).stderr


@pytest.mark.parametrize("command", ["fit", "select", "predict", "plan"])
def test_a_file_without_config_names_the_option(here, command):
    stderr = run(command, "job.toml", code=2).stderr
    assert stderr.startswith(f"dkrr: dkrr {command} is given 'job.toml'") and "--config job.toml" in stderr
    assert "Usage: " in run(command, "job.toml", "--help").stdout


@pytest.mark.nightly
def test_the_command_of_the_snakefile_fits(here, data):
    rule = (ROOT / "examples" / "Snakefile").read_text().split("shell:")[1]
    command = "".join(re.findall(r'^ +"(.*)"$', rule, re.M)).format(
        input=SimpleNamespace(x="x.npy", y="y.npy", options="fit.toml"),
        wildcards=SimpleNamespace(kernel="rbf", gamma=0.1, alpha=0.01),
        output="m.zarr",
        log="log",
    )
    (here / "fit.toml").write_text("quiet = true")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], check=True, env={**os.environ, "PATH": path})
    assert "m.zarr: SOLVED" in (here / "log").read_text() and not (here / "m.zarr.run").exists()
    expected = KernelRidge(kernel="rbf", gamma=0.1, alpha=0.01).fit(data.X, data.y).predict(data.X)
    assert np.allclose(load("m.zarr").predict(data.X), expected, rtol=0, atol=1e-8)


@pytest.mark.nightly
def test_the_example_of_many_models_continues(tmp_path):
    script = [sys.executable, str(ROOT / "examples" / "many_models.py"), str(tmp_path)]
    first = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    models = sorted(path.name for path in tmp_path.iterdir())
    assert len(first) == len(models) == 6 and all("residual" in line for line in first)
    assert load(tmp_path / models[0]).n_features_in_ == 4
    (tmp_path / models[2]).rename(tmp_path.with_name("gone"))
    second = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(second) == 1 and models[2] in second[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == models
