"""What a user may hand in, and what is refused with a readable error."""

import pickle
from decimal import Decimal

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.testing import assert_array_equal

from dkrr.errors import DkrrError, InputError, InputTypeError
from dkrr.rows import DaskRows, MemoryRows, as_rows, load_array, open_path
from dkrr.rows.open import CONTAINERS
from dkrr.rows.sources import dense
from tests.rows.sources import KINDS, numbers, table


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind, tmp_path):
    case = table(kind, tmp_path)
    rows = as_rows(case.handed_in)
    assert rows.shape == case.array.shape
    assert_array_equal(dense(rows.read(0, 23)), case.array)
    assert as_rows(rows) is rows


@pytest.mark.parametrize("dtype", ["float32", "int64", "int8", "uint16", "bool"])
@pytest.mark.parametrize("kind", ["ndarray", "csr", "dask", "zarr", "npy", "npz"])
def test_dtype_stays(kind, dtype, tmp_path):
    X = numbers(dtype=dtype) if dtype == "float32" else (np.arange(161).reshape(23, 7) % 3).astype(dtype)
    rows = as_rows(table(kind, tmp_path, X).handed_in)
    assert rows.dtype == dtype
    block = dense(rows.read(3, 9))
    assert block.dtype == dtype
    assert_array_equal(block, X[3:9])


@pytest.mark.parametrize("kind", ["ndarray", "dask", "zarr", "zarr path", "zarr in memory", "npy"])
def test_a_vector_is_one_column(kind, tmp_path):
    x = numbers((23,))
    handed_in = da.from_array(x, chunks=5) if kind == "dask" else table(kind, tmp_path, x).handed_in
    rows = as_rows(handed_in)
    assert rows.shape == (23, 1)
    assert_array_equal(dense(rows.read(2, 11)), x[2:11, None])


def test_lists_and_frames():
    assert_array_equal(as_rows([[1, 2], [3, 4]]).read(1, 2), [[3, 4]])
    pandas = pytest.importorskip("pandas")
    assert_array_equal(as_rows(pandas.DataFrame({"a": [1.0, 2.0], "b": [3, 4]})).read(0, 2), [[1, 3], [2, 4]])


def test_memory_is_not_copied():
    X = numbers()
    assert np.shares_memory(as_rows(X).read(3, 9, slice(1, 4)), X)


def test_a_kind_of_container_is_a_line_in_the_table(monkeypatch):
    class Backwards(np.ndarray):
        pass

    kind = (lambda X: isinstance(X, Backwards), lambda X, name: MemoryRows(np.asarray(X)[::-1]))
    monkeypatch.setattr("dkrr.rows.open.CONTAINERS", [*CONTAINERS, kind])
    assert_array_equal(as_rows(numbers().view(Backwards)).read(0, 23), numbers()[::-1])
    with pytest.raises(InputError, match="3 dimensions"):
        as_rows(np.ones((2, 3, 4)).view(Backwards))


def test_npy_is_not_read_whole(tmp_path):
    np.save(tmp_path / "x.npy", numbers())
    assert isinstance(open_path(str(tmp_path / "x.npy")), np.memmap)


