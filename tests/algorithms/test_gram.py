"""The Gram matrix as a lazy array, computed block by block or kept in a store; the spectrum of a sample of it."""

import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dask
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
from dkrr.errors import InputError, NotFiniteError, StoreError
from dkrr.features import CallableMap
from dkrr.fitting import request_plans
from dkrr.fitting.fitted_function import PREDICTED_BYTES, PREDICTED_ROWS, FittedFunction
from dkrr.fitting.prediction import predict
from dkrr.kernels import RBF, Laplacian, Linear, Matern, Polynomial, Precomputed, Sigmoid, smallest_eigenvalue
from dkrr.limits import usable_cores
from dkrr.linalg.preconditioners import SAMPLE, estimated_spectrum, power_law
from dkrr.store import ChunkedArray
from tests import systems
from tests.inputs import table
from tests.oracles import assert_close, naive_gram
from tests.pairs import every_pair
from tests.stores import place
from tests.systems import random, traced_peak

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


@pytest.mark.parametrize(
    ("n", "d", "accuracy"),
    [pytest.param(3 * SAMPLE, 12, 2.0, marks=pytest.mark.nightly), (1700, 12, 2.3), (4 * SAMPLE, 1100, 1.3)],
)
def test_the_spectrum_of_a_sample_is_that_of_all_rows(n, d, accuracy):
    """Of more columns than the sample has rows, directions look larger in it by 40 to 70 % without a correction."""
    kernel = RBF(gamma=1 / 12) if d < SAMPLE else Linear()
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
        assert systems.traced_peak(lambda: found.append(estimated_spectrum(RBF(gamma=0.5), rows))) < 200 * 2**20  # noqa: B023
        assert found[0] == pytest.approx(estimated_spectrum(RBF(gamma=0.5), MemoryRows(X)), rel=0.5)


BY_CG, SEARCH = {"kernel": "rbf", "solver": "cg"}, {"kernel": "polynomial", "cv": 5}


@pytest.mark.parametrize(
    ("shape", "settings", "is_sampled"),
    [((4100, 50), BY_CG, True), ((4100, 9000), BY_CG, False), ((512, 400), SEARCH, True), ((511, 400), SEARCH, False)],
)
def test_rows_are_sampled_where_iterations_may_be_chosen(monkeypatch, tmp_path, shape, settings, is_sampled):
    """Of rows that are too wide a sample would take memory that no plan counts; few are sampled for searches."""
    np.lib.format.open_memmap(tmp_path / "X.npy", "w+", shape=shape)
    sampled = []
    monkeypatch.setattr(request_plans, "estimated_spectrum", lambda kernel, rows: sampled.append(rows))
    dkrr.plan(tmp_path / "X.npy", memory_limit="4GiB", **settings)
    assert bool(sampled) == is_sampled


@pytest.mark.parametrize("kernel", [RBF(gamma=0.5), Linear()])
def test_nan_is_left_to_the_check_of_all_rows(kernel):
    X = np.zeros((SAMPLE, 2))
    X[::2, 1] = np.nan
    assert estimated_spectrum(kernel, MemoryRows(X)) is None


def test_all_rows_are_taken_where_there_are_few():
    X, kernel = random(80, 3), Matern(nu=0.5)
    values, found = np.linalg.eigvalsh(kernel(X))[[0, -1]], smallest_eigenvalue(kernel, X)
    assert (found.n_sampled, found.n_rows, found.verdict) == (80, 80, "definite")
    assert "all 80 rows" in str(found) and "positive definite, condition" in str(found)
    for each in (found, smallest_eigenvalue(kernel, sp.csr_array(X)), smallest_eigenvalue(Precomputed(), kernel(X))):
        assert_allclose([each.smallest, each.largest], values, rtol=1e-6)
    given, computed = (
        smallest_eigenvalue(Precomputed(), kernel(X), n_sample=20),
        smallest_eigenvalue(kernel, X, n_sample=20),
    )
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


# Predictions need memory for blocks of bounded size, whatever is wide


MIB = 2**20


def fitted(n, d, t, rows=None):
    rng = np.random.default_rng(0)
    rows = MemoryRows(rng.normal(size=(n, d))) if rows is None else rows
    return FittedFunction(RBF(gamma=0.1 / d), d, None, None, rng.normal(size=(n, t)), rows, np.zeros(t))


