"""One process at a time owns a store; what it leaves is taken over, and it notices when it has lost the store."""

import errno
import json
import logging
import os
import pickle
import platform
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import filelock
import numpy as np
import pytest

import dkrr
from dkrr.cluster import SerialExecutor
from dkrr.errors import BusyStoreError, DkrrError, StoreError
from dkrr.fitting.context import Context
from dkrr.store import buckets, lock
from dkrr.store.lock import LOCK_NAME, Owner, owned, this_owner, who_owns
from dkrr.store.paths import local_path
from dkrr.store.places import LocalFolder, place_at
from dkrr.store.replacing import STORE

HERE = platform.node()
OTHER = replace(this_owner(), host=f"{HERE}?pidns-f00", process=4242, user="ada")
"""In a container that has this machine's name: its processes have other numbers here."""


@pytest.fixture
def fast(monkeypatch):
    """Heartbeats that a test can wait for."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(lock, "STALE_SECONDS", 1.0)
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.05)


def document(url, owner, *, mode="lease", lasts=None):
    """Lock of an owner, as the place has it."""
    lasts = lock.STALE_SECONDS if lasts is None else lasts
    if local_path(url) is None:
        return owner.to_bytes()
    return (
        f"filelock/2\npid={owner.process}\nhost={owner.host}\nmode={mode}\ntoken={owner.token}\nduration={lasts!r}\n"
    ).encode()


def leave_lock(url, content):
    """Write a lock that nobody of this process holds."""
    place_at(url).make()
    place_at(url).write(LOCK_NAME, [content if isinstance(content, bytes) else document(url, content)])


@contextmanager
def owning_process(url):
    """Another process that owns a store until it is killed."""
    code = f"import time; from dkrr.store.lock import owned\nwith owned({url!r}): print('owned', flush=True); "
    command = [sys.executable, "-c", code + "time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "owned\n"
            yield process
        finally:
            process.kill()


def refused(url, match, kind=BusyStoreError):
    """Try to own a store that another has, or that cannot be locked; the error."""
    with pytest.raises(kind, match=match) as caught, owned(url):
        raise AssertionError
    return caught.value


def wait_until(condition):
    last = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < last
        time.sleep(0.01)


def claims(url, n):
    """What n threads hear that want a store at once."""
    together = threading.Barrier(n, timeout=20)

    def client(_):
        together.wait()
        try:
            with owned(url):
                together.wait()
                return "owned"
        except BusyStoreError as error:
            together.wait()
            return str(error)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(client, range(n)))


def in_another_thread(call, *arguments):
    """What a call in another thread is ended by; None without an error."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *arguments).exception()


def test_a_store_in_use_has_a_lock_that_names_the_owner(place):
    store = f"{place}/run.zarr"
    with owned(store) as mine:
        place_at(store).write("something", [b""])
        assert "in use by this process on" in who_owns(store)
        mine.check()
        assert "in use by this process on" in str(in_another_thread(owned(store).__enter__))
    assert place_at(store).names() == ["something"] and who_owns(store) == ""


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_lock_is_released_after_any_error_and_leaves_no_empty_folder(tmp_path, error):
    with pytest.raises(error), owned(str(tmp_path / "run.zarr")):
        raise error
    assert list(tmp_path.iterdir()) == []
    assert not [t for t in threading.enumerate() if "lease" in t.name or t.name == "dkrr-heartbeat"]


def test_another_process_is_refused_and_a_killed_owner_is_replaced(tmp_path, caplog):
    url = str(tmp_path / "run.zarr")
    with owning_process(url) as process:
        words = rf"in use by process {process.pid} of "
        error = refused(url, words)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is BusyStoreError and str(again) == str(error)
        process.send_signal(signal.SIGSTOP)
        os.utime(tmp_path / "run.zarr" / LOCK_NAME, (0, 0))  # as after a long time
        refused(url, words)  # a suspended owner lives
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # nobody has asked how it ended: a zombie
        assert "which has ended without releasing it" in who_owns(url)
        with caplog.at_level(logging.WARNING), owned(url):
            pass
    assert f"took over the store {url} from process {process.pid}" in caplog.text


