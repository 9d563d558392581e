"""Chunks on disk and in an object store: what is written is read, and nothing damaged passes for data."""

import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dkrr.errors import DamagedChunkError, StoreError
from dkrr.tiles import ChunkedArray, remote, shards
from dkrr.tiles.arrays import zarr_store
from dkrr.tiles.paths import local_path
from dkrr.tiles.replacing import delete_partial

SHAPE, CHUNKS = (11, 7), (4, 3)
TAIL_BYTES = 8 + 16 + 4
"""Two checksums, and the index of a shard with one block."""


@pytest.fixture(params=["path", "file", "bucket"])
def url(request, tmp_path, bucket):
    """A place of each kind where an array may lie."""
    return {
        "path": str(tmp_path / "a"),
        "file": f"file://{tmp_path}/a",
        "bucket": f"{bucket}/a",
    }[request.param]


def filled(url, dtype="float64"):
    data = np.random.default_rng(0).standard_normal(SHAPE).astype(dtype)
    array = ChunkedArray.create(url, SHAPE, CHUNKS, dtype, "run/a")
    array.fill(data)
    return array, data


def chunk_file(array, *coordinates):
    return local_path(array.url) / ("c." + ".".join(map(str, coordinates)))


def overwrite(file, change):
    raw = bytearray(file.read_bytes())
    file.write_bytes(change(raw))


class TestRoundTrip:
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_fill_and_load(self, url, dtype):
        array, data = filled(url, dtype)
        assert_array_equal(array.load(), data)
        assert array.load().dtype == dtype

    def test_one_chunk(self, url):
        array, data = filled(url)
        out = np.full(CHUNKS, np.nan)
        assert array.read((1, 1), out) == array.chunk_bytes == 8 * 4 * 3 + TAIL_BYTES
        assert_array_equal(out, data[4:8, 3:6])

    def test_mapped(self, url):
        array, _ = filled(url)
        buffer = np.empty(CHUNKS)
        chunk = array.mapped((1, 2))
        if local_path(url) is None:
            assert chunk is None
            return
        array.read((1, 2), buffer)
        assert_array_equal(chunk, buffer)
        assert not chunk.flags.writeable and chunk.flags.c_contiguous
        chunk_file(array, 1, 2).unlink()
        assert_array_equal(chunk, buffer)  # what is mapped stays, though the file has gone

    def test_a_chunk_on_the_edge_is_padded_with_zeros(self, url):
        array, data = filled(url)
        out = np.full(CHUNKS, np.nan)
        array.read((2, 2), out)
        assert_array_equal(out, np.pad(data[8:, 6:], ((0, 1), (0, 2))))

    def test_write_takes_views_and_other_dtypes(self, url):
        array = ChunkedArray.create(url, SHAPE, CHUNKS)
        wide = np.arange(24.0).reshape(4, 6)
        out = np.empty(CHUNKS)
        for coordinates, block in [((0, 0), wide[:, ::2]), ((0, 1), wide[:, :3].astype(np.float32))]:
            assert array.write(coordinates, block) == array.chunk_bytes
            array.read(coordinates, out)
            assert_array_equal(out, block)

    def test_present(self, url):
        array = ChunkedArray.create(url, SHAPE, CHUNKS)
        assert array.present() == set()
        array.write((2, 1), np.ones((3, 3)))
        assert array.present() == {(2, 1)}
        array.fill(np.zeros(SHAPE))  # zeros are data: Zarr's own default is not to write such chunks
        assert array.present() == set(itertools.product(range(3), range(3)))

    def test_chunks_larger_than_the_array(self, url):
        array = ChunkedArray.create(url, (2, 1), (100, 10))
        assert array.chunks == (2, 1)
        array.fill(np.array([[1.0], [2.0]]))
        assert_array_equal(array.load(), [[1.0], [2.0]])

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def test_every_shape(self, tmp_path_factory, data):
        ndim = data.draw(st.integers(1, 3))
        shape = tuple(data.draw(st.integers(1, 9)) for _ in range(ndim))
        chunks = tuple(data.draw(st.integers(1, 10)) for _ in range(ndim))
        values = np.random.default_rng(1).standard_normal(shape)
        array = ChunkedArray.create(str(tmp_path_factory.mktemp("shape") / "a"), shape, chunks)
        array.fill(values)
        assert_array_equal(array.load(), values)
        assert_array_equal(zarr.open_array(array.url, mode="r")[...], values)


