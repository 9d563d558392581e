"""Sums over all pairs of rows of weights times squared differences of single columns.

The derivative of uᵀ K a by the length of column k is cₖ Σᵢⱼ Sᵢⱼ (xᵢₖ − xⱼₖ)², where S = H ∘ (u aᵀ) and H is a kernel
(`WithLengths.length_slopes`). Several pairs u, a (folds, targets) only add to S: a strip of H, once formed, is
multiplied by one product of narrow matrices and then by the rows of X, so that all derivatives together cost about as
much as two products with K and d columns, however many folds and targets there are.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Meter, Task
from dkrr.kernels.blocks import LARGE_STRIP_COLUMNS, LARGE_STRIP_ENTRIES, LARGE_STRIP_ROWS
from dkrr.linalg.gram_products import GROUPS_PER_PLACE, balanced_groups, tile_work
from dkrr.linalg.sources import GramTiles, shifted
from dkrr.store import TileGrid

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LengthTiles(GramTiles):
    """Tiles of H, with the rows that they are computed from."""

    centre: Array | None = None
    """Row that is subtracted from all rows, so that squares keep their digits; of shape (d,). None: zeros."""

    def sums(self, meter: Meter, rows: slice, columns: slice, left: Array, right: Array) -> Array:
        """Sums over a tile on or below the diagonal and its mirror image, of shape (d,).

        Parameters
        ----------
        left, right : ndarray of shape (n, 2 m)
            u and a side by side, and a and u.
        """
        total = np.zeros(self.rows.shape[1])
        room = np.empty(LARGE_STRIP_ENTRIES)
        for r, c, X, Z in self.blocks(meter, rows, columns):
            for within, across, strip in self.kernel.pieces(X, None if Z is X else Z):
                here, there = shifted(within, r.start), shifted(across, c.start)
                s = room[: strip.size].reshape(strip.shape)
                blas.gemm(s, left[here], right[there], transpose_b=True)
                s *= strip
                if here == there:
                    s *= 0.5  # both (i, j) and (j, i) are in the square
                x, z = _centred(X[within], self.centre), _centred(Z[across], self.centre)
                product = np.empty((len(x), len(total)))
                blas.gemm(product, s, z)
                product *= -2.0
                product += s.sum(axis=1)[:, None] * x
                product *= x
                total += product.sum(axis=0)
                z *= z
                total += s.sum(axis=0) @ z
        return total


def _centred(X: NDArray[Any], centre: Array | None) -> Array:
    return np.asarray(np.subtract(X, 0.0 if centre is None else centre, dtype=np.float64, order="C"))


def length_sums_tasks(tiles: LengthTiles, grid: TileGrid, slots: int) -> list[Task]:
    """Tasks whose values add up to all sums, of shape (d,); called with u and a side by side, (n, 2 m)."""
    each = sorted(grid.lower(), key=lambda t: -tile_work(grid, *t))
    groups = [group for group in balanced_groups(grid, each, GROUPS_PER_PLACE * slots) if group]
    return [
        Task(f"lengths-{number}", sums_of_group, (tiles, grid, tuple(sorted(group))))
        for number, group in enumerate(groups)
    ]


def sums_of_group(
    meter: Meter, tiles: LengthTiles, grid: TileGrid, group: tuple[tuple[int, int], ...], vectors: Array
) -> Array:
    """Task: sums over some tiles and their mirror images."""
    others, total = np.hstack(np.hsplit(vectors, 2)[::-1]), np.zeros(tiles.rows.shape[1])
    with meter.time("multiply"):
        for i, j in group:
            total += tiles.sums(meter, grid.rows(i), grid.rows(j), vectors, others)
    return total


def length_sums_bytes(n_features: int) -> int:
    """Memory of one task besides the tiles of H and the vectors: the weights of a strip, and rows that are centred."""
    return 8 * LARGE_STRIP_ENTRIES + 8 * n_features * (3 * LARGE_STRIP_ROWS + 2 * LARGE_STRIP_COLUMNS)
