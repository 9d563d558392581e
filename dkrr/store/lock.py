"""One owner of a store at a time: a lock in the store, with a heartbeat.

The lock of a folder is a lease of filelock; that of a bucket is a document which is written only if nobody else has
written one meanwhile (a conditional request). Both name their owner, and are refreshed every HEARTBEAT_SECONDS. The
lock of a process that has ended is taken over: at once on its machine, elsewhere when whoever wants the store has
itself seen no heartbeat for STALE_SECONDS, so that clocks do not matter. A process that is suspended keeps its lock on
its own machine; for others it is stale after that time, and the process stops when it goes on.

For servers of the S3 interface without conditional requests, two clients that begin within moments of each other are
told apart by reading the document again after SETTLE_SECONDS. If a write is delayed for longer, both begin, and one of
them finds the other's name at its next heartbeat and stops. What they have written until then is from the same tasks,
whose results do not depend on who does them: no lock is needed for the numbers to be right.
"""

import errno
import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from dkrr.errors import BusyStoreError, StoreError
from dkrr.store.buckets import Bucket
from dkrr.store.paths import faults_of, local_path
from dkrr.store.replacing import LOCK_NAME, STORE, delete_empty, delete_file

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
"""Whose heartbeat has not been seen for so long is dead: several were missed."""
SETTLE_SECONDS = 0.5
"""Time in which two clients of a server without conditional requests see each other."""
MAX_BYTES = 16 * 2**10
"""Longest document that is read: what dkrr writes has some hundred bytes."""
_STARTED_WITHIN = 5.0
"""Seconds by which the start of one process may differ: the clock by which it is told may be set."""
FIRST_NAMESPACE = 0xEFFFFFFC
"""Number by which Linux knows the processes of a machine outside of containers."""
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

logger = logging.getLogger(__name__)

_held: set[str] = set()
"""Stores that threads of this process own, or are about to: another lock of this process is left over."""
_guard = threading.Lock()


@dataclass(frozen=True)
class Owner:
    """A process that owns a store, as its lock tells others."""

    host: str
    process: int
    user: str
    started: float | None = None
    """Start of the process in seconds of its clock; None where the lock itself tells one process from another."""
    beats: int = 0
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Name of this ownership."""

    def to_bytes(self) -> bytes:
        """Document for the lock of a bucket."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, document: bytes) -> "Owner | None":
        """Owner that a lock names; None if it is damaged, or not a document of `to_bytes`."""
        with suppress(ValueError, TypeError, RecursionError):
            found = cls(**json.loads(document))
            is_right = all(isinstance(text, str) and len(text) <= 256 for text in (found.host, found.user, found.token))
            started = found.started
            if is_right and type(found.process) is int and 0 < found.process < 2**31 and type(found.beats) is int:
                return found if started is None or (type(started) is float and abs(started) < 2**53) else None
        return None

    def is_here(self) -> bool:
        """Whether it is a process of this machine, and of the same container, whose life the system tells."""
        return self.host == _this_host()

    def is_running(self) -> bool:
        """Whether its process exists, suspended or not; only where `is_here`."""
        try:
            found = psutil.Process(self.process)
            is_same = self.started is None or abs(found.create_time() - self.started) <= _STARTED_WITHIN
            return is_same and found.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.NoSuchProcess:
            return bool(psutil.pid_exists(self.process))  # systems may hide the processes of other users
        except (psutil.Error, OSError):
            return True  # it exists, and the system does not tell more

    def __str__(self) -> str:
        user, host = (text if text.isprintable() else ascii(text) for text in (self.user, self.host.partition("?")[0]))
        is_mine = self.is_here() and self.process == os.getpid()
        return f"{'this process' if is_mine else f'process {self.process} of {user}'} on {host}"


def this_owner() -> Owner:
    """A new ownership of the calling process."""
    return Owner(_this_host(), os.getpid(), _name_of(os.getuid()), float(psutil.Process().create_time()))


