"""Wall time of a task graph by list scheduling: the planner's crystal ball."""

import heapq
from collections import defaultdict

from dkrr.linalg.cholesky import TileStep, cholesky_cost, n_segments, tile_steps
from dkrr.planning.resources import Rates
from dkrr.tiles import TileGrid

SIMULATED_TILES = 24
"""Tiles a side up to which the schedule is simulated; beyond, it is estimated."""


def factorisation_seconds(grid: TileGrid, segment: int, slots: int, rates: Rates, form_seconds: float) -> float:
    """Wall time of the tiled factorisation.

    Parameters
    ----------
    grid : TileGrid
    segment : int
        Tile columns that one task subtracts; 0 means all.
    slots : int
        Tasks that run at once, over all workers.
    rates : Rates
    form_seconds : float
        Time to form one full tile of the matrix.
    """
    if grid.n_tiles > SIMULATED_TILES:
        return _estimate(grid, segment, slots, rates, form_seconds)
    steps = list(tile_steps(grid.n_tiles, segment))
    seconds = [step_seconds(step, grid, rates, form_seconds) for step in steps]
    number = {step.key: k for k, step in enumerate(steps)}
    waiting = [len(step.depends) for step in steps]
    followers = defaultdict(list)
    for k, step in enumerate(steps):
        for key in step.depends:
            followers[number[key]].append(k)
    ready = [(steps[0].priority, 0)]
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < slots:
            _, k = heapq.heappop(ready)
            heapq.heappush(running, (now + seconds[k], k))
        now, k = heapq.heappop(running)
        for follower in followers[k]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (steps[follower].priority, follower))
    return now


def _estimate(grid: TileGrid, segment: int, slots: int, rates: Rates, form_seconds: float) -> float:
    """Even division of the work or the longest chain of tasks, whichever is longer, and more where they are alike.

    The chain is (0, 0), (1, 0), (1, 1), (2, 1) ...: of each tile only the last segment waits for the one before.
    """
    n_tiles = grid.n_tiles
    whole = rates.seconds(cholesky_cost(grid, 1, segment)) + form_seconds * n_tiles**2 / 2
    chain = 0.0
    for j in range(n_tiles):
        parts = n_segments(j, segment)
        columns = range((parts - 1) * segment, j)
        for i in (j, min(j + 1, n_tiles - 1)):
            chain += step_seconds(TileStep(i, j, parts - 1, columns, True), grid, rates, form_seconds)
    # The exponent is that of simulations with 16 to 64 tiles and 1 to 64 workers, which it meets within 15 %.
    return whole if slots == 1 else ((whole / slots) ** 4 + chain**4) ** 0.25


def step_seconds(step: TileStep, grid: TileGrid, rates: Rates, form_seconds: float) -> float:
    """Time of one task: nothing overlaps, since the thread that reads ahead has no core of its own."""
    i, j = step.i, step.j
    tile = 8.0 * grid.tile * grid.height(j)
    moved = 8.0 * grid.tile**2 * len(step.columns) * (1 if i == j else 2)
    moved += (tile if step.part else 0.0) + (tile if step.is_last and i != j else 0.0)
    form = (
        0.0 if step.part else form_seconds * (0.5 if i == j else 1.0) * grid.height(i) * grid.height(j) / grid.tile**2
    )
    return (
        step.flops(grid) / rates.gemm_flops
        + moved / rates.read_bytes
        + tile / rates.write_bytes
        + form
        + rates.task_seconds
    )
