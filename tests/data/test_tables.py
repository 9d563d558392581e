"""Tables in files and lazy: columns by name, blocks of rows, numbers, fits, and errors that name the column."""

import gzip
import pickle
import re
import sys
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.preprocessing import StandardScaler

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.data import as_rows, as_table, load_targets, with_columns
from dkrr.data.arrays import is_mapped
from dkrr.data.table import beside, regrouped
from dkrr.errors import InputError, InputTypeError, InputWarning
from dkrr.kernels import RBF, BagOfWords, Columns
from dkrr.store.places import place_at
from tests.oracles import assert_close

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

N = 97
NAMES = ("dep_time", "dep_delay", "hour", "is_late", "origin", "day", "arr_delay")


@pytest.fixture(scope="module")
def arrow():
    rng = np.random.default_rng(0)
    columns = {
        "dep_time": rng.normal(size=N),
        "dep_delay": rng.normal(size=N).astype("f4"),
        "hour": rng.integers(0, 24, N),
        "is_late": rng.random(N) < 0.5,
        "origin": rng.choice(["EWR", "JFK"], N),
        "day": np.datetime64("2013-01-01") + np.arange(N),
        "arr_delay": rng.normal(size=N),
    }
    return pa.table(columns)


def _parquet(arrow, folder):
    parquet.write_table(arrow, folder / "x.parquet", row_group_size=20)
    return folder / "x.parquet"


def _csv_folder(arrow, folder):
    for first in range(0, N, 40):
        csv.write_csv(arrow.slice(first, 40), folder / f"{first:02}.csv")
    return f"{folder}/*.csv"


def _arrow_file(arrow, folder, new=pa.ipc.new_file):
    with new(folder / "x.arrow", arrow.schema) as writer:
        writer.write_table(arrow, max_chunksize=30)
    return str(folder / "x.arrow")


