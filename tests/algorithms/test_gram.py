"""The Gram matrix as a lazy array, computed block by block or kept in a store; the spectrum of a sample of it."""

import pickle
import shutil

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelRidge, kernels
from dkrr.data import MemoryRows, as_rows, write_rows
from dkrr.data.rows import ALL
from dkrr.errors import InputError, StoreError
from dkrr.fitting import requests
from dkrr.kernels import RBF, Laplacian, Linear, Matern, Polynomial, Precomputed, Sigmoid, smallest_eigenvalue
from dkrr.linalg.spectrum import SAMPLE, estimated_spectrum, power_law
from dkrr.store import ChunkedArray
from dkrr.store.arrays import create_array
from tests import systems
from tests.inputs import table
from tests.oracles import naive_gram
from tests.pairs import every_pair
from tests.stores import place
from tests.systems import random

one_blas_thread = systems.one_blas_thread


@every_pair(kind=["ndarray", "csr", "dask", "zarr path"], chunks=[None, 50, (60, 17)])
def test_gram_is_the_naive_matrix(data, tmp_path, kind, chunks):
    X = table(kind, tmp_path, data.X).handed_in
    K = dkrr.gram(X, kernel=RBF(gamma=0.3), chunks=chunks)
    assert isinstance(K, da.Array) and K.shape == (211, 211) and K.dtype == np.float64
    assert_allclose(K.compute(), naive_gram(RBF(gamma=0.3), data.X, data.X), rtol=0, atol=1e-12)
    if chunks != (60, 17):  # of square blocks the diagonal is exact
        assert_array_equal(np.diag(K[:50, :50].compute()), 1.0)
    other = dkrr.gram(X, data.X_new, kernel="laplacian", gamma=0.2, chunks=chunks, dtype=np.float32).compute()
    assert other.dtype == np.float32
    assert_allclose(other, naive_gram(Laplacian(gamma=0.2), data.X, data.X_new), rtol=0, atol=1e-6)


def stored_gram(data, folder, gamma=0.3):
    store = folder / "gram.zarr"
    return store, dkrr.gram(data.X, kernel="rbf", gamma=gamma, chunks=64, store=store).compute()


def test_gram_in_a_store_is_kept_and_handed_back(data, tmp_path):
    store, K = stored_gram(data, tmp_path)
    expected = naive_gram(RBF(gamma=0.3), data.X, data.X)
    assert_allclose(K, expected, rtol=0, atol=1e-12)
    plain = zarr.open_array(str(store / "gram"), mode="r")
    assert_allclose(np.tril(plain[...]), np.tril(expected), rtol=0, atol=1e-12)
    written = {p.name: p.stat().st_mtime_ns for p in (store / "gram").glob("c.*")}
    assert len(written) == 4 * 5 // 2, "the lower triangle only"
    (store / "gram" / "c.2.1").unlink()
    assert_array_equal(stored_gram(data, tmp_path)[1], K)
    again = {p.name: p.stat().st_mtime_ns for p in (store / "gram").glob("c.*")}
    assert {name for name in again if again[name] != written[name]} == {"c.2.1"}
    with pytest.raises(StoreError, match="another problem"):
        stored_gram(data, tmp_path, gamma=0.4)


@pytest.mark.parametrize(
    ("settings", "where"),
    [({}, "tmp_path"), ({"tile": 50}, "tmp_path"), ({"solver": "cg"}, "tmp_path"), ({}, "memory_bucket")],
)
def test_the_path_of_a_store_is_a_precomputed_matrix(data, request, settings, where):
    store = f"{request.getfixturevalue(where)}/gram.zarr"
    K = dkrr.gram(data.X, kernel="rbf", gamma=0.3, chunks=64, store=store).compute()
    model, expected = (KernelRidge(kernel="precomputed", **s).fit(M, data.y) for s, M in ((settings, store), ({}, K)))
    assert_allclose(model.dual_coef_, expected.dual_coef_, rtol=0, atol=1e-7)
    assert_allclose(model.predict(K), expected.predict(K), rtol=0, atol=1e-7)


