"""Ordinary Zarr arrays, of users and as output, and arrays in mapped files."""

import numpy as np
import pytest
import zarr
from numpy.testing import assert_array_equal

from dkrr.data.arrays import is_mapped, mapped_array, release_pages
from dkrr.errors import DiskSpaceError, StoreError
from dkrr.store.zarr_arrays import ROW_CHUNK_BYTES, chunk_rows, create_array, is_zarr_array, open_array, place_of


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "uint16", "bool"])
def test_an_array_is_written_opened_and_not_replaced(tmp_path, dtype):
    data = (np.arange(21).reshape(7, 3) % 2).astype(dtype)
    create_array(f"{tmp_path}/a", (7, 3), dtype, rows_per_chunk=2)[:] = data
    found = open_array(f"{tmp_path}/a")
    assert is_zarr_array(found) and not is_zarr_array(data)
    assert (found.chunks, found.dtype) == ((2, 3), dtype)
    assert_array_equal(found[:], data)
    with pytest.raises(ValueError, match="read.?only"):
        found[0] = 0
    with pytest.raises(ValueError, match="array exists"):
        create_array(f"{tmp_path}/a", (2,), "int32")
    open_array(f"{tmp_path}/a", "r+")[0] = 1
    assert_array_equal(open_array(f"{tmp_path}/a")[:], np.vstack([[[1, 1, 1]], data[1:]]))


def test_a_missing_chunk_is_not_zero_and_chunks_have_bounded_sizes(tmp_path):
    create_array(f"{tmp_path}/a", (4, 3), "float64", rows_per_chunk=2)[:] = 1.0
    (tmp_path / "a" / "c" / "1" / "0").unlink()
    assert np.isnan(open_array(f"{tmp_path}/a")[2:]).all()
    assert chunk_rows((10**9, 13), "float32") == ROW_CHUNK_BYTES // (4 * 13)
    assert chunk_rows((10**9, ROW_CHUNK_BYTES), "float64") == 1, "a row wider than a chunk is a chunk"
    assert chunk_rows((10**9,), "int8") == 2**20
    assert create_array(str(tmp_path / "b"), (10**7, 13), "float64").chunks == (ROW_CHUNK_BYTES // 104, 13)


def test_what_is_not_an_array_is_named(tmp_path):
    zarr.create_group(tmp_path / "group")
    (tmp_path / "file").write_text("mine")
    for name, words in (("group", "is not a Zarr array"), ("file", "is not a Zarr array"), ("nothing", "")):
        with pytest.raises(StoreError, match=f"{tmp_path}/{name}.*{words}"):
            open_array(f"{tmp_path}/{name}")


def test_the_place_of_an_open_array_opens_the_same_array_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = zarr.create_group("g.zarr")
    # A file system of fsspec stands in for one of a network.
    far = zarr.storage.FsspecStore.from_url(f"file://{tmp_path}/far", storage_options={"auto_mkdir": True})
    arrays = [
        zarr.create_array("x.zarr", shape=(3,), dtype="f8"),
        group.create_array("a/b", shape=(3,), dtype="f8"),
        zarr.create_group(far).create_array("a", shape=(3,), dtype="f8"),
    ]
    for number, array in enumerate(arrays):
        array[:] = number
    urls = [place_of(array) for array in arrays]
    monkeypatch.chdir("/")
    assert_array_equal([open_array(url)[:] for url in urls], [[0.0] * 3, [1.0] * 3, [2.0] * 3])


def test_a_mapped_array_is_like_others_and_no_file_is_beside_it(tmp_path):
    array = mapped_array((7, 3), str(tmp_path))
    assert (array.shape, array.dtype) == ((7, 3), np.float64) and array.flags.writeable and array.flags.c_contiguous
    assert (array == 0).all() and list(tmp_path.iterdir()) == []
    array[...] = np.arange(21.0).reshape(7, 3)
    assert array[6, 2] == 20.0
    with pytest.raises(DiskSpaceError, match=r"dual coefficients.*temporary-directory"):
        mapped_array((2**40, 2**10), str(tmp_path))


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_mapped_arrays_are_told_from_others_and_keep_changes_when_their_pages_are_released(tmp_path, mode):
    np.save(tmp_path / "y.npy", np.arange(5000.0))
    mapped = np.load(tmp_path / "y.npy", mmap_mode=mode)
    assert all(map(is_mapped, (mapped, np.asarray(mapped), mapped[1:, None], mapped_array((2,), None))))
    assert not any(map(is_mapped, (np.ones(3), np.array(mapped), np.frombuffer(b"12345678"), mapped + 1.0, None)))
    if mode != "r":
        mapped[3] = -1.0
    release_pages(np.asarray(mapped)[:, None])
    assert mapped[3] == (3.0 if mode == "r" else -1.0) and mapped[4999] == 4999.0
    release_pages(np.ones(3))
