"""Rows in files: NumPy's (.npy, .npz), data sets of HDF5, and chunk files of an uncompressed Zarr array.

What the headers of NumPy's files claim is compared with the file before memory is taken.

Zarr's array interface reads and decodes every chunk that a block of rows touches as a whole: blocks of 14,000 rows from
chunks of 50,000 would read five times what they need. Where a chunk is one plain file whose bytes are its rows, the
requested bytes are read straight into the caller's array.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Self
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr.cluster.process import available_bytes
from dkrr.data.rows import ALL, ArrayRows, Block, Rows
from dkrr.errors import InputError, InputTypeError, StoreError
from dkrr.sparse import check_structure
from dkrr.store.files import read_all
from dkrr.store.paths import local_path
from dkrr.units import format_bytes

MAGIC = b"\x93NUMPY"
LENGTHS = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
"""Bytes of the length of the header, by version of the format."""
MAX_HEADER = 10_000
"""Bytes of a header that NumPy reads."""
MAX_MEMBERS = 65_535
"""Arrays of a .npz file; a zip file without extensions holds as many."""
MAX_NAMED = 8
"""Most arrays or data sets of a file that a message names."""
MAX_RATIO = 1032
"""Bytes that the deflate format makes of one byte, at most."""


def mapped_npy(file: str) -> Any:
    """Array of a .npy file, mapped for reading; raises ValueError if it does not have what its header says."""
    with Path(file).open("rb") as stream:
        n_bytes = _claimed_bytes(stream)
        _check_claim(n_bytes, stream.seek(0, 2))
    return np.lib.format.open_memmap(file, mode="r")


def npz_array(file: str, member: str, name: str) -> Any:
    """Array of a .npz file, or the sparse matrix that one holds.

    Raises
    ------
    InputError
        If there is no such array, or it does not fit in memory.
    ValueError, BadZipFile
        If the file does not have what it says.
    """
    with ZipFile(file) as archive:
        infos = archive.infolist()
        known = [info.filename.removesuffix(".npy") for info in infos]
        if len(known) > MAX_MEMBERS:
            raise ValueError(f"it has {len(known):,} arrays; expected at most {MAX_MEMBERS:,}")
        if len(set(known)) < len(known):
            raise ValueError("it has two arrays of one name; expected a name for each")
        if not member and {"format", "shape"} <= set(known):
            check_memory(sum(_member_bytes(archive, info) for info in infos), f"{name}: {file}")
            return _sparse(file, name)
        if member not in known:
            listed = ", ".join(known[:MAX_NAMED]) + (", ..." if len(known) > MAX_NAMED else "")
            raise InputError(f"{name}: {file} has no array {member!r}; expected one of {listed}: write {file}::NAME")
        info = infos[known.index(member)]
        check_memory(_member_bytes(archive, info), f"{name}: {file}::{member}")
        with archive.open(info) as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)


def check_memory(n_bytes: int, what: str) -> None:
    """Refuse to read more into memory than is available; raises InputError."""
    available = available_bytes()
    if n_bytes > available:
        raise InputError(
            f"{what} takes {format_bytes(n_bytes)} of memory, and {format_bytes(available)} are available; expected "
            f"less: rows in a .npy file or a Zarr array are read in blocks"
        )


def _sparse(file: str, name: str) -> Any:
    stored = sp.load_npz(file)
    check_structure(stored, name)
    check_memory(8 * (stored.shape[0] + 1), f"{name}: the row pointers of {file}")  # other formats have none
    return stored.tocsr()


def _member_bytes(archive: ZipFile, info: ZipInfo) -> int:
    """Bytes of a member, after checks of what the directory of the file and its own header say."""
    most = {ZIP_STORED: info.compress_size, ZIP_DEFLATED: MAX_RATIO * info.compress_size}.get(info.compress_type, 0)
    if info.flag_bits & 1 or info.file_size > most or info.compress_size > Path(str(archive.filename)).stat().st_size:
        raise ValueError(f"{info.filename} is not as NumPy writes it: encrypted, or of another size than it says")
    with archive.open(info) as stream:
        _check_claim(_claimed_bytes(stream), info.file_size)
    return info.file_size


def _claimed_bytes(stream: Any) -> int:
    """Bytes that a file has by its header: those of the header and of the numbers."""
    start = stream.read(len(MAGIC) + 2)
    version = tuple(start[len(MAGIC) :])
    if not start.startswith(MAGIC) or version not in LENGTHS:
        raise ValueError("it is not in NumPy's format")
    length = stream.read(LENGTHS[version])
    n_header = int.from_bytes(length, "little")
    if n_header > MAX_HEADER:
        raise ValueError(f"its header has {n_header:,} bytes; expected at most {MAX_HEADER:,}")
    shape, dtype = _parsed(version[0], BytesIO(length + stream.read(n_header)))
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"it has values of type {dtype}, which only pickle would read; expected numbers or text")
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"its header has the shape {shape}; expected whole numbers of at least 0")
    return len(start) + len(length) + n_header + int(prod(shape)) * dtype.itemsize


def _parsed(version: int, header: BinaryIO) -> tuple[tuple[Any, ...], np.dtype[Any]]:
    read = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(header)
    except (SyntaxError, RecursionError, MemoryError, TypeError, LookupError, OverflowError) as error:
        raise ValueError(f"its header cannot be read ({type(error).__name__})") from error
    return shape, dtype


def _check_claim(claimed: int, there: int) -> None:
    if claimed > there:
        raise ValueError(f"its header says {format_bytes(claimed)}, and there are {format_bytes(there)}")


SUFFIXES = (".h5", ".hdf5", ".he5")
MAX_LINKS = 32
"""Most links on the way to a data set."""
MAX_LOOKED_AT = 10_000
"""Most names of a file that are looked at for a message."""


class HdfArray:
    """A data set of an HDF5 file, of which rows are read; another process opens the file itself.

    Parameters
    ----------
    path : str
        The file.
    name : str
        The data set.
    given : h5py.Dataset, optional
        The data set, where a user has opened it.
    """

    def __init__(self, path: str, name: str, given: Any = None) -> None:
        self._path, self._name, self._given = path, name, given
        self.shape: tuple[int, ...] = tuple(self._dataset.shape)
        self.dtype: np.dtype[Any] = self._dataset.dtype

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_name": self._name, "_given": None, "shape": self.shape, "dtype": self.dtype}

    @cached_property
    def _dataset(self) -> Any:
        if self._given is not None:
            return self._given
        import h5py

        return h5py.File(self._path, "r")[self._name]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Shape of what is stored together; None if all is."""
        return self._dataset.chunks  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        try:
            return np.asarray(self._dataset[index])
        except (OSError, RuntimeError) as error:  # a chunk is damaged, or compressed by a filter that is missing
            raise InputError(f"cannot read {self._path}::{self._name}: {error}; expected a whole HDF5 file") from error