def test_of_many_threads_one_owns_the_store(place):
    found = claims(f"{place}/run.zarr", 8)
    assert found.count("owned") == 1 and sum("in use by this process" in each for each in found) == 7


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "place", ["folder", pytest.param("bucket", marks=[pytest.mark.nightly, pytest.mark.guard])], indirect=True
)
def test_of_an_owner_elsewhere_the_heartbeats_that_are_seen_decide(place):
    store = f"{place}/run.zarr"
    leave_lock(store, OTHER)
    stop = threading.Event()

    def beat():
        for k in range(1000):
            if stop.wait(0.1):
                return
            if local_path(store) is None:
                place_at(store).write(LOCK_NAME, [replace(OTHER, beats=k).to_bytes()])
            else:
                os.utime(f"{store}/{LOCK_NAME}")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(beat)
        try:
            refused(store, f"in use by process 4242 of .* on {HERE}")
        finally:
            stop.set()
    assert place_at(store).names() == [LOCK_NAME]
    for left in (OTHER, b"[" * 9000, b""):
        leave_lock(store, left)
        started = time.monotonic()
        with owned(store) as mine:
            mine.check()
        assert place_at(store).names() == []
        assert time.monotonic() - started > 0.9 or (local_path(store) is not None and not isinstance(left, Owner))


def test_a_lock_that_nobody_living_holds_is_left_over(place):
    earlier = replace(this_owner(), process=2**30)
    for owner in (earlier, this_owner()):
        leave_lock(f"{place}/run.zarr", owner)
        with owned(f"{place}/run.zarr"):
            pass


def test_in_a_bucket_a_process_whose_number_is_used_again_has_ended(memory_bucket):
    leave_lock(memory_bucket, replace(this_owner(), process=os.getppid(), started=1.0))
    with owned(memory_bucket):
        pass


def test_a_folder_for_reading_only_gets_no_lock_but_a_living_owner_keeps_it(tmp_path, monkeypatch):
    store, opened = tmp_path / "run.zarr", os.open

    def read_only(path, flags, *more, **named):
        if str(path).startswith(str(tmp_path)) and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *more, **named)

    store.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        refused(str(store), "cannot lock the store .*Read-only file system", StoreError)  # nothing is finished there
        (store / "zarr.json").write_text("")
        with owned(str(store)) as mine:
            mine.check()
    leave_lock(str(store), replace(this_owner(), process=os.getppid()))
    monkeypatch.setattr(os, "open", read_only)
    refused(str(store), f"in use by process {os.getppid()}")


@pytest.mark.usefixtures("fast")
def test_the_lease_of_another_version_is_respected(tmp_path):
    store = str(tmp_path)
    leave_lock(store, document(store, replace(this_owner(), process=os.getppid()), lasts=30.0))
    refused(store, f"in use by process {os.getppid()} of")
    for left in ({"lasts": 30.0}, {"lasts": lock.STALE_SECONDS, "mode": "exclusive"}):
        leave_lock(store, document(store, OTHER, **left))
        refused(store, "process 4242 of .*another program wrote its lock: if that process has ended, delete it.*lock")
    leave_lock(store, document(store, OTHER, lasts=0.5))
    with owned(store) as mine:  # after the time in which this version would not take its own
        mine.check()
    leave_lock(store, document(store, replace(this_owner(), process=2**30), lasts=30.0))
    with owned(store):
        pass


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("owner", [replace(this_owner(), process=2**30), OTHER], ids=["here", "elsewhere"])
def test_a_lock_that_cannot_be_deleted_is_named_and_the_store_is_not_used(tmp_path, monkeypatch, owner):
    def denied(path):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    leave_lock(str(tmp_path), owner)
    (tmp_path / "zarr.json").write_text("")
    monkeypatch.setattr(lock, "delete_file", denied)  # a sticky folder, another user's file
    refused(str(tmp_path), "the lock .*lock of process .* cannot be deleted .Operation not permitted.; .*", StoreError)
    assert (tmp_path / LOCK_NAME).exists()


