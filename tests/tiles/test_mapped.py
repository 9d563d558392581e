"""Arrays in mapped files."""

import numpy as np
import pytest

from dkrr.errors import DiskSpaceError
from dkrr.tiles.mapped import is_mapped, mapped_array, release_pages


def test_an_array_like_others_and_no_file_beside_it(tmp_path):
    array = mapped_array((7, 3), str(tmp_path))
    assert array.shape == (7, 3) and array.dtype == np.float64 and array.flags.writeable and array.flags.c_contiguous
    assert (array == 0).all() and list(tmp_path.iterdir()) == []
    array[...] = np.arange(21.0).reshape(7, 3)
    assert array[6, 2] == 20.0


def test_what_is_mapped(tmp_path):
    np.save(tmp_path / "y.npy", np.ones((4, 2)))
    mapped = np.load(tmp_path / "y.npy", mmap_mode="r")
    for array in (mapped, np.asarray(mapped), mapped[1:, None], mapped_array((2,), None)):
        assert is_mapped(array)
    for array in (np.ones(3), np.array(mapped), np.frombuffer(b"12345678"), mapped + 1.0, [1.0], None):
        assert not is_mapped(np.asarray(array) if array is None else array)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_released_pages_are_read_again_and_changes_are_kept(tmp_path, mode):
    np.save(tmp_path / "y.npy", np.arange(5000.0))
    mapped = np.load(tmp_path / "y.npy", mmap_mode=mode)
    if mode != "r":
        mapped[3] = -1.0
    release_pages(np.asarray(mapped)[:, None])
    assert mapped[3] == (3.0 if mode == "r" else -1.0) and mapped[4999] == 4999.0
    release_pages(np.ones(3))


def test_no_room_is_an_error_before_anything_is_written(tmp_path):
    with pytest.raises(DiskSpaceError, match=r"dual coefficients.*temporary-directory"):
        mapped_array((2**40, 2**10), str(tmp_path))
