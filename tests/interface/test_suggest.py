"""``dkrr suggest``: a table of the rows to measure next."""

import json

import numpy as np
import pandas as pd
import pytest

import dkrr
from tests.interface.conftest import run

FIT = "fit --x t.csv --exclude name,kind --y y --model m.zarr --kernel rbf --quiet --uncertainty"
READERS = {".csv": pd.read_csv, ".parquet": pd.read_parquet, ".arrow": pd.read_feather}


@pytest.fixture
def model(folder):
    """A model with its uncertainty, and new rows of which two columns are not its own."""
    run(FIT)
    new = pd.DataFrame(np.load("new.npy"), columns=list("abcde"))
    new.assign(id=[f"m{i}" for i in range(len(new))], row=np.arange(len(new))).to_parquet("pool.parquet", index=False)
    return dkrr.load("m.zarr")


@pytest.mark.parametrize("end", READERS)
def test_rows_are_written_with_their_gain_and_columns_that_are_kept(model, end):
    line = f"suggest m.zarr --x pool.parquet -k 5 --n-candidates 20 --random-state 3 --keep id,row --out next{end}"
    said = run(line, "--json").stdout
    expected = dkrr.suggest(model, "pool.parquet", 5, n_candidates=20, random_state=3)
    found = READERS[end](f"next{end}")
    assert list(found) == ["suggested_row", "id", "row", "gain"]
    assert found["suggested_row"].tolist() == found["row"].tolist() == expected.rows.tolist()
    assert found["id"].tolist() == [f"m{i}" for i in expected.rows]
    np.testing.assert_allclose(found["gain"], expected.gain, rtol=1e-9)
    assert json.loads(said)["rows"] == expected.rows.tolist()


def test_rows_of_an_array_are_numbered(folder):
    run("fit --x x.npy --y y.npy --model m.zarr --kernel rbf --quiet --uncertainty")
    assert run("suggest m.zarr --x new.npy -k 3 --out next.csv --quiet").stdout.startswith("3 rows in next.csv, 0.")
    expected = dkrr.suggest(dkrr.load("m.zarr"), "new.npy", 3)
    found = pd.read_csv("next.csv")
    assert list(found) == ["row", "gain"] and found["row"].tolist() == expected.rows.tolist()


def test_the_same_command_has_nothing_to_do_and_others_do_not_overwrite(model):
    line = "suggest m.zarr --x pool.parquet --columns a,b,c,d,e --out next.parquet"
    run(f"{line} -k 3")
    assert "nothing to do (--overwrite suggests again)" in run(f"{line} -k 3").stdout
    assert "next.parquet exists already" in run(f"{line} -k 4", code=2).stderr
    run(f"{line} -k 4 --overwrite")
    assert len(pd.read_parquet("next.parquet")) == 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--x pool.parquet -k 99 --out n.csv", "k is 99, and X has 37 rows"),
        ("--x pool.parquet -k 1 --out n.npy", "--out is 'n.npy'; expected a path that ends in one of .parquet"),
        ("--x new.npy -k 1 --keep id --out n.csv", "keep is 'id', and X is not a table"),
        ("--x pool.parquet -k 1 --keep nothing --out n.csv", "nothing"),
        ("--x pool.parquet --out n.csv", "-k"),
    ],
)
def test_what_cannot_be_suggested_is_refused(model, folder, more, words):
    assert words in run(f"suggest m.zarr {more}", code=2).stderr
    assert not (folder / "n.csv").exists()


def test_a_model_without_uncertainty_is_refused_with_the_option(folder):
    run(FIT.removesuffix(" --uncertainty"))
    assert "--uncertainty" in run("suggest m.zarr --x new.npy -k 1 --out n.csv", code=2).stderr