@pytest.mark.usefixtures("fast")
def test_a_lock_that_only_its_owner_elsewhere_may_write_is_respected_while_it_beats(tmp_path, monkeypatch):
    beats, seen = iter(range(10**6)), lock._Lease.seen
    monkeypatch.setattr(filelock.SoftFileLease, "acquire", Mock(side_effect=PermissionError(errno.EACCES, "denied")))
    monkeypatch.setattr(lock._Lease, "seen", lambda self: seen(self)._replace(beat=next(beats)))
    leave_lock(str(tmp_path), OTHER)
    (tmp_path / "zarr.json").write_text("")
    refused(str(tmp_path), "in use by process 4242")


@pytest.mark.usefixtures("fast")
def test_the_heartbeat_shows_life_and_finds_that_the_lock_is_lost(place, monkeypatch):
    monkeypatch.setattr(lock, "STALE_SECONDS", 5.0)
    store = f"{place}/run.zarr"
    path = None if local_path(place) is None else local_path(place) / "run.zarr" / LOCK_NAME
    with owned(store) as mine:
        if path is None:
            first = place_at(store).read(LOCK_NAME, 10**4)
            wait_until(lambda: place_at(store).read(LOCK_NAME, 10**4) != first)
        else:
            os.utime(path, (0, 0))
            wait_until(lambda: path.stat().st_mtime > 1e9)
        mine.check()
        leave_lock(store, OTHER)
        wait_until(lambda: mine.lost)
        with pytest.raises(BusyStoreError, match="lost its store, .*run.zarr/: it belongs to process 4242 of .* on"):
            mine.check()
    assert place_at(store).read(LOCK_NAME, 10**4) == document(store, OTHER)
    place_at(store).delete(STORE)
    with owned(store) as mine:  # a store that is deleted is lost, and ends without a further error
        place_at(store).delete(STORE)
        wait_until(lambda: mine.lost)


SUSPENDED = """
import sys, time
from dkrr.store import lock
lock.HEARTBEAT_SECONDS, lock.STALE_SECONDS, lock.Owner.is_here = 0.1, 1.0, lambda self: False
with lock.owned(sys.argv[1]) as mine:
    print("owned", flush=True)
    last = time.monotonic() + 30
    while not mine.lost and time.monotonic() < last:
        time.sleep(0.05)
    print(mine.lost, flush=True)
"""


@pytest.mark.usefixtures("fast")
def test_a_process_that_was_suspended_for_long_notices_that_another_machine_has_its_store(tmp_path, monkeypatch):
    monkeypatch.setattr(Owner, "is_here", lambda self: False)
    command = [sys.executable, "-c", SUSPENDED, str(tmp_path / "run.zarr")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "owned\n"
        process.send_signal(signal.SIGSTOP)
        with owned(str(tmp_path / "run.zarr")) as mine:
            process.send_signal(signal.SIGCONT)
            assert "this run has lost its store" in process.stdout.readline()
            mine.check()


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "make", [lambda p: p.symlink_to("target"), pytest.param(os.mkfifo, marks=pytest.mark.nightly), os.mkdir]
)
def test_a_lock_that_is_not_a_file_is_not_followed(tmp_path, make):
    make(tmp_path / LOCK_NAME)
    (tmp_path / "target").write_text("keep")
    with suppress(StoreError), owned(str(tmp_path)) as mine:
        mine.check()
    assert (tmp_path / "target").read_text() == "keep"


def test_documents_that_dkrr_does_not_write_are_damaged_and_names_do_not_control_a_terminal():
    values = json.loads(OTHER.to_bytes())
    assert Owner.from_bytes(OTHER.to_bytes()) == OTHER
    for change in [
        {"process": "1"}, {"process": 0}, {"process": 10**12}, {"process": True}, {"started": float("nan")},
        {"started": 10**400}, {"host": None}, {"host": "h" * 1000}, {"more": 1}, {"token": ["a"]},
    ]:  # fmt: skip
        assert Owner.from_bytes(json.dumps(values | change).encode()) is None
    del values["host"]
    assert Owner.from_bytes(json.dumps(values).encode()) is None
    for odd in (replace(OTHER, user="\x1b[2J"), replace(OTHER, host="a\nb")):
        assert str(odd).isprintable()


