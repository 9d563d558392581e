"""Details of the strategies of dkrr's methods: what its planning decides, and its execution reads."""

from dataclasses import dataclass
from typing import ClassVar

from dkrr.linalg.gram_products import Precision
from dkrr.planning.tile_sizes import Tiling


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
    row_parts: ClassVar = 1

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


@dataclass(frozen=True)
class RowPasses:
    """Products with ΦᵀWΦ, the rows streamed at every pass (primal form)."""

    tile: int
    """Features."""
    row_block: int
    """Rows of X that are in memory at once."""
    row_parts: int = 1
    """Segments of rows, a task each."""


@dataclass(frozen=True, kw_only=True)
class Direct:
    """Factorisation and substitution, exact to rounding."""

    tiling: Tiling
    row_parts: int = 1
    """Segments of the rows whose normal matrices are formed separately (primal)."""
    row_block: int = 0
    """Rows of X that are in memory at once (primal)."""
    keeps_matrix: bool = False
    """The matrix stays in memory beside its factor; otherwise its tiles are formed again for the residual."""
    keeps_factors: bool = False
    """Factors stay after the fit, in memory or in its store: standard deviations and held-out errors take them."""

    keeps_rows: ClassVar = False
    iterations: ClassVar = 0


@dataclass(frozen=True, kw_only=True)
class Float32Factor:
    """Factorisation in float32, and conjugate gradient in float64 with it: to the level of rounding, or to `tol`.

    A factorisation in float64 follows if that in float32 breaks down.
    """

    tiling: Tiling
    iterations: int
    """Expected of conjugate gradient."""
    products_tile: int
    """Rows of the tiles that products form."""
    tol: float | None = None
    """Relative residual that a requested iterative solver ends at; None: the level of rounding."""
    keeps_rows: bool = False
    """Every process keeps X in memory."""
    keeps_matrix: bool = False
    """The matrix stays in memory beside its factors; otherwise its tiles are formed again for every product."""

    row_parts: ClassVar = 1
    keeps_factors: ClassVar = False


@dataclass(frozen=True, kw_only=True)
class Iterative:
    """Conjugate gradient to a true residual, preconditioned by a partial factor or a diagonal."""

    products: TileProducts | RowPasses
    iterations: int
    """Expected, from the spectrum."""
    rank: int = 0
    """Expected columns of the preconditioner's factor."""
    rank_limit: int = 0
    """Columns that fit in memory."""

    keeps_factors: ClassVar = False

    @property
    def tiling(self) -> Tiling:
        """Cut of the matrix of products."""
        return Tiling(self.products.tile, self.products.tile)

    @property
    def row_parts(self) -> int:
        """Segments of the rows."""
        return self.products.row_parts

    @property
    def tile_products(self) -> TileProducts:
        """Products of the dual form."""
        assert isinstance(self.products, TileProducts)
        return self.products

    @property
    def row_passes(self) -> RowPasses:
        """Products of the primal form."""
        assert isinstance(self.products, RowPasses)
        return self.products


@dataclass(frozen=True, kw_only=True)
class FourierSolve:
    """Features of a Fourier grid: sums over the rows by transforms, and systems whose size does not depend on rows."""

    side: int
    """Features."""
    bound: float
    """Largest error of an entry of K."""
    row_block: int
    """Rows of X that are transformed at once."""
    row_parts: int
    """Segments of the rows, a task each."""
    rank_limit: int = 0
    """Columns that fit in memory of a partial factor, with which conjugate gradient solves; 0: a complete factor."""

    keeps_factors: bool = False
    """The sums over the rows, and a complete factor, stay after the fit for standard deviations."""

    keeps_rows: ClassVar = False
    iterations: ClassVar = 0

    @property
    def tiling(self) -> Tiling:
        """The whole matrix is one tile."""
        return Tiling(self.side, self.side)
