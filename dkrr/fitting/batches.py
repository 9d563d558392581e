"""Many targets of a dual ridge regression, solved a batch at a time with the same matrix and factors.

In memory are the targets and the solution of one batch. The dual coefficients are written to a mapped file. Where the
run has a store that is kept, so are the finished batches, which a run that resumes reads and does not solve again.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.config import setting
from dkrr.data import Rows
from dkrr.data.arrays import mapped_array, release_pages
from dkrr.errors import UnreachableStoreError
from dkrr.fitting.context import Context
from dkrr.fitting.data import TrainingData
from dkrr.fitting.dual_ridge import DualRidge
from dkrr.fitting.results import Solution
from dkrr.linalg.condition import worst
from dkrr.linalg.iteration_state import CGOutcome
from dkrr.linalg.result import Status
from dkrr.planning import Plan
from dkrr.store import TileGrid
from dkrr.store.run_store import BATCHES, N_BATCHES, UNLIKE_OURS

SolveBatch = Callable[[Any, TrainingData, NDArray[np.intp]], Solution]
"""Solves for some targets with the systems of their batch, from their data and numbers."""

SOLUTION_CHUNK_BYTES = 16 * 2**20
"""Bytes of a chunk of the solutions in a store."""


class Batch(NamedTuple):
    """Targets that are solved for together."""

    name: str
    columns: NDArray[np.intp]
    """Their numbers."""
    last_of: tuple[float, ...]
    """Values of λ that no later batch has."""


def batches_of(data: TrainingData, width: int, *, mixes_alphas: bool) -> Iterator[Batch]:
    """Batches of targets of limited size: in their order, or one value of λ after another."""
    groups = [([alpha], columns) for alpha, columns in data.alpha_groups()]
    if mixes_alphas:
        groups = [([alpha for alpha, _ in data.alpha_groups()], np.arange(len(data.alphas)))]
    for g, (alphas, columns) in enumerate(groups):
        for first in range(0, len(columns), width):
            here = columns[first : first + width]
            is_last = first + width >= len(columns)
            yield Batch(f"{g}-{first}-{len(here)}", here, tuple(alphas) if is_last else ())


def solve_in_batches(
    form: DualRidge,
    data: TrainingData,
    plan: Plan,
    context: Context,
    solve_batch: SolveBatch,
    *,
    mixes_alphas: bool,
) -> Solution:
    """Solution of all targets.

    Parameters
    ----------
    form : DualRidge
        Made of all data.
    solve_batch : callable
    mixes_alphas : bool
        Whether a batch has targets of several λ.
    """
    t = data.targets.shape[1]
    coef = mapped_array(data.targets.shape, setting("temporary-directory"))
    intercept, squares, residuals = np.empty(t), np.empty(t), np.empty(t)
    finished, solutions = FinishedBatches(context, form.matrix.rows), list[Solution]()
    batches = list(batches_of(data, plan.problem.batch, mixes_alphas=mixes_alphas))
    finished.begin(len(batches))
    for batch in batches:
        found = finished.load(batch)
        if found is None:
            with context.progress.measured("targets"):
                part = data.of_columns(batch.columns)
            if context.checkpoints is not None:
                context.checkpoints.part = batch.name
            found = solve_batch(form.of_batch(part), part, batch.columns)
            finished.save(batch, found)
        assert found.dual_coef is not None and found.squares is not None and found.residuals is not None
        with context.progress.measured("targets"):
            coef[:, batch.columns] = found.dual_coef
            release_pages(coef)
            release_pages(data.targets)
        intercept[batch.columns], squares[batch.columns] = found.intercept, found.squares
        residuals[batch.columns] = found.residuals
        solutions.append(replace(found, dual_coef=None, rows=None, saved={}))
        for alpha in batch.last_of:
            form.release(alpha)
    return Solution(
        dual_coef=coef,
        coef=None,
        intercept=intercept,
        rows=form.matrix.rows,
        residual=float(residuals.max()),
        condition=worst([s.condition for s in solutions]),
        outcome=_together([s.outcome for s in solutions if s.outcome is not None]),
        residuals=residuals,
        squares=squares,
        messages=_different([m for s in solutions for m in s.messages]),
        saved=form.saved(),
    )


def _together(outcomes: list[CGOutcome]) -> CGOutcome | None:
    """Outcomes of all batches as one: the worst status, the most iterations of a batch; without residuals."""
    if not outcomes:
        return None
    worse = [o for o in outcomes if not o.status.is_good]
    most = max(outcomes, key=lambda o: o.iterations)
    return replace(
        most,
        x=np.empty((0, 0)),
        residuals=np.empty(0),
        status=worse[0].status if worse else most.status,
        rank=max(o.rank for o in outcomes),
        messages=_different([m for o in outcomes for m in o.messages]),
        condition=worst([o.condition for o in outcomes]),
    )


def _different(messages: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(messages))


@dataclass
class FinishedBatches:
    """Solutions of batches in the storage of a run that may be resumed; nothing is kept in another."""

    context: Context
    rows: Rows
    """The training rows, readable after the fit."""

    def begin(self, n_batches: int) -> None:
        """Note how many batches there are, for `dkrr.status`."""
        if self.context.storage.keeps and self.context.storage.note(N_BATCHES) != n_batches:
            self.context.storage.set_note(N_BATCHES, n_batches)

    def load(self, batch: Batch) -> Solution | None:
        """Solution of a batch that an earlier run has finished; None if it did not, or if it is damaged."""
        if not self.context.storage.keeps:
            return None
        note = self.context.storage.note(f"batch-{batch.name}")
        if note is None:
            return None
        try:
            coef, rest = (array.load() for array in self._arrays(batch))
            facts = json.loads(note)
            residual, condition, known = facts["residual"], facts["condition"], facts["outcome"]
            messages = tuple(facts["messages"])
            outcome = None
            if known is not None:
                known |= {"status": Status(known["status"]), "messages": tuple(known["messages"])}
                outcome = CGOutcome(x=np.empty((0, 0)), residuals=rest[2], history=(), **known)
            residuals = np.full(len(rest[0]), residual) if outcome is None else rest[2]  # a direct one has one λ
        except UnreachableStoreError:
            raise
        except UNLIKE_OURS:
            return None
        return Solution(
            dual_coef=coef,
            coef=None,
            intercept=rest[0],
            rows=self.rows,
            residual=residual,
            condition=condition,
            outcome=outcome,
            residuals=residuals,
            squares=rest[1],
            messages=messages,
        )

    def save(self, batch: Batch, solution: Solution) -> None:
        """Keep a solution; it is complete when the store's description names it."""
        if not self.context.storage.keeps:
            return
        assert solution.dual_coef is not None and solution.squares is not None
        outcome, facts = solution.outcome, dict[str, Any]()
        rest = np.array([solution.intercept, solution.squares, solution.residuals])
        for name in self._names(batch):
            self.context.storage.delete(f"{BATCHES}/{name}")
        for array, values in zip(self._arrays(batch), (solution.dual_coef, rest), strict=True):
            array.fill(np.ascontiguousarray(values))
        if outcome is not None:
            facts = {k: getattr(outcome, k) for k in ("iterations", "rank", "messages", "condition")}
            facts["status"] = outcome.status.value
        note = {"residual": solution.residual, "condition": solution.condition, "messages": solution.messages}
        self.context.storage.set_note(f"batch-{batch.name}", json.dumps(note | {"outcome": facts or None}))

    def _names(self, batch: Batch) -> tuple[str, str]:
        return f"{batch.name}-coef", f"{batch.name}-rest"

    def _arrays(self, batch: Batch) -> list[Any]:
        """Stored arrays of the coefficients (n, k), and of intercepts, squares and residuals (3, k)."""
        n, width = self.rows.shape[0], len(batch.columns)
        heights = (max(1, min(n, SOLUTION_CHUNK_BYTES // (8 * width))), 3)
        return [
            self.context.storage.vectors(BATCHES, name, TileGrid(size, height, height), width)
            for name, size, height in zip(self._names(batch), (n, 3), heights, strict=True)
        ]
