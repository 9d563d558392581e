"""Objects in a store that fsspec reaches: read, written and listed whole, and tried again where a request fails.

An object appears at once or not at all, in stores that promise this (S3 and its like do; a file system behind fsspec
need not). Requests that fail for a moment (a broken connection, a slow or overloaded server) are repeated with waits
that double and vary at random, for about RETRY_SECONDS; all of them may be repeated safely. Answers that would not
change (no permission, no such bucket, no space) are not asked for again.
"""

import errno
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import fsspec

from dkrr.errors import InputError, StoreError, UnreachableStoreError

RETRY_SECONDS = 60.0
"""Requests are repeated for about this long: the restart of a gateway or a limit on the rate of requests passes."""

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 10.0
REQUEST_SECONDS = 300.0
"""Longest time of one request, where the file system can be told: a chunk of 32 MiB at 0.1 MB/s."""

_FINAL_ERRORS: tuple[type[Exception], ...] = (
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    FileExistsError,
    TypeError,
    ValueError,
    NotImplementedError,
    AttributeError,
    ImportError,
)
_FINAL_NUMBERS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}

_waits = random.Random()  # not the generator that a user has seeded

Value = TypeVar("Value")


def file_system(url: str) -> tuple[Any, str]:
    """File system of a URL, and the path in it.

    Raises
    ------
    InputError
        If nothing that is installed reads such URLs.
    StoreError
        If the store cannot be reached.
    """
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"{url} cannot be opened: {error}; expected a path, or a URL of a protocol that fsspec knows: install "
            f"the package that it needs, or give a path"
        ) from error
    except Exception as error:  # of any of the libraries behind fsspec
        raise StoreError(f"{url} cannot be opened: {error!r}; check its address and your credentials") from error
    return system, str(path)


def get(url: str, key: str, part: tuple[int, int | None] | None = None) -> bytes | None:
    """Bytes of an object; None if it does not exist.

    Parameters
    ----------
    url : str
    key : str
        Its name below the URL.
    part : (int, int or None), optional
        First byte and the one behind the last (None: to the end); a negative first byte counts from the end.

    Raises
    ------
    StoreError
        If the store does not answer.
    """
    system, path = _object(url, key)
    start, stop = (None, None) if part is None else part

    def read() -> bytes | None:
        try:
            return bytes(system.cat_file(path, start=start, end=stop, **_limit(system)))
        except FileNotFoundError:
            return None

    return _repeated(read, f"read {path}", url)


def put(url: str, key: str, data: bytes | memoryview) -> None:
    """Write an object, in place of an earlier one.

    Raises
    ------
    StoreError
        If the store does not take it.
    """
    system, path = _object(url, key)
    content = bytes(data)
    _repeated(lambda: system.pipe_file(path, content, **_limit(system)), f"write {path}", url)


def names(url: str) -> list[str]:
    """Names of what is directly below a URL, folders too; empty if nothing is.

    Raises
    ------
    StoreError
        If the store does not answer.
    """
    system, path = file_system(url)
    folder = path.rstrip("/")

    def listed() -> list[str]:
        system.invalidate_cache()  # other processes write here
        try:
            found = system.ls(folder, detail=False, **_limit(system))
        except FileNotFoundError:
            return []
        below = (str(entry).rstrip("/").removeprefix("/").rpartition("/") for entry in found)
        return sorted(name for parent, _, name in below if parent == folder.removeprefix("/") and name)

    return _repeated(listed, f"list {folder}", url)


def exists(url: str) -> bool:
    """Whether an object or anything below it exists.

    Raises
    ------
    StoreError
        If the store does not answer.
    """
    system, path = file_system(url)

    def found() -> bool:
        system.invalidate_cache()
        return bool(system.exists(path, **_limit(system)))

    return _repeated(found, f"look for {path}", url)


def delete(url: str) -> None:
    """Delete an object or everything below a URL, if anything is there.

    Raises
    ------
    StoreError
        If the store does not answer.
    """
    system, path = file_system(url)

    def removed() -> None:
        system.invalidate_cache()
        try:
            system.rm(path, recursive=True, **_limit(system))
        except FileNotFoundError:
            return

    _repeated(removed, f"delete {path}", url)


def move(url: str, to: str) -> None:
    """Copy all that is below a URL to another of the same file system, in place of what is there, and delete it.

    Raises
    ------
    StoreError
        If the store does not answer.
    """
    system, source = file_system(url)
    target = file_system(to)[1]

    def copied() -> None:
        system.invalidate_cache()
        if system.exists(target, **_limit(system)):  # it would be copied into
            system.rm(target, recursive=True, **_limit(system))
        system.copy(source, target, recursive=True, on_error="raise")

    _repeated(copied, f"copy {source} to {target}", to)
    delete(url)


def _object(url: str, key: str) -> tuple[Any, str]:
    system, path = file_system(url)
    return system, f"{path.rstrip('/')}/{key}"


def _limit(system: Any) -> dict[str, float]:
    """Time limit of a request, which fsspec's own loop takes from those that run in it."""
    return {"timeout": REQUEST_SECONDS} if getattr(system, "async_impl", False) else {}


def _repeated(request: Callable[[], Value], what: str, url: str) -> Value:
    """Answer to a request, which is repeated while it may yet succeed."""
    started, n_tries, wait = time.monotonic(), 0, FIRST_WAIT_SECONDS
    while True:
        n_tries += 1
        try:
            return request()
        except Exception as error:  # each library behind fsspec has errors of its own
            waited = time.monotonic() - started
            # At least half of the wait, and not the same in all workers, whose requests have failed together.
            pause = wait * _waits.uniform(0.5, 1.0)
            if _is_final(error):
                raise UnreachableStoreError(_message(what, url, error, "")) from error
            if waited + pause > RETRY_SECONDS:
                raise UnreachableStoreError(
                    _message(what, url, error, f" (tried {n_tries} times in {waited:.0f} s)")
                ) from error
        time.sleep(pause)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)


def _is_final(error: Exception) -> bool:
    return isinstance(error, _FINAL_ERRORS) or getattr(error, "errno", None) in _FINAL_NUMBERS


def _message(what: str, url: str, error: Exception, tries: str) -> str:
    return (
        f"cannot {what} in the store {url}: {str(error) or type(error).__name__}{tries}. What is finished is kept: "
        f"when the store can be reached and written to, run again with the same store"
    )
