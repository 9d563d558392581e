"""A chunk is compared with its checksum again once its file has changed, or a minute has passed."""

import os
import time

import numpy as np
import pytest

from dkrr.errors import DamagedChunkError
from dkrr.tiles import ChunkedArray, chunks


@pytest.fixture
def array(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "SETTLED_SECONDS", 0.05)
    array = ChunkedArray.create(str(tmp_path / "a"), (8, 4), (4, 4), "float64", "run/a")
    array.fill(np.arange(32.0).reshape(8, 4))
    time.sleep(0.1)
    return array


@pytest.fixture
def counted(monkeypatch):
    """Chunks whose checksums were computed."""
    found, tail = [], ChunkedArray._tail
    monkeypatch.setattr(ChunkedArray, "_tail", lambda self, key, *rest: found.append(key) or tail(self, key, *rest))
    return found


def test_once_in_a_minute(array, counted, monkeypatch):
    for _ in range(3):
        array.mapped((0, 0))
        array.mapped((1, 0))
    assert counted == ["c.0.0", "c.1.0"]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    array.mapped((0, 0))
    assert counted == ["c.0.0", "c.1.0", "c.0.0"]


def test_a_file_that_has_just_changed_may_change_again(array, counted, monkeypatch):
    monkeypatch.setattr(chunks, "SETTLED_SECONDS", 1e6)
    array.mapped((0, 0))
    array.mapped((0, 0))
    assert counted == ["c.0.0", "c.0.0"]


@pytest.mark.parametrize("change", ["in place", "replaced", "exchanged"])
def test_what_has_changed_is_compared(array, change):
    file, other = f"{array.url}/c.0.0", f"{array.url}/c.1.0"
    array.mapped((0, 0))
    array.mapped((1, 0))
    before = os.stat(file)  # noqa: PTH116
    if change == "exchanged":
        for old, new in ((file, f"{file}.x"), (other, file), (f"{file}.x", other)):
            os.rename(old, new)  # noqa: PTH104
    else:
        place = file if change == "in place" else f"{file}.new"
        with open(file, "rb") as old:  # noqa: PTH123
            raw = bytearray(old.read())
        raw[5] ^= 1
        with open(place, "r+b" if change == "in place" else "wb") as new:  # noqa: PTH123
            new.write(raw)
        os.replace(place, file)  # noqa: PTH105
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DamagedChunkError, match=r"c\.0\.0"):
        array.mapped((0, 0))


def test_another_array_at_the_same_place_is_compared(array):
    array.mapped((0, 0))
    with pytest.raises(DamagedChunkError):
        ChunkedArray(array.url, array.shape, array.chunks, array.dtype, 0, "other/a").mapped((0, 0))
