"""What is at a path is what was there before, or whole."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import dask
import pytest

from dkrr.errors import DiskSpaceError, InputError, StoreError
from dkrr.tiles import buckets, remote, replacing
from dkrr.tiles.replacing import check_free, written_aside

FILES = re.compile("content|a|b|c/0")


@pytest.fixture(params=["one step", "two renames"])
def system(request, monkeypatch):
    """With the system's exchange of two names, and as on systems without."""
    if request.param == "two renames":
        monkeypatch.setattr(replacing, "_renameat2", lambda: None)


def write(place, text, *, folder):
    if folder:
        Path(place).mkdir(exist_ok=True)
        (Path(place) / "content").write_text(text)
    else:
        Path(place).write_text(text)


def content(path, *, folder):
    return (path / "content" if folder else path).read_text()


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_takes_the_place_once_whole(tmp_path, folder, there):
    path = tmp_path / "new" / "a.npy"
    path.parent.mkdir()
    if there:
        write(path, "old", folder=folder)
    with written_aside(str(path), overwrite=there, listed=FILES if folder else None) as place:
        assert place.endswith("a.npy") and Path(place).parent == path.parent
        write(place, "new", folder=folder)
        assert content(path, folder=folder) == "old" if there else not path.exists()
    assert content(path, folder=folder) == "new" and [p.name for p in path.parent.iterdir()] == ["a.npy"]


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there(tmp_path, folder, error):
    path = tmp_path / "a"
    write(path, "old", folder=folder)

    def fail():
        with written_aside(str(path), overwrite=True, listed=FILES if folder else None) as place:
            write(place, "half", folder=folder)
            raise error

    with pytest.raises(error):
        fail()
    assert content(path, folder=folder) == "old" and [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("folder", [False, True])
def test_what_comes_to_exist_meanwhile_stays(tmp_path, folder):
    path = tmp_path / "a"

    def race():
        with written_aside(str(path), overwrite=False, listed=FILES if folder else None) as place:
            write(place, "mine", folder=folder)
            write(path, "theirs", folder=folder)

    with pytest.raises(InputError, match="exists already"):
        race()
    assert content(path, folder=folder) == "theirs" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_link_stays_a_link(tmp_path):
    write(tmp_path / "target", "old", folder=False)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with written_aside(str(tmp_path / "link"), overwrite=True, listed=None) as place:
        write(place, "new", folder=False)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


def test_a_clean_up_that_fails_does_not_hide_the_error(tmp_path, monkeypatch):
    def fail_and_forbid():
        with written_aside(str(tmp_path / "a"), overwrite=False, listed=None) as place:
            write(place, "half", folder=False)
            monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError("no")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_and_forbid()


def test_an_old_folder_that_cannot_come_back_is_named(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write(path, "old", folder=True)
    rename, calls = Path.rename, []

    def once(self, target):
        calls.append(target)
        if len(calls) > 1:
            raise PermissionError(f"call {len(calls)}")
        return rename(self, target)

    def replace():
        with written_aside(str(path), overwrite=True, listed=FILES) as place:
            write(place, "new", folder=True)
            monkeypatch.setattr(Path, "rename", once)

    monkeypatch.setattr(replacing, "_renameat2", lambda: None)
    with pytest.raises(StoreError, match="call 2") as caught:
        replace()
    (kept,) = tmp_path.iterdir()
    assert content(kept, folder=True) == "old" and str(kept) in str(caught.value)


def test_a_store_that_cannot_be_moved_stays_whole(memory_bucket, monkeypatch):
    remote.put(f"{memory_bucket}/a.zarr", "c/0", b"old")

    def fail(*_, **__):
        raise TimeoutError

    def replace():
        with written_aside(f"{memory_bucket}/a.zarr", overwrite=True, listed=FILES) as place:
            remote.put(place, "c/0", b"new")
            monkeypatch.setattr(buckets.Bucket, "copy", fail)

    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.1)
    with pytest.raises(StoreError, match="cannot copy .*TimeoutError") as caught:
        replace()
    (kept,) = remote.names(memory_bucket)
    assert bytes(remote.get(f"{memory_bucket}/{kept}", "c/0")) == b"new" and kept in caught.value.__notes__[0]


def test_a_bucket(memory_bucket):
    for text in (b"old", b"new"):
        with written_aside(f"{memory_bucket}/a.zarr", overwrite=True, listed=FILES) as place:
            remote.put(place, "c/0", text)
        assert bytes(remote.get(f"{memory_bucket}/a.zarr", "c/0")) == text
        assert remote.names(memory_bucket) == ["a.zarr"]
    with pytest.raises(InputError, match="exists already"):
        check_free(f"{memory_bucket}/a.zarr", overwrite=False, what="a", is_one=bool, listed=FILES)


def test_only_its_own_kind_is_overwritten(tmp_path):
    path = tmp_path / "a"
    check_free(str(path), overwrite=False, what="a model", is_one=lambda url: False, listed=FILES)
    path.mkdir()
    check_free(str(path), overwrite=True, what="a model", is_one=lambda url: False, listed=FILES)  # empty
    with pytest.raises(InputError, match="exists already"):
        check_free(str(path), overwrite=False, what="a model", is_one=lambda url: True, listed=FILES)
    (path / "thesis.tex").touch()
    with pytest.raises(InputError, match="is not a model"):
        check_free(str(path), overwrite=True, what="a model", is_one=lambda url: False, listed=FILES)
    with pytest.raises(InputError, match="'thesis.tex' in it was not written by dkrr"):
        check_free(str(path), overwrite=True, what="a model", is_one=lambda url: True, listed=FILES)
    (path / "thesis.tex").rename(path / "content")
    check_free(str(path), overwrite=True, what="a model", is_one=lambda url: True, listed=FILES)


KILLED = """
import os, re, signal, sys
from pathlib import Path
from dkrr.tiles import replacing

method, folder = sys.argv[1:]
if method == "two renames":
    replacing._renameat2 = lambda: None
files = {replacing.__file__, replacing.shutil.__file__, replacing.uuid.__file__}

def save(path, last):
    n = 0
    def count(frame, event, argument):
        nonlocal n
        if frame.f_code.co_filename not in files:
            return None
        n += 1
        if n == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return count
    sys.settrace(count)
    with replacing.written_aside(str(path), overwrite=True, listed=re.compile('a|b')) as place:
        for name in ("a", "b"):
            (Path(place) / name).write_text("new")
    sys.settrace(None)

last = 0
while True:
    last += 1
    root = Path(folder) / str(last)
    (root / "model").mkdir(parents=True)
    for name in ("a", "b"):
        (root / "model" / name).write_text("old")
    child = os.fork()
    if not child:
        save(root / "model", last)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(last)
"""


def whole(path):
    texts = [(path / name).read_text() for name in ("a", "b") if (path / name).exists()]
    return texts[0] if len(texts) == 2 and len(set(texts)) == 1 else None


@pytest.mark.parametrize("method", ["one step", "two renames"])
def test_a_process_that_is_killed_at_any_step_leaves_the_old_or_the_new(tmp_path, method):
    if method == "one step":
        (tmp_path / "x").mkdir()
        (tmp_path / "y").mkdir()
        if not replacing._renamed(tmp_path / "x", tmp_path / "y", replacing._EXCHANGE):
            pytest.skip("this system or file system cannot exchange two names")
    (tmp_path / "kills").mkdir()
    command = [sys.executable, "-W", "ignore", "-c", KILLED, method, str(tmp_path / "kills")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    n, found = int(done.stdout), set()
    assert n > 50
    for step in range(1, n + 1):
        root = tmp_path / "kills" / str(step)
        others = [p for p in root.iterdir() if p.name != "model"]
        assert all(p.name.startswith((replacing.NEW, replacing.OLD)) and p.name.endswith("-model") for p in others)
        at_path = whole(root / "model")
        if at_path is None:
            # Between two renames nothing is there, and both are beside it, whole.
            assert method == "two renames" and not (root / "model").exists()
            assert {p.name[: len(replacing.NEW)]: whole(p) for p in others} == {
                replacing.NEW: "new",
                replacing.OLD: "old",
            }
        found.add(at_path)
    assert {"old", "new"} <= found and (None in found) == (method == "two renames")
    assert not others, "the last one was not killed"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_errors_of_the_system_are_those_of_the_store(tmp_path, number):
    path = tmp_path / "a"
    write(path, "old", folder=True)

    def fail():
        with written_aside(str(path), overwrite=True, listed=FILES) as place:
            write(place, "half", folder=True)
            raise OSError(number, os.strerror(number))

    kind = DiskSpaceError if number == errno.ENOSPC else StoreError
    with pytest.raises(kind, match=f"cannot write {path}: {os.strerror(number)}\\. .*unchanged"):
        fail()
    assert content(path, folder=True) == "old" and [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("folder", [False, True])
def test_durable_saves_are_on_the_disk_before_they_take_the_place(tmp_path, monkeypatch, folder):
    path, synced = tmp_path / "a", []
    fsync = os.fsync

    def watched(descriptor):
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, path.exists()))
        fsync(descriptor)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", watched)
    with (
        dask.config.set({"dkrr.durable": True}),
        written_aside(str(path), overwrite=False, listed=FILES if folder else None) as place,
    ):
        write(place, "new", folder=folder)
    names = [name for name, _ in synced]
    assert names == ([Path(place).name, "content"] if folder else [Path(place).name]) + [tmp_path.name]
    assert [there for _, there in synced] == [False] * (len(synced) - 1) + [True]
