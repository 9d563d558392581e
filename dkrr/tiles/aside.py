"""Files and stores written aside: what is at a path is what was there before, or whole.

A file is exchanged in one step. A folder, or anything in an object store, is not: a process that is killed between
taking the old one away and moving the new one in leaves nothing at the path (see `written_aside`).
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec

from dkrr.errors import InputError
from dkrr.tiles.files import local_path


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
    """
    if not _exists(url):
        return
    if not overwrite:
        raise InputError(f"{url} exists already; delete it, give another path, or ask for it to be overwritten")
    path = local_path(url)
    is_empty = path is not None and path.is_dir() and not any(path.iterdir())
    if not is_empty and not is_one(url):
        raise InputError(f"{url} is not {what}, and only such a one is overwritten; delete it or give another path")


@contextmanager
def written_aside(url: str, *, overwrite: bool) -> Iterator[str]:
    """Yield a place to write at; its content is moved to `url` after the block has ended without an error.

    After an error in the block it is deleted, and what was at `url` before is untouched. A process that is killed
    leaves a file or folder beside it, whose name has a dot and eight hexadecimal digits before it. If that happens
    while a folder is replaced, between two renames, nothing is at `url`, and both folders have such names. In an object
    store the old one is deleted before the new one is copied: after a kill or an error in between, what was written is
    under such a name, which the error says.

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
    """
    path = local_path(url)
    if path is None:
        folder, name = url.rstrip("/").rsplit("/", 1)
        place = f"{folder}/.{uuid.uuid4().hex[:8]}-{name}"
    else:
        path = Path(os.path.realpath(path))  # of a link, what it leads to
        path.parent.mkdir(parents=True, exist_ok=True)
        place = str(path.with_name(f".{uuid.uuid4().hex[:8]}-{path.name}"))
    try:
        yield place
        if not overwrite and _exists(url):
            raise InputError(f"{url} has come to exist in the meantime; delete it or give another path")
        if path is not None:
            _move(Path(place), path)
    except BaseException:
        with suppress(Exception):  # this error would hide the other one
            _delete(place)
        raise
    if path is None:
        _move_remote(place, url)


def _move(place: Path, path: Path) -> None:
    if not path.is_dir():
        place.replace(path)
        return
    # Folders cannot be exchanged in one step; the old one comes back if the second does not succeed.
    old = path.with_name(f".{uuid.uuid4().hex[:8]}-{path.name}")
    path.rename(old)
    try:
        place.rename(path)
    except BaseException as error:
        try:
            old.rename(path)
        except OSError:
            error.add_note(f"what was at {path} is now at {old}")
        raise
    _delete(str(old))


def _move_remote(place: str, url: str) -> None:
    system, new = _remote(place)
    old = _remote(url)[1]
    if system.exists(old):
        system.rm(old, recursive=True)
    try:
        system.mv(new, old, recursive=True)
    except BaseException as error:
        error.add_note(f"what was written is at {place}; what was at {url} before is deleted")
        raise


def _exists(url: str) -> bool:
    path = local_path(url)
    if path is not None:
        return os.path.lexists(path)
    system, name = _remote(url)
    return bool(system.exists(name))


def _delete(url: str) -> None:
    path = local_path(url)
    if path is None:
        system, name = _remote(url)
        if system.exists(name):
            system.rm(name, recursive=True)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remote(url: str) -> tuple[Any, str]:
    """File system of a URL, and the path in it."""
    system, name = fsspec.core.url_to_fs(url)
    return system, str(name)
