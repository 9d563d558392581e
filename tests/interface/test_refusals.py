"""What commands refuse: in one line that names it, with status 2, before work, and without a change of any file."""

import contextlib
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr

from tests.interface.conftest import run, write_inputs

FIT, SELECT = "fit --x x.npy --y y.npy --model m.zarr", "select --x x.npy --y y.npy"
TABLE = "fit --x t.csv --y y --model m.zarr"
PREDICT = "predict --out p.npy --model model.zarr --x x.npy"
PLAN = "plan --n 100 --d 3"
KINDS = "fit --x kinds.parquet --y y --model m.zarr --columns y"
REFUSED = [
    # Sizes
    ("plan --n 10000 --d 1000000000 --memory-limit 4GiB", "no plan fits in memory"),
    # Data
    ("fit --x x.npy --y d.npz::z --model m.zarr", "no array 'z'"),
    (f"{FIT} --logistic", "does not hold class labels"),
    ("fit --x x.npy --y d.npz::huge --model m.zarr", r"the largest .* of target 0 .*: divide this .* by 1e\+200 "),
    ("fit --x x.npy --y labels.npy --model m.zarr", r"KernelLogisticRegression \(or --logistic\)"),
    ("predict --out p.npy --model model.zarr --x bad.npy", "row 210, column 2"),
    ("predict --out p.npy --model model.zarr --x narrow.npy", "X has 2 features, but the model was fitted with 5"),
    # Tables
    (TABLE, r"the column 'name' of text .*leave it out \(columns='a,b,c,d,e'\)"),
    ("fit --x t.csv --y yy --columns a* --model m.zarr", "y has 'yy', which is neither a .* expected 'y', or a path$"),
    ("fit --x t.csv --y nope --model m.zarr", r"neither a column of X nor .*; expected one of \d columns, or a path$"),
    (f"{TABLE} --columns dep_*", "--columns has 'dep_.', and t.csv has no"),
    (f"{FIT} --columns a", "--columns is 'a', and --x is not a table"),
    (f"{FIT} --drop-missing", "--x is not a table with named columns"),
    ("fit --x t.csv --columns a --y y.npy --drop-missing --model m.zarr", "--y is .*expected a column of --x"),
    ("predict --out p.npy --model table.zarr --x t.csv --columns c,d", "without its column 'a'"),
    ("predict --out p.npy --model table.zarr --x other.csv", "X has no column 'b'"),
    ("predict --out p.npy --model model.zarr --x t.csv --columns a,b", "X has 2 features"),
    # Transformers
    (f"{FIT} --one-hot a", "--x is not a table"),
    (f"{TABLE} --standardize", "--x has the column 'name' of text"),
    (f"{TABLE} --one-hot name", "--x has the column 'kind' of text"),
    (f"{TABLE} --one-hot nam,kind", "--one-hot has 'nam', .* expected 'name'"),
    (f"{FIT} --transformer model.zarr --standardize", "with --standardize, .* expected --transformer alone"),
    (f"{FIT} --transformer model.zarr", "--transformer is 'model.zarr', a model without a transformer; expected one"),
    (f"{FIT} --transformer nothing.zarr", "--transformer: .*nothing.zarr"),
    (f"{PLAN} --transformer model.zarr", "--transformer is given without --x"),
    (f"{TABLE} --unknown zeros", "--unknown is given without --one-hot"),
    *((f"{KINDS},{kind} --one-hot {kind}", f"column '{kind}' of .*cannot hold; expected numbers, text or categories")
      for kind in ("date", "decimal", "bytes")),
    # Kernels and numbers
    (f"{PLAN} --kernel matern --kernel-param nu=1.5 --kernel-param nu=2.5", "given twice"),
    (f"{PLAN} --kernel matern --kernel-param mu=1", "has no parameter mu; expected 'nu', 'length_scale'"),
    (f"{PLAN} --kernel rbf --gamma 1 --kernel-param gamma=5", "gamma is 1.0, and .* expected one of the two"),
    (f"{FIT} --alpha 1,2", r"KernelRidgeCV \(dkrr select\) chooses among several"),
    (f"{FIT} --gamma 1,2", "dkrr select chooses among several"),
    ("fit --x x.npy --y labels.npy --logistic --model m.zarr --alpha 1,2", "--alpha has several values"),
    (f"{FIT} --memory-limit 2000", "is 2000 bytes; did you mean '2000 MB'"),
    # Options that do not go together
    ("plan --n 10", "--n and --d"),
    ("plan --n 10 --d 0", "--d is 0; expected a whole number of at least 1"),
    (f"{FIT} --max-iter 3", "give --logistic"),
    (f"{PLAN} --one-vs-rest", "give --logistic"),
    *((f"{SELECT} {option}", f"{option.split()[0]} is given without --logistic; give --logistic with it")
      for option in ("--class-weight balanced", "--max-iter 5", "--one-vs-rest")),
    *((f"{SELECT} --logistic {option}", f"{option.split()[0]} is given with --logistic; leave it out")
      for option in ("--store new", "--alpha-per-target")),
    (f"{SELECT} --train-sizes 0.5 --cv loo", "train_sizes is given, and cv is leave-one-out"),
    (f"{FIT} --uncertainty --logistic", "--uncertainty is given with --logistic"),
    (f"{FIT} --intervals --kernel precomputed", "--intervals is given with --kernel precomputed"),
    (f"{FIT} --intervals --solver cg", "the models without a fold follow from a Cholesky factor"),
    (f"{PLAN} --uncertainty --logistic", "--uncertainty is given with --logistic"),
    (f"{SELECT} --uncertainty", "--uncertainty is given without --model"),
    (f"{PREDICT} --interval 0.9", "--uncertainty"),
    ("predict --out p.npy --model classes.zarr --x x.npy --std", "expected a regression"),
    (f"{PREDICT} --proba", "--proba is given, but model.zarr is a KernelRidge"),
    ("fit --x x.npy", "Missing option"),
    ("plan --n 10000 --d 5 --kernel rbf --memory-limit 1MiB", "smallest memory_limit"),
    # Places
    ("info x.npy", "not a Zarr group"),
    ("status model.zarr", "is a saved model; expected the store of a run"),
    ("predict --model model.zarr --x x.npy --out data.zarr --overwrite", "is not an"),
    (f"{FIT[:-7]} model.zarr", "exists already"),
    ("predict --model model.zarr --x x.npy --out y.npy", "exists already"),
    ("predict --model model.zarr --x x.npy --out data.zarr", "exists already"),
    *((f"{command} {option}", message)
      for command in ("fit --x x.npy --y y.npy", SELECT)
      for option, message in (
          ("--model no/m.zarr", "--model is 'no/m.zarr', and the folder .*/no does not exist"),
          ("--model x.npy/m.zarr", "the folder .*/x.npy does not exist"),
          ("--model /proc/m.zarr", "--model: cannot write /proc/m.zarr"),
          ("--model m.zarr --store no/run.zarr", "--store is 'no/run.zarr', and the folder .*/no does not"),
          ("--model m.zarr --store /proc/run.zarr", "--store: cannot write /proc/run.zarr"),
          ("--model m.zarr --store model.zarr", "^(?!.*delete).*model.zarr.* a (saved )?model"),
      )),
    ("plan --x x.npy --y y.npy --store model.zarr", "^(?!.*delete).*is a saved model"),
    (f"{FIT} --quiet --store run.zarr --kernel linear --alpha 3", "the values of alpha differ"),
    (f"{FIT} --quiet --store run.zarr --kernel linear --solver cg", "began with solver='cholesky'"),
    (f"{SELECT} --quiet --store runs --alphas 1,2,4", "belongs to another problem"),
    (f"{SELECT} --out /proc/scores.png", "--out: cannot write /proc/scores.png"),
    ("report model.zarr --out page.html", r"exists already; delete it, .*overwrite=True \(--overwrite\)"),
    ("report model.zarr --out /proc/page.html", "--out: cannot write /proc/page.html"),
    ("report model.zarr --out y.npy --overwrite", "y.npy is not a report of dkrr"),
]  # fmt: skip


