"""How conjugate gradient multiplies by the matrix."""

from dataclasses import dataclass

from dkrr.linalg.operator import Precision


@dataclass(frozen=True)
class TileProducts:
    """Products with K, tile by tile (dual form)."""

    tile: int
    n_tiles: int
    """Tiles along one side."""
    precision: Precision
    kept_tiles: int
    """Tiles that each slot keeps in memory; the others are formed at every pass."""
    keeps_rows: bool
    """Every process keeps X in memory."""

    @property
    def all_tiles(self) -> int:
        """Tiles of the lower triangle."""
        return self.n_tiles * (self.n_tiles + 1) // 2

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return 4 if self.precision == "float32" else 8

    def kept_fraction(self, slots: int) -> float:
        """Fraction of the tiles that all slots keep."""
        return min(1.0, self.kept_tiles * slots / self.all_tiles)

    def describe(self, slots: int) -> str:
        """Description of what a product does."""
        precision = "mixed precision" if self.precision == "float32" else "float64"
        kept = self.kept_fraction(slots)
        if kept == 1:
            return f"{precision}, the matrix kept in memory"
        share = f"{kept:.0%}" if kept >= 0.005 else "less than 1%"
        fraction = f", {share} of them kept in memory" if kept else ""
        return f"{precision}, tiles of {self.tile:,} formed at every pass{fraction}"


@dataclass(frozen=True)
class RowPasses:
    """Products with ΦᵀWΦ, the rows streamed at every pass (primal form)."""

    tile: int
    """Features."""
    row_block: int
    """Rows of X that are in memory at once."""
    row_parts: int = 1
    """Segments of rows, a task each."""

    def describe(self, slots: int) -> str:  # noqa: ARG002
        """Description of what a product does."""
        return "float64, the rows streamed at every pass"
