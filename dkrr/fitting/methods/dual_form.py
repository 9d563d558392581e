"""What the methods of the dual form have in common: targets in batches, and factors that stay."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.batches import solve_in_batches
from dkrr.fitting.context import Context
from dkrr.fitting.costs.batch_costs import in_batches
from dkrr.fitting.data import TrainingData
from dkrr.fitting.methods.solving import SolvingMethod
from dkrr.fitting.requests import DualStart
from dkrr.fitting.results import Solution
from dkrr.linalg.cholesky import factor_bytes
from dkrr.linalg.in_memory_cholesky import memory_bytes
from dkrr.planning import Plan
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Strategy
from dkrr.planning.target_batches import of_one_batch
from dkrr.store import TileGrid
from dkrr.text import Reason, format_bytes


class DualMethod(SolvingMethod):
    """Systems of K + λW⁻¹, for all targets at once or for a batch of them after another."""

    form = "dual"

    @abstractmethod
    def recipes(self, p: Problem, r: Resources) -> Iterable[Strategy]:
        """Candidates for all targets at once."""

    def candidates(self, p: Problem, r: Resources) -> Iterable[Strategy]:
        return (in_batches(one, p, r) for one in self.recipes(of_one_batch(p), r)) if p.batch else self.recipes(p, r)

    def why_kept(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> Reason:  # noqa: ARG002
        grid = TileGrid(p.n, c.tiling.tile, c.tiling.panel)
        each = memory_bytes(grid, keeps=False) if c.place.is_memory else factor_bytes(grid)
        where = (
            "memory after the fit" if c.place.is_memory else "the store" if p.keeps_store else "the temporary folder"
        )
        size = format_bytes(len(p.alphas) * each)
        return Reason("factor-kept", f"the factor is kept for standard deviations: {size} in {where}")

    @abstractmethod
    def systems(self, data: TrainingData, plan: Plan, context: Context) -> Any:
        """Systems of all targets, and their matrix."""

    @abstractmethod
    def solved(
        self, systems: Any, data: TrainingData, plan: Plan, context: Context, start: DualStart | None
    ) -> Solution:
        """Solution of systems: of all targets, or of a batch."""

    def ridge(self, data: TrainingData, plan: Plan, context: Context, start: DualStart | None = None) -> Solution:
        systems = self.systems(data, plan, context)
        if not plan.problem.batch:
            return self.solved(systems, data, plan, context, start)

        def solve_batch(one: Any, part: TrainingData, columns: NDArray[np.intp]) -> Solution:
            return self.solved(one, part, plan, context, None if start is None else start.of_targets(columns))

        return solve_in_batches(systems, data, plan, context, solve_batch, mixes_alphas=self.solver == "cg")
