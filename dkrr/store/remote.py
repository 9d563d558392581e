"""Objects in buckets: read, written and listed whole, and tried again where a request fails.

An object appears at once or not at all. Requests that fail for a moment (a broken connection, a slow or overloaded
server) are repeated with waits that double and vary at random, for about RETRY_SECONDS; all of them may be repeated
safely. Answers that would not change (no permission, no such bucket, no space) are not asked for again.
"""

import errno
import io
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dkrr.errors import DkrrError, InputError, UnreachableStoreError
from dkrr.store.buckets import Bucket, bucket_of

RETRY_SECONDS = 60.0
"""Requests are repeated for about this long: the restart of a gateway or a limit on the rate of requests passes."""

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 10.0
FIRST_SECONDS = 10.0
"""The same for a store that has never answered this process: its address may be wrong, and work has not started."""

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

_FINAL_NAMES = {"PermissionDeniedError", "UnauthenticatedError", "InvalidPathError", "UnknownConfigurationKeyError"}
"""Such errors of obstore, which has no common base with Python's; it is imported only where a bucket is used."""

_waits = random.Random()  # not the generator that a user has seeded

Value = TypeVar("Value")


def get(url: str, key: str, part: tuple[int, int | None] | None = None) -> Any:
    """Bytes of an object; None if it does not exist.

    Parameters
    ----------
    url : str
    key : str
        Its name below the URL.
    part : (int, int or None), optional
        First byte and the one behind the last (None: to the end).

    Raises
    ------
    UnreachableStoreError
        If the store does not answer.
    """
    store, path = _object(url, key)
    start, stop = (0, None) if part is None else part
    return _repeated(lambda: store.get(path, start, stop), f"read {path}", url)


def get_into(url: str, key: str, start: int, *out: Any) -> int | None:
    """Fill consecutive buffers with the bytes of an object from `start` on; many come over several connections.

    Returns
    -------
    int or None
        Bytes of the whole object, or where `start` is not 0 at least those up to the end of the buffers, if it has as
        many; None if it does not exist.

    Raises
    ------
    UnreachableStoreError
        If the store does not answer.
    """
    store, path = _object(url, key)
    parts = [memoryview(part) for part in out]
    return _repeated(lambda: store.get_into(path, start, parts), f"read {path}", url)


def put(url: str, key: str, *parts: Any) -> None:
    """Write an object from consecutive buffers, in place of an earlier one.

    Raises
    ------
    UnreachableStoreError
        If the store does not take it.
    """
    store, path = _object(url, key)
    _repeated(lambda: store.put(path, parts), f"write {path}", url)


def version(url: str, key: str) -> tuple[bytes, str] | None:
    """Content of an object, and what tells its version from others; None if it does not exist."""
    store, path = _object(url, key)
    return _repeated(lambda: store.version(path), f"read {path}", url)


def put_if(url: str, key: str, data: bytes, expected: str | None) -> bool | None:
    """Write an object in one step with the test that it has a version, or with None that it does not exist.

    Returns
    -------
    bool or None
        Whether it was written; None if the store has no such step.

    Raises
    ------
    UnreachableStoreError
        If the store does not answer.
    """
    store, path = _object(url, key)

    def written() -> bool | None:
        return store.create(path, data) if expected is None else store.exchange(path, data, expected)

    return _repeated(written, f"write {path}", url)


def names(url: str) -> list[str]:
    """Names of what is directly below a URL, folders too; empty if nothing is.

    Raises
    ------
    UnreachableStoreError
        If the store does not answer.
    """
    store, path = _store(url)
    return _repeated(lambda: store.names(path), f"list {path}", url)


def files(url: str) -> list[tuple[str, int, str]]:
    """Name, size and version of every object below a URL, or of the one object there, whose name is then empty.

    Raises
    ------
    UnreachableStoreError
        If the store does not answer.
    """
    store, path = _store(url)
    return _repeated(lambda: store.files(path), f"list {path}", url)


def exists(url: str) -> bool:
    """Whether an object or anything below it exists.

    Raises
    ------
    UnreachableStoreError
        If the store does not answer.
    """
    store, path = _store(url)
    return _repeated(lambda: store.exists(path), f"look for {path}", url)


def delete(url: str, names: Sequence[str] = ("",)) -> None:
    """Delete some objects below a URL, or with an empty name the object itself, as far as they exist.

    Raises
    ------
    UnreachableStoreError
        If the store does not answer.
    """
    store, path = _store(url)
    keys = [f"{path}/{name}" if name else path for name in names]
    if keys:
        _repeated(lambda: store.delete(keys), f"delete {path}", url)


def delete_all(url: str) -> None:
    """Delete everything below a URL whose name dkrr made, that nobody else has.

    Raises
    ------
    UnreachableStoreError
        If the store does not answer.
    """
    delete(url, [name.lstrip("/") for name, _, _ in files(url)])


def move(url: str, to: str) -> None:
    """Copy all that is below a URL which `delete_all` may delete to another of the same store, and delete it.

    Raises
    ------
    UnreachableStoreError
        If the store does not answer.
    """
    store, source = _store(url)
    target = _store(to)[1]
    names = [name for name, _, _ in files(url)]
    _repeated(lambda: store.copy([(source + name, target + name) for name in names]), f"copy {source} to {target}", to)
    delete_all(url)


