"""Buckets of S3, Google Cloud Storage and Azure, by obstore, which repeats requests that fail for a moment.

Credentials, regions and addresses of servers come from the environment, as for these services' own tools:
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL`` and so on, ``GOOGLE_APPLICATION_CREDENTIALS``,
``AZURE_STORAGE_ACCOUNT_NAME`` ...; profiles of AWS in its files, if boto3 is installed.
"""

import io
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dkrr.checks import refuse_others_than_kept, shown
from dkrr.errors import DkrrError, InputError, UnreachableStoreError
from dkrr.store.paths import checked_name, exists_already, short_name, too_large
from dkrr.store.replacing import NEW, is_metadata

EVERYTHING = re.compile(".*", re.DOTALL)

RETRY_SECONDS = 60.0
"""Requests are repeated for about this long: the restart of a gateway or a limit on the rate of requests passes. After
one that was repeated in vain, none is repeated for as long, or until one is answered: a run that ends sends several."""
FIRST_SECONDS = 10.0
"""Seconds for a bucket that has never answered this process: its address may be wrong, and work has not started."""
LONGEST_WAIT_SECONDS = 10.0
CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 300.0
"""Longest time of one request: a chunk of 32 MiB at 0.1 MB/s."""
PART_BYTES = 8 * 2**20
"""Parts of an object that are requested at the same time: one connection to a service far away is slower than the
network."""
CONNECTIONS = 8
"""Most parts of one object that are requested at the same time."""
MAX_PUT_BYTES = 64 * 2**20
"""Objects up to this size, which those that dkrr writes rarely exceed, are written by one request. Several parts take
two requests more, one after the other, and a killed writer leaves those that it has sent, which are paid for."""

VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Beginnings of the names of the variables of the environment with the settings of a protocol."""

Buffer = Any
Sizes = Generator[int | None, None, None]
"""Size of a whole file, after each group of buffers that is filled; None if there is none."""
Value = TypeVar("Value")

_answered: set[Any] = set()
"""Buckets that have answered this process, with the settings of the environment."""
_silent: dict[Any, float] = {}
"""When a request to one of them was last repeated in vain, by a monotonic clock."""


@dataclass(frozen=True)
class Bucket:
    """A place in a bucket: the objects whose keys begin with its own; see `dkrr.store.places.Place`."""

    url: str
    identity: str = ""

    is_remote: ClassVar[bool] = True

    @cached_property
    def _parts(self) -> tuple[str, str, str]:
        refuse_others_than_kept(self.url, "the place")
        protocol, _, rest = self.url.partition("://")
        name, _, key = rest.partition("/")
        if not name:
            raise InputError(f"{self.url} has no bucket; expected {protocol}://bucket/name")
        return protocol, name, key.strip("/")

    def _key(self, name: str = "") -> str:
        return f"{self._parts[2]}/{name}".strip("/")

    def _below(self) -> str | None:
        key = self._key()
        return f"{key}/" if key else None

    def at(self, name: str) -> "Bucket":
        checked_name(name, self.url)
        return Bucket(f"{self.url.rstrip('/')}/{name}", f"{self.identity}/{name}")

    def _answer(self, what: str, name: str, request: Callable[[Any, Any, str], Value]) -> Value | None:
        """Answer to a request of obstore (with its module, store and key); None if there is no such object.

        Raises
        ------
        UnreachableStoreError
            If the bucket does not answer, or refuses.
        """
        key = self._key(name)
        protocol, bucket, _ = self._parts
        settings = tuple((k, value) for k, value in os.environ.items() if k.startswith(VARIABLES[protocol]))
        which = settings, protocol, bucket
        store = _connected(which, self.url)
        import obstore

        try:
            found = request(obstore, store, key)
        except DkrrError:
            raise
        except Exception as error:
            is_absent = isinstance(error, FileNotFoundError | obstore.exceptions.NotFoundError)
            if not is_absent or what not in ("read", "delete"):  # else there is no such bucket
                _silent[which] = time.monotonic()
                raise _unreachable(f"{what} {key}", self.url, error) from error
            found = None
        _answered.add(which)
        _silent.pop(which, None)
        return found

    def read(self, name: str, max_bytes: int) -> bytes | None:
        def content(obstore: Any, store: Any, key: str) -> bytes:
            found = obstore.get(store, key)
            if (size := int(found.meta["size"])) > max_bytes:  # before any of it is held
                raise too_large(f"{self.url}/{name}", size, max_bytes)
            return bytes(found.bytes())

        return self._answer("read", name, content)

    def read_into(self, name: str, start: int, groups: Sequence[Sequence[Buffer]]) -> Sizes:
        """See `Place`; all groups are filled before the first is named, several parts of an object at the same time."""
        out = [memoryview(buffer).cast("B") for buffers in groups for buffer in buffers]
        n = sum(map(len, out))

        def fill_part(obstore: Any, store: Any, key: str, k: int) -> int:
            found = obstore.get(store, key, options={"range": (start + k, start + min(k + PART_BYTES, n))})
            size = int(found.meta["size"])
            if size >= start + n:
                fill_buffers(out, k, memoryview(found.bytes()))
            return size

        def fill(obstore: Any, store: Any, key: str) -> int:
            try:
                size = fill_part(obstore, store, key, 0)
            except (FileNotFoundError, obstore.exceptions.NotFoundError):
                raise
            except Exception as error:
                # Services refuse a range after the end of an object, each in other words.
                if not _TRIES.search(str(error)):  # a server that does not answer is not asked for another minute
                    with suppress(Exception):
                        size = int(obstore.head(store, key)["size"])
                        if size <= start:
                            return size
                raise
            if size >= start + n:
                parts = range(PART_BYTES, n, PART_BYTES)
                list(_threads(os.getpid()).map(partial(fill_part, obstore, store, key), parts))
            return size

        yield from [self._answer("read", name, fill)] * len(groups)

    def mapped(self, name: str, size: int, *, at_once: bool) -> Any:  # noqa: ARG002
        return None

    def write(self, name: str, buffers: Sequence[Buffer]) -> None:
        data = buffers[0] if len(buffers) == 1 else b"".join(map(memoryview, buffers))
        is_large = memoryview(data).nbytes > MAX_PUT_BYTES
        options: dict[str, Any] = {"use_multipart": is_large, "chunk_size": PART_BYTES}
        self._answer("write", name, lambda obstore, store, key: obstore.put(store, key, data, **options))

    @contextmanager
    def written(self) -> Iterator[Any]:
        """See `Place`; parts are sent once, and become an object when the block ends, also by an error."""
        file = self._answer("write", "", lambda obstore, store, key: obstore.open_writer(store, key))
        try:
            yield _Written(self.url, file)
        finally:
            with errors_of(self.url, "write"):
                assert file is not None
                file.close()  # without it, parts that were sent would stay, and be paid for

    def version(self, name: str) -> tuple[bytes, str] | None:
        """Content of an object, and what tells its version from others; None if it does not exist."""

        def versioned(obstore: Any, store: Any, key: str) -> tuple[bytes, str]:
            found = obstore.get(store, key)
            return bytes(found.bytes()), str(found.meta["e_tag"])

        return self._answer("read", name, versioned)

    def write_if(self, name: str, data: bytes, expected: str | None) -> bool | None:
        """Write an object in one step with the test that it has a version, or with None that it does not exist.

        Returns
        -------
        bool or None
            Whether it was written; None if the service has no such step.
        """

        def put(obstore: Any, store: Any, key: str) -> tuple[bool | None]:
            errors, mode = obstore.exceptions, "create" if expected is None else {"e_tag": expected}
            try:
                obstore.put(store, key, data, mode=mode, use_multipart=False)
            except (errors.AlreadyExistsError, errors.PreconditionError, FileExistsError):
                return (False,)
            except (errors.NotSupportedError, NotImplementedError):
                return (None,)
            except errors.GenericError as error:
                if "501 " in str(error):  # a server without conditional requests
                    return (None,)
                raise
            return (True,)

        found = self._answer("write", name, put)
        return None if found is None else found[0]

    def names(self) -> list[str]:
        def listed(obstore: Any, store: Any, _: str) -> list[str]:
            found = obstore.list_with_delimiter(store, self._below())
            places = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
            return sorted({place.rstrip("/").rpartition("/")[2] for place in places})

        return self._answer("list", "", listed) or []

    def sizes(self) -> dict[str, int]:
        def listed(obstore: Any, store: Any, key: str) -> dict[str, int]:
            entries = [entry for page in obstore.list(store, self._below()) for entry in page]
            return {entry["path"].removeprefix(key).lstrip("/"): int(entry["size"]) for entry in entries}

        return self._answer("list", "", listed) or {}

    def size(self, name: str) -> int | None:
        return self._answer("read", name, lambda obstore, store, key: int(obstore.head(store, key)["size"]))

    def versions(self) -> dict[str, list[Any]]:
        def listed(obstore: Any, store: Any, key: str) -> dict[str, list[Any]]:
            entries = [entry for page in obstore.list(store, self._below()) for entry in page]
            return {one["path"].removeprefix(key).lstrip("/"): [int(one["size"]), one["e_tag"]] for one in entries}

        found = self._answer("list", "", listed)
        if found or self._key() == "":
            return found or {}
        one = self._answer("read", "", lambda obstore, store, key: obstore.head(store, key))
        return {} if one is None else {"": [int(one["size"]), one["e_tag"]]}

    def exists(self) -> bool:
        return bool(self.names()) or (self._key() != "" and self.size("") is not None)

    def is_folder(self) -> bool:
        return bool(self.names())

    def make(self) -> None:
        """See `Place`; buckets have no folders."""

    def delete(self, listed: re.Pattern[str]) -> None:
        names = sorted(self.sizes(), key=is_metadata)  # an array that is half deleted is one without all its chunks
        inside = [self._key(name) for name in names if listed.fullmatch(name)]
        self._answer(  # also what is at the key itself
            "delete", "", lambda obstore, store, key: [obstore.delete(store, keys) for keys in (inside, key) if keys]
        )

    def first_not_listed(self, listed: re.Pattern[str]) -> str | None:
        return next((name for name in sorted(self.sizes()) if not listed.fullmatch(name)), None)

    @contextmanager
    def written_aside(self, *, overwrite: bool, listed: re.Pattern[str] | None) -> Iterator[str]:
        """See `Place`; what was there is deleted before the new one is copied to its place."""
        above, _, name = self.url.rpartition("/")
        aside = Bucket(f"{above}/{NEW}{uuid.uuid4().hex[:8]}-{short_name(name)}")
        try:
            yield aside.url
            if not overwrite and self.exists():
                raise exists_already(self.url)
        except BaseException:
            with suppress(Exception):
                aside.delete(EVERYTHING)  # nobody else has this name
            raise
        try:
            if listed is not None:
                self.delete(listed)
            # The description of all comes last: a process that is killed leaves none to a part of it.
            names = sorted(aside.sizes(), key=lambda name: name == "zarr.json") if listed is not None else [""]
            moved = {aside._key(name): self._key(name) for name in names}
            aside._answer(
                "copy", "", lambda obstore, store, _: [obstore.copy(store, *names) for names in moved.items()]
            )
            aside.delete(EVERYTHING)
        except BaseException as error:
            error.add_note(f"what was written is at {aside.url}; what was at {self.url} before may be deleted")
            raise


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


def fill_buffers(buffers: Sequence[memoryview], start: int, data: memoryview) -> None:
    """Copy bytes to the position `start` of consecutive buffers; those after their end are left out."""
    for buffer in buffers:
        if start < len(buffer):
            n = min(len(buffer) - start, len(data))
            buffer[start : start + n] = data[:n]
            data, start = data[n:], start + n
            if not len(data):
                return
        start -= len(buffer)


@cache
def _threads(process: int) -> ThreadPoolExecutor:  # noqa: ARG001
    """Threads of a process for parts of objects: a fork has none of its parent's."""
    return ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="dkrr-bucket")


