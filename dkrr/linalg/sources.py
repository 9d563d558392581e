"""Where the tiles and columns of a symmetric matrix come from: computed from rows of data, or read; in float32 too.

A matrix A is rounded as P A P with powers of two P that bring its diagonal near 1. That changes no digit, and no scale
of the rows or of their weights leaves the range of float32, since |a_ij| ≤ √(a_ii a_jj).

Rounding the entries and factoring in float32 change P A P by about √n units of rounding. Against its smallest
eigenvalue that is the `rounding_ratio`: far below 1 the factor is an excellent preconditioner, near 1 the factorisation
breaks down. It is known before the work, except for what the kernel matrix itself adds to the smallest eigenvalue.

References
----------
N. J. Higham, S. Pranesh, "Exploiting lower precision arithmetic in solving symmetric positive definite linear systems
and least squares problems", SIAM J. Sci. Comput. 43 (2021).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, log, sqrt
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from dkrr.cluster import Meter, Task
from dkrr.data import Rows
from dkrr.data.rows import SPARSE_STRIP_ENTRIES, Block, cuts_by_entries, dense, n_bytes
from dkrr.errors import InputError, KernelFunctionError, NotFiniteError
from dkrr.kernels import Kernel
from dkrr.kernels.blocks import PIECE_COLUMNS, PIECE_ROWS, SYMMETRY_TOLERANCE, mirror_lower
from dkrr.store import ChunkedArray, MemoryMatrix, TiledMatrix, TileGrid

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
        for r, c, left, right in self.parts(meter, rows, columns):
            part = out[r.start - rows.start : r.stop - rows.start, c.start - columns.start : c.stop - columns.start]
            with meter.time("gram"):
                fill_gram(self.kernel, left, right, part, lower=left is right, origin=(r.start, c.start))
            del left, right  # before the next ones are read
        with meter.time("gram"):
            scale_block(out, self.scale, rows, columns)

    def pieces(self, meter: Meter, rows: slice, columns: slice, dtype: DTypeLike) -> Iterator[Piece]:
        """See base class. The tile is never formed: its pieces stay in cache."""
        for r, c, left, right in self.parts(meter, rows, columns):
            pieces = self.kernel.pieces(left, None if right is left else right, dtype=dtype)
            del left, right  # the kernel releases them before the next ones are read
            for where, across, piece in _located(r, c, pieces):
                scale_block(piece, self.scale, where, across)
                if self.scale is not None and where == across:
                    mirror_lower(piece)  # (kᵢⱼ cᵢ) cⱼ and (kⱼᵢ cⱼ) cᵢ are rounded differently
                yield where, across, piece
            del pieces

    def parts(self, meter: Meter, rows: slice, columns: slice) -> Iterator[tuple[slice, slice, Block, Block]]:
        """Parts of a tile with their rows, on or below the diagonal; on it both blocks are the same."""
        left_parts = self.rows.row_ranges(rows)
        right_parts = left_parts if rows == columns else self.rows.row_ranges(columns)
        held, left, right = None, None, None  # released before the next block is read
        for k, c in enumerate(right_parts):
            right = None
            right = self._read(meter, c)
            for r in left_parts[k:] if right_parts is left_parts else left_parts:
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


def _located(rows: slice, columns: slice, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Pieces of a block with their places in the matrix."""
    with located(rows, columns):
        for r, c, piece in pieces:
            yield shifted(r, rows.start), shifted(c, columns.start), piece


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
class SummedTiles(TileSource):
    """Sum of matrices in tiles of the same grid (parts of a normal matrix, or one stored Gram matrix)."""

    parts: tuple[TiledMatrix | MemoryMatrix, ...]

    def fill(self, meter: Meter, out: NDArray[Any], rows: slice, columns: slice) -> None:
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
    tops = kernel_blocks(left)
    for k, rows in enumerate(tops):
        for columns in tops[: k + 1] if lower else kernel_blocks(right):
            with located(shifted(rows, origin[0]), shifted(columns, origin[1])):
                if lower and rows == columns:
                    kernel(left[rows], out=out[rows, columns])
                else:
                    kernel(left[rows], right[columns], out=out[rows, columns])


def call_in_blocks(kernel: Kernel, left: Block, right: Block, out: NDArray[Any]) -> None:
    """Write k(left, right) to `out` in the blocks of `fill_gram`, for rows that are not consecutive in a matrix."""
    for rows in kernel_blocks(left):
        for columns in kernel_blocks(right):
            if left is right and rows == columns:
                kernel(left[rows], out=out[rows, columns])
            else:
                kernel(left[rows], right[columns], out=out[rows, columns])


