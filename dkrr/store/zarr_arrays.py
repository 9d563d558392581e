"""Zarr arrays of users: opened in any layout; and predictions, written as an ordinary array."""

import asyncio
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec
from zarr.core.sync import sync

from dkrr.checks import BUCKETS
from dkrr.errors import InputError, StoreError, UnreachableStoreError
from dkrr.store.buckets import errors_of, store_below
from dkrr.store.description import COMMAND
from dkrr.store.format import MAX_CHUNK_ROWS, ROW_CHUNK_BYTES, read_json
from dkrr.store.paths import file_name, local_path, resolved_place
from dkrr.store.places import place_at
from dkrr.store.replacing import files_of_arrays
from dkrr.text import MAX_NAMED, first_names, plural

PREDICTIONS = "predictions"
"""Kind, in the attributes of an array or a group of predictions, by which it is known as one that may be replaced."""
TEXT_ITEMS = 16
"""Bytes of a text in memory over those of a pointer to it, at a guess."""
MAX_REQUESTS = 64
"""Most chunks that a store is asked for at once."""
MAX_CHUNKS = 2**24
"""Most chunks of an array that are looked for in a store that is not on this machine."""
MAX_GROUP_DEPTH = 4
"""Levels of groups in which arrays are looked for, for messages."""


def zarr_store(url: str) -> Any:
    """Zarr store behind a URL or path; rows of users are also read from any file system that fsspec knows."""
    path = local_path(url)
    if path is not None:
        return zarr.storage.LocalStore(path)
    if url.partition("://")[0] not in BUCKETS:
        return zarr.storage.FsspecStore.from_url(url)
    return zarr.storage.ObjectStore(store_below(url))


def is_zarr_array(value: Any) -> bool:
    """Whether a value is an open Zarr array."""
    return isinstance(value, zarr.Array)


def is_zarr_group(value: Any) -> bool:
    """Whether a value is an open Zarr group."""
    return isinstance(value, zarr.Group)


def arrays_in(group: Any) -> list[str]:
    """Paths of the arrays in a Zarr group and its groups, relative to it."""
    return sorted(path for path, member in group.members(max_depth=MAX_GROUP_DEPTH) if isinstance(member, zarr.Array))


def arrays_at(url: str) -> list[str] | None:
    """Paths of the arrays in the Zarr group at a URL, relative to it; None if there is no group, or it is dkrr's."""
    try:
        group = zarr.open_group(zarr_store(url), mode="r")
        is_ours = {"dkrr", "checksum"} <= set(group.attrs)  # the store of a run, which its owner may be changing
        return None if is_ours else arrays_in(group)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def place_of(array: Any) -> str | tuple[Any, str] | None:
    """Path or URL under which another process finds an open Zarr array.

    Of one in a store without, the store and the path there; None if it is in the memory of this process.
    """
    store = array.store
    if isinstance(store, zarr.storage.LocalStore):
        return str(Path(store.root).absolute() / array.path)
    if isinstance(store, zarr.storage.FsspecStore):
        protocol = getattr(store.fs, "sync_fs", store.fs).protocol  # Zarr wraps those that are not asynchronous
        protocols = [protocol] if isinstance(protocol, str) else protocol
        return None if "memory" in protocols else f"{protocols[0]}://{store.path}/{array.path}".rstrip("/")
    is_in_memory = isinstance(store, zarr.storage.MemoryStore) or _kind_of(array) == "MemoryStore"
    return None if is_in_memory else (store, array.path)


def _kind_of(array: Any) -> str:
    """Name of the class of obstore in whose store an open Zarr array is."""
    return type(getattr(array.store, "store", None)).__name__


def is_of_object_store(array: Any) -> bool:
    """Whether an open Zarr array is in an object store of obstore, which travels with its credentials' source."""
    return isinstance(array.store, zarr.storage.ObjectStore)


def bucket_of_array(array: Any) -> str | None:
    """URL of the bucket that an open Zarr array is in; None if it is elsewhere."""
    kinds = {"S3Store": ("s3", "bucket"), "GCSStore": ("gs", "bucket"), "AzureStore": ("az", "container_name")}
    protocol, name = kinds.get(_kind_of(array), ("", ""))
    return f"{protocol}://{array.store.store.config[name]}" if protocol and name in array.store.store.config else None


def is_dask_array(value: Any) -> bool:
    """Whether a value is a Dask array."""
    # Importing dask.array imports what it finds (xarray, sparse), 100 MiB in each worker that never sees such an array.
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(value, module.Array)


def open_array(place: str | tuple[Any, str], mode: Literal["r", "r+"] = "r") -> Any:
    """Open a Zarr array at a path, a URL, or a path in a store of Zarr.

    Raises
    ------
    StoreError
        If it does not exist.
    """
    if not isinstance(place, str):
        return zarr.open_array(place[0], path=place[1], mode=mode)
    path = local_path(place)
    if path is not None and not os.path.lexists(path):
        raise StoreError(f"{place} does not exist")
    try:
        return zarr.open_array(zarr_store(place), mode=mode)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{place} is not a Zarr array ({error}); give the path of the array itself") from error
    except Exception as error:  # of the library behind a URL
        with errors_of(place):
            raise error


