"""Files in buckets as a file system of fsspec, for libraries that read files, by the same requests as stores."""

from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.spec import AbstractBufferedFile

from dkrr.checks import BUCKETS
from dkrr.store.buckets import Bucket

AHEAD_BYTES = 4 * 2**20
"""Bytes that are read after those asked for: files are read in pieces, and a request takes longer than a few MiB."""


def file_system(url: str) -> tuple[Any, str]:
    """File system of fsspec that a URL is in, and the path there; of a bucket by obstore, as stores are read."""
    protocol, _, path = url.partition("://")
    return (BucketFiles(protocol), path.rstrip("/")) if protocol in BUCKETS else url_to_fs(url)


class BucketFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of the buckets of one protocol, which are only read; paths are ``bucket/key``.

    Parameters
    ----------
    protocol : str
        One of `BUCKETS`.
    """

    cachable = False  # fsspec spells it so; a later reader asks for sizes again

    def __init__(self, protocol: str) -> None:
        super().__init__()
        self.protocol, self._sizes = protocol, dict[str, int]()

    def bucket(self, path: str) -> Bucket:
        """Place of a path."""
        return Bucket(f"{self.protocol}://{path}")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Size of a file, asked for once, or that it is a folder; raises FileNotFoundError."""
        size = self._sizes.get(path)
        if size is None:
            size = self.bucket(path).size("")
        if size is not None:
            self._sizes[path] = size
            return {"name": path, "size": size, "type": "file"}
        if not self.bucket(path).is_folder():
            raise FileNotFoundError(f"{self.protocol}://{path} does not exist")
        return {"name": path, "size": 0, "type": "directory"}

    def find(self, path: str, **_: Any) -> dict[str, dict[str, Any]]:
        """All files below a path, also in folders, with what is known of each."""
        self._sizes |= {f"{path.rstrip('/')}/{name}": size for name, size in self.bucket(path).sizes().items() if name}
        return {file: self.info(file) for file in self._sizes if file.startswith(f"{path.rstrip('/')}/")}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> "_File":
        return _File(self, path, mode, AHEAD_BYTES, size=self.info(path)["size"])


class _File(AbstractBufferedFile):  # type: ignore[misc]
    """File that is read in ranges."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        content = bytearray(end - start)
        size = next(self.fs.bucket(self.path).read_into("", start, [[content]]))
        if size is None or size < end:
            raise FileNotFoundError(f"{self.fs.protocol}://{self.path} has changed while it was read")
        return bytes(content)
