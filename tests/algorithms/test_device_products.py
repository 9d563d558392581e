"""Products on a made-up GPU: a partial factor there, K(x, X), what is kept, and what has no room."""

import uuid

import dask
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.cluster import SerialExecutor
from dkrr.data import MemoryRows
from dkrr.errors import MemoryLimitError
from dkrr.fitting import kept_preconditioner
from dkrr.fitting.kept_preconditioner import KeptPreconditioner
from dkrr.kernels import RBF, Linear, Matern
from dkrr.linalg import device_products, factor_rows
from dkrr.linalg.column_sources import GramColumns
from dkrr.linalg.device_products import DeviceExecutor
from dkrr.linalg.gram_products import TiledOperator
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.sources import GramTiles
from dkrr.store import RunStore, TileGrid
from tests.gpus import NAMESPACES, MadeUpDevice
from tests.systems import random, rows_of

N, RANK = 131, 40
X = random(N, 3)
ROWS = MemoryRows(X)
LOW = {"rtol": 0, "atol": 2e-6}

every_namespace = pytest.mark.parametrize("xp", NAMESPACES.values(), ids=NAMESPACES)


@pytest.fixture(autouse=True)
def few_first_columns(monkeypatch):
    """Most columns of these small factors are not among the first, whose products are always in float64."""
    monkeypatch.setattr(factor_rows, "HEAD_COLUMNS", 5)


def on_gpu(xp=np, height=24, most=np.inf, **settings):
    return DeviceExecutor(MadeUpDevice(xp, most, **settings), height, 1e6)


def factor(executor, kernel=RBF(gamma=0.4), rows=X, slots=1, **settings):  # noqa: B008
    """An empty partial factor in float32."""
    columns, run = GramColumns(kernel.resolved(3), MemoryRows(rows)), f"test-{uuid.uuid4().hex}"
    return PivotedCholesky(columns, executor, run, slots, 999, dtype=np.float32, **settings)


@every_namespace
@pytest.mark.parametrize("kernel", [RBF(gamma=0.4), 1e-20 * RBF(gamma=0.4), Linear() + 0.1 * Matern()], ids=str)
@pytest.mark.parametrize("slots", [1, 3])
def test_a_factor_is_the_one_that_the_cpu_makes(xp, kernel, slots):
    importance = np.linspace(0.5, 2.0, N)
    here, there = (factor(e, kernel, slots=slots, importance=importance) for e in (SerialExecutor(), on_gpu(xp)))
    size, V = here.diagonal.max(), random(N, 2, seed=5)
    for rank in (10, RANK):
        here.grow(rank)
        there.grow(rank)
        assert_array_equal(there.index, here.index)
        assert_allclose(there.pivot_factor, here.pivot_factor, **LOW)
        assert_allclose(rows_of(there) / np.sqrt(size), rows_of(here) / np.sqrt(size), **LOW)
        assert_allclose(there.residual_diagonal / size, here.residual_diagonal / size, **LOW)
        assert there.traces == [(r, pytest.approx(t, rel=1e-4)) for r, t in here.traces]
        weights = np.where(np.arange(N) < 30, 0.0, np.linspace(0.1, 3.0, N))
        for precision in ("float64", "float32"):
            for use, argument in (("project", V), ("expand", V[:rank]), ("gram", weights)):
                found, expected = (getattr(one, use)(argument, precision) for one in (there, here))
                assert found.dtype == np.float64
                lower = np.tri(*found.shape) if use == "gram" else 1.0
                assert_allclose(found * lower, expected * lower, rtol=0, atol=1e-5 * np.abs(expected * lower).max())


def test_products_in_float64_of_a_factor_in_float32_have_all_digits():
    one = factor(on_gpu())
    one.grow(RANK)
    F, V = rows_of(one), random(N, 2, seed=5)
    assert_allclose(one.project(V), F.T @ V, rtol=0, atol=1e-13 * N)
    assert 1e-10 < np.abs(one.project(V, "float32") - F.T @ V).max() < 1e-4


@pytest.mark.parametrize("lose", ["clear", "forget"])
def test_rows_that_are_lost_are_computed_again(lose):
    executor = on_gpu()
    one = factor(executor)
    one.grow(RANK)
    before = rows_of(one)
    if lose == "clear":
        executor._factors.clear()
    else:
        one.close()
    assert_allclose(rows_of(one), before, rtol=0, atol=1e-4)
    one.grow(RANK + 20)
    assert one.rank == RANK + 20


def test_a_factor_is_restored_from_its_pivots():
    first, second = factor(on_gpu()), factor(on_gpu(height=17))
    first.grow(RANK)
    second.restore(first.index)
    assert_allclose(rows_of(second), rows_of(first), rtol=0, atol=1e-4)
    assert_allclose(second.residual_diagonal, first.residual_diagonal, rtol=0, atol=1e-4)
    assert len(second.traces) > 3