A = "--x x.npy --y y.npy"
OF_PLANS = [
    # Rows
    ("--x bad.npy --y y.npy", "row 210, column 2"),
    ("--x bad.npy --y y.npy --standardize", "row 210 has it in column 'x2' after the transformer"),
    ("--x bad.zarr --y y.npy", "row 210, column 2"),
    ("--x gaps.parquet --y y --columns a,b", "missing values .* in column 'b' .*row 5"),
    ("--x gaps.parquet --y y --columns b,name --one-hot name", "row 5 has it in column 'b' after the transformer"),
    ("--x huge.npy --y y.npy", "which float64 does not hold exactly"),
    ("--x labels.npy --y y.npy", "expected numbers|not a matrix of numbers|could not convert"),
    ("--x t.csv --y y", "the column 'name' of text"),
    ("--x t.csv --y y --columns a,missing", "'missing', and t.csv has no such column"),
    ("--x none.npy --y y.npy", "does not exist"),
    ("--x narrow.npy --y y.npy --kernel precomputed", "must be a square matrix"),
    # Targets, labels and weights
    ("--x x.npy --y bad.npy", "y contains NaN.*row 210, column 2"),
    ("--x gaps.parquet --y b --columns a", "y has missing values"),
    ("--x x.npy --y short.npy", "9"),
    ("--x x.npy --y short_labels.npy --logistic", "9"),
    ("--x x.npy --y y.npy --logistic", "class labels"),
    ("--x x.npy --y labels.npy", "labels|numbers"),
    (f"{A} --sample-weight bad.npz::w", "sample_weight is nan in row 3"),
    (f"{A} --sample-weight short.npy", r"sample_weight has shape \(9,\)"),
    ("--x gaps.parquet --y y --columns a --sample-weight b", "sample_weight has missing values"),
    # The model
    (f"{A} --alpha -1", "alpha"),
    (f"{A} --alpha 1,2", "alpha"),
    ("--x x.npy --y labels.npy --logistic --alpha 1,2", "--alpha has several values"),
    (f"{A} --kernel nope", "kernel is 'nope'"),
    (f"{A} --kernel matern --kernel-param nu=-1", "nu"),
    (f"{A} --kernel laplacian --form primal", "primal"),
    (f"{A} --tol 0", "tol is 0"),
    (f"{A} --tile 0", "tile is 0"),
    (f"{A} --store no/run.zarr", "no does not exist"),
]
"""Options with which `fit` and `plan` refuse, and what both say."""