MAKERS = {
    "parquet": _parquet,
    "csv pattern": _csv_folder,
    "arrow file": _arrow_file,
    "arrow stream": lambda arrow, folder: _arrow_file(arrow, folder, pa.ipc.new_stream),
    "arrow": lambda arrow, folder: arrow,
    "polars lazy": lambda arrow, folder: pytest.importorskip("polars").from_arrow(arrow).lazy(),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_table_has_the_same_columns_and_rows_in_every_kind_of_file(kind, arrow, tmp_path):
    table = dkrr.open_table(MAKERS[kind](arrow, tmp_path))
    assert table.names == NAMES and len(table) == table.n_rows == N
    assert list(table.kinds.values()) == ["number"] * 4 + ["text", "date", "number"]
    chosen, some = table.select("dep_*,hour,is_late"), np.array([77, 3, 3, 20, 96, 0])
    expected = np.column_stack([np.asarray(arrow[name]).astype(float) for name in NAMES[:4]])
    tolerance = 1e-6 if "csv" in kind else 0  # text of float32
    assert_allclose(chosen.numbers(0, N), expected, rtol=tolerance)
    assert_allclose(chosen.numbers(13, 78), expected[13:78], rtol=tolerance)
    assert_allclose(chosen.rows(some), expected[some], rtol=tolerance)
    first = 0
    for row, block in table.blocks(17):
        assert row == first and len(block) <= 17 and list(block.columns) == list(NAMES)
        assert list(block["origin"]) == arrow["origin"].to_pylist()[row : row + len(block)]
        first += len(block)
    assert first == N
    assert_array_equal(pickle.loads(pickle.dumps(chosen)).numbers(5, 9), chosen.numbers(5, 9))


def test_names_of_folders_are_columns(arrow, tmp_path):
    parquet.write_to_dataset(arrow.drop_columns(["day"]), tmp_path / "x", partition_cols=["origin", "hour"])
    (tmp_path / "x" / "_SUCCESS").touch()
    table = dkrr.open_table(tmp_path / "x", "dep_time,hour,origin")
    assert table.kinds == {"dep_time": "number", "hour": "number", "origin": "text"}
    found, known = table.to_pandas().sort_values("dep_time"), arrow.to_pandas().sort_values("dep_time")
    assert list(found["hour"]) == list(known["hour"]) and list(found["origin"]) == list(known["origin"])


def _written(write, table, path):
    write(table, path)
    return path


WITH_INDEX = {
    "parquet": lambda table, folder: _written(parquet.write_table, table, folder / "x.parquet"),
    "feather": lambda table, folder: _written(feather.write_feather, table, folder / "x.feather"),
    "arrow table": lambda table, folder: table,
    "record batch": lambda table, folder: table.to_batches()[0],
    "copied": lambda table, folder: dkrr.open_table(table).drop_missing("a"),
}


@pytest.mark.parametrize("where", WITH_INDEX)
def test_the_index_of_a_frame_is_a_feature_only_if_it_is_named(where, tmp_path):
    frame = FRAME.sample(frac=1, random_state=0)
    for names, indexed in {
        ("__index_level_0__",): frame,
        ("id",): frame.rename_axis("id"),
        ("__index_level_0__", "day"): frame.set_index(pd.date_range("2020", periods=N, name="day"), append=True),
        ("__null_dask_index__",): frame.rename_axis("__null_dask_index__"),
        (): frame.reset_index(drop=True),
    }.items():
        table = dkrr.open_table(WITH_INDEX[where](pa.Table.from_pandas(indexed), tmp_path))
        assert table.names == table.select("*").names == ("a", "b", "c")
        assert table.select([*names, "a"]).names == (*names, "a")


def test_an_index_without_a_name_is_one_where_other_programs_have_dropped_the_metadata():
    polars = pytest.importorskip("polars")
    table = pa.Table.from_pandas(FRAME.sample(frac=1, random_state=0))
    assert dkrr.open_table(polars.from_arrow(table)).names == ("a", "b", "c")


def test_an_index_that_is_named_is_used_by_transformers_targets_and_predictions(tmp_path):
    key = np.random.default_rng(1).permutation(N)
    frame = FRAME.assign(y=Y).set_index(pd.Index(key, name="id"))
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=40)
    path, rows = str(tmp_path / "x.parquet"), np.column_stack([key, X[:, 0]])
    known = KernelRidge(0.1, kernel="rbf", transformer="standardize").fit(rows, Y)
    for transformer in ("standardize", make_column_transformer((StandardScaler(), ["id", "a"]))):
        model = KernelRidge(0.1, kernel="rbf", transformer=transformer).fit(f"{path}::id,a", "y")
        assert list(model.feature_names_in_) == ["id", "a"]
        assert_close(model.predict(path), known.predict(rows), 1e-9)
    for transformer in (None, "standardize"):
        assert list(KernelRidge(transformer=transformer).fit(path, "y").feature_names_in_) == ["a", "b", "c"]
    assert_array_equal(with_columns(path, "id")[1].numbers(0, N)[:, 0], key)
    frame.set_index(["a", "b", "c", "y"]).to_parquet(path)
    with pytest.raises(InputError, match="X has no columns left; .* an index, .* named: a, b, c, y"):
        KernelRidge().fit(path, Y)


def test_a_column_that_pandas_writes_for_an_index_into_csv_is_named_by_a_warning(tmp_path):
    path = f"{tmp_path}/x.csv"
    for frame, name in ((FRAME, ""), (FRAME.rename_axis("Unnamed: 0"), "Unnamed: 0")):
        frame.assign(y=Y).to_csv(path)
        for use in (KernelRidge().fit, KernelRidge(transformer="standardize").fit, dkrr.plan):
            with pytest.warns(InputWarning, match=rf"X has the column '{name}', number 0 .*index=False.*columns="):
                use(path, "y")
        with pytest.warns(InputWarning, match="y has the column"):
            load_targets(path)
        assert KernelRidge().fit(f"{path}::a,b", "y").n_features_in_ == 2


@pytest.mark.parametrize("end", ["parquet", "csv", "feather"])
def test_part_files_are_in_the_order_of_their_numbers(end, tmp_path):
    write = {"parquet": parquet.write_table, "csv": csv.write_csv, "feather": feather.write_feather}[end]
    for k in range(12):
        write(pa.table({"a": [float(k)]}), tmp_path / f"part.{k}.{end}")
    for place in (tmp_path, f"{tmp_path}/*.{end}"):
        assert_array_equal(dkrr.open_table(place).numbers(0, 12)[:, 0], range(12))


