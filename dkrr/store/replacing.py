"""The one module that deletes and replaces files of this machine; only what dkrr wrote, or a user asked to replace.

Three kinds of things are deleted, and nothing else:

- of a store, a model or predictions the files that their format lists, one by one (`delete_listed`), and folders that
  are then empty: what else lies in them stays;
- a single file under a name that dkrr gave it (`delete_file`);
- a folder that a process of dkrr made for itself, under a name of its own (`delete_made`).

Outputs are written aside: what is at a path is what was there before, or whole, also after a kill. A file takes the
place of another in one step of the system, and so does a folder, on Linux and where the file system can exchange two
names (ext4, XFS, Btrfs, tmpfs, overlays). Elsewhere (NFS, macOS) a folder is replaced by two renames: a process that is
killed in between leaves nothing at the path, and all that it wrote under a name beside it.

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dkrr.config import setting
from dkrr.errors import StoreError
from dkrr.store.paths import exists_already, short_name, unreadable

logger = logging.getLogger(__name__)

NEW = ".dkrr-new-"
OLD = ".dkrr-old-"
PARTIAL = ".partial"
"""End of the name of a file that is being written."""
LOCK_NAME = ".dkrr-lock"

_FOLDER = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
_LISTED = r"(?:zarr\.json|c(?:\.[0-9]+)+)"
_ABANDONED = rf"(?:{_LISTED}\.[0-9a-f]{{32}}\.partial)"
_LOCKS = rf"(?:{re.escape(LOCK_NAME)}(?:\.(?:break|restore)\.[0-9]+\.[0-9a-f]{{32}})?)"
STORE = re.compile(rf"(?:{_FOLDER}/)*(?:{_LISTED}|{_ABANDONED}|{_LOCKS})")
"""Paths of the files of a run's store: metadata, chunks, those that a killed process was writing, locks of filelock."""
PARTIAL_FILES = re.compile(rf"(?:{_FOLDER}/)*{_ABANDONED}")
"""Paths of those that killed writers left in a store."""

_AT_FDCWD = -100
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


def delete_listed(path: Path, listed: re.Pattern[str]) -> None:
    """Delete a file that dkrr wrote, or one of its folders: file by file, and folders that are then empty.

    What cannot be deleted stays, and so does what the format does not list. Links are deleted, and not followed.

    Parameters
    ----------
    path : Path
        A file whose name is dkrr's, or a folder.
    listed : re.Pattern
        Paths, relative to the folder, of the files that the format has.

    Raises
    ------
    StoreError
        If this process has too many open files to look into a folder.
    """
    if not path.is_dir() or path.is_symlink():
        with suppress(OSError):
            delete_file(path)
        return
    emptied: set[str] = set()
    try:
        # Without a free descriptor a folder is not even read; then it would seem to be what is written next.
        for folder, folders, files, descriptor in os.fwalk(path, topdown=False, onerror=_refuse_without_descriptors):
            inner = os.path.relpath(folder, path)
            for name in sorted(files, key=is_metadata):  # an array that is half deleted is one without all its chunks
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
    except OSError as error:
        _refuse_without_descriptors(error)
    delete_empty(path)


def is_metadata(name: str) -> bool:
    """Whether a file describes the group or array that it lies in."""
    return name.endswith("zarr.json")


def _relative(folder: str, name: str) -> str:
    return name if folder == os.curdir else f"{folder}/{name}"


def _refuse_without_descriptors(error: OSError) -> None:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise unreadable(str(error.filename), error) from error


def first_not_listed(path: Path, listed: re.Pattern[str]) -> str | None:
    """Path in a folder of the first file, link or empty folder that the format does not have; None if all is listed."""
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


