"""Objects in file systems that fsspec reaches (``memory://``, ``hdfs://`` ...): requests that `remote` repeats."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import fsspec

from dkrr.errors import InputError, StoreError
from dkrr.tiles.buckets import fill_buffers

REQUEST_SECONDS = 300.0
"""Longest time of one request, where the file system can be told: a chunk of 32 MiB at 0.1 MB/s."""


class FileSystem:
    """Objects of one file system.

    Parameters
    ----------
    system : fsspec.AbstractFileSystem
    """

    def __init__(self, system: Any) -> None:
        self._system = system

    def get(self, key: str, start: int, stop: int | None) -> bytes | None:
        """Bytes of an object; None if it does not exist."""
        try:
            return bytes(self._system.cat_file(key, start=start or None, end=stop, **self._limit))
        except FileNotFoundError:
            return None

    def get_into(self, key: str, start: int, out: Sequence[memoryview]) -> int | None:
        """Fill consecutive buffers with the bytes of an object from `start` on.

        Returns
        -------
        int or None
            Bytes of the whole object, or of its part up to the end of the buffers; None if it does not exist.
        """
        is_whole = start == 0
        found = self.get(key, start, None if is_whole else start + sum(map(len, out)))
        if found is None:
            return None
        fill_buffers(out, 0, memoryview(found))
        return start + len(found)

    def put(self, key: str, parts: Sequence[Any]) -> None:
        """Write an object from consecutive parts."""
        self._system.pipe_file(key, b"".join(map(bytes, parts)), **self._limit)

    def create(self, key: str, data: bytes) -> bool | None:  # noqa: ARG002
        """Write an object only if there is none: fsspec does not promise it (None)."""
        return None

    def exchange(self, key: str, data: bytes, version: str) -> bool | None:  # noqa: ARG002
        """Replace an object only if its version is the given one: fsspec does not have it (None)."""
        return None

    def version(self, key: str) -> tuple[bytes, str] | None:
        """Content of an object, without a version; None if it does not exist."""
        found = self.get(key, 0, None)
        return None if found is None else (found, "")

    def names(self, folder: str) -> list[str]:
        """Names of what is directly below a folder."""
        self._system.invalidate_cache()  # other processes write here
        try:
            found = self._system.ls(folder, detail=False, **self._limit)
        except FileNotFoundError:
            return []
        below = (str(entry).rstrip("/").removeprefix("/").rpartition("/") for entry in found)
        return sorted(name for parent, _, name in below if parent == folder.removeprefix("/") and name)

    def files(self, key: str) -> list[tuple[str, int, str]]:
        """Name, size and version of every object below a folder, or of one object, whose name is then empty."""
        self._system.invalidate_cache()
        try:
            found = self._system.find(key, detail=True, **self._limit)
        except FileNotFoundError:
            return []
        # Whichever of these the protocol has.
        tells = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created")
        return [
            (
                name.removeprefix(key),
                int(facts.get("size") or 0),
                str(next((facts[k] for k in tells if k in facts), "")),
            )
            for name, facts in found.items()
        ]

    def exists(self, key: str) -> bool:
        """Whether an object or anything below it exists."""
        self._system.invalidate_cache()
        return bool(self._system.exists(key, **self._limit))

    def delete(self, keys: list[str]) -> None:
        """Delete objects, as far as they exist."""
        self._system.invalidate_cache()
        for key in keys:
            with suppress(FileNotFoundError):
                self._system.rm_file(key)

    def copy(self, pairs: list[tuple[str, str]]) -> None:
        """Copy objects to other keys, in place of what is there."""
        self._system.invalidate_cache()
        for source, target in pairs:
            self._system.cp_file(source, target)

    @property
    def _limit(self) -> dict[str, float]:
        """Time limit of a request, which fsspec's own loop takes from those that run in it."""
        return {"timeout": REQUEST_SECONDS} if getattr(self._system, "async_impl", False) else {}


def file_system_of(url: str) -> tuple[FileSystem, str]:
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
    return FileSystem(system), str(path).rstrip("/")