class TestOtherReaders:
    def test_zarr_reads_it(self, url):
        _, data = filled(url)
        theirs = zarr.open_array(zarr_store(url), mode="r")
        assert_array_equal(theirs[...], data)
        assert_array_equal(theirs[2:9, 1:5], data[2:9, 1:5])
        assert theirs.metadata.fill_value != theirs.metadata.fill_value, "a missing chunk must not read as numbers"

    def test_zarr_checks_the_checksum(self, tmp_path):
        array, _ = filled(str(tmp_path / "a"))
        overwrite(chunk_file(array, 0, 0), lambda raw: raw[:5] + bytes([raw[5] ^ 1]) + raw[6:])
        with pytest.raises(ValueError, match="checksum"):
            zarr.open_array(array.url, mode="r")[...]

    def test_zarr_reads_nan_where_a_chunk_is_missing(self, tmp_path):
        array, data = filled(str(tmp_path / "a"))
        chunk_file(array, 0, 0).unlink()
        found = zarr.open_array(array.url, mode="r")[...]
        assert np.isnan(found[:4, :3]).all()
        assert_array_equal(found[4:], data[4:])


class TestDamage:
    @pytest.mark.parametrize(
        "change",
        [
            lambda raw: raw[:-1],
            lambda raw: raw[:-TAIL_BYTES],
            lambda raw: raw[: -TAIL_BYTES - 8],
            lambda raw: raw[: len(raw) // 2],
            lambda raw: b"",
            lambda raw: raw + b"x",
            lambda raw: raw + bytes(1000),
        ],
        ids=["one byte short", "no checksum", "one number short", "half", "empty", "one byte more", "more"],
    )
    def test_wrong_length(self, tmp_path, change):
        array, _ = filled(str(tmp_path / "a"))
        overwrite(chunk_file(array, 1, 2), change)
        with pytest.raises(StoreError, match=rf"chunk c\.1\.2 of {array.url}.*instead of {array.chunk_bytes}"):
            array.read((1, 2), np.empty(CHUNKS))
        with pytest.raises(StoreError, match=rf"chunk c\.1\.2 of {array.url}.*instead of {array.chunk_bytes}"):
            array.mapped((1, 2))
        assert (1, 2) not in array.present()
        assert len(array.present()) == 8

    @pytest.mark.parametrize("at", [0, 50, 95, 96, 99, 100, 103], ids="byte {}".format)
    def test_flipped_bit(self, tmp_path, at):
        array, _ = filled(str(tmp_path / "a"))
        overwrite(chunk_file(array, 2, 0), lambda raw: raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :])
        with pytest.raises(StoreError, match=r"chunk c\.2\.0 of .* checksum"):
            array.load()
        with pytest.raises(StoreError, match=r"chunk c\.2\.0 of .* checksum"):
            array.mapped((2, 0))

    def test_missing(self, url):
        array = ChunkedArray.create(url, SHAPE, CHUNKS)
        array.write((0, 0), np.zeros(CHUNKS))
        with pytest.raises(StoreError, match=r"chunk c\.\d\.\d of .* is not there"):
            array.load()
        if local_path(url) is not None:
            with pytest.raises(StoreError, match=r"chunk c\.0\.1 of .* is not there"):
                array.mapped((0, 1))

    def test_damage_in_a_bucket(self, memory_bucket):
        array, _ = filled(f"{memory_bucket}/a")
        raw = bytes(remote.get(array.url, "c.1.1"))
        remote.put(array.url, "c.1.1", raw[:-2])
        with pytest.raises(StoreError, match=r"c\.1\.1 of s3://.* bytes"):
            array.load()
        remote.put(array.url, "c.1.1", raw[:96] + bytes([raw[96] ^ 1]) + raw[97:])
        with pytest.raises(StoreError, match=r"c\.1\.1 of s3://.* checksum"):
            array.load()

    def test_what_writers_left_is_no_chunk(self, tmp_path):
        array, data = filled(str(tmp_path / "a"))
        for name in (f"c.0.0.{32 * 'a'}.partial", f"c.9.9.{32 * '9'}.partial", "video.partial"):
            (tmp_path / "a" / name).write_bytes(b"half a chunk")
        assert array.present() == set(itertools.product(range(3), range(3)))
        assert_array_equal(array.load(), data)
        delete_partial(str(tmp_path))
        assert [p.name for p in (tmp_path / "a").glob("*.partial")] == ["video.partial"]

    @pytest.mark.parametrize("other", ["another place", "another array", "another run", "another layout"])
    def test_a_whole_chunk_from_elsewhere(self, tmp_path, other):
        array, data = filled(str(tmp_path / "a"))
        elsewhere = array
        if other in ("another array", "another run"):
            name = {"another array": "run/b", "another run": "run2/a"}[other]
            elsewhere = ChunkedArray.create(str(tmp_path / "b"), SHAPE, CHUNKS, identity=name)
        elif other == "another layout":
            elsewhere = ChunkedArray.create(str(tmp_path / "b"), (7, 11), CHUNKS, identity="run/a")
        elsewhere.fill(data.reshape(elsewhere.shape))
        at = (0, 1) if other == "another place" else (0, 0)
        shutil.copy(chunk_file(elsewhere, *at), chunk_file(array, 0, 0))
        for use in (array.load, lambda: array.mapped((0, 0)), lambda: array.read((0, 0), np.empty(CHUNKS))):
            with pytest.raises(DamagedChunkError, match=r"chunk c\.0\.0 of .* checksum") as caught:
                use()
            assert (caught.value.url, caught.value.key) == (array.url, "c.0.0")
        assert [error.key for error in array.damaged_chunks()] == ["c.0.0"]

    def test_all_damage_is_found(self, tmp_path):
        array, _ = filled(str(tmp_path / "a"))
        assert array.damaged_chunks() == []
        overwrite(chunk_file(array, 0, 1), lambda raw: raw[:-3] + b"abc")  # the index, for other readers
        overwrite(chunk_file(array, 1, 1), lambda raw: bytes(len(raw)))
        overwrite(chunk_file(array, 2, 1), lambda raw: raw[:-1])
        chunk_file(array, 2, 2).unlink()
        assert [error.key for error in array.damaged_chunks()] == ["c.0.1", "c.1.1", "c.2.1"]
        again = pickle.loads(pickle.dumps(array.damaged_chunks()[0]))
        assert (again.key, again.url, str(again)) == ("c.0.1", array.url, str(array.damaged_chunks()[0]))

    @pytest.mark.parametrize("made", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
    def test_what_is_no_file(self, tmp_path, made):
        array, _ = filled(str(tmp_path / "a"))
        chunk_file(array, 0, 0).unlink()
        made(chunk_file(array, 0, 0))
        for use in (array.load, lambda: array.mapped((0, 0))):
            with pytest.raises(StoreError, match=r"c\.0\.0 is (not a file|a link)"):
                use()

    def test_wrong_buffer(self, tmp_path):
        array, _ = filled(str(tmp_path / "a"))
        for buffer in (np.empty((4, 4)), np.empty(CHUNKS, np.float32), np.empty((3, 4)).T):
            with pytest.raises(ValueError, match=r"chunk \(4, 3\) float64"):
                array.read((0, 0), buffer)


class TestOpenAndCreate:
    def test_create_again_keeps_the_chunks(self, url):
        _, data = filled(url)
        again = ChunkedArray.create(url, SHAPE, CHUNKS, identity="run/a")
        assert again == ChunkedArray.open(url, "run/a")
        assert_array_equal(again.load(), data)

    @pytest.mark.parametrize(
        ("shape", "chunks", "dtype"),
        [((11, 8), CHUNKS, "float64"), (SHAPE, (4, 2), "float64"), (SHAPE, CHUNKS, "float32")],
    )
    def test_another_layout_is_refused(self, url, shape, chunks, dtype):
        array, data = filled(url)
        with pytest.raises(StoreError, match=r"holds an array of shape \(11, 7\), chunks \(4, 3\), float64; expected"):
            ChunkedArray.create(url, shape, chunks, dtype)
        assert_array_equal(array.load(), data)

    def test_nothing_there(self, url):
        with pytest.raises(StoreError, match="no readable array"):
            ChunkedArray.open(url)

    def test_something_else_there(self, tmp_path):
        zarr.create_group(tmp_path / "group")
        with pytest.raises(StoreError, match="group"):
            ChunkedArray.create(str(tmp_path / "group"), SHAPE, CHUNKS)

    def test_a_file_in_the_way(self, tmp_path):
        (tmp_path / "file").write_text("mine")
        with pytest.raises(StoreError, match="file"):
            ChunkedArray.create(str(tmp_path / "file" / "a"), SHAPE, CHUNKS)
        assert (tmp_path / "file").read_text() == "mine"

    def test_broken_metadata(self, tmp_path):
        array, data = filled(str(tmp_path / "a"))
        overwrite(tmp_path / "a" / "zarr.json", lambda raw: raw[:40])
        with pytest.raises(DamagedChunkError, match="no readable array"):
            ChunkedArray.open(array.url)
        again = ChunkedArray.create(array.url, SHAPE, CHUNKS, identity="run/a")  # writes them again
        assert_array_equal(again.load(), data)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("shape", [10**15, 7]),
            ("shape", [True, 7]),
            ("data_type", "object"),
            ("codecs", [{"name": "pickle"}]),
            ("codecs", [{"name": "bytes", "configuration": {"endian": "little"}}]),
            ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [0, 3]}}),
            ("fill_value", 0),
            ("zarr_format", 2),
            ("node_type", "link"),
        ],
    )
    def test_metadata_of_others(self, tmp_path, name, value):
        array, _ = filled(str(tmp_path / "a"))
        file = tmp_path / "a" / "zarr.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
        with pytest.raises(DamagedChunkError, match=r"zarr\.json describes another layout or other codecs"):
            array.check_metadata()
        with pytest.raises(StoreError):  # a shape that may be right lacks chunks, before memory is taken
            ChunkedArray.open(array.url, "run/a").load()


