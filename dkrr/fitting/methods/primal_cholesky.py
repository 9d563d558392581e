"""Complete factors of ΦᵀWΦ + λI, which is summed over the rows first."""

from collections.abc import Iterator, Sequence
from functools import partial

from dkrr.fitting.context import Context
from dkrr.fitting.costs.primal_costs import factored_primal
from dkrr.fitting.data import TrainingData
from dkrr.fitting.methods.solving import SolvingMethod, why_place
from dkrr.fitting.primal_ridge import DirectPrimal
from dkrr.fitting.results import Solution, scale_of
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.planning import Plan
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Strategy
from dkrr.text import Reason


class PrimalCholesky(SolvingMethod):
    """A factor for each λ of a regression."""

    name = "primal, Cholesky"
    form = "primal"
    solver = "cholesky"
    losses = ("squared",)
    factors_matrix = True
    folds_by = "sums"

    def candidates(self, p: Problem, r: Resources) -> Iterator[Strategy]:
        return factored_primal(p, r, self)

    def why(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> list[Reason]:
        return why_place(c, p, candidates)

    def ridge(self, data: TrainingData, plan: Plan, context: Context, start: object = None) -> Solution:  # noqa: ARG002
        systems = DirectPrimal(plan.chosen.details, data, plan, context)
        for system in systems.systems():
            with in_terms_of_alpha([system.alpha], plan.form, partial(scale_of, data, plan.form)):
                systems.solve(system)
        return systems.solution()
