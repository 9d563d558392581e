"""Cholesky factorisations, in memory or in tiles on disk."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dkrr.linalg.memory import ONE_TILE, memory_grid
from dkrr.planning import direct_dual, direct_primal
from dkrr.planning.float32_factor_dual import against_float32
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import NOT_ENOUGH_MEMORY, Reason, Settings, Strategy, Systems, Tiling
from dkrr.planning.tilings import TileChoice, place_line, short_place, tile_choices, tile_reasons, tiles_line
from dkrr.solvers import Cholesky
from dkrr.text import format_bytes

KEPT_TIME_FRACTION = 0.95
"""Fraction of the time below which a second triangle in memory pays."""


@dataclass(frozen=True, kw_only=True)
class Direct(Strategy):
    """Factorisation and substitution, exact to rounding."""

    tiling: Tiling
    row_parts: int = 1
    """Segments of the rows whose normal matrices are formed separately (primal)."""
    row_block: int = 0
    """Rows of X that are in memory at once (primal)."""
    keeps_matrix: bool = False
    """The matrix stays in memory beside its factor; otherwise its tiles are formed again for the residual."""

    solver: ClassVar = "cholesky"
    is_direct: ClassVar = True
    keeps_rows: ClassVar = False

    @classmethod
    def serves(cls, settings: Settings) -> bool:
        return settings is None or isinstance(settings, Cholesky)

    @classmethod
    def candidates(cls, problem: Problem, resources: Resources, form: Form) -> Iterator["Direct"]:
        if not problem.wants_tiles:
            yield (dual_in_memory if form == "dual" else primal_in_memory)(problem, resources)
        systems, in_tiles = Systems.of_ridge(problem), dual_in_tiles if form == "dual" else primal_in_tiles
        for choice in tile_choices(problem, resources, form):
            yield in_tiles(problem, systems, choice)

    @property
    def is_whole(self) -> bool:
        return self.place.execution == "memory"

    @property
    def task_threads(self) -> int:
        return self.row_parts if self.is_whole else 1

    def summary(self) -> str:
        tiles = "" if self.is_whole else f", tiles of {self.tiling.tile:,}"
        return f"{self.form}, Cholesky, {short_place(self.place)}{tiles}"

    def solves_by(self) -> str:
        return "Cholesky"

    def lines(self, problem: Problem) -> list[str]:
        tiles = [] if self.is_whole else [tiles_line(self.tiling, self.form, problem)]
        return ["  solver      tiled Cholesky", place_line(self.place), *tiles]

    def reasons(self, problem: Problem, priced: Strategy, others: Sequence[Strategy]) -> list[Reason]:
        is_large = problem.n > ONE_TILE and self.form == "dual"
        against = against_float32(problem) if is_large else ""
        precision = [Reason("float64", f"in float64, since {against}")] if against else []
        if self.is_whole:
            text = "in the calling process, since everything fits in memory and that is fastest"
            return [*precision, Reason("fits-in-memory", text)]
        whole = next((c for c in others if c.place.is_memory and c.form == priced.form), None)
        if problem.keeps_store:
            why = [Reason("store-requested", "tiles on disk, since store= asks for a run that can be resumed")]
        elif whole is None:
            why = []
        elif whole.refused == NOT_ENOUGH_MEMORY:
            needed = f"{format_bytes(whole.peak_bytes)} of {format_bytes(whole.limit_bytes)}"
            why = [Reason("exceeds-memory", f"tiles on disk, since in memory one process would need {needed}")]
        else:
            code = whole.refused.code or "faster-on-workers"
            why = [Reason(code, f"on Dask, since {whole.refused or 'that is faster'}")]
        return precision + why + tile_reasons(problem)

    def layout(self) -> dict[str, Any]:
        return self.layout_of(self.tiling, self.row_parts)


def dual_in_memory(p: Problem, resources: Resources) -> Direct:
    """Lower triangle of the Gram matrix in the calling process; beside its factor where forming it again takes long."""
    kept = _dual_in_memory(p, resources, keeps_matrix=True)
    if p.n <= ONE_TILE:
        return kept
    again = _dual_in_memory(p, resources, keeps_matrix=False)
    pays = kept.seconds < KEPT_TIME_FRACTION * again.seconds and kept.peak_bytes <= kept.limit_bytes
    return kept if pays else again


def _dual_in_memory(p: Problem, resources: Resources, *, keeps_matrix: bool) -> Direct:
    grid = memory_grid(p.n)
    return Direct(
        form="dual",
        place=resources.in_caller("memory", resources.local_threads),
        stages=direct_dual.stages_in_memory(p, resources, keeps_matrix=keeps_matrix),
        tiling=Tiling(grid.tile, grid.panel),
        row_block=p.n,
        keeps_matrix=keeps_matrix,
    )


def dual_in_tiles(p: Problem, systems: Systems, choice: TileChoice) -> Direct:
    """Tiled Cholesky of K + λW⁻¹ on disk."""
    return Direct(
        form="dual",
        place=choice.place,
        stages=direct_dual.stages_in_tiles(p, systems, choice),
        tiling=choice.tiling,
        row_block=choice.grid.tile,
    )


def primal_in_memory(p: Problem, resources: Resources) -> Direct:
    """The whole normal matrix in the calling process, the rows streamed through it."""
    place, grid = resources.in_caller("memory", resources.local_threads), memory_grid(p.side("primal"))
    cut = direct_primal.cut_in_memory(p, place.threads)
    return Direct(
        form="primal",
        place=place,
        stages=direct_primal.stages_in_memory(p, resources, place, cut),
        tiling=Tiling(grid.tile, grid.panel),
        row_parts=cut.n_segments,
        row_block=cut.block,
        keeps_matrix=True,
    )


def primal_in_tiles(p: Problem, systems: Systems, choice: TileChoice) -> Direct:
    """Normal matrix in tiles on disk, formed by segments of rows, and its tiled Cholesky."""
    cut = direct_primal.cut_in_tiles(p, choice.place, choice.grid)
    return Direct(
        form="primal",
        place=choice.place,
        stages=direct_primal.stages_in_tiles(p, systems, choice, cut),
        tiling=choice.tiling,
        row_parts=cut.n_segments,
        row_block=cut.block,
    )
