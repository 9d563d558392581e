"""Sources of the tiles of a symmetric matrix: computed from rows of data, or read."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from dkrr import blas
from dkrr.cluster import Meter, Task, resident
from dkrr.data import MemoryRows, Rows
from dkrr.data.rows import SPARSE_STRIP_ENTRIES, Block, cuts_by_entries, dense, n_bytes
from dkrr.errors import InputError, KernelFunctionError, NotFiniteError
from dkrr.kernels import Kernel
from dkrr.kernels.blocks import LARGE_STRIP_COLUMNS, LARGE_STRIP_ROWS, SYMMETRY_TOLERANCE, as_row_pair, mirror_lower
from dkrr.store import ChunkedArray, MemoryMatrix, TiledMatrix, TileGrid

KERNEL_BLOCK = 1024
"""Rows and columns of the blocks in which a kernel is called: bounds the kernel's own temporaries."""


Strip = tuple[slice, slice, NDArray[Any]]
Vectors = ChunkedArray | NDArray[np.float64]
"""Tall vectors, kept in chunks of rows in a store, or in memory."""


class TileSource(ABC):
    """Source of any tile on or below the diagonal of a symmetric matrix; travels to workers by name."""

    @abstractmethod
    def fill(self, meter: Meter, out: NDArray[Any], rows: slice, columns: slice) -> None:
        """Write the block `rows` × `columns` to `out`.

        Parameters
        ----------
        meter : Meter
        out : ndarray of shape (len(rows), len(columns))
            float64 or float32; kernels compute in its precision. On the diagonal (`rows` = `columns`) only its lower
            triangle need be written.
        rows, columns : slice
            Ranges within the matrix, of a tile on or below the diagonal.
        """

    def strips(self, meter: Meter, rows: slice, columns: slice, dtype: DTypeLike) -> Iterator[Strip]:
        """Yield a tile in strips for work that uses each at once; on the diagonal only what is on or below it.

        Parameters
        ----------
        meter : Meter
        rows, columns : slice
            Ranges within the matrix, of a tile on or below the diagonal.
        dtype : dtype
            float64 or float32: precision of the values.

        Yields
        ------
        rows, columns : slice
            Ranges within the matrix. Where they are equal, the strip is on the diagonal, whole and symmetric.
        strip : ndarray of shape (len(rows), len(columns))
            Overwritten by the next one.
        """
        tile = np.empty((rows.stop - rows.start, columns.stop - columns.start), dtype)
        self.fill(meter, tile, rows, columns)
        if rows == columns:
            mirror_squares(tile)
        yield from cut_tile(tile, rows, columns)


def mirror_squares(tile: NDArray[Any]) -> None:
    """Make the squares symmetric that `cut_tile` cuts from the diagonal of a tile, from their lower triangles."""
    for top in range(0, tile.shape[0], LARGE_STRIP_ROWS):
        square = slice(top, min(top + LARGE_STRIP_ROWS, tile.shape[0]))
        mirror_lower(tile[square, square])


def cut_tile(tile: NDArray[Any], rows: slice, columns: slice) -> Iterator[Strip]:
    """Yield a tile that is in memory in strips; of one on the diagonal what is right of its squares is not read.

    Parameters
    ----------
    tile : ndarray of shape (len(rows), len(columns))
        On the diagonal with symmetric squares (`mirror_squares`).
    rows, columns : slice
        Ranges within the matrix.
    """
    for top in range(0, rows.stop - rows.start, LARGE_STRIP_ROWS):
        bottom = min(top + LARGE_STRIP_ROWS, rows.stop - rows.start)
        where = slice(rows.start + top, rows.start + bottom)
        end = top if rows == columns else columns.stop - columns.start
        for left in range(0, end, LARGE_STRIP_COLUMNS):
            right = min(left + LARGE_STRIP_COLUMNS, end)
            yield where, slice(columns.start + left, columns.start + right), tile[top:bottom, left:right]
        if rows == columns:
            yield where, where, tile[top:bottom, top:bottom]


