"""Places that users name, and file names made of text from data; nothing else in the package makes a path of either.

Errors of the operating system about them, as errors that say what to do.
"""

import errno
import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dkrr.checks import location, shown
from dkrr.errors import (
    DamagedChunkError,
    DiskSpaceError,
    DkrrError,
    InputError,
    StoreError,
    UnreachableStoreError,
    is_transient,
)

MAX_NAME_BYTES = 200
"""Longest file name made of text; file systems take 255 bytes, and dkrr puts a few before or behind it."""
_HASH_DIGITS = 16

_RESERVED = re.compile(r"[.]|__|zarr[.]json$")
"""Beginnings that a file name of data does not have: hidden files, ``..``, names that Zarr reserves or uses itself."""


NAMES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
"""Names in a store: letters, digits, and folders between slashes."""

MAX_END_BYTES = 100
"""Bytes of the end of a path's name that the name beside it has."""


def local_path(url: str) -> Path | None:
    """Path of a URL on this machine's file system, or None for a remote one."""
    if url.startswith("file://"):
        return Path(url.removeprefix("file://"))
    return None if "://" in url else Path(url)


def resolved_place(url: str) -> str:
    """Path or URL that a user gave, in the one form that dkrr works with, which means the same in every process.

    A path becomes absolute and normalised, with links resolved; of a URL, slashes at its end are removed.

    Raises
    ------
    InputError
        If a URL has a part ``.`` or ``..``, or the path is relative to a folder that no longer exists.
    """
    path = local_path(url)
    if path is not None:
        try:
            return os.path.realpath(path)
        except FileNotFoundError as error:
            raise InputError(
                f"{shown(url)} is relative to the current folder, which no longer exists; expected an absolute path"
            ) from error
    protocol, _, rest = url.partition("://")
    if {".", ".."} & set(rest.split("/")):
        raise InputError(f"{shown(url)} has a part '.' or '..', which no object store resolves; expected a URL without")
    return f"{protocol}://{rest.rstrip('/')}"


def checked_name(name: str, url: str) -> str:
    """Name of something in a store, if it is one that dkrr gives.

    Raises
    ------
    StoreError
        If it leads elsewhere.
    """
    if not NAMES.fullmatch(name):
        raise StoreError(
            f"{name!r} is not a valid name in {url}; expected letters, digits, and folders between slashes"
        )
    return name


def short_name(name: str) -> str:
    """End of a file's name that leaves room for a beginning."""
    return os.fsdecode(os.fsencode(name)[-MAX_END_BYTES:])


def file_name(text: str) -> str:
    """File name for text from data: the name of a column, a target, a class.

    Different texts have different names. Letters and digits of all scripts, ``_``, ``-``, ``.`` and spaces stay; other
    characters are percent-encoded. A name is never empty, hidden, reserved by Zarr or longer than MAX_NAME_BYTES: a
    long one ends in a checksum.
    """
    is_composed = unicodedata.is_normalized("NFC", text)
    name = "".join(c if _is_plain(c) and (c.isascii() or is_composed) else _encoded(c) for c in text)
    if name == "":
        return "%"
    if _RESERVED.match(name):
        name = name.replace(name[0], _encoded(name[0]), 1)
    if name.endswith(" "):
        name = name[:-1] + _encoded(" ")
    if len(name.encode()) > MAX_NAME_BYTES:
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]
        kept = name.encode()[: MAX_NAME_BYTES - _HASH_DIGITS - 2].decode(errors="ignore")
        name = f"{kept}%-{digest}"
    return name


def _is_plain(character: str) -> bool:
    return character in "_-. " or character.isalnum()


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))


def refuse_enclosing(outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Refuse a store, a model or an output that the current folder, an input or another output lies in.

    Parameters
    ----------
    outputs : mapping of str to str, Path or None
        What is written, by the names of the arguments.
    inputs : mapping of str to object
        What is read; values that are not in a file or a folder count as nothing.

    Raises
    ------
    InputError
        Naming both.
    """
    written = {name: resolved_place(location(output, name)) for name, output in outputs.items() if output is not None}
    read = {name: place for name, value in inputs.items() if (place := _place_of_input(value)) is not None}
    for name, place in written.items():
        others = {f"{other} ({shown(at)})": at for other, at in {**read, **written}.items() if other != name}
        if local_path(place) is not None:
            with suppress(FileNotFoundError):  # it was deleted
                others["the current folder"] = os.path.realpath(os.curdir)
        for what, at in others.items():
            if at == place or at.startswith(f"{place.rstrip('/')}/"):
                where = "the same place as" if at == place else "a folder that holds"
                raise InputError(
                    f"{name} is {shown(str(outputs[name]))}, {where} {what}; expected a separate path, where nothing "
                    f"else is kept: give another one"
                )


def _place_of_input(value: Any) -> str | None:
    """Place of an input in a file or a folder: a path, a mapped file, an array of Zarr, a data set of HDF5."""
    if isinstance(value, str | Path):
        place = str(value).partition("::")[0]
        with suppress(ValueError):  # text that is not a path is refused where it is read
            return resolved_place(place) if place.strip() else None
        return None
    named = ((value, "filename"), (getattr(value, "file", None), "filename"), (getattr(value, "store", None), "root"))
    found = [file for owner, name in named if isinstance(file := getattr(owner, name, None), str | Path)]
    return os.path.realpath(found[0]) if found else None


def exists_already(url: str) -> InputError:
    """Error for an output that would take the place of something else."""
    return InputError(f"{url} exists already; delete it, give another path, or overwrite=True (--overwrite)")


def too_large(url: str, size: int, max_bytes: int) -> StoreError:
    """Error for a small file of a store that is a large one."""
    return StoreError(f"{url} has {size} bytes; expected at most {max_bytes}: it is not a file that dkrr wrote")


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
    errno.EISDIR: "A folder is where a file belongs: delete it, or move it away",
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
"""Remedy for an error of the system, by its number."""

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
    text = f"cannot {what}: {said}. {_REMEDIES.get(error.errno or 0, 'Remove the cause')}; {then}"
    kind: type[StoreError] = DiskSpaceError if error.errno in _FULL else UnreachableStoreError
    return kind(text, is_transient=is_transient(error))


def unreadable(path: Path | str, error: OSError) -> StoreError:
    """Error for a file that the system does not let this process read."""
    if error.errno == errno.ELOOP:
        text = f"{path} is a link, which is not followed in a store; copy what it leads to there"
        return DamagedChunkError(text, *os.path.split(path))
    return store_error(f"read {path}", error, "then run again")


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
