"""Arrays in files that anyone may have written: NumPy's (.npy, .npz), and data sets of HDF5.

What the headers of NumPy's files claim is compared with the file before memory is taken.
"""

import os
from io import BytesIO
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import scipy.sparse as sp

from dkrr.errors import InputError, InputTypeError
from dkrr.limits import available_bytes
from dkrr.sparse import check_structure
from dkrr.text import MAX_NAMED, first_names, format_bytes

NPY_MAGIC = b"\x93NUMPY"
LENGTHS = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
"""Bytes of the length of the header, by version of the format."""
MAX_HEADER = 10_000
"""Bytes of a header that NumPy reads."""
MAX_MEMBERS = 65_535
"""Arrays of a .npz file; a zip file without extensions holds as many."""
MAX_RATIO = 1032
"""Bytes that the deflate format makes of one byte, at most."""


def mapped_npy(file: str) -> Any:
    """Array of a .npy file, mapped for reading; raises ValueError if it does not have what its header says."""
    with Path(file).open("rb") as stream:
        checked_dtype(stream, os.fstat(stream.fileno()).st_size)
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
            raise InputError(
                f"{name}: {file} has no array {member!r}; expected one of {first_names(known)}: write {file}::NAME"
            )
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
        checked_dtype(stream, info.file_size)
    return info.file_size


def checked_dtype(stream: Any, n_bytes: int) -> np.dtype[Any]:
    """Type of the values in a file of NumPy's format; ValueError if its header claims more than its `n_bytes`."""
    start = stream.read(len(NPY_MAGIC) + 2)
    version = tuple(start[len(NPY_MAGIC) :])
    if not start.startswith(NPY_MAGIC) or version not in LENGTHS:
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
    claimed = len(start) + len(length) + n_header + int(prod(shape)) * dtype.itemsize
    if claimed > n_bytes:
        raise ValueError(f"its header says {format_bytes(claimed)}, and there are {format_bytes(n_bytes)}")
    return dtype


def _parsed(version: int, header: BinaryIO) -> tuple[tuple[Any, ...], np.dtype[Any]]:
    read = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(header)
    except (SyntaxError, RecursionError, MemoryError, TypeError, LookupError, OverflowError) as error:
        raise ValueError(f"its header cannot be read ({type(error).__name__})") from error
    return shape, dtype


SUFFIXES = (".h5", ".hdf5", ".he5")
MAX_LINKS = 32
"""Most links on the way to a data set."""
MAX_LOOKED_AT = 10_000
"""Most names of a file that are looked at for a message."""


def open_hdf(path: str, member: str, name: str) -> Any:
    """Data set of a file, open for reading.

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
        listed = first_names(f"{Path(path).name}::{key}" for key in known)
        raise InputError(f"{name}: {path} has no data set {member!r}; expected one of {listed or 'none, it is empty'}")
    data_set = h5py.File(path, "r")[found]
    if data_set.dtype.kind == "V":
        raise InputTypeError(f"{name}: {path}::{member} has records ({data_set.dtype}); expected a matrix of numbers")
    return data_set


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
