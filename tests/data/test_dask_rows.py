"""Rows of Dask: frames are read as they were counted, and blocks are what Dask says of them, or refused."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.data import as_rows, load_labels, load_targets
from dkrr.errors import InputError, InputTypeError
from tests.oracles import assert_close

pd = pytest.importorskip("pandas")
dd = pytest.importorskip("dask.dataframe")
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask, with pandas 3.1

N = 48
RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(RANDOM.normal(size=(N, 3)), columns=list("abc")).assign(
    y=lambda rows: rows["a"] + np.sin(rows["b"]), k=np.arange(N)
)
NAMES = ["a", "b", "c"]


def mostly_at_night(kinds, *fast):
    """Parameters of a test, of which only some are in the fast suite."""
    return [kind if kind in fast else pytest.param(kind, marks=pytest.mark.nightly) for kind in kinds]


LINEAR = {"kernel": "linear", "form": "primal", "transformer": "standardize"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Parquet in four files, of which Dask joins more the fewer columns it reads."""
    place = tmp_path_factory.mktemp("frames")
    dd.from_pandas(FRAME, npartitions=4).to_parquet(place / "p", write_index=False)
    dd.from_pandas(FRAME, npartitions=4).to_csv(f"{place}/c-*.csv", index=False)
    return place


def read(folder, **settings):
    return dd.read_parquet(folder / "p", **settings)