@pytest.mark.parametrize(("d", "t"), [(3, 1), (20_000, 1), (3, 20_000), (10**7, 1)])
def test_blocks_are_lower_where_something_is_wide(d, t):
    model = FittedFunction(RBF(gamma=1.0), d, None, None, None, None, np.zeros(t))
    height = model.block_rows(MemoryRows(np.broadcast_to(0.0, (5000, d))))
    assert 1 <= height <= PREDICTED_ROWS and (height == 1 or height * 8 * max(d, t) <= PREDICTED_BYTES)


def test_what_is_kept_of_the_training_rows_is_bounded_and_not_pickled(monkeypatch):
    model, X = fitted(3000, 4, 2), MemoryRows(random(5, 4, seed=1))
    pickled = pickle.dumps(model)
    first = predict(model, X)
    assert set(model.cross._kept) == {0, 1024, 2048}
    assert len(pickle.dumps(model)) == len(pickled)
    for other in (model, pickle.loads(pickled)):
        assert_array_equal(predict(other, X), first)
    monkeypatch.setattr("dkrr.linalg.cross_gram_products.KEPT_BYTES", RBF().kept_bytes(3000, 4) - 1)
    other = replace(model)
    assert_array_equal(predict(other, X), first)
    assert other.cross._kept is None


def test_threads_share_what_is_kept_of_the_training_rows():
    model, X = fitted(5000, 3, 1), random(200, 3, seed=1)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: predict(model, MemoryRows(X[k : k + 1])), range(200)))
    assert_close(np.concatenate(found), predict(replace(model), MemoryRows(X)), 1e-13)


def test_training_rows_of_many_columns_are_read_in_parts(tmp_path):
    stored = write_rows(MemoryRows(random(400, 20_000, seed=1)), place(tmp_path / "rows"))
    model, X = fitted(400, 20_000, 1, stored), MemoryRows(random(20, 20_000, seed=2))
    # 61 MiB of training rows, and as much again for the kernel, if they are read at once.
    assert traced_peak(lambda: predict(model, X)) < 80 * MIB


def test_lazy_predictions_of_many_targets_are_never_in_memory_at_once():
    model, X = fitted(50, 2, 2000), random(20_000, 2, seed=1)
    lazy = predict(model, as_rows(da.from_array(X, chunks=(20_000, 2))))
    ends = lazy.map_blocks(lambda block: block[:1, :1].copy(), chunks=(1, 1), dtype=float, meta=np.empty((0, 0)))
    # 262 MiB in blocks of 16,384 rows, twice.
    with dask.config.set(num_workers=2):
        assert traced_peak(ends.compute) < 160 * MIB
    assert len(lazy.chunks[0]) > 10


def test_features_may_be_predictions_of_another_model():
    # One level more than there are cores: no thread may wait for the one that is waiting for it.
    model, X = fitted(20, 2, 1), MemoryRows(random(5, 2, seed=1))
    for _ in range(usable_cores() + 1):
        phi = CallableMap(lambda Z, base=model: predict(base, MemoryRows(Z)), 1)
        model = FittedFunction(RBF(gamma=1.0), 2, np.ones((1, 1)), phi, None, None, np.zeros(1))
    found = []
    thread = threading.Thread(target=lambda: found.append(predict(model, X)), daemon=True)
    thread.start()
    thread.join(60)
    assert len(found) == 1, "prediction hangs"
    assert_close(found[0], predict(fitted(20, 2, 1), X), 1e-12)


@pytest.mark.parametrize("where", ["memory", "Dask", "Zarr"])
def test_messages_number_rows_from_the_first_of_all(tmp_path, where):
    X = np.zeros((3000, 2))
    X[2500] = 1e10, np.nan
    huge = FittedFunction(
        RBF(gamma=1.0), 2, np.full((1, 1), 1e308), CallableMap(lambda Z: Z[:, :1], 1), None, None, [0.0]
    )
    for model, numbers, error in ((fitted(10, 2, 1), X, InputError), (huge, np.nan_to_num(X), NotFiniteError)):
        rows = as_rows(da.from_array(numbers, chunks=(1000, 2))) if where == "Dask" else MemoryRows(numbers)
        rows = write_rows(rows, place(tmp_path / error.__name__)) if where == "Zarr" else rows
        with pytest.raises(error, match="row 2500"):
            np.asarray(predict(model, rows))
