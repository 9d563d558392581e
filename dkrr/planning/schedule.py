"""Wall time of a task graph by list scheduling: the planner's crystal ball."""

import heapq

from dkrr.linalg.cholesky import tile_flops, tile_priority
from dkrr.planning.resources import Rates
from dkrr.tiles import TileGrid

SIMULATED_TILES = 48
"""Tiles a side up to which the schedule is simulated; beyond, the work divides evenly enough."""


def factorisation_seconds(grid: TileGrid, slots: int, rates: Rates, form_seconds: float) -> float:
    """Wall time of the tiled factorisation.

    Parameters
    ----------
    grid : TileGrid
    slots : int
        Tasks that run at once, over all workers.
    rates : Rates
    form_seconds : float
        Time to form one full tile of the matrix.
    """
    n_tiles = grid.n_tiles

    def seconds(i: int, j: int) -> float:
        strips = len(grid.panels(0)) * j * (1 if i == j else 2) + (0 if i == j else len(grid.panels(j)))
        # Reading overlaps with the product, but on a core of its own it would not: count it.
        moved = 8.0 * grid.tile * grid.panel * strips / rates.read_bytes
        written = 8.0 * grid.tile * grid.height(j) / rates.write_bytes
        form = form_seconds * (0.5 if i == j else 1.0) * grid.height(i) * grid.height(j) / grid.tile**2
        return tile_flops(grid, i, j) / rates.gemm_flops + moved + written + form + rates.task_seconds

    if n_tiles > SIMULATED_TILES:
        return sum(seconds(i, j) for i, j in grid.lower()) / slots * (1.0 + slots / n_tiles)
    waiting = {(i, j): (j > 0) + (i != j) for i, j in grid.lower()}
    ready = [(tile_priority(0, 0), (0, 0))]
    running: list[tuple[float, tuple[int, int]]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < slots:
            _, (i, j) = heapq.heappop(ready)
            heapq.heappush(running, (now + seconds(i, j), (i, j)))
        now, (i, j) = heapq.heappop(running)
        followers = [(i, j + 1)] if j < i else []
        if i == j:
            followers += [(k, j) for k in range(j + 1, n_tiles)]
        for follower in followers:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (tile_priority(*follower), follower))
    return now