def _connected(which: tuple[Any, str, str], url: str) -> Any:
    """Store of obstore for a bucket, as this process opens it with settings of the environment.

    Raises
    ------
    InputError
        If obstore is not installed, or does not take the address or the settings.
    """
    seconds = RETRY_SECONDS if which in _answered else min(FIRST_SECONDS, RETRY_SECONDS)
    if time.monotonic() - _silent.get(which, -math.inf) < RETRY_SECONDS:
        seconds = 0.0
    try:
        return _opened_once(os.getpid(), *which, seconds)
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


@lru_cache(maxsize=64)
def _opened_once(process: int, settings: Any, protocol: str, name: str, seconds: float) -> Any:  # noqa: ARG001
    """Bucket that a process has opened with these settings: a fork cannot use its parent's connections."""
    return _opened(protocol, name, None, seconds)


def store_below(url: str) -> Any:
    """Store of obstore whose names are those below a URL, for libraries that read it themselves.

    Raises
    ------
    StoreError
        If nothing answers there: asked once here, so that the library's own requests are repeated for longer.
    """
    Bucket(url).size("zarr.json")
    protocol, _, rest = url.partition("://")
    name, _, key = rest.partition("/")
    return _opened(protocol, name, key.strip("/") or None)


def _opened(protocol: str, name: str, prefix: str | None, seconds: float = RETRY_SECONDS) -> Any:
    from obstore.store import AzureStore, GCSStore, S3Store

    options: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        },
        "retry_config": {
            "max_retries": 1000,  # time decides
            "retry_timeout": timedelta(seconds=seconds),
            "backoff": {"max_backoff": timedelta(seconds=LONGEST_WAIT_SECONDS)},
        },
        "prefix": prefix,
    }
    if protocol != "s3":
        return {"gs": GCSStore, "az": AzureStore}[protocol](name, **options)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        if not re.match("https?://[^/]", endpoint):
            raise InputError(f"AWS_ENDPOINT_URL is {shown(endpoint)}; expected an address such as https://host:9000")
        options["endpoint"] = endpoint
        options["client_options"]["allow_http"] = endpoint.startswith("http://")
    provider = _profile()
    if provider is not None:
        options["credential_provider"] = provider
    return S3Store(name, **options)


