"""The integers of a symmetric matrix cut into tiles."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class TileGrid:
    """How an n × n matrix is cut: square tiles of `tile` rows, each made of panels of `panel` columns.

    A panel (`tile` × `panel`) is what is stored, read and written as one piece; a tile is what one task
    computes. The last tile and the last panel may be smaller.
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
