"""Predictions in files and stores: what any reader of the format finds there."""

import io
import json

import dask.array as da
import numpy as np
import pandas as pd
import polars
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
import zarr
from distributed import Client

import dkrr
from dkrr import predictions_out
from dkrr.errors import InputError, NotFiniteError, StoreError
from dkrr.tiles import buckets, remote
from tests.data.flights import flights, targets

N = 250


def table():
    return flights(N).assign(
        flight=[f"XY{k}" for k in range(N)],
        date=pd.date_range("2013-01-01", periods=N),
        kind=pd.Categorical(np.where(np.arange(N) % 3, "short", "long")),
        delayed=targets(N) > 0,
        arr_delay=targets(N),
    )


FEATURES = ["distance", "hour"]


def parquet(folder, height=40):
    path = folder / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(table(), preserve_index=False), path, height)
    return str(path)


@pytest.fixture(scope="module")
def ridge():
    return dkrr.KernelRidge(kernel="rbf", transformer="standardize").fit(table()[FEATURES], table()["arr_delay"])


@pytest.fixture(scope="module")
def logistic():
    distance = table()["distance"]
    y = np.where(distance > 4000, "late", np.where(distance < 1000, "früh", "on time")).astype(object)
    return dkrr.KernelLogisticRegression(transformer="standardize").fit(table()[FEATURES], y)


def zarr_frame(path):
    group = zarr.open_group(path, mode="r")
    return pd.DataFrame({name: group[name][:] for name in group})


READERS = {
    ".parquet": pd.read_parquet,
    ".csv": pd.read_csv,
    ".arrow": lambda path: pyarrow.ipc.open_file(path).read_pandas(),
    ".feather": pd.read_feather,
    ".zarr": zarr_frame,
}


@pytest.mark.parametrize("end", READERS)
def test_predictions_stand_beside_key_columns(end, ridge, tmp_path, monkeypatch):
    monkeypatch.setattr(predictions_out, "MAX_BLOCK_ROWS", 33)
    expected = ridge.predict(table()[FEATURES])
    for x, X in enumerate((parquet(tmp_path), table(), polars.from_pandas(table()))):
        path = str(tmp_path / f"p{x}{end}")
        keep = "flight,h*,delayed,arr_delay"
        assert dkrr.predict_to(ridge, X, path, keep=keep) == (N,)
        found = READERS[end](path)
        assert set(found) == {"flight", "hour", "delayed", "arr_delay", "prediction_arr_delay"}
        if end != ".zarr":
            assert list(found) == ["flight", "hour", "delayed", "arr_delay", "prediction_arr_delay"]
        np.testing.assert_allclose(found["prediction_arr_delay"], expected, rtol=1e-12)
        for name in ("flight", "hour", "delayed"):
            assert found[name].tolist() == table()[name].tolist()
        np.testing.assert_allclose(found["arr_delay"], table()["arr_delay"], rtol=1e-12)


@pytest.mark.parametrize("end", [".parquet", ".csv", ".arrow"])
def test_dates_categories_and_missing_values_are_kept(end, ridge, tmp_path):
    dkrr.predict_to(ridge, parquet(tmp_path), tmp_path / f"p{end}", keep="date,kind,delay")
    found = READERS[end](tmp_path / f"p{end}")
    assert found["kind"].tolist() == table()["kind"].tolist()
    assert pd.to_datetime(found["date"]).tolist() == table()["date"].tolist()
    np.testing.assert_allclose(found["delay"], table()["delay"], rtol=1e-12)


@pytest.mark.parametrize("end", [*READERS, ".npy"])
def test_labels_and_probabilities_are_columns(end, logistic, tmp_path, monkeypatch):
    monkeypatch.setattr(predictions_out, "MAX_BLOCK_ROWS", 33)
    X = table()[FEATURES]
    assert dkrr.predict_to(logistic, X, tmp_path / f"p{end}") == (N,)
    assert dkrr.predict_to(logistic, X, tmp_path / f"q{end}", probabilities=True) == (N, 3)
    if end == ".npy":
        labels, probabilities = np.load(tmp_path / "p.npy"), np.load(tmp_path / "q.npy")
    elif end == ".zarr":
        labels, probabilities = zarr.open_array(tmp_path / "p.zarr")[:], zarr.open_array(tmp_path / "q.zarr")[:]
    else:
        labels = READERS[end](tmp_path / f"p{end}")["prediction"]
        probabilities = READERS[end](tmp_path / f"q{end}")
        assert list(probabilities) == ["probability_früh", "probability_late", "probability_on time"]
    assert labels.tolist() == logistic.predict(X).tolist()
    np.testing.assert_allclose(probabilities, logistic.predict_proba(X), rtol=1e-10)


