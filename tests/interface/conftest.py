"""The command line in a folder with rows, targets, weights, labels and a table."""

import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner

from dkrr.cli import dkrr


def run(line, *more, code=0):
    """Result of a command that ends with this status; `more` are arguments that may have spaces."""
    result = CliRunner().invoke(dkrr, [*line.split(), *map(str, more)])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def write_inputs(data):
    """Write files into the current folder."""
    labels = np.where(data.X[:, 0] > 0, "high", "low")
    np.save("x.npy", data.X)
    np.save("new.npy", data.X_new)
    np.save("y.npy", data.y[:, 0])
    np.save("labels.npy", labels)
    np.savez("d.npz", X=data.X, y=data.y, w=data.weights, huge=1e200 * data.y)
    zarr.save_array("data.zarr/x", data.X)
    columns = dict(zip("abcde", data.X.T, strict=True))
    pd.DataFrame(columns | {"name": "n", "kind": labels, "y": data.y[:, 0]}).to_csv("t.csv", index=False)


@pytest.fixture
def folder(data, tmp_path, monkeypatch):
    """The current folder, with these files."""
    monkeypatch.chdir(tmp_path)
    write_inputs(data)
    return tmp_path
