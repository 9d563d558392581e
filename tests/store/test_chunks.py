"""Chunks in a folder and in a bucket: what is read is what was written, and nothing damaged passes for data."""

import itertools
import json
import os
import pickle
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dkrr.errors import DamagedChunkError, DiskSpaceError, StoreError
from dkrr.store import ChunkedArray
from dkrr.store import format as shards
from dkrr.store.paths import local_path
from dkrr.store.places import delete_partial, place_at

SHAPE, CHUNKS = (11, 7), (4, 3)
TAIL_BYTES = 8 + 16 + 4
"""Two checksums, and the index of a shard with one block."""
ALL = set(itertools.product(range(3), range(3)))


def filled(url, dtype="float64"):
    data = np.random.default_rng(0).standard_normal(SHAPE).astype(dtype)
    array = ChunkedArray.create(url, SHAPE, CHUNKS, dtype, "run/a")
    array.fill(data)
    return array, data


def change(array, key, edit):
    """Replace the bytes of a chunk by others made of them."""
    here = place_at(array.url)
    here.write(key, [edit(here.read(key, 10**6))])


def flipped(at):
    return lambda raw: raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :]


def refused(array, coordinates, match):
    """Each way to read a chunk finds it damaged; the last error."""

    def at_its_place():
        """As tiles are read: what cannot be mapped is read."""
        if array.mapped(coordinates) is None:
            array.read(coordinates, np.empty(CHUNKS, array.dtype))

    for use in (array.load, at_its_place, lambda: array.read(coordinates, np.empty(CHUNKS, array.dtype))):
        with pytest.raises(DamagedChunkError, match=match) as caught:
            use()
    return caught.value


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
def test_what_is_read_is_what_was_written(place, dtype):
    array, data = filled(f"{place}/a", dtype)
    assert_array_equal(array.load(), data)
    assert array.load().dtype == dtype
    out = np.full(CHUNKS, -1, dtype)
    assert array.read((1, 1), out) == array.chunk_bytes == data.itemsize * 4 * 3 + TAIL_BYTES
    assert_array_equal(out, data[4:8, 3:6])
    array.read((2, 2), out)
    assert_array_equal(out, np.pad(data[8:, 6:], ((0, 1), (0, 2)))), "zeros lie over the edge"
    assert array.present() == ALL and array.damaged_chunks() == []
    for buffer in (np.empty((4, 4), dtype), np.empty(CHUNKS, np.float16), np.empty((3, 4), dtype).T):
        with pytest.raises(ValueError, match=rf"chunk \(4, 3\) {dtype}"):
            array.read((0, 0), buffer)


@given(data=st.data(), ndim=st.integers(1, 3))
def test_every_shape_is_read_by_dkrr_and_by_zarr(tmp_path_factory, data, ndim):
    shape, sizes = (data.draw(st.tuples(*ndim * [st.integers(1, most)])) for most in (9, 10))
    values = np.random.default_rng(1).standard_normal(shape)
    folder = tmp_path_factory.mktemp("shape")
    for url in (f"{folder}/a", f"file://{folder}/b"):
        array = ChunkedArray.create(url, shape, sizes)
        array.fill(values)
        assert array.chunks == tuple(map(min, sizes, shape))
        assert_array_equal(array.load(), values)
        assert_array_equal(zarr.open_array(local_path(url), mode="r")[...], values)


def test_chunks_are_written_from_views_and_other_types_and_listed(place):
    array = ChunkedArray.create(f"{place}/a", SHAPE, CHUNKS)
    wide, out = np.arange(24.0).reshape(4, 6), np.empty(CHUNKS)
    for coordinates, block in [((0, 0), wide[:, ::2]), ((0, 1), wide[:, :3].astype(np.float32))]:
        assert array.write(coordinates, block) == array.chunk_bytes
        array.read(coordinates, out)
        assert_array_equal(out, block)
    assert array.present() == {(0, 0), (0, 1)}
    with pytest.raises(StoreError, match=r"chunk c\.\d\.\d of .* is not there"):
        array.load()
    array.discard((0, 0))
    assert array.present() == {(0, 1)}
    array.fill(np.zeros(SHAPE))  # zeros are data: Zarr's own default is not to write such chunks
    assert array.present() == ALL


def test_a_mapped_chunk_stays_when_its_file_has_gone(tmp_path, memory_bucket):
    array, data = filled(str(tmp_path / "a"))
    chunk = array.mapped((1, 1))
    assert not chunk.flags.writeable and chunk.flags.c_contiguous
    (tmp_path / "a" / "c.1.1").unlink()
    assert_array_equal(chunk, data[4:8, 3:6])
    assert array.mapped((1, 1)) is None, "`read` says what is missing"
    assert filled(f"{memory_bucket}/a")[0].mapped((1, 1)) is None, "a bucket has nothing to map"


