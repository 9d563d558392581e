"""Errors of the operating system about files, as errors that say what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dkrr.errors import DiskSpaceError, DkrrError, StoreError

_NO_PERMISSION = "this user has no permission there: change the permissions, or give another path"
_LOST_SERVER = "the connection to the server of these files was lost: mount them again"
_LOST_DISK = "the disk is no longer there: attach and mount it again"
_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the quota of this user is used up: free some space, or have it raised",
    errno.EFBIG: "files may not be that large here: raise the limit (ulimit -f)",
    errno.EROFS: "the file system is read-only: mount it for writing, or give a path on another one",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.ENOENT: "a folder of the path does not exist any more: restore it, or mount its disk again",
    errno.ENOTDIR: "a part of the path is a file: give another path",
    errno.EMFILE: "this process has too many open files: allow more (ulimit -n)",
    errno.ENFILE: "the system has too many open files: allow more, or run fewer processes",
    errno.ENAMETOOLONG: "the path is too long: give a shorter one",
    errno.ELOOP: "it is a link, which is not followed in a store: copy what it leads to there, or delete it",
    errno.EIO: "the disk fails, or the connection to it: look at the system's log",
    errno.ESTALE: _LOST_SERVER,
    errno.ENOTCONN: _LOST_SERVER,
    errno.ENODEV: _LOST_DISK,
    errno.ENXIO: _LOST_DISK,
}
"""What to do about what the system reports, by its number."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
KEPT = "Finished tiles are kept: then run again with the same store"


def reason(error: OSError) -> str:
    """What the system reports, in its words, and what to do about it."""
    said = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0)
    return said if remedy is None else f"{said}: {remedy}"


def store_error(what: str, error: OSError, then: str = KEPT) -> StoreError:
    """Error for users from one of the system: a `DiskSpaceError` if there is no space.

    Parameters
    ----------
    what : str
        What could not be done, with the path: "write /data/run.zarr/c.0".
    error : OSError
    then : str
        What is left, and what to do when this is fixed.
    """
    kind = DiskSpaceError if error.errno in _FULL else StoreError
    return kind(f"cannot {what}: {reason(error)}. {then}")


def unreadable(path: Path | str, error: OSError) -> StoreError:
    """Error for a file that the system does not let this process read."""
    if error.errno == errno.ELOOP:
        return StoreError(f"{path} is a link, which is not followed in a store; copy what it leads to there")
    return store_error(f"read {path}", error, "Fix this, and run again")


def unwritable(path: Path | str, error: OSError) -> StoreError:
    """Error for a file of a store that cannot be written."""
    return store_error(f"write {path}", error)


@contextmanager
def faults_of(what: str, then: str = KEPT) -> Iterator[None]:
    """Raise errors of the system in the block as `store_error`; errors of dkrr pass.

    Raises
    ------
    StoreError
        In place of an OSError.
    """
    try:
        yield
    except DkrrError:
        raise
    except OSError as error:
        raise store_error(what, error, then) from error