class TestSparse:
    def test_duplicates_are_summed(self):
        X = sp.coo_array(([1.0, 2.0, 4.0], ([0, 0, 1], [2, 2, 0])), shape=(2, 3))
        block = as_rows(X).read(0, 2)
        assert_array_equal(block.todense(), [[0, 0, 3], [4, 0, 0]])
        assert block.nnz == 2

    def test_the_users_matrix_is_not_changed(self):
        # Unsorted, and with an entry given twice.
        X = sp.csr_array((np.array([1.0, 2.0, 3.0, 4.0]), np.array([2, 0, 1, 1]), np.array([0, 2, 4])), shape=(2, 3))
        parts = X.data.copy(), X.indices.copy(), X.indptr.copy()
        assert_array_equal(dense(as_rows(X).read(0, 2)), [[2, 0, 1], [0, 7, 0]])
        for now, before in zip((X.data, X.indices, X.indptr), parts, strict=True):
            assert_array_equal(now, before)

    def test_read_only_memory(self):
        X = sp.csr_array((np.array([1.0, 2.0]), np.array([2, 0]), np.array([0, 2])), shape=(1, 3))
        for part in (X.data, X.indices, X.indptr):
            part.flags.writeable = False
        assert_array_equal(dense(as_rows(X).read(0, 1)), [[2, 0, 1]])

    def test_one_dimension(self):
        assert_array_equal(dense(as_rows(sp.coo_array(np.array([1.0, 0.0, 2.0]))).read(0, 3)), [[1], [0], [2]])

    @pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
    def test_npz_of_each_layout(self, tmp_path, layout):
        X = numbers()
        sp.save_npz(tmp_path / "x.npz", sp.coo_array(X).asformat(layout))
        assert_array_equal(dense(as_rows(str(tmp_path / "x.npz")).read(0, 23)), X)


class TestRefused:
    @pytest.mark.parametrize(
        ("X", "match"),
        [
            (np.array([["a", "b"]]), "has dtype <U1; expected numbers"),
            (np.array([[Decimal(1), 2]]), "has dtype object; expected numbers"),
            (np.array([[1, None]]), "has dtype object; expected numbers"),
            (np.zeros((2, 2), "M8[s]"), "expected numbers: convert it"),
            (np.zeros((2, 2), "m8[s]"), "expected numbers: convert it"),
            (np.ones((2, 2), complex), "complex data not supported"),
            (sp.csr_array(np.ones((2, 2), complex)), "complex data not supported"),
            (da.ones((2, 2), dtype="complex64"), "complex data not supported"),
        ],
        ids=["text", "decimals", "None", "dates", "durations", "complex", "complex csr", "complex dask"],
    )
    def test_types(self, X, match):
        with pytest.raises(InputTypeError, match=match):
            as_rows(X, "X")

    @pytest.mark.parametrize(
        ("X", "match"),
        [
            (np.ones((2, 3, 4)), r"3 dimensions, shape \(2, 3, 4\)"),
            (da.ones((2, 3, 4)), "3 dimensions"),
            (np.float64(3.0), "0 dimensions"),
            (np.ones((0, 3)), r"empty: found array with shape=\(0, 3\)"),
            (np.ones((3, 0)), "empty"),
            ([], "empty"),
            (sp.csr_array((0, 3)), "empty"),
            (da.ones((0, 3)), "empty"),
            ([[1, 2], [3]], "Z"),
        ],
        ids=["3-D", "3-D dask", "number", "no rows", "no columns", "empty list", "empty csr", "empty dask", "ragged"],
    )
    def test_shapes(self, X, match):
        with pytest.raises(InputError, match=match) as caught:
            as_rows(X, "Z")
        assert "Z" in str(caught.value), "the message names the argument"

    def test_3d_zarr(self, tmp_path):
        with pytest.raises(InputError, match="3 dimensions"):
            as_rows(zarr.create_array(tmp_path / "x", shape=(2, 3, 4), dtype="f8"))

    def test_unknown_chunks(self):
        X = da.from_array(numbers(), chunks=(5, -1))
        unknown = X[X[:, 0] > 0]
        with pytest.raises(InputError, match=r"unknown chunk sizes; .* call X\.compute_chunk_sizes"):
            as_rows(unknown)
        assert isinstance(as_rows(unknown.compute_chunk_sizes()), DaskRows)


