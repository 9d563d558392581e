"""Tiles: where they may be factored, the work of primitives there, and the time of a factorisation's tasks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple, Self

from dkrr.blas import THREAD_EFFICIENCY
from dkrr.cost import Work
from dkrr.errors import InputError
from dkrr.linalg.cholesky import (
    MAX_TILES_PER_SIDE,
    PANEL_COLUMNS,
    TILE_SIZES,
    TileStep,
    cholesky_work,
    factor_bytes,
    n_update_parts,
    task_columns,
)
from dkrr.linalg.substitution import apply_work, substitution_places, substitution_work
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Rates, Resources, cold_fraction
from dkrr.planning.strategy import Tiling
from dkrr.planning.work import Site, Step
from dkrr.store import TileGrid

SHARPNESS = 4.0
"""Exponent of the smooth maximum (among 2 to 10 the closest to 1,100 runs of `benchmarks.simulation` with 12 to 100
tiles per side, parts of 1 to 24 tile columns and 2 to 1,024 slots: 0.84 to 1.12 of their time; with 2 to 24 tiles per
side in the order of submission, which the formula leaves out: 0.88 to 1.03 of nine in ten, 1.00 in the median)."""


@dataclass(frozen=True)
class Cluster:
    """Workers of one thread each, and the driver that sends them tasks."""

    slots: int
    """Tasks that run at once."""
    window_per_slot: int = 2
    """Tasks on the scheduler for each slot (``dask_executor.WINDOW_PER_THREAD``)."""
    round_trip_seconds: float = 0.010
    """From the end of a task to the submission of those it made ready: the client sends every 10 ms."""
    scheduler_seconds: float = 0.001
    """Time of the scheduler for each task; it serves one after another (Dask's own figure: about 1 ms)."""


@dataclass(frozen=True)
class TaskCosts:
    """How fast one worker does each part of a task."""

    gemm_flops: float
    """Floating-point operations per second."""
    syrk_flops: float
    trsm_flops: float
    """Rate of the triangular solve with the panels on the diagonal of L_jj; the rest of the division is a product."""
    potrf_flops: float
    read_bytes: float
    """Bytes per second of reading that delays the products."""
    write_bytes: float
    entry_seconds: float
    """To form one entry of the matrix."""
    task_seconds: float
    """Overhead of every task: from the end of the one before to its first product, and all not counted elsewhere."""

    @classmethod
    def of_rates(cls, rates: Rates, entry_seconds: float) -> Self:
        """Costs that correspond to the planner's rates."""
        return cls(
            gemm_flops=rates.gemm_flops,
            syrk_flops=rates.syrk_flops,
            trsm_flops=rates.trsm_flops,
            potrf_flops=rates.potrf_flops,
            read_bytes=rates.read_bytes,
            write_bytes=rates.write_bytes,
            entry_seconds=entry_seconds,
            task_seconds=rates.task_seconds,
        )

    def seconds(self, step: TileStep, grid: TileGrid) -> float:
        """Time of one task: nothing overlaps, since the thread that reads ahead has no core of its own."""
        gemm, syrk, trsm, potrf = step_flops(step, grid)
        read, written = step_bytes(step, grid)
        return (
            gemm / self.gemm_flops
            + syrk / self.syrk_flops
            + trsm / self.trsm_flops
            + potrf / self.potrf_flops
            + read / self.read_bytes
            + written / self.write_bytes
            + formed_entries(step, grid) * self.entry_seconds
            + self.task_seconds
        )


def step_flops(step: TileStep, grid: TileGrid) -> tuple[float, float, float, float]:
    """Operations of GEMM, SYRK, TRSM and POTRF; their sum is ``TileStep.flops``."""
    rows, columns = grid.height(step.i), grid.height(step.j)
    before = float(len(step.columns) * grid.tile)
    if step.i == step.j:
        return 0.0, rows * rows * before, 0.0, rows**3 / 3 if step.is_last else 0.0
    gemm = 2 * rows * columns * before
    if not step.is_last:
        return gemm, 0.0, 0.0, 0.0
    panels, rest = divmod(columns, grid.panel)
    triangles = float(rows * (panels * grid.panel**2 + rest**2))
    return gemm + rows * columns * columns - triangles, 0.0, triangles, 0.0


def step_bytes(step: TileStep, grid: TileGrid) -> tuple[float, float]:
    """Bytes of tiles that a task reads and writes."""
    on_diagonal = step.i == step.j
    tile = 8.0 * grid.tile * grid.height(step.j)
    read = 8.0 * grid.tile**2 * len(step.columns) * (1 if on_diagonal else 2)
    return read + tile * ((step.part > 0) + (step.is_last and not on_diagonal)), tile


def formed_entries(step: TileStep, grid: TileGrid) -> float:
    """Entries of the matrix that a task forms: the first of a tile forms it, on the diagonal half of it."""
    if step.part:
        return 0.0
    return (0.5 if step.i == step.j else 1.0) * grid.height(step.i) * grid.height(step.j)


@lru_cache(maxsize=4096)  # plans of many fits alike, as in a search, ask for the same again
def factorisation_seconds(
    grid: TileGrid, columns_per_task: int, slots: int, rates: Rates, form_seconds: float
) -> float:
    """Wall time of the tiled factorisation, with the delays of Dask where more than one task runs at once.

    A full tile of the matrix is formed in `form_seconds`; `slots` tasks run at once, over all workers.
    """
    costs = TaskCosts.of_rates(rates, form_seconds / grid.tile**2)
    round_trip = max(0.0, rates.chain_seconds - Cluster.scheduler_seconds)
    return estimated_seconds(grid, columns_per_task, costs, Cluster(slots, round_trip_seconds=round_trip))


def estimated_seconds(grid: TileGrid, columns_per_task: int, costs: TaskCosts, cluster: Cluster) -> float:
    """Wall time of the tiled factorisation, column by column instead of task by task.

    While the chain of a column (its diagonal tile and the one below, which the next column waits for) is computed, the
    other workers do the rest of this column, then the tasks that the columns before it have released::

        step = max(chain, (work of columns ≤ j − done) / slots)
        done = min(work released by columns < j, done + slots × step)

    with a maximum that is smooth, as the two delay each other where they are about equal. The scheduler sets a lower
    bound. A queue that urgent tasks cannot overtake is left out.
    """
    work = _column_work(grid, columns_per_task, costs)
    if cluster.slots == 1:
        return sum(column.whole for column in work)
    delay = cluster.round_trip_seconds + cluster.scheduler_seconds
    seconds, done, needed, released, n_tasks = 0.0, 0.0, 0.0, 0.0, 0
    for j, column in enumerate(work):
        needed, released, n_tasks = needed + column.whole, released + column.released, n_tasks + column.n_tasks
        # With tasks shorter than the delay, a slot that has done those of its window waits for the next.
        speed = min(1.0, cluster.window_per_slot / (1.0 + delay * column.n_tasks / column.whole))
        parts = (
            column.chain + (2 * delay if j < len(work) - 1 else 0.0),  # nothing waits for the last column
            max(0.0, needed - done) / (cluster.slots * speed),
            max(0.0, n_tasks * cluster.scheduler_seconds - seconds),
        )
        step = math.fsum(part**SHARPNESS for part in parts) ** (1 / SHARPNESS)
        seconds += step
        done = min(released, done + cluster.slots * speed * step)
    return seconds


@dataclass
class _ColumnWork:
    """Core-seconds of one tile column."""

    n_tasks: int
    chain: float = 0.0
    """Last parts of the diagonal tile and of the one below it."""
    whole: float = 0.0
    """All its tasks."""
    released: float = 0.0
    """Tasks that the column before makes possible: last parts of this one, earlier parts of later columns."""


def _column_work(grid: TileGrid, columns_per_task: int, costs: TaskCosts) -> list[_ColumnWork]:
    n_tiles, last = grid.n_tiles, grid.n_tiles - 1
    work = [_ColumnWork((n_tiles - j) * n_update_parts(j, columns_per_task)) for j in range(n_tiles)]
    known: dict[bool, tuple[float, float, float]] = {}
    for j in range(n_tiles):
        n_parts, below = n_update_parts(j, columns_per_task), last - j
        for part in {0, min(1, n_parts - 1), n_parts - 1}:
            is_last = part == n_parts - 1
            # Parts that are not the last differ only in that the first forms the tile.
            times = None if is_last or j == last else known.get(part == 0)
            if times is None:
                columns = range(part * columns_per_task, j if is_last else (part + 1) * columns_per_task)
                times = _part_seconds(grid, j, part, columns, costs, is_last=is_last)
            if not is_last and j < last:
                known[part == 0] = times
            diagonal, ordinary, bottom = times
            whole = diagonal + (ordinary * (below - 1) + bottom if below else 0.0)
            if is_last:
                work[j].chain = diagonal + (ordinary if below > 1 else bottom if below else 0.0)
                work[j].whole += whole
                work[j].released += whole
                continue
            for alike in range(1 if part == 0 else n_parts - 2):
                work[j].whole += whole
                work[(part + alike + 1) * columns_per_task].released += whole
    return work


def _part_seconds(
    grid: TileGrid, j: int, part: int, columns: range, costs: TaskCosts, *, is_last: bool
) -> tuple[float, float, float]:
    """Times of one part of the diagonal tile of a column, of a tile below it and of that of the last row."""
    last = grid.n_tiles - 1
    times = [costs.seconds(TileStep(i, j, part, columns, is_last), grid) for i in (j, min(j + 1, last), last)]
    return times[0], times[1], times[2]


Itemsize = Literal[4, 8]
"""Bytes of an entry of a factor."""


class Cut(NamedTuple):
    """A place, and how the matrix is cut there."""

    site: Site
    grid: TileGrid
    columns_per_task: int
    peak: int

    @property
    def tiling(self) -> Tiling:
        """Cut of the matrix."""
        return Tiling(self.grid.tile, self.grid.panel, self.columns_per_task)

    def factored(self, form_seconds: float, n_stored: int, itemsize: Itemsize = 8) -> Step:
        """One factorisation; to form a tile takes so long, and so many factors are in the store at once.

        A factor in float32 takes half the operations and half the bytes.
        """
        site, grid, columns = self.site, self.grid, self.columns_per_task
        work = cholesky_work(grid, columns, itemsize, site.cache_bytes(self.peak), n_stored)
        rates = site.rates.of_itemsize(itemsize).reading(work.cold_bytes / max(work.read_bytes, 1.0))
        seconds = factorisation_seconds(grid, columns, site.place.slots, rates, form_seconds)
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


def cuts(p: Problem, r: Resources, form: Form, peak_bytes: Callable[[Site, TileGrid], int]) -> Iterator[Cut]:
    """Places where tiles on disk may be factored, with tile sizes and tile columns per task.

    Of dkrr's own workers there are as many as have memory enough.
    """
    _check_tile(p)
    for grid in _grids(p, p.side(form)):
        for site in _sites(p, r, grid, peak_bytes):
            columns = [0] if site.place.slots == 1 else task_columns(grid.n_tiles)
            if p.layout is not None:
                columns = [p.layout.columns_per_task]
            for each in columns:
                yield Cut(site.in_chunks(grid), grid, each, peak_bytes(site, grid))


def _sites(p: Problem, r: Resources, grid: TileGrid, peak_bytes: Callable[[Site, TileGrid], int]) -> Iterator[Site]:
    if not r.confined:
        fewest = r.n_workers if r.cluster_is_running else 1
        for n in range(r.n_workers, fewest - 1, -1):
            site = Site(p, r, r.on_workers(n))
            if n == fewest or peak_bytes(site, grid) <= site.place.usable_bytes:
                yield site
                break
    if r.confined or (p.wants_tiles and not r.cluster_is_running):
        # One task at a time, with all of BLAS's threads.
        faster = replace(r, rates=r.rates.faster(1.0 + THREAD_EFFICIENCY * (r.local_threads - 1)))
        yield Site(p, faster, r.in_caller("serial", 1, blas_threads=r.local_threads))


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
