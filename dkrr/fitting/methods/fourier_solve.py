"""A Fourier grid: sums over the rows by transforms, and systems whose size does not depend on the rows."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from dkrr.fitting.context import Context
from dkrr.fitting.costs.fourier_costs import REFINED_RESIDUAL, fourier_factored, fourier_iterated, sums_bytes
from dkrr.fitting.data import LabelledData, TrainingData
from dkrr.fitting.fourier_ridge import FourierRidge
from dkrr.fitting.methods.solving import SolvingMethod, bytes_of, place_words, why_streamed
from dkrr.fitting.objectives import FormObjective, fourier_objective
from dkrr.fitting.results import Solution, scale_of
from dkrr.kernels.fourier_grid import map_of_predictions
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.planning import Plan
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources, Workplace
from dkrr.planning.strategy import Solver, Strategy
from dkrr.text import Reason, plural


class FourierCholesky(SolvingMethod):
    """A complete factor of the matrix that is gathered from the sums."""

    name = "Fourier grid, Cholesky"
    form = "primal"
    solver: ClassVar[Solver] = "cholesky"
    is_of_grids = True
    keeps_tiles = False
    calls_blas = False
    folds_by = "grid"

    def candidates(self, p: Problem, r: Resources) -> Iterator[Strategy]:
        return fourier_factored(p, r, self)

    def uses_threads(self, place: Workplace) -> bool:  # noqa: ARG002
        return True

    def summary(self, c: Strategy) -> str:
        place = "in this process" if c.execution == "serial" else place_words(c)
        return f"{c.form}, Fourier grid of {plural(c.details.side, 'feature')}, {place}"

    def solver_words(self, c: Strategy, p: Problem) -> str:  # noqa: ARG002
        limit = c.details.rank_limit
        by = f"conjugate gradient with a partial factor (rank up to {limit:,})" if limit else "Cholesky"
        return (
            f"{by}, refined to a true residual of {REFINED_RESIDUAL:.0e} of the dual system; entries of K within "
            f"{c.details.bound:.1e}"
        )

    def solver_of(self, c: Strategy) -> Literal["cholesky", "cg"]:
        return "cg" if c.details.rank_limit else "cholesky"

    def why(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> list[Reason]:  # noqa: ARG002
        if c.n_steps:
            return why_streamed(c, p)
        if c.details.rank_limit:
            text = "its products are convolutions of sums over the rows; a complete factor would take longer"
            return [Reason("grid-iterates", text)]
        return [Reason("grid-factored", "its matrix is gathered from sums over the rows, and factored")]

    def saved_bytes(self, plan: Plan) -> int:
        p, phi = plan.problem, plan.features
        assert phi is not None
        width = map_of_predictions(phi).dimension(p.d)
        return bytes_of((width, p.n_targets)) + bytes_of((p.n_targets, 1))

    def bytes_beside_factor(self, plan: Plan, side: int) -> int:  # noqa: ARG002
        return sums_bytes(plan.priced) // len(plan.problem.alphas) if plan.chosen.keeps_factors else 0

    def ridge(self, data: TrainingData, plan: Plan, context: Context, start: object = None) -> Solution:  # noqa: ARG002
        """One pass over the rows for all systems, and others that refine their solutions."""
        systems = FourierRidge(plan.chosen.details, data, plan, context)
        with in_terms_of_alpha(np.unique(data.alphas), plan.form, partial(scale_of, data, plan.form)):
            return systems.solution()

    def objective(self, data: LabelledData, plan: Plan, context: Context) -> FormObjective:
        return fourier_objective(plan.chosen.details, data, plan, context)


class FourierCG(FourierCholesky):
    """Conjugate gradient with a partial factor, its products by convolutions."""

    name = "Fourier grid, conjugate gradient"
    solver = "cg"
    losses: ClassVar = ("squared",)

    def candidates(self, p: Problem, r: Resources) -> Iterator[Strategy]:
        return fourier_iterated(p, r, self)