def kept_columns(store):
    return kept_preconditioner._found(store.note(kept_preconditioner.FACTOR), store.open_array)[0]


@pytest.mark.parametrize("there", [SerialExecutor, lambda: on_gpu(height=50)], ids=["cpu", "gpu"])
def test_columns_that_are_kept_serve_here_and_there_and_for_more_rows(tmp_path, there):
    store = RunStore(str(tmp_path / "run"))
    store.open()
    first = factor(on_gpu())
    with dask.config.set({"dkrr.checkpoint-seconds": 0}):
        keeping = KeptPreconditioner(store, first, 1e9)
        assert keeping.load() is None
        first.grow(20, lambda f: keeping.after_round())
        first.grow(RANK, lambda f: keeping.after_round())
        keeping.end()
        second = factor(there())
        assert KeptPreconditioner(store, second, 1e9).load() is True
    assert_array_equal(second.index, first.index)
    assert_array_equal(rows_of(second), rows_of(first))
    more = np.vstack([X, random(40, 3, seed=9)])
    grown, state = factor(there(), rows=more), first.state()
    grown.restore_columns(kept_columns(store), state)
    assert_allclose(rows_of(grown)[:N], rows_of(first), rtol=0, atol=1e-4)
    expected = RBF(gamma=0.4)(more, more[grown.index])
    assert_allclose(rows_of(grown) @ grown.pivot_factor.T, expected, rtol=0, atol=1e-4)


@every_namespace
def test_predictions_and_their_adjoint_are_those_of_the_whole_matrix(xp):
    kernel, x, coefs = Matern(nu=1.5), random(30, 3, seed=2), [random(N, t, seed=t) for t in (1, 2)]
    cross, K = on_gpu(xp).cross_gram(kernel, MemoryRows(X)), kernel(x, X)
    outs = [np.ones((30, t)) for t in (1, 2)]
    cross.add_times(x, coefs, outs)
    for coef, out in zip(coefs, outs, strict=True):
        assert_allclose(out, 1.0 + K @ coef, rtol=0, atol=1e-12)
        assert_allclose(cross.times(x, coef), K @ coef, rtol=0, atol=1e-12)
    assert_allclose(cross.adjoint_times(x, coefs[1][:30], 1), K.T @ coefs[1][:30], rtol=0, atol=1e-12)
    assert_allclose(cross.entries(x, None, 1), K.T, rtol=0, atol=1e-12)


def operator(executor, tile=64):
    return TiledOperator(GramTiles(RBF(gamma=0.4), ROWS), TileGrid(N, tile, tile), executor, f"test-{uuid.uuid4().hex}")


def test_blocks_become_smaller_where_there_is_no_room_and_stay_so(monkeypatch):
    monkeypatch.setattr(device_products, "MIN_SIDE", 8)
    executor, V = on_gpu(height=64, most=20 * 20), random(N, 2)
    product = operator(executor)
    found = product.multiply(V)
    assert_allclose(found, RBF(gamma=0.4)(X) @ V, rtol=0, atol=1e-12)
    refused = executor.device.refused
    assert 0 < refused == executor.device.released, "memory that is kept for later arrays is given back first"
    assert_array_equal(product.multiply(V), found)
    assert executor.device.refused == refused


def test_no_room_for_the_smallest_block_or_for_a_factor_is_an_error_with_the_numbers(monkeypatch):
    monkeypatch.setattr(device_products, "MIN_SIDE", 32)
    for use in (lambda e: operator(e).multiply(random(N, 1)), lambda e: factor(e).grow(RANK)):
        with pytest.raises(MemoryLimitError, match=r"1 MiB of its 2 MiB are free.*device='cpu'"):
            use(on_gpu(height=64, most=100, free=2**20))


def test_rows_are_on_the_device_once_while_they_have_room():
    class Counted(MadeUpDevice):
        n = 0

        def array(self, values):
            self.n += values.shape == (24, 3)
            return super().array(values)

    def loads(row_bytes):
        executor = DeviceExecutor(Counted(), 24, row_bytes)
        for _ in range(3):
            operator(executor, tile=24).multiply(random(N, 1))
        return executor.device.n

    assert loads(1e6) == N // 24
    assert loads(3 * 24 * 4 * 8) > 3 * (N // 24)


def test_all_is_given_back_at_the_end():
    with on_gpu() as executor:
        one = factor(executor)
        one.grow(10)
        assert executor._rows and executor._factors
        device = executor.device
    assert not executor._rows and not executor._factors and device.released