FRAMES = {
    "parquet": read,
    "columns": lambda folder: read(folder, columns=[*NAMES, "y"]),
    "filters": lambda folder: read(folder, filters=[("a", ">", 0)]),
    "assign": lambda folder: read(folder).assign(c=lambda rows: rows["a"] * rows["c"]),
    "merge with pandas": lambda folder: read(folder).merge(FRAME[["k"]].assign(z=1.0), on="k"),
    "repartition": lambda folder: read(folder).repartition(npartitions=3),
    "empty partitions": lambda folder: (rows := read(folder))[rows["k"] >= N - 20],
    "some partitions": lambda folder: read(folder).partitions[1:3],
    "concatenated": lambda folder: dd.concat([read(folder), read(folder)]),
    "groupby": lambda folder: read(folder).assign(g=lambda rows: rows["k"] // 2).groupby("g").mean(),
    "csv": lambda folder: dd.read_csv(f"{folder}/c-*.csv"),
}


@pytest.mark.parametrize("kind", mostly_at_night(FRAMES, "parquet", "empty partitions"))
def test_frames_of_dask_give_the_models_and_predictions_of_pandas(kind, folder, tmp_path):
    frame = FRAMES[kind](folder)
    table = frame.compute()
    for settings in ({"kernel": "rbf", "alpha": 1e-2}, LINEAR):
        expected = KernelRidge(**settings).fit(table[NAMES], table["y"])
        model = KernelRidge(**settings).fit(frame[[*NAMES, "y"]], "y")
        assert_close(model.predict(FRAME[NAMES]), expected.predict(FRAME[NAMES]), 1e-10)
        assert_close(np.asarray(expected.predict(frame[NAMES])), expected.predict(table[NAMES]), 1e-10)
        assert dkrr.predict_to(expected, frame[NAMES], tmp_path / "p.npy", overwrite=True) == (len(table),)
        assert_close(np.load(tmp_path / "p.npy"), expected.predict(table[NAMES]), 1e-10)


@pytest.mark.parametrize("n_parts", [4, 2])
def test_a_range_of_the_index_may_have_whole_partitions(n_parts):
    frame = dd.from_pandas(FRAME, npartitions=4).loc[5:40].repartition(npartitions=n_parts)
    assert_close(as_rows(frame[NAMES]).read(0, 36), FRAME[NAMES][5:41].to_numpy(), 0.0)


def test_every_entrance_takes_a_frame_of_several_files(folder):
    frame = read(folder)
    X, y = frame[NAMES], frame["y"]
    model = KernelRidge(kernel="rbf").fit(FRAME[NAMES], FRAME["y"])
    assert model.score(X, y) == pytest.approx(model.score(FRAME[NAMES], FRAME["y"]))
    assert dkrr.plan(X, y).problem.n == N
    assert_close(np.asarray(dkrr.gram(X)), np.asarray(dkrr.gram(FRAME[NAMES].to_numpy())), 1e-12)
    weights = frame["a"].abs()
    for kind, targets in ((KernelRidge, "y"), (KernelRidgeCV, "y"), (KernelLogisticRegression, "positive")):
        lazy, known = (rows.assign(positive=rows["y"] > 0)[targets] for rows in (frame, FRAME))
        found = kind(kernel="rbf").fit(X, lazy, sample_weight=weights)
        expected = kind(kernel="rbf").fit(FRAME[NAMES], known, sample_weight=FRAME["a"].abs())
        assert_close(found.dual_coef_, expected.dual_coef_, 1e-10)
    unknown = X.to_dask_array()
    with pytest.raises(InputError, match=r"unknown chunk sizes; .* call X\.compute_chunk_sizes"):
        model.predict(unknown)
    assert_close(np.asarray(model.predict(unknown.compute_chunk_sizes())), model.predict(FRAME[NAMES]), 1e-12)
    for empty in (X[X["a"] > 100], X[[]]):
        with pytest.raises(InputError, match="0 sample|is empty"):
            KernelRidge().fit(empty, y)
        with pytest.raises(InputError, match=r"X has shape \((0, 3|48, 0)\)"):
            KernelRidge(transformer="standardize").fit(empty, y)


@pytest.mark.nightly
def test_workers_read_the_partitions_that_were_counted(folder, ambient_workers, tmp_path):
    frame = read(folder)
    for settings in ({"kernel": "rbf"}, LINEAR):
        expected = KernelRidge(**settings).fit(FRAME[NAMES], FRAME["y"])
        with dask.config.set(scheduler="distributed"):
            dkrr.predict_to(expected, frame[NAMES], tmp_path / "p.npy", overwrite=True)
        assert_close(np.load(tmp_path / "p.npy"), expected.predict(FRAME[NAMES]), 1e-10)


def test_a_partition_with_other_rows_than_were_counted_is_named():
    heights = [N // 2, N // 2]
    frame = dd.from_map(lambda k: FRAME[NAMES].iloc[: heights[k]], [0, 1], meta=FRAME[NAMES].iloc[:0])
    models = [KernelRidge(kernel="linear", transformer=each) for each in (None, "standardize")]
    predictions = [model.fit(FRAME[NAMES], FRAME["y"]).predict(frame) for model in models]
    heights[1] -= 5
    for lazy in predictions:
        with pytest.raises(InputError, match=r"X is a Dask DataFrame whose partition 1 .* has 19 rows, and had 24"):
            lazy.compute()


SHUFFLED = {
    "merge": lambda rows: rows.merge(dd.from_pandas(FRAME[["k"]], npartitions=2), on="k", broadcast=False),
    "set_index": lambda rows: rows.set_index("y", drop=False),
    "shuffle": lambda rows: rows.shuffle("k"),
}


@pytest.mark.parametrize("kind", mostly_at_night(SHUFFLED, "merge"))
def test_rows_in_an_order_that_dask_does_not_keep_are_refused(kind, folder):
    rows = SHUFFLED[kind](read(folder))
    model = KernelRidge(kernel="linear").fit(FRAME[NAMES], FRAME["y"])
    for use in (
        lambda: KernelRidge().fit(rows[[*NAMES, "y"]], "y"),
        lambda: KernelRidge(transformer="standardize").fit(rows[NAMES], FRAME["y"]),
        lambda: KernelRidge().fit(FRAME[NAMES], rows["y"]),
        lambda: KernelRidge().fit(FRAME[NAMES], FRAME["y"], sample_weight=rows["k"]),
        lambda: KernelLogisticRegression().fit(FRAME[NAMES], rows["y"] > 0),
        lambda: model.predict(rows[NAMES]),
        lambda: model.score(FRAME[NAMES], rows["y"]),
        lambda: dkrr.gram(rows[NAMES]),
    ):
        with pytest.raises(InputError, match=r"is a Dask DataFrame whose rows are shuffled .* persist\(\)"):
            use()
    kept = rows.persist()
    found = KernelRidge(kernel="linear").fit(kept[NAMES], kept["y"])
    assert_close(found.predict(FRAME[NAMES]), model.predict(FRAME[NAMES]), 1e-10)


TYPES = {
    "Float64": lambda table: table.astype("Float64"),
    "double[pyarrow]": lambda table: table.astype("double[pyarrow]"),
    "Int64": lambda table: (table * 10).round().astype("Int64"),
    "flags beside numbers": lambda table: table.assign(b=table["b"] > 0),
    "several": lambda table: table.assign(a=table["a"].astype("Float64"), b=(table["b"] > 0).astype("boolean")),
}


@pytest.mark.parametrize("kind", mostly_at_night(TYPES, "double[pyarrow]", "several"))
def test_columns_of_any_numbers_are_those_of_pandas(kind):
    table = TYPES[kind](FRAME[NAMES])
    frame = dd.from_pandas(table, npartitions=3)
    expected = KernelRidge(kernel="rbf").fit(table, FRAME["y"])
    assert_close(KernelRidge(kernel="rbf").fit(frame, FRAME["y"]).dual_coef_, expected.dual_coef_, 1e-10)
    assert_close(np.asarray(expected.predict(frame)), expected.predict(table), 1e-12)
    if kind == "flags beside numbers":
        return
    table.loc[30, "b"] = pd.NA
    with pytest.raises(InputError, match="NaN: the first bad value is in row 30, column 1"):
        KernelRidge().fit(dd.from_pandas(table, npartitions=3), FRAME["y"])


def test_whole_numbers_that_are_not_exact_beside_missing_ones_are_refused():
    table = pd.DataFrame({"a": pd.array([2**53 + 1, None, 3], dtype="Int64"), "b": [1.0, 2.0, 3.0]})
    with pytest.raises(InputError, match="a partition of X has the whole number 9007199254740993"):
        as_rows(dd.from_pandas(table, npartitions=1)).read(0, 3)


X, Y = FRAME[NAMES].to_numpy(), FRAME["y"].to_numpy()
BLOCKS = {
    "masked": (lambda block: np.ma.masked_greater(block, 1.5), "{} has masked entries"),
    "complex": (lambda block: block + 1j, r"{}.blocks\[.*\] has dtype complex128, and the Dask array says float64"),
    "objects": (lambda block: block.astype(object), r"{}.blocks\[.*\] has dtype object"),
    "text": (lambda block: block.astype(str), r"{}.blocks\[.*\] has dtype <U"),
    "fewer rows": (lambda block: block[:5], r"{}.blocks\[.*\] has shape \(5,.*, and the Dask array says \(12,"),
    "more rows": (lambda block: np.concatenate([block, block]), r"{}.blocks\[.*\] has shape \(24,"),
    "other dimensions": (lambda block: block[..., None], r"{}.blocks\[.*\] has shape \(12,"),
    "nothing": (lambda block: None, r"{}.blocks\[.*\] has shape \(\)"),
    "whole numbers": (lambda block: np.full(block.shape, 2**53 + 1), r"{}.blocks\[.*\] has dtype int64"),
}


def said(convert, values, dtype=float):
    """Dask array in blocks of 12 rows that says what it is, whatever a function makes of them."""
    lazy = da.from_array(values, chunks=(12, *values.shape[1:]))
    return lazy.map_blocks(convert, dtype=dtype, meta=np.empty((0,) * values.ndim, dtype))


@pytest.mark.parametrize("kind", mostly_at_night(BLOCKS, "masked", "complex", "more rows"))
def test_blocks_that_are_not_what_dask_says_are_refused(kind):
    convert, message = BLOCKS[kind]
    model = KernelRidge(kernel="rbf").fit(X, Y)
    for use in (
        lambda rows: KernelRidge(kernel="rbf").fit(rows, Y),
        lambda rows: KernelRidge(kernel="rbf", transformer="standardize").fit(rows, Y),
        lambda rows: model.predict(rows).compute(),
        lambda rows: dkrr.gram(rows).compute(),
    ):
        with pytest.raises(InputError, match=message.format("X")):
            use(said(convert, X))
    targets = said(convert, Y + 1)
    for name, use in (
        ("y", lambda: KernelRidge(kernel="rbf").fit(X, targets)),
        ("y", lambda: load_labels(targets)),
        ("sample_weight", lambda: KernelRidge(kernel="rbf").fit(X, Y, sample_weight=targets)),
    ):
        with pytest.raises(InputError, match=message.format(name)):
            use()


@pytest.mark.parametrize(
    ("dtype", "values", "other"),
    [
        ("i4", np.arange(6), 2**40),
        ("u8", np.arange(6), -1),
        ("f4", np.arange(6.0), 0.1),
        ("i8", np.array([1.0, 2.0]), np.nan),
        ("f8", np.arange(6), 2**53 + 1),
    ],
)
def test_blocks_of_another_type_are_taken_if_each_number_is_one_of_the_promised_type(dtype, values, other):
    assert_close(as_rows(said(np.asarray, values, dtype)).read(0, len(values))[:, 0], values, 0.0)
    values[-1] = other
    with pytest.raises(InputTypeError, match="which does not hold its values"):
        as_rows(said(lambda _: values, values, dtype)).read(0, 2)


def test_blocks_of_sparse_matrices_are_compared_too():
    lazy = da.from_array(X, chunks=(12, 3)).map_blocks(sp.csr_matrix, dtype=float, meta=sp.csr_matrix((0, 0)))
    model = KernelRidge(kernel="rbf").fit(lazy, Y)
    expected = KernelRidge(kernel="rbf").fit(X, Y).predict(X, return_std=True)
    assert_close(model.predict(X, return_std=True)[1], expected[1], 1e-10)


def test_blocks_that_their_dtype_holds_and_masks_that_hide_nothing_are_taken():
    for convert in (np.float32, np.ma.asarray, sp.csr_array, pd.DataFrame):
        assert_close(
            as_rows(said(convert, X)).read(5, 30), convert(X)[5:30] if convert is np.float32 else X[5:30], 1e-15
        )
    with pytest.raises(InputTypeError, match="has dtype float64, and the Dask array says int64"):
        as_rows(said(np.asarray, X, int)).read(0, 12)
    masked = da.from_array(np.ma.masked_greater(Y, 1.0), chunks=12)
    with pytest.raises(InputTypeError, match="y has masked entries"):
        load_targets(masked[masked < 5])  # of unknown length


def test_a_linear_fit_with_an_intercept_takes_csr_blocks_without_weights():
    X = sp.random_array((60, 5), density=0.4, format="csr", rng=np.random.default_rng(0))
    y = np.arange(60.0)
    lazy = da.from_array(X.toarray(), chunks=(20, 5)).map_blocks(sp.csr_array)
    expected = KernelRidge(kernel="linear", fit_intercept=True).fit(X, y).predict(X)
    assert_close(KernelRidge(kernel="linear", fit_intercept=True).fit(lazy, y).predict(X), expected, 1e-12)
