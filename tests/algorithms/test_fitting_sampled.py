"""Centres are drawn from the rows before the plan; tasks that travel carry names, not arrays."""

import pickle

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import KernelRidge
from dkrr.errors import InputError, MemoryLimitError
from dkrr.features import ConcatenatedMap, IdentityMap, MapKernel, Nystroem, NystroemMap, RandomFourier, ScaledMap
from dkrr.fitting.sampled import _StoredMap, by_name, drawn, nystroem_map
from dkrr.kernels import RBF, Linear, Sum
from dkrr.rows import MemoryRows, as_rows

pytestmark = pytest.mark.usefixtures("one_blas_thread")


def numbers(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


class Watched(MemoryRows):
    """Notes which rows are read."""

    def __init__(self, array):
        super().__init__(array)
        self.seen = set()

    def read(self, start, stop, columns=slice(None)):
        self.seen |= set(range(start, stop))
        return super().read(start, stop, columns)

    def take(self, indices):
        self.seen |= set(indices.tolist())
        return super().take(indices)


def test_uniform_centres_are_rows_and_nothing_else_is_read():
    rows = Watched(numbers(500, 3))
    phi = nystroem_map(Nystroem(RBF(), 20, "uniform", random_state=7), rows)
    assert len(rows.seen) == 20
    assert {tuple(c) for c in phi.centres} == {tuple(rows.array[k]) for k in rows.seen}
    again = nystroem_map(Nystroem(RBF(), 20, "uniform", random_state=7), rows)
    assert again == phi
    assert nystroem_map(Nystroem(RBF(), 20, "uniform", random_state=8), rows) != phi
    assert phi.base == RBF(gamma=1 / 3)


def test_randomly_pivoted_centres_adapt_to_the_spectrum():
    # Nine in ten of the rows lie in one small cluster, of which one or two centres would do.
    rng = np.random.default_rng(1)
    X = np.vstack([0.01 * rng.standard_normal((900, 2)), 6 * rng.standard_normal((100, 2))])
    kernel = RBF(gamma=0.5)

    def error(pivots):
        phi = nystroem_map(Nystroem(kernel, 60, pivots), MemoryRows(X))
        return np.trace(kernel(X)) - (phi.transform(X) ** 2).sum()

    assert error("rpcholesky") < 0.5 * error("uniform")


@pytest.mark.parametrize("pivots", ["uniform", "rpcholesky"])
def test_every_kind_of_rows_gives_the_same_centres(pivots, tmp_path):
    X = np.where(numbers(80, 4) > 0, numbers(80, 4), 0.0)
    settings = Nystroem(RBF(), 9, pivots)
    expected = nystroem_map(settings, MemoryRows(X)).transform(X)
    np.save(tmp_path / "x.npy", X)
    for given in (sp.csr_array(X), da.from_array(X, chunks=(30, 4)), tmp_path / "x.npy"):
        assert_allclose(nystroem_map(settings, as_rows(given)).transform(X), expected, rtol=1e-9, atol=1e-9)


def test_parts_of_kernels_and_maps_are_drawn():
    rows, settings = MemoryRows(numbers(30, 3)), Nystroem(RBF(), 8, "uniform")
    whole = drawn(ConcatenatedMap(IdentityMap(), ScaledMap(settings, 2.0)), rows)
    assert isinstance(whole.right.base, NystroemMap)
    kernel = drawn(Linear() + 0.5 * MapKernel(settings), rows)
    assert isinstance(kernel.right.base.base, NystroemMap)
    for nothing in (Sum(Linear(), RBF()), RandomFourier(RBF(), 4), IdentityMap()):
        assert drawn(nothing, rows) is nothing


@pytest.mark.parametrize("pivots", ["uniform", "rpcholesky"])
def test_bad_numbers_are_found_before_centres_are_drawn(pivots):
    X = numbers(50, 2)
    X[:, 1] = np.nan
    with pytest.raises(InputError, match="contains NaN"):
        KernelRidge(kernel=Nystroem(RBF(), 5, pivots)).fit(X, X[:, 0])


def test_nothing_is_drawn_for_a_fit_without_a_plan(monkeypatch):
    monkeypatch.setattr("dkrr.fitting.sampled.choose_pivots", lambda *a: pytest.fail("drawn"))
    X = numbers(3000, 2)
    with pytest.raises(MemoryLimitError, match="memory"):
        KernelRidge(kernel=Nystroem(RBF(), 2900), memory_limit="100MiB").fit(X, X[:, 0])


SAMPLED = ConcatenatedMap(IdentityMap(), Nystroem(RBF(gamma=0.3), 40, "uniform"))


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_fits_with_drawn_centres_agree_in_tiles_in_one_process_and_on_workers(form, tmp_path, workers):
    X = numbers(400, 3)
    y = np.sin(X[:, 0])
    expected = KernelRidge(kernel=SAMPLED, alpha=0.1).fit(X, y).predict(X)
    settings = {"kernel": SAMPLED, "alpha": 0.1, "form": form, "tile": 20 if form == "primal" else 150}
    serial = KernelRidge(**settings, store=str(tmp_path / "run.zarr")).fit(X, y)
    assert serial.plan_.execution == "serial" and serial.plan_.form == form
    assert_allclose(serial.predict(X), expected, atol=1e-9)
    with workers.as_current():
        on_workers = KernelRidge(**settings).fit(X, y)
    assert on_workers.plan_.execution == "dask"
    assert_allclose(on_workers.predict(X), expected, atol=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
def test_what_travels_of_drawn_centres_is_their_name(sparse, tmp_path):
    from dkrr.fitting.context import Context
    from dkrr.fitting.storage import StoredArrays
    from dkrr.runtime import SerialExecutor, make_progress
    from dkrr.tiles import RunStore

    X = numbers(300, 4)
    X = sp.csr_array(np.where(X > 0, X, 0.0)) if sparse else X
    store = RunStore(str(tmp_path / "run.zarr"))
    store.open()
    context = Context(StoredArrays(store, keeps=True), SerialExecutor(), make_progress(False))
    value = drawn(SAMPLED, MemoryRows(X))
    assert by_name(value, context) is value  # tasks stay in this process
    context.client = "a cluster"
    named = by_name(value, context)
    assert isinstance(named.right, _StoredMap)
    assert len(pickle.dumps(named)) < 2000 < len(pickle.dumps(value))
    again = pickle.loads(pickle.dumps(named))
    w, v = numbers(value.dimension(4), 2, seed=1), numbers(300, 2, seed=2)
    assert_array_equal(again.transform(X), value.transform(X))
    assert_array_equal(again.multiply(X, w), value.multiply(X, w))
    assert_array_equal(again.adjoint(X, v), value.adjoint(X, v))
    assert_array_equal(by_name(value.kernel(), context)(X), value.kernel()(X))
    for ours, theirs in ((again, value), (again.kernel(), value.kernel())):
        assert type(ours) is type(theirs)
    assert again.entry_seconds(4) == value.entry_seconds(4)
    assert again.held_bytes(4) == value.held_bytes(4)
