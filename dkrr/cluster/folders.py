"""Temporary folders of runs: private, deleted at the end, and by a later run if their process was killed.

Beside each folder is a file that its process keeps locked (flock, by filelock), with the machine's name in its own. The
system releases the lock when the process ends, however that happens, and not while it is stopped: a folder whose lock
is free is not in use. The lock file is made before the folder and deleted after it, so that a process that is killed at
any point leaves nothing that is not found; a folder without such a file is never deleted.
"""

import os
import platform
import secrets
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from dkrr.cluster.process import graceful_termination
from dkrr.config import temporary_directory
from dkrr.errors import StoreError
from dkrr.store.replacing import delete_file, delete_made

if TYPE_CHECKING:  # imported where it is used: workers make no folders
    from filelock import BaseFileLock

PREFIX = "dkrr-"
MAX_FOLDER_ATTEMPTS = 20
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
    with graceful_termination():
        folder = PrivateFolder(kind, where)
        try:
            yield folder.path
        finally:
            folder.delete()


def lock_suffix() -> str:
    """End of the names of this machine's lock files: not all shared file systems know the locks of other machines."""
    return f".dkrr-on-{platform.node()}.lock"


def _locked(path: str) -> "BaseFileLock":
    """Lock of a file, which is made if need be; raises TimeoutError where another process has it."""
    from filelock import FileLock  # not by workers, and not by fits in memory

    lock = FileLock(path, blocking=False, mode=0o600, thread_local=False, fallback_to_soft=False)
    lock.acquire()
    return lock


def _unlock(lock: "BaseFileLock") -> None:
    with suppress(OSError):
        delete_file(lock.lock_file)
    lock.release()


def _made(parent: str, prefix: str) -> "tuple[str, BaseFileLock | None]":
    """Path of a new folder, and its lock; None where files cannot be locked."""
    Path(parent).stat()  # it must exist: filelock would make it
    delete_abandoned(parent)
    for _ in range(MAX_FOLDER_ATTEMPTS):
        folder = f"{parent}/{prefix}{secrets.token_hex(4)}"
        try:
            lock = _locked(folder + lock_suffix())
        except TimeoutError:  # another process, which deletes abandoned folders, was quicker
            continue
        except OSError:  # a file system without locks; any other fault is one of the folder too
            delete_file(folder + lock_suffix())
            return tempfile.mkdtemp(prefix=prefix, dir=parent), None
        try:
            Path(folder).mkdir(0o700)
            return folder, lock
        except BaseException as error:  # a full disk, or Ctrl-C
            _unlock(lock)
            if not isinstance(error, FileExistsError):  # of another user, who saw the lock file
                raise
    raise FileExistsError(f"no free name after {MAX_FOLDER_ATTEMPTS} attempts")


def delete_abandoned(parent: str) -> list[str]:
    """Delete the temporary folders that killed processes of this user left on this machine; their paths."""
    deleted, suffix = [], lock_suffix()
    for path in map(str, Path(parent).glob(f"{PREFIX}*{escape(suffix)}")):
        with suppress(OSError):  # locked, since its owner lives; or deleted just now
            found = Path(path).lstat()
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                _delete(path.removesuffix(suffix), _locked(path), os.getpid())
                deleted.append(path.removesuffix(suffix))
    return deleted


def _delete(folder: str, lock: "BaseFileLock | None", owner: int) -> None:
    if os.getpid() != owner:  # a fork, whose parent still uses it
        return
    for _ in range(MAX_FOLDER_ATTEMPTS):  # a task which cannot be cancelled may still be writing to it
        delete_made(folder)
        if not Path(folder).exists():
            break
        time.sleep(0.1)
    if lock is not None:
        _unlock(lock)
