"""Conjugate gradient on ΦᵀWΦ + λI, by passes over the rows."""

from collections.abc import Iterable
from functools import partial

import numpy as np

from dkrr.fitting.context import Context
from dkrr.fitting.costs.primal_costs import streamed_primal
from dkrr.fitting.data import LabelledData, TrainingData
from dkrr.fitting.iteration import resumed
from dkrr.fitting.methods.iterations import IterativeMethod
from dkrr.fitting.objectives import FormObjective, primal_objective
from dkrr.fitting.primal_ridge import IteratedPrimal
from dkrr.fitting.results import Solution, scale_of
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.planning import Plan
from dkrr.planning.problem import Loss, Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Solver, Strategy


class PrimalCG(IterativeMethod):
    """Products with ΦᵀWΦ, the rows streamed at every pass."""

    name = "primal, conjugate gradient"
    form = "primal"

    def answers(self, solver: Solver, loss: Loss) -> bool:
        """Also factors of K in float32 in a classification, which the primal form does not have."""
        return solver == "cg" or (solver == "float32" and loss == "logistic")

    def candidates(self, p: Problem, r: Resources) -> Iterable[Strategy]:
        return streamed_primal(p, r, self)

    def ridge(self, data: TrainingData, plan: Plan, context: Context, start: object = None) -> Solution:  # noqa: ARG002
        """All λ at once, which a run of the same store resumes."""
        systems = IteratedPrimal(plan.chosen.details, data, plan, context)
        with in_terms_of_alpha(np.unique(data.alphas), plan.form, partial(scale_of, data, plan.form)):
            iteration, groups = systems.iteration()
            outcome = resumed(context, iteration, partial(systems.iterate, iteration, groups))
        return systems.solution(outcome)

    def objective(self, data: LabelledData, plan: Plan, context: Context) -> FormObjective:
        passes = plan.chosen.details.row_passes
        return primal_objective("diagonal", passes.row_block, passes.row_parts, data, plan, context)