def test_labels_in_zarr_are_labels_again(logistic, tmp_path):
    X = table()[FEATURES]
    dkrr.predict_to(logistic, X, tmp_path / "p.zarr")
    again = dkrr.KernelLogisticRegression(transformer="standardize").fit(X, str(tmp_path / "p.zarr"))
    assert again.classes_.tolist() == ["früh", "late", "on time"] and again.score(X, tmp_path / "p.zarr") > 0.8
    metadata = json.loads((tmp_path / "p.zarr" / "zarr.json").read_text())
    assert metadata["data_type"] == "string", "which Zarr specifies"


def test_the_index_of_a_frame_is_kept(ridge, tmp_path):
    X = table().set_index(["flight", "date"])[FEATURES]
    dkrr.predict_to(ridge, X, tmp_path / "p.parquet")
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert list(found) == ["flight", "date", "arr_delay"] and found["flight"].tolist() == table()["flight"].tolist()
    dkrr.predict_to(ridge, X, tmp_path / "q.parquet", keep=[])
    assert list(pd.read_parquet(tmp_path / "q.parquet")) == ["arr_delay"]
    dkrr.predict_to(ridge, X.iloc[::-1].reset_index(drop=True).iloc[::2], tmp_path / "r.csv")
    assert list(pd.read_csv(tmp_path / "r.csv")) == ["arr_delay"], "rows that are only counted"


def test_names_of_several_targets(tmp_path):
    y = pd.DataFrame({"a": targets(N), "b": -targets(N)})
    named = dkrr.KernelRidge().fit(table()[FEATURES], y)
    dkrr.save(named, tmp_path / "m.zarr")
    plain = dkrr.KernelRidge().fit(table()[FEATURES], y.to_numpy())
    for model, names in ((dkrr.load(tmp_path / "m.zarr"), ["a", "b"]), (plain, ["prediction_0", "prediction_1"])):
        assert dkrr.predict_to(model, table()[FEATURES], tmp_path / "p.csv", overwrite=True) == (N, 2)
        found = pd.read_csv(tmp_path / "p.csv")
        assert list(found) == names
        np.testing.assert_allclose(found, model.predict(table()[FEATURES]), rtol=1e-12)


def test_predictions_of_any_rows_are_written(ridge, tmp_path):
    X = table()[FEATURES].to_numpy(float)
    model = dkrr.KernelRidge(kernel="rbf", transformer="standardize").fit(X, targets(N))
    np.save(tmp_path / "x.npy", X)
    for rows in (X, da.from_array(X, chunks=(40, 1)), str(tmp_path / "x.npy")):
        for end in (".npy", ".zarr", ".parquet"):
            dkrr.predict_to(model, rows, tmp_path / f"p{end}", overwrite=True)
        np.testing.assert_allclose(np.load(tmp_path / "p.npy"), model.predict(X), rtol=1e-12)
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "p.zarr")[:], np.load(tmp_path / "p.npy"))
        np.testing.assert_array_equal(
            pd.read_parquet(tmp_path / "p.parquet")["prediction"], np.load(tmp_path / "p.npy")
        )


def test_workers_of_the_ambient_client_write_predictions(ridge, logistic, tmp_path):
    path = parquet(tmp_path)
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None):
        dkrr.predict_to(ridge, path, tmp_path / "p.parquet", keep="flight")
        dkrr.predict_to(logistic, path, tmp_path / "q.parquet", keep="flight")
    found = pd.read_parquet(tmp_path / "p.parquet")
    np.testing.assert_allclose(found["arr_delay"], ridge.predict(table()[FEATURES]), rtol=1e-12)
    assert found["flight"].tolist() == table()["flight"].tolist()
    labels = pd.read_parquet(tmp_path / "q.parquet")["prediction"]
    assert labels.tolist() == logistic.predict(table()[FEATURES]).tolist()


def test_rows_of_parquet_are_put_together(ridge, tmp_path, monkeypatch):
    monkeypatch.setattr(predictions_out, "MAX_BLOCK_ROWS", 33)
    monkeypatch.setattr("dkrr.tables.writing.GROUP_ROWS", 60)
    dkrr.predict_to(ridge, parquet(tmp_path), tmp_path / "p.parquet")
    metadata = pyarrow.parquet.ParquetFile(tmp_path / "p.parquet").metadata
    assert [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)] == [66, 66, 66, 52]