def _profile() -> Any:
    """Credentials from the files of AWS, which boto3 reads; None if there are others, or it is not installed."""
    asked = os.environ.get("AWS_PROFILE")
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
    if os.environ.get("AWS_ACCESS_KEY_ID") or not (asked or file.exists()):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        if not asked:
            return None
        raise InputError(
            f"AWS_PROFILE is {asked!r}, and {error}; expected boto3, which reads profiles: pip install boto3, or set "
            f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    return Boto3CredentialProvider()


@contextmanager
def errors_of(url: str, what: str = "read") -> Iterator[None]:
    """Report the errors of libraries that read or write a store themselves, as Zarr does, as those of the store."""
    try:
        yield
    except (DkrrError, KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:
        raise _unreachable(what, url, error) from error


_SETTINGS = {
    "no credentials; expected them in the environment, for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and "
    "AWS_ENDPOINT_URL for your own server)": (
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
"""Permanent causes, with signs of them in the errors of libraries."""
_UNREACHED, _CHECK = (
    "the server {server}cannot be reached:",
    "check the address (for S3 AWS_ENDPOINT_URL) and the network",
)
_AWAY = {
    _UNREACHED + f" it refuses connections; {_CHECK}": ("ConnectionRefused",),
    _UNREACHED + f" no server has this name (DNS); {_CHECK}": ("dns error",),
    _UNREACHED + f" it does not answer in time; {_CHECK}": ("TimedOut",),
}
"""Causes that may pass."""
_ADDRESS = re.compile(r"https?://[^/\s]+")
"""Address of a server in the error of a request."""
_TRIES = re.compile(r"after \d+ retries")
_OVERLOADED = re.compile(r"status code: (5\d\d|429)|error sending request")
"""Errors that may be temporary, from calls that were not repeated."""


def _unreachable(what: str, url: str, error: Exception) -> UnreachableStoreError:
    text = str(error)
    causes = (cause for cause, signs in (_SETTINGS | _AWAY).items() if any(sign in text for sign in signs))
    address, tries = _ADDRESS.search(text), _TRIES.search(text)
    known = next(causes, None)
    cause = (known or _first_line(error)).replace("{server}", f"{address[0]} " if address else "")
    return UnreachableStoreError(
        f"cannot {what} in the store {url}: {cause}{f' ({tries[0]})' if tries and tries[0] not in cause else ''}. What "
        f"is finished is kept: when the store can be reached and written to, run again with the same store",
        is_transient=known not in _SETTINGS and bool(known or tries or _OVERLOADED.search(text)),
    )


def _first_line(error: Exception) -> str:
    """First line of a message; others hold what a library knows for its authors."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
