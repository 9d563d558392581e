"""Strategies: a solver with its details in one place, and its projected cost."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from dkrr.cost import Stage
from dkrr.linalg.products import Precision
from dkrr.planning.problem import Form
from dkrr.planning.reasons import NO_REASON, Reason, codes_of
from dkrr.planning.resources import Execution, Workplace
from dkrr.text import plural

Solver = Literal["cholesky", "float32", "cg"]
"""Solver of linear systems: a complete factor in float64 or in float32, or conjugate gradient without one."""


@dataclass(frozen=True)
class Tiling:
    """Tiles and panels of the matrix of a factorisation."""

    tile: int
    panel: int
    """Columns of a tile that are stored as one chunk."""
    columns_per_task: int = 0
    """Tile columns that one task of the factorisation subtracts; 0 means all."""


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

    solver: ClassVar[Solver] = "cholesky"
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

    solver: ClassVar[Solver] = "float32"
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

    solver: ClassVar[Solver] = "cg"
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


StrategyDetails = Direct | Float32Factor | Iterative | FourierSolve


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Solver of a problem with its details, in one place, and its projected cost.

    Attributes
    ----------
    form : {"primal", "dual"}
        Form of the solve.
    place : Workplace
        Where the tasks run: `execution`, `n_workers`, `limit_bytes`, ...
    details : Direct, Float32Factor, Iterative or FourierSolve
        What solves the linear systems, and how it cuts its matrix.
    stages : tuple of Stage
        Projected time, bytes and memory, stage by stage.
    n_steps : int
        Expected steps of Newton's method; 0: a regression.
    refused : Reason
        Why it cannot be chosen; empty if it can.
    otherwise : Strategy, optional
        Direct strategy that takes over if the iterations of this one turn out to be slower.

    See Also
    --------
    dkrr.planning.Plan : The plan of a fit.
    dkrr.planning.Reason : A sentence of a plan, with a code.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> chosen = KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0]).plan_.chosen
    >>> chosen.summary()
    'dual, Cholesky, in memory'
    """

    form: Form
    place: Workplace
    details: StrategyDetails
    stages: tuple[Stage, ...]
    n_steps: int = 0
    refused: Reason = NO_REASON
    otherwise: "Strategy | None" = None

    @property
    def solver(self) -> Literal["cholesky", "cg"]:
        """Solver of linear systems, as users name it."""
        if isinstance(self.details, Float32Factor):
            return "cholesky" if self.details.tol is None else "cg"
        if isinstance(self.details, FourierSolve):
            return "cg" if self.details.rank_limit else "cholesky"
        return "cholesky" if isinstance(self.details, Direct) else "cg"

    @property
    def is_direct(self) -> bool:
        """Complete factors solve the systems, in a time that hardly depends on the spectrum."""
        return not isinstance(self.details, Iterative)

    @property
    def streams(self) -> bool:
        """Newton's method with streamed rows, and the curvature as a matrix in the calling process."""
        return self.n_steps > 0 and self.form == "primal" and self.is_direct

    @property
    def is_whole(self) -> bool:
        """The whole matrix is factored in memory."""
        is_formed = isinstance(self.details, Direct | Float32Factor)
        return is_formed and self.place.is_memory and not self.streams

    @property
    def uses_threads(self) -> bool:
        """In the calling process tasks run in threads with one BLAS thread each, not one after the other."""
        if isinstance(self.details, Direct):
            return self.streams
        return isinstance(self.details, Iterative | FourierSolve) or self.place.is_memory

    @property
    def task_threads(self) -> int:
        """Threads of the calling process that run tasks."""
        return self.place.slots if self.uses_threads else self.details.row_parts if self.is_whole else 1

    @property
    def tile(self) -> int:
        """Rows of a tile."""
        return self.details.tiling.tile

    def layout(self) -> dict[str, Any]:
        """Tile sizes and other fields of Layout, which a resumed run must keep."""
        solver = "float32" if isinstance(self.details, Float32Factor) else self.solver
        return {"form": self.form, **asdict(self.details.tiling), "row_parts": self.details.row_parts, "solver": solver}

    @property
    def seconds(self) -> float:
        """Projected wall time."""
        return sum(s.seconds for s in self.stages)

    @property
    def read_bytes(self) -> float:
        """Bytes read from the store."""
        return sum(s.read_bytes for s in self.stages)

    @property
    def written_bytes(self) -> float:
        """Bytes written to the store."""
        return sum(s.written_bytes for s in self.stages)

    @property
    def disk_bytes(self) -> int:
        """Peak space in the store."""
        return sum(s.disk_bytes for s in self.stages)

    @property
    def peak_bytes(self) -> int:
        """Peak memory of any process that works."""
        return max(s.peak_bytes for s in self.stages)

    @property
    def execution(self) -> Execution:
        """Kind of place."""
        return self.place.execution

    @property
    def n_workers(self) -> int:
        """Processes that work."""
        return self.place.n_workers

    @property
    def limit_bytes(self) -> int:
        """Memory that a process may hold."""
        return self.place.limit_bytes

    @property
    def fits(self) -> bool:
        """Whether the place has enough memory."""
        return self.peak_bytes <= self.place.usable_bytes

    @property
    def kind(self) -> tuple[type, Form, Execution]:
        """Same for candidates that differ in sizes only."""
        return type(self.details), self.form, self.execution

    def summary(self) -> str:
        """Short description."""
        if isinstance(self.details, Iterative):
            where = plural(self.n_workers, "worker") if self.execution == "dask" else "in this process"
            return f"{self.form}, conjugate gradient, {where}, {self.products_text()}"
        places = {
            "memory": "in memory",
            "serial": "on disk, one process",
            "dask": plural(self.n_workers, "worker"),
        }
        if isinstance(self.details, FourierSolve):
            place = "in this process" if self.execution == "serial" else places[self.execution]
            return f"{self.form}, Fourier grid of {plural(self.details.side, 'feature')}, {place}"
        factor = "Cholesky" if isinstance(self.details, Direct) else "Cholesky in float32 and refinement"
        tiles = f", tiles of {self.tile:,}" if not self.place.is_memory else ""
        return f"{self.form}, {factor}, {places[self.execution]}{tiles}"

    def products_text(self) -> str:
        """Precision of the products of conjugate gradient, and where the tiles are."""
        assert isinstance(self.details, Iterative)
        products = self.details.products
        if isinstance(products, RowPasses):
            return "float64, the rows streamed at every pass"
        precision = "mixed precision" if products.precision == "float32" else "float64"
        kept = products.kept_fraction(self.place.slots)
        if kept == 1:
            return f"{precision}, the matrix kept in memory"
        if not kept:
            return f"{precision}, tiles of {products.tile:,} formed at every pass"
        share = f"{kept:.0%}" if kept >= 0.005 else "less than 1%"
        return (
            f"{precision}, tiles of {products.tile:,}, {share} of them kept in memory, the others formed at every pass"
        )

    def to_dict(self) -> dict[str, Any]:
        """Strategy as values of JSON."""
        names = ("solver", "execution", "n_workers", "seconds", "read_bytes", "written_bytes", "disk_bytes")
        figures = {name: getattr(self, name) for name in (*names, "peak_bytes", "limit_bytes")}
        priced = {"form": self.form, "place": asdict(self.place), "stages": [asdict(s) for s in self.stages]}
        details = asdict(self.details)
        if self.n_steps:
            details = {"inner": {**priced, "refused": "", **details}, "n_steps": self.n_steps}
        (code,) = codes_of([self.refused])
        settings = {**priced, "refused": self.refused, "refused_code": code, **details}
        return {"name": self.summary(), "tile": self.tile, **figures, **settings}