def test_rows_of_a_store_are_those_of_the_matrix(data, tmp_path):
    store, K = stored_gram(data, tmp_path)
    rows = pickle.loads(pickle.dumps(as_rows(store)))
    assert rows.shape == K.shape and rows.is_shared
    for start, stop, columns in [(0, 211, slice(None)), (63, 65, slice(60, 130)), (200, 211, slice(0, 1)), (5, 5, ALL)]:
        assert_array_equal(rows.read(start, stop, columns), K[start:stop, columns])
    assert_array_equal(rows.take(np.array([210, 3, 64])), K[[210, 3, 64]])


def test_a_store_that_is_damaged_or_not_complete_is_refused(data, tmp_path):
    store, _ = stored_gram(data, tmp_path)
    systems.flip_a_bit(ChunkedArray.open(str(store / "gram")), "c.2.1")
    with pytest.raises(StoreError, match="checksum"):
        KernelRidge(kernel="precomputed").fit(store, data.y)
    stored_gram(data, tmp_path)  # computes it again
    assert dkrr.verify(store).is_whole
    (store / "gram" / "c.2.1").unlink()
    for work in (KernelRidge(kernel="precomputed").fit, lambda X, y: dkrr.plan(X, y, kernel="precomputed")):
        with pytest.raises((StoreError, InputError), match="9 of 10 tiles.*dkrr.gram again"):
            work(store, data.y)
    with pytest.raises(InputError, match="cannot read"):
        as_rows(store.parent)


def test_a_store_of_other_tiles_is_refused(data, tmp_path):
    store, _ = stored_gram(data, tmp_path)
    shutil.rmtree(store / "gram")
    ChunkedArray.create(str(store / "gram"), (len(data.X), len(data.X)), (64, 32))
    with pytest.raises(InputError, match="does not have the layout of a Gram matrix"):
        as_rows(store)


def test_wrong_arguments_of_gram_are_named(data):
    X = data.X.copy()
    X[107, 2] = np.nan
    for given, settings, words in (
        (data.X, {"Y": data.X[:, :4]}, "5 columns and Y has 4"),
        (data.X, {"kernel": "precomputed"}, "precomputed"),
        (data.X, {"Y": data.X_new, "store": "somewhere"}, "symmetric"),
        (data.X, {"chunks": (5, 0)}, "chunks"),
        (X, {"kernel": "rbf", "chunks": 40}, "NaN.*row 107, column 2"),
        (da.from_array(X, chunks=50), {"kernel": "rbf"}, "NaN.*row 107, column 2"),
    ):
        with pytest.raises(InputError, match=words):
            dkrr.gram(given, **settings).compute()


@pytest.mark.parametrize(("kernel", "d", "accuracy"), [(RBF(gamma=1 / 12), 12, 2.0), (Linear(), 1100, 1.3)], ids=str)
def test_the_spectrum_of_a_sample_is_that_of_all_rows(kernel, d, accuracy):
    """Of more columns than the sample has rows, directions look larger in it by 40 to 70 % without a correction."""
    n = 1700 if d < SAMPLE else 4096
    X = random(n, d) / ((1 + np.arange(d)) ** 0.5 if d < SAMPLE else 1.0)
    K = kernel(X) if d < SAMPLE else (X - X.mean(axis=0)).T @ (X - X.mean(axis=0))
    K -= K.mean(axis=0)
    K -= K.mean(axis=1)[:, None]
    whole = np.linalg.eigvalsh(K)[::-1] / n
    largest, thousandth, decay = estimated_spectrum(kernel, MemoryRows(X))
    assert d > SAMPLE or largest == pytest.approx(whole[0], rel=0.2)
    for k in (50, 100, 500):
        assert 1 / accuracy < thousandth * (k / 1000) ** -decay / whole[k - 1] < accuracy


def test_a_power_law_is_found():
    k = np.arange(1, 1025)
    largest, thousandth, decay = power_law(0.3 * k**-1.5)
    assert (largest, decay) == (pytest.approx(0.3), pytest.approx(1.5))
    assert thousandth == pytest.approx(0.3 * 1000**-1.5)
    assert power_law(np.zeros(1024))[0] == 0.0, "a constant kernel"


