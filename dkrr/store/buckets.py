"""Buckets of S3, Google Cloud Storage and Azure, by obstore: single requests, which `dkrr.store.remote` repeats.

Credentials, regions and addresses of servers come from the environment, as for these services' own tools:
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL`` and so on, ``GOOGLE_APPLICATION_CREDENTIALS``,
``AZURE_STORAGE_ACCOUNT_NAME`` ...; profiles of AWS in its files, if boto3 is installed.
"""

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from dkrr.errors import InputError
from dkrr.values import refuse_others_than_kept, shown

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


class Bucket:
    """Objects of one bucket.

    Parameters
    ----------
    protocol : str
        One of BUCKETS.
    name : str
    """

    def __init__(self, protocol: str, name: str) -> None:
        import obstore

        self._library, self._errors = obstore, obstore.exceptions
        self.store = _opened(protocol, name, None)
        self.has_answered = False
        self._pool: ThreadPoolExecutor | None = None

    def get(self, key: str, start: int, stop: int | None) -> Buffer | None:
        """Bytes of an object; None if it does not exist.

        Positions count from the start: Azure refuses ranges that count from the end ("bytes=-n").
        """
        try:
            if start == 0 and stop is None:
                return self._library.get(self.store, key).bytes()
            if stop is None:
                return self._library.get(self.store, key, options={"range": {"offset": start}}).bytes()
            return self._library.get_range(self.store, key, start=start, end=stop)
        except (FileNotFoundError, self._errors.NotFoundError):
            return None

    def get_into(self, key: str, start: int, out: Sequence[memoryview]) -> int | None:
        """Fill consecutive buffers with the bytes of an object from `start` on, several parts at the same time.

        Returns
        -------
        int or None
            Bytes of the whole object, which may be too few to fill the buffers; None if it does not exist.
        """
        n = sum(map(len, out))
        first = min(PART_BYTES, n)
        try:
            found = self._library.get(self.store, key, options={"range": (start, start + first)})
            size = int(found.meta["size"])
            if size < start + n:
                return size
            fill_buffers(out, 0, memoryview(found.bytes()))
        except (FileNotFoundError, self._errors.NotFoundError):
            return None
        except Exception:
            # Services refuse a range behind the end of an object, each in other words.
            with suppress(Exception):
                size = int(self._library.head(self.store, key)["size"])
                if size <= start:
                    return size
            raise

        def fill(k: int) -> None:
            last = min(k + PART_BYTES, n)
            fill_buffers(
                out, k, memoryview(self._library.get_range(self.store, key, start=start + k, end=start + last))
            )

        if first < n:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="dkrr-bucket")
            list(self._pool.map(fill, range(first, n, PART_BYTES)))
        return size

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Write an object from consecutive parts."""
        data = parts[0] if len(parts) == 1 else b"".join(map(memoryview, parts))
        is_large = memoryview(data).nbytes > MAX_PUT_BYTES
        self._library.put(self.store, key, data, use_multipart=is_large, chunk_size=PART_BYTES)

    def writer(self, key: str) -> Any:
        """File of obstore that is written in parts, and becomes an object when it is closed."""
        return self._library.open_writer(self.store, key)

    def create(self, key: str, data: bytes) -> bool | None:
        """Write an object only if there is none, and return whether it was written; None if the service cannot."""
        return self._put_if("create", key, data)

    def exchange(self, key: str, data: bytes, version: str) -> bool | None:
        """Replace an object only if its version is the given one, as `create` otherwise."""
        return self._put_if({"e_tag": version}, key, data)

    def _put_if(self, mode: Any, key: str, data: bytes) -> bool | None:
        try:
            self._library.put(self.store, key, data, mode=mode, use_multipart=False)
        except (self._errors.AlreadyExistsError, self._errors.PreconditionError, FileExistsError):
            return False
        except (self._errors.NotSupportedError, NotImplementedError):
            return None
        except self._errors.GenericError as error:
            if "501 " in str(error):  # a server without conditional requests
                return None
            raise
        return True

    def version(self, key: str) -> tuple[bytes, str] | None:
        """Content of an object with its version; None if it does not exist."""
        try:
            found = self._library.get(self.store, key)
        except (FileNotFoundError, self._errors.NotFoundError):
            return None
        return bytes(found.bytes()), str(found.meta["e_tag"])

    def names(self, folder: str) -> list[str]:
        """Names of what is directly below a folder."""
        found = self._library.list_with_delimiter(self.store, f"{folder}/" if folder else None)
        places = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return sorted({place.rstrip("/").rpartition("/")[2] for place in places})

    def files(self, key: str) -> list[tuple[str, int, str]]:
        """Name, size and version of every object below a folder, or of one object, whose name is then empty."""
        entries = [entry for page in self._library.list(self.store, f"{key}/") for entry in page]
        if not entries:
            try:
                entries = [self._library.head(self.store, key)]
            except (FileNotFoundError, self._errors.NotFoundError):
                return []
        return [(e["path"].removeprefix(key), int(e["size"]), str(e["e_tag"] or e["last_modified"])) for e in entries]

    def exists(self, key: str) -> bool:
        """Whether an object or anything below it exists."""
        try:
            self._library.head(self.store, key)
        except (FileNotFoundError, self._errors.NotFoundError):
            return any(len(page) for page in self._library.list(self.store, f"{key}/", chunk_size=1))
        return True

    def delete(self, keys: list[str]) -> None:
        """Delete objects, as far as they exist."""
        with suppress(FileNotFoundError, self._errors.NotFoundError):
            self._library.delete(self.store, keys if len(keys) > 1 else keys[0])

    def copy(self, pairs: list[tuple[str, str]]) -> None:
        """Copy objects to other keys, in place of what is there."""
        for source, target in pairs:
            self._library.copy(self.store, source, target)


def fill_buffers(buffers: Sequence[memoryview], start: int, data: memoryview) -> None:
    """Copy bytes to the position `start` of consecutive buffers; those behind their end are left out."""
    for buffer in buffers:
        if start < len(buffer):
            n = min(len(buffer) - start, len(data))
            buffer[start : start + n] = data[:n]
            data, start = data[n:], start + n
            if not len(data):
                return
        start -= len(buffer)


def bucket_of(url: str) -> tuple[Bucket, str]:
    """Bucket of a URL, and the key in it.

    Raises
    ------
    InputError
        If obstore is not installed, or the URL is not that of a bucket.
    """
    refuse_others_than_kept(url, "the place")
    protocol, _, rest = url.partition("://")
    name, _, key = rest.partition("/")
    if not name:
        raise InputError(f"{url} has no bucket; expected {protocol}://bucket/name")
    settings = tuple((k, value) for k, value in os.environ.items() if k.startswith(VARIABLES[protocol]))
    return _bucket(os.getpid(), settings, protocol, name), key.strip("/")


@lru_cache(maxsize=64)
def _bucket(process: int, settings: tuple[tuple[str, str], ...], protocol: str, name: str) -> Bucket:  # noqa: ARG001
    """Bucket that a process has opened with these settings: a fork cannot use its parent's connections."""
    return Bucket(protocol, name)


def store_below(url: str) -> Any:
    """Store of obstore whose names are those below a URL, for libraries that read it themselves."""
    protocol, _, rest = url.partition("://")
    name, _, key = rest.partition("/")
    return _opened(protocol, name, key.strip("/") or None)


def bucket_url(store: Any) -> str | None:
    """URL of the bucket of a store of obstore; None if it is not in one (of files, of memory)."""
    kinds = {"S3Store": ("s3", "bucket"), "GCSStore": ("gs", "bucket"), "AzureStore": ("az", "container_name")}
    protocol, name = kinds.get(type(store).__name__, ("", ""))
    return f"{protocol}://{store.config[name]}" if protocol and name in store.config else None


def _opened(protocol: str, name: str, prefix: str | None) -> Any:
    from obstore.store import AzureStore, GCSStore, S3Store

    options: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        },
        "retry_config": {"max_retries": 0},
        "prefix": prefix,
    }
    if protocol == "gs":
        return GCSStore(name, **options)
    if protocol == "az":
        return AzureStore(name, **options)
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
