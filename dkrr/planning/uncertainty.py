"""Plan of variances and likelihoods: method, cost and reasons."""

from dataclasses import dataclass
from typing import Any, Literal

from dkrr.planning.explain import Reasoned
from dkrr.planning.plan import Plan
from dkrr.text import Reason, format_bytes, format_seconds, plural


@dataclass(frozen=True, repr=False)
class UncertaintyPlan(Reasoned):
    """Plan of the variances and the likelihood of a fit: method, projected cost and reasons.

    ``str(plan)`` explains it.

    Attributes
    ----------
    method : {"factor", "iterations"}
        From a Cholesky factor, or by iterations of conjugate gradient.
    plan : Plan
        Plan of the factor, or of one run of conjugate gradient.
    n_rows : int
        Rows whose variances were asked for; 0: only the likelihood.
    seconds : float
        Projected wall time in seconds.
    reasons : tuple of Reason
        Why so, sentence by sentence.
    rejected : tuple of Reason
        Rejected methods, each with the reason against it.

    See Also
    --------
    dkrr.KernelRidge : Kernel ridge regression.
    dkrr.planning.Plan : The plan of a fit.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> model = dkrr.KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> mean, std = model.predict(np.eye(3), return_std=True)
    >>> model.uncertainty_plan_.method
    'factor'
    """

    method: Literal["factor", "iterations"]
    plan: Plan
    n_rows: int
    seconds: float
    reasons: tuple[Reason, ...]
    rejected: tuple[Reason, ...] = ()

    @property
    def columns(self) -> int:
        """Rows whose variances one run computes."""
        return self.plan.problem.n_targets

    def summary(self) -> str:
        """Short description of the method."""
        if self.method == "factor":
            return f"exact, from a Cholesky factor; {self.plan.chosen.summary()}"
        return f"certified bounds, {plural(self.columns, 'row')} at a time; {self.plan.chosen.summary()}"

    def title(self) -> str:
        return f"dkrr uncertainty: of {self._rows()}, {self.plan.problem.n:,} training rows"

    def facts(self) -> list[tuple[str, str]]:
        limit = format_bytes(self.plan.chosen.limit_bytes)
        return [
            ("time", f"about {format_seconds(self.seconds)}"),
            ("memory", f"at most {format_bytes(self.plan.peak_bytes)} per process (limit {limit})"),
        ]

    def own(self) -> dict[str, Any]:
        return {"n_rows": self.n_rows, "peak_bytes": self.plan.peak_bytes}

    def _rows(self) -> str:
        return plural(self.n_rows, "row") if self.n_rows else "the likelihood"

    def _summary(self) -> str:
        cost = f"about {format_seconds(self.seconds)}, at most {format_bytes(self.plan.peak_bytes)} per process"
        return f"{self.method}, {cost}"
