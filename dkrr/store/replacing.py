"""The one module that deletes and replaces; only what dkrr wrote, and files that a user asked to have replaced.

Three kinds of things are deleted, and nothing else:

- of a store, a model or predictions the files that their format lists, one by one (`delete_listed`), and folders that
  are then empty: what else lies in them stays;
- a single file under a name that dkrr gave it (`delete_file`);
- a folder that a process of dkrr made for itself, under a name of its own (`delete_made`).

Outputs are written aside: what is at a path is what was there before, or whole, also after a kill. A file takes the
place of another in one step of the system, and so does a folder, on Linux and where the file system can exchange two
names (ext4, XFS, Btrfs, tmpfs, overlays). Elsewhere (NFS, macOS) a folder is replaced by two renames, and in an object
store the old one is deleted before the new one is copied: a process that is killed in between leaves nothing at the
path, and all that it wrote under a name beside it.

Such names begin with NEW or, for what was there before, with OLD, followed by eight hexadecimal digits and the end of
the path's name. They are left only by processes that were killed, and may be deleted when no process writes there.
"""

import ctypes
import errno
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from dkrr.config import setting
from dkrr.errors import InputError, StoreError
from dkrr.store import remote
from dkrr.store.paths import faults_of, local_path, resolved_place, unreadable
from dkrr.values import shown

logger = logging.getLogger(__name__)

NEW = ".dkrr-new-"
OLD = ".dkrr-old-"
PARTIAL = ".partial"
"""End of the name of a file that is being written."""
LOCK_NAME = ".dkrr-lock"

_FOLDER = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
_LISTED = r"(?:zarr\.json|c(?:\.[0-9]+)+)"
_ABANDONED = rf"(?:{_LISTED}\.[0-9a-f]{{32}}\.partial)"
_LOCKS = rf"(?:{re.escape(LOCK_NAME)}(?:-[0-9a-f]{{32}})?)"
STORE = re.compile(rf"(?:{_FOLDER}/)*(?:{_LISTED}|{_ABANDONED}|{_LOCKS})")
"""Paths of the files of a run's store: metadata, chunks, those that a killed process was writing, locks."""
_PARTIAL_FILES = re.compile(rf"(?:{_FOLDER}/)*{_ABANDONED}")

MAX_END_BYTES = 100
"""Bytes of the end of a path's name that the name beside it has."""

_AT_FDCWD = -100
_NOREPLACE = 1
_EXCHANGE = 2
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""Answers of systems and file systems that have only plain renames; a filter of a container's system calls forbids."""


def arrays_below(names: Iterable[str]) -> re.Pattern[str]:
    """Paths of the files of a group of arrays in the layout of dkrr's stores, whose names match some expressions."""
    return re.compile(rf"(?:(?:{'|'.join(names)})(?:/{_FOLDER})?/)?(?:{_LISTED}|{_ABANDONED})")


def files_of_arrays(names: Iterable[str]) -> re.Pattern[str]:
    """Paths of the files of one Zarr array, or of those of a group in folders with these names, as Zarr writes them."""
    folders = "|".join(map(re.escape, names))
    return re.compile(rf"(?:(?:{folders})/)?(?:zarr\.json|c(?:/[0-9]+)+)")


def delete_file(path: Path | str) -> None:
    """Delete a file of this machine under a name that dkrr gave it, if it exists.

    Raises
    ------
    OSError
        If it cannot be deleted.
    """
    Path(path).unlink(missing_ok=True)


def delete_empty(path: Path | str) -> None:
    """Delete a folder, unless something is in it, or it cannot be deleted."""
    with suppress(OSError):
        Path(path).rmdir()


def delete_made(path: Path | str) -> None:
    """Delete a folder that a process of dkrr made for itself, with all that is in it; links are not followed."""
    shutil.rmtree(path, ignore_errors=True)


def replace_file(new: Path | str, path: Path | str) -> None:
    """Give a file that dkrr has just written the name under which a file of dkrr's is kept, in one step."""
    os.replace(new, path)  # noqa: PTH105 (Path.replace makes another path, in a hot path)


def delete_listed(url: str, listed: re.Pattern[str]) -> None:
    """Delete a file that dkrr wrote, or a folder of its own: file by file, and folders that are then empty.

    What cannot be deleted stays, and so does what the format does not list. Links are deleted, and not followed.

    Parameters
    ----------
    url : str
        Path or URL of a file whose name is dkrr's, or of a folder.
    listed : re.Pattern
        Paths, relative to the folder, of the files that the format has.

    Raises
    ------
    StoreError
        If this process has too many open files to look into a folder, or an object store does not answer.
    """
    path = local_path(url)
    if path is None:
        found = [name.lstrip("/") for name, _, _ in remote.files(url)]
        remote.delete(url, [name for name in found if not name or listed.fullmatch(name)])
    elif path.is_dir() and not path.is_symlink():
        try:
            _delete_in_folder(path, listed)
        except OSError as error:
            _refuse_without_descriptors(error)
    else:
        with suppress(OSError):
            delete_file(path)