class HdfRows(ArrayRows):
    """Rows of a data set in an HDF5 file. Workers do not read these: they are staged first.

    Parameters
    ----------
    array : HdfArray of shape (n, d) or (n,)
    """

    is_lazy = True

    def read(self, start: int, stop: int, columns: slice = ALL) -> Block:
        if self.array.ndim == 1:
            return self.array[start:stop][:, None][:, columns]
        return self.array[start:stop, columns]

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, Block]]:
        chunks = self.array.chunks
        if chunks is None:
            return super().blocks(start, stop, height)
        return self._blocks_of_chunks(range(0, self.shape[0] + chunks[0], chunks[0]), start, stop, height)

    def take(self, indices: NDArray[np.intp]) -> Block:
        order, inverse = np.unique(indices, return_inverse=True)  # HDF5 takes rising numbers only
        return self.array[order].reshape(len(order), self.shape[1])[inverse]

    @property
    def read_overhead_bytes(self) -> int:
        chunks = self.array.chunks
        return 0 if chunks is None else int(np.prod(chunks)) * int(np.dtype(self.dtype).itemsize)


def is_hdf_array(value: Any) -> bool:
    """Whether a value is a data set of an HDF5 file, opened by dkrr or by h5py."""
    return isinstance(value, HdfArray) or (type(value).__module__.startswith("h5py.") and hasattr(value, "chunks"))


def hdf_array(value: Any) -> HdfArray:
    """Data set as dkrr reads it."""
    return value if isinstance(value, HdfArray) else HdfArray(value.file.filename, value.name, value)


def hdf_rows(value: Any, name: str) -> Rows:
    """Rows of a data set."""
    return HdfRows(hdf_array(value), name)


