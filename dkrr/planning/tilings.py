"""Ways to cut a matrix into tiles, where tiles on disk may be factored, and the words for both."""

from dataclasses import replace
from typing import NamedTuple

from dkrr.blas import THREAD_EFFICIENCY
from dkrr.errors import InputError
from dkrr.linalg.cholesky import cholesky_cost, cold_cholesky_bytes, factor_bytes
from dkrr.linalg.substitution import substitution_cost
from dkrr.linalg.tile_steps import MAX_TASKS, MAX_TILES_PER_SIDE, PANEL_COLUMNS, TASK_COLUMNS, TILE_SIZES, tile_steps
from dkrr.planning.inputs import cache_bytes
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Place, Resources, cold_fraction
from dkrr.planning.schedule import factorisation_seconds
from dkrr.planning.strategy import Reason, Tiling, count_of_processes
from dkrr.store import TileGrid


class TileChoice(NamedTuple):
    """A place, the resources with the rates there, and how the matrix is cut."""

    resources: Resources
    place: Place
    grid: TileGrid
    columns_per_task: int

    @property
    def tiling(self) -> Tiling:
        """Cut of the matrix."""
        return Tiling(self.grid.tile, self.grid.panel, self.columns_per_task)


def tile_choices(problem: Problem, resources: Resources, form: Form) -> list[TileChoice]:
    """Places times tile sizes times tile columns per task."""
    _check_tile(problem)
    return [
        TileChoice(here, place, grid, columns)
        for here, place in _places(problem, resources)
        for grid in _grids(problem, problem.side(form))
        for columns in _columns_per_task(problem, place, grid)
    ]


def _places(problem: Problem, r: Resources) -> list[tuple[Resources, Place]]:
    """Places where tiles on disk may be factored, with the rates there."""
    places = [] if r.confined else [(r, r.on_workers())]
    if not r.cluster_is_running and not r.confined:
        places += [(r, r.on_workers(n)) for n in range(r.n_workers - 1, 0, -1)]
    if r.confined or (problem.wants_tiles and not r.cluster_is_running):
        # One task at a time, with all of BLAS's threads.
        faster = replace(r, rates=r.rates.faster(1.0 + THREAD_EFFICIENCY * (r.local_threads - 1)))
        places.append((faster, r.in_caller("serial", 1, blas_threads=r.local_threads)))
    return places


def _check_tile(problem: Problem) -> None:
    """Refuse tiles so small that the tasks would overload the scheduler, in the form that has fewer of them.

    Raises
    ------
    InputError
        Naming the smallest tile that is possible.
    """
    sides: dict[Form, int] = {"dual": problem.n, "primal": problem.dimension or problem.n}
    n = min(sides.values()) if problem.form is None else sides[problem.form]
    smallest = -(-n // MAX_TILES_PER_SIDE)
    if problem.tile is not None and problem.tile < smallest:
        raise InputError(
            f"tile is {problem.tile}; expected at least {smallest}, since a matrix of {n:,} rows is cut into at most "
            f"{MAX_TILES_PER_SIDE} tiles per side: give tile={smallest} or more, or None. Nothing was computed"
        )


def tile_grid(n: int, tile: int) -> TileGrid:
    """Grid of about this tile size that divides n into nearly equal tiles, in panels of about PANEL_COLUMNS."""
    n_tiles = -(-n // min(tile, n))
    rows = -(-n // n_tiles)
    panels = max(1, round(rows / PANEL_COLUMNS))
    panel = -(-rows // panels)
    if panel > 8:
        panel = -(-panel // 8) * 8
    return TileGrid(n, panel * panels, panel)


def fixed_grid(n: int, tile: int) -> TileGrid:
    """Grid of exactly this tile size; panels of the largest divisor up to PANEL_COLUMNS, if that is not tiny."""
    tile = min(tile, n)
    panel = max((p for p in range(1, min(tile, PANEL_COLUMNS) + 1) if tile % p == 0), default=tile)
    return TileGrid(n, tile, panel if panel >= min(tile, 64) else tile)


def _grids(problem: Problem, n: int) -> list[TileGrid]:
    if problem.layout is not None:
        return [TileGrid(n, problem.layout.tile, problem.layout.panel)]
    if problem.tile is not None:
        return [fixed_grid(n, problem.tile)]
    grids = {tile_grid(n, tile) for tile in TILE_SIZES}
    return sorted((g for g in grids if g.n_tiles <= MAX_TILES_PER_SIDE), key=lambda g: g.tile)


def _columns_per_task(problem: Problem, place: Place, grid: TileGrid) -> list[int]:
    if problem.layout is not None:
        return [problem.layout.columns_per_task]
    if place.slots == 1:
        return [0]
    n_tiles = grid.n_tiles
    return [0] + [s for s in TASK_COLUMNS if s < n_tiles - 1 and n_tiles**3 / 6 <= s * MAX_TASKS]


def system_seconds(choice: TileChoice, m: int, peak_bytes: float, form_seconds: float) -> tuple[float, float]:
    """Time of the tiled factorisation of one system, and that of one substitution with its factor.

    Parameters
    ----------
    choice : TileChoice
    m : int
        Right-hand sides.
    peak_bytes : float
        Memory of every process, which is not available to the system's cache of files.
    form_seconds : float
        Time to form one full tile of the matrix.
    """
    resources, place, grid, columns = choice
    rates = resources.rates.in_chunks(8 * grid.tile * grid.panel)
    cache = cache_bytes(resources, place, peak_bytes)
    read = cholesky_cost(grid, m, columns).read_bytes
    cold = cold_cholesky_bytes(grid, cache, columns) / read if read else 0.0
    factor = factorisation_seconds(grid, columns, place.slots, rates.reading(cold), form_seconds)
    reading = rates.reading(cold_fraction(factor_bytes(grid), cache))
    return factor, reading.seconds(substitution_cost(grid, m))


def short_place(place: Place) -> str:
    """Place of a factorisation in a few words."""
    where = {"memory": "in memory", "serial": "on disk, one process", "dask": f"{place.n_workers} workers"}
    return where[place.execution]


def place_line(place: Place) -> str:
    """Line of the plan: where a factorisation is done."""
    where = {
        "memory": "in the calling process, in memory",
        "serial": "in the calling process, tiles on disk",
        "dask": "on Dask workers, tiles on disk",
    }
    return f"  where       {where[place.execution]}{count_of_processes(place)}"


def tiles_line(tiling: Tiling, form: Form, problem: Problem) -> str:
    """Line of the plan: tiles of a factorisation and its tasks."""
    n_tiles = -(-problem.side(form) // tiling.tile)
    columns = f", {tiling.columns_per_task} tile columns per task" if tiling.columns_per_task else ""
    n_tasks = sum(1 for _ in tile_steps(n_tiles, tiling.columns_per_task))
    return (
        f"  tiles       {tiling.tile:,} × {tiling.tile:,} in panels of {tiling.panel}{columns}; "
        f"{n_tiles} per side, {n_tasks} tasks"
    )


def tile_reasons(problem: Problem) -> list[Reason]:
    """Why the tiles on disk have their size."""
    if problem.layout is not None:
        return []
    if problem.tile is not None:
        return [Reason("tile-requested", f"tile={problem.tile} was requested")]
    text = "larger tiles read less, smaller ones divide the work more evenly: this size is the fastest"
    return [Reason("tile-is-fastest", text)]
