"""Whole chunks of an array, and blocks of their rows, read and written raw; each has checksums.

An array is a Zarr v3 array whose chunks are shards (the codec ``sharding_indexed``) of uncompressed blocks of rows with
their CRC-32C, as any Zarr reader opens them. Behind the checksum of a block, in bytes that Zarr does not read, lies a
second one that goes on with the name of the array, its layout and the block's position: a block at another place, of
another array or of another run does not pass for the right one. A chunk is one file whose bytes go straight into the
caller's buffer; Zarr's array interface would copy it several times, and decode it on one event-loop thread.

A process remembers which checksums it has compared a moment ago, and in which file. A factorisation reads each tile
about six times, most of them within seconds and from the system's cache. One comparison holds for a minute, unless the
file changes: in runs that last longer nearly every reading is compared.
"""

import contextlib
import mmap
import os
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import DamagedChunkError, StoreError
from dkrr.store import remote
from dkrr.store.files import make_folder, names, open_for_reading, read_all, write_file
from dkrr.store.format import (
    NAME,
    TAIL_BYTES,
    coordinates_of,
    index_of,
    key_of,
    layout_of,
    layout_of_rows,
    metadata,
    read_json,
    tail_of,
    write_json,
)
from dkrr.store.paths import local_path, unreadable
from dkrr.store.replacing import STORE, delete_listed

MAX_AGE_SECONDS = 60.0
"""What was longer ago may have left the cache, and be read from the disk again."""
SETTLED_SECONDS = 2.0
"""File systems keep times to within less than this: a file that is older, and changes, has another time of change."""
MAX_CHUNKS = 2**16
"""Chunks that are remembered."""


class Comparisons:
    """Chunks and the files in which their checksums were compared."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[int, ...], float]] = {}

    def hold(self, chunk: Hashable, status: os.stat_result) -> bool:
        """Whether a chunk was compared a moment ago, in this very file."""
        found = self._known.get(chunk)
        return found is not None and found[0] == _file(status) and time.monotonic() - found[1] < MAX_AGE_SECONDS

    def note(self, chunk: Hashable, status: os.stat_result) -> None:
        """Note that a chunk matches its checksum; `status` is of its file, from before the comparison."""
        if time.time() - status.st_ctime < SETTLED_SECONDS:
            return
        if len(self._known) >= MAX_CHUNKS:
            self._known = {}
        self._known[chunk] = _file(status), time.monotonic()


def _file(status: os.stat_result) -> tuple[int, ...]:
    """What differs if a file is another, or has changed: no program can set the time of the last change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns


COMPARISONS = Comparisons()
"""Of this process."""


_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
"""Map all pages at once, not one fault at a time."""
CACHED_BYTES = 2**20
"""Blocks that are read and compared together: what was read is then in a core's cache."""


