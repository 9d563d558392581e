"""The plan: a frozen value that explains itself."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from dkrr.kernels.map_base import FeatureMap
from dkrr.planning.drawing import Drawing, drawing_reasons
from dkrr.planning.explain import (
    best_of_each_kind,
    columns_of,
    kernel_of,
    layout,
    matrix_of,
    reasons_of,
    rejection,
)
from dkrr.planning.iterations_first import iteration_doubt, most_seconds
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Execution, RatesFrom, Resources
from dkrr.planning.strategy import Strategy
from dkrr.text import Explained, Reason, codes_of, format_bytes, format_seconds, plural

ITERATION_STAGE = "conjugate gradient"
"""Stage whose time is proportional to the iterations."""
NARROW = 0.1
"""Width of a range of seconds over the seconds, below which it says nothing."""
RATES: Mapping[RatesFrom, str] = {
    "defaults": "dkrr's defaults, not of this machine: `dkrr calibrate` measures",
    "quick": "measured here in a moment; `dkrr calibrate` measures for longer",
    "calibration": "measured here by `dkrr calibrate`",
    "configuration": "from Dask's configuration",
}


@dataclass(frozen=True, repr=False)
class Plan(Explained):
    """Work that will be done, its projected cost, and the reasons.

    ``str(plan)`` explains it, as a notebook does; ``plan.to_dict()`` is for programs. `reasons` are sentences, each
    with a `code`, which stays the same where the words change: "reason_codes" and "refused_code" of the dictionary.
    `rejected` are the other strategies, best first, each with the reason in `refused` or a higher cost.

    Attributes
    ----------
    problem : Problem
        Sizes that the cost depends on: `n` rows, `d` columns, `n_targets`, `kernel`, `alphas`, ...
    resources : Resources
        Processes and their limits as the planner found them: `n_workers`, `local_limit_bytes`, `rates_from`, ...
    chosen : Strategy
        What will be done, with its cost.
    prediction : {"primal", "dual"}
        Form in which the model predicts: primal costs O(D) per row, dual O(n d).
    candidates : tuple of Strategy
        All that were priced, the cheapest first.
    drawing : Drawing, optional
        Centres that are drawn before the fit.
    impossible : tuple of Reason
        Why a form has no candidates.
    compared : tuple of Strategy
        Others that it was compared with, of plans of the same problem.
    more : tuple of Reason
        Reasons that were added to those of the planner.
    begun : Plan, optional
        Plan of the iterations that it takes over from, whose reasons are its own too.

    See Also
    --------
    dkrr.plan : Make a plan without carrying it out.
    dkrr.solvers.SolveResult : What a fit reports of its work.
    dkrr.planning.Strategy : Solver of a problem, with its cost.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> plan = KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0]).plan_
    >>> plan.form, plan.solver, plan.execution
    ('dual', 'cholesky', 'memory')
    >>> plan.peak_bytes <= plan.chosen.limit_bytes
    True
    """

    problem: Problem
    resources: Resources
    chosen: Strategy
    prediction: Form
    candidates: tuple[Strategy, ...]
    drawing: Drawing | None = None
    impossible: tuple[Reason, ...] = ()
    compared: tuple[Strategy, ...] = ()
    more: tuple[Reason, ...] = ()
    begun: "Plan | None" = None

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        """Why so, sentence by sentence; the words are made when they are first read."""
        if self.begun is not None:
            return (*self.begun.reasons, *self.more)
        return (
            *reasons_of(self.priced, self.resources, self.chosen, self.candidates),
            *drawing_reasons(self.drawing),
            *self.impossible,
            *self.problem.because.reasons,
            *self.more,
        )

    @cached_property
    def rejected(self) -> tuple[Strategy, ...]:
        """The other candidates, best first, each with the reason in `refused` or a higher cost."""
        return (*best_of_each_kind(self.candidates[1:], self.chosen), *self.compared)

    @property
    def features(self) -> FeatureMap | None:
        """Features of the primal form: those of the chosen strategy, or else of the kernel; None: there are none."""
        return self.chosen.features or self.problem.feature_map

    @property
    def dimension(self) -> int | None:
        """Number of features D; None where there are none, or infinitely many."""
        return self.priced.dimension

    @property
    def priced(self) -> Problem:
        """Problem with the features of the chosen strategy."""
        features = self.chosen.features
        return self.problem if features is None else self.problem.with_features(features)

    @property
    def form(self) -> Form:
        """Form of the solve."""
        return self.chosen.form

    @property
    def solver(self) -> str:
        """Name of the solver: "cholesky" or "cg"."""
        return self.chosen.solver

    @property
    def execution(self) -> Execution:
        """Kind of place where the work is done."""
        return self.chosen.execution

    @property
    def seconds(self) -> float:
        """Projected wall time."""
        return self.chosen.seconds

    @property
    def seconds_range(self) -> tuple[float, float]:
        """Shortest and longest wall time that the estimate of the iterations leaves possible; equal without one."""
        least, most = iteration_doubt(self.problem, self.chosen)
        iterating = sum(s.seconds for s in self.chosen.stages if s.name == ITERATION_STAGE)
        longest = most_seconds(self.chosen, self.seconds + (most - 1.0) * iterating)
        return self.seconds + (least - 1.0) * iterating, longest

    @property
    def peak_bytes(self) -> int:
        """Projected highest memory of any process that works."""
        return self.chosen.peak_bytes

    @property
    def disk_bytes(self) -> int:
        """Projected space in the store."""
        return self.chosen.disk_bytes

    @property
    def saved_bytes(self) -> int:
        """Size of the saved model, in whole chunks, but for its description and a transformer."""
        return self.chosen.method.saved_bytes(self)

    @property
    def saved_bytes_with_uncertainty(self) -> int | None:
        """Bytes of a saved model that also gives standard deviations and intervals; None where it cannot.

        A factor for every λ, unless conjugate gradient takes its place.
        """
        more = self.chosen.method.uncertainty_bytes(self)
        return None if more is None else self.saved_bytes + more

    @property
    def has_primal_factor(self) -> bool:
        """Whether errors are computed from a factor of D × D (for λ > 0): one of the fit, or the smaller one."""
        d = self.dimension or 0
        is_small = d <= self.problem.n and 3 * 8 * d**2 <= self.resources.local_limit_bytes // 2
        return self.form == "primal" and ((self.chosen.is_direct and self.chosen.solver == "cholesky") or is_small)

    def with_factorisation(self, why: Reason) -> Self | None:
        """Plan of the factorisation that takes over from iterations, and why; None where nothing takes over.

        Parameters
        ----------
        why : Reason
            What became of the iterations.

        Returns
        -------
        Plan or None
            Plan with its reasons, and the iterations among what is rejected.
        """
        direct = self.chosen.otherwise
        if direct is None:
            return None
        given_up = replace(self.chosen, refused=why, otherwise=None)
        # Others of its kind differ in sizes only: they would be given up as well.
        others = tuple(one for one in self.candidates[1:] if one != direct and one.kind != given_up.kind)
        problem = replace(self.problem, layout=None)  # which is that of the iterations
        candidates = (direct, given_up, *others)
        return replace(self, problem=problem, chosen=direct, candidates=candidates, more=(why,), begun=self)

    def noted(self, reason: Reason) -> Self:
        """Plan with one more reason.

        Parameters
        ----------
        reason : Reason
            Reason to append.

        Returns
        -------
        Plan
            Plan with all reasons.
        """
        return replace(self, more=(*self.more, reason))

    def to_dict(self) -> dict[str, Any]:
        """Plan as values of JSON."""
        problem = {
            "n_samples": self.problem.n,
            "n_features": self.problem.d,
            "n_targets": self.problem.n_targets,
            "loss": self.problem.loss,
            "kernel": self.problem.kernel.to_dict(),
            "dimension": self.dimension,
            "alphas": list(self.problem.alphas),
            "fit_intercept": self.problem.fit_intercept,
        }
        return {
            "problem": problem,
            **self.chosen.to_dict(),
            "seconds_range": list(self.seconds_range),
            "rates_from": self.resources.rates_from,
            "assumed": self.resources.assumed,
            "prediction": self.prediction,
            "saved_bytes": self.saved_bytes,
            "saved_bytes_with_uncertainty": self.saved_bytes_with_uncertainty,
            "reasons": list(self.reasons),
            "reason_codes": codes_of(self.reasons),
            "rejected": [c.to_dict() for c in self.rejected],
            "search_rejected": list(self.problem.because.rejected),
            "search_rejected_codes": codes_of(self.problem.because.rejected),
        }

    def _summary(self) -> str:
        cost = f"about {format_seconds(self.seconds)}, at most {format_bytes(self.peak_bytes)} per process"
        return f"{self.form}, {self.solver}, {cost}"

    def __str__(self) -> str:
        c, p = self.chosen, self.priced
        side = p.matrix_size(self.form)
        how = "factor" if c.solver == "cholesky" else "iterate with"
        disk = f"{format_bytes(c.disk_bytes)}; {format_bytes(c.written_bytes)} written, "
        disk += f"{format_bytes(c.read_bytes)} read"
        form = f"{c.form}: {how} {matrix_of(p, c.form)}, {side:,} × {side:,}; predict in {self.prediction} form"
        facts = [
            ("form", form),
            *c.method.facts(c, p),
            ("time", f"about {format_seconds(c.seconds)}{self._range()}"),
            ("rates", RATES[self.resources.rates_from]),
            ("memory", f"at most {format_bytes(c.peak_bytes)} per process (limit {format_bytes(c.limit_bytes)})"),
            ("disk", "none" if c.place.is_memory and not c.disk_bytes else disk),
            ("model", f"{format_bytes(self.saved_bytes)} when it is saved{self._with_uncertainty()}"),
            *([("cluster", self.resources.assumed)] if self.resources.assumed else []),
        ]
        title = f"dkrr plan: {plural(p.n, 'row')} × {plural(p.d, 'column')}, {columns_of(p)}, {kernel_of(p)}"
        rejected = [*(rejection(r, c) for r in self.rejected[:4]), *p.because.rejected]
        return layout(title, facts, self.reasons, rejected)

    def _with_uncertainty(self) -> str:
        n_bytes = self.saved_bytes_with_uncertainty
        return "" if n_bytes is None else f", about {format_bytes(n_bytes)} with uncertainty=True"

    def _range(self) -> str:
        """Range of the time, in parentheses; empty where it is narrow."""
        least, most = self.seconds_range
        if most - least <= NARROW * self.seconds:
            return ""
        return f" ({format_seconds(least)} to {format_seconds(most)}: the iterations are an estimate)"
