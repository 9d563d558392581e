"""The plan: a frozen value that explains itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Execution, RatesFrom, Resources
from dkrr.planning.strategy import Reason, Strategy, codes_of, plural
from dkrr.text import Explained, format_bytes, format_seconds

ITERATING = "conjugate gradient"
"""Stage whose time is proportional to the iterations."""
NARROW = 0.1
"""Width of a range of seconds over the seconds, below which it says nothing."""
RATES: Mapping[RatesFrom, str] = {
    "defaults": "dkrr's defaults, not of this machine: `dkrr calibrate` measures",
    "quick": "measured here in a moment; `dkrr calibrate` measures for longer",
    "calibration": "measured here by `dkrr calibrate`",
    "configuration": "from Dask's configuration",
}
SIZES: dict[str, Callable[["Plan"], int | None]] = {}
"""Sizes of saved models: functions of `planning.saved`, which plan the factor, and so are above this module."""


@dataclass(frozen=True, repr=False)
class Plan(Explained):
    """What will be done, what it should cost, and why.

    ``str(plan)`` explains it, as a notebook does; ``plan.to_dict()`` is for programs. Each reason is a sentence with a
    `code`, which stays the same where the words change: "reason_codes" and "refused_code" of the dictionary.
    """

    problem: Problem
    resources: Resources
    chosen: Strategy
    prediction: Form
    """Form in which the model predicts: primal costs O(D) per row, dual O(n d)."""
    reasons: tuple[Reason, ...]
    rejected: tuple[Strategy, ...]
    """The other candidates, best first."""

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
        least, most = self.chosen.for_systems.iteration_doubt(self.problem)
        iterating = sum(s.seconds for s in self.chosen.stages if s.name == ITERATING)
        return self.seconds + (least - 1.0) * iterating, self.seconds + (most - 1.0) * iterating

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
        """Size of the saved model, but for its description and a transformer."""
        return SIZES["model"](self) or 0

    @property
    def saved_bytes_with_uncertainty(self) -> int | None:
        """The same with what standard deviations and intervals need; None where there are none."""
        return SIZES["with uncertainty"](self)

    @property
    def has_primal_factor(self) -> bool:
        """Whether errors are computed from a factor of D × D (for λ > 0): one of the fit, or the smaller one."""
        d = self.problem.dimension or 0
        is_small = d <= self.problem.n and 3 * 8 * d**2 <= self.resources.local_limit_bytes // 2
        return self.form == "primal" and (self.chosen.for_systems.is_direct or is_small)

    @property
    def uses_threads(self) -> bool:
        """In the calling process tasks run in threads with one BLAS thread each, not one after the other."""
        return self.chosen.uses_threads

    def to_dict(self) -> dict[str, Any]:
        """Plan as values of JSON."""
        problem = {
            "n": self.problem.n,
            "d": self.problem.d,
            "n_targets": self.problem.n_targets,
            "loss": self.problem.loss,
            "kernel": self.problem.kernel.to_dict(),
            "dimension": self.problem.dimension,
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
        }

    def __repr__(self) -> str:
        p, disk = self.problem, self.chosen.disk_bytes
        store = "" if self.chosen.place.is_memory else f", {format_bytes(disk)} on disk"
        return (
            f"<Plan for {p.n:,} × {p.d:,}, {_columns(p)}: {self.chosen.summary()}; about "
            f"{format_seconds(self.seconds)}, at most {format_bytes(self.peak_bytes)} per process{store}>"
        )

    def __str__(self) -> str:
        c, p, side = self.chosen, self.problem, self.problem.side(self.form)
        how = "factor" if c.solver == "cholesky" else "iterate with"
        alphas = f", {len(p.alphas)} values of alpha" if len(p.alphas) > 1 else ""
        solver, *where = c.lines(p)
        disk = f"{format_bytes(c.disk_bytes)}; {format_bytes(c.written_bytes)} written, "
        disk += f"{format_bytes(c.read_bytes)} read"
        lines = [
            f"dkrr plan: {p.n:,} rows × {p.d:,} columns, {_columns(p)}, {_describe(p)}",
            f"  form        {c.form}: {how} {_matrix(p, c.form)}, {side:,} × {side:,}; predict in "
            f"{self.prediction} form",
            f"{solver}{alphas}",
            *where,
            f"  time        about {format_seconds(c.seconds)}{self._range()}",
            f"  rates       {RATES[self.resources.rates_from]}",
            f"  memory      at most {format_bytes(c.peak_bytes)} per process (limit {format_bytes(c.limit_bytes)})",
            f"  disk        {'none' if c.place.is_memory else disk}",
            f"  model       {format_bytes(self.saved_bytes)} when it is saved{self._with_uncertainty()}",
            *([f"  cluster     {self.resources.assumed}"] if self.resources.assumed else []),
            "  because",
            *(f"    - {reason}" for reason in self.reasons),
        ]
        if self.rejected:
            lines.append("  rejected")
            lines += [f"    - {_rejection(r, c)}" for r in self.rejected[:4]]
        return "\n".join(lines)

    def _with_uncertainty(self) -> str:
        n_bytes = self.saved_bytes_with_uncertainty
        return "" if n_bytes is None else f", {format_bytes(n_bytes)} with uncertainty=True"

    def _range(self) -> str:
        """Range of the time, in parentheses; empty where it is narrow."""
        least, most = self.seconds_range
        if most - least <= NARROW * self.seconds:
            return ""
        return f" ({format_seconds(least)} to {format_seconds(most)}: the iterations are an estimate)"


def _columns(p: Problem) -> str:
    if p.loss == "squared":
        return plural(p.n_targets, "target")
    return f"softmax of {p.n_targets} classes" if p.is_coupled else plural(p.n_targets, "logistic model")


def _matrix(p: Problem, form: Form) -> str:
    if p.loss == "squared":
        return "K + λI" if form == "dual" else "ΦᵀΦ + λI"
    return "K + 2λW⁻¹" if form == "dual" else "ΦᵀWΦ + 2λI"


def _rejection(rejected: Strategy, chosen: Strategy) -> str:
    ratio = rejected.seconds / max(chosen.seconds, 1e-9)
    compared = (
        f"slower, {f'{ratio:.2g}' if ratio < 99.5 else f'{ratio:,.0f}'} × the time"
        if ratio > 1.03
        else "not faster, and moves more bytes"
    )
    why = rejected.refused or compared
    cost = f"about {format_seconds(rejected.seconds)}, {format_bytes(rejected.peak_bytes)} per process"
    return f"{rejected.summary()}: {why} ({cost})"


def _describe(p: Problem) -> str:
    description = p.kernel.to_dict()
    name = description.pop("kernel")
    if "feature_map" in description:  # the kernel of a map: the kernel that the map approximates is more informative
        description = dict(description["feature_map"])
        name = description.pop("feature_map")
    parameters = ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in description.items()
        if not isinstance(value, dict | list)
    )
    alphas = float(f"{p.alphas[0]:.6g}") if len(p.alphas) == 1 else p.alphas
    return f"{name} kernel" + (f" ({parameters})" if parameters else "") + f", alpha={alphas}"
