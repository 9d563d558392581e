"""What only some containers have: memory maps, layouts of Zarr, HDF5, xarray, sparse rows, and copies in a store."""

import pickle
from functools import partial

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from zarr.codecs import BytesCodec

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.cluster import Meter
from dkrr.data import MemoryRows, as_rows, load_array, load_labels, load_targets, write_rows
from dkrr.data.arrays import SCRATCH_BYTES, PlainRows, is_mapped
from dkrr.data.rows import dense, n_bytes
from dkrr.errors import InputError, InputTypeError, StoreError
from dkrr.fitting.requests import problem_of_rows
from dkrr.kernels import Linear
from dkrr.linalg.passes import Segment
from dkrr.store.description import SPARSE_CHUNK_ENTRIES
from tests.contracts.test_rows import ranges
from tests.inputs import numbers, table
from tests.pairs import every_pair
from tests.stores import place


def csr(counts, width):
    """Rows of ones with so many entries each, from the first column on."""
    indices = np.concatenate([np.arange(count) for count in counts])
    pointers = np.concatenate([[0], np.cumsum(counts)])
    return sp.csr_array((np.ones(len(indices)), indices, pointers), shape=(len(counts), width))


def test_arrays_in_memory_are_not_copied():
    X = numbers()
    assert np.shares_memory(as_rows(X).read(3, 9, slice(1, 4)), X)


# Zarr.


def plain(folder, X, chunks, **settings):
    """An uncompressed Zarr array, whose chunks are read as files."""
    array = zarr.create_array(folder, shape=X.shape, chunks=chunks, dtype=X.dtype, **({"compressors": None} | settings))
    array[...] = X
    return array


