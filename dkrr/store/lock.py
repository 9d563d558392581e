"""Lock of a store, with a heartbeat: at most one owner at a time.

The lock of a folder is a lease of filelock; that of a bucket is a document which is written only if nobody else has
written one meanwhile (a conditional request). Both name their owner, and are refreshed every HEARTBEAT_SECONDS. The
lock of a process that has ended is taken over: at once on its machine, elsewhere when whoever wants the store has
itself seen no heartbeat for STALE_SECONDS, so that clocks do not matter. A process that is suspended keeps its lock on
its own machine; for others it is stale after that time, and the process stops when it goes on: before it writes, it
looks at the lock where its clock shows that it has not for two heartbeats.

A lock that another version or program wrote is respected: nobody can tell here when a process elsewhere has ended whose
lease may last longer, or whose lock is not a lease. One that cannot be deleted is named, and its store is not used. A
store in which nothing can be written has no lock: finished work is read from it.

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
from typing import Any, NamedTuple

import psutil

from dkrr.errors import BusyStoreError, StoreError, UnreachableStoreError
from dkrr.store.buckets import Bucket
from dkrr.store.paths import faults_of, local_path
from dkrr.store.places import check_writable
from dkrr.store.replacing import LOCK_NAME, STORE, delete_empty, delete_file

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
"""Seconds without a heartbeat after which a process counts as dead: several were missed."""
SETTLE_SECONDS = 0.5
"""Time in which two clients of a server without conditional requests see each other."""
MAX_LOCK_BYTES = 16 * 2**10
"""Longest document that is read: what dkrr writes has a few hundred bytes."""
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


class Seen(NamedTuple):
    """Content of a lock, as another process reads it."""

    owner: Owner | None
    """Owner that it names; None if that cannot be read."""
    beat: Any
    """Value that changes with each heartbeat."""
    is_foreign: bool = False
    """It may last longer than STALE_SECONDS without a heartbeat: another version or program wrote it."""


class Ownership:
    """Exclusive use of a store, until the end of `owned`."""

    lost = ""
    """Message about who has it now; empty while it is ours."""

    def __init__(self) -> None:
        self.lock: _Lease | _Document | None = None
        """None before it is ours, and where nothing can be written."""
        self.looked_at = time.time()  # unlike a monotonic clock, it runs while the machine sleeps

    def check(self) -> None:
        """Raise if another process has taken the store; a process that was suspended looks at the lock first.

        Raises
        ------
        BusyStoreError
            Naming the new owner.
        StoreError
            If the lock cannot be read.
        """
        if abs(time.time() - self.looked_at) > 2 * HEARTBEAT_SECONDS:
            self.look()
        if self.lost:
            raise BusyStoreError(self.lost)

    def look(self) -> None:
        """Look at the lock, and note if it is ours no longer."""
        self.looked_at = time.time()
        if self.lock is not None and not self.lost and not self.lock.is_mine():
            _lose(self.lock)


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
        If another process, or another thread of this one, owns the store; also in place of a StoreError of the block,
        which has its cause in what another process that has taken the store meanwhile does there.
    StoreError
        If no lock can be written there, or the lock of a process that has ended cannot be deleted.
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
        ownership.looked_at = time.time()
        before = _around.set({**around, name: ownership})
        try:
            yield ownership
        except BusyStoreError:
            raise
        except StoreError as error:
            # A bucket that cannot be reached would be asked for another minute.
            if local_path(name) is not None or not isinstance(error, UnreachableStoreError):
                with suppress(StoreError):
                    ownership.look()
            if ownership.lost:
                raise BusyStoreError(ownership.lost) from error
            raise
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


def check_owned() -> None:
    """Raise if another process has taken a store that the code around owns; a search owns several.

    Raises
    ------
    BusyStoreError
        Naming the new owner.
    StoreError
        If the lock cannot be read.
    """
    for ownership in _around.get().values():
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
    owner = found.owner
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
        owner, beat, is_foreign = found or Seen(None, None)
        is_here = owner is not None and owner.is_here()
        if owner is not None and is_here:
            is_dead = owner.process == os.getpid() or not owner.is_running()
        else:
            is_dead = time.monotonic() > last
            if is_foreign:
                raise _busy(url, name, owner, is_foreign=True)
        if lock.acquire(beat if is_dead else None):
            break
        if found is not None and not is_dead:
            if is_here or before not in (None, beat):
                raise _busy(url, name, owner)
            before = beat
        time.sleep(min(1.0, HEARTBEAT_SECONDS / 4))
    if found is not None and lock.ownership.lock is not None:
        who = owner or "an unreadable lock"
        logger.warning("took over the store %s from %s, which has ended without releasing it", url, who)


def _busy(url: str, name: str, owner: Owner | None, *, is_foreign: bool = False) -> BusyStoreError:
    when = (
        "another version of dkrr or another program wrote its lock: if that process has ended, delete it; it"
        if is_foreign
        else f"a lock without a living owner is taken over within {STALE_SECONDS:.0f} seconds; it"
    )
    return BusyStoreError(
        f"the store {url} is in use by {owner or 'an unreadable lock'}; expected one run at a time. Wait for its end, "
        f"or give another store= ({when} is {name}/{LOCK_NAME})"
    )


def _lose(lock: "_Lease | _Document") -> None:
    """Note that a lock is its owner's no longer."""
    found = None
    with suppress(OSError):
        found = lock.seen()
    who = f"it belongs to {found.owner} now" if found and found.owner else "its lock was deleted, or cannot be read"
    lock.ownership.lost = (
        f"this run has lost its store, {lock.name}/: {who}; expected one run at a time. What is finished is kept: run "
        f"again with the same store when no other run uses it, or with another one"
    )
    logger.warning("%s", lock.ownership.lost)