@dataclass(frozen=True)
class GramTiles(TileSource):
    """Tiles of diag(c) K diag(c), Kᵢⱼ = k(xᵢ, xⱼ), computed from the rows at each use."""

    kernel: Kernel
    rows: Rows
    scale: Vectors | None = None
    """c (n, 1), the square roots of the sample weights; None means ones."""

    def fill(self, meter: Meter, out: NDArray[Any], rows: slice, columns: slice) -> None:
        for r, c, left, right in self.blocks(meter, rows, columns):
            block = out[r.start - rows.start : r.stop - rows.start, c.start - columns.start : c.stop - columns.start]
            with meter.time("gram"):
                fill_gram(self.kernel, left, right, block, lower=left is right, origin=(r.start, c.start))
            del left, right  # before the next ones are read
        if self.scale is not None:
            with meter.time("gram"):
                scale_block(out, self.scale, rows, columns)

    def strips(self, meter: Meter, rows: slice, columns: slice, dtype: DTypeLike) -> Iterator[Strip]:
        """See base class. The tile is never formed: its strips stay in cache."""
        for r, c, left, right in self.blocks(meter, rows, columns):
            strips = self.kernel.pieces(left, None if right is left else right, dtype=dtype)
            del left, right  # the kernel releases them before the next ones are read
            for where, across, strip in _located(r, c, strips):
                scale_block(strip, self.scale, where, across)
                if self.scale is not None and where == across:
                    mirror_lower(strip)  # (kᵢⱼ cᵢ) cⱼ and (kⱼᵢ cⱼ) cᵢ are rounded differently
                yield where, across, strip
            del strips

    def blocks(self, meter: Meter, rows: slice, columns: slice) -> Iterator[tuple[slice, slice, Block, Block]]:
        """Blocks of rows of a tile with their ranges, on or below the diagonal; on it both blocks are the same."""
        left_ranges = self.rows.row_ranges(rows)
        right_ranges = left_ranges if rows == columns else self.rows.row_ranges(columns)
        held, left, right = None, None, None  # released before the next block is read
        for k, c in enumerate(right_ranges):
            right = None
            right = self._read(meter, c)
            for r in left_ranges[k:] if right_ranges is left_ranges else left_ranges:
                if r is c:
                    left = right
                elif r is not held:
                    left = None
                    left = self._read(meter, r)
                held = r
                yield r, c, left, right

    def _read(self, meter: Meter, rows: slice) -> Block:
        with meter.time("read"):
            block = self.rows.read(rows.start, rows.stop)
        meter.bytes_read += 0 if self.rows.is_in_memory else n_bytes(block)
        return block


def _located(rows: slice, columns: slice, strips: Iterator[Strip]) -> Iterator[Strip]:
    """Strips of a block with their places in the matrix."""
    with located(rows, columns):
        for r, c, strip in strips:
            yield shifted(r, rows.start), shifted(c, columns.start), strip


@dataclass(frozen=True)
class MatrixTiles(TileSource):
    """Tiles of a symmetric matrix given whole as rows (a precomputed Gram matrix)."""

    rows: Rows
    scale: Vectors | None = None

    def fill(self, meter: Meter, out: NDArray[Any], rows: slice, columns: slice) -> None:
        with meter.time("read"):
            out[...] = dense(self.rows.read(rows.start, rows.stop, columns))
            scale_block(out, self.scale, rows, columns)
        if not self.rows.is_in_memory:
            meter.bytes_read += out.size * int(np.dtype(self.rows.dtype).itemsize)


@dataclass(frozen=True)
class FormedTiles(TileSource):
    """Tiles of a matrix that has been formed: the sum of its parts in tiles of one grid, less v vᵀ."""

    parts: tuple[TiledMatrix | MemoryMatrix, ...]
    outer: ChunkedArray | None = None
    """v, of shape (n, 1); None: zeros."""

    def fill(self, meter: Meter, out: NDArray[Any], rows: slice, columns: slice) -> None:
        grid = self.parts[0].grid
        i, j = rows.start // grid.tile, columns.start // grid.tile
        with meter.time("read"):
            meter.bytes_read += self.parts[0].read_tile(i, j, out)
            other = np.empty_like(out) if len(self.parts) > 1 else out
            for part in self.parts[1:]:
                meter.bytes_read += part.read_tile(i, j, other)
                out += other
        if self.outer is not None:
            blas.gemm(
                out,
                read_range(self.outer, rows),
                read_range(self.outer, columns),
                transpose_b=True,
                alpha=-1.0,
                beta=1.0,
            )