def open_hdf(path: str, member: str, name: str) -> HdfArray:
    """Data set of a file.

    Raises
    ------
    InputError
        If there is no such data set, which names those that there are, or h5py is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise InputError(
            f"{name}: {path} is an HDF5 file, and h5py is missing; expected it: pip install 'dkrr[tables]'"
        ) from error
    with h5py.File(path, "r") as file:
        found, known = _data_set_at(file, member), []
        if found is None:
            known = _data_sets_in(file)
    if found is None:
        more = ", ..." if len(known) > MAX_NAMED else ""
        listed = ", ".join(f"{Path(path).name}::{key}" for key in known[:MAX_NAMED]) + more
        raise InputError(f"{name}: {path} has no data set {member!r}; expected one of {listed or 'none, it is empty'}")
    array = HdfArray(path, found)
    if array.dtype.kind == "V":
        raise InputTypeError(f"{name}: {path}::{member} has records ({array.dtype}); expected a matrix of numbers")
    return array


def _data_set_at(file: Any, member: str) -> str | None:
    """Name of the data set that a name and soft links lead to within a file; None if there is none.

    Raises
    ------
    ValueError
        If its numbers are in another file, which would be opened, or links lead in a circle.
    """
    import h5py

    place, left, n_links = file, member.split("/"), 0
    while left:
        part = left.pop(0)
        if part in ("", "."):
            continue
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise ValueError(f"{part!r} in it is an external link to {link.filename!r}; open that file itself")
        if isinstance(link, h5py.SoftLink):
            n_links += 1
            if n_links > MAX_LINKS:
                raise ValueError(
                    f"{part!r} in it is a link that leads in a circle, or over more than {MAX_LINKS} links"
                )
            left = link.path.split("/") + left
            place = file if link.path.startswith("/") else place
        elif link is None:
            return None
        else:
            place = place[part]
    if not isinstance(place, h5py.Dataset):
        return None
    if place.external or place.is_virtual:
        raise ValueError(f"the numbers of {member!r} are in other files; expected a data set that has them: copy it")
    if place.shape is None:
        raise ValueError(f"{member!r} in it is a data set without numbers")
    return str(place.name)


def _data_sets_in(file: Any) -> list[str]:
    """Names of data sets, more than a message has if there are; soft and external links are not followed."""
    import h5py

    found, groups, known, n_looked_at = list[str](), [file], {file}, 0
    while groups and len(found) <= MAX_NAMED and n_looked_at < MAX_LOOKED_AT:
        group = groups.pop()
        for key in islice(group, MAX_LOOKED_AT):
            n_looked_at += 1
            item = group[key] if isinstance(group.get(key, getlink=True), h5py.HardLink) else None
            if isinstance(item, h5py.Dataset):
                found.append(item.name.lstrip("/"))
            elif isinstance(item, h5py.Group) and item not in known:  # a group may contain itself
                groups.append(item)
                known.add(item)
    return sorted(found)


SCRATCH_BYTES = 2**20
"""Size of the buffer that rows pass through of which only some columns are read."""


@dataclass(frozen=True)
class ChunkFiles:
    """The chunks of a matrix (or vector) on this machine's disk, of whole rows each."""

    folder: Path
    metadata: Any
    """Metadata of the Zarr array, which has the names of the files."""
    n_columns: int
    rows_per_chunk: int
    n_dimensions: int
    dtype: np.dtype[Any]
    fill_value: Any

    @classmethod
    def of(cls, array: Any, url: str) -> Self | None:
        """Chunk files of a Zarr array; None if chunks are not plain files of whole rows."""
        path = local_path(url)
        columns = int(array.shape[1]) if array.ndim == 2 else 1
        whole_rows = array.ndim == 1 or int(array.chunks[1]) == columns
        if path is None or not whole_rows or not _is_plain(array):
            return None
        return cls(path, array.metadata, columns, int(array.chunks[0]), array.ndim, array.dtype, array.fill_value)

    def read(self, start: int, stop: int, columns: slice) -> NDArray[Any]:
        """Rows start ... stop − 1 of some columns.

        Raises
        ------
        StoreError
            If a chunk is shorter than it should be.
        """
        left, right, _ = columns.indices(self.n_columns)
        if (left, right) == (0, self.n_columns):
            out = np.empty((stop - start, self.n_columns), self.dtype)
            self._read_into(out, start)
            return out
        out = np.empty((stop - start, max(right - left, 0)), self.dtype)
        height = max(1, SCRATCH_BYTES // (self.n_columns * self.dtype.itemsize))
        scratch = np.empty((min(height, stop - start), self.n_columns), self.dtype)
        for top in range(0, stop - start, height):
            rows = scratch[: min(height, stop - start - top)]
            self._read_into(rows, start + top)
            out[top : top + height] = rows[:, left:right]
        return out

    def blocks(self, start: int, stop: int, height: int) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Rows start ... stop − 1 in blocks of `height`, all in one buffer: fresh memory takes longer than reading."""
        buffer = np.empty((max(0, min(height, stop - start)), self.n_columns), self.dtype)
        for k in range(start, stop, height):
            block = buffer[: min(height, stop - k)]
            self._read_into(block, k)
            yield slice(k, k + len(block)), block

    def _read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill a C-ordered array with the rows from `start` on."""
        row_bytes, done = self.n_columns * self.dtype.itemsize, 0
        while done < len(out):
            chunk, skip = divmod(start + done, self.rows_per_chunk)
            target = out[done : done + self.rows_per_chunk - skip]
            key = self.metadata.encode_chunk_key((chunk, 0)[: self.n_dimensions])
            try:
                descriptor = os.open(self.folder / key, os.O_RDONLY)
            except FileNotFoundError:
                target[...] = self.fill_value  # as Zarr does
            else:
                try:
                    read_all(descriptor, [target.reshape(-1).view(np.uint8).data], skip * row_bytes)
                except EOFError:
                    raise StoreError(
                        f"the chunk {self.folder / key} ends too early: the array is damaged. Rewrite it"
                    ) from None
                finally:
                    os.close(descriptor)
            done += len(target)


def _is_plain(array: Any) -> bool:
    """Whether a chunk's bytes are its numbers in C order, in this machine's byte order."""
    if array.shards is not None or array.compressors or array.filters or not array.dtype.isnative:
        return False
    if array.metadata.zarr_format == 2:
        return bool(array.metadata.order == "C")
    endian = getattr(array.serializer, "endian", None)
    plain = type(array.serializer).__name__ == "BytesCodec"
    # Text since Zarr 3.4, a member of an enumeration before.
    return plain and (endian is None or getattr(endian, "value", endian) == sys.byteorder)
