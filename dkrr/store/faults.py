"""Errors of the operating system about files, as errors that say what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dkrr.errors import DamagedChunkError, DiskSpaceError, DkrrError, StoreError, UnreachableStoreError

_ALLOW = "Give this user permission there, or give another path"
_MOUNT = "Mount the disk or the server of these files again"
_REMEDIES = {
    errno.ENOSPC: "Free some space on this disk",
    errno.EDQUOT: "Free some space, or have the quota of this user raised",
    errno.EFBIG: "Allow larger files (ulimit -f)",
    errno.EROFS: "Mount the file system for writing, or give a path on another one",
    errno.EACCES: _ALLOW,
    errno.EPERM: _ALLOW,
    errno.ENOENT: "Restore the folder, or mount its disk again",
    errno.ENOTDIR: "A part of the path is a file: give another path",
    errno.EMFILE: "Allow more open files (ulimit -n)",
    errno.ENFILE: "Allow more open files on this system, or end other programs",
    errno.ENAMETOOLONG: "Give a shorter path",
    errno.ELOOP: "Links are not followed in a store: copy what it leads to there, or delete it",
    errno.EIO: "The disk fails, or the connection to it: see the system's log, and repair it",
    errno.ESTALE: _MOUNT,
    errno.ENOTCONN: _MOUNT,
    errno.ENODEV: _MOUNT,
    errno.ENXIO: _MOUNT,
}
"""What to do about what the system reports, by its number."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
AGAIN = "then run again (with the same store, which keeps what is finished)"


def store_error(what: str, error: OSError, then: str = AGAIN) -> StoreError:
    """Error for users from one of the system: a `DiskSpaceError` if there is no space.

    Parameters
    ----------
    what : str
        What could not be done, with the path: "write /data/run.zarr/c.0".
    error : OSError
    then : str
        What to do when the cause is removed.
    """
    said = error.strerror or str(error) or type(error).__name__
    if error.filename is not None and str(error.filename) not in what:
        said = f"{said} ({error.filename})"
    kind: type[StoreError] = DiskSpaceError if error.errno in _FULL else UnreachableStoreError
    return kind(f"cannot {what}: {said}. {_REMEDIES.get(error.errno or 0, 'Remove the cause')}; {then}")


def unreadable(path: Path | str, error: OSError) -> StoreError:
    """Error for a file that the system does not let this process read."""
    if error.errno == errno.ELOOP:
        place = Path(path)
        text = f"{path} is a link, which is not followed in a store; copy what it leads to there"
        return DamagedChunkError(text, str(place.parent), place.name)
    return store_error(f"read {path}", error, "then run again")


def unwritable(path: Path | str, error: OSError) -> StoreError:
    """Error for a file of a store that cannot be written."""
    return store_error(f"write {path}", error)


@contextmanager
def faults_of(what: str, then: str = AGAIN) -> Iterator[None]:
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
