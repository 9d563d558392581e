"""Tiles on disk: places where they may be factored, sizes, and the work of the primitives there."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

from dkrr.blas import THREAD_EFFICIENCY
from dkrr.cost import Work
from dkrr.errors import InputError
from dkrr.linalg.cholesky import cholesky_work, factor_bytes
from dkrr.linalg.inverse import apply_work
from dkrr.linalg.substitution import substitution_work
from dkrr.linalg.tile_steps import MAX_TILES_PER_SIDE, PANEL_COLUMNS, TILE_SIZES, task_columns
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Resources, cold_fraction
from dkrr.planning.schedule import factorisation_seconds
from dkrr.planning.strategy import Tiling
from dkrr.planning.work import Site, Step
from dkrr.store import TileGrid

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

    def factored(self, form_seconds: float, m: int, n_stored: int, itemsize: Itemsize = 8) -> Step:
        """One factorisation, with the forward substitution of m columns; to form a tile takes so long.

        A factor in float32 takes half the operations and half the bytes.
        """
        site, grid, columns = self.site, self.grid, self.columns_per_task
        work = cholesky_work(grid, m, columns, itemsize, site.cache_bytes(self.peak), n_stored)
        rates = site.rates.of_itemsize(itemsize).reading(work.cold_bytes / max(work.read_bytes, 1.0))
        seconds = factorisation_seconds(grid, columns, site.place.slots, rates, form_seconds)
        return Step("factorisation", work, seconds=seconds)

    def substituted(self, m: int, times: float) -> Step:
        """Both substitutions, the first of which went along with the factorisation; two tasks at a time."""
        site, rates = self.site, self.site.rates
        work = self._cold(substitution_work(self.grid, m), 8)
        seconds = rates.seconds(work) / min(2, site.place.slots) + self.grid.n_tiles * rates.chain_seconds
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
