"""The layout of a chunk on disk: a Zarr v3 shard of uncompressed blocks of rows, with two checksums each.

::

    block 0, CRC-32C, second checksum; block 1, ...; index of the shard, CRC-32C of the index

The index gives Zarr the position of every block with its CRC-32C; the second checksum lies where Zarr does not read.
"""

import struct
import sys
from math import prod
from typing import Any

import google_crc32c
import numpy as np

from dkrr.errors import StoreError

BLOCK_BYTES = 256 * 2**10
"""Size of a block of rows: small beside what a task reads, large beside a call for its checksum."""
CHUNK_BYTES = 16 * 2**20
"""Size of a chunk of rows: large enough to read fast, small beside any worker's memory."""
MAX_CHUNK_ROWS = 2**20
MAX_BLOCKS, MAX_BLOCK_BYTES = 2**16, 2**40
"""Most blocks of a chunk, and bytes of one: metadata that claim more were not written by dkrr."""

DTYPES = (
    "float64",
    "float32",
    "float16",
    "bool",
    *(f"{kind}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8)),
)

CRC_BYTES = 4
TAIL_BYTES = 2 * CRC_BYTES
ENTRY_BYTES = 16
"""Of a block in the index of a shard."""
OVERHEAD_BYTES = TAIL_BYTES + ENTRY_BYTES + CRC_BYTES
"""Bytes of a chunk of one block besides its numbers."""


def layout_of_rows(shape: tuple[int, ...], dtype: Any, rows_per_chunk: int | None) -> tuple[tuple[int, ...], int]:
    """Shape of the chunks of an array of whole rows, and rows of a block (0: a chunk is one block)."""
    row_bytes = max(1, prod(shape[1:]) * np.dtype(dtype).itemsize)
    most = max(1, min(CHUNK_BYTES // row_bytes, MAX_CHUNK_ROWS, shape[0]))
    height = most if rows_per_chunk is None else max(1, min(rows_per_chunk, most))
    n_blocks = -(-height // max(1, min(BLOCK_BYTES // row_bytes, height)))
    block = -(-height // n_blocks)
    return (block * n_blocks, *(max(1, s) for s in shape[1:])), 0 if n_blocks == 1 else block


def metadata(shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str, height: int) -> dict[str, Any]:
    """Metadata of an array for readers of Zarr v3; blocks have `height` rows."""
    if sys.byteorder != "little":
        raise StoreError(
            "stores hold numbers with the lowest byte first; expected a machine that does, as nearly all do"
        )
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
    if any(type(number) is not int or not 0 <= number < 2**62 for number in numbers) or dtype not in DTYPES:
        return None
    if not shape or len(shape) != len(chunks) or 0 in chunks or not 0 < height <= chunks[0] or chunks[0] % height:
        return None
    block = height * prod(chunks[1:]) * np.dtype(dtype).itemsize
    if chunks[0] // height > MAX_BLOCKS or block > MAX_BLOCK_BYTES or metadata(shape, chunks, dtype, height) != found:
        return None
    return shape, chunks, dtype, 0 if height == chunks[0] else height


def index_of(n_blocks: int, block_bytes: int) -> bytes:
    """Index of a shard: position and length of every block, as Zarr reads them, and its checksum."""
    stride, length = block_bytes + TAIL_BYTES, block_bytes + CRC_BYTES
    index = b"".join(struct.pack("<QQ", k * stride, length) for k in range(n_blocks))
    return index + struct.pack("<I", google_crc32c.value(index))


def tail_of(block: Any, label: bytes) -> bytes:
    """Checksum of a block, and the second one, which goes on with its label."""
    plain = google_crc32c.value(block)
    return struct.pack("<II", plain, google_crc32c.extend(plain, label))


def key_of(coordinates: tuple[int, ...]) -> str:
    """Name of the file of a chunk."""
    return "c." + ".".join(map(str, coordinates))


def coordinates_of(key: str) -> tuple[int, ...] | None:
    """Position of the chunk that a file has by its name; None if it is not a chunk."""
    head, *rest = key.split(".")
    return (
        tuple(map(int, rest))
        if head == "c" and rest and all(part.isdecimal() and len(part) < 19 for part in rest)
        else None
    )
