"""One owner of a store at a time: a lock in the store, with a heartbeat.

The lock is a small document, LOCK_NAME, that names the owner (`Owner`). On a disk of this machine or of the network it
is read and written under `flock`. A lock whose owner no longer lives is stale and taken over: at once if its process
ran on this machine, otherwise when the heartbeat is older than STALE_SECONDS. A process that is suspended keeps its
lock on its own machine; for another one it is stale after that time, and the process stops when it goes on.

Buckets of S3, Google Cloud Storage and Azure write the document only if nobody else has written one meanwhile (a
conditional request), which is a guarantee. For servers of the S3 interface that have no such requests, two clients that
begin within moments of each other are told apart by reading the document again after SETTLE_SECONDS. If a write is
delayed for longer, both begin, and one of them finds the other's name at its next heartbeat and stops. What they have
written until then is from the same tasks, whose results do not depend on who does them. The same holds for file systems
without `flock`.

Owner of a store: which process of which machine, since when, and whether it is still alive.
"""

import errno
import fcntl
import getpass
import json
import logging
import math
import os
import platform
import stat
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from dkrr.errors import BusyStoreError, StoreError
from dkrr.store.buckets import Bucket
from dkrr.store.paths import faults_of, local_path
from dkrr.store.places import place_at
from dkrr.store.replacing import LOCK_NAME, STORE, delete_empty, delete_file
from dkrr.units import format_seconds

MAX_BYTES = 16 * 2**10
"""Longest document that is read: what dkrr writes has some hundred bytes."""

_MAX_TEXT = 256
_STARTED_WITHIN = 5.0
"""Seconds by which the start of one process may differ where it is told by the clock, which may be set."""


@dataclass(frozen=True)
class Owner:
    """A process that owns a store, as its lock tells others."""

    host: str
    machine: str
    """Kernel that runs the process: the identifiers of its boot and of the namespace of its process numbers."""
    process: int
    started: float
    """Start of the process: clock ticks since boot where the system tells them, else seconds of the clock."""
    user: str
    since: float
    """Seconds of its clock (UNIX time) at which it took the store."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Name of this ownership."""
    beat: float = 0.0
    """Seconds of its clock when it last wrote this."""

    def to_bytes(self) -> bytes:
        """Document for a lock."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, document: bytes) -> "Owner | None":
        """Owner that a lock names; None if it is damaged, or not a document of `to_bytes`."""
        if len(document) > MAX_BYTES:
            return None
        try:
            found = json.loads(document)
        except (ValueError, RecursionError):
            return None
        names = {f.name: f.type for f in fields(cls)}
        if not isinstance(found, dict) or found.keys() != names.keys():
            return None
        return cls(**found) if all(_is(found[name], kind) for name, kind in names.items()) else None

    def is_here(self) -> bool:
        """Whether it is a process of this machine, whose life the system tells."""
        return bool(self.machine) and self.machine == machine()

    def is_this_process(self) -> bool:
        """Whether it is the calling process."""
        return self.is_here() and self.process == os.getpid() and self._started_then(_started(os.getpid()))

    def is_running(self) -> bool:
        """Whether its process exists, suspended or not; only where `is_here`."""
        if not psutil.pid_exists(self.process):
            return False
        try:
            return not _is_zombie(self.process) and self._started_then(_started(self.process))
        except psutil.NoSuchProcess:
            return bool(psutil.pid_exists(self.process))  # systems may hide the processes of other users
        except (psutil.Error, OSError):
            return True  # it exists, and the system does not tell since when

    def _started_then(self, started: float) -> bool:
        return abs(started - self.started) <= (0.0 if _ticks(os.getpid()) is not None else _STARTED_WITHIN)

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        ago = max(time.time() - self.since, 0.0)
        who = "this process" if self.is_this_process() else f"process {self.process} of {_plain(self.user)}"
        return f"{who} on {_plain(self.host)} since {when} ({format_seconds(ago)} ago)"


def this_owner() -> Owner:
    """A new ownership of the calling process."""
    return Owner(
        host=platform.node(),
        machine=machine(),
        process=os.getpid(),
        started=_started(os.getpid()),
        user=_user(),
        since=time.time(),
    )


@cache
def machine() -> str:
    """Identifier of the running kernel and the namespace of process numbers: same text, same processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        # Without them the name of the host, which serves where machines have names of their own.
        return f"{platform.node()} {uuid.getnode():x}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have neither a name nor an environment
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def _ticks(process: int) -> float | None:
    """Clock ticks between boot and the start of a process; None where the system does not tell them."""
    try:
        status = Path(f"/proc/{process}/stat").read_bytes()
        return float(status.rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _started(process: int) -> float:
    ticks = _ticks(process)
    return ticks if ticks is not None else float(psutil.Process(process).create_time())


def _is_zombie(process: int) -> bool:
    return bool(psutil.Process(process).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))


