"""Places of bytes: a folder of this machine or a part of a bucket, read with bounds, written at once or not at all.

Everything above asks a `Place` for bytes, and nothing else whether it is local. What users name as an output is checked
here before work (`check_free`) and takes the place of what was there when it is complete (`written_aside`).
"""

import mmap
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from dkrr.checks import shown
from dkrr.config import setting
from dkrr.errors import DamagedChunkError, InputError, StoreError
from dkrr.store import replacing
from dkrr.store.buckets import Bucket, Sizes
from dkrr.store.paths import (
    checked_name,
    exists_already,
    faults_of,
    local_path,
    resolved_place,
    too_large,
    unreadable,
)
from dkrr.store.replacing import NEW, PARTIAL, PARTIAL_FILES, STORE, delete_file, replace_file, sync_folder

Buffer = Any
"""Bytes, or what has their interface."""

_BUFFERS = 512
"""Buffers that one call of the system takes; POSIX allows for 1,024 on Linux and macOS."""
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
"""Map all pages at once, not one fault at a time."""


class Place(Protocol):
    """A folder, or the objects of a bucket whose keys begin alike. Its errors are `StoreError`, and name it."""

    @property
    def url(self) -> str:
        """Path or URL."""

    @property
    def identity(self) -> str:
        """Name of the run or model and of the place in it, which checksums of chunks hold."""

    is_remote: ClassVar[bool]
    """Bytes come over a network."""

    def at(self, name: str) -> "Place":
        """Place within this one."""

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Content of a small file; None if there is none."""

    def read_into(self, name: str, start: int, groups: Sequence[Sequence[Buffer]]) -> Sizes:
        """Fill groups of consecutive buffers of bytes from `start` of a file on.

        Yields
        ------
        int or None
            After each group the size of the whole file, which may be too small to fill it; None if there is none. What
            was read from a disk is then in a core's cache.
        """

    def mapped(self, name: str, size: int, *, at_once: bool) -> Any:
        """Content of a file of this size where it lies in the system's cache; None where that cannot be.

        `at_once` says that all of it is used.
        """

    def write(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Write a file from consecutive buffers. It appears whole, or not at all: a killed writer leaves no half.

        With ``dkrr.durable`` in Dask's configuration it is on the disk when this returns.
        """

    def written(self) -> AbstractContextManager[Any]:
        """File that is written, whose place this is; nothing may be there."""

    def names(self) -> list[str]:
        """Names of what is directly here, without files that are being written; empty if nothing is here."""

    def sizes(self) -> dict[str, int]:
        """Sizes of the files here, in a bucket also of those in folders, by their names."""

    def size(self, name: str) -> int | None:
        """Size of a file; None if there is none."""

    def versions(self) -> dict[str, list[Any]]:
        """Version of each file here, also of those in folders: size, and time or tag, which change with its content.

        A single file has an empty name; empty if nothing is here.
        """

    def exists(self) -> bool:
        """Whether anything is here: a file too, or a link."""

    def is_folder(self) -> bool:
        """Whether this is a folder, and no link to one; in a bucket whether it holds anything."""

    def make(self) -> None:
        """Make the folder with those above it."""

    def delete(self, listed: re.Pattern[str]) -> None:
        """Delete what the format lists of a folder, or a file, whose name the caller vouches for."""

    def first_not_listed(self, listed: re.Pattern[str]) -> str | None:
        """Path of the first file, link or empty folder that the format does not have; None if all is listed."""

    def written_aside(self, *, overwrite: bool, listed: re.Pattern[str] | None) -> AbstractContextManager[str]:
        """See the function `written_aside`."""


