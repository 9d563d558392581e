"""A store has one owner; a lock whose owner is dead is taken over."""

import errno
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dkrr.errors import BusyStoreError, StoreError
from dkrr.tiles import buckets, lock, remote
from dkrr.tiles.lock import LOCK_NAME, Owner, owned, this_owner

OTHER = replace(this_owner(), host="elsewhere", machine="another kernel", process=4242, user="ada")


@contextmanager
def owning_process(url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns a store until it is killed."""
    code = f"import time; from dkrr.tiles.lock import owned\nwith owned({url!r}): print('owned', flush=True); "
    with subprocess.Popen(
        [sys.executable, "-c", code + "time.sleep(60)"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "owned\n"
            yield process
        finally:
            process.kill()


def write_lock(store: Path, content: bytes, age: float) -> None:
    store.mkdir(exist_ok=True)
    (store / LOCK_NAME).write_bytes(content)
    at = time.time() - age
    os.utime(store / LOCK_NAME, (at, at))


def test_a_lock_is_there_while_it_is_owned_and_names_the_owner(tmp_path: Path) -> None:
    store = tmp_path / "a" / "run.zarr"
    with owned(str(store)) as mine:
        (store / "something").touch()
        found = Owner.from_bytes((store / LOCK_NAME).read_bytes())
        assert found is not None and found.is_this_process() and found.is_running()
        assert f"this process on {found.host} since 20" in str(found)
        mine.check()
    assert [p.name for p in store.iterdir()] == ["something"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_it_is_released_after_any_error_and_leaves_no_empty_folder(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), owned(str(tmp_path / "run.zarr")):
        raise error
    assert list(tmp_path.iterdir()) == []
    assert not [t for t in threading.enumerate() if t.name == "dkrr-heartbeat"]


def test_another_process_is_refused_with_who_where_and_since_when(tmp_path: Path) -> None:
    url = str(tmp_path / "run.zarr")
    with owning_process(url) as process:
        with (
            pytest.raises(BusyStoreError, match=rf"in use by process {process.pid} of .* since 20.* UTC") as caught,
            owned(url),
        ):
            raise AssertionError
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is BusyStoreError and str(again) == str(caught.value)


def test_the_lock_of_a_suspended_process_holds_and_that_of_a_killed_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = str(tmp_path / "run.zarr")
    with owning_process(url) as process:
        process.send_signal(signal.SIGSTOP)
        os.utime(tmp_path / "run.zarr" / LOCK_NAME, (0, 0))  # as after a long time
        with pytest.raises(BusyStoreError), owned(url):
            raise AssertionError
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # nobody has asked how it ended: a zombie
        with caplog.at_level(logging.WARNING), owned(url):
            pass
    assert f"took over the store {url} from process {process.pid}" in caplog.text


def test_two_threads_of_a_process_are_two_clients(tmp_path: Path) -> None:
    url, results, ready = str(tmp_path / "run.zarr"), [], threading.Barrier(8)

    def client() -> None:
        ready.wait()
        try:
            with owned(url):
                time.sleep(0.2)
            results.append("owned")
        except BusyStoreError:
            results.append("refused")

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["owned"] + ["refused"] * 7


def test_of_many_processes_that_begin_at_once_one_owns_the_store(tmp_path: Path) -> None:
    code = (
        "import sys, time, os; from dkrr.tiles.lock import owned; from dkrr.errors import BusyStoreError\n"
        f"print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n"
        f"    with owned({str(tmp_path / 'run.zarr')!r}): print('owned', flush=True); sys.stdin.readline()\n"
        "except BusyStoreError: print('refused', flush=True)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(3)]
    try:
        for step in ("ready", "answer"):
            answers = [p.stdout.readline().strip() for p in processes]
            if step == "ready":
                for p in processes:
                    p.stdin.write("\n")
                    p.stdin.flush()
        assert sorted(answers) == ["owned", "refused", "refused"]
    finally:
        for p in processes:
            p.communicate("\n")


def test_owning_twice_in_one_thread_is_owning_once(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "run.zarr")
    with owned(str(tmp_path / "run.zarr")) as outer:
        with owned(str(tmp_path / "link")) as inner:
            assert inner is outer
        assert (tmp_path / "run.zarr" / LOCK_NAME).exists()


@pytest.mark.parametrize(("age", "is_stale"), [(1.0, False), (-1.0, False), (61.0, True), (-3600.0, True)])
@pytest.mark.parametrize(
    "content", [OTHER.to_bytes(), b"not a lock", b"[" * 9000], ids=["other host", "damaged", "deep"]
)
def test_elsewhere_the_heartbeat_decides(tmp_path: Path, content: bytes, age: float, is_stale: bool) -> None:
    store = tmp_path / "run.zarr"
    write_lock(store, content, age)
    if is_stale:
        with owned(str(store)):
            pass
        return
    with pytest.raises(BusyStoreError, match="process 4242 of ada on elsewhere|an unreadable lock"), owned(str(store)):
        raise AssertionError
    assert (store / LOCK_NAME).read_bytes() == content
    assert [p.name for p in store.iterdir()] == [LOCK_NAME]


def test_a_process_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    earlier = replace(this_owner(), process=os.getppid(), started=1.0)
    write_lock(tmp_path / "run.zarr", earlier.to_bytes(), 0.0)
    with owned(str(tmp_path / "run.zarr")):
        pass


def test_a_lock_that_this_process_does_not_hold_is_left_over(tmp_path: Path) -> None:
    write_lock(tmp_path / "run.zarr", this_owner().to_bytes(), 0.0)
    with owned(str(tmp_path / "run.zarr")):
        pass


def test_a_fork_that_leaves_the_block_does_not_release_the_lock(tmp_path: Path) -> None:
    code = f"""
import os
from dkrr.tiles.lock import LOCK_NAME, owned
store = {str(tmp_path / "run.zarr")!r}
with owned(store):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print(os.listdir(store) == [LOCK_NAME])
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr
    assert not (tmp_path / "run.zarr").exists()


def test_a_folder_that_cannot_be_written_to_gets_no_lock_but_a_living_owner_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "run.zarr"
    opened = os.open

    def refused(path: object, flags: int, *more: int, **named: int) -> int:
        if str(path).startswith(str(tmp_path)) and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *more, **named)  # type: ignore[arg-type]

    store.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(StoreError, match="cannot lock the store .*Read-only file system"), owned(str(store)):
            raise AssertionError  # nothing is finished there
    (store / "zarr.json").touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with owned(str(store)) as mine:
            mine.check()
    with owning_process(str(store)) as process, monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(BusyStoreError, match=f"in use by process {process.pid}"), owned(str(store)):
            raise AssertionError


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.05)


