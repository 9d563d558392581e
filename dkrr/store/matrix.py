"""The lower triangle of a symmetric matrix in tiles: which rows a tile has, and its entries in a store or in memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dkrr.blas import Triangle
from dkrr.store.chunks import ChunkedArray
from dkrr.store.places import place_at


@dataclass(frozen=True)
class TileGrid:
    """Partition of an n × n matrix into square tiles of `tile` rows, each made of panels of `panel` columns.

    A panel (`tile` × `panel`) is stored, read and written as a whole; one task computes a tile. The last tile and
    the last panel may be smaller.
    """

    n: int
    """Rows (and columns) of the matrix."""
    tile: int
    """Rows (and columns) of a tile."""
    panel: int
    """Columns of a panel; divides `tile`."""

    def __post_init__(self) -> None:
        if not (self.n >= 1 and 1 <= self.panel <= self.tile and self.tile % self.panel == 0):
            raise ValueError(f"no grid: n={self.n}, tile={self.tile}, panel={self.panel}")

    @property
    def n_tiles(self) -> int:
        """Tiles along one side."""
        return -(-self.n // self.tile)

    def rows(self, i: int) -> slice:
        """Rows (or columns) of the matrix that tile row `i` covers."""
        return slice(i * self.tile, min(self.n, (i + 1) * self.tile))

    def height(self, i: int) -> int:
        """Number of rows of tile row `i`."""
        top = i * self.tile
        return min(self.n, top + self.tile) - top

    def panels(self, j: int) -> range:
        """Numbers of the panels that make up tile column `j`."""
        per_tile = self.tile // self.panel
        return range(j * per_tile, j * per_tile + -(-self.height(j) // self.panel))

    def columns(self, p: int) -> slice:
        """Columns of the matrix that panel `p` covers."""
        return slice(p * self.panel, min(self.n, (p + 1) * self.panel))

    def tile_of(self, p: int) -> int:
        """Tile column that panel `p` lies in."""
        return p * self.panel // self.tile

    def lower(self) -> Iterator[tuple[int, int]]:
        """All (i, j) with i ≥ j, column by column: the order of a left-looking factorisation."""
        return ((i, j) for j in range(self.n_tiles) for i in range(j, self.n_tiles))


CACHE_LINE, PAGE = 64, 4096
"""Bytes. Lines that are whole pages apart compete for the same few places of a cache."""


def padded_width(width: int, itemsize: int) -> int:
    """Entries from the start of one row to that of the next: one line more where they would be whole pages apart.

    Products into tiles of 512 or 2,048 columns are then 1 to 3 % (AVX-512) or 5 % (AVX2) faster.
    """
    return width + (CACHE_LINE // itemsize if width * itemsize % PAGE == 0 else 0)


def empty_tile(height: int, width: int, dtype: DTypeLike) -> NDArray[Any]:
    """Uninitialised array of this shape, a view of one with padded rows."""
    return np.empty((height, padded_width(width, np.dtype(dtype).itemsize)), dtype)[:, :width]


def shape_of_part(first: int, n: int, tile: int) -> tuple[int, int]:
    """Shape of the array with the rows from `first` on of a matrix of n rows.

    The first array, and one of whole tile rows, has chunks where the matrix has them, and the shape of this. Another
    one has rows of a single tile row, and no other rows of chunks.
    """
    return (n, n) if first == 0 or first % tile == n % tile == 0 else (n - first, n)


class Piece(NamedTuple):
    """Rows of a tile row that lie in one array."""

    array: ChunkedArray
    chunk_row: int
    """Row of the array's chunks that has them, at its top."""
    rows: slice
    """Which rows of the tile row they are."""

    def read(self, p: int, out: NDArray[Any]) -> int:
        """Read these rows of panel `p` to where they belong in it, and return the number of bytes read."""
        array, own = self.array, out[self.rows]
        if p >= array.grid[1]:  # right of what the matrix had when the array was written: above the diagonal
            own.fill(0.0)
            return 0
        chunk = array.mapped((self.chunk_row, p))
        if chunk is None:
            chunk = np.empty(array.chunks, array.dtype)
            array.read((self.chunk_row, p), chunk)
        width = chunk.shape[1]
        own[:, :width], own[:, width:] = chunk[: len(own), : own.shape[1]], 0.0
        return array.chunk_bytes

    def write(self, p: int, panel: NDArray[Any]) -> int:
        """Write these rows of panel `p`, and return the number of bytes written."""
        array = self.array
        return array.write((self.chunk_row, p), panel[self.rows, : array.chunks[1]]) if p < array.grid[1] else 0


