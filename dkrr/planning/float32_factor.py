"""A factorisation in float32, refined in float64."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dkrr.linalg.memory import memory_grid
from dkrr.planning import float32_factor_dual
from dkrr.planning.direct import Direct
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Reason, Settings, Strategy, Systems, Tiling
from dkrr.planning.tilings import TileChoice, place_line, short_place, tile_choices, tiles_line
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from dkrr.text import format_seconds


@dataclass(frozen=True, kw_only=True)
class Float32Factor(Strategy):
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

    is_direct: ClassVar = True

    @classmethod
    def serves(cls, settings: Settings) -> bool:
        if isinstance(settings, ConjugateGradient):
            return isinstance(settings.preconditioner, Float32Cholesky)
        return settings is None

    @classmethod
    def candidates(cls, problem: Problem, resources: Resources, form: Form) -> Iterator["Float32Factor"]:
        if form == "primal" or float32_factor_dual.against_float32(problem):  # its columns are those of K
            return
        if not problem.wants_tiles:
            yield dual_in_memory(problem, resources)
        systems = Systems.of_ridge(problem)
        for choice in tile_choices(problem, resources, form):
            yield dual_in_tiles(problem, systems, choice)

    @property
    def solver(self) -> Literal["cholesky", "cg"]:
        return "cholesky" if self.tol is None else "cg"

    @property
    def is_whole(self) -> bool:
        return self.place.is_memory

    @property
    def uses_threads(self) -> bool:
        return self.place.is_memory

    def summary(self) -> str:
        tiles = "" if self.is_whole else f", tiles of {self.tiling.tile:,}"
        return f"{self.form}, Cholesky in float32 and refinement, {short_place(self.place)}{tiles}"

    def solves_by(self) -> str:
        return "conjugate gradient with factors in float32"

    def lines(self, problem: Problem) -> list[str]:
        goal = "the level of rounding" if self.tol is None else f"a true residual of {self.tol:.0e}"
        how = (
            f"tiled Cholesky in float32, refined in float64 to {goal} by conjugate gradient; about {self.iterations} "
            f"iterations (an estimate)"
        )
        tiles = [] if self.is_whole else [tiles_line(self.tiling, self.form, problem)]
        return [f"  solver      {how}", place_line(self.place), *tiles]

    def reasons(self, problem: Problem, priced: Strategy, others: Sequence[Strategy]) -> list[Reason]:  # noqa: ARG002
        if self.tol is not None:
            why = Reason("float32-requested", "conjugate gradient with a factor in float32 was requested")
        else:
            text = "a factor in float32, since it takes half the time and space of one in float64"
            direct = [c.seconds for c in others if isinstance(c.for_systems, Direct) and not c.refused]
            if direct:
                text += f" (about {format_seconds(min(direct))} in all)"
            why = Reason("float32", text)
        then = "float64 follows if it breaks down; solver='cholesky' factors in float64 throughout"
        return [why, Reason("float64-follows", then)]

    def layout(self) -> dict[str, Any]:
        return self.layout_of(self.tiling) | {"solver": "float32"}


def dual_in_memory(p: Problem, resources: Resources) -> Float32Factor:
    """Lower triangle of K + λW⁻¹ in float32 in the calling process; K is formed again for every product."""
    grid, iterations = memory_grid(p.n), float32_factor_dual.iterations_of(p)
    return Float32Factor(
        form="dual",
        place=resources.in_caller("memory", resources.local_threads),
        stages=float32_factor_dual.stages_in_memory(p, resources, iterations),
        tiling=Tiling(grid.tile, grid.panel),
        iterations=iterations,
        tol=float32_factor_dual.tol_of(p),
        products_tile=float32_factor_dual.products_tile(p.n),
    )


def dual_in_tiles(p: Problem, systems: Systems, choice: TileChoice) -> Float32Factor:
    """Tiled Cholesky of K + λW⁻¹ in float32 on disk.

    The memory is that of the float64 factorisation, which follows if float32 breaks down.
    """
    iterations = float32_factor_dual.iterations_of(p)
    stages, keeps_rows = float32_factor_dual.stages_in_tiles(p, systems, choice, iterations)
    return Float32Factor(
        form="dual",
        place=choice.place,
        stages=stages,
        tiling=choice.tiling,
        iterations=iterations,
        tol=float32_factor_dual.tol_of(p),
        products_tile=choice.grid.tile,
        keeps_rows=keeps_rows,
    )