def _delete_in_folder(top: Path, listed: re.Pattern[str]) -> None:
    emptied: set[str] = set()
    # Without a free descriptor a folder is not even read; then it would seem to be what is written next.
    for folder, folders, files, descriptor in os.fwalk(top, topdown=False, onerror=_refuse_without_descriptors):
        inner = os.path.relpath(folder, top)
        for name in files:
            if listed.fullmatch(_relative(inner, name)):
                with suppress(OSError):
                    os.unlink(name, dir_fd=descriptor)
                    emptied.add(folder)
        for name in folders:
            child = os.path.join(folder, name)  # noqa: PTH118 (as fwalk forms it)
            if child in emptied:
                with suppress(OSError):
                    os.rmdir(name, dir_fd=descriptor)
                    emptied.add(folder)
    delete_empty(top)


def _relative(folder: str, name: str) -> str:
    return name if folder == os.curdir else f"{folder}/{name}"


def _refuse_without_descriptors(error: OSError) -> None:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise unreadable(str(error.filename), error) from error


def first_not_listed(url: str, listed: re.Pattern[str]) -> str | None:
    """Path in a folder of the first file, link or empty folder that the format does not have; None if all is listed.

    Raises
    ------
    StoreError
        If an object store does not answer.
    """
    path = local_path(url)
    if path is None:
        names = sorted(name.lstrip("/") for name, _, _ in remote.files(url))
        return next((name for name in names if name and not listed.fullmatch(name)), None)
    for folder, folders, files in os.walk(path):
        inner = os.path.relpath(folder, path)
        for name in sorted(files):
            if not listed.fullmatch(_relative(inner, name)):
                return _relative(inner, name)
        for name in sorted(folders):
            if os.path.islink(os.path.join(folder, name)):  # noqa: PTH114, PTH118 (of a million names)
                return _relative(inner, name)
        if not files and not folders and inner != os.curdir:
            return inner
    return None


def delete_partial(url: str) -> None:
    """Delete what killed writers left in a store; only its owner may, since a living writer's file has such a name."""
    if local_path(url) is not None:
        delete_listed(url, _PARTIAL_FILES)


def refuse_missing_folder(url: str, name: str) -> None:
    """Refuse a path whose folder does not exist, most often a slip: dkrr makes no folders above what it writes.

    Parameters
    ----------
    url : str
    name : str
        Of the argument, for the message.

    Raises
    ------
    InputError
        Naming the folder.
    StoreError
        If it cannot be seen whether it exists.
    """
    path = local_path(resolved_place(url))
    with faults_of(f"look for {url}", "then try again"):
        exists = path is None or path.parent.is_dir()
    if path is not None and not exists:
        raise InputError(
            f"{name} is {shown(url)}, and the folder {path.parent} does not exist; expected an existing one: "
            f"make it, or give another path"
        )


def check_writable(url: str, *, is_grown: bool = False) -> None:
    """Refuse a path where nothing can be written: a file is written there, and deleted.

    Parameters
    ----------
    url : str
        Path or URL of a file or a folder.
    is_grown : bool, default=False
        Whether files are added to a folder that exists, instead of another taking its place.

    Raises
    ------
    StoreError
        If the file cannot be written.
    """
    with faults_of(f"write {url}", "then try again"):
        place = resolved_place(url)
        path = local_path(place)
        if path is None:
            probe = f"{NEW}{uuid.uuid4().hex[:8]}"
            folder = place if is_grown else place.rpartition("/")[0]
            remote.put(folder, probe, b"")
            remote.delete(folder, [probe])
        else:
            file = _beside(path / NEW if is_grown and path.is_dir() else path, NEW)
            file.touch(exist_ok=False)
            delete_file(file)


def check_free(
    url: str,
    *,
    overwrite: bool,
    what: str,
    is_one: Callable[[str], bool],
    listed: re.Pattern[str] | None,
    name: str = "path",
) -> None:
    """Refuse to write where something is that may not be replaced, or nothing can be written.

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
    listed : re.Pattern or None
        Paths of the files of a folder of this kind, which has no others; None: it is a file.
    name : str
        Of the argument, for the message.

    Raises
    ------
    InputError
        If something exists and may not be replaced, or the folder above does not exist.
    StoreError
        If it cannot be seen whether something exists, or a file beside it cannot be written.
    """
    refuse_missing_folder(url, name)
    check_writable(url)
    with faults_of(f"look for {url}", "then try again"):
        place = resolved_place(url)  # where it is written: `missing/../model` does not exist for the system
        if not (_exists(url) or _exists(place)):
            return
        if not overwrite:
            raise _exists_already(url)
        path = local_path(place)
        if path is not None and path.is_dir() and listed is not None and not any(path.iterdir()):
            return
        if not is_one(place):
            raise InputError(f"{url} is not {what}, and only such a one is overwritten; delete it or give another path")
        other = None if listed is None else first_not_listed(place, listed)
        if other is not None:
            raise InputError(
                f"{url} is {what}, and {shown(other)} in it was not written by dkrr, which deletes only what it wrote; "
                f"expected a folder without other files: move them away, or give another path"
            )


