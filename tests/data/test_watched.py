"""Rows that were changed, or are gone, since the fit read them first; and what was never written of them."""

import pickle

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import dkrr
from dkrr import KernelRidge
from dkrr.data import as_rows, load_labels, load_targets
from dkrr.data.rows import Rows
from dkrr.data.watched import BlockSums, watched
from dkrr.errors import InputError, StoreError
from tests.inputs import CONTAINERS, KINDS, numbers, write_parquet, zarr_array

CHANGED = "not what was read first"
ON_DISK = ["memory map", "zarr", "zarr path", "zarr in shards", "obstore", "npy", "parquet", "parquet folder", "hdf5"]
"""Containers that read a file whenever rows are asked for."""


def rewritten(source, folder):
    """Give the files of a container the content of others, as another process would."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            file.write_bytes((source / file.relative_to(folder)).read_bytes())


@pytest.mark.parametrize("kind", ON_DISK)
def test_what_reads_rows_again_refuses_those_of_a_file_that_was_written_anew(kind, tmp_path):
    X, y = numbers(), numbers((23,), seed=1)
    for name in ("x", "other", "new"):
        (tmp_path / name).mkdir()
    make = CONTAINERS[KINDS.index(kind)].make
    model, new = KernelRidge(kernel="rbf", gamma=0.01).fit(make(X, tmp_path / "x"), y), make(X, tmp_path / "new")
    expected = KernelRidge(kernel="rbf", gamma=0.01).fit(X, y).predict(X, return_std=True)
    assert_array_equal(model.predict(new, return_std=True), expected, "the files are those of the fit")
    other = X.copy()
    other[13, 4] += 1e-9
    make(other, tmp_path / "other")
    rewritten(tmp_path / "other", tmp_path / "x")
    model = pickle.loads(pickle.dumps(model))  # without a factor
    for ask in (
        lambda: model.predict(new, return_std=True),
        lambda: model.predict_interval(new),
        lambda: model.loo_residuals(),
        lambda: model.log_marginal_likelihood(),
    ):
        with pytest.raises(InputError, match=CHANGED):
            ask()


@pytest.mark.parametrize("kind", ["zarr", "npy"])
def test_predictions_of_a_fit_in_tiles_refuse_changed_rows_too(kind, tmp_path):
    X, y = numbers((40, 3)) + 1.0, numbers((40,), seed=1)
    make = CONTAINERS[KINDS.index(kind)].make
    settings = {"kernel": "rbf", "solver": "cholesky", "tile": 8, "store": tmp_path / "run.zarr"}
    model = KernelRidge(**settings).fit(make(X, tmp_path), y)
    assert model.predict(X[:1]).shape == (1,)
    file = next(file for file in sorted((tmp_path / "x.zarr").rglob("c/*/*"))) if kind == "zarr" else tmp_path / "x.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for ask in (model.predict, lambda X: dkrr.predict_to(model, X, tmp_path / "out.npy")):
        with pytest.raises((InputError, StoreError), match="cannot read" if kind == "zarr" else CHANGED):
            ask(X[:1])


def test_workers_compare_with_what_was_read_first_and_a_deleted_array_is_not_zeros(ambient_workers, tmp_path):
    X, y = numbers((40, 3)), numbers((40,), seed=1)
    array = zarr_array(X + 1.0, tmp_path, chunks=(10, 3), compressors=None)
    model = KernelRidge(kernel="rbf", tile=8).fit(array, y)
    assert model.plan_.execution == "dask" and model.predict(X[:1]).shape == (1,)
    sums = model._model.rows.sums
    assert None not in sums._sums, "the scan of the workers is known here"
    array[17:18] = 1.0
    with pytest.raises(InputError, match=CHANGED):
        model.predict(X[:1])
    (tmp_path / "x.zarr" / "c" / "1" / "0").unlink()
    with pytest.raises(StoreError, match="is gone"):
        model.predict(X[:1])


def test_arrays_that_are_written_to_after_the_fit_are_refused():
    y = numbers((23,), seed=1)
    for X in (numbers(), sp.csr_array(numbers()), np.asfortranarray(numbers())):
        new, model = numbers()[:2], KernelRidge(kernel="laplacian").fit(X, y)
        model.predict(new)
        values = X.data if sp.issparse(X) else X
        values *= 2.0
        for ask in (lambda: model.predict(new), lambda: model.loo_residuals()):  # noqa: B023
            with pytest.raises(InputError, match="X.copy()"):
                ask()


def test_targets_and_weights_that_are_written_to_after_the_fit_are_refused(tmp_path):
    X, y, weights = numbers(), np.lib.format.open_memmap(tmp_path / "y.npy", "w+", float, (23,)), np.arange(23.0)
    y[:] = numbers((23,), seed=1)
    for changed, name in ((y, "y"), (weights, "sample_weight")):
        model = KernelRidge().fit(X, y, sample_weight=weights)
        changed += 1.0
        with pytest.raises(InputError, match=f"{name} is not what was read first"):
            model.loo_residuals()


def test_an_array_may_grow_after_the_fit_but_not_shrink(tmp_path):
    X, y = numbers(), numbers((23,), seed=1)
    array = zarr_array(X, tmp_path, chunks=(10, X.shape[1]))
    models = [KernelRidge(kernel="rbf").fit(rows, y) for rows in (array, tmp_path / "x.zarr")]
    array.append(X)
    models[1] = pickle.loads(pickle.dumps(models[1]))  # which opens it again
    expected = KernelRidge(kernel="rbf").fit(X, y).predict(X, return_std=True)
    for model in models:
        assert_array_equal(model.predict(X, return_std=True), expected)
    array.resize((20, X.shape[1]))
    for model in models:
        with pytest.raises(InputError, match=r"not what was read first: it has shape \(20, .*, and had \(23,"):
            pickle.loads(pickle.dumps(model)).predict(X, return_std=True)


def test_a_mapped_file_that_became_shorter_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", numbers((2000, 8)))
    rows = [as_rows(tmp_path / "x.npy"), as_rows(np.load(tmp_path / "x.npy", mmap_mode="r"))]
    np.save(tmp_path / "x.npy", numbers((2, 8)))
    for mapped in rows:
        with pytest.raises(InputError, match=r"x.npy has .*, and had .* when it was mapped"):
            mapped.read(1900, 1901)


def test_a_matrix_of_kernel_values_that_was_written_anew_is_refused(tmp_path):
    K = np.eye(23) + 0.5
    array = zarr_array(K, tmp_path)
    model = KernelRidge(kernel="precomputed").fit(array, np.arange(23.0))
    array[...] = 2 * K
    with pytest.raises(InputError, match=CHANGED):
        model.loo_residuals()


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_rows_behind_a_transformer_are_compared_before_they_are_transformed(text, tmp_path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    frame = pd.DataFrame({"a": numbers((23,)), "b": np.repeat(["x", "y"], [10, 13])})[["b"] if text else ["a"]]
    path, y = tmp_path / "x.parquet", numbers((23,), seed=1)
    frame.to_parquet(path)
    transformer = OneHotEncoder() if text else StandardScaler()
    model = KernelRidge(kernel="linear", form="primal", transformer=transformer).fit(path, y)
    frame.to_parquet(path)
    assert len(model.loo_residuals()) == 23, "the same rows"
    model = KernelRidge(kernel="linear", form="primal", transformer=transformer).fit(path, y)
    frame.iloc[::-1].to_parquet(path)
    with pytest.raises(InputError, match=CHANGED):
        model.loo_residuals()


def test_computed_rows_may_be_rounded_in_another_way_but_not_be_others():
    X = numbers((40, 3))
    factor = [1.0]
    lazy = da.from_array(X, chunks=(10, 3)).map_blocks(lambda x: x * factor[0], dtype=float)
    rows = watched(as_rows(lazy))
    first = rows.read(0, 40)
    factor[0] = 1 + 2**-52
    rows.read(0, 40)
    factor[0] = 1 + 1e-6
    with pytest.raises(InputError, match=CHANGED):
        rows.read(0, 40)
    factor[0] = 1.0
    assert_array_equal(rows.read(0, 40), first)


class Some(Rows):
    """Rows in memory that are read a block at a time."""

    def __init__(self, array):
        self.array = array

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)

    def read(self, start, stop, columns=slice(None)):
        return self.array[start:stop, columns]


@given(
    n=st.integers(1, 40),
    height=st.integers(1, 12),
    step=st.integers(1, 3),
    reads=st.lists(st.tuples(st.integers(0, 39), st.integers(1, 40), st.integers(1, 13)), max_size=4),
    changed=st.integers(0, 39),
)
def test_blocks_are_compared_however_they_are_cut(n, height, step, reads, changed):
    X = numbers((n, 2)).cumsum(axis=0)
    sums, whole = (BlockSums(n, height, step, "", is_exact=True) for _ in range(2))
    whole.see(0, X)
    for start, length, cut in reads:
        start, stop = min(start, n - 1), min(start + length, n)
        seen = [block for _, block in sums.through(Some(X).blocks(start, max(stop, start + 1), cut))]
        assert_array_equal(np.concatenate(seen), X[start : max(stop, start + 1)])
    whole.take_over(sums.known())  # raises if they differ
    other = X.copy()
    start = whole.starts()[changed % len(whole.starts())]
    other[start : start + height][-1, 1] += 1.0
    with pytest.raises(InputError, match=CHANGED):
        for _ in whole.through(Some(other).blocks(0, n, 7)):
            pass


@pytest.mark.parametrize("n_left", [0, 11])
def test_a_table_of_fewer_rows_is_refused_where_it_is_read_again(n_left, tmp_path):
    X, path = numbers((23, 2)), tmp_path / "x.parquet"
    write_parquet(path, X)
    model = KernelRidge(kernel="rbf").fit(path, X[:, 0])
    write_parquet(path, X[:n_left])
    model = pickle.loads(pickle.dumps(model))  # which opens the file again
    with pytest.raises(InputError, match=f"ends after row {n_left - 1}, and had at least 23 rows"):
        model.loo_residuals()


# What was never written.


@pytest.mark.parametrize("layout", [{}, {"zarr_format": 2}, {"compressors": None}, {"shards": (10, 4)}], ids=str)
def test_chunks_of_zarr_that_are_missing_are_refused_by_name(layout, tmp_path):
    array = zarr_array(np.ones((20, 4)), tmp_path, **({"chunks": (5, 4)} | layout))
    assert as_rows(array).shape == (20, 4)
    name = "1.0" if layout.get("zarr_format") == 2 else "c/1/0"
    (tmp_path / "x.zarr" / name).unlink()
    for read in (as_rows, load_targets, load_labels):
        with pytest.raises(InputError, match=f"without its chunks {name};"):
            read(tmp_path / "x.zarr")
    with pytest.raises(InputError, match="without its chunks c/0/0;"):
        as_rows(zarr.create_array(zarr.storage.MemoryStore(), shape=(3, 2), dtype=float))


class Unlisted(zarr.storage.MemoryStore):
    """Store that cannot list what it has, as a server of HTTP."""

    def list_prefix(self, prefix):
        raise OSError("501 Not Implemented")


def test_chunks_are_asked_for_where_a_store_cannot_list_them():
    array = zarr.create_array(Unlisted(), name="a/x", shape=(20, 4), chunks=(5, 4), dtype=float)
    array[:] = 1.0
    assert as_rows(array).shape == (20, 4)
    del array.store._store_dict["a/x/c/2/0"]
    with pytest.raises(InputError, match="without its chunks c/2/0;"):
        as_rows(array)


def test_data_sets_of_hdf5_that_were_not_written_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("never", (20, 4), "f8")
        file.create_dataset("partly", (20, 4), "f8", chunks=(5, 4))[:5] = 1.0
        file.create_dataset("wholly", (20, 4), "f8", chunks=(5, 4))[:] = 0.0
    for key in ("never", "partly"):
        with pytest.raises(InputError, match="not all was written"):
            as_rows(f"{tmp_path}/x.h5::{key}")
    assert not as_rows(f"{tmp_path}/x.h5::wholly").read(0, 20).any()
