"""Where the tiles of a symmetric matrix come from: computed from rows of data, or read."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dkrr.cost import Cost
from dkrr.errors import KernelFunctionError, NotFiniteError
from dkrr.kernels import Kernel
from dkrr.kernels.base import EntryCost
from dkrr.kernels.blocks import PIECE_COLUMNS, PIECE_ROWS, mirror_lower
from dkrr.rows import Rows
from dkrr.rows.sources import Block, dense, n_bytes
from dkrr.runtime.task import Meter
from dkrr.tiles import ChunkedArray, MemoryMatrix, TiledMatrix, TileGrid

KERNEL_BLOCK = 1024
"""Rows and columns of the blocks in which a kernel is called: bounds the kernel's own temporaries."""


Piece = tuple[slice, slice, NDArray[Any]]
Vectors = ChunkedArray | NDArray[np.float64]
"""Tall vectors, kept in chunks of rows in a store, or in memory."""


class TileSource(ABC):
    """Gives any tile on or below the diagonal of a symmetric matrix; travels to workers by name."""

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

    def pieces(self, meter: Meter, rows: slice, columns: slice, dtype: DTypeLike) -> Iterator[Piece]:
        """Yield a tile in pieces for work that uses each at once; on the diagonal only what is on or below it.

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
            Ranges within the matrix. Where they are equal, the piece is on the diagonal, whole and symmetric.
        piece : ndarray of shape (len(rows), len(columns))
            Overwritten by the next one.
        """
        tile = np.empty((rows.stop - rows.start, columns.stop - columns.start), dtype)
        self.fill(meter, tile, rows, columns)
        if rows == columns:
            mirror_squares(tile)
        yield from cut_tile(tile, rows, columns)


def mirror_squares(tile: NDArray[Any]) -> None:
    """Make the squares symmetric that `cut_tile` cuts from the diagonal of a tile, from their lower triangles."""
    for top in range(0, tile.shape[0], PIECE_ROWS):
        square = slice(top, min(top + PIECE_ROWS, tile.shape[0]))
        mirror_lower(tile[square, square])


def cut_tile(tile: NDArray[Any], rows: slice, columns: slice) -> Iterator[Piece]:
    """Yield a tile that is in memory in pieces; of one on the diagonal what is right of its squares is not read.

    Parameters
    ----------
    tile : ndarray of shape (len(rows), len(columns))
        On the diagonal with symmetric squares (`mirror_squares`).
    rows, columns : slice
        Ranges within the matrix.
    """
    for top in range(0, rows.stop - rows.start, PIECE_ROWS):
        bottom = min(top + PIECE_ROWS, rows.stop - rows.start)
        where = slice(rows.start + top, rows.start + bottom)
        end = top if rows == columns else columns.stop - columns.start
        for left in range(0, end, PIECE_COLUMNS):
            right = min(left + PIECE_COLUMNS, end)
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
        """See base class."""
        with meter.time("read"):
            left = self.rows.read(rows.start, rows.stop)
            right = left if rows == columns else self.rows.read(columns.start, columns.stop)
        if not self.rows.is_in_memory:
            meter.bytes_read += n_bytes(left) + (0 if right is left else n_bytes(right))
        with meter.time("gram"):
            fill_gram(self.kernel, left, right, out, lower=rows == columns, origin=(rows.start, columns.start))
            scale_block(out, self.scale, rows, columns)

    def pieces(self, meter: Meter, rows: slice, columns: slice, dtype: DTypeLike) -> Iterator[Piece]:
        """See base class. The tile is never formed: its pieces stay in cache."""
        with meter.time("read"):
            left = self.rows.read(rows.start, rows.stop)
            right = None if rows == columns else self.rows.read(columns.start, columns.stop)
        if not self.rows.is_in_memory:
            meter.bytes_read += n_bytes(left) + (0 if right is None else n_bytes(right))
        for r, c, piece in self._located(rows, columns, self.kernel.pieces(left, right, dtype=dtype)):
            where = slice(rows.start + r.start, rows.start + r.stop)
            across = slice(columns.start + c.start, columns.start + c.stop)
            scale_block(piece, self.scale, where, across)
            if self.scale is not None and where == across:
                mirror_lower(piece)  # (kᵢⱼ cᵢ) cⱼ and (kⱼᵢ cⱼ) cᵢ are rounded differently
            yield where, across, piece

    @staticmethod
    def _located(rows: slice, columns: slice, pieces: Iterator[Piece]) -> Iterator[Piece]:
        with located(rows, columns):
            yield from pieces