def test_zarr_finds_what_is_missing_or_damaged(tmp_path):
    array, data = filled(str(tmp_path / "a"))
    (tmp_path / "a" / "c.0.0").unlink()
    found = zarr.open_array(array.url, mode="r")[...]
    assert np.isnan(found[:4, :3]).all(), "a missing chunk does not read as numbers"
    assert_array_equal(found[4:], data[4:])
    change(array, "c.0.1", flipped(5))
    with pytest.raises(ValueError, match="checksum"):
        zarr.open_array(array.url, mode="r")[...]


LENGTH, CHECKSUM = " of .*/a has .* bytes instead of {}", " of .*/a .*checksum"
DAMAGE = {
    "one byte short": (lambda raw: raw[:-1], LENGTH),
    "no checksum": (lambda raw: raw[:-TAIL_BYTES], LENGTH),
    "empty": (lambda raw: b"", LENGTH),
    "one byte more": (lambda raw: raw + b"x", LENGTH),
    **{f"bit of byte {at}": (flipped(at), CHECKSUM) for at in (0, 95, 96, 100, 103)},
}


@pytest.mark.parametrize(("edit", "match"), DAMAGE.values(), ids=DAMAGE)
def test_a_chunk_of_another_length_or_with_a_flipped_bit_is_noticed(place, edit, match):
    array, _ = filled(f"{place}/a")
    change(array, "c.1.2", edit)
    refused(array, (1, 2), r"chunk c\.1\.2" + match.format(array.chunk_bytes))
    assert array.present() == (ALL - {(1, 2)} if match == LENGTH else ALL)


@pytest.mark.parametrize("other", ["another place", "another array", "another run", "another layout"])
def test_a_whole_chunk_from_elsewhere_is_noticed(tmp_path, other):
    array, data = filled(str(tmp_path / "a"))
    name = {"another array": "run/b", "another run": "run2/a"}.get(other, "run/a")
    shape = (7, 11) if other == "another layout" else SHAPE
    elsewhere = ChunkedArray.create(str(tmp_path / "b"), shape, CHUNKS, identity=name)
    elsewhere.fill(data.reshape(shape))
    source = "c.0.1" if other == "another place" else "c.0.0"
    shutil.copy(tmp_path / "b" / source, tmp_path / "a" / "c.0.0")
    error = refused(array, (0, 0), r"chunk c\.0\.0 of .* checksum")
    assert (error.url, error.key) == (array.url, "c.0.0")
    assert [error.key for error in array.damaged_chunks()] == ["c.0.0"]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_folders_pipes_and_links_are_not_read(tmp_path, make):
    array, _ = filled(str(tmp_path / "a"))
    (tmp_path / "a" / "c.0.0").unlink()
    make(tmp_path / "a" / "c.0.0")
    error = refused(array, (0, 0), r"c\.0\.0 is (not a file|a link)")
    assert (error.url, error.key) == (array.url, "c.0.0")


def test_all_damage_is_found_and_errors_travel(place):
    array, _ = filled(f"{place}/a")
    change(array, "c.0.1", lambda raw: raw[:-3] + b"abc")  # the index, for other readers
    change(array, "c.1.1", lambda raw: bytes(len(raw)))
    change(array, "c.2.1", lambda raw: raw[:-1])
    array.discard((2, 2))
    before = len([*Path("/proc/self/fd").iterdir()])
    found = array.damaged_chunks()
    assert sorted(error.key for error in found) == ["c.0.1", "c.1.1", "c.2.1"]
    assert len([*Path("/proc/self/fd").iterdir()]) == before or place.startswith("s3"), "errors keep no file open"
    again = pickle.loads(pickle.dumps(found[0]))
    assert (again.key, again.url, str(again)) == (found[0].key, array.url, str(found[0]))


def test_files_of_killed_writers_are_not_chunks_and_are_deleted_alone(tmp_path):
    array, data = filled(str(tmp_path / "a"))
    for name in (f"c.0.0.{32 * 'a'}.partial", f"c.9.9.{32 * '9'}.partial", "video.partial"):
        (tmp_path / "a" / name).write_bytes(b"half a chunk")
    assert array.present() == ALL
    assert_array_equal(array.load(), data)
    delete_partial(str(tmp_path))
    assert [p.name for p in (tmp_path / "a").glob("*.partial")] == ["video.partial"]


def test_an_array_is_taken_again_if_its_layout_is_the_same_and_broken_metadata_are_written_again(place):
    array, data = filled(f"{place}/a")
    again = ChunkedArray.create(array.url, SHAPE, CHUNKS, identity="run/a")
    assert again == ChunkedArray.open(array.url, "run/a") == array
    for layout in ((11, 8), CHUNKS, "float64"), (SHAPE, (4, 2), "float64"), (SHAPE, CHUNKS, "float32"):
        with pytest.raises(StoreError, match=r"array of shape \(11, 7\), chunks \(4, 3\), float64; expected"):
            ChunkedArray.create(array.url, *layout)
    change(array, "zarr.json", lambda raw: raw[:40])
    for url in (array.url, f"{place}/b"):
        with pytest.raises(DamagedChunkError, match="no readable array"):
            ChunkedArray.open(url)
    assert_array_equal(ChunkedArray.create(array.url, SHAPE, CHUNKS, identity="run/a").load(), data)
    array.check_metadata()