class _Lease:
    """The lock of a folder, which names its owner and shows that it lives."""

    def __init__(self, name: str, ownership: Ownership) -> None:
        from filelock import SoftFileLease  # takes 50 ms to import, and workers do not need it

        self.name, self.ownership = name, ownership
        self._folder, self._path = Path(name), Path(name) / LOCK_NAME
        self._made_folder = False
        self._file: int | None = None
        """Number of the file, which nothing else has while it is open."""
        self._lease = SoftFileLease(
            self._path,
            lease_duration=STALE_SECONDS,
            heartbeat_interval=HEARTBEAT_SECONDS,
            on_compromise=lambda _: _lose(self),
            timeout=0,
            thread_local=False,
        )

    def acquire(self, instead_of: Any) -> bool:
        """Write it, unless there is one with another heartbeat; whether it was written, or nothing can be.

        Raises
        ------
        StoreError
            If the one that it would take the place of cannot be deleted.
        """
        from filelock import LeaseSettingsMismatch, Timeout

        self._made_folder |= not self._folder.exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            if instead_of is not None and (found := self.seen()) is not None and found.beat == instead_of:
                delete_file(self._path)  # filelock keeps that of a zombie, of this process, and an empty one
                self._made_folder = True  # by the run that was killed
            self._lease.acquire()
            self._file = self._path.lstat().st_ino
        except (Timeout, LeaseSettingsMismatch):
            return False
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            return self._is_for_reading(error, instead_of)
        self.ownership.lock = self
        return True

    def _is_for_reading(self, fault: OSError, instead_of: Any) -> bool:
        """Whether nothing can be written in the folder, so that the store needs no lock; False if another has it."""
        found = self.seen()
        if found is not None and found.owner is not None and found.owner.is_here() and found.owner.is_running():
            return False
        try:
            check_writable(self.name, is_grown=True)
        except StoreError as error:
            if getattr(error.__cause__, "errno", None) in _READ_ONLY and any(self._folder.iterdir()):
                return True
            raise fault from None
        if found is not None and found.beat == instead_of:
            raise StoreError(
                f"the lock {self._path} of {found.owner or 'an unknown process'}, which has ended without releasing "
                f"it, cannot be deleted ({fault.strerror}); expected to take the store over. Have the file deleted by "
                f"its owner or an administrator, or give another store="
            ) from fault
        return False

    def seen(self) -> Seen | None:
        """Content of the lock; None if it does not exist."""
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return None
        found, beat = self._lease.owner, (status.st_ino, status.st_mtime_ns)
        if found is None:
            return Seen(None, beat)
        lasts = found.lease_duration if found.mode == "lease" else None
        is_foreign = lasts is None or lasts > STALE_SECONDS
        return Seen(Owner(found.hostname, found.pid, _name_of(status.st_uid)), beat, is_foreign)

    def is_mine(self) -> bool:
        """Whether it is still this owner's; a store that is missing or unreadable is reported by what writes there."""
        try:
            return self._path.lstat().st_ino == self._file
        except FileNotFoundError:
            return not self._folder.exists()
        except OSError:
            return True

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

    def acquire(self, instead_of: Any) -> bool:
        document, held = self._mine.to_bytes(), self._bucket.version(LOCK_NAME)
        if held != instead_of:
            return False
        is_written = self._bucket.write_if(LOCK_NAME, document, None if held is None else held[1])
        if is_written is None:  # a server without conditional requests
            self._bucket.write(LOCK_NAME, [document])
            time.sleep(SETTLE_SECONDS)
        # A request that was repeated may have found what its first attempt wrote.
        if is_written or self.is_mine():
            self._beating.start()
            self.ownership.lock = self
            return True
        return False

    def is_mine(self) -> bool:
        found = self.seen()
        return found is not None and found.owner is not None and found.owner.token == self._mine.token

    def seen(self) -> Seen | None:
        found = self._bucket.version(LOCK_NAME)
        return None if found is None else Seen(Owner.from_bytes(found[0][:MAX_LOCK_BYTES]), found)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                if not self._refreshed():
                    _lose(self)
                    return
                self.ownership.looked_at = time.time()
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
        return is_written is not False or self.is_mine()

    def release(self) -> None:
        self._stop.set()
        self._beating.join(timeout=2 * STALE_SECONDS)
        if self.is_mine():
            Bucket(f"{self.name}/{LOCK_NAME}").delete(STORE)