def _this_host() -> str:
    """Name of this machine; with filelock's mark in a container, which may have the same name and own numbers."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 (at every question)
    except OSError:  # not Linux
        namespace = FIRST_NAMESPACE
    return platform.node() + ("" if namespace == FIRST_NAMESPACE else f"?pidns-{namespace:x}")


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's user may have none
        return f"user {uid}"


class Ownership:
    """Exclusive use of a store, until the end of `owned`."""

    lost = ""
    """Message about who has it now; empty while it is ours."""

    def check(self) -> None:
        """Raise if another process has taken the store.

        Raises
        ------
        BusyStoreError
            Naming the new owner.
        """
        if self.lost:
            raise BusyStoreError(self.lost)


_around: ContextVar[Mapping[str, Ownership]] = ContextVar("dkrr_owned_stores", default=MappingProxyType({}))
"""Stores that the code around owns."""


@contextmanager
def owned(url: str) -> Iterator[Ownership]:
    """Own a store in the block; one within another for the same store, in one thread, is the same ownership.

    Parameters
    ----------
    url : str
        Path or URL of a store. A folder that does not exist is created. One that cannot be written to gets no lock:
        finished work can be read from it, and whatever would write there fails.

    Yields
    ------
    Ownership

    Raises
    ------
    BusyStoreError
        If another process, or another thread of this one, owns the store.
    StoreError
        If no lock can be written there.
    """
    name, around = _name(url), _around.get()
    if name in around:
        yield around[name]
        return
    ownership, process, lock = Ownership(), os.getpid(), None
    with _guard:
        if name in _held:
            raise _busy(url, name, this_owner())
        _held.add(name)
    try:
        with faults_of(f"lock the store {url}"):
            new = _lock_of(name, ownership)
            _take(new, name, url)
            lock = new
        before = _around.set({**around, name: ownership})
        try:
            yield ownership
        finally:
            with suppress(ValueError):  # of a generator that is closed elsewhere
                _around.reset(before)
    finally:
        if process == os.getpid():  # not in a fork of the owner, which leaves the block too
            try:
                if lock is not None:
                    lock.release()
            except OSError as error:  # StoreError too: deleted with its store, or its disk is gone
                logger.debug("cannot delete the lock of %s: %s", url, error)
            finally:
                _held.discard(name)


def check_owned(url: str) -> None:
    """Raise if the code around has owned a store, and another process has taken it since.

    Raises
    ------
    BusyStoreError
        Naming the new owner.
    """
    around = _around.get()
    if around and (ownership := around.get(_name(url))) is not None:
        ownership.check()


def who_owns(url: str) -> str:
    """Words for the owner that the lock of a store names, and whether it is alive; empty without a lock.

    Raises
    ------
    StoreError
        If the lock cannot be read.
    """
    found = _lock_of(name := _name(url), Ownership()).seen()
    if found is None:
        return ""
    owner = found[0]
    if owner is None:
        return "its lock cannot be read; the next run takes the store over after a minute"
    if owner.is_here():
        is_alive = name in _held if owner.process == os.getpid() else owner.is_running()
        return f"in use by {owner}" if is_alive else f"last used by {owner}, which has ended without releasing it"
    return f"in use by {owner}, unless that has ended without releasing it"


def _name(url: str) -> str:
    path = local_path(url)
    return url.rstrip("/") if path is None else os.path.realpath(path)


def _lock_of(name: str, ownership: Ownership) -> "_Lease | _Document":
    return _Lease(name, ownership) if local_path(name) is not None else _Document(name, ownership)


def _take(lock: "_Lease | _Document", name: str, url: str) -> None:
    before, last = None, time.monotonic() + STALE_SECONDS
    while True:
        found = lock.seen()
        owner, beat = found or (None, None)
        is_here = owner is not None and owner.is_here()
        if owner is not None and is_here:
            is_dead = owner.process == os.getpid() or not owner.is_running()
        else:
            is_dead = time.monotonic() > last
        if lock.take(beat if is_dead else None):
            break
        if found is not None and not is_dead:
            if is_here or before not in (None, beat):
                raise _busy(url, name, owner)
            before = beat
        time.sleep(min(1.0, HEARTBEAT_SECONDS / 4))
    if found is not None:
        who = owner or "an unreadable lock"
        logger.warning("took over the store %s from %s, which has ended without releasing it", url, who)


def _busy(url: str, name: str, owner: Owner | None) -> BusyStoreError:
    return BusyStoreError(
        f"the store {url} is in use by {owner or 'an unreadable lock'}; expected one run at a time. Wait for its end, "
        f"or give another store= (a lock without a living owner is taken over within {STALE_SECONDS:.0f} seconds; it "
        f"is {name}/{LOCK_NAME})"
    )


def _lose(lock: "_Lease | _Document") -> None:
    """Note that a lock is its owner's no longer."""
    found = None
    with suppress(OSError):
        found = lock.seen()
    who = f"it belongs to {found[0]} now" if found and found[0] else "its lock was deleted, or cannot be read"
    lock.ownership.lost = f"this run has lost its store, {lock.name}/: {who}"
    logger.warning("%s", lock.ownership.lost)