def kernel_blocks(block: Block) -> list[slice]:
    """Ranges of rows with which a kernel is called."""
    n = block.shape[0]
    cuts = [*range(0, n, KERNEL_BLOCK), n]
    if sp.issparse(block):
        cuts = cuts_by_entries(block.indptr, SPARSE_STRIP_ENTRIES, KERNEL_BLOCK)
    return [slice(a, b) for a, b in pairwise(cuts)]


def shifted(rows: slice, by: int) -> slice:
    """Range of rows, shifted by a number of rows."""
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


def gram_workspace_bytes(
    kernel: Kernel, grid_tile: int, row_bytes: int, n_features: int, csr_bytes: int | None = None
) -> int:
    """Most bytes that forming one tile needs besides the tile: both blocks of rows and the kernel's temporaries.

    Parameters
    ----------
    kernel : Kernel
    grid_tile : int
    row_bytes : int
        Bytes of a row of what is read of a tile's rows at once.
    n_features : int
    csr_bytes : int, optional
        Bytes of a CSR row of the blocks with which the kernel is called; None: rows are dense.
    """
    return 2 * grid_tile * row_bytes + gram_block_bytes(kernel, grid_tile, n_features, csr_bytes)


def gram_block_bytes(kernel: Kernel, n: int, n_features: int, csr_bytes: int | None = None) -> int:
    """Memory of `fill_gram` for n rows: the kernel's temporaries, and blocks that are cut (dense ones are views)."""
    block = min(n, KERNEL_BLOCK)
    return 2 * block * (csr_bytes or 0) + kernel.workspace_bytes(block, block, n_features, csr_bytes)


def store_tiles(meter: Meter, source: TileSource, matrix: TiledMatrix, i: int, j: int) -> None:
    """Task: form one tile and keep it."""
    grid: TileGrid = matrix.grid
    tile = np.empty((grid.height(i), grid.height(j)), matrix.dtype)
    source.fill(meter, tile, grid.rows(i), grid.rows(j))
    if i == j:
        mirror_lower(tile)
    with meter.time("write"):
        meter.bytes_written += matrix.write_tile(i, j, tile)


Array = NDArray[np.float64]


class ColumnSource(ABC):
    """Gives the diagonal and any columns of a symmetric matrix; travels to workers."""

    @property
    @abstractmethod
    def n(self) -> int:
        """Rows (and columns) of the matrix."""

    @abstractmethod
    def diagonal(self, rows: slice) -> Array:
        """Part of the diagonal, of shape (len(rows),)."""

    @abstractmethod
    def take(self, index: NDArray[np.intp]) -> Any:
        """Handle of some columns (rows of X, or their numbers), passed to `block` and `among` and sent to workers."""

    @abstractmethod
    def block(self, rows: slice, taken: Any) -> Array:
        """Rows of taken columns, of shape (len(rows), number of columns)."""

    @abstractmethod
    def among(self, left: Any, right: Any) -> Array:
        """Entries where taken rows and taken columns meet."""


@dataclass(frozen=True)
class GramColumns(ColumnSource):
    """Columns of a Gram matrix Kᵢⱼ = k(xᵢ, xⱼ), computed from the rows."""

    kernel: Kernel
    rows: Rows

    @property
    def n(self) -> int:
        return self.rows.shape[0]

    def diagonal(self, rows: slice) -> Array:
        out = np.empty(rows.stop - rows.start)
        for where, block in self._blocks(rows):
            with located(where, where):
                out[where.start - rows.start : where.stop - rows.start] = self.kernel.diagonal(block)
        return out

    def _blocks(self, rows: slice) -> Iterator[tuple[slice, Block]]:
        for part in self.rows.row_ranges(rows):
            yield from self.rows.blocks(part.start, part.stop, KERNEL_BLOCK)

    def take(self, index: NDArray[np.intp]) -> Block:
        """Rows of X."""
        return self.rows.take(index)

    def block(self, rows: slice, taken: Block) -> Array:
        out = np.empty((rows.stop - rows.start, taken.shape[0]))
        for where, block in self._blocks(rows):
            call_in_blocks(self.kernel, block, taken, out[where.start - rows.start : where.stop - rows.start])
        return out

    def among(self, left: Block, right: Block) -> Array:
        out = np.empty((left.shape[0], right.shape[0]))
        call_in_blocks(self.kernel, left, right, out)
        return out


