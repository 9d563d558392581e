"""Tables on the command line: columns by name, targets among them, errors in one line."""

import json

import numpy as np
import pytest

from dkrr import KernelRidge
from tests.interface.test_commands import run

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def flights(data, tmp_path):
    columns = {f"x{k}": column for k, column in enumerate(data.X.T)}
    targets = {"y": data.y[:, 0], "w": data.weights, "origin": np.where(data.y[:, 0] > 0, "EWR", "JFK")}
    parquet.write_table(pa.table(targets | columns), tmp_path / "flights.parquet", row_group_size=30)
    return tmp_path / "flights.parquet"


def test_fit_and_predict(data, flights, tmp_path):
    fit = [
        "fit",
        "--x",
        flights,
        "--columns",
        "x*",
        "--y",
        "y",
        "--sample-weight",
        "w",
        "--kernel",
        "rbf",
        "--gamma",
        0.2,
    ]
    run(*fit, "--alpha", 0.1, "--model", tmp_path / "m.zarr")
    run("predict", "--model", tmp_path / "m.zarr", "--x", flights, "--out", tmp_path / "p.npy")
    known = KernelRidge(0.1, kernel="rbf", gamma=0.2).fit(data.X, data.y[:, 0], sample_weight=data.weights)
    assert np.allclose(np.load(tmp_path / "p.npy"), known.predict(data.X), rtol=0, atol=1e-9)


def test_select_and_plan(data, flights):
    found = json.loads(
        run("select", "--x", f"{flights}::x*", "--y", "y", "--alphas", "0.1,1", "--cv", 3, "--json").stdout
    )
    assert {c["alpha"] for c in found["candidates"]} == {0.1, 1.0}
    described = json.loads(
        run("plan", "--x", flights, "--columns", "x*", "--y", "origin", "--logistic", "--json").stdout
    )
    assert (described["problem"]["d"], described["problem"]["n_targets"]) == (data.X.shape[1], 1)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--x", "flights.parquet", "--y", "y"], "X has the column 'origin' of text (string)"),
        (
            ["--x", "flights.parquet", "--y", "yy", "--columns", "x*"],
            "y has 'yy', which is neither a column of X nor a path",
        ),
        (
            ["--x", "flights.parquet", "--y", "y", "--columns", "dep_*"],
            "--columns has 'dep_*', and flights.parquet has no",
        ),
        (["--x", "y.npy", "--y", "y.npy", "--columns", "a"], "--columns is 'a', and --x is not a table"),
        (["--x", "gone.parquet", "--y", "y"], "X: the path gone.parquet does not exist"),
    ],
)
def test_errors_are_one_line(flights, tmp_path, monkeypatch, arguments, match):
    monkeypatch.chdir(tmp_path)
    np.save("y.npy", np.ones(3))
    result = run("fit", *arguments, "--model", "m.zarr", code=2)
    assert match in result.stderr and result.stderr.count("\n") == 1
