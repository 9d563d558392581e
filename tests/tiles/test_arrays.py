"""Ordinary Zarr arrays: opening the user's, and the rows that dkrr writes."""

import uuid

import numpy as np
import pytest
import zarr
from numpy.testing import assert_array_equal

from dkrr.errors import StoreError
from dkrr.tiles.arrays import (
    CHUNK_BYTES,
    array_url,
    chunk_rows,
    create_array,
    is_zarr_array,
    open_array,
)


@pytest.fixture(params=["path", "bucket"])
def place(request, tmp_path):
    return str(tmp_path) if request.param == "path" else request.getfixturevalue("bucket")


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "uint16", "bool"])
def test_create_and_open(place, dtype):
    data = (np.arange(21).reshape(7, 3) % 2).astype(dtype)
    create_array(f"{place}/a", (7, 3), dtype, rows_per_chunk=2)[:] = data
    found = open_array(f"{place}/a")
    assert is_zarr_array(found) and not is_zarr_array(data)
    assert (found.chunks, found.dtype) == ((2, 3), dtype)
    assert_array_equal(found[:], data)
    with pytest.raises(ValueError, match="read.?only"):
        found[0] = 0
    open_array(f"{place}/a", "r+")[0] = 1
    assert_array_equal(open_array(f"{place}/a")[0], [1, 1, 1])


def test_create_replaces_nothing(place):
    create_array(f"{place}/a", (7, 3), "float64")[:] = 1.0
    with pytest.raises(ValueError, match="array exists"):
        create_array(f"{place}/a", (2,), "int32")
    assert_array_equal(open_array(f"{place}/a")[:], np.ones((7, 3)))


@pytest.mark.parametrize("shape", [(0,), (5, 0), (1, 1)])
def test_small_and_empty(place, shape):
    assert create_array(f"{place}/a", shape, "float64")[...].shape == shape


def test_chunk_rows(tmp_path):
    assert chunk_rows((10**9, 13), "float32") == CHUNK_BYTES // (4 * 13)
    assert chunk_rows((10**9, CHUNK_BYTES), "float64") == 1, "a row wider than a chunk is a chunk"
    assert chunk_rows((10**9,), "int8") == 2**20
    assert create_array(str(tmp_path / "a"), (10**7, 13), "float64").chunks == (CHUNK_BYTES // 104, 13)


def test_not_there(place):
    with pytest.raises(StoreError, match=f"{place}/nothing"):
        open_array(f"{place}/nothing")


def test_a_missing_chunk_is_not_zero(tmp_path):
    create_array(f"{tmp_path}/a", (4, 3), "float64", rows_per_chunk=2)[:] = 1.0
    (tmp_path / "a" / "c" / "1" / "0").unlink()
    assert np.isnan(open_array(f"{tmp_path}/a")[2:]).all()


def test_something_else(tmp_path):
    zarr.create_group(tmp_path / "group")
    (tmp_path / "file").write_text("mine")
    for name in ("group", "file"):
        with pytest.raises(StoreError, match=f"{name} is not a Zarr array"):
            open_array(str(tmp_path / name))


class TestArrayUrl:
    """The path or URL of an open array, for another process: what opens there must be the same array."""

    def test_local(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        whole = zarr.create_array("x.zarr", shape=(3,), dtype="f8")
        inside = zarr.create_group("g.zarr").create_array("a/b", shape=(3,), dtype="f8")
        whole[:], inside[:] = 1.0, 2.0
        urls = array_url(whole), array_url(inside)
        monkeypatch.chdir("/")  # where the other process may be
        for url, value in zip(urls, (1.0, 2.0), strict=True):
            assert_array_equal(open_array(url)[:], [value] * 3)

    def test_of_this_process_only(self):
        array = zarr.create_array(zarr.storage.MemoryStore(), shape=(3,), dtype="f8")
        assert array_url(array) is None
        store = zarr.storage.FsspecStore.from_url(f"memory://{uuid.uuid4().hex}")
        assert array_url(zarr.create_array(store, shape=(3,), dtype="f8")) is None

    def test_remote(self, tmp_path):
        # A file system of fsspec stands in for an object store.
        store = zarr.storage.FsspecStore.from_url(f"file://{tmp_path}", storage_options={"auto_mkdir": True})
        array = zarr.create_group(store).create_array("a", shape=(3,), dtype="f8")
        array[:] = 4.0
        assert_array_equal(open_array(array_url(array))[:], [4.0] * 3)