@contextmanager
def written(url: str) -> Iterator[Any]:
    """Yield a file whose bytes become an object when the block ends, also by an error; parts are sent once.

    Raises
    ------
    UnreachableStoreError
        If the store does not take them.
    """
    store, path = _store(url)
    file = _Written(url, store.writer(path))
    try:
        yield file
    finally:
        with errors_of(url, "write"):
            file.inner.close()  # without it, parts that were sent would stay, and be paid for


class _Written(io.RawIOBase):
    """A file of obstore, which is not one of Python's."""

    def __init__(self, url: str, inner: Any) -> None:
        self.url, self.inner = url, inner

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with errors_of(self.url, "write"):
            # obstore sends it later, when Arrow may have filled its buffer again.
            return int(self.inner.write(bytes(data)))


@contextmanager
def errors_of(url: str, what: str = "read") -> Iterator[None]:
    """Report the errors of libraries that read or write a store themselves, as Zarr does, as those of the store."""
    try:
        yield
    except (DkrrError, KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:
        raise UnreachableStoreError(_message(what, url, error, "")) from error


def _store(url: str) -> tuple[Bucket, str]:
    try:
        return bucket_of(url)
    except DkrrError:
        raise
    except ImportError as error:
        raise InputError(
            f"{url} needs obstore, and {error}; expected it for such URLs: pip install 'dkrr[cloud]'"
        ) from error
    except Exception as error:  # of the library, for an address or settings that it does not take
        raise InputError(
            f"{url} cannot be opened: {_first_line(error)}; check the address, and the variables of the environment "
            f"with its credentials and settings"
        ) from error


def _object(url: str, key: str) -> tuple[Bucket, str]:
    store, path = _store(url)
    return store, f"{path}/{key}" if path else key


def _repeated(request: Callable[[], Value], what: str, url: str) -> Value:
    """Answer to a request, which is repeated while it may yet succeed."""
    started, n_tries, wait, (store, _) = time.monotonic(), 0, FIRST_WAIT_SECONDS, _store(url)
    limit = RETRY_SECONDS if store.has_answered else min(FIRST_SECONDS, RETRY_SECONDS)
    while True:
        n_tries += 1
        try:
            answer = request()
            store.has_answered = True
            return answer
        except Exception as error:  # of obstore or Python
            waited = time.monotonic() - started
            # At least half of the wait, and not the same in all workers, whose requests have failed together.
            pause = wait * _waits.uniform(0.5, 1.0)
            if _is_final(error):
                raise UnreachableStoreError(_message(what, url, error, "")) from error
            if waited + pause > limit:
                raise UnreachableStoreError(
                    _message(what, url, error, f" (tried {n_tries} times in {waited:.0f} s)")
                ) from error
        time.sleep(pause)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)


def _is_final(error: Exception) -> bool:
    if isinstance(error, _FINAL_ERRORS) or getattr(error, "errno", None) in _FINAL_NUMBERS:
        return True
    return type(error).__name__ in _FINAL_NAMES or _known_cause(error) is not None


_ADDRESS = re.compile(r"https?://[^/\s]+")
"""Address of a server in the error of a request."""
_FAULTS = {
    "it refuses connections": "ConnectionRefused",
    "no server has this name (DNS)": "dns error",
    "it does not answer in time": "TimedOut",
}
"""Why a server cannot be reached, with signs of it in the errors of obstore."""
_CAUSES = {
    "no credentials; expected them in the environment, for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and "
    "AWS_ENDPOINT_URL for a server of your own)": (
        # Libraries that find none ask the machine's own service, which only clouds have.
        "169.254.",
        "metadata.google",
        "NoCredentials",
        "Unable to locate credentials",
    ),
    "the bucket does not exist; expected one that was made before": ("NoSuchBucket", "ContainerNotFound"),
    "the service does not know these credentials; check those in the environment": (
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
    ),
}
"""Causes that time does not change, with signs of them in the errors of libraries."""


def _known_cause(error: Exception) -> str | None:
    text = str(error)
    return next((cause for cause, signs in _CAUSES.items() if any(sign in text for sign in signs)), None)


def _unreachable(error: Exception) -> str | None:
    """What is wrong with the address of a server; None if it has answered."""
    text = str(error)
    why = next((why for why, sign in _FAULTS.items() if sign in text), None)
    address = _ADDRESS.search(text)
    if why is None or address is None:
        return None
    return (
        f"the server {address[0]} cannot be reached: {why}; check the address (for S3 AWS_ENDPOINT_URL) and the network"
    )


def _first_line(error: Exception) -> str:
    """First line of a message; others hold what a library knows for its authors."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _message(what: str, url: str, error: Exception, tries: str) -> str:
    why = _known_cause(error) or _unreachable(error) or _first_line(error)
    return (
        f"cannot {what} in the store {url}: {why}{tries}. What is finished is kept: "
        f"when the store can be reached and written to, run again with the same store"
    )
