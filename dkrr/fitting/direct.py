"""Direct solutions of (A + diag(s)) X = B for one s after another, with A in memory or in tiles of a store."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.context import Context
from dkrr.linalg.cholesky import PartialSums, TiledSystem, n_segments
from dkrr.linalg.condition import SolvedProbe, scaling_of, with_probe
from dkrr.linalg.incore import DenseSystem
from dkrr.linalg.residual import Check, checked
from dkrr.linalg.sources import TileSource
from dkrr.solvers import Cholesky
from dkrr.tiles import TileGrid

Array = NDArray[np.float64]
Settle = Callable[[Array], Array | None]
"""Takes a solution (n, m) and returns its free constants, with which it is then checked."""


@dataclass(frozen=True)
class Solved:
    """Solution of one system."""

    x: Array
    """X, of shape (n, m)."""
    check: Check | None = None
    """None where the caller checks by other means, and needs the probe for it."""
    probe: SolvedProbe | None = None


class DirectSystems(Protocol):
    """A matrix A that is factored with one diagonal after another."""

    diagonal: Array
    """Diagonal of A, of shape (n,)."""

    def solve(self, group: str, shift: Array, right_sides: Array, settle: Settle | None = None) -> Solved:
        """Solve (A + diag(s)) X = B.

        Parameters
        ----------
        group : str
            Name of the system in the storage.
        shift : ndarray of shape (n,)
        right_sides : ndarray of shape (n, m)
        settle : callable, optional
            Called with X before it is checked by a product with A; None: it is not checked.

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive.
        """
        ...


class MemorySystems:
    """A in this process's memory.

    Parameters
    ----------
    system : DenseSystem
    """

    def __init__(self, system: DenseSystem) -> None:
        self.system, self.diagonal = system, system.diagonal

    def solve(self, group: str, shift: Array, right_sides: Array, settle: Settle | None = None) -> Solved:  # noqa: ARG002
        """See DirectSystems."""
        scaling = scaling_of(self.diagonal + shift)
        both = with_probe(right_sides, scaling)
        x = self.system.solve(shift, both)
        found = x[:, :-1]
        if settle is None:
            return Solved(found, probe=SolvedProbe.of_solution(both[:, -1], x[:, -1], scaling))
        return Solved(found, checked(both, shift[:, None], x, self.system.multiply, settle(found), scaling))


@dataclass
class TiledSystems:
    """A in tiles, its factors in a store: what an earlier run has finished there is kept."""

    source: TileSource
    """Tiles of A."""
    grid: TileGrid
    columns_per_task: int
    """Tile columns that one task of a factorisation subtracts; 0 means all."""
    diagonal: Array
    context: Context

    def solve(self, group: str, shift: Array, right_sides: Array, settle: Settle | None = None) -> Solved:
        """See DirectSystems."""
        grid, context, storage = self.grid, self.context, self.context.stored
        scaling = scaling_of(self.diagonal + shift)
        both = with_probe(right_sides, scaling)
        vectors = partial(storage.vectors, group, grid=grid, width=both.shape[1])
        system = TiledSystem(
            source=self.source,
            shift=storage.vectors(group, "shift", grid, 1, shift),
            right_sides=vectors("right-sides", data=both),
            factor=storage.matrix(group, "factor", grid),
            forward=vectors("forward"),
            segment=self.columns_per_task,
            partial=tuple(
                PartialSums(storage.matrix(group, f"sum-{k}", grid), vectors(f"sum-{k}-forward"))
                for k in range(n_segments(grid.n_tiles - 1, self.columns_per_task) - 1)
            ),
        )
        solution, record = Cholesky().solve_tiled(system, vectors, context.executor, context.progress)
        context.add(record)
        x, check = solution.load(), None
        found = x[:, :-1]
        if settle is not None:
            constants = settle(found)
            kept = storage.vectors(group, "scaling", grid, 1, scaling)
            check, record = Cholesky().check_tiled(
                system, solution, constants, kept, context.executor, context.progress, context.slots
            )
            context.add(record)
        for k in range(len(system.partial)):
            storage.delete(f"{group}/sum-{k}")
            storage.delete(f"{group}/sum-{k}-forward")
        if not storage.keeps:
            storage.delete(group)
        return Solved(found, check, SolvedProbe.of_solution(both[:, -1], x[:, -1], scaling))