@pytest.fixture(scope="module")
def place(data, tmp_path_factory):
    """A folder with inputs, models, runs and a report, of which no test may change a file."""
    folder = tmp_path_factory.mktemp("place")
    with contextlib.chdir(folder):
        write_inputs(data)
        np.save("narrow.npy", data.X[:, :2])
        bad = data.X.copy()
        bad[-1, 2] = np.nan
        np.save("bad.npy", bad)
        zarr.save_array("bad.zarr", bad)
        np.savez("bad.npz", w=np.where(np.arange(len(bad)) == 3, np.nan, 1.0))
        np.save("huge.npy", np.full(data.X.shape, 2**60 + 1))
        np.save("short.npy", np.ones(9))
        np.save("short_labels.npy", np.arange(9) % 2)
        table = pd.read_csv("t.csv")
        table.loc[5, "b"] = np.nan
        table.to_parquet("gaps.parquet")
        Path("other.csv").write_text(Path("t.csv").read_text().replace("a,b", "a,B", 1))
        kinds = {"date": pd.Timestamp("2026-01-02"), "decimal": Decimal(1), "bytes": b"1"}
        pd.DataFrame({"y": np.arange(9.0)}).assign(**kinds).to_parquet("kinds.parquet")
        run("fit --x x.npy --y y.npy --solver cholesky --store run.zarr --model model.zarr --kernel linear")
        run("select --x x.npy --y y.npy --store runs --alphas 1,2")
        run("fit --x t.csv --columns a,b --y y --model table.zarr")
        run("fit --x x.npy --y labels.npy --logistic --model classes.zarr")
        run("report model.zarr --out page.html")
    return folder


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("line", "message"), REFUSED, ids=[line for line, _ in REFUSED])
def test_a_wrong_command_is_refused_in_one_line_and_changes_nothing(place, monkeypatch, line, message):
    monkeypatch.chdir(place)
    before = times(place)
    text = run(line, code=2).stderr
    is_one_line = text.startswith("dkrr: ") and text.count("\n") == 1
    assert re.search(message, text) and (is_one_line or text.startswith("Usage: ")), text
    assert times(place) == before


@pytest.mark.parametrize(("options", "message"), OF_PLANS, ids=[options for options, _ in OF_PLANS])
def test_a_plan_refuses_what_a_fit_refuses(place, monkeypatch, options, message):
    monkeypatch.chdir(place)
    for command in ("fit --quiet --model m.zarr", "plan"):
        text = run(f"{command} {options}", code=2).stderr
        assert text.startswith("dkrr: ") and text.count("\n") == 1 and re.search(message, text), text