def test_partitions_are_in_the_order_of_their_numbers(tmp_path):
    parquet.write_to_dataset(pa.table({"month": range(1, 13), "a": range(12)}), tmp_path, partition_cols=["month"])
    assert_array_equal(dkrr.open_table(tmp_path, "a").numbers(0, 12)[:, 0], range(12))


def test_files_of_other_file_systems_are_read(arrow):
    with pytest.importorskip("fsspec").open("memory://tables/x.parquet", "wb") as file:
        parquet.write_table(arrow, file, row_group_size=20)
    found = dkrr.open_table("memory://tables/x.parquet::dep_*").numbers(0, N)
    assert_array_equal(found, np.column_stack([arrow["dep_time"], arrow["dep_delay"]]))


@pytest.mark.parametrize("end", ["parquet", "csv", "csv.gz", "feather"])
def test_tables_in_buckets_are_read_by_obstore(end, tmp_path, memory_bucket, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    rows, at, path = pa.table({"a": np.arange(24.0), "y": Y[:24]}), place_at(memory_bucket), tmp_path / "x"
    write = {"parquet": parquet.write_table, "feather": feather.write_feather}.get(end, csv.write_csv)

    def put(place, name, part):
        write(part, path)
        place.write(name, [gzip.compress(path.read_bytes()) if end.endswith("gz") else path.read_bytes()])

    put(at, f"x.{end}", rows)
    for k in range(12):
        put(at.at("parts"), f"part.{k}.{end}", rows.slice(2 * k, 2))
    at.at("parts").write("_SUCCESS", [b""])
    for place in (f"x.{end}", "parts", f"parts/*.{end}"):
        found = dkrr.open_table(f"{memory_bucket}/{place}::a,y").numbers(0, 24)
        assert_allclose(found, np.column_stack([rows["a"], rows["y"]]), rtol=1e-12)
    model = KernelRidge().fit(f"{memory_bucket}/x.{end}::a", f"{memory_bucket}/parts::y")
    assert model.predict(f"{memory_bucket}/parts::a").shape == (24,)
    with pytest.raises(InputError, match=f"X: the path {memory_bucket}/gone.{end} does not exist"):
        KernelRidge().fit(f"{memory_bucket}/gone.{end}", "y")


def test_partitions_in_buckets_are_columns_and_arrays_are_not_tables(memory_bucket, tmp_path):
    at = place_at(memory_bucket)
    for k in range(12):
        parquet.write_table(pa.table({"a": [float(k)]}), tmp_path / "x")
        place_at(f"{memory_bucket}/months/month={k}").write("x.parquet", [(tmp_path / "x").read_bytes()])
    assert_array_equal(dkrr.open_table(f"{memory_bucket}/months").numbers(0, 12), np.arange(12)[:, None].repeat(2, 1))
    at.at("months").write("zarr.json", [b"{}"])
    assert as_table(f"{memory_bucket}/months") is None is as_table(f"{memory_bucket}/nothing")


def test_names_keep_their_order_and_patterns_that_of_the_table(arrow):
    table = dkrr.open_table(arrow)
    assert table.select("hour,*delay,hour").names == ("hour", "dep_delay", "arr_delay")
    assert table.select(["dep_?elay", "origin"]).names == ("dep_delay", "origin")
    assert table.without(["origin", "day"]).names == tuple(n for n in NAMES if n not in ("origin", "day"))


@pytest.mark.parametrize(
    ("patterns", "match"),
    [
        ("dep_dealy", "columns has 'dep_dealy', and .* has no such column; expected 'dep_delay'"),
        ("HOUR", "expected 'hour'"),
        ("x*", "expected one of 7 columns$"),
        ("hour,", "none of them empty"),
        ([], "at least one"),
    ],
)
def test_columns_that_a_table_lacks_are_named_with_the_nearest(arrow, patterns, match):
    with pytest.raises(InputError, match=match):
        dkrr.open_table(arrow).select(patterns)
    with pytest.raises(InputError, match="'origin', a column of the table that was not selected before; .* were: hour"):
        dkrr.open_table(arrow, "hour,day").select("origin")


def test_decimals_half_precision_booleans_and_whole_numbers_up_to_2_to_53_are_numbers():
    columns = {
        "d": pa.array([1, 2], pa.decimal128(5, 2)),
        "h": pa.array(np.array([1, 2], np.float16)),
        "b": [True, False],
        "n": [2**53, -(2**53)],
    }
    assert_array_equal(dkrr.open_table(pa.table(columns)).numbers(0, 2), [[1, 1, 1, 2**53], [2, 2, 0, -(2**53)]])
    for value in (2**53 + 1, -(2**53) - 1):
        with pytest.raises(InputError, match=rf"the whole number {value} in column 'n'"):
            dkrr.open_table(pa.table({"n": [1, value]})).numbers(0, 2)


def test_missing_values_are_counted_and_the_first_is_named():
    floats, nulls = {"a": [1.0] * 4, "b": [1.0, None, float("nan"), 2.0]}, {"n": pa.array([None, 3], pa.int64())}
    assert_array_equal(dkrr.open_table(pa.table(floats)).numbers(3, 4), [[1, 2]])
    for columns, match in (
        (floats, r"y has missing values \(NaN\) in column 'b' .*: 2 rows, the first is row 1"),
        (nulls, "y has missing values .* 1 row, the first is row 0"),
        ({"n": pa.nulls(2)}, "2 rows, the first is row 0"),
    ):
        table = dkrr.open_table(pa.table(columns))
        with pytest.raises(InputError, match=match):
            table.numbers(0, table.n_rows, name="y")


def test_columns_of_text_dates_and_lists_are_refused_with_what_to_do(arrow):
    category = arrow["origin"].combine_chunks().dictionary_encode()
    table = dkrr.open_table(arrow.append_column("c", category).append_column("l", pa.array([[1]] * N)))
    for column, match in {
        "origin": "of text .*expected numbers: leave it out .*OneHotEncoder.*Columns",
        "c": "of category .*OneHotEncoder",
        "day": "of date .*days since",
        "l": "of other values .*list",
    }.items():
        with pytest.raises(InputTypeError, match=f"X has the column '{column}' {match}"):
            as_rows(table.select(["hour", column]))


def test_a_stray_word_among_numbers_is_named_with_its_row(tmp_path):
    numbers, path = [f"{k},{k}" for k in range(30)], f"{tmp_path}/x.csv"
    for word in ("oops", "?"):
        Path(path).write_text("\n".join(["a,y", ",1", *numbers, f"{word},1", "other,1"]))
        match = f"X has '{re.escape(word)}' in row 31 .* of the column 'a', which holds mostly numbers; .*correct it"
        frame = dkrr.open_table(path).to_pandas()
        for X in (path, frame):
            with pytest.raises(InputTypeError, match=match):
                KernelRidge().fit(X, "y")
        with pytest.raises(InputTypeError, match=match.replace("X has", "y has")):
            KernelRidge().fit(f"{path}::y", f"{path}::a")
    Path(path).write_text("\n".join(["a,y", "AB1,1", "7,2", "8,3", "AB2,3"]))
    with pytest.raises(InputTypeError, match="column 'a' of text .*OneHotEncoder"):
        KernelRidge().fit(path, "y")


def test_incomplete_rows_are_left_out():
    columns = {"a": [1.0, None, 3.0, 4.0], "b": [1.0, 2.0, float("nan"), 4.0], "t": ["x", "y", "z", None]}
    table = dkrr.open_table(pa.table(columns))
    assert_array_equal(table.select("a").drop_missing().numbers(0, 3), [[1], [3], [4]])
    kept = table.select("a,b").drop_missing()
    assert kept.names == ("a", "b") and kept.all_names == ("a", "b", "t") and kept.n_rows == 2
    assert_array_equal(kept.numbers(0, 2), [[1, 1], [4, 4]])
    values = table.select("t").drop_missing("b,a").values()
    assert values[0] == "x" and len(values) == 2  # the other is None, or NaN in pandas 3
    with pytest.raises(InputError, match="without incomplete rows has no rows"):
        as_rows(dkrr.open_table(pa.table({"a": pa.nulls(3, pa.float64())})).drop_missing())


def test_incomplete_rows_of_files_are_left_out_and_the_others_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.data.arrow.GROUP_ROWS", 6)
    a = np.where(np.arange(20) % 4 == 3, np.nan, np.arange(20.0))  # statistics of Parquet do not tell of NaN
    parquet.write_table(
        pa.table({"a": a, "t": [None, *"abcdefghijklmnopqrs"]}), tmp_path / "x.parquet", row_group_size=5
    )
    kept = dkrr.open_table(tmp_path / "x.parquet").drop_missing()
    assert kept.to_pandas()["a"].tolist() == [k for k in range(1, 20) if k % 4 != 3]
    assert list(kept.edges) == [0, 6, 12, 14]


def test_row_groups_of_wide_tables_are_low(monkeypatch):
    monkeypatch.setattr("dkrr.data.arrow.TASK_BYTES", 8 * 3 * 10)
    kept = dkrr.open_table(pa.table({name: np.arange(25.0) for name in "abc"})).drop_missing()
    assert list(kept.edges) == [0, 10, 20, 25]


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_copies_hold_a_part_of_the_file(end, tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.data.arrow.CSV_BLOCK_BYTES", 2**15)  # pyarrow reads 32 ahead
    monkeypatch.setattr("dkrr.data.arrow.GROUP_ROWS", 2**13)
    numbers, held = pa.table({"a": np.random.default_rng(0).normal(size=2**20)}), []
    path = f"{tmp_path}/x.{end}"
    csv.write_csv(numbers, path) if end == "csv" else parquet.write_table(numbers, path, row_group_size=2**13)
    del numbers
    empty = pa.total_allocated_bytes()

    def watched(parts, height, join):
        for part in regrouped(parts, height, join):
            held.append(pa.total_allocated_bytes() - empty)
            yield part

    monkeypatch.setattr("dkrr.data.arrow.regrouped", watched)
    table = dkrr.open_table(path)
    assert (table if end == "csv" else table.drop_missing()).n_rows == 2**20 and len(held) == 2**7
    assert max(held) < 4 * 2**20, "of 8 MiB of numbers"


@pytest.mark.parametrize(("end", "write"), [("csv", csv.write_csv), ("feather", feather.write_feather)])
def test_files_with_other_columns_are_named(end, write, tmp_path):
    for name, columns in {"a": "xy", "b": "xz"}.items():
        write(pa.table({column: [1.0] for column in columns}), f"{tmp_path}/{name}.{end}")
    with pytest.raises(InputError, match=rf"b\.{end} has other columns than .*a\.{end}; expected .*'x', 'y'"):
        dkrr.open_table(tmp_path)


# Text files.


def test_later_values_decide_on_the_type_of_a_column(tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.data.arrow.CSV_BLOCK_BYTES", 64)
    lines = ["i,f,t,e,s", *(f"{k},1,{k},,a{k}" for k in range(30)), "1.5,2,late,0.5,b"]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match="column 'e' .*30 rows, the first is row 0"):
        as_rows(f"{tmp_path}/x.csv::i,f,e").read(0, 31)
    table = dkrr.open_table(tmp_path / "x.csv")
    assert table.kinds == {"i": "number", "f": "number", "t": "text", "e": "number", "s": "text"}
    assert_array_equal(table.select("i,f").numbers(29, 31), [[29, 1], [1.5, 2]])
    assert list(table.to_pandas()["t"][28:]) == ["28", "29", "late"]


def test_delimiters_marks_and_compression_are_found(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeffa;b\r\n1;2\r\n")
    (tmp_path / "b.tsv").write_text("a\tb\n1\t2\n")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    (tmp_path / "d.csv").write_bytes(b"\r\ra,b\r1,2\r")
    for name in ("a.csv", "b.tsv", "c.csv.gz", "d.csv"):
        table = dkrr.open_table(tmp_path / name)
        assert table.names == ("a", "b")
        assert_array_equal(table.numbers(0, 1), [[1, 2]])


def test_quoted_names_may_hold_delimiters(tmp_path):
    (tmp_path / "x.csv").write_text('"time, planned","time, actual"\n1,2\n')
    assert dkrr.open_table(tmp_path / "x.csv").names == ("time, planned", "time, actual")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty; expected the names"),
        (b"1,2.5\n3,4\n", "numbers in its first line"),
        (b"a,a\n1,2\n", "two columns 'a'"),
        (b"a,b\n1,2\n3\n", "cannot read .*x.csv"),
        (b"a\xff,b\n1,2\n", "not text in UTF-8"),
        (b"a,b\n", "is empty"),
        (b"a,b", "has no rows; expected the names .* and rows below"),
        (b"a" * 140_000 + b",b\n1,2\n", "field larger than field limit .* in its first line"),
        (b"a," * 2**19 + b"b\n1,2\n", "a first line of more than 1 MiB"),
    ],
    ids=range(9),
)
def test_files_that_are_not_tables_are_refused(tmp_path, content, match):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(InputError, match=match):
        as_rows(str(tmp_path / "x.csv"))


def test_the_copy_of_a_file_goes_with_its_table(arrow, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with dask.config.set({"dkrr.temporary-directory": str(scratch)}):
        table = dkrr.open_table(_csv_folder(arrow, tmp_path))
        assert table.n_rows == N and len(list(scratch.glob("dkrr-table-*/table.parquet"))) == 1
        del table
        assert not list(scratch.iterdir())


def test_arrays_and_folders_without_tables_are_not_tables(tmp_path):
    assert as_table(np.ones((2, 2))) is None and as_table(str(tmp_path)) is None
    for value in (np.ones((2, 2)), str(tmp_path / "x.zarr"), 3):
        with pytest.raises(InputError, match="path is .*; expected a table"):
            dkrr.open_table(value)


# Targets and weights by name.


def test_targets_and_weights_are_columns_of_the_table_and_leave_x(arrow):
    X, y, w = with_columns(dkrr.open_table(arrow, "dep_*,hour"), "*_delay", "hour")
    assert X.names == ("dep_time",) and y.names == ("dep_delay", "arr_delay") and w.names == ("hour",)
    with pytest.raises(InputError, match="X has no columns besides hour"):
        with_columns(dkrr.open_table(arrow, "hour"), "hour")


def test_tables_without_rows_and_columns_of_one_name_are_refused(tmp_path):
    parquet.write_table(pa.table({"a": pa.array([], "f8"), "y": pa.array([], "f8")}), tmp_path / "x.parquet")
    path = str(tmp_path / "x.parquet")
    for rows, targets in ((path, "y"), (X, f"{path}::y"), (path, Y > 0)):
        for model in (KernelLogisticRegression(), KernelLogisticRegression(transformer="standardize"), KernelRidge()):
            with pytest.raises(InputError, match="is empty: .*x.parquet has no rows"):
                model.fit(rows, targets)
    with pytest.raises(InputError, match="X is empty: .*x.parquet has no rows"):
        KernelRidge().fit(path, np.zeros(0))
    twice = pd.DataFrame(np.column_stack([X, Y]), columns=["a", "b", "y", "y"])
    with pytest.raises(InputError, match="y is 'y', and X has two columns 'y'; expected one"):
        KernelRidge().fit(twice, "y")
    with pytest.raises(InputError, match="y has two columns 'y'; expected a name for each"):
        KernelRidge().fit(X, twice["y"])
    with pytest.raises(InputError, match="the table has two columns 'a'"):
        dkrr.open_table(pa.table([[1.0], [2.0]], names=["a", "a"]))


def test_names_that_are_columns_and_paths_or_neither_are_refused(arrow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arr_delay").touch()
    with pytest.raises(InputError, match=r"a column of X and a path; expected one .*'\./arr_delay'.*'::arr_delay'"):
        with_columns(arrow, "arr_delay")
    with pytest.raises(InputError, match="y has 'arr_dealy', which is neither .* expected 'arr_delay', or a path"):
        with_columns(arrow, "arr_dealy")
    assert with_columns(arrow, "::arr_delay")[1].names == ("arr_delay",)
    for path in ("./arr_delay", "y.npy"):
        assert with_columns(arrow, path)[1] == path
    assert with_columns(np.ones((2, 2)), "arr_delay")[1] == "arr_delay"


# Fits on tables, in files and lazy, are those on arrays.

X = np.random.default_rng(0).normal(size=(N, 3))
Y = np.sin(X[:, 0]) + X[:, 2]
LABELS = np.where(Y > 0, "late", "early")
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    columns = {"a": X[:, 0], "b": X[:, 1], "y": Y, "c": X[:, 2], "class": LABELS, "w": Y**2}
    path = tmp_path_factory.mktemp("tables") / "x.parquet"
    parquet.write_table(pa.table(columns), path, row_group_size=50)
    return str(path)


@pytest.mark.parametrize("store", [False, True], ids=["memory", "store"])
def test_columns_of_a_file_are_rows_targets_and_weights(path, store, tmp_path):
    given = {"store": str(tmp_path / "run.zarr"), "tile": 50} if store else {}
    model = KernelRidge(0.1, kernel="rbf", **given).fit(f"{path}::a,b,c", "y", sample_weight="w")
    known = KernelRidge(0.1, kernel="rbf").fit(X, Y, sample_weight=Y**2)
    assert list(model.feature_names_in_) == ["a", "b", "c"] and not model.plan_.problem.x_in_memory
    predictions = model.predict(path)
    assert predictions.chunks == ((N,),) and hasattr(predictions, "compute")
    assert_allclose(predictions, known.predict(X), rtol=0, atol=1e-9)
    assert model.score(path, "y") == pytest.approx(known.score(X, Y), abs=1e-9)


def test_columns_are_found_by_name_also_by_a_loaded_model(path, tmp_path):
    model = KernelRidge(0.1, kernel="rbf").fit(f"{path}::c,a", "y")
    dkrr.save(model, tmp_path / "m.zarr")
    expected = KernelRidge(0.1, kernel="rbf").fit(X[:, [2, 0]], Y).predict(X[:, [2, 0]])
    for fitted in (model, dkrr.load(tmp_path / "m.zarr")):
        assert_close(fitted.predict(path), expected, 1e-10)
        with pytest.raises(
            InputError, match="no column 'c', which the model was fitted with; expected one of 2 columns"
        ):
            fitted.predict(pa.table({"a": [1.0], "b": [2.0]}))


def test_a_column_of_text_is_classes_but_not_targets(path):
    model = KernelLogisticRegression(0.1, kernel="rbf").fit(f"{path}::a,b,c", "class")
    known = KernelLogisticRegression(0.1, kernel="rbf").fit(X, LABELS)
    assert list(model.classes_) == ["early", "late"]
    assert_allclose(model.predict_proba(path), known.predict_proba(X), rtol=0, atol=1e-9)
    assert model.score(path, "class") == known.score(X, LABELS)
    with pytest.raises(InputTypeError, match="y is the column 'class' of text.*KernelLogisticRegression"):
        KernelRidge().fit(f"{path}::a,b,c", "class")


def test_kernels_of_text_plans_and_gram_matrices_take_a_file(path):
    kernel = Columns(BagOfWords(), "class") + Columns(RBF(gamma=1.0), ["a", "b"])
    frame, model = dkrr.open_table(path).to_pandas(), KernelRidge(0.1, kernel=kernel).fit(path, "y")
    assert_close(model.predict(path), KernelRidge(0.1, kernel=kernel).fit(frame, Y).predict(frame), 1e-10)
    assert dkrr.gram(path, kernel=kernel).shape == (N, N)
    assert dkrr.plan(path, "y", kernel=kernel).problem.n == N
    assert dkrr.plan(f"{path}::a,b,c", "class", loss="logistic").problem.loss == "logistic"


def test_targets_of_another_file_are_mapped_if_they_are_large(tmp_path, monkeypatch):
    parquet.write_table(pa.table({"y": Y, "z": -Y}), tmp_path / "y.parquet", row_group_size=50)
    model = KernelRidge(0.1).fit(X, f"{tmp_path}/y.parquet")
    assert_allclose(model.dual_coef_[:, 1], -model.dual_coef_[:, 0])
    assert KernelRidge(0.1).fit(X, f"{tmp_path}/y.parquet::z").dual_coef_.shape == (N,)
    monkeypatch.setattr("dkrr.data.open.MAX_HELD_TARGET_BYTES", 100)
    targets = load_targets(str(tmp_path / "y.parquet"))
    assert is_mapped(targets) and np.array_equal(targets, np.column_stack([Y, -Y]))


def test_frames_of_pandas_have_targets_by_name_and_errors_that_name_columns():
    frame, known = FRAME.assign(y=Y, w=Y**2), KernelRidge(0.1).fit(X, Y, sample_weight=Y**2)
    model = KernelRidge(0.1).fit(frame, "y", sample_weight="w")
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert_close(model.dual_coef_, known.dual_coef_, 1e-10)
    assert model.score(FRAME.assign(y=Y), "y") == pytest.approx(known.score(X, Y))
    frame = FRAME.copy()
    frame.loc[7, "b"] = np.nan
    with pytest.raises(InputError, match=r"row 7, column 1 \(counted from 0\), which is 'b'; expected"):
        KernelRidge(kernel="rbf").fit(frame, Y)
    with pytest.raises(InputTypeError, match="in column 'day'"):
        KernelRidge().fit(FRAME.assign(day=pd.Timestamp("2013-01-01")), Y)
    for fitted, dtype in ((KernelRidge(), "object"), (KernelLogisticRegression(), "category")):
        with pytest.raises(InputTypeError, match="X has the column 'class' of .*OneHotEncoder"):
            fitted.fit(FRAME.assign(**{"class": pd.Series(LABELS, dtype=dtype)}), Y > 0)


@pytest.mark.parametrize("kind", [KernelRidge, KernelLogisticRegression])
def test_a_lazy_frame_gives_the_model_of_pandas_and_refuses_other_columns(kind):
    lazy = pytest.importorskip("dask.dataframe").from_pandas(FRAME, npartitions=3)
    y, method = (lazy["a"], "predict") if kind is KernelRidge else (lazy["a"] > lazy["c"], "predict_proba")
    known, model = kind(0.1, kernel="rbf").fit(FRAME, y.compute()), kind(0.1, kernel="rbf").fit(lazy, y)
    assert list(model.feature_names_in_) == ["a", "b", "c"] and model.n_features_in_ == 3
    for rows in (lazy, FRAME):
        assert_allclose(getattr(model, method)(rows), getattr(known, method)(FRAME), rtol=0, atol=1e-12)
    for wrong in (lazy[["c", "b", "a"]], lazy[["a", "b"]], lazy.rename(columns={"b": "other"})):
        with pytest.raises(ValueError, match="feature names should match"):
            getattr(model, method)(wrong)
    kernel = Columns(RBF(), ["a", "b"]) + Columns(BagOfWords(), "c")
    with pytest.raises(InputTypeError, match=r"X\.compute\(\)"):
        kind(kernel=kernel).fit(lazy, y.compute())


@pytest.mark.parametrize("heights", [[3], [3, 1], [3, 2, 1]])
def test_kept_columns_with_other_rows_than_the_predictions_are_an_error(heights):
    blocks = [np.zeros(3), np.zeros(2)]
    assert len([*beside(blocks, [[np.zeros(3)], [np.zeros(2)]])]) == len([*beside(blocks, None)]) == 2
    with pytest.raises(InputError, match="keep has other rows than"):
        list(beside(blocks, [[np.zeros(height)] for height in heights]))


def test_texts_of_csv_may_have_lines_but_a_quote_must_be_closed(tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.data.arrow.CSV_BLOCK_BYTES", 64)  # texts lie across the blocks that are read
    path, texts = tmp_path / "x.csv", [f'line one of "{k}",\nline two\r\n{k * "x"}' for k in range(20)]
    pd.DataFrame({"a": np.arange(20.0), "text": texts}).to_csv(path, index=False)
    assert dkrr.open_table(path).to_pandas()["text"].tolist() == texts
    with path.open("a") as file:
        file.write('20.0,"one\n21.0,two\n')
    with pytest.raises(InputError, match="a quote in row 20 .* not closed"):
        dkrr.open_table(path)
