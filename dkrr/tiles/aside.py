"""Files and folders written aside: what is at a path is what was there before, or whole, also after a kill.

A file takes the place of another in one step of the system, and so does a folder, on Linux and where the file system
can exchange two names (ext4, XFS, Btrfs, tmpfs, overlays). Elsewhere (NFS, macOS) a folder is replaced by two renames,
and in an object store the old one is deleted before the new one is copied: a process that is killed in between leaves
nothing at the path, and all that it wrote under a name beside it.

Such names begin with NEW or, for what was there before, with OLD, followed by eight hexadecimal digits and the name of
the path. They are left only by processes that were killed, and may be deleted when no process writes there.
"""

import ctypes
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from dkrr.config import setting
from dkrr.errors import InputError, StoreError
from dkrr.tiles import remote
from dkrr.tiles.faults import faults_of
from dkrr.tiles.files import local_path, sync_folder

NEW = ".dkrr-new-"
OLD = ".dkrr-old-"

_AT_FDCWD = -100
_NOREPLACE = 1
_EXCHANGE = 2
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""Answers of systems and file systems that have only plain renames; a filter of a container's system calls forbids."""


def check_free(url: str, *, overwrite: bool, what: str, is_one: Callable[[str], bool]) -> None:
    """Refuse to write where something is that may not be replaced.

    Parameters
    ----------
    url : str
        Path or URL of a file or a folder.
    overwrite : bool
        Whether one of the same kind may be replaced.
    what : str
        What would be written, for the message.
    is_one : callable
        Whether what is at a URL is one of the same kind.

    Raises
    ------
    InputError
        If something exists and may not be replaced.
    StoreError
        If it cannot be seen whether something exists.
    """
    with faults_of(f"look for {url}", "then try again"):
        if not _exists(url):
            return
        if not overwrite:
            raise _exists_already(url)
        path = local_path(url)
        is_empty = path is not None and path.is_dir() and not any(path.iterdir())
        if not is_empty and not is_one(url):
            raise InputError(f"{url} is not {what}, and only such a one is overwritten; delete it or give another path")


@contextmanager
def written_aside(url: str, *, overwrite: bool) -> Iterator[str]:
    """Yield a place to write at; its content is moved to `url` after the block has ended without an error.

    After an error in the block it is deleted, and what was at `url` before is untouched.

    Parameters
    ----------
    url : str
        Path or URL of a file or a folder; see `check_free`.
    overwrite : bool
        Whether an existing one is replaced.

    Yields
    ------
    str
        Path or URL on the same file system, with the same suffix.

    Raises
    ------
    InputError
        If something has come to be at `url` and is not to be overwritten.
    DiskSpaceError
        If the disk is full.
    StoreError
        If it cannot be written for another reason.
    """
    path = local_path(url)
    with faults_of(f"write {url}", "then try again: what was there before is unchanged"):
        if path is None:
            with _written_remote(url, overwrite=overwrite) as place:
                yield place
            return
        path = Path(os.path.realpath(path))  # of a link, what it leads to
        path.parent.mkdir(parents=True, exist_ok=True)
        place = str(_beside(path, NEW))
        try:
            yield place
            if setting("durable"):
                _bring_to_disk(Path(place))
            _move(Path(place), path, overwrite=overwrite)
        except BaseException:
            with suppress(Exception):  # this error would hide the other one
                _delete(Path(place))
            raise
        if setting("durable"):
            sync_folder(path.parent)


def _exists_already(url: str) -> InputError:
    return InputError(f"{url} exists already; delete it, give another path, or ask for it to be overwritten")


def _beside(path: Path, prefix: str) -> Path:
    return path.with_name(f"{prefix}{uuid.uuid4().hex[:8]}-{path.name}")


def _move(place: Path, path: Path, *, overwrite: bool) -> None:
    """Move a file or folder to `path`, in one step if the system has one."""
    if not overwrite:
        try:
            if _renamed(place, path, _NOREPLACE):
                return
        except FileExistsError:
            raise _exists_already(str(path)) from None
        if os.path.lexists(path):
            raise _exists_already(str(path))
    if not (path.is_dir() and any(path.iterdir())):
        place.replace(path)
        return
    if not _renamed(place, path, _EXCHANGE):
        _replace_folder(place, path)
        return
    with suppress(Exception):  # what was asked for is done
        _delete(place)


def _replace_folder(place: Path, path: Path) -> None:
    """Replace a folder by two renames; the old one comes back if the second does not succeed."""
    old = _beside(path, OLD)
    path.rename(old)
    try:
        place.rename(path)
    except BaseException as error:
        try:
            old.rename(path)
        except OSError:
            raise StoreError(
                f"{path} could not be replaced ({error}), and what was there is at {old} now: rename it to {path}"
            ) from error
        raise
    with suppress(Exception):
        _delete(old)


def _renamed(source: Path, target: Path, flag: int) -> bool:
    """Rename in one step by Linux's renameat2; False if the system or the file system does not have it."""
    rename = _renameat2()
    if rename is None:
        return False
    ctypes.set_errno(0)
    if rename(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_SUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


@cache
def _renameat2() -> Any:
    """The function of the C library; None without one (macOS, old libraries)."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    function.restype = ctypes.c_int
    return function


def _bring_to_disk(place: Path) -> None:
    """Have all that was written on the disk before it takes the place of what is there."""
    folders = [Path(folder) for folder, _, _ in os.walk(place)] if place.is_dir() else []
    for folder in folders:
        sync_folder(folder)
    for file in [file for folder in folders for file in folder.iterdir() if file.is_file()] or [place]:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())


def _exists(url: str) -> bool:
    path = local_path(url)
    return remote.exists(url) if path is None else os.path.lexists(path)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _written_remote(url: str, *, overwrite: bool) -> Iterator[str]:
    folder, name = url.rstrip("/").rsplit("/", 1)
    place = f"{folder}/{NEW}{uuid.uuid4().hex[:8]}-{name}"
    try:
        yield place
        if not overwrite and _exists(url):
            raise _exists_already(url)
    except BaseException:
        with suppress(Exception):
            remote.delete(place)
        raise
    try:
        remote.move(place, url)
    except BaseException as error:
        error.add_note(f"what was written is at {place}; what was at {url} before may be deleted")
        raise