@dataclass(frozen=True)
class MatrixTiles(TileSource):
    """Tiles of a symmetric matrix given whole as rows (a precomputed Gram matrix)."""

    rows: Rows
    scale: Vectors | None = None

    def fill(self, meter: Meter, out: NDArray[Any], rows: slice, columns: slice) -> None:
        """See base class."""
        with meter.time("read"):
            out[...] = dense(self.rows.read(rows.start, rows.stop, columns))
            scale_block(out, self.scale, rows, columns)
        if not self.rows.is_in_memory:
            meter.bytes_read += out.size * int(np.dtype(self.rows.dtype).itemsize)


@dataclass(frozen=True)
class SummedTiles(TileSource):
    """Sum of matrices in tiles of the same grid (parts of a normal matrix, or one stored Gram matrix)."""

    parts: tuple[TiledMatrix | MemoryMatrix, ...]

    def fill(self, meter: Meter, out: NDArray[Any], rows: slice, columns: slice) -> None:
        """See base class."""
        grid = self.parts[0].grid
        i, j = rows.start // grid.tile, columns.start // grid.tile
        with meter.time("read"):
            meter.bytes_read += self.parts[0].read_tile(i, j, out)
            other = np.empty_like(out) if len(self.parts) > 1 else out
            for part in self.parts[1:]:
                meter.bytes_read += part.read_tile(i, j, other)
                out += other


def fill_gram(
    kernel: Kernel,
    left: Block,
    right: Block,
    out: NDArray[Any],
    *,
    lower: bool = False,
    origin: tuple[int, int] = (0, 0),
) -> None:
    """Write k(left, right) to `out`, in blocks that keep the kernel's temporaries small.

    Parameters
    ----------
    kernel : Kernel
    left, right : ndarray or CSR array of shape (m, d) and (n, d)
    out : ndarray of shape (m, n)
    lower : bool
        left and right are the same rows; blocks above the diagonal are left as they are.
    origin : (int, int)
        Number of the first row and of the first column, for the message of a kernel function that fails.
    """
    m, n = out.shape
    for r in range(0, m, KERNEL_BLOCK):
        rows = slice(r, min(r + KERNEL_BLOCK, m))
        for c in range(0, rows.stop if lower else n, KERNEL_BLOCK):
            columns = slice(c, min(c + KERNEL_BLOCK, n))
            with located(_shifted(rows, origin[0]), _shifted(columns, origin[1])):
                if lower and r == c:
                    kernel(left[rows], out=out[rows, columns])
                else:
                    kernel(left[rows], right[columns], out=out[rows, columns])


def _shifted(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by)


@contextmanager
def located(rows: slice, columns: slice) -> Iterator[None]:
    """Say in an error of the user's kernel function which rows it had, and number a row as in the whole matrix."""
    try:
        yield
    except NotFiniteError as error:
        raise NotFiniteError(error.message, None if error.row is None else rows.start + error.row) from None
    except KernelFunctionError as error:
        raise KernelFunctionError(
            f"{error} (in the block of rows {rows.start} to {rows.stop - 1} and {columns.start} to {columns.stop - 1})"
        ) from error.__cause__


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


def gram_cost(entry: EntryCost, n_entries: float) -> Cost:
    """Cost of `n_entries` entries of a Gram matrix, of which symmetry has been used already."""
    return Cost(gemm_flops=entry.gemm_flops * n_entries, element_seconds=entry.element_seconds * n_entries)


def gram_workspace_bytes(
    kernel: Kernel, grid_tile: int, row_bytes: int, n_features: int, *, is_sparse: bool = False
) -> int:
    """Most bytes that forming one tile needs besides the tile: both blocks of rows and the kernel's temporaries."""
    block = min(KERNEL_BLOCK, grid_tile)
    temporary = kernel.workspace_bytes(block, block, n_features, row_bytes if is_sparse else None)
    cut = 2 * block * row_bytes if is_sparse else 0  # dense blocks are views
    return 2 * grid_tile * row_bytes + cut + temporary


def store_tiles(meter: Meter, source: TileSource, matrix: TiledMatrix, i: int, j: int) -> None:
    """Task: form one tile and keep it."""
    grid: TileGrid = matrix.grid
    tile = np.empty((grid.height(i), grid.height(j)), matrix.dtype)
    source.fill(meter, tile, grid.rows(i), grid.rows(j))
    if i == j:
        mirror_lower(tile)
    with meter.time("write"):
        meter.bytes_written += matrix.write_tile(i, j, tile)
