"""Whole chunks of an array, and blocks of their rows, read and written raw; each has checksums.

An array is a Zarr v3 array whose chunks are shards (the codec ``sharding_indexed``) of uncompressed blocks of rows with
their CRC-32C, as any Zarr reader opens them. Behind the checksum of a block, in bytes that Zarr does not read, lies a
second one that also covers the name of the array, its layout and the block's position: a block at another place, of
another array or of another run does not pass for the right one. A chunk is one file whose bytes go straight into the
caller's buffer; Zarr's array interface would copy it several times, and decode it on one event-loop thread.
"""

from contextlib import closing, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import DamagedChunkError, StoreError, UnreachableStoreError
from dkrr.store.format import (
    METADATA_NAME,
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
from dkrr.store.places import Place, place_at
from dkrr.store.replacing import STORE


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
        array = cls(url, shape, chunks, dtype, 0, identity)
        try:
            found = cls.open(url, identity)
        except DamagedChunkError:  # written again: checksums of chunks hold the layout
            return array.create_anew()
        if found != array:
            raise StoreError(
                f"{url} holds an array of shape {found.shape}, chunks {found.chunks}, {found.dtype}; expected shape "
                f"{shape}, chunks {chunks}, {dtype}. Give another store= or delete this one"
            )
        return found

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
        self._place.make()
        write_json(self._place, self.metadata)
        return self

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
        found = _metadata_at(url)
        layout = layout_of(found)
        if layout is None and found.get("node_type") == "group":
            raise StoreError(f"{url} is a group, not an array; expected an array that dkrr wrote")
        if layout is None:
            raise _unreadable(url, f"its {METADATA_NAME} is not one that dkrr writes")
        return cls(url, *layout, identity)

    def check_metadata(self) -> None:
        """Compare the metadata in the store, which other readers of Zarr go by, with this layout.

        Raises
        ------
        DamagedChunkError
            If they are missing or differ.
        """
        if _metadata_at(self.url) != self.metadata:
            raise _unreadable(self.url, f"its {METADATA_NAME} describes another layout or other codecs than dkrr wrote")

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the array for readers of Zarr v3."""
        return metadata(self.shape, self.chunks, self.dtype, self._height)

    @cached_property
    def _place(self) -> Place:
        return place_at(self.url, self.identity)

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
        key, size, stride = key_of(coordinates), self._block_bytes, self._block_bytes + TAIL_BYTES
        content = out.reshape(-1).view(np.uint8)
        groups = [(content[k : k + size], bytearray(TAIL_BYTES)) for k in range(0, len(content), size)]
        # Closed at once: an error that is kept would keep the file open.
        with closing(self._place.read_into(key, first * stride, groups)) as sizes:
            for number, ((block, tail), n_bytes) in enumerate(zip(groups, sizes, strict=False), first):
                self._check_size(key, n_bytes)
                if tail != self._tail(key, number, block):
                    raise self._damaged(key, _CHANGED)

    def mapped(self, coordinates: tuple[int, ...], *, check: bool = True) -> NDArray[Any] | None:
        """A whole chunk of one block, checked, in place in the system's cache; nothing is copied.

        None where that cannot be: in a bucket, and of a chunk that is missing or has another size, as `read` says.

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
        key = key_of(coordinates)
        content = self._place.mapped(key, self.chunk_bytes, at_once=check)
        if content is None:
            return None
        chunk: NDArray[Any] = np.frombuffer(content, self.dtype, int(prod(self.chunks))).reshape(self.chunks)
        if check and content[self._block_bytes : self._block_bytes + TAIL_BYTES] != self._tail(key, 0, chunk):
            raise self._damaged(key, _CHANGED)
        return chunk

    def _check_size(self, key: str, n_bytes: int | None) -> None:
        """Refuse a chunk that is missing, or has another size.

        Raises
        ------
        DamagedChunkError
            Naming it.
        """
        if n_bytes is None:
            raise self._damaged(key, "is not there: the store is incomplete")
        if n_bytes != self.chunk_bytes:
            raise self._damaged(
                key, f"has {n_bytes} bytes instead of {self.chunk_bytes}: the store is damaged or incomplete"
            )

    def _damaged(self, key: str, what: str) -> DamagedChunkError:
        return DamagedChunkError(f"chunk {key} of {self.url} {what}. {REMEDY}", self.url, key)

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
        content, buffers = block.reshape(-1).view(np.uint8), list[Any]()
        for k in range(self._n_blocks):
            inner = content[k * size : (k + 1) * size]
            buffers += [inner, self._tail(key, k, inner)]
        self._place.write(key, [*buffers, self._index])
        return self.chunk_bytes

    def present(self) -> set[tuple[int, ...]]:
        """Positions of the existing chunks of full size, by one listing.

        Raises
        ------
        StoreError
            If the folder cannot be read.
        """
        n_bytes = self.chunk_bytes
        sizes = self._place.sizes().items()
        return {c for key, size in sizes if size == n_bytes and (c := coordinates_of(key)) is not None}

    def discard(self, coordinates: tuple[int, ...]) -> None:
        """Delete a chunk."""
        self._place.at(key_of(coordinates)).delete(STORE)

    @property
    def is_complete(self) -> bool:
        """Whether all chunks are there with their full size."""
        return len(self.present()) == prod(self.grid)

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
        last = key_of(tuple(k - 1 for k in self.grid))
        self._check_size(last, self._place.size(last))
        present = self.present()
        if len(present) < prod(self.grid):
            key = key_of(next(c for c in np.ndindex(*self.grid) if c not in present))
            self._check_size(key, self._place.size(key))
            self._check_size(key, None)

    def load(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Whole array in memory, in `out` if that is given.

        Raises
        ------
        DamagedChunkError, StoreError
            As `read`; also if memory does not suffice.
        """
        self.check_complete()
        out = self._empty("shape", self.shape) if out is None else out
        buffer = self._empty("chunks", self.chunks)
        for c in np.ndindex(*self.grid):
            self.read(c, buffer)
            where = tuple(slice(i * k, min(s, (i + 1) * k)) for i, k, s in zip(c, self.chunks, self.shape, strict=True))
            out[where] = buffer[tuple(slice(0, w.stop - w.start) for w in where)]
        return out

    def fill(self, data: NDArray[Any]) -> None:
        """Write every chunk from an array in memory."""
        for c in np.ndindex(*self.grid):
            self.write(c, data[tuple(slice(i * k, (i + 1) * k) for i, k in zip(c, self.chunks, strict=True))])

    def complete(self, data: NDArray[Any]) -> None:
        """`fill`, but for chunks that have these bits already: a finished run writes nothing on a read-only disk."""
        present, buffer = self.present(), self._empty("chunks", self.chunks)
        for c in np.ndindex(*self.grid):
            chunk = data[tuple(slice(i * k, (i + 1) * k) for i, k in zip(c, self.chunks, strict=True))]
            with suppress(DamagedChunkError):
                if c in present:
                    self.read(c, buffer)
                    if buffer[tuple(map(slice, chunk.shape))].tobytes() == chunk.tobytes():
                        continue
            self.write(c, chunk)

    def damaged_chunks(self) -> list[DamagedChunkError]:
        """Read every existing chunk, and return the errors of those that are damaged.

        A file of a chunk that has another size counts; one that is missing does not: the array may be incomplete, and
        its owner may delete it meanwhile.
        """
        found, buffer = [], None
        for key in sorted(self._place.names()):
            c = coordinates_of(key)
            if c is None or len(c) != len(self.grid):
                continue
            try:
                self._check_size(key, self._place.size(key))
                buffer = self._empty("chunks", self.chunks) if buffer is None else buffer
                self.read(c, buffer)
                self._check_index(key)
            except DamagedChunkError as error:
                if key in self._place.names():
                    found.append(error)
        return found

    def _empty(self, what: str, shape: tuple[int, ...]) -> NDArray[Any]:
        try:
            return np.empty(shape, self.dtype)
        except (MemoryError, ValueError) as error:
            raise StoreError(f"{self.url} has {what} {shape}, for which memory does not suffice: {error}") from error

    def _check_index(self, key: str) -> None:
        """Compare a chunk's index, which only other readers of Zarr use."""
        found = bytearray(len(self._index))
        (n_bytes,) = self._place.read_into(key, self.chunk_bytes - len(found), [[found]])
        self._check_size(key, n_bytes)
        if found != self._index:
            raise self._damaged(key, _CHANGED)


REMEDY = (
    "Of a run, the same call with the same store and data computes it again, unless the run has grown since; a model "
    "is to be saved again, copied again from where it is whole, or fitted again"
)
_CHANGED = "does not match its checksum: the store is damaged"


def _metadata_at(url: str) -> dict[str, Any]:
    try:
        found = read_json(place_at(url))
    except UnreachableStoreError:  # what cannot be read now is not damaged
        raise
    except StoreError as error:
        raise _unreadable(url, str(error)) from error
    if found is None:
        raise _unreadable(url, f"its {METADATA_NAME} is not there")
    return found


def _unreadable(url: str, why: str) -> DamagedChunkError:
    return DamagedChunkError(f"no readable array of dkrr at {url}: {why}", url, METADATA_NAME)
