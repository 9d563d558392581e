"""The format of a store: chunks, and the JSON of groups and arrays.

A chunk is a Zarr v3 shard of uncompressed blocks of rows, with two checksums each::

    block 0, CRC-32C, second checksum; block 1, ...; index of the shard, CRC-32C of the index

The index gives Zarr the position of every block with its CRC-32C; the second checksum lies where Zarr does not read.

JSON is written and read by dkrr itself: bounded, checked, and written at once. The description of a run or a model is
the attribute ``dkrr`` of its group, with its own checksum beside it.
"""

import hashlib
import json
import re
import struct
import sys
from math import prod
from typing import Any

import google_crc32c
import numpy as np

from dkrr.errors import StoreError
from dkrr.store.places import Place, place_at
from dkrr.text import format_bytes

crc32c = google_crc32c.extend
"""CRC-32C of bytes after others, from theirs: (before, read-only buffer) → int."""
CHECKSUM_BLOCK_BYTES = 256 * 2**10
"""Size of a block of rows: small beside what a task reads, large beside a call for its checksum."""
ROW_CHUNK_BYTES = 16 * 2**20
"""Size of a chunk of rows: large enough to read fast, small beside any worker's memory."""
MAX_CHUNK_ROWS = 2**20
MAX_BLOCKS, MAX_CHECKSUM_BLOCK_BYTES = 2**16, 2**40
"""Most blocks of a chunk, and bytes of one: metadata that claim more were not written by dkrr."""