def wait_until(condition: object) -> None:
    last = time.monotonic() + 10.0
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < last
        time.sleep(0.01)


@pytest.mark.usefixtures("fast")
def test_the_heartbeat_shows_life_and_finds_that_the_lock_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "run.zarr" / LOCK_NAME
    with owned(str(path.parent)) as mine:
        os.utime(path, (0, 0))
        wait_until(lambda: path.stat().st_mtime > 1e9)
        mine.check()
        other = path.with_suffix(".new")
        other.write_bytes(OTHER.to_bytes())
        other.replace(path)  # at once: a heartbeat may come at any moment
        wait_until(lambda: mine.lost)
        with pytest.raises(
            BusyStoreError, match="lost its store, .*run.zarr/: it belongs to process 4242 of ada on elsewhere"
        ):
            mine.check()
    assert path.read_bytes() == OTHER.to_bytes()


@pytest.mark.usefixtures("fast")
def test_a_store_that_is_deleted_is_lost_and_ends_without_a_further_error(tmp_path: Path) -> None:
    path = tmp_path / "run.zarr" / LOCK_NAME
    with owned(str(path.parent)) as mine:
        path.unlink()
        path.parent.rmdir()
        wait_until(lambda: mine.lost)


@pytest.mark.parametrize(
    "make", [lambda p: p.symlink_to("target"), os.mkfifo, os.mkdir], ids=["link", "fifo", "folder"]
)
def test_what_is_not_a_file_is_not_followed(tmp_path: Path, make: object) -> None:
    make(tmp_path / LOCK_NAME)  # type: ignore[operator]
    (tmp_path / "target").write_text("keep")
    with (
        pytest.raises(StoreError, match="is not a file|Links are not followed|[Ii]s a directory"),
        owned(str(tmp_path)),
    ):
        raise AssertionError
    assert (tmp_path / "target").read_text() == "keep"