class TestRows:
    def stored(self, url, n, n_blocks=3, dtype="float64", d=4):
        data = (100 * np.random.default_rng(n).standard_normal((n, d))).astype(dtype)
        array = ChunkedArray(url, (n, d), (3 * n_blocks, d), dtype, 3, "m/rows").create_anew()
        array.fill(data)
        return array, data

    @settings(max_examples=30, deadline=None)
    @given(st.data())
    def test_any_rows(self, tmp_path_factory, data):
        n = data.draw(st.integers(1, 40))
        array, values = self.stored(str(tmp_path_factory.mktemp("rows") / "a"), n, data.draw(st.integers(1, 4)))
        start = data.draw(st.integers(0, n))
        stop = data.draw(st.integers(start, n))
        assert_array_equal(array.read_rows(start, stop), values[start:stop])
        assert_array_equal(zarr.open_array(array.url, mode="r")[start:stop], values[start:stop])

    def test_in_an_object_store(self, url):
        array, values = self.stored(url, 23, dtype="int16")
        for start, stop in ((0, 23), (2, 3), (8, 19), (5, 5)):
            assert_array_equal(array.read_rows(start, stop), values[start:stop])
        assert_array_equal(zarr.open_array(zarr_store(url), mode="r")[...], values)

    def test_only_the_block_that_is_damaged(self, tmp_path):
        array, values = self.stored(str(tmp_path / "a"), 20)
        stride = 3 * 4 * 8 + 8
        overwrite(chunk_file(array, 1, 0), lambda raw: raw[:stride] + b"x" + raw[stride + 1 :])
        assert_array_equal(array.read_rows(0, 12), values[:12])
        assert_array_equal(array.read_rows(15, 20), values[15:])
        with pytest.raises(DamagedChunkError, match=r"c\.1\.0"):
            array.read_rows(14, 16)
        overwrite(chunk_file(array, 0, 0), lambda raw: raw[stride : 2 * stride] + raw[:stride] + raw[2 * stride :])
        with pytest.raises(DamagedChunkError, match=r"c\.0\.0"):  # two blocks of a chunk have changed places
            array.read_rows(0, 3)

    @pytest.mark.parametrize(
        ("shape", "rows_per_chunk"), [((10**7, 13), None), ((10, 3), None), ((0, 3), None), ((999, 70), 250), ((5,), 1)]
    )
    def test_layout(self, shape, rows_per_chunk):
        array = ChunkedArray.of_rows("a", shape, "float64", "", rows_per_chunk)
        height = array.block_rows or array.chunks[0]
        assert array.chunks[0] % height == 0
        row_bytes = 8 * (shape[1] if len(shape) == 2 else 1)
        assert height * row_bytes <= max(shards.BLOCK_BYTES, row_bytes)
        assert array.chunks[0] <= min(shards.CHUNK_BYTES // row_bytes, max(shape[0], 1)) + array.chunks[0] // height
        if rows_per_chunk is not None:
            assert rows_per_chunk <= array.chunks[0] <= rows_per_chunk + array.chunks[0] // height


WRITE_UNTIL_FULL = """
import os, pathlib, resource, signal, sys
import numpy as np
from dkrr.errors import DamagedChunkError, StoreError
from dkrr.tiles import ChunkedArray
folder, limit, side = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
array = ChunkedArray.create(str(folder / "a"), (side * 40, side), (side, side))
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
written = 0
try:
    for k in range(40):
        array.write((k, 0), np.full((side, side), float(k)))
        written += 1
except StoreError as error:
    print("StoreError", error)
left = sorted(p.name for p in (folder / "a").iterdir() if p.name != "zarr.json")
assert left == sorted(f"c.{k}.0" for k in range(written)), left
assert array.present() == {(k, 0) for k in range(written)}, array.present()
buffer = np.empty((side, side))
for k in range(written):
    array.read((k, 0), buffer)
    assert (buffer == k).all()
print("written", written)
"""


class TestFullDisk:
    """A real limit of the kernel, in a process of its own."""

    def run(self, tmp_path, limit, side=64, mount=False):
        script = tmp_path / "write.py"
        script.write_text(WRITE_UNTIL_FULL)
        folder = tmp_path / "disk"
        folder.mkdir()
        command = [sys.executable, str(script), str(folder), str(limit), str(side)]
        if mount:
            mounted = 'mount -t tmpfs -o size=256k tmpfs "$1" && shift && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", mounted, "sh", str(folder), *command]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    @pytest.mark.parametrize(
        "limit", [1000, 8 * 64**2, 8 * 64**2 + 2], ids=["in the data", "no checksum", "half of it"]
    )
    def test_files_cannot_grow(self, tmp_path, limit):
        output = self.run(tmp_path, limit)
        assert "StoreError" in output and "c.0.0" in output and "written 0" in output
        assert "same store" in output, "the message must say that nothing finished is lost"

    def test_full_file_system(self, tmp_path):
        # Without the right to mount, the limit on the size of a file stands in for the full disk.
        mountable = os.name == "posix" and not subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, check=False
        ).returncode  # fmt: skip
        output = self.run(tmp_path, limit=0 if mountable else 5000, mount=mountable)
        assert "StoreError cannot write" in output
        assert ("No space left" if mountable else "too large") in output
        assert int(output.split()[-1]) == (7 if mountable else 0)