FORGED = {name: [0, 2, "object"] for name in ("data_type", "fill_value", "zarr_format", "node_type")} | {
    "shape": [[10**15, 7], [True, 7]],
    "codecs": [[{"name": "pickle"}], [{"name": "bytes", "configuration": {"endian": "little"}}]],
    "chunk_grid": [{"name": "regular", "configuration": {"chunk_shape": [0, 3]}}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FORGED.items() for value in values])
def test_metadata_of_others_are_refused_before_memory_is_taken(tmp_path, name, value):
    array, _ = filled(str(tmp_path / "a"))
    change(array, "zarr.json", lambda raw: json.dumps({**json.loads(raw), name: value}).encode())
    with pytest.raises(DamagedChunkError, match=r"zarr\.json describes another layout or other codecs"):
        array.check_metadata()
    with pytest.raises(StoreError):  # a shape that may be right lacks chunks
        ChunkedArray.open(array.url, "run/a").load()


def stored_rows(url, n, n_blocks=3):
    """Rows in chunks of several blocks of three."""
    data = np.random.default_rng(n).standard_normal((n, 4))
    array = ChunkedArray(url, (n, 4), (3 * n_blocks, 4), "float64", 3, "m/rows").create_anew()
    array.fill(data)
    return array, data


@given(data=st.data(), n=st.integers(1, 40), n_blocks=st.integers(1, 4))
def test_any_rows_are_read_by_dkrr_and_by_zarr(tmp_path_factory, data, n, n_blocks):
    array, values = stored_rows(str(tmp_path_factory.mktemp("rows") / "a"), n, n_blocks)
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    assert_array_equal(array.read_rows(start, stop), values[start:stop])
    assert_array_equal(zarr.open_array(array.url, mode="r")[start:stop], values[start:stop])


def test_only_the_block_that_is_damaged_is_refused(place):
    array, values = stored_rows(f"{place}/a", 20)
    for start, stop in ((0, 20), (2, 3), (8, 19), (5, 5)):
        assert_array_equal(array.read_rows(start, stop), values[start:stop])
    stride = 3 * 4 * 8 + 8
    change(array, "c.1.0", flipped(stride))
    change(array, "c.0.0", lambda raw: raw[stride : 2 * stride] + raw[:stride] + raw[2 * stride :])
    assert_array_equal(array.read_rows(6, 12), values[6:12])
    assert_array_equal(array.read_rows(15, 20), values[15:])
    for rows, key in ((14, 16), "c.1.0"), ((0, 3), "c.0.0"):  # two blocks of a chunk have changed places
        with pytest.raises(DamagedChunkError, match=key):
            array.read_rows(*rows)


def test_a_chunk_is_opened_once_for_all_its_blocks(tmp_path, monkeypatch):
    array, values = stored_rows(str(tmp_path / "a"), 40, 4)
    opened, found = os.open, []
    monkeypatch.setattr(os, "open", lambda path, *more: found.append(path[-5:]) or opened(path, *more))
    assert_array_equal(array.read_rows(0, 24), values[:24])
    assert found == ["c.0.0", "c.1.0"]


@pytest.mark.parametrize(
    ("shape", "rows_per_chunk"), [((10**7, 13), None), ((10, 3), None), ((0, 3), None), ((999, 70), 250), ((5,), 1)]
)
def test_chunks_and_blocks_of_rows_have_bounded_sizes(shape, rows_per_chunk):
    array = ChunkedArray.of_rows("a", shape, "float64", "", rows_per_chunk)
    height = array.block_rows or array.chunks[0]
    assert array.chunks[0] % height == 0
    row_bytes, blocks = 8 * (*shape, 1)[1], array.chunks[0] // height
    assert height * row_bytes <= max(shards.CHECKSUM_BLOCK_BYTES, row_bytes)
    assert array.chunks[0] <= min(shards.ROW_CHUNK_BYTES // row_bytes, max(shape[0], 1)) + blocks
    assert rows_per_chunk is None or rows_per_chunk <= array.chunks[0] <= rows_per_chunk + blocks


@pytest.mark.parametrize("limit", [1000, 8 * 64**2, 8 * 64**2 + 2], ids=["in the data", "no checksum", "half of it"])
def test_a_chunk_for_which_there_is_no_space_is_absent_and_the_rest_is_kept(tmp_path, limit):
    """A real limit of the kernel on the size of files; a full file system is in tests/nightly."""
    array = ChunkedArray.create(str(tmp_path / "a"), (192, 64), (64, 64))
    array.write((0, 0), np.ones((64, 64)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[0][1]))
    try:
        with pytest.raises(DiskSpaceError, match=r"cannot write .*c\.1\.0: File too large.*same store"):
            array.write((1, 0), np.ones((64, 64)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        signal.signal(signal.SIGXFSZ, before[1])
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["c.0.0", "zarr.json"]
    assert array.present() == {(0, 0)} and (array.read_rows(0, 64) == 1).all()
