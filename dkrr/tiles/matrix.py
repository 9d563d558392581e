"""A symmetric (or lower triangular) matrix as tiles of its lower triangle in one Zarr array."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dkrr.tiles.chunks import ChunkedArray
from dkrr.tiles.grid import TileGrid
from dkrr.tiles.padded import empty_tile
from dkrr.tiles.paths import local_path
from dkrr.tiles.store import Place


@dataclass(frozen=True)
class TiledMatrix:
    """Lower triangle of an n × n matrix; each panel of a tile is one chunk.

    Whether the upper triangle mirrors the lower one (a Gram matrix) or is zero (a Cholesky factor) is the
    owner's knowledge; diagonal tiles are stored as full squares.
    """

    array: ChunkedArray
    grid: TileGrid
    is_stored: ClassVar[bool] = True
    """Reading and writing wait for a disk, and others may read what is written."""

    @classmethod
    def create(cls, place: Place, grid: TileGrid, dtype: str = "float64") -> "TiledMatrix":
        """Create an empty matrix, or take an existing one of this very layout (see ChunkedArray).

        Parameters
        ----------
        place : Place
        grid : TileGrid
        dtype : {"float64", "float32"}
            Type of the entries, and of the arithmetic of a factorisation that writes them.
        """
        shape, chunks = (grid.n, grid.n), (grid.tile, grid.panel)
        return cls(ChunkedArray.create(place.url, shape, chunks, dtype, place.identity), grid)

    @property
    def is_remote(self) -> bool:
        """Panels come over a network, into buffers."""
        return local_path(self.array.url) is None

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 or float32."""
        return np.dtype(self.array.dtype)

    def tile_buffer(self, i: int, j: int) -> NDArray[Any]:
        """Uninitialised array to compute tile (i, j) in."""
        return empty_tile(self.grid.height(i), self.grid.height(j), self.dtype)

    def panel_buffer(self) -> NDArray[Any]:
        """Uninitialised buffer that one panel fits in."""
        return np.empty(self.array.chunks, self.dtype)

    def stretches(self, tiles: range) -> list[slice]:
        """Columns of these tile columns that are read at once, one after another: those of a panel."""
        return [self.grid.columns(p) for j in tiles for p in self.grid.panels(j)]

    def read_stretch(self, i: int, columns: slice, buffer: NDArray[Any]) -> tuple[NDArray[Any], int]:
        """Read tile row `i` in the columns of a stretch; see `read_panel`."""
        return self.read_panel(i, columns.start // self.grid.panel, buffer)

    def read_panel(self, i: int, p: int, buffer: NDArray[Any]) -> tuple[NDArray[Any], int]:
        """Read panel `p` of tile row `i`.

        Returns
        -------
        panel : ndarray of shape (height of row i, width of panel p)
            To be read only: in the system's cache, from a local store, else a view of `buffer`.
        n_bytes : int
            Bytes read.
        """
        chunk, n_bytes = self.array.mapped((i, p)), self.array.chunk_bytes
        if chunk is None:
            chunk = buffer
            n_bytes = self.array.read((i, p), chunk)
        columns = self.grid.columns(p)
        return chunk[: self.grid.height(i), : columns.stop - columns.start], n_bytes

    def write_panel(self, i: int, p: int, tile: NDArray[Any]) -> int:
        """Write panel `p` of the tile of row `i` that it lies in, and return the number of bytes written."""
        columns = self.grid.columns(p)
        first = self.grid.rows(self.grid.tile_of(p)).start
        return self.array.write((i, p), tile[:, columns.start - first : columns.stop - first])

    def write_tile(self, i: int, j: int, tile: NDArray[Any]) -> int:
        """Write all panels of tile (i, j) and return the number of bytes written."""
        return sum(self.write_panel(i, p, tile) for p in self.grid.panels(j))

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
        present = self.array.present()
        return {(i, j) for i, j in self.grid.lower() if all((i, p) in present for p in self.grid.panels(j))}

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