class _Lease:
    """The lock of a folder, which names its owner and shows that it lives."""

    def __init__(self, name: str, ownership: Ownership) -> None:
        from filelock import SoftFileLease  # takes 50 ms to import, and workers do not need it

        self.name, self.ownership = name, ownership
        self._folder, self._path = Path(name), Path(name) / LOCK_NAME
        self._made_folder = False
        self._lease = SoftFileLease(
            self._path,
            lease_duration=STALE_SECONDS,
            heartbeat_interval=HEARTBEAT_SECONDS,
            on_compromise=lambda _: _lose(self),
            timeout=0,
            thread_local=False,
        )

    def take(self, instead_of: Any) -> bool:
        """Write it, unless there is one with another heartbeat; whether it was written."""
        from filelock import Timeout

        self._made_folder |= not self._folder.exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            if instead_of is not None and (found := self.seen()) is not None and found[1] == instead_of:
                delete_file(self._path)  # filelock keeps that of a zombie, of this process, and an empty one
            self._lease.acquire()
        except Timeout:
            return False
        except OSError as error:
            if error.errno not in _READ_ONLY or not any(self._folder.iterdir()):
                raise
            owner = (self.seen() or (None,))[0]  # another user's lock may be read
            return owner is None or not owner.is_here() or not owner.is_running()
        return True

    def seen(self) -> tuple[Owner | None, Any] | None:
        """Owner that it names, if it can be read, and what changes with each heartbeat; None if there is none."""
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return None
        found = self._lease.owner
        owner = None if found is None else Owner(found.hostname, found.pid, _name_of(status.st_uid))
        return owner, (status.st_ino, status.st_mtime_ns)

    def release(self) -> None:
        """Delete it at the end, if it is still this owner's."""
        self._lease.release()
        if self._made_folder:
            delete_empty(self._folder)  # nothing was written


class _Document:
    """The lock of a bucket, with the same methods as `_Lease`."""

    def __init__(self, name: str, ownership: Ownership) -> None:
        self.name, self.ownership = name, ownership
        self._bucket, self._mine, self._stop = Bucket(name), this_owner(), threading.Event()
        self._beating = threading.Thread(target=self._beat, name="dkrr-heartbeat", daemon=True)

    def take(self, instead_of: Any) -> bool:
        document, held = self._mine.to_bytes(), self._bucket.version(LOCK_NAME)
        if held != instead_of:
            return False
        is_written = self._bucket.write_if(LOCK_NAME, document, None if held is None else held[1])
        if is_written is None:  # a server without conditional requests
            self._bucket.write(LOCK_NAME, [document])
            time.sleep(SETTLE_SECONDS)
        # A request that was repeated may have found what its first attempt wrote.
        if is_written or self._is_mine():
            self._beating.start()
            return True
        return False

    def _is_mine(self) -> bool:
        found = self.seen()
        return found is not None and found[0] is not None and found[0].token == self._mine.token

    def seen(self) -> tuple[Owner | None, Any] | None:
        found = self._bucket.version(LOCK_NAME)
        return None if found is None else (Owner.from_bytes(found[0][:MAX_BYTES]), found)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                if not self._refreshed():
                    _lose(self)
                    return
            except (OSError, StoreError) as error:
                logger.debug("no heartbeat at %s: %s", self.name, error)  # the work itself meets what is wrong with it

    def _refreshed(self) -> bool:
        held = self._bucket.version(LOCK_NAME)
        found = Owner.from_bytes(held[0]) if held else None
        if held is None or found is None or found.token != self._mine.token:
            return False
        document = replace(self._mine, beats=found.beats + 1).to_bytes()
        # A process that was suspended just here must not write over the lock of the one that took the store over.
        is_written = self._bucket.write_if(LOCK_NAME, document, held[1])
        if is_written is None:
            self._bucket.write(LOCK_NAME, [document])
        return is_written is not False or self._is_mine()

    def release(self) -> None:
        self._stop.set()
        self._beating.join(timeout=2 * STALE_SECONDS)
        if self._is_mine():
            Bucket(f"{self.name}/{LOCK_NAME}").delete(STORE)
