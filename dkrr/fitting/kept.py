"""What earlier rows have left for a fit that has them and more: a complete factor, in a store or of a model in memory.

The earlier rows are the first ones of the fit, with the same weights. Their part of the factor stays where it is; see
`dkrr.linalg.cholesky.KeptFactor`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr.linalg.cholesky import Matrix
from dkrr.linalg.in_memory_cholesky import GROWING_TILE, InMemoryMatrix
from dkrr.store import ChunkedArray

Array = NDArray[np.float64]


def _nothing() -> None:
    pass


def _none(*_: str) -> None:
    return None


@dataclass(frozen=True)
class Kept:
    """What an earlier run, or an earlier call, has left that serves this fit."""

    n: int
    """Its rows, which are the first ones of this fit."""
    factor: Callable[[str], Matrix | None]
    """Complete factor of these rows, by the group of its system ("system-0"); None: there is none."""
    vectors: Callable[[str, str], ChunkedArray | None] = _none
    """Vectors of the earlier run in its store, by the group of a system and their name; None: there are none."""
    swept: Mapping[str, Array] = field(default_factory=dict)
    """By the group of a system, solutions L⁻¹ B of its factor in memory, of shape (n, others), B what the matrix has in
    the columns of the other rows: where the last standard deviations were theirs."""
    matrix: InMemoryMatrix | None = None
    """K of these rows, scaled, in memory."""
    scale: Array | None = None
    """√w that the rows of the factor were scaled with, where it is not that of the data now."""
    left_out: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))
    """Rows that the factor has and whose weight is 0 now."""
    commit: Callable[[], None] = _nothing
    """Called once all factors have grown: what they replace is given up."""

    @property
    def tile(self) -> int:
        """Rows of a tile of what grows in memory; a factor of a single tile is cut first."""
        found = self.matrix or self.factor("system-0") or self.factor("factored-0")
        return GROWING_TILE if found is None or found.grid.n_tiles == 1 else found.grid.tile

    def extended(self, scale: Array | None, n: int) -> Array | None:
        """√w of the rows of the factor and of the others of n, of shape (n,); `scale` is that of the data."""
        if self.scale is None:
            return scale
        own = np.ones(n) if scale is None else scale
        return np.concatenate([self.scale, own[self.n :]])