def test_an_owner_is_known_without_a_name_of_the_user(monkeypatch):
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError("no such user")))
    assert this_owner().user == f"user {os.getuid()}" and this_owner().is_running()


@pytest.mark.usefixtures("fast")
def test_without_conditional_requests_two_are_told_apart_when_the_server_has_settled(memory_bucket, monkeypatch):
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(buckets.Bucket, "write_if", lambda self, name, data, expected: None)
    # Both find no lock, and both write theirs: the last one stays.
    first, second = (lock._lock_of(memory_bucket, lock.Ownership()) for _ in range(2))
    with ThreadPoolExecutor(2) as pool:
        taken = [task.result() for task in [pool.submit(each.acquire, None) for each in (first, second)]]
    assert taken.count(True) == 1
    mine = (first, second)[taken.index(True)]
    before = mine.seen()
    wait_until(lambda: mine.seen() != before)
    mine.release()
    assert place_at(memory_bucket).names() == []


def test_of_owners_that_find_a_bucket_free_at_once_one_is_written(memory_bucket, monkeypatch):
    version, found = buckets.Bucket.version, []
    # All have looked before any writes.
    monkeypatch.setattr(
        buckets.Bucket, "version", lambda self, name: found.append(name) if len(found) < 4 else version(self, name)
    )
    locks = [lock._lock_of(memory_bucket, lock.Ownership()) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda each: each.acquire(None), locks))
    assert taken.count(True) == 1
    locks[taken.index(True)].release()


def test_a_late_heartbeat_does_not_take_a_bucket_back(memory_bucket, monkeypatch):
    """The owner is suspended between reading its lock and writing it, and another process takes the store over."""
    held, version = lock._lock_of(memory_bucket, lock.Ownership()), buckets.Bucket.version
    assert held.acquire(None) and held._refreshed()

    def taken_over(self, name):
        found = version(self, name)
        self.write(name, [OTHER.to_bytes()])
        return found

    monkeypatch.setattr(buckets.Bucket, "version", taken_over)
    assert not held._refreshed()
    held.release()
    assert place_at(memory_bucket).read(LOCK_NAME, 10**4) == OTHER.to_bytes()


X = np.random.default_rng(0).normal(size=(60, 3))
Y = X[:, 0]
TILES = {"kernel": "rbf", "tile": 32}
RUNS = {
    "ridge": lambda store, X=X: dkrr.KernelRidge(**TILES, solver="cholesky", store=store).fit(X, Y),
    "logistic": lambda store, X=X: dkrr.KernelLogisticRegression(**TILES, store=store).fit(X, Y > 0),
    "search": lambda store, X=X: dkrr.KernelRidgeCV(alphas=(0.1, 1.0), **TILES, store=store).fit(X, Y),
    "gram": lambda store, X=X: dkrr.gram(X, kernel="rbf", chunks=32, store=store),
}
every_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


@every_run
def test_a_second_run_is_refused_and_changes_nothing(tmp_path, run):
    store = tmp_path / "run.zarr"
    with owned(str(store)):
        error = in_another_thread(run, str(store))
        assert isinstance(error, BusyStoreError) and "in use by this process on" in str(error), error
        assert [p.name for p in store.iterdir()] == [LOCK_NAME]
    assert not store.exists()


@every_run
def test_a_run_holds_the_lock_while_it_works_and_releases_it(tmp_path, run, monkeypatch):
    store, seen, share = tmp_path / "run.zarr", [], Context.share

    def watched(*arguments, **options):
        seen.append((store / LOCK_NAME).exists())
        return share(*arguments, **options)

    monkeypatch.setattr(Context, "share", watched)
    run(str(store))
    assert seen and all(seen)
    assert not list(store.rglob(f"{LOCK_NAME}*"))
    with pytest.raises(DkrrError):
        run(str(store), X[:, :2] * np.nan)
    assert not list(store.rglob(f"{LOCK_NAME}*"))


