"""Whether a given matrix is symmetric, block by block."""

from dataclasses import dataclass

import numpy as np

from dkrr.errors import InputError
from dkrr.kernels.blocks import SYMMETRY_TOLERANCE
from dkrr.rows import Rows
from dkrr.rows.sources import dense
from dkrr.runtime import Meter, Task
from dkrr.tiles import TileGrid


@dataclass(frozen=True)
class BlockSymmetry:
    """A block beside its mirror image."""

    largest: float
    """Sums of the absolute values of both."""
    gap: float
    """Largest absolute difference."""
    row: int
    column: int


def symmetry_tasks(rows: Rows, grid: TileGrid) -> list[Task]:
    """Tasks whose values are the BlockSymmetry of every tile."""
    return [Task(f"symmetry-{i}-{j}", block_symmetry, (rows, grid, i, j)) for i, j in grid.lower()]


def block_symmetry(meter: Meter, rows: Rows, grid: TileGrid, i: int, j: int) -> BlockSymmetry:
    """Task: compare one block with its mirror image."""
    here, there = grid.rows(i), grid.rows(j)
    with meter.time("read"):
        block = dense(rows.read(here.start, here.stop, there))
        mirror = dense(rows.read(there.start, there.stop, here)).T
    gaps = np.abs(block - mirror)
    r, c = np.unravel_index(int(np.argmax(gaps)), gaps.shape)
    largest = max(float(np.abs(block).max()), float(np.abs(mirror).max()))
    return BlockSymmetry(largest, float(gaps[r, c]), here.start + int(r), there.start + int(c))


def refuse_asymmetry(blocks: list[BlockSymmetry]) -> None:
    """Compare all gaps with the largest entry of the whole matrix, as in memory.

    Raises
    ------
    InputError
        Naming the entry that differs most.
    """
    largest, worst = max(b.largest for b in blocks), max(blocks, key=lambda b: b.gap)
    if worst.gap > SYMMETRY_TOLERANCE * largest:
        raise InputError(
            f"the precomputed Gram matrix is not symmetric: entry ({worst.row}, {worst.column}) and its mirror image "
            f"differ by {worst.gap:.3g}, where the largest entry is {largest:.3g}; use (K + K.T) / 2 if that is meant"
        )
