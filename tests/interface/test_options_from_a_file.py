"""Options of commands from a TOML file."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dkrr import KernelRidge, load
from tests.interface.conftest import run

ROOT = Path(__file__).parents[2]
JOB = """
x = "x.npy"
y = "d.npz::y"
model = "m.zarr"
kernel = "matern"
kernel-param = ["nu=1.5", "length_scale=0.7"]
alpha = [1, 0.5, 1e-2]
fit-intercept = true
memory-limit = "4GiB"
overwrite = true
quiet = true
"""


def test_options_come_from_a_file_and_first_from_the_command_line(data, folder):
    Path("job.toml").write_text(JOB)
    assert run("fit --config job.toml").stdout.startswith("m.zarr: SOLVED, residual")
    run("fit --alpha 3 --config job.toml --no-fit-intercept --model n.zarr")
    model = KernelRidge([1, 0.5, 1e-2], kernel="matern", kernel_params={"nu": 1.5, "length_scale": 0.7})
    for path, settings in (("m.zarr", {"fit_intercept": True}), ("n.zarr", {"alpha": 3.0, "fit_intercept": False})):
        expected = model.set_params(**settings).fit(data.X, data.y).predict(data.X)
        np.testing.assert_allclose(load(path).predict(data.X), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("line", "job", "said"),
    [
        (
            "select --x x.npy --y y.npy",
            'alpha = [0.1, 1]\nkernel = ["rbf", "laplacian"]\ngamma = [0.1, "0.2,0.3"]\njson = true',
            '(?s)("mean_test_score".*){12}',
        ),
        ("plan", 'n = 1000\nd = 3\nkernel = "rbf"\nworker-memory = "2GiB"\nworkers = 7', "7 Dask workers"),
        ("predict", 'model = "m.zarr"\nx = "x.npy"\nout = "p.npy"', r"\[211\] predictions in p.npy"),
    ],
)
def test_every_command_with_many_options_takes_a_file(folder, line, job, said):
    run("fit --x x.npy --y y.npy --model m.zarr")
    Path("job.toml").write_text(job)
    assert re.search(said, run(f"{line} --config job.toml").stdout)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("alhpa = 0.1", "job.toml: 'alhpa' is not an option of dkrr fit; .* the nearest is alpha"),
        ("no-fit-intercept = true", "the nearest is fit-intercept"),
        ("[fit]\nalpha = 1", "'fit' is not an option"),
        ("alpha = '0.1;1'", "alpha is '0.1;1'; expected numbers with commas between"),
        ("alpha = [1, true]", "alpha is True; expected text, or a number"),
        ("gamma = [0.1]", r"gamma is \[0.1\]; expected a number"),
        ("tile = 64.0", "tile is 64.0; expected a whole number"),
        ("quiet = 1", "quiet is 1; expected true or false"),
        ("form = 'dul'", "form is 'dul'; expected one of 'auto', 'primal', 'dual'"),
        ("store = 2026-01-02", "store is datetime.date.*; expected text"),
        ("a" + "[" * 3000, "--config is 'job.toml', which is not TOML.*; expected lines such as"),
        ("x: x.npy", "which is not TOML: .*line 1"),
        ("\xff\xfe", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(folder, line, message):
    Path("job.toml").write_bytes(line.encode("latin-1"))
    stderr = run("fit --x x.npy --y y.npy --model m.zarr --config job.toml", code=2).stderr
    assert stderr.count("\n") == 1 and stderr.startswith("dkrr: ")
    assert re.search(message, stderr) and not Path("m.zarr").exists(), stderr


@pytest.mark.parametrize("command", ["fit", "select", "predict", "plan"])
def test_a_file_without_config_names_the_option(command):
    stderr = run(f"{command} job.toml", code=2).stderr
    assert stderr.startswith(f"dkrr: dkrr {command} is given 'job.toml'") and "--config job.toml" in stderr
    assert "Usage: " in run(f"{command} job.toml --help").stdout


@pytest.mark.nightly
def test_the_command_of_the_snakefile_fits(folder, data):
    rule = (ROOT / "examples" / "Snakefile").read_text().split("shell:")[1]
    command = "".join(re.findall(r'^ +"(.*)"$', rule, re.M)).format(
        input=SimpleNamespace(x="x.npy", y="y.npy", options="fit.toml"),
        wildcards=SimpleNamespace(kernel="rbf", gamma=0.1, alpha=0.01),
        output="m.zarr",
        log="log",
    )
    Path("fit.toml").write_text("quiet = true")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], check=True, env=os.environ | {"PATH": path})
    assert "m.zarr: SOLVED" in Path("log").read_text() and not Path("m.zarr.run").exists()
    expected = KernelRidge(kernel="rbf", gamma=0.1, alpha=0.01).fit(data.X, data.y[:, 0]).predict(data.X)
    np.testing.assert_allclose(load("m.zarr").predict(data.X), expected, rtol=0, atol=1e-8)


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