def place_at(url: str, identity: str = "") -> Place:
    """Place that a path or URL names."""
    path = local_path(url)
    return Bucket(url, identity) if path is None else LocalFolder(url, identity)


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine's file system."""

    url: str
    identity: str = ""

    is_remote: ClassVar[bool] = False

    @property
    def path(self) -> Path:
        """Path of the folder."""
        path = local_path(self.url)
        assert path is not None
        return path

    def _file(self, name: str) -> str:
        return f"{self.url.removeprefix('file://')}/{name}"

    def at(self, name: str) -> "LocalFolder":
        checked_name(name, self.url)
        return LocalFolder(f"{self.url.rstrip('/')}/{name}", f"{self.identity}/{name}")

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[int, int]]:
        """Descriptor and size of a regular file; links are not followed, and pipes and devices not waited for.

        Raises
        ------
        FileNotFoundError
            If there is none.
        """
        path = self._file(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    text = f"{path} is not a file; expected one that dkrr wrote: the store is damaged"
                    raise DamagedChunkError(text, self.url, name)
                yield descriptor, status.st_size
            finally:
                os.close(descriptor)
        except StoreError:
            raise
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(path) from None
        except OSError as error:
            raise unreadable(path, error) from error

    def read(self, name: str, max_bytes: int) -> bytes | None:
        with suppress(FileNotFoundError), self._opened(name) as (descriptor, size):
            if size > max_bytes:
                raise too_large(self._file(name), size, max_bytes)
            content = bytearray(size)
            with suppress(EOFError):  # it became shorter
                read_all(descriptor, [content], 0)
            return bytes(content)
        return None

    def read_into(self, name: str, start: int, groups: Sequence[Sequence[Buffer]]) -> Sizes:
        try:
            with self._opened(name) as (descriptor, size):
                for buffers in groups:
                    n = sum(map(len, buffers))
                    try:
                        read_all(descriptor, list(buffers), start)
                    except EOFError:
                        size = os.fstat(descriptor).st_size
                    yield size
                    start += n
        except FileNotFoundError:
            yield None

    def mapped(self, name: str, size: int, *, at_once: bool) -> Any:
        flags = mmap.MAP_SHARED | (_POPULATE if at_once else 0)
        with suppress(FileNotFoundError), self._opened(name) as (descriptor, found):
            return mmap.mmap(descriptor, size, prot=mmap.PROT_READ, flags=flags) if found == size else None
        return None

    def write(self, name: str, buffers: Sequence[Buffer]) -> None:
        path = self._file(name)
        partial, is_durable = f"{path}.{uuid.uuid4().hex}{PARTIAL}", bool(setting("durable"))
        with faults_of(f"write {path}"):
            try:
                with open(partial, "xb", buffering=0) as file:  # noqa: PTH123 (a hot path)
                    _write_all(file.fileno(), [memoryview(buffer).cast("B") for buffer in buffers])
                    if is_durable:
                        os.fsync(file.fileno())
                replace_file(partial, path)
                if is_durable:
                    sync_folder(self.path)
            except BaseException:
                with suppress(OSError):
                    delete_file(partial)
                raise

    def written(self) -> Any:
        return self.path.open("xb")

    def names(self) -> list[str]:
        with faults_of(f"read {self.path}", "then run again"), suppress(FileNotFoundError):
            return [name for name in os.listdir(self.path) if not name.endswith(PARTIAL)]  # noqa: PTH208 (a million)
        return []

    def sizes(self) -> dict[str, int]:
        found = dict[str, int]()
        with faults_of(f"read {self.path}", "then run again"), os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # a file that was being written has its name now
                    found[entry.name] = entry.stat(follow_symlinks=False).st_size
        return found

    def size(self, name: str) -> int | None:
        with suppress(FileNotFoundError), self._opened(name) as (_, size):
            return size
        return None

    def versions(self) -> dict[str, list[Any]]:
        with faults_of(f"read {self.path}", "then run again"):
            inside = [Path(folder, name) for folder, _, names in os.walk(self.path) for name in names]
            found = {}
            for file in [self.path] if self.path.is_file() else inside:
                with suppress(FileNotFoundError):  # a link that leads nowhere, as editors leave
                    status = file.stat()
                    name = "" if file == self.path else str(file.relative_to(self.path))
                    found[name] = [status.st_size, status.st_mtime_ns]
        return found

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def is_folder(self) -> bool:
        return self.path.is_dir() and not self.path.is_symlink()

    def make(self) -> None:
        with faults_of(f"write {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)

    def delete(self, listed: re.Pattern[str]) -> None:
        replacing.delete_listed(self.path, listed)

    def first_not_listed(self, listed: re.Pattern[str]) -> str | None:
        return replacing.first_not_listed(self.path, listed)

    def written_aside(self, *, overwrite: bool, listed: re.Pattern[str] | None) -> AbstractContextManager[str]:
        return replacing.moved_into_place(self.path, overwrite=overwrite, listed=listed)


def read_all(descriptor: int, buffers: list[Any], offset: int) -> None:
    """Fill buffers with consecutive bytes of a file, whose descriptor nothing else uses.

    Raises
    ------
    EOFError
        Where the file ends too early.
    """
    os.lseek(descriptor, offset, os.SEEK_SET)
    while buffers:
        n = os.readv(descriptor, buffers)  # at most 2 GiB
        if n == 0:
            raise EOFError
        while buffers and n >= len(buffers[0]):
            n -= len(buffers.pop(0))
        if n:
            buffers[0] = memoryview(buffers[0])[n:]


def _write_all(descriptor: int, buffers: list[memoryview]) -> None:
    """Write buffers with one call for many: Python's buffered files take two for each block, and a fifth more time."""
    while buffers:
        written = os.writev(descriptor, buffers[:_BUFFERS])
        # A nearly full disk takes what fits, and says so at the next call.
        while buffers and written >= len(buffers[0]):
            written -= len(buffers.pop(0))
        if written:
            buffers[0] = buffers[0][written:]


def refuse_links(url: str, root: str) -> None:
    """Refuse a folder below `root` that is reached through a link: it would be outside of the store.

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


def is_foreign_file(url: str) -> bool:
    """Whether a file of this machine is where a folder would be."""
    path = local_path(url)
    return path is not None and os.path.exists(path) and not os.path.isdir(path)  # noqa: PTH110, PTH112 (no errors)


def free_bytes(url: str) -> int | None:
    """Free space where a store is (or would be); None where that is not known (buckets)."""
    path = local_path(url)
    if path is None:
        return None
    path = path.absolute()
    while not os.path.exists(path):  # noqa: PTH110 (Path's raises an error where there is no permission)
        path = path.parent
    return shutil.disk_usage(path).free


def delete_partial(url: str) -> None:
    """Delete what killed writers left in a store; only its owner may, since a living writer's file has such a name."""
    place = place_at(url)
    if not place.is_remote:  # objects appear whole
        place.delete(PARTIAL_FILES)


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
        place = place_at(resolved_place(url))
        is_inside = is_grown and (place.is_remote or place.is_folder())
        folder = place.url if is_inside else os.path.dirname(place.url)  # noqa: PTH120 (of URLs too)
        name = f"{NEW}{uuid.uuid4().hex[:8]}"
        if place.is_remote:
            place_at(folder).write(name, [b""])
            place_at(f"{folder}/{name}").delete(STORE)
        else:
            file = Path(folder, name)
            try:
                file.touch(exist_ok=False)
            finally:  # also where a signal ends the process just here
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
        place = place_at(resolved_place(url))  # where it is written: `missing/../model` does not exist for the system
        if not (place_at(url).exists() or place.exists()):
            return
        if not overwrite:
            raise exists_already(url)
        if listed is not None and place.is_folder() and not place.names():
            return
        if not is_one(place.url):
            raise InputError(f"{url} is not {what}, and only such a one is overwritten; delete it or give another path")
        other = None if listed is None else place.first_not_listed(listed)
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
    place = place_at(resolved_place(url))  # of a link, what it leads to
    with (
        faults_of(f"write {url}", "then try again: what was there before is unchanged"),
        place.written_aside(overwrite=overwrite, listed=listed) as new,
    ):
        yield new
