"""Newton's method for kernel logistic regression.

A step costs what the same form and solver cost for ridge regression: a system with another diagonal, and a few products
with K. How many steps are needed is an estimate (`Problem.n_steps`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dkrr.cost import Stage
from dkrr.planning import newton_dual, newton_primal
from dkrr.planning.direct import Direct
from dkrr.planning.float32_factor import Float32Factor
from dkrr.planning.iteration import MANY_ITERATIONS, Iterative, doubt_of_spectrum
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Reason, Settings, Strategy
from dkrr.planning.tilings import tile_reasons
from dkrr.solvers.newton import SECONDS_PER_STEP, SECONDS_PER_STEP_IN_MEMORY

Inner = Direct | Iterative | Float32Factor


@dataclass(frozen=True, kw_only=True)
class Newton(Strategy):
    """Newton's method, whose systems are solved in one of the ways of ridge regression."""

    inner: Inner
    n_steps: int

    @classmethod
    def serves(cls, settings: Settings) -> bool:  # noqa: ARG003
        return True

    @classmethod
    def candidates(cls, problem: Problem, resources: Resources, form: Form) -> Iterator["Newton"]:
        for strategy, prices in INNER[form].items():
            if strategy.serves(problem.settings):
                for inner, stages in prices(problem, resources):
                    yield newton(problem, inner, stages)

    @property
    def uses_threads(self) -> bool:
        return self.form == "primal" or self.inner.uses_threads

    @property
    def for_systems(self) -> Inner:
        return self.inner

    @property
    def is_whole(self) -> bool:
        return self.form == "dual" and self.inner.is_whole

    @property
    def streams(self) -> bool:
        """Rows are streamed, and the matrix of all features is in the calling process."""
        return self.form == "primal" and isinstance(self.inner, Direct)

    def summary(self) -> str:
        return self.inner.summary()

    def solves_by(self) -> str:
        return self.inner.solves_by()

    def lines(self, problem: Problem) -> list[str]:
        in_all = "" if isinstance(self.inner, Direct) else f", {self.inner.iterations:,} iterations in all"
        _, where, *matrix = self.inner.lines(problem)
        return [
            f"  solver      Newton to a relative gradient of {problem.tol:.0e}, by {self.solves_by()}; "
            f"about {self.n_steps} steps{in_all} (an estimate)",
            where,
            *([] if self.streams else matrix),
        ]

    def reasons(self, problem: Problem, priced: Strategy, others: Sequence[Strategy]) -> list[Reason]:
        if not self.streams:
            return self.inner.reasons(problem, priced, others)
        text = "the curvature is a matrix in the calling process; the rows are streamed, a pass for each step"
        return [Reason("rows-streamed", text)] + ([] if self.place.is_memory else tile_reasons(problem))

    def doubt(self, problem: Problem, direct_seconds: float) -> Reason:
        """See base class.

        Steps are estimates for all solvers, and tolerate systems that are not solved well.
        """
        if self.inner.is_direct:
            return Reason()
        return doubt_of_spectrum(problem, self, direct_seconds, MANY_ITERATIONS * self.n_steps)

    def layout(self) -> dict[str, Any]:
        return self.inner.layout()


def newton(p: Problem, inner: Inner, own_stages: Sequence[Stage]) -> Newton:
    """Newton's method around a way to solve its systems.

    Parameters
    ----------
    p : Problem
    inner : Direct, Iterative or Float32Factor
        Priced for the systems of all steps.
    own_stages : sequence of Stage
        Its own stages, the last of which are the steps.
    """
    *more, steps = own_stages
    # What every step takes, however small.
    per_step = SECONDS_PER_STEP_IN_MEMORY[inner.form, inner.solver] if inner.place.is_memory else SECONDS_PER_STEP
    targets = [Stage("targets", 0.0)] if inner.form == "primal" else []
    stages = (*inner.stages, *targets, *more, steps.plus(p.n_steps * per_step))
    return Newton(form=inner.form, place=inner.place, stages=stages, inner=inner, n_steps=p.n_steps)


INNER: Mapping[
    Form, Mapping[type[Strategy], Callable[[Problem, Resources], Iterable[tuple[Inner, Sequence[Stage]]]]]
] = {
    "dual": {Direct: newton_dual.direct, Float32Factor: newton_dual.factored, Iterative: newton_dual.by_iteration},
    "primal": {
        Direct: newton_primal.direct,
        Float32Factor: newton_primal.instead_of_factors,
        Iterative: newton_primal.by_iteration,
    },
}
"""Prices by form and by what solves the systems; columns of K do not precondition the primal form."""