def fill_gram(
    kernel: Kernel,
    left: Block,
    right: Block,
    out: NDArray[Any],
    *,
    lower: bool = False,
    origin: tuple[int, int] | None = (0, 0),
) -> None:
    """Write k(left, right) to `out`, in blocks that keep the kernel's temporaries small.

    Where both are the same rows, the blocks on the diagonal are symmetric.

    Parameters
    ----------
    kernel : Kernel
    left, right : ndarray or CSR array of shape (m, d) and (n, d)
    out : ndarray of shape (m, n)
    lower : bool
        left and right are the same rows; blocks above the diagonal are left as they are.
    origin : (int, int), optional
        Number of the first row and of the first column, for the message of a kernel function that fails; None: rows are
        not consecutive in a matrix.
    """
    kernel, tops = kernel.resolved(left.shape[1]), kernel_blocks(left)
    for k, rows in enumerate(tops):
        for columns in tops[: k + 1] if lower else kernel_blocks(right):
            pair = as_row_pair(left[rows], None if (lower or left is right) and rows == columns else right[columns])
            try:
                kernel.write_block(*pair, out[rows, columns])
            except (NotFiniteError, KernelFunctionError) as error:
                if origin is None:
                    raise
                raise located_error(error, shifted(rows, origin[0]), shifted(columns, origin[1])) from error.__cause__


def kernel_blocks(block: Block) -> list[slice]:
    """Ranges of rows with which a kernel is called."""
    n = block.shape[0]
    cuts = [*range(0, n, KERNEL_BLOCK), n]
    if sp.issparse(block):
        cuts = cuts_by_entries(block.indptr, SPARSE_STRIP_ENTRIES, KERNEL_BLOCK)
    return list(map(slice, cuts, cuts[1:]))


def shifted(rows: slice, by: int) -> slice:
    """Range of rows, shifted by a number of rows."""
    return slice(rows.start + by, rows.stop + by)


@contextmanager
def located(rows: slice, columns: slice) -> Iterator[None]:
    """Say in an error of the user's kernel function which rows it had, and number a row as in the whole matrix."""
    try:
        yield
    except (NotFiniteError, KernelFunctionError) as error:
        raise located_error(error, rows, columns) from error.__cause__


def located_error(
    error: NotFiniteError | KernelFunctionError, rows: slice, columns: slice
) -> NotFiniteError | KernelFunctionError:
    """The error with the numbers that its rows and columns have in the whole matrix."""
    if isinstance(error, NotFiniteError):
        return NotFiniteError(error.message, None if error.row is None else rows.start + error.row)
    return KernelFunctionError(
        f"{error} (in the block of rows {rows.start} to {rows.stop - 1} and {columns.start} to {columns.stop - 1})"
    )


def scale_block(out: NDArray[Any], scale: Vectors | None, rows: slice, columns: slice) -> None:
    """Multiply a block (float64 or float32) by the scale of its rows and of its columns."""
    if scale is not None:
        out *= read_range(scale, rows)
        out *= read_range(scale, columns).T