@dataclass(frozen=True)
class ChunkedArray:
    """An array whose chunks are written once, whole, and read whole or by rows. Travels between processes by name.

    A chunk that lies across the array's edge is stored in full; what is outside the array is zero.
    """

    url: str
    """Path or URL of the array."""
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str = "float64"
    block_rows: int = 0
    """Rows of a block with a checksum; 0: a chunk is one block."""
    identity: str = ""
    """Name of the array that its checksums hold: of the run or model, and within it."""

    @classmethod
    def create(
        cls, url: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "float64", identity: str = ""
    ) -> "ChunkedArray":
        """Create an empty array of chunks of one block each, or take an existing one of this very layout.

        Raises
        ------
        StoreError
            If an array of another layout exists, or it cannot be written.
        """
        chunks = tuple(max(1, min(c, s)) for c, s in zip(chunks, shape, strict=True))
        return cls(url, shape, chunks, dtype, 0, identity)._created()

    @classmethod
    def of_rows(
        cls, url: str, shape: tuple[int, ...], dtype: Any, identity: str = "", rows_per_chunk: int | None = None
    ) -> "ChunkedArray":
        """Array of whole rows in a layout that follows from these arguments; `create_anew` writes it.

        Parameters
        ----------
        url : str
        shape : tuple of int
        dtype : dtype
        identity : str
        rows_per_chunk : int, optional
            A chunk has as many rows, or slightly more so that its blocks are alike, of at most about CHUNK_BYTES;
            default: as many as that.
        """
        chunks, block_rows = layout_of_rows(tuple(shape), dtype, rows_per_chunk)
        return cls(url, tuple(shape), chunks, np.dtype(dtype).name, block_rows, identity)

    def create_anew(self) -> "ChunkedArray":
        """Write the array's metadata, and return it; chunks of an earlier one are to be deleted before."""
        make_folder(self.url)
        write_json(f"{self.url}/{NAME}", self.metadata)
        return self

    def _created(self) -> "ChunkedArray":
        path = local_path(self.url)
        found = None
        if path is None or os.path.lexists(path):
            with contextlib.suppress(DamagedChunkError):  # written again: checksums of chunks hold the layout
                found = self.open(self.url, self.identity)
        if found is None:
            return self.create_anew()
        if found != self:
            raise StoreError(
                f"{self.url} holds an array of shape {found.shape}, chunks {found.chunks}, {found.dtype}; "
                f"expected shape {self.shape}, chunks {self.chunks}, {self.dtype}. Give another store= or "
                f"delete this one"
            )
        return found

    @classmethod
    def open(cls, url: str, identity: str = "") -> "ChunkedArray":
        """Open an array that dkrr wrote.

        Raises
        ------
        DamagedChunkError
            If it does not exist, or its metadata are damaged.
        StoreError
            If something else is there, or it cannot be read.
        """
        try:
            found = read_json(f"{url}/{NAME}")
        except StoreError as error:
            raise DamagedChunkError(f"no readable array of dkrr at {url}: {error}", url, NAME) from error
        if found is None:
            raise DamagedChunkError(f"no readable array of dkrr at {url}: it has no {NAME}", url, NAME)
        layout = layout_of(found)
        if layout is None and found.get("node_type") == "group":
            raise StoreError(f"{url} is a group and no array; expected an array that dkrr wrote")
        if layout is None:
            raise DamagedChunkError(
                f"no readable array of dkrr at {url}: its {NAME} is not one that dkrr writes", url, NAME
            )
        return cls(url, *layout, identity)

    def check_metadata(self) -> None:
        """Compare the metadata in the store, which other readers of Zarr go by, with this layout.

        Raises
        ------
        DamagedChunkError
            If they are missing or differ.
        """
        try:
            found = read_json(f"{self.url}/{NAME}")
        except StoreError as error:
            raise DamagedChunkError(str(error), self.url, NAME) from error
        if found != self.metadata:
            what = "is not there" if found is None else "describes another layout or other codecs than dkrr wrote"
            raise DamagedChunkError(f"{self.url} is damaged: its {NAME} {what}", self.url, NAME)

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the array for readers of Zarr v3."""
        return metadata(self.shape, self.chunks, self.dtype, self._height)

    @property
    def _height(self) -> int:
        return self.block_rows or self.chunks[0]

    @cached_property
    def _block_bytes(self) -> int:
        return int(self._height * prod(self.chunks[1:]) * np.dtype(self.dtype).itemsize)

    @cached_property
    def _n_blocks(self) -> int:
        return self.chunks[0] // self._height

    @cached_property
    def _index(self) -> bytes:
        return index_of(self._n_blocks, self._block_bytes)

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of one stored chunk, checksums and index included."""
        return self._n_blocks * (self._block_bytes + TAIL_BYTES) + len(self._index)

    @cached_property
    def _label(self) -> bytes:
        return f"{self.identity}|{self.shape}|{self.chunks}|{self._height}|{self.dtype}|".encode()

    def _tail(self, key: str, block: int, data: Any) -> bytes:
        return tail_of(data, self._label + f"{key}|{block}".encode())

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without what is kept

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each dimension."""
        return tuple(-(-s // k) for s, k in zip(self.shape, self.chunks, strict=True))

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
        DamagedChunkError
            If the chunk is missing, truncated or damaged.
        StoreError
            If it cannot be read.
        """
        if out.shape != self.chunks or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise ValueError(f"buffer of shape {out.shape} {out.dtype} for a chunk {self.chunks} {self.dtype}")
        self._read_blocks(coordinates, 0, out)
        return self.chunk_bytes

    def read_rows(self, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Rows start ... stop − 1 of an array whose chunks have whole rows; blocks are checked.

        Parameters
        ----------
        start, stop : int
        out : ndarray of shape (stop − start, ...), optional
            C-contiguous buffer of the array's dtype.

        Raises
        ------
        DamagedChunkError, StoreError
            As `read`.
        """
        out = np.empty((stop - start, *self.shape[1:]), self.dtype) if out is None else out
        row, scratch = start, None
        while row < stop:
            chunk, inside = divmod(row, self.chunks[0])
            n = min(stop - row, self.chunks[0] - inside)
            block, skip = divmod(inside, self._height)
            target = out[row - start : row - start + n]
            coordinates = (chunk, *(0 for _ in self.shape[1:]))
            whole = 0 if skip else n // self._height * self._height
            if whole:
                self._read_blocks(coordinates, block, target[:whole])
            else:  # a part of a block, which is read and checked as a whole
                whole = min(n, self._height - skip)
                if scratch is None:
                    scratch = np.empty((self._height, *self.shape[1:]), self.dtype)
                self._read_blocks(coordinates, block, scratch)
                target[:whole] = scratch[skip : skip + whole]
            row += whole
        return out

    def _read_blocks(self, coordinates: tuple[int, ...], first: int, out: NDArray[Any]) -> None:
        """Read consecutive blocks of a chunk into `out`, and compare their checksums."""
        key, size = key_of(coordinates), self._block_bytes
        content = out.reshape(-1).view(np.uint8)
        blocks = [content[k : k + size] for k in range(0, len(content), size)]
        if local_path(self.url) is None:
            self._fetch(key, first, blocks)
        else:
            self._read_file(key, first, blocks)

    def _compare(self, key: str, first: int, blocks: Sequence[NDArray[np.uint8]], tails: Sequence[Any]) -> None:
        for k, (block, tail) in enumerate(zip(blocks, tails, strict=True)):
            if tail != self._tail(key, first + k, block):
                raise self._damaged(key)

    def _read_file(self, key: str, first: int, blocks: Sequence[NDArray[np.uint8]]) -> None:
        path, descriptor = f"{local_path(self.url)}/{key}", self._opened(key)
        stride = self._block_bytes + TAIL_BYTES
        at_once = max(1, CACHED_BYTES // stride)
        try:
            found = os.fstat(descriptor).st_size
            if found != self.chunk_bytes:
                raise self._truncated(key, found)
            for k in range(0, len(blocks), at_once):
                some = blocks[k : k + at_once]
                tails = [bytearray(TAIL_BYTES) for _ in some]
                parts = [part for pair in zip(some, tails, strict=True) for part in pair]
                read_all(descriptor, parts, (first + k) * stride)
                self._compare(key, first + k, some, tails)
        except StoreError:
            raise
        except EOFError:
            raise self._truncated(key, os.fstat(descriptor).st_size) from None
        except OSError as error:
            raise unreadable(path, error) from error
        finally:
            os.close(descriptor)

    def _fetch(self, key: str, first: int, blocks: Sequence[NDArray[np.uint8]]) -> None:
        stride, is_whole = self._block_bytes + TAIL_BYTES, len(blocks) == self._n_blocks
        offset = first * stride
        end = self.chunk_bytes if is_whole else offset + len(blocks) * stride
        tails = [bytearray(TAIL_BYTES) for _ in blocks]
        parts = [part for pair in zip(blocks, tails, strict=True) for part in pair]
        if is_whole:
            parts.append(bytearray(len(self._index)))
        size = remote.get_into(self.url, key, offset, *parts)
        if size is None:
            raise self._missing(key)
        if size < end or (is_whole and size != end):
            raise self._truncated(key, size)
        self._compare(key, first, blocks, tails)

    def mapped(self, coordinates: tuple[int, ...], *, check: bool = True) -> NDArray[Any] | None:
        """One whole chunk of one block, checked, where it lies in the system's cache; None for a remote store.

        Nothing is copied. A checksum that was compared a moment ago is not compared again.

        Parameters
        ----------
        coordinates : tuple of int
            Position of the chunk in the grid of chunks.
        check : bool
            False where a part is wanted of a chunk whose checksum has been compared: only that part is then read.

        Raises
        ------
        DamagedChunkError, StoreError
            As `read`.
        """
        assert self._n_blocks == 1, "blocks of a chunk do not lie together"
        path = local_path(self.url)
        if path is None:
            return None
        key = key_of(coordinates)
        descriptor = self._opened(key)
        try:
            status = os.fstat(descriptor)
            size = status.st_size
            if size != self.chunk_bytes:
                raise self._truncated(key, size)
            flags = mmap.MAP_SHARED | (_POPULATE if check else 0)
            content = mmap.mmap(descriptor, size, prot=mmap.PROT_READ, flags=flags)
        except StoreError:
            raise
        except OSError as error:
            raise unreadable(path / key, error) from error
        finally:
            os.close(descriptor)
        chunk: NDArray[Any] = np.frombuffer(content, self.dtype, int(prod(self.chunks))).reshape(self.chunks)
        tail = content[self._block_bytes : self._block_bytes + TAIL_BYTES]
        if check and not COMPARISONS.hold((self, key), status):
            if tail != self._tail(key, 0, chunk):
                raise self._damaged(key)
            COMPARISONS.note((self, key), status)
        return chunk

    def _missing(self, key: str) -> DamagedChunkError:
        text = f"chunk {key} of {self.url} is not there: the store is incomplete. {_REMEDY}"
        return DamagedChunkError(text, self.url, key)

    def _truncated(self, key: str, n_bytes: int) -> DamagedChunkError:
        text = (
            f"chunk {key} of {self.url} has {n_bytes} bytes instead of {self.chunk_bytes}: the store is damaged or "
            f"incomplete. {_REMEDY}"
        )
        return DamagedChunkError(text, self.url, key)

    def _damaged(self, key: str) -> DamagedChunkError:
        text = f"chunk {key} of {self.url} does not match its checksum: the store is damaged. {_REMEDY}"
        return DamagedChunkError(text, self.url, key)

    def write(self, coordinates: tuple[int, ...], data: NDArray[Any]) -> int:
        """Write one whole chunk and return the number of bytes written.

        The chunk appears at once or not at all: a killed writer leaves no half-written chunk.

        Parameters
        ----------
        coordinates : tuple of int
            Position of the chunk in the grid of chunks.
        data : ndarray
            The chunk; may be smaller than `chunks` at the array's edge.

        Raises
        ------
        StoreError
            If it cannot be written; a DiskSpaceError where space is short.
        """
        block = data
        if data.shape != self.chunks or data.dtype != self.dtype or not data.flags.c_contiguous:
            block = np.zeros(self.chunks, self.dtype)
            block[tuple(slice(0, s) for s in data.shape)] = data
        key, size = key_of(coordinates), self._block_bytes
        content, parts = block.reshape(-1).view(np.uint8), list[Any]()
        for k in range(self._n_blocks):
            part = content[k * size : (k + 1) * size]
            parts += [part, self._tail(key, k, part)]
        write_file(f"{self.url}/{key}", [*parts, self._index])
        return self.chunk_bytes

    def present(self) -> set[tuple[int, ...]]:
        """Positions of the chunks that are there with their full size, by one listing.

        Raises
        ------
        StoreError
            If the folder cannot be read.
        """
        path = local_path(self.url)
        if path is None:
            return {c for key in names(self.url) if (c := coordinates_of(key)) is not None}
        found = set()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    c = coordinates_of(entry.name)
                    if c is not None and entry.stat(follow_symlinks=False).st_size == self.chunk_bytes:
                        found.add(c)
        except OSError as error:
            raise unreadable(path, error) from error
        return found

    def discard(self, coordinates: tuple[int, ...]) -> None:
        """Delete a chunk."""
        delete_listed(f"{self.url}/{key_of(coordinates)}", STORE)

    def check_complete(self) -> None:
        """Refuse an array without all of its chunks, before memory is taken for it.

        Raises
        ------
        DamagedChunkError
            Naming a chunk that is missing.
        """
        if 0 in self.grid:
            return
        # At once, whatever number of chunks is claimed.
        self._check_file(tuple(k - 1 for k in self.grid))
        present = self.present()
        if len(present) < prod(self.grid):
            missing = next(c for c in np.ndindex(*self.grid) if c not in present)
            self._check_file(missing)
            raise self._missing(key_of(missing))

    def _check_file(self, coordinates: tuple[int, ...]) -> None:
        """Refuse a chunk on this machine that does not exist, is not a file, or has another size."""
        key = key_of(coordinates)
        if local_path(self.url) is None:
            return
        descriptor = self._opened(key)
        size = os.fstat(descriptor).st_size
        os.close(descriptor)
        if size != self.chunk_bytes:
            raise self._truncated(key, size)

    def load(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Whole array in memory, in `out` if that is given.

        Raises
        ------
        DamagedChunkError, StoreError
            As `read`; also if memory does not suffice.
        """
        self.check_complete()
        try:
            out = np.empty(self.shape, self.dtype) if out is None else out
            buffer = np.empty(self.chunks, self.dtype)
        except (MemoryError, ValueError) as error:
            raise StoreError(
                f"{self.url} has shape {self.shape}, for which memory does not suffice: {error}"
            ) from error
        for c in np.ndindex(*self.grid):
            self.read(c, buffer)
            where = tuple(slice(i * k, min(s, (i + 1) * k)) for i, k, s in zip(c, self.chunks, self.shape, strict=True))
            out[where] = buffer[tuple(slice(0, w.stop - w.start) for w in where)]
        return out

    def fill(self, data: NDArray[Any]) -> None:
        """Write every chunk from an array in memory."""
        for c in np.ndindex(*self.grid):
            self.write(c, data[tuple(slice(i * k, (i + 1) * k) for i, k in zip(c, self.chunks, strict=True))])

    def damaged_chunks(self) -> list[DamagedChunkError]:
        """Read every chunk that is there, and return the errors of those that are damaged.

        A file of a chunk that has another size counts; one that is missing does not: the array may be incomplete, and
        its owner may delete it meanwhile.
        """
        found, buffer = [], None
        for key in sorted(names(self.url)):
            c = coordinates_of(key)
            if c is None or len(c) != len(self.grid):
                continue
            try:
                self._check_file(c)
                buffer = self._buffer() if buffer is None else buffer
                self.read(c, buffer)
                self._check_index(key)
            except DamagedChunkError as error:
                path = local_path(self.url)
                if path is None or os.path.lexists(path / key):
                    found.append(error)
        return found

    def _buffer(self) -> NDArray[Any]:
        """Buffer for a chunk."""
        try:
            return np.empty(self.chunks, self.dtype)
        except (MemoryError, ValueError) as error:
            raise StoreError(
                f"{self.url} has chunks of {self.chunks}, for which memory does not suffice: {error}"
            ) from error

    def _check_index(self, key: str) -> None:
        """Compare a chunk's index, which only other readers of Zarr use."""
        start = self.chunk_bytes - len(self._index)
        if local_path(self.url) is None:
            raw = bytes(remote.get(self.url, key, (start, self.chunk_bytes)) or b"")
        else:
            found = bytearray(len(self._index))
            descriptor = self._opened(key)
            try:
                read_all(descriptor, [found], start)
            except EOFError:
                raise self._truncated(key, os.fstat(descriptor).st_size) from None
            except OSError as error:
                raise unreadable(f"{self.url}/{key}", error) from error
            finally:
                os.close(descriptor)
            raw = bytes(found)
        if raw != self._index:
            raise self._damaged(key)

    def _opened(self, key: str) -> int:
        """Descriptor of a chunk on this machine.

        Raises
        ------
        DamagedChunkError
            If it is missing, a link, or not a file.
        """
        try:
            return open_for_reading(f"{local_path(self.url)}/{key}")
        except FileNotFoundError:
            raise self._missing(key) from None
        except DamagedChunkError as error:
            raise DamagedChunkError(str(error), self.url, key) from error


_REMEDY = "Run again with the same store and the same data to compute it again"