def test_predictions_go_to_a_bucket(ridge, tmp_path, bucket):
    expected = ridge.predict(table()[FEATURES])
    tables = {".parquet": pd.read_parquet, ".csv": pd.read_csv, ".arrow": pd.read_feather}
    for end in (*tables, ".zarr"):
        url = f"{bucket}/predictions{end}"
        dkrr.predict_to(ridge, parquet(tmp_path), url, keep="flight")
        with pytest.raises(InputError, match="exists already"):
            dkrr.predict_to(ridge, parquet(tmp_path), url)
        if end in tables:
            found = tables[end](io.BytesIO(remote.get(bucket, f"predictions{end}")))
            np.testing.assert_allclose(found["arr_delay"], expected, rtol=1e-12)
            assert found["flight"].tolist() == table()["flight"].tolist()
    assert remote.names(bucket) == [f"predictions{end}" for end in (".arrow", ".csv", ".parquet", ".zarr")]


def test_a_bucket_that_takes_nothing(ridge, tmp_path, memory_bucket, monkeypatch):
    class Refusing:
        def write(self, data):
            raise TimeoutError("no answer")

        def close(self):
            pass

    monkeypatch.setattr(buckets.Bucket, "writer", lambda self, key: Refusing())
    with pytest.raises(StoreError, match="cannot write in the store s3://.*: no answer"):
        dkrr.predict_to(ridge, parquet(tmp_path), f"{memory_bucket}/p.parquet")


class TestRefused:
    @pytest.mark.parametrize("path", ["p.txt", "p", "p.parquet/", "p.csv.gz", ""])
    def test_other_formats_are_refused(self, path, ridge, tmp_path):
        with pytest.raises(InputError, match="path is .*; expected"):
            dkrr.predict_to(ridge, table(), path)

    def test_wrong_arguments_of_predict_to_are_named(self, ridge, logistic, tmp_path):
        path = tmp_path / "p.parquet"
        cases = [
            ({"model": 5}, "model is 5; expected a fitted estimator"),
            ({"keep": "fligth"}, "keep has 'fligth', .*expected 'flight'"),
            ({"keep": "flight", "X": table()[FEATURES].to_numpy()}, "keep is 'flight', and X is a ndarray"),
            ({"keep": 5}, "keep is 5; expected names of columns"),
            ({"probabilities": True}, "probabilities is True, and model is a KernelRidge; expected a classifier"),
            ({"probabilities": 1}, "probabilities is 1; expected True or False"),
            ({"overwrite": "yes"}, "overwrite is 'yes'"),
            ({"path": tmp_path / "p.npy", "keep": "flight"}, r"\.npy holds one array"),
            ({"path": tmp_path / "p.zarr", "keep": "date"}, "keep has the column 'date' of timestamp"),
            ({"path": "s3://b/p.npy"}, "a URL; expected a path of this machine"),
            ({"path": "memory://p.csv"}, r"predictions are kept in folders and in buckets \(s3://"),
            ({"X": table()[["distance"]]}, "feature names should match"),
            ({"X": 5}, "X"),
        ]
        for changes, message in cases:
            arguments = {"model": ridge, "X": table(), "path": path} | changes
            with pytest.raises(InputError, match=message):
                dkrr.predict_to(arguments.pop("model"), arguments.pop("X"), arguments.pop("path"), **arguments)
        assert not list(tmp_path.iterdir())

    def test_missing_values_that_zarr_cannot_mark(self, ridge, tmp_path):
        X = table().assign(flight=lambda t: t["flight"].where(t["hour"] > 3))
        with pytest.raises(InputError, match="missing values in column 'flight'; .*write .parquet"):
            dkrr.predict_to(ridge, X, tmp_path / "p.zarr", keep="flight")
        dkrr.predict_to(ridge, X, tmp_path / "p.zarr", keep="delay")
        np.testing.assert_array_equal(zarr_frame(tmp_path / "p.zarr")["delay"], X["delay"])

    @pytest.mark.parametrize("end", [*READERS, ".npy"])
    def test_what_fails_leaves_what_was_there(self, end, ridge, tmp_path, monkeypatch):
        monkeypatch.setattr(predictions_out, "MAX_BLOCK_ROWS", 33)
        path, bad = tmp_path / f"p{end}", table()
        bad.loc[200, "distance"] = np.nan
        for was_there in (False, True):
            if was_there:
                dkrr.predict_to(ridge, table(), path, keep=[] if end == ".npy" else "hour")
            before = sorted((p.name, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
            with pytest.raises((InputError, NotFiniteError), match="row 200"):
                dkrr.predict_to(ridge, bad, path, overwrite=True)
            assert sorted((p.name, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before
        dkrr.predict_to(ridge, table(), path, overwrite=True)

    def test_models_are_not_overwritten(self, ridge, tmp_path):
        dkrr.save(ridge, tmp_path / "m.zarr")
        with pytest.raises(InputError, match="is not an array or a group of predictions"):
            dkrr.predict_to(ridge, table(), tmp_path / "m.zarr", overwrite=True)
