"""The Gram matrix as a lazy array, computed block by block or kept in a store."""

import pickle

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelRidge
from dkrr.errors import InputError, StoreError
from dkrr.kernels import RBF, Laplacian
from dkrr.rows import as_rows
from dkrr.rows.sources import ALL
from tests.oracles import naive_gram
from tests.pairs import every_pair


@every_pair(kind=["ndarray", "csr", "dask", "zarr"], chunks=[None, 50, (60, 17)])
def test_gram_is_the_naive_matrix(data, tmp_path, kind, chunks):
    zarr.save_array(str(tmp_path / "x.zarr"), data.X)
    dask_array = da.from_array(data.X, chunks=(33, 2))
    X = {"ndarray": data.X, "csr": sp.csr_array(data.X), "dask": dask_array, "zarr": str(tmp_path / "x.zarr")}[kind]
    K = dkrr.gram(X, kernel=RBF(gamma=0.3), chunks=chunks)
    assert isinstance(K, da.Array) and K.shape == (211, 211) and K.dtype == np.float64
    assert_allclose(K.compute(), naive_gram(RBF(gamma=0.3), data.X, data.X), rtol=0, atol=1e-12)
    if chunks != (60, 17):  # of square blocks the diagonal is exact
        assert_array_equal(np.diag(K[:50, :50].compute()), 1.0)
    other = dkrr.gram(X, data.X_new, kernel="laplacian", gamma=0.2, chunks=chunks, dtype=np.float32).compute()
    assert other.dtype == np.float32
    assert_allclose(other, naive_gram(Laplacian(gamma=0.2), data.X, data.X_new), rtol=0, atol=1e-6)


def test_gram_in_a_store_is_kept_and_handed_back(data, tmp_path):
    store = tmp_path / "gram.zarr"
    K = dkrr.gram(data.X, kernel="rbf", gamma=0.3, chunks=64, store=store)
    expected = naive_gram(RBF(gamma=0.3), data.X, data.X)
    assert_allclose(K.compute(), expected, rtol=0, atol=1e-12)
    chunks = sorted(p.name for p in (store / "gram").glob("c.*"))
    assert len(chunks) == 4 * 5 // 2  # the lower triangle only
    plain = zarr.open_array(str(store / "gram"), mode="r")
    assert_allclose(np.tril(plain[...]), np.tril(expected), rtol=0, atol=1e-12)
    written = {name: (store / "gram" / name).stat().st_mtime_ns for name in chunks}
    (store / "gram" / "c.2.1").unlink()
    again = dkrr.gram(data.X, kernel="rbf", gamma=0.3, chunks=64, store=store)
    assert_array_equal(again.compute(), K.compute())
    kept = [n for n in chunks if (store / "gram" / n).stat().st_mtime_ns == written[n]]
    assert set(chunks) - set(kept) == {"c.2.1"}
    model = KernelRidge(kernel="precomputed", tile=50).fit(K, data.y)
    same = KernelRidge(kernel="rbf", gamma=0.3).fit(data.X, data.y)
    assert_allclose(model.dual_coef_, same.dual_coef_, rtol=0, atol=1e-9)
    with pytest.raises(StoreError, match="another problem"):
        dkrr.gram(data.X, kernel="rbf", gamma=0.4, chunks=64, store=store)


@pytest.mark.parametrize("settings", [{}, {"tile": 50}, {"solver": "cg"}], ids=["in memory", "in tiles", "iterative"])
def test_the_path_of_a_store_is_a_precomputed_matrix(data, tmp_path, settings):
    store = tmp_path / "gram.zarr"
    K = dkrr.gram(data.X, kernel="rbf", gamma=0.3, chunks=64, store=store).compute()
    model = KernelRidge(kernel="precomputed", **settings).fit(store, data.y)
    expected = KernelRidge(kernel="precomputed").fit(K, data.y)
    assert_allclose(model.dual_coef_, expected.dual_coef_, rtol=0, atol=1e-7)
    assert_allclose(model.predict(K), expected.predict(K), rtol=0, atol=1e-7)
    assert dkrr.plan(str(store), data.y, kernel="precomputed").form == "dual"


def test_rows_of_a_store_are_those_of_the_matrix(data, tmp_path):
    store = tmp_path / "gram.zarr"
    K = dkrr.gram(data.X, kernel="rbf", gamma=0.3, chunks=64, store=store).compute()
    rows = pickle.loads(pickle.dumps(as_rows(store)))
    assert rows.shape == K.shape and rows.is_shared
    for start, stop, columns in [(0, 211, slice(None)), (63, 65, slice(60, 130)), (200, 211, slice(0, 1)), (5, 5, ALL)]:
        assert_array_equal(rows.read(start, stop, columns), K[start:stop, columns])
    assert_array_equal(rows.take(np.array([210, 3, 64])), K[[210, 3, 64]])


def test_a_store_that_is_damaged_or_not_complete_is_refused(data, tmp_path):
    store = tmp_path / "gram.zarr"
    dkrr.gram(data.X, kernel="rbf", gamma=0.3, chunks=64, store=store)
    chunk = store / "gram" / "c.2.1"
    stored = bytearray(chunk.read_bytes())
    stored[100] ^= 1
    chunk.write_bytes(stored)
    with pytest.raises(StoreError, match="checksum"):
        KernelRidge(kernel="precomputed").fit(store, data.y)
    dkrr.gram(data.X, kernel="rbf", gamma=0.3, chunks=64, store=store)  # computes it again
    assert dkrr.verify(store).is_whole
    chunk.unlink()
    with pytest.raises((StoreError, InputError), match="9 of 10 tiles.*dkrr.gram again"):
        KernelRidge(kernel="precomputed").fit(store, data.y)
    with pytest.raises((StoreError, InputError), match="9 of 10 tiles"):
        dkrr.plan(store, data.y, kernel="precomputed")
    with pytest.raises(InputError, match="cannot read"):
        as_rows(store.parent)


def test_wrong_arguments_of_gram_are_named(data):
    X = data.X.copy()
    X[107, 2] = np.nan
    for work, words in (
        (lambda: dkrr.gram(data.X, data.X[:, :4]), "5 columns and Y has 4"),
        (lambda: dkrr.gram(data.X, kernel="precomputed"), "precomputed"),
        (lambda: dkrr.gram(data.X, data.X_new, store="somewhere"), "symmetric"),
        (lambda: dkrr.gram(data.X, chunks=(5, 0)), "chunks"),
        (lambda: dkrr.gram(X, kernel="rbf", chunks=40).compute(), "NaN.*row 107, column 2"),
        (lambda: dkrr.gram(da.from_array(X, chunks=50), kernel="rbf").compute(), "NaN.*row 107, column 2"),
    ):
        with pytest.raises(InputError, match=words):
            work()