@dataclass(frozen=True)
class MatrixColumns(ColumnSource):
    """Columns of a symmetric matrix given whole as rows; being symmetric, its rows are its columns."""

    rows: Rows

    @property
    def n(self) -> int:
        return self.rows.shape[0]

    def diagonal(self, rows: slice) -> Array:
        return np.array([_row(self.rows, i, slice(i, i + 1))[0] for i in range(rows.start, rows.stop)])

    def take(self, index: NDArray[np.intp]) -> NDArray[np.intp]:
        """Their numbers."""
        return index

    def block(self, rows: slice, taken: NDArray[np.intp]) -> Array:
        return np.ascontiguousarray(np.array([_row(self.rows, int(i), rows) for i in taken]).T)

    def among(self, left: NDArray[np.intp], right: NDArray[np.intp]) -> Array:
        entries = [_row(self.rows, int(i), slice(0, self.n))[right] for i in left]
        return np.asarray(entries, np.float64).reshape(len(left), len(right))


@dataclass(frozen=True)
class DividedColumns(ColumnSource):
    """Columns of A / c, c a power of two: no digit of them is another."""

    columns: ColumnSource
    """Columns of A."""
    unit: float
    """c."""

    @property
    def n(self) -> int:
        return self.columns.n

    def diagonal(self, rows: slice) -> Array:
        return self._divided(self.columns.diagonal(rows))

    def take(self, index: NDArray[np.intp]) -> Any:
        """Handle of these columns of A."""
        return self.columns.take(index)

    def block(self, rows: slice, taken: Any) -> Array:
        return self._divided(self.columns.block(rows, taken))

    def among(self, left: Any, right: Any) -> Array:
        return self._divided(self.columns.among(left, right))

    def _divided(self, entries: Array) -> Array:
        if self.unit == 1.0:
            return entries
        entries *= 1.0 / self.unit
        return entries


def _row(rows: Rows, i: int, columns: slice) -> Array:
    row: Array = np.asarray(dense(rows.read(i, i + 1, columns)), np.float64)[0]
    return row


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


FLOAT32_ROUNDING = 2.0**-24
FLOAT64_ROUNDING = 2.0**-53
MAX_ROUNDING_RATIO = 1e-2
"""Largest rounding ratio with which a factor in float32 is tried. Measured with RBF and Matérn kernels of 2 and 16
columns, 3,000 and 8,000 rows: up to 13 iterations at 5e-3, 14 to 25 at 3e-2, and a breakdown from 5e-2 on."""
ITERATIONS_RATIO = 20.0
"""Reduction of the residual by an iteration, divided by the rounding ratio (fits the same measurements)."""


def rounding_ratio(n: int, relative_shift: float) -> float:
    """Rounding of an n × n matrix with a unit diagonal in float32, divided by its smallest eigenvalue at least.

    Parameters
    ----------
    n : int
    relative_shift : float
        Smallest diagonal shift, divided by the diagonal entry with which it is added; 0 gives infinity.
    """
    return FLOAT32_ROUNDING * sqrt(n) / relative_shift if relative_shift > 0 else inf


def least_relative_shift(diagonal: Array, shift: Array) -> float:
    """Smallest s_i / (a_ii + s_i), for `rounding_ratio`.

    Parameters
    ----------
    diagonal, shift : ndarray of shape (n,)
        Diagonal of A, and s.
    """
    total = diagonal + shift
    return float((shift / np.where(total > 0, total, 1.0)).min()) if np.isfinite(total).all() else 0.0


def refining_iterations(ratio: float, tol: float) -> int:
    """Iterations that a factor in float32 leaves to do, expected for a rounding ratio."""
    return ceil(log(tol) / log(min(ITERATIONS_RATIO * max(ratio, FLOAT32_ROUNDING), 0.5)))


def rounding_scale(diagonal: Array) -> Array | None:
    """P, of shape (n, 1): powers of two that bring the diagonal of P A P to between 1/2 and 2; None if all are 1.

    Parameters
    ----------
    diagonal : ndarray of shape (n,)
        Positive and finite.
    """
    half = np.frexp(diagonal)[1] // 2
    return np.ldexp(1.0, -half)[:, None] if half.any() else None


@dataclass(frozen=True)
class RoundedTiles(TileSource):
    """Tiles of P A P in float32, computed in float64 and then rounded."""

    source: TileSource
    """A."""
    scale: Vectors
    """P, of shape (n, 1)."""

    def fill(self, meter: Meter, out: NDArray[Any], rows: slice, columns: slice) -> None:
        for r, c, piece in self.pieces(meter, rows, columns, out.dtype):
            out[r.start - rows.start : r.stop - rows.start, c.start - columns.start : c.stop - columns.start] = piece

    def pieces(self, meter: Meter, rows: slice, columns: slice, dtype: DTypeLike) -> Iterator[Piece]:
        for r, c, piece in self.source.pieces(meter, rows, columns, np.float64):
            scaled = piece * read_range(self.scale, r)
            scaled *= read_range(self.scale, c).T
            yield r, c, scaled.astype(dtype, copy=False)
