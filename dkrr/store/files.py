"""Files of a store, on this machine's disk or in an object store: read with bounds, written at once or not at all."""

import contextlib
import os
import stat
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dkrr.config import setting
from dkrr.errors import DamagedChunkError, StoreError
from dkrr.store import remote
from dkrr.store.paths import local_path, unreadable, unwritable
from dkrr.store.replacing import PARTIAL, delete_file, replace_file, sync_folder

Buffer = Any
"""Bytes, or what has their interface."""

AT_ONCE = 512
"""Buffers that one call of the system takes; POSIX allows for 1,024 on Linux and macOS."""


def open_for_reading(path: Path | str) -> int:
    """Descriptor of a regular file; links are not followed, and pipes and devices not waited for.

    Raises
    ------
    FileNotFoundError
        If there is none.
    StoreError
        If it is something else, or cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(str(path)) from None
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        place = Path(path)
        text = f"{path} is not a file; expected one that dkrr wrote: the store is damaged"
        raise DamagedChunkError(text, str(place.parent), place.name)
    return descriptor


def read_file(url: str, max_bytes: int) -> bytes | None:
    """Content of a small file; None if there is none.

    Raises
    ------
    StoreError
        If it is larger than `max_bytes`, a link or no file, or cannot be read.
    """
    path = local_path(url)
    if path is None:
        folder, _, name = url.rpartition("/")
        found = remote.get(folder, name)
        if found is not None and len(found) > max_bytes:
            raise _too_large(url, len(found), max_bytes)
        return None if found is None else bytes(found)
    try:
        descriptor = open_for_reading(path)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > max_bytes:
            raise _too_large(url, size, max_bytes)
        try:
            return file.read(max_bytes)
        except OSError as error:
            raise unreadable(path, error) from error


def _too_large(url: str, size: int, max_bytes: int) -> StoreError:
    return StoreError(f"{url} has {size} bytes; expected at most {max_bytes}: it is not a file that dkrr wrote")


def read_all(descriptor: int, parts: list[Any], offset: int) -> None:
    """Fill buffers with consecutive bytes of a file; raises EOFError where it ends too early."""
    while parts:
        # One call reads at most 2 GiB.
        n = _read_once(descriptor, parts[:AT_ONCE], offset)
        if n == 0:
            raise EOFError
        offset += n
        while parts and n >= len(parts[0]):
            n -= len(parts.pop(0))
        if n:
            parts[0] = memoryview(parts[0])[n:]


def _read_once(descriptor: int, parts: list[Any], offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, parts, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # macOS before 11; nothing else uses the descriptor
    return os.readv(descriptor, parts)


def write_file(url: str, parts: Sequence[Buffer]) -> None:
    """Write a file from consecutive parts. It appears whole at once, or not at all: a killed writer leaves no half.

    With ``dkrr.durable`` in Dask's configuration it is on the disk when this returns, whatever happens to the machine.

    Raises
    ------
    DiskSpaceError
        If the disk or a quota is full.
    StoreError
        If it cannot be written for another reason.
    """
    path = local_path(url)
    if path is None:
        folder, _, name = url.rpartition("/")
        remote.put(folder, name, *parts)
        return
    partial, is_durable = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PARTIAL}"), bool(setting("durable"))
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            _write_all(descriptor, [memoryview(part).cast("B") for part in parts])
            if is_durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        replace_file(partial, path)
        if is_durable:
            sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            delete_file(partial)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def _write_all(descriptor: int, parts: list[memoryview]) -> None:
    while parts:
        written = os.writev(descriptor, parts[:AT_ONCE])
        # A nearly full disk takes what fits, and says so at the next call.
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if written:
            parts[0] = parts[0][written:]


def make_folder(url: str) -> None:
    """Make a folder with those above it; object stores have none.

    Raises
    ------
    StoreError
        If it cannot be made.
    """
    path = local_path(url)
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


def names(url: str) -> list[str]:
    """Names in a folder, without those of files that are being written; empty if there is no folder.

    Raises
    ------
    StoreError
        If it cannot be read.
    """
    path = local_path(url)
    if path is None:
        return remote.names(url)
    try:
        return [name for name in os.listdir(path) if not name.endswith(PARTIAL)]  # noqa: PTH208 (a million names)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(path, error) from error


def is_folder(url: str) -> bool:
    """Whether a name in a store is a folder, and no link to one; of an object store, whether anything is below it."""
    path = local_path(url)
    if path is None:
        return bool(remote.names(url))
    return path.is_dir() and not path.is_symlink()


def refuse_links(url: str, root: str) -> None:
    """Refuse a folder in a store that is reached through a link: it would be outside of the store.

    Parameters
    ----------
    url : str
        Folder below `root`.
    root : str
        The store itself, whose own path may have links.

    Raises
    ------
    StoreError
        Naming the link.
    """
    path, top = local_path(url), local_path(root)
    while path is not None and top is not None and path != top and len(path.parts) > len(top.parts):
        if os.path.islink(path):  # noqa: PTH114 (Path's raises where there is no permission, which reading reports)
            raise StoreError(f"{path} is a link, which is not followed in a store; copy what it leads to there")
        path = path.parent
