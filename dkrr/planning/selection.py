"""Plan of the scores of one kernel: sizes of folds, method, cost and reasons."""

from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any, Literal

from dkrr.planning.explain import Reasoned
from dkrr.planning.plan import Plan
from dkrr.planning.problem import Problem
from dkrr.text import Reason, format_bytes, format_seconds, plural

Method = Literal["sweep", "factors", "primal", "refits", "paths"]

RISES = 2
"""Worse scores in a row, for λ below the best one, after which early stopping gives up all smaller λ."""


@dataclass(frozen=True)
class FoldSizes:
    """Sizes of the folds that a plan depends on."""

    n_folds: int
    is_loo: bool = False
    train_on_the_rest: bool = True
    """Every fold trains on exactly the rows that it does not leave out."""
    n_training: int | None = None
    """Training rows of a fold, in the cubic mean, as factors cost; None: as many as all rows at most."""
    are_learned: bool = False
    """The kernel is fitted to the training rows, so that every fold has its own."""
    targets_together: bool = False
    """Scores are of all targets together, so that none can wait."""
    predicts: bool = False
    """Scores need the predictions of rows, not only the sums of their squared errors."""
    refit: bool = False
    """All rows are fitted as well."""
    races: bool = True
    """λ that have lost are given up before they are solved for."""

    @property
    def n_sets(self) -> int:
        """Training sets of one run: those of the folds, and all rows."""
        return self.n_folds + self.refit


@dataclass(frozen=True, repr=False)
class ScoringPlan(Reasoned):
    """Plan of the scores of one kernel: how λ is chosen, projected cost and reasons.

    ``str(plan)`` explains it.

    Attributes
    ----------
    method : {"sweep", "factors", "primal", "refits", "paths"}
        Method of the scores: all folds and λ in one run of conjugate gradient (sweep), from one factor for each λ, from
        one pass over the rows (primal), a fit for each fold, or a path of fits through λ for each fold.
    plan : Plan
        Plan of the systems: all of them, some targets at a time (sweep), those of one λ (factors), or of one fold.
    sizes : FoldSizes
        What the cost depends on of the folds: `n_folds`, `is_loo`, ...
    n_alphas : int
        Number of λ.
    seconds : float
        Projected wall time in seconds, without the fit with the chosen λ.
    peak_bytes : int
        Projected highest memory of any process that works.
    reasons : tuple of Reason
        Why so, sentence by sentence.
    rejected : tuple of Reason
        Rejected methods, each with the reason against it.
    curve : tuple of float
        Fractions of the training rows to which every fold has a fit as well, for a learning curve.
    parts : tuple of Plan
        Plan of one fold's fit to such a part, for every fraction.
    direct_seconds : float
        Projected time of a separate last fit by a factorisation, which takes over where to continue the run of the
        scores would take longer; infinite where none can.
    otherwise : ScoringPlan or None
        Factors that take over from a sweep whose residuals show that they take less time; None: nothing does.
    asked : Problem or None
        Problem of a fit to all rows with every λ, for which the scores are.

    See Also
    --------
    dkrr.plan : Make a plan without carrying it out.
    dkrr.KernelRidgeCV : Kernel ridge regression with a choice of λ and kernel.
    dkrr.planning.Plan : The plan of a fit.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> plan = dkrr.plan(np.eye(10), np.arange(10.0), kernel="rbf", alphas=[0.1, 1.0], cv=5).main
    >>> plan.n_alphas, plan.peak_bytes <= plan.limit_bytes
    (2, True)
    """

    method: Method
    plan: Plan
    sizes: FoldSizes
    n_alphas: int
    seconds: float
    peak_bytes: int
    reasons: tuple[Reason, ...] = ()
    rejected: tuple[Reason, ...] = ()
    curve: tuple[float, ...] = ()
    parts: tuple[Plan, ...] = ()
    direct_seconds: float = inf
    otherwise: "ScoringPlan | None" = None
    asked: Problem | None = None

    def summary(self) -> str:
        """Short description of the method."""
        folds = "leave-one-out" if self.sizes.is_loo else plural(self.sizes.n_folds, "fold")
        alphas = f"{self.n_alphas} λ" if self.n_alphas > 1 else "1 λ"
        how = {
            "sweep": f"all {folds} × {alphas} in one run",
            "paths": f"a path of fits through {alphas} for each of {folds}",
            "factors": f"{folds} from one factor for each of {alphas}",
            "primal": f"{folds} × {alphas} from one pass over the rows, primal, in this process",
            "refits": f"a fit of all {alphas} for each of {folds}",
        }[self.method]
        parts = f", and a fit for each of {plural(len(self.curve), 'part')}" if self.curve else ""
        return f"{how}{parts}" if self.method == "primal" else f"{how}{parts}; {self.plan.chosen.summary()}"

    def noted(self, reason: Reason) -> "ScoringPlan":
        """Plan with one more reason.

        Parameters
        ----------
        reason : Reason
            Reason to append.

        Returns
        -------
        ScoringPlan
            Plan with all reasons.
        """
        return replace(self, reasons=(*self.reasons, reason))

    def with_factors(self, reason: Reason) -> "ScoringPlan":
        """Plan with the factors that take over from a watched sweep, and why.

        Parameters
        ----------
        reason : Reason
            Why the sweep was given up.

        Returns
        -------
        ScoringPlan
            Plan of the factors, with the same learning curve.
        """
        assert self.otherwise is not None
        curve = self.sizes.n_folds * sum(part.seconds for part in self.parts)
        return replace(
            self.otherwise,
            curve=self.curve,
            parts=self.parts,
            seconds=self.otherwise.seconds + curve,
            peak_bytes=self.peak_bytes,
            reasons=(*self.otherwise.reasons, reason),
        )

    def memory(self) -> str:
        """Most memory of a process, in words."""
        if self.method == "primal" or self.plan.execution != "dask" or self.peak_bytes == self.plan.peak_bytes:
            return format_bytes(self.peak_bytes)
        return f"{format_bytes(self.peak_bytes)} in the calling process, {format_bytes(self.plan.peak_bytes)}"

    def title(self) -> str:
        return f"dkrr scores: {plural(self.plan.problem.n, 'row')} × {plural(self.plan.problem.d, 'column')}"

    def facts(self) -> list[tuple[str, str]]:
        return [
            ("time", f"about {format_seconds(self.seconds)}"),
            ("memory", f"at most {self.memory()} per process (limit {format_bytes(self.limit_bytes)})"),
        ]

    @property
    def limit_bytes(self) -> int:
        """Memory that a process may hold."""
        is_here = self.method == "primal"
        return self.plan.resources.local_limit_bytes if is_here else self.plan.chosen.limit_bytes

    def own(self) -> dict[str, Any]:
        return {
            "n_alphas": self.n_alphas,
            "folds": asdict(self.sizes),
            "curve": list(self.curve),
            "peak_bytes": self.peak_bytes,
        }

    def _summary(self) -> str:
        cost = f"about {format_seconds(self.seconds)}, at most {format_bytes(self.peak_bytes)} per process"
        return f"{self.method}, {cost}"