@contextmanager
def written_aside(url: str, *, overwrite: bool, listed: re.Pattern[str] | None) -> Iterator[str]:
    """Yield a place to write at; its content is moved to `url` after the block has ended without an error.

    After an error in the block it is deleted, and what was at `url` before is untouched.

    Parameters
    ----------
    url : str
        Path or URL of a file or a folder; see `check_free`.
    overwrite : bool
        Whether an existing one is replaced.
    listed : re.Pattern or None
        Paths of the files of the folder that is replaced: no others are deleted. None: what is written is a file.

    Yields
    ------
    str
        Path or URL on the same file system, with the same suffix: a new empty folder, or a name for a new file.

    Raises
    ------
    InputError
        If something has come to be at `url` and is not to be overwritten.
    DiskSpaceError
        If the disk is full.
    StoreError
        If it cannot be written for another reason.
    """
    url = resolved_place(url)  # of a link, what it leads to
    path = local_path(url)
    with faults_of(f"write {url}", "then try again: what was there before is unchanged"):
        if path is None:
            with _written_remote(url, overwrite=overwrite, listed=listed) as place:
                yield place
            return
        new = _beside(path, NEW)
        if listed is not None:
            new.mkdir()
        made = None if listed is None else new.lstat()
        try:
            yield str(new)
            if setting("durable"):
                _bring_to_disk(new)
            _move(new, path, overwrite=overwrite, listed=listed)
        except BaseException:
            with suppress(Exception):  # this error would hide the other one
                _delete_new(new, made, listed)
            raise
        if setting("durable"):
            sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete_new(new: Path, made: os.stat_result | None, listed: re.Pattern[str] | None) -> None:
    """Delete what was written aside; if the folders are exchanged already, that name has what was replaced."""
    if made is None or listed is None:
        delete_file(new)
    elif os.path.samestat(made, new.lstat()):
        delete_made(new)
    else:
        delete_listed(str(new), listed)


def _exists_already(url: str) -> InputError:
    return InputError(f"{url} exists already; delete it, give another path, or overwrite=True (--overwrite)")


def _beside(path: Path, prefix: str) -> Path:
    """Name that nothing has in the folder of a path, with the same end; a long one would be too long for a file."""
    while True:
        found = path.with_name(f"{prefix}{uuid.uuid4().hex[:8]}-{_short(path.name)}")
        if not os.path.lexists(found):
            return found


def _short(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[-MAX_END_BYTES:])


def _move(new: Path, path: Path, *, overwrite: bool, listed: re.Pattern[str] | None) -> None:
    """Move a file or folder to `path`, in one step if the system has one."""
    if not overwrite:
        try:
            if _renamed(new, path, _NOREPLACE):
                return
        except FileExistsError:
            raise _exists_already(str(path)) from None
        if os.path.lexists(path):
            raise _exists_already(str(path))
    if listed is None or not (path.is_dir() and any(path.iterdir())):
        new.replace(path)
        return
    if _renamed(new, path, _EXCHANGE):
        _delete_replaced(new, listed)
    else:
        _replace_folder(new, path, listed)


def _replace_folder(new: Path, path: Path, listed: re.Pattern[str]) -> None:
    """Replace a folder by two renames; the old one comes back if the second does not succeed."""
    old = _beside(path, OLD)
    try:
        path.rename(old)
        new.rename(path)
    except BaseException as error:
        try:
            if not os.path.lexists(path):
                old.rename(path)
        except OSError:
            raise StoreError(
                f"{path} could not be replaced ({error}), and what was there is at {old} now: rename it to {path}"
            ) from error
        raise
    _delete_replaced(old, listed)


def _delete_replaced(old: Path, listed: re.Pattern[str]) -> None:
    """Delete the folder that was replaced, but for what has come into it and is not of its format."""
    with suppress(Exception):  # what was asked for is done
        delete_listed(str(old), listed)
        if old.exists():
            logger.warning("%s holds files that dkrr did not write, from the folder that was replaced", old)


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


@contextmanager
def _written_remote(url: str, *, overwrite: bool, listed: re.Pattern[str] | None) -> Iterator[str]:
    folder, name = url.rsplit("/", 1)
    place = f"{folder}/{NEW}{uuid.uuid4().hex[:8]}-{_short(name)}"
    try:
        yield place
        if not overwrite and _exists(url):
            raise _exists_already(url)
    except BaseException:
        with suppress(Exception):
            remote.delete_all(place)
        raise
    try:
        if listed is not None:
            delete_listed(url, listed)
        remote.move(place, url)
    except BaseException as error:
        error.add_note(f"what was written is at {place}; what was at {url} before may be deleted")
        raise
