"""Conjugate gradient with the Gram matrix, preconditioned by a partial factor."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from dkrr.fitting.context import Context
from dkrr.fitting.costs.dual_cg_costs import IterativeDual, multiplied_dual
from dkrr.fitting.data import LabelledData, TrainingData
from dkrr.fitting.dual_ridge import IteratedDual
from dkrr.fitting.gram import GramOperator
from dkrr.fitting.iteration import pivot_rule, pivots_of, resumed
from dkrr.fitting.methods.dual_form import DualMethod
from dkrr.fitting.methods.iterations import IterativeMethod
from dkrr.fitting.objectives import FormObjective, dual_objective
from dkrr.fitting.requests import DualStart
from dkrr.fitting.results import Solution, scale_of
from dkrr.linalg.curvature import ByPartialFactor, NewtonPreconditioners, NoPreconditioners
from dkrr.linalg.newton import CURVATURE_SHIFT, INNER_TOL
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.linalg.solver_settings import ConjugateGradient
from dkrr.planning import Plan
from dkrr.planning.explain import why_cg
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Strategy
from dkrr.text import NO_REASON, Reason, format_bytes


class DualCG(IterativeMethod, DualMethod):
    """Products with K, its tiles in memory or formed at every pass."""

    name = "dual, conjugate gradient"
    folds_by = "sweep"
    costs: ClassVar = IterativeDual
    """Its costs in one place."""

    def recipes(self, p: Problem, r: Resources) -> Iterator[Strategy]:
        return multiplied_dual(p, r, self)

    def products_words(self, c: Strategy) -> str:
        products = c.details.tile_products
        precision = "mixed precision" if products.precision == "float32" else "float64"
        kept = products.kept_fraction(c.place.slots)
        if kept == 1:
            return f"{precision}, the matrix kept in memory"
        if not kept:
            return f"{precision}, tiles of {products.tile:,} formed at every pass"
        share = f"{kept:.0%}" if kept >= 0.005 else "less than 1%"
        return (
            f"{precision}, tiles of {products.tile:,}, {share} of them kept in memory, the others formed at every pass"
        )

    def why(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> list[Reason]:
        """Also why products are in float32, and the tiles kept or formed at every pass."""
        products, reasons = c.details.tile_products, super().why(c, p, candidates)
        if products.precision == "float32":
            text = "products in float32 take about half the time; the true residual is computed in float64"
            reasons.append(Reason("float32-products", text))
        if p.kernel.is_precomputed or products.kept_fraction(c.place.slots) == 1:
            return reasons
        whole = products.all_tiles * products.tile**2 * products.itemsize
        text = (
            f"the whole matrix would take {format_bytes(whole)} of memory; tiles that are not kept are formed at "
            f"every pass (if that is slow, dkrr.gram(store=...) forms them once, and kernel='precomputed' with "
            f"solver='cg' reads them)"
        )
        return [*reasons, Reason("tiles-formed-again", text)]

    def why_kept(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> Reason:  # noqa: ARG002
        if isinstance(p.settings, ConjugateGradient):
            why = why_cg(p)
        else:
            refused = next((o.refused for o in candidates if o.form == "dual" and o.keeps_factors), NO_REASON)
            why = Reason("", f"a factorisation {refused or 'is too large'}")
        text = f"no factor is kept, since {why}: standard deviations come by conjugate gradient"
        return Reason("no-factor-kept", text)

    def systems(self, data: TrainingData, plan: Plan, context: Context) -> IteratedDual:
        return IteratedDual(plan.chosen.details, data, plan, context)

    def solved(
        self, systems: IteratedDual, data: TrainingData, plan: Plan, context: Context, start: DualStart | None
    ) -> Solution:
        """All λ at once, which a run of the same store resumes; from `start`, or from a newer checkpoint."""
        with in_terms_of_alpha(np.unique(data.alphas), plan.form, partial(scale_of, data, plan.form)):
            iteration, groups = systems.iteration(is_deferred=start is not None)
            if start is None:
                outcome = resumed(context, iteration, partial(systems.iterate, iteration, groups))
                return systems.solution(outcome)
            first = np.hstack([start.of(system.alpha, system.columns) for system in systems.systems()])
            outcome = resumed(context, iteration, lambda state, _: systems.iterate(iteration, groups, state, first))
            return systems.solution(replace(outcome, messages=(start.note, *outcome.messages)))

    def objective(self, data: LabelledData, plan: Plan, context: Context) -> FormObjective:
        """One partial factor for all systems."""
        matrix = GramOperator(data, plan.chosen.details, context)

        def preconditioners() -> NewtonPreconditioners:
            if matrix.rank_limit == 0:
                return NoPreconditioners()
            shift = CURVATURE_SHIFT[plan.problem.is_softmax] * min(data.alphas)
            is_enough = pivot_rule(plan, shift, INNER_TOL, plan.problem.n_steps)
            return ByPartialFactor(matrix.partial_factor(data.weights, pivots_of(plan), is_enough))

        return dual_objective(matrix, preconditioners, data, plan, context, mixed=matrix.is_mixed)
