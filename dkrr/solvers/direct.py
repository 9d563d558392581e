"""Cholesky: the direct solver, in memory and in tiles."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.cholesky import TiledSystem, cholesky_tasks
from dkrr.linalg.substitution import Substitution, substitution_tasks
from dkrr.linalg.tile_steps import tile_steps
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
        total = sum(step.flops(grid) for step in tile_steps(grid.n_tiles, system.columns_per_task))
        left = sum(t.flops for t in tasks)
        with progress.stage("factorisation", total, total - left):
            record.add(executor.run(tasks, progress))
        solution = vectors("solution")
        backward = Substitution.resumable(system.factor, system.forward, solution, vectors("partial"), transpose=True)
        tasks = substitution_tasks(backward, "substitution")
        with progress.stage("substitution", sum(t.flops for t in tasks)):
            record.add(executor.run(tasks, progress))
        return solution, record


@contextmanager
def in_terms_of_alpha(
    alphas: Iterable[float], form: Literal["dual", "primal"], scale: Callable[[], str] = str
) -> Iterator[None]:
    """Raise an error of a matrix that is not positive definite in the terms of the user's problem.

    Parameters
    ----------
    alphas : iterable of float
        Values of λ that are solved for.
    form : {"dual", "primal"}
    scale : callable
        Gives a sentence on the scale of the data, which is only asked for after an error.
    """
    try:
        yield
    except NotPositiveDefiniteError as error:
        text = " ".join(filter(None, (_explained(error, alphas, form), scale())))
        raise NotPositiveDefiniteError(text, error.row) from None


def _explained(error: NotPositiveDefiniteError, alphas: Iterable[float], form: Literal["dual", "primal"]) -> str:
    matrix, what = ("K + λI", "row") if form == "dual" else ("ΦᵀΦ + λI", "feature")
    alphas = list(alphas)
    if min(alphas) > 0:
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
    values = ", ".join(f"{a:g}" for a in alphas)
    if error.row < 0:  # of an iteration, which meets no pivots
        return (
            f"{matrix} with λ = alpha = {values}: {error}. {remedy}. dkrr never adds a jitter of its own; "
            f"checkpoints in a given store are kept."
        )
    return (
        f"{matrix} is not positive definite with λ = alpha = {values}: the pivot of {what} {error.row} (counted "
        f"from 0) is not positive. {remedy}. dkrr never adds a jitter of its own."
    )