def read_range(vectors: Vectors, rows: slice) -> NDArray[np.float64]:
    """Copy consecutive rows of tall vectors.

    Returns
    -------
    ndarray of shape (len(rows), m)
    """
    if isinstance(vectors, np.ndarray):
        return vectors[rows].copy()
    height = vectors.chunks[0]
    out = np.empty((rows.stop - rows.start, vectors.shape[1]))
    buffer = np.empty(vectors.chunks)
    for k in range(rows.start // height, -(-rows.stop // height)):
        vectors.read((k, 0), buffer)
        start, stop = max(rows.start, k * height), min(rows.stop, (k + 1) * height)
        out[start - rows.start : stop - rows.start] = buffer[start - k * height : stop - k * height]
    return out


def tile_diagonal(meter: Meter, source: TileSource, grid: TileGrid, i: int) -> NDArray[np.float64]:
    """Task: diagonal of tile (i, i), of shape (len(rows),)."""
    tile = np.empty((grid.height(i), grid.height(i)))
    source.fill(meter, tile, grid.rows(i), grid.rows(i))
    return tile.diagonal().copy()


def clear_upper(tile: NDArray[Any]) -> None:
    """Set what is above the diagonal of a square tile to zero."""
    for r in range(tile.shape[0]):
        tile[r, r + 1 :] = 0.0


def store_tiles(meter: Meter, source: TileSource, matrix: TiledMatrix, i: int, j: int) -> None:
    """Task: form one tile and keep it."""
    grid: TileGrid = matrix.grid
    tile = np.empty((grid.height(i), grid.height(j)), matrix.dtype)
    source.fill(meter, tile, grid.rows(i), grid.rows(j))
    if i == j:
        mirror_lower(tile)
    with meter.time("write"):
        meter.bytes_written += matrix.write_tile(i, j, tile)


@dataclass(frozen=True)
class BlockSymmetry:
    """A block beside its mirror image."""

    largest: float
    """Sums of the absolute values of both."""
    gap: float
    """Largest absolute difference."""
    row: int
    column: int


def symmetry_tasks(rows: Rows, grid: TileGrid) -> list[Task]:
    """Tasks whose values are the BlockSymmetry of every tile."""
    return [Task(f"symmetry-{i}-{j}", block_symmetry, (rows, grid, i, j)) for i, j in grid.lower()]


def block_symmetry(meter: Meter, rows: Rows, grid: TileGrid, i: int, j: int) -> BlockSymmetry:
    """Task: compare one block with its mirror image."""
    here, there = grid.rows(i), grid.rows(j)
    with meter.time("read"):
        block = dense(rows.read(here.start, here.stop, there))
        mirror = dense(rows.read(there.start, there.stop, here)).T
    gaps = np.abs(block - mirror)
    r, c = np.unravel_index(int(np.argmax(gaps)), gaps.shape)
    largest = max(float(np.abs(block).max()), float(np.abs(mirror).max()))
    return BlockSymmetry(largest, float(gaps[r, c]), here.start + int(r), there.start + int(c))


def refuse_asymmetry(blocks: list[BlockSymmetry]) -> None:
    """Compare all gaps with the largest entry of the whole matrix, as in memory.

    Raises
    ------
    InputError
        Naming the entry that differs most.
    """
    largest, worst = max(b.largest for b in blocks), max(blocks, key=lambda b: b.gap)
    if worst.gap > SYMMETRY_TOLERANCE * largest:
        raise InputError(
            f"the precomputed Gram matrix is not symmetric: entry ({worst.row}, {worst.column}) and its mirror image "
            f"differ by {worst.gap:.3g}, where the largest entry is {largest:.3g}; use (K + K.T) / 2 if that is meant"
        )


class ResidentRows(Rows):
    """Rows that every process reads once and then keeps in memory.

    Parameters
    ----------
    rows : Rows
        Shared rows.
    run : str
        Name under which they are kept.
    """

    is_shared = True
    is_in_memory = True

    def __init__(self, rows: Rows, run: str) -> None:
        self.rows, self._run = rows, run
        self.is_sparse = rows.is_sparse

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape

    @property
    def dtype(self) -> Any:
        return self.rows.dtype

    @property
    def pointers(self) -> NDArray[Any] | None:
        return self.rows.pointers

    @property
    def index_bytes(self) -> int:
        return self.rows.index_bytes

    def read(self, start: int, stop: int, columns: slice = slice(None)) -> Any:
        return self._kept().read(start, stop, columns)

    def row_ranges(self, rows: slice, max_entries: int | None = None) -> list[slice]:
        return self._kept().row_ranges(rows, max_entries)

    def _kept(self) -> MemoryRows:
        return resident.get_or_create(self._run, "rows", lambda: MemoryRows(self.rows.read(0, self.rows.shape[0])))
