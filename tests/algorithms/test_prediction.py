"""Predictions need memory for blocks of bounded size, whatever is wide."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.cluster.process import usable_cores
from dkrr.data import MemoryRows, as_rows, write_rows
from dkrr.errors import InputError, NotFiniteError
from dkrr.features import CallableMap
from dkrr.fitting.model import FittedFunction
from dkrr.fitting.prediction import BLOCK_BYTES, BLOCK_ROWS, block_rows, predict
from dkrr.kernels import RBF
from tests.stores import place
from tests.systems import random, traced_peak

MIB = 2**20


def fitted(n, d, t, rows=None):
    rng = np.random.default_rng(0)
    rows = MemoryRows(rng.normal(size=(n, d))) if rows is None else rows
    return FittedFunction(RBF(0.1 / d), d, None, None, rng.normal(size=(n, t)), rows, np.zeros(t))


@pytest.mark.parametrize(("d", "t"), [(3, 1), (20_000, 1), (3, 20_000), (10**7, 1)])
def test_blocks_are_lower_where_something_is_wide(d, t):
    model = FittedFunction(RBF(1.0), d, None, None, None, None, np.zeros(t))
    height = block_rows(model, MemoryRows(np.broadcast_to(0.0, (5000, d))))
    assert 1 <= height <= BLOCK_ROWS and (height == 1 or height * 8 * max(d, t) <= BLOCK_BYTES)


def test_what_is_kept_of_the_training_rows_is_bounded_and_not_pickled(monkeypatch):
    model, X = fitted(3000, 4, 2), MemoryRows(random(5, 4, seed=1))
    pickled = pickle.dumps(model)
    first = predict(model, X)
    assert set(model._kernels_to) == {(0, 1024), (1024, 2048), (2048, 3000)}
    assert len(pickle.dumps(model)) == len(pickled)
    for other in (model, pickle.loads(pickled)):
        assert_array_equal(predict(other, X), first)
    monkeypatch.setattr("dkrr.fitting.model.KEPT_BYTES", RBF().kept_bytes(3000, 4) - 1)
    other = replace(model)
    assert_array_equal(predict(other, X), first)
    assert not other._kernels_to


def test_threads_share_what_is_kept_of_the_training_rows():
    model, X = fitted(5000, 3, 1), random(200, 3, seed=1)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: predict(model, MemoryRows(X[k : k + 1])), range(200)))
    assert_allclose(np.concatenate(found), predict(replace(model), MemoryRows(X)), rtol=1e-12)


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
        model = FittedFunction(RBF(1.0), 2, np.ones((1, 1)), phi, None, None, np.zeros(1))
    found = []
    thread = threading.Thread(target=lambda: found.append(predict(model, X)), daemon=True)
    thread.start()
    thread.join(60)
    assert len(found) == 1, "prediction hangs"
    assert_allclose(found[0], predict(fitted(20, 2, 1), X))


@pytest.mark.parametrize("where", ["memory", "Dask", "Zarr"])
def test_messages_number_rows_from_the_first_of_all(tmp_path, where):
    X = np.zeros((3000, 2))
    X[2500] = 1e10, np.nan
    huge = FittedFunction(RBF(1.0), 2, np.full((1, 1), 1e308), CallableMap(lambda Z: Z[:, :1], 1), None, None, [0.0])
    for model, numbers, error in ((fitted(10, 2, 1), X, InputError), (huge, np.nan_to_num(X), NotFiniteError)):
        rows = as_rows(da.from_array(numbers, chunks=(1000, 2))) if where == "Dask" else MemoryRows(numbers)
        rows = write_rows(rows, place(tmp_path / error.__name__)) if where == "Zarr" else rows
        with pytest.raises(error, match="row 2500"):
            np.asarray(predict(model, rows))
