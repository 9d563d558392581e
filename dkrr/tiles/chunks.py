"""Whole chunks of a Zarr array, read and written raw.

Zarr's array interface copies a chunk several times and decodes it on one event-loop thread. Gram tiles are
incompressible, so their arrays are stored without compression (bytes + CRC-32C), and a chunk is one file whose
bytes go straight into the caller's buffer. The arrays stay valid Zarr v3: any reader opens them.
"""

import contextlib
import mmap
import os
import uuid
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from dkrr.errors import StoreError

_CRC_BYTES = 4
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
"""Map all pages at once, not one fault at a time."""


def local_path(url: str) -> Path | None:
    """Path of a URL on this machine's file system, or None for a remote one."""
    if url.startswith("file://"):
        return Path(url.removeprefix("file://"))
    return None if "://" in url else Path(url)


def zarr_store(url: str) -> Any:
    """Zarr store behind a URL or path."""
    path = local_path(url)
    return zarr.storage.LocalStore(path) if path is not None else zarr.storage.FsspecStore.from_url(url)


@lru_cache(maxsize=64)
def _remote(url: str) -> Any:
    return zarr_store(url)


@dataclass(frozen=True)
class ChunkedArray:
    """A Zarr array whose chunks are written once, whole, and read whole. Travels between processes by name.

    A chunk that lies across the array's edge is stored in full; what is outside the array is zero.
    """

    url: str
    """Path or URL of the array."""
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str = "float64"

    @classmethod
    def create(
        cls, url: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "float64"
    ) -> "ChunkedArray":
        """Create an empty array, or take an existing one of this very layout.

        Raises
        ------
        StoreError
            If an array of another layout exists.
        """
        chunks = tuple(min(c, s) for c, s in zip(chunks, shape, strict=True))
        array = cls(url, shape, chunks, dtype)
        path = local_path(url)
        if path is not None and not path.exists():
            _create(array)  # asking Zarr for a missing array takes longer than creating it
            return array
        try:
            found = cls.open(url)
        except StoreError:
            _create(array)
            return array
        if found != array:
            raise StoreError(
                f"{url} holds an array of shape {found.shape}, chunks {found.chunks}, {found.dtype}; "
                f"expected shape {shape}, chunks {chunks}, {dtype}. Give another store= or delete this one"
            )
        return found

    @classmethod
    def open(cls, url: str) -> "ChunkedArray":
        """Open an array written by `create`.

        Raises
        ------
        StoreError
            If it does not exist or cannot be read.
        """
        try:
            array = zarr.open_array(zarr_store(url), mode="r")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"no readable Zarr array at {url}: {error}") from error
        return cls(url, tuple(array.shape), tuple(array.chunks), str(array.dtype))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one stored chunk, checksum included."""
        return int(np.prod(self.chunks)) * np.dtype(self.dtype).itemsize + _CRC_BYTES

    def read(self, coordinates: tuple[int, ...], out: NDArray[Any]) -> int:
        """Read one whole chunk into `out`, check it, and return the number of bytes read.

        Parameters
        ----------
        coordinates : tuple of int
            Position of the chunk in the grid of chunks.
        out : ndarray of shape `chunks`
            C-contiguous buffer of the array's dtype.

        Raises
        ------
        StoreError
            If the chunk is missing, truncated or damaged.
        """
        if out.shape != self.chunks or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise ValueError(f"buffer of shape {out.shape} {out.dtype} for a chunk {self.chunks} {self.dtype}")
        key = _key(coordinates)
        path = local_path(self.url)
        crc = bytearray(_CRC_BYTES)
        if path is not None:
            n_read = _read_file(path / key, out.reshape(-1).view(np.uint8).data, crc)
        else:
            n_read = self._read_remote(key, out, crc)
        if n_read != self.chunk_bytes:
            raise StoreError(self._truncated(key, n_read))
        if int.from_bytes(crc, "little") != google_crc32c.value(out):
            raise StoreError(self._damaged(key))
        return n_read

    def mapped(self, coordinates: tuple[int, ...], *, check: bool = True) -> NDArray[Any] | None:
        """One whole chunk, checked, where it lies in the system's cache: nothing is copied. None for a remote store.

        Parameters
        ----------
        coordinates : tuple of int
            Position of the chunk in the grid of chunks.
        check : bool
            False where a part is wanted of a chunk whose checksum has been compared: only that part is then read.

        Raises
        ------
        StoreError
            As `read`.
        """
        path = local_path(self.url)
        if path is None:
            return None
        key = _key(coordinates)
        try:
            with (path / key).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != self.chunk_bytes:
                    raise StoreError(self._truncated(key, size))
                flags = mmap.MAP_SHARED | (_POPULATE if check else 0)
                content = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, flags=flags)
        except FileNotFoundError:
            raise StoreError(_missing(self.url, key)) from None
        chunk: NDArray[Any] = np.frombuffer(content, self.dtype, int(np.prod(self.chunks))).reshape(self.chunks)
        if check and int.from_bytes(content[-_CRC_BYTES:], "little") != google_crc32c.value(chunk):
            raise StoreError(self._damaged(key))
        return chunk

    def _truncated(self, key: str, n_bytes: int) -> str:
        return (
            f"chunk {key} of {self.url} has {n_bytes} bytes instead of {self.chunk_bytes}: the store is damaged or "
            f"incomplete. Delete this chunk and run again with the same store to recompute it"
        )

    def _damaged(self, key: str) -> str:
        return (
            f"chunk {key} of {self.url} does not match its checksum: the store is damaged. Delete this chunk and run "
            f"again with the same store to recompute it"
        )

    def _read_remote(self, key: str, out: NDArray[Any], crc: bytearray) -> int:
        buffer = sync(_remote(self.url).get(key, default_buffer_prototype()))
        if buffer is None:
            raise StoreError(_missing(self.url, key))
        raw = buffer.as_numpy_array().view(np.uint8)
        if raw.size == self.chunk_bytes:
            out.reshape(-1).view(np.uint8)[:] = raw[:-_CRC_BYTES]
            crc[:] = raw[-_CRC_BYTES:].tobytes()
        return int(raw.size)

    def write(self, coordinates: tuple[int, ...], data: NDArray[Any]) -> int:
        """Write one whole chunk and return the number of bytes written.

        The chunk appears at once or not at all: a killed writer leaves no half-written chunk.

        Parameters
        ----------
        coordinates : tuple of int
            Position of the chunk in the grid of chunks.
        data : ndarray
            The chunk; may be smaller than `chunks` at the array's edge.
        """
        block = data
        if data.shape != self.chunks or data.dtype != self.dtype or not data.flags.c_contiguous:
            block = np.zeros(self.chunks, self.dtype)
            block[tuple(slice(0, s) for s in data.shape)] = data
        crc = int(google_crc32c.value(block)).to_bytes(_CRC_BYTES, "little")
        key = _key(coordinates)
        path = local_path(self.url)
        if path is not None:
            _write_file(path / key, block.reshape(-1).view(np.uint8).data, crc)
        else:
            raw = np.concatenate([block.reshape(-1).view(np.uint8), np.frombuffer(crc, np.uint8)])
            sync(_remote(self.url).set(key, default_buffer_prototype().buffer.from_array_like(raw)))
        return self.chunk_bytes

    def present(self) -> set[tuple[int, ...]]:
        """Positions of the complete chunks, by one listing. Left-overs of killed writers are removed."""
        path = local_path(self.url)
        if path is None:
            return {c for key in sync(_list(_remote(self.url))) if (c := _coordinates(key)) is not None}
        found = set()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.endswith(".partial"):
                    with contextlib.suppress(FileNotFoundError):
                        Path(entry.path).unlink()
                    continue
                c = _coordinates(entry.name)
                if c is not None and entry.stat().st_size == self.chunk_bytes:
                    found.add(c)
        return found

    def load(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Whole array in memory, in `out` if that is given.

        Raises
        ------
        StoreError
            If a chunk is missing or damaged.
        """
        out = np.empty(self.shape, self.dtype) if out is None else out
        buffer = np.empty(self.chunks, self.dtype)
        for c in np.ndindex(*(-(-s // k) for s, k in zip(self.shape, self.chunks, strict=True))):
            self.read(c, buffer)
            where = tuple(slice(i * k, min(s, (i + 1) * k)) for i, k, s in zip(c, self.chunks, self.shape, strict=True))
            out[where] = buffer[tuple(slice(0, w.stop - w.start) for w in where)]
        return out

    def fill(self, data: NDArray[Any]) -> None:
        """Write every chunk from an array in memory."""
        for c in np.ndindex(*(-(-s // k) for s, k in zip(self.shape, self.chunks, strict=True))):
            self.write(c, data[tuple(slice(i * k, (i + 1) * k) for i, k in zip(c, self.chunks, strict=True))])

    def lazy(self) -> Any:
        """Zarr array (read only), for readers that want numpy-style indexing."""
        return zarr.open_array(zarr_store(self.url), mode="r")


def _create(array: ChunkedArray) -> None:
    try:
        zarr.create_array(
            zarr_store(array.url),
            shape=array.shape,
            chunks=array.chunks,
            dtype=array.dtype,
            fill_value=np.nan,  # a missing chunk must never pass for zeros
            serializer=BytesCodec(endian="little"),
            compressors=Crc32cCodec(),
            # One flat folder: a single directory listing finds the complete chunks.
            chunk_key_encoding={"name": "default", "separator": "."},
            config={"write_empty_chunks": True},
        )
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot create an array at {array.url}: {error}") from error


def _key(coordinates: tuple[int, ...]) -> str:
    return "c." + ".".join(map(str, coordinates))


def _coordinates(key: str) -> tuple[int, ...] | None:
    head, *rest = key.split(".")
    return tuple(map(int, rest)) if head == "c" and rest and all(part.isdigit() for part in rest) else None


async def _list(store: Any) -> list[str]:
    return [key async for key in store.list_dir("")]


def _missing(url: str, key: str) -> str:
    return f"chunk {key} of {url} is not there: the store is incomplete. Run again with the same store to compute it"


def _read_file(path: Path, out: memoryview, crc: bytearray) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise StoreError(_missing(str(path.parent), path.name)) from None
    try:
        n_read = 0
        while n_read < len(out):  # one call reads at most 2 GiB
            n = os.readv(descriptor, [out[n_read:], crc] if n_read == 0 else [out[n_read:]])
            if n == 0:
                return n_read
            n_read += n
        if n_read == len(out):
            n_read += os.readv(descriptor, [crc])
        return n_read + len(os.read(descriptor, 1))
    finally:
        os.close(descriptor)


def _write_file(path: Path, data: memoryview, crc: bytes) -> None:
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("wb", buffering=0) as file:
            for part in (data, memoryview(crc)):
                written = 0
                while written < len(part):  # a nearly full disk takes what fits, and says so
                    written += file.write(part[written:])
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}. Finished tiles are kept: "
            f"fix this and run again with the same store"
        ) from error