STORED_DTYPES = (
    "float64",
    "float32",
    "float16",
    "bool",
    *(f"{kind}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8)),
)

_KEY = re.compile(r"c(\.[0-9]{1,18})+")

CRC_BYTES = 4
TAIL_BYTES = 2 * CRC_BYTES
INDEX_ENTRY_BYTES = 16
"""Bytes of a block in the index of a shard."""
OVERHEAD_BYTES = TAIL_BYTES + INDEX_ENTRY_BYTES + CRC_BYTES
"""Bytes of a chunk of one block besides its numbers."""


def layout_of_rows(shape: tuple[int, ...], dtype: Any, rows_per_chunk: int | None) -> tuple[tuple[int, ...], int]:
    """Shape of the chunks of an array of whole rows, and rows of a block (0: a chunk is one block)."""
    row_bytes = max(1, prod(shape[1:]) * np.dtype(dtype).itemsize)
    most = max(1, min(ROW_CHUNK_BYTES // row_bytes, MAX_CHUNK_ROWS, shape[0]))
    height = most if rows_per_chunk is None else max(1, min(rows_per_chunk, most))
    n_blocks = -(-height // max(1, min(CHECKSUM_BLOCK_BYTES // row_bytes, height)))
    block = -(-height // n_blocks)
    return (block * n_blocks, *(max(1, s) for s in shape[1:])), 0 if n_blocks == 1 else block


def metadata(shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str, height: int) -> dict[str, Any]:
    """Metadata of an array for readers of Zarr v3; blocks have `height` rows."""
    if sys.byteorder != "little":
        raise StoreError("stores are little-endian; expected a machine that is, as nearly all are")
    kind = np.dtype(dtype)
    number = {"name": "bytes"} | ({"configuration": {"endian": "little"}} if kind.itemsize > 1 else {})
    index = {"name": "bytes", "configuration": {"endian": "little"}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        # One flat folder: a single directory listing finds the complete chunks.
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        # A missing chunk must never pass for zeros.
        "fill_value": "NaN" if kind.kind == "f" else False if kind.kind == "b" else 0,
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [height, *chunks[1:]],
                    "codecs": [number, {"name": "crc32c"}],
                    "index_codecs": [index, {"name": "crc32c"}],
                    "index_location": "end",
                },
            }
        ],
        "attributes": {},
        "storage_transformers": [],
    }


def layout_of(found: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...], str, int] | None:
    """Shape, chunks, dtype and rows of a block (0: a chunk is one) of metadata; None if dkrr does not write such."""
    try:
        shape = tuple(found["shape"])
        chunks = tuple(found["chunk_grid"]["configuration"]["chunk_shape"])
        (codec,) = found["codecs"]
        height = codec["configuration"]["chunk_shape"][0]
        numbers, dtype = (*shape, *chunks, height), found["data_type"]
    except (KeyError, TypeError, ValueError, IndexError):
        return None
    if any(type(number) is not int or not 0 <= number < 2**62 for number in numbers) or dtype not in STORED_DTYPES:
        return None
    if not shape or len(shape) != len(chunks) or 0 in chunks or not 0 < height <= chunks[0] or chunks[0] % height:
        return None
    block = height * prod(chunks[1:]) * np.dtype(dtype).itemsize
    if (
        chunks[0] // height > MAX_BLOCKS
        or block > MAX_CHECKSUM_BLOCK_BYTES
        or metadata(shape, chunks, dtype, height) != found
    ):
        return None
    return shape, chunks, dtype, 0 if height == chunks[0] else height


def index_of(n_blocks: int, block_bytes: int) -> bytes:
    """Index of a shard: position and length of every block, as Zarr reads them, and its checksum."""
    stride, length = block_bytes + TAIL_BYTES, block_bytes + CRC_BYTES
    index = b"".join(struct.pack("<QQ", k * stride, length) for k in range(n_blocks))
    return index + struct.pack("<I", google_crc32c.value(index))


def tail_of(block: Any, label: bytes) -> bytes:
    """Checksum of a block, and the second one, which also covers its label."""
    plain = google_crc32c.value(block)
    return struct.pack("<II", plain, google_crc32c.extend(plain, label))


def key_of(coordinates: tuple[int, ...]) -> str:
    """Name of the file of a chunk."""
    return "c." + ".".join(map(str, coordinates))


def coordinates_of(key: str) -> tuple[int, ...] | None:
    """Position of the chunk that a file has by its name; None if it is not a chunk."""
    return tuple(map(int, key.split(".")[1:])) if _KEY.fullmatch(key) else None


METADATA_NAME = "zarr.json"
MAX_DESCRIPTION_BYTES = 64 * 2**20
"""Largest description."""
MAX_VALUES = 2**22
"""Most values in it, of which a small text may hold many: a vocabulary of two million words fits, with their idf."""
MAX_NESTING = 64
"""Deepest nesting of values: of sums in sums of kernels, mostly."""

_GROUP = {"zarr_format": 3, "node_type": "group"}


def write_group(url: str, description: dict[str, Any] | None = None) -> None:
    """Write a Zarr group, with the description of what it holds if there is one.

    Raises
    ------
    StoreError
        If it cannot be written.
    """
    attributes = {}
    if description is not None:
        found = json.loads(json.dumps(description))  # what a reader finds: tuples have become lists, and keys text
        attributes = {"dkrr": description, "checksum": _checksum(found)}
    place = place_at(url)
    place.make()
    write_json(place, {**_GROUP, "attributes": attributes})


def write_json(place: Place, value: dict[str, Any]) -> None:
    """Write the metadata of a group or an array."""
    place.write(METADATA_NAME, [json.dumps(value, indent=1).encode()])


def check_readable(description: dict[str, Any], what: str) -> None:
    """Refuse a description that would not be read again, before anything is written.

    Raises
    ------
    StoreError
        If it has more or deeper values than descriptions may have.
    """
    remedy = ": of documents keep fewer terms (min_df), or hash them (n_features)"
    _check_amount(json.dumps(description, indent=1).encode(), what, remedy)
    if _depth(description) > MAX_NESTING:
        raise StoreError(
            f"{what} has values that are nested more than {MAX_NESTING} deep; expected a kernel of fewer levels"
        )


def _check_amount(raw: bytes, what: str, remedy: str) -> None:
    n_values = sum(map(raw.count, (b",", b"[", b"{", b":")))  # or more: text may have these
    if len(raw) > MAX_DESCRIPTION_BYTES or n_values > MAX_VALUES:
        raise StoreError(
            f"{what} has {format_bytes(len(raw))} with {n_values:,} values; expected at most "
            f"{format_bytes(MAX_DESCRIPTION_BYTES)} and {MAX_VALUES:,}{remedy}"
        )


def read_group(url: str) -> dict[str, Any] | None:
    """Description in a Zarr group; None if there is no group, an empty one if dkrr wrote none.

    Raises
    ------
    StoreError
        If the file is not a group's, is damaged, or holds more or deeper values than dkrr writes.
    """
    found = read_json(place_at(url))
    if found is None:
        return None
    if found.get("node_type") == "array":
        raise StoreError(f"{url} is an array, not a group")
    attributes = found.pop("attributes", {})
    if not isinstance(attributes, dict):
        raise _damaged(url, "its attributes are not a JSON object")
    description = attributes.get("dkrr")
    if description is None or not isinstance(description, dict):
        return {}
    if "checksum" not in attributes:  # of a version that wrote none: of the present one it would be damaged
        return {name: description.get(name) for name in ("kind", "format", "versions")}
    if found != _GROUP or set(attributes) != {"dkrr", "checksum"} or attributes["checksum"] != _checksum(description):
        raise _damaged(url, "its description does not match its checksum")
    return description


def read_json(place: Place) -> dict[str, Any] | None:
    """Metadata of a group or an array; None if there are none.

    Raises
    ------
    StoreError
        If it is not JSON, not an object, too large or too deep.
    """
    raw, url = place.read(METADATA_NAME, MAX_DESCRIPTION_BYTES), f"{place.url}/{METADATA_NAME}"
    if raw is None:
        return None
    _check_amount(raw, url, ": it is not a file that dkrr wrote")
    try:
        found = json.loads(raw)
        is_deep = _depth(found) > MAX_NESTING
    except (ValueError, RecursionError) as error:
        raise _damaged(url, f"it is not JSON that dkrr wrote: {error}") from error
    if not isinstance(found, dict):
        raise _damaged(url, "it is not a JSON object")
    if is_deep:
        raise _damaged(url, f"its values are nested more than {MAX_NESTING} deep")
    return found


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((_depth(v) for v in inner if isinstance(v, dict | list)), default=0)


def _checksum(description: dict[str, Any]) -> str:
    plain = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(plain.encode()).hexdigest()}"


def _damaged(url: str, why: str) -> StoreError:
    return StoreError(f"{url} is damaged: {why}")
