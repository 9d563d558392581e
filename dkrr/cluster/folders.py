"""Temporary folders of runs: private, deleted at the end, and by a later run if their process was killed.

Beside each folder is a file with `.lock` at the end of its name, which its process keeps locked. The system releases
the lock when the process ends, however that happens: a folder whose lock is free is not in use. The lock file is made
before the folder and deleted after it, so that a process that is killed at any point leaves nothing that is not found.
It says that it is dkrr's and on which machine its process runs; without these words nothing is deleted but an old empty
file with a name of this form, whose folder does not exist yet.
"""

import os
import re
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dkrr.cluster.process import ended_in_order
from dkrr.config import temporary_directory
from dkrr.errors import StoreError
from dkrr.store.replacing import delete_file, delete_made

try:
    import fcntl
except ImportError:  # not a POSIX system: folders of killed processes stay
    locks: Any = None
else:
    locks = fcntl

PREFIX, SUFFIX = "dkrr-", ".lock"
_NAME = re.compile(rf"{PREFIX}([a-z]+-)?[a-z0-9_]{{8}}")
"""Names of the folders, as `tempfile` makes them."""
UNSIGNED_SECONDS = 60.0
"""Age from which a lock file without a name in it was left by a process that was killed before it wrote one."""
MAX_ATTEMPTS = 20
"""Attempts to find an unused name, and to delete a folder that something still writes to."""


class PrivateFolder:
    """A folder that only this user may enter, deleted with this object at the latest.

    Parameters
    ----------
    kind : str
        Word for its name.
    where : str, optional
        Folder to make it in; None: ``dkrr.temporary-directory`` in Dask's configuration.

    Raises
    ------
    StoreError
        If it cannot be made.
    """

    def __init__(self, kind: str = "", where: str | None = None) -> None:
        parent = where or temporary_directory()
        try:
            self.path, lock = _made(str(parent), f"{PREFIX}{kind}-" if kind else PREFIX)
        except (OSError, ValueError) as error:  # ValueError: a null byte
            raise StoreError(
                f"no temporary folder can be made in {parent}: "
                f"{getattr(error, 'strerror', None) or error}; expected an existing folder "
                f"that this user may write to, with free space: set dkrr.temporary-directory in Dask's configuration, "
                f"or give a store"
            ) from error
        self._finalizer = weakref.finalize(self, _delete, self.path, lock, os.getpid())

    def delete(self) -> None:
        """Delete it now."""
        self._finalizer()


@contextmanager
def private_folder(kind: str, where: str | None = None) -> Iterator[str]:
    """Path of a `PrivateFolder` for the time of a block, which SIGTERM leaves as Ctrl-C does."""
    with ended_in_order():
        folder = PrivateFolder(kind, where)
        try:
            yield folder.path
        finally:
            folder.delete()


def _made(parent: str, prefix: str) -> tuple[str, int | None]:
    """Path of a new folder, and the descriptor of its locked file; None where files cannot be locked."""
    if locks is None:
        return tempfile.mkdtemp(prefix=prefix, dir=parent), None
    delete_abandoned(parent)
    for _ in range(MAX_ATTEMPTS):
        descriptor, lock = tempfile.mkstemp(SUFFIX, prefix, parent)
        folder = lock.removesuffix(SUFFIX)
        try:
            try:
                locks.flock(descriptor, locks.LOCK_EX | locks.LOCK_NB)
            except BlockingIOError:  # another process, which deletes abandoned folders, was quicker
                os.close(descriptor)
                continue
            except OSError:  # a file system without locks
                delete_file(lock)
                folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
                os.close(descriptor)
                return folder, None
            os.write(descriptor, _signature())
            if _is_at(descriptor, lock):
                Path(folder).mkdir(0o700)
                return folder, descriptor
        except FileExistsError:
            delete_file(lock)
        except BaseException:  # a full disk, or Ctrl-C
            with suppress(OSError):
                delete_file(lock)
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise FileExistsError(f"no free name after {MAX_ATTEMPTS} attempts")


def delete_abandoned(parent: str) -> list[str]:
    """Delete the temporary folders that killed processes of this user left on this machine; their paths."""
    deleted = []
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            name = entry.name.removesuffix(SUFFIX)
            if entry.name.endswith(SUFFIX) and _NAME.fullmatch(name) and _is_abandoned(entry.path):
                deleted.append(entry.path.removesuffix(SUFFIX))
    return deleted


def _is_abandoned(lock: str) -> bool:
    """Whether the owner of a lock file has ended; then its folder and the file are deleted."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # of another user, or deleted just now
        return False
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return False
        folder = lock.removesuffix(SUFFIX)
        # Not all shared file systems know the locks of other machines.
        signature = os.read(descriptor, 4096)
        is_unsigned = not signature and time.time() >= found.st_mtime + UNSIGNED_SECONDS and not os.path.lexists(folder)
        if signature != _signature() and not is_unsigned:
            return False
        locks.flock(descriptor, locks.LOCK_EX | locks.LOCK_NB)
        if not _is_at(descriptor, lock):
            return False
        if not is_unsigned:
            _delete_folder(folder)
        delete_file(lock)
    except OSError:  # locked: its owner lives
        return False
    finally:
        os.close(descriptor)
    return True


def _signature() -> bytes:
    """Content of the lock files of this machine's processes."""
    return f"temporary folder of dkrr on {os.uname().nodename}\n".encode()


def _is_at(descriptor: int, path: str) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), Path(path).lstat())
    except FileNotFoundError:
        return False


def _delete(folder: str, descriptor: int | None, owner: int) -> None:
    if os.getpid() != owner:  # a fork, whose parent still uses it
        return
    _delete_folder(folder)
    if descriptor is not None:
        with suppress(OSError):
            delete_file(folder + SUFFIX)
        os.close(descriptor)


def _delete_folder(path: str) -> None:
    """Delete a folder that a task which cannot be cancelled may still be writing to."""
    for _ in range(MAX_ATTEMPTS):
        delete_made(path)
        if not Path(path).exists():
            return
        time.sleep(0.1)