def _is(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is one that `to_bytes` writes in a field."""
    if kind is str:
        return isinstance(value, str) and len(value) <= _MAX_TEXT
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
        return False
    return isinstance(value, int) and 0 < value < 2**31 if kind is int else math.isfinite(value)


def _plain(text: str) -> str:
    """Text of a document, without what would control a terminal."""
    return text if text.isprintable() else ascii(text)


logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
"""Heartbeats that are older are of a dead process: several were missed."""
SETTLE_SECONDS = 0.5
"""Time in which two clients of a server without conditional requests see each other."""
_FLOCK_SECONDS = 10.0
"""Others hold `flock` for milliseconds; one that is suspended just then must not stop all."""

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

_tokens: set[str] = set()
"""Ownerships that this process holds: a lock with another one of its own is left over."""


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
    path, name = local_path(url), _name(url)
    around = _around.get()
    if name in around:
        yield around[name]
        return
    lock: _Lock = _ObjectLock(name) if path is None else _FileLock(Path(name))
    ownership, stop = Ownership(), threading.Event()
    with faults_of(f"lock the store {url}"):
        mine = this_owner()
    beating = threading.Thread(target=_beat, args=(lock, mine, ownership, stop), name="dkrr-heartbeat", daemon=True)
    try:
        _take(lock, mine, url)
        if lock.is_written:
            beating.start()
        before = _around.set({**around, name: ownership})
        try:
            yield ownership
        finally:
            with suppress(ValueError):  # of a generator that is closed elsewhere
                _around.reset(before)
    finally:
        stop.set()
        try:
            if mine.process == os.getpid():  # not in a fork of the owner, which leaves the block too
                if beating.ident is not None:
                    beating.join(timeout=2 * STALE_SECONDS)
                lock.release(mine)
        finally:
            _tokens.discard(mine.token)


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
    found = place_at(url).read(LOCK_NAME, MAX_BYTES)
    if found is None:
        return ""
    owner = Owner.from_bytes(found)
    if owner is None:
        return "its lock cannot be read; the next run takes the store over when it is a minute old"
    if owner.is_here():
        is_alive = _is_held_here(owner)
        return f"in use by {owner}" if is_alive else f"last used by {owner}, which has ended without releasing it"
    return f"in use by {owner}, unless that has ended within the last {STALE_SECONDS:.0f} seconds"


def _name(url: str) -> str:
    path = local_path(url)
    return url.rstrip("/") if path is None else os.path.realpath(path)


def _take(lock: "_Lock", mine: Owner, url: str) -> None:
    _tokens.add(mine.token)  # before the lock names it, so that no other thread takes it for left over
    found = lock.take(mine)
    if found is None:
        return
    earlier, is_stale = found
    who = "an unreadable lock" if earlier is None else str(earlier)
    if not is_stale:
        raise BusyStoreError(
            f"the store {url} is in use by {who}; expected one run at a time. Wait for its end, or give another store= "
            f"(a lock without a living owner is taken over within {STALE_SECONDS:.0f} seconds; it is {lock.place})"
        )
    logger.warning("took over the store %s from %s, which has ended without releasing it", url, who)


def _beat(lock: "_Lock", mine: Owner, ownership: Ownership, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_SECONDS):
        try:
            other = lock.beat(mine)
        except (OSError, StoreError) as error:
            logger.debug("no heartbeat at %s: %s", lock.place, error)  # the work itself meets what is wrong with it
            continue
        if other:
            ownership.lost = f"this run has lost its store, {lock.place.removesuffix(LOCK_NAME)}: {other}"
            logger.warning("%s", ownership.lost)
            return


class _Lock(ABC):
    """A document that names the owner."""

    place: str
    """Path or URL of the document."""
    is_written = True
    """False where nothing can be written: what is finished can be read there, and nothing damaged."""

    @abstractmethod
    def take(self, mine: Owner) -> tuple[Owner | None, bool] | None:
        """Write `mine`, unless a living owner is named; who was named, and whether that is stale (and replaced)."""

    @abstractmethod
    def beat(self, mine: Owner) -> str:
        """Show that the owner lives; a message if the lock is no longer its own."""

    @abstractmethod
    def release(self, mine: Owner) -> None:
        """Delete the document, if it names `mine`."""


def _is_held_here(owner: Owner) -> bool:
    """Whether an owner of this machine is alive; its own process knows what it holds."""
    return owner.token in _tokens if owner.is_this_process() else owner.is_running()


def _taken_by(found: Owner | None) -> str:
    return "its lock was deleted, or cannot be read" if found is None else f"it belongs to {found} now"


class _FileLock(_Lock):
    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / LOCK_NAME
        self._made_folder = False
        self.place = str(self._path)

    def take(self, mine: Owner) -> tuple[Owner | None, bool] | None:
        with faults_of(f"lock the store {self._folder}"):
            self._made_folder = not self._folder.exists()
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                with _flocked(self._path, create=True) as descriptor:
                    return self._taken(mine, descriptor)
            except OSError as error:
                if isinstance(error, StoreError) or error.errno not in _READ_ONLY or not any(self._folder.iterdir()):
                    raise
                self.is_written = False
            # Without permission to write, another user's lock may be read.
            with suppress(StoreError):
                found = Owner.from_bytes(place_at(str(self._folder)).read(LOCK_NAME, MAX_BYTES) or b"")
                if found is not None and found.is_here() and _is_held_here(found):
                    return found, False
            return None

    def _taken(self, mine: Owner, descriptor: int) -> tuple[Owner | None, bool] | None:
        document = _content(descriptor)
        found = Owner.from_bytes(document) if document else None
        if document and self._is_alive(found, descriptor):
            return found, False
        try:
            _replace(descriptor, mine.to_bytes())
        except OSError:
            with suppress(OSError):
                delete_file(self._path)
            raise
        return (found, True) if document else None

    def _is_alive(self, owner: Owner | None, descriptor: int) -> bool:
        if owner is not None and owner.is_here():
            return _is_held_here(owner)
        # Both times are of the clock of the disk, or of its server, so that other machines' clocks do not matter.
        probe = self._folder / f"{LOCK_NAME}-{uuid.uuid4().hex}"
        try:
            with probe.open("xb") as file:
                now = os.fstat(file.fileno()).st_mtime
        finally:
            delete_file(probe)
        return abs(now - os.fstat(descriptor).st_mtime) < STALE_SECONDS

    def beat(self, mine: Owner) -> str:
        try:
            with _flocked(self._path) as descriptor:
                found = Owner.from_bytes(_content(descriptor))
                if found is not None and found.token == mine.token:
                    os.utime(self._path)
                    return ""
                return _taken_by(found)
        except FileNotFoundError:
            return _taken_by(None)

    def release(self, mine: Owner) -> None:
        if not self.is_written:
            return
        try:
            with _flocked(self._path) as descriptor:
                found = Owner.from_bytes(_content(descriptor))
                if found is not None and found.token == mine.token:
                    delete_file(self._path)
        except (OSError, StoreError) as error:  # deleted with its store, or its disk is gone
            logger.debug("cannot delete %s: %s", self._path, error)
        if self._made_folder:
            delete_empty(self._folder)  # nothing was written


@contextmanager
def _flocked(path: Path, *, create: bool = False) -> Iterator[int]:
    """Descriptor of a file that no other process has open in this way."""
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | (os.O_CREAT if create else 0)
    last = time.monotonic() + _FLOCK_SECONDS
    while True:
        descriptor = os.open(path, flags, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError(f"{path} is not a file; expected the lock of a store: delete it")
            if _is_locked(descriptor) and _is_at(path, descriptor):
                yield descriptor
                return
        finally:
            os.close(descriptor)
        if time.monotonic() > last:
            raise BusyStoreError(
                f"another process has {path} open for more than {_FLOCK_SECONDS:.0f} seconds; try again"
            )
        time.sleep(0.01)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some file systems of networks have none: then the owner's name alone decides.
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether a file still has its name: the owner deletes it at the end."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, MAX_BYTES + 1)


def _replace(descriptor: int, document: bytes) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.ftruncate(descriptor, 0)
    while document:  # a nearly full disk takes what fits, and says so at the next call
        document = document[os.write(descriptor, document) :]


class _ObjectLock(_Lock):
    def __init__(self, url: str) -> None:
        self._bucket = Bucket(url)
        self.place = f"{url}/{LOCK_NAME}"

    def take(self, mine: Owner) -> tuple[Owner | None, bool] | None:
        document = replace(mine, beat=time.time()).to_bytes()
        held = self._bucket.version(LOCK_NAME)
        found = Owner.from_bytes(held[0]) if held else None
        if held and self._is_alive(found, held[0]):
            return found, False
        is_written = self._bucket.write_if(LOCK_NAME, document, held[1] if held else None)
        if is_written is None:  # a server without conditional requests
            self._bucket.write(LOCK_NAME, [document])
            time.sleep(SETTLE_SECONDS)
        if not is_written:
            other = self._found()
            # A request that was repeated may have found what its first attempt wrote.
            if other is None or other.token != mine.token:
                return other, False
        return (found, True) if held else None

    def _found(self) -> Owner | None:
        document = self._bucket.read(LOCK_NAME, MAX_BYTES)
        return Owner.from_bytes(document) if document else None

    def _is_alive(self, owner: Owner | None, document: bytes) -> bool:
        if owner is not None and owner.is_here():
            return _is_held_here(owner)
        if owner is not None and abs(time.time() - owner.beat) < STALE_SECONDS:
            return True
        # The clocks may differ, or the document is damaged: a living owner writes it again.
        time.sleep(2.5 * HEARTBEAT_SECONDS)
        found = self._bucket.read(LOCK_NAME, MAX_BYTES)
        return found is not None and found != document

    def beat(self, mine: Owner) -> str:
        held = self._bucket.version(LOCK_NAME)
        found = Owner.from_bytes(held[0]) if held else None
        if held is None or found is None or found.token != mine.token:
            return _taken_by(found)
        document = replace(mine, beat=time.time()).to_bytes()
        # A process that was suspended just here must not write over the lock of the one that took the store over.
        is_written = self._bucket.write_if(LOCK_NAME, document, held[1])
        if is_written is None:
            self._bucket.write(LOCK_NAME, [document])
        elif not is_written:
            found = self._found()
            # Not of another: a request that was repeated found what its first attempt wrote.
            return "" if found is not None and found.token == mine.token else _taken_by(found)
        return ""

    def release(self, mine: Owner) -> None:
        try:
            found = self._found()
            if found is not None and found.token == mine.token:
                self._bucket.delete(STORE, LOCK_NAME)
        except StoreError as error:
            logger.debug("cannot delete %s: %s", self.place, error)
