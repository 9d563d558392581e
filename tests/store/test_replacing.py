"""What is at a path is what was there before, or whole, and nothing else is deleted. Kills are in tests/nightly."""

import errno
import os
import re
from functools import partial
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import dask
import pytest

from dkrr.errors import DiskSpaceError, InputError, StoreError
from dkrr.store import replacing
from dkrr.store.places import check_free, place_at, written_aside

FILES = re.compile("content|a|b|c/0")


@pytest.fixture(params=["one step", "two renames"])
def system(request, monkeypatch):
    """With the system's exchange of two names, and as on systems without."""
    if request.param == "two renames":
        monkeypatch.setattr(replacing, "exchanged", lambda first, second: False)


@pytest.fixture(params=["file", "folder"])
def listed(request):
    """What is written: the files of a folder, or None of a single file."""
    return FILES if request.param == "folder" else None


def write(place, text, listed):
    """A file, or a folder with one file, in a folder or a bucket."""
    if listed is None:
        Path(place).write_text(text)
    else:
        with dask.config.set({"dkrr.durable": False}):
            place_at(place).make()
            place_at(place).write("content", [text.encode()])


def content(url, listed):
    folder, _, name = str(url).rpartition("/")
    found = place_at(str(url)).read("content", 100) if listed else place_at(folder).read(name, 100)
    return None if found is None else found.decode()


def replaced(path, listed, *, overwrite=True, before_the_end=lambda: None):
    """Write something else at a path; what is done before it takes its place may raise."""
    with written_aside(str(path), overwrite=overwrite, listed=listed) as place:
        write(place, "new", listed)
        before_the_end()
    return place


def raising(error):
    return Mock(side_effect=error)


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("there", [False, True])
def test_an_output_takes_its_place_once_it_is_whole(tmp_path, listed, there):
    path = tmp_path / "a.npy"
    if there:
        write(str(path), "old", listed)
    with written_aside(str(path), overwrite=there, listed=listed) as place:
        assert place.endswith("a.npy") and Path(place).parent == path.parent
        write(place, "new", listed)
        assert content(path, listed) == "old" if there else not path.exists()
    assert content(path, listed) == "new" and place_at(str(tmp_path)).names() == ["a.npy"]


def test_an_output_in_a_bucket_takes_its_place_once_it_is_whole(memory_bucket):
    url = f"{memory_bucket}/a.zarr"
    for text, before in (("old", None), ("new", "old")):
        with written_aside(url, overwrite=True, listed=FILES) as place:
            write(place, text, FILES)
            assert content(url, FILES) == before
        assert content(url, FILES) == text and place_at(memory_bucket).names() == ["a.zarr"]
    with pytest.raises(InputError, match="exists already"):
        check_free(url, overwrite=False, what="a", is_one=bool, listed=FILES)


def test_a_group_in_a_bucket_has_its_description_last(memory_bucket, monkeypatch):
    copied = Mock()
    monkeypatch.setattr("obstore.copy", copied)
    with written_aside(f"{memory_bucket}/a.zarr", overwrite=False, listed=FILES) as place:
        for name in ("zone/c/0", "zarr.json", "area/c/0"):
            place_at(f"{place}/{name}").write("", [b"x"])
    names = [call.args[2].removeprefix("a.zarr/") for call in copied.call_args_list]
    assert names == ["area/c/0", "zone/c/0", "zarr.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there(tmp_path, listed, error):
    write(f"{tmp_path}/a", "old", listed)
    with pytest.raises(error):
        replaced(tmp_path / "a", listed, before_the_end=raising(error))
    assert content(f"{tmp_path}/a", listed) == "old" and place_at(str(tmp_path)).names() == ["a"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_is_an_error_of_the_store_and_leaves_what_was_there(tmp_path, number):
    write(f"{tmp_path}/a", "old", FILES)
    kind = DiskSpaceError if number == errno.ENOSPC else StoreError
    with pytest.raises(kind, match=f"cannot write {tmp_path}/a: {os.strerror(number)}\\. .*unchanged"):
        replaced(tmp_path / "a", FILES, before_the_end=raising(OSError(number, os.strerror(number))))
    assert content(f"{tmp_path}/a", FILES) == "old" and place_at(str(tmp_path)).names() == ["a"]


@pytest.mark.usefixtures("system")
def test_what_comes_to_exist_meanwhile_stays(tmp_path, listed):
    theirs = partial(write, f"{tmp_path}/a", "theirs", listed)
    with pytest.raises(InputError, match="exists already"):
        replaced(tmp_path / "a", listed, overwrite=False, before_the_end=theirs)
    assert content(f"{tmp_path}/a", listed) == "theirs" and place_at(str(tmp_path)).names() == ["a"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    replaced(tmp_path / "link", None)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


def test_an_old_folder_that_cannot_come_back_is_named(tmp_path, monkeypatch):
    write(f"{tmp_path}/a", "old", FILES)
    rename, calls = Path.rename, count(1)

    def once(self, target):
        if (number := next(calls)) > 1:
            raise PermissionError(f"call {number}")
        return rename(self, target)

    monkeypatch.setattr(replacing, "exchanged", lambda first, second: False)
    with pytest.raises(StoreError, match="call 2") as caught:
        replaced(tmp_path / "a", FILES, before_the_end=partial(monkeypatch.setattr, Path, "rename", once))
    (kept,) = tmp_path.iterdir()
    assert content(kept, FILES) == "old" and str(kept) in str(caught.value)


def test_what_cannot_be_moved_in_a_bucket_stays_whole_beside_it_and_is_named(memory_bucket, monkeypatch):
    write(f"{memory_bucket}/a.zarr", "old", FILES)
    monkeypatch.setattr("obstore.copy", raising(TimeoutError))
    with pytest.raises(StoreError, match="cannot copy .*TimeoutError") as caught:
        replaced(f"{memory_bucket}/a.zarr", FILES)
    (kept,) = place_at(memory_bucket).names()
    assert content(f"{memory_bucket}/{kept}", FILES) == "new" and kept in caught.value.__notes__[0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_durable_outputs_are_on_the_disk_before_they_take_their_place(tmp_path, monkeypatch, listed):
    path, synced, fsync = tmp_path / "a", [], os.fsync

    def watched(descriptor):
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with dask.config.set({"dkrr.durable": True}):
        place = replaced(path, listed, overwrite=False)
    assert [name for name, _ in synced] == [Path(place).name, *(["content"] if listed else []), tmp_path.name]
    assert [there for _, there in synced] == [False] * (len(synced) - 1) + [True]
