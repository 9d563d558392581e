"""Newton's method with the curvature as a matrix in the calling process, and the rows streamed in every step."""

from collections.abc import Iterator, Sequence

from dkrr.fitting.context import Context
from dkrr.fitting.costs.primal_costs import curvature_in_memory
from dkrr.fitting.data import LabelledData
from dkrr.fitting.methods.solving import SolvingMethod, why_streamed
from dkrr.fitting.objectives import FormObjective, primal_objective
from dkrr.planning import Plan
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources, Workplace
from dkrr.planning.strategy import Strategy
from dkrr.text import Reason


class NewtonCurvature(SolvingMethod):
    """A factor of the curvature in every step."""

    name = "primal, Newton with the curvature as a matrix"
    form = "primal"
    solver = "cholesky"
    losses = ("logistic",)

    def candidates(self, p: Problem, r: Resources) -> Iterator[Strategy]:
        return curvature_in_memory(p, r, self)

    def uses_threads(self, place: Workplace) -> bool:  # noqa: ARG002
        return True

    def more_facts(self, c: Strategy, p: Problem) -> list[tuple[str, str]]:  # noqa: ARG002
        """None: the curvature is in memory as a whole."""
        return []

    def why(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> list[Reason]:  # noqa: ARG002
        return why_streamed(c, p)

    def objective(self, data: LabelledData, plan: Plan, context: Context) -> FormObjective:
        details = plan.chosen.details
        return primal_objective("matrix", details.row_block, details.row_parts, data, plan, context)