class TestPaths:
    @pytest.mark.parametrize("name", ["x.zarr", "x.npy", "x.npz::a", "x.npz", "x"])
    def test_not_there(self, tmp_path, name):
        with pytest.raises(InputError, match="X: the path .*x.* does not exist"):
            as_rows(str(tmp_path / name))

    def test_not_there_remotely(self):
        with pytest.raises(InputError, match="memory://nothing/there"):
            as_rows("memory://nothing/there")

    @pytest.mark.parametrize("member", ["", "::", "::z", "::X.npy"])
    def test_wrong_member(self, tmp_path, member):
        np.savez(tmp_path / "x.npz", X=numbers(), y=numbers()[:, 0])
        with pytest.raises(InputError, match=r"expected one of X, y: write .*x\.npz::NAME"):
            as_rows(f"{tmp_path}/x.npz{member}")

    def test_a_group_is_not_an_array(self, tmp_path):
        zarr.create_group(tmp_path / "g.zarr").create_array("x", shape=(2, 2), dtype="f8")
        with pytest.raises(InputError, match="path of the array itself"):
            as_rows(str(tmp_path / "g.zarr"))

    @pytest.mark.parametrize("content", [b"", b"not numpy's", b"PK\x03\x04 cut off"], ids=["empty", "text", "cut"])
    @pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.zarr", "x"])
    def test_unreadable(self, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"X: cannot read .*{name}"):
            as_rows(f"{tmp_path}/{name}")

    def test_truncated_npy(self, tmp_path):
        np.save(tmp_path / "x.npy", numbers())
        raw = (tmp_path / "x.npy").read_bytes()
        (tmp_path / "x.npy").write_bytes(raw[:-8])
        with pytest.raises(InputError, match="cannot read"):
            as_rows(str(tmp_path / "x.npy"))

    def test_pickles_are_not_run(self, tmp_path):
        np.save(tmp_path / "x.npy", np.array([[print]]), allow_pickle=True)
        np.savez(tmp_path / "x.npz", x=np.array([[print]]), allow_pickle=True)
        for path in ("x.npy", "x.npz::x"):
            with pytest.raises(InputError, match="[Oo]bject"):
                as_rows(f"{tmp_path}/{path}")

    @pytest.mark.parametrize("as_text", [True, False], ids=["URL", "open array"])
    def test_object_store(self, tmp_path, as_text):
        # A file system of fsspec stands in for an object store.
        X = table("zarr", tmp_path).array
        url = f"local://{tmp_path}/x.zarr"
        rows = as_rows(url if as_text else zarr.open_array(url, mode="r"))
        assert rows.is_shared
        arrived = pickle.loads(pickle.dumps(rows))
        assert_array_equal(arrived.read(2, 23), X[2:])

    @pytest.mark.parametrize("as_text", [True, False], ids=["URL", "open array"])
    def test_an_array_of_this_process_only(self, as_text):
        array = zarr.create_array("memory://test-open/b", shape=(3, 2), dtype="f8", overwrite=True)
        array[:] = 2.0
        rows = as_rows("memory://test-open/b" if as_text else array)
        assert isinstance(rows, MemoryRows), "another process would not find it"
        assert_array_equal(rows.read(0, 3), np.full((3, 2), 2.0))


class TestLoadArray:
    @pytest.mark.parametrize("kind", ["ndarray", "dask", "zarr", "zarr path", "zarr in memory", "npy", "npz"])
    def test_whole_in_float64(self, kind, tmp_path):
        case = table(kind, tmp_path, numbers(dtype="float32"))
        loaded = load_array(case.handed_in)
        assert loaded.dtype == np.float64
        assert_array_equal(loaded, case.array)

    def test_dimensions_stay(self):
        assert load_array([1, 2, 3]).shape == (3,)
        assert load_array(np.ones((3, 1))).shape == (3, 1)
        assert load_array(2).shape == ()

    @pytest.mark.parametrize(
        ("y", "error"),
        [
            (sp.csr_array(np.ones((3, 1))), InputTypeError),
            (["a"], InputTypeError),
            (np.ones(2, complex), InputTypeError),
            ("nothing.npy", InputError),
            ([[1], [2, 3]], InputError),
        ],
        ids=["sparse", "text", "complex", "missing", "ragged"],
    )
    def test_refused(self, y, error):
        with pytest.raises(error, match="target") as caught:
            load_array(y, "target")
        assert isinstance(caught.value, DkrrError)
