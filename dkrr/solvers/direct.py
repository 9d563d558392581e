"""Cholesky: the direct solver, in memory and in tiles."""

from collections.abc import Callable
from dataclasses import dataclass

from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.cholesky import TiledSystem, cholesky_tasks, tile_steps
from dkrr.linalg.triangular import Substitution, backward_tasks
from dkrr.runtime import Executor, Progress, RunRecord
from dkrr.tiles import ChunkedArray


@dataclass(frozen=True)
class Cholesky:
    """Settings of the direct solver (it has none): A + diag(s) = L Lᵀ, then two substitutions."""

    def solve_tiled(
        self,
        system: TiledSystem,
        vectors: Callable[[str], ChunkedArray],
        executor: Executor,
        progress: Progress,
    ) -> tuple[ChunkedArray, RunRecord]:
        """Solve out of core; tiles that are in the store already are kept.

        Parameters
        ----------
        system : TiledSystem
        vectors : callable
            Gives the stored array (n, m) of a name, in chunks of tile rows.
        executor : Executor
        progress : Progress

        Returns
        -------
        solution : ChunkedArray of shape (n, m)
        record : RunRecord

        Raises
        ------
        NotPositiveDefiniteError
            If a pivot is not positive.
        """
        assert system.right_sides is not None and system.forward is not None
        grid, record = system.grid, RunRecord()
        tasks = cholesky_tasks(system)
        total = sum(step.flops(grid) for step in tile_steps(grid.n_tiles, system.segment))
        left = sum(t.flops for t in tasks)
        with progress.stage("factorisation", total, total - left):
            record.add(executor.run(tasks, progress))
        solution = vectors("solution")
        tasks = backward_tasks(Substitution(system.factor, system.forward, vectors("partial"), solution))
        with progress.stage("substitution", sum(t.flops for t in tasks)):
            record.add(executor.run(tasks, progress))
        return solution, record


def not_positive_definite(error: NotPositiveDefiniteError, alpha: float, form: str) -> NotPositiveDefiniteError:
    """Return the same error, in the terms of the user's problem."""
    matrix, what = ("K + λI", "row") if form == "dual" else ("ΦᵀΦ + λI", "feature")
    if alpha > 0:
        remedy = (
            "The kernel is not positive semidefinite on these rows, or λ is below what rounding in K allows: increase "
            "alpha, or use a positive semidefinite kernel"
        )
    elif form == "dual":
        remedy = (
            "With λ = 0 the Gram matrix itself must be positive definite: remove duplicate rows, use a kernel of "
            "full rank, or set alpha > 0"
        )
    else:
        remedy = "With λ = 0 the features must be linearly independent: remove dependent columns, or set alpha > 0"
    return NotPositiveDefiniteError(
        f"{matrix} is not positive definite with λ = alpha = {alpha:g}: the pivot of {what} {error.row} (counted "
        f"from 0) is not positive. {remedy}. dkrr never adds a jitter of its own",
        error.row,
    )