def refuse_missing_chunks(array: Any, name: str) -> None:
    """Refuse a Zarr array of which chunks are not there: they would be read as its fill value, mostly 0.

    Raises
    ------
    InputError
        Naming the first ones.
    """
    place = place_of(array)
    at, folder = (f" at {place}", local_path(place)) if isinstance(place, str) else ("", None)
    if folder is not None:
        # The metadata may claim any number: the first ones that are missing end the search.
        found = (key for key in _chunk_keys(array) if not (folder / key).exists())
        missing = first_names(found)
    elif array.nchunks > MAX_CHUNKS:
        raise InputError(
            f"{name} is a Zarr array{at} of {plural(array.nchunks, 'chunk')}; expected at most {MAX_CHUNKS}"
        )
    else:
        n_listed = 0
        with suppress(Exception):  # of servers of HTTP, of which few list what they have
            n_listed = array.nchunks_initialized
        with errors_of(str(place)):
            missing = "" if n_listed == array.nchunks else first_names(sync(_absent(array)))
    if missing:
        fill = str(array.fill_value)
        raise InputError(
            f"{name} is a Zarr array{at} without its chunks {missing}; expected all, since Zarr reads {fill} "
            f"in their place: write them again. If {fill} is what they hold, write the array with zarr.config.set("
            f'{{"array.write_empty_chunks": True}}), or give its numbers, as in {name}=array[:]'
        )


async def _absent(array: Any) -> list[str]:
    """Names of the first chunks of an array that its store does not have: each is asked for, many at once."""
    keys, prefix, found = _chunk_keys(array), f"{array.path}/" if array.path else "", list[str]()
    while len(found) <= MAX_NAMED and (some := list(islice(keys, MAX_REQUESTS))):
        there = await asyncio.gather(*(array.store.exists(prefix + key) for key in some))
        found += [key for key, is_there in zip(some, there, strict=True) if not is_there]
    return found


def _chunk_keys(array: Any) -> Iterator[str]:
    """Names of the files of all chunks, or shards."""
    sides = array.shards or array.chunks
    counts = [-(-size // side) for size, side in zip(array.shape, sides, strict=True)]
    for k in range(math.prod(counts)):
        position = list[int]()
        for count in reversed(counts):
            k, i = divmod(k, count)
            position.insert(0, i)
        yield array.metadata.encode_chunk_key(tuple(position))


def create_predictions(url: str, columns: Mapping[str, Any], n_rows: int, command: str | None) -> list[Any]:
    """Create a Zarr group with an array for each column of predictions.

    Parameters
    ----------
    url : str
    columns : mapping of str to dtype
        Types of the columns by their names, which may be any text; object for text. The attributes of the group have
        them by the names of the arrays' folders.
    n_rows : int
    command : str or None
        See `predictions_note`.

    Returns
    -------
    list of zarr.Array
        In the order of the columns, all with chunks of as many rows.
    """
    folders = {file_name(name): name for name in columns}
    description = predictions_note(command) | {"columns": folders}
    zarr.create_group(zarr_store(url), attributes={"dkrr": description})
    height = min(chunk_rows((n_rows,), kind) for kind in columns.values())
    return [create_array(f"{url}/{folder}", (n_rows,), columns[name], height) for folder, name in folders.items()]


def predictions_note(command: str | None) -> dict[str, Any]:
    """Description of predictions, by which they are known as such, with the digest of the command that wrote them."""
    return {"kind": PREDICTIONS} | ({} if command is None else {COMMAND: command})


def described_predictions(url: str) -> dict[str, Any] | None:
    """Description of predictions in Zarr's format that dkrr wrote; None if there is something else.

    Raises
    ------
    StoreError
        If an existing description cannot be read.
    """
    try:
        found = read_json(place_at(resolved_place(url))) or {}
        described: dict[str, Any] = found["attributes"]["dkrr"]
        return described if described["kind"] == PREDICTIONS else None
    except UnreachableStoreError:
        raise
    except (StoreError, LookupError, TypeError):
        return None


def files_of_predictions(url: str) -> re.Pattern[str] | None:
    """Paths of the files of such predictions; None if there is something else."""
    described = described_predictions(url)
    try:
        return None if described is None else files_of_arrays(described.get("columns", ()))
    except TypeError:  # columns without names
        return None


def create_array(
    url: str,
    shape: tuple[int, ...],
    dtype: Any,
    rows_per_chunk: int | None = None,
    description: dict[str, Any] | None = None,
) -> Any:
    """Create a Zarr array of uncompressed chunks with checksums, where nothing is.

    Parameters
    ----------
    url : str
    shape : tuple of int
    dtype : dtype
        object for text.
    rows_per_chunk : int, optional
        Chunks hold whole rows, of at most ROW_CHUNK_BYTES; default: as many as that.
    description : dict, optional
        What it holds, for its attributes.
    """
    at_most = chunk_rows(shape, dtype)
    rows_per_chunk = at_most if rows_per_chunk is None else min(rows_per_chunk, at_most)
    chunks = (max(1, min(rows_per_chunk, shape[0])), *(max(1, s) for s in shape[1:]))
    letter = np.dtype(dtype).kind
    return zarr.create_array(
        zarr_store(url),
        shape=shape,
        chunks=chunks,
        dtype=str if letter == "O" else dtype,  # of any length: Zarr has no specification of text of a fixed one
        compressors=Crc32cCodec(),
        # A missing chunk must not pass for zeros.
        fill_value=np.nan if letter == "f" else "" if letter == "O" else 0,
        attributes=None if description is None else {"dkrr": description},
        config={"write_empty_chunks": True},
    )


def chunk_rows(shape: tuple[int, ...], dtype: Any) -> int:
    """Rows of a chunk of about ROW_CHUNK_BYTES."""
    row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * np.dtype(dtype).itemsize
    if np.dtype(dtype).kind == "O":
        row_bytes *= TEXT_ITEMS
    return int(max(1, min(ROW_CHUNK_BYTES // max(row_bytes, 1), MAX_CHUNK_ROWS)))
