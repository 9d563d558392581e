"""Predictions in files and stores: what any reader of the format finds there."""

import io
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import dask.dataframe
import numpy as np
import pandas as pd
import polars
import pyarrow.parquet
import pytest
import zarr
from distributed import Client
from sklearn.base import clone

import dkrr
from dkrr.data.transformers import TransformedRows
from dkrr.errors import InputError, MemoryLimitError, NotFiniteError, StoreError
from dkrr.fitting import prediction_plans as predictions_out
from dkrr.fitting.prediction_costs import plan_prediction
from dkrr.machine.detection import detect
from dkrr.solvers import ConjugateGradient, RPCholesky
from dkrr.store.places import place_at
from tests.data.flights import flights, targets
from tests.oracles import assert_close

N = 250
Y = targets(N)
TABLE = flights(N).assign(
    flight=[f"XY{k}" for k in range(N)],
    date=pd.date_range("2013-01-01", periods=N),
    kind=pd.Categorical(np.where(np.arange(N) % 3, "short", "long")),
    delayed=Y > 0,
    arr_delay=Y,
)
X = TABLE[["distance", "hour"]]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current folder, with the table in groups of rows that blocks of predictions do not meet."""
    monkeypatch.chdir(tmp_path)
    TABLE.to_parquet("x.parquet", index=False, row_group_size=40)
    monkeypatch.setattr(predictions_out, "MAX_WRITTEN_ROWS", 33)


@pytest.fixture(scope="module")
def ridge():
    return dkrr.KernelRidge(kernel="rbf", transformer="standardize").fit(X, TABLE["arr_delay"])


@pytest.fixture(scope="module")
def logistic():
    y = pd.cut(TABLE["distance"], [0, 999, 4000, 9999], labels=["früh", "on time", "late"]).to_numpy(object)
    return dkrr.KernelLogisticRegression(transformer="standardize").fit(X, y)


def zarr_frame(path):
    found = zarr.open(path, mode="r")
    return found[:] if isinstance(found, zarr.Array) else pd.DataFrame({name: found[name][:] for name in found})


READERS = {
    ".parquet": pd.read_parquet,
    ".csv": pd.read_csv,
    ".arrow": pd.read_feather,
    ".feather": pd.read_feather,
    ".zarr": zarr_frame,
    ".npy": np.load,
}


def read(path):
    return READERS[Path(path).suffix](path)


@pytest.mark.parametrize("end", [end for end in READERS if end != ".npy"])
@pytest.mark.parametrize("kind", ["path", "pandas", "polars"])
def test_predictions_stand_beside_key_columns(end, kind, ridge):
    rows = {"path": lambda: "x.parquet", "pandas": lambda: TABLE, "polars": lambda: polars.from_pandas(TABLE)}[kind]()
    assert dkrr.predict_to(ridge, rows, f"p{end}", keep="flight,h*,delayed,arr_delay") == (N,)
    found, names = read(f"p{end}"), ["flight", "hour", "delayed", "arr_delay", "prediction_arr_delay"]
    assert list(found) == names if end != ".zarr" else set(found) == set(names)
    assert_close(found["prediction_arr_delay"], ridge.predict(X), 1e-12)
    np.testing.assert_allclose(found["arr_delay"], Y, rtol=1e-12)
    for name in names[:3]:
        assert found[name].tolist() == TABLE[name].tolist()


@pytest.mark.parametrize("end", [".parquet", ".csv", ".arrow"])
def test_dates_categories_and_missing_values_are_kept(end, ridge):
    dkrr.predict_to(ridge, "x.parquet", f"p{end}", keep="date,kind,delay")
    found = read(f"p{end}")
    assert found["kind"].tolist() == TABLE["kind"].tolist()
    assert pd.to_datetime(found["date"]).tolist() == TABLE["date"].tolist()
    np.testing.assert_allclose(found["delay"], TABLE["delay"], rtol=1e-12)


@pytest.mark.parametrize("end", READERS)
def test_labels_and_probabilities_are_columns(end, logistic):
    assert dkrr.predict_to(logistic, X, f"p{end}") == (N,)
    assert dkrr.predict_to(logistic, X, f"q{end}", probabilities=True) == (N, 3)
    labels, probabilities = read(f"p{end}"), read(f"q{end}")
    if end not in (".zarr", ".npy"):
        labels = labels["prediction"]
        assert list(probabilities) == ["probability_früh", "probability_late", "probability_on time"]
    assert labels.tolist() == logistic.predict(X).tolist()
    assert_close(probabilities, logistic.predict_proba(X), 1e-12)


def test_labels_in_zarr_are_labels_again(logistic):
    dkrr.predict_to(logistic, X, "p.zarr")
    again = dkrr.KernelLogisticRegression(transformer="standardize").fit(X, "p.zarr")
    assert again.classes_.tolist() == ["früh", "late", "on time"] and again.score(X, "p.zarr") > 0.8
    assert '"data_type": "string"' in Path("p.zarr/zarr.json").read_text(), "which Zarr specifies"


def test_the_index_of_a_frame_is_kept(ridge):
    indexed = TABLE.set_index(["flight", "date"])[["distance", "hour"]]
    counted = X.iloc[::-1].reset_index(drop=True).iloc[::2]
    for rows, keep, names in (
        (indexed, None, ["flight", "date", "arr_delay"]),
        (indexed, [], ["arr_delay"]),
        (counted, None, ["arr_delay"]),
    ):
        dkrr.predict_to(ridge, rows, "p.parquet", keep=keep, overwrite=True)
        found = read("p.parquet")
        assert list(found) == names
        assert_close(found["arr_delay"], ridge.predict(rows), 1e-12)
        assert keep == [] or rows is counted or found["flight"].tolist() == TABLE["flight"].tolist()


def test_workers_of_the_ambient_client_write_predictions(ridge, logistic):
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None):
        dkrr.predict_to(ridge, "x.parquet", "p.parquet", keep="flight")
        dkrr.predict_to(logistic, "x.parquet", "q.parquet", keep="flight")
    found = read("p.parquet")
    assert_close(found["arr_delay"], ridge.predict(X), 1e-12)
    assert found["flight"].tolist() == TABLE["flight"].tolist()
    assert read("q.parquet")["prediction"].tolist() == logistic.predict(X).tolist()


@pytest.mark.parametrize("is_saved", [False, True])
def test_workers_write_deviations_and_intervals_and_read_a_large_factor_themselves(ridge, monkeypatch, is_saved):
    monkeypatch.setattr("dkrr.fitting.prediction_costs.SENT_BYTES", 0 if is_saved else 2**26)
    dkrr.predict_to(ridge, "x.parquet", "here.parquet", return_std=True, interval=0.8)
    model = ridge
    if is_saved:
        dkrr.save(ridge, "m.zarr", uncertainty=True)
        model = dkrr.load("m.zarr")
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None):
        plan = dkrr.plan("x.parquet", model=model, return_std=True, interval=0.8)
        assert plan.execution == "dask" and plan.to_dict()["n_workers"] == 2 and "2 Dask workers" in str(plan)
        assert bool(plan.prediction.deviations[0].size.read_bytes) == is_saved
        dkrr.predict_to(model, "x.parquet", "there.parquet", return_std=True, interval=0.8)
        assert dkrr.plan(X, model=model).execution == "memory", "rows of this process stay in it"
    here, there = read("here.parquet"), read("there.parquet")
    assert list(here) == list(there)
    for name in here:
        assert_close(there[name], here[name], 1e-12)


def test_a_plan_says_what_predictions_take_and_a_limit_is_kept_or_refused(ridge, capsys):
    plain, both = dkrr.plan(X, model=ridge), dkrr.plan("x.parquet", model=ridge, return_std=True, interval=0.8)
    assert (plain.method, both.method, both.execution) == ("predictions", "factor", "memory")
    found = both.to_dict()
    assert (found["n_rows"], found["n_training_rows"], found["n_folds"], found["n_columns"]) == (N, N, 10, 4)
    assert found["seconds_range"][0] < found["seconds"] < found["seconds_range"][1] and plain.seconds < both.seconds
    assert found["peak_bytes"] <= found["limit_bytes"] and found["read_bytes"] > plain.read_bytes == 0
    assert "250 rows × 2 columns, 250 training rows" in str(both) and "10 models that leave out a fold" in str(both)
    limit = int(1.05 * both.peak_bytes)
    assert dkrr.plan(X, model=ridge, return_std=True, memory_limit=limit).limit_bytes == limit
    dkrr.predict_to(ridge, X, "p.npy", return_std=True, memory_limit=limit, progress=True)
    assert "predictions, 250 rows: done in" in capsys.readouterr().err
    kept = clone(ridge).set_params(uncertainty=True).fit(X, TABLE["arr_delay"])  # no other way than its factor
    for ask in (dkrr.predict_to, lambda model, X, _, **given: dkrr.plan(X, model=model, **given)):
        with pytest.raises(MemoryLimitError, match="one row would take .* memory_limit .* Nothing was computed"):
            ask(kept, X, "q.npy", return_std=True, memory_limit="1MiB")
        with pytest.raises(MemoryLimitError, match="no plan fits in memory: .* Nothing was computed"):
            ask(ridge, X, "q.npy", return_std=True, memory_limit="1MiB")
    assert not Path("q.npy").exists() and ridge.memory_limit is None


def test_the_plan_of_intervals_has_the_factor_that_their_models_take():
    model, resources = dkrr.KernelRidge(kernel="rbf").fit(X, TABLE["arr_delay"]), detect(None, None)
    job = dkrr.plan(X, model=model, interval=0.8).prediction
    (factor,) = job.factors
    alone, known = plan_prediction(job, resources), plan_prediction(replace(job, has_folds=True), resources)
    assert factor.size.loaded_bytes == 8 * N**2 and alone.peak_bytes >= known.peak_bytes + factor.size.loaded_bytes
    assert dkrr.plan(X, model=model, interval=0.8, return_std=True).prediction.factors == (), "it is in deviations"
    model.predict_interval(X)
    found = dkrr.plan(X, model=model, interval=0.8).prediction
    assert found.factors == () and found.has_folds


def test_the_plan_is_that_of_conjugate_gradient_although_a_factor_is_known(monkeypatch):
    monkeypatch.setattr("dkrr.fitting.posterior_plans.SMALL_SECONDS", 0.0)
    model = dkrr.KernelRidge(kernel="rbf", solver=ConjugateGradient(RPCholesky(rank=20))).fit(X, TABLE["arr_delay"])
    model.loo_residuals()  # by a factor, which stays
    plan = dkrr.plan(X, model=model, return_std=True)
    model.predict(X, return_std=True)
    assert plan.method == model.uncertainty_plan_.method == "iterations"


def test_fewer_rows_are_read_at_a_time_where_memory_is_short(ridge, monkeypatch):
    resources, job = detect(None, None), dkrr.plan(X, model=ridge).prediction
    whole = plan_prediction(job, resources)
    limit = whole.peak_bytes - 13 * (2 * job.row_bytes + 4 * 8 * job.n_columns)  # of 33 rows there is memory for 20
    short = plan_prediction(job, replace(resources, local_limit_bytes=limit))
    assert (whole.read_rows, short.read_rows) == (33, 16) and short.peak_bytes <= limit
    heights, blocks = [], TransformedRows.blocks
    monkeypatch.setattr("dkrr.estimators.kernel_ridge.plan_of_rows", lambda *_: short)
    monkeypatch.setattr(TransformedRows, "blocks", lambda *given: heights.append(given[-1]) or blocks(*given))
    dkrr.predict_to(ridge, X, "p.npy")
    assert heights == [16]
    assert_close(np.load("p.npy"), ridge.predict(X), 1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "m.zarr"}, "model is 'm.zarr'; expected a fitted estimator"),
        ({"model": False}, "model is False; expected a fitted estimator"),
        ({"model": None}, "return_std is given without model"),
        ({"alpha": 0.5}, "alpha is given with model, whose fit is done"),
        ({"X": None}, "model is given without X"),
        ({"probabilities": True}, "probabilities is True, and model is a KernelRidge; expected a classifier"),
        ({"interval": 2.0}, "interval is 2.0; expected a probability"),
    ],
)
def test_plans_of_predictions_refuse_what_is_of_a_fit(ridge, changes, message):
    with pytest.raises(InputError, match=message):
        dkrr.plan(**{"X": X, "model": ridge, "return_std": True} | changes)


def test_rows_of_parquet_are_put_together(ridge, monkeypatch):
    monkeypatch.setattr("dkrr.data.arrow.GROUP_ROWS", 60)
    dkrr.predict_to(ridge, "x.parquet", "p.parquet")
    metadata = pyarrow.parquet.ParquetFile("p.parquet").metadata
    assert [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)] == [60, 60, 60, 60, 10]


def test_predictions_go_to_a_bucket(ridge, bucket):
    tables = {".parquet": pd.read_parquet, ".csv": pd.read_csv, ".arrow": pd.read_feather}
    for end in (*tables, ".zarr"):
        url = f"{bucket}/predictions{end}"
        dkrr.predict_to(ridge, "x.parquet", url, keep="flight")
        with pytest.raises(InputError, match="exists already"):
            dkrr.predict_to(ridge, "x.parquet", url)
        if end in tables:
            found = tables[end](io.BytesIO(place_at(bucket).read(f"predictions{end}", 10**6)))
            assert_close(found["arr_delay"], ridge.predict(X), 1e-12)
            assert found["flight"].tolist() == TABLE["flight"].tolist()
    assert place_at(bucket).names() == [f"predictions{end}" for end in (".arrow", ".csv", ".parquet", ".zarr")]


def test_a_bucket_that_takes_nothing_is_named(ridge, memory_bucket, monkeypatch):
    writer = Mock(**{"write.side_effect": TimeoutError("no answer")})
    monkeypatch.setattr("obstore.open_writer", lambda store, key: writer)
    with pytest.raises(StoreError, match="cannot write in the store s3://.*: no answer"):
        dkrr.predict_to(ridge, "x.parquet", f"{memory_bucket}/p.parquet")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"path": path}, "path is .*; expected") for path in ("p.txt", "p", "p.parquet/", "p.csv.gz", "")),
        ({"keep": "fligth"}, "keep has 'fligth', .*expected 'flight'"),
        ({"keep": "flight", "X": X.to_numpy()}, "keep is 'flight', and X is a ndarray"),
        ({"keep": "flight", "X": dask.dataframe.from_pandas(TABLE, npartitions=2)}, "keep is 'flight', and X is a Da"),
        ({"path": "p.npy", "keep": "flight"}, r"\.npy holds one array"),
        ({"path": "p.zarr", "keep": "date"}, "keep has the column 'date' of timestamp"),
        ({"path": "s3://b/p.npy"}, "a URL; expected a path of this machine"),
        ({"path": "memory://p.csv"}, r"predictions are kept in folders and in buckets \(s3://"),
        ({"X": TABLE[["distance"]]}, "feature names should match"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_written(ridge, changes, message):
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises(InputError, match=message):
        dkrr.predict_to(**{"model": ridge, "X": TABLE, "path": "p.parquet"} | changes)
    assert sorted(Path.cwd().rglob("*")) == before


def test_missing_values_that_zarr_cannot_mark_are_refused(ridge):
    gaps = TABLE.assign(flight=TABLE["flight"].where(TABLE["hour"] > 3))
    with pytest.raises(InputError, match="missing values in column 'flight'; .*write .parquet"):
        dkrr.predict_to(ridge, gaps, "p.zarr", keep="flight")
    dkrr.predict_to(ridge, gaps, "p.zarr", keep="delay")
    np.testing.assert_array_equal(read("p.zarr")["delay"], TABLE["delay"])


@pytest.mark.parametrize("end", READERS)
def test_what_fails_names_the_row_and_leaves_nothing(end, ridge):
    bad = TABLE.assign(distance=TABLE["distance"].where(TABLE.index != 200))
    with pytest.raises((InputError, NotFiniteError), match="row 200"):
        dkrr.predict_to(ridge, bad, f"p{end}")
    assert list(Path.cwd().iterdir()) == [Path.cwd() / "x.parquet"]


def test_columns_of_predictions_have_a_name_each(tmp_path):
    y = TABLE[["arr_delay", "hour"]].set_axis(["t", "t_std"], axis=1)
    model = dkrr.KernelRidge(1.0, kernel="rbf").fit(X, y)
    dkrr.predict_to(model, X, "p.parquet", return_std=True)
    assert dkrr.open_table("p.parquet").names == ("t", "t_std", "prediction_t_std", "t_std_std")