@dataclass(frozen=True)
class TiledMatrix:
    """Lower triangle of an n × n matrix; each panel of a tile is one chunk.

    Whether the upper triangle mirrors the lower one (a Gram matrix) or is zero (a Cholesky factor) is the
    owner's knowledge; diagonal tiles are stored as full squares.

    A factor that has grown lies in several arrays, see `shape_of_part`, each with the rows up to the first one of the
    next. So what is added to the last tile row does not have to be written together with the rows that it had.
    """

    arrays: tuple[ChunkedArray, ...]
    grid: TileGrid
    firsts: tuple[int, ...] = (0,)
    """First row of each array."""
    is_stored: ClassVar[bool] = True
    """Reading and writing wait for a disk, and others may read what is written."""

    def pieces(self, i: int) -> list[Piece]:
        """Where the rows of tile row `i` lie, from the top."""
        tile, ends = self.grid.rows(i), (*self.firsts[1:], self.grid.n)
        found = []
        for k in range(bisect_right(self.firsts, tile.start) - 1, bisect_left(self.firsts, tile.stop)):
            first, stop, array = max(self.firsts[k], tile.start), min(ends[k], tile.stop), self.arrays[k]
            chunk_row = i if array.shape[0] == array.shape[1] else 0
            found.append(Piece(array, chunk_row, slice(first - tile.start, stop - tile.start)))
        return found

    def is_apart(self, i: int, top: int) -> bool:
        """Whether the first `top` rows of tile row `i` lie in other arrays than its further ones."""
        return top == 0 or any(piece.rows.start == top for piece in self.pieces(i))

    @property
    def is_remote(self) -> bool:
        """Panels come over a network, into buffers."""
        return place_at(self.arrays[0].url).is_remote

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 or float32."""
        return np.dtype(self.arrays[0].dtype)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one stored panel."""
        return self.arrays[0].chunk_bytes

    def tile_buffer(self, i: int, j: int) -> NDArray[Any]:
        """Uninitialised array to compute tile (i, j) in."""
        return empty_tile(self.grid.height(i), self.grid.height(j), self.dtype)

    def panel_buffer(self) -> NDArray[Any]:
        """Uninitialised buffer that one panel fits in."""
        return np.empty((self.grid.height(0), min(self.grid.panel, self.grid.n)), self.dtype)

    def column_strips(self, tiles: range) -> list[slice]:
        """Columns of these tile columns that are read at once, one after another: those of a panel."""
        return [self.grid.columns(p) for j in tiles for p in self.grid.panels(j)]

    def read_strip(self, i: int, columns: slice, buffer: NDArray[Any], top: int = 0) -> tuple[NDArray[Any], int]:
        """Read tile row `i` in the columns of a strip; see `read_panel`."""
        return self.read_panel(i, columns.start // self.grid.panel, buffer, top)

    def read_panel(self, i: int, p: int, buffer: NDArray[Any], top: int = 0) -> tuple[NDArray[Any], int]:
        """Read panel `p` of tile row `i`, without its first `top` rows.

        Returns
        -------
        panel : ndarray of shape (height of row i − top, width of panel p)
            To be read only: in the system's cache, from a local store, else a view of `buffer`.
        n_bytes : int
            Bytes read.
        """
        pieces, columns = [piece for piece in self.pieces(i) if piece.rows.stop > top], self.grid.columns(p)
        panel = buffer[: self.grid.height(i), : columns.stop - columns.start]
        if len(pieces) > 1:
            return panel[top:], sum(piece.read(p, panel) for piece in pieces)
        array, chunk_row, rows = pieces[0]
        own = slice(max(top - rows.start, 0), rows.stop - rows.start)
        chunk = array.mapped((chunk_row, p))
        if chunk is None:
            chunk = buffer[: array.chunks[0]]
            array.read((chunk_row, p), chunk)
        return chunk[own, : panel.shape[1]], array.chunk_bytes

    def write_panel(self, i: int, p: int, tile: NDArray[Any], top: int = 0) -> int:
        """Write panel `p` of the tile of row `i` that it lies in, and return the number of bytes written.

        Rows above the `top` of the tile row are left out where they lie in other arrays.
        """
        columns = self.grid.columns(p)
        first = self.grid.rows(self.grid.tile_of(p)).start
        panel = tile[:, columns.start - first : columns.stop - first]
        return sum(piece.write(p, panel) for piece in self.pieces(i) if piece.rows.stop > top)

    def write_tile(self, i: int, j: int, tile: NDArray[Any], top: int = 0) -> int:
        """Write all panels of tile (i, j), see `write_panel`, and return the number of bytes written."""
        return sum(self.write_panel(i, p, tile, top) for p in self.grid.panels(j))

    def read_tile(self, i: int, j: int, out: NDArray[Any]) -> int:
        """Read tile (i, j), i ≥ j, into `out` (of any dtype) and return the number of bytes read."""
        buffer = self.panel_buffer()
        first, n_bytes = self.grid.rows(j).start, 0
        for p in self.grid.panels(j):
            columns = self.grid.columns(p)
            panel, n = self.read_panel(i, p, buffer)
            out[:, columns.start - first : columns.stop - first] = panel
            n_bytes += n
        return n_bytes

    def complete_tiles(self) -> set[tuple[int, int]]:
        """Tiles with all their panels."""
        present, found = {array.url: array.present() for array in self.arrays}, set()
        for i in range(self.grid.n_tiles):
            pieces = [(piece.chunk_row, piece.array.grid[1], present[piece.array.url]) for piece in self.pieces(i)]
            for j in range(i + 1):
                panels = self.grid.panels(j)
                if all((row, p) in those for row, n, those in pieces for p in panels if p < n):
                    found.add((i, j))
        return found

    @property
    def is_complete(self) -> bool:
        """Whether all tiles are there."""
        return len(self.complete_tiles()) == len(list(self.grid.lower()))

    def as_dask(self, *, symmetric: bool) -> Any:
        """Lazy n × n Dask array, one block a tile.

        Parameters
        ----------
        symmetric : bool
            True mirrors the lower triangle (a Gram matrix), False leaves zeros above the diagonal (a factor).
        """
        heights = tuple(self.grid.height(i) for i in range(self.grid.n_tiles))

        def block(i: int, j: int) -> NDArray[Any]:
            if i < j and not symmetric:
                return np.zeros((heights[i], heights[j]), self.dtype)
            tile = np.empty((heights[max(i, j)], heights[min(i, j)]), self.dtype)
            self.read_tile(max(i, j), min(i, j), tile)
            return tile if i >= j else tile.T

        import dask.array as da  # it imports what it finds (xarray, sparse): 100 MiB in every worker

        return da.map_blocks(
            lambda block_info: block(*block_info[None]["chunk-location"]),
            chunks=(heights, heights),
            dtype=self.dtype,
            meta=np.empty((0, 0), self.dtype),
        )


@dataclass
class SpareRows:
    """Memory of a whole tile row left of the diagonal, of which a matrix has the first rows, and a grown one more."""

    rows: NDArray[Any]
    n_used: int
    """Rows that some matrix has: another one that has fewer must not write to the rest."""


class MemoryMatrix:
    """Lower triangle of an n × n matrix: what `TiledMatrix` is in a store, for tasks of this process.

    The tiles of a row to the left of the diagonal are one array: all of them are one panel of a product. The squares on
    the diagonal are separate arrays, whose entries above the diagonal are not used.

    Parameters
    ----------
    grid : TileGrid
        Each tile is a single panel.
    dtype : dtype
        float64 or float32.
    """

    is_stored = False
    is_remote = False
    triangles: dict[int, Triangle]
    """Factored squares by tile row, with what solves by them share."""
    _spare: SpareRows | None = None
    """Where the last tile row lies, once it has grown."""

    def __init__(self, grid: TileGrid, dtype: DTypeLike = np.float64) -> None:
        if grid.panel != grid.tile:
            raise ValueError(f"a tile in memory is one panel: tile={grid.tile}, panel={grid.panel}")
        self.grid, self.dtype, self.triangles = grid, np.dtype(dtype), {}
        self._left = self._empty_rows()
        self._squares = [empty_tile(grid.height(i), grid.height(i), self.dtype) for i in range(grid.n_tiles)]

    def _empty_rows(self) -> list[NDArray[Any]]:
        grid = self.grid
        return [empty_tile(grid.height(i), grid.rows(i).start, self.dtype) for i in range(grid.n_tiles)]

    @classmethod
    def of_square(cls, square: NDArray[Any]) -> Self:
        """Matrix of a single tile, which is not copied."""
        matrix = cls.__new__(cls)
        matrix.grid, matrix.dtype = TileGrid(len(square), len(square), len(square)), square.dtype
        matrix.triangles = {}
        matrix._left, matrix._squares = [square[:, :0]], [square]
        return matrix

    def grown(self, grid: TileGrid) -> Self:
        """Matrix of more rows that begins with this one.

        It shares whole tile rows, and the last one too where no other matrix has grown from this one; else that is
        copied to where there is room for a whole one.

        Parameters
        ----------
        grid : TileGrid
            With the tile of this matrix, which a matrix of a single tile is cut into first.

        Returns
        -------
        MemoryMatrix
            Its new rows are uninitialised. This matrix does not change with them.
        """
        if self.grid.tile != grid.tile:
            return self.cut(grid.tile).grown(grid)
        if grid.n < self.grid.n:
            raise ValueError(f"a matrix of {self.grid.n} rows does not grow to {grid.n}")
        whole, top = divmod(self.grid.n, grid.tile)
        new = range(whole, grid.n_tiles)
        squares = [empty_tile(grid.height(i), grid.height(i), self.dtype) for i in new]
        spare = self._spare if self._spare is not None and self._spare.n_used == top > 0 else None
        if top:
            squares[0][:top, :top] = self._squares[whole]
            if spare is None:
                spare = SpareRows(empty_tile(grid.tile, whole * grid.tile, self.dtype), top)
                spare.rows[:top] = self._left[whole]
        left = list[NDArray[Any]]()
        for i in new:
            if i > whole or spare is None:
                spare = SpareRows(empty_tile(grid.tile, i * grid.tile, self.dtype), 0)
            spare.n_used = grid.height(i)
            left.append(spare.rows[: spare.n_used])
        other = self._of(grid, self._left[:whole] + left, self._squares[:whole] + squares)
        other._spare = spare
        other.triangles = {i: Triangle(square, is_shared=True) for i, square in enumerate(self._squares[:whole])}
        return other

    def write_left(self, first: int, values: NDArray[Any]) -> None:
        """Write the rows from `first` on, in the first columns, which are left of the diagonal."""
        for i in range(first // self.grid.tile, self.grid.n_tiles):
            rows = self.grid.rows(i)
            top = max(first - rows.start, 0)
            here = slice(rows.start + top - first, rows.stop - first)
            self._left[i][top:, : values.shape[1]] = values[here]

    def cut(self, tile: int) -> Self:
        """View in tiles of this many rows, of a matrix that has them or is a single tile."""
        if self.grid.tile == tile:
            return self
        if self.grid.n_tiles > 1:
            raise ValueError(f"tiles of {self.grid.tile} rows cannot be cut into those of {tile}")
        grid, (square,) = TileGrid(self.grid.n, tile, tile), self._squares
        rows = [grid.rows(i) for i in range(grid.n_tiles)]
        return self._of(grid, [square[r, : r.start] for r in rows], [square[r, r] for r in rows])

    def with_squares_of(self, other: Self) -> Self:
        """Matrix with the squares on the diagonal of another one, if the first of them is the first one here."""
        if self._squares[0] is not other._squares[0]:
            return self
        matrix = self._of(self.grid, self._left, other._squares)
        matrix.triangles, matrix._spare = self.triangles, self._spare
        return matrix

    def _of(self, grid: TileGrid, left: list[NDArray[Any]], squares: list[NDArray[Any]]) -> Self:
        other = type(self).__new__(type(self))
        other.grid, other.dtype, other.triangles = grid, self.dtype, {}
        other._left, other._squares = left, squares
        return other

    def clear(self) -> None:
        """Set all tiles to zero."""
        for array in (*self._left, *self._squares):
            array.fill(0.0)

    def add(self, other: Self) -> None:
        """Add a matrix of the same grid."""
        for mine, theirs in zip(self._left + self._squares, other._left + other._squares, strict=True):
            mine += theirs

    def factor_buffer(self) -> Self:
        """Empty matrix of the same grid, with the same squares on the diagonal."""
        return self._of(self.grid, self._empty_rows(), self._squares)

    def tile_buffer(self, i: int, j: int) -> NDArray[Any]:
        """View of tile (i, j), i ≥ j."""
        return self._squares[i] if i == j else self._left[i][:, self.grid.rows(j)]

    def panel_buffer(self) -> NDArray[Any]:
        """See TiledMatrix; empty, since nothing is copied."""
        return np.empty((0, 0), self.dtype)

    def column_strips(self, tiles: range) -> list[slice]:
        """See TiledMatrix; all columns at once."""
        return [slice(self.grid.rows(tiles[0]).start, self.grid.rows(tiles[-1]).stop)] if tiles else []

    def read_strip(
        self,
        i: int,
        columns: slice,
        buffer: NDArray[Any],  # noqa: ARG002
        top: int = 0,
    ) -> tuple[NDArray[Any], int]:
        """See TiledMatrix; where it lies."""
        return self._left[i][top:, columns], 0

    def read_panel(self, i: int, p: int, buffer: NDArray[Any]) -> tuple[NDArray[Any], int]:  # noqa: ARG002
        """See TiledMatrix; where it lies."""
        return self.tile_buffer(i, p), 0

    def read_tile(self, i: int, j: int, out: NDArray[Any]) -> int:
        """See TiledMatrix."""
        tile = self.tile_buffer(i, j)
        if tile.ctypes.data != out.ctypes.data:
            out[...] = tile
        return 0

    def write_tile(self, i: int, j: int, tile: NDArray[Any], top: int = 0) -> int:  # noqa: ARG002
        """See TiledMatrix; nothing is copied if the tile was computed in its `tile_buffer`."""
        own = self.tile_buffer(i, j)
        if tile.ctypes.data != own.ctypes.data:
            own[...] = tile
        return 0

    def complete_tiles(self) -> set[tuple[int, int]]:
        """See TiledMatrix; none, since a matrix in memory ends with its run."""
        return set()
