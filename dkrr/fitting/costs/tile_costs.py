"""Tiles: where they may be factored, the work of primitives there, and the time of a factorisation's tasks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import THREAD_EFFICIENCY
from dkrr.cost import Work
from dkrr.errors import InputError
from dkrr.fitting.costs.gram_costs import GramCosts
from dkrr.linalg.cholesky import cholesky_work, factor_bytes
from dkrr.linalg.substitution import apply_work, substitution_places, substitution_work, threads_at_once
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Rates, Resources, cold_fraction
from dkrr.planning.tile_sizes import MAX_TILES_PER_SIDE, TILE_SIZES, Tiling
from dkrr.planning.work import Step
from dkrr.store import TileGrid

PANEL_COLUMNS = 512
"""Columns of a panel with which GEMM runs at full rate (measured: 256 loses 4 %, 1,024 gains nothing)."""
MAX_TASKS = 250_000
"""Largest number of tasks of a factorisation: the scheduler takes about a millisecond for each."""
SHARPNESS = 4.0
"""Exponent of the smooth maximum (among 2 to 10 the closest to 1,100 runs of `benchmarks.simulation` with 12 to 100
tiles per side, parts of 1 to 24 tile columns and 2 to 1,024 slots: 0.84 to 1.12 of their time; with 2 to 24 tiles per
side in the order of submission, which the formula leaves out: 0.88 to 1.03 of nine in ten, 1.00 in the median)."""
WINDOW_PER_SLOT = 2
"""Tasks on the scheduler for each slot (``dask_executor.WINDOW_PER_THREAD``)."""
SCHEDULER_SECONDS = 0.001
"""Time of the scheduler for each task; it serves one after another (Dask's own figure: about 1 ms)."""


@lru_cache(maxsize=4096)  # plans of many fits alike, as in a search, ask for the same again
def factorisation_seconds(
    grid: TileGrid, columns_per_task: int, slots: int, rates: Rates, form_seconds: float, kept_rows: int = 0
) -> float:
    """Wall time of the tiled factorisation, column by column instead of task by task.

    A tile of the matrix is formed in `form_seconds`; `slots` tasks run at once, over all workers, and nothing overlaps
    in a task. While the chain of a column (its diagonal tile and the one below, which the next column waits for) is
    computed, the other workers do the rest of this column, then the tasks that the columns before it have released::

        step = max(chain, (work of columns ≤ j − done) / slots)
        done = min(work released by columns < j, done + slots × step)

    with a maximum that is smooth, as the two delay each other where they are about equal. The scheduler sets a lower
    bound. A queue that urgent tasks cannot overtake is left out, and all tiles count as equally large.

    With rows that the factor has already, columns have the tiles of the other rows only, which are a chain where they
    are few.
    """
    if kept_rows >= grid.n:
        return 0.0
    works = _column_works(grid, columns_per_task or grid.n_tiles, rates, form_seconds, kept_rows)
    if slots == 1:
        return float(works.whole.sum())
    delay, last = max(rates.chain_seconds, SCHEDULER_SECONDS), grid.n_tiles - 1
    seconds, done = 0.0, 0.0
    needed, released, n_tasks = np.cumsum(works.whole), np.cumsum(works.released), np.cumsum(works.n_tasks)
    for j, (n, whole, chain) in enumerate(zip(works.n_tasks, works.whole, works.chain, strict=True)):
        # With tasks shorter than the delay, a slot that has done those of its window waits for the next.
        speed = slots * min(1.0, WINDOW_PER_SLOT / (1.0 + delay * n / whole))
        parts = (
            chain + (2 * delay if j < last else 0.0),  # nothing waits for the last column
            max(0.0, needed[j] - done) / speed,
            max(0.0, n_tasks[j] * SCHEDULER_SECONDS - seconds),
        )
        step = math.fsum(part**SHARPNESS for part in parts) ** (1 / SHARPNESS)
        seconds += step
        done = min(released[j], done + speed * step)
    return float(seconds)


class ColumnWorks(NamedTuple):
    """Core-seconds of every tile column, each of shape (n_tiles,)."""

    n_tasks: NDArray[np.intp]
    chain: NDArray[np.float64]
    """Last parts of the diagonal tile and of the one below it."""
    whole: NDArray[np.float64]
    """All its tasks."""
    released: NDArray[np.float64]
    """Tasks that the column before makes possible: last parts of this one, earlier parts of later columns."""


def _column_works(
    grid: TileGrid, columns_per_task: int, rates: Rates, form_seconds: float, kept_rows: int
) -> ColumnWorks:
    n_tiles, tile, each = grid.n_tiles, grid.n / grid.n_tiles, columns_per_task
    j = np.arange(n_tiles)
    n_parts = np.maximum(1, -(-j // each))
    kept = kept_rows / tile  # tile rows, which may be a fraction
    n_alike = np.array([np.clip(j + 1 - kept, 0.0, 1.0), n_tiles - np.maximum(j + 1.0, kept)])  # diagonal, below
    # Of either: to subtract one tile column, to end the last part, to form the tile, and what every task takes.
    triangles, reading = tile**2 * min(grid.panel, tile), 8 * tile**2 / rates.read_bytes
    subtract = np.array([tile**3 / rates.syrk_flops + reading, 2 * tile**3 / rates.gemm_flops + 2 * reading])
    divide = (tile**3 - triangles) / rates.gemm_flops + triangles / rates.trsm_flops + reading
    end = np.array([tile**3 / 3 / rates.potrf_flops, divide])
    formed = form_seconds * (tile / grid.tile) ** 2 * np.array([0.5, 1.0])
    task = rates.task_seconds + 8 * tile**2 / rates.write_bytes
    begin = np.where(n_parts == 1, formed[:, None], reading)  # a later part reads the sum of those before
    last = begin + np.outer(subtract, j - (n_parts - 1) * each) + end[:, None] + task
    released = (n_alike * last).sum(axis=0)
    whole = released.copy()
    for part in range(n_parts[-1] - 1):
        earlier = subtract * each + task + (reading if part else formed)
        work = earlier @ n_alike * (n_parts > part + 1)
        whole += work
        released[(part + 1) * each] += work.sum()
    chain = (np.minimum(n_alike, 1.0) * last).sum(axis=0)
    return ColumnWorks(n_parts * (n_tiles - np.maximum(j, int(kept))), chain, whole, released)


Itemsize = Literal[4, 8]
"""Bytes of an entry of a factor."""


class Cut(NamedTuple):
    """A place, and how the matrix is cut there."""

    site: GramCosts
    grid: TileGrid
    columns_per_task: int
    peak: int

    @property
    def tiling(self) -> Tiling:
        """Cut of the matrix."""
        return Tiling(self.grid.tile, self.grid.panel, self.columns_per_task)

    def factored(self, form_seconds: float, n_stored: int, itemsize: Itemsize = 8, kept_rows: int = 0) -> Step:
        """Recipe of one factorisation, from the time to form a tile and the number of factors in the store at once.

        A factor in float32 takes half the operations and half the bytes, and one that has some rows already those of
        the others.
        """
        site, grid, columns = self.site, self.grid, self.columns_per_task
        work = cholesky_work(grid, columns, itemsize, site.cache_bytes(self.peak), n_stored, kept_rows)
        rates = site.rates.of_itemsize(itemsize).reading(work.cold_bytes / max(work.read_bytes, 1.0))
        seconds = factorisation_seconds(grid, columns, site.place.slots, rates, form_seconds, kept_rows)
        return Step("factorisation", work, seconds=seconds)

    def substituted(self, m: int, times: float, n_stored: int) -> Step:
        """Both substitutions, with vectors of the systems that are in the store at once."""
        site, rates, n_tiles = self.site, self.site.rates, self.grid.n_tiles
        work = self._cold(substitution_work(self.grid, m).times(2), 8)
        places = min(site.place.slots, substitution_places(self.grid))
        seconds = rates.seconds(work) / places + 2 * n_tiles * rates.chain_seconds
        vectors = 8 * self.grid.n * (m + 2) + int(work.written_bytes)  # right-hand sides, shift and scaling
        work = replace(work, disk_bytes=n_stored * vectors)
        return Step("substitution", work, times, seconds=seconds)

    def applied(self, stage: str, m: int, itemsize: Itemsize, times: float) -> Step:
        """Both substitutions with a factor that is applied again and again."""
        on_cluster = self.site.place.slots if self.site.resources.cluster_is_running else None
        return Step(stage, self._cold(apply_work(self.grid, m, itemsize, on_cluster), itemsize), times, "caller")

    def _cold(self, work: Work, itemsize: Itemsize) -> Work:
        """Work that reads a factor, of which the system's cache of files holds a part."""
        cold = cold_fraction(factor_bytes(self.grid, itemsize), self.site.cache_bytes(self.peak))
        return replace(work, cold_bytes=cold * work.read_bytes)

    def rows_read(self) -> float:
        """Bytes of X that all tiles read, each those of its rows and its columns."""
        return float(self.grid.tile * self.site.problem.stored_bytes / self.site.problem.n * self.grid.n_tiles**2)


def products_at_once(site: GramCosts, grid: TileGrid, m: int) -> int:
    """Tasks of a product with m vectors that run at once; see `Context.side_by_side`."""
    place = site.place
    if place.execution == "dask":
        return place.slots
    return max(place.slots, threads_at_once(grid, m, site.resources.local_threads))


def cuts(p: Problem, r: Resources, form: Form, peak_bytes: Callable[[GramCosts, TileGrid], int]) -> Iterator[Cut]:
    """Places where tiles on disk may be factored, with tile sizes and tile columns per task.

    Of dkrr's own workers there are as many as have memory enough.
    """
    _check_tile(p)
    for grid in _grids(p, p.matrix_size(form)):
        for site in _sites(p, r, grid, peak_bytes):
            columns = [0] if site.place.slots == 1 else task_columns(grid.n_tiles)
            # One process that grows a factor would only write sums that it reads again.
            if p.layout is not None and not (p.n_kept_rows and site.place.slots == 1):
                columns = [p.layout.columns_per_task]
            for each in columns:
                yield Cut(site, grid, each, peak_bytes(site, grid))


def task_columns(n_tiles: int) -> list[int]:
    """Tile columns per task that a plan compares: the fewest, one more, and all (0), which needs least disk.

    Others would save up to 1 % of the time (2 to 256 slots, 5,000 to a million rows).
    """
    fewest = max(2, -(-(n_tiles**3) // (6 * MAX_TASKS)))
    return [s for s in (fewest, fewest + 1) if s < n_tiles - 1] + [0]


def _sites(
    p: Problem, r: Resources, grid: TileGrid, peak_bytes: Callable[[GramCosts, TileGrid], int]
) -> Iterator[GramCosts]:
    if not r.confined:
        fewest = r.n_workers if r.cluster_is_running else 1
        for n in range(r.n_workers, fewest - 1, -1):
            site = GramCosts(p, r, r.on_workers(n))
            if n == fewest or peak_bytes(site, grid) <= site.place.usable_bytes:
                yield site
                break
    if r.confined or (p.wants_tiles and not r.cluster_is_running):
        # One task at a time, with all of BLAS's threads.
        faster = replace(r, rates=r.rates.faster(1.0 + THREAD_EFFICIENCY * (r.local_threads - 1)))
        yield GramCosts(p, faster, r.in_caller("serial", 1, blas_threads=r.local_threads))


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