LAYOUTS = {
    "v3": {},
    "v2": {"zarr_format": 2},
    "float32": {},
    "bytes": {},
    "compressed": {"compressors": "auto"},
    "big-endian": {"serializer": BytesCodec(endian="big")},
    "sharded": {"shards": (12, 5)},
    "column order": {"zarr_format": 2, "order": "F"},
    "split rows": {},
    "padded rows": {},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@given(some_rows=ranges(23), some_columns=ranges(5))
def test_every_layout_of_chunks_is_read(layout, tmp_path_factory, some_rows, some_columns):
    X = numbers((23, 5)).astype({"float32": "float32", "bytes": "int8"}.get(layout, "float64"))
    chunks = {"split rows": (6, 3), "padded rows": (6, 7)}.get(layout, (6, 5))
    rows = as_rows(plain(tmp_path_factory.mktemp("chunks") / "x", X, chunks, **LAYOUTS[layout]))
    assert isinstance(rows, PlainRows) == (layout in ("v3", "v2", "float32", "bytes"))
    for columns in (slice(*some_columns), slice(None)):
        read = rows.read(*some_rows, columns)
        assert_array_equal(read, X[slice(*some_rows), columns])
        assert read.dtype == X.dtype


def test_chunks_that_end_too_early_or_are_gone_are_errors(tmp_path):
    plain(tmp_path / "x", numbers((23, 5)), (6, 5))
    rows = as_rows(str(tmp_path / "x"))
    with (tmp_path / "x" / "c" / "2" / "0").open("r+b") as file:
        file.truncate(6 * 5 * 8 - 1)
    (tmp_path / "x" / "c" / "1" / "0").unlink()
    for where, text in ((16, "ends too early"), (6, "is gone")):
        with pytest.raises(StoreError, match=text):
            rows.read(where, where + 2)


def test_memory_beside_a_read_is_that_of_decoded_chunks(tmp_path):
    array = zarr.create_array(tmp_path / "x", shape=(101, 13), chunks=(17, 5), dtype="float32")
    array[...] = 1.0
    assert as_rows(array).read_overhead_bytes == 4 * 17 * 5 * 4
    files = plain(tmp_path / "y", numbers((101, 13)), (17, 13))
    assert as_rows(files).read_overhead_bytes == SCRATCH_BYTES, "nothing but what is asked for"
    assert MemoryRows(numbers()).read_overhead_bytes == 0


def test_arrays_are_shared_unless_only_this_process_can_open_them(tmp_path):
    url = "memory://test-open/b"
    array = zarr.create_array(url, data=numbers(), overwrite=True)
    for each in (url, array):
        assert isinstance(as_rows(each), MemoryRows), "another process would not find it"
        assert_array_equal(as_rows(each).read(0, 23), numbers())
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        rows = as_rows(zarr.create_array(store, name="x", data=numbers()))
        assert not rows.is_shared and not rows.is_in_memory
        assert_array_equal(rows.read(3, 9), numbers()[3:9])


@pytest.mark.parametrize("as_text", [True, False], ids=["URL", "open array"])
def test_arrays_of_other_file_systems_travel_by_name(tmp_path, as_text):
    X = table("zarr", tmp_path).array
    url = f"local://{tmp_path}/x.zarr"  # fsspec's, which stands in for one of a network
    rows = as_rows(url if as_text else zarr.open_array(url, mode="r"))
    assert rows.is_shared
    assert_array_equal(pickle.loads(pickle.dumps(rows)).read(2, 23), X[2:])


@pytest.mark.parametrize("kind", ["zarr", "zarr group path", "npy", "staged", "staged csr"])
def test_shared_rows_say_where_every_process_reads_them(kind, tmp_path):
    url = as_rows(table(kind, tmp_path).handed_in).url
    assert url.startswith(f"{tmp_path}/"), "a fit asks its workers whether they see it"


def test_a_group_names_its_arrays(tmp_path):
    group = zarr.create_group(tmp_path / "g.zarr")
    with pytest.raises(InputTypeError, match="X is a Zarr group; expected an array, of which the group has none"):
        as_rows(group)
    group.create_array("x", shape=(2, 2), dtype="f8")
    group.create_array("more/y", shape=(2,), dtype="f8")
    for call in (lambda X: KernelRidge().fit(X, [1, 2]), dkrr.plan, dkrr.gram):
        with pytest.raises(InputTypeError, match=r"X is a Zarr group; .* such as group\['more/y'\], group\['x'\]"):
            call(group)
    with pytest.raises(InputTypeError, match="y is a Zarr group"):
        KernelRidge().fit(np.ones((2, 1)), group)
    with pytest.raises(InputError, match=r"the array itself, such as .*/g\.zarr/more/y, .*/g\.zarr/x$"):
        as_rows(f"{tmp_path}/g.zarr")


# HDF5 and xarray.


@pytest.fixture
def hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["a/y"], file["text"] = numbers(), numbers()[:, 0], np.array([b"late", b"early"])
        file["records"] = np.zeros(3, [("a", float), ("b", int)])
    return f"{tmp_path}/x.h5"


def test_open_data_sets_of_hdf5_and_their_targets_and_labels_are_read(hdf5, monkeypatch):
    import h5py

    assert_array_equal(load_array(f"{hdf5}::a/y"), numbers()[:, 0])
    with h5py.File(hdf5, "r") as file:
        assert_array_equal(as_rows(file["x"]).take(np.array([5, 2, 5])), numbers()[[5, 2, 5]])
        assert not KernelRidge(0.1).fit(file["x"], file["a/y"]).plan_.problem.x_in_memory
        assert_array_equal(load_labels(file["text"]), [b"late", b"early"])
    monkeypatch.setattr("dkrr.data.open.MAX_HELD_TARGET_BYTES", 10)
    targets = load_targets(f"{hdf5}::x")
    assert is_mapped(targets) and np.array_equal(targets, numbers())


@pytest.mark.parametrize(
    ("member", "match"),
    [
        ("", r"no data set ''; expected one of x\.h5::a/y, x\.h5::records, x\.h5::text, x\.h5::x"),
        ("::a", "no data set 'a'"),
        ("::records", "has records .* expected a matrix of numbers"),
        ("::text", "X has dtype .*expected numbers"),
    ],
)
def test_what_is_not_a_matrix_of_numbers_in_hdf5_is_refused(hdf5, member, match):
    with pytest.raises(InputError, match=match):
        as_rows(hdf5 + member)


def test_xarrays_stay_where_they_are_and_datasets_are_refused_with_what_to_give(tmp_path):
    xarray = pytest.importorskip("xarray")
    X = numbers()
    dataset = xarray.Dataset({"a": ("row", X[:, 0]), "b": ("row", X[:, 2]), "y": ("row", X[:, 3] + 1)})
    dataset.to_netcdf(tmp_path / "x.nc", engine="scipy")
    with xarray.open_dataset(tmp_path / "x.nc", engine="scipy") as opened:
        rows = as_rows(opened["a"])
        assert not rows.is_in_memory and not opened["a"].variable._in_memory
        assert_array_equal(rows.read(2, 5), X[2:5, :1])
    expected = KernelRidge(0.1).fit(X[:, [0, 2]], X[:, 3] + 1).predict(X[:, [0, 2]])
    columns = dataset[["a", "b"]].to_dataarray().T
    np.testing.assert_allclose(KernelRidge(0.1).fit(columns, dataset["y"]).predict(columns), expected, atol=1e-10)
    for rows, y in ((dataset, "y"), (X, dataset)):
        with pytest.raises(InputTypeError, match=r"[Xy] is a Dataset of xarray; expected .*to_dataarray\(\)\.T"):
            KernelRidge(0.1).fit(rows, y)
    with pytest.raises(InputError, match=r"x\.nc is a netCDF file; expected .*xarray\.open_dataset\("):
        as_rows(f"{tmp_path}/x.nc::x")


# Attributes by which numbers stand for others.


@pytest.fixture(params=["zarr", "zarr path", "hdf5", "hdf5 path"])
def with_attributes(request, tmp_path):
    """What makes an array of whole numbers with attributes, as an object or as a path."""
    h5py, kind, X = pytest.importorskip("h5py"), request.param, np.arange(12, dtype="i2").reshape(6, 2)
    opened = []

    def make(**attributes):
        if kind.startswith("zarr"):
            array = zarr.create_array(tmp_path / "x.zarr", data=X, fill_value=4, attributes=attributes, overwrite=True)
            return array if kind == "zarr" else tmp_path / "x.zarr"
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.create_dataset("x", data=X, fillvalue=4, scaleoffset=0).attrs.update(attributes)
        if kind == "hdf5 path":
            return f"{tmp_path}/x.h5::x"
        opened.append(h5py.File(tmp_path / "x.h5"))
        return opened[-1]["x"]

    yield make
    for file in opened:
        file.close()


@pytest.mark.parametrize(
    "attributes",
    [{"scale_factor": 0.01}, {"add_offset": -1}, {"_FillValue": 4}, {"missing_value": [4, 5]}, {"_Unsigned": "true"}],
    ids=str,
)
def test_packed_numbers_are_refused_with_what_decodes_them(with_attributes, attributes):
    packed, X, y = with_attributes(**attributes), np.eye(6, 2), np.arange(6.0)
    of = next(iter(attributes))
    for name, use in {
        "X": lambda: KernelRidge().fit(packed, y),
        "y": lambda: KernelRidge().fit(X, packed),
        "sample_weight": lambda: KernelRidge().fit(X, y, sample_weight=packed),
    }.items():
        with pytest.raises(InputError, match=f"^{name} has the attribute {of} = .*; expected .* open it with xarray"):
            use()
    with pytest.raises(InputError, match="^X has the attribute"):
        KernelRidge().fit(X, y).predict(packed)


def test_attributes_that_change_no_number_are_taken(with_attributes):
    same = with_attributes(scale_factor=1, add_offset=0.0, _FillValue=np.nan, _Unsigned="false", units="K")
    assert_array_equal(as_rows(same).read(0, 6), np.arange(12).reshape(6, 2))


@pytest.mark.parametrize("version", [2, 3])
def test_xarray_says_itself_what_it_has_decoded(tmp_path, version):
    xarray = pytest.importorskip("xarray")
    X = numbers((6, 2)).round()
    dataset = xarray.Dataset({"packed": (("row", "column"), X), "plain": (("row", "column"), X)})
    encoding = {"packed": {"dtype": "i2", "_FillValue": -9999}}
    dataset.to_zarr(tmp_path / "x.zarr", zarr_format=version, encoding=encoding, consolidated=False)
    opened = partial(xarray.open_zarr, tmp_path / "x.zarr", consolidated=False)
    for raw in (tmp_path / "x.zarr" / "packed", opened(mask_and_scale=False)["packed"]):
        with pytest.raises(InputError, match="X has the attribute _FillValue = -9999"):
            KernelRidge().fit(raw, X[:, 0])
    for array in (opened()["packed"], tmp_path / "x.zarr" / "plain"):
        assert_array_equal(as_rows(array).read(0, 6), X)


# Dask.


def test_unknown_chunk_sizes_are_refused():
    X = da.from_array(numbers(), chunks=(5, -1))
    unknown = X[X[:, 0] > 0]
    with pytest.raises(InputError, match=r"unknown chunk sizes; .* call X\.compute_chunk_sizes"):
        as_rows(unknown)
    assert as_rows(unknown.compute_chunk_sizes()).is_lazy


# Sparse rows.


def test_entries_given_twice_are_summed_and_the_users_matrix_is_not_changed():
    # Unsorted, with an entry given twice, and in memory that cannot be written.
    X = sp.csr_array((np.array([1.0, 2.0, 3.0, 4.0]), np.array([2, 0, 1, 1]), np.array([0, 2, 4])), shape=(2, 3))
    before = pickle.dumps(X)
    for part in (X.data, X.indices, X.indptr):
        part.flags.writeable = False
    block = as_rows(X).read(0, 2)
    assert_array_equal(dense(block), [[2, 0, 1], [0, 7, 0]])
    assert block.nnz == 3 and pickle.dumps(X) == before


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=40), data=st.data())
def test_plans_bound_the_bytes_of_any_rows(counts, data):
    n, pointers = len(counts), np.concatenate([[0], np.cumsum(counts)])
    rows = MemoryRows(csr(counts, 9))
    problem, k = problem_of_rows(rows, Linear(), n_targets=1), data.draw(st.integers(1, n))
    width, heaviest = 8 + rows.array.indices.itemsize, sorted(counts)[-k:]
    assert width * sum(heaviest) + 16 * k <= problem.largest_rows_bytes(k) <= 2 * width * sum(heaviest) + 32 * k
    entries = data.draw(st.integers(1, 30))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dkrr.data.rows.SPARSE_BLOCK_ENTRIES", entries)
        patch.setattr("dkrr.linalg.passes.SPARSE_BLOCK_ENTRIES", entries)
        segment = Segment(rows, 0, n, k, np.ones((n, 1)))
        for stream in (segment.blocks(Meter()), segment.strips(Meter(), 1)):
            read = [where for where, block in stream if n_bytes(block) <= problem.bytes_of_block(k)]
            assert [row for where in read for row in range(where.start, where.stop)] == list(range(n))
    most = max(int(pointers[i + k] - pointers[i]) for i in range(n - k + 1))
    assert width * most + 16 * k <= k * problem.row_bytes_in_strips(k)


