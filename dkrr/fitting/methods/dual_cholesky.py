"""Complete factors of K + λW⁻¹: in float64, exact to rounding, or in float32 with iterations in float64."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Work
from dkrr.fitting.context import Context
from dkrr.fitting.costs.alpha_check_costs import with_alpha_check
from dkrr.fitting.costs.details import Direct
from dkrr.fitting.costs.dual_costs import (
    VECTORS,
    against_float32,
    factored_in_memory,
    factored_in_tiles,
    kept_or_again,
)
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
from dkrr.linalg.iteration_state import CGOutcome
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.linalg.sources import KERNEL_BLOCK
from dkrr.linalg.square import ONE_TILE, copy_work, factor_work, gram_workspace_bytes, solving_work
from dkrr.planning import Plan
from dkrr.planning.problem import Problem
from dkrr.planning.resources import CALLER_MARGIN_BYTES, Resources, Workplace
from dkrr.planning.strategy import Method, Strategy
from dkrr.planning.tile_sizes import Tiling
from dkrr.planning.work import COMPARED, Step
from dkrr.store import TileGrid
from dkrr.text import Reason, format_seconds, plural


class DualFactor(DualMethod):
    """Complete factors of the Gram matrix, their entries of `itemsize` bytes."""

    factors_matrix = True
    itemsize: ClassVar[Itemsize]
    ridge_of: ClassVar[type[DirectDual | FactoredDual]]
    """Systems of a regression."""
    gram_of: ClassVar[type[FactoredGram]]
    """Matrix of a classification."""

    def recipes(self, p: Problem, r: Resources) -> Iterator[Strategy]:
        each = self._recipes(p, r)
        return (with_alpha_check(one, p, r, self.itemsize) for one in each) if p.n_kept_rows else each

    def _recipes(self, p: Problem, r: Resources) -> Iterator[Strategy]:
        """In memory, where the matrix stays beside them if forming it again takes longer; then in tiles on disk."""
        if self.itemsize == 4 and (p.kept_rows or against_float32(p)):  # models keep factors in float64
            return
        if not (p.keeps_store or p.tile is not None):
            if self.itemsize == 8 and p.n <= ONE_TILE and p.loss == "squared" and not p.kept_rows:
                yield factored_in_square(p, r, self)
            else:
                site = GramCosts(p, r, r.in_caller("memory", r.local_threads))
                whole = factored_in_memory(site, self.itemsize, self, keeps=p.loss == "logistic")
                yield kept_or_again(site, self, whole) if self.itemsize == 8 and p.loss == "squared" else whole
        yield from factored_in_tiles(p, r, self.itemsize, self)

    def systems(self, data: TrainingData, plan: Plan, context: Context) -> DirectDual | FactoredDual:
        return self.ridge_of(plan.chosen.details, data, plan, context)

    def solved(
        self,
        systems: Any,
        data: TrainingData,
        plan: Plan,  # noqa: ARG002
        context: Context,  # noqa: ARG002
        start: DualStart | None,  # noqa: ARG002
    ) -> Solution:
        """One system after another; those in float32 have outcomes of iterations."""
        outcomes = list[CGOutcome]()
        for system in systems.systems():
            with in_terms_of_alpha([system.alpha], "dual", partial(scale_of, data, "dual")):
                outcome = systems.solve(system)
            outcomes += [] if outcome is None else [outcome]
        solution: Solution = systems.solution(merged(outcomes) if outcomes else None)
        return solution

    def objective(self, data: LabelledData, plan: Plan, context: Context) -> FormObjective:
        matrix = self.gram_of(data, plan.chosen.details, context)
        return dual_objective(matrix, lambda: StepFactors(matrix, context), data, plan, context)


def factored_in_square(p: Problem, r: Resources, method: Method) -> Strategy:
    """One square in the calling process (`linalg.square`), with the matrix above its diagonal and the factor below."""
    site = GramCosts(p, r, r.in_caller("memory", r.local_threads))
    n, systems = p.n, p.systems
    m = systems.n_right_sides + 1  # one more is the probe of the condition number
    rows, csr, entry_seconds = p.row_bytes_in_strips(n), p.csr_bytes(min(n, KERNEL_BLOCK)), p.entry_time()
    forming, used = gram_workspace_bytes(p.kernel, n, rows, p.d, csr), solving_work(n, m)
    recipe = (
        Step("reading X", Work(row_bytes=0 if p.x_in_memory else p.stored_bytes), by="caller"),
        Step("Gram matrix", Work(element_seconds=entry_seconds * (n * (n + 1) / 2)), 1, "blas"),
        *(COMPARED if p.kernel.is_precomputed else ()),
        Step("factorisation", factor_work(n), systems.n_factors, "blas"),
        Step("factorisation", copy_work(n), systems.n_factors, "caller"),
        Step("factorisation", Work(fresh_bytes=8.0 * n * n), 1, "caller"),
        Step("factorisation", used, systems.n_factors, "blas"),
        Step("true residual", used, systems.n_factors, "blas"),
    )
    squares = 8 * n * n * (len(p.alphas) if p.uncertainty else 1)
    vectors = (VECTORS[8] + int(p.fit_intercept) + int(not p.y_in_memory)) * 8 * n * m
    loaded = 0 if p.x_in_memory else p.stored_bytes + p.read_overhead_bytes
    held = loaded + squares + vectors + forming + r.local_threads * BYTES_PER_THREAD
    peak = site.peak(held, 0, CALLER_MARGIN_BYTES)
    stages = site.price(recipe, peak) + (site.held_out(peak, TileGrid(n, n, n)) if p.uncertainty else ())
    details = Direct(tiling=Tiling(n, n), row_block=n, keeps_matrix=True, keeps_factors=p.uncertainty)
    return Strategy(method=method, form="dual", place=site.place, details=details, stages=stages)


class DualCholesky(DualFactor):
    """A factor in float64 for each λ, or in every step of Newton's method."""

    name = "dual, Cholesky"
    solver = "cholesky"
    itemsize = 8
    ridge_of = DirectDual
    gram_of = FactoredGram
    folds_by = "factors"

    def why(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> list[Reason]:
        against = against_float32(p) if p.n > ONE_TILE else ""
        precision = [Reason("float64", f"in float64, since {against}")] if against else []
        return [*precision, *why_place(c, p, candidates)]


class DualFloat32(DualFactor):
    """A factor in float32, and iterations in float64 with it; one in float64 follows if that breaks down."""

    name = "dual, Cholesky in float32"
    solver = "float32"
    itemsize = 4
    ridge_of = FactoredDual
    gram_of = Float32Gram

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