@contextmanager
def moved_into_place(path: Path, *, overwrite: bool, listed: re.Pattern[str] | None) -> Iterator[str]:
    """Yield a path beside another; what is written there takes its place after the block, unless that raises.

    Parameters
    ----------
    path : Path
        A file or a folder.
    overwrite : bool
        Whether an existing one is replaced.
    listed : re.Pattern or None
        Paths of the files of the folder that is replaced: no others are deleted. None: what is written is a file.

    Yields
    ------
    str
        Path on the same file system, with the same suffix: a new empty folder, or a name for a new file.

    Raises
    ------
    InputError
        If something has come to be at the path and is not to be overwritten.
    OSError
        If it cannot be written.
    """
    new = beside(path, NEW)
    aside = _Aside(new, listed)
    _ASIDE.add(aside)
    try:
        if listed is not None:
            new.mkdir()
            aside.made = new.lstat()
        yield str(new)
        if setting("durable"):
            _bring_to_disk(new)
        _move(new, path, overwrite=overwrite, listed=listed)
    except BaseException:
        aside.delete()
        raise
    finally:
        _ASIDE.discard(aside)
    if setting("durable"):
        sync_folder(path.parent)


@dataclass(eq=False)
class _Aside:
    """File or folder that is written beside a path until it is moved there."""

    new: Path
    listed: re.Pattern[str] | None
    made: os.stat_result | None = None
    """State of the folder when it was made."""

    def delete(self) -> None:
        """Delete it; if the folders are exchanged already, that name has what was replaced."""
        with suppress(Exception):  # this error would hide the one that ends the work
            if self.listed is None:
                delete_file(self.new)
            elif self.made is None:
                delete_empty(self.new)
            elif os.path.samestat(self.made, self.new.lstat()):
                delete_made(self.new)
            else:
                delete_listed(self.new, self.listed)


_ASIDE: set[_Aside] = set()
"""Files and folders that this process is writing aside."""


def delete_unfinished() -> None:
    """Delete what this process is writing aside, before a signal ends it.

    The exception of a signal may come between two steps of a `with` statement, whose end is then not reached.
    """
    for aside in list(_ASIDE):
        aside.delete()


def sync_folder(path: Path | str) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def beside(path: Path, prefix: str) -> Path:
    """Name that nothing has in the folder of a path, with the same end; a long one would be too long for a file."""
    while True:
        found = path.with_name(f"{prefix}{uuid.uuid4().hex[:8]}-{short_name(path.name)}")
        if not os.path.lexists(found):
            return found


def _move(new: Path, path: Path, *, overwrite: bool, listed: re.Pattern[str] | None) -> None:
    """Move a file or folder to `path`, in one step if the system has one."""
    if not overwrite and os.path.lexists(path):
        raise exists_already(str(path))
    if listed is None or not (path.is_dir() and any(path.iterdir())):
        new.replace(path)
    elif exchanged(new, path):
        _delete_replaced(new, listed)
    else:
        _replace_folder(new, path, listed)


def _replace_folder(new: Path, path: Path, listed: re.Pattern[str]) -> None:
    """Replace a folder by two renames; the old one comes back if the second does not succeed."""
    old = beside(path, OLD)
    try:
        path.rename(old)
        new.rename(path)
    except BaseException as error:
        try:
            if not os.path.lexists(path):
                old.rename(path)
        except OSError:
            raise StoreError(
                f"{path} could not be replaced ({error}), and its earlier content is at {old} now: rename it to {path}"
            ) from error
        raise
    _delete_replaced(old, listed)


def _delete_replaced(old: Path, listed: re.Pattern[str]) -> None:
    """Delete the folder that was replaced, but for what has come into it and is not of its format."""
    with suppress(Exception):  # what was asked for is done
        delete_listed(old, listed)
        if old.exists():
            logger.warning("%s holds files that dkrr did not write, from the folder that was replaced", old)


def exchanged(first: Path, second: Path) -> bool:
    """Exchange two names in one step by Linux's renameat2; False if the system or the file system has no such step."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # macOS, old libraries
        return False
    one, two = (ctypes.c_char_p(os.fsencode(path)) for path in (first, second))
    if rename(_AT_FDCWD, one, _AT_FDCWD, two, ctypes.c_uint(_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_SUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


def _bring_to_disk(place: Path) -> None:
    """Flush all that was written to the disk, before it replaces what exists."""
    folders = [Path(folder) for folder, _, _ in os.walk(place)] if place.is_dir() else []
    for folder in folders:
        sync_folder(folder)
    for file in [file for folder in folders for file in folder.iterdir() if file.is_file()] or [place]:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