# Copies in a store.


@pytest.mark.parametrize("n", [2 * SPARSE_CHUNK_ENTRIES // 32 + 1000, 5])
def test_copies_of_many_rows_and_of_rows_without_a_value(tmp_path, n):
    # More rows than one pass reads, among them a whole pass without a value; and no value at all.
    entries = ([1.5, 2.5, 3.5], ([0, n - 3, n - 1], [4, 0, 2])) if n > 5 else ([], ([], []))
    X = sp.coo_array(entries, shape=(n, 5), dtype=float).tocsr()
    copy = write_rows(as_rows(X), place(tmp_path / "copy"))
    assert copy.shape == (n, 5) and (copy.read(0, n) != X).nnz == 0
    assert_array_equal(copy.read(n - 3, n).todense(), X[n - 3 :].todense())


@pytest.mark.parametrize("kind", ["ndarray", "csr"])
def test_descriptions_of_copies_that_dkrr_does_not_write_are_refused(kind, tmp_path):
    described = write_rows(as_rows(table(kind, tmp_path).handed_in), place(tmp_path / "copy"), 6).describe(6)
    wrong = [("kind", "x"), ("shape", [23]), ("shape", [23, -7]), ("shape", None), ("dtype", "O"), ("shape", [2.0, 7])]
    for name, value in wrong:
        with pytest.raises(StoreError, match="dkrr does not write"):
            dkrr.data.described_rows(place(tmp_path / "copy"), {**described, name: value})


def test_numbers_that_no_store_can_keep_are_refused(tmp_path):
    with pytest.raises(StoreError, match="rows of float128 cannot be kept.*convert X"):
        write_rows(as_rows(numbers().astype(np.longdouble)), place(tmp_path / "wide"))


# Labels, targets and weights: what is taken as what, and which label is refused in which container


N = 24
X = np.random.default_rng(0).normal(size=(N, 3))
CODES = np.arange(N) % 3
NAMES = np.array(["a", "b", "c"], object)[CODES]


def put(labels, label):
    changed = labels.astype(float if labels.dtype != object and isinstance(label, float) else object)
    changed[5] = label
    return changed


@every_pair(
    kind=["ndarray", "csr", "dask", "zarr path"],
    bad=[np.nan, -np.inf],
    model=[KernelRidge, KernelLogisticRegression],
    way=[("primal", "cholesky"), ("primal", "cg"), ("dual", "cholesky"), ("dual", "cg")],
    tile=[None, 10],
)
def test_the_first_bad_value_of_X_is_named_whatever_holds_it_and_solves(tmp_path, kind, bad, model, way, tile):
    wrong = X.copy()
    wrong[17, 1] = wrong[20, 0] = bad
    with pytest.raises(InputError, match=f"X contains {'NaN' if np.isnan(bad) else 'infinity'}.*row 17, column 1"):
        model(form=way[0], solver=way[1], tile=tile).fit(table(kind, tmp_path, wrong).handed_in, CODES)


MISSING = {
    "NaN among strings": put(NAMES, np.nan),
    "NaN in a list of strings": put(NAMES, np.nan).tolist(),  # of which NumPy makes a class of the name "nan"
    "None": put(NAMES, None),
    "NaT": put(NAMES, pd.NaT),
    "nullable strings": pd.Series(put(NAMES, None), dtype="string"),
    "categories": pd.Series(put(NAMES, None), dtype="category"),
    "nullable integers": pd.Series(put(CODES, np.nan)).astype("Int64"),
    "lazy": da.from_array(put(CODES, np.nan), chunks=7),
}


@pytest.mark.parametrize("kind", MISSING)
def test_a_missing_label_is_refused_with_its_row(kind):
    with pytest.raises(InputError, match=r"y (has a missing label|contains NaN).*row 5.*leave the row out"):
        KernelLogisticRegression().fit(X, MISSING[kind])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (put(NAMES, 7), r"str \(row 0\) and number \(row 5\)"),
        (put(NAMES, 7).tolist(), r"str \(row 0\) and number \(row 5\)"),  # of which NumPy makes strings
        (pd.Series(put(NAMES, True)), r"str \(row 0\) and bool \(row 5\)"),
        (put(NAMES, frozenset()), r"str \(row 0\) and frozenset \(row 5\)"),
        (put(CODES, True), r"number \(row 0\) and bool \(row 5\)"),
    ],
)
def test_labels_of_mixed_types_are_refused(y, message):
    with pytest.raises(InputTypeError, match=f"mixed types: {message}; expected strings only, or numbers only"):
        KernelLogisticRegression().fit(X, y)


