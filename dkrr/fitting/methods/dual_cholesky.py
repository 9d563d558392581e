"""Complete factors of K + λW⁻¹: in float64, exact to rounding, or in float32 with iterations in float64."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from dkrr.fitting.context import Context
from dkrr.fitting.costs.dual_costs import against_float32, factored_in_memory, factored_in_tiles, kept_or_again
from dkrr.fitting.costs.gram_costs import GramCosts
from dkrr.fitting.costs.tile_costs import Itemsize
from dkrr.fitting.data import LabelledData, TrainingData
from dkrr.fitting.dual_ridge import DirectDual, FactoredDual
from dkrr.fitting.gram import FactoredGram, Float32Gram
from dkrr.fitting.methods.dual_form import DualMethod
from dkrr.fitting.methods.solving import why_place
from dkrr.fitting.objectives import FormObjective, StepFactors, dual_objective
from dkrr.fitting.requests import DualStart
from dkrr.fitting.results import Solution, scale_of
from dkrr.linalg.condition import worst
from dkrr.linalg.in_memory_cholesky import ONE_TILE
from dkrr.linalg.iteration_state import CGOutcome
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.planning import Plan
from dkrr.planning.problem import Problem
from dkrr.planning.reasons import Reason
from dkrr.planning.resources import Resources, Workplace
from dkrr.planning.strategy import Strategy
from dkrr.text import format_seconds, plural


class DualFactor(DualMethod):
    """Complete factors of the Gram matrix, their entries of `itemsize` bytes."""

    factors_matrix = True
    itemsize: ClassVar[Itemsize]

    def recipes(self, p: Problem, r: Resources) -> Iterator[Strategy]:
        """In memory, where the matrix stays beside them if forming it again takes longer; then in tiles on disk."""
        if self.itemsize == 4 and against_float32(p):
            return
        if not (p.keeps_store or p.tile is not None):
            site = GramCosts(p, r, r.in_caller("memory", r.local_threads))
            if p.loss == "logistic" or (self.itemsize == 8 and p.n <= ONE_TILE):
                yield factored_in_memory(site, self.itemsize, self, keeps=True)
            else:
                again = factored_in_memory(site, self.itemsize, self, keeps=False)
                yield again if self.itemsize == 4 else kept_or_again(site, self, again)
        yield from factored_in_tiles(p, r, self.itemsize, self)


class DualCholesky(DualFactor):
    """A factor in float64 for each λ, or in every step of Newton's method."""

    name = "dual, Cholesky"
    solver = "cholesky"
    itemsize = 8
    folds_by = "factors"

    def why(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> list[Reason]:
        against = against_float32(p) if p.n > ONE_TILE else ""
        precision = [Reason("float64", f"in float64, since {against}")] if against else []
        return [*precision, *why_place(c, p, candidates)]

    def systems(self, data: TrainingData, plan: Plan, context: Context) -> DirectDual:
        return DirectDual(plan.chosen.details, data, plan, context)

    def solved(
        self,
        systems: DirectDual,
        data: TrainingData,
        plan: Plan,  # noqa: ARG002
        context: Context,  # noqa: ARG002
        start: DualStart | None,  # noqa: ARG002
    ) -> Solution:
        for system in systems.systems():
            with in_terms_of_alpha([system.alpha], "dual", partial(scale_of, data, "dual")):
                systems.solve(system)
        return systems.solution()

    def objective(self, data: LabelledData, plan: Plan, context: Context) -> FormObjective:
        matrix = FactoredGram(data, plan.chosen.details, context)
        return dual_objective(matrix, lambda: StepFactors(matrix, context), data, plan, context)


class DualFloat32(DualFactor):
    """A factor in float32, and iterations in float64 with it; one in float64 follows if that breaks down."""

    name = "dual, Cholesky in float32"
    solver = "float32"
    itemsize = 4

    def solver_of(self, c: Strategy) -> Literal["cholesky", "cg"]:
        return "cholesky" if c.details.tol is None else "cg"

    def uses_threads(self, place: Workplace) -> bool:
        return place.is_memory

    def factor_words(self) -> str:
        return "Cholesky in float32 and refinement"

    def solver_words(self, c: Strategy, p: Problem) -> str:  # noqa: ARG002
        goal = "the level of rounding" if c.details.tol is None else f"a true residual of {c.details.tol:.0e}"
        return (
            f"tiled Cholesky in float32, refined in float64 to {goal} by conjugate gradient; about "
            f"{c.iterations} iterations (an estimate)"
        )

    def newton_words(self, c: Strategy) -> tuple[str, str]:
        in_all = f", {plural(c.iterations, 'iteration')} in all"
        return "conjugate gradient with factors in float32", in_all

    def why(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> list[Reason]:  # noqa: ARG002
        if c.details.tol is not None:
            why = Reason("float32-requested", "conjugate gradient with a factor in float32 was requested")
        else:
            text = "a factor in float32, since it takes half the time and space of one in float64"
            direct = [o.seconds for o in candidates if o.is_direct and o.method != self and not o.refused]
            if direct:
                text += f" (about {format_seconds(min(direct))} in all)"
            why = Reason("float32", text)
        then = "float64 follows if it breaks down; solver='cholesky' factors in float64 throughout"
        return [why, Reason("float64-follows", then)]

    def why_kept(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> Reason:  # noqa: ARG002
        return Reason(
            "no-factor-kept",
            "no factor is kept: that of the fit is in float32, and standard deviations take another one in float64, or "
            "conjugate gradient, when they are first asked for",
        )

    def systems(self, data: TrainingData, plan: Plan, context: Context) -> FactoredDual:
        return FactoredDual(plan.chosen.details, data, plan, context)

    def solved(
        self,
        systems: FactoredDual,
        data: TrainingData,
        plan: Plan,  # noqa: ARG002
        context: Context,  # noqa: ARG002
        start: DualStart | None,  # noqa: ARG002
    ) -> Solution:
        outcomes = list[CGOutcome]()
        for system in systems.systems():
            with in_terms_of_alpha([system.alpha], "dual", partial(scale_of, data, "dual")):
                outcomes.append(systems.solve(system))
        return systems.solution(merged(outcomes))

    def objective(self, data: LabelledData, plan: Plan, context: Context) -> FormObjective:
        matrix = Float32Gram(data, plan.chosen.details, context)
        return dual_objective(matrix, lambda: StepFactors(matrix, context), data, plan, context)


def merged(outcomes: Sequence[CGOutcome]) -> CGOutcome:
    """Outcomes of several systems as one: the worst status, all residuals, the sum of the iterations."""
    bad = [o.status for o in outcomes if not o.status.is_good]
    return CGOutcome(
        x=outcomes[-1].x,
        residuals=np.concatenate([o.residuals for o in outcomes]),
        status=bad[0] if bad else outcomes[-1].status,
        iterations=sum(o.iterations for o in outcomes),
        rank=0,
        history=tuple(h for o in outcomes for h in o.history),
        messages=tuple(m for o in outcomes for m in o.messages),
        condition=worst([o.condition for o in outcomes]),
    )