@pytest.mark.parametrize(
    "change",
    [
        {"process": "1"}, {"process": 0}, {"process": 10**12}, {"process": True}, {"since": float("nan")},
        {"since": 10**400}, {"host": None}, {"host": "h" * 1000}, {"more": 1}, {"token": ["a"]},
    ],
)  # fmt: skip
def test_documents_that_dkrr_does_not_write_are_damaged(change: dict[str, object]) -> None:
    values = json.loads(OTHER.to_bytes())
    assert Owner.from_bytes(json.dumps(values).encode()) == OTHER
    assert Owner.from_bytes(json.dumps(values | change).encode()) is None
    del values["host"]
    assert Owner.from_bytes(json.dumps(values).encode()) is None


def test_names_in_a_document_do_not_control_a_terminal() -> None:
    assert "\x1b" not in str(replace(OTHER, user="\x1b[2J", host="a\nb")) and "\n" not in str(
        replace(OTHER, host="a\nb")
    )


def test_without_a_name_of_the_user_or_the_files_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise OSError("no such user")

    monkeypatch.setattr(lock.getpass, "getuser", unknown)
    monkeypatch.setattr(lock, "_ticks", lambda process: None)
    mine = this_owner()
    assert mine.user == f"user {os.getuid()}" and mine.is_this_process() and mine.is_running()
    assert not replace(mine, started=mine.started - 60).is_running()


@pytest.mark.usefixtures("fast")
def test_in_a_bucket(memory_bucket: str) -> None:
    url = f"{memory_bucket}/run.zarr"
    with owned(url):
        remote.put(url, "something", b"")
        first = remote.get(url, LOCK_NAME)
        wait_until(lambda: remote.get(url, LOCK_NAME) != first)
        refused = []

        def client() -> None:
            with pytest.raises(BusyStoreError) as caught, owned(url):
                raise AssertionError
            refused.append(str(caught.value))

        thread = threading.Thread(target=client)
        thread.start()
        thread.join()
        assert "in use by this process" in refused[0]
    assert remote.names(url) == ["something"]
    remote.put(url, LOCK_NAME, replace(OTHER, beat=time.time()).to_bytes())
    with pytest.raises(BusyStoreError, match="process 4242 of ada"), owned(url):
        raise AssertionError
    remote.put(url, LOCK_NAME, replace(OTHER, beat=time.time() - 100.0).to_bytes())  # and nobody writes it again
    with owned(url) as mine:
        remote.put(url, LOCK_NAME, OTHER.to_bytes())
        wait_until(lambda: mine.lost)


@pytest.mark.usefixtures("fast")
def test_two_clients_of_a_server_without_conditional_requests_are_told_apart_when_it_has_settled(
    memory_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{memory_bucket}/run.zarr"
    monkeypatch.setattr(buckets.Bucket, "_put_if", lambda self, mode, key, data: None)
    # Both find no lock, and both write theirs: the last one stays.
    monkeypatch.setattr(lock._ObjectLock, "_is_alive", lambda self, owner, document: False)
    results, ready, done = [], threading.Barrier(2), threading.Event()

    def client() -> None:
        ready.wait()
        with ExitStack() as stack:
            try:
                stack.enter_context(owned(url))
                results.append("owned")
            except BusyStoreError:
                results.append("refused")
            done.wait(0.3)

    threads = [threading.Thread(target=client) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["owned", "refused"]
    assert remote.names(url) == []


def test_of_processes_that_find_a_bucket_free_at_once_one_owns_it(bucket, monkeypatch):
    monkeypatch.setattr(remote, "version", lambda url, key: None)  # all have looked before any writes
    with ThreadPoolExecutor(4) as pool:
        owners = [replace(OTHER, token=str(k) * 32) for k in range(4)]
        taken = list(pool.map(lambda each: lock._ObjectLock(bucket).take(each), owners))
    assert taken.count(None) == 1


def test_a_late_heartbeat_does_not_take_a_bucket_back(bucket, monkeypatch):
    """The owner is suspended between reading its lock and writing it, and another process takes the store over."""
    held, mine, version = lock._ObjectLock(bucket), this_owner(), remote.version
    assert held.take(mine) is None and held.beat(mine) == ""

    def taken_over(url, key):
        found = version(url, key)
        remote.put(url, key, OTHER.to_bytes())
        return found

    monkeypatch.setattr(remote, "version", taken_over)
    assert "elsewhere" in held.beat(mine)
    held.release(mine)
    assert bytes(remote.get(bucket, LOCK_NAME)) == OTHER.to_bytes()