def test_a_run_that_has_lost_its_store_stops(tmp_path, monkeypatch):
    store, share = tmp_path / "run.zarr", Context.share

    def deleted(*arguments, **options):
        shared = share(*arguments, **options)
        (store / LOCK_NAME).unlink()
        wait_until(lambda: any(ownership.lost for ownership in lock._around.get().values()))
        return shared

    with monkeypatch.context() as patch:
        patch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
        patch.setattr(Context, "share", deleted)
        with pytest.raises(BusyStoreError, match="this run has lost its store"):
            RUNS["ridge"](str(store))
    RUNS["ridge"](str(store))


def suspended(store):
    """Let another run take over a store that this thread owns, as if this process had been stopped meanwhile."""
    leave_lock(store, OTHER)
    for ownership in lock._around.get().values():
        ownership.looked_at -= 100.0


def test_a_run_that_was_suspended_in_a_task_looks_at_the_lock_before_the_next_one(tmp_path, monkeypatch):
    """The heartbeat would find the new owner only later."""
    store, run_tasks, work = str(tmp_path / "run.zarr"), Context.run_tasks, []

    def stopped(meter):
        work.append(suspended(store))

    def resumed(self, stage, tasks, *arguments, **named):
        tasks = [replace(task, function=stopped, arguments=()) for task in tasks]
        return run_tasks(self, stage, tasks, *arguments, **named)

    monkeypatch.setattr(Context, "run_tasks", resumed)
    monkeypatch.setattr("dkrr.cluster.tasks.ThreadExecutor.run", SerialExecutor.run)
    with pytest.raises(BusyStoreError, match="this run has lost its store, .*: it belongs to process 4242 of"):
        RUNS["ridge"](store)
    assert len(work) == 1


def test_a_search_that_was_suspended_looks_at_the_lock_of_all_its_runs(tmp_path, monkeypatch):
    store, share = str(tmp_path / "run.zarr"), Context.share
    monkeypatch.setattr(Context, "share", lambda self, *given: [suspended(store), share(self, *given)][1])
    with pytest.raises(BusyStoreError, match="this run has lost its store, .*run.zarr/: it belongs to process 4242 of"):
        RUNS["search"](store)


@pytest.mark.parametrize("place_", ["folder", "bucket"])
def test_an_error_of_a_store_that_another_has_taken_names_the_new_owner(place_, tmp_path, memory_bucket):
    store = {"folder": str(tmp_path), "bucket": memory_bucket}[place_] + "/run.zarr"

    def fail():
        with owned(store):
            leave_lock(store, OTHER)
            raise StoreError("the store belongs to another problem: give another store or delete this one")

    with pytest.raises(BusyStoreError, match="lost its store, .*: it belongs to process 4242 .*run again") as caught:
        fail()
    assert isinstance(caught.value.__cause__, StoreError)


def test_what_a_killed_run_left_without_a_result_leaves_no_empty_folder(tmp_path):
    leave_lock(str(tmp_path / "run.zarr"), replace(this_owner(), process=2**30))
    with owned(str(tmp_path / "run.zarr")):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("run", [*RUNS.values(), lambda s: dkrr.KernelRidge(**TILES, solver="cg", store=s).fit(X, Y)])
def test_a_finished_run_is_read_on_a_disk_that_nothing_can_be_written_to(tmp_path, monkeypatch, run):
    store = tmp_path / "run.zarr"
    first = run(str(store))
    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS))
    monkeypatch.setattr(LocalFolder, "write", Mock(side_effect=AssertionError))
    monkeypatch.setattr(LocalFolder, "make", Mock(side_effect=AssertionError))
    monkeypatch.setattr("dkrr.store.run_store.write_group", Mock(side_effect=StoreError("a note of the result")))
    monkeypatch.setattr(filelock.SoftFileLease, "acquire", Mock(side_effect=read_only))
    monkeypatch.setattr(Path, "touch", Mock(side_effect=read_only))
    again = run(str(store))
    if hasattr(first, "dual_coef_"):
        assert (again.dual_coef_ == first.dual_coef_).all()


def test_the_rows_of_a_gram_matrix_are_read_without_a_lock(tmp_path):
    url = str(tmp_path / "gram.zarr")
    RUNS["gram"](url)
    with owned(url):
        assert in_another_thread(dkrr.KernelRidge(kernel="precomputed").fit, url, Y) is None