@pytest.mark.parametrize(
    ("y", "class_weight", "weights", "message"),
    [
        (put(CODES, -np.inf), None, None, "y contains NaN or infinity.*row 5 is -inf"),
        (np.full(N, "only").tolist(), None, None, r"y has 1 class \('only'\).*at least 2 classes"),
        (da.zeros(N, chunks=5), None, None, r"y has 1 class \(0.0\)"),
        (CODES, None, CODES == 2, r"1 class of positive weight \(2\).*at least 2"),
        (CODES, {0: 0.0, 2: 0}, None, r"1 class of positive weight \(1\).*at least 2"),
        (CODES, {0: 0.0, 1: 0.0, 2: 0.0}, None, r"0 class of positive weight \(none\)"),
    ],
)
def test_infinite_labels_and_too_few_classes_are_refused(y, class_weight, weights, message):
    with pytest.raises(InputError, match=message):
        KernelLogisticRegression(class_weight=class_weight).fit(X, y, sample_weight=weights)


def test_a_plan_reads_the_number_of_targets_from_y(tmp_path):
    np.save(tmp_path / "y.npy", np.zeros((N, 3)))
    targets = (np.zeros(N), np.zeros((N, 1)), np.zeros((N, 4)), tmp_path / "y.npy")
    assert [dkrr.plan(X, y).problem.n_targets for y in targets] == [1, 1, 4, 3]
    with pytest.raises(InputError, match=f"y has 5 rows, and X has {N}"):
        dkrr.plan(X, np.zeros(5))


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_log_proba", "decision_function"])
def test_every_method_refuses_other_columns_and_names_a_bad_value(method):
    call = getattr(KernelLogisticRegression(kernel="rbf").fit(X, CODES), method)
    for rows in (X[:, :2], da.from_array(X[:, :2])):
        with pytest.raises(InputError, match="2 features.*3 features"):
            call(rows)
    with pytest.raises(InputError, match="NaN.*row 3, column 1"):
        call(np.where(X[3, 1] == X, np.nan, X))