def test_the_spectrum_of_rows_in_a_store_is_near_and_sparse_ones_stay_sparse(tmp_path):
    """A sample of 1,024 rows of 400,000 columns has 3 GiB where it is dense."""
    sparse = sp.random_array((3 * SAMPLE, 400_000), density=2e-5, format="csr", rng=np.random.default_rng(0))
    for X, name in ((random(2 * SAMPLE + 17, 3), "dense"), (sparse, "sparse")):
        rows, found = write_rows(as_rows(X), place(tmp_path / name)), []
        assert systems.traced_peak(lambda: found.append(estimated_spectrum(RBF(0.5), rows))) < 200 * 2**20  # noqa: B023
        assert found[0] == pytest.approx(estimated_spectrum(RBF(0.5), MemoryRows(X)), rel=0.5)


@pytest.mark.parametrize(("n_columns", "is_sampled"), [(50, True), (9000, False)])
def test_rows_too_wide_to_be_sampled_are_not(monkeypatch, tmp_path, n_columns, is_sampled):
    """Planning must not take memory that no plan counts."""
    create_array(str(tmp_path / "X.zarr"), (4100, n_columns), np.float64)
    sampled = []
    monkeypatch.setattr(requests, "estimated_spectrum", lambda kernel, rows: sampled.append(rows))
    dkrr.plan(str(tmp_path / "X.zarr"), kernel="rbf", solver="cg", memory_limit="4GiB")
    assert bool(sampled) == is_sampled


def test_nan_is_left_to_the_check_of_all_rows():
    X = np.zeros((SAMPLE, 2))
    X[3, 1] = np.nan
    assert estimated_spectrum(RBF(gamma=0.5), MemoryRows(X)) is None


def test_all_rows_are_taken_where_there_are_few():
    X, kernel = random(80, 3), Matern(0.5)
    values, found = np.linalg.eigvalsh(kernel(X))[[0, -1]], smallest_eigenvalue(kernel, X)
    assert (found.n_sampled, found.n_rows, found.verdict) == (80, 80, "definite")
    assert "all 80 rows" in str(found) and "positive definite, condition" in str(found)
    for each in (found, smallest_eigenvalue(kernel, sp.csr_array(X)), smallest_eigenvalue(Precomputed(), kernel(X))):
        assert_allclose([each.smallest, each.largest], values, rtol=1e-6)
    given, computed = smallest_eigenvalue(Precomputed(), kernel(X), 20), smallest_eigenvalue(kernel, X, 20)
    assert_allclose([given.smallest, given.largest], [computed.smallest, computed.largest], rtol=1e-6)


def test_a_sample_bounds_the_whole_and_says_what_alpha_must_exceed():
    X = random(400, 3)
    values = np.linalg.eigvalsh(Sigmoid()(X))
    one, found, other = (smallest_eigenvalue(Sigmoid(), X, n_sample=60, random_state=seed) for seed in (2, 2, 1))
    assert one == found != other
    assert values[0] <= found.smallest <= found.largest <= values[-1]  # Cauchy's interlacing
    assert (found.n_sampled, found.n_rows, found.verdict) == (60, 400, "indefinite")
    assert "60 of 400 rows" in str(found) and "indefinite" in str(found) and "alpha must exceed" in str(found)


@pytest.mark.parametrize("kernel", [Polynomial(degree=2), kernels.Normalized(Linear()), RBF(gamma=2.0)], ids=str)
def test_fewer_features_than_rows_and_repeated_rows_are_semidefinite_to_rounding(kernel):
    X = random(50, 4)
    if isinstance(kernel, RBF):
        assert smallest_eigenvalue(kernel, X).verdict == "definite"
        X = np.vstack([X, X[:1]])
    found = smallest_eigenvalue(kernel, X)
    assert found.verdict == "semidefinite"
    assert abs(found.smallest) <= found.rounding < 1e-10 * found.largest
    assert "singular" in str(found) and "alpha = 0 will fail" in str(found)
