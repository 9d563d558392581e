"""Products with the Gram matrices of several kernels, whose tiles are formed together at every pass.

One task forms the tiles of its group for all kernels, piece by piece, and multiplies the piece of each kernel by the
vectors of that kernel alone. See `dkrr.kernels.families` for the work that kernels share.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dkrr import blas
from dkrr.kernels.blocks import Block
from dkrr.kernels.families import KernelFamily
from dkrr.linalg.operator import Precision, Vectors, column_sizes
from dkrr.linalg.sources import GramTiles, located, shifted
from dkrr.linalg.tiled_operator import GROUPS_PER_PLACE, balanced_groups, tile_work
from dkrr.rows import Rows
from dkrr.runtime import Executor, Meter, RunRecord, Task
from dkrr.tiles import TileGrid


@dataclass(frozen=True)
class FamilyTiles:
    """Tiles of the Gram matrices of several kernels of the same rows, computed at each use."""

    family: KernelFamily
    rows: Rows

    def pieces(
        self, meter: Meter, rows: slice, columns: slice, wanted: tuple[int, ...], dtype: DTypeLike
    ) -> Iterator[tuple[int, slice, slice, NDArray[Any]]]:
        """Yield the number of a kernel and a piece of its tile, for every kernel that is wanted; see `TileSource`."""
        reader = GramTiles(self.family.kernels[0], self.rows)
        for r, c, left, right in reader.parts(meter, rows, columns):
            pieces = self._pieces(left, right, wanted, dtype)
            del left, right  # released before the next ones are read
            with located(r, c):
                for k, where, across, piece in pieces:
                    yield k, shifted(where, r.start), shifted(across, c.start), piece
            del pieces

    def _pieces(
        self, left: Block, right: Block, wanted: tuple[int, ...], dtype: DTypeLike
    ) -> Iterator[tuple[int, slice, slice, NDArray[Any]]]:
        return self.family.pieces(left, None if right is left else right, wanted=wanted, dtype=dtype)


@dataclass
class FamilyOperator:
    """Products with the matrices of several kernels.

    Parameters
    ----------
    source : FamilyTiles
    grid : TileGrid
    slots : int
        Tasks that run at once.
    """

    source: FamilyTiles
    grid: TileGrid
    slots: int = 1
    record: RunRecord = field(default_factory=RunRecord)

    def __post_init__(self) -> None:
        tiles = sorted(self.grid.lower(), key=lambda t: -tile_work(self.grid, *t))
        groups = balanced_groups(self.grid, tiles, GROUPS_PER_PLACE * self.slots)
        self._groups = [tuple(sorted(group)) for group in groups if group]

    def multiply(
        self, executor: Executor, vectors: Mapping[int, Vectors], precision: Precision = "float64"
    ) -> dict[int, Vectors]:
        """Product of the matrix of each kernel with vectors of its own.

        Parameters
        ----------
        executor : Executor
            Runs the tasks of this product.
        vectors : mapping of int to ndarray of shape (n, m)
            Vectors by the number of the kernel.
        precision : {"float64", "float32"}
            As in `Operator.multiply`.

        Returns
        -------
        dict of int to ndarray of shape (n, m)
        """
        wanted, widths = tuple(vectors), [v.shape[1] for v in vectors.values()]
        stops = np.cumsum(widths)
        columns = tuple(slice(int(b - m), int(b)) for b, m in zip(stops, widths, strict=True))
        together = np.empty((self.grid.n, int(stops[-1])), precision)
        sizes = np.ones(together.shape[1])
        for where, part in zip(columns, vectors.values(), strict=True):
            if precision == "float32":
                sizes[where] = column_sizes(part)  # float32 has a small range
            np.divide(part, sizes[where], out=together[:, where], casting="same_kind")
        tasks = [
            Task(f"multiply-{k}", multiply_family, (self.source, self.grid, tiles, wanted, columns, precision))
            for k, tiles in enumerate(self._groups)
        ]
        product, record = executor.total(tasks, together)
        self.record.add(record)
        product *= sizes
        return {k: np.ascontiguousarray(product[:, where]) for k, where in zip(wanted, columns, strict=True)}


def multiply_family(
    meter: Meter,
    source: FamilyTiles,
    grid: TileGrid,
    tiles: tuple[tuple[int, int], ...],
    wanted: tuple[int, ...],
    columns: tuple[slice, ...],
    precision: Precision,
    vectors: NDArray[Any],
) -> Vectors:
    """Task: products of some tiles of every wanted kernel, and of their mirror images, with its columns of vectors.

    Returns
    -------
    ndarray of shape (n, m)
    """
    total, of_kernel = np.zeros(vectors.shape), dict(zip(wanted, columns, strict=True))
    # Float32 has a small range: what overflows there is found in the sums, and computed again in float64.
    ignored: Any = {"over": "ignore", "invalid": "ignore"} if precision == "float32" else {}
    with meter.time("multiply"), np.errstate(**ignored):
        for i, j in tiles:
            for k, rows, across, piece in source.pieces(meter, grid.rows(i), grid.rows(j), wanted, precision):
                here = of_kernel[k]
                _add(total[rows, here], piece, vectors[across, here], transpose=False)
                if rows != across:
                    _add(total[across, here], piece, vectors[rows, here], transpose=True)
    return total


def _add(sums: Vectors, piece: NDArray[Any], vectors: NDArray[Any], *, transpose: bool) -> None:
    if piece.dtype == np.float64:
        blas.gemm(sums, piece, vectors, transpose_a=transpose, beta=1.0)
        return
    part = np.empty(sums.shape, piece.dtype)
    blas.gemm(part, piece, vectors, transpose_a=transpose)
    sums += part
